#!/usr/bin/env python3
"""The collector's share by `allocwall diagnose`, compared with what each runtime says or the kernel counts.

For each installed CPython from 3.8 on, JVM and Go, a program that makes garbage runs at two rates, and is diagnosed:

    CPython   time in collections by the runtime's account against the time between the two calls of `gc.callbacks`, less the time
              that the callbacks themselves take. The bill's line `garbage_collector` is shown beside it: it is smaller, because
              what a collection frees is the allocator's and the kernel's lines where these can be recognized
    JVM       the same line against the CPU time of the collector's threads by /proc; stopped time against the log of -Xlog:safepoint
    Go        samples in functions that mark, and the account's CPU time of the collector, against /cpu/classes/gc/mark of runtime/metrics;
              allocated bytes against /gc/heap/allocs. The bill's line is shown beside it: it is larger, because sweeping and the
              marking of new objects are the collector's too

    benches/collector_accounts.py                       all
    benches/collector_accounts.py cpython go            only these
    benches/collector_accounts.py --json FILE

As root, or the kernel's frames are missing. Needs a quiet machine. Standard library only.
"""

import argparse
import contextlib
import glob
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WINDOW_S = 10
# The aim, in percentage points.
AIM = 2.0

# Each line of a program's output: time since 1970 in ms, CPU seconds of the process, of its collector, seconds stopped, bytes allocated.
CPYTHON = """
import collections, gc, json, sys, time
RATE = float(sys.argv[1])
now = time.thread_time_ns
spent = begun = count = 0
def watch(phase, info):
    global spent, begun, count
    if phase == "start":
        begun = now()
    else:
        spent += now() - begun
        count += 1
# What the callbacks take themselves.
pairs = []
for _ in range(20001):
    watch("start", {}); before = spent; watch("stop", {}); pairs.append(spent - before)
own = sorted(pairs)[len(pairs) // 2]
spent = count = 0
gc.callbacks.append(watch)
class Node:
    pass
heap = [[i] for i in range(300_000)]
live = collections.deque(maxlen=20_000)
def garbage():
    for _ in range(200):
        a, b = Node(), Node()
        a.other, b.other = b, a
        a.payload = [a]
        live.append(a)
def compute():
    x = 1
    for _ in range(2000):
        x = (x * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
begin, made = now(), 0
said = time.monotonic()
while True:
    t = now()
    if made < RATE * (t - begin):
        garbage()
        made += now() - t
    else:
        compute()
    if time.monotonic() - said > 0.25:
        said = time.monotonic()
        print(json.dumps([time.time_ns() / 1e6, time.process_time_ns() / 1e9, (spent - own * count) / 1e9, 0, 0]), flush=True)
"""

JAVA = """
import java.util.*;
public class Garbage {
    static Object[] live = new Object[400000];
    public static void main(String[] a) throws Exception {
        double rate = Double.parseDouble(a[0]);
        Random random = new Random(7);
        long begin = System.nanoTime(), made = 0, x = 1;
        while (true) {
            long t = System.nanoTime();
            if (made < rate * (t - begin)) {
                for (int i = 0; i < 20000; i++) {
                    byte[] b = new byte[40 + random.nextInt(100)];
                    if ((i & 7) == 0) live[random.nextInt(live.length)] = b;
                }
                made += System.nanoTime() - t;
            } else {
                for (int i = 0; i < 200000; i++) x = x * 6364136223846793005L + 1442695040888963407L;
                if (x == 42) System.out.println();
            }
        }
    }
}
"""

GO = """
package main
import ("encoding/json"; "os"; "runtime/metrics"; "strconv"; "syscall"; "time")
var live = make([][]byte, 400000)
var sum uint64
func main() {
    rate, _ := strconv.ParseFloat(os.Args[1], 64)
    names := []string{"/cpu/classes/gc/mark/assist:cpu-seconds", "/cpu/classes/gc/mark/dedicated:cpu-seconds",
        "/cpu/classes/gc/mark/idle:cpu-seconds", "/gc/heap/allocs:bytes", "/sched/pauses/total/gc:seconds"}
    samples := make([]metrics.Sample, len(names))
    for i, name := range names { samples[i].Name = name }
    out := json.NewEncoder(os.Stdout)
    go func() {
        for {
            time.Sleep(250 * time.Millisecond)
            metrics.Read(samples)
            var usage syscall.Rusage
            syscall.Getrusage(0, &usage)
            cpu := float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
            collector := samples[0].Value.Float64() + samples[1].Value.Float64() + samples[2].Value.Float64()
            out.Encode([]float64{float64(time.Now().UnixNano()) / 1e6, cpu, collector, 0, float64(samples[3].Value.Uint64())})
        }
    }()
    begin := time.Now()
    var made time.Duration
    x := uint64(1)
    for {
        t := time.Now()
        if float64(made) < rate*float64(t.Sub(begin)) {
            for i := 0; i < 5000; i++ {
                x = x*6364136223846793005 + 1442695040888963407
                block := make([]byte, 64+(x>>57))
                if i&7 == 0 { live[(x>>20)%uint64(len(live))] = block }
            }
            made += time.Since(t)
        } else {
            for i := 0; i < 100000; i++ { x = x*6364136223846793005 + 1442695040888963407 }
            sum += x
        }
    }
}
"""


