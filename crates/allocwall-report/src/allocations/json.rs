//! What `allocwall count --json` prints: a document, version 1. docs/json.md describes every field; a test compares the two.

use super::{CallSite, Run, Sampled, Summary, Work, basename, label, module_of, requested};
use crate::json::{absence, interval, list, measured, named, number, plain, printed};
use allocwall_model::allocations::{
    Calls, Counted, CountedProcess, Histogram, Latency, Lifetimes, Lost, Samples, Site, ThreadCount,
    class_sizes,
};
use allocwall_model::recording::Frame;
use allocwall_model::units::Measured;
use serde_json::{Value, json};

/// Incremented when a field changes its meaning or is removed. New fields do not increment it.
pub const VERSION: u32 = 1;
/// Frames of a call path that are written, from the caller of the allocator outwards.
const PATH: usize = 32;
/// Call sites of a process that are written, those with most bytes first.
const SITES: usize = 1000;

/// The document, indented, newline-terminated.
pub fn document(run: &Run) -> String {
    printed(&value(run))
}

fn value(run: &Run) -> Value {
    let summary = Summary::of(run);
    let counted = &run.counted;
    json!({
        "version": VERSION,
        "tool": { "name": "allocwall", "version": env!("CARGO_PKG_VERSION") },
        "command": run.command,
        "ended": named(&run.ended),
        "sentence": summary.sentence(),
        "length_s": number(run.length_s()),
        "cpu_s": measured(&run.cpu_s, |cpu_s| number(*cpu_s)),
        "calls": calls(&summary.calls),
        "calls_per_s": number(run.per_second(summary.calls.all() as f64)),
        "bytes_per_s": number(run.per_second(requested(&summary.calls))),
        "cpu_share": measured(&summary.cpu_share, interval),
        "sizes": list(&summary.sizes, |row| json!({
            "above_bytes": row.above,
            "up_to_bytes": row.up_to,
            "calls": row.calls,
            "bytes": interval(&row.bytes),
        })),
        "estimates": measured(&summary.sampled, estimates),
        "work": measured(&summary.work, work),
        "counting_cpu_s": measured(&summary.counting_s, interval),
        "series": list(&counted.series, |point| json!({
            "t_s": seconds(point.t_ns),
            "over_s": seconds(point.over_ns),
            "calls": point.calls,
            "frees": point.frees,
            "bytes": point.bytes,
        })),
        "processes": list(&counted.processes, |one| process(counted, one)),
        "further": counted.further.as_ref().map(|further| json!({
            "processes": further.processes,
            "calls": calls(&further.calls),
            "classes": classes(&further.classes),
        })),
        "missing": list(&counted.missing, absence),
    })
}

fn seconds(ns: u64) -> Value {
    number(ns as f64 / 1e9)
}

fn calls(calls: &Calls) -> Value {
    let mut value = plain(calls);
    if let Value::Object(fields) = &mut value {
        fields.insert("allocations".to_owned(), json!(calls.allocations()));
        fields.insert("reallocs".to_owned(), json!(calls.reallocs()));
        fields.insert("all".to_owned(), json!(calls.all()));
    }
    value
}

/// Without empty ones.
fn classes(classes: &[u64]) -> Value {
    let some = classes.iter().enumerate().filter(|(_, count)| **count > 0);
    let class = |(class, count): (usize, &u64)| {
        let (low, high) = class_sizes(class);
        json!({ "from_bytes": low, "to_bytes": (high < u64::MAX).then_some(high), "calls": count })
    };
    some.map(class).collect()
}

fn work(work: &Work) -> Value {
    json!({
        "units": work.units,
        "source": work.source.key(),
        "allocations": number(work.allocations),
        "reallocs": number(work.reallocs),
        "frees": number(work.frees),
        "bytes": number(work.bytes),
        "judgement": work.judgement().0,
    })
}

