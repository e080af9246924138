//! Parses the bytes of /proc files. Formats: proc(5) and Documentation/filesystems/proc.rst.
//!
//! A field that some kernels lack is an `Option`. A field that every kernel since 4.x has is required:
//! without it the whole result is `None`, and the caller turns that into a reason with the path.

use crate::file::{lines, number, words};
use allocwall_model::machine::{HostTick, Smaps};

/// /proc/PID/stat, or /proc/PID/task/TID/stat for one thread. In the former, times are those of the whole
/// process and include threads that have ended. `child_*` fields count children that were waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessStat {
    pub pid: i32,
    /// At most 15 bytes of any value; bytes that are not UTF-8 are replaced.
    pub comm: String,
    pub state: char,
    pub ppid: i32,
    pub minor_faults: u64,
    pub child_minor_faults: u64,
    pub major_faults: u64,
    pub child_major_faults: u64,
    /// Clock ticks of 10 ms. Their sum is exact to one tick; the split into user and system time is an
    /// estimate of the kernel.
    pub user_ticks: u64,
    pub system_ticks: u64,
    pub child_user_ticks: u64,
    pub child_system_ticks: u64,
    pub threads: u32,
    /// Clock ticks since boot. Together with the pid, it identifies a process uniquely.
    pub start_ticks: u64,
    pub virtual_bytes: u64,
    pub resident_pages: u64,
    /// The CPU that it last ran on.
    pub cpu: u32,
}

impl ProcessStat {
    /// A zombie, or about to end. For a process this is the state of its leader: other threads may still run.
    pub fn ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }
}

pub fn process_stat(bytes: &[u8]) -> Option<ProcessStat> {
    // comm may contain blanks, newlines and parentheses. Its end is the last `)` of the line, as in procps.
    let open = bytes.iter().position(|&b| b == b'(')?;
    let close = bytes.iter().rposition(|&b| b == b')')?;
    let comm = bytes.get(open + 1..close)?;
    // Field numbers start at 3 (state).
    let mut rest: [&[u8]; 37] = [&[]; 37];
    let mut found = 0;
    for (slot, word) in rest.iter_mut().zip(words(&bytes[close + 1..])) {
        *slot = word;
        found += 1;
    }
    let field = |n: usize| rest[..found].get(n - 3).copied();
    let count = |n: usize| field(n).and_then(number::<u64>);
    Some(ProcessStat {
        pid: number(&bytes[..open])?,
        comm: String::from_utf8_lossy(comm).into_owned(),
        state: char::from(*field(3)?.first()?),
        ppid: number(field(4)?)?,
        minor_faults: count(10)?,
        child_minor_faults: count(11)?,
        major_faults: count(12)?,
        child_major_faults: count(13)?,
        user_ticks: count(14)?,
        system_ticks: count(15)?,
        // Signed in the kernel's format, but never negative.
        child_user_ticks: count(16)?,
        child_system_ticks: count(17)?,
        threads: number(field(20)?)?,
        start_ticks: count(22)?,
        virtual_bytes: count(23)?,
        resident_pages: count(24)?,
        cpu: number(field(39)?)?,
    })
}

/// /proc/PID/status. Sizes are in bytes; they are None for a kernel thread or a zombie.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Status {
    pub tgid: i32,
    pub ppid: i32,
    /// Real, effective, saved, file system.
    pub uid: [u32; 4],
    pub gid: [u32; 4],
    /// The pid in each nested PID namespace, ours first; empty before Linux 4.1.
    pub ns_pids: Vec<i32>,
    pub vm_peak: Option<u64>,
    pub vm_size: Option<u64>,
    pub vm_data: Option<u64>,
    pub vm_rss: Option<u64>,
    /// Peak of `vm_rss` since exec.
    pub vm_hwm: Option<u64>,
    pub rss_anon: Option<u64>,
    /// Page tables.
    pub vm_pte: Option<u64>,
    pub vm_swap: Option<u64>,
    pub hugetlb: Option<u64>,
    /// False if prctl(PR_SET_THP_DISABLE) was used; since Linux 5.0.
    pub thp_enabled: Option<bool>,
    pub threads: u32,
    pub cap_eff: u64,
    pub no_new_privs: Option<bool>,
    /// The process that traces it (ptrace(2)); 0 if there is none.
    pub tracer: i32,
    /// The CPUs that it may use, as a list: `0-3,8`.
    pub cpus_allowed: Option<String>,
    /// 0 none, 1 strict, 2 filter.
    pub seccomp: Option<u8>,
    /// Of the main thread only: the kernel does not sum these over threads.
    pub voluntary_switches: Option<u64>,
    pub involuntary_switches: Option<u64>,
}

