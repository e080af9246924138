// Orders in a std::map, inserted and erased at random: small blocks, malloc and free for each.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

int main() {
    std::map<uint64_t, std::vector<std::string>> orders;
    uint64_t state = 88172645463325252ULL;
    for (;;) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        uint64_t key = state % 20000;
        if (state & (1 << 20)) {
            auto &lines = orders[key];
            lines.clear();
            for (int i = 0; i < 4; i++) lines.emplace_back(40 + i, 'a' + i);
        } else {
            orders.erase(key);
        }
    }
}
