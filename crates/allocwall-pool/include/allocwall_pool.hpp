// The C++20 interface of allocwall_pool.h: objects in a pool, owned by handles that may be destroyed on any thread.
//
//     allocwall::pool<Order> pool(4096);
//     auto home = pool.make_returner();           // for the consumer's thread
//     auto order = pool.make(price, quantity);    // empty if every slot is in use
//     ...                                         // to the other thread
//     home.free(std::move(order));                // a plain store; ~order() works too, with one atomic addition
#ifndef ALLOCWALL_POOL_HPP
#define ALLOCWALL_POOL_HPP

#include <array>
#include <cstddef>
#include <memory>
#include <new>
#include <span>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "allocwall_pool.h"

namespace allocwall {

/// Destroys an object and gives its slot back with this function.
template <void (*give)(void *)> struct to_home {
    template <class T> void operator()(T *object) const noexcept {
        std::destroy_at(object);
        give(object);
    }
};

/// Owns an object in a slot. One pointer wide. It may outlive its pool. To destroy it costs one atomic addition.
template <class T> using handle = std::unique_ptr<T, to_home<aw_give>>;
/// The same for a slot of a batch arena.
template <class T> using batch_handle = std::unique_ptr<T, to_home<aw_batch_give>>;

namespace detail {

/// Owns something of the C interface.
template <class Raw, void (*end)(Raw *)> struct ending {
    void operator()(Raw *raw) const noexcept { end(raw); }
};
template <class Raw, void (*end)(Raw *)> using owner = std::unique_ptr<Raw, ending<Raw, end>>;

inline void check(aw_status status) {
    switch (status) {
    case AW_OK: return;
    case AW_NO_CAPACITY: throw std::invalid_argument("a capacity of 0");
    case AW_LIMIT_BELOW_CAPACITY: throw std::invalid_argument("the limit is below the capacity");
    case AW_SLOT_TOO_LARGE: throw std::invalid_argument("the largest slot has 65536 bytes");
    case AW_NULL: throw std::invalid_argument("a null pointer");
    case AW_OUT_OF_MEMORY: throw std::bad_alloc();
    }
}

template <class Raw> Raw *there(Raw *raw) {
    return raw ? raw : throw std::bad_alloc();
}

template <class T> inline constexpr bool fits = alignof(T) <= 64 && std::is_nothrow_destructible_v<T>;

/// Constructs an object in a slot, if there is one. If the constructor throws, `undo` gets the slot.
template <class Handle, class Undo, class... Args> Handle construct(void *slot, Undo undo, Args &&...args) {
    using T = typename Handle::element_type;
    if (!slot) {
        return {};
    }
    if constexpr (std::is_nothrow_constructible_v<T, Args...>) {
        return Handle(::new (slot) T(std::forward<Args>(args)...));
    } else {
        try {
            return Handle(::new (slot) T(std::forward<Args>(args)...));
        } catch (...) {
            undo(slot);
            throw;
        }
    }
}

/// A consumer's end, of any kind. Only one thread at a time may use it.
template <class Handle, class Raw, void (*end)(Raw *), void (*give)(Raw *, void *)> class returner {
  public:
    explicit returner(Raw *raw) noexcept : raw_(raw) {}

    void free(Handle object) noexcept {
        if (auto *raw = object.release()) {
            std::destroy_at(raw);
            give(raw_.get(), raw);
        }
    }

  private:
    owner<Raw, end> raw_;
};

} // namespace detail

/// A consumer's end of a pool. Only one thread at a time may use it.
template <class T> using returner = detail::returner<handle<T>, aw_returner, aw_returner_free, aw_returner_give>;
/// A consumer's end of several pools.
template <class T>
using shard_returner = detail::returner<handle<T>, aw_shard_returner, aw_shard_returner_free, aw_shard_returner_give>;
/// A consumer's end of batch arenas.
template <class T>
using batch_returner =
    detail::returner<batch_handle<T>, aw_batch_returner, aw_batch_returner_free, aw_batch_returner_give>;

template <class T> class shards;

/// A pool of objects. Only one thread at a time may use it; handles may be destroyed on any thread.
template <class T> class pool {
    static_assert(detail::fits<T>, "slots are aligned to 64 bytes, and a destructor that throws would lose its slot");

  public:
    /// Makes a pool of `capacity` slots. It grows up to `limit` slots when all are in use; 0 means that it never grows.
    /// Throws std::invalid_argument or std::bad_alloc.
    explicit pool(std::size_t capacity, std::size_t limit = 0) {
        aw_status status;
        raw_.reset(aw_pool_new(sizeof(T), capacity, limit ? limit : capacity, &status));
        detail::check(status);
    }

    /// Constructs an object in a slot. The handle is empty, and the arguments are not used, if every slot is in use.
    template <class... Args> handle<T> make(Args &&...args) {
        auto undo = [this](void *slot) { aw_pool_give(raw_.get(), slot); };
        return detail::construct<handle<T>>(aw_pool_take(raw_.get()), undo, std::forward<Args>(args)...);
    }

    /// Destroys an object on the pool's own thread, without an atomic write.
    void free(handle<T> object) noexcept {
        if (T *raw = object.release()) {
            std::destroy_at(raw);
            aw_pool_give(raw_.get(), raw);
        }
    }

    /// Makes a consumer's end. Throws std::bad_alloc.
    returner<T> make_returner() { return returner<T>(detail::there(aw_returner_new(raw_.get()))); }

  private:
    friend class shards<T>;
    using owner = detail::owner<aw_pool, aw_pool_free>;
    explicit pool(owner raw) noexcept : raw_(std::move(raw)) {}

    owner raw_;
};

/// Pools for several producers, with consumers that free into all of them. Each pool may go to a thread of its own.
template <class T> class shards {
  public:
    /// Makes `producers` pools of `capacity` slots. Throws std::invalid_argument or std::bad_alloc.
    shards(std::size_t producers, std::size_t capacity) {
        std::vector<aw_pool *> raw(producers);
        detail::check(aw_shards_new(sizeof(T), producers, capacity, raw.data()));
        pools_.reserve(producers);
        for (aw_pool *one : raw) {
            pools_.push_back(pool<T>(typename pool<T>::owner(one)));
        }
    }

    /// The pool of a producer. Throws std::out_of_range.
    pool<T> &operator[](std::size_t producer) { return pools_.at(producer); }

    /// Makes a consumer's end of all pools, before they go to their threads. Throws std::bad_alloc.
    shard_returner<T> make_returner() {
        std::vector<aw_pool *> raw;
        for (pool<T> &one : pools_) {
            raw.push_back(one.raw_.get());
        }
        return shard_returner<T>(detail::there(aw_shard_returner_new(raw.data(), raw.size())));
    }

  private:
    std::vector<pool<T>> pools_;
};

/// Batch arenas of objects. An arena is used again when all of its objects are destroyed, so one object that is kept keeps
/// its whole arena. Only one thread at a time may use it.
template <class T> class batches {
    static_assert(detail::fits<T>, "slots are aligned to 64 bytes, and a destructor that throws would lose its slot");

  public:
    /// Makes `arenas` arenas of `slots` slots, and more when none has come home, up to `limit`; 0 means that none is
    /// added. Throws std::invalid_argument or std::bad_alloc.
    batches(std::size_t arenas, std::size_t slots, std::size_t limit = 0) {
        aw_status status;
        raw_.reset(aw_batches_new(sizeof(T), arenas, slots, limit ? limit : arenas, &status));
        detail::check(status);
    }

    /// Constructs an object in the next slot. The handle is empty, and the arguments are not used, if there is none.
    template <class... Args> batch_handle<T> make(Args &&...args) {
        return detail::construct<batch_handle<T>>(
            aw_batches_take(raw_.get()), aw_batch_give, std::forward<Args>(args)...);
    }

    /// Makes a consumer's end. Throws std::bad_alloc.
    batch_returner<T> make_returner() { return batch_returner<T>(detail::there(aw_batch_returner_new(raw_.get()))); }

  private:
    detail::owner<aw_batches, aw_batches_free> raw_;
};

/// Owns bytes. It may outlive its buffers. To destroy it costs one atomic addition.
class buffer {
  public:
    buffer() = default;
    buffer(void *start, std::size_t size) noexcept : start_(static_cast<std::byte *>(start)), size_(start ? size : 0) {}

