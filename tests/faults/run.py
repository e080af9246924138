#!/usr/bin/env python3
"""Makes each system call of a short diagnosis and of a short trial fail, one in each run, and checks the result.

A run without faults lists the call sites (inject.py). Then there is one run for each fault: the call fails as it may on a real machine,
or the tool or its target is killed at the call. Every run must satisfy:
  - the exit status is 0, 1 or 2; only an injected signal may end the tool;
  - an error is one line on standard error; there is no panic;
  - a report is valid JSON with a correct sum, and either right about the subject or with the reason for what is missing;
  - no process and no file remains.

What a busy machine can cause too must come again in a second run of the same fault. A fault whose call was not reached is not counted.

    run.py --binary target/debug/allocwall                 all faults: hours
    run.py --binary target/debug/allocwall --seconds 120   a random selection for two minutes; prints the random seed
    run.py --binary target/debug/allocwall --part 3/20     the third of twenty parts: the same faults whenever it runs
    run.py ... --only 'diagnose-attach: ENOMEM at tool mmap'     only faults whose name contains this text
"""

import argparse
import json
import os
import platform
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
import zlib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import inject

MEMORY = "mmap mremap mprotect brk clone clone3 fork vfork madvise"
OPENING = "open openat openat2 creat"
NEW_DESCRIPTORS = (
    f"{OPENING} dup dup3 pipe pipe2 socket socketpair accept4 epoll_create1 eventfd2 timerfd_create signalfd4 pidfd_open memfd_create"
    " perf_event_open inotify_init1"
)
# Errors that each call may return on a real machine (the manual page of each call).
FAULTS = {
    "ENOSPC": "write pwrite64 writev ftruncate fallocate mkdir mkdirat rename renameat renameat2 linkat symlink fsync",
    "EMFILE": NEW_DESCRIPTORS,
    "ENOMEM": f"{MEMORY} {NEW_DESCRIPTORS} execve read getdents64 ioctl process_vm_readv statx newfstatat readlink readlinkat",
    "EAGAIN": "clone clone3 fork vfork",
    "EPERM": f"{OPENING} perf_event_open ptrace process_vm_readv kill prctl setpriority sched_setaffinity sched_setattr sched_getattr sched_setscheduler mkdir unlink unlinkat bpf"
    " pidfd_open prlimit64 setrlimit fchmod chmod set_mempolicy mbind pidfd_send_signal setpgid execve ioctl",
    "EACCES": f"{OPENING} mkdir unlink rename readlink readlinkat statx newfstatat execve",
    "EINTR": f"{OPENING} read write wait4 waitid poll ppoll epoll_wait epoll_pwait nanosleep clock_nanosleep futex accept4 connect"
    " recvfrom sendto recvmsg sendmsg flock close ioctl pread64 writev",
    "EIO": "read pread64 write fsync getdents64",
    # For a process that has ended: proc(5).
    "ESRCH": "read open openat process_vm_readv kill ioctl perf_event_open ptrace sched_getaffinity pidfd_open setpgid",
}
FAULTS = {error: set(names.split()) for error, names in FAULTS.items()}
ENDS = ["kill self", "kill target"]
# Calls that change nothing outside the process; killing a process at one of them tests nothing new.
SILENT = set(
    "rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack set_robust_list rseq getpid gettid getppid geteuid getuid close lseek fstat"
    " fcntl getcwd sched_getaffinity restart_syscall exit prlimit64 munmap mprotect madvise brk futex sched_yield getrandom".split()
)
LEFT_S = 6
# How often a run is repeated until the fault reaches its call again.
REPEATS = 3


class Scenario:
    """`command(binary, files, target)` is the command to run. With `attach`, a subject is started first; its pid is the target.

    `basis` finds problems in the reports of the runs without a fault, and `judge` in that of a run with one. `statuses`: exit statuses
    without a fault. `beyond`: the name of an earlier scenario, whose sites are left out, because a run of this one takes longer.
    """

    def __init__(self, name, command, basis, judge, attach=None, statuses=(0,), beyond=None):
        self.name, self.command, self.basis, self.judge, self.attach, self.statuses = name, command, basis, judge, attach, statuses
        self.beyond = beyond


def subject(binary, seconds):
    return [binary, "subject", "cold-touch", "--dial", "0.6", "--seconds", str(seconds)]


def diagnose_attach(binary, files, target):
    return [binary, "diagnose", "-p", str(target), "-d", "700ms", "--no-calibrate", "--json", "-o", f"{files}/recording"]


