"""The recipe for the rebuilt interpreter: its patch, its refusals and its commands. Nothing is fetched or built."""

import contextlib
import io
import tempfile
import unittest
import unittest.mock
from pathlib import Path

import rebuild_python
from rebuild_python import OPTION, Builder, Refused, check_arenas, lacking, main, patch, source_refusal, with_huge_arenas

SIZE = """\
#ifdef USE_LARGE_ARENAS
#define ARENA_BITS              20                    /* 1 MiB */
#else
#define ARENA_BITS              18                    /* 256 KiB */
#endif
"""
MAP = """\
    void *ptr;
    ptr = mmap(NULL, size, PROT_READ|PROT_WRITE,
               MAP_PRIVATE|MAP_ANONYMOUS, -1, 0);
    if (ptr == MAP_FAILED)
        return NULL;
"""


def kind(of, *arguments):
    """The kind of the refusal, None if there is none."""
    try:
        of(*arguments)
    except Refused as refused:
        return refused.kind
    return None


class Patch(unittest.TestCase):
    def test_both_changes_are_made_in_one_file_and_in_two(self):
        for texts in ({"obmalloc.c": SIZE + MAP}, {"obmalloc.c": MAP, "pycore_obmalloc.h": SIZE}):
            text = "".join(with_huge_arenas(dict(texts)).values())
            self.assertIn("ARENA_BITS              21\n", text)
            self.assertIn("ARENA_BITS              18 ", text)
            huge, plain = text.index("MAP_HUGETLB"), text.index("MAP_ANONYMOUS, -1, 0")
            # Plain pages are the fallback, and the test of the result follows both.
            self.assertLess(huge, plain)
            self.assertLess(plain, text.index("return NULL"))
            self.assertEqual(text.count("if (ptr == MAP_FAILED)"), 2)
            self.assertEqual(text.count("{"), text.count("}"))

    def test_another_source_is_refused(self):
        for text in (SIZE, MAP, SIZE + MAP + MAP, SIZE.replace("20 ", "21 ") + MAP):
            self.assertEqual(kind(with_huge_arenas, {"obmalloc.c": text}), "unknown_source")

    def test_a_source_with_the_option_stays_as_it_is(self):
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder)
            (source / "Objects").mkdir()
            (source / "Objects/obmalloc.c").write_text(SIZE + MAP)
            (source / "configure").write_text("  %s\n" % OPTION)
            self.assertEqual(patch(source), [OPTION])
            self.assertEqual((source / "Objects/obmalloc.c").read_text(), SIZE + MAP)
            (source / "configure").write_text("  --with-pymalloc\n")
            self.assertEqual(patch(source), [])
            self.assertIn("MAP_HUGETLB", (source / "Objects/obmalloc.c").read_text())


