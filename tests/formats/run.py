#!/usr/bin/env python3
"""Reads the formats of docs/formats.md with the tools that they are for: tests/formats/run.py --binary target/debug/allocwall

Records a short run of a program whose name is hostile, writes each format, and compares what the tool reads with the JSON document of the
same recording. pyarrow, DuckDB and jsonschema are installed in target/formats; the schema of speedscope comes from its npm package.
Ends with `N passed, N failed, N skipped`.
"""

import argparse
import csv
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
VENV = ROOT / "target" / "formats"
PACKAGES = ["pyarrow", "duckdb", "jsonschema"]
LIMIT_S = 300
# A spreadsheet would run it; it also has what ends a cell of CSV.
NAME = '=1+1,"x'
# Touches new memory, calls the allocator, and computes.
PROGRAM = """
import mmap, time
end = time.monotonic() + 3
while time.monotonic() < end:
    with mmap.mmap(-1, 8 << 20) as memory:
        for at in range(0, len(memory), 4096):
            memory[at] = 1
    kept = [bytearray(3000) for _ in range(2000)]
    sum(len(block) for block in kept)
"""


class Skip(Exception):
    """The machine lacks what the test needs."""


class Case:
    """One recording, and its formats."""

    def __init__(self, binary, folder):
        self.binary, self.folder = binary, folder
        self.recording = folder / "recording"
        target = folder / NAME
        target.symlink_to(Path(sys.executable).resolve())
        self.run("diagnose", "-d", "2", "--no-calibrate", "-o", self.recording, "--", target, "-c", PROGRAM)
        self.document = json.loads(self.run("report", self.recording, "--json"))
        self.lines = {line["class"]: line for line in self.document["bill"]["on_cpu"]}
        self.samples = {key: line["samples"] for key, line in self.lines.items() if line["samples"]}
        self.period_ns = self.document["recording"]["sample_period_ns"]

    def run(self, *arguments):
        command = [self.binary, *map(str, arguments)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S, cwd=self.folder)
        assert done.returncode == 0, f"{command}: {done.stderr.decode()}"
        return done.stdout

    def write(self, name, *options):
        path = self.folder / name
        self.run("report", self.recording, "-o", path, *options)
        return path


def close(a, b):
    return abs(a - b) <= 1e-9 * max(1.0, abs(a), abs(b))


def tables(case):
    """The tables that this recording has, each as Parquet and CSV."""
    for table in ("bill", "series", "samples", "faults"):
        try:
            yield table, case.write(f"{table}.parquet", "--table", table), case.write(f"{table}.csv", "--table", table)
        except AssertionError as error:
            # The faults have their owners here or in the samples.
            assert table == "faults" and "error: " in str(error), error


def parquet_read_by_pyarrow(case):
    import pyarrow
    import pyarrow.parquet

    for name, parquet, text in tables(case):
        table = pyarrow.parquet.read_table(parquet)
        table.validate(full=True)
        with open(text, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file, strict=True))
        assert table.num_rows == len(rows) > 0, name
        assert table.column_names == list(rows[0]), name
        for column in table.column_names:
            kind = table.schema.field(column).type
            for value, row in zip(table[column].to_pylist(), rows):
                cell = row[column]
                if value is None:
                    assert cell == "", f"{name}.{column}: {cell}"
                elif pyarrow.types.is_string(kind):
                    assert cell in (value, "'" + value), f"{name}.{column}: {cell}"
                else:
                    assert float(cell) == value, f"{name}.{column}: {cell}"
    metadata = pyarrow.parquet.read_schema(case.folder / "series.parquet").metadata
    assert metadata[b"unit.resident_bytes"] == b"bytes" and metadata[b"unit.t_s"] == b"s", metadata
    bill = {row["line"]: row for row in pyarrow.parquet.read_table(case.folder / "bill.parquet").to_pylist() if row["kind"] == "cpu"}
    assert set(bill) == set(case.lines)
    for key, line in case.lines.items():
        assert bill[key]["samples"] == line["samples"] and close(bill[key]["share"], line["share"]["point"]), key


def parquet_and_csv_read_by_duckdb(case):
    import duckdb

    for name, parquet, text in tables(case):
        of_parquet = duckdb.sql(f"select * from read_parquet('{parquet}')")
        of_csv = duckdb.sql(f"select * from read_csv('{text}', header = true, all_varchar = true)")
        assert of_parquet.columns == of_csv.columns and len(of_parquet) == len(of_csv), name
    by_line = duckdb.sql(f"select line, count(*) from '{case.folder}/samples.parquet' group by line").fetchall()
    assert dict(by_line) == case.samples
    (cpu_s,) = duckdb.sql(f"select sum(cpu_s) from '{case.folder}/samples.parquet'").fetchall()[0]
    assert close(cpu_s, sum(case.samples.values()) * case.period_ns / 1e9), cpu_s
    (names,) = duckdb.sql(f"select list(distinct process) from '{case.folder}/samples.parquet'").fetchall()[0]
    assert NAME in names, names
    grown = duckdb.sql(f"select sum(cpu_user_s + cpu_system_s), sum(minor_faults) from '{case.folder}/series.parquet'").fetchall()[0]
    assert grown[0] > 0 and grown[1] > 0, grown


def a_name_is_no_formula(case):
    with open(case.write("samples.csv", "--table", "samples"), newline="", encoding="utf-8") as file:
        names = {row["process"] for row in csv.DictReader(file, strict=True)}
    assert "'" + NAME in names and not any(name.startswith("=") for name in names), names


