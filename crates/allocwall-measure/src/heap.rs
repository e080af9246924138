//! How much of glibc's main heap the application uses and how much is free, read from outside.
//!
//! The heap is a chain of chunks. Each chunk starts with a word that contains its size and, in its lowest
//! bit, whether the chunk before it is in use (malloc/malloc.c, "Malloc_chunk details"). Walking the chain
//! needs no symbols and runs no code in the target. Chunks in thread caches and fast bins are counted as
//! used. The target runs on meanwhile: an inconsistent chain ends the walk, and the result is scaled to the
//! whole heap.

use crate::memory_kinds::PAGE;
use crate::resident::pages::{Memory, Words};
use allocwall_host::maps::Mapping;
use allocwall_host::proc::ProcFs;
use allocwall_model::recording::{AllocatorKind, HeapView, Process};
use allocwall_model::units::{Absence, Interval, Measured, Reason};
use std::time::{Duration, Instant};

/// Enough for most heaps, and at most a tenth of a second of copying.
const BYTES_WALKED: u64 = 512 << 20;
/// Time limit to find the heap and walk it: the report waits for it.
const TIME: Duration = Duration::from_millis(300);
/// Below this fraction of the heap, there is no estimate for the rest.
const LEAST_COVERED: f64 = 0.02;
const SMALLEST_CHUNK: u64 = 32;

/// Walks the largest heap among the target's processes that use glibc's allocator.
pub fn walk(proc: &ProcFs, processes: &[Process], alive: &[i32]) -> Measured<HeapView> {
    let served: Vec<i32> = processes
        .iter()
        .filter(|p| matches!(&p.allocator, Ok(a) if a.kind == AllocatorKind::Glibc))
        .map(|p| p.pid)
        .filter(|pid| alive.contains(pid))
        .collect();
    if served.is_empty() {
        return Err(Absence::new(
            Reason::NotApplicable,
            "only glibc's heap can be read from outside, and no living process of the target uses glibc's allocator",
        ));
    }
    if !proc.is_live() {
        return Err(Absence::new(Reason::NotApplicable, "a copy of /proc contains no memory"));
    }
    let deadline = Instant::now() + TIME;
    let mut largest: Option<(i32, i32, Mapping)> = None;
    let mut refused = None;
    // By size only: of a server's hundred workers, only the one with the largest heap is walked.
    for pid in served {
        if Instant::now() > deadline {
            return Err(out_of_time());
        }
        let thread = proc.living_thread(pid);
        match proc.maps(thread, |m| m.path == b"[heap]") {
            Ok(found) => {
                let heap = found.mappings.into_iter().next();
                let size = |m: &Mapping| m.end - m.start;
                if let Some(heap) = heap
                    && largest.as_ref().is_none_or(|(.., known)| size(known) < size(&heap))
                {
                    largest = Some((pid, thread, heap));
                }
            }
            Err(absence) => refused = Some(absence),
        }
    }
    match (largest, refused) {
        (Some((pid, thread, heap)), _) => walk_one(proc, pid, thread, &heap, deadline),
        (None, Some(absence)) => Err(absence),
        (None, None) => {
            Err(Absence::new(Reason::NotFound, "the target has no [heap]: it never grew its heap with brk"))
        }
    }
}

fn out_of_time() -> Absence {
    Absence::new(Reason::TooCostly, format!("glibc's heap could not be read within {} ms", TIME.as_millis()))
}

