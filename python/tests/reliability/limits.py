#!/usr/bin/env python3
"""Behaviour when memory runs out: limits.py [--short] [reserved] [reserved_and_forks] [address_space] [cgroup] [cgroup_that_fits].

The checks of reserved pages set vm.nr_hugepages, and restore it afterwards.
"""

import contextlib
import fcntl
import os
import resource
import signal
import sys
from pathlib import Path

from harness import MIB, Skipped, ended, fresh, main, succeeded

POOL = Path("/sys/kernel/mm/hugepages/hugepages-2048kB")


@contextlib.contextmanager
def pool(pages):
    """Reserves this many pages, all free. The machine has one pool, so a lock keeps other runs of these checks out meanwhile."""
    count = POOL.joinpath("nr_hugepages")
    with count.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        before = held.read()
        try:
            try:
                count.write_text(str(pages))
            except OSError as error:
                raise Skipped("no pages can be reserved: %s" % error)
            if int(POOL.joinpath("free_hugepages").read_text()) != pages:
                raise Skipped("the kernel doesn't give %d free reserved pages" % pages)
            yield
        finally:
            with contextlib.suppress(OSError):
                count.write_text(before)


def fill(count):
    return [bytearray(b"%d" % i) * 20 for i in range(count)]


def intact(objects):
    return all(one == b"%d" % i * 20 for i, one in enumerate(objects))


def reserved(short):
    """The pool runs out at each slab in turn, with one process and with two that share it."""
    most = 3 if short else 16
    for pages in range(most + 1):
        with pool(pages):
            succeeded(fresh("limits", "_reserved", pages))
    with pool(most):
        assert succeeded(fresh("limits", "_shared", most)), "no answer"
    return "0 to %d pages: each used, then transparent ones, nothing died" % most


def _reserved(pages):
    from allocwall import hugepages

    try:
        hugepages.enable("hugetlb", fork_unsafe=True)
    except hugepages.Refused as refused:
        assert refused.reason == "reserved" and pages == 0, (pages, refused)
        assert "vm.nr_hugepages" in str(refused), refused
        return
    assert pages > 0
    for _ in range(2):
        objects = fill(250_000)
        status = hugepages.status()
        assert status["slabs"] > pages == status["slabs_reserved"], (pages, status)
        assert status["fallbacks"]["pool_exhausted"] >= status["slabs"] - pages, status
        assert status["huge_bytes"] >= pages * 2 * MIB, status
        assert intact(objects)
        del objects


def _shared(pages):
    """Two processes take pages from the pool in turns, until it is empty."""
    import subprocess

    from allocwall import hugepages

    hugepages.enable("hugetlb", fork_unsafe=True)
    half = fill(pages * 2 * MIB // 500)
    other = subprocess.run(
        [sys.executable, "-c", "import limits; from allocwall import hugepages\n"
         "hugepages.enable('hugetlb', fork_unsafe=True); o = limits.fill(250_000); assert limits.intact(o)\n"
         "print(hugepages.status()['slabs_reserved'])"],
        stdout=subprocess.PIPE, check=True,
    )
    mine = hugepages.status()["slabs_reserved"]
    more = fill(250_000)
    assert 0 < mine and mine + int(other.stdout) <= pages, (mine, other.stdout, pages)
    assert intact(half) and intact(more)
    print("shared")


def reserved_and_forks(short):
    """The reason for fork_unsafe: which process gets a SIGBUS, and that no process does if the pool has enough pages."""
    with pool(4):
        assert "asked" in succeeded(fresh("limits", "_unasked"))
        for writer in ("child", "parent"):
            # The pool has no page for a copy: the child gets a SIGBUS, never the parent.
            assert succeeded(fresh("limits", "_copy", writer, 200_000)).split() == ["SIGBUS"], writer
    with pool(40):
        for writer in ("child", "parent"):
            assert succeeded(fresh("limits", "_copy", writer, 100_000)).split() == ["0"], writer
    return "refused unless asked for; asked for, a child dies of SIGBUS when its copy finds no page, and its parent lives"


def _unasked():
    from allocwall import hugepages

    for mode in ("hugetlb", "thp"):
        try:
            hugepages.enable(mode)
        except hugepages.Refused as refused:
            assert (mode, refused.reason) == ("hugetlb", "fork"), refused
            print("asked")
    # With thp, shared memory is copied to any free pages.
    objects = fill(100_000)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if intact(objects) else 1)
    assert os.waitpid(pid, 0)[1] == 0 and intact(objects)


def _copy(writer, count):
    from allocwall import hugepages

    hugepages.enable("hugetlb", fork_unsafe=True)
    objects = fill(count)
    assert hugepages.status()["slabs_reserved"] > 0
    to_child, from_parent = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(to_child[0], 1)
        os._exit(0 if intact(objects) else 1)
    if writer == "parent":
        assert intact(objects)
    os.write(to_child[1], b"x")
    status = os.waitpid(pid, 0)[1]
    assert intact(objects)
    print(signal.Signals(status & 127).name if status & 127 else status >> 8)


