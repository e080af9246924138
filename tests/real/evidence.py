"""Evidence from a program's own log, the kernel and perf, with which the diagnosis of the same window is compared.

Shares of time differ from machine to machine, so no fixed share is expected. The expectation follows from the same run.
"""

import itertools
import math
import re
import subprocess
from collections import Counter

# Thresholds for a contributor and for a wall (`allocwall explain WALL`).
CONTRIBUTOR, WALL = 0.05, 0.15
# Tolerated difference between two samplers of one process.
MARGIN = 0.02
# The part of it that is not chance: their windows begin and end some tenths of a second apart, and each names a few functions by
# rules of its own. And the standard errors that are left to chance: in one of 370 comparisons it adds more than three.
NOT_CHANCE = 0.01
STANDARD_ERRORS = 3

# Not the rate of allocwall: with equal rates, each sampler would hit the same moments of the other's work again and again.
PERF_HZ = 1117
MAP_CALL = re.compile(r"(^|_)(mmap|munmap|brk|madvise|mremap)(64|_pgoff)?$")
# Other names that perf prints in brackets; it prints kernel modules in brackets too.
NOT_THE_KERNEL = {"[unknown]", "[vdso]", "[vsyscall]", "[stack]", "[heap]"}
LIBC = re.compile(r"/libc[.-][^/]*$")
# The kernel's own allocator; what it may be called for; and where its time counts for the process that starts or ends.
SLAB = re.compile(r"_*(kmem_cache_(alloc|free)|kv?malloc|kv?free(_skb|_sensitive|$)|(alloc|consume)_skb|skb_release|d_(alloc|free)($|_pseudo))")
SOCKETS = re.compile(r"_*(sock|unix|tcp|udp)_")
INTERRUPT = re.compile(r"sysvec_|common_interrupt|rcu_do_batch")
# What a thread does for itself at the end of an interrupt.
OWN_WORK = re.compile(r"task_work_run|exit_to_user_mode")
PROCESS = re.compile(r"copy_process|do_exit|execve|mmput")

# A pause in the collector's own log, in milliseconds.
#   [16380:0x406d48d0]      485 ms: Scavenge 4.0 (5.2) -> 3.0 (5.2) MB, 0.11 / 0.00 ms  (average mu = ...
NODE_PAUSE = re.compile(r"^\[\d+:0x[0-9a-f]+\] +\d+ ms: .* MB, ([\d.]+) / [\d.]+ ms ", re.MULTILINE)
#   [3.992s][info][gc] GC(55) Pause Young (Normal) (G1 Evacuation Pause) 5M->4M(48M) 6.324ms
JVM_PAUSE = re.compile(r"\[gc\s*\] GC\(\d+\) Pause .* ([\d.]+)ms$", re.MULTILINE)


class Failure(Exception):
    """One program failed; the others continue."""


def paused_s(log, pattern):
    return sum(map(float, pattern.findall(log))) / 1000


def collected(paused_s, cpu_s, delay_s, cpus):
    """Bounds of the collector's share of the CPU time, from its pauses.

    In a pause at least one thread collects or waits for a CPU, and at most one collects on each CPU. The program waited `delay_s` for
    a CPU in all, perhaps always in pauses.
    """
    cpu_s = max(cpu_s, 1e-9)
    return max(paused_s - delay_s, 0) / cpu_s, paused_s / cpu_s * cpus


def problems_beside(report, expect, bounds):
    """Where a report contradicts the evidence: `bounds` are (least, most) of a wall's share; each is None if unknown."""
    status = {finding["wall"]: finding["status"] for finding in report["findings"]}
    for wall, (least, most) in sorted(bounds.items()):
        said = f"{wall} is {status.get(wall)}"
        if least is not None:
            if wall in expect.must_be_wall and least >= WALL + MARGIN and status.get(wall) != "wall":
                yield f"{said}; by other evidence of the same run it takes at least {least:.1%}"
            if least >= CONTRIBUTOR + MARGIN and status.get(wall) not in ("wall", "contributor"):
                yield f"{said}; by other evidence of the same run it takes at least {least:.1%}"
        if most is not None and most < WALL - MARGIN and status.get(wall) == "wall":
            yield f"{said}; by other evidence of the same run it takes at most {most:.1%}"


def margin(*shares):
    """How far the shares of two samplers may be apart, from the sampling error of both. Each is (samples of the group, all samples).

    The binomial error is the most that it can be: a program that changes its work every few milliseconds is sampled more evenly.
    """
    variances = (hits / samples * (1 - hits / samples) / samples for hits, samples in shares)
    return min(MARGIN, NOT_CHANCE + STANDARD_ERRORS * math.sqrt(sum(variances)))


def group(stack):
    """Group of one sample; `stack` has (symbol, module) from the leaf to the root."""
    kernel = [symbol for symbol, module in stack if module.startswith("[") and module not in NOT_THE_KERNEL]
    leaf, module = stack[0]
    if any("page_fault" in symbol for symbol in kernel):
        return "first touch"
    if any(MAP_CALL.search(symbol) for symbol in kernel):
        return "map calls"
    # At the entry and exit of a system call the kernel stack does not show which call it is; libc's function does.
    if kernel and any("sys_futex" in symbol or "lll_lock" in symbol for symbol, _ in stack):
        return "malloc"
    if in_slab(kernel):
        return "kernel slab"
    if kernel:
        return "other kernel"
    if LIBC.search(module):
        return "map calls" if MAP_CALL.search(leaf) else "malloc"
    return "rest"


def in_slab(kernel):
    """Whether the kernel's own allocator is the innermost of these functions (leaf first), and neither for a process that starts or ends
    nor in an interrupt, which frees the objects of any process."""
    if any(PROCESS.search(symbol) for symbol in kernel):
        return False
    own = itertools.takewhile(lambda symbol: not OWN_WORK.search(symbol), kernel)
    if any(INTERRUPT.search(symbol) for symbol in own):
        return False
    for symbol in kernel:
        if SLAB.match(symbol):
            return True
        if SOCKETS.match(symbol):
            return False
    return False


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
    """Starts perf on all CPUs for `seconds`; its samples have the time of CLOCK_REALTIME. The clock of a process (-p) fires more often
    just after the process was switched in: at 22,700 switches a second, 8.8 % of the samples were there; with this clock 1.3 %."""
    return subprocess.Popen(
        ["perf", "record", "-q", "-k", "CLOCK_REALTIME", "-F", str(PERF_HZ), "-e", "cpu-clock", "-g", "-o", str(data), "-a", "--", "sleep", str(seconds)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def perf_groups(perf, pids, data, between=None):
    """Samples of these processes (`7,8`) by group, from the perf that `start_perf` started. `between`: first and last second, since 1970,
    of the samples that count."""
    said = perf.communicate(timeout=60)[1]
    if perf.returncode != 0:
        raise Failure(f"perf record: {said.strip()}")
    script = ["perf", "script", "-i", str(data), "-F", "comm,ip,sym,dso", "--pid", str(pids)]
    if between:
        script += ["--time", "{:.6f},{:.6f}".format(*between)]
    done = subprocess.run(script, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=120)
    if done.returncode != 0:
        raise Failure(f"perf script: {done.stderr.strip()[-400:]}")
    return Counter(group(stack) for stack in stacks(done.stdout))
