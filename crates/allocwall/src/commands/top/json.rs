//! One JSON object for each window, version 1 (docs/json.md).

use super::state::{Seen, State};
use allocwall_diagnose::bill::Bill;
use allocwall_model::units::{Absence, Measured, Reason};
use allocwall_report::json::{self, absence, interval, list, measured, number};
use serde_json::{Value, json};

/// Incremented when a field changes its meaning or is removed. New fields do not increment it.
pub const VERSION: u32 = 1;

/// The newest window, newline-terminated. Empty if there is none.
pub fn line(state: &State) -> String {
    state.last().map_or(String::new(), |seen| json::line(&value(state, seen)))
}

fn value(state: &State, seen: &Seen) -> Value {
    let Seen { at_s, bill, judged, walls, throttled, own, pause } = seen;
    let subject = state.subject.as_ref();
    let cpus = subject.map_or(1, |subject| subject.online_cpus);
    let process = subject.and_then(|subject| subject.process.as_ref());
    let not_yet = || Absence::new(Reason::TooLittle, "the resident memory has not been read yet");
    let unread = || state.unread.clone().unwrap_or_else(not_yet);
    json!({
        "format": "allocwall-top",
        "version": VERSION,
        "window": state.count,
        "at_s": number(*at_s),
        "length_s": number(bill.window_s),
        "target": {
            "pid": process.map(|process| process.pid),
            "comm": process.map(|process| &process.comm),
            "cmdline": process.map(|process| &process.cmdline),
            "processes": subject.map_or(0, |subject| subject.processes),
            "threads": bill.rates.threads_peak,
        },
        "cpus": number(bill.cpu_s / bill.window_s.max(1e-9)),
        "online_cpus": cpus,
        "sentence": judged.sentence,
        "walls": walls.iter().map(|wall| wall.key()).collect::<Vec<_>>(),
        "last_minute": { "sentence": state.judge().sentence, "over_s": number(state.covered_s()) },
        "on_cpu": measured(&bill.on_cpu, |lines| list(lines, |line| json!({
            "class": line.class.key(),
            "share": interval(&line.share),
            "cpu_s": number(line.cpu_s.point),
            "last_minute": state.share(line.class).map(number),
        }))),
        "faults": faults(bill),
        "off_cpu": list(&bill.off_cpu, |line| json!({
            "class": line.class.key(),
            "thread_s": measured(&line.thread_s, |time| number(time.point)),
        })),
        "thread_s": number(bill.rates.thread_s),
        "resident_bytes": bill.rates.resident_end,
        "resident": measured(&state.memory.as_ref().ok_or_else(unread), |memory| json!({
            "at_s": number(memory.at_s),
            "owners": memory.read.bills.first().map_or(Value::Null, |bill| list(&bill.rows, |row| json!({
                "owner": row.owner.key(),
                "resident_bytes": number(memory.read.resident_bytes(|owner| owner == row.owner)),
            }))),
            "others": memory.read.others,
        })),
        "throttled": throttled.map(|throttled| json!({
            "periods": throttled.periods,
            "throttled_periods": throttled.hit,
            "quota_cpus": throttled.quota_cpus.map(number),
        })),
        "limit": subject.and_then(|subject| subject.limit.as_ref()).map(absence),
        "own": {
            "cpu_s": number(own.cpu_s),
            "share": number(own.share(cpus)),
            "pause_s": number(pause.as_secs_f64()),
        },
    })
}

fn faults(bill: &Bill) -> Value {
    let rate = |rate: &Measured<f64>| measured(rate, |rate| number(*rate));
    json!({
        "minor_per_s": rate(&bill.rates.minor_faults),
        "major_per_s": rate(&bill.rates.major_faults),
        "by_owner": list(&bill.faulted, |faulted| json!({
            "wall": faulted.wall.key(),
            "basis": faulted.basis.key(),
            "owners": list(&faulted.owners, |one| json!({
                "owner": one.owner.key(),
                "share": number(one.share.point),
            })),
        })),
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{first_touch, taken};
    use super::*;
    use std::collections::BTreeSet;
    use std::time::Duration;

    fn paths(value: &Value, at: &str, into: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) if fields.contains_key("absent") => _ = into.insert(at.to_owned()),
            Value::Object(fields) if fields.contains_key("low") => _ = into.insert(at.to_owned()),
            Value::Object(fields) => fields.iter().for_each(|(name, value)| {
                let dot = if at.is_empty() { "" } else { "." };
                paths(value, &format!("{at}{dot}{name}"), into);
            }),
            Value::Array(items) if items.iter().any(Value::is_object) => {
                items.iter().for_each(|item| paths(item, &format!("{at}[]"), into));
            }
            _ => _ = into.insert(at.to_owned()),
        }
    }

    #[test]
    fn every_field_is_described() {
        let mut state = State::new(Duration::from_secs(2));
        assert_eq!(line(&state), "");
        state.add(taken(first_touch(), 0.0));
        let line = line(&state);
        assert_eq!(line.matches('\n').count(), 1);
        let mut found = BTreeSet::new();
        paths(&serde_json::from_str(&line).unwrap(), "", &mut found);
        let page = include_str!("../../../../../docs/json.md");
        let section =
            page.split("\n## ").find(|section| section.starts_with("Live: `allocwall top")).unwrap();
        let rows = section.lines().filter_map(|row| row.strip_prefix("| `")?.split('`').next());
        assert_eq!(rows.map(str::to_owned).collect::<BTreeSet<_>>(), found);
    }
}
