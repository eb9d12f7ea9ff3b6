/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file harness_lab.c
 * @brief The backend, its memory, and comparisons.
 */
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUARD_BYTES 64u
#define GUARD_BYTE 0xC3
#define ROW_GAP_ELEMENTS 3u

/* ------------------------------------------------------------------------------------------------ random numbers */

uint64_t random_next(uint64_t *state)
{
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

uint32_t random_below(uint64_t *state, uint32_t n)
{
    return (uint32_t)((random_next(state) >> 32) * n >> 32);
}

bool random_one_in(uint64_t *state, uint32_t n)
{
    return random_below(state, n) == 0;
}

float random_normal(uint64_t *state)
{
    uint32_t sum = 0;
    for (int i = 0; i < 3; ++i) { /* twelve uniform numbers of 16 bits have variance 1 */
        uint64_t bits = random_next(state);
        sum += (uint32_t)(bits & 0xFFFF) + (uint32_t)(bits >> 16 & 0xFFFF) + (uint32_t)(bits >> 32 & 0xFFFF) +
               (uint32_t)(bits >> 48);
    }
    return ((float)sum - 6.0f * 65535.0f) / 65536.0f;
}

uint64_t random_key(uint64_t seed, uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t state = seed;
    state = random_next(&state) ^ a;
    state = random_next(&state) ^ b;
    state = random_next(&state) ^ c;
    return random_next(&state);
}

/* ------------------------------------------------------------------------------------------------ the backend */

static uint64_t number_from_env(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text != NULL && text[0] != '\0' ? strtoull(text, NULL, 0) : otherwise;
}

uint64_t lab_seed(uint64_t seed)
{
    return number_from_env("NIBBLE_TEST_SEED", seed);
}

uint32_t lab_cases(uint32_t cases)
{
    return (uint32_t)number_from_env("NIBBLE_TEST_CASES", cases);
}

void lab_expect(nbl_status status, nbl_status wanted, const char *what, const nbl_error *err)
{
    cr_assert(status == wanted, "%s: %s returned %d, wanted %d: %s", trial_text, what, status, wanted,
              err != NULL ? err->message : "");
}

bool lab_expect_refused(lab *l, nbl_status status, nbl_status wanted, const char *what)
{
    if (status == NBL_OK)
        lab_expect(l->api->check(l->device, l->stream, NULL), wanted, what, NULL);
    else
        lab_expect(status, wanted, what, NULL);
    return status != NBL_OK;
}

bool lab_expect_range(lab *l, nbl_status status, const char *what)
{
    return lab_expect_refused(l, status, NBL_E_RANGE, what);
}

static void load(lab *l)
{
    nbl_error err = NBL_INIT(nbl_error);
    memset(l, 0, sizeof *l);
    lab_expect(nbl_get_api(NULL, &l->api, &err), NBL_OK, "nbl_get_api", &err);
    lab_expect(l->api->load(NULL, &l->runtime, NULL, &err), NBL_OK, "load", &err);
}

/* The profile whose bits the float core of a device has: a GPU's own, or the one asked for of the simulator. */
static const char *use_profile(const nbl_caps *caps)
{
    static const char *const families[][2] = {
        {"sm_8", "sm_80"}, {"sm_9", "sm_90"}, {"sm_10", "sm_100"}, {"sm_12", "sm_120"}};
    const char *asked = getenv("NIBBLE_SIM_PROFILE");
    const char *profile = asked != NULL ? asked : "sm_90";
    for (size_t i = 0; i < sizeof families / sizeof families[0]; ++i) {
        if (strncmp(caps->isa, families[i][0], strlen(families[i][0])) == 0)
            profile = families[i][1];
    }
    cr_assert(oracle_set_profile(profile), "no profile %s for %s", profile, caps->isa);
    return profile;
}

static void read_stream(lab *l)
{
    nbl_caps caps = NBL_INIT(nbl_caps);
    nbl_error err = NBL_INIT(nbl_error);
    lab_expect(l->api->caps(l->device, &caps, &err), NBL_OK, "caps", &err);
    l->profile = use_profile(&caps);
    l->stream.kind = caps.stream_kind;
    if (caps.stream_kind == NBL_STREAM_CUDA)
        l->stream.handle = NBL_STREAM_CUDA_PER_THREAD;
}

/* A backend that can do nothing at all, such as the template in backends/null, has nothing to be tested for. */
static void skip_if_idle(lab *l)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_kv_shape shape = NBL_INIT(nbl_kv_shape);
    nbl_op_desc op = NBL_INIT(nbl_op_desc);
    shape.layers = shape.kv_heads = 1;
    shape.k_dim = shape.v_dim = 64;
    shape.page_tokens = 64;
    op.shape = &shape;
    op.k_format = op.v_format = op.dst_k_format = op.dst_v_format = NBL_INT8;
    op.q_heads = op.batch_max = op.q_tokens_max = op.q_len_max = op.kv_len_max = 1;
    op.in_dtype = op.out_dtype = NBL_F32;
    for (op.op = NBL_OP_APPEND; op.op <= NBL_OP_MERGE; op.op++)
        if (l->api->supports(l->device, &op, &err) != NBL_E_UNSUPPORTED)
            return;
    lab_close(l);
    cr_skip_test("the backend can do nothing: %s", err.message);
}

