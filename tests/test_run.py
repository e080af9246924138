"""The runner: what it counts, what it shows, and which skips it refuses."""

import contextlib
import io
import sys
import tempfile
import unittest
from pathlib import Path

from run import SLOWEST, Count, Step, listed, run, run_again, slowest, unlisted

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


def count(lines):
    counted = Count()
    shown = [line for line in lines if counted.read(line)]
    return counted, shown


# Like cargo: the test of the options fails so many times, then it passes. It writes its options to a file.
FAKE = """
import sys
from pathlib import Path
file, times, *options = sys.argv[1:]
before = Path(file).read_text().splitlines() if Path(file).exists() else []
Path(file).write_text("\\n".join([*before, " ".join(options)]))
fails = len(before) < int(times)
print("     Running tests/trial.rs (target/debug/deps/trial-0123456789abcdef)")
print("test it::works ... " + ("FAILED" if fails else "ok"))
print(f"test result: {'FAILED' if fails else 'ok'}. {int(not fails)} passed; {int(fails)} failed; 0 ignored; 0 measured; 0 filtered out")
"""


class Again(unittest.TestCase):
    def again(self, times, lines):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "options"
            counted, _ = count(lines)
            # What the steps print would be counted by the run that this test is a part of.
            with contextlib.redirect_stdout(io.StringIO()):
                run_again(Step("rust", [sys.executable, "-c", FAKE, str(file), str(times), "--workspace", "--", "--show-output"]), counted)
            return counted, file.read_text().splitlines() if file.exists() else []

    def test_a_test_that_passes_then_has_passed_and_is_named(self):
        counted, options = self.again(0, CARGO)
        self.assertEqual((counted.failed, counted.again), ([], ["allocwall_model::a::fails"]))
        self.assertEqual(counted.passed, 3)
        self.assertEqual(options, ["--workspace --lib -- --exact a::fails --show-output"])

    def test_a_test_that_fails_again_has_failed(self):
        counted, options = self.again(1, CARGO)
        self.assertEqual((counted.failed, counted.again, counted.passed), (["allocwall_model::a::fails"], [], 2))
        self.assertEqual(len(options), 1)

    def script(self, *outputs):
        """The count after a script that prints one of these in each run."""
        with tempfile.TemporaryDirectory() as folder:
            texts = Path(folder, "texts")
            texts.write_text("\0".join(outputs))
            code = "import sys; p = sys.argv[1]; first, _, rest = open(p).read().partition('\\0'); open(p, 'w').write(rest); print(first)"
            step = Step("perf", [sys.executable, "-c", code, str(texts)], measures=True)
            with contextlib.redirect_stdout(io.StringIO()):
                count = run(step)
                run_again(step, count)
        return count.passed, count.failed, count.again

    def test_a_script_that_measures_is_run_once_more(self):
        failed = "failed: a: x\nfailed: b: y\n3 passed, 2 failed, 0 skipped"
        self.assertEqual(self.script(failed, "failed: b: y\nfailed: c: z\n3 passed, 2 failed, 0 skipped"), (4, ["b"], ["a"]))
        # The near twins: it passes at once; it ends without counts in the second run.
        self.assertEqual(self.script("5 passed, 0 failed, 0 skipped"), (5, [], []))
        self.assertEqual(self.script(failed, "Traceback"), (3, ["a", "b"], []))

    def test_programs_are_selected_by_their_kind(self):
        for source, expected in [
            ("unittests src/main.rs", "--workspace --bins"),
            ("tests/trial.rs", "--workspace --test allocwall_model"),
        ]:
            _, options = self.again(1, [CARGO[0].replace("unittests src/lib.rs", source), "test a::fails ... FAILED"])
            self.assertEqual(options, [f"{expected} -- --exact a::fails --show-output"])

    def test_many_failures_and_those_of_a_documentation_are_final(self):
        many = [CARGO[0], *(f"test a::fails_{n} ... FAILED" for n in range(6))]
        for lines in [many, ["   Doc-tests allocwall_pool", "test lib.rs - (line 3) ... FAILED"], SCRIPT]:
            counted, options = self.again(0, lines)
            self.assertEqual((counted.again, options), ([], []))


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

    def test_what_ci_adds_comes_before_the_options_of_the_tests(self):
        step = Step("a", ["cargo", "test", "--", "--show-output"], ci_adds=("-F", "x"))
        self.assertEqual(step.in_ci().command, ["cargo", "test", "-F", "x", "--", "--show-output"])
        self.assertEqual(Step("b", ["make", "all"], ci_adds=("ENDS=1",)).in_ci().command, ["make", "all", "ENDS=1"])
        self.assertEqual(Step("c", ["cargo", "fmt"]).in_ci().command, ["cargo", "fmt"])

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
