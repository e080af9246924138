//! The resident memory of a process as text and as a JSON document, version 1 (docs/json.md), and as a section of a
//! diagnosis. The printed numbers sum too: they are rounded together.

use super::json::{absence, interval, list, measured, plain, printed};
use super::layout::{apportion, columns, elide_end, elide_middle, left, right};
use super::text::{Ink, Page, Style, bytes, restart};
use allocwall_model::catalogue::remedies::find;
use allocwall_model::catalogue::thresholds::{self, Floor};
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::recording::{Recording, Runtime};
use allocwall_model::resident::{ResidentBill, ResidentOwner, Return, Row, Split, TargetMemory};
use allocwall_model::units::{Interval, Measured, count, thousands};
use serde_json::{Value, json};

/// Incremented when a field changes its meaning or is removed. New fields do not increment it.
pub const VERSION: u32 = 1;

/// The document, indented, newline-terminated.
pub fn document(bill: &ResidentBill) -> String {
    printed(&value(bill))
}

fn value(bill: &ResidentBill) -> Value {
    let mut document = json!({
        "version": VERSION,
        "tool": { "name": "allocwall", "version": env!("CARGO_PKG_VERSION") },
    });
    if let (Value::Object(document), Value::Object(fields)) = (&mut document, bill_value(bill)) {
        document.extend(fields);
    }
    document
}

/// The same as a part of another document.
pub fn bill_value(bill: &ResidentBill) -> Value {
    json!({
        "pid": bill.pid,
        "comm": bill.comm,
        "cmdline": bill.cmdline,
        "runtime": measured(&bill.runtime, |runtime| json!(runtime_name(runtime))),
        "allocator": measured(&bill.allocator, plain),
        "resident_bytes": bill.resident_bytes(),
        "reserved_bytes": bill.reserved_bytes(),
        "vm_rss_before_bytes": bill.rss_before_bytes,
        "vm_rss_after_bytes": bill.rss_after_bytes,
        "agrees": !bill.disagrees(),
        "rows": list(&bill.rows, |row| json!({
            "owner": row.owner.key(),
            "title": row.owner.title(),
            "resident_bytes": row.amount.resident_bytes,
            "lazily_freed_bytes": row.amount.lazily_freed_bytes,
            "reserved_bytes": row.amount.reserved_bytes,
            "split": measured(&row.split, split),
        })),
        "thread_arenas": bill.thread_arenas,
        "page_tables_bytes": measured(&bill.page_tables_bytes, plain),
        "cgroup": measured(&bill.group, plain),
        "remedies": list(&bill.returns(), plain),
        "notes": bill.notes,
        "took_ms": bill.took_ms,
    })
}

fn split(split: &Split) -> Value {
    json!({
        "live_bytes": interval(&split.live_bytes),
        "free_bytes": interval(&split.free_bytes),
        "cached_bytes": interval(&split.cached_bytes),
        "trimmable_bytes": interval(&split.trimmable_bytes),
        "top_bytes": interval(&split.top_bytes),
        "method": split.method,
        "unfinished": split.unfinished.as_ref().map(absence),
    })
}

fn runtime_name(runtime: &Runtime) -> &'static str {
    match runtime {
        Runtime::Native => "native",
        Runtime::Cpython { .. } => "cpython",
        Runtime::Jvm { .. } => "jvm",
        Runtime::Go { .. } => "go",
        Runtime::Node { .. } => "node",
    }
}

/// The bill as text, newline-terminated.
pub fn table(bill: &ResidentBill, style: Style) -> String {
    let mut page = Page::new(style);
    header(&mut page, bill);
    let (unit, shape) = (Unit::of(bill.resident_bytes()), Shape::fit(page.width));
    rows(&mut page, "RESIDENT", bill, &unit, &shape);
    beside(&mut page, bill, &shape);
    remedies(&mut page, bill);
    limits(&mut page, bill, &unit, &shape);
    page.out
}

/// What a diagnosis knows of the first process besides its bill.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// Resident memory of the target at the end of the window, as the head of the report shows it; 0 if unknown.
    pub resident_end: u64,
    /// It had not ended with the window.
    pub lives: bool,
}

impl Known {
    pub fn of(rec: &Recording, resident_end: u64, bill: &ResidentBill) -> Known {
        Known {
            resident_end,
            lives: rec.processes.iter().any(|process| process.pid == bill.pid && !process.ended),
        }
    }
}

/// The bill of the first process as a section of a diagnosis. How it was measured is in the JSON document. Of memory that
/// is too small for a wall, only the rows are shown.
pub fn section(page: &mut Page, memory: &TargetMemory, known: Known) {
    let Some(bill) = memory.bills.first() else { return };
    let unit = Unit::of(bill.resident_bytes());
    if too_small(memory) {
        brief_rows(page, bill, &unit);
    } else {
        rows(page, "MEMORY", bill, &unit, &Shape::fit(page.width));
    }
    about(page, memory, bill, known);
}

/// For a wall.
fn too_small(memory: &TargetMemory) -> bool {
    memory.others == 0 && is_small(resident_bytes(memory))
}

