#!/usr/bin/env python3
"""What counting costs a program: CPU time under `allocwall count`, other tools and nothing, in turns.

Three loops that only allocate (storm.c, larson.c, xmalloc.c) run for a fixed time and count their own operations; four real programs do a
fixed amount of work. In each round, each program runs once under each arm. The arms take turns of some milliseconds (turns.py); those of a
server, which needs its load, run one after the other in random order. A cost is the ratio of CPU time under an arm
and without it in the same round; its interval is that of benches/overhead.py, the percentile bootstrap of the median. The arm `again` is
a second run with nothing: it shows this machine's noise, and smaller costs cannot be claimed.

*Target*: CPU time of the program itself (timed.c, or its own account). *With the tool*: the whole tree of processes, also those that the
tool leaves behind.

    benches/count_cost.py                     all programs; ten minutes, needs a quiet machine; writes docs/count-cost.md
    benches/count_cost.py storm redis --json FILE
    benches/count_cost.py --quick             three rounds of less work, under three minutes; writes no page without --page

The programs' output is discarded. Standard library only.
"""

import argparse
import contextlib
import ctypes
import datetime
import glob
import json
import math
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

import turns
from experiments_page import digits
from overhead import Counter, effect
from prediction_accuracy import environment, find_program, free_port, system_python
from trial_accuracy import machine, row

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "count-cost.md"
# Where `make count-cost` installs memray.
VENV_PYTHON = ROOT / "target" / "count-venv" / "bin" / "python3"
# With nine pairs the bootstrap interval is that of the second to the eighth, which covers the median in 96 % (binomial distribution).
ROUNDS, QUICK_ROUNDS = 9, 3
# The bench starts no round that would end later.
FOR_S, QUICK_FOR_S = 660, 160
LOOP_S, QUICK_LOOP_S = 0.35, 0.15
QUICK_WORK = 0.4
# A run that takes longer is ended, and its arm is left out.
LIMIT_S = 60
THREADS = 2
# prctl(2): orphans become children of this process, so that their CPU time is known.
PR_SET_CHILD_SUBREAPER = 36


class Failed(Exception):
    """Why a program cannot run under an arm; one line."""


# ---- programs ----


@dataclass
class Program:
    name: str
    # "loop": runs for a fixed time, and its cost is that of an operation. "real": its cost is that of the run.
    kind: str
    # Builds what the program needs, once; gets the Bench.
    prepare: Callable
    # Returns the command; gets the Stage.
    command: Callable
    # Programs that it needs, each with its Debian package.
    needs: dict
    # The program runs until it is killed.
    endless: bool = False
    # Returns CPU seconds by the program's own account, or None, and the number of operations; gets the Stage.
    account: Callable = lambda stage: (None, 1)
    # For a server: loads it, ends it and returns the CPU seconds that it took.
    load: Callable = None
    environment: dict = None

    def __post_init__(self):
        self.environment = self.environment or {}


JSON_WORK = """
import json, sys
record = {"id": 7, "name": "x" * 40, "tags": ["t%d" % n for n in range(12)], "at": {"lat": 1.5, "lon": 2.5}}
text = json.dumps([dict(record, id=n) for n in range(2000)])
for _ in range(int(sys.argv[1])):
    json.dumps(json.loads(text))
"""
JSON_TURNS = 30

# Most of a compiler's work on such a file is in the headers.
CPP_WORK = """
#include <map>
#include <regex>
#include <string>
std::map<std::string, int> counted(const std::string &text) {
    std::map<std::string, int> all;
    std::string::size_type at = 0, end;
    while ((end = text.find(' ', at)) != std::string::npos) ++all[text.substr(at, end - at)], at = end + 1;
    return all;
}
"""

SQL_WORK = """
create table t(id integer primary key, name text, value real);
with recursive n(i) as (select 1 union all select i+1 from n where i < {rows})
insert into t select i, 'name' || (i * 7919 % 10007), i * 0.5 from n;
create index by_name on t(name);
select name, count(*), sum(value) from t group by name order by 3 desc limit 5;
"""
SQL_ROWS = 180_000

# Requests of each kind.
REDIS_REQUESTS = 120_000


def compiled(name):
    def prepare(bench):
        subprocess.run(["gcc", "-O2", "-pthread", "-o", bench.built / name, ROOT / "benches" / f"{name}.c"], check=True)

    return prepare


