//! A profile of counted calls in pprof's format: `go tool pprof FILE`.
//!
//! A sample is a call site of a process, with the label `pid`. Its values are estimates. The number of blocks in use is their
//! bytes divided by the site's mean size.

use super::{label, module_of};
use crate::pprof::{Label, Profile, ValueType};
use allocwall_model::allocations::{Counted, Site};
use std::io;

/// Name and unit of each value of a sample. The first one is what Go's heap profiles call the same.
const VALUES: [ValueType; 4] = [
    ("alloc_objects", "count"),
    ("alloc_space", "bytes"),
    ("inuse_objects", "count"),
    ("inuse_space", "bytes"),
];

/// The compressed profile.
///
/// # Errors
/// Those of the compressor, which writes to memory.
pub fn profile(counted: &Counted) -> io::Result<Vec<u8>> {
    let mut profile = Profile::new(&VALUES);
    // Location and function of a site without a stack.
    let none = counted.frames.len() as u64 + 1;
    for process in &counted.processes {
        for site in process.samples.iter().flat_map(|samples| &samples.sites) {
            let known = site.stack.as_ref().ok().and_then(|stack| counted.stacks.get(*stack as usize));
            let frames = known.map(|stack| &stack.frames[..]).unwrap_or_default();
            let in_table = frames.iter().filter(|frame| (**frame as usize) < counted.frames.len());
            let mut locations: Vec<u64> = in_table.map(|frame| u64::from(*frame) + 1).collect();
            if locations.is_empty() {
                locations.push(none);
            }
            let pid = Label::Number("pid", u64::from(process.pid.unsigned_abs()));
            profile.sample(&locations, &values(site), &[pid]);
        }
    }
    let named = |frame| (frame, label(module_of(counted, frame), frame));
    let frames: Vec<_> = counted.frames.iter().map(named).collect();
    profile.code(&counted.modules, &frames, &["[no stack]".to_owned()]);
    let distance = counted.processes.iter().find_map(|process| Some(process.samples.as_ref().ok()?.distance));
    profile.end(0, counted.length_ns, distance.unwrap_or(0), ("space", "bytes"), VALUES[0].0)
}

/// In the order of [`VALUES`].
fn values(site: &Site) -> [u64; 4] {
    let (calls, bytes, live) = (site.calls.point, site.bytes.point, site.live_bytes.point);
    let live_blocks = if bytes > 0.0 { live / bytes * calls } else { 0.0 };
    // A cast of a float saturates.
    [calls, bytes, live_blocks, live].map(|value| value.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::super::tests::run;
    use super::*;
    use crate::pprof::reading::{bodies, unpacked, value};
    use allocwall_model::units::{Absence, Reason};

    fn decoded(counted: &Counted) -> Vec<u8> {
        crate::pprof::reading::decoded(&profile(counted).unwrap())
    }

    #[test]
    fn every_reference_has_its_entry() {
        let counted = run().counted;
        let plain = decoded(&counted);
        let texts = bodies(&plain, 6);
        let text = |number: u64| std::str::from_utf8(texts[number as usize]).unwrap();
        assert_eq!(text(0), "");
        let types: Vec<(&str, &str)> =
            bodies(&plain, 1).iter().map(|t| (text(value(t, 1)), text(value(t, 2)))).collect();
        assert_eq!(types, VALUES);
        assert_eq!(text(value(&plain, 14)), "alloc_objects");
        let numbers = |field| -> Vec<u64> { bodies(&plain, field).iter().map(|m| value(m, 1)).collect() };
        let (mappings, places, functions) = (numbers(3), numbers(4), numbers(5));
        assert_eq!(mappings, [1, 2, 3]);
        for place in bodies(&plain, 4) {
            let mapping = value(place, 2);
            assert!(mapping == 0 || mappings.contains(&mapping));
            assert!(functions.contains(&value(bodies(place, 4)[0], 1)));
        }
        let samples = bodies(&plain, 2);
        let sites = counted.processes.iter().flat_map(|p| &p.samples).flat_map(|s| &s.sites);
        assert_eq!(samples.len(), sites.count());
        for sample in &samples {
            let of_sample = unpacked(bodies(sample, 1)[0]);
            assert!(!of_sample.is_empty() && of_sample.iter().all(|place| places.contains(place)));
            assert_eq!(unpacked(bodies(sample, 2)[0]).len(), VALUES.len());
            assert_eq!(text(value(bodies(sample, 3)[0], 1)), "pid");
        }
        let names: Vec<&str> = bodies(&plain, 5).iter().map(|f| text(value(f, 2))).collect();
        assert!(names.contains(&"parse_record") && names.contains(&"[no stack]"), "{names:?}");
    }

    #[test]
    fn values_are_those_of_the_site_and_hostile_ones_saturate() {
        let mut counted = run().counted;
        let samples = counted.processes[0].samples.as_mut().unwrap();
        samples.sites.truncate(1);
        let site = &mut samples.sites[0];
        (site.calls.point, site.bytes.point, site.live_bytes.point) = (1000.0, 64_000.0, 640.0);
        let first = |counted: &Counted| unpacked(bodies(bodies(&decoded(counted), 2)[0], 2)[0]);
        assert_eq!(first(&counted), [1000, 64_000, 10, 640]);
        let site = &mut counted.processes[0].samples.as_mut().unwrap().sites[0];
        (site.calls.point, site.bytes.point, site.live_bytes.point) = (f64::MAX, 0.0, f64::NAN);
        assert_eq!(first(&counted), [i64::MAX as u64, 0, 0, 0]);
    }

    #[test]
    fn a_profile_without_samples_or_with_wrong_indices_is_whole() {
        let mut counted = run().counted;
        counted.stacks.iter_mut().for_each(|stack| stack.frames = vec![9999]);
        counted.frames.iter_mut().for_each(|frame| frame.module = Some(9999));
        let plain = decoded(&counted);
        let none = counted.frames.len() as u64 + 1;
        assert!(bodies(&plain, 2).iter().all(|sample| unpacked(bodies(sample, 1)[0]) == [none]));
        assert!(bodies(&plain, 4).iter().all(|place| value(place, 2) == 0));
        for process in &mut counted.processes {
            process.samples = Err(Absence::new(Reason::Disabled, "sampling is off"));
        }
        assert!(bodies(&decoded(&counted), 2).is_empty());
    }
}
