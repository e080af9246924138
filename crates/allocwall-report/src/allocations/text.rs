//! The text that `allocwall count` prints.

use super::{
    CallSite, MILLISECOND_NS, Run, Sampled, SizeRow, Summary, Work, WorkSource, basename, percent, percents,
    rate, requested, size_rows,
};
use crate::escape::terminal;
use crate::layout::{apportion, columns, elide_end, elide_middle, left, right};
use crate::text::{Ink, Page, Style, bar, bytes};
use allocwall_diagnose::bill::NO_USER_STACK;
use allocwall_model::allocations::{Calls, CountedProcess, Histogram, Latency, ThreadCount};
use allocwall_model::recording::Ended;
use allocwall_model::units::{Absence, Interval, plural, thousands};
use std::cmp::Reverse;

const PROCESSES_SHOWN: usize = 3;
const THREADS_SHOWN: usize = 10;
const SITES_SHOWN: usize = 5;
const MISSING_SHOWN: usize = 8;
const BAR: usize = 12;
/// A percentile is shown if so many samples are expected beyond it.
const BEYOND: f64 = 1.0;
const NOTHING: &str = "–";

/// The whole report, newline-terminated. No line is wider than `style.width` (or 40, if that is less).
pub fn report(run: &Run, style: Style) -> String {
    let summary = Summary::of(run);
    let mut page = Page::new(style);
    header(&mut page, run);
    page.blank();
    page.wrapped(0, &summary.sentence(), Ink::Heading);
    all_calls(&mut page, &summary);
    sizes(&mut page, &summary.sizes);
    reallocs(&mut page, &summary);
    threads(&mut page, &summary);
    if let Ok(sampled) = &summary.sampled {
        remote_frees(&mut page, sampled);
        latency(&mut page, sampled);
        lifetimes(&mut page, sampled);
        live(&mut page, sampled, run.counted.processes.len() > 1);
        sites(&mut page, sampled, run);
    }
    if let Ok(work) = &summary.work {
        per_unit(&mut page, work);
    }
    limits(&mut page, &summary);
    page.out
}

/// Totals and sizes while the command runs, at most `width` columns wide.
pub fn so_far(calls: &Calls, classes: &[u64], length_s: f64, width: usize) -> String {
    let mut page = Page::new(Style { color: false, width });
    let per_second = |amount: f64| part(amount, length_s);
    let totals = format!(
        "{length_s:.0} s · {} calls ({}/s) · {} requested ({}/s)",
        thousands(calls.all()),
        rate(per_second(calls.all() as f64)),
        bytes(requested(calls) as u64),
        bytes(per_second(requested(calls)) as u64)
    );
    page.line(&elide_end(&totals, page.width));
    sizes(&mut page, &size_rows(classes));
    page.out
}

fn header(page: &mut Page, run: &Run) {
    let command = elide_middle(&terminal(&run.command.join(" ")), page.width - columns("allocwall count  "));
    let name = page.paint(Ink::Heading, "allocwall count");
    let command = page.paint(Ink::Heading, &command);
    page.line(&format!("{name}  {command}"));
    page.wrapped(2, &facts(run).join(" · "), Ink::Plain);
}

/// What was counted, and how it ended.
pub(crate) fn facts(run: &Run) -> Vec<String> {
    let further = run.counted.further.as_ref().map_or(0, |further| further.processes);
    let processes = (run.counted.processes.len() as u64).saturating_add(further);
    let mut facts = vec![match processes {
        1 => "1 process".to_owned(),
        n => format!("{} processes", thousands(n)),
    }];
    facts.push(match run.counted.processes.first().map(|process| &process.allocator) {
        Some(Ok(path)) => format!("allocator {}", basename(path)),
        _ => "allocator unknown".to_owned(),
    });
    facts.push(format!("{:.1} s", run.length_s()));
    if let Ok(cpu_s) = &run.cpu_s {
        facts.push(format!("{cpu_s:.1} CPU-s"));
    }
    facts.extend(match &run.ended {
        Ended::TargetExited { status } => status.clone(),
        Ended::Interrupted => Some("interrupted: the command was ended".to_owned()),
        Ended::Complete | Ended::CutOff => Some("ended at the time limit".to_owned()),
    });
    facts
}

