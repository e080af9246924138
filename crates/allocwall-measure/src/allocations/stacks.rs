//! Where blocks are requested: the copied stacks of sampled calls, unwound and named as the samples of a recording are.
//!
//! A stack is unwound soon, while its process can still show which files it maps. Names are read at the end, from these files.

use super::layout::{Copied, NoStack};
use crate::collect::stacks::{Compactor, Location, StackTable};
use crate::reading::{Dump, Readers};
use crate::symbols;
use crate::target::{AddressSpace, Modules, TargetView};
use crate::unwind::Unwound;
use allocwall_host::clock::monotonic_ns;
use allocwall_host::maps::Mapping;
use allocwall_host::proc::ProcFs;
use allocwall_model::allocations::MOST_SITES;
use allocwall_model::catalogue::symbols::{Scope, UserRole, user_role};
use allocwall_model::error::Result;
use allocwall_model::recording::{Frame, Module, ModuleRole, Stack};
use allocwall_model::units::{Absence, Measured, Reason};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;

/// The most processes whose stacks are unwound.
const MOST_IMAGES: usize = 1024;
/// The most memory for distinct stacks.
const ROUTES_LIMIT: usize = 32 << 20;
/// How often the mappings of a process are read, and the time between two readings. A process that opens libraries later needs
/// more than one.
const MOST_READINGS: u32 = 16;
const BETWEEN_READINGS_NS: u64 = 250_000_000;
/// The number of addresses that are named together.
const NAMED_AT_ONCE: usize = 4096;

/// Why a call has no stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unread {
    /// The library copied none.
    NotCopied(NoStack),
    /// It was overwritten before it was read.
    Overwritten,
    /// There were too many at once.
    NotTaken,
    /// The code of the process could not be found.
    Code { image: u32 },
    /// The reader of unwind tables failed.
    Unwinding,
    /// Limits of memory.
    TooMany,
}

/// An address of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    File {
        module: u32,
        offset: u64,
    },
    Generated {
        image: u32,
        address: u64,
    },
    /// In no file that is known.
    Unmapped {
        address: u64,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Route {
    Known {
        /// Leaf first.
        places: Vec<Place>,
        complete: bool,
    },
    Unknown(Unread),
}

/// Distinct routes, numbered in the order of their appearance.
#[derive(Default)]
struct Routes {
    numbers: HashMap<Route, u32>,
    bytes: usize,
}

impl Routes {
    fn number(&mut self, route: Route) -> u32 {
        if let Some(&known) = self.numbers.get(&route) {
            return known;
        }
        let full = self.numbers.len() >= MOST_SITES || self.bytes > ROUTES_LIMIT;
        if let (true, Route::Known { .. }) = (full, &route) {
            return self.number(Route::Unknown(Unread::TooMany));
        }
        let places = match &route {
            Route::Known { places, .. } => size_of_val(&places[..]),
            Route::Unknown(_) => 0,
        };
        self.bytes += size_of::<(Route, u32)>() + places;
        let number = self.numbers.len() as u32;
        self.numbers.insert(route, number);
        number
    }

    fn into_list(self) -> Vec<Route> {
        let mut numbered: Vec<(Route, u32)> = self.numbers.into_iter().collect();
        numbered.sort_unstable_by_key(|(_, number)| *number);
        numbered.into_iter().map(|(route, _)| route).collect()
    }
}

/// The code of one process.
struct Image {
    space: AddressSpace,
    /// Unique among all images; increased with each reading.
    version: u64,
    /// Inode and end of the path of the file in which the process counts: proof that it is the process of that number.
    inode: u64,
    name: String,
    /// Code that was read before the first stack.
    before: Vec<Mapping>,
    readings: u32,
    read_ns: u64,
    absent: Option<Absence>,
    perf_map: Option<File>,
    perf_map_tried_ns: u64,
}

/// Where stacks were copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaf {
    /// In the counting library, which all calls pass through.
    Library,
    /// At the first instruction of a function of the allocator. Its file may contain callers, too.
    Entry,
}

pub struct Stacks {
    proc: ProcFs,
    modules: Modules,
    leaf: Leaf,
    images: Vec<Image>,
    versions: u64,
    routes: Routes,
}

