#!/usr/bin/env python3
"""Whether counting changes what a program does: test suites of CPython, Redis and SQLite with and without `allocwall count`.

Each part of a suite (a module, a unit, a file of tests) runs without counting, under `allocwall count --exact` and under `allocwall count`,
in random order, two parts at a time. Results are compared test by test. If a test differs, its part runs once more in both ways. It
is a *difference* if it differs again: the library that counts has changed the program. Tests that also fail without counting are not.

CPython's suite is that of an installed interpreter. Redis (with the C library's malloc) and SQLite are built from the distribution's source
packages, without the distribution's patches. --work keeps sources and builds for the next run.

    benches/count_suites.py                    all suites, half an hour with the builds; writes docs/count-cost.md
    benches/count_suites.py cpython --units test_gc test_fork1
    benches/count_suites.py --work target/suites --json FILE

Exit status: 0 without a difference, 1 with one, or if no suite could run. Standard library only.
"""

import argparse
import contextlib
import datetime
import glob
import json
import os
import queue
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Callable

from count_cost import PAGE, ROOT, end_descendants, put
from prediction_accuracy import environment, system_python
from trial_accuracy import machine, row

WORKERS = 2
# A part of a suite, a suite with all its parts, and a build end after this time.
UNIT_S, SUITE_S, BUILD_S = 300, 1800, 1200
# Of the output of a part with a difference, this many characters are kept.
TAIL = 3000
ARMS = {"none": None, "exact": ["--exact"], "samples": []}
TITLES = {"none": "nothing", "exact": "`allocwall count --exact`", "samples": "`allocwall count`"}
# The names of what is compared beside the tests of a part.
AS_A_WHOLE, COUNTING = "(as a whole)", "(counting)"
NOT_RUN = "not run"


class Refused(Exception):
    """Why a suite cannot run here; one line."""


@dataclass
class Suite:
    name: str
    units: tuple
    # Returns the built tree, or the interpreter, and what it is; gets the work folder and the options.
    prepare: Callable
    # Returns the command and its folder; gets the tree, the unit, the folder of this run and the number of the worker.
    command: Callable
    # Returns the results by test: passed, failed, skipped; gets the output and the folder of the run.
    read: Callable


@dataclass
class Run:
    """A part of a suite under one arm."""

    results: dict
    seconds: float
    calls: int = 0
    tail: str = ""


