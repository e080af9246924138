//! Watches the folder in which processes count: finds their files, reads them while they change, and adds everything up.

use super::layout::{self, Header};
use super::process::{Finished, Gained, Identity, Process, Shared, SiteTally};
use super::stacks::{Named, Stacks, code_of};
use crate::reading::Readers;
use allocwall_host::clock::{in_own_namespace, monotonic_ns, thread_cpu_ns};
use allocwall_host::cycles::{Cycles, Source};
use allocwall_host::file::{absence_of, takes_new_files};
use allocwall_host::maps::Mapping;
use allocwall_host::own;
use allocwall_host::proc::ProcFs;
use allocwall_model::allocations::{
    CLASSES, Calls, Counted, Further, MOST_PROCESSES, MOST_SITES, Point, Site, add_classes,
};
use allocwall_model::trace::Trace;
use allocwall_model::units::{Absence, Measured, Reason};
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A step that takes this part of the time, or more, is repeated less often.
const COST_PART: u64 = 100;
/// But so often at least.
const LONGEST_PAUSE_NS: u64 = 1_000_000_000;
/// The most names of the folder that are looked at in one step. Twice as many are remembered.
const MOST_NAMES: usize = 4096;
/// Stacks that are unwound: a second, and at once after a pause. One takes some 50 µs.
const STACKS_PER_S: f64 = 150.0;
const STACKS_AT_ONCE: f64 = 300.0;
/// The most points of the series. Above, two become one.
const MOST_POINTS: usize = 3600;
const POINT_NS: u64 = 1_000_000_000;
/// The most sentences about what is missing.
const MOST_MISSING: usize = 16;
/// How far the clock of a process may be off when it starts: it may be interrupted between the readings of its two clocks.
const CLOCK_OFF_NS: f64 = 1e9;

/// What a folder must have at least: room for some files without samples.
const LEAST_ROOM: u64 = 1 << 20;
/// The most large files at the same time: together 1.2 GiB at most, if all have traces.
const MOST_LARGE: u64 = 128;

/// A folder for the files of one run, which is removed when it is dropped.
pub struct Folder {
    made: tempfile::TempDir,
    /// Processes see from it that somebody reads their files.
    room: File,
}

impl Folder {
    /// In memory: a counter that lies on a disk would let the process wait for it. A target of root may run as other users, so
    /// they may create files there. `traces`: the files have room for them.
    ///
    /// # Errors
    /// Those of the file system. `StorageFull`: no file system in memory has room.
    pub fn new(traces: bool) -> io::Result<Folder> {
        let places = [PathBuf::from("/dev/shm"), own::temporary().folder];
        let found = places.iter().find_map(|place| {
            let room = room_in_memory(place).filter(|room| *room >= LEAST_ROOM)?;
            Some((room, place))
        });
        let Some((room, base)) = found else {
            let why = format!(
                "neither /dev/shm nor {} is in memory (tmpfs), with a quarter and {} MiB of it free: set TMPDIR to a folder that is",
                places[1].display(),
                LEAST_ROOM >> 20
            );
            return Err(io::Error::new(io::ErrorKind::StorageFull, why));
        };
        let made = tempfile::Builder::new().prefix("allocwall-count-").tempdir_in(base)?;
        let mut fifo = make_fifo(made.path())?;
        let files = (room / layout::large_file(traces)).min(MOST_LARGE);
        fifo.write_all(&vec![0; files as usize])?;
        if rustix::process::geteuid().is_root() {
            fs::set_permissions(made.path().join(layout::ROOM), Permissions::from_mode(0o644))?;
            fs::set_permissions(made.path(), Permissions::from_mode(0o1777))?;
        }
        Ok(Folder { made, room: fifo })
    }

    pub fn path(&self) -> &Path {
        self.made.path()
    }
}

/// Bytes that files may take in a folder in memory: what is free above a quarter of the file system, which is left to its other
/// users. None if the folder isn't in memory, or takes no files.
fn room_in_memory(folder: &Path) -> Option<u64> {
    const TMPFS: i64 = 0x0102_1994;
    takes_new_files(folder).ok()?;
    let place = rustix::fs::statfs(folder).ok().filter(|place| place.f_type == TMPFS)?;
    // Without a limit: tmpfs(5).
    if place.f_blocks == 0 {
        return Some(u64::MAX);
    }
    let left = place.f_bavail.saturating_sub(place.f_blocks / 4);
    Some(left.saturating_mul(place.f_bsize.unsigned_abs()))
}

