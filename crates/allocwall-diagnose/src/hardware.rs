//! What the processor's counters say about the target.

use crate::bill::Bill;
use crate::context::Context;
use allocwall_model::catalogue::cost::CostClass::Application;
use allocwall_model::catalogue::prices::{LOAD_2M, LOAD_4K};
use allocwall_model::catalogue::thresholds::TLB_REACH_BYTES;
use allocwall_model::hardware::{HardwareCounts, HardwareEvent};
use allocwall_model::recording::Recording;
use allocwall_model::units::{Absence, Interval, Measured, Reason};

/// A core walks the page tables for at most this many misses at once: two on Intel since Skylake, six on AMD since Zen 3.
const WALKS_AT_ONCE: f64 = 6.0;
/// How far the part of its own time that a program waits for loads may be from the true one: a test allows as much
/// (tests/loads.rs of the program).
const WAITS_OFF: f64 = 0.1;

/// A figure from hardware counters.
pub struct Figure {
    /// Key of the JSON format.
    pub name: &'static str,
    /// As text after the number.
    pub title: &'static str,
    /// It is a share rather than a number.
    pub is_share: bool,
    pub value: Measured<Interval>,
}

/// The figures of a recording; empty if no hardware event was counted.
pub fn figures(recording: &Recording, bill: &Bill) -> Vec<Figure> {
    use HardwareEvent::*;
    let Ok(counts) = &recording.hardware else { return Vec::new() };
    let per_1000 = |event| counts.ratio(event, Instructions).map(|ratio| ratio.scaled(1e3));
    let misses = match counts.of(LlcLoadMisses) {
        Ok(_) => {
            ("llc_misses_per_1000_instructions", "LLC load misses per 1,000 instructions", LlcLoadMisses)
        }
        Err(_) => ("cache_misses_per_1000_instructions", "cache misses per 1,000 instructions", CacheMisses),
    };
    let number = |name, title, value| Figure { name, title, is_share: false, value };
    let share = |name, title, value| Figure { name, title, is_share: true, value };
    vec![
        number("instructions_per_cycle", "instructions per cycle", counts.ratio(Instructions, Cycles)),
        share(
            "page_walks",
            "of the cycles in page walks for loads",
            counts.ratio(walk_event(counts), Cycles),
        ),
        number(
            "dtlb_misses_per_1000_instructions",
            "dTLB load misses per 1,000 instructions",
            per_1000(DtlbLoadMisses),
        ),
        number(misses.0, misses.1, per_1000(misses.2)),
        share("remote_loads", "of the loads from memory are remote", counts.ratio(NodeLoadMisses, NodeLoads)),
        number("faults_per_1000_instructions", "page faults per 1,000 instructions", faults(recording, bill)),
    ]
}

/// The event that has the time of page walks: a processor has one of the two.
pub(crate) fn walk_event(counts: &HardwareCounts) -> HardwareEvent {
    let is_of_others = |why: &Absence| matches!(why.reason, Reason::NotApplicable | Reason::NotFound);
    match counts.of(HardwareEvent::DtlbGuestWalkActive) {
        Err(why) if is_of_others(&why) => HardwareEvent::DtlbWalkActive,
        _ => HardwareEvent::DtlbGuestWalkActive,
    }
}

/// Page faults for each 1,000 instructions. The faults of all of the window stand for those of its slices: both are
/// taken for each second of CPU time.
fn faults(recording: &Recording, bill: &Bill) -> Measured<Interval> {
    let counts = recording.hardware.as_ref().map_err(Clone::clone)?;
    let per_second = bill.rates.minor_faults.as_ref().map_err(Clone::clone)?;
    let per_cpu_ns = per_second * bill.window_s / bill.cpu_s / 1e9;
    let instructions = counts.per_cpu_ns(HardwareEvent::Instructions)?;
    if instructions.low <= 0.0 || bill.cpu_s <= 0.0 {
        return Err(Absence::new(
            Reason::TooLittle,
            "the number of instructions is not known closely enough",
        )
        .mend("use a longer window: -d 60"));
    }
    let each = |instructions: f64| per_cpu_ns * 1e3 / instructions;
    Ok(Interval::new(each(instructions.high), each(instructions.point), each(instructions.low)))
}

