#!/usr/bin/env python3
"""The cost of counting in a loop of json.loads: python/benches/count.py [--blocks N] [--json FILE]. The package must be installed.

Every run is a new process. A block has one run of every arm and two of the plain loop, in random order. The cost of an arm is the
median over the blocks of its time divided by the geometric mean of the two plain times, with the exact 95 % interval of a median.
The output also compares plain with plain. If memray is not installed, its arms are skipped.
"""

import argparse
import importlib.util
import json
import math
import random
import statistics
import subprocess
import sys
from pathlib import Path

RECORD = {
    "stream_id": "st-000017",
    "sequence": 48211,
    "duration": 6.006,
    "bitrate": 4500000,
    "codec": "avc1.640028,mp4a.40.2",
    "drm": {"scheme": "cenc", "key_id": "9f8e7d6c5b4a39281706f5e4d3c2b1a0", "licence": "https://drm.example/licence", "robust": True},
    "edges": [{"pop": "pop-%02d" % i, "latency": 11.5 + i} for i in range(6)],
    "tags": ["tag-%02d-%s" % (i, "x" * 90) for i in range(12)],
}

LOOP = """
import gc, json, sys, time
text = sys.stdin.read()
loads, clock = json.loads, time.perf_counter
def loop(n):
    for _ in range(n):
        loads(text)
loop(2000)
gc.collect()
def timed(n=%d):
    start = clock()
    loop(n)
    return clock() - start
"""

#: The code of each arm around the loop.
ARMS = {
    "plain": "print(timed())",
    "plain again": "print(timed())",
    "counted before": "import allocwall\nwith allocwall.count(): loop(10)\nprint(timed())",
    "counted": "import allocwall\nwith allocwall.count() as c: t = timed()\nassert c.complete\nprint(t)",
    "each call counted": "import allocwall\nloads = allocwall.count()(json.loads)\nloop(100)\nprint(timed())",
    "counted by line": "import allocwall\nwith allocwall.count(by_line=True) as c: t = timed()\nprint(t)",
    "tracemalloc": "import tracemalloc\ntracemalloc.start()\nprint(timed())",
    "memray": "import memray, tempfile\nwith tempfile.TemporaryDirectory() as d, memray.Tracker(d + '/m'): t = timed()\nprint(t)",
    "memray, Python's allocators": "import memray, tempfile\n"
    "with tempfile.TemporaryDirectory() as d, memray.Tracker(d + '/m', trace_python_allocators=True): t = timed()\nprint(t)",
}


def run(arm, loops):
    done = subprocess.run(
        [sys.executable, "-c", LOOP % loops + ARMS[arm]],
        input=json.dumps(RECORD),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
        timeout=300,
    )
    if done.returncode != 0:
        raise RuntimeError("%s: %s" % (arm, done.stderr.strip().splitlines()[-1]))
    return float(done.stdout)


def interval(values):
    """The exact interval of a median, with at least 95 % confidence: two of the sorted values, or None if there are too few."""
    values, n = sorted(values), len(values)
    below = [sum(math.comb(n, k) for k in range(end + 1)) / 2**n for end in range(n // 2)]
    ends = [end for end, chance in enumerate(below) if chance <= 0.025]
    return (values[ends[-1]], values[-1 - ends[-1]]) if ends else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=15, help="(default: %(default)s)")
    parser.add_argument("--loops", type=int, default=20_000, help="loops per run (default: %(default)s)")
    parser.add_argument("--arms", default=";".join(ARMS), help="separated by semicolons (default: all)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", metavar="FILE", help="write the seconds of every run to FILE")
    options = parser.parse_args()
    chosen = [arm for arm in ARMS if arm.startswith("plain") or arm in options.arms.split(";")]
    if importlib.util.find_spec("memray") is None:
        chosen = [arm for arm in chosen if not arm.startswith("memray")]
        print("memray is not installed: its arms are skipped", file=sys.stderr)
    shuffle = random.Random(options.seed).shuffle
    blocks = []
    for _ in range(options.blocks):
        order = list(chosen)
        shuffle(order)
        blocks.append({arm: run(arm, options.loops) for arm in order})
    print("Python %s, %d bytes of JSON, %d blocks" % (sys.version.split()[0], len(json.dumps(RECORD)), len(blocks)))
    for arm in chosen:
        call = 1e6 * statistics.median(block[arm] for block in blocks) / options.loops
        if arm == "plain":
            print("%-28s %8.2f us per call" % (arm, call))
            continue
        if arm == "plain again":
            changes = [block[arm] / block["plain"] - 1 for block in blocks]
        else:
            changes = [block[arm] / math.sqrt(block["plain"] * block["plain again"]) - 1 for block in blocks]
        ends = interval(changes)
        between = "%+.1f %% to %+.1f %%" % (100 * ends[0], 100 * ends[1]) if ends else "too few blocks"
        print("%-28s %8.2f us per call  %+7.1f %% (%s)" % (arm, call, 100 * statistics.median(changes), between))
    if options.json:
        Path(options.json).write_text(json.dumps({"python": sys.version, "loops": options.loops, "blocks": blocks}))


if __name__ == "__main__":
    main()
