"""Tests of the lab's parts that need no emulator: python3 -m unittest test_lab, in this folder."""

import copy
import json
import subprocess
import tempfile
import unittest
from pathlib import Path

import image
import kernels
from judge import FINDINGS, Calibrated, Figure, Machine, NotSampled, Refused, Starved, Status, Wall, judge_command, judge_observation
from run import AMD64, ARM, CROSS, qemu
from scenarios import ARM64, ARM64_KERNEL, BOOTS, CI, KERNELS

MACHINE = Machine("6.1", cpus=4, nodes=2, cgroup=2, huge_pages="always")
WALLS = ["first_touch", "numa", *(f"other_{n}" for n in range(FINDINGS - 2))]

DEB822 = """# ours
Types: deb
URIs: http://mirror.invalid/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/one.gpg

Types: deb
URIs: http://mirror.invalid/security
Suites: bookworm-security
Components: main
"""
ONE_LINE = """# deb http://commented.invalid/debian bookworm main
deb [ signed-by=/k.gpg arch=amd64 ] http://mirror.invalid/debian bookworm main contrib # ours
deb http://other.invalid stable main
"""


class Sources(unittest.TestCase):
    def test_both_formats_give_the_machines_own_mirror(self):
        for text, key in ((DEB822, "/usr/share/keyrings/one.gpg"), (ONE_LINE, "/k.gpg")):
            made = kernels.sources_for("trixie", ["", text], "bookworm")
            self.assertIn("URIs: http://mirror.invalid/debian\n", made)
            self.assertIn("Suites: trixie\n", made)
            self.assertIn(f"Signed-By: {key}\n", made)

    def test_no_mirror_is_a_reason(self):
        for texts in ([], [ONE_LINE.replace(" bookworm ", " jammy ")], [DEB822.replace("Types: deb", "Enabled: no\nTypes: deb")]):
            with self.assertRaises(kernels.Unavailable):
                kernels.sources_for("trixie", texts, "bookworm")


class Archive(unittest.TestCase):
    def test_it_unpacks_to_what_went_in(self):
        entries = [("etc", 0o40755, b""), ("etc/odd", 0o100600, b"12345"), ("etc/link", 0o120777, b"odd")]
        with tempfile.TemporaryDirectory() as folder:
            command = ["busybox", "cpio", "-i"]
            try:
                subprocess.run(command, cwd=folder, input=image.archive(entries), check=True, capture_output=True)
            except FileNotFoundError:
                self.skipTest("no busybox")
            self.assertEqual((Path(folder) / "etc/odd").read_bytes(), b"12345")
            self.assertEqual((Path(folder) / "etc/link").readlink(), Path("odd"))


def interval(point, half=0.0):
    return {"low": point - half, "point": point, "high": point + half}


def report(share, half=0.0, status="wall"):
    def finding(wall):
        evidence = ["node 0: 9 MiB of its memory"] if wall == "numa" else []
        return {
            "wall": wall, "status": "ruled_out", "share": interval(0), "because": "", "evidence": evidence, "missing": None
        }

    findings = {wall: finding(wall) for wall in WALLS}
    findings["first_touch"].update(status=status, share=interval(share, half))
    walls = ["first_touch"] if status == "wall" else []
    lines = [{"class": "fault_path", "share": interval(share, half)}, {"class": "zeroing", "share": interval(0)}]
    lines.append({"class": "application", "share": interval(1 - share)})
    return {
        "verdict": {"walls": walls, "sentence": ""},
        "findings": list(findings.values()),
        "bill": {"on_cpu": lines, "off_cpu": [{"class": "throttled", "thread_s": interval(share * 2)}]},
        "host": {
            "online_cpus": 4, "numa_nodes": 2, "cgroup_version": 2, "thp_enabled": "always", "kernel_release": "6.1.0-1"
        },
        "recording": {
            "started_unix_ms": 1000, "window_ns": 2_000_000_000, "requested_ns": 2_000_000_000, "ended": {"kind": "complete"}
        },
    }


