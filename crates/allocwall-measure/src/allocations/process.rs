//! One process while it is read: what its file has said so far.

use super::layout::{self, Event, EventKind, Header, State};
use super::lives::LivesTally;
use super::stacks::{Stacks, Unread};
use allocwall_host::clock::process_cpu_ns;
use allocwall_host::file::read_line;
use allocwall_host::maps::Mapping;
use allocwall_host::proc::ProcFs;
use allocwall_model::allocations::{
    CLASSES, CallKind, Calls, CountedProcess, Histogram, LARGE, Latency, Lifetimes, Lost, MOST_THREADS,
    Samples, Share, Tally, ThreadCount, add_classes, chance,
};
use allocwall_model::stats::random::Random;
use allocwall_model::trace::Trace;
use allocwall_model::units::{Absence, Interval, Measured, Reason};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;

/// How often an event is read again that was not complete.
const TRIES: u8 = 5;
/// The most such events, and the most followed blocks whose stacks are remembered.
const MOST_LATE: usize = 1024;
const MOST_REMEMBERED: usize = 65_536;
/// The most names of threads that one reading of the counters asks for.
const NAMES_AT_ONCE: usize = 64;

/// The process of a file, as it is numbered here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub pid: i32,
    pub start_ticks: u64,
}

/// What processes share.
pub struct Shared<'a> {
    pub stacks: &'a mut Stacks,
    /// Sites that may still be added.
    pub sites_left: &'a mut usize,
    /// Stacks that may still be unwound now.
    pub most_stacks: usize,
}

/// Sums for one stack.
#[derive(Clone, Copy, Debug, Default)]
pub struct SiteTally {
    pub calls: Tally,
    pub bytes: Tally,
    pub live: Tally,
    pub remote: Share,
}

impl SiteTally {
    pub fn merge(&mut self, other: &SiteTally) {
        self.calls.merge(&other.calls);
        self.bytes.merge(&other.bytes);
        self.live.merge(&other.live);
        self.remote.merge(&other.remote);
    }
}

/// What was asked for since the last reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gained {
    pub calls: u64,
    pub frees: u64,
    pub bytes: u64,
}

impl Gained {
    fn of(calls: &Calls) -> Gained {
        Gained {
            calls: calls.allocations().saturating_add(calls.reallocs()),
            frees: calls.frees,
            bytes: calls.bytes.saturating_add(calls.realloc_bytes),
        }
    }

    fn since(self, before: Gained) -> Gained {
        Gained {
            calls: self.calls.saturating_sub(before.calls),
            frees: self.frees.saturating_sub(before.frees),
            bytes: self.bytes.saturating_sub(before.bytes),
        }
    }

