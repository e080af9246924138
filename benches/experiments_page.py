#!/usr/bin/env python3
"""Writes docs/experiments-results.md: what the experiments from published accounts show on one machine.

    benches/experiments_page.py RESULTS.json CHARTS
    benches/experiments_page.py A.json A-CHARTS B.json B-CHARTS

The documents and charts are those of `allocwall bench ... -o RESULTS.json --charts CHARTS`. `make experiments` runs both. The charts of
a document are in the first folder after it; without one, the page has none of its charts. Of an experiment that is in several documents,
the last one counts. The charts that the page shows are copied beside it. Documents of
the same machine and version are parts of one run. The same input gives the same bytes. Standard library only.
"""

import argparse
import datetime
import html
import json
import math
import re
import sys
import unicodedata
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Described in docs/json.md.
FORMAT, VERSION = "allocwall-experiments", 1
LARGEST_DOCUMENT = 256 << 20
# Larger charts are not copied.
LARGEST_CHART = 1 << 20
# Above these, a line on stderr says so: bytes of a chart, and of the page with all its charts.
LARGE_CHART, LARGE_DOCS = 60_000, 1_500_000
# Experiments are headings and parts of file names.
NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
# Numbers that are words of a text, not parts of names.
NUMBER = re.compile(r"(?<!\S)[0-9]{1,15}(?!\S)")
# The folder of the charts, beside the page.
FOLDER = "experiments"
# Columns of figures in a table, beside the names of the arms.
FIGURES = 4
# Lines of a bill: the largest ones, of at least this share. The text report has the same limits.
LINES, LEAST = 4, 0.01
JUDGEMENTS = {"holds": "holds here", "does_not_hold": "does not hold here", "cannot_be_tested": "can't be tested here"}
ENDS = ("low", "point", "high")
TIMES = ((1.0, " ns"), (1e3, " µs"), (1e6, " ms"), (1e9, " s"))
RATES = ((1.0, "/s"), (1e3, " k/s"), (1e6, " M/s"))


class Wrong(Exception):
    """The input can't be used; one line for the user."""


@dataclass
class Experiment:
    data: dict
    # The number of its document, from 1.
    run: int
    # Of its charts.
    folder: Path = None
    # (file name, text for those who do not see it)
    charts: tuple = ()


# ---- reading ----


def no_number(text):
    raise ValueError(f"{text} is not a number")


def read(path):
    if not path.is_file():
        raise Wrong(f"{path}: no such file")
    if path.stat().st_size > LARGEST_DOCUMENT:
        raise Wrong(f"{path}: larger than {LARGEST_DOCUMENT >> 20} MiB")
    try:
        document = json.loads(path.read_bytes(), parse_constant=no_number)
    except (ValueError, RecursionError) as error:
        raise Wrong(f"{path}: not JSON: {error}") from None
    found = document.get("format") if isinstance(document, dict) else None
    if found != FORMAT:
        raise Wrong(f"{path}: its format is {brief(found)}, not {FORMAT}: write it with `allocwall bench all -o FILE`")
    if document.get("version") != VERSION:
        raise Wrong(f"{path}: version {brief(document.get('version'))}; this script reads version {VERSION}")
    return document


def brief(value):
    return ascii(value)[:40] if isinstance(value, (str, int)) else "missing"


def collect(paths):
    """The documents, and the experiments by name."""
    documents, experiments, waiting = [], {}, []
    for path in paths:
        if path.is_dir():
            if not waiting:
                raise Wrong(f"{path}: no document before this folder")
            for experiment in waiting:
                experiment.folder = path
            waiting = []
            continue
        document = read(path)
        # Documents of one machine and one version are one run, in parts.
        parts = [n for n, known in enumerate(documents, 1) if whose(known) == whose(document)]
        if not parts:
            documents.append(document)
        with_fields(path, lambda: waiting.extend(listed(document, parts[0] if parts else len(documents))))
        experiments.update((experiment.data["experiment"], experiment) for experiment in waiting)
    if not experiments:
        raise Wrong("no experiment in these documents")
    return documents, experiments


def whose(document):
    return document.get("machine"), document.get("tool")


def listed(document, run):
    for data in document["experiments"]:
        if not NAME.fullmatch(data["experiment"]):
            raise ValueError(f"{brief(data['experiment'])} is not the name of an experiment")
        yield Experiment(data, run)


