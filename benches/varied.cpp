// Programs on which predictions are tried once, written after those of unseen.cpp: documents that are parsed into trees, texts that go
// through three threads, tasks of a pool of workers, pictures in stages, a search in a grid, lines of an editor, and records of very
// different sizes that replace one another.
//
//     varied NAME ROUNDS      runs the rounds, prints a sum that depends on all of them, and ends
#include "programs.h"
#include "random.h"
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <queue>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

Random random_{88172645463325252u};

// ---- documents ----

struct Value {
    std::string text;
    std::vector<std::unique_ptr<Value>> items;
    std::map<std::string, std::unique_ptr<Value>> fields;
};

std::string document(int depth) {
    if (depth == 0) {
        return "\"value " + std::to_string(random_.next() % 100000) + "\"";
    }
    std::string text = depth % 2 ? "[" : "{";
    for (uint64_t n = 0, all = random_.between(3, 8); n < all; n++) {
        text += depth % 2 ? document(depth - 1) : "\"field" + std::to_string(n) + "\":" + document(depth - 1);
        text += n + 1 < all ? "," : "";
    }
    return text + (depth % 2 ? "]" : "}");
}

std::string quoted(const char *&at) {
    const char *from = ++at;
    while (*at != '"') {
        at++;
    }
    return std::string(from, static_cast<size_t>(at++ - from));
}

std::unique_ptr<Value> parsed(const char *&at) {
    auto value = std::make_unique<Value>();
    if (*at == '"') {
        value->text = quoted(at);
        return value;
    }
    char end = *at == '[' ? ']' : '}';
    for (at++; *at != end;) {
        if (end == ']') {
            value->items.push_back(parsed(at));
        } else {
            std::string name = quoted(at);
            at++;
            value->fields[name] = parsed(at);
        }
        at += *at == ',';
    }
    at++;
    return value;
}

uint64_t size_of(const Value &value) {
    uint64_t sum = value.text.size();
    for (const auto &item : value.items) {
        sum += size_of(*item);
    }
    for (const auto &field : value.fields) {
        sum += field.first.size() + size_of(*field.second);
    }
    return sum;
}

uint64_t documents(long rounds) {
    std::vector<std::string> texts;
    for (int n = 0; n < 20; n++) {
        texts.push_back(document(5));
    }
    uint64_t sum = 0;
    for (long round = 0; round < rounds; round++) {
        const char *at = texts[static_cast<size_t>(round) % texts.size()].c_str();
        sum += size_of(*parsed(at));
    }
    return sum;
}

// ---- threads ----

template <typename Item> class Queue {
    std::mutex lock_;
    std::condition_variable filled_, drained_;
    std::deque<Item> items_;
    bool closed_ = false;

public:
    void put(Item item) {
        std::unique_lock<std::mutex> held(lock_);
        drained_.wait(held, [&] { return items_.size() < 256; });
        items_.push_back(std::move(item));
        filled_.notify_one();
    }
    bool take(Item &item) {
        std::unique_lock<std::mutex> held(lock_);
        filled_.wait(held, [&] { return !items_.empty() || closed_; });
        if (items_.empty()) {
            return false;
        }
        item = std::move(items_.front());
        items_.pop_front();
        drained_.notify_one();
        return true;
    }
    void close() {
        std::unique_lock<std::mutex> held(lock_);
        closed_ = true;
        filled_.notify_all();
    }
};

using Lines = std::vector<std::string>;

uint64_t stages(long rounds) {
    Queue<Lines> read, split;
    std::thread reader([&] {
        for (long round = 0; round < rounds; round++) {
            Lines lines;
            for (int n = 0; n < 30; n++) {
                lines.push_back("line " + std::to_string(random_.next()) + " of a text with some words in it");
            }
            read.put(std::move(lines));
        }
        read.close();
    });
    std::thread splitter([&] {
        for (Lines lines; read.take(lines);) {
            Lines words;
            for (const std::string &line : lines) {
                for (size_t at = 0, end; at < line.size(); at = end + 1) {
                    end = std::min(line.find(' ', at), line.size());
                    words.push_back(line.substr(at, end - at) + " and a tail of words");
                }
            }
            split.put(std::move(words));
        }
        split.close();
    });
    uint64_t sum = 0;
    for (Lines words; split.take(words);) {
        for (const std::string &word : words) {
            sum += word.size() + static_cast<unsigned char>(word[0]);
        }
    }
    reader.join(), splitter.join();
    return sum;
}