def address_space(short):
    """RLIMIT_AS at every distance, set before and after the hook is installed: MemoryError, as with stock."""
    rooms = range(0, 24 * MIB + 1, (6 * MIB if short else MIB // 2))
    compared = 0
    for room in rooms:
        stock = fresh("limits", "_address_space", room, "stock")
        for when in ("before", "after"):
            ours = fresh("limits", "_address_space", room, when)
            # An interpreter with almost no memory may end in other ways.
            assert ours.returncode >= 0 or ours.returncode == stock.returncode, (room, when, ended(ours.returncode))
            if stock.returncode == 0:
                held, theirs = (int(run.stdout or -1) for run in (ours, stock))
                assert ours.returncode == 0, (room, when, ended(ours.returncode), ours.stderr[-500:])
                assert held >= 0.9 * theirs - 2 * MIB, (room, when, held, theirs)
                compared += 1
    return "%d distances, set before and after enable: never a crash; in %d of %d runs stock meets MemoryError, ours with as many objects" % (
        len(rooms), compared, 2 * len(rooms),
    )


def _address_space(room, when):
    from allocwall import hugepages

    hugepages.status()
    if when == "after":
        hugepages.enable()
    size = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
    objects = [None] * 200_000
    held = 0
    resource.setrlimit(resource.RLIMIT_AS, (size + room, resource.RLIM_INFINITY))
    try:
        if when == "before":
            try:
                hugepages.enable()
            except hugepages.Refused:
                pass
        while held < len(objects):
            objects[held] = bytearray(200)
            held += 1
    except MemoryError:
        pass
    objects = None
    # Memory that was freed can be allocated again.
    objects = [bytearray(200) for _ in range(held // 2)]
    os.write(1, b"%d" % (held * 256))


@contextlib.contextmanager
def limited(limit):
    """A memory cgroup with this limit in bytes, including swap. Yields a function that a child calls to enter it."""
    v2, own = False, "/"
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            v2, own = False, path
            break
        if number == "0":
            v2, own = True, path
    root = Path("/sys/fs/cgroup") if v2 else Path("/sys/fs/cgroup/memory")
    group = root / own.lstrip("/") / ("allocwall-test-%d" % os.getpid())
    try:
        group.mkdir()
    except OSError as error:
        raise Skipped("no cgroup can be made: %s" % error)
    try:
        names = ("memory.max", "memory.swap.max") if v2 else ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
        try:
            group.joinpath(names[0]).write_text(str(limit))
        except OSError as error:
            raise Skipped("no limit can be set: %s" % error)
        with contextlib.suppress(OSError):
            group.joinpath(names[1]).write_text("0" if v2 else str(limit))
        yield lambda: group.joinpath("cgroup.procs").write_text(str(os.getpid()))
    finally:
        group.rmdir()


def cgroup(short):
    """A heap that exceeds its cgroup's limit is killed, as with stock, and not earlier."""
    reached = {}
    with limited(96 * MIB) as enter:
        for how in ("stock", "thp"):
            run = fresh("limits", "_grow", how, before=enter)
            assert run.returncode == -signal.SIGKILL, (how, ended(run.returncode), run.stderr[-500:])
            reached[how] = int(run.stdout.split()[-1])
    assert reached["thp"] >= reached["stock"] - 6, reached
    return "killed at %(thp)d MiB of objects, stock at %(stock)d" % reached


def _grow(how):
    from allocwall import hugepages

    if how != "stock":
        hugepages.enable(how)
    heap = []
    for mib in range(4096):
        heap.append([bytearray(200) for _ in range(MIB // 272)])
        os.write(1, b"%d\n" % mib)


def cgroup_that_fits(short):
    """The twin: a heap that grows and shrinks below the limit, with other memory in its place in turns, works as with stock."""
    with limited(96 * MIB) as enter:
        for how in ("stock", "thp"):
            succeeded(fresh("limits", "_up_and_down", how, 5 if short else 40, before=enter))
    return "70 MiB of objects and 60 MiB of others in turns within 96 MiB: nothing killed"


def _up_and_down(how, times):
    from allocwall import hugepages

    if how != "stock":
        hugepages.enable(how)
    for _ in range(times):
        objects = fill(400_000)
        objects = None
        others = [bytes(MIB) for _ in range(60)]
        others = None
    if how != "stock":
        assert hugepages.status()["slabs_reused"] > 0, hugepages.status()


if __name__ == "__main__":
    sys.exit(main(reserved, reserved_and_forks, address_space, cgroup, cgroup_that_fits))
