// Prints nothing and ends with 0 if all checks pass.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "allocwall_pool.hpp"

#define CHECK(what)                                                                                                    \
    if (!(what)) {                                                                                                     \
        std::fprintf(stderr, "line %d: %s\n", __LINE__, #what);                                                        \
        std::exit(1);                                                                                                  \
    }

static std::atomic<int> alive{0};

struct alignas(64) Order {
    std::uint64_t price, quantity;
    Order(std::uint64_t p, std::uint64_t q) : price(p), quantity(q) {
        if (q == 0) {
            throw std::runtime_error("no quantity");
        }
        ++alive;
    }
    ~Order() { --alive; }
};

int main() {
    using allocwall::handle;
    static_assert(sizeof(handle<Order>) == sizeof(void *));
    {
        // Without a free slot the handle is empty; a freed slot is used again; a constructor that throws loses no slot.
        allocwall::pool<Order> pool(2);
        auto a = pool.make(1, 2), b = pool.make(3, 4);
        CHECK(a && b && !pool.make(5, 6) && a->price == 1 && b->quantity == 4);
        CHECK(reinterpret_cast<std::uintptr_t>(a.get()) % 64 == 0);
        a.reset();
        bool threw = false;
        try {
            (void)pool.make(1, 0);
        } catch (const std::runtime_error &) {
            threw = true;
        }
        CHECK(threw && pool.make(7, 8));
    }
    CHECK(alive == 0);
    {
        // Handles outlive their pool.
        std::optional<allocwall::pool<Order>> pool(std::in_place, 4);
        auto kept = pool->make(1, 1);
        auto home = pool->make_returner();
        pool.reset();
        kept->price = 9;
        home.free(std::move(kept));
    }
    CHECK(alive == 0);
    {
        // From thread to thread: half are freed through a returner, half by destructors.
        constexpr int N = 20000;
        allocwall::pool<Order> pool(64);
        std::atomic<Order *> box{nullptr};
        std::thread consumer([&, home = pool.make_returner()]() mutable {
            for (int n = 0; n < N; ++n) {
                Order *raw;
                while (!(raw = box.exchange(nullptr, std::memory_order_acquire))) {
                    std::this_thread::yield();
                }
                handle<Order> order(raw);
                CHECK(order->price == std::uint64_t(n));
                if (n % 2) {
                    home.free(std::move(order));
                }
            }
        });
        for (int n = 0; n < N; ++n) {
            handle<Order> order;
            while (!(order = pool.make(n, 1))) {
                std::this_thread::yield();
            }
            while (box.load(std::memory_order_relaxed)) {
                std::this_thread::yield();
            }
            box.store(order.release(), std::memory_order_release);
        }
        consumer.join();
    }
    CHECK(alive == 0);
    try {
        allocwall::pool<Order> none(0);
        return 1;
    } catch (const std::invalid_argument &) {
    }
    try {
        allocwall::pool<Order> less(2, 1);
        return 1;
    } catch (const std::invalid_argument &) {
    }
}
