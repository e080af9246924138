//! Whose memory the page faults of the bill are about.

use super::{block_of, blocks};
use allocwall_model::catalogue::cost::CostClass;
use allocwall_model::catalogue::owners::Owner;
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::recording::Recording;
use allocwall_model::stats;
use allocwall_model::units::Interval;
use serde::{Deserialize, Serialize};

/// The page faults of one wall, divided by the owner of the memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Faulted {
    pub wall: Wall,
    /// Samples in these faults.
    pub samples: u64,
    /// The part of them whose owner is known.
    pub known: f64,
    /// Parts of those whose owner is known, largest first. They sum to 1.
    pub owners: Vec<OwnerShare>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct OwnerShare {
    pub owner: Owner,
    pub share: Interval,
}

/// Walls whose lines have page faults, and these lines. (The other line of a fork has none.)
const OF_FAULTS: [(Wall, &[CostClass]); 3] = [
    (Wall::FirstTouch, &[CostClass::FaultPath, CostClass::Zeroing]),
    (Wall::Fork, &[CostClass::CopyOnWrite]),
    (Wall::FileFault, &[CostClass::FileFault]),
];

/// `classes` are the classes of the samples, in the same order. Empty if no sample has an owner.
pub fn of(recording: &Recording, classes: &[CostClass]) -> Vec<Faulted> {
    let count = blocks(recording);
    let of_wall = |(wall, lines): (Wall, &[CostClass])| {
        let mut slices = vec![[0u64; Owner::ALL.len()]; count];
        let samples = recording.samples.iter().zip(classes).filter(|(_, class)| lines.contains(class));
        for (sample, owner) in samples.filter_map(|(sample, _)| Some((sample, sample.faulted?))) {
            slices[block_of(sample.t_ns, recording, count)][owner as usize] += 1;
        }
        let sum = |one: &dyn Fn(Owner) -> bool, slice: &[u64]| -> u64 {
            Owner::ALL.into_iter().filter(|owner| one(*owner)).map(|owner| slice[owner as usize]).sum()
        };
        let total = |one: &dyn Fn(Owner) -> bool| slices.iter().map(|slice| sum(one, slice)).sum::<u64>();
        let (samples, known) = (total(&|_| true), total(&Owner::is_known));
        if known == 0 {
            return None;
        }
        let share = |owner: Owner| {
            let hits: Vec<(u64, u64)> =
                slices.iter().map(|slice| (slice[owner as usize], sum(&Owner::is_known, slice))).collect();
            OwnerShare { owner, share: stats::proportion_over_time(&hits) }
        };
        let mut owners: Vec<OwnerShare> = Owner::ALL
            .into_iter()
            .filter(|o| o.is_known() && total(&|other| other == *o) > 0)
            .map(share)
            .collect();
        owners.sort_by(|a, b| b.share.point.total_cmp(&a.share.point));
        Some(Faulted { wall, samples, known: known as f64 / samples as f64, owners })
    };
    OF_FAULTS.into_iter().filter_map(of_wall).collect()
}

impl Faulted {
    /// The part of the faults that is about memory of these owners. Faults of unknown owner may be about it too.
    pub fn part(&self, of: impl Fn(Owner) -> bool) -> Interval {
        let mut of_known = Interval::exact(0.0);
        for one in self.owners.iter().filter(|one| of(one.owner)) {
            of_known.low += one.share.low;
            of_known.point += one.share.point;
            of_known.high += one.share.high;
        }
        let unknown = 1.0 - self.known;
        Interval::new(
            of_known.low.min(of_known.point) * self.known,
            of_known.point.min(1.0),
            (of_known.high.min(1.0) * self.known + unknown).max(of_known.point.min(1.0)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocwall_sketches::recording::{PID, Sketch};

    /// A recording with this many samples of each owner, all first touches.
    fn faults(of: &[(Owner, u64)]) -> Vec<Faulted> {
        let mut s = Sketch::new();
        for &(owner, count) in of {
            let from = s.recording.samples.len();
            s.samples(count, PID, "do_anonymous_page;handle_mm_fault;exc_page_fault", "app!work");
            s.recording.samples[from..].iter_mut().for_each(|sample| sample.faulted = Some(owner));
        }
        let classes = vec![CostClass::FaultPath; s.recording.samples.len()];
        super::of(&s.recording, &classes)
    }

    #[test]
    fn the_parts_of_known_owners_sum_to_one() {
        let all = faults(&[(Owner::Heap, 100), (Owner::Private, 300), (Owner::Unknown, 100)]);
        let [touch] = &all[..] else { panic!("{all:?}") };
        assert_eq!((touch.wall, touch.samples, touch.known), (Wall::FirstTouch, 500, 0.8));
        let owners: Vec<_> = touch.owners.iter().map(|o| (o.owner, o.share.point)).collect();
        assert_eq!(owners, [(Owner::Private, 0.75), (Owner::Heap, 0.25)]);
        // The unknown ones may all be the heap's, or none of them.
        let heap = touch.part(Owner::is_glibc);
        assert!((heap.point - 0.25).abs() < 1e-9 && heap.low <= 0.2 && heap.high >= 0.4, "{heap:?}");
        assert_eq!(touch.part(|_| true).point, 1.0);
        assert_eq!(touch.part(|_| false).low, 0.0);
    }

    #[test]
    fn without_any_owner_there_is_no_division() {
        assert!(faults(&[(Owner::Unknown, 100), (Owner::Unmapped, 10)]).is_empty());
        assert!(faults(&[]).is_empty());
    }
}
