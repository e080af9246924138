//! What `allocwall count -p` prints: text, a JSON document (version 1, docs/json.md describes every field), collapsed stacks.

use super::collapsed::{code, root};
use super::text::{count_of, head, part, site_line, time};
use super::{Callers, Code, SizeRow, basename, empty_rows, percent, percents, rate as number_of, row_of};
use crate::collapsed::name;
use crate::escape::terminal;
use crate::json::{absence, interval, list, measured, named, number, plain, printed};
use crate::layout::{columns, elide_end, left, right};
use crate::text::{Ink, Page, Style, bar, bytes};
use allocwall_diagnose::bill::NO_USER_STACK;
use allocwall_model::bursts::{
    Burst, BurstFunction, BurstThread, Bursts, EntryKind, Rate, SeenCalls, What, not_in_bursts,
};
use allocwall_model::recording::Ended;
use allocwall_model::units::{Interval, Measured, thousands};
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Incremented when a field changes its meaning or is removed. New fields do not increment it.
pub const VERSION: u32 = 1;
/// Threads and call sites of the document: those with most CPU time, and those with most calls or bytes.
const THREADS: usize = 100;
const SITES: usize = 50;
const THREADS_SHOWN: usize = 10;
const SITES_SHOWN: usize = 5;
const MISSING_SHOWN: usize = 8;
const BAR: usize = 12;
/// What a burst can't know, by the keys of the document.
const UNKNOWN: [&str; 5] = ["latency", "lifetimes", "remote_share", "live_bytes", "copied_bytes"];

/// All that is shown.
struct Summary<'a> {
    bursts: &'a Bursts,
    calls: Measured<Rate>,
    bytes: Measured<Rate>,
    kinds: Vec<Kind>,
    sizes: Vec<Size>,
    reallocs: Measured<Rate>,
    realloc_share: Measured<Interval>,
    realloc_sizes: Vec<Size>,
    threads: Vec<Thread<'a>>,
    callers: Vec<Caller>,
}

/// Functions with one key.
struct Kind {
    key: &'static str,
    calls: Measured<Rate>,
    at_most: Option<f64>,
    hits: u64,
    bursts: usize,
}

/// Blocks of some sizes.
struct Size {
    row: SizeRow,
    /// Of the calls of its table.
    share: Measured<Interval>,
    calls: Measured<Rate>,
    bytes: Measured<Rate>,
}

struct Thread<'a> {
    of: &'a BurstThread,
    bursts: usize,
    share: Measured<Interval>,
}

/// A function that requests blocks.
struct Caller {
    function: String,
    module: String,
    /// Stacks that were read.
    samples: u64,
    calls_per_s: f64,
    bytes_per_s: f64,
    calls: Measured<Interval>,
    bytes: Measured<Interval>,
}

fn all(_: &BurstFunction, _: &Burst, _: &SeenCalls) -> bool {
    true
}

fn asking(what: What) -> impl Fn(&BurstFunction, &Burst, &SeenCalls) -> bool {
    move |_: &BurstFunction, _: &Burst, calls: &SeenCalls| calls.what == what
}