/// What stands below the rows.
pub(crate) fn about(page: &mut Page, memory: &TargetMemory, bill: &ResidentBill, known: Known) {
    let small = too_small(memory);
    if !small {
        beside(page, bill, &Shape::fit(page.width));
    }
    let (late, read_again) = (is_late(memory, known), format!("allocwall memory -p {}", bill.pid));
    let mut about = vec![match late {
        true => format!(
            "pid {}: at the end of the window it was {} (head of this report); this was read shortly after",
            bill.pid,
            bytes(known.resident_end)
        ),
        false => format!("pid {}, at the end of the window", bill.pid),
    }];
    if bill.disagrees() {
        let changed = disagreement(bill);
        about.push(if known.lives { format!("{changed}. Read it again: {read_again}") } else { changed });
    }
    about.extend(others(memory));
    if small {
        about.push("too small for a retention wall".to_owned());
    }
    page.wrapped(2, &about.join(" · "), if late || bill.disagrees() { Ink::Warn } else { Ink::Faint });
    if !small {
        page.wrapped(2, METHOD, Ink::Faint);
    } else if known.lives && !bill.disagrees() {
        page.wrapped(2, &format!("memory in use (live) and free: {read_again}"), Ink::Faint);
    }
    let returns: Vec<String> =
        bill.returns().iter().map(|r| format!("{}, {}", r.title, bytes(r.at_most_bytes))).collect();
    if !returns.is_empty() && !small {
        let text = format!("could be returned, at most: {} ({SAME_MEMORY})", returns.join(" · "));
        page.wrapped(2, &text, Ink::Plain);
    }
}

/// The bill of the first process in one line, with the rows that are a twentieth of it or more, largest first.
/// `resident_end` is the resident memory of the target at the end of the window, as the head of the report shows it.
pub fn line(page: &mut Page, memory: &TargetMemory, resident_end: u64) {
    let Some(bill) = memory.bills.first() else { return };
    let unit = Unit::of(bill.resident_bytes());
    let total = total_units(bill, &unit);
    let mut rows = printed_rows(bill, &unit);
    rows.sort_by_key(|(_, units)| std::cmp::Reverse(*units));
    let shown = rows.iter().take_while(|(_, units)| *units > 0 && units * 20 >= total).count();
    let rest: u64 = rows[shown..].iter().map(|(_, units)| units).sum();
    let mut parts: Vec<String> = rows[..shown]
        .iter()
        .map(|(row, units)| format!("{} {}", row.owner.title(), unit.shown(*units)))
        .collect();
    parts.extend((rest > 0).then(|| format!("others {}", unit.shown(rest))));
    let all = format!("{} {}", unit.shown(total), unit.name);
    let of_process = match (memory.bills.len(), memory.others) {
        (1, 0) => String::new(),
        _ => format!(" of pid {}, one of several processes", bill.pid),
    };
    let before = match has_changed(memory, resident_end) {
        true => format!(" ({} at its end)", bytes(resident_end)),
        false => String::new(),
    };
    let text = format!("{all}{of_process} after the window{before}: {}", parts.join(" · "));
    page.hang("MEMORY", Ink::Heading, 9, &text, Ink::Plain);
}

/// Where a diagnosis has what its text leaves out.
const METHOD: &str =
    "how it was measured: allocwall report FILE --json, field resident.bills[].rows[].split.method";
const SAME_MEMORY: &str = "these remedies act on the same memory: do not add the figures";

/// Whether so much memory is too little for a wall.
fn is_small(bytes: u64) -> bool {
    match thresholds::of(Wall::Retention).floor {
        Floor::Bytes(floor) => (bytes as f64) < floor,
        Floor::PerSecond(_) | Floor::None => false,
    }
}

/// Whether the only process has other memory than at the end of the window: more than a tenth of the larger figure.
fn has_changed(memory: &TargetMemory, end: u64) -> bool {
    let [bill] = &memory.bills[..] else { return false };
    let read = bill.resident_bytes();
    memory.others == 0 && end > 0 && end.abs_diff(read) as f64 > 0.1 * end.max(read) as f64
}

/// The same, if it matters for a wall.
fn is_late(memory: &TargetMemory, known: Known) -> bool {
    let read = memory.bills.first().map_or(0, ResidentBill::resident_bytes);
    has_changed(memory, known.resident_end) && !is_small(known.resident_end.max(read))
}

/// Why the sum of the rows is not the kernel's figure.
fn disagreement(bill: &ResidentBill) -> String {
    let [before, after] = [bill.rss_before_bytes, bill.rss_after_bytes].map(bytes);
    if before == after {
        return format!("VmRSS was {after}: the kernel's counter is late, or not all was read");
    }
    format!("the memory changed while it was read: VmRSS was {before} before and {after} after")
}

/// Of all processes that were read.
fn resident_bytes(memory: &TargetMemory) -> u64 {
    memory.bills.iter().fold(0, |sum, bill| sum.saturating_add(bill.resident_bytes()))
}

/// The rows in one line, largest first, without those that would print as zero.
fn brief_rows(page: &mut Page, bill: &ResidentBill, unit: &Unit) {
    let mut rows = printed_rows(bill, unit);
    rows.retain(|(_, units)| *units > 0);
    rows.sort_by_key(|(_, units)| std::cmp::Reverse(*units));
    page.section("MEMORY", &format!("{} {}", unit.shown(total_units(bill, unit)), unit.name));
    let rows: Vec<String> =
        rows.iter().map(|(row, units)| format!("{} {}", row.owner.title(), unit.shown(*units))).collect();
    if !rows.is_empty() {
        page.wrapped(2, &rows.join(" · "), Ink::Plain);
    }
}

fn total_units(bill: &ResidentBill, unit: &Unit) -> u64 {
    unit.units(bill.resident_bytes() as f64)
}

