"""python -m allocwall bench: the workloads on stock arenas and on huge pages, fresh processes, interleaved.

A block holds every arm once and stock twice, in shuffled order. An arm's effect in a block is the logarithm of its time over
the geometric mean of the two stock times; the effect is the median over the blocks, its interval the exact one for a median
(order statistics, at least 95 %). Beside it stands stock against stock, by the same sum: what is no effect.
"""

import argparse
import json
import math
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from . import _workloads, hugepages

_SCRIPT = Path(_workloads.__file__)
_AGAIN = "stock again"
_TIMEOUT_S = 120


class Arm(NamedTuple):
    name: str
    interpreter: str
    #: What the workload does to itself.
    mode: str
    environment: Dict[str, str]


def arms(names: Sequence[str], interpreter: Optional[str]) -> Tuple[List[Arm], Dict[str, str]]:
    """The arms that can run here, stock twice among them, and why the others can't."""
    found = [Arm("stock", sys.executable, "stock", {}), Arm(_AGAIN, sys.executable, "stock", {})]
    skipped = {}
    for name in names:
        mode = name.partition(":")[0]
        if mode == "mimalloc":
            if sys.version_info < (3, 13):
                skipped[name] = "PYTHONMALLOC=mimalloc is for Python 3.13 and later"
            else:
                found.append(Arm(name, sys.executable, "stock", {"PYTHONMALLOC": "mimalloc"}))
            continue
        if mode not in hugepages.MODES:
            raise ValueError("an arm is mimalloc or one of %s, not %s" % (", ".join(hugepages.MODES), name))
        try:
            hugepages._refuse(mode, fork_unsafe=True)
        except hugepages.Refused as refused:
            skipped[name] = str(refused)
        else:
            found.append(Arm(name, sys.executable, name, {}))
    if interpreter:
        # Its own arenas of 2 MiB, with the switch that it needs since 3.15.
        found.append(Arm("interpreter", interpreter, "stock", {"PYTHON_PYMALLOC_HUGEPAGES": "1"}))
    return found, skipped


def run(arm: Arm, workload: str, idle_s: float) -> Dict[str, Any]:
    """One fresh process, after so many idle seconds."""
    time.sleep(idle_s)
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHONMALLOC", "ALLOCWALL"))}
    how = ["-m", "allocwall._workloads"] if arm.interpreter == sys.executable else [str(_SCRIPT)]
    done = subprocess.run(
        [arm.interpreter, *how, workload, arm.mode],
        env={**inherited, **arm.environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
        timeout=_TIMEOUT_S,
    )
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or ["no output"]
        raise RuntimeError("%s, %s: exit status %d: %s" % (workload, arm.name, done.returncode, last[0]))
    result: Dict[str, Any] = json.loads(done.stdout)
    return result


def median_interval(values: Sequence[float]) -> Tuple[float, Optional[Tuple[float, float]]]:
    """The median, and an interval that holds the true one in at least 95 % of cases; None with fewer than six values."""
    ordered = sorted(values)
    count = len(ordered)
    middle = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    # The interval from the k-th to the k-th last misses when fewer than k of `count` fair coins show one side.
    below, rank = 0.0, 0
    while rank < count // 2:
        below += math.comb(count, rank) / 2**count
        if below > 0.025:
            break
        rank += 1
    return middle, (ordered[rank - 1], ordered[-rank]) if rank else None


def effect(blocks: Sequence[Dict[str, Dict[str, Any]]], arm: str) -> Tuple[float, Optional[Tuple[float, float]]]:
    """An arm's time over stock's, minus one."""

    def log(block: Dict[str, Dict[str, Any]], name: str) -> float:
        return math.log(block[name]["total_s"])

    if arm == _AGAIN:
        logs = [log(block, _AGAIN) - log(block, "stock") for block in blocks]
    else:
        logs = [log(block, arm) - (log(block, "stock") + log(block, _AGAIN)) / 2 for block in blocks]
    middle, interval = median_interval(logs)
    return math.expm1(middle), None if interval is None else (math.expm1(interval[0]), math.expm1(interval[1]))


def _percent(value: float) -> str:
    return "%+.1f %%" % (100 * value)


def table(workload: str, names: Sequence[str], blocks: Sequence[Dict[str, Dict[str, Any]]]) -> List[str]:
    """The lines for one workload: medians over the blocks, and the effect on the time."""

    def median(name: str, key: str) -> float:
        return median_interval([block[name][key] for block in blocks])[0]

    lines = []
    for name in names:
        change, interval = effect(blocks, name) if name != "stock" else (0.0, None)
        between = "%s to %s" % (_percent(interval[0]), _percent(interval[1])) if interval else "too few blocks"
        lines.append(
            "%-15s %-14s %8.1f %8.1f %8.1f %9d %9.1f %8.1f   %s"
            % (
                workload,
                name,
                1e3 * median(name, "build_s"),
                1e3 * median(name, "use_s"),
                1e3 * median(name, "teardown_s"),
                median(name, "faults"),
                median(name, "resident_bytes") / 2**20,
                median(name, "huge_bytes") / 2**20,
                "" if name == "stock" else "%s (%s)" % (_percent(change), between),
            )
        )
    return lines


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help="default: all of %s" % ", ".join(_workloads.WORKLOADS))
    parser.add_argument("--arms", default="thp,collapse", help="beside stock: thp, hugetlb, collapse, auto, mimalloc (%(default)s)")
    parser.add_argument("--interpreter", metavar="PATH", help="one built --with-pymalloc-hugepages, as an arm")
    parser.add_argument("--blocks", type=int, default=9, help="(default: %(default)s)")
    parser.add_argument("--idle", type=float, default=0.0, metavar="SECONDS", help="wait before each run: a cold host")
    parser.add_argument("--seed", type=int, default=1, help="of the order within blocks (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="every run's figures")


def main(options: argparse.Namespace) -> int:
    unknown = [name for name in options.workloads if name not in _workloads.WORKLOADS]
    if unknown:
        print("allocwall: no such workload: %s" % ", ".join(unknown), file=sys.stderr)
        return 2
    if options.blocks < 1 or options.idle < 0:
        print("allocwall: at least one block, and no negative wait", file=sys.stderr)
        return 2
    try:
        chosen, skipped = arms([name for name in options.arms.split(",") if name], options.interpreter)
    except ValueError as error:
        print("allocwall: %s" % error, file=sys.stderr)
        return 2
    for name, why in skipped.items():
        print("allocwall: without %s: %s" % (name, why), file=sys.stderr)
    shuffle = random.Random(options.seed).shuffle
    results: Dict[str, List[Dict[str, Dict[str, Any]]]] = {}
    print(
        "%-15s %-14s %8s %8s %8s %9s %9s %8s   %s"
        % ("workload", "arm", "build ms", "use ms", "down ms", "faults", "resident", "huge MiB", "time against stock")
    )
    for workload in options.workloads or _workloads.WORKLOADS:
        blocks = results.setdefault(workload, [])
        for _ in range(options.blocks):
            order = list(chosen)
            shuffle(order)
            try:
                blocks.append({arm.name: run(arm, workload, options.idle) for arm in order})
            except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
                print("allocwall: %s" % error, file=sys.stderr)
                return 1
        print("\n".join(table(workload, [arm.name for arm in chosen], blocks)), flush=True)
    if options.json:
        document = {"python": sys.version, "idle_s": options.idle, "skipped": skipped, "blocks": results}
        Path(options.json).write_text(json.dumps(document))
    return 0
