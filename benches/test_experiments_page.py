"""The page of the experiments' results, from small made documents; nothing is measured."""

import contextlib
import io
import json
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from experiments_page import Footnotes, Wrong, amount, chunks, collect, digits, figures, main, page, plain, shown_in

NO_COUNTER = "the processor offers no such event"
SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg">\n<title>Times of a &lt;free&gt;</title>\n'
    '<text class="axis middle" x="1">time in ns</text>\n<text class="axis middle" y="1">share of calls</text>\n</svg>\n'
)


def interval(low, point, high):
    return {"low": low, "point": point, "high": high}


def absent(detail, reason="not_supported"):
    return {"absent": {"reason": reason, "detail": detail, "mend": []}}


def bill():
    line = {"class": "zeroing", "title": "first touch: zeroing", "share": interval(0.5, 0.55, 0.6)}
    small = {"class": "free", "title": "page release", "share": interval(0.0, 0.002, 0.004)}
    return {"verdict": "First touch is the wall: `x::y`.", "on_cpu": [small, line], "off_cpu": []}


def arm(name, value, ratio, **other):
    return {
        "arm": name,
        "with": "none",
        "values": {"time_p50": value, "misses": absent(NO_COUNTER)},
        "ratios": {"time_p50": ratio, "misses": absent(NO_COUNTER)},
        "unproven": None,
        "failures": [],
        "histograms_ns": {},
        "bill": bill(),
        "walls": ["first_touch"],
        "series": None,
        **other,
    }


def tested(rule, value, judgement):
    return {"rule": rule, "value": value, "judgement": judgement}


def claim(says, judgement, why, *tests):
    return {"claim": says, "judgement": judgement, "why": why, "tests": list(tests)}


def experiment(name="cold-warm", **other):
    rule = "time of a call, p50, pool ÷ glibc: below 0.5"
    ratio = interval(0.20, 0.25, 0.30)
    return {
        "experiment": name,
        "summary": "a pool that was touched before",
        "seed": "7",
        "scale": 1.0,
        "planned_blocks": 6,
        "blocks": 6,
        "figures": [
            {"figure": "time_p50", "title": "time of a call, p50", "unit": "ns"},
            {"figure": "misses", "title": "TLB misses", "unit": "count"},
        ],
        "arms": [
            arm("glibc", interval(1_200_000, 1_240_000, 1_310_000), interval(0.98, 1.0, 1.02)),
            arm("pool", interval(300_000, 310_000, 320_000), ratio, bill=absent("perf_event_open: EPERM", "not_permitted")),
        ],
        "left_out": [{"arm": "tcmalloc", "why": "no such library"}],
        "claims": [
            claim("A pool is faster.", "holds", None, tested(rule, ratio, "holds")),
            claim("It is twice as fast.", "does_not_hold", None, tested(rule.replace("below", "above"), ratio, "does_not_hold")),
            claim("New pages miss the TLB.", "cannot_be_tested", NO_COUNTER, tested("TLB misses, glibc: above 2", absent(NO_COUNTER), "cannot_be_tested")),
        ],
        "warnings": [],
        "runs": [
            {"block": 0, "place": 0, "arm": "glibc", "started_unix_ms": 1_700_000_000_000, "failure": None, "metrics": {"wall_s": 2.0}},
            {"block": 0, "place": 1, "arm": "pool", "started_unix_ms": 1_700_000_100_000, "failure": None, "metrics": {"wall_s": 20.0}},
        ],
        **other,
    }


def document(*experiments, **other):
    return {
        "format": "allocwall-experiments",
        "version": 1,
        "tool": {"name": "allocwall", "version": "0.1.0"},
        "machine": ["Linux 6.1 on x86_64", "2 CPUs, 1 NUMA nodes"],
        "experiments": list(experiments),
        **other,
    }


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def file(self, name, content):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    def text(self, *documents):
        return page(*collect([self.file(f"{n}.json", one) for n, one in enumerate(documents)]))

    def has(self, text, *parts):
        for part in parts:
            self.assertTrue(part in text, f"no {part!r}")

    def run_main(self, *paths):
        """Exit status, and the lines on stderr."""
        words = ["experiments_page.py", *map(str, paths), "--page", str(self.folder / "docs" / "page.md")]
        said = io.StringIO()
        with mock.patch("sys.argv", words), contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            return main(), said.getvalue().splitlines()


