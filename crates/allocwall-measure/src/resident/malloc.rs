//! Live and free memory of glibc's malloc, from the headers of its chunks (malloc/malloc.c, "Malloc_chunk details").
//!
//! The chunks of a heap follow one another. Each starts with a word that is its size; the lowest bit says whether the
//! chunk before it is in use. By default, windows spread over the resident pages are read. In each, the first chunk is
//! where eight sound chunks follow one another. The target runs on meanwhile: where the chain breaks, the next eight are
//! searched for.

use super::pages::{Pages, Words};
use super::ratio::Ratio;
use crate::memory_kinds::{ARENA, PAGE};
use allocwall_model::resident::Split;
use allocwall_model::units::{Absence, Interval, Measured, Reason};
use std::collections::BTreeSet;

/// Offsets in `struct malloc_state`, since glibc 2.27, and its size.
const TOP: u64 = 0x60;
const BINS: u64 = 0x70;
const NEXT: u64 = 0x870;
const STATE: u64 = 2200;
const BIN_PAIRS: u64 = 127;
/// So many bins are always empty: an empty one points to itself.
const EMPTY_BINS: usize = 20;
/// The bins that can have the largest chunks: unsorted ones, and those above 512 KiB (`largebin_index_64`), the longest
/// first.
const UNSORTED: u64 = 1;
const LARGEST_BIN: u64 = 126;
/// How many chunks of these bins are read: of the main arena, and of all arenas of threads together.
pub const LISTED: usize = 4096;
pub const LISTED_OF_THREADS: usize = 16 << 10;
/// The most long free chunks of one heap of a thread's arena: all that fit in it.
const MOST_IN_HEAP: usize = (ARENA / LOOK_AHEAD) as usize;

/// Flags in the size of a chunk.
const BEFORE_IN_USE: u64 = 1;
const IS_MMAPPED: u64 = 2;
const NON_MAIN_ARENA: u64 = 4;
const FLAGS: u64 = 7;
const SMALLEST: u64 = 32;
/// The end of a heap that has a successor: a header alone.
const FENCEPOST: u64 = 16;
/// `struct malloc_chunk`: what malloc_trim leaves at the start of a free chunk.
const CHUNK_FIELDS: u64 = 48;
/// The largest chunk of a thread cache, unless a tunable makes it larger.
const LARGEST_CACHED: u64 = 1040;
/// The largest chunk of a fast bin.
const LARGEST_FAST: u64 = 128;

const IN_A_ROW: usize = 8;
const FEW_AT_THE_END: usize = 3;
/// How far before the end of the first chunk smaller chunks are searched for.
const FALSE_HEADER_SEARCH: u64 = 64 << 10;
/// How far behind a window the next chunk is searched for.
const LOOK_AHEAD: u64 = 1 << 20;
const WINDOWS: u64 = 200;
const WINDOW_PAGES: u64 = 16;
/// The order of the windows. It has no common divisor with their number, so those that were read before the time is over
/// are spread over the heap.
const WINDOW_STEP: u64 = 89;
/// How many links of fast bins are followed to the next chunk.
const LINKS_FOLLOWED: u32 = 2000;
/// With more words that can be the key of thread caches, a word of the program's own could be one of them.
const MOST_KEYS: usize = 4096;

/// Where the top chunk of a heap is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Top {
    At {
        start: u64,
        end: u64,
    },
    /// In another heap: chunks fill this one.
    Elsewhere,
    /// The arena says that it is here, but its header is not sound: it changed meanwhile, or the arena has another layout.
    Unknown,
}

/// An arena: `struct malloc_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arena {
    pub address: u64,
    /// Its last chunk, which is free.
    pub top: u64,
}

impl Arena {
    pub fn at(address: u64, words: &mut dyn Words) -> Option<Arena> {
        Some(Arena { address, top: words.word(address + TOP)? })
    }

    /// The top chunk, if it is in the heap with chunks from `first` on, up to `limit`. In an arena of a thread it ends
    /// where the heap does. In the main heap it ends at a page, before memory that the program itself got from brk.
    pub fn top_within(&self, first: u64, limit: u64, of_thread: bool, words: &mut dyn Words) -> Top {
        let start = self.top;
        if !(first..limit).contains(&start) {
            return Top::Elsewhere;
        }
        let Some(header) = words.word(start + 8) else {
            return Top::Unknown;
        };
        let size = header & !FLAGS;
        let end = start.saturating_add(size);
        let sound = start.is_multiple_of(16)
            && size >= SMALLEST
            && header & BEFORE_IN_USE != 0
            && if of_thread { end == limit } else { end.is_multiple_of(PAGE) };
        // The main heap may have grown since its end was read.
        if sound { Top::At { start, end: end.min(limit) } } else { Top::Unknown }
    }

    /// Where the first chunk of a thread's arena is, in the heap that contains the arena itself.
    pub fn first_chunk(address: u64) -> u64 {
        (address + STATE).next_multiple_of(16)
    }
}

/// `main_arena`, in the writable memory of the C library. It needs no symbols: most of its bins are empty, and arenas
/// form a ring. Both are needed: by the bins alone, an address 16 bytes lower fits too.
pub fn main_arena(start: u64, end: u64, words: &mut dyn Words) -> Option<Arena> {
    let mut at = start.next_multiple_of(16);
    while at + STATE <= end && !(at.is_multiple_of(PAGE) && words.late()) {
        words.ahead(at + NEXT);
        if is_main_arena(at, words) {
            return Arena::at(at, words);
        }
        at += 16;
    }
    None
}

fn is_main_arena(at: u64, words: &mut dyn Words) -> bool {
    let Some(next) = words.word(at + NEXT) else {
        return false;
    };
    let base = next & !(ARENA - 1);
    let is_ring =
        next == at || base != 0 && matches!(next - base, 0x20 | 0x30) && words.word(base) == Some(next);
    if !is_ring {
        return false;
    }
    let empty = |pair: &u64| {
        let (slot, own) = (at + BINS + pair * 16, at + TOP + pair * 16);
        words.word(slot) == Some(own) && words.word(slot + 8) == Some(own)
    };
    (0..BIN_PAIRS).filter(empty).count() >= EMPTY_BINS
}

/// Free chunks that are longer than [`LOOK_AHEAD`], by address. A window can be within one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Largest {
    pub chunks: Vec<(u64, u64)>,
    /// All of them are known.
    pub complete: bool,
}

