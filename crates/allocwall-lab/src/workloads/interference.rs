//! Walls that are not the program's: a cgroup's quota, a competitor for its CPU.

use super::clock;
use super::process::{Bystander, pin_to_cpu};
use super::stage::{Base, Stage};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const PERIOD_US: u64 = 100_000;

/// A cgroup that a test made for one process and that goes when the process does.
struct Quota {
    directory: PathBuf,
    version: u8,
    /// Removes the directory if this process cannot.
    _janitor: Bystander,
}

impl Quota {
    fn enter(cpus: f64, limit_s: u32) -> Result<Quota> {
        let name = format!("allocwall-subject-{}", std::process::id());
        let (parent, version) = cpu_controller()?;
        let directory = parent.join(name);
        let home = parent.join("cgroup.procs");
        let mine = directory.clone();
        // Before the directory is made, so that it never outlives us.
        let janitor = Bystander::start(limit_s + 30, move |lifeline| {
            while !lifeline.cut_within(1000) {}
            remove(&mine, &home);
        })?;
        let make = || -> Result<()> {
            fs::create_dir(&directory)?;
            let quota_us = (cpus * PERIOD_US as f64).max(1_000.0) as u64;
            // The highest weight, so that it is the quota that holds it back and not its neighbours.
            if version == 2 {
                fs::write(directory.join("cpu.weight"), "10000")?;
                fs::write(directory.join("cpu.max"), format!("{quota_us} {PERIOD_US}"))?;
            } else {
                fs::write(directory.join("cpu.shares"), "262144")?;
                fs::write(directory.join("cpu.cfs_period_us"), PERIOD_US.to_string())?;
                fs::write(directory.join("cpu.cfs_quota_us"), quota_us.to_string())?;
            }
            fs::write(directory.join("cgroup.procs"), std::process::id().to_string())?;
            Ok(())
        };
        make().with_context(|| format!("skipped: cannot set a quota in {}", directory.display()))?;
        Ok(Quota {
            directory,
            version,
            _janitor: janitor,
        })
    }

    /// The kernel's own count of time throttled.
    fn throttled_ns(&self) -> Result<i64> {
        let text = fs::read_to_string(self.directory.join("cpu.stat"))?;
        let (key, unit) = if self.version == 2 {
            ("throttled_usec", 1_000)
        } else {
            ("throttled_time", 1)
        };
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

/// A directory with members cannot go: they are dying, or are sent home.
fn remove(directory: &Path, home: &Path) {
    let start = Instant::now();
    while directory.exists() && start.elapsed() < Duration::from_secs(10) {
        if fs::remove_dir(directory).is_ok() {
            return;
        }
        for pid in fs::read_to_string(directory.join("cgroup.procs"))
            .unwrap_or_default()
            .lines()
        {
            let _ = fs::write(home, pid);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Where a child with a CPU quota can be made: our own cgroup of the v1 controller, or, as v2 lets no group that
/// has members hand controllers down, the nearest ancestor that does.
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
    if let (Some(point), Some(path)) = (
        mounted("cgroup2", ""),
        own.lines().find_map(|l| l.strip_prefix("0::/")),
    ) {
        let start = point.join(path);
        for directory in start.ancestors().take_while(|d| d.starts_with(&point)) {
            let handed_down =
                fs::read_to_string(directory.join("cgroup.subtree_control")).unwrap_or_default();
            if handed_down.split_ascii_whitespace().any(|c| c == "cpu") {
                return Ok((directory.to_owned(), 2));
            }
        }
    }
    bail!("skipped: no cgroup here lets us set a CPU quota")
}

/// A busy program under a quota. Without `--quota` the dial is the share of wall time to be throttled, which for
/// `n` always-busy threads leaves `n × (1 - dial)` CPUs.
pub fn throttling(stage: &Stage) -> Result<()> {
    let options = &stage.options;
    let cpus = options
        .quota
        .unwrap_or(options.threads as f64 * (1.0 - options.dial));
    let quota = match options.twin {
        true => None,
        false => Some(Quota::enter(cpus, options.seconds)?),
    };
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

/// A spinning program and a competitor on one CPU. The competitor takes the dial's share of it, at most one half, as
/// the scheduler is fair. It is no child of ours.
pub fn run_queue(stage: &Stage) -> Result<()> {
    let (dial, limit_s) = (stage.options.dial, stage.options.seconds);
    pin_to_cpu(1)?;
    let _competitor = match stage.options.twin {
        true => None,
        false => Some(Bystander::start(limit_s + 5, move |lifeline| {
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
        })?),
    };
    let worker = |_| {
        let mut computing = super::computing::Computing::new();
        let (mut wall, mut cpu) = (clock::monotonic_ns(), clock::thread_cpu_ns());
        while !stage.stopped() {
            computing.batch();
            stage.operations.add(1);
            // It never blocks, so what it doesn't run it waits.
            let (wall_now, cpu_now) = (clock::monotonic_ns(), clock::thread_cpu_ns());
            stage
                .wait(0)
                .add((wall_now - wall) as i64 - (cpu_now - cpu) as i64);
            (wall, cpu) = (wall_now, cpu_now);
        }
    };
    stage.perform(worker, |_| Ok(()))
}
