"""What the packages say about a program: its dependencies, from the program itself."""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools" / "dist"))
import pack  # noqa: E402


class Depends(unittest.TestCase):
    # Version names as they stand in a string table; the program's own text contains others.
    CONTENT = b"\0GLIBC_2.2.5\0GLIBC_2.14\0" + b"built for GLIBC_2.99 or later\0" + b"\0GLIBC_2.28\0"

    def test_the_newest_version_counts_as_a_number(self):
        self.assertEqual(pack.depends(["libc.so.6"], self.CONTENT), "libc6 (>= 2.28)")
        self.assertEqual(pack.glibc_minor(b"\0GLIBC_2.9\0GLIBC_2.10\0"), 10)

    def test_libraries_of_glibc_are_one_package_and_others_have_their_own(self):
        needed = ["libgcc_s.so.1", "libm.so.6", "libpthread.so.0", "ld-linux-x86-64.so.2", "libc.so.6"]
        self.assertEqual(pack.depends(needed, self.CONTENT), "libc6 (>= 2.28), libgcc-s1")

    def test_an_unknown_library_is_refused(self):
        with self.assertRaisesRegex(pack.Refused, "libstdc"):
            pack.depends(["libstdc++.so.6", "libc.so.6"], self.CONTENT)


if __name__ == "__main__":
    unittest.main()
