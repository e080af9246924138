//! Raw samples -> interned frames and stacks.
//!
//! Within the window a sample is only copied: registers and the dumped bytes of stack go into an arena. Unwinding and
//! naming wait until the window has closed, or until the arena is full, so that the target isn't robbed of CPU while it
//! is being measured.

use super::recording::*;
use super::symbols::{PerfMap, Symbols};
use super::target::{AddressSpace, Code, Modules};
use super::unwind::{self, Cache, Tables, Unwinder, Unwound};
use crate::host::perf::{self, Event, REGISTERS, RawSample, Registers};
use crate::host::proc::ProcFs;
use crate::units::{Absence, Reason};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Dumps kept before they are unwound early.
const ARENA_LIMIT: usize = 56 << 20;
/// A fifth more than the budget that the sampling period is chosen by: clocks that tick too often end here.
const SAMPLE_LIMIT: usize = perf::SAMPLE_BUDGET as usize * 6 / 5;
/// What distinct stacks and frames may take, in bytes as they lie in memory. Beyond it a sample keeps its leaf alone.
const STACKS_LIMIT: usize = 32 << 20;
const FRAMES_LIMIT: usize = 32 << 20;
/// Processes of one target; a target that keeps forking is followed up to here.
const PROCESS_LIMIT: usize = 4096;

/// One process image: what is mapped where. Children share their parent's until they exec.
struct Image {
    space: AddressSpace,
    unwinder: Unwinder,
    perf_map: Option<PerfMap>,
}

struct Pending {
    /// Sample or wait that the stack belongs to.
    owner: Owner,
    image: u32,
    arena: usize,
    stack_bytes: u32,
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
    tables: HashMap<u32, Tables>,
    symbols: Symbols,
    kernel_module: u32,
    unknown_module: u32,

    members: HashMap<i32, u32>,
    /// Members that were seen to have ended: not asked again at every tick. Their late samples still count.
    ended: HashSet<i32>,
    strangers: HashSet<i32>,
    images: Vec<Image>,
    /// Members in order of appearance, those that ended included.
    pub pids: Vec<i32>,
    pub processes: Vec<Process>,
    pub processes_left_out: u64,

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
    cache: Cache,
    unwound: Unwound,

    pub lost: u64,
    /// Samples that were not kept, and samples kept without their callers: no room.
    pub left_out: u64,
    pub without_callers: u64,
    neighbours: BTreeMap<i32, u64>,
    comms: HashMap<i32, String>,
}

/// How much of each list has gone into batches.
#[derive(Default)]
struct Shipped {
    frames: usize,
    stacks: usize,
    samples: usize,
    waits: usize,
}

impl Collector {
    pub fn new(proc: ProcFs, start_ns: u64) -> Collector {
        let mut modules = Modules::new("/proc");
        let kernel_module = modules.add_special("[kernel]", ModuleRole::Kernel) as u32;
        let unknown_module = modules.add_special("[unknown]", ModuleRole::Jit) as u32;
        Collector {
            proc,
            start_ns,
            modules,
            tables: HashMap::new(),
            symbols: Symbols::new(),
            kernel_module,
            unknown_module,
            members: HashMap::new(),
            ended: HashSet::new(),
            strangers: HashSet::new(),
            images: Vec::new(),
            pids: Vec::new(),
            processes: Vec::new(),
            processes_left_out: 0,
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
            cache: Cache::default(),
            unwound: Unwound::default(),
            lost: 0,
            left_out: 0,
            without_callers: 0,
            neighbours: BTreeMap::new(),
            comms: HashMap::new(),
        }
    }

    pub fn set_start(&mut self, start_ns: u64) {
        self.start_ns = start_ns;
    }

    /// Makes a process part of the target and learns what it is.
    pub fn adopt(&mut self, pid: i32) {
        if self.members.contains_key(&pid) {
            return;
        }
        if self.members.len() >= PROCESS_LIMIT {
            self.processes_left_out += 1;
            return;
        }
        let image = self.new_image(pid);
        self.members.insert(pid, image);
        self.strangers.remove(&pid);
        self.pids.push(pid);
    }

