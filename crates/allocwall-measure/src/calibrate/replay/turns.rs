//! Child processes that take turns.
//!
//! On a virtual machine the same work can take 15 to 50 % longer in one second than in another, as other guests use its caches and
//! memory. Children that take turns of some milliseconds run under the same conditions.

use allocwall_model::stats::random::Random;
use allocwall_model::units::{Absence, Measured, Reason};
use rustix::process::{Pid, Signal, kill_process_group};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Each turn begins with caches that the other children have filled. With turns of 2 ms, calls of large blocks cost several times as much
/// as in children that run alone; with 10 ms, 1.4 times as much (tiles of benches/further.cpp).
const TURN: Duration = Duration::from_millis(10);
/// A child whose turns take longer in all is ended.
pub(super) const MOST_TURNS: u32 = 400;

/// What the children of a round may use.
pub(super) struct Limits<'a> {
    /// Resident memory, of all of them together.
    pub bytes: u64,
    /// The most turns of each.
    pub turns: u32,
    /// Of all of them.
    pub deadline: Instant,
    pub interrupted: &'a AtomicBool,
}

/// Why a round has no results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unfinished {
    /// Several children can't exist at the same time: they need more memory than the limit, or one could not be started.
    Crowded,
    /// The deadline has passed.
    Late,
}

