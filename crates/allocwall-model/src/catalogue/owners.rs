//! Whose memory a page fault is about.

use serde::{Deserialize, Serialize};

/// The memory in which a sampled page fault happened, judged by its address soon after the fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Owner {
    /// `[heap]`: the memory that brk gives.
    Heap,
    /// An arena of glibc's malloc, made for a thread.
    Arena,
    /// A block of glibc's malloc with a mapping of its own.
    MappedBlock,
    /// An arena of CPython's object allocator.
    PythonArena,
    Stack,
    /// A mapped file, a program or a library.
    File,
    /// Shared memory: memfd, System V, shared anonymous memory.
    Shared,
    /// Other private memory: of an allocator that is not glibc's, of a runtime, or of the program itself.
    Private,
    /// It was given back before it was looked up.
    Unmapped,
    /// The address could not be found.
    Unknown,
}

impl Owner {
    pub const ALL: [Owner; 10] = [
        Owner::Heap,
        Owner::Arena,
        Owner::MappedBlock,
        Owner::PythonArena,
        Owner::Stack,
        Owner::File,
        Owner::Shared,
        Owner::Private,
        Owner::Unmapped,
        Owner::Unknown,
    ];

    /// Whether the owner is known.
    pub fn is_known(self) -> bool {
        !matches!(self, Owner::Unmapped | Owner::Unknown)
    }

    /// Whether glibc's malloc serves this memory, in a process that uses it.
    pub fn is_glibc(self) -> bool {
        matches!(self, Owner::Heap | Owner::Arena | Owner::MappedBlock)
    }

    /// Stable key of the JSON formats.
    pub fn key(self) -> &'static str {
        match self {
            Owner::Heap => "heap",
            Owner::Arena => "arena",
            Owner::MappedBlock => "mapped_block",
            Owner::PythonArena => "python_arena",
            Owner::Stack => "stack",
            Owner::File => "file",
            Owner::Shared => "shared",
            Owner::Private => "private",
            Owner::Unmapped => "unmapped",
            Owner::Unknown => "unknown",
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Owner::Heap => "main heap (brk)",
            Owner::Arena => "malloc's arenas of threads",
            Owner::MappedBlock => "malloc's mapped blocks",
            Owner::PythonArena => "Python's arenas",
            Owner::Stack => "stacks",
            Owner::File => "files",
            Owner::Shared => "shared memory",
            Owner::Private => "other private memory",
            Owner::Unmapped => "unmapped before it could be looked up",
            Owner::Unknown => "unknown",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_owner_is_in_the_list_with_its_own_key() {
        let keys: std::collections::BTreeSet<_> = Owner::ALL.into_iter().map(Owner::key).collect();
        assert_eq!(keys.len(), Owner::ALL.len());
        assert!(Owner::ALL.into_iter().enumerate().all(|(at, owner)| owner as usize == at));
    }
}
