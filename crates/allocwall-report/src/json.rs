//! The JSON document, version 1. docs/json.md describes every field; a test compares the two.

use super::allocations::section as counted;
use super::counters;
use super::devices;
use super::escape;
use super::memory_text::bill_value as resident_bill;
use allocwall_diagnose::bill::{Basis, Bill, CpuLine, Site, WaitLine};
use allocwall_diagnose::{Finding, Prescription, Verdict, expected};
use allocwall_model::catalogue::cost::CostClass;
use allocwall_model::catalogue::remedies::find;
use allocwall_model::recording::{
    Allocator, Figure, HostFacts, Meta, Price, Probe, ProbeState, Process, Recording, RuntimeAccount,
};
use allocwall_model::replay::{Replay, Replayed};
use allocwall_model::units::{Absence, Interval, Measured};
use serde::Serialize;
use serde_json::{Value, json};

/// Incremented when a field changes its meaning or is removed. New fields do not increment it.
pub const VERSION: u32 = 1;

/// The document, indented, newline-terminated.
pub fn document(rec: &Recording, bill: &Bill, verdict: &Verdict) -> String {
    printed(&value(rec, bill, verdict))
}

/// Indented, newline-terminated.
pub fn printed(value: &Value) -> String {
    safe(&format!("{value:#}\n"))
}

/// In one line, newline-terminated.
pub fn line(document: &impl Serialize) -> String {
    let text = serde_json::to_string(document).expect("texts and numbers alone");
    safe(&(text + "\n"))
}

/// Characters that could affect a terminal as `\u` escapes, which JSON readers decode.
fn safe(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        // Outside strings, the only such character in JSON is the line feed.
        if c == '\n' || escape::is_harmless(c) {
            safe.push(c);
        } else {
            c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| safe.push_str(&format!("\\u{unit:04x}")));
        }
    }
    safe
}

pub fn value(rec: &Recording, bill: &Bill, verdict: &Verdict) -> Value {
    json!({
        "version": VERSION,
        "tool": { "name": "allocwall", "version": env!("CARGO_PKG_VERSION") },
        "verdict": {
            "sentence": verdict.sentence,
            "walls": verdict.walls.iter().map(|w| w.key()).collect::<Vec<_>>(),
        },
        "findings": list(&verdict.findings, finding),
        "remedies": list(&verdict.remedies, remedy),
        "next": list(&verdict.next, |line| json!(line.to_string())),
        "bill": bill_value(bill),
        "counted": counted::value(rec),
        "replayed": measured(&rec.replayed, |replay| replayed(replay, rec, bill)),
        "runtimes": list(&rec.accounts, account),
        "hardware": measured(&rec.hardware, |counts| counters::value(counts, rec, bill)),
        "disks": measured(&rec.devices.disks, devices::disks),
        "network": measured(&rec.devices.network, devices::network),
        "resident": measured(&rec.resident, |memory| json!({
            "bills": list(&memory.bills, resident_bill),
            "others": memory.others,
            "unread": memory.unread.as_ref().map(absence),
        })),
        "target": {
            "cgroup": rec.cgroup,
            "launched": rec.meta.command,
            "processes": list(&rec.processes, process),
        },
        "host": host(&rec.host),
        "prices": measured(&rec.prices, |p| list(&p.prices, price)),
        "probes": list(&rec.probes, probe),
        "recording": recording(rec),
    })
}

pub fn list<T>(items: &[T], of: impl Fn(&T) -> Value) -> Value {
    Value::Array(items.iter().map(of).collect())
}

/// The value, or `{"absent": …}`: a reason, never null.
pub fn measured<T>(value: &Measured<T>, of: impl Fn(&T) -> Value) -> Value {
    match value {
        Ok(value) => of(value),
        Err(why) => json!({ "absent": absence(why) }),
    }
}

pub fn absence(absence: &Absence) -> Value {
    json!({ "reason": plain(&absence.reason), "detail": absence.detail, "mend": absence.mend })
}

/// A value that can always be serialized: enums with text names, numbers, strings.
pub fn plain<T: Serialize>(value: &T) -> Value {
    serde_json::to_value(value).unwrap_or(Value::Null)
}

