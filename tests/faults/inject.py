"""Runs a program under ptrace(2) and makes one of its system calls fail, or kills a process at one of them.

strace cannot do this: it counts calls separately for each thread, and it cannot distinguish the tool's helpers from the command that the
tool starts. Here a call is identified by its site: the role of the process, the name of the call, and its file or descriptor. Only the
tool's own processes are traced; a process that starts another program is detached.
"""

import ctypes
import errno
import os
import re
import signal
import struct
import sys
import time

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.ptrace.restype = ctypes.c_long
LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]

# include/uapi/linux/ptrace.h
TRACEME, PEEKDATA, POKEUSER, CONT, DETACH, SYSCALL = 0, 2, 6, 7, 17, 24
SETOPTIONS, GETEVENTMSG, GET_SYSCALL_INFO = 0x4200, 0x4201, 0x420E
OPTIONS = 0x1 | 0x2 | 0x4 | 0x8 | 0x10 | 0x100000  # SYSGOOD, FORK, VFORK, CLONE, EXEC, EXITKILL
EVENT_EXEC, EVENT_STOP = 4, 128
WALL = 0x40000000
# struct user of x86-64: offsets of the registers that hold the result, the first argument and the call's number
RAX, RDI, ORIG_RAX = 80, 112, 120
ENTRY, EXIT = 1, 2
AT_FDCWD = -100 & 0xFFFFFFFF

# The object of a call: a path (with the number of its argument), or a descriptor in the first argument.
PATHS = {
    "open": 0, "openat": 1, "newfstatat": 1, "statx": 1, "stat": 0, "lstat": 0, "access": 0, "faccessat": 1, "faccessat2": 1,
    "readlink": 0, "readlinkat": 1, "mkdir": 0, "mkdirat": 1, "unlink": 0, "unlinkat": 1, "rmdir": 0, "rename": 0, "renameat": 1,
    "renameat2": 1, "chmod": 0, "fchmodat": 1, "execve": 0, "chdir": 0, "inotify_add_watch": 1, "linkat": 1, "symlink": 0,
}
DESCRIPTORS = set(
    "read write pread64 pwrite64 readv writev fstat close lseek ioctl fcntl getdents64 mmap ftruncate fallocate fsync fdatasync flock "
    "connect bind listen accept4 sendto recvfrom sendmsg recvmsg shutdown getsockname getpeername setsockopt getsockopt epoll_ctl "
    "epoll_wait epoll_pwait timerfd_settime fchmod fchown fadvise64 copy_file_range statfs fstatfs splice sendfile".split()
)
PLAIN = set("ioctl fcntl prctl futex kill tgkill prlimit64 madvise".split())


def syscalls():
    """Names by number, from the kernel's header."""
    for folder in ("/usr/include/x86_64-linux-gnu/asm", "/usr/include/asm"):
        try:
            with open(f"{folder}/unistd_64.h") as header:
                found = re.findall(r"#define __NR_(\w+)\s+(\d+)", header.read())
                return {int(number): name for name, number in found}
        except FileNotFoundError:
            continue
    return None


def ptrace(request, pid, address=0, data=0):
    ctypes.set_errno(0)
    result = LIBC.ptrace(request, pid, address, data)
    if result == -1 and ctypes.get_errno():
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def normal(text):
    """Replaces parts that differ from run to run: numbers, and the names of temporary files (crate tempfile, mkdtemp, own)."""
    text = re.sub(r"(allocwall-[a-z-]*\.?)[A-Za-z0-9]{6,10}\b", r"\1X", text)
    text = re.sub(r"\.tmp[A-Za-z0-9]{6}\b", ".tmpX", text)
    text = re.sub(r"[0-9a-f]{8,}", "H", text)
    return re.sub(r"\d+", "N", text)


class Fault:
    """A fault at the `when`-th call of a site: an errno, or a process to kill (`self`, `target`)."""

    def __init__(self, site, when, what):
        self.site, self.when, self.what = site, when, what

    def __str__(self):
        return f"{self.what} at {' '.join(self.site)}, call {self.when}"


