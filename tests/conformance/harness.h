/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file harness.h
 * @brief Runs one problem on a backend and on the oracle, and compares every byte that either may have written.
 *
 * A problem says what to compute; a trial is a problem with its memory, twice: the oracle's on the host, the
 * backend's where memory_alloc puts it. Both start with the same bytes, poison included, so that comparing whole
 * buffers also shows writes to unused slots, to padding between pages and to padding between rows.
 *
 * NIBBLE_BACKEND chooses the backend. NIBBLE_TEST_SEED and NIBBLE_TEST_CASES override the seeds, and the number of
 * cases of the random sweeps. A case the backend answers NBL_E_UNSUPPORTED for is counted; a test all of whose cases
 * are is skipped with the reason.
 */
#ifndef HARNESS_H
#define HARNESS_H

#include "oracle.h"

#include <criterion/criterion.h>
#include <nibble/nibble.h>
#include <stdbool.h>

/* ------------------------------------------------------------------------------------------------ random numbers */

/** Next number of a stream. */
uint64_t random_next(uint64_t *state);
/** Uniform in 0..n-1; n >= 1. */
uint32_t random_below(uint64_t *state, uint32_t n);
/** True once in n. */
bool random_one_in(uint64_t *state, uint32_t n);
/** Standard normal. */
float random_normal(uint64_t *state);
/** A stream that depends on its four keys and on nothing else. */
uint64_t random_key(uint64_t seed, uint64_t a, uint64_t b, uint64_t c);

/* ------------------------------------------------------------------------------------------------ values */

/** What vectors are made of. */
enum data_kind {
    DATA_NORMAL,   /**< standard normal */
    DATA_SCALED,   /**< normal times a power of two of the token, 2^-8 to 2^8 */
    DATA_OUTLIERS, /**< normal plus a bias of 100 to 300 on four channels of the head */
    DATA_SPARSE,   /**< mostly zeros, whole vectors among them, some of them negative */
    DATA_BLOCKS,   /**< each run of 16 elements has its own power of two, 2^-6 to 2^6 */
    DATA_HEAVY,    /**< each element has its own power of two, 2^-60 to 2^60 */
    DATA_BITS,     /**< random bits: NaN, infinities, subnormals */
    DATA_TINY,     /**< normal times 2^-38: around the smallest exponent */
    DATA_ONES,     /**< every element 1 */
    DATA_KINDS,
    DATA_ZERO /**< not among the random kinds */
};

/** Fills a vector from its own stream; channels is the stream of what all tokens of a head share. */
void data_vector(uint32_t kind, uint64_t key, uint64_t channels, float *x, uint32_t dim);

/* ------------------------------------------------------------------------------------------------ the backend */

/** An open device, and how many cases it did and did not do. */
typedef struct lab {
    const nbl_api_v1 *api;
    nbl_runtime *runtime;
    nbl_device *device;
    nbl_stream stream;
    const char *profile; /**< of the float core's bits */
    uint32_t run;
    uint32_t unsupported;
    char reason[480]; /**< of the first case that is not supported */
} lab;

/** Opens the backend of NIBBLE_BACKEND with its defaults; a failure fails the test. */
void lab_open(lab *l);
/** Opens it with a team size and instruction set; false if the device refuses them, with l->reason. */
bool lab_open_with(lab *l, const char *isa, uint32_t threads);
/** Closes it. */
void lab_close(lab *l);
/** Closes it and ends the test: skipped with the reason if every case was unsupported, failed if there was none. */
void lab_finish(lab *l);
/** Fails the test unless status is wanted; what names the call. */
void lab_expect(nbl_status status, nbl_status wanted, const char *what, const nbl_error *err);
/** Expects a refusal from a call or, if the call returned NBL_OK because only the device can see the fault, from check;
 * true if it came from the call, whose outputs must then be untouched. */
bool lab_expect_refused(lab *l, nbl_status status, nbl_status wanted, const char *what);
/** Fails the test unless an operation's status, or check after it, is NBL_E_RANGE. True if the operation itself said
 *  so: then its outputs must be as they were. */
bool lab_expect_range(lab *l, nbl_status status, const char *what);

/** Seed of a test: NIBBLE_TEST_SEED or the one given. */
uint64_t lab_seed(uint64_t seed);
/** Cases of a random sweep: NIBBLE_TEST_CASES or the number given. */
uint32_t lab_cases(uint32_t cases);

