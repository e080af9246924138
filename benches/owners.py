#!/usr/bin/env python3
"""Whose memory the page faults are about: `allocwall diagnose` compared with the account of a program that touches memory of six owners.

The shares are of CPU time or of the number of faults: without root (the user `nobody`), and as root if the owners of too many CPU samples
are unknown. The program counts both.

    benches/owners.py                       both, three runs each
    benches/owners.py --runs 1 --json FILE

As root, on a machine where `nobody` may use perf events of its own processes. Standard library only.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from collector_accounts import Series, follow

ROOT = Path(__file__).resolve().parents[1]
OWNERS = ["heap", "arena", "mapped_block", "stack", "shared", "private"]
WINDOW_S = 8
# The aim, in percentage points.
AIM = 2.0
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


def observe(binary, program, folder, before):
    """The owners by the diagnosis and by the program: {owner: (share, low, high, truth)}, and the basis of the shares."""
    series = Series()
    child = subprocess.Popen([*before, program], stdout=subprocess.PIPE, text=True)
    try:
        reader = threading.Thread(target=follow, args=(child.stdout, series))
        reader.start()
        time.sleep(1.5)
        environment = {**os.environ, "XDG_STATE_HOME": str(folder), "XDG_CACHE_HOME": str(folder)}
        output = subprocess.run(
            [*before, binary, "diagnose", "-p", str(child.pid), "-d", f"{WINDOW_S}s", "--no-calibrate", "--json"], capture_output=True, text=True, env=environment
        )
        if output.returncode not in (0, 1):
            raise RuntimeError(output.stderr)
        time.sleep(0.6)
    finally:
        child.kill()
        reader.join()
        child.wait()
    report = json.loads(output.stdout)
    touched = report["bill"]["faulted"]
    touched = next(one for one in touched if one["wall"] == "first_touch")
    begin = report["recording"]["started_unix_ms"]
    end = begin + report["recording"]["window_ns"] / 1e6
    column = 2 if touched["basis"] != "number" else 1
    truth = [series.over(begin, end, 2 * place + column) for place in range(len(OWNERS))]
    seen = {one["owner"]: one["share"] for one in touched["owners"]}
    shares = {}
    for owner, value in zip(OWNERS, truth):
        share = seen.get(owner, {"point": 0, "low": 0, "high": 0})
        shares[owner] = (*(share[bound] * 100 for bound in ("point", "low", "high")), value / sum(truth) * 100)
    return shares, touched


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/allocwall")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        folder.chmod(0o777)
        # `nobody` may not be able to read the originals.
        binary = shutil.copy(args.binary, folder / "allocwall")
        program = folder / "owners"
        subprocess.run(["gcc", "-O2", "-pthread", "-o", program, ROOT / "benches" / "owners.c"], check=True)
        for who, before in (("root", []), ("nobody", NOBODY)):
            for run in range(args.runs):
                shares, touched = observe(binary, program, folder, before)
                print(f"{who}, run {run + 1}: by {touched['basis']}, {touched['samples']} samples, known {touched['known'] * 100:.1f} %")
                for owner, (point, low, high, truth) in shares.items():
                    print(f"    {owner:14} {point:5.1f} ({low:.1f} to {high:.1f})   by the program {truth:5.1f}   {point - truth:+.1f}")
                    results.append({"who": who, "run": run, "owner": owner, "allocwall": point, "low": low, "high": high, "truth": truth})
    near = [r for r in results if abs(r["allocwall"] - r["truth"]) <= AIM]
    print(f"{len(near)} of {len(results)} shares within {AIM:g} points")
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0 if len(near) == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
