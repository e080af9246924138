//! Turns raw samples into interned frames and stacks.
//!
//! During the window a sample is only copied: registers and the copied stack bytes go into an arena.
//! Unwinding and naming wait until the window has closed, or until the arena is full, so that they take no
//! CPU time from the target during the measurement.

use super::reading::{Dump, Readers};
use super::symbols::{self, KernelNames};
use super::target::{AddressSpace, Modules};
use super::unwind::{self, Unwound};
use allocwall_host::clock;
use allocwall_host::perf::{self, Event, REGISTERS, RawSample, Registers};
use allocwall_host::proc::{ProcFs, ProcessStat};
use allocwall_model::recording::*;
use allocwall_model::units::{Absence, Measured, Reason};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::fs::File;

/// The most bytes of stacks that are kept before an early unwind.
const ARENA_LIMIT: usize = 56 << 20;
/// A fifth above the budget for which the sampling period is chosen: a limit for clocks that tick too often.
const SAMPLE_LIMIT: usize = perf::SAMPLE_BUDGET as usize * 6 / 5;
/// The most memory for distinct stacks and frames. Above it a sample keeps only its leaf.
const STACKS_LIMIT: usize = 32 << 20;
const FRAMES_LIMIT: usize = 32 << 20;
/// The number of stacks that are unwound and named together.
const NAMED_AT_ONCE: usize = 4096;
/// Bytes of registers and stacks in one request to the reader.
const UNWOUND_AT_ONCE: usize = 1 << 20;
/// The most processes of one target that run at the same time, and the most processes whose facts are kept.
const PROCESS_LIMIT: usize = 4096;
/// How many ended members, and images without a process, are kept before they are removed.
const ENDED_KEPT: usize = 1024;
/// How late a member's samples can arrive after its end is noticed: rings are read far more often.
const LATE_NS: u64 = 1_000_000_000;
/// How many processes are inspected a second time per batch, about half a millisecond each, and at the end of
/// the window.
const FACTS_AT_ONCE: usize = 8;
const FACTS_AT_END: usize = 32;

/// One process image: which file is mapped at which address. Children share their parent's image until one of
/// them maps code or execs.
struct Image {
    space: AddressSpace,
    /// Unique among all images; increased with each change of `space`.
    version: u64,
    /// The file in which its JIT compiler writes names. It is kept open, because the file is removed when its
    /// process ends.
    perf_map: Option<File>,
    /// 32-bit code.
    narrow: bool,
    /// The number of members that run it.
    users: usize,
}

impl Image {
    fn new(space: AddressSpace) -> Image {
        Image { space, version: 0, perf_map: None, narrow: false, users: 0 }
    }
}

/// A process of the target.
#[derive(Clone, Copy)]
struct Member {
    image: u32,
    /// CLOCK_MONOTONIC. Older fork records for this pid are ignored.
    since_ns: u64,
}

struct Pending {
    /// The sample or wait of the stack.
    owner: Owner,
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

/// Names of generated code by image and address; None if there is no name.
type Generated = HashMap<(u32, u64), Option<String>>;

/// The location of an address of the target.
enum Place {
    /// In a module, with the module's own address.
    File(u32, u64),
    Generated(u32),
}

#[derive(Clone, Copy)]
enum Owner {
    Sample(u32),
    Wait(u32),
}

pub struct Collector {
    proc: ProcFs,
    start_ns: u64,
    pub modules: Modules,
    kernel_names: KernelNames,
    kernel_module: u32,
    unknown_module: u32,

    members: HashMap<i32, Member>,
    /// Members whose end was noticed, with the time. They are not read at every tick. Their late samples
    /// still count.
    ended: HashMap<i32, u64>,
    /// When the kernel reported the last end of a thread of the target (CLOCK_MONOTONIC).
    pub last_exit_ns: Option<u64>,
    /// Processes outside the target, with their parents. If the parent joins the target later, its children
    /// join too.
    strangers: HashMap<i32, i32>,
    /// Processes of the target above the limit: neither measured nor neighbours.
    left_out: HashSet<i32>,
    images: Vec<Image>,
    versions: u64,
    /// The number of images without a process, and the images among them that were emptied.
    unused: usize,
    free: Vec<u32>,
    /// In order of appearance, with those that ended.
    pub processes: Vec<Process>,
    /// The index of each process in the list.
    listed: HashMap<i32, usize>,
    processes_left_out: u64,
    /// Processes that are measured, but above the limit of listed processes.
    unlisted: HashSet<i32>,
    /// Processes to inspect again: directly after exec, the libraries that show what it is may not be mapped
    /// yet.
    young: VecDeque<i32>,
    checked: Vec<i32>,

    frames: Interner<Frame>,
    stacks: Interner<Stack>,
    kernel_frames: HashMap<u64, u32>,
    kernel_chains: HashMap<Vec<u64>, u32>,
    named_frames: HashMap<(u32, u64), u32>,
    samples: Vec<CpuSample>,
    waits: Vec<WaitSample>,
    shipped: Shipped,

