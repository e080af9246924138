#!/usr/bin/env python3
"""Makes a picture of the page of a recording: picture.py BINARY RECORDING OUT.png

It shows the top of the page, 1,000 pixels wide, in light colours. Chromium draws it."""

import subprocess
import sys
import tempfile
from pathlib import Path

WIDTH, HEIGHT = 1000, 1000


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    binary, recording, out = sys.argv[1:]
    subprocess.run([Path(__file__).parent / "need.sh", "chromium=chromium", "pngquant=pngquant"], check=True)
    with tempfile.TemporaryDirectory() as folder:
        page, picture = Path(folder, "page.html"), Path(folder, "picture.png")
        subprocess.run([binary, "report", recording, "--format", "html", "-o", page], check=True)
        chromium = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={folder}/chromium"]
        size = [f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={picture}"]
        subprocess.run([*chromium, *size, page.as_uri()], check=True, stderr=subprocess.DEVNULL)
        # Few colours make a small file.
        subprocess.run(["pngquant", "--force", "--nofs", "--strip", "--output", out, "32", picture], check=True)
    print(f"{out}: {Path(out).stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
