//! Walls outside the program: a cgroup's CPU quota, and another process on its CPU.

use super::clock;
use super::process::{Bystander, pin_to_cpu};
use super::stage::{Base, Stage};
use allocwall_model::units::{Absence, Measured, Reason};
use anyhow::{Context, Result, anyhow, bail};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const PERIOD_US: u64 = 100_000;

/// A cgroup for one process. It is removed when the process ends.
pub(crate) struct Quota {
    directory: PathBuf,
    version: u8,
    /// Removes the directory if this process cannot.
    _janitor: Bystander,
}

impl Quota {
    /// Whether a quota can be set here. No process enters the cgroup.
    pub(crate) fn check() -> Measured<()> {
        let (parent, version) =
            cpu_controller().map_err(|error| Absence::new(Reason::NotFound, error.to_string()))?;
        let directory = parent.join(format!("allocwall-check-{}", std::process::id()));
        let created = create(&directory, version, 1.0);
        let _ = fs::remove_dir(&directory);
        created.map_err(|error| {
            let why = format!("no CPU quota can be set in {}: {error}", parent.display());
            Absence::new(Reason::NotPermitted, why)
        })
    }

    /// Call this before any thread is started: it starts a [`Bystander`].
    pub(crate) fn enter(cpus: f64, limit_s: u32) -> Result<Quota> {
        let name = format!("allocwall-subject-{}", std::process::id());
        let (parent, version) = cpu_controller().map_err(|error| anyhow!("skipped: {error}"))?;
        let directory = parent.join(name);
        let home = parent.join("cgroup.procs");
        let mine = directory.clone();
        // Started before the directory is created, so that the directory is always removed.
        let janitor = Bystander::start(limit_s + 30, move |lifeline| {
            while !lifeline.cut_within(1000) {}
            remove(&mine, &home);
        })?;
        create(&directory, version, cpus)
            .and_then(|()| fs::write(directory.join("cgroup.procs"), std::process::id().to_string()))
            .with_context(|| format!("skipped: cannot set a quota in {}", directory.display()))?;
        Ok(Quota { directory, version, _janitor: janitor })
    }

    /// The throttled time that the kernel counts.
    fn throttled_ns(&self) -> Result<i64> {
        let text = fs::read_to_string(self.directory.join("cpu.stat"))?;
        let (key, unit) = if self.version == 2 { ("throttled_usec", 1_000) } else { ("throttled_time", 1) };
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(key)?.trim().parse::<i64>().ok())
            .with_context(|| format!("no {key} in cpu.stat"))?;
        Ok(value * unit)
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        let home = self.directory.with_file_name("cgroup.procs");
        let _ = fs::write(&home, std::process::id().to_string());
        remove(&self.directory, &home);
    }
}

/// A new cgroup with this quota, without members.
fn create(directory: &Path, version: u8, cpus: f64) -> io::Result<()> {
    fs::create_dir(directory)?;
    let quota_us = (cpus * PERIOD_US as f64).max(1_000.0) as u64;
    // The highest weight, so that only the quota limits it, not other processes.
    if version == 2 {
        fs::write(directory.join("cpu.weight"), "10000")?;
        fs::write(directory.join("cpu.max"), format!("{quota_us} {PERIOD_US}"))
    } else {
        fs::write(directory.join("cpu.shares"), "262144")?;
        fs::write(directory.join("cpu.cfs_period_us"), PERIOD_US.to_string())?;
        fs::write(directory.join("cpu.cfs_quota_us"), quota_us.to_string())
    }
}

/// Removes the cgroup. A cgroup with members cannot be removed, so they are moved to `home` or have time to end.
fn remove(directory: &Path, home: &Path) {
    let start = Instant::now();
    while directory.exists() && start.elapsed() < Duration::from_secs(10) {
        if fs::remove_dir(directory).is_ok() {
            return;
        }
        for pid in fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default().lines() {
            let _ = fs::write(home, pid);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The cgroup in which a child with a CPU quota can be created. For v1 it is our own cgroup. In v2 a cgroup with members cannot
/// enable controllers for children, so it is the nearest ancestor that has the CPU controller enabled.
fn cpu_controller() -> Result<(PathBuf, u8)> {
    let own = fs::read_to_string("/proc/self/cgroup")?;
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let mounted = |kind: &str, option: &str| {
        mounts.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            let [_, point, this, options, ..] = fields[..] else {
                return None;
            };
            let named = option.is_empty() || options.split(',').any(|o| o == option);
            (this == kind && named).then(|| PathBuf::from(point))
        })
    };
    for line in own.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        if controllers.split(',').any(|c| c == "cpu")
            && let Some(point) = mounted("cgroup", "cpu")
        {
            return Ok((point.join(path.trim_start_matches('/')), 1));
        }
    }
    if let (Some(point), Some(path)) =
        (mounted("cgroup2", ""), own.lines().find_map(|l| l.strip_prefix("0::/")))
    {
        let start = point.join(path);
        for directory in start.ancestors().take_while(|d| d.starts_with(&point)) {
            let handed_down =
                fs::read_to_string(directory.join("cgroup.subtree_control")).unwrap_or_default();
            if handed_down.split_ascii_whitespace().any(|c| c == "cpu") {
                return Ok((directory.to_owned(), 2));
            }
        }
    }
    bail!("no cgroup on this machine allows a CPU quota")
}

/// A busy program under a CPU quota. Without `--quota` the dial is the share of wall time in which the program is throttled. For
/// `n` threads that are always busy, this is a quota of `n × (1 - dial)` CPUs.
pub fn throttling(stage: &Stage) -> Result<()> {
    let options = &stage.options;
    let cpus = options.quota.unwrap_or(options.threads as f64 * (1.0 - options.dial));
    let quota = if options.twin { None } else { Some(Quota::enter(cpus, options.seconds)?) };
    let worker = |_| {
        let mut computing = super::computing::Computing::new();
        stage.mix(Base::Wall, || {
            computing.batch();
            stage.operations.add(1);
            0
        });
    };
    stage.perform(worker, |stage| {
        if let Some(quota) = &quota {
            stage.wait(0).set(quota.throttled_ns()?);
        }
        Ok(())
    })
}

/// A busy program and a competing process on one CPU. The competitor takes the share of the dial, at most 50 %, because the
/// scheduler is fair. It is not a child of this process.
pub fn run_queue(stage: &Stage) -> Result<()> {
    let (dial, limit_s) = (stage.options.dial, stage.options.seconds);
    pin_to_cpu(1)?;
    let _competitor = if stage.options.twin {
        None
    } else {
        Some(Bystander::start(limit_s + 5, move |lifeline| {
            let mut computing = super::computing::Computing::new();
            let start = clock::monotonic_ns();
            let spent = clock::thread_cpu_ns();
            while !lifeline.cut_within(0) {
                let owed = dial * (clock::monotonic_ns() - start) as f64;
                if owed > (clock::thread_cpu_ns() - spent) as f64 {
                    computing.spin(1000);
                } else {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        })?)
    };
    let worker = |_| {
        let mut computing = super::computing::Computing::new();
        let (mut wall, mut cpu) = (clock::monotonic_ns(), clock::thread_cpu_ns());
        while !stage.stopped() {
            computing.batch();
            stage.operations.add(1);
            // It never blocks, so it waits for a CPU whenever it does not run.
            let (wall_now, cpu_now) = (clock::monotonic_ns(), clock::thread_cpu_ns());
            stage.wait(0).add((wall_now - wall) as i64 - (cpu_now - cpu) as i64);
            (wall, cpu) = (wall_now, cpu_now);
        }
    };
    stage.perform(worker, |_| Ok(()))
}
