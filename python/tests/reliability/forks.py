#!/usr/bin/env python3
"""Forks from threads that allocate, and the hook switched on and off: forks.py [--short] [storm] [cycles]."""

import os
import random
import signal
import sys
import threading
from pathlib import Path

from harness import MIB, fresh, main, resident, succeeded

# The number of children alive at once, for each of the two threads that fork.
ALIVE = 4


def storm(short):
    """Forks children from a process whose other threads are allocating."""
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
    """The child; never returns. A child that hangs is ended by its alarm, and counts as failed."""
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
    """Switches between arenas of the hook and of the previous allocator."""
    return succeeded(fresh("forks", "_cycles", 300 if short else 10_000)).strip()


def _cycles(count):
    from allocwall import hugepages

    def maps():
        return len(Path("/proc/self/maps").read_text().splitlines())

    dice, looks = random.Random(count), []
    generations = [[] for _ in range(6)]
    for n in range(count):
        # Which generation is freed, and the size and number of new objects, are random, so that arenas of both kinds
        # are allocated and freed.
        old, size, number = dice.randrange(6), dice.randrange(20, 470), dice.randrange(500, 15_000)
        hugepages.enable()
        assert all(one == generations[old][0] for one in generations[old][::501])
        generations[old] = []
        generations[old] = [bytes([n & 255]) * size for _ in range(number)]
        hugepages.disable()
        other = dice.randrange(6)
        generations[other] = []
        generations[other] = [bytes([n & 255]) * size for _ in range(number // 2)]
        if n + 1 in (count // 10, count):
            # Now only kept slabs, and arenas that other objects hold, are still resident.
            generations = [[] for _ in range(6)]
            looks.append((resident(), maps()))
    start, end = looks
    status = hugepages.status()
    assert status["misplaced_frees"] == 0 and status["foreign_frees"] > 0, status
    assert status["arenas_given"] > count // 10, status
    assert status["arenas"] == status["arenas_given"] - status["arenas_returned"], status
    assert status["slabs"] == status["slabs_mapped"] - status["slabs_released"], status
    assert end[0] - start[0] <= 8 * MIB + status["slabs_kept"] * 2 * MIB and end[1] - start[1] <= 10, (start, end)
    print(
        "%d cycles, %d arenas given, %d others freed; resident %.1f MiB after a tenth, %.1f at the end"
        % (count, status["arenas_given"], status["foreign_frees"], start[0] / MIB, end[0] / MIB)
    )


if __name__ == "__main__":
    sys.exit(main(storm, cycles))
