"""Builds the wheel (PEP 517): calls maturin's backend, after it has put the program `allocwall` into maturin's data folder.

maturin builds either an extension or a program into a wheel. Here it builds the extension, and the program comes from the data
folder under target/: the program in scripts/, which pip installs next to python, the start files in platlib/, and manual pages and
completions, which the program prints, in data/.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parent.parent
# pyproject.toml, [tool.maturin] data.
_DATA = _ROOT / "target" / "wheel-data"

# manylinux tags that maturin 1.16 knows, by glibc's minor version.
_POLICIES = (17, 24, 26, 27, 28, 31, 34, 35, 36, 37, 38, 39, 40, 41, 42)


# Completions below the prefix into which pip installs, by shell: where each shell looks for them in /usr/local.
_COMPLETIONS = {
    "bash": "share/bash-completion/completions/allocwall",
    "zsh": "share/zsh/site-functions/_allocwall",
    "fish": "share/fish/vendor_completions.d/allocwall.fish",
}


def get_requires_for_build_wheel(config_settings=None):
    return []


get_requires_for_build_editable = get_requires_for_build_wheel


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    return _build("build_wheel", wheel_directory, config_settings)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    return _build("build_editable", wheel_directory, config_settings)


def build_sdist(sdist_directory, config_settings=None):
    # maturin would include the extension's crates but not the program's.
    sys.exit("allocwall: a source distribution is not supported: build a wheel from a checkout (pip wheel .)")


def _build(what, wheel_directory, config_settings):
    if sys.implementation.name != "cpython":
        sys.exit("allocwall: %s has no pymalloc arenas: the package is for CPython" % sys.implementation.name)
    for program, where in (("cargo", "Rust 1.88 or newer: https://rustup.rs"), ("cc", "a C compiler"), ("c++", "a C++ compiler")):
        if not shutil.which(program):
            sys.exit("allocwall: building needs %s" % where)
    import maturin

    needed = _lay_out(_program())
    # By default maturin derives the tag from the extension only. A tag that the caller chose is kept.
    chosen = maturin.get_maturin_pep517_args(config_settings)
    if not any(word.startswith(("--compatibility", "--manylinux")) for word in chosen):
        policy = next((minor for minor in _POLICIES if needed and minor >= needed), None)
        # If no policy fits, the wheel is tagged for this machine only.
        chosen = [*chosen, "--compatibility", "manylinux_2_%d" % policy if policy else "off"]
    return getattr(maturin, what)(wheel_directory, {"build-args": chosen})


def _program():
    """The path of the program: the one in ALLOCWALL_PROGRAM, or a new build."""
    if built := os.environ.get("ALLOCWALL_PROGRAM"):
        if not os.path.isfile(built):
            sys.exit("allocwall: ALLOCWALL_PROGRAM is not a file: %s" % built)
        return built
    command = ("cargo", "build", "--release", "--locked", "--package", "allocwall", "--message-format", "json-render-diagnostics")
    run = subprocess.run(command, cwd=_ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    if run.returncode != 0:
        sys.exit("allocwall: the program could not be built: see cargo's messages above")
    messages = map(json.loads, run.stdout.splitlines())
    return [path for path in (message.get("executable") for message in messages) if path][-1]


def _lay_out(program):
    """Fills the data folder. Returns the minor version of glibc that the program and its embedded libraries need; None if they need
    no glibc."""
    shutil.rmtree(_DATA, ignore_errors=True)
    shutil.copytree(_HERE / "wheel", _DATA)
    target = _DATA / "scripts" / "allocwall"
    target.parent.mkdir()
    # Line tables and names are four fifths of the file.
    subprocess.run(("strip", "-o", os.fspath(target), program), check=True, stdin=subprocess.DEVNULL)
    prefix = _DATA / "data"
    subprocess.run((target, "man", "--to", prefix / "share/man/man1"), check=True, stdin=subprocess.DEVNULL)
    for shell, path in _COMPLETIONS.items():
        (prefix / path).parent.mkdir(parents=True)
        (prefix / path).write_bytes(subprocess.check_output((target, "completions", shell), stdin=subprocess.DEVNULL))
    # The names of symbol versions are in the string tables (ELF's .dynstr), also in those of embedded libraries.
    return max((int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)\0", target.read_bytes())), default=None)