pub fn status(bytes: &[u8]) -> Option<Status> {
    let mut s = Status::default();
    let mut required = 0;
    for line in lines(bytes) {
        let Some(colon) = line.iter().position(|&b| b == b':') else {
            continue;
        };
        let value = line[colon + 1..].trim_ascii();
        match &line[..colon] {
            b"Tgid" => (s.tgid, required) = (number(value)?, required | 1),
            b"PPid" => (s.ppid, required) = (number(value)?, required | 2),
            b"Uid" => (s.uid, required) = (four(value)?, required | 4),
            b"Gid" => s.gid = four(value)?,
            b"NSpid" => s.ns_pids = words(value).map(number).collect::<Option<_>>()?,
            b"VmPeak" => s.vm_peak = kilobytes(value),
            b"VmSize" => s.vm_size = kilobytes(value),
            b"VmData" => s.vm_data = kilobytes(value),
            b"VmHWM" => s.vm_hwm = kilobytes(value),
            b"VmRSS" => s.vm_rss = kilobytes(value),
            b"RssAnon" => s.rss_anon = kilobytes(value),
            b"VmPTE" => s.vm_pte = kilobytes(value),
            b"VmSwap" => s.vm_swap = kilobytes(value),
            b"HugetlbPages" => s.hugetlb = kilobytes(value),
            b"THP_enabled" => s.thp_enabled = number::<u8>(value).map(|n| n != 0),
            b"Threads" => (s.threads, required) = (number(value)?, required | 8),
            b"CapEff" => {
                let hex = std::str::from_utf8(value).ok()?;
                (s.cap_eff, required) = (u64::from_str_radix(hex, 16).ok()?, required | 16);
            }
            b"TracerPid" => s.tracer = number(value)?,
            b"NoNewPrivs" => s.no_new_privs = number::<u8>(value).map(|n| n != 0),
            b"Cpus_allowed_list" => s.cpus_allowed = Some(String::from_utf8_lossy(value).into_owned()),
            b"Seccomp" => s.seccomp = number(value),
            b"voluntary_ctxt_switches" => s.voluntary_switches = number(value),
            b"nonvoluntary_ctxt_switches" => s.involuntary_switches = number(value),
            _ => {}
        }
    }
    (required == 31).then_some(s)
}

fn four(value: &[u8]) -> Option<[u32; 4]> {
    let mut fields = words(value).map(number::<u32>);
    Some([fields.next()??, fields.next()??, fields.next()??, fields.next()??])
}

/// `1688 kB`: the kernel's kB has 1,024 bytes. The result is in bytes.
pub fn kilobytes(value: &[u8]) -> Option<u64> {
    let mut fields = words(value);
    let amount: u64 = number(fields.next()?)?;
    (fields.next() == Some(b"kB")).then(|| amount.checked_mul(1024)).flatten()
}

/// /proc/PID/task/TID/schedstat: Documentation/scheduler/sched-stats.rst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedStat {
    pub cpu_ns: u64,
    /// Runnable but not running; includes throttled time.
    pub run_delay_ns: u64,
    pub timeslices: u64,
}

pub fn schedstat(bytes: &[u8]) -> Option<SchedStat> {
    let mut fields = words(bytes).map(number::<u64>);
    Some(SchedStat { cpu_ns: fields.next()??, run_delay_ns: fields.next()??, timeslices: fields.next()?? })
}

pub fn smaps_rollup(bytes: &[u8]) -> Option<Smaps> {
    let mut s = Smaps::default();
    let mut required = 0;
    for line in lines(bytes) {
        let Some(colon) = line.iter().position(|&b| b == b':') else {
            continue;
        };
        let value = || kilobytes(&line[colon + 1..]);
        match &line[..colon] {
            b"Rss" => (s.rss, required) = (value()?, required | 1),
            b"Pss" => (s.pss, required) = (value()?, required | 2),
            b"Anonymous" => (s.anonymous, required) = (value()?, required | 4),
            b"LazyFree" => (s.lazy_free, required) = (value()?, required | 8),
            b"AnonHugePages" => (s.anon_huge, required) = (value()?, required | 16),
            b"Swap" => (s.swap, required) = (value()?, required | 32),
            // Absent in kernels without hugetlbfs, where the value is really zero.
            b"Shared_Hugetlb" | b"Private_Hugetlb" => s.hugetlb = s.hugetlb.checked_add(value()?)?,
            _ => {}
        }
    }
    (required == 63).then_some(s)
}

/// Memory of one process on huge pages, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HugePages {
    /// Transparent or reserved.
    pub all: u64,
    /// The part of `all` that holds CPython's arenas if the hook is active: mappings without a name that
    /// start on a 2 MiB boundary and for which a program requested huge pages.
    pub arenas: u64,
    /// The library of the hook is mapped.
    pub hook: bool,
}

impl HugePages {
    /// Keeps the larger value of each field.
    pub fn raise(&mut self, other: HugePages) {
        self.all = self.all.max(other.all);
        self.arenas = self.arenas.max(other.arenas);
        self.hook |= other.hook;
    }
}

