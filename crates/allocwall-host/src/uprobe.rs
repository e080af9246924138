//! Counts how often threads execute one place in a file, with uprobes through perf_event_open(2), and records a part
//! of the passes.
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

mod cost;

pub use cost::hit_cost;

use crate::file;
use crate::perf::{self, RawSample};
use crate::rights::run_as_root;
use allocwall_model::units::{Absence, Measured, Reason};
use perf_event::events::{Event, EventData};
use perf_event::{Builder, Counter, Sampler};
use perf_event_open_sys::bindings::perf_event_attr;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;

/// Size of a recorder's ring. With its control page, it is what a user without CAP_IPC_LOCK may lock on one CPU
/// (perf_event_mlock_kb).
pub const RING_BYTES: usize = 512 << 10;
/// No record is smaller: the identity and the registers of a sample.
const LEAST_RECORD: usize = 64;

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
        self.builder(file, offset, tid).build().map(Passes).map_err(|error| refusal(&error))
    }

    /// Counts the same, and records each pass of number `every`: its registers, and `stack_bytes` of its stack (a
    /// multiple of 8 above 0).
    ///
    /// # Errors
    /// Vanished: the thread has ended. Otherwise those of perf_event_open(2).
    pub fn record(
        self,
        file: &File,
        offset: u64,
        tid: i32,
        every: u64,
        stack_bytes: u32,
    ) -> Measured<Recorder> {
        let mut builder = self.builder(file, offset, tid);
        perf::sample_stacks(&mut builder, stack_bytes);
        builder
            .sample_period(every)
            .exclude_callchain_kernel(true)
            // The ring is read after the event was stopped: no wakeups.
            .wakeup_watermark(usize::MAX >> 33);
        let counter = builder.build().map_err(|error| refusal(&error))?;
        counter.sampled(RING_BYTES).map(Recorder).map_err(|error| perf::absence(&error))
    }

    fn builder(self, file: &File, offset: u64, tid: i32) -> Builder<'static> {
        // This names the opened file itself, even if its name has changed or belongs to another mount
        // namespace.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let place = ProbeAddress { kind: self.kind, path: CString::new(path).unwrap_or_default(), offset };
        let mut builder = Builder::new(place);
        builder.observe_pid(tid).any_cpu().include_kernel().enabled(false);
        builder
    }
}

fn refusal(error: &io::Error) -> Absence {
    match error.raw_os_error() {
        // Independent of perf_event_paranoid (perf_uprobe_event_init, kernel/events/core.c).
        Some(libc::EACCES) => Absence::new(Reason::NotPermitted, "this user is not permitted to set uprobes")
            .mend(run_as_root()),
        _ => perf::absence(error),
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

/// A uprobe that records. Dropping it removes the breakpoint, which takes about 85 ms.
pub struct Recorder(Sampler);

/// What a recorder counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passed {
    pub count: u64,
    /// CPU time of the thread while it was counted. The clock of a thread's event stops while the thread does not run.
    pub cpu_ns: u64,
}

impl Recorder {
    pub fn start(&mut self) -> io::Result<()> {
        self.0.as_counter_mut().enable()
    }

    /// The count so far.
    pub fn count(&mut self) -> io::Result<u64> {
        self.0.as_counter_mut().read()
    }

    /// Stops counting. The breakpoint stays until the recorder is dropped.
    pub fn stop(&mut self) -> io::Result<Passed> {
        let counter = self.0.as_counter_mut();
        counter.disable()?;
        let read = counter.read_count_and_time()?;
        Ok(Passed { count: read.count, cpu_ns: read.time_enabled })
    }

    /// Passes on the records since the last call, in their order. Call it while the event is stopped.
    pub fn records(&mut self, sink: &mut dyn FnMut(RawSample<'_>)) {
        let mut chain = Vec::new();
        // Even if it could not be stopped, this ends.
        for _ in 0..RING_BYTES / LEAST_RECORD {
            let Some(record) = self.0.next_record() else { return };
            if record.ty() != perf::SAMPLE {
                continue;
            }
            let bytes = record.to_contiguous();
            if let Some(sample) = perf::parse_sample(&bytes, false, &mut chain) {
                sink(sample);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::{ElfFile, Table};
    use crate::perf::arguments;

    const LIBC: &str = "/usr/lib/x86_64-linux-gnu/libc.so.6";

    /// Where the C library has this function.
    fn offset(file: &File, name: &[u8]) -> u64 {
        let libc = ElfFile::new(file.try_clone().unwrap());
        let libc = libc.parse().unwrap();
        let mut found = None;
        let mut visit = |symbol: crate::elf::Symbol<'_>| {
            if symbol.name == name {
                found = libc.facts.offset_of_address(symbol.address);
            }
        };
        libc.symbols(Table::Exported, &mut visit).unwrap();
        found.unwrap()
    }

    fn own_tid() -> i32 {
        // SAFETY: takes no argument and can't fail (gettid(2)).
        unsafe { libc::gettid() }
    }

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
        let Ok(file) = File::open(LIBC) else {
            println!("skipped: no {LIBC} on this machine");
            return;
        };
        let tid = own_tid();
        let open = |name| Uprobes::live().and_then(|probes| probes.open(&file, offset(&file, name), tid));
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
    #[test]
    fn a_part_of_the_calls_is_recorded_with_arguments_and_stack() {
        let Ok(file) = File::open(LIBC) else {
            println!("skipped: no {LIBC} on this machine");
            return;
        };
        let place = offset(&file, b"getpgid");
        let opened = Uprobes::live().and_then(|probes| probes.record(&file, place, own_tid(), 3, 64));
        let mut recorder = match opened {
            Ok(recorder) => recorder,
            Err(absence) => return println!("skipped: {absence}"),
        };
        // SAFETY: takes a number (getpgid(2)).
        let call = |number: i32| unsafe { libc::getpgid(number) };
        recorder.start().unwrap();
        (0..30).for_each(|number| _ = call(number));
        assert_eq!(recorder.count().unwrap(), 30);
        let passed = recorder.stop().unwrap();
        call(30);
        assert_eq!(passed.count, 30);
        assert!((1_000..1_000_000_000).contains(&passed.cpu_ns), "{passed:?}");
        let mut numbers = Vec::new();
        recorder.records(&mut |sample| {
            assert_eq!((sample.tid, sample.stack.len(), sample.narrow), (own_tid(), 64, false));
            numbers.push(arguments(&sample.registers.unwrap())[0] as i32);
        });
        assert_eq!(numbers, (0..10).map(|nth| 3 * nth + 2).collect::<Vec<i32>>());
        recorder.records(&mut |_| panic!("they were read"));
    }
}