/// An amount of a kind of calls, the same in a second, and what it consists of.
pub(crate) struct Total {
    pub title: &'static str,
    pub amount: String,
    pub each_second: String,
    pub kinds: String,
}

pub(crate) fn totals(summary: &Summary) -> [Total; 4] {
    let Summary { run, calls, .. } = summary;
    let each_second = |count: u64| format!("{}/s", rate(run.per_second(count as f64)));
    let of = |kinds: &[(&str, u64)]| {
        let kinds = kinds.iter().filter(|(_, count)| *count > 0);
        let kinds: Vec<String> = kinds.map(|(kind, count)| format!("{kind} {}", thousands(*count))).collect();
        kinds.join(" · ")
    };
    let allocations = of(&[
        ("malloc", calls.malloc),
        ("calloc", calls.calloc),
        ("aligned", calls.aligned),
        ("operator new", calls.operator_new),
        ("realloc(NULL)", calls.realloc_new),
    ]);
    let frees = of(&[("operator delete", calls.operator_delete), ("and free(NULL)", calls.free_null)]);
    let total = |title, count, kinds| Total {
        title,
        amount: thousands(count),
        each_second: each_second(count),
        kinds,
    };
    let all_bytes = requested(calls);
    [
        total("allocations", calls.allocations(), allocations),
        total("reallocs", calls.reallocs(), String::new()),
        total("frees", calls.frees, frees),
        Total {
            title: "requested",
            amount: bytes(all_bytes as u64),
            each_second: format!("{}/s", bytes(run.per_second(all_bytes) as u64)),
            kinds: String::new(),
        },
    ]
}

fn all_calls(page: &mut Page, summary: &Summary) {
    page.section("CALLS", &format!("in {:.1} s, exact", summary.run.length_s()));
    for Total { title, amount, each_second, kinds } in totals(summary) {
        row(page, title, &amount, &each_second, &kinds);
    }
    about_calls(page, summary);
}

/// Failed calls, and the processes if there are several.
pub(crate) fn about_calls(page: &mut Page, summary: &Summary) {
    let failed = summary.calls.failed;
    if failed > 0 {
        let text = format!("{} failed, of those whose result was seen", count_of(failed, "call"));
        page.wrapped(2, &text, Ink::Warn);
    }
    processes(page, summary);
}

/// A title, two numbers, and a text that is wrapped beside them.
fn row(page: &mut Page, title: &str, number: &str, each_second: &str, text: &str) {
    const INDENT: usize = 44;
    let lead = format!("  {}{}{}", left(title, 13), right(number, 15), right(each_second, 14));
    match text.is_empty() {
        true => page.line(&elide_end(&lead, page.width)),
        false => page.hang(&format!("{lead}  "), Ink::Plain, INDENT + 2, text, Ink::Faint),
    }
}

fn processes(page: &mut Page, summary: &Summary) {
    let all: Vec<&CountedProcess> =
        summary.run.counted.processes.iter().filter(|process| process.calls.all() > 0).collect();
    if all.len() < 2 {
        return;
    }
    for process in all.iter().take(PROCESSES_SHOWN) {
        let name = match &process.command {
            Ok(command) => command.first().map_or("", |program| basename(program)),
            Err(_) => "",
        };
        let allocator = match &process.allocator {
            Ok(path) => basename(path),
            Err(_) => "allocator unknown",
        };
        let share = part(process.calls.all() as f64, summary.calls.all() as f64);
        let text = format!("pid {} {name}: {} of the calls · {allocator}", process.pid, percent(share));
        page.wrapped(2, &text, Ink::Plain);
    }
    if all.len() > PROCESSES_SHOWN {
        page.wrapped(2, &format!("{} more with --json", all.len() - PROCESSES_SHOWN), Ink::Faint);
    }
}

