/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file nibble.h
 * @brief Application ABI: attention over a 4- to 8-bit KV cache, the same bits on every backend.
 *
 * libnibble.so.1 exports one function, nbl_get_api. Everything else is a slot of the table it returns.
 *
 * Two properties hold for every call of attend:
 * - **No plan step.** Work is cut where the numerics say, so a launch depends on upper bounds only; lengths are read
 *   from device memory.
 * - **No split into prefill and decode.** One call, one result; the backend picks kernels and the pick cannot change a
 *   bit.
 *
 * Conventions of all slots: they return #nbl_status, fill the optional caller-owned #nbl_error with one line, and leave
 * outputs untouched on any error found before the work starts. Any slot may be called from any thread; one device or
 * cache handle by one thread at a time. Handles are refused in a forked child (NBL_E_FORKED).
 */
#ifndef NIBBLE_H
#define NIBBLE_H

#include "nibble_types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define NBL_ABI_MAJOR 1u /**< changes when a struct or slot changes its meaning */
#define NBL_ABI_MINOR 1u /**< grows when fields or slots are appended (abi/CHANGELOG.md) */

/** A loaded backend; owns nothing of a device. */
typedef struct nbl_runtime nbl_runtime;
/** What the loader tried and why. */
typedef struct nbl_report nbl_report;
/** Managed cache: pages, sequences. */
typedef struct nbl_cache nbl_cache;

/** How far one load attempt came. */
enum nbl_load_phase {
    NBL_PHASE_NAME = 0,      /**< the name itself */
    NBL_PHASE_FIND = 1,      /**< looking for the file */
    NBL_PHASE_PROBE = 2,     /**< reading ELF header and note, no code run */
    NBL_PHASE_OPEN = 3,      /**< dlopen */
    NBL_PHASE_NEGOTIATE = 4, /**< entry function and table */
    NBL_PHASE_LOADED = 5,    /**< usable */
    NBL_PHASE_DEVICE = 6,    /**< opening a device */
    NBL_PHASE_MAX_ENUM = 0x7fffffff
};

/** One candidate of a report. Strings live as long as the report. */
typedef struct nbl_load_attempt {
    NBL_HEADER;
    const char *name;
    const char *path;        /**< "" if no file was found */
    const char *message;     /**< why it failed, or why it was chosen */
    const char *description; /**< the backend's own line, "" before negotiation */
    nbl_status status;
    uint32_t phase; /**< enum nbl_load_phase */
    uint64_t file_device;
    uint64_t file_inode;
    uint32_t abi_minor;
    uint32_t numerics_version;
    uint32_t layout_version;
    uint32_t reserved;
} nbl_load_attempt;

#define NBL_LOAD_IGNORE_ENV 1u /**< NIBBLE_BACKEND, NIBBLE_BACKEND_DIR and the other variables do not count */

/** What to load. All zero: NIBBLE_BACKEND if set, else "cuda". The log callback gets every line, of any level, on the
 *  thread of the call that causes it; it must not call nibble. It may be called until runtime_destroy returns. Without
 *  it, lines up to the level in NIBBLE_LOG (error without it) go to stderr, a repeated one once. */
typedef struct nbl_load_options {
    NBL_HEADER;
    const char *backend;     /**< comma list of names in order, or one absolute path; NIBBLE_BACKEND goes before it */
    const char *backend_dir; /**< absolute directory searched first, or NULL */
    void (*log)(void *user, uint32_t level, const char *message); /**< or NULL: errors go to stderr */
    void *log_user;
    const char *client_name; /**< for the log, or NULL */
} nbl_load_options;

/** A named choice of formats and transforms, such as "kv4" (docs/formats.md, F8, lists all). */
typedef struct nbl_recipe {
    NBL_HEADER;
    uint32_t q_format;
    uint32_t k_format;
    uint32_t v_format;
    uint32_t k_hadamard; /**< for the dimensions given to recipe_parse */
    uint32_t v_hadamard;
    uint32_t centering;
    uint32_t sink_tokens; /**< first tokens of a sequence kept in int8, rounded up to whole pages */
    uint32_t reserved;
    char name[32];
    uint32_t scale_rule;  /**< enum nbl_scale_rule, of K and V */
    uint32_t q_centering; /**< since 1.1: 1 if the recipe wants q_centers in cache_attend (NUM 7.5) */
} nbl_recipe;

/* Flags of nbl_cache_config, since 1.1. */
#define NBL_CACHE_PREFIX 1u /**< pages can be published and found again by their tokens; set center_tokens, too */
#define NBL_CACHE_LOCKED 2u /**< calls may come from many threads; each waits for the others */
#define NBL_CACHE_DEBUG 4u  /**< free pages are poisoned, guards lie between pools; cache_verify looks at both. Slow */
#define NBL_CACHE_FLAGS_ALL 7u

/** What cache_stats_text writes. */
enum nbl_text_format {
    NBL_TEXT_PROMETHEUS = 0, /**< text exposition format, version 0.0.4 */
    NBL_TEXT_JSON = 1,       /**< one object; a list of samples for each metric with labels */
    NBL_TEXT_MAX_ENUM = 0x7fffffff
};

/** Tokens that a rule is about. Where rules of several scopes meet, the one named later here wins; of rules of one
 * scope, the later one. */
enum nbl_scope {
    NBL_SCOPE_ALL = 0,    /**< all tokens */
    NBL_SCOPE_BEYOND = 1, /**< those at positions >= tokens */
    NBL_SCOPE_FIRST = 2,  /**< the first `tokens` of a sequence */
    NBL_SCOPE_RECENT = 3, /**< the last `tokens`: stored so at first, transcoded when they leave this window */
    NBL_SCOPE_MAX_ENUM = 0x7fffffff
};

#define NBL_RULES_MAX 16u
#define NBL_WORKSPACE_MIB_DEFAULT 64u /**< of a cache whose configuration does not say */

/** One line of a policy, since 1.1: tokens of layers [layer_begin, layer_end) are stored so. A scope is rounded up to
 * whole pages. Never grows. */
typedef struct nbl_policy_rule {
    uint32_t layer_begin;
    uint32_t layer_end;  /**< 0: to the last layer */
    uint32_t scope;      /**< enum nbl_scope */
    uint32_t tokens;     /**< of the scope; 0 with NBL_SCOPE_ALL */
    uint32_t k_format;   /**< enum nbl_format, or 0: as it is */
    uint32_t v_format;   /**< the same */
    uint32_t k_hadamard; /**< block, 1: none, 0: as it is; only with NBL_SCOPE_ALL (a query is transformed once) */
    uint32_t v_hadamard;
} nbl_policy_rule;

/** A policy as data, since 1.1: what a recipe says, and rules. Its fields go into nbl_cache_config. */
typedef struct nbl_policy {
    NBL_HEADER;
    uint32_t q_format;
    uint32_t k_format;
    uint32_t v_format;
    uint32_t k_hadamard;
    uint32_t v_hadamard;
    uint32_t centering;
    uint32_t sink_tokens;
    uint32_t rule_count;
    nbl_policy_rule rules[NBL_RULES_MAX];
    uint32_t scale_rule;  /**< enum nbl_scale_rule, of K and V in all layers */
    uint32_t q_centering; /**< as in nbl_recipe */
} nbl_policy;

#define NBL_PRIORITY_MAX 100u /**< of a cached prefix; the lowest goes first */

