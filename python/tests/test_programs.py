"""The programs of `allocwall bench obmalloc`: they do what their descriptions say, and the probe is correct."""

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
        self.assertEqual(len(_workloads.WORKLOADS), 9)
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
        self.assertEqual(told["programs"], [{"name": "x", "about": "", "missing": ["no_such_package"]}])
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
