#!/usr/bin/env python3
"""Runs every test, continues after a failure, and ends with one line: `N passed, N failed, N skipped`.

    tests/run.py            the steps of `make test`
    tests/run.py --ci       also format, lints, licences, the pool under Miri and ThreadSanitizer, the packages in a bare root, and a short
                            run of the fuzzer, of faults in system calls, and of another kernel; with the bundled jemalloc; the Python
                            package on two interpreters only; without the steps that take too long there (`local`)
    tests/run.py rust real  only these steps; --list prints their names

A test that cannot run on a machine prints `skipped: reason` and passes; a script prints `skipped: test: reason`. This runner counts it
as skipped. The run fails if a test failed, or if a skip is not listed in tests/skips.txt.

Much here measures, and other work on the machine can disturb that. So a test of cargo's that fails is run once more, when the other
tests of its step have ended; and so is a script of the steps that measure (`measures`). What passes then counts as passed, and the end of
the output names it.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tests" / "skips.txt"
# A step that takes longer is ended.
LIMIT_S = 40 * 60
# So many failed tests of a step are run once more. More are no chance.
MOST_AGAIN = 5
# The number of test programs whose times are shown at the end.
SLOWEST = 10
# Programs and libraries that the tests of the Rust crates use, each with its package.
PACKAGES = {
    "cc": "build-essential",
    "c++": "build-essential",
    "python3": "python3",
    "git": "git",
    "setpriv": "util-linux",
    "unshare": "util-linux",
    "setarch": "util-linux",
    "musl-gcc": "musl-tools",
    "pkg-config": "pkg-config",
    "busybox": "busybox-static",
    "perf": "linux-perf",
    "/usr/lib/*/libjemalloc.so.2": "libjemalloc2",
    "/usr/lib/*/libmimalloc.so.2": "libmimalloc2.0",
    "/usr/lib/*/libtcmalloc_minimal.so.4": "libtcmalloc-minimal4",
}


@dataclass
class Step:
    name: str
    command: list
    directory: str = "."
    ci: bool = False
    # Left out of --ci for its time.
    local: bool = False
    # A script whose tests measure.
    measures: bool = False
    needs: str = None
    # Words that --ci adds to the command, before a `--`.
    ci_adds: tuple = ()

    def in_ci(self):
        """The step as --ci runs it."""
        at = self.command.index("--") if "--" in self.command else len(self.command)
        return replace(self, command=[*self.command[:at], *self.ci_adds, *self.command[at:]])


def unittests(directory, *modules):
    return dict(command=[sys.executable, str(ROOT / "tests" / "unittests.py"), *modules], directory=directory)


REAL = "tests/real"
# The program that all steps test: of the same build as the tests of the crates, so that nothing is built twice.
TESTED = "target/debug/allocwall"
# jemalloc among the built-in allocators. It takes minutes to build, which only CI spends, beside the other builds.
BUNDLED = ("--features", "bundled")
STEPS = [
    Step("format", ["cargo", "fmt", "--all", "--check"], ci=True),
    Step("licences", ["python3", "tools/notices.py"], ci=True),
    Step("lints", ["cargo", "clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"], ci=True),
    # With the tests: their dependencies have features that the program's own lack, so cargo would build most libraries twice.
    Step("build", ["cargo", "test", "--no-run", "--workspace", "--locked"], ci_adds=BUNDLED),
    # Compiles the C code too.
    Step("aarch64 compiles", [sys.executable, "tests/aarch64.py", "check"], ci=True),
    Step("scripts", **unittests("tests", "test_run")),
    Step("lab scripts", **unittests("tests/lab")),
    Step("book scripts", **unittests("tests/book", "test_book")),
    Step("hostile scripts", **unittests("tests/hostile")),
    Step("faults scripts", **unittests("tests/faults")),
    Step("dist scripts", **unittests("tests/dist")),
    Step("expectations", **unittests(REAL, "test_expectations", "test_evidence")),
    Step(
        "benches",
        **unittests(
            "benches", "test_overhead", "test_trial_accuracy", "test_prediction_accuracy", "test_turns", "test_rebuild_python", "test_experiments_page",
            "test_python_count", "test_count_cost", "test_count_suites",
        ),
    ),
    Step("models", ["make", "models"]),
    # Miri uses only one core, and the long build of the fuzzer not always two. The output of each target stays together.
    Step("nightly", ["make", "-j2", "--output-sync=target", "fuzz", "miri", "tsan"], ci=True),
    Step("python", ["make", "python-test", f"PROGRAM={TESTED}"], needs="build", ci_adds=("ENDS=1",)),
    # After the step python, whose wheel it installs.
    Step("dist", [sys.executable, "tests/dist/run.py", "--binary", TESTED, "--install"], needs="build", ci=True),
    Step("rust", ["cargo", "test", "--workspace", "--locked", "--no-fail-fast", "--", "--show-output"], ci_adds=BUNDLED),
    Step("book", [sys.executable, "tests/book/run.py", "--binary", TESTED], needs="build"),
    Step("formats", [sys.executable, "tests/formats/run.py", "--binary", TESTED], needs="build", local=True),
    Step("hostile", [sys.executable, "tests/hostile/run.py", "--binary", TESTED], needs="build", measures=True),
    Step("faults", [sys.executable, "tests/faults/run.py", "--binary", TESTED, "--seconds", "45"], needs="build", ci=True),
    Step("lab", [sys.executable, "tests/lab/run.py", "--binary", TESTED, "--install", "ci"], needs="build", ci=True, measures=True),
    Step("html", [sys.executable, "tests/html/run.py", "--binary", TESTED], needs="build", local=True),
    Step("perf", [sys.executable, f"{REAL}/beside_perf.py", "--binary", TESTED, "--install"], needs="build", measures=True),
    Step("real", [sys.executable, f"{REAL}/run.py", "--binary", TESTED, "--install"], needs="build", measures=True),
]

PROGRAM = re.compile(r"^ +Running (?P<unit>unittests )?(?P<source>\S+) \((?:.*/)?(?P<name>[\w-]+)-[0-9a-f]{16}(?:\.js)?\)$")
DOCTESTS = re.compile(r"^ +Doc-tests (?P<name>\S+)$")
RESULT = re.compile(r"^test result: \S+\. (\d+) passed; (\d+) failed; (\d+) ignored;(?:.* finished in ([\d.]+)s$)?")
TEST = re.compile(r"^test (.+?) \.\.\. (ignored(?:, .*)?|FAILED)$")
OUTPUT_OF = re.compile(r"^---- (.+) (?:stdout|stderr) ----$")
SKIPPED = re.compile(r"^skipped(?: in part)?: (.+)$")
SUMMARY = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped$")
NAMED = re.compile(r"^(skipped|failed): (.+?): (.*)$")


@dataclass
class Count:
    """Counts tests from a step's output, line by line: cargo's, or that of a script that ends with `N passed, N failed, N skipped`."""

    passed: int = 0
    skipped: int = 0
    # Names.
    failed: list = field(default_factory=list)
    # (test, reason); a test that was skipped in part may have several.
    reasons: list = field(default_factory=list)
    # For cargo: the seconds of each test program; those of a library include its documentation's tests.
    seconds: dict = field(default_factory=dict)
    # For cargo: the test program, its skipped tests, the test whose output is being read, and whether that test passed. The output of
    # a test that passed is read, but not shown.
    program: str = ""
    # For cargo: the options that select the test program, or None; and those of each failed test, with its own name.
    selected: tuple = None
    where: dict = field(default_factory=dict)
    # Names of tests that failed, and passed when they were run again.
    again: list = field(default_factory=list)
    here: set = field(default_factory=set)
    speaks: str = None
    quiet: bool = False
    # For a script: the number of skips and failures with a name since its last summary.
    named: dict = field(default_factory=lambda: {"skipped": 0, "failed": 0})
    # It printed counts.
    summed: bool = False

    def read(self, line):
        """Reads one line; returns whether to show it."""
        if match := PROGRAM.match(line) or DOCTESTS.match(line):
            self.program = match["name"]
            self.selected = selection(match)
            self.leave()
        elif match := RESULT.match(line):
            self.passed += int(match[1]) - len(self.here)
            self.skipped += int(match[3]) + len(self.here)
            self.seconds[self.program] = self.seconds.get(self.program, 0) + float(match[4] or 0)
            self.summed = True
            self.leave()
        elif line in ("successes:", "failures:"):
            self.quiet, self.speaks = line == "successes:", None
        elif match := OUTPUT_OF.match(line):
            self.speaks = f"{self.program}::{match[1]}"
        elif self.speaks:
            match = SKIPPED.match(line)
            if match and self.quiet:
                self.here.add(self.speaks)
                self.reasons.append((self.speaks, match[1]))
        elif match := TEST.match(line):
            if match[2] == "FAILED":
                name = f"{self.program}::{match[1]}"
                self.failed.append(name)
                if self.selected:
                    self.where[name] = (self.selected, match[1])
            else:
                self.reasons.append((f"{self.program}::{match[1]}", match[2]))
        elif match := SUMMARY.match(line):
            self.passed += int(match[1])
            self.skipped += int(match[3])
            # A skip without a name matches no line of the list.
            self.failed += ["a test without a name"] * (int(match[2]) - self.named["failed"])
            self.reasons += [("a test without a name", "no reason")] * (int(match[3]) - self.named["skipped"])
            self.named = {"skipped": 0, "failed": 0}
            self.summed = True
        elif match := NAMED.match(line):
            self.named[match[1]] += 1
            if match[1] == "skipped":
                self.reasons.append((match[2], match[3]))
            else:
                self.failed.append(match[2])
        return not self.quiet

    def leave(self):
        self.here, self.speaks, self.quiet = set(), None, False

    def end(self, name, reason):
        """Ends the step of this name. `reason`: why it failed as a whole, or None."""
        if self.failed:
            return
        if reason:
            self.failed.append(f"{name} ({reason})")
        elif not self.passed and not self.skipped:
            # A step that prints no counts is one test. One whose counts are 0 tested nothing.
            if self.summed:
                self.failed.append(f"{name} (no test ran)")
            else:
                self.passed = 1


def selection(match):
    """Cargo's options for the test program of this line; None for the tests of a documentation."""
    if match.re is DOCTESTS:
        return None
    if match["unit"]:
        return ("--lib",) if match["source"].endswith("lib.rs") else ("--bins",)
    return ("--test", match["name"])


