#!/usr/bin/env python3
"""Packs a program that is built already: tarball, Debian package, wheel, bill of materials, checksums.

    tools/dist/pack.py --program FILE [--static FILE] [--sbom FILE] [--zig FILE] OUT

`--program` is linked with glibc, `--static` is the static program for any Linux. The manual pages and the shell completions come from
the program itself. All times in the packages are that of the last commit (SOURCE_DATE_EPOCH), so that the same input gives the same bytes.
"""

import argparse
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOST_BYTES = 20_000_000
DOCUMENTS = ("LICENSE-APACHE", "LICENSE-MIT", "NOTICE", "CHANGELOG.md", "README.md")
# The pages, and the services that the tutorial mends.
FOLDERS = ("docs", "examples")
# The file of each shell's completions in the tarball, and its folder below /usr in the Debian package.
COMPLETIONS = {
    "bash": ("allocwall.bash", "share/bash-completion/completions/allocwall"),
    "zsh": ("_allocwall", "share/zsh/vendor-completions/_allocwall"),
    "fish": ("allocwall.fish", "share/fish/vendor_completions.d/allocwall.fish"),
}
# Debian's package of each library that a program may need, beside the C library's own.
LIBRARIES = {"libgcc_s.so.1": "libgcc-s1"}
OF_GLIBC = re.compile(r"(libc|libm|libdl|libpthread|librt|libutil|ld-linux.*)\.so\.\d+")
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
MAINTAINER = "The allocwall authors <maintainers@allocwall.invalid>"
CONTROL = """\
Package: allocwall
Version: {version}
Architecture: {architecture}
Maintainer: {maintainer}
Installed-Size: {kilobytes}
Depends: {depends}
Suggests: libjemalloc2
Section: utils
Priority: optional
Description: tells whether memory allocation slows a Linux program down
 Diagnoses a running process: where its CPU time goes, which bottleneck of
 memory allocation ("wall") it has, which ones it does not have, and what to
 change. Trials test such a change on the program itself.
"""
CHANGES = """\
allocwall ({version}) unstable; urgency=medium

  * CHANGELOG.md.gz, in this folder, has the changes.

 -- {maintainer}  {date}
"""
# https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
COPYRIGHT = """\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: allocwall
Comment: The program contains libraries of others. Their licences are in NOTICE.gz
 and LICENCES-OF-DEPENDENCIES.gz, in this folder.

Files: *
Copyright: 2026 The allocwall authors
License: Apache-2.0 or Expat

License: Apache-2.0
 On Debian systems, the text is in /usr/share/common-licenses/Apache-2.0.

License: Expat
{mit}
"""


class Refused(Exception):
    """A package would not be what it says."""


@dataclass
class Program:
    """A stripped program, and what it says about itself."""

    path: Path
    version: str
    architecture: str
    manual: dict
    completions: dict

    def read(self):
        return self.path.read_bytes()


def said(*command, **more):
    return subprocess.run(command, stdin=subprocess.DEVNULL, check=True, capture_output=True, text=True, **more).stdout


def elf_of(path):
    """The names of the libraries that a program needs, and its architecture."""
    machine = re.search(r"Machine:\s+(.*)", said("readelf", "--wide", "--file-header", path))[1]
    architecture = {"Advanced Micro Devices X86-64": "x86_64", "AArch64": "aarch64"}.get(machine)
    if not architecture:
        raise Refused(f"{path}: built for {machine}")
    return re.findall(r"\(NEEDED\).*\[(.*)\]", said("readelf", "--wide", "--dynamic", path)), architecture


def depends(needed, content):
    """The value of Depends: libraries by their packages, glibc by the newest version that the program or a library in it asks for."""
    packages = []
    for name in needed:
        if not OF_GLIBC.fullmatch(name):
            if name not in LIBRARIES:
                raise Refused(f"needs {name}, and no package is known for it")
            packages.append(LIBRARIES[name])
    return ", ".join([f"libc6 (>= 2.{glibc_minor(content)})", *sorted(packages)])


