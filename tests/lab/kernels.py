"""Debian's cloud kernels, from the mirror in this machine's own apt configuration. They are kept in the cache folder."""

import os
import shutil
import subprocess
from pathlib import Path

# Linux 5.10, 6.1 and 6.12.
SUITES = ("bullseye", "bookworm", "trixie")
PACKAGE = "linux-image-cloud-amd64"


class Unavailable(Exception):
    """A kernel is not available on this machine; the text has the reason."""


def stanzas(text):
    """The entries of a sources file: a dict from field names in lower case to lists of words. Both formats of sources.list(5)."""
    found, fields, last = [], {}, None
    for line in [*text.splitlines(), ""]:
        if line.startswith("#"):
            continue
        if not line.strip():
            if fields:
                found.append(fields)
            fields, last = {}, None
        elif line.startswith(("deb ", "deb\t")):
            words = line.split("#")[0].split()[1:]
            options = {}
            if words and words[0].startswith("["):
                end = next(i for i, word in enumerate(words) if word.endswith("]"))
                inside = " ".join(words[: end + 1]).strip("[] ").split()
                options = {k.lower(): v.split(",") for k, v in (word.split("=", 1) for word in inside)}
                words = words[end + 1 :]
            found.append({**options, "types": ["deb"], "uris": words[:1], "suites": words[1:2], "components": words[2:]})
        elif line[0] in " \t" and last:
            fields[last] += line.split()
        elif ":" in line:
            name, _, value = line.partition(":")
            last = name.strip().lower()
            fields[last] = value.split()
    return found


def sources_for(suite, texts, codename):
    """A sources file for `suite`: this machine's own entry for its release, with the name of the suite replaced."""
    for text in texts:
        for entry in stanzas(text):
            usable = "deb" in entry.get("types", []) and "main" in entry.get("components", [])
            if usable and codename in entry.get("suites", []) and "no" not in entry.get("enabled", []):
                lines = [
                    "Types: deb",
                    "URIs: " + " ".join(entry["uris"]),
                    f"Suites: {suite}",
                    "Components: main",
                    "Architectures: amd64",
                ]
                if "signed-by" in entry:
                    lines.append("Signed-By: " + " ".join(entry["signed-by"]))
                return "\n".join(lines) + "\n"
    raise Unavailable(f"no mirror is known: apt here has no entry for {codename}'s own archive")


def own_sources():
    with open("/etc/os-release") as release:
        fields = dict(line.strip().split("=", 1) for line in release if "=" in line)
    if fields.get("ID", "").strip('"') != "debian":
        raise Unavailable("kernels come from a Debian mirror, and apt here has none")
    folder = Path("/etc/apt/sources.list.d")
    files = [Path("/etc/apt/sources.list"), *sorted(folder.glob("*.list")), *sorted(folder.glob("*.sources"))]
    return fields["VERSION_CODENAME"].strip('"'), [file.read_text() for file in files if file.is_file()]


def image(suite, cache):
    """Path of the suite's kernel, a bzImage; downloads it if the cache does not have it."""
    kept = cache / f"{suite}.vmlinuz"
    if kept.is_file():
        return kept
    for program in ("apt-get", "apt-cache", "dpkg"):
        if shutil.which(program) is None:
            raise Unavailable(f"no {program}, so no kernel package can be fetched")
    codename, texts = own_sources()
    work = cache / f"{suite}.apt"
    shutil.rmtree(work, ignore_errors=True)
    for folder in ("lists/partial", "cache/archives/partial", "package"):
        (work / folder).mkdir(parents=True)
    (work / "lab.sources").write_text(sources_for(suite, texts, codename))
    options = {
        "Dir::Etc::sourcelist": work / "lab.sources",
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": work / "lists",
        "Dir::Cache": work / "cache",
        "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
        "Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled": "false",
        "Acquire::Languages": "none",
        # apt runs in a folder that the user of its sandbox cannot reach.
        "APT::Sandbox::User": "root",
        "APT::Architecture": "amd64",
    }
    flags = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]

    def run(*command):
        done = subprocess.run(
            command, cwd=work, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}, stdin=subprocess.DEVNULL
        )
        if done.returncode != 0:
            lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
            raise Unavailable(f"{' '.join(command[:1])} for {suite}: {lines[-1]}")
        return done.stdout

    run("apt-get", *flags, "-q", "update")
    depends = run("apt-cache", *flags, "depends", PACKAGE).split()
    names = [word for word in depends if word.startswith("linux-image-") and word != PACKAGE]
    if not names:
        raise Unavailable(f"{suite} has no {PACKAGE}")
    run("apt-get", *flags, "-q", "download", names[0])
    run("dpkg", "-x", str(next(work.glob("*.deb"))), "package")
    shutil.copyfile(next((work / "package/boot").glob("vmlinuz-*")), kept.with_suffix(".part"))
    kept.with_suffix(".part").rename(kept)
    shutil.rmtree(work)
    return kept
