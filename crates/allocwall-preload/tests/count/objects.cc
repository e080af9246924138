// Operators new and delete, exceptions that pass through them, and destructors of thread_local objects that allocate.
// The third argument says which calls the operators of this program are: "malloc", "operators", or "plain" where only those
// for aligned blocks are calls of malloc.
#include "own.h"
#include <new>
#include <string>
#include <thread>
#include <vector>

static std::size_t volatile huge = PTRDIFF_MAX / 2;
static bool are_counted, aligned_are_counted;

static void *made(std::size_t size, bool is_aligned = false) {
    own_size(size);
    if (is_aligned ? aligned_are_counted : are_counted)
        ADD(news, 1);
    else if (is_aligned)
        ADD(aligned, 1);
    return nullptr;
}

static void ended(bool is_aligned = false) {
    ADD(frees, 1);
    if (is_aligned ? aligned_are_counted : are_counted)
        ADD(deletes, 1);
}

struct alignas(256) Wide {
    char bytes[512];
};

struct Last {
    ~Last() {
        if (!works)
            return;
        made(33);
        ::operator delete(::operator new(33));
        ended();
    }
};
static thread_local Last last;

static void all_forms() {
    const std::align_val_t to{128};
    made(40), ended();
    ::operator delete(::operator new(40));
    made(40), ended();
    ::operator delete(::operator new(40), std::size_t{40});
    made(41), ended();
    ::operator delete[](::operator new[](41));
    made(42), ended();
    ::operator delete(::operator new(42, std::nothrow), std::nothrow);
    made(43), ended();
    ::operator delete[](::operator new[](43, std::nothrow), std::nothrow);
    made(256, true), ended(true);
    ::operator delete(::operator new(256, to), to);
    made(256, true), ended(true);
    ::operator delete[](::operator new[](256, to), 256, to);
    made(512, true), ended(true);
    ::operator delete(::operator new(512, to, std::nothrow), to, std::nothrow);
    made(512, true), ended(true);
    ::operator delete[](::operator new[](512, to, std::nothrow), to, std::nothrow);
    made(sizeof(Wide), true), ended(true);
    auto *wide = new Wide;
    CHECK(reinterpret_cast<std::uintptr_t>(wide) % 256 == 0);
    delete wide;
    made(1000 * sizeof(std::string)), ended();
    std::vector<std::string> texts(1000, "short");
}

// Returns how often it was called.
static int handled;
static void handler() {
    // What a handler allocates counts too, unless it is called by the allocator's own operator.
    if (++handled % 3 == 0)
        throw std::bad_alloc();
}

int main(int argc, char **argv) {
    begin(argc, argv);
    aligned_are_counted = argc > 2 && std::string(argv[2]) == "operators";
    are_counted = aligned_are_counted || (argc > 2 && std::string(argv[2]) == "plain");
    std::thread([] {
        warm();
        (void)&last;
        for (int i = 0; works && i < 1000; i++)
            all_forms();
    }).join();
    bool throws = argc <= 3;
    std::set_new_handler(handler);
    for (int i = 0; throws && i < 10; i++) {
        // The exception itself is allocated too, in both runs.
        try {
            if (!works)
                throw std::bad_alloc();
            ::operator delete(::operator new(huge));
            CHECK(false);
        } catch (const std::bad_alloc &) {
        }
        // With libstdc++ each attempt is a call of malloc.
        if (works && !are_counted)
            ADD(failed, 3);
    }
    for (int i = 0; works && i < 1000; i++)
        all_forms();
    print_own();
    return 0;
}
