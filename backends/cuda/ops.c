/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file ops.c
 * @brief append, gather, copy_pages, transcode and merge on the host: arguments to kernels.
 */
#include "cuda_plugin.h"

#include <string.h>

/* Vectors and rows are counted in 31 bits on the device. */
static nbl_status check_count(const char *what, uint64_t count, nbl_error *err)
{
    if (count > INT32_MAX) {
        return cuda_fail(err, NBL_E_UNSUPPORTED, "cuda: %s is %llu (allowed: up to 2^31 - 1)", what,
                         (unsigned long long)count);
    }
    return NBL_OK;
}

/* ------------------------------------------------------------------------------------------------ append */

static append_params append_params_of(const nbl_device *device, const nbl_append_args *args)
{
    const nbl_kv_shape *shape = args->pool->shape;
    append_params p;
    memset(&p, 0, sizeof p);
    p.pages = cuda_pages_of(args->pool, args->layer);
    p.centers = cuda_centers_of(&args->centers, shape);
    p.k = cuda_tensor_of(&args->k);
    p.v = cuda_tensor_of(&args->v);
    p.slots = args->slots;
    p.seq_indptr = shape->centering ? args->seq_indptr : NULL;
    p.stats = args->stats;
    p.status = device->status_device;
    p.tokens = (uint32_t)args->k.shape[0];
    p.batch = args->batch;
    p.kv_heads = shape->kv_heads;
    p.k_dim = shape->k_dim;
    p.v_dim = shape->v_dim;
    p.k_hadamard = shape->k_hadamard;
    p.v_hadamard = shape->v_hadamard;
    p.k_rule = shape->k_scale_rule;
    p.v_rule = shape->v_scale_rule;
    p.centering = shape->centering;
    p.processors = device->processors;
    return p;
}

static nbl_status check_append_memory(const nbl_device *device, const nbl_append_args *args, nbl_error *err)
{
    const nbl_kv_shape *shape = args->pool->shape;
    const cuda_named_memory list[] = {{"k", args->k.data},
                                      {"v", args->v.data},
                                      {"slots", args->slots},
                                      {"seq_indptr", shape->centering ? args->seq_indptr : NULL},
                                      {"stats", args->stats}};
    nbl_status status = cuda_check_memories(device, list, sizeof list / sizeof list[0], err);
    status = status == NBL_OK ? cuda_check_centers(device, &args->centers, shape, err) : status;
    return status == NBL_OK ? cuda_check_pool(device, "pool", args->pool, err) : status;
}

static nbl_status append(const nbl_device *device, const nbl_append_args *args, nbl_error *err)
{
    cudaStream_t stream = (cudaStream_t)args->stream.handle;
    nbl_status status = cuda_check_stream(device, args->stream, err);
    status = status == NBL_OK ? check_count("T", args->k.shape[0], err) : status;
    status = status == NBL_OK ? check_append_memory(device, args, err) : status;
    if (status != NBL_OK) {
        return status;
    }
    append_params p = append_params_of(device, args);
    if (p.centering && args->center_mode == NBL_CENTER_COMPUTE && p.batch > 0) {
        status = cuda_result(err, nbl_cuda_center_compute(&p, stream), "append, centres");
    }
    if (status != NBL_OK) {
        return status;
    }
    const int is_float = nbl_layout_pool_is_float(args->pool);
    return cuda_result(err, (is_float ? nbl_cuda_float_append : nbl_cuda_append)(&p, stream), "append");
}

nbl_status cuda_append(nbl_device *device, const nbl_append_args *args, nbl_error *err)
{
    cuda_saved saved;
    if (args->k.shape[0] == 0) {
        return NBL_OK;
    }
    nbl_status status = cuda_enter(device, &saved, err);
    return status == NBL_OK ? cuda_leave(device, &saved, append(device, args, err)) : status;
}

/* ------------------------------------------------------------------------------------------------ append_coded */

static coded_side coded_side_of(const nbl_tensor *codes, const nbl_tensor *scales, uint32_t format, uint32_t dim,
                                uint32_t kv_heads)
{
    coded_side s = {codes->data, scales->data, {0}, {0}, format, dim, scales->shape[0] == 1u && kv_heads != 1u, 0};
    memcpy(s.code_stride, codes->stride_bytes, sizeof s.code_stride);
    memcpy(s.scale_stride, scales->stride_bytes, sizeof s.scale_stride);
    return s;
}