/// Everything by name.
pub struct Named {
    pub modules: Vec<Module>,
    pub frames: Vec<Frame>,
    pub stacks: Vec<Stack>,
    /// The stack of each route.
    pub routes: Vec<Measured<u32>>,
    /// What could not be read, in sentences.
    pub missing: Vec<String>,
}

impl Stacks {
    pub fn new(proc: ProcFs, readers: Readers) -> Stacks {
        Stacks {
            modules: Modules::new(proc.root(), readers),
            proc,
            leaf: Leaf::Library,
            images: Vec::new(),
            versions: 0,
            routes: Routes::default(),
        }
    }

    /// For stacks that begin at the first instruction of a function of the allocator.
    pub fn at_entries(proc: ProcFs, readers: Readers) -> Stacks {
        Stacks { leaf: Leaf::Entry, ..Stacks::new(proc, readers) }
    }

    /// Inspects a process, whose files need not be examined a second time for its stacks.
    ///
    /// # Errors
    /// The process does not exist, or may not be inspected.
    pub fn inspect(&mut self, pid: i32) -> Result<TargetView> {
        self.modules.inspect(pid)
    }

    /// A process that maps a file with this inode, the path of which ends with `name`, or why it can't be read. `before`: its
    /// code, if that was read before. None if there are too many.
    pub fn add_process(
        &mut self,
        pid: Measured<i32>,
        inode: u64,
        name: String,
        before: Vec<Mapping>,
    ) -> Option<u32> {
        if self.images.len() >= MOST_IMAGES {
            return None;
        }
        self.images.push(Image {
            space: AddressSpace::new(pid.as_ref().map_or(0, |pid| *pid)),
            version: 0,
            inode,
            name,
            before,
            readings: 0,
            read_ns: 0,
            absent: pid.err(),
            perf_map: None,
            perf_map_tried_ns: 0,
        });
        Some((self.images.len() - 1) as u32)
    }

    /// False if it is known that no stack of this process can be unwound.
    pub fn is_readable(&self, image: u32) -> bool {
        self.images[image as usize].absent.is_none()
    }

    /// The route of a call without a stack.
    pub fn unknown(&mut self, why: Unread) -> u32 {
        self.routes.number(Route::Unknown(why))
    }

    /// Unwinds stacks of one process. The result has one route for each.
    pub fn routes(&mut self, image: u32, copies: &[Copied]) -> Vec<u32> {
        if copies.is_empty() {
            return Vec::new();
        }
        if self.is_readable(image) && self.images[image as usize].readings == 0 {
            self.read_code(image);
        }
        if !self.is_readable(image) {
            let unknown = self.unknown(Unread::Code { image });
            return vec![unknown; copies.len()];
        }
        let mut unwound = self.unwind(image, copies);
        let leaves_code = unwound.iter().flatten().flat_map(|one| &one.addresses).any(|&address| {
            let image = &self.images[image as usize];
            address != 0 && image.space.lookup(address).is_none()
        });
        if leaves_code && self.read_code_again(image) {
            unwound = self.unwind(image, copies);
        }
        unwound.into_iter().map(|one| self.route(image, one)).collect()
    }

    fn route(&mut self, image: u32, unwound: Option<Unwound>) -> u32 {
        let Some(unwound) = unwound else { return self.unknown(Unread::Unwinding) };
        let known = &self.images[image as usize];
        let place = |&address: &u64| match known.space.lookup(address) {
            Some((module, _)) if self.modules.list()[module].role == ModuleRole::Jit => {
                Place::Generated { image, address }
            }
            Some((module, offset)) => Place::File { module: module as u32, offset },
            None => Place::Unmapped { address },
        };
        let places: Vec<Place> = unwound.addresses.iter().map(place).collect();
        if places.iter().any(|place| matches!(place, Place::Generated { .. })) {
            self.open_perf_map(image);
        }
        self.routes.number(Route::Known { places, complete: !unwound.truncated })
    }