/* ------------------------------------------------------------------------------------------------ memory */

enum side { HOST, DEVICE };

/** The same bytes twice: the oracle's and the backend's. The backend's end in a guard that no one may write. */
typedef struct buffer {
    uint8_t *host;
    void *device;
    uint64_t bytes;
} buffer;

/** Allocates both sides and fills them with a byte. */
void buffer_init(lab *l, buffer *b, uint64_t bytes, uint8_t fill);
void buffer_free(lab *l, buffer *b);
/** Host to device. */
void buffer_upload(lab *l, buffer *b);
/** Device to host; fails the test if the guard was written. */
void buffer_fetch(lab *l, buffer *b);
/** A copy of the device's side, to be freed; fails the test if the guard was written. */
uint8_t *buffer_download(lab *l, const buffer *b);
/** Sets both sides to a byte. */
void buffer_fill(lab *l, buffer *b, uint8_t fill);
/** Address on one side, NULL for a buffer without bytes. */
void *buffer_at(const buffer *b, enum side side);

/** How the elements of a tensor lie. */
enum stride_kind {
    STRIDE_PACKED,   /**< stride_bytes all zero */
    STRIDE_PADDED,   /**< gaps between rows */
    STRIDE_SWAPPED,  /**< heads outside, tokens inside, gaps */
    STRIDE_ELEMENTS, /**< a gap after every element */
    STRIDE_NEGATIVE, /**< last token first */
    STRIDE_KINDS
};

/** A tensor on both sides. */
typedef struct view {
    nbl_tensor tensor[2];
    int64_t stride[NBL_RANK_MAX]; /**< as stride_bytes, but never all zero */
    buffer memory;
} view;

/** Allocates a tensor; its memory is filled with a byte. */
void view_init(lab *l, view *v, uint32_t dtype, uint32_t rank, const uint64_t *shape, uint32_t stride_kind,
               uint8_t fill);
void view_free(lab *l, view *v);
/** Address of an element on the host's side. */
const void *view_at(const view *v, uint64_t i0, uint64_t i1, uint64_t i2, uint64_t i3);
/** Fails the test at the first byte where the two sides differ; name is the tensor's. */
void view_compare(lab *l, const view *v, const char *name);
/** The same for a buffer of elements of some bytes. */
void buffer_compare(lab *l, const buffer *b, uint32_t element_bytes, const char *name);

/* ------------------------------------------------------------------------------------------------ problems */

#define SEQUENCES_MAX 80u
#define PROBLEM_REGIONS_MAX 3u

/** Where the pages of a region lie. */
enum pool_layout {
    POOL_PACKED,
    POOL_PADDED,      /**< page stride larger than the page */
    POOL_INTERLEAVED, /**< all layers of a page side by side */
    POOL_JOINT,       /**< codes and scales of a page side by side */
    POOL_LAYOUTS
};

enum page_order { ORDER_SHUFFLED, ORDER_SEQUENTIAL, ORDER_REVERSED };
enum tree_kind { TREE_NONE, TREE_RANDOM, TREE_CHAIN };

/** What to compute. Values of a token depend on seed, sequence_id, position and head alone. */
typedef struct problem {
    uint64_t seed;
    nbl_kv_shape shape;
    uint32_t layer;
    uint32_t region_count;
    uint32_t k_format[PROBLEM_REGIONS_MAX];
    uint32_t v_format[PROBLEM_REGIONS_MAX];
    uint32_t region_pages[PROBLEM_REGIONS_MAX]; /**< 0: an equal part */
    uint32_t spare_pages;
    uint32_t first_page;
    uint32_t pool_layout;
    bool head_scales; /**< of a float pool; layers and heads each have their own */
    uint32_t page_order;
    uint8_t code_poison;
    uint8_t scale_poison;

    uint32_t batch;
    uint32_t q_len[SEQUENCES_MAX];
    uint32_t kv_len[SEQUENCES_MAX];
    uint64_t sequence_id[SEQUENCES_MAX];
    uint32_t k_data, v_data, q_data; /**< enum data_kind */
    float k_scale, v_scale, q_scale; /**< factors on top */
    uint32_t in_dtype, out_dtype;
    uint32_t in_stride, out_stride;
    uint32_t skip_every; /**< append: slot -1 for every n-th token; 0: none */
    uint32_t center_mode;
    bool center_rows; /**< centres through an index */

    uint32_t q_heads, q_format;
    bool q_centers; /**< with NBL_Q_FP4; of the kind that queries are, with the same channels */
    uint32_t flags;
    float sm_scale, soft_cap;
    uint32_t window_left, window_right;
    uint32_t range_begin, range_end;
    bool alibi, sinks;
    float sink_scale;
    uint32_t tree; /**< enum tree_kind */
    bool want_o, want_lse, want_state;
    uint32_t extra_states; /**< states asked for beyond the chunks there are */
} problem;