/// Runs the commands, one at a time in turns of random order, each in a process group of its own: Ctrl-C reaches the parent only.
/// Returns how each one ended. A single command is never `Crowded`.
///
/// # Errors
/// The user interrupted.
pub(super) fn take(
    commands: &mut [Command],
    limits: &Limits,
    random: &mut Random,
) -> Measured<Result<Vec<Measured<ExitStatus>>, Unfinished>> {
    let alone = commands.len() == 1;
    let mut players: Vec<Player> = commands.iter().map(|_| Player::Waiting).collect();
    let mut left: Vec<usize> = (0..commands.len()).collect();
    while !left.is_empty() {
        random.shuffle(&mut left);
        for &nth in &left {
            let started = players[nth].turn(&mut commands[nth], limits.turns, alone);
            if limits.interrupted.load(Ordering::Relaxed) {
                return Err(Absence::new(Reason::TooLittle, "you interrupted the replay"));
            }
            if Instant::now() >= limits.deadline {
                return Ok(Err(Unfinished::Late));
            }
            let too_much = players.iter().map(Player::resident).sum::<u64>() > limits.bytes;
            if !alone && (too_much || started.is_err()) {
                return Ok(Err(Unfinished::Crowded));
            }
            if let Err(error) = started {
                players[nth] = Player::Ended(Err(not_permitted(&error)));
            } else if too_much {
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
    Ok(Ok(ended.collect()))
}

enum Player {
    Waiting,
    Playing { child: Running, turns: u32, resident: u64 },
    Ended(Measured<ExitStatus>),
}

impl Player {
    /// Starts it, or lets it go on, and stops it after a turn unless it is alone.
    ///
    /// # Errors
    /// It could not be started.
    fn turn(&mut self, command: &mut Command, most: u32, alone: bool) -> io::Result<()> {
        match self {
            Player::Waiting => {
                let child = Running(command.process_group(0).spawn()?);
                *self = Player::Playing { child, turns: 0, resident: 0 };
            }
            Player::Playing { child, .. } if !alone => child.signal(Signal::CONT),
            Player::Playing { .. } | Player::Ended(_) => {}
        }
        let Player::Playing { child, turns, resident } = self else { return Ok(()) };
        std::thread::sleep(TURN);
        if !alone {
            child.signal(Signal::STOP);
        }
        *turns += 1;
        *resident = resident_bytes(child.0.id()).unwrap_or(0);
        match child.0.try_wait() {
            Ok(Some(status)) => *self = Player::Ended(Ok(status)),
            Ok(None) if *turns < most => {}
            Ok(None) => {
                let detail = format!("a replay took more than {} s", (TURN * most).as_secs());
                *self = Player::Ended(Err(Absence::new(Reason::TooCostly, detail)));
            }
            Err(error) => {
                *self = Player::Ended(Err(Absence::new(Reason::Vanished, format!("a replay: {error}"))))
            }
        }
        Ok(())
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

pub(super) fn not_permitted(error: &io::Error) -> Absence {
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
    use std::fs::File;
    use std::path::Path;
    use std::thread;

    const MOST: u64 = 1 << 30;

    fn limits(bytes: u64, interrupted: &AtomicBool) -> Limits<'_> {
        let deadline = Instant::now() + Duration::from_secs(60);
        Limits { bytes, turns: MOST_TURNS, deadline, interrupted }
    }

    /// Shells with these scripts, and what they write.
    fn shells(scripts: &[&str]) -> (Vec<Command>, Vec<File>) {
        let shell = |script: &&str| {
            let output = sealed().unwrap();
            let mut command = Command::new("/bin/sh");
            command.args(["-c", script]).stdout(output.try_clone().unwrap());
            (command, output)
        };
        scripts.iter().map(shell).unzip()
    }

    fn run(scripts: &[&str], limits: &Limits) -> Measured<Result<Vec<Measured<ExitStatus>>, Unfinished>> {
        take(&mut shells(scripts).0, limits, &mut Random::new(1))
    }

    #[test]
    fn each_child_has_its_own_end() {
        let never = AtomicBool::new(false);
        let ended = run(&["exit 3", "exit 0", "kill -KILL $$"], &limits(MOST, &never)).unwrap().unwrap();
        let code = |nth: usize| ended[nth].as_ref().unwrap().code();
        assert_eq!((code(0), code(1), code(2)), (Some(3), Some(0), None));
        let alone = run(&["sleep 0.05; exit 4"], &limits(MOST, &never)).unwrap().unwrap();
        assert_eq!(alone[0].as_ref().unwrap().code(), Some(4));
    }

    #[test]
    fn one_child_at_a_time_runs() {
        let busy = "n=0; while [ $n -lt 200000 ]; do n=$((n+1)); done; times";
        let (mut commands, files) = shells(&[busy; 3]);
        let never = AtomicBool::new(false);
        let began = Instant::now();
        let ended = take(&mut commands, &limits(MOST, &never), &mut Random::new(1)).unwrap().unwrap();
        let passed_s = began.elapsed().as_secs_f64();
        assert!(ended.iter().all(|how| how.as_ref().is_ok_and(ExitStatus::success)), "{ended:?}");
        // The first line of `times`: 0m0.120s 0m0.000s.
        let seconds = |time: &str| time.trim_end_matches('s').rsplit('m').next()?.parse::<f64>().ok();
        let used_s = |file| first_line(file).split_whitespace().filter_map(seconds).sum::<f64>();
        let all_s: f64 = files.iter().map(used_s).sum();
        // Side by side, they would take half of it on two CPUs.
        assert!(all_s > 0.05 && passed_s > 0.9 * all_s, "{all_s} s of CPU time in {passed_s} s");
    }

    const SLEEPS: &str = "exec sleep 100";

    #[test]
    fn children_that_take_too_much_are_ended() {
        let never = AtomicBool::new(false);
        // A sleeping shell has some hundred KiB.
        let reason =
            |limits: &Limits| run(&[SLEEPS], limits).unwrap().unwrap()[0].clone().unwrap_err().reason;
        assert_eq!(reason(&limits(1, &never)), Reason::TooCostly);
        assert_eq!(reason(&Limits { turns: 3, ..limits(MOST, &never) }), Reason::TooCostly);
        let two = |limits: &Limits| run(&[SLEEPS; 2], limits).unwrap();
        assert_eq!(two(&limits(1, &never)).unwrap_err(), Unfinished::Crowded);
        let soon = Instant::now() + Duration::from_millis(50);
        assert_eq!(two(&Limits { deadline: soon, ..limits(MOST, &never) }).unwrap_err(), Unfinished::Late);
        let few = two(&Limits { turns: 3, ..limits(MOST, &never) }).unwrap();
        assert!(
            few.iter().all(|how| how.as_ref().is_err_and(|why| why.reason == Reason::TooCostly)),
            "{few:?}"
        );
    }

    #[test]
    fn what_cannot_be_started_has_its_reason_and_ends_a_round_of_several() {
        let never = AtomicBool::new(false);
        let missing = || Command::new("/no/such/program");
        let of =
            |commands: &mut [Command]| take(commands, &limits(MOST, &never), &mut Random::new(1)).unwrap();
        assert_eq!(of(&mut [missing()]).unwrap()[0].clone().unwrap_err().reason, Reason::NotPermitted);
        assert_eq!(of(&mut [missing(), missing()]).unwrap_err(), Unfinished::Crowded);
    }

    #[test]
    fn an_interruption_leaves_no_child() {
        let interrupted = AtomicBool::new(false);
        let (mut commands, files) = shells(&["echo $$; exec sleep 100"; 3]);
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(150));
                interrupted.store(true, Ordering::Relaxed);
            });
            let found = take(&mut commands, &limits(MOST, &interrupted), &mut Random::new(1));
            assert_eq!(found.unwrap_err().reason, Reason::TooLittle);
        });
        for file in &files {
            let pid = first_line(file);
            assert!(!pid.is_empty() && !Path::new("/proc").join(&pid).exists(), "{pid}");
        }
    }
}
