//! Turns raw samples into interned frames and stacks.
//!
//! During the window a sample is only copied: registers and the copied stack bytes go into an arena.
//! Unwinding and naming wait until the window has closed, or until the arena is full, so that they take no
//! CPU time from the target during the measurement.

mod family;
mod fault_thread;
mod faults;
mod places;
pub(crate) mod stacks;

use crate::reading::{Dump, Readers};
use crate::unwind::{self, Unwound};
use allocwall_host::clock;
use allocwall_host::perf::{self, Event, REGISTERS, RawSample, Registers};
use allocwall_host::proc::ProcFs;
use allocwall_model::recording::*;
use allocwall_model::units::{Absence, Measured, Reason, plural};
use family::Family;
use fault_thread::FaultThread;
use stacks::{Compactor, Location, StackTable};
use std::collections::{BTreeMap, BTreeSet, HashMap};

pub use fault_thread::Tally;
pub use faults::{Fault, Faults, Source};
pub use places::Soon;

/// The most bytes of stacks that are kept before an early unwind.
const ARENA_LIMIT: usize = 56 << 20;
/// A fifth above the budget for which the sampling period is chosen: a limit for clocks that tick too often.
const SAMPLE_LIMIT: usize = perf::SAMPLE_BUDGET as usize * 6 / 5;
/// The most memory for distinct stacks and frames. Above it a sample keeps only its leaf.
const STACKS_LIMIT: usize = 32 << 20;
/// The number of stacks that are unwound and named together.
const NAMED_AT_ONCE: usize = 4096;
/// If at most one sample in so many may be of calloc without being known, that changes no result: no remedy is offered for
/// less than 0.5 % of CPU.
const FEW_CALLS: u64 = 200;
/// With so many samples in page faults, their owners are too often unknown if that is more than one in so many.
const FAULTS_LEAST: u64 = 50;
const FEW_UNKNOWN: u64 = 10;
/// Bytes of registers and stacks in one request to the reader.
const UNWOUND_AT_ONCE: usize = 1 << 20;

struct Pending {
    /// The sample or wait of the stack.
    holder: Holder,
    image: u32,
    arena: usize,
    stack_bytes: u32,
}

impl Pending {
    /// The first byte in the arena after it.
    fn end(&self) -> usize {
        self.arena + REGISTERS * 8 + self.stack_bytes as usize
    }
}

#[derive(Clone, Copy)]
enum Holder {
    Sample(u32),
    Wait(u32),
}

/// Names of generated code by image and address; None if there is no name.
type Generated = HashMap<(u32, u64), Option<String>>;

pub struct Collector {
    start_ns: u64,
    pub family: Family,
    table: StackTable,
    faults: FaultThread,
    /// Samples in page faults, and those of them whose owners are known.
    faulted: u64,
    owned: u64,
    samples: Vec<CpuSample>,
    waits: Vec<WaitSample>,
    shipped: Shipped,

    pending: Vec<Pending>,
    arena: Vec<u8>,
    /// Samples of user code in files, by module and its own address: the frame, and their number.
    interrupted: BTreeMap<u32, BTreeMap<u64, (u32, u32)>>,

    pub lost: u64,
    /// Samples that were not kept, and samples kept without their callers, because of limits.
    pub samples_left_out: u64,
    pub without_callers: u64,
    /// Samples whose stacks could not be read.
    pub unread: u64,
    /// Samples that may be of calloc: the code of their callers could not be read. The first reason, and their number.
    unread_calls: Option<(Absence, u64)>,
    /// Samples of 32-bit code.
    pub narrow_samples: u64,
}

/// How much of each list is already in the recording.
#[derive(Default)]
struct Shipped {
    modules: usize,
    frames: usize,
    stacks: usize,
    samples: usize,
    waits: usize,
}

impl Collector {
    pub fn new(proc: ProcFs, start_ns: u64, readers: Readers) -> Collector {
        let mut family = Family::new(proc, readers);
        let table = StackTable::new(&mut family.modules);
        Collector {
            start_ns,
            family,
            table,
            faults: FaultThread::default(),
            faulted: 0,
            owned: 0,
            samples: Vec::new(),
            waits: Vec::new(),
            shipped: Shipped::default(),
            pending: Vec::new(),
            arena: Vec::new(),
            interrupted: BTreeMap::new(),
            lost: 0,
            samples_left_out: 0,
            without_callers: 0,
            unread: 0,
            unread_calls: None,
            narrow_samples: 0,
        }
    }

    /// Whether at least one kernel function had a name; also true if there was none yet.
    pub fn kernel_named(&self) -> bool {
        self.table.kernel_named()
    }

    pub fn set_start(&mut self, start_ns: u64) {
        self.start_ns = start_ns;
    }

