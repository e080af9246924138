#!/usr/bin/env python3
"""What a diagnosis costs its target: throughput with and without `allocwall diagnose`, paired and interleaved.

The target runs all the time and counts its own operations in a mapped file. Time is divided into slices, in the order
A B B A. In a slice B the tool runs from start to exit: attach, window, analysis and report. In a slice A nothing
runs for the same time. The effect is the median over neighbouring slices of log(B / A), with a percentile bootstrap
interval (Efron and Tibshirani 1993, chapter 13) and an exact sign test. A second arm does the same with `sleep`
instead of the tool: it shows this machine's noise, and smaller effects cannot be claimed.
The bench also reports operations per CPU-second of the target. Other programs on the machine disturb this figure less
than throughput, but it does not include the CPU time that the tool takes away from the target.

    benches/overhead.py                    both targets, 8 pairs each
    benches/overhead.py storm --pairs 40 --json overhead.json

Standard library only.
"""

import argparse
import contextlib
import functools
import json
import math
import os
import random
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SERVICE = ROOT / "examples" / "manifest-service"
WARM_UP_S = 2
# Pause between two slices, so that after-effects of one are not in the next.
SETTLE_S = 0.3
RESAMPLES = 10_000
LINE_BYTES = 64
STORM_THREADS = 2


class Counter:
    """The target's own count of operations, read from the file that it maps."""

    def __init__(self, path, writers):
        self.path = path
        self.writers = writers

    def read(self):
        content = self.path.read_bytes()
        return sum(struct.unpack_from("<Q", content, LINE_BYTES * writer)[0] for writer in range(self.writers))


@contextlib.contextmanager
def running(commands):
    """Starts the commands, and always ends them."""
    processes = []
    try:
        for command in commands:
            processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL))
        yield processes
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def storm(directory, seconds):
    """Two threads that only allocate, touch and free."""
    program = directory / "storm"
    subprocess.run(["gcc", "-O2", "-pthread", "-o", program, ROOT / "benches" / "storm.c"], check=True)
    counter = directory / "storm.count"
    with running([[program, counter, str(STORM_THREADS)]]) as (target,):
        yield target, Counter(counter, STORM_THREADS)


@contextlib.contextmanager
def python(directory, seconds):
    """The manifest service under a closed loop of four connections."""
    counter = directory / "python.count"
    port = str(random.randrange(20_000, 32_000))
    interpreter = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
    with running([[interpreter, SERVICE / "service.py", "--port", port, "--counter", counter]]) as (target,):
        time.sleep(1)
        with running([[sys.executable, SERVICE / "load.py", "--port", port, "--duration", str(min(600, seconds))]]):
            yield target, Counter(counter, 1)


TARGETS = {"python": python, "storm": storm}


def slice_of(counter, pid, action):
    """The target's operations while the action ran: per second, and per second of its own CPU time."""
    count, cpu, began = counter.read(), cpu_seconds(pid), time.perf_counter()
    result = action()
    elapsed = time.perf_counter() - began
    done = counter.read() - count
    used = cpu_seconds(pid) - cpu
    if done <= 0 or used <= 0:
        raise SystemExit("error: the target does no operations")
    return {"throughput": done / elapsed, "per_cpu_s": done / used}, elapsed, result


def cpu_seconds(pid):
    """CPU time of all threads, in nanosecond steps (schedstat: Documentation/scheduler/sched-stats.rst)."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def diagnose(binary, pid, window_s, recording):
    """One run of the tool; its time beyond the window, its peak of resident memory, its recording's size."""
    command = [binary, "diagnose", "-p", str(pid), "-d", str(window_s), "--no-calibrate", "-o", recording]
    began = time.perf_counter()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    said = process.stderr.read()
    _, status, resources = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    elapsed = time.perf_counter() - began
    if process.returncode != 0:
        raise SystemExit(f"error: diagnose failed ({process.returncode}): {said.decode(errors='replace').strip()}")
    run = {
        "beyond_window_s": elapsed - window_s,
        "tool_cpu_s": resources.ru_utime + resources.ru_stime,
        # The kernel counts from fork on, so the value is at least this script's own size (about 16 MB).
        "peak_rss_mb": resources.ru_maxrss * 1024 / 1e6,
        "recording_mb": recording.stat().st_size / 1e6,
    }
    recording.unlink()
    return run


def pairs_of(counter, pid, treatment, slice_s, pairs):
    """Log ratios B / A of neighbouring slices, in the order A B B A, for each metric; and what each B returned."""
    ratios, results = {"throughput": [], "per_cpu_s": []}, []
    for pair in range(pairs):
        seen = {}
        for arm in "AB" if pair % 2 == 0 else "BA":
            if arm == "B":
                # An idle slice has the length of the tool's own run, so that both have the same length.
                seen["B"], slice_s, result = slice_of(counter, pid, treatment)
                results.append(result)
            else:
                seen["A"], _, _ = slice_of(counter, pid, lambda length=slice_s: time.sleep(length))
            time.sleep(SETTLE_S)
        for metric, series in ratios.items():
            series.append(math.log(seen["B"][metric] / seen["A"][metric]))
        progress(pair + 1, pairs)
    return ratios, results