def with_fields(about, make):
    """What `make` returns, if the fields are as in docs/json.md."""
    try:
        return make()
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        detail = f"no field {error}" if isinstance(error, KeyError) else error
        raise Wrong(f"{about}: not as in docs/json.md: {detail}") from None


def charts(name, folder):
    """The charts of an experiment: (file name, bytes, text for those who do not see it)."""
    for path in sorted(folder.glob(f"{name}-*.svg")) if folder else ():
        # The name of a chart has no dash: numa-after-upgrade-requests.svg is not a chart of numa.
        if path.stem.rpartition("-")[0] != name or not NAME.fullmatch(path.stem) or not path.is_file():
            continue
        if path.stat().st_size > LARGEST_CHART:
            warn(f"{path}: not used: larger than {LARGEST_CHART >> 10} KiB")
            continue
        svg = path.read_bytes()
        if not svg.startswith(b"<svg"):
            warn(f"{path}: not used: not a chart of allocwall")
            continue
        if len(svg) > LARGE_CHART:
            warn(f"{path}: {len(svg) / 1000:.0f} kB, a large chart")
        yield path.name, svg, alternative(svg.decode(errors="replace"))


def alternative(svg):
    title = re.search(r"<title>([^<]*)</title>", svg)
    x, y = (re.findall(r'<text class="axis[^>]*>([^<]*)</text>', svg) + ["", ""])[:2]
    text = "Chart: " + (title[1] if title else "no title")
    return html.unescape(f"{text}. {y}, by {x}." if x and y else f"{text}.")


def warn(line):
    """One line, also if a text of a document is in it."""
    print("".join(visible(c) for c in line), file=sys.stderr)


# ---- text and numbers ----


def plain(text):
    """Text as Markdown that shows it and does nothing else, also in a table. What is between backticks is code."""
    text = "".join(visible(c) for c in text).strip()
    parts = text.split("`")
    if len(parts) % 2 == 0 or not all(part.strip() for part in parts[1:-1]):
        parts = [text.replace("`", "'")]
    special = r"[\\*\[\]<>|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|&(?=#?\w+;)|^[#+=-]"
    parts[::2] = [re.sub(special, r"\\\g<0>", part) for part in parts[::2]]
    parts[1::2] = [part.replace("|", r"\|") for part in parts[1::2]]
    return "`".join(parts)


def visible(character):
    if character.isspace():
        return " "
    # Control characters, halves of surrogate pairs, and marks that turn the direction of text.
    return "\ufffd" if unicodedata.category(character).startswith("C") else character


def code(text):
    return plain("`" + text.replace("`", "'") + "`")


def count(number, noun):
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def sentence(text):
    """Plain text that ends in a full stop."""
    return plain(text if text.endswith((".", "…")) else f"{text}.")


def digits(value, divisor=1.0):
    """Three significant digits, and two of a value below 0.1, as in the text report."""
    if value is None or not math.isfinite(value):
        return "not finite"
    value /= divisor
    size = abs(value)
    if size < 1e-6:
        return "0"
    if size < 0.1:
        return f"{value:.{1 - math.floor(math.log10(size))}f}"
    if size < 99.95:
        return f"{value:.{2 if size < 9.995 else 1}f}"
    step = 10 ** max(0, math.floor(math.log10(size)) - 2)
    return f"{round(value / step) * step:,}"


def shown_in(unit, points):
    """(divisor, text after the number), the same for all arms."""
    if unit == "bytes":
        return float(1 << 20), " MiB"
    sizes = {"ns": (TIMES, 1.0), "seconds": (TIMES, 1e9), "per_second": (RATES, 1.0)}
    if unit not in sizes:
        return 1.0, ""
    names, one = sizes[unit]
    points = [abs(point) * one for point in points if point]
    # The first in which the smallest value has at most three digits before the point, and the largest at most five.
    fits = [name for name in names if not points or (min(points) < 1e3 * name[0] and max(points) < 1e5 * name[0])]
    divisor, after = (fits or names[-1:])[0]
    return divisor / one, after


def amount(interval, divisor=1.0, after=""):
    """The estimate and its 95 % interval; without the interval if it has the same digits."""
    low, point, high = (digits(interval[end], divisor) for end in ENDS)
    return f"{point}{after}" + ("" if low == point == high else f" ({low} to {high})")


def times(interval):
    return f"×{amount(interval)}"


def percent(interval):
    low, point, high = (digits(None) if interval[end] is None else f"{interval[end] * 100:.0f}" for end in ENDS)
    return f"{point} % ({low} to {high})"


