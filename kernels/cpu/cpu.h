/* cpu.h - the CPU backend, and what the files of kernels/cpu/ share: the backend object, its workers, and one table of
 * inner functions per instruction set.
 *
 * Layers inside this room: an operation's file (linear.c, attention.c, ...) shares the work out over the workers and
 * calls inner functions of the instruction set in use, `k->set`. An inner function works on one piece (a row, a group
 * of 16 weight rows, one canonical attention block) and fixes the order of every addition; its portable version
 * (op_portable.c) is the specification, op_avx2.c and op_avx512.c give the same bits.
 */
#ifndef CONVOD_KERNELS_CPU_H
#define CONVOD_KERNELS_CPU_H

#include "kernels/backend.h"

struct kernels_set;
struct kernels_pool;

struct kernels {
    struct kernels_head head;
    const struct kernels_set *set;
    struct kernels_pool *pool;
    int threads;                                 /* workers, the caller included */
    struct kernels_batch batch;                  /* from begin() to end() */
    struct kernels_linear_scratch *linear;       /* owned by linear.c, made by its reserve function */
    struct kernels_attention_scratch *attention; /* owned by attention.c, likewise */
    struct kernels_mixture_scratch *mixture;     /* owned by mixture.c, likewise */
    struct kernels_pick_scratch *pick;           /* owned by pick.c, likewise */
    uint8_t *fill;                               /* of kv_fill, grows: [workers], rows of an array */
    size_t fill_bytes;
};

/* ---- the backend (cpu.c), and its operations (table.c)
 * --------------------------------------------------------------- */

extern const struct kernels_ops kernels_cpu_ops;

/* Zeroed memory, aligned to a page, or to a huge one where it is as large; NULL when there is none. */
void *kernels_cpu_alloc(size_t bytes);
void kernels_cpu_release(void *p, size_t bytes);

int kernels_cpu_reserve(struct kernels *k, const struct kernels_sizes *sizes);
void kernels_cpu_close(struct kernels *k);

int kernels_threads(const struct kernels *k);

/* Runs fn(arg, i) for every i in [0, n), shared out over the workers in contiguous ranges; returns when all are done.
 * For work that is not an operation of the table. */
void kernels_parallel(struct kernels *k, int n, void (*fn)(void *arg, int i), void *arg);

/* ---- packed weights (pack.c)
 * ----------------------------------------------------------------------------------------- */

#define KERNELS_ROW_GROUP 16 /* rows that are interleaved in a packed matrix: one row per SIMD lane */

/* Bytes of a packed matrix: those of the file, with rows padded to a multiple of KERNELS_ROW_GROUP; all instruction
 * sets read the same packing. 0 when cols is not a multiple of the block, a dimension is not positive, or the product
 * overflows. */
size_t kernels_packed_bytes(enum kernels_type type, int rows, int cols);

/* Packs rows [group * 16, min(rows, group * 16 + 16)) of a matrix. `rows_in_file` points at the first row of the whole
 * matrix as it lies in the file (any alignment), `packed` at the whole packed matrix. Pure function of its arguments;
 * different groups may be packed at the same time by different threads. */
void kernels_pack_group(enum kernels_type type, int rows, int cols, int group, const void *rows_in_file, void *packed);

/* ---- workers (pool.c) -------------------------------------------------------------------------------------------- */

/* fn(arg, worker, first, end) handles items [first, end). Workers take their own contiguous share first, in pieces of
 * at least `grain` items, then steal from others. Returns when all items are done; the caller is worker 0. Workers spin
 * briefly between calls and then sleep, so that an idle process uses no processor time. */
void kernels_pool_run(struct kernels_pool *p, int n, int grain, void (*fn)(void *arg, int worker, int first, int end),
                      void *arg);
int kernels_pool_open(int threads, struct kernels_pool **out);
void kernels_pool_close(struct kernels_pool *p);

/* ---- inner functions, one table per instruction set ---------------------------------------------------------------
 */

/* linear.c's part: shapes are documented where they are declared, linear_internal.h. */
struct kernels_linear_set;
/* attention.c, norm.c, glu.c ...: element-wise and attention parts, rows_internal.h. */
struct kernels_rows_set;

struct kernels_set {
    const char *name; /* "cpu-avx2" */
    const struct kernels_linear_set *linear;
    const struct kernels_rows_set *rows;
};

/* Whether this processor can run the named set's code. Defined in kernels.c. */
extern const struct kernels_linear_set kernels_linear_portable, kernels_linear_avx2, kernels_linear_avxvnni,
    kernels_linear_avx512;
extern const struct kernels_rows_set kernels_rows_portable, kernels_rows_avx2, kernels_rows_avx512;

/* ---- operations on plain arrays
 * ---------------------------------------------------------------------------------------
 *
 * What the table's operations are made of. Shapes are row-major. */

/* y[n][rows] of each job = x[n][cols] * w^T + bias, or +=; quantizes x once, where weight types want it. softcap is the
 * table's affair. linear.c: */
void kernels_op_linear(struct kernels *k, const float *x, int n, int cols, const struct kernels_linear *jobs,
                       int n_jobs);
/* The same of rows whose quantized form may be there already. */
void kernels_op_linear_acts(struct kernels *k, const struct kernels_acts *in, int n, const struct kernels_linear *jobs,
                            int n_jobs);
/* As the table has it. Without out->q, floats are written. */
void kernels_op_gated(struct kernels *k, const struct kernels_acts *in, int n, const struct kernels_matrix *gate,
                      const struct kernels_matrix *up, enum kernels_glu_kind kind, const struct kernels_acts *out);
