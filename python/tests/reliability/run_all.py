#!/usr/bin/env python3
"""Runs all checks of this folder: python/tests/reliability/run_all.py WHEEL [INTERPRETER...]. Takes about half an hour; limits need root.

CPython's own tests, forks and limits run on each installed CPython. The servers run for ten minutes on the newest one, and so does
the sanitizer. gunicorn is installed from PyPI.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import run as tests  # noqa: E402

EVERYWHERE = ("cpython_tests", "forks", "limits")
ON_THE_NEWEST = ("servers", "sanitizer")
# Seconds of load for each of the two kinds of servers.
SERVERS = "300"


def main():
    if len(sys.argv) < 2:
        print("usage: run_all.py WHEEL [INTERPRETER...]", file=sys.stderr)
        return 2
    chosen = sys.argv[2:] or list(tests.interpreters())
    if not chosen:
        print("no CPython was found", file=sys.stderr)
        return 1
    chosen.sort(key=tests.version)
    failed = []
    for interpreter in chosen:
        newest = interpreter == chosen[-1]
        print("%s: CPython %s" % (interpreter, ".".join(map(str, tests.version(interpreter)))), flush=True)
        with tempfile.TemporaryDirectory() as folder:
            python = tests.environment(interpreter, os.path.abspath(sys.argv[1]), folder)
            if newest:
                # If it cannot be installed, servers.py reports that it is skipped.
                subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "gunicorn"])
            for script in EVERYWHERE + (ON_THE_NEWEST if newest else ()):
                environment = {**os.environ, "SECONDS": os.environ.get("SECONDS", SERVERS)}
                run = subprocess.run([python, HERE / (script + ".py")], env=environment, stdin=subprocess.DEVNULL)
                if run.returncode != 0:
                    failed.append("%s on %s" % (script, interpreter))
    for what in failed:
        print("failed: %s" % what, file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