@dataclass
class Total:
    """A suite under one arm."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    calls: int = 0
    # (unit, test, without counting, with it, the output's end), and those that did not differ again.
    differences: list = field(default_factory=list)
    once: list = field(default_factory=list)


# ---- reading results ----


def numbered(names):
    """(name, result) pairs as a dictionary; the second test of a name gets a number."""
    results, seen = {}, {}
    for name, result in names:
        seen[name] = seen.get(name, 0) + 1
        results[name if seen[name] == 1 else f"{name} #{seen[name]}"] = result
    return results


def read_junit(output, folder):
    """CPython: the file of --junit-xml."""
    path = folder / "results.xml"
    if not path.exists():
        return {}
    try:
        cases = list(ElementTree.parse(path).iter("testcase"))
    except ElementTree.ParseError:
        return {}
    return numbered((case.get("name"), junit_result(case)) for case in cases)


def junit_result(case):
    if case.find("error") is not None or case.find("failure") is not None:
        return "failed"
    return "skipped" if case.find("skipped") is not None else "passed"


REDIS_LINE = re.compile(r"^\[(ok|err|skip|ignore|exception|TIMEOUT)\]: (.*)$", re.MULTILINE)
REDIS_RESULTS = {"ok": "passed", "skip": "skipped", "ignore": "skipped"}


def read_redis(output, folder):
    """Redis: the lines of tests/test_helper.tcl. At its end it prints failed tests again, after `***`."""
    lines = REDIS_LINE.findall(output)
    names = ((re.sub(r" \(\d+ ms\)$| in tests/\S+\.tcl$", "", text), REDIS_RESULTS.get(kind, "failed")) for kind, text in lines)
    return numbered(names)


# Threads of a test print dots before the name of the next one.
SQLITE_TEST = re.compile(r"^\.*([^\s.]\S*?)\.\.\.", re.MULTILINE)
SQLITE_FAILED = re.compile(r"^!Failures on these tests:(.*)$", re.MULTILINE)
SQLITE_END = re.compile(r"^\d+ errors out of \d+ tests", re.MULTILINE)


def read_sqlite(output, folder):
    """SQLite: the output of test/tester.tcl with --verbose=1. Without its last line, the last test is the one in which it ended."""
    names = SQLITE_TEST.findall(output)
    failed = {name for line in SQLITE_FAILED.findall(output) for name in line.split()}
    if not SQLITE_END.search(output):
        failed.update(names[-1:])
    results = numbered((name, "failed" if name in failed else "passed") for name in names)
    return {**results, **{name: "failed" for name in failed - results.keys()}}


def as_a_whole(results, status, late):
    """The results and that of the whole run, which fails if it ended badly although no test failed."""
    if late is not None:
        return {**results, AS_A_WHOLE: f"failed: not done after {late:g} s"}
    if status is None:
        return {**results, AS_A_WHOLE: "failed: it ended without an exit status"}
    if status != 0 and "failed" not in results.values():
        return {**results, AS_A_WHOLE: f"failed: exit status {status}"}
    return {**results, AS_A_WHOLE: "passed" if results else "failed: no test ran"}


def failed(result):
    return result.startswith("failed")


def differing(base, counted):
    """(test, without counting, with it) for tests that counting changes for the worse. If the run as a whole is one of them, tests that
    did not run because of that are left out."""
    changed = []
    for test in sorted(base.keys() | counted.keys()):
        before, after = base.get(test, NOT_RUN), counted.get(test, NOT_RUN)
        if (failed(after) and not failed(before)) or (before == "passed" and after != "passed"):
            changed.append((test, before, after))
    if any(test == AS_A_WHOLE for test, *_ in changed):
        return [one for one in changed if one[2] != NOT_RUN]
    return changed


# ---- the suites ----


CPYTHON_MODULES = """
test_array test_ast test_atexit test_base64 test_bisect test_bytes test_bz2 test_call test_cmd_line test_codecs test_collections
test_compile test_contextlib test_copy test_coroutines test_csv test_ctypes test_datetime test_decimal test_deque test_dict test_epoll
test_exceptions test_faulthandler test_fcntl test_fork1 test_functools test_gc test_generators test_hashlib test_heapq test_io
test_itertools test_json test_list test_long test_lzma test_marshal test_memoryview test_mmap test_multiprocessing_main_handling
test_ordered_dict test_os test_pickle test_poll test_posix test_pty test_pyexpat test_queue test_random test_re test_select test_selectors
test_set test_shelve test_signal test_socket test_sqlite3 test_ssl test_struct test_subprocess test_sys test_tempfile test_thread
test_threadedtempfile test_threading test_threading_local test_threadsignals test_traceback test_tuple test_unicode test_str test_wait3
test_wait4 test_weakref test_xml_etree test_xml_etree_c test_zipfile test_zlib
"""

# Without units that measure memory (maxmemory, memefficiency, client-eviction, dismiss-mem), and without those that take minutes.
REDIS_UNITS = """
unit/type/string unit/type/incr unit/type/list unit/type/set unit/type/zset unit/type/hash unit/type/stream unit/keyspace unit/scan
unit/expire unit/multi unit/sort unit/dump unit/bitops unit/bitfield unit/geo unit/pubsub unit/protocol unit/auth unit/acl unit/scripting
unit/functions unit/lazyfree unit/tracking unit/introspection unit/other integration/aof integration/rdb integration/logging
"""

# Some of each kind. malloc*.test fail calls of SQLite's own allocator, one after the other.
SQLITE_FILES = """
alter attach autovacuum backup bind blob cast collate1 corrupt2 date distinct e_select expr fkey1 fkey2 fts3aa fts4aa func hook incrblob
index insert interrupt join json101 jrnlmode like limit lock malloc8 malloc9 mallocA mallocC mallocG mallocI mallocK memdb misc1 mmap1
mutex1 notify1 null pragma printf rowid rtree savepoint schema select1 select3 select6 shared shared2 sort stmt subquery temptable
thread001 thread002 thread1 thread2 trans trigger1 trigger2 types2 unique update upsert1 vacuum view vtab1 wal where window1 with1 zeroblob
"""

INCLUDED = """
import importlib.util, platform, sys
import test.libregrtest
print(platform.python_version(), *[name for name in sys.argv[1:] if importlib.util.find_spec("test." + name)])
"""


def prepare_cpython(work, arguments):
    installed = glob.glob(os.path.expanduser("~/.pyenv/versions/*/bin/python3"))
    installed.sort(key=lambda path: [int(number) for number in re.findall(r"\d+", path)], reverse=True)
    for interpreter in [arguments.python] if arguments.python else [system_python(), *installed]:
        asked = run_quietly([interpreter, "-c", INCLUDED, *CPYTHON_MODULES.split()], capture_output=True, text=True)
        version, *included = asked.stdout.split() or [""]
        if asked.returncode == 0 and "test_list" in included:
            return SimpleNamespace(interpreter=interpreter, included=included), f"CPython {version}"
    raise Refused("no interpreter with CPython's tests (Debian package libpython3.N-testsuite)")


def cpython_command(tree, unit, folder, worker):
    if unit not in tree.included:
        return None, folder
    # Sockets to a virtual machine's host: without an answer from it, these tests wait for ever.
    without = ["--ignore", "*VSOCK*"]
    return [tree.interpreter, "-m", "test", "--junit-xml", folder / "results.xml", "--timeout", UNIT_S, *without, unit], folder


def prepare_redis(work, arguments):
    tree = source("redis", work)
    if not (tree / "src" / "redis-server").exists():
        build(["make", "-j2", "MALLOC=libc"], tree)
    version = re.search(r'"([^"]+)"', (tree / "src" / "version.h").read_text())
    return tree, f"Redis {version[1] if version else ''}".strip()


def redis_command(tree, unit, folder, worker):
    """In a folder of its own: runtest removes what other runs have in tests/tmp."""
    place = folder / "redis"
    place.mkdir()
    shutil.copytree(tree / "tests", place / "tests", symlinks=True)
    for name in ("src", "runtest", "redis.conf", "sentinel.conf", "utils"):
        (place / name).symlink_to(tree / name)
    options = ["--clients", 1, "--baseport", 21_111 + 1000 * worker, "--portcount", 800, "--durable", "--no-latency", "--tags", "-slow"]
    return ["./runtest", "--single", unit, *options, "--timeout", UNIT_S], place


def prepare_sqlite(work, arguments):
    tree = source("sqlite3", work)
    if not (tree / "testfixture").exists():
        tcl = sorted(glob.glob("/usr/lib/*/tcl8*/tclConfig.sh") + glob.glob("/usr/lib/tcl8*/tclConfig.sh"))
        if not tcl:
            raise Refused("no tclConfig.sh (Debian package tcl-dev)")
        build(["./configure", f"--with-tcl={Path(tcl[0]).parent}"], tree)
        build(["make", "-j2", "testfixture"], tree)
    return tree, f"SQLite {(tree / 'VERSION').read_text().strip()}"


def sqlite_command(tree, unit, folder, worker):
    return [tree / "testfixture", tree / "test" / f"{unit}.test", "--verbose=1", f"--testdir={folder / 'database'}"], folder


SUITES = [
    Suite("cpython", tuple(CPYTHON_MODULES.split()), prepare_cpython, cpython_command, read_junit),
    Suite("redis", tuple(REDIS_UNITS.split()), prepare_redis, redis_command, read_redis),
    Suite("sqlite", tuple(SQLITE_FILES.split()), prepare_sqlite, sqlite_command, read_sqlite),
]


# ---- source packages ----


# The address of an archive of Debian or Ubuntu.
ARCHIVE = re.compile(r"https?://\S*(?:debian|ubuntu)")


def source_lines(text):
    """Of a file in one-line style, the lines of the distribution's archives, for source packages."""
    lines = (line.strip() for line in text.splitlines())
    return "".join(f"deb-src {line[4:]}\n" for line in lines if line.startswith("deb ") and ARCHIVE.search(line))


