//! CPU-clock sampling through perf_event_open(2).
//!
//! Two clocks tick on every CPU. The frequent clock copies 1 KiB of the user stack, enough for the callers
//! nearest to the leaf. The rarer clock copies enough for the whole stack. Both measure the same CPU time, so
//! each sample stands for 1 / (sum of their rates) of CPU time. A large copy at every tick would cost the
//! target several times as much.

use crate::clock;
use crate::hardware::{self, Encoding};
use crate::limits;
use crate::maps::{Mapping, Perms};
use crate::rights::run_as_root;
use allocwall_model::catalogue::advice;
use allocwall_model::hardware::HardwareSlice;
use allocwall_model::units::{Absence, Measured, Reason};
use perf_event::data::Record;
use perf_event::events::{Software, Tracepoint};
use perf_event::{Builder, Clock, Counter, SampleFlag, Sampler};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

const SHALLOW_STACK: u32 = 1024;
const DEEP_STACK: u32 = 16 * 1024;

/// The most samples that a recording holds. A window with more CPU time than this many ticks is sampled less
/// often. A share of one percent still has ten thousand samples, and memory and file size stay bounded for
/// every machine and window.
pub const SAMPLE_BUDGET: u64 = 1_000_000;

/// The most samples per second on all CPUs together. The ring sizes depend on it, and one thread reads all of
/// them.
const SAMPLES_A_SECOND: u64 = 100_000;

/// How often the two clocks tick, in ns of CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Periods {
    shallow_ns: u64,
    deep_ns: u64,
}

/// Samples per second and CPU. In a virtual machine the clock's interrupt passes through the hypervisor
/// twice. One interrupt costs the target about 9 µs there (measured next to `perf record` on nested KVM), and
/// 1 to 2 µs on bare metal.
pub const RATE_HZ: u32 = 999;
/// The rate for a target whose own speed is not measured. The clock's interrupts cost it 4 % of its time if
/// one takes 9 µs. A command that runs for a tenth of a second gets 400 samples.
pub const RATE_CLOSE_HZ: u32 = 3_999;
const RATE_HZ_VIRTUAL: std::ops::RangeInclusive<u32> = 199..=499;
/// In a virtual machine a busy CPU gets at most about this many samples per window. Half the width of a
/// 95 % interval is then 1.4 points for a share of 50 %, 0.8 points for a share of 10 %.
const ENOUGH_SAMPLES: f64 = 5_000.0;

/// The sampling rate if the user gives none.
pub fn rate_by_default(virtual_machine: bool, window: Duration) -> u32 {
    if !virtual_machine {
        return RATE_HZ;
    }
    let enough = (ENOUGH_SAMPLES / window.as_secs_f64()) as u32;
    enough.clamp(*RATE_HZ_VIRTUAL.start(), *RATE_HZ_VIRTUAL.end())
}

impl Periods {
    /// At 999 Hz. The periods are not multiples of one another nor of a timer tick, so that periodic programs
    /// don't alias.
    const FINEST: Periods = Periods { shallow_ns: 1_249_987, deep_ns: 5_025_127 };
    /// With a larger factor, a sample would stand for more than a second.
    const COARSEST: u64 = 900;

    /// For a window in which the target may use every CPU.
    pub fn for_window(rate_hz: u32, cpus: usize, window: Duration) -> Periods {
        let at_most = SAMPLE_BUDGET.min((SAMPLES_A_SECOND as f64 * window.as_secs_f64()) as u64);
        let at_rate = |ns: u64| ns * u64::from(RATE_HZ) / u64::from(rate_hz.max(1));
        let finest =
            Periods { shallow_ns: at_rate(Self::FINEST.shallow_ns), deep_ns: at_rate(Self::FINEST.deep_ns) };
        let most = window.as_nanos() * cpus as u128 / u128::from(finest.sample_ns());
        let times = most.div_ceil(u128::from(at_most.max(1))).clamp(1, Self::COARSEST.into()) as u64;
        Periods { shallow_ns: finest.shallow_ns * times, deep_ns: finest.deep_ns * times }
    }

    /// CPU time that one sample stands for: 1 / (1/shallow + 1/deep), about 1 / 999 Hz at the finest.
    pub fn sample_ns(self) -> u64 {
        let product = u128::from(self.shallow_ns) * u128::from(self.deep_ns);
        (product / u128::from(self.shallow_ns + self.deep_ns)) as u64
    }
}

/// Kernel memory of all rings together. Machines with very many CPUs need more, because each ring has a
/// minimum size.
const RINGS_TOTAL: usize = 64 << 20;
/// Ring sizes to try, largest first: unprivileged users may lock only perf_event_mlock_kb (516 KiB) per CPU.
const RING_BYTES: [(usize, usize); 3] = [(2 << 20, 2 << 20), (512 << 10, 512 << 10), (128 << 10, 128 << 10)];
/// The longest time between two reads of the rings.
const DRAINED_NS: u64 = 50_000_000;
/// Size of a record without its stack copy: header, identity, registers and a kernel stack of usual depth.
const RECORD_BYTES: usize = 512;
/// Least ring sizes. The deep ring needs room for one large stack copy. The shallow ring also takes the
/// records of processes that start.
const RING_LEAST: (usize, usize) = (16 << 10, 32 << 10);

/// Records younger than this stay in the rings during a read. A record may already have its time but still be
/// written on another CPU; without the delay it would arrive out of order.
const SETTLING_NS: u64 = 2_000_000;

