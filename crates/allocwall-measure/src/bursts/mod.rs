//! Counts the calls of processes that run already, in short bursts.
//!
//! A burst sets one uprobe: on one function of the allocator, counted for one thread, for some milliseconds. A breakpoint is there
//! for all threads of the process, and closing a uprobe waits for the kernel (see [`allocwall_host::uprobe`]). The breakpoint is
//! removed at the beginning of that wait. With several uprobes at a time, all but the first would stay while it is closed.
//! Function, thread and moment are drawn by chance; [`allocwall_model::bursts`] has the estimates.

mod calls;
mod entries;
mod pace;
mod subject;

pub use entries::{Entry, entries};

use crate::allocations::Copied;
use crate::allocations::stacks::{Named, Stacks};
use crate::reading::Readers;
use crate::record::{may_measure, refuse_foreign_proc};
use allocwall_host::clock::{monotonic_ns, sleep_until};
use allocwall_host::file::read_line;
use allocwall_host::proc::ProcFs;
use allocwall_host::uprobe::{Passed, Recorder, Uprobes, hit_cost};
use allocwall_host::worker::Urgent;
use allocwall_model::bursts::{
    Burst, BurstFunction, BurstProcess, BurstThread, Bursts, ENOUGH, HitCost, MOST_BURSTS,
};
use allocwall_model::error::{Error, Result};
use allocwall_model::recording::Ended;
use allocwall_model::stats::random::Random;
use allocwall_model::units::{Absence, Measured, Reason};
use calls::{Function, spread};
use pace::{Pace, Plan, Shown, choose, weighted};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use subject::Subject;

pub const DEFAULT_DURATION: Duration = Duration::from_secs(10);
/// The most processes of one count.
pub const MOST_PROCESSES: usize = 64;
/// Bytes of the stack that are copied with a call: enough for the nearest callers.
const STACK_BYTES: u32 = 4096;
/// With a call that has no site. The kernel writes no sound record without a stack.
const LEAST_STACK_BYTES: u32 = 8;
/// The most stacks of one burst that are unwound: each takes some 50 µs.
const MOST_STACKS: usize = 32;
/// The most sentences about what is missing.
const MOST_MISSING: usize = 16;
const MS: u64 = 1_000_000;
/// The longest time without a check whether the count was interrupted.
const LONGEST_NAP_NS: u64 = 50 * MS;
/// Within a burst, calls are counted after each such time: it ends early if there are too many.
const SLICE_NS: u64 = 2 * MS;
/// Mean of the random time after a burst.
const JITTER_NS: f64 = 20e6;

pub struct Request<'a> {
    /// Without their descendants.
    pub pids: Vec<i32>,
    pub duration: Duration,
    pub readers: Readers,
    /// Set by Ctrl-C: the count ends early, and what was counted is the result.
    pub interrupted: &'a AtomicBool,
    /// Called from time to time with the elapsed part of the duration, 0 to 1.
    pub progress: &'a mut dyn FnMut(f64),
}

/// # Errors
/// A process does not exist, may not be measured, or has no malloc that can be found; this user may not set uprobes, or the kernel
/// has none.
pub fn measure(request: Request<'_>) -> Result<Bursts> {
    let proc = ProcFs::live();
    refuse_foreign_proc(&proc)?;
    let mut pids = request.pids;
    pids.sort_unstable();
    pids.dedup();
    if pids.len() > MOST_PROCESSES {
        return Err(Error::Refused(format!("more than {MOST_PROCESSES} processes: choose fewer")));
    }
    let refused = |absence: Absence| Error::Refused(absence.with_advice());
    pids.iter().try_for_each(|pid| may_measure(&proc, *pid))?;
    let uprobes = Uprobes::live().map_err(refused)?;
    let mut stacks = Stacks::at_entries(proc.clone(), request.readers);
    let subjects = pids.into_iter().map(|pid| Subject::open(&proc, &mut stacks, pid));
    let subjects = subjects.collect::<Result<Vec<Subject>>>()?;
    let hit = hit_cost(STACK_BYTES).map_err(refused)?;
    let mut count = Count::new(proc, uprobes, stacks, subjects, hit);
    let ended = count.run(request.duration, request.interrupted, request.progress);
    Ok(count.finish(ended))
}