    /// What the reader of untrusted files could not read; None if it read everything.
    pub fn unread(&mut self) -> Option<Absence> {
        let mut missing = self.family.modules.reader().missing();
        if self.unread > 0 {
            missing.push(format!("the callers of {} samples could not be read", self.unread));
        }
        let mut reason = Reason::TooCostly;
        if let Some(why) = self.family.modules.unnamed() {
            if missing.is_empty() {
                reason = why.reason;
            }
            missing.push(format!("functions of a stripped Go program have no names: {}", why.detail));
        }
        let all = (self.samples.len() + self.waits.len()) as u64;
        if let Some((why, samples)) = &self.unread_calls
            && samples * FEW_CALLS > all
        {
            if missing.is_empty() {
                reason = why.reason;
            }
            let samples = format!("{samples} {}", plural(*samples, "sample"));
            missing.push(format!("whether calloc filled the memory of {samples} is unknown: {}", why.detail));
        }
        (!missing.is_empty()).then(|| Absence::new(reason, missing.join("; ")))
    }

    /// From now on the report waits for the reader.
    pub fn window_closed(&mut self) {
        let samples = self.samples.len() + self.waits.len();
        self.family.modules.reader().window_closed(samples);
    }

    /// Takes records in order of time (CLOCK_MONOTONIC).
    pub fn take(&mut self, time_ns: u64, event: Event<'_>) {
        match event {
            Event::Sample(sample) => self.take_sample(&sample),
            Event::Mapped { pid, mapping } => self.family.take_mapping(pid, &mapping),
            Event::Exec { pid, comm } => self.family.take_exec(pid, comm),
            Event::Renamed { pid, tid, comm } if pid == tid => self.family.take_name(pid, comm),
            Event::Forked { pid, parent, .. } if pid != parent => self.family.take_fork(time_ns, pid, parent),
            Event::Exited { pid, tid } => {
                if self.family.members.contains_key(&pid) {
                    self.family.last_exit_ns = Some(time_ns);
                }
                if pid == tid {
                    self.family.take_exit(pid);
                }
            }
            Event::Lost(count) => self.lost += count,
            Event::Forked { .. } | Event::Renamed { .. } => {}
        }
    }

    fn take_sample(&mut self, raw: &RawSample<'_>) {
        if !self.family.belongs(raw.pid) {
            self.family.count_neighbour(raw.pid);
            return;
        }
        let Some(image) = self.family.image_of(raw.pid) else {
            return;
        };
        let Some(t_ns) = raw.time_ns.checked_sub(self.start_ns) else {
            return;
        };
        if self.samples.len() >= SAMPLE_LIMIT {
            self.samples_left_out += 1;
            return;
        }
        let kernel = (!raw.kernel.is_empty()).then(|| self.table.kernel_stack(raw.kernel));
        let user = raw.registers.map(|registers| {
            let (ip, _) = unwind::ip_sp(&registers);
            self.table.leaf_stack(self.family.image(image), ip)
        });
        let index = self.samples.len() as u32;
        let fault = kernel.and_then(|stack| self.table.fault(stack));
        if let (Some(source), Some(registers), false) = (fault, raw.registers, raw.narrow) {
            let origin = self.family.origin_of(raw.pid);
            self.faults.add(Fault { sample: index, pid: raw.pid, origin, registers, source, soon: None });
        }
        self.faulted += u64::from(fault.is_some());
        self.samples.push(CpuSample {
            faulted: fault.map(|_| Owner::Unknown),
            t_ns,
            pid: raw.pid,
            tid: raw.tid,
            cpu: raw.cpu as u16,
            kernel,
            user,
            deep: raw.deep,
        });
        if raw.narrow {
            self.family.narrow.insert(raw.pid);
            self.narrow_samples += 1;
        }
        if let Some(registers) = raw.registers {
            self.defer(Holder::Sample(index), image, &registers, raw.stack);
        }
    }

    /// Finds out whose memory the latest faults were about.
    pub fn look_up_faults(&mut self, proc: &ProcFs) {
        if !proc.is_live() {
            return;
        }
        let (family, samples, owned) = (&self.family, &mut self.samples, &mut self.owned);
        self.faults.look_up(
            proc,
            |pid| family.runtime(pid),
            |sample, owner| {
                samples[sample as usize].faulted = Some(owner);
                *owned += u64::from(owner.is_known());
            },
        );
    }

    /// Whether the memory of too many sampled page faults had been given back, or could not be found.
    pub fn owners_unknown(&self) -> bool {
        let unknown = self.faulted.saturating_sub(self.owned);
        self.faulted >= FAULTS_LEAST && unknown * FEW_UNKNOWN > self.faulted
    }

    /// Why too many page faults were not looked up to know their owners.
    pub fn owners_missing(&self) -> Option<Absence> {
        self.faults.missing()
    }

