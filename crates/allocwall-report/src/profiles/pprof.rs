//! For `go tool pprof`. Samples that agree in stack, thread and line are one, with their number and their CPU time.

use super::Traces;
use crate::collapsed::Level;
use crate::pprof::{Label, Profile, ValueType};
use allocwall_model::catalogue::cost::CostClass;
use allocwall_model::recording::Recording;
use allocwall_model::units::{Absence, Measured, Reason};
use std::collections::{BTreeMap, HashMap};

const VALUES: [ValueType; 2] = [("samples", "count"), ("cpu", "nanoseconds")];

/// The compressed profile.
///
/// # Errors
/// The recording has no samples.
pub fn profile(rec: &Recording) -> Measured<Vec<u8>> {
    let traces = Traces::of(rec)?;
    let mut counts: BTreeMap<(i32, i32, CostClass, Vec<Level>), u64> = BTreeMap::new();
    for trace in &traces.samples {
        let sample = trace.drawn.sample;
        let key = (sample.pid, sample.tid, trace.class, traces.levels(trace));
        *counts.entry(key).or_default() += trace.drawn.count;
    }
    let named = |(index, frame)| (frame, traces.names.name(Level::User(index)).into_owned());
    let frames: Vec<_> = (0_u32..).zip(&rec.frames).map(named).collect();
    let mut others: Vec<String> = vec![];
    let mut numbers: HashMap<Level, u64> = HashMap::new();
    let mut number = |level| match level {
        Level::Kernel(frame) | Level::User(frame) if (frame as usize) < frames.len() => u64::from(frame) + 1,
        _ => *numbers.entry(level).or_insert_with(|| {
            others.push(traces.names.name(level).into_owned());
            (frames.len() + others.len()) as u64
        }),
    };
    let mut profile = Profile::new(&VALUES);
    for ((pid, tid, class, levels), count) in counts {
        let locations: Vec<u64> = levels.into_iter().map(&mut number).collect();
        let labels = [
            Label::Text("cost_class", class.key()),
            Label::Text("process", &traces.names.process(pid)),
            Label::Text("thread", &traces.names.thread(pid, tid)),
            Label::Number("pid", u64::from(pid.unsigned_abs())),
            Label::Number("tid", u64::from(tid.unsigned_abs())),
        ];
        let cpu_ns = count.saturating_mul(rec.meta.sample_period_ns);
        profile.sample(&locations, &[count, cpu_ns], &labels);
    }
    profile.code(&rec.modules, &frames, &others);
    let start_ns = rec.meta.started_unix_ms.saturating_mul(1_000_000);
    profile
        .end(start_ns, rec.meta.window_ns, rec.meta.sample_period_ns, VALUES[1], VALUES[1].0)
        .map_err(|e| Absence::new(Reason::Exhausted, format!("cannot compress the profile: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pprof::reading::{bodies, decoded, unpacked, value};
    use crate::sketches;
    use std::collections::BTreeSet;

    #[test]
    fn the_sums_are_those_of_the_bill() {
        let mut rec = sketches::first_touch().rec;
        // It has few samples for what the kernel charged to its threads.
        rec.threads.clear();
        let bill = allocwall_diagnose::bill::of(&rec);
        let plain = decoded(&profile(&rec).unwrap());
        let texts = bodies(&plain, 6);
        let text = |number: u64| std::str::from_utf8(texts[number as usize]).unwrap();
        let mut by_class: BTreeMap<&str, u64> = BTreeMap::new();
        let mut cpu_ns = 0;
        for sample in bodies(&plain, 2) {
            let values = unpacked(bodies(sample, 2)[0]);
            let label = bodies(sample, 3)[0];
            assert_eq!(text(value(label, 1)), "cost_class");
            *by_class.entry(text(value(label, 2))).or_default() += values[0];
            cpu_ns += values[1];
        }
        let lines = bill.on_cpu.unwrap();
        let expected: BTreeMap<&str, u64> =
            lines.iter().filter(|l| l.samples > 0).map(|l| (l.class.key(), l.samples)).collect();
        assert_eq!(by_class, expected);
        assert_eq!(cpu_ns as f64 / 1e9, bill.sampled_cpu_s);
    }

    #[test]
    fn every_location_is_in_the_table_even_of_wrong_indices() {
        let mut rec = sketches::first_touch().rec;
        rec.stacks[0].frames = vec![9999];
        rec.samples[3].user = Some(9999);
        rec.samples[3].pid = -1;
        rec.frames[3].module = Some(9999);
        let plain = decoded(&profile(&rec).unwrap());
        let numbers =
            |field| -> BTreeSet<u64> { bodies(&plain, field).iter().map(|m| value(m, 1)).collect() };
        let (mappings, places, functions) = (numbers(3), numbers(4), numbers(5));
        for sample in bodies(&plain, 2) {
            assert!(unpacked(bodies(sample, 1)[0]).iter().all(|place| places.contains(place)));
        }
        for place in bodies(&plain, 4) {
            assert!([0].iter().chain(&mappings).any(|m| *m == value(place, 2)));
            assert!(functions.contains(&value(bodies(place, 4)[0], 1)));
        }
    }

    #[test]
    fn a_recording_without_samples_has_its_reason() {
        let mut rec = sketches::first_touch().rec;
        rec.samples.clear();
        assert!(profile(&rec).unwrap_err().detail.contains("no CPU samples"));
    }
}
