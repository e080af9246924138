//! The bill of CPU time, and the waits.

use super::super::layout::{apportion, columns, elide_end, left, right};
use super::missing::reason_and_mend;
use super::page::{Ink, Page, bar, decimal, percents, range};
use allocwall_diagnose::Verdict;
use allocwall_diagnose::bill::{Bill, CpuLine};
use allocwall_diagnose::remedies::treated;
use allocwall_model::catalogue::cost::{CostClass, WaitClass};
use allocwall_model::recording::Recording;
use allocwall_model::units::Absence;

/// If the samples and the kernel's account of CPU time differ by more, the report warns.
const TOLERATED_DISAGREEMENT: f64 = 0.03;

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

    /// `ink` is that of the bar.
    fn row(&self, page: &Page, title: &str, bar: (&str, Ink), cells: [&str; 3]) -> String {
        let [share, seconds, interval] = cells;
        let mut line = format!("  {}", left(&elide_end(title, self.title), self.title));
        if self.bar > 0 {
            let (bar, ink) = bar;
            let blank = " ".repeat(self.bar.saturating_sub(columns(bar)));
            line.push_str(&format!("  {}{blank}", page.paint(ink, bar)));
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

    /// The heading of a table, with the heads of its columns in the same line.
    fn heading(&self, page: &mut Page, title: &str, aside: &str, heads: [&str; 3]) {
        page.blank();
        let [share, seconds, interval] = heads;
        let whole = self.wide_row(title, &format!("{title}  {aside}"), share, seconds, interval);
        let rest = whole.strip_prefix(title).unwrap_or_default();
        let line = format!("{}{}", page.paint(Ink::Heading, title), page.paint(Ink::Faint, rest));
        page.line(&line);
    }
}

/// Where the CPU time went, line by line.
pub(super) fn on_cpu(page: &mut Page, rec: &Recording, bill: &Bill) {
    let Some(cpu) = Cpu::of(page, bill) else { return };
    for nth in 0..cpu.lines.len() {
        cpu.row(page, nth);
    }
    let covered = cpu.total(page);
    zero_lines(page, cpu.lines, &cpu.tenths);
    caveats(page, cpu.lines.iter());
    disagreement(page, rec, covered);
}

/// The lines that print as this share or more, and those of walls. The others are one row, so that the rows still sum to the
/// whole.
const LARGE_TENTHS: u64 = 10;

/// The bill in short: its large lines, and the waits in one line.
pub(super) fn brief(page: &mut Page, rec: &Recording, bill: &Bill, verdict: &Verdict) {
    if let Some(cpu) = Cpu::of(page, bill) {
        let treated = treated(&verdict.findings);
        let of_wall = |class: CostClass| treated.iter().any(|wall| wall.lines().contains(&class));
        let is_small = |nth: &usize| {
            let tenths = cpu.tenths[*nth];
            tenths > 0 && tenths < LARGE_TENTHS && !of_wall(cpu.lines[*nth].class)
        };
        let small: Vec<usize> = (0..cpu.lines.len()).filter(is_small).collect();
        // One line takes as much room as the row that stands for it.
        let folded = if small.len() > 1 { &small[..] } else { &[] };
        let rows: Vec<usize> =
            (0..cpu.lines.len()).filter(|nth| cpu.tenths[*nth] > 0 && !folded.contains(nth)).collect();
        for nth in &rows {
            cpu.row(page, *nth);
        }
        cpu.rest(page, folded);
        let covered = cpu.total(page);
        caveats(page, rows.iter().map(|nth| &cpu.lines[*nth]));
        disagreement(page, rec, covered);
    }
    waits(page, bill);
}

/// The waits that are a hundredth of the thread time or more, in one line. What was not measured is named at the end of the
/// report.
fn waits(page: &mut Page, bill: &Bill) {
    /// Less is zero with two digits.
    const LEAST_S: f64 = 0.005;
    let whole = bill.rates.thread_s;
    let known = bill.off_cpu.iter().filter_map(|line| Some((line.class, line.thread_s.as_ref().ok()?.point)));
    let mut known: Vec<(WaitClass, f64)> =
        known.filter(|(_, time)| *time >= (0.01 * whole).max(LEAST_S)).collect();
    known.sort_by(|a, b| b.1.total_cmp(&a.1));
    let part = |(class, time): &(WaitClass, f64)| match whole > 0.0 {
        true => format!("{} {:.1} %", class.short_title(), time / whole * 100.0),
        // The target ended before the times of its threads were read.
        false => format!("{} {time:.2} s", class.short_title()),
    };
    let parts: Vec<String> = known.iter().map(part).collect();
    let text = match (parts.is_empty(), whole > 0.0) {
        (true, true) => format!("none of 1 % or more of {whole:.1} thread-seconds"),
        (true, false) => "none: the window has no time of threads".to_owned(),
        (false, true) => format!("{} of {whole:.1} thread-seconds", parts.join(" · ")),
        (false, false) => parts.join(" · "),
    };
    page.hang("WAITS", Ink::Heading, 9, &text, Ink::Plain);
}

/// Tenths of a percent and hundredths of a CPU-second of each line, rounded together: they sum to the whole.
pub(crate) fn printed(bill: &Bill, lines: &[CpuLine]) -> (Vec<u64>, Vec<u64>) {
    let shares: Vec<f64> = lines.iter().map(|l| l.share.point).collect();
    (apportion(&shares, 1000), apportion(&shares, (bill.cpu_s.max(0.0) * 100.0).round() as u64))
}

/// The part of the kernel's account that the samples cover.
pub(crate) fn covered(bill: &Bill) -> Option<f64> {
    (bill.cpu_s > 0.0).then(|| (bill.sampled_cpu_s + bill.switching_cpu_s) / bill.cpu_s)
}

/// Beside the sum, unless there is a warning instead.
pub(crate) fn agreement(covered: Option<f64>) -> Option<String> {
    let part = covered.filter(|part| (part - 1.0).abs() <= TOLERATED_DISAGREEMENT)?;
    Some(format!("samples agree with the kernel's accounting ({:.1} %)", part * 100.0))
}

/// The table of the lines of CPU time. What is printed sums to the whole.
struct Cpu<'b> {
    bill: &'b Bill,
    lines: &'b [CpuLine],
    table: Columns,
    tenths: Vec<u64>,
    hundredths: Vec<u64>,
}

