// The C++20 interface of allocwall_pool.h: objects in a pool, owned by handles that may be destroyed on any thread.
//
//     allocwall::pool<Order> pool(4096);
//     auto home = pool.make_returner();           // for the consumer's thread
//     auto order = pool.make(price, quantity);    // empty if every slot is in use
//     ...                                         // to the other thread
//     home.free(std::move(order));                // a plain store; ~order() works too, with one atomic addition
#ifndef ALLOCWALL_POOL_HPP
#define ALLOCWALL_POOL_HPP

#include <cstddef>
#include <memory>
#include <new>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "allocwall_pool.h"

namespace allocwall {

struct to_pool {
    template <class T> void operator()(T *object) const noexcept {
        std::destroy_at(object);
        aw_give(object);
    }
};

/// Owns an object in a slot. One pointer wide. It may outlive its pool. To destroy it costs one atomic addition.
template <class T> using handle = std::unique_ptr<T, to_pool>;

/// A consumer's end of a pool. Only one thread at a time may use it.
template <class T> class returner {
  public:
    explicit returner(aw_returner *raw) noexcept : raw_(raw) {}

    void free(handle<T> object) noexcept {
        if (T *raw = object.release()) {
            std::destroy_at(raw);
            aw_returner_give(raw_.get(), raw);
        }
    }

  private:
    struct end {
        void operator()(aw_returner *raw) const noexcept { aw_returner_free(raw); }
    };
    std::unique_ptr<aw_returner, end> raw_;
};

/// A pool of objects. Only one thread at a time may use it; handles may be destroyed on any thread.
template <class T> class pool {
    static_assert(alignof(T) <= 64, "slots are aligned to 64 bytes");
    static_assert(std::is_nothrow_destructible_v<T>, "a destructor that throws would lose its slot");

  public:
    /// Makes a pool of `capacity` slots. It grows up to `limit` slots when all are in use; 0 means that it never grows.
    /// Throws std::invalid_argument or std::bad_alloc.
    explicit pool(std::size_t capacity, std::size_t limit = 0) {
        aw_status status;
        raw_.reset(aw_pool_new(sizeof(T), capacity, limit ? limit : capacity, &status));
        switch (status) {
        case AW_OK: return;
        case AW_NO_CAPACITY: throw std::invalid_argument("a pool needs room for at least one slot");
        case AW_LIMIT_BELOW_CAPACITY: throw std::invalid_argument("the limit is below the capacity");
        case AW_SLOT_TOO_LARGE: throw std::invalid_argument("the largest slot has 65536 bytes");
        case AW_OUT_OF_MEMORY: throw std::bad_alloc();
        }
    }

    /// Constructs an object in a slot. The handle is empty, and the arguments are not used, if every slot is in use.
    template <class... Args> handle<T> make(Args &&...args) {
        void *slot = aw_pool_take(raw_.get());
        if (!slot) {
            return {};
        }
        if constexpr (std::is_nothrow_constructible_v<T, Args...>) {
            return handle<T>(::new (slot) T(std::forward<Args>(args)...));
        } else {
            try {
                return handle<T>(::new (slot) T(std::forward<Args>(args)...));
            } catch (...) {
                aw_pool_give(raw_.get(), slot);
                throw;
            }
        }
    }

    /// Makes a consumer's end. Throws std::bad_alloc.
    returner<T> make_returner() {
        aw_returner *raw = aw_returner_new(raw_.get());
        if (!raw) {
            throw std::bad_alloc();
        }
        return returner<T>(raw);
    }

  private:
    struct end {
        void operator()(aw_pool *raw) const noexcept { aw_pool_free(raw); }
    };
    std::unique_ptr<aw_pool, end> raw_;
};

} // namespace allocwall

#endif
