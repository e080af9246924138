#!/usr/bin/env python3
"""Makes a picture of a page: of a recording or a saved trial, its top or one section.

    picture.py BINARY FILE OUT.png
    picture.py BINARY FILE OUT.png --section timeline --height 620

It is 1,000 pixels wide, in light colours. Chromium draws it."""

import argparse
import re
import subprocess
import tempfile
from pathlib import Path

WIDTH = 1000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("file")
    parser.add_argument("out", type=Path)
    parser.add_argument("--section", help="the id of the only section to show")
    parser.add_argument("--height", type=int, default=1000, help="pixels")
    args = parser.parse_args()
    subprocess.run([Path(__file__).parent / "need.sh", "chromium=chromium", "pngquant=pngquant"], check=True)
    with tempfile.TemporaryDirectory() as folder:
        page, picture = Path(folder, "page.html"), Path(folder, "picture.png")
        subprocess.run([args.binary, "report", args.file, "--format", "html", "-o", page], check=True)
        chromium = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={folder}/chromium"]
        size = [f"--window-size={WIDTH},{args.height}", f"--screenshot={picture}"]
        if args.section:
            others = rf'<header.*?</header>|<nav.*?</nav>|<section id="(?!{re.escape(args.section)}")[^>]*>.*?</section>'
            page.write_text(re.sub(others, "", page.read_text(), flags=re.DOTALL))
        subprocess.run([*chromium, *size, page.as_uri()], check=True, stderr=subprocess.DEVNULL)
        # Few colours make a small file.
        subprocess.run(["pngquant", "--force", "--nofs", "--strip", "--output", args.out, "32", picture], check=True)
    print(f"{args.out}: {args.out.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
