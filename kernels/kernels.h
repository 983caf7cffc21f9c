/* kernels.h - every numerical operation of a transformer step, behind one table per backend.
 *
 * A `struct kernels` is an opened backend: its instruction set, its workers and its scratch memory. The operations
 * in `struct kernels_ops` take whole batches and return when the result is there. They know no model: the engine
 * gives them shapes, pointers and page tables.
 *
 * What always holds (docs/numerics.md gives the rounding and order of every operation):
 *   - a row of an output depends on its own inputs only: not on how many rows are in the call, not on which other
 *     rows, not on the number of workers;
 *   - all CPU instruction sets (portable, avx2, avxvnni, avx512) give equal bits.
 *
 * Threads: one caller at a time per `struct kernels` (the engine thread), except where a function says otherwise.
 * Errors: 0 or a negative errno value; text for a person goes to err (always terminated when err_size > 0).
 */
#ifndef CONVOD_KERNELS_H
#define CONVOD_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- element types ------------------------------------------------------------------------------------------ */

/* Weight types, as the GGUF specification lays them out in a file (ggml's block_* structures). */
enum kernels_type {
    KERNELS_F32,
    KERNELS_F16,
    KERNELS_BF16,
    KERNELS_Q8_0,   /* 32 values: f16 scale, 32 int8 */
    KERNELS_Q4_0,   /* 32 values: f16 scale, 16 bytes of nibbles (low half first), offset -8 */
    KERNELS_Q4_1,   /* 32 values: f16 scale, f16 minimum, 16 bytes of nibbles */
    KERNELS_Q5_0,   /* 32 values: f16 scale, 32 high bits, 16 bytes of nibbles, offset -16 */
    KERNELS_Q5_1,   /* 32 values: f16 scale, f16 minimum, 32 high bits, 16 bytes of nibbles */
    KERNELS_Q4_K,   /* 256 values: f16 d, f16 dmin, 8 six-bit scales and minima in 12 bytes, 128 bytes of nibbles */
    KERNELS_Q5_K,   /* as Q4_K with 32 bytes of high bits before the nibbles */
    KERNELS_Q6_K,   /* 256 values: 128 bytes low nibbles, 64 bytes high pairs, 16 int8 scales, f16 d, offset -32 */
    KERNELS_Q2_K,   /* 256 values: 16 bytes of four-bit scales and minima, 64 bytes of pairs, f16 d, f16 dmin */
    KERNELS_Q3_K,   /* 256 values: 32 bytes of high bits, 64 bytes of pairs, 16 six-bit scales in 12 bytes, f16 d */
    KERNELS_IQ4_NL, /* 32 values: f16 scale, 16 bytes of nibbles that stand for 16 uneven values */
    KERNELS_IQ4_XS, /* 256 values: f16 d, 8 six-bit scales in 6 bytes, 128 bytes of such nibbles */
    KERNELS_MXFP4,  /* 32 values: a power of two as a byte, 16 bytes of four-bit floats */
    KERNELS_TYPE_COUNT
};

struct kernels_type_info {
    const char *name; /* as written by GGUF tools: "Q4_K" */
    int block_values; /* values per block: a row's length must be a multiple */
    int block_bytes;  /* bytes per block in the file */
};

/* Facts about a type. `type` must be below KERNELS_TYPE_COUNT. */
const struct kernels_type_info *kernels_type_info(enum kernels_type type);

/* KV cache element types. Both are 16 bits wide. */
enum kernels_kv_type { KERNELS_KV_BF16, KERNELS_KV_F16 };

/* ---- backend ------------------------------------------------------------------------------------------------- */

struct kernels;

struct kernels_opts {
    const char *backend; /* "auto", "cpu" (best instruction set), "cpu-portable", "cpu-avx2", "cpu-avxvnni",
                            "cpu-avx512"; NULL = auto */
    int threads;         /* workers including the caller; 0 = one per available core */
};

/* Opens a backend and starts its workers. -ENOTSUP: the processor lacks the instruction set or the name is unknown
 * (err says which sets there are); -ENOMEM; -EAGAIN: a worker could not be started. */
int kernels_open(const struct kernels_opts *opts, struct kernels **out, char *err, size_t err_size);

/* Stops the workers and frees. NULL is fine. */
void kernels_close(struct kernels *k);

const char *kernels_backend(const struct kernels *k); /* "cpu-avx2", ... static text */
int kernels_threads(const struct kernels *k);

/* Runs fn(arg, i) for every i in [0, n), shared out over the workers in contiguous ranges; returns when all are done.
 * For work that is not an operation of the table (packing weights at load). */
void kernels_parallel(struct kernels *k, int n, void (*fn)(void *arg, int i), void *arg);

/* ---- weights ------------------------------------------------------------------------------------------------- */

#define KERNELS_ROW_GROUP 16 /* rows that are interleaved in a packed matrix: one row per SIMD lane */

/* A packed weight matrix, [rows][cols], owned by the caller. Same bytes as in the file, apart from rows being padded
 * to a multiple of KERNELS_ROW_GROUP; all CPU instruction sets read the same packing. */
