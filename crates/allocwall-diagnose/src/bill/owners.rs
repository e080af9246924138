//! Whose memory the page faults of the bill are about: by the CPU samples in them, or by their number, where that is known of more
//! of them.

use super::{block_of, blocks};
use allocwall_model::catalogue::cost::CostClass;
use allocwall_model::catalogue::owners::Owner;
use allocwall_model::catalogue::thresholds::MIN_SAMPLES;
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::recording::{FaultSlice, Recording};
use allocwall_model::stats;
use allocwall_model::units::Interval;
use serde::{Deserialize, Serialize};

/// If the owners of a smaller part of the faults are known, they say nothing about the others. Our choice.
pub const LEAST_KNOWN: f64 = 0.5;

/// The page faults of one wall, divided by the owner of the memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Faulted {
    pub wall: Wall,
    pub basis: Basis,
    /// Samples in these faults, or of them.
    pub samples: u64,
    /// The part of them whose owner is known.
    pub known: f64,
    /// Parts of those whose owner is known, largest first. They sum to 1.
    pub owners: Vec<OwnerShare>,
}

/// What the parts are parts of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// The CPU time in these faults.
    CpuTime,
    /// Their number, also of those on huge pages, which take far longer.
    Number {
        /// Faults of known owner in the slices of the window in which they were counted.
        faults: u64,
    },
}

impl Basis {
    /// Stable key of the JSON format.
    pub fn key(self) -> &'static str {
        match self {
            Basis::CpuTime => "cpu_time",
            Basis::Number { .. } => "number",
        }
    }

    pub fn method(self) -> &'static str {
        match self {
            Basis::CpuTime => {
                "CPU samples: kernel stack in a page fault, and the address that its registers give"
            }
            Basis::Number { .. } => {
                "number of faults, not their CPU time: the kernel's event of minor faults (without root, those in user mode), in slices of the window; copies after a fork are among the first touches"
            }
        }
    }
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

/// `classes` are the classes of the samples, in the same order. Empty if no owner is known.
pub fn of(recording: &Recording, classes: &[CostClass]) -> Vec<Faulted> {
    let (sampled, counted) = (by_samples(recording, classes), by_number(&recording.fault_slices));
    if sampled.is_empty() {
        return counted;
    }
    let copies = classes.iter().filter(|class| **class == CostClass::CopyOnWrite).count() as u64;
    let of_wall = |(wall, _): (Wall, &[CostClass])| {
        let find = |all: &[Faulted]| all.iter().find(|one| one.wall == wall).cloned();
        let sampled = find(&sampled);
        find(&counted).filter(|counted| knows_more(counted, sampled.as_ref(), copies)).or(sampled)
    };
    OF_FAULTS.into_iter().filter_map(of_wall).collect()
}

/// Whether the number of faults shows the owners of more of them than the CPU samples do: late look-ups miss memory that lives
/// short. By number, faults on files have no other owner, so this concerns first touches alone, and only if few faults copy
/// pages: such `copies` are among them.
fn knows_more(counted: &Faulted, sampled: Option<&Faulted>, copies: u64) -> bool {
    /// At most one copy for so many first touches.
    const FEW: u64 = 20;
    let (samples, known) = sampled.map_or((0, 0.0), |sampled| (sampled.samples, sampled.known));
    counted.wall == Wall::FirstTouch
        && counted.samples >= MIN_SAMPLES
        && counted.known > known
        && copies * FEW <= samples
}

