//! Control groups, version 1, 2 and both at once: the group of a process, its limits, and how often it was
//! throttled. Sources: Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/, scheduler/sched-bwc.rst.

use crate::facts::Machine;
use crate::file::{self, lines, number, unparsable, words};
use crate::proc::{CgroupLine, ProcFs, pair};
use allocwall_model::error::{Error, Result};
use allocwall_model::machine::CgroupTick;
use allocwall_model::resident::GroupMemory;
use allocwall_model::units::{Absence, Measured, Reason};
use std::path::{Component, Path, PathBuf};

/// The hierarchies mounted on a machine.
#[derive(Clone, Debug)]
pub struct CgroupFs {
    proc: ProcFs,
    root: PathBuf,
    mounts: Vec<Mount>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    version: u8,
    /// v1: controllers or `name=…`. v2 has no list here: each group has its own list.
    controllers: Vec<String>,
    /// The part of the hierarchy that is mounted. It is not `/` inside containers that share the host's
    /// cgroup namespace.
    top: String,
    /// As a path below the machine's root.
    point: PathBuf,
}

/// The limits of a group: its own directory, and those of its ancestors that are visible here.
#[derive(Clone, Debug)]
pub struct Cgroup {
    /// The name in /proc/PID/cgroup, in the hierarchy that limits CPU.
    pub path: String,
    pub version: u8,
    cpu: Measured<Levels>,
    memory: Measured<Levels>,
    /// The index of the level whose throttling is counted. It stays the same once there is a limit, so that
    /// counters stay cumulative.
    counted: Option<usize>,
}

#[derive(Clone, Debug)]
struct Levels {
    version: u8,
    /// Leaf first.
    dirs: Vec<PathBuf>,
}

impl Levels {
    /// The names of the files with usage and limit, in bytes.
    fn memory_files(&self) -> (&'static str, &'static str) {
        match self.version {
            1 => ("memory.usage_in_bytes", "memory.limit_in_bytes"),
            _ => ("memory.current", "memory.max"),
        }
    }
}

/// A quota and the directory that sets it.
#[derive(Clone, Debug, PartialEq)]
pub struct Quota {
    pub cpus: f64,
    pub dir: PathBuf,
    level: usize,
}

/// A group whose processes cannot run because it is frozen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frozen {
    pub dir: PathBuf,
    /// The command that thaws the group.
    pub thaw: String,
}

impl CgroupFs {
    pub fn live() -> Measured<Self> {
        Self::of(&Machine::live())
    }

    pub fn of(machine: &Machine) -> Measured<Self> {
        let root = machine.path("/");
        let mountinfo = machine.path("/proc/self/mountinfo");
        let mounts = file::read(&mountinfo, |bytes| Ok(cgroup_mounts(bytes, &root)))?;
        if mounts.is_empty() {
            let detail = "no cgroup hierarchy is mounted here, so CPU quotas and throttling are unknown";
            return Err(Absence::new(Reason::NotFound, detail).mend(
                "mount it into the container (-v /sys/fs/cgroup:/sys/fs/cgroup:ro), or run on the host",
            ));
        }
        Ok(CgroupFs { proc: machine.proc.clone(), root, mounts })
    }

    /// The version of the hierarchy that limits CPU. On hybrid machines that is usually 1.
    pub fn version(&self) -> u8 {
        let first = |mount: &Mount| mount.version == 1 && mount.controllers.iter().any(|name| name == "cpu");
        if self.mounts.iter().any(first) { 1 } else { 2 }
    }

    /// Both versions are mounted.
    pub fn hybrid(&self) -> bool {
        self.mounts.iter().any(|mount| mount.version == 1)
            && self.mounts.iter().any(|mount| mount.version == 2)
    }

    pub fn group_of(&self, pid: i32) -> Measured<Cgroup> {
        self.group(&self.proc.cgroups(pid)?)
    }

    fn group(&self, membership: &[CgroupLine]) -> Measured<Cgroup> {
        let line = self.line_for("cpu", membership)?.0;
        let mut cgroup = Cgroup {
            path: line.path.clone(),
            version: if line.hierarchy == 0 { 2 } else { 1 },
            cpu: self.levels("cpu", membership),
            memory: self.levels("memory", membership),
            counted: None,
        };
        cgroup.counted = cgroup.quota()?.map(|quota| quota.level);
        Ok(cgroup)
    }

