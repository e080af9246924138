//! The text report of a diagnosis: the verdict, the bill, the ladder, the remedies, the limits and the next commands.

use super::allocations::section as counted;
use super::counters;
use super::escape::terminal;
use super::layout::{apportion, columns, elide_end, elide_middle, left, right, shell_lines, wrap};
use super::memory_text;
use allocwall_diagnose::bill::{Basis, Bill, CpuLine, Faulted, NO_SYMBOL, Site, WaitLine};
use allocwall_diagnose::remedies::treated;
use allocwall_diagnose::{Finding, Prescription, ShellLine, Status, Verdict, main_process};
use allocwall_model::catalogue::cost::{CostClass, WaitClass};
use allocwall_model::catalogue::owners::Owner;
use allocwall_model::catalogue::remedies::{self, Effect, Kind, Remedy};
use allocwall_model::catalogue::symbols;
use allocwall_model::catalogue::thresholds::MIN_SAMPLES;
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::recording::{
    Allocator, AllocatorKind, Ended, Figure, Libc, Linkage, ModuleRole, ProbeName, ProbeState, Process,
    Recording, Runtime, RuntimeAccount,
};
use allocwall_model::shell::quoted;
use allocwall_model::units::{Absence, Interval, Reason, plural, thousands};
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    pub color: bool,
    /// Columns of the terminal. At least 40 are used.
    pub width: usize,
}

impl Style {
    /// For files and pipes.
    pub const FILE: Style = Style { color: false, width: 100 };
}

/// Call sites are shown for lines of at least this share of the target's CPU time (for waits: of its thread time).
/// Lines of CPU time that do not belong to a wall need twice that.
const COSTLY: f64 = 0.05;
/// Call sites below this share of their line are not shown.
const SITE_FLOOR: f64 = 0.05;
/// Remedies that are shown with command and risk. The others are only named.
const REMEDIES_SHOWN: usize = 2;
/// If the samples and the kernel's account of CPU time differ by more, the report warns.
const TOLERATED_DISAGREEMENT: f64 = 0.03;
const NEXT_SHOWN: usize = 3;
/// Processes whose runtimes' own figures are shown: those that the collector stopped longest.
const RUNTIMES_SHOWN: usize = 4;
const NARROWEST: usize = 40;
/// The last line of the report.
const TERMS: &str =
    "Terms: docs/glossary.md in the source. Walls, their lines, remedies: `allocwall explain NAME`";

/// The whole report, newline-terminated. No line is wider than `style.width` (or 40, if that is less). `file` is the
/// path of the recording, if it was written; the next commands use it.
pub fn diagnosis(
    rec: &Recording,
    bill: &Bill,
    verdict: &Verdict,
    file: Option<&str>,
    style: Style,
) -> String {
    let mut page = Page::new(style);
    header(&mut page, rec, bill);
    verdict_sentence(&mut page, verdict);
    on_cpu(&mut page, rec, bill);
    off_cpu(&mut page, bill);
    if let Ok(memory) = &rec.resident {
        let pid = memory.bills.first().map(|bill| bill.pid);
        let lives = rec.processes.iter().any(|process| Some(process.pid) == pid && !process.ended);
        memory_text::section(
            &mut page,
            memory,
            memory_text::Known { resident_end: bill.rates.resident_end, lives },
        );
    }
    let limits = Limits::of(rec, bill, verdict);
    ladder(&mut page, verdict, &limits);
    sites(&mut page, bill, verdict);
    counted::section(&mut page, rec);
    runtimes(&mut page, rec);
    faulted(&mut page, bill);
    counters::section(&mut page, rec, bill);
    remedies(&mut page, verdict);
    page.section("LIMITS", "what this run could not measure, and its own cost");
    limits.print(&mut page);
    own_cost(&mut page, rec, bill);
    // Without samples there is no flamegraph.
    next(&mut page, verdict, file.filter(|_| !rec.samples.is_empty()));
    page.blank();
    page.wrapped(0, TERMS, Ink::Faint);
    page.out
}

#[derive(Clone, Copy)]
pub enum Ink {
    Plain,
    Heading,
    Bad,
    Warn,
    Good,
    Faint,
}

impl Ink {
    /// ANSI SGR parameters (ECMA-48).
    fn sgr(self) -> Option<&'static str> {
        match self {
            Ink::Plain => None,
            Ink::Heading => Some("1"),
            Ink::Bad => Some("1;31"),
            Ink::Warn => Some("33"),
            Ink::Good => Some("32"),
            Ink::Faint => Some("2"),
        }
    }
}

pub struct Page {
    pub out: String,
    color: bool,
    pub width: usize,
}

impl Page {
    pub fn new(style: Style) -> Self {
        Page { out: String::new(), color: style.color, width: style.width.max(NARROWEST) }
    }

    pub fn line(&mut self, text: &str) {
        self.out.push_str(text.trim_end());
        self.out.push('\n');
    }

    pub fn blank(&mut self) {
        self.out.push('\n');
    }

    pub fn paint(&self, ink: Ink, text: &str) -> String {
        match ink.sgr() {
            Some(sgr) if self.color && !text.is_empty() => format!("\x1b[{sgr}m{text}\x1b[0m"),
            _ => text.to_string(),
        }
    }

    /// A heading in capitals, which is visible without colour, and a short explanation.
    pub fn section(&mut self, title: &str, aside: &str) {
        self.blank();
        let room = self.width.saturating_sub(columns(title) + 2);
        let aside = elide_end(aside, room);
        let line = format!("{}  {}", self.paint(Ink::Heading, title), self.paint(Ink::Faint, &aside));
        self.line(if aside.is_empty() { line.trim_end_matches(' ') } else { &line });
    }

    /// `lead`, then `text` wrapped in a column that starts at `indent`.
    pub fn hang(&mut self, lead: &str, lead_ink: Ink, indent: usize, text: &str, ink: Ink) {
        // On a narrow page the column would be too narrow, so the text starts on its own line.
        let beside = self.width >= indent + 24;
        let column = if beside { indent } else { 4 };
        let lines = wrap(&terminal(text), self.width - column);
        let lead_lines = if beside { vec![lead.to_string()] } else { vec![elide_end(lead, self.width)] };
        if beside {
            let first = format!(
                "{}{}",
                self.paint(lead_ink, &left(&lead_lines[0], indent)),
                self.paint(ink, &lines[0])
            );
            self.line(&first);
        } else {
            let first = self.paint(lead_ink, &lead_lines[0]);
            self.line(&first);
            self.line(&format!("    {}", self.paint(ink, &lines[0])));
        }
        for line in &lines[1..] {
            let line = format!("{}{}", " ".repeat(column), self.paint(ink, line));
            self.line(&line);
        }
    }

    /// The heading of a table, with the heads of its columns in the same line.
    fn table(&mut self, title: &str, aside: &str, table: &Columns, heads: [&str; 3]) {
        self.blank();
        let [share, seconds, interval] = heads;
        let whole = table.wide_row(title, &format!("{title}  {aside}"), share, seconds, interval);
        let rest = whole.strip_prefix(title).unwrap_or_default();
        let line = format!("{}{}", self.paint(Ink::Heading, title), self.paint(Ink::Faint, rest));
        self.line(&line);
    }

    /// A shell command that can be copied. Long ones are broken between words with a backslash. A remark that does not
    /// fit is wrapped as a comment on its own lines.
    pub fn command(&mut self, indent: usize, line: &ShellLine) {
        self.command_after("", indent, line);
    }

    pub fn command_after(&mut self, heading: &str, indent: usize, line: &ShellLine) {
        let remark = line.remark.as_deref();
        let lead = format!(
            "{}{}",
            self.paint(Ink::Heading, heading),
            self.paint(Ink::Faint, &right("$ ", indent + 2 - columns(heading)))
        );
        let column = indent + 2;
        let command = terminal(&line.command);
        let whole = match remark {
            Some(remark) => format!("{command}  # {}", terminal(remark)),
            None => command.clone(),
        };
        if column + columns(&whole) <= self.width {
            return self.line(&format!("{lead}{whole}"));
        }
        let lines = shell_lines(&command, self.width, column);
        for (nth, line) in lines.iter().enumerate() {
            let lead = if nth == 0 { &lead } else { "" };
            self.line(&format!("{lead}{line}"));
        }
        if let Some(remark) = remark {
            let tail = format!("  # {}", terminal(remark));
            let last = lines.last().map_or(0, |l| columns(l)) + if lines.len() == 1 { column } else { 0 };
            if last + columns(&tail) <= self.width {
                self.out.pop();
                return self.line(&self.paint(Ink::Faint, &tail));
            }
            self.hang(&format!("{}# ", " ".repeat(column)), Ink::Faint, column + 2, remark, Ink::Faint);
        }
    }

    pub fn wrapped(&mut self, indent: usize, text: &str, ink: Ink) {
        self.hang("", Ink::Plain, indent, text, ink);
    }
}

fn header(page: &mut Page, rec: &Recording, bill: &Bill) {
    let cpus = if bill.window_s > 0.0 { bill.cpu_s / bill.window_s } else { 0.0 };
    let mut facts = vec![];
    let process = main_process(rec);
    if let Some(process) = process {
        let why_this = why_not_first(rec, process);
        facts.push(format!("pid {}{}", process.pid, why_this.as_deref().unwrap_or_default()));
        facts.extend(runtime(process));
        facts.extend(libc(process));
        facts.push(allocator(process));
        if rec.processes.len() > 1 && why_this.is_none() {
            facts.push(format!("{} processes", rec.processes.len()));
        }
    }
    facts.push(match &rec.host.hypervisor {
        Some(name) => format!("Linux {} on {name}", rec.host.kernel_release),
        None => format!("Linux {}", rec.host.kernel_release),
    });
    let command = process.map_or_else(|| "no process found".to_string(), command);
    let room = page.width - columns("allocwall  ");
    let line = format!(
        "{}  {}",
        page.paint(Ink::Heading, "allocwall"),
        page.paint(Ink::Heading, &elide_middle(&command, room))
    );
    page.line(&line);
    page.wrapped(2, &facts.join(" · "), Ink::Plain);
    let seen = [
        format!("{:.1} s window", bill.window_s),
        format!("{cpus:.2} of {} CPUs used", rec.host.online_cpus),
        format!("{} {}", bill.rates.threads_peak, plural(bill.rates.threads_peak as u64, "thread")),
        format!("{} resident", bytes(bill.rates.resident_end)),
    ];
    page.wrapped(2, &seen.join(" · "), Ink::Plain);
    if let Some(warning) = ended(rec) {
        page.wrapped(2, &warning, Ink::Warn);
    }
}