/// `thread`: a living thread of the process.
fn walk_one(proc: &ProcFs, pid: i32, thread: i32, heap: &Mapping, deadline: Instant) -> Measured<HeapView> {
    let mut memory = Memory::open(proc, thread, deadline, BYTES_WALKED)?;
    let resident_bytes = memory.pages(heap.start, heap.end)?.count() * PAGE;
    let chain = walk_chain(heap.start, heap.end, &mut |address| {
        memory.ahead(address);
        memory.word(address)
    });
    let covered = (chain.walked as f64 / (heap.end - heap.start) as f64).min(1.0);
    if covered < LEAST_COVERED {
        let changed =
            || Absence::new(Reason::TooLittle, "glibc's heap changed too fast to be read from outside");
        return Err(memory.over().unwrap_or_else(changed));
    }
    let mapped_bytes = heap.end - heap.start;
    // The part that was not reached is unknown: it widens the interval, and the point assumes that it is like
    // the rest.
    let unseen = mapped_bytes.saturating_sub(chain.walked) as f64;
    let interval = |seen: u64| Interval::new(seen as f64, seen as f64 / covered, seen as f64 + unseen);
    Ok(HeapView {
        method: format!("[heap] of {pid}: chain of chunk headers, {:.0} % walked", covered * 100.0),
        mapped_bytes,
        resident_bytes,
        live_bytes: interval(chain.live),
        free_bytes: interval(chain.free),
    })
}

pub(crate) struct Chain {
    pub live: u64,
    pub free: u64,
    /// Bytes from the start of the heap to the end of the walk.
    pub walked: u64,
}

pub(crate) fn walk_chain(start: u64, end: u64, word: &mut dyn FnMut(u64) -> Option<u64>) -> Chain {
    let mut chain = Chain { live: 0, free: 0, walked: 0 };
    let mut chunk = start;
    let mut size = match word(chunk + 8) {
        Some(header) => header & !7,
        None => return chain,
    };
    loop {
        let sound = size >= SMALLEST_CHUNK && size % 16 == 0 && size <= end - chunk;
        if !sound {
            return chain;
        }
        let next = chunk + size;
        if next + 16 > end {
            // The top chunk: free, and the end of the heap.
            chain.free += size;
            chain.walked = end - start;
            return chain;
        }
        let Some(header) = word(next + 8) else {
            return chain;
        };
        if header & 1 == 1 {
            chain.live += size;
        } else {
            chain.free += size;
        }
        chain.walked = next - start;
        chunk = next;
        size = header & !7;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Chunks with these sizes and uses; the last one is the top chunk.
    fn heap(chunks: &[(u64, bool)]) -> (u64, u64, Vec<u64>) {
        let total: u64 = chunks.iter().map(|c| c.0).sum();
        let mut words = vec![0u64; (total / 8) as usize];
        let (mut at, mut previous_used) = (0u64, true);
        for &(size, used) in chunks {
            words[(at / 8 + 1) as usize] = size | u64::from(previous_used);
            at += size;
            previous_used = used;
        }
        (0x1000, 0x1000 + total, words)
    }

    fn walked(chunks: &[(u64, bool)]) -> Chain {
        let (start, end, words) = heap(chunks);
        walk_chain(start, end, &mut |address| words.get(((address - start) / 8) as usize).copied())
    }

    #[test]
    fn used_and_free_chunks_are_distinguished() {
        let chain = walked(&[(64, true), (128, false), (32, true), (4096, false)]);
        assert_eq!((chain.live, chain.free), (96, 128 + 4096));
        assert_eq!(chain.walked, 64 + 128 + 32 + 4096);
    }

    #[test]
    fn an_inconsistent_chain_ends_the_walk() {
        for bad in [0u64, 8, 24, 40, 1 << 40, u64::MAX] {
            let (start, end, mut words) = heap(&[(64, true), (128, true), (4096, false)]);
            words[64 / 8 + 1] = bad;
            let chain = walk_chain(start, end, &mut |a| words.get(((a - start) / 8) as usize).copied());
            assert!(chain.walked <= 64, "{bad}");
        }
    }

    #[test]
    fn absent_pages_end_the_walk() {
        let (start, end, words) = heap(&[(64, true), (128, true), (4096, false)]);
        let chain =
            walk_chain(start, end, &mut |a| (a < start + 70).then(|| words[((a - start) / 8) as usize]));
        assert_eq!(chain.walked, 0);
    }
}
