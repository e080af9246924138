#!/usr/bin/env python3
"""The extension under AddressSanitizer: sanitizer.py [--short]. Needs a checkout, a nightly toolchain and gcc's libasan.

First, a planted read past an allocation must be reported, and its twin must not. Then the package's own tests of huge pages and of
counts, and the checks of forks.py, run with an instrumented extension, with debug assertions and overflow checks.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import HERE, Skipped, main

ROOT = HERE.parent.parent.parent
TARGET = "x86_64-unknown-linux-gnu"
FLAGS = ("-Zsanitizer=address",)
# An interpreter does not free all memory at its end. A failed allocation is not an error, because tests provoke it.
OPTIONS = "detect_leaks=0:exitcode=99:allocator_may_return_null=1"
# forks.py checks resident memory, which includes the freed memory that the sanitizer keeps: 256 MiB by default.
LITTLE_HELD = OPTIONS + ":quarantine_size_mb=1:thread_local_quarantine_size_kb=64"
# The sanitizer's shadow takes 16 TiB of address space, and its own allocator's memory is resident.
NOT_HERE = (
    "test_a_limit_on_address_space_is_a_memory_error_as_with_stock",
    "test_a_small_script_pays_at_most_one_slab",
)


def sanitized(short):
    cargo, cc = shutil.which("cargo"), shutil.which("cc")
    if not cargo or not cc or subprocess.run(
        [cargo, "+nightly", "--version"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ).returncode:
        raise Skipped("needs a nightly toolchain (rustup toolchain install nightly) and cc")
    runtime = subprocess.run([cc, "-print-file-name=libasan.so"], stdout=subprocess.PIPE, universal_newlines=True).stdout.strip()
    if not os.path.isabs(runtime):
        raise Skipped("needs gcc's libasan")
    with tempfile.TemporaryDirectory() as folder:
        overlay = Path(folder)
        _build(cargo, overlay)
        environment = {
            **os.environ,
            "LD_PRELOAD": os.path.realpath(runtime),
            "ASAN_OPTIONS": OPTIONS,
            "PYTHONPATH": os.pathsep.join((folder, os.fspath(HERE.parent))),
        }
        _planted(overlay, environment)
        script = (
            "import sys, unittest, allocwall\n"
            "assert allocwall.__file__.startswith(%r), allocwall.__file__\n"
            "import test_hugepages as tests\n"
            "class Only(unittest.TestLoader):\n"
            "    def getTestCaseNames(self, case):\n"
            "        return [name for name in super().getTestCaseNames(case) if name not in %r]\n"
            "cases = [tests.Working] if %r else [tests.Working, tests.Reserved, tests.Refusals, tests.Starting]\n"
            "suite = unittest.TestSuite(map(Only().loadTestsFromTestCase, cases))\n"
            "run = unittest.TextTestRunner().run(suite)\n"
            "sys.exit(not run.wasSuccessful())\n"
        ) % (folder, NOT_HERE, short)
        seen = []
        for command, options in (
            ([sys.executable, "-c", script], OPTIONS),
            ([sys.executable, "-m", "unittest", "test_count"], OPTIONS),
            ([sys.executable, HERE / "forks.py", "--short"], LITTLE_HELD),
        ):
            run = _run(command, {**environment, "ASAN_OPTIONS": options})
            assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-4000:]
            assert "ERROR: AddressSanitizer" not in run.stderr, run.stderr[-4000:]
            seen += re.findall(r"^Ran (\d+ tests)", run.stderr, re.MULTILINE)
            seen += run.stdout.split("\n")[:-1]
    return "planted error reported, its twin not; " + "; ".join(seen)


def _build(cargo, overlay):
    """Builds the package with an instrumented extension, and the planted library."""
    environment = {**os.environ, "RUSTFLAGS": " ".join(FLAGS)}
    subprocess.run(
        [cargo, "+nightly", "build", "--quiet", "--locked", "--package", "allocwall-py", "--target", TARGET,
         "--target-dir", "target/asan"],
        cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, check=True,
    )
    subprocess.run(
        [cargo[: -len("cargo")] + "rustc", "+nightly", *FLAGS, "--target", TARGET, "--edition", "2024", "--crate-type", "cdylib",
         "-o", overlay / "libplanted.so", HERE / "planted.rs"],
        stdin=subprocess.DEVNULL, check=True,
    )
    shutil.copytree(ROOT / "python" / "allocwall", overlay / "allocwall", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "target" / "asan" / TARGET / "debug" / "lib_native.so", overlay / "allocwall" / "_native.abi3.so")


def _planted(overlay, environment):
    script = "import ctypes; print(ctypes.CDLL(%r).%s())"
    library = os.fspath(overlay / "libplanted.so")
    twin = _run([sys.executable, "-c", script % (library, "read_the_last")], environment)
    assert (twin.returncode, twin.stdout) == (0, "7\n"), (twin.returncode, twin.stdout, twin.stderr)
    planted = _run([sys.executable, "-c", script % (library, "read_behind")], environment)
    assert planted.returncode == 99 and "heap-buffer-overflow" in planted.stderr, (planted.returncode, planted.stderr)


def _run(command, environment):
    return subprocess.run(
        list(map(os.fspath, command)), cwd=HERE, env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, timeout=900,
    )


if __name__ == "__main__":
    sys.exit(main(sanitized))