/** One sequence of 100 tokens, one query row, int4p, dimensions 64, pages of 16; o and lse. */
problem problem_default(uint64_t seed);
/** Anything valid that is small enough for the oracle. */
problem problem_random(uint64_t seed);
/** The same formats for K and V in a single region. */
void problem_formats(problem *p, uint32_t k_format, uint32_t v_format);

#define PROBLEM_INT_PAIRS 16u
#define PROBLEM_PAIRS 28u
/** Formats of K, V and Q of case i, in turn: all pairs of the integer core, both query forms among them, then pairs of
 *  the float core, every other one with head scales. */
void problem_pair(problem *p, uint32_t i);

/* ------------------------------------------------------------------------------------------------ trials */

/** A problem with its memory. */
typedef struct trial {
    lab *lab;
    problem p;
    uint32_t tokens;
    uint32_t q_tokens;
    uint32_t q_len_max;
    uint32_t kv_len_max;
    uint32_t table_stride;
    uint32_t tree_stride;
    uint32_t states;
    nbl_page_layout layouts[PROBLEM_REGIONS_MAX];
    nbl_region regions[2][PROBLEM_REGIONS_MAX];
    nbl_pool pools[2];
    buffer codes[PROBLEM_REGIONS_MAX];
    buffer scales[PROBLEM_REGIONS_MAX]; /**< without bytes in a joint pool */
    buffer k_scale, v_scale;            /**< without bytes if there are none */
    view k, v, q, q_centers, o, lse, state_head, state_o;
    buffer slots, seq_indptr, q_indptr, kv_len, page_table, sinks, slopes, tree_mask;
    buffer center_codes, center_exponents, center_shifts, center_rows, stats;
} trial;

/** Makes the memory of a problem; pools and outputs hold poison. */
void trial_init(trial *t, lab *l, const problem *p);
void trial_free(trial *t);

/** append on both, then compares pools, centres and counters. False if not supported. */
bool trial_append(trial *t);
/** append of the tokens first..first+count-1 on the backend alone. */
void trial_append_part(trial *t, uint32_t first, uint32_t count);
/** Lets the oracle fill the pools and gives the bytes to the backend. */
void trial_fill(trial *t);
/** Compares pools, centres and counters. */
void trial_compare_pools(trial *t);
/** attend on both, then compares all outputs. False if not supported. */
bool trial_attend(trial *t);
/** attend on the backend alone; its outputs are then on the host's side. False if not supported. */
bool trial_attend_backend(trial *t);
/** Compares all outputs of attend. */
void trial_compare_outputs(trial *t);
/** init, fill, attend, free. */
void trial_run(lab *l, const problem *p);

/** Arguments of the whole trial for one side; without a workspace. */
nbl_append_args trial_append_args(const trial *t, enum side side);
nbl_attend_args trial_attend_args(const trial *t, enum side side);
/** Calls attend with device arguments and a workspace of the size asked for. */
nbl_status trial_call_attend(trial *t, nbl_attend_args *args, nbl_error *err);
/** Calls append with device arguments and a workspace of the size asked for. */
nbl_status trial_call_append(trial *t, nbl_append_args *args, nbl_error *err);

/** Fails the test unless o and lse of a row of one trial equal those of a row of another, byte for byte (host's
 *  side). */
void trial_compare_rows(const trial *a, uint32_t row_a, const trial *b, uint32_t row_b, const char *what);
/** First query row of a sequence. */
uint32_t trial_first_row(const trial *t, uint32_t sequence);
/** K or V of a sequence as given to append: [kv_len, Hk, D] packed, to be freed. */
float *trial_input(const trial *t, enum oracle_side side, uint32_t sequence);
/** Relative L2 error of o against binary64 attention over the unquantized inputs, and the largest lse error. */
double trial_error(const trial *t, double *lse_error);

/** The line that names the case at hand, for messages. */
extern char trial_text[1024];

#endif