    pending: Vec<Pending>,
    arena: Vec<u8>,

    pub lost: u64,
    /// Samples that were not kept, and samples kept without their callers, because of limits.
    pub samples_left_out: u64,
    pub without_callers: u64,
    /// Samples whose stacks could not be read.
    pub unread: u64,
    /// Processes that ran 32-bit code, and its samples: it is not unwound.
    pub narrow: HashSet<i32>,
    pub narrow_samples: u64,
    /// Why the code of a process is known only in part.
    pub code_cut: Option<Absence>,
    neighbours: BTreeMap<i32, u64>,
    comms: HashMap<i32, String>,
}

/// How much of each list is already in batches.
#[derive(Default)]
struct Shipped {
    frames: usize,
    stacks: usize,
    samples: usize,
    waits: usize,
}

impl Collector {
    pub fn new(proc: ProcFs, start_ns: u64, readers: Readers) -> Collector {
        let mut modules = Modules::new(proc.root(), readers);
        let kernel_module = modules.add_special("[kernel]", ModuleRole::Kernel) as u32;
        let unknown_module = modules.add_special("[unknown]", ModuleRole::Jit) as u32;
        Collector {
            proc,
            start_ns,
            modules,
            kernel_names: KernelNames::new(),
            kernel_module,
            unknown_module,
            members: HashMap::new(),
            ended: HashMap::new(),
            last_exit_ns: None,
            strangers: HashMap::new(),
            left_out: HashSet::new(),
            images: Vec::new(),
            versions: 0,
            unused: 0,
            free: Vec::new(),
            processes: Vec::new(),
            listed: HashMap::new(),
            processes_left_out: 0,
            unlisted: HashSet::new(),
            young: VecDeque::new(),
            checked: Vec::new(),
            frames: Interner::default(),
            stacks: Interner::default(),
            kernel_frames: HashMap::new(),
            kernel_chains: HashMap::new(),
            named_frames: HashMap::new(),
            samples: Vec::new(),
            waits: Vec::new(),
            shipped: Shipped::default(),
            pending: Vec::new(),
            arena: Vec::new(),
            lost: 0,
            samples_left_out: 0,
            without_callers: 0,
            unread: 0,
            narrow: HashSet::new(),
            narrow_samples: 0,
            code_cut: None,
            neighbours: BTreeMap::new(),
            comms: HashMap::new(),
        }
    }

    pub fn set_start(&mut self, start_ns: u64) {
        self.start_ns = start_ns;
    }

    /// Makes a process part of the target and inspects it.
    pub fn adopt(&mut self, pid: i32) {
        if self.members.contains_key(&pid) {
            return;
        }
        if self.full() {
            self.leave_out(pid);
            return;
        }
        self.enter_inspected(pid);
        self.strangers.remove(&pid);
        self.left_out.remove(&pid);
        // Children that it started before belong to the target too, and are not neighbours.
        let children: Vec<i32> =
            self.strangers.iter().filter(|&(_, parent)| *parent == pid).map(|(&child, _)| child).collect();
        for child in children {
            self.neighbours.remove(&child);
            if self.proc.exists(child) {
                self.adopt(child);
            }
        }
    }

    /// Processes of the target that are not recorded, or not listed; None if all are.
    pub fn missing(&self) -> Option<String> {
        let mut missing = Vec::new();
        if self.processes_left_out > 0 {
            missing.push(format!(
                "{} processes were not measured: more than {PROCESS_LIMIT} ran at the same time",
                self.processes_left_out
            ));
        }
        if !self.unlisted.is_empty() {
            missing.push(format!(
                "{} processes beyond the first {PROCESS_LIMIT} were measured but are not listed",
                self.unlisted.len()
            ));
        }
        (!missing.is_empty()).then(|| missing.join("; "))
    }

    /// What the reader of untrusted files could not read; None if it read everything.
    pub fn unread(&mut self) -> Option<String> {
        let mut missing = self.modules.reader().missing();
        if self.unread > 0 {
            missing.push(format!("the callers of {} samples could not be read", self.unread));
        }
        (!missing.is_empty()).then(|| missing.join("; "))
    }

    /// From now on the report waits for the reader.
    pub fn window_closed(&mut self) {
        let samples = self.samples.len() + self.waits.len();
        self.modules.reader().window_closed(samples);
    }

    fn full(&self) -> bool {
        self.members.len() - self.ended.len() >= PROCESS_LIMIT
    }

    fn leave_out(&mut self, pid: i32) {
        self.strangers.remove(&pid);
        if self.left_out.insert(pid) {
            self.processes_left_out += 1;
        }
    }