    pub fn add(&mut self, other: Gained) {
        self.calls = self.calls.saturating_add(other.calls);
        self.frees = self.frees.saturating_add(other.frees);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

/// A process that is not read any more.
pub struct Finished {
    pub process: CountedProcess,
    pub sites: Vec<(u32, SiteTally)>,
    /// The chance that a sampled block was followed at the end.
    pub followed: f64,
}

pub struct Process {
    /// Name of the file.
    pub name: String,
    pub identity: Measured<Identity>,
    /// Code that the process had when its file was found.
    code: Vec<Mapping>,
    file: File,
    inode: u64,
    header: Header,
    state: State,
    ns_per_tick: Measured<f64>,
    from_ns: u64,
    image: Option<u32>,
    random: Random,

    next_event: u64,
    /// Events that were not complete: position, and how often they were read.
    late: Vec<(u64, u8)>,
    blocks: Tally,
    bytes: Tally,
    latency: BTreeMap<(CallKind, bool), Histogram>,
    lifetimes: Lifetimes,
    lives: LivesTally,
    remote: Share,
    remote_bytes: Share,
    sites: HashMap<u32, SiteTally>,
    /// The route of followed blocks by the position of their stack, and the share of stacks that were read then.
    remembered: HashMap<u64, (u32, f64)>,
    /// Stacks below this position were written before the last reading of the table.
    remember_from: u64,
    live: Live,
    peak: Option<(Interval, u64)>,
    /// Calls, and allocations by size class, at the last reading of the counters.
    pub calls: Calls,
    pub classes: Vec<u64>,
    /// Names of threads by slot.
    names: HashMap<usize, (i32, Measured<String>)>,
    lost: Lost,
}

/// Blocks in use.
#[derive(Clone, Copy, Debug, Default)]
struct Live {
    blocks: Tally,
    bytes: Tally,
    rank: u32,
}

/// What all slots of a process say.
#[derive(Default)]
struct Threads {
    list: Vec<ThreadCount>,
    left_out: u64,
    samples: u64,
    sample_ticks: u64,
    /// Calls of the slot that is never sampled.
    unsampled: u64,
}

/// The chance that a sampled block is followed, if those from this rank on are.
fn followed(rank: u32) -> f64 {
    0.5_f64.powi(rank.cast_signed())
}

impl Process {
    pub fn new(
        name: String,
        file: File,
        inode: u64,
        header: Header,
        identity: Measured<(Identity, Vec<Mapping>)>,
        ns_per_tick: Measured<f64>,
        from_ns: u64,
    ) -> Process {
        let (identity, code) = match identity {
            Ok((identity, code)) => (Ok(identity), code),
            Err(absence) => (Err(absence), Vec::new()),
        };
        Process {
            random: Random::new(inode),
            lifetimes: Lifetimes { by_blocks: Histogram::default(), by_bytes: Histogram::default() },
            state: State::default(),
            image: None,
            next_event: layout::FIRST,
            late: Vec::new(),
            blocks: Tally::default(),
            bytes: Tally::default(),
            latency: BTreeMap::new(),
            lives: LivesTally::default(),
            remote: Share::default(),
            remote_bytes: Share::default(),
            sites: HashMap::new(),
            remembered: HashMap::new(),
            remember_from: 0,
            live: Live::default(),
            peak: None,
            calls: Calls::default(),
            classes: vec![0; CLASSES],
            names: HashMap::new(),
            lost: Lost::default(),
            name,
            identity,
            code,
            file,
            inode,
            header,
            ns_per_tick,
            from_ns,
        }
    }

    /// As the process sees it.
    pub fn pid(&self) -> u32 {
        self.header.pid
    }

    pub fn number(&self) -> u32 {
        self.header.number
    }

    pub fn is_large(&self) -> bool {
        self.header.is_large()
    }

    /// Whether the process still counts in this file. `again`: a later file has the same process number, so it may execute
    /// another program by now.
    pub fn runs(&self, proc: &ProcFs, again: bool) -> bool {
        let Ok(identity) = self.identity else { return true };
        let there = match proc.process_stat(identity.pid) {
            Ok(stat) => stat.start_ticks == identity.start_ticks && (!stat.ended() || stat.threads > 1),
            Err(absence) => !absence.is_gone(),
        };
        let same = || super::stacks::code_of(proc, identity.pid, self.inode, &self.path_end());
        there && (!again || same().is_ok())
    }

    fn path_end(&self) -> String {
        format!("/{}", self.name)
    }

    /// Reads the events since the last time.
    pub fn drain(&mut self, shared: &mut Shared<'_>) {
        self.state = layout::state(&self.file, &self.header);
        let events = self.new_events();
        // Read after the events: all blocks from this rank on were followed when they were written.
        let rank = self.state.follow;
        let (allocated, freed): (Vec<Event>, Vec<Event>) =
            events.into_iter().partition(|event| event.kind == EventKind::Allocated);
        for event in &allocated {
            let chance = chance(event.size, event.distance);
            self.blocks.add(1.0, chance);
            self.bytes.add(event.size as f64, chance);
            self.lives.allocated(event, chance);
            let kind = if event.by_realloc { CallKind::Reallocate } else { CallKind::Allocate };
            self.take_latency(kind, event, chance);
        }
        self.place(&allocated, shared);
        for event in freed.iter().filter(|event| event.rank >= rank) {
            self.take_free(event, chance(event.size, event.distance) * followed(rank), shared);
        }
        self.take_counters();
    }

    /// Reads how many blocks are in use now, by the exact counters.
    fn take_counters(&mut self) {
        let mut calls = Calls::default();
        layout::slots(&self.file, &self.header, &self.state, |_, slot| calls.add(&slot.calls));
        let cpu_ns = self.identity.as_ref().ok().and_then(|identity| process_cpu_ns(identity.pid).ok());
        self.lives.read(&calls, cpu_ns);
    }

    fn new_events(&mut self) -> Vec<Event> {
        let ring = self.header.events.entries;
        let next = self.state.events_next;
        let mut events = Vec::new();
        if ring == 0 || next <= self.next_event && self.late.is_empty() {
            // It never goes back, unless the process writes there itself.
            self.next_event = next.max(layout::FIRST);
            return events;
        }
        for (position, tries) in std::mem::take(&mut self.late) {
            let before = events.len();
            layout::events(&self.file, &self.header, position..position + 1, &mut events);
            if events.len() == before {
                self.retry(position, tries + 1);
            }
        }
        let from = self.next_event.max(next.saturating_sub(ring));
        self.lose(from - self.next_event);
        let before = events.len();
        layout::events(&self.file, &self.header, from..next, &mut events);
        let mut found = events[before..].iter().map(|event| event.position).peekable();
        let missing: Vec<u64> = (from..next).filter(|at| found.next_if_eq(at).is_none()).collect();
        missing.into_iter().for_each(|position| self.retry(position, 0));
        self.next_event = next;
        // An entry may have been overwritten while it was read.
        self.state = layout::state(&self.file, &self.header);
        let oldest = self.state.events_next.saturating_sub(ring);
        let all = events.len();
        events.retain(|event| event.position >= oldest);
        self.lose((all - events.len()) as u64);
        events
    }

    /// Events that will not be read.
    fn lose(&mut self, events: u64) {
        self.lost.events = self.lost.events.saturating_add(events);
    }

    /// Keeps the position of an event that was not complete.
    fn retry(&mut self, position: u64, tries: u8) {
        let held = position >= self.state.events_next.saturating_sub(self.header.events.entries);
        if held && tries < TRIES && self.late.len() < MOST_LATE {
            self.late.push((position, tries));
        } else {
            self.lose(1);
        }
    }

    fn take_latency(&mut self, kind: CallKind, event: &Event, chance: f64) {
        let Ok(ns_per_tick) = self.ns_per_tick else { return };
        if event.noted {
            return;
        }
        let ticks = u64::from(event.latency.unwrap_or(u32::MAX)).saturating_sub(self.header.clock_cost);
        let times = self.latency.entry((kind, event.size >= LARGE)).or_default();
        times.add((ticks as f64 * ns_per_tick) as u64, 1.0, chance);
    }

    fn take_free(&mut self, event: &Event, chance: f64, shared: &mut Shared<'_>) {
        let size = event.size as f64;
        if let Ok(ns_per_tick) = self.ns_per_tick {
            let ticks = event.ticks.saturating_sub(event.born).saturating_sub(self.header.clock_cost);
            let ns = (ticks as f64 * ns_per_tick) as u64;
            self.lifetimes.by_blocks.add(ns, 1.0, chance);
            self.lifetimes.by_bytes.add(ns, size, chance);
            self.lives.ended(event, ns, chance);
        }
        let site = match event.stack {
            Ok(position) => self.remembered.remove(&position),
            Err(why) => Some((shared.stacks.unknown(Unread::NotCopied(why)), 1.0)),
        };
        if event.by_realloc {
            return;
        }
        let remote = event.tid != event.origin;
        self.take_latency(CallKind::Free, event, chance);
        self.remote.add(1.0, chance, remote);
        self.remote_bytes.add(size, chance, remote);
        // Other stacks of the same moment stand for one that was not read.
        if let Some((route, part)) = site {
            self.site(route, shared).remote.add(1.0, chance * part, remote);
        }
    }

    /// Finds the sites of sampled allocations. Not all stacks are unwound: those that are stand for the others.
    fn place(&mut self, allocated: &[Event], shared: &mut Shared<'_>) {
        let mut with_stack: Vec<(&Event, u64)> = Vec::new();
        for event in allocated {
            match event.stack {
                Ok(position) => with_stack.push((event, position)),
                Err(why) => {
                    let route = shared.stacks.unknown(Unread::NotCopied(why));
                    self.take_site(route, event, 1.0, shared);
                }
            }
        }
        if with_stack.is_empty() {
            return;
        }
        let all = with_stack.len();
        let oldest = self.state.stacks_next.saturating_sub(self.header.stacks.entries);
        let mut held = with_stack.clone();
        held.retain(|(_, position)| *position >= oldest);
        self.lost.stacks += (all - held.len()) as u64;
        let image = self.image(shared.stacks);
        let refused = match image {
            None => Some(Unread::TooMany),
            Some(image) if !shared.stacks.is_readable(image) => Some(Unread::Code { image }),
            Some(_) if held.is_empty() => Some(Unread::Overwritten),
            Some(_) if shared.most_stacks == 0 => Some(Unread::NotTaken),
            Some(_) => None,
        };
        let (Some(image), None) = (image, refused) else {
            let route = shared.stacks.unknown(refused.unwrap_or(Unread::TooMany));
            with_stack.iter().for_each(|(event, _)| self.take_site(route, event, 1.0, shared));
            return;
        };
        self.random.shuffle(&mut held);
        held.truncate(shared.most_stacks);
        let part = held.len() as f64 / all as f64;
        let (mut chosen, mut copies) = (Vec::new(), Vec::new());
        for (event, position) in held {
            match layout::stack(&self.file, &self.header, position) {
                Some(copy) => {
                    chosen.push(event);
                    copies.push(copy);
                }
                None => {
                    self.lost.stacks += 1;
                    let route = shared.stacks.unknown(Unread::Overwritten);
                    self.take_site(route, event, part, shared);
                }
            }
        }
        shared.most_stacks -= copies.len();
        let routes = shared.stacks.routes(image, &copies);
        for (event, route) in chosen.iter().zip(routes) {
            self.take_site(route, event, part, shared);
        }
    }

    fn image(&mut self, stacks: &mut Stacks) -> Option<u32> {
        if self.image.is_none() {
            let pid = self.identity.as_ref().map(|identity| identity.pid).map_err(Clone::clone);
            let code = std::mem::take(&mut self.code);
            self.image = stacks.add_process(pid, self.inode, self.path_end(), code);
        }
        self.image
    }

    /// `part`: the share of stacks that were read.
    fn take_site(&mut self, route: u32, event: &Event, part: f64, shared: &mut Shared<'_>) {
        let chance = chance(event.size, event.distance) * part;
        let site = self.site(route, shared);
        site.calls.add(1.0, chance);
        site.bytes.add(event.size as f64, chance);
        if let Ok(position) = event.stack
            && event.followed
            && self.remembered.len() < MOST_REMEMBERED
        {
            self.remembered.insert(position, (route, part));
        }
    }

    fn site(&mut self, route: u32, shared: &mut Shared<'_>) -> &mut SiteTally {
        let mut route = route;
        if !self.sites.contains_key(&route) {
            match shared.sites_left.checked_sub(1) {
                Some(left) => *shared.sites_left = left,
                None => route = shared.stacks.unknown(Unread::TooMany),
            }
        }
        self.sites.entry(route).or_default()
    }

    /// Reads the table of blocks in use. `t_ns`: since the start of the watch.
    pub fn scan(&mut self, t_ns: u64) {
        let mut found = Vec::new();
        layout::blocks(&self.file, &self.header, |block| found.push(block));
        self.state = layout::state(&self.file, &self.header);
        let rank = self.state.follow;
        let mut live = Live { rank, ..Live::default() };
        for block in found.iter().filter(|block| block.rank >= rank) {
            let chance = chance(block.size, block.distance) * followed(rank);
            live.blocks.add(1.0, chance);
            live.bytes.add(block.size as f64, chance);
        }
        self.live = live;
        if self.peak.is_none_or(|(peak, _)| live.bytes.sum() > peak.point) {
            self.peak = Some((live.bytes.interval_within(&self.bytes, followed(rank)), t_ns));
        }
        // Events of blocks that were freed may have been lost.
        let used: HashSet<u64> = found.iter().filter_map(|block| block.stack.ok()).collect();
        let from = std::mem::replace(&mut self.remember_from, self.state.stacks_next);
        self.remembered.retain(|position, _| *position >= from || used.contains(position));
    }

    /// Reads the counters, and the names of threads. Returns what was asked for since the last reading.
    pub fn count(&mut self, proc: &ProcFs) -> Gained {
        self.state = layout::state(&self.file, &self.header);
        let (mut calls, mut classes) = (Calls::default(), vec![0; CLASSES]);
        let mut unnamed = Vec::new();
        let names = &self.names;
        layout::slots(&self.file, &self.header, &self.state, |number, slot| {
            calls.add(&slot.calls);
            add_classes(&mut classes, &slot.classes);
            let is_known = names.get(&number).is_some_and(|(tid, _)| *tid == slot.tid);
            let is_named = slot.tid > 0 && !slot.left;
            if is_named && !is_known && unnamed.len() < NAMES_AT_ONCE {
                unnamed.push((number, slot.tid));
            }
        });
        for (number, tid) in unnamed {
            if self.names.len() < MOST_THREADS || self.names.contains_key(&number) {
                let name = self.name_of(proc, tid);
                self.names.insert(number, (tid, name));
            }
        }
        let before = std::mem::replace(&mut self.calls, calls);
        self.classes = classes;
        Gained::of(&calls).since(Gained::of(&before))
    }

    fn name_of(&self, proc: &ProcFs, tid: i32) -> Measured<String> {
        let pid = self.identity.as_ref().map_err(Clone::clone)?.pid;
        read_line(&proc.root().join(format!("{pid}/task/{tid}/comm")))
    }

    /// Reads everything for the last time. `t_ns`: since the start of the watch.
    pub fn finish(
        mut self,
        proc: &ProcFs,
        shared: &mut Shared<'_>,
        t_ns: u64,
        ended: bool,
    ) -> (Finished, Vec<Trace>, Gained) {
        self.drain(shared);
        self.scan(t_ns);
        let gained = self.count(proc);
        // What is not complete now never will be.
        self.lose(self.late.len() as u64);
        self.lost.events = self.lost.events.max(self.state.events_dropped);
        self.lost.unfollowed = self.state.follow_failed;
        let threads = self.threads(ended);
        let followed = followed(self.live.rank);
        self.take_live_sites(shared);
        let samples = self.samples(&threads);
        let traces = layout::traces(&self.file, &self.header);
        let Process { header, state, sites, lost, from_ns, calls, classes, .. } = self;
        let program = known(&header.program, "the process could not read the name of its program");
        let allocator = if header.object.is_empty() { program.clone() } else { Ok(header.object.clone()) };
        let command = if header.command.is_empty() {
            Err(Absence::new(Reason::NotFound, "the process could not read its command line"))
        } else {
            Ok(header.command)
        };
        let process = CountedProcess {
            pid: header.pid.cast_signed(),
            number: header.number,
            missing: missing(&state, &allocator, &calls),
            command,
            program,
            allocator,
            from_ns,
            over_ns: t_ns.saturating_sub(from_ns),
            ended,
            calls,
            classes,
            threads_left_out: threads.left_out,
            threads: threads.list,
            samples,
            lost: Lost { unsampled: threads.unsampled, ..lost },
        };
        let sites = sites.into_iter().collect();
        (Finished { process, sites, followed }, traces, gained)
    }

    fn threads(&self, ended: bool) -> Threads {
        let mut threads = Threads::default();
        layout::slots(&self.file, &self.header, &self.state, |number, slot| {
            threads.samples = threads.samples.saturating_add(slot.samples);
            threads.sample_ticks = threads.sample_ticks.saturating_add(slot.sample_ticks);
            let is_shared = number == 0;
            if is_shared {
                threads.unsampled = slot.calls.allocations().saturating_add(slot.calls.reallocs());
            }
            if slot.calls == Calls::default() {
                return;
            }
            let name = match self.names.get(&number) {
                _ if is_shared => Err(Absence::new(Reason::NotApplicable, "several threads")),
                Some((tid, name)) if *tid == slot.tid => name.clone(),
                _ => Err(Absence::new(Reason::Vanished, "the thread ended before its name was read")),
            };
            threads.list.push(ThreadCount {
                tid: (!is_shared).then_some(slot.tid),
                threads: slot.threads,
                name,
                ended: ended || slot.left,
                calls: slot.calls,
            });
        });
        threads.list.sort_by_key(|thread| std::cmp::Reverse(thread.calls.all()));
        threads.left_out = threads.list.len().saturating_sub(MOST_THREADS) as u64;
        threads.list.truncate(MOST_THREADS);
        threads
    }

    /// Adds the blocks in use to their sites.
    fn take_live_sites(&mut self, shared: &mut Shared<'_>) {
        let rank = self.live.rank;
        let mut found = Vec::new();
        layout::blocks(&self.file, &self.header, |block| found.push(block));
        for block in found.into_iter().filter(|block| block.rank >= rank) {
            let followed = chance(block.size, block.distance) * followed(rank);
            self.lives.kept(block.size, followed);
            let site = match block.stack {
                Ok(position) => self.remembered.get(&position).copied(),
                Err(why) => Some((shared.stacks.unknown(Unread::NotCopied(why)), 1.0)),
            };
            if let Some((route, part)) = site {
                self.site(route, shared).live.add(block.size as f64, followed * part);
            }
        }
    }

    fn samples(&self, threads: &Threads) -> Measured<Samples> {
        let refused = [
            (
                layout::NO_ROOM,
                Reason::Exhausted,
                "no room for samples: a limit of the process (RLIMIT_AS, RLIMIT_FSIZE), too little free memory in /dev/shm, or too many \
                 processes at the same time",
            ),
            (layout::NO_CLOCK, Reason::NotPermitted, "the process may not read its clock (PR_SET_TSC)"),
        ];
        if let Some((_, reason, why)) = refused.into_iter().find(|(bit, ..)| self.state.flags & bit != 0) {
            return Err(Absence::new(reason, why));
        }
        if self.header.every == 0 {
            return Err(Absence::new(Reason::Disabled, "sampling is off"));
        }
        if self.blocks.samples == 0 {
            let why = "no call was sampled: the process asked for too little memory";
            return Err(Absence::new(Reason::TooLittle, why));
        }
        let ns_per_tick = || self.ns_per_tick.clone();
        let no_lifetime = || Absence::new(Reason::TooLittle, "no sampled block was freed");
        let followed = followed(self.live.rank);
        let live_bytes = self.live.bytes.interval_within(&self.bytes, followed);
        let (peak_bytes, peak_at_ns) = self.peak.unwrap_or((live_bytes, 0));
        Ok(Samples {
            distance: self.header.every,
            sampled: threads.samples,
            spent_ns: ns_per_tick().map(|ns_per_tick| (threads.sample_ticks as f64 * ns_per_tick) as u64),
            blocks: self.blocks.interval(),
            bytes: self.bytes.interval(),
            latency: ns_per_tick().map(|_| self.latencies()),
            lifetimes: ns_per_tick().and_then(|_| {
                let was_freed = self.lifetimes.by_blocks.samples() > 0;
                was_freed.then(|| self.lifetimes.clone()).ok_or_else(no_lifetime)
            }),
            remote_share: self.remote.interval(),
            remote_bytes_share: self.remote_bytes.interval(),
            live_blocks: self.live.blocks.interval_within(&self.blocks, followed),
            live_bytes,
            peak_bytes,
            peak_at_ns,
            lives: self.lives.finish(),
            sites: Vec::new(),
        })
    }

    fn latencies(&self) -> Vec<Latency> {
        let all = self.latency.iter();
        all.map(|((kind, large), times)| Latency { kind: *kind, large: *large, times: times.clone() })
            .collect()
    }
}

fn known(text: &str, why: &str) -> Measured<String> {
    if text.is_empty() { Err(Absence::new(Reason::NotFound, why)) } else { Ok(text.to_owned()) }
}

/// Why the numbers are incomplete.
fn missing(state: &State, allocator: &Measured<String>, calls: &Calls) -> Vec<Absence> {
    let mut missing = Vec::new();
    if state.flags & layout::BYPASSED != 0 {
        let file = allocator.as_deref().unwrap_or("the program");
        missing.push(Absence::new(
            Reason::NotSupported,
            format!("{file} has an allocator of its own: its calls do not reach the library, and only others are counted"),
        ));
    }
    if state.flags & layout::NO_SPACE != 0 {
        let detail =
            "the folder of the counts has no space left: samples are missing, or threads share counters";
        missing.push(Absence::new(Reason::Exhausted, detail));
    }
    if state.flags & layout::NO_SIZES != 0 && calls.moved > 0 {
        let detail = "the allocator has no malloc_usable_size: the bytes that realloc copied are not known, and shown as 0";
        missing.push(Absence::new(Reason::NotSupported, detail));
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::super::layout::testing::{self, Made};
    use super::super::layout::{Block, NoStack};
    use super::*;
    use crate::reading::Readers;
    use allocwall_model::allocations::End;

    struct Fixture {
        made: Made,
        file: File,
        process: Process,
        stacks: Stacks,
        sites_left: usize,
        proc: ProcFs,
        _proc: tempfile::TempDir,
    }

    impl Fixture {
        /// A process that is not in /proc.
        fn new(made: Made) -> Fixture {
            let root = tempfile::tempdir().unwrap();
            let proc = ProcFs::at(root.path());
            let file = made.file();
            let gone = Absence::new(Reason::Vanished, "it ended");
            let found = layout::header(&file).unwrap().unwrap();
            let ours = file.try_clone().unwrap();
            let process = Process::new("7-0".into(), ours, 5, found, Err(gone), Ok(1.0), 1000);
            let stacks = Stacks::new(proc.clone(), Readers::Here);
            Fixture { made, file, process, stacks, sites_left: 100, proc, _proc: root }
        }

        fn drain(&mut self) {
            self.made.write(&self.file);
            let Fixture { process, stacks, sites_left, .. } = self;
            process.drain(&mut Shared { stacks, sites_left, most_stacks: 10 });
        }

        fn finish(self) -> Finished {
            self.made.write(&self.file);
            let Fixture { process, mut stacks, mut sites_left, proc, .. } = self;
            let mut shared = Shared { stacks: &mut stacks, sites_left: &mut sites_left, most_stacks: 10 };
            process.finish(&proc, &mut shared, 5000, true).0
        }
    }

    const EVERY: u64 = 1 << 20;

    fn allocated(ticks: u64, size: u64, rank: u32) -> Event {
        Event {
            position: 0,
            kind: EventKind::Allocated,
            by_realloc: false,
            zeroed: false,
            followed: true,
            ticks,
            size,
            distance: EVERY,
            rank,
            stack: Err(NoStack::Unknown),
            born: 0,
            latency: Some(120),
            noted: false,
            tid: 7,
            origin: 7,
        }
    }

    fn freed(block: &Event, ticks: u64, tid: u32) -> Event {
        Event { kind: EventKind::Freed, ticks, born: block.ticks, tid, latency: Some(70), ..*block }
    }

    #[test]
    fn the_latency_of_a_call_that_a_trace_noted_does_not_count() {
        let mut fixture = Fixture::new(Made::new(EVERY));
        for noted in [false, true, true] {
            fixture.made.event(&Event { noted, ..allocated(1, 64 << 20, 0) });
        }
        let samples = fixture.finish().process.samples.unwrap();
        let latency = samples.latency.unwrap();
        let timed: u64 = latency.iter().map(|latency| latency.times.samples()).sum();
        assert_eq!((timed, samples.blocks.point), (1, 3.0));
    }

    #[test]
    fn events_become_estimates() {
        // All blocks are so large that each one is sampled.
        const SIZE: u64 = 64 << 20;
        let mut fixture = Fixture::new(Made::new(EVERY));
        let blocks: Vec<Event> = (0..10).map(|at| allocated(at, SIZE, 0)).collect();
        blocks.iter().for_each(|block| fixture.made.event(block));
        fixture.drain();
        // Four are freed, one of them by another thread; realloc ends a fifth.
        for (at, tid) in [(0, 7), (1, 7), (2, 7), (3, 8)] {
            fixture.made.event(&freed(&blocks[at], blocks[at].ticks + 1000, tid));
        }
        fixture.made.event(&Event { by_realloc: true, ..freed(&blocks[4], 500, 8) });
        (0..5).for_each(|at| {
            let stack = Err(NoStack::Unknown);
            fixture.made.block(at, &Block { size: SIZE, distance: EVERY, rank: 0, stack });
        });
        fixture.made.slot(0, 0, 3, 0);
        fixture.made.slot(1, 7, 10, 4);
        let Finished { process, sites, followed } = fixture.finish();
        let samples = process.samples.unwrap();
        let near = |interval: Interval, value: f64| (interval.point - value).abs() < value * 1e-6;
        assert!(near(samples.blocks, 10.0) && near(samples.bytes, 10.0 * SIZE as f64));
        assert!(near(samples.live_blocks, 5.0) && near(samples.live_bytes, 5.0 * SIZE as f64));
        assert!(near(samples.remote_share.unwrap(), 0.25), "the end by realloc is no free");
        let [lives] = &samples.lives.bands[..] else { panic!("{:?}", samples.lives) };
        assert!((lives.new - 10.0).abs() < 1e-6 && (lives.kept - 5.0).abs() < 1e-6, "{lives:?}");
        let ends =
            |end| lives.ended.iter().filter(|life| life.end == end).map(|life| life.blocks).sum::<f64>();
        let ends = [End::Freed, End::FreedElsewhere, End::Resized].map(|end| ends(end).round());
        assert_eq!(ends, [3.0, 1.0, 1.0]);
        let lifetimes = samples.lifetimes.unwrap();
        assert_eq!(lifetimes.by_blocks.samples(), 5);
        assert!((lifetimes.by_blocks.quantile(0.5).unwrap().point / 1000.0 - 1.0).abs() < 0.07);
        // The measurement of nothing takes 20 ticks.
        let latency = samples.latency.unwrap();
        let of = |kind| latency.iter().find(|latency| latency.kind == kind && latency.large).unwrap();
        assert!((of(CallKind::Allocate).times.quantile(0.5).unwrap().point - 100.0).abs() < 7.0);
        assert!((of(CallKind::Free).times.quantile(0.5).unwrap().point - 50.0).abs() < 4.0);
        assert_eq!(followed, 1.0);
        // The exact numbers.
        assert_eq!((process.calls.malloc, process.calls.frees, process.calls.bytes), (13, 4, 13 * 64));
        assert_eq!((process.lost, process.over_ns), (Lost { unsampled: 3, ..Lost::default() }, 4000));
        let tids: Vec<_> = process.threads.iter().map(|thread| thread.tid).collect();
        assert_eq!(tids, [Some(7), None]);
        // No stack was copied.
        assert_eq!((sites.len(), sites[0].1.calls.samples, sites[0].1.live.samples), (1, 10, 5));
    }

    #[test]
    fn blocks_below_the_rank_are_not_used_and_the_others_stand_for_them() {
        const SIZE: u64 = 64 << 20;
        let mut fixture = Fixture::new(Made::new(EVERY));
        fixture.made.set_follow(2);
        // Of 16 blocks, four have a rank of two or more.
        let ranks = [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 4];
        for (at, rank) in ranks.into_iter().enumerate() {
            let block = allocated(at as u64, SIZE, rank);
            fixture.made.event(&block);
            let stack = Err(NoStack::Unknown);
            fixture.made.block(at as u64, &Block { size: SIZE, distance: EVERY, rank, stack });
            // Frees from before the rank grew.
            fixture.made.event(&freed(&block, 100, if rank == 2 { 8 } else { 7 }));
        }
        let Finished { process, followed, .. } = fixture.finish();
        let samples = process.samples.unwrap();
        assert!((samples.live_blocks.point - 16.0).abs() < 1e-3 && followed == 0.25);
        assert!((samples.remote_share.unwrap().point - 0.5).abs() < 1e-6);
        assert_eq!(samples.lifetimes.unwrap().by_blocks.samples(), 4);
        assert!(samples.live_blocks.low < 16.0, "following is a sample too");
    }

    #[test]
    fn lost_events_are_counted_and_late_ones_read_again() {
        let mut fixture = Fixture::new(Made::new(EVERY));
        (0..testing::EVENTS + 10).for_each(|at| fixture.made.event(&allocated(at, 64 << 20, 0)));
        fixture.drain();
        assert_eq!(fixture.process.lost.events, 10);
        // One is still being written.
        let whole = fixture.made.bytes.clone();
        fixture.made.event(&allocated(1, 64 << 20, 0));
        let complete = std::mem::replace(&mut fixture.made.bytes, whole);
        let next = testing::EVENTS + 10 + layout::FIRST + 1;
        fixture.made.set_events_next(next);
        fixture.drain();
        assert_eq!((fixture.process.blocks.samples, fixture.process.late.len()), (testing::EVENTS, 1));
        fixture.made.bytes = complete;
        fixture.drain();
        assert_eq!((fixture.process.blocks.samples, fixture.process.late.len()), (testing::EVENTS + 1, 0));
        assert_eq!(fixture.process.lost.events, 10);
        // One that never becomes complete, and a jump.
        fixture.made.set_events_next(next + 1);
        (0..=TRIES).for_each(|_| fixture.drain());
        assert_eq!((fixture.process.lost.events, fixture.process.late.len()), (11, 0));
        fixture.made.set_events_next(u64::MAX);
        fixture.drain();
        assert!(fixture.process.lost.events > u64::MAX / 2);
        fixture.made.set_events_next(0);
        (0..=TRIES).for_each(|_| fixture.drain());
        assert_eq!(fixture.process.next_event, layout::FIRST);
    }

    #[test]
    fn stacks_of_an_unknown_process_have_its_reason_and_overwritten_ones_theirs() {
        let mut fixture = Fixture::new(Made::new(EVERY));
        for at in 0..testing::STACKS + 2 {
            let stack = Ok(layout::FIRST + at);
            fixture.made.event(&Event { stack, ..allocated(at, 64 << 20, 0) });
        }
        fixture.drain();
        assert_eq!(fixture.process.lost.stacks, 2);
        let remembered = fixture.process.remembered.len() as u64;
        assert_eq!(remembered, testing::STACKS + 2);
        // Their blocks are not in the table: they are forgotten after two readings of it.
        (0..2).for_each(|_| fixture.process.scan(1));
        assert!(fixture.process.remembered.is_empty());
        let Fixture { process, mut stacks, .. } = fixture;
        let route = *process.sites.keys().next().unwrap();
        assert_eq!((process.sites.len(), route), (1, stacks.unknown(Unread::Code { image: 0 })));
        let named = stacks.finish();
        assert_eq!(named.routes[route as usize].as_ref().unwrap_err().detail, "it ended");
    }

    #[test]
    fn without_samples_there_is_a_reason() {
        let reason = |every: u64, flags: u32| {
            let mut made = Made::new(every);
            made.set_flags(flags);
            made.slot(1, 7, 10, 4);
            let process = Fixture::new(made).finish().process;
            assert_eq!(process.calls.malloc, 10);
            (process.samples.unwrap_err().reason, process.missing.len())
        };
        assert_eq!(reason(EVERY, 0), (Reason::TooLittle, 0));
        assert_eq!(reason(0, 0), (Reason::Disabled, 0));
        assert_eq!(reason(EVERY, layout::NO_ROOM), (Reason::Exhausted, 0));
        assert_eq!(reason(EVERY, layout::NO_CLOCK | layout::BYPASSED), (Reason::NotPermitted, 1));
    }

    #[test]
    fn unknown_copies_are_named_if_there_are_some() {
        let state = State { flags: layout::NO_SIZES, ..State::default() };
        let known = State::default();
        let of = |state: &State, moved: u64| {
            missing(state, &Ok("a.so".into()), &Calls { moved, ..Calls::default() }).len()
        };
        assert_eq!((of(&state, 1), of(&state, 0), of(&known, 1)), (1, 0, 0));
    }

    #[test]
    fn gains_are_those_since_the_last_reading_and_never_negative() {
        let mut fixture = Fixture::new(Made::new(EVERY));
        fixture.made.slot(1, 7, 10, 4);
        fixture.made.write(&fixture.file);
        let proc = fixture.proc.clone();
        assert_eq!(fixture.process.count(&proc), Gained { calls: 10, frees: 4, bytes: 640 });
        assert_eq!(fixture.process.count(&proc), Gained::default());
        fixture.made.slot(1, 7, 1, 0);
        fixture.made.write(&fixture.file);
        assert_eq!(fixture.process.count(&proc), Gained::default());
    }
}