/// JSON has no NaN and no infinity: such a number is null.
pub fn number(value: f64) -> Value {
    if value.is_finite() { json!(value) } else { Value::Null }
}

pub fn interval(value: &Interval) -> Value {
    json!({ "low": number(value.low), "point": number(value.point), "high": number(value.high) })
}

fn finding(f: &Finding) -> Value {
    json!({
        "wall": f.wall.key(),
        "title": f.wall.title(),
        "rung": f.rung,
        "status": plain(&f.status),
        "share": f.share.as_ref().map(interval),
        "of": plain(&f.of),
        "because": f.because,
        "evidence": f.evidence,
        "show": f.show.to_string(),
        "missing": f.missing.as_ref().map(absence),
        "estimate": f.estimate,
    })
}

fn remedy(r: &Prescription) -> Value {
    json!({
        "remedy": r.remedy,
        "title": r.title,
        "gain": r.gain.as_ref().map(interval),
        "at_most": r.at_most.map(number),
        "returns_bytes": r.returns_bytes,
        "basis": r.basis,
        "restart": r.restart,
        "how": r.how.command,
        "is_command": r.is_command,
        "note": r.how.remark,
        "moves": r.moves,
        "backfires": r.backfires,
        "undo": r.undo,
    })
}

fn bill_value(bill: &Bill) -> Value {
    let rates = &bill.rates;
    let rate = |r: &Measured<f64>| measured(r, |v| number(*v));
    json!({
        "window_s": number(bill.window_s),
        "cpu_s": number(bill.cpu_s),
        "sampled_cpu_s": number(bill.sampled_cpu_s),
        "switching_cpu_s": number(bill.switching_cpu_s),
        "on_cpu": measured(&bill.on_cpu, |lines| list(lines, cpu_line)),
        "waits_for_loads": measured(&bill.waits_for_loads, interval),
        "faulted": list(&bill.faulted, |faulted| json!({
            "wall": faulted.wall.key(),
            "basis": faulted.basis.key(),
            "faults": match faulted.basis {
                Basis::CpuTime => Value::Null,
                Basis::Number { faults } => json!(faults),
            },
            "method": faulted.basis.method(),
            "samples": faulted.samples,
            "known": faulted.known,
            "owners": list(&faulted.owners, |one| json!({
                "owner": one.owner.key(),
                "title": one.owner.title(),
                "share": interval(&one.share),
            })),
        })),
        "off_cpu": list(&bill.off_cpu, wait_line),
        "rates": {
            "minor_faults_per_s": rate(&rates.minor_faults),
            "major_faults_per_s": rate(&rates.major_faults),
            "map_calls_per_s": rate(&rates.map_calls),
            "voluntary_switches_per_s": rate(&rates.voluntary_switches),
            "involuntary_switches_per_s": rate(&rates.involuntary_switches),
            "threads_peak": rates.threads_peak,
            "thread_s": number(rates.thread_s),
            "resident_end_bytes": rates.resident_end,
            "resident_growth_bytes": rates.resident_growth,
        },
    })
}

fn cpu_line(line: &CpuLine) -> Value {
    json!({
        "class": line.class.key(),
        "title": line.class.title(),
        "share": interval(&line.share),
        "cpu_s": interval(&line.cpu_s),
        "samples": line.samples,
        "method": line.method,
        "may_be_in": line.may_be_in.map(CostClass::key),
        "notes": line.notes,
        "sites": list(&line.sites, site),
    })
}

fn wait_line(line: &WaitLine) -> Value {
    json!({
        "class": line.class.key(),
        "title": line.class.title(),
        "thread_s": measured(&line.thread_s, interval),
        "method": line.method,
        "sites": list(&line.sites, site),
    })
}

fn site(site: &Site) -> Value {
    json!({
        "function": site.function,
        "module": site.module,
        "python": site.python,
        "share": number(site.share),
        "path": site.path,
    })
}