def progress(done, whole):
    if sys.stderr.isatty():
        print(f"\r{done}/{whole} pairs", end="\n" if done == whole else "", file=sys.stderr, flush=True)


def effect(ratios, seed=20):
    """Loss in per cent: median, 95 % bootstrap interval, two-sided sign test."""
    generator = random.Random(seed)
    resampled = sorted(statistics.median(generator.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    low, high = resampled[int(0.025 * RESAMPLES)], resampled[int(0.975 * RESAMPLES) - 1]

    def lost(log_ratio):
        return (1 - math.exp(log_ratio)) * 100

    return {
        "pairs": len(ratios),
        "loss_percent": {"low": lost(high), "point": lost(statistics.median(ratios)), "high": lost(low)},
        "sign_test_p": sign_test(ratios),
        "log_ratios": ratios,
    }


def sign_test(ratios):
    """Exact, two-sided; ties left out."""
    signs = [ratio > 0 for ratio in ratios if ratio != 0]
    if not signs:
        return 1.0
    fewer = min(sum(signs), len(signs) - sum(signs))
    tail = sum(math.comb(len(signs), k) for k in range(fewer + 1)) / 2 ** len(signs)
    return min(1.0, 2 * tail)


def measure(name, arguments):
    per_pair_s = 2 * (arguments.window + SETTLE_S) + 3
    seconds = WARM_UP_S + 2 * arguments.pairs * per_pair_s + 30
    with tempfile.TemporaryDirectory(prefix="allocwall-bench-") as directory:
        directory = Path(directory)
        with TARGETS[name](directory, seconds) as (target, counter):
            time.sleep(WARM_UP_S)
            recording = directory / "bench.allocwall"
            tool = functools.partial(diagnose, arguments.binary, target.pid, arguments.window, recording)
            # One run before: it fills the page cache and gives the length of a slice.
            slice_s = arguments.window + tool()["beyond_window_s"]
            ratios, runs = pairs_of(counter, target.pid, tool, slice_s, arguments.pairs)
            nothing = functools.partial(time.sleep, slice_s)
            noise, _ = pairs_of(counter, target.pid, nothing, slice_s, arguments.pairs)
    return {
        "target": name,
        "window_s": arguments.window,
        "arms": {
            arm: {metric: effect(series) for metric, series in measured.items()}
            for arm, measured in (("diagnose", ratios), ("noise", noise))
        },
        "tool": {
            key: {"median": statistics.median(run[key] for run in runs), "worst": max(run[key] for run in runs)}
            for key in runs[0]
        },
    }


METRICS = {"throughput": "operations per second", "per_cpu_s": "operations per CPU-second"}


def table(results):
    lines = [f"{'target':<8} {'arm':<9} {'metric':<26} {'pairs':>5} {'loss %':>7} {'95 % interval':>16} {'sign test':>10}"]
    for result in results:
        for arm, metrics in result["arms"].items():
            for metric, found in metrics.items():
                loss = found["loss_percent"]
                interval = f"{loss['low']:+.2f} to {loss['high']:+.2f}"
                p = f"p = {found['sign_test_p']:.2f}"
                lines.append(
                    f"{result['target']:<8} {arm:<9} {METRICS[metric]:<26} {found['pairs']:>5} "
                    f"{loss['point']:>+7.2f} {interval:>16} {p:>10}"
                )
    lines += ["", f"{'target':<8} {'cost of allocwall itself':<38} {'median':>8} {'worst':>8}"]
    names = {
        "beyond_window_s": "run time beyond the window s",
        "tool_cpu_s": "CPU time s",
        "peak_rss_mb": "peak resident MB",
        "recording_mb": "recording MB",
    }
    for result in results:
        for key, title in names.items():
            value = result["tool"][key]
            lines.append(f"{result['target']:<8} {title:<38} {value['median']:>8.2f} {value['worst']:>8.2f}")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="python, storm (default: both)")
    parser.add_argument("--binary", type=Path, default=ROOT / "target" / "release" / "allocwall")
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--window", type=float, default=15, help="seconds of each diagnosis (default: 15)")
    parser.add_argument("--json", type=Path, help="write all figures, including those of each pair, to this file")
    arguments = parser.parse_args()
    unknown = set(arguments.targets) - set(TARGETS)
    if unknown:
        parser.error(f"no target named {', '.join(sorted(unknown))}")
    if arguments.pairs < 2 or not 1 <= arguments.window <= 60:
        parser.error("--pairs must be at least 2, and --window 1 to 60 seconds")
    if not arguments.binary.is_file():
        parser.error(f"{arguments.binary} does not exist; run make build")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    results = [measure(name, arguments) for name in arguments.targets or TARGETS]
    print(table(results))
    if arguments.json:
        arguments.json.write_text(json.dumps({"cpus": os.cpu_count(), "results": results}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
