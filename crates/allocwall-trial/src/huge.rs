//! How much of a program lies on huge pages, looked at again and again in the run that is not counted: each look walks the page
//! tables with the address-space lock held, which is dearer for a program on small pages than for its rival.

use super::run::Family;
use allocwall_host::clock::monotonic_ns;
use allocwall_host::proc::{HugePages, ProcFs};
use allocwall_host::worker::Worker;
use allocwall_model::units::{Absence, Measured, Reason};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

const FIRST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_millis(250);
/// Of the time, looks take at most one part in so many: nobody counts this run, but it has to end.
const SHARE: u32 = 4;

/// A thread that looks.
pub struct Looking {
    stop: Sender<()>,
    thread: Worker<Measured<HugePages>>,
}

impl Looking {
    pub fn start(family: Family) -> Looking {
        let (stop, stopped) = channel();
        let thread = Worker::start("looks at huge pages", move || {
            let proc = ProcFs::live();
            let mut most: Measured<HugePages> = Err(Absence::new(
                Reason::TooLittle,
                "it was over before its pages could be looked at",
            ));
            let mut wait = FIRST;
            while stopped.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                let began = monotonic_ns();
                for pid in family.now() {
                    match (proc.huge_pages(pid), &mut most) {
                        (Ok(seen), Ok(most)) => most.raise(seen),
                        (Ok(seen), Err(_)) => most = Ok(seen),
                        (Err(absence), Err(why)) if absence.reason != Reason::Vanished => *why = absence,
                        (Err(_), _) => {}
                    }
                }
                let took = Duration::from_nanos(monotonic_ns() - began);
                wait = (wait + wait / 4).min(LONGEST).max(took * SHARE);
            }
            most
        });
        Looking { stop, thread }
    }

    /// The most that was seen of one process, once the run is over.
    pub fn finish(self) -> Measured<HugePages> {
        drop(self.stop);
        self.thread.finish().and_then(|seen| seen)
    }
}
