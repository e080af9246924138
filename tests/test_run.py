"""The runner: what it counts, what it shows, and which skips it refuses."""

import unittest

from run import SLOWEST, Count, listed, slowest, unlisted

CARGO = """\
     Running unittests src/lib.rs (target/debug/deps/allocwall_model-0123456789abcdef)

running 5 tests
test a::passes ... ok
test a::cannot ... ok
test a::in_part ... ok
test a::ignored ... ignored, takes an hour
test a::fails ... FAILED

successes:

---- a::passes stdout ----
not skipped: the word is in the middle of a line

---- a::cannot stdout ----
skipped: no counter: ENOENT

---- a::in_part stdout ----
skipped in part: no Go program here
skipped in part: nothing links statically here


successes:
    a::cannot
    a::in_part
    a::passes

failures:

---- a::fails stdout ----
skipped: it failed all the same
failed: no: name


failures:
    a::fails

test result: FAILED. 3 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s

   Doc-tests allocwall_pool

running 1 test
test crates/allocwall-pool/src/lib.rs - (line 3) ... ok

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s
""".splitlines()

SCRIPT = """\
passed: redis: 100 requests/s
skipped: nginx: no wrk (Debian: wrk)
failed: java: garbage_collector is called a wall: 3 %
1 passed, 1 failed, 1 skipped
2 passed, 0 failed, 0 skipped
""".splitlines()


def count(lines, **fields):
    counted = Count(**fields)
    shown = [line for line in lines if counted.read(line)]
    return counted, shown


class Counting(unittest.TestCase):
    def test_cargo(self):
        counted, shown = count(CARGO)
        self.assertEqual((counted.passed, counted.skipped), (2, 3))
        self.assertEqual(counted.failed, ["allocwall_model::a::fails"])
        self.assertEqual(
            counted.reasons,
            [
                ("allocwall_model::a::ignored", "ignored, takes an hour"),
                ("allocwall_model::a::cannot", "no counter: ENOENT"),
                ("allocwall_model::a::in_part", "no Go program here"),
                ("allocwall_model::a::in_part", "nothing links statically here"),
            ],
        )
        # What failed is shown; what passed is not.
        self.assertIn("skipped: it failed all the same", shown)
        self.assertNotIn("skipped: no counter: ENOENT", shown)

    def test_a_prefix_distinguishes_two_runs_of_a_program(self):
        counted, _ = count(CARGO, prefix="bundled ")
        self.assertEqual(counted.failed, ["bundled allocwall_model::a::fails"])

    def test_scripts(self):
        counted, shown = count(SCRIPT)
        self.assertEqual((counted.passed, counted.skipped, counted.failed), (3, 1, ["java"]))
        self.assertEqual(counted.reasons, [("nginx", "no wrk (Debian: wrk)")])
        self.assertEqual(shown, SCRIPT)

    def test_failures_and_skips_without_a_name_are_counted(self):
        counted, _ = count(["0 passed, 1 failed, 1 skipped"])
        self.assertEqual((len(counted.failed), counted.skipped), (1, 1))
        self.assertEqual(len(unlisted(counted.reasons, listed("*::*: *"))), 1)


class Ends(unittest.TestCase):
    def ended(self, lines, reason=None):
        counted, _ = count(lines)
        counted.end("step", reason)
        return counted.passed, counted.failed

    def test_a_step_without_counts_is_one_test_and_one_with_counts_of_0_tested_nothing(self):
        self.assertEqual(self.ended(["Checking allocwall-model"]), (1, []))
        self.assertEqual(self.ended(["0 passed, 0 failed, 0 skipped"]), (0, ["step (no test ran)"]))
        self.assertEqual(self.ended(["0 passed, 0 failed, 1 skipped"])[1], [])
        self.assertEqual(self.ended(["2 passed, 0 failed, 0 skipped", "0 passed, 0 failed, 0 skipped"]), (2, []))

    def test_a_step_that_fails_as_a_whole_is_named_if_no_test_is(self):
        self.assertEqual(self.ended(["2 passed, 0 failed, 0 skipped"], "exit status 1"), (2, ["step (exit status 1)"]))
        self.assertEqual(self.ended(SCRIPT, "exit status 1"), (3, ["java"]))


class Times(unittest.TestCase):
    def test_the_times_of_a_program_are_added(self):
        counted, _ = count(CARGO)
        self.assertEqual(counted.seconds, {"allocwall_model": 0.01, "allocwall_pool": 0.01})
        twice, _ = count([*CARGO, *CARGO])
        self.assertAlmostEqual(twice.seconds["allocwall_pool"], 0.02)

    def test_a_result_without_a_time_is_counted_all_the_same(self):
        counted, _ = count([CARGO[0], "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out"])
        self.assertEqual((counted.passed, counted.seconds), (3, {"allocwall_model": 0}))
        scripts, _ = count(SCRIPT)
        self.assertEqual(scripts.seconds, {})

    def test_only_the_slowest_programs_are_shown(self):
        self.assertEqual(slowest({"quick": 0.04, "slow": 100.26, "usual": 5}), "slow 100.3 s, usual 5.0 s, quick 0.0 s")
        shown = slowest({f"program_{n}": n for n in range(SLOWEST + 1)})
        self.assertEqual(len(shown.split(", ")), SLOWEST)
        self.assertNotIn("program_0 ", shown)
        self.assertEqual(slowest({}), "")


class List(unittest.TestCase):
    def refused(self, text, *skip):
        return unlisted([skip], listed(text))

    def test_test_and_reason_must_both_fit(self):
        text = "# No counters here.\n\ncore::cycles::*: no counter: *\n"
        self.assertEqual(self.refused(text, "core::cycles::a", "no counter: ENOENT"), [])
        self.assertEqual(self.refused(text, "core::cycles::a", "no C compiler"), ["core::cycles::a: no C compiler"])
        self.assertEqual(len(self.refused(text, "core::perf::a", "no counter: ENOENT")), 1)
        # A comment lists nothing, and characters with a meaning in regular expressions match themselves.
        self.assertEqual(len(self.refused("# a: b\n", "a", "b")), 1)
        self.assertEqual(len(self.refused("a.c: b", "abc", "b")), 1)


if __name__ == "__main__":
    unittest.main()
