//! Calls of an allocator in their order, as the counting library keeps them for some milliseconds.

/// What a call did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TracedKind {
    /// malloc and all others that make a block.
    New,
    Zeroed,
    Free,
    /// realloc of a block, before the call …
    Resized,
    /// … and after it: the next call of the same thread. If it isn't there, the block was freed.
    ResizedTo,
}

const KINDS: [TracedKind; 5] =
    [TracedKind::New, TracedKind::Zeroed, TracedKind::Free, TracedKind::Resized, TracedKind::ResizedTo];

/// A thread: the slot in which it counts, and a number that differs from those of the threads which had the slot before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TracedThread(pub u16);

/// All slots are below this.
pub const SLOTS: usize = 1024;

impl TracedThread {
    pub fn slot(self) -> u16 {
        self.0 & (SLOTS as u16 - 1)
    }

    /// The first thread of its process.
    pub fn is_main(self) -> bool {
        self.0 & 0x8000 != 0
    }
}

/// The calls with one address are in their true order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedCall {
    pub kind: TracedKind,
    /// Of the block; only to know it again.
    pub address: u64,
    /// Requested bytes; of a block that ends, its usable bytes, or 0 if they are not known.
    pub size: u32,
    pub thread: TracedThread,
}

/// The calls of all threads of a process.
pub type Trace = Vec<TracedCall>;

/// The bytes of one call, in a file of counts and on the way to a replay.
pub const CALL_BYTES: usize = 16;
/// The most calls of a trace.
pub const MOST_TRACED: usize = 131_072;

impl TracedCall {
    /// From `count.h`'s `struct count_call`, with the tag that all calls of its trace have. None: it is no call.
    pub fn of(bytes: &[u8; CALL_BYTES]) -> Option<(TracedCall, u8)> {
        let [a0, a1, a2, a3, a4, a5, a6, a7, s0, s1, s2, s3, t0, t1, kind, tag] = *bytes;
        let call = TracedCall {
            kind: *KINDS.get(usize::from(kind).checked_sub(1)?)?,
            address: u64::from_ne_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            size: u32::from_ne_bytes([s0, s1, s2, s3]),
            thread: TracedThread(u16::from_ne_bytes([t0, t1])),
        };
        Some((call, tag))
    }

    pub fn to_bytes(self, tag: u8) -> [u8; CALL_BYTES] {
        let mut bytes = [0; CALL_BYTES];
        bytes[..8].copy_from_slice(&self.address.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.size.to_ne_bytes());
        bytes[12..14].copy_from_slice(&self.thread.0.to_ne_bytes());
        bytes[14] = self.kind as u8 + 1;
        bytes[15] = tag;
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_the_same_after_its_way_through_bytes() {
        for kind in KINDS {
            let thread = TracedThread(0x8403);
            let call = TracedCall { kind, address: 0x7fff_1234_5670, size: 3_000_000_000, thread };
            assert_eq!(TracedCall::of(&call.to_bytes(7)), Some((call, 7)));
            assert!(thread.is_main() && thread.slot() == 3);
        }
        for kind in [0, 6, 255] {
            let mut bytes = [1; CALL_BYTES];
            bytes[14] = kind;
            assert_eq!(TracedCall::of(&bytes), None);
        }
    }
}