uint64_t tasks(long rounds) {
    Queue<std::function<void()>> queue;
    std::mutex lock;
    uint64_t sum = 0;
    auto work = [&] {
        for (std::function<void()> task; queue.take(task); task = nullptr) {
            task();
        }
    };
    std::thread one(work), two(work);
    for (long round = 0; round < rounds; round++) {
        std::vector<uint32_t> numbers(random_.between(20, 400));
        for (uint32_t &number : numbers) {
            number = static_cast<uint32_t>(random_.next());
        }
        queue.put([&, numbers = std::move(numbers)] {
            std::unordered_map<uint32_t, int> seen;
            for (uint32_t number : numbers) {
                seen[number % 64]++;
            }
            std::lock_guard<std::mutex> held(lock);
            sum += seen.size();
        });
    }
    queue.close();
    one.join(), two.join();
    return sum;
}

// ---- one thread ----

using Picture = std::vector<uint8_t>;

uint64_t pictures(long rounds) {
    uint64_t sum = 0;
    for (long round = 0; round < rounds; round++) {
        size_t wide = random_.between(100, 700), high = random_.between(100, 500);
        Picture first(wide * high);
        for (size_t at = 0; at < first.size(); at += 3) {
            first[at] = static_cast<uint8_t>(at * 7 + static_cast<size_t>(round));
        }
        Picture half(wide / 2 * (high / 2)), edges(half.size());
        for (size_t row = 0; row < high / 2; row++) {
            for (size_t column = 0; column < wide / 2; column++) {
                half[row * (wide / 2) + column] = first[row * 2 * wide + column * 2];
            }
        }
        for (size_t at = 1; at < half.size(); at++) {
            edges[at] = static_cast<uint8_t>(half[at] - half[at - 1]);
        }
        Picture kept = edges;
        sum += kept[kept.size() / 2] + kept.size();
    }
    return sum;
}

uint64_t searches(long rounds) {
    uint64_t sum = 0;
    constexpr int WIDE = 120;
    for (long round = 0; round < rounds; round++) {
        std::vector<bool> wall(WIDE * WIDE);
        for (int n = 0; n < WIDE * WIDE / 4; n++) {
            wall[random_.next() % (WIDE * WIDE)] = true;
        }
        using Step = std::pair<int, int>;
        std::priority_queue<Step, std::vector<Step>, std::greater<Step>> open;
        std::unordered_map<int, int> costs{{0, 0}};
        open.push({0, 0});
        while (!open.empty()) {
            auto [cost, at] = open.top();
            open.pop();
            if (at == WIDE * WIDE - 1) {
                sum += static_cast<uint64_t>(cost);
                break;
            }
            for (int step : {1, -1, WIDE, -WIDE}) {
                int next = at + step;
                bool edge = next < 0 || next >= WIDE * WIDE || (step == 1 && next % WIDE == 0) || (step == -1 && at % WIDE == 0);
                if (edge || wall[static_cast<size_t>(next)]) {
                    continue;
                }
                auto found = costs.find(next);
                if (found == costs.end() || found->second > cost + 1) {
                    costs[next] = cost + 1;
                    open.push({cost + 1, next});
                }
            }
        }
        sum += costs.size();
    }
    return sum;
}

uint64_t editor(long rounds) {
    std::vector<std::string> lines(400, "a line of the text that is edited, which is long enough for a block");
    uint64_t sum = 0;
    for (long round = 0; round < rounds; round++) {
        size_t at = random_.next() % lines.size();
        switch (random_.next() % 4) {
        case 0:
            lines.insert(lines.begin() + static_cast<long>(at), lines[at].substr(lines[at].size() / 2));
            break;
        case 1:
            if (lines.size() > 300) {
                lines.erase(lines.begin() + static_cast<long>(at));
            }
            break;
        default:
            lines[at].insert(lines[at].size() / 2, "typed ");
            if (lines[at].size() > 300) {
                lines[at] = lines[at].substr(200);
            }
        }
        sum += lines[at % lines.size()].size();
    }
    return sum;
}

uint64_t replaced(long rounds) {
    std::vector<std::unique_ptr<char[]>> records(20000);
    uint64_t sum = 0;
    for (long round = 0; round < rounds; round++) {
        size_t size = 16 + (random_.next() % 64 << random_.next() % 10);
        auto record = std::make_unique<char[]>(size);
        record[size - 1] = static_cast<char>(round);
        auto &place = records[random_.next() % records.size()];
        sum += place ? static_cast<unsigned char>(place[0]) + 1 : 0;
        place = std::move(record);
    }
    return sum;
}

} // namespace

int main(int argc, char **argv) {
    return run_one("varied", {{"documents", documents}, {"stages", stages}, {"tasks", tasks}, {"pictures", pictures},
                              {"searches", searches}, {"editor", editor}, {"replaced", replaced}}, argc, argv);
}
