"""The statistics of the overhead bench."""

import math
import unittest

from overhead import effect, sign_test


class Statistics(unittest.TestCase):
    def test_sign_test_is_the_binomial_one(self):
        self.assertAlmostEqual(sign_test([1] * 10), 2 / 1024)
        self.assertAlmostEqual(sign_test([-1] * 9 + [1]), 2 * 11 / 1024)
        self.assertEqual(sign_test([1, -1]), 1.0)
        self.assertEqual(sign_test([0, 0]), 1.0)

    def test_a_steady_loss_is_found(self):
        loss = effect([math.log(0.97)] * 12)["loss_percent"]
        for key in ("low", "point", "high"):
            self.assertAlmostEqual(loss[key], 3.0)

    def test_no_effect_stays_within_the_interval(self):
        ratios = [0.02 * (-1) ** n * (1 + n / 10) for n in range(12)]
        loss = effect(ratios)["loss_percent"]
        self.assertLess(loss["low"], 0)
        self.assertGreater(loss["high"], 0)
        self.assertGreaterEqual(loss["point"], loss["low"])
        self.assertLessEqual(loss["point"], loss["high"])


if __name__ == "__main__":
    unittest.main()
