/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file attend.c
 * @brief attend on the host: workspace, kernel choice, launches (NUM 5).
 */
#include "cuda_plugin.h"

#include "exp2grid.h"
#include "kernels/tensor.h"

#include <fenv.h>
#include <math.h>
#include <string.h>

_Static_assert(sizeof(cuda_sequence) == 16 && sizeof(cuda_query) == 16, "select.c knows these sizes");

/* The kernels of the float core and of the Blackwell core keep a tile in shared memory. */
static nbl_status check_core(const nbl_device *device, const nbl_kv_shape *shape, int is_float, uint32_t q_format,
                             nbl_error *err)
{
    const uint64_t bytes = q_format == NBL_Q_FP4 ? nbl_cuda_blackwell_shared_bytes(shape->k_dim, shape->v_dim)
                                                 : nbl_cuda_float_shared_bytes(shape->k_dim, shape->v_dim);
    if (is_float && bytes > device->shared_bytes) {
        return cuda_fail(err, NBL_E_UNSUPPORTED,
                         "cuda: float formats with k_dim %u and v_dim %u need %llu bytes of shared memory, a block of "
                         "this GPU has %u",
                         shape->k_dim, shape->v_dim, (unsigned long long)bytes, device->shared_bytes);
    }
    return NBL_OK;
}

nbl_status cuda_supports(nbl_device *device, const nbl_op_desc *op, nbl_error *err)
{
    if (op->op < NBL_OP_APPEND || op->op > NBL_OP_APPEND_CODED) {
        return cuda_fail(err, NBL_E_UNSUPPORTED, "cuda: op %u is unknown", op->op);
    }
    if (op->features & ~NBL_FEATURES_ALL) {
        return cuda_fail(err, NBL_E_UNSUPPORTED, "cuda: features 0x%x are unknown", op->features & ~NBL_FEATURES_ALL);
    }
    nbl_status status = cuda_check_shape(op->shape, err);
    if (status == NBL_OK && op->op == NBL_OP_ATTEND) {
        const int is_float = nbl_layout_is_float(op->k_format) || nbl_layout_is_float(op->v_format);
        status = check_core(device, op->shape, is_float, op->q_format, err);
    }
    return status;
}

/* ------------------------------------------------------------------------------------------------ workspace */

static attend_bounds bounds_of(const nbl_device *device, const nbl_kv_shape *shape)
{
    attend_bounds b = {0};
    b.kv_heads = shape->kv_heads;
    b.k_dim = shape->k_dim;
    b.v_dim = shape->v_dim;
    b.page_tokens = shape->page_tokens;
    b.processors = device->processors;
    b.capability = device->capability;
    return b;
}

nbl_status cuda_workspace_size(nbl_device *device, const nbl_op_desc *op, uint64_t *out_bytes, nbl_error *err)
{
    (void)err;
    *out_bytes = 0;
    if (op->op == NBL_OP_ATTEND) {
        attend_bounds b = bounds_of(device, op->shape);
        b.batch = op->batch_max;
        b.q_tokens = op->q_tokens_max;
        b.q_heads = op->q_heads;
        b.q_len_max = op->q_len_max;
        b.kv_len_max = op->kv_len_max;
        b.q_centers = (op->features & NBL_FEATURE_Q_CENTERS) != 0;
        *out_bytes = cuda_plan_make(&b).bytes;
    }
    return NBL_OK;
}

/* ------------------------------------------------------------------------------------------------ parameters */

/* c and cap of NUM 5.1 and 5.3, in the default floating-point environment whatever the caller's is. */
__attribute__((noinline)) static void set_scales(const nbl_attend_args *args, attend_params *p)
{
    float sm_scale = args->sm_scale != 0.0f ? args->sm_scale : 1.0f / sqrtf((float)args->pool->shape->k_dim);
    p->c = args->soft_cap != 0.0f ? sm_scale / args->soft_cap : sm_scale * NBL_LOG2E;
    p->cap = args->soft_cap != 0.0f ? args->soft_cap * NBL_LOG2E : 0.0f;
}