    fn unwind(&mut self, image: u32, copies: &[Copied]) -> Vec<Option<Unwound>> {
        // The reader may have crashed on an unwind table; the next one uses frame pointers only.
        let unwound = self.ask_to_unwind(image, copies).or_else(|_| self.ask_to_unwind(image, copies));
        match unwound {
            Ok(unwound) => unwound.into_iter().map(Some).collect(),
            Err(_) => copies.iter().map(|_| None).collect(),
        }
    }

    fn ask_to_unwind(&mut self, image: u32, copies: &[Copied]) -> Measured<Vec<Unwound>> {
        let known = &self.images[image as usize];
        self.modules.tell_image(image, known.version, &known.space)?;
        let mut raw = Vec::new();
        for copy in copies {
            copy.registers.iter().for_each(|register| raw.extend_from_slice(&register.to_ne_bytes()));
            raw.extend_from_slice(&copy.bytes);
        }
        let dumps = copies.iter().map(|copy| Dump { image, stack_bytes: copy.bytes.len() as u32 });
        self.modules.reader().unwind(dumps.collect(), &raw)
    }

    /// Reads the mappings again, if that may help; true if it did.
    fn read_code_again(&mut self, image: u32) -> bool {
        let known = &self.images[image as usize];
        if known.readings >= MOST_READINGS || monotonic_ns() < known.read_ns + BETWEEN_READINGS_NS {
            return false;
        }
        self.read_code(image)
    }

    /// True if the mappings were read. If not, those of the last reading stay.
    fn read_code(&mut self, image: u32) -> bool {
        self.versions += 1;
        let known = &mut self.images[image as usize];
        known.readings += 1;
        known.read_ns = monotonic_ns();
        let before = std::mem::take(&mut known.before);
        let code = match code_of(&self.proc, known.space.pid, known.inode, &known.name) {
            Ok(code) => code,
            Err(_) if !before.is_empty() => before,
            Err(absence) => {
                if known.version == 0 {
                    known.absent = Some(absence);
                }
                return false;
            }
        };
        let mut space = AddressSpace::new(known.space.pid);
        for mapping in &code {
            space.add_mapping(&mut self.modules, mapping);
        }
        (known.space, known.version) = (space, self.versions);
        true
    }

    /// Opens the file in which a JIT compiler writes names, while the process exists.
    fn open_perf_map(&mut self, image: u32) {
        let known = &mut self.images[image as usize];
        let now = monotonic_ns();
        if known.perf_map.is_some() || now < known.perf_map_tried_ns + BETWEEN_READINGS_NS {
            return;
        }
        known.perf_map_tried_ns = now;
        let pid = known.space.pid;
        if let Ok(status) = self.proc.status(pid) {
            let inner = status.ns_pids.last().copied().unwrap_or(pid);
            let thread = self.proc.living_thread(pid);
            known.perf_map = symbols::perf_map(self.proc.root(), thread, inner, status.uid[1]);
        }
    }

    /// Names all frames, and removes those of the library and of the allocator from the top of each stack.
    pub fn finish(mut self) -> Named {
        let routes = std::mem::take(&mut self.routes).into_list();
        self.modules.reader().window_closed(routes.len());
        let mut table = StackTable::new(&mut self.modules);
        let generated = self.name(&routes, &mut table);
        let routes: Vec<Measured<u32>> = routes
            .iter()
            .map(|route| match route {
                Route::Known { places, complete } => {
                    let frames: Vec<u32> =
                        places.iter().map(|place| self.frame(&mut table, *place, &generated)).collect();
                    let frames = callers(&frames, &table.frames.list, self.modules.list(), self.leaf);
                    if frames.is_empty() {
                        let detail = "the callers of the allocator could not be found on the stack";
                        return Err(Absence::new(Reason::NotFound, detail));
                    }
                    Ok(table.stacks.id(Stack { frames: frames.to_vec(), complete: *complete }))
                }
                Route::Unknown(why) => Err(self.absence(*why)),
            })
            .collect();
        let mut keep = Compactor::new(&table.stacks.list, &table.frames.list);
        let routes = routes.into_iter().map(|route| route.map(|stack| keep.stack(Some(stack)).unwrap_or(0)));
        let routes = routes.collect();
        let missing = self.modules.reader().missing();
        let (frames, stacks) = (keep.new_frames, keep.new_stacks);
        Named { modules: self.modules.into_list(), frames, stacks, routes, missing }
    }