fn sizes(page: &mut Page, rows: &[SizeRow]) {
    if rows.is_empty() {
        return;
    }
    let (wide, numbers) = (page.width >= 90, page.width >= 62);
    let line = |cells: [&str; 7]| {
        let [title, calls, calls_share, calls_bar, bytes, bytes_share, bytes_bar] = cells;
        let mut line = left(title, 20);
        let mut half = |number: &str, width: usize, share: &str, bar: &str| {
            if numbers {
                line.push_str(&right(number, width));
            }
            line.push_str(&right(share, if numbers { 8 } else { 9 }));
            if wide {
                line.push_str(&format!("  {}", left(bar, BAR)));
            }
        };
        half(calls, 14, calls_share, calls_bar);
        half(bytes, 12, bytes_share, bytes_bar);
        line
    };
    // On a narrow page, the heads take the place of the numbers.
    let heads = match numbers {
        true => line(["SIZES", "allocations", "", "", "bytes, about", "", ""]),
        false => line(["SIZES", "", "calls", "", "", "bytes", ""]),
    };
    head(page, "SIZES", &heads);
    let tenths = |of: &dyn Fn(&SizeRow) -> f64| apportion(&rows.iter().map(of).collect::<Vec<_>>(), 1000);
    let calls = tenths(&|row| row.calls as f64);
    let of_bytes = tenths(&|row| row.bytes.point);
    for ((row, calls), of_bytes) in rows.iter().zip(calls).zip(of_bytes) {
        let text = line([
            &format!("  {}", row.title()),
            &thousands(row.calls),
            &per_mille(calls),
            &bar(calls as f64 / 1000.0, BAR),
            &bytes(row.bytes.point as u64),
            &per_mille(of_bytes),
            &bar(of_bytes as f64 / 1000.0, BAR),
        ]);
        page.line(&elide_end(&text, page.width));
    }
}

pub(crate) fn per_mille(tenths: u64) -> String {
    format!("{}.{} %", tenths / 10, tenths % 10)
}

/// The heading of a table. `heads` begins with the title.
pub(super) fn head(page: &mut Page, title: &str, heads: &str) {
    page.blank();
    let rest = heads.strip_prefix(title).unwrap_or_default();
    let line = format!("{}{}", page.paint(Ink::Heading, title), page.paint(Ink::Faint, rest));
    page.line(&line);
}

/// What became of the blocks of reallocs, their number, and a remark; without kinds that did not occur.
pub(crate) fn realloc_kinds(summary: &Summary) -> Vec<(&'static str, u64, String)> {
    let Summary { run, calls, .. } = summary;
    let copied = format!(
        "{} copied ({}/s)",
        bytes(calls.copied_bytes),
        bytes(run.per_second(calls.copied_bytes as f64) as u64)
    );
    let kinds = [
        ("in place", calls.in_place, String::new()),
        ("moved", calls.moved, copied),
        ("remapped", calls.remapped, "the kernel moves the pages".to_owned()),
        ("to size 0", calls.realloc_freed, String::new()),
        ("failed", calls.realloc_failed, String::new()),
    ];
    kinds.into_iter().filter(|(_, count, _)| *count > 0).collect()
}

fn reallocs(page: &mut Page, summary: &Summary) {
    if summary.calls.reallocs() == 0 {
        return;
    }
    page.section("REALLOCS", "of a block, exact");
    let shown = |(kind, count, remark): &(&str, u64, String)| match remark.is_empty() {
        true => format!("{kind} {}", thousands(*count)),
        false => format!("{kind} {}, {remark}", thousands(*count)),
    };
    let kinds: Vec<String> = realloc_kinds(summary).iter().map(shown).collect();
    page.wrapped(2, &kinds.join(" · "), Ink::Plain);
}

pub(crate) fn threads(page: &mut Page, summary: &Summary) {
    let mut all: Vec<&ThreadCount> =
        summary.run.counted.processes.iter().flat_map(|process| &process.threads).collect();
    if all.len() < 2 {
        return;
    }
    all.sort_by_key(|thread| Reverse(thread.calls.all()));
    let (wide, numbers) = (page.width >= 76, page.width >= 50);
    let line = |cells: [&str; 6]| {
        let [tid, name, calls, share, frees, requested] = cells;
        let mut line = format!("{}  {}", right(tid, 10), left(name, 16));
        if numbers {
            line.push_str(&right(calls, 14));
        }
        line.push_str(&right(share, 8));
        if wide {
            line.push_str(&format!("{}{}", right(frees, 14), right(requested, 12)));
        }
        line
    };
    let heads = line(["", "", "calls", "", "frees", "requested"]);
    head(page, "THREADS", &format!("THREADS{}", &heads["THREADS".len()..]));
    for thread in all.iter().take(THREADS_SHOWN) {
        let calls = thread.calls.all();
        let text = line([
            &thread.tid.map_or(NOTHING.to_owned(), |tid| tid.to_string()),
            &name_of(thread),
            &thousands(calls),
            &percent(part(calls as f64, summary.calls.all() as f64)),
            &thousands(thread.calls.frees),
            &bytes(requested(&thread.calls) as u64),
        ]);
        page.line(&elide_end(&text, page.width));
    }
    if all.len() > THREADS_SHOWN {
        page.wrapped(2, &format!("{} more with --json", all.len() - THREADS_SHOWN), Ink::Faint);
    }
}