/// For all processes together.
fn estimates(sampled: &Sampled) -> Value {
    let mut sites: Vec<&CallSite> = sampled.sites.iter().collect();
    sites.sort_by(|a, b| b.bytes.point.total_cmp(&a.bytes.point));
    sites.truncate(SITES);
    json!({
        "samples": sampled.samples,
        "latency": latency(&sampled.latency),
        "lifetimes": measured(&sampled.lifetimes, lifetimes),
        "remote_share": measured(&sampled.remote_share, interval),
        "remote_bytes_share": measured(&sampled.remote_bytes_share, interval),
        "live_blocks": interval(&sampled.live_blocks),
        "live_bytes": interval(&sampled.live_bytes),
        "peak_pid": sampled.peak.pid,
        "peak_bytes": interval(&sampled.peak.bytes),
        "peak_at_s": seconds(sampled.peak.at_ns),
        "functions": list(&sites, |site| json!({
            "function": site.function,
            "module": site.module,
            "samples": site.samples,
            "calls": interval(&site.calls),
            "bytes": interval(&site.bytes),
            "live_bytes": interval(&site.live_bytes),
            "remote_share": measured(&site.remote_share, interval),
        })),
        "spent_s": measured(&sampled.spent_ns, |ns| seconds(*ns)),
        "lost": lost(&sampled.lost),
    })
}

fn lost(lost: &Lost) -> Value {
    json!({
        "events": lost.events,
        "stacks": lost.stacks,
        "unfollowed": lost.unfollowed,
        "unsampled": lost.unsampled,
    })
}

fn latency(list_of: &Measured<Vec<Latency>>) -> Value {
    measured(list_of, |all| {
        list(all, |one| json!({ "kind": one.kind.key(), "large": one.large, "times": histogram(&one.times) }))
    })
}

fn lifetimes(lifetimes: &Lifetimes) -> Value {
    json!({ "by_blocks": histogram(&lifetimes.by_blocks), "by_bytes": histogram(&lifetimes.by_bytes) })
}

fn histogram(histogram: &Histogram) -> Value {
    let quantile = |part| measured(&histogram.quantile(part), interval);
    json!({
        "samples": histogram.samples(),
        "p50_ns": quantile(0.5),
        "p99_ns": quantile(0.99),
        "p999_ns": quantile(0.999),
        "buckets": list(&histogram.buckets, |bucket| {
            let (low, high) = bucket.values();
            json!({ "from_ns": low, "to_ns": high, "samples": bucket.samples, "weight": number(bucket.weight) })
        }),
    })
}

fn process(counted: &Counted, process: &CountedProcess) -> Value {
    json!({
        "pid": process.pid,
        "number": process.number,
        "command": measured(&process.command, plain),
        "program": measured(&process.program, plain),
        "allocator": measured(&process.allocator, plain),
        "from_s": seconds(process.from_ns),
        "over_s": seconds(process.over_ns),
        "ended": process.ended,
        "calls": calls(&process.calls),
        "classes": classes(&process.classes),
        "threads": list(&process.threads, thread),
        "threads_left_out": process.threads_left_out,
        "samples": measured(&process.samples, |of_process| samples(counted, of_process)),
        "lost": lost(&process.lost),
        "missing": list(&process.missing, absence),
    })
}

fn thread(thread: &ThreadCount) -> Value {
    json!({
        "tid": thread.tid,
        "threads": thread.threads,
        "name": measured(&thread.name, plain),
        "ended": thread.ended,
        "calls": calls(&thread.calls),
    })
}

fn samples(counted: &Counted, samples: &Samples) -> Value {
    let written = &samples.sites[..samples.sites.len().min(SITES)];
    json!({
        "distance_bytes": samples.distance,
        "sampled": samples.sampled,
        "spent_s": measured(&samples.spent_ns, |ns| seconds(*ns)),
        "blocks": interval(&samples.blocks),
        "bytes": interval(&samples.bytes),
        "latency": latency(&samples.latency),
        "lifetimes": measured(&samples.lifetimes, lifetimes),
        "remote_share": measured(&samples.remote_share, interval),
        "remote_bytes_share": measured(&samples.remote_bytes_share, interval),
        "live_blocks": interval(&samples.live_blocks),
        "live_bytes": interval(&samples.live_bytes),
        "peak_bytes": interval(&samples.peak_bytes),
        "peak_at_s": seconds(samples.peak_at_ns),
        "sites": list(written, |one| site(counted, one)),
        "sites_left_out": samples.sites.len() - written.len(),
    })
}

fn site(counted: &Counted, site: &Site) -> Value {
    json!({
        "path": measured(&site.stack, |stack| path(counted, *stack)),
        "samples": site.samples,
        "calls": interval(&site.calls),
        "bytes": interval(&site.bytes),
        "live_bytes": interval(&site.live_bytes),
        "remote_share": measured(&site.remote_share, interval),
    })
}