def moment(unix_ms):
    return datetime.datetime.fromtimestamp(unix_ms / 1000, datetime.timezone.utc)


def duration(seconds):
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"


def why_absent(measured):
    """The reason, or None if the value is there."""
    return measured["absent"]["detail"] if isinstance(measured, dict) and "absent" in measured else None


class Footnotes:
    """Reasons, each with a number. A reason is printed once, below the first table that has it. Reasons of one table that differ only in
    their numbers are one note."""

    def __init__(self):
        self.notes, self.printed = [], 0

    def mark(self, why):
        for nth, reasons in enumerate(self.notes):
            if why in reasons or (nth >= self.printed and NUMBER.sub("", why) == NUMBER.sub("", reasons[0])):
                break
        else:
            nth, reasons = len(self.notes), []
            self.notes.append(reasons)
        reasons.append(why)
        return f"<sup>({nth + 1})</sup>"

    def lines(self):
        new = [f"<sup>({nth + 1})</sup> {sentence(merged(self.notes[nth]))}" for nth in range(self.printed, len(self.notes))]
        self.printed = len(self.notes)
        return ["", *[f"{note}<br>" for note in new[:-1]], new[-1]] if new else []


def merged(reasons):
    """Texts that differ only in their numbers, as one text with the range of each number."""
    ranges = [sorted(map(int, numbers)) for numbers in zip(*map(NUMBER.findall, reasons))]
    shown = [f"{first}" if first == last else f"{first} to {last}" for first, *_, last in ([r[0], *r] for r in ranges)]
    numbers = iter(shown)
    return NUMBER.sub(lambda _: next(numbers), reasons[0])


def table(heads, rows):
    return ["", row(heads), row(["---"] * len(heads)), *map(row, rows)]


def row(cells):
    return f"| {' | '.join(cells)} |"


def chunks(items, most):
    """In parts of nearly equal length."""
    parts = math.ceil(len(items) / most)
    length = math.ceil(len(items) / parts) if parts else 1
    return [items[at : at + length] for at in range(0, len(items), length)]


# ---- claims ----


def claim_test(test, known):
    """What is tested, its value here, and what it must be. `known`: reasons that are already on the page."""
    what, _, bound = test["rule"].rpartition(": ")
    why = why_absent(test["value"])
    if why is None:
        value = amount(test["value"])
    else:
        value = "not measured" if why in known else f"not measured: {why}"
        known.add(why)
    return plain(f"{what}: {value}; must be {bound}")


def outcome(test):
    if test["judgement"] == "cannot_be_tested":
        shown = "condition not shown to be met" if is_condition(test) else "undecided"
        return f": {shown}" if why_absent(test["value"]) is None else ""
    return {"holds": ": passed", "does_not_hold": ": failed"}[test["judgement"]]


def is_condition(test):
    return test["rule"].endswith("as a condition")


def deciding(claim):
    """The test that a claim's judgement follows from: an unmet condition, a failed test, one without a result, or the first one."""
    tests = claim["tests"]
    open_conditions = [test for test in tests if is_condition(test) and test["judgement"] != "holds"]
    failed = [test for test in tests if test["judgement"] == "does_not_hold"]
    others = [test for test in tests if test["judgement"] != "holds"]
    own = [test for test in tests if not is_condition(test)]
    return next(iter([*open_conditions, *failed, *others, *own, *tests]), None)


def reason(claim):
    """In short: why a claim can't be tested, or the test that decides."""
    test, why = deciding(claim), claim["why"]
    if test is None or (why and why_absent(test["value"])):
        return sentence(why or "no test")
    if why and test["rule"] in why:
        return sentence(f"{why}; here {amount(test['value'])}")
    shown = claim_test(test, set())
    if why:
        return f"{'undecided' if why.startswith('undecided: ') else plain(why)}: {shown}"
    more = len(claim["tests"]) - 1
    return f"{shown}; {count(more, 'more test')} passed" if more and claim["judgement"] == "holds" else shown


def all_claims(experiments):
    claims = [(name, claim) for name, e in experiments.items() for claim in e.data["claims"]]
    found = [claim["judgement"] for _, claim in claims]
    numbers = [found.count(key) for key in JUDGEMENTS]
    rows = [
        [f"[{name}](#{name})", plain(claim["claim"]), JUDGEMENTS[claim["judgement"]], reason(claim)]
        for name, claim in claims
    ]
    return [
        "",
        "## Claims",
        "",
        f"Of {count(len(claims), 'published claim')}, **{numbers[0]} hold here**, **{numbers[1]} do not hold here**, and "
        f"**{numbers[2]} can't be tested here**.",
        "Of a claim with several tests, the table has the one that decides; the section of its experiment has all of them.",
        *table(["experiment", "claim", "result", "why"], rows),
    ]