    fn new_image(&mut self, pid: i32) -> u32 {
        let (process, space) = match self.modules.inspect(pid) {
            Ok(view) => (view.process, view.space),
            // It ended before it could be looked at: what perf tells of its mappings is all there is.
            Err(error) => (unseen(pid, &error.to_string()), AddressSpace::new(pid)),
        };
        let mut image = Image {
            space,
            unwinder: Unwinder::default(),
            perf_map: None,
        };
        for code in image.space.code() {
            add_tables(&mut self.tables, &self.modules, &mut image.unwinder, &code);
        }
        match self.processes.iter_mut().find(|p| p.pid == pid) {
            Some(known) => *known = process,
            None => self.processes.push(process),
        }
        self.images.push(image);
        (self.images.len() - 1) as u32
    }

    /// Members that can still run. One that nobody has reaped yet has ended.
    pub fn alive(&mut self) -> Vec<i32> {
        let mut alive = Vec::new();
        for &pid in self.members.keys() {
            if self.ended.contains(&pid) {
                continue;
            }
            match self.proc.process_stat(pid) {
                // A leader may end before its threads: then it is a zombie with threads beside it.
                Ok(stat) if !matches!(stat.state, 'Z' | 'X') || stat.threads > 1 => alive.push(pid),
                _ => {
                    self.ended.insert(pid);
                }
            }
        }
        alive
    }

    /// At least one kernel function had a name; true as well before any was seen.
    pub fn kernel_named(&self) -> bool {
        let mut kernel = self
            .kernel_frames
            .values()
            .map(|id| &self.frames.list[*id as usize]);
        self.kernel_frames.is_empty() || kernel.any(|frame| frame.symbol.is_some())
    }

    pub fn take(&mut self, event: Event<'_>) {
        match event {
            Event::Sample(sample) => self.take_sample(&sample),
            Event::Mapped { pid, mapping } => {
                if let Some(&image) = self.members.get(&pid) {
                    let image = &mut self.images[image as usize];
                    if let Some(code) = image.space.add_mapping(&mut self.modules, &mapping) {
                        add_tables(&mut self.tables, &self.modules, &mut image.unwinder, &code);
                    }
                }
            }
            Event::Exec { pid, comm } => {
                self.comms.insert(pid, String::from_utf8_lossy(comm).into_owned());
                if self.members.contains_key(&pid) {
                    let image = self.new_image(pid);
                    self.members.insert(pid, image);
                }
            }
            Event::Renamed { pid, tid, comm } => {
                if pid == tid {
                    self.comms.insert(pid, String::from_utf8_lossy(comm).into_owned());
                }
            }
            Event::Forked { pid, parent, .. } if pid != parent => self.take_fork(pid, parent),
            Event::Lost(count) => self.lost += count,
            Event::Forked { .. } | Event::Exited { .. } => {}
        }
    }

    fn take_fork(&mut self, pid: i32, parent: i32) {
        match self.members.get(&parent).copied() {
            None => {
                self.strangers.insert(pid);
                self.members.remove(&pid);
            }
            Some(_) if self.members.len() >= PROCESS_LIMIT => self.processes_left_out += 1,
            Some(image) => {
                self.strangers.remove(&pid);
                self.ended.remove(&pid);
                // The same image until it execs.
                if self.members.insert(pid, image).is_none() {
                    self.pids.push(pid);
                    if let Some(mut process) = self.processes.iter().find(|p| p.pid == parent).cloned() {
                        (process.pid, process.ppid) = (pid, parent);
                        self.processes.push(process);
                    }
                }
            }
        }
    }

    /// Whether a process that no fork record told of belongs to the target, by its ancestors.
    fn belongs(&mut self, pid: i32) -> bool {
        if self.members.contains_key(&pid) {
            return true;
        }
        if self.strangers.contains(&pid) {
            return false;
        }
        let mut ancestor = pid;
        for _ in 0..64 {
            let Ok(stat) = self.proc.process_stat(ancestor) else {
                break;
            };
            ancestor = stat.ppid;
            if self.members.contains_key(&ancestor) {
                self.adopt(pid);
                return self.members.contains_key(&pid);
            }
            if ancestor <= 1 {
                break;
            }
        }
        self.strangers.insert(pid);
        false
    }