impl Context<'_> {
    /// How often the event happened in the target during the window: in all of its CPU time, or in user mode if kernel mode
    /// was not counted. None if it was not counted.
    pub fn hardware(&self, event: HardwareEvent) -> Option<Interval> {
        let counts = self.recording.hardware.as_ref().ok()?;
        Some(counts.per_cpu_ns(event).ok()?.scaled(self.bill.cpu_s * 1e9))
    }

    /// Events for each event of another kind, by the target: remote loads for each load from memory.
    pub fn hardware_ratio(&self, of: HardwareEvent, to: HardwareEvent) -> Measured<Interval> {
        self.recording.hardware.as_ref().map_err(Clone::clone)?.ratio(of, to)
    }

    /// The part of the target's CPU time that hardware events cover: all of it, or user mode. None if the time in user
    /// mode is unknown.
    pub fn counted_part(&self) -> Option<f64> {
        if self.recording.hardware.as_ref().ok()?.kernel {
            return Some(1.0);
        }
        let (Ok(user), Ok(system)) = (&self.bill.rates.user_cpu_s, &self.bill.rates.system_cpu_s) else {
            return None;
        };
        let whole = user + system;
        (whole > 0.0).then(|| user / whole)
    }

    /// The part of the target's CPU time in which a page walk for a load was active.
    pub fn page_walks(&self) -> Option<Interval> {
        let event = walk_event(self.recording.hardware.as_ref().ok()?);
        let walks = self.hardware_ratio(event, HardwareEvent::Cycles).ok()?;
        let Interval { low, point, high } = walks.scaled(self.counted_part()?);
        Some(Interval::new(low.min(1.0), point.min(1.0), high.min(1.0)))
    }

    /// Whether the count of page walks leaves out those of the hypervisor's own tables: on a virtual machine, if the event of its
    /// processor does. Elsewhere the count is the whole time: walks through two tables are only longer.
    pub fn walks_are_partial(&self) -> bool {
        let Ok(counts) = &self.recording.hardware else { return false };
        let is_virtual = self.recording.host.hypervisor.is_some();
        is_virtual && walk_event(counts) == HardwareEvent::DtlbGuestWalkActive
    }

    /// The part of the target's CPU time in page walks, by counted misses. Each miss costs what a dependent load on 4 KiB
    /// pages costs more than one on 2 MiB pages. That is the most if walks never overlap with one another, and a fraction of
    /// it if they always do.
    pub fn page_walks_by_misses(&self) -> Option<Interval> {
        let misses = self.hardware(HardwareEvent::DtlbLoadMisses)?;
        let (load_4k, load_2m) = (self.price(LOAD_4K)?, self.price(LOAD_2M)?);
        if self.bill.cpu_s <= 0.0 {
            return None;
        }
        let share =
            |misses: f64, price_ns: f64| (misses * price_ns.max(0.0) / 1e9 / self.bill.cpu_s).min(1.0);
        let high = share(misses.high, load_4k.high - load_2m.low);
        let low = share(misses.low, load_4k.low - load_2m.high) / WALKS_AT_ONCE;
        Some(Interval::new(low, (low + high) / 2.0, high))
    }

    /// Resident bytes, and those of them on huge pages. None if they were not read.
    pub fn resident_on_pages(&self) -> Option<(u64, u64)> {
        let smaps = self.last_smaps();
        // Shared memory and mapped files use the same TLB. The resident set does not include hugetlb pages.
        let huge = smaps.map_or(0, |s| s.anon_huge.saturating_add(s.hugetlb));
        let resident = match smaps {
            Some(s) => Some(s.rss.saturating_add(s.hugetlb)),
            None => self.last_tick().map(|t| t.resident),
        };
        Some((resident.filter(|r| *r > 0)?, huge))
    }

    /// An upper bound of the part of CPU time in page walks. It assumes that all of the application's time is dependent
    /// loads beyond the TLB's reach, and multiplies it by what huge pages save on such a load, by this machine's prices.
    pub fn page_walks_by_size(&self) -> Option<f64> {
        let (resident, huge) = self.resident_on_pages()?;
        let small = resident.saturating_sub(huge);
        if small <= TLB_REACH_BYTES {
            return Some(0.0);
        }
        let busy = self.busy().ok()?;
        let saved = (1.0 - self.price(LOAD_2M)?.low / self.price(LOAD_4K)?.high).clamp(0.0, 1.0);
        Some(busy.share.high * saved * (small as f64 / resident as f64))
    }

    /// The same, if the code at the samples shows how much of the application's time waits for loads: no other part of it is page walks
    /// for loads. That measure is an estimate, and so is this. Walks for stores, which seldom stop a program, are left out.
    fn page_walks_by_waits(&self) -> Option<f64> {
        let by_size = self.page_walks_by_size()?;
        let (busy, own) = (self.busy().ok()?.share.high, self.cpu(&[Application]).ok()?.share.low);
        let waits = (self.bill.waits_for_loads.as_ref().ok()?.high + WAITS_OFF).min(1.0);
        (busy > 0.0).then(|| by_size * (1.0 - own * (1.0 - waits) / busy).clamp(0.0, 1.0))
    }

    /// The closest upper bound of the part of CPU time in page walks. None if there is none.
    pub fn page_walks_at_most(&self) -> Option<f64> {
        self.page_walks_or(|| self.page_walks_by_size())
    }

    /// The same by what was counted or else by an estimate, which a prediction may use, but not a verdict.
    pub fn page_walks_likely_at_most(&self) -> Option<f64> {
        self.page_walks_or(|| self.page_walks_by_waits().or_else(|| self.page_walks_by_size()))
    }

    /// By what was counted, or else by this bound.
    fn page_walks_or(&self, uncounted: impl Fn() -> Option<f64>) -> Option<f64> {
        let counted = self.page_walks().map(|walks| walks.high);
        if counted.is_some() && !self.walks_are_partial() {
            return counted;
        }
        let by_misses = self.page_walks_by_misses().map(|walks| walks.high);
        let bound = by_misses.or_else(uncounted)?;
        Some(bound.max(counted.unwrap_or(0.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Subject, computing};
    use crate::{Finding, Status};
    use allocwall_model::catalogue::walls::Wall;
    use allocwall_model::recording::{HardwareCount, HardwareCounts, HardwareSlice, HardwareSlices, Smaps};

    /// A target with 4 GiB on small pages, on a machine of its own, and these events in each of six slices with 100 ms of CPU
    /// time.
    fn counted(events: &[(HardwareEvent, u64)]) -> Subject {
        let mut subject = computing();
        subject.recording.host.hypervisor = None;
        let count = |&(event, count): &(HardwareEvent, u64)| {
            let slice = HardwareSlice { count, enabled_ns: 100_000_000, running_ns: 100_000_000 };
            HardwareCount { event, counted: Ok(HardwareSlices { slices: vec![slice; 6] }) }
        };
        subject.recording.hardware = Ok(HardwareCounts {
            kernel: true,
            throughout: false,
            events: events.iter().map(count).collect(),
        });
        subject.last().smaps = Some(Smaps { rss: 4 << 30, anonymous: 4 << 30, ..Smaps::default() });
        subject
    }

    fn tlb(subject: &Subject) -> Finding {
        subject.finding(Wall::Tlb)
    }

    /// 300 M cycles in each slice.
    fn walks(active: u64) -> Subject {
        walks_by(HardwareEvent::DtlbWalkActive, active)
    }

    fn walks_by(event: HardwareEvent, active: u64) -> Subject {
        counted(&[
            (HardwareEvent::Cycles, 300_000_000),
            (HardwareEvent::Instructions, 200_000_000),
            (HardwareEvent::DtlbLoadMisses, 2_000_000),
            (event, active),
        ])
    }

    fn readings(subject: &mut Subject, event: HardwareEvent) -> &mut Vec<HardwareSlice> {
        let counts = subject.recording.hardware.as_mut().unwrap();
        let count = counts.events.iter_mut().find(|count| count.event == event).unwrap();
        &mut count.counted.as_mut().unwrap().slices
    }

    #[test]
    fn page_walks_convict_the_tlb_or_rule_it_out() {
        let wall = tlb(&walks(90_000_000));
        assert_eq!(wall.status, Status::Wall);
        assert!(wall.because.starts_with("30 %") && wall.estimate.is_none(), "{}", wall.because);
        assert!(wall.evidence.iter().any(|line| line.contains("10.00 per 1,000")), "{:?}", wall.evidence);
        assert_eq!(tlb(&walks(30_000_000)).status, Status::Contributor);
        assert_eq!(tlb(&walks(6_000_000)).status, Status::RuledOut);
        // A large share of little time.
        let mut idle = walks(90_000_000);
        idle.cpus(0.1);
        assert_eq!(tlb(&idle).status, Status::RuledOut);
    }

    #[test]
    fn walks_counted_without_those_of_a_hypervisor_convict_but_rule_nothing_out_there() {
        let judged = |active: u64, resident: u64| {
            let mut subject = walks_by(HardwareEvent::DtlbGuestWalkActive, active);
            subject.recording.host.hypervisor = Some("KVM".into());
            // Without prices of loads there is no figure from misses.
            subject.recording.prices = Err(crate::testing::absent());
            subject.last().smaps = Some(Smaps { rss: resident, anonymous: resident, ..Smaps::default() });
            tlb(&subject)
        };
        let wall = judged(90_000_000, 4 << 30);
        assert_eq!(wall.status, Status::Wall);
        assert!(wall.estimate.is_some_and(|how| how.contains("lower bound")));
        assert_eq!(judged(30_000_000, 4 << 30).status, Status::Contributor);
        let hidden = judged(6_000_000, 4 << 30);
        assert_eq!(hidden.status, Status::NotMeasured);
        assert!(hidden.missing.is_some_and(|why| why.detail.contains("hypervisor")));
        // The bound rules it out.
        assert_eq!(judged(6_000_000, 1 << 20).status, Status::RuledOut);
        // So does the count of a processor whose event has all walks, and any count where there is no hypervisor.
        for (event, hypervisor) in [
            (HardwareEvent::DtlbWalkActive, Some("KVM")),
            (HardwareEvent::DtlbWalkActive, None),
            (HardwareEvent::DtlbGuestWalkActive, None),
        ] {
            let mut subject = walks_by(event, 6_000_000);
            subject.recording.host.hypervisor = hypervisor.map(str::to_owned);
            let finding = tlb(&subject);
            assert_eq!(
                (finding.status, finding.estimate),
                (Status::RuledOut, None),
                "{event:?} {hypervisor:?}"
            );
        }
    }

    #[test]
    fn page_walks_are_bounded_by_the_closest_figure() {
        let mut subject = walks_by(HardwareEvent::DtlbGuestWalkActive, 6_000_000);
        let bound = |subject: &Subject| {
            crate::context::Context::new(&subject.recording, &subject.bill).page_walks_at_most()
        };
        assert!((bound(&subject).unwrap() - 0.02).abs() < 1e-6);
        subject.recording.host.hypervisor = Some("KVM".into());
        let mut whole = walks(6_000_000);
        whole.recording.host.hypervisor = Some("KVM".into());
        assert!((bound(&whole).unwrap() - 0.02).abs() < 1e-6);
        // 20 M misses a second, of at most 50 ns.
        let by_misses = bound(&subject).unwrap();
        assert!(by_misses > 0.9, "{by_misses}");
        subject.recording.hardware = Err(crate::testing::absent());
        let by_size = bound(&subject).unwrap();
        assert!(by_size > 0.3 && by_size < 0.5, "{by_size}");
        let likely = |subject: &Subject| {
            crate::context::Context::new(&subject.recording, &subject.bill)
                .page_walks_likely_at_most()
                .unwrap()
        };
        assert_eq!(likely(&subject), by_size);
        // All of its time is its own.
        for (waits, part) in [(0.0, 0.1), (0.4, 0.5), (0.95, 1.0)] {
            subject.bill.waits_for_loads = Ok(Interval::exact(waits));
            assert!((likely(&subject) - part * by_size).abs() < 0.02, "{waits}: {}", likely(&subject));
            assert_eq!(bound(&subject), Some(by_size));
        }
        subject.recording.prices = Err(crate::testing::absent());
        assert_eq!(bound(&subject), None);
        subject.last().smaps = Some(Smaps { rss: 1 << 20, anonymous: 1 << 20, ..Smaps::default() });
        assert_eq!(bound(&subject), Some(0.0));
    }

    #[test]
    fn unsteady_or_multiplexed_counts_do_not_convict() {
        // 30 % on average.
        let mut unsteady = walks(0);
        for (slice, active) in
            readings(&mut unsteady, HardwareEvent::DtlbWalkActive).iter_mut().zip([0, 2, 0, 1, 0, 2])
        {
            slice.count = active * 108_000_000;
        }
        assert_ne!(tlb(&unsteady).status, Status::Wall);
        // 20 %, counted in a third of the time.
        let mut multiplexed = walks(60_000_000);
        assert_eq!(tlb(&multiplexed).status, Status::Wall);
        for slice in readings(&mut multiplexed, HardwareEvent::DtlbWalkActive) {
            (slice.count, slice.running_ns) = (slice.count * 3 / 10, slice.running_ns * 3 / 10);
        }
        let finding = tlb(&multiplexed);
        assert_eq!(finding.status, Status::Contributor);
        assert!(finding.share.is_some_and(|s| (s.point - 0.2).abs() < 1e-6 && s.low < 0.15 && s.high > 0.25));
    }

    #[test]
    fn events_of_user_mode_are_a_part_of_the_time() {
        let mut subject = walks(90_000_000);
        subject.recording.hardware.as_mut().unwrap().kernel = false;
        (subject.bill.rates.user_cpu_s, subject.bill.rates.system_cpu_s) = (Ok(1.0), Ok(3.0));
        let finding = tlb(&subject);
        assert!(finding.share.is_some_and(|share| (share.point - 0.075).abs() < 1e-6), "{finding:?}");
        assert!(finding.evidence.iter().any(|line| line.contains("in user mode")), "{finding:?}");
    }

    #[test]
    fn counted_misses_alone_are_an_estimate() {
        // A miss costs 30 to 50 ns by the prices of the test.
        let misses = |a_slice| counted(&[(HardwareEvent::DtlbLoadMisses, a_slice)]);
        // 1 % of the time at most.
        let few = tlb(&misses(20_000));
        assert_eq!(few.status, Status::RuledOut);
        assert!(few.estimate.is_some_and(|how| how.contains("misses")));
        // 5 to 50 %.
        let some = tlb(&misses(1_000_000));
        assert_eq!(some.status, Status::Contributor, "{some:?}");
        // 15 % at least, if all walks overlap.
        let many = tlb(&misses(4_000_000));
        assert_eq!(many.status, Status::Wall, "{many:?}");
        assert!(many.estimate.is_some());
        // Without prices only the bound is left, and there is none.
        let mut unpriced = misses(4_000_000);
        unpriced.recording.prices = Err(crate::testing::absent());
        assert_eq!(tlb(&unpriced).status, Status::NotMeasured);
    }

    #[test]
    fn without_counters_the_bound_stays() {
        let mut subject = counted(&[]);
        let events = [HardwareEvent::DtlbWalkActive, HardwareEvent::DtlbLoadMisses];
        let refused = |event| HardwareCount { event, counted: Err(crate::testing::absent()) };
        subject.recording.hardware.as_mut().unwrap().events = events.map(refused).into();
        for hardware in [subject.recording.hardware.clone(), Err(crate::testing::absent())] {
            subject.recording.hardware = hardware;
            let finding = tlb(&subject);
            assert_eq!(finding.status, Status::NotMeasured);
            assert!(finding.because.contains("upper bound"), "{}", finding.because);
            let missing = finding.missing.unwrap();
            assert_eq!((missing.detail.as_str(), missing.mend.len()), ("not on this machine", 2));
        }
    }

    #[test]
    fn figures_are_for_each_cycle_and_each_thousand_instructions() {
        let mut subject = walks(30_000_000);
        subject.bill.rates.minor_faults = Ok(20_000.0);
        let figures = figures(&subject.recording, &subject.bill);
        let point = |name: &str| {
            let figure = figures.iter().find(|figure| figure.name == name).unwrap();
            figure.value.as_ref().map(|value| (value.point * 1e6).round() / 1e6).ok()
        };
        assert_eq!(point("instructions_per_cycle"), Some(0.666667));
        assert_eq!(point("page_walks"), Some(0.1));
        assert_eq!(point("dtlb_misses_per_1000_instructions"), Some(10.0));
        // One CPU-second each second, with 2 G instructions.
        assert_eq!(point("faults_per_1000_instructions"), Some(0.01));
        assert_eq!(point("remote_loads"), None);
        subject.recording.hardware = Err(crate::testing::absent());
        assert!(super::figures(&subject.recording, &subject.bill).is_empty());
    }
}