def claims(data):
    lines = []
    for claim in data["claims"]:
        known = {claim["why"]}
        lines.append(f"- **{JUDGEMENTS[claim['judgement']].capitalize()}**: {plain(claim['claim'])}")
        if claim["why"]:
            lines.append(f"  - {sentence(claim['why'])}")
        for test in claim["tests"]:
            # The outcome of the only test is that of the claim.
            lines.append(f"  - {claim_test(test, known)}{outcome(test) if len(claim['tests']) > 1 else ''}")
    return ["", "**Claims**", "", *lines] if lines else []


# ---- the other parts of an experiment ----


def span(runs):
    """The start of the first run and the end of the last one, in ms."""
    starts = [run["started_unix_ms"] for run in runs]
    return min(starts), max(start + 1000 * wall_s(run) for start, run in zip(starts, runs))


def wall_s(run):
    wall = run["metrics"].get("wall_s")
    return wall if isinstance(wall, (int, float)) else 0.0


def settings(data):
    blocks, planned = data["blocks"], data["planned_blocks"]
    facts = [count(blocks, "block") if blocks == planned else f"{blocks} of {count(planned, 'block')}"]
    facts.append("full runs" if data["scale"] == 1 else f"runs of {digits(data['scale'])} times the full size")
    facts.append(f"seed {data['seed']}")
    return facts


def facts(experiment, several):
    data = experiment.data
    facts = [f"run {experiment.run}"] if several else []
    facts += settings(data)
    if data["runs"]:
        began, ended = span(data["runs"])
        facts.append(f"began {moment(began):%Y-%m-%d %H:%M} UTC; the timed runs took {duration((ended - began) / 1000)}")
    # The names of other arms say which allocator they have.
    arms = [f"{code(arm['arm'])} is {code('--with ' + arm['with'])}" for arm in data["arms"] if ":" in arm["with"]]
    return ["", f"{plain('; '.join(facts))}." + (f" Arms: {'; '.join(arms)}." if arms else "")]


def notes(data):
    """Arms that were left out, and what to know about the others."""
    left_out = {}
    for one in data["left_out"]:
        left_out.setdefault(one["why"], []).append(one["arm"])
    found = [f"Left out: {', '.join(arms)}: {why}" for why, arms in left_out.items()]
    for arm in data["arms"]:
        if arm["failures"]:
            found.append(f"{arm['arm']}: {count(len(arm['failures']), 'run')} failed: {arm['failures'][0]}")
        if arm["unproven"]:
            found.append(arm["unproven"])
    found += data["warnings"]
    return ["", *[f"- {sentence(note)}" for note in found]] if found else []


def figures(data, footnotes):
    if not data["blocks"]:
        return []
    shown, absent = [], {}
    for figure in data["figures"]:
        why = {why_absent(arm["values"][figure["figure"]]) for arm in data["arms"]}
        if len(why) == 1 and None not in why:
            absent.setdefault(why.pop(), []).append(figure["title"])
        # Another figure says nearly the same.
        elif figure.get("printed", True):
            shown.append(figure)
    first = data["arms"][0]["arm"]
    lines = ["", f"**Figures**: medians, and multiples (×) of {code(first)}."]
    for part in chunks(shown, FIGURES):
        columns = [column(figure, data["arms"], footnotes) for figure in part]
        rows = [[plain(arm["arm"]), *cells] for arm, cells in zip(data["arms"], zip(*[cells for _, cells in columns]))]
        lines += table(["arm", *[head for head, _ in columns]], rows)
    lines += footnotes.lines()
    for why, titles in absent.items():
        lines += ["", f"Not measured in any arm: {plain('; '.join(titles))}: {sentence(why)}"]
    return lines


