/* kernels.h - every numerical operation of a transformer step, behind one table per backend.
 *
 * A `struct kernels` is an opened backend: a device, its memory, its streams of work and its scratch. The operations in
 * `struct kernels_ops` take whole batches. They know no model: the engine gives them shapes, pointers and page tables.
 *
 * Everything that goes to the device is put into a stream and may be done later: nothing waits for the device but
 * wait(), and nothing allocates but what says so. On a CPU, where the device is the caller and its workers, all of it
 * is done when the function returns.
 *
 * Memory is the device's or pinned. A pointer to memory of the device (alloc with KERNELS_DEVICE) is an address that
 * only operations follow, whatever its type says; arithmetic on it is fine. Pinned memory is the host's, and the device
 * can copy to and from it. Everything else that is handed over (structs, arrays of the host) is read before the
 * function returns, except what a batch points at: that stays as it is until end().
 *
 * What always holds (docs/numerics.md gives the rounding and order of every operation):
 *   - a row of an output depends on its own inputs only: not on how many rows are in the call, not on which other
 *     rows, not on the number of workers;
 *   - all CPU instruction sets (portable, avx2, avxvnni, avx512) give equal bits.
 *
 * Errors: functions that can fail for a reason of the caller's give 0 or a negative errno value; text for a person goes
 * to err (always terminated when err_size > 0). What fails on the device is sticky: from then on operations do nothing,
 * wait() gives -EIO and error() says what it was. Whatever was computed since the last good wait() must not be used.
 *
 * Threads: one caller at a time per `struct kernels` (the engine thread), except where a function says otherwise.
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

/* The value of an IEEE half, exactly. */
float kernels_half(uint16_t bits);

/* Bytes of a row of `cols` values in a file; 0 when cols is not a multiple of the type's block. */
size_t kernels_row_bytes(enum kernels_type type, int cols);

/* KV cache element types. */
enum kernels_kv_type { KERNELS_KV_BF16, KERNELS_KV_F16 };

/* Bytes of an element. */
size_t kernels_kv_width(enum kernels_kv_type type);

/* ---- backend ------------------------------------------------------------------------------------------------- */

struct kernels;

struct kernels_opts {
    const char *backend; /* "auto" (a GPU where there is one, else the processor), "cuda", "cpu" (best instruction set),
                            "cpu-portable", "cpu-avx2", "cpu-avxvnni", "cpu-avx512"; NULL = auto */
    int threads;         /* workers including the caller; 0 = one per available core */
    int device;          /* which GPU, counted from 0 */
    const char *numerics; /* of a GPU: "device", its fastest; "exact", the same bits on all; NULL = device */
};

/* Opens a backend and starts its workers. -ENOTSUP: the processor lacks the instruction set, the GPU is too old, CUDA
 * was not built in, or the name is unknown (err says which there are); -ENODEV: there is no GPU, or no driver for it;
 * -ENOMEM; -EAGAIN: a worker could not be started. Where "auto" takes the processor although CUDA is built in, it
 * returns 0 and err says what was wrong with the GPU. */
int kernels_open(const struct kernels_opts *opts, struct kernels **out, char *err, size_t err_size);

/* Waits for the device, stops the workers and frees what the backend itself made. NULL is fine. */
void kernels_close(struct kernels *k);

/* What computes: "cpu-avx2", "cuda"; "cuda+cublaslt" as soon as weights were packed for which that library is used.
 * Static text. */
const char *kernels_backend(const struct kernels *k);
#define KERNELS_NUMERICS_TEXT 21 /* bytes of a name, with the terminator: "cuda device 1 sm_120" is the longest */
/* Whose bits this backend has: those with the same name have the same. "cpu" for all instruction sets; of a GPU "cuda
 * device", the version of the order in which its tensor cores add, and its architecture. Valid for the backend's life.
 */
const char *kernels_numerics(const struct kernels *k);
/* How it computes with the weights that were packed, where that has a choice, for a person; NULL: it has none. To be
 * asked for when they are packed. Valid for the backend's life. */
const char *kernels_notes(const struct kernels *k);

/* What this process may use, by the system, its processor affinity and the limits of its control group and of those
 * above it (limits.c): cores, at least 1; and bytes of memory without swapping, where cached files count as free,
 * UINT64_MAX when nothing says. [any thread] */
