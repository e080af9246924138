//! Records one window after the other, and pauses between them if that is needed.

use super::budget::Own;
use crate::commands::shared::diagnosis::{Diagnosis, readers};
use crate::commands::shared::processes::Attached;
use allocwall_host::clock;
use allocwall_host::proc::ProcFs;
use allocwall_measure::calibrate;
use allocwall_measure::record::{self, Recorded, Request, Target};
use allocwall_model::allocations::not_counted;
use allocwall_model::recording::Ended;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Samples per second and CPU: a quarter of what a diagnosis takes, because windows never end.
const RATE_HZ: u32 = 199;
/// The resident memory is read by owner at most so often: reading it walks the page tables of the target.
const MEMORY_EVERY_NS: u64 = 10_000_000_000;
/// How long a pause takes to notice that the user wants something.
const GLANCE: Duration = Duration::from_millis(100);
/// And that the target has ended.
const LOOK: Duration = Duration::from_secs(1);

/// A window, judged.
pub struct Taken {
    pub diagnosis: Diagnosis,
    /// The recording as a file has it.
    pub bytes: Vec<u8>,
    /// Its start, since the start of the first one.
    pub at_s: f64,
    /// From the start of the window until now.
    pub own: Own,
    /// The pause that follows.
    pub pause: Duration,
}

pub enum Next {
    Window(Box<Taken>),
    /// The target ended.
    Ended,
    Interrupted,
}

pub struct Windows {
    attached: Attached,
    /// Processes as they were given, for the error if none of them runs.
    first: Option<Target>,
    every: Duration,
    began_ns: Option<u64>,
    /// When the resident memory was read last.
    memory_ns: Option<u64>,
    /// Until when the pause after the last window lasts.
    resume_ns: u64,
}

impl Windows {
    pub fn of(target: Target, every: Duration) -> Windows {
        let attached = match &target {
            Target::Cgroup(path) => Attached::Cgroup(path.clone()),
            Target::Pids(pids) => Attached::processes(pids),
            Target::Launch { .. } => Attached::Processes(vec![]),
        };
        Windows { attached, first: Some(target), every, began_ns: None, memory_ns: None, resume_ns: 0 }
    }

    pub fn every(&self) -> Duration {
        self.every
    }

    /// Waits for the end of the pause, and as long as the user wants one, then records a window.
    ///
    /// # Errors
    /// The target cannot be recorded.
    pub fn next(&mut self, interrupted: &AtomicBool, paused: &AtomicBool) -> anyhow::Result<Next> {
        let mut look_ns = clock::monotonic_ns() + LOOK.as_nanos() as u64;
        loop {
            let now = clock::monotonic_ns();
            // Relaxed: the flags guard no other data.
            if interrupted.load(Ordering::Relaxed) {
                return Ok(Next::Interrupted);
            }
            if now >= look_ns {
                look_ns = now + LOOK.as_nanos() as u64;
                if self.first.is_none() && self.attached.target().is_none() {
                    return Ok(Next::Ended);
                }
            }
            let glance_ns = now + GLANCE.as_nanos() as u64;
            match paused.load(Ordering::Relaxed) {
                true => clock::sleep_until(glance_ns),
                false if now >= self.resume_ns => break,
                false => clock::sleep_until(self.resume_ns.min(glance_ns)),
            }
        }
        let target = match self.first.take() {
            Some(target) => target,
            None => match self.attached.target() {
                Some(target) => target,
                None => return Ok(Next::Ended),
            },
        };
        let (began_ns, cpu_ns) = (clock::monotonic_ns(), own_cpu_ns());
        let first_ns = *self.began_ns.get_or_insert(began_ns);
        let memory = self.memory_ns.is_none_or(|last| began_ns - last >= MEMORY_EVERY_NS);
        if memory {
            self.memory_ns = Some(began_ns);
        }
        let recorded = record::record(Request {
            target,
            window: self.every,
            rate_hz: Some(RATE_HZ),
            closely: false,
            counting: Err(not_counted()),
            memory,
            output: None,
            prices: calibrate::cached(),
            readers: readers(),
            interrupted,
            progress: &mut |_| (),
        });
        let Recorded { recording, bytes, .. } = match recorded {
            Ok(recorded) => recorded,
            // It ended between two windows.
            Err(_) if began_ns > first_ns && self.has_ended() => return Ok(Next::Ended),
            Err(error) => return Err(error.into()),
        };
        // A short rest of a window would look like a change of the target.
        let short = recording.meta.window_ns < recording.meta.requested_ns / 2;
        match recording.meta.ended {
            Ended::Interrupted if short => return Ok(Next::Interrupted),
            Ended::TargetExited { .. } if short && began_ns > first_ns => return Ok(Next::Ended),
            _ => {}
        }
        let diagnosis = Diagnosis::of(recording, None);
        let own = Own {
            cpu_s: own_cpu_ns().saturating_sub(cpu_ns) as f64 / 1e9,
            elapsed_s: (clock::monotonic_ns() - began_ns) as f64 / 1e9,
        };
        let pause = own.pause(diagnosis.recording.host.online_cpus);
        self.resume_ns = clock::monotonic_ns() + pause.as_nanos() as u64;
        let at_s = (began_ns - first_ns) as f64 / 1e9;
        Ok(Next::Window(Box::new(Taken { diagnosis, bytes, at_s, own, pause })))
    }

    /// Whether nothing of the target is left, or will be soon: a process loses its memory before it has ended.
    fn has_ended(&mut self) -> bool {
        (0..5).any(|_| {
            std::thread::sleep(GLANCE);
            self.attached.target().is_none()
        })
    }
}

/// CPU time of allocwall and of the children that have read for it.
fn own_cpu_ns() -> u64 {
    let proc = ProcFs::live();
    let children = proc.process_stat(std::process::id() as i32).map_or(0, |stat| {
        stat.child_user_ticks.saturating_add(stat.child_system_ticks).saturating_mul(proc.ns_per_tick())
    });
    clock::own_cpu_ns().saturating_add(children)
}
