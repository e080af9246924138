"""Checks the results of the emulated machine: compares reports with the subjects' own accounts.

An emulated machine is slow and its time is uneven, so shares are compared, not speeds. The subject's truth must be within the
report's own 95 % interval, or at most TOLERANCE outside it. The reason: clock interrupts come late and in groups, and a sixth of
a window may pass between two of the subject's own readings.
"""

import json
from dataclasses import dataclass

TOLERANCE = 0.10
# Number of findings in every report.
FINDINGS = 22
# An error may have at most so many lines.
ONE_LINE = 2
# If a window took more than this multiple of its requested length, the emulated machine had too little time for a judgement.
STRETCHED = 1.5


class Starved(Exception):
    """The report is consistent, but values may be missing because the emulated machine had too little time."""


@dataclass
class Machine:
    """Facts about the emulated machine; reports must agree with them."""

    kernel: str
    cpus: int
    nodes: int
    cgroup: int
    huge_pages: str


class Wall:
    """The report must name one of `walls`, and the bill's line (on-CPU, or a wait) must agree with the subject."""

    exit_status = "0"

    def __init__(self, *walls, line=None, wait=None):
        self.walls, self.line, self.wait = walls, line, wait

    def problems(self, seen):
        if not set(self.walls) & set(seen.report["verdict"]["walls"]):
            yield f"the report names {seen.named()}, not {' or '.join(self.walls)}: {seen.because(self.walls[0])}"
        truth, (low, point, high) = seen.cpu_shares(self.line) if self.line else seen.wait_shares(self.wait)
        seen.note = f"{truth:.1%} by the subject, {point:.1%} by the bill ({low:.1%} to {high:.1%})"
        # The condition is written so that NaN fails.
        if not low - TOLERANCE <= truth <= high + TOLERANCE:
            yield f"{self.line or self.wait}: {seen.note}"


class Status:
    """The wall must have one of these statuses; for a near twin: ruled out. With too few samples, `contributor` with an interval that
    reaches almost 0, and `not_measured` for lack of samples, are right too."""

    exit_status = "0"

    def __init__(self, wall, *statuses):
        self.wall, self.statuses = wall, statuses

    def problems(self, seen):
        finding = seen.finding(self.wall)
        status = finding["status"]
        seen.note = f"{self.wall}: {status.replace('_', ' ')}"
        share, missing = finding["share"] or {}, finding["missing"] or {}
        undecided = {
            "contributor": share.get("low", 1) < 0.005,
            "not_measured": missing.get("reason") == "too_little",
        }
        if status not in self.statuses and not undecided.get(status):
            yield f"{self.wall} is {status}: {finding['because']}"


class NotSampled:
    """No CPU time could be sampled: there must be a report with the reason, and no verdict."""

    exit_status = "1"

    def __init__(self, reason):
        self.reason = reason

    def problems(self, seen):
        lines = seen.report["bill"]["on_cpu"]
        absent = lines.get("absent") if isinstance(lines, dict) else None
        if absent is None:
            yield "the bill was measured"
        elif absent["reason"] != self.reason or not absent["mend"]:
            yield f"the bill is absent with a wrong reason or without advice: {absent}"
        else:
            seen.note = absent["detail"]
        sentence = seen.report["verdict"]["sentence"]
        if seen.report["verdict"]["walls"] or not sentence.startswith("No verdict"):
            yield f"the verdict: {sentence}"


class Refused:
    """There must be no report, and one error line with the reason."""

    exit_status = "1"

    def __init__(self, why):
        self.why = why

    def refusal(self, files):
        lines = files["talk"].strip().splitlines()
        if len(lines) != 1 or not lines[0].startswith("error: ") or self.why not in lines[0]:
            yield f"stderr is {files['talk'].strip()!r}, not one error line with {self.why!r}"
        if files["report"]:
            yield "there is a report"


class Check:
    """`check` must report the machine, and what its user may measure."""

    def __init__(self, available=(), absent=()):
        self.available, self.absent = available, absent

    def problems(self, files, machine):
        if files["status"].strip() != "0":
            yield f"exit status {files['status'].strip()}: {last_line(files['talk'])}"
            return
        checks = {check["name"]: check for check in json.loads(files["report"])["checks"]}
        for names, states in ((self.available, ("available",)), (self.absent, ("absent",))):
            for name in names:
                if checks[name]["state"] not in states:
                    yield f"{name} is {checks[name]['state']}: {checks[name]['detail']}"
        for name in self.absent:
            if not checks[name]["mend"]:
                yield f"{name} is absent, without advice what to change"
        if not checks["cgroup"]["detail"].startswith(f"v{machine.cgroup},"):
            yield f"cgroup: {checks['cgroup']['detail']}"


class Calibrated:
    """There must be prices; if no price is stable, one line that reports that."""

    def problems(self, files, _machine):
        status, lines = files["status"].strip(), (files["report"] + files["talk"]).strip().splitlines()
        if status == "1" and len(lines) > ONE_LINE:
            yield f"no price is stable, reported in {len(lines)} lines instead of one"
        if status not in ("0", "1") or not lines:
            yield f"exit status {status}: {last_line(files['talk'])}"