    /// A sample of a waiting thread. `registers` and `stack` are present if they could be read.
    pub fn take_wait(&mut self, wait: WaitSample, kernel: &[String], user: Option<(Registers, &[u8])>) {
        let Some(image) = self.family.image_of(wait.pid) else {
            return;
        };
        let kernel = (!kernel.is_empty()).then(|| self.table.named_kernel_stack(kernel));
        // Its numbers of system calls, and its stack layout, are those of 32-bit code.
        let narrow = self.family.image(image).narrow;
        let user = user.map(|(registers, stack)| (registers, if narrow { &[] } else { stack }));
        let wait = WaitSample { syscall: wait.syscall.filter(|_| !narrow), ..wait };
        let index = self.waits.len() as u32;
        let leaf = user.as_ref().map(|(registers, _)| {
            let (ip, _) = unwind::ip_sp(registers);
            self.table.leaf_stack(self.family.image(image), ip)
        });
        self.waits.push(WaitSample { kernel, user: leaf, ..wait });
        if let Some((registers, stack)) = user {
            self.defer(Holder::Wait(index), image, &registers, stack);
        }
    }

    fn defer(&mut self, holder: Holder, image: u32, registers: &Registers, stack: &[u8]) {
        if self.arena.len() + stack.len() > ARENA_LIMIT {
            // Stacks that are unwound now must also be named now.
            self.family.open_perf_maps();
            self.unwind_pending();
        }
        let arena = self.arena.len();
        registers.iter().for_each(|r| self.arena.extend_from_slice(&r.to_ne_bytes()));
        self.arena.extend_from_slice(stack);
        self.pending.push(Pending { holder, image, arena, stack_bytes: stack.len() as u32 });
    }

    fn unwind_pending(&mut self) {
        /// How many names of generated code are kept between segments: the file is then read only for the
        /// others.
        const GENERATED_KEPT: usize = 64 << 10;
        let mut generated = Generated::new();
        let pending = std::mem::take(&mut self.pending);
        let mut arena = std::mem::take(&mut self.arena);
        let mut rest = &pending[..];
        while !rest.is_empty() {
            // One segment at a time: small enough for memory, large enough to search a file's symbols once
            // for many.
            let (segment, behind) = rest.split_at(rest.len().min(NAMED_AT_ONCE));
            rest = behind;
            if self.table.stacks.bytes > STACKS_LIMIT {
                self.without_callers += segment.len() as u64;
                continue;
            }
            let unwound = self.unwind(segment, &arena);
            if generated.len() > GENERATED_KEPT {
                generated.clear();
            }
            self.name(segment, &unwound, &mut generated);
            for (item, unwound) in segment.iter().zip(&unwound) {
                // Only the leaf remains if the stack could not be read.
                let Some(unwound) = unwound else {
                    self.unread += 1;
                    continue;
                };
                let call = self.call_of_filler(item.image, &unwound.addresses);
                if let (Some((module, returns_to)), Some((_, samples))) = (call, &mut self.unread_calls) {
                    *samples += u64::from(!self.table.is_call_known(module, returns_to));
                }
                let modules = &self.family.modules;
                let mut frames: Vec<u32> = unwound
                    .addresses
                    .iter()
                    .map(|&address| {
                        let location = self.table.location(self.family.image(item.image), modules, address);
                        let name = generated.get(&(item.image, address)).and_then(Option::as_ref);
                        self.table.user_frame(location, name, modules)
                    })
                    .collect();
                if let (Holder::Sample(index), [address, ..]) = (item.holder, &unwound.addresses[..])
                    && self.samples[index as usize].kernel.is_none()
                    && let Location::File(module, address) =
                        self.table.location(self.family.image(item.image), modules, *address)
                {
                    let of_module = self.interrupted.entry(module).or_default();
                    of_module.entry(address).or_insert((frames[0], 0)).1 += 1;
                }
                // calloc jumps to memset and leaves no frame; its frame is put back.
                let left_out = call.and_then(|(module, returns_to)| self.table.zeroing(module, returns_to));
                if let Some(frame) = left_out {
                    frames.insert(1, frame);
                }
                let stack = Some(self.table.stacks.id(Stack {
                    frames,
                    // The callers are unknown if no stack was read.
                    complete: !unwound.truncated && item.stack_bytes > 0,
                }));
                match item.holder {
                    Holder::Sample(index) => self.samples[index as usize].user = stack,
                    Holder::Wait(index) => self.waits[index as usize].user = stack,
                }
            }
        }
        arena.clear();
        self.arena = arena;
    }

    /// The return addresses of each stack; None if it could not be read.
    fn unwind(&mut self, segment: &[Pending], arena: &[u8]) -> Vec<Option<Unwound>> {
        let mut out = Vec::with_capacity(segment.len());
        let mut rest = segment;
        while let Some(first) = rest.first() {
            let near = |item: &Pending| item.end() - first.arena <= UNWOUND_AT_ONCE;
            let (part, behind) = rest.split_at(rest.partition_point(near).max(1));
            rest = behind;
            let end = part.last().map_or(first.arena, Pending::end);
            let raw = &arena[first.arena..end];
            // The child may have crashed on an unwind table; the next child uses frame pointers only.
            let unwound = self.ask_to_unwind(part, raw).or_else(|_| self.ask_to_unwind(part, raw));
            match unwound {
                Ok(unwound) => out.extend(unwound.into_iter().map(Some)),
                Err(_) => out.extend(part.iter().map(|_| None)),
            }
        }
        out
    }