static nbl_status append_coded(const nbl_device *device, const nbl_append_coded_args *args, nbl_error *err)
{
    const nbl_kv_shape *shape = args->pool->shape;
    const cuda_named_memory list[] = {{"k", args->k.data},
                                      {"v", args->v.data},
                                      {"k_scales", args->k_scales.data},
                                      {"v_scales", args->v_scales.data},
                                      {"slots", args->slots},
                                      {"stats", args->stats}};
    const uint64_t tokens = args->k.data != NULL ? args->k.shape[0] : args->v.shape[0];
    nbl_status status = cuda_check_stream(device, args->stream, err);
    status = status == NBL_OK ? check_count("T", tokens, err) : status;
    status = status == NBL_OK ? cuda_check_memories(device, list, sizeof list / sizeof list[0], err) : status;
    status = status == NBL_OK ? cuda_check_pool(device, "pool", args->pool, err) : status;
    if (status != NBL_OK) {
        return status;
    }
    coded_params p;
    memset(&p, 0, sizeof p);
    p.pages = cuda_pages_of(args->pool, args->layer);
    p.sides[NBL_KIND_K] = coded_side_of(&args->k, &args->k_scales, args->k_format, shape->k_dim, shape->kv_heads);
    p.sides[NBL_KIND_V] = coded_side_of(&args->v, &args->v_scales, args->v_format, shape->v_dim, shape->kv_heads);
    p.slots = args->slots;
    p.stats = args->stats;
    p.status = device->status_device;
    p.scale_token = args->scale_token;
    p.scale_layout = args->scale_layout;
    p.tokens = (uint32_t)tokens;
    p.kv_heads = shape->kv_heads;
    return cuda_result(err, nbl_cuda_append_coded(&p, (cudaStream_t)args->stream.handle), "append_coded");
}

nbl_status cuda_append_coded(nbl_device *device, const nbl_append_coded_args *args, nbl_error *err)
{
    cuda_saved saved;
    nbl_status status = cuda_enter(device, &saved, err);
    return status == NBL_OK ? cuda_leave(device, &saved, append_coded(device, args, err)) : status;
}

/* ------------------------------------------------------------------------------------------------ gather */

static gather_params gather_params_of(const nbl_device *device, const nbl_gather_args *args, uint32_t tokens)
{
    const nbl_kv_shape *shape = args->pool->shape;
    int stored = (args->flags & NBL_GATHER_STORED) != 0;
    gather_params p;
    memset(&p, 0, sizeof p);
    p.pages = cuda_pages_of(args->pool, args->layer);
    p.k = cuda_tensor_of(&args->k);
    p.v = cuda_tensor_of(&args->v);
    p.slots = args->slots;
    p.status = device->status_device;
    p.tokens = tokens;
    p.batch = args->batch;
    p.kv_heads = shape->kv_heads;
    p.k_dim = shape->k_dim;
    p.v_dim = shape->v_dim;
    p.k_hadamard = stored ? 0 : shape->k_hadamard;
    p.v_hadamard = stored ? 0 : shape->v_hadamard;
    p.processors = device->processors;
    if (shape->centering && !stored && args->k.data != NULL) {
        p.centers = cuda_centers_of(&args->centers, shape);
        p.seq_indptr = args->seq_indptr;
    }
    return p;
}

static nbl_status check_gather_memory(const nbl_device *device, const nbl_gather_args *args, nbl_error *err)
{
    const nbl_kv_shape *shape = args->pool->shape;
    int centers = shape->centering && (args->flags & NBL_GATHER_STORED) == 0 && args->k.data != NULL;
    const cuda_named_memory list[] = {{"k", args->k.data},
                                      {"v", args->v.data},
                                      {"slots", args->slots},
                                      {"seq_indptr", centers ? args->seq_indptr : NULL}};
    nbl_status status = cuda_check_memories(device, list, sizeof list / sizeof list[0], err);
    if (status == NBL_OK && centers) {
        status = cuda_check_centers(device, &args->centers, shape, err);
    }
    return status == NBL_OK ? cuda_check_pool(device, "pool", args->pool, err) : status;
}

