"""Turns: commands do not run at the same time, their CPU time is their own, and none is left behind."""

import os
import sys
import tempfile
import time
import unittest
from pathlib import Path

from turns import Command, Failed, cpu_seconds

WORK = "import time\nend = time.process_time() + {}\nwhile time.process_time() < end: pass\n"


def python(text):
    return Command([sys.executable, "-I", "-c", text])


class Turns(unittest.TestCase):
    def test_each_command_has_its_own_cpu_time(self):
        used = cpu_seconds({"short": python(WORK.format(0.1)), "long": python(WORK.format(0.4))})
        self.assertEqual(list(used), ["short", "long"])
        self.assertTrue(0.1 <= used["short"] < 0.3 < 0.4 <= used["long"] < 0.8, used)

    def test_processes_that_were_waited_for_count(self):
        child = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', {!r}], check=True)\n".format(WORK.format(0.2))
        self.assertGreaterEqual(cpu_seconds({"parent": python(child), "other": python(WORK.format(0.05))})["parent"], 0.2)

    def test_no_two_run_at_the_same_time(self):
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "log"
            # Each writes the time at which it runs; a span in which one wrote holds no time of the other.
            text = "import os, time\nf = os.open({!r}, os.O_CREAT | os.O_WRONLY | os.O_APPEND)\nend = time.process_time() + 0.1\n"
            text += "while time.process_time() < end: os.write(f, b'%d {}\\n' % time.monotonic_ns())\n"
            cpu_seconds({name: python(text.format(str(log), name)) for name in "ab"}, turn_s=0.01)
            names = [line.split()[1] for line in log.read_text().splitlines()]
        changes = sum(one != two for one, two in zip(names, names[1:]))
        self.assertGreater(len(names), 100)
        # 0.1 s in turns of 10 ms; commands side by side on two processors would alternate with nearly each line.
        self.assertTrue(2 <= changes < 100, changes)

    def test_a_failure_names_the_command_and_ends_the_others(self):
        with tempfile.TemporaryDirectory() as folder:
            mark = Path(folder) / "pid"
            waiting = python(f"import os, time\nopen({str(mark)!r}, 'w').write(str(os.getpid()))\ntime.sleep(60)\n")
            bad = python("import time\ntime.sleep(0.5)\nraise SystemExit(3)\n")
            began = time.monotonic()
            with self.assertRaisesRegex(Failed, "bad: .* ended with status 3"):
                cpu_seconds({"waiting": waiting, "bad": bad})
            self.assertLess(time.monotonic() - began, 30)
            with self.assertRaises(ProcessLookupError):
                os.kill(int(mark.read_text()), 0)

    def test_one_that_never_ends_is_ended(self):
        with self.assertRaisesRegex(Failed, "not ended after 0.3 s: forever"):
            cpu_seconds({"forever": python("while True: pass")}, limit_s=0.3)

    def test_a_command_has_its_environment_and_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            command = Command(["/bin/sh", "-c", "echo $WORD >out"], {"WORD": "there"}, folder)
            cpu_seconds({"one": command})
            self.assertEqual((Path(folder) / "out").read_text(), "there\n")


if __name__ == "__main__":
    unittest.main()