/// At most 15 columns: the name, and how many threads had the slot one after the other.
fn name_of(thread: &ThreadCount) -> String {
    let name = match (&thread.tid, &thread.name) {
        (None, _) => "(no slot)".to_owned(),
        (_, Ok(name)) => terminal(name),
        (_, Err(_)) => NOTHING.to_owned(),
    };
    let times = if thread.threads > 1 { format!(" ×{}", thread.threads) } else { String::new() };
    format!("{}{times}", elide_end(&name, 15_usize.saturating_sub(columns(&times))))
}

pub(crate) fn remote_frees(page: &mut Page, sampled: &Sampled) {
    let Ok(share) = &sampled.remote_share else { return };
    page.section("FREES BY ANOTHER THREAD", "than the one that allocated");
    let mut text = format!("{} of the freed blocks", with_interval(*share));
    if let Ok(share) = &sampled.remote_bytes_share {
        text.push_str(&format!(" · {} of their bytes", with_interval(*share)));
    }
    page.wrapped(2, &text, Ink::Plain);
}

fn with_interval(share: Interval) -> String {
    format!("{} ({})", percent(share.point), percents(share.low, share.high))
}

fn latency(page: &mut Page, sampled: &Sampled) {
    let Ok(list) = &sampled.latency else { return };
    if list.is_empty() {
        return;
    }
    let wide = page.width >= 80;
    let line = |cells: [&str; 5]| {
        let [title, median, p99, p999, samples] = cells;
        match wide {
            true => {
                let numbers = [median, p99, p999, samples].map(|cell| right(cell, 12)).concat();
                format!("{}{numbers}", left(title, 30))
            }
            false => format!("{}{}{}", left(&elide_end(title, 21), 22), right(median, 9), right(p99, 9)),
        }
    };
    head(page, "LATENCY", &line(["LATENCY", "median", "p99", "p99.9", "samples"]));
    for Latency { kind, large, times } in list {
        let compared = if *large { "≥" } else { "<" };
        let text = line([
            &format!("  {} {compared} 128 KiB", kind.title()),
            &percentile(times, 0.5),
            &percentile(times, 0.99),
            &percentile(times, 0.999),
            &thousands(times.samples()),
        ]);
        page.line(&elide_end(&text, page.width));
    }
    if let Some((small, large)) = sampled.two_modes() {
        let text = format!(
            "Two modes: an allocation of 128 KiB or more takes {}, a smaller one {} (medians).",
            time(large),
            time(small)
        );
        page.wrapped(2, &text, Ink::Warn);
    }
}

fn percentile(times: &Histogram, part: f64) -> String {
    let beyond = times.samples() as f64 * (1.0 - part);
    match times.quantile(part) {
        Ok(value) if beyond >= BEYOND => time(value.point),
        _ => NOTHING.to_owned(),
    }
}

/// In the unit that fits, with two digits at least.
pub(super) fn time(ns: f64) -> String {
    let (value, unit) = match ns {
        ns if ns < 999.5 => (ns, "ns"),
        ns if ns < 999.5e3 => (ns / 1e3, "µs"),
        ns if ns < 999.5e6 => (ns / 1e6, "ms"),
        ns => (ns / 1e9, "s"),
    };
    if value < 9.95 && unit != "ns" { format!("{value:.1} {unit}") } else { format!("{value:.0} {unit}") }
}