static void set_scales_exactly(const nbl_attend_args *args, attend_params *p)
{
    fenv_t saved;
    fegetenv(&saved);
    fesetenv(FE_DFL_ENV);
    set_scales(args, p);
    fesetenv(&saved);
}

/* No sequence has more query rows than there are in all. Bounds of engines may lie far above: products of this one with
 * heads stay below 2^31, as the rows do. */
static uint32_t q_len_bound(const nbl_attend_args *args)
{
    return args->q.shape[0] < args->q_len_max ? (uint32_t)args->q.shape[0] : args->q_len_max;
}

static void set_sizes(const nbl_attend_args *args, attend_params *p)
{
    const nbl_kv_shape *shape = args->pool->shape;
    p->batch = args->batch;
    p->q_tokens = (uint32_t)args->q.shape[0];
    p->q_heads = args->q_heads;
    p->kv_heads = shape->kv_heads;
    p->group_rows = args->q_heads / shape->kv_heads;
    p->group_rows_inverse = (255u + p->group_rows) / p->group_rows;
    p->k_dim = shape->k_dim;
    p->v_dim = shape->v_dim;
    p->k_dim_padded = nbl_layout_dim_padded(shape->k_dim);
    p->v_dim_padded = nbl_layout_dim_padded(shape->v_dim);
    p->k_hadamard = shape->k_hadamard;
    p->v_hadamard = shape->v_hadamard;
    p->centering = shape->centering;
    p->q_format = args->q_format == NBL_Q4 ? NBL_Q4 : NBL_Q8;
    p->q_len_max = q_len_bound(args);
    p->kv_len_max = args->kv_len_max;
    p->layer = args->layer;
}

static void set_visibility(const nbl_attend_args *args, attend_params *p)
{
    p->flags = args->flags;
    p->window_left = args->window_left;
    p->window_right = args->window_right;
    p->range_begin = args->range_begin;
    p->range_end = args->range_end != 0 ? args->range_end : UINT32_MAX;
    p->tree_mask_stride = args->tree_mask_stride;
    p->alibi_slopes = args->alibi_slopes;
    p->sinks = args->sinks;
    p->tree_mask = args->tree_mask;
    p->page_table = args->page_table;
    p->page_table_stride = args->page_table_stride;
    p->q_indptr = args->q_indptr;
    p->kv_len = args->kv_len;
}

static void set_tensors(const nbl_attend_args *args, attend_params *p)
{
    p->q = cuda_tensor_of(&args->q);
    p->o = cuda_tensor_of(&args->o);
    p->lse = cuda_tensor_of(&args->lse);
    p->state_head = cuda_tensor_of(&args->state_head);
    p->state_o = cuda_tensor_of(&args->state_o);
    p->state_count = args->state_head.data != NULL ? (uint32_t)args->state_head.shape[0] : 0u;
}

static void set_workspace(const nbl_attend_args *args, const cuda_plan *plan, attend_params *p)
{
    uint8_t *workspace = args->workspace;
    p->first_chunk = plan->first_chunk;
    p->chunks = plan->chunks;
    p->split = plan->split;
    p->state_floats = plan->state_floats;
    p->sequences = (cuda_sequence *)(void *)(workspace + plan->sequences_at);
    p->ends = (uint32_t *)(void *)(workspace + plan->ends_at);
    p->queries = (cuda_query *)(void *)(workspace + plan->queries_at);
    p->codes = (int8_t *)(workspace + plan->codes_at);
    p->states = (float *)(void *)(workspace + plan->states_at);
    p->prefill_items = (uint32_t *)(void *)(workspace + plan->items_at);
    p->images = workspace + plan->images_at;
    p->prefill_totals = (float *)(void *)(workspace + plan->totals_at);
    p->image_tiles = plan->image_tiles;
    p->slab_units = plan->slab_units;
}

