"""The statistics, the judgement and the page of the bench of what counting costs."""

import copy
import re
import unittest
from types import SimpleNamespace

import count_cost
from count_cost import AIMS, ARMS, OURS, PAGE, PROGRAMS, added, compare, generated, judge, put, results, signed

STORM, SQLITE = (next(p for p in PROGRAMS if p.name == name) for name in ("storm", "sqlite"))


def series(*target_s, whole=1.0, calls=None):
    """Runs of rounds 1, 2, …"""
    return {n: {"target_s": s, "whole_s": s * whole, "calls_per_cpu_s": calls} for n, s in enumerate(target_s, 1)}


def arm(name):
    return next(arm for arm in ARMS if arm.name == name)


def interval(low, point, high):
    return {"low": low, "point": point, "high": high}


class Statistics(unittest.TestCase):
    def test_a_steady_cost_is_found_with_its_sign(self):
        for factor, percent in ((1.03, 3.0), (0.9, -10.0), (40.0, 3900.0), (1.0, 0.0)):
            cost = added([0.5] * 9, [0.5 * factor] * 9)
            for end in ("low", "point", "high"):
                self.assertAlmostEqual(cost[end], percent)

    def test_rounds_are_pairs(self):
        base = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]
        cost = added(base, [value * 1.02 for value in base])
        self.assertAlmostEqual(cost["low"], 2.0)
        self.assertAlmostEqual(cost["high"], 2.0)

    def test_the_interval_of_nine_rounds_is_that_of_the_second_to_the_eighth(self):
        cost = added([1.0] * 9, [1 + n / 100 for n in range(1, 10)])
        self.assertAlmostEqual(cost["low"], 2.0)
        self.assertAlmostEqual(cost["point"], 5.0)
        self.assertAlmostEqual(cost["high"], 8.0)

    def test_the_whole_interval_decides(self):
        self.assertEqual(judge(interval(-1.0, 1.0, 2.0), 2.0), "met")
        self.assertEqual(judge(interval(1.0, 1.5, 2.1), 2.0), "undecided")
        self.assertEqual(judge(interval(1.9, 3.0, 4.0), 2.0), "undecided")
        self.assertEqual(judge(interval(2.1, 3.0, 4.0), 2.0), "missed")


class Comparing(unittest.TestCase):
    def test_a_loop_is_judged_in_nanoseconds_and_a_real_program_in_per_cent(self):
        runs = {("storm", "none"): series(*[100e-9] * 9), ("storm", "exact"): series(*[101.5e-9] * 9, whole=1.2)}
        entry = compare(STORM, arm("exact"), runs, {})
        self.assertAlmostEqual(entry["target"]["added_s"]["point"], 1.5e-9)
        self.assertAlmostEqual(entry["whole"]["added_percent"]["point"], 21.8)
        self.assertEqual((entry["aim"], entry["result"], entry["rounds"]), (2.0, "met", 9))
        runs = {("sqlite", "none"): series(*[0.5] * 9), ("sqlite", "exact"): series(*[0.52] * 9)}
        self.assertEqual(compare(SQLITE, arm("exact"), runs, {})["result"], "missed")

    def test_only_rounds_with_both_runs_count(self):
        runs = {("sqlite", "none"): series(0.5, 0.5, 0.5), ("sqlite", "samples"): {2: series(0.6)[1], 3: series(0.6)[1]}}
        entry = compare(SQLITE, arm("samples"), runs, {})
        self.assertEqual(entry["rounds"], 2)
        self.assertAlmostEqual(entry["target"]["added_percent"]["point"], 20.0)

    def test_samples_of_an_allocator_are_compared_with_that_allocator(self):
        runs = {("sqlite", name): series(s, s) for name, s in (("none", 9.0), ("jemalloc", 1.0), ("jemalloc-prof", 1.1))}
        entry = compare(SQLITE, arm("jemalloc-prof"), runs, {})
        self.assertAlmostEqual(entry["target"]["added_percent"]["point"], 10.0)

    def test_what_is_missing_has_a_reason(self):
        absent = {("sqlite", "heaptrack"): "no heaptrack", ("sqlite", "jemalloc"): "no library"}
        runs = {("sqlite", "none"): series(0.5, 0.5), ("sqlite", "jemalloc-prof"): series(0.5, 0.5), ("sqlite", "exact"): series(0.5)}
        self.assertEqual(compare(SQLITE, arm("heaptrack"), runs, absent)["absent"], "no heaptrack")
        self.assertEqual(compare(SQLITE, arm("jemalloc-prof"), runs, absent)["absent"], "no library")
        self.assertEqual(compare(SQLITE, arm("exact"), runs, absent)["absent"], "fewer than two rounds")

    def test_every_arm_has_its_baseline_and_every_aim_its_arm(self):
        names = [one.name for one in ARMS]
        for one in ARMS:
            self.assertTrue(one.against is None or arm(one.against).against is None, one.name)
        for kind, name in AIMS:
            self.assertIn(name, names)
            self.assertIn(kind, {program.kind for program in PROGRAMS})
        for one in ARMS:
            self.assertLessEqual(set(one.only), {program.name for program in PROGRAMS})