class Figure:
    """One run of an experiment must report this figure, within these bounds."""

    def __init__(self, key, low, high):
        self.key, self.low, self.high = key, low, high

    def problems(self, files, _machine):
        if files["status"].strip() != "0":
            yield f"exit status {files['status'].strip()}: {last_line(files['talk'])}"
            return
        value = json.loads(files["report"])["outcome"]["figures"].get(self.key, float("nan"))
        # The condition is written so that NaN fails.
        if not self.low <= value <= self.high:
            yield f"{self.key} is {value}, not {self.low} to {self.high}"


class Seen:
    """A report and the subject's account of the same window."""

    def __init__(self, report, truth):
        self.report, self.note = report, ""
        self.readings = [json.loads(line) for line in truth.splitlines() if line.endswith("}")]
        recording = report["recording"]
        self.begin = recording["started_unix_ms"]
        self.end = self.begin + recording["window_ns"] / 1e6

    def over(self, value):
        """Growth of a cumulative value over the window, with linear interpolation between readings."""
        points = [(reading["t_real_ms"], value(reading)) for reading in self.readings]

        def at(t):
            after = next((i for i, point in enumerate(points) if point[0] >= t), None)
            if not after or len(points) < 2:
                return float("nan")
            (t0, v0), (t1, v1) = points[after - 1], points[after]
            return v0 + (v1 - v0) * (t - t0) / (t1 - t0)

        return at(self.end) - at(self.begin)

    def cpu_shares(self, key):
        truth = self.over(lambda r: r["lines"][key]) / self.over(lambda r: r["cpu_s"])
        lines = self.report["bill"]["on_cpu"]
        parts = [line["share"] for line in lines if line["class"] in key.split("+")] if isinstance(lines, list) else []
        # The sum of the parts' intervals is at least as wide as the interval of the sum.
        return truth, tuple(sum(part[end] for part in parts) if parts else float("nan") for end in ("low", "point", "high"))

    def wait_shares(self, key):
        threads_s = self.readings[0]["threads"] * (self.end - self.begin) / 1000
        truth = self.over(lambda r: r["waits"][key]) / threads_s
        line = next((line["thread_s"] for line in self.report["bill"]["off_cpu"] if line["class"] == key), {})
        return truth, tuple(line.get(end, float("nan")) / threads_s for end in ("low", "point", "high"))

    def finding(self, wall):
        return next(finding for finding in self.report["findings"] if finding["wall"] == wall)

    def because(self, wall):
        finding = self.finding(wall)
        return f"{wall} is {finding['status']}, {finding['because']}"

    def named(self):
        return " and ".join(self.report["verdict"]["walls"]) or "no wall"


def sound(seen, machine):
    """Rules for every diagnosis."""
    report = seen.report
    if len(report["findings"]) != FINDINGS:
        yield f"{len(report['findings'])} findings"
    lines = report["bill"]["on_cpu"]
    if isinstance(lines, list):
        total = sum(line["share"]["point"] for line in lines)
        if not abs(total - 1) < 1e-6:
            yield f"the bill sums to {total}"
    for finding in report["findings"]:
        if finding["status"] == "not_measured" and not (finding["missing"] or {}).get("reason"):
            yield f"{finding['wall']} was not measured, without a reason"
    host = report["host"]
    reported = (host["online_cpus"], host["numa_nodes"], host["cgroup_version"], host["thp_enabled"])
    if reported != (machine.cpus, machine.nodes, machine.cgroup, machine.huge_pages):
        yield f"CPUs, nodes, cgroup version and huge pages are {reported} in the report"
    if not host["kernel_release"].startswith(f"{machine.kernel}."):
        yield f"the kernel is {host['kernel_release']} in the report"
    if machine.nodes == 1 and seen.finding("numa")["status"] != "ruled_out":
        yield f"the machine has one NUMA node, but {seen.because('numa')}"
    complete = report["recording"]["ended"]["kind"] == "complete"
    if machine.nodes > 1 and complete and not any(line.startswith("node ") for line in seen.finding("numa")["evidence"]):
        yield f"the target's pages by node are missing: {seen.because('numa')}"


def judge_observation(expect, files, machine):
    """The problems of an observation, and a note for the table if there are none."""
    if "status" not in files:
        return [last_line(files.get("subject", "")) or "no diagnosis came back"], ""
    status = files["status"].strip()
    if status != expect.exit_status:
        return [f"exit status {status}, not {expect.exit_status}: {last_line(files['talk'])}"], ""
    if isinstance(expect, Refused):
        return list(expect.refusal(files)), last_line(files["talk"])
    try:
        seen = Seen(json.loads(files["report"]), files["truth"])
    except json.JSONDecodeError as error:
        return [f"the report is not valid JSON: {error}"], ""
    complaints = [*sound(seen, machine)]
    misses = [*expect.problems(seen)]
    recording = seen.report["recording"]
    if misses and not complaints and recording["window_ns"] > STRETCHED * recording["requested_ns"]:
        asked, took = (recording[name] / 1e9 for name in ("requested_ns", "window_ns"))
        raise Starved(f"this machine is too busy: a window of {asked:.0f} s took {took:.0f} s")
    return complaints + misses, seen.note


def judge_command(expect, files, machine):
    if "status" not in files:
        return ["it never ended"], ""
    return list(expect.problems(files, machine)), last_line(files["talk"])


def last_line(text):
    return (text.strip().splitlines() or ["no output"])[-1]