/// Bytes that sample_id_all appends to each record that is not a sample: TID, TIME and CPU, 8 bytes each.
/// TIME is in the middle.
const ID_BYTES: usize = 24;

/// What to sample.
pub enum Scope {
    /// Every process on every CPU; the caller selects its own processes. The cost does not depend on the
    /// number of threads.
    Machine,
    /// These threads, and all threads and processes that they start from now on.
    Threads(Vec<i32>),
    /// A child of allocwall that has not called exec yet; counting starts at exec.
    UntilExec(i32),
}

/// A source of clock ticks on the target's CPUs and of records about its processes.
pub trait Clocks {
    fn start(&mut self) -> io::Result<()>;

    fn stop(&mut self) -> io::Result<()>;

    /// Passes on the records in order of time, up to a moment ago; younger records wait for the next call.
    /// `last`: the clocks are stopped, and all remaining records are passed on.
    fn drain(&mut self, last: bool, sink: &mut dyn FnMut(u64, Event<'_>));

    /// Threads that are not sampled because file descriptors ran out.
    fn left_out(&self) -> usize {
        0
    }
}

/// The clocks of the kernel: perf events.
pub struct CpuSampler {
    shallow: Vec<Sampler>,
    deep: Vec<Sampler>,
    /// Further events that write into the rings above.
    redirected: Vec<Counter>,
    started_by_exec: bool,
    /// The kernel part of the current sample's stack.
    chain: Vec<u64>,
    left_out: usize,
}

/// Ring sizes to try on a machine with this many CPUs. No ring is smaller than what a busy CPU writes between
/// two reads: 60 KiB of shallow and 170 KiB of deep samples at 999 Hz. It is less on a machine with many
/// CPUs, because that is sampled less often.
fn ring_sizes(cpus: usize, periods: Periods) -> Vec<(usize, usize)> {
    let share = RINGS_TOTAL / 2 / cpus.max(1);
    // Rings are powers of two of pages (perf_event_open(2)).
    let share = if share.is_power_of_two() { share } else { share.next_power_of_two() / 2 };
    let needed = |period_ns: u64, dump: u32, least: usize| {
        let samples = DRAINED_NS.div_ceil(period_ns) as usize;
        (samples * (dump as usize + RECORD_BYTES)).next_power_of_two().max(least)
    };
    let least = (
        needed(periods.shallow_ns, SHALLOW_STACK, RING_LEAST.0),
        needed(periods.deep_ns, DEEP_STACK, RING_LEAST.1),
    );
    let mut sizes: Vec<(usize, usize)> = RING_BYTES
        .iter()
        .map(|&(shallow, deep)| (shallow.min(share.max(least.0)), deep.min(share.max(least.1))))
        .collect();
    sizes.dedup();
    sizes
}

/// General registers in the order of perf's `asm/perf_regs.h`.
pub type Registers = [u64; REGISTERS];

#[cfg(target_arch = "x86_64")]
mod arch {
    /// AX BX CX DX SI DI BP SP IP (0..8), R8..R15 (16..23).
    pub const MASK: u64 = 0x1ff | (0xff << 16);
    pub const REGISTERS: usize = 17;
    /// DI, SI, DX (System V ABI, 3.2.3).
    pub const ARGUMENTS: [usize; 3] = [5, 4, 3];
}
#[cfg(target_arch = "aarch64")]
mod arch {
    /// X0..X29, LR, SP, PC (0..32).
    pub const MASK: u64 = (1 << 33) - 1;
    pub const REGISTERS: usize = 33;
    /// X0, X1, X2 (AAPCS64, 6.8.2).
    pub const ARGUMENTS: [usize; 3] = [0, 1, 2];
}
pub const REGISTERS: usize = arch::REGISTERS;

/// The first three arguments of a function, at its first instruction: integers or addresses.
pub fn arguments(registers: &Registers) -> [u64; 3] {
    arch::ARGUMENTS.map(|register| registers[register])
}

pub struct RawSample<'a> {
    /// CLOCK_MONOTONIC.
    pub time_ns: u64,
    pub pid: i32,
    pub tid: i32,
    pub cpu: u32,
    /// Kernel return addresses, leaf first; empty in user mode or without permission.
    pub kernel: &'a [u64],
    pub registers: Option<Registers>,
    /// Bytes upwards from the stack pointer.
    pub stack: &'a [u8],
    /// The thread ran in 32-bit mode: its stack does not have the layout of 64-bit code. `stack` is empty
    /// then.
    pub narrow: bool,
    pub deep: bool,
}

pub enum Event<'a> {
    Sample(RawSample<'a>),
    /// An executable file mapping appeared.
    Mapped {
        pid: i32,
        mapping: Mapping,
    },
    Exec {
        pid: i32,
        comm: &'a [u8],
    },
    Renamed {
        pid: i32,
        tid: i32,
        comm: &'a [u8],
    },
    /// A thread (`pid == parent`) or a process started.
    Forked {
        pid: i32,
        tid: i32,
        parent: i32,
    },
    Exited {
        pid: i32,
        tid: i32,
    },
    Lost(u64),
}

impl CpuSampler {
    /// Opens the events, stopped. `kernel`: sample kernel time and kernel stacks too.
    pub fn open(scope: &Scope, cpus: &[u32], kernel: bool, periods: Periods) -> Measured<CpuSampler> {
        let mut last = None;
        for (shallow_bytes, deep_bytes) in ring_sizes(cpus.len(), periods) {
            match Self::open_with(scope, cpus, kernel, periods, (shallow_bytes, deep_bytes)) {
                Ok(sampler) => return Ok(sampler),
                // Above the locked-memory limit (perf_mmap in kernel/events/core.c). A smaller ring may fit.
                Err(Opening::Ring(e)) if matches!(e.raw_os_error(), Some(libc::EPERM | libc::ENOMEM)) => {
                    last = Some(e)
                }
                Err(Opening::Ring(e) | Opening::Event(e)) => return Err(absence(&e)),
            }
        }
        Err(absence(&last.unwrap_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))))
    }

    fn open_with(
        scope: &Scope,
        cpus: &[u32],
        kernel: bool,
        periods: Periods,
        (shallow_bytes, deep_bytes): (usize, usize),
    ) -> Result<CpuSampler, Opening> {
        let one;
        let tids: &[i32] = match scope {
            Scope::Machine => &[-1],
            Scope::Threads(tids) => tids,
            Scope::UntilExec(pid) => {
                one = [*pid];
                &one
            }
        };
        // Each event needs a descriptor. The descriptors that are left are given to whole threads.
        let affordable = limits::descriptors_to_spare() / (2 * cpus.len()).max(1);
        let opened = open_all(
            tids,
            cpus,
            affordable,
            |tid, cpu, deep| open_clock(scope, tid, cpu, kernel, periods, deep),
            |counter: Counter, deep| counter.sampled(if deep { deep_bytes } else { shallow_bytes }),
            redirect,
        )?;
        let (shallow, deep) = opened.rings.into_iter().unzip();
        Ok(CpuSampler {
            shallow,
            deep,
            redirected: opened.redirected,
            started_by_exec: matches!(scope, Scope::UntilExec(_)),
            chain: Vec::new(),
            left_out: opened.left_out,
        })
    }

    fn each(&mut self, mut act: impl FnMut(&mut Counter) -> io::Result<()>) -> io::Result<()> {
        for ring in self.shallow.iter_mut().chain(&mut self.deep) {
            act(ring.as_counter_mut())?;
        }
        self.redirected.iter_mut().try_for_each(act)
    }
}

