"""The checks of the book: a page that is right, and near twins that are not."""

import tempfile
import unittest
from pathlib import Path

from run import broken, commands, read, slug, unknown, unlisted

PAGE = """# A page: `code` & more

See [other](other.md#some-heading), [itself](#a-page-code--more), [the web](https://example.org/x) and `[no](link)`.

```sh run needs=bash,cat
true
```

```sh
false
```

    [code](nowhere.md)

## Twice
## Twice
"""


class Pages(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name).resolve()

    def pages(self, **texts):
        for name, text in texts.items():
            (self.root / f"{name}.md").write_text(text)
        return {self.root / f"{name}.md": read(text) for name, text in texts.items()}

    def wrong(self, link):
        pages = self.pages(a=f"# A\n[x]({link})\n", other="## Some heading\n")
        return broken(self.root / "a.md", pages, self.root)

    def test_a_page_is_read(self):
        page = read(PAGE)
        self.assertEqual(page.links, ["other.md#some-heading", "#a-page-code--more", "https://example.org/x"])
        self.assertEqual(page.blocks, [(["bash", "cat"], "true")])
        self.assertEqual(page.anchors, {"a-page-code--more", "twice", "twice-1"})
        self.assertEqual(slug("[A link](to.md), and_more!"), "a-link-and_more")

    def test_a_command_ends_where_that_of_another_program_begins(self):
        for code, words in (
            ("sudo allocwall diagnose -p 1 --all", ["diagnose", "-p", "1", "--all"]),
            ("allocwall run --with a -- ls --color", ["run", "--with", "a"]),
            ("allocwall report x --format csv | head -3", ["report", "x", "--format", "csv"]),
            ("allocwall list  # see --help", ["list"]),
            ("allocwall trial --with a \\\n    --blocks 8 -- cmd", ["trial", "--with", "a", "--blocks", "8"]),
            ("sh -c 'allocwall top -p $(pgrep -o x)'", ["top", "-p"]),
        ):
            self.assertEqual(commands(code), [words], code)
        self.assertEqual(commands("cargo install --path crates/allocwall -x\nALLOCWALL=allocwall"), [])
        self.assertEqual(read("Use `allocwall list` here.\n```sh\nallocwall top\n```\n").commands, [["list"], ["top"]])

    def test_verbs_and_options_that_the_help_lacks_are_found(self):
        texts = {("list",): "-a, --all\n", ("bench",): "", ("bench", "one"): "--quick  Shorter\n"}
        for words, missing in (
            (["list", "--all"], []),
            (["list", "--al"], ["--al"]),
            (["list", "--all-of-it"], ["--all-of-it"]),
            (["list", "-a", "-b"], ["-b"]),
            (["show"], ["show"]),
            (["bench", "one", "--quick"], []),
            (["bench", "one", "--slow"], ["--slow"]),
        ):
            self.assertEqual(unknown(words, texts.get), missing, words)

    def test_links_to_files_and_headings(self):
        for link in ("other.md", "other.md#some-heading", "#a", "https://example.org/nothing", "."):
            self.assertEqual(self.wrong(link), [], link)
        for link, why in (("missing.md", "file"), ("other.md#missing", "heading"), ("#missing", "heading"), ("/etc", "outside")):
            self.assertIn(why, "".join(self.wrong(link)), link)

    def test_every_page_is_in_the_contents(self):
        pages = self.pages(README="[a](a.md) [b](b.md#x)", a="", b="")
        self.assertEqual(unlisted(self.root / "README.md", pages), [])
        pages = self.pages(README="[a](a.md)", a="", b="")
        self.assertEqual(unlisted(self.root / "README.md", pages), ["b.md"])


if __name__ == "__main__":
    unittest.main()
