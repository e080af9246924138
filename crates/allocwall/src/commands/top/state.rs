//! What the screen shows: the windows of the last minute, the line that is selected, and what the user was told. Pure.

use super::budget::Own;
use super::windows::Taken;
use allocwall_diagnose::bill::Bill;
use allocwall_diagnose::main_process;
use allocwall_diagnose::series::{self, Judgement};
use allocwall_model::catalogue::cost::{CostClass, WaitClass};
use allocwall_model::catalogue::owners::Owner;
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::recording::{ProbeName, Process, Recording, gained};
use allocwall_model::resident::{ResidentOwner, TargetMemory};
use allocwall_model::units::{Absence, Reason};
use std::collections::VecDeque;
use std::time::Duration;

/// How long windows are kept.
pub const KEPT_S: f64 = 60.0;
/// The most windows that are kept: those of a minute, of the shortest length.
const MOST: usize = 120;

/// What a line of the screen is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Row {
    Cost(CostClass),
    Fault(Wall, Owner),
    Wait(WaitClass),
    Memory(ResidentOwner),
}

impl Row {
    /// The name under which `allocwall explain` has it.
    pub fn name(self) -> &'static str {
        match self {
            Row::Cost(class) => class.title(),
            Row::Fault(_, owner) => owner.title(),
            Row::Wait(class) => class.short_title(),
            Row::Memory(owner) => owner.title(),
        }
    }
}

/// What is kept of a window.
pub struct Seen {
    /// Since the start of the first one.
    pub at_s: f64,
    pub bill: Bill,
    pub judged: series::Window,
    pub walls: Vec<Wall>,
    pub throttled: Option<Throttled>,
    pub own: Own,
    pub pause: Duration,
}

/// What the cgroup's CPU quota did in a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Throttled {
    pub periods: u64,
    pub hit: u64,
    /// None if only a group above has a quota.
    pub quota_cpus: Option<f64>,
}

/// The resident memory by owner, which is read seldom.
pub struct Memory {
    pub at_s: f64,
    pub read: TargetMemory,
}

/// The target, as the newest window has it.
pub struct Subject {
    pub process: Option<Process>,
    pub processes: usize,
    pub online_cpus: u32,
    /// What was not measured, and what would help: the first of those that hide most.
    pub limit: Option<Absence>,
}

/// Why no further window comes, or not yet.
#[derive(Clone, Debug, PartialEq)]
pub enum Halt {
    /// By the user.
    Paused,
    Ended,
    Failed(String),
}

pub struct State {
    every: Duration,
    /// The newest last.
    windows: VecDeque<Seen>,
    /// All that there were.
    pub count: u64,
    /// The recording of the newest one.
    bytes: Option<Vec<u8>>,
    pub subject: Option<Subject>,
    pub memory: Option<Memory>,
    /// Why the last reading of it failed.
    pub unread: Option<Absence>,
    pub halt: Option<Halt>,
    pub selected: Option<Row>,
    /// One line: what a key did.
    pub note: Option<String>,
}

/// Sources of measurements without which most of the screen is missing.
const NEEDED: [ProbeName; 3] = [ProbeName::CpuSamples, ProbeName::KernelStacks, ProbeName::Waits];

impl State {
    pub fn new(every: Duration) -> State {
        State {
            every,
            windows: VecDeque::new(),
            count: 0,
            bytes: None,
            subject: None,
            memory: None,
            unread: None,
            halt: None,
            selected: None,
            note: None,
        }
    }

    pub fn every(&self) -> Duration {
        self.every
    }

    pub fn add(&mut self, taken: Taken) {
        let Taken { diagnosis, bytes, at_s, own, pause } = taken;
        let (recording, bill, verdict) = (diagnosis.recording, diagnosis.bill, diagnosis.verdict);
        self.count += 1;
        self.bytes = Some(bytes);
        self.subject = Some(Subject {
            process: main_process(&recording).cloned(),
            processes: recording.processes.iter().filter(|process| !process.ended).count(),
            online_cpus: recording.host.online_cpus,
            limit: NEEDED.iter().find_map(|probe| recording.probe_absence(*probe)),
        });
        let judged = series::Window::of(at_s, &recording, &bill, &verdict);
        let throttled = throttled(&recording);
        match recording.resident {
            Ok(read) => {
                self.memory = Some(Memory { at_s: at_s + bill.window_s, read });
                self.unread = None;
            }
            // It is not read in every window.
            Err(absence) if absence.reason == Reason::Disabled => {}
            Err(absence) => self.unread = Some(absence),
        }
        self.windows.push_back(Seen { at_s, bill, judged, walls: verdict.walls, throttled, own, pause });
        let since = at_s - KEPT_S;
        while self.windows.len() > MOST || self.windows.front().is_some_and(|seen| seen.at_s < since) {
            self.windows.pop_front();
        }
    }

    /// The recording of the newest window, as a file has it.
    pub fn bytes(&self) -> Option<&[u8]> {
        self.bytes.as_deref()
    }

    pub fn last(&self) -> Option<&Seen> {
        self.windows.back()
    }

    /// From the start of the oldest window that is kept to the end of the newest.
    pub fn covered_s(&self) -> f64 {
        let from = self.windows.front().map_or(0.0, |seen| seen.at_s);
        self.last().map_or(0.0, |seen| seen.at_s + seen.bill.window_s - from)
    }

