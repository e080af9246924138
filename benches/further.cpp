// Programs on which predictions are tried once, written after those of fresh.cpp: a skip list, expressions that are parsed and folded,
// tiles of a map that are loaded and dropped, and tables that two threads fill, each its own.
//
//     further NAME ROUNDS      runs the rounds, prints a sum that depends on all of them, and ends
#include "programs.h"
#include "random.h"
#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

namespace {

Random random_{2862933555777941757u};

// ---- a skip list: nodes of different heights ----

struct Node {
    uint64_t key;
    uint64_t value;
    int height;
    Node *next[1];
};

constexpr int HIGHEST = 12;

Node *node(uint64_t key, int height) {
    Node *made = static_cast<Node *>(std::calloc(1, sizeof(Node) + sizeof(Node *) * (height - 1)));
    made->key = key;
    made->height = height;
    return made;
}

uint64_t skips(long rounds) {
    Node *head = node(0, HIGHEST);
    uint64_t sum = 0, count = 0;
    for (long round = 0; round < rounds; round++) {
        uint64_t key = random_.between(1, 60'000);
        std::array<Node *, HIGHEST> before;
        Node *at = head;
        for (int level = HIGHEST - 1; level >= 0; level--) {
            while (at->next[level] && at->next[level]->key < key) {
                at = at->next[level];
            }
            before[level] = at;
        }
        Node *found = at->next[0];
        if (found && found->key == key && round % 3) {
            found->value += round;
            sum += found->value;
        } else if (found && found->key == key) {
            for (int level = 0; level < found->height; level++) {
                before[level]->next[level] = found->next[level];
            }
            std::free(found);
            count--;
        } else {
            int height = 1;
            while (height < HIGHEST && random_.between(0, 4) == 0) {
                height++;
            }
            Node *made = node(key, height);
            for (int level = 0; level < height; level++) {
                made->next[level] = before[level]->next[level];
                before[level]->next[level] = made;
            }
            count++;
        }
    }
    return sum + count;
}

// ---- expressions ----

struct Expression {
    char act;
    int64_t value;
    std::string name;
    std::vector<std::unique_ptr<Expression>> parts;
};

std::unique_ptr<Expression> parsed(const char *&text) {
    auto made = std::make_unique<Expression>();
    if (*text == '(') {
        made->act = text[1];
        text += 2;
        while (*text != ')') {
            made->parts.push_back(parsed(text));
        }
        text++;
    } else if (*text >= '0' && *text <= '9') {
        made->act = 'n';
        made->value = *text++ - '0';
    } else {
        made->act = 'v';
        made->name = "variable of the expression ";
        made->name += *text++;
    }
    return made;
}

// Replaces what is known by its value.
std::unique_ptr<Expression> folded(std::unique_ptr<Expression> one) {
    bool known = one->act == '+' || one->act == '*';
    int64_t value = one->act == '*' ? 1 : 0;
    for (auto &part : one->parts) {
        part = folded(std::move(part));
        known = known && part->act == 'n';
        value = one->act == '*' ? value * part->value % 1'000'003 : value + part->value;
    }
    if (known) {
        one->parts.clear();
        one->act = 'n';
        one->value = value;
    }
    return one;
}

void written(std::string &text, int depth) {
    if (depth == 0 || (depth < 5 && random_.between(0, 8) == 0)) {
        text += random_.between(0, 4) ? static_cast<char>('0' + random_.between(0, 10)) : static_cast<char>('a' + random_.between(0, 26));
        return;
    }
    text += random_.between(0, 2) ? "(+" : "(*";
    for (uint64_t parts = random_.between(2, 5); parts > 0; parts--) {
        written(text, depth - 1);
    }
    text += ')';
}

uint64_t size(const Expression &one) {
    uint64_t all = 1;
    for (const auto &part : one.parts) {
        all += size(*part);
    }
    return all;
}

uint64_t expressions(long rounds) {
    std::string text;
    written(text, 7);
    uint64_t sum = 0;
    for (long round = 0; round < rounds; round++) {
        const char *at = text.c_str();
        auto whole = folded(parsed(at));
        sum += size(*whole) + static_cast<uint64_t>(whole->value);
    }
    return sum;
}

// ---- tiles ----

uint64_t tiles(long rounds) {
    struct Tile {
        uint32_t place;
        std::vector<uint8_t> pixels;
    };
    std::list<Tile> recent;
    std::unordered_map<uint32_t, std::list<Tile>::iterator> known;
    uint64_t sum = 0;
    int64_t x = 500, y = 500;
    for (long round = 0; round < rounds; round++) {
        x += static_cast<int64_t>(random_.between(0, 9)) - 4;
        y += static_cast<int64_t>(random_.between(0, 9)) - 4;
        uint32_t place = static_cast<uint32_t>((x & 1023) << 10 | (y & 1023));
        auto found = known.find(place);
        if (found != known.end()) {
            recent.splice(recent.begin(), recent, found->second);
        } else {
            recent.push_front({place, std::vector<uint8_t>(random_.between(2'000, 24'000), static_cast<uint8_t>(place))});
            known[place] = recent.begin();
            if (recent.size() > 600) {
                known.erase(recent.back().place);
                recent.pop_back();
            }
        }
        for (size_t at = 0; at < recent.front().pixels.size(); at += 64) {
            sum += recent.front().pixels[at];
        }
    }
    return sum;
}

// ---- tables of two threads ----

uint64_t table(long rounds, uint64_t seed) {
    Random own{seed};
    uint64_t sum = 0;
    for (long round = 0; round < rounds; round++) {
        std::unordered_map<std::string, std::vector<uint32_t>> rows;
        for (uint32_t at = 0; at < 3000; at++) {
            rows["row " + std::to_string(own.between(0, 900))].push_back(at);
        }
        for (const auto &[name, numbers] : rows) {
            sum += name.size() * numbers.size() + numbers.back();
        }
    }
    return sum;
}

uint64_t tables(long rounds) {
    uint64_t other = 0;
    std::thread beside([&] { other = table(rounds, 17); });
    uint64_t one = table(rounds, 18);
    beside.join();
    return one + other;
}

}

int main(int argc, char **argv) {
    return run_one("further", {{"skips", skips}, {"expressions", expressions}, {"tiles", tiles}, {"tables", tables}}, argc, argv);
}
