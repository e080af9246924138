//! Which functions caused the costs, and whose memory the page faults are about.

use super::super::escape::terminal;
use super::super::layout::{columns, elide_end, elide_middle, left, right};
use super::ladder::COLUMN;
use super::page::{Ink, Page, basename};
use allocwall_diagnose::Verdict;
use allocwall_diagnose::bill::{Basis, Bill, CpuLine, Faulted, Site, WaitLine};
use allocwall_diagnose::remedies::treated;
use allocwall_model::catalogue::cost::{CostClass, WaitClass};
use allocwall_model::catalogue::owners::Owner;
use allocwall_model::catalogue::thresholds::MIN_SAMPLES;
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::units::thousands;

/// Call sites are shown for lines of at least this share of the target's CPU time (for waits: of its thread time).
/// Lines of CPU time that do not belong to a wall need twice that.
const COSTLY: f64 = 0.05;
/// Call sites below this share of their line are not shown.
const SITE_FLOOR: f64 = 0.05;
/// Call sites of a wall in the brief report.
const BRIEFLY: usize = 2;

/// The functions that are shown of a line of the bill.
pub(crate) struct Shown<'b> {
    pub title: &'static str,
    pub sites: Vec<&'b Site>,
}

impl<'b> Shown<'b> {
    fn of(title: &'static str, sites: &'b [Site], limit: usize) -> Shown<'b> {
        Shown { title, sites: sites.iter().take(limit).filter(|s| s.share >= SITE_FLOOR).collect() }
    }
}

pub(super) fn all(page: &mut Page, bill: &Bill, verdict: &Verdict) {
    let lines = shown(bill, verdict);
    if lines.is_empty() {
        return;
    }
    page.section("CALL SITES", "functions that caused each large line, as a share of that line");
    for line in lines {
        site_lines(page, line.title, &line.sites);
    }
}

/// Large lines with their functions: those of walls first, waits last. Empty if the sentence says as much.
pub(crate) fn shown<'b>(bill: &'b Bill, verdict: &Verdict) -> Vec<Shown<'b>> {
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
    if waits.is_empty() && repeats_the_sentence {
        return vec![];
    }
    let limit = |class: CostClass| if of_wall(class) { 3 } else { 1 };
    let lines = lines.iter().map(|line| Shown::of(line.class.title(), &line.sites, limit(line.class)));
    lines.chain(waits.iter().map(|line| Shown::of(line.class.title(), &line.sites, 2))).collect()
}

/// Below a wall of the brief report: the functions that have most of its largest line, and whose memory its page faults are
/// about.
pub(super) fn of_wall(page: &mut Page, bill: &Bill, verdict: &Verdict, wall: Wall) {
    let lines = bill.on_cpu.iter().flatten().filter(|line| wall.lines().contains(&line.class));
    let line = lines
        .filter(|line| line.share.point >= COSTLY)
        .max_by(|a, b| a.share.point.total_cmp(&b.share.point));
    let wait = bill
        .off_cpu
        .iter()
        .find(|line| wall.waits().contains(&line.class) && costly_wait(line, bill, verdict));
    let sites = line.map(|line| &line.sites).or(wait.map(|line| &line.sites));
    let large = sites.into_iter().flatten().take(BRIEFLY).filter(|site| site.share >= SITE_FLOOR);
    for (nth, site) in large.enumerate() {
        let lead = left(&format!("{}{}", " ".repeat(COLUMN), if nth == 0 { "from" } else { "" }), COLUMN + 6);
        let lead = format!("{lead}{} ", right(&format!("{:.0} %", site.share * 100.0), 5));
        let room = page.width.saturating_sub(columns(&lead));
        let line = format!("{lead}{}", elide_end(&site_text(site, room), room));
        page.line(&line);
    }
    for faulted in costly_faults(bill).into_iter().filter(|faulted| faulted.wall == wall) {
        let parts = faulted.owners.iter().map(|one| (one.share.point * faulted.known, one.owner));
        let of_what = match faulted.basis {
            Basis::CpuTime => "",
            Basis::Number { .. } => " (of the number of faults)",
        };
        let text = format!("memory: {}{of_what}", owners(parts.collect(), 1.0 - faulted.known));
        page.wrapped(COLUMN, &text, Ink::Plain);
    }
}

/// Page faults that cost much, by wall.
pub(super) fn costly_faults(bill: &Bill) -> Vec<&Faulted> {
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
pub(crate) fn faulted(page: &mut Page, bill: &Bill) {
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
    let lead = left(&format!("  {title}"), 27);
    page.hang(&lead, Ink::Plain, 27, &owners(parts, unknown), Ink::Plain);
}

/// `82 % malloc's mapped blocks, 12 % main heap (brk), 6 % unknown`.
fn owners(parts: Vec<(f64, Owner)>, unknown: f64) -> String {
    let parts: Vec<String> = parts
        .into_iter()
        .chain([(unknown, Owner::Unknown)])
        .filter(|(part, _)| *part >= 0.005)
        .map(|(part, owner)| format!("{:.0} % {}", part * 100.0, owner.title()))
        .collect();
    parts.join(", ")
}

fn costly_wait(line: &WaitLine, bill: &Bill, verdict: &Verdict) -> bool {
    let Ok(time) = &line.thread_s else { return false };
    let of_wall = verdict.walls.iter().any(|&w| w.waits().contains(&line.class));
    let waits_for_work = matches!(line.class, WaitClass::Idle | WaitClass::Other);
    let costly = !waits_for_work && time.point >= COSTLY * bill.rates.thread_s;
    !line.sites.is_empty() && (of_wall || costly)
}

fn site_lines(page: &mut Page, title: &str, sites: &[&Site]) {
    // On a narrow page the title has its own line.
    let column = if page.width >= 76 { 36 } else { 4 };
    let mut lead = left(&format!("  {}", elide_end(title, column.max(page.width / 2) - 3)), column);
    if column == 4 {
        page.line(&lead);
        lead = " ".repeat(column);
    }
    for site in sites {
        let share = format!("{} ", right(&format!("{:.0} %", site.share * 100.0), 5));
        let room = page.width - column - columns(&share);
        let line = format!("{lead}{share}{}", elide_end(&site_text(site, room), room));
        page.line(&line);
        lead = " ".repeat(column);
    }
}

/// Removes the argument list of a C++ or Rust function: it is long, and the name is clear without it.
pub(crate) fn without_arguments(name: &str) -> &str {
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

pub(crate) fn site_text(site: &Site, room: usize) -> String {
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