impl Largest {
    /// `left`: how many chunks may still be read.
    pub fn of(arena: &Arena, left: &mut usize, words: &mut dyn Words) -> Largest {
        let mut largest = Largest { chunks: Vec::new(), complete: true };
        for bin in [UNSORTED, LARGEST_BIN] {
            // A bin has the form of a chunk that is the head of its list.
            let list = arena.address + TOP + (bin - 1) * 16;
            let mut next = words.word(list + 16);
            while next != Some(list) {
                let Some(at) = next.filter(|at| at >> 56 == 0 && *left > 0 && !words.late()) else {
                    largest.complete = false;
                    break;
                };
                *left -= 1;
                let size = words.word(at + 8).map_or(0, |header| header & !FLAGS);
                if size > LOOK_AHEAD && size >> 56 == 0 {
                    largest.chunks.push((at, at + size));
                } else if bin == LARGEST_BIN {
                    // The others are not longer. A chunk without a size is not sound.
                    largest.complete &= (SMALLEST..=LOOK_AHEAD).contains(&size);
                    break;
                }
                next = words.word(at + 16);
            }
        }
        largest.chunks.sort_unstable();
        largest
    }

    /// Those of one heap.
    pub fn within(&self, base: u64, limit: u64) -> Largest {
        let first = self.chunks.partition_point(|(start, _)| *start < base);
        let starting = self.chunks[first..].iter().take_while(|(start, _)| *start < limit);
        let mut chunks: Vec<(u64, u64)> =
            starting.filter(|(_, end)| *end <= limit).take(MOST_IN_HEAP + 1).copied().collect();
        let complete = self.complete && chunks.len() <= MOST_IN_HEAP;
        chunks.truncate(MOST_IN_HEAP);
        Largest { chunks, complete }
    }

    fn with(&self, at: u64) -> Option<(u64, u64)> {
        let behind = self.chunks.partition_point(|(start, _)| *start <= at);
        self.chunks.get(behind.checked_sub(1)?).copied().filter(|(_, end)| at < *end)
    }
}

/// How free chunks of thread caches and fast bins are recognised: malloc counts them as in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// Words of the C library's data that can be `tcache_key`: since glibc 2.34 a random number, in every chunk of a
    /// thread cache. Sorted.
    keys: Vec<u64>,
}

impl Marks {
    /// `data`: the writable memory of the C library.
    ///
    /// # Errors
    /// There is no key, or it can't be distinguished from the rest.
    pub fn find(data: &[(u64, u64)], words: &mut dyn Words) -> Measured<Marks> {
        let mut keys = BTreeSet::new();
        for &(start, end) in data {
            let mut at = start.next_multiple_of(8);
            while at + 8 <= end && !(at.is_multiple_of(PAGE) && words.late()) {
                words.ahead(at);
                keys.extend(words.word(at).filter(|word| is_random(*word)));
                if keys.len() > MOST_KEYS {
                    return Err(Absence::new(
                        Reason::TooCostly,
                        format!(
                            "more than {MOST_KEYS} words of the C library could be the key that marks them"
                        ),
                    ));
                }
                at += 8;
            }
        }
        match words.over() {
            Some(over) => Err(over),
            None if keys.is_empty() => {
                let detail = "the key that marks them was not found in the memory of the C library";
                Err(Absence::new(Reason::NotFound, detail))
            }
            None => Ok(Marks { keys: keys.into_iter().collect() }),
        }
    }

    pub fn known(&self) -> bool {
        !self.keys.is_empty()
    }
}

/// Not a pointer of a program, and not a small number of either sign.
fn is_random(word: u64) -> bool {
    word >> 47 != 0 && word >> 32 != 0xffff_ffff && (12..=52).contains(&word.count_ones())
}

/// A heap: chunks, and then the top chunk.
#[derive(Clone, Debug)]
pub struct Area {
    /// The first chunk.
    pub first: u64,
    /// The end of the chunks, and the start of the top chunk.
    pub end: u64,
    /// The end of the top chunk. Memory behind it is not malloc's.
    pub limit: u64,
    /// The top chunk is where `end` says. If not, the last chunk that reaches `end` counts as the top chunk.
    pub has_top: bool,
    /// It belongs to a thread's arena.
    pub of_thread: bool,
    /// From the first page of the heap to its end.
    pub pages: Pages,
    pub largest: Largest,
}

impl Area {
    /// `limit`: the end of the heap.
    pub fn new(
        first: u64,
        limit: u64,
        top: Top,
        of_thread: bool,
        pages: Pages,
        mut largest: Largest,
    ) -> Area {
        let (end, limit, has_top) = match top {
            Top::At { start, end } => (start, end, true),
            Top::Elsewhere | Top::Unknown => (limit, limit, false),
        };
        // What is long and in no list can be the top chunk.
        largest.complete &= top != Top::Unknown;
        Area { first, end, limit, has_top, of_thread, pages, largest }
    }
}

/// The links of fast bins that were followed to the next chunk.
#[derive(Clone, Copy, Debug, Default)]
pub struct Links {
    followed: u32,
    right: u32,
}

/// Resident bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub live: u64,
    pub free: u64,
    /// Part of `free`: in thread caches and fast bins.
    pub cached: u64,
    /// Part of `free`: whole pages.
    pub trimmable: u64,
    /// In chunks whose header was not found.
    pub unknown: u64,
}

impl Tally {
    fn known(&self) -> u64 {
        self.live + self.free
    }
}

pub struct Walk<'a> {
    pub area: &'a Area,
    pub marks: &'a Marks,
    pub words: &'a mut dyn Words,
    pub links: &'a mut Links,
}

/// A chunk that is sound.
struct Chunk {
    size: u64,
    used: bool,
}

