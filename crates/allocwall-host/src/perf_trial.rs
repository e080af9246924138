//! What perf_event_open(2) permits, found by opening an event and closing it again. A sysctl alone does not
//! show it: capabilities, seccomp filters, security modules and patches of distributions also matter.

use crate::file::errno_text;
use allocwall_model::units::{Absence, Measured, Reason};
use perf_event::Builder;
use perf_event::events::{Event, Hardware, Software};

/// The process that a sampling event observes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observed {
    Myself,
    Process(i32),
    /// Everything on CPU 0.
    EveryProcess,
}

/// Tries to open a CPU-clock sampling event, with or without samples in the kernel. Events start disabled, so
/// nothing is counted.
pub fn cpu_clock(observed: Observed, kernel: bool) -> std::io::Result<()> {
    open(Software::CPU_CLOCK, observed, kernel)
}

/// Tries to open a tracepoint by its number.
pub fn tracepoint(id: u64, observed: Observed) -> std::io::Result<()> {
    open(perf_event::events::Tracepoint::with_id(id), observed, true)
}

fn open(event: impl Event, observed: Observed, kernel: bool) -> std::io::Result<()> {
    let mut builder = Builder::new(event);
    builder.sample_period(1_000_000).exclude_kernel(!kernel).exclude_hv(true);
    match observed {
        Observed::Myself => builder.observe_self().any_cpu(),
        Observed::Process(pid) => builder.observe_pid(pid).any_cpu(),
        Observed::EveryProcess => builder.any_pid().one_cpu(0),
    };
    builder.build().map(drop)
}

/// Whether the processor's own counters can be read. It tries cycles of this thread in user mode, which needs
/// the fewest rights.
pub fn hardware_cycles() -> Measured<()> {
    Builder::new(Hardware::CPU_CYCLES).build().map(drop).map_err(|error| match error.raw_os_error() {
        Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV) => Absence::new(
            Reason::NotSupported,
            "no hardware counters: the processor's PMU is not passed through to this machine",
        ),
        _ => refusal("hardware counters", &error),
    })
}

/// A refusal with the kernel's error text, and the reason for its errno.
pub fn refusal(what: &str, error: &std::io::Error) -> Absence {
    let reason = match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => Reason::NotPermitted,
        Some(libc::ESRCH) => Reason::Vanished,
        _ => Reason::NotSupported,
    };
    Absence::new(reason, format!("{what}: perf_event_open: {}", errno_text(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_process_is_not_a_forbidden_one() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id() as i32;
        child.wait().unwrap();
        if let Err(error) = cpu_clock(Observed::Myself, false) {
            println!("skipped: {}", errno_text(&error));
            return;
        }
        let error = cpu_clock(Observed::Process(pid), false).unwrap_err();
        assert_eq!(refusal("samples", &error).reason, Reason::Vanished);
    }

    #[test]
    fn errnos_keep_their_meaning() {
        let reason = |code| refusal("x", &std::io::Error::from_raw_os_error(code)).reason;
        assert_eq!((reason(libc::EACCES), reason(libc::EPERM)), (Reason::NotPermitted, Reason::NotPermitted));
        assert_eq!(
            (reason(libc::ENOSYS), reason(libc::ENOENT)),
            (Reason::NotSupported, Reason::NotSupported)
        );
    }
}
