/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle's append, gather, copy_pages and transcode (NUM 3.7, 4.2, 4.4). */
#include "test_oracle_support.h"

static const cache_params plain = {.k_formats = {NBL_INT8, NBL_MXFP4},
                                   .v_formats = {NBL_INT4P, NBL_INT8},
                                   .kv_heads = 3,
                                   .q_heads = 3,
                                   .k_dim = 40,
                                   .v_dim = 24,
                                   .page_tokens = 5,
                                   .batch = 2,
                                   .kv_len = {70, 33},
                                   .q_len = {1, 1},
                                   .seed = 5};

/* Gathers all tokens of a cache in the order they were appended. */
static void gather_all(cache *c, uint32_t flags, float *k, float *v)
{
    nbl_gather_args gather = NBL_INIT(nbl_gather_args);
    gather.flags = flags;
    gather.pool = &c->pool;
    gather.batch = c->append.batch;
    gather.slots = c->append.slots;
    gather.seq_indptr = c->append.seq_indptr;
    gather.centers = c->append.centers;
    gather.k = c->append.k;
    gather.k.data = k;
    gather.v = c->append.v;
    gather.v.data = v;
    oracle_gather(&gather);
}

static double relative_error(const float *a, const float *b, uint64_t count)
{
    double difference = 0.0;
    double norm = 0.0;
    for (uint64_t i = 0; i < count; i++) {
        difference += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        norm += (double)b[i] * (double)b[i];
    }
    return sqrt(difference / norm);
}

Test(oracle_ops, gather_gives_back_what_was_appended)
{
    for (uint32_t n = 0; n < 4; n++) {
        cache_params p = plain;
        cache c;
        float *k;
        float *v;
        p.k_hadamard = n % 2u ? 8 : 0;
        p.v_hadamard = n % 2u ? 8 : 0;
        p.centering = n / 2u;
        p.k_bias = n / 2u ? 50.0f : 0.0f;
        cache_init(&c, &p);
        k = cache_alloc(&c, 103u * 3u * 40u * sizeof(float));
        v = cache_alloc(&c, 103u * 3u * 24u * sizeof(float));
        gather_all(&c, 0, k, v);
        cr_expect_lt(relative_error(k, c.k[0], 103u * 3u * 40u), 0.12, "K, case %u", n);
        cr_expect_lt(relative_error(v, c.v[0], 103u * 3u * 24u), 0.08, "V, case %u", n);
        gather_all(&c, NBL_GATHER_STORED, k, v);
        cr_expect(n == 0 || relative_error(k, c.k[0], 103u * 3u * 40u) > 0.5, "STORED K is another vector, case %u", n);
        cache_free(&c);
    }
}

Test(oracle_ops, skipped_slots_write_nothing_and_read_zero)
{
    cache c;
    float k[3 * 40];
    float v[3 * 24];
    int64_t skip = -1;
    nbl_append_args append;
    nbl_gather_args gather = NBL_INIT(nbl_gather_args);
    nbl_quant_stats stats = {0};

    cache_init(&c, &plain);
    append = c.append;
    append.k.shape[0] = append.v.shape[0] = 1;
    append.slots = &skip;
    append.stats = &stats;
    ((float *)append.k.data)[0] = NAN;
    oracle_append(&append);
    cr_expect_eq(stats.vectors + stats.nan_inputs, 0u, "a skipped token is not counted");
    memset(k, 0xff, sizeof k);
    gather.pool = &c.pool;
    gather.slots = &skip;
    gather.k = support_tensor(k, NBL_F32, 3, (uint64_t[]){1, 3, 40});
    gather.v = support_tensor(v, NBL_F32, 3, (uint64_t[]){1, 3, 24});
    oracle_gather(&gather);
    for (uint32_t i = 0; i < 3u * 40u; i++) {
        cr_expect_eq(oracle_bits_from_f32(k[i]), 0u, "element %u", i);
    }
    cache_free(&c);
}

