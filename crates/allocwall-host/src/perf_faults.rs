//! Page faults of one thread by perf_event_open(2): their number, and the addresses of a part of them. Those in user mode need no
//! privileges (perf_event_paranoid 2); those in system calls, which copy from or to memory, do.
//!
//! While the event counts, a fault takes the thread about 220 ns longer, and a sample 2 µs (measured in a virtual machine,
//! where a fault takes 2 to 4 µs). So it counts only for short times.

use crate::perf;
use allocwall_model::catalogue::advice::Advice;
use allocwall_model::units::{Absence, Measured, Reason};
use perf_event::events::Software;
use perf_event::{Builder, Clock, SampleFlag, Sampler};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// Number of the stack pointer in `asm/perf_regs.h`, and its place in `perf::Registers`.
#[cfg(target_arch = "x86_64")]
pub const STACK_POINTER: usize = 7;
#[cfg(target_arch = "aarch64")]
pub const STACK_POINTER: usize = 31;

/// The ring has one page, which has room for 100 samples: a user may lock little memory (perf_event_mlock_kb).
const RING_BYTES: usize = 4096;

/// The event of one thread. Its descriptor is readable (poll(2)) as soon as there is a sample.
pub struct FaultEvent(Sampler);

impl AsFd for FaultEvent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the event keeps its descriptor open as long as it is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.0.as_raw_fd()) }
    }
}

/// A sampled fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultRecord {
    /// CLOCK_MONOTONIC.
    pub time_ns: u64,
    pub address: u64,
    /// None for 32-bit code.
    pub stack_pointer: Option<u64>,
}

impl FaultEvent {
    /// Opens the event, stopped. Each `period`-th fault of the thread becomes a sample. `kernel`: also those in kernel mode.
    ///
    /// # Errors
    /// The thread has ended; it is not permitted; no descriptor is left (TooCostly); no memory may be locked (Exhausted).
    pub fn open(tid: i32, period: u64, kernel: bool) -> Measured<FaultEvent> {
        let counter = Builder::new(Software::PAGE_FAULTS_MIN)
            .observe_pid(tid)
            .any_cpu()
            // Not PERF_SAMPLE_PERIOD: with it, each fault would become a sample (perf_swevent_event in
            // kernel/events/core.c).
            .sample_period(period)
            .sample(SampleFlag::TIME | SampleFlag::ADDR | SampleFlag::REGS_USER)
            .sample_regs_user(1 << STACK_POINTER)
            .exclude_kernel(!kernel)
            .exclude_hv(true)
            .clockid(Clock::MONOTONIC)
            // Memory may be given back soon after its fault, so each sample wakes its reader.
            .wakeup_events(1)
            .enabled(false)
            .build()
            .map_err(|error| perf::absence(&error))?;
        counter.sampled(RING_BYTES).map(FaultEvent).map_err(|error| ring_refused(&error))
    }

    /// Starts it. The kernel stops it by itself after `most` samples; `most` must not be 0.
    pub fn start(&mut self, most: u32) -> io::Result<()> {
        /// _IO('$', 2), include/uapi/linux/perf_event.h.
        const PERF_EVENT_IOC_REFRESH: libc::c_ulong = 0x2402;
        let most = libc::c_ulong::from(most);
        // SAFETY: the descriptor is an open perf event; the ioctl takes a number and touches none of our memory.
        let rc = unsafe { libc::ioctl(self.0.as_raw_fd(), PERF_EVENT_IOC_REFRESH as _, most) };
        if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    pub fn stop(&mut self) -> io::Result<()> {
        self.0.as_counter_mut().disable()
    }

    /// Faults while it counted, sampled or not; also after the thread has ended.
    pub fn count(&mut self) -> io::Result<u64> {
        self.0.as_counter_mut().read()
    }

    /// The samples since the last call, in order of time: at most those for which it was started, and a few.
    pub fn records(&mut self) -> Vec<FaultRecord> {
        // include/uapi/linux/perf_event.h: PERF_RECORD_SAMPLE
        const SAMPLE: u32 = 9;
        let mut records = Vec::new();
        while let Some(record) = self.0.next_record() {
            if record.ty() == SAMPLE {
                records.extend(parse_fault(&record.to_contiguous()));
            }
        }
        records
    }
}

/// Why the ring of an event could not be mapped: perf_mmap in kernel/events/core.c.
fn ring_refused(error: &io::Error) -> Absence {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::ENOMEM) => {
            let detail = format!("samples of page faults: no more memory may be locked ({error})");
            Absence::new(Reason::Exhausted, detail)
                .mend(Advice::command("sudo sysctl kernel.perf_event_mlock_kb=4096"))
                .mend("raise the limit of locked memory: ulimit -l")
        }
        _ => perf::absence(error),
    }
}