/** What happened to a page of the prefix index. */
enum nbl_event_kind {
    NBL_EVENT_STORED = 1,    /**< published: it can be found from now on */
    NBL_EVENT_EVICTED = 2,   /**< its contents are gone */
    NBL_EVENT_OFFLOADED = 3, /**< they have moved to the tier named */
    NBL_EVENT_RESTORED = 4,  /**< they are in the device again, from the tier named */
    NBL_EVENT_MAX_ENUM = 0x7fffffff
};

/** Where the contents of a published page are. */
enum nbl_tier { NBL_TIER_DEVICE = 0, NBL_TIER_HOST = 1, NBL_TIER_FILE = 2, NBL_TIER_MAX_ENUM = 0x7fffffff };

/** One event; all of it is valid during the callback only. */
typedef struct nbl_cache_event {
    uint32_t struct_size;
    uint32_t kind;          /**< enum nbl_event_kind */
    uint64_t key[2];        /**< SipHash-2-4-128 of the page under hash_key: its tokens and parent_key */
    uint64_t parent_key[2]; /**< of the page before; for the first page that of salt and centre tokens */
    uint64_t salt;
    const uint32_t *tokens; /**< [page_tokens] */
    uint32_t page_tokens;
    uint32_t place; /**< 0 for the first page of a sequence */
    uint32_t tier;  /**< enum nbl_tier; with NBL_EVENT_EVICTED the last one it was in */
    uint32_t reserved;
} nbl_cache_event;

/** Managed cache. */
typedef struct nbl_cache_config {
    NBL_HEADER;         /**< flags: NBL_CACHE_ bits */
    nbl_kv_shape shape; /**< by value; hadamard and centering as in the recipe */
    uint32_t k_format;
    uint32_t v_format;
    uint32_t sink_tokens; /**< first tokens of each sequence stored int8; one page holds at least one token */
    uint32_t sequences_max;
    uint64_t tokens_max;          /**< of all sequences together; decides how many pages there are */
    uint32_t sequence_tokens_max; /**< of one sequence; 0: tokens_max */
    uint32_t workspace_mib; /**< scratch memory in MiB; 0: 64. Calls that need more are cut between sequences; what
                                 one sequence needs, workspace_size and nbl_client_workspace tell */
    uint32_t center_tokens; /**< since 1.1: the centre comes from at most so many first tokens of a sequence, whatever
                                 the first append brings; 32..1024, 0: 1024 (NUM 4.2). Prompts share published pages
                                 only if they agree in these tokens: 64 where they are to */
    uint32_t prefix_roots_max; /**< since 1.1: with NBL_CACHE_PREFIX, how many prefixes that differ in salt or centre
                                    tokens can be kept; 0: sequences_max plus a quarter of the pages */
    uint64_t hash_key[2];      /**< since 1.1: of the prefix index; zero: random */
    void (*on_event)(void *user, const nbl_cache_event *event); /**< since 1.1: or NULL; on the thread of the call that
                                                                     causes it; it must not call nibble */
    void *event_user;
    const nbl_policy_rule *rules; /**< since 1.1: [rule_count], over the formats above; the sink_tokens are a rule too,
                                       NBL_SCOPE_FIRST before all others of that scope */
    uint32_t rule_count;          /**< 0..NBL_RULES_MAX */
    uint32_t append_tokens_max;   /**< since 1.1: with NBL_SCOPE_RECENT, tokens that one step appends to all sequences
                                     together, all of which are recent at first; 0: 2048, or tokens_max if less */
    uint64_t host_bytes; /**< since 1.1: with NBL_CACHE_PREFIX, most host memory for evicted pages, split over the kinds
                              of pages as the device's is; 0: none. Counted apart from device memory */
    uint64_t file_bytes; /**< since 1.1: with host_bytes, most file space for pages that leave host memory; 0: none */
    const char *file_folder; /**< since 1.1: folder of that file, needed with file_bytes. The file has no name: it goes
                                  with the cache, or with the process, however that ends */
    const float *k_scale; /**< since 1.1: float32 [L, Hk] host memory, read at creation, or NULL: 1. What K is stored as
                               a multiple of in layers of the float core, 2^-30 to 2^30 (NUM 6.7); 1 in other layers */
    const float *v_scale; /**< since 1.1: the same of V */
} nbl_cache_config;

/** Tokens that name a prefix, since 1.1. Two prefixes are the same if salt, tokens and the tokens that the centre comes
 *  from are. */
typedef struct nbl_prefix {
    NBL_HEADER;
    const uint32_t *tokens; /**< [count] token ids, from position 0 on (host memory) */
    uint32_t count;
    uint32_t first_tokens; /**< tokens of a first append, which decide the centre (NUM 4.2); 0: count */
    uint64_t salt;         /**< whatever else decides K and V: model, adapter, tenant */
    uint32_t priority;     /**< 0..NBL_PRIORITY_MAX, only read by prefix_publish */
    uint32_t reserved;
    nbl_stream stream;
} nbl_prefix;

/** Counters and sizes of a cache; every byte the backend was asked for is in one of them. */
typedef struct nbl_cache_stats {
    NBL_HEADER;
    uint64_t code_bytes;     /**< code pools, all regions */
    uint64_t scale_bytes;    /**< scale pools */
    uint64_t center_bytes;   /**< K centres */
    uint64_t metadata_bytes; /**< page tables and other arrays in device memory */
    uint64_t workspace_bytes;
    uint64_t total_bytes; /**< sum of the five */
    uint64_t used_bytes;  /**< codes and scales of pages in use */
    uint32_t pages_total[NBL_REGIONS_MAX];
    uint32_t pages_used[NBL_REGIONS_MAX];
    uint32_t region_count;
    uint32_t sequences;
    uint64_t tokens; /**< of all sequences; what forks share counts for each of them */
    nbl_quant_stats quant;
    uint64_t forks;       /**< since 1.1: seq_fork calls that succeeded */
    uint64_t page_copies; /**< since 1.1: pages copied before a write, because others held them too */
    /** Since 1.1: published pages that no sequence holds; not in pages_used, and taken when a page is needed, unless
     *  pinned. */
    uint32_t pages_cached[NBL_REGIONS_MAX];
    uint64_t prefix_queries;    /**< since 1.1: seq_adopt calls */
    uint64_t prefix_tokens;     /**< since 1.1: tokens they asked for */
    uint64_t prefix_hit_tokens; /**< since 1.1: tokens they got */
    uint64_t pages_stored;      /**< since 1.1: pages published */
    uint64_t pages_unstored;    /**< since 1.1: pages not published because the index was full */
    uint64_t pages_evicted;     /**< since 1.1: published pages lost */
    uint64_t pages_demoted;     /**< since 1.1: pages transcoded because they left the recent window */
    uint64_t host_bytes;        /**< since 1.1: memory of the host tier, allocated at creation; not in total_bytes */
    uint64_t file_bytes;        /**< since 1.1: largest size of the file tier */
    uint32_t host_pages_total;
    uint32_t host_pages_used; /**< a page may be in the device and in tiers at the same time */
    uint32_t file_pages_total;
    uint32_t file_pages_used;
    uint64_t pages_offloaded; /**< since 1.1: evictions from the device that kept the contents in the host tier */
    uint64_t pages_spilled;   /**< since 1.1: pages moved from the host tier to the file */
    uint64_t pages_restored;  /**< since 1.1: pages brought back into the device */
    uint64_t tier_failures; /**< since 1.1: copies, reads or writes of tiers that failed; the page counts as evicted */
} nbl_cache_stats;