/// Open for reading and writing, so that what is in it stays.
fn make_fifo(folder: &Path) -> io::Result<File> {
    let path = folder.join(layout::ROOM);
    rustix::fs::mkfifoat(rustix::fs::CWD, path.as_path(), rustix::fs::Mode::from_raw_mode(0o600))?;
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(path)
}

/// Parts of a poll. Each has its own pace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Find,
    Drain,
    Scan,
    Count,
    End,
}

impl Step {
    const ALL: [Step; 5] = [Step::Find, Step::Drain, Step::Scan, Step::Count, Step::End];

    /// The least time between two runs; a bit less than that between two polls.
    fn every_ns(self) -> u64 {
        match self {
            Step::Find => 4_000_000,
            Step::Drain | Step::End => 40_000_000,
            Step::Scan => 240_000_000,
            Step::Count => POINT_NS,
        }
    }
}

/// What was read in all.
#[derive(Clone, Debug, PartialEq)]
pub struct Watched {
    pub counted: Counted,
    /// Of the process with most calls: those of some milliseconds in their order, the newest first. They are for a replay that follows
    /// at once, and no part of a recording.
    pub traces: Vec<Trace>,
}

pub struct Watch {
    folder: PathBuf,
    /// The folder's FIFO.
    room: Option<File>,
    proc: ProcFs,
    began_ns: u64,
    cycles: Cycles,
    stacks: Stacks,
    sites_left: usize,
    /// Stacks that may be unwound now.
    tokens: f64,
    tokens_ns: u64,
    processes: Vec<Process>,
    /// Names of files that need not be opened again.
    known: HashSet<String>,
    finished: Vec<Finished>,
    /// Calls and traces of the finished process with most calls.
    busiest: (u64, Vec<Trace>),
    further: Option<Further>,
    series: Series,
    missing: Vec<Absence>,
    next_ns: [u64; Step::ALL.len()],
}

impl Watch {
    /// # Errors
    /// No descriptor is left.
    pub fn start(folder: &Folder, readers: Readers) -> io::Result<Watch> {
        let room = Some(folder.room.try_clone()?);
        Ok(Watch { room, ..Watch::of(ProcFs::live(), folder.path(), readers) })
    }

    fn of(proc: ProcFs, folder: &Path, readers: Readers) -> Watch {
        let began_ns = monotonic_ns();
        Watch {
            folder: folder.to_path_buf(),
            room: None,
            stacks: Stacks::new(proc.clone(), readers),
            proc,
            began_ns,
            cycles: Cycles::start(10_000_000),
            sites_left: MOST_SITES,
            tokens: STACKS_AT_ONCE,
            tokens_ns: began_ns,
            processes: Vec::new(),
            known: HashSet::new(),
            finished: Vec::new(),
            busiest: (0, Vec::new()),
            further: None,
            series: Series::default(),
            missing: Vec::new(),
            next_ns: [0; Step::ALL.len()],
        }
    }

    /// Calls, and allocations by size class, of all processes, at the last reading of their counters: one a second.
    pub fn so_far(&self) -> (Calls, Vec<u64>) {
        let (mut calls, mut classes) = (Calls::default(), vec![0; CLASSES]);
        let running = self.processes.iter().map(|process| (&process.calls, &process.classes));
        let ended = self.finished.iter().map(|finished| (&finished.process.calls, &finished.process.classes));
        let further = self.further.iter().map(|further| (&further.calls, &further.classes));
        for (more, by_class) in running.chain(ended).chain(further) {
            calls.add(more);
            add_classes(&mut classes, by_class);
        }
        (calls, classes)
    }

    /// Finds new processes, and reads what changed. Call it every 50 ms, and more often in the first second: a process that
    /// ends before its file is found has no names. Each step has its own pace, so a call may do nothing.
    pub fn poll(&mut self) {
        for step in Step::ALL {
            let now = monotonic_ns();
            if now < self.next_ns[step as usize] {
                continue;
            }
            let before = thread_cpu_ns();
            self.run(step);
            let cost = thread_cpu_ns().saturating_sub(before);
            let pause = cost.saturating_mul(COST_PART).clamp(step.every_ns(), LONGEST_PAUSE_NS);
            self.next_ns[step as usize] = now + pause;
        }
    }

