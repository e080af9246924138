// Programs for predictions that were written after the last change of the model, and measured once each (prediction_accuracy.py): words
// that are counted, records that are built field by field, matrices, a queue whose length wanders, buffers of connections, and two threads
// with maps of their own.
//
//     unseen NAME ROUNDS      runs the rounds, prints a sum that depends on all of them, and ends
#include "programs.h"
#include "random.h"
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <list>
#include <map>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

namespace {

Random random_{88172645463325252u};

uint64_t words(long rounds) {
    uint64_t sum = 0;
    for (long round = 0; round < rounds; round++) {
        std::unordered_map<std::string, int> counts;
        for (int n = 0; n < 20000; n++) {
            uint64_t word = random_.next() % 5000;
            counts["a word that has the number " + std::to_string(word * word % 3001)]++;
        }
        for (const auto &entry : counts) {
            sum += entry.first.size() * static_cast<uint64_t>(entry.second);
        }
    }
    return sum;
}

uint64_t records(long rounds) {
    uint64_t sum = 0;
    for (long round = 0; round < rounds; round++) {
        std::vector<std::string> fields;
        for (int n = 0; n < 12; n++) {
            std::string field;
            for (uint64_t left = random_.between(5, 120); left; left--) {
                field.push_back(static_cast<char>('a' + left % 26));
            }
            fields.push_back(field);
        }
        std::string record;
        for (const std::string &field : fields) {
            record += field + ",";
        }
        sum += record.size() + static_cast<unsigned char>(record[round % record.size()]);
    }
    return sum;
}

uint64_t matrices(long rounds) {
    double sum = 0;
    for (long round = 0; round < rounds; round++) {
        size_t rows = random_.between(100, 400), columns = random_.between(100, 400);
        std::vector<std::vector<double>> matrix(rows, std::vector<double>(columns, 1.5)), turned(columns);
        for (size_t column = 0; column < columns; column++) {
            for (size_t row = 0; row < rows; row++) {
                turned[column].push_back(matrix[row][column] * static_cast<double>(row));
            }
        }
        sum += turned[columns / 2][rows / 2];
    }
    return static_cast<uint64_t>(sum);
}

uint64_t messages(long rounds) {
    std::list<std::vector<char>> queue;
    uint64_t sum = 0, wanted = 100;
    for (long round = 0; round < rounds; round++) {
        if (round % 3000 == 0) {
            wanted = random_.between(10, 8000);
        }
        if (queue.size() <= wanted) {
            queue.emplace_back(random_.between(100, 1500), static_cast<char>(round));
        }
        for (int n = 0; n < 2 && queue.size() > wanted; n++) {
            for (size_t at = 0; at < queue.front().size(); at += 64) {
                sum += static_cast<unsigned char>(queue.front()[at]);
            }
            queue.pop_front();
        }
    }
    return sum;
}

struct Buffer {
    char *bytes;
    size_t used, room;
};

uint64_t connections(long rounds) {
    std::vector<Buffer> all(64, Buffer{nullptr, 0, 0});
    uint64_t sum = 0;
    for (long round = 0; round < rounds; round++) {
        Buffer &buffer = all[random_.next() % all.size()];
        size_t more = random_.between(20, 700);
        if (buffer.used + more > buffer.room) {
            buffer.room = buffer.room + buffer.room / 2 + more;
            buffer.bytes = static_cast<char *>(std::realloc(buffer.bytes, buffer.room));
            if (!buffer.bytes) {
                std::abort();
            }
        }
        std::memset(buffer.bytes + buffer.used, static_cast<int>(round), more);
        buffer.used += more;
        if (random_.next() % 16 == 0) {
            sum += static_cast<unsigned char>(buffer.bytes[buffer.used / 2]) + buffer.used;
            std::free(buffer.bytes);
            buffer = Buffer{nullptr, 0, 0};
        }
    }
    for (Buffer &buffer : all) {
        std::free(buffer.bytes);
    }
    return sum;
}

void own_map(long rounds, uint64_t seed, uint64_t *sum) {
    Random random{seed};
    std::map<uint64_t, std::string> map;
    for (long round = 0; round < rounds; round++) {
        uint64_t key = random.next() % 4000;
        if (auto found = map.find(key); found != map.end()) {
            *sum += found->second.size();
            map.erase(found);
        } else {
            map.emplace(key, std::string(random.between(8, 90), 'x'));
        }
    }
}

uint64_t two_maps(long rounds) {
    uint64_t sums[2] = {0, 0};
    std::thread other(own_map, rounds, 1234567, &sums[1]);
    own_map(rounds, 7654321, &sums[0]);
    other.join();
    return sums[0] + sums[1];
}

} // namespace

int main(int argc, char **argv) {
    return run_one("unseen", {{"words", words}, {"records", records}, {"matrices", matrices},
                              {"messages", messages}, {"connections", connections}, {"two-maps", two_maps}}, argc, argv);
}