impl Clocks for CpuSampler {
    fn start(&mut self) -> io::Result<()> {
        if self.started_by_exec {
            return Ok(());
        }
        self.each(|counter| counter.enable())
    }

    fn stop(&mut self) -> io::Result<()> {
        self.each(|counter| counter.disable())
    }

    fn left_out(&self) -> usize {
        self.left_out
    }

    /// A fork is recorded on the parent's CPU, and later events of the child on the child's CPU. Reading one
    /// ring after the other could report a child before its fork.
    fn drain(&mut self, last: bool, sink: &mut dyn FnMut(u64, Event<'_>)) {
        // Stops at the present: a clock that did not stop would fill the rings as fast as they are read.
        let settling = if last { 0 } else { SETTLING_NS };
        let horizon = clock::monotonic_ns().saturating_sub(settling);
        let chain = &mut self.chain;
        let mut rings: Vec<(&mut Sampler, bool)> =
            self.shallow.iter_mut().map(|ring| (ring, false)).collect();
        rings.extend(self.deep.iter_mut().map(|ring| (ring, true)));
        in_time_order(
            &mut rings,
            horizon,
            |(ring, _)| next_time(ring),
            |(ring, deep), time| take_record(ring, *deep, time, chain, sink),
        );
    }
}

/// Merges sources that are each in order of time. `peek` returns the time of a source's next record, `take`
/// consumes it. Records later than `horizon` stay. Nothing is copied: a stack is read where the kernel wrote
/// it.
fn in_time_order<S>(
    sources: &mut [S],
    horizon: u64,
    mut peek: impl FnMut(&mut S) -> Option<u64>,
    mut take: impl FnMut(&mut S, u64),
) {
    let mut next: BinaryHeap<Reverse<(u64, usize)>> = sources
        .iter_mut()
        .enumerate()
        .filter_map(|(index, source)| Some(Reverse((peek(source)?, index))))
        .collect();
    while let Some(Reverse((time, index))) = next.pop()
        && time <= horizon
    {
        take(&mut sources[index], time);
        if let Some(time) = peek(&mut sources[index]) {
            next.push(Reverse((time, index)));
        }
    }
}

#[derive(Debug)]
enum Opening {
    Event(io::Error),
    Ring(io::Error),
}

/// Events of all threads on all CPUs: the shallow and the deep ring of each CPU, and the further events that
/// write into them.
struct Opened<R, E> {
    rings: Vec<(R, R)>,
    redirected: Vec<E>,
    left_out: usize,
}

/// The first thread that still exists gets a pair of rings for each CPU. The events of later threads are
/// redirected into the rings of their own CPU. CPUs and threads may disappear during the call.
fn open_all<R, E>(
    tids: &[i32],
    cpus: &[u32],
    affordable: usize,
    mut open: impl FnMut(i32, u32, bool) -> io::Result<E>,
    mut ring: impl FnMut(E, bool) -> io::Result<R>,
    mut redirect: impl FnMut(&E, &R) -> io::Result<()>,
) -> Result<Opened<R, E>, Opening> {
    let is = |error: &io::Error, code: i32| error.raw_os_error() == Some(code);
    let mut opened = Opened { rings: Vec::new(), redirected: Vec::new(), left_out: 0 };
    // The CPUs that have rings, in the same order.
    let mut ringed: Vec<u32> = Vec::new();
    let mut gone = io::Error::from_raw_os_error(libc::ESRCH);
    'threads: for (index, &tid) in tids.iter().enumerate() {
        if ringed.is_empty() {
            for &cpu in cpus {
                let pair = open(tid, cpu, false).and_then(|shallow| Ok((shallow, open(tid, cpu, true)?)));
                let (shallow, deep) = match pair {
                    Ok(pair) => pair,
                    // The CPU went offline after it was listed.
                    Err(e) if is(&e, libc::ENODEV) => {
                        gone = e;
                        continue;
                    }
                    // The thread ended: another thread gets the rings.
                    Err(e) if is(&e, libc::ESRCH) => {
                        gone = e;
                        opened.rings.clear();
                        ringed.clear();
                        continue 'threads;
                    }
                    Err(e) => return Err(Opening::Event(e)),
                };
                let pair =
                    (ring(shallow, false).map_err(Opening::Ring)?, ring(deep, true).map_err(Opening::Ring)?);
                opened.rings.push(pair);
                ringed.push(cpu);
            }
            continue;
        }
        if index >= affordable {
            opened.left_out = tids.len() - index;
            break;
        }
        for (&cpu, rings) in ringed.iter().zip(&opened.rings) {
            for (deep, ring) in [(false, &rings.0), (true, &rings.1)] {
                match open(tid, cpu, deep) {
                    Ok(event) => {
                        redirect(&event, ring).map_err(Opening::Event)?;
                        opened.redirected.push(event);
                    }
                    Err(e) if is(&e, libc::ESRCH) || is(&e, libc::ENODEV) => {}
                    Err(e) if is(&e, libc::EMFILE) => {
                        opened.left_out = tids.len() - index;
                        break 'threads;
                    }
                    Err(e) => return Err(Opening::Event(e)),
                }
            }
        }
    }
    if opened.rings.is_empty() { Err(Opening::Event(gone)) } else { Ok(opened) }
}