    /// The membership line for a controller, and the mounts that show its group.
    fn line_for<'a>(
        &'a self,
        controller: &str,
        membership: &'a [CgroupLine],
    ) -> Measured<(&'a CgroupLine, Vec<&'a Mount>)> {
        let has = |names: &[String]| names.iter().any(|name| name == controller);
        let line = membership
            .iter()
            .find(|line| line.hierarchy != 0 && has(&line.controllers))
            .or_else(|| membership.iter().find(|line| line.hierarchy == 0 && line.controllers.is_empty()))
            .ok_or_else(|| {
                Absence::new(
                    Reason::NotSupported,
                    format!("this kernel has no {controller} cgroup controller"),
                )
            })?;
        let version = if line.hierarchy == 0 { 2 } else { 1 };
        let mounts = self
            .mounts
            .iter()
            .filter(|mount| mount.version == version && (version == 2 || has(&mount.controllers)))
            .collect();
        Ok((line, mounts))
    }

    fn levels(&self, controller: &str, membership: &[CgroupLine]) -> Measured<Levels> {
        let (line, mounts) = self.line_for(controller, membership)?;
        for mount in &mounts {
            let Some(below) = below(&line.path, &mount.top) else {
                continue;
            };
            let mut dirs = vec![mount.point.clone()];
            for name in below.split('/').filter(|name| !name.is_empty()) {
                dirs.push(dirs[dirs.len() - 1].join(name));
            }
            dirs.reverse();
            if dirs[0].is_dir() {
                return Ok(Levels { version: mount.version, dirs });
            }
        }
        Err(if !mounts.is_empty() {
            Absence::new(
                Reason::NotFound,
                format!(
                    "cgroup {} is outside the part of the {controller} hierarchy that is visible here",
                    line.path
                ),
            )
            .mend("run on the host")
            .mend("start the container with --cgroupns=host")
        } else {
            Absence::new(Reason::NotFound, format!("the {controller} cgroup hierarchy is not mounted here"))
                .mend("mount it into the container (-v /sys/fs/cgroup:/sys/fs/cgroup:ro)")
                .mend("run on the host")
        })
    }

    /// Bytes until this process reaches a memory limit, of its own group or of one above it; None if there is
    /// no limit that can be read.
    pub fn own_memory_room(&self) -> Option<u64> {
        let levels = self.levels("memory", &self.proc.own_cgroups().ok()?).ok()?;
        let (usage, max) = levels.memory_files();
        let bytes = |dir: &Path, name: &str| file::read_number::<u64>(&dir.join(name)).ok();
        levels.dirs.iter().filter_map(|dir| Some(bytes(dir, max)?.saturating_sub(bytes(dir, usage)?))).min()
    }

    /// The directories of this process's own memory group and of those above it, own first, with the version of their hierarchy.
    pub fn own_memory_groups(&self) -> Measured<(u8, Vec<PathBuf>)> {
        let levels = self.levels("memory", &self.proc.own_cgroups()?)?;
        Ok((levels.version, levels.dirs))
    }

    /// What the kernel keeps for the group of a process and the groups below it.
    pub fn kernel_memory(&self, pid: i32) -> Measured<GroupMemory> {
        let membership = self.proc.cgroups(pid)?;
        let (line, _) = self.line_for("memory", &membership)?;
        let levels = self.levels("memory", &membership)?;
        let dir = &levels.dirs[0];
        // The path does not show it: in a cgroup namespace it starts at another group. The top group of version 1 alone has
        // this file (CFTYPE_ONLY_ON_ROOT in kernel/cgroup/cgroup-v1.c), and the one of version 2 has no count of its own
        // (cgroup-v2.rst, memory.current).
        let is_top = match levels.version {
            1 => dir.join("cgroup.sane_behavior").exists(),
            _ => !dir.join("memory.current").exists(),
        };
        if is_top {
            return Err(Absence::new(
                Reason::NotApplicable,
                "the process is in the top cgroup, whose memory is that of the whole machine",
            ));
        }
        let path = dir.join("memory.stat");
        let (counted, page_cache_bytes) = file::read(&path, |bytes| {
            group_memory(bytes, levels.version).ok_or_else(|| unparsable(&path.display(), bytes))
        })?;
        let kernel_bytes = match counted {
            Some(bytes) => bytes,
            None => file::read_number(&dir.join("memory.kmem.usage_in_bytes"))?,
        };
        Ok(GroupMemory { path: line.path.clone(), kernel_bytes, page_cache_bytes })
    }

    /// The nearest frozen group that contains this process; None if there is none.
    pub fn frozen(&self, pid: i32) -> Option<Frozen> {
        let membership = self.proc.cgroups(pid).ok()?;
        let unified: Vec<CgroupLine> =
            membership.iter().filter(|line| line.hierarchy == 0).cloned().collect();
        [&membership, &unified].into_iter().find_map(|lines| {
            let levels = self.levels("freezer", lines).ok()?;
            levels.dirs.into_iter().find_map(|dir| frozen(dir, levels.version))
        })
    }

    /// The processes of a group and of all groups below it, for targets given by group. `path` is a directory
    /// of a mounted hierarchy, or a path as in /proc/PID/cgroup.
    pub fn pids(&self, path: &str) -> Result<Vec<i32>> {
        let dir = self.directory(path)?;
        let mut pids = Vec::new();
        let mut foreign = false;
        let mut pending = vec![dir.clone()];
        while let Some(dir) = pending.pop() {
            let procs = dir.join("cgroup.procs");
            let read = file::read(&procs, |bytes| {
                words(bytes)
                    .map(number::<i32>)
                    .collect::<Option<Vec<_>>>()
                    .ok_or_else(|| unparsable(&procs.display(), bytes))
            });
            match read {
                Ok(found) => {
                    // The kernel lists a process of a PID namespace that is not visible here as 0.
                    foreign |= found.contains(&0);
                    pids.extend(found.into_iter().filter(|&pid| pid > 0));
                }
                // Groups appear and disappear. Threaded groups (EOPNOTSUPP) are listed by their domain, which
                // is an ancestor.
                Err(absence)
                    if matches!(
                        absence.reason,
                        Reason::NotFound | Reason::Vanished | Reason::NotSupported
                    ) => {}
                Err(absence) => return Err(Error::Refused(format!("cgroup {path}: {absence}"))),
            }
            let children = std::fs::read_dir(&dir).into_iter().flatten().flatten();
            pending.extend(children.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()));
        }
        pids.sort_unstable();
        pids.dedup();
        match (pids.is_empty(), foreign) {
            (false, _) => Ok(pids),
            (true, true) => Err(Error::Refused(format!(
                "cgroup {path}: its processes are in another PID namespace; run on the host or with --pid=host"
            ))),
            (true, false) => {
                Err(Error::Refused(format!("cgroup {path} has no processes ({})", dir.display())))
            }
        }
    }

    fn directory(&self, path: &str) -> Result<PathBuf> {
        let refused = |why: String| Err(Error::Refused(format!("--cgroup {path}: {why}")));
        let given = Path::new(path);
        if path.trim().is_empty() || given.components().any(|part| matches!(part, Component::ParentDir)) {
            return refused(
                "give a path without `..`, as in /proc/PID/cgroup or below /sys/fs/cgroup".to_owned(),
            );
        }
        let relative = path.trim_start_matches('/');
        let absolute = self.root.join(relative);
        if let Some(mount) = self.mounts.iter().find(|mount| absolute.starts_with(&mount.point)) {
            return if absolute.is_dir() {
                Ok(absolute)
            } else {
                refused(format!("no such group below {}", mount.point.display()))
            };
        }
        // The hierarchy that limits CPU comes first: other hierarchies may group the same processes
        // differently.
        let mut mounts: Vec<&Mount> = self.mounts.iter().collect();
        mounts
            .sort_by_key(|mount| !(mount.controllers.iter().any(|name| name == "cpu") || mount.version == 2));
        let found = mounts.iter().find_map(|mount| {
            let dir = mount.point.join(below(&format!("/{relative}"), &mount.top).unwrap_or(relative));
            dir.is_dir().then_some(dir)
        });
        match found {
            Some(dir) => Ok(dir),
            None => refused(
                "no mounted hierarchy has this group; `cat /proc/PID/cgroup` shows a process's path"
                    .to_owned(),
            ),
        }
    }
}