/// Each row with its printed size. The sizes sum to the printed total.
fn printed_rows<'b>(bill: &'b ResidentBill, unit: &Unit) -> Vec<(&'b Row, u64)> {
    let parts: Vec<f64> = bill.rows.iter().map(|row| row.amount.resident_bytes as f64).collect();
    bill.rows.iter().zip(apportion(&parts, total_units(bill, unit))).collect()
}

/// What of the target's memory the section does not show.
fn others(memory: &TargetMemory) -> Vec<String> {
    let more = memory.bills.len().saturating_sub(1);
    let mut others = vec![];
    if more > 0 {
        others.push(format!("{} with --json", count(more, "more bill")));
    }
    let why = memory.unread.as_ref().map_or(String::new(), |why| format!(": {why}"));
    match memory.others {
        0 => {}
        1 => others.push(format!("1 other process was not read{why}")),
        n => others.push(format!("{} other processes were not read{why}", thousands(n))),
    }
    others
}

fn rows(page: &mut Page, title: &str, bill: &ResidentBill, unit: &Unit, shape: &Shape) {
    page.blank();
    let aside = format!("{} {}", unit.shown(total_units(bill, unit)), unit.name);
    let heads = ["resident", "live", shape.free_head(), "lazily freed", "live, 95 % interval"];
    let heads = shape.line(title, &aside, heads);
    let rest = heads.strip_prefix(title).unwrap_or_default();
    let heads = format!("{}{}", page.paint(Ink::Heading, title), page.paint(Ink::Faint, rest));
    page.line(&heads);
    let mut others = vec![];
    for (row, units) in printed_rows(bill, unit) {
        if units == 0 {
            continue;
        }
        match row.owner.is_allocated() {
            true => page.line(&table_row(row, units, unit, shape)),
            false => others.push(format!("{} {}", row.owner.title(), unit.shown(units))),
        }
    }
    if !others.is_empty() {
        page.wrapped(2, &others.join(" · "), Ink::Plain);
    }
}

fn header(page: &mut Page, bill: &ResidentBill) {
    let command = if bill.cmdline.is_empty() { bill.comm.clone() } else { bill.cmdline.join(" ") };
    let command = elide_middle(&super::escape::terminal(&command), page.width - columns("allocwall  "));
    let line = format!("{}  {}", page.paint(Ink::Heading, "allocwall"), page.paint(Ink::Heading, &command));
    page.line(&line);
    let mut facts = vec![format!("pid {}", bill.pid)];
    facts.push(match &bill.allocator {
        Ok(allocator) => allocator.kind.title().to_owned(),
        Err(_) => "allocator unknown".to_owned(),
    });
    if bill.thread_arenas > 0 {
        facts.push(format!("{} of threads", count(bill.thread_arenas, "arena")));
    }
    facts.push(format!("read in {} ms", thousands(bill.took_ms)));
    page.wrapped(2, &facts.join(" · "), Ink::Plain);
    let sums = format!(
        "The rows sum to {}. The kernel's VmRSS was {} before and {} after the reading",
        bytes(bill.resident_bytes()),
        bytes(bill.rss_before_bytes),
        bytes(bill.rss_after_bytes)
    );
    if bill.disagrees() {
        let why = "the process changed during the reading, or the kernel's counter is late, or not all was read (see LIMITS)";
        page.wrapped(2, &format!("{sums}: {why}."), Ink::Warn);
    } else {
        page.wrapped(2, &format!("{sums}."), Ink::Faint);
    }
}

/// What the numbers of a page are in.
struct Unit {
    name: &'static str,
    bytes: f64,
    /// A tenth is shown too.
    tenths: bool,
}

impl Unit {
    fn of(total: u64) -> Unit {
        match total {
            // As in the other sections.
            0..0x10_0000 => Unit { name: "KiB", bytes: 1024.0, tenths: false },
            _ => Unit { name: "MiB", bytes: f64::from(1 << 20), tenths: true },
        }
    }

    /// In what is printed: units, or their tenths.
    fn units(&self, bytes: f64) -> u64 {
        let units = bytes / self.bytes * if self.tenths { 10.0 } else { 1.0 };
        units.round() as u64
    }

    fn shown(&self, units: u64) -> String {
        match self.tenths {
            true => format!("{}.{}", thousands(units / 10), units % 10),
            false => thousands(units),
        }
    }
}

/// The columns of the table. If the page is too narrow, the interval is left out first, then what was freed lazily.
struct Shape {
    title: usize,
    numbers: [usize; 3],
    lazily: bool,
    interval: bool,
}

impl Shape {
    /// The longest title, and the indent.
    const TITLE: usize = 28;
    const LAZILY: usize = 14;
    const INTERVAL: usize = 22;

    fn fit(width: usize) -> Shape {
        let wide = [10, 10, 12];
        let fixed = Self::TITLE + wide.iter().sum::<usize>();
        if width < fixed {
            // "free, kept" takes too much room here.
            let numbers = [10, 9, 9];
            let title = width.saturating_sub(numbers.iter().sum());
            return Shape { title, numbers, lazily: false, interval: false };
        }
        let lazily = width >= fixed + Self::LAZILY;
        let interval = width >= fixed + Self::LAZILY + Self::INTERVAL;
        Shape { title: Self::TITLE, numbers: wide, lazily, interval }
    }