    fn ask_to_unwind(&mut self, part: &[Pending], raw: &[u8]) -> Measured<Vec<Unwound>> {
        for item in part {
            let image = &self.family.images.list[item.image as usize];
            self.family.modules.tell_image(item.image, image.version, &image.space)?;
        }
        let dumps = part.iter().map(|item| Dump { image: item.image, stack_bytes: item.stack_bytes });
        self.family.modules.reader().unwind(dumps.collect(), raw)
    }

    /// Reads the names that a segment's stacks need. Names of functions in files are kept; those of generated
    /// code are temporary.
    fn name(&mut self, segment: &[Pending], unwound: &[Option<Unwound>], names: &mut Generated) {
        let mut functions: BTreeMap<u32, BTreeSet<u64>> = BTreeMap::new();
        let mut generated: BTreeMap<u32, BTreeSet<u64>> = BTreeMap::new();
        for (item, unwound) in segment.iter().zip(unwound) {
            for &address in unwound.iter().flat_map(|unwound| &unwound.addresses) {
                match self.table.location(self.family.image(item.image), &self.family.modules, address) {
                    Location::File(module, offset) if !self.table.is_named(module, offset) => {
                        functions.entry(module).or_default().insert(offset);
                    }
                    Location::File(..) => {}
                    Location::Generated(_) if names.contains_key(&(item.image, address)) => {}
                    Location::Generated(_) => _ = generated.entry(item.image).or_default().insert(address),
                }
            }
        }
        for (module, offsets) in functions {
            let offsets: Vec<u64> = offsets.into_iter().collect();
            for offsets in offsets.chunks(NAMED_AT_ONCE) {
                let names = self.family.modules.names(module as usize, offsets);
                for (&offset, name) in offsets.iter().zip(names) {
                    self.table.keep_name(&self.family.modules, module, offset, name);
                }
            }
        }
        self.find_zeroing(segment, unwound);
        for (image, addresses) in generated {
            let Some(map) = &self.family.images.list[image as usize].perf_map else {
                continue;
            };
            let addresses: Vec<u64> = addresses.into_iter().collect();
            for addresses in addresses.chunks(NAMED_AT_ONCE) {
                let found = self.family.modules.reader().generated(map, addresses).unwrap_or_default();
                let named = addresses.iter().zip(found);
                names.extend(named.map(|(&address, name)| ((image, address), name)));
            }
        }
    }

    /// Module and return address, in the module's own addresses, of the direct caller of a leaf that may fill memory.
    fn call_of_filler(&mut self, image: u32, addresses: &[u64]) -> Option<(u32, u64)> {
        let [leaf, caller, ..] = *addresses else { return None };
        let (image, modules) = (self.family.image(image), &self.family.modules);
        let leaf = self.table.location(image, modules, leaf);
        let caller = self.table.location(image, modules, caller);
        let (Location::File(..), Location::File(module, call)) = (&leaf, caller) else { return None };
        let leaf = self.table.user_frame(leaf, None, modules);
        // The unwinder moved the return address back by one.
        self.table.may_fill(modules, leaf).then_some((module, call.checked_add(1)?))
    }

    /// Reads which of the allocator's functions the callers of filling leaves called. The leaves have their names.
    fn find_zeroing(&mut self, segment: &[Pending], unwound: &[Option<Unwound>]) {
        let mut calls: BTreeMap<u32, BTreeSet<u64>> = BTreeMap::new();
        for (item, unwound) in segment.iter().zip(unwound) {
            let call = unwound.as_ref().and_then(|u| self.call_of_filler(item.image, &u.addresses));
            if let Some((module, returns_to)) = call
                && !self.table.is_call_known(module, returns_to)
            {
                calls.entry(module).or_default().insert(returns_to);
            }
        }
        for (module, calls) in calls {
            let calls: Vec<u64> = calls.into_iter().collect();
            for calls in calls.chunks(NAMED_AT_ONCE) {
                let found = self.family.modules.zeroing(module as usize, calls);
                self.keep_calls(module, calls, found);
            }
        }
    }

    /// Calls that could not be read stay unknown: they are asked for again with the next samples.
    fn keep_calls(&mut self, module: u32, calls: &[u64], found: Measured<Vec<Option<String>>>) {
        match found {
            Ok(found) => {
                for (&returns_to, name) in calls.iter().zip(found) {
                    self.table.keep_call(module, returns_to, name);
                }
            }
            Err(why) => _ = self.unread_calls.get_or_insert((why, 0)),
        }
    }

