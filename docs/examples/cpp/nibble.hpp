/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file nibble.hpp
 * @brief nibble for C++17: handles that close themselves, errors as exceptions. Header-only, opens the library itself.
 */
#ifndef NIBBLE_HPP
#define NIBBLE_HPP

#include <nibble/nibble_client.h>

#include <array>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace nibble {

/** A call failed; what() is nibble's own line. */
class Error : public std::runtime_error {
public:
    explicit Error(const nbl_error &error) : std::runtime_error(error.message), status(error.status) {}

    const nbl_status status;
};

/** Calls f(arguments..., &err); throws unless it returns NBL_OK. */
template <typename F, typename... Arguments> void call(F f, Arguments... arguments)
{
    nbl_error err = NBL_INIT(nbl_error);
    if (f(arguments..., &err) != NBL_OK)
        throw Error(err);
}

/** A packed view [tokens, heads, dim] of device memory. */
struct View {
    void *data;
    std::uint32_t dtype;
    std::uint64_t tokens, heads, dim;

    operator nbl_tensor() const { return nbl_client_tensor(data, dtype, tokens, heads, dim); }
};

/** The library, a backend and its device 0. Shared by the caches that use it, closed by the last of them. */
class Device {
public:
    /** @param backend  a name or comma list; NIBBLE_BACKEND goes before it
     *  @param library  path of libnibble, or null: as the dynamic loader finds it */
    explicit Device(const char *backend, const char *library = nullptr) : client_(new nbl_client(), close)
    {
        call(nbl_client_open, client_.get(), library);
        call(nbl_client_device, client_.get(), backend);
    }

    const nbl_api_v1 &api() const { return *client_->api; }
    nbl_device *get() const { return client_->device; }
    const nbl_client *client() const { return client_.get(); }

    nbl_caps caps() const
    {
        auto found = NBL_INIT(nbl_caps);
        call(api().caps, get(), &found);
        return found;
    }

private:
    static void close(nbl_client *client)
    {
        nbl_client_close(client, nullptr);
        delete client;
    }

    std::shared_ptr<nbl_client> client_;
};

class Sequence;

/** Managed pages. Sequences must not outlive it. */
class Cache {
public:
    /** workspace_mib: scratch memory, 0 is 64; on CUDA long prefills need more, and are refused with the number. */
    Cache(Device device, const std::string &policy, std::uint32_t layers, std::uint32_t kv_heads,
          std::uint32_t head_dim, std::uint32_t sequences, std::uint64_t tokens, std::uint32_t workspace_mib = 0)
        : device_(std::move(device)), cache_(nullptr, Close{device_})
    {
        nbl_policy parsed;
        nbl_cache_config config;
        nbl_cache *made = nullptr;
        call(nbl_client_config, device_.client(), policy.c_str(), layers, kv_heads, head_dim, sequences, tokens,
             &parsed, &config);
        config.workspace_mib = workspace_mib;
        call(device_.api().cache_create, device_.client()->device, &config, &made);
        cache_.reset(made);
    }

    inline Sequence sequence();

    const Device &device() const { return device_; }
    nbl_cache *get() const { return cache_.get(); }

private:
    struct Close {
        Device device;
        void operator()(nbl_cache *cache) const { device.api().cache_destroy(cache, nullptr); }
    };

    Device device_;
    std::unique_ptr<nbl_cache, Close> cache_;
};

/** One sequence; gives its pages back when it goes. Moves, does not copy. */
class Sequence {
public:
    explicit Sequence(Cache &cache) : cache_(&cache) { call(api().seq_create, cache.get(), &handle_); }
    Sequence(Sequence &&other) noexcept : cache_(other.cache_), handle_(other.handle_) { other.cache_ = nullptr; }
    Sequence &operator=(Sequence &&other) noexcept
    {
        std::swap(cache_, other.cache_);
        std::swap(handle_, other.handle_);
        return *this;
    }
    ~Sequence()
    {
        if (cache_)
            api().seq_free(cache_->get(), handle_, nullptr);
    }

    void append(const View &k, const View &v, std::uint32_t layer = 0, nbl_stream stream = {})
    {
        const std::array<std::int32_t, 2> cut{0, static_cast<std::int32_t>(k.tokens)};
        auto args = NBL_INIT(nbl_cache_append_args);
        args.sequences = &handle_;
        args.seq_indptr = cut.data();
        args.batch = 1;
        args.layer = layer;
        args.k = k;
        args.v = v;
        args.stream = stream;
        call(api().cache_append, cache_->get(), &args);
    }

    /** Causal attention of the last rows q over the sequence, into o. */
    void attend(const View &q, const View &o, std::uint32_t layer = 0, nbl_stream stream = {})
    {
        const std::array<std::int32_t, 2> cut{0, static_cast<std::int32_t>(q.tokens)};
        auto args = NBL_INIT(nbl_cache_attend_args);
        args.flags = NBL_ATTEND_CAUSAL;
        args.sequences = &handle_;
        args.q_indptr = cut.data();
        args.batch = 1;
        args.layer = layer;
        args.q_heads = static_cast<std::uint32_t>(q.heads);
        args.q = q;
        args.o = o;
        args.stream = stream;
        call(api().cache_attend, cache_->get(), &args);
    }

    std::uint32_t length(std::uint32_t layer = 0) const
    {
        std::uint32_t tokens = 0;
        call(api().seq_length, cache_->get(), handle_, layer, &tokens);
        return tokens;
    }

private:
    const nbl_api_v1 &api() const { return cache_->device().api(); }

    Cache *cache_;
    std::uint64_t handle_ = 0;
};

inline Sequence Cache::sequence()
{
    return Sequence(*this);
}

static_assert(!std::is_copy_constructible_v<Sequence> && std::is_nothrow_move_constructible_v<Sequence>);
static_assert(!std::is_copy_constructible_v<Cache> && std::is_move_constructible_v<Cache>);

} // namespace nibble

#endif