/// Why the header shows this process, which rungs and remedies judge, if it is not the first of the recording:
/// `, busiest of 2 processes, started by pid 10 (sh)`.
pub fn why_not_first(rec: &Recording, process: &Process) -> Option<String> {
    if rec.processes.first().is_some_and(|first| first.pid == process.pid) {
        return None;
    }
    let parent = rec.processes.iter().find(|p| p.pid == process.ppid);
    let started_by = parent.map_or_else(String::new, |p| format!(", started by pid {} ({})", p.pid, p.comm));
    Some(format!(", busiest of {} processes{started_by}", rec.processes.len()))
}

fn ended(rec: &Recording) -> Option<String> {
    let asked = rec.meta.requested_ns as f64 / 1e9;
    Some(match &rec.meta.ended {
        Ended::Complete => return None,
        Ended::Interrupted => {
            format!(
                "Interrupted before the end of the {asked:.0} s window. The report covers the time until then."
            )
        }
        Ended::TargetExited { status } => format!(
            "The target ended before the end of the {asked:.0} s window{}. The report covers the time until then.",
            status.as_ref().map_or(String::new(), |s| format!(": {s}"))
        ),
        Ended::CutOff => {
            "The recording is cut off, because its writer was killed. The report covers what was written."
                .to_string()
        }
    })
}

fn command(process: &Process) -> String {
    let words = if process.cmdline.is_empty() { vec![process.comm.clone()] } else { process.cmdline.clone() };
    terminal(&words.join(" "))
}

fn runtime(process: &Process) -> Option<String> {
    let versioned = |name: &str, version: &Option<String>| match version {
        Some(v) => format!("{name} {v}"),
        None => name.to_string(),
    };
    Some(match process.runtime.as_ref() {
        Ok(Runtime::Native) => return None,
        Ok(Runtime::Cpython { version, free_threaded }) => {
            format!("CPython {version}{}", if *free_threaded { " (free-threaded)" } else { "" })
        }
        Ok(Runtime::Jvm { version }) => versioned("JVM", version),
        Ok(Runtime::Go { version }) => versioned("Go", version),
        Ok(Runtime::Node { version }) => versioned("Node", version),
        Err(_) => "runtime unknown".to_string(),
    })
}

fn libc(process: &Process) -> Option<String> {
    Some(match process.libc.as_ref() {
        Ok(Libc::Glibc { version }) => format!("glibc {version}"),
        Ok(Libc::Musl { version }) => {
            format!("musl {}", version.as_deref().unwrap_or("")).trim_end().to_string()
        }
        Ok(Libc::Static) => "static binary".to_string(),
        Ok(Libc::Other { name }) => name.clone(),
        Err(_) => "libc unknown".to_string(),
    })
}

fn allocator(process: &Process) -> String {
    match process.allocator.as_ref() {
        Ok(a) => format!("malloc is {}", allocator_name(a)),
        Err(_) => "allocator unknown".to_string(),
    }
}

fn allocator_name(allocator: &Allocator) -> String {
    let name = match allocator.kind {
        AllocatorKind::Glibc => "glibc's",
        AllocatorKind::Musl => "musl's",
        AllocatorKind::Jemalloc => "jemalloc",
        AllocatorKind::Tcmalloc => "tcmalloc",
        AllocatorKind::Mimalloc => "mimalloc",
        AllocatorKind::Snmalloc => "snmalloc",
        AllocatorKind::Other => basename(&allocator.module),
    };
    let version = match (&allocator.version, allocator.how) {
        (Some(v), how) if how != Linkage::Libc => format!(" {v}"),
        _ => String::new(),
    };
    let how = match allocator.how {
        Linkage::Libc => "",
        Linkage::Linked => " (linked)",
        Linkage::Preloaded => " (preloaded)",
        Linkage::Static => " (static)",
    };
    format!("{name}{version}{how}")
}

fn verdict_sentence(page: &mut Page, verdict: &Verdict) {
    page.blank();
    let ink = if verdict.walls.is_empty() { Ink::Good } else { Ink::Bad };
    page.hang("VERDICT", Ink::Heading, 9, &verdict.sentence, ink);
}

/// Columns of the bill. If the page is too narrow, the bar is left out first, then the interval.
struct Columns {
    title: usize,
    bar: usize,
    interval: bool,
}

impl Columns {
    /// The longest short title of the bill. Both tables have the same columns.
    const TITLE: usize = 33;
    const SHARE: usize = 9;
    const SECONDS: usize = 10;
    const INTERVAL: usize = 20;

    fn fit(width: usize, title: usize) -> Self {
        let fixed = 2 + title + Self::SHARE + Self::SECONDS;
        let interval = width >= fixed + Self::INTERVAL;
        let left = width.saturating_sub(fixed + if interval { Self::INTERVAL } else { 0 });
        Columns {
            title: title.min(width.saturating_sub(2 + Self::SHARE + Self::SECONDS)),
            bar: if left >= 12 { (left - 2).min(24) } else { 0 },
            interval,
        }
    }

    fn row(&self, title: &str, bar: &str, share: &str, seconds: &str, interval: &str) -> String {
        let mut line = format!("  {}", left(&elide_end(title, self.title), self.title));
        if self.bar > 0 {
            line.push_str(&format!("  {}", left(bar, self.bar)));
        }
        line.push_str(&right(share, Self::SHARE));
        line.push_str(&right(seconds, Self::SECONDS));
        if self.interval {
            line.push_str(&right(interval, Self::INTERVAL));
        }
        line
    }

    /// A row whose title may extend over the bar. The longer of the two titles is used if it fits.
    fn wide_row(&self, short: &str, long: &str, share: &str, seconds: &str, interval: &str) -> String {
        let bar = if self.bar > 0 { self.bar + 2 } else { 0 };
        let room = 2 + self.title + bar;
        let title = if columns(long) <= room { long } else { short };
        let mut line = left(&elide_end(title, room), room);
        line.push_str(&right(share, Self::SHARE));
        line.push_str(&right(seconds, Self::SECONDS));
        if self.interval {
            line.push_str(&right(interval, Self::INTERVAL));
        }
        line
    }

    fn bar(&self, share: f64) -> String {
        bar(share, self.bar)
    }
}

/// A share of `width` columns, to an eighth of a column.
pub fn bar(share: f64, width: usize) -> String {
    let eighths = (share.clamp(0.0, 1.0) * width as f64 * 8.0).round() as usize;
    let mut bar = "█".repeat(eighths / 8);
    bar.extend(['▏', '▎', '▍', '▌', '▋', '▊', '▉'].get((eighths % 8).wrapping_sub(1)));
    bar
}

fn on_cpu(page: &mut Page, rec: &Recording, bill: &Bill) {
    let lines = match &bill.on_cpu {
        Ok(lines) => lines,
        Err(absence) => {
            page.section("BILL", "where the target's CPU time went");
            return page.wrapped(2, &format!("Not measured: {}", reason_and_mend(absence)), Ink::Warn);
        }
    };
    let shares: Vec<f64> = lines.iter().map(|l| l.share.point).collect();
    let tenths = apportion(&shares, 1000);
    let hundredths = apportion(&shares, (bill.cpu_s.max(0.0) * 100.0).round() as u64);
    let table = Columns::fit(page.width, Columns::TITLE);
    page.table("BILL", "where the target's CPU time went", &table, ["share", "CPU-s", "95 % interval"]);
    for ((line, tenths), hundredths) in lines.iter().zip(&tenths).zip(&hundredths) {
        if *tenths > 0 {
            page.line(&table.row(
                line.class.title(),
                &table.bar(line.share.point),
                &format!("{} %", decimal(*tenths, 1)),
                &decimal(*hundredths, 2),
                &percents(line.share),
            ));
        }
    }
    let covered = (bill.cpu_s > 0.0).then(|| (bill.sampled_cpu_s + bill.switching_cpu_s) / bill.cpu_s);
    let agreement = match covered {
        Some(part) if (part - 1.0).abs() <= TOLERATED_DISAGREEMENT => {
            format!("  total; samples agree with the kernel's accounting ({:.1} %)", part * 100.0)
        }
        _ => "  total".to_owned(),
    };
    let total = table.wide_row(
        "  total",
        &agreement,
        &format!("{} %", decimal(tenths.iter().sum(), 1)),
        &decimal(hundredths.iter().sum(), 2),
        "",
    );
    let total = page.paint(Ink::Heading, &total);
    page.line(&total);
    zero_lines(page, lines, &tenths);
    caveats(page, lines);
    // Without kernel samples they cannot agree. A note of the line says so.
    let covered = covered.filter(|part| (part - 1.0).abs() > TOLERATED_DISAGREEMENT);
    if let Some(part) = covered.filter(|_| rec.meta.kernel_samples) {
        let text = format!(
            "Shares may be biased: samples cover {:.1} % of the CPU time that the kernel charged.",
            part * 100.0
        );
        page.wrapped(2, &text, Ink::Warn);
    }
}

/// The lines that would print as 0.0 %, in one line. Those that may be part of a line without symbols are listed
/// separately, because their share is unknown.
fn zero_lines(page: &mut Page, lines: &[CpuLine], tenths: &[u64]) {
    let titles = |within: Option<CostClass>| {
        let folded = lines.iter().zip(tenths).filter(|(l, t)| **t == 0 && l.may_be_in == within);
        folded.map(|(l, _)| l.class.title()).collect::<Vec<_>>().join(", ")
    };
    let nothing = titles(None);
    if !nothing.is_empty() {
        page.wrapped(2, &format!("0.0 %: {nothing}"), Ink::Faint);
    }
    for within in [CostClass::UnnamedKernel, CostClass::Application] {
        let hidden = titles(Some(within));
        if !hidden.is_empty() {
            let text = format!("share unknown, may be part of “{}”: {hidden}", within.title());
            page.wrapped(2, &text, Ink::Warn);
        }
    }
}