impl Cgroup {
    /// The tightest quota from this group up to the top; None if there is no limit.
    pub fn quota(&self) -> Measured<Option<Quota>> {
        let levels = self.cpu.as_ref().map_err(Absence::clone)?;
        let mut tightest: Option<Quota> = None;
        for (level, dir) in levels.dirs.iter().enumerate() {
            let Some(cpus) = quota_cpus(dir, levels.version)? else {
                continue;
            };
            if tightest.as_ref().is_none_or(|quota| cpus < quota.cpus) {
                tightest = Some(Quota { cpus, dir: dir.clone(), level });
            }
        }
        Ok(tightest)
    }

    /// Throttling is counted at the level that had the tightest quota when the group was first read.
    pub fn tick(&self) -> Measured<CgroupTick> {
        let levels = self.cpu.as_ref().map_err(Absence::clone)?;
        if !levels.dirs[0].is_dir() {
            return Err(Absence::new(Reason::Vanished, format!("cgroup {} was removed", self.path)));
        }
        let quota = self.quota()?;
        let mut tick =
            CgroupTick { quota_cpus: quota.as_ref().map(|quota| quota.cpus), ..CgroupTick::default() };
        // Without a quota, the kernel does not throttle: the zeros are measured values.
        if let Some(level) = self.counted.or(quota.map(|quota| quota.level)) {
            let path = levels.dirs[level].join("cpu.stat");
            (tick.periods, tick.throttled_periods, tick.throttled_ns) = file::read(&path, |bytes| {
                throttling(bytes).ok_or_else(|| unparsable(&path.display(), bytes))
            })?;
        }
        (tick.memory, tick.memory_limit) = self.memory();
        Ok(tick)
    }