fn open_clock(
    scope: &Scope,
    tid: i32,
    cpu: u32,
    kernel: bool,
    periods: Periods,
    deep: bool,
) -> io::Result<Counter> {
    let mut builder = Builder::new(Software::CPU_CLOCK);
    sample_stacks(&mut builder, if deep { DEEP_STACK } else { SHALLOW_STACK });
    builder
        .one_cpu(cpu as usize)
        .sample_period(if deep { periods.deep_ns } else { periods.shallow_ns })
        .exclude_kernel(!kernel)
        .exclude_hv(true)
        .exclude_idle(true)
        .sample_id_all(true)
        // allocwall reads the rings at its own intervals: no wakeups.
        .wakeup_watermark(usize::MAX >> 33)
        .enabled(false);
    if !deep {
        builder.mmap(true).mmap2(true).comm(true).comm_exec(true).task(true);
    }
    match scope {
        Scope::Machine => builder.any_pid(),
        Scope::Threads(_) => builder.observe_pid(tid).inherit(true),
        Scope::UntilExec(_) => builder.observe_pid(tid).inherit(true).enable_on_exec(true),
    };
    builder.build()
}

/// Makes the samples of an event such as [`parse_sample`] reads. `stack_bytes`: a multiple of 8 above 0.
pub(crate) fn sample_stacks(builder: &mut Builder<'_>, stack_bytes: u32) {
    builder
        .sample(
            SampleFlag::IP
                | SampleFlag::TID
                | SampleFlag::TIME
                | SampleFlag::CPU
                | SampleFlag::CALLCHAIN
                | SampleFlag::REGS_USER
                | SampleFlag::STACK_USER,
        )
        .sample_regs_user(arch::MASK)
        .sample_stack_user(stack_bytes)
        .exclude_callchain_user(true)
        .clockid(Clock::MONOTONIC);
}

