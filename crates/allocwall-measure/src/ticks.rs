//! The slow counters: each reading takes /proc and the cgroup files of the whole target once.

mod pace;

use allocwall_host::proc::{ProcFs, ProcessStat};
use allocwall_model::recording::{
    CgroupTick, Probe, ProbeName, ProbeState, Smaps, SmapsCost, ThreadTimes, Tick,
};
use allocwall_model::units::{Absence, Measured, Reason};
use pace::Pace;
use std::collections::HashMap;
use std::collections::btree_map::{BTreeMap, Entry};

/// smaps_rollup and numa_maps walk the page tables while they hold the map lock, so they are not read on
/// targets (numa_maps: processes) larger than this.
pub const SMAPS_LIMIT: u64 = 8 << 30;

/// Sums over the target's processes that keep growing when a process ends: each reading adds what every
/// process used since the last one.
#[derive(Default)]
pub struct TickReader {
    /// Since the first reading.
    sum: Spent,
    opened: bool,
    known: HashMap<i32, LastReading>,
    /// Used by processes that have ended, as last read, by parent. The kernel counts it a second time when
    /// the parent reaps them.
    awaited: HashMap<i32, Spent>,
    switches: (u64, u64),
    /// The counts of the threads of the last reading. Above a number of threads they are not summed, because the
    /// kernel keeps them per thread only.
    threads: HashMap<i32, (u64, u64)>,
    switches_missed: bool,
    /// Readings that were requested, and those that were complete.
    asked: usize,
    read: usize,
    unread: Option<Absence>,
    sizes: Missed,
    smaps: Missed,
    pace: Pace,
    host: Option<Absence>,
}

/// What the kernel counts for a process: CPU time in clock ticks, and faults.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
struct Spent {
    user: u64,
    system: u64,
    minor: u64,
    major: u64,
}

impl Spent {
    fn of(self, other: Spent, each: impl Fn(u64, u64) -> u64) -> Spent {
        Spent {
            user: each(self.user, other.user),
            system: each(self.system, other.system),
            minor: each(self.minor, other.minor),
            major: each(self.major, other.major),
        }
    }

    fn plus(self, other: Spent) -> Spent {
        self.of(other, u64::saturating_add)
    }

    fn minus(self, other: Spent) -> Spent {
        self.of(other, u64::saturating_sub)
    }

    fn at_most(self, other: Spent) -> Spent {
        self.of(other, u64::min)
    }
}

/// A process at its last reading.
struct LastReading {
    start_ticks: u64,
    parent: i32,
    own: Spent,
    /// Of children that were waited for.
    children: Spent,
}

impl LastReading {
    fn of(stat: &ProcessStat) -> LastReading {
        LastReading {
            start_ticks: stat.start_ticks,
            parent: stat.ppid,
            own: Spent {
                user: stat.user_ticks,
                system: stat.system_ticks,
                minor: stat.minor_faults,
                major: stat.major_faults,
            },
            children: Spent {
                user: stat.child_user_ticks,
                system: stat.child_system_ticks,
                minor: stat.child_minor_faults,
                major: stat.child_major_faults,
            },
        }
    }
}

/// With more threads than this, threads are not read one by one at every tick.
pub const THREADS_ASKED: usize = 64;

impl TickReader {
    /// `deep`: with smaps_rollup in any case. Later readings have it as often as it is cheap.
    ///
    /// # Errors
    /// The counters of a process could not be read. The sums would be too low, and a later reading would take
    /// its earlier use for new use. A process that has ended is not an error.
    pub fn read(
        &mut self,
        proc: &ProcFs,
        pids: &[i32],
        t_ns: u64,
        cgroup: Option<CgroupTick>,
        deep: bool,
    ) -> Measured<Tick> {
        self.asked += 1;
        let tick = self.read_whole(proc, pids, t_ns, cgroup, deep);
        match &tick {
            Ok(_) => self.read += 1,
            Err(absence) => _ = self.unread.get_or_insert_with(|| absence.clone()),
        }
        tick
    }