class Tracer:
    """One run. `is_own(argv)` returns the role of a started program if it is the tool's own, else None."""

    def __init__(self, names, is_own, root, fault=None, vanish=None, deadline_s=120):
        self.names, self.is_own, self.root, self.fault, self.vanish = names, is_own, root, fault, vanish
        self.deadline_s = deadline_s
        self.sites = {}
        self.injected = False
        # `roles`: the role of each process. `ready`: processes that have finished the start of the loader and the Rust runtime.
        self.roles = {}
        self.ready = set()
        # What to write to which register at the end of a thread's call.
        self.pending = {}
        self.groups = {}
        self.fresh = set()
        self.starting = set()

    def run(self, argv, env, stdin, stdout, stderr, cwd):
        """Runs the program; returns the wait status of its first process."""
        pid = os.fork()
        if pid == 0:
            try:
                os.setsid()
                os.chdir(cwd)
                for fd, to in ((stdin, 0), (stdout, 1), (stderr, 2)):
                    os.dup2(fd, to)
                os.closerange(3, 256)
                LIBC.ptrace(TRACEME, 0, None, None)
                os.kill(os.getpid(), signal.SIGSTOP)
                os.execve(argv[0], argv, env)
            finally:
                os._exit(126)
        os.waitpid(pid, WALL)
        ptrace(SETOPTIONS, pid, 0, OPTIONS)
        self.groups[pid] = pid
        self.first = pid
        ptrace(SYSCALL, pid)
        end = time.monotonic() + self.deadline_s
        first_status = None
        self.late = False

        def end_if_late(*_):
            if time.monotonic() > end:
                self.late = True
                for group in set(self.groups.values()):
                    kill(group)

        # Python calls waitpid again after a signal, so the handler itself must end processes that hang.
        signal.signal(signal.SIGALRM, end_if_late)
        signal.setitimer(signal.ITIMER_REAL, 0.5, 0.5)
        try:
            while self.groups:
                try:
                    tid, status = os.waitpid(-1, WALL)
                except ChildProcessError:
                    break
                if not os.WIFSTOPPED(status):
                    self.groups.pop(tid, None)
                    self.pending.pop(tid, None)
                    if tid == pid:
                        first_status = status
                    continue
                try:
                    self.stopped(tid, status)
                except ProcessLookupError:
                    pass
                except OSError as error:
                    if error.errno not in (errno.ESRCH, errno.EIO):
                        raise
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        return first_status

    def stopped(self, tid, status):
        sig, event = os.WSTOPSIG(status), status >> 16
        if tid not in self.groups:
            self.newcomer(tid)
        if event == EVENT_EXEC:
            # A thread that calls exec gets the thread id of its leader.
            self.groups[tid] = tid
            self.ready.discard(tid)
            self.pending.pop(tid, None)
            role = self.is_own(words(f"/proc/{tid}/cmdline"))
            if role is None:
                self.groups.pop(tid)
                ptrace(DETACH, tid)
                return
            self.roles[tid] = role
            return self.go_on(tid)
        if event:
            return self.go_on(tid)
        if sig == signal.SIGTRAP | 0x80:
            if not self.call(tid):
                return
            return self.go_on(tid)
        # The first SIGSTOP of a new child comes from ptrace; do not deliver it.
        quiet = sig == signal.SIGSTOP and tid in self.fresh
        self.fresh.discard(tid)
        self.go_on(tid, 0 if quiet else sig)

    def go_on(self, tid, sig=0):
        """Continues a thread: to its next call, or, as soon as the fault has been injected, without stops at calls."""
        ptrace(CONT if self.injected and tid not in self.pending else SYSCALL, tid, 0, sig)

    def newcomer(self, tid):
        """A new thread or child. A child has its parent's role until it starts another program."""
        fields = dict(line.split(":\t", 1) for line in lines(f"/proc/{tid}/status") if ":\t" in line)
        group, parent = int(fields.get("Tgid", tid)), int(fields.get("PPid", 0))
        self.groups[tid] = group
        self.fresh.add(tid)
        if group not in self.roles:
            self.roles[group] = self.roles.get(parent, "tool").removesuffix("'s child") + "'s child"
            if parent in self.ready:
                self.ready.add(group)

    def call(self, tid):
        """Handles the entry or exit of a system call. Returns False if the thread no longer exists."""
        info = (ctypes.c_char * 88)()
        LIBC.ptrace(GET_SYSCALL_INFO, tid, ctypes.c_void_p(88), ctypes.byref(info))
        raw = bytes(info)
        op = raw[0]
        group = self.groups[tid]
        if op == EXIT:
            register, value = self.pending.pop(tid, (None, 0))
            if register is not None:
                ptrace(POKEUSER, tid, register, ctypes.c_void_p(value & 0xFFFFFFFFFFFFFFFF))
            return True
        if op != ENTRY:
            return True
        number, *args = struct.unpack_from("<7Q", raw, 24)
        name = self.names.get(number, str(number))
        # Rust's start of a program or a thread ends when it sets an alternate signal stack, which it queries first. A fault before that
        # would hit the loader or the Rust runtime.
        if name == "sigaltstack":
            if args[0]:
                self.starting.discard(tid)
                if group in self.roles:
                    self.ready.add(group)
            else:
                self.starting.add(tid)
        if group not in self.ready or tid in self.starting:
            return True
        if name == "prlimit64" and not args[2]:
            # To read one's own limits cannot fail, and the tool reads no others.
            return True
        fault = self.fault
        if fault is not None and (self.injected or fault.site[1] != name):
            return True
        site = (self.roles[group], name, normal(self.detail(tid, name, args).replace(self.root, "ROOT")))
        self.sites[site] = self.sites.get(site, 0) + 1
        if fault is None or site != fault.site or self.sites[site] != fault.when:
            return True
        self.injected = True
        if fault.what == "kill self":
            os.kill(group, signal.SIGKILL)
            return False
        if fault.what == "kill target":
            self.vanish()
            return True
        if name == "brk":
            # It has no error: one that fails returns the present end, as one that asks for 0 does.
            ptrace(POKEUSER, tid, RDI, ctypes.c_void_p(0))
            self.pending[tid] = RDI, args[0]
            return True
        ptrace(POKEUSER, tid, ORIG_RAX, ctypes.c_void_p(0xFFFFFFFFFFFFFFFF))
        self.pending[tid] = RAX, -getattr(errno, fault.what)
        return True

    def detail(self, tid, name, args):
        if name in PATHS:
            return text_at(tid, args[PATHS[name]]) + (" create" if name == "openat" and args[2] & os.O_CREAT else "")
        detail = ""
        if name in DESCRIPTORS:
            fd = args[4] if name == "mmap" else args[0]
            if fd < 1 << 31:
                try:
                    detail = os.readlink(f"/proc/{tid}/fd/{fd}")
                except OSError:
                    detail = "no descriptor"
        if name in PLAIN:
            detail += f" {args[1] if name != 'prctl' else args[0]:#x}"
        return detail


def text_at(tid, address):
    """Reads a string in another process, at most 256 bytes."""
    try:
        with open(f"/proc/{tid}/mem", "rb", buffering=0) as memory:
            memory.seek(address)
            page_left = 4096 - address % 4096
            text = memory.read(min(256, page_left))
            if b"\0" not in text and page_left < 256:
                text += memory.read(256 - page_left)
    except (OSError, OverflowError, ValueError):
        return "?"
    return text.split(b"\0")[0].decode("utf-8", "replace")


def words(path):
    try:
        with open(path, "rb") as file:
            return [word.decode("utf-8", "replace") for word in file.read().split(b"\0")[:-1]]
    except OSError:
        return []


def lines(path):
    try:
        with open(path) as file:
            return file.read().splitlines()
    except OSError:
        return []


def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