def diagnose_launch(binary, files, _):
    return [binary, "diagnose", "-d", "700ms", "--no-calibrate", "--json", "--", *subject(binary, 2)]


def diagnose_prices(binary, files, _):
    return [binary, "diagnose", "-d", "700ms", "--json", "--", *subject(binary, 2)]


def trial(binary, files, _):
    return [
        binary, "trial", "--with", "none", "--blocks", "1", "--no-predict", "--json", "-o", f"{files}/trial",
        "--", "/bin/sleep", "0.05",
    ]


def trial_arm(binary, files, _):
    return [
        binary, "trial", "--with", "mimalloc", "--blocks", "1", "--no-predict", "--json", "-o", f"{files}/trial",
        "--", "/bin/sleep", "0.1",
    ]


def leaves(value, path=()):
    """All plain values with their paths; an entry of a list is identified by its name if it has one, else by its index."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, path + (key,))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            named = isinstance(inner, dict) and next((inner[k] for k in ("wall", "key", "name", "line") if k in inner), None)
            yield from leaves(inner, path + (named or index,))
    else:
        yield path, value


def absences(document):
    """The values that the document reports as missing."""
    found = set()

    def walk(value, path):
        if isinstance(value, dict):
            for key in ("absent", "missing"):
                if isinstance(value.get(key), dict) and "reason" in value[key]:
                    found.add(f"{path}: {value[key]['reason']}")
            for key, inner in value.items():
                walk(inner, f"{path}.{key}")
        elif isinstance(value, list):
            for index, inner in enumerate(value):
                walk(inner, f"{path}[{index}]")

    walk(document, "")
    return found


def is_busy(document):
    """Whether the target had to wait for a CPU most of the time."""
    return any(finding["wall"] == "run_queue" and finding["status"] == "wall" for finding in document["findings"])


def basis_of_diagnoses(clean):
    """Without a run that is right, any status of a disturbed run would pass."""
    found = {finding["status"] for document in clean for finding in document["findings"] if finding["wall"] == "first_touch"}
    if "wall" not in found and not any(map(is_busy, clean)):
        yield f"first touch is {' and '.join(sorted(found)) or 'not judged'} in every run"


def judge_diagnosis(document, clean, ended):
    """The problems of one report, compared with those of undisturbed runs. `ended`: the target was killed in the window."""
    lines = document["bill"]["on_cpu"]
    if isinstance(lines, list):
        total = sum(line["share"]["point"] for line in lines)
        if abs(total - 1) > 1e-6:
            yield f"the bill sums to {total}"
        if not document["bill"]["cpu_s"] > 0:
            yield f"the bill has lines, but {document['bill']['cpu_s']} seconds of CPU"
    findings = {finding["wall"]: finding for finding in document["findings"]}
    undisturbed = [{finding["wall"]: finding for finding in c["findings"]} for c in clean]
    if any(findings.keys() != other.keys() for other in undisturbed):
        yield f"{len(findings)} findings"
    status = findings["first_touch"]["status"]
    # On a busy machine, or before its end, the target may run too little to show a first-touch wall.
    if (is_busy(document) or ended) and "ms a second" in findings["first_touch"]["because"]:
        status = "not_measured"
    if status not in ("wall", "not_measured") and status not in {c["first_touch"]["status"] for c in undisturbed}:
        yield f"first touch is {status}: {findings['first_touch']['because']}"
    for wall in document["verdict"]["walls"]:
        # On a busy machine the last two are right.
        if wall not in ("first_touch", "run_queue", "steal") and not any(wall in c["verdict"]["walls"] for c in clean):
            yield f"{wall} is named: {findings[wall]['because']}"
    for finding in findings.values():
        if finding["status"] == "not_measured" and not (finding.get("missing") or {}).get("reason"):
            yield f"{finding['wall']} was not measured, and has no reason"
    lacking = absences(document) - set.union(*(absences(c) for c in clean))
    if lacking:
        return
    # The report has no missing values, so a figure that is never 0 must not be 0.
    now = dict(leaves(document))
    for path, value in leaves(clean[0]):
        number = lambda v: isinstance(v, (int, float)) and not isinstance(v, bool)
        # Only facts: counts of samples and activity of the machine may be 0 in a run.
        name = str(path[-1])
        fact = path[0] in ("host", "target", "recording") and "samples" not in name and name != "lost_records"
        if (fact or path == ("bill", "cpu_s")) and number(value) and now.get(path) == 0:
            others = [dict(leaves(c)).get(path) for c in clean]
            if all(number(other) and other > 0 for other in others):
                yield f"{'.'.join(map(str, path))} is 0, and was {others} undisturbed"


def wall_times(document):
    """The medians of the arms' wall times, in seconds, where they were measured."""
    medians = [median for arm in document["arms"] for median in arm["medians"] if median["metric"] == "wall_s"]
    return [median["median"] for median in medians if isinstance(median["median"], (int, float))]


