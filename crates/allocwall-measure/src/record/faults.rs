//! Page faults by the owner of their memory, where samples of the kernel show none, or too few: in slices of the window, the
//! kernel counts the faults of the target's threads and reports the addresses of a part of them (`slicer`). They show how many
//! faults each owner has, not how much CPU time.
//!
//! A fault costs the target about 220 ns more while the event counts (7 % of a storm of 250,000 faults a second), so all
//! slices together take at most 8 % of the window, and 10 % if some end late.

use super::slicer::{Answer, Process, Question, Slicer};
use crate::collect::Collector;
use allocwall_host::clock;
use allocwall_host::proc::ProcFs;
use allocwall_host::worker::Worker;
use allocwall_model::recording::{FaultSlice, Probe, ProbeName, ProbeState, gained};
use allocwall_model::stats::random::Random;
use allocwall_model::units::{Absence, Reason};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::Duration;

/// The window has one slice in each of so many equal parts, about half a second each.
const SLOT_NS: u64 = 500_000_000;
const SLOTS_LEAST: u64 = 15;
const SLOTS_MOST: u64 = 120;
/// The longest slice, and the largest part of the window for all slices.
const SLICE_NS: u64 = 25_000_000;
const SLICES_PART: f64 = 0.08;
/// The largest part of the window so far, if slices ended late. No slice begins above it.
const LATE_PART: f64 = 0.10;
/// A slice that has not ended so long after it was asked for is missing.
const MISSING_NS: u64 = 1_000_000_000;

/// When the slices are.
struct Plan {
    start_ns: u64,
    slots: u64,
    slot_ns: u64,
    slice_ns: u64,
}

impl Plan {
    fn new(start_ns: u64, window: Duration) -> Plan {
        let window_ns = window.as_nanos() as u64;
        let slots = (window_ns / SLOT_NS).clamp(SLOTS_LEAST, SLOTS_MOST);
        let slot_ns = (window_ns / slots).max(1);
        let slice_ns = ((slot_ns as f64 * SLICES_PART) as u64).min(SLICE_NS);
        Plan { start_ns, slots, slot_ns, slice_ns }
    }

    /// When the slice of this slot begins: at random, so that it is in step with nothing. None after the last slot.
    fn begin_ns(&self, slot: u64, random: &mut Random) -> Option<u64> {
        if slot >= self.slots {
            return None;
        }
        let late = random.unit() * (self.slot_ns - self.slice_ns) as f64;
        Some(self.start_ns + slot * self.slot_ns + late as u64)
    }
}

pub struct FaultSlices {
    /// The samples have no owners, so the slices begin with the window.
    alone: bool,
    in_use: bool,
    plan: Plan,
    /// The slot of the next slice.
    slot: u64,
    due_ns: u64,
    random: Random,
    /// How long all slices together were open.
    spent_ns: u64,
    /// Faults a second of the whole target, by the last two readings of its counters, and the last reading.
    rate: f64,
    read: Option<(u64, u64)>,
    slices: Vec<FaultSlice>,
    /// None before the first slice.
    thread: Option<Thread>,
    /// When the open slice was asked for (CLOCK_MONOTONIC).
    asked_ns: Option<u64>,
    /// When the window closed.
    closed_ns: Option<u64>,
    /// Why there are no more slices.
    refused: Option<Absence>,
    /// Why some faults of the slices have no owner.
    missing: Option<Absence>,
}

/// The thread of the slices.
struct Thread {
    questions: SyncSender<Question>,
    answers: Receiver<Answer>,
    worker: Option<Worker<()>>,
}

impl Thread {
    fn start(proc: ProcFs, start_ns: u64, slice_ns: u64) -> Thread {
        let (questions, asked) = sync_channel::<Question>(1);
        let (answer, answers) = sync_channel(1);
        let work = move || {
            let mut slicer = Slicer::new(proc, start_ns, slice_ns);
            for question in asked {
                if answer.send(slicer.slice(&question)).is_err() {
                    return;
                }
            }
        };
        Thread { questions, answers, worker: Some(Worker::start("counts page faults", work)) }
    }

    /// Why it has ended.
    fn ended(&mut self) -> Absence {
        let why = self.worker.take().and_then(|worker| worker.finish().err());
        why.unwrap_or_else(|| Absence::new(Reason::Vanished, "the thread that counts page faults has ended"))
    }
}