class Needs(unittest.TestCase):
    def test_missing_tools_are_named_with_their_packages(self):
        here = unittest.mock.patch.object(rebuild_python, "NEEDED_BYTES", 0)
        with tempfile.TemporaryDirectory() as folder, here:
            [tools] = lacking(Path(folder), which=lambda name: None if name in ("cc", "dpkg-source") else name)
            [apt, _] = lacking(Path(folder), which=lambda name: None)
        self.assertEqual((tools.kind, apt.kind), ("missing_tool", "missing_tool"))
        for name in ("dpkg-source", "cc", "dpkg-dev", "gcc"):
            self.assertIn(name, str(tools))
        self.assertNotIn("make", str(tools))
        self.assertIn("needs Debian", str(apt))

    def test_a_full_disk_and_a_folder_with_files_are_refused(self):
        there = lambda name: None if name == "cc" else "/usr/bin/" + name  # noqa: E731
        kinds = lambda folder: [refused.kind for refused in lacking(folder, which=there)]  # noqa: E731
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            self.assertNotIn("not_empty", kinds(folder))
            with unittest.mock.patch.object(rebuild_python, "NEEDED_BYTES", 1 << 62):
                self.assertIn("no_room", kinds(folder / "new"))
            with unittest.mock.patch.object(rebuild_python, "NEEDED_BYTES", 0):
                self.assertNotIn("no_room", kinds(folder / "new"))
            (folder / "file").touch()
            self.assertIn("not_empty", kinds(folder))

    def test_apt_without_source_packages_is_told_from_an_unknown_package(self):
        without = source_refusal("python3.11", "E: You must put some 'deb-src' URIs in your sources.list\n")
        self.assertEqual(without.kind, "no_deb_src")
        self.assertIn("apt-get update", str(without))
        unknown = source_refusal("python3.99", "W: x\nE: Unable to find a source package for python3.99\n")
        self.assertEqual((unknown.kind, "python3.99" in str(unknown)), ("no_source", True))
        self.assertEqual(source_refusal("python3.11", "").kind, "no_source")

    def test_the_size_of_arenas_is_the_proof(self):
        stats = "# arenas reclaimed = 0\n1 arenas * %d bytes/arena  =  1\n"
        self.assertIsNone(kind(check_arenas, "stock", stats % (1 << 20)))
        self.assertIsNone(kind(check_arenas, "rebuilt", stats % (2 << 20)))
        self.assertEqual(kind(check_arenas, "rebuilt", stats % (1 << 20)), "not_rebuilt")
        self.assertEqual(kind(check_arenas, "rebuilt", ""), "not_rebuilt")


class Commands(unittest.TestCase):
    def dry(self, *arguments, missing=()):
        """Exit status and output of a dry run in a folder that does not exist, and whether it exists then."""
        out, err = io.StringIO(), io.StringIO()
        with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            folder = Path(name, "new")
            with unittest.mock.patch.multiple(rebuild_python, lacking=lambda _: list(missing), no_source=lambda _: None):
                status = main(["--dry-run", "--version", "3.11", *arguments, str(folder)])
            return status, out.getvalue(), err.getvalue(), folder.exists()

    def test_a_dry_run_shows_all_commands_and_changes_nothing(self):
        status, out, err, exists = self.dry("--jobs", "3")
        self.assertEqual((status, err, exists), (0, "", False))
        for command in ("apt-get source --download-only python3.11", "make -j3", "make altinstall", "vm.nr_hugepages"):
            self.assertIn(command, out)
        lines = out.splitlines()
        configured = [line for line in lines if "configure --prefix=" in line]
        # Both builds have the same options.
        self.assertEqual(len(configured), 2)
        self.assertEqual(configured[0].replace("/stock", ""), configured[1].replace("/rebuilt", ""))
        self.assertIn("/stock/bin/python3.11 --rebuilt ", lines[-1])

    def test_a_dry_run_says_what_is_missing(self):
        status, out, err, _ = self.dry(missing=[Refused("no_deb_src", "add it")])
        self.assertEqual((status, err), (1, "missing here: no_deb_src: add it\n"))
        self.assertIn("apt-get source", out)

    def test_bad_arguments_end_with_2(self):
        for arguments in (["--version", "3.9"], ["--version", "2.7"], ["--jobs", "0"], ["--wheel", "/nowhere.whl"]):
            with self.assertRaises(SystemExit) as ended, contextlib.redirect_stderr(io.StringIO()):
                main([*arguments, "/nowhere/new"])
            self.assertEqual(ended.exception.code, 2)

    def test_a_command_that_fails_names_its_last_line(self):
        with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(io.StringIO()):
            builder = Builder(Path(name), "3.11", 1, dry_run=False)
            self.assertIsNone(kind(builder.run, ["true"], Path(name)))
            with self.assertRaises(Refused) as failed:
                builder.run(["sh", "-c", "echo first; echo last; exit 3"], Path(name, "made"))
        self.assertEqual(failed.exception.kind, "failed")
        self.assertIn("ended with 3: last ", str(failed.exception))


if __name__ == "__main__":
    unittest.main()