    fn take_sample(&mut self, raw: &RawSample<'_>) {
        if !self.belongs(raw.pid) {
            *self.neighbours.entry(raw.pid).or_default() += 1;
            return;
        }
        let Some(&image) = self.members.get(&raw.pid) else {
            return;
        };
        let Some(t_ns) = raw.time_ns.checked_sub(self.start_ns) else {
            return;
        };
        if self.samples.len() >= SAMPLE_LIMIT {
            self.left_out += 1;
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
        if let Some(registers) = raw.registers {
            self.defer(Owner::Sample(index), image, &registers, raw.stack);
        }
    }

    /// A look at a waiting thread. `registers` and `stack` where they could be read.
    pub fn take_wait(&mut self, wait: WaitSample, kernel: &[String], user: Option<(Registers, &[u8])>) {
        let Some(&image) = self.members.get(&wait.pid) else {
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
            self.stacks.id(Stack {
                frames,
                complete: true,
            })
        });
        let index = self.waits.len() as u32;
        let leaf = user.as_ref().map(|(registers, _)| {
            let (ip, _) = unwind::ip_sp(registers);
            self.leaf_stack(image, ip)
        });
        self.waits.push(WaitSample {
            kernel,
            user: leaf,
            ..wait
        });
        if let Some((registers, stack)) = user {
            self.defer(Owner::Wait(index), image, &registers, stack);
        }
    }

