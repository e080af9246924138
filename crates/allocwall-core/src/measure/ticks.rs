//! The slow counters: one reading of /proc and the cgroup files for the whole target.

use super::recording::{CgroupTick, Smaps, ThreadTimes, Tick};
use crate::host::proc::ProcFs;
use std::collections::{BTreeMap, HashMap};

/// smaps_rollup and numa_maps walk the page tables with the map lock held: not on targets larger than this.
pub const SMAPS_LIMIT: u64 = 8 << 30;

/// Sums over the target's processes, kept from going back when one ends before its parent has reaped it.
#[derive(Default)]
pub struct TickReader {
    user_ns: u64,
    system_ns: u64,
    minor: u64,
    major: u64,
    /// Threads of the target beyond which switches are not summed (the kernel keeps them per thread only).
    switches: HashMap<i32, (u64, u64)>,
}

/// More threads than this are not asked one by one at every tick.
pub const THREADS_ASKED: usize = 64;

impl TickReader {
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
        let (mut user, mut system) = (0, 0);
        for &pid in pids {
            let Ok(stat) = proc.process_stat(pid) else {
                continue;
            };
            user += (stat.user_ticks + stat.child_user_ticks) * proc.ns_per_tick();
            system += (stat.system_ticks + stat.child_system_ticks) * proc.ns_per_tick();
            tick.minor_faults += stat.minor_faults + stat.child_minor_faults;
            tick.major_faults += stat.major_faults + stat.child_major_faults;
            tick.threads += stat.threads;
            tick.resident += stat.resident_pages * proc.page_bytes();
            tick.vm_size += stat.virtual_bytes;
            if let Ok(status) = proc.status(pid) {
                *tick.anonymous.get_or_insert(0) += status.rss_anon.unwrap_or(0);
                *tick.vm_data.get_or_insert(0) += status.vm_data.unwrap_or(0);
            }
        }
        self.user_ns = self.user_ns.max(user);
        self.system_ns = self.system_ns.max(system);
        self.minor = self.minor.max(tick.minor_faults);
        self.major = self.major.max(tick.major_faults);
        tick.user_ns = self.user_ns;
        tick.system_ns = self.system_ns;
        tick.minor_faults = self.minor;
        tick.major_faults = self.major;
        if (tick.threads as usize) <= THREADS_ASKED {
            self.read_switches(proc, pids);
            let (voluntary, involuntary) = self
                .switches
                .values()
                .fold((0, 0), |(v, i), (dv, di)| (v + dv, i + di));
            tick.voluntary_switches = Some(voluntary);
            tick.involuntary_switches = Some(involuntary);
        }
        if deep && tick.resident <= SMAPS_LIMIT {
            tick.smaps = sum_smaps(proc, pids);
            tick.numa_resident = sum_nodes(proc, pids);
        }
        tick.host = proc.host_tick().unwrap_or_default();
        tick
    }

    fn read_switches(&mut self, proc: &ProcFs, pids: &[i32]) {
        for &pid in pids {
            for tid in proc.threads(pid).unwrap_or_default() {
                if let Ok(status) = proc.thread_status(pid, tid)
                    && let (Some(v), Some(i)) = (status.voluntary_switches, status.involuntary_switches)
                {
                    self.switches.insert(tid, (v, i));
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