/* Centres of the queries, absent in arguments of version 1.0. */
static nbl_tensor q_centers_of(const nbl_attend_args *args)
{
    const nbl_tensor none = {0};
    return NBL_HAS_FIELD(nbl_attend_args, args, q_centers) ? args->q_centers : none;
}

static attend_params params_of(const nbl_device *device, const nbl_attend_args *args, const cuda_plan *plan)
{
    attend_params p;
    memset(&p, 0, sizeof p);
    p.pages = cuda_pages_of(args->pool, args->layer);
    p.centers = cuda_centers_of(&args->centers, args->pool->shape);
    set_sizes(args, &p);
    set_visibility(args, &p);
    set_scales_exactly(args, &p);
    set_tensors(args, &p);
    set_workspace(args, plan, &p);
    p.status = device->status_device;
    p.processors = device->processors;
    p.capability = device->capability;
    p.is_float = (uint32_t)nbl_layout_pool_is_float(args->pool);
    p.k_fp16 = args->pool->regions[0].k_format == NBL_FORMAT_FP16;
    p.v_fp16 = args->pool->regions[0].v_format == NBL_FORMAT_FP16;
    p.fp4_format = args->q_format == NBL_Q_FP4 ? args->pool->regions[0].k_format : (uint32_t)NBL_FORMAT_NONE;
    p.shared_bytes = device->shared_bytes;
    p.tile_pages = CUDA_TILE_TOKENS / p.pages.page_tokens;
    p.tile_rest = CUDA_TILE_TOKENS % p.pages.page_tokens;
    const nbl_tensor q_centers = q_centers_of(args);
    p.q_centers = cuda_tensor_of(&q_centers);
    p.center_queries = (cuda_query *)(void *)((uint8_t *)args->workspace + plan->center_queries_at);
    p.center_codes = (uint8_t *)args->workspace + plan->center_codes_at;
    return p;
}

/* ------------------------------------------------------------------------------------------------ call */

static nbl_status check_args(const nbl_device *device, const nbl_attend_args *args, nbl_error *err)
{
    const cuda_named_memory list[] = {{"q", args->q.data},
                                      {"q_centers", q_centers_of(args).data},
                                      {"o", args->o.data},
                                      {"lse", args->lse.data},
                                      {"state_head", args->state_head.data},
                                      {"state_o", args->state_o.data},
                                      {"q_indptr", args->q_indptr},
                                      {"kv_len", args->kv_len},
                                      {"page_table", args->page_table},
                                      {"alibi_slopes", args->alibi_slopes},
                                      {"sinks", args->sinks},
                                      {"tree_mask", args->tree_mask},
                                      {"workspace", args->workspace}};
    uint64_t rows = args->q.shape[0] * args->q_heads;
    nbl_status status = cuda_check_stream(device, args->stream, err);
    if (status == NBL_OK) {
        status = check_core(device, args->pool->shape, nbl_layout_pool_is_float(args->pool), args->q_format, err);
    }
    status = status == NBL_OK ? cuda_check_memories(device, list, sizeof list / sizeof list[0], err) : status;
    status = status == NBL_OK ? cuda_check_centers(device, &args->centers, args->pool->shape, err) : status;
    status = status == NBL_OK ? cuda_check_pool(device, "pool", args->pool, err) : status;
    if (status == NBL_OK && args->q.shape[0] > (uint64_t)args->batch * args->q_len_max) {
        return cuda_fail(err, NBL_E_RANGE, "cuda: q has %llu rows (allowed: up to batch * q_len_max, %llu)",
                         (unsigned long long)args->q.shape[0], (unsigned long long)args->batch * args->q_len_max);
    }
    if (status == NBL_OK && rows > INT32_MAX) {
        return cuda_fail(err, NBL_E_UNSUPPORTED, "cuda: Tq * Hq is %llu (allowed: up to 2^31 - 1)",
                         (unsigned long long)rows);
    }
    return status;
}

typedef cudaError_t attend_kernel(const attend_params *p, cudaStream_t stream);