fn replayed(replay: &Replay, rec: &Recording, bill: &Bill) -> Value {
    let variant = |variant: &Replayed| {
        let remedy = find(&variant.remedy);
        let predicted = remedy.and_then(|remedy| expected::change(rec, bill, remedy));
        let from = remedy.and_then(|remedy| expected::from_replay(rec, bill, remedy));
        let known = |value: &Interval| if variant.failed.is_none() { interval(value) } else { Value::Null };
        json!({
            "remedy": variant.remedy,
            "cost_ns": known(&variant.cost),
            "saved_ns": known(&variant.saved),
            "predicted": predicted.as_ref().map(interval),
            "without_error": from.as_ref().map(|from| interval(&from.without_error)),
            "error": from.as_ref().map(|from| number(from.error)),
            "error_of": from.as_ref().map(|from| from.error_of.key()),
            "malloc": from.as_ref().map(|from| number(from.malloc)),
            "missing": variant.failed.as_ref().map(absence),
        })
    };
    json!({
        "traced": replay.traced,
        "in_turns": replay.in_turns,
        "calls": replay.calls,
        "rounds": replay.rounds,
        "present": {
            "cost_ns": interval(&replay.present.cost),
            "ready_ns": interval(&replay.present.ready),
            "faults": interval(&replay.present.faults),
        },
        "variants": list(&replay.variants, variant),
    })
}

fn account(a: &RuntimeAccount) -> Value {
    json!({
        "pid": a.pid,
        "method": a.method,
        "over_ns": a.over_ns,
        "stopped_ns": measured(&a.stopped_ns, figure),
        "collections": measured(&a.collections, plain),
        "collector_cpu_ns": measured(&a.collector_cpu_ns, figure),
        "allocated_bytes": measured(&a.allocated_bytes, figure),
    })
}

/// An interval, and where it comes from.
fn figure(f: &Figure) -> Value {
    let Interval { low, point, high } = f.value;
    json!({ "low": number(low), "point": number(point), "high": number(high), "sampled": f.sampled })
}

fn process(p: &Process) -> Value {
    let pairs = p.environment.iter().map(|(name, value)| json!({ "name": name, "value": value }));
    json!({
        "pid": p.pid,
        "ppid": p.ppid,
        "comm": p.comm,
        "exe": measured(&p.exe, plain),
        "cmdline": p.cmdline,
        "libc": measured(&p.libc, named),
        "runtime": measured(&p.runtime, named),
        "allocator": measured(&p.allocator, allocator),
        "environment": pairs.collect::<Vec<_>>(),
        "thp_disabled": measured(&p.thp_disabled, plain),
    })
}

/// `"static"` and `{"glibc": {"version": …}}` alike as `{"kind": …, …}`.
pub fn named<T: Serialize>(value: &T) -> Value {
    match plain(value) {
        Value::Object(variants) => variants.into_iter().next().map_or(Value::Null, |(name, fields)| {
            let mut object = serde_json::Map::from_iter([("kind".to_string(), Value::String(name))]);
            if let Value::Object(fields) = fields {
                object.extend(fields);
            }
            Value::Object(object)
        }),
        name => json!({ "kind": name }),
    }
}

fn allocator(a: &Allocator) -> Value {
    json!({ "kind": plain(&a.kind), "how": plain(&a.how), "module": a.module, "version": a.version })
}

fn host(h: &HostFacts) -> Value {
    json!({
        "kernel_release": h.kernel_release,
        "architecture": h.architecture,
        "cpu_model": h.cpu_model,
        "online_cpus": h.online_cpus,
        "numa_nodes": h.numa_nodes,
        "memory_bytes": (h.memory_bytes > 0).then_some(h.memory_bytes),
        "page_bytes": h.page_bytes,
        "hypervisor": h.hypervisor,
        "free_page_reporting": measured(&h.free_page_reporting, plain),
        "thp_enabled": measured(&h.thp_enabled, plain),
        "thp_defrag": measured(&h.thp_defrag, plain),
        "hugepages_total": h.hugepages_total,
        "hugepages_free": h.hugepages_free,
        "cgroup_version": measured(&h.cgroup_version, plain),
        "container": h.container,
        "euid": h.euid,
        "perf_event_paranoid": measured(&h.perf_event_paranoid, plain),
        "kptr_restrict": measured(&h.kptr_restrict, plain),
        "pmu": measured(&h.pmu, |()| Value::Bool(true)),
    })
}