/// Prints the notes of lines, each once. Notes of kernel lines are in the JSON document only.
fn caveats(page: &mut Page, lines: &[CpuLine]) {
    let mut notes: Vec<(&str, Vec<&str>)> = vec![];
    for line in lines.iter().filter(|line| shows_notes(line)) {
        for note in &line.notes {
            match notes.iter_mut().find(|(known, _)| known == note) {
                Some((_, titles)) => titles.push(line.class.title()),
                None => notes.push((note, vec![line.class.title()])),
            }
        }
    }
    for (note, titles) in notes {
        page.wrapped(2, &format!("{}: {note}", titles.join(", ")), Ink::Warn);
    }
}

/// User lines, and kernel time that was not sampled.
fn shows_notes(line: &CpuLine) -> bool {
    !line.class.is_kernel() || (line.class == CostClass::UnnamedKernel && line.samples == 0)
}

fn off_cpu(page: &mut Page, bill: &Bill) {
    let whole = bill.rates.thread_s;
    let table = Columns::fit(page.width, Columns::TITLE);
    let aside = format!("of {whole:.1} thread-seconds in total");
    page.table("WAITS", &aside, &table, ["share", "thread-s", "95 % interval"]);
    let mut zero = vec![];
    let mut absent: Vec<(&Absence, Vec<&str>)> = vec![];
    for line in &bill.off_cpu {
        match &line.thread_s {
            // Most programs have no such lock. The ladder says so.
            Ok(time) if time.point < 0.005 && line.class == WaitClass::Gil => {}
            Ok(time) if time.point < 0.005 => zero.push(line.class.title()),
            Ok(time) => {
                let share = if whole > 0.0 { time.point / whole } else { 0.0 };
                let title = line.class.title();
                let title = if columns(title) > table.title { line.class.short_title() } else { title };
                page.line(&table.row(
                    title,
                    &table.bar(share),
                    &format!("{:.1} %", share * 100.0),
                    &format!("{:.2}", time.point),
                    &range(*time, 2),
                ));
            }
            Err(absence) => match absent.iter_mut().find(|(a, _)| *a == absence) {
                Some((_, titles)) => titles.push(line.class.title()),
                None => absent.push((absence, vec![line.class.title()])),
            },
        }
    }
    if !zero.is_empty() {
        page.wrapped(2, &format!("0.00: {}", zero.join(", ")), Ink::Faint);
    }
    for (_, titles) in absent {
        let text = format!("not measured (see LIMITS): {}", titles.join(", "));
        page.wrapped(2, &text, Ink::Warn);
    }
}

fn ladder(page: &mut Page, verdict: &Verdict, limits: &Limits) {
    page.section("LADDER", "rungs in order: interference first, then the kernel, then the allocator");
    let names = Wall::ALL.into_iter().map(|wall| columns(wall.title())).max().unwrap_or(0);
    let mut last_rung = 0;
    for finding in &verdict.findings {
        let number = if finding.rung == last_rung { String::new() } else { finding.rung.to_string() };
        last_rung = finding.rung;
        let (word, ink) = match finding.status {
            Status::Wall => ("WALL", Ink::Bad),
            Status::Contributor => ("contributor", Ink::Warn),
            Status::RuledOut => ("ruled out", Ink::Good),
            Status::NotMeasured => ("not measured", Ink::Warn),
        };
        let name = format!(" {} {} ", right(&number, 2), left(finding.wall.title(), names));
        let lead = format!("{name}{}", left(word, 13));
        page.hang(&lead, ink, columns(&lead), &reading(finding, limits), Ink::Plain);
        if finding.status == Status::Wall || finding.status == Status::Contributor {
            behind(page, finding, if page.width >= 80 { columns(&name) } else { 4 });
        }
    }
}

/// The measured numbers of a wall or contributor. For a wall also a command that shows the same with another tool.
fn behind(page: &mut Page, finding: &Finding, column: usize) {
    let wall = finding.status == Status::Wall;
    let estimate = finding.estimate.as_ref().map(|kind| format!("estimate: {kind}"));
    let numbers: Vec<&str> = finding
        .evidence
        .iter()
        .take(if wall { usize::MAX } else { 1 })
        .chain(estimate.iter().filter(|_| wall))
        .map(String::as_str)
        .collect();
    if !numbers.is_empty() {
        page.wrapped(column, &numbers.join(" · "), Ink::Faint);
    }
    if wall && !finding.show.command.is_empty() {
        page.command(column, &finding.show);
    }
}

/// The text next to the status. The reason why something was not measured is printed once, under LIMITS.
fn reading(finding: &Finding, limits: &Limits) -> String {
    // A table has no full stops.
    let because = finding.because.trim().trim_end_matches('.');
    if let Some(missing) = &finding.missing {
        let known = if because == missing.detail.trim_end_matches('.') || because.is_empty() {
            String::new()
        } else {
            format!("{because}; ")
        };
        return format!("{known}see limit {}", limits.number(missing));
    }
    match &finding.estimate {
        Some(_) if finding.status != Status::Wall => format!("{because} (estimate)"),
        _ => because.to_string(),
    }
}

/// What could not be measured, by obstacle: each obstacle once, with everything that it hides.
struct Limits {
    obstacles: Vec<Obstacle>,
}

struct Obstacle {
    absences: Vec<Absence>,
    hides: Vec<String>,
}

impl Limits {
    fn of(rec: &Recording, bill: &Bill, verdict: &Verdict) -> Limits {
        let mut limits = Limits { obstacles: vec![] };
        for finding in &verdict.findings {
            if let Some(missing) = &finding.missing {
                limits.add(missing, finding.wall.title().to_string());
            }
        }
        for line in &bill.off_cpu {
            if let Err(absence) = &line.thread_s {
                limits.add(absence, format!("time {}", line.class.title()));
            }
        }
        if let Err(absence) = &bill.on_cpu {
            limits.add(absence, "the bill".to_string());
        }
        if let Err(absence) = &rec.resident
            && absence.reason != Reason::NotApplicable
        {
            limits.add(absence, "resident memory by owner".to_string());
        }
        // Without --count, nothing is missing.
        if let Err(absence) = &rec.counted
            && absence.reason != Reason::Disabled
        {
            limits.add(absence, "calls of the allocator".to_string());
        }
        for probe in &rec.probes {
            match &probe.state {
                ProbeState::Measured => {}
                ProbeState::Partial(absence) => {
                    limits.add_probe(absence, format!("{} (in part)", probe.what))
                }
                ProbeState::Absent(absence) => limits.add_probe(absence, probe.what.clone()),
            }
        }
        for account in &rec.accounts {
            for (title, figure) in figures(account) {
                if let Err(absence) = figure {
                    limits.add(absence, title.to_string());
                }
            }
        }
        if rec.processes.iter().any(|process| matches!(process.runtime, Ok(Runtime::Node { .. }))) {
            let absence = Absence::new(Reason::NotSupported, "not readable from outside");
            limits.add(&absence, "pauses and allocation rate of V8".to_string());
        }
        if let Some(absence) = nameless_code(rec, bill) {
            limits.add(&absence, "names of generated code".to_string());
        }
        if let Some(absence) = nameless_python(rec, bill) {
            limits.add(&absence, "Python functions (in part)".to_string());
        }
        if let Some(absence) = thin_stacks(rec) {
            limits.add(&absence, "call sites (in part)".to_string());
        }
        if let Some(absence) = owners_unknown(rec, bill) {
            limits.add(&absence, "owners of page faults (in part)".to_string());
        }
        if let Err(absence) = &rec.prices
            && !verdict.remedies.is_empty()
        {
            limits.add(absence, "the gain of the remedies".to_string());
        }
        limits
    }

    /// A probe is named only if its absence hides no finding and no line.
    fn add_probe(&mut self, absence: &Absence, what: String) {
        let before = self.obstacles.len();
        let hides: Vec<usize> = self.obstacles.iter().map(|o| o.hides.len()).collect();
        self.add(absence, what);
        let same_detail = |o: &Obstacle| o.absences[0].detail == absence.detail;
        if self.obstacles.len() == before && self.obstacles.iter().any(same_detail) {
            for (obstacle, count) in self.obstacles.iter_mut().zip(hides) {
                obstacle.hides.truncate(count);
            }
        }
    }

    fn add(&mut self, absence: &Absence, hidden: String) {
        // Whatever root would get is one obstacle.
        let same = |a: &Absence| {
            a.detail == absence.detail
                || (!a.mend.is_empty() && a.mend == absence.mend)
                || (a.root_helps() && absence.root_helps())
        };
        match self.obstacles.iter_mut().find(|o| o.absences.iter().any(same)) {
            Some(obstacle) => {
                if !obstacle.absences.contains(absence) {
                    obstacle.absences.push(absence.clone());
                }
                if !obstacle.hides.contains(&hidden) {
                    obstacle.hides.push(hidden);
                }
            }
            None => self.obstacles.push(Obstacle { absences: vec![absence.clone()], hides: vec![hidden] }),
        }
    }

    /// The printed number; the first one is 1.
    fn number(&self, absence: &Absence) -> usize {
        let at = self.obstacles.iter().position(|o| o.absences.contains(absence));
        at.map_or(0, |i| i + 1)
    }

    fn print(&self, page: &mut Page) {
        for (nth, obstacle) in self.obstacles.iter().enumerate() {
            let advice = obstacle.absences.iter().find_map(Absence::advice);
            // The same change removes all of them, so the first reason, that of the lowest rung, is enough.
            let detail = obstacle.absences[0].detail.trim_end_matches('.');
            let hides = obstacle.hides.join(", ");
            let advice = advice.map_or(String::new(), |advice| format!(" → {advice}"));
            let text = format!("{hides}: {detail}{advice}");
            page.hang(&format!("  {}. ", nth + 1), Ink::Warn, 5, &text, Ink::Plain);
        }
    }
}

