// Programs on which predictions are tried once, written after those of diverse.cpp: orders of an exchange, series of a metrics server,
// paths of a web server's router, chunks of a world that are loaded and dropped, long numbers, and answers of worker threads.
//
//     recent NAME ROUNDS      runs the rounds, prints a sum that depends on all of them, and ends
#include "programs.h"
#include "random.h"
#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <future>
#include <iterator>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

Random random_{8317349561029943581u};

// ---- orders: each waits at its price until another one meets it, or it is withdrawn ----

struct Order {
    uint64_t number;
    uint32_t amount, price;
    std::string owner;
};

using Book = std::map<uint32_t, std::list<Order>>;

uint64_t orders(long rounds) {
    Book bids, asks;
    std::unordered_map<uint64_t, std::pair<bool, std::list<Order>::iterator>> known;
    uint64_t sum = 0, middle = 10'000;
    auto drop = [&](bool buys, std::list<Order>::iterator order) {
        Book &book = buys ? bids : asks;
        auto level = book.find(order->price);
        known.erase(order->number);
        level->second.erase(order);
        if (level->second.empty()) {
            book.erase(level);
        }
    };
    for (long round = 0; round < rounds; round++) {
        middle += random_.between(0, 3) - 1;
        uint64_t number = static_cast<uint64_t>(round);
        bool buys = random_.between(0, 2);
        uint64_t away = random_.between(0, 60);
        uint32_t price = static_cast<uint32_t>(buys ? middle + 5 - away : middle - 5 + away);
        Order order{number, static_cast<uint32_t>(random_.between(1, 90)), price, "customer number " + std::to_string(random_.between(0, 700))};
        Book &others = buys ? asks : bids;
        while (order.amount && !others.empty()) {
            auto level = buys ? others.begin() : std::prev(others.end());
            if (buys ? level->first > price : level->first < price) {
                break;
            }
            auto first = level->second.begin();
            uint32_t traded = std::min(order.amount, first->amount);
            order.amount -= traded;
            first->amount -= traded;
            sum += traded * level->first + first->owner.size();
            if (!first->amount) {
                drop(!buys, first);
            }
        }
        if (order.amount) {
            std::list<Order> &level = (buys ? bids : asks)[price];
            level.push_back(std::move(order));
            known.emplace(number, std::pair{buys, std::prev(level.end())});
        }
        if (random_.between(0, 3) == 0 && number > 3'000) {
            auto old = known.find(number - random_.between(1, 3'000));
            if (old != known.end()) {
                drop(old->second.first, old->second.second);
            }
        }
    }
    return sum + known.size();
}

// ---- metrics: values by name and labels, of which old ones are dropped ----

uint64_t metrics(long rounds) {
    struct Value {
        long at;
        double value;
    };
    std::unordered_map<std::string, std::deque<Value>> series;
    double sum = 0;
    for (long round = 0; round < rounds; round++) {
        // Services come and go.
        uint64_t service = static_cast<uint64_t>(round) / 9'000 + random_.between(0, 12), code = 200 + random_.between(0, 5);
        std::map<std::string, std::string> labels;
        labels["service"] = "service-" + std::to_string(service);
        labels["code"] = std::to_string(code);
        labels["method"] = random_.between(0, 3) ? "GET" : "POST";
        labels["instance"] = "10.0.0." + std::to_string(random_.between(0, 20)) + ":8080";
        std::string key = "http_requests_seconds";
        for (const auto &[name, value] : labels) {
            key += "," + name + "=" + value;
        }
        std::deque<Value> &values = series[key];
        values.push_back({round, static_cast<double>(random_.between(1, 1'000))});
        while (values.front().at < round - 60'000) {
            values.pop_front();
        }
        sum += values.front().value;
        if (round % 20'000 == 0) {
            for (auto one = series.begin(); one != series.end();) {
                one = one->second.back().at < round - 60'000 ? series.erase(one) : std::next(one);
            }
        }
    }
    return static_cast<uint64_t>(sum) + series.size();
}

// ---- router: the parts of a path choose a handler ----

struct Node {
    std::map<std::string, std::unique_ptr<Node>> children;
    std::unique_ptr<Node> any;
    std::string parameter;
    uint64_t handler = 0;
};

std::vector<std::string> parts_of(const std::string &path) {
    std::vector<std::string> parts;
    for (size_t at = 1; at <= path.size();) {
        size_t end = std::min(path.find('/', at), path.size());
        parts.push_back(path.substr(at, end - at));
        at = end + 1;
    }
    return parts;
}

uint64_t router(long rounds) {
    Node root;
    const std::array<std::string, 5> things{"customers", "orders", "invoices-and-receipts", "shipments", "articles"};
    for (size_t at = 0; at < 60; at++) {
        Node *node = &root;
        for (const std::string &part : {"v" + std::to_string(at % 4), things[at % 5], std::string(":id"), "part" + std::to_string(at)}) {
            std::unique_ptr<Node> &next = part[0] == ':' ? node->any : node->children[part];
            if (!next) {
                next = std::make_unique<Node>();
                next->parameter = part;
            }
            node = next.get();
        }
        node->handler = at + 1;
    }
    uint64_t sum = 0;
    for (long round = 0; round < rounds; round++) {
        size_t at = random_.between(0, 60);
        std::string path = "/v" + std::to_string(at % 4) + "/" + things[at % 5] + "/" + std::to_string(random_.next()) + "/part"
            + std::to_string(at);
        std::unordered_map<std::string, std::string> parameters;
        const Node *node = &root;
        for (const std::string &part : parts_of(path)) {
            auto child = node->children.find(part);
            if (child != node->children.end()) {
                node = child->second.get();
            } else if (node->any) {
                node = node->any.get();
                parameters[node->parameter] = part;
            }
        }
        sum += node->handler + parameters[":id"].size();
    }
    return sum;
}

// ---- voxels: a view moves through a world of chunks ----

struct Chunk {
    std::array<uint8_t, 4096> cells;
    std::vector<uint32_t> surface;
};

uint64_t voxels(long rounds) {
    std::unordered_map<uint64_t, std::unique_ptr<Chunk>> loaded;
    std::deque<uint64_t> order;
    uint64_t sum = 0;
    int64_t x = 1'000, y = 1'000;
    for (long round = 0; round < rounds; round++) {
        x += static_cast<int64_t>(random_.between(0, 3)) - 1;
        y += static_cast<int64_t>(random_.between(0, 3)) - 1;
        for (int64_t side = -2; side <= 2; side++) {
            uint64_t key = static_cast<uint64_t>(x + side) << 32 | static_cast<uint64_t>(y - side);
            std::unique_ptr<Chunk> &chunk = loaded[key];
            if (!chunk) {
                chunk = std::make_unique<Chunk>();
                uint64_t seed = key * 0x9e3779b97f4a7c15u;
                for (size_t at = 0; at < chunk->cells.size(); at++) {
                    chunk->cells[at] = static_cast<uint8_t>((seed >> (at % 56)) + at);
                    if (chunk->cells[at] < 16) {
                        chunk->surface.push_back(static_cast<uint32_t>(at));
                    }
                }
                order.push_back(key);
            }
            sum += chunk->surface.size() + chunk->cells[static_cast<size_t>(round) % 4096];
        }
        while (order.size() > 1'200) {
            loaded.erase(order.front());
            order.pop_front();
        }
    }
    return sum;
}

// ---- long numbers ----

using Number = std::vector<uint32_t>;

Number times(const Number &a, const Number &b) {
    Number product(a.size() + b.size());
    for (size_t i = 0; i < a.size(); i++) {
        uint64_t carry = 0;
        for (size_t j = 0; j < b.size(); j++) {
            uint64_t part = uint64_t{a[i]} * b[j] + product[i + j] + carry;
            product[i + j] = static_cast<uint32_t>(part);
            carry = part >> 32;
        }
        product[i + b.size()] = static_cast<uint32_t>(carry);
    }
    while (!product.empty() && !product.back()) {
        product.pop_back();
    }
    return product;
}

Number plus(const Number &a, const Number &b) {
    Number total;
    uint64_t carry = 0;
    for (size_t at = 0; at < std::max(a.size(), b.size()) || carry; at++) {
        carry += (at < a.size() ? a[at] : 0);
        carry += (at < b.size() ? b[at] : 0);
        total.push_back(static_cast<uint32_t>(carry));
        carry >>= 32;
    }
    return total;
}

uint64_t numbers(long rounds) {
    uint64_t sum = 0;
    for (long round = 0; round < rounds; round++) {
        std::vector<Number> terms;
        for (int at = 0; at < 24; at++) {
            size_t length = random_.between(1, 5);
            terms.push_back(Number(length, static_cast<uint32_t>(random_.next() | 1)));
        }
        while (terms.size() > 1) {
            std::vector<Number> next;
            for (size_t at = 0; at + 1 < terms.size(); at += 2) {
                next.push_back(plus(times(terms[at], terms[at + 1]), terms[at]));
            }
            if (terms.size() % 2) {
                next.push_back(terms.back());
            }
            terms = std::move(next);
        }
        sum += terms[0].size() ^ terms[0][0];
    }
    return sum;
}

// ---- replies: two workers answer questions, and the one who asked waits for the answers ----

struct Question {
    std::string text;
    std::promise<std::string> answer;
};

uint64_t replies(long rounds) {
    std::deque<Question> waiting;
    std::mutex lock;
    std::condition_variable some;
    bool over = false;
    auto work = [&] {
        for (;;) {
            std::unique_lock held(lock);
            some.wait(held, [&] { return over || !waiting.empty(); });
            if (waiting.empty()) {
                return;
            }
            Question question = std::move(waiting.front());
            waiting.pop_front();
            held.unlock();
            std::string answer;
            for (size_t at = 0; at < question.text.size(); at += 3) {
                answer += question.text.substr(at, 3) + "-";
            }
            question.answer.set_value(std::move(answer));
        }
    };
    std::array<std::thread, 2> workers{std::thread(work), std::thread(work)};
    uint64_t sum = 0;
    for (long round = 0; round < rounds; round++) {
        std::vector<std::future<std::string>> answers;
        {
            std::lock_guard held(lock);
            for (int at = 0; at < 64; at++) {
                Question question{"question " + std::string(random_.between(10, 200), 'q'), {}};
                answers.push_back(question.answer.get_future());
                waiting.push_back(std::move(question));
            }
        }
        some.notify_all();
        for (auto &answer : answers) {
            sum += answer.get().size();
        }
    }
    {
        std::lock_guard held(lock);
        over = true;
    }
    some.notify_all();
    for (std::thread &worker : workers) {
        worker.join();
    }
    return sum;
}

}

int main(int argc, char **argv) {
    return run_one(
        "recent",
        {{"orders", orders}, {"metrics", metrics}, {"router", router}, {"voxels", voxels}, {"numbers", numbers}, {"replies", replies}},
        argc,
        argv
    );
}