/* The kernel of a call. A prefill with enough rows for the device is not split, unless states are wanted. */
static attend_kernel *choose_kernel(attend_params *p, const attend_bounds *b)
{
    if (p->fp4_format != NBL_FORMAT_NONE && nbl_cuda_tensor_supports(p)) {
        return nbl_cuda_attend_tensor;
    }
    if (p->fp4_format != NBL_FORMAT_NONE) {
        return nbl_cuda_attend_blackwell;
    }
    if (p->is_float && nbl_cuda_float_wgmma_supports(p)) {
        p->split = p->split && (cuda_prefill_splits(b) || p->state_head.data != NULL);
        return nbl_cuda_attend_float_wgmma;
    }
    if (p->is_float) {
        return nbl_cuda_attend_float;
    }
    if (nbl_cuda_team_supports(p)) {
        return nbl_cuda_attend_team;
    }
    if (nbl_cuda_decode_supports(p)) {
        return nbl_cuda_attend_decode;
    }
    if (nbl_cuda_prefill_supports(p)) {
        p->split = p->split && (cuda_prefill_splits(b) || p->state_head.data != NULL);
        p->rows_later = p->chunks > 0 || !p->split; /* else only the last step runs, which wants the rows */
        return nbl_cuda_attend_prefill;
    }
    return nbl_cuda_attend_generic;
}

static nbl_status launch_all(attend_params *p, const attend_bounds *b, cudaStream_t stream, nbl_error *err)
{
    if (!p->is_float && nbl_cuda_short_supports(p)) {
        return cuda_result(err, nbl_cuda_attend_short(p, stream), "attend");
    }
    attend_kernel *kernel = choose_kernel(p, b);
    p->folds_early = (kernel == nbl_cuda_attend_decode || kernel == nbl_cuda_attend_team) && p->chunks > 0;
    p->counts_ends = kernel == nbl_cuda_attend_decode && p->chunks > 0;
    nbl_status status = NBL_OK;
    if (p->q_centers.data != NULL) {
        status = cuda_result(err, nbl_cuda_attend_centers(p, stream), "attend, centres of queries");
    }
    status = status == NBL_OK ? cuda_result(err, nbl_cuda_attend_prepare(p, stream), "attend, first step") : status;
    if (status == NBL_OK && (p->chunks > 0 || !p->split)) {
        status = cuda_result(err, kernel(p, stream), "attend, main step");
    }
    return status == NBL_OK ? cuda_result(err, nbl_cuda_attend_fold(p, stream), "attend, last step") : status;
}

static nbl_status attend(const nbl_device *device, const nbl_attend_args *args, nbl_error *err)
{
    nbl_status status = check_args(device, args, err);
    if (status != NBL_OK) {
        return status;
    }
    attend_bounds b = bounds_of(device, args->pool->shape);
    b.batch = args->batch;
    b.q_tokens = args->q.shape[0];
    b.q_heads = args->q_heads;
    b.q_len_max = q_len_bound(args);
    b.kv_len_max = args->kv_len_max;
    b.q_centers = q_centers_of(args).data != NULL;
    cuda_plan plan = cuda_plan_make(&b);
    if (args->workspace_bytes < plan.bytes) {
        return cuda_fail(err, NBL_E_NO_MEMORY, "cuda: workspace_bytes is %llu (needed: %llu)",
                         (unsigned long long)args->workspace_bytes, (unsigned long long)plan.bytes);
    }
    cuda_plan_restrict(&plan, args->range_begin, args->range_end);
    attend_params p = params_of(device, args, &plan);
    return launch_all(&p, &b, (cudaStream_t)args->stream.handle, err);
}

nbl_status cuda_attend(nbl_device *device, const nbl_attend_args *args, nbl_error *err)
{
    cuda_saved saved;
    if (args->q.shape[0] == 0 || args->batch == 0) {
        return NBL_OK;
    }
    nbl_status status = cuda_enter(device, &saved, err);
    return status == NBL_OK ? cuda_leave(device, &saved, attend(device, args, err)) : status;
}
