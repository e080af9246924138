#!/usr/bin/env python3
"""Installs the packages in bare root file systems, uses the program there, and removes it.

    tests/dist/run.py --binary FILE                          packs this program, and installs the packages in a root of this machine's
                                                             own suite
    tests/dist/run.py --packages FOLDER [--suite NAME]… [--bare]    the packages of `make dist`

A root of a suite is made by mmdebstrap from the mirror in this machine's own apt configuration. It holds Debian's essential packages and
Python, and no compiler. `--bare`: a root that holds only busybox and the static program.
"""

import argparse
import gzip
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests" / "lab"))
from kernels import Unavailable, own_sources, sources_for  # noqa: E402

PACKAGES = {"mmdebstrap": "mmdebstrap", "/bin/busybox": "busybox-static", "readelf": "binutils", "unshare": "util-linux"}
BUSY = "i=0; while [ $i -lt 400000 ]; do i=$((i+1)); done"
# Bundled with every build: the name of the arm, and the file that the loader maps.
BUNDLED = {"mimalloc@bundled": "libmimalloc", "snmalloc@bundled": "libsnmallocshim", "prefault=8M": "liballocwall-prefault"}
LIMIT_S = 300
# The mounts are of the process's own namespace, and end with it. Without /sys, there would be no list of CPUs.
ENTER = 'mount --rbind /sys "$0/sys" && mount --rbind /dev "$0/dev" && exec chroot "$0" "$@"'


class Failed(Exception):
    """A check of a package."""


class Machine:
    """A root file system, entered with processes and mounts of its own, so that nothing of it remains."""

    def __init__(self, root):
        self.root = root
        for folder in ("proc", "sys", "dev"):
            (root / folder).mkdir(exist_ok=True)

    def run(self, *command, status=0):
        """What the command prints, both streams; it must end with this status."""
        # The environment is that of a login: nothing of this machine's.
        clean = ("env", "-i", "HOME=/root", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "TERM=dumb")
        inside = ("unshare", "--mount", "--pid", "--fork", f"--mount-proc={self.root}/proc", "sh", "-c", ENTER, self.root)
        ended = subprocess.run(
            (*inside, *clean, *command),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=LIMIT_S,
        )
        if ended.returncode != status:
            raise Failed(f"`{' '.join(map(str, command))}` ended with {ended.returncode}, not {status}: {ended.stdout.strip()[-600:]}")
        return ended.stdout

    def bring(self, path):
        """Copies a file into /tmp; returns its path inside."""
        shutil.copy(path, self.root / "tmp")
        return f"/tmp/{path.name}"


def expect(truth, text):
    if not truth:
        raise Failed(text)


def use(machine, program, version, shell=("/bin/sh", "-c", BUSY)):
    """What every installation must be able to do."""
    told = machine.run(program, "--version")
    expect(told == f"allocwall {version}\n", f"--version: {told!r}")
    machine.run(program, "check")
    report = machine.run(program, "diagnose", "-d", "1", "--", *shell)
    expect("VERDICT" in report and "total" in report, f"no verdict: {report[-600:]}")
    machine.run(program, "diagnose", "--no-such-option", status=2)


def preloads(machine, program):
    """Each library in the program loads here, and is not there without being asked for."""
    maps = ("cat", "/proc/self/maps")
    plain = machine.run(*maps)
    for arm, library in BUNDLED.items():
        expect(library not in plain, f"{library} is mapped without {arm}")
        mapped = machine.run(program, "run", "--with", arm, "--", *maps)
        expect(library in mapped and "cannot be preloaded" not in mapped, f"--with {arm}: {library} is not mapped: {mapped[-600:]}")
    counted = machine.run(program, "count", "--", "ls", "/usr")
    expect("calls" in counted, f"count: {counted[-600:]}")


def documents(machine, program, *paths):
    """The page of the program, that of a verb, and the completions are where their readers look, and are of this program."""
    page, verb, completions = (machine.root / path for path in paths)
    opened = gzip.decompress if page.suffix == ".gz" else bytes
    text = opened(page.read_bytes()).decode()
    expect(".SH NAME" in text and "diagnose" in text, f"{page} is not the page of the program: {text[:200]}")
    expect(verb.is_file(), f"{verb} is missing")
    expect(completions.read_text() == machine.run(program, "completions", "bash"), f"{completions} are others")


def absent(machine, *names):
    for name in names:
        expect(not (machine.root / name).exists(), f"/{name} is there before or after the installation")


