//! The slow counters: one reading of /proc and the cgroup files for the whole target.

use super::recording::{CgroupTick, Smaps, ThreadTimes, Tick};
use crate::host::proc::{ProcFs, ProcessStat};
use std::collections::{BTreeMap, HashMap};

/// smaps_rollup and numa_maps walk the page tables with the map lock held: not on targets larger than this.
pub const SMAPS_LIMIT: u64 = 8 << 30;

/// Sums over the target's processes that go on growing when one of them ends: each reading adds what every process
/// gained since the last.
#[derive(Default)]
pub struct TickReader {
    several_nodes: bool,
    sum: Spent,
    known: HashMap<i32, Known>,
    /// Spent by members that ended, as last seen, by parent: it comes a second time when the parent reaps them.
    awaited: HashMap<i32, Spent>,
    switches: (u64, u64),
    /// Last counts of each thread; beyond a number of threads they are not summed (the kernel keeps them per thread
    /// only).
    threads: HashMap<i32, (u64, u64)>,
}

/// What the kernel adds up for a process: CPU time in clock ticks, and faults.
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

/// One process as it was last read.
struct Known {
    start_ticks: u64,
    parent: i32,
    own: Spent,
    /// Of children that were waited for.
    children: Spent,
}

impl Known {
    fn of(stat: &ProcessStat) -> Known {
        Known {
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

/// More threads than this are not asked one by one at every tick.
pub const THREADS_ASKED: usize = 64;

impl TickReader {
    pub fn new(numa_nodes: u32) -> TickReader {
        TickReader {
            several_nodes: numa_nodes > 1,
            ..TickReader::default()
        }
    }

    pub fn read(
        &mut self,
        proc: &ProcFs,
        pids: &[i32],
        t_ns: u64,
        cgroup: Option<CgroupTick>,
        deep: bool,
    ) -> Tick {
        let mut tick = Tick {
            t_ns,
            cgroup,
            ..Tick::default()
        };
        let mut seen = HashMap::new();
        for &pid in pids {
            let Ok(stat) = proc.process_stat(pid) else {
                continue;
            };
            seen.insert(pid, Known::of(&stat));
            tick.threads += stat.threads;
            tick.resident += stat.resident_pages * proc.page_bytes();
            tick.vm_size += stat.virtual_bytes;
            if let Ok(status) = proc.status(pid) {
                *tick.anonymous.get_or_insert(0) += status.rss_anon.unwrap_or(0);
                *tick.vm_data.get_or_insert(0) += status.vm_data.unwrap_or(0);
            }
        }
        self.add(seen);
        tick.user_ns = self.sum.user * proc.ns_per_tick();
        tick.system_ns = self.sum.system * proc.ns_per_tick();
        tick.minor_faults = self.sum.minor;
        tick.major_faults = self.sum.major;
        if (tick.threads as usize) <= THREADS_ASKED {
            self.read_switches(proc, pids);
            tick.voluntary_switches = Some(self.switches.0);
            tick.involuntary_switches = Some(self.switches.1);
        }
        if deep && tick.resident <= SMAPS_LIMIT {
            tick.smaps = sum_smaps(proc, pids);
            // Walking every page table for an answer that is known would be a waste.
            tick.numa_resident = self.several_nodes.then(|| sum_nodes(proc, pids)).flatten();
        }
        tick.host = proc.host_tick().ok();
        tick
    }

    /// The processes as they are at this reading. The first reading's are the base; who comes later was born since,
    /// and counts from its birth.
    fn add(&mut self, seen: HashMap<i32, Known>) {
        // First who is gone: an ancestor may have reaped it already, over its parent if that ended as well.
        let gone: HashMap<i32, Known> = self
            .known
            .extract_if(|pid, before| {
                seen.get(pid)
                    .is_none_or(|now| now.start_ticks != before.start_ticks)
            })
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
                None => (Spent::default(), Spent::default()),
            };
            let reaped = now.children.minus(children);
            let awaited = self.awaited.entry(pid).or_default();
            let known_already = reaped.at_most(*awaited);
            *awaited = awaited.minus(known_already);
            self.sum = self
                .sum
                .plus(now.own.minus(own))
                .plus(reaped.minus(known_already));
            self.known.insert(pid, now);
        }
    }

    fn read_switches(&mut self, proc: &ProcFs, pids: &[i32]) {
        for &pid in pids {
            for tid in proc.threads(pid).unwrap_or_default() {
                if let Ok(status) = proc.thread_status(pid, tid)
                    && let (Some(v), Some(i)) = (status.voluntary_switches, status.involuntary_switches)
                {
                    // A number that was used before starts again from zero.
                    let (before_v, before_i) = self
                        .threads
                        .insert(tid, (v, i))
                        .filter(|before| before.0 <= v && before.1 <= i)
                        .unwrap_or_default();
                    self.switches.0 += v - before_v;
                    self.switches.1 += i - before_i;
                }
            }
        }
    }
}

fn sum_smaps(proc: &ProcFs, pids: &[i32]) -> Option<Smaps> {
    let mut sum = None::<Smaps>;
    for &pid in pids {
        let Ok(s) = proc.smaps_rollup(pid) else { continue };
        let sum = sum.get_or_insert_default();
        sum.rss += s.rss;
        sum.pss += s.pss;
        sum.anonymous += s.anonymous;
        sum.lazy_free += s.lazy_free;
        sum.anon_huge += s.anon_huge;
        sum.hugetlb += s.hugetlb;
        sum.swap += s.swap;
    }
    sum
}

fn sum_nodes(proc: &ProcFs, pids: &[i32]) -> Option<Vec<u64>> {
    let mut sum: Option<Vec<u64>> = None;
    for &pid in pids {
        let Ok(nodes) = proc.numa_resident(pid) else {
            continue;
        };
        let sum = sum.get_or_insert_default();
        sum.resize(sum.len().max(nodes.len()), 0);
        nodes.iter().zip(sum).for_each(|(n, s)| *s += n);
    }
    sum
}

/// Exact CPU time and run delay of each thread, as differences of the kernel's own counters.
#[derive(Default)]
pub struct ThreadClock {
    threads: BTreeMap<(i32, i32), Watched>,
    opened: bool,
}

struct Watched {
    comm: String,
    first_t: u64,
    last_t: u64,
    first: (u64, u64),
    last: (u64, u64),
    delay_known: bool,
}

impl ThreadClock {
    /// Reads every thread of `pids`. Threads that were not there at the first reading count from their birth.
    pub fn read(&mut self, proc: &ProcFs, pids: &[i32], t_ns: u64) {
        for &pid in pids {
            for tid in proc.threads(pid).unwrap_or_default() {
                let Ok(stat) = proc.thread_schedstat(pid, tid) else {
                    continue;
                };
                let now = (stat.cpu_ns, stat.run_delay_ns);
                let opened = self.opened;
                let watched = self.threads.entry((pid, tid)).or_insert_with(|| Watched {
                    comm: String::new(),
                    first_t: t_ns,
                    last_t: t_ns,
                    first: if opened { (0, 0) } else { now },
                    last: now,
                    delay_known: stat.timeslices > 0 || stat.run_delay_ns > 0,
                });
                if watched.comm.is_empty() {
                    watched.comm = proc.thread_comm(pid, tid).unwrap_or_default();
                }
                // A tid that was re-used starts again from zero.
                if now.0 < watched.last.0 {
                    watched.first = (0, 0);
                }
                watched.last_t = t_ns;
                watched.last = now;
                watched.delay_known |= stat.timeslices > 0;
            }
        }
        self.opened = true;
    }