fn price(p: &Price) -> Value {
    json!({ "name": p.name, "ns": interval(&p.ns), "repetitions": p.repetitions })
}

fn probe(p: &Probe) -> Value {
    let (state, why) = match &p.state {
        ProbeState::Measured => ("measured", None),
        ProbeState::Partial(why) => ("partial", Some(why)),
        ProbeState::Absent(why) => ("absent", Some(why)),
    };
    json!({ "name": p.name, "what": p.what, "state": state, "missing": why.map(absence) })
}

fn recording(rec: &Recording) -> Value {
    let Meta {
        tool_version,
        started_unix_ms,
        window_ns,
        requested_ns,
        ended,
        sample_period_ns,
        kernel_samples,
        system_wide,
        wait_period_ns,
        own_cpu_ns,
        lost_records,
        ..
    } = &rec.meta;
    json!({
        "tool_version": tool_version,
        "started_unix_ms": started_unix_ms,
        "window_ns": window_ns,
        "requested_ns": requested_ns,
        "ended": named(ended),
        "sample_period_ns": sample_period_ns,
        "kernel_samples": kernel_samples,
        "system_wide": system_wide,
        "wait_period_ns": wait_period_ns,
        "own_cpu_ns": own_cpu_ns,
        "lost_records": lost_records,
        "smaps_cost": measured(&rec.smaps_cost, plain),
        "cpu_samples": rec.samples.len(),
        "wait_samples": rec.waits.len(),
        "python_samples": rec.python.len(),
        "threads": rec.threads.len(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::{memory_text, sketches};
    use super::*;
    use allocwall_model::replay::ReplayCost;
    use allocwall_model::resident::TargetMemory;
    use std::collections::BTreeSet;

    /// Every path of a document, such as `bill.on_cpu[].share.low`, down to strings, numbers and lists of strings. An
    /// empty list has no paths for its items.
    fn paths(value: &Value, at: &str, into: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) if fields.contains_key("absent") => {}
            Value::Object(fields) => {
                for (name, value) in fields {
                    let at = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
                    match name.as_str() {
                        // The fields of a bill have a section of their own: those of `allocwall memory`.
                        "missing" | "bills" => drop(into.insert(at)),
                        _ => paths(value, &at, into),
                    }
                }
            }
            Value::Array(items) if items.iter().all(|i| !i.is_string()) => {
                items.iter().for_each(|item| paths(item, &format!("{at}[]"), into));
            }
            _ => drop(into.insert(at.to_string())),
        }
    }

    /// Paths in the first column of the tables of docs/json.md that describe this document.
    fn documented() -> BTreeSet<String> {
        let page = include_str!("../../../docs/json.md");
        let (page, _) = page.split_once("\n# Other documents").unwrap_or((page, ""));
        let rows = page.lines().filter_map(|l| l.strip_prefix("| `"));
        rows.filter_map(|l| l.split('`').next()).map(String::from).collect()
    }

    fn runtime() -> RuntimeAccount {
        let figure = |point: f64, sampled| Ok(Figure { value: Interval::exact(point), sampled });
        RuntimeAccount {
            pid: 4242,
            method: "counters".into(),
            over_ns: 10,
            stopped_ns: figure(3.0, true),
            collections: Ok(4),
            collector_cpu_ns: figure(5.0, false),
            allocated_bytes: figure(6.0, false),
        }
    }

    fn replay() -> Replay {
        let variant = |remedy: &str, failed| Replayed {
            remedy: remedy.into(),
            cost: Interval::exact(40.0),
            saved: Interval::exact(10.0),
            failed,
        };
        let why = Absence::new(allocwall_model::units::Reason::NotFound, "no such library");
        Replay {
            traced: false,
            in_turns: true,
            present: ReplayCost {
                cost: Interval::exact(50.0),
                ready: Interval::exact(20.0),
                faults: Interval::exact(0.1),
            },
            variants: vec![variant("mimalloc", None), variant("jemalloc", Some(why))],
            calls: 60_000,
            rounds: 9,
        }
    }

    #[test]
    fn an_allocator_that_was_not_replayed_has_a_reason_and_no_cost() {
        let mut case = sketches::first_touch();
        case.rec.replayed = Ok(replay());
        let document = value(&case.rec, &case.bill, &case.verdict);
        let [known, unknown] = [0, 1].map(|nth| &document["replayed"]["variants"][nth]);
        assert_eq!((&known["saved_ns"]["point"], &known["missing"]), (&json!(10.0), &Value::Null));
        let expected =
            expected::change(&case.rec, &case.bill, find("mimalloc").unwrap()).expect("it is known");
        assert_eq!(known["predicted"], interval(&expected));
        let from = |variant: &Value| {
            ["without_error", "error", "error_of", "malloc"].map(|field| variant[field].is_null())
        };
        let from_elsewhere =
            expected::from_replay(&case.rec, &case.bill, find("mimalloc").unwrap()).is_none();
        assert_eq!((from(known), from(unknown)), ([from_elsewhere; 4], [true; 4]));
        assert_eq!(
            (&unknown["saved_ns"], &unknown["missing"]["reason"]),
            (&Value::Null, &json!("not_found"))
        );
    }

    #[test]
    fn figures_of_a_runtime_are_measured_values() {
        let mut case = sketches::first_touch();
        let why = Absence::new(allocwall_model::units::Reason::Disabled, "no counters");
        case.rec.accounts = vec![RuntimeAccount { allocated_bytes: Err(why), ..runtime() }];
        let document = value(&case.rec, &case.bill, &case.verdict);
        let runtime = &document["runtimes"][0];
        assert_eq!(runtime["stopped_ns"], json!({ "low": 3.0, "point": 3.0, "high": 3.0, "sampled": true }));
        assert_eq!((&runtime["collections"], &runtime["over_ns"]), (&json!(4), &json!(10)));
        assert_eq!(runtime["allocated_bytes"]["absent"]["reason"], "disabled");
    }

    #[test]
    fn resident_memory_is_a_part_of_the_document_or_has_its_reason() {
        let mut case = sketches::first_touch();
        let bill = memory_text::tests::bill();
        case.rec.resident = Ok(TargetMemory { bills: vec![bill.clone()], others: 2, unread: None });
        case.verdict.remedies[0].returns_bytes = Some(5);
        let document = value(&case.rec, &case.bill, &case.verdict);
        let alone: Value = serde_json::from_str(&memory_text::document(&bill)).expect("valid JSON");
        let part = document["resident"]["bills"][0].as_object().expect("an object");
        for (name, field) in part {
            assert_eq!(*field, alone[name], "{name}");
        }
        let own: BTreeSet<&str> =
            alone.as_object().into_iter().flatten().map(|(name, _)| name.as_str()).collect();
        let shared: BTreeSet<&str> = part.keys().map(String::as_str).collect();
        assert_eq!(own.difference(&shared).copied().collect::<Vec<_>>(), ["tool", "version"]);
        assert_eq!(
            (&document["resident"]["others"], &document["remedies"][0]["returns_bytes"]),
            (&json!(2), &json!(5))
        );
        assert_eq!(document["resident"]["unread"], Value::Null);
        let refused = Absence::new(allocwall_model::units::Reason::TooCostly, "it is too large");
        case.rec.resident.as_mut().expect("set").unread = Some(refused);
        let document = value(&case.rec, &case.bill, &case.verdict);
        assert_eq!(document["resident"]["unread"]["reason"], "too_costly");
        case.rec.resident = Err(Absence::new(allocwall_model::units::Reason::Vanished, "it ended"));
        let document = value(&case.rec, &case.bill, &case.verdict);
        assert_eq!(document["resident"]["absent"]["reason"], "vanished");
        assert_eq!(document["remedies"][1]["returns_bytes"], Value::Null);
    }

    #[test]
    fn the_page_and_the_document_name_the_same_fields() {
        let mut fields = BTreeSet::new();
        let mut cases = sketches::all();
        cases[0].rec.accounts = vec![runtime()];
        cases[0].rec.hardware = Ok(counters::tests::counts());
        cases[0].rec.devices = devices::tests::devices();
        cases[0].rec.counted = Ok(allocwall_sketches::recording::counted(15, &[(9, 64)], 500, 0.1));
        cases[0].rec.replayed = Ok(replay());
        cases[0].rec.resident =
            Ok(TargetMemory { bills: vec![memory_text::tests::bill()], others: 0, unread: None });
        for case in cases {
            paths(&value(&case.rec, &case.bill, &case.verdict), "", &mut fields);
        }
        // An interval is one row, also if it is null in another case.
        let intervals: BTreeSet<String> =
            fields.iter().filter_map(|f| f.strip_suffix(".low")).map(String::from).collect();
        fields.retain(|f| f.rsplit_once('.').is_none_or(|(parent, _)| !intervals.contains(parent)));
        fields.extend(intervals);
        let documented = documented();
        let missing: Vec<_> = fields.difference(&documented).collect();
        let stale: Vec<_> = documented.difference(&fields).collect();
        assert!(
            missing.is_empty() && stale.is_empty(),
            "not in docs/json.md: {missing:#?}\nonly there: {stale:#?}"
        );
    }

    #[test]
    fn status_is_one_of_four_words() {
        for case in sketches::all() {
            let document = value(&case.rec, &case.bill, &case.verdict);
            for finding in document["findings"].as_array().unwrap() {
                let status = finding["status"].as_str().unwrap();
                assert!(["wall", "contributor", "ruled_out", "not_measured"].contains(&status), "{status}");
                assert_eq!(finding["share"].is_null(), status == "not_measured", "{finding}");
                assert_eq!(finding["missing"].is_null(), status != "not_measured", "{finding}");
            }
        }
    }

    #[test]
    fn no_number_breaks_the_document() {
        let mut case = sketches::first_touch();
        case.bill.cpu_s = f64::NAN;
        case.bill.sampled_cpu_s = f64::INFINITY;
        case.verdict.findings[0].share = Some(Interval::new(f64::NEG_INFINITY, f64::NAN, 1.0));
        let text = document(&case.rec, &case.bill, &case.verdict);
        let back: Value = serde_json::from_str(&text).expect("valid JSON");
        assert!(back["bill"]["cpu_s"].is_null() && back["bill"]["sampled_cpu_s"].is_null());
        assert!(!text.contains("NaN") && !text.contains("inf"));
    }

    #[test]
    fn names_survive_the_way_but_reach_no_terminal() {
        let mut case = sketches::first_touch();
        let name = "a\u{1b}[2J\u{9b}31m\u{202e}\u{e0041}\"\\\n";
        case.rec.processes[0].comm = name.into();
        let text = document(&case.rec, &case.bill, &case.verdict);
        assert!(text.chars().all(|c| c == '\n' || escape::is_harmless(c)));
        let back: Value = serde_json::from_str(&text).expect("valid JSON");
        assert_eq!(back["target"]["processes"][0]["comm"], name);
    }

    #[test]
    fn what_is_absent_says_why() {
        let case = sketches::not_root();
        let document = value(&case.rec, &case.bill, &case.verdict);
        assert_eq!(document["prices"]["absent"]["reason"], "not_found");
        let calibrate = json!({ "how": "allocwall calibrate", "is_command": true, "note": null });
        assert_eq!(document["prices"]["absent"]["mend"], json!([calibrate]));
        assert_eq!(document["bill"]["off_cpu"][0]["thread_s"]["absent"]["reason"], "not_permitted");
        assert_eq!(document["recording"]["ended"]["kind"], "target_exited");
    }

    #[test]
    fn verdict_and_findings_stand_at_the_top() {
        let case = sketches::first_touch();
        let text = document(&case.rec, &case.bill, &case.verdict);
        let own = format!("\"version\": \"{}\"", env!("CARGO_PKG_VERSION"));
        insta::assert_snapshot!(text.replacen(&own, "\"version\": \"[own]\"", 1));
    }
}
