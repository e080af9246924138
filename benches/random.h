// Random numbers for the programs of this folder, the same in each run.
#pragma once
#include <cstdint>

struct Random {
    uint64_t state;
    uint64_t next() { // xorshift64, Marsaglia 2003
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        return state;
    }
    uint64_t between(uint64_t low, uint64_t high) { return low + next() % (high - low); }
};
