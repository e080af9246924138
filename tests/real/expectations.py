"""Rules for every report, independent of the service: pure checks of the JSON and the text of a diagnosis.

Each check yields one sentence for each problem.
"""

import unicodedata

STATUSES = {"wall", "contributor", "ruled_out", "not_measured"}
WALLS = {
    "cgroup_throttling",
    "steal",
    "run_queue",
    "waiting",
    "disk",
    "network",
    "application_lock",
    "gil",
    "garbage_collector",
    "first_touch",
    "fork",
    "file_fault",
    "map_churn",
    "address_space_lock",
    "tlb",
    "numa",
    "kernel_slab",
    "call_rate",
    "large_allocations",
    "allocator_code",
    "allocator_contention",
    "retention",
}
# Lines of the bill that belong to a wall, for walls that must name a place.
LINES = {"first_touch": {"fault_path", "zeroing"}}
COLUMNS = 100


def problems(report, expect):
    """All problems of a report (parsed JSON) of a service with these expectations."""
    try:
        return [*check_findings(report), *check_bill(report), *check_verdict(report), *check_expected(report, expect)]
    except (KeyError, TypeError, AttributeError) as error:
        return [f"the report does not have the documented format: {type(error).__name__}: {error}"]


def check_findings(report):
    findings = report["findings"]
    names = [finding["wall"] for finding in findings]
    if sorted(names) != sorted(WALLS):
        yield f"there is not one finding for each wall: missing {sorted(WALLS - set(names))}, unknown {sorted(set(names) - WALLS)}"
    rungs = [finding["rung"] for finding in findings]
    if rungs != sorted(rungs):
        yield f"findings are not in the order of the ladder: rungs {rungs}"
    for finding in findings:
        name, status, share = finding["wall"], finding["status"], finding["share"]
        if status not in STATUSES:
            yield f"{name}: unknown status {status!r}"
        if status == "not_measured":
            if not finding.get("missing"):
                yield f"{name}: not measured, without a reason"
        elif share is not None:
            yield from check_interval(name, share)


def check_interval(name, interval):
    low, point, high = interval["low"], interval["point"], interval["high"]
    if not low <= point <= high:
        yield f"{name}: interval {low} .. {point} .. {high} is not in order"
    if point < 0:
        yield f"{name}: {point} is negative"


def check_bill(report):
    lines = report["bill"]["on_cpu"]
    if not isinstance(lines, list) or not lines:
        yield f"the bill has no on-CPU line: {lines}"
        return
    total = sum(line["share"]["point"] for line in lines)
    if abs(total - 1) > 1e-6:
        yield f"the bill sums to {total}, not to 1"
    for line in lines:
        yield from check_interval(f"bill line {line['class']}", line["share"])
    if len({line["class"] for line in lines}) != len(lines):
        yield "a class has two lines in the bill"
    if not report["bill"]["off_cpu"]:
        yield "the bill has no off-CPU line"


def check_verdict(report):
    verdict = report["verdict"]
    if not verdict["sentence"].strip():
        yield "the verdict's sentence is empty"
    walls = {finding["wall"] for finding in report["findings"] if finding["status"] == "wall"}
    if set(verdict["walls"]) != walls:
        yield f"the verdict names {sorted(verdict['walls'])}, the findings {sorted(walls)}"


def check_expected(report, expect):
    bill = report["bill"]["on_cpu"] if isinstance(report["bill"]["on_cpu"], list) else []
    status = {finding["wall"]: finding["status"] for finding in report["findings"]}
    # The place must be named only if the report calls it a wall; evidence.py checks whether it is one.
    for wall in sorted(expect.must_be_wall):
        if expect.must_name and status.get(wall) == "wall":
            lines = [line for line in bill if line["class"] in LINES[wall]]
            named = [site["python"] or site["function"] for line in lines for site in line["sites"][:1]]
            if not any(name.startswith(expect.must_name) for name in named):
                yield f"no call site of {wall} names {expect.must_name}: {named}"
    for wall in sorted(expect.must_not_be_wall):
        if status.get(wall) == "wall":
            yield f"{wall} is called a wall: {sentence_of(report, wall)}"
    for what, expected in (("runtime", expect.runtime), ("allocator", expect.allocator)):
        seen = [process[what] for process in report["target"]["processes"]]
        if expected not in [detected.get("kind") for detected in seen]:
            yield f"the target's {what} should be {expected}, but is {seen}"


def sentence_of(report, wall):
    return next((finding["because"] for finding in report["findings"] if finding["wall"] == wall), "")


def text_problems(text):
    """Problems of the text report: it must fit a terminal and must not contain control characters."""
    if not text.strip():
        yield "the text report is empty"
    for number, line in enumerate(text.splitlines(), 1):
        if columns(line) > COLUMNS:
            yield f"line {number} of the text has {columns(line)} columns: {line[:60]}..."
        if any(unicodedata.category(character) == "Cc" for character in line):
            yield f"line {number} of the text contains a control character"


def columns(line):
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in line)