def pprof_read_by_go(case):
    go = shutil.which("go") or shutil.which("/usr/local/go/bin/go")
    if not go:
        raise Skip("no go on this machine")
    profile = case.write("profile.pb.gz")

    def pprof(*arguments):
        done = subprocess.run([go, "tool", "pprof", *arguments, profile], capture_output=True, text=True, timeout=LIMIT_S)
        assert done.returncode == 0, done.stderr
        return done.stdout

    raw = pprof("-raw")
    assert f"Period: {case.period_ns}" in raw and "samples/count cpu/nanoseconds" in raw, raw[:500]
    counts = {}
    for count, cpu_ns, labels in re.findall(r"^ +(\d+) +(\d+): [\d ]+\n +(.*cost_class.*)$", raw, re.MULTILINE):
        assert int(cpu_ns) == int(count) * case.period_ns
        key = re.search(r"cost_class:\[(\w+)\]", labels)[1]
        counts[key] = counts.get(key, 0) + int(count)
    assert counts == case.samples, counts
    top = pprof("-top", "-sample_index=samples")
    assert f"of {sum(case.samples.values())} total" in top, top[:500]


def firefox_fits_its_schema(case):
    import jsonschema

    profile = json.loads(case.write("a.firefox.json").read_text())
    jsonschema.Draft7Validator(json.loads((HERE / "firefox.schema.json").read_text())).validate(profile)
    shared = profile["shared"]

    def complete(name, table):
        for column, cells in table.items():
            assert not isinstance(cells, list) or len(cells) == table["length"], f"{name}.{column}"

    def within(name, indices, size):
        assert all(index is None or index < size for index in indices), name

    for name, table in shared.items():
        if isinstance(table, dict):
            complete(name, table)
    stacks, frames, functions, resources = (shared[f"{name}Table"] for name in ("stack", "frame", "func", "resource"))
    # A prefix comes before its stacks.
    assert all(prefix is None or prefix < at for at, prefix in enumerate(stacks["prefix"]))
    within("stack.frame", stacks["frame"], frames["length"])
    within("frame.func", frames["func"], functions["length"])
    within("frame.category", frames["category"], len(profile["meta"]["categories"]))
    within("func.name", functions["name"], len(shared["stringArray"]))
    within("func.resource", functions["resource"], resources["length"])
    within("resource.lib", resources["lib"], len(profile["libs"]))
    counts = {}
    for thread in profile["threads"]:
        complete("samples", thread["samples"])
        complete("markers", thread["markers"])
        within("samples.stack", thread["samples"]["stack"], stacks["length"])
        for stack, weight in zip(thread["samples"]["stack"], thread["samples"]["weight"]):
            category = profile["meta"]["categories"][frames["category"][stacks["frame"][stack]]]["name"]
            counts[category] = counts.get(category, 0) + weight
    assert counts == {case.lines[key]["title"]: samples for key, samples in case.samples.items()}, counts
    for counter in profile["counters"]:
        complete("counter", counter["samples"])
        assert profile["threads"][counter["mainThreadIndex"]]["pid"] == counter["pid"]
    resident = [counter for counter in profile["counters"] if counter["name"] == "resident memory"]
    assert sum(resident[0]["samples"]["count"]) > 0


def speedscope_fits_its_schema(case):
    import jsonschema

    npm = shutil.which("npm")
    if not npm:
        raise Skip("no npm on this machine")
    kept = VENV / "speedscope.schema.json"
    if not kept.exists():
        subprocess.run([npm, "pack", "--silent", "speedscope@1.25.0"], check=True, cwd=case.folder, stdout=subprocess.DEVNULL, timeout=LIMIT_S)
        with tarfile.open(next(case.folder.glob("speedscope-*.tgz"))) as package:
            kept.write_bytes(package.extractfile("package/dist/release/file-format-schema.json").read())
    file = json.loads(case.write("a.speedscope.json").read_text())
    jsonschema.Draft7Validator(json.loads(kept.read_text())).validate(file)
    total = 0
    for profile in file["profiles"]:
        assert len(profile["samples"]) == len(profile["weights"])
        assert profile["endValue"] == sum(profile["weights"])
        total += profile["endValue"]
        assert all(frame < len(file["shared"]["frames"]) for stack in profile["samples"] for frame in stack)
    assert total == sum(case.samples.values()) * case.period_ns


def the_same_recording_gives_the_same_bytes(case):
    for name in ("profile.pb.gz", "a.firefox.json", "a.speedscope.json", "a.collapsed", "bill.parquet", "bill.csv"):
        first = case.write(name).read_bytes()
        assert first and case.write(name).read_bytes() == first, name


TESTS = [
    parquet_read_by_pyarrow,
    parquet_and_csv_read_by_duckdb,
    a_name_is_no_formula,
    pprof_read_by_go,
    firefox_fits_its_schema,
    speedscope_fits_its_schema,
    the_same_recording_gives_the_same_bytes,
]


def inside():
    """Runs this script again with the packages that it needs."""
    python = VENV / "bin" / "python"
    if Path(sys.prefix) == VENV:
        return None
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES], check=True)
    return subprocess.run([python, __file__, *sys.argv[1:]]).returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", required=True, help="the program to test")
    binary = Path(parser.parse_args().binary).resolve()
    status = inside()
    if status is not None:
        return status
    passed, failed, skipped = 0, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        case = Case(binary, Path(folder))
        for test in TESTS:
            name = test.__name__.replace("_", " ")
            try:
                test(case)
                passed += 1
            except Skip as reason:
                skipped += 1
                print(f"skipped: formats.{name}: {reason}")
            except Exception as error:
                failed += 1
                traceback.print_exc(file=sys.stdout)
                print(f"failed: formats.{name}: {error!r:.200}")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
