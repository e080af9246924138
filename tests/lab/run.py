#!/usr/bin/env python3
"""Diagnoses on other kernels: Debian's 5.10, 6.1 and 6.12 in QEMU, emulated, each with both versions of cgroups.

    tests/lab/run.py                     all kernels, with the release binary: about twenty minutes
    tests/lab/run.py ci                  one kernel, the most important scenarios: three minutes at most
    tests/lab/run.py 6.1 5.10            only these kernels
    tests/lab/run.py arm64 --binary target/aarch64-unknown-linux-gnu/debug/allocwall    one kernel of arm64: ten minutes
    tests/lab/run.py --only throttled    only scenarios whose name begins with this word
    tests/lab/run.py --install           install missing packages (Debian); also if CI is set

Consoles, reports and the subjects' accounts stay in target/lab. Standard library only. Prints a line for each scenario that failed or was
skipped, and ends with `N passed, N failed, N skipped`.
"""

import argparse
import base64
import collections
import io
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path

import image
import kernels
from judge import Machine, Starved
from scenarios import ARM64, ARM64_KERNEL, BOOTS, CI, CI_KERNEL, KERNELS

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
WIDTH = 200
MEMORY_MIB = 3072
CPUS = 4
# A scenario takes about 15 s; a busy machine may need four times as long.
SILENCE_S = 90
MOST_BOOTS = 3
# The C library of the cross compiler of arm64.
CROSS = Path("/usr/aarch64-linux-gnu/lib")


@dataclass(frozen=True)
class Platform:
    """What is emulated."""

    # Debian's name.
    architecture: str
    emulator: tuple
    options: str
    # Serial ports: of the kernel, and of the results, with the words that add the second one.
    console: str
    data: str
    data_words: str
    strip: str
    needed: dict


COMMON = {"busybox": "busybox-static", "strip": "binutils", "readelf": "binutils"}
# QEMU's tcg, since KVM inside a virtual machine may hang; all CPUs in one host thread, since the kernel panics when one emulated CPU
# patches code that another runs (QEMU 7.2: three of four boots with system call tracepoints).
ACCELERATOR = ("-accel", "tcg,thread=single")
AMD64 = Platform(
    architecture="amd64",
    emulator=("qemu-system-x86_64", *ACCELERATOR, "-cpu", "max,-cx16"),
    options="no_timer_check",
    console="ttyS0",
    data="ttyS1",
    data_words="-serial chardev:data",
    strip="strip",
    needed={"qemu-system-x86_64": "qemu-system-x86", **COMMON},
)
ARM = Platform(
    architecture="arm64",
    # Signing of pointers as QEMU likes it: the algorithm of the manual takes it half of the time.
    emulator=("qemu-system-aarch64", "-M", "virt", *ACCELERATOR, "-cpu", "max,pauth-impdef=on"),
    options="",
    console="ttyAMA0",
    data="ttyS0",
    data_words="-device pci-serial,chardev=data",
    strip="aarch64-linux-gnu-strip",
    needed={
        "qemu-system-aarch64": "qemu-system-arm",
        "aarch64-linux-gnu-strip": "binutils-aarch64-linux-gnu",
        str(CROSS / "libc.so.6"): "libc6-arm64-cross",
        str(CROSS / "libgcc_s.so.1"): "libgcc-s1-arm64-cross",
        **COMMON,
    },
)


def qemu(platform, kernel, initramfs, boot, folder):
    """The command of the emulator."""
    command = [*platform.emulator, "-smp", str(CPUS), "-m", str(MEMORY_MIB)]
    command += ["-nodefaults", "-display", "none", "-no-reboot", "-kernel", kernel, "-initrd", initramfs]
    # `data` is for guest.sh: the first process gets it as an environment variable.
    command += ["-append", f"console={platform.console} data={platform.data} panic=-1 loglevel=4 {platform.options}"]
    command += ["-serial", f"file:{folder / 'console'}", "-chardev", f"file,id=data,path={folder / 'data'}", *platform.data_words.split()]
    for node in range(boot.nodes):
        share = CPUS // boot.nodes
        command += ["-object", f"memory-backend-ram,id=m{node},size={MEMORY_MIB // boot.nodes}M"]
        command += ["-numa", f"node,nodeid={node},memdev=m{node},cpus={node * share}-{node * share + share - 1}"]
    return [str(word) for word in command]


def programs(args):
    """The files of the emulated machine's programs."""
    binary = args.folder / f"allocwall-{args.platform.architecture}"
    image.strip(args.binary, binary, args.platform.strip)
    if args.platform is AMD64:
        return image.of_this_machine(binary)
    return image.of_another(binary, kernels.busybox(KERNELS[ARM64_KERNEL], args.folder, args.platform.architecture), CROSS)


def blocks(folder):
    """Unpacks the results that the emulated machine has sent since the last call; yields the names of their scenarios."""
    data = (folder / "data").read_text(errors="replace").replace("\r", "")
    for found in re.finditer(r"^begin (\S+)\n(.*?)^end \1$", data, re.MULTILINE | re.DOTALL):
        name = found[1]
        if (folder / name).is_dir():
            continue
        (folder / name).mkdir()
        with tarfile.open(fileobj=io.BytesIO(base64.b64decode(found[2])), mode="r:gz") as packed:
            for member in packed.getmembers():
                if member.isfile() and Path(member.name).parts[:1] == (name,):
                    (folder / name / Path(member.name).name).write_bytes(packed.extractfile(member).read())
        yield name