    /// After which instructions samples of user code were taken, by the frames of their functions. After `unwind_all`.
    ///
    /// # Errors
    /// No code could be read.
    pub fn find_loads(&mut self) -> Measured<Vec<LoadSamples>> {
        let mut functions: BTreeMap<u32, LoadSamples> = BTreeMap::new();
        let mut unread = None;
        for (module, of_module) in std::mem::take(&mut self.interrupted) {
            let of_module: Vec<(u64, (u32, u32))> = of_module.into_iter().collect();
            for part in of_module.chunks(NAMED_AT_ONCE) {
                let addresses: Vec<u64> = part.iter().map(|(address, _)| *address).collect();
                let found = self.family.modules.loads(module as usize, &addresses);
                let found = found.unwrap_or_else(|why| {
                    unread.get_or_insert(why);
                    vec![None; addresses.len()]
                });
                for (&(_, (frame, samples)), place) in part.iter().zip(found) {
                    let Some(place) = place else { continue };
                    let empty = LoadSamples { frame, samples: 0, after_load: 0, expected: 0.0 };
                    let function = functions.entry(frame).or_insert(empty);
                    function.samples += samples;
                    function.after_load += if place.after_load { samples } else { 0 };
                    function.expected += place.nearby * samples as f32;
                }
            }
        }
        match unread {
            Some(why) if functions.is_empty() => Err(why),
            _ => Ok(functions.into_values().collect()),
        }
    }

    /// Removes members that ended a while ago and images without a process, so that a target that constantly
    /// starts processes neither fills the memory nor reaches its limit.
    fn let_go(&mut self, now_ns: u64) {
        if !self.family.has_many_ended() {
            return;
        }
        self.family.forget_ended(now_ns);
        // Stacks that wait for unwinding refer to images.
        self.unwind_all();
        self.family.free_images();
    }

    /// The modules since the last call. Those of a batch are known when it was made.
    pub fn new_modules(&mut self) -> Vec<Module> {
        let modules = self.family.modules.list();
        let new = modules[self.shipped.modules..].to_vec();
        self.shipped.modules = modules.len();
        new
    }

    /// The data since the last batch.
    pub fn batch(&mut self) -> crate::file::Batch {
        self.let_go(clock::monotonic_ns());
        self.faults.forget();
        let batch = crate::file::Batch {
            frames: self.table.frames.list[self.shipped.frames..].to_vec(),
            stacks: self.table.stacks.list[self.shipped.stacks..].to_vec(),
            samples: self.samples[self.shipped.samples..].to_vec(),
            waits: self.waits[self.shipped.waits..].to_vec(),
            ..Default::default()
        };
        self.shipped = Shipped {
            modules: self.shipped.modules,
            frames: self.table.frames.list.len(),
            stacks: self.table.stacks.list.len(),
            samples: self.samples.len(),
            waits: self.waits.len(),
        };
        batch
    }

    /// Unwinds and names everything. After it, the losses because of limits are known.
    pub fn unwind_all(&mut self) {
        self.family.open_perf_maps();
        self.unwind_pending();
    }

    /// The data to keep, after `unwind_all`.
    pub fn finish(self, sample_period_ns: u64, loads: Measured<Vec<LoadSamples>>) -> Collected {
        let neighbours = self.family.neighbours(sample_period_ns);

        // Keeps only what the samples refer to; the leaf-only stacks of the batches are no longer needed.
        let mut keep = Compactor::new(&self.table.stacks.list, &self.table.frames.list);
        let sample_stacks = self.samples.iter().map(|s| (keep.stack(s.kernel), keep.stack(s.user))).collect();
        let wait_stacks = self.waits.iter().map(|w| (keep.stack(w.kernel), keep.stack(w.user))).collect();
        let kept = |one: &LoadSamples| Some(LoadSamples { frame: keep.kept_frame(one.frame)?, ..*one });
        let loads = loads.map(|functions| functions.iter().filter_map(kept).collect());
        let (frames, stacks) = (keep.new_frames, keep.new_stacks);
        Collected {
            frames,
            stacks,
            sample_stacks,
            wait_stacks,
            loads,
            modules: self.family.modules.into_list(),
            processes: self.family.listing.processes,
            neighbours,
            lost: self.lost,
        }
    }
}

pub struct Collected {
    pub frames: Vec<Frame>,
    pub stacks: Vec<Stack>,
    pub sample_stacks: Vec<crate::file::StackPair>,
    pub wait_stacks: Vec<crate::file::StackPair>,
    pub loads: Measured<Vec<LoadSamples>>,
    pub modules: Vec<Module>,
    pub processes: Vec<Process>,
    pub neighbours: Vec<Neighbour>,
    pub lost: u64,
}

#[cfg(test)]
mod tests {
    use super::family::{ENDED_KEPT, LATE_NS, PROCESS_LIMIT, keep_better, may_run, unseen};
    use super::*;
    use allocwall_host::maps::{Mapping, Perms};
    use allocwall_host::perf::RawSample;

    /// Process numbers that do not exist, so they cannot be inspected.
    const ROOT: i32 = 2_000_000_001;
    const LATER: u64 = u64::MAX;

    /// A collector whose /proc has only these processes, and the folder of that /proc.
    fn collector(alive: &[i32]) -> (Collector, tempfile::TempDir) {
        let proc = tempfile::tempdir().unwrap();
        for pid in alive {
            std::fs::create_dir(proc.path().join(pid.to_string())).unwrap();
        }
        let mut collector = Collector::new(ProcFs::at(proc.path()), 0, Readers::Here);
        collector.family.adopt(ROOT);
        (collector, proc)
    }

