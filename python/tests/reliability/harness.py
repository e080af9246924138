"""What the reliability scripts share. A check is a function of `short` that returns what was seen, in a line; it raises
AssertionError where something broke and Skipped where it can't be tried here."""

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
    """A function of one of these modules in an interpreter of its own, to its end, however that comes."""
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
    """Its output."""
    assert run.returncode == 0, "%s\n%s%s" % (ended(run.returncode), run.stdout[-2000:], run.stderr[-4000:])
    return run.stdout


def ended(status):
    return "exit status %d" % status if status >= 0 else signal.Signals(-status).name


def resident():
    """Bytes of this process (/proc/PID/statm)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def proportional(pids):
    """Bytes of these processes, what is shared counted once (Pss). Those that end meanwhile count for nothing."""
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
