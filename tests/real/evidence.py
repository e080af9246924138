"""What a program's own log, the kernel and perf say of a window, beside which a diagnosis of that window is held.

A share of time differs from machine to machine: none is expected here. What is expected follows from the same run.
"""

import re
import subprocess
from collections import Counter

# Shares from which the tool calls something a contributor, and the wall (`allocwall explain WALL`).
CONTRIBUTOR, WALL = 0.05, 0.15
# Two samplers of one process differ by so much at most: the promise of beside_perf.py.
MARGIN = 0.02

# Of two samplers at one rate each hits the same moments of the other's handling, again and again.
PERF_HZ = 1117
MAP_CALL = re.compile(r"(^|_)(mmap|munmap|brk|madvise|mremap)(64|_pgoff)?$")
# perf puts the kernel's modules into brackets too.
NOT_THE_KERNEL = {"[unknown]", "[vdso]", "[vsyscall]", "[stack]", "[heap]"}
LIBC = re.compile(r"/libc[.-][^/]*$")

# A pause in the collector's own log, in milliseconds.
#   [16380:0x406d48d0]      485 ms: Scavenge 4.0 (5.2) -> 3.0 (5.2) MB, 0.11 / 0.00 ms  (average mu = ...
NODE_PAUSE = re.compile(r"^\[\d+:0x[0-9a-f]+\] +\d+ ms: .* MB, ([\d.]+) / [\d.]+ ms ", re.MULTILINE)
#   [3.992s][info][gc] GC(55) Pause Young (Normal) (G1 Evacuation Pause) 5M->4M(48M) 6.324ms
JVM_PAUSE = re.compile(r"\[gc\s*\] GC\(\d+\) Pause .* ([\d.]+)ms$", re.MULTILINE)


class Failure(Exception):
    """What went wrong with one program; the others go on."""


def paused_s(log, pattern):
    return sum(map(float, pattern.findall(log))) / 1000


def collected(paused_s, cpu_s, delay_s, cpus):
    """Bounds of the collector's share of the CPU time, from its pauses.

    In a pause at least one thread collects, at most one on each CPU. A pause is wall time: of that the program got as much CPU as of
    its whole runnable time, which is `cpu_s` on a CPU and `delay_s` waiting for one.
    """
    least = paused_s / max(cpu_s + delay_s, 1e-9)
    return least, least * cpus


def problems_beside(report, expect, bounds):
    """What is wrong with a report, by evidence: `bounds` are (least, most) of a wall's share, either None where it is unknown."""
    status = {finding["wall"]: finding["status"] for finding in report["findings"]}
    for wall, (least, most) in sorted(bounds.items()):
        said = f"{wall} is {status.get(wall)}"
        if least is not None:
            if wall in expect.must_be_wall and least >= WALL + MARGIN and status.get(wall) != "wall":
                yield f"{said}; it takes {least:.1%} at least, by other evidence of the same run"
            if least >= CONTRIBUTOR + MARGIN and status.get(wall) not in ("wall", "contributor"):
                yield f"{said}; it takes {least:.1%} at least, by other evidence of the same run"
        if most is not None and most < WALL - MARGIN and status.get(wall) == "wall":
            yield f"{said}; it takes {most:.1%} at most, by other evidence of the same run"


def group(stack):
    """Group of one sample: (symbol, module) from the leaf to the root."""
    kernel = [symbol for symbol, module in stack if module.startswith("[") and module not in NOT_THE_KERNEL]
    leaf, module = stack[0]
    if any("page_fault" in symbol for symbol in kernel):
        return "first touch"
    if any(MAP_CALL.search(symbol) for symbol in kernel):
        return "map calls"
    # On its way into the call and out of it the stack doesn't show which call it is; libc's function around it does.
    if kernel and any("sys_futex" in symbol or "lll_lock" in symbol for symbol, _ in stack):
        return "malloc"
    if kernel:
        return "other kernel"
    if LIBC.search(module):
        return "map calls" if MAP_CALL.search(leaf) else "malloc"
    return "rest"


def stacks(script):
    """Samples of `perf script -F comm,ip,sym,dso`: blocks of `address symbol (module)` lines."""
    frame = re.compile(r"^\s+[0-9a-f]+ (.*) \((.*)\)$")
    stack = []
    for line in [*script.splitlines(), ""]:
        match = frame.match(line)
        if match:
            stack.append((re.sub(r"\+0x[0-9a-f]+$", "", match[1]), match[2]))
        elif stack:
            yield stack
            stack = []


def start_perf(seconds, data):
    """perf's sampling of all CPUs for so long. A clock that goes with a process (-p) rings more often where the process was just
    switched in: at 22,700 switches a second it put 8.8 % of the samples there, and this one 1.3 %."""
    return subprocess.Popen(
        ["perf", "record", "-q", "-F", str(PERF_HZ), "-e", "cpu-clock", "-g", "-o", str(data), "-a", "--", "sleep", str(seconds)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def perf_groups(perf, pids, data):
    """What that saw of these processes (`7,8`): samples by group."""
    said = perf.communicate(timeout=60)[1]
    if perf.returncode != 0:
        raise Failure(f"perf record: {said.strip()}")
    script = ["perf", "script", "-i", str(data), "-F", "comm,ip,sym,dso", "--pid", str(pids)]
    done = subprocess.run(script, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=120)
    if done.returncode != 0:
        raise Failure(f"perf script: {done.stderr.strip()[-400:]}")
    return Counter(group(stack) for stack in stacks(done.stdout))