    fn fork(collector: &mut Collector, time_ns: u64, pid: i32, parent: i32) {
        let tid = pid;
        collector.take(time_ns, Event::Forked { pid, tid, parent });
    }

    fn sample(collector: &mut Collector, pid: i32) {
        let raw = RawSample {
            time_ns: 1,
            pid,
            tid: pid,
            cpu: 0,
            kernel: &[],
            registers: None,
            stack: &[],
            narrow: false,
            deep: false,
        };
        collector.take(1, Event::Sample(raw));
    }

    fn map(collector: &mut Collector, pid: i32, start: u64) {
        let mapping = Mapping {
            start,
            end: start + 0x1000,
            perms: Perms { read: true, execute: true, ..Perms::default() },
            offset: 0,
            dev: (0, 0),
            inode: 0,
            path: b"//anon".to_vec(),
        };
        collector.take(LATER, Event::Mapped { pid, mapping });
    }

    fn maps(collector: &Collector, pid: i32, address: u64) -> bool {
        let image = collector.family.members[&pid].image;
        collector.family.images.list[image as usize].space.lookup(address).is_some()
    }

    #[test]
    fn descendants_join_by_fork_and_others_are_neighbours() {
        let (mut c, _proc) = collector(&[]);
        fork(&mut c, 1, ROOT + 1, ROOT);
        fork(&mut c, 2, ROOT + 2, ROOT + 1);
        fork(&mut c, 2, ROOT + 9, 7);
        for pid in [ROOT, ROOT + 2, ROOT + 9] {
            sample(&mut c, pid);
        }
        assert_eq!(c.samples.iter().map(|s| s.pid).collect::<Vec<_>>(), [ROOT, ROOT + 2]);
        assert_eq!(c.family.neighbours.keys().collect::<Vec<_>>(), [&(ROOT + 9)]);
    }

    #[test]
    fn an_older_fork_record_changes_nothing_and_a_younger_one_is_another_process() {
        let (mut c, _proc) = collector(&[]);
        let child = ROOT + 1;
        c.family.adopt(child);
        let inspected = c.family.members[&child].image;
        fork(&mut c, 1, child, ROOT);
        fork(&mut c, 1, child, 7);
        assert_eq!(c.family.members[&child].image, inspected);
        fork(&mut c, LATER, child, ROOT);
        assert_eq!(c.family.members[&child].image, c.family.members[&ROOT].image);
        let stranger = ROOT + 2;
        fork(&mut c, 1, stranger, ROOT);
        fork(&mut c, 2, stranger, 7);
        assert!(!c.family.members.contains_key(&stranger));
    }

    #[test]
    fn a_process_that_joins_late_brings_its_children() {
        let (child, grandchild, gone) = (ROOT + 1, ROOT + 2, ROOT + 3);
        let (mut c, _proc) = collector(&[grandchild]);
        fork(&mut c, 1, grandchild, child);
        fork(&mut c, 1, gone, child);
        fork(&mut c, 1, ROOT + 4, 7);
        for pid in [grandchild, gone, ROOT + 4] {
            sample(&mut c, pid);
        }
        c.family.adopt(child);
        sample(&mut c, grandchild);
        assert!(c.family.members.contains_key(&grandchild) && !c.family.members.contains_key(&gone));
        assert_eq!(c.samples.len(), 1);
        assert_eq!(c.family.neighbours.keys().collect::<Vec<_>>(), [&(ROOT + 4)]);
    }

    #[test]
    fn processes_outside_the_target_are_removed_when_they_end() {
        let (mut c, _proc) = collector(&[]);
        let (quiet, busy, member) = (ROOT + 1, ROOT + 2, ROOT + 3);
        fork(&mut c, 1, member, ROOT);
        for pid in [quiet, busy] {
            fork(&mut c, 1, pid, 7);
        }
        sample(&mut c, busy);
        for pid in [quiet, busy, member] {
            let (tid, comm) = (pid, &b"name"[..]);
            c.take(2, Event::Renamed { pid, tid, comm });
            assert_eq!(c.family.last_exit_ns, None);
            c.take(3, Event::Exited { pid, tid });
        }
        assert_eq!(c.family.last_exit_ns, Some(3), "only the member's exit counts");
        assert!(c.family.strangers.is_empty() && !c.family.comms.contains_key(&quiet));
        assert!(c.family.comms.contains_key(&busy) && c.family.members.contains_key(&member));
    }