def glibc_minor(content):
    """The names of symbol versions are in the string tables (ELF's .dynstr), also in those of embedded libraries."""
    return max(int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)[.\d]*\0", content))


def strip(source, folder):
    """As in the wheel (crates/allocwall-py/backend.py)."""
    folder.mkdir()
    path = folder / "allocwall"
    subprocess.run(("strip", "-o", path, source), check=True, stdin=subprocess.DEVNULL)
    return path


def manual(path, folder):
    """The manual pages by file name."""
    subprocess.run((path, "man", "--to", folder), check=True, stdin=subprocess.DEVNULL)
    return {page.name: page.read_bytes() for page in sorted(folder.iterdir())}


def program(source, folder, limit):
    path = strip(source, folder)
    if limit and path.stat().st_size > MOST_BYTES:
        raise Refused(f"{source} has {path.stat().st_size} bytes when it is stripped, more than {MOST_BYTES}")
    return Program(
        path=path,
        version=said(path, "--version").split()[-1],
        architecture=elf_of(path)[1],
        manual=manual(path, folder / "manual"),
        completions={shell: said(path, "completions", shell).encode() for shell in COMPLETIONS},
    )


def folders():
    """The files of FOLDERS by their path, with their modes."""
    paths = said("git", "ls-files", *FOLDERS, cwd=ROOT).splitlines()
    return {path: ((ROOT / path).read_bytes(), 0o755 if os.access(ROOT / path, os.X_OK) else 0o644) for path in paths}


def tarball(of, libc, licences, epoch, out, quick):
    name = f"allocwall-{of.version}-{of.architecture}-linux-{libc}"
    files = {"allocwall": (of.read(), 0o755)}
    files |= {f"man/{page}": (text, 0o644) for page, text in of.manual.items()}
    files |= {f"completions/{COMPLETIONS[shell][0]}": (text, 0o644) for shell, text in of.completions.items()}
    files |= {document: ((ROOT / document).read_bytes(), 0o644) for document in DOCUMENTS} | folders()
    files["LICENCES-OF-DEPENDENCIES"] = (licences, 0o644)
    path = out / f"{name}.tar.gz"
    with open(path, "wb") as raw, gzip.GzipFile("", "wb", 1 if quick else 9, raw, epoch) as packed, tarfile.open(mode="w", fileobj=packed) as archive:
        for file, (content, mode) in sorted(files.items()):
            entry = tarfile.TarInfo(f"{name}/{file}")
            entry.size, entry.mode, entry.mtime = len(content), mode, epoch
            entry.uname = entry.gname = "root"
            with tempfile.TemporaryFile() as source:
                source.write(content)
                source.seek(0)
                archive.addfile(entry, source)
    return path


def compressed(content):
    return gzip.compress(content, 9, mtime=0)