    fn run(&mut self, step: Step) {
        let t_ns = self.t_ns();
        match step {
            Step::Find => self.find(),
            Step::Drain => self.drain(),
            Step::Scan => self.processes.iter_mut().for_each(|process| process.scan(t_ns)),
            Step::Count => {
                for process in &mut self.processes {
                    self.series.gain(process.count(&self.proc));
                }
                self.series.point(t_ns);
            }
            Step::End => self.end(),
        }
    }

    fn t_ns(&self) -> u64 {
        monotonic_ns().saturating_sub(self.began_ns)
    }

    /// Opens the files of new processes.
    fn find(&mut self) {
        let Ok(list) = fs::read_dir(&self.folder) else { return };
        for entry in list.flatten().take(MOST_NAMES) {
            let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
            if self.known.contains(&name) {
                continue;
            }
            let Some(numbers) = numbers_of(&name) else { continue };
            match self.open(&name, numbers) {
                Ok(Some(process)) => {
                    if !self.make_room() {
                        return;
                    }
                    self.known.insert(name);
                    self.processes.push(process);
                }
                // The process has not written all of it yet.
                Ok(None) => {}
                Err(absence) => {
                    // Without descriptors, it is tried again.
                    if absence.reason != Reason::Exhausted && self.known.len() < 2 * MOST_NAMES {
                        self.known.insert(name);
                    }
                    self.miss(absence);
                }
            }
        }
    }

    fn open(&self, name: &str, numbers: (u32, u32)) -> Measured<Option<Process>> {
        let path = self.folder.join(name);
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(&path)
            .and_then(|file| Ok((file.metadata()?, file)));
        let (facts, file) = opened.map_err(|error| absence_of(&path, &error))?;
        if !facts.is_file() {
            let detail = format!("{} is not a file of counts", path.display());
            return Err(Absence::new(Reason::Unparsable, detail));
        }
        let Some(header) = layout::header(&file)? else { return Ok(None) };
        if (header.pid, header.number) != numbers {
            let detail = format!("{} has the header of another process", path.display());
            return Err(Absence::new(Reason::Unparsable, detail));
        }
        let identity = self.identify(header.pid, facts.ino(), name);
        let now = Reading {
            ns: in_own_namespace(monotonic_ns()),
            ticks: self.cycles.now(),
            ns_per_tick: (self.cycles.source() == Source::Tsc)
                .then(|| self.cycles.ns(1 << 32) / (1_u64 << 32) as f64),
        };
        let clock = ns_per_tick(&header, now);
        let from_ns = header.start_ns.saturating_sub(in_own_namespace(self.began_ns)).min(self.t_ns());
        Ok(Some(Process::new(name.to_owned(), file, facts.ino(), header, identity, clock, from_ns)))
    }

    /// The process that maps this file.
    fn identify(&self, pid: u32, inode: u64, name: &str) -> Measured<(Identity, Vec<Mapping>)> {
        let pid = i32::try_from(pid)
            .map_err(|_| Absence::new(Reason::Unparsable, format!("{pid} is no number of a process")))?;
        let ended = || Absence::new(Reason::Vanished, format!("process {pid} ended before it was found"));
        let stat = self.proc.process_stat(pid);
        let stat = stat.map_err(|absence| if absence.is_gone() { ended() } else { absence })?;
        let start_ticks = stat.start_ticks;
        let code = code_of(&self.proc, pid, inode, &format!("/{name}"))?;
        Ok((Identity { pid, start_ticks }, code))
    }

    /// Makes room for another process; false if there is none. Of processes that could not be found in /proc it is not known
    /// whether they run, so their files stay open as long as there is room.
    fn make_room(&mut self) -> bool {
        if self.processes.len() < MOST_PROCESSES {
            return true;
        }
        match self.processes.iter().position(|process| process.identity.is_err()) {
            Some(at) => {
                self.close(at, self.is_gone(&self.processes[at]));
                true
            }
            None => {
                let detail = format!("more than {MOST_PROCESSES} processes ran at the same time");
                self.miss(Absence::new(Reason::TooCostly, detail));
                false
            }
        }
    }