    #[test]
    fn the_limit_counts_running_processes_and_the_rest_are_not_neighbours() {
        let (mut c, _proc) = collector(&[]);
        let limit = PROCESS_LIMIT as i32;
        for n in 1..limit {
            fork(&mut c, 1, ROOT + n, ROOT);
        }
        assert!(c.family.missing().is_none());
        let (one, its_child) = (ROOT + limit, ROOT + limit + 1);
        fork(&mut c, 1, one, ROOT);
        fork(&mut c, 2, its_child, one);
        for _ in 0..3 {
            sample(&mut c, one);
            sample(&mut c, its_child);
        }
        assert!(c.family.neighbours.is_empty() && c.samples.is_empty());
        assert!(c.family.missing().unwrap().starts_with("2 processes"));
        // /proc has none of them any more, so there is room again.
        assert!(c.family.alive().is_empty());
        fork(&mut c, 3, one, ROOT);
        sample(&mut c, one);
        assert_eq!(c.samples.len(), 1);
    }

    #[test]
    fn members_that_ended_long_ago_are_removed() {
        let (mut c, _proc) = collector(&[]);
        for n in 1..=ENDED_KEPT as i32 {
            c.family.adopt(ROOT + n);
        }
        let images = c.family.images.list.len();
        assert!(c.family.alive().is_empty());
        let now = clock::monotonic_ns();
        c.let_go(now);
        assert_eq!(c.family.members.len(), ENDED_KEPT + 1, "late samples still count");
        c.let_go(now + 2 * LATE_NS);
        assert!(c.family.members.is_empty() && c.family.ended.is_empty());
        c.family.adopt(ROOT + 5000);
        assert_eq!(c.family.images.list.len(), images, "emptied images must be reused");
    }

    #[test]
    fn after_fork_each_maps_for_itself() {
        let (mut c, _proc) = collector(&[]);
        let child = ROOT + 1;
        map(&mut c, ROOT, 0x1000);
        fork(&mut c, 1, child, ROOT);
        map(&mut c, child, 0x5000);
        map(&mut c, ROOT, 0x7000);
        let seen = |pid| [0x1000, 0x5000, 0x7000].map(|address| maps(&c, pid, address));
        assert_eq!(seen(ROOT), [true, false, true]);
        assert_eq!(seen(child), [true, true, false]);
    }

    #[test]
    fn the_origin_of_a_fork_is_a_living_process_with_the_same_code() {
        let (mut c, _proc) = collector(&[]);
        let (child, busy, last) = (ROOT + 1, ROOT + 2, ROOT + 3);
        for (n, pid) in [child, busy, last].into_iter().enumerate() {
            fork(&mut c, 1 + n as u64, pid, ROOT);
        }
        let origins = |c: &Collector| [ROOT, child, busy, last, 7].map(|pid| c.family.origin_of(pid));
        assert_eq!(origins(&c), [ROOT, ROOT, ROOT, ROOT, 7]);
        // It maps code of its own.
        map(&mut c, busy, 0x5000);
        assert_eq!(origins(&c), [ROOT, ROOT, busy, ROOT, 7]);
        // The root executes another program.
        c.take(LATER, Event::Exec { pid: ROOT, comm: b"other" });
        assert_eq!(origins(&c), [ROOT, child, busy, last, 7]);
        // The number of a root that has ended may be used again.
        let (mut c, _proc) = collector(&[]);
        fork(&mut c, 1, child, ROOT);
        c.family.ended.insert(ROOT, 2);
        assert_eq!([ROOT, child].map(|pid| c.family.origin_of(pid)), [ROOT, child]);
    }

    #[test]
    fn names_of_generated_code_are_read_before_an_early_unwind_and_again_later() {
        let mut c = Collector::new(ProcFs::live(), 0, Readers::Here);
        let own = std::process::id() as i32;
        c.family.adopt(own);
        let file = std::path::PathBuf::from(format!("/tmp/perf-{own}.map"));
        let name = |c: &mut Collector| {
            let image = &c.family.images.list[c.family.members[&own].image as usize];
            let map = image.perf_map.as_ref()?;
            c.family.modules.reader().generated(map, &[0x10]).unwrap().remove(0)
        };
        let full = |c: &mut Collector| {
            c.arena.resize(ARENA_LIMIT, 0);
            c.defer(Holder::Sample(0), 0, &[0; REGISTERS], &[0; 8]);
            c.pending.clear();
        };
        for written in ["first", "second"] {
            std::fs::write(&file, format!("10 4 {written}\n")).unwrap();
            full(&mut c);
            assert_eq!(name(&mut c).as_deref(), Some(written));
        }
        std::fs::remove_file(&file).unwrap();
        full(&mut c);
        assert_eq!(name(&mut c).as_deref(), Some("second"), "names remain after the file is removed");
    }