impl FaultSlices {
    /// `alone`: the samples have no owners. Else nothing is measured until `begin`.
    pub fn new(start_ns: u64, window: Duration, alone: bool) -> FaultSlices {
        // It only has to be independent of the target.
        let mut random = Random::new(start_ns);
        let plan = Plan::new(start_ns, window);
        let due_ns = plan.begin_ns(0, &mut random).filter(|_| alone).unwrap_or(u64::MAX);
        FaultSlices {
            alone,
            in_use: alone,
            plan,
            slot: 0,
            due_ns,
            random,
            spent_ns: 0,
            rate: 0.0,
            read: None,
            slices: Vec::new(),
            thread: None,
            asked_ns: None,
            closed_ns: None,
            refused: None,
            missing: None,
        }
    }

    /// The samples show too few owners: the slices begin with the next slot, unless they have begun.
    pub fn begin(&mut self, now_ns: u64) {
        if !self.in_use {
            self.in_use = true;
            self.slot = self.slot_of(now_ns);
            self.plan_next();
        }
    }

    /// When `turn` is due (CLOCK_MONOTONIC).
    pub fn due_ns(&self) -> u64 {
        self.due_ns
    }

    /// The target's faults so far, by the counters of its processes.
    pub fn counted(&mut self, t_ns: u64, faults: u64) {
        if let Some((before_ns, before)) = self.read.replace((t_ns, faults))
            && let (Some(passed), Some(gain)) = (t_ns.checked_sub(before_ns), gained(before, faults))
            && passed > 0
        {
            self.rate = gain as f64 * 1e9 / passed as f64;
        }
    }

    /// Begins a slice, if the last one has ended. It ends by itself.
    pub fn turn(&mut self, proc: &ProcFs, pids: &[i32], collector: &Collector) {
        self.take_answer();
        if self.asked_ns.is_none() && self.refused.is_none() && self.has_time() {
            let process = |&pid: &i32| {
                let (origin, runtime) = (collector.family.origin_of(pid), collector.family.runtime(pid));
                Process { pid, origin, runtime: runtime.cloned() }
            };
            self.ask(proc, Question { processes: pids.iter().map(process).collect(), rate: self.rate });
        }
        self.plan_next();
    }

    fn slot_of(&self, t_ns: u64) -> u64 {
        t_ns.saturating_sub(self.plan.start_ns) / self.plan.slot_ns
    }

    /// Slots that were missed are left out.
    fn plan_next(&mut self) {
        self.slot = (self.slot + 1).max(self.slot_of(clock::monotonic_ns()));
        let next = self.plan.begin_ns(self.slot, &mut self.random).filter(|_| self.refused.is_none());
        self.due_ns = next.unwrap_or(u64::MAX);
    }

    fn ask(&mut self, proc: &ProcFs, question: Question) {
        let (start_ns, slice_ns) = (self.plan.start_ns, self.plan.slice_ns);
        let thread = self.thread.get_or_insert_with(|| Thread::start(proc.clone(), start_ns, slice_ns));
        // That the thread has ended is noticed when there is no answer.
        let _ = thread.questions.try_send(question);
        self.asked_ns = Some(clock::monotonic_ns());
    }

