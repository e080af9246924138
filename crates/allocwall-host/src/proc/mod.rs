//! Reads /proc, live or a copy of it. Each reader is one open, read and close. Totals of a process are read
//! without walking its threads.

mod devices;
pub(crate) mod parse;

pub use devices::{DiskCounters, InterfaceCounters};
pub use parse::{
    CgroupLine, HugePages, MemInfo, ProcessStat, SchedStat, Status, SyscallState, is_arena_hook, pair,
};

use crate::file::{self, unparsable};
use crate::maps::{self, Kept, Mapping};
use allocwall_model::devices::{Datagrams, TcpEvents};
use allocwall_model::error::{Error, Result};
use allocwall_model::machine::{HostTick, Smaps};
use allocwall_model::units::{Absence, Measured, Reason};
use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

/// Bytes of a command line or an environment that are read; both may be megabytes.
const WORDS_LIMIT: usize = 256 << 10;
/// Up to this number of threads, children are read thread by thread. Above it, one pass over all processes is
/// cheaper.
const CHILDREN_BY_THREAD: u32 = 64;

/// /proc accepts a thread number like a process number, and shows the totals of the whole process.
///
/// # Errors
/// `pid` is a thread; the message names its process.
pub fn refuse_thread(pid: i32, status: &Status) -> Result<()> {
    if status.tgid == pid {
        return Ok(());
    }
    Err(Error::Refused(format!("{pid} is a thread of process {}; give -p {0}", status.tgid)))
}

/// The counters of a network namespace, since it was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkCounters {
    /// TCP segments, without those that were sent again.
    pub sent: u64,
    pub retransmitted: u64,
    pub events: Measured<TcpEvents>,
    pub datagrams: Measured<Datagrams>,
    pub interfaces: Measured<Vec<InterfaceCounters>>,
}

#[derive(Clone, Debug)]
pub struct ProcFs {
    root: PathBuf,
    ns_per_tick: u64,
    page_bytes: u64,
}

impl ProcFs {
    pub fn live() -> Self {
        Self::at("/proc")
    }