    fn read_whole(
        &mut self,
        proc: &ProcFs,
        pids: &[i32],
        t_ns: u64,
        cgroup: Option<CgroupTick>,
        deep: bool,
    ) -> Measured<Tick> {
        let mut tick = Tick { t_ns, cgroup, ..Tick::default() };
        let memory = self.read_processes(proc, pids, &mut tick)?;
        let mut sizes = (0, 0);
        let read = of_all(
            &memory,
            |pid| proc.status(pid),
            |status| {
                raise(&mut sizes.0, status.rss_anon.unwrap_or(0));
                raise(&mut sizes.1, status.vm_data.unwrap_or(0));
            },
        );
        if self.sizes.note(read) {
            (tick.anonymous, tick.vm_data) = (Some(sizes.0), Some(sizes.1));
        }
        if (tick.threads as usize) <= THREADS_ASKED {
            // After a thread was missed, its earlier switches can't be separated from the new ones.
            self.switches_missed |= self.read_switches(proc, pids).is_err();
            if !self.switches_missed {
                tick.voluntary_switches = Some(self.switches.0);
                tick.involuntary_switches = Some(self.switches.1);
            }
        }
        let due = deep || self.pace.allows(t_ns, tick.resident);
        if due && tick.resident <= SMAPS_LIMIT {
            self.read_page_tables(proc, &memory, &mut tick);
        }
        match proc.host_tick() {
            Ok(host) => tick.host = Some(host),
            Err(absence) => _ = self.host.get_or_insert(absence),
        }
        Ok(tick)
    }

    /// Reads what every process used. Returns the processes, or their living threads, that show the memory.
    fn read_processes(&mut self, proc: &ProcFs, pids: &[i32], tick: &mut Tick) -> Measured<Vec<i32>> {
        let mut seen = HashMap::new();
        let mut memory = Vec::new();
        let mut forbidden = None;
        for &pid in pids {
            let stat = match proc.process_stat(pid) {
                Ok(stat) => stat,
                Err(absence) if absence.is_gone() => continue,
                // This lasts for the whole window; the others still count.
                Err(absence) if absence.reason == Reason::NotPermitted => {
                    forbidden = Some(absence);
                    continue;
                }
                Err(absence) => return Err(absence),
            };
            seen.insert(pid, LastReading::of(&stat));
            let resident = stat.resident_pages.saturating_mul(proc.page_bytes());
            tick.threads = tick.threads.saturating_add(stat.threads);
            tick.resident = tick.resident.saturating_add(resident);
            tick.vm_size = tick.vm_size.saturating_add(stat.virtual_bytes);
            memory.push(match stat.ended() {
                true => proc.living_thread(pid),
                false => pid,
            });
        }
        if let Some(absence) = forbidden {
            if seen.is_empty() {
                return Err(absence);
            }
            self.unread.get_or_insert(absence);
        }
        self.add(seen);
        tick.user_ns = self.sum.user.saturating_mul(proc.ns_per_tick());
        tick.system_ns = self.sum.system.saturating_mul(proc.ns_per_tick());
        tick.minor_faults = self.sum.minor;
        tick.major_faults = self.sum.major;
        Ok(memory)
    }

    fn read_page_tables(&mut self, proc: &ProcFs, pids: &[i32], tick: &mut Tick) {
        let mut sum = Smaps::default();
        let read_all = || of_all(pids, |pid| proc.smaps_rollup(pid), |smaps| add_smaps(&mut sum, &smaps));
        let read = self.pace.timed(tick.t_ns, tick.resident, read_all);
        tick.smaps = self.smaps.note(read).then_some(sum);
    }

    pub fn smaps_cost(&self) -> SmapsCost {
        self.pace.cost()
    }

    /// The probes with missing values.
    pub fn probes(&self) -> Vec<Probe> {
        let counters = self.unread.clone().map(|mut absence| {
            if self.read < 2 {
                return ProbeState::Absent(absence);
            }
            if self.read < self.asked {
                let missed = self.asked - self.read;
                absence.detail += &format!(": {missed} of {} readings were incomplete", self.asked);
            }
            ProbeState::Partial(absence)
        });
        let host = self.host.clone().map(ProbeState::Partial);
        [
            (ProbeName::Counters, counters),
            (ProbeName::Sizes, self.sizes.0.clone()),
            (ProbeName::Smaps, self.smaps.0.clone()),
            (ProbeName::Host, host),
        ]
        .into_iter()
        .filter_map(|(name, state)| Some(Probe::new(name, state?)))
        .collect()
    }