def column(figure, arms, footnotes):
    """The head and the cells of a figure: for each arm its value and its multiple of the first arm, or why one is absent."""
    key, head = figure["figure"], plain(figure["title"])
    values, ratios = [arm["values"][key] for arm in arms], [arm["ratios"][key] for arm in arms]
    unit = shown_in(figure["unit"], [value["point"] for value in values if why_absent(value) is None])
    no_ratio = {why_absent(ratio) for value, ratio in zip(values, ratios) if why_absent(value) is None}
    # Once for the column, if it is the same for all.
    if len(arms) > 1 and len(no_ratio) == 1 and None not in no_ratio:
        head += f" (no multiples{footnotes.mark(no_ratio.pop())})"
        ratios = [None] * len(arms)
    cells = []
    for nth, (value, ratio) in enumerate(zip(values, ratios)):
        why = why_absent(value)
        cell = amount(value, *unit) if why is None else f"–{footnotes.mark(why)}"
        if ratio is not None and why_absent(ratio) is None:
            cell += f"<br>{'noise ' if nth == 0 else ''}{times(ratio)}"
        elif ratio is not None and why is None:
            cell += f"<br>no multiple{footnotes.mark(why_absent(ratio))}"
        cells.append(cell)
    return head, cells


def largest(lines):
    measured = [line for line in lines if why_absent(line["share"]) is None and (line["share"]["point"] or 0) >= LEAST]
    measured.sort(key=lambda line: -line["share"]["point"])
    return "<br>".join(f"{plain(line['title'])} {percent(line['share'])}" for line in measured[:LINES])


def of_arms(data, field, title, heads, cells, footnotes):
    """A table with a row for each arm that has this field."""
    taken = [(arm["arm"], arm[field]) for arm in data["arms"] if arm[field] is not None]
    if not taken:
        return []
    why = {why_absent(value) for _, value in taken}
    if len(why) == 1 and None not in why:
        return ["", f"{title}: not measured in any arm: {sentence(why.pop())}"]
    rows = []
    for arm, value in taken:
        absent = why_absent(value)
        filled = cells(value) if absent is None else [f"–{footnotes.mark(absent)}", *[""] * (len(heads) - 1)]
        rows.append([plain(arm), *filled])
    # Without empty columns.
    kept = [nth for nth in range(len(heads) + 1) if any(cells[nth] for cells in rows)]
    heads = ["arm", *heads]
    lines = table([heads[nth] for nth in kept], [[cells[nth] for nth in kept] for cells in rows])
    return ["", title, *lines, *footnotes.lines()]


def bills(data, footnotes):
    title = "**Bills** of one more run of each arm: the largest lines, as shares of its CPU time and of the time of its threads."
    heads = ["CPU time", "waits", "verdict"]
    return of_arms(
        data, "bill", title, heads, lambda bill: [largest(bill["on_cpu"]), largest(bill["off_cpu"]), plain(bill["verdict"])], footnotes
    )


def series(data, footnotes):
    title = "**Series** of windows over one more run of each arm: its verdict, and that of the first window alone."
    heads = ["windows", "verdict over all", "what rose", "verdict of the first window"]

    def cells(series):
        rose = plain(", ".join(series["rose"])) or "nothing"
        return [str(int(series["windows"])), plain(series["verdict"]), rose, plain(series["first_verdict"])]

    return of_arms(data, "series", title, heads, cells, footnotes)


def images(charts):
    return [line for name, text in charts for line in ("", f"![{plain(text)}]({FOLDER}/{name})")]


def section(experiment, several):
    data, footnotes = experiment.data, Footnotes()
    return [
        "",
        f"## {data['experiment']}",
        "",
        sentence(data["summary"][:1].upper() + data["summary"][1:]),
        *facts(experiment, several),
        *figures(data, footnotes),
        *claims(data),
        *bills(data, footnotes),
        *series(data, footnotes),
        *notes(data),
        *images(experiment.charts),
    ]


# ---- the page ----

TITLE = """\
# Results of the experiments

This page is generated: `make experiments` writes it (`benches/experiments_page.py`) from a run of `allocwall bench all`.
[experiments.md](experiments.md) says how each experiment is measured and judged. The experiments repeat what published accounts of memory
problems measured, and judge what these accounts claim.
"""

READING = """\
**How to read it.** An experiment runs one program in several *arms*: with other allocators, other settings, or another method for the same
work. A value is the median over blocks of runs. In parentheses is its 95 % interval; it is left out where it has the same digits as
the value. `×0.62 (0.58 to 0.66)` means 0.62 times the value of the first arm. The *noise* of the first arm compares its two runs in each
block with each other. `k/s` and `M/s` are a thousand and a million a second.

A claim has one or more tests: a value, an arm as a multiple of another one (`jemalloc ÷ glibc`), or the place of an arm between two others
(0: like the one, 1: like the other); and what it must be. A test is *passed* if the whole interval is within that bound, *failed* if
the whole interval is outside, and else *undecided*: more blocks would help. A claim *holds here* if all its tests are passed, and *does not
hold here* if one is failed. Else, or if a condition of the claim is not met, it *can't be tested here*. All this is about one machine: a
claim may hold on another one. Each claim is judged by itself, so of many some are judged wrongly by chance.

The *bill* of an arm says where its CPU time goes, as `allocwall diagnose` finds; `allocwall explain "NAME OF A LINE"` explains a line."""