    /// Adds the process with the image that /proc shows now.
    fn enter_inspected(&mut self, pid: i32) {
        let since_ns = clock::monotonic_ns();
        let (process, space) = match self.modules.inspect(pid) {
            Ok(view) => {
                if view.cut.is_some() {
                    self.code_cut = view.cut;
                }
                (view.process, view.space)
            }
            // It ended before it could be inspected: only perf's mapping records are known.
            Err(error) => {
                let mut process = unseen(pid, &error.to_string());
                process.comm = self.comms.get(&pid).cloned().unwrap_or_default();
                process.ppid = self.listed(pid).map_or(0, |p| p.ppid);
                (process, AddressSpace::new(pid))
            }
        };
        self.list(process);
        let image = self.add_image(space);
        self.enter(pid, image, since_ns);
        self.young.push_back(pid);
    }

    fn enter(&mut self, pid: i32, image: u32, since_ns: u64) {
        self.forget(pid);
        self.images[image as usize].users += 1;
        if self.images[image as usize].narrow {
            self.narrow.insert(pid);
        }
        self.members.insert(pid, Member { image, since_ns });
    }

    /// Removes a member: it has ended, or its pid belongs to another process now.
    fn forget(&mut self, pid: i32) {
        self.ended.remove(&pid);
        if let Some(member) = self.members.remove(&pid) {
            let image = &mut self.images[member.image as usize];
            image.users -= 1;
            self.unused += usize::from(image.users == 0);
        }
    }

    fn add_image(&mut self, space: AddressSpace) -> u32 {
        let mut image = Image::new(space);
        image.version = self.next_version();
        image.narrow = image.space.code().any(|code| self.modules.is_narrow(code.module));
        if let Some(slot) = self.free.pop() {
            self.images[slot as usize] = image;
            return slot;
        }
        self.images.push(image);
        (self.images.len() - 1) as u32
    }

    fn next_version(&mut self) -> u64 {
        self.versions += 1;
        self.versions
    }

    /// An image that only this member uses: later mappings must not appear in other processes of the same
    /// fork.
    fn own_image(&mut self, pid: i32) -> Option<u32> {
        let member = *self.members.get(&pid)?;
        let image = &self.images[member.image as usize];
        if image.users == 1 {
            return Some(member.image);
        }
        let space = image.space.forked(pid);
        let copy = self.add_image(space);
        self.images[member.image as usize].users -= 1;
        self.images[copy as usize].users = 1;
        self.members.insert(pid, Member { image: copy, ..member });
        Some(copy)
    }

    fn listed(&mut self, pid: i32) -> Option<&mut Process> {
        Some(&mut self.processes[*self.listed.get(&pid)?])
    }

    fn list(&mut self, process: Process) {
        if let Some(known) = self.listed(process.pid) {
            *known = process;
        } else if self.processes.len() < PROCESS_LIMIT {
            self.listed.insert(process.pid, self.processes.len());
            self.processes.push(process);
        } else {
            self.unlisted.insert(process.pid);
        }
    }

    /// Inspects recently started processes again, and keeps the better facts.
    pub fn check_facts(&mut self, at_end: bool) {
        let mut due: Vec<i32> = Vec::new();
        if at_end {
            due.extend(self.young.drain(..).chain(self.checked.drain(..)));
            due.truncate(FACTS_AT_END);
        } else {
            let count = self.young.len().min(FACTS_AT_ONCE);
            due.extend(self.young.drain(..count));
            let room = FACTS_AT_END.saturating_sub(self.checked.len());
            self.checked.extend(due.iter().take(room));
        }
        for pid in due {
            if self.ended.contains_key(&pid) || !self.members.contains_key(&pid) {
                continue;
            }
            if let Ok(view) = self.modules.inspect(pid)
                && let Some(known) = self.listed(pid)
            {
                keep_better(known, view.process);
            }
        }
    }

    /// The members that can still run. A zombie has ended.
    pub fn alive(&mut self) -> Vec<i32> {
        let now = clock::monotonic_ns();
        let mut alive = Vec::new();
        for &pid in self.members.keys() {
            if self.ended.contains_key(&pid) {
                continue;
            }
            if may_run(&self.proc.process_stat(pid)) {
                alive.push(pid);
            } else {
                self.ended.insert(pid, now);
            }
        }
        alive
    }

    /// Removes members that ended a while ago and images without a process, so that a target that constantly
    /// starts processes neither fills the memory nor reaches its limit.
    fn let_go(&mut self, now_ns: u64) {
        if self.ended.len().max(self.unused) < ENDED_KEPT {
            return;
        }
        let ended: Vec<i32> = self
            .ended
            .iter()
            .filter(|&(_, at)| now_ns.saturating_sub(*at) > LATE_NS)
            .map(|(&pid, _)| pid)
            .collect();
        ended.iter().for_each(|&pid| self.forget(pid));
        // Stacks that wait for unwinding refer to images.
        self.open_perf_maps();
        self.unwind_pending();
        let free: HashSet<u32> = self.free.iter().copied().collect();
        for (index, image) in self.images.iter_mut().enumerate() {
            if image.users == 0 && !free.contains(&(index as u32)) {
                *image = Image::new(AddressSpace::new(0));
                self.free.push(index as u32);
            }
        }
        self.unused = 0;
    }

