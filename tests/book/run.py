#!/usr/bin/env python3
"""Checks the book: tests/book/run.py --binary target/debug/allocwall

Runs the commands of the pages in docs/ that are marked as `sh run`, page by page, in the root of the checkout. A page's commands are one
script, in which every command must succeed; it has a folder of its own in $TMPDIR, and processes that it leaves behind are ended. A block
with `needs=PROGRAM` is left out if the program is missing. Checks all links of the pages and of the README to files of this repository and
to their headings, that docs/README.md lists every page, and that the verbs and options of each `allocwall …` in code, run or not, are in
the help. Ends with `N passed, N failed, N skipped`.
"""

import argparse
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Much longer than the commands of a page take.
LIMIT_S = 180

FENCE = re.compile(r"^```(.*)$")
HEADING = re.compile(r"^#{1,6} +(.+?) *#*$")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`[^`]*`")
# A command in code, to the end of its line. A file's name or an assignment is none.
COMMAND = re.compile(r"(?<![\w./=-])allocwall +(?=[a-z])([^\n]*)")
# Where its own words end: the target's command, another command, a comment, the end of a quoted script.
END = re.compile(r"(?:^|\s)--(?:\s|$)|\$\(|[|;&>)'`]|\s#|…|\.\.\.")
OPTION = re.compile(r"(?:^|\s)(--?[A-Za-z][\w-]*)")


@dataclass
class Page:
    """What the checks need of a page."""

    # Anchors of its headings, as GitHub makes them.
    anchors: set = field(default_factory=set)
    # Targets of its links, without those in code.
    links: list = field(default_factory=list)
    # (programs that are needed, commands) of its blocks that are to be run.
    blocks: list = field(default_factory=list)
    # The words after `allocwall` of each command in its code.
    commands: list = field(default_factory=list)


def slug(heading):
    """GitHub's anchor for a heading: in lower case, without punctuation, with hyphens for blanks."""
    text = LINK.sub(lambda link: link[0][1 : link[0].index("]")], heading)
    return re.sub(r"[^\w\- ]", "", text.replace("`", "").lower()).replace(" ", "-")


def read(text):
    page, fence, kept = Page(), None, []
    for line in text.splitlines():
        if match := FENCE.match(line.strip()):
            if fence is None:
                fence, kept = match[1].split(), []
            else:
                if fence[:1] in (["sh"], ["console"]):
                    page.commands += commands("\n".join(kept))
                if fence[:2] == ["sh", "run"]:
                    needs = [word[len("needs=") :] for word in fence[2:] if word.startswith("needs=")]
                    page.blocks.append((",".join(needs).split(",") if needs else [], "\n".join(kept)))
                fence = None
        elif fence is not None:
            kept.append(line)
        elif not line.startswith("    "):
            if match := HEADING.match(line):
                anchor, again = slug(match[1]), 0
                while (anchor if again == 0 else f"{anchor}-{again}") in page.anchors:
                    again += 1
                page.anchors.add(anchor if again == 0 else f"{anchor}-{again}")
            page.links += LINK.findall(CODE.sub("", line))
            for code in CODE.findall(line):
                page.commands += commands(code[1:-1])
    return page


def commands(code):
    """The words of each command of allocwall, up to those of another program."""
    found = COMMAND.findall(code.replace("\\\n", " "))
    return [END.split(words, maxsplit=1)[0].split() for words in found]


def unknown(words, helped):
    """The verb or the options of a command that are missing from the help. `helped(verbs)`: the help of these verbs, or None."""
    verb, *rest = words
    text = helped((verb,))
    if text is None:
        return [verb]
    if verb == "bench" and rest:
        # Each experiment has options of its own; NAME stands for any one.
        text += helped((verb, "mmap-threshold" if rest[0] == "NAME" else rest[0])) or ""
    return [option for option in OPTION.findall(" ".join(rest)) if not re.search(rf"(?:^|[\s,\[<|]){re.escape(option)}(?![\w-])", text)]


def broken(path, pages, root):
    """What is wrong with the links of a page. `pages`: all pages that were read, by path."""
    wrong = []
    for link in pages[path].links:
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if not target.exists():
            wrong.append(f"{link}: no such file")
        elif root not in target.parents and target != root:
            wrong.append(f"{link}: outside of the repository")
        elif anchor and target.suffix == ".md":
            page = pages.get(target) or read(target.read_text())
            if anchor not in page.anchors:
                wrong.append(f"{link}: no such heading")
    return wrong


def unlisted(contents, pages):
    """Pages of a folder that its contents do not link to."""
    listed = {(contents.parent / link.partition("#")[0]).resolve() for link in pages[contents].links}
    return [path.name for path in sorted(pages) if path.parent == contents.parent and path != contents and path not in listed]


def run(blocks, binary):
    """Runs the blocks of a page. Returns (failure, why a block was left out)."""
    script, missing = "set -eu\n", None
    for needs, block in blocks:
        absent = next((f"no {program} on this machine" for program in needs if not shutil.which(program)), None)
        script += "" if absent else block + "\n"
        missing = missing or absent
    with tempfile.TemporaryDirectory() as folder:
        tools = Path(folder, "bin")
        tools.mkdir()
        (tools / "allocwall").symlink_to(binary)
        environment = {
            **os.environ,
            "PATH": f"{tools}:{os.environ['PATH']}",
            "TMPDIR": folder,
            "XDG_STATE_HOME": f"{folder}/state",
        }
        process = subprocess.Popen(
            ["bash", "-c", script],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=LIMIT_S)
            failure = None if process.returncode == 0 else f"exit status {process.returncode}"
        except subprocess.TimeoutExpired:
            output, failure = "", f"not done after {LIMIT_S} s"
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
    if failure:
        print(output)
    return failure, missing


def help_of(binary):
    """A function that gives the help of verbs, or None if there are no such verbs. Each is asked once."""

    @functools.cache
    def helped(verbs):
        done = subprocess.run([binary, *verbs, "--help"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        return done.stdout if done.returncode == 0 else None

    return helped


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", required=True, help="the program to test")
    binary = Path(parser.parse_args().binary).resolve()
    docs = ROOT / "docs"
    checked = [*sorted(docs.rglob("*.md")), ROOT / "README.md", ROOT / "examples" / "README.md", ROOT / "python" / "README.md"]
    pages = {path: read(path.read_text()) for path in checked}
    passed, failed, skipped = 0, 0, 0
    results = [(f"links of {path.relative_to(ROOT)}", "; ".join(broken(path, pages, ROOT)), None) for path in checked]
    helped = help_of(binary)
    for path in checked:
        wrong = [f"allocwall {' '.join(words)}: {', '.join(names)}" for words in pages[path].commands if (names := unknown(words, helped))]
        if pages[path].commands:
            results.append((f"options in {path.relative_to(ROOT)}", "; ".join(wrong), None))
    results.append(("contents of docs", ", ".join(unlisted(docs / "README.md", pages)), None))
    for path in checked:
        if pages[path].blocks:
            results.append((f"commands of {path.relative_to(ROOT)}", *run(pages[path].blocks, binary)))
    for name, failure, reason in results:
        if failure:
            failed += 1
            print(f"failed: book: {name}: {failure}")
        elif reason:
            skipped += 1
            print(f"skipped: book: {name}: {reason}")
        else:
            passed += 1
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
