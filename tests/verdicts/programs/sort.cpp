// Sorts the same memory again and again: computing.
#include <algorithm>
#include <cstdint>
#include <vector>

int main() {
    std::vector<uint32_t> values(200000);
    for (uint32_t state = 1;;) {
        for (auto &value : values) value = state = state * 1664525 + 1013904223;
        std::sort(values.begin(), values.end());
    }
}