    /// Whether at least one kernel function had a name; also true if there was none yet.
    pub fn kernel_named(&self) -> bool {
        let mut kernel = self.kernel_frames.values().map(|id| &self.frames.list[*id as usize]);
        self.kernel_frames.is_empty() || kernel.any(|frame| frame.symbol.is_some())
    }

    /// Takes records in order of time (CLOCK_MONOTONIC).
    pub fn take(&mut self, time_ns: u64, event: Event<'_>) {
        match event {
            Event::Sample(sample) => self.take_sample(&sample),
            Event::Mapped { pid, mapping } => {
                if let Some(image) = self.own_image(pid) {
                    let version = self.next_version();
                    let image = &mut self.images[image as usize];
                    if let Some(code) = image.space.add_mapping(&mut self.modules, &mapping) {
                        image.version = version;
                        if self.modules.is_narrow(code.module) {
                            image.narrow = true;
                            self.narrow.insert(pid);
                        }
                    }
                }
            }
            Event::Exec { pid, comm } => {
                self.comms.insert(pid, String::from_utf8_lossy(comm).into_owned());
                if self.members.contains_key(&pid) {
                    self.enter_inspected(pid);
                }
            }
            Event::Renamed { pid, tid, comm } => {
                if pid == tid {
                    self.comms.insert(pid, String::from_utf8_lossy(comm).into_owned());
                }
            }
            Event::Forked { pid, parent, .. } if pid != parent => self.take_fork(time_ns, pid, parent),
            Event::Exited { pid, tid } => {
                if self.members.contains_key(&pid) {
                    self.last_exit_ns = Some(time_ns);
                }
                if pid == tid {
                    self.take_exit(pid);
                }
            }
            Event::Lost(count) => self.lost += count,
            Event::Forked { .. } => {}
        }
    }

    /// On a machine that constantly starts processes, data of processes outside the target would fill the
    /// memory. Members stay until /proc shows their end: a leader may end before its threads.
    fn take_exit(&mut self, pid: i32) {
        self.strangers.remove(&pid);
        self.left_out.remove(&pid);
        if !self.members.contains_key(&pid) && !self.neighbours.contains_key(&pid) {
            self.comms.remove(&pid);
        }
    }

    fn take_fork(&mut self, time_ns: u64, pid: i32, parent: i32) {
        if self.members.get(&pid).is_some_and(|member| time_ns <= member.since_ns) {
            return;
        }
        // The pid belongs to a new process now.
        self.forget(pid);
        self.strangers.remove(&pid);
        self.left_out.remove(&pid);
        let Some(&Member { image, .. }) = self.members.get(&parent) else {
            match self.left_out.contains(&parent) {
                true => self.leave_out(pid),
                false => _ = self.strangers.insert(pid, parent),
            }
            return;
        };
        if self.full() {
            self.leave_out(pid);
            return;
        }
        // The child has the same image until exec.
        self.enter(pid, image, time_ns);
        if let Some(mut process) = self.listed(parent).cloned() {
            (process.pid, process.ppid) = (pid, parent);
            self.list(process);
        }
    }

    /// Whether a process without a fork record belongs to the target, judged by its ancestors.
    fn belongs(&mut self, pid: i32) -> bool {
        if self.members.contains_key(&pid) {
            return true;
        }
        if self.strangers.contains_key(&pid) || self.left_out.contains(&pid) {
            return false;
        }
        let mut parent = None;
        let mut ancestor = pid;
        for _ in 0..64 {
            let stat = match self.proc.process_stat(ancestor) {
                Ok(stat) => stat,
                Err(absence) if absence.is_gone() => break,
                // Unknown now; tried again at its next sample.
                Err(_) => return false,
            };
            ancestor = stat.ppid;
            parent.get_or_insert(ancestor);
            if self.members.contains_key(&ancestor) {
                self.adopt(pid);
                return self.members.contains_key(&pid);
            }
            if self.left_out.contains(&ancestor) {
                self.leave_out(pid);
                return false;
            }
            if ancestor <= 1 {
                break;
            }
        }
        self.strangers.insert(pid, parent.unwrap_or(0));
        false
    }

    fn take_sample(&mut self, raw: &RawSample<'_>) {
        if !self.belongs(raw.pid) {
            if !self.left_out.contains(&raw.pid) {
                *self.neighbours.entry(raw.pid).or_default() += 1;
            }
            return;
        }
        let Some(&Member { image, .. }) = self.members.get(&raw.pid) else {
            return;
        };
        let Some(t_ns) = raw.time_ns.checked_sub(self.start_ns) else {
            return;
        };
        if self.samples.len() >= SAMPLE_LIMIT {
            self.samples_left_out += 1;
            return;
        }
        let kernel = (!raw.kernel.is_empty()).then(|| self.kernel_stack(raw.kernel));
        let user = raw.registers.map(|registers| {
            let (ip, _) = unwind::ip_sp(&registers);
            self.leaf_stack(image, ip)
        });
        let index = self.samples.len() as u32;
        self.samples.push(CpuSample {
            t_ns,
            pid: raw.pid,
            tid: raw.tid,
            cpu: raw.cpu as u16,
            kernel,
            user,
            deep: raw.deep,
        });
        if raw.narrow {
            self.narrow.insert(raw.pid);
            self.narrow_samples += 1;
        }
        if let Some(registers) = raw.registers {
            self.defer(Owner::Sample(index), image, &registers, raw.stack);
        }
    }