static nbl_status gather(const nbl_device *device, const nbl_gather_args *args, uint64_t tokens, nbl_error *err)
{
    nbl_status status = cuda_check_stream(device, args->stream, err);
    status = status == NBL_OK ? check_count("T", tokens, err) : status;
    status = status == NBL_OK ? check_gather_memory(device, args, err) : status;
    if (status != NBL_OK) {
        return status;
    }
    gather_params p = gather_params_of(device, args, (uint32_t)tokens);
    const int is_float = nbl_layout_pool_is_float(args->pool);
    cudaStream_t stream = (cudaStream_t)args->stream.handle;
    return cuda_result(err, (is_float ? nbl_cuda_float_gather : nbl_cuda_gather)(&p, stream), "gather");
}

nbl_status cuda_gather(nbl_device *device, const nbl_gather_args *args, nbl_error *err)
{
    cuda_saved saved;
    const nbl_tensor *any = args->k.data != NULL ? &args->k : &args->v;
    if (any->data == NULL || any->shape[0] == 0) {
        return NBL_OK;
    }
    nbl_status status = cuda_enter(device, &saved, err);
    return status == NBL_OK ? cuda_leave(device, &saved, gather(device, args, any->shape[0], err)) : status;
}

/* ------------------------------------------------------------------------------------------------ pages */

static pages_params pages_params_of(const nbl_device *device, const nbl_pool *src, const nbl_pool *dst)
{
    pages_params p;
    memset(&p, 0, sizeof p);
    p.src = cuda_pages_of(src, 0);
    p.dst = cuda_pages_of(dst, 0);
    for (uint32_t i = 0; i < src->region_count; ++i) {
        nbl_page_layout layout = nbl_layout_page(src->shape, src->regions[i].k_format, src->regions[i].v_format);
        p.src_code_layer_stride[i] = src->regions[i].code_layer_stride;
        p.src_scale_layer_stride[i] = src->regions[i].scale_layer_stride;
        p.code_page_bytes[i] = layout.code_page_bytes;
        p.scale_page_bytes[i] = layout.scale_page_bytes;
    }
    for (uint32_t i = 0; i < dst->region_count; ++i) {
        p.dst_code_layer_stride[i] = dst->regions[i].code_layer_stride;
        p.dst_scale_layer_stride[i] = dst->regions[i].scale_layer_stride;
    }
    p.status = device->status_device;
    p.layers = src->shape->layers;
    p.same_pool = src->regions[0].codes == dst->regions[0].codes;
    p.kv_heads = dst->shape->kv_heads;
    p.k_dim = dst->shape->k_dim;
    p.v_dim = dst->shape->v_dim;
    p.k_rule = dst->shape->k_scale_rule;
    p.v_rule = dst->shape->v_scale_rule;
    return p;
}

static nbl_status check_pair(const nbl_device *device, const nbl_pool *src, const nbl_pool *dst,
                             const int32_t *src_pages, const int32_t *dst_pages, nbl_stream stream, nbl_error *err)
{
    nbl_status status = cuda_check_stream(device, stream, err);
    status = status == NBL_OK ? cuda_check_memory(device, "src_pages", src_pages, err) : status;
    status = status == NBL_OK ? cuda_check_memory(device, "dst_pages", dst_pages, err) : status;
    status = status == NBL_OK ? cuda_check_pool(device, "src_pool", src, err) : status;
    return status == NBL_OK ? cuda_check_pool(device, "dst_pool", dst, err) : status;
}

static nbl_status copy_pages(const nbl_device *device, const nbl_copy_pages_args *args, nbl_error *err)
{
    nbl_status status =
        check_pair(device, args->src_pool, args->dst_pool, args->src_pages, args->dst_pages, args->stream, err);
    if (status != NBL_OK) {
        return status;
    }
    pages_params p = pages_params_of(device, args->src_pool, args->dst_pool);
    p.src_pages = args->src_pages;
    p.dst_pages = args->dst_pages;
    p.count = args->count;
    return cuda_result(err, nbl_cuda_copy_pages(&p, (cudaStream_t)args->stream.handle), "copy_pages");
}

nbl_status cuda_copy_pages(nbl_device *device, const nbl_copy_pages_args *args, nbl_error *err)
{
    cuda_saved saved;
    if (args->count == 0) {
        return NBL_OK;
    }
    nbl_status status = cuda_enter(device, &saved, err);
    return status == NBL_OK ? cuda_leave(device, &saved, copy_pages(device, args, err)) : status;
}

