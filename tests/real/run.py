#!/usr/bin/env python3
"""Real programs, end to end: starts each under load from other processes, diagnoses it, and checks the report.

    tests/real/run.py                      all programs, with the release binary
    tests/real/run.py redis nginx          only these
    tests/real/run.py --no-diagnose        only start and load them, and print their rates
    tests/real/run.py --install            install missing packages (Debian); also if CI is set

Each server runs in its own directory on a free loopback port, and is always stopped. Standard library only. Ends with
`N passed, N failed, N skipped`.
"""

import argparse
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from evidence import Failure, collected, paused_s, perf_groups, problems_beside, start_perf
from expectations import problems, text_problems
from services import SERVICES, find_program

ROOT = Path(__file__).resolve().parents[2]
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
START_LIMIT_S = 60
STEADY_LIMIT_S = 20
# A target below this share of one CPU is not under load.
STEADY_CPUS = 0.25
# If unrelated programs use more than this share of the machine's CPUs, the machine is busy. This suite's scripts and the tool use less.
OTHERS = 0.15
# The load runs longer than the window, so that it is steady at both ends.
LOAD_MARGIN_S = 12


class Stage:
    """One service's directory, port and processes."""

    def __init__(self, directory):
        self.directory = Path(directory)
        # Servers that drop privileges must be able to enter it.
        self.directory.chmod(0o755)
        self.log = open(self.directory / "log", "w+b")
        self.port = free_port()
        self.processes = []

    def spawn(self, command, stdout=None):
        process = subprocess.Popen(
            [str(part) for part in command],
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=stdout or self.log,
            stderr=subprocess.STDOUT if stdout is None else self.log,
            start_new_session=True,
            env=environment(),
        )
        self.processes.append(process)
        return process

    def run(self, command):
        """Runs a command to its end."""
        process = self.spawn(command)
        if process.wait(timeout=START_LIMIT_S) != 0:
            raise Failure(f"{command[0]} failed ({process.returncode}): {self.log_tail()}")

    def server(self, command):
        """Starts the server, waits for its port, returns its pid."""
        process = self.spawn(command)
        deadline = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise Failure(f"the server ended ({process.returncode}): {self.log_tail()}")
            with socket.socket() as probe:
                probe.settimeout(1)
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return process.pid
            time.sleep(0.1)
        raise Failure(f"the server does not listen after {START_LIMIT_S} s: {self.log_tail()}")

    def log_tail(self):
        self.log.flush()
        text = (self.directory / "log").read_text(errors="replace")
        return " / ".join(text.strip().splitlines()[-3:])

    def close(self):
        for process in reversed(self.processes):
            stop(process)
        self.log.close()


def environment():
    """The caller's environment without variables that change an allocator or a runtime."""
    meddling = ("LD_PRELOAD", "GLIBC_TUNABLES", "MALLOC_", "PYTHON", "NODE_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS")
    return {name: value for name, value in os.environ.items() if not name.startswith(meddling)}


