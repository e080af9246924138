"""The root file system of the emulated machine: busybox, the C library, util-linux's namespace tools and allocwall. One of another
architecture than this machine's has no namespace tools."""

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
    return {path.lstrip("/"): Path(path) for path in re.findall(r"(/\S+) \(0x", output)}


def cross_libraries(program, folder):
    """The same for a program of another architecture, whose libraries are in `folder`."""
    found, waiting = {}, [program]
    while waiting:
        output = subprocess.run(["readelf", "-dW", waiting.pop()], capture_output=True, text=True, check=True).stdout
        for name in re.findall(r"\(NEEDED\)[^[]*\[([^]/]+)\]", output):
            if not (folder / name).is_file():
                raise Unavailable(f"{program} lacks a library: {name} is not in {folder}")
            if f"lib/{name}" not in found:
                found[f"lib/{name}"] = folder / name
                waiting.append(folder / name)
    return found


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


def strip(binary, target, tool="strip"):
    """Strips the binary as a package would: a small file unpacks faster on the emulated machine."""
    subprocess.run([tool, "--strip-debug", "-o", target, binary], check=True)


def of_this_machine(binary):
    """The files of the programs, by their paths on the emulated machine."""
    files = {"bin/allocwall": binary}
    for program in ("busybox", *PROGRAMS):
        found = shutil.which(program)
        if found is None:
            raise Unavailable(f"no {program}")
        files[f"bin/{program}"] = Path(found)
    for program in list(files.values()):
        files.update(libraries(program))
    return files


def of_another(binary, busybox, folder):
    """The same for another architecture. `folder`: the C library of its cross compiler."""
    return {"bin/allocwall": binary, "bin/busybox": busybox, **cross_libraries(binary, folder)}


def build(files, plan, guest, target):
    """Writes the initramfs to `target`. `files`: the programs and their libraries."""
    busybox = shutil.which("busybox")
    if busybox is None:
        raise Unavailable("no busybox")
    files = {**files, "bin/guest.sh": guest}
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
