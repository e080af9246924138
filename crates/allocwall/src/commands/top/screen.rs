//! The screen as lines of text, from the state alone. Nothing is wider than the terminal, and nothing is longer.

use super::budget;
use super::state::{Halt, Row, Seen, State};
use allocwall_diagnose::bill::{Basis, Bill};
use allocwall_diagnose::series::time;
use allocwall_model::catalogue::cost::CostClass;
use allocwall_model::resident::ResidentOwner;
use allocwall_model::units::{count, plural, thousands};
use allocwall_report::escape::terminal;
use allocwall_report::layout::{columns, elide_end, elide_middle, left, right, wrap};
use allocwall_report::text::{Ink, Page, Style, bar, bytes, command};
use std::time::Duration;

/// The smallest terminal that has room for the screen.
pub const LEAST: (usize, usize) = (44, 14);
/// Wider lines are hard to read.
const WIDEST: usize = 120;
/// A line of the bill, a wait or an owner with less than this is not a row of its own.
const LEAST_SHARE: f64 = 0.01;
/// Rows of the bill that come before those of other sections.
const FIRST_ROWS: usize = 3;
/// Columns of the words at the left that head a line.
const LEAD: usize = 9;

const KEYS: &str = "q quit · s save · r report · e explain · p pause · ↑↓ select · ? help";
const SHORT_KEYS: &str = "q quit  s save  r report  p pause  ? help";

pub struct Drawn {
    pub lines: Vec<String>,
    /// What can be selected, from the top.
    pub rows: Vec<Row>,
}

/// A screen of so many columns and rows.
pub fn draw(state: &State, (width, height): (usize, usize), color: bool) -> Drawn {
    if width < LEAST.0 || height < LEAST.1 {
        let text = format!("The terminal is too small: {} × {} is needed. q quits.", LEAST.0, LEAST.1);
        let lines = wrap(&text, width).into_iter().take(height).collect();
        return Drawn { lines, rows: vec![] };
    }
    let style = Style { color, width: width.min(WIDEST) };
    let keys = if columns(KEYS) <= style.width { KEYS } else { SHORT_KEYS };
    let mut footer = Page::new(style);
    footer.line(&footer.paint(Ink::Faint, keys));
    let Some(seen) = state.last() else {
        let text = match &state.halt {
            Some(halt) => told(halt),
            None => format!("Recording the first window of {}…", time(state.every().as_secs_f64())),
        };
        let mut page = Page::new(style);
        page.wrapped(0, &text, Ink::Plain);
        return Drawn {
            lines: page.out.lines().chain(footer.out.lines()).map(str::to_owned).collect(),
            rows: vec![],
        };
    };
    let small = height < 24;
    let mut foot = status(state, seen, style, small);
    foot.extend(footer.out.lines().map(str::to_owned));
    let mut drawn = Drawn { lines: head(state, seen, style, small), rows: vec![] };
    let room = height.saturating_sub(drawn.lines.len() + foot.len());
    body(state, seen, style, room, &mut drawn);
    drawn.lines.truncate(height - foot.len());
    drawn.lines.extend(foot);
    drawn
}

/// The newest window as a block of text with all rows, which ends with an empty line.
pub fn block(state: &State, style: Style) -> String {
    let Some(seen) = state.last() else { return String::new() };
    let style = Style { width: style.width.max(LEAST.0), ..style };
    let mut drawn = Drawn { lines: head(state, seen, style, false), rows: vec![] };
    body(state, seen, style, usize::MAX, &mut drawn);
    drawn.lines.extend(status(state, seen, style, false));
    format!("{}\n\n", drawn.lines.join("\n"))
}

