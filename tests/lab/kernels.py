"""Debian's cloud kernels, and busybox of other architectures, from the mirror in this machine's own apt configuration. They are kept in
the cache folder."""

import os
import shutil
import subprocess
from pathlib import Path


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


def sources_for(suite, texts, codename, architecture="amd64"):
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
                    f"Architectures: {architecture}",
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


def image(suite, cache, architecture="amd64"):
    """Path of the suite's kernel; downloads it if the cache does not have it."""
    kept = cache / f"{suite}-{architecture}.vmlinuz"
    if not kept.is_file():
        package = f"linux-image-cloud-{architecture}"

        def newest(depends):
            names = [word for word in depends.split() if word.startswith("linux-image-") and word != package]
            if not names:
                raise Unavailable(f"{suite} has no {package}")
            return names[:1]

        with Archive(suite, cache, architecture) as archive:
            unpacked = archive.unpack(newest(archive.run("apt-cache", "depends", package)))
            shutil.copyfile(next((unpacked / "boot").glob("vmlinuz-*")), kept.with_suffix(".part"))
            kept.with_suffix(".part").rename(kept)
    return kept


def busybox(suite, cache, architecture):
    """Path of the suite's static busybox; downloads it if the cache does not have it."""
    kept = cache / f"{suite}-{architecture}.busybox"
    if not kept.is_file():
        with Archive(suite, cache, architecture) as archive:
            # The folder is /bin or /usr/bin.
            next(archive.unpack(["busybox-static"]).glob("**/bin/busybox")).rename(kept)
    return kept


class Archive:
    """A suite of this machine's mirror, for one architecture, with lists of its own."""

    def __init__(self, suite, cache, architecture):
        self.suite, self.architecture = suite, architecture
        self.work = cache / f"{suite}-{architecture}.apt"

    def __enter__(self):
        for program in ("apt-get", "apt-cache", "dpkg"):
            if shutil.which(program) is None:
                raise Unavailable(f"no {program}, so no kernel package can be fetched")
        codename, texts = own_sources()
        shutil.rmtree(self.work, ignore_errors=True)
        for folder in ("lists/partial", "cache/archives/partial", "package"):
            (self.work / folder).mkdir(parents=True)
        (self.work / "lab.sources").write_text(sources_for(self.suite, texts, codename, self.architecture))
        self.run("apt-get", "-q", "update")
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            shutil.rmtree(self.work)

    def unpack(self, packages):
        self.run("apt-get", "-q", "download", *packages)
        for package in self.work.glob("*.deb"):
            self.run("dpkg", "-x", str(package), "package")
        return self.work / "package"

    def run(self, program, *arguments):
        options = {
            "Dir::Etc::sourcelist": self.work / "lab.sources",
            "Dir::Etc::sourceparts": "-",
            "Dir::State::lists": self.work / "lists",
            "Dir::Cache": self.work / "cache",
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
            "Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled": "false",
            "Acquire::Languages": "none",
            # apt runs in a folder that the user of its sandbox cannot reach.
            "APT::Sandbox::User": "root",
            "APT::Architecture": self.architecture,
        }
        flags = [word for name, value in options.items() for word in ("-o", f"{name}={value}")] if program.startswith("apt") else []
        environment = {**os.environ, "LC_ALL": "C"}
        command = [program, *flags, *arguments]
        done = subprocess.run(command, cwd=self.work, capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
            raise Unavailable(f"{program} for {self.suite}: {lines[-1]}")
        return done.stdout