def deb(of, licences, epoch, out, quick):
    architecture = ARCHITECTURES[of.architecture]
    documents = "usr/share/doc/allocwall"
    mit = "\n".join(f" {line}" if line else " ." for line in (ROOT / "LICENSE-MIT").read_text().strip().splitlines())
    changes = CHANGES.format(version=of.version, maintainer=MAINTAINER, date=formatdate(epoch))
    files = {
        "usr/bin/allocwall": (of.read(), 0o755),
        f"{documents}/copyright": (COPYRIGHT.format(mit=mit).encode(), 0o644),
        f"{documents}/changelog.gz": (compressed(changes.encode()), 0o644),
        f"{documents}/LICENCES-OF-DEPENDENCIES.gz": (compressed(licences), 0o644),
    }
    for document in ("NOTICE", "CHANGELOG.md"):
        files[f"{documents}/{document}.gz"] = (compressed((ROOT / document).read_bytes()), 0o644)
    # Not below usr/share/doc, which images of containers leave out.
    files |= {f"usr/share/allocwall/{path}": content for path, content in folders().items()}
    files |= {f"usr/share/man/man1/{page}.gz": (compressed(text), 0o644) for page, text in of.manual.items()}
    files |= {f"usr/{COMPLETIONS[shell][1]}": (text, 0o644) for shell, text in of.completions.items()}
    control = CONTROL.format(
        version=of.version,
        maintainer=MAINTAINER,
        architecture=architecture,
        kilobytes=sum(len(content) + 1023 >> 10 for content, _ in files.values()),
        depends=depends(elf_of(of.path)[0], of.read()),
    )
    sums = "".join(f"{hashlib.md5(content).hexdigest()}  {name}\n" for name, (content, _) in sorted(files.items()))
    files |= {"DEBIAN/control": (control.encode(), 0o644), "DEBIAN/md5sums": (sums.encode(), 0o644)}
    path = out / f"allocwall_{of.version}_{architecture}.deb"
    with tempfile.TemporaryDirectory() as folder:
        for name, (content, mode) in files.items():
            file = Path(folder, name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
            file.chmod(mode)
        for directory in (Path(folder), *(item for item in Path(folder).rglob("*") if item.is_dir())):
            directory.chmod(0o755)
        # dpkg of Debian 11 reads xz, but not zstd.
        command = ("dpkg-deb", "--root-owner-group", "-Zxz", f"-z{0 if quick else 9}", "--build", folder, path)
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr, env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch)})
    return path


def wheel(source, content, zig, out, quick):
    """The wheel with this program in it. `quick`: the one of an earlier `make wheel`, if its program is the same."""

    def made():
        for path in sorted((ROOT / "target" / "wheels").glob("*.whl")):
            with zipfile.ZipFile(path) as archive:
                names = [name for name in archive.namelist() if name.endswith(".data/scripts/allocwall")]
                if names and archive.read(names[0]) == content:
                    return path
        return None

    if not (quick and made()):
        command = ("make", "--no-print-directory", "wheel", f"PROGRAM={source}", *([f"ZIG={zig}"] if zig else []))
        subprocess.run(command, cwd=ROOT, check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    if not (path := made()):
        raise Refused("the wheel does not contain the program")
    return Path(shutil.copy(path, out))


def pack(arguments, scratch):
    out = arguments.out
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or said("git", "log", "-1", "--format=%ct", cwd=ROOT))
    licences = said("python3", ROOT / "tools/notices.py", "--texts").encode()
    of = program(arguments.program, scratch / "glibc", not arguments.quick)
    made = [
        tarball(of, "gnu", licences, epoch, out, arguments.quick),
        deb(of, licences, epoch, out, arguments.quick),
        wheel(arguments.program, of.read(), arguments.zig, out, arguments.quick),
    ]
    if arguments.static:
        static = program(arguments.static, scratch / "static", not arguments.quick)
        if needed := elf_of(static.path)[0]:
            raise Refused(f"{arguments.static} is not static: it needs {', '.join(needed)}")
        made.append(tarball(static, "musl", licences, epoch, out, arguments.quick))
    if arguments.sbom:
        made.append(Path(shutil.copy(arguments.sbom, out / f"allocwall-{of.version}.cdx.json")))
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(made))
    (out / "SHA256SUMS").write_text(sums)
    for path in sorted(made):
        print(f"{path.stat().st_size / 1e6:6.1f} MB  {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", type=Path, required=True, help="the program, linked with glibc")
    parser.add_argument("--static", type=Path, help="the static program")
    parser.add_argument("--sbom", type=Path, help="a bill of materials to put beside the packages")
    parser.add_argument("--zig", type=Path, help="the zig with which the wheel's extension is built for an old glibc")
    parser.add_argument("--quick", action="store_true", help="for tests: any size, less compression")
    parser.add_argument("out", type=Path, help="the folder of the packages; what it contains is removed")
    arguments = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as scratch:
            pack(arguments, Path(scratch))
    except (Refused, subprocess.CalledProcessError) as error:
        print(f"error: {error}\n{getattr(error, 'stderr', None) or ''}".rstrip(), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