    fn free_head(&self) -> &'static str {
        if self.numbers[2] >= 12 { "free, kept" } else { "free" }
    }

    /// `aside` follows the title if there is room.
    fn line(&self, title: &str, aside: &str, cells: [&str; 5]) -> String {
        let long = format!("{title}  {aside}");
        let title = if !aside.is_empty() && columns(&long) < self.title { long.as_str() } else { title };
        let mut line = left(&elide_end(title, self.title), self.title);
        for (cell, width) in cells.iter().zip(self.numbers) {
            line.push_str(&right(cell, width));
        }
        if self.lazily {
            line.push_str(&right(cells[3], Self::LAZILY));
        }
        if self.interval {
            line.push_str(&right(cells[4], Self::INTERVAL));
        }
        line
    }
}

const NOTHING: &str = "–";

fn table_row(row: &Row, units: u64, unit: &Unit, shape: &Shape) -> String {
    let cells = cells(row, units, unit);
    shape.line(&format!("  {}", row.owner.title()), "", cells.each_ref().map(String::as_str))
}

/// Resident, live, free, lazily freed, and the interval of what is live.
fn cells(row: &Row, units: u64, unit: &Unit) -> [String; 5] {
    let lazily = row.amount.lazily_freed_bytes as f64;
    let resident = unit.shown(units);
    match &row.split {
        Ok(split) => {
            let parts = apportion(&[split.live_bytes.point, split.free_bytes.point, lazily], units);
            let [live, free, lazily] =
                [0usize, 1, 2].map(|part| unit.shown(parts.get(part).copied().unwrap_or(0)));
            [resident, live, free, lazily, range(split.live_bytes, unit)]
        }
        Err(_) => {
            [resident, NOTHING.to_owned(), NOTHING.to_owned(), unit.shown(unit.units(lazily)), String::new()]
        }
    }
}

/// A row as it is printed.
pub(crate) struct Shown {
    pub owner: ResidentOwner,
    /// Of the sum.
    pub share: f64,
    /// Resident, live, free, lazily freed, and the interval of what is live; in the unit of [`total`].
    pub cells: [String; 5],
}

/// Without those that would print as zero. Their sizes sum to the total.
pub(crate) fn shown(bill: &ResidentBill) -> Vec<Shown> {
    let unit = Unit::of(bill.resident_bytes());
    let total = total_units(bill, &unit).max(1) as f64;
    let rows = printed_rows(bill, &unit).into_iter().filter(|(_, units)| *units > 0);
    rows.map(|(row, units)| Shown {
        owner: row.owner,
        share: units as f64 / total,
        cells: cells(row, units, &unit),
    })
    .collect()
}

/// The sum of the rows with its unit.
pub(crate) fn total(bill: &ResidentBill) -> String {
    let unit = Unit::of(bill.resident_bytes());
    format!("{} {}", unit.shown(total_units(bill, &unit)), unit.name)
}

/// Empty if there is no sampling error to show.
fn range(value: Interval, unit: &Unit) -> String {
    let (low, high) = (unit.units(value.low), unit.units(value.high));
    if low == high { String::new() } else { format!("{} to {}", unit.shown(low), unit.shown(high)) }
}

/// Container runtimes name cgroups by hashes.
const LONGEST_GROUP: usize = 24;

/// What is no part of the resident memory.
fn beside(page: &mut Page, bill: &ResidentBill, shape: &Shape) {
    let lazily = bill.rows.iter().fold(0u64, |sum, row| sum.saturating_add(row.amount.lazily_freed_bytes));
    if lazily > 0 && !shape.lazily {
        page.wrapped(2, &format!("lazily freed, in the rows: {}", bytes(lazily)), Ink::Plain);
    }
    let mut beside = vec![];
    if let Ok(page_tables) = bill.page_tables_bytes {
        beside.push(format!("page tables {}", bytes(page_tables)));
    }
    if bill.reserved_bytes() > 0 {
        beside.push(format!("reserved huge pages {}", bytes(bill.reserved_bytes())));
    }
    if let Ok(group) = &bill.group {
        beside.push(format!(
            "all of cgroup {}: kernel memory {}, page cache {}",
            elide_middle(&group.path, LONGEST_GROUP),
            bytes(group.kernel_bytes),
            bytes(group.page_cache_bytes)
        ));
    }
    if !beside.is_empty() {
        page.wrapped(2, &format!("not in the sum: {}", beside.join(" · ")), Ink::Faint);
    }
}

fn remedies(page: &mut Page, bill: &ResidentBill) {
    let returns = bill.returns();
    let mut heaps = [ResidentOwner::Heap, ResidentOwner::Arena]
        .into_iter()
        .filter_map(|owner| bill.row(owner))
        .filter(|row| row.amount.held_bytes() > 0)
        .peekable();
    // Without a heap there is nothing to return. Of a heap that was not read, nothing is known.
    if returns.is_empty() && (heaps.peek().is_none() || heaps.any(|row| row.split.is_err())) {
        return;
    }
    if returns.is_empty() {
        page.section("REMEDIES", "");
        return page.wrapped(2, "None would return 1 MiB or more of malloc's memory.", Ink::Plain);
    }
    page.section("REMEDIES", &format!("upper limit for each; {SAME_MEMORY}"));
    for Return { remedy, title, of, at_least_bytes, at_most_bytes, restart: needed } in returns {
        let lead = format!("  {}{}  ", left(remedy, 18), right(&bytes(at_most_bytes), 11));
        let sure = match at_least_bytes {
            0 => String::new(),
            least => format!(", at least {}", bytes(least)),
        };
        let text = format!("{title}: {of}{sure} · {}", restart(needed, find(remedy)));
        page.hang(&lead, Ink::Plain, 33, &text, Ink::Plain);
    }
}

