/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file nibble_client.h
 * @brief Header-only loader for engines that open nibble with dlopen: from nothing to a cache in three calls.
 *
 *     nbl_error err = NBL_INIT(nbl_error);
 *     nbl_client nbl;
 *     nbl_cache *cache;
 *     if (nbl_client_open(&nbl, NULL, &err) || nbl_client_device(&nbl, "sim", &err) ||
 *         nbl_client_cache(&nbl, "default", layers, kv_heads, head_dim, sequences, tokens, &cache, &err))
 *         return fail(err.message);
 *     nbl.api->cache_append(cache, ...);
 *
 * Everything here is static inline and keeps no state outside nbl_client: include it in as many files, plugins and
 * languages' shims as you like. The library is opened RTLD_LOCAL and never unloaded; opening it again, from another
 * thread or another plugin of the engine, gives the same table. Programs that must not link nibble need nothing but
 * this header and -ldl; define NBL_NO_PROTOTYPES to be sure that nothing refers to nbl_get_api.
 *
 * Functions return #nbl_status and fill err (may be NULL) with one line, as the slots of nbl_api_v1 do.
 */
#ifndef NIBBLE_CLIENT_H
#define NIBBLE_CLIENT_H

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "nibble.h"

#ifdef __cplusplus
extern "C" {
#endif

/** The only file name asked of the dynamic loader: with the major, never the development link. */
#define NBL_CLIENT_LIBRARY "libnibble.so.1"

/** True if the library is new enough to have a slot of nbl_api_v1. Slots of version 1.0 are always there. */
#define NBL_CLIENT_HAS(api, slot) ((api)->struct_size >= offsetof(nbl_api_v1, slot) + sizeof((api)->slot))

/** What an engine holds. All zero is closed. */
typedef struct nbl_client {
    const nbl_api_v1 *api; /**< lives as long as the process */
    void *library;         /**< of dlopen; NULL if the table was given */
    nbl_runtime *runtime;
    nbl_device *device;
} nbl_client;

/** Fills err as a slot would; text is appended to what. */
static inline nbl_status nbl_client_fail(nbl_error *err, nbl_status status, const char *what, const char *text)
{
    if (err && err->struct_size >= sizeof *err) {
        const int bytes = snprintf(err->message, sizeof err->message, "nibble: %s%s", what, text);
        err->status = status;
        err->origin = NBL_ORIGIN_LOADER;
        err->native_code = 0;
        err->truncated = bytes < 0 || (size_t)bytes >= sizeof err->message;
    }
    return status;
}

/** Takes the table from an nbl_get_api that the caller has: one that it links, or found itself.
 *
 * @param out_client  all its fields are set
 * @retval NBL_OK
 * @retval NBL_E_ABI  the library speaks another major
 */
static inline nbl_status nbl_client_use(nbl_client *out_client, nbl_get_api_fn get_api, nbl_error *err)
{
    nbl_api_request request = NBL_INIT(nbl_api_request);
    request.abi_major = NBL_ABI_MAJOR;
    memset(out_client, 0, sizeof *out_client);
    return get_api(&request, &out_client->api, err);
}

/** Opens the library and takes its table.
 *
 * @param out_client  all its fields are set; on failure it is closed
 * @param path        of the library, or NULL: #NBL_CLIENT_LIBRARY, as the dynamic loader finds it
 * @retval NBL_OK
 * @retval NBL_E_NOT_FOUND  the library cannot be opened; err has the loader's own words
 * @retval NBL_E_ABI        it is no libnibble, or speaks another major
 */
static inline nbl_status nbl_client_open(nbl_client *out_client, const char *path, nbl_error *err)
{
    nbl_get_api_fn get_api;
    const char *name = path ? path : NBL_CLIENT_LIBRARY;
    memset(out_client, 0, sizeof *out_client);
    void *library = name[0] ? dlopen(name, RTLD_NOW | RTLD_LOCAL) : NULL; /* "" would be the program itself */
    if (!library)
        return nbl_client_fail(err, NBL_E_NOT_FOUND,
                               "libnibble cannot be opened: ", name[0] ? dlerror() : "the path is empty");
    void *symbol = dlsym(library, "nbl_get_api");
    nbl_status status;
    if (symbol) {
        memcpy(&get_api, &symbol, sizeof get_api);
        status = nbl_client_use(out_client, get_api, err);
    } else {
        status = nbl_client_fail(err, NBL_E_ABI, "not a libnibble: ", dlerror());
    }
    if (status != NBL_OK)
        dlclose(library);
    else
        out_client->library = library;
    return status;
}

/** Loads a backend and opens its device 0. Sets runtime and device of the client.
 *
 * @param backend  comma list of names, or one absolute path; NULL: "cuda". NIBBLE_BACKEND goes before it
 * @retval NBL_OK
 * @retval NBL_E_STATE  the client has a device
 * @retval other        as nbl_api_v1.load and nbl_api_v1.open; the client is as it was
 */
static inline nbl_status nbl_client_device(nbl_client *client, const char *backend, nbl_error *err)
{
    nbl_load_options options = NBL_INIT(nbl_load_options);
    nbl_runtime *runtime = NULL;
    options.backend = backend;
    if (client->runtime)
        return nbl_client_fail(err, NBL_E_STATE, "the client has a device", "");
    nbl_status status = client->api->load(&options, &runtime, NULL, err);
    if (status != NBL_OK)
        return status;
    status = client->api->open(runtime, NULL, &client->device, err);
    if (status == NBL_OK)
        client->runtime = runtime;
    else
        client->api->runtime_destroy(runtime, NULL);
    return status;
}

/** Fills the configuration of a managed cache from a policy, for keys and values of one head dimension; pages of 64
 *  tokens. Every field may be changed before cache_create.
 *
 * @param policy         as nbl_api_v1.policy_parse: "kv4", "kv8", "kv4,recent=256" ...; NULL: "default"
 * @param sequences_max  sequences alive at one time
 * @param tokens_max     tokens of all sequences together
 * @param out_policy     the policy as data; out_config points to its rules
 * @retval NBL_OK
 * @retval NBL_E_UNSUPPORTED  the library is of ABI 1.0, which has no policies
 * @retval other              as policy_parse
 */
static inline nbl_status nbl_client_config(const nbl_client *client, const char *policy, uint32_t layers,
                                           uint32_t kv_heads, uint32_t head_dim, uint32_t sequences_max,
                                           uint64_t tokens_max, nbl_policy *out_policy, nbl_cache_config *out_config,
                                           nbl_error *err)
{
    nbl_policy p = NBL_INIT(nbl_policy);
    if (!NBL_CLIENT_HAS(client->api, policy_parse))
        return nbl_client_fail(err, NBL_E_UNSUPPORTED, "the library has no policies (needed: ABI 1.1)", "");
    const nbl_status status =
        client->api->policy_parse(policy ? policy : "default", layers, head_dim, head_dim, &p, err);
    if (status != NBL_OK)
        return status;
    *out_policy = p;
    memset(out_config, 0, sizeof *out_config);
    out_config->struct_size = (uint32_t)sizeof *out_config;
    out_config->shape.struct_size = (uint32_t)sizeof out_config->shape;
    out_config->shape.layers = layers;
    out_config->shape.kv_heads = kv_heads;
    out_config->shape.k_dim = head_dim;
    out_config->shape.v_dim = head_dim;
    out_config->shape.page_tokens = 64;
    out_config->shape.k_hadamard = p.k_hadamard;
    out_config->shape.v_hadamard = p.v_hadamard;
    out_config->shape.centering = p.centering;
    out_config->shape.k_scale_rule = p.scale_rule;
    out_config->shape.v_scale_rule = p.scale_rule;
    out_config->k_format = p.k_format;
    out_config->v_format = p.v_format;
    out_config->sink_tokens = p.sink_tokens;
    out_config->rules = out_policy->rules;
    out_config->rule_count = p.rule_count;
    out_config->sequences_max = sequences_max;
    out_config->tokens_max = tokens_max;
    return NBL_OK;
}

/** Raises workspace_mib of a configuration to what attention of up to q_tokens query tokens of one sequence takes on
 *  the client's device, which is asked. Engines that prefill on a GPU call it between nbl_client_config and
 *  cache_create: the default, 64, serves decode and small pieces of a prefill.
 *
 * @param policy    as nbl_client_config gave it
 * @param q_tokens  most query tokens of one sequence in a call of cache_attend
 * @retval NBL_OK
 * @retval other    as nbl_api_v1.workspace_size
 */
static inline nbl_status nbl_client_workspace(const nbl_client *client, const nbl_policy *policy, uint32_t q_heads,
                                              uint32_t q_tokens, nbl_cache_config *config, nbl_error *err)
{
    const uint64_t most = config->tokens_max < NBL_KV_TOKENS_MAX ? config->tokens_max : NBL_KV_TOKENS_MAX;
    const uint32_t least = config->workspace_mib > 0 ? config->workspace_mib : NBL_WORKSPACE_MIB_DEFAULT;
    nbl_kv_shape shape = config->shape;
    uint64_t bytes = 0;
    nbl_op_desc op;
    memset(&op, 0, sizeof op);
    op.struct_size = (uint32_t)sizeof op;
    shape.struct_size = (uint32_t)sizeof shape;
    op.shape = &shape;
    op.op = NBL_OP_ATTEND;
    op.k_format = config->k_format;
    op.v_format = config->v_format;
    op.q_format = policy->q_format;
    op.q_heads = q_heads;
    op.in_dtype = op.out_dtype = NBL_F32;
    op.features = policy->q_centering ? NBL_FEATURE_Q_CENTERS : 0u;
    op.batch_max = 1;
    op.q_tokens_max = op.q_len_max = q_tokens;
    op.kv_len_max = config->sequence_tokens_max > 0 ? config->sequence_tokens_max : (uint32_t)most;
    const nbl_status status = client->api->workspace_size(client->device, &op, &bytes, err);
    const uint64_t mib = (bytes + 0xfffffu) >> 20;
    if (status == NBL_OK)
        config->workspace_mib = mib <= least ? least : mib < UINT32_MAX ? (uint32_t)mib : UINT32_MAX;
    return status;
}

/** Creates a managed cache on the client's device: nbl_client_config, then cache_create. The caller destroys it before
 *  nbl_client_close.
 *
 * @param policy  as nbl_client_config; NULL: "default"
 * @retval NBL_OK
 * @retval other  as nbl_client_config and nbl_api_v1.cache_create
 */
static inline nbl_status nbl_client_cache(const nbl_client *client, const char *policy, uint32_t layers,
                                          uint32_t kv_heads, uint32_t head_dim, uint32_t sequences_max,
                                          uint64_t tokens_max, nbl_cache **out_cache, nbl_error *err)
{
    nbl_policy parsed;
    nbl_cache_config config;
    const nbl_status status =
        nbl_client_config(client, policy, layers, kv_heads, head_dim, sequences_max, tokens_max, &parsed, &config, err);
    return status == NBL_OK ? client->api->cache_create(client->device, &config, out_cache, err) : status;
}

/** A packed view [tokens, heads, dim] of device memory. data is not written where the view is an input. */
static inline nbl_tensor nbl_client_tensor(const void *data, uint32_t dtype, uint64_t tokens, uint64_t heads,
                                           uint64_t dim)
{
    nbl_tensor view;
    memset(&view, 0, sizeof view);
    memcpy(&view.data, &data, sizeof data);
    view.dtype = dtype;
    view.rank = 3;
    view.shape[0] = tokens;
    view.shape[1] = heads;
    view.shape[2] = dim;
    return view;
}

/** Closes device, runtime and library, as far as they are open; then the client is closed. The library stays in the
 *  process.
 *
 * @retval NBL_OK
 * @retval NBL_E_STATE  caches of the device exist; nothing is closed
 */
static inline nbl_status nbl_client_close(nbl_client *client, nbl_error *err)
{
    if (client->api) {
        nbl_status status = client->api->close(client->device, err);
        if (status == NBL_OK)
            client->device = NULL;
        if (status == NBL_OK)
            status = client->api->runtime_destroy(client->runtime, err);
        if (status != NBL_OK)
            return status;
    }
    if (client->library)
        dlclose(client->library);
    memset(client, 0, sizeof *client);
    return NBL_OK;
}

#ifdef __cplusplus
}
#endif

#endif
