"""What pip has installed: the program next to the interpreter, and a tag that is correct for all files."""

import os
import platform
import re
import subprocess
import sys
import sysconfig
import tempfile
import unittest
from importlib import metadata
from pathlib import Path

import allocwall

PROGRAM = Path(sysconfig.get_path("scripts"), "allocwall")


def run(*command):
    return subprocess.run(
        list(map(os.fspath, command)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
        timeout=60,
    )


class Program(unittest.TestCase):
    def test_it_stands_beside_the_interpreter_and_has_the_packages_version(self):
        answer = run(PROGRAM, "--version")
        self.assertEqual((answer.returncode, answer.stdout), (0, "allocwall %s\n" % metadata.version("allocwall")), answer.stderr)

    def test_the_wheel_is_complete(self):
        answer = run(PROGRAM, "list")
        self.assertEqual((answer.returncode, answer.stderr), (0, ""))
        self.assertIn("jemalloc", answer.stdout)

    def test_the_module_passes_every_other_verb_on(self):
        answer = run(sys.executable, "-m", "allocwall", "--help")
        self.assertEqual(answer.returncode, 0, answer.stderr)
        self.assertIn("passed on to the program `allocwall`", " ".join(answer.stdout.split()))
        self.assertEqual(run(sys.executable, "-m", "allocwall").returncode, 2)
        for words in (
            ["--version"],
            ["explain", "first", "touch"],
            ["explain", "snake-oil"],
            ["diagnose"],
            ["no-such-verb"],
            ["run", "--with", "env:A=1", "--quiet", "--", "sh", "-c", "echo $A; exit 7"],
            ["run", "-w", "no-such-remedy", "--", "true"],
        ):
            passed, itself = run(sys.executable, "-m", "allocwall", *words), run(PROGRAM, *words)
            for each in ("returncode", "stdout", "stderr"):
                self.assertEqual(getattr(passed, each), getattr(itself, each), words)

    def test_the_module_runs_programs_of_python_itself(self):
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder, "script.py")
            script.write_text("import sys; print(sys.argv[1:])")
            answer = run(sys.executable, "-m", "allocwall", "run", script, "--with", "x", "--", "y")
            self.assertEqual((answer.returncode, answer.stdout), (0, "['--with', 'x', '--', 'y']\n"), answer.stderr)


class Tag(unittest.TestCase):
    def setUp(self):
        wheel = metadata.distribution("allocwall").read_text("WHEEL")
        self.tag = re.search(r"^Tag: (\S+)$", wheel, re.M).group(1)

    def test_it_names_a_glibc_that_everything_in_the_wheel_runs_on(self):
        named = re.search(r"manylinux_2_(\d+)_", self.tag)
        if not named:
            self.skipTest("built for this machine only: %s" % self.tag)
        # The names of symbol versions are in the string tables (ELF's .dynstr), also in those of embedded libraries.
        needed = {
            path.name: max((int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)\0", path.read_bytes())), default=0)
            for path in (PROGRAM, *Path(allocwall.__file__).parent.glob("*.so"))
        }
        self.assertEqual(len(needed), 2, needed)
        self.assertLessEqual(max(needed.values()), int(named.group(1)), needed)
        # A tag for a newer glibc than needed would exclude machines that could run it. There is no tag for some
        # versions.
        self.assertLessEqual(int(named.group(1)) - max(needed.values()), 7, needed)

    def test_one_wheel_is_for_every_cpython(self):
        self.assertTrue(self.tag.startswith("cp39-abi3-"), self.tag)
        self.assertIn(platform.machine(), self.tag)


if __name__ == "__main__":
    unittest.main()