/// Without kernel stacks, only the owner shows what kind of fault it is. Nothing separates copies after a fork from first
/// touches.
fn by_number(slices: &[FaultSlice]) -> Vec<Faulted> {
    let total = |one: &dyn Fn(Owner) -> bool| slices.iter().map(|slice| faults_of(slice, one)).sum::<f64>();
    let unknown = total(&|owner: Owner| !owner.is_known());
    let of_wall = |(wall, of): (Wall, fn(Owner) -> bool)| {
        let faults = total(&of);
        if faults == 0.0 {
            return None;
        }
        let share = |owner: Owner| OwnerShare { owner, share: share_of_number(slices, &|o| o == owner, &of) };
        let mut owners: Vec<OwnerShare> = Owner::ALL
            .into_iter()
            .filter(|o| of(*o) && total(&|other| other == *o) > 0.0)
            .map(share)
            .collect();
        owners.sort_by(|a, b| b.share.point.total_cmp(&a.share.point));
        Some(Faulted {
            wall,
            basis: Basis::Number { faults: faults as u64 },
            samples: samples_of(slices, &|owner: Owner| of(owner) || !owner.is_known()),
            known: faults / (faults + unknown),
            owners,
        })
    };
    let of_memory: fn(Owner) -> bool = |owner| owner.is_known() && owner != Owner::File;
    let of_files: fn(Owner) -> bool = is_file;
    [(Wall::FirstTouch, of_memory), (Wall::FileFault, of_files)].into_iter().filter_map(of_wall).collect()
}

fn is_file(owner: Owner) -> bool {
    owner == Owner::File
}

/// The counted faults of a slice that are about memory of these owners.
fn faults_of(slice: &FaultSlice, one: &dyn Fn(Owner) -> bool) -> f64 {
    slice.owners.iter().filter(|o| one(o.owner)).map(|o| f64::from(o.faults)).sum()
}

fn samples_of(slices: &[FaultSlice], one: &dyn Fn(Owner) -> bool) -> u64 {
    let owners = slices.iter().flat_map(|slice| &slice.owners);
    owners.filter(|o| one(o.owner)).map(|o| u64::from(o.samples)).sum()
}

/// The share of some owners in the counted faults of others. The faults that one sample stands for have one owner, so there
/// are as many trials as samples. At each end, the wider of the intervals over samples and over slices is used.
fn share_of_number(
    slices: &[FaultSlice],
    hits: &dyn Fn(Owner) -> bool,
    of: &dyn Fn(Owner) -> bool,
) -> Interval {
    let samples = samples_of(slices, of);
    let slices: Vec<(f64, f64)> =
        slices.iter().map(|slice| (faults_of(slice, hits), faults_of(slice, of))).collect();
    let (hits, all) = slices.iter().fold((0.0, 0.0), |(hits, all), slice| (hits + slice.0, all + slice.1));
    let point = if all > 0.0 { (hits / all).clamp(0.0, 1.0) } else { 0.0 };
    let binomial = stats::wilson((point * samples as f64).round() as u64, samples);
    let over_slices = stats::ratio_over_blocks(&slices).unwrap_or(binomial);
    Interval::new(
        binomial.low.min(over_slices.low).clamp(0.0, point),
        point,
        binomial.high.max(over_slices.high).clamp(point, 1.0),
    )
}

/// The part of all minor faults that map pages of files. The event counts only faults in user mode, of the threads that were
/// followed. The counters of the processes have all of them: `faults_per_s`. Of the others the owner is unknown. None if that
/// is most of them, or if there are too few samples.
pub fn of_files(slices: &[FaultSlice], faults_per_s: f64) -> Option<Interval> {
    let known: &dyn Fn(Owner) -> bool = &Owner::is_known;
    let total = |one: &dyn Fn(Owner) -> bool| slices.iter().map(|slice| faults_of(slice, one)).sum::<f64>();
    let over_s = slices.iter().map(|slice| slice.over_ns as f64 / 1e9).sum::<f64>();
    let all = total(&|_| true).max(faults_per_s * over_s);
    let seen = total(known) / all.max(f64::MIN_POSITIVE);
    if seen < LEAST_KNOWN || samples_of(slices, known) < MIN_SAMPLES {
        return None;
    }
    let files = share_of_number(slices, &is_file, known);
    let high = (files.high * seen + 1.0 - seen).max(files.point);
    Some(Interval::new(files.low * seen, files.point, high))
}

