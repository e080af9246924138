"""The statistics and the loops of the bench of counts in Python. The package is not needed."""

import contextlib
import io
import unittest
from unittest import mock

import python_count
from python_count import ARMS, HEAD, LOOPS, compare, main, row


def blocks(counted, jitter=0.001, n=12):
    """Blocks with this true ratio, whose plain runs differ a little."""
    return [
        {"plain": 7e-6 * (1 + jitter * (-1) ** i), "noise": 7e-6, "passed on": 7e-6, "counted": 7e-6 * counted} for i in range(n)
    ]


class Statistics(unittest.TestCase):
    def test_a_cost_is_a_ratio_above_one(self):
        found = compare(blocks(1.16))["counted"]
        self.assertAlmostEqual(found["point"], 1.16, places=2)
        self.assertLessEqual(found["low"], found["point"])
        self.assertLessEqual(found["point"], found["high"])
        self.assertGreater(found["low"], 1.15)
        self.assertLess(found["high"], 1.17)

    def test_no_cost_is_within_the_interval(self):
        ratios = compare(blocks(1))
        self.assertEqual(list(ratios), [arm for arm, divisors in ARMS.items() if divisors])
        for found in ratios.values():
            self.assertLessEqual(found["low"], 1)
            self.assertGreaterEqual(found["high"], 1)

    def test_the_added_time_is_per_call_of_an_allocator(self):
        made = blocks(1.1, jitter=0)
        result = {"python": "3.11.7", "loop": "json", "calls": 100, "blocks": made, "ratios": compare(made)}
        # 0.7 us more, for 100 calls.
        self.assertTrue(row(result).endswith(" 7.0 ns"), row(result))
        self.assertIn(" 1.100 (1.100 to 1.100) ", row(result))
        self.assertEqual(len(row(result)), len(HEAD))
        self.assertIn("no calls", row({**result, "calls": 0}))


class Loops(unittest.TestCase):
    def test_each_loop_runs(self):
        for name, (source, _) in LOOPS.items():
            space = {}
            exec("import json\n" + source, space)
            with self.subTest(name):
                space["work"](2)

    def test_an_unknown_loop_is_refused(self):
        with mock.patch.object(python_count.sys, "argv", ["python_count.py", "nothing"]):
            with contextlib.redirect_stderr(io.StringIO()) as said, self.assertRaises(SystemExit) as ended:
                main()
        self.assertEqual(ended.exception.code, 2)
        self.assertIn("no loop named nothing", said.getvalue())


if __name__ == "__main__":
    unittest.main()