class Series:
    """Readings of cumulative values: rows of [ms since 1970, value, ...]."""

    def __init__(self):
        self.rows = []

    def over(self, begin, end, column):
        """Growth between two times, interpolated."""

        def at(t):
            after = next(i for i, row in enumerate(self.rows) if row[0] >= t)
            (t0, v0), (t1, v1) = ((row[0], row[column]) for row in self.rows[after - 1 : after + 1])
            return v0 + (v1 - v0) * (t - t0) / (t1 - t0)

        return at(end) - at(begin)


def follow(stream, series):
    for line in stream:
        with contextlib.suppress(ValueError):
            series.rows.append(json.loads(line))


def thread_cpu(pid, collects):
    """CPU seconds of all threads of a process, and of those whose name the pattern fits."""
    total = collector = 0.0
    for task in glob.glob(f"/proc/{pid}/task/*"):
        with contextlib.suppress(OSError):
            spent = int(Path(task, "schedstat").read_text().split()[0]) / 1e9
            total += spent
            collector += spent if collects.search(Path(task, "comm").read_text()) else 0
    return total, collector


def observe(binary, command, folder, follow_threads=None):
    """Runs a program and a diagnosis of it; returns its readings and the report."""
    series, done = Series(), threading.Event()
    child = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        if follow_threads:

            def sample():
                while not done.is_set():
                    series.rows.append([time.time() * 1e3, *thread_cpu(child.pid, follow_threads), 0, 0])
                    time.sleep(0.1)

            reader = threading.Thread(target=sample)
        else:
            reader = threading.Thread(target=follow, args=(child.stdout, series))
        reader.start()
        time.sleep(4)
        if child.poll() is not None:
            raise RuntimeError(f"{command[0]} ended: {child.stderr.read()[-300:]}")
        output = subprocess.run(
            [binary, "diagnose", "-p", str(child.pid), "-d", f"{WINDOW_S}s", "--json", "-o", f"{folder}/recording"], capture_output=True, text=True
        )
        if output.returncode not in (0, 1):
            raise RuntimeError(output.stderr)
        time.sleep(0.6)
        report = {**json.loads(output.stdout), "marking": marking(binary, f"{folder}/recording")}
    finally:
        done.set()
        child.kill()
        reader.join()
        child.wait()
    return series, report


def marking(binary, recording):
    """The part of the samples in the functions that Go's collector counts as marking: its workers, and goroutines that assist."""
    stacks = subprocess.run([binary, "report", recording, "--format", "collapsed"], capture_output=True, text=True, check=True).stdout
    samples = [line.rsplit(" ", 1) for line in stacks.splitlines()]
    total = sum(int(count) for _, count in samples)
    return sum(int(count) for frames, count in samples if re.search(r"runtime\.gc(BgMarkWorker|AssistAlloc)", frames)) / max(total, 1)


def logged_pauses(log, begin, end):
    """Seconds of safepoints in the JVM's own log, whose times are ms since 1970."""
    total = 0.0
    for line in log.read_text().splitlines():
        if match := re.search(r"\[(\d+)ms\].*Total: +(\d+) ns", line):
            if begin <= int(match[1]) <= end:
                total += int(match[2]) / 1e9
    return total


def rows_of(runtime, series, report, log=None):
    """The figures of one run: name, by allocwall with the ends of its interval, by the runtime (None if it has no such figure)."""
    begin = report["recording"]["started_unix_ms"]
    seconds = report["recording"]["window_ns"] / 1e9
    end = begin + seconds * 1e3
    line = next(line for line in report["bill"]["on_cpu"] if line["class"] == "garbage_collector")
    share = line["share"]
    collected, cpu = series.over(begin, end, 2), series.over(begin, end, 1)
    account = (report.get("runtimes") or [{}])[0]
    stopped = account.get("stopped_ns", {}).get("point")
    # What collections of CPython free is on the lines of the allocator and the kernel. Go's line has sweeping and the marking of new
    # objects too, which Go does not count. So only the line of a JVM can be compared.
    truth = collected / cpu * 100 if runtime == "jvm" else None
    yield "the bill's line, % of CPU", share["point"] * 100, share["low"] * 100, share["high"] * 100, truth
    if runtime == "cpython":
        low, point, high = (account["stopped_ns"][end] / account["over_ns"] * 100 for end in ("low", "point", "high"))
        yield "collecting, % of time", point, low, high, collected / seconds * 100
    if runtime == "go":
        yield "marking, % of CPU", report["marking"] * 100, None, None, collected / cpu * 100
    # Absent in a stripped program if the copies of the runtime's figures can't be distinguished.
    own = account.get("collector_cpu_ns", {}).get("point") if runtime == "go" else None
    if own is not None:
        yield "the account, % of CPU", own / account["over_ns"] * seconds / cpu * 100, None, None, collected / cpu * 100
    if log is not None and stopped is not None:
        yield "stopped, % of the time", stopped / account["over_ns"] * 100, None, None, logged_pauses(log, begin, end) / seconds * 100
    allocated = series.over(begin, end, 4)
    value = account.get("allocated_bytes")
    if allocated and isinstance(value, dict) and "point" in value:
        yield "allocated, MB/s", value["point"] / account["over_ns"] * 1e3, None, None, allocated / 1e6 / seconds