    /// A copy of /proc, or the /proc of a container.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        ProcFs {
            root: root.into(),
            ns_per_tick: 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1),
            page_bytes: rustix::param::page_size() as u64,
        }
    }

    /// Not a copy: the processes exist and can be read.
    pub fn is_live(&self) -> bool {
        self.root == Path::new("/proc")
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Nanoseconds of a clock tick, the unit of `ProcessStat`'s times.
    pub fn ns_per_tick(&self) -> u64 {
        self.ns_per_tick
    }

    pub fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    pub fn exists(&self, pid: i32) -> bool {
        self.root.join(pid.to_string()).is_dir()
    }

    pub fn process_stat(&self, pid: i32) -> Measured<ProcessStat> {
        let mut stat = self.process(pid, "stat", parse::process_stat)?;
        if let Some(living) = self.successor(pid, &stat)
            && let Ok(thread) = self.thread_stat(pid, living)
        {
            // The memory still exists, but no longer as the leader's.
            (stat.virtual_bytes, stat.resident_pages) = (thread.virtual_bytes, thread.resident_pages);
        }
        Ok(stat)
    }

    /// The thread whose entries below /proc show the process's memory, files and root. It is the leader, or a
    /// living thread if the leader ended first (pthread_exit in main): the leader's own entries are empty
    /// then.
    pub fn living_thread(&self, pid: i32) -> i32 {
        let stat = self.process(pid, "stat", parse::process_stat);
        stat.ok().and_then(|stat| self.successor(pid, &stat)).unwrap_or(pid)
    }

    fn successor(&self, pid: i32, leader: &ProcessStat) -> Option<i32> {
        if !leader.ended() || leader.threads <= 1 {
            return None;
        }
        let lives = |tid: &i32| self.thread_stat(pid, *tid).is_ok_and(|stat| !stat.ended());
        self.threads(pid).ok()?.into_iter().find(lives)
    }

    /// State, processor and times of one thread.
    pub fn thread_stat(&self, pid: i32, tid: i32) -> Measured<ProcessStat> {
        self.thread(pid, tid, "stat", parse::process_stat)
    }

    pub fn status(&self, pid: i32) -> Measured<Status> {
        self.process(pid, "status", parse::status)
    }

    /// The same for one thread; the counts of context switches are its own.
    pub fn thread_status(&self, pid: i32, tid: i32) -> Measured<Status> {
        self.thread(pid, tid, "status", parse::status)
    }

    /// Whether this user may inspect the process at all: maps needs the same right as all further readers.
    pub fn maps_readable(&self, pid: i32) -> Measured<()> {
        let path = self.root.join(format!("{pid}/maps"));
        // The first byte is enough; the file may be megabytes long.
        file::read_prefix(&path, 1, |_| ()).map_err(|absence| self.settled(pid, absence))
    }

    /// Whether `smaps_rollup` may be read, without the page-table walk of a read: the kernel checks the right
    /// at open (smaps_rollup_open, fs/proc/task_mmu.c).
    pub fn smaps_readable(&self, pid: i32) -> Measured<()> {
        let path = self.root.join(format!("{pid}/smaps_rollup"));
        match std::fs::File::open(&path) {
            Ok(_) => Ok(()),
            Err(error) => Err(self.settled(pid, file::absence_of(&path, &error))),
        }
    }

    /// How far this process's CLOCK_MONOTONIC is ahead of the kernel's own clock, by the offsets of its time
    /// namespace.
    pub fn own_clock_ahead_ns(&self) -> Measured<i64> {
        /// The initial time namespace (TIME_NS_INIT_INO of include/uapi/linux/nsfs.h).
        const FIRST: &str = "time:[4026531834]";
        // A kernel before 5.6, or without CONFIG_TIME_NS, has neither file.
        let own = match self.own_namespace("time") {
            Err(absence) if absence.is_gone() => return Ok(0),
            own => own?,
        };
        if own == FIRST {
            return Ok(0);
        }
        // The file holds the offsets of the namespace of this process's children (proc_timens_show_offsets).
        if self.own_namespace("time_for_children")? != own {
            return Err(Absence::new(
                Reason::NotSupported,
                "the children of this program get another time namespace, so the offset of its own clock is unknown",
            )
            .mend("start allocwall itself in that namespace: nsenter --time, or unshare --time --fork"));
        }
        let path = self.root.join("self/timens_offsets");
        file::read(&path, |bytes| {
            parse::monotonic_offset_ns(bytes).ok_or_else(|| unparsable(&path.display(), bytes))
        })
    }

    /// Of this process itself.
    pub fn own_status(&self) -> Measured<Status> {
        let path = self.root.join("self/status");
        file::read(&path, |bytes| parse::status(bytes).ok_or_else(|| unparsable(&path.display(), bytes)))
    }

    pub fn comm(&self, pid: i32) -> Measured<String> {
        self.process(pid, "comm", |bytes| Some(comm(bytes)))
    }

    /// On-CPU time, run delay and timeslices of one thread, in nanoseconds.
    pub fn thread_schedstat(&self, pid: i32, tid: i32) -> Measured<SchedStat> {
        self.thread(pid, tid, "schedstat", parse::schedstat)
    }

    /// The same of the calling thread.
    pub fn own_schedstat(&self) -> Measured<SchedStat> {
        let path = self.root.join("thread-self/schedstat");
        file::read(&path, |bytes| parse::schedstat(bytes).ok_or_else(|| unparsable(&path.display(), bytes)))
    }

    /// Needs the same right as tracing the process.
    pub fn thread_syscall(&self, pid: i32, tid: i32) -> Measured<SyscallState> {
        self.thread(pid, tid, "syscall", parse::syscall)
    }

    /// The kernel function that the thread sleeps in; None while it runs.
    pub fn thread_wchan(&self, pid: i32, tid: i32) -> Measured<Option<String>> {
        self.thread(pid, tid, "wchan", |bytes| {
            let name = String::from_utf8_lossy(bytes.trim_ascii()).into_owned();
            Some((name != "0" && !name.is_empty()).then_some(name))
        })
    }

    /// The kernel stack of one thread, leaf first; only root may read it.
    pub fn thread_kernel_stack(&self, pid: i32, tid: i32) -> Measured<Vec<String>> {
        self.thread(pid, tid, "stack", |bytes| Some(parse::kernel_stack(bytes)))
    }

    /// Threads alive now, in the order of their creation.
    pub fn threads(&self, pid: i32) -> Measured<Vec<i32>> {
        let path = self.root.join(format!("{pid}/task"));
        self.numbers_in(&path).map_err(|absence| self.settled(pid, absence))
    }

    /// The threads of these processes, with their pids, and why those of some are not known. A process that has ended has none.
    pub fn threads_of(&self, pids: &[i32]) -> (Vec<(i32, i32)>, Option<Absence>) {
        let (mut all, mut unlisted) = (Vec::new(), None);
        for &pid in pids {
            match self.threads(pid) {
                Ok(tids) => all.extend(tids.into_iter().map(|tid| (pid, tid))),
                Err(absence) if absence.is_gone() => {}
                Err(absence) => _ = unlisted.get_or_insert(absence),
            }
        }
        (all, unlisted)
    }

    /// Every process visible here.
    pub fn pids(&self) -> Measured<Vec<i32>> {
        self.numbers_in(&self.root)
    }

    /// Walks the page tables under the map lock: some milliseconds per gigabyte, during which the target
    /// cannot map memory.
    pub fn smaps_rollup(&self, pid: i32) -> Measured<Smaps> {
        self.process(pid, "smaps_rollup", parse::smaps_rollup)
    }

    /// Memory on huge pages, by mapping. As expensive as `smaps_rollup`.
    pub fn huge_pages(&self, pid: i32) -> Measured<HugePages> {
        self.process(pid, "smaps", parse::huge_pages)
    }

    /// NUMA nodes that the process's memory is bound to, as a list; None if it may come from all nodes. As
    /// expensive as `smaps_rollup`.
    pub fn bound_nodes(&self, pid: i32) -> Measured<Option<String>> {
        self.process(pid, "numa_maps", |bytes| Some(parse::bound_nodes(bytes)))
    }

    pub fn cmdline(&self, pid: i32) -> Measured<Vec<String>> {
        let path = self.root.join(format!("{pid}/cmdline"));
        file::read_prefix(&path, WORDS_LIMIT, parse::nul_words).map_err(|absence| self.settled(pid, absence))
    }

    pub fn environ(&self, pid: i32) -> Measured<Vec<(String, String)>> {
        let path = self.root.join(format!("{pid}/environ"));
        file::read_prefix(&path, WORDS_LIMIT, parse::environ).map_err(|absence| self.settled(pid, absence))
    }

    /// The target of /proc/PID/exe, as the kernel writes it.
    pub fn exe(&self, pid: i32) -> Measured<PathBuf> {
        self.link(pid, "exe")
    }

    /// Mappings that contain code. Needs the right that all further readers need.
    pub fn code(&self, pid: i32) -> Measured<Kept> {
        self.maps(pid, |mapping| mapping.perms.execute)
    }

    /// The mappings that `keep` selects, from any number of mappings.
    pub fn maps(&self, pid: i32, keep: impl Fn(&Mapping) -> bool) -> Measured<Kept> {
        let path = self.root.join(format!("{pid}/maps"));
        let mut any = Cell::new(false);
        let kept = std::fs::File::open(&path)
            .and_then(|file| {
                maps::read(file, |mapping| {
                    any.set(true);
                    keep(mapping)
                })
            })
            .map_err(|error| self.settled(pid, file::absence_of(&path, &error)))?;
        if !*any.get_mut() && kept.malformed > 0 {
            return Err(Absence::new(
                Reason::Unparsable,
                format!("/proc/{pid}/maps: no line parses as a mapping"),
            ));
        }
        let named = |mut absence: Absence| {
            absence.detail = format!("/proc/{pid}/maps was read only in part: {absence}");
            absence
        };
        Ok(Kept { cut: kept.cut.map(named), ..kept })
    }

    /// `pid`, `mnt`, `user`, …: two processes in the same namespace have the same text.
    pub fn namespace(&self, pid: i32, kind: &str) -> Measured<String> {
        let text = self.link(pid, &format!("ns/{kind}"))?;
        Ok(text.to_string_lossy().into_owned())
    }

    /// Namespace of this process itself.
    pub fn own_namespace(&self, kind: &str) -> Measured<String> {
        let path = self.root.join(format!("self/ns/{kind}"));
        let target = std::fs::read_link(&path).map_err(|error| file::absence_of(&path, &error))?;
        Ok(target.to_string_lossy().into_owned())
    }

    fn link(&self, pid: i32, name: &str) -> Measured<PathBuf> {
        let path = self.root.join(format!("{pid}/{name}"));
        std::fs::read_link(&path).map_err(|error| self.settled(pid, file::absence_of(&path, &error)))
    }

    /// Whether `/proc/kallsyms` shows addresses; hidden ones are all zero. Some x86 symbols really have
    /// address zero.
    pub fn kernel_symbols_visible(&self) -> Measured<bool> {
        const HEAD: usize = 64 << 10;
        let path = self.root.join("kallsyms");
        file::read_prefix(&path, HEAD, parse::shows_addresses)
    }

    /// `hidepid` and `subset` options of our /proc mount; None if every process is visible.
    pub fn hidden_processes(&self) -> Measured<Option<String>> {
        let path = self.root.join("self/mountinfo");
        file::read(&path, |bytes| Ok(parse::proc_restrictions(bytes)))
    }

    /// Owner of /proc/PID. It is root for a process that made itself undumpable, whoever runs it (proc(5)).
    pub fn owner(&self, pid: i32) -> Measured<u32> {
        use std::os::unix::fs::MetadataExt;
        let path = self.root.join(pid.to_string());
        let meta =
            std::fs::metadata(&path).map_err(|error| self.settled(pid, file::absence_of(&path, &error)))?;
        Ok(meta.uid())
    }

    pub fn cgroups(&self, pid: i32) -> Measured<Vec<CgroupLine>> {
        self.process(pid, "cgroup", |bytes| Some(parse::cgroup(bytes)))
    }

    /// Of this process itself.
    pub fn own_cgroups(&self) -> Measured<Vec<CgroupLine>> {
        file::read(&self.root.join("self/cgroup"), |bytes| Ok(parse::cgroup(bytes)))
    }

    /// Living processes that this one started.
    pub fn children(&self, pid: i32) -> Measured<Vec<i32>> {
        let few = self.process_stat(pid)?.threads <= CHILDREN_BY_THREAD;
        match few.then(|| self.children_by_thread(pid)) {
            Some(Some(children)) => Ok(children),
            _ => Ok(self.by_parent()?.remove(&pid).unwrap_or_default()),
        }
    }

    /// Children, their children and so on, without the process itself. A process whose parent died gets a new
    /// parent and is no longer found, so a caller that follows a tree must remember its members.
    pub fn descendants(&self, pid: i32) -> Measured<Vec<i32>> {
        self.process_stat(pid)?;
        // One pass over all processes serves every process that is not read thread by thread.
        let mut by_parent: Option<HashMap<i32, Vec<i32>>> = None;
        let mut found = Vec::new();
        let mut seen = HashSet::from([pid]);
        let mut next = Some(pid);
        let mut asked = 0;
        while let Some(parent) = next {
            // A process that ended between the two reads has no children any more.
            let stat = match self.process_stat(parent) {
                Err(absence) if absence.is_gone() => None,
                stat => Some(stat?),
            };
            if let Some(stat) = stat {
                let few = stat.threads <= CHILDREN_BY_THREAD;
                let children = match few.then(|| self.children_by_thread(parent)).flatten() {
                    Some(children) => children,
                    None => {
                        if by_parent.is_none() {
                            by_parent = Some(self.by_parent()?);
                        }
                        let children = by_parent.as_ref().and_then(|all| all.get(&parent));
                        children.cloned().unwrap_or_default()
                    }
                };
                found.extend(children.into_iter().filter(|&child| seen.insert(child)));
            }
            next = found.get(asked).copied();
            asked += 1;
        }
        Ok(found)
    }

    /// None if the kernel was built without CONFIG_PROC_CHILDREN.
    fn children_by_thread(&self, pid: i32) -> Option<Vec<i32>> {
        let mut children = Vec::new();
        for tid in self.threads(pid).ok()? {
            let read = self.thread(pid, tid, "children", |bytes| {
                file::words(bytes).map(file::number::<i32>).collect::<Option<Vec<_>>>()
            });
            match read {
                Ok(found) => children.extend(found),
                Err(absence) if absence.reason == Reason::Vanished => {}
                Err(_) => return None,
            }
        }
        Some(children)
    }

    /// Every visible process, by its parent.
    fn by_parent(&self) -> Measured<HashMap<i32, Vec<i32>>> {
        let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
        for pid in self.pids()? {
            match self.process(pid, "stat", parse::process_stat) {
                Ok(stat) => children.entry(stat.ppid).or_default().push(pid),
                // Without descriptors, any process may be a child. A process that allocwall may not read is
                // not part of the target.
                Err(absence) if absence.reason == Reason::Exhausted => return Err(absence),
                Err(_) => {}
            }
        }
        Ok(children)
    }

    /// Machine-wide counters. PSI and vmstat fields are None if the kernel lacks them.
    /// The idle time of each CPU since the boot: only differences are meaningful.
    pub fn idle_times_ns(&self) -> Measured<Vec<(u32, u64)>> {
        let stat = self.root.join("stat");
        file::read(&stat, |bytes| {
            let idle = parse::idle_times(bytes, self.ns_per_tick);
            if idle.is_empty() { Err(unparsable(&stat.display(), bytes)) } else { Ok(idle) }
        })
    }

    pub fn host_tick(&self) -> Measured<HostTick> {
        let stat = self.root.join("stat");
        let mut tick = file::read(&stat, |bytes| {
            parse::cpu_times(bytes, self.ns_per_tick).ok_or_else(|| unparsable(&stat.display(), bytes))
        })?;
        tick.psi_cpu_us = self.pressure("cpu").ok();
        tick.psi_memory_us = self.pressure("memory").ok();
        tick.psi_io_us = self.pressure("io").ok();
        // Without the file, the counters stay None.
        let _ = file::read(&self.root.join("vmstat"), |bytes| {
            parse::vmstat(bytes, &mut tick);
            Ok(())
        });
        Ok(tick)
    }

    /// PSI: time in which some task waited for `cpu`, `memory` or `io`, microseconds since boot.
    pub fn pressure(&self, resource: &str) -> Measured<u64> {
        let path = self.root.join("pressure").join(resource);
        file::read(&path, |bytes| {
            parse::pressure_some(bytes).ok_or_else(|| unparsable(&path.display(), bytes))
        })
        .map_err(|absence| match absence.reason {
            // With psi=0 or CONFIG_PSI_DEFAULT_DISABLED the read fails with EOPNOTSUPP; a kernel without PSI
            // has no file.
            Reason::NotFound | Reason::NotSupported => {
                Absence::new(Reason::Disabled, "pressure stall information (PSI) is off in this kernel")
                    .mend("boot with psi=1")
            }
            _ => absence,
        })
    }

    /// The disks of the machine. Empty if the file lists none. `sys` is `/sys`, or a copy of it.
    pub fn disks(&self, sys: &Path) -> Measured<Vec<DiskCounters>> {
        let path = self.root.join("diskstats");
        let disks = file::read(&path, |bytes| {
            devices::disks(bytes).ok_or_else(|| unparsable(&path.display(), bytes))
        });
        Ok(devices::counted_once(disks?, sys))
    }

    /// A number of the process's network namespace. Everybody may read it, unlike `ns/net`: each namespace has its own files,
    /// with their own inodes (proc_register, fs/proc/generic.c).
    pub fn network_namespace(&self, pid: i32) -> Measured<u64> {
        use std::os::unix::fs::MetadataExt;
        let path = self.root.join(format!("{pid}/net/snmp"));
        let meta =
            std::fs::metadata(&path).map_err(|error| self.settled(pid, file::absence_of(&path, &error)))?;
        Ok(meta.ino())
    }

    /// Of the process's network namespace.
    pub fn network(&self, pid: i32) -> Measured<NetworkCounters> {
        let both = |bytes: &[u8]| Some((devices::tcp_segments(bytes)?, devices::datagrams(bytes)));
        let ((sent, retransmitted), datagrams) = self.process(pid, "net/snmp", both)?;
        Ok(NetworkCounters {
            sent,
            retransmitted,
            events: self.process(pid, "net/netstat", devices::tcp_events),
            datagrams: self.datagrams(pid, datagrams),
            interfaces: self.process(pid, "net/dev", devices::interfaces),
        })
    }

    /// With those of IPv6, which has a file of its own.
    fn datagrams(&self, pid: i32, v4: Option<Datagrams>) -> Measured<Datagrams> {
        let unnamed =
            || Absence::new(Reason::NotFound, format!("/proc/{pid}/net/snmp has no counters of UDP"));
        let v4 = v4.ok_or_else(unnamed)?;
        let v6 = match self.process(pid, "net/snmp6", devices::datagrams_v6) {
            // A kernel or a namespace without IPv6.
            Err(absence) if absence.reason == Reason::NotFound => Datagrams::default(),
            v6 => v6?,
        };
        Ok(Datagrams {
            received: v4.received.wrapping_add(v6.received),
            sent: v4.sent.wrapping_add(v6.sent),
            dropped: v4.dropped.wrapping_add(v6.dropped),
            overflows: v4.overflows.wrapping_add(v6.overflows),
        })
    }

    pub fn meminfo(&self) -> Measured<MemInfo> {
        let path = self.root.join("meminfo");
        file::read(&path, |bytes| parse::meminfo(bytes).ok_or_else(|| unparsable(&path.display(), bytes)))
    }

    pub fn cpu_model(&self) -> Measured<String> {
        let path = self.root.join("cpuinfo");
        file::read(&path, |bytes| parse::cpu_model(bytes).ok_or_else(|| unparsable(&path.display(), bytes)))
    }

    /// A one-line file below /proc/sys, for example `kernel/perf_event_paranoid`.
    pub fn sysctl<T: std::str::FromStr>(&self, name: &str) -> Measured<T> {
        file::read_number(&self.root.join("sys").join(name))
    }

    pub fn sysctl_text(&self, name: &str) -> Measured<String> {
        file::read_line(&self.root.join("sys").join(name))
    }

    fn process<T>(&self, pid: i32, name: &str, parse: impl FnOnce(&[u8]) -> Option<T>) -> Measured<T> {
        self.read(pid, self.root.join(format!("{pid}/{name}")), parse)
    }

    fn thread<T>(
        &self,
        pid: i32,
        tid: i32,
        name: &str,
        parse: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Measured<T> {
        let path = self.root.join(format!("{pid}/task/{tid}/{name}"));
        self.read(pid, path, parse).map_err(|absence| {
            let gone =
                absence.reason == Reason::NotFound && !self.root.join(format!("{pid}/task/{tid}")).is_dir();
            if gone { vanished(&format_args!("thread {tid} of process {pid}")) } else { absence }
        })
    }

    fn read<T>(&self, pid: i32, path: PathBuf, parse: impl FnOnce(&[u8]) -> Option<T>) -> Measured<T> {
        file::read(&path, |bytes| parse(bytes).ok_or_else(|| unparsable(&path.display(), bytes)))
            .map_err(|absence| self.settled(pid, absence))
    }

    /// A missing file means either that the process is gone or that this kernel has no such file.
    fn settled(&self, pid: i32, absence: Absence) -> Absence {
        match absence.reason {
            Reason::NotFound | Reason::Vanished if !self.exists(pid) => {
                vanished(&format_args!("process {pid}"))
            }
            // An exiting process leaves some files empty.
            Reason::Unparsable if !self.exists(pid) => vanished(&format_args!("process {pid}")),
            _ => absence,
        }
    }

    fn numbers_in(&self, path: &Path) -> Measured<Vec<i32>> {
        let entries = std::fs::read_dir(path).map_err(|error| file::absence_of(path, &error))?;
        let mut numbers: Vec<i32> =
            entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }
}

fn vanished(what: &dyn std::fmt::Display) -> Absence {
    Absence::new(Reason::Vanished, format!("{what} does not exist or has exited"))
}

fn comm(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.strip_suffix(b"\n").unwrap_or(bytes)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, name: &str, body: impl AsRef<[u8]>) {
        let path = root.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, body).unwrap();
    }

    fn stat_line(pid: i32, ppid: i32, threads: u32) -> String {
        format!(
            "{pid} (x) S {ppid} 1 1 0 -1 0 1 2 3 4 5 6 7 8 20 0 {threads} 0 9 4096 2 3 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0\n"
        )
    }

    /// 10 starts 11 (from its second thread) and 12; 12 starts 13; 99 is unrelated.
    fn family(children_files: bool) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (pid, ppid) in [(10, 1), (11, 10), (12, 10), (13, 12), (99, 1)] {
            write(dir.path(), &format!("{pid}/stat"), stat_line(pid, ppid, 1));
            write(dir.path(), &format!("{pid}/task/{pid}/stat"), stat_line(pid, ppid, 1));
            if children_files {
                let children = if pid == 10 {
                    "12 "
                } else if pid == 12 {
                    "13 "
                } else {
                    ""
                };
                write(dir.path(), &format!("{pid}/task/{pid}/children"), children);
            }
        }
        if children_files {
            write(dir.path(), "10/task/20/children", "11 ");
        }
        dir
    }

    #[test]
    fn trees_are_found_with_and_without_the_children_file() {
        for children_files in [true, false] {
            let dir = family(children_files);
            let proc = ProcFs::at(dir.path());
            let mut found = proc.descendants(10).unwrap();
            found.sort_unstable();
            assert_eq!(found, [11, 12, 13]);
            assert_eq!(proc.children(99), Ok(vec![]));
            // With this many threads, all processes are read instead.
            for (pid, ppid) in [(10, 1), (12, 10)] {
                write(dir.path(), &format!("{pid}/stat"), stat_line(pid, ppid, 100));
            }
            let mut found = proc.descendants(10).unwrap();
            found.sort_unstable();
            assert_eq!(found, [11, 12, 13]);
        }
    }

    #[test]
    fn a_missing_process_and_a_missing_file_have_different_reasons() {
        let dir = family(false);
        let proc = ProcFs::at(dir.path());
        assert_eq!(proc.process_stat(1234).unwrap_err().reason, Reason::Vanished);
        assert_eq!(proc.threads(1234).unwrap_err().reason, Reason::Vanished);
        assert_eq!(proc.thread_schedstat(10, 77).unwrap_err().reason, Reason::Vanished);
        assert_eq!(proc.thread_schedstat(10, 10).unwrap_err().reason, Reason::NotFound);
        assert_eq!(proc.smaps_rollup(10).unwrap_err().reason, Reason::NotFound);
        assert_eq!(proc.smaps_readable(10).unwrap_err().reason, Reason::NotFound);
        write(dir.path(), "10/maps", vec![b'x'; 33 << 20]);
        assert_eq!(proc.maps_readable(10), Ok(()));
        assert_eq!(proc.code(10).unwrap_err().reason, Reason::Unparsable);
        assert_eq!(proc.maps_readable(4711).unwrap_err().reason, Reason::Vanished);
        write(dir.path(), "10/schedstat", "junk");
        write(dir.path(), "10/task/10/schedstat", "junk");
        assert_eq!(proc.thread_schedstat(10, 10).unwrap_err().reason, Reason::Unparsable);
    }

    #[test]
    fn only_a_process_that_has_ended_has_no_threads() {
        let dir = family(true);
        let proc = ProcFs::at(dir.path());
        assert_eq!(proc.threads_of(&[10, 4711, 11]), (vec![(10, 10), (10, 20), (11, 11)], None));
        // A folder that can't be listed.
        std::fs::create_dir(dir.path().join("30")).unwrap();
        std::os::unix::fs::symlink("task", dir.path().join("30/task")).unwrap();
        let (threads, unlisted) = proc.threads_of(&[30, 11]);
        assert_eq!((threads, unlisted.unwrap().reason), (vec![(11, 11)], Reason::NotSupported));
    }

    #[test]
    fn machine_counters_survive_missing_files() {
        let dir = tempfile::tempdir().unwrap();
        let proc = ProcFs::at(dir.path());
        assert_eq!(proc.host_tick().unwrap_err().reason, Reason::NotFound);
        write(dir.path(), "stat", "cpu  1 0 1 10 0 0 0 0 0 0\n");
        let tick = proc.host_tick().unwrap();
        assert_eq!(tick.busy_ns, 2 * proc.ns_per_tick());
        assert_eq!((tick.psi_cpu_us, tick.thp_fault_alloc), (None, None));
        assert_eq!(proc.pressure("cpu").unwrap_err().reason, Reason::Disabled);
        write(dir.path(), "pressure/cpu", "some avg10=0.00 avg60=0.00 avg300=0.00 total=7\n");
        write(dir.path(), "vmstat", "thp_fault_alloc 3\n");
        let tick = proc.host_tick().unwrap();
        assert_eq!((tick.psi_cpu_us, tick.thp_fault_alloc), (Some(7), Some(3)));
    }

    #[test]
    fn counters_of_devices_that_are_missing_have_reasons() {
        let dir = tempfile::tempdir().unwrap();
        let proc = ProcFs::at(dir.path());
        let sys = dir.path().join("sys");
        assert_eq!(proc.disks(&sys).unwrap_err().reason, Reason::NotFound);
        write(dir.path(), "diskstats", "8 0 sda 1 2\n");
        assert_eq!(proc.disks(&sys).unwrap_err().reason, Reason::Unparsable);
        write(dir.path(), "diskstats", "8 0 sda 1 0 8 2 0 0 0 0 0 2 2\n");
        let sda = proc.disks(&sys).unwrap().remove(0);
        assert_eq!((sda.busy_ms, sda.counted), (2, true));
        assert_eq!(proc.network(7).unwrap_err().reason, Reason::Vanished);
        assert_eq!(proc.network_namespace(7).unwrap_err().reason, Reason::Vanished);
        write(dir.path(), "7/stat", stat_line(7, 1, 1));
        assert_eq!(proc.network(7).unwrap_err().reason, Reason::NotFound);
        write(dir.path(), "7/net/snmp", "Tcp: OutSegs RetransSegs\nTcp: 5 1\n");
        write(dir.path(), "7/net/dev", "");
        let network = proc.network(7).unwrap();
        assert_eq!((network.sent, network.retransmitted), (5, 1));
        let reasons = (network.events.unwrap_err().reason, network.interfaces.unwrap_err().reason);
        assert_eq!(reasons, (Reason::NotFound, Reason::Unparsable));
        assert_eq!(network.datagrams.unwrap_err().reason, Reason::NotFound);
        const UDP: &str = "Udp: InDatagrams OutDatagrams InErrors RcvbufErrors\nUdp: 5 4 3 2\n";
        write(dir.path(), "7/net/snmp", format!("Tcp: OutSegs RetransSegs\nTcp: 5 1\n{UDP}"));
        let received = || proc.network(7).unwrap().datagrams.map(|datagrams| datagrams.received);
        assert_eq!(received(), Ok(5), "a namespace without IPv6");
        write(dir.path(), "7/net/snmp6", "Udp6InDatagrams 1\n");
        assert_eq!(received().unwrap_err().reason, Reason::Unparsable);
        let v6 = "Udp6InDatagrams 10\nUdp6OutDatagrams 1\nUdp6InErrors 1\nUdp6RcvbufErrors 1\n";
        write(dir.path(), "7/net/snmp6", v6);
        assert_eq!(received(), Ok(15));
        assert!(proc.network_namespace(7).is_ok());
    }

    /// The live kernel is the most important fixture.
    #[test]
    fn own_process_reads_whole() {
        let proc = ProcFs::live();
        let pid = std::process::id() as i32;
        let stat = proc.process_stat(pid).unwrap();
        let status = proc.status(pid).unwrap();
        assert_eq!((stat.pid, status.tgid), (pid, pid));
        assert_eq!(stat.ppid, status.ppid);
        assert!(stat.virtual_bytes > 0 && status.vm_rss.unwrap() > 0);
        assert!(proc.threads(pid).unwrap().contains(&pid));
        assert!(!proc.cmdline(pid).unwrap().is_empty());
        assert!(proc.exe(pid).unwrap().is_absolute());
        assert!(!proc.code(pid).unwrap().mappings.is_empty());
        assert_eq!(proc.code(i32::MAX).unwrap_err().reason, Reason::Vanished);
        match proc.smaps_rollup(pid) {
            Ok(smaps) => assert!(smaps.rss >= smaps.anonymous),
            Err(absence) => println!("skipped: {absence}"),
        }
    }

    #[test]
    fn names_with_newlines_come_back_whole() {
        assert_eq!(comm(b"a\nb\n"), "a\nb");
        assert_eq!(comm(b""), "");
    }

    #[test]
    fn a_thread_number_is_refused_as_a_process() {
        let proc = ProcFs::live();
        let own = std::process::id() as i32;
        assert!(refuse_thread(own, &proc.status(own).unwrap()).is_ok());
        let thread = std::thread::spawn(move || {
            let tid = rustix::thread::gettid().as_raw_nonzero().get();
            refuse_thread(tid, &ProcFs::live().status(tid).unwrap()).map_err(|e| (tid, e.to_string()))
        });
        let (tid, refusal) = thread.join().unwrap().unwrap_err();
        assert!(refusal.contains(&format!("{tid} is a thread of process {own}; give -p {own}")), "{refusal}");
    }
}