/// The target, and the verdict.
fn head(state: &State, seen: &Seen, style: Style, small: bool) -> Vec<String> {
    let mut page = Page::new(style);
    let subject = state.subject.as_ref();
    let process = subject.and_then(|subject| subject.process.as_ref());
    let name = process.map_or("no process found".to_owned(), command);
    let title = format!("allocwall top  {}", elide_middle(&name, style.width - columns("allocwall top  ")));
    page.line(&page.paint(Ink::Heading, &title));
    let bill = &seen.bill;
    let processes = subject.map_or(0, |subject| subject.processes);
    let threads = bill.rates.threads_peak;
    let cpus = format!(
        "{:.2} of {} used",
        bill.cpu_s / bill.window_s.max(1e-9),
        count(subject.map_or(1, |subject| subject.online_cpus) as usize, "CPU")
    );
    let facts = [
        process.map(|process| format!("pid {}", process.pid)),
        (processes > 1).then(|| format!("{processes} processes")),
        Some(cpus),
        Some(format!("{threads} {}", plural(threads.into(), "thread"))),
        Some(format!("{} resident", bytes(bill.rates.resident_end))),
        Some(format!("window {}, {}", state.count, time(bill.window_s))),
    ];
    let facts: Vec<String> = facts.into_iter().flatten().collect();
    page.line(&format!("  {}", elide_end(&facts.join(" · "), style.width - 2)));
    let judged = state.judge();
    let ink = if judged.walls.is_empty() && seen.walls.is_empty() { Ink::Good } else { Ink::Bad };
    let mut lines: Vec<String> = page.out.lines().map(str::to_owned).collect();
    lines.extend(hanging("VERDICT", &judged.sentence, ink, if small { 2 } else { 3 }, style));
    lines
}

/// A text beside a word, in at most so many lines.
fn hanging(lead: &str, text: &str, ink: Ink, most: usize, style: Style) -> Vec<String> {
    let page = Page::new(style);
    let room = style.width - LEAD;
    let mut lines = wrap(&terminal(text), room);
    if lines.len() > most {
        let rest = lines.split_off(most - 1).join(" ");
        lines.push(elide_end(&rest, room));
    }
    let leads = std::iter::once(lead).chain(std::iter::repeat(""));
    let line = |(lead, text): (&str, String)| {
        format!("{}{}", page.paint(Ink::Heading, &left(lead, LEAD)), page.paint(ink, &text))
    };
    leads.zip(lines).map(line).collect()
}

/// What stands at the bottom: throttling, what is missing, the cost, and what the user was told.
fn status(state: &State, seen: &Seen, style: Style, small: bool) -> Vec<String> {
    let mut lines = Vec::new();
    let most = if small { 1 } else { 2 };
    let mut add = |lead: &str, text: &str, ink: Ink| lines.extend(hanging(lead, text, ink, most, style));
    if let Some(throttled) = seen.throttled {
        let quota = throttled
            .quota_cpus
            .map_or("quota of a group above".to_owned(), |cpus| format!("quota {cpus:.2} CPUs"));
        let text = format!("{} of {} periods throttled, {quota}", throttled.hit, throttled.periods);
        add("QUOTA", &text, if throttled.hit > 0 { Ink::Warn } else { Ink::Plain });
    }
    let subject = state.subject.as_ref();
    if let Some(limit) = subject.and_then(|subject| subject.limit.as_ref()) {
        add("LIMIT", &limit.with_advice(), Ink::Warn);
    }
    let cpus = subject.map_or(1, |subject| subject.online_cpus);
    let (own, limit) = (state.own().share(cpus) * 100.0, budget::MOST * 100.0);
    let machine = count(cpus as usize, "CPU");
    let mut cost = format!("allocwall uses {own:.2} % of the machine ({machine})");
    if seen.pause > Duration::ZERO {
        let pause = time(seen.pause.as_secs_f64());
        cost = match small {
            true => format!("{own:.2} % of {machine}; pause {pause} (limit {limit:.0} %)"),
            false => format!("{cost}; it pauses {pause} to stay at {limit:.0} %"),
        };
    }
    add("COST", &cost, Ink::Faint);
    match (&state.note, &state.halt) {
        (Some(note), _) => add("", note, Ink::Plain),
        (None, Some(halt)) => add("", &told(halt), Ink::Warn),
        (None, None) => {}
    }
    lines
}

fn told(halt: &Halt) -> String {
    match halt {
        Halt::Paused => "Paused. p goes on.".to_owned(),
        Halt::Ended => "The target has ended. This is its last window. q quits.".to_owned(),
        Halt::Failed(why) => format!("{why}. q quits."),
    }
}

/// One part of the screen: a line that says all in short, or a heading with rows.
struct Section {
    title: &'static str,
    /// Beside the heading.
    aside: String,
    /// What the cells of the rows are.
    heads: [String; 2],
    rows: Vec<Line>,
}

struct Line {
    /// None: it stands for several others.
    row: Option<Row>,
    title: String,
    /// Length of the bar, 0 to 1.
    part: f64,
    ink: Ink,
    cells: [String; 2],
}

/// Columns of a row. If the screen is too narrow, the bar is left out.
struct Table {
    title: usize,
    bar: usize,
}

impl Table {
    const TITLE: usize = 40;
    const CELL: usize = 11;