int kernels_available_cores(void);
uint64_t kernels_available_bytes(void);
/* Bytes that the machine, or its control groups, leave altogether, in use or not; UINT64_MAX likewise. [any thread] */
uint64_t kernels_machine_bytes(void);

/* How a device is, all processes on it together, as its driver said a second ago at most. */
struct kernels_health {
    char name[96];                            /* printable ASCII without quotes; "": not said */
    uint64_t memory_bytes, memory_used_bytes; /* 0: not said */
    double temperature_c, power_w;            /* NaN: not said */
    double utilization;                       /* share of time in which it computed, 0 to 1; NaN: not said */
};

/* False: nothing is known: there is no device, its driver says nothing, or it has not been asked yet. [any thread] */
bool kernels_health(struct kernels *k, struct kernels_health *out);

/* ---- memory and streams ------------------------------------------------------------------------------------------ */

enum kernels_place { KERNELS_DEVICE, KERNELS_PINNED };

/* Work of one stream is done in order; between streams, only what after() says. */
enum kernels_stream {
    KERNELS_COMPUTE, /* operations */
    KERNELS_IN,      /* kv_import */
    KERNELS_OUT,     /* kv_export */
};

#define KERNELS_PLACES 2 /* of bring() */

/* A point in a stream: all that was put into it before has been done when the event has passed. 0 has passed. */
typedef uint64_t kernels_event;

/* ---- weights ----------------------------------------------------------------------------------------------------- */

/* A weight matrix, [rows][cols], or `experts` of them one behind the other, as the backend packs it. */
struct kernels_matrix {
    enum kernels_type type;
    int rows, cols;
    int experts; /* 0: one matrix */
    void *data;  /* on the device, aligned to 256 bytes: matrix_bytes() for each expert, or for the one */
};

/* ---- rows between operations ------------------------------------------------------------------------------------- */

/* What a product takes: its rows as floats (products with F32, F16 and BF16) or quantized (all others). */
enum { KERNELS_FLOATS = 1, KERNELS_QUANTS = 2 };

/* The form that a product with this type takes. */
unsigned kernels_form(enum kernels_type type);

/* Rows on their way to products. Who writes them (norm, gather, attention, gated) leaves at least the forms that are
 * asked for; a backend may want x as scratch in any case. */
struct kernels_acts {
    float *x; /* [rows][cols] */
    void *q;  /* quantized, acts_bytes() in the backend's own layout; NULL where that is 0 */
    int cols;
    unsigned forms; /* KERNELS_FLOATS | KERNELS_QUANTS */
};

/* ---- rotary positions -------------------------------------------------------------------------------------------- */

enum kernels_rope_kind {
    KERNELS_ROPE_HALVES, /* rotates (i, i + dim/2): qwen2, gemma3 ("NeoX") */
    KERNELS_ROPE_PAIRS,  /* rotates (2i, 2i + 1): llama files, whose Q/K rows are permuted for it */
};

/* ---- KV pages ---------------------------------------------------------------------------------------------------- */

#define KERNELS_PAGE_TOKENS     64  /* tokens per KV page; divides KERNELS_ATTENTION_BLOCK */
#define KERNELS_KEY_GROUP       16  /* tokens that lie side by side for one key dimension */
#define KERNELS_ATTENTION_BLOCK 256 /* canonical attention block: absolute positions [256 b, 256 b + 256) */
#define KERNELS_PAGE_GROUPS     2   /* page tables of a sequence: layers that keep their KV alike share one */

/* One layer's K and V inside a pool of pages. A page holds, at k_offset, [kv_heads][64 / 16][head_dim][16] keys
 * (dim-major in groups of 16 tokens) and, at v_offset, [kv_heads][64][head_dim] values (token-major), of
 * kernels_kv_width() bytes each. Slots that were never written are zero. */
struct kernels_kv {
    enum kernels_kv_type type;
    int group; /* which of a sequence's page tables */
    int kv_heads;
    int head_dim;
    uint8_t *pool;     /* on the device; page p starts at pool + p * page_bytes */
    size_t page_bytes; /* of the whole page (all layers of its group), a multiple of 64 */
    size_t k_offset, v_offset;
};

