"""python -m allocwall run [--mode MODE] [--fork-unsafe] [--require] [-m] PROGRAM ARGS...

Every other verb is one of the program `allocwall`, which is started instead of this interpreter.
"""

import argparse
import os
import runpy
import shutil
import sys
from importlib import metadata
from typing import Iterator, List, Optional

from . import hugepages


def main(arguments: Optional[List[str]] = None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    if _is_for_the_program(words):
        return _program(words)
    parser = argparse.ArgumentParser(
        prog="python -m allocwall",
        description="CPython's arenas on huge pages.",
        epilog="Every other verb (diagnose, trial, list, …) is passed on to the program `allocwall`, which pip installs next to this "
        "interpreter; so is `run --with NAME -- CMD`. `python -m allocwall help` shows them.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="run a program with its arenas on huge pages")
    run.add_argument("--mode", choices=hugepages.MODES, default="thp", help="(default: %(default)s)")
    run.add_argument("--fork-unsafe", action="store_true", help="confirm that this program does not fork; required for hugetlb")
    run.add_argument("--require", action="store_true", help="exit with status 1 if huge pages are refused")
    run.add_argument("-m", dest="module", action="store_true", help="PROGRAM is a module, as in python -m")
    run.add_argument("program", metavar="PROGRAM")
    run.add_argument("arguments", metavar="ARGS", nargs=argparse.REMAINDER)
    return _run(parser.parse_args(words))


def _is_for_the_program(words: List[str]) -> bool:
    """All verbs but `run` of a Python program. `run --with NAME -- CMD` applies a remedy."""
    if not words or words[0] in ("-h", "--help"):
        return False
    if words[0] != "run":
        return True
    for word in words[1:]:
        if word.startswith(("-w", "--with")):
            return True
        if not word.startswith("-") or word == "--":
            return False
    return False


def _program(words: List[str]) -> int:
    """Becomes the program; returns only if that is not possible."""
    path = next(_programs(), None)
    if path is None:
        print("allocwall: the program `allocwall` is not installed with this package, and not in PATH", file=sys.stderr)
        return 1
    sys.stdout.flush()
    try:
        os.execv(path, [path, *words])
    except OSError as error:
        print("allocwall: cannot start %s: %s" % (path, error.strerror), file=sys.stderr)
    return 1


def _programs() -> Iterator[str]:
    """Where the program is: as pip installed it with this package; else in PATH."""
    try:
        files = metadata.files("allocwall") or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        path = os.path.realpath(str(file.locate()))
        if file.name == "allocwall" and os.access(path, os.X_OK) and os.path.isfile(path):
            yield path
    found = shutil.which("allocwall")
    if found is not None:
        yield found


def _run(options: argparse.Namespace) -> int:
    try:
        hugepages.enable(options.mode, fork_unsafe=options.fork_unsafe)
    except hugepages.Refused as refused:
        print("allocwall: not on huge pages: %s" % refused, file=sys.stderr)
        if options.require:
            return 1
    # As the interpreter does it: the program's name is first in argv, and its folder (for a module, the current one) is
    # first on the path.
    sys.argv[:] = [options.program, *options.arguments]
    if options.module:
        sys.path[0] = os.getcwd()
        runpy.run_module(options.program, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.realpath(options.program))
        runpy.run_path(options.program, run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main())
