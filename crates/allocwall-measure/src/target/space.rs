//! The executable memory of a process: which file an address belongs to.

use super::modules::Modules;
use allocwall_host::elf;
use allocwall_host::maps::Mapping;
use allocwall_model::catalogue::modules::ModuleRole;
use std::collections::BTreeMap;

/// The executable memory of one process.
#[derive(Clone, Debug)]
pub struct AddressSpace {
    /// The process, even if its first thread has ended.
    pub pid: i32,
    /// By first address; the ranges never overlap.
    regions: BTreeMap<u64, Region>,
}

#[derive(Clone, Copy, Debug)]
struct Region {
    end: u64,
    module: usize,
    /// What to add to an address to get the module's own address (wrapping).
    delta: u64,
}

/// An executable range of an address space.
#[derive(Clone, Copy, Debug)]
pub struct Code {
    pub start: u64,
    pub end: u64,
    pub module: usize,
    /// Address in memory minus the module's own address (wrapping).
    pub bias: u64,
}

impl Code {
    fn of(start: u64, region: &Region) -> Code {
        Code { start, end: region.end, module: region.module, bias: region.delta.wrapping_neg() }
    }
}

impl AddressSpace {
    pub fn new(pid: i32) -> Self {
        AddressSpace { pid, regions: BTreeMap::new() }
    }

    /// The module at an address, and the address in the module's own numbering (ELF virtual address; for
    /// generated code, which has no file, the address itself).
    pub fn lookup(&self, address: u64) -> Option<(usize, u64)> {
        let (_, region) = self.regions.range(..=address).next_back()?;
        (address < region.end).then(|| (region.module, address.wrapping_add(region.delta)))
    }

    /// Adds a mapping, read from maps or reported by perf. It replaces the mappings at its addresses. Returns
    /// the added code; None if the mapping has no code.
    pub fn add_mapping(&mut self, modules: &mut Modules, mapping: &Mapping) -> Option<Code> {
        self.remove(mapping.start, mapping.end);
        if !mapping.perms.execute || mapping.start >= mapping.end {
            return None;
        }
        let module = modules.intern(self.pid, mapping);
        let delta = match modules.list[module].role {
            ModuleRole::Jit => 0,
            _ if !mapping.is_file() => mapping.start.wrapping_neg(),
            _ => {
                // Without segments, the offset into the file is the best estimate.
                let segments = &modules.known[module].facts.segments;
                let address = elf::address_of_offset(segments, mapping.offset).unwrap_or(mapping.offset);
                address.wrapping_sub(mapping.start)
            }
        };
        let region = Region { end: mapping.end, module, delta };
        self.regions.insert(mapping.start, region);
        Some(Code::of(mapping.start, &region))
    }

    /// The same memory in a child after fork.
    pub fn forked(&self, child: i32) -> Self {
        AddressSpace { pid: child, regions: self.regions.clone() }
    }

    /// Every executable range, lowest first.
    pub fn code(&self) -> impl Iterator<Item = Code> + '_ {
        self.regions.iter().map(|(&start, region)| Code::of(start, region))
    }

    fn remove(&mut self, start: u64, end: u64) {
        let overlapping: Vec<(u64, Region)> = self
            .regions
            .range(..end)
            .rev()
            .take_while(|(_, region)| region.end > start)
            .map(|(&at, &region)| (at, region))
            .collect();
        for (at, region) in overlapping {
            self.regions.remove(&at);
            if at < start {
                self.regions.insert(at, Region { end: start, ..region });
            }
            if region.end > end {
                self.regions.insert(end, region);
            }
        }
    }
}