/// A range of lifetimes, and its share of the blocks and of their bytes in tenths of a percent. Nothing if they were not measured.
pub(crate) fn lifetime_shares(sampled: &Sampled) -> Vec<(&'static str, u64, u64)> {
    let Ok(lifetimes) = &sampled.lifetimes else { return vec![] };
    const HUNDRED_MS: u64 = 100 * MILLISECOND_NS;
    let tenths = |freed: &Histogram, live: f64| {
        let all = freed.weight();
        let short = freed.share_between(0, MILLISECOND_NS) * all;
        let middle = freed.share_between(MILLISECOND_NS, HUNDRED_MS) * all;
        apportion(&[short, middle, (all - short - middle).max(0.0), live], 1000)
    };
    let blocks = tenths(&lifetimes.by_blocks, sampled.live_blocks.point);
    let by_bytes = tenths(&lifetimes.by_bytes, sampled.live_bytes.point);
    let titles = ["under 1 ms", "1 to 100 ms", "100 ms or longer", "to the end"];
    titles
        .into_iter()
        .zip(blocks)
        .zip(by_bytes)
        .map(|((title, blocks), bytes)| (title, blocks, bytes))
        .collect()
}

fn lifetimes(page: &mut Page, sampled: &Sampled) {
    let shares = lifetime_shares(sampled);
    if shares.is_empty() {
        return;
    }
    let wide = page.width >= 68;
    let line = |title: &str, blocks: &str, blocks_bar: &str, bytes: &str, bytes_bar: &str| {
        let half = |share: &str, bar: &str| match wide {
            true => format!("{}  {}", right(share, 9), left(bar, BAR)),
            false => right(share, 9),
        };
        format!("{}{}{}", left(title, 20), half(blocks, blocks_bar), half(bytes, bytes_bar))
    };
    head(page, "LIFETIMES", &line("LIFETIMES", "blocks", "", "bytes", ""));
    for (title, blocks, bytes) in shares {
        let bars = [blocks, bytes].map(|tenths| bar(tenths as f64 / 1000.0, BAR));
        page.line(&line(&format!("  {title}"), &per_mille(blocks), &bars[0], &per_mille(bytes), &bars[1]));
    }
}

pub(crate) fn live(page: &mut Page, sampled: &Sampled, several: bool) {
    page.section("LIVE", "blocks in use, by their requested sizes");
    let of = |value: Interval| {
        let [low, point, high] = [value.low, value.point, value.high].map(|value| bytes(value as u64));
        format!("{point} ({low} to {high})")
    };
    let peak = sampled.peak;
    let whose = if several { format!(" of one process, pid {}", peak.pid) } else { String::new() };
    let text = format!(
        "at the end {} in about {} blocks · largest reading{whose} {}, at {:.1} s",
        of(sampled.live_bytes),
        thousands(sampled.live_blocks.point as u64),
        of(peak.bytes),
        peak.at_ns as f64 / 1e9
    );
    page.wrapped(2, &text, Ink::Plain);
}

/// A list of call sites: what they are sorted by, in which text the amount of one is shown, and what it is.
type Ranking<'a> = (&'static str, &'a dyn Fn(&CallSite) -> f64, &'a dyn Fn(&CallSite) -> String);

/// A call site in its ranking.
pub(crate) struct Ranked<'a> {
    pub function: &'a str,
    pub module: &'a str,
    /// Of all call sites.
    pub share: f64,
    pub amount: String,
}

/// The first call sites by calls, by bytes and by frees; without rankings that have none.
pub(crate) fn rankings<'a>(sampled: &'a Sampled, run: &Run) -> Vec<(&'static str, Vec<Ranked<'a>>)> {
    let own_share =
        |site: &CallSite| site.remote_share.as_ref().map_or(NOTHING.to_owned(), |s| percent(s.point));
    let rankings: [Ranking; 3] = [
        ("by calls", &|site| site.calls.point, &|site| {
            format!("{}/s", rate(run.per_second(site.calls.point)))
        }),
        ("by bytes", &|site| site.bytes.point, &|site| {
            format!("{}/s", bytes(run.per_second(site.bytes.point) as u64))
        }),
        ("by frees in another thread, and their part of its frees", &CallSite::remote_calls, &own_share),
    ];
    let ranked = rankings.map(|(by, amount, shown)| {
        let all: f64 = sampled.sites.iter().map(amount).sum();
        let mut named: Vec<&CallSite> = sampled
            .sites
            .iter()
            .filter(|site| amount(site) > 0.0 && site.function != NO_USER_STACK)
            .collect();
        named.sort_by(|a, b| amount(b).total_cmp(&amount(a)));
        let ranked = named.into_iter().take(SITES_SHOWN).map(|site| Ranked {
            function: &site.function,
            module: &site.module,
            share: part(amount(site), all),
            amount: shown(site),
        });
        (by, ranked.collect::<Vec<_>>())
    });
    ranked.into_iter().filter(|(_, ranked)| !ranked.is_empty()).collect()
}