class Numbers(unittest.TestCase):
    def test_three_digits_and_two_of_a_small_value(self):
        values = [0.0000001, 0.00021, 0.0497, 0.62, 9.99, 12.34, 99.97, 1234, 63849, 1_001_184, -0.3, None, float("inf")]
        texts = ["0", "0.00021", "0.050", "0.62", "9.99", "12.3", "100", "1,230", "63,800", "1,000,000", "-0.30"]
        self.assertEqual([digits(value) for value in values], texts + ["not finite"] * 2)

    def test_all_values_of_a_figure_are_in_one_unit(self):
        self.assertEqual(shown_in("ns", [150.0, 60_000.0])[1], " ns")
        # Another unit if the smallest is large, or the largest would be too long.
        self.assertEqual([shown_in("ns", [1_240.0])[1], shown_in("ns", [150.0, 2e5])[1]], [" µs"] * 2)
        self.assertEqual([shown_in("per_second", [point])[1] for point in (0.5, 128_000, 4.2e6)], ["/s", " k/s", " M/s"])
        self.assertEqual(shown_in("seconds", [0.0, 15e-3])[1], " ms")
        self.assertEqual(shown_in("seconds", [900.0])[1], " s")
        self.assertEqual(amount(interval(1e8, 1.1e8, 2e8), *shown_in("bytes", [])), "105 MiB (95.4 to 191)")
        self.assertEqual(amount(interval(900, 1000, 1100), *shown_in("per_second", [])), "1,000/s (900 to 1,100)")

    def test_an_interval_is_left_out_where_it_says_no_more(self):
        self.assertEqual(amount(interval(0.999, 1.0, 1.001)), "1.00")
        self.assertEqual(amount(interval(0.98, 1.0, 1.001)), "1.00 (0.98 to 1.00)")

    def test_tables_have_parts_of_nearly_equal_width(self):
        lengths = [[len(part) for part in chunks(list(range(n)), 4)] for n in (0, 1, 4, 5, 9)]
        self.assertEqual(lengths, [[], [1], [4], [3, 2], [3, 3, 3]])


class Text(unittest.TestCase):
    def test_text_shows_and_does_nothing_else(self):
        self.assertEqual(plain("a|b <img> [x](y) *z* \x1b[31m\n\u202e"), r"a\|b \<img\> \[x\](y) \*z\* �\[31m �")
        self.assertEqual(plain("malloc_trim and _x_"), r"malloc_trim and \_x\_")
        self.assertEqual(plain("# 1"), r"\# 1")
        # Only whole pairs of backticks are code.
        self.assertEqual(plain("`a::<b>|c` and d"), r"`a::<b>\|c` and d")
        self.assertEqual([plain(text) for text in ("`a <b", "``<b>``")], [r"'a \<b", r"''\<b\>''"])