/// A function of a subject, and its bursts so far.
struct Counted {
    entry: Entry,
    shown: Shown,
    function: BurstFunction,
}

/// A thread that was drawn.
#[derive(Clone, Copy, Debug)]
struct Drawn {
    subject: usize,
    tid: i32,
    /// Of a CPU.
    share: f64,
}

/// What a burst brought, before it is put together.
struct Observed {
    passed: Passed,
    over_ns: u64,
    records: Vec<Copied>,
    /// CPU time of the process while the breakpoint was there.
    process_ns: u64,
}

struct Count {
    proc: ProcFs,
    uprobes: Uprobes,
    stacks: Stacks,
    subjects: Vec<Subject>,
    functions: Vec<Counted>,
    threads: Vec<BurstThread>,
    /// Places in `threads`, by subject and thread.
    numbers: HashMap<(usize, i32), u32>,
    pace: Pace,
    hit: HitCost,
    random: Random,
    bursts: usize,
    began_ns: u64,
    /// The next burst begins at this time at the earliest.
    next_ns: u64,
    missing: Vec<Absence>,
}

impl Count {
    fn new(proc: ProcFs, uprobes: Uprobes, stacks: Stacks, subjects: Vec<Subject>, hit: HitCost) -> Count {
        let functions = subjects.iter().enumerate().flat_map(|(process, subject)| {
            subject.entries.iter().map(move |entry| Counted {
                entry: *entry,
                shown: Shown::default(),
                function: BurstFunction {
                    process: process as u32,
                    kind: entry.kind,
                    name: entry.name.to_owned(),
                    bursts: Vec::new(),
                },
            })
        });
        let began_ns = monotonic_ns();
        Count {
            functions: functions.collect(),
            missing: subjects.iter().filter_map(|subject| subject.missing.clone()).collect(),
            proc,
            uprobes,
            stacks,
            subjects,
            threads: Vec::new(),
            numbers: HashMap::new(),
            pace: Pace::new(hit),
            hit,
            random: Random::new(began_ns),
            bursts: 0,
            began_ns,
            next_ns: began_ns,
        }
    }

    fn run(&mut self, duration: Duration, interrupted: &AtomicBool, progress: &mut dyn FnMut(f64)) -> Ended {
        let length_ns = duration.as_nanos() as u64;
        // Preparations took CPU time of the target too: it does not count.
        self.subjects.iter_mut().for_each(|subject| subject.start(&self.proc));
        self.began_ns = monotonic_ns();
        let end = self.began_ns.saturating_add(length_ns);
        loop {
            let now = monotonic_ns();
            progress((now - self.began_ns) as f64 / length_ns.max(1) as f64);
            if interrupted.load(Ordering::Relaxed) {
                return Ended::Interrupted;
            }
            if now >= end {
                return Ended::Complete;
            }
            let pause = self.step(now, length_ns / MOST_BURSTS as u64);
            if self.subjects.iter().all(|subject| subject.ended) {
                return Ended::TargetExited { status: None };
            }
            sleep_until(monotonic_ns().saturating_add(pause.min(LONGEST_NAP_NS)).min(end));
        }
    }

    /// Makes a burst, if its time has come. Returns the time until the next step. `least_gap_ns`: between two bursts.
    fn step(&mut self, now: u64, least_gap_ns: u64) -> u64 {
        for subject in &mut self.subjects {
            subject.read_clock(&self.proc);
        }
        let used_ns = self.subjects.iter().map(Subject::used_ns).sum();
        let by_budget = self.pace.wait_ns(used_ns, now - self.began_ns);
        let wait = by_budget.max(self.next_ns.saturating_sub(now));
        if wait > 0 {
            return wait;
        }
        for subject in self.subjects.iter_mut().filter(|subject| !subject.ended) {
            subject.list_threads(&self.proc);
        }
        let Some(drawn) = self.draw() else { return LONGEST_NAP_NS };
        let at = self.choose(drawn.subject);
        match self.burst(drawn, at) {
            Ok(()) => self.bursts += 1,
            Err(absence) if absence.is_gone() => self.subjects[drawn.subject].forget_thread(drawn.tid),
            Err(absence) => self.miss(absence),
        }
        let jitter = -self.random.unit_above_zero().ln() * JITTER_NS;
        self.next_ns = monotonic_ns() + (jitter as u64).max(least_gap_ns);
        0
    }