    /// Of a process that could not be found in /proc: whether no process has its number.
    fn is_gone(&self, process: &Process) -> bool {
        let exists = |pid| self.proc.exists(pid);
        process.identity.is_err() && !i32::try_from(process.pid()).is_ok_and(exists)
    }

    fn drain(&mut self) {
        self.refill();
        let mut left = self.processes.len();
        for process in &mut self.processes {
            let share = (self.tokens / left as f64).ceil().min(self.tokens.floor()) as usize;
            let mut shared =
                Shared { stacks: &mut self.stacks, sites_left: &mut self.sites_left, most_stacks: share };
            process.drain(&mut shared);
            self.tokens -= (share - shared.most_stacks) as f64;
            left -= 1;
        }
    }

    fn refill(&mut self) {
        let now = monotonic_ns();
        let passed = now.saturating_sub(self.tokens_ns) as f64 / 1e9;
        self.tokens = (self.tokens + passed * STACKS_PER_S).min(STACKS_AT_ONCE);
        self.tokens_ns = now;
    }

    /// Closes the files of processes that ended, or that execute another program.
    fn end(&mut self) {
        let mut latest: HashMap<u32, u32> = HashMap::new();
        for process in &self.processes {
            let number = latest.entry(process.pid()).or_default();
            *number = (*number).max(process.number());
        }
        let mut at = 0;
        while let Some(process) = self.processes.get(at) {
            let again = latest.get(&process.pid()).is_some_and(|number| *number > process.number());
            if process.runs(&self.proc, again) {
                at += 1;
            } else {
                self.close(at, true);
            }
        }
    }

    /// Reads a file for the last time, and removes it if its process ended.
    fn close(&mut self, at: usize, ended: bool) {
        let process = self.processes.swap_remove(at);
        let (name, is_large) = (process.name.clone(), process.is_large());
        let t_ns = self.t_ns();
        self.refill();
        let share = self.tokens.floor() as usize;
        let mut shared =
            Shared { stacks: &mut self.stacks, sites_left: &mut self.sites_left, most_stacks: share };
        let (finished, traces, gained) = process.finish(&self.proc, &mut shared, t_ns, ended);
        self.tokens -= (share - shared.most_stacks) as f64;
        self.series.gain(gained);
        // Of several processes with as many calls, the first one is the first of the list.
        let calls = finished.process.calls.all();
        if calls > self.busiest.0 {
            self.busiest = (calls, traces);
        }
        self.finished.push(finished);
        if self.finished.len() >= 2 * MOST_PROCESSES {
            self.fold();
        }
        if ended {
            // If that fails, the name stays known, and the folder is removed at the end.
            if fs::remove_file(self.folder.join(&name)).is_ok() {
                self.known.remove(&name);
                if let Some(room) = self.room.as_mut().filter(|_| is_large) {
                    // It can only be full if a process writes there.
                    let _ = room.write_all(&[0]);
                }
            }
        }
    }

    /// Keeps the processes with most calls; of the others only the sums.
    fn fold(&mut self) {
        self.finished.sort_by_key(|finished| Reverse(finished.process.calls.all()));
        let most = MOST_PROCESSES.min(self.finished.len());
        for Finished { process, sites, .. } in self.finished.drain(most..) {
            self.further.get_or_insert_default().add(&process);
            self.sites_left += sites.len();
        }
    }

    fn miss(&mut self, absence: Absence) {
        if self.missing.len() < MOST_MISSING && !self.missing.contains(&absence) {
            self.missing.push(absence);
        }
    }

    /// Reads everything for the last time, and names the stacks.
    pub fn finish(mut self) -> Watched {
        self.find();
        self.end();
        while let Some(process) = self.processes.last() {
            let ended = self.is_gone(process);
            self.close(self.processes.len() - 1, ended);
        }
        let length_ns = self.t_ns();
        self.series.point(length_ns);
        self.fold();
        let Watch { stacks, finished, busiest, further, series, mut missing, .. } = self;
        let named = stacks.finish();
        let lost = named.missing.iter().map(|detail| Absence::new(Reason::TooCostly, detail.clone()));
        missing.extend(lost.take(MOST_MISSING));
        let processes = finished.into_iter().map(|finished| {
            let Finished { mut process, sites, followed } = finished;
            if let Ok(samples) = &mut process.samples {
                samples.sites = merged(sites, followed, &named);
            }
            process
        });
        let processes = processes.collect();
        let Named { modules, frames, stacks, .. } = named;
        let series = series.points;
        let counted = Counted { length_ns, processes, further, series, modules, frames, stacks, missing };
        Watched { counted, traces: busiest.1 }
    }
}