def source_stanzas(text):
    """The same of a file in deb822 style."""
    text = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    stanzas = re.split(r"\n\s*\n", text.strip())
    kept = [s for s in stanzas if re.search(r"(?mi)^Types:.*\bdeb\b", s) and ARCHIVE.search(s)]
    return "\n\n".join(re.sub(r"(?mi)^Types:.*$", "Types: deb-src", stanza) for stanza in kept) + ("\n" if kept else "")


def run_quietly(words, **options):
    return subprocess.run([str(word) for word in words], stdin=subprocess.DEVNULL, **options)


def build(words, folder, must=True):
    """Runs a step of a preparation; its output is in `preparation.log`."""
    with open(folder / "preparation.log", "ab") as log:
        # Without the options of a make that started this.
        env = {k: v for k, v in environment(SimpleNamespace(environment={})).items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
        try:
            status = run_quietly(words, cwd=folder, env=env, stdout=log, stderr=log, timeout=BUILD_S).returncode
        except FileNotFoundError:
            raise Refused(f"no {words[0]}") from None
        except subprocess.TimeoutExpired:
            raise Refused(f"{words[0]}: not done after {BUILD_S} s") from None
    if must and status != 0:
        said = (folder / "preparation.log").read_bytes()[-4096:].decode(errors="replace").strip().splitlines()
        raise Refused(f"{' '.join(map(str, words[:2]))} failed ({status}): {said[-1] if said else 'no error message'}")


def source(package, work):
    """The unpacked source of a package, without the distribution's patches. The machine's own lists of packages stay as they are."""
    tree = work / package
    if tree.exists():
        return tree
    parts, lists = work / "apt" / "parts", work / "apt" / "lists"
    for folder in (parts, lists / "partial", work / "apt" / "cache"):
        folder.mkdir(parents=True, exist_ok=True)
    for path in map(Path, ["/etc/apt/sources.list", *sorted(glob.glob("/etc/apt/sources.list.d/*"))]):
        make = {".list": source_lines, ".sources": source_stanzas}.get(path.suffix)
        if make and path.exists() and (text := make(path.read_text(errors="replace"))):
            (parts / path.name).write_text(text)
    if not any(parts.iterdir()):
        raise Refused("no archive of Debian or Ubuntu in /etc/apt")
    options = {
        "Dir::Etc::SourceList": "/dev/null",
        "Dir::Etc::SourceParts": parts,
        "Dir::State::Lists": lists,
        "Dir::Cache": work / "apt" / "cache",
        # Its own user may not write here.
        "APT::Sandbox::User": "root",
    }
    apt = ["apt-get", "-q", *[word for name, value in options.items() for word in ("-o", f"{name}={value}")]]
    # An archive without source packages fails the update; those of other archives are there all the same.
    build([*apt, "update"], work, must=False)
    build([*apt, "source", "--download-only", package], work)
    description = sorted(work.glob(f"{package}_*.dsc"))
    if not description:
        raise Refused(f"no source package {package}")
    new = work / f"{package}.new"
    shutil.rmtree(new, ignore_errors=True)
    # apt-get has compared the checksums.
    build(["dpkg-source", "--no-check", "--skip-patches", "-x", description[-1], new], work)
    new.rename(tree)
    return tree


# ---- running ----


# Only a shell sees how the tests ended: `allocwall count` succeeds if it counted.
KEEP_STATUS = '"$@"; echo $? >"$0"'


class Stopped(Exception):
    """The bench ends early."""


@contextlib.contextmanager
def scratch(parent=None):
    """A temporary folder. What a test made unreadable there does not fail the bench."""
    folder = Path(tempfile.mkdtemp(prefix="allocwall-suites-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Runner:
    def __init__(self, arguments, work):
        self.binary, self.runs = arguments.binary.resolve(), work / "runs"
        self.runs.mkdir(exist_ok=True)
        self.limit_s = arguments.limit
        self.stopped = threading.Event()

    def run(self, suite, tree, unit, arm, worker):
        """A part of a suite under one arm; None if this version does not have it."""
        if self.stopped.is_set():
            raise Stopped
        with scratch(self.runs) as folder:
            command, place = suite.command(tree, unit, folder, worker)
            if command is None:
                return None
            words = ["sh", "-c", KEEP_STATUS, folder / "status", *command]
            report = folder / "count.json"
            if ARMS[arm] is not None:
                words = [self.binary, "count", *ARMS[arm], "--json", "-o", report, "--", *words]
            began = time.monotonic()
            late = self.wait(words, place, folder)
            seconds = time.monotonic() - began
            output = (folder / "output").read_bytes().decode(errors="replace")
            status = folder / "status"
            status = int(status.read_text()) if status.exists() else None
            results = as_a_whole(suite.read(output, folder), status, late)
            calls = counted_calls(report) if ARMS[arm] is not None else 0
            if ARMS[arm] is not None and calls == 0:
                results[COUNTING] = "failed: no call was counted"
            return Run(results, seconds, calls, output[-TAIL:])

    def wait(self, words, place, folder):
        """Runs it to its end; returns the time limit if it was ended."""
        env = environment(SimpleNamespace(environment={"TERM": "dumb"}))
        with open(folder / "output", "wb") as output:
            process = subprocess.Popen(
                [str(word) for word in words], cwd=place, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
            try:
                process.wait(timeout=self.limit_s)
                return None
            except subprocess.TimeoutExpired:
                return self.limit_s
            finally:
                if process.returncode is None:
                    end_descendants(process.pid)
                    process.kill()
                    process.wait()

    def part(self, suite, tree, unit, worker):
        """{arm: (run, differences, those that did not differ again)}; None if this version does not have the part."""
        arms = random.sample(list(ARMS), len(ARMS))
        runs = {arm: self.run(suite, tree, unit, arm, worker) for arm in arms}
        if runs["none"] is None:
            return None
        judged = {}
        for arm, run in runs.items():
            found = differing(runs["none"].results, run.results) if arm != "none" else []
            again = []
            if found:
                second = [self.run(suite, tree, unit, one, worker).results for one in ("none", arm)]
                again = [test for test, *_ in differing(*second)]
            judged[arm] = (run, [one for one in found if one[0] in again], [one for one in found if one[0] not in again])
        return judged


def counted_calls(path):
    """0 if nothing was counted."""
    try:
        return int(json.loads(path.read_text())["calls"]["all"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def add(total, unit, run, differences, once):
    results = [result.split(":")[0] for test, result in run.results.items() if test not in (AS_A_WHOLE, COUNTING)]
    total.passed += results.count("passed")
    total.failed += results.count("failed")
    total.skipped += results.count("skipped")
    total.seconds += run.seconds
    total.calls += run.calls
    total.differences += [(unit, *one, run.tail) for one in differences]
    total.once += [(unit, *one) for one in once]


def run_suite(suite, tree, units, runner, suite_s):
    """({arm: Total}, parts that this version does not have, parts that were not run because the time was over)."""
    totals = {arm: Total() for arm in ARMS}
    workers, ends = queue.Queue(), time.monotonic() + suite_s
    for worker in range(WORKERS):
        workers.put(worker)

    def one(unit):
        if time.monotonic() > ends:
            return unit, "late"
        worker = workers.get()
        try:
            return unit, runner.part(suite, tree, unit, worker)
        finally:
            workers.put(worker)

    absent, late = [], []
    with ThreadPoolExecutor(WORKERS) as pool:
        try:
            for done, (unit, judged) in enumerate(pool.map(one, units), 1):
                if judged is None:
                    absent.append(unit)
                elif judged == "late":
                    late.append(unit)
                else:
                    for arm, found in judged.items():
                        add(totals[arm], unit, *found)
                progress(suite.name, done, len(units))
        except BaseException:
            # The pool waits for its threads.
            runner.stopped.set()
            end_descendants()
            raise
    return totals, absent, late


def progress(name, done, whole):
    if sys.stderr.isatty():
        print(f"\r{name}: {done}/{whole}", end="\n" if done == whole else "", file=sys.stderr, flush=True)


def entry_of(suite, work, arguments, runner):
    """The document's entry of a suite."""
    try:
        tree, version = suite.prepare(work, arguments)
    except (Refused, OSError) as error:
        print(f"skipped: {suite.name}: {error}", file=sys.stderr)
        return {"suite": suite.name, "absent": str(error)}
    totals, absent, late = run_suite(suite, tree, arguments.units or suite.units, runner, arguments.suite_limit)
    keys = ("unit", "test", "without", "with", "output")
    arms = {}
    for arm, total in totals.items():
        lists = {kind: [dict(zip(keys, one)) for one in getattr(total, kind)] for kind in ("differences", "once")}
        arms[arm] = {**vars(total), **lists}
    return {"suite": suite.name, "version": version, "arms": arms, "absent_units": absent, "late_units": late}


# ---- the page ----


def plain(text):
    return text.replace("|", "\\|").replace("`", "'")


def suite_rows(entry):
    if "absent" in entry:
        return [row(entry["suite"], "all", "not run: " + plain(entry["absent"]), *[""] * 4)]
    return [
        row(entry["version"], TITLES[arm], *[f"{total[key]:,}" for key in ("passed", "failed", "skipped")], f"{total['seconds']:.0f}",
            f"{total['calls']:,}" if ARMS[arm] is not None else "")
        for arm, total in entry["arms"].items()
    ]


def listed(entries, kind):
    for entry in entries:
        for arm, total in entry.get("arms", {}).items():
            for one in total[kind]:
                what = f"`{plain(one['test'])}` in {one['unit']}"
                yield f"- {entry['version']}, {TITLES[arm]}: {what}: {plain(one['without'])} without counting, {plain(one['with'])} with it"


def generated(document):
    """The lines of the generated part."""
    facts, entries = document["machine"], document["suites"]
    kind = "a virtual machine" if facts["virtual"] else "not virtual"
    lines = [
        f"Run on {document['date']}: {facts['cpu']}, {facts['cpus']} CPUs, {kind}, Linux {facts['kernel']}; {document['tool']}.",
        "",
        row("suite", "arm", "passed", "failed", "skipped", "seconds", "calls counted"),
        "| --- " * 7 + "|",
    ]
    for entry in entries:
        lines += suite_rows(entry)
    for entry in entries:
        for key, why in (("absent_units", "this version does not have"), ("late_units", "not run, the time was over:")):
            if entry.get(key):
                lines += ["", f"{entry['version']}: {why} {', '.join(entry[key])}."]
    differences, once = list(listed(entries, "differences")), list(listed(entries, "once"))
    if not any("arms" in entry for entry in entries):
        return lines
    lines += ["", "**Differences**", "", *(differences or ["None: no test that passes without counting failed with it."])]
    if once:
        lines += ["", "Differed once, but not again:", "", *once]
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=", ".join(suite.name for suite in SUITES))
    parser.add_argument("--binary", type=Path, default=ROOT / "target" / "release" / "allocwall")
    parser.add_argument("--units", nargs="+", metavar="UNIT", help="only these parts, of one suite")
    parser.add_argument("--work", type=Path, help="keep sources and builds in this folder (default: a temporary one)")
    parser.add_argument("--python", help="interpreter with CPython's tests")
    parser.add_argument("--limit", type=float, default=UNIT_S, metavar="SECONDS", help=f"of each part (default: {UNIT_S})")
    parser.add_argument("--suite-limit", type=float, default=SUITE_S, metavar="SECONDS", help=f"of each suite (default: {SUITE_S})")
    parser.add_argument("--json", type=Path, help="write all figures, and the output of differing parts, to this file")
    parser.add_argument("--page", type=Path, help="default: docs/count-cost.md; with SUITE or --units: none")
    arguments = parser.parse_args()
    if unknown := set(arguments.suites) - {suite.name for suite in SUITES}:
        parser.error(f"no suite named {', '.join(sorted(unknown))}")
    if arguments.units and len(arguments.suites) != 1:
        parser.error("--units needs one SUITE")
    if not arguments.binary.is_file():
        parser.error(f"{arguments.binary} does not exist; run make build")
    # A page of only some suites would replace the results of all other suites.
    page = arguments.page or (None if arguments.suites else PAGE)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with scratch() as temporary:
        work = (arguments.work or temporary).resolve()
        work.mkdir(parents=True, exist_ok=True)
        runner = Runner(arguments, work)
        try:
            chosen = [suite for suite in SUITES if not arguments.suites or suite.name in arguments.suites]
            entries = [entry_of(suite, work, arguments, runner) for suite in chosen]
        finally:
            end_descendants()
    version = run_quietly([runner.binary, "--version"], capture_output=True, text=True)
    document = {"date": datetime.date.today().isoformat(), "machine": machine(), "tool": version.stdout.strip(), "suites": entries}
    lines = generated(document)
    print("\n".join(lines))
    if arguments.json:
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    if page:
        page.write_text(put(page.read_text(), "suites", lines))
    ran = [entry for entry in entries if "arms" in entry]
    return 1 if not ran or any(total["differences"] for entry in ran for total in entry["arms"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