fn sites(page: &mut Page, sampled: &Sampled, run: &Run) {
    for (by, ranked) in rankings(sampled, run) {
        page.section("CALL SITES", by);
        for site in &ranked {
            site_line(page, (site.function, site.module), site.share, &site.amount);
        }
    }
}

/// A function and its file, with its share of all.
pub(super) fn site_line(page: &mut Page, (function, module): (&str, &str), share: f64, amount: &str) {
    let mut lead = right(&percent(share), 8);
    if page.width >= 70 {
        lead.push_str(&right(amount, 14));
    }
    let room = page.width.saturating_sub(columns(&lead) + 2);
    let module = elide_middle(&terminal(basename(module)), room / 3);
    let function = elide_middle(&terminal(function), room.saturating_sub(columns(&module) + 2));
    let module = page.paint(Ink::Faint, &module);
    page.line(&format!("{lead}  {function}  {module}"));
}

pub(crate) fn per_unit(page: &mut Page, work: &Work) {
    let source = match work.source {
        WorkSource::Given => "as given by --per-request",
        WorkSource::Marks => "marked by the program",
    };
    page.section("PER UNIT OF WORK", &format!("{} units, {source}", thousands(work.units)));
    let text = format!(
        "{:.1} allocations · {:.1} reallocs · {:.1} frees · {} requested",
        work.allocations,
        work.reallocs,
        work.frees,
        bytes(work.bytes as u64)
    );
    page.wrapped(2, &text, Ink::Plain);
    let (_, judgement) = work.judgement();
    let text = format!(
        "{judgement} (the limits are those of a published account; `allocwall bench knee` measures them here). \
         The calls of the start are included."
    );
    page.wrapped(2, &text, Ink::Plain);
}

pub(crate) fn limits(page: &mut Page, summary: &Summary) {
    page.section("LIMITS", "what was not measured, and what counting cost");
    let mut absences: Vec<(&str, &Absence)> = vec![];
    match &summary.sampled {
        Err(why) => {
            absences.push(("frees by another thread, latency, lifetimes, live memory, call sites", why));
        }
        Ok(sampled) => {
            let text = format!(
                "Estimates are from {} sampled calls. Their 95 % intervals, and all processes and threads: --json.",
                thousands(sampled.samples)
            );
            page.wrapped(2, &text, Ink::Faint);
            absences.extend(sampled.remote_share.as_ref().err().map(|why| ("frees by another thread", why)));
            absences.extend(sampled.latency.as_ref().err().map(|why| ("latency", why)));
            absences.extend(sampled.lifetimes.as_ref().err().map(|why| ("lifetimes", why)));
            losses(page, sampled);
        }
    }
    absences.extend(summary.cpu_share.as_ref().err().map(|why| ("share of CPU time", why)));
    absences.extend(summary.work.as_ref().err().map(|why| ("calls per unit of work", why)));
    for (what, why) in absences {
        page.wrapped(2, &format!("{what}: {}", why.with_advice()), Ink::Plain);
    }
    let counted = &summary.run.counted;
    for why in incomplete(summary.run).iter().take(MISSING_SHOWN) {
        page.wrapped(2, why, Ink::Warn);
    }
    let left_out = counted.processes.iter().fold(0_u64, |sum, one| sum.saturating_add(one.threads_left_out));
    if left_out > 0 {
        let text = format!("{} are only in the sums", count_of(left_out, "further thread"));
        page.wrapped(2, &text, Ink::Faint);
    }
    if let Some(further) = &counted.further {
        let text = format!("{} processes are only in the sums", thousands(further.processes));
        page.wrapped(2, &text, Ink::Warn);
    }
    if let Ok(Sampled { spent_ns: Ok(spent_ns), .. }) = &summary.sampled {
        let text = format!("samples took {:.2} CPU-s in the threads of the command", *spent_ns as f64 / 1e9);
        page.wrapped(2, &text, Ink::Faint);
    }
    let cost = match &summary.counting_s {
        Ok(cost) => {
            format!("counting took about {:.2} CPU-s ({:.2} to {:.2})", cost.point, cost.low, cost.high)
        }
        Err(why) => format!("cost of counting: {}", why.with_advice()),
    };
    page.wrapped(2, &cost, Ink::Faint);
}

