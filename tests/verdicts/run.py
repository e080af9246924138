#!/usr/bin/env python3
"""Diagnoses small programs whose wall is known by their construction. No rule or threshold was set from them.

    tests/verdicts/run.py                      all programs, with the release binary
    tests/verdicts/run.py tree.cpp gil.py      only these
    tests/verdicts/run.py --binary PATH --seconds 4 --keep FOLDER

A program passes if the verdict names a wall of `walls` (or none, if `walls` is empty), and no wall outside `walls` and `also`.
Ends with `N passed, N failed, N skipped`.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).resolve().parent / "programs"
# The target runs this long before the window opens.
WARM_S = 1.5

ALLOCATING = {"call_rate", "allocator_code"}


@dataclass
class Program:
    file: str
    walls: set
    also: set = field(default_factory=set)
    words: tuple = ()
    # Words before the command, and a program that runs beside it.
    before: tuple = ()
    beside: tuple = ()


TABLE = [
    Program("tree.cpp", ALLOCATING),
    # Perl keeps freed values in lists of its own: malloc takes a twentieth.
    Program("hash.pl", set()),
    # Its arenas become empty and are unmapped each time.
    Program("objects.py", {"call_rate"}, {"first_touch"}),
    Program("calloc_80k.c", {"large_allocations"}),
    Program("memset_own.c", set()),
    Program("sort.cpp", set()),
    Program("sha.go", set()),
    Program("digits.py", set()),
    Program("numbers.js", set()),
    Program("Sieve.java", set()),
    Program("spin.c", set(), words=("2",)),
    Program("read_file.c", set()),
    Program("spawn.c", set()),
    Program("map_unmap.c", {"map_churn"}),
    Program("big_calloc.c", {"first_touch"}, {"map_churn"}),
    Program("arrays.py", {"first_touch"}, {"map_churn"}),
    Program("memfd.c", {"first_touch"}, {"map_churn"}),
    Program("snapshot.c", {"fork"}),
    Program("mapped_file.c", {"file_fault"}, {"map_churn"}),
    Program("threads_map.c", {"address_space_lock"}, {"map_churn", "first_touch"}),
    Program("mutex.c", {"application_lock"}),
    # Its numbers are objects.
    Program("gil.py", {"gil"}, {"call_rate"}),
    Program("collect.py", {"garbage_collector"}),
    Program("retain.js", {"garbage_collector"}, {"first_touch"}),
    Program("pointers.go", {"garbage_collector"}, {"call_rate"}),
    Program("Churn.java", {"garbage_collector"}, words=("-Xmx96m", "-XX:+UseSerialGC")),
    Program("kept.c", {"retention"}),
    Program("idle.c", {"waiting"}),
    Program("spin.c", {"run_queue"}, words=("1",), before=("taskset", "-c", "0"), beside=("taskset", "-c", "0", "PROGRAM", "2")),
]


def build(file, folder):
    """The command that runs the program; None if its compiler or interpreter is missing."""
    source, name = PROGRAMS / file, Path(file).stem
    out = folder / name
    match Path(file).suffix:
        case ".c":
            made, command = ["gcc", "-O2", "-g", "-pthread", "-fno-builtin-malloc", "-o", out, source], [out]
        case ".cpp":
            made, command = ["g++", "-O2", "-g", "-pthread", "-o", out, source], [out]
        case ".go":
            made, command = ["go", "build", "-o", out, source], [out]
        case ".java":
            made, command = ["javac", "-d", folder, source], ["java", "-cp", folder, name]
        case ".py":
            made, command = None, [shutil.which("python3"), source]
        case ".js":
            made, command = None, ["node", source]
        case ".pl":
            made, command = None, ["perl", source]
    if any(shutil.which(str(words[0])) is None for words in (made, command[:1]) if words and words[0] != out):
        return None
    if made:
        subprocess.run([str(word) for word in made], check=True, cwd=folder, env={**os.environ, "GOCACHE": str(folder / "go")})
    return [str(word) for word in command]


def command_of(program, built):
    if program.file.endswith(".java"):
        return [*program.before, built[0], *program.words, *built[1:]]
    return [*program.before, *built, *program.words]


def diagnose(binary, seconds, program, built, keep):
    env = {**os.environ, "GOGC": "20"}
    target = subprocess.Popen(command_of(program, built), stdout=subprocess.DEVNULL, start_new_session=True, env=env)
    beside = None
    if program.beside:
        words = [built[0] if word == "PROGRAM" else word for word in program.beside]
        beside = subprocess.Popen(words, start_new_session=True)
    try:
        time.sleep(WARM_S)
        command = [binary, "diagnose", "-p", str(target.pid), "-d", f"{seconds}s", "-o", str(keep / f"{program.file}.rec"), "--json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=seconds + 60)
    finally:
        for process in (target, beside):
            if process:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if not done.stdout.startswith("{"):
        raise RuntimeError(f"exit status {done.returncode}: {done.stderr.strip()[-300:]}")
    return json.loads(done.stdout)


def judge(program, report):
    """The problem of this verdict, or None."""
    named = set(report["verdict"]["walls"])
    if program.walls and not named & program.walls:
        return f"expected {' or '.join(sorted(program.walls))}, the verdict names {', '.join(sorted(named)) or 'no wall'}"
    if wrong := named - program.walls - program.also:
        return f"the verdict names {', '.join(sorted(wrong))}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*")
    parser.add_argument("--binary", default=str(ROOT / "target/release/allocwall"))
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--keep", type=Path, help="keep the recordings in this folder")
    args = parser.parse_args()
    passed = failed = skipped = 0
    with tempfile.TemporaryDirectory(prefix="allocwall-verdicts.") as folder:
        keep = args.keep or Path(folder)
        keep.mkdir(exist_ok=True)
        for program in TABLE:
            if args.programs and program.file not in args.programs:
                continue
            built = build(program.file, Path(folder))
            if built is None:
                print(f"skipped: {program.file}: its compiler or interpreter is not installed")
                skipped += 1
                continue
            try:
                report = diagnose(args.binary, args.seconds, program, built, keep)
                wrong, sentence = judge(program, report), report["verdict"]["sentence"]
            except (RuntimeError, subprocess.SubprocessError) as error:
                wrong, sentence = str(error), ""
            print(f"{'failed' if wrong else 'passed'}: {program.file}{': ' + wrong if wrong else ''}\n    {sentence}", flush=True)
            passed, failed = passed + (not wrong), failed + bool(wrong)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
