#!/usr/bin/env python3
"""What `allocwall.count` of the Python package costs: four loops, plain, with hooks that only pass calls on, and counted.

Every run is a new process. A block has one run of each arm and two of the plain loop, side by side in turns of some milliseconds
(turns.py). A run's time is its CPU time. The ratio of an arm is the median over the blocks of its time divided by the geometric mean of
the two plain times, with the interval of `overhead.effect`. `noise` is plain compared with plain: smaller effects cannot be
claimed. All arms load the package; the plain one installs no hooks. `passed on` has had a count that is over: then each
call of an allocator passes through the hooks, and nothing is counted.

    benches/python_count.py                                 this interpreter, all loops
    benches/python_count.py json --blocks 40 --python target/venv/bin/python OTHER/bin/python

The package must be installed for each interpreter.
"""

import argparse
import json
import math
import os
import signal
import statistics
import sys
import tempfile
from pathlib import Path

import turns
from overhead import effect, progress

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(os.fspath(ROOT / "python" / "benches"))

from count import RECORD  # noqa: E402

#: Source of each loop, and its iterations: about a fifth of a second.
LOOPS = {
    "json": (
        """
loads, text = json.loads, %r
def work(n):
    for _ in range(n):
        loads(text)
"""
        % json.dumps(RECORD),
        30_000,
    ),
    "strings": (
        """
def work(n):
    for i in range(n):
        parts = []
        for j in range(20):
            parts.append("field-%d=" % j + str(i + 1000))
        ",".join(parts).upper().split(",")
""",
        20_000,
    ),
    "dicts": (
        """
keys = ["key-%d" % i for i in range(60)]
def work(n):
    for i in range(n):
        table = {}
        for key in keys:
            table[key] = [key]
        for key in keys[::2]:
            del table[key]
        dict(table, more=i)
""",
        30_000,
    ),
    "objects": (
        """
class Point:
    __slots__ = ("x", "y")
    def __init__(self, x, y):
        self.x, self.y = x, y
def work(n):
    for i in range(n):
        [Point(i, j) for j in range(50)]
""",
        20_000,
    ),
}

#: Prints the CPU seconds per iteration, and the calls of allocators per iteration if they were counted.
RUN = """
import gc, sys, time
import allocwall
arm, n = sys.argv[1], int(sys.argv[2])
def timed():
    start = time.process_time()
    work(n)
    return (time.process_time() - start) / n
counted = allocwall.count()
work(n // 50)
gc.collect()
if arm == "counted":
    with counted:
        seconds = timed()
    assert counted.complete
else:
    if arm == "passed on":
        with counted:
            work(1)
    seconds = timed()
calls = (counted.calls + counted.frees) / n if arm == "counted" else 0
print(json.dumps([sys.version.split()[0], seconds, calls]))
"""

#: Each arm, and the arms whose geometric mean it is divided by.
ARMS = {"plain": (), "noise": ("plain",), "passed on": ("plain", "noise"), "counted": ("plain", "noise")}


#: A block that takes longer is ended.
LIMIT_S = 600


def run(python, loop, repetitions):
    """One run of each arm: {arm: [the interpreter's version, CPU seconds per iteration, allocator calls per iteration]}."""
    source, iterations = LOOPS[loop]
    # With a fixed seed, all runs lay out their dicts alike.
    env = {**os.environ, "PYTHONHASHSEED": "0"}
    processes, found = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        outputs = {arm: Path(folder) / arm for arm in ARMS}
        for arm, output in outputs.items():
            words = [python, "-c", "import json\n" + source + RUN, arm, iterations * repetitions]
            with output.open("wb") as file:
                processes[arm] = turns.start(turns.Command(words, env), stdout=file, stderr=file)
        turns.take({arm: process.pid for arm, process in processes.items()}, lambda arm: processes[arm].poll() is not None, LIMIT_S)
        for arm, process in processes.items():
            if process.poll() is None:
                turns.signal_group(process.pid, signal.SIGKILL)
                process.wait()
            said = outputs[arm].read_text(errors="replace").strip().splitlines() or ["no message"]
            if process.returncode != 0:
                raise SystemExit(f"error: {python}: {said[-1]}: is the package installed for it? (make wheel, then pip install)")
            found[arm] = json.loads(said[-1])
    return found


def compare(blocks):
    """The ratio of each arm but the first, with its interval, from the seconds of each block's arms."""
    found = {}
    for arm, divisors in ARMS.items():
        if divisors:
            logs = [
                math.log(block[arm]) - statistics.mean(math.log(block[divisor]) for divisor in divisors)
                for block in blocks
            ]
            loss = effect(logs)["loss_percent"]
            # A loss of throughput in per cent of its interval's upper end is the ratio's lower end.
            ends = {"low": "high", "point": "point", "high": "low"}
            found[arm] = {end: 1 - loss[other] / 100 for end, other in ends.items()}
    return found


def measure(python, loop, options):
    blocks = []
    for done in range(options.blocks):
        found = run(python, loop, options.repetitions)
        version, _, calls = found["counted"]
        blocks.append({arm: seconds for arm, (_, seconds, _) in found.items()})
        progress(done + 1, options.blocks)
    return {"python": version, "loop": loop, "calls": calls, "blocks": blocks, "ratios": compare(blocks)}


def row(result):
    """A line of the table. The last figure is what counting adds to one call of an allocator."""
    plain, counted = (statistics.median(block[arm] for block in result["blocks"]) for arm in ("plain", "counted"))
    ratios = ("%.3f (%.3f to %.3f)" % (r["point"], r["low"], r["high"]) for r in result["ratios"].values())
    added = "%.1f ns" % (1e9 * (counted - plain) / result["calls"]) if result["calls"] else "no calls"
    return "%-8s %-8s %8.2f us %7.1f %22s %22s %22s %9s" % (
        result["python"],
        result["loop"],
        1e6 * plain,
        result["calls"],
        *ratios,
        added,
    )


COLUMNS = ("python", "loop", "iteration", "calls", "noise", "passed on", "counted", "per call")
HEAD = "%-8s %-8s %11s %7s %22s %22s %22s %9s" % COLUMNS


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("loops", nargs="*", metavar="LOOP", help="%s (default: all)" % ", ".join(LOOPS))
    parser.add_argument("--python", nargs="+", default=[sys.executable], metavar="PATH", help="(default: this one)")
    parser.add_argument("--blocks", type=int, default=9, help="(default: %(default)s)")
    parser.add_argument("--repetitions", type=int, default=3, help="of the loop in each run (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the seconds of every run to FILE")
    options = parser.parse_args()
    unknown = set(options.loops) - set(LOOPS)
    if unknown:
        parser.error(f"no loop named {', '.join(sorted(unknown))}")
    if options.blocks < 2 or options.repetitions < 1:
        parser.error("--blocks must be at least 2, and --repetitions at least 1")
    print(HEAD)
    results = []
    for python in options.python:
        for loop in options.loops or LOOPS:
            results.append(measure(python, loop, options))
            print(row(results[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