/* A sequence's page table for one group of layers: pages[i] holds positions [64 i, 64 i + 64); -1: the page was
 * dropped, which is allowed only where every query's window has left it behind. */
struct kernels_pages {
    const int32_t *pages; /* of the host */
    int count;
};

/* ---- a batch ----------------------------------------------------------------------------------------------------- */

/* One run of new tokens of one sequence inside a batch. Rows [first_row, first_row + n) of the batch are positions
 * [pos, pos + n) of the sequence. */
struct kernels_run {
    int first_row, n;
    int pos;
    struct kernels_pages pages[KERNELS_PAGE_GROUPS];
};

/* A token whose logit is changed: how often it was said before (0: the penalties do nothing to it), and what is added.
 */
struct kernels_seen {
    int32_t id;
    int32_t count;
    float bias;
};

#define KERNELS_MAX_LOGITS (1 << 24) /* so that sums of weights stay below 2^63 */
#define KERNELS_MAX_TOP    32        /* alternatives of a pick */

/* One token to pick from a row of logits: docs/numerics.md, "Sampling". All settings within the ranges that
 * engine_sampling_check() gives. */
struct kernels_pick {
    int row;                         /* of the wanted ones */
    const struct kernels_seen *seen; /* [n_seen], distinct ids: biases and penalties change their logits */
    int n_seen;
    float repetition, presence, frequency;
    const uint32_t *mask; /* bit i % 32 of word i / 32: token i may be picked; NULL: all may */
    float temperature;    /* 0: the greatest */
    int top_k;            /* 0: all */
    float top_p, min_p;
    double random; /* in [0, 1) */
    bool odds;     /* what the log-probabilities are made of is wanted, and n_top alternatives */
    int n_top;
};

/* What is picked instead of a token. */
enum {
    KERNELS_PICK_NAN = -1, /* a logit is NaN, or the greatest is not finite */
    KERNELS_PICK_NONE = -2 /* no token that the mask allows has a finite logit */
};

/* Logits here are the row's own, before biases, penalties, mask and temperature. The log-probability of a logit x is (x
 * - max)
 * - ln(mass / 2^39): mass is the sum over the row of exp(logit - max) in whole units of 2^-39 (docs/numerics.md). */
struct kernels_picked {
    int32_t id; /* or one of the above */
    /* Where odds are wanted and the row has no NaN: */
    float logit, max; /* of the picked token; the row's greatest */
    uint64_t mass;
    int32_t top[KERNELS_MAX_TOP]; /* [n_top], by falling logits, the lower id first among equals; -1 behind the last */
    float top_logits[KERNELS_MAX_TOP];
};

/* What one pass over the model is about. */
struct kernels_batch {
    int rows;
    const int32_t *ids;             /* [rows] tokens */
    const struct kernels_run *runs; /* [n_runs], cover rows [0, rows) in order */
    int n_runs;
    const float *query_scale; /* [rows]: what queries grow by; NULL: nothing */
    const int32_t *wanted;    /* [n_wanted] rows that gather() takes, in this order */
    int n_wanted;
};

/* The most of everything that operations will meet. */
struct kernels_sizes {
    int rows, runs;    /* of a batch */
    int pages;         /* of a run's table */
    int wanted, picks; /* of a batch */
    int vocab;         /* logits of a row */
    int cols;          /* of a product's input */
    int heads, head_dim;
    int ff;                               /* rows of gate and up */
    int experts, experts_used, expert_ff; /* 0: there are no mixtures */
};

/* ---- operations -------------------------------------------------------------------------------------------------- */

/* One product with a shared input: y[n][rows] = x[n][cols] * w^T + bias; or y += with accumulate (the product and
 * its bias are computed first, then added to y). */
struct kernels_linear {
    const struct kernels_matrix *w;
    const float *bias; /* [rows] or NULL */
    float *y;          /* [n][rows] */
    bool accumulate;
    float softcap; /* 0: none; else y = cap * tanh(y / cap) at last; not with accumulate */
};

