"""Tests of the checks: each must pass a good report and find a planted fault."""

import copy
import unittest

from expectations import STATUSES, WALLS, problems, text_problems
from services import SERVICES, Expectation

RUNGS = {
    1: ("cgroup_throttling", "steal", "run_queue"),
    2: ("waiting", "disk", "network", "application_lock", "gil"),
    3: ("garbage_collector",),
    4: ("first_touch", "fork", "file_fault"),
    5: ("map_churn",),
    6: ("address_space_lock",),
    7: ("tlb",),
    8: ("numa",),
    9: ("kernel_slab",),
    10: ("call_rate", "large_allocations"),
    11: ("allocator_code", "allocator_contention"),
    12: ("retention",),
}


def interval(point):
    return {"low": max(0.0, point - 0.01), "point": point, "high": point + 0.01}


def sample():
    findings = [
        {"wall": wall, "rung": rung, "status": "ruled_out", "share": interval(0.01), "because": "too little", "missing": None, "evidence": []}
        for rung, walls in RUNGS.items()
        for wall in walls
    ]
    report = {
        "verdict": {"sentence": "First touch is the wall.", "walls": ["first_touch", "retention"]},
        "findings": findings,
        "bill": {
            "on_cpu": [
                {"class": "application", "share": interval(0.4), "cpu_s": interval(4), "samples": 4000, "sites": []},
                {"class": "zeroing", "share": interval(0.6), "cpu_s": interval(6), "samples": 6000, "sites": [{"function": "f", "python": "rewrite (a.py:1)"}]},
            ],
            "off_cpu": [{"class": "idle", "thread_s": interval(1)}],
        },
        "target": {
            "processes": [
                {
                    "runtime": {"kind": "cpython", "version": "3.11", "free_threaded": False},
                    "allocator": {"kind": "glibc", "how": "libc", "module": "/lib/libc.so.6", "version": None},
                }
            ]
        },
    }
    finding(report, "first_touch").update(status="wall", share=interval(0.6))
    finding(report, "retention").update(status="wall", share=interval(0.6))
    finding(report, "numa").update(status="not_measured", share=None, missing={"reason": "not_supported"})
    return report


def finding(report, wall):
    return next(entry for entry in report["findings"] if entry["wall"] == wall)


EXPECT = Expectation(
    runtime="cpython",
    allocator="glibc",
    must_be_wall={"first_touch"},
    must_name="rewrite",
    must_not_be_wall={"allocator_contention"},
)

# Each planted fault, and a part of the sentence that must report it.
FAULTS = {
    "a wall is missing": (lambda r: r["findings"].pop(), "one finding for each wall"),
    "ladder out of order": (lambda r: r["findings"].reverse(), "order of the ladder"),
    "a fifth status": (lambda r: finding(r, "tlb").update(status="maybe"), "unknown status"),
    "absence without reason": (lambda r: finding(r, "numa").update(missing=None), "without a reason"),
    "interval upside down": (lambda r: finding(r, "tlb")["share"].update(low=0.5), "not in order"),
    "bill short": (lambda r: r["bill"]["on_cpu"][0]["share"].update(point=0.399), "not to 1"),
    "bill empty": (lambda r: r["bill"].update(on_cpu=[]), "no on-CPU line"),
    "bill not measured": (lambda r: r["bill"].update(on_cpu={"absent": {"reason": "not_permitted"}}), "not_permitted"),
    "class twice": (lambda r: r["bill"]["on_cpu"][1].update({"class": "application"}), "two lines"),
    "verdict without a sentence": (lambda r: r["verdict"].update(sentence=" "), "sentence is empty"),
    "verdict against findings": (lambda r: r["verdict"].update(walls=[]), "the verdict names"),
    "place not named": (lambda r: r["bill"]["on_cpu"][1]["sites"][0].update(python=None), "names rewrite"),
    "absurd wall": (lambda r: absurd(r), "is called a wall"),
    "wrong runtime": (lambda r: r["target"]["processes"][0].update(runtime={"kind": "native"}), "runtime should be"),
    "wrong allocator": (lambda r: r["target"]["processes"][0]["allocator"].update(kind="musl"), "allocator should be"),
    "runtime not measured": (lambda r: r["target"]["processes"][0].update(runtime={"absent": {}}), "runtime should be"),
    "no bill at all": (lambda r: r.pop("bill"), "documented format"),
    "findings of another shape": (lambda r: r.update(findings=None), "documented format"),
}


def absurd(report):
    finding(report, "allocator_contention").update(status="wall")
    report["verdict"]["walls"].append("allocator_contention")


class Expectations(unittest.TestCase):
    def test_a_good_report_has_no_fault(self):
        self.assertEqual(problems(sample(), EXPECT), [])

    def test_each_planted_fault_is_found(self):
        for name, (plant, word) in FAULTS.items():
            with self.subTest(name):
                report = copy.deepcopy(sample())
                plant(report)
                self.assertIn(word, "; ".join(problems(report, EXPECT)))

    def test_only_a_wall_must_name_a_place(self):
        report = sample()
        finding(report, "first_touch").update(status="contributor")
        report["verdict"].update(sentence="Retention is the wall.", walls=["retention"])
        self.assertEqual(problems(report, EXPECT), [])

    def test_text(self):
        self.assertEqual(list(text_problems("é" * 100 + "\nplain\n")), [])
        self.assertIn("101 columns", "".join(text_problems("é" * 101)))
        self.assertIn("control character", "".join(text_problems("a\x1b[31mred")))
        self.assertIn("empty", "".join(text_problems(" \n")))

    def test_the_table_of_services_has_only_known_walls(self):
        self.assertEqual({wall for walls in RUNGS.values() for wall in walls}, WALLS)
        self.assertEqual(len(STATUSES), 4)
        for service in SERVICES:
            with self.subTest(service.name):
                expect = service.expect
                self.assertLessEqual(expect.must_be_wall | expect.must_not_be_wall, WALLS)
                self.assertFalse(expect.must_be_wall & expect.must_not_be_wall)
                self.assertTrue(service.served or service.rate_pattern)


if __name__ == "__main__":
    unittest.main()