    /// A thread, with a chance in proportion to its CPU time. None if all were idle.
    fn draw(&mut self) -> Option<Drawn> {
        let running = self.subjects.iter().enumerate().filter(|(_, subject)| !subject.ended);
        let drawn: Vec<Drawn> = running
            .flat_map(|(subject, of)| {
                of.busy_threads().map(move |(tid, share)| Drawn { subject, tid, share })
            })
            .collect();
        let shares: Vec<f64> = drawn.iter().map(|drawn| drawn.share).collect();
        drawn.get(weighted(&shares, &mut self.random)).copied()
    }

    /// Place of the function in the list.
    fn choose(&mut self, subject: usize) -> usize {
        let own: Vec<usize> = (0..self.functions.len())
            .filter(|at| self.functions[*at].function.process as usize == subject)
            .collect();
        let shown: Vec<Shown> = own.iter().map(|at| self.functions[*at].shown).collect();
        own[choose(&shown, &mut self.random)]
    }

    fn burst(&mut self, drawn: Drawn, at: usize) -> Measured<()> {
        let (entry, shown) = (self.functions[at].entry, self.functions[at].shown);
        let plan = self.pace.plan(&shown, drawn.share);
        let t_ns = monotonic_ns() - self.began_ns;
        let observed = self.observe(drawn, entry, plan)?;
        let Subject { null_passes, image, .. } = self.subjects[drawn.subject];
        let function = Function { kind: entry.kind, null_passes };
        let sites = match image {
            Some(image) if entry.kind.allocates() => self.sites(image, &observed.records),
            _ => BTreeMap::new(),
        };
        let burst = Burst {
            thread: self.number(drawn),
            t_ns,
            over_ns: observed.over_ns,
            cpu_ns: observed.passed.cpu_ns,
            expected_ns: (observed.over_ns as f64 * drawn.share) as u64,
            hits: observed.passed.count,
            every: plan.every,
            calls: function.seen(&observed.records, &sites),
        };
        let counted = &mut self.functions[at];
        counted.shown.add(&burst, &self.hit);
        self.pace.incur(&burst, observed.process_ns, &counted.shown);
        counted.function.bursts.push(burst);
        Ok(())
    }

    /// Sets the uprobe, counts, and removes it.
    fn observe(&mut self, drawn: Drawn, entry: Entry, plan: Plan) -> Measured<Observed> {
        let subject = &mut self.subjects[drawn.subject];
        let stack_bytes = if entry.kind.allocates() { STACK_BYTES } else { LEAST_STACK_BYTES };
        let before = subject.read_clock(&self.proc);
        let mut recorder =
            self.uprobes.record(&subject.file, entry.offset, drawn.tid, plan.every, stack_bytes)?;
        let (passed, over_ns) = count_for(&mut recorder, plan).map_err(|error| {
            Absence::new(Reason::NotSupported, format!("a uprobe could not be used: {error}"))
        })?;
        let mut records = Vec::new();
        recorder.records(&mut |sample| {
            if let Some(registers) = sample.registers {
                records.push(Copied { registers, bytes: sample.stack.to_vec() });
            }
        });
        let process_ns = subject.read_clock(&self.proc) - before;
        drop(recorder);
        Ok(Observed { passed, over_ns, records, process_ns })
    }

    /// Call sites of some of the records, by their place in the list.
    fn sites(&mut self, image: u32, records: &[Copied]) -> BTreeMap<usize, u32> {
        let chosen = spread(records.len(), MOST_STACKS);
        let copies: Vec<Copied> = chosen.iter().map(|nth| records[*nth].clone()).collect();
        let routes = self.stacks.routes(image, &copies);
        chosen.into_iter().zip(routes).collect()
    }