/// Why the numbers are incomplete: of the run, and of single processes.
fn incomplete(run: &Run) -> Vec<String> {
    let mut texts: Vec<String> = run.counted.missing.iter().map(Absence::with_advice).collect();
    let of_processes = run
        .counted
        .processes
        .iter()
        .flat_map(|process| process.missing.iter().map(move |why| (process.pid, why)));
    let mut seen: Vec<&Absence> = vec![];
    for (pid, why) in of_processes {
        // The same reason is shown once.
        if seen.len() < MISSING_SHOWN && !seen.contains(&why) {
            seen.push(why);
            texts.push(format!("pid {pid}: {}", why.with_advice()));
        }
    }
    texts
}

fn losses(page: &mut Page, sampled: &Sampled) {
    let lost = sampled.lost;
    if lost.events > 0 {
        let share = part(lost.events as f64, lost.events as f64 + sampled.samples as f64);
        let text = format!(
            "{} of the sampled calls were not read: the estimates are too small by that",
            percent(share)
        );
        page.wrapped(2, &text, Ink::Warn);
    }
    if lost.unfollowed > 0 {
        let text = format!("{} were not followed to their free", count_of(lost.unfollowed, "sampled block"));
        page.wrapped(2, &text, Ink::Faint);
    }
    if lost.unsampled > 0 {
        let text = format!(
            "{} of threads without counters of their own are counted, but never sampled",
            count_of(lost.unsampled, "allocation")
        );
        page.wrapped(2, &text, Ink::Faint);
    }
    let all: f64 = sampled.sites.iter().map(|site| site.calls.point).sum();
    let unread = sampled.sites.iter().find(|site| site.function == NO_USER_STACK);
    if let Some(site) = unread {
        let text =
            format!("the stacks of {} of the calls were not read", percent(part(site.calls.point, all)));
        page.wrapped(2, &text, Ink::Faint);
    }
}

pub(super) fn count_of(n: u64, of: &str) -> String {
    format!("{} {}", thousands(n), plural(n, of))
}