void lab_open(lab *l)
{
    nbl_error err = NBL_INIT(nbl_error);
    load(l);
    lab_expect(l->api->open(l->runtime, NULL, &l->device, &err), NBL_OK, "open", &err);
    read_stream(l);
    skip_if_idle(l);
}

bool lab_open_with(lab *l, const char *isa, uint32_t threads)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_device_options options = NBL_INIT(nbl_device_options);
    options.isa = isa;
    options.threads = threads;
    unsetenv("NIBBLE_SIM_ISA"); /* they would go before the options */
    unsetenv("NIBBLE_SIM_THREADS");
    load(l);
    nbl_status status = l->api->open(l->runtime, &options, &l->device, &err);
    if (status == NBL_OK) {
        read_stream(l);
        skip_if_idle(l);
        return true;
    }
    cr_assert(status == NBL_E_UNSUPPORTED || status == NBL_E_INVALID, "open refuses isa %s, threads %u with %d: %s",
              isa != NULL ? isa : "NULL", threads, status, err.message);
    memcpy(l->reason, err.message, sizeof l->reason);
    lab_close(l);
    return false;
}

void lab_close(lab *l)
{
    nbl_error err = NBL_INIT(nbl_error);
    lab_expect(l->api->close(l->device, &err), NBL_OK, "close", &err);
    lab_expect(l->api->runtime_destroy(l->runtime, &err), NBL_OK, "runtime_destroy", &err);
    l->device = NULL;
    l->runtime = NULL;
}

void lab_finish(lab *l)
{
    lab_close(l);
    cr_assert(l->run + l->unsupported > 0, "the test ran no case");
    if (l->run == 0)
        cr_skip_test("all %u cases are unsupported: %s", l->unsupported, l->reason);
}

/* ------------------------------------------------------------------------------------------------ buffers */

static void copy(lab *l, void *dst, const void *src, uint64_t bytes, uint32_t kind)
{
    nbl_error err = NBL_INIT(nbl_error);
    lab_expect(l->api->memory_copy(l->device, dst, src, bytes, kind, l->stream, &err), NBL_OK, "memory_copy", &err);
}