    /// Place of a thread in the result. There are at most as many as bursts.
    fn number(&mut self, drawn: Drawn) -> u32 {
        let key = (drawn.subject, drawn.tid);
        if let Some(known) = self.numbers.get(&key) {
            return *known;
        }
        let pid = self.subjects[drawn.subject].pid;
        let number = self.threads.len() as u32;
        self.threads.push(BurstThread {
            process: drawn.subject as u32,
            tid: drawn.tid,
            name: read_line(&self.proc.root().join(format!("{pid}/task/{}/comm", drawn.tid))),
            cpu_ns: 0,
        });
        self.numbers.insert(key, number);
        number
    }

    fn miss(&mut self, absence: Absence) {
        if self.missing.len() < MOST_MISSING && !self.missing.contains(&absence) {
            self.missing.push(absence);
        }
    }

    fn finish(mut self, ended: Ended) -> Bursts {
        for subject in self.subjects.iter_mut().filter(|subject| !subject.ended) {
            subject.read_clock(&self.proc);
            subject.list_threads(&self.proc);
        }
        for thread in &mut self.threads {
            thread.cpu_ns = self.subjects[thread.process as usize].thread_cpu_ns(thread.tid);
        }
        let length_ns = monotonic_ns() - self.began_ns;
        self.few_bursts();
        let Count { stacks, subjects, functions, threads, pace, hit, mut missing, .. } = self;
        let named = stacks.finish();
        let unread = named.missing.iter().map(|detail| Absence::new(Reason::TooCostly, detail.clone()));
        missing.extend(unread.take(MOST_MISSING));
        let processes: Vec<BurstProcess> = subjects.into_iter().map(Subject::into_process).collect();
        if processes.len() > 1 {
            let ended = processes.iter().filter(|process| process.ended);
            missing.extend(ended.map(|process| {
                Absence::new(Reason::Vanished, format!("process {} ended during the count", process.pid))
            }));
        }
        let Named { modules, frames, stacks, routes, .. } = named;
        Bursts {
            length_ns,
            ended,
            processes,
            threads,
            functions: functions.into_iter().map(|counted| counted.function).collect(),
            hit,
            incurred_ns: pace.incurred_ns,
            sites: routes,
            modules,
            frames,
            stacks,
            missing,
        }
    }

    /// Says where there were too few bursts.
    fn few_bursts(&mut self) {
        let met = self.functions.iter().flat_map(|counted| &counted.function.bursts);
        let met = met.filter(|burst| burst.hits > 0).count();
        if (1..ENOUGH).contains(&met) {
            let detail = format!("only {met} of {} bursts met calls: the intervals are rough", self.bursts);
            self.miss(Absence::new(Reason::TooLittle, detail).mend("count for a longer time: -d 60s"));
        }
        let never: Vec<String> = self
            .functions
            .iter()
            .filter(|counted| counted.shown.bursts == 0)
            .map(|counted| counted.function.name.clone())
            .collect();
        if !never.is_empty() {
            let detail = format!("not counted, because there were too few bursts: {}", never.join(", "));
            self.miss(Absence::new(Reason::TooLittle, detail).mend("count for a longer time: -d 60s"));
        }
    }
}

/// Lets the recorder count, and stops it. Returns what it counted, and for how long. The breakpoint stays.
fn count_for(recorder: &mut Recorder, plan: Plan) -> io::Result<(Passed, u64)> {
    // A breakpoint that stays longer than planned costs the target more.
    let _urgent = Urgent::begin();
    let began = monotonic_ns();
    let end = began + plan.length_ns;
    recorder.start()?;
    loop {
        let now = monotonic_ns();
        if now >= end || recorder.count()? > plan.most_hits {
            break;
        }
        sleep_until(end.min(now + SLICE_NS));
    }
    let passed = recorder.stop()?;
    Ok((passed, monotonic_ns() - began))
}
