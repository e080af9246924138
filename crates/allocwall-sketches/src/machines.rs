//! Generates /proc and /sys trees of machines that are not available. The repository has no dump of a real machine.
//!
//! Formats of the files: proc(5), Documentation/filesystems/proc.rst, admin-guide/cgroup-v2.rst,
//! admin-guide/cgroup-v1/, admin-guide/cputopology.rst. The trees have only what the tool reads.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The target's first process. The workers have the next numbers.
pub const TARGET: i32 = 4_000_001;
/// The kernel uses this value on all such machines.
const TICKS_A_SECOND: u64 = 100;
const PAGE_KIB: u64 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Groups {
    V1,
    V2,
    Hybrid,
    /// Nothing is mounted.
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    Host,
    Lxc,
    Docker,
    Kubernetes,
}

#[derive(Clone, Debug)]
pub struct Server {
    pub kernel: &'static str,
    /// Online CPUs as the kernel lists them, with or without holes.
    pub cpus: &'static str,
    /// CPUs of each node. A node without CPUs has only memory.
    pub nodes: &'static [&'static str],
    /// Nodes that have memory.
    pub with_memory: &'static str,
    /// The node that all pages of the processes are on.
    pub pages_on: u32,
    pub uptime_s: u64,
    pub groups: Groups,
    pub home: Home,
    /// Processes of other users are hidden.
    pub hidepid: bool,
    /// Pressure stall information, run delays and the list of children. Each needs an option of the kernel's
    /// configuration.
    pub whole_kernel: bool,
    pub processes: u32,
    pub threads: u32,
    /// Start value of the cumulative counters of processes and of the cgroup.
    pub past: u64,
}

impl Server {
    /// Eight CPUs, cgroup v2, one week of uptime.
    pub fn usual() -> Server {
        Server {
            kernel: "6.12.9-amd64",
            cpus: "0-7",
            nodes: &["0-7"],
            with_memory: "0",
            pages_on: 0,
            uptime_s: 7 * 86_400,
            groups: Groups::V2,
            home: Home::Host,
            hidepid: false,
            whole_kernel: true,
            processes: 2,
            threads: 2,
            past: 1_000,
        }
    }

    pub fn cpu_numbers(&self) -> Vec<u32> {
        numbers(self.cpus)
    }

    /// A process's path in its hierarchy, as /proc/PID/cgroup shows it.
    fn group(&self) -> &'static str {
        match self.home {
            Home::Host => "/system.slice/api.service",
            Home::Lxc => "/lxc.payload.web/system.slice/api.service",
            Home::Docker => "/docker/3f1c9d5e8a7b",
            Home::Kubernetes => {
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1f0c.slice/cri-containerd-9a8b.scope"
            }
        }
    }

    pub fn pids(&self) -> impl Iterator<Item = i32> + use<> {
        TARGET..TARGET + self.processes as i32
    }

    pub fn tids(&self, pid: i32) -> impl Iterator<Item = i32> + use<> {
        let more = (pid - TARGET) * self.threads as i32 + 100_000_000;
        std::iter::once(pid).chain(more + 1..more + self.threads as i32)
    }

    pub fn build(&self) -> Tree {
        let tree = Tree { dir: tempfile::tempdir().unwrap(), server: self.clone() };
        tree.machine();
        tree.topology();
        tree.groups();
        for pid in self.pids() {
            tree.process(pid);
        }
        tree.advance(0, 0);
        tree
    }
}

pub struct Tree {
    dir: tempfile::TempDir,
    pub server: Server,
}