/* tiles = x[n][cols], quantized: kernels_linear_bytes(n, cols). */
void kernels_op_quantize(struct kernels *k, const float *x, int n, int cols, void *tiles);
/* out[i][cols] = scale * w[ids[i]][:], dequantized. */
void kernels_op_embed(struct kernels *k, const struct kernels_matrix *w, const int32_t *ids, int n, float scale,
                      float *out);
int kernels_linear_reserve(struct kernels *k, int max_rows, int max_cols);
uint64_t kernels_linear_bytes(int max_rows, int max_cols); /* of quantized rows; reserve takes that, and a piece and
                                                              sums per worker */
void kernels_linear_release(struct kernels *k);

/* y[r][:] = x[r][:] / sqrt(mean(x[r]^2) + eps) * weight[:]; x and y [rows][d], may be the same; the same, quantized
 * where that is asked for, too; and, in place, x[r][:] += norm of y[r][:]. norm.c: */
void kernels_op_rms_norm(struct kernels *k, const float *x, int rows, int d, const float *weight, float eps, float *y);
void kernels_op_norm(struct kernels *k, const float *x, int rows, const float *weight, float eps,
                     const struct kernels_acts *out);
void kernels_op_add_norm(struct kernels *k, float *y, int rows, int d, const float *weight, float eps, float *x);

/* table[n][rot / 2][2] of positions, and a batch's rows likewise (rope.c): */
void kernels_op_rope_table(struct kernels *k, const double *inv_freq, int rot, double magnitude, bool scaled,
                           float *table);

/* out[i] = act(gate[i]) * up[i], out may be gate; x[i] = cap * tanh(x[i] / cap). n values. glu.c: */
void kernels_op_glu(struct kernels *k, enum kernels_glu_kind kind, const float *gate, const float *up, size_t n,
                    float *out);
void kernels_op_softcap(struct kernels *k, float *x, size_t n, float cap);

/* As the table has it, with x[n][cols] as floats. mixture.c: */
void kernels_op_mixture(struct kernels *k, const float *x, int n, int cols, const struct kernels_mixture *m, float *y);
int kernels_mixture_reserve(struct kernels *k, const struct kernels_sizes *sizes);
void kernels_mixture_release(struct kernels *k);
uint64_t kernels_mixture_bytes(const struct kernels_sizes *sizes); /* that reserve takes */

/* Of as many slots as there are pairs of a row and an expert that it asks. A pair's place is where it comes in the
 * order of experts. */
struct kernels_mixture_scratch {
    size_t bytes;
    float *rows, *gate, *up, *out; /* [slots] of cols, ff, ff and cols values, in order of experts */
    float *weights;                /* [slots] by row and rank */
    int32_t *ids, *order, *place;  /* [slots] expert and place by row and rank; row and rank by place */
};

/* Rounds one row's key[kv_heads][head_dim] and value to the KV type (nearest even) and writes them to their page, which
 * may have been dropped. kv.c: */
void kernels_kv_write_row(const struct kernels_set *set, const struct kernels_kv *kv, const struct kernels_run *run,
                          int row, const float *key, const float *value);
/* The batch's rows: attn_in.c. */
void kernels_op_attn_in(struct kernels *k, const struct kernels_attn_in *a);

/* One layer's keys and values of positions [first, first + n) out of / into pages, in the canonical layout:
 * keys [kv_heads * head_dim][n] (channel-major), values [n][kv_heads * head_dim], no padding. On the caller's thread,
 * which may be any: nothing but those slots is touched. kv.c: */
void kernels_kv_export_layer(const struct kernels_kv *kv, struct kernels_pages pages, int first, int n, void *keys,
                             void *values);
void kernels_kv_import_layer(const struct kernels_kv *kv, struct kernels_pages pages, int first, int n,
                             const void *keys, const void *values);
void kernels_op_kv_export(struct kernels *k, const struct kernels_kv *layers, int n_layers,
                          const struct kernels_pages *pages, int first, int n, void *staging);
void kernels_op_kv_import(struct kernels *k, const struct kernels_kv *layers, int n_layers,
                          const struct kernels_pages *pages, int first, int n, const void *staging);
int kernels_op_kv_fill(struct kernels *k, const struct kernels_kv *layers, int n_layers,
                       const struct kernels_pages *pages, struct kernels_kv_part *parts, int n_parts);

/* The batch's rows: out [rows][heads][head_dim]. attention.c: */
void kernels_op_attention(struct kernels *k, const struct kernels_attention *a, float *out);
int kernels_attention_reserve(struct kernels *k, int max_rows, int max_heads, int max_head_dim);
void kernels_attention_release(struct kernels *k);

/* Picks [n] tokens from rows of `vocab` logits. reserve makes room for rows of up to max_logits, at most
 * KERNELS_MAX_LOGITS: 0, -EINVAL or -ENOMEM. pick.c: */
void kernels_op_pick(struct kernels *k, const float *logits, int vocab, const struct kernels_pick *picks, int n,
                     struct kernels_picked *out);
int kernels_pick_reserve(struct kernels *k, int max_logits);
void kernels_pick_release(struct kernels *k);

/* Before a loop of at most 8 rounds (KERNELS_UNROLL_16: 16) whose number is a constant: registers only stay registers
 * when it is unrolled. */
#ifdef __clang__
#define KERNELS_UNROLL    _Pragma("unroll")
#define KERNELS_UNROLL_16 _Pragma("unroll")
#elif defined(__SANITIZE_ADDRESS__) ||                                                                                 \
    defined(__SANITIZE_THREAD__) /* the checks of each copy take the compiler minutes */
#define KERNELS_UNROLL
#define KERNELS_UNROLL_16
#else
#define KERNELS_UNROLL    _Pragma("GCC unroll 8")
#define KERNELS_UNROLL_16 _Pragma("GCC unroll 16")
#endif

#endif