    /// Reads all names. Those of functions in files go into the table; those of generated code are the result.
    fn name(&mut self, routes: &[Route], table: &mut StackTable) -> HashMap<(u32, u64), String> {
        let mut functions: BTreeMap<u32, BTreeSet<u64>> = BTreeMap::new();
        let mut generated: BTreeMap<u32, BTreeSet<u64>> = BTreeMap::new();
        for route in routes {
            let Route::Known { places, .. } = route else { continue };
            for place in places {
                match *place {
                    Place::File { module, offset } => _ = functions.entry(module).or_default().insert(offset),
                    Place::Generated { image, address } => {
                        _ = generated.entry(image).or_default().insert(address);
                    }
                    Place::Unmapped { .. } => {}
                }
            }
        }
        for (module, offsets) in functions {
            let offsets: Vec<u64> = offsets.into_iter().collect();
            for offsets in offsets.chunks(NAMED_AT_ONCE) {
                let names = self.modules.names(module as usize, offsets);
                for (&offset, name) in offsets.iter().zip(names) {
                    table.keep_name(&self.modules, module, offset, name);
                }
            }
        }
        let mut names = HashMap::new();
        for (image, addresses) in generated {
            let Some(map) = &self.images[image as usize].perf_map else { continue };
            let addresses: Vec<u64> = addresses.into_iter().collect();
            for addresses in addresses.chunks(NAMED_AT_ONCE) {
                let found = self.modules.reader().generated(map, addresses).unwrap_or_default();
                let named = addresses.iter().zip(found);
                names.extend(named.filter_map(|(&address, name)| Some(((image, address), name?))));
            }
        }
        names
    }

    fn frame(&self, table: &mut StackTable, place: Place, generated: &HashMap<(u32, u64), String>) -> u32 {
        match place {
            Place::File { module, offset } => {
                table.user_frame(Location::File(module, offset), None, &self.modules)
            }
            Place::Generated { image, address } => {
                let name = generated.get(&(image, address)).cloned();
                let module = self.images[image as usize].space.lookup(address);
                let module = module.map(|(module, _)| module as u32);
                table.frames.id(Frame { module, symbol: name, offset: 0 })
            }
            Place::Unmapped { address } => {
                table.frames.id(Frame { module: None, symbol: None, offset: address })
            }
        }
    }

    fn absence(&self, why: Unread) -> Absence {
        match why {
            Unread::NotCopied(NoStack::NoSpace) => Absence::new(
                Reason::Exhausted,
                "the stack was not copied: the folder of the counts has no space left",
            ),
            Unread::NotCopied(NoStack::Busy | NoStack::Unknown) => {
                Absence::new(Reason::TooCostly, "the stack was not copied: other threads copied theirs")
            }
            Unread::NotTaken => Absence::new(
                Reason::TooCostly,
                "the stack was not read: too many processes had stacks to read",
            ),
            Unread::Overwritten => {
                Absence::new(Reason::TooCostly, "the stack was overwritten before it was read")
            }
            Unread::Code { image } => self.images[image as usize].absent.clone().unwrap_or_else(|| {
                Absence::new(Reason::NotFound, "the code of the process could not be found")
            }),
            Unread::Unwinding => {
                Absence::new(Reason::Unparsable, "the stack could not be unwound: its reader failed")
            }
            Unread::TooMany => Absence::new(
                Reason::TooCostly,
                format!(
                    "there are more than {MOST_SITES} different stacks, or stacks of more than {MOST_IMAGES} processes"
                ),
            ),
        }
    }
}