/// /proc/PID/smaps. The file is empty for a process that is exiting.
pub fn huge_pages(bytes: &[u8]) -> Option<HugePages> {
    const HUGE: u64 = 2 << 20;
    let mut found = HugePages::default();
    let (mut aligned, mut huge) = (false, 0);
    for line in lines(bytes) {
        let mut fields = words(line);
        let Some(first) = fields.next() else { continue };
        match first.strip_suffix(b":") {
            // The first line of a mapping: range, permissions, offset, device, inode, name.
            None => {
                let start = u64::from_str_radix(std::str::from_utf8(pair(first, b'-')?.0).ok()?, 16).ok()?;
                let name = fields.nth(4).unwrap_or_default();
                let nameless = name.is_empty() || name == b"/anon_hugepage";
                aligned = nameless && start % HUGE == 0;
                huge = 0;
                found.hook |= is_arena_hook(&String::from_utf8_lossy(name));
            }
            Some(b"AnonHugePages" | b"Private_Hugetlb") => {
                let bytes = kilobytes(&line[first.len()..])?;
                found.all = found.all.checked_add(bytes)?;
                huge += bytes;
            }
            // The last line of a mapping. hg: MADV_HUGEPAGE, ht: reserved pages.
            Some(b"VmFlags") if aligned && fields.any(|flag| matches!(flag, b"hg" | b"ht")) => {
                found.arenas += huge;
            }
            _ => {}
        }
    }
    Some(found)
}

/// Whether the path is the library of the Python package that contains the hook.
pub fn is_arena_hook(path: &str) -> bool {
    path.rsplit_once("/allocwall/")
        .is_some_and(|(_, name)| name.starts_with("_native") && name.contains(".so"))
}

/// The NUMA nodes that a process's memory is bound to (`bind:0-1` of numa_maps(5)), from its first mapping;
/// None if its policy binds no nodes.
pub fn bound_nodes(bytes: &[u8]) -> Option<String> {
    let policy = words(lines(bytes).next()?).nth(1)?;
    let nodes = policy.strip_prefix(b"bind")?;
    // Flags of the policy may come before the nodes: `bind=static:0`.
    let nodes = nodes.rsplit(|b| *b == b':').next()?;
    Some(String::from_utf8_lossy(nodes).into_owned())
}

pub fn pair(bytes: &[u8], separator: u8) -> Option<(&[u8], &[u8])> {
    let at = bytes.iter().position(|&b| b == separator)?;
    Some((&bytes[..at], &bytes[at + 1..]))
}

/// NUL-separated arguments, as in cmdline. A process may overwrite them with any bytes.
pub fn nul_words(bytes: &[u8]) -> Vec<String> {
    let bytes = bytes.strip_suffix(b"\0").unwrap_or(bytes);
    if bytes.is_empty() {
        return Vec::new();
    }
    bytes.split(|&b| b == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// NAME=value pairs of environ; entries without `=` are dropped.
///
/// glibc up to 2.36 replaces each colon within GLIBC_TUNABLES by a NUL (parse_tunables in elf/dl-tunables.c).
/// Entries after it that start with `glibc.` are joined again.
pub fn environ(bytes: &[u8]) -> Vec<(String, String)> {
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    let mut pairs: Vec<(String, String)> = Vec::new();
    for word in bytes.split(|&b| b == 0) {
        let Some((name, value)) = pair(word, b'=').filter(|(name, _)| !name.is_empty()) else {
            continue;
        };
        match pairs.last_mut() {
            Some((list, tunables)) if list == "GLIBC_TUNABLES" && name.starts_with(b"glibc.") => {
                tunables.push(':');
                tunables.push_str(&text(word));
            }
            _ => pairs.push((text(name), text(value))),
        }
    }
    pairs
}

/// One line of /proc/PID/cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupLine {
    /// 0 is the v2 hierarchy.
    pub hierarchy: u32,
    /// v1 controllers, or `name=…` of a v1 hierarchy without any.
    pub controllers: Vec<String>,
    pub path: String,
}

/// `ID:controllers:path`; the path may contain colons. Lines that do not parse are left out.
pub fn cgroup(bytes: &[u8]) -> Vec<CgroupLine> {
    let line = |line: &[u8]| -> Option<CgroupLine> {
        let (id, rest) = pair(line, b':')?;
        let (controllers, path) = pair(rest, b':')?;
        let path = String::from_utf8_lossy(path).into_owned();
        Some(CgroupLine {
            hierarchy: number(id)?,
            controllers: String::from_utf8_lossy(controllers)
                .split(',')
                .filter(|name| !name.is_empty())
                .map(str::to_owned)
                .collect(),
            // The kernel appends this if the cgroup was removed while the process was in it.
            path: path.strip_suffix(" (deleted)").unwrap_or(&path).to_owned(),
        })
    };
    lines(bytes).filter_map(line).filter(|line| line.path.starts_with('/')).collect()
}

/// What a thread that is not running waits for: /proc/PID/task/TID/syscall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyscallState {
    Running,
    Blocked {
        /// Number of the system call; -1 if the thread is blocked outside a system call (a page fault).
        number: i64,
        /// Its first argument.
        argument: Option<u64>,
        /// User instruction and stack pointer.
        ip_sp: Option<(u64, u64)>,
    },
}

/// proc_pid_syscall(5): `running`, or `-1 SP IP`, or `NUMBER A1 … A6 SP IP`.
pub fn syscall(bytes: &[u8]) -> Option<SyscallState> {
    let mut fields = words(bytes);
    let first = fields.next()?;
    if first == b"running" {
        return Some(SyscallState::Running);
    }
    let rest: Vec<&[u8]> = fields.take(16).collect();
    let hex = |word: &[u8]| u64::from_str_radix(std::str::from_utf8(word).ok()?.strip_prefix("0x")?, 16).ok();
    let ip_sp = match rest[..] {
        [.., sp, ip] => hex(ip).zip(hex(sp)),
        _ => None,
    };
    let argument = if rest.len() == 8 { hex(rest[0]) } else { None };
    Some(SyscallState::Blocked { number: number(first)?, argument, ip_sp })
}