/// Makes `counter` write into `ring`. Both must belong to the same CPU.
fn redirect(counter: &Counter, ring: &Sampler) -> io::Result<()> {
    /// _IO('$', 5), include/uapi/linux/perf_event.h.
    const PERF_EVENT_IOC_SET_OUTPUT: libc::c_ulong = 0x2405;
    // SAFETY: both descriptors are open perf events; the ioctl takes a descriptor by value and touches none
    // of our memory.
    let rc = unsafe { libc::ioctl(counter.as_raw_fd(), PERF_EVENT_IOC_SET_OUTPUT as _, ring.as_raw_fd()) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

// include/uapi/linux/perf_event.h: PERF_RECORD_SAMPLE
pub(crate) const SAMPLE: u32 = 9;

/// Time of the ring's next record, which stays in the ring. A record too short to contain a time is due at
/// once.
fn next_time(ring: &mut Sampler) -> Option<u64> {
    let record = ring.next_record()?;
    let time = record_time(record.ty(), &record.to_contiguous()).unwrap_or(0);
    // Dropping the record would advance the ring.
    std::mem::forget(record);
    Some(time)
}

/// Position of a record's time: after IP and TID in a sample, else in the trailer that sample_id_all appends.
pub(crate) fn record_time(kind: u32, body: &[u8]) -> Option<u64> {
    let at = match kind {
        SAMPLE => 16,
        _ => body.len().checked_sub(ID_BYTES)? + 8,
    };
    Some(u64::from_ne_bytes(body.get(at..at + 8)?.try_into().ok()?))
}

fn take_record(
    ring: &mut Sampler,
    deep: bool,
    time: u64,
    chain: &mut Vec<u64>,
    sink: &mut dyn FnMut(u64, Event<'_>),
) {
    // include/uapi/linux/perf_event.h: PERF_RECORD_MISC_COMM_EXEC
    const EXEC: u16 = 1 << 13;
    let Some(record) = ring.next_record() else { return };
    let misc = record.misc();
    let mut sink = |event: Event<'_>| sink(time, event);
    if record.ty() == SAMPLE {
        let bytes = record.to_contiguous();
        match parse_sample(&bytes, deep, chain) {
            Some(sample) => sink(Event::Sample(sample)),
            None => sink(Event::Lost(1)),
        }
        return;
    }
    // A record that doesn't parse counts as one lost record. Reading goes on.
    let Ok(parsed) = record.parse_record() else {
        sink(Event::Lost(1));
        return;
    };
    match parsed {
        Record::Mmap2(map) => sink(Event::Mapped {
            pid: map.pid as i32,
            mapping: Mapping {
                start: map.addr,
                end: map.addr.saturating_add(map.len),
                // Only executable mappings are reported (attr.mmap_data is off).
                perms: Perms { read: true, execute: true, ..Perms::default() },
                offset: map.pgoff,
                dev: (map.maj().unwrap_or(0), map.min().unwrap_or(0)),
                inode: map.ino().unwrap_or(0),
                path: trim_nul(&map.filename).to_vec(),
            },
        }),
        Record::Comm(comm) if misc & EXEC != 0 => {
            sink(Event::Exec { pid: comm.pid as i32, comm: trim_nul(&comm.comm) })
        }
        Record::Comm(comm) => {
            sink(Event::Renamed { pid: comm.pid as i32, tid: comm.tid as i32, comm: trim_nul(&comm.comm) })
        }
        Record::Fork(fork) => {
            sink(Event::Forked { pid: fork.pid as i32, tid: fork.tid as i32, parent: fork.ppid as i32 })
        }
        Record::Exit(exit) => sink(Event::Exited { pid: exit.pid as i32, tid: exit.tid as i32 }),
        Record::Lost(lost) => sink(Event::Lost(lost.lost)),
        Record::LostSamples(lost) => sink(Event::Lost(lost.lost)),
        _ => {}
    }
}
fn trim_nul(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len())]
}

/// Parses the body of a sample as `sample_stacks` requests it: IP, TID, TIME, CPU, CALLCHAIN, REGS_USER,
/// STACK_USER, in the kernel's order (perf_event_open(2)). A thread without user memory has neither registers
/// nor stack.
pub(crate) fn parse_sample<'a>(
    bytes: &'a [u8],
    deep: bool,
    chain: &'a mut Vec<u64>,
) -> Option<RawSample<'a>> {
    let mut rest = bytes;
    let mut word = || {
        let (word, tail) = rest.split_first_chunk::<8>()?;
        rest = tail;
        Some(u64::from_ne_bytes(*word))
    };
    let pair = |word: u64| {
        let [a, b, c, d, e, f, g, h] = word.to_ne_bytes();
        (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h]))
    };
    let _ip = word()?;
    let (pid, tid) = pair(word()?);
    let time_ns = word()?;
    let (cpu, _) = pair(word()?);
    let entries = word()?;
    chain.clear();
    for _ in 0..entries {
        chain.push(word()?);
    }
    // include/uapi/linux/perf_event.h: PERF_SAMPLE_REGS_ABI_32
    const ABI_32: u64 = 1;
    let abi = word()?;
    let registers = match abi {
        0 => None,
        _ => {
            let mut registers = [0; REGISTERS];
            for register in &mut registers {
                *register = word()?;
            }
            Some(registers)
        }
    };
    let asked = usize::try_from(word()?).ok()?;
    let stack = if asked == 0 {
        &[][..]
    } else {
        let dumped = rest.get(..asked)?;
        let used = rest.get(asked..asked + 8)?.try_into().ok()?;
        dumped.get(..usize::try_from(u64::from_ne_bytes(used)).ok()?)?
    };
    Some(RawSample {
        time_ns,
        pid: pid as i32,
        tid: tid as i32,
        cpu,
        kernel: kernel_part(chain),
        registers,
        stack: if abi == ABI_32 { &[] } else { stack },
        narrow: abi == ABI_32,
        deep,
    })
}

/// Removes the PERF_CONTEXT_* markers (values from -4095 up) that separate kernel entries from user entries.
fn kernel_part(chain: &[u64]) -> &[u64] {
    const MAX: u64 = -4095i64 as u64;
    const KERNEL: u64 = -128i64 as u64;
    match chain.split_first() {
        Some((&KERNEL, rest)) => &rest[..rest.iter().position(|a| *a >= MAX).unwrap_or(rest.len())],
        _ => &[],
    }
}

