//! Counts how often threads execute one place in a file, with uprobes through perf_event_open(2).
//!
//! A uprobe is a breakpoint in every thread of the process, also in threads that are not counted. Each
//! execution traps into the kernel: 0.7 µs on a virtual machine. Closing one uprobe waits until no CPU
//! executes in it, about 85 ms there (Linux 6.18), and the waits add up. So allocwall sets few uprobes, for a
//! short time.
//!
//! Threads that a counted thread starts are not counted. With `inherit`, the kernel would look up the file's
//! name a second time, in the memory of the program that starts the thread (perf_uprobe_init,
//! kernel/trace/trace_event_perf.c). Each clone(2) of that program then fails with EFAULT, as observed on
//! Linux 6.18.

use crate::file;
use crate::perf;
use crate::rights::run_as_root;
use allocwall_model::units::{Absence, Measured, Reason};
use perf_event::events::{Event, EventData};
use perf_event::{Builder, Counter};
use perf_event_open_sys::bindings::perf_event_attr;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;

/// The kernel's uprobe PMU.
#[derive(Clone, Copy, Debug)]
pub struct Uprobes {
    kind: u32,
}

impl Uprobes {
    pub fn live() -> Measured<Uprobes> {
        Self::below(Path::new("/"))
    }

    /// # Errors
    /// `NotSupported` if the kernel was built without CONFIG_UPROBE_EVENTS, or is older than 4.17.
    pub fn below(root: &Path) -> Measured<Uprobes> {
        let path = root.join("sys/bus/event_source/devices/uprobe/type");
        match file::read_number(&path) {
            Ok(kind) => Ok(Uprobes { kind }),
            Err(absence) if absence.reason == Reason::NotFound => {
                Err(Absence::new(Reason::NotSupported, "the kernel has no uprobes for perf events"))
            }
            Err(absence) => Err(absence),
        }
    }

    /// Counts how often a thread executes the instruction at this file offset, in every mapping of the file.
    /// The counter starts disabled.
    pub fn open(self, file: &File, offset: u64, tid: i32) -> Measured<Passes> {
        // This names the opened file itself, even if its name has changed or belongs to another mount
        // namespace.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let place = ProbeAddress { kind: self.kind, path: CString::new(path).unwrap_or_default(), offset };
        Builder::new(place)
            .observe_pid(tid)
            .any_cpu()
            .include_kernel()
            .enabled(false)
            .build()
            .map(Passes)
            .map_err(|error| match error.raw_os_error() {
                // Independent of perf_event_paranoid (perf_uprobe_event_init, kernel/events/core.c).
                Some(libc::EACCES) => {
                    Absence::new(Reason::NotPermitted, "this user is not permitted to set uprobes")
                        .mend(run_as_root())
                }
                _ => perf::absence(&error),
            })
    }
}

struct ProbeAddress {
    kind: u32,
    path: CString,
    offset: u64,
}

impl Event for ProbeAddress {
    /// Incomplete alone: only `update_attrs_with_data`, which the builder calls, keeps the name alive until
    /// the kernel has read it.
    fn update_attrs(self, attr: &mut perf_event_attr) {
        attr.type_ = self.kind;
        attr.probe_offset = self.offset;
    }

    fn update_attrs_with_data(self, attr: &mut perf_event_attr) -> Option<Arc<dyn EventData>> {
        let path = Arc::new(self.path.clone());
        attr.uprobe_path = path.as_ptr() as u64;
        self.update_attrs(attr);
        Some(path)
    }
}

/// A uprobe. Dropping it removes the breakpoint, which takes about 85 ms.
pub struct Passes(Counter);

impl Passes {
    pub fn start(&mut self) -> io::Result<()> {
        self.0.enable()
    }

    pub fn stop(&mut self) -> io::Result<()> {
        self.0.disable()
    }

    /// The count so far. It includes threads that have ended.
    pub fn count(&mut self) -> io::Result<u64> {
        self.0.read()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::{ElfFile, Table};

    #[test]
    fn a_kernel_without_uprobes_is_an_absence() {
        let empty = tempfile::tempdir().unwrap();
        let reason = Uprobes::below(empty.path()).unwrap_err().reason;
        assert_eq!(reason, Reason::NotSupported);
        let folder = empty.path().join("sys/bus/event_source/devices/uprobe");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("type"), "9\n").unwrap();
        assert_eq!(Uprobes::below(empty.path()).unwrap().kind, 9);
    }

    #[test]
    fn only_the_calls_of_one_thread_to_one_function_are_counted() {
        let path = "/usr/lib/x86_64-linux-gnu/libc.so.6";
        let Ok(file) = File::open(path) else {
            println!("skipped: no {path} on this machine");
            return;
        };
        let libc = ElfFile::new(file.try_clone().unwrap());
        let libc = libc.parse().unwrap();
        let offset = |name: &[u8]| {
            let mut found = None;
            let mut visit = |symbol: crate::elf::Symbol<'_>| {
                if symbol.name == name {
                    found = libc.facts.offset_of_address(symbol.address);
                }
            };
            libc.symbols(Table::Exported, &mut visit).unwrap();
            found.unwrap()
        };
        // SAFETY: takes no argument and can't fail (gettid(2)).
        let tid = unsafe { libc::gettid() };
        let open = |name| Uprobes::live().and_then(|probes| probes.open(&file, offset(name), tid));
        let (mut called, mut spared) = match (open(b"getppid"), open(b"getpgrp")) {
            (Ok(called), Ok(spared)) => (called, spared),
            (Err(absence), _) | (_, Err(absence)) => {
                println!("skipped: {absence}");
                return;
            }
        };
        // SAFETY: takes no argument and can't fail (getppid(2)).
        let call = || unsafe { libc::getppid() };
        call();
        called.start().unwrap();
        spared.start().unwrap();
        for _ in 0..30 {
            call();
        }
        // With `inherit`, this thread could not be started.
        std::thread::spawn(call).join().unwrap();
        called.stop().unwrap();
        call();
        assert_eq!((called.count().unwrap(), spared.count().unwrap()), (30, 0));
    }
}
