"""python -m allocwall run [--mode MODE] [--fork-unsafe] [--require] [-m] PROGRAM ARGS..."""

import argparse
import os
import runpy
import sys
from typing import List, Optional

from . import hugepages


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m allocwall",
        description="CPython's arenas on huge pages.",
        epilog="The tool itself is the program `allocwall`, which pip installs next to this interpreter.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="run a program with its arenas on huge pages")
    run.add_argument("--mode", choices=hugepages.MODES, default="thp", help="(default: %(default)s)")
    run.add_argument("--fork-unsafe", action="store_true", help="confirm that this program does not fork; required for hugetlb")
    run.add_argument("--require", action="store_true", help="exit with status 1 if huge pages are refused")
    run.add_argument("-m", dest="module", action="store_true", help="PROGRAM is a module, as in python -m")
    run.add_argument("program", metavar="PROGRAM")
    run.add_argument("arguments", metavar="ARGS", nargs=argparse.REMAINDER)
    return _run(parser.parse_args(arguments))


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
