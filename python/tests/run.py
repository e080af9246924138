#!/usr/bin/env python3
"""Runs the tests on every installed CPython: python/tests/run.py [--ends] WHEEL [INTERPRETER...]. --ends: only on the oldest and the newest.

Each interpreter gets its own virtual environment in a temporary folder, with the wheel and, if pip can install them, the packages that
some tests need; without such a package its tests are skipped with a message. The default interpreters are those of pyenv, and
python3.9 to python3.15 on the path. The exit status is 1 if a test failed or no interpreter was found.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
OLDEST = (3, 9)
NEWEST = (3, 15)
NEIGHBOURS = ("pytest", "memray", "gunicorn", "flask", "bottle", "fastapi")


def version(interpreter):
    """The version of an interpreter if it is a CPython that the package supports, else None."""
    script = "import sys, platform; print(platform.python_implementation(), *sys.version_info[:2])"
    try:
        run = subprocess.run([interpreter, "-c", script], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    except OSError:
        return None
    words = run.stdout.split()
    if run.returncode != 0 or words[:1] != ["CPython"]:
        return None
    found = tuple(int(word) for word in words[1:])
    return found if found >= OLDEST else None


def interpreters():
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = sorted(root.glob("versions/*/bin/python3"))
    for minor in range(OLDEST[1], NEWEST[1] + 1):
        name = shutil.which("python3.%d" % minor)
        # A shim of pyenv is a duplicate of an interpreter that is already in the list.
        if name and "shims" not in Path(name).parts:
            found.append(Path(name))
    return {os.path.realpath(path): str(path) for path in found if version(path)}.values()


def run(command, **more):
    """Runs a command to its end; returns whether it succeeded, and its output."""
    ended = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", **more
    )
    return ended.returncode == 0, ended.stdout


def test(interpreter, wheel):
    """Whether the tests pass on this interpreter, and the output."""
    print("started: %s" % interpreter, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder, "bin/python")
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        for command in ([interpreter, "-m", "venv", folder], [*pip, "--no-index", "--no-deps", wheel]):
            passed, output = run(command)
            if not passed:
                return False, output
        install, missing = [*pip, "--only-binary", ":all:"], ""
        if not run([*install, *NEIGHBOURS])[0]:
            for package in NEIGHBOURS:
                if not run([*install, package])[0]:
                    missing += "pip cannot install %s here: its tests are skipped\n" % package
        command = [python, HERE.parents[1] / "tests" / "unittests.py"]
        passed, output = run(command, cwd=HERE, env={**os.environ, "ALLOCWALL_TEST_WHEEL": wheel})
        return passed, missing + output


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=os.path.abspath)
    parser.add_argument("interpreter", nargs="*")
    parser.add_argument("--ends", action="store_true", help="only the oldest and the newest interpreter")
    args = parser.parse_args()
    wheel = args.wheel
    chosen = sorted(args.interpreter or interpreters(), key=lambda interpreter: version(interpreter) or ())
    if args.ends:
        chosen = chosen[:1] + chosen[1:][-1:]
    if not chosen:
        print("no CPython from 3.%d on was found" % OLDEST[1], file=sys.stderr)
        return 1
    failed = []
    # Two at a time. The output of each interpreter stays together.
    with ThreadPoolExecutor(2) as pool:
        for interpreter, (passed, output) in zip(chosen, pool.map(lambda interpreter: test(interpreter, wheel), chosen)):
            print("%s: CPython %s" % (interpreter, ".".join(map(str, version(interpreter) or ("?",)))))
            print(output, end="", flush=True)
            if not passed:
                failed.append(interpreter)
    for interpreter in failed:
        print("failed: %s" % interpreter, file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
