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

#include "kernels/kernels.h"

struct kernels_set;
struct kernels_pool;

struct kernels {
    const struct kernels_set *set;
    struct kernels_ops ops;
    struct kernels_pool *pool;
    int threads;
    struct kernels_linear_scratch *linear;       /* owned by linear.c, made by its reserve function */
    struct kernels_attention_scratch *attention; /* owned by attention.c, likewise */
    struct kernels_pick_scratch *pick;           /* owned by pick.c, likewise */
};

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

/* Operations, as kernels_ops documents them. linear.c: */
int kernels_linear_reserve(struct kernels *k, int max_rows, int max_cols);
void kernels_linear_release(struct kernels *k);
void kernels_op_linear(struct kernels *k, const float *x, int n, int cols, const struct kernels_linear *jobs,
                       int n_jobs);
void kernels_op_embed(struct kernels *k, const struct kernels_matrix *w, const int32_t *ids, int n, float scale,
                      float *out);
/* norm.c, rope.c, glu.c: */
void kernels_op_rms_norm(struct kernels *k, const float *x, int rows, int d, const float *weight, float eps, float *y);
void kernels_op_rope(struct kernels *k, float *x, int n, int heads, int head_dim, int rot, enum kernels_rope_kind kind,
                     const float *table);
void kernels_op_glu(struct kernels *k, enum kernels_glu_kind kind, const float *gate, const float *up, size_t n,
                    float *out);
void kernels_op_add(struct kernels *k, float *x, const float *y, size_t n);
void kernels_op_softcap(struct kernels *k, float *x, size_t n, float cap);
/* mixture.c: */
void kernels_op_mixture(struct kernels *k, const float *x, int n, int cols, const struct kernels_mixture *m, float *y);
/* kv.c: */
void kernels_op_kv_write(struct kernels *k, const struct kernels_kv *kv, const float *key, const float *value,
                         const struct kernels_run *runs, int n_runs);
void kernels_op_kv_export(struct kernels *k, const struct kernels_kv *kv, struct kernels_pages pages, int first, int n,
                          uint16_t *keys, uint16_t *values);
void kernels_op_kv_import(struct kernels *k, const struct kernels_kv *kv, struct kernels_pages pages, int first, int n,
                          const uint16_t *keys, const uint16_t *values);
/* attention.c: */
int kernels_attention_reserve(struct kernels *k, int max_rows, int max_heads, int max_head_dim);
void kernels_attention_release(struct kernels *k);
void kernels_op_attention(struct kernels *k, const struct kernels_attention *a);
/* pick.c: */
int kernels_pick_reserve(struct kernels *k, int max_logits);
void kernels_pick_release(struct kernels *k);
void kernels_op_pick(struct kernels *k, struct kernels_pick *picks, int n);

/* Before a loop of at most 8 rounds whose number is a constant: registers only stay registers when it is unrolled. */
#ifdef __clang__
#define KERNELS_UNROLL _Pragma("unroll")
#else
#define KERNELS_UNROLL _Pragma("GCC unroll 8")
#endif

#endif