    /// Adds the processes of this reading. Those of the first reading are the base. A process that appears
    /// later was started since, and counts from its start.
    fn add(&mut self, seen: HashMap<i32, LastReading>) {
        // Processes that ended come first: an ancestor may have reaped one already, if its parent ended as
        // well.
        let gone: HashMap<i32, LastReading> = self
            .known
            .extract_if(|pid, before| seen.get(pid).is_none_or(|now| now.start_ticks != before.start_ticks))
            .collect();
        for (pid, before) in &gone {
            let mut ancestor = before.parent;
            for _ in 0..gone.len() {
                let Some(ended) = gone.get(&ancestor) else { break };
                ancestor = ended.parent;
            }
            let before = before.own.plus(before.children);
            let passed_on = self.awaited.remove(pid).unwrap_or_default();
            let awaited = self.awaited.entry(ancestor).or_default();
            *awaited = awaited.plus(before).plus(passed_on);
        }
        self.awaited.retain(|parent, _| seen.contains_key(parent));
        for (pid, now) in seen {
            let before = self.known.get(&pid);
            let (own, children) = match before {
                Some(before) => (before.own, before.children),
                None if !self.opened => (now.own, now.children),
                None => (Spent::default(), Spent::default()),
            };
            let reaped = now.children.minus(children);
            let awaited = self.awaited.entry(pid).or_default();
            let known_already = reaped.at_most(*awaited);
            *awaited = awaited.minus(known_already);
            self.sum = self.sum.plus(now.own.minus(own)).plus(reaped.minus(known_already));
            self.known.insert(pid, now);
        }
        self.opened = true;
    }

    fn read_switches(&mut self, proc: &ProcFs, pids: &[i32]) -> Measured<()> {
        // A thread that the last reading did not find has started since, even if its number was known before.
        let known = std::mem::take(&mut self.threads);
        for &pid in pids {
            for tid in unless_gone(proc.threads(pid))?.unwrap_or_default() {
                if let Some(status) = unless_gone(proc.thread_status(pid, tid))?
                    && let (Some(v), Some(i)) = (status.voluntary_switches, status.involuntary_switches)
                {
                    self.threads.insert(tid, (v, i));
                    // A thread number that was used before starts again from zero.
                    let (before_v, before_i) = known
                        .get(&tid)
                        .copied()
                        .filter(|before| before.0 <= v && before.1 <= i)
                        .unwrap_or_default();
                    raise(&mut self.switches.0, v - before_v);
                    raise(&mut self.switches.1, i - before_i);
                }
            }
        }
        Ok(())
    }
}

/// A process or thread that has ended is not an error.
fn unless_gone<T>(read: Measured<T>) -> Measured<Option<T>> {
    match read {
        Err(absence) if absence.is_gone() => Ok(None),
        read => read.map(Some),
    }
}

/// The result of reading one file from several processes.
enum OfAll {
    Whole,
    /// Some processes may not be read; the others were.
    Part(Absence),
    None(Absence),
}

/// Passes each process's value to `take`.
fn of_all<T>(pids: &[i32], read: impl Fn(i32) -> Measured<T>, mut take: impl FnMut(T)) -> OfAll {
    let (mut values, mut forbidden) = (0, None);
    for &pid in pids {
        match read(pid) {
            Ok(value) => {
                values += 1;
                take(value);
            }
            // It ended in the meantime. If other processes have the file, this kernel has it.
            Err(absence) if absence.reason == Reason::Vanished => {}
            Err(absence) if absence.reason == Reason::NotPermitted => forbidden = Some(absence),
            Err(absence) => return OfAll::None(absence),
        }
    }
    match forbidden {
        Some(absence) if values == 0 => OfAll::None(absence),
        Some(absence) => OfAll::Part(absence),
        None if values == 0 => OfAll::None(Absence::new(Reason::Vanished, "the target is gone")),
        None => OfAll::Whole,
    }
}

/// Why one file of several processes could not be read of all of them.
#[derive(Default)]
struct Missed(Option<ProbeState>);

impl Missed {
    /// Records the result; true if there is a sum to keep.
    fn note(&mut self, read: OfAll) -> bool {
        let (has_sum, missed) = match read {
            OfAll::Whole => (true, None),
            OfAll::Part(absence) => (true, Some(ProbeState::Partial(absence))),
            // The end of the target is reported once, not for each of its figures.
            OfAll::None(absence) if absence.reason == Reason::Vanished => (false, None),
            OfAll::None(absence) => (false, Some(ProbeState::Absent(absence))),
        };
        self.0 = self.0.take().or(missed);
        has_sum
    }
}

/// Adds without overflow, whatever /proc contains.
fn raise(sum: &mut u64, by: u64) {
    *sum = sum.saturating_add(by);
}

fn add_smaps(sum: &mut Smaps, s: &Smaps) {
    raise(&mut sum.rss, s.rss);
    raise(&mut sum.pss, s.pss);
    raise(&mut sum.anonymous, s.anonymous);
    raise(&mut sum.lazy_free, s.lazy_free);
    raise(&mut sum.anon_huge, s.anon_huge);
    raise(&mut sum.hugetlb, s.hugetlb);
    raise(&mut sum.swap, s.swap);
}

