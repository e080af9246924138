#!/usr/bin/env python3
"""Builds two CPythons for `allocwall bench obmalloc --python STOCK --rebuilt REBUILT`: rebuild_python.py [OPTION...] FOLDER

Both come from the distribution's source package, without the distribution's patches, with one compiler and the same options, and without
profile-guided optimization, whose profile would differ. They differ in their arenas alone: those of `rebuilt` have 2 MiB and come from
reserved huge pages (MAP_HUGETLB), with plain pages where none is free, as published. The source has an option for this since 3.15; from
3.10 on it is patched here.

Needs Debian or Ubuntu with source packages (deb-src), 4 GB in FOLDER, and some 15 minutes on two CPUs. Everything is in FOLDER, and
no root is needed. --dry-run prints the commands and what is missing here, and changes nothing. The exit status is 1, and one line says
why (`error: KIND: ...`), if something is missing or fails.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

#: Programs, and the Debian packages that contain them. dpkg-source calls tar and xz.
TOOLS = {"dpkg-source": "dpkg-dev", "tar": "tar", "xz": "xz-utils", "cc": "gcc", "make": "make"}
#: Headers, and their packages. Without zlib the interpreter cannot install a wheel.
HEADERS = {"stdlib.h": "libc6-dev", "zlib.h": "zlib1g-dev"}
NEEDED_BYTES = 4 << 30
BUILDS = ("stock", "rebuilt")
ARENA_BYTES = {"stock": 1 << 20, "rebuilt": 2 << 20}
OPTION = "--with-pymalloc-hugepages"
#: arena_pressure has 700 MB of them.
RESERVED_PAGES = 400


class Refused(Exception):
    """Why it cannot go on. `kind`: missing_tool, no_deb_src, no_source, not_empty, no_room, unknown_source, failed, not_rebuilt."""

    def __init__(self, kind, text):
        super().__init__("%s: %s" % (kind, text))
        self.kind = kind


# ---- the source ----

ARENA_BITS = re.compile(r"^(#define ARENA_BITS\s+)20\b[^\n]*$", re.MULTILINE)
ARENA_MAP = re.compile(
    r"^( *)ptr = mmap\(NULL, size, PROT_READ\s*\|\s*PROT_WRITE,\s*MAP_PRIVATE\s*\|\s*MAP_ANONYMOUS, -1, 0\);$", re.MULTILINE
)
# Only arenas have this size; the interpreter maps its data stack here too. 21 << 26 is MAP_HUGE_2MB (mmap(2)).
HUGE_MAP = """\
{indent}ptr = MAP_FAILED;
{indent}if (size == ((size_t)2 << 20)) {{
{indent}    ptr = mmap(NULL, size, PROT_READ|PROT_WRITE,
{indent}               MAP_PRIVATE|MAP_ANONYMOUS|MAP_HUGETLB|(21 << 26), -1, 0);
{indent}}}
{indent}if (ptr == MAP_FAILED) {{
{plain}
{indent}}}"""


def with_huge_arenas(texts):
    """The texts of the files, by name, with the two changes. Each must fit exactly one place, else the source is unknown."""

    def huge(match):
        plain = "\n".join("    " + line for line in match[0].splitlines())
        return HUGE_MAP.format(indent=match[1], plain=plain)

    for what, pattern, by in (("the size of an arena", ARENA_BITS, r"\g<1>21"), ("the mmap of an arena", ARENA_MAP, huge)):
        places = sum(len(pattern.findall(text)) for text in texts.values())
        if places != 1:
            raise Refused("unknown_source", "%s is in %d places of %s, not in one" % (what, places, ", ".join(texts)))
        texts = {name: pattern.sub(by, text) for name, text in texts.items()}
    return texts


def patch(source):
    """Changes the source in place. Returns the option for configure; nothing is changed if the source has that option itself."""
    if OPTION in (source / "configure").read_text(errors="replace"):
        return [OPTION]
    # Until 3.11 the size is in the first file, from then on in the second.
    files = [source / "Objects/obmalloc.c", source / "Include/internal/pycore_obmalloc.h"]
    texts = {str(file): file.read_text(encoding="utf-8") for file in files if file.exists()}
    for name, text in with_huge_arenas(texts).items():
        Path(name).write_text(text, encoding="utf-8")
    return []


# ---- what is needed ----


def lacking(folder, which=shutil.which):
    """What is missing on this machine, as refusals."""
    found = []
    if which("apt-get") is None:
        found.append(Refused("missing_tool", "no apt-get: this needs Debian or Ubuntu"))
    missing = {package: name for name, package in TOOLS.items() if which(name) is None}
    if which("cc"):
        for header, package in HEADERS.items():
            code = "#include <%s>\n" % header
            if subprocess.run(["cc", "-E", "-x", "c", "-"], input=code.encode(), capture_output=True).returncode != 0:
                missing[package] = header
    if missing:
        text = "no %s: apt-get install %s" % (", ".join(missing.values()), " ".join(missing))
        found.append(Refused("missing_tool", text))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        found.append(Refused("not_empty", "%s: give an empty folder or a new one" % folder))
    above = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(above).free
    if free < NEEDED_BYTES:
        text = "%s has %d MB free, and %d are needed" % (above, free >> 20, NEEDED_BYTES >> 20)
        found.append(Refused("no_room", text))
    return found


def source_refusal(package, error):
    """The refusal for what apt-get said, which names deb-src if no source packages are configured."""
    if "deb-src" in error:
        text = "apt knows no source packages: add deb-src lines, or deb-src to Types, in /etc/apt/sources.list*, then: apt-get update"
        return Refused("no_deb_src", text)
    last = error.strip().splitlines()[-1:] or ["apt-get failed"]
    return Refused("no_source", "%s: %s" % (package, last[0]))


def no_source(package):
    """None if apt has the source package. It only reads apt's lists."""
    command = ["apt-get", "--print-uris", "source", package]
    try:
        run = output_of(command)
    except FileNotFoundError:
        # `lacking` names it.
        return None
    return source_refusal(package, run.stderr) if run.returncode != 0 else None


