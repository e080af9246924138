// Every operator new and delete, containers, exceptions, threads. With an argument: requests more memory than the machine has.
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

struct alignas(256) Wide {
    char bytes[512];
};

#define CHECK(what) do { if (!(what)) { std::printf("%d: %s\n", __LINE__, #what); return 1; } } while (0)

static std::size_t volatile huge = PTRDIFF_MAX / 2;

int main(int argc, char **) {
    if (argc > 1) {
        try {
            ::operator delete(::operator new(huge));
        } catch (const std::bad_alloc &) {
            std::puts("thrown");
        }
        return 0;
    }
    auto *one = new std::string(1000, 'x');
    CHECK(one->size() == 1000);
    delete one;
    auto *many = new std::string[50];
    many[49] = "y";
    delete[] many;
    auto *wide = new Wide;
    CHECK(reinterpret_cast<std::uintptr_t>(wide) % 256 == 0);
    delete wide;
    auto *wides = new Wide[3];
    CHECK(reinterpret_cast<std::uintptr_t>(wides) % 256 == 0);
    delete[] wides;
    CHECK(::operator new(huge, std::nothrow) == nullptr);
    void *sized = ::operator new(77, std::nothrow);
    ::operator delete(sized, std::size_t{77});
    std::map<int, std::vector<std::string>> map;
    for (int i = 0; i < 20000; i++)
        map[i * 7919 % 5000].push_back(std::to_string(i) + std::string(30, '-'));
    std::size_t total = 0;
    for (auto &pair : map)
        for (auto &text : pair.second)
            total += text.size();
    CHECK(total == 20000 * 30 + 10 + 90 * 2 + 900 * 3 + 9000 * 4 + 10000 * 5);
    int caught = 0;
    for (int i = 0; i < 1000; i++)
        try {
            throw std::runtime_error(std::to_string(i));
        } catch (const std::exception &) {
            caught++;
        }
    CHECK(caught == 1000);
    auto shared = std::make_shared<std::vector<int>>(100000, 1);
    std::thread other([shared] { shared->resize(200000); });
    other.join();
    CHECK(shared->size() == 200000);
    std::puts("ok");
    return 0;
}
