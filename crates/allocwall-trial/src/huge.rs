//! Samples how much memory of a program is on huge pages. Only the run that is not counted is sampled: each sample walks the page
//! tables with the address-space lock held, which costs a program on small pages more than one on huge pages.

use super::run::Family;
use allocwall_host::clock::monotonic_ns;
use allocwall_host::proc::{HugePages, ProcFs};
use allocwall_host::worker::Worker;
use allocwall_model::units::{Absence, Measured, Reason};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

const FIRST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_millis(250);
/// The samples take at most 1/SHARE of the time: this run is not counted, but it has to end.
const SHARE: u32 = 4;

/// The sampling thread.
pub struct PageSampler {
    stop: Sender<()>,
    thread: Worker<Measured<HugePages>>,
}

impl PageSampler {
    pub fn start(family: Family) -> PageSampler {
        let (stop, stopped) = channel();
        let thread = Worker::start("samples huge pages", move || {
            let proc = ProcFs::live();
            let mut most: Measured<HugePages> =
                Err(Absence::new(Reason::TooLittle, "the process ended before its pages were sampled"));
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
        PageSampler { stop, thread }
    }

    /// The maximum over all samples of all processes. Call it when the run is over.
    pub fn finish(self) -> Measured<HugePages> {
        drop(self.stop);
        self.thread.finish().and_then(|seen| seen)
    }
}