    fn fit(width: usize) -> Table {
        let room = width - 2 - 2 * Self::CELL;
        let title = room.min(Self::TITLE);
        let bar = room - title;
        Table { title, bar: if bar >= 12 { (bar - 2).min(30) } else { 0 } }
    }

    /// The rest of a row after its title.
    fn cells(&self, page: &Page, part: f64, ink: Ink, cells: &[String; 2]) -> String {
        let mut text = String::new();
        if self.bar > 0 {
            let bar = bar(part, self.bar);
            let blank = " ".repeat(self.bar - columns(&bar));
            text.push_str(&format!("  {}{blank}", page.paint(ink, &bar)));
        }
        cells.iter().for_each(|cell| text.push_str(&right(cell, Self::CELL)));
        text
    }
}

/// The sections, in so many lines.
fn body(state: &State, seen: &Seen, style: Style, room: usize, drawn: &mut Drawn) {
    let sections = [bill(state, seen), faults(&seen.bill), waits(&seen.bill), memory(state, seen)];
    let shown = share_out(
        room.saturating_sub(sections.len()),
        &sections.each_ref().map(|section| section.rows.len()),
    );
    let lines: usize = sections.len() + shown.iter().sum::<usize>();
    let spaced = lines + sections.len() <= room;
    let (page, table) = (Page::new(style), Table::fit(style.width));
    for (section, shown) in sections.iter().zip(shown) {
        if spaced {
            drawn.lines.push(String::new());
        }
        if shown == 0 {
            drawn.lines.extend(hanging(section.title, &section.in_short(), Ink::Plain, 1, style));
            continue;
        }
        drawn.lines.push(section.heading(&page, &table));
        for line in &section.rows[..shown] {
            let selected = line.row.is_some() && line.row == state.selected;
            let title = left(&elide_end(&line.title, table.title), table.title);
            let (mark, ink) = if selected { ("▸ ", Ink::Heading) } else { ("  ", Ink::Plain) };
            let rest = table.cells(&page, line.part, line.ink, &line.cells);
            drawn.lines.push(format!("{}{rest}", page.paint(ink, &format!("{mark}{title}"))));
            drawn.rows.extend(line.row);
        }
    }
}

/// How many rows each section shows: the first rows of the bill, then a row of each section in turn.
fn share_out<const N: usize>(mut room: usize, wanted: &[usize; N]) -> [usize; N] {
    let mut shown = [0; N];
    shown[0] = wanted[0].min(FIRST_ROWS).min(room);
    room -= shown[0];
    while room > 0 && shown.iter().zip(wanted).any(|(shown, wanted)| shown < wanted) {
        for (shown, wanted) in shown.iter_mut().zip(wanted) {
            if room > 0 && *shown < *wanted {
                *shown += 1;
                room -= 1;
            }
        }
    }
    shown
}

impl Section {
    fn heading(&self, page: &Page, table: &Table) -> String {
        let [one, two] = self.heads.each_ref().map(|head| right(head, Table::CELL));
        let bar = if table.bar > 0 { table.bar + 2 } else { 0 };
        let room = 2 + table.title + bar - columns(self.title) - 2;
        let aside = left(&elide_end(&self.aside, room), room);
        format!(
            "{}  {}",
            page.paint(Ink::Heading, self.title),
            page.paint(Ink::Faint, &format!("{aside}{one}{two}"))
        )
    }