def truth(share):
    return "".join(
        json.dumps({
            "t_real_ms": 1000 * second, "cpu_s": float(second), "threads": 1,
            "lines": {"fault_path+zeroing": share * second}, "waits": {"throttled": share * second},
        }) + "\n"
        for second in range(5)
    )


def files(report, share, status="0"):
    return {"status": status + "\n", "talk": "", "report": json.dumps(report), "truth": truth(share), "subject": ""}


class Judge(unittest.TestCase):
    touch = Wall("first_touch", line="fault_path+zeroing")

    def complaints(self, expect, seen):
        return judge_observation(expect, seen, MACHINE)[0]

    def test_a_named_wall_whose_line_agrees(self):
        self.assertEqual(self.complaints(self.touch, files(report(0.5), 0.45)), [])
        self.assertEqual(self.complaints(Wall("first_touch", wait="throttled"), files(report(0.5), 0.45)), [])
        # A wide interval is right, a narrow one that misses the truth is wrong.
        self.assertEqual(self.complaints(self.touch, files(report(0.5, half=0.2), 0.25)), [])
        self.assertTrue(self.complaints(self.touch, files(report(0.5), 0.25)))
        self.assertTrue(self.complaints(Wall("first_touch", wait="throttled"), files(report(0.5), 0.25)))

    def test_a_wall_that_is_not_named(self):
        self.assertTrue(self.complaints(self.touch, files(report(0.5, status="contributor"), 0.5)))

    def test_a_stretched_window_excuses_what_was_missed_and_nothing_else(self):
        stretched = report(0.5, status="contributor")
        stretched["recording"]["requested_ns"] = 1_000_000_000
        with self.assertRaises(Starved):
            self.complaints(self.touch, files(stretched, 0.5))
        self.assertTrue(self.complaints(self.touch, files({**stretched, "findings": stretched["findings"][:-1]}, 0.5)))
        stretched = report(0.5)
        stretched["recording"]["requested_ns"] = 1_000_000_000
        self.assertEqual(self.complaints(self.touch, files(stretched, 0.5)), [])

    def test_a_twin(self):
        twin = Status("first_touch", "ruled_out")
        self.assertEqual(self.complaints(twin, files(report(0.0, status="ruled_out"), 0)), [])
        self.assertEqual(self.complaints(twin, files(report(0.03, half=0.03, status="contributor"), 0)), [])
        self.assertTrue(self.complaints(twin, files(report(0.07, half=0.03, status="contributor"), 0)))
        self.assertTrue(self.complaints(twin, files(report(0.5), 0)))

    def test_what_holds_of_every_report(self):
        def broken(change):
            changed = copy.deepcopy(report(0.5))
            change(changed)
            return self.complaints(self.touch, files(changed, 0.5))

        self.assertTrue(broken(lambda r: r["findings"].pop()))
        self.assertTrue(broken(lambda r: r["bill"]["on_cpu"][2]["share"].update(point=0.6)))
        self.assertTrue(broken(lambda r: r["findings"][5].update(status="not_measured")))
        self.assertTrue(broken(lambda r: r["host"].update(numa_nodes=1)))
        self.assertTrue(broken(lambda r: r["findings"][1].update(evidence=[])))
        # A target that ended has no pages.
        self.assertFalse(broken(lambda r: (r["findings"][1].update(evidence=[]), r["recording"]["ended"].update(kind="target_exited"))))
        self.assertTrue(broken(lambda r: r["host"].update(kernel_release="6.12.1")))
        self.assertTrue(self.complaints(self.touch, files(report(0.5), 0.5, status="1")))
        self.assertTrue(self.complaints(self.touch, {"subject": "it died\n"}))
        self.assertTrue(self.complaints(self.touch, {**files(report(0.5), 0.5), "report": "{"}))

    def test_a_subject_that_ended_too_soon_is_no_agreement(self):
        seen = files(report(0.5), 0.5)
        seen["truth"] = "".join(seen["truth"].splitlines(keepends=True)[:2])
        self.assertTrue(self.complaints(self.touch, seen))

    def test_without_samples(self):
        absent = report(0.5, status="ruled_out")
        absent["verdict"]["sentence"] = "No verdict, since …"
        way = {"how": "run as root", "is_command": False, "note": None}
        absent["bill"]["on_cpu"] = {"absent": {"reason": "not_permitted", "detail": "", "mend": [way]}}
        expect = NotSampled("not_permitted")
        self.assertEqual(self.complaints(expect, files(absent, 0.5, status="1")), [])
        self.assertTrue(self.complaints(NotSampled("not_found"), files(absent, 0.5, status="1")))
        self.assertTrue(self.complaints(expect, files(report(0.5), 0.5, status="1")))

    def test_a_refusal_is_one_line(self):
        said = {"status": "1", "report": "", "talk": "error: not permitted to do that\n", "truth": ""}
        self.assertEqual(self.complaints(Refused("not permitted"), said), [])
        self.assertTrue(self.complaints(Refused("not permitted"), {**said, "talk": said["talk"] * 2}))
        self.assertTrue(self.complaints(Refused("another reason"), said))

    def test_no_price_takes_one_line(self):
        said = {"status": "1", "report": "", "talk": "error: no event has a stable price here\n"}
        self.assertEqual(judge_command(Calibrated(), said, MACHINE)[0], [])
        self.assertTrue(judge_command(Calibrated(), {**said, "report": "a price is not there\n" * 30}, MACHINE)[0])
        self.assertEqual(judge_command(Calibrated(), {**said, "status": "0", "report": "a price\n" * 30}, MACHINE)[0], [])

    def test_a_figure_of_a_run(self):
        def complaints(figures, status="0"):
            said = {"status": status, "report": json.dumps({"outcome": {"figures": figures}}), "talk": ""}
            return judge_command(Figure("elsewhere", 0.9, 1), said, MACHINE)[0]

        self.assertEqual(complaints({"elsewhere": 0.98}), [])
        for wrong in ({"elsewhere": 0.5}, {}):
            self.assertTrue(complaints(wrong))
        self.assertTrue(complaints({"elsewhere": 0.98}, status="1"))


