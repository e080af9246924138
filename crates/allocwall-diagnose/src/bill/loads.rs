//! Which part of the application's own time waits for loads from memory, by where samples were taken in its code ([`LoadSamples`]).
//!
//! If a part w of the time waits for loads, and the rest takes the same time for each instruction, then samples come after loads in
//! w + (1 - w) e of all cases, where e is the part of loads among the instructions nearby.

use super::Classified;
use allocwall_model::catalogue::cost::CostClass;
use allocwall_model::recording::{LoadSamples, Recording};
use allocwall_model::stats::wilson_of;
use allocwall_model::units::{Absence, Interval, Measured, Reason};
use std::collections::BTreeMap;

/// The code must be known for at least this part of the application's samples, and for at least this number of them. Our choice.
const LEAST_KNOWN: f64 = 0.8;
const LEAST_SAMPLES: f64 = 200.0;

/// A part of the application's own time.
pub fn of(recording: &Recording, classified: &Classified) -> Measured<Interval> {
    let loads = recording.loads.as_ref().map_err(Clone::clone)?;
    let functions: BTreeMap<u32, &LoadSamples> = loads.iter().map(|one| (one.frame, one)).collect();
    let (mut all, mut known, mut after_load, mut expected) = (0_u64, 0.0, 0.0, 0.0);
    for (sample, class) in recording.samples.iter().zip(&classified.classes) {
        if *class != CostClass::Application || sample.kernel.is_some() {
            continue;
        }
        all += 1;
        let leaf = sample.user.and_then(|stack| recording.stacks[stack as usize].frames.first());
        if let Some(function) = leaf.and_then(|leaf| functions.get(leaf)).filter(|one| one.samples > 0) {
            let samples = f64::from(function.samples);
            known += 1.0;
            after_load += f64::from(function.after_load) / samples;
            expected += f64::from(function.expected) / samples;
        }
    }
    if known < LEAST_SAMPLES || known < LEAST_KNOWN * all as f64 {
        let detail = format!("the code was read for {known:.0} of {all} samples of the application");
        return Err(Absence::new(Reason::TooLittle, detail));
    }
    let expected = expected / known;
    let waits = |part: f64| ((part - expected) / (1.0 - expected).max(f64::EPSILON)).clamp(0.0, 1.0);
    let after_load = wilson_of(after_load / known, known);
    Ok(Interval::new(waits(after_load.low), waits(after_load.point), waits(after_load.high)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocwall_model::recording::{CpuSample, Frame, Stack};
    use allocwall_sketches::recording::empty;

    /// Samples in two functions. `after_load` of those in the first one are after a load.
    fn recording(samples: u32, after_load: u32, expected: f32) -> Recording {
        let mut recording = empty();
        let frame = |symbol: &str| Frame { module: None, symbol: Some(symbol.into()), offset: 0 };
        recording.frames = vec![frame("follow"), frame("compute")];
        recording.stacks = (0..2).map(|frame| Stack { frames: vec![frame], complete: true }).collect();
        let sample = |stack: u32| CpuSample {
            t_ns: 0,
            pid: 1,
            tid: 1,
            cpu: 0,
            kernel: None,
            user: Some(stack),
            deep: false,
            faulted: None,
        };
        recording.samples = (0..2 * samples).map(|nth| sample(nth % 2)).collect();
        let function =
            |frame: u32, after_load: u32, expected: f32| LoadSamples { frame, samples, after_load, expected };
        recording.loads = Ok(vec![function(0, after_load, expected), function(1, 0, 0.0)]);
        recording
    }

    fn waits(recording: &Recording) -> Measured<Interval> {
        of(recording, &Classified::of(recording))
    }

    #[test]
    fn samples_after_loads_beyond_their_number_by_chance_are_waiting_time() {
        let half = waits(&recording(1000, 1000, 0.0)).unwrap();
        assert!((half.point - 0.5).abs() < 1e-6 && half.low > 0.45 && half.high < 0.55, "{half:?}");
        // The kernel's samples say nothing about the program's code.
        let mut with_kernel = recording(1000, 1000, 0.0);
        with_kernel.samples.iter_mut().step_by(2).for_each(|sample| sample.kernel = Some(1));
        assert_eq!(waits(&with_kernel).unwrap().point, 0.0);
        // As many as there are loads among the instructions.
        let none = waits(&recording(1000, 400, 400.0)).unwrap();
        assert!(none.point < 1e-6 && none.high < 0.03, "{none:?}");
        // Fewer than by chance is not less than nothing.
        assert_eq!(waits(&recording(1000, 100, 900.0)).unwrap().point, 0.0);
    }

    #[test]
    fn nothing_is_said_without_the_code_of_most_samples() {
        let mut unread = recording(1000, 1000, 0.0);
        unread.loads.as_mut().unwrap().pop();
        assert_eq!(waits(&unread).unwrap_err().reason, Reason::TooLittle);
        assert_eq!(waits(&recording(90, 90, 0.0)).unwrap_err().reason, Reason::TooLittle);
        assert!(waits(&recording(110, 110, 0.0)).is_ok());
        // A ninth of the samples is in code that was not read.
        let mut mostly = recording(900, 900, 0.0);
        mostly.samples.truncate(1000);
        mostly.samples.iter_mut().skip(100).for_each(|sample| sample.user = Some(0));
        mostly.loads.as_mut().unwrap().pop();
        assert!(waits(&mostly).is_ok());
        let why = Absence::new(Reason::NotApplicable, "instructions are read on x86-64 only");
        unread.loads = Err(why.clone());
        assert_eq!(waits(&unread), Err(why));
    }
}
