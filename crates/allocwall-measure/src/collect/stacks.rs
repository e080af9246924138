//! Frames and stacks, each kept once, and the names of functions.

use super::family::Image;
use super::faults::Source;
use crate::symbols::KernelNames;
use crate::target::Modules;
use allocwall_model::catalogue::cost::CostClass;
use allocwall_model::catalogue::symbols::{self, KernelLine, KernelRole, Scope, UserRole};
use allocwall_model::recording::{Frame, ModuleRole, STACK_DEPTH, Stack};
use std::collections::HashMap;

const FRAMES_LIMIT: usize = 32 << 20;

/// Functions of system calls that copy from or to one buffer, their second argument: fs/read_write.c, net/socket.c.
const COPIES_A_BUFFER: [&str; 6] =
    ["vfs_read", "vfs_write", "__sys_sendto", "__sys_recvfrom", "ksys_read", "ksys_write"];

/// Functions of faults on files that only a write causes (mm/memory.c). Other faults on files are read from.
const WRITES_A_FILE: [&str; 8] = [
    "do_cow_fault",
    "do_shared_fault",
    "do_wp_page",
    "wp_page_*",
    "wp_pfn_shared",
    "do_page_mkwrite",
    "*_page_mkwrite",
    "fault_dirty_shared_page",
];

/// The location of an address of the target.
pub enum Location {
    /// In a module, with the module's own address.
    File(u32, u64),
    Generated(u32),
}

pub struct StackTable {
    kernel_names: KernelNames,
    kernel_module: u32,
    unknown_module: u32,
    pub frames: Interner<Frame>,
    pub stacks: Interner<Stack>,
    kernel_frames: HashMap<u64, u32>,
    kernel_chains: HashMap<Vec<u64>, u32>,
    /// How the address of a fault can be found, by kernel stack; None for a stack that is not in a fault.
    faults: HashMap<u32, Option<Source>>,
    named_frames: HashMap<(u32, u64), u32>,
    /// Whether a frame is a function that fills memory.
    fills: HashMap<u32, bool>,
    /// The frame of the allocator's function that was called before a return address, by the module and its own address.
    zeroing: HashMap<(u32, u64), Option<u32>>,
}

impl StackTable {
    pub fn new(modules: &mut Modules) -> StackTable {
        StackTable {
            kernel_names: KernelNames::new(),
            kernel_module: modules.add_special("[kernel]", ModuleRole::Kernel) as u32,
            unknown_module: modules.add_special("[unknown]", ModuleRole::Jit) as u32,
            frames: Interner::default(),
            stacks: Interner::default(),
            kernel_frames: HashMap::new(),
            kernel_chains: HashMap::new(),
            faults: HashMap::new(),
            named_frames: HashMap::new(),
            fills: HashMap::new(),
            zeroing: HashMap::new(),
        }
    }

    /// A kernel stack whose names the kernel printed.
    pub fn named_kernel_stack(&mut self, names: &[String]) -> u32 {
        let frame =
            |name: &String| Frame { module: Some(self.kernel_module), symbol: Some(name.clone()), offset: 0 };
        let frames: Vec<Frame> = names.iter().map(frame).collect();
        let frames = frames.into_iter().map(|frame| self.frames.id(frame)).collect();
        self.stacks.id(Stack { frames, complete: true })
    }

    /// Whether the name at this address was read before.
    pub fn is_named(&self, module: u32, offset: u64) -> bool {
        self.named_frames.contains_key(&(module, offset))
    }

    /// Whether at least one kernel function had a name; also true if there was none yet.
    pub fn kernel_named(&self) -> bool {
        let mut kernel = self.kernel_frames.values().map(|id| &self.frames.list[*id as usize]);
        self.kernel_frames.is_empty() || kernel.any(|frame| frame.symbol.is_some())
    }

