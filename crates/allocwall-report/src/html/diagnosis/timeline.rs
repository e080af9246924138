//! The window over time: charts with one axis and one cursor.

use super::Case;
use super::sites::RUNTIMES;
use crate::html::chart::{Axis, Chart, Colour, Place, Series, number, time};
use crate::html::page::{Section, absent, hex};
use crate::palette::{fill, of_owner};
use crate::text::bytes;
use allocwall_model::catalogue::cost::CostClass;
use allocwall_model::catalogue::owners::Owner;
use allocwall_model::recording::{Figure, ProbeName, Recording, Runtime, SmapsCost, Tick, gained};
use allocwall_model::units::{Absence, Measured, Reason, count};
use maud::{Markup, html};
use std::collections::BTreeMap;

/// The most slices of a chart.
const SLICES: usize = 120;
/// The shortest slice: it has some samples at the usual rate.
const SHORTEST_S: f64 = 0.1;
/// In a slice of the CPU time, on average: with fewer, its figures are noise.
const SAMPLES: usize = 25;
/// The most series of a stacked chart. The others are one.
const STACKED: usize = 9;
/// Of what has no colour of its own.
const REST: &str = "#9a9a9a";
/// The title of a chart, and what the page lists where the chart is missing.
pub(super) const PAUSES: &str = "Pauses for the collector";