pub(super) fn part(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::super::tests::run;
    use super::*;
    use allocwall_model::allocations::{CLASSES, Further};
    use allocwall_model::units::{Measured, Reason};

    fn printed(run: &Run, width: usize) -> String {
        report(run, Style { color: false, width })
    }

    fn on_one_line(text: &str) -> String {
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// As with `--exact`.
    fn exact() -> Run {
        let mut run = run();
        for process in &mut run.counted.processes {
            process.samples = Err(Absence::new(Reason::Disabled, "sampling is off (--exact)"));
        }
        run
    }

    #[test]
    fn reports_read_as_they_were_approved() {
        insta::assert_snapshot!("service", printed(&run(), 100));
        insta::assert_snapshot!("service_narrow", printed(&run(), 52));
        insta::assert_snapshot!("exact", printed(&exact(), 100));
    }

    #[test]
    fn no_line_is_wider_than_asked_and_no_escape_reaches_the_terminal() {
        let mut run = run();
        run.counted.further = Some(Further {
            processes: 2,
            calls: run.counted.processes[0].calls,
            classes: vec![1 << 40; CLASSES],
        });
        run.counted.processes[0].threads_left_out = 3;
        run.counted.missing = vec![Absence::new(Reason::NotFound, "2 processes were not counted".repeat(9))];
        for width in 40..=100 {
            let (calls, classes) = (run.counted.calls(), run.counted.classes());
            let text = printed(&run, width) + &so_far(&calls, &classes, 12.3, width);
            for line in text.lines() {
                assert!(columns(line) <= width, "{width}: {line}");
            }
            assert!(!text.contains('\u{1b}'));
        }
    }

    #[test]
    fn the_sections_are_in_their_order() {
        let text = printed(&run(), 100);
        let titles = [
            "allocwall count",
            "calls a second",
            "CALLS",
            "SIZES",
            "REALLOCS",
            "THREADS",
            "FREES BY ANOTHER THREAD",
            "LATENCY",
            "LIFETIMES",
            "LIVE",
            "CALL SITES  by calls",
            "CALL SITES  by bytes",
            "CALL SITES  by frees",
            "PER UNIT OF WORK",
            "LIMITS",
            "cost of counting",
        ];
        let places: Vec<usize> = titles
            .iter()
            .map(|title| text.find(title).unwrap_or_else(|| panic!("{title}: {text}")))
            .collect();
        assert!(places.is_sorted(), "{text}");
    }

    #[test]
    fn without_samples_their_sections_have_one_reason() {
        let text = printed(&exact(), 100);
        for absent in ["LATENCY", "LIFETIMES", "LIVE", "CALL SITES", "FREES BY"] {
            assert!(!text.contains(absent), "{absent}: {text}");
        }
        assert_eq!(text.matches("sampling is off").count(), 1, "{text}");
        assert!(text.contains("THREADS") && text.contains("REALLOCS"), "{text}");
    }

    #[test]
    fn what_the_program_does_not_do_has_no_section() {
        let mut run = run();
        let process = &mut run.counted.processes[0];
        (process.calls.in_place, process.calls.moved, process.calls.remapped) = (0, 0, 0);
        process.threads.truncate(1);
        run.units = None;
        let text = printed(&run, 100);
        assert!(
            !text.contains("REALLOCS") && !text.contains("THREADS") && !text.contains("PER UNIT"),
            "{text}"
        );
        assert!(
            on_one_line(&text).contains("other units of work, is not known; give it: --per-request N"),
            "{text}"
        );
    }

    #[test]
    fn percentiles_that_no_sample_reaches_are_not_shown() {
        let text = on_one_line(&printed(&run(), 100));
        assert!(text.contains("allocate < 128 KiB 12 ns"), "{text}");
        // 100 samples have a p99, and no p99.9.
        assert!(text.contains("allocate ≥ 128 KiB 5.4 µs 8.7 µs – 100"), "{text}");
        assert!(text.contains("Two modes: an allocation of 128 KiB or more takes 5.4 µs"), "{text}");
    }

    #[test]
    fn losses_are_shown_where_there_are_any() {
        let mut run = run();
        assert!(!printed(&run, 100).contains("were not read: the estimates"));
        run.counted.processes[0].lost.events = 1000;
        run.counted.processes[0].lost.unfollowed = 7;
        let bypassed = Absence::new(Reason::NotSupported, "the program has an allocator of its own");
        run.counted.processes[0].missing = vec![bypassed.clone()];
        run.counted.processes[1].missing = vec![bypassed];
        let text = printed(&run, 100);
        assert!(text.contains("10 % of the sampled calls were not read: the estimates"), "{text}");
        assert!(text.contains("7 sampled blocks were not followed to their free"), "{text}");
        // The same reason is shown once.
        assert_eq!(text.matches("pid 4242: the program has an allocator of its own").count(), 1, "{text}");
        assert!(!text.contains("pid 4250: the program"), "{text}");
        assert!(text.contains("the stacks of 1.5 % of the calls were not read"), "{text}");
    }

    #[test]
    fn the_cost_of_counting_is_a_number_or_a_reason() {
        let cost = |counting_ns: Measured<Interval>| printed(&Run { counting_ns, ..run() }, 100);
        let absent = cost(Err(Absence::new(Reason::NotSupported, "no price")));
        assert!(absent.contains("cost of counting: no price"), "{absent}");
        let known = cost(Ok(Interval::new(1.0, 2.0, 3.0)));
        assert!(known.contains("counting took about 0.02 CPU-s (0.01 to 0.02)"), "{known}");
    }

    #[test]
    fn times_have_the_unit_that_fits() {
        let shown = [0.4, 23.4, 999.4, 1_234.0, 12_340.0, 5.6e6, 2.0e9, 12.3e9].map(time);
        assert_eq!(shown, ["0 ns", "23 ns", "999 ns", "1.2 µs", "12 µs", "5.6 ms", "2.0 s", "12 s"]);
    }

    #[test]
    fn colour_adds_nothing_but_colour() {
        let color = report(&run(), Style { color: true, width: 100 });
        assert!(color.contains("\x1b["));
        let mut plain = String::new();
        let mut rest = color.as_str();
        while let Some((text, escape)) = rest.split_once("\x1b[") {
            plain.push_str(text);
            rest = escape.split_once('m').expect("SGR ends in m").1;
        }
        plain.push_str(rest);
        let lines = |text: &str| text.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>();
        assert_eq!(lines(&plain), lines(&printed(&run(), 100)));
    }
}