impl<'b> Cpu<'b> {
    /// Prints the heading; the reason if there are no lines.
    fn of(page: &mut Page, bill: &'b Bill) -> Option<Cpu<'b>> {
        const ASIDE: &str = "where the target's CPU time went";
        let lines = match &bill.on_cpu {
            Ok(lines) => lines,
            Err(absence) => {
                page.section("BILL", ASIDE);
                page.wrapped(2, &format!("Not measured: {}", reason_and_mend(absence)), Ink::Warn);
                return None;
            }
        };
        let (tenths, hundredths) = printed(bill, lines);
        let table = Columns::fit(page.width, Columns::TITLE);
        table.heading(page, "BILL", ASIDE, ["share", "CPU-s", "95 % interval"]);
        Some(Cpu { bill, lines, table, tenths, hundredths })
    }

    /// Nothing for a line that would print as 0.0 %.
    fn row(&self, page: &mut Page, nth: usize) {
        let (line, tenths) = (&self.lines[nth], self.tenths[nth]);
        if tenths == 0 {
            return;
        }
        let cells =
            [&format!("{} %", decimal(tenths, 1)), &decimal(self.hundredths[nth], 2), &percents(line.share)];
        let bar = self.table.bar(line.share.point);
        let row = self.table.row(
            page,
            line.class.title(),
            (&bar, Ink::Cost(line.class)),
            cells.map(String::as_str),
        );
        page.line(&row);
    }

    /// One row for several lines.
    fn rest(&self, page: &mut Page, folded: &[usize]) {
        if folded.is_empty() {
            return;
        }
        let sum = |units: &[u64]| folded.iter().map(|nth| units[*nth]).sum();
        let tenths: u64 = sum(&self.tenths);
        let cells =
            [&format!("{} %", decimal(tenths, 1)), &decimal(sum(&self.hundredths), 2), &String::new()];
        let bar = self.table.bar(tenths as f64 / 1000.0);
        let title = format!("{} smaller lines", folded.len());
        let row = self.table.row(page, &title, (&bar, Ink::Plain), cells.map(String::as_str));
        page.line(&row);
    }

    /// Prints the sum. Returns the part of the kernel's account that the samples cover.
    fn total(&self, page: &mut Page) -> Option<f64> {
        let covered = covered(self.bill);
        let agreement = agreement(covered).map_or("  total".to_owned(), |text| format!("  total; {text}"));
        let total = self.table.wide_row(
            "  total",
            &agreement,
            &format!("{} %", decimal(self.tenths.iter().sum(), 1)),
            &decimal(self.hundredths.iter().sum(), 2),
            "",
        );
        let total = page.paint(Ink::Heading, &total);
        page.line(&total);
        covered
    }
}

/// Without kernel samples they cannot agree. A note of the line says so.
pub(crate) fn disagreement(page: &mut Page, rec: &Recording, covered: Option<f64>) {
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
pub(crate) fn zero_lines(page: &mut Page, lines: &[CpuLine], tenths: &[u64]) {
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
pub(crate) fn caveats<'b>(page: &mut Page, lines: impl Iterator<Item = &'b CpuLine>) {
    let mut notes: Vec<(&str, Vec<&str>)> = vec![];
    for line in lines.filter(|line| shows_notes(line)) {
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

pub(super) fn off_cpu(page: &mut Page, bill: &Bill) {
    let whole = bill.rates.thread_s;
    let table = Columns::fit(page.width, Columns::TITLE);
    let aside = format!("of {whole:.1} thread-seconds in total");
    table.heading(page, "WAITS", &aside, ["share", "thread-s", "95 % interval"]);
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
                let cells =
                    [&format!("{:.1} %", share * 100.0), &format!("{:.2}", time.point), &range(*time, 2)];
                let bar = table.bar(share);
                let row = table.row(page, title, (&bar, Ink::Plain), cells.map(String::as_str));
                page.line(&row);
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