impl Walk<'_> {
    /// What the resident bytes of a range belong to.
    pub fn tally(&mut self, from: u64, to: u64) -> Tally {
        let to = to.min(self.area.end);
        let mut at = from.max(self.area.first);
        let mut chunk = (at == self.area.first).then_some(at);
        let mut tally = Tally::default();
        while at < to {
            if self.words.late() {
                tally.unknown += self.area.pages.bytes(at, to);
                break;
            }
            if chunk.is_none()
                && let Some((start, end)) = self.area.largest.with(at)
            {
                self.count(start, end - start, false, (at, to), &mut tally);
                at = end;
                chunk = Some(end);
                continue;
            }
            let start = match chunk.take() {
                Some(chunk) => chunk,
                None => match self.lead(at, to, &mut tally) {
                    Some(chunk) => chunk,
                    None => break,
                },
            };
            at = self.chain(start, to, &mut tally);
            // It broke at a chunk that is not sound: it changed meanwhile, or the heap has a gap.
            at += SMALLEST / 2;
        }
        tally
    }

    /// Counts chunks from this one on. Returns where the chain broke, or where it left the range.
    fn chain(&mut self, mut chunk: u64, to: u64, tally: &mut Tally) -> u64 {
        while chunk < to {
            self.words.ahead(chunk + 8);
            let Some(Chunk { size, used }) = self.chunk(chunk) else {
                return chunk;
            };
            self.count(chunk, size, used, (chunk, to), tally);
            chunk += size;
        }
        chunk
    }

    /// Finds the first chunk of a range, and counts what is before it. None if there is none in the range.
    fn lead(&mut self, at: u64, to: u64, tally: &mut Tally) -> Option<u64> {
        let area = self.area;
        let reach = to.saturating_add(LOOK_AHEAD).min(area.end);
        let found = self.first_sound(at, reach);
        if self.words.late() {
            tally.unknown += area.pages.bytes(at, to);
            return None;
        }
        let Some(next) = found.or((reach == area.end && area.has_top).then_some(area.end)) else {
            // It is in a chunk that is longer than what was searched. If it were free, it would be known.
            let bytes = area.pages.bytes(at, to);
            if area.largest.complete && reach < area.end {
                tally.live += bytes;
            } else {
                tally.unknown += bytes;
            }
            return None;
        };
        let before = (at, next.min(to));
        if next - at <= LARGEST_CACHED {
            // Whether it is in a cache is in its first words: small chunks that start before the range are left out.
            return found.filter(|chunk| *chunk < to);
        }
        match self.words.word(next + 8) {
            Some(header) if header & BEFORE_IN_USE == 0 => {
                // A free chunk has its size at its end too, and one in use before it.
                let sound =
                    |size: &u64| size.is_multiple_of(16) && (SMALLEST..=next - area.first).contains(size);
                match self.words.word(next).filter(sound) {
                    Some(size) => {
                        let start = next - size;
                        self.count(start, size, false, before, tally);
                        if start.saturating_sub(at) > LARGEST_CACHED {
                            tally.live += area.pages.bytes(at, start.min(to));
                        }
                    }
                    None => tally.unknown += area.pages.bytes(before.0, before.1),
                }
            }
            Some(_) => tally.live += area.pages.bytes(before.0, before.1),
            None => tally.unknown += area.pages.bytes(before.0, before.1),
        }
        found.filter(|chunk| *chunk < to)
    }

    /// The first address of a range where sound chunks follow one another.
    fn first_sound(&mut self, from: u64, to: u64) -> Option<u64> {
        let mut at = from.next_multiple_of(16);
        loop {
            // The size is the second word.
            let readable = self.area.pages.next(at + 8)?;
            if readable != at + 8 {
                at = readable.next_multiple_of(16);
            }
            if at >= to || at.is_multiple_of(PAGE) && self.words.late() {
                return None;
            }
            self.words.ahead(at + 8);
            if self.is_chain(at) {
                if self.words.late() {
                    return None;
                }
                if !self.contains_chunks(at) {
                    return Some(at);
                }
            }
            at += 16;
        }
    }

    /// Whether smaller chunks lead to the end of this one: then its header is a number in a program's data that by chance
    /// leads to a real chunk, and all that follow are real too.
    fn contains_chunks(&mut self, start: u64) -> bool {
        let Some(chunk) = self.chunk(start) else {
            return false;
        };
        let end = start + chunk.size;
        let first = (start + 16).max(end.saturating_sub(FALSE_HEADER_SEARCH));
        self.words.ahead(first);
        // The nearest first: they are small where such numbers matter.
        (1..=(end - first) / 16).any(|nth| self.leads_to(end - nth * 16, end))
    }

    /// Whether a few sound chunks from `at` on end exactly there.
    fn leads_to(&mut self, mut at: u64, end: u64) -> bool {
        for nth in 0..IN_A_ROW {
            match self.chunk(at) {
                Some(chunk) if at + chunk.size < end => at += chunk.size,
                Some(chunk) => return at + chunk.size == end && nth + 1 >= FEW_AT_THE_END,
                None => return false,
            }
        }
        false
    }

    fn is_chain(&mut self, start: u64) -> bool {
        let mut at = start;
        for nth in 0..IN_A_ROW {
            if at == self.area.end {
                return nth >= FEW_AT_THE_END;
            }
            match self.chunk(at) {
                Some(chunk) => at += chunk.size,
                None => {
                    let is_fence = |header: u64| header & !FLAGS == FENCEPOST;
                    return nth >= FEW_AT_THE_END && self.words.word(at + 8).is_some_and(is_fence);
                }
            }
        }
        true
    }

    /// The chunk at an address before the end of the area; None if it is not sound.
    fn chunk(&mut self, at: u64) -> Option<Chunk> {
        let area = self.area;
        let header = self.words.word(at + 8)?;
        let size = header & !FLAGS;
        let sound = size >= SMALLEST
            && size.is_multiple_of(16)
            && size <= area.end - at
            && header & IS_MMAPPED == 0
            && (area.of_thread || header & NON_MAIN_ARENA == 0);
        if !sound {
            return None;
        }
        let next = at + size;
        if next == area.end && !area.has_top {
            return Some(Chunk { size, used: false });
        }
        let used = self.words.word(next + 8)? & BEFORE_IN_USE == 1;
        let fits = if used {
            // Chunks in use say whose they are; free ones don't.
            !area.of_thread || header & NON_MAIN_ARENA != 0
        } else {
            // A free chunk has its size at its end too, and no free chunk before it: they would be merged.
            self.words.word(next)? == size && header & BEFORE_IN_USE == 1
        };
        fits.then_some(Chunk { size, used })
    }

    /// Counts the part of a chunk that is in a range.
    fn count(&mut self, chunk: u64, size: u64, used: bool, range: (u64, u64), tally: &mut Tally) {
        let area = self.area;
        let pages = &area.pages;
        let (from, to) = (chunk.max(range.0), (chunk + size).min(range.1));
        let bytes = pages.bytes(from, to);
        if used {
            if self.is_cached(chunk, size) {
                tally.cached += bytes;
                tally.free += bytes;
            } else {
                tally.live += bytes;
            }
            return;
        }
        tally.free += bytes;
        // mtrim in malloc/malloc.c.
        let first = (chunk + CHUNK_FIELDS).next_multiple_of(PAGE).max(from.next_multiple_of(PAGE));
        tally.trimmable += pages.bytes(first, to & !(PAGE - 1));
    }

    /// Whether a chunk that counts as in use is free: in a thread cache or a fast bin. Their links are xored with the
    /// place (PROTECT_PTR, since glibc 2.32).
    fn is_cached(&mut self, chunk: u64, size: u64) -> bool {
        if !self.marks.known() {
            return false;
        }
        let place = chunk + 16;
        let Some(link) = self.words.word(place) else {
            return false;
        };
        let next = link ^ (place >> 12);
        if !next.is_multiple_of(16) {
            return false;
        }
        if let Some(key) = self.words.word(chunk + 24)
            && self.marks.keys.binary_search(&key).is_ok()
        {
            return next >> 47 == 0;
        }
        if size > LARGEST_FAST {
            return false;
        }
        if next == 0 {
            return true;
        }
        if next < self.area.first || next >= self.area.end {
            return false;
        }
        if self.links.followed >= LINKS_FOLLOWED {
            // As most of those that were followed.
            return 2 * self.links.right > self.links.followed;
        }
        let right = self.words.word(next + 8).is_some_and(|header| header & !FLAGS == size);
        self.links.followed += 1;
        self.links.right += u32::from(right);
        right
    }
}

