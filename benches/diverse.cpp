// Programs on which predictions are tried once, written after those of further.cpp: timers that are set and cancelled, fragments of
// messages that are put together, a text that is kept as a rope, rows of a file that are grouped, and callbacks that are chained.
//
//     diverse NAME ROUNDS      runs the rounds, prints a sum that depends on all of them, and ends
#include "programs.h"
#include "random.h"
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

Random random_{3202034522624059733u};

// ---- timers: each is set for a time ahead; most are cancelled before it ----

struct Timer {
    uint64_t due;
    std::function<uint64_t()> fires;
};

uint64_t timers(long rounds) {
    std::map<std::pair<uint64_t, uint64_t>, std::unique_ptr<Timer>> waiting;
    std::deque<std::pair<uint64_t, uint64_t>> pending;
    uint64_t sum = 0, now = 0;
    for (long round = 0; round < rounds; round++) {
        now++;
        std::array<uint64_t, 5> session;
        session.fill(random_.next());
        auto timer = std::make_unique<Timer>();
        timer->due = now + random_.between(500, 6'000);
        timer->fires = [session, now] { return session[now % 5] & 0xff; };
        std::pair<uint64_t, uint64_t> key{timer->due, now};
        waiting.emplace(key, std::move(timer));
        pending.push_back(key);
        if (pending.size() > 400) {
            if (random_.between(0, 10) < 8) {
                waiting.erase(pending.front());
            }
            pending.pop_front();
        }
        while (!waiting.empty() && waiting.begin()->first.first <= now) {
            sum += waiting.begin()->second->fires();
            waiting.erase(waiting.begin());
        }
    }
    return sum + waiting.size();
}

// ---- fragments that arrive out of order, and are joined when a message is complete ----

struct Fragment {
    uint32_t place, length;
    Fragment *next;
    uint8_t bytes[1];
};

struct Message {
    Fragment *first = nullptr;
    uint32_t arrived = 0;
};

uint64_t fragments(long rounds) {
    constexpr uint32_t PARTS = 7;
    std::unordered_map<uint32_t, Message> open;
    // The messages that are on their way.
    std::array<uint32_t, 90> numbers;
    uint32_t latest = 0;
    for (uint32_t &number : numbers) {
        number = latest++;
    }
    uint64_t sum = 0;
    for (long round = 0; round < rounds; round++) {
        uint32_t &way = numbers[random_.between(0, numbers.size())], number = way;
        uint32_t length = static_cast<uint32_t>(random_.between(60, 1'460));
        Fragment *fragment = static_cast<Fragment *>(std::malloc(sizeof(Fragment) + length));
        fragment->place = static_cast<uint32_t>(random_.between(0, 1'000));
        fragment->length = length;
        std::memset(fragment->bytes, static_cast<int>(number), length);
        Message &message = open[number];
        Fragment **at = &message.first;
        while (*at && (*at)->place < fragment->place) {
            at = &(*at)->next;
        }
        fragment->next = *at;
        *at = fragment;
        if (++message.arrived < PARTS) {
            continue;
        }
        uint8_t *whole = nullptr;
        size_t size = 0;
        for (Fragment *part = message.first; part;) {
            whole = static_cast<uint8_t *>(std::realloc(whole, size + part->length));
            std::memcpy(whole + size, part->bytes, part->length);
            size += part->length;
            std::free(std::exchange(part, part->next));
        }
        sum += whole[size / 2] + size;
        std::free(whole);
        open.erase(number);
        way = latest++;
    }
    return sum + open.size();
}

// ---- a rope: edits share what they leave alone ----

struct Rope;
using Part = std::shared_ptr<const Rope>;

struct Rope {
    size_t length;
    std::string text;
    Part left, right;
};

Part leaf(std::string text) {
    size_t length = text.size();
    return std::make_shared<const Rope>(Rope{length, std::move(text), nullptr, nullptr});
}

Part joined(Part left, Part right) {
    if (!left || !right) {
        return left ? left : right;
    }
    if (left->length + right->length < 200 && !left->left && !right->left) {
        return leaf(left->text + right->text);
    }
    size_t length = left->length + right->length;
    return std::make_shared<const Rope>(Rope{length, {}, std::move(left), std::move(right)});
}

std::pair<Part, Part> split(const Part &rope, size_t at) {
    if (!rope || at == 0) {
        return {nullptr, rope};
    }
    if (at >= rope->length) {
        return {rope, nullptr};
    }
    if (!rope->left) {
        return {leaf(rope->text.substr(0, at)), leaf(rope->text.substr(at))};
    }
    size_t middle = rope->left->length;
    if (at < middle) {
        auto [one, two] = split(rope->left, at);
        return {one, joined(two, rope->right)};
    }
    auto [one, two] = split(rope->right, at - middle);
    return {joined(rope->left, one), two};
}

uint64_t rope(long rounds) {
    Part text;
    uint64_t sum = 0;
    for (long round = 0; round < rounds; round++) {
        // A new text now and then, so that the tree stays shallow.
        if (round % 500 == 0) {
            text = nullptr;
            for (int at = 0; at < 64; at++) {
                text = joined(text, leaf(std::string(180, static_cast<char>('a' + at % 26))));
            }
        }
        size_t at = random_.between(0, text->length);
        auto [before, after] = split(text, at);
        auto [gone, rest] = split(after, random_.between(0, 40));
        text = joined(joined(before, leaf("edit " + std::to_string(round) + " of this line of text")), rest);
        sum += text->length + (gone ? gone->length : 0);
    }
    return sum;
}

// ---- rows of a file: fields that are cut, grouped and sorted ----

uint64_t rows(long rounds) {
    std::string file;
    for (int row = 0; row < 1'500; row++) {
        file += "city of number " + std::to_string(random_.between(0, 120)) + ";" + std::to_string(random_.between(0, 99'999));
        file += ";a longer remark about row " + std::to_string(row) + ";x\n";
    }
    uint64_t sum = 0;
    for (long round = 0; round < rounds; round++) {
        std::vector<std::vector<std::string>> table;
        for (size_t at = 0; at < file.size();) {
            size_t end = file.find('\n', at);
            std::vector<std::string> fields;
            for (size_t from = at; from <= end;) {
                size_t to = std::min(file.find(';', from), end);
                fields.emplace_back(file, from, to - from);
                from = to + 1;
            }
            table.push_back(std::move(fields));
            at = end + 1;
        }
        std::map<std::string, std::vector<long>> groups;
        for (const auto &fields : table) {
            groups[fields[0]].push_back(std::strtol(fields[1].c_str(), nullptr, 10));
        }
        for (auto &[city, numbers] : groups) {
            std::sort(numbers.begin(), numbers.end());
            sum += city.size() + static_cast<uint64_t>(numbers[numbers.size() / 2]);
        }
    }
    return sum;
}

// ---- callbacks: each step of a request makes the next one ----

struct Request {
    std::string name;
    std::vector<std::pair<std::string, std::string>> headers;
    uint64_t answer = 0;
};

using Step = std::function<uint64_t(const std::shared_ptr<Request> &)>;

uint64_t callbacks(long rounds) {
    std::deque<std::pair<std::shared_ptr<Request>, Step>> ready;
    uint64_t sum = 0;
    for (long round = 0; round < rounds; round++) {
        auto request = std::make_shared<Request>();
        request->name = "/path/of/request/" + std::to_string(round);
        for (int at = 0; at < 6; at++) {
            request->headers.emplace_back("header-number-" + std::to_string(at), std::string(random_.between(4, 60), 'v'));
        }
        std::string token(random_.between(10, 50), 't');
        Step last = [token](const std::shared_ptr<Request> &of) { return of->answer + token.size(); };
        Step middle = [last, round](const std::shared_ptr<Request> &of) {
            of->answer += static_cast<uint64_t>(round) & 15;
            return last(of);
        };
        Step first = [middle](const std::shared_ptr<Request> &of) {
            for (const auto &[name, value] : of->headers) {
                of->answer += name.size() ^ value.size();
            }
            return middle(of);
        };
        ready.emplace_back(std::move(request), std::move(first));
        if (ready.size() > 300) {
            sum += ready.front().second(ready.front().first);
            ready.pop_front();
        }
    }
    return sum + ready.size();
}

}

int main(int argc, char **argv) {
    return run_one(
        "diverse",
        {{"timers", timers}, {"fragments", fragments}, {"rope", rope}, {"rows", rows}, {"callbacks", callbacks}},
        argc,
        argv
    );
}