/// The most threads of which times are kept. A program that starts a thread for each request may have millions.
const THREADS_KEPT: usize = 128 << 10;

/// Exact CPU time and run delay of each thread, as differences of the kernel's counters. A thread that started and
/// ended between two readings has none: only the times of its process contain its own.
#[derive(Default)]
pub struct ThreadClock {
    threads: BTreeMap<(i32, i32), Watched>,
    /// The time of the last reading.
    read_t: Option<u64>,
    /// That reading missed no thread, so a new thread was started since then.
    whole: bool,
    alive: usize,
    missed: Option<Absence>,
}

/// A thread number, and the times of the threads that had it.
struct Watched {
    /// The name of the latest one.
    comm: String,
    /// When that one started, in clock ticks since boot. With the number it identifies a thread. None: not read.
    start_ticks: Option<u64>,
    earlier: Span,
    first_t: u64,
    last_t: u64,
    /// CPU time and run delay.
    first: (u64, u64),
    last: (u64, u64),
    delay_known: bool,
}

/// The times of threads, in nanoseconds.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
struct Span {
    seen: u64,
    cpu: u64,
    delay: u64,
}

impl Watched {
    fn new(t_ns: u64, first: (u64, u64), last: (u64, u64)) -> Watched {
        Watched {
            comm: String::new(),
            start_ticks: None,
            earlier: Span::default(),
            first_t: t_ns,
            last_t: t_ns,
            first,
            last,
            delay_known: false,
        }
    }

    /// Of all threads that had the number.
    fn span(&self) -> Span {
        Span {
            seen: self.earlier.seen.saturating_add(self.last_t - self.first_t),
            cpu: self.earlier.cpu.saturating_add(self.last.0.saturating_sub(self.first.0)),
            delay: self.earlier.delay.saturating_add(self.last.1.saturating_sub(self.first.1)),
        }
    }

    /// Counts on from `first` at `first_t`.
    fn begin(&mut self, first_t: u64, first: (u64, u64)) {
        self.earlier = self.span();
        (self.first_t, self.first) = (first_t, first);
    }

    /// Takes counters that have moved. `start_ticks` is that of the thread that has the number now. `absent`: no
    /// thread had it at the last reading.
    fn take(&mut self, t_ns: u64, now: (u64, u64), start_ticks: Option<u64>, absent: bool) {
        let fell = now.0 < self.last.0 || now.1 < self.last.1;
        let same = self.start_ticks.zip(start_ticks).map(|(before, now)| before == now);
        match same {
            // A thread that calls exec takes the number and the start of the first thread (de_thread, fs/exec.c). Its
            // own counters were those of another number so far.
            Some(true) if fell => self.begin(self.last_t, now),
            Some(true) => {}
            // Another thread, which started after the last reading of the number.
            Some(false) => self.begin(t_ns, (0, 0)),
            None if fell || absent => self.begin(t_ns, (0, 0)),
            None => {}
        }
        self.last = now;
    }
}

impl ThreadClock {
    /// The last reading, for processes that are still alive. If it finds none of their threads, their use
    /// since the previous reading is unknown.
    pub fn close(&mut self, proc: &ProcFs, pids: &[i32], t_ns: u64) {
        if self.read(proc, pids, t_ns) == 0 {
            let detail = "none of the target's threads could be read at the end of the window";
            self.missed.get_or_insert(Absence::new(Reason::Vanished, detail));
        }
    }

    /// Reads every thread of `pids` and returns their number. Threads that were not there at the last reading
    /// count from their start.
    pub fn read(&mut self, proc: &ProcFs, pids: &[i32], t_ns: u64) -> usize {
        let born_since = self.whole;
        let last_reading = self.read_t.replace(t_ns);
        self.whole = true;
        let mut count = 0;
        for &pid in pids {
            let tids = self.value_or_note(proc.threads(pid)).unwrap_or_default();
            for tid in tids {
                let Some(stat) = self.value_or_note(proc.thread_schedstat(pid, tid)) else {
                    continue;
                };
                count += 1;
                let now = (stat.cpu_ns, stat.run_delay_ns);
                let full = self.threads.len() >= THREADS_KEPT;
                let (watched, known) = match self.threads.entry((pid, tid)) {
                    Entry::Occupied(known) => (known.into_mut(), true),
                    Entry::Vacant(_) if full => {
                        self.missed.get_or_insert_with(too_many);
                        continue;
                    }
                    Entry::Vacant(new) => {
                        let first = if born_since { (0, 0) } else { now };
                        (new.insert(Watched::new(t_ns, first, now)), false)
                    }
                };
                // A thread whose counters have not moved is still the same one.
                if watched.start_ticks.is_none() || watched.last != now {
                    let thread = proc.thread_stat(pid, tid).ok();
                    let start_ticks = thread.as_ref().map(|thread| thread.start_ticks);
                    if known && watched.last != now {
                        let absent = born_since && Some(watched.last_t) != last_reading;
                        watched.take(t_ns, now, start_ticks, absent);
                    }
                    watched.start_ticks = start_ticks;
                    // A thread gets its name after it has started.
                    if let Some(thread) = thread {
                        watched.comm = thread.comm;
                    }
                }
                watched.last_t = t_ns;
                watched.delay_known |= stat.timeslices > 0 || stat.run_delay_ns > 0;
            }
        }
        self.alive = count;
        count
    }