/** One sequence's part of a batched append. */
typedef struct nbl_cache_append_args {
    NBL_HEADER;
    const uint64_t *sequences; /**< [B] handles, all different (host memory) */
    const int32_t *seq_indptr; /**< [B+1] tokens of each, from 0 to T (host memory) */
    uint32_t batch;
    uint32_t layer; /**< layers are appended in any order; see nbl_api_v1.cache_append */
    nbl_tensor k;   /**< [T, Hk, Dk] device memory */
    nbl_tensor v;   /**< [T, Hk, Dv] */
    nbl_stream stream;
} nbl_cache_append_args;

/** One sequence's part of a batched append of codes that an engine holds, since 1.1; fields mean what they mean in
 *  #nbl_append_coded_args. */
typedef struct nbl_cache_append_coded_args {
    NBL_HEADER;
    const uint64_t *sequences; /**< [B] handles, all different (host memory) */
    const int32_t *seq_indptr; /**< [B+1] tokens of each, from 0 to T (host memory) */
    uint32_t batch;
    uint32_t layer;
    uint32_t k_format; /**< NBL_NVFP4 or NBL_FP8_E4M3, that of all pages of the layer */
    uint32_t v_format;
    uint32_t scale_layout; /**< enum nbl_scale_layout, of nvfp4 */
    uint32_t reserved;
    nbl_tensor k; /**< device memory, as are the next three; K and V are both needed */
    nbl_tensor v;
    nbl_tensor k_scales;
    nbl_tensor v_scales;
    uint64_t scale_token;
    nbl_stream stream;
} nbl_cache_append_coded_args;

/** Attention of a batch of cached sequences; fields mean what they mean in #nbl_attend_args. */
typedef struct nbl_cache_attend_args {
    NBL_HEADER;                /**< flags: NBL_ATTEND_ bits */
    const uint64_t *sequences; /**< [B] handles (host memory) */
    const int32_t *q_indptr;   /**< [B+1] (host memory) */
    uint32_t batch;
    uint32_t layer;
    uint32_t q_heads;
    uint32_t q_format;
    nbl_tensor q;
    nbl_tensor o;
    nbl_tensor lse;
    float sm_scale;
    float soft_cap;
    uint32_t window_left;
    uint32_t window_right;
    uint32_t tree_mask_stride;
    uint32_t reserved;
    const float *alibi_slopes; /**< device memory, as are the next two */
    const float *sinks;
    const uint32_t *tree_mask;
    nbl_stream stream;
    nbl_tensor q_centers; /**< [B, Hq, Dk] device memory, or absent. Since 1.1 */
} nbl_cache_attend_args;

/** What the caller of nbl_get_api wants. */
typedef struct nbl_api_request {
    uint32_t struct_size;
    uint32_t abi_major;     /**< NBL_ABI_MAJOR of the header compiled against */
    uint32_t abi_minor_min; /**< smallest minor the caller can live with */
    uint32_t reserved;
} nbl_api_request;

/** The application table. Slots are only ever appended; a slot that exists never changes its meaning.
 *
 * @section results Results that several slots share
 * Each slot lists its own results. Besides them:
 * - a slot with a handle returns NBL_E_INVALID for NULL, NBL_E_STATE for a handle that was destroyed or is of another
 *   kind, NBL_E_FORKED for one made in another process;
 * - a slot with an argument struct returns NBL_E_INVALID for NULL or an extension chain of more than 32 nodes,
 *   NBL_E_ABI for a struct_size below that of version 1.0, NBL_E_UNKNOWN_FIELD for non-zero bytes past the known size,
 *   an unknown flag or an unknown extension marked required;
 * - a slot with an out_ pointer returns NBL_E_INVALID when it is NULL.
 *
 * On every result but NBL_OK the outputs are as they were, unless the slot says otherwise. err may be NULL.
 *
 * @section order Order of work on a device
 * append, attend, gather, copy_pages, transcode, merge and memory_copy are put on args->stream and run in its order.
 * With NBL_STREAM_HOST they have finished when the call returns; with NBL_STREAM_CUDA the arrays they name must stay
 * valid and unchanged until the stream has passed them, they may be captured into a graph, and an error of execution
 * appears at the caller's own synchronisation or at check. No slot creates or stores a stream, none but check waits
 * for it. Arrays in a call are memory that the device can read; the argument structs themselves are read before the
 * call returns.
 */