/// `function (file)`, from the caller of the allocator outwards.
fn path(counted: &Counted, stack: u32) -> Value {
    let frames = counted.stacks.get(stack as usize).map_or(&[][..], |stack| &stack.frames[..]);
    let known = frames.iter().filter_map(|frame| counted.frames.get(*frame as usize));
    let entry = |frame: &Frame| match module_of(counted, frame) {
        Some(module) if frame.symbol.is_some() => {
            format!("{} ({})", label(Some(module), frame), basename(&module.path))
        }
        module => label(module, frame),
    };
    known.take(PATH).map(entry).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::tests::run;
    use super::*;
    use crate::described::described;
    use allocwall_model::allocations::{CLASSES, Further};
    use allocwall_model::units::{Absence, Interval, Reason};
    use std::collections::BTreeSet;

    /// Objects that docs/json.md describes in a table of their own, or that other sections describe.
    const PARTS: [&str; 8] =
        ["calls", "classes", "times", "by_blocks", "by_bytes", "tool", "ended", "missing"];

    /// Every path of a document down to values, intervals, lists of texts and these parts.
    pub fn paths(value: &Value, at: &str, parts: &[&str], into: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) if fields.contains_key("absent") => {}
            Value::Object(fields) if fields.len() == 3 && fields.contains_key("point") => {
                into.insert(at.to_owned());
            }
            Value::Object(fields) => {
                for (name, value) in fields {
                    let at = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
                    match parts.contains(&name.as_str()) {
                        true => drop(into.insert(at)),
                        false => paths(value, &at, parts, into),
                    }
                }
            }
            Value::Array(items) if items.iter().all(|item| !item.is_string()) => {
                items.iter().for_each(|item| paths(item, &format!("{at}[]"), parts, into));
            }
            _ => drop(into.insert(at.to_owned())),
        }
    }

    fn full() -> Run {
        let mut run = run();
        let further =
            Further { processes: 2, calls: run.counted.processes[0].calls, classes: vec![1; CLASSES] };
        run.counted.further = Some(further);
        run.counted.missing = vec![Absence::new(Reason::NotFound, "1 process was not counted")];
        run.counting_ns = Ok(Interval::new(1.0, 2.0, 3.0));
        run
    }

    #[test]
    fn every_field_is_described() {
        let mut found = BTreeSet::new();
        paths(&value(&full()), "", &PARTS, &mut found);
        let described = described("Calls of allocators: ");
        let missing: Vec<_> = found.difference(&described).collect();
        let stale: Vec<_> = described.difference(&found).collect();
        assert!(
            missing.is_empty() && stale.is_empty(),
            "not in docs/json.md: {missing:#?}\nonly there: {stale:#?}"
        );
    }

    #[test]
    fn the_document_has_the_numbers_and_the_estimates() {
        let text = document(&full());
        assert!(!text.contains('\u{1b}'));
        let document: Value = serde_json::from_str(&text).expect("valid JSON");
        let counted = full().counted;
        assert_eq!(document["calls"]["malloc"], counted.calls().malloc);
        assert_eq!(document["calls"]["all"], counted.calls().all());
        assert_eq!(document["ended"]["kind"], "target_exited");
        let rows = document["sizes"].as_array().expect("rows");
        let sum: u64 = rows.iter().filter_map(|row| row["calls"].as_u64()).sum();
        assert_eq!(sum, counted.classes().iter().sum::<u64>());
        assert_eq!(document["processes"][0]["samples"]["sites"][0]["path"][0], "parse_record (service)");
        assert_eq!(document["estimates"]["functions"][0]["function"], "parse_record");
        assert_eq!(document["further"]["processes"], 2);
        assert_eq!(document["missing"][0]["reason"], "not_found");
        assert_eq!(document["work"]["judgement"], "possible");
    }

    #[test]
    fn what_was_not_measured_has_its_reason() {
        let mut run = run();
        for process in &mut run.counted.processes {
            process.samples = Err(Absence::new(Reason::Disabled, "sampling is off"));
        }
        run.units = None;
        let document = value(&run);
        assert_eq!(document["estimates"]["absent"]["reason"], "disabled");
        assert_eq!(document["processes"][0]["samples"]["absent"]["reason"], "disabled");
        assert_eq!(document["work"]["absent"]["reason"], "not_applicable");
        assert_eq!(document["counting_cpu_s"]["absent"]["reason"], "not_supported");
        assert_eq!(document["further"], Value::Null);
        assert!(document["cpu_share"]["point"].is_number());
    }
}
