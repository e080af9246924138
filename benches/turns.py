"""Runs several commands side by side, of which one at a time may run, each for a few milliseconds, and gives the CPU time of each.

On a virtual machine the same program takes 15 to 50 % longer in one second than in another, because other guests use the same caches
and memory. Commands that take turns run under the same conditions. With turns of 5 ms, the ratio of two equal programs was within 3 % in
each of nine runs, where whole runs in alternation gave 15 % and more.

What turns change: a program finds the caches of the processor as the others left them, so each turn begins with misses, for all commands
alike: some 0.1 ms of a small working set, and several times that of one that fills the caches. If large blocks fill the caches, the
length of a turn matters: mimalloc saved 16 % of one program with turns of 5 ms and 45 % with 50 ms. A program that only waits in its
turn uses nothing of it. Commands must not need one another, nor the same files.

SIGSTOP and SIGCONT make the turns, sent to the process group of each command. Standard library only.
"""

import os
import random
import signal
import subprocess
import time
from dataclasses import dataclass

TURN_S = 0.005


@dataclass
class Command:
    words: list
    env: dict = None
    cwd: str = None


class Failed(RuntimeError):
    pass


def cpu_seconds(commands, limit_s=300, turn_s=TURN_S):
    """CPU seconds (user and system, with processes that were waited for) of each of the commands, {name: Command}.

    Raises Failed if one exits with another status than 0, or if they take longer than limit_s in all; none is left running.
    """
    running, done = {}, {}

    def ended(name):
        pid, status, usage = os.wait4(running[name], os.WNOHANG)
        if pid:
            del running[name]
            done[name] = usage.ru_utime + usage.ru_stime
            if code := os.waitstatus_to_exitcode(status):
                raise Failed(f"{name}: {commands[name].words[0]} ended with status {code}")
        return bool(pid)

    try:
        for name, command in commands.items():
            process = start(command)
            running[name] = process.pid
            # It is waited for here, with its CPU time.
            process.returncode = 0
        if late := take(dict(running), ended, limit_s, turn_s):
            raise Failed(f"not ended after {limit_s} s: {', '.join(map(str, late))}")
    finally:
        for pid in running.values():
            signal_group(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return {name: done[name] for name in commands}


def start(command, **files):
    """The process of the command, in a session and process group of its own, stopped before its first instruction.

    `files`: stdout and stderr for Popen; by default the output is discarded.
    """
    process = subprocess.Popen(
        # The shell stops itself, and becomes the command when it goes on.
        ["/bin/sh", "-c", 'kill -STOP $$; exec "$@"', "sh", *[str(word) for word in command.words]],
        env=command.env,
        cwd=command.cwd,
        stdin=subprocess.DEVNULL,
        **{"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **files},
        start_new_session=True,
    )
    os.waitpid(process.pid, os.WUNTRACED)
    return process


def take(groups, ended, limit_s, turn_s=TURN_S):
    """Lets the stopped process groups, {name: pid}, run in turns until ended(name) is true for each.

    Returns the names of those that have not ended after limit_s; they are stopped.
    """
    running = dict(groups)
    deadline = time.monotonic() + limit_s
    while running and time.monotonic() < deadline:
        # Another order each time, so that none always follows the same one.
        for name in random.sample(list(running), len(running)):
            signal_group(running[name], signal.SIGCONT)
            end = time.monotonic() + turn_s
            while not (over := ended(name)) and (left := end - time.monotonic()) > 0:
                time.sleep(left)
            if over:
                del running[name]
            else:
                signal_group(running[name], signal.SIGSTOP)
    return list(running)


def signal_group(pid, number):
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        pass
