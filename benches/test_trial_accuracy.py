"""The statistics of the accuracy bench."""

import unittest

from trial_accuracy import coloured, printed_ratio, t_quantile, t_two_sided, tables, welch, wilson


class Statistics(unittest.TestCase):
    def test_wilson_agrees_with_published_values(self):
        # Newcombe, Statistics in Medicine 17, 1998, table I, method 3: 81 of 263, 0 of 20, 29 of 29.
        for count, whole, low, high in ((81, 263, 0.2553, 0.3662), (0, 20, 0.0, 0.1611), (29, 29, 0.8830, 1.0)):
            got = wilson(count, whole)
            self.assertAlmostEqual(got[0], low, places=4)
            self.assertAlmostEqual(got[1], high, places=4)

    def test_student_t_agrees_with_tables(self):
        # Two-sided 5 % points of t, as in any table.
        for freedom, point in ((1, 12.706), (5, 2.571), (10, 2.228), (30, 2.042), (120, 1.980)):
            self.assertAlmostEqual(t_two_sided(point, freedom), 0.05, places=4)
            self.assertAlmostEqual(t_quantile(freedom), point, places=2)
        self.assertAlmostEqual(t_two_sided(0.0, 7), 1.0)

    def test_every_rule_finds_a_clear_difference_and_none_between_equal_times(self):
        base = [1.00, 1.01, 0.99, 1.005, 0.995, 1.0]
        slower = [time * 1.1 for time in base]
        for rule in (welch, printed_ratio, coloured):
            self.assertEqual(rule(base, slower)[0], "worse")
            self.assertEqual(rule(slower, base)[0], "better")
            self.assertEqual(rule(base, base[::-1])[0], "unresolved")

    def test_cases_in_which_the_rules_differ(self):
        # 0.5 % with almost no noise: enough for the t-test, too little for poop.
        base = [1.0, 1.0001, 0.9999, 1.0, 1.0001, 0.9999]
        other = [time * 1.005 for time in base]
        self.assertEqual(welch(base, other)[0], "worse")
        self.assertEqual(coloured(base, other)[0], "unresolved")
        # Many runs separate the means; the spread of single runs does not shrink.
        base, other = [0.98, 1.02] * 40, [1.0, 1.04] * 40
        self.assertEqual(welch(base, other)[0], "worse")
        self.assertEqual(printed_ratio(base, other)[0], "unresolved")

    def test_an_outcome_in_the_wrong_direction_is_no_find_but_an_alarm(self):
        def trial(pair, outcome, interval):
            return {
                "condition": "quiet",
                "round": 0,
                "tool": "allocwall",
                "pair": pair,
                "took_s": 1.0,
                "outcome": outcome,
                "interval": interval,
                "effect": sum(interval) / 2,
                "confidence": 0.95,
                "blocks": 12,
                "others": {},
            }

        planted, null = trial("planted", "better", [-0.05, -0.02]), trial("null", "better", [-0.05, -0.02])
        lines = tables({"comparisons": [planted, null]}).splitlines()
        self.assertTrue(any("3% planted | 0 of 1" in line for line in lines))
        self.assertTrue(any("does nothing | 1 of 1" in line for line in lines))
        right = tables({"comparisons": [trial("planted", "worse", [0.02, 0.04])]}).splitlines()
        self.assertEqual(sum("3% planted | 1 of 1" in line for line in right), 2)


if __name__ == "__main__":
    unittest.main()