    /// The value, or None after the reason was noted.
    fn value_or_note<T>(&mut self, read: Measured<T>) -> Option<T> {
        let absence = match read {
            Ok(value) => return Some(value),
            Err(absence) => absence,
        };
        if !absence.is_gone() {
            self.whole = false;
            self.missed.get_or_insert(absence);
        }
        None
    }

    /// Why some threads were not read; None if all were.
    pub fn probe(&self) -> Option<Probe> {
        let absence = self.missed.clone()?;
        let state = match self.threads.is_empty() {
            true => ProbeState::Absent(absence),
            false => ProbeState::Partial(absence),
        };
        Some(Probe::new(ProbeName::RunDelay, state))
    }

    /// CPU time of the threads of a process, from the first reading of each to the last.
    pub fn cpu_ns(&self, pid: i32) -> u64 {
        let own = self.threads.range((pid, i32::MIN)..=(pid, i32::MAX));
        own.fold(0, |sum, (_, watched)| sum.saturating_add(watched.span().cpu))
    }

    /// The number of threads that the last reading found.
    pub fn alive(&self) -> usize {
        self.alive
    }

    pub fn finish(self) -> Vec<ThreadTimes> {
        self.threads
            .into_iter()
            .map(|((pid, tid), watched)| {
                let Span { seen, cpu, delay } = watched.span();
                let run_delay_ns = watched.delay_known.then_some(delay);
                ThreadTimes { pid, tid, comm: watched.comm, seen_ns: seen, cpu_ns: cpu, run_delay_ns }
            })
            .collect()
    }
}