def book(machine, folder):
    for path in ("docs/tutorial.md", "examples/manifest-service/load.py"):
        expect((machine.root / folder / path).is_file(), f"{folder}/{path} is missing")


def of_deb(machine, packages):
    files = ("usr/bin/allocwall", "usr/share/doc/allocwall", "usr/share/man/man1/allocwall.1.gz", "usr/share/allocwall")
    absent(machine, *files)
    machine.run("dpkg", "--install", machine.bring(packages.deb))
    use(machine, "/usr/bin/allocwall", packages.version)
    preloads(machine, "/usr/bin/allocwall")
    verb, completions = "usr/share/man/man1/allocwall-diagnose.1.gz", "usr/share/bash-completion/completions/allocwall"
    documents(machine, "/usr/bin/allocwall", files[2], verb, completions)
    book(machine, files[3])
    told = machine.run("dpkg", "--verify", "allocwall")
    expect("/usr/bin/" not in told, f"dpkg --verify: {told}")
    machine.run("dpkg", "--purge", "allocwall")
    absent(machine, *files)


def of_tarball(machine, packages):
    absent(machine, "opt/allocwall")
    machine.run("mkdir", "/opt/allocwall")
    machine.run("tar", "-xzf", machine.bring(packages.tarball("gnu")), "-C", "/opt/allocwall", "--strip-components=1")
    use(machine, "/opt/allocwall/allocwall", packages.version)
    preloads(machine, "/opt/allocwall/allocwall")
    # The program alone, as docs/install.md has it.
    unpack = "cd /root && tar -xzf $0 --strip-components=1 --wildcards '*/allocwall' && ls && ./allocwall --version"
    told = machine.run("sh", "-c", unpack, f"/tmp/{packages.tarball('gnu').name}")
    expect(told == f"allocwall\nallocwall {packages.version}\n", f"the program alone: {told!r}")
    pages = ("opt/allocwall/man/allocwall.1", "opt/allocwall/man/allocwall-diagnose.1")
    documents(machine, "/opt/allocwall/allocwall", *pages, "opt/allocwall/completions/allocwall.bash")
    book(machine, "opt/allocwall")


def of_wheel(machine, packages):
    absent(machine, "opt/venv")
    machine.run("python3", "-m", "venv", "/opt/venv")
    machine.run("/opt/venv/bin/pip", "install", "--quiet", "--no-index", machine.bring(packages.wheel))
    use(machine, "/opt/venv/bin/allocwall", packages.version)
    preloads(machine, "/opt/venv/bin/allocwall")
    told = machine.run("/opt/venv/bin/python", "-c", "import allocwall, allocwall._native; print('loaded')")
    expect(told == "loaded\n", f"import allocwall: {told!r}")
    pages = ("opt/venv/share/man/man1/allocwall.1", "opt/venv/share/man/man1/allocwall-diagnose.1")
    documents(machine, "/opt/venv/bin/allocwall", *pages, "opt/venv/share/bash-completion/completions/allocwall")
    machine.run("/opt/venv/bin/pip", "uninstall", "--quiet", "--yes", "allocwall")
    absent(machine, "opt/venv/bin/allocwall")


def of_static(machine, packages):
    machine.run("busybox", "tar", "-xzf", machine.bring(packages.tarball("musl")), "-C", "/tmp")
    program = next(machine.root.glob("tmp/allocwall-*/allocwall"))
    program = "/" + str(program.relative_to(machine.root))
    use(machine, program, packages.version, ("/bin/busybox", "sh", "-c", BUSY))
    # A static program loads no library, and has no other allocator. That must be said.
    told = machine.run(program, "count", "--", "/bin/busybox", "true", status=1)
    expect("static" in told, f"count of a static program: {told}")


class Packages:
    def __init__(self, folder):
        self.folder = folder
        self.deb = self.one("allocwall_*.deb")
        self.wheel = self.one("allocwall-*.whl")
        self.version = self.deb.name.split("_")[1]

    def one(self, pattern):
        found = sorted(self.folder.glob(pattern))
        if len(found) != 1:
            sys.exit(f"{self.folder}: {len(found)} files are named {pattern}: run `make dist`")
        return found[0]

    def tarball(self, libc):
        return self.one(f"allocwall-*-linux-{libc}.tar.gz")


