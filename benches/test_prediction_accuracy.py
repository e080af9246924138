"""How predictions are judged; nothing is measured."""

import unittest

from prediction_accuracy import choice, headline, hit, page, point_in


def interval(low, point, high):
    return {"low": low, "point": point, "high": high}


def arm(name, measured, predicted=None):
    return {"arm": name, "predicted": predicted, "measured": measured, "why_not": None, "outcome": "unresolved", "median_s": 1.0}


def result(first, *arms):
    return {"program": "p", "kind": "real", "walls": [], "first_choice": first, "arms": list(arms)}


class Judging(unittest.TestCase):
    def test_a_hit_has_a_point_in_common(self):
        predicted = interval(-0.2, -0.1, 0.0)
        self.assertTrue(hit(predicted, interval(-0.3, -0.25, -0.2)))
        self.assertFalse(hit(predicted, interval(-0.3, -0.25, -0.21)))
        self.assertFalse(hit(predicted, interval(0.01, 0.02, 0.03)))
        self.assertTrue(hit(predicted, interval(-0.5, 0.1, 0.5)))
        self.assertFalse(point_in(predicted, interval(-0.5, 0.1, 0.5)))

    def test_a_first_choice_is_right_if_no_arm_saves_significantly_more(self):
        a, b = arm("a", interval(-0.12, -0.1, -0.08)), arm("b", interval(-0.2, -0.15, -0.09))
        self.assertEqual(choice(result("a", a, b))[:2], (True, "b"))
        clear = arm("b", interval(-0.2, -0.15, -0.13))
        self.assertEqual(choice(result("a", a, clear))[:2], (False, "b"))
        self.assertEqual(choice(result("b", a, clear))[:2], (True, "b"))

    def test_no_first_choice_is_right_if_nothing_saves_and_a_harmful_one_is_wrong(self):
        small, large = arm("a", interval(-0.019, -0.01, -0.005)), arm("a", interval(-0.06, -0.05, -0.04))
        self.assertTrue(choice(result(None, small))[0])
        self.assertFalse(choice(result(None, large))[0])
        self.assertFalse(choice(result("a", arm("a", interval(0.01, 0.02, 0.03))))[0])
        self.assertIsNone(choice(result("pool", small))[0])

    def test_the_page_counts_predictions_and_hits(self):
        good = arm("a", interval(-0.1, -0.1, -0.1), interval(-0.2, -0.1, 0.0))
        bad = arm("b=1", interval(0.1, 0.1, 0.1), interval(-0.2, -0.1, 0.0))
        results = [result("b", good, bad, arm("c", interval(0.0, 0.0, 0.0)), arm("d", None))]
        found = headline(results)
        self.assertEqual([found[k] for k in ("predictions", "hits", "without_prediction", "not_measured")], [2, 1, 1, 1])
        self.assertEqual((found["first_choices"], found["right_first_choices"]), (1, 0))
        text = page({"blocks": 6, "machine": ["m"], "results": results})
        self.assertIn("**1 of 2 (50 %)**", text)
        self.assertIn("- p b=1: not explained", text)


if __name__ == "__main__":
    unittest.main()