    /// Bytes in use, and the tightest limit. Usage is None at an unlimited top group, because it would be the
    /// whole machine's.
    fn memory(&self) -> (Option<u64>, Option<u64>) {
        let Ok(levels) = &self.memory else {
            return (None, None);
        };
        let (usage, max) = levels.memory_files();
        // v1 writes "no limit" as the largest multiple of a page that fits a long. v2 writes `max`, which is
        // not a number.
        let limited = |bytes: &u64| *bytes < 1 << 62;
        let limit =
            levels.dirs.iter().filter_map(|dir| file::read_number(&dir.join(max)).ok()).filter(limited).min();
        let at_top = levels.dirs.len() == 1 && limit.is_none();
        let usage = if at_top { None } else { file::read_number(&levels.dirs[0].join(usage)).ok() };
        (usage, limit)
    }
}

/// Judges this group alone, not its ancestors: cgroup-v1/freezer-subsystem.rst, and `cgroup.freeze` in
/// cgroup-v2.rst.
fn frozen(dir: PathBuf, version: u8) -> Option<Frozen> {
    let (asked, file, thaw) = match version {
        1 => ("freezer.self_freezing", "freezer.state", "THAWED"),
        _ => ("cgroup.freeze", "cgroup.freeze", "0"),
    };
    let is_asked = file::read_number::<u8>(&dir.join(asked)).ok()? == 1;
    is_asked.then(|| Frozen { thaw: format!("echo {thaw} | sudo tee {}", dir.join(file).display()), dir })
}

/// The quota of one group in CPUs; None if it has no limit or no CPU controller.
fn quota_cpus(dir: &Path, version: u8) -> Measured<Option<f64>> {
    let optional = |read: Measured<Option<f64>>| match read {
        Err(absence) if absence.reason == Reason::NotFound => Ok(None),
        other => other,
    };
    if version == 2 {
        let path = dir.join("cpu.max");
        return optional(file::read(&path, |bytes| {
            cpu_max(bytes).ok_or_else(|| unparsable(&path.display(), bytes))
        }));
    }
    let quota = file::read_number::<i64>(&dir.join("cpu.cfs_quota_us"));
    optional(quota.and_then(|quota| {
        if quota <= 0 {
            return Ok(None);
        }
        let period: u64 = file::read_number(&dir.join("cpu.cfs_period_us"))?;
        Ok((period > 0).then(|| quota as f64 / period as f64))
    }))
}

/// Parses `max 100000` or `50000 100000`. The outer None means that the line does not parse.
pub(crate) fn cpu_max(bytes: &[u8]) -> Option<Option<f64>> {
    let mut fields = words(bytes);
    let quota = fields.next()?;
    let period: u64 = fields.next().map_or(Some(100_000), number)?;
    if quota == b"max" {
        return Some(None);
    }
    let quota: u64 = number(quota)?;
    (period > 0).then(|| Some(quota as f64 / period as f64))
}

/// Periods, throttled periods and throttled nanoseconds from cpu.stat of either version.
pub(crate) fn throttling(bytes: &[u8]) -> Option<(u64, u64, u64)> {
    let (mut periods, mut throttled, mut ns) = (None, None, None);
    for line in lines(bytes) {
        let Some((name, value)) = pair(line, b' ') else {
            continue;
        };
        match name {
            b"nr_periods" => periods = number::<u64>(value),
            b"nr_throttled" => throttled = number::<u64>(value),
            b"throttled_time" => ns = number::<u64>(value),
            b"throttled_usec" => ns = number::<u64>(value)?.checked_mul(1000),
            _ => {}
        }
    }
    Some((periods?, throttled?, ns?))
}

/// Kernel memory and page cache from memory.stat. Version 1 has no line for kernel memory. Before Linux 5.18, version 2
/// has only the parts.
pub(crate) fn group_memory(bytes: &[u8], version: u8) -> Option<(Option<u64>, u64)> {
    let value = |wanted: &[u8]| {
        let mut pairs = lines(bytes).filter_map(|line| pair(line, b' '));
        pairs.find(|(name, _)| *name == wanted).and_then(|(_, value)| number::<u64>(value))
    };
    if version == 1 {
        return Some((None, value(b"total_cache").or_else(|| value(b"cache"))?));
    }
    let parts = || {
        let others = [&b"pagetables"[..], b"percpu", b"slab"];
        let others = others.iter().map(|name| value(name).unwrap_or(0));
        others.fold(value(b"kernel_stack"), |sum, part| sum?.checked_add(part))
    };
    Some((Some(value(b"kernel").or_else(parts)?), value(b"file")?))
}

