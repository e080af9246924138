"""How predictions are judged; nothing is measured."""

import unittest

from prediction_accuracy import FITTED, NEW, PROGRAMS, change, choice, covered, fit, groups, headline, hit, page, point_in, rounds_of, wrong_sign


def interval(low, point, high):
    return {"low": low, "point": point, "high": high}


def arm(name, measured, predicted=None):
    why_not = None if measured else "too few blocks"
    return {"arm": name, "predicted": predicted, "measured": measured, "why_not": why_not, "median_s": 1.0}


def result(first, *arms, program="p"):
    return {"program": program, "kind": "real", "blocks": 6, "walls": [], "first_choice": first, "arms": list(arms)}


def page_of(*results):
    return page({"machine": ["m"], "results": list(results)})


GAIN = interval(-0.12, -0.1, -0.08)


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
        text = page_of(*results)
        self.assertIn("| Hits | at least 90 % | not measured yet | not measured yet | **1 of 2 (50 %)**, not met |", text)
        self.assertIn("- p b=1: not explained", text)

    def test_a_sign_is_judged_only_where_the_whole_interval_is_beyond_ten_per_cent(self):
        saving = interval(-0.3, -0.1, 0.2)
        self.assertTrue(wrong_sign(saving, interval(0.11, 0.15, 0.2)))
        self.assertIsNone(wrong_sign(saving, interval(0.09, 0.15, 0.2)))
        self.assertIsNone(wrong_sign(saving, interval(-0.5, 0.15, 0.5)))
        self.assertFalse(wrong_sign(saving, interval(-0.2, -0.15, -0.11)))
        self.assertTrue(wrong_sign(interval(-0.1, 0.0, 0.1), interval(-0.2, -0.15, -0.11)))

    def test_a_wrong_sign_counts_also_for_a_hit(self):
        wrong = arm("a", interval(0.11, 0.15, 0.2), interval(-0.3, -0.1, 0.2))
        right = arm("b", interval(-0.2, -0.15, -0.11), interval(-0.3, -0.1, 0.2))
        found = headline([result(None, wrong, right)])
        self.assertEqual([found[k] for k in ("hits", "large_effects", "signs_wrong")], [2, 2, 1])
        text = page_of(result(None, wrong, right))
        self.assertIn("| none | not measured yet | not measured yet | **1 of 2**, not met |", text)
        self.assertEqual(text.count("hit, **wrong sign** |"), 1)

    def test_the_groups_have_separate_figures(self):
        narrow, wide = arm("a", GAIN, interval(-0.12, -0.1, -0.02)), arm("a", GAIN, interval(0.1, 0.2, 0.3))
        results = [result("a", narrow, program="xz"), result("a", wide, program="git"), result("a", wide, program=NEW[0].name)]
        found = {name: [r["program"] for r in part] for name, part in groups(results).items()}
        self.assertEqual(found, {"new": [NEW[0].name], "kept apart": ["xz"], "fitted": ["git"]})
        text = page_of(*results)
        self.assertIn("| Hits | at least 90 % | **0 of 1 (0 %)**, not met | **1 of 1 (100 %)**, met | **0 of 1 (0 %)**, not met |", text)
        self.assertIn("| at most 12 | **20.0**, not met | **10.0**, met | **20.0**, not met |", text)
        self.assertIn("| none | **0 of 0** | **0 of 0** | **0 of 0** |", text)
        self.assertIn("| xz | kept apart | a |", text)
        self.assertIn("| git | fitted | a |", text)

    def test_the_page_says_which_group_had_how_many_rounds(self):
        results = [dict(result("a", program=name), blocks=blocks) for name, blocks in (("xz", 5), ("git", 3), ("redis", 6), (NEW[0].name, 5))]
        self.assertEqual(rounds_of(results), "75 % with 3 rounds (fitted), 94 % with 5 rounds (kept apart, new)")

    def test_a_group_without_a_prediction_meets_no_aim(self):
        text = page_of(result("a", arm("a", None), program="xz"))
        self.assertIn("| Hits | at least 90 % | not measured yet | **0 of 0** | not measured yet |", text)
        self.assertNotIn(", met", text)

    def test_a_change_is_that_within_a_round(self):
        # Each round takes longer than the one before it, for both alike.
        rounds = [{None: turn, "a": turn * ratio} for turn, ratio in zip((1.0, 2.0, 3.0, 4.0), (0.5, 0.52, 0.48, 0.5))]
        found = change("a", rounds)["measured"]
        self.assertEqual([round(found[end], 6) for end in ("low", "point", "high")], [-0.52, -0.5, -0.48])
        self.assertEqual([covered(rounds) for rounds in (3, 6)], [75, 97])

    def test_the_error_is_that_of_the_other_programs(self):
        # Nine programs are predicted right, one is off by a fifth of its CPU time; then three of ten are. Malloc takes so much of each.
        def results(wrong, malloc=0.3, error_of="swaps", to=0.1, low=-0.15):
            measured = [-0.1 if n >= wrong else to for n in range(10)]
            exact, error = interval(-0.1, -0.1, -0.1), {"error": 0.05, "error_of": error_of, "malloc": malloc}
            arms = [{**arm("a", interval(m, m, m), interval(low, -0.1, -0.05)), "without_error": exact, **error} for m in measured]
            return [result("a", one, program=f"p{n}") for n, one in enumerate(arms)]

        few, many = fit(results(1))["swaps"], fit(results(3))["swaps"]
        self.assertEqual((few["arms"], few["error"], few["inside_when_left_out"]), (10, 0.0, 0.9))
        self.assertAlmostEqual(many["error"], 0.2)
        # All of malloc's cost is too little.
        self.assertIsNone(fit(results(3, malloc=0.15))["swaps"]["error"])
        # The other side: the error reaches it, unless malloc's cost cut it short.
        self.assertAlmostEqual(fit(results(3, to=-0.14))["swaps"]["error"], 0.04)
        self.assertIsNone(fit(results(3, to=-0.14, low=-0.12))["swaps"]["error"])
        self.assertEqual(fit(results(1))["settings"], {"arms": 0, "error": None, "inside_when_left_out": None})
        # A range from other programs is no replay, and contention is another matter.
        for other in (None, "contention", "mixes"):
            self.assertEqual(fit(results(1, error_of=other))["swaps"]["arms"], 0)

    def test_programs_have_distinct_names_and_arms(self):
        names = [p.name for p in PROGRAMS]
        self.assertEqual(len(names), len(set(names)))
        self.assertTrue(all(p.arms for p in PROGRAMS))
        self.assertLess(set(FITTED), set(names))
        self.assertFalse(set(FITTED) & {p.name for p in NEW})


if __name__ == "__main__":
    unittest.main()