    explicit operator bool() const noexcept { return bool(start_); }
    std::byte *data() noexcept { return start_.get(); }
    const std::byte *data() const noexcept { return start_.get(); }
    std::size_t size() const noexcept { return size_; }
    std::span<std::byte> bytes() noexcept { return {data(), size()}; }

    /// The start, which is now yours to give back, with aw_give.
    void *release() noexcept { return start_.release(); }

  private:
    struct home {
        void operator()(std::byte *start) const noexcept { aw_give(start); }
    };
    std::unique_ptr<std::byte, home> start_;
    std::size_t size_ = 0;
};

/// A consumer's end of byte buffers. Only one thread at a time may use it.
class buffer_returner {
  public:
    explicit buffer_returner(aw_buffer_returner *raw) noexcept : raw_(raw) {}

    void free(buffer bytes) noexcept { aw_buffer_returner_give(raw_.get(), bytes.release()); }

  private:
    detail::owner<aw_buffer_returner, aw_buffer_returner_free> raw_;
};

/// Byte buffers of several size classes. Only one thread at a time may use them; buffers may be destroyed on any thread.
class buffers {
  public:
    using capacities = std::array<std::size_t, AW_BUFFER_CLASSES>;

    /// Makes this many buffers of 64, 128, … 4096 bytes. Throws std::invalid_argument or std::bad_alloc.
    explicit buffers(const capacities &of_each) {
        aw_status status;
        raw_.reset(aw_buffers_new(of_each.data(), &status));
        detail::check(status);
    }

