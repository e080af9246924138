#!/usr/bin/env python3
"""How often `allocwall trial` is wrong: false alarms, misses and coverage on pairs with a known truth, compared with other tools.

The subject (planted.c) does a fixed amount of work, or 3 % more if requested, and counts its own operations. A round has three trials,
each with a new random seed: the command against itself (`--with none`), a remedy that does nothing, and the planted 3 %.
Then hyperfine and poop compare the same null pair and the same planted pair, for as long as the trial of that pair took.
In the disturbed condition, two other processes alternately compute and sleep, for random times of about a second.

    benches/trial_accuracy.py accuracy.json                      60 rounds; delete the file to start again
    benches/trial_accuracy.py accuracy.json --for 170            as many rounds as fit into 170 s; run it again to continue
    benches/trial_accuracy.py accuracy.json --disturbed          the same in the disturbed condition, in the same file
    benches/trial_accuracy.py accuracy.json --rounds 0           only the tables, from the saved comparisons

Every comparison is saved when it is finished, with the times of all its runs. Standard library only.
"""

import argparse
import contextlib
import datetime
import json
import math
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PERMILLE = 30
EFFECT = f"{PERMILLE / 10:g}%"
TRUTH = PERMILLE / 1000
# 97.5 % quantile of the standard normal distribution.
Z95 = 1.959963984540054
START_RUNS = 20
# On such a noisy machine a trial would plan for minutes.
DISTURBED = ["--budget", "3s"]
TRIALS = {
    "self": ["--with", "none"],
    "null": ["--with", "env:ALLOCWALL_NULL=1", "--effect", EFFECT],
    "planted": ["--with", f"env:ALLOCWALL_PLANTED={PERMILLE}", "--effect", EFFECT],
}
# The argument of the second command of each pair for the other tools, which cannot set variables; the first is always 0.
PAIRS = {"null": 0, "planted": PERMILLE}
FOUND = ("better", "worse")
NEIGHBOUR = """
import os, random, time
os.nice(10)
while True:
    end = time.monotonic() + random.uniform(0.2, 1.8)
    while time.monotonic() < end:
        pass
    time.sleep(random.uniform(0.2, 1.8))
"""


# Statistics


def wilson(count, whole):
    """95 % interval of a share (E. B. Wilson, JASA 22, 1927)."""
    if whole == 0:
        return 0.0, 1.0
    share, z2 = count / whole, Z95**2
    centre = (share + z2 / (2 * whole)) / (1 + z2 / whole)
    half = Z95 * math.sqrt(share * (1 - share) / whole + z2 / (4 * whole**2)) / (1 + z2 / whole)
    return max(0.0, centre - half), min(1.0, centre + half)


def incomplete_beta(a, b, x):
    """Regularised; by its continued fraction (Abramowitz and Stegun 26.5.8)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(b, a, 1 - x)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    # From the last term to the first; 200 terms are far more than these arguments need.
    fraction = 1.0
    for m in range(200, 0, -1):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        fraction = 1 + even / (1 + odd / fraction)
    first = -(a + b) * x / (a + 1)
    return front / (1 + first / fraction)


def t_two_sided(t, freedom):
    """Probability that Student's t is further from 0."""
    return incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


def t_quantile(freedom, level=0.05):
    low, high = 0.0, 1000.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if t_two_sided(middle, freedom) > level else (low, middle)
    return high


def signed(significant, change):
    return "unresolved" if not significant else "worse" if change > 0 else "better"


def welch(base, other):
    """The rule of hyperfine's scripts/welch_ttest.py, at 5 %, and its interval relative to the first mean."""
    change = statistics.mean(other) - statistics.mean(base)
    parts = [statistics.variance(times) / len(times) for times in (base, other)]
    error = math.sqrt(sum(parts))
    freedom = sum(parts) ** 2 / sum(p**2 / (len(times) - 1) for p, times in zip(parts, (base, other)))
    half, mean = t_quantile(freedom) * error, statistics.mean(base)
    word = signed(t_two_sided(change / error, freedom) < 0.05, change)
    return word, [(change - half) / mean, (change + half) / mean]


def printed_ratio(base, other):
    """The line `ran 1.03 ± 0.02 times faster`: a difference if it excludes 1 (hyperfine, src/benchmark/relative_speed.rs)."""
    slow, fast = sorted((base, other), key=statistics.mean, reverse=True)
    ratio = statistics.mean(slow) / statistics.mean(fast)
    spread = ratio * math.hypot(*(statistics.stdev(times) / statistics.mean(times) for times in (slow, fast)))
    return signed(ratio - spread > 1, 1 if slow is other else -1), None