void buffer_init(lab *l, buffer *b, uint64_t bytes, uint8_t fill)
{
    nbl_error err = NBL_INIT(nbl_error);
    uint8_t guard[GUARD_BYTES];
    b->bytes = bytes;
    b->host = aligned_alloc(64, (bytes + 127u) / 64u * 64u);
    cr_assert(b->host != NULL, "no memory for %llu bytes", (unsigned long long)bytes);
    lab_expect(l->api->memory_alloc(l->device, bytes + GUARD_BYTES, &b->device, &err), NBL_OK, "memory_alloc", &err);
    memset(guard, GUARD_BYTE, sizeof guard);
    copy(l, (uint8_t *)b->device + bytes, guard, sizeof guard, NBL_COPY_TO_DEVICE);
    buffer_fill(l, b, fill);
}

void buffer_free(lab *l, buffer *b)
{
    free(b->host);
    lab_expect(l->api->memory_free(l->device, b->device, NULL), NBL_OK, "memory_free", NULL);
    memset(b, 0, sizeof *b);
}

void buffer_upload(lab *l, buffer *b)
{
    copy(l, b->device, b->host, b->bytes, NBL_COPY_TO_DEVICE);
}

uint8_t *buffer_download(lab *l, const buffer *b)
{
    uint8_t *bytes = malloc(b->bytes + GUARD_BYTES);
    cr_assert(bytes != NULL, "no memory for %llu bytes", (unsigned long long)b->bytes);
    copy(l, bytes, b->device, b->bytes + GUARD_BYTES, NBL_COPY_TO_HOST);
    for (uint32_t i = 0; i < GUARD_BYTES; ++i)
        cr_assert(bytes[b->bytes + i] == GUARD_BYTE, "%s: the byte %u past a buffer of %llu was written", trial_text, i,
                  (unsigned long long)b->bytes);
    return bytes;
}

void buffer_fetch(lab *l, buffer *b)
{
    uint8_t *bytes = buffer_download(l, b);
    memcpy(b->host, bytes, b->bytes);
    free(bytes);
}

void buffer_fill(lab *l, buffer *b, uint8_t fill)
{
    memset(b->host, fill, b->bytes);
    buffer_upload(l, b);
}

void *buffer_at(const buffer *b, enum side side)
{
    return b->bytes == 0 ? NULL : side == HOST ? (void *)b->host : b->device;
}

static uint32_t little_endian(const uint8_t *bytes, uint32_t count)
{
    uint32_t value = 0;
    memcpy(&value, bytes, count < 4u ? count : 4u);
    return value;
}

void buffer_compare(lab *l, const buffer *b, uint32_t element_bytes, const char *name)
{
    uint8_t *bytes = buffer_download(l, b);
    for (uint64_t at = 0; memcmp(bytes, b->host, b->bytes) != 0 && at < b->bytes; at += element_bytes) {
        cr_assert(memcmp(bytes + at, b->host + at, element_bytes) == 0, "%s: %s[%llu] is 0x%x (oracle: 0x%x)",
                  trial_text, name, (unsigned long long)(at / element_bytes), little_endian(bytes + at, element_bytes),
                  little_endian(b->host + at, element_bytes));
    }
    free(bytes);
}

/* ------------------------------------------------------------------------------------------------ tensors */

static uint32_t dtype_bytes(uint32_t dtype)
{
    return dtype == NBL_F32 ? 4u : 2u;
}

/* Axes from the innermost to the outermost. */
static void axis_order(uint32_t rank, uint32_t stride_kind, uint32_t *order)
{
    for (uint32_t i = 0; i < rank; ++i)
        order[i] = rank - 1u - i;
    if (stride_kind == STRIDE_SWAPPED && rank >= 2) {
        uint32_t inner = rank == 2 ? 0 : 1;
        uint32_t axis = order[inner];
        order[inner] = order[inner + 1u];
        order[inner + 1u] = axis;
    }
}

/* Chooses strides; returns the bytes that the tensor spans. */
static uint64_t choose_strides(view *v, uint32_t stride_kind)
{
    const nbl_tensor *x = &v->tensor[HOST];
    uint64_t element = dtype_bytes(x->dtype);
    uint64_t span = stride_kind == STRIDE_ELEMENTS ? 2u * element : element;
    uint32_t order[NBL_RANK_MAX];

    axis_order(x->rank, stride_kind, order);
    for (uint32_t i = 0; i < x->rank; ++i) {
        v->stride[order[i]] = (int64_t)span;
        span = span * x->shape[order[i]] + (stride_kind == STRIDE_PACKED ? 0 : ROW_GAP_ELEMENTS * element);
    }
    return span;
}

