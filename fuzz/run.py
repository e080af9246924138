#!/usr/bin/env python3
"""Runs every reader of untrusted bytes under libFuzzer. The inputs start from fuzz/kept and grow in target/fuzz-corpus.

    fuzz/run.py                    a short run: the inputs in fuzz/kept, then 4 s a reader
    fuzz/run.py --seconds 600      600 s a reader
    fuzz/run.py elf maps           only these readers

An input that fails is written to target/fuzz-found, and the command that repeats it is printed. Add the input to fuzz/kept/READER
together with the fix: a test of allocwall-readers reads all of them.
"""

import argparse
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "fuzz/kept"
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
# Inputs in other folders.
MORE = {"load_output": [ROOT / "crates/allocwall-trial/tests/fixtures/load"]}
# A run of fewer seconds for each reader is a short one.
SHORT_S = 60
# Limits that a reader must keep for every input.
LIMITS = ["-malloc_limit_mb=150", "-rss_limit_mb=1024", "-timeout=2"]


def build(toolchain, short):
    # With one unit, the default of cargo-fuzz, the build takes four minutes longer.
    command = ["cargo", f"+{toolchain}", "fuzz", "build", "--codegen-units", "16", "--target-dir", str(TARGET / "fuzz"), "reader"]
    environment = {**os.environ}
    if short:
        # It ends before any optimisation pays off: the build takes 100 s without, 250 s with level 1 (2 cores), and then tries a fifth of
        # the inputs in a second. LeakSanitizer counts what is allocated, for LIMITS, and changes no code; AddressSanitizer does, so that
        # the build takes longer. A long run has it.
        command += ["--sanitizer", "leak"]
        environment["CARGO_PROFILE_RELEASE_OPT_LEVEL"] = "0"
    subprocess.run(command, cwd=ROOT, check=True, env=environment)
    return next((TARGET / "fuzz").glob("*/release/reader"))


def readers(binary):
    """The names of the readers, each with the length of its longest input."""
    lines = subprocess.run([binary], stdout=subprocess.PIPE, text=True, env={}, check=True).stdout.split("\n")
    return dict(line.split() for line in lines if line)


def fuzz(binary, name, longest, seconds):
    """The number of inputs that a reader got, what there is to say, and whether it passed."""
    corpus, found = TARGET / "fuzz-corpus" / name, TARGET / "fuzz-found" / name
    for folder in (corpus, found):
        folder.mkdir(parents=True, exist_ok=True)
    command = [
        binary, corpus, KEPT / name, *MORE.get(name, []), f"-max_total_time={seconds}", f"-max_len={longest}", f"-artifact_prefix={found}/",
        "-print_final_stats=1", *LIMITS,
    ]
    ended = subprocess.run(command, stderr=subprocess.PIPE, text=True, errors="replace", env={**os.environ, "READER": name})
    units = re.search(r"number_of_executed_units: *(\d+)", ended.stderr) or re.search(r"#(\d+)", ended.stderr)
    count = int(units[1]) if units else 0
    covered = re.findall(r"cov: (\d+)", ended.stderr)
    lines = [f"{name}: {count} inputs, {covered[-1] if covered else '?'} edges"]
    if ended.returncode:
        lines.append(f"failed: fuzz.{name}: exit status {ended.returncode}; repeat: READER={name} {binary} {found}/...")
        telling = re.compile(r"panicked|ERROR|SUMMARY|deadly|BINGO|Test unit written|at crates/|in allocwall|timeout|oom")
        lines += [line for line in ended.stderr.splitlines() if telling.search(line)][:30]
    return count, lines, not ended.returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reader", nargs="*")
    parser.add_argument("--seconds", type=int, default=4, help="seconds for each reader (default: 4)")
    parser.add_argument("--binary", type=Path, help="use this binary instead of building one")
    parser.add_argument("--toolchain", default="nightly")
    args = parser.parse_args()
    binary = args.binary or build(args.toolchain, short=args.seconds < SHORT_S)
    known = readers(binary)
    if unknown := set(args.reader) - set(known):
        parser.error(f"unknown reader {', '.join(unknown)}; the readers are {', '.join(known)}")
    if missing := [name for name in known if not list(KEPT.glob(f"{name}/*"))]:
        parser.error(f"fuzz/kept has no input for {', '.join(missing)}: add one")
    chosen = args.reader or list(known)
    total, failed = 0, []
    # Each takes one CPU. A long run may take all memory that it is allowed.
    with ThreadPoolExecutor(2 if args.seconds < SHORT_S else 1) as pool:
        for name, (count, lines, passed) in zip(chosen, pool.map(lambda name: fuzz(binary, name, known[name], args.seconds), chosen)):
            total += count
            print(*lines, sep="\n", flush=True)
            if not passed:
                failed.append(name)
    print(f"{total} inputs\n{len(chosen) - len(failed)} passed, {len(failed)} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