pub(super) fn section(case: &Case) -> Section {
    let charts: [(&str, Measured<Markup>); 5] = [
        ("CPU time by line of the bill", cpu(case)),
        ("Page faults", faults(case)),
        ("Resident memory", resident(case)),
        ("Throttling", throttling(case)),
        (PAUSES, pauses(case)),
    ];
    let body = html! {
        @for (title, chart) in charts {
            @match chart {
                Ok(chart) => { (chart) }
                Err(absence) if absence.reason == Reason::NotApplicable => { p.note { (title) ": " (absence.detail) } }
                Err(absence) => { (absent(title, &absence)) }
            }
        }
    };
    let aside = "seconds since the start of the window; the cursor is in all charts";
    Section { id: "timeline", title: "Timeline", aside: aside.into(), body }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn chart(
    case: &Case,
    (title, unit): (&str, &str),
    (place, xs): (Place, Vec<f64>),
    (y, series): (Axis, Vec<Series>),
    shown: &dyn Fn(f64) -> String,
    note: Option<Markup>,
) -> Markup {
    let x_title = if matches!(place, Place::Points) { "at" } else { "from" };
    let chart = Chart {
        title,
        unit,
        place,
        x: Axis::linear(0.0, case.bill.window_s, 5, |s| format!("{} s", number(s))),
        xs,
        x_title,
        x_shown: &|s| format!("{s:.2} s"),
        y,
        series,
        shown,
        linked: "time",
        longest_gap: 0.26,
        note,
    };
    chart.draw()
}

/// The largest sum of a slice.
fn tallest(series: &[Series]) -> f64 {
    let rows = series.iter().map(|series| series.values.len()).max().unwrap_or(0);
    let sum = |row: usize| series.iter().filter_map(|series| *series.values.get(row)?).sum::<f64>();
    (0..rows).map(sum).fold(0.0, f64::max)
}

/// The largest value.
fn largest(series: &[Series]) -> f64 {
    series.iter().flat_map(|series| series.values.iter().flatten()).copied().fold(0.0, f64::max)
}

/// Keeps the largest series in their order, and sums the others.
fn folded(mut all: Vec<Series>) -> Vec<Series> {
    let total = |series: &Series| series.values.iter().flatten().sum::<f64>();
    all.retain(|series| total(series) > 0.0);
    let mut totals: Vec<f64> = all.iter().map(total).collect();
    totals.sort_by(|a, b| b.total_cmp(a));
    let Some(least) = totals.get(STACKED).copied() else { return all };
    let (kept, small): (Vec<Series>, Vec<Series>) = all.into_iter().partition(|series| total(series) > least);
    let rows = small.first().map_or(0, |series| series.values.len());
    let sum = |row: usize| Some(small.iter().filter_map(|series| series.values[row]).sum());
    let name = format!("{} smaller", small.len());
    let rest = Series::new(name, Colour::Fixed(REST.into()), (0..rows).map(sum).collect());
    kept.into_iter().chain([rest]).collect()
}

fn line(nth: usize, name: &str, values: Vec<Option<f64>>) -> Series {
    Series::new(name, Colour::Line(nth), values)
}

fn cpu(case: &Case) -> Measured<Markup> {
    let rec = case.rec;
    if let Err(absence) = &case.bill.on_cpu {
        return Err(absence.clone());
    }
    let window_s = case.bill.window_s;
    let slices = ((window_s / SHORTEST_S) as usize).min(rec.samples.len() / SAMPLES).clamp(1, SLICES);
    let slice_s = window_s / slices as f64;
    // Each sample stands for one period of CPU time.
    let each = seconds(rec.meta.sample_period_ns) / slice_s.max(f64::MIN_POSITIVE);
    let mut cpus: BTreeMap<CostClass, Vec<f64>> = BTreeMap::new();
    for (sample, class) in rec.samples.iter().zip(&case.classified.classes) {
        let slice = (seconds(sample.t_ns) / slice_s) as usize;
        cpus.entry(*class).or_insert_with(|| vec![0.0; slices])[slice.min(slices - 1)] += each;
    }
    let series = cpus.into_iter().map(|(class, values)| {
        let values = values.into_iter().map(Some).collect();
        Series::new(class.title(), Colour::Fixed(hex(fill(class))), values)
    });
    let series = folded(series.collect());
    let edges = (0..=slices).map(|nth| nth as f64 * slice_s).collect();
    let title = ("CPU time by line of the bill", "CPUs");
    Ok(chart(
        case,
        title,
        (Place::Slices, edges),
        (Axis::from_zero(tallest(&series), number), series),
        &number,
        None,
    ))
}

/// Indices of the edges of slices that are at least `least_ns` long. A shorter last slice is part of the one before: its few
/// events would look like a peak.
fn edges(times: &[u64], least_ns: u64) -> Vec<usize> {
    let mut kept: Vec<usize> = vec![];
    for (nth, time) in times.iter().enumerate() {
        if kept.last().is_none_or(|last| time.saturating_sub(times[*last]) >= least_ns.max(1)) {
            kept.push(nth);
        }
    }
    if let (Some(last), true) = (kept.last_mut(), times.len() > 1) {
        *last = times.len() - 1;
    }
    match kept.len() {
        0 | 1 => vec![],
        _ => kept,
    }
}

fn least_ns(rec: &Recording) -> u64 {
    (rec.meta.window_ns / SLICES as u64).max((SHORTEST_S * 1e9) as u64)
}

fn too_few() -> Absence {
    Absence::new(Reason::TooLittle, "fewer than two readings in the window").mend("use a longer window (-d)")
}

/// Ticks between which a counter is shown.
fn counted(rec: &Recording) -> Measured<Vec<&Tick>> {
    let times: Vec<u64> = rec.ticks.iter().map(|tick| tick.t_ns).collect();
    let ticks: Vec<&Tick> = edges(&times, least_ns(rec)).into_iter().map(|nth| &rec.ticks[nth]).collect();
    match ticks.is_empty() {
        true => Err(rec.probe_absence(ProbeName::Counters).unwrap_or_else(too_few)),
        false => Ok(ticks),
    }
}

/// The growth of a counter a second, between ticks. None where it is not known.
fn rates(ticks: &[&Tick], read: impl Fn(&Tick) -> Option<u64>) -> Vec<Option<f64>> {
    let rate = |pair: &[&Tick]| {
        let over_ns = pair[1].t_ns.checked_sub(pair[0].t_ns).filter(|ns| *ns > 0)?;
        Some(gained(read(pair[0])?, read(pair[1])?)? as f64 / seconds(over_ns))
    };
    ticks.windows(2).map(rate).collect()
}

fn starts(ticks: &[&Tick]) -> Vec<f64> {
    ticks.iter().map(|tick| seconds(tick.t_ns)).collect()
}

fn faults(case: &Case) -> Measured<Markup> {
    let rec = case.rec;
    let (xs, series, title) = match rec.fault_slices.is_empty() {
        false => {
            let (xs, series) = by_owner(rec).ok_or_else(too_few)?;
            (xs, series, ("Page faults by owner of the memory", "a second"))
        }
        true => {
            let ticks = counted(rec)?;
            let rate = |read: fn(&Tick) -> u64| rates(&ticks, |tick| Some(read(tick)));
            let kinds = vec![
                line(0, "minor faults", rate(|tick| tick.minor_faults)),
                line(1, "major faults, which read from storage", rate(|tick| tick.major_faults)),
            ];
            (starts(&ticks), kinds, ("Page faults by kind", "a second"))
        }
    };
    let (from, to) = (xs.first().copied().unwrap_or(0.0), xs.last().copied().unwrap_or(0.0));
    let whole = from <= SHORTEST_S && to >= case.bill.window_s - SHORTEST_S;
    let note = (!whole)
        .then(|| html! { p.note { (format!("Counted from {from:.1} to {to:.1} s of the window.")) } });
    let y = Axis::from_zero(tallest(&series), number);
    Ok(chart(case, title, (Place::Slices, xs), (y, series), &number, note))
}

/// Edges of the slices, and faults a second by owner.
fn by_owner(rec: &Recording) -> Option<(Vec<f64>, Vec<Series>)> {
    let slices = &rec.fault_slices;
    let end = slices.last().map(|slice| slice.t_ns.saturating_add(slice.over_ns))?;
    let times: Vec<u64> = slices.iter().map(|slice| slice.t_ns).chain([end]).collect();
    let edges = edges(&times, least_ns(rec));
    let parts = || edges.windows(2).map(|pair| &slices[pair[0]..pair[1]]);
    let rate = |owner: Owner, part: &[allocwall_model::recording::FaultSlice]| {
        let over_s = part.iter().map(|slice| seconds(slice.over_ns)).sum::<f64>();
        let of_owner = part.iter().flat_map(|slice| &slice.owners).filter(|faults| faults.owner == owner);
        let faults: f64 = of_owner.map(|faults| f64::from(faults.faults)).sum();
        (over_s > 0.0).then(|| faults / over_s)
    };
    let series = Owner::ALL.into_iter().map(|owner| {
        let values = parts().map(|part| rate(owner, part)).collect();
        Series::new(owner.title(), Colour::Fixed(hex(of_owner(owner))), values)
    });
    let xs = edges.iter().map(|edge| seconds(times[*edge])).collect();
    (!edges.is_empty()).then(|| (xs, folded(series.collect())))
}

fn resident(case: &Case) -> Measured<Markup> {
    let rec = case.rec;
    let times: Vec<u64> = rec.ticks.iter().map(|tick| tick.t_ns).collect();
    let mut shown = edges(&times, least_ns(rec));
    // The readings of smaps are rare, so they are chosen by themselves.
    let rare: Vec<usize> = (0..times.len()).filter(|nth| rec.ticks[*nth].smaps.is_some()).collect();
    let rare_times: Vec<u64> = rare.iter().map(|nth| times[*nth]).collect();
    shown.extend(edges(&rare_times, least_ns(rec)).into_iter().map(|nth| rare[nth]));
    shown.sort_unstable();
    shown.dedup();
    if shown.is_empty() {
        return Err(rec.probe_absence(ProbeName::Counters).unwrap_or_else(too_few));
    }
    let read = |read: &dyn Fn(&Tick) -> Option<u64>| -> Vec<Option<f64>> {
        shown.iter().map(|nth| read(&rec.ticks[*nth]).map(|bytes| bytes as f64)).collect()
    };
    let mut series = vec![
        line(0, "resident", read(&|tick| Some(tick.resident))),
        line(1, "anonymous", read(&|tick| tick.anonymous)),
        Series { rare: true, ..line(2, "huge pages", read(&|tick| Some(tick.smaps?.anon_huge))) },
        Series { rare: true, ..line(3, "lazily freed", read(&|tick| Some(tick.smaps?.lazy_free))) },
    ];
    let live = live(rec);
    if let Live::Measured(live) = live {
        let at_the_end = (0..shown.len()).map(|nth| (nth + 1 == shown.len()).then_some(live));
        series.push(line(4, "live, at the end", at_the_end.collect()));
    }
    let unread = [
        ("Anonymous memory", ProbeName::Sizes, series[1].values.iter().all(Option::is_none)),
        (
            "Huge pages and lazily freed memory",
            ProbeName::Smaps,
            series[2].values.iter().all(Option::is_none),
        ),
    ];
    // Few readings of nothing would look like memory that comes and goes.
    let is_none = |series: &Series| series.rare && series.values.iter().flatten().all(|bytes| *bytes <= 0.0);
    let none: Vec<String> = series.iter().filter(|one| is_none(one)).map(|one| one.name.clone()).collect();
    series.retain(|series| series.values.iter().any(Option::is_some) && !is_none(series));
    let note = html! {
        @if !rare.is_empty() { p.note { (rarely_read(rec, rare.len(), &none)) } }
        @for (what, probe, is_unread) in unread {
            @if is_unread { (absent(what, &rec.probe_absence(probe).unwrap_or_else(too_few))) }
        }
        @match &live {
            Live::Measured(_) => {}
            Live::InPart(why) => { p.note { "The sum of the live memory is not known: " (why) ". The section Memory has it by owner." } }
            Live::Absent(absence) => { (absent("Live memory", absence)) }
        }
    };
    let xs = shown.iter().map(|nth| seconds(times[*nth])).collect();
    let y = Axis::bytes(largest(&series));
    let shown = |value: f64| bytes(value as u64);
    let title = ("Resident memory", "all processes of the target");
    Ok(chart(case, title, (Place::Points, xs), (y, series), &shown, Some(note)))
}

/// How often the sizes were read that cost the target time.
fn rarely_read(rec: &Recording, readings: usize, none: &[String]) -> String {
    let cost = match rec.smaps_cost {
        Ok(SmapsCost { reads, ns }) if reads > 0 => format!(
            ": a reading took {}, and calls that map memory may wait for it",
            time(seconds(ns) / reads as f64)
        ),
        _ => String::new(),
    };
    let times = count(readings, "time");
    let none = match none {
        [] => String::new(),
        none => format!(" None in any reading: {}.", none.join(", ")),
    };
    format!("Huge pages and lazily freed memory were read {times} in the window{cost}.{none}")
}

enum Live {
    /// Bytes in use at the end of the window, of all processes.
    Measured(f64),
    /// Known of some owners only: which one has none, and why.
    InPart(String),
    Absent(Absence),
}

fn live(rec: &Recording) -> Live {
    let memory = match &rec.resident {
        Ok(memory) if memory.others > 0 => {
            return Live::Absent(Absence::new(Reason::TooLittle, "not every process of the target was read"));
        }
        Ok(memory) => memory,
        Err(absence) => return Live::Absent(absence.clone()),
    };
    let rows = memory.bills.iter().flat_map(|bill| &bill.rows);
    let rows = rows.filter(|row| row.owner.is_allocated() && row.amount.held_bytes() > 0);
    let (known, unknown): (Vec<_>, Vec<_>) = rows.partition(|row| row.split.is_ok());
    match unknown.iter().find_map(|row| Some((row.owner, row.split.as_ref().err()?))) {
        Some((_, absence)) if known.is_empty() => Live::Absent(absence.clone()),
        Some((owner, absence)) => {
            Live::InPart(format!("of {}, {}", owner.title(), absence.detail.trim_end_matches('.')))
        }
        None => Live::Measured(known.iter().flat_map(|row| &row.split).map(|s| s.live_bytes.point).sum()),
    }
}

fn throttling(case: &Case) -> Measured<Markup> {
    let rec = case.rec;
    let ticks = counted(rec)?;
    let values = rates(&ticks, |tick| Some(tick.cgroup?.throttled_ns));
    if values.iter().all(Option::is_none) {
        let unread = || Absence::new(Reason::NotFound, "the cgroup's CPU counters could not be read");
        return Err(rec.probe_absence(ProbeName::Cgroup).unwrap_or_else(unread));
    }
    let quota = rec.ticks.iter().rev().find_map(|tick| tick.cgroup).and_then(|group| group.quota_cpus);
    let series = vec![line(0, "throttled", values.into_iter().map(|ns| ns.map(|ns| ns / 1e9)).collect())];
    let quota = match quota {
        Some(quota) if quota.is_nan() => "the quota is one of a parent cgroup".to_owned(),
        Some(quota) => format!("the quota is {quota:.2} CPUs"),
        None => "the cgroup has no CPU quota".to_owned(),
    };
    let most = largest(&series);
    if most <= 0.0 {
        return Err(Absence::new(Reason::NotApplicable, format!("none in this window; {quota}")));
    }
    let note = html! { p.note { (quota) } };
    let title = ("Throttling", "CPUs that the quota stopped, in the whole cgroup");
    let y = Axis::from_zero(most, number);
    Ok(chart(case, title, (Place::Steps, starts(&ticks)), (y, series), &number, Some(note)))
}

fn pauses(case: &Case) -> Measured<Markup> {
    let rec = case.rec;
    match pauses_absent(rec) {
        None => {}
        Some(absence) if absence.reason == Reason::NotSupported => {
            return Ok(html! {
                (absent(PAUSES, &absence))
                p.note { "Their sum: " a href={ "#" (RUNTIMES) } { "Runtimes" } }
            });
        }
        Some(absence) => return Err(absence),
    }
    let slices = ((case.bill.window_s / SHORTEST_S) as usize).clamp(1, SLICES);
    let slice_ns = (rec.meta.window_ns / slices as u64).max(1);
    let mut stopped: BTreeMap<i32, Vec<f64>> = BTreeMap::new();
    for span in &rec.collecting {
        let shares = stopped.entry(span.pid).or_insert_with(|| vec![0.0; slices]);
        let first = (span.from_ns / slice_ns) as usize;
        for (nth, share) in shares.iter_mut().enumerate().skip(first) {
            let (from, to) = (nth as u64 * slice_ns, (nth as u64 + 1) * slice_ns);
            let inside = span.to_ns.min(to).saturating_sub(span.from_ns.max(from));
            if inside == 0 && span.to_ns <= from {
                break;
            }
            *share += inside as f64 / slice_ns as f64 * 100.0;
        }
    }
    let mut processes: Vec<(i32, Vec<f64>)> = stopped.into_iter().collect();
    processes.sort_by(|a, b| b.1.iter().sum::<f64>().total_cmp(&a.1.iter().sum::<f64>()));
    let more = processes.len().saturating_sub(LINES);
    let series: Vec<Series> = processes
        .into_iter()
        .take(LINES)
        .enumerate()
        .map(|(nth, (pid, shares))| line(nth, &format!("pid {pid}"), shares.into_iter().map(Some).collect()))
        .collect();
    let xs = (0..=slices).map(|nth| seconds(nth as u64 * slice_ns)).collect();
    let note = (more > 0).then(|| html! { p.note { (more) " more processes are not drawn." } });
    let title = ("Pauses for the collector", "share of the time in which it ran, as sampled");
    let shown = |value: f64| format!("{} %", number(value));
    let y = Axis::from_zero(largest(&series), shown);
    Ok(chart(case, title, (Place::Steps, xs), (y, series), &shown, note))
}

/// The most lines of a chart.
const LINES: usize = 4;

/// Why there are no pauses over time.
pub(super) fn pauses_absent(rec: &Recording) -> Option<Absence> {
    if !rec.collecting.is_empty() {
        return None;
    }
    let Some(account) = rec.accounts.first() else {
        return Some(Absence::new(Reason::NotApplicable, "no runtime with a collector was found"));
    };
    Some(match &account.stopped_ns {
        Ok(Figure { value, .. }) if value.high <= 0.0 => {
            Absence::new(Reason::NotApplicable, "the collector did not run")
        }
        Ok(_) => {
            let absence = Absence::new(Reason::NotSupported, "the runtime tells only their sum");
            let process = rec.processes.iter().find(|process| process.pid == account.pid);
            match process.map(|process| &process.runtime) {
                Some(Ok(Runtime::Jvm { .. })) => {
                    absence.mend("start java with -Xlog:gc, which logs each pause")
                }
                Some(Ok(Runtime::Go { .. })) => {
                    absence.mend("start it with GODEBUG=gctrace=1, which logs each collection")
                }
                _ => absence,
            }
        }
        Err(absence) => absence.clone(),
    })
}