/// `PID-N`.
fn numbers_of(name: &str) -> Option<(u32, u32)> {
    let number = |text: &str| -> Option<u32> {
        let number: u32 = text.parse().ok()?;
        // Without a sign or zeros at its start.
        (number.to_string() == text).then_some(number)
    };
    let (pid, n) = name.split_once('-')?;
    Some((number(pid)?, number(n)?))
}

/// The clocks of this process at one moment.
#[derive(Clone, Copy, Debug)]
struct Reading {
    /// CLOCK_MONOTONIC, as this process sees it.
    ns: u64,
    ticks: u64,
    /// None if the ticks are not those of a counter with a constant rate.
    ns_per_tick: Option<f64>,
}

/// The rate of a process's clock: as the library knows it, or as this process measured it for the counter of this machine. Then
/// the times at the start of the process show whether it is the same counter.
fn ns_per_tick(header: &Header, now: Reading) -> Measured<f64> {
    const PLAUSIBLE: std::ops::RangeInclusive<u64> = 1_000_000..=100_000_000_000;
    match header.ticks_per_second {
        Some(rate) if PLAUSIBLE.contains(&rate) => return Ok(1e9 / rate as f64),
        Some(rate) => {
            let detail = format!("the clock of the process is said to have {rate} ticks a second");
            return Err(Absence::new(Reason::Unparsable, detail));
        }
        None => {}
    }
    let Some(ns_per_tick) = now.ns_per_tick else {
        let detail = "the time-stamp counter of this machine has no constant rate";
        return Err(Absence::new(Reason::NotSupported, detail));
    };
    let by_ticks = (now.ticks as f64 - header.start_ticks as f64) * ns_per_tick;
    let by_clock = now.ns as f64 - header.start_ns as f64;
    if (by_ticks - by_clock).abs() > CLOCK_OFF_NS + by_clock.abs() * 0.01 {
        let detail = "the process reads another clock than this machine's time-stamp counter";
        return Err(Absence::new(Reason::NotSupported, detail));
    }
    Ok(ns_per_tick)
}

/// The sites of one process by stack, those with most bytes first.
fn merged(sites: Vec<(u32, SiteTally)>, followed: f64, named: &Named) -> Vec<Site> {
    // All calls without a stack for the same reason are one site.
    let mut by_stack: HashMap<Result<u32, &str>, (Measured<u32>, SiteTally)> = HashMap::new();
    for (route, tally) in sites {
        let stack = &named.routes[route as usize];
        let key = stack.as_ref().map(|stack| *stack).map_err(|absence| absence.detail.as_str());
        by_stack.entry(key).or_insert_with(|| (stack.clone(), SiteTally::default())).1.merge(&tally);
    }
    let mut sites: Vec<Site> = by_stack
        .into_values()
        .map(|(stack, tally)| Site {
            stack,
            samples: tally.calls.samples,
            calls: tally.calls.interval(),
            bytes: tally.bytes.interval(),
            live_bytes: tally.live.interval_within(&tally.bytes, followed),
            remote_share: tally.remote.interval(),
        })
        .collect();
    let order = |a: &Site, b: &Site| {
        let by_bytes = b.bytes.point.total_cmp(&a.bytes.point);
        by_bytes.then_with(|| a.stack.as_ref().ok().cmp(&b.stack.as_ref().ok()))
    };
    sites.sort_by(order);
    sites
}

/// Numbers over time.
struct Series {
    points: Vec<Point>,
    every_ns: u64,
    last_ns: u64,
    gained: Gained,
}

impl Default for Series {
    fn default() -> Series {
        Series { points: Vec::new(), every_ns: POINT_NS, last_ns: 0, gained: Gained::default() }
    }
}

