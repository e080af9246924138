"""Interpreters that the package does not support, if one is on the path: what a user who tries it there sees."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WHEEL = os.environ.get("ALLOCWALL_TEST_WHEEL")
ENABLE = """
import sys
sys.path.insert(0, %r)
from allocwall import hugepages
for mode in hugepages.MODES:
    try:
        hugepages.enable(mode, fork_unsafe=True)
    except hugepages.Refused as refused:
        print(refused.reason, refused)
""" % os.fspath(ROOT / "python")
BUILD = "import sys; sys.path.insert(0, %r); import backend; backend.build_wheel(sys.argv[1])" % os.fspath(
    ROOT / "crates" / "allocwall-py"
)


def run(*command):
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
        timeout=120,
    )


class Elsewhere:
    NAMES = ()
    WORDS = ""

    def setUp(self):
        self.interpreter = next(filter(None, map(shutil.which, self.NAMES)), None)
        if self.interpreter is None:
            self.skipTest("no %s on the path" % " or ".join(self.NAMES))

    def pip(self):
        return sys.executable, "-m", "pip", "--python", self.interpreter

    def test_pip_takes_no_wheel_of_ours(self):
        if not WHEEL:
            self.skipTest("ALLOCWALL_TEST_WHEEL names no wheel")
        with tempfile.TemporaryDirectory() as folder:
            answer = run(*self.pip(), "install", "--no-index", "--no-deps", "--target", folder, WHEEL)
        self.assertNotEqual(answer.returncode, 0)
        self.assertIn("is not a supported wheel on this platform", answer.stdout)

    def test_the_package_refuses_every_mode_in_one_line(self):
        answer = run(self.interpreter, "-c", ENABLE)
        self.assertEqual(answer.returncode, 0, answer.stdout)
        lines = answer.stdout.splitlines()
        self.assertEqual(len(lines), 4, answer.stdout)
        for line in lines:
            self.assertIn(self.WORDS, line)


class PyPy(Elsewhere, unittest.TestCase):
    NAMES = ("pypy3",)
    WORDS = "implementation pypy has no pymalloc arenas: use CPython"

    def test_a_build_from_a_checkout_ends_before_it_starts(self):
        with tempfile.TemporaryDirectory() as folder:
            answer = run(self.interpreter, "-c", BUILD, folder)
            self.assertEqual(os.listdir(folder), [])
        self.assertEqual(answer.returncode, 1)
        self.assertEqual(answer.stdout, "allocwall: pypy has no pymalloc arenas: the package is for CPython\n")


class FreeThreaded(Elsewhere, unittest.TestCase):
    NAMES = ("python3.15t", "python3.14t", "python3.13t")
    WORDS = "free_threaded a free-threaded interpreter uses mimalloc instead of arenas: start it with MIMALLOC_ALLOW_LARGE_OS_PAGES=1"

    def pip(self):
        # Its own pip: a pip from before 2024 accepts every abi3 wheel.
        return self.interpreter, "-m", "pip"


if __name__ == "__main__":
    unittest.main()