    /// A sample of a waiting thread. `registers` and `stack` are present if they could be read.
    pub fn take_wait(&mut self, wait: WaitSample, kernel: &[String], user: Option<(Registers, &[u8])>) {
        let Some(&Member { image, .. }) = self.members.get(&wait.pid) else {
            return;
        };
        let kernel = (!kernel.is_empty()).then(|| {
            let frames = kernel
                .iter()
                .map(|name| {
                    self.frames.id(Frame {
                        module: Some(self.kernel_module),
                        symbol: Some(name.clone()),
                        offset: 0,
                    })
                })
                .collect();
            self.stacks.id(Stack { frames, complete: true })
        });
        // Its numbers of system calls, and its stack layout, are those of 32-bit code.
        let narrow = self.images[image as usize].narrow;
        let user = user.map(|(registers, stack)| (registers, if narrow { &[] } else { stack }));
        let wait = WaitSample { syscall: wait.syscall.filter(|_| !narrow), ..wait };
        let index = self.waits.len() as u32;
        let leaf = user.as_ref().map(|(registers, _)| {
            let (ip, _) = unwind::ip_sp(registers);
            self.leaf_stack(image, ip)
        });
        self.waits.push(WaitSample { kernel, user: leaf, ..wait });
        if let Some((registers, stack)) = user {
            self.defer(Owner::Wait(index), image, &registers, stack);
        }
    }

    fn defer(&mut self, owner: Owner, image: u32, registers: &Registers, stack: &[u8]) {
        if self.arena.len() + stack.len() > ARENA_LIMIT {
            // Stacks that are unwound now must also be named now.
            self.open_perf_maps();
            self.unwind_pending();
        }
        let arena = self.arena.len();
        registers.iter().for_each(|r| self.arena.extend_from_slice(&r.to_ne_bytes()));
        self.arena.extend_from_slice(stack);
        self.pending.push(Pending { owner, image, arena, stack_bytes: stack.len() as u32 });
    }

    fn kernel_stack(&mut self, chain: &[u64]) -> u32 {
        if let Some(&known) = self.kernel_chains.get(chain) {
            return known;
        }
        let frames = chain
            .iter()
            .take(STACK_DEPTH)
            .enumerate()
            .map(|(depth, &address)| {
                // All addresses but the leaf are return addresses: step back into the call.
                let address = if depth == 0 { address } else { address.saturating_sub(1) };
                self.kernel_frame(address)
            })
            .collect();
        let stack = self.stacks.id(Stack { frames, complete: true });
        self.kernel_chains.insert(chain.to_vec(), stack);
        stack
    }

    fn kernel_frame(&mut self, address: u64) -> u32 {
        if let Some(&known) = self.kernel_frames.get(&address) {
            return known;
        }
        let symbol = self.kernel_names.name(address);
        // Kernel addresses reveal the kernel's layout, so they are not kept where a name is known.
        let frame = Frame { module: Some(self.kernel_module), symbol, offset: 0 };
        let id = self.frames.id(frame);
        self.kernel_frames.insert(address, id);
        id
    }