def same(values):
    """The values, each once, in their order."""
    return list(dict.fromkeys(values))


def statement(document, run, experiments, several):
    """Machine, version, settings and time of a run, and what could not be measured."""
    own = {name: e.data for name, e in experiments.items() if e.run == run}
    if not own:
        return []
    title = f"**Run {run}**: {', '.join(own)}" if several else "**The run**"
    lines = ["", title, "", f"- Machine: {plain('; '.join(document['machine']) or 'unknown')}."]
    tool = document["tool"]
    lines.append(f"- Version: {plain(tool['name'])} {plain(tool['version'])}.")
    runs = [run for data in own.values() for run in data["runs"]]
    if runs:
        # Seeds are at each experiment.
        lines.append(f"- Settings: {plain(' · '.join(same(', '.join(settings(data)[:-1]) for data in own.values() if data['runs'])))}.")
        spans = [span(data["runs"]) for data in own.values() if data["runs"]]
        took = sum(ended - began for began, ended in spans) / 1000
        began = moment(span(runs)[0])
        lines.append(f"- Time: began {began:%Y-%m-%d %H:%M} UTC; the timed runs took {duration(took)} in all, without those of bills.")
    if without := [name for name, data in own.items() if not data["runs"]]:
        lines.append(f"- Could not run on this machine: {', '.join(without)}.")
    missing = {}
    for name, data in own.items():
        for value in (value for arm in data["arms"] for value in arm["values"].values()):
            if why_absent(value) and value["absent"]["reason"] in ("not_supported", "not_permitted", "disabled"):
                missing.setdefault(value["absent"]["detail"], {})[name] = True
    lines += [f"- Not measured on this machine: {plain(why.rstrip('.'))} ({', '.join(names)})." for why, names in missing.items()]
    return lines


def page(documents, experiments):
    several = len({e.run for e in experiments.values()}) > 1
    lines = [TITLE.rstrip()]
    for run, document in enumerate(documents, 1):
        lines += with_fields(f"document {run}", lambda: statement(document, run, experiments, several))
    lines += ["", READING]
    lines += with_fields("a claim", lambda: all_claims(experiments))
    for name, experiment in experiments.items():
        lines += with_fields(name, lambda: section(experiment, several))
    return "\n".join(lines) + "\n"


def write(path, data):
    """Never leaves half a file."""
    new = path.with_name(f"{path.name}.new")
    new.write_bytes(data)
    new.replace(path)


def save(target, text, svgs):
    """The page and its charts; charts that only the page before showed are removed."""
    folder = target.parent / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    before = target.read_text(errors="replace") if target.is_file() else ""
    for name in set(re.findall(rf"\]\({FOLDER}/([a-z0-9-]+\.svg)\)", before)) - set(svgs):
        (folder / name).unlink(missing_ok=True)
    for name, svg in svgs.items():
        write(folder / name, svg)
    write(target, text.encode())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="+", type=Path, metavar="FILE|FOLDER", help="documents, each with the folder of its charts after it")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "experiments-results.md", help="the charts go to a folder beside it")
    arguments = parser.parse_args()
    try:
        documents, experiments = collect(arguments.paths)
        svgs = {}
        for name, experiment in experiments.items():
            found = list(charts(name, experiment.folder))
            experiment.charts = [(file, text) for file, _, text in found]
            svgs.update((file, svg) for file, svg, _ in found)
        text = page(documents, experiments)
        save(arguments.page, text, svgs)
    except (Wrong, OSError) as error:
        warn(f"error: {error}")
        return 2
    size = len(text.encode()) + sum(map(len, svgs.values()))
    print(f"{arguments.page}: {count(len(experiments), 'experiment')}, {count(len(svgs), 'chart')}, {size / 1000:.0f} kB")
    if size > LARGE_DOCS:
        warn(f"{arguments.page}: more than {LARGE_DOCS / 1e6} MB with its charts")
    return 0


if __name__ == "__main__":
    sys.exit(main())
