#!/usr/bin/env python3
"""Diagnoses hostile targets. Each diagnosis must end with a report, within limits of time and memory.

    tests/hostile/run.py --binary target/release/allocwall [CASE…]

Each case starts one target and diagnoses it. Every case requires: exit status 0, a report whose bill has samples and sums to one, no
panic, at most 150 MB resident in the tool and each of its children, an end soon after the window, and a target that still runs then.
Some cases also require that the report names what could not be read. The `plain` cases are near twins without a trick: there, names
must be read, and nothing may be missing.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path

WINDOW_S = 2.0
RESIDENT_MB = 150
# A run that ends later than 2 s after the window is marked slow. Later than 8 s it is repeated, because the machine may be busy: it must
# not be late twice. After 20 s it counts as a hang.
BEYOND_WINDOW_S = 2.0
LATE_S = 8.0
HANG_S = 20.0

BUSY = "int main(void) { for (volatile unsigned long i = 0;; i++) work(i); }\n"
PLAIN = "__attribute__((noinline)) void work(unsigned long i) { __asm__ volatile(\"\" :: \"r\"(i)); }\n" + BUSY


class Skip(Exception):
    """The machine lacks what the case needs."""


class Bench:
    """A folder, and the processes of one case."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.processes = []
        self.pids = []
        self.remove = []

    def compile(self, source, name="target", *flags):
        file = self.folder / f"{name}.c"
        file.write_text(source)
        out = self.folder / name
        subprocess.run(["cc", "-O1", "-g0", "-o", out, file, *flags], check=True)
        return out

    def start(self, *command, **options):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)
        self.processes.append(process)
        return process.pid

    def end(self):
        for process in self.processes:
            process.kill()
            process.wait()
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for file in self.remove:
            file.unlink(missing_ok=True)


class Elf:
    """The section headers of a 64-bit little-endian ELF file, for patching."""

    def __init__(self, path):
        self.path = path
        data = path.read_bytes()
        self.offset, = struct.unpack_from("<Q", data, 0x28)
        size, count, strings = struct.unpack_from("<HHH", data, 0x3A)
        headers = [struct.unpack_from("<IIQQQQIIQQ", data, self.offset + i * size) for i in range(count)]
        names = data[headers[strings][4]:]
        self.size = size
        self.sections = {
            names[h[0]:names.index(b"\0", h[0])].decode(): (i, list(h)) for i, h in enumerate(headers)
        }

    def patch(self, name, **fields):
        """Changes `offset` and `size` in a section's header."""
        index, header = self.sections[name]
        places = {"offset": 4, "size": 5}
        for field, value in fields.items():
            header[places[field]] = value
        with open(self.path, "r+b") as file:
            file.seek(self.offset + index * self.size)
            file.write(struct.pack("<IIQQQQIIQQ", *header))

    def grow(self, name, size):
        """Moves the section to the end of the file and extends it to `size` bytes with a hole."""
        _, header = self.sections[name]
        with open(self.path, "r+b") as file:
            file.seek(header[4])
            own = file.read(header[5])
            end = file.seek(0, os.SEEK_END)
            start = (end + 4095) & ~4095
            file.seek(start)
            file.write(own)
            file.truncate(start + size)
        self.patch(name, offset=start, size=size)


