"""Shared by the reliability scripts. A check is a function of `short` that returns its result as one line. It raises AssertionError
if it fails, and Skipped if it is not possible here."""

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
MIB = 1 << 20


class Skipped(Exception):
    pass


def fresh(module, function, *arguments, environment=(), before=None, timeout=300):
    """Runs a function of one of these modules in a new interpreter, until it ends in any way."""
    call = "import %s; %s.%s(*%r)" % (module, module, function, arguments)
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHONMALLOC", "ALLOCWALL"))}
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", call],
        cwd=HERE,
        env={**inherited, **dict(environment)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
        preexec_fn=before,
        timeout=timeout,
    )


def succeeded(run):
    """The output of a run, which must have succeeded."""
    assert run.returncode == 0, "%s\n%s%s" % (ended(run.returncode), run.stdout[-2000:], run.stderr[-4000:])
    return run.stdout


def ended(status):
    return "exit status %d" % status if status >= 0 else signal.Signals(-status).name


def resident():
    """The resident bytes of this process (/proc/PID/statm)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def proportional(pids):
    """The resident bytes of these processes, with shared memory counted once (Pss). A process that ends meanwhile counts as 0."""
    total = 0
    for pid in pids:
        try:
            rollup = Path("/proc/%d/smaps_rollup" % pid).read_text()
        except OSError:
            continue
        total += sum(int(line.split()[1]) << 10 for line in rollup.splitlines() if line.startswith("Pss:"))
    return total


def family(pid):
    """A process and its descendants."""
    found = [pid]
    for one in found:
        try:
            for task in Path("/proc/%d/task" % one).iterdir():
                found += map(int, Path(task, "children").read_text().split())
        except OSError:
            pass
    return found


def main(*checks):
    parser = argparse.ArgumentParser()
    parser.add_argument("--short", action="store_true")
    parser.add_argument("checks", nargs="*", metavar="CHECK", help="of: %s" % ", ".join(check.__name__ for check in checks))
    options = parser.parse_args()
    chosen = [check for check in checks if not options.checks or check.__name__ in options.checks]
    failed = False
    for check in chosen:
        start = time.monotonic()
        try:
            seen = check(options.short)
        except Skipped as reason:
            seen = "skipped: %s" % reason
        except (AssertionError, subprocess.TimeoutExpired) as error:
            seen, failed = "FAILED: %s" % error, True
        print("%s: %s (%.0f s)" % (check.__name__, seen, time.monotonic() - start), flush=True)
    return 1 if failed else 0