impl<'a> Summary<'a> {
    fn of(bursts: &'a Bursts) -> Summary<'a> {
        Summary {
            calls: bursts.calls_per_s(&all),
            bytes: bursts.bytes_per_s(&all),
            kinds: kinds(bursts),
            sizes: sizes(bursts, What::New),
            reallocs: bursts.calls_per_s(&asking(What::Resized)),
            realloc_share: bursts.share_of_calls(&asking(What::Resized), &all),
            realloc_sizes: sizes(bursts, What::Resized),
            threads: threads(bursts),
            callers: callers(bursts),
            bursts,
        }
    }

    fn sentence(&self) -> String {
        let mut text = match &self.calls {
            Ok(rate) => format!("{} calls a second", amount(rate, number_of)),
            Err(why) => format!("Too few bursts for a rate ({why})"),
        };
        if let (Ok(_), Ok(rate)) = (&self.calls, &self.bytes) {
            text.push_str(&format!(" request {} a second", amount(rate, |n| bytes(n as u64))));
        }
        if let Ok(share) = self.bursts.cost_share() {
            text.push_str(&format!("; counting took {} of the target's CPU time", percent(share.point)));
        }
        text.push('.');
        text[..1].to_uppercase() + &text[1..]
    }

    fn ranked(&self, by: impl Fn(&Caller) -> f64) -> Vec<&Caller> {
        let mut callers: Vec<&Caller> = self.callers.iter().collect();
        callers.retain(|caller| by(caller) > 0.0 && caller.function != NO_USER_STACK);
        callers.sort_by(|a, b| by(b).total_cmp(&by(a)));
        callers
    }
}

fn kinds(bursts: &Bursts) -> Vec<Kind> {
    let mut kinds: Vec<Kind> = Vec::new();
    for kind in EntryKind::ALL {
        let key = kind.key();
        let mine = || bursts.functions.iter().filter(move |function| function.kind.key() == key);
        if mine().next().is_none() || kinds.iter().any(|known| known.key == key) {
            continue;
        }
        let of_kind = |function: &BurstFunction, _: &Burst, _: &SeenCalls| function.kind.key() == key;
        kinds.push(Kind {
            key,
            calls: bursts.calls_per_s(&of_kind),
            at_most: bursts.at_most_per_s(|function| function.kind.key() == key),
            hits: mine().flat_map(|function| &function.bursts).map(|burst| burst.hits).sum(),
            bursts: mine().flat_map(|function| &function.bursts).filter(|burst| burst.is_active()).count(),
        });
    }
    kinds
}

/// Rows with calls.
fn sizes(bursts: &Bursts, what: What) -> Vec<Size> {
    let of_row = |calls: &SeenCalls, nth| calls.what == what && row_of(usize::from(calls.class)) == nth;
    let rows = empty_rows().into_iter().enumerate().filter_map(|(nth, row)| {
        let is_there = bursts.all().flat_map(|burst| &burst.calls).any(|calls| of_row(calls, nth));
        let keep = |_: &BurstFunction, _: &Burst, calls: &SeenCalls| of_row(calls, nth);
        is_there.then(|| Size {
            row,
            share: bursts.share_of_calls(&keep, &asking(what)),
            calls: bursts.calls_per_s(&keep),
            bytes: bursts.bytes_per_s(&keep),
        })
    });
    rows.collect()
}

/// Those with most CPU time.
fn threads(bursts: &Bursts) -> Vec<Thread<'_>> {
    let mut drawn: Vec<(u32, &BurstThread)> = (0..).zip(&bursts.threads).collect();
    drawn.sort_by_key(|(_, thread)| Reverse(thread.cpu_ns));
    drawn.truncate(THREADS);
    let threads = drawn.into_iter().map(|(number, of)| {
        let keep = |_: &BurstFunction, burst: &Burst, _: &SeenCalls| burst.thread == number;
        let active = bursts.all().filter(|burst| burst.thread == number && burst.is_active());
        Thread { of, bursts: active.count(), share: bursts.share_of_calls(&keep, &all) }
    });
    threads.collect()
}

/// The functions with most calls or bytes, in no order.
fn callers(bursts: &Bursts) -> Vec<Caller> {
    let code = Code { modules: &bursts.modules, frames: &bursts.frames, stacks: &bursts.stacks };
    let names = Callers::of(code);
    let functions: Vec<(String, String)> = bursts.sites.iter().map(|site| names.function(site)).collect();
    let mut sums: BTreeMap<&(String, String), (f64, f64)> = BTreeMap::new();
    for ((_, site), (calls, bytes)) in bursts.sites_per_s() {
        if let Some(function) = functions.get(site as usize) {
            let sum = sums.entry(function).or_default();
            (sum.0, sum.1) = (sum.0 + calls, sum.1 + bytes);
        }
    }
    let mut ranked: Vec<_> = sums.into_iter().collect();
    ranked.sort_by(|a, b| b.1.0.total_cmp(&a.1.0));
    let mut by_bytes = ranked.clone();
    by_bytes.sort_by(|a, b| b.1.1.total_cmp(&a.1.1));
    by_bytes.truncate(SITES);
    ranked.truncate(SITES);
    by_bytes.retain(|one| ranked.iter().all(|other| other.0 != one.0));
    ranked.extend(by_bytes);
    let is = |calls: &SeenCalls, function: &(String, String)| {
        calls.site.is_some_and(|site| functions.get(site as usize) == Some(function))
    };
    let caller = |(function, (calls_per_s, bytes_per_s)): (&(String, String), (f64, f64))| {
        let of = |calls: &SeenCalls, amount: f64| {
            calls.site.map(|_| (if is(calls, function) { amount } else { 0.0 }, amount))
        };
        let seen = bursts.all().flat_map(|burst| &burst.calls).filter(|calls| is(calls, function));
        Caller {
            function: function.0.clone(),
            module: function.1.clone(),
            samples: seen.map(|calls| u64::from(calls.calls)).sum(),
            calls_per_s,
            bytes_per_s,
            calls: bursts.share(&|_, _, calls| of(calls, f64::from(calls.calls))),
            bytes: bursts.share(&|_, _, calls| of(calls, calls.bytes as f64)),
        }
    };
    ranked.into_iter().map(caller).collect()
}