    /// A buffer of `size` bytes that are not initialised. It is empty if all buffers of its class are in use, or if
    /// `size` is above AW_BUFFER_MAX.
    buffer make(std::size_t size) noexcept { return {aw_buffers_take(raw_.get(), size), size}; }

    /// Makes a consumer's end. Throws std::bad_alloc.
    buffer_returner make_returner() { return buffer_returner(detail::there(aw_buffer_returner_new(raw_.get()))); }

  private:
    detail::owner<aw_buffers, aw_buffers_free> raw_;
};

/// The sending end of a lane, for handles. Only one thread at a time may use it.
template <class Handle> class lane_sender {
  public:
    explicit lane_sender(aw_lane_sender *raw) noexcept : raw_(raw) {}

    /// Sends an object and leaves its handle empty. Returns false if the lane is full or the handle empty; it is then
    /// unchanged. Never waits.
    bool send(Handle &object) noexcept {
        bool sent = aw_lane_send(raw_.get(), object.get());
        if (sent) {
            (void)object.release();
        }
        return sent;
    }

    /// Whether the receiver is gone.
    bool is_abandoned() const noexcept { return aw_lane_sender_is_abandoned(raw_.get()); }

  private:
    detail::owner<aw_lane_sender, aw_lane_sender_free> raw_;
};

/// The receiving end of a lane. Only one thread at a time may use it. What is in the lane when this end is destroyed is
/// destroyed too; what is sent afterwards is lost, so destroy the sender first.
template <class Handle> class lane_receiver {
  public:
    explicit lane_receiver(aw_lane_receiver *raw) noexcept : raw_(raw) {}
    lane_receiver(lane_receiver &&) noexcept = default;
    ~lane_receiver() {
        while (raw_ && recv()) {
        }
    }

    /// Takes the oldest object. The handle is empty if there is none. Never waits.
    Handle recv() noexcept {
        return Handle(static_cast<typename Handle::element_type *>(aw_lane_recv(raw_.get())));
    }

    /// Whether the sender is gone. What is in the lane now is then the last.
    bool is_abandoned() const noexcept { return aw_lane_receiver_is_abandoned(raw_.get()); }

  private:
    detail::owner<aw_lane_receiver, aw_lane_receiver_free> raw_;
};

/// Makes a queue of handles from one thread to another. Throws std::invalid_argument or std::bad_alloc.
template <class Handle> std::pair<lane_sender<Handle>, lane_receiver<Handle>> lane(std::size_t capacity) {
    aw_lane_sender *to;
    aw_lane_receiver *from;
    detail::check(aw_lane_new(capacity, &to, &from));
    return {lane_sender<Handle>(to), lane_receiver<Handle>(from)};
}

} // namespace allocwall

#endif