    fn leaf_stack(&mut self, image: u32, ip: u64) -> u32 {
        let frame = match self.images[image as usize].space.lookup(ip) {
            Some((module, offset)) => Frame { module: Some(module as u32), symbol: None, offset },
            None => Frame { module: Some(self.unknown_module), symbol: None, offset: 0 },
        };
        let frame = self.frames.id(frame);
        self.stacks.id(Stack { frames: vec![frame], complete: false })
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
            if self.stacks.bytes > STACKS_LIMIT {
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
                let frames = unwound
                    .addresses
                    .iter()
                    .map(|&address| self.user_frame(item.image, address, &generated))
                    .collect();
                let stack = Some(self.stacks.id(Stack {
                    frames,
                    // The callers are unknown if no stack was read.
                    complete: !unwound.truncated && item.stack_bytes > 0,
                }));
                match item.owner {
                    Owner::Sample(index) => self.samples[index as usize].user = stack,
                    Owner::Wait(index) => self.waits[index as usize].user = stack,
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
            let image = &self.images[item.image as usize];
            self.modules.tell_image(item.image, image.version, &image.space)?;
        }
        let dumps = part.iter().map(|item| Dump { image: item.image, stack_bytes: item.stack_bytes });
        self.modules.reader().unwind(dumps.collect(), raw)
    }

    /// Reads the names that a segment's stacks need. Names of functions in files are kept; those of generated
    /// code are temporary.
    fn name(&mut self, segment: &[Pending], unwound: &[Option<Unwound>], names: &mut Generated) {
        let mut functions: BTreeMap<u32, BTreeSet<u64>> = BTreeMap::new();
        let mut generated: BTreeMap<u32, BTreeSet<u64>> = BTreeMap::new();
        for (item, unwound) in segment.iter().zip(unwound) {
            for &address in unwound.iter().flat_map(|unwound| &unwound.addresses) {
                match self.place(item.image, address) {
                    Place::File(module, offset) if !self.named_frames.contains_key(&(module, offset)) => {
                        functions.entry(module).or_default().insert(offset);
                    }
                    Place::File(..) => {}
                    Place::Generated(_) if names.contains_key(&(item.image, address)) => {}
                    Place::Generated(_) => _ = generated.entry(item.image).or_default().insert(address),
                }
            }
        }
        for (module, offsets) in functions {
            let offsets: Vec<u64> = offsets.into_iter().collect();
            for offsets in offsets.chunks(NAMED_AT_ONCE) {
                let names = self.modules.names(module as usize, offsets);
                for (&offset, name) in offsets.iter().zip(names) {
                    self.keep_name(module, offset, name);
                }
            }
        }
        for (image, addresses) in generated {
            let Some(map) = &self.images[image as usize].perf_map else {
                continue;
            };
            let addresses: Vec<u64> = addresses.into_iter().collect();
            for addresses in addresses.chunks(NAMED_AT_ONCE) {
                let found = self.modules.reader().generated(map, addresses).unwrap_or_default();
                let named = addresses.iter().zip(found);
                names.extend(named.map(|(&address, name)| ((image, address), name)));
            }
        }
    }

    fn place(&self, image: u32, address: u64) -> Place {
        match self.images[image as usize].space.lookup(address) {
            Some((module, _)) if self.modules.list()[module].role == ModuleRole::Jit => {
                Place::Generated(module as u32)
            }
            Some((module, offset)) => Place::File(module as u32, offset),
            None => Place::Generated(self.unknown_module),
        }
    }

    fn user_frame(&mut self, image: u32, address: u64, generated: &Generated) -> u32 {
        match self.place(image, address) {
            Place::File(module, offset) => match self.named_frames.get(&(module, offset)) {
                Some(&known) => known,
                None => self.keep_name(module, offset, None),
            },
            // The JIT compiler may have written names. Code without a name shares one frame.
            Place::Generated(module) => self.frames.id(Frame {
                module: Some(module),
                symbol: generated.get(&(image, address)).cloned().flatten(),
                offset: 0,
            }),
        }
    }

    fn keep_name(&mut self, module: u32, offset: u64, symbol: Option<String>) -> u32 {
        if self.frames.bytes > FRAMES_LIMIT {
            return self.frames.id(Frame { module: Some(module), symbol: None, offset: 0 });
        }
        // One frame per function: the instruction within it gives no more information. Without a name, the
        // address decides whether it is in malloc's range.
        let ranges = &self.modules.list()[module as usize].malloc_ranges;
        let inside = ranges.iter().find(|(s, e)| (*s..*e).contains(&offset));
        let kept = match (&symbol, inside) {
            (Some(_), Some(range)) => range.0,
            (Some(_), None) => 0,
            (None, _) => offset,
        };
        let id = self.frames.id(Frame { module: Some(module), symbol, offset: kept });
        self.named_frames.insert((module, offset), id);
        id
    }

    /// Opens the files with names of generated code, again if they were open before: the JIT compiler may
    /// have started a new file.
    fn open_perf_maps(&mut self) {
        for (pid, member) in &self.members {
            let image = &mut self.images[member.image as usize];
            // The file of the image's own process takes precedence over that of a child that shares the
            // image.
            if image.perf_map.is_some() && image.space.pid != *pid {
                continue;
            }
            // A process that has ended keeps the file that was opened before.
            let Ok(status) = self.proc.status(*pid) else {
                continue;
            };
            let inner = status.ns_pids.last().copied().unwrap_or(*pid);
            if let Some(map) = symbols::perf_map(self.proc.root(), *pid, inner, status.uid[1]) {
                image.perf_map = Some(map);
            }
        }
    }

    /// The data since the last batch.
    pub fn batch(&mut self) -> super::file::Batch {
        self.let_go(clock::monotonic_ns());
        let batch = super::file::Batch {
            frames: self.frames.list[self.shipped.frames..].to_vec(),
            stacks: self.stacks.list[self.shipped.stacks..].to_vec(),
            samples: self.samples[self.shipped.samples..].to_vec(),
            waits: self.waits[self.shipped.waits..].to_vec(),
            ..Default::default()
        };
        self.shipped = Shipped {
            frames: self.frames.list.len(),
            stacks: self.stacks.list.len(),
            samples: self.samples.len(),
            waits: self.waits.len(),
        };
        batch
    }

    /// Unwinds and names everything. After it, the losses because of limits are known.
    pub fn unwind_all(&mut self) {
        self.open_perf_maps();
        self.unwind_pending();
    }

    /// The data to keep, after `unwind_all`.
    pub fn finish(self, sample_period_ns: u64) -> Collected {
        let neighbours = self.neighbours.iter().map(|(&pid, &samples)| Neighbour {
            pid,
            comm: self.comms.get(&pid).cloned().or_else(|| self.proc.comm(pid).ok()).unwrap_or_default(),
            cpu_ns: samples * sample_period_ns,
        });
        let mut neighbours: Vec<Neighbour> = neighbours.collect();
        neighbours.sort_by(|a, b| b.cpu_ns.cmp(&a.cpu_ns).then(a.pid.cmp(&b.pid)));
        neighbours.truncate(32);

        // Keeps only what the samples refer to; the leaf-only stacks of the batches are no longer needed.
        let mut keep = Compactor::new(&self.stacks.list, &self.frames.list);
        let sample_stacks = self.samples.iter().map(|s| (keep.stack(s.kernel), keep.stack(s.user))).collect();
        let wait_stacks = self.waits.iter().map(|w| (keep.stack(w.kernel), keep.stack(w.user))).collect();
        let (frames, stacks) = (keep.new_frames, keep.new_stacks);
        Collected {
            frames,
            stacks,
            sample_stacks,
            wait_stacks,
            modules: self.modules.into_list(),
            processes: self.processes,
            neighbours,
            lost: self.lost,
        }
    }
}

pub struct Collected {
    pub frames: Vec<Frame>,
    pub stacks: Vec<Stack>,
    pub sample_stacks: Vec<super::file::StackPair>,
    pub wait_stacks: Vec<super::file::StackPair>,
    pub modules: Vec<Module>,
    pub processes: Vec<Process>,
    pub neighbours: Vec<Neighbour>,
    pub lost: u64,
}

/// Whether a process can still run, judged by /proc. A failed read is not an end: without descriptors nothing
/// can be read, but the target still exists.
fn may_run(stat: &Measured<ProcessStat>) -> bool {
    match stat {
        // A leader may end before its threads: then it is a zombie with living threads.
        Ok(stat) => !stat.ended() || stat.threads > 1,
        Err(absence) => !matches!(absence.reason, Reason::Vanished | Reason::NotFound),
    }
}

/// Merges a later inspection of the same program, when more of it is mapped. Facts that it lacks are kept.
fn keep_better(known: &mut Process, later: Process) {
    fn take<T>(known: &mut Measured<T>, later: Measured<T>) {
        if later.is_ok() || known.is_err() {
            *known = later;
        }
    }
    if !(matches!(later.runtime, Ok(Runtime::Native)) && known.runtime.is_ok()) {
        take(&mut known.runtime, later.runtime);
    }
    take(&mut known.exe, later.exe);
    take(&mut known.libc, later.libc);
    take(&mut known.allocator, later.allocator);
    take(&mut known.thp_disabled, later.thp_disabled);
    take(&mut known.secure_exec, later.secure_exec);
    if known.cmdline.is_empty() {
        known.cmdline = later.cmdline;
    }
    if known.environment.is_empty() {
        known.environment = later.environment;
    }
}

fn unseen(pid: i32, why: &str) -> Process {
    let absence = Absence::new(Reason::Vanished, why);
    Process {
        pid,
        ppid: 0,
        comm: String::new(),
        exe: Err(absence.clone()),
        cmdline: Vec::new(),
        libc: Err(absence.clone()),
        runtime: Err(absence.clone()),
        allocator: Err(absence.clone()),
        environment: Vec::new(),
        thp_disabled: Err(absence.clone()),
        secure_exec: Err(absence),
    }
}

struct Interner<T> {
    list: Vec<T>,
    ids: HashMap<T, u32>,
    /// Size of the values in the list, with what they point to.
    bytes: usize,
}

trait Weighed {
    fn bytes(&self) -> usize;
}

impl Weighed for Frame {
    fn bytes(&self) -> usize {
        size_of::<Frame>() + self.symbol.as_ref().map_or(0, String::len)
    }
}

impl Weighed for Stack {
    fn bytes(&self) -> usize {
        size_of::<Stack>() + size_of_val(&self.frames[..])
    }
}

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Interner { list: Vec::new(), ids: HashMap::new(), bytes: 0 }
    }
}