/* Types and strides of the input reach the same codes when the values do. */
Test(oracle_ops, types_and_strides_do_not_matter)
{
    static const uint32_t dtypes[2] = {NBL_F16, NBL_BF16};
    for (uint32_t n = 0; n < 2; n++) {
        uint16_t wide[4 * 3 * 100];
        float packed[4 * 3 * 40];
        cache c;
        uint64_t bytes;
        uint8_t *before;
        nbl_append_args append;
        uint64_t seed = 9;
        nbl_tensor strided = {
            .data = wide, .dtype = dtypes[n], .rank = 3, .shape = {4, 3, 40}, .stride_bytes = {600, 200, 4}};
        cache_init(&c, &plain);
        for (uint32_t i = 0; i < 4u * 3u * 40u; i++) {
            oracle_tensor_set(&strided, i / 120u, i / 40u % 3u, i % 40u, 0, support_normal(&seed));
            packed[i] = oracle_tensor_get(&strided, i / 120u, i / 40u % 3u, i % 40u, 0);
        }
        append = c.append;
        append.k = support_tensor(packed, NBL_F32, 3, (uint64_t[]){4, 3, 40});
        append.v.shape[0] = 4;
        oracle_append(&append);
        bytes = c.regions[0].page_count * c.regions[0].code_page_stride;
        before = cache_alloc(&c, bytes);
        memcpy(before, c.regions[0].codes, bytes);
        append.k = strided;
        oracle_append(&append);
        cr_expect(memcmp(before, c.regions[0].codes, bytes) == 0, "dtype %u", dtypes[n]);
        cache_free(&c);
    }
}

/* NUM 4.2: 32 equal tokens are their own centre, 31 have none. */
Test(oracle_ops, centre_of_equal_tokens)
{
    for (uint32_t tokens = 31; tokens <= 32; tokens++) {
        cache_params p = plain;
        cache c;
        float *k;
        p.centering = 1;
        p.batch = 1;
        p.kv_len[0] = tokens;
        cache_init(&c, &p);
        k = c.append.k.data;
        for (uint32_t i = 0; i < tokens * 120u; i++) {
            k[i] = (float)(i % 40u);
        }
        oracle_append(&c.append);
        for (uint32_t d = 0; d < 40; d++) {
            int code = c.append.centers.codes[40 + d];
            cr_expect_eq(code, tokens < 32 ? 0 : (int)d * 2, "%u tokens: code %d of element %u", tokens, code, d);
        }
        cr_expect_eq(c.append.centers.exponents[1], tokens < 32 ? 87 : 126, "%u tokens: exponent byte %u", tokens,
                     c.append.centers.exponents[1]);
        cache_free(&c);
    }
}

/* Sixteen partial sums: the two ones of the eighth meet before they meet 2^24, which would swallow each of them. */
Test(oracle_ops, centre_adds_in_the_written_order)
{
    cache_params p = plain;
    cache c;
    float *k;

    p.centering = 1;
    p.batch = 1;
    p.kv_len[0] = 32;
    cache_init(&c, &p);
    k = c.append.k.data;
    memset(k, 0, 32u * 120u * sizeof(float));
    k[0] = 0x1p24f;
    k[120] = -0x1p24f;
    k[8 * 120] = k[24 * 120] = 1.0f;
    oracle_append(&c.append);
    cr_expect_eq(c.append.centers.codes[0], 64, "2/32 = 64 * 2^-10, code is %d", c.append.centers.codes[0]);
    cr_expect_eq(c.append.centers.exponents[0], 117, "exponent byte %u", c.append.centers.exponents[0]);
    cache_free(&c);
}

