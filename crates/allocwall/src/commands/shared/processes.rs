//! The processes that a command is about: those of -p that still run, or those of a container.

use crate::printer::Printer;
use allocwall_host::containers::{self, Container};
use allocwall_host::facts::Machine;
use allocwall_host::proc::ProcFs;
use allocwall_measure::record::Target;
use anyhow::{anyhow, bail};

pub fn parse_pid(text: &str) -> Result<i32, String> {
    text.parse().ok().filter(|pid| *pid > 0).ok_or_else(|| "a process id is a whole number above 0".into())
}

/// When the process was started, in clock ticks since boot; None if it has ended.
pub fn start_of(pid: i32) -> Option<u64> {
    let stat = ProcFs::live().process_stat(pid).ok()?;
    // A leader may end before its threads.
    (!stat.ended() || stat.threads > 1).then_some(stat.start_ticks)
}

/// What the windows after the first one attach to.
pub enum Attached {
    Cgroup(String),
    /// Each with its start: another process may have its number later.
    Processes(Vec<(i32, u64)>),
}

impl Attached {
    pub fn processes(pids: &[i32]) -> Attached {
        Attached::Processes(pids.iter().filter_map(|pid| Some((*pid, start_of(*pid)?))).collect())
    }

    /// Leaves out what has ended. None if nothing is left.
    pub fn target(&mut self) -> Option<Target> {
        match self {
            Attached::Cgroup(path) => Some(Target::Cgroup(path.clone())),
            Attached::Processes(known) => {
                known.retain(|(pid, start)| start_of(*pid) == Some(*start));
                let pids: Vec<i32> = known.iter().map(|(pid, _)| *pid).collect();
                (!pids.is_empty()).then_some(Target::Pids(pids))
            }
        }
    }
}

/// Those of several processes that run. Says which ones do not.
///
/// # Errors
/// None of them runs. A single process is not checked: whoever measures it says more.
pub fn living(pids: Vec<i32>, printer: &Printer) -> anyhow::Result<Vec<i32>> {
    if pids.len() < 2 {
        return Ok(pids);
    }
    let (living, gone): (Vec<i32>, Vec<i32>) = pids.into_iter().partition(|pid| start_of(*pid).is_some());
    if gone.is_empty() {
        return Ok(living);
    }
    let (processes, listed) = (if gone.len() == 1 { "process" } else { "processes" }, listed(&gone));
    if living.is_empty() {
        bail!("no {processes} {listed}: none of them exists, or all have exited");
    }
    let rest = self::listed(&living);
    printer.warn(&format!("no {processes} {listed}: gone, or never there; going on with {rest}"));
    Ok(living)
}

fn listed(pids: &[i32]) -> String {
    pids.iter().map(i32::to_string).collect::<Vec<_>>().join(", ")
}

/// The processes of the container with this name, id or start of an id.
pub fn of_container(name: &str, printer: &Printer) -> anyhow::Result<Vec<i32>> {
    let container = containers::find(&Machine::live(), name)?;
    let count = container.pids.len();
    printer.note(&format!(
        "{}: {count} {}",
        container.title(),
        if count == 1 { "process" } else { "processes" }
    ));
    Ok(container.pids)
}

/// The process of -p, or the only one of the container.
pub fn one(pid: Option<i32>, container: Option<&str>) -> anyhow::Result<Option<i32>> {
    let Some(name) = container else { return Ok(pid) };
    let container = containers::find(&Machine::live(), name)?;
    match container.pids[..] {
        [pid] => Ok(Some(pid)),
        _ => Err(anyhow!(several(&container, &ProcFs::live()))),
    }
}

/// Processes that an error names.
const SHOWN: usize = 8;

fn several(container: &Container, proc: &ProcFs) -> String {
    let shown = container.pids.iter().take(SHOWN).map(|pid| match proc.comm(*pid) {
        Ok(name) => format!("{pid} ({name})"),
        Err(_) => pid.to_string(),
    });
    let mut shown: Vec<String> = shown.collect();
    let count = container.pids.len();
    if count > SHOWN {
        shown.push(format!("{} more", count - SHOWN));
    }
    format!("{} has {count} processes: {}; choose one with -p", container.title(), shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_process_with_the_same_number_is_not_the_target() {
        let own = std::process::id() as i32;
        let Attached::Processes(mut known) = Attached::processes(&[own, 1 << 23]) else {
            panic!("processes");
        };
        assert_eq!(known.iter().map(|(pid, _)| *pid).collect::<Vec<_>>(), [own]);
        let is_left = |known: Vec<(i32, u64)>| {
            let target = Attached::Processes(known).target();
            matches!(target, Some(Target::Pids(pids)) if pids == [own])
        };
        assert!(is_left(known.clone()));
        known[0].1 += 1;
        assert!(!is_left(known));
    }
}