static nbl_status transcode(const nbl_device *device, const nbl_transcode_args *args, nbl_error *err)
{
    nbl_status status =
        check_pair(device, args->src_pool, args->dst_pool, args->src_pages, args->dst_pages, args->stream, err);
    status = status == NBL_OK ? cuda_check_memory(device, "token_counts", args->token_counts, err) : status;
    status = status == NBL_OK ? cuda_check_memory(device, "stats", args->stats, err) : status;
    if (status != NBL_OK) {
        return status;
    }
    pages_params p = pages_params_of(device, args->src_pool, args->dst_pool);
    p.src_pages = args->src_pages;
    p.dst_pages = args->dst_pages;
    p.token_counts = args->token_counts;
    p.stats = args->stats;
    p.count = args->count;
    const int is_float = nbl_layout_pool_is_float(args->src_pool) || nbl_layout_pool_is_float(args->dst_pool);
    cudaStream_t stream = (cudaStream_t)args->stream.handle;
    return cuda_result(err, (is_float ? nbl_cuda_float_transcode : nbl_cuda_transcode)(&p, stream), "transcode");
}

nbl_status cuda_transcode(nbl_device *device, const nbl_transcode_args *args, nbl_error *err)
{
    cuda_saved saved;
    if (args->count == 0) {
        return NBL_OK;
    }
    nbl_status status = cuda_enter(device, &saved, err);
    return status == NBL_OK ? cuda_leave(device, &saved, transcode(device, args, err)) : status;
}

/* ------------------------------------------------------------------------------------------------ merge */

static merge_params merge_params_of(const nbl_device *device, const nbl_merge_args *args, const nbl_tensor *in)
{
    merge_params p;
    memset(&p, 0, sizeof p);
    p.in_state_head = cuda_tensor_of(&args->in_state_head);
    p.in_state_o = cuda_tensor_of(&args->in_state_o);
    p.in_o = cuda_tensor_of(&args->in_o);
    p.in_lse = cuda_tensor_of(&args->in_lse);
    p.state_head = cuda_tensor_of(&args->state_head);
    p.state_o = cuda_tensor_of(&args->state_o);
    p.o = cuda_tensor_of(&args->o);
    p.lse = cuda_tensor_of(&args->lse);
    p.sinks = args->sinks;
    p.status = device->status_device;
    p.count = args->count;
    p.rows = (uint32_t)in->shape[1];
    p.heads = (uint32_t)in->shape[2];
    p.dim = (uint32_t)in->shape[3];
    p.v_hadamard = args->v_hadamard;
    p.lse_base2 = (args->flags & NBL_MERGE_LSE_BASE2) != 0;
    return p;
}

static nbl_status check_merge_memory(const nbl_device *device, const nbl_merge_args *args, nbl_error *err)
{
    const cuda_named_memory list[] = {{"in_state_head", args->in_state_head.data},
                                      {"in_state_o", args->in_state_o.data},
                                      {"in_o", args->in_o.data},
                                      {"in_lse", args->in_lse.data},
                                      {"state_head", args->state_head.data},
                                      {"state_o", args->state_o.data},
                                      {"o", args->o.data},
                                      {"lse", args->lse.data},
                                      {"sinks", args->sinks}};
    return cuda_check_memories(device, list, sizeof list / sizeof list[0], err);
}

static nbl_status merge(const nbl_device *device, const nbl_merge_args *args, const nbl_tensor *in, nbl_error *err)
{
    nbl_status status = cuda_check_stream(device, args->stream, err);
    status = status == NBL_OK ? check_count("T * Hq", in->shape[1] * in->shape[2], err) : status;
    status = status == NBL_OK ? check_merge_memory(device, args, err) : status;
    if (status != NBL_OK) {
        return status;
    }
    merge_params p = merge_params_of(device, args, in);
    return cuda_result(err, nbl_cuda_merge(&p, (cudaStream_t)args->stream.handle), "merge");
}

nbl_status cuda_merge(nbl_device *device, const nbl_merge_args *args, nbl_error *err)
{
    cuda_saved saved;
    const nbl_tensor *in = args->in_state_head.data != NULL ? &args->in_state_o : &args->in_o;
    if (in->shape[1] == 0 || in->shape[2] == 0) {
        return NBL_OK;
    }
    nbl_status status = cuda_enter(device, &saved, err);
    return status == NBL_OK ? cuda_leave(device, &saved, merge(device, args, in, err)) : status;
}