/* Only the first 1024 tokens count. */
Test(oracle_ops, centre_looks_at_1024_tokens)
{
    cache_params p = plain;
    cache c;
    float *k;

    p.centering = 1;
    p.batch = 1;
    p.kv_len[0] = 1025;
    cache_init(&c, &p);
    k = c.append.k.data;
    for (uint32_t i = 0; i < 1025u * 120u; i++) {
        k[i] = i < 1024u * 120u ? 1.0f : 1e6f;
    }
    oracle_append(&c.append);
    cr_expect_eq(c.append.centers.codes[0], 64, "the mean is 1 = 64 * 2^-6, code is %d", c.append.centers.codes[0]);
    cr_expect_eq(c.append.centers.exponents[0], 121, "exponent byte %u", c.append.centers.exponents[0]);
    cache_free(&c);
}

/* Pages of equal formats: all codes arrive, and bytes between the parts stay. */
Test(oracle_ops, copied_pages_read_the_same)
{
    cache c;
    nbl_copy_pages_args copy = NBL_INIT(nbl_copy_pages_args);
    int32_t from = 0;
    int32_t to;
    oracle_vector a;
    oracle_vector b;

    cache_init(&c, &plain);
    to = (int32_t)c.regions[0].page_count - 1;
    copy.src_pool = copy.dst_pool = &c.pool;
    copy.src_pages = &from;
    copy.dst_pages = &to;
    copy.count = 1;
    memset(oracle_page_scales(&c.regions[0], 0, to), 0xEE, c.regions[0].scale_page_stride);
    oracle_copy_pages(&copy);
    for (uint32_t t = 0; t < 5; t++) {
        for (uint32_t head = 0; head < 3; head++) {
            for (uint32_t side = 0; side < 2; side++) {
                oracle_slot_read(&c.pool, 0, t, (enum oracle_side)side, head, &a);
                oracle_slot_read(&c.pool, 0, (int64_t)to * 5 + t, (enum oracle_side)side, head, &b);
                cr_expect(memcmp(&a, &b, sizeof a) == 0, "token %u, head %u, side %u", t, head, side);
            }
        }
    }
    cr_expect_eq(oracle_page_scales(&c.regions[0], 0, to)[5], 0xEE, "padding of the K scales of head 0");
    cache_free(&c);
}

/* NUM 3.7: transcode is decode, then quantize; into the same format it changes nothing. */
Test(oracle_ops, transcode_is_decode_and_quantize)
{
    for (uint32_t same = 0; same < 2; same++) {
        cache_params p = plain;
        cache c;
        nbl_transcode_args transcode = NBL_INIT(nbl_transcode_args);
        nbl_quant_stats stats = {0};
        int32_t from = 0;
        int32_t to;
        int32_t count = 4;
        p.k_formats[1] = same ? p.k_formats[0] : NBL_MXFP4_16;
        p.v_formats[0] = same ? NBL_INT8 : NBL_INT4P;
        cache_init(&c, &p);
        to = (int32_t)(c.regions[1].first_page);
        transcode.src_pool = transcode.dst_pool = &c.pool;
        transcode.src_pages = &from;
        transcode.dst_pages = &to;
        transcode.token_counts = &count;
        transcode.count = 1;
        transcode.stats = &stats;
        oracle_transcode(&transcode);
        cr_expect_eq(stats.vectors, 24u, "4 tokens, 3 heads, K and V");
        for (uint32_t i = 0; i < 24; i++) {
            enum oracle_side side = i % 2u ? ORACLE_V : ORACLE_K;
            float x[ORACLE_DIM_MAX];
            oracle_vector a;
            oracle_vector b;
            oracle_vector expected;
            oracle_slot_read(&c.pool, 0, i / 6u, side, i / 2u % 3u, &a);
            oracle_slot_read(&c.pool, 0, (int64_t)to * 5 + i / 6u, side, i / 2u % 3u, &b);
            oracle_decode(&a, x);
            oracle_quantize(b.format, 0, x, a.dim, &expected, NULL);
            cr_expect(memcmp(&b, &expected, sizeof b) == 0, "vector %u", i);
            cr_expect(!same || memcmp(&a, &b, sizeof a) == 0, "vector %u changed in its own format", i);
        }
        cache_free(&c);
    }
}
