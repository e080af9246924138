#!/usr/bin/env python3
"""Checks the licences of all dependencies of the binary.

The allow list below must satisfy each dependency's licence. Dependencies whose licence asks for attribution must be in NOTICE.
Exits with 1 and one line for each problem. `--list` prints name, version and licence of all. `--texts` prints only the texts of the
licences of what is linked into the program; they must accompany every copy of it.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Permissive licences: code under them may be linked into a program under Apache-2.0 OR MIT.
ALLOWED = {
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CC0-1.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
}
# Weak copyleft, file by file: allowed only for these packages, unchanged and named in NOTICE.
ALLOWED_FOR = {"inferno": {"CDDL-1.0"}}
LICENCE = re.compile(r"(LICEN[CS]E|COPYING|COPYRIGHT|NOTICE|UNLICENSE)", re.I)
# Licences that require attribution also in binaries, in addition to the MIT notice that all share.
NAMED = {"CDDL-1.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "Unicode-3.0", "Zlib"}


def metadata():
    """The packages of the workspace on Linux, from cargo."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", "x86_64-unknown-linux-gnu"]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)


def packages(about):
    """Third-party packages of the workspace."""
    used = {node["id"] for node in about["resolve"]["nodes"]}
    own = set(about["workspace_members"])
    return [package for package in about["packages"] if package["id"] in used - own]


def linked(about):
    """Third-party packages in the program: what it needs to run, and the sources of the embedded libraries."""
    nodes = {node["id"]: node for node in about["resolve"]["nodes"]}
    names = {package["id"]: package["name"] for package in about["packages"]}
    rest, found = [next(id for id in about["workspace_members"] if names[id] == "allocwall")], set()
    while rest:
        if (id := rest.pop()) in found:
            continue
        found.add(id)
        for dependency in nodes[id]["deps"]:
            kinds = {kind["kind"] for kind in dependency["dep_kinds"]}
            if None in kinds or names[dependency["pkg"]] == "snmalloc-sys":
                rest.append(dependency["pkg"])
    return [package for package in packages(about) if package["id"] in found]


def texts(about):
    """The texts of the licences, each once, below the names of its packages."""
    owners = {}
    for package in linked(about):
        folder = Path(package["manifest_path"]).parent
        files = sorted(path for path in folder.iterdir() if path.is_file() and LICENCE.match(path.name))
        name = f"{package['name']} {package['version']} ({package['license']})"
        for path in files:
            owners.setdefault(path.read_text(errors="replace").strip(), []).append(name)
        if not files:
            # The crate contains no text. Its licence names it, and its source has the authors.
            where = package["repository"] or f"https://crates.io/crates/{package['name']}"
            owners.setdefault(f"No text in the package; its source: {where}", []).append(name)
    rule = "-" * 100
    return "".join(f"{rule}\n{', '.join(names)}\n{rule}\n{text}\n\n" for text, names in sorted(owners.items(), key=lambda one: one[1]))


def tokens(expression):
    """The tokens of an SPDX expression; the old form `A/B` means OR."""
    found = re.findall(r"\(|\)|[^\s()]+", expression.replace("/", " OR "))
    joined = []
    for token in found:
        if joined and (token == "WITH" or joined[-1].endswith(" WITH")):
            joined[-1] += " " + token
        else:
            joined.append(token)
    return joined


def choices(expression):
    """The sets of licences that satisfy an expression: [[A, B], [C]] for (A AND B) OR C."""
    rest = tokens(expression)

    def either():
        found = both()
        while rest and rest[0] == "OR":
            rest.pop(0)
            found = found + both()
        return found

    def both():
        found = one()
        while rest and rest[0] == "AND":
            rest.pop(0)
            right = one()
            found = [mine + theirs for mine in found for theirs in right]
        return found

    def one():
        token = rest.pop(0) if rest else ""
        if token == "(":
            inner = either()
            if not rest or rest.pop(0) != ")":
                raise ValueError(expression)
            return inner
        if token in ("", ")", "AND", "OR"):
            raise ValueError(expression)
        return [[token]]

    found = either()
    if rest:
        raise ValueError(expression)
    return found


def problem(name, expression, notice):
    """What is wrong with one dependency, or None."""
    allowed = ALLOWED | ALLOWED_FOR.get(name, set())
    try:
        acceptable = [choice for choice in choices(expression or "") if set(choice) <= allowed]
    except ValueError:
        return f"{name}: licence {expression!r} is not a valid SPDX expression"
    if not acceptable:
        return f"{name}: licence {expression} is not on the allow list"
    # If a choice needs no attribution, take that one.
    if all(set(choice) & NAMED for choice in acceptable) and not re.search(rf"^- {re.escape(name)}\b", notice, re.M):
        return f"{name}: {expression} requires attribution; add `- {name}, ...` to NOTICE"
    return None


def self_test():
    """The checker must be able to fail."""
    notice = "- inferno (CDDL-1.0)\n"
    cases = {
        ("a", "MIT OR Apache-2.0"): None,
        ("a", "MIT/Apache-2.0"): None,
        ("a", "(MIT OR Apache-2.0) AND Unicode-3.0"): "attribution",
        ("a", "Apache-2.0 WITH LLVM-exception OR MIT"): None,
        ("a", "GPL-3.0-only"): "allow list",
        ("a", "MIT AND GPL-3.0-only"): "allow list",
        ("a", "MIT OR GPL-3.0-only"): None,
        ("a", "CDDL-1.0"): "allow list",
        ("inferno", "CDDL-1.0"): None,
        ("a", "Zlib"): "attribution",
        ("a", "Zlib OR MIT"): None,
        ("a", None): "not a valid",
        ("a", "MIT OR"): "not a valid",
        ("a", "(MIT"): "not a valid",
    }
    for (name, expression), word in cases.items():
        found = problem(name, expression, notice)
        assert (found is None) if word is None else (word in (found or "")), (name, expression, found)


def main():
    self_test()
    about = metadata()
    if "--texts" in sys.argv[1:]:
        print(texts(about), end="")
        return 0
    found = sorted(packages(about), key=lambda package: (package["name"], package["version"]))
    if "--list" in sys.argv[1:]:
        for package in found:
            print(f"{package['name']} {package['version']}: {package['license']}")
    notice = (ROOT / "NOTICE").read_text()
    wrong = [line for package in found if (line := problem(package["name"], package["license"], notice))]
    for line in wrong:
        print(f"error: {line}", file=sys.stderr)
    print(f"{len(found)} dependencies, {len(wrong)} licence problems")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
