"""Short forms of the scripts in reliability/. The sanitizer is not included, because it needs a separate build."""

import subprocess
import sys
import unittest
from pathlib import Path

from allocwall import _native

TRANSPARENT = _native.transparent_refusal()


@unittest.skipIf(TRANSPARENT, TRANSPARENT)
class Short(unittest.TestCase):
    def short(self, script):
        run = subprocess.run(
            [sys.executable, Path(__file__).parent / "reliability" / script, "--short"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            universal_newlines=True,
            timeout=300,
        )
        for line in run.stdout.splitlines():
            if ": skipped: " in line:
                print(line, file=sys.stderr)
        self.assertEqual(run.returncode, 0, run.stdout)

    def test_cpythons_own_tests(self):
        self.short("cpython_tests.py")

    def test_forks(self):
        self.short("forks.py")

    def test_limits(self):
        self.short("limits.py")

    def test_servers(self):
        self.short("servers.py")


if __name__ == "__main__":
    unittest.main()
