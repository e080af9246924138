#!/usr/bin/env python3
"""CPython's own tests of memory, processes and threads, with the hook on and off: cpython_tests.py [--short] [MODULE...].

A test that fails only with the hook on is run once more in both ways. It counts as a failure if it fails again only with the hook. The
output also lists modules that this interpreter does not include, and tests that fail in both ways.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

MODULES = (
    "test_gc",
    "test_capi",
    "test_threading",
    "test_subprocess",
    "test_multiprocessing_fork",
    "test_multiprocessing_forkserver",
    "test_multiprocessing_spawn",
    "test_multiprocessing_main_handling",
    "test_interpreters",
    "test__xxsubinterpreters",
    "test__interpreters",
    "test_embed",
)
SHORT = ("test_gc", "test_embed")

# At its end it prints how many arenas were handed out: if there were none, the test proves nothing.
DRIVER = """
import atexit, json, os, sys
report, pid = sys.argv.pop(1), os.getpid()
def told():
    if os.getpid() == pid:
        import allocwall
        with open(report, "w") as file:
            json.dump(allocwall.hugepages.status(), file)
atexit.register(told)
from test.libregrtest.main import main
main()
"""


def run(module, on):
    """The names of the failed tests, and the number of tests. If the process ends early, that is a failure too."""
    with tempfile.TemporaryDirectory() as folder:
        report, results = Path(folder, "status.json"), Path(folder, "results.xml")
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ALLOCWALL")}
        if on:
            environment["ALLOCWALL_HUGEPAGES"] = "1"
        ended = subprocess.run(
            [sys.executable, "-c", DRIVER, report, "--junit-xml", results, "--timeout", "300", module],
            cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            universal_newlines=True, errors="replace",
        )
        if not results.exists():
            return {"%s: exit status %d" % (module, ended.returncode)}, 0, ended.stdout
        cases = list(ElementTree.parse(results).iter("testcase"))
        failed = {case.get("name") for case in cases if case.find("error") is not None or case.find("failure") is not None}
        if ended.returncode != 0 and not failed:
            failed = {"%s: exit status %d" % (module, ended.returncode)}
        if on:
            status = json.loads(report.read_text())
            if status["mode"] != "thp" or status["arenas_given"] == 0:
                failed.add("%s: the hook was not on: %s" % (module, status["refused"]))
        return failed, len(cases), ended.stdout


def compared(module):
    with ThreadPoolExecutor(2) as both_ways:
        (with_it, count, talk), (without, _, _) = both_ways.map(run, (module, module), (True, False))
    ours = with_it - without
    once = set()
    if ours:
        again, _, talk = run(module, True)
        twice_without = run(module, False)[0]
        once = ours - again
        without |= twice_without & ours
        ours = (ours & again) - without
    return module, count, ours, with_it & without, once, talk


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--short", action="store_true")
    parser.add_argument("modules", nargs="*", metavar="MODULE")
    options = parser.parse_args()
    wanted = options.modules or (SHORT if options.short else MODULES)
    if find_spec("test") is None or find_spec("test.libregrtest") is None:
        print("cpython_tests: skipped: this interpreter does not include CPython's tests")
        return 0
    there = [module for module in wanted if find_spec("test." + module)]
    total, bad = 0, False
    # The tests wait more than they compute.
    with ThreadPoolExecutor(4) as workers:
        for module, count, ours, both, once, talk in workers.map(compared, there):
            total += count
            for words, tests in (("also fails with the hook off", both), ("failed once with the hook on, but not again", once)):
                for test in sorted(tests):
                    print("  %s: %s" % (words, test))
            for test in sorted(ours):
                bad = True
                print("  FAILED only with the hook on: %s\n%s" % (test, talk[-3000:]))
    absent = [module for module in wanted if module not in there]
    print(
        "cpython_tests: %d tests of %s%s" % (total, " ".join(there), "; not included: " + " ".join(absent) if absent else ""),
        flush=True,
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