/// The part of `path` below `top`; None if `path` is outside.
fn below<'a>(path: &'a str, top: &str) -> Option<&'a str> {
    let top = top.trim_end_matches('/');
    let rest = path.strip_prefix(top)?;
    // `/ab` is not below `/a`. A path with `..` is always outside.
    let inside = (rest.is_empty() || rest.starts_with('/')) && !rest.split('/').any(|name| name == "..");
    inside.then(|| rest.trim_start_matches('/'))
}

/// Lines of mountinfo, proc_pid_mountinfo(5): `36 35 98:0 /top /point options [tags] - type source super-options`.
pub(crate) fn cgroup_mounts(bytes: &[u8], root: &Path) -> Vec<Mount> {
    let mount = |line: &[u8]| -> Option<Mount> {
        let fields: Vec<&[u8]> = words(line).collect();
        let dash = fields.iter().position(|&word| word == b"-")?;
        let version = match *fields.get(dash + 1)? {
            b"cgroup" => 1,
            b"cgroup2" => 2,
            _ => return None,
        };
        let point = unescaped(fields.get(4)?);
        let options = String::from_utf8_lossy(fields.get(dash + 3)?).into_owned();
        let controllers = match version {
            1 => {
                options.split(',').filter(|name| *name != "rw" && *name != "ro").map(str::to_owned).collect()
            }
            _ => Vec::new(),
        };
        Some(Mount {
            version,
            controllers,
            top: unescaped(fields.get(3)?),
            point: root.join(point.trim_start_matches('/')),
        })
    };
    lines(bytes).filter_map(mount).collect()
}