enum kernels_glu_kind {
    KERNELS_SILU,
    KERNELS_GELU_TANH,
    KERNELS_SWIGLU_CLAMPED, /* gpt-oss: gate sigmoid(1.702 gate) (up + 1), gate at most 7, up within 7 */
};

#define KERNELS_MAX_EXPERTS      1024
#define KERNELS_MAX_EXPERTS_USED 64 /* by one row; a multiple of 16 */

#define KERNELS_ANGLE_MOST 0x1p+27 /* of rotary positions */

/* Queries, keys and values of new tokens, on their way from their products to attention and to their pages. */
struct kernels_attn_in {
    float *q;           /* [rows][heads][head_dim]; normed and rotated in place */
    float *key, *value; /* [rows][kv_heads][head_dim]; what is left in them is nobody's affair */
    int heads;
    const float *q_norm, *k_norm; /* [head_dim], an RMS norm of every head; NULL: none */
    float eps;
    const float *q_rope, *k_rope; /* tables of rope_table(); NULL: nothing is rotated */
    int rot;                      /* dimensions that are rotated; those behind are left alone */
    enum kernels_rope_kind kind;
    struct kernels_kv kv;
};

struct kernels_attention {
    const float *q; /* [rows][heads][head_dim], rotated */
    int heads;
    float scale;        /* multiplies q.k */
    int window;         /* 0 = full; else position p sees keys at distance < window */
    float softcap;      /* 0 = none; else s = cap * tanh(s / cap) */
    const float *sinks; /* [heads] or NULL: a score that each query sees beside its keys', with a value of zeros */
    struct kernels_kv kv;
};

/* A feed-forward part of many experts, of which each row asks a few. */
struct kernels_mixture {
    int used;                                      /* experts of a row */
    const float *logits;                           /* [n][experts]: the router's */
    const struct kernels_matrix *gate, *up, *down; /* experts of [ff][cols], [ff][cols], [cols][ff] */
    const float *gate_bias, *up_bias, *down_bias;  /* [experts][ff], [experts][ff], [experts][cols]; or NULL */
    enum kernels_glu_kind glu;
};

/* Positions [first, first + n) of a sequence whose keys and values are kept elsewhere. */
struct kernels_kv_part {
    int first, n;
    /* Array 2 l has the keys of layer l, 2 l + 1 its values, as in a staging. Returns where its rows are, which may be
     * `buf`, that has room for them and is aligned to 64 bytes; NULL: they cannot be had. Any worker, several at once.
     */
    const void *(*rows)(void *arg, int array, void *buf);
    void *arg;
    bool failed; /* false before; some rows could not be had */
};

/* Shapes are row-major; `n` is a number of rows, the batch's or the wanted ones'. Outputs do not overlap inputs unless
 * an operation says so. */
struct kernels_ops {
    /* ---- memory: any time but between begin() and end() ---- */

    /* What a pointer to memory of the device points at is the host's memory, and pinned memory is as any other. */
    bool host;

    /* Zeroed memory, aligned to 256 bytes; NULL when there is none. Freed with release(), which first waits for what
     * may use it. */
    void *(*alloc)(struct kernels *k, enum kernels_place place, size_t bytes);
    void (*release)(struct kernels *k, enum kernels_place place, void *p, size_t bytes);

    /* Bytes of the device that are free for alloc(), or, `whole`, that it has at all; UINT64_MAX when nothing says. */
    uint64_t (*memory_bytes)(struct kernels *k, bool whole);

    /* Scratch that reserve() takes for these sizes, and taking it (anew when it was called before), so that no
     * operation allocates. -EINVAL, -ENOMEM. Comes before the first batch. */
    uint64_t (*reserve_bytes)(struct kernels *k, const struct kernels_sizes *sizes);
    int (*reserve)(struct kernels *k, const struct kernels_sizes *sizes);

    /* Bytes of the quantized form of `rows` rows; 0: the backend keeps none. */
    size_t (*acts_bytes)(struct kernels *k, int rows, int cols);

    /* ---- loading: waits as it likes ---- */

    /* Bytes of a packed matrix. */
    size_t (*matrix_bytes)(struct kernels *k, enum kernels_type type, int rows, int cols);