def doubled_name(levels=40):
    """A mangled C++ name of about 450 bytes. Each parameter refers to the one before it twice, so its full name doubles each time."""
    def base36(n):
        digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
        return digits[n] if n < 36 else base36(n // 36) + digits[n % 36]
    names = (base36(level) for level in range(1, levels))
    return "_Z1f1a1bIS_S_E" + "".join(f"S0_IS{n}_S{n}_E" for n in names)


# The cases. Each starts its target and returns the pids to diagnose, and what must be missing: a probe and a part of its reason, or
# None.


def plain(bench):
    return [bench.start(bench.compile(PLAIN))], None


def demangling_bomb(bench):
    name = doubled_name()
    source = f'__attribute__((noinline)) void work(unsigned long i) __asm__("{name}");\n' + PLAIN
    return [bench.start(bench.compile(source))], None


def sparse_symbols(bench):
    program = bench.compile(PLAIN)
    Elf(program).grow(".symtab", 5 << 30)
    return [bench.start(program)], None


def sparse_names(bench):
    program = bench.compile(PLAIN)
    Elf(program).grow(".strtab", 5 << 30)
    return [bench.start(program)], None


LIBRARIES = """
#include <dlfcn.h>
int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) if (!dlopen(argv[i], RTLD_NOW)) return 1;
    for (volatile unsigned long i = 0;; i++);
}
"""


def loaded(bench, count, change):
    """A program that has loaded `count` libraries; `change` is applied to each before."""
    libraries = []
    for n in range(count):
        library = bench.compile(f"int f{n}(void) {{ return {n}; }}\n", f"lib{n}.so", "-shared", "-fPIC")
        change(library)
        libraries.append(library)
    pid = bench.start(bench.compile(LIBRARIES, "target", "-ldl"), *libraries)
    return [pid], libraries


def sparse_unwind_tables(bench):
    pids, _ = loaded(bench, 8, lambda library: Elf(library).grow(".eh_frame", 300 << 20))
    return pids, ("names", "unwind tables of 8 files were not read")


def cut_while_running(bench):
    pids, libraries = loaded(bench, 3, lambda library: Elf(library).grow(".symtab", 64 << 20))

    def cut():
        time.sleep(WINDOW_S / 2)
        for library in libraries:
            os.truncate(library, 4096)

    threading.Thread(target=cut, daemon=True).start()
    return pids, None


def cut_before(bench):
    pids, libraries = loaded(bench, 3, lambda library: None)
    time.sleep(0.2)
    for library in libraries:
        os.truncate(library, 4096)
    return pids, None


GENERATED = """
#include <string.h>
#include <sys/mman.h>
int main(void) {
    unsigned char *code = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(code, "\\xeb\\xfe", 2);
    ((void (*)(void))code)();
}
"""


def large_perf_maps(bench):
    program = bench.compile(GENERATED)
    pids = [bench.start(program) for _ in range(4)]
    line = "7f%010x 10 a_function_of_the_program_that_has_a_name\n"
    block = "".join(line % (i * 16) for i in range(20_000)).encode()
    for pid in pids:
        file = Path(f"/tmp/perf-{pid}.map")
        with open(file, "wb") as out:
            for _ in range((64 << 20) // len(block)):
                out.write(block)
        bench.remove.append(file)
    return pids, None


def with_perf_map(bench, make):
    """A program of generated code; `make` creates the file at the path of its perf map."""
    pid = bench.start(bench.compile(GENERATED))
    place = Path(f"/tmp/perf-{pid}.map")
    make(place)
    bench.remove.append(place)
    return [pid], None


def perf_map_links_to_itself(bench):
    return with_perf_map(bench, lambda place: place.symlink_to(place))


def perf_map_is_a_pipe(bench):
    return with_perf_map(bench, os.mkfifo)


def interpreters():
    for name in ("python3.13", "python3.12", "python3.11", "python3.10", "python3.9", "python3", "/usr/bin/python3"):
        found = shutil.which(name)
        if found is None:
            continue
        command = [found, "-c", "import os, sys; print(os.path.realpath(sys.executable), sys.base_prefix, sep='\\n')"]
        lines = subprocess.run(command, capture_output=True, text=True).stdout.split("\n")
        if len(lines) >= 2 and Path(lines[0]).is_file():
            yield Path(lines[0]), lines[1]


def linked_library(path, environment=None):
    """The libpython that a program is linked with, or None."""
    lines = subprocess.run(["ldd", path], capture_output=True, text=True, env=environment).stdout.splitlines()
    found = [line.split("=>")[1].split()[0] for line in lines if "libpython" in line and "=> /" in line]
    return Path(found[0]) if found else None


def own_python(bench, shared=False):
    """A copy of an interpreter, with its code in the program or in a copied library: program, environment, library."""
    for path, prefix in interpreters():
        library = linked_library(path)
        if (library is not None) != shared:
            continue
        program = bench.folder / path.name
        shutil.copy(path, program)
        environment = {**os.environ, "PYTHONHOME": prefix}
        if library is not None:
            environment["LD_LIBRARY_PATH"] = str(bench.folder)
            library = Path(shutil.copy(library, bench.folder / library.name))
            if linked_library(program, environment) != library:
                continue
        return program, environment, library
    raise Skip("no Python interpreter whose code is in " + ("a library" if shared else "the program itself"))


def busy_script(bench):
    script = bench.folder / "busy.py"
    script.write_text("def work():\n    return sum(range(1000))\nwhile True:\n    work()\n")
    return script


def busy_python(bench, program, environment):
    pid = bench.start(program, busy_script(bench), env=environment)
    time.sleep(0.5)
    return pid


def python_library_is_a_pipe(bench):
    program, environment, library = own_python(bench, shared=True)
    script = busy_script(bench)
    pipe = bench.folder / "pipe"
    os.mkfifo(pipe)
    # A mount over the library's path: the kernel keeps this path as the name of the mapped file.
    inside = 'LD_LIBRARY_PATH="$5" PYTHONHOME="$6" "$1" "$2" & echo $! > "$7"; sleep 1; mount --bind "$3" "$4"; wait'
    pid_file = bench.folder / "pid"
    bench.start("unshare", "-m", "sh", "-c", inside, "sh", program, script, pipe, library, bench.folder,
                environment["PYTHONHOME"], pid_file)
    time.sleep(1.5)
    try:
        pid = int(pid_file.read_text())
    except (OSError, ValueError):
        raise Skip("no file can be mounted over another here") from None
    bench.pids.append(pid)
    if not stat.S_ISFIFO(os.stat(f"/proc/{pid}/root{library}").st_mode):
        raise Skip("no file can be mounted over another here")
    return [pid], ("python_stacks", "Python")


def python_claims_a_huge_bss(bench):
    program, environment, _ = own_python(bench)
    # Without this symbol, allocwall searches the data segments for the interpreter.
    data = program.read_bytes()
    renamed = data.replace(b"\0_PyRuntime\0", b"\0_PyRuntimX\0")
    if renamed == data and b"_PyRuntime\0" in data:
        raise Skip("this interpreter's _PyRuntime can't be renamed")
    program.write_bytes(renamed)
    Elf(program).patch(".bss", size=1 << 44)
    return [busy_python(bench, program, environment)], None


def python_with_sparse_symbols(bench):
    program, environment, _ = own_python(bench)
    elf = Elf(program)
    elf.grow(".symtab" if ".symtab" in elf.sections else ".dynsym", 3 << 30)
    return [busy_python(bench, program, environment)], None


def plain_python(bench):
    program, environment, _ = own_python(bench)
    return [busy_python(bench, program, environment)], None


def plain_python_library(bench):
    program, environment, _ = own_python(bench, shared=True)
    return [busy_python(bench, program, environment)], None


CASES = [
    plain, plain_python, plain_python_library, demangling_bomb, sparse_symbols, sparse_names, sparse_unwind_tables, cut_while_running, cut_before,
    large_perf_maps, perf_map_links_to_itself, perf_map_is_a_pipe, python_library_is_a_pipe, python_claims_a_huge_bss,
    python_with_sparse_symbols,
]


def diagnose(binary, pids, home):
    """Runs the tool: exit status, report, stderr, seconds, peak resident MB."""
    command = [binary, "diagnose", "--json", "-d", f"{WINDOW_S}", "-p", ",".join(map(str, pids))]
    environment = {**os.environ, "HOME": str(home), "XDG_STATE_HOME": str(home)}
    out, err = open(home / "out", "w+b"), open(home / "err", "w+b")
    began = time.monotonic()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment)
    hung = threading.Timer(WINDOW_S + HANG_S, process.kill)
    hung.start()
    # The peak is the maximum over the tool and each child that it waited for (getrusage(2)).
    _, status, usage = os.wait4(process.pid, 0)
    hung.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    took = time.monotonic() - began
    out.seek(0)
    err.seek(0)
    return process.returncode, out.read(), err.read().decode(errors="replace"), took, usage.ru_maxrss / 1024


def runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def judge(case, report, error, status, resident, missing):
    """The problems of one run, as sentences."""
    wrong = []
    if status != 0:
        wrong.append("it hung and was killed" if status == -signal.SIGKILL else f"exit status {status}")
    if "panicked" in error or "RUST_BACKTRACE" in error:
        wrong.append("it panicked")
    if resident > RESIDENT_MB:
        wrong.append(f"{resident:.0f} MB resident")
    if status == 0:
        wrong.extend(judge_report(case.__name__, json.loads(report), missing))
    return wrong


def judge_report(case, document, missing):
    # If it is absent, it is an object with the reason.
    lines = document["bill"]["on_cpu"]
    if not isinstance(lines, list) or not sum(line["samples"] for line in lines):
        yield f"its bill has no samples: {str(lines)[:300]}"
        return
    total = sum(line["share"]["point"] for line in lines)
    if abs(total - 1) > 1e-6:
        yield f"its bill sums to {total}"
    probes = {probe["name"]: probe for probe in document["probes"]}
    if missing:
        probe, reason = missing
        found = json.dumps(probes.get(probe, {}).get("missing"))
        if reason not in found:
            yield f"the report does not name {reason!r} as missing from {probe}: {found}"
    if not case.startswith("plain"):
        return
    # The names have a probe only if some are missing.
    unread = [name for name in ("names", "python_stacks") if probes.get(name, {"state": "measured"})["state"] != "measured"]
    if unread:
        yield f"a plain target must have nothing missing: {json.dumps([probes[name] for name in unread])}"
    if "python" in case:
        if "python_stacks" not in probes or not document["recording"]["python_samples"]:
            yield "no stack of a plain Python was read"
    elif not {"main", "work"} & {site["function"] for line in lines for site in line["sites"]}:
        yield "no function of a plain target has its name"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", required=True)
    parser.add_argument("case", nargs="*")
    args = parser.parse_args()
    if unknown := set(args.case) - {case.__name__ for case in CASES}:
        parser.error(f"unknown case {', '.join(sorted(unknown))}")
    if os.geteuid() != 0:
        print("skipped: hostile targets: only root can sample every target here")
        print("0 passed, 0 failed, 1 skipped")
        return 0
    passed, failed, skipped = 0, [], 0
    print(f"{'case':28} {'status':>6} {'beyond window':>14} {'resident':>9}")
    for case in CASES:
        if args.case and case.__name__ not in args.case:
            continue
        with tempfile.TemporaryDirectory(prefix="hostile-") as folder:
            bench = Bench(folder)
            try:
                pids, missing = case(bench)
                time.sleep(0.3)
                home = bench.folder / "home"
                home.mkdir()
                status, report, error, took, resident = diagnose(args.binary, pids, home)
                if WINDOW_S + LATE_S < took < WINDOW_S + HANG_S:
                    print(f"{case.__name__:28} again: it ended {took - WINDOW_S:.1f} s after the window", flush=True)
                    status, report, error, took, resident = diagnose(args.binary, pids, home)
                wrong = judge(case, report, error, status, resident, missing)
                beyond = took - WINDOW_S
                if beyond > LATE_S and status != -signal.SIGKILL:
                    wrong.append(f"it ended {beyond:.1f} s after the window")
                wrong += [f"its target {pid} has ended" for pid in pids if not runs(pid)]
                slow = " (slow)" if beyond > BEYOND_WINDOW_S else ""
                print(f"{case.__name__:28} {status:6} {beyond:12.1f} s {resident:6.0f} MB{slow}", flush=True)
                if wrong:
                    failed.append(case.__name__)
                    print(textwrap.indent(error.strip()[:1000], "  "))
                    print(f"failed: hostile.{case.__name__}: {'; '.join(wrong)}")
                else:
                    passed += 1
            except Skip as why:
                skipped += 1
                print(f"skipped: hostile.{case.__name__}: {why}")
            except Exception as broken:
                # The other cases go on.
                failed.append(case.__name__)
                print(f"failed: hostile.{case.__name__}: it could not be tried: {broken!r}")
            finally:
                bench.end()
    print(f"{passed} passed, {len(failed)} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