    fn in_short(&self) -> String {
        let parts = self.rows.iter().map(|line| format!("{} {}", line.title, line.cells[0]));
        let parts: Vec<String> =
            std::iter::once(self.aside.clone()).filter(|aside| !aside.is_empty()).chain(parts).collect();
        parts.join(" · ")
    }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// The lines of CPU time, by their share over the last minute. Small ones are one row, so that the rows sum to the whole.
fn bill(state: &State, seen: &Seen) -> Section {
    let (newest, minute) = (time(seen.bill.window_s), time(state.covered_s().max(seen.bill.window_s)));
    let heads = [format!("last {newest}"), format!("last {minute}")];
    let section =
        |aside: &str, rows| Section { title: "BILL", aside: aside.to_owned(), heads: heads.clone(), rows };
    let lines = match &seen.bill.on_cpu {
        Ok(lines) => lines,
        Err(absence) => return section(&format!("not measured: {}", absence.detail), vec![]),
    };
    let share = |class: CostClass| state.share(class).unwrap_or(0.0);
    let mut shares: Vec<(CostClass, f64, f64)> =
        lines.iter().map(|line| (line.class, line.share.point, share(line.class))).collect();
    // Of equal lines, the order is that of the bill.
    shares.sort_by(|a, b| b.2.total_cmp(&a.2));
    let (large, small): (Vec<_>, Vec<_>) =
        shares.into_iter().partition(|(_, last, minute)| last.max(*minute) >= LEAST_SHARE);
    let row = |(class, last, minute): (CostClass, f64, f64)| Line {
        row: Some(Row::Cost(class)),
        title: class.title().to_owned(),
        part: last,
        ink: Ink::Cost(class),
        cells: [percent(last), percent(minute)],
    };
    let mut rows: Vec<Line> = large.into_iter().map(row).collect();
    let sum = |of: fn(&(CostClass, f64, f64)) -> f64| small.iter().map(of).sum::<f64>();
    let (last, minute) = (sum(|line| line.1), sum(|line| line.2));
    if last.max(minute) >= 0.0005 {
        let cells = [percent(last), percent(minute)];
        let title = count(small.len(), "smaller line");
        rows.push(Line { row: None, title, part: last, ink: Ink::Plain, cells });
    }
    section("where the CPU time goes", rows)
}

fn faults(bill: &Bill) -> Section {
    let rate = |rate: &Result<f64, _>, kind: &str| match rate {
        Ok(rate) => format!("{}/s {kind}", thousands(rate.max(0.0).round() as u64)),
        Err(_) => format!("{kind}: not measured"),
    };
    let aside = [rate(&bill.rates.minor_faults, "minor"), rate(&bill.rates.major_faults, "major")].join(", ");
    let mut rows = Vec::new();
    for faulted in &bill.faulted {
        for one in faulted.owners.iter().filter(|one| one.share.point >= LEAST_SHARE) {
            rows.push(Line {
                row: Some(Row::Fault(faulted.wall, one.owner)),
                title: format!("{}: {}", faulted.wall.title(), one.owner.title()),
                part: one.share.point,
                ink: Ink::Plain,
                cells: [percent(one.share.point), String::new()],
            });
        }
    }
    let by_number = bill.faulted.iter().any(|faulted| matches!(faulted.basis, Basis::Number { .. }));
    let heads = [if by_number { "part" } else { "part of CPU" }, ""];
    Section { title: "FAULTS", aside, heads: heads.map(str::to_owned), rows }
}

fn waits(bill: &Bill) -> Section {
    let whole = bill.rates.thread_s;
    let known = bill.off_cpu.iter().filter_map(|line| Some((line.class, line.thread_s.as_ref().ok()?.point)));
    let mut known: Vec<_> = known.filter(|(_, s)| *s > 0.0 && *s >= LEAST_SHARE * whole).collect();
    known.sort_by(|a, b| b.1.total_cmp(&a.1));
    let unknown = bill.off_cpu.iter().filter(|line| line.thread_s.is_err()).count();
    let aside = match (unknown, known.is_empty()) {
        (0, true) => "none of 1 % or more".to_owned(),
        (0, false) => String::new(),
        _ => format!("{} not measured", count(unknown, "line")),
    };
    let row = |(class, seconds): (allocwall_model::catalogue::cost::WaitClass, f64)| {
        let part = if whole > 0.0 { seconds / whole } else { 0.0 };
        Line {
            row: Some(Row::Wait(class)),
            title: class.short_title().to_owned(),
            part,
            ink: Ink::Plain,
            cells: [percent(part), format!("{seconds:.2}")],
        }
    };
    let heads = ["part", "thread-s"].map(str::to_owned);
    Section { title: "WAITS", aside, heads, rows: known.into_iter().map(row).collect() }
}

/// The resident memory by owner, as it was read last.
fn memory(state: &State, seen: &Seen) -> Section {
    let heads = ["size", "part"].map(str::to_owned);
    let now = bytes(seen.bill.rates.resident_end);
    let Some(memory) = &state.memory else {
        let why = match &state.unread {
            Some(absence) => format!("by owner: not measured: {}", absence.detail),
            None => "not yet read by owner".to_owned(),
        };
        let aside = format!("{now} resident; {why}");
        return Section { title: "MEMORY", aside, heads, rows: vec![] };
    };
    let mut sizes =
        ResidentOwner::ALL.map(|owner| (owner, memory.read.resident_bytes(|other| other == owner)));
    sizes.sort_by(|a, b| b.1.total_cmp(&a.1));
    let whole: f64 = sizes.iter().map(|(_, size)| size).sum();
    let age = match (seen.at_s + seen.bill.window_s - memory.at_s).round() {
        age if age > 0.0 => format!("{} ago", time(age)),
        _ => "just now".to_owned(),
    };
    let others = match memory.read.others {
        0 => String::new(),
        n => format!(", without {n} {}", if n == 1 { "process" } else { "processes" }),
    };
    let rows = sizes.into_iter().filter(|(_, size)| *size > 0.0 && *size >= LEAST_SHARE * whole).map(
        |(owner, size)| Line {
            row: Some(Row::Memory(owner)),
            title: owner.title().to_owned(),
            part: size / whole,
            ink: Ink::Plain,
            cells: [bytes(size as u64), percent(size / whole)],
        },
    );
    // The parts belong to the last reading, which may be older than the head of the screen.
    let aside = format!("{} resident, read {age}{others}; now {now}", bytes(whole as u64));
    Section { title: "MEMORY", aside, heads, rows: rows.collect() }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{calm, first_touch, taken};
    use super::*;

    fn state() -> State {
        let mut state = State::new(Duration::from_secs(2));
        state.add(taken(first_touch(), 0.0));
        state.add(taken(first_touch(), 2.0));
        state
    }

    fn text(drawn: &Drawn) -> String {
        drawn.lines.join("\n")
    }

    #[test]
    fn a_small_and_a_large_terminal() {
        let mut state = state();
        state.selected = Some(Row::Cost(CostClass::Zeroing));
        insta::assert_snapshot!("small", text(&draw(&state, LEAST, false)));
        insta::assert_snapshot!("large", text(&draw(&state, (100, 34), false)));
    }

    #[test]
    fn every_size_holds_its_screen() {
        let mut hostile = first_touch();
        hostile.processes[0].cmdline = vec![format!("\x1b[2J\u{202e}{}\n", "ü".repeat(500))];
        let mut odd = State::new(Duration::from_secs(2));
        odd.add(taken(hostile, 0.0));
        odd.note = Some("saved\x1b[31m".repeat(50));
        for state in [&state(), &odd, &State::new(Duration::from_secs(2))] {
            for width in [2, 20, 43, 44, 60, 80, 100, 300] {
                for height in [1, 5, 13, 14, 20, 24, 34, 100] {
                    let drawn = draw(state, (width, height), false);
                    assert!(drawn.lines.len() <= height, "{width} × {height}: {}", drawn.lines.len());
                    for line in &drawn.lines {
                        assert!(columns(line) <= width, "{width} × {height}: {line}");
                        assert!(!line.contains(['\x1b', '\n', '\u{202e}']), "{line:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn rows_can_be_selected_only_if_they_are_shown() {
        let state = state();
        let (small, large) = (draw(&state, LEAST, false), draw(&state, (100, 34), false));
        assert!(!small.rows.is_empty() && small.rows.len() < large.rows.len());
        assert!(large.rows.iter().any(|row| matches!(row, Row::Memory(_))));
        assert!(draw(&state, (20, 5), false).rows.is_empty());
    }

    #[test]
    fn colour_is_used_only_if_asked_for() {
        assert!(text(&draw(&state(), (100, 34), true)).contains("\x1b["));
        assert!(!text(&draw(&state(), (100, 34), false)).contains('\x1b'));
    }

    #[test]
    fn the_pause_is_told_with_its_reason_and_only_then() {
        let mut state = state();
        let shown = |state: &State| text(&draw(state, (100, 34), false));
        assert!(!shown(&state).contains("pauses"));
        let mut dear = taken(calm(), 4.0);
        dear.pause = Duration::from_secs(3);
        state.add(dear);
        assert!(shown(&state).contains("it pauses 3 s to stay at 1 %"), "{}", shown(&state));
    }

    #[test]
    fn the_end_of_the_target_leaves_its_last_window() {
        let mut state = state();
        state.halt = Some(Halt::Ended);
        let shown = text(&draw(&state, (100, 34), false));
        assert!(shown.contains("The target has ended") && shown.contains("BILL"), "{shown}");
    }

    #[test]
    fn room_goes_to_the_bill_first() {
        assert_eq!(share_out(2, &[9, 4, 4, 4]), [2, 0, 0, 0]);
        assert_eq!(share_out(5, &[9, 4, 0, 4]), [4, 1, 0, 0]);
        assert_eq!(share_out(100, &[9, 4, 0, 4]), [9, 4, 0, 4]);
    }
}