    /* Packs rows [first, first + n) of an expert (0 where there is one matrix) into w->data; first is a multiple of 16,
     * and n too unless the rows end there. `rows` are as the file has them, in any memory and at any alignment.
     * Meanwhile calls beside(arg) once, on some thread of the host, and returns when that has returned. NULL: nothing.
     */
    void (*pack)(struct kernels *k, const struct kernels_matrix *w, int expert, int first, int n, const void *rows,
                 void (*beside)(void *arg), void *arg);

    /* Copies from any memory of the host to the device. */
    void (*upload)(struct kernels *k, void *to, const void *from, size_t bytes);

    /* Weights that lie in pinned memory, on their way to one of KERNELS_PLACES places of the device; not for a backend
     * of the host alone (NULL). May be parts of a step. bring() starts the copy, behind what was put into
     * KERNELS_COMPUTE before it and beside what comes after it; what is put there behind brought() finds the weights.
     * Every bring() is followed by a brought() of its place before end(), and before the place's next bring(). */
    void (*bring)(struct kernels *k, int place, void *to, const void *from, size_t bytes);
    void (*brought)(struct kernels *k, int place);

    /* ---- streams ---- */

    /* memcpy and memset(0). Memory is the device's or pinned. */
    void (*copy)(struct kernels *k, enum kernels_stream stream, void *to, const void *from, size_t bytes);
    void (*zero)(struct kernels *k, enum kernels_stream stream, void *p, size_t bytes);

    kernels_event (*record)(struct kernels *k, enum kernels_stream stream);
    /* What is put into the stream from now on waits, on the device, for the event. */
    void (*after)(struct kernels *k, enum kernels_stream stream, kernels_event event);
    /* The host waits: 0; -ETIMEDOUT after timeout_ms (-1: never); -EIO: the device failed. */
    int (*wait)(struct kernels *k, kernels_event event, int timeout_ms);
    /* What the device failed with, for a person; NULL: it did not. */
    const char *(*error)(const struct kernels *k);
    /* kernels_health(); NULL: nothing is ever known. */
    bool (*health)(struct kernels *k, struct kernels_health *out);
    /* kernels_notes(); NULL: there is never anything. */
    const char *(*notes)(const struct kernels *k);

    /* ---- a step: all into KERNELS_COMPUTE ---- */

    /* Takes a batch to the device, in one copy. Returns 0: the operations follow, then end(). Or 1: those of an earlier
     * batch with as many rows and wanted rows will be done on this one, so that only end() follows; whoever calls them
     * gives the same operations in the same order, with the same memory, for batches that are alike in these. */
    int (*begin)(struct kernels *k, const struct kernels_batch *batch);
    void (*end)(struct kernels *k);

    /* out[i][cols] = scale * w[ids[i]][:], dequantized, for all rows of the batch. ids must be in [0, w->rows). */
    void (*embed)(struct kernels *k, const struct kernels_matrix *w, float scale, float *out);

    /* table[i][rot / 2][2] = cos and sin of position(i) * inv_freq[j], times magnitude, for all rows of the batch;
     * `scaled`: and times the row's query_scale. inv_freq [rot / 2] is on the device. Angles, position * inv_freq, are
     * within [0, KERNELS_ANGLE_MOST); past it entries mean nothing. */
    void (*rope_table)(struct kernels *k, const double *inv_freq, int rot, double magnitude, bool scaled, float *table);

    /* out[r][:] = x[r][:] / sqrt(mean(x[r]^2) + eps) * weight[:]. x [n][out->cols], weight [out->cols]. */
    void (*norm)(struct kernels *k, const float *x, int n, const float *weight, float eps,
                 const struct kernels_acts *out);

    /* x[r][:] += norm of y[r][:], as above; x and y [n][d]; what is left in y is nobody's affair. */
    void (*add_norm)(struct kernels *k, float *y, int n, int d, const float *weight, float eps, float *x);

    /* Several products of the same input. All w->cols == in->cols. */
    void (*linear)(struct kernels *k, const struct kernels_acts *in, int n, const struct kernels_linear *jobs,
                   int n_jobs);

    /* out = act(gate(in)) * up(in). gate and up [out->cols][in->cols]. */
    void (*gated)(struct kernels *k, const struct kernels_acts *in, int n, const struct kernels_matrix *gate,
                  const struct kernels_matrix *up, enum kernels_glu_kind kind, const struct kernels_acts *out);