def sums(_, packages):
    """The checksums are right, and name every package."""
    listed = {line.split()[1] for line in (packages.folder / "SHA256SUMS").read_text().splitlines()}
    there = {path.name for path in packages.folder.iterdir()} - {"SHA256SUMS"}
    expect(listed == there, f"SHA256SUMS has {sorted(listed)}, the folder {sorted(there)}")
    subprocess.run(("sha256sum", "--quiet", "--check", "SHA256SUMS"), cwd=packages.folder, check=True)


def suite_root(suite, root):
    codename, texts = own_sources()
    sources = root.parent / f"{suite}.sources"
    sources.write_text(sources_for(suite, texts, codename))
    # What the user's own suite is does not matter to dpkg; only speed does.
    command = ("mmdebstrap", "--quiet", "--variant=essential", "--include=python3-venv", "--skip=cleanup/apt")
    ended = subprocess.run(
        (*command, "--dpkgopt=force-unsafe-io", "--dpkgopt=path-exclude=/usr/share/doc/*", suite, root, sources),
        stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )
    if ended.returncode != 0:
        raise Unavailable(f"mmdebstrap made no root of {suite}: {(ended.stderr.strip().splitlines() or ['no reason'])[-1]}")
    return Machine(root)


def bare_root(root):
    for folder in ("bin", "tmp", "root"):
        (root / folder).mkdir(parents=True)
    shutil.copy("/bin/busybox", root / "bin")
    for name in ("sh", "env"):
        (root / "bin" / name).symlink_to("busybox")
    return Machine(root)


class Results:
    def __init__(self):
        self.counts = {"passed": 0, "failed": 0, "skipped": 0}

    def run(self, name, test, *arguments):
        began = time.monotonic()
        try:
            test(*arguments)
            self.counts["passed"] += 1
            print(f"passed: dist.{name} ({time.monotonic() - began:.1f} s)", flush=True)
        except (Failed, subprocess.SubprocessError, OSError) as error:
            self.counts["failed"] += 1
            print(f"failed: dist.{name}: {' '.join(str(error).split())}", flush=True)

    def skip(self, name, reason):
        self.counts["skipped"] += 1
        print(f"skipped: dist.{name}: {reason}", flush=True)


def test(packages, suites, bare, scratch, results):
    results.run("checksums", sums, None, packages)
    if os.geteuid() != 0:
        return results.skip("roots", "only root can make a root file system")
    for suite in suites:
        try:
            began = time.monotonic()
            machine = suite_root(suite, scratch / suite)
            print(f"a root of {suite}: {time.monotonic() - began:.1f} s", flush=True)
        except Unavailable as error:
            results.skip(suite, error)
            continue
        for name, one in (("deb", of_deb), ("tarball", of_tarball), ("wheel", of_wheel)):
            results.run(f"{suite}.{name}", one, machine, packages)
    if bare:
        results.run("bare.static", of_static, bare_root(scratch / "bare"), packages)
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", type=Path, help="pack this program, and install that")
    parser.add_argument("--packages", type=Path, help="install the packages in this folder")
    parser.add_argument("--suite", action="append", help="a release of Debian; default: that of this machine")
    parser.add_argument("--bare", action="store_true", help="also the static program, in a root without a C library")
    parser.add_argument("--install", action="store_true", help="install Debian packages that the test needs")
    arguments = parser.parse_args()
    if bool(arguments.binary) == bool(arguments.packages):
        parser.error("give either --binary or --packages")
    if arguments.install:
        pairs = [f"{program}={package}" for program, package in PACKAGES.items()]
        subprocess.run((ROOT / "tools/need.sh", *pairs), stdin=subprocess.DEVNULL, check=False)
    results = Results()
    with tempfile.TemporaryDirectory(prefix="allocwall-dist-") as scratch:
        scratch = Path(scratch)
        folder = arguments.packages
        if arguments.binary:
            began = time.monotonic()
            folder = scratch / "packages"
            command = (ROOT / "tools/dist/pack.py", "--quick", "--program", arguments.binary.resolve(), folder)
            if subprocess.run(command, stdin=subprocess.DEVNULL).returncode != 0:
                print("failed: dist.pack: the program was not packed")
                print("0 passed, 1 failed, 0 skipped")
                return 1
            print(f"packed: {time.monotonic() - began:.1f} s", flush=True)
        suites = arguments.suite
        if not suites and shutil.which("mmdebstrap"):
            try:
                suites = [own_sources()[0]]
            except Unavailable as error:
                results.skip("roots", f"no mirror of Debian: {error}")
        elif not suites:
            results.skip("roots", "mmdebstrap is not installed")
        test(Packages(folder), suites or [], arguments.bare, scratch, results)
    counts = results.counts
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