/// Symbol names of /proc/PID/task/TID/stack, leaf first: `[<0>] futex_wait+0x12/0x34`, or with an address in
/// the brackets.
pub fn kernel_stack(bytes: &[u8]) -> Vec<String> {
    lines(bytes)
        .filter_map(|line| {
            let frame = line.trim_ascii().strip_prefix(b"[<")?;
            let (_, symbol) = pair(frame, b']')?;
            let symbol = String::from_utf8_lossy(symbol.trim_ascii()).into_owned();
            let name = symbol.split(['+', ' ']).next().unwrap_or_default();
            (!name.is_empty()).then(|| name.to_owned())
        })
        .collect()
}

/// `ffffffff81000000 T _text`: whether any address is not all zeros.
pub fn shows_addresses(bytes: &[u8]) -> bool {
    lines(bytes).filter_map(|line| words(line).next()).any(|address| address.iter().any(|&b| b != b'0'))
}

/// Options of the mount at /proc (mountinfo) that hide processes. The last mount in the list is the one in
/// effect.
pub fn proc_restrictions(bytes: &[u8]) -> Option<String> {
    let at_proc = |line: &&[u8]| words(line).nth(4) == Some(b"/proc");
    let line = lines(bytes).filter(at_proc).last()?;
    let options = String::from_utf8_lossy(words(line).last()?).into_owned();
    let hides = |option: &&str| {
        option.strip_prefix("hidepid=").is_some_and(|mode| mode != "0" && mode != "off")
            || option.starts_with("subset=")
    };
    let hiding: Vec<&str> = options.split(',').filter(hides).collect();
    (!hiding.is_empty()).then(|| hiding.join(","))
}

/// /proc/PID/timens_offsets (time_namespaces(7)): clock, seconds, nanoseconds.
pub fn monotonic_offset_ns(bytes: &[u8]) -> Option<i64> {
    let mut fields = lines(bytes).find_map(|line| {
        let mut fields = words(line);
        (fields.next() == Some(b"monotonic")).then_some(fields)
    })?;
    let (seconds, ns): (i64, i64) = (number(fields.next()?)?, number(fields.next()?)?);
    seconds.checked_mul(1_000_000_000)?.checked_add(ns)
}

/// The aggregate `cpu` line of /proc/stat.
pub fn cpu_times(bytes: &[u8], ns_per_tick: u64) -> Option<HostTick> {
    let line = lines(bytes).find_map(|line| line.strip_prefix(b"cpu "))?;
    // user nice system idle iowait irq softirq steal; guest time is part of user.
    let mut ticks = [0u64; 8];
    let mut fields = words(line);
    for tick in &mut ticks {
        // Only differences matter, and they are correct across a wrap.
        *tick = number::<u64>(fields.next()?)?.wrapping_mul(ns_per_tick);
    }
    let [user, nice, system, idle, iowait, irq, softirq, steal] = ticks;
    Some(HostTick {
        busy_ns: [user, nice, system, irq, softirq].iter().fold(0u64, |sum, &t| sum.wrapping_add(t)),
        idle_ns: idle,
        iowait_ns: iowait,
        steal_ns: steal,
        ..HostTick::default()
    })
}

/// The idle time of each CPU of /proc/stat, without the time in which it waited for storage.
pub fn idle_times(bytes: &[u8], ns_per_tick: u64) -> Vec<(u32, u64)> {
    let of_cpu = |line| {
        let mut fields = words(line);
        let cpu = number::<u32>(fields.next()?.strip_prefix(b"cpu")?)?;
        // user nice system idle
        Some((cpu, number::<u64>(fields.nth(3)?)?.wrapping_mul(ns_per_tick)))
    };
    lines(bytes).filter_map(of_cpu).collect()
}

/// The `some` total of a PSI file, in microseconds.
pub fn pressure_some(bytes: &[u8]) -> Option<u64> {
    let line = lines(bytes).find_map(|line| line.strip_prefix(b"some "))?;
    words(line).find_map(|word| number(word.strip_prefix(b"total=")?))
}