typedef struct nbl_api_v1 {
    uint32_t struct_size; /**< bytes of the table; a slot past it does not exist */
    uint32_t abi_minor;   /**< NBL_ABI_MINOR of the library */

    /* -------------------------------------------------------------------------------------------- runtime */

    /** Finds, checks and loads a backend; touches no device.
     *
     * The names are NIBBLE_BACKEND, else options->backend, else "cuda". A name NAME stands for
     * libnibble-backend-NAME.so.1 in options->backend_dir, then NIBBLE_BACKEND_DIR, or without it nibble/ beside this
     * library and the directory compiled in; the first file that exists decides. In a list, the next name is tried when
     * loading one fails; each attempt is recorded, and a move is logged. Every name must be known or have a file, or
     * nothing is loaded.
     *
     * Memory     The runtime and the report are the caller's to free; the strings of options are copied. Backends are
     *            never unloaded; a second load of one file shares the first.
     * Threads    Any; loads are serialised. The log callback must not call nibble.
     * @param options      NULL means all zero
     * @param out_runtime  the runtime
     * @param out_report   or NULL; on success and on failure, unless memory runs out, a report to be freed by
     *                     report_free
     * @retval NBL_OK
     * @retval NBL_E_INVALID    options->backend or backend_dir is empty, relative, too long or not a name
     * @retval NBL_E_ENV        the same of a NIBBLE_ variable; a name in NIBBLE_BACKEND that is not known
     * @retval NBL_E_NOT_FOUND  no such file in the directories searched
     * @retval NBL_E_BACKEND    the file is damaged, foreign, for another machine, in an unsafe place, or misbehaves
     * @retval NBL_E_ABI        the file speaks another ABI, numerics or layout version, or its table is too short
     * @retval NBL_E_UNSUPPORTED  the file needs a newer CPU
     * @retval NBL_E_IO         the file cannot be read
     * @retval NBL_E_NO_MEMORY  no memory
     * @since ABI 1.0
     */
    nbl_status (*load)(const nbl_load_options *options, nbl_runtime **out_runtime, nbl_report **out_report,
                       nbl_error *err);

    /** Frees a runtime; its backend stays loaded. NULL is accepted.
     *
     * @retval NBL_OK
     * @retval NBL_E_STATE  already destroyed, or devices of it are open
     * @since ABI 1.0
     */
    nbl_status (*runtime_destroy)(nbl_runtime *runtime, nbl_error *err);

    /** Number of attempts in a report, in the order they were made; 0 for NULL. open may add to it.
     * @since ABI 1.0
     */
    uint32_t (*report_count)(const nbl_report *report);

    /** Reads one attempt. Its strings live until report_free.
     *
     * @retval NBL_OK
     * @retval NBL_E_RANGE    index is not below report_count
     * @retval NBL_E_INVALID  report is NULL
     * @since ABI 1.0
     */
    nbl_status (*report_get)(const nbl_report *report, uint32_t index, nbl_load_attempt *out_attempt, nbl_error *err);

    /** Frees a report. NULL is accepted. Independent of the life of the runtime.
     * @since ABI 1.0
     */
    void (*report_free)(nbl_report *report);

    /** Name of a status, such as "NBL_E_RANGE"; "NBL_E_?" for a number that is none. A static string.
     * @since ABI 1.0
     */
    const char *(*status_name)(nbl_status status);

    /** Meaning of a status in words; "unknown status" for a number that is none. A static string.
     * @since ABI 1.0
     */
    const char *(*status_text)(nbl_status status);

    /** One line about this library: version, ABI, numerics and layout versions, compiler. A static string.
     * @since ABI 1.0
     */
    const char *(*build_info)(void);

    /* -------------------------------------------------------------------------------------------- device */

    /** Opens a device of the runtime's backend.
     *
     * Where the first device cannot be had (NBL_E_DEVICE, NBL_E_UNSUPPORTED, NBL_E_BACKEND) and the list named more
     * backends, the next one is loaded and opened; the move is logged and recorded in the report. After the first
     * success the choice is final; a call that finds no device leaves it open. NIBBLE_SIM_THREADS, NIBBLE_SIM_ISA and
     * NIBBLE_SIM_PROFILE go before options->threads, options->isa and options->profile.
     *
     * Memory     The device is the caller's to close, before its runtime is destroyed.
     * Threads    One at a time per runtime; devices of one runtime may be used in parallel.
     * @param options  NULL means all zero
     * @retval NBL_OK
     * @retval NBL_E_DEVICE   no driver, no device, or no device of this ordinal; err->native_code is the driver's
     * @retval NBL_E_FORKED   the runtime is another process's, or its backend was opened before a fork
     * @retval NBL_E_INVALID  an option the backend does not accept
     * @retval NBL_E_NO_MEMORY  no memory on host or device
     * @retval NBL_E_NOT_FOUND, NBL_E_BACKEND, NBL_E_ABI, NBL_E_IO  as load, of the last backend in the list
     * @since ABI 1.0
     */
    nbl_status (*open)(nbl_runtime *runtime, const nbl_device_options *options, nbl_device **out_device,
                       nbl_error *err);

    /** Closes a device. NULL is accepted. Work still on streams must have finished.
     *
     * @retval NBL_OK
     * @retval NBL_E_STATE  already closed, or caches of it exist
     * @since ABI 1.0
     */
    nbl_status (*close)(nbl_device *device, nbl_error *err);

    /** Tells what a device is and can do; constant over its life.
     *
     * @retval NBL_OK
     * @since ABI 1.0
     */
    nbl_status (*caps)(nbl_device *device, nbl_caps *out_caps, nbl_error *err);

    /** Tells whether an operation with these formats, sizes and features can be done.
     *
     * @retval NBL_OK             yes
     * @retval NBL_E_UNSUPPORTED  no; err names the reason
     * @retval NBL_E_INVALID      the description contradicts itself or is out of range on every device
     * @since ABI 1.0
     */
    nbl_status (*supports)(nbl_device *device, const nbl_op_desc *op, nbl_error *err);

    /** Bytes of workspace that any call within the bounds of op needs; 0 is possible.
     *
     * Units      bytes; the workspace is aligned to 256. It holds nothing between calls, and calls that may run at the
     *            same time need one each.
     * @retval NBL_OK
     * @retval NBL_E_UNSUPPORTED  as supports
     * @retval NBL_E_INVALID      as supports
     * @since ABI 1.0
     */
    nbl_status (*workspace_size)(nbl_device *device, const nbl_op_desc *op, uint64_t *out_bytes, nbl_error *err);

    /** Bytes and offsets of one page of one layer (docs/formats.md F2 to F5); needs no device.
     *
     * Computes   head_bytes(x) = 16 * ceil(x / 16); code_page_bytes = Hk * (head_bytes(P * K code bytes per vector) +
     *            head_bytes(P * V code bytes per vector)); scale_page_bytes likewise
     * @param k_format  enum nbl_format
     * @param v_format  enum nbl_format
     * @retval NBL_OK
     * @retval NBL_E_INVALID  a format or a field of shape is out of range; err names it
     * @since ABI 1.0
     */
    nbl_status (*kv_layout)(const nbl_kv_shape *shape, uint32_t k_format, uint32_t v_format,
                            nbl_page_layout *out_layout, nbl_error *err);

    /* -------------------------------------------------------------------------------------------- device memory */

    /** Allocates device memory, aligned to 256 bytes; contents undefined. The caller frees it before close.
     *
     * @retval NBL_OK
     * @retval NBL_E_INVALID    bytes is 0
     * @retval NBL_E_NO_MEMORY  the device has not that much
     * @retval NBL_E_DEVICE     the device failed
     * @since ABI 1.0
     */
    nbl_status (*memory_alloc)(nbl_device *device, uint64_t bytes, void **out_memory, nbl_error *err);

    /** Frees memory of memory_alloc of the same device. NULL is accepted. Work that uses it must have finished.
     *
     * @retval NBL_OK
     * @since ABI 1.0
     */
    nbl_status (*memory_free)(nbl_device *device, void *memory, nbl_error *err);

    /** Copies bytes between host and device, or within the device; the ranges do not overlap.
     *
     * Ordering   in the order of stream. Host memory must stay valid until the stream has passed the copy. With
     *            NBL_STREAM_HOST, which every backend takes here, it has finished when the call returns.
     * @param kind  enum nbl_copy_kind
     * @retval NBL_OK         also for 0 bytes
     * @retval NBL_E_INVALID  dst or src is NULL, kind or the kind of stream is unknown
     * @retval NBL_E_OVERLAP  the ranges overlap
     * @retval NBL_E_DEVICE   the device failed; dst is undefined
     * @since ABI 1.0
     */
    nbl_status (*memory_copy)(nbl_device *device, void *dst, const void *src, uint64_t bytes, uint32_t kind,
                              nbl_stream stream, nbl_error *err);

    /** Reports the first error of execution on a device since the last check, such as an index out of range in data
     * that only the device could read. Waits for the stream (not while it is being captured) and clears what it
     * reports.
     *
     * @retval NBL_OK        none so far
     * @retval NBL_E_RANGE   a slot, page id or length pointed outside its array
     * @retval NBL_E_DEVICE  the device failed
     * @since ABI 1.0
     */
    nbl_status (*check)(nbl_device *device, nbl_stream stream, nbl_error *err);

    /* -------------------------------------------------------------------------------------------- operations */

    /** Quantizes T new tokens of one layer into pages.
     *
     * Computes   for every token t with slot >= 0 and every kv head h: x = k[t, h, :], converted to binary32,
     *            transformed, centred if the shape says so, quantized into the K format of the slot's region; v
     *            likewise
     * Shapes     k [T, Hk, Dk], v [T, Hk, Dv] f32, f16 or bf16, any strides; slots [T] int64; with centering seq_indptr
     *            [B+1] int32
     * Numerics   NUM 3 and 4, exact: the bytes of a token depend on that token, the transforms and the centre alone
     * Memory     k and v are not modified. Slots are all different; bytes of other slots are not touched. stats is
     *            added to. With NBL_CENTER_COMPUTE the rows of centers are written.
     * Ordering   see nbl_api_v1
     * @retval NBL_OK             also for T = 0
     * @retval NBL_E_INVALID      a shape, format, enum or required pointer is wrong; err names it
     * @retval NBL_E_ALIGN        a pointer or stride is not a multiple of its element (pools: of 16)
     * @retval NBL_E_OVERLAP      pools, centres or stats overlap an input or each other
     * @retval NBL_E_RANGE        a slot, layer or indptr is outside; where only the device can see it, at check
     * @retval NBL_E_NO_MEMORY    workspace_bytes is less than workspace_size says
     * @retval NBL_E_UNSUPPORTED  as supports
     * @retval NBL_E_DEVICE       the launch failed
     * @since ABI 1.0
     */
    nbl_status (*append)(nbl_device *device, const nbl_append_args *args, nbl_error *err);

    /** Attention of query rows over the cached tokens of their sequences.
     *
     * Computes   for row i of sequence b and query head h, with g = h / (Hq/Hk), over the tokens j visible to it:
     *            s_j = sm_scale * q . K_j (capped, plus ALiBi), lse = log(sum_j exp(s_j) + exp(sink_h)),
     *            o = sum_j exp(s_j - lse) V_j. No visible token and no sink: o = 0, lse = -inf.
     * Shapes     q [Tq, Hq, Dk], o [Tq, Hq, Dv] f32, f16 or bf16; lse [Tq, Hq] f32; state_head [Nc, Tq, Hq, 4] and
     *            state_o [Nc, Tq, Hq, Dv] f32, one state per chunk of 1024 tokens in the range; q_indptr [B+1],
     *            kv_len [B], page_table [B, stride] int32. Rows outside q_indptr's ranges are not written.
     * Units      lse in natural logarithm, or base 2 with NBL_ATTEND_LSE_BASE2
     * Numerics   NUM 5.1 to 5.7, exact: a row depends on its query, the parameters and the stored vectors it may see;
     *            not on the batch, page order, threads, backend, or on how the work is cut
     * Memory     inputs are not modified; the address ranges of outputs overlap nothing.
     *            All table entries below kv_len name pages of the pool, whatever the rows see; slots and entries past
     *            it are never read.
     * Ordering   see nbl_api_v1; launches depend on the host-side bounds alone, lengths are read on the device
     * @retval NBL_OK             also for Tq = 0
     * @retval NBL_E_INVALID      a shape, bound, flag or parameter is wrong or contradicts another; err names it
     * @retval NBL_E_ALIGN        a pointer or stride is not a multiple of its element (pools: of 16)
     * @retval NBL_E_OVERLAP      an output overlaps an input or another output
     * @retval NBL_E_RANGE        a page id, length or indptr is outside, a slope is beyond +-65536, or a sink beyond
     *                            +-2^22 and not -inf; where only the device can see it, at check
     * @retval NBL_E_NO_MEMORY    workspace_bytes is less than workspace_size says
     * @retval NBL_E_UNSUPPORTED  as supports
     * @retval NBL_E_DEVICE       the launch failed
     * @since ABI 1.0
     */
    nbl_status (*attend)(nbl_device *device, const nbl_attend_args *args, nbl_error *err);

    /** Dequantizes tokens of one layer.
     *
     * Computes   x = c * 2^E of the stored vector, the centre added back and the transform inverted unless
     *            NBL_GATHER_STORED is set; rows whose slot is -1 are zero
     * Shapes     slots [T] int64; k [T, Hk, Dk], v [T, Hk, Dv] f32, f16 or bf16; either may be absent
     * Numerics   NUM 4.4, exact
     * Memory     outputs overlap nothing; pools are not modified
     * Ordering   see nbl_api_v1
     * @retval NBL_OK             also for T = 0
     * @retval NBL_E_INVALID      a shape, format or required pointer is wrong, or both outputs are absent; err names it
     * @retval NBL_E_ALIGN        a pointer or stride is not a multiple of its element (pools: of 16)
     * @retval NBL_E_OVERLAP      an output overlaps an input or the other output
     * @retval NBL_E_RANGE        a slot, layer or indptr is outside; where only the device can see it, at check
     * @retval NBL_E_UNSUPPORTED  as supports
     * @retval NBL_E_DEVICE       the launch failed
     * @since ABI 1.0
     */
    nbl_status (*gather)(nbl_device *device, const nbl_gather_args *args, nbl_error *err);

    /** Copies whole pages, all layers, codes and scales, byte for byte.
     *
     * Shapes     src_pages, dst_pages [count] int32; both pools have equal kv shapes; the regions of a pair have equal
     *            formats
     * Memory     no destination is a source or another destination; other pages are not touched
     * Ordering   see nbl_api_v1
     * @retval NBL_OK             also for count = 0
     * @retval NBL_E_INVALID      the pools do not match, or a required pointer is NULL
     * @retval NBL_E_ALIGN        a pool pointer or stride is not a multiple of 16
     * @retval NBL_E_OVERLAP      a destination is also a source or appears twice
     * @retval NBL_E_RANGE        a page id is in no region, or its pair differs in format; where only the device can
     *                            see it, at check
     * @retval NBL_E_UNSUPPORTED  as supports
     * @retval NBL_E_DEVICE       the launch failed
     * @since ABI 1.0
     */
    nbl_status (*copy_pages)(nbl_device *device, const nbl_copy_pages_args *args, nbl_error *err);

    /** Re-quantizes whole pages, all layers, into the formats of the destination's region.
     *
     * Computes   x = c * 2^E of the stored vector, quantized into the target format; transforms and centres stay as
     *            they are
     * Shapes     src_pages, dst_pages, token_counts [count] int32; 0 <= token_counts[i] <= page_tokens
     * Numerics   NUM 3.7, exact
     * Memory     no destination is a source or another destination; slots past token_counts are not touched. stats is
     *            added to.
     * Ordering   see nbl_api_v1
     * @retval NBL_OK             also for count = 0
     * @retval NBL_E_INVALID      the pools do not match, or a required pointer is NULL
     * @retval NBL_E_ALIGN        a pool pointer or stride is not a multiple of 16
     * @retval NBL_E_OVERLAP      a destination is also a source or appears twice
     * @retval NBL_E_RANGE        a page id or count is outside; where only the device can see it, at check
     * @retval NBL_E_UNSUPPORTED  as supports
     * @retval NBL_E_DEVICE       the launch failed
     * @since ABI 1.0
     */
    nbl_status (*transcode)(nbl_device *device, const nbl_transcode_args *args, nbl_error *err);

    /** Merges N partial results of the same query rows.
     *
     * Computes   from states (in_state_head, in_state_o): the fold from the left, M = max(M1, M2),
     *            L = L1 * 2^(M1 - M) + L2 * 2^(M2 - M), O likewise; then, where o or lse is asked for, sinks,
     *            normalisation and the inverse transform of attend. From pairs (in_o, in_lse): the average of in_o
     *            weighted by exp(in_lse), and the log of the summed weights.
     * Shapes     in_state_head [N, T, Hq, 4], in_state_o [N, T, Hq, Dv] f32; in_o [N, T, Hq, Dv], in_lse [N, T, Hq];
     *            out as in nbl_merge_args
     * Units      in_lse and lse in natural logarithm, or both base 2 with NBL_MERGE_LSE_BASE2
     * Numerics   NUM 5.6 and 5.7 for states: states of all chunks in increasing order give the bytes of the undivided
     *            attend. NUM 5.8 for pairs.
     * Memory     inputs are not modified; outputs overlap nothing
     * Ordering   see nbl_api_v1
     * @retval NBL_OK             also for T = 0
     * @retval NBL_E_INVALID      neither or both kinds of input, an output its input cannot give, or a wrong shape
     * @retval NBL_E_ALIGN        a pointer or stride is not a multiple of its element
     * @retval NBL_E_OVERLAP      an output overlaps an input or another output
     * @retval NBL_E_RANGE        an in_lse is NaN or +inf, or a sink beyond +-2^22 and not -inf; where only the device
     *                            can see it, at check
     * @retval NBL_E_UNSUPPORTED  as supports
     * @retval NBL_E_DEVICE       the launch failed
     * @since ABI 1.0
     */
    nbl_status (*merge)(nbl_device *device, const nbl_merge_args *args, nbl_error *err);

    /* -------------------------------------------------------------------------------------------- managed cache */

    /** Turns the name of a recipe (docs/formats.md F8) into formats and transforms for given dimensions.
     *
     * @retval NBL_OK
     * @retval NBL_E_INVALID    name is NULL, a modifier is unknown, comes twice or has no such value, or a dimension is
     *                          out of range; err says which
     * @retval NBL_E_NOT_FOUND  no such recipe; err lists them
     * @since ABI 1.0
     */
    nbl_status (*recipe_parse)(const char *name, uint32_t k_dim, uint32_t v_dim, nbl_recipe *out_recipe,
                               nbl_error *err);

    /** Says, to the byte, what cache_create would allocate; needs no device and allocates nothing.
     *
     * @param out_stats  sizes and pages_total; everything in use is 0
     * @retval NBL_OK
     * @retval NBL_E_INVALID  a field of config is out of range or contradicts another; err names it
     * @since ABI 1.0
     */
    nbl_status (*cache_plan)(const nbl_cache_config *config, nbl_cache_stats *out_stats, nbl_error *err);

    /** Creates a cache and allocates all of its device memory; later calls allocate none.
     *
     * Memory     The cache is the caller's to destroy, before its device is closed. config is copied.
     * Threads    One at a time per cache; any number with NBL_CACHE_LOCKED, which orders the calls on the host: that
     * their work is in the same order on the device (one stream, or events) is still the caller's to see to.
     * @retval NBL_OK
     * @retval NBL_E_INVALID      as cache_plan
     * @retval NBL_E_UNSUPPORTED  the device cannot append or attend in these formats
     * @retval NBL_E_NO_MEMORY    the device has not that much; nothing stays allocated
     * @since ABI 1.0
     */
    nbl_status (*cache_create)(nbl_device *device, const nbl_cache_config *config, nbl_cache **out_cache,
                               nbl_error *err);

    /** Frees a cache, its sequences and its device memory. NULL is accepted. Work that uses it must have finished.
     *
     * @retval NBL_OK
     * @retval NBL_E_STATE  already destroyed
     * @since ABI 1.0
     */
    nbl_status (*cache_destroy)(nbl_cache *cache, nbl_error *err);

    /** Sizes, pages and counters of a cache. The counters are those of the appends whose work has finished.
     *
     * @retval NBL_OK
     * @retval NBL_E_DEVICE  the counters could not be read
     * @since ABI 1.0
     */
    nbl_status (*cache_stats)(nbl_cache *cache, nbl_cache_stats *out_stats, nbl_error *err);

    /** Creates an empty sequence. A handle is never given out twice.
     *
     * @retval NBL_OK
     * @retval NBL_E_NO_MEMORY  sequences_max of them exist
     * @since ABI 1.0
     */
    nbl_status (*seq_create)(nbl_cache *cache, uint64_t *out_sequence, nbl_error *err);

    /** Frees a sequence and gives its pages back. Work that reads them must have finished, or be on the stream of the
     *  work that writes them next.
     *
     * @retval NBL_OK
     * @retval NBL_E_NOT_FOUND  no such sequence, or freed before
     * @since ABI 1.0
     */
    nbl_status (*seq_free)(nbl_cache *cache, uint64_t sequence, nbl_error *err);

    /** Tokens of a sequence in one layer.
     *
     * @retval NBL_OK
     * @retval NBL_E_NOT_FOUND  no such sequence
     * @retval NBL_E_RANGE      no such layer
     * @since ABI 1.0
     */
    nbl_status (*seq_length)(nbl_cache *cache, uint64_t sequence, uint32_t layer, uint32_t *out_tokens, nbl_error *err);

    /** Drops all tokens at positions >= tokens, in every layer, and gives whole pages back. The bytes of the tokens
     * that stay do not change.
     *
     * @retval NBL_OK
     * @retval NBL_E_NOT_FOUND  no such sequence
     * @retval NBL_E_RANGE      no layer has that many tokens, or drop_prefix has dropped more
     * @since ABI 1.0
     */
    nbl_status (*seq_truncate)(nbl_cache *cache, uint64_t sequence, uint32_t tokens, nbl_error *err);

    /** Appends tokens of one layer to a batch of sequences.
     *
     * Every layer of a sequence has its own length; layers may be appended in any order, by any number of tokens. A
     * page is taken when the first layer reaches it.
     *
     * Shapes     k [T, Hk, Dk], v [T, Hk, Dv]; seq_indptr [B+1] cuts T
     * Numerics   NUM 3 and 4, exact; the same bytes however the tokens are split over calls. With centring the first
     *            call of a sequence and layer sets its centre (NUM 4.2).
     * Memory     all pages are taken before the work starts, or none
     * Ordering   see nbl_api_v1
     * @retval NBL_OK
     * @retval NBL_E_INVALID    a shape or pointer is wrong, or a sequence appears twice
     * @retval NBL_E_NOT_FOUND  no such sequence
     * @retval NBL_E_NO_MEMORY  out of pages; the cache is as before
     * @retval NBL_E_RANGE      no such layer, or a sequence would exceed sequence_tokens_max
     * @retval NBL_E_ALIGN      as append
     * @retval NBL_E_OVERLAP    as append
     * @retval NBL_E_DEVICE     the launch failed
     * @since ABI 1.0
     */
    nbl_status (*cache_append)(nbl_cache *cache, const nbl_cache_append_args *args, nbl_error *err);

    /** Attention of query rows over a batch of cached sequences; the last query row of a sequence stands at its last
     * token.
     *
     * Computes   what attend computes, with kv_len, page table and centres of the cache
     * Shapes     q [Tq, Hq, Dk], o [Tq, Hq, Dv], lse [Tq, Hq]; q_indptr [B+1] cuts Tq
     * Numerics   NUM 5, exact
     * Ordering   see nbl_api_v1
     * @retval NBL_OK
     * @retval NBL_E_INVALID      as attend
     * @retval NBL_E_NOT_FOUND    no such sequence
     * @retval NBL_E_NO_MEMORY    one sequence alone needs more than workspace_mib
     * @retval NBL_E_RANGE        no such layer, a row sees tokens that seq_drop_prefix has dropped, or as attend
     * @retval NBL_E_ALIGN        as attend
     * @retval NBL_E_OVERLAP      as attend
     * @retval NBL_E_UNSUPPORTED  as supports
     * @retval NBL_E_DEVICE       the launch failed
     * @since ABI 1.0
     */
    nbl_status (*cache_attend)(nbl_cache *cache, const nbl_cache_attend_args *args, nbl_error *err);

    /* -------------------------------------------------------------------------------------------- since 1.1 */

    /** Creates a sequence that holds the first tokens of another one; no byte is copied.
     *
     * Every layer of the child has min(tokens, its length in the parent) tokens. Parent and child share pages and
     * centres. A page that both hold is copied when one of them appends into it, so neither ever sees the other's
     * tokens. A prefix dropped by the parent is dropped for the child.
     *
     * @param tokens     UINT32_MAX: all
     * @param out_child  a handle, as of seq_create
     * @retval NBL_OK
     * @retval NBL_E_NOT_FOUND  no such parent
     * @retval NBL_E_RANGE      tokens is less than what the parent has dropped
     * @retval NBL_E_NO_MEMORY  sequences_max of them exist
     * @since ABI 1.1
     */
    nbl_status (*seq_fork)(nbl_cache *cache, uint64_t parent, uint32_t tokens, uint64_t *out_child, nbl_error *err);

    /** seq_truncate of a batch: sequences[b] to tokens[b], all of them or none.
     *
     * @retval NBL_OK
     * @retval NBL_E_INVALID    a sequence appears twice, or a pointer is NULL
     * @retval NBL_E_NOT_FOUND  no such sequence
     * @retval NBL_E_RANGE      as seq_truncate; err names the entry
     * @since ABI 1.1
     */
    nbl_status (*seq_truncate_batch)(nbl_cache *cache, const uint64_t *sequences, const uint32_t *tokens,
                                     uint32_t batch, nbl_error *err);

    /** Gives up the tokens at positions below tokens, in every layer, and gives their whole pages back.
     *
     * The tokens that stay keep their positions, and lengths still count from position 0. From then on cache_attend
     * needs NBL_ATTEND_WINDOW_LEFT with a window in which no row sees a dropped token. Dropping less than before
     * changes nothing.
     *
     * @retval NBL_OK
     * @retval NBL_E_NOT_FOUND  no such sequence
     * @retval NBL_E_RANGE      a layer has fewer tokens
     * @since ABI 1.1
     */
    nbl_status (*seq_drop_prefix)(nbl_cache *cache, uint64_t sequence, uint32_t tokens, nbl_error *err);

    /** Counts pages, references and lengths again and compares them with what the cache keeps; a self-test, O(size of
     * the cache).
     *
     * @retval NBL_OK           all agree
     * @retval NBL_E_STATE      something does not; err says what. A defect of nibble, or memory was overwritten
     * @retval NBL_E_NO_MEMORY  no host memory for the count
     * @since ABI 1.1
     */
    nbl_status (*cache_verify)(nbl_cache *cache, nbl_error *err);

    /** Publishes the full pages of a sequence under their tokens, so that seq_adopt finds them.
     *
     * tokens[i] is the token whose K and V the sequence holds at position i, in every layer. Pages that an earlier call
     * published are skipped; a page equal to one that is in the index already stays private. Published pages never
     * change: an append into one copies it first. They outlive the sequence, until their memory is needed: of the pages
     * that nobody holds and nobody has pinned, those of the lowest priority go first, among them the least recently
     * used.
     *
     * A sequence cannot be published past a point where that is not certain to be exact: tokens of its centre were cut
     * off or are not given, layers took their centre from different numbers of tokens, or a prefix was dropped before
     * it was published. Nor can a page be published twice, under two salts.
     *
     * @param out_tokens  or NULL; tokens of the sequence that can be found now, a multiple of page_tokens
     * @retval NBL_OK           also if nothing new was published
     * @retval NBL_E_INVALID    the cache has no NBL_CACHE_PREFIX, a field is out of range, or salt or tokens
     *                          contradict an earlier call for the sequence
     * @retval NBL_E_NOT_FOUND  no such sequence
     * @retval NBL_E_RANGE      a layer has fewer than count tokens
     * @since ABI 1.1
     */
    nbl_status (*prefix_publish)(nbl_cache *cache, uint64_t sequence, const nbl_prefix *prefix, uint32_t *out_tokens,
                                 nbl_error *err);

    /** Tells how many tokens seq_adopt would give; changes nothing.
     *
     * @retval NBL_OK
     * @retval NBL_E_INVALID  as prefix_publish
     * @since ABI 1.1
     */
    nbl_status (*prefix_match)(nbl_cache *cache, const nbl_prefix *prefix, uint32_t *out_tokens, nbl_error *err);

    /** Gives an empty sequence the longest published prefix of the tokens, in whole pages.
     *
     * Afterwards every layer has *out_tokens tokens, and once the engine has appended the rest of the tokens given, the
     * sequence is what it would be had all of them been appended, the first first_tokens in one call: same bytes, same
     * centre. (With a recent window only pages that lie outside of it then are adopted.) Keys are compared in
     * full, so tokens that differ are never taken for each other.
     *
     * @param out_tokens  a multiple of page_tokens; 0 if nothing is found
     * @retval NBL_OK
     * @retval NBL_E_INVALID    as prefix_publish
     * @retval NBL_E_NOT_FOUND  no such sequence
     * @retval NBL_E_STATE      the sequence has tokens
     * @since ABI 1.1
     */
    nbl_status (*seq_adopt)(nbl_cache *cache, uint64_t sequence, const nbl_prefix *prefix, uint32_t *out_tokens,
                            nbl_error *err);

    /** Keeps the published prefix of the tokens from being evicted, until prefix_unpin. Pins add up.
     *
     * @param out_tokens  tokens pinned; give as many to prefix_unpin
     * @retval NBL_OK         also for a prefix of 0 tokens
     * @retval NBL_E_INVALID  as prefix_publish
     * @since ABI 1.1
     */
    nbl_status (*prefix_pin)(nbl_cache *cache, const nbl_prefix *prefix, uint32_t *out_tokens, nbl_error *err);

    /** Takes one pin off each of the pages of the first tokens of a prefix.
     *
     * @param prefix  as given to prefix_pin
     * @param tokens  as prefix_pin gave back
     * @retval NBL_OK
     * @retval NBL_E_INVALID    as prefix_publish
     * @retval NBL_E_NOT_FOUND  a page of them is not pinned; nothing has changed
     * @retval NBL_E_RANGE      tokens is more than prefix->count, or no multiple of page_tokens
     * @since ABI 1.1
     */
    nbl_status (*prefix_unpin)(nbl_cache *cache, const nbl_prefix *prefix, uint32_t tokens, nbl_error *err);

    /** Evicts all published pages that nobody holds and nobody has pinned, for instance because weights have changed.
     *
     * @retval NBL_OK
     * @retval NBL_E_INVALID  the cache has no NBL_CACHE_PREFIX
     * @since ABI 1.1
     */
    nbl_status (*prefix_clear)(nbl_cache *cache, nbl_error *err);

    /** Bytes of the snapshot of a sequence, as snapshot_write needs them.
     *
     * @retval NBL_OK
     * @retval NBL_E_NOT_FOUND  no such sequence
     * @retval NBL_E_NO_MEMORY  no host memory
     * @since ABI 1.1
     */
    nbl_status (*snapshot_size)(nbl_cache *cache, uint64_t sequence, uint64_t *out_bytes, nbl_error *err);

    /** Writes a sequence into host memory, with all that its bytes depend on: geometry, formats, transforms, centres,
     * versions of numerics and layout, lengths, and a checksum for every part (docs/kv-cache.md).
     *
     * A prefix is exported by forking it first. Equal sequences give equal bytes, whatever pages they lie in and
     * whatever backend computed them; what no token uses is zero.
     * Ordering   complete on return; waits for earlier work of the device, on CUDA of its blocking streams: work on
     *            others must have finished
     * @retval NBL_OK
     * @retval NBL_E_NOT_FOUND  no such sequence
     * @retval NBL_E_NO_MEMORY  bytes is less than snapshot_size says, or no host memory
     * @retval NBL_E_DEVICE     the device failed; buffer is undefined
     * @since ABI 1.1
     */
    nbl_status (*snapshot_write)(nbl_cache *cache, uint64_t sequence, void *buffer, uint64_t bytes, nbl_error *err);

    /** snapshot_write into a file.
     *
     * The file is written as PATH.partial, synced, and renamed: whenever the process or the machine stops, PATH is
     * what it was or the whole snapshot. A PATH.partial left by a killed process is written over by the next save. One
     * writer per path at a time.
     * @retval NBL_OK
     * @retval NBL_E_NOT_FOUND  no such sequence
     * @retval NBL_E_IO         PATH is no regular file, or the file cannot be written (err->native_code is the errno).
     *                          PATH is as it was, unless only the last step, syncing its folder, has failed
     * @retval NBL_E_NO_MEMORY, NBL_E_DEVICE  as snapshot_write
     * @since ABI 1.1
     */
    nbl_status (*snapshot_save)(nbl_cache *cache, uint64_t sequence, const char *path, nbl_error *err);

    /** Makes a sequence from a snapshot in host memory.
     *
     * Everything is checked before the cache is touched: a byte that differs from what was written is found. The cache
     * needs the geometry, scale rules, transforms and centring of the snapshot, and pages of its formats; sizes and
     * backend may differ. Attention over the new sequence gives the bits of the old one.
     * @param out_sequence  a new sequence, not published
     * @retval NBL_OK
     * @retval NBL_E_INVALID    not a snapshot, damaged, or of another geometry; err says which
     * @retval NBL_E_ABI        another version of snapshots, numerics or layout
     * @retval NBL_E_NO_MEMORY  out of pages or sequences, or no host memory
     * @retval NBL_E_DEVICE     the device failed
     * @since ABI 1.1
     */
    nbl_status (*snapshot_read)(nbl_cache *cache, const void *buffer, uint64_t bytes, uint64_t *out_sequence,
                                nbl_error *err);

    /** snapshot_read from a file.
     *
     * @retval NBL_OK
     * @retval NBL_E_IO  the file cannot be read; err->native_code is the errno
     * @retval NBL_E_INVALID, NBL_E_ABI, NBL_E_NO_MEMORY, NBL_E_DEVICE  as snapshot_read
     * @since ABI 1.1
     */
    nbl_status (*snapshot_load)(nbl_cache *cache, const char *path, uint64_t *out_sequence, nbl_error *err);

    /** Turns a policy (docs/kv-cache.md, "Policies") into data: a recipe and modifiers, for instance
     * "kv4,sinks=64,recent=256,layers=last4:kv8". "default", which may have modifiers too, is the policy for those who
     * have no reason to take another: "kv4,recent=128" (docs/accuracy.md).
     *
     * @param layers  of the model; names in layers=... are checked against it
     * @retval NBL_OK
     * @retval NBL_E_INVALID    text is NULL, a modifier is unknown, comes twice, has no such value or does not go with
     *                          the recipe, or a dimension is out of range; err says which
     * @retval NBL_E_NOT_FOUND  no such recipe; err lists them
     * @since ABI 1.1
     */
    nbl_status (*policy_parse)(const char *text, uint32_t layers, uint32_t k_dim, uint32_t v_dim,
                               nbl_policy *out_policy, nbl_error *err);

    /** Writes everything that cache_stats knows, and the bytes and formats of every layer, as text for a monitor.
     *
     * @param format     enum nbl_text_format
     * @param buffer     or NULL with bytes = 0: only *out_bytes is wanted
     * @param bytes      of buffer
     * @param out_bytes  bytes of the whole text, its final NUL included
     * @retval NBL_OK           also if only *out_bytes was wanted
     * @retval NBL_E_INVALID    format is unknown
     * @retval NBL_E_NO_MEMORY  bytes is less than *out_bytes, which is written; buffer holds the start of the text
     * @retval NBL_E_DEVICE     the counters could not be read
     * @since ABI 1.1
     */
    nbl_status (*cache_stats_text)(nbl_cache *cache, uint32_t format, char *buffer, uint64_t bytes, uint64_t *out_bytes,
                                   nbl_error *err);

    /** Takes T tokens of one layer into pages that an engine has already quantized, nvfp4 or fp8_e4m3: codes and block
     * scales move as they are.
     *
     * Computes   for every token t with slot >= 0 and every kv head h: the stored vector that decodes to
     *            e2m1(k[t, h, d]) * e4m3(scale of d / 16), or e4m3(k[t, h, d]); v likewise. The tensor or head scale of
     *            the engine is pool.k_scale[layer, h], which gather and attend multiply with (NUM 6.7)
     * Shapes     k [T, Hk, Dk/2 or Dk] u8, v [T, Hk, Dv/2 or Dv] u8, one may be absent; scales [T, Hk, C] u8
     *            or matrices (enum nbl_scale_layout; each 512 * ceil(rows / 128) * ceil(C / 4) bytes), rows being all
     *            tokens from 0 to scale_token + T; any strides
     * Numerics   NUM 6.8, exact: no value changes, but NaN codes become the code below
     * Memory     inputs are not modified. Slots are all different; bytes of other slots are not touched. stats is
     *            added to
     * Ordering   see nbl_api_v1
     * @retval NBL_OK             also for T = 0
     * @retval NBL_E_INVALID      a shape, format, enum or required pointer is wrong, no region has the formats, or the
     *                            pool transforms K (centering, k_hadamard) or V (v_hadamard): codes stay as they are
     * @retval NBL_E_ALIGN        slots or stats is not aligned
     * @retval NBL_E_OVERLAP      pool or stats overlap an input or each other
     * @retval NBL_E_RANGE        a slot is outside, or in a region of other formats; where only the device can see it,
     *                            at check
     * @retval NBL_E_UNSUPPORTED  the backend has no append_coded
     * @retval NBL_E_DEVICE       the launch failed
     * @since ABI 1.1
     */
    nbl_status (*append_coded)(nbl_device *device, const nbl_append_coded_args *args, nbl_error *err);

    /** Appends tokens of one layer to a batch of sequences, as codes that an engine has already quantized: cache_append
     * with append_coded in place of append. The tensor or head scales of the engine are those of nbl_cache_config.
     *
     * Shapes     as append_coded, for T tokens that seq_indptr [B+1] cuts
     * Numerics   NUM 6.8, exact
     * Memory     all pages are taken before the work starts, or none
     * Ordering   see nbl_api_v1
     * @retval NBL_OK             also for T = 0
     * @retval NBL_E_INVALID      as append_coded and cache_append; or some pages of the layer have other formats
     * @retval NBL_E_NOT_FOUND    no such sequence
     * @retval NBL_E_NO_MEMORY    out of pages; the cache is as before
     * @retval NBL_E_RANGE        no such layer, or a sequence would exceed sequence_tokens_max
     * @retval NBL_E_ALIGN        as append_coded
     * @retval NBL_E_OVERLAP      as append_coded
     * @retval NBL_E_UNSUPPORTED  the backend has no append_coded; the cache is as before
     * @retval NBL_E_DEVICE       the launch failed; the cache is as before
     * @since ABI 1.1
     */
    nbl_status (*cache_append_coded)(nbl_cache *cache, const nbl_cache_append_coded_args *args, nbl_error *err);
} nbl_api_v1;

#ifndef NBL_NO_PROTOTYPES
/** Returns the table, or a reason. The only exported symbol.
 *
 * Memory     The table is static and lives as long as the process.
 * @param request  the version wanted; NULL means major NBL_ABI_MAJOR, any minor
 * @param out_api  the table
 * @param err      or NULL
 * @retval NBL_OK
 * @retval NBL_E_INVALID        out_api is NULL
 * @retval NBL_E_ABI            another major, a newer minor, or a struct too short
 * @retval NBL_E_UNKNOWN_FIELD  non-zero bytes past the known size of request
 * @since ABI 1.0
 */
nbl_status nbl_get_api(const nbl_api_request *request, const nbl_api_v1 **out_api, nbl_error *err);
#endif

/** Type of nbl_get_api, for dlsym. */
typedef nbl_status (*nbl_get_api_fn)(const nbl_api_request *request, const nbl_api_v1 **out_api, nbl_error *err);

#ifdef __cplusplus
}
#endif

#endif
