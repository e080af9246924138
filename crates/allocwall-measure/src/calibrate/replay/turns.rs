//! Child processes that take turns.
//!
//! On a virtual machine the same work can take 15 to 50 % longer in one second than in another, as other guests use its caches and
//! memory. Children that take turns of some milliseconds meet the same seconds.

use allocwall_model::stats::random::Random;
use allocwall_model::units::{Absence, Measured, Reason};
use rustix::process::{Pid, Signal, kill_process_group};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Each turn begins with caches that the other children have filled. With turns of 2 ms, calls of large blocks cost several times as much
/// as in children that run alone; with 10 ms, 1.4 times as much (tiles of benches/further.cpp).
const TURN: Duration = Duration::from_millis(10);
/// A child whose turns take longer in all is ended.
const MOST_TURNS: u32 = 400;

/// What the children of a round may use.
pub(super) struct Limits<'a> {
    /// Resident memory, of all of them together.
    pub bytes: u64,
    pub interrupted: &'a AtomicBool,
}

/// Runs the commands, one at a time in turns of random order, each in a process group of its own: Ctrl-C reaches the parent only.
/// Returns how each one ended. None: several commands need more memory together than the limit.
///
/// # Errors
/// The user interrupted.
pub(super) fn take(
    commands: &mut [Command],
    limits: &Limits,
    random: &mut Random,
) -> Measured<Option<Vec<Measured<ExitStatus>>>> {
    let alone = commands.len() == 1;
    let mut players: Vec<Player> = commands.iter().map(|_| Player::Waiting).collect();
    let mut left: Vec<usize> = (0..commands.len()).collect();
    while !left.is_empty() {
        random.shuffle(&mut left);
        for &nth in &left {
            players[nth].turn(&mut commands[nth], alone);
            if limits.interrupted.load(Ordering::Relaxed) {
                return Err(Absence::new(Reason::TooLittle, "you interrupted the replay"));
            }
            if players.iter().map(Player::resident).sum::<u64>() > limits.bytes {
                if !alone {
                    return Ok(None);
                }
                let detail = format!("a replay used more than {} MiB of memory", limits.bytes >> 20);
                players[nth] = Player::Ended(Err(Absence::new(Reason::TooCostly, detail)));
            }
        }
        left.retain(|&nth| !matches!(players[nth], Player::Ended(_)));
    }
    let ended = players.into_iter().filter_map(|player| match player {
        Player::Ended(how) => Some(how),
        Player::Waiting | Player::Playing { .. } => None,
    });
    Ok(Some(ended.collect()))
}

enum Player {
    Waiting,
    Playing { child: Running, turns: u32, resident: u64 },
    Ended(Measured<ExitStatus>),
}

impl Player {
    /// Starts it, or lets it go on, and stops it after a turn unless it is alone.
    fn turn(&mut self, command: &mut Command, alone: bool) {
        match self {
            Player::Waiting => match command.process_group(0).spawn() {
                Ok(child) => *self = Player::Playing { child: Running(child), turns: 0, resident: 0 },
                Err(error) => *self = Player::Ended(Err(not_permitted(&error))),
            },
            Player::Playing { child, .. } if !alone => child.signal(Signal::CONT),
            Player::Playing { .. } | Player::Ended(_) => {}
        }
        let Player::Playing { child, turns, resident } = self else { return };
        std::thread::sleep(TURN);
        if !alone {
            child.signal(Signal::STOP);
        }
        *turns += 1;
        *resident = resident_bytes(child.0.id()).unwrap_or(0);
        match child.0.try_wait() {
            Ok(Some(status)) => *self = Player::Ended(Ok(status)),
            Ok(None) if *turns < MOST_TURNS => {}
            Ok(None) => {
                let detail = format!("a replay took more than {} s", (TURN * MOST_TURNS).as_secs());
                *self = Player::Ended(Err(Absence::new(Reason::TooCostly, detail)));
            }
            Err(error) => {
                *self = Player::Ended(Err(Absence::new(Reason::Vanished, format!("a replay: {error}"))))
            }
        }
    }

    fn resident(&self) -> u64 {
        match self {
            Player::Playing { resident, .. } => *resident,
            Player::Waiting | Player::Ended(_) => 0,
        }
    }
}

/// A child that is killed when it is dropped.
struct Running(Child);

impl Running {
    fn signal(&self, signal: Signal) {
        // It fails only if the child has been waited for.
        let _ = kill_process_group(Pid::from_child(&self.0), signal);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only if it has been waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(super) fn not_permitted(error: &std::io::Error) -> Absence {
    Absence::new(Reason::NotPermitted, format!("a replay: {error}"))
}

fn resident_bytes(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages: u64 = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::super::{first_line, sealed};
    use super::*;
    use std::time::Instant;

    const MOST: u64 = 1 << 30;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    fn run(scripts: &[&str], bytes: u64, interrupted: bool) -> Measured<Option<Vec<Measured<ExitStatus>>>> {
        let mut commands: Vec<Command> = scripts.iter().map(|script| shell(script)).collect();
        let limits = Limits { bytes, interrupted: &AtomicBool::new(interrupted) };
        take(&mut commands, &limits, &mut Random::new(1))
    }

    #[test]
    fn each_child_has_its_own_end() {
        let ended = run(&["exit 3", "exit 0", "kill -KILL $$"], MOST, false).unwrap().unwrap();
        let code = |nth: usize| ended[nth].as_ref().unwrap().code();
        assert_eq!((code(0), code(1), code(2)), (Some(3), Some(0), None));
        let alone = run(&["sleep 0.05; exit 4"], MOST, false).unwrap().unwrap();
        assert_eq!(alone[0].as_ref().unwrap().code(), Some(4));
    }

    #[test]
    fn one_child_at_a_time_runs() {
        let files = [sealed().unwrap(), sealed().unwrap(), sealed().unwrap()];
        let busy = |file: &std::fs::File| {
            let mut command = shell("n=0; while [ $n -lt 200000 ]; do n=$((n+1)); done; times");
            command.stdout(file.try_clone().unwrap());
            command
        };
        let mut commands: Vec<Command> = files.iter().map(busy).collect();
        let limits = Limits { bytes: MOST, interrupted: &AtomicBool::new(false) };
        let began = Instant::now();
        let ended = take(&mut commands, &limits, &mut Random::new(1)).unwrap().unwrap();
        let passed_s = began.elapsed().as_secs_f64();
        assert!(ended.iter().all(|how| how.as_ref().is_ok_and(ExitStatus::success)), "{ended:?}");
        // The first line of `times`: 0m0.120s 0m0.000s.
        let seconds = |time: &str| time.trim_end_matches('s').rsplit('m').next()?.parse::<f64>().ok();
        let used_s = |file| first_line(file).split_whitespace().filter_map(seconds).sum::<f64>();
        let all_s: f64 = files.iter().map(used_s).sum();
        // Side by side, they would take half of it on two CPUs.
        assert!(all_s > 0.05 && passed_s > 0.9 * all_s, "{all_s} s of CPU time in {passed_s} s");
    }

    #[test]
    fn children_that_take_too_much_are_ended() {
        // A sleeping shell has some hundred KiB.
        let alone = run(&["exec sleep 100"], 1, false).unwrap().unwrap();
        assert_eq!(alone[0].as_ref().unwrap_err().reason, Reason::TooCostly);
        assert!(run(&["exec sleep 100", "exec sleep 100"], 1, false).unwrap().is_none());
        assert_eq!(run(&["exec sleep 100"], MOST, true).unwrap_err().reason, Reason::TooLittle);
    }
}