void view_init(lab *l, view *v, uint32_t dtype, uint32_t rank, const uint64_t *shape, uint32_t stride_kind,
               uint8_t fill)
{
    uint32_t token_axis = rank == 4 ? 1 : 0;
    uint64_t offset = 0;

    memset(v, 0, sizeof *v);
    v->tensor[HOST] = (nbl_tensor){.dtype = dtype, .rank = rank};
    memcpy(v->tensor[HOST].shape, shape, rank * sizeof *shape);
    buffer_init(l, &v->memory, choose_strides(v, stride_kind), fill);
    if (stride_kind == STRIDE_NEGATIVE && shape[token_axis] > 0) {
        offset = (uint64_t)v->stride[token_axis] * (shape[token_axis] - 1u);
        v->stride[token_axis] = -v->stride[token_axis];
    }
    if (stride_kind != STRIDE_PACKED)
        memcpy(v->tensor[HOST].stride_bytes, v->stride, sizeof v->stride);
    v->tensor[DEVICE] = v->tensor[HOST];
    v->tensor[HOST].data = v->memory.host + offset;
    v->tensor[DEVICE].data = (uint8_t *)v->memory.device + offset;
}

void view_free(lab *l, view *v)
{
    if (v->memory.host != NULL)
        buffer_free(l, &v->memory);
    memset(v, 0, sizeof *v);
}

static int64_t view_offset(const view *v, const uint64_t *index)
{
    int64_t offset = 0;
    for (uint32_t axis = 0; axis < v->tensor[HOST].rank; ++axis)
        offset += (int64_t)index[axis] * v->stride[axis];
    return offset;
}

const void *view_at(const view *v, uint64_t i0, uint64_t i1, uint64_t i2, uint64_t i3)
{
    const uint64_t index[NBL_RANK_MAX] = {i0, i1, i2, i3};
    return (const uint8_t *)v->tensor[HOST].data + view_offset(v, index);
}

/* Next index in row-major order; false after the last. */
static bool index_next(const nbl_tensor *x, uint64_t *index)
{
    for (uint32_t axis = x->rank; axis-- > 0;) {
        if (++index[axis] < x->shape[axis])
            return true;
        index[axis] = 0;
    }
    return false;
}

/* Fails at the first element that differs; returns if only gaps between elements do. */
static void compare_elements(const view *v, const uint8_t *bytes, const char *name)
{
    const nbl_tensor *x = &v->tensor[HOST];
    uint32_t element = dtype_bytes(x->dtype);
    int64_t base = (const uint8_t *)x->data - v->memory.host;
    uint64_t index[NBL_RANK_MAX] = {0};
    do {
        int64_t at = base + view_offset(v, index);
        cr_assert(memcmp(bytes + at, v->memory.host + at, element) == 0,
                  "%s: %s[%llu, %llu, %llu, %llu] is 0x%x (oracle: 0x%x)", trial_text, name,
                  (unsigned long long)index[0], (unsigned long long)index[1], (unsigned long long)index[2],
                  (unsigned long long)index[3], little_endian(bytes + at, element),
                  little_endian(v->memory.host + at, element));
    } while (index_next(x, index));
}

void view_compare(lab *l, const view *v, const char *name)
{
    if (v->memory.bytes == 0)
        return;
    uint8_t *bytes = buffer_download(l, &v->memory);
    if (memcmp(bytes, v->memory.host, v->memory.bytes) != 0) {
        compare_elements(v, bytes, name);
        cr_assert(false, "%s: a gap between the elements of %s was written", trial_text, name);
    }
    free(bytes);
}