struct kernels_matrix {
    enum kernels_type type;
    int rows, cols;
    const void *data; /* kernels_packed_bytes() bytes, 64-byte aligned */
};

/* Bytes of a packed matrix. 0 when cols is not a multiple of the block, a dimension is not positive, or the product
 * overflows. */
size_t kernels_packed_bytes(enum kernels_type type, int rows, int cols);

/* Packs rows [group * 16, min(rows, group * 16 + 16)) of a matrix. `rows_in_file` points at the first row of the whole
 * matrix as it lies in the file (any alignment), `packed` at the whole packed matrix. Pure function of its arguments;
 * different groups may be packed at the same time by different threads. */
void kernels_pack_group(enum kernels_type type, int rows, int cols, int group, const void *rows_in_file, void *packed);

/* ---- rotary positions ---------------------------------------------------------------------------------------- */

enum kernels_rope_kind {
    KERNELS_ROPE_HALVES, /* rotates (i, i + dim/2): qwen2, gemma3 ("NeoX") */
    KERNELS_ROPE_PAIRS,  /* rotates (2i, 2i + 1): llama files, whose Q/K rows are permuted for it */
};

/* ---- KV pages ------------------------------------------------------------------------------------------------ */

#define KERNELS_PAGE_TOKENS     64  /* tokens per KV page; divides KERNELS_ATTENTION_BLOCK */
#define KERNELS_KEY_GROUP       16  /* tokens that lie side by side for one key dimension */
#define KERNELS_ATTENTION_BLOCK 256 /* canonical attention block: absolute positions [256 b, 256 b + 256) */

/* One layer's K and V inside a pool of pages. A page holds, at k_offset, [kv_heads][64 / 16][head_dim][16] keys
 * (dim-major in groups of 16 tokens) and, at v_offset, [kv_heads][64][head_dim] values (token-major), 16 bits each.
 * Slots that were never written are zero. */
struct kernels_kv {
    enum kernels_kv_type type;
    int kv_heads;
    int head_dim;
    uint8_t *pool;     /* page p starts at pool + p * page_bytes */
    size_t page_bytes; /* of the whole page (all layers of its group), a multiple of 64 */
    size_t k_offset, v_offset;
};

/* A sequence's page table for one group of layers: pages[i] holds positions [64 i, 64 i + 64); -1: the page was
 * dropped, which is allowed only where every query's window has left it behind. */
struct kernels_pages {
    const int32_t *pages;
    int count;
};

/* One run of new tokens of one sequence inside a batch. Rows [first_row, first_row + n) of the batch are positions
 * [pos, pos + n) of the sequence. */
struct kernels_run {
    int first_row, n;
    int pos;
    struct kernels_pages pages;
};

/* ---- operations ---------------------------------------------------------------------------------------------- */

/* One product with a shared input: y[n][rows] = x[n][cols] * w^T + bias; or y += with accumulate (the product and
 * its bias are computed first, then added to y). */
struct kernels_linear {
    const struct kernels_matrix *w;
    const float *bias; /* [rows] or NULL */
    float *y;          /* [n][rows] */
    bool accumulate;
};

enum kernels_glu_kind {
    KERNELS_SILU,
    KERNELS_GELU_TANH,
    KERNELS_SWIGLU_CLAMPED, /* gpt-oss: gate sigmoid(1.702 gate) (up + 1), gate at most 7, up within 7 */
};

#define KERNELS_MAX_EXPERTS      1024
#define KERNELS_MAX_EXPERTS_USED 64 /* by one row; a multiple of 16 */

struct kernels_attention {
    const float *q; /* [rows][heads][head_dim], rotated */
    float *out;     /* [rows][heads][head_dim] */
    int rows, heads;
    float scale;        /* multiplies q.k */
    int window;         /* 0 = full; else position p sees keys at distance < window */
    float softcap;      /* 0 = none; else s = cap * tanh(s / cap) */
    const float *sinks; /* [heads] or NULL: a score that each query sees beside its keys', with a value of zeros */
    struct kernels_kv kv;
    const struct kernels_run *runs; /* cover rows [0, rows) in order */
    int n_runs;
};

/* A feed-forward part of many experts, of which each row asks a few. */
struct kernels_mixture {
    int experts, used;                             /* at most the two maxima above; used <= experts */
    const float *logits;                           /* [n][experts]: the router's */
    const struct kernels_matrix *gate, *up, *down; /* [experts]: [ff][cols], [ff][cols], [cols][ff] */
    const float *gate_bias, *up_bias, *down_bias;  /* [experts][ff], [experts][ff], [experts][cols]; or NULL */
    enum kernels_glu_kind glu;
    /* Scratch of the caller's: [n * used] of cols, ff, ff and cols values, and of one. */
    float *rows, *gate_out, *up_out, *out, *weights;
    int32_t *ids, *order, *place;
};

/* A logit that counts instead of the row's own (penalties). */
struct kernels_logit {
    int32_t id;
    float value;
};

#define KERNELS_MAX_LOGITS (1 << 24) /* so that sums of weights stay below 2^63 */

/* One token to pick from a row of logits: docs/numerics.md, "Sampling". All settings within the ranges that
 * engine_sampling_check() gives. */
