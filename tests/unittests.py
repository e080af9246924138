"""Runs unittest modules of the current directory: unittests.py [MODULE...]; without modules all test_*.py.

Prints `skipped: test: reason` and `failed: test: last line of the error`, and ends with `N passed, N failed, N skipped`. Works with
CPython 3.9 and later.
"""

import sys
import unittest


class Result(unittest.TextTestResult):
    passed = 0

    def addSuccess(self, test):
        super().addSuccess(test)
        self.passed += 1


def main(modules):
    sys.path.insert(0, "")
    loader = unittest.defaultTestLoader
    tests = loader.loadTestsFromNames(modules) if modules else loader.discover(".", top_level_dir=".")
    result = unittest.TextTestRunner(stream=sys.stdout, resultclass=Result).run(tests)
    for test, reason in result.skipped:
        print("skipped: %s: %s" % (test.id(), reason.replace("\n", " ")))
    failed = result.failures + result.errors
    for test, trace in failed:
        print("failed: %s: %s" % (test.id(), trace.strip().splitlines()[-1]))
    for test in result.unexpectedSuccesses:
        print("failed: %s: passed, but was expected to fail" % test.id())
    passed = result.passed + len(result.expectedFailures)
    print("%d passed, %d failed, %d skipped" % (passed, len(failed) + len(result.unexpectedSuccesses), len(result.skipped)), flush=True)
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