/// Share of CPU time, of the samples, or of the page faults, from which on missing names, callers and owners matter.
const MUCH: f64 = 0.1;

/// If the owners of many page faults are unknown. Memory that lives short is more often among them.
fn owners_unknown(rec: &Recording, bill: &Bill) -> Option<Absence> {
    // Its own limit says why.
    if rec.probe_absence(ProbeName::FaultOwners).is_some() {
        return None;
    }
    let unknown = costly_faults(bill).iter().map(|faulted| 1.0 - faulted.known).fold(0.0, f64::max);
    let detail = format!(
        "the owner of {:.0} % of them is unknown, so the shares of the others may be biased",
        unknown * 100.0
    );
    (unknown > MUCH).then(|| Absence::new(Reason::TooLittle, detail))
}

/// Share of CPU time of call sites in code of one kind that have no name.
fn nameless(rec: &Recording, bill: &Bill, role: ModuleRole, has_none: impl Fn(&Site) -> bool) -> f64 {
    let of_role = |path: &str| rec.modules.iter().any(|m| m.role == role && m.path == path);
    let lines = bill.on_cpu.iter().flatten();
    lines
        .flat_map(|l| l.sites.iter().map(move |s| (s, l.share.point)))
        .filter(|(site, _)| has_none(site) && of_role(&site.module))
        .map(|(site, share)| site.share * share)
        .sum()
}

/// If much of the interpreter's time has no Python function although Python's stacks could be read.
fn nameless_python(rec: &Recording, bill: &Bill) -> Option<Absence> {
    let has_python = rec.processes.iter().any(|p| matches!(p.runtime, Ok(Runtime::Cpython { .. })));
    let share = nameless(rec, bill, ModuleRole::Cpython, |site| site.python.is_none());
    if !has_python || share < MUCH || rec.probe_absence(ProbeName::PythonStacks).is_some() {
        return None;
    }
    let read = rec.python.len() as u64;
    let detail = format!(
        "too few Python stacks were read at the time of samples that are {:.0} % of CPU ({} {} in {:.1} s)",
        share * 100.0,
        thousands(read),
        plural(read, "stack"),
        bill.window_s
    );
    Some(Absence::new(Reason::TooLittle, detail).mend("use a longer window: -d 30"))
}

/// If the callers of many samples are unknown although their stacks were read: where the unwinder stopped.
fn thin_stacks(rec: &Recording) -> Option<Absence> {
    /// A longer stack ends where the copied part of it ends.
    const SHORT: usize = 16;
    const LEAST_SAMPLES: u64 = 20;
    // Their own limits say that stacks were not read.
    let unread = [ProbeName::Names, ProbeName::Code, ProbeName::CpuSamples, ProbeName::Tail];
    if unread.iter().any(|probe| rec.probe_absence(*probe).is_some()) || rec.meta.ended == Ended::CutOff {
        return None;
    }
    let mut all = 0;
    let mut cut: BTreeMap<u32, u64> = BTreeMap::new();
    for sample in rec.samples.iter().filter(|s| s.deep) {
        let Some(stack) = sample.user.and_then(|s| rec.stacks.get(s as usize)) else { continue };
        all += 1;
        let outermost = stack.frames.last().and_then(|f| rec.frames.get(*f as usize));
        let Some(frame) = outermost.filter(|_| !stack.complete && stack.frames.len() <= SHORT) else {
            continue;
        };
        // Go's code has frame pointers; its stacks end where the scheduler switches them.
        let of_go = |m: u32| rec.modules.get(m as usize).is_some_and(|module| module.role == ModuleRole::Go);
        let at_root = frame.symbol.as_deref().is_some_and(symbols::is_root);
        if let Some(module) = frame.module.filter(|m| !at_root && !of_go(*m)) {
            *cut.entry(module).or_default() += 1;
        }
    }
    let missing: u64 = cut.values().sum();
    if all < LEAST_SAMPLES || (missing as f64) < MUCH * all as f64 {
        return None;
    }
    let (most, _) = cut.iter().max_by_key(|(_, count)| **count)?;
    let module = rec.modules.get(*most as usize)?;
    let file = basename(&module.path).trim_matches(['[', ']']);
    let detail = format!(
        "the callers of {:.0} % of the samples are unknown, most often in {file}: no unwind tables and no frame pointers there",
        missing as f64 / all as f64 * 100.0
    );
    let absence = Absence::new(Reason::NotFound, detail);
    let java = rec.processes.iter().any(|p| matches!(p.runtime, Ok(Runtime::Jvm { .. })));
    Some(match module.role {
        ModuleRole::Jit if java => absence.mend("start java with -XX:+PreserveFramePointer"),
        ModuleRole::Jit => absence,
        _ => absence.mend(format!(
            "build {file} with -fno-omit-frame-pointer, or with unwind tables (-fasynchronous-unwind-tables)"
        )),
    })
}

/// If much of the CPU time is in generated code without names: how to get the names.
fn nameless_code(rec: &Recording, bill: &Bill) -> Option<Absence> {
    if nameless(rec, bill, ModuleRole::Jit, |site| site.function == NO_SYMBOL) < MUCH {
        return None;
    }
    let process =
        rec.processes.iter().find(|p| matches!(p.runtime, Ok(Runtime::Jvm { .. } | Runtime::Node { .. })))?;
    let ended = process.ended || matches!(rec.meta.ended, Ended::TargetExited { .. });
    let mend = match process.runtime {
        Ok(Runtime::Jvm { .. }) if ended => {
            "start it again, and run jcmd PID Compiler.perfmap (JDK 17 or newer) while it is diagnosed"
                .to_string()
        }
        Ok(Runtime::Jvm { .. }) => {
            format!("run jcmd {} Compiler.perfmap (JDK 17 or newer), then diagnose again", process.pid)
        }
        _ => "start node with --perf-basic-prof".to_string(),
    };
    // The file has its number in its own PID namespace and lies below its own root directory.
    let pid = process.pid;
    let name = format!("/tmp/perf-{}.map", process.pid_inside.unwrap_or(pid));
    let detail = match ended {
        true => format!("process {pid} wrote no {name}"),
        false => format!("/proc/{pid}/root{name} does not exist"),
    };
    Some(Absence::new(Reason::NotFound, detail).mend(mend))
}

fn sites(page: &mut Page, bill: &Bill, verdict: &Verdict) {
    let treated = treated(&verdict.findings);
    let of_wall = |class: CostClass| treated.iter().any(|&w| w.lines().contains(&class));
    let mut lines: Vec<&CpuLine> = bill.on_cpu.iter().flatten().collect();
    lines.retain(|l| {
        !l.sites.is_empty() && l.share.point >= if of_wall(l.class) { COSTLY } else { 2.0 * COSTLY }
    });
    lines.sort_by(|a, b| {
        let by_wall = of_wall(b.class).cmp(&of_wall(a.class));
        by_wall.then(b.share.point.total_cmp(&a.share.point))
    });
    let waits: Vec<&WaitLine> = bill.off_cpu.iter().filter(|l| costly_wait(l, bill, verdict)).collect();
    let named = |s: &Site| {
        verdict.site.as_ref().is_some_and(|site| s.function == *site || s.python.as_ref() == Some(site))
    };
    // Without a wall, the sentence already names the call site that has most of the time.
    let repeats_the_sentence = verdict.walls.is_empty()
        && matches!(&lines[..], [line] if line.sites[0].share > 0.8 && named(&line.sites[0]));
    if waits.is_empty() && (lines.is_empty() || repeats_the_sentence) {
        return;
    }
    page.section("CALL SITES", "functions that caused each large line, as a share of that line");
    for line in lines {
        let limit = if of_wall(line.class) { 3 } else { 1 };
        site_lines(page, line.class.title(), &line.sites, limit);
    }
    for line in waits {
        site_lines(page, line.class.title(), &line.sites, 2);
    }
}

/// What the language runtimes count themselves. It is not added to the bill: stopped threads are in the waits, too.
fn runtimes(page: &mut Page, rec: &Recording) {
    let readable = |account: &&RuntimeAccount| figures(account).iter().any(|(_, figure)| figure.is_ok());
    let mut accounts: Vec<&RuntimeAccount> = rec.accounts.iter().filter(readable).collect();
    if accounts.is_empty() {
        return;
    }
    let stopped = |account: &RuntimeAccount| account.stopped_ns.as_ref().map_or(0.0, |f| f.value.point);
    accounts.sort_by(|a, b| stopped(b).total_cmp(&stopped(a)));
    page.section("RUNTIME", "what CPython, the JVM or Go count themselves");
    for account in accounts.iter().take(RUNTIMES_SHOWN) {
        let process = rec.processes.iter().find(|process| process.pid == account.pid);
        let mut facts = vec![format!("pid {}", account.pid)];
        facts.extend(process.and_then(runtime));
        facts.push(format!("read for {:.1} s", account.over_ns as f64 / 1e9));
        facts.push(account.method.clone());
        page.wrapped(2, &facts.join(" · "), Ink::Plain);
        let mut absent = vec![];
        for (title, figure) in figures(account) {
            match figure {
                Ok(figure) => {
                    page.hang(&left(&format!("    {title}"), 38), Ink::Plain, 38, &figure, Ink::Plain);
                }
                Err(_) => absent.push(title),
            }
        }
        if !absent.is_empty() {
            page.wrapped(4, &format!("not measured (see LIMITS): {}", absent.join(", ")), Ink::Warn);
        }
    }
    let rest = accounts.len().saturating_sub(RUNTIMES_SHOWN) as u64;
    if rest > 0 {
        let text = format!("{rest} more {}: see `runtimes` with --json", plural(rest, "account"));
        page.wrapped(2, &text, Ink::Faint);
    }
}

