#!/usr/bin/env python3
"""Workers that start and end under load: servers.py [--short] [gunicorn] [pools]. SECONDS in the environment sets the time of each
(default 300)."""

import http.client
import importlib.util
import multiprocessing
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import service
from harness import HERE, MIB, Skipped, family, fresh, main, proportional, succeeded

QUESTIONS = 64
# The allowed growth of resident memory from the middle third of the time to the last third.
MOST_GROWTH = 1.10


def seconds(short):
    return 3 if short else int(os.environ.get("SECONDS", "300"))


class Resident(threading.Thread):
    """Samples the memory of a process and its descendants every second."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid, self.seen, self.stop = pid, [], threading.Event()
        self.start()

    def run(self):
        while not self.stop.wait(1):
            self.seen.append(proportional(family(self.pid)))

    def flat(self):
        """The medians of the middle and the last third, if there were enough samples; checks the growth."""
        self.stop.set()
        third = len(self.seen) // 3
        if third < 8:
            return "resident too short to judge"
        middle, last = statistics.median(self.seen[third : 2 * third]), statistics.median(self.seen[-third:])
        assert last <= middle * MOST_GROWTH, "resident grew from %.0f to %.0f MiB" % (middle / MIB, last / MIB)
        return "resident %.0f MiB, then %.0f" % (middle / MIB, last / MIB)


def gunicorn(short):
    """Prefork with a preloaded application; workers end after some 300 requests."""
    if importlib.util.find_spec("gunicorn") is None:
        raise Skipped("no gunicorn in this environment")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as home, tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "gunicorn", "--preload", "--workers", "3", "--max-requests", "300",
             "--max-requests-jitter", "100", "--bind", "127.0.0.1:%d" % port, "service:application"],
            cwd=HERE, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            env={**os.environ, "ALLOCWALL_HUGEPAGES": "1", "HOME": home},
        )
        try:
            seen = _ask(server, port, seconds(short))
        finally:
            server.terminate()
            server.wait(timeout=30)
        log.seek(0)
        text = log.read()
    # Some versions log the signal that gunicorn sent to a worker as an error.
    told = [line for line in text.splitlines() if "was sent SIGTERM" not in line and "was sent SIGHUP" not in line]
    bad = [line for line in told if re.search(r"\bSIG(?!TERM|HUP)|Traceback|\[(ERROR|CRITICAL)\]|TIMEOUT", line)]
    assert not bad, bad[:5]
    workers = text.count("Booting worker")
    assert workers > 3 or short, text[-2000:]
    return "%s, %d workers" % (seen, workers)


def _ask(server, port, duration):
    expected = [service.answer(n) for n in range(QUESTIONS)]
    failures, answers, modes = [], [0] * 4, set()

    def get(n):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        try:
            connection.request("GET", "/?%d" % n)
            reply = connection.getresponse()
            return reply.status, reply.read().decode(), reply.getheader("X-Mode")
        finally:
            connection.close()

    def ask(me):
        n = me
        while time.monotonic() < end and len(failures) < 10:
            n = (n + 4) % QUESTIONS
            try:
                status, body, mode = get(n)
            except OSError as error:
                failures.append(repr(error))
                continue
            if status != 200 or body != expected[n]:
                failures.append("status %d, %r" % (status, body[:100]))
            modes.add(mode)
            answers[me] += 1

    until = time.monotonic() + 30
    while True:
        try:
            get(0)
            break
        except OSError:
            assert server.poll() is None and time.monotonic() < until, "gunicorn does not respond"
            time.sleep(0.1)
    end = time.monotonic() + duration
    resident = Resident(server.pid)
    threads = [threading.Thread(target=ask, args=(me,)) for me in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    flat = resident.flat()
    assert not failures, failures
    assert modes == {"thp"}, modes
    return "%d answers, all right; %s" % (sum(answers), flat)


def pools(short):
    """multiprocessing.Pool with maxtasksperchild, by each way to start a process."""
    methods = multiprocessing.get_all_start_methods()
    seen = []
    for method in methods:
        run = fresh(
            "servers", "_pool", method, seconds(short) / len(methods),
            environment={"ALLOCWALL_HUGEPAGES": "1"}, timeout=seconds(short) + 120,
        )
        seen.append("%s %s" % (method, succeeded(run).strip()))
    return "; ".join(seen)


def _pool(method, duration):
    from allocwall import hugepages

    assert hugepages.status()["mode"] == "thp", hugepages.status()
    expected = [service.answer(n) for n in range(QUESTIONS)]
    resident = Resident(os.getpid())
    pids, done = set(), 0
    end = time.monotonic() + duration
    with multiprocessing.get_context(method).Pool(3, maxtasksperchild=40) as pool:
        while time.monotonic() < end:
            for n, answer, pid, mode in pool.imap_unordered(service.task, range(QUESTIONS)):
                assert answer == expected[n] and mode == "thp", (n, answer, mode)
                pids.add(pid)
                done += 1
        pool.close()
        pool.join()
    print("%d tasks, %d workers, %s" % (done, len(pids), resident.flat()))


if __name__ == "__main__":
    sys.exit(main(gunicorn, pools))