def storm(stage):
    return [stage.bench.built / "storm", stage.folder / "operations", THREADS]


def storm_account(stage):
    return None, Counter(stage.folder / "operations", THREADS).read()


def timed_loop(name, *words):
    return lambda stage: [stage.bench.built / name, stage.loop_s, *words]


def own_account(stage):
    said = json.loads(stage.said())
    return said["cpu_s"], said["operations"]


def write_json_work(bench):
    (bench.built / "work.py").write_text(JSON_WORK)


def python_json(stage):
    return [stage.bench.python, stage.bench.built / "work.py", max(1, round(JSON_TURNS * stage.bench.work))]


def preprocess(bench):
    source = bench.built / "work.cc"
    source.write_text(CPP_WORK)
    subprocess.run(["g++", "-E", source, "-o", bench.built / "work.ii"], check=True)


def compiler(stage):
    """The compiler itself: heaptrack follows only the process that it starts, and g++ only starts other programs."""
    asked = subprocess.run(["g++", "-print-prog-name=cc1plus"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    return [asked.stdout.strip(), "-quiet", "-fpreprocessed", "-O1", stage.bench.built / "work.ii", "-o", stage.folder / "work.s"]


def write_sql_work(bench):
    (bench.built / "work.sql").write_text(SQL_WORK.format(rows=round(SQL_ROWS * bench.work)))


def sqlite(stage):
    return ["sqlite3", "-init", stage.bench.built / "work.sql", ":memory:", ".quit"]


def redis(stage):
    settings = ["--save", "", "--appendonly", "no", "--daemonize", "no", "--bind", "127.0.0.1"]
    return [find_program("redis-server"), "--port", stage.port, "--dir", stage.folder, *settings]


def redis_load(stage):
    """Also ends the server."""
    with connected(stage) as connection:
        before = redis_cpu_s(connection)
        mix = ["-t", "set,get,lpush", "-n", round(REDIS_REQUESTS * stage.bench.work), "-r", 50_000, "-d", 64, "-c", 8, "-P", 16, "-q"]
        words = [find_program("redis-benchmark"), "-h", "127.0.0.1", "-p", stage.port, *mix]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        status = subprocess.run([str(word) for word in words], env=environment(stage.program), **quiet).returncode
        if status != 0:
            raise Failed(f"redis-benchmark failed ({status})")
        cpu_s = redis_cpu_s(connection) - before
        connection.sendall(b"SHUTDOWN NOSAVE\r\n")
        return cpu_s


@contextlib.contextmanager
def connected(stage):
    """A connection to the server, as soon as it accepts one."""
    deadline = time.monotonic() + 15
    while True:
        with socket.socket() as connection:
            if connection.connect_ex(("127.0.0.1", stage.port)) == 0:
                connection.settimeout(LIMIT_S)
                yield connection
                return
        if stage.ended() or time.monotonic() > deadline:
            raise Failed(stage.last_line() or "the server does not listen")
        time.sleep(0.02)


USED_CPU = re.compile(rb"^used_cpu_(?:sys|user):([0-9.]+)\r\n", re.MULTILINE)


def redis_cpu_s(connection):
    """CPU seconds of the server by its own account: user and system."""
    connection.sendall(b"INFO cpu\r\n")
    answer = b""
    while len(parts := USED_CPU.findall(answer)) < 2:
        read = connection.recv(65536)
        if not read:
            raise Failed("redis-server closed the connection")
        answer += read
    return sum(map(float, parts))


GCC = {"gcc": "build-essential"}
PROGRAMS = [
    Program("storm", "loop", compiled("storm"), storm, GCC, endless=True, account=storm_account),
    Program("larson", "loop", compiled("larson"), timed_loop("larson", THREADS), GCC, account=own_account),
    Program("xmalloc", "loop", compiled("xmalloc"), timed_loop("xmalloc"), GCC, account=own_account),
    Program(
        "redis", "real", lambda bench: None, redis, {"redis-server": "redis-server", "redis-benchmark": "redis-tools"}, load=redis_load
    ),
    Program("python-json", "real", write_json_work, python_json, {}),
    Program("c++", "real", preprocess, compiler, {"g++": "build-essential"}),
    Program("sqlite", "real", write_sql_work, sqlite, {"sqlite3": "sqlite3"}),
]


# ---- arms ----


@dataclass
class Arm:
    name: str
    title: str
    # The arm that it is compared with; None: it is only a baseline.
    against: str = "none"
    # Words before the command; gets the Stage.
    before: Callable = lambda stage: []
    # The command as it is started, given the Stage and the command.
    inside: Callable = lambda stage, command: command
    # Variables; gets the Stage.
    variables: Callable = lambda stage: {}
    # Why it can't run on this machine, or None; gets the Bench.
    missing: Callable = lambda bench: None
    # The only programs for which it is made, and what they are.
    only: tuple = ()
    only_what: str = ""
    # `allocwall count` refuses static programs, and a uprobe needs the C library. A preloaded library must not come into the static one.
    dynamic: bool = False
    probe: str = "-"


def count(*options):
    return lambda stage: [stage.bench.binary, "count", *options, "--json", "-o", stage.folder / "count.json", "--"]


def program_of(package, name):
    return lambda bench: None if find_program(name) else f"no {name} (Debian package {package})"


def heaptrack(stage):
    return [find_program("heaptrack"), "-o", stage.folder / "heaptrack"]


def memray(stage, command):
    interpreter, *words = command
    return [interpreter, "-m", "memray", "run", "--native", "-q", "-f", "-o", stage.folder / "memray.bin", *words]


def no_memray(bench):
    found = subprocess.run([bench.python, "-c", "import memray"], stdin=subprocess.DEVNULL, capture_output=True)
    return None if found.returncode == 0 else "this interpreter has no memray (PyPI; `make count-cost` installs it)"


def no_uprobe(bench):
    return None if os.path.exists("/sys/bus/event_source/devices/uprobe/type") else "this kernel has no uprobes for perf_event_open"


def library(name):
    found = sorted(glob.glob(f"/usr/lib/*/{name}"))
    return found[0] if found else None


def library_of(package, name):
    return lambda bench: None if library(name) else f"no {name} (Debian package {package})"


def preloaded(name, **more):
    return lambda stage: {"LD_PRELOAD": library(name), **more}


JEMALLOC, TCMALLOC = "libjemalloc.so.2", "libtcmalloc.so.4"
# 2^19 bytes, the same mean distance as that of allocwall and tcmalloc below.
PROF = "prof:true,prof_active:true,lg_prof_sample:19"
no_jemalloc, no_tcmalloc = library_of("libjemalloc2", JEMALLOC), library_of("libgoogle-perftools4", TCMALLOC)


def no_prof(bench):
    if why := no_jemalloc(bench):
        return why
    env = {**os.environ, "LD_PRELOAD": library(JEMALLOC), "MALLOC_CONF": PROF}
    said = subprocess.run(["/bin/true"], stdin=subprocess.DEVNULL, capture_output=True, env=env, text=True).stderr
    return "this jemalloc was built without its profiler" if "Invalid conf" in said else None


ARMS = [
    Arm("none", "nothing", None),
    Arm("again", "nothing, once more"),
    Arm("exact", "`allocwall count --exact`", before=count("--exact"), dynamic=True),
    Arm("samples", "`allocwall count`", before=count(), dynamic=True),
    Arm("heaptrack", "heaptrack", before=heaptrack, missing=program_of("heaptrack", "heaptrack")),
    Arm("memray", "memray `--native`", inside=memray, missing=no_memray, only=("python-json",), only_what="only for Python programs"),
    Arm("uprobe", "uprobe on malloc", missing=no_uprobe, dynamic=True, probe="malloc"),
    Arm("jemalloc", "jemalloc", None, variables=preloaded(JEMALLOC), missing=no_jemalloc),
    Arm("jemalloc-prof", "jemalloc's samples", "jemalloc", variables=preloaded(JEMALLOC, MALLOC_CONF=PROF), missing=no_prof),
    Arm("tcmalloc", "tcmalloc", None, variables=preloaded(TCMALLOC, TCMALLOC_SAMPLE_PARAMETER="0"), missing=no_tcmalloc),
    Arm(
        "tcmalloc-samples", "tcmalloc's samples", "tcmalloc", missing=no_tcmalloc,
        variables=preloaded(TCMALLOC, TCMALLOC_SAMPLE_PARAMETER="524288"),
    ),
]
OURS = ("none", "again", "exact", "samples")
# By kind and arm: the largest cost of the target. Of a loop in ns an operation, of a real program in per cent.
AIMS = {("loop", "exact"): 2.0, ("real", "exact"): 3.0, ("real", "samples"): 5.0}


# ---- one run ----


def family(pid):
    """The descendants of a process."""
    found = [pid]
    for one in found:
        for children in glob.glob(f"/proc/{one}/task/*/children"):
            with contextlib.suppress(OSError):
                found += map(int, Path(children).read_text().split())
    return found[1:]


def end_descendants(pid=None):
    """Kills what this process started, or the descendants of one of its processes."""
    for one in family(pid or os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)


@contextlib.contextmanager
def limited(seconds):
    """After this time, all processes that were started are killed, and the block fails."""
    late = threading.Event()

    def end():
        late.set()
        end_descendants()

    timer = threading.Timer(seconds, end)
    timer.start()
    try:
        yield
    except Failed:
        if not late.is_set():
            raise
    finally:
        timer.cancel()
    if late.is_set():
        raise Failed(f"not done after {seconds} s")


class Stage:
    """The surroundings of one run."""

    def __init__(self, bench, program, folder):
        self.bench, self.program, self.folder = bench, program, folder
        self.port = free_port()
        self.result = folder / "result"
        self.process = None
        # Wall time of a program that runs for a fixed time.
        self.loop_s = None

    def start(self, words, variables):
        env = {**environment(self.program), **variables}
        for name in ("DISPLAY", "WAYLAND_DISPLAY"):
            # heaptrack opens a window if it can.
            env.pop(name, None)
        with open(self.folder / "errors", "wb") as errors:
            self.process = turns.start(turns.Command(words, env, self.folder), stderr=errors)

    def ended(self):
        """Leaves it to `reap` to wait for the process."""
        return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def drop(self):
        """Ends what is left of the run."""
        if self.process:
            turns.signal_group(self.process.pid, signal.SIGKILL)
            self.reap()
            # heaptrack leaves its pipe if it is killed.
            Path(f"/tmp/heaptrack_fifo{self.process.pid}").unlink(missing_ok=True)

    def reap(self):
        """Waits for all processes of this run; returns their CPU seconds."""
        used = 0.0
        with contextlib.suppress(ChildProcessError):
            while self.process:
                pid, status, resources = os.wait4(-self.process.pid, 0)
                used += resources.ru_utime + resources.ru_stime
                if self.process and pid == self.process.pid:
                    self.process.returncode = os.waitstatus_to_exitcode(status)
        return used

    def said(self):
        return Path(f"{self.result}.out").read_text()

    def last_line(self):
        lines = (self.folder / "errors").read_bytes()[-4096:].decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def timed(self):
        """CPU seconds of the command, and the calls that a probe saw."""
        if self.process.returncode != 0 or not self.result.exists():
            raise Failed(self.last_line() or f"exit status {self.process.returncode}")
        cpu_s, status, calls = self.result.read_text().split()
        if status != "0":
            raise Failed(f"the program failed ({status}): {self.last_line()}")
        return float(cpu_s), int(calls)


class Bench:
    def __init__(self, arguments, folder):
        self.binary, self.python = arguments.binary.resolve(), arguments.python
        self.loop_s = QUICK_LOOP_S if arguments.quick else LOOP_S
        self.work = QUICK_WORK if arguments.quick else 1
        self.folder, self.built = folder, folder / "built"
        self.built.mkdir()
        for name, option in (("timed", "-O2"), ("timed-static", "-static")):
            subprocess.run(["gcc", option, "-o", self.built / name, ROOT / "benches" / "timed.c"], check=True)

    def round(self, program, arms):
        """{arm's name: CPU seconds for one operation, of the target and of the whole tree, and calls for one CPU second where they are
        counted; or a Failed}."""
        groups = [[arm] for arm in random.sample(arms, len(arms))] if program.load else [arms]
        found = {}
        for group in groups:
            found |= self.together(program, group)
        return found

    def together(self, program, arms):
        """The same for arms that run at the same time, and take turns if they are several."""
        with contextlib.ExitStack() as stack:
            stages, found, served_s = {}, {}, None
            for arm in arms:
                stage = Stage(self, program, Path(stack.enter_context(tempfile.TemporaryDirectory(dir=self.folder))))
                stack.callback(stage.drop)
                # Each of them runs for its part of the time.
                stage.start(self.words(stage, program, arm, self.loop_s * len(arms)), arm.variables(stage))
                stages[arm.name] = stage
            if program.load:
                (stage,) = stages.values()
                turns.signal_group(stage.process.pid, signal.SIGCONT)
                try:
                    with limited(LIMIT_S):
                        served_s = program.load(stage)
                except (Failed, OSError) as error:
                    return {name: Failed(str(error)) for name in stages}
            else:
                pids = {name: stage.process.pid for name, stage in stages.items()}
                for name in turns.take(pids, lambda name: stages[name].ended(), LIMIT_S * len(arms)):
                    found[name] = Failed(f"not done after {LIMIT_S} s")
            for arm in arms:
                if arm.name not in found:
                    try:
                        with limited(LIMIT_S):
                            found[arm.name] = self.account(stages[arm.name], program, arm, served_s)
                    except (Failed, OSError, ValueError, KeyError) as error:
                        found[arm.name] = Failed(str(error))
            return found

    def account(self, stage, program, arm, served_s):
        whole_s = stage.reap()
        cpu_s, calls = stage.timed()
        own_s, operations = program.account(stage)
        target_s = next(s for s in (served_s, own_s, cpu_s) if s is not None)
        if operations <= 0 or target_s <= 0:
            raise Failed("the program did nothing")
        if arm.probe != "-" and calls == 0:
            raise Failed("the probe on the C library's malloc saw no call: the program has another allocator")
        counted = stage.folder / "count.json"
        calls_per_s = json.loads(counted.read_text())["calls"]["all"] / cpu_s if counted.exists() else None
        return {"target_s": target_s / operations, "whole_s": whole_s / operations, "calls_per_cpu_s": calls_per_s}

    def words(self, stage, program, arm, loop_s):
        stage.loop_s = loop_s
        timed = self.built / ("timed" if arm.dynamic else "timed-static")
        seconds = loop_s if program.endless else 0
        return [*arm.before(stage), timed, stage.result, seconds, arm.probe, *arm.inside(stage, program.command(stage))]


def unprepared(bench, program):
    """Why a program can't run here, or None."""
    absent = [f"{name} (Debian package {package})" for name, package in program.needs.items() if not find_program(name)]
    if absent:
        return f"no {', no '.join(absent)}"
    try:
        program.prepare(bench)
    except subprocess.CalledProcessError as error:
        return f"{error.cmd[0]} failed ({error.returncode})"
    return None


def absences(bench, programs):
    """Why an arm does not run with a program: {(program, arm): reason}."""
    absent = {}
    missing = {arm.name: arm.missing(bench) for arm in ARMS}
    for program in programs:
        whole = unprepared(bench, program)
        for arm in ARMS:
            other = arm.only_what if arm.only and program.name not in arm.only else None
            if why := whole or other or missing[arm.name]:
                absent[program.name, arm.name] = why
    return absent


def measure(bench, programs, rounds, for_s):
    """({(program, arm): {round: values}}, {(program, arm): reason}, number of rounds). A round before the first one warms up, and finds
    what can't run."""
    runs, absent = {}, absences(bench, programs)
    began, longest, done = time.monotonic(), 0.0, 0
    for number in range(rounds + 1):
        at = time.monotonic()
        if number > 0 and for_s and at - began + longest > for_s:
            break
        for program in random.sample(programs, len(programs)):
            arms = [arm for arm in ARMS if (program.name, arm.name) not in absent]
            for name, values in (bench.round(program, arms) if arms else {}).items():
                if isinstance(values, Failed):
                    absent[program.name, name] = f"failed in round {number}: {values}" if number else str(values)
                elif number > 0:
                    runs.setdefault((program.name, name), {})[number] = values
        done = number
        longest = max(longest, time.monotonic() - at)
        progress(number, rounds)
    return runs, absent, done


def progress(done, whole):
    if sys.stderr.isatty():
        print(f"\r{done}/{whole} rounds", end="\n" if done == whole else "", file=sys.stderr, flush=True)


# ---- results ----


def added(base, treated):
    """Added cost in per cent, with its interval, from two series of the same rounds."""
    loss = effect([math.log(after / before) for before, after in zip(base, treated)])["loss_percent"]
    # What `effect` calls a loss is a cost that became smaller.
    return {"low": -loss["high"], "point": -loss["point"], "high": -loss["low"]}


def judge(interval, aim):
    """The whole interval decides."""
    return "met" if interval["high"] <= aim else "missed" if interval["low"] > aim else "undecided"


def scaled(interval, factor):
    return {end: value * factor for end, value in interval.items()}


def compare(program, arm, runs, absent):
    """The document's entry of an arm."""
    entry = {"arm": arm.name, "against": arm.against}
    mine = runs.get((program.name, arm.name), {})
    base = runs.get((program.name, arm.against), {}) if arm.against else mine
    rounds = sorted(mine.keys() & base.keys())
    why = absent.get((program.name, arm.name))
    if why is None and len(rounds) < 2:
        why = absent.get((program.name, arm.against)) or "fewer than two rounds"
    if why is not None:
        return {**entry, "absent": why}
    entry["rounds"] = len(rounds)
    for about in ("target", "whole"):
        mine_s, base_s = ([series[number][f"{about}_s"] for number in rounds] for series in (mine, base))
        entry[about] = {"median_s": statistics.median(mine_s), "values_s": mine_s}
        if arm.against:
            percent = added(base_s, mine_s)
            entry[about]["added_percent"] = percent
            entry[about]["added_s"] = scaled(percent, statistics.median(base_s) / 100)
    calls = [mine[number]["calls_per_cpu_s"] for number in rounds if mine[number]["calls_per_cpu_s"]]
    if calls:
        entry["calls_per_cpu_s"] = statistics.median(calls)
    aim = AIMS.get((program.kind, arm.name))
    if aim is not None:
        entry["aim"], entry["result"] = aim, judge(shown_cost(program.kind, entry["target"]), aim)
    return entry


def shown_cost(kind, about):
    """Of a loop in ns an operation, of a real program in per cent: the unit of its aim."""
    return scaled(about["added_s"], 1e9) if kind == "loop" else about["added_percent"]


def results(programs, runs, absent):
    return [
        {"program": program.name, "kind": program.kind, "arms": [compare(program, arm, runs, absent) for arm in ARMS]}
        for program in programs
    ]


# ---- the page ----


def put(page, part, lines):
    """The page with this generated part replaced."""
    begin, end = f"<!-- begin {part} -->", f"<!-- end {part} -->"
    if page.count(begin) != 1 or page.count(end) != 1 or page.index(begin) > page.index(end):
        raise ValueError(f"the page has no part `{part}`: it must have the line {begin}, and {end} after it")
    head, rest = page.split(begin)
    return "\n".join([head + begin, "", *lines, "", end]) + rest.split(end)[1]


def signed(value):
    return f"{value:+.{2 if abs(value) < 10 else 1 if abs(value) < 100 else 0}f}"


def cost_cell(kind, about):
    unit = "ns" if kind == "loop" else "%"
    if "added_s" not in about:
        return f"{digits(about['median_s'] * 1e9)} ns" if kind == "loop" else f"{digits(about['median_s'])} s"
    cost = shown_cost(kind, about)
    return f"{signed(cost['point'])} {unit} ({signed(cost['low'])} to {signed(cost['high'])})"


def arm_row(result, entry, ours):
    title = next(arm.title for arm in ARMS if arm.name == entry["arm"])
    kind = result["kind"]
    target, whole = cost_cell(kind, entry["target"]), cost_cell(kind, entry["whole"])
    cells = [result["program"], title, str(entry["rounds"]), target, "the same" if whole == target else whole]
    if ours:
        unit = "ns" if kind == "loop" else "%"
        calls = entry.get("calls_per_cpu_s")
        cells += [f"{digits(calls / 1e6)} M" if calls else "", f"at most {entry['aim']:g} {unit}" if "aim" in entry else "none"]
        cells += [entry.get("result", "")]
    return row(*cells)


def absent_rows(results, arms, width):
    """One row for all programs that lack an arm for the same reason."""
    reasons = {}
    for result in results:
        for entry in result["arms"]:
            if entry["arm"] in arms and "absent" in entry:
                reasons.setdefault((entry["arm"], entry["absent"]), []).append(result["program"])
    for (name, why), programs in reasons.items():
        title = next(arm.title for arm in ARMS if arm.name == name)
        which = "all" if len(programs) == len(results) else ", ".join(programs)
        yield row(which, title, "0", "not run: " + why.replace("|", "\\|"), *[""] * (width - 4))


def table(results, ours):
    heads = ["program", "arm", "rounds", "target", "with the tool"]
    heads += ["calls a CPU-second", "aim", "result"] if ours else []
    arms = [arm.name for arm in ARMS if (arm.name in OURS) == ours]
    lines = [row(*heads), "| --- " * len(heads) + "|"]
    for result in results:
        lines += [arm_row(result, entry, ours) for entry in result["arms"] if entry["arm"] in arms and "absent" not in entry]
    return [*lines, *absent_rows(results, arms, len(heads))]


def generated(document):
    """The lines of the generated part."""
    facts = document["machine"]
    kind = "a virtual machine" if facts["virtual"] else "not virtual"
    judged = [entry["result"] for result in document["programs"] for entry in result["arms"] if "result" in entry]
    parts = [f"{judged.count(name)} {name}" for name in ("met", "missed", "undecided")]
    lines = [
        f"Measured on {document['date']}: {facts['cpu']}, {facts['cpus']} CPUs, {kind}, Linux {facts['kernel']}; {document['tool']}.",
        f"{document['rounds']} rounds{', with less work (`--quick`)' if document['quick'] else ''}.",
    ]
    if document["rounds"] < 7:
        lines.append("With so few rounds an interval covers less than 95 %.")
    lines += ["", f"Aims: **{', '.join(parts)}**.", "", *table(document["programs"], True), "", "Other tools:", ""]
    return [*lines, *table(document["programs"], False)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=", ".join(p.name for p in PROGRAMS))
    parser.add_argument("--binary", type=Path, default=ROOT / "target" / "release" / "allocwall")
    parser.add_argument("--rounds", type=int, help=f"default: {ROUNDS}, with --quick {QUICK_ROUNDS}")
    parser.add_argument("--quick", action="store_true", help="fewer rounds of less work")
    parser.add_argument("--for", dest="seconds", type=float, metavar="SECONDS", help="start no round that would end later; 0: no limit")
    python = VENV_PYTHON if VENV_PYTHON.exists() else Path(system_python())
    parser.add_argument("--python", type=Path, default=python, help=f"interpreter of all Python arms (default: {python})")
    parser.add_argument("--json", type=Path, help="write all figures, including those of each round, to this file")
    parser.add_argument("--page", type=Path, help="default: docs/count-cost.md; with --quick: none")
    arguments = parser.parse_args()
    if unknown := set(arguments.programs) - {p.name for p in PROGRAMS}:
        parser.error(f"no program named {', '.join(sorted(unknown))}")
    rounds = arguments.rounds if arguments.rounds is not None else QUICK_ROUNDS if arguments.quick else ROUNDS
    if rounds < 2:
        parser.error("--rounds must be at least 2")
    if not arguments.binary.is_file():
        parser.error(f"{arguments.binary} does not exist; run make build")
    if not arguments.python.is_file():
        parser.error(f"{arguments.python} does not exist")
    for_s = arguments.seconds if arguments.seconds is not None else QUICK_FOR_S if arguments.quick else FOR_S
    # A page of only some programs would replace the figures of all other programs.
    page = arguments.page or (None if arguments.quick or arguments.programs else PAGE)
    programs = [p for p in PROGRAMS if not arguments.programs or p.name in arguments.programs]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory(prefix="allocwall-cost-") as folder:
        bench = Bench(arguments, Path(folder))
        try:
            runs, absent, done = measure(bench, programs, rounds, for_s)
        finally:
            end_descendants()
    version = subprocess.run([bench.binary, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    document = {
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "tool": version.stdout.strip(),
        "rounds": done,
        "quick": arguments.quick,
        "programs": results(programs, runs, absent),
    }
    lines = generated(document)
    print("\n".join(lines))
    if arguments.json:
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    if page:
        page.write_text(put(page.read_text(), "cost", lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