impl<T: Clone + Eq + std::hash::Hash + Weighed> Interner<T> {
    fn id(&mut self, value: T) -> u32 {
        if let Some(&id) = self.ids.get(&value) {
            return id;
        }
        let id = self.list.len() as u32;
        self.bytes += value.bytes();
        self.list.push(value.clone());
        self.ids.insert(value, id);
        id
    }
}

struct Compactor<'a> {
    stacks: &'a [Stack],
    frames: &'a [Frame],
    stack_ids: HashMap<u32, u32>,
    frame_ids: HashMap<u32, u32>,
    new_stacks: Vec<Stack>,
    new_frames: Vec<Frame>,
}

impl<'a> Compactor<'a> {
    fn new(stacks: &'a [Stack], frames: &'a [Frame]) -> Self {
        Compactor {
            stacks,
            frames,
            stack_ids: HashMap::new(),
            frame_ids: HashMap::new(),
            new_stacks: Vec::new(),
            new_frames: Vec::new(),
        }
    }

    fn stack(&mut self, id: Option<u32>) -> Option<u32> {
        let id = id?;
        if let Some(&known) = self.stack_ids.get(&id) {
            return Some(known);
        }
        let stack = &self.stacks[id as usize];
        let frames = stack.frames.iter().map(|&frame| self.frame(frame)).collect();
        let new = self.new_stacks.len() as u32;
        self.new_stacks.push(Stack { frames, complete: stack.complete });
        self.stack_ids.insert(id, new);
        Some(new)
    }