/// Why perf_event_open or the mapping of its ring failed, and how to fix it. perf_event_open(2), ERRORS.
pub fn absence(error: &io::Error) -> Absence {
    let because = |reason, what: &str| Absence::new(reason, format!("perf_event_open: {what} ({error})"));
    match error.raw_os_error() {
        Some(libc::EACCES) => because(Reason::NotPermitted, "this user is not permitted")
            .mend(run_as_root())
            .mend(advice::SETCAP)
            .mend(advice::KERNEL_STACKS),
        Some(libc::EPERM) => because(
            Reason::NotPermitted,
            "missing capabilities, seccomp or the locked-memory limit forbid it",
        )
        .mend(advice::IN_A_CONTAINER),
        Some(libc::ENOSYS) => {
            because(Reason::NotSupported, "the kernel has no perf events, or seccomp blocks them")
                .mend("allow perf_event_open in the container's seccomp profile")
        }
        Some(libc::ENOENT | libc::EOPNOTSUPP) => {
            because(Reason::NotSupported, "this machine has no such event")
        }
        Some(libc::ESRCH) => because(Reason::Vanished, "the target is gone"),
        Some(libc::EMFILE | libc::ENFILE) => {
            because(Reason::TooCostly, "too many open files").mend(advice::OPEN_FILES)
        }
        _ => because(Reason::NotSupported, "failed"),
    }
}

/// Clock samples of the calling thread, by CPU mode only.
pub struct SelfSampler(Sampler);

impl SelfSampler {
    /// Opens the clock, stopped.
    pub fn open(period_ns: u64) -> Measured<SelfSampler> {
        /// Room for thousands of samples of 16 bytes.
        const RING: usize = 64 << 10;
        Builder::new(Software::CPU_CLOCK)
            .observe_self()
            .any_cpu()
            .sample_period(period_ns)
            .sample(SampleFlag::IP)
            .include_kernel()
            .exclude_hv(true)
            .wakeup_watermark(usize::MAX >> 33)
            .enabled(false)
            .build()
            .and_then(|counter| counter.sampled(RING))
            .map(SelfSampler)
            .map_err(|e| absence(&e))
    }

    /// The samples in user mode and in kernel mode during `run`.
    pub fn during(&mut self, run: impl FnOnce()) -> Measured<(u64, u64)> {
        self.0.as_counter_mut().enable().map_err(|e| absence(&e))?;
        run();
        self.0.as_counter_mut().disable().map_err(|e| absence(&e))?;
        // include/uapi/linux/perf_event.h: PERF_RECORD_SAMPLE, PERF_RECORD_MISC_CPUMODE_MASK, _USER, _KERNEL
        const SAMPLE: u32 = 9;
        const MODE: u16 = 7;
        let (mut user, mut kernel) = (0, 0);
        while let Some(record) = self.0.next_record() {
            match (record.ty(), record.misc() & MODE) {
                (SAMPLE, 2) => user += 1,
                (SAMPLE, 1) => kernel += 1,
                _ => {}
            }
        }
        Ok((user, kernel))
    }
}

/// Counts of one event over some threads, and over all that they start from now on.
pub struct EventCounter {
    counters: Vec<Counter>,
    /// Why some living threads have no counter.
    pub missed: Option<Absence>,
}

impl EventCounter {
    /// Opens and starts the counters of a tracepoint. Threads that have ended are left out.
    pub fn tracepoint(id: u64, tids: &[i32]) -> Measured<EventCounter> {
        let event = || {
            let mut builder = Builder::new(Tracepoint::with_id(id));
            builder.include_kernel();
            builder
        };
        Self::open(event, tids, absence)
    }

    /// The same for a hardware event. `kernel`: count in kernel mode too.
    pub fn hardware(encoding: &Encoding, tids: &[i32], kernel: bool) -> Measured<EventCounter> {
        Self::open(|| encoding.builder(kernel), tids, hardware::refusal)
    }

    fn open(
        event: impl Fn() -> Builder<'static>,
        tids: &[i32],
        refusal: fn(&io::Error) -> Absence,
    ) -> Measured<EventCounter> {
        let mut counters = Vec::with_capacity(tids.len());
        let mut failure = None;
        for &tid in tids {
            match event().observe_pid(tid).any_cpu().inherit(true).enabled(true).build() {
                Ok(counter) => counters.push(counter),
                Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {}
                Err(e) => failure = Some(e),
            }
        }
        let missed = failure.as_ref().map(refusal);
        match missed {
            Some(absence) if counters.is_empty() => Err(absence),
            missed => Ok(EventCounter { counters, missed }),
        }
    }

