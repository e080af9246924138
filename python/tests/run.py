#!/usr/bin/env python3
"""Runs the tests on every installed CPython: python/tests/run.py WHEEL [INTERPRETER...].

Each interpreter gets its own virtual environment in a temporary folder, with the wheel and, if pip can install them, the packages that
some tests need; without such a package its tests are skipped with a message. The default interpreters are those of pyenv, and
python3.9 to python3.15 on the path. The exit status is 1 if a test failed or no interpreter was found.
"""

import os
import shutil
import subprocess
import sys
import tempfile
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


def environment(interpreter, wheel, folder):
    """Makes a virtual environment with the wheel, and returns its interpreter."""
    python = Path(folder, "bin/python")
    for command in (
        [interpreter, "-m", "venv", folder],
        [python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--disable-pip-version-check", wheel],
    ):
        subprocess.run(command, stdin=subprocess.DEVNULL, check=True)
    return python


def test(interpreter, wheel):
    with tempfile.TemporaryDirectory() as folder:
        try:
            python = environment(interpreter, wheel, folder)
        except subprocess.CalledProcessError:
            return False
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:"]
        quiet = dict(stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if subprocess.run([*install, *NEIGHBOURS], **quiet).returncode != 0:
            for package in NEIGHBOURS:
                if subprocess.run([*install, package], **quiet).returncode != 0:
                    print("pip cannot install %s here: its tests are skipped" % package, file=sys.stderr)
        command = [python, HERE.parents[1] / "tests" / "unittests.py"]
        variables = {**os.environ, "ALLOCWALL_TEST_WHEEL": wheel}
        return subprocess.run(command, cwd=HERE, env=variables, stdin=subprocess.DEVNULL).returncode == 0


def main():
    if len(sys.argv) < 2:
        print("usage: run.py WHEEL [INTERPRETER...]", file=sys.stderr)
        return 2
    wheel = os.path.abspath(sys.argv[1])
    chosen = sys.argv[2:] or list(interpreters())
    if not chosen:
        print("no CPython from 3.%d on was found" % OLDEST[1], file=sys.stderr)
        return 1
    failed = []
    for interpreter in chosen:
        print("%s: CPython %s" % (interpreter, ".".join(map(str, version(interpreter) or ("?",)))), flush=True)
        if not test(interpreter, wheel):
            failed.append(interpreter)
    for interpreter in failed:
        print("failed: %s" % interpreter, file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