/// Parses the body of a sample as `open` requests it: TIME, ADDR, REGS_USER, in the kernel's order
/// (perf_event_open(2)).
pub(crate) fn parse_fault(bytes: &[u8]) -> Option<FaultRecord> {
    // include/uapi/linux/perf_event.h: PERF_SAMPLE_REGS_ABI_NONE, PERF_SAMPLE_REGS_ABI_64
    const ABI_NONE: u64 = 0;
    const ABI_64: u64 = 2;
    let mut rest = bytes;
    let mut word = || {
        let (word, tail) = rest.split_first_chunk::<8>()?;
        rest = tail;
        Some(u64::from_ne_bytes(*word))
    };
    let time_ns = word()?;
    let address = word()?;
    let abi = word()?;
    let stack_pointer = if abi == ABI_NONE { None } else { Some(word()?) };
    Some(FaultRecord { time_ns, address, stack_pointer: stack_pointer.filter(|_| abi == ABI_64) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use crate::memory::{AnonymousMapping, Pages};
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    const PAGES: u64 = 256;
    const PAGE: u64 = 4096;

    #[test]
    fn a_sample_needs_all_its_words() {
        let body = |words: &[u64]| words.iter().flat_map(|w| w.to_ne_bytes()).collect::<Vec<u8>>();
        let parsed = |words: &[u64]| parse_fault(&body(words));
        let record = FaultRecord { time_ns: 5, address: 0x1000, stack_pointer: Some(0x7000) };
        assert_eq!(parsed(&[5, 0x1000, 2, 0x7000]), Some(record));
        // 32-bit code has another stack; a thread without user registers has none.
        let without = FaultRecord { stack_pointer: None, ..record };
        assert_eq!(parsed(&[5, 0x1000, 1, 0x7000]), Some(without));
        assert_eq!(parsed(&[5, 0x1000, 0]), Some(without));
        let whole = body(&[5, 0x1000, 2, 0x7000]);
        assert!((0..whole.len()).all(|length| parse_fault(&whole[..length]).is_none()));
    }

    /// What the event of this thread reports while the thread writes to each page of new memory: the count, the samples
    /// in that memory, and all samples. None if this user may not open it.
    fn reported(period: u64, most: u32) -> Option<(u64, Vec<u64>, usize)> {
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        let mut memory = AnonymousMapping::new((PAGES * PAGE) as usize * 2, Pages::Small).expect("memory");
        let mut event = match FaultEvent::open(tid, period, false) {
            Ok(event) => event,
            Err(absence) => {
                println!("skipped: {absence}");
                return None;
            }
        };
        let bytes = memory.bytes();
        let start = bytes.as_ptr() as u64;
        let before = clock::monotonic_ns();
        event.start(most).expect("it is open");
        for page in 0..PAGES {
            bytes[(page * PAGE) as usize] = 1;
        }
        event.stop().expect("it is open");
        let after = clock::monotonic_ns();
        // It has stopped.
        bytes[(PAGES * PAGE) as usize] = 1;
        let records = event.records();
        assert!(event.records().is_empty());
        assert!(records.is_sorted_by_key(|record| record.time_ns));
        if clock::comparable().is_ok() {
            assert!(records.iter().all(|record| (before..=after).contains(&record.time_ns)));
        }
        assert!(records.iter().all(|record| record.stack_pointer.is_some_and(|pointer| pointer > 0)));
        let within = |address: &u64| (start..start + PAGES * PAGE).contains(address);
        let samples = records.len();
        let pages = records.iter().map(|record| record.address).filter(within).map(|at| (at - start) / PAGE);
        Some((event.count().expect("it is open"), pages.collect(), samples))
    }

    #[test]
    fn faults_are_counted_and_every_nth_has_its_address() {
        let Some((count, pages, samples)) = reported(7, 64) else { return };
        // This thread may have a few faults of its own.
        assert!((PAGES..PAGES + 32).contains(&count), "{count}");
        assert_eq!(samples as u64, count / 7);
        assert!(pages.len() + 5 >= samples && pages.is_sorted(), "{pages:?}");
    }

    #[test]
    fn the_kernel_ends_a_storm() {
        let Some((count, pages, samples)) = reported(1, 16) else { return };
        // A few more may come before the event is off.
        assert!((16..24).contains(&samples), "{samples}");
        assert!(count < PAGES / 2, "{count}");
        assert!(pages.iter().all(|page| *page < PAGES / 2), "{pages:?}");
    }

    #[test]
    fn the_event_is_readable_from_a_sample_on() {
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        let mut memory = AnonymousMapping::new((PAGES * PAGE) as usize * 2, Pages::Small).expect("memory");
        // This thread may have a few faults of its own.
        let mut event = match FaultEvent::open(tid, 64, false) {
            Ok(event) => event,
            Err(absence) => return println!("skipped: {absence}"),
        };
        let readable = |event: &FaultEvent| {
            let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
            poll(&mut [PollFd::new(event, PollFlags::IN)], Some(&at_once)).expect("it is open")
        };
        event.start(16).expect("it is open");
        let mut touch = |pages: std::ops::Range<u64>| {
            pages.for_each(|page| memory.bytes()[(page * PAGE) as usize] = 1);
            readable(&event)
        };
        assert_eq!([touch(0..16), touch(16..PAGES)], [0, 1]);
        event.stop().expect("it is open");
        assert_eq!(readable(&event), 0);
        assert!(!event.records().is_empty());
    }

    #[test]
    fn a_thread_that_has_ended_has_no_event() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id() as i32;
        child.wait().unwrap();
        let absence = FaultEvent::open(pid, 1, false).err().expect("there is no such thread");
        if !absence.is_gone() {
            println!("skipped: {absence}");
        }
    }

    #[test]
    fn refused_locked_memory_has_its_own_reason() {
        let of = |code: i32| ring_refused(&io::Error::from_raw_os_error(code));
        let refused = of(libc::EPERM);
        assert_eq!(refused.reason, Reason::Exhausted);
        assert!(refused.advice().is_some_and(|advice| advice.contains("perf_event_mlock_kb")), "{refused}");
        assert_eq!(of(libc::EMFILE).reason, Reason::TooCostly);
        // The same error of perf_event_open is a missing right.
        assert_eq!(perf::absence(&io::Error::from_raw_os_error(libc::EPERM)).reason, Reason::NotPermitted);
    }
}