/// How much of the heaps is live and free. `whole`: every chunk is read. `held`: resident bytes of all heaps by the
/// kernel's account. `complete`: `areas` are all of these heaps.
pub fn split(
    areas: &[Area],
    marks: &Marks,
    whole: bool,
    held: u64,
    complete: bool,
    words: &mut dyn Words,
) -> Measured<Split> {
    let mut links = Links::default();
    let chunk_pages: Vec<u64> =
        areas.iter().map(|area| area.pages.count_within(area.first, area.end)).collect();
    let all: u64 = chunk_pages.iter().sum();
    let whole = whole || all <= WINDOWS * WINDOW_PAGES;
    let mut tallies = Vec::new();
    if whole {
        for area in areas {
            let mut walk = Walk { area, marks, words: &mut *words, links: &mut links };
            tallies.push(walk.tally(area.first, area.end));
        }
    } else {
        for nth in 0..WINDOWS {
            if words.late() {
                break;
            }
            let window = nth * WINDOW_STEP % WINDOWS;
            // In the middle of each of the parts, by the number of the page.
            let mut page = (2 * window + 1) * all / (2 * WINDOWS);
            for (area, pages) in areas.iter().zip(&chunk_pages) {
                if page < *pages {
                    if let Some((from, to)) = area.pages.run(page, WINDOW_PAGES) {
                        let mut walk = Walk { area, marks, words: &mut *words, links: &mut links };
                        tallies.push(walk.tally(from, to));
                    }
                    break;
                }
                page -= pages;
            }
        }
    }
    let method = if whole {
        "every chunk was read".to_owned()
    } else {
        format!("{} parts of {} KiB were read", tallies.len(), (WINDOW_PAGES * PAGE) >> 10)
    };
    let unfinished = words.over();
    match divided(areas, &tallies, whole, held, complete) {
        Ok(split) => Ok(Split { method, unfinished, ..split }),
        Err(absence) => Err(unfinished.unwrap_or(absence)),
    }
}