    /// The verdict over the windows that are kept. That of a single one is its own.
    pub fn judge(&self) -> Judgement {
        let windows: Vec<series::Window> = self.windows.iter().map(|seen| seen.judged.clone()).collect();
        let judged = series::judge(&windows);
        match &windows[..] {
            [only] => Judgement { sentence: only.sentence.clone(), ..judged },
            _ => judged,
        }
    }

    /// The part of the CPU time of the windows that are kept which is on this line. None if none of them was sampled.
    pub fn share(&self, class: CostClass) -> Option<f64> {
        let sampled =
            self.windows.iter().filter_map(|seen| Some((seen.bill.cpu_s, seen.bill.on_cpu.as_ref().ok()?)));
        let (mut of_line, mut all) = (0.0, 0.0);
        for (cpu_s, lines) in sampled {
            let share = lines.iter().find(|line| line.class == class).map_or(0.0, |line| line.share.point);
            of_line += share * cpu_s;
            all += cpu_s;
        }
        (all > 0.0).then_some(of_line / all)
    }

    /// What allocwall itself used in the windows that are kept, with the pauses between them.
    pub fn own(&self) -> Own {
        let sum = |of: fn(&Seen) -> f64| self.windows.iter().map(of).sum::<f64>();
        let pauses_s: f64 = self.windows.iter().map(|seen| seen.pause.as_secs_f64()).sum();
        Own { cpu_s: sum(|seen| seen.own.cpu_s), elapsed_s: sum(|seen| seen.own.elapsed_s) + pauses_s }
    }

    /// Selects the row after or before the selected one, of those that are shown.
    pub fn select(&mut self, shown: &[Row], down: bool) {
        let at = self.selected.and_then(|row| shown.iter().position(|other| *other == row));
        let next = match (at, down) {
            (None, true) => Some(0),
            (None, false) => shown.len().checked_sub(1),
            (Some(at), true) => Some((at + 1).min(shown.len().saturating_sub(1))),
            (Some(at), false) => at.checked_sub(1),
        };
        self.selected = next.and_then(|at| shown.get(at).copied());
    }
}

fn throttled(recording: &Recording) -> Option<Throttled> {
    let mut groups = recording.ticks.iter().filter_map(|tick| tick.cgroup);
    let first = groups.next()?;
    let last = groups.next_back()?;
    let hit = gained(first.throttled_periods, last.throttled_periods)?;
    let periods = gained(first.periods, last.periods)?;
    (last.quota_cpus.is_some() || hit > 0).then_some(Throttled { periods, hit, quota_cpus: last.quota_cpus })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{calm, first_touch, taken};
    use super::*;

    #[test]
    fn the_share_of_a_line_is_that_of_all_windows_that_are_kept() {
        let mut state = State::new(Duration::from_secs(2));
        assert_eq!(state.share(CostClass::FaultPath), None);
        state.add(taken(first_touch(), 0.0));
        let alone = state.share(CostClass::FaultPath).unwrap();
        state.add(taken(calm(), 2.0));
        let both = state.share(CostClass::FaultPath).unwrap();
        assert!(alone > 0.3 && both < alone && both > alone / 4.0, "{alone} {both}");
        // A minute later, the first window is left out.
        state.add(taken(calm(), 61.0));
        assert_eq!(state.share(CostClass::FaultPath), Some(0.0));
        assert_eq!((state.count, state.windows.len()), (3, 2));
    }

    #[test]
    fn the_memory_that_was_read_last_stays() {
        let mut state = State::new(Duration::from_secs(2));
        state.add(taken(first_touch(), 0.0));
        assert!(state.memory.is_some());
        let mut unread = first_touch();
        unread.resident = calm().resident;
        state.add(taken(unread, 2.0));
        assert!(state.memory.as_ref().is_some_and(|memory| memory.at_s == 2.0));
    }

    #[test]
    fn why_the_memory_is_not_read_is_kept_until_it_is() {
        let mut state = State::new(Duration::from_secs(2));
        let unread = |reason| {
            let mut recording = first_touch();
            recording.resident = Err(Absence::new(reason, "why"));
            taken(recording, 0.0)
        };
        // Not in this window: no reason at all.
        state.add(unread(Reason::Disabled));
        assert_eq!(state.unread, None);
        state.add(unread(Reason::NotPermitted));
        state.add(unread(Reason::Disabled));
        assert_eq!(state.unread.as_ref().map(|absence| absence.reason), Some(Reason::NotPermitted));
        state.add(taken(first_touch(), 0.0));
        assert_eq!(state.unread, None);
    }

    #[test]
    fn the_arrows_walk_over_the_rows_that_are_shown() {
        let mut state = State::new(Duration::from_secs(2));
        let shown = [Row::Cost(CostClass::Zeroing), Row::Wait(WaitClass::Idle)];
        let mut walk = |down: bool, shown: &[Row]| {
            state.select(shown, down);
            state.selected
        };
        assert_eq!(walk(true, &shown), Some(shown[0]));
        assert_eq!(walk(true, &shown), Some(shown[1]));
        assert_eq!(walk(true, &shown), Some(shown[1]));
        assert_eq!(walk(false, &shown), Some(shown[0]));
        assert_eq!(walk(false, &shown), None);
        assert_eq!(walk(false, &shown), Some(shown[1]));
        // The row is gone, and then all of them.
        assert_eq!(walk(true, &shown[..1]), Some(shown[0]));
        assert_eq!(walk(true, &[]), None);
    }
}
