// Prints nothing and ends with 0 if all checks pass.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
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
    {
        // A batch arena is used again when all of it has come home, through a returner or by destructors.
        allocwall::batches<Order> batches(2, 2);
        auto home = batches.make_returner();
        auto a = batches.make(1, 1), b = batches.make(2, 1), c = batches.make(3, 1), d = batches.make(4, 1);
        CHECK(a && d && !batches.make(5, 1));
        home.free(std::move(a));
        CHECK(!batches.make(5, 1));
        b.reset();
        auto e = batches.make(5, 1);
        CHECK(e && e->price == 5 && alive == 3);
    }
    CHECK(alive == 0);
    {
        // Each buffer has the bytes that were asked for; a full class is not replaced by the next one.
        allocwall::buffers buffers({1, 1, 1, 1, 1, 1, 1});
        auto home = buffers.make_returner();
        auto a = buffers.make(100);
        CHECK(a && a.size() == 100 && !buffers.make(128) && buffers.make(129) && !buffers.make(AW_BUFFER_MAX + 1));
        std::memset(a.data(), 7, a.size());
        CHECK(a.bytes().back() == std::byte{7});
        home.free(std::move(a));
        CHECK(buffers.make(128));
    }
    {
        // Shards: each producer has slots of its own, and one consumer frees into all pools. A lane carries the handles.
        allocwall::shards<Order> shards(2, 1);
        auto home = shards.make_returner();
        auto [to, from] = allocwall::lane<handle<Order>>(4);
        for (std::uint64_t producer : {0, 1}) {
            auto order = shards[producer].make(producer, 1);
            CHECK(order && !shards[producer].make(9, 1) && to.send(order) && !order && !to.send(order));
        }
        auto first = from.recv();
        CHECK(first && first->price == 0);
        home.free(std::move(first));
        CHECK(shards[0].make(5, 1) && !shards[1].make(5, 1) && !from.is_abandoned() && !to.is_abandoned());
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