/// From what was read to what is there.
fn divided(areas: &[Area], tallies: &[Tally], whole: bool, held: u64, complete: bool) -> Measured<Split> {
    let sum = |of: &dyn Fn(&Area) -> u64| areas.iter().map(of).sum::<u64>() as f64;
    let resident = sum(&|area| area.pages.bytes(0, u64::MAX));
    let held = held as f64;
    if resident <= 0.0 && held > 0.0 {
        return Err(Absence::new(
            Reason::TooLittle,
            "none of its pages was resident any more when its chunks were read",
        ));
    }
    let chunks = sum(&|area| area.pages.bytes(area.first, area.end));
    let top = sum(&|area| if area.has_top { area.pages.bytes(area.end, area.limit) } else { 0 });
    let top_pages = |area: &Area| {
        let first = (area.end + CHUNK_FIELDS).next_multiple_of(PAGE);
        if area.has_top { area.pages.bytes(first, area.limit) } else { 0 }
    };
    // malloc_trim shortens the main heap, and leaves the top chunk of other arenas as it is. A free shortens all of them
    // (systrim, heap_trim).
    let trimmed = sum(&|area| if area.of_thread { 0 } else { top_pages(area) });
    let tops = sum(&top_pages);
    let (mut free, mut cached, mut trimmable) = (Ratio::default(), Ratio::default(), Ratio::default());
    let mut unknown = 0.0;
    for tally in tallies {
        unknown += tally.unknown as f64;
        free.add(tally.known(), tally.free);
        cached.add(tally.known(), tally.cached);
        trimmable.add(tally.known(), tally.trimmable);
    }
    let known = free.whole();
    if known <= 0.0 && chunks > 0.0 {
        return Err(Absence::new(
            Reason::TooLittle,
            "no chain of chunks was found: the heap changed too fast, or this version of malloc has another layout",
        ));
    }
    // Small parts at the start of windows are not counted, so it is a little below 1 for a whole heap.
    let seen = if whole { 1.0 } else { known / chunks };
    let unknown = if known + unknown > 0.0 { unknown / (known + unknown) } else { 0.0 };
    // What the kernel counts is what the pages are scaled to: pages came and went between the two readings.
    let scale = if resident > 0.0 { held / resident } else { 0.0 };
    // Of heaps that were not read, all is possible.
    let missing = if complete || held <= 0.0 { 0.0 } else { (1.0 - resident / held).max(0.0) };
    let present = 1.0 - missing;
    let bytes = |ratio: Ratio, certain: f64| {
        let (point, half) = (ratio.point(), ratio.half_width(seen));
        let low = (point - half).max(0.0) * (1.0 - unknown);
        let high = (point + half).min(1.0) * (1.0 - unknown) + unknown;
        let scaled = |share: f64| (chunks * share + certain) * scale;
        Interval::new(scaled(low) * present, scaled(point), scaled(high) * present + held * missing)
    };
    let free = bytes(free, top);
    let rest = |bytes: f64| (held - bytes).max(0.0);
    let live = Interval::new(rest(free.high), rest(free.point), rest(free.low));
    Ok(Split {
        live_bytes: live,
        free_bytes: free,
        cached_bytes: bytes(cached, 0.0),
        trimmable_bytes: bytes(trimmable, trimmed),
        top_bytes: Interval::new(
            tops * scale * present,
            tops * scale,
            tops * scale * present + held * missing,
        ),
        method: String::new(),
        unfinished: None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::pages::{Few, Made};
    use super::*;
    use std::collections::BTreeMap;

    const START: u64 = 0x5555_0000_0000;
    const KEY: u64 = 0x9e37_79b9_7f4a_7c15;

    #[derive(Clone, Copy, PartialEq)]
    enum Use {
        Live,
        Free,
        /// In a thread cache, and in a fast bin: the last of its list.
        Cached,
        Fast,
    }
    use Use::*;

    /// Chunks with these sizes and uses, then a top chunk. All pages are resident.
    fn heap(chunks: &[(u64, Use)], top: u64) -> (Made, Area) {
        heap_of(chunks, top, 0)
    }

    /// `flags` of the chunks that are in use.
    fn heap_of(chunks: &[(u64, Use)], top: u64, flags: u64) -> (Made, Area) {
        let mut words = BTreeMap::new();
        let (mut at, mut before_used) = (START, 1);
        for &(size, usage) in chunks {
            let own = if usage == Free { 0 } else { flags };
            words.insert(at + 8, size | before_used | own);
            match usage {
                Live => {}
                Free => drop(words.insert(at + size, size)),
                Cached => {
                    words.insert(at + 16, (at + 16) >> 12);
                    words.insert(at + 24, KEY);
                }
                Fast => drop(words.insert(at + 16, (at + 16) >> 12)),
            }
            before_used = u64::from(usage != Free);
            at += size;
        }
        words.insert(at + 8, top | before_used);
        let area = Area {
            first: START,
            end: at,
            limit: at + top,
            has_top: true,
            of_thread: flags & NON_MAIN_ARENA != 0,
            pages: Pages::of(START, at + top, std::iter::repeat(true)),
            largest: Largest { chunks: vec![], complete: true },
        };
        (Made(words), area)
    }

    fn marks() -> Marks {
        Marks { keys: vec![KEY] }
    }

    fn tally(area: &Area, made: &mut Made, marks: &Marks, from: u64, to: u64) -> Tally {
        Walk { area, marks, words: made, links: &mut Links::default() }.tally(from, to)
    }

    fn of_whole(area: &Area, made: &mut Made, marks: &Marks) -> Tally {
        tally(area, made, marks, area.first, area.end)
    }

    #[test]
    fn used_and_free_chunks_are_distinguished() {
        let (mut made, area) = heap(&[(64, Live), (128, Free), (32, Live), (12288, Free), (48, Live)], 4096);
        let tally = of_whole(&area, &mut made, &marks());
        assert_eq!((tally.live, tally.free, tally.unknown), (144, 128 + 12288, 0));
        // The pages from START + 4096 to START + 12288 are free as a whole.
        assert_eq!(tally.trimmable, 2 * 4096);
    }

    #[test]
    fn only_resident_bytes_count() {
        let chunks = [(64, Live), (12288, Free), (4096, Live)];
        let (mut made, mut area) = heap(&chunks, 4096);
        // The second page went back to the system.
        area.pages = Pages::of(START, area.limit, [true, false, true, true, true]);
        let tally = of_whole(&area, &mut made, &marks());
        assert_eq!((tally.live, tally.free, tally.trimmable), (64 + 4096, 12288 - 4096, 4096));
    }

    #[test]
    fn chunks_of_caches_are_free_if_they_can_be_recognised() {
        let chunks = [(64, Live), (64, Cached), (64, Fast), (256, Fast), (2064, Cached), (64, Live)];
        let (mut made, area) = heap(&chunks, 4096);
        let tally = of_whole(&area, &mut made, &marks());
        // No fast bin has chunks of 256 bytes.
        assert_eq!((tally.cached, tally.free, tally.live), (64 + 64 + 2064, 64 + 64 + 2064, 64 + 256 + 64));
        let unmarked = of_whole(&area, &mut made, &Marks::default());
        assert_eq!((unmarked.cached, unmarked.free), (0, 0));
        // The same key, but what should be a link is data.
        made.0.insert(START + 64 + 16, 0x1234_5678);
        assert_eq!(of_whole(&area, &mut made, &marks()).cached, 64 + 2064);
    }

    #[test]
    fn a_link_of_a_fast_bin_leads_to_a_chunk_of_the_same_size() {
        let chunks = [(64, Live), (64, Fast), (64, Live), (64, Fast), (80, Live)];
        let (mut made, area) = heap(&chunks, 4096);
        let place = START + 64 + 16;
        for (target, cached) in [(START + 192, 128), (START + 256, 64), (START + 8, 64), (START - 64, 64)] {
            made.0.insert(place, target ^ (place >> 12));
            assert_eq!(of_whole(&area, &mut made, &marks()).cached, cached, "{target:x}");
        }
    }

    #[test]
    fn a_window_starts_within_a_chunk() {
        let chunks: Vec<(u64, Use)> =
            (0..40).map(|nth| (64, if nth % 2 == 0 { Live } else { Free })).collect();
        let (mut made, area) = heap(&chunks, 4096);
        let (from, to) = (START + 64 * 5 + 8, START + 64 * 25);
        let seen = tally(&area, &mut made, &marks(), from, to);
        // Chunks 6 to 24. The rest of chunk 5 is left out.
        assert_eq!((seen.live, seen.free, seen.unknown), (10 * 64, 9 * 64, 0));
        let seen = tally(&area, &mut made, &marks(), from + 64, to);
        assert_eq!((seen.live, seen.free, seen.unknown), (9 * 64, 9 * 64, 0));
    }

    #[test]
    fn a_number_that_leads_to_a_chunk_is_no_header() {
        let chunks: Vec<(u64, Use)> =
            (0..400).map(|nth| (64, if nth % 2 == 0 { Live } else { Free })).collect();
        let (mut made, area) = heap(&chunks, 4096);
        let (from, to) = (START + 64 * 6 + 16, START + 64 * 300);
        let right = tally(&area, &mut made, &marks(), from, to);
        assert_eq!((right.live, right.free), (146 * 64, 147 * 64));
        // In the data of chunk 6: as a size, it leads to chunk 207.
        made.0.insert(from + 16 + 8, (64 * 200 + 32) | BEFORE_IN_USE);
        assert_eq!(from + 16 + 64 * 200 + 32, START + 64 * 207);
        assert_eq!(tally(&area, &mut made, &marks(), from, to), right);
    }

    #[test]
    fn a_large_chunk_at_the_start_of_a_window_is_one() {
        let small = [(64, Live), (64, Free)];
        let large = [(64 * 200, Live)];
        let chunks = [&small.repeat(4)[..], &[(64, Live)], &large, &small.repeat(40)].concat();
        let (mut made, area) = heap(&chunks, 4096);
        let from = START + 64 * 9;
        // Numbers in it that are sizes, and lead nowhere.
        for nth in 1..100 {
            made.0.insert(from + nth * 128 + 8, 96 | BEFORE_IN_USE);
        }
        let seen = tally(&area, &mut made, &marks(), from, area.end);
        assert_eq!((seen.live, seen.free), (64 * 200 + 40 * 64, 40 * 64));
    }

    #[test]
    fn what_is_before_the_first_chunk_of_a_window_is_counted_once() {
        let around = [(64, Live); 10];
        let (live, free) = (8192, 4096);
        let (mut made, area) =
            heap(&[&around[..], &[(live, Live), (free, Free)], &around[..]].concat(), 4096);
        // The window starts within the live chunk.
        let (from, next) = (START + 640 + 1024, START + 640 + live + free);
        let seen = tally(&area, &mut made, &marks(), from, area.end);
        assert_eq!((seen.live, seen.free, seen.unknown), (live - 1024 + 640, free, 0));
        // The near twin: the size at the end of the free chunk is not sound.
        for wrong in [0, 24, 4104, 1 << 40, u64::MAX] {
            made.0.insert(next, wrong);
            let seen = tally(&area, &mut made, &marks(), from, area.end);
            assert_eq!((seen.free, seen.live), (0, 640), "{wrong:x}");
            assert_eq!(seen.unknown, next - from, "{wrong:x}");
        }
        // It is sound, but shorter.
        made.0.insert(next, 2048);
        let seen = tally(&area, &mut made, &marks(), from, area.end);
        assert_eq!((seen.free, seen.live, seen.unknown), (2048, next - 2048 - from + 640, 0));
    }

    #[test]
    fn a_window_within_a_long_chunk_uses_the_list_of_long_free_chunks() {
        const LONG: u64 = 4 << 20;
        let around = [(64, Live); 10];
        let chunks = |usage| [&around[..], &[(LONG, usage)], &around[..]].concat();
        let start = START + 640;
        let (from, to) = (start + (1 << 20), start + (1 << 20) + (64 << 10));
        let (mut made, mut area) = heap(&chunks(Live), 4096);
        let live = tally(&area, &mut made, &marks(), from, to);
        assert_eq!((live.live, live.free, live.unknown), (64 << 10, 0, 0));
        area.largest.complete = false;
        assert_eq!(tally(&area, &mut made, &marks(), from, to).unknown, 64 << 10);
        let (mut made, mut area) = heap(&chunks(Free), 4096);
        area.largest.chunks = vec![(start, start + LONG)];
        let free = tally(&area, &mut made, &marks(), from, to);
        assert_eq!((free.live, free.free, free.unknown), (0, 64 << 10, 0));
        // Near the end of the chunk, the next one says it.
        area.largest.chunks.clear();
        let (from, to) = (start + LONG - (128 << 10), start + LONG - (64 << 10));
        assert_eq!(tally(&area, &mut made, &marks(), from, to).free, 64 << 10);
        // A whole walk jumps over it.
        assert_eq!(of_whole(&area, &mut made, &marks()).free, LONG);
    }

    #[test]
    fn a_broken_chain_is_taken_up_again() {
        let chunks = [(64, Live); 100];
        for wrong in [0u64, 8, 24, 40, 66, 68, 1 << 40, u64::MAX] {
            let (mut made, area) = heap(&chunks, 4096);
            made.0.insert(START + 64 * 50 + 8, wrong);
            let seen = of_whole(&area, &mut made, &marks());
            assert!(seen.live >= 95 * 64 && seen.live <= 100 * 64, "{wrong:x}: {seen:?}");
            assert_eq!(seen.free, 0, "{wrong:x}");
        }
    }

    #[test]
    fn chunks_of_a_threads_arena_say_so() {
        let chunks = [(64, Live), (128, Free), (64, Live), (64, Live)];
        let (mut made, area) = heap_of(&chunks, 4096, NON_MAIN_ARENA);
        let tally = of_whole(&area, &mut made, &marks());
        assert_eq!((tally.live, tally.free), (192, 128));
        let (mut made, mut area) = heap(&chunks, 4096);
        area.of_thread = true;
        assert_eq!(of_whole(&area, &mut made, &marks()).live, 0, "chunks of the main heap");
    }

    #[test]
    fn windows_estimate_what_a_whole_walk_counts() {
        let pattern = [(976, Live), (1040, Live), (1104, Cached), (1024, Free)];
        let chunks: Vec<_> = pattern.iter().copied().cycle().take(16_000).collect();
        let (mut made, area) = heap(&chunks, 1 << 20);
        let held = area.pages.count() * PAGE;
        let areas = [area];
        let whole = split(&areas, &marks(), true, held, true, &mut made).unwrap();
        let sampled = split(&areas, &marks(), false, held, true, &mut made).unwrap();
        assert_eq!(whole.live_bytes.low, whole.live_bytes.high);
        // The rest of the last page counts as live.
        assert!((whole.live_bytes.point - 4000.0 * 2016.0).abs() < 4096.0, "{whole:?}");
        assert!((whole.cached_bytes.point - 4000.0 * 1104.0).abs() < 2.0, "{whole:?}");
        assert!(sampled.method.contains("200 parts of 64 KiB"), "{}", sampled.method);
        let (truth, seen) = (whole.live_bytes.point, sampled.live_bytes);
        assert!((seen.point - truth).abs() < 0.01 * truth, "{seen:?} {truth}");
        assert!(seen.high > seen.low && seen.high - seen.low < 0.05 * truth, "{seen:?}");
        for split in [whole, sampled] {
            assert!((split.live_bytes.point + split.free_bytes.point - held as f64).abs() < 1.0);
            // The top chunk, but for the page with its header.
            assert!(split.trimmable_bytes.point >= (1 << 20) as f64 - 2.0 * 4096.0, "{split:?}");
            assert!((split.top_bytes.point - f64::from(1 << 20)).abs() <= 2.0 * 4096.0, "{split:?}");
            assert_eq!(split.unfinished, None);
        }
    }

    /// Whole pages above the last block: of both kinds of heaps, but malloc_trim returns only those of the main heap.
    #[test]
    fn the_end_of_a_heap_is_free_memory_of_its_own() {
        for (flags, trimmed) in [(0, true), (NON_MAIN_ARENA, false)] {
            let (mut made, area) = heap_of(&[(64, Live); 64], 16 * 4096, flags);
            let held = area.pages.count() * PAGE;
            let split = split(&[area], &marks(), true, held, true, &mut made).unwrap();
            assert_eq!(split.top_bytes, Interval::exact(15.0 * 4096.0));
            assert_eq!(split.trimmable_bytes.point > 0.0, trimmed, "{split:?}");
        }
        // The near twin: the last page is in use.
        let (mut made, area) = heap(&[(64, Live); 64], 32);
        let held = area.pages.count() * PAGE;
        let split = split(&[area], &marks(), true, held, true, &mut made).unwrap();
        assert_eq!(split.top_bytes, Interval::exact(0.0));
    }

    #[test]
    fn a_heap_without_a_chain_is_an_absence() {
        let (_, area) = heap(&[(64, Live); 100], 4096);
        let areas = [area];
        let nothing = || Made(BTreeMap::new());
        let absence = split(&areas, &marks(), true, 1 << 20, true, &mut nothing()).unwrap_err();
        assert!(absence.reason == Reason::TooLittle && absence.detail.contains("no chain"), "{absence}");
        // The near twin: it has chunks, but there was no time to read them.
        let mut few = Few { made: nothing(), left: 0 };
        let absence = split(&areas, &marks(), true, 1 << 20, true, &mut few).unwrap_err();
        assert_eq!(absence.reason, Reason::TooCostly);
    }

    #[test]
    fn a_heap_that_went_away_is_an_absence_and_not_live() {
        let (mut made, mut area) = heap(&[(64, Live); 100], 4096);
        area.pages = Pages::of(START, area.limit, []);
        let areas = [area];
        let absence = split(&areas, &marks(), true, 1 << 20, true, &mut made).unwrap_err();
        assert_eq!(absence.reason, Reason::TooLittle);
        assert!(split(&areas, &marks(), true, 0, true, &mut made).is_ok(), "there is nothing to know");
    }

    /// 16.5 MB in 16,000 chunks; 51 % of the bytes are free.
    fn large() -> (Made, [Area; 1], u64) {
        let pattern = [(976, Live), (1040, Live), (1104, Cached), (1024, Free)];
        let chunks: Vec<_> = pattern.iter().copied().cycle().take(16_000).collect();
        let (made, area) = heap(&chunks, 4096);
        let held = area.pages.count() * PAGE;
        (made, [area], held)
    }

    #[test]
    fn an_estimate_that_the_time_ended_is_wider_and_says_so() {
        let (made, areas, held) = large();
        let truth = 4000.0 * 2016.0;
        let mut few = Few { made, left: 20_000 };
        let sampled = split(&areas, &marks(), false, held, true, &mut few).unwrap();
        assert!(sampled.unfinished.is_some() && !sampled.method.contains("200 parts"), "{sampled:?}");
        assert!((sampled.live_bytes.point - truth).abs() < 0.05 * truth, "{sampled:?}");
        // Of a whole walk, what was not read can be live or free.
        let (made, ..) = large();
        let mut few = Few { made, left: 20_000 };
        let whole = split(&areas, &marks(), true, held, true, &mut few).unwrap();
        assert!(whole.unfinished.is_some(), "{whole:?}");
        assert!(whole.live_bytes.low < 0.5 * truth && whole.live_bytes.high > 1.5 * truth, "{whole:?}");
    }

    #[test]
    fn of_heaps_that_were_not_read_all_is_possible() {
        let (mut made, area) = heap(&[(64, Live); 100], 4096);
        let present = area.pages.count() * PAGE;
        let areas = [area];
        let mut free = |complete| split(&areas, &marks(), true, 2 * present, complete, &mut made).unwrap();
        // The pages of all heaps are known, so the rest came meanwhile.
        let known = free(true);
        assert_eq!(known.free_bytes.low, known.free_bytes.high);
        // The near twin: as much memory in heaps that were not read.
        let unknown = free(false);
        let wide = unknown.free_bytes.high - unknown.free_bytes.low;
        assert!((wide - present as f64).abs() < 1.0, "{unknown:?}");
        assert!(unknown.live_bytes.low <= unknown.live_bytes.point);
        assert!(unknown.live_bytes.point <= unknown.live_bytes.high);
    }

    #[test]
    fn the_top_chunk_has_a_header_that_fits() {
        const LIMIT: u64 = START + 0x21000;
        let top = |at: u64, header: u64, of_thread: bool| {
            let arena = Arena { address: 0x7f00_0000_1c80, top: at };
            arena.top_within(START, LIMIT, of_thread, &mut Made(BTreeMap::from([(at + 8, header)])))
        };
        let at = START + 0x1000;
        let found = |end| Top::At { start: at, end };
        for of_thread in [false, true] {
            assert_eq!(top(at, 0x20000 | 1, of_thread), found(LIMIT));
            // The whole heap is free.
            assert_eq!(top(START, 0x21000 | 1, of_thread), Top::At { start: START, end: LIMIT });
            for header in [0, 1, 0x20000, 0x20010 | 1, 0x1fff8 | 1] {
                assert_eq!(top(at, header, of_thread), Top::Unknown, "{header:x}");
            }
            assert_eq!(top(at + 8, 0x20000 | 1, of_thread), Top::Unknown);
            assert_eq!(top(LIMIT, 0x1000 | 1, of_thread), Top::Elsewhere);
            assert_eq!(top(START - 0x1000, 0x1000 | 1, of_thread), Top::Elsewhere);
        }
        // Behind the top chunk of the main heap, the program has memory of its own; or the heap has grown.
        assert_eq!(top(at, 0x1000 | 1, false), found(at + 0x1000));
        assert_eq!(top(at, 0x40000 | 1, false), found(LIMIT));
        assert_eq!(top(at, 0x1000 | 1, true), Top::Unknown);
        assert_eq!(top(at, 0x40000 | 1, true), Top::Unknown);
    }

    #[test]
    fn memory_behind_the_top_chunk_is_not_mallocs_free_memory() {
        let (mut made, area) = heap(&[(64, Live); 64], 4096);
        let held = area.pages.count() * PAGE;
        let largest = || Largest { chunks: vec![], complete: true };
        let split_of =
            |area: Area, made: &mut Made| split(&[area], &marks(), true, held, true, made).unwrap();
        // 4096 bytes of chunks, and 4096 of the top chunk.
        let top = Top::At { start: area.end, end: area.limit };
        let all = Area::new(START, area.limit, top, false, area.pages.clone(), largest());
        assert_eq!(split_of(all, &mut made).free_bytes.point, 4096.0);
        // The near twin: half of the top chunk.
        let top = Top::At { start: area.end, end: area.end + 2048 };
        let half = Area::new(START, area.limit, top, false, area.pages.clone(), largest());
        let split = split_of(half, &mut made);
        assert_eq!((split.free_bytes.point, split.live_bytes.point), (2048.0, held as f64 - 2048.0));
        // Without a known top chunk, a long chunk in no list can be it.
        assert!(!Area::new(START, area.limit, Top::Unknown, false, area.pages, largest()).largest.complete);
    }

    /// A main arena with this number of empty bins.
    fn state(at: u64, empty: u64, next: u64) -> Made {
        let mut words = BTreeMap::from([(at + TOP, START), (at + NEXT, next)]);
        for bin in 0..BIN_PAIRS {
            let own = if bin < empty { at + TOP + bin * 16 } else { START + 64 };
            words.insert(at + BINS + bin * 16, own);
            words.insert(at + BINS + bin * 16 + 8, own);
        }
        Made(words)
    }

    #[test]
    fn the_main_arena_is_found_by_its_empty_bins_and_its_ring() {
        const DATA: u64 = 0x7f00_0000_1000;
        let at = DATA + 0xc80;
        let find = |made: &mut Made| main_arena(DATA, DATA + 0x2000, made);
        assert_eq!(find(&mut state(at, 127, at)), Some(Arena { address: at, top: START }));
        assert!(find(&mut state(at, 20, at)).is_some());
        assert_eq!(find(&mut state(at, 19, at)), None);
        assert_eq!(find(&mut state(at, 127, at - 16)), None);
        // The next arena is that of a thread, whose heap says so.
        let other = 0x7f12_4000_0030;
        let mut made = state(at, 100, other);
        assert_eq!(find(&mut made), None);
        made.0.insert(other - 0x30, other);
        assert!(find(&mut made).is_some());
        // Not whole within the memory.
        assert_eq!(main_arena(DATA, at + STATE - 8, &mut state(at, 127, at)), None);
    }

    /// The bin for the largest chunks of an arena, with these chunks.
    fn listed(arena: &Arena, bin: u64, chunks: &[(u64, u64)]) -> Made {
        let mut made = state(arena.address, 127, arena.address);
        let list = arena.address + TOP + (bin - 1) * 16;
        let mut link = list + 16;
        for &(at, size) in chunks {
            made.0.insert(link, at);
            made.0.insert(at + 8, size | 1);
            link = at + 16;
        }
        made.0.insert(link, list);
        made
    }

    #[test]
    fn long_free_chunks_are_found_in_their_bins() {
        let arena = Arena { address: 0x7f00_0000_1c80, top: START };
        let of = |made: &mut Made| Largest::of(&arena, &mut 100, made);
        let none = Largest { chunks: vec![], complete: true };
        assert_eq!(of(&mut state(arena.address, 127, arena.address)), none);
        // One long chunk and two short chunks, the longest first.
        let (long, short, last) = (START + 0x1000, START + 0x9000, START + 0xa000);
        let chunks = [(long, 8 << 20), (short, 4096), (last, 2048)];
        let expected = Largest { chunks: vec![(long, long + (8 << 20))], complete: true };
        assert_eq!(of(&mut listed(&arena, LARGEST_BIN, &chunks)), expected);
        assert_eq!(expected.with(long + 5), Some((long, long + (8 << 20))));
        assert_eq!((expected.with(long - 1), expected.with(long + (8 << 20))), (None, None));
        // The unsorted chunks have no order.
        let unsorted = [(short, 4096), (long, 8 << 20), (last, 2048)];
        assert_eq!(of(&mut listed(&arena, UNSORTED, &unsorted)), expected);
        // A ring that never comes back, and a link to nowhere.
        for link in [long, START + 0x5000, u64::MAX, 1 << 56] {
            for (bin, chunks) in [(UNSORTED, &unsorted[..]), (LARGEST_BIN, &chunks[..1])] {
                let mut made = listed(&arena, bin, chunks);
                made.0.insert(chunks[chunks.len() - 1].0 + 16, link);
                assert!(!of(&mut made).complete, "{link:x}");
            }
        }
    }

    #[test]
    fn lists_of_long_chunks_are_read_up_to_a_limit() {
        let arena = Arena { address: 0x7f00_0000_1c80, top: START };
        let chunks: Vec<(u64, u64)> = (0..50).map(|nth| (START + (nth << 24), 8 << 20)).collect();
        for (most, found, complete) in [(50, 50, true), (49, 49, false), (0, 0, false)] {
            let mut left = most;
            let largest = Largest::of(&arena, &mut left, &mut listed(&arena, LARGEST_BIN, &chunks));
            assert_eq!((largest.chunks.len(), largest.complete, left), (found, complete, 0));
        }
        // Without time, nothing is known.
        let mut few = Few { made: listed(&arena, LARGEST_BIN, &chunks), left: 10 };
        assert!(!Largest::of(&arena, &mut 100, &mut few).complete);
    }

    #[test]
    fn each_heap_has_its_own_long_chunks() {
        const HEAP: u64 = 0x7f12_4000_0000;
        let chunk = |at: u64| (HEAP + at, HEAP + at + (2 << 20));
        let all = [chunk(0x1000), chunk(ARENA + 0x1000), chunk(2 * ARENA - 0x1000), chunk(2 * ARENA)];
        let largest = Largest { chunks: all.to_vec(), complete: true };
        let of = |heap: u64| largest.within(HEAP + heap * ARENA, HEAP + (heap + 1) * ARENA);
        assert_eq!(of(0), Largest { chunks: all[..1].to_vec(), complete: true });
        // One reaches beyond the heap, so it is not sound.
        assert_eq!(of(1), Largest { chunks: all[1..2].to_vec(), complete: true });
        assert_eq!(of(2).chunks, all[3..]);
        assert!(of(3).chunks.is_empty() && of(3).complete);
        // More than fit: they overlap.
        let overlapping = |number: usize| Largest { chunks: vec![chunk(0); number], complete: true };
        assert!(overlapping(MOST_IN_HEAP).within(HEAP, HEAP + ARENA).complete);
        let cut = overlapping(MOST_IN_HEAP + 1).within(HEAP, HEAP + ARENA);
        assert_eq!((cut.chunks.len(), cut.complete), (MOST_IN_HEAP, false));
    }

    #[test]
    fn keys_are_random_numbers_of_the_librarys_data() {
        let at = START;
        let words = [(0, KEY), (8, 0x7f12_3456_7890), (16, u64::MAX - 5), (24, 12), (32, 1 << 63), (40, KEY)];
        let mut made = Made(words.iter().map(|(offset, word)| (at + offset, *word)).collect());
        assert_eq!(Marks::find(&[(at, at + 48)], &mut made), Ok(marks()));
        let absence = Marks::find(&[(at + 8, at + 40)], &mut made).unwrap_err();
        assert_eq!(absence.reason, Reason::NotFound);
        let mut few = Few { made, left: 3 };
        assert_eq!(Marks::find(&[(at, at + 48)], &mut few).unwrap_err().reason, Reason::TooCostly);
    }

    #[test]
    fn too_many_possible_keys_are_no_key() {
        let find = |number: u64, different: bool| {
            let key = |nth: u64| if different { KEY ^ (nth << 16) } else { KEY };
            let mut made = Made((0..number).map(|nth| (START + nth * 8, key(nth))).collect());
            Marks::find(&[(START, START + number * 8)], &mut made)
        };
        let most = MOST_KEYS as u64;
        assert_eq!(find(most, true).map(|marks| marks.keys.len()), Ok(MOST_KEYS));
        assert_eq!(find(most + 1, true).unwrap_err().reason, Reason::TooCostly);
        assert_eq!(find(2 * most, false), Ok(marks()));
    }

    #[test]
    fn beyond_the_limit_links_count_as_most_of_them_did() {
        let in_area = START + 64;
        let cached = |right: bool| {
            // Half of the chunks have a link to the second chunk, whose size is the same or not.
            let first = if right { (64, Live) } else { (80, Live) };
            let chunks: Vec<(u64, Use)> =
                std::iter::once(first).chain((0..3 * LINKS_FOLLOWED).map(|_| (64, Live))).collect();
            let (mut made, area) = heap(&chunks, 4096);
            let target = if right { in_area } else { START };
            let start = START + first.0;
            for nth in (1..3 * u64::from(LINKS_FOLLOWED)).step_by(2) {
                let place = start + nth * 64 + 16;
                made.0.insert(place, target ^ (place >> 12));
            }
            of_whole(&area, &mut made, &marks()).cached
        };
        assert_eq!(cached(true), u64::from(LINKS_FOLLOWED) * 3 / 2 * 64);
        assert_eq!(cached(false), 0);
    }
}