def cpythons():
    found = {}
    for path in ["/usr/bin/python3", *sorted(glob.glob(os.path.expanduser("~/.pyenv/versions/*/bin/python3")))]:
        version = subprocess.run([path, "-c", "import sys; print(*sys.version_info[:3])"], capture_output=True, text=True)
        if version.returncode == 0:
            found[path] = tuple(map(int, version.stdout.split()))
    return {path: version for path, version in found.items() if version >= (3, 8)}


def cases(folder):
    """Name, command for a rate, and the pattern of the collector's threads with the log for a JVM."""
    for path, version in cpythons().items():
        yield "cpython", f"CPython {'.'.join(map(str, version))}" + (" (Debian)" if path.startswith("/usr/bin") else ""), (0.15, 0.9), (
            lambda rate, path=path: [path, "-c", CPYTHON, str(rate)]
        ), None
    (folder / "Garbage.java").write_text(JAVA)
    for home in sorted({os.path.realpath(path) for path in glob.glob("/usr/lib/jvm/*")}):
        if not os.path.exists(f"{home}/bin/javac"):
            continue
        classes = folder / Path(home).name
        subprocess.run([f"{home}/bin/javac", "-d", classes, folder / "Garbage.java"], check=True)
        for collector in ("Serial", "Parallel", "G1"):
            threads = re.compile(r"^(GC Thread|G1 |ParGC|GC task|VM Thread)" if collector != "Serial" else r"^VM Thread")
            yield "jvm", f"{Path(home).name} {collector}", (0.15, 0.9), (
                lambda rate, home=home, collector=collector, classes=classes: [
                    f"{home}/bin/java", "-Xmx256m", f"-XX:+Use{collector}GC", f"-Xlog:safepoint:file={folder}/log:uptimemillis,timemillis",
                    "-cp", str(classes), "Garbage", str(rate),
                ]
            ), threads
    if subprocess.run(["sh", "-c", "command -v go"], capture_output=True).returncode == 0:
        (folder / "go").mkdir()
        (folder / "go" / "main.go").write_text(GO)
        environment = {**os.environ, "GOFLAGS": "-mod=mod", "GOCACHE": str(folder / "gocache"), "GO111MODULE": "off"}
        subprocess.run(["go", "build", "-ldflags=-s -w", "-o", folder / "garbage", "main.go"], cwd=folder / "go", env=environment, check=True)
        version = subprocess.run(["go", "env", "GOVERSION"], capture_output=True, text=True).stdout.strip()
        yield "go", f"{version}, stripped", (0.15, 0.9), lambda rate: [str(folder / "garbage"), str(rate)], None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runtime", nargs="*", choices=["cpython", "jvm", "go", []])
    parser.add_argument("--binary", default=ROOT / "target/release/allocwall")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        for runtime, name, rates, command, threads in cases(folder):
            if args.runtime and runtime not in args.runtime:
                continue
            for rate in rates:
                log = folder / "log" if runtime == "jvm" else None
                try:
                    series, report = observe(args.binary, command(rate), folder, threads)
                    rows = list(rows_of(runtime, series, report, log))
                except (RuntimeError, StopIteration, KeyError) as error:
                    print(f"{name:32} {rate:4}  failed: {error!r}", flush=True)
                    results.append({"name": name, "rate": rate, "failed": repr(error)})
                    continue
                for what, seen, low, high, truth in rows:
                    interval = f"({low:.1f} to {high:.1f})" if low is not None else ""
                    right = "" if truth is None else f"{truth:7.1f}  {seen - truth:+5.1f}"
                    print(f"{name:32} {rate:4}  {what:22} {seen:7.1f} {interval:16} {right}", flush=True)
                    results.append({"name": name, "rate": rate, "figure": what, "allocwall": seen, "low": low, "high": high, "truth": truth})
    shares = [r for r in results if "%" in r.get("figure", "") and r["truth"] is not None]
    near = [r for r in shares if abs(r["allocwall"] - r["truth"]) <= AIM]
    print(f"{len(near)} of {len(shares)} shares within {AIM:g} points")
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0 if len(near) == len(shares) and not any("failed" in r for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
