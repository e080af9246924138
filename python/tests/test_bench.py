"""The benchmark's arithmetic, and that it runs."""

import json
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path

from allocwall import _bench, _workloads, hugepages


def block(stock, again, **arms):
    times = {"stock": stock, "stock again": again, **arms}
    return {name: {"total_s": time} for name, time in times.items()}


class Arithmetic(unittest.TestCase):
    def test_a_median_has_an_interval_from_six_values_on(self):
        self.assertEqual(_bench.median_interval([3, 1, 2]), (2, None))
        self.assertEqual(_bench.median_interval([5, 4, 3, 2, 1]), (3, None))
        self.assertEqual(_bench.median_interval([1, 2, 3, 4, 5, 6]), (3.5, (1, 6)))
        # Binomial(9, 1/2): at most one on a side has 2.0 %, at most two 9.0 %.
        self.assertEqual(_bench.median_interval(range(1, 10)), (5, (2, 8)))

    def test_an_effect_is_against_both_stock_runs_of_its_block(self):
        blocks = [block(1.0, 1.0, thp=0.5)] * 3 + [block(4.0, 1.0, thp=1.0)] * 3
        change, interval = _bench.effect(blocks, "thp")
        self.assertAlmostEqual(change, -0.5)
        self.assertAlmostEqual(interval[0], -0.5)
        self.assertAlmostEqual(_bench.effect(blocks[:3], "stock again")[0], 0.0)

    def test_arms_that_cannot_run_say_why(self):
        with unittest.mock.patch.object(hugepages, "_refuse", side_effect=hugepages.Refused("x", "no pages")):
            chosen, skipped = _bench.arms(["hugetlb"], None)
        self.assertEqual([arm.name for arm in chosen], ["stock", "stock again"])
        self.assertEqual(skipped, {"hugetlb": "no pages"})
        with self.assertRaises(ValueError):
            _bench.arms(["jemalloc"], None)


class Running(unittest.TestCase):
    def bench(self, *arguments):
        return subprocess.run(
            [sys.executable, "-m", "allocwall", "bench", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            universal_newlines=True,
            timeout=300,
        )

    def test_each_arm_has_a_line_and_every_run_is_in_the_file(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "runs.json")
            run = self.bench("instances", "--blocks", "1", "--arms", "auto", "--json", str(file))
            self.assertEqual(run.returncode, 0, run.stderr)
            document = json.loads(file.read_text())
        self.assertEqual(len(run.stdout.splitlines()), 4 - len(document["skipped"]))
        runs = document["blocks"]["instances"][0]
        self.assertGreater(runs["stock"]["faults"], 1000)
        self.assertEqual(runs["stock"]["status"], None)

    def test_nonsense_is_one_line(self):
        for arguments in (["unheard_of"], ["--blocks", "0"], ["--arms", "jemalloc"]):
            run = self.bench(*arguments)
            self.assertEqual((run.returncode, run.stderr.count("\n")), (2, 1), run.stderr)

    def test_every_workload_builds_something(self):
        self.assertEqual(len(_workloads.WORKLOADS), 9)


if __name__ == "__main__":
    unittest.main()