/// The code of the process that maps a file with this inode, the path of which ends with `name`: it is the process that counts
/// there.
pub fn code_of(proc: &ProcFs, pid: i32, inode: u64, name: &str) -> Measured<Vec<Mapping>> {
    let is_its_file = |mapping: &Mapping| {
        let path = mapping.path.strip_suffix(b" (deleted)").unwrap_or(&mapping.path);
        mapping.inode == inode && path.ends_with(name.as_bytes())
    };
    // A leader that has ended shows no memory.
    let maps = proc.maps(proc.living_thread(pid), |mapping| mapping.perms.execute || is_its_file(mapping));
    let ended =
        || Absence::new(Reason::Vanished, format!("process {pid} ended before its code could be found"));
    let maps = maps.map_err(|absence| if absence.is_gone() { ended() } else { absence })?;
    if maps.mappings.is_empty() {
        return Err(ended());
    }
    if !maps.mappings.iter().any(is_its_file) {
        let detail = format!(
            "process {pid} is not the one that was counted: it ended, executes another program, or has another number outside its PID namespace"
        );
        return Err(Absence::new(Reason::NotFound, detail));
    }
    Ok(maps.mappings.into_iter().filter(|mapping| mapping.perms.execute).collect())
}

/// A stack without its top: where it was copied, and functions of allocators that called it, such as operator new.
fn callers<'a>(stack: &'a [u32], frames: &[Frame], modules: &[Module], copied: Leaf) -> &'a [u32] {
    let frame = |number: &u32| &frames[*number as usize];
    let Some((leaf, rest)) = stack.split_first() else { return &[] };
    let library = frame(leaf).module.filter(|_| copied == Leaf::Library);
    let is_top = |number: &&u32| {
        let frame = frame(number);
        library.is_some() && frame.module == library || is_allocator(frame, modules)
    };
    &rest[rest.iter().take_while(is_top).count()..]
}