def coloured(base, other):
    """When poop colours a result: the pooled t interval of the means is beyond 1 % (poop, src/main.zig, printMeasurement)."""
    counts, means = [len(base), len(other)], [statistics.mean(base), statistics.mean(other)]
    freedom = sum(counts) - 2
    squares = sum((n - 1) * statistics.variance(times) for n, times in zip(counts, (base, other)))
    half = t_quantile(freedom) * math.sqrt(squares / freedom * sum(1 / n for n in counts)) / means[0]
    change = means[1] / means[0] - 1
    return signed(abs(change) - half >= 0.01, change), [change - half, change + half]


RULES = {
    "hyperfine, Welch's t-test at 5 %": welch,
    "hyperfine, printed ratio ± σ excludes 1": printed_ratio,
    "poop's rule for colour, on hyperfine's times": coloured,
}


# The tools


class Bench:
    def __init__(self, arguments, directory):
        self.binary = arguments.binary
        self.disturbed = arguments.disturbed
        self.program = directory / "planted"
        self.directory = directory
        self.tools = {"hyperfine": arguments.hyperfine, "poop": arguments.poop}
        subprocess.run(["gcc", "-O2", "-o", self.program, ROOT / "benches" / "planted.c"], check=True)

    def run(self, command):
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=600
        )
        if ended.returncode != 0:
            raise SystemExit(f"error: {command[0]} failed ({ended.returncode}): {ended.stderr.strip()}")
        return ended.stdout

    def operations(self):
        """The program's own counts, untreated and planted, and the times of an empty and a whole run."""
        counts = [
            [int(n) for n in re.findall(r"(\d+) (?:allocations|computed)", self.run([self.program, str(permille)]))]
            for permille in (0, PERMILLE)
        ]
        ratios = [more / fewer - 1 for fewer, more in zip(*counts)]
        if any(abs(ratio - TRUTH) > 1e-9 for ratio in ratios):
            raise SystemExit(f"error: the program does {ratios} more work, {TRUTH} was requested")
        empty, whole = [], []
        for _ in range(START_RUNS):
            for times, permille in ((empty, "-1000"), (whole, "0")):
                began = time.perf_counter()
                self.run([self.program, permille])
                times.append(time.perf_counter() - began)
        return {
            "untreated": counts[0],
            "planted": counts[1],
            "empty_run_s": statistics.median(empty),
            "whole_run_s": statistics.median(whole),
        }

    def unusable(self):
        """Tools that cannot be used, each with the reason."""
        return {tool: reason for tool in self.tools if (reason := self.reason(tool))}

    def reason(self, tool):
        path = self.tools[tool]
        if path is None:
            return f"not given: --{tool} PATH"
        options = {"hyperfine": ["-N", "--runs", "2"], "poop": ["-d", "100"]}[tool]
        try:
            tried = subprocess.run(
                [path, *options, "true", "true"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
            )
        except OSError as error:
            return str(error)
        said = [line for line in tried.stderr.splitlines() if line.strip()]
        if tried.returncode == 0:
            return None
        return re.sub(r"^thread \d+ ", "", said[0].strip()) if said else f"it failed ({tried.returncode}) without an error message"

    def versions(self):
        found = {"allocwall": self.run([self.binary, "--version"]).strip()}
        if self.tools["hyperfine"]:
            found["hyperfine"] = self.run([self.tools["hyperfine"], "--version"]).strip()
        return found

    def trial(self, pair):
        saved = self.directory / "accuracy.trial"
        saved.unlink(missing_ok=True)
        began = time.perf_counter()
        options = ["--no-predict", "--json", "-o", saved, *TRIALS[pair], *(DISTURBED if self.disturbed else [])]
        command = [self.binary, "trial", *options, "--", self.program]
        document = json.loads(self.run(command))
        took = time.perf_counter() - began
        about = next(c for c in document["comparisons"] if c["metric"] == "wall_s")
        if about["outcome"] not in (*FOUND, "equivalent", "unresolved"):
            raise SystemExit(f"error: unknown outcome: {about['outcome']}")
        interval = about["interval"]
        return {
            "took_s": took,
            "outcome": about["outcome"],
            "interval": None if "absent" in interval else [interval["low"], interval["high"]],
            "effect": None if "absent" in interval else interval["point"],
            "confidence": about["confidence"],
            "blocks": document["blocks"],
            "seed": document["settings"]["seed"],
            "others": {c["metric"]: c["outcome"] for c in document["comparisons"] if c["metric"] != "wall_s"},
            "runs": runs_of(saved),
        }

    def hyperfine(self, pair, budget_s, run_s):
        exported = self.directory / "hyperfine.json"
        # hyperfine also runs each command once for warm-up.
        runs = max(2, round(budget_s / (2 * run_s)) - 1)
        commands = [f"{self.program} {permille}" for permille in (0, PAIRS[pair])]
        began = time.perf_counter()
        options = ["-N", "--style", "none", "--warmup", "1", "--runs", str(runs), "--export-json", exported]
        self.run([self.tools["hyperfine"], *options, *commands])
        took = time.perf_counter() - began
        times = [result["times"] for result in json.loads(exported.read_text())["results"]]
        return {"took_s": took, "times": times}

    def poop(self, pair, budget_s, run_s):
        commands = [f"{self.program} {permille}" for permille in (0, PAIRS[pair])]
        began = time.perf_counter()
        shown = self.run([self.tools["poop"], "-d", str(round(budget_s * 500)), "--color", "ansi", *commands])
        took = time.perf_counter() - began
        line = [line for line in shown.splitlines() if "wall_time" in line][-1]
        return {"took_s": took, "outcome": "worse" if "💩" in line else "better" if "⚡" in line else "unresolved", "line": line}


def runs_of(saved):
    """For each block: [arm, seconds] of each run, in order."""
    blocks = [json.loads(line).get("block") for line in saved.read_text().splitlines()]
    return [[[run["arm"], run["metrics"]["wall_s"].get("Ok")] for run in block["runs"]] for block in blocks if block]


@contextlib.contextmanager
def neighbours(wanted):
    started = [
        subprocess.Popen([sys.executable, "-c", NEIGHBOUR], stdin=subprocess.DEVNULL) for _ in range(2 if wanted else 0)
    ]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


# Saving, and the rounds that are missing


def machine():
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return {
        "cpu": cpu.group(1) if cpu else platform.machine(),
        "cpus": os.cpu_count(),
        "virtual": "hypervisor" in Path("/proc/cpuinfo").read_text(),
        "kernel": platform.release(),
    }


def save(state, path):
    written = path.with_suffix(".new")
    written.write_text(json.dumps(state, separators=(",", ":")) + "\n")
    written.replace(path)


def measure(state, arguments, save_now):
    """Runs the missing rounds until the time is over."""
    condition = "disturbed" if arguments.disturbed else "quiet"
    until = time.monotonic() + arguments.seconds if arguments.seconds else math.inf
    with tempfile.TemporaryDirectory(prefix="allocwall-accuracy-") as directory:
        bench = Bench(arguments, Path(directory))
        unusable = bench.unusable()
        now = {"machine": machine(), "versions": bench.versions()}
        for key, found in now.items():
            if any(found.get(name) != earlier for name, earlier in state.get(key, {}).items()):
                raise SystemExit(
                    f"error: {arguments.json} has results of another {key} ({state[key]}); use another file"
                )
        state.update({**now, "left_out": unusable, "last_day": datetime.date.today().isoformat()})
        if "operations" not in state:
            state["operations"] = bench.operations()
        done = {(c["condition"], c["round"], c["tool"], c["pair"]): c for c in state["comparisons"]}

        def once(number, tool, pair, make):
            key = (condition, number, tool, pair)
            if key not in done:
                done[key] = {**dict(zip(("condition", "round", "tool", "pair"), key)), **make()}
                state["comparisons"].append(done[key])
                save_now()
            return done[key]

        with neighbours(arguments.disturbed):
            for number in range(arguments.rounds):
                for pair in TRIALS:
                    if time.monotonic() > until:
                        return
                    trial = once(number, "allocwall", pair, lambda: bench.trial(pair))
                    for tool in ("hyperfine", "poop") if pair in PAIRS else ():
                        if tool not in unusable:
                            run_s = statistics.median(s for block in trial["runs"] for _, s in block if s)
                            beside = getattr(bench, tool)
                            once(number, tool, pair, lambda: beside(pair, trial["took_s"], run_s))
                progress(number + 1, arguments.rounds)


def progress(done, whole):
    if sys.stderr.isatty():
        print(f"\r{done}/{whole} rounds", end="\n" if done == whole else "", file=sys.stderr, flush=True)


# The tables


def share(count, whole):
    low, high = wilson(count, whole)
    return f"{count} of {whole}", f"{100 * count / whole:.1f} %", f"{100 * low:.1f} to {100 * high:.1f} %"


def row(*cells):
    return "| " + " | ".join(cells) + " |"


def verdicts(comparisons):
    """For each judge and pair: [outcome, interval, comparison]."""
    found = {}
    for comparison in comparisons:
        # Files of earlier versions call it "word".
        comparison.setdefault("outcome", comparison.get("word"))
        times = comparison.get("times")
        judged = (
            {name: rule(*times) for name, rule in RULES.items()}
            if times
            else {comparison["tool"]: (comparison["outcome"], comparison.get("interval"))}
        )
        for judge, (word, interval) in judged.items():
            found.setdefault((judge, comparison["pair"]), []).append((word, interval, comparison))
    return found


TITLES = {
    "self": "the command against itself",
    "null": "a remedy that does nothing",
    "planted": f"{EFFECT} planted",
}


def tables(state):
    lines = []
    for condition in dict.fromkeys(c["condition"] for c in state["comparisons"]):
        found = verdicts(c for c in state["comparisons"] if c["condition"] == condition)
        heads = ["judge", "pair", "reports a difference", "", "95 % interval", "median time"]
        lines += ["", f"**{condition}**", "", row(*heads), "|---" * 6 + "|"]
        for (judge, pair), results in sorted(found.items(), key=lambda item: list(TITLES).index(item[0][1])):
            right = ("worse",) if pair == "planted" else FOUND
            count = sum(word in right for word, *_ in results)
            took = statistics.median(c["took_s"] for *_, c in results)
            lines.append(row(judge, TITLES[pair], *share(count, len(results)), f"{took:.2f} s"))
        heads = ["judge", "pair", "interval holds the truth", "", "95 % interval", "nominal, mean", "half width, median"]
        lines += ["", row(*heads), "|---" * 7 + "|"]
        for (judge, pair), results in sorted(found.items(), key=lambda item: list(TITLES).index(item[0][1])):
            truth = TRUTH if pair == "planted" else 0.0
            intervals = [interval for _, interval, _ in results if interval]
            if intervals:
                nominal = statistics.mean(c.get("confidence", 0.95) for _, interval, c in results if interval)
                count = sum(low <= truth <= high for low, high in intervals)
                half = statistics.median((high - low) / 2 for low, high in intervals)
                cells = [*share(count, len(intervals)), f"{100 * nominal:.1f} %", f"{100 * half:.2f} %"]
                lines.append(row(judge, TITLES[pair], *cells))
        lines += ["", *details(found)]
    return "\n".join(lines)


def details(found):
    """For allocwall's own trials: outcomes, blocks, and how often a metric other than wall time differs."""
    heads = ["trials", *FOUND, "equivalent", "unresolved", "effect, median", "blocks", "any other metric better or worse"]
    lines = [row(*heads), "|---" * 8 + "|"]
    for pair in TRIALS:
        results = found.get(("allocwall", pair), [])
        if results:
            words = [sum(word == wanted for word, *_ in results) for wanted in (*FOUND, "equivalent", "unresolved")]
            blocks = sorted(c["blocks"] for *_, c in results)
            others = sum(any(word in FOUND for word in c["others"].values()) for *_, c in results)
            shown = f"{blocks[0]} to {blocks[-1]}, median {statistics.median(blocks):g}"
            effect = statistics.median(c["effect"] for *_, c in results if c["effect"] is not None)
            cells = [*map(str, words), f"{100 * effect:+.2f} %", shown, " · ".join(share(others, len(results)))]
            lines.append(row(TITLES[pair], *cells))
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("json", type=Path, help="file for all comparisons; if it exists, the bench continues it")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--for", dest="seconds", type=float, metavar="SECONDS", help="stop after this time, between two comparisons")
    parser.add_argument("--disturbed", action="store_true", help="with two other processes that alternately compute and sleep")
    parser.add_argument("--binary", type=Path, default=ROOT / "target" / "release" / "allocwall")
    parser.add_argument("--hyperfine", default=shutil.which("hyperfine"), metavar="PATH")
    parser.add_argument("--poop", default=shutil.which("poop"), metavar="PATH")
    arguments = parser.parse_args()
    if arguments.rounds > 0 and not arguments.binary.is_file():
        parser.error(f"{arguments.binary} does not exist; run make build")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    state = json.loads(arguments.json.read_text()) if arguments.json.exists() else {"comparisons": []}
    if arguments.rounds > 0:
        measure(state, arguments, lambda: save(state, arguments.json))
        for tool, reason in state["left_out"].items():
            print(f"skipped: {tool}: {reason}", file=sys.stderr)
    if state["comparisons"]:
        print(tables(state))
    return 0


if __name__ == "__main__":
    sys.exit(main())
