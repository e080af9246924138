//! The experiments of `allocwall bench`. `list` and `explain` print them too.

use allocwall_lab::experiments::EXPERIMENTS;
use std::borrow::Cow;

/// One experiment.
#[derive(Clone)]
pub struct Known {
    pub name: &'static str,
    pub summary: &'static str,
    pub about: &'static str,
    pub shell: Cow<'static, str>,
}

/// The experiments with options of their own.
pub const KNOWN: &[Known] = &[
    Known {
        name: "pipeline",
        summary: "orders handed from thread to thread: the allocator's effect on their latency",
        about: "A producer allocates orders at a constant or a random rate. A consumer checks and frees them. Other allocations put \
                the heap under pressure. Each way to allocate an order (malloc, each allocator found, free list, batch arena, \
                pool, by value) runs in new processes, interleaved. The latency of an order is counted from its intended start, \
                and stalls that the machine causes are separated.",
        shell: Cow::Borrowed("allocwall bench pipeline --blocks 8 -o FOLDER"),
    },
    Known {
        name: "obmalloc",
        summary: "CPython's object arenas: stock, on huge pages, and other allocators",
        about: "The nine published workloads and four variants, nine real programs with large heaps or twenty ordinary programs. Each \
                runs with stock arenas, with \
                arenas on huge pages, with arenas collapsed to huge pages later, and with another allocator, in new processes, \
                interleaved.",
        shell: Cow::Borrowed("allocwall bench obmalloc --python PYTHON --arms thp"),
    },
];

/// All experiments: also those from published accounts, which share their options.
pub fn all() -> impl Iterator<Item = Known> {
    let published = EXPERIMENTS.iter().map(|experiment| Known {
        name: experiment.name,
        summary: experiment.summary,
        about: experiment.about,
        shell: format!("allocwall bench {} --quick", experiment.name).into(),
    });
    KNOWN.iter().cloned().chain(published)
}