impl Series {
    fn gain(&mut self, gained: Gained) {
        self.gained.add(gained);
    }

    /// Ends a point. A short one is joined with its neighbour.
    fn point(&mut self, t_ns: u64) {
        let over_ns = t_ns.saturating_sub(self.last_ns);
        if over_ns == 0 {
            return;
        }
        let Gained { calls, frees, bytes } = std::mem::take(&mut self.gained);
        let point = Point { t_ns, over_ns, calls, frees, bytes };
        self.last_ns = t_ns;
        match self.points.last_mut() {
            Some(last) if last.over_ns + over_ns <= self.every_ns / 4 * 5 => *last = joined(*last, point),
            _ => self.points.push(point),
        }
        if self.points.len() > MOST_POINTS {
            let pairs = self.points.chunks(2);
            self.points = pairs.map(|pair| pair.iter().copied().reduce(joined).unwrap_or_default()).collect();
            self.every_ns *= 2;
        }
    }
}

/// Two neighbours of a series as one point.
fn joined(first: Point, second: Point) -> Point {
    Point {
        t_ns: second.t_ns,
        over_ns: first.over_ns.saturating_add(second.over_ns),
        calls: first.calls.saturating_add(second.calls),
        frees: first.frees.saturating_add(second.frees),
        bytes: first.bytes.saturating_add(second.bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::testing::Made;
    use super::super::layout::{Event, EventKind, NoStack};
    use super::*;
    use allocwall_model::recording::Module;
    use allocwall_model::trace::{TracedCall, TracedKind, TracedThread};
    use std::io::Read;

    const EVERY: u64 = 1 << 20;

    /// A watch of an empty /proc, the folder of the counts, and that of /proc.
    fn watch() -> (Watch, tempfile::TempDir, tempfile::TempDir) {
        let (folder, proc) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        (Watch::of(ProcFs::at(proc.path()), folder.path(), Readers::Here), folder, proc)
    }

    fn block(kind: EventKind, ticks: u64) -> Event {
        Event {
            position: 0,
            kind,
            by_realloc: false,
            zeroed: false,
            followed: true,
            ticks,
            size: 64 << 20,
            distance: EVERY,
            rank: 0,
            stack: Err(NoStack::Unknown),
            born: 10,
            latency: Some(100),
            noted: false,
            tid: 7,
            origin: 7,
        }
    }

    #[test]
    fn a_process_is_read_from_its_first_file_to_its_last_byte() {
        let (mut watch, folder, _proc) = watch();
        let path = folder.path().join("7-0");
        let mut made = Made::new(EVERY);
        made.slot(1, 7, 10, 4);
        fs::write(&path, &made.bytes).unwrap();
        watch.poll();
        assert_eq!(watch.processes.len(), 1);
        made.slot(1, 7, 30, 8);
        (0..3).for_each(|_| made.event(&block(EventKind::Allocated, 10)));
        made.event(&block(EventKind::Freed, 20));
        fs::write(&path, &made.bytes).unwrap();
        watch.run(Step::Count);
        let (calls, classes) = watch.so_far();
        let counted = watch.finish().counted;
        assert_eq!((calls, classes), (counted.calls(), counted.classes()));
        assert!(!path.exists(), "its process does not exist");
        assert_eq!((counted.calls().malloc, counted.classes()[4], counted.missing.len()), (30, 30, 0));
        let sum = |of: fn(&Point) -> u64| counted.series.iter().map(of).sum::<u64>();
        assert_eq!((sum(|p| p.calls), sum(|p| p.frees), sum(|p| p.bytes)), (30, 8, 30 * 64));
        assert_eq!(sum(|p| p.over_ns), counted.length_ns);
        let [process] = &counted.processes[..] else { panic!("{counted:?}") };
        assert_eq!((process.pid, process.number, process.ended), (7, 0, true));
        assert_eq!(process.program.as_deref(), Ok("/usr/bin/program"));
        assert_eq!(process.allocator, process.program);
        assert_eq!(process.command.as_ref().unwrap()[1], "--fast");
        let samples = process.samples.as_ref().unwrap();
        let [site] = &samples.sites[..] else { panic!("{samples:?}") };
        assert_eq!((site.samples, site.stack.is_err()), (3, true));
        assert_eq!(site.remote_share.as_ref().map(|share| share.point), Ok(0.0));
    }

    #[test]
    fn only_the_busiest_process_keeps_its_traces() {
        let (mut watch, folder, _proc) = watch();
        let call = TracedCall { kind: TracedKind::New, address: 16, size: 64, thread: TracedThread(1) };
        for (pid, mallocs) in [(7, 10), (8, 30), (9, 20), (6, 30)] {
            let mut made = Made::new(EVERY);
            made.set_process(pid, 0);
            made.slot(1, pid, mallocs, 0);
            made.trace(1, &vec![call; pid as usize - 2]);
            fs::write(folder.path().join(format!("{pid}-0")), &made.bytes).unwrap();
        }
        watch.poll();
        let watched = watch.finish();
        let first = watched.counted.processes[0].pid;
        assert!(matches!(first, 6 | 8));
        assert_eq!(watched.traces, [vec![call; first as usize - 2]]);
    }

    #[test]
    fn a_large_file_that_is_removed_makes_room_for_another() {
        let (mut watch, folder, _proc) = watch();
        let mut room = make_fifo(folder.path()).unwrap();
        watch.room = Some(room.try_clone().unwrap());
        let mut made = Made::new(EVERY);
        for (pid, slots) in [(7, 32_u32), (8, 33), (9, 32)] {
            made.set_process(pid, 0);
            // The number of slots.
            made.put(56, &slots.to_ne_bytes());
            fs::write(folder.path().join(format!("{pid}-0")), &made.bytes).unwrap();
        }
        let counted = watch.finish().counted;
        assert_eq!((counted.processes.len(), counted.missing.len()), (3, 0));
        assert_eq!(room.read(&mut [0; 8]).unwrap(), 1);
    }

    #[test]
    fn only_folders_in_memory_have_room() {
        assert!(room_in_memory(Path::new("/dev/shm")).is_some_and(|room| room >= LEAST_ROOM));
        for other in ["/proc/self", "/nonexistent"] {
            assert_eq!(room_in_memory(Path::new(other)), None, "{other}");
        }
    }

    #[test]
    fn only_complete_files_of_processes_are_read() {
        let (mut watch, folder, _proc) = watch();
        let at = |name: &str| folder.path().join(name);
        let mut made = Made::new(EVERY);
        for name in ["x", "7", "7-", "-7", "07-0", "7-00", "+7-0", "7-0-0", "4294967296-0"] {
            fs::write(at(name), &made.bytes).unwrap();
        }
        fs::write(at("5-0"), b"something else entirely").unwrap();
        fs::write(at("6-0"), &made.bytes).unwrap();
        fs::create_dir(at("8-0")).unwrap();
        std::os::unix::fs::symlink(at("x"), at("9-0")).unwrap();
        made.set_process(11, 0);
        made.put(0, &[0; 8]);
        fs::write(at("11-0"), &made.bytes).unwrap();
        watch.find();
        assert_eq!((watch.processes.len(), watch.missing.len()), (0, 4), "{:?}", watch.missing);
        let mut made = Made::new(EVERY);
        made.set_process(11, 0);
        fs::write(at("11-0"), &made.bytes).unwrap();
        watch.find();
        assert_eq!((watch.processes.len(), watch.missing.len()), (1, 4));
        let counted = watch.finish().counted;
        assert_eq!(counted.processes.iter().map(|process| process.pid).collect::<Vec<_>>(), [11]);
    }

    #[test]
    fn above_their_number_the_processes_with_fewest_calls_become_one_sum() {
        let (mut watch, folder, _proc) = watch();
        let most = MOST_PROCESSES as u64;
        for pid in 1..=most + 3 {
            let mut made = Made::new(0);
            made.set_process(pid as u32, 0);
            made.slot(1, 7, pid, 0);
            // The other parts are behind the slots, and empty.
            fs::write(folder.path().join(format!("{pid}-0")), &made.bytes[..16 << 10]).unwrap();
            watch.find();
            watch.close(0, true);
        }
        let counted = watch.finish().counted;
        let further = counted.further.as_ref().unwrap();
        assert_eq!((counted.processes.len(), further.processes), (MOST_PROCESSES, 3));
        assert_eq!((further.calls.malloc, further.classes[4]), (6, 6));
        assert_eq!(counted.processes[0].calls.malloc, most + 3);
        assert_eq!(counted.calls().malloc, (most + 3) * (most + 4) / 2);
    }

    #[test]
    fn a_clock_is_used_if_its_rate_is_known_and_it_is_the_same() {
        let mut header = Made::new(EVERY).header;
        header.ticks_per_second = None;
        (header.start_ticks, header.start_ns) = (6_000_000_000, 1_000_000_000);
        // Three ticks a nanosecond, 5 s after the start of the process.
        let now = Reading { ns: 6_000_000_000, ticks: 21_000_000_000, ns_per_tick: Some(1.0 / 3.0) };
        assert_eq!(ns_per_tick(&header, now), Ok(1.0 / 3.0));
        let reason = |header: &Header, now| ns_per_tick(header, now).map_err(|absence| absence.reason);
        let unknown = Reading { ns_per_tick: None, ..now };
        assert_eq!(reason(&header, unknown), Err(Reason::NotSupported));
        let other = Reading { ticks: 90_000_000_000, ..now };
        assert_eq!(reason(&header, other), Err(Reason::NotSupported));
        header.ticks_per_second = Some(25_000_000);
        assert_eq!(reason(&header, unknown), Ok(40.0));
        header.ticks_per_second = Some(1);
        assert_eq!(reason(&header, now), Err(Reason::Unparsable));
    }

    #[test]
    fn a_long_series_has_fewer_and_longer_points() {
        let mut series = Series::default();
        let one = Gained { calls: 1, frees: 2, bytes: 3 };
        // The first reading is a moment after the start.
        series.gain(one);
        series.point(1000);
        let seconds = 3 * MOST_POINTS as u64;
        for second in 1..=seconds {
            series.gain(one);
            series.point(second * POINT_NS);
        }
        assert!(series.points.len() <= MOST_POINTS && series.points.len() > MOST_POINTS / 3);
        let sum = |of: fn(&Point) -> u64| series.points.iter().map(of).sum::<u64>();
        assert_eq!((sum(|p| p.calls), sum(|p| p.bytes)), (seconds + 1, 3 * (seconds + 1)));
        assert_eq!(sum(|p| p.over_ns), seconds * POINT_NS);
        assert!(series.points.iter().all(|point| point.over_ns >= POINT_NS));
        let mut short = Series::default();
        short.gain(one);
        short.point(1000);
        short.point(1000);
        assert_eq!(short.points, [Point { t_ns: 1000, over_ns: 1000, calls: 1, frees: 2, bytes: 3 }]);
    }

    #[test]
    fn sites_of_one_stack_or_of_one_reason_are_one() {
        let absent = |detail: &str| Err(Absence::new(Reason::NotFound, detail));
        let named = Named {
            modules: Vec::<Module>::new(),
            frames: Vec::new(),
            stacks: Vec::new(),
            routes: vec![Ok(5), absent("a"), Ok(5), absent("a"), absent("b"), Ok(6)],
            missing: Vec::new(),
        };
        let tally = |bytes: f64| {
            let mut tally = SiteTally::default();
            tally.calls.add(1.0, 1.0);
            tally.bytes.add(bytes, 1.0);
            tally
        };
        let sites = (0..6).map(|route| (route, tally(f64::from(route) + 1.0))).collect();
        let sites = merged(sites, 1.0, &named);
        let shown: Vec<_> =
            sites.iter().map(|site| (site.stack.clone().ok(), site.bytes.point, site.samples)).collect();
        assert_eq!(shown[..2], [(None, 6.0, 2), (Some(6), 6.0, 1)]);
        assert_eq!(shown[2..], [(None, 5.0, 1), (Some(5), 4.0, 2)]);
    }

    #[test]
    fn a_folder_is_removed_with_its_files() {
        let folder = Folder::new(true).unwrap();
        let path = folder.path().to_path_buf();
        assert!(path.is_absolute());
        let allowed = (&folder.room).read(&mut [0; 1024]).unwrap_or(0);
        assert!(allowed <= MOST_LARGE as usize, "{allowed}");
        fs::write(path.join("7-0"), "").unwrap();
        drop(folder);
        assert!(!path.exists());
    }
}