    /// The sum, and how many counters could not be read. The counters of threads that have ended can be read too.
    pub fn total(&mut self) -> (HardwareSlice, usize) {
        let mut sum = HardwareSlice::default();
        let mut unread = 0;
        for counter in &mut self.counters {
            match counter.read_count_and_time() {
                Ok(read) => {
                    sum = sum.plus(HardwareSlice {
                        count: read.count,
                        enabled_ns: read.time_enabled,
                        // The two times are not read in one step.
                        running_ns: read.time_running.min(read.time_enabled),
                    });
                }
                Err(_) => unread += 1,
            }
        }
        (sum, unread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_or_wide_windows_are_sampled_less_often() {
        let seconds = Duration::from_secs;
        let usual = Periods::for_window(RATE_HZ, 2, seconds(15));
        assert_eq!(usual, Periods::FINEST);
        assert!((1_000_000..1_002_000).contains(&usual.sample_ns()));
        assert_eq!(Periods::for_window(RATE_HZ, 64, seconds(15)), Periods::FINEST);
        for (cpus, window) in [(2, 3600), (64, 60), (192, 15), (192, 3600), (4096, 15)] {
            let period = Periods::for_window(RATE_HZ, cpus, seconds(window)).sample_ns();
            let most = cpus as u64 * window * 1_000_000_000 / period;
            assert!((SAMPLE_BUDGET / 2..=SAMPLE_BUDGET).contains(&most), "{cpus} {window}: {most}");
        }
        let short = Periods::for_window(RATE_HZ, 2048, Duration::from_millis(500));
        assert!(2048 * 1_000_000_000 / short.sample_ns() <= SAMPLES_A_SECOND);
        let slower = Periods::for_window(499, 2, seconds(15));
        assert!((2_000_000..2_010_000).contains(&slower.sample_ns()));
        // The reader of recordings accepts no period above one second.
        assert!(Periods::for_window(RATE_HZ, 8192, seconds(3600)).sample_ns() <= 1_000_000_000);
    }

    #[test]
    fn the_sampling_rate_of_a_virtual_machine_depends_on_the_window() {
        let rate = |virtual_machine, seconds| rate_by_default(virtual_machine, Duration::from_secs(seconds));
        assert_eq!([2, 10, 15, 60].map(|s| rate(true, s)), [499, 499, 333, 199]);
        assert_eq!([2, 60].map(|s| rate(false, s)), [RATE_HZ, RATE_HZ]);
    }

    #[test]
    fn only_the_kernel_part_of_a_chain_is_kept() {
        let kernel = -128i64 as u64;
        let user = -512i64 as u64;
        assert_eq!(kernel_part(&[kernel, 1, 2, user, 3]), [1, 2]);
        assert_eq!(kernel_part(&[kernel, 1, 2]), [1, 2]);
        assert!(kernel_part(&[user, 3]).is_empty());
        assert!(kernel_part(&[]).is_empty());
    }

    #[test]
    fn samples_of_threads_with_and_without_memory() {
        let body = |abi: u64, stack: &[u8], used: u64| {
            let registers = abi > 0;
            let kernel = -128i64 as u64;
            let mut words = vec![0x1000, u64::from(7u32) | u64::from(8u32) << 32, 99, 1, 2, kernel, 0xffff];
            words.push(abi);
            words.extend((0..REGISTERS as u64).filter(|_| registers));
            words.push(stack.len() as u64);
            let mut bytes: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
            bytes.extend(stack);
            if !stack.is_empty() {
                bytes.extend(used.to_ne_bytes());
            }
            bytes
        };
        let mut chain = Vec::new();
        let whole = body(2, &[5; 16], 8);
        let sample = parse_sample(&whole, false, &mut chain).unwrap();
        assert_eq!((sample.pid, sample.tid, sample.time_ns, sample.cpu), (7, 8, 99, 1));
        assert_eq!((sample.kernel, sample.stack), (&[0xffff][..], &[5; 8][..]));
        assert_eq!((sample.registers.unwrap()[1], sample.narrow), (1, false));
        let narrow = body(1, &[5; 16], 8);
        let mut chain = Vec::new();
        let sample = parse_sample(&narrow, false, &mut chain).unwrap();
        assert!(sample.narrow && sample.stack.is_empty() && sample.registers.is_some());
        let kernel_thread = body(0, &[], 0);
        let mut chain = Vec::new();
        let sample = parse_sample(&kernel_thread, false, &mut chain).unwrap();
        assert!(sample.registers.is_none() && sample.stack.is_empty());
        // More bytes used than copied, or truncated anywhere: not a sample.
        assert!(parse_sample(&body(2, &[5; 16], 17), false, &mut Vec::new()).is_none());
        for length in 0..whole.len() {
            assert!(parse_sample(&whole[..length], false, &mut Vec::new()).is_none(), "{length}");
        }
    }

    #[test]
    fn records_of_all_rings_come_in_order_of_time() {
        // The fork at 10 is in the parent's ring. What the child did at 11 is in the child's ring, which is
        // first in the list.
        let mut rings = vec![vec![11, 14, 30], vec![], vec![10, 12, 29, 31]];
        rings.iter_mut().for_each(|ring| ring.reverse());
        let mut seen = Vec::new();
        in_time_order(
            &mut rings,
            29,
            |ring| ring.last().copied(),
            |ring, time| {
                assert_eq!(ring.pop(), Some(time));
                seen.push(time);
            },
        );
        assert_eq!(seen, [10, 11, 12, 14, 29]);
        // Records later than the horizon are still there.
        assert_eq!(rings, [vec![30], vec![], vec![31]]);
    }

    #[test]
    fn every_record_has_a_time() {
        let words = |words: &[u64]| words.iter().flat_map(|w| w.to_ne_bytes()).collect::<Vec<_>>();
        assert_eq!(record_time(SAMPLE, &words(&[1, 2, 77, 4])), Some(77));
        const FORK: u32 = 7;
        assert_eq!(record_time(FORK, &words(&[1, 2, 3, 4, 88, 5])), Some(88));
        assert_eq!(record_time(FORK, &words(&[4, 88])), None);
        assert_eq!(record_time(SAMPLE, &words(&[4, 88])), None);
    }

    #[test]
    fn rings_share_a_total() {
        let sizes = |cpus: usize, seconds: f64| {
            let periods = Periods::for_window(RATE_HZ, cpus, Duration::from_secs_f64(seconds));
            ring_sizes(cpus, periods)
        };
        assert_eq!(sizes(2, 15.0)[0], (2 << 20, 2 << 20));
        // Short windows are not sampled more often than the rings can take.
        for seconds in [0.5, 2.0, 15.0, 3600.0] {
            for cpus in [16, 24, 64, 96, 128, 192, 384, 768, 1024, 2048] {
                let (shallow, deep) = sizes(cpus, seconds)[0];
                assert!(shallow.is_power_of_two() && deep.is_power_of_two());
                let all = cpus * (shallow + deep);
                let most = if cpus <= 128 { RINGS_TOTAL } else { RINGS_TOTAL * 3 / 2 };
                assert!(all <= most, "{cpus} CPUs, {seconds} s: {all}");
            }
        }
        assert_eq!(sizes(64, 15.0).last(), Some(&(128 << 10, 128 << 10)));
    }

    /// What `open_all` opened and redirected: rings and events are both (thread, CPU, deep).
    type Fake = (i32, u32, bool);
    type Faked = (Opened<Fake, Fake>, Vec<(Fake, Fake)>);

    fn open_fakes(
        tids: &[i32],
        cpus: &[u32],
        affordable: usize,
        refuse: impl Fn(i32, u32, bool) -> Option<i32>,
    ) -> Result<Faked, Opening> {
        let mut redirected = Vec::new();
        let opened = open_all(
            tids,
            cpus,
            affordable,
            |tid, cpu, deep| match refuse(tid, cpu, deep) {
                Some(code) => Err(io::Error::from_raw_os_error(code)),
                None => Ok((tid, cpu, deep)),
            },
            |event, _| Ok(event),
            |event, ring| {
                redirected.push((*event, *ring));
                Ok(())
            },
        )?;
        Ok((opened, redirected))
    }

    #[test]
    fn an_event_writes_into_the_ring_of_its_own_cpu_whichever_cpu_is_gone() {
        let cpus = [0, 1, 4, 5];
        for gone in [None, Some((0, false)), Some((1, true)), Some((4, false)), Some((5, true))] {
            let refuse = |_, cpu, deep| (Some((cpu, deep)) == gone).then_some(libc::ENODEV);
            let (opened, redirected) = open_fakes(&[7, 8, 9], &cpus, 99, refuse).unwrap();
            let there = cpus.len() - usize::from(gone.is_some());
            assert_eq!(opened.rings.len(), there, "{gone:?}");
            assert_eq!(redirected.len(), there * 2 * 2, "{gone:?}");
            for (event, ring) in redirected {
                assert_eq!((event.1, event.2), (ring.1, ring.2), "{gone:?}");
                assert_eq!(ring.0, 7);
            }
        }
    }

    #[test]
    fn a_cpu_that_goes_offline_between_two_threads_has_no_events_of_the_second() {
        let refuse = |tid, cpu, _| (tid > 7 && cpu == 1).then_some(libc::ENODEV);
        let (opened, redirected) = open_fakes(&[7, 8], &[0, 1, 2], 99, refuse).unwrap();
        assert_eq!((opened.rings.len(), redirected.len()), (3, 4));
        assert!(redirected.iter().all(|(event, ring)| event.1 == ring.1));
        let all_gone = open_fakes(&[7], &[0, 1], 99, |_, _, _| Some(libc::ENODEV));
        assert!(matches!(all_gone, Err(Opening::Event(e)) if e.raw_os_error() == Some(libc::ENODEV)));
    }

    #[test]
    fn a_first_thread_that_ended_leaves_the_rings_to_another() {
        // It ends after its first CPU.
        let refuse = |tid, cpu, _| (tid == 7 && cpu > 0).then_some(libc::ESRCH);
        let (opened, redirected) = open_fakes(&[7, 8, 9], &[0, 1], 99, refuse).unwrap();
        assert_eq!(opened.rings, [((8, 0, false), (8, 0, true)), ((8, 1, false), (8, 1, true))]);
        assert!(redirected.iter().all(|(event, _)| event.0 == 9));
        let none = open_fakes(&[7, 8], &[0], 99, |_, _, _| Some(libc::ESRCH));
        assert!(matches!(none, Err(Opening::Event(e)) if e.raw_os_error() == Some(libc::ESRCH)));
    }

    #[test]
    fn threads_beyond_the_descriptors_are_counted() {
        let (opened, _) = open_fakes(&[1, 2, 3, 4], &[0], 2, |_, _, _| None).unwrap();
        assert_eq!((opened.left_out, opened.redirected.len()), (2, 2));
        let full = |tid, _, deep| (tid == 3 && deep).then_some(libc::EMFILE);
        let (opened, _) = open_fakes(&[1, 2, 3, 4], &[0], 99, full).unwrap();
        assert_eq!(opened.left_out, 2);
        let first = open_fakes(&[1, 2], &[0], 99, |_, _, _| Some(libc::EMFILE));
        assert!(matches!(first, Err(Opening::Event(_))));
    }

    #[test]
    fn errors_name_their_blocker() {
        let reason = |errno| absence(&io::Error::from_raw_os_error(errno)).reason;
        assert_eq!(reason(libc::EACCES), Reason::NotPermitted);
        assert_eq!(reason(libc::ENOENT), Reason::NotSupported);
        assert_eq!(reason(libc::ESRCH), Reason::Vanished);
    }
}
