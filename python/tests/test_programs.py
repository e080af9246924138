"""The programs of `allocwall bench obmalloc`: they do what their descriptions say, and the probe is correct."""

import collections
import json
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path

from allocwall import _ordinary, _real, _workloads, hugepages


def asked(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "allocwall._workloads", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
        timeout=300,
    )


class Programs(unittest.TestCase):
    def test_each_set_has_its_programs(self):
        self.assertEqual((len(_workloads.PUBLISHED), len(_workloads.VARIANTS)), (9, 4))
        # The table begins with those that were published.
        self.assertEqual(list(_workloads.WORKLOADS)[:9], list(_workloads.PUBLISHED))
        for name, workload in _workloads.VARIANTS.items():
            of = workload.doc.partition(":")[0]
            self.assertIn(of, ["variant of " + published for published in _workloads.PUBLISHED], name)
        self.assertEqual(len(_real.PROGRAMS), 9)
        self.assertEqual(len(_ordinary.PROGRAMS), 20)
        names = [*_workloads.WORKLOADS, *_real.PROGRAMS, *_ordinary.PROGRAMS]
        self.assertEqual(len(set(names)), len(names))

    def test_the_parts_are_timed_and_add_up(self):
        told = json.loads(asked("instances", "stock").stdout)
        self.assertAlmostEqual(told["build_s"] + told["use_s"] + told["teardown_s"], told["total_s"], places=2)
        self.assertGreater(told["faults"], 1000)
        self.assertGreater(told["resident_bytes"], 32 << 20)
        self.assertIsNone(told["status"])

    def test_churn_removes_the_oldest_and_keeps_the_number(self):
        for blocks, churn in (
            (_workloads._appended(5), _workloads._append_and_pop),
            (collections.deque(_workloads._appended(5)), _workloads._append_and_pop_left),
        ):
            # All are replaced, so each of the old ones was the first once.
            old = list(blocks)
            churn(blocks)
            self.assertEqual([len(block) for block in blocks], [64] * 5)
            self.assertTrue(all(new is not block for new in blocks for block in old))

    def test_arena_pressure_keeps_its_layers_and_its_variant_none(self):
        self.assertEqual([[len(block) for block in layer] for layer in _workloads._layers(3, 2)], [[256, 256]] * 3)
        self.assertIsNone(_workloads._rounds(3, 2))
        # So it is with the sizes of the table.
        self.assertIsNone(_workloads.PUBLISHED["dict_churn"].build())
        self.assertIsNone(_workloads.VARIANTS["arena_rounds"].build())

    def test_published_instances_hold_three_ints_and_the_variant_one(self):
        with unittest.mock.patch.object(_workloads, "range", lambda _: iter([1000]), create=True):
            [published] = _workloads.PUBLISHED["instances"].build()
            [variant] = _workloads.VARIANTS["instances_shared"].build()
        self.assertEqual((published.x, published.y, published.z), (1000, 1001, 1002))
        self.assertEqual((variant.x, variant.y, variant.z), (1000, 1000, 1000))

    def test_a_program_with_a_small_heap_says_so(self):
        small = {program["name"] for program in _workloads.probe("workloads")["programs"] if program["small"]}
        self.assertEqual(small, {"dict_churn"})
        self.assertTrue(all(program["small"] for program in _workloads.probe("ordinary")["programs"]))
        self.assertFalse(any(program["small"] for program in _workloads.probe("real")["programs"]))

    def test_answers_are_right_where_they_are_known(self):
        programs = _ordinary.PROGRAMS
        self.assertEqual(programs["queens"].use(None), 352 * 16)
        self.assertTrue(programs["pi_digits"].use(None).startswith("31415926535897932384"))
        self.assertEqual(programs["binary_trees"].use(None), 55 * 4095)
        self.assertEqual(programs["asyncio"].use(None), 5**6)
        self.assertEqual(programs["generators"].use(None), 14 * sum(range(1 << 13)))

    def test_an_input_is_made_once(self):
        with tempfile.TemporaryDirectory() as folder:
            written = []
            for _ in range(2):
                path = _real._file(folder, "x", lambda file: written.append(file.write(b"y")))
            self.assertEqual((Path(path).read_bytes(), len(written)), (b"y", 1))

    def test_missing_packages_are_reported(self):
        program = _workloads.Workload("", list, len, needs=("json", "no_such_package"))
        with unittest.mock.patch.object(_workloads, "WORKLOADS", {"x": program}):
            told = _workloads.probe("workloads")
        self.assertEqual(told["programs"], [{"name": "x", "about": "", "small": False, "missing": ["no_such_package"]}])
        self.assertEqual(set(told["refusals"]), set(hugepages.MODES))
        refused = hugepages.Refused("x", "no pages")
        with unittest.mock.patch.object(hugepages, "_refuse", side_effect=refused):
            self.assertEqual(_workloads.probe("workloads")["refusals"]["thp"], "no pages")

    def test_the_file_alone_is_enough_for_an_interpreter_without_the_package(self):
        run = subprocess.run(
            [sys.executable, _workloads.__file__, "--probe", "ordinary"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            universal_newlines=True,
        )
        self.assertEqual(run.returncode, 0, run.stderr)
        told = json.loads(run.stdout)
        self.assertEqual((len(told["programs"]), told["refusals"]), (20, {}))


if __name__ == "__main__":
    unittest.main()
