// A search service: each request indexes a page of 20,000 words into a map, answers with the most frequent word, and frees the map.
// Each word and each place of a word is a small block of malloc, so `allocwall diagnose` should name the allocator.
//
//     g++ -O2 -std=c++20 -o /tmp/service service.cpp
//     /tmp/service --port 8081
#undef _GNU_SOURCE // g++ defines it already.
#include "../incidents/http.h"
#include <map>
#include <string>
#include <vector>

namespace {

constexpr int WORDS = 20'000, DIFFERENT = 4'000;

// Words with a tail, so that they do not fit into the std::string itself.
std::string word(unsigned number) { return "word-" + std::to_string(number) + "-of-the-page"; }

std::map<std::string, std::vector<int>> index_of_a_page(unsigned seed) {
    std::map<std::string, std::vector<int>> index;
    for (int place = 0; place < WORDS; place++) {
        seed = seed * 1'664'525 + 1'013'904'223;
        index[word((seed >> 8) % DIFFERENT)].push_back(place);
    }
    return index;
}

} // namespace

static size_t answer(char *body) {
    auto index = index_of_a_page(7);
    const std::string *most = nullptr;
    size_t places = 0;
    for (const auto &[word, at] : index)
        if (at.size() > places)
            most = &word, places = at.size();
    return static_cast<size_t>(snprintf(body, ROOM, "%s: %zu times\n", most->c_str(), places));
}

int main(int argc, char **argv) {
    long port = 0;
    const setting known[] = {{"--port", &port, 1}, {nullptr, nullptr, 0}};
    read_settings(argc, argv, known);
    return serve(port);
}
