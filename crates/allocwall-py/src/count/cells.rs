//! The data of a count: sums by domain and size class.

/// In the order of CPython's `PyMemAllocatorDomain`.
pub(super) const DOMAINS: [&str; 3] = ["raw", "mem", "obj"];

/// pymalloc's largest block (Objects/obmalloc.c, `SMALL_REQUEST_THRESHOLD`); its classes are 16 bytes apart.
const SMALL: usize = 512;
const SMALL_CLASSES: usize = SMALL / 16;
/// 16, 32, ... 512, then powers of two to 2^48: no process has a larger block.
pub(super) const CLASSES: usize = SMALL_CLASSES + 39;

/// The class of a request for 1 to 512 bytes.
#[inline(always)]
pub(super) fn small_class(size: usize) -> Option<usize> {
    let below = size.wrapping_sub(1);
    (below < SMALL).then_some(below >> 4)
}

/// A request for 0 bytes is in the lowest class.
#[inline(always)]
pub(super) fn class_of(size: usize) -> usize {
    small_class(size).unwrap_or_else(|| {
        let bits = (usize::BITS - size.saturating_sub(1).leading_zeros()) as usize;
        // 512 to 1023 has ten bits.
        if size == 0 { 0 } else { (SMALL_CLASSES + bits - 10).min(CLASSES - 1) }
    })
}

/// A class's largest size, in bytes.
pub(super) fn largest(class: usize) -> usize {
    if class < SMALL_CLASSES { (class + 1) * 16 } else { (2 * SMALL) << (class - SMALL_CLASSES) }
}

/// The bytes that were allocated in the count and are not freed yet, and their maximum.
///
/// Stored as the maximum and the distance to it. So a free adds to one number, and an allocation subtracts from it; its
/// sign tells whether there is a new maximum.
#[derive(Clone, Copy, Default)]
pub(super) struct Level {
    peak: i64,
    below: i64,
}

impl Level {
    const NONE: Level = Level { peak: 0, below: 0 };

    pub(super) fn live(&self) -> i64 {
        self.peak - self.below
    }

    pub(super) fn peak(&self) -> i64 {
        self.peak
    }

    #[inline(always)]
    fn rise(&mut self, size: usize) {
        self.below -= size as i64;
        if self.below < 0 {
            self.peak -= self.below;
            self.below = 0;
        }
    }

    #[inline(always)]
    fn fall(&mut self, size: usize) {
        self.below += size as i64;
    }

    /// Adds the live bytes, and takes the higher peak: the sum of the live bytes may exceed it.
    fn add(&mut self, other: Level) {
        let live = self.live() + other.live();
        self.peak = self.peak.max(other.peak);
        self.below = self.peak - live;
    }
}

#[derive(Clone, Copy, Default)]
pub(super) struct Cell {
    /// Requests that returned memory: malloc, calloc and realloc.
    pub(super) calls: u64,
    /// The calls that resized memory, in the class of the new size.
    pub(super) reallocs: u64,
    /// Frees of memory that was allocated in the count.
    pub(super) frees: u64,
    /// The requested bytes; for a realloc, the full new size.
    pub(super) bytes: u64,
    pub(super) level: Level,
}

#[derive(Clone, Copy)]
pub(super) struct Domain {
    /// Frees of memory that was not allocated in the count; its size is unknown.
    pub(super) older_frees: u64,
    pub(super) level: Level,
    pub(super) cells: [Cell; CLASSES],
}

#[derive(Clone, Copy)]
pub(super) struct Cells {
    pub(super) level: Level,
    pub(super) domains: [Domain; DOMAINS.len()],
}

impl Cells {
    pub(super) const NONE: Cells = Cells {
        level: Level::NONE,
        domains: [Domain {
            older_frees: 0,
            level: Level::NONE,
            cells: [Cell { calls: 0, reallocs: 0, frees: 0, bytes: 0, level: Level::NONE }; CLASSES],
        }; DOMAINS.len()],
    };

    #[inline(always)]
    pub(super) fn allocated(&mut self, domain: usize, class: usize, size: usize) {
        self.level.rise(size);
        let domain = &mut self.domains[domain];
        domain.level.rise(size);
        let cell = &mut domain.cells[class];
        cell.calls += 1;
        cell.bytes += size as u64;
        cell.level.rise(size);
    }

    /// `gone` has already subtracted the old block, if it was allocated in the count.
    pub(super) fn reallocated(&mut self, domain: usize, class: usize, size: usize) {
        self.allocated(domain, class, size);
        self.domains[domain].cells[class].reallocs += 1;
    }

    #[inline(always)]
    pub(super) fn freed(&mut self, domain: usize, class: usize, size: usize) {
        self.gone(domain, class, size);
        self.domains[domain].cells[class].frees += 1;
    }

    pub(super) fn freed_older(&mut self, domain: usize) {
        self.domains[domain].older_frees += 1;
    }

    /// Subtracts a block that was allocated in the count.
    #[inline(always)]
    pub(super) fn gone(&mut self, domain: usize, class: usize, size: usize) {
        self.level.fall(size);
        let domain = &mut self.domains[domain];
        domain.level.fall(size);
        domain.cells[class].level.fall(size);
    }

    /// Adds the sums, and takes the higher peaks.
    pub(super) fn add(&mut self, other: &Cells) {
        self.level.add(other.level);
        for (domain, other) in self.domains.iter_mut().zip(&other.domains) {
            domain.older_frees += other.older_frees;
            domain.level.add(other.level);
            for (cell, other) in domain.cells.iter_mut().zip(&other.cells) {
                cell.calls += other.calls;
                cell.reallocs += other.reallocs;
                cell.frees += other.frees;
                cell.bytes += other.bytes;
                cell.level.add(other.level);
            }
        }
    }
}