    pub fn kernel_stack(&mut self, chain: &[u64]) -> u32 {
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

    /// Whether a kernel stack is in a page fault, and how the address of that fault can be found.
    pub fn fault(&mut self, stack: u32) -> Option<Source> {
        if let Some(known) = self.faults.get(&stack) {
            return *known;
        }
        let frames = &self.stacks.list[stack as usize].frames;
        let names = || frames.iter().filter_map(|frame| self.frames.list[*frame as usize].symbol.as_deref());
        let roles = frames
            .iter()
            .map(|frame| self.frames.list[*frame as usize].symbol.as_deref().and_then(symbols::kernel_role));
        let in_call = roles.clone().any(|role| role == Some(KernelRole::Entry));
        let writes = |name: &str| {
            let name = symbols::bare_name(name);
            WRITES_A_FILE.iter().any(|pattern| symbols::fits(pattern, name))
        };
        let source = symbols::fault_line(roles).map(|line| match line {
            _ if names().any(|name| COPIES_A_BUFFER.contains(&name)) => Source::Buffer,
            _ if in_call => Source::Unknown,
            KernelLine::Class(CostClass::FileFault) if !names().any(writes) => Source::Read,
            _ => Source::Written,
        });
        self.faults.insert(stack, source);
        source
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

    pub fn leaf_stack(&mut self, image: &Image, ip: u64) -> u32 {
        let frame = match image.space.lookup(ip) {
            Some((module, offset)) => Frame { module: Some(module as u32), symbol: None, offset },
            None => Frame { module: Some(self.unknown_module), symbol: None, offset: 0 },
        };
        let frame = self.frames.id(frame);
        self.stacks.id(Stack { frames: vec![frame], complete: false })
    }

    pub fn location(&self, image: &Image, modules: &Modules, address: u64) -> Location {
        match image.space.lookup(address) {
            Some((module, _)) if modules.list()[module].role == ModuleRole::Jit => {
                Location::Generated(module as u32)
            }
            Some((module, offset)) => Location::File(module as u32, offset),
            None => Location::Generated(self.unknown_module),
        }
    }

    pub fn user_frame(&mut self, location: Location, generated: Option<&String>, modules: &Modules) -> u32 {
        match location {
            Location::File(module, offset) => match self.named_frames.get(&(module, offset)) {
                Some(&known) => known,
                None => self.keep_name(modules, module, offset, None),
            },
            // The JIT compiler may have written names. Code without a name shares one frame.
            Location::Generated(module) => {
                self.frames.id(Frame { module: Some(module), symbol: generated.cloned(), offset: 0 })
            }
        }
    }

    /// Whether the leaf of a stack may fill memory for an allocator. In a stripped C library memset has no name.
    pub fn may_fill(&mut self, modules: &Modules, leaf: u32) -> bool {
        let frame = &self.frames.list[leaf as usize];
        *self.fills.entry(leaf).or_insert_with(|| match &frame.symbol {
            Some(symbol) => symbols::user_role(symbol, Scope::Libc) == Some(UserRole::Memory),
            None => frame.module.is_some_and(|m| modules.list()[m as usize].role == ModuleRole::Libc),
        })
    }

    /// Whether the call before this return address was read before.
    pub fn is_call_known(&self, module: u32, return_address: u64) -> bool {
        self.zeroing.contains_key(&(module, return_address))
    }

    pub fn keep_call(&mut self, module: u32, return_address: u64, zeroing: Option<String>) {
        let room = self.frames.bytes <= FRAMES_LIMIT;
        // The module of an imported function is not known.
        let frame = zeroing
            .filter(|_| room)
            .map(|name| self.frames.id(Frame { module: None, symbol: Some(name), offset: 0 }));
        self.zeroing.insert((module, return_address), frame);
    }

    /// The frame of the allocator's function that was called before this return address.
    pub fn zeroing(&self, module: u32, return_address: u64) -> Option<u32> {
        *self.zeroing.get(&(module, return_address))?
    }

    pub fn keep_name(&mut self, modules: &Modules, module: u32, offset: u64, symbol: Option<String>) -> u32 {
        if self.frames.bytes > FRAMES_LIMIT {
            return self.frames.id(Frame { module: Some(module), symbol: None, offset: 0 });
        }
        // One frame per function: the instruction within it gives no more information. Without a name, the
        // address decides whether it is in malloc's range.
        let ranges = &modules.list()[module as usize].malloc_ranges;
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
}

pub struct Interner<T> {
    pub list: Vec<T>,
    ids: HashMap<T, u32>,
    /// Size of the values in the list, with what they point to.
    pub bytes: usize,
}

pub trait Weighed {
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
    pub fn id(&mut self, value: T) -> u32 {
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

pub struct Compactor<'a> {
    stacks: &'a [Stack],
    frames: &'a [Frame],
    stack_ids: HashMap<u32, u32>,
    frame_ids: HashMap<u32, u32>,
    pub new_stacks: Vec<Stack>,
    pub new_frames: Vec<Frame>,
}

impl<'a> Compactor<'a> {
    pub fn new(stacks: &'a [Stack], frames: &'a [Frame]) -> Self {
        Compactor {
            stacks,
            frames,
            stack_ids: HashMap::new(),
            frame_ids: HashMap::new(),
            new_stacks: Vec::new(),
            new_frames: Vec::new(),
        }
    }

    pub fn stack(&mut self, id: Option<u32>) -> Option<u32> {
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

    /// The new number of a frame, if a stack that was kept has it.
    pub fn kept_frame(&self, id: u32) -> Option<u32> {
        self.frame_ids.get(&id).copied()
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
    use crate::reading::Readers;
    use std::path::Path;

    #[test]
    fn calls_are_read_for_leaves_that_may_fill_memory() {
        let mut modules = Modules::new(Path::new("/proc"), Readers::Here);
        let mut table = StackTable::new(&mut modules);
        let libc = modules.add_special("libc", ModuleRole::Libc) as u32;
        let loader = modules.add_special("ld.so", ModuleRole::Loader) as u32;
        let program = modules.add_special("program", ModuleRole::Other) as u32;
        for (module, symbol, fills) in [
            (libc, Some("__memset_avx2_unaligned_erms"), true),
            (libc, None, true),
            (libc, Some("__libc_malloc"), false),
            (libc, Some("strlen"), false),
            // A static C library.
            (program, Some("__memset_avx2_unaligned_erms"), true),
            (program, None, false),
            // It finds calloc at the first call.
            (loader, None, false),
        ] {
            let frame = Frame { module: Some(module), symbol: symbol.map(str::to_owned), offset: 0x10 };
            let leaf = table.frames.id(frame);
            assert_eq!(table.may_fill(&modules, leaf), fills, "{module} {symbol:?}");
        }
        assert!(!table.is_call_known(program, 0x20));
        table.keep_call(program, 0x20, Some("calloc".into()));
        table.keep_call(program, 0x30, None);
        assert!(table.is_call_known(program, 0x20) && table.is_call_known(program, 0x30));
        let name = |at| table.frames.list[table.zeroing(program, at)? as usize].symbol.clone();
        assert_eq!((name(0x20).as_deref(), name(0x30)), (Some("calloc"), None));
    }

    #[test]
    fn a_write_fault_on_a_file_is_about_the_written_operand() {
        let mut modules = Modules::new(Path::new("/proc"), Readers::Here);
        let mut table = StackTable::new(&mut modules);
        for (stack, source) in [
            ("filemap_map_pages;do_read_fault;do_fault;handle_mm_fault;exc_page_fault", Some(Source::Read)),
            ("filemap_fault;__do_fault;do_fault;handle_mm_fault;exc_page_fault", Some(Source::Read)),
            ("copy_mc_to_kernel;do_cow_fault;do_fault;exc_page_fault", Some(Source::Written)),
            ("filemap_fault;__do_fault;do_cow_fault.isra.0;exc_page_fault", Some(Source::Written)),
            ("filemap_fault;__do_fault;do_shared_fault;exc_page_fault", Some(Source::Written)),
            ("ext4_page_mkwrite;do_page_mkwrite;do_wp_page;exc_page_fault", Some(Source::Written)),
            ("wp_page_shared;handle_mm_fault;exc_page_fault", Some(Source::Written)),
            ("fault_dirty_shared_page;do_fault;exc_page_fault", Some(Source::Written)),
            ("clear_page_erms;do_anonymous_page;exc_page_fault", Some(Source::Written)),
            ("filemap_read;vfs_read;ksys_read;do_syscall_64", None),
        ] {
            let names: Vec<String> = stack.split(';').map(str::to_owned).collect();
            let id = table.named_kernel_stack(&names);
            assert_eq!(table.fault(id), source, "{stack}");
        }
    }
}
