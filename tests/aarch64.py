#!/usr/bin/env python3
"""The program for aarch64, on a machine of another architecture: Debian's cross compiler, and QEMU's user emulation.

    tests/aarch64.py check    only that the program compiles; for CI
    tests/aarch64.py build    target/aarch64-unknown-linux-gnu/debug/allocwall
    tests/aarch64.py test     the unit tests of the crates, emulated

Installs what is missing. Standard library only. The emulator runs the tests on this machine's kernel. ABSENT has the tests that it
cannot run, with the reason; they are reported as skipped, and so is everything on a machine without a compiler for aarch64.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = "aarch64-unknown-linux-gnu"
LIBRARIES = "/usr/aarch64-linux-gnu"
COMPILER = {
    "aarch64-linux-gnu-gcc": "gcc-aarch64-linux-gnu",
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
    f"{LIBRARIES}/lib/libc.so": "libc6-dev-arm64-cross",
}
EMULATOR = {"qemu-aarch64": "qemu-user"}
# Not the command line, whose tests start the program on a kernel; not the Python extension, whose tests need CPython for aarch64.
CRATES = ("model", "diagnose", "report", "trial", "host", "measure", "pool", "preload", "lab")
SETTINGS = {
    "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER": "aarch64-linux-gnu-gcc",
    "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER": f"qemu-aarch64 -L {LIBRARIES}",
}
# Why the emulator cannot run a test: the beginnings of the names of such tests.
ABSENT = {}


def missing(needed):
    """Installs what is missing; returns why that failed, or None."""
    pairs = [f"{program}={package}" for program, package in needed.items()]
    if subprocess.run([ROOT / "tools/need.sh", *pairs], stdin=subprocess.DEVNULL).returncode != 0:
        return f"not installed: {', '.join(needed.values())}"
    library = subprocess.run(["rustc", "--print", "target-libdir", "--target", TARGET], capture_output=True, text=True).stdout.strip()
    if not Path(library).is_dir():
        if shutil.which("rustup") is None or subprocess.run(["rustup", "target", "add", TARGET]).returncode != 0:
            return f"no Rust library for {TARGET}"
    return None


def cargo(*words):
    command = ["cargo", words[0], "--locked", "--target", TARGET, *words[1:]]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **SETTINGS}).returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("check", "build", "test"))
    action = parser.parse_args().action
    needed = {**COMPILER, **(EMULATOR if action == "test" else {})}
    if reason := missing(needed):
        print(f"skipped: aarch64: {reason}\n0 passed, 0 failed, 1 skipped")
        return 0
    if action != "test":
        return cargo(action)
    packages = [word for crate in CRATES for word in ("-p", f"allocwall-{crate}")]
    skipped = [word for names in ABSENT.values() for name in names for word in ("--skip", name)]
    status = cargo("test", "--no-fail-fast", "--lib", *packages, "--", "--show-output", *skipped)
    for reason, names in ABSENT.items():
        for name in names:
            print(f"skipped: aarch64 {name}: {reason}")
    print(f"0 passed, 0 failed, {sum(map(len, ABSENT.values()))} skipped")
    return status


if __name__ == "__main__":
    sys.exit(main())