/// mountinfo writes blanks and backslashes as octal escapes, for example `\040`.
fn unescaped(bytes: &[u8]) -> String {
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = (byte == b'\\')
            .then(|| tail.get(..3))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match octal {
            Some(value) => {
                out.push(value);
                rest = &tail[3..];
            }
            None => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    struct Fake(tempfile::TempDir);

    impl Fake {
        fn new(mountinfo: &str, files: &[(&str, &str)]) -> Self {
            let fake = Fake(tempfile::tempdir().unwrap());
            fake.write("proc/self/mountinfo", mountinfo);
            for (name, body) in files {
                fake.write(name, body);
            }
            fake
        }

        fn write(&self, name: &str, body: &str) {
            let path = self.0.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, body).unwrap();
        }

        fn fs(&self) -> CgroupFs {
            CgroupFs::of(&Machine::at(self.0.path())).unwrap()
        }
    }

    const V1: &str = "22 27 0:21 / /proc rw - proc proc rw\n\
        32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n\
        35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n\
        40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n";
    const V2: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn v1_takes_the_tightest_limit_on_the_path_and_counts_there() {
        let cpu = "sys/fs/cgroup/cpu,cpuacct";
        let fake = Fake::new(
            V1,
            &[
                ("proc/7/cgroup", "5:memory:/pod/box\n3:cpu,cpuacct:/pod/box\n1:name=systemd:/x\n"),
                (&format!("{cpu}/pod/box/cpu.cfs_quota_us"), "400000\n"),
                (&format!("{cpu}/pod/box/cpu.cfs_period_us"), "100000\n"),
                (&format!("{cpu}/pod/box/cpu.stat"), "nr_periods 1\nnr_throttled 0\nthrottled_time 0\n"),
                (&format!("{cpu}/pod/cpu.cfs_quota_us"), "50000\n"),
                (&format!("{cpu}/pod/cpu.cfs_period_us"), "100000\n"),
                (
                    &format!("{cpu}/pod/cpu.stat"),
                    "nr_periods 90\nnr_throttled 40\nthrottled_time 123456\nnr_bursts 0\n",
                ),
                (&format!("{cpu}/cpu.cfs_quota_us"), "-1\n"),
                ("sys/fs/cgroup/memory/pod/box/memory.usage_in_bytes", "4096\n"),
                ("sys/fs/cgroup/memory/pod/box/memory.limit_in_bytes", "9223372036854771712\n"),
                ("sys/fs/cgroup/memory/pod/memory.limit_in_bytes", "1048576\n"),
            ],
        );
        let fs = fake.fs();
        assert_eq!((fs.version(), fs.hybrid()), (1, false));
        let group = fs.group_of(7).unwrap();
        assert_eq!((group.path.as_str(), group.version), ("/pod/box", 1));
        let tick = group.tick().unwrap();
        assert_eq!((tick.quota_cpus, tick.periods, tick.throttled_periods), (Some(0.5), 90, 40));
        assert_eq!(tick.throttled_ns, 123_456);
        assert_eq!((tick.memory, tick.memory_limit), (Some(4096), Some(1 << 20)));
        // The level stays when another quota becomes the tightest: counters must not jump.
        fake.write(&format!("{cpu}/pod/box/cpu.cfs_quota_us"), "10000\n");
        let tick = group.tick().unwrap();
        assert_eq!((tick.quota_cpus, tick.periods), (Some(0.1), 90));
    }

    #[test]
    fn v2_counts_in_microseconds_and_no_limit_is_no_throttling() {
        let group = "sys/fs/cgroup/user.slice/app";
        let fake = Fake::new(
            V2,
            &[
                ("proc/7/cgroup", "0::/user.slice/app\n"),
                (&format!("{group}/cpu.max"), "150000 100000\n"),
                (
                    &format!("{group}/cpu.stat"),
                    "usage_usec 9\nnr_periods 10\nnr_throttled 4\nthrottled_usec 77\n",
                ),
                (&format!("{group}/memory.current"), "8192\n"),
                (&format!("{group}/memory.max"), "max\n"),
                ("sys/fs/cgroup/user.slice/cpu.max", "max 100000\n"),
                ("proc/8/cgroup", "0::/user.slice\n"),
                ("proc/9/cgroup", "0::/gone\n"),
            ],
        );
        let fs = fake.fs();
        assert_eq!(fs.version(), 2);
        let tick = fs.group_of(7).unwrap().tick().unwrap();
        assert_eq!((tick.quota_cpus, tick.throttled_ns), (Some(1.5), 77_000));
        assert_eq!((tick.memory, tick.memory_limit), (Some(8192), None));
        let free = fs.group_of(8).unwrap();
        assert_eq!(free.quota(), Ok(None));
        assert_eq!(free.tick().unwrap().throttled_periods, 0);
        assert_eq!(fs.group_of(9).unwrap_err().reason, Reason::NotFound);
        fake.write(&format!("{group}/cpu.max"), "lots\n");
        assert_eq!(fs.group_of(7).unwrap_err().reason, Reason::Unparsable);
        fake.write(&format!("{group}/cpu.max"), "150000 100000\n");
        fake.write(&format!("{group}/cpu.stat"), "usage_usec 9\n");
        assert_eq!(fs.group_of(7).unwrap().tick().unwrap_err().reason, Reason::Unparsable);
    }

    #[test]
    fn hybrid_machines_limit_cpu_by_v1_where_it_is_mounted() {
        let unified = "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let fake = Fake::new(
            &format!("{V1}{unified}"),
            &[
                ("proc/7/cgroup", "2:cpu,cpuacct:/a\n1:memory:/\n0::/b\n"),
                ("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "-1\n"),
                ("sys/fs/cgroup/memory/memory.usage_in_bytes", "999\n"),
                ("sys/fs/cgroup/unified/b/cpu.max", "1000 100000\n"),
            ],
        );
        let fs = fake.fs();
        assert_eq!((fs.version(), fs.hybrid()), (1, true));
        let group = fs.group_of(7).unwrap();
        assert_eq!((group.path.as_str(), group.version), ("/a", 1));
        let tick = group.tick().unwrap();
        // The memory of the root group is that of the machine, not of the target.
        assert_eq!((tick.quota_cpus, tick.memory), (None, None));
    }

    #[test]
    fn containers_see_a_part_of_the_tree() {
        // v1 without a cgroup namespace: the kernel shows the host's path, and only that part is mounted.
        let fake = Fake::new(
            "50 49 0:29 /docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n",
            &[
                ("proc/7/cgroup", "3:cpu:/docker/abc/inner\n"),
                ("proc/8/cgroup", "3:cpu:/docker/abcdef\n"),
                ("proc/9/cgroup", "3:cpu:/../..\n"),
                ("sys/fs/cgroup/cpu/inner/cpu.cfs_quota_us", "200000\n"),
                ("sys/fs/cgroup/cpu/inner/cpu.cfs_period_us", "100000\n"),
            ],
        );
        let fs = fake.fs();
        assert_eq!(fs.group_of(7).unwrap().quota().unwrap().unwrap().cpus, 2.0);
        for outside in [8, 9] {
            let absence = fs.group_of(outside).unwrap_err();
            assert_eq!(absence.reason, Reason::NotFound);
            assert!(absence.detail.contains("outside"), "{absence}");
        }
        // A mount from outside our cgroup namespace: the top and the path contain the same number of `..`.
        let fake = Fake::new(
            "50 49 0:29 /../.. /host/cgroup ro - cgroup2 cgroup rw\n",
            &[
                ("proc/7/cgroup", "0::/../../system.slice\n"),
                ("host/cgroup/system.slice/cpu.max", "max 100000\n"),
            ],
        );
        assert_eq!(fake.fs().group_of(7).unwrap().quota(), Ok(None));
    }

    #[test]
    fn the_nearest_frozen_group_is_named() {
        let freezer = "51 49 0:30 / /sys/fs/cgroup/freezer ro - cgroup cgroup rw,freezer\n";
        let fake = Fake::new(
            &format!("{V1}{freezer}"),
            &[
                ("proc/7/cgroup", "5:freezer:/pod/box\n"),
                ("proc/8/cgroup", "5:freezer:/pod\n"),
                ("proc/9/cgroup", "5:freezer:/other\n"),
                ("sys/fs/cgroup/freezer/pod/box/freezer.self_freezing", "0\n"),
                ("sys/fs/cgroup/freezer/pod/freezer.self_freezing", "1\n"),
                ("sys/fs/cgroup/freezer/other/freezer.self_freezing", "0\n"),
            ],
        );
        let fs = fake.fs();
        for pid in [7, 8] {
            let frozen = fs.frozen(pid).unwrap();
            assert!(frozen.dir.ends_with("sys/fs/cgroup/freezer/pod"), "{frozen:?}");
            assert!(
                frozen.thaw.starts_with("echo THAWED | sudo tee ")
                    && frozen.thaw.ends_with("/pod/freezer.state")
            );
        }
        assert_eq!(fs.frozen(9), None);
        let fake = Fake::new(
            V2,
            &[
                ("proc/7/cgroup", "0::/app\n"),
                ("proc/8/cgroup", "0::/free\n"),
                ("sys/fs/cgroup/app/cgroup.freeze", "1\n"),
                ("sys/fs/cgroup/free/cgroup.freeze", "0\n"),
            ],
        );
        let fs = fake.fs();
        assert!(fs.frozen(7).unwrap().thaw.ends_with("/app/cgroup.freeze"));
        assert_eq!(fs.frozen(8), None);
    }

    #[test]
    fn processes_of_a_group_and_its_children() {
        let cpu = "sys/fs/cgroup/cpu,cpuacct";
        let fake = Fake::new(
            V1,
            &[
                (&format!("{cpu}/pod/cgroup.procs"), "30\n12\n"),
                (&format!("{cpu}/pod/box/cgroup.procs"), "7\n12\n"),
                (&format!("{cpu}/empty/cgroup.procs"), ""),
                (&format!("{cpu}/foreign/cgroup.procs"), "0\n0\n"),
                ("sys/fs/cgroup/memory/other/cgroup.procs", "5\n"),
            ],
        );
        let fs = fake.fs();
        for path in ["/pod", "pod", "/sys/fs/cgroup/cpu,cpuacct/pod/", "/pod/"] {
            assert_eq!(fs.pids(path).unwrap(), [7, 12, 30], "{path}");
        }
        assert_eq!(fs.pids("/other").unwrap(), [5]);
        for (path, says) in [
            ("/nope", "no mounted hierarchy"),
            ("/sys/fs/cgroup/cpu,cpuacct/nope", "no such group"),
            ("/pod/../pod", "without `..`"),
            ("", "without `..`"),
            ("/empty", "no processes"),
            ("/foreign", "another PID namespace"),
        ] {
            let message = fs.pids(path).unwrap_err().to_string();
            assert!(message.contains(says), "{path}: {message}");
            assert!(!message.contains('\n'));
        }
    }

    #[test]
    fn no_hierarchy_is_an_absence() {
        let fake = Fake::new("22 27 0:21 / /proc rw - proc proc rw\n", &[]);
        let absence = CgroupFs::of(&Machine::at(fake.0.path())).unwrap_err();
        assert_eq!(absence.reason, Reason::NotFound);
        assert!(!absence.mend.is_empty());
    }

    #[test]
    fn kernel_memory_is_that_of_the_processs_own_group() {
        let group = "sys/fs/cgroup/pod/box";
        let fake = Fake::new(
            V2,
            &[
                ("proc/7/cgroup", "0::/pod/box\n"),
                ("proc/8/cgroup", "0::/\n"),
                (&format!("{group}/memory.current"), "9000\n"),
                (&format!("{group}/memory.stat"), "anon 1\nfile 4096\nkernel 8192\nkernel_stack 1\nslab 2\n"),
                ("sys/fs/cgroup/memory.stat", "file 1\nkernel 2\n"),
            ],
        );
        let memory = fake.fs().kernel_memory(7).unwrap();
        assert_eq!((memory.kernel_bytes, memory.page_cache_bytes), (8192, 4096));
        assert_eq!(memory.path, "/pod/box");
        assert_eq!(fake.fs().kernel_memory(8).unwrap_err().reason, Reason::NotApplicable);
        fake.write(&format!("{group}/memory.stat"), "anon 1\n");
        assert_eq!(fake.fs().kernel_memory(7).unwrap_err().reason, Reason::Unparsable);

        let v1 = Fake::new(
            V1,
            &[
                ("proc/7/cgroup", "5:memory:/pod\n3:cpu,cpuacct:/pod\n"),
                ("proc/8/cgroup", "5:memory:/\n"),
                ("sys/fs/cgroup/memory/pod/memory.stat", "cache 1\ntotal_cache 5\n"),
                ("sys/fs/cgroup/memory/pod/memory.kmem.usage_in_bytes", "6\n"),
                ("sys/fs/cgroup/memory/memory.stat", "cache 9\ntotal_cache 9\n"),
                ("sys/fs/cgroup/memory/memory.kmem.usage_in_bytes", "7\n"),
            ],
        );
        let memory = v1.fs().kernel_memory(7).unwrap();
        assert_eq!((memory.kernel_bytes, memory.page_cache_bytes), (6, 5));
        // In a private cgroup namespace, a container's own group has the path of the top.
        let own = v1.fs().kernel_memory(8).unwrap();
        assert_eq!((own.path.as_str(), own.kernel_bytes, own.page_cache_bytes), ("/", 7, 9));
        v1.write("sys/fs/cgroup/memory/cgroup.sane_behavior", "0\n");
        assert_eq!(v1.fs().kernel_memory(8).unwrap_err().reason, Reason::NotApplicable);
        assert!(v1.fs().kernel_memory(7).is_ok());
    }

    #[test]
    fn the_memory_groups_of_this_process_come_own_first() {
        let unified = "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let file = "sys/fs/cgroup/memory/pod/box/memory.usage_in_bytes";
        let fake = Fake::new(
            &format!("{V1}{unified}"),
            &[("proc/self/cgroup", "5:memory:/pod/box\n0::/x\n"), (file, "1")],
        );
        let (version, groups) = fake.fs().own_memory_groups().unwrap();
        let below = |name: &str| fake.0.path().join("sys/fs/cgroup/memory").join(name);
        assert_eq!((version, groups), (1, vec![below("pod/box"), below("pod"), below("")]));
        // Version 2 alone has the controller, but the group is not visible.
        fake.write("proc/self/cgroup", "0::/x\n");
        assert_eq!(fake.fs().own_memory_groups().unwrap_err().reason, Reason::NotFound);
    }

    #[test]
    fn parts_of_kernel_memory_are_summed_where_the_sum_is_missing() {
        let old = b"file 7\nkernel_stack 1\npagetables 2\nslab 4\nsock 8\n";
        assert_eq!(group_memory(old, 2), Some((Some(7), 7)));
        assert_eq!(group_memory(b"file 7\nslab 4\n", 2), None);
        assert_eq!(group_memory(b"cache 3\n", 1), Some((None, 3)));
        assert_eq!(group_memory(b"file 1\nkernel_stack 18446744073709551615\nslab 1\n", 2), None);
    }

    #[test]
    fn malformed_lines() {
        let root = Path::new("/");
        for line in ["", "-", "1 2 3 4 5 - cgroup", "- cgroup cgroup rw", "1 2 0:1 / /x rw - tmpfs t rw"] {
            assert_eq!(cgroup_mounts(line.as_bytes(), root), [], "{line}");
        }
        let blank = cgroup_mounts(b"1 2 0:1 / /my\\040cgroup rw - cgroup2 c rw", root);
        assert_eq!(blank[0].point, Path::new("/my cgroup"));
        assert_eq!((unescaped(b"a\\04"), unescaped(b"\\999")), ("a\\04".into(), "\\999".into()));
        assert_eq!((cpu_max(b""), cpu_max(b"1 0"), cpu_max(b"-5 10")), (None, None, None));
        assert_eq!((cpu_max(b"max"), cpu_max(b"5 10")), (Some(None), Some(Some(0.5))));
        assert_eq!(throttling(b"nr_periods 1\nnr_throttled x\nthrottled_time 2\n"), None);
        assert_eq!(throttling(b"nr_periods 1\nnr_throttled 1\nthrottled_usec 18446744073709551615\n"), None);
        assert_eq!(
            (below("/a/b", "/a"), below("/ab", "/a"), below("/a", "/"), below("/../x", "/")),
            (Some("b"), None, Some("a"), None)
        );
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = cgroup_mounts(&bytes, Path::new("/"));
            let _ = (cpu_max(&bytes), throttling(&bytes), unescaped(&bytes));
            let _ = (group_memory(&bytes, 1), group_memory(&bytes, 2));
            let text = String::from_utf8_lossy(&bytes);
            let _ = below(&text, &text[..text.chars().next().map_or(0, char::len_utf8)]);
        }
    }

    #[test]
    fn own_group_is_found_here() {
        match CgroupFs::live().and_then(|fs| fs.group_of(std::process::id() as i32)) {
            Ok(group) => {
                if let Err(absence) = group.tick() {
                    println!("skipped: {absence}");
                }
            }
            Err(absence) => println!("skipped: {absence}"),
        }
    }
}