/// How it was measured, and what was not.
fn limits(page: &mut Page, bill: &ResidentBill, unit: &Unit, shape: &Shape) {
    let rows = bill.rows.iter().filter(|row| row.owner.is_allocated() && row.amount.resident_bytes > 0);
    let mut lines: Vec<(String, Ink)> = vec![];
    for row in rows {
        let (text, ink) = match &row.split {
            Ok(split) => method(split, unit, shape),
            Err(why) => (why.with_advice(), Ink::Plain),
        };
        lines.push((format!("{}: {text}", row.owner.title()), ink));
    }
    lines.extend(absent("page tables", &bill.page_tables_bytes));
    lines.extend(absent("kernel memory of the cgroup", &bill.group));
    lines.extend(bill.notes.iter().map(|note| (note.clone(), Ink::Warn)));
    if lines.is_empty() {
        return;
    }
    page.section("LIMITS", "how live and free memory were distinguished, and what was not measured");
    for (line, ink) in lines {
        page.wrapped(2, &line, ink);
    }
}

/// How a row was divided, and its interval if the table has no room for it.
fn method(split: &Split, unit: &Unit, shape: &Shape) -> (String, Ink) {
    let between = range(split.live_bytes, unit);
    let mut text = split.method.clone();
    if !shape.interval && !between.is_empty() {
        text.push_str(&format!(", live {between} {} (95 % interval)", unit.name));
    }
    match &split.unfinished {
        Some(why) => (format!("{text}, until reading stopped: {}", why.with_advice()), Ink::Warn),
        None => (text, Ink::Plain),
    }
}

