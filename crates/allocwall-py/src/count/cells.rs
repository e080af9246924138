//! What a count holds: sums by domain and size class.

/// In the order of CPython's `PyMemAllocatorDomain`.
pub(super) const DOMAINS: [&str; 3] = ["raw", "mem", "obj"];

/// pymalloc's largest block (Objects/obmalloc.c, `SMALL_REQUEST_THRESHOLD`); its classes are 16 bytes apart.
const SMALL: usize = 512;
const SMALL_CLASSES: usize = SMALL / 16;
/// 16, 32, ... 512, then powers of two to 2^48: no process has a larger block.
pub(super) const CLASSES: usize = SMALL_CLASSES + 39;

/// A request for no bytes is in the lowest class.
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
    if class < SMALL_CLASSES {
        (class + 1) * 16
    } else {
        (2 * SMALL) << (class - SMALL_CLASSES)
    }
}

/// Bytes of what was allocated here and not freed since, and the most of it at any moment.
#[derive(Clone, Copy, Default)]
pub(super) struct Level {
    pub(super) live: i64,
    pub(super) peak: i64,
}

impl Level {
    #[inline(always)]
    fn rise(&mut self, size: usize) {
        self.live = self.live.wrapping_add(size as i64);
        self.peak = self.peak.max(self.live);
    }

    #[inline(always)]
    fn fall(&mut self, size: usize) {
        self.live = self.live.wrapping_sub(size as i64);
    }

    fn add(&mut self, other: Level) {
        self.live = self.live.wrapping_add(other.live);
        self.peak = self.peak.max(other.peak);
    }
}

#[derive(Clone, Copy, Default)]
pub(super) struct Cell {
    /// Requests that gave a block: malloc, calloc and realloc.
    pub(super) calls: u64,
    /// Of them, those that resized one. In the class of the new size.
    pub(super) reallocs: u64,
    /// Of blocks that were allocated here.
    pub(super) frees: u64,
    /// Asked for, a realloc's in full.
    pub(super) bytes: u64,
    pub(super) level: Level,
}

#[derive(Clone, Copy)]
pub(super) struct Domain {
    /// Frees of blocks that weren't allocated here: their size is not known.
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
        level: Level { live: 0, peak: 0 },
        domains: [Domain {
            older_frees: 0,
            level: Level { live: 0, peak: 0 },
            cells: [Cell {
                calls: 0,
                reallocs: 0,
                frees: 0,
                bytes: 0,
                level: Level { live: 0, peak: 0 },
            }; CLASSES],
        }; DOMAINS.len()],
    };

    #[inline(always)]
    pub(super) fn allocated(&mut self, domain: usize, class: usize, size: usize) {
        self.level.rise(size);
        let domain = &mut self.domains[domain];
        domain.level.rise(size);
        let cell = &mut domain.cells[class];
        cell.calls += 1;
        cell.bytes = cell.bytes.wrapping_add(size as u64);
        cell.level.rise(size);
    }

    /// The old block, if it was allocated here, has been taken off by `gone`.
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

    /// A block that was allocated here is no more.
    #[inline(always)]
    pub(super) fn gone(&mut self, domain: usize, class: usize, size: usize) {
        self.level.fall(size);
        let domain = &mut self.domains[domain];
        domain.level.fall(size);
        domain.cells[class].level.fall(size);
    }

    /// Sums; of peaks the highest.
    pub(super) fn add(&mut self, other: &Cells) {
        self.level.add(other.level);
        for (domain, other) in self.domains.iter_mut().zip(&other.domains) {
            domain.older_frees += other.older_frees;
            domain.level.add(other.level);
            for (cell, other) in domain.cells.iter_mut().zip(&other.cells) {
                cell.calls += other.calls;
                cell.reallocs += other.reallocs;
                cell.frees += other.frees;
                cell.bytes = cell.bytes.wrapping_add(other.bytes);
                cell.level.add(other.level);
            }
        }
    }
}
