"""The plugin, in a separate pytest: a budget that is met, and the same test with one allocation more than its budget."""

import importlib.util
import os
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path


@unittest.skipIf(importlib.util.find_spec("pytest") is None, "pytest is not installed")
class Plugin(unittest.TestCase):
    def run_tests(self, tests, *arguments, ini=""):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "test_it.py").write_text("import pytest, unittest\n" + textwrap.dedent(tests))
            Path(folder, "pytest.ini").write_text("[pytest]\n" + ini)
            run = subprocess.run(
                [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--strict-markers", *arguments, folder],
                env={k: v for k, v in os.environ.items() if k != "PYTEST_ADDOPTS"},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                universal_newlines=True,
                timeout=60,
            )
        return run.returncode, run.stdout

    def test_a_budget_that_is_met_and_one_allocation_over(self):
        for limit, status in (("calls=11", 0), ("calls=10", 1), ("bytes=11*1033", 0), ("bytes=11*1033-1", 1)):
            status_seen, out = self.run_tests("""
                @pytest.mark.alloc_budget(%s)
                def test_it():
                    i = 0
                    while i < 11:
                        bytes(1000)
                        i += 1
                # An interpreter before 3.11 makes and keeps the frame.
                test_it()
            """ % limit)
            self.assertEqual(status_seen, status, out)
        self.assertIn("alloc_budget: bytes 11363, budget 11362", out)
        self.assertRegex(out, r"obj +1025-2048 +11 ")

    def test_a_peak(self):
        for peak, status in ((2 * 100_033 + 2000, 0), (2 * 100_033 - 1, 1)):
            seen, out = self.run_tests("""
                @pytest.mark.alloc_budget(peak=%d)
                def test_it():
                    one = bytes(100_000)
                    two = bytes(100_000)
                    del one
                    three = bytes(100_000)
            """ % peak)
            self.assertEqual(seen, status, out)

    def test_lines_are_named_where_asked(self):
        tests = """
            @pytest.mark.alloc_budget(calls=2%s)
            def test_it():
                one = bytes(1000)
                two = [bytes(1000), bytes(1000)]
        """
        for option, ini in ((", by_line=True", ""), ("", "alloc_budget_by_line = true\n")):
            seen, out = self.run_tests(tests % option, ini=ini)
            self.assertEqual(seen, 1, out)
            self.assertRegex(out, r"test_it\.py:6 in test_it")
        seen, out = self.run_tests(tests % "")
        self.assertNotRegex(out, r"test_it\.py:6 in test_it")

    def test_fixtures_are_not_in_it_and_classes_may_be_marked(self):
        seen, out = self.run_tests("""
            @pytest.fixture
            def many():
                kept = [bytes(1000) for _ in range(1000)]
                yield kept
                [bytes(1000) for _ in range(1000)]

            @pytest.mark.alloc_budget(calls=20)
            class TestIt:
                def test_one(self, many):
                    assert len(many) == 1000
                @pytest.mark.parametrize("n", [1, 2])
                def test_two(self, many, n):
                    bytes(1000)

            @pytest.mark.alloc_budget(calls=500)
            class Case(unittest.TestCase):
                def test_three(self):
                    bytes(1000)
                @pytest.mark.alloc_budget(calls=0)
                def test_over(self):
                    bytes(1000)
        """)
        self.assertEqual(seen, 1, out)
        self.assertIn("1 failed, 4 passed", out)

    def test_a_test_that_fails_by_itself_does(self):
        seen, out = self.run_tests("""
            @pytest.mark.alloc_budget(calls=0)
            def test_it():
                assert bytes(1000) == 7
            @pytest.mark.xfail(strict=True)
            @pytest.mark.alloc_budget(calls=0)
            def test_expected():
                bytes(1000)
        """)
        self.assertEqual(seen, 1, out)
        self.assertIn("1 failed, 1 xfailed", out)
        self.assertNotIn("alloc_budget: calls", out)

    def test_a_mark_that_says_nothing_fails_its_own_test_only(self):
        for mark in ("alloc_budget", "alloc_budget(30)", "alloc_budget(call=30)", "alloc_budget(calls=-1)", "alloc_budget(by_line=True)"):
            seen, out = self.run_tests("""
                @pytest.mark.%s
                def test_it():
                    pass
                @pytest.mark.%s
                class Case(unittest.TestCase):
                    def test_in_a_class(self):
                        pass
                def test_without():
                    pass
                @pytest.mark.alloc_budget(calls=500)
                def test_with_a_budget():
                    pass
            """ % (mark, mark))
            self.assertEqual(seen, 1, out)
            self.assertIn("2 failed, 2 passed", out)
            self.assertIn("alloc_budget takes calls, bytes or peak", out)

    def test_without_a_mark_nothing_is_counted(self):
        seen, out = self.run_tests("""
            def test_it():
                import sys
                assert "allocwall._native" not in sys.modules
        """)
        self.assertEqual(seen, 0, out)


if __name__ == "__main__":
    unittest.main()