    fn defer(&mut self, owner: Owner, image: u32, registers: &Registers, stack: &[u8]) {
        if self.arena.len() + stack.len() > ARENA_LIMIT {
            self.unwind_pending();
        }
        let arena = self.arena.len();
        registers
            .iter()
            .for_each(|r| self.arena.extend_from_slice(&r.to_ne_bytes()));
        self.arena.extend_from_slice(stack);
        self.pending.push(Pending {
            owner,
            image,
            arena,
            stack_bytes: stack.len() as u32,
        });
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
                // All but the leaf are return addresses: step back into the call.
                let address = if depth == 0 {
                    address
                } else {
                    address.saturating_sub(1)
                };
                self.kernel_frame(address)
            })
            .collect();
        let stack = self.stacks.id(Stack {
            frames,
            complete: true,
        });
        self.kernel_chains.insert(chain.to_vec(), stack);
        stack
    }

    fn kernel_frame(&mut self, address: u64) -> u32 {
        if let Some(&known) = self.kernel_frames.get(&address) {
            return known;
        }
        let symbol = self.symbols.kernel(address);
        // Addresses of the kernel give away its layout: where a name is known they aren't kept.
        let frame = Frame {
            module: Some(self.kernel_module),
            symbol,
            offset: 0,
        };
        let id = self.frames.id(frame);
        self.kernel_frames.insert(address, id);
        id
    }

    fn leaf_stack(&mut self, image: u32, ip: u64) -> u32 {
        let frame = match self.images[image as usize].space.lookup(ip) {
            Some((module, offset)) => Frame {
                module: Some(module as u32),
                symbol: None,
                offset,
            },
            None => Frame {
                module: Some(self.unknown_module),
                symbol: None,
                offset: 0,
            },
        };
        let frame = self.frames.id(frame);
        self.stacks.id(Stack {
            frames: vec![frame],
            complete: false,
        })
    }

    fn unwind_pending(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        let arena = std::mem::take(&mut self.arena);
        let mut unwound = std::mem::take(&mut self.unwound);
        for item in &pending {
            if self.stacks.bytes > STACKS_LIMIT {
                self.without_callers += 1;
                continue;
            }
            let (registers, stack) = split(&arena[item.arena..], item.stack_bytes as usize);
            let image = &self.images[item.image as usize];
            image
                .unwinder
                .unwind(&mut self.cache, &registers, stack, &mut unwound);
            let mut frames = Vec::with_capacity(unwound.addresses.len());
            for &address in &unwound.addresses {
                frames.push(self.user_frame(item.image, address));
            }
            let stack = Some(self.stacks.id(Stack {
                frames,
                complete: !unwound.truncated,
            }));
            match item.owner {
                Owner::Sample(index) => self.samples[index as usize].user = stack,
                Owner::Wait(index) => self.waits[index as usize].user = stack,
            }
        }
        self.unwound = unwound;
        self.arena = arena;
        self.arena.clear();
    }

    fn user_frame(&mut self, image: u32, address: u64) -> u32 {
        let image = &self.images[image as usize];
        let found = image
            .space
            .lookup(address)
            .map(|(module, offset)| (module as u32, offset));
        let Some((module, offset)) =
            found.filter(|(m, _)| self.modules.list()[*m as usize].role != ModuleRole::Jit)
        else {
            // Generated code: its writer may have left names; without one, one frame stands for all of it.
            let symbol = image
                .perf_map
                .as_ref()
                .and_then(|map| map.lookup(address))
                .map(str::to_string);
            let module = found.map_or(self.unknown_module, |(module, _)| module);
            return self.frames.id(Frame {
                module: Some(module),
                symbol,
                offset: 0,
            });
        };
        if let Some(&known) = self.named_frames.get(&(module, offset)) {
            return known;
        }
        if self.frames.bytes > FRAMES_LIMIT {
            return self.frames.id(Frame {
                module: Some(module),
                symbol: None,
                offset: 0,
            });
        }
        let symbol = self
            .modules
            .path_to_open(module as usize)
            .and_then(|path| self.symbols.user(&path, offset));
        // One frame a function: the instruction within it tells nothing more, but where there is no name the
        // address decides whether it lies in malloc's range.
        let inside = self.modules.list()[module as usize]
            .malloc_ranges
            .iter()
            .position(|(s, e)| (*s..*e).contains(&offset));
        let kept = match (&symbol, inside) {
            (Some(_), Some(range)) => self.modules.list()[module as usize].malloc_ranges[range].0,
            (Some(_), None) => 0,
            (None, _) => offset,
        };
        let id = self.frames.id(Frame {
            module: Some(module),
            symbol,
            offset: kept,
        });
        self.named_frames.insert((module, offset), id);
        id
    }

    /// What came since the last batch.
    pub fn batch(&mut self) -> super::file::Batch {
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

    /// Unwinds and names everything. What there was no room for is known after it.
    pub fn unwind_all(&mut self) {
        for (pid, &image) in &self.members {
            let image = &mut self.images[image as usize];
            if image.perf_map.is_none() {
                let status = self.proc.status(*pid).ok();
                image.perf_map = status.and_then(|s| {
                    PerfMap::read(
                        self.proc.root(),
                        *pid,
                        s.ns_pids.last().copied().unwrap_or(*pid),
                        s.uid[1],
                    )
                });
            }
        }
        self.unwind_pending();
    }

    /// What is to be kept, after `unwind_all`.
    pub fn finish(self, sample_period_ns: u64) -> Collected {
        let neighbours = self.neighbours.iter().map(|(&pid, &samples)| Neighbour {
            pid,
            comm: self
                .comms
                .get(&pid)
                .cloned()
                .or_else(|| self.proc.comm(pid).ok())
                .unwrap_or_default(),
            cpu_ns: samples * sample_period_ns,
        });
        let mut neighbours: Vec<Neighbour> = neighbours.collect();
        neighbours.sort_by(|a, b| b.cpu_ns.cmp(&a.cpu_ns).then(a.pid.cmp(&b.pid)));
        neighbours.truncate(32);

        // Only what the samples refer to: the leaf-only stacks of the batches are of no more use.
        let mut keep = Compactor::new(&self.stacks.list, &self.frames.list);
        let sample_stacks = self
            .samples
            .iter()
            .map(|s| (keep.stack(s.kernel), keep.stack(s.user)))
            .collect();
        let wait_stacks = self
            .waits
            .iter()
            .map(|w| (keep.stack(w.kernel), keep.stack(w.user)))
            .collect();
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

fn add_tables(tables: &mut HashMap<u32, Tables>, modules: &Modules, unwinder: &mut Unwinder, code: &Code) {
    // Generated code has no tables, and a program that maps and unmaps it all the time would fill the unwinder.
    if modules.list()[code.module].role == ModuleRole::Jit {
        return;
    }
    let tables = tables.entry(code.module as u32).or_insert_with(|| {
        let copy = modules.file(code.module).and_then(|file| file.try_clone().ok());
        copy.map_or_else(Tables::none, Tables::of)
    });
    unwinder.add(
        &modules.list()[code.module].path,
        code.start..code.end,
        code.bias,
        tables,
    );
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

fn split(bytes: &[u8], stack_bytes: usize) -> (Registers, &[u8]) {
    let mut registers = [0; REGISTERS];
    for (register, word) in registers.iter_mut().zip(bytes.chunks_exact(8)) {
        *register = u64::from_ne_bytes(word.try_into().unwrap_or_default());
    }
    (registers, &bytes[REGISTERS * 8..REGISTERS * 8 + stack_bytes])
}

struct Interner<T> {
    list: Vec<T>,
    ids: HashMap<T, u32>,
    /// Of the values in the list, what they point to included.
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
        Interner {
            list: Vec::new(),
            ids: HashMap::new(),
            bytes: 0,
        }
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
        self.new_stacks.push(Stack {
            frames,
            complete: stack.complete,
        });
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