/// The figures of a runtime as text, each with its origin.
fn figures(account: &RuntimeAccount) -> Vec<(&'static str, Result<String, &Absence>)> {
    let over_s = (account.over_ns as f64 / 1e9).max(1e-9);
    let share = |ns: f64| format!("{:.1}", ns / 1e9 / over_s * 100.0);
    let collections =
        |n: &u64| format!("{:.1} a second, {} in total (from counters)", *n as f64 / over_s, thousands(*n));
    let cpu = |ns: f64| format!("{:.2}", ns / 1e9);
    let rate = |n: f64| format!("{}/s", bytes((n / over_s) as u64));
    let stopped = account.stopped_ns.as_ref().map(|f| with_origin(f, share, " %", " of the time"));
    let collector = account.collector_cpu_ns.as_ref().map(|f| with_origin(f, cpu, " CPU-s", ""));
    let all = [
        ("threads stopped by the collector", stopped),
        ("collections", account.collections.as_ref().map(collections)),
        ("CPU time of the collector", collector),
        ("allocation", account.allocated_bytes.as_ref().map(|f| with_origin(f, rate, "", ""))),
    ];
    // What a runtime doesn't count is no limit of this run.
    let never = |a: &Absence| matches!(a.reason, Reason::NotApplicable | Reason::NotSupported);
    all.into_iter().filter(|(_, figure)| !figure.as_ref().is_err_and(|a| never(a))).collect()
}

/// `5.2 % of the time (from counters)`, `58.4 % of the time (sampled; 95 % interval 57.4 to 59.4 %)`.
fn with_origin(figure: &Figure, shown: impl Fn(f64) -> String, unit: &str, of: &str) -> String {
    let [low, point, high] = [figure.value.low, figure.value.point, figure.value.high].map(shown);
    match (figure.sampled, low == high) {
        (true, true) => format!("{point}{unit}{of} (sampled)"),
        (true, false) => format!("{point}{unit}{of} (sampled; 95 % interval {low} to {high}{unit})"),
        (false, true) => format!("{point}{unit}{of} (from counters)"),
        (false, false) => format!("between {low} and {high}{unit}{of} (from counters)"),
    }
}

/// Page faults that cost much, by wall.
fn costly_faults(bill: &Bill) -> Vec<&Faulted> {
    /// A minor fault takes half a microsecond or more on most machines.
    const FAULT_S: f64 = 0.5e-6;
    let all: u64 = bill.on_cpu.iter().flatten().map(|line| line.samples).sum();
    let by_number = bill.faulted.iter().filter(|faulted| faulted.basis != Basis::CpuTime);
    let counted = by_number.map(|faulted| faulted.samples).max().unwrap_or(0);
    let rate = bill.rates.minor_faults.as_ref().copied().unwrap_or(0.0);
    let counted_part = rate * bill.window_s * FAULT_S / bill.cpu_s.max(f64::MIN_POSITIVE);
    let costly = |faulted: &&Faulted| {
        let (samples, part) = match faulted.basis {
            Basis::CpuTime => (faulted.samples, faulted.samples as f64 / all.max(1) as f64),
            // One line for all of them, because their number is what the parts are of.
            Basis::Number { .. } => (counted, counted_part),
        };
        samples >= MIN_SAMPLES && part >= COSTLY
    };
    bill.faulted.iter().filter(costly).collect()
}

/// Whose memory the costly page faults are about.
fn faulted(page: &mut Page, bill: &Bill) {
    let (sampled, counted): (Vec<&Faulted>, Vec<&Faulted>) =
        costly_faults(bill).into_iter().partition(|faulted| faulted.basis == Basis::CpuTime);
    counted_faults(page, bill, &counted);
    if sampled.is_empty() {
        return;
    }
    page.section("PAGE FAULTS", "owner of the memory; share of the CPU time in these faults");
    for faulted in sampled {
        let parts = faulted.owners.iter().map(|one| (one.share.point * faulted.known, one.owner));
        fault_line(page, faulted.wall.title(), parts.collect(), 1.0 - faulted.known);
    }
}

/// The same, if the faults were counted.
fn counted_faults(page: &mut Page, bill: &Bill, counted: &[&Faulted]) {
    let title = match (counted, &bill.rates.minor_faults) {
        ([], _) => return,
        // Others may have been sampled.
        ([one], _) => one.wall.title().to_owned(),
        (_, Ok(rate)) => format!("{} a second", thousands(*rate as u64)),
        (_, Err(_)) => String::new(),
    };
    let counted: Vec<(f64, &Faulted)> = counted
        .iter()
        .filter_map(|faulted| match faulted.basis {
            Basis::Number { faults } => Some((faults as f64, *faulted)),
            Basis::CpuTime => None,
        })
        .collect();
    let known: f64 = counted.iter().map(|(faults, _)| faults).sum();
    // The unknown ones are the same for all walls.
    let unknown = counted.iter().map(|(faults, one)| faults * (1.0 / one.known - 1.0)).fold(0.0, f64::max);
    let all = (known + unknown).max(f64::MIN_POSITIVE);
    let mut parts: Vec<(f64, Owner)> = counted
        .iter()
        .flat_map(|(faults, one)| one.owners.iter().map(move |o| (o.share.point * faults / all, o.owner)))
        .collect();
    parts.sort_by(|a, b| b.0.total_cmp(&a.0));
    page.section("PAGE FAULTS", "owner of the memory; share of the number of faults, not of CPU time");
    fault_line(page, &title, parts, unknown / all);
}

fn fault_line(page: &mut Page, title: &str, parts: Vec<(f64, Owner)>, unknown: f64) {
    let parts: Vec<String> = parts
        .into_iter()
        .chain([(unknown, Owner::Unknown)])
        .filter(|(part, _)| *part >= 0.005)
        .map(|(part, owner)| format!("{:.0} % {}", part * 100.0, owner.title()))
        .collect();
    let lead = left(&format!("  {title}"), 27);
    page.hang(&lead, Ink::Plain, 27, &parts.join(", "), Ink::Plain);
}

fn costly_wait(line: &WaitLine, bill: &Bill, verdict: &Verdict) -> bool {
    let Ok(time) = &line.thread_s else { return false };
    let of_wall = verdict.walls.iter().any(|&w| w.waits().contains(&line.class));
    let waits_for_work = matches!(line.class, WaitClass::Idle | WaitClass::Other);
    let costly = !waits_for_work && time.point >= COSTLY * bill.rates.thread_s;
    !line.sites.is_empty() && (of_wall || costly)
}

fn site_lines(page: &mut Page, title: &str, sites: &[Site], limit: usize) {
    // On a narrow page the title has its own line.
    let column = if page.width >= 76 { 36 } else { 4 };
    let mut lead = left(&format!("  {}", elide_end(title, column.max(page.width / 2) - 3)), column);
    if column == 4 {
        page.line(&lead);
        lead = " ".repeat(column);
    }
    for site in sites.iter().take(limit).filter(|s| s.share >= SITE_FLOOR) {
        let share = format!("{} ", right(&format!("{:.0} %", site.share * 100.0), 5));
        let room = page.width - column - columns(&share);
        let line = format!("{lead}{share}{}", elide_end(&site_text(site, room), room));
        page.line(&line);
        lead = " ".repeat(column);
    }
}

/// Removes the argument list of a C++ or Rust function: it is long, and the name is clear without it.
fn without_arguments(name: &str) -> &str {
    let Some(end) = name.rfind(')') else { return name };
    // Only qualifiers may follow the list: `f(int) const`, but not `f(int)::{lambda}`.
    if name[end..].contains(':') {
        return name;
    }
    let mut depth = 0;
    for (at, c) in name[..=end].char_indices().rev() {
        match c {
            ')' => depth += 1,
            '(' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            let head = name[..at].trim_end();
            return if head.is_empty() || head.ends_with("operator") { name } else { head };
        }
    }
    name
}

fn site_text(site: &Site, room: usize) -> String {
    let function = terminal(without_arguments(&site.function));
    let mut text = match &site.python {
        // Users know the Python function, not the C function below it.
        Some(python) => {
            let python = elide_middle(&terminal(python), room);
            match format!("{python}  [{function}]") {
                both if columns(&both) <= room && !function.starts_with('(') => both,
                _ => python,
            }
        }
        None => {
            let module = elide_end(&terminal(basename(&site.module)), 22.min(room / 3));
            let rest = room.saturating_sub(columns(&module) + 2);
            format!("{}  {module}", elide_middle(&function, rest))
        }
    };
    // The functions that it called, such as `memset` or `free`, if they fit.
    let called: Vec<String> = site
        .path
        .iter()
        .take_while(|p| **p != site.function)
        .filter(|p| columns(p) <= 24 && !p.starts_with('('))
        .map(|p| terminal(p))
        .collect();
    let via = format!("  via {}", called.join(" ← "));
    if !called.is_empty() && columns(&text) + columns(&via) <= room {
        text.push_str(&via);
    }
    text
}

fn remedies(page: &mut Page, verdict: &Verdict) {
    if verdict.remedies.is_empty() {
        return;
    }
    page.section("REMEDIES", "try them in this order; gains are predictions");
    for (nth, remedy) in verdict.remedies.iter().take(REMEDIES_SHOWN).enumerate() {
        let entry = remedies::find(&remedy.remedy);
        let lead = format!("  {}. ", nth + 1);
        let facts = format!("{} · {}", gain(remedy, entry), restart(remedy.restart, entry));
        let title = terminal(&remedy.title);
        if columns(&lead) + columns(&title) + 2 + columns(&facts) <= page.width {
            let gap = page.width - columns(&lead) - columns(&title) - columns(&facts);
            let title = page.paint(Ink::Heading, &title);
            page.line(&format!("{lead}{title}{}{facts}", " ".repeat(gap)));
        } else {
            page.hang(&lead, Ink::Plain, 5, &remedy.title, Ink::Heading);
            page.wrapped(5, &facts, Ink::Plain);
        }
        if remedy.is_command {
            page.command(5, &remedy.how);
        } else {
            page.wrapped(5, &remedy.how.command, Ink::Plain);
        }
        let rows = [
            ("why", &remedy.basis, nth == 0),
            ("risk", &remedy.backfires, true),
            ("undo", &remedy.undo, nth == 0),
        ];
        for (label, text, shown) in rows {
            if shown && !text.is_empty() {
                page.hang(&format!("     {label}"), Ink::Faint, 12, text, Ink::Plain);
            }
        }
    }
    let rest: Vec<String> = verdict
        .remedies
        .iter()
        .skip(REMEDIES_SHOWN)
        .map(|r| format!("{} ({})", r.title, gain(r, remedies::find(&r.remedy))))
        .collect();
    if !rest.is_empty() {
        page.wrapped(2, &format!("Then try: {}", rest.join("; ")), Ink::Faint);
    }
}