def basis_of_trials(clean):
    if not all(map(wall_times, clean)):
        yield "a trial has no wall times"


def judge_trial(document, clean, _ended):
    for comparison in document["comparisons"] + document["baseline"]:
        if comparison["outcome"] in ("better", "worse"):
            yield f"one block cannot have the outcome {comparison['outcome']}"
    for seconds in wall_times(document):
        if not 0.05 <= seconds < 30:
            yield f"a wall time is {seconds} s, but the command takes at least 0.05 s"


SCENARIOS = [
    Scenario("diagnose-attach", diagnose_attach, basis_of_diagnoses, judge_diagnosis, attach=lambda binary: subject(binary, 60)),
    Scenario("diagnose-launch", diagnose_launch, basis_of_diagnoses, judge_diagnosis),
    Scenario("diagnose-prices", diagnose_prices, basis_of_diagnoses, judge_diagnosis, beyond="diagnose-launch"),
    # A trial of one block has no outcome, which is exit status 1.
    Scenario("trial", trial, basis_of_trials, judge_trial, statuses=(0, 1)),
    Scenario("trial-arm", trial_arm, basis_of_trials, judge_trial, statuses=(0, 1)),
]


def own(argv):
    """The role of a program that is the tool itself, else None; a subject is a target."""
    for verb in ("diagnose", "trial", "keep"):
        if len(argv) > 1 and os.path.basename(argv[0]).startswith("allocwall") and argv[1] == verb:
            return "keeper" if verb == "keep" else "tool"
    return "keeper" if argv[1:2] == ["keep"] else None


class Outcome:
    def __init__(self, status, stdout, stderr, tracer, complaints):
        self.status, self.stdout, self.stderr, self.tracer, self.complaints = status, stdout, stderr, tracer, complaints


