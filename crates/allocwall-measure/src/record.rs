//! Records a target: attaches to it, reads it while the window is open, and assembles the recording.

mod attach;
mod bills;
mod closed;
mod faults;
mod placement;
mod probes;
mod random;
mod slicer;
mod waits;
mod window;

use super::allocations::Counting;
use super::file::Writer;
use super::reading::Readers;
use allocwall_host::facts::Machine;
use allocwall_host::launch::{Launched, Talk};
use allocwall_host::perf::{Clocks, Periods};
use allocwall_model::allocations::not_counted;
use allocwall_model::error::{Error, Result};
use allocwall_model::recording::{PriceList, Recording};
use allocwall_model::trace::Trace;
use allocwall_model::units::Measured;
use attach::Attached;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use window::Window;

pub(crate) use attach::{may_measure, refuse_foreign_proc};
pub(crate) use probes::full;

pub const DEFAULT_WINDOW: Duration = Duration::from_secs(15);
/// Shorter windows have too few samples for a judgement; longer ones exceed the size of a recording.
pub const SHORTEST_WINDOW: Duration = Duration::from_millis(500);
pub const LONGEST_WINDOW: Duration = Duration::from_secs(3600);

pub enum Target {
    /// These processes and their descendants.
    Pids(Vec<i32>),
    /// Every process of a control group.
    Cgroup(String),
    /// A command to start, with `env` added to its environment; `keep` leaves it running afterwards.
    Launch { command: Vec<OsString>, env: Vec<(OsString, OsString)>, keep: bool, talk: Talk },
}

pub struct Request<'a> {
    pub target: Target,
    pub window: Duration,
    /// Samples per second and CPU; None chooses a rate for this kind of machine.
    pub rate_hz: Option<u32>,
    /// The target's own speed is not measured, so its map calls are counted all the time, and short runs are
    /// sampled often.
    pub closely: bool,
    /// Reads the counted calls of a command that is started in its environment, until the window closes; or why calls are not
    /// counted.
    pub counting: Measured<Counting>,
    /// Reads the resident memory by owner after the window. It walks the page tables, which takes milliseconds per gigabyte.
    pub memory: bool,
    /// The file of the recording; None keeps it in memory.
    pub output: Option<PathBuf>,
    pub prices: Measured<PriceList>,
    pub readers: Readers,
    /// Set by Ctrl-C: the window closes early, and the data so far is reported.
    pub interrupted: &'a AtomicBool,
    /// Called from time to time with the elapsed fraction of the window, 0 to 1.
    pub progress: &'a mut dyn FnMut(f64),
}

pub struct Recorded {
    pub recording: Recording,
    /// Counted calls in their order, for a replay ([`crate::allocations::Watched`]).
    pub traces: Vec<Trace>,
    /// The recording as its file has it.
    pub bytes: Vec<u8>,
    pub path: Option<PathBuf>,
    /// Why the file could not be written completely; the recording in memory is complete.
    pub file_failure: Option<Error>,
    /// The time from the end of the window to this value.
    pub after_window: Duration,
    /// The launched command. Dropping it ends the command, unless `keep` was set.
    pub launched: Option<Launched>,
}

/// Opens a sampler for the given CPUs; a copy of a machine has no perf events.
pub type OpenClocks<'a> = &'a mut dyn FnMut(&[u32], Periods) -> Measured<Box<dyn Clocks>>;

pub fn record(request: Request<'_>) -> Result<Recorded> {
    if request.window < SHORTEST_WINDOW || request.window > LONGEST_WINDOW {
        return Err(Error::Refused(format!(
            "a window of {:?} is not usable: choose between {:?} and {:?} with -d",
            request.window, SHORTEST_WINDOW, LONGEST_WINDOW
        )));
    }
    record_on(&Machine::live(), None, request)
}

/// Records from a copy of a machine's files, sampled by `clocks`. Data that is in no file is absent there:
/// memory, system calls, processes that start.
pub fn record_on(
    machine: &Machine,
    clocks: Option<OpenClocks<'_>>,
    mut request: Request<'_>,
) -> Result<Recorded> {
    // Before anything is started: an output that cannot be written must not cost a window.
    let writer = Writer::create(request.output.as_deref())?;
    let attached = Attached::open(machine, clocks, &request)?;
    let counting = std::mem::replace(&mut request.counting, Err(not_counted()));
    let mut window = Window::open(attached, writer, counting, &request)?;
    window.watch(request.interrupted, request.progress);
    window.close().assemble(request.output)
}