    /* For all rows of the batch: norms heads, rotates, and writes keys and values, rounded to the KV type (nearest
     * even), to their pages. */
    void (*attn_in)(struct kernels *k, const struct kernels_attn_in *a);

    /* Causal grouped-query attention of all rows of the batch over pages that already hold the new tokens' keys and
     * values. out->cols == heads * head_dim. */
    void (*attention)(struct kernels *k, const struct kernels_attention *a, const struct kernels_acts *out);

    /* out[i] = x[wanted[i]]. x [rows][out->cols]. */
    void (*gather)(struct kernels *k, const float *x, const struct kernels_acts *out);

    /* For each of n rows: the `used` experts with the largest logits, largest first and the lower of equals first,
     * weigh softmax of those logits; y[n][cols] += the sum over them, in that order, of weight * (down(act(gate(x)) *
     * up(x)) + bias). Rows that ask the same expert are taken together. in->cols == cols, as floats. */
    void (*mixture)(struct kernels *k, const struct kernels_acts *in, int n, const struct kernels_mixture *m, float *y);

    /* Picks n tokens from logits[][vocab] into out[n], which is pinned. Comes behind end(): what is picked from may
     * still be under way while the masks of what may be picked are made. `picks` and what they point at are read at
     * once. */
    void (*pick)(struct kernels *k, const float *logits, int vocab, const struct kernels_pick *picks, int n,
                 struct kernels_picked *out);

    /* ---- keys and values in and out ---- */

    /* Positions [first, first + n) of n_layers layers out of / into the pages of one sequence (pages [groups], at least
     * as far as the layers say), into KERNELS_OUT / KERNELS_IN. `staging` is pinned and holds, for each layer in order,
     * keys [kv_heads * head_dim][n] (channel-major) and then values [n][kv_heads * head_dim], kernels_kv_width() bytes
     * each, no padding. A page that was dropped gives zeros, and takes nothing. */
    void (*kv_export)(struct kernels *k, const struct kernels_kv *layers, int n_layers,
                      const struct kernels_pages *pages, int first, int n, void *staging);
    void (*kv_import)(struct kernels *k, const struct kernels_kv *layers, int n_layers,
                      const struct kernels_pages *pages, int first, int n, const void *staging);

    /* A backend of the host alone (else NULL): as kv_import for every part, but its rows come from where they are
     * kept, array by array, on all workers; where all pages of an array have been dropped it is not asked for. What
     * parts get that have `failed` is undefined. Allocates when parts are larger than ever before: -ENOMEM, and then
     * nothing was done. */
    int (*kv_fill)(struct kernels *k, const struct kernels_kv *layers, int n_layers, const struct kernels_pages *pages,
                   struct kernels_kv_part *parts, int n_parts);

    /* The same in the split form, in which exponents and the rest of each element lie apart as planes of bits, so that
     * what the codec of a store has left to do is to pack them: an array for keys and one for values of each layer, as
     * above, in the form that storage.h documents (storage_split_bytes(); the function of the same name in
     * storage/codec.c is the twin). NULL, all four: the backend has no such form, and the codec does it.
     *
     * Bytes of n tokens in that form; 0: not for such layers. */
    size_t (*kv_split_bytes)(struct kernels *k, const struct kernels_kv *layers, int n_layers, int n);
    /* Memory of the device for moving up to n tokens of these layers; outside of steps. Comes before the first two. 0;
     * -ENOMEM. */
    int (*kv_split_reserve)(struct kernels *k, const struct kernels_kv *layers, int n_layers, int n);
    /* `split` is pinned. What it holds on its way in must be consistent, as storage_split_decode() leaves it. */
    void (*kv_export_split)(struct kernels *k, const struct kernels_kv *layers, int n_layers,
                            const struct kernels_pages *pages, int first, int n, void *split);
    void (*kv_import_split)(struct kernels *k, const struct kernels_kv *layers, int n_layers,
                            const struct kernels_pages *pages, int first, int n, const void *split);

    void (*close)(struct kernels *k); /* kernels_close() */
};

const struct kernels_ops *kernels_ops(const struct kernels *k);

#endif
