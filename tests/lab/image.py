"""The root file system of the emulated machine: busybox, the C library, util-linux's namespace tools and allocwall."""

import re
import shutil
import stat
import subprocess
from pathlib import Path

# Programs in addition to busybox. Its own ones cannot make time namespaces, and need a password file to change the user.
PROGRAMS = ("unshare", "setpriv")
FOLDERS = ("bin", "dev", "etc", "jail", "lib", "lib64", "out", "proc", "root", "sys", "tmp", "home", "home/user")


class Unavailable(Exception):
    """This machine lacks something to build the image; the text names it."""


def libraries(program):
    """Shared libraries of a program, by the paths that the loader searches, and the loader itself."""
    output = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
    if "not found" in output:
        raise Unavailable(f"{program} lacks a library: {output.strip()}")
    return re.findall(r"(/\S+) \(0x", output)


def archive(entries):
    """The entries (path, mode, content) as a cpio archive (the kernel's Documentation/driver-api/early-userspace)."""
    out = bytearray()
    for number, (path, mode, content) in enumerate([*entries, ("TRAILER!!!", 0, b"")], 1):
        name = path.encode() + b"\0"
        owner = 1000 if path.startswith("home/user") else 0
        fields = (number, mode, owner, owner, 1, 0, len(content), 0, 0, 0, 0, len(name), 0)
        out += b"070701" + b"".join(b"%08x" % field for field in fields) + name
        out += bytes(-len(out) % 4) + content
        out += bytes(-len(out) % 4)
    return bytes(out)


def strip(binary, target):
    """Strips the binary as a package would: a small file unpacks faster on the emulated machine."""
    subprocess.run(["strip", "--strip-debug", "-o", target, binary], check=True)


def build(binary, plan, guest, target):
    """Writes the initramfs to `target`."""
    busybox = shutil.which("busybox")
    if busybox is None:
        raise Unavailable("no busybox")
    files = {"bin/busybox": Path(busybox), "bin/allocwall": binary, "bin/guest.sh": guest}
    for program in PROGRAMS:
        found = shutil.which(program)
        if found is None:
            raise Unavailable(f"no {program}")
        files[f"bin/{program}"] = Path(found)
    for program in list(files.values()):
        if program != guest and b"\x7fELF" == program.read_bytes()[:4]:
            for library in libraries(program):
                files.setdefault(library.lstrip("/"), Path(library))
    folders = {*FOLDERS, *(str(parent) for path in files for parent in Path(path).parents if str(parent) != ".")}
    entries = [(folder, stat.S_IFDIR | (0o1777 if folder in ("tmp", "out") else 0o755), b"") for folder in sorted(folders)]
    entries += [(path, stat.S_IFREG | 0o755, source.read_bytes()) for path, source in files.items()]
    applets = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
    entries += [(f"bin/{name}", stat.S_IFLNK | 0o777, b"busybox") for name in applets if f"bin/{name}" not in files]
    entries += [
        ("init", stat.S_IFLNK | 0o777, b"bin/guest.sh"),
        ("plan", stat.S_IFREG | 0o644, plan.encode()),
        ("etc/passwd", stat.S_IFREG | 0o644, b"root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n"),
    ]
    target.write_bytes(archive(entries))