fn absent<T>(what: &str, value: &Measured<T>) -> Option<(String, Ink)> {
    let why = value.as_ref().err()?;
    Some((format!("{what}: {}", why.with_advice()), Ink::Faint))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use allocwall_model::catalogue::modules::AllocatorKind;
    use allocwall_model::recording::{Allocator, Linkage};
    use allocwall_model::resident::{Amount, GroupMemory, undistinguished};
    use allocwall_model::units::{Absence, Reason};

    const MIB: u64 = 1 << 20;

    fn row(owner: ResidentOwner, tenths: u64, split: Measured<Split>) -> Row {
        let amount = Amount { resident_bytes: tenths * MIB / 10, ..Amount::default() };
        Row { owner, amount, split }
    }

    fn sampled(live: f64, free: f64) -> Split {
        let mib = |value: f64| value * MIB as f64;
        Split {
            live_bytes: Interval::new(mib(live - 0.5), mib(live), mib(live + 0.5)),
            free_bytes: Interval::new(mib(free - 0.5), mib(free), mib(free + 0.5)),
            cached_bytes: Interval::exact(0.0),
            trimmable_bytes: Interval::new(mib(free - 2.0), mib(free - 1.0), mib(free)),
            top_bytes: Interval::exact(0.0),
            method: "200 parts of 64 KiB were read".into(),
            unfinished: None,
        }
    }

    /// Much of its heap is free.
    pub fn bill() -> ResidentBill {
        let nothing = || Err(undistinguished("no allocator keeps free memory here"));
        let rows = vec![
            row(ResidentOwner::Heap, 5767, Ok(sampled(9.0, 567.7))),
            row(ResidentOwner::Arena, 0, nothing()),
            row(
                ResidentOwner::MappedBlock,
                46,
                Ok(Split::all_live(46 * MIB / 10, "freed blocks are unmapped")),
            ),
            row(ResidentOwner::PythonArena, 0, nothing()),
            row(
                ResidentOwner::Private,
                12,
                Err(undistinguished("can't be distinguished: the program's own mappings")),
            ),
            row(ResidentOwner::Stack, 0, nothing()),
            row(ResidentOwner::File, 13, nothing()),
            row(ResidentOwner::Shared, 0, nothing()),
            row(ResidentOwner::Other, 0, nothing()),
        ];
        let module = "/lib/libc.so.6".into();
        ResidentBill {
            pid: 4242,
            comm: "service".into(),
            cmdline: vec!["/usr/bin/service".into(), "--port".into(), "80\u{1b}[31m".into()],
            runtime: Ok(Runtime::Native),
            allocator: Ok(Allocator {
                kind: AllocatorKind::Glibc,
                how: Linkage::Libc,
                module,
                version: None,
            }),
            secure_exec: Ok(false),
            environment: vec![],
            rows,
            rss_before_bytes: 5838 * MIB / 10,
            rss_after_bytes: 5838 * MIB / 10,
            thread_arenas: 0,
            page_tables_bytes: Ok(12 * MIB / 10),
            group: Ok(GroupMemory { path: "/web".into(), kernel_bytes: 5 * MIB, page_cache_bytes: 30 * MIB }),
            notes: vec![],
            took_ms: 41,
        }
    }

    fn page(bill: &ResidentBill, width: usize) -> String {
        table(bill, Style { color: false, width })
    }

    #[test]
    fn the_bill_is_a_table_that_sums() {
        let text = page(&bill(), 100);
        let lines: Vec<&str> = text.lines().collect();
        let line = |start: &str| {
            let found = lines.iter().find(|line| line.trim_start().starts_with(start));
            let words = found.unwrap_or_else(|| panic!("{start}: {text}")).split_whitespace();
            words.map(str::to_owned).collect::<Vec<String>>().join(" ")
        };
        assert_eq!(
            line("RESIDENT"),
            "RESIDENT 583.8 MiB resident live free, kept lazily freed live, 95 % interval"
        );
        assert_eq!(line("main heap (brk)"), "main heap (brk) 576.7 9.0 567.7 0.0 8.5 to 9.5");
        assert_eq!(line("malloc's mapped blocks"), "malloc's mapped blocks 4.6 4.6 0.0 0.0");
        assert_eq!(line("other private memory"), "other private memory 1.2 – – 0.0");
        // Rows that would print as zero are left out.
        assert_eq!(line("files"), "files 1.3");
        assert!(
            line("not in the sum")
                .starts_with("not in the sum: page tables 1.2 MiB · all of cgroup /web: kernel memory")
        );
        assert!(!text.contains("arenas of threads"), "{text}");
        let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let sums = "The rows sum to 583.8 MiB. The kernel's VmRSS was 583.8 MiB before and 583.8 MiB after the reading.";
        assert!(flat.contains(sums), "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
    }

    #[test]
    fn remedies_have_their_upper_bound() {
        let text = page(&bill(), 100);
        let (_, remedies) = text.split_once("REMEDIES").unwrap();
        assert!(remedies.contains("malloc-trim") && remedies.contains("change and restart"), "{text}");
        assert!(remedies.contains("567.7 MiB") && remedies.contains("568.2 MiB"), "{text}");
        // It is sure of one remedy alone, which comes first.
        let flat = on_one_line(remedies);
        assert_eq!(flat.matches("at least").count(), 1, "{text}");
        assert!(flat.contains("whole free pages in the heaps, at least 565.7 MiB ·"), "{text}");
        assert!(flat.find("malloc-trim") < flat.find("jemalloc"), "{text}");
        assert!(!remedies.contains("glibc-arenas-few"), "{text}");
        let mut little = bill();
        little.rows[0].split = Ok(Split::all_live(1, ""));
        assert!(page(&little, 100).contains("None would return 1 MiB or more"));
        little.rows[0].split = Err(Absence::new(Reason::TooLittle, "no chain was found"));
        let text = page(&little, 100);
        assert!(!text.contains("REMEDIES") && text.contains("no chain was found"), "{text}");
        // One heap is known, and the other is not.
        little.rows[0].split = Ok(Split::all_live(1, ""));
        little.rows[1].amount.resident_bytes = MIB;
        little.rows[1].split = Err(Absence::new(Reason::TooLittle, "no chain was found"));
        let text = page(&little, 100);
        assert!(!text.contains("REMEDIES"), "{text}");
        little.rows[1].split = Ok(Split::all_live(MIB, ""));
        assert!(page(&little, 100).contains("None would return 1 MiB or more"));
    }

    /// Of a process that lives, whose memory did not change after the window.
    fn printed_section(memory: &TargetMemory, width: usize) -> String {
        let resident_end = memory.bills[0].resident_bytes();
        printed_beside(memory, Known { resident_end, lives: true }, width)
    }

    fn printed_beside(memory: &TargetMemory, known: Known, width: usize) -> String {
        let mut page = Page::new(Style { color: false, width });
        section(&mut page, memory, known);
        page.out
    }

    fn on_one_line(text: &str) -> String {
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_diagnosis_has_the_rows_and_what_remedies_would_return() {
        let mut memory = TargetMemory { bills: vec![bill()], others: 0, unread: None };
        let text = printed_section(&memory, 100);
        assert!(text.starts_with("\nMEMORY  583.8 MiB") && text.lines().count() <= 14, "{text}");
        let flat = on_one_line(&text);
        for part in [
            "main heap (brk) 576.7 9.0 567.7 0.0 8.5 to 9.5",
            "other private memory 1.2 – – 0.0",
            "files 1.3",
            "not in the sum: page tables 1.2 MiB",
            "pid 4242, at the end of the window how it was measured: allocwall report FILE --json, field resident.bills",
            "at most: return free memory after the peak: malloc_trim(0), 567.7 MiB · preload jemalloc, 568.2 MiB · ",
            "a number of requests, 568.2 MiB (these remedies act on the same memory: do not add the figures)",
        ] {
            assert!(flat.contains(part), "{part}: {text}");
        }
        assert!(
            !flat.contains("RSS") && !flat.contains("more bill") && !flat.contains("too small"),
            "{text}"
        );
        // Nothing is free, the rows do not sum, and other processes live.
        memory.bills[0].rows[0].split = Ok(Split::all_live(5767 * MIB / 10, ""));
        memory.bills[0].rss_before_bytes = 700 * MIB;
        memory.bills[0].rss_after_bytes = 800 * MIB;
        memory.bills.push(bill());
        memory.others = 3;
        let flat = on_one_line(&printed_section(&memory, 100));
        let changed = "VmRSS was 700.0 MiB before and 800.0 MiB after. Read it again: allocwall memory -p 4242 · 1 more";
        assert!(flat.contains(changed), "{flat}");
        assert!(flat.contains("1 more bill with --json · 3 other processes were not read"), "{flat}");
        assert!(!flat.contains("could be returned"), "{flat}");
    }

    #[test]
    fn memory_that_is_too_small_for_a_wall_is_one_line() {
        let mut memory = TargetMemory { bills: vec![bill()], others: 0, unread: None };
        memory.bills[0].rows[0].amount.resident_bytes = 12 * MIB;
        memory.bills[0].rss_before_bytes = 191 * MIB / 10;
        memory.bills[0].rss_after_bytes = 191 * MIB / 10;
        let text = printed_section(&memory, 100);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5, "{text}");
        assert_eq!(lines[1], "MEMORY  19.1 MiB");
        assert_eq!(lines[3].trim(), "pid 4242, at the end of the window · too small for a retention wall");
        assert_eq!(lines[4].trim(), "memory in use (live) and free: allocwall memory -p 4242");
        let rows = "main heap (brk) 12.0 · malloc's mapped blocks 4.6 · files 1.3 · other private memory 1.2";
        assert_eq!(lines[2].trim_start(), rows);
        assert!(!text.contains("could be returned"), "{text}");
        // The target has more memory than this process.
        memory.others = 1;
        assert!(printed_section(&memory, 100).contains("not in the sum"));
        memory.others = 0;
        memory.bills.push(bill());
        assert!(printed_section(&memory, 100).contains("not in the sum"));
    }

    #[test]
    fn the_reason_of_a_process_that_was_refused_is_shown() {
        let mut memory = TargetMemory { bills: vec![bill()], others: 1, unread: None };
        let why = ": process 7 has more than 8 GiB";
        let is_shown = |memory: &TargetMemory| {
            let text = on_one_line(&printed_section(memory, 100));
            assert!(text.contains("1 other process was not read"), "{text}");
            text.contains(&format!("1 other process was not read{why}"))
        };
        assert!(!is_shown(&memory));
        memory.unread = Some(Absence::new(Reason::TooCostly, "process 7 has more than 8 GiB"));
        assert!(is_shown(&memory));
    }

    #[test]
    fn a_process_that_ended_is_not_read_again() {
        let mut memory = TargetMemory { bills: vec![bill()], others: 0, unread: None };
        let printed = |memory: &TargetMemory, lives| {
            let resident_end = memory.bills[0].resident_bytes();
            on_one_line(&printed_beside(memory, Known { resident_end, lives }, 100))
        };
        memory.bills[0].rss_before_bytes = 700 * MIB;
        memory.bills[0].rss_after_bytes = 800 * MIB;
        for lives in [true, false] {
            let text = printed(&memory, lives);
            assert!(text.contains("the memory changed while it was read: VmRSS was 700.0 MiB"), "{text}");
            assert_eq!(text.contains("allocwall memory -p 4242"), lives, "{text}");
        }
        memory.bills[0].rss_before_bytes = 800 * MIB;
        let text = printed(&memory, true);
        assert!(text.contains("VmRSS was 800.0 MiB: the kernel's counter is late, or not all was"), "{text}");
        memory.bills[0].rows[0].amount.resident_bytes = 12 * MIB;
        memory.bills[0].rss_after_bytes = 191 * MIB / 10;
        for lives in [true, false] {
            let text = printed(&memory, lives);
            assert!(text.contains("too small for a retention wall"), "{text}");
            assert_eq!(text.contains("allocwall memory -p 4242"), lives, "{text}");
        }
    }

    #[test]
    fn memory_that_changed_after_the_window_is_compared_with_the_head() {
        let mut memory = TargetMemory { bills: vec![bill()], others: 0, unread: None };
        let is_compared = |memory: &TargetMemory, mib: u64| {
            let known = Known { resident_end: mib * MIB, lives: true };
            let text = on_one_line(&printed_beside(memory, known, 100));
            let late = format!(
                "pid 4242: at the end of the window it was {mib}.0 MiB (head of this report); this was read shortly after"
            );
            assert_ne!(text.contains(&late), text.contains("pid 4242, at the end of the window"), "{text}");
            text.contains(&late)
        };
        // It has 583.8 MiB now.
        assert!(is_compared(&memory, 172) && is_compared(&memory, 650) && is_compared(&memory, 20));
        assert!(!is_compared(&memory, 540) && !is_compared(&memory, 640) && !is_compared(&memory, 0));
        // The head counts all processes.
        memory.others = 1;
        assert!(!is_compared(&memory, 1720));
        memory.others = 0;
        memory.bills.push(bill());
        assert!(!is_compared(&memory, 1720));
        // It has 19.1 MiB now.
        memory.bills.truncate(1);
        memory.bills[0].rows[0].amount.resident_bytes = 12 * MIB;
        assert!(is_compared(&memory, 172) && !is_compared(&memory, 1));
    }

    #[test]
    fn a_sum_that_disagrees_and_what_was_not_read_have_their_reasons() {
        let mut bill = bill();
        bill.rss_before_bytes = 700 * MIB;
        bill.rss_after_bytes = 800 * MIB;
        bill.notes.push("a part was not read".into());
        let absence = Absence::new(Reason::TooCostly, "the time was over");
        if let Ok(split) = &mut bill.rows[0].split {
            split.unfinished = Some(absence);
        }
        let text = page(&bill, 100).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            text.contains(
                "VmRSS was 700.0 MiB before and 800.0 MiB after the reading: the process changed during"
            ),
            "{text}"
        );
        assert!(text.contains("a part was not read"), "{text}");
        assert!(text.contains("64 KiB were read, until reading stopped: the time was over"), "{text}");
    }

    #[test]
    fn an_interval_and_lazily_freed_memory_are_shown_at_any_width() {
        let mut bill = bill();
        bill.rows[4].amount.lazily_freed_bytes = MIB;
        for width in [60, 80, 100] {
            let text = page(&bill, width).split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(text.contains("8.5 to 9.5"), "{width}: {text}");
            assert_eq!(text.contains("live 8.5 to 9.5 MiB (95 % interval)"), width < 100, "{text}");
            assert!(text.contains("lazily freed"), "{width}: {text}");
            assert_eq!(text.contains("lazily freed, in the rows: 1.0 MiB"), width < 80, "{text}");
        }
        // The near twin: there is none.
        bill.rows[4].amount.lazily_freed_bytes = 0;
        assert!(!page(&bill, 60).contains("lazily freed, in the rows"));
    }

    #[test]
    fn arenas_of_threads_are_counted() {
        let mut bill = bill();
        assert!(!page(&bill, 100).contains("of threads"));
        bill.thread_arenas = 12;
        assert!(page(&bill, 100).contains(" · 12 arenas of threads · read in 41 ms"));
    }

    #[test]
    fn a_small_process_is_shown_in_kibibytes() {
        let mut bill = bill();
        bill.rows.iter_mut().for_each(|row| row.amount.resident_bytes = 0);
        bill.rows[6].amount.resident_bytes = 1000 << 10;
        let text = page(&bill, 100);
        assert!(text.contains("1,000 KiB") && text.contains("  files 1,000\n"), "{text}");
        // The near twin: the head of a report has MiB from 1 MiB on.
        bill.rows[6].amount.resident_bytes = 7764 << 10;
        let text = page(&bill, 100);
        assert!(text.contains("7.6 MiB") && text.contains("  files 7.6\n"), "{text}");
    }

    #[test]
    fn the_line_says_when_it_was_read_and_what_was_resident_before() {
        let memory = TargetMemory { bills: vec![bill()], others: 0, unread: None };
        let read = memory.bills[0].resident_bytes();
        let line = |end: u64| {
            let mut page = Page::new(Style { color: false, width: 200 });
            super::line(&mut page, &memory, end);
            page.out
        };
        assert!(
            line(2 * read).contains(" MiB after the window (1.1 GiB at its end): "),
            "{}",
            line(2 * read)
        );
        // The near twins: nothing changed, or it is unknown.
        for end in [read, 0] {
            assert!(line(end).contains(" MiB after the window: "), "{}", line(end));
        }
    }

    #[test]
    fn no_line_is_wider_than_asked() {
        let mut bill = bill();
        bill.rows[4].amount.lazily_freed_bytes = MIB;
        bill.notes
            .push("a note of one line that is longer than the narrowest page: it has to be wrapped".into());
        for width in 40..=100 {
            let memory = TargetMemory { bills: vec![bill.clone(); 2], others: 3, unread: None };
            for line in page(&bill, width).lines().chain(printed_section(&memory, width).lines()) {
                assert!(columns(line) <= width, "{width}: {line}");
            }
        }
    }

    /// Rounded together, the rows sum to the total, and the parts of a row to the row.
    #[test]
    fn printed_numbers_sum() {
        let mut bill = bill();
        for (nth, row) in bill.rows.iter_mut().enumerate() {
            row.amount.resident_bytes = 13 * MIB + nth as u64 * 70_001;
            if row.owner.is_allocated() {
                row.split = Ok(sampled(6.04, 7.04));
            }
        }
        let text = page(&bill, 100);
        let tenths = |text: &str| -> u64 { text.replace(['.', ','], "").parse().unwrap() };
        let mut sum = 0;
        for line in text.lines().filter(|line| line.starts_with("  ")) {
            let words: Vec<&str> = line.split_whitespace().filter(|word| word.contains('.')).collect();
            let title = ResidentOwner::ALL.iter().find(|owner| line.trim().starts_with(owner.title()));
            match title {
                Some(owner) if owner.is_allocated() && words.len() >= 4 => {
                    assert_eq!(tenths(words[1]) + tenths(words[2]) + tenths(words[3]), tenths(words[0]));
                    sum += tenths(words[0]);
                }
                Some(ResidentOwner::Stack) => sum += words.iter().map(|word| tenths(word)).sum::<u64>(),
                _ => {}
            }
        }
        assert_eq!(sum, (bill.resident_bytes() as f64 / MIB as f64 * 10.0).round() as u64, "{text}");
    }

    #[test]
    fn the_document_has_every_row() {
        let document = value(&bill());
        assert_eq!(document["version"], 1);
        assert_eq!(document["rows"].as_array().map(Vec::len), Some(ResidentOwner::ALL.len()));
        let sum: u64 = document["rows"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|row| row["resident_bytes"].as_u64())
            .sum();
        assert_eq!(Some(sum), document["resident_bytes"].as_u64());
        assert_eq!(document["rows"][0]["split"]["method"], "200 parts of 64 KiB were read");
        assert_eq!(document["rows"][4]["split"]["absent"]["reason"], "not_applicable");
        assert_eq!(document["allocator"]["kind"], "glibc");
        assert_eq!(document["cgroup"]["kernel_bytes"], 5 * MIB);
        assert_eq!(document["remedies"][0]["remedy"], "malloc-trim");
        assert_eq!(document["remedies"][0]["at_least_bytes"], (565.7 * MIB as f64) as u64);
        assert_eq!(document["remedies"][1]["at_least_bytes"], 0);
        assert_eq!(document["agrees"], true);
        assert!(!super::document(&bill()).contains('\u{1b}'));
    }
}