class Page(Case):
    def test_the_page_begins_with_its_origin_and_the_machine(self):
        text = self.text(document(experiment()))
        self.assertIn("This page is generated: `make experiments` writes it", text.splitlines()[2])
        for part in (
            "- Machine: Linux 6.1 on x86_64; 2 CPUs, 1 NUMA nodes.",
            "- Version: allocwall 0.1.0.",
            "- Settings: 6 blocks, full runs.",
            "- Time: began 2023-11-14 22:13 UTC; the timed runs took 2 min in all, without those of bills.",
            f"- Not measured on this machine: {NO_COUNTER} (cold-warm).",
        ):
            self.has(text, part)

    def test_all_claims_are_counted_and_have_a_reason(self):
        text = self.text(document(experiment()))
        self.has(text, "Of 3 published claims, **1 hold here**, **1 do not hold here**, and **1 can't be")
        tested = "time of a call, p50, pool ÷ glibc: 0.25 (0.20 to 0.30); must be"
        for row in (
            f"| [cold-warm](#cold-warm) | A pool is faster. | holds here | {tested} below 0.5 |",
            f"| [cold-warm](#cold-warm) | It is twice as fast. | does not hold here | {tested} above 0.5 |",
            f"| [cold-warm](#cold-warm) | New pages miss the TLB. | can't be tested here | {NO_COUNTER}. |",
        ):
            self.has(text, row)

    def test_the_reason_is_the_test_that_decides(self):
        open_test = tested("a, glibc: above 9", interval(8, 9.5, 11), "cannot_be_tested")
        unmet = tested("b, glibc: above 20, as a condition", interval(1, 2, 3), "cannot_be_tested")
        failed = tested("c, glibc: above 7", interval(4, 5, 6), "does_not_hold")
        why = "a condition of the claim is not met: b, glibc: above 20, as a condition"
        text = self.text(document(experiment(claims=[
            claim("First.", "does_not_hold", None, open_test, failed),
            claim("Second.", "cannot_be_tested", why, failed, unmet),
            claim("Third.", "cannot_be_tested", "undecided: both sides", open_test),
            claim("Fourth.", "holds", None, {**failed, "judgement": "holds"}, {**failed, "judgement": "holds"}),
        ])))
        self.has(text, "| First. | does not hold here | c, glibc: 5.00 (4.00 to 6.00); must be above 7 |")
        self.has(text, f"| Second. | can't be tested here | {why}; here 2.00 (1.00 to 3.00). |")
        self.has(text, "| Third. | can't be tested here | undecided: a, glibc: 9.50 (8.00 to 11.0); must be above 9 |")
        self.has(text, "must be above 7; 1 more test passed |")
        self.has(text, "  - a, glibc: 9.50 (8.00 to 11.0); must be above 9: undecided")
        self.has(text, "as a condition: condition not shown to be met")

    def test_an_experiment_has_its_figures_bills_and_what_is_missing(self):
        text = self.text(document(experiment()))
        for part in (
            "## cold-warm\n\nA pool that was touched before.\n",
            "6 blocks; full runs; seed 7; began 2023-11-14 22:13 UTC",
            "| arm | time of a call, p50 |",
            "| glibc | 1,240 µs (1,200 to 1,310)<br>noise ×1.00 (0.98 to 1.02) |",
            "| pool | 310 µs (300 to 320)<br>×0.25 (0.20 to 0.30) |",
            f"Not measured in any arm: TLB misses: {NO_COUNTER}.",
            "| arm | CPU time | verdict |",
            "| glibc | first touch: zeroing 55 % (50 to 60) | First touch is the wall: `x::y`. |",
            "| pool | –<sup>(1)</sup> |  |",
            "<sup>(1)</sup> perf_event_open: EPERM.\n",
            "- Left out: tcmalloc: no such library.",
        ):
            self.has(text, part)
        self.assertNotIn("page release", text)

    def test_a_reason_is_printed_once(self):
        arms = [arm(name, absent("no counter"), absent("no counter")) for name in ("a", "b")]
        arms.append(arm("c", interval(1, 2, 3), absent("the first arm has none")))
        lines = "\n".join(figures(experiment(arms=arms), Footnotes()))
        self.assertEqual(lines.count("no counter"), 1)
        self.assertEqual(lines.count("–<sup>(2)</sup>"), 2)
        # All multiples are absent for one reason: in the head of the column.
        self.assertIn("| arm | time of a call, p50 (no multiples<sup>(1)</sup>) |", lines)
        self.assertIn("| c | 2.00 ns (1.00 to 3.00) |", lines)

    def test_reasons_that_differ_only_in_numbers_are_one_note(self):
        notes = Footnotes()
        marks = [notes.mark(f"0 in {n} of {m} runs of quota-{n}") for n, m in ((6, 12), (6, 18))]
        marks.append(notes.mark("0 in 7 of 18 runs of quota-7"))
        self.assertEqual(marks, ["<sup>(1)</sup>", "<sup>(1)</sup>", "<sup>(2)</sup>"])
        self.assertEqual(notes.lines()[1], "<sup>(1)</sup> 0 in 6 of 12 to 18 runs of quota-6.<br>")
        # What is printed stays as it is.
        self.assertEqual(notes.mark("0 in 9 of 12 runs of quota-6"), "<sup>(3)</sup>")
        self.assertEqual(notes.mark("0 in 6 of 18 runs of quota-6"), "<sup>(1)</sup>")
        self.assertEqual(notes.lines(), ["", "<sup>(3)</sup> 0 in 9 of 12 runs of quota-6."])

    def test_a_figure_that_the_report_does_not_print_is_left_out(self):
        made = experiment()
        made["figures"][0]["printed"] = False
        self.assertNotIn("1,240", self.text(document(made)))
        made["figures"][0]["printed"] = True
        self.assertIn("1,240", self.text(document(made)))

    def test_without_a_run_there_are_no_figures_but_the_reason(self):
        why = "without the arm glibc: no python3"
        none = arm("glibc", absent(why), absent(why), bill=None)
        text = self.text(document(experiment(
            arms=[none], blocks=0, runs=[], left_out=[{"arm": "glibc", "why": "no python3"}], claims=[claim("A.", "cannot_be_tested", why)]
        )))
        self.assertNotIn("**Figures**", text)
        self.has(text, "0 of 6 blocks")
        self.has(text, "- Left out: glibc: no python3.")
        self.has(text, f"| A. | can't be tested here | {why}. |")

    def test_a_series_has_both_verdicts(self):
        taken = {"verdict": "Over all.", "first_verdict": "At first.", "windows": 6, "lasting": [], "rose": ["locks"]}
        one, other = [arm(name, interval(1, 2, 3), interval(1, 1, 1), series=taken) for name in ("a", "b")]
        text = self.text(document(experiment(arms=[one, {**other, "series": absent("5 of 6 windows", "too_little")}])))
        self.has(text, "| a | 6 | Over all. | locks | At first. |")
        self.has(text, "<sup>(1)</sup> 5 of 6 windows.\n")

    def test_of_several_documents_the_last_one_counts(self):
        first = document(experiment("numa"), experiment("cold-warm"))
        second = document(experiment("cold-warm", seed="8", scale=0.15), machine=["Linux 6.12"])
        text = self.text(first, second)
        self.assertEqual(text.count("\n## cold-warm\n"), 1)
        self.has(text, "**Run 1**: numa\n\n- Machine: Linux 6.1 on")
        self.has(text, "**Run 2**: cold-warm\n\n- Machine: Linux 6.12.")
        self.has(text, "run 2; 6 blocks; runs of 0.15 times the full size; seed 8")
        # Parts of one run.
        parts = self.text(document(experiment("numa")), document(experiment("cold-warm", seed="8")))
        self.has(parts, "- Settings: 6 blocks, full runs.\n")
        self.assertNotIn("Run 2", parts)
        # A document of which nothing is left is not mentioned.
        self.assertNotIn("Run", self.text(document(experiment("numa")), document(experiment("numa"))))


