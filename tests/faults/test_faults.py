"""Tests of the judgement of injected faults: which problems count, and which must come twice."""

import contextlib
import io
import json
import unittest
from types import SimpleNamespace
from unittest import mock

import inject
import run as faults
from run import Outcome, Scenario, basis_of_diagnoses, basis_of_trials, judge_diagnosis, judge_trial, problems_without_fault, tried

FAULT = inject.Fault(("tool", "read", "file"), 1, "EIO")
# Its report lists its own problems.
SCENARIO = Scenario("own", None, lambda clean: [], lambda document, clean, ended: document["problems"])


def outcome(*problems, injected=True, stderr="", files=(), status=0, complaints=()):
    tracer = SimpleNamespace(late=False, deadline_s=1, injected=injected)
    made = Outcome(status, json.dumps({"problems": problems}), stderr, tracer, list(complaints))
    made.files = set(files)
    return made


class Tries(unittest.TestCase):
    def problems(self, *outcomes):
        """Of one fault whose runs have these outcomes; all of them must be used."""
        left = list(outcomes)
        with mock.patch.object(faults, "run", lambda *_: left.pop(0)), contextlib.redirect_stdout(io.StringIO()):
            _, wrong = tried(SCENARIO, "binary", {}, FAULT, [outcome()])
        self.assertEqual(left, [])
        return wrong

    def test_what_a_busy_machine_can_cause_must_come_twice(self):
        self.assertEqual(self.problems(outcome()), [])
        self.assertEqual(self.problems(outcome("slow"), outcome()), [])
        self.assertEqual(self.problems(outcome("slow"), outcome("slow")), ["slow"])
        self.assertEqual(self.problems(outcome(complaints=["process 7 still runs"]), outcome()), [])

    def test_a_run_that_does_not_reach_the_call_excuses_nothing(self):
        unreached = [outcome(injected=False)] * faults.REPEATS
        self.assertEqual(self.problems(outcome("slow"), *unreached), ["slow"])
        self.assertEqual(self.problems(outcome("slow"), unreached[0], outcome()), [])

    def test_what_is_certain_counts_at_once(self):
        self.assertEqual(self.problems(outcome(stderr="thread 'main' panicked at")), ["it panicked"])
        self.assertEqual(self.problems(outcome(files=["tmp/left"])), ["files remain: ['tmp/left']"])
        self.assertEqual(self.problems(outcome("slow", status=9)), ["it died of SIGKILL"])

    def test_a_report_without_a_part_is_a_problem(self):
        broken = outcome()
        broken.stdout = "{}"
        self.assertIn("lacks a part", self.problems(broken)[0])


class WithoutFault(unittest.TestCase):
    def test_statuses_and_files_of_the_runs_without_a_fault(self):
        self.assertEqual(list(problems_without_fault(SCENARIO, [outcome(files=["home/state", "files/recording"])])), [])
        self.assertEqual(list(problems_without_fault(SCENARIO, [outcome(files=["tmp/left"])])), ["files remain: ['tmp/left']"])
        failed = outcome(status=1 << 8)
        self.assertEqual(len(list(problems_without_fault(SCENARIO, [failed]))), 1)
        trial = Scenario("trial", None, None, None, statuses=(0, 1))
        self.assertEqual(list(problems_without_fault(trial, [failed])), [])

    def test_one_run_must_be_right_unless_the_machine_is_busy(self):
        def document(first_touch, run_queue="ruled_out"):
            return {"findings": [{"wall": "run_queue", "status": run_queue}, {"wall": "first_touch", "status": first_touch}]}

        self.assertEqual(list(basis_of_diagnoses([document("ruled_out"), document("wall")])), [])
        self.assertEqual(list(basis_of_diagnoses([document("not_measured", "wall")])), [])
        self.assertEqual(list(basis_of_diagnoses([document("ruled_out")] * 3)), ["first touch is ruled_out in every run"])
        self.assertEqual(list(basis_of_diagnoses([{"findings": []}])), ["first touch is not judged in every run"])


class Documents(unittest.TestCase):
    def trial(self, median, outcome="unresolved"):
        arm = {"medians": [{"metric": "wall_s", "median": median}, {"metric": "cpu_s", "median": 0.001}]}
        return {"arms": [arm], "comparisons": [{"outcome": outcome}], "baseline": []}

    def test_a_trial_takes_as_long_as_its_command(self):
        self.assertEqual(list(judge_trial(self.trial(0.06), [], False)), [])
        self.assertEqual(len(list(judge_trial(self.trial(0.01), [], False))), 1)
        self.assertEqual(len(list(judge_trial(self.trial(0.06, "better"), [], False))), 1)
        absent = self.trial({"absent": {"reason": "vanished"}})
        self.assertEqual(list(judge_trial(absent, [], False)), [])
        self.assertEqual(len(list(basis_of_trials([self.trial(0.06), absent]))), 1)
        self.assertEqual(list(basis_of_trials([self.trial(0.06)])), [])

    def test_a_bill_with_lines_has_cpu_time(self):
        def document(cpu_s):
            status = {"run_queue": "ruled_out", "first_touch": "wall"}
            findings = [{"wall": wall, "status": status[wall], "because": ""} for wall in status]
            bill = {"cpu_s": cpu_s, "on_cpu": [{"share": {"point": 1.0}}]}
            return {"bill": bill, "findings": findings, "verdict": {"walls": ["first_touch"]}}

        clean = [document(0.4)]
        self.assertEqual(list(judge_diagnosis(document(0.3), clean, False)), [])
        self.assertEqual(len(list(judge_diagnosis(document(0), clean, False))), 2)


class Names(unittest.TestCase):
    def test_what_differs_from_run_to_run_is_replaced(self):
        for one, other in (
            ("ROOT/home/.cache/allocwall/.tmpxjN4NM", "ROOT/home/.cache/allocwall/.tmpabcdef"),
            ("allocwall-prices.gl3di4", "allocwall-prices.abcdef"),
            ("allocwall-libraries.Nkzhpqx8", "allocwall-libraries.abcdefgh"),
            ("/proc/12/maps", "/proc/3456/maps"),
        ):
            self.assertEqual(inject.normal(one), inject.normal(other))

    def test_other_names_stay(self):
        self.assertNotEqual(inject.normal("ROOT/home/.cache/allocwall/prices"), inject.normal("ROOT/home/.cache/allocwall/lists"))


if __name__ == "__main__":
    unittest.main()
