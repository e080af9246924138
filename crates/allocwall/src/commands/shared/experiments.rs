//! The experiments of `allocwall bench`. `list` and `explain` print them too.

/// One experiment.
pub struct Known {
    pub name: &'static str,
    pub summary: &'static str,
    pub about: &'static str,
    pub shell: &'static str,
}

pub const KNOWN: &[Known] = &[
    Known {
        name: "pipeline",
        summary: "orders handed from thread to thread: the allocator's effect on their latency",
        about: "A producer allocates orders at a constant or a random rate. A consumer checks and frees them. Other allocations put \
                the heap under pressure. Each way to allocate an order (malloc, each allocator found, free list, batch arena, \
                pool, by value) runs in new processes, interleaved. The latency of an order is counted from its intended start, \
                and stalls that the machine causes are separated.",
        shell: "allocwall bench pipeline --blocks 8 -o FOLDER",
    },
    Known {
        name: "obmalloc",
        summary: "CPython's object arenas: stock, on huge pages, and other allocators",
        about: "Nine workloads, nine real programs with large heaps or twenty ordinary programs. Each runs with stock arenas, with \
                arenas on huge pages, with arenas collapsed to huge pages later, and with another allocator, in new processes, \
                interleaved.",
        shell: "allocwall bench obmalloc --python PYTHON --arms thp",
    },
];