def output_of(command):
    return subprocess.run(
        command, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace"
    )


def environment():
    """Settings of the caller's own Python would reach the new ones."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**kept, "LC_ALL": "C"}


# ---- building ----


class Builder:
    def __init__(self, folder, version, jobs, dry_run):
        self.folder = folder
        self.version = version
        self.jobs = jobs
        self.dry_run = dry_run

    def interpreter(self, build):
        return self.folder / build / "bin" / ("python" + self.version)

    def run(self, command, directory):
        """Runs a command to its end. Its output goes to FOLDER/log."""
        command = [str(word) for word in command]
        print("(cd %s && %s)" % (shlex.quote(str(directory)), " ".join(map(shlex.quote, command))), flush=True)
        if self.dry_run:
            return
        directory.mkdir(parents=True, exist_ok=True)
        log = self.folder / "log"
        with open(log, "ab") as out:
            start = out.tell()
            run = subprocess.run(
                command, cwd=directory, env=environment(), stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
            )
        if run.returncode != 0:
            with open(log, "rb") as said:
                said.seek(max(start, log.stat().st_size - 4096))
                last = said.read().decode(errors="replace").strip().splitlines()[-1:] or ["no output"]
            raise Refused("failed", "%s ended with %d: %s (all output: %s)" % (command[0], run.returncode, last[0], log))

    def fetch(self):
        """Downloads the source, and unpacks it for each build. apt-get checks the signature of its list, dpkg-source its checksums."""
        source = self.folder / "source"
        package = "python" + self.version
        self.run(["apt-get", "source", "--download-only", package], source)
        described = [source / (package + "_VERSION.dsc")] if self.dry_run else list(source.glob("*.dsc"))
        if len(described) != 1:
            raise Refused("no_source", "%d source packages in %s" % (len(described), source))
        for build in BUILDS:
            # The patches would change configure.ac and not configure.
            self.run(["dpkg-source", "--skip-patches", "-x", described[0], source / build], source)

    def build(self, build):
        source = self.folder / "source" / build
        options = []
        if build == "rebuilt":
            print("patch %s: arenas of 2 MiB, MAP_HUGETLB (or %s, if its configure has that)" % (source, OPTION), flush=True)
            options = [] if self.dry_run else patch(source)
        directory = self.folder / "build" / build
        prefix = "--prefix=%s" % (self.folder / build)
        self.run([source / "configure", prefix, "--with-ensurepip=no", *options], directory)
        self.run(["make", "-j%d" % self.jobs], directory)
        self.run(["make", "altinstall"], directory)

    def prove(self, build):
        """Asks the interpreter for the size of its arenas (Objects/obmalloc.c, _PyObject_DebugMallocStats)."""
        command = [str(self.interpreter(build)), "-c", "import sys; sys._debugmallocstats()"]
        print(" ".join(map(shlex.quote, command)), flush=True)
        if not self.dry_run:
            check_arenas(build, output_of(command).stderr)

    def install(self, wheel):
        """The allocwall package for the stock interpreter, without the network."""
        python = self.interpreter("stock")
        self.run([python, "-m", "ensurepip"], self.folder)
        self.run([python, "-m", "pip", "install", "--no-index", "--no-deps", wheel], self.folder)


def check_arenas(build, stats):
    """Refuses an interpreter whose arenas do not have the size that they should."""
    found = re.search(r"arenas \* (\d+) bytes/arena", stats)
    if not found or int(found[1]) != ARENA_BYTES[build]:
        size = found[1] + " bytes" if found else "an unknown size"
        raise Refused("not_rebuilt", "arenas of %s have %s, not %d bytes" % (build, size, ARENA_BYTES[build]))


def build_both(builder, wheel):
    builder.fetch()
    for build in BUILDS:
        builder.build(build)
        builder.prove(build)
    if wheel:
        builder.install(wheel)


def next_steps(builder, wheel):
    stock, rebuilt = map(builder.interpreter, BUILDS)
    lines = ["", "Next:"]
    if not wheel:
        lines.append("  %s -m ensurepip && %s -m pip install WHEEL     # make wheel builds it" % (stock, stock))
    lines.append("  sudo sysctl vm.nr_hugepages=%d     # only for rebuilt; 0 gives the memory back" % RESERVED_PAGES)
    lines.append("  allocwall bench obmalloc --python %s --rebuilt %s --arms thp" % (stock, rebuilt))
    return "\n".join(lines)


def parsed(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="a new or empty folder")
    own = "3.%d" % sys.version_info[1]
    parser.add_argument("--version", metavar="3.N", default=own, help="version of the source package [%(default)s]")
    parser.add_argument("--jobs", metavar="N", type=int, default=os.cpu_count() or 1, help="processes of make [%(default)s]")
    parser.add_argument("--wheel", metavar="FILE", type=Path, help="the allocwall package, to install it in the stock interpreter")
    parser.add_argument("--dry-run", action="store_true", help="print the commands and what is missing; change nothing")
    options = parser.parse_args(arguments)
    if not re.fullmatch(r"3\.\d+", options.version) or int(options.version[2:]) < 10:
        parser.error("--version: 3.10 or later, not %s" % options.version)
    if options.jobs < 1:
        parser.error("--jobs: 1 or more")
    if options.wheel and not options.wheel.is_file():
        parser.error("--wheel: no file %s" % options.wheel)
    return options


def main(arguments):
    options = parsed(arguments)
    builder = Builder(options.folder.absolute(), options.version, options.jobs, options.dry_run)
    wheel = options.wheel.absolute() if options.wheel else None
    try:
        missing = lacking(builder.folder)
        missing += filter(None, [no_source("python" + options.version)])
        if missing and not options.dry_run:
            raise missing[0]
        if not options.dry_run:
            builder.folder.mkdir(parents=True, exist_ok=True)
        build_both(builder, wheel)
    except (Refused, OSError) as error:
        print("error: %s" % error, file=sys.stderr)
        return 1
    print(next_steps(builder, wheel))
    for refused in missing:
        print("missing here: %s" % refused, file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