    /// Takes the slice that was asked for, if it has ended.
    fn take_answer(&mut self) {
        let (Some(thread), Some(_)) = (&mut self.thread, self.asked_ns) else { return };
        match thread.answers.try_recv() {
            Ok(Answer { slice, open_ns, refused, missing }) => {
                (self.asked_ns, self.refused, self.missing) = (None, refused, missing);
                self.spent_ns += open_ns;
                let slice = slice.filter(|slice| self.is_in_window(slice));
                self.slices.extend(slice);
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => {
                (self.asked_ns, self.refused) = (None, Some(thread.ended()));
            }
        }
    }

    /// Whether a slice ended before the window.
    fn is_in_window(&self, slice: &FaultSlice) -> bool {
        let end_ns = self.plan.start_ns.saturating_add(slice.t_ns).saturating_add(slice.over_ns);
        self.closed_ns.is_none_or(|closed_ns| end_ns <= closed_ns)
    }

    /// Whether all slices together stay within their part of the window.
    fn has_time(&self) -> bool {
        let passed = (self.slot + 1).saturating_mul(self.plan.slot_ns);
        (self.spent_ns + self.plan.slice_ns) as f64 <= passed as f64 * LATE_PART
    }

    /// The window has closed. An open slice ends by itself.
    pub fn close(&mut self) {
        self.due_ns = u64::MAX;
        self.closed_ns = Some(clock::monotonic_ns());
    }

    /// The slices, and how the owners of faults were measured; None if the samples have all of them. `unanswered`: why owners of
    /// samples are unknown.
    pub fn finish(mut self, unanswered: Option<Absence>) -> (Vec<FaultSlice>, Option<Probe>) {
        self.take_answer();
        let late = || {
            self.closed_ns?.checked_sub(self.asked_ns?).filter(|waited_ns| *waited_ns > MISSING_NS)?;
            let detail = "page faults: the kernel kept allocwall waiting for the target's memory";
            Some(Absence::new(Reason::TooCostly, detail))
        };
        let late = late();
        let why = self.refused.or(self.missing).or(late);
        let state = match (self.alone, self.slices.is_empty()) {
            (false, _) => unanswered.or(why).map(ProbeState::Partial),
            (true, false) => Some(why.map_or(ProbeState::Measured, ProbeState::Partial)),
            (true, true) => Some(ProbeState::Absent(why.unwrap_or_else(|| {
                Absence::new(
                    Reason::TooLittle,
                    "no thread of the target could be followed before the window closed",
                )
            }))),
        };
        (self.slices, state.map(|state| Probe::new(ProbeName::FaultOwners, state)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reading::Readers;
    use allocwall_host::memory::{AnonymousMapping, Pages};
    use allocwall_model::recording::Owner;
    use std::process::Command;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn slices(alone: bool) -> FaultSlices {
        FaultSlices::new(0, Duration::from_secs(15), alone)
    }

    /// Slices whose thread is the test, after a question.
    fn by_hand(alone: bool) -> (FaultSlices, Receiver<Question>, SyncSender<Answer>) {
        let (questions, asked) = sync_channel(1);
        let (answer, answers) = sync_channel(1);
        let worker = Some(Worker::start("does nothing", || ()));
        let mut slices = slices(alone);
        slices.thread = Some(Thread { questions, answers, worker });
        ask(&mut slices);
        (slices, asked, answer)
    }

    fn ask(slices: &mut FaultSlices) {
        slices.ask(&ProcFs::live(), Question { processes: Vec::new(), rate: 0.0 });
    }

    fn answer(t_ns: u64, over_ns: u64) -> Answer {
        let slice = Some(FaultSlice { t_ns, over_ns, owners: Vec::new() });
        Answer { slice, open_ns: over_ns, refused: None, missing: None }
    }

    fn state(slices: FaultSlices, unanswered: Option<Absence>) -> Option<ProbeState> {
        slices.finish(unanswered).1.map(|probe| probe.state)
    }

    #[test]
    fn slices_take_less_than_a_tenth_of_every_window() {
        for ms in [500, 2_000, 15_000, 60_000, 3_600_000] {
            let plan = Plan::new(7, Duration::from_millis(ms));
            let window_ns = ms * 1_000_000;
            assert!((SLOTS_LEAST..=SLOTS_MOST).contains(&plan.slots));
            assert!(plan.slots * plan.slice_ns * 10 < window_ns && plan.slice_ns > 1_000_000, "{ms}");
            let mut random = Random::new(1);
            let mut end = 7;
            let mut late = 0.0;
            for slot in 0..plan.slots {
                let begin = plan.begin_ns(slot, &mut random).expect("it is in the window");
                assert!(begin >= end && begin >= 7 + slot * plan.slot_ns, "{ms} {slot}");
                end = begin + plan.slice_ns;
                assert!(end <= 7 + (slot + 1) * plan.slot_ns && end <= 7 + window_ns, "{ms} {slot}");
                late += (begin - 7 - slot * plan.slot_ns) as f64 / plan.slot_ns as f64;
            }
            assert_eq!(plan.begin_ns(plan.slots, &mut random), None);
            // Spread over the slots: the mean of 15 uniform numbers is within 0.2 of theirs in 99 % of cases.
            assert!((0.25..0.7).contains(&(late / plan.slots as f64)), "{ms}: {late}");
        }
    }

    #[test]
    fn slices_that_end_late_leave_slots_out() {
        let taken = |over_ns: u64| {
            let mut slices = slices(true);
            let mut number = 0;
            for slot in 0..slices.plan.slots {
                slices.slot = slot;
                if slices.has_time() {
                    number += 1;
                    slices.spent_ns += over_ns;
                }
            }
            (number, slices.plan.slots, slices.spent_ns)
        };
        let (number, slots, _) = taken(SLICE_NS);
        assert_eq!(number, slots);
        for over_ns in [3 * SLICE_NS, 10 * SLICE_NS, 1_000_000_000] {
            let (number, slots, spent_ns) = taken(over_ns);
            assert!((1..slots).contains(&number), "{over_ns}: {number}");
            assert!(spent_ns <= 1_500_000_000 + over_ns, "{over_ns}: {spent_ns}");
        }
    }

    #[test]
    fn what_is_missing_is_in_the_probe() {
        let absence = |detail: &str| Absence::new(Reason::TooCostly, detail);
        let why = || Some(absence("samples"));
        assert_eq!(state(slices(false), None), None);
        assert_eq!(state(slices(false), why()), Some(ProbeState::Partial(absence("samples"))));
        // Alone and without a slice, nothing was measured.
        let none = state(slices(true), None);
        assert!(
            matches!(&none, Some(ProbeState::Absent(why)) if why.reason == Reason::TooLittle),
            "{none:?}"
        );
        let with_answer = |alone, answer| {
            let (slices, _questions, answers) = by_hand(alone);
            answers.send(answer).unwrap();
            slices
        };
        let refused = || Answer { slice: None, open_ns: 0, refused: Some(absence("refused")), missing: None };
        assert_eq!(state(with_answer(true, refused()), None), Some(ProbeState::Absent(absence("refused"))));
        assert_eq!(state(with_answer(false, refused()), None), Some(ProbeState::Partial(absence("refused"))));
        assert_eq!(state(with_answer(true, answer(1, 2)), None), Some(ProbeState::Measured));
        assert_eq!(state(with_answer(false, answer(1, 2)), None), None);
        let some = || Answer { missing: Some(absence("slices")), ..answer(1, 2) };
        assert_eq!(state(with_answer(true, some()), None), Some(ProbeState::Partial(absence("slices"))));
        assert_eq!(state(with_answer(false, some()), why()), Some(ProbeState::Partial(absence("samples"))));
    }

    #[test]
    fn slices_begin_within_the_window_only_if_they_are_needed() {
        let mut unneeded = slices(false);
        assert_eq!(unneeded.due_ns(), u64::MAX);
        let (proc, now) = (ProcFs::live(), clock::monotonic_ns());
        unneeded.close();
        assert!(unneeded.thread.is_none());
        // The near twin. This slot is over: the first slice is in the next one.
        let mut needed = FaultSlices::new(now, Duration::from_secs(15), false);
        needed.begin(now);
        let due_ns = needed.due_ns();
        assert!((now + SLOT_NS..now + 2 * SLOT_NS).contains(&due_ns), "{due_ns} {now}");
        // They begin once.
        needed.begin(now);
        assert_eq!(needed.due_ns(), due_ns);
        let collector = Collector::new(proc.clone(), now, Readers::Here);
        needed.turn(&proc, &[], &collector);
        assert!(needed.thread.is_some() && needed.asked_ns.is_some() && needed.due_ns() > due_ns);
        // Those of a window without owners begin with it.
        assert!(slices(true).due_ns() < SLOT_NS);
    }

    #[test]
    fn one_slice_is_open_at_a_time_and_the_window_does_not_wait_for_it() {
        let (mut slices, questions, answers) = by_hand(true);
        let proc = ProcFs::live();
        let collector = Collector::new(proc.clone(), 0, Readers::Here);
        let turn = |slices: &mut FaultSlices| {
            slices.turn(&proc, &[], &collector);
            questions.try_iter().count()
        };
        assert_eq!([turn(&mut slices), turn(&mut slices)], [1, 0]);
        answers.send(answer(1, 2)).unwrap();
        assert_eq!(turn(&mut slices), 1);
        assert_eq!((slices.slices.len(), slices.spent_ns), (1, 2));
        // What the kernel keeps for more than a second is missing; what was just asked for is not.
        let closed = |mut slices: FaultSlices, after_ns| {
            slices.slices.clear();
            slices.closed_ns = slices.asked_ns.map(|asked_ns| asked_ns + after_ns);
            state(slices, None)
        };
        let reason = |state: Option<ProbeState>| match state {
            Some(ProbeState::Absent(why)) => Some(why.reason),
            _ => None,
        };
        assert_eq!(reason(closed(slices, MISSING_NS + 1)), Some(Reason::TooCostly));
        let (in_time, _questions, _answers) = by_hand(true);
        assert_eq!(reason(closed(in_time, MISSING_NS)), Some(Reason::TooLittle));
    }

    #[test]
    fn a_slice_that_ends_after_the_window_is_left_out() {
        let kept = |over_ns| {
            let (mut slices, _questions, answers) = by_hand(true);
            slices.closed_ns = Some(100);
            answers.send(answer(60, over_ns)).unwrap();
            slices.finish(None).0.len()
        };
        assert_eq!([kept(40), kept(41)], [1, 0]);
    }

    #[test]
    fn a_thread_that_ended_ends_the_slices() {
        let (mut slices, questions, answers) = by_hand(true);
        drop((questions, answers));
        let proc = ProcFs::live();
        slices.turn(&proc, &[], &Collector::new(proc.clone(), 0, Readers::Here));
        assert_eq!(slices.due_ns(), u64::MAX);
        let state = state(slices, None);
        assert!(
            matches!(&state, Some(ProbeState::Absent(why)) if why.reason == Reason::Vanished),
            "{state:?}"
        );
    }

    #[test]
    fn the_rate_comes_from_two_readings() {
        let mut slices = slices(true);
        let mut rate = |t_ns, faults| {
            slices.counted(t_ns, faults);
            slices.rate
        };
        assert_eq!(rate(0, 1_000), 0.0);
        assert_eq!(rate(500_000_000, 2_000), 2_000.0);
        // Neither a counter that ran backwards nor a reading at the same time changes it.
        assert_eq!(rate(750_000_000, 0), 2_000.0);
        assert_eq!(rate(750_000_000, 500), 2_000.0);
        assert_eq!(rate(1_000_000_000, 600), 400.0);
    }

    /// The slices of a short window; None if this user may not measure them.
    fn slices_of(pid: i32) -> Option<(Vec<FaultSlice>, ProbeState)> {
        const WINDOW_NS: u64 = 1_000_000_000;
        let (proc, start) = (ProcFs::live(), clock::monotonic_ns());
        let mut collector = Collector::new(proc.clone(), start, Readers::Here);
        collector.family.adopt(pid);
        let mut slices = FaultSlices::new(start, Duration::from_nanos(WINDOW_NS), true);
        while clock::monotonic_ns() < start + WINDOW_NS {
            if slices.due_ns() <= clock::monotonic_ns() {
                slices.turn(&proc, &[pid], &collector);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        slices.close();
        assert_eq!(slices.due_ns(), u64::MAX);
        let (slices, probe) = slices.finish(None);
        match probe.expect("it is in use").state {
            ProbeState::Absent(absence) => {
                println!("skipped: {absence}");
                None
            }
            state => Some((slices, state)),
        }
    }

    #[test]
    fn a_process_that_touches_memory_has_owners_and_a_sleeping_one_has_no_faults() {
        static DONE: AtomicBool = AtomicBool::new(false);
        let toucher = std::thread::spawn(|| {
            // Not so fast that it ends before the window.
            let mut memory = AnonymousMapping::new(64 << 20, Pages::Small).expect("memory");
            for page in memory.bytes().chunks_mut(4096) {
                page[0] = 1;
                std::thread::sleep(Duration::from_micros(50));
                if DONE.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let own = slices_of(std::process::id() as i32);
        DONE.store(true, Ordering::Relaxed);
        toucher.join().expect("it touches");
        let Some((slices, _)) = own else { return };
        assert!(slices.len() > 3 && slices.is_sorted_by_key(|slice| slice.t_ns), "{slices:?}");
        let private = slices.iter().flat_map(|slice| &slice.owners).filter(|one| one.owner == Owner::Private);
        let (samples, faults) =
            private.fold((0, 0), |(samples, faults), one| (samples + one.samples, faults + one.faults));
        assert!(samples > 5 && faults >= samples, "{samples} samples, {faults} faults: {slices:?}");
        let mut sleeping = Command::new("sleep").arg("60").spawn().expect("it starts");
        std::thread::sleep(Duration::from_millis(100));
        let asleep = slices_of(sleeping.id() as i32);
        sleeping.kill().and_then(|()| sleeping.wait()).expect("our own child");
        let Some((slices, state)) = asleep else { return };
        assert_eq!(state, ProbeState::Measured);
        assert!(slices.len() > 3 && slices.iter().all(|slice| slice.owners.is_empty()), "{slices:?}");
    }
}