fn is_allocator(frame: &Frame, modules: &[Module]) -> bool {
    let module = frame.module.and_then(|module| modules.get(module as usize));
    let role = module.map(|module| module.role);
    if matches!(role, Some(ModuleRole::Allocator(_))) {
        return true;
    }
    match &frame.symbol {
        Some(symbol) => {
            let scope = if role == Some(ModuleRole::Libc) { Scope::Libc } else { Scope::Any };
            matches!(user_role(symbol, scope), Some(UserRole::Allocator | UserRole::AllocatorLock))
        }
        None => module.is_some_and(|module| {
            module.malloc_ranges.iter().any(|(start, end)| (*start..*end).contains(&frame.offset))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unwind::waiting_registers;
    use std::os::unix::fs::MetadataExt;

    fn own_name() -> (u64, String) {
        let path = std::env::current_exe().unwrap();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (path.metadata().unwrap().ino(), format!("/{name}"))
    }

    fn copied(pc: u64, returns_to: &[u64]) -> Copied {
        let bytes = returns_to.iter().flat_map(|address| address.to_ne_bytes()).collect();
        Copied { registers: waiting_registers(pc, 0x7000_0000_0000), bytes }
    }

    #[test]
    fn stacks_of_a_process_that_maps_the_file_have_names_and_others_a_reason() {
        let proc = ProcFs::live();
        let pid = std::process::id() as i32;
        // This program's own file takes the place of the file of counts.
        let (inode, name) = own_name();
        let mut stacks = Stacks::new(proc.clone(), Readers::Here);
        let own = stacks.add_process(Ok(pid), inode, name.clone(), Vec::new()).unwrap();
        let other = stacks.add_process(Ok(pid), inode + 1, name.clone(), Vec::new()).unwrap();
        let gone = Absence::new(Reason::Vanished, "it ended");
        let ended = stacks.add_process(Err(gone.clone()), inode, name.clone(), Vec::new()).unwrap();
        assert!(!stacks.is_readable(ended) && stacks.is_readable(own));
        // The leaf is taken for the library; what it returns to has no unwind rules that lead on.
        let here = code_of(&proc, pid, inode, &name).unwrap()[0].start;
        let own_routes =
            stacks.routes(own, &[copied(here + 16, &[]), copied(here + 16, &[]), copied(1, &[])]);
        assert_eq!(own_routes[0], own_routes[1], "the same stack is the same route");
        let other_route = stacks.routes(other, &[copied(here + 16, &[])])[0];
        let ended_route = stacks.routes(ended, &[copied(here + 16, &[])])[0];
        let not_copied = stacks.unknown(Unread::NotCopied(NoStack::NoSpace));
        let named = stacks.finish();
        let reason = |route: u32| named.routes[route as usize].as_ref().map_err(|absence| absence.reason);
        assert_eq!(reason(other_route), Err(Reason::NotFound));
        assert_eq!(named.routes[ended_route as usize], Err(gone));
        assert_eq!(reason(not_copied), Err(Reason::Exhausted));
        for route in own_routes {
            match &named.routes[route as usize] {
                Ok(stack) => assert!(!named.stacks[*stack as usize].frames.is_empty()),
                Err(absence) => assert_eq!(absence.reason, Reason::NotFound),
            }
        }
    }

    #[test]
    fn mappings_that_were_read_before_serve_for_a_process_that_ended() {
        let proc = tempfile::tempdir().unwrap();
        let live = ProcFs::live();
        let pid = std::process::id() as i32;
        let (inode, name) = own_name();
        let before = code_of(&live, pid, inode, &name).unwrap();
        let start = before[0].start;
        // Here the process does not exist.
        let mut stacks = Stacks::new(ProcFs::at(proc.path()), Readers::Here);
        let with = stacks.add_process(Ok(pid), inode, name.clone(), before).unwrap();
        let without = stacks.add_process(Ok(pid), inode, name, Vec::new()).unwrap();
        let [found, lost] = [with, without].map(|image| stacks.routes(image, &[copied(start, &[])])[0]);
        assert!(stacks.images[with as usize].space.lookup(start).is_some());
        let named = stacks.finish();
        let reason = |route: u32| named.routes[route as usize].as_ref().map_err(|absence| absence.reason);
        assert_eq!(reason(lost), Err(Reason::Vanished));
        assert_ne!(reason(found), Err(Reason::Vanished));
    }

    #[test]
    fn the_library_and_the_allocator_are_removed_from_the_top_only() {
        let module = |path: &str, role| Module {
            path: path.into(),
            build_id: None,
            role,
            malloc_ranges: if role == ModuleRole::Libc { vec![(0x100, 0x200)] } else { Vec::new() },
            has_symbols: true,
        };
        let modules = [
            module("/tmp/libcount.so", ModuleRole::Other),
            module("/usr/lib/libstdc++.so.6", ModuleRole::Other),
            module("/usr/bin/program", ModuleRole::Other),
            module("/usr/lib/libc.so.6", ModuleRole::Libc),
        ];
        let mut frames = Vec::new();
        let mut frame = |module, symbol: Option<&str>, offset| {
            frames.push(Frame { module, symbol: symbol.map(str::to_owned), offset });
            frames.len() as u32 - 1
        };
        let copy = frame(Some(0), Some("sampled"), 0);
        let malloc = frame(Some(0), Some("malloc"), 0);
        let new = frame(Some(1), Some("operator new(unsigned long)"), 0);
        let push = frame(Some(1), Some("std::string::push_back(char)"), 0);
        let main = frame(Some(2), Some("main"), 0);
        let within_libc = frame(Some(3), None, 0x180);
        let beside = frame(Some(3), None, 0x300);
        let unknown = frame(None, None, 0x5000);
        let own_malloc = frame(Some(2), Some("malloc"), 0x900);
        let own_new = frame(Some(2), Some("operator new(unsigned long)"), 0x950);
        let below = |stack: &[u32], leaf| callers(stack, &frames, &modules, leaf).to_vec();
        let callers = |stack: &[u32]| below(stack, Leaf::Library);
        assert_eq!(callers(&[copy, malloc, new, push, main]), [push, main]);
        assert_eq!(callers(&[copy, malloc, main, new, main]), [main, new, main], "not below the caller");
        assert_eq!(callers(&[copy, within_libc, beside, main]), [beside, main]);
        // Without a module, only the leaf is known to be the library.
        assert_eq!(callers(&[unknown, unknown, main]), [unknown, main]);
        assert_eq!(callers(&[copy, malloc]), [] as [u32; 0]);
        // A program that contains its allocator: its callers are in the same file.
        assert_eq!(below(&[own_malloc, own_new, main], Leaf::Entry), [main]);
        assert_eq!(below(&[own_malloc, own_new, main], Leaf::Library), [] as [u32; 0]);
        assert_eq!(callers(&[]), [] as [u32; 0]);
    }
}
