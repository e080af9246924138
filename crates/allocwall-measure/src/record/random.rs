//! Random delays: nothing that the target does regularly may run in step with the samples.

/// xorshift64 (Marsaglia 2003).
pub struct Random(u64);

impl Random {
    /// Any odd seed works; it only has to be independent of the target.
    pub fn new(seed: u64) -> Random {
        Random(seed | 1)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}