fn by_samples(recording: &Recording, classes: &[CostClass]) -> Vec<Faulted> {
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
        let known = known as f64 / samples as f64;
        Some(Faulted { wall, basis: Basis::CpuTime, samples, known, owners })
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
    use allocwall_model::recording::OwnerFaults;
    use allocwall_sketches::recording::{MS, PID, Sketch};

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
        assert!(by_number(&slices(20, &[(Owner::Unknown, 5, 100)])).is_empty());
        assert!(by_number(&slices(20, &[])).is_empty() && of_files(&[], 0.0).is_none());
    }

    /// So many slices with the same owners: samples, and faults that they stand for.
    fn slices(count: u64, of: &[(Owner, u32, u32)]) -> Vec<FaultSlice> {
        let owners = of.iter().map(|&(owner, samples, faults)| OwnerFaults { owner, samples, faults });
        let owners: Vec<OwnerFaults> = owners.collect();
        let slice = |n| FaultSlice { t_ns: n * 500 * MS, over_ns: 25 * MS, owners: owners.clone() };
        (0..count).map(slice).collect()
    }

    #[test]
    fn counted_faults_are_divided_by_their_number() {
        // The heap has as many samples as the others, and a tenth of their faults.
        let counted = slices(
            30,
            &[
                (Owner::Heap, 10, 100),
                (Owner::Private, 10, 900),
                (Owner::File, 10, 1_000),
                (Owner::Unknown, 2, 500),
            ],
        );
        let all = by_number(&counted);
        let [touch, file] = &all[..] else { panic!("{all:?}") };
        assert_eq!((touch.wall, touch.basis), (Wall::FirstTouch, Basis::Number { faults: 30_000 }));
        assert_eq!((touch.samples, file.samples), (30 * 22, 30 * 12));
        assert!((touch.known - 1_000.0 / 1_500.0).abs() < 1e-9, "{}", touch.known);
        let owners: Vec<_> = touch.owners.iter().map(|o| (o.owner, o.share.point)).collect();
        assert_eq!(owners, [(Owner::Private, 0.9), (Owner::Heap, 0.1)]);
        // As wide as 600 samples are, not 30,000 faults.
        let heap = touch.owners[1].share;
        assert!(heap.low < 0.085 && heap.low > 0.07 && heap.high > 0.12 && heap.high < 0.14, "{heap:?}");
        assert_eq!((file.wall, file.owners[0].owner), (Wall::FileFault, Owner::File));
        assert_eq!(file.owners[0].share.point, 1.0);
        // Slices that differ widen the interval.
        let mut waves = counted.clone();
        for slice in waves.iter_mut().step_by(3) {
            slice.owners[0].faults = 2_000;
        }
        let waves = by_number(&waves)[0].owners[1].share;
        assert!(waves.half_width() > 2.0 * heap.half_width(), "{waves:?}");
    }

    /// By CPU samples, the heap has a part of the first touches, and the others have no owner. By number, the arenas have all of
    /// which the owner is known. Others of the samples are of copies.
    fn chosen(sampled: (u64, u64), counted: (u64, u32), copies: u64) -> Vec<(Wall, &'static str, Owner)> {
        let mut s = Sketch::new();
        let (known, unknown) = sampled;
        s.samples(known + unknown, PID, "do_anonymous_page;handle_mm_fault;exc_page_fault", "app!work");
        s.samples(copies, PID, "do_wp_page;handle_mm_fault;exc_page_fault", "app!work");
        for (at, sample) in s.recording.samples.iter_mut().enumerate() {
            let unknown = (known..known + unknown).contains(&(at as u64));
            sample.faulted = Some(if unknown { Owner::Unmapped } else { Owner::Heap });
        }
        let (number, unknown) = counted;
        let owners = [(Owner::Arena, 10, 100), (Owner::File, 10, 100), (Owner::Unmapped, 1, unknown)];
        s.recording.fault_slices = slices(number, &owners);
        let mut classes = vec![CostClass::FaultPath; (sampled.0 + sampled.1) as usize];
        classes.resize(s.recording.samples.len(), CostClass::CopyOnWrite);
        super::of(&s.recording, &classes)
            .iter()
            .map(|one| (one.wall, one.basis.key(), one.owners[0].owner))
            .collect()
    }

    #[test]
    fn the_source_that_knows_more_owners_counts() {
        let by_number = [(Wall::FirstTouch, "number", Owner::Arena)];
        let by_samples = [(Wall::FirstTouch, "cpu_time", Owner::Heap)];
        // Half of the samples have an owner, and 100 of 110 counted first touches.
        assert_eq!(chosen((500, 500), (20, 10), 0), by_number);
        // The near twins: samples that know as much, or more, and too few slices.
        assert_eq!(chosen((1_000, 100), (20, 10), 0), by_samples);
        assert_eq!(chosen((990, 10), (20, 10), 0), by_samples);
        assert_eq!(chosen((500, 500), (5, 10), 0), by_samples);
    }

    #[test]
    fn by_number_copies_count_as_first_touches() {
        let fork = (Wall::Fork, "cpu_time", Owner::Heap);
        let of = |copies| chosen((500, 500), (20, 10), copies);
        assert_eq!(of(50), [(Wall::FirstTouch, "number", Owner::Arena), fork]);
        assert_eq!(of(51), [(Wall::FirstTouch, "cpu_time", Owner::Heap), fork]);
    }

    #[test]
    fn the_number_counts_alone_if_no_sample_has_an_owner() {
        let basis = |owner: Option<Owner>| {
            let mut s = Sketch::new();
            s.samples(100, PID, "do_anonymous_page;handle_mm_fault;exc_page_fault", "app!work");
            s.recording.samples.iter_mut().for_each(|sample| sample.faulted = owner);
            s.recording.fault_slices = slices(20, &[(Owner::Heap, 10, 100)]);
            let all = super::of(&s.recording, &[CostClass::FaultPath; 100]);
            all.iter().map(|one| (one.basis, one.owners[0].owner)).collect::<Vec<_>>()
        };
        assert_eq!(basis(Some(Owner::Arena)), [(Basis::CpuTime, Owner::Arena)]);
        let counted = [(Basis::Number { faults: 2_000 }, Owner::Heap)];
        assert_eq!(basis(Some(Owner::Unknown)), counted);
        assert_eq!(basis(None), counted);
    }

    #[test]
    fn faults_in_kernel_mode_may_be_of_any_memory() {
        // In 25 ms each.
        let owners = [(Owner::Heap, 10, 500), (Owner::File, 10, 500), (Owner::Unknown, 2, 250)];
        let part = |faults_per_s: f64| of_files(&slices(30, &owners), faults_per_s);
        // The event counted all of them: only the sampling error of 600 samples is added to the unknown ones.
        let all = part(50_000.0).expect("most are known");
        assert!((all.point - 0.5).abs() < 1e-9, "{all:?}");
        assert!(all.low > 0.36 && all.low < 0.38 && all.high > 0.62 && all.high < 0.64, "{all:?}");
        // A part was in system calls.
        let some = part(62_500.0).expect("most are known");
        assert!((some.point - 0.5).abs() < 1e-9 && (some.low / all.low - 0.8).abs() < 1e-9, "{some:?}");
        assert!(some.high > 0.68, "{some:?}");
        // Most were.
        assert_eq!(part(100_000.0), None);
    }

    #[test]
    fn few_samples_show_no_part_of_files() {
        let counted = |number: u64, unknown: u32| {
            of_files(&slices(number, &[(Owner::File, 1, 100), (Owner::Unknown, 0, unknown)]), 0.0)
        };
        assert_eq!(counted(MIN_SAMPLES, 0).map(|part| part.point), Some(1.0));
        assert_eq!(counted(MIN_SAMPLES - 1, 0), None);
        // Most owners are unknown.
        assert_eq!(counted(MIN_SAMPLES, 101), None);
    }
}