    #[test]
    fn a_perf_map_is_found_after_the_end_of_the_first_thread() {
        let (mut c, proc) = collector(&[ROOT]);
        let thread = ROOT + 1;
        let write = |name: String, text: String| {
            let path = proc.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let stat = |tid: i32, state: char| {
            format!(
                "{tid} (x) {state} 1 1 1 0 -1 0 1 2 3 4 5 6 7 8 20 0 2 0 9 4096 2 3 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0\n"
            )
        };
        let user = rustix::process::geteuid().as_raw();
        let status = format!(
            "Tgid:\t{ROOT}\nPPid:\t1\nUid:\t{user}\t{user}\t{user}\t{user}\nNSpid:\t{ROOT}\t3\nThreads:\t2\nCapEff:\t0\n"
        );
        write(format!("{ROOT}/status"), status);
        write(format!("{ROOT}/task/{ROOT}/stat"), stat(ROOT, 'Z'));
        write(format!("{ROOT}/task/{thread}/stat"), stat(thread, 'S'));
        // Named by the number of the first thread in the process's own namespace.
        write(format!("{thread}/root/tmp/perf-3.map"), "10 4 f\n".to_owned());
        let image = c.family.members[&ROOT].image as usize;
        let mut found = |state| {
            write(format!("{ROOT}/stat"), stat(ROOT, state));
            c.family.open_perf_maps();
            c.family.images.list[image].perf_map.take().is_some()
        };
        assert!(found('Z'));
        // The twin: while the first thread lives, its own root counts, which has no file here.
        assert!(!found('S'));
    }

    #[test]
    fn owners_are_too_often_unknown_in_more_than_a_tenth_of_enough_faults() {
        let (mut c, _proc) = collector(&[]);
        let mut unknown = |faulted, owned| {
            (c.faulted, c.owned) = (faulted, owned);
            c.owners_unknown()
        };
        assert_eq!([unknown(50, 44), unknown(1_000, 899)], [true; 2]);
        // The near twins: a tenth, too few samples, and none.
        assert_eq!([unknown(50, 45), unknown(1_000, 900), unknown(49, 0), unknown(0, 0)], [false; 4]);
    }

    #[test]
    fn calls_that_were_not_read_are_no_answer() {
        let (mut c, _proc) = collector(&[]);
        c.keep_calls(1, &[0x10, 0x20], Ok(vec![Some("calloc".into()), None]));
        assert!(c.table.is_call_known(1, 0x10) && c.table.is_call_known(1, 0x20));
        assert_eq!(c.unread(), None);
        let why = Absence::new(Reason::NotApplicable, "code of another machine");
        c.keep_calls(1, &[0x30], Err(why));
        assert!(!c.table.is_call_known(1, 0x30));
        for _ in 0..FEW_CALLS {
            sample(&mut c, ROOT);
        }
        let count = |c: &mut Collector, samples: u64| c.unread_calls.as_mut().expect("a reason").1 = samples;
        count(&mut c, 1);
        assert_eq!(c.unread(), None);
        count(&mut c, 2);
        let unread = c.unread().expect("a reason");
        assert_eq!(unread.reason, Reason::NotApplicable);
        assert!(unread.detail.contains("of 2 samples is unknown: code of another machine"), "{unread}");
    }

    #[test]
    fn a_go_program_without_names_has_a_reason_and_no_symbols() {
        let (mut c, _proc) = collector(&[]);
        let module = c.family.modules.add_special("program", ModuleRole::Go);
        assert_eq!(c.unread(), None);
        let why = Absence::new(Reason::NotSupported, "Go's function table is read since Go 1.16");
        c.family.modules.keep_unnamed(module, why.clone());
        let unread = c.unread().expect("a reason");
        assert_eq!(unread.reason, Reason::NotSupported);
        assert!(unread.detail.ends_with(&why.detail), "{unread}");
        assert!(!c.family.modules.list()[module].has_symbols);
    }

    #[test]
    fn callers_of_a_filler_without_a_file_have_a_reason() {
        let (mut c, _proc) = collector(&[]);
        let module = c.family.modules.add_special("program", ModuleRole::Other);
        let why = c.family.modules.zeroing(module, &[0x10]).expect_err("no file");
        assert_eq!(why.reason, Reason::NotFound);
    }

    #[test]
    fn loads_in_code_without_a_file_have_a_reason() {
        let (mut c, _proc) = collector(&[]);
        assert_eq!(c.find_loads(), Ok(vec![]), "no sample");
        let module = c.family.modules.add_special("program", ModuleRole::Other) as u32;
        c.interrupted.insert(module, BTreeMap::from([(0x10, (0, 3))]));
        assert_eq!(c.find_loads().expect_err("no file").reason, Reason::NotFound);
    }

    #[test]
    fn only_a_missing_process_has_ended() {
        let refused = |reason| may_run(&Err(Absence::new(reason, "")));
        assert!(refused(Reason::NotSupported) && refused(Reason::NotPermitted));
        assert!(!refused(Reason::Vanished) && !refused(Reason::NotFound));
    }

    #[test]
    fn a_later_inspection_only_adds_facts() {
        let mut known = unseen(ROOT, "too early");
        known.runtime = Ok(Runtime::Native);
        let mut later = known.clone();
        later.libc = Ok(Libc::Static);
        later.runtime = Ok(Runtime::Jvm { version: None });
        keep_better(&mut known, later.clone());
        assert_eq!((&known.libc, &known.runtime), (&later.libc, &later.runtime));
        let mut last = unseen(ROOT, "gone");
        last.runtime = Ok(Runtime::Native);
        keep_better(&mut known, last);
        assert_eq!((known.libc, known.runtime), (later.libc, later.runtime));
    }
}