impl Tree {
    pub fn root(&self) -> &Path {
        self.dir.path()
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        let path = self.root().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn link(&self, name: &str, target: &str) {
        let path = self.root().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
    }

    /// Every regular file, in order.
    pub fn files(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut folders = vec![self.root().to_path_buf()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap().flatten() {
                let kind = entry.file_type().unwrap();
                if kind.is_dir() {
                    folders.push(entry.path());
                } else if kind.is_file() {
                    found.push(entry.path());
                }
            }
        }
        found.sort();
        found
    }

    fn machine(&self) {
        let s = &self.server;
        self.write("proc/sys/kernel/osrelease", format!("{}\n", s.kernel));
        self.write("proc/sys/kernel/perf_event_paranoid", "2\n");
        self.write("proc/sys/kernel/kptr_restrict", "1\n");
        self.write("proc/sys/kernel/yama/ptrace_scope", "1\n");
        self.write("proc/kallsyms", "0000000000000000 T _text\n");
        self.write(
            "proc/diskstats",
            "   8       0 sda 1213097 63583 114504258 2455355 233992 298105 152344640 262172 0 172364 2757443 339056 19 28995872 36929 47442 2984\n   \
             8       1 sda1 1213000 63583 114504000 2455000 233992 298105 152344640 262172 0 172300 2757000 0 0 0 0 0 0\n",
        );
        self.write("proc/cpuinfo", "processor\t: 0\nmodel name\t: Some Server CPU\n");
        let gib = 4 * s.cpu_numbers().len();
        self.write(
            "proc/meminfo",
            format!(
                "MemTotal: {} kB\nMemAvailable: {} kB\nHugePages_Total: 0\nHugePages_Free: 0\nHugepagesize: 2048 kB\n",
                gib << 20,
                gib << 19
            ),
        );
        self.write("proc/self/status", status(7, 1, 0, 1, 0));
        let group = match s.home {
            Home::Host => "0::/user.slice\n".to_owned(),
            _ => format!("0::{}\n", s.group()),
        };
        self.write("proc/self/cgroup", &group);
        self.write("proc/1/cgroup", &group);
        let first = s.home == Home::Host;
        for (kind, inode) in [
            ("ipc", 0xEFFF_FFFFu32),
            ("uts", 0xEFFF_FFFE),
            ("pid", 0xEFFF_FFFC),
            ("cgroup", 0xEFFF_FFFB),
            ("mnt", 0xF000_0000),
            ("user", 0xEFFF_FFFD),
        ] {
            let inode = if first { inode } else { 4_026_532_500 };
            self.link(&format!("proc/self/ns/{kind}"), &format!("{kind}:[{inode}]"));
        }
        let setting = "sys/kernel/mm/transparent_hugepage";
        self.write(&format!("{setting}/enabled"), "always [madvise] never\n");
        self.write(&format!("{setting}/defrag"), "always defer defer+madvise [madvise] never\n");
        let hide = if s.hidepid { ",hidepid=invisible" } else { "" };
        let mut mounts = format!("22 27 0:21 / /proc rw,nosuid - proc proc rw{hide}\n");
        let v1 = |controllers: &str, folder: &str| {
            format!("32 31 0:29 / /sys/fs/cgroup/{folder} rw - cgroup cgroup rw,{controllers}\n")
        };
        if matches!(s.groups, Groups::V1 | Groups::Hybrid) {
            mounts += &v1("cpu,cpuacct", "cpu,cpuacct");
            mounts += &v1("memory", "memory");
            mounts += &v1("name=systemd", "systemd");
        }
        match s.groups {
            Groups::V2 => mounts += "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n",
            Groups::Hybrid => mounts += "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
            Groups::V1 | Groups::None => {}
        }
        self.write("proc/self/mountinfo", mounts);
    }

    fn topology(&self) {
        let s = &self.server;
        let system = "sys/devices/system";
        self.write(&format!("{system}/cpu/online"), format!("{}\n", s.cpus));
        self.write(&format!("{system}/node/has_memory"), format!("{}\n", s.with_memory));
        for (node, cpus) in s.nodes.iter().enumerate() {
            self.write(&format!("{system}/node/node{node}/cpulist"), format!("{cpus}\n"));
            for cpu in numbers(cpus) {
                let of_cpu = format!("{system}/cpu/cpu{cpu}");
                self.write(&format!("{of_cpu}/topology/thread_siblings_list"), format!("{cpu}\n"));
                self.write(&format!("{of_cpu}/cache/index3/level"), "3\n");
                self.write(&format!("{of_cpu}/cache/index3/shared_cpu_list"), format!("{cpus}\n"));
            }
        }
    }

    fn groups(&self) {
        let s = &self.server;
        let group = s.group();
        if matches!(s.groups, Groups::V1 | Groups::Hybrid) {
            let cpu = format!("sys/fs/cgroup/cpu,cpuacct{group}");
            self.write(&format!("{cpu}/cpu.cfs_quota_us"), "400000\n");
            self.write(&format!("{cpu}/cpu.cfs_period_us"), "100000\n");
            let memory = format!("sys/fs/cgroup/memory{group}");
            self.write(&format!("{memory}/memory.usage_in_bytes"), "1073741824\n");
            self.write(&format!("{memory}/memory.limit_in_bytes"), "9223372036854771712\n");
        }
        let v2 = match s.groups {
            Groups::V2 => format!("sys/fs/cgroup{group}"),
            Groups::Hybrid => format!("sys/fs/cgroup/unified{group}"),
            Groups::V1 | Groups::None => return,
        };
        self.write(&format!("{v2}/cgroup.procs"), self.all_pids());
        if s.groups == Groups::V2 {
            self.write(&format!("{v2}/cpu.max"), "400000 100000\n");
            self.write(&format!("{v2}/memory.current"), "1073741824\n");
            self.write(&format!("{v2}/memory.max"), "max\n");
        }
    }

    fn all_pids(&self) -> String {
        self.server.pids().fold(String::new(), |mut text, pid| {
            let _ = writeln!(text, "{pid}");
            text
        })
    }

    fn process(&self, pid: i32) {
        let s = &self.server;
        let proc = format!("proc/{pid}");
        let uid = if s.hidepid { 1000 } else { 0 };
        let parent = if pid == TARGET { 1 } else { TARGET };
        self.write(&format!("{proc}/comm"), "api\n");
        self.write(&format!("{proc}/cmdline"), "/usr/bin/api\0--port\08080\0");
        self.write(&format!("{proc}/environ"), "PATH=/usr/bin\0MALLOC_ARENA_MAX=4\0");
        self.write(&format!("{proc}/status"), status(pid, parent, uid, s.threads, 100));
        self.write(
            &format!("{proc}/maps"),
            "55d000000000-55d000100000 r-xp 00001000 08:01 1835027                    /usr/bin/api\n\
             55d000200000-55d000300000 rw-p 00000000 00:00 0                          [heap]\n\
             7f0000000000-7f0000100000 r-xp 00028000 08:01 1835028                    /usr/lib/libc.so.6\n\
             7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0                          [stack]\n\
             7ffd00030000-7ffd00032000 r-xp 00000000 00:00 0                          [vdso]\n",
        );
        self.write(
            &format!("{proc}/smaps_rollup"),
            "55d000000000-7ffd00032000 ---p 00000000 00:00 0 [rollup]\nRss: 400 kB\nPss: 390 kB\nAnonymous: 300 kB\n\
             LazyFree: 0 kB\nAnonHugePages: 0 kB\nSwap: 0 kB\n",
        );
        self.write(
            &format!("{proc}/numa_maps"),
            format!("55d000200000 default heap anon=75 dirty=75 N{}=75 kernelpagesize_kB=4\n", s.pages_on),
        );
        self.write(&format!("{proc}/auxv"), auxv());
        if pid == TARGET {
            self.network(&format!("{proc}/net"));
        }
        self.link(&format!("{proc}/exe"), "/usr/bin/api");
        self.write(&format!("{proc}/cgroup"), self.membership());
        for kind in ["pid", "mnt", "user", "cgroup"] {
            self.link(&format!("{proc}/ns/{kind}"), &format!("{kind}:[4026532500]"));
        }
        for tid in s.tids(pid) {
            let task = format!("{proc}/task/{tid}");
            self.write(&format!("{task}/comm"), "api\n");
            self.write(
                &format!("{task}/syscall"),
                "202 0x1 0x80 0x0 0x0 0x0 0x0 0x7f0000ff0000 0x7f0000012345\n",
            );
            self.write(
                &format!("{task}/stack"),
                "[<0>] futex_wait_queue+0x63/0x90\n[<0>] do_futex+0x105/0x2c0\n[<0>] do_syscall_64+0x5c/0x90\n",
            );
            self.write(&format!("{task}/wchan"), "futex_wait_queue");
            if s.whole_kernel {
                let children = s.pids().skip(1).filter(|_| tid == TARGET);
                let children: String = children.map(|child| format!("{child} ")).collect();
                self.write(&format!("{task}/children"), children);
            }
        }
    }

    /// Of the namespace that all processes share.
    fn network(&self, folder: &str) {
        self.write(
            &format!("{folder}/snmp"),
            "Ip: Forwarding DefaultTTL\nIp: 2 64\nTcp: MaxConn InSegs OutSegs RetransSegs\nTcp: -1 11514035 11500608 55\n\
             Udp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors\nUdp: 179 0 0 181 0\n",
        );
        self.write(
            &format!("{folder}/netstat"),
            "TcpExt: ListenOverflows ListenDrops TCPTimeouts\nTcpExt: 0 0 59\n",
        );
        self.write(
            &format!("{folder}/dev"),
            "Inter-|   Receive |  Transmit\n face |bytes packets errs drop|bytes packets errs drop\n  eth0: 7579360 28864 0 0 1697633 15476 0 0\n",
        );
    }

    fn membership(&self) -> String {
        let group = self.server.group();
        match self.server.groups {
            Groups::V1 => format!("5:memory:{group}\n3:cpu,cpuacct:{group}\n1:name=systemd:{group}\n"),
            Groups::Hybrid => {
                format!("5:memory:{group}\n3:cpu,cpuacct:{group}\n1:name=systemd:{group}\n0::{group}\n")
            }
            Groups::V2 | Groups::None => format!("0::{group}\n"),
        }
    }

    /// Updates the counters: after `passed_ms`, the target has used `used_ms` of CPU time. Files that a test removed
    /// stay removed.
    pub fn advance(&self, passed_ms: u64, used_ms: u64) {
        let s = &self.server;
        let first = passed_ms == 0;
        let put = |name: &str, text: String| {
            let path = self.root().join(name);
            match first {
                true => self.write(name, text),
                // A test emptied or truncated this file: it stays so.
                false if fs::metadata(&path).is_ok_and(|file| file.len() >= text.len() as u64) => {
                    fs::write(path, text).unwrap()
                }
                false => {}
            }
        };
        let cpus = s.cpu_numbers();
        let online = cpus.len() as u64;
        // The width of the numbers is constant, so that a truncated file is recognized by its length.
        let ticks = |ms: u64| ms * TICKS_A_SECOND / 1000;
        let up = s.uptime_s * TICKS_A_SECOND * online;
        let idle = up / 2 + ticks(passed_ms * online - used_ms);
        let user = up / 2 + ticks(used_ms);
        let mut stat = format!("cpu  {user:020} 0 0 {idle:020} 0 0 0 0 0 0\n");
        for cpu in &cpus {
            let (user, idle) = (user / online, idle / online);
            let _ = writeln!(stat, "cpu{cpu} {user:020} 0 0 {idle:020} 0 0 0 0 0 0");
        }
        put("proc/stat", stat);
        put(
            "proc/vmstat",
            "pgsteal_direct 0\ncompact_stall 0\nthp_fault_alloc 5\nthp_fault_fallback 0\nnuma_other 0\nnuma_local 9\nnuma_pages_migrated 4\nnuma_hint_faults 6\n"
                .to_owned(),
        );
        if s.whole_kernel {
            for resource in ["cpu", "memory", "io"] {
                let total = s.uptime_s * 1000;
                put(
                    &format!("proc/pressure/{resource}"),
                    format!("some avg10=0.00 avg60=0.00 avg300=0.00 total={total:020}\n"),
                );
            }
        }
        let group = s.group();
        let throttling = match s.groups {
            Groups::V1 | Groups::Hybrid => {
                Some((format!("sys/fs/cgroup/cpu,cpuacct{group}"), "throttled_time"))
            }
            Groups::V2 => Some((format!("sys/fs/cgroup{group}"), "throttled_usec")),
            Groups::None => None,
        };
        if let Some((folder, name)) = throttling {
            put(
                &format!("{folder}/cpu.stat"),
                format!("nr_periods {:020}\nnr_throttled 0\n{name} 0\n", s.past + passed_ms / 100),
            );
        }
        let share = used_ms / u64::from(s.processes);
        let own = share / u64::from(s.threads);
        for pid in s.pids() {
            let parent = if pid == TARGET { 1 } else { TARGET };
            let line = |id: i32, ms: u64, threads: u32| {
                stat_line(id, parent, s.past + ticks(ms), threads, s.uptime_s * 50)
            };
            put(&format!("proc/{pid}/stat"), line(pid, share, s.threads));
            for tid in s.tids(pid) {
                let task = format!("proc/{pid}/task/{tid}");
                put(&format!("{task}/stat"), line(tid, own, s.threads));
                put(&format!("{task}/status"), status(pid, parent, 0, s.threads, 100 + passed_ms));
                if s.whole_kernel {
                    let ns = s.past * 1_000_000 + own * 1_000_000;
                    put(&format!("{task}/schedstat"), format!("{ns:020} 0 00000001\n"));
                }
            }
        }
    }
}

fn stat_line(pid: i32, parent: i32, user: u64, threads: u32, born: u64) -> String {
    let pages = 100_000 / PAGE_KIB;
    format!(
        "{pid:010} (api) S {parent} 1 1 0 -1 0 7 0 0 0 {user:020} 5 0 0 20 0 {threads} 0 {born} 409600000 {pages} 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0\n"
    )
}

fn status(pid: i32, parent: i32, uid: u32, threads: u32, switches: u64) -> String {
    format!(
        "Name:\tapi\nState:\tS (sleeping)\nTgid:\t{pid}\nPPid:\t{parent}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n\
         Gid:\t0\t0\t0\t0\nNSpid:\t{pid}\nVmPeak:\t  400000 kB\nVmSize:\t  400000 kB\nVmData:\t  300000 kB\nVmHWM:\t  100000 kB\n\
         VmRSS:\t  100000 kB\nRssAnon:\t   80000 kB\nThreads:\t{threads}\nCapEff:\t000001ffffffffff\nNoNewPrivs:\t0\nSeccomp:\t0\n\
         Cpus_allowed_list:\t0-7\nTHP_enabled:\t1\nvoluntary_ctxt_switches:\t{switches:010}\nnonvoluntary_ctxt_switches:\t0000000001\n"
    )
}

/// AT_SECURE 0, AT_NULL: linux/auxvec.h.
fn auxv() -> Vec<u8> {
    [23u64, 0, 0, 0].iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Members of a list such as `0-3,8`.
fn numbers(list: &str) -> Vec<u32> {
    list.split(',')
        .filter(|part| !part.is_empty())
        .flat_map(|part| {
            let (low, high) = part.split_once('-').unwrap_or((part, part));
            low.parse::<u32>().unwrap()..=high.parse().unwrap()
        })
        .collect()
}
