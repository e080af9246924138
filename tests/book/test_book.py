"""The checks of the book: a page that is right, and near twins that are not."""

import tempfile
import unittest
from pathlib import Path

from run import broken, read, slug, unlisted

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