/// What the target needs so that the remedy takes effect.
pub fn restart(needed: bool, entry: Option<&Remedy>) -> &'static str {
    match entry.map(|remedy| remedy.kind) {
        _ if !needed => "no restart",
        Some(Kind::Advice) => "change and restart",
        _ => "restart",
    }
}

/// What it saves of CPU time, and what it returns of resident memory.
fn gain(remedy: &Prescription, entry: Option<&Remedy>) -> String {
    let Some(most) = remedy.returns_bytes else { return saved(remedy, entry) };
    let returns = format!("returns at most {}", bytes(most));
    match entry.map(|r| r.effect) {
        Some(Effect::NotCpu(_)) => returns,
        _ => format!("{returns}; {}", saved(remedy, entry)),
    }
}

fn saved(remedy: &Prescription, entry: Option<&Remedy>) -> String {
    let is_for = |retention: bool| {
        entry.is_some_and(|r| r.walls.iter().any(|wall| (*wall == Wall::Retention) == retention))
    };
    match (remedy.gain, remedy.at_most, entry.map(|r| r.effect)) {
        (Some(gain), ..) => {
            // `+ 0.0` turns −0 into 0.
            let whole = |share: f64| (share * 100.0).round() + 0.0;
            let (least, most) = (whole(gain.low), whole(gain.high));
            match (least < 0.0, most > 0.0) {
                (false, false) => "saves almost no CPU".to_string(),
                (false, true) => format!("saves {least:.0} to {most:.0} % of CPU"),
                (true, true) => format!("saves up to {most:.0} % of CPU, or costs {:.0} %", -least),
                (true, false) => format!("costs {:.0} to {:.0} % of CPU", 0.0 - most, 0.0 - least),
            }
        }
        (None, Some(most), _) if most < 0.005 && is_for(true) && remedy.returns_bytes.is_none() => {
            "saves memory, almost no CPU".to_string()
        }
        (None, Some(most), _) if most < 0.005 => "saves almost no CPU".to_string(),
        (None, Some(most), _) => format!("saves at most {:.0} % of CPU", most * 100.0),
        (None, None, Some(Effect::NotCpu(_))) => match (is_for(true), is_for(false)) {
            (true, false) => "saves memory, not CPU".to_string(),
            (true, true) => "saves time or memory, not CPU".to_string(),
            (false, _) => "saves time, not CPU".to_string(),
        },
        (None, None, effect) => match (entry.filter(|remedy| remedy.can_be_tried()), effect) {
            (Some(entry), _) => {
                format!("gain unknown: test it with `allocwall trial --with {}`", entry.key)
            }
            (None, Some(Effect::Unknown(why))) => format!("gain unknown: {why}"),
            _ => "gain unknown: its lines of the bill were not measured".to_string(),
        },
    }
}

fn own_cost(page: &mut Page, rec: &Recording, bill: &Bill) {
    let own = rec.meta.own_cpu_ns as f64 / 1e9;
    let of_target = if bill.cpu_s > 0.0 {
        format!(" ({:.1} % of the target's)", own / bill.cpu_s * 100.0)
    } else {
        String::new()
    };
    let lost = match rec.meta.lost_records {
        0 => String::new(),
        n => format!("; {} {} lost", thousands(n), plural(n, "record")),
    };
    page.wrapped(2, &format!("allocwall itself used {own:.2} CPU-s{of_target}{lost}."), Ink::Faint);
    let counting = rec.counting_s();
    if counting > 0.0 {
        let share = counting / (bill.cpu_s + counting) * 100.0;
        let text = format!(
            "Counting took {share:.1} % of the CPU time ({counting:.2} CPU-s); it is not on the bill."
        );
        page.wrapped(2, &text, Ink::Faint);
    }
}

/// The next commands. Commands that were already shown with a remedy or a wall are not repeated.
fn next(page: &mut Page, verdict: &Verdict, file: Option<&str>) {
    let shown = verdict.remedies.iter().take(REMEDIES_SHOWN).map(|r| &r.how.command);
    let walls = verdict.findings.iter().filter(|f| f.status == Status::Wall).map(|f| &f.show.command);
    let shown: Vec<&String> = shown.chain(walls).collect();
    let mut steps: Vec<ShellLine> =
        verdict.next.iter().filter(|n| !shown.contains(&&n.command)).cloned().collect();
    if let Some(file) = file {
        let command = format!("allocwall report {} --format flamegraph -o wall.svg", quoted(file));
        steps.push(ShellLine::from(command));
    }
    if steps.is_empty() {
        return;
    }
    page.blank();
    for (nth, step) in steps.iter().take(NEXT_SHOWN).enumerate() {
        page.command_after(if nth == 0 { "NEXT" } else { "" }, 6, step);
    }
}

fn reason_and_mend(absence: &Absence) -> String {
    match absence.advice() {
        Some(advice) => format!("{}. To measure it: {advice}", absence.detail.trim_end_matches('.')),
        None => absence.detail.clone(),
    }
}

fn percents(share: Interval) -> String {
    format!("{:.1} to {:.1} %", share.low * 100.0, share.high * 100.0)
}

fn range(value: Interval, decimals: usize) -> String {
    if value.low == value.high {
        return "exact".to_string();
    }
    format!("{:.decimals$} to {:.decimals$}", value.low, value.high)
}

/// A fixed-point number of `decimals` places.
fn decimal(units: u64, decimals: u32) -> String {
    let base = 10u64.pow(decimals);
    format!("{}.{:0width$}", units / base, units % base, width = decimals as usize)
}

pub fn bytes(n: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match UNITS.iter().find(|(_, size)| n >= *size) {
        Some((unit, size)) => format!("{:.1} {unit}", n as f64 / *size as f64),
        None => format!("{n} B"),
    }
}