/// The point, or the lower bound.
fn amount(rate: &Rate, show: impl Fn(f64) -> String) -> String {
    match rate {
        Rate::Between(interval) => show(interval.point),
        Rate::AtLeast(low) => format!("at least {}", show(*low)),
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// The whole report, newline-terminated. No line is wider than `style.width` (or 40, if that is less).
pub fn report(bursts: &Bursts, style: Style) -> String {
    let summary = Summary::of(bursts);
    let mut page = Page::new(style);
    header(&mut page, bursts);
    page.blank();
    page.wrapped(0, &summary.sentence(), Ink::Heading);
    kind_rows(&mut page, &summary);
    size_rows(&mut page, ("SIZES", "of new blocks"), &summary.sizes);
    realloc_rows(&mut page, &summary);
    thread_rows(&mut page, &summary);
    site_rows(&mut page, &summary);
    limits(&mut page, &summary);
    page.out
}

fn header(page: &mut Page, bursts: &Bursts) {
    let pids: Vec<String> = bursts.processes.iter().map(|process| process.pid.to_string()).collect();
    let command = bursts.processes.first().map_or(String::new(), |process| process.command.join(" "));
    let title = format!("-p {}  {}", pids.join(","), terminal(&command));
    let title = elide_end(&title, page.width.saturating_sub(columns("allocwall count  ")));
    let line =
        format!("{}  {}", page.paint(Ink::Heading, "allocwall count"), page.paint(Ink::Heading, &title));
    page.line(&line);
    let mut facts: Vec<String> = Vec::new();
    facts.extend(
        bursts.processes.first().map(|process| format!("allocator {}", basename(&process.allocator))),
    );
    facts.push(format!("{:.1} s", seconds(bursts.length_ns)));
    facts.push(format!("{:.1} CPU-s", seconds(bursts.cpu_ns())));
    facts.push(count_of(bursts.all().count() as u64, "burst"));
    facts.extend(match bursts.ended {
        Ended::TargetExited { .. } => Some("the process ended".to_owned()),
        Ended::Interrupted => Some("interrupted".to_owned()),
        Ended::Complete | Ended::CutOff => None,
    });
    page.wrapped(2, &facts.join(" · "), Ink::Plain);
}

fn kind_rows(page: &mut Page, summary: &Summary) {
    page.section("CALLS", "a second, with 95 % intervals");
    for kind in &summary.kinds {
        let counted = format!("{} calls in {}", thousands(kind.hits), count_of(kind.bursts as u64, "burst"));
        let (point, range) = match (&kind.calls, kind.at_most) {
            (Ok(rate @ Rate::Between(range)), _) => (
                format!("{}/s", amount(rate, number_of)),
                format!("{} to {}", number_of(range.low), number_of(range.high)),
            ),
            (Ok(rate), _) => (format!("{}/s", amount(rate, number_of)), String::new()),
            (Err(_), Some(most)) => ("none seen".to_owned(), format!("at most {}/s", number_of(most))),
            (Err(_), None) => ("too few bursts".to_owned(), String::new()),
        };
        let title = kind.key.replace('_', " ");
        let lead = format!("  {}{}  {}", left(&title, 16), right(&point, 22), left(&range, 26));
        let line = format!("{lead}{}", page.paint(Ink::Faint, &counted));
        // Colours have no width, so a line that does not fit is shown without its end.
        let fits = columns(&lead) + columns(&counted) <= page.width;
        page.line(&if fits { line } else { elide_end(&lead, page.width) });
    }
}

fn size_rows(page: &mut Page, (title, aside): (&str, &str), sizes: &[Size]) {
    if sizes.is_empty() {
        return;
    }
    let line = |cells: [&str; 6]| {
        let [title, share, range, bar, calls, bytes] = cells;
        let (share, range) = (right(share, 8), left(range, 16));
        format!(
            "{}{share}  {range}{}{}{}",
            left(title, 20),
            left(bar, BAR + 1),
            right(calls, 16),
            right(bytes, 16)
        )
    };
    let heads = line([&format!("{title}  {aside}"), "calls", "", "", "calls/s", "bytes/s"]);
    head(page, title, &elide_end(&heads, page.width));
    for size in sizes {
        let (share, range, bar) = match &size.share {
            Ok(share) => (percent(share.point), percents(share.low, share.high), bar(share.point, BAR)),
            Err(_) => Default::default(),
        };
        let calls = size.calls.as_ref().map_or(String::new(), |rate| amount(rate, number_of));
        let each_second = size.bytes.as_ref().map_or(String::new(), |rate| amount(rate, |n| bytes(n as u64)));
        let title = format!("  {}", size.row.title());
        page.line(&elide_end(&line([&title, &share, &range, &bar, &calls, &each_second]), page.width));
    }
}

fn realloc_rows(page: &mut Page, summary: &Summary) {
    let Ok(rate) = &summary.reallocs else { return };
    page.section("REALLOCS", "of a block; whether they copied is not known");
    let mut text = format!("{} a second", amount(rate, number_of));
    if let Ok(share) = &summary.realloc_share {
        text.push_str(&format!(
            ", {} of the calls ({})",
            percent(share.point),
            percents(share.low, share.high)
        ));
    }
    page.wrapped(2, &text, Ink::Plain);
    size_rows(page, ("NEW SIZES", ""), &summary.realloc_sizes);
}

fn thread_rows(page: &mut Page, summary: &Summary) {
    if summary.threads.len() < 2 {
        return;
    }
    let line = |cells: [&str; 5]| {
        let [tid, name, cpu, share, range] = cells;
        format!("{}  {}{}{}  {range}", right(tid, 10), left(name, 16), right(cpu, 12), right(share, 12))
    };
    let heads = line(["", "", "CPU time", "calls", ""]);
    head(page, "THREADS", &elide_end(&format!("THREADS{}", &heads["THREADS".len()..]), page.width));
    let all = summary.bursts.cpu_ns() as f64;
    for thread in summary.threads.iter().take(THREADS_SHOWN) {
        let name = thread.of.name.as_ref().map_or("–".to_owned(), |name| terminal(name));
        let (share, range) = match &thread.share {
            Ok(share) => (percent(share.point), format!("({})", percents(share.low, share.high))),
            Err(_) => ("none seen".to_owned(), String::new()),
        };
        let cpu = percent(part(thread.of.cpu_ns as f64, all));
        let tid = thread.of.tid.to_string();
        page.line(&elide_end(&line([&tid, &elide_end(&name, 15), &cpu, &share, &range]), page.width));
    }
    let further = summary.bursts.threads.len().saturating_sub(THREADS_SHOWN);
    if further > 0 {
        page.wrapped(2, &format!("{further} more threads were counted"), Ink::Faint);
    }
}

fn site_rows(page: &mut Page, summary: &Summary) {
    let by_calls = summary.ranked(|caller| caller.calls_per_s);
    let by_bytes = summary.ranked(|caller| caller.bytes_per_s);
    let share = |share: &Measured<Interval>| share.as_ref().map_or(0.0, |share| share.point);
    let bounded = matches!(summary.bursts.calls_per_s(&|_, _, _| true), Ok(Rate::AtLeast(_)));
    for (by, ranked) in [("by calls", by_calls), ("by bytes", by_bytes)] {
        if ranked.is_empty() {
            continue;
        }
        page.section("CALL SITES", by);
        for caller in ranked.into_iter().take(SITES_SHOWN) {
            let (of_all, each_second) = match by {
                "by calls" => (share(&caller.calls), number_of(caller.calls_per_s)),
                _ => (share(&caller.bytes), bytes(caller.bytes_per_s as u64)),
            };
            let names = (caller.function.as_str(), caller.module.as_str());
            // Where all calls together have only a lower bound, so has each site.
            let each_second = if bounded { String::new() } else { format!("{each_second}/s") };
            site_line(page, names, of_all, &each_second);
        }
    }
}

fn limits(page: &mut Page, summary: &Summary) {
    let bursts = summary.bursts;
    page.section("LIMITS", "what was not measured, and what counting cost");
    let over: u64 = bursts.all().map(|burst| burst.cpu_ns).sum();
    let text = format!(
        "Estimates are from {} that were counted in {} of CPU time, one function of one thread at a time. Intervals of all: --json.",
        count_of(bursts.hits(), "call"),
        time(over as f64)
    );
    page.wrapped(2, &text, Ink::Faint);
    let unknown = "latency, lifetimes, frees by another thread, live memory, and what realloc copied";
    page.wrapped(2, &format!("{unknown}: {}", not_in_bursts().with_advice()), Ink::Plain);
    if let Ok(coverage) = bursts.coverage() {
        let text = format!(
            "{} with {} of the CPU time were counted; further ones had the same chance for each CPU second",
            count_of(bursts.threads.len() as u64, "thread"),
            percent(coverage)
        );
        page.wrapped(2, &text, Ink::Faint);
    }
    let lost: u64 = bursts.all().map(Burst::lost).sum();
    if lost > 0 {
        let text =
            format!("the arguments of {} had no room, and were not read", count_of(lost, "counted call"));
        page.wrapped(2, &text, Ink::Warn);
    }
    for why in bursts.missing.iter().take(MISSING_SHOWN) {
        page.wrapped(2, &why.with_advice(), Ink::Warn);
    }
    if let Ok(share) = bursts.cost_share() {
        let text = format!(
            "counting took about {:.3} CPU-s, {} of the target's CPU time ({}): a counted call takes {} longer",
            bursts.incurred_ns.point / 1e9,
            percent(share.point),
            percents(share.low, share.high),
            time(bursts.hit.plain.point)
        );
        page.wrapped(2, &text, Ink::Faint);
    }
}

/// The document, indented, newline-terminated.
pub fn document(bursts: &Bursts) -> String {
    printed(&value(bursts))
}

fn value(bursts: &Bursts) -> Value {
    let summary = Summary::of(bursts);
    let mut document = json!({
        "version": VERSION,
        "tool": { "name": "allocwall", "version": env!("CARGO_PKG_VERSION") },
        "ended": named(&bursts.ended),
        "sentence": summary.sentence(),
        "length_s": number(seconds(bursts.length_ns)),
        "cpu_s": number(seconds(bursts.cpu_ns())),
        "calls_per_s": measured(&summary.calls, rate_value),
        "bytes_per_s": measured(&summary.bytes, rate_value),
        "kinds": list(&summary.kinds, |kind| json!({
            "kind": kind.key,
            "calls_per_s": measured(&kind.calls, rate_value),
            "at_most_per_s": kind.at_most.map(number),
            "hits": kind.hits,
            "bursts": kind.bursts,
        })),
        "sizes": list(&summary.sizes, size_value),
        "reallocs": {
            "calls_per_s": measured(&summary.reallocs, rate_value),
            "share": measured(&summary.realloc_share, interval),
            "sizes": list(&summary.realloc_sizes, size_value),
        },
        "threads": list(&summary.threads, |thread| json!({
            "pid": bursts.processes.get(thread.of.process as usize).map(|process| process.pid),
            "tid": thread.of.tid,
            "name": measured(&thread.of.name, plain),
            "cpu_s": number(seconds(thread.of.cpu_ns)),
            "bursts": thread.bursts,
            "share": measured(&thread.share, interval),
        })),
        "functions": list(&summary.ranked(|caller| caller.calls_per_s), |caller| json!({
            "function": caller.function,
            "module": caller.module,
            "samples": caller.samples,
            "calls_per_s": number(caller.calls_per_s),
            "bytes_per_s": number(caller.bytes_per_s),
            "calls_share": measured(&caller.calls, interval),
            "bytes_share": measured(&caller.bytes, interval),
        })),
        "bursts": counts(bursts),
        "cost": {
            "hit_ns": interval(&bursts.hit.plain),
            "recorded_hit_ns": interval(&bursts.hit.recorded),
            "cpu_s": interval(&bursts.incurred_ns.scaled(1e-9)),
            "share": measured(&bursts.cost_share(), interval),
        },
        "coverage": measured(&bursts.coverage(), |share| number(*share)),
        "processes": list(&bursts.processes, |process| json!({
            "pid": process.pid,
            "command": process.command,
            "allocator": process.allocator,
            "cpu_s": number(seconds(process.cpu_ns)),
            "ended": process.ended,
        })),
        "missing": list(&bursts.missing, absence),
    });
    if let Value::Object(fields) = &mut document {
        let unknown: Measured<()> = Err(not_in_bursts());
        fields.extend(UNKNOWN.map(|key| (key.to_owned(), measured(&unknown, |()| Value::Null))));
    }
    document
}

fn counts(bursts: &Bursts) -> Value {
    let over: u64 = bursts.all().map(|burst| burst.cpu_ns).sum();
    json!({
        "taken": bursts.all().count(),
        "active": bursts.all().filter(|burst| burst.is_active()).count(),
        "with_calls": bursts.all().filter(|burst| burst.hits > 0).count(),
        "cpu_s": number(seconds(over)),
        "hits": bursts.hits(),
        "recorded": bursts.all().map(Burst::recorded).sum::<u64>(),
        "lost": bursts.all().map(Burst::lost).sum::<u64>(),
    })
}

fn rate_value(rate: &Rate) -> Value {
    match rate {
        Rate::Between(between) => interval(between),
        Rate::AtLeast(low) => json!({ "at_least": number(*low) }),
    }
}

fn size_value(size: &Size) -> Value {
    json!({
        "above_bytes": size.row.above,
        "up_to_bytes": size.row.up_to,
        "share": measured(&size.share, interval),
        "calls_per_s": measured(&size.calls, rate_value),
        "bytes_per_s": measured(&size.bytes, rate_value),
    })
}

/// Collapsed stacks (see [`crate::collapsed`]): `process;root;…;caller count`. The count is the estimated number of allocations and
/// reallocs in the time of the count.
pub fn stacks(bursts: &Bursts) -> String {
    let of = Code { modules: &bursts.modules, frames: &bursts.frames, stacks: &bursts.stacks };
    let names: Vec<String> = bursts.frames.iter().map(|frame| name(of.module(frame), frame)).collect();
    let mut calls: BTreeMap<String, f64> = BTreeMap::new();
    for ((process, site), (each_second, _)) in bursts.sites_per_s() {
        let (Some(process), Some(stack)) =
            (bursts.processes.get(process as usize), bursts.sites.get(site as usize))
        else {
            continue;
        };
        let below = root(process.command.first().map(String::as_str), process.pid);
        let stack = [&[below][..], &code(of.stacks, &names, stack)].concat().join(";");
        *calls.entry(stack).or_default() += each_second * seconds(bursts.length_ns);
    }
    let lines = calls.iter().map(|(stack, calls)| (stack, calls.round() as u64));
    lines.filter(|(_, calls)| *calls > 0).map(|(stack, calls)| format!("{stack} {calls}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::super::json::tests::paths;
    use super::*;
    use crate::described::described;
    use allocwall_model::allocations::class_of;
    use allocwall_model::bursts::{BurstProcess, HitCost};
    use allocwall_model::recording::{Frame, Module, ModuleRole, Stack};
    use allocwall_model::units::{Absence, Reason};
    use std::collections::BTreeSet;

    const MS: u64 = 1_000_000;

    fn seen(what: What, size: u64, site: Option<u32>, calls: u32) -> SeenCalls {
        let class = if size > 0 { class_of(size) as u16 } else { 0 };
        SeenCalls { what, class, site, calls, bytes: size * u64::from(calls) }
    }

    /// Bursts of 10 ms with this number of calls, by two threads in turns; each tenth is recorded.
    fn function(kind: EntryKind, hits: u64, calls: &[SeenCalls]) -> BurstFunction {
        let burst = |nth: u32| Burst {
            thread: nth % 2,
            t_ns: u64::from(nth) * 100 * MS,
            over_ns: 10 * MS,
            cpu_ns: 10 * MS,
            expected_ns: 10 * MS,
            hits: if hits > 0 { hits + u64::from(nth) } else { 0 },
            every: 10,
            calls: calls.to_vec(),
        };
        BurstFunction { process: 0, kind, name: kind.key().into(), bursts: (0..6).map(burst).collect() }
    }

    fn frame(module: u32, symbol: &str) -> Frame {
        Frame { module: Some(module), symbol: Some(symbol.into()), offset: 0x10 }
    }

    fn module(path: &str, role: ModuleRole) -> Module {
        Module { path: path.into(), build_id: None, role, malloc_ranges: vec![], has_symbols: true }
    }

    /// A service with two threads, of which each uses half a CPU.
    fn service() -> Bursts {
        let thread =
            |tid, name: &str| BurstThread { process: 0, tid, name: Ok(name.into()), cpu_ns: 4_500 * MS };
        let small = [seen(What::New, 100, Some(0), 30), seen(What::New, 3000, Some(1), 10)];
        let again = [seen(What::Resized, 5000, Some(1), 3)];
        let freed = [seen(What::Freed, 0, None, 38), seen(What::Nothing, 0, None, 2)];
        let unread = Absence::new(Reason::Unparsable, "the stack could not be unwound");
        Bursts {
            length_ns: 10_000 * MS,
            ended: Ended::Complete,
            processes: vec![BurstProcess {
                pid: 4242,
                command: vec!["/usr/bin/service".into(), "80\u{1b}[2J".into()],
                allocator: "/usr/lib/x86_64-linux-gnu/libc.so.6".into(),
                cpu_ns: 10_000 * MS,
                ended: false,
            }],
            threads: vec![thread(4242, "service"), thread(4243, "worker\u{1b}[2J")],
            functions: vec![
                function(EntryKind::Malloc, 400, &small),
                function(EntryKind::Realloc, 30, &again),
                function(EntryKind::Aligned, 0, &[]),
                function(EntryKind::Free, 400, &freed),
            ],
            hit: HitCost {
                plain: Interval::new(600.0, 700.0, 800.0),
                recorded: Interval::new(1200.0, 1400.0, 1600.0),
            },
            incurred_ns: Interval::new(30e6, 40e6, 50e6),
            sites: vec![Ok(0), Ok(1), Err(unread)],
            modules: vec![
                module("/usr/bin/service", ModuleRole::Other),
                module("/usr/lib/x86_64-linux-gnu/libc.so.6", ModuleRole::Libc),
            ],
            frames: vec![frame(0, "parse_record"), frame(0, "main"), frame(1, "strdup")],
            stacks: vec![
                Stack { frames: vec![0, 1], complete: true },
                Stack { frames: vec![2, 1], complete: true },
            ],
            missing: vec![Absence::new(Reason::TooLittle, "only 3 bursts met calls")],
        }
    }

    fn silent() -> Bursts {
        Bursts { functions: vec![function(EntryKind::Malloc, 0, &[])], ..service() }
    }

    fn printed_at(bursts: &Bursts, width: usize) -> String {
        report(bursts, Style { color: false, width })
    }

    fn on_one_line(text: &str) -> String {
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_report_has_rates_sizes_threads_sites_and_the_cost() {
        let bursts = service();
        let text = printed_at(&bursts, 100);
        let line = on_one_line(&text);
        for part in [
            "allocwall count -p 4242 /usr/bin/service",
            "allocator libc.so.6 · 10.0 s · 10.0 CPU-s · 24 bursts",
            "counting took 0.4 % of the target's CPU time.",
            "64 to 128 B 75 % 75 to 75 %",
            "1 to 4 KiB 25 %",
            "4 to 32 KiB",
            "aligned none seen at most",
            "THREADS",
            "CALL SITES by calls",
            "parse_record service",
            "start the command with allocwall count -- CMD",
            "only 3 bursts met calls",
            "a counted call takes 700 ns longer",
        ] {
            assert!(line.contains(part), "{part}: {text}");
        }
        // 40,250 calls of malloc in a CPU second, as many of free, of which one of 20 does nothing; 3,250 of realloc.
        let Ok(Rate::Between(calls)) = bursts.calls_per_s(&all) else { panic!("no rate") };
        assert!((80e3..90e3).contains(&calls.point), "{calls:?}");
        assert!(line.starts_with("allocwall count") && line.contains("calls a second request"), "{text}");
    }

    #[test]
    fn no_line_is_wider_than_asked_and_no_escape_reaches_the_terminal() {
        for bursts in [service(), silent()] {
            for width in 40..=100 {
                let text = printed_at(&bursts, width);
                for line in text.lines() {
                    assert!(columns(line) <= width, "{width}: {line}");
                }
                assert!(!text.contains('\u{1b}'));
            }
        }
    }

    #[test]
    fn what_no_burst_met_is_no_zero() {
        let text = on_one_line(&printed_at(&silent(), 100));
        assert!(text.contains("Too few bursts for a rate (no burst met such a call)"), "{text}");
        assert!(text.contains("malloc none seen at most 61/s"), "{text}");
        assert!(
            !text.contains("SIZES") && !text.contains("CALL SITES") && !text.contains("REALLOCS"),
            "{text}"
        );
        let document = value(&silent());
        assert_eq!(document["calls_per_s"]["absent"]["reason"], "too_little");
        assert_eq!(document["sizes"].as_array().map(Vec::len), Some(0));
    }

    #[test]
    fn a_lower_bound_is_shown_as_one() {
        let mut bursts = service();
        for burst in &mut bursts.functions[0].bursts {
            burst.hits = 14_000;
        }
        let text = on_one_line(&printed_at(&bursts, 100));
        assert!(text.contains("At least ") && text.contains("malloc at least "), "{text}");
        let document = value(&bursts);
        assert!(document["calls_per_s"]["at_least"].is_number(), "{document}");
        assert!(document["kinds"][2]["calls_per_s"]["point"].is_number(), "{document}");
    }

    #[test]
    fn every_field_is_described() {
        const PARTS: [&str; 3] = ["tool", "ended", "missing"];
        let mut found = BTreeSet::new();
        paths(&value(&service()), "", &PARTS, &mut found);
        let described = described("Calls of a running process: ");
        let missing: Vec<_> = found.difference(&described).collect();
        let stale: Vec<_> = described.difference(&found).collect();
        assert!(
            missing.is_empty() && stale.is_empty(),
            "not in docs/json.md: {missing:#?}\nonly there: {stale:#?}"
        );
    }

    #[test]
    fn the_document_has_the_estimates_and_typed_gaps() {
        let text = document(&service());
        assert!(!text.contains('\u{1b}'));
        let document: Value = serde_json::from_str(&text).expect("valid JSON");
        assert_eq!(document["sizes"][0]["up_to_bytes"], 128);
        assert_eq!(document["ended"]["kind"], "complete");
        assert_eq!(document["functions"][0]["function"], "parse_record");
        assert_eq!(document["threads"][0]["bursts"], 12);
        let cost = document["cost"]["share"]["point"].as_f64().expect("a share");
        assert!((cost - 0.004).abs() < 1e-9, "{cost}");
        for key in UNKNOWN {
            assert_eq!(document[key]["absent"]["reason"], "not_supported", "{key}");
        }
    }

    #[test]
    fn stacks_read_root_first_below_their_process() {
        let text = stacks(&service());
        let lines: Vec<&str> = text.lines().collect();
        let [first, second] = lines[..] else { panic!("{text}") };
        assert!(first.starts_with("service (pid 4242);main;parse_record "), "{text}");
        assert!(second.starts_with("service (pid 4242);main;strdup "), "{text}");
        assert_eq!(stacks(&silent()), "");
    }
}