def listed(text):
    """Patterns of the list: one `test: reason` a line; `*` matches anything; `#` begins a comment."""
    lines = (line.strip() for line in text.splitlines())
    parts = (line.split("*") for line in lines if line and not line.startswith("#"))
    return [re.compile(".*".join(map(re.escape, part)), re.DOTALL) for part in parts]


def unlisted(reasons, patterns):
    skips = {f"{test}: {reason}" for test, reason in reasons}
    return sorted(skip for skip in skips if not any(pattern.fullmatch(skip) for pattern in patterns))


def slowest(seconds):
    """The slowest test programs of a step, with their times; the slowest first."""
    programs = sorted(seconds, key=seconds.get, reverse=True)[:SLOWEST]
    return ", ".join(f"{program} {seconds[program]:.1f} s" for program in programs)


def run_again(step, count):
    """Runs the failed tests of a step once more, those of cargo each alone; counts those that pass as passed."""
    if not count.failed or len(count.failed) > MOST_AGAIN:
        return
    if step.measures:
        print(f"== {step.name}, again", flush=True)
        second = run(step)
        if second.passed and second.summed:
            passed = [name for name in count.failed if name not in second.failed]
            count.failed = [name for name in count.failed if name in second.failed]
            count.again += passed
            count.passed += len(passed)
        return
    if "--" not in step.command:
        return
    options = step.command[: step.command.index("--")]
    for name in [name for name in count.failed if name in count.where]:
        selected, test = count.where[name]
        print(f"== {step.name}, again: {name}", flush=True)
        alone = run(Step(step.name, [*options, *selected, "--", "--exact", test, "--show-output"], step.directory))
        if not alone.failed and alone.passed:
            count.failed.remove(name)
            count.again.append(name)
            count.passed += 1


