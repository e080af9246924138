#!/usr/bin/env python3
"""Forks from threads that allocate, and the hook switched on and off: forks.py [--short] [storm] [cycles]."""

import os
import signal
import sys
import threading
from pathlib import Path

from harness import MIB, fresh, main, resident, succeeded

# Alive at once, of each of the two threads that fork.
ALIVE = 4


def storm(short):
    """Children of a process whose other threads are in the middle of allocating."""
    return succeeded(fresh("forks", "_storm", 100 if short else 2_000)).strip()


def _storm(children):
    from allocwall import hugepages

    hugepages.enable()
    sys.setswitchinterval(0.0005)
    stop = threading.Event()
    failures = []

    def churn(mark):
        while not stop.is_set():
            objects = [bytes([mark]) * (i % 500 + 1) for i in range(8_000)]
            if any(objects[i] != bytes([mark]) * (i % 500 + 1) for i in range(0, 8_000, 97)):
                failures.append("a thread's objects are not what it wrote")

    def wait(pid):
        status = os.waitpid(pid, 0)[1]
        if status:
            failures.append("a child's wait status is %#x" % status)

    def fork(count):
        alive = []
        for n in range(count):
            inherited = [bytearray(b"%d" % i) for i in range(300)]
            pid = os.fork()
            if pid == 0:
                _child(hugepages, inherited, n)
            alive.append(pid)
            if len(alive) == ALIVE:
                wait(alive.pop(0))
        for pid in alive:
            wait(pid)

    threads = [threading.Thread(target=churn, args=(mark,)) for mark in range(6)]
    forking = [threading.Thread(target=fork, args=(children // 2,)) for _ in range(2)]
    for thread in threads + forking:
        thread.start()
    for thread in forking:
        thread.join()
    stop.set()
    for thread in threads:
        thread.join()
    status = hugepages.status()
    assert not failures, (len(failures), failures[:5])
    assert status["misplaced_frees"] == 0, status
    assert status["arenas"] == status["arenas_given"] - status["arenas_returned"], status
    print("%d children, %d grandchildren; %d arenas given meanwhile" % (children, children // 4, status["arenas_given"]))


def _child(hugepages, inherited, n):
    """Never returns. One that hangs is ended by its alarm, and counts as failed."""
    code = 1
    try:
        signal.alarm(60)
        if n % 4 == 0:
            pid = os.fork()
            if pid == 0:
                n = 1
            elif os.waitpid(pid, 0)[1]:
                return
        objects = [bytearray(b"%d" % i) * 20 for i in range(8_000)]
        for i, one in enumerate(inherited):
            one += b"x"
            assert one == b"%dx" % i
        if n % 2:
            hugepages.disable()
            hugepages.enable()
        assert hugepages.status()["misplaced_frees"] == 0
        assert all(one == b"%d" % i * 20 for i, one in enumerate(objects))
        del objects
        code = 0
    finally:
        os._exit(code)


def cycles(short):
    """Arenas of ours and of the allocator before us, in turns."""
    return succeeded(fresh("forks", "_cycles", 300 if short else 10_000)).strip()


def _cycles(count):
    from allocwall import hugepages

    def maps():
        return len(Path("/proc/self/maps").read_text().splitlines())

    other = None
    for n in range(count):
        hugepages.enable()
        objects = [b"%05d" % n * 95 for _ in range(14_000)]
        assert objects[0] == objects[-1] == b"%05d" % n * 95
        # Each one's arenas die while the other is on.
        other = None
        hugepages.disable()
        # More than the free pools of arenas that something else keeps alive, so that each turn takes new arenas of both.
        other = [b"%05d" % n * 80 for _ in range(14_000)]
        assert other[0] == other[-1] == b"%05d" % n * 80
        objects = None
        if n == count // 10:
            start = resident(), maps()
    end = resident(), maps()
    status = hugepages.status()
    assert status["misplaced_frees"] == 0 and status["foreign_frees"] > 0, status
    assert status["arenas_given"] >= count, status
    assert status["arenas"] == status["arenas_given"] - status["arenas_returned"], status
    assert status["slabs"] == status["slabs_mapped"] - status["slabs_released"], status
    assert end[0] - start[0] <= 4 * MIB and end[1] - start[1] <= 10, (start, end)
    print(
        "%d cycles, %d arenas given; resident %.1f MiB after a tenth, %.1f at the end"
        % (count, status["arenas_given"], start[0] / MIB, end[0] / MIB)
    )


if __name__ == "__main__":
    sys.exit(main(storm, cycles))
