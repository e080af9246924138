// Programs for predictions that were written when the model was finished (prediction_accuracy.py): a parser that builds and drops trees,
// two threads that pass on batches of strings, texts that grow by append, and a graph that is rebuilt.
//
//     later NAME ROUNDS      runs the rounds, prints a sum that depends on all of them, and ends
#include "programs.h"
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace {

uint64_t state = 88172645463325252u;

uint64_t next() { // xorshift64, Marsaglia 2003
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

struct Node {
    std::map<std::string, std::unique_ptr<Node>> fields;
    std::vector<std::unique_ptr<Node>> items;
    std::string text;
};

// A document of nested objects: {key: value, ...} and [value, ...].
std::string document(int depth) {
    if (depth == 0) {
        return "\"value of " + std::to_string(next() % 100000) + "\"";
    }
    std::string text = depth % 2 ? "{" : "[";
    for (int n = 0; n < 6; n++) {
        text += (n ? "," : "") + (depth % 2 ? "\"field" + std::to_string(n) + "\":" : std::string()) + document(depth - 1);
    }
    return text + (depth % 2 ? "}" : "]");
}

std::string quoted(const char *&at) {
    const char *end = std::strchr(++at, '"');
    std::string text(at, end);
    at = end + 1;
    return text;
}

std::unique_ptr<Node> parse(const char *&at) {
    auto node = std::make_unique<Node>();
    if (*at == '"') {
        node->text = quoted(at);
        return node;
    }
    char end = *at == '{' ? '}' : ']';
    while (*at != end) {
        at++;
        if (end == '}') {
            std::string key = quoted(at);
            at++;
            node->fields[key] = parse(at);
        } else {
            node->items.push_back(parse(at));
        }
    }
    at++;
    return node;
}

uint64_t size(const Node &node) {
    uint64_t all = node.text.size();
    for (const auto &field : node.fields) {
        all += field.first.size() + size(*field.second);
    }
    for (const auto &item : node.items) {
        all += size(*item);
    }
    return all;
}

uint64_t trees(long rounds) {
    std::string text = document(5);
    uint64_t sum = 0;
    for (long round = 0; round < rounds; round++) {
        const char *at = text.c_str();
        sum += size(*parse(at));
    }
    return sum;
}

uint64_t batches(long rounds) {
    std::mutex lock;
    std::condition_variable ready;
    std::deque<std::vector<std::string>> queue;
    uint64_t sum = 0;
    std::thread consumer([&] {
        for (long round = 0; round < rounds; round++) {
            std::unique_lock<std::mutex> held(lock);
            ready.wait(held, [&] { return !queue.empty(); });
            std::vector<std::string> batch = std::move(queue.front());
            queue.pop_front();
            held.unlock();
            ready.notify_all();
            for (const std::string &line : batch) {
                sum += line.size() + static_cast<unsigned char>(line.back());
            }
        }
    });
    for (long round = 0; round < rounds; round++) {
        std::vector<std::string> batch;
        for (int n = 0; n < 500; n++) {
            batch.push_back("line " + std::to_string(next()) + std::string(next() % 200, 'x'));
        }
        std::unique_lock<std::mutex> held(lock);
        ready.wait(held, [&] { return queue.size() < 16; });
        queue.push_back(std::move(batch));
        held.unlock();
        ready.notify_all();
    }
    consumer.join();
    return sum;
}

uint64_t texts(long rounds) {
    uint64_t sum = 0;
    for (long round = 0; round < rounds; round++) {
        std::vector<std::string> parts(64);
        for (int n = 0; n < 20000; n++) {
            parts[next() % parts.size()] += "piece " + std::to_string(n) + ";";
        }
        for (const std::string &part : parts) {
            sum += part.size();
        }
    }
    return sum;
}

struct Point {
    std::vector<std::shared_ptr<Point>> to;
    uint64_t value;
};

uint64_t graph(long rounds) {
    std::vector<std::shared_ptr<Point>> points(20000);
    uint64_t sum = 0;
    for (long round = 0; round < rounds; round++) {
        for (int n = 0; n < 4000; n++) {
            auto point = std::make_shared<Point>();
            point->value = next();
            // To older points alone: no circle keeps them.
            for (int m = 0; m < 3; m++) {
                if (const auto &other = points[next() % points.size()]; other && other->to.size() < 2) {
                    point->to.push_back(other);
                }
            }
            points[next() % points.size()] = point;
        }
        for (int n = 0; n < 500; n++) {
            for (const Point *at = points[next() % points.size()].get(); at; at = at->to.empty() ? nullptr : at->to.front().get()) {
                sum += at->value;
            }
        }
    }
    return sum;
}

} // namespace

int main(int argc, char **argv) {
    return run_one("later", {{"trees", trees}, {"batches", batches}, {"texts", texts}, {"graph", graph}}, argc, argv);
}