class Reading(unittest.TestCase):
    def test_redis_says_its_cpu_time(self):
        info = b"$148\r\n# CPU\r\nused_cpu_sys:0.250000\r\nused_cpu_user:1.500000\r\nused_cpu_sys_children:7.0\r\n"
        parts = [info[:60], info[60:]]
        connection = SimpleNamespace(sendall=lambda _: None, recv=lambda _: parts.pop(0))
        self.assertEqual(count_cost.redis_cpu_s(connection), 1.75)
        closed = SimpleNamespace(sendall=lambda _: None, recv=lambda _: b"")
        with self.assertRaises(count_cost.Failed):
            count_cost.redis_cpu_s(closed)


def document(**changed):
    runs = {}
    for program, unit in ((STORM, 1e-7), (SQLITE, 0.5)):
        for name, factor, whole in (("none", 1.0, 1.0), ("again", 1.001, 1.0), ("exact", 1.01, 1.1), ("samples", 1.02, 1.3)):
            runs[program.name, name] = series(*[unit * factor] * 9, whole=whole, calls=2.5e7 if name == "exact" else None)
    others = [one.name for one in ARMS if one.name not in OURS]
    absent = {(program.name, name): "no such | thing" for program in (STORM, SQLITE) for name in others}
    absent["storm", "memray"] = "only for Python programs"
    facts = {"cpu": "A CPU", "cpus": 2, "virtual": True, "kernel": "6.1"}
    programs = results([STORM, SQLITE], runs, absent)
    made = {"date": "2026-01-02", "machine": facts, "tool": "allocwall 1", "rounds": 9, "quick": False, "programs": programs}
    return {**made, **changed}


class Page(unittest.TestCase):
    def test_each_program_and_arm_has_a_row(self):
        lines = generated(document())
        exact = "| storm | `allocwall count --exact` | 9 | +1.00 ns (+1.00 to +1.00) | +11.1 ns (+11.1 to +11.1)"
        self.assertIn(f"{exact} | 25.0 M | at most 2 ns | met |", lines)
        samples = "`allocwall count` | 9 | +2.00 {0} (+2.00 to +2.00) | +32.6 {0} (+32.6 to +32.6)"
        self.assertIn(f"| sqlite | {samples.format('%')} |  | at most 5 % | met |", lines)
        self.assertIn(f"| storm | {samples.format('ns')} |  | none |  |", lines)
        self.assertIn(f"| sqlite | nothing | 9 | {count_cost.digits(0.5)} s | the same |  | none |  |", lines)
        self.assertIn("Aims: **3 met, 0 missed, 0 undecided**.", lines)

    def test_an_arm_that_cannot_run_has_one_row_with_its_reason(self):
        lines = generated(document())
        self.assertIn(r"| all | heaptrack | 0 | not run: no such \| thing |  |", lines)
        self.assertIn("| storm | memray `--native` | 0 | not run: only for Python programs |  |", lines)
        self.assertIn(r"| sqlite | memray `--native` | 0 | not run: no such \| thing |  |", lines)

    def test_rows_fit_their_heads(self):
        widths = {}
        lines = generated(document())
        for line in lines:
            if line.startswith("| program"):
                width = line.count("|")
            elif line.startswith("|"):
                widths.setdefault(width, set()).add(len(re.findall(r"(?<!\\)\|", line)))
        self.assertEqual(widths, {9: {9}, 6: {6}})

    def test_few_rounds_and_a_virtual_machine_are_named(self):
        text = "\n".join(generated(document(rounds=3, quick=True)))
        self.assertIn("With so few rounds an interval covers less than 95 %.", text)
        self.assertIn("with less work (`--quick`)", text)
        self.assertIn("2 CPUs, a virtual machine, Linux 6.1; allocwall 1.", text)
        real = copy.deepcopy(document())
        real["machine"]["virtual"] = False
        text = "\n".join(generated(real))
        self.assertIn("2 CPUs, not virtual", text)
        self.assertNotIn("few rounds", text)

    def test_costs_have_three_digits_or_two_decimals(self):
        shown = [signed(value) for value in (0.004, -1.234, 12.34, 123.4, 4567.0)]
        self.assertEqual(shown, ["+0.00", "-1.23", "+12.3", "+123", "+4567"])

    def test_a_part_is_replaced_and_the_rest_stays(self):
        page = "a\n<!-- begin x -->\n\nold\n\n<!-- end x -->\nb\n<!-- begin y -->\nkept\n<!-- end y -->\n"
        new = put(page, "x", ["1", "2"])
        self.assertEqual(new, "a\n<!-- begin x -->\n\n1\n2\n\n<!-- end x -->\nb\n<!-- begin y -->\nkept\n<!-- end y -->\n")
        self.assertEqual(put(new, "x", ["1", "2"]), new)
        for bad in ("none", "<!-- end x --><!-- begin x -->", page + page):
            with self.assertRaises(ValueError):
                put(bad, "x", [])

    def test_the_real_page_has_both_parts(self):
        page = PAGE.read_text()
        for part in ("cost", "suites"):
            self.assertIn(f"\n<!-- begin {part} -->\n\nnew\n\n<!-- end {part} -->\n", put(page, part, ["new"]))


if __name__ == "__main__":
    unittest.main()