fn too_many() -> Absence {
    let detail = format!("the times of some threads are missing: more than {THREADS_KEPT} were read");
    Absence::new(Reason::TooCostly, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_time_of_a_process_is_that_of_its_threads() {
        let watched = |first: u64, last: u64| Watched::new(0, (first, 0), (last, 0));
        let threads = [((6, i32::MAX), (0, 50)), ((7, 7), (5, 9)), ((7, 9), (0, 2)), ((8, 8), (0, 100))];
        let threads = threads.map(|(thread, (first, last))| (thread, watched(first, last)));
        let clock = ThreadClock { threads: threads.into(), ..ThreadClock::default() };
        assert_eq!((clock.cpu_ns(7), clock.cpu_ns(8), clock.cpu_ns(9)), (6, 100, 0));
    }

    fn known(parent: i32, user: u64, children: u64) -> LastReading {
        let spent = |user| Spent { user, ..Spent::default() };
        LastReading { start_ticks: 1, parent, own: spent(user), children: spent(children) }
    }

    /// The sum of user time after each reading.
    fn sums(readings: Vec<Vec<(i32, LastReading)>>) -> Vec<u64> {
        let mut reader = TickReader::default();
        let mut sums = Vec::new();
        for reading in readings {
            reader.add(reading.into_iter().collect());
            sums.push(reader.sum.user);
        }
        sums
    }

    #[test]
    fn the_end_of_an_old_process_does_not_stop_the_counts_of_others() {
        let grown = sums(vec![
            vec![(1, known(0, 1_000_000, 0)), (2, known(0, 10, 0))],
            vec![(1, known(0, 1_000_005, 0)), (2, known(0, 20, 0))],
            vec![(2, known(0, 30, 0))],
            vec![(2, known(0, 40, 0))],
        ]);
        assert_eq!(grown, [0, 15, 25, 35]);
    }

    #[test]
    fn a_child_is_counted_once() {
        let grown = sums(vec![
            vec![(1, known(0, 100, 50))],
            vec![(1, known(0, 101, 50)), (2, known(1, 7, 0))],
            // Ended, not yet reaped.
            vec![(1, known(0, 102, 50))],
            // Reaped: 9 of a process that was last read at 7, and 4 of a process that was never read.
            vec![(1, known(0, 103, 63))],
            vec![(1, known(0, 104, 68))],
        ]);
        assert_eq!(grown, [0, 8, 9, 16, 22]);
    }

    #[test]
    fn a_parent_that_ends_with_its_child_is_counted_once() {
        let grown = sums(vec![
            vec![(1, known(0, 0, 0))],
            vec![(1, known(0, 0, 0)), (2, known(1, 3, 0)), (3, known(2, 100, 0))],
            vec![(1, known(0, 0, 105))],
        ]);
        assert_eq!(grown, [0, 103, 105]);
    }

    /// A /proc of one process with the given counters; None makes the counters unreadable.
    fn fake(pid: i32, ticks: Option<u64>) -> (ProcFs, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        write_stat(dir.path(), pid, ticks);
        (ProcFs::at(dir.path()), dir)
    }

    fn write_stat(root: &std::path::Path, pid: i32, ticks: Option<u64>) {
        let path = root.join(format!("{pid}/stat"));
        let _ = std::fs::remove_dir(&path);
        let Some(t) = ticks else {
            // A folder can be opened but not read: neither gone nor forbidden.
            let _ = std::fs::remove_file(&path);
            return std::fs::create_dir_all(path).unwrap();
        };
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let line = format!(
            "{pid} (x) S 1 1 1 0 -1 0 {t} 0 {t} 0 {t} {t} 0 0 20 0 1 0 9 {} {} 3 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0\n",
            u64::MAX,
            u64::MAX
        );
        std::fs::write(path, line).unwrap();
    }

    #[test]
    fn differences_of_counters_of_any_size_are_correct() {
        for base in [0, 1 << 40, 1 << 62, u64::MAX - 10] {
            let (proc, dir) = fake(7, Some(base));
            let mut reader = TickReader::default();
            let first = reader.read(&proc, &[7], 0, None, true).unwrap();
            write_stat(dir.path(), 7, Some(base + 5));
            let last = reader.read(&proc, &[7], 1, None, true).unwrap();
            assert_eq!((first.user_ns, first.minor_faults), (0, 0), "{base}");
            assert_eq!(
                (last.user_ns, last.system_ns, last.major_faults),
                (5 * proc.ns_per_tick(), 5 * proc.ns_per_tick(), 5),
                "{base}"
            );
            assert_eq!(last.resident, u64::MAX);
        }
    }

    #[test]
    fn unreadable_counters_are_neither_zero_nor_the_end() {
        let (proc, dir) = fake(7, Some(1_000));
        let mut reader = TickReader::default();
        let mut read = |ticks| {
            write_stat(dir.path(), 7, ticks);
            reader.read(&proc, &[7], 0, None, false).map(|tick| tick.minor_faults)
        };
        assert_eq!(read(Some(1_000)), Ok(0));
        assert_eq!(read(None).unwrap_err().reason, Reason::NotSupported);
        assert_eq!(read(Some(1_003)), Ok(3), "earlier use must not count as new use");
        let probes = reader.probes();
        let counters = probes.iter().find(|p| p.name == ProbeName::Counters).unwrap();
        assert!(
            matches!(&counters.state, ProbeState::Partial(a) if a.detail.contains("1 of 3 ")),
            "{counters:?}"
        );
        // Unreadable at first: its earlier use is unknown too.
        let (proc, dir) = fake(7, None);
        let mut reader = TickReader::default();
        assert!(reader.read(&proc, &[7], 0, None, false).is_err());
        assert!(matches!(&reader.probes()[0].state, ProbeState::Absent(_)));
        write_stat(dir.path(), 7, Some(1_000));
        assert_eq!(reader.read(&proc, &[7], 0, None, false).unwrap().minor_faults, 0);
    }

    /// The times in seconds at which smaps_rollup was read in a window of 15 s, and what that cost, if one reading takes `ns`.
    fn smaps_read(ns: u64, processes: i32) -> (Vec<f64>, SmapsCost) {
        const FIELDS: [&str; 6] = ["Rss", "Pss", "Anonymous", "LazyFree", "AnonHugePages", "Swap"];
        let dir = tempfile::tempdir().unwrap();
        let pids: Vec<i32> = (1..=processes).collect();
        let rollup = FIELDS.map(|field| format!("{field}: 4 kB\n")).concat();
        for pid in &pids {
            write_stat(dir.path(), *pid, Some(0));
            std::fs::write(dir.path().join(format!("{pid}/smaps_rollup")), &rollup).unwrap();
        }
        let now = std::cell::Cell::new(0);
        // It is looked at before and after a reading.
        let clock = move || now.replace(now.get() + ns);
        let mut reader = TickReader { pace: Pace::by(clock), ..TickReader::default() };
        let proc = ProcFs::at(dir.path());
        let mut at = Vec::new();
        for quarter in 0..=60 {
            let t_ns = quarter * 250_000_000;
            let ends = quarter == 0 || quarter == 60;
            let mut tick = Tick { t_ns, resident: 1 << 30, ..Tick::default() };
            if ends || reader.pace.allows(t_ns, tick.resident) {
                reader.read_page_tables(&proc, &pids, &mut tick);
            }
            if let Some(smaps) = tick.smaps {
                assert_eq!(smaps.rss, 4096 * processes as u64);
                at.push(t_ns as f64 / 1e9);
            }
        }
        (at, reader.smaps_cost())
    }

    #[test]
    fn smaps_are_read_each_second_if_that_is_cheap_and_seldom_if_it_is_not() {
        let (cheap, cost) = smaps_read(100_000, 1);
        assert_eq!(cheap, (0..=15).map(f64::from).collect::<Vec<_>>());
        assert_eq!((cost.reads, cost.ns), (16, 1_600_000));
        let (dear, cost) = smaps_read(3_000_000, 1);
        assert_eq!(dear, [0.0, 6.0, 9.0, 12.0, 15.0]);
        assert_eq!((cost.reads, cost.ns), (5, 15_000_000));
        // As for a process of 100 GB.
        assert_eq!(smaps_read(300_000_000, 1).0, [0.0, 15.0]);
        // All processes together are one reading.
        assert_eq!(smaps_read(3_000_000, 200).0, dear);
    }

    #[test]
    fn a_thread_that_was_missed_counts_from_when_it_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let proc = ProcFs::at(dir.path());
        let path = |tid: i32| dir.path().join(format!("7/task/{tid}/schedstat"));
        let write = |tid, cpu: u64| {
            std::fs::create_dir_all(path(tid).parent().unwrap()).unwrap();
            let _ = std::fs::remove_dir(path(tid));
            std::fs::write(path(tid), format!("{cpu} 0 1\n")).unwrap();
        };
        write(7, 100);
        std::fs::create_dir_all(path(8)).unwrap();
        let mut clock = ThreadClock::default();
        clock.read(&proc, &[7], 0);
        assert!(clock.probe().is_some());
        write(8, 5_000);
        clock.read(&proc, &[7], 10);
        write(9, 3);
        clock.read(&proc, &[7], 20);
        let cpu: Vec<u64> = clock.finish().iter().map(|t| t.cpu_ns).collect();
        assert_eq!(cpu, [0, 0, 3], "the last thread was started after a complete reading");
    }

    /// Process 7 in a /proc of its own.
    struct Threads(tempfile::TempDir);

    impl Threads {
        fn place() -> (Threads, ProcFs) {
            let dir = tempfile::tempdir().unwrap();
            let proc = ProcFs::at(dir.path());
            (Threads(dir), proc)
        }

        fn put(&self, tid: i32, name: &str, text: &str) {
            let folder = self.0.path().join(format!("7/task/{tid}"));
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join(name), text).unwrap();
        }

        /// A thread that started at `start` and has used `cpu`; its run delay is a tenth of that.
        fn run(&self, tid: i32, start: u64, cpu: u64) {
            self.put(tid, "schedstat", &format!("{cpu} {} 1\n", cpu / 10));
            let stat = format!(
                "{tid} (t{start}) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {start} 0 0 3 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0\n"
            );
            self.put(tid, "stat", &stat);
        }

        fn end(&self, tid: i32) {
            std::fs::remove_dir_all(self.0.path().join(format!("7/task/{tid}"))).unwrap();
        }
    }

    /// Name, time in which it existed, CPU time and run delay of each thread after readings at 0, 10, 20, ... Before
    /// each reading, one of the steps is done.
    fn times(steps: &[&dyn Fn(&Threads)]) -> Vec<(String, u64, u64, u64)> {
        let (threads, proc) = Threads::place();
        let mut clock = ThreadClock::default();
        for (n, step) in steps.iter().enumerate() {
            step(&threads);
            clock.read(&proc, &[7], 10 * n as u64);
        }
        let times = clock.finish().into_iter();
        times.map(|t| (t.comm, t.seen_ns, t.cpu_ns, t.run_delay_ns.unwrap())).collect()
    }

    #[test]
    fn both_threads_that_had_a_number_count() {
        // The second one has used more than the first one: only its start shows that it is another.
        let reused = times(&[&|t| t.run(7, 1, 1_000), &|t| t.run(7, 1, 1_500), &|t| t.run(7, 2, 4_000)]);
        assert_eq!(reused, [("t2".to_owned(), 10, 500 + 4_000, 50 + 400)]);
        // The twin: the same counters, of one thread.
        let one = times(&[&|t| t.run(7, 1, 1_000), &|t| t.run(7, 1, 1_500), &|t| t.run(7, 1, 4_000)]);
        assert_eq!(one, [("t1".to_owned(), 20, 3_000, 300)]);
    }

    #[test]
    fn a_number_without_a_thread_at_one_reading_has_another_at_the_next() {
        let gone: &dyn Fn(&Threads) = &|t| t.end(8);
        let start: &dyn Fn(&Threads) = &|t| {
            t.run(7, 1, 0);
            t.put(8, "schedstat", "1000 0 1\n");
        };
        let again: &dyn Fn(&Threads) = &|t| t.put(8, "schedstat", "1300 0 1\n");
        let cpu = |steps: &[&dyn Fn(&Threads)]| times(steps)[1].2;
        assert_eq!(cpu(&[start, gone, again]), 1_300, "the first one did not run in the window");
        // The twin: it was there at each reading.
        assert_eq!(cpu(&[start, &|_| (), again]), 300);
    }

    #[test]
    fn a_thread_that_takes_the_first_ones_number_by_exec_is_not_counted_from_its_start() {
        let steps: [&dyn Fn(&Threads); 3] =
            [&|t| t.run(7, 1, 5_000), &|t| t.run(7, 1, 900), &|t| t.run(7, 1, 1_000)];
        assert_eq!(times(&steps), [("t1".to_owned(), 20, 100, 10)]);
    }

    #[test]
    fn threads_beyond_a_number_are_reported_and_not_kept() {
        let (threads, proc) = Threads::place();
        threads.run(7, 1, 100);
        let read = |kept: usize| {
            let others = (0..kept as i32).map(|tid| ((1, tid), Watched::new(0, (0, 0), (0, 0))));
            let mut clock = ThreadClock { threads: others.collect(), ..ThreadClock::default() };
            assert_eq!(clock.read(&proc, &[7], 10), 1, "it is alive all the same");
            let reason = clock.probe().map(|probe| probe.state);
            (clock.threads.len(), reason)
        };
        assert_eq!(read(THREADS_KEPT - 1), (THREADS_KEPT, None));
        assert_eq!(read(THREADS_KEPT), (THREADS_KEPT, Some(ProbeState::Partial(too_many()))));
    }

    #[test]
    fn switches_of_a_number_that_was_free_count_from_zero() {
        let (threads, proc) = Threads::place();
        let status = |voluntary: u64| {
            threads.put(
                8,
                "status",
                &format!(
                    "Tgid:\t7\nPPid:\t1\nUid:\t0\t0\t0\t0\nThreads:\t1\nCapEff:\t0\nvoluntary_ctxt_switches:\t{voluntary}\nnonvoluntary_ctxt_switches:\t0\n"
                ),
            );
        };
        let mut reader = TickReader::default();
        let count = |reader: &mut TickReader| {
            reader.read_switches(&proc, &[7]).unwrap();
            reader.switches.0
        };
        status(10);
        assert_eq!(count(&mut reader), 10);
        status(15);
        assert_eq!(count(&mut reader), 15);
        threads.end(8);
        assert_eq!(count(&mut reader), 15);
        status(20);
        assert_eq!(count(&mut reader), 35);
    }

    #[test]
    fn a_last_reading_without_threads_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let proc = ProcFs::at(dir.path());
        let thread = dir.path().join("7/task/7");
        std::fs::create_dir_all(&thread).unwrap();
        std::fs::write(thread.join("schedstat"), "100 0 1\n").unwrap();
        for gone in [false, true] {
            let mut clock = ThreadClock::default();
            clock.read(&proc, &[7], 0);
            if gone {
                std::fs::remove_dir_all(&thread).unwrap();
            }
            clock.close(&proc, &[7], 10);
            assert_eq!(clock.probe().is_some(), gone);
        }
    }

    #[test]
    fn a_process_reaped_between_two_readings_and_a_reused_pid() {
        let mut another = known(1, 5, 0);
        another.start_ticks = 2;
        let grown = sums(vec![
            vec![(1, known(0, 0, 0)), (2, known(1, 1000, 0))],
            vec![(1, known(0, 0, 1001)), (2, another)],
        ]);
        assert_eq!(grown, [0, 6]);
    }
}
