"""Reading and comparing the results of test suites."""

import re
import tempfile
import unittest
from pathlib import Path

from count_suites import (
    AS_A_WHOLE, SUITES, Run, Total, add, as_a_whole, counted_calls, differing, generated, numbered, read_junit, read_redis, read_sqlite,
    source_lines, source_stanzas,
)

JUNIT = """<?xml version="1.0"?>
<testsuites tests="4"><testsuite name="x">
<testcase name="test.test_gc.A.test_one" time="0.1"/>
<testcase name="test.test_gc.A.test_two"><failure>no</failure></testcase>
<testcase name="test.test_gc.A.test_three"><error>no</error></testcase>
<testcase name="test.test_gc.A.test_four"><skipped>no</skipped></testcase>
</testsuite></testsuites>
"""

REDIS = """Starting test server at port 21079
[ready]: 4711
Testing unit/type/string
[ok]: SET and GET an item (3 ms)
[ok]: SET and GET an item (1 ms)
[err]: Very big payload in GET/SET in tests/unit/type/string.tcl
Expected 'a' to equal or match 'b'
[ignore]: Large one: Tag: slow denied
[skip]: Another one
[1/1 done]: unit/type/string (2 seconds)
*** [err]: Very big payload in GET/SET in tests/unit/type/string.tcl
"""

SQLITE = """select1-1.1... Ok
select1-1.2...
! select1-1.2 expected: [1]
! select1-1.2 got:      [2]
select1-1.3... Ok
SQLite 2022-12-28 df5c253c0b3dd24916e4ec7cf77d3db5294cc9fd45ae7b9c5e82ad8197f3alt1
1 errors out of 3 tests on host Linux 64-bit little-endian
!Failures on these tests: select1-1.2
All memory allocations freed - no leaks
"""