    fn frame(&mut self, id: u32) -> u32 {
        *self.frame_ids.entry(id).or_insert_with(|| {
            self.new_frames.push(self.frames[id as usize].clone());
            (self.new_frames.len() - 1) as u32
        })
    }
}

#[cfg(test)]
mod tests {
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
        collector.adopt(ROOT);
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
        let image = collector.members[&pid].image;
        collector.images[image as usize].space.lookup(address).is_some()
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
        assert_eq!(c.neighbours.keys().collect::<Vec<_>>(), [&(ROOT + 9)]);
    }

    #[test]
    fn an_older_fork_record_changes_nothing_and_a_younger_one_is_another_process() {
        let (mut c, _proc) = collector(&[]);
        let child = ROOT + 1;
        c.adopt(child);
        let inspected = c.members[&child].image;
        fork(&mut c, 1, child, ROOT);
        fork(&mut c, 1, child, 7);
        assert_eq!(c.members[&child].image, inspected);
        fork(&mut c, LATER, child, ROOT);
        assert_eq!(c.members[&child].image, c.members[&ROOT].image);
        let stranger = ROOT + 2;
        fork(&mut c, 1, stranger, ROOT);
        fork(&mut c, 2, stranger, 7);
        assert!(!c.members.contains_key(&stranger));
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
        c.adopt(child);
        sample(&mut c, grandchild);
        assert!(c.members.contains_key(&grandchild) && !c.members.contains_key(&gone));
        assert_eq!(c.samples.len(), 1);
        assert_eq!(c.neighbours.keys().collect::<Vec<_>>(), [&(ROOT + 4)]);
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
            assert_eq!(c.last_exit_ns, None);
            c.take(3, Event::Exited { pid, tid });
        }
        assert_eq!(c.last_exit_ns, Some(3), "only the member's exit counts");
        assert!(c.strangers.is_empty() && !c.comms.contains_key(&quiet));
        assert!(c.comms.contains_key(&busy) && c.members.contains_key(&member));
    }

    #[test]
    fn the_limit_counts_running_processes_and_the_rest_are_not_neighbours() {
        let (mut c, _proc) = collector(&[]);
        let limit = PROCESS_LIMIT as i32;
        for n in 1..limit {
            fork(&mut c, 1, ROOT + n, ROOT);
        }
        assert!(c.missing().is_none());
        let (one, its_child) = (ROOT + limit, ROOT + limit + 1);
        fork(&mut c, 1, one, ROOT);
        fork(&mut c, 2, its_child, one);
        for _ in 0..3 {
            sample(&mut c, one);
            sample(&mut c, its_child);
        }
        assert!(c.neighbours.is_empty() && c.samples.is_empty());
        assert!(c.missing().unwrap().starts_with("2 processes were not measured"));
        // /proc has none of them any more, so there is room again.
        assert!(c.alive().is_empty());
        fork(&mut c, 3, one, ROOT);
        sample(&mut c, one);
        assert_eq!(c.samples.len(), 1);
    }

    #[test]
    fn members_that_ended_long_ago_are_removed() {
        let (mut c, _proc) = collector(&[]);
        for n in 1..=ENDED_KEPT as i32 {
            c.adopt(ROOT + n);
        }
        let images = c.images.len();
        assert!(c.alive().is_empty());
        let now = clock::monotonic_ns();
        c.let_go(now);
        assert_eq!(c.members.len(), ENDED_KEPT + 1, "late samples still count");
        c.let_go(now + 2 * LATE_NS);
        assert!(c.members.is_empty() && c.ended.is_empty());
        c.adopt(ROOT + 5000);
        assert_eq!(c.images.len(), images, "emptied images must be reused");
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
    fn names_of_generated_code_are_read_before_an_early_unwind_and_again_later() {
        let mut c = Collector::new(ProcFs::live(), 0, Readers::Here);
        let own = std::process::id() as i32;
        c.adopt(own);
        let file = std::path::PathBuf::from(format!("/tmp/perf-{own}.map"));
        let name = |c: &mut Collector| {
            let image = &c.images[c.members[&own].image as usize];
            let map = image.perf_map.as_ref()?;
            c.modules.reader().generated(map, &[0x10]).unwrap().remove(0)
        };
        let full = |c: &mut Collector| {
            c.arena.resize(ARENA_LIMIT, 0);
            c.defer(Owner::Sample(0), 0, &[0; REGISTERS], &[0; 8]);
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
