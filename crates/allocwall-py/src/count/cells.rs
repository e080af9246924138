//! The data of a count: sums by domain and size class.

/// In the order of CPython's `PyMemAllocatorDomain`.
pub(super) const DOMAINS: [&str; 3] = ["raw", "mem", "obj"];

/// pymalloc's largest block (Objects/obmalloc.c, `SMALL_REQUEST_THRESHOLD`); its classes are 16 bytes apart.
const SMALL: usize = 512;
const SMALL_CLASSES: usize = SMALL / 16;
/// 16, 32, ... 512, then powers of two to 2^48: no process has a larger block.
pub(super) const CLASSES: usize = SMALL_CLASSES + 39;

/// A request for 0 bytes is in the lowest class.
#[inline(always)]
pub(super) fn class_of(size: usize) -> usize {
    let below = size.saturating_sub(1);
    if below < SMALL {
        below >> 4
    } else {
        // 512 to 1023 has ten bits.
        let bits = (usize::BITS - below.leading_zeros()) as usize;
        (SMALL_CLASSES + bits - 10).min(CLASSES - 1)
    }
}

/// A class's largest size, in bytes.
pub(super) fn largest(class: usize) -> usize {
    if class < SMALL_CLASSES { (class + 1) * 16 } else { (2 * SMALL) << (class - SMALL_CLASSES) }
}

/// The bytes that were allocated in the count and are not freed yet, and their maximum.
///
/// Stored as two sums that only grow. The peak is updated only before a free, because it can only be there or at the
/// end.
#[derive(Clone, Copy, Default)]
pub(super) struct Level {
    risen: u64,
    fallen: u64,
    peak: i64,
}

impl Level {
    const NONE: Level = Level { risen: 0, fallen: 0, peak: 0 };

    pub(super) fn live(&self) -> i64 {
        self.risen.wrapping_sub(self.fallen) as i64
    }

    /// As of the last `settle`.
    pub(super) fn peak(&self) -> i64 {
        self.peak
    }

    /// The sum of all increases.
    pub(super) fn risen(&self) -> u64 {
        self.risen
    }

    #[inline(always)]
    fn rise(&mut self, size: usize) {
        self.risen = self.risen.wrapping_add(size as u64);
    }

    #[inline(always)]
    fn fall(&mut self, size: usize) {
        self.settle();
        self.fallen = self.fallen.wrapping_add(size as u64);
    }

    #[inline(always)]
    fn settle(&mut self) {
        let live = self.live();
        if live > self.peak {
            self.peak = live;
        }
    }

    fn add(&mut self, other: Level) {
        self.risen = self.risen.wrapping_add(other.risen);
        self.fallen = self.fallen.wrapping_add(other.fallen);
        self.peak = self.peak.max(other.peak);
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
    /// Its increases are the requested bytes; for a realloc, the full new size.
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
            cells: [Cell { calls: 0, reallocs: 0, frees: 0, level: Level::NONE }; CLASSES],
        }; DOMAINS.len()],
    };

    #[inline(always)]
    pub(super) fn allocated(&mut self, domain: usize, class: usize, size: usize) {
        self.level.rise(size);
        let domain = &mut self.domains[domain];
        domain.level.rise(size);
        let cell = &mut domain.cells[class];
        cell.calls += 1;
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

    /// Updates the peaks. Must be called before they are read.
    pub(super) fn settle(&mut self) {
        self.level.settle();
        for domain in &mut self.domains {
            domain.level.settle();
            domain.cells.iter_mut().for_each(|cell| cell.level.settle());
        }
    }

    /// Adds the sums, and takes the higher peaks. `other` must be settled.
    pub(super) fn add(&mut self, other: &Cells) {
        self.level.add(other.level);
        for (domain, other) in self.domains.iter_mut().zip(&other.domains) {
            domain.older_frees += other.older_frees;
            domain.level.add(other.level);
            for (cell, other) in domain.cells.iter_mut().zip(&other.cells) {
                cell.calls += other.calls;
                cell.reallocs += other.reallocs;
                cell.frees += other.frees;
                cell.level.add(other.level);
            }
        }
    }
}
