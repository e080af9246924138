// Programs with a fixed amount of work on the standard library's containers, for trials of remedies.
//
//     structures NAME ROUNDS      runs the rounds, prints a sum that depends on all of them, and ends
#include "programs.h"
#include <algorithm>
#include <cstdint>
#include <list>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

using Random = std::mt19937_64;

// Not std::uniform_int_distribution: its results differ between libraries.
static std::size_t between(Random &random, std::size_t low, std::size_t high) {
    return low + random() % (high - low + 1);
}

static std::string letters(Random &random, std::size_t size) {
    std::string text(size, ' ');
    for (char &letter : text)
        letter = 'a' + random() % 26;
    return text;
}

static std::string joined(const std::vector<std::string> &parts) {
    std::string line;
    for (const std::string &part : parts)
        line.append(line.empty() ? 0 : 1, ' ').append(part);
    return line;
}

static std::vector<std::string> split(const std::string &line) {
    std::vector<std::string> parts;
    for (std::size_t from = 0; from < line.size();) {
        std::size_t end = std::min(line.find(' ', from), line.size());
        parts.push_back(line.substr(from, end - from));
        from = end + 1;
    }
    return parts;
}

// A round is one request: a line of 40 parts is split, its parts are counted and sorted, and joined again.
static std::uint64_t text(long rounds) {
    Random random(7);
    std::vector<std::string> known;
    for (int n = 0; n < 5000; n++)
        known.push_back(letters(random, between(random, 20, 200)));
    std::unordered_map<std::string, int> counts;
    std::uint64_t sum = 0;
    for (long done = 0; done < rounds; done++) {
        std::vector<std::string> chosen;
        for (int n = 0; n < 40; n++)
            chosen.push_back(known[random() % known.size()]);
        std::vector<std::string> parts = split(joined(chosen));
        for (const std::string &part : parts)
            sum += ++counts[part];
        std::sort(parts.begin(), parts.end());
        sum += joined(parts).size() + parts[0][0];
        if (done % 200 == 199)
            counts.clear();
    }
    return sum;
}

// A cache that drops the least recently used value. Keys are uniform, so the hit ratio is CAPACITY / KEYS, 80 %.
// A round is 1,000 requests.
static std::uint64_t cache_lru(long rounds) {
    const std::size_t CAPACITY = 16'000, KEYS = 20'000;
    Random random(7);
    std::list<std::pair<std::uint64_t, std::string>> order;
    std::unordered_map<std::uint64_t, decltype(order)::iterator> places;
    std::uint64_t sum = 0;
    for (long done = 0; done < rounds * 1000; done++) {
        std::uint64_t key = random() % KEYS;
        auto found = places.find(key);
        if (found != places.end()) {
            order.splice(order.begin(), order, found->second);
        } else {
            if (order.size() == CAPACITY) {
                places.erase(order.back().first);
                order.pop_back();
            }
            order.emplace_front(key, std::string(between(random, 100, 5000), 'a' + key % 26));
            places[key] = order.begin();
        }
        const std::string &value = order.front().second;
        sum += value.size() + value[value.size() / 2];
    }
    return sum;
}

struct Order {
    std::string client, symbol;
    std::vector<double> fills;
};

// A round is 1,000 steps on one thread's own orders.
static std::uint64_t trade(long rounds, std::uint64_t seed) {
    Random random(seed);
    std::map<std::uint64_t, Order> orders;
    std::uint64_t sum = 0;
    for (long done = 0; done < rounds * 1000; done++) {
        std::uint64_t key = random() % 60'000;
        auto found = orders.find(key);
        if (found == orders.end()) {
            orders.emplace(key, Order{letters(random, 24), letters(random, 16 + key % 16), {}});
        } else if (random() % 8 == 0) {
            orders.erase(found);
        } else {
            Order &order = found->second;
            order.fills.push_back(static_cast<double>(key));
            sum += order.fills.size() + order.client[3] + order.symbol.back();
        }
    }
    return sum + orders.size();
}

static std::uint64_t map_orders(long rounds) {
    std::uint64_t sums[2];
    std::thread other([&] { sums[1] = trade(rounds, 2); });
    sums[0] = trade(rounds, 1);
    other.join();
    return sums[0] ^ sums[1];
}

int main(int argc, char **argv) {
    return run_one("structures", {{"text", text}, {"cache-lru", cache_lru}, {"map-orders", map_orders}}, argc, argv);
}