fn basename(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::super::sketches::{self, Case};
    use super::*;
    use allocwall_diagnose::bill::OwnerShare;
    use allocwall_model::recording::{CpuSample, Module, Probe};
    use allocwall_model::resident::{GroupMemory, Split, TargetMemory};
    use proptest::prelude::*;

    fn on_one_line(text: &str) -> String {
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    fn printed(case: &Case, width: usize) -> String {
        diagnosis(
            &case.rec,
            &case.bill,
            &case.verdict,
            Some("/state/42.allocwall"),
            Style { color: false, width },
        )
    }

    #[test]
    fn reports_read_as_they_were_approved() {
        for case in sketches::all() {
            insta::assert_snapshot!(case.name, printed(&case, 100));
        }
        insta::assert_snapshot!("first_touch_narrow", printed(&sketches::first_touch(), 52));
    }

    #[test]
    fn colour_adds_nothing_but_colour() {
        for case in sketches::all() {
            let color = diagnosis(
                &case.rec,
                &case.bill,
                &case.verdict,
                Some("/state/42.allocwall"),
                Style { color: true, width: 100 },
            );
            assert!(color.contains("\x1b["));
            let mut stripped = String::new();
            let mut rest = color.as_str();
            while let Some(at) = rest.find("\x1b[") {
                stripped.push_str(&rest[..at]);
                rest = &rest[at + rest[at..].find('m').expect("SGR ends in m") + 1..];
            }
            stripped.push_str(rest);
            let lines = |s: &str| s.lines().map(|l| l.trim_end().to_string()).collect::<Vec<_>>();
            assert_eq!(lines(&stripped), lines(&printed(&case, 100)));
        }
    }

    /// Sum of the figures in the column, read back from the printed report.
    fn printed_sum(page: &str) -> (f64, f64) {
        let bill = page.split("BILL").nth(1).unwrap().split("WAITS").next().unwrap();
        let share = |line: &str| -> Option<f64> {
            let before = line.split(" %").next()?;
            before.split_whitespace().last()?.parse().ok()
        };
        let rows: Vec<&str> =
            bill.lines().skip(1).take_while(|l| !l.trim_start().starts_with("total")).collect();
        let total = bill.lines().find(|l| l.trim_start().starts_with("total")).unwrap();
        // The share comes after the agreement with the kernel, which is a percentage too.
        let total = total.split(')').next_back().unwrap();
        (rows.iter().filter_map(|l| share(l)).sum(), share(total).unwrap())
    }

    #[test]
    fn counted_faults_print_with_their_number_and_only_if_they_are_many() {
        let counted = |rate: f64, samples: u64| {
            let mut case = sketches::not_root();
            let one = |wall, owner, faults| Faulted {
                wall,
                basis: Basis::Number { faults },
                samples,
                known: faults as f64 / (faults as f64 + 1_000.0),
                owners: vec![OwnerShare { owner, share: Interval::exact(1.0) }],
            };
            let touches = one(Wall::FirstTouch, Owner::Arena, 6_000);
            case.bill.faulted = vec![touches, one(Wall::FileFault, Owner::File, 3_000)];
            case.bill.rates.minor_faults = Ok(rate);
            (case.bill.window_s, case.bill.cpu_s) = (10.0, 10.0);
            printed(&case, 100)
        };
        let page = counted(200_000.0, 500);
        let line = page.lines().find(|line| line.contains("200,000 a second")).expect(&page);
        assert!(line.ends_with("60 % malloc's arenas of threads, 30 % files, 10 % unknown"), "{line}");
        assert!(page.contains("share of the number of faults"));
        for page in [counted(20_000.0, 500), counted(200_000.0, 50)] {
            assert!(!page.contains("PAGE FAULTS"), "{page}");
        }
    }

    #[test]
    fn first_touches_may_be_counted_beside_faults_that_are_sampled() {
        let page = |counted: bool| {
            let mut case = sketches::first_touch();
            let fork = Faulted { wall: Wall::Fork, ..case.bill.faulted[0].clone() };
            case.bill.faulted.push(fork);
            if counted {
                case.bill.faulted[0].basis = Basis::Number { faults: 9_000 };
                case.bill.rates.minor_faults = Ok(2_000_000.0);
            }
            printed(&case, 100)
        };
        let of_time = "share of the CPU time in these faults";
        let both = page(true);
        let (number, time) = both.split_once(of_time).expect(&both);
        assert!(
            number.contains("share of the number of faults") && number.contains("first touch   "),
            "{both}"
        );
        assert!(time.contains("fork and copy-on-write") && !time.contains("PAGE FAULTS"), "{both}");
        // The near twin: all are sampled.
        let sampled = page(false);
        assert!(!sampled.contains("share of the number of faults"), "{sampled}");
        assert_eq!(sampled.matches("PAGE FAULTS").count(), 1, "{sampled}");
    }

    #[test]
    fn unknown_owners_are_a_limit_if_they_are_many() {
        let limit = |known: f64, state: Option<ProbeState>| {
            let mut case = sketches::first_touch();
            case.bill.faulted[0].known = known;
            case.rec.probes.extend(state.map(|state| Probe::new(ProbeName::FaultOwners, state)));
            let page = printed(&case, 160);
            page.contains("owners of page faults (in part): the owner of 22 % of them is unknown")
        };
        assert!(limit(0.78, None) && limit(0.78, Some(ProbeState::Measured)));
        assert!(!limit(0.95, None));
        // It is said already.
        let why = Absence::new(Reason::TooCostly, "the owner of 22 of 100 sampled page faults is unknown");
        assert!(!limit(0.78, Some(ProbeState::Partial(why))));
    }

    #[test]
    fn thirds_still_print_to_a_hundred() {
        let mut case = sketches::nothing_found();
        for line in case.bill.on_cpu.as_mut().unwrap() {
            line.share = Interval::new(0.0, 1.0 / 13.0, 0.2);
        }
        let (sum, total) = printed_sum(&printed(&case, 100));
        assert!((sum - 100.0).abs() < 1e-9 && total == 100.0, "{sum} {total}");
    }

    #[test]
    fn hidden_kernel_lines_are_not_printed_as_zero() {
        let page = printed(&sketches::not_root(), 100);
        let zero = page.split("0.0 %: ").nth(1).unwrap().lines().next().unwrap();
        assert!(!zero.contains("fault path") && !zero.contains("zeroing"), "{zero}");
        assert!(page.contains("share unknown"));
        assert!(!printed(&sketches::nothing_found(), 100).contains("share unknown"));
    }

    #[test]
    fn a_bill_that_is_absent_says_why() {
        let mut case = sketches::not_root();
        case.bill.on_cpu = Err(Absence::new(allocwall_model::units::Reason::TooLittle, "12 samples")
            .mend("diagnose for longer: -d 60"));
        let page = printed(&case, 100);
        assert!(page.contains(": 12 samples.") && page.contains("diagnose for"), "{page}");
    }

    #[test]
    fn a_limit_that_hides_no_wall_names_what_its_probe_measures() {
        let mut case = sketches::nothing_found();
        case.verdict.findings.retain(|finding| finding.missing.is_none());
        let page = printed(&case, 100);
        assert!(page.contains("  1. cycles, dTLB and cache misses: no PMU: this hypervisor"), "{page}");
    }

    #[test]
    fn functions_are_printed_without_arguments() {
        for (name, short) in [
            ("v8::Json::Parse(v8::Isolate*, bool (*)(int))", "v8::Json::Parse"),
            ("a::(anonymous namespace)::f(int) const", "a::(anonymous namespace)::f"),
            ("operator()(int)", "operator()"),
            ("f(int)::{lambda()#1}::operator()", "f(int)::{lambda()#1}::operator()"),
            ("f(int)::{closure}", "f(int)::{closure}"),
            ("core::ops::FnOnce::call_once", "core::ops::FnOnce::call_once"),
            ("(no symbol)", "(no symbol)"),
            ("odd)", "odd)"),
            ("", ""),
        ] {
            assert_eq!(without_arguments(name), short);
        }
    }

    #[test]
    fn the_header_shows_the_process_that_used_most_cpu() {
        let page = |busiest: i32| {
            let mut case = sketches::first_touch();
            let python = &mut case.rec.processes[0];
            python.ppid = 4200;
            let shell = Process {
                pid: 4200,
                ppid: 1,
                comm: "sh".into(),
                cmdline: ["sh", "-c", "python3 -m service"].map(String::from).to_vec(),
                runtime: Ok(Runtime::Native),
                ..python.clone()
            };
            case.rec.processes.insert(0, shell);
            for thread in &mut case.rec.threads {
                thread.pid = busiest;
            }
            printed(&case, 100)
        };
        let child = page(4242);
        assert!(child.starts_with("allocwall  python3 -m service --port 8080\n"), "{child}");
        let facts = "  pid 4242, busiest of 2 processes, started by pid 4200 (sh) · CPython 3.11.2";
        assert!(child.contains(facts), "{child}");
        let shell = page(4200);
        assert!(shell.starts_with("allocwall  sh -c python3 -m service\n"), "{shell}");
        assert!(shell.contains("  pid 4200 · glibc 2.36"), "{shell}");
        assert!(shell.contains("2 processes") && !shell.contains("busiest"), "{shell}");
    }

    #[test]
    fn generated_code_without_names_says_how_to_get_names() {
        let shown_inside = |pid_inside, runtime, role, share, ended| {
            let mut case = sketches::nothing_found();
            case.rec.processes[0].pid_inside = pid_inside;
            case.rec.processes[0].runtime = Ok(runtime);
            case.rec.processes[0].ended = ended;
            let path = "[generated code]".to_string();
            case.rec.modules = vec![Module {
                path: path.clone(),
                build_id: None,
                role,
                malloc_ranges: vec![],
                has_symbols: false,
            }];
            let line = &mut case.bill.on_cpu.as_mut().unwrap()[0];
            line.share = Interval::exact(share);
            line.sites = vec![Site {
                function: NO_SYMBOL.into(),
                module: path,
                python: None,
                share: 1.0,
                least: 0.99,
                path: vec![],
            }];
            on_one_line(&printed(&case, 100))
        };
        let shown = |runtime, role, share, ended| shown_inside(None, runtime, role, share, ended);
        let page = |runtime, role, share| shown(runtime, role, share, false);
        let jvm = || Runtime::Jvm { version: None };
        assert!(page(jvm(), ModuleRole::Jit, 0.5).contains("jcmd 4242 Compiler.perfmap"));
        assert!(shown(jvm(), ModuleRole::Jit, 0.5, true).contains("jcmd PID Compiler.perfmap"));
        assert!(page(Runtime::Node { version: None }, ModuleRole::Jit, 0.5).contains("--perf-basic-prof"));
        assert!(!page(jvm(), ModuleRole::Jit, 0.05).contains("perfmap"));
        assert!(!page(jvm(), ModuleRole::Libc, 0.5).contains("perfmap"));
        assert!(!page(Runtime::Native, ModuleRole::Jit, 0.5).contains("perf-"));
        // The path is that of its own file system and PID namespace.
        let alive = page(jvm(), ModuleRole::Jit, 0.5);
        assert!(alive.contains("/proc/4242/root/tmp/perf-4242.map does not exist"), "{alive}");
        let ended = shown(jvm(), ModuleRole::Jit, 0.5, true);
        assert!(ended.contains("process 4242 wrote no /tmp/perf-4242.map"), "{ended}");
        let contained = shown_inside(Some(7), jvm(), ModuleRole::Jit, 0.5, false);
        assert!(contained.contains("/proc/4242/root/tmp/perf-7.map does not exist"), "{contained}");
        assert!(contained.contains("jcmd 4242 Compiler.perfmap"), "{contained}");
    }

    #[test]
    fn thin_unwinding_is_a_limit() {
        // `cut` of a hundred stacks end after so many frames.
        let page = |cut: u64, frames: usize| {
            let mut case = sketches::nothing_found();
            let sample = case.rec.samples[0];
            let (whole, thin) = (Some(1), Some(3));
            case.rec.stacks[3].frames = vec![3; frames];
            case.rec.samples =
                (0..100).map(|n| CpuSample { user: if n < cut { thin } else { whole }, ..sample }).collect();
            printed(&case, 300)
        };
        let thin = page(30, 2);
        assert!(
            thin.contains("callers of 30 % of the samples are unknown, most often in python3.11"),
            "{thin}"
        );
        assert!(thin.contains("-fno-omit-frame-pointer"), "{thin}");
        assert!(!page(5, 2).contains("callers of"));
        // A stack that is longer than its copy is no fault of the program's tables.
        assert!(!page(30, 60).contains("callers of"));
    }

    #[test]
    fn interpreted_time_without_python_functions_is_a_limit() {
        let page = |python: Option<&str>, probe: Option<ProbeState>| {
            let mut case = sketches::nothing_found();
            case.rec.probes.extend(probe.map(|state| Probe::new(ProbeName::PythonStacks, state)));
            case.bill.on_cpu.as_mut().unwrap()[0].sites = vec![Site {
                function: "dict_new".into(),
                module: "/usr/bin/python3.11".into(),
                python: python.map(String::from),
                share: 1.0,
                least: 0.99,
                path: vec![],
            }];
            printed(&case, 300)
        };
        const FEW: &str = "too few Python stacks";
        assert!(page(None, None).contains(FEW));
        assert!(!page(Some("handle (a.py:1)"), None).contains(FEW));
        // The reason why they could not be read stands for itself.
        let absence = Absence::new(Reason::NotPermitted, "not readable");
        let unread = page(None, Some(ProbeState::Absent(absence)));
        assert!(!unread.contains(FEW) && unread.contains("Python function names: not readable"), "{unread}");
    }

    fn account(pid: i32) -> RuntimeAccount {
        let sampled = Interval::new(1.15e9, 1.17e9, 1.19e9);
        RuntimeAccount {
            pid,
            method: "the collector's flag".into(),
            over_ns: 2_000_000_000,
            stopped_ns: Ok(Figure { value: sampled, sampled: true }),
            collections: Ok(2468),
            collector_cpu_ns: Ok(Figure { value: Interval::new(1e9, 1.5e9, 2e9), sampled: false }),
            allocated_bytes: Ok(Figure { value: Interval::exact((300 << 20) as f64), sampled: false }),
        }
    }

    #[test]
    fn the_figures_of_a_runtime_have_their_origin() {
        let mut case = sketches::first_touch();
        let pid = case.rec.processes[0].pid;
        assert!(!printed(&case, 100).contains("RUNTIME"));
        case.rec.accounts = vec![account(pid)];
        let page = printed(&case, 100);
        let section = page.split("\n\n").find(|section| section.starts_with("RUNTIME")).unwrap();
        let expected = "\
RUNTIME  what CPython, the JVM or Go count themselves
  pid 4242 · CPython 3.11.2 · read for 2.0 s · the collector's flag
    threads stopped by the collector  58.5 % of the time (sampled; 95 % interval 57.5 to 59.5 %)
    collections                       1234.0 a second, 2,468 in total (from counters)
    CPU time of the collector         between 1.00 and 2.00 CPU-s (from counters)
    allocation                        150.0 MiB/s (from counters)";
        assert_eq!(section, expected);
        case.rec.accounts = vec![account(pid); 6];
        let more = printed(&case, 100);
        assert_eq!(more.matches("150.0 MiB/s").count(), RUNTIMES_SHOWN);
        assert!(more.contains("2 more accounts"), "{more}");
    }

    #[test]
    fn what_a_runtime_does_not_show_is_a_limit() {
        let mut case = sketches::first_touch();
        let pid = case.rec.processes[0].pid;
        let absence =
            Absence::new(Reason::Disabled, "no counters in this JVM").mend("start it with counters");
        let without = RuntimeAccount { allocated_bytes: Err(absence.clone()), ..account(pid) };
        case.rec.accounts = vec![without.clone()];
        let page = printed(&case, 100);
        assert!(page.contains("    not measured (see LIMITS): allocation\n"), "{page}");
        assert!(page.contains("allocation: no counters in this JVM → start it with counters"), "{page}");
        case.rec.accounts = vec![RuntimeAccount {
            stopped_ns: Err(absence.clone()),
            collections: Err(absence.clone()),
            collector_cpu_ns: Err(absence),
            ..without
        }];
        let page = printed(&case, 100);
        assert!(!page.contains("RUNTIME"), "{page}");
        assert!(on_one_line(&page).contains("stopped by the collector, collections, CPU time"), "{page}");
        case.rec.processes[0].runtime = Ok(Runtime::Node { version: None });
        let page = printed(&case, 100);
        assert!(page.contains("pauses and allocation rate of V8: not readable from outside"), "{page}");
    }

    #[test]
    fn resident_memory_is_a_section_or_a_limit() {
        let mut case = sketches::first_touch();
        // A sketch has no memory: that is no limit of a run.
        assert!(!printed(&case, 100).contains("MEMORY"));
        assert!(!printed(&case, 100).contains("resident memory by owner"));
        case.rec.resident =
            Ok(TargetMemory { bills: vec![memory_text::tests::bill()], others: 0, unread: None });
        let page = printed(&case, 100);
        let sections: Vec<&str> = page.split("\n\n").collect();
        let at = |title: &str| sections.iter().position(|section| section.starts_with(title)).expect(title);
        assert_eq!(at("MEMORY"), at("WAITS") + 1, "{page}");
        assert!(sections[at("MEMORY")].contains("main heap (brk)"), "{page}");
        case.rec.resident = Err(Absence::new(Reason::TooCostly, "no time").mend("read it alone"));
        let page = printed(&case, 100);
        assert!(!page.contains("MEMORY"), "{page}");
        assert!(page.contains("resident memory by owner: no time → read it alone"), "{page}");
    }

    #[test]
    fn a_remedy_shows_what_it_returns() {
        let mut case = sketches::first_touch();
        let mut first = |key: &str, returns_bytes| {
            let remedy = &mut case.verdict.remedies[0];
            (remedy.remedy, remedy.gain, remedy.at_most) = (key.into(), None, None);
            remedy.returns_bytes = returns_bytes;
            let page = printed(&case, 100);
            let (_, remedies) = page.split_once("REMEDIES").expect("remedies");
            remedies.split_once(" · ").expect("the first one").0.to_owned()
        };
        let trim = "malloc-trim";
        assert!(first(trim, Some(5 << 20)).ends_with("returns at most 5.0 MiB"));
        assert!(first(trim, None).ends_with("saves memory, not CPU"));
        assert!(first("nice", None).ends_with("saves time, not CPU"));
        // Another allocator changes CPU time too.
        let swap = first("jemalloc", Some(5 << 20));
        let test = "returns at most 5.0 MiB; gain unknown: test it with `allocwall trial --with jemalloc`";
        assert!(swap.ends_with(test), "{swap}");
    }

    #[test]
    fn a_saving_of_nothing_is_one_of_memory_only_where_memory_is_the_wall() {
        let mut remedy = sketches::first_touch().verdict.remedies.swap_remove(0);
        (remedy.gain, remedy.at_most, remedy.returns_bytes) = (None, Some(0.001), None);
        let shown = |remedy: &Prescription, key| saved(remedy, remedies::find(key));
        assert_eq!(shown(&remedy, "jemalloc-decay"), "saves memory, almost no CPU");
        assert_eq!(shown(&remedy, "thp-always"), "saves almost no CPU");
        remedy.gain = Some(Interval::new(-0.001, 0.001, 0.002));
        assert_eq!(shown(&remedy, "thp-always"), "saves almost no CPU");
        remedy.gain = Some(Interval::new(0.0, 0.01, 0.02));
        assert_eq!(shown(&remedy, "thp-always"), "saves 0 to 2 % of CPU");
    }

    #[test]
    fn the_columns_of_the_ladder_do_not_depend_on_the_wall() {
        let mut case = sketches::first_touch();
        case.verdict.findings[0].wall = Wall::Fork;
        let page = printed(&case, 100);
        let ladder = page.split("\n\n").find(|section| section.starts_with("LADDER")).expect("a ladder");
        let at: Vec<usize> = ladder.lines().filter_map(|line| line.find("ruled out")).collect();
        assert!(at.len() > 3 && at.iter().all(|column| *column == at[0]), "{ladder}");
    }

    #[test]
    fn hostile_names_reach_no_terminal() {
        let mut case = sketches::first_touch();
        hostile(&mut case, "x\u{1b}[2J\u{202e}\n\u{9b}31m");
        let page = printed(&case, 100);
        assert!(page.chars().all(|c| c == '\n' || !c.is_control()), "{page:?}");
        assert!(!page.contains('\u{202e}'));
        assert!(page.contains("\\u{1b}[2J"));
    }

    /// Puts `name` in every place where a name from outside can be.
    fn hostile(case: &mut Case, name: &str) {
        let process = &mut case.rec.processes[0];
        process.cmdline = vec![name.into(), name.into()];
        process.libc = Ok(Libc::Other { name: name.into() });
        process.allocator.as_mut().unwrap().kind = AllocatorKind::Other;
        process.allocator.as_mut().unwrap().module = name.into();
        process.runtime = Ok(Runtime::Jvm { version: Some(name.into()) });
        case.rec.host.kernel_release = name.into();
        case.rec.host.hypervisor = Some(name.into());
        case.rec.probes[0].what = name.into();
        case.rec.probes[0].state = ProbeState::Partial(
            Absence::new(allocwall_model::units::Reason::NotFound, name).mend(name.to_owned()),
        );
        case.rec.meta.ended = Ended::TargetExited { status: Some(name.into()) };
        for line in case.bill.on_cpu.as_mut().unwrap() {
            line.method = name.into();
            line.notes = vec![name.into()];
            for site in &mut line.sites {
                site.function = name.into();
                site.module = name.into();
                site.python = site.python.as_ref().map(|_| name.into());
                site.path = vec![name.into(), name.into()];
            }
        }
        case.verdict.sentence = name.into();
        for finding in &mut case.verdict.findings {
            finding.because = name.into();
            finding.evidence = vec![name.into()];
            finding.show = name.into();
        }
        for remedy in &mut case.verdict.remedies {
            remedy.title = name.into();
            remedy.how.command = name.into();
            remedy.backfires = name.into();
        }
        case.verdict.next = vec![name.into()];
        let mut memory = memory_text::tests::bill();
        (memory.comm, memory.cmdline, memory.notes) = (name.into(), vec![name.into()], vec![name.into()]);
        memory.group = Ok(GroupMemory { path: name.into(), kernel_bytes: 1, page_cache_bytes: 2 });
        for row in &mut memory.rows {
            row.split = row.split.clone().map(|split| Split { method: name.into(), ..split });
        }
        case.rec.resident = Ok(TargetMemory { bills: vec![memory], others: 7, unread: None });
        case.rec.accounts = vec![RuntimeAccount {
            method: name.into(),
            allocated_bytes: Err(Absence::new(Reason::NotSupported, name)),
            ..account(case.rec.processes[0].pid)
        }];
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn no_line_is_wider_than_the_page(name in "\\PC{0,60}|[a-z]{1,300}|[\\x00-\\x1f a]{0,30}", width in 40usize..140, color: bool) {
            for mut case in sketches::all() {
                hostile(&mut case, &name);
                let page = diagnosis(&case.rec, &case.bill, &case.verdict, Some("/state/42.allocwall"), Style { color: false, width });
                for line in page.lines() {
                    prop_assert!(columns(line) <= width, "{} columns of {width}: {line:?}", columns(line));
                }
                if color {
                    diagnosis(&case.rec, &case.bill, &case.verdict, Some("/state/42.allocwall"), Style { color: true, width });
                }
            }
        }

        #[test]
        fn printed_shares_sum_to_a_hundred(parts in prop::collection::vec(0.0..1.0f64, 13)) {
            let whole: f64 = parts.iter().sum();
            prop_assume!(whole > 0.1);
            let mut case = sketches::first_touch();
            for (line, part) in case.bill.on_cpu.as_mut().unwrap().iter_mut().zip(&parts) {
                line.share = Interval::exact(part / whole);
            }
            let (sum, total) = printed_sum(&printed(&case, 100));
            prop_assert!((sum - 100.0).abs() < 1e-6 && total == 100.0, "{sum} {total}");
        }
    }
}