def stop(process):
    """Ends the whole process group: with SIGTERM, then with SIGKILL."""
    for number, patience in ((signal.SIGTERM, 5), (signal.SIGKILL, 5)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline and group_lives(process):
            time.sleep(0.05)
    process.wait()


def group_lives(process):
    process.poll()
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return True


def free_port():
    """A free port below the ephemeral range (32768 and up on Linux), so that no client gets it meanwhile."""
    for port in random.sample(range(20_000, 32_000), 50):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise Failure("no free port between 20000 and 32000")


def process_tree(root):
    """The process and its descendants, from /proc."""
    children = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                children.setdefault(int(stat_fields(entry)[1]), []).append(int(entry))
            except (OSError, IndexError, ValueError):
                continue
    tree, pending = [], [root]
    while pending:
        pid = pending.pop()
        tree.append(pid)
        pending.extend(children.get(pid, []))
    return tree


def stat_fields(pid):
    """Fields of /proc/PID/stat after the name: state, ppid, ... (proc(5), from field 3 on)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def usage(root):
    """CPU-seconds and minor faults of the whole tree so far."""
    cpu = faults = 0
    for pid in process_tree(root):
        try:
            fields = stat_fields(pid)
        except OSError:
            continue
        faults += int(fields[7])
        cpu += int(fields[11]) + int(fields[12])
    return cpu / CLOCK_TICKS, faults


def scheduled(root):
    """Seconds that the tree's threads ran on a CPU, and waited for one (sched-stats.rst)."""
    cpu = delay = 0
    for pid in process_tree(root):
        for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            try:
                fields = path.read_text().split()
            except OSError:
                continue
            cpu += int(fields[0])
            delay += int(fields[1])
    return cpu / 1e9, delay / 1e9


def machine_s():
    """CPU-seconds of this machine that were not idle (proc(5), /proc/stat: idle and iowait are the fourth and fifth)."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / CLOCK_TICKS


class Evidence:
    """Evidence of the window from other sources than allocwall."""

    def __init__(self, service, stage, pid, load_pids, duration):
        self.service, self.stage, self.pid, self.load_pids = service, stage, pid, load_pids
        self.data = stage.directory / "perf.data"
        self.perf = start_perf(duration, self.data) if service.perf and find_program("perf") else None
        self.processes = ",".join(map(str, process_tree(pid)))
        self.before = self.read()

    def read(self):
        self.stage.log.flush()
        loads = sum(usage(load)[0] for load in self.load_pids)
        return (self.stage.directory / "log").stat().st_size, *scheduled(self.pid), machine_s(), loads, time.monotonic()

    def bounds(self):
        """Bounds of the walls' shares, and the share of the machine's CPUs that unrelated programs used."""
        log, cpu, delay, machine, loads, now = (after - before for after, before in zip(self.read(), self.before))
        bounds = {}
        if self.service.pauses:
            text = (self.stage.directory / "log").read_bytes()[self.before[0] : self.before[0] + log].decode(errors="replace")
            bounds["garbage_collector"] = collected(paused_s(text, self.service.pauses), cpu, delay, os.cpu_count())
        if self.perf:
            groups = perf_groups(self.perf, self.processes, self.data)
            share = {name: groups[name] / max(groups.total(), 1) for name in ("first touch", "map calls")}
            seen = {"first_touch": (share["first touch"],) * 2, "map_churn": (share["map calls"],) * 2}
            bounds.update({wall: seen[wall] for wall in self.service.perf})
        elif self.service.perf:
            print(f"skipped: {self.service.name}: no perf for independent evidence (Debian: linux-perf)")
        return bounds, max(0.0, machine - cpu - loads) / (now * os.cpu_count())


def wait_until_steady(pid):
    """Waits for two seconds in a row in which the target runs or waits for a CPU; returns how many CPUs it used in the second one."""
    deadline = time.monotonic() + STEADY_LIMIT_S
    steady = 0
    while time.monotonic() < deadline:
        before, began = scheduled(pid), time.monotonic()
        time.sleep(1)
        elapsed = time.monotonic() - began
        cpus, runnable = ((after - first) / elapsed for after, first in zip(scheduled(pid), before))
        steady = steady + 1 if cpus + runnable >= STEADY_CPUS else 0
        if steady == 2:
            return cpus
    raise Failure(f"the target was not under load within {STEADY_LIMIT_S} s: it used {cpus:.2f} CPUs")


def missing_reason(service, install):
    """Installs missing programs if allowed; returns why the service cannot run here, or None."""
    if install:
        pairs = [f"{program}={package}" for program, package in service.programs.items()]
        subprocess.run([ROOT / "tools" / "need.sh", *pairs], check=False)
    missing = {program: package for program, package in service.programs.items() if not find_program(program)}
    return f"no {', '.join(missing)} (Debian: {' '.join(sorted(set(missing.values())))})" if missing else None


def exercise(service, arguments, keep):
    """Starts, loads, diagnoses and stops one service; returns one line about it."""
    with tempfile.TemporaryDirectory(prefix=f"allocwall-{service.name}-", ignore_cleanup_errors=True) as directory:
        stage = Stage(directory)
        try:
            pid = service.start(stage)
            seconds = arguments.duration + LOAD_MARGIN_S
            loads, outputs = start_load(service, stage, seconds)
            try:
                cpus = wait_until_steady(pid)
            except Failure as failure:
                said = " / ".join(output.read_text(errors="replace")[-300:].strip() for output in outputs if output.exists())
                raise Failure(f"{failure}; output of the load: {said or 'none'}; log: {stage.log_tail()}") from None
            served, faults, began = counters(service, stage, pid)
            line = "" if arguments.no_diagnose else diagnose(service, stage, pid, [load.pid for load in loads], arguments, keep)
            if arguments.no_diagnose:
                time.sleep(arguments.duration)
            served_after, faults_after, ended = counters(service, stage, pid)
            elapsed = ended - began
            if served is None:
                rate = finished_rate(service, loads, outputs, stage)
            else:
                rate = (served_after - served) / elapsed
            return f"{rate:,.0f} requests/s, {cpus:.2f} CPUs, {(faults_after - faults) / elapsed:,.0f} faults/s{line}"
        finally:
            stage.close()


def start_load(service, stage, seconds):
    """Starts the service's load for `seconds`; returns its processes and the files with their output."""
    outputs = [stage.directory / f"load-{number}" for number in range(8)]
    loads = [
        stage.spawn(command, stdout=open(output, "wb"))
        for command, output in zip(service.load(stage, seconds), outputs, strict=False)
    ]
    return loads, outputs


def counters(service, stage, pid):
    return service.served(stage) if service.served else None, usage(pid)[1], time.monotonic()


def finished_rate(service, loads, outputs, stage):
    """Waits until the load ends, and reads its rate."""
    rate = 0.0
    for load, output in zip(loads, outputs, strict=False):
        if load.wait(timeout=120) != 0:
            raise Failure(f"the load failed ({load.returncode}): {output.read_text(errors='replace')[-300:]} {stage.log_tail()}")
        found = re.search(service.rate_pattern, output.read_text(errors="replace"))
        if not found:
            raise Failure(f"the load's output has no rate: {output.read_text(errors='replace')[-300:]}")
        rate += float(found[1])
    return rate


def diagnose(service, stage, pid, load_pids, arguments, keep):
    """Diagnoses the running service and checks the reports; raises Failure with all problems."""
    recording = keep / f"{service.name}.allocwall"
    pids = ",".join(str(one) for one in process_tree(pid))
    command = [arguments.binary, "diagnose", "-p", pids, "-d", str(arguments.duration), "--json", "-o", recording]
    evidence = Evidence(service, stage, pid, load_pids, arguments.duration)
    live = tool(command, arguments.duration + 60)
    bounds, others = evidence.bounds()
    (keep / f"{service.name}.json").write_text(live)
    expect = service.expect
    if others > OTHERS:
        # On a busy machine the program really waits for a CPU.
        expect = replace(expect, must_not_be_wall=expect.must_not_be_wall - {"run_queue"})
    faults = [*problems(parse(live), expect), *problems_beside(parse(live), expect, bounds)]
    replayed = tool([arguments.binary, "diagnose", recording, "--json"], 60)
    if replayed != live:
        faults.append("the replay of the recording differs from the live diagnosis")
    for extent in ([], ["--all"]):
        text = tool([arguments.binary, "diagnose", recording, *extent], 60)
        (keep / f"{service.name}{''.join(extent)}.txt").write_text(text)
        faults.extend(text_problems(text))
    if faults:
        raise Failure("; ".join(faults))
    shown = [f"{wall} {least:.1%} or more" for wall, (least, _) in bounds.items()]
    return f"\n       {parse(live)['verdict']['sentence']}" + "".join(f"\n       by other evidence: {share}" for share in shown)


def tool(command, limit_s):
    """Runs the tool, which must succeed; returns its stdout."""
    try:
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=limit_s, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise Failure(f"{' '.join(map(str, command))}: not done after {limit_s} s") from None
    if done.returncode != 0:
        raise Failure(f"{' '.join(map(str, command))}: exit status {done.returncode}: {done.stderr.strip()[-400:]}")
    return done.stdout


def parse(text):
    try:
        return json.loads(text)
    except ValueError as error:
        raise Failure(f"stdout is not valid JSON: {error}") from None


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=" ".join(service.name for service in SERVICES))
    parser.add_argument("--binary", type=Path, default=ROOT / "target" / "release" / "allocwall")
    parser.add_argument("-d", "--duration", type=float, default=10, help="seconds of the window (default 10)")
    parser.add_argument("--no-diagnose", action="store_true", help="only start and load the services")
    parser.add_argument("--install", action="store_true", default=bool(os.environ.get("CI")))
    parser.add_argument("--keep", type=Path, help="directory for recordings, JSON and text (default: a new one)")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - {service.name for service in SERVICES}
    if unknown:
        parser.error(f"unknown service {', '.join(sorted(unknown))}")
    if not arguments.no_diagnose and not arguments.binary.is_file():
        parser.error(f"{arguments.binary} does not exist; run make build")
    return arguments


def main():
    arguments = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    keep = None if arguments.no_diagnose else arguments.keep or Path(tempfile.mkdtemp(prefix="allocwall-real-"))
    if keep:
        keep.mkdir(parents=True, exist_ok=True)
    passed = failed = skipped = 0
    for service in SERVICES:
        if arguments.names and service.name not in arguments.names:
            continue
        reason = missing_reason(service, arguments.install)
        if reason:
            skipped += 1
            print(f"skipped: {service.name}: {reason}", flush=True)
            continue
        try:
            line = exercise(service, arguments, keep)
        except (Failure, OSError, subprocess.TimeoutExpired, RuntimeError) as failure:
            failed += 1
            print(f"failed: {service.name}: {failure}", flush=True)
        else:
            passed += 1
            print(f"passed: {service.name}: {line}", flush=True)
    if keep:
        print(f"recordings and reports: {keep}")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