/// Fills in the counters of /proc/vmstat that a diagnosis reads.
pub fn vmstat(bytes: &[u8], tick: &mut HostTick) {
    for line in lines(bytes) {
        let Some((name, value)) = pair(line, b' ') else {
            continue;
        };
        let place = match name {
            b"pgsteal_direct" => &mut tick.direct_reclaim_pages,
            b"compact_stall" => &mut tick.compact_stalls,
            b"thp_fault_alloc" => &mut tick.thp_fault_alloc,
            b"thp_fault_fallback" => &mut tick.thp_fault_fallback,
            b"numa_other" => &mut tick.numa_remote,
            b"numa_local" => &mut tick.numa_local,
            b"numa_pages_migrated" => &mut tick.numa_moved,
            b"numa_hint_faults" => &mut tick.numa_hint_faults,
            _ => continue,
        };
        *place = number(value);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemInfo {
    pub total: u64,
    pub available: Option<u64>,
    /// The number of reserved pages of the default huge page size; None in a kernel without hugetlbfs.
    pub hugepages_total: Option<u64>,
    pub hugepages_free: Option<u64>,
    pub hugepage_bytes: Option<u64>,
}

pub fn meminfo(bytes: &[u8]) -> Option<MemInfo> {
    let value = |name: &[u8]| lines(bytes).find_map(|line| line.strip_prefix(name)?.strip_prefix(b":"));
    Some(MemInfo {
        total: kilobytes(value(b"MemTotal")?)?,
        available: value(b"MemAvailable").and_then(kilobytes),
        hugepages_total: value(b"HugePages_Total").and_then(number),
        hugepages_free: value(b"HugePages_Free").and_then(number),
        hugepage_bytes: value(b"Hugepagesize").and_then(kilobytes),
    })
}

/// The name of the processor. x86, Arm boards, POWER and s390 use different keys in /proc/cpuinfo. Other Arm
/// machines give only numbers (Documentation/arch/arm64/cpu-feature-registers.rst).
pub fn cpu_model(bytes: &[u8]) -> Option<String> {
    let field = |key: &str| {
        lines(bytes).find_map(|line| {
            let (name, value) = pair(line, b':')?;
            let value = value.trim_ascii();
            (name.trim_ascii() == key.as_bytes() && !value.is_empty())
                .then(|| String::from_utf8_lossy(value).into_owned())
        })
    };
    ["model name", "Model", "cpu", "vendor_id"]
        .into_iter()
        .find_map(field)
        .or_else(|| Some(format!("CPU {}/{}", field("CPU implementer")?, field("CPU part")?)))
}

/// Runs every parser of this module and ignores the results.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn all_parsers(bytes: &[u8]) {
    let _ = process_stat(bytes);
    let _ = status(bytes);
    let _ = schedstat(bytes);
    let _ = (smaps_rollup(bytes), huge_pages(bytes));
    let _ = bound_nodes(bytes);
    let _ = (nul_words(bytes), environ(bytes), cgroup(bytes), kernel_stack(bytes));
    let _ = (syscall(bytes), cpu_times(bytes, 10_000_000), pressure_some(bytes));
    vmstat(bytes, &mut HostTick::default());
    let _ = (meminfo(bytes), cpu_model(bytes), shows_addresses(bytes), proc_restrictions(bytes));
    super::devices::all_parsers(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STAT: &[u8] =
        b"4242 (worker ) (1)\nx) S 17 4242 4242 0 -1 4194304 1500 22 3 1 250 50 7 8 20 0 12 0 987654 \
        104857600 2560 18446744073709551615 1 1 0 0 0 0 0 4096 0 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 0\n";

    #[test]
    fn stat_with_a_hostile_name() {
        let stat = process_stat(STAT).unwrap();
        assert_eq!((stat.pid, stat.comm.as_str(), stat.state, stat.ppid), (4242, "worker ) (1)\nx", 'S', 17));
        assert_eq!((stat.minor_faults, stat.child_minor_faults), (1500, 22));
        assert_eq!((stat.major_faults, stat.child_major_faults), (3, 1));
        assert_eq!((stat.user_ticks, stat.system_ticks), (250, 50));
        assert_eq!((stat.child_user_ticks, stat.child_system_ticks), (7, 8));
        assert_eq!((stat.threads, stat.start_ticks), (12, 987_654));
        assert_eq!((stat.virtual_bytes, stat.resident_pages, stat.cpu), (104_857_600, 2560, 1));
        let latin: Vec<u8> = STAT.iter().map(|&b| if b == b'w' { 0xff } else { b }).collect();
        assert_eq!(process_stat(&latin).unwrap().comm, "\u{fffd}orker ) (1)\nx");
    }

    #[test]
    fn malformed_stat_lines() {
        for line in [
            &b""[..],
            b"4242",
            b"4242 (x",
            b"4242 )x( S 1",
            b"4242 (x)",
            b"4242 (x) S",
            b"x (x) S 17 4242 4242 0 -1 0 1 2 3 4 5 6 7 8 20 0 12 0 9 1 2 3 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0",
            b"1 (x) S 17 4242 4242 0 -1 0 -1 2 3 4 5 6 7 8 20 0 12 0 9 1 2 3 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0",
            b"1 (x) S 17 4242 4242 0 -1 0 99999999999999999999 2 3 4 5 6 7 8 20 0 1 0 9 1 2 3 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0",
        ] {
            assert_eq!(process_stat(line), None, "{}", String::from_utf8_lossy(line));
        }
        assert_eq!(process_stat(&STAT[..60]), None);
    }

    const STATUS: &[u8] = b"Name:\tcat\\n\nTgid:\t9644\nPPid:\t9642\nUid:\t1000\t1000\t1000\t1000\nGid:\t100\t100\t100\t100\n\
        NSpid:\t9644\t7\nVmPeak:\t    3060 kB\nVmSize:\t    3060 kB\nVmHWM:\t    1700 kB\nVmRSS:\t    1688 kB\nRssAnon:\t     112 kB\nVmData:\t     360 kB\n\
        VmPTE:\t      44 kB\nVmSwap:\t       0 kB\nHugetlbPages:\t    2048 kB\nTHP_enabled:\t1\nThreads:\t3\nCapEff:\t000001fffeffffff\nNoNewPrivs:\t1\nSeccomp:\t2\n\
        voluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t6\n";

    #[test]
    fn status_fields() {
        let s = status(STATUS).unwrap();
        assert_eq!((s.tgid, s.ppid, s.uid[1], s.gid[0], s.threads), (9644, 9642, 1000, 100, 3));
        assert_eq!(s.ns_pids, [9644, 7]);
        assert_eq!((s.vm_size, s.vm_rss, s.rss_anon), (Some(3060 << 10), Some(1688 << 10), Some(112 << 10)));
        assert_eq!((s.vm_hwm, s.vm_pte), (Some(1700 << 10), Some(44 << 10)));
        assert_eq!((s.vm_data, s.hugetlb), (Some(360 << 10), Some(2 << 20)));
        assert_eq!((s.thp_enabled, s.no_new_privs, s.seccomp), (Some(true), Some(true), Some(2)));
        assert_eq!((s.voluntary_switches, s.involuntary_switches), (Some(5), Some(6)));
        assert_eq!(s.cap_eff, 0x1ff_feff_ffff);
    }

    #[test]
    fn status_of_a_kernel_thread_has_no_memory_and_a_torn_one_is_refused() {
        let kernel = b"Name:\tkthreadd\nTgid:\t2\nPPid:\t0\nUid:\t0\t0\t0\t0\nThreads:\t1\nCapEff:\t0\n";
        let s = status(kernel).unwrap();
        assert_eq!((s.vm_rss, s.vm_data, s.thp_enabled), (None, None, None));
        for torn in [
            &b""[..],
            b"Tgid:\t2\n",
            b"Name:\tx\nTgid:\t2\nPPid:\t0\nUid:\t0\t0\nThreads:\t1\nCapEff:\t0\n",
            b"Tgid:\tx\nPPid:\t0\nUid:\t0\t0\t0\t0\nThreads:\t1\nCapEff:\t0\n",
            b"Tgid:\t2\nPPid:\t0\nUid:\t0\t0\t0\t0\nThreads:\t1\nCapEff:\tzz\n",
        ] {
            assert_eq!(status(torn), None);
        }
        let megabytes = b"Tgid:\t2\nPPid:\t0\nUid:\t0\t0\t0\t0\nThreads:\t1\nCapEff:\t0\nVmRSS:\t12 MB\n";
        assert_eq!(status(megabytes).unwrap().vm_rss, None);
    }

    #[test]
    fn schedstat_lines() {
        let s = schedstat(b"123456789 42 7\n").unwrap();
        assert_eq!((s.cpu_ns, s.run_delay_ns, s.timeslices), (123_456_789, 42, 7));
        for bad in [&b""[..], b"1 2", b"1 2 x", b"-1 2 3"] {
            assert_eq!(schedstat(bad), None);
        }
    }

    #[test]
    fn smaps_rollup_sums() {
        let body = b"5596d14d2000-7ffe35ac5000 ---p 00000000 00:00 0                          [rollup]\nRss:     1688 kB\n\
            Pss:      325 kB\nPss_Dirty:  112 kB\nAnonymous:      112 kB\nLazyFree:   8 kB\nAnonHugePages:   2048 kB\n\
            Shared_Hugetlb:  2048 kB\nPrivate_Hugetlb: 4096 kB\nSwap:  16 kB\nSwapPss: 16 kB\n";
        let s = smaps_rollup(body).unwrap();
        assert_eq!((s.rss, s.pss, s.anonymous, s.lazy_free), (1688 << 10, 325 << 10, 112 << 10, 8 << 10));
        assert_eq!((s.anon_huge, s.hugetlb, s.swap), (2 << 20, 6 << 20, 16 << 10));
        // A process without memory of its own (a kernel thread) has an empty file.
        for bad in [&b""[..], b"Rss: 1 kB\n", b"Rss: one kB\n"] {
            assert_eq!(smaps_rollup(bad), None);
        }
    }

    #[test]
    fn arenas_on_huge_pages_are_distinguished_from_other_memory() {
        let mapping = |head: &str, field: &str, flags: &str| {
            format!("{head}\nSize: 4096 kB\n{field}: 4096 kB\nVmFlags: rd wr {flags} \n")
        };
        let of = |text: &str| huge_pages(text.as_bytes()).unwrap();
        let slab = mapping("7f0000200000-7f0000600000 rw-p 00000000 00:00 0 ", "AnonHugePages", "mr hg");
        assert_eq!((of(&slab).arenas, of(&slab).all), (4 << 20, 4 << 20));
        let reserved = mapping(
            "7f0000200000-7f0000600000 rw-p 00000000 00:0f 99 /anon_hugepage (deleted)",
            "Private_Hugetlb",
            "de ht",
        );
        assert_eq!(of(&reserved).arenas, 4 << 20);
        // Near twins: huge pages not requested (mode always), not on a boundary, the heap, resident on small
        // pages.
        for other in [
            mapping("7f0000200000-7f0000600000 rw-p 00000000 00:00 0 ", "AnonHugePages", "mr sd"),
            mapping("7f0000201000-7f0000600000 rw-p 00000000 00:00 0 ", "AnonHugePages", "mr hg"),
            mapping("7f0000200000-7f0000600000 rw-p 00000000 00:00 0 [heap]", "AnonHugePages", "mr hg"),
        ] {
            assert_eq!((of(&other).arenas, of(&other).all), (0, 4 << 20), "{other}");
        }
        let small = mapping("7f0000200000-7f0000600000 rw-p 00000000 00:00 0 ", "Rss", "mr hg");
        assert_eq!(of(&small), HugePages::default());
        let both = of(&(slab.clone() + &reserved));
        assert_eq!((both.all, both.hook), (8 << 20, false));
        let library = "7f00-8f00 r-xp 00000000 fd:00 7 /x/site-packages/allocwall/_native.abi3.so\n";
        assert!(of(&(slab + library)).hook);
        assert!(!is_arena_hook("/x/other/_native.abi3.so") && !is_arena_hook("/allocwall/_native.pyi"));
        assert_eq!(huge_pages(b""), Some(HugePages::default()));
        assert_eq!(huge_pages(b"junk\n"), None);
    }

    #[test]
    fn tunables_that_glibc_split_are_joined() {
        let read = |bytes: &[u8]| environ(bytes);
        let own = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|&(k, v)| (k.into(), v.into())).collect()
        };
        assert_eq!(
            read(b"A=1\0GLIBC_TUNABLES=glibc.malloc.a=1\0glibc.malloc.b=2\0B=2\0"),
            own(&[("A", "1"), ("GLIBC_TUNABLES", "glibc.malloc.a=1:glibc.malloc.b=2"), ("B", "2")])
        );
        assert_eq!(read(b"A=1\0glibc.x=2\0"), own(&[("A", "1"), ("glibc.x", "2")]));
    }

    #[test]
    fn memory_policies() {
        let bound = |text: &[u8]| bound_nodes(text);
        assert_eq!(bound(b"7f00 bind:0-1 anon=1\n").as_deref(), Some("0-1"));
        assert_eq!(bound(b"7f00 bind=static:1 anon=1\n").as_deref(), Some("1"));
        assert_eq!(bound(b"7f00 default anon=1\n"), None);
        assert_eq!(bound(b""), None);
    }

    #[test]
    fn command_lines_and_environments() {
        assert_eq!(nul_words(b"python3\0-c\0\0x y\0"), ["python3", "-c", "", "x y"]);
        assert_eq!(nul_words(b"nginx: master process"), ["nginx: master process"]);
        assert!(nul_words(b"").is_empty());
        let pairs = environ(b"A=1\0B=x=y\0broken\0=z\0C=\xff\0");
        assert_eq!(
            pairs,
            [("A".into(), "1".into()), ("B".into(), "x=y".into()), ("C".into(), "\u{fffd}".into())]
        );
    }

    #[test]
    fn cgroup_lines() {
        let all = cgroup(
            b"4:memory:/a:b\n3:cpu,cpuacct:/x (deleted)\n1:name=systemd:/\n0::/user.slice\nx:y\n5:pids:rel\n",
        );
        let path = |n: usize| all[n].path.as_str();
        assert_eq!(all.len(), 4);
        assert_eq!((path(0), path(1), path(2), path(3)), ("/a:b", "/x", "/", "/user.slice"));
        assert_eq!(all[1].controllers, ["cpu", "cpuacct"]);
        assert!(all[3].controllers.is_empty());
    }

    #[test]
    fn hidden_symbols_and_hidden_processes() {
        assert!(!shows_addresses(b"0000000000000000 A x\n0000000000000000 T _text\n"));
        assert!(shows_addresses(b"0000000000000000 A x\nffffffff81000000 T _text\n"));
        assert!(!shows_addresses(b""));
        let mount =
            |options: &str| format!("22 27 0:21 / /proc rw,relatime - proc proc {options}\n").into_bytes();
        assert_eq!(proc_restrictions(&mount("rw,hidepid=invisible")).as_deref(), Some("hidepid=invisible"));
        assert_eq!(
            proc_restrictions(&mount("rw,gid=4,hidepid=2,subset=pid")).as_deref(),
            Some("hidepid=2,subset=pid")
        );
        assert_eq!(proc_restrictions(&mount("rw,hidepid=off")), None);
        let twice = [mount("rw,hidepid=2"), mount("rw")].concat();
        assert_eq!(proc_restrictions(&twice), None);
    }

    #[test]
    fn waiting_threads() {
        assert_eq!(syscall(b"running\n"), Some(SyscallState::Running));
        assert_eq!(
            syscall(b"202 0x70 0x80 0x0 0x0 0x0 0x0 0x7ffd 0x7f\n"),
            Some(SyscallState::Blocked { number: 202, argument: Some(0x70), ip_sp: Some((0x7f, 0x7ffd)) })
        );
        assert_eq!(
            syscall(b"-1 0x7ffd 0x7f\n"),
            Some(SyscallState::Blocked { number: -1, argument: None, ip_sp: Some((0x7f, 0x7ffd)) })
        );
        assert_eq!(
            syscall(b"5 junk 0x"),
            Some(SyscallState::Blocked { number: 5, argument: None, ip_sp: None })
        );
        assert_eq!(syscall(b""), None);
        let stack = kernel_stack(b"[<0>] futex_wait_queue+0x63/0x90\n[<0>] ext4_x+0x1/0x2 [ext4]\n[<ffffffff81>] do_futex+0x1/0x2\njunk\n");
        assert_eq!(stack, ["futex_wait_queue", "ext4_x", "do_futex"]);
    }

    #[test]
    fn offsets_of_a_time_namespace() {
        let text = b"monotonic      864000   500000000\nboottime            0         0\n";
        assert_eq!(monotonic_offset_ns(text), Some(864_000_500_000_000));
        assert_eq!(monotonic_offset_ns(b"monotonic -10 0\n"), Some(-10_000_000_000));
        for bad in [&b""[..], b"boottime 1 0\n", b"monotonic\n", b"monotonic 9223372036854775807 0\n"] {
            assert_eq!(monotonic_offset_ns(bad), None);
        }
    }

    #[test]
    fn idle_time_of_each_cpu() {
        let text = b"cpu  100 1 20 1000 5 2 3 7 50 0\ncpu0 1 2 3 40 5 0\ncpu12 1 2 3 7\ncpux 1 2 3 4\ncpu3 1 2\nintr 1 2 3 4 5\n";
        assert_eq!(idle_times(text, 10), [(0, 400), (12, 70)]);
        assert_eq!(idle_times(b"", 10), []);
    }

    #[test]
    fn machine_wide_counters() {
        let mut tick = cpu_times(b"cpu  100 1 20 1000 5 2 3 7 50 0\ncpu0 1 2 3\n", 10_000_000).unwrap();
        assert_eq!(tick.busy_ns, 126 * 10_000_000);
        assert_eq!((tick.idle_ns, tick.iowait_ns, tick.steal_ns), (10_000_000_000, 50_000_000, 70_000_000));
        vmstat(
            b"pgsteal_direct 11\nnuma_local 5\nnuma_other 6\nnuma_hint_faults 8\nnuma_hint_faults_local 9\nnuma_pages_migrated 7\nthp_fault_alloc x\ncompact_stall 2\n",
            &mut tick,
        );
        assert_eq!((tick.direct_reclaim_pages, tick.compact_stalls), (Some(11), Some(2)));
        assert_eq!((tick.numa_local, tick.numa_remote, tick.thp_fault_alloc), (Some(5), Some(6), None));
        assert_eq!((tick.numa_moved, tick.numa_hint_faults), (Some(7), Some(8)));
        for bad in [
            &b""[..],
            b"cpu0 1 2 3 4 5 6 7 8\n",
            b"cpu  1 2 3\n",
            b"cpu  1 2 3 4 5 6 7 99999999999999999999\n",
        ] {
            assert_eq!(cpu_times(bad, 10_000_000), None);
        }
        assert_eq!(
            pressure_some(b"some avg10=2.11 avg60=1.22 avg300=0.69 total=109\nfull total=3\n"),
            Some(109)
        );
        assert_eq!(pressure_some(b"full total=3\n"), None);
    }

    #[test]
    fn machine_facts() {
        let m = meminfo(b"MemTotal:       24103 kB\nHugePages_Total:       4\nHugePages_Free:        3\nHugepagesize:       2048 kB\n").unwrap();
        assert_eq!((m.total, m.hugepages_total, m.hugepages_free), (24103 << 10, Some(4), Some(3)));
        assert_eq!((m.hugepage_bytes, m.available), (Some(2 << 20), None));
        for bad in [&b"MemFree: 1 kB\n"[..], b"MemTotalX: 1 kB\nMemTotal: x kB\n"] {
            assert_eq!(meminfo(bad), None);
        }
        assert_eq!(cpu_model(b"processor\t: 0\nmodel name\t: Xeon: gold\n").unwrap(), "Xeon: gold");
        let numbers = b"CPU implementer\t: 0x41\nCPU part\t: 0xd0c\n";
        assert_eq!(cpu_model(numbers).unwrap(), "CPU 0x41/0xd0c");
        let board = [&numbers[..], b"\nModel\t\t: Some Board\n"].concat();
        assert_eq!(cpu_model(&board).unwrap(), "Some Board");
        assert_eq!(cpu_model(b"processor\t: 0\n"), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            all_parsers(&bytes);
        }

        /// Almost valid input reaches more code of the parsers than random bytes do.
        #[test]
        fn no_damage_makes_a_parser_panic(which in 0..2usize, at in 0..400usize, byte in any::<u8>(), cut in 0..500usize) {
            let mut bytes = [STAT, STATUS][which].to_vec();
            let len = bytes.len();
            bytes[at % len] = byte;
            bytes.truncate(cut.max(1));
            all_parsers(&bytes);
        }

        #[test]
        fn any_comm_survives(comm in proptest::collection::vec(any::<u8>(), 0..16)) {
            let mut line = b"7 (".to_vec();
            line.extend(&comm);
            line.extend(b") R 1 1 1 0 -1 0 1 2 3 4 5 6 7 8 20 0 1 0 9 4096 2 3 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0\n");
            let stat = process_stat(&line).unwrap();
            prop_assert_eq!(stat.comm, String::from_utf8_lossy(&comm));
            prop_assert_eq!((stat.user_ticks, stat.cpu), (5, 1));
        }
    }
}
