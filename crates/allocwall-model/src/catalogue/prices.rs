//! Names of the prices in a machine's price list. Unit: nanoseconds per event, unless the name says otherwise.

/// 4 KiB first touch of memory that was in use moments ago.
pub const TOUCH_4K: &str = "touch_4k";
/// The same after the memory was idle for seconds: the hypervisor may have taken it back.
pub const TOUCH_4K_IDLE: &str = "touch_4k_idle";
/// The part of a fault after its handler: the return to user mode, which no sample can hit, and the page-table walk when
/// the instruction runs again. Clock samples show this time at the program's own instruction.
pub const FAULT_RETURN: &str = "fault_return";
/// 2 MiB first touch (a transparent huge page), per 2 MiB.
pub const TOUCH_2M: &str = "touch_2m";
pub const TOUCH_2M_IDLE: &str = "touch_2m_idle";
/// Zeroing 4 KiB that is already mapped (memset), per 4 KiB.
pub const ZERO_4K: &str = "zero_4k";
/// munmap of touched memory, per 4 KiB page.
pub const MUNMAP_PAGE: &str = "munmap_page";
/// madvise(MADV_DONTNEED) of touched memory, per 4 KiB page.
pub const DONTNEED_PAGE: &str = "dontneed_page";
/// mmap + munmap of 128 KiB, untouched.
pub const MAP_UNMAP_128K: &str = "map_unmap_128k";
/// MAP_POPULATE, per 4 KiB page.
pub const POPULATE_PAGE: &str = "populate_page";
/// malloc + free of a small block served by the thread cache.
pub const MALLOC_CACHED: &str = "malloc_cached";
/// malloc + free that the thread cache cannot serve: the arena serves it.
pub const MALLOC_ARENA: &str = "malloc_arena";
/// malloc + free of a block served by mmap.
pub const MALLOC_MAPPED: &str = "malloc_mapped";
/// 4 KiB first touch, per fault, with N threads faulting in one address space: `fault_threads_N`.
pub const FAULT_THREADS_PREFIX: &str = "fault_threads_";
/// One-way transfer of a cache line. The suffix is the relation of the two CPUs (`smt`, `same_l3`, `other_l3`, `other_node`).
pub const HANDOFF_PREFIX: &str = "handoff_";
/// Dependent load in a region much larger than the TLB covers, 4 KiB pages.
pub const LOAD_4K: &str = "load_4k_pages";
/// The same on 2 MiB pages.
pub const LOAD_2M: &str = "load_2m_pages";
/// As `LOAD_4K`, in memory of another NUMA node.
pub const LOAD_OTHER_NODE: &str = "load_other_node";
pub const SYSCALL: &str = "syscall";
pub const CONTEXT_SWITCH: &str = "context_switch";

/// A section of the printed price list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    FirstTouch,
    Mapping,
    Malloc,
    Sharing,
    Loads,
    Kernel,
}

impl Group {
    pub const ALL: [Group; 6] =
        [Group::FirstTouch, Group::Mapping, Group::Malloc, Group::Sharing, Group::Loads, Group::Kernel];

    pub fn title(self) -> &'static str {
        match self {
            Group::FirstTouch => "First touch",
            Group::Mapping => "Mapping and unmapping",
            Group::Malloc => "malloc + free",
            Group::Sharing => "Between threads",
            Group::Loads => "Dependent loads at random addresses",
            Group::Kernel => "Kernel",
        }
    }
}

/// The text that is printed for a price. In the order of the printed list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Description {
    /// Name, or its fixed part if `prefix` is set.
    pub name: &'static str,
    pub group: Group,
    /// Printed title. For a prefix, `{}` is replaced by the text for the rest of the name.
    pub title: &'static str,
    pub prefix: bool,
}

pub const DESCRIPTIONS: &[Description] = &[
    one(TOUCH_4K, Group::FirstTouch, "4 KiB page, recycled memory"),
    one(FAULT_RETURN, Group::FirstTouch, "… of this, after the fault handler"),
    one(TOUCH_4K_IDLE, Group::FirstTouch, "4 KiB page, memory idle for seconds"),
    one(TOUCH_2M, Group::FirstTouch, "2 MiB page, recycled memory"),
    one(TOUCH_2M_IDLE, Group::FirstTouch, "2 MiB page, memory idle for seconds"),
    one(ZERO_4K, Group::FirstTouch, "zeroing 4 KiB of mapped memory (memset)"),
    many(FAULT_THREADS_PREFIX, Group::FirstTouch, "4 KiB page, {} at once in one address space"),
    one(POPULATE_PAGE, Group::Mapping, "populate, per 4 KiB page"),
    one(MUNMAP_PAGE, Group::Mapping, "munmap, per touched 4 KiB page"),
    one(DONTNEED_PAGE, Group::Mapping, "MADV_DONTNEED, per touched 4 KiB page"),
    one(MAP_UNMAP_128K, Group::Mapping, "mmap + munmap of 128 KiB, untouched"),
    one(MALLOC_CACHED, Group::Malloc, "served by the thread cache (64 bytes)"),
    one(MALLOC_ARENA, Group::Malloc, "served by the arena (256 bytes, batches)"),
    one(MALLOC_MAPPED, Group::Malloc, "served by mmap (256 KiB, only the header touched)"),
    many(HANDOFF_PREFIX, Group::Sharing, "cache line one way, {}"),
    one(LOAD_4K, Group::Loads, "on 4 KiB pages, more memory than the TLB covers"),
    one(LOAD_2M, Group::Loads, "on 2 MiB pages, the same loads"),
    one(LOAD_OTHER_NODE, Group::Loads, "on 4 KiB pages of another NUMA node, the same loads"),
    one(SYSCALL, Group::Kernel, "system call (getppid)"),
    one(CONTEXT_SWITCH, Group::Kernel, "context switch (pipe write, read, switch)"),
];

const fn one(name: &'static str, group: Group, title: &'static str) -> Description {
    Description { name, group, title, prefix: false }
}

const fn many(name: &'static str, group: Group, title: &'static str) -> Description {
    Description { name, group, title, prefix: true }
}

/// The description of a price and its full title. None if this version does not know the name.
pub fn describe(name: &str) -> Option<(&'static Description, String)> {
    DESCRIPTIONS.iter().find_map(|description| {
        if !description.prefix {
            return (description.name == name).then(|| (description, description.title.to_owned()));
        }
        let rest = match name.strip_prefix(description.name)? {
            "smt" => "two hardware threads of a core".to_owned(),
            "same_l3" => "two cores under one L3".to_owned(),
            "other_l3" => "two L3 domains of a node".to_owned(),
            "other_node" => "two NUMA nodes".to_owned(),
            "1" => "1 thread".to_owned(),
            number => format!("{} threads", number.parse::<u32>().ok()?),
        };
        Some((description, description.title.replace("{}", &rest)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_words_for_people() {
        assert_eq!(describe(TOUCH_2M).unwrap().1, "2 MiB page, recycled memory");
        assert_eq!(
            describe("fault_threads_2").unwrap().1,
            "4 KiB page, 2 threads at once in one address space"
        );
        assert_eq!(describe("handoff_same_l3").unwrap().1, "cache line one way, two cores under one L3");
        for unknown in ["touch", "touch_4k_", "fault_threads_", "fault_threads_x", "handoff_moon", ""] {
            assert_eq!(describe(unknown), None, "{unknown:?}");
        }
        assert!(DESCRIPTIONS.iter().all(|d| d.prefix == d.title.contains("{}")));
    }
}