class Table:
    """The outcome of each scenario; the last attempt counts."""

    def __init__(self):
        self.outcomes = {}

    def add(self, version, boot, scenario, outcome, note):
        self.outcomes[f"lab.{version}.{boot}.{scenario}"] = outcome, note
        print(f"{version:<5} {boot:<10} {scenario:<23} {outcome:<8} {note}"[:WIDTH], flush=True)

    def skip(self, version, reason):
        self.outcomes[f"lab.{version}"] = "skipped", str(reason)

    def end(self):
        """Prints the scenarios that did not pass; returns the numbers of passed, failed and skipped."""
        for name, (outcome, note) in self.outcomes.items():
            if outcome != "passed":
                print(f"{outcome}: {name}: {note}")
        outcomes = [outcome for outcome, _ in self.outcomes.values()]
        return [outcomes.count(outcome) for outcome in ("passed", "failed", "skipped")]


def try_boot(version, boot, scenarios, folder, args, table):
    """Boots once and judges each scenario when its result arrives. Returns the scenarios that failed, and those without a judgement."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    initramfs = folder / "initramfs"
    image.build(args.files, boot.plan(scenarios, args.window), HERE / "guest.sh", initramfs)
    kernel = kernels.image(KERNELS[version], args.folder, args.platform.architecture)
    machine = Machine(version, CPUS, boot.nodes, boot.cgroup, boot.huge_pages)
    (folder / "data").touch()
    waiting, failed, starved = {scenario.name: scenario for scenario in scenarios}, [], []
    with open(folder / "qemu", "wb") as log:
        command = qemu(args.platform, kernel, initramfs, boot, folder)
        emulator = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
    try:
        heard = time.monotonic()
        while waiting:
            ended = emulator.poll() is not None
            for name in blocks(folder):
                scenario, heard = waiting.pop(name), time.monotonic()
                files = {file.name: file.read_text(errors="replace") for file in (folder / name).iterdir()}
                try:
                    complaints, note = scenario.judge(files, machine)
                except Starved as reason:
                    starved.append(scenario)
                    table.add(version, boot.name, name, "skipped", str(reason))
                    continue
                failed += [scenario] if complaints else []
                table.add(version, boot.name, name, "failed" if complaints else "passed", "; ".join(complaints) or note)
            if ended or time.monotonic() - heard > SILENCE_S:
                break
            time.sleep(0.3)
    finally:
        emulator.kill()
        emulator.wait()
        initramfs.unlink()
    for name in waiting:
        table.add(version, boot.name, name, "failed", f"no result came back; see {folder}/console")
    return failed, starved + list(waiting.values())


def try_again(version, boot, args, table):
    """A scenario fails only if it fails twice: other work on this machine slows the emulated one down. A scenario without a result
    gets more boots."""
    pending = [scenario for scenario in boot.scenarios if wanted(scenario.name, args.only)]
    wrong = collections.Counter()
    folder = args.folder / f"{version}-{boot.name}"
    for attempt in range(1, MOST_BOOTS + 1):
        if not pending:
            break
        if attempt > 1:
            names = ", ".join(scenario.name for scenario in pending)
            print(f"{version:<5} {boot.name:<10} boot {attempt}: {names}", flush=True)
        place = folder if attempt == 1 else folder.with_name(f"{folder.name}-boot{attempt}")
        failed, lost = try_boot(version, boot, pending, place, args, table)
        wrong.update(scenario.name for scenario in failed)
        pending = [scenario for scenario in failed if wrong[scenario.name] < 2] + lost


def wanted(name, beginnings):
    return not beginnings or name.startswith(tuple(beginnings))


def missing(args):
    """Why the lab cannot run on this machine, or None."""
    if args.platform is AMD64 and platform.machine() != "x86_64":
        return f"the lab boots x86-64 kernels, with this machine's C library; this machine is {platform.machine()}"
    needed = args.platform.needed
    if args.install:
        pairs = [f"{program}={package}" for program, package in needed.items()]
        subprocess.run([ROOT / "tools/need.sh", *pairs], check=False)
    lacking = [program for program in needed if shutil.which(program) is None and not Path(program).is_file()]
    if lacking:
        return f"no {', '.join(lacking)}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", nargs="*", metavar="KERNEL", help=f"{', '.join(KERNELS)}; or ci, or arm64")
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/allocwall")
    parser.add_argument("--folder", type=Path, default=ROOT / "target/lab", help="folder for kernels, consoles and reports")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--window", type=int, metavar="SECONDS", help="window of each diagnosis (default: 8; ci: 6)")
    parser.add_argument("--install", action="store_true", default="CI" in os.environ)
    args = parser.parse_args()
    # The emulator must end with this script, also on SIGTERM.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    args.folder, args.binary = args.folder.resolve(), args.binary.resolve()
    short = args.kernels == ["ci"]
    args.window = args.window or (6 if short else 8)
    args.platform, versions, boots = AMD64, args.kernels or list(KERNELS), BOOTS
    if short:
        versions, boots = [CI_KERNEL], [CI]
    elif args.kernels == ["arm64"]:
        args.platform, versions, boots = ARM, [ARM64_KERNEL], [ARM64]
    unknown = [version for version in versions if version not in KERNELS]
    if unknown:
        parser.error(f"unknown kernel {unknown[0]}; use {', '.join(KERNELS)}, or only ci or arm64")
    if not args.binary.is_file():
        parser.error(f"{args.binary} does not exist; run cargo build --release, or use --binary")

    table = Table()
    args.folder.mkdir(parents=True, exist_ok=True)
    reason = missing(args)
    if reason is None:
        for version in versions:
            try:
                args.files = programs(args)
                kernels.image(KERNELS[version], args.folder, args.platform.architecture)
                for boot in boots:
                    try_again(version, boot, args, table)
            except (kernels.Unavailable, image.Unavailable) as absent:
                table.skip(version, absent)
    else:
        table.skip("all", reason)
    passed, failed, skipped = table.end()
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