def run(step):
    """Runs a step to its end; returns its count."""
    count = Count()
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    environment.update(CARGO_TERM_COLOR="never", PYTHONUNBUFFERED="1")
    process = subprocess.Popen(
        step.command,
        cwd=ROOT / step.directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )

    def end(*_):
        os.killpg(process.pid, signal.SIGKILL)

    ended = []
    signal.signal(signal.SIGALRM, lambda *_: (ended.append(f"not done after {LIMIT_S} s"), end()))
    signal.alarm(LIMIT_S)
    try:
        for line in process.stdout:
            if count.read(line.rstrip("\n")):
                sys.stdout.write(line)
                sys.stdout.flush()
        status = process.wait()
    except BaseException:
        end()
        raise
    finally:
        signal.alarm(0)
    count.end(step.name, (ended[0] if ended else f"exit status {status}") if status != 0 else None)
    return count


def install():
    """Installs packages that the tests need and that are missing. A test whose package is not available is skipped with a reason."""
    sys.path.insert(0, str(ROOT / REAL))
    from services import SERVICES

    wanted = {**PACKAGES, **{program: package for service in SERVICES for program, package in service.programs.items()}}
    # One by one: a package that this distribution lacks does not prevent the others.
    for program, package in wanted.items():
        subprocess.run([ROOT / "tools" / "need.sh", f"{program}={package}"], stdin=subprocess.DEVNULL, check=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("steps", nargs="*", metavar="STEP")
    parser.add_argument("--ci", action="store_true", help="run the steps of CI")
    parser.add_argument("--list", action="store_true", help="print the names of the steps")
    arguments = parser.parse_args()
    names = [step.name for step in STEPS]
    if arguments.list:
        print("\n".join(names))
        return 0
    if unknown := set(arguments.steps) - set(names):
        parser.error(f"unknown step {', '.join(sorted(unknown))}; the steps are {', '.join(names)}")
    left_out = "local" if arguments.ci else "ci"
    chosen = [step for step in STEPS if (step.name in arguments.steps if arguments.steps else not getattr(step, left_out))]
    if arguments.ci:
        chosen = [step.in_ci() for step in chosen]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    install()
    total, times, broken, slow = Count(), [], set(), ""
    for step in chosen:
        print(f"== {step.name}: {' '.join(step.command)}", flush=True)
        began = time.monotonic()
        if step.needs in broken:
            count = Count(failed=[f"{step.name} (not run: {step.needs} failed)"])
        else:
            count = run(step)
            run_again(step, count)
        if count.failed:
            broken.add(step.name)
        times.append(f"{step.name} {time.monotonic() - began:.0f} s")
        if step.name == "rust":
            slow = slowest(count.seconds)
        total.passed += count.passed
        total.skipped += count.skipped
        total.failed += count.failed
        total.again += count.again
        total.reasons += count.reasons
    print(f"\ntimes: {', '.join(times)}")
    if slow:
        print(f"slowest test programs of the step rust: {slow}")
    for test, reason in sorted(set(total.reasons)):
        print(f"skipped: {test}: {reason}")
    refused = unlisted(total.reasons, listed(LIST.read_text()))
    for skip in refused:
        print(f"skip not listed in {LIST.relative_to(ROOT)}: {skip}")
    for name in total.again:
        print(f"failed, and passed when it was run again: {name}")
    for name in total.failed:
        print(f"failed: {name}")
    print(f"{total.passed} passed, {len(total.failed)} failed, {total.skipped} skipped")
    return 1 if total.failed or refused else 0


if __name__ == "__main__":
    sys.exit(main())