class Files(Case):
    def test_charts_are_copied_and_old_ones_removed(self):
        results = self.file("results.json", document(experiment("numa"), experiment("numa-after-upgrade")))
        for name in ("numa-times", "numa-after-upgrade-requests", "other-times"):
            self.file(f"charts/{name}.svg", SVG)
        self.file("charts/numa-wrong.svg", "no chart")
        self.file("docs/page.md", "![old](experiments/numa-old.svg)")
        self.file("docs/experiments/numa-old.svg", SVG)
        self.file("docs/experiments/mine.svg", SVG)
        status, said = self.run_main(results, self.folder / "charts")
        self.assertEqual((status, len(said)), (0, 1), said)
        self.assertIn("numa-wrong.svg: not used", said[0])
        page, copied = self.folder / "docs" / "page.md", self.folder / "docs" / "experiments"
        names = ["mine.svg", "numa-after-upgrade-requests.svg", "numa-times.svg"]
        self.assertEqual(sorted(path.name for path in copied.iterdir()), names)
        image = r"![Chart: Times of a \<free\>. share of calls, by time in ns.](experiments/numa-times.svg)"
        numa, after = page.read_text().split("\n## numa-after-upgrade\n")
        self.assertTrue(image in numa and "requests.svg" in after and "times.svg" not in after)
        before = page.read_bytes()
        self.assertEqual(self.run_main(results, self.folder / "charts")[0], 0)
        self.assertEqual(page.read_bytes(), before)

    def test_wrong_input_has_one_line_and_status_2(self):
        fine = document(experiment())
        without = {key: value for key, value in experiment().items() if key != "arms"}
        wrong = {
            "not JSON": "{",
            "not finite": '{"format": NaN}',
            "another kind": {"version": 1, "verdict": {}},
            "no object": [1],
            "another version": {**fine, "version": 2},
            "no experiments": document(),
            "no arms": document(without),
            "name": document(experiment("../x")),
            "number": document(experiment(seed=None, scale="1")),
        }
        for about, content in wrong.items():
            status, said = self.run_main(self.file("wrong.json", content))
            self.assertEqual((status, len(said)), (2, 1), (about, said))
            self.assertTrue(said[0].startswith("error: "), said)
        self.assertEqual(self.run_main(self.folder / "none.json")[0], 2)
        self.assertEqual(self.run_main(self.folder)[0], 2)
        self.assertFalse((self.folder / "docs").exists())

    def test_a_wrong_version_is_named(self):
        with self.assertRaisesRegex(Wrong, "version 2; this script reads version 1"):
            collect([self.file("new.json", document(experiment(), version=2))])


if __name__ == "__main__":
    unittest.main()
