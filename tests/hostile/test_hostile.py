"""Tests of the judgement of hostile targets: each rule finds a planted fault and passes the near twin."""

import signal
import unittest

from run import judge, judge_report, plain


def report(lines=None, probes=(), python_samples=0):
    line = {"class": "application", "samples": 100, "share": {"point": 1.0}, "sites": [{"function": "main"}]}
    return {
        "bill": {"on_cpu": [line] if lines is None else lines},
        "probes": [{"name": name, "state": state, "missing": missing} for name, state, missing in probes],
        "recording": {"python_samples": python_samples},
    }


def found(document, case="sparse_names", missing=None):
    return list(judge_report(case, document, missing))


class Reports(unittest.TestCase):
    def test_a_bill_has_samples_and_sums_to_one(self):
        self.assertEqual(found(report()), [])
        line = report()["bill"]["on_cpu"][0]
        self.assertIn("no samples", found(report({"absent": {"reason": "too_little", "detail": "none"}}))[0])
        self.assertIn("no samples", found(report([]))[0])
        self.assertIn("no samples", found(report([{**line, "samples": 0}]))[0])
        self.assertIn("sums to 0.9", found(report([{**line, "share": {"point": 0.9}}]))[0])

    def test_what_is_missing_must_be_named_by_its_own_probe(self):
        missing = ("python_stacks", "Python")
        reason = {"reason": "not_found", "detail": "the Python stacks of process 7 are not readable"}
        self.assertEqual(found(report(probes=[("python_stacks", "absent", reason)]), missing=missing), [])
        self.assertEqual(len(found(report(probes=[("names", "partial", reason)]), missing=missing)), 1)
        self.assertEqual(len(found(report(probes=[("python_stacks", "measured", None)]), missing=missing)), 1)
        self.assertEqual(len(found(report(), missing=missing)), 1)

    def test_in_a_plain_target_nothing_is_missing_and_functions_have_names(self):
        partial = [("names", "partial", {"reason": "too_costly", "detail": "symbols"})]
        self.assertEqual(found(report(), "plain"), [])
        self.assertEqual(len(found(report(probes=partial), "plain")), 1)
        self.assertEqual(found(report(probes=partial)), [])
        line = {**report()["bill"]["on_cpu"][0], "sites": [{"function": "(no symbol)"}]}
        self.assertEqual(len(found(report([line]), "plain")), 1)
        self.assertEqual(found(report([line])), [])

    def test_stacks_of_a_plain_python_are_read(self):
        measured = [("python_stacks", "measured", None)]
        self.assertEqual(found(report(probes=measured, python_samples=9), "plain_python"), [])
        self.assertEqual(len(found(report(probes=measured), "plain_python")), 1)
        self.assertEqual(len(found(report(python_samples=9), "plain_python")), 1)


class Runs(unittest.TestCase):
    def test_a_run_ends_by_itself_without_a_panic_and_stays_small(self):
        def problems(status=1, error="", resident=50.0):
            return judge(plain, b"", error, status, resident, None)

        self.assertEqual(problems(), ["exit status 1"])
        self.assertEqual(problems(-signal.SIGKILL), ["it hung and was killed"])
        self.assertIn("it panicked", problems(error="thread 'main' panicked at src/main.rs:1:1"))
        self.assertIn("151 MB resident", problems(resident=151.0))


if __name__ == "__main__":
    unittest.main()