def marked(mark):
    """Running processes whose environment contains the mark: pid and command line."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                if mark.encode() not in file.read():
                    continue
        except OSError:
            continue
        found.append((int(entry), " ".join(inject.words(f"/proc/{entry}/cmdline"))))
    return found


def files_below(folder):
    return {inject.normal(str(path.relative_to(folder))) for path in Path(folder).rglob("*") if not path.is_dir()}


def start(command):
    """Starts a process that is not our child, so that waiting for the tool does not return it; returns its pid."""
    shell = ["sh", "-c", '"$@" >/dev/null 2>&1 & echo $!', "sh", *command]
    pid = int(subprocess.run(shell, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True).stdout)
    time.sleep(0.15)
    return pid


def end_target(pid):
    """Kills the process and waits until it no longer runs."""
    inject.kill(pid)
    end = time.monotonic() + LEFT_S
    while os.path.exists(f"/proc/{pid}") and not any(line.startswith("State:\tZ") for line in inject.lines(f"/proc/{pid}/status")):
        if time.monotonic() > end:
            raise RuntimeError(f"process {pid} still runs {LEFT_S} s after it was killed")
        time.sleep(0.002)


def run(scenario, binary, names, fault=None):
    mark = f"FAULTS_MARK={uuid.uuid4()}"
    root = tempfile.mkdtemp(prefix="allocwall-faults.")
    home, tmp, files = (os.path.join(root, name) for name in ("home", "tmp", "files"))
    for folder in (home, tmp, files):
        os.mkdir(folder)
    env = {"PATH": os.environ["PATH"], "HOME": home, "TMPDIR": tmp, "LC_ALL": "C.UTF-8"}
    key, value = mark.split("=")
    env[key] = value
    target = None
    try:
        if scenario.attach:
            target = start(scenario.attach(binary))

        def vanish():
            if target:
                return end_target(target)
            for pid, _ in marked(mark):
                argv = inject.words(f"/proc/{pid}/cmdline")
                # `read`: the tool's own readers of the target's files.
                if own(argv) is None and argv[1:2] != ["read"]:
                    inject.kill(pid)

        tracer = inject.Tracer(names, own, root, fault, vanish)
        with open(os.path.join(root, "out"), "w+b") as out, open(os.path.join(root, "err"), "w+b") as err, open(
            os.devnull, "rb"
        ) as null:
            command = scenario.command(binary, files, target)
            status = tracer.run(command, env, null.fileno(), out.fileno(), err.fileno(), files)
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode("utf-8", "replace"))
        outcome = Outcome(status, *texts, tracer, [])
        end = time.monotonic() + LEFT_S
        while (left := marked(mark)) and time.monotonic() < end:
            time.sleep(0.02)
        for pid, line in left:
            outcome.complaints.append(f"process {pid} still runs: {line}")
            inject.kill(pid)
        outcome.files = {f"{name}/{path}" for name, folder in (("home", home), ("tmp", tmp), ("files", files)) for path in files_below(folder)}
        return outcome
    finally:
        if target:
            end_target(target)
        shutil.rmtree(root, ignore_errors=True)


def judge(scenario, outcome, fault, clean):
    """The problems of one disturbed run: those that are certain, and those that a busy machine can cause too."""
    wrong, doubtful = [], list(outcome.complaints)
    status, stderr = outcome.status, outcome.stderr
    killed = fault.what == "kill self" and fault.site[0] == "tool"
    if outcome.tracer.late:
        doubtful.append(f"it did not end within {outcome.tracer.deadline_s} s")
    elif os.WIFSIGNALED(status):
        if not (killed and os.WTERMSIG(status) == signal.SIGKILL):
            wrong.append(f"it died of {signal.Signals(os.WTERMSIG(status)).name}")
    elif os.WEXITSTATUS(status) not in (0, 1, 2):
        wrong.append(f"exit status {os.WEXITSTATUS(status)}")
    elif os.WEXITSTATUS(status) != 0 and not killed:
        if not any(line.startswith("error") for line in stderr.splitlines()) and not outcome.stdout.strip():
            wrong.append(f"exit status {os.WEXITSTATUS(status)} without an error line")
    if "panicked" in stderr or "RUST_BACKTRACE" in stderr:
        wrong.append("it panicked")
    errors = [line for line in stderr.splitlines() if line.startswith("error")]
    if len(errors) > 1:
        wrong.append(f"{len(errors)} lines of errors")
    if os.WIFEXITED(status) and outcome.stdout.strip():
        try:
            document = json.loads(outcome.stdout)
        except ValueError as error:
            if not (os.WEXITSTATUS(status) and errors):
                wrong.append(f"no valid JSON: {error}")
        else:
            # A child that is killed where it starts the command is the target.
            ended = fault.what == "kill target" or (fault.what == "kill self" and fault.site[:2] == ("tool's child", "execve"))
            try:
                doubtful.extend(scenario.judge(document, [json.loads(c.stdout) for c in clean], ended))
            except (KeyError, TypeError, AttributeError) as error:
                wrong.append(f"the report lacks a part: {error!r}")
    elif os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
        wrong.append("exit status 0 without a report")
    known = set.union(*(c.files for c in clean))
    left = outcome.files - known
    if killed:
        # The next process that unpacks a library removes it, after ten minutes; that of the prices is replaced by the next one.
        left = {path for path in left if not re.fullmatch(r"home/\.cache/allocwall/(libraries/.*|prices-\w+\.json)\.part", path)}
    if left:
        wrong.append(f"files remain: {sorted(left)}")
    return wrong, doubtful


def problems_without_fault(scenario, clean):
    """The problems of the runs without a fault, with which the others are compared."""
    for outcome in clean:
        yield from outcome.complaints
        if not (os.WIFEXITED(outcome.status) and os.WEXITSTATUS(outcome.status) in scenario.statuses):
            yield f"wait status {outcome.status:#x}"
        elif not outcome.stdout.startswith("{"):
            yield "no report"
        # They are allowed in the runs with a fault.
        left = sorted(path for path in outcome.files if path.startswith("tmp/"))
        if left:
            yield f"files remain: {left}"


def tried(scenario, binary, names, fault, clean):
    """Runs a fault: the outcome and its problems."""
    outcome = run(scenario, binary, names, fault)
    wrong, doubtful = judge(scenario, outcome, fault, clean)
    if wrong or not doubtful:
        return outcome, wrong + doubtful
    for _ in range(REPEATS):
        again = run(scenario, binary, names, fault)
        # A run in which the fault does not reach its call says nothing about it.
        if outcome.tracer.injected and not again.tracer.injected:
            continue
        wrong = sum(judge(scenario, again, fault, clean), [])
        if not wrong:
            print(f"in one of two runs: {scenario.name}: {fault}", *doubtful, sep="\n    ")
        return again, wrong
    return outcome, doubtful


def plan(scenario, clean, known):
    """All faults of all sites that are not known, at the first and the last call of each site."""
    sites = clean[0].tracer.sites
    faults = []
    for site, count in sorted(sites.items()):
        if site in known:
            continue
        for when in sorted({1, count}):
            ends = ENDS if site[1] not in SILENT else []
            for what in [error for error, calls in FAULTS.items() if site[1] in calls] + ends:
                faults.append(inject.Fault(site, when, what))
    return [(scenario, fault) for fault in faults]


def part(text):
    number, of = (int(word) for word in text.split("/"))
    if not 1 <= number <= of:
        raise ValueError(text)
    return number, of


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--seconds", type=float, help="end after this time; faults run in random order")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--scenario", action="append", choices=[s.name for s in SCENARIOS])
    parser.add_argument("--only", default="", help="inject only faults whose name contains this text")
    parser.add_argument("--part", type=part, default=(1, 1), metavar="N/OF", help="only this part of the faults; a fault is always in the same part")
    parser.add_argument("--list", action="store_true", help="only list the faults")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    names = inject.syscalls()
    if platform.machine() != "x86_64":
        print("skipped: faults: calls are injected on x86-64 alone, not on " + platform.machine())
        print("0 passed, 0 failed, 1 skipped")
        return 0
    if names is None:
        print("failed: faults: no asm/unistd_64.h with the numbers of the calls (Debian: linux-libc-dev)")
        print("0 passed, 1 failed, 0 skipped")
        return 1
    binary = os.path.realpath(args.binary)
    begun = time.monotonic()
    work, cleans = [], {}
    asked = set(args.scenario or (s.name for s in SCENARIOS))
    for scenario in SCENARIOS:
        if scenario.name not in asked | {s.beyond for s in SCENARIOS if s.name in asked}:
            continue
        clean = [run(scenario, binary, names) for _ in range(3)]
        wrong = list(problems_without_fault(scenario, clean)) or list(scenario.basis([json.loads(c.stdout) for c in clean]))
        if wrong:
            print(f"failed: faults.{scenario.name}: undisturbed: {'; '.join(wrong)}")
            for line in clean[-1].stderr.strip().splitlines()[-4:]:
                print(f"    stderr: {line[:300]}")
            print("0 passed, 1 failed, 0 skipped")
            return 1
        cleans[scenario.name] = clean
        if scenario.name not in asked:
            continue
        known = set().union(*(outcome.tracer.sites for outcome in cleans.get(scenario.beyond, [])))
        faults = plan(scenario, clean, known)
        work += faults
        print(f"{scenario.name}: {len(clean[0].tracer.sites)} sites, {sum(clean[0].tracer.sites.values())} calls, {len(faults)} faults")
    named = [(f"{scenario.name}: {fault}", scenario, fault) for scenario, fault in work]
    if not any(args.only in name for name, _, _ in named):
        print(f"failed: faults: no fault has {args.only!r} in its name\n0 passed, 1 failed, 0 skipped")
        return 1
    number, of = args.part
    work = [(s, f) for name, s, f in named if args.only in name and zlib.crc32(name.encode()) % of == number - 1]
    if args.list:
        for scenario, fault in work:
            print(f"{scenario.name}: {fault}")
        return 0
    if args.seconds:
        random.Random(args.seed).shuffle(work)
    done = injected = passed = failed = 0
    for scenario, fault in work:
        if args.seconds and time.monotonic() - begun > args.seconds:
            break
        outcome, wrong = tried(scenario, binary, names, fault, cleans[scenario.name])
        done += 1
        injected += outcome.tracer.injected
        if args.verbose:
            print(f"{scenario.name}: {fault}: {'injected' if outcome.tracer.injected else 'not reached'}, {outcome.status:#x}"
                  f" {outcome.stderr.strip()[-200:]!r}")
        passed += outcome.tracer.injected and not wrong
        if wrong:
            failed += 1
            print(f"failed: faults.{scenario.name}: {fault}", *wrong, sep="\n    ")
            for line in outcome.stderr.strip().splitlines()[-4:]:
                print(f"    stderr: {line[:300]}")
            sys.stdout.flush()
    print(f"{done} of {len(work)} faults (seed {args.seed}), {injected} of them reached their call, {time.monotonic() - begun:.0f} s")
    if work and not injected:
        failed += 1
        print("failed: faults: no fault reached its call")
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