class Plans(unittest.TestCase):
    def test_names_are_unique_and_plans_are_shell(self):
        for boot in [*BOOTS, CI, ARM64]:
            names = [scenario.name for scenario in boot.scenarios]
            self.assertEqual(len(names), len(set(names)))
            plan = boot.plan(boot.scenarios, 8)
            done = subprocess.run(["sh", "-n"], input=plan, text=True, capture_output=True)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(len(set(KERNELS.values())), len(KERNELS))
        self.assertIn(ARM64_KERNEL, KERNELS)

    def test_the_results_have_a_port_of_their_own(self):
        for platform, boot, data in ((AMD64, BOOTS[0], "ttyS1"), (ARM, ARM64, "ttyS0")):
            command = qemu(platform, "kernel", "initramfs", boot, Path("folder"))
            line = command[command.index("-append") + 1].split()
            self.assertIn(f"data={data}", line)
            self.assertNotIn(f"console={data}", line)
            self.assertIn("file,id=data,path=folder/data", command)


class Libraries(unittest.TestCase):
    def test_those_of_another_architecture_are_found_in_its_folder(self):
        if not (CROSS / "libm.so.6").is_file():
            self.skipTest("not installed: libc6-arm64-cross")
        found = image.cross_libraries(CROSS / "libm.so.6", CROSS)
        self.assertEqual(set(found), {"lib/libc.so.6", "lib/ld-linux-aarch64.so.1"})

    def test_one_that_is_missing_is_named(self):
        with tempfile.TemporaryDirectory() as folder, self.assertRaisesRegex(image.Unavailable, r"libc\.so"):
            image.cross_libraries("/bin/sh", Path(folder))


if __name__ == "__main__":
    unittest.main()
