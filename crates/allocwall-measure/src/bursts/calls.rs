//! What recorded calls ask for: their arguments are in registers, as at the first instruction of a function.

use crate::allocations::Copied;
use allocwall_host::perf::arguments;
use allocwall_model::allocations::class_of;
use allocwall_model::bursts::{EntryKind, SeenCalls, What};
use std::collections::BTreeMap;

/// No allocator can serve a larger block: addresses of a process have 47 bits. Such a call counts, and its bytes do not.
const MOST_BYTES: u64 = 1 << 47;

/// A function that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    pub kind: EntryKind,
    /// realloc of a null pointer calls malloc, which counts it.
    pub null_passes: bool,
}

impl Function {
    /// What a call asks for, and how many bytes.
    pub fn asks(self, [first, second, third]: [u64; 3]) -> (What, u64) {
        match self.kind {
            EntryKind::Malloc | EntryKind::OperatorNew => (What::New, first),
            EntryKind::Calloc => (What::New, first.saturating_mul(second)),
            EntryKind::Aligned => (What::New, second),
            EntryKind::PosixMemalign => (What::New, third),
            EntryKind::Realloc if first != 0 => (What::Resized, second),
            EntryKind::Realloc if self.null_passes => (What::Nothing, 0),
            EntryKind::Realloc => (What::New, second),
            EntryKind::Free | EntryKind::OperatorDelete if first != 0 => (What::Freed, 0),
            EntryKind::Free | EntryKind::OperatorDelete => (What::Nothing, 0),
        }
    }

    /// Puts calls together that are alike. `sites`: call sites of some of the records, by their place in the list.
    pub fn seen(self, records: &[Copied], sites: &BTreeMap<usize, u32>) -> Vec<SeenCalls> {
        let mut alike: BTreeMap<(What, u16, Option<u32>), (u32, u64)> = BTreeMap::new();
        for (nth, record) in records.iter().enumerate() {
            let (what, bytes) = self.asks(arguments(&record.registers));
            let requests = matches!(what, What::New | What::Resized);
            let class = if requests { class_of(bytes) as u16 } else { 0 };
            let site = sites.get(&nth).copied().filter(|_| requests);
            let sum = alike.entry((what, class, site)).or_default();
            sum.0 += 1;
            sum.1 = sum.1.saturating_add(if bytes > MOST_BYTES { 0 } else { bytes });
        }
        let seen = |((what, class, site), (calls, bytes))| SeenCalls { what, class, site, calls, bytes };
        alike.into_iter().map(seen).collect()
    }
}

/// At most `most` places of a list of this length, at even distances.
pub fn spread(length: usize, most: usize) -> Vec<usize> {
    let taken = length.min(most);
    (0..taken).map(|nth| nth * length / taken).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocwall_host::perf::{REGISTERS, Registers};

    /// Registers in which each function finds these arguments.
    fn registers(wanted: [u64; 3]) -> Registers {
        let numbers: Registers = std::array::from_fn(|nth| nth as u64);
        let mut registers = [0; REGISTERS];
        for (place, value) in arguments(&numbers).into_iter().zip(wanted) {
            registers[place as usize] = value;
        }
        registers
    }

    fn record(wanted: [u64; 3]) -> Copied {
        Copied { registers: registers(wanted), bytes: Vec::new() }
    }

    #[test]
    fn sizes_are_in_the_argument_of_their_function() {
        let asks = |kind, wanted| Function { kind, null_passes: false }.asks(wanted);
        for (kind, wanted, what, bytes) in [
            (EntryKind::Malloc, [100, 7, 8], What::New, 100),
            (EntryKind::OperatorNew, [48, 7, 8], What::New, 48),
            (EntryKind::Calloc, [3, 16, 8], What::New, 48),
            (EntryKind::Calloc, [u64::MAX, 16, 8], What::New, u64::MAX),
            (EntryKind::Aligned, [64, 256, 8], What::New, 256),
            (EntryKind::PosixMemalign, [1, 64, 512], What::New, 512),
            (EntryKind::Realloc, [0x7000, 300, 8], What::Resized, 300),
            (EntryKind::Realloc, [0, 300, 8], What::New, 300),
            (EntryKind::Free, [0x7000, 7, 8], What::Freed, 0),
            (EntryKind::OperatorDelete, [0x7000, 7, 8], What::Freed, 0),
            (EntryKind::Free, [0, 7, 8], What::Nothing, 0),
        ] {
            assert_eq!(asks(kind, wanted), (what, bytes), "{kind:?} {wanted:?}");
        }
        let passed = Function { kind: EntryKind::Realloc, null_passes: true };
        assert_eq!((passed.asks([0, 300, 8]).0, passed.asks([1, 300, 8]).0), (What::Nothing, What::Resized));
    }

    #[test]
    fn calls_that_are_alike_are_one_entry() {
        let records: Vec<Copied> =
            [100, 3000, 100, 100, u64::MAX].into_iter().map(|size| record([size, 0, 0])).collect();
        let sites = BTreeMap::from([(0, 5), (2, 5)]);
        let seen = Function { kind: EntryKind::Malloc, null_passes: false }.seen(&records, &sites);
        let shown: Vec<_> = seen.iter().map(|one| (one.class, one.site, one.calls, one.bytes)).collect();
        let class = |size| class_of(size) as u16;
        assert_eq!(
            shown,
            [
                (class(100), None, 1, 100),
                (class(100), Some(5), 2, 200),
                (class(3000), None, 1, 3000),
                (class(u64::MAX), None, 1, 0),
            ]
        );
        // What is freed has neither a size nor a site.
        let freed = Function { kind: EntryKind::Free, null_passes: false };
        let seen = freed.seen(&[record([0x7000, 0, 0]), record([0, 0, 0])], &sites);
        let shown: Vec<_> = seen.iter().map(|one| (one.what, one.class, one.site)).collect();
        assert_eq!(shown, [(What::Freed, 0, None), (What::Nothing, 0, None)]);
    }

    #[test]
    fn places_are_spread_evenly() {
        assert_eq!(spread(10, 4), [0, 2, 5, 7]);
        assert_eq!(spread(3, 32), [0, 1, 2]);
        assert_eq!(spread(0, 32), [] as [usize; 0]);
    }
}