struct kernels_pick {
    const float *logits; /* [n] */
    int n;
    const struct kernels_logit *changed; /* [n_changed], distinct ids in [0, n) */
    int n_changed;
    float temperature; /* 0: the greatest */
    int top_k;         /* 0: all */
    float top_p, min_p;
    double random; /* in [0, 1) */
    int32_t id;    /* out; -1: a logit is NaN, or the greatest is not finite */
};

/* Pointers are to memory of the backend (alloc). Shapes are row-major. No operation allows its outputs to overlap
 * its inputs unless it says so. Operations cannot fail for valid arguments; a lack of scratch memory is found by
 * reserve(). */
struct kernels_ops {
    const char *name;

    /* Zeroed, 64-byte aligned memory; NULL when there is none. Freed with release(). */
    void *(*alloc)(struct kernels *k, size_t bytes);
    void (*release)(struct kernels *k, void *p, size_t bytes);

    /* memcpy and memset(0) between the backend's own memory. */
    void (*copy)(struct kernels *k, void *to, const void *from, size_t bytes);
    void (*zero)(struct kernels *k, void *p, size_t bytes);

    /* Makes room for batches of up to max_rows rows, inputs of up to max_cols values and max_heads query heads of up to
     * max_head_dim, so that no operation allocates. 0 or -ENOMEM. Call once before the first operation. */
    int (*reserve)(struct kernels *k, int max_rows, int max_cols, int max_heads, int max_head_dim);

    /* out[i][cols] = scale * w[ids[i]][:], dequantized. ids must be in [0, w->rows). */
    void (*embed)(struct kernels *k, const struct kernels_matrix *w, const int32_t *ids, int n, float scale,
                  float *out);

    /* out[i][d] = x[rows[i]][d]. */
    void (*gather)(struct kernels *k, const float *x, int d, const int32_t *rows, int n, float *out);

    /* y[r][:] = x[r][:] / sqrt(mean(x[r]^2) + eps) * weight[:]; x and y may be the same. weight [d]. */
    void (*rms_norm)(struct kernels *k, const float *x, int rows, int d, const float *weight, float eps, float *y);

    /* Several products of the same input x[n][cols]: quantizes x once, where the weight types want it. All w->cols ==
     * cols. */
    void (*linear)(struct kernels *k, const float *x, int n, int cols, const struct kernels_linear *jobs, int n_jobs);

    /* Rotates x[n][heads][head_dim] in place by table[n][rot/2][2] (cos, sin); dims past rot are left alone. */
    void (*rope)(struct kernels *k, float *x, int n, int heads, int head_dim, int rot, enum kernels_rope_kind kind,
                 const float *table);

    /* Rounds k[rows][kv_heads][head_dim] and v (same shape) to the KV type (nearest even) and writes them to their
     * pages. */
    void (*kv_write)(struct kernels *k, const struct kernels_kv *kv, const float *key, const float *value,
                     const struct kernels_run *runs, int n_runs);

    /* Causal grouped-query attention over pages that already hold the new tokens' keys and values. */
    void (*attention)(struct kernels *k, const struct kernels_attention *a);

    /* out[i] = act(gate[i]) * up[i], n values; out may be gate. */
    void (*glu)(struct kernels *k, enum kernels_glu_kind kind, const float *gate, const float *up, size_t n,
                float *out);

    /* For each row of x[n][cols]: the `used` experts with the largest logits, largest first and the lower of equals
     * first, weigh softmax of those logits; y[n][cols] += the sum over them, in that order, of weight *
     * (down(act(gate(x))
     * * up(x)) + bias). Rows that ask the same expert are taken together. */
    void (*mixture)(struct kernels *k, const float *x, int n, int cols, const struct kernels_mixture *m, float *y);

    /* x[i] += y[i], n values. */
    void (*add)(struct kernels *k, float *x, const float *y, size_t n);

    /* x[i] = cap * tanh(x[i] / cap), n values, cap > 0. */
    void (*softcap)(struct kernels *k, float *x, size_t n, float cap);

    /* Picks a token from each of n rows. Rows may be the same. reserve_pick() makes room for rows of up to max_logits,
     * at most KERNELS_MAX_LOGITS: 0, -EINVAL or -ENOMEM; call it before the first pick, and again for longer rows. */
    int (*reserve_pick)(struct kernels *k, int max_logits);
    void (*pick)(struct kernels *k, struct kernels_pick *picks, int n);

    /* One layer's keys and values of positions [first, first + n) out of / into pages, in the canonical layout:
     * keys [kv_heads * head_dim][n] (channel-major), values [n][kv_heads * head_dim], 16 bits each, no padding. */
    void (*kv_export)(struct kernels *k, const struct kernels_kv *kv, struct kernels_pages pages, int first, int n,
                      uint16_t *keys, uint16_t *values);
    void (*kv_import)(struct kernels *k, const struct kernels_kv *kv, struct kernels_pages pages, int first, int n,
                      const uint16_t *keys, const uint16_t *values);
};

const struct kernels_ops *kernels_ops(const struct kernels *k);

#endif