    pub fn len(&self) -> usize {
        self.threads.len()
    }

    pub fn finish(self) -> Vec<ThreadTimes> {
        self.threads
            .into_iter()
            .map(|((pid, tid), w)| ThreadTimes {
                pid,
                tid,
                comm: w.comm,
                seen_ns: w.last_t - w.first_t,
                cpu_ns: w.last.0.saturating_sub(w.first.0),
                run_delay_ns: w.delay_known.then(|| w.last.1.saturating_sub(w.first.1)),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(parent: i32, user: u64, children: u64) -> Known {
        let spent = |user| Spent {
            user,
            ..Spent::default()
        };
        Known {
            start_ticks: 1,
            parent,
            own: spent(user),
            children: spent(children),
        }
    }

    /// The sum of user time after each reading, from the first on.
    fn sums(readings: Vec<Vec<(i32, Known)>>) -> Vec<u64> {
        let mut reader = TickReader::default();
        let mut sums = Vec::new();
        for reading in readings {
            reader.add(reading.into_iter().collect());
            sums.push(reader.sum.user);
        }
        sums.iter().map(|sum| sum - sums[0]).collect()
    }

    #[test]
    fn the_end_of_one_with_a_large_past_stops_nobody_s_count() {
        let grown = sums(vec![
            vec![(1, known(0, 1_000_000, 0)), (2, known(0, 10, 0))],
            vec![(1, known(0, 1_000_005, 0)), (2, known(0, 20, 0))],
            vec![(2, known(0, 30, 0))],
            vec![(2, known(0, 40, 0))],
        ]);
        assert_eq!(grown, [0, 15, 25, 35]);
    }

    #[test]
    fn a_child_is_counted_once_whether_seen_or_not() {
        let grown = sums(vec![
            vec![(1, known(0, 100, 50))],
            vec![(1, known(0, 101, 50)), (2, known(1, 7, 0))],
            // Ended, not yet reaped.
            vec![(1, known(0, 102, 50))],
            // Reaped: 9 of the one that was seen up to 7, and 4 of one that nobody saw.
            vec![(1, known(0, 103, 63))],
            vec![(1, known(0, 104, 68))],
        ]);
        assert_eq!(grown, [0, 8, 9, 16, 22]);
    }

    #[test]
    fn a_parent_that_ends_with_its_child_passes_it_on() {
        let grown = sums(vec![
            vec![(1, known(0, 0, 0))],
            vec![(1, known(0, 0, 0)), (2, known(1, 3, 0)), (3, known(2, 100, 0))],
            vec![(1, known(0, 0, 105))],
        ]);
        assert_eq!(grown, [0, 103, 105]);
    }

    #[test]
    fn reaped_between_two_readings_or_its_number_used_again() {
        let mut another = known(1, 5, 0);
        another.start_ticks = 2;
        let grown = sums(vec![
            vec![(1, known(0, 0, 0)), (2, known(1, 1000, 0))],
            vec![(1, known(0, 0, 1001)), (2, another)],
        ]);
        assert_eq!(grown, [0, 6]);
    }
}
