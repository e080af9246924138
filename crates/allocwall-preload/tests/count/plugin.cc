// Loaded by late.c, together with the C++ library.
#include <cstddef>
#include <new>
#include <string>
#include <vector>

struct alignas(64) Line {
    char bytes[64];
};

static std::size_t volatile huge = PTRDIFF_MAX / 2;

// Two blocks of 100 bytes, one of 64 with alignment, their ends, and one call that fails. Or only its exception.
extern "C" int plugin(int works) {
    if (!works)
        try {
            throw std::bad_alloc();
        } catch (const std::bad_alloc &) {
            return 0;
        }
    auto *one = ::operator new(100);
    auto *two = ::operator new[](100, std::nothrow);
    auto *line = new Line;
    if (reinterpret_cast<std::size_t>(line) % 64)
        return 1;
    ::operator delete(one, 100);
    ::operator delete[](two);
    delete line;
    try {
        ::operator delete(::operator new(huge));
    } catch (const std::bad_alloc &) {
        return 0;
    }
    return 1;
}
