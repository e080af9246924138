// Programs on which predictions are tried once, written after those of varied.cpp: events that are due at some time, an index of words,
// columns of a table, formatted lines, buffers of a network, a thread for each request, and sessions that are dropped when they are old.
//
//     fresh NAME ROUNDS      runs the rounds, prints a sum that depends on all of them, and ends
#include "programs.h"
#include "random.h"
#include <cstdint>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <queue>
#include <sstream>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

Random random_{1442695040888963407u};

struct Event {
    uint64_t at;
    std::vector<uint32_t> who;
    std::string what;
};

struct Later {
    bool operator()(const std::unique_ptr<Event> &one, const std::unique_ptr<Event> &other) const { return one->at > other->at; }
};

uint64_t events(long rounds) {
    std::priority_queue<std::unique_ptr<Event>, std::vector<std::unique_ptr<Event>>, Later> due;
    auto add = [&](uint64_t now) {
        auto event = std::make_unique<Event>();
        event->at = now + random_.between(1, 10'000);
        event->who.resize(random_.between(1, 12));
        event->what.assign(random_.between(5, 40), 'e');
        due.push(std::move(event));
    };
    for (int n = 0; n < 8000; n++) {
        add(0);
    }
    uint64_t sum = 0;
    for (long round = 0; round < rounds; round++) {
        uint64_t now = due.top()->at;
        sum += now + due.top()->who.size() + due.top()->what.size();
        due.pop();
        add(now);
    }
    return sum;
}

uint64_t indexed(long rounds) {
    uint64_t sum = 0;
    for (long round = 0; round < rounds; round++) {
        std::map<std::string, std::vector<uint32_t>> places;
        for (uint32_t at = 0; at < 20'000; at++) {
            uint64_t common = random_.next() % (random_.between(1, 3000));
            places["the word number " + std::to_string(common)].push_back(at);
        }
        for (const auto &[word, at] : places) {
            sum += word.size() * at.size();
        }
    }
    return sum;
}

uint64_t columns(long rounds) {
    double sum = 0;
    for (long round = 0; round < rounds; round++) {
        std::vector<std::vector<double>> table(12);
        for (int row = 0, rows = static_cast<int>(random_.between(2'000, 60'000)); row < rows; row++) {
            for (size_t column = 0; column < table.size(); column++) {
                table[column].push_back(static_cast<double>(row) * 0.5 + static_cast<double>(column));
            }
        }
        std::vector<double> total = table[0];
        for (const auto &column : table) {
            for (size_t row = 0; row < total.size(); row++) {
                total[row] += column[row];
            }
        }
        sum += total.back();
    }
    return static_cast<uint64_t>(sum);
}

uint64_t lines(long rounds) {
    uint64_t sum = 0;
    for (long round = 0; round < rounds; round++) {
        std::ostringstream line;
        line << "time=" << random_.next() % 100'000 << " level=info path=/api/v1/items/" << random_.next() % 1000 << " status=" << 200;
        std::string text = line.str();
        if (round % 8 == 0) {
            text += " error=\"" + std::string(random_.between(50, 800), 'x') + "\"";
        }
        sum += text.size() + text.find("status");
    }
    return sum;
}

uint64_t buffers(long rounds) {
    std::vector<std::unique_ptr<char[]>> held(160);
    uint64_t sum = 0;
    for (long round = 0; round < rounds; round++) {
        size_t size = random_.next() % 4 ? 65'536 : random_.between(2'000, 262'144);
        std::unique_ptr<char[]> buffer(new char[size]);
        size_t used = size / random_.between(1, 6);
        memset(buffer.get(), static_cast<int>(round), used);
        auto &place = held[random_.next() % held.size()];
        sum += place ? static_cast<unsigned char>(place[0]) : 1u;
        place = std::move(buffer);
    }
    return sum;
}

uint64_t answered(long rounds) {
    uint64_t sum = 0;
    for (long round = 0; round < rounds; round++) {
        std::vector<std::string> answers[2];
        auto answer = [](std::vector<std::string> *into, uint64_t seed) {
            Random random{seed};
            std::unordered_map<uint64_t, std::string> rows;
            for (int n = 0; n < 150; n++) {
                rows[random.next() % 500] = "row " + std::to_string(random.next()) + " of the answer";
            }
            for (auto &[key, row] : rows) {
                into->push_back(std::to_string(key) + ": " + row);
            }
        };
        std::thread one(answer, &answers[0], random_.next()), two(answer, &answers[1], random_.next());
        one.join(), two.join();
        for (const auto &rows : answers) {
            for (const std::string &row : rows) {
                sum += row.size();
            }
        }
    }
    return sum;
}

struct Session {
    std::string user;
    std::map<std::string, std::string> values;
};

uint64_t sessions(long rounds) {
    using Place = std::list<uint64_t>::iterator;
    std::unordered_map<uint64_t, std::pair<std::shared_ptr<Session>, Place>> all;
    std::list<uint64_t> by_use;
    uint64_t sum = 0;
    for (long round = 0; round < rounds; round++) {
        uint64_t key = random_.next() % 60'000;
        auto found = all.find(key);
        if (found != all.end()) {
            by_use.splice(by_use.begin(), by_use, found->second.second);
            sum += found->second.first->values.size();
            continue;
        }
        auto session = std::make_shared<Session>();
        session->user = "user with the number " + std::to_string(key);
        for (uint64_t n = 0, most = random_.between(2, 9); n < most; n++) {
            session->values["key" + std::to_string(n)] = std::string(random_.between(4, 120), 'v');
        }
        by_use.push_front(key);
        all.emplace(key, std::make_pair(std::move(session), by_use.begin()));
        if (all.size() > 40'000) {
            all.erase(by_use.back());
            by_use.pop_back();
        }
    }
    return sum;
}

} // namespace

int main(int argc, char **argv) {
    return run_one("fresh", {{"events", events}, {"indexed", indexed}, {"columns", columns}, {"lines", lines},
                             {"buffers", buffers}, {"answered", answered}, {"sessions", sessions}}, argc, argv);
}