class Reading(unittest.TestCase):
    def test_cpython(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            self.assertEqual(read_junit("", folder), {})
            (folder / "results.xml").write_text("<testsuites>")
            self.assertEqual(read_junit("", folder), {})
            (folder / "results.xml").write_text(JUNIT)
            found = {name.rpartition(".")[2]: result for name, result in read_junit("", folder).items()}
        self.assertEqual(found, {"test_one": "passed", "test_two": "failed", "test_three": "failed", "test_four": "skipped"})

    def test_redis(self):
        found = {
            "SET and GET an item": "passed",
            "SET and GET an item #2": "passed",
            "Very big payload in GET/SET": "failed",
            "Large one: Tag: slow denied": "skipped",
            "Another one": "skipped",
        }
        self.assertEqual(read_redis(REDIS, None), found)
        self.assertEqual(read_redis("[exception]: Executing test client: I/O error\n", None), {"Executing test client: I/O error": "failed"})
        self.assertEqual(read_redis("Starting test server\n", None), {})

    def test_sqlite(self):
        self.assertEqual(read_sqlite(SQLITE, None), {"select1-1.1": "passed", "select1-1.2": "failed", "select1-1.3": "passed"})

    def test_dots_of_sqlite_s_threads_are_no_part_of_a_name(self):
        dots = "thread002.1... Ok\n.......thread002.2.5... Ok\n0 errors out of 2 tests on a machine"
        self.assertEqual(read_sqlite(dots, None), {"thread002.1": "passed", "thread002.2.5": "passed"})

    def test_sqlite_that_ends_early_failed_in_its_last_test(self):
        crashed = "select1-1.1... Ok\nselect1-1.2..."
        self.assertEqual(read_sqlite(crashed, None), {"select1-1.1": "passed", "select1-1.2": "failed"})
        self.assertEqual(read_sqlite("", None), {})

    def test_a_second_test_of_a_name_has_a_number(self):
        self.assertEqual(numbered([("a", 1), ("b", 2), ("a", 3), ("a", 4)]), {"a": 1, "b": 2, "a #2": 3, "a #3": 4})

    def test_calls_are_those_of_the_document(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "count.json"
            self.assertEqual(counted_calls(path), 0)
            for text, calls in (('{"calls": {"all": 7}}', 7), ("{", 0), ("[]", 0), ('{"calls": null}', 0)):
                path.write_text(text)
                self.assertEqual(counted_calls(path), calls)


class Comparing(unittest.TestCase):
    def test_a_run_fails_as_a_whole_only_if_no_test_says_why(self):
        self.assertEqual(as_a_whole({"a": "passed"}, 0, None)[AS_A_WHOLE], "passed")
        self.assertEqual(as_a_whole({"a": "failed"}, 2, None)[AS_A_WHOLE], "passed")
        self.assertEqual(as_a_whole({"a": "passed"}, 139, None)[AS_A_WHOLE], "failed: exit status 139")
        self.assertEqual(as_a_whole({"a": "passed"}, None, None)[AS_A_WHOLE], "failed: it ended without an exit status")
        self.assertEqual(as_a_whole({"a": "passed"}, None, 300.0)[AS_A_WHOLE], "failed: not done after 300 s")
        self.assertEqual(as_a_whole({}, 0, None)[AS_A_WHOLE], "failed: no test ran")

    def test_what_counting_makes_worse_is_a_difference(self):
        for before, after in (("passed", "failed"), ("passed", "skipped"), ("passed", None), ("skipped", "failed"), (None, "failed")):
            base, counted = ({"t": one} if one else {} for one in (before, after))
            found = differing(base, counted)
            self.assertEqual([test for test, *_ in found], ["t"], (before, after))

    def test_what_fails_also_without_counting_is_none(self):
        for before, after in (("failed", "failed"), ("failed", None), ("failed", "passed"), ("skipped", "passed"), ("skipped", None),
                              (None, "passed"), ("passed", "passed"), ("failed: exit status 1", "failed: exit status 2")):
            base, counted = ({"t": one} if one else {} for one in (before, after))
            self.assertEqual(differing(base, counted), [], (before, after))

    def test_a_crash_is_one_difference_and_not_one_for_each_test_after_it(self):
        base = {**{f"t{n}": "passed" for n in range(50)}, AS_A_WHOLE: "passed"}
        counted = {"t0": "passed", "t1": "failed", AS_A_WHOLE: "failed: exit status 139"}
        self.assertEqual([test for test, *_ in differing(base, counted)], [AS_A_WHOLE, "t1"])

    def test_totals_count_tests_and_not_runs(self):
        total = Total()
        results = {"a": "passed", "b": "failed", "c": "skipped", "d": "passed", AS_A_WHOLE: "passed"}
        add(total, "unit", Run(results, 1.5, 70, "the end"), [("b", "passed", "failed")], [])
        add(total, "unit2", Run({"a": "passed", AS_A_WHOLE: "passed"}, 1.0, 5), [], [("a", "passed", "failed")])
        self.assertEqual((total.passed, total.failed, total.skipped, total.seconds, total.calls), (3, 1, 1, 2.5, 75))
        self.assertEqual(total.differences, [("unit", "b", "passed", "failed", "the end")])
        self.assertEqual(total.once, [("unit2", "a", "passed", "failed")])


class Sources(unittest.TestCase):
    def test_lines_of_the_distribution(self):
        text = "# deb http://deb.debian.org/debian x main\ndeb [signed-by=/k] http://deb.debian.org/debian x main\n"
        text += "deb-src http://deb.debian.org/debian x main\ndeb https://packages.cloud.google.com/apt sdk main\n"
        self.assertEqual(source_lines(text), "deb-src [signed-by=/k] http://deb.debian.org/debian x main\n")
        self.assertEqual(source_lines(""), "")

    def test_stanzas_of_the_distribution(self):
        text = "Types: deb\n# a remark\nURIs: http://deb.debian.org/debian\nSuites: x\n\nTypes: deb\nURIs: https://deb.nodesource.com/n\n"
        text += "\nTypes: deb-src\nURIs: http://archive.ubuntu.com/ubuntu\n"
        found = source_stanzas(text)
        self.assertIn("Types: deb-src\nURIs: http://deb.debian.org/debian\nSuites: x\n", found)
        self.assertNotIn("nodesource", found)
        self.assertNotIn("Types: deb\n", found)
        self.assertEqual(source_stanzas("# nothing\n"), "")


def entry(**changed):
    arm = {"passed": 1200, "failed": 1, "skipped": 2, "seconds": 61.4, "calls": 0, "differences": [], "once": []}
    arms = {"none": dict(arm), "exact": {**arm, "calls": 1234567}, "samples": {**arm, "calls": 7, **changed}}
    return {"suite": "redis", "version": "Redis 7", "arms": arms, "absent_units": [], "late_units": []}


def lines_of(*entries):
    facts = {"cpu": "A CPU", "cpus": 2, "virtual": False, "kernel": "6.1"}
    return generated({"date": "2026-01-02", "machine": facts, "tool": "allocwall 1", "suites": list(entries)})


class Page(unittest.TestCase):
    DIFFERENCE = {"unit": "unit/x", "test": "a | b", "without": "passed", "with": "failed", "output": "…"}

    def test_each_suite_and_arm_has_a_row(self):
        lines = lines_of(entry(), {"suite": "sqlite", "absent": "no tclConfig.sh"})
        self.assertIn("| Redis 7 | nothing | 1,200 | 1 | 2 | 61 |  |", lines)
        self.assertIn("| Redis 7 | `allocwall count --exact` | 1,200 | 1 | 2 | 61 | 1,234,567 |", lines)
        self.assertIn("| sqlite | all | not run: no tclConfig.sh |  |  |  |  |", lines)
        self.assertEqual({line.count("|") for line in lines if line.startswith("|")}, {8})
        self.assertIn("None: no test that passes without counting failed with it.", lines)

    def test_differences_are_listed(self):
        lines = lines_of(entry(differences=[self.DIFFERENCE]))
        found = r"- Redis 7, `allocwall count`: `a \| b` in unit/x: passed without counting, failed with it"
        self.assertIn(found, lines)
        self.assertFalse(any(line.startswith("None") or "not again" in line for line in lines))
        lines = lines_of(entry(once=[self.DIFFERENCE]))
        self.assertLess(lines.index("Differed once, but not again:"), lines.index(found))
        self.assertTrue(any(line.startswith("None") for line in lines))

    def test_without_a_suite_there_is_no_judgement(self):
        self.assertFalse(any("Differences" in line for line in lines_of({"suite": "redis", "absent": "no cc"})))

    def test_parts_that_did_not_run_are_named(self):
        one = {**entry(), "absent_units": ["test_x"], "late_units": ["test_y", "test_z"]}
        text = "\n".join(lines_of(one))
        self.assertIn("Redis 7: this version does not have test_x.", text)
        self.assertIn("Redis 7: not run, the time was over: test_y, test_z.", text)


class Suites(unittest.TestCase):
    def test_no_part_is_listed_twice_and_each_has_a_plain_name(self):
        for suite in SUITES:
            self.assertEqual(len(set(suite.units)), len(suite.units), suite.name)
            self.assertGreater(len(suite.units), 20)
            for unit in suite.units:
                self.assertRegex(unit, re.compile(r"^[\w/-]+$"))


if __name__ == "__main__":
    unittest.main()
