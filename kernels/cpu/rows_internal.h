/* rows_internal.h - the inner functions of everything that is not a linear product: norms, rotary positions,
 * activation functions, KV rows and attention. One table per instruction set; rows_portable.c is the specification.
 *
 * Invariant: every function gives the same bits in every set (a NaN stays a NaN; its sign and payload are not
 * promised). For that, each sum has a fixed order that is written here, every product that feeds a sum is one fused
 * multiply-add, and division and square root are the correctly rounded ones. Sums over a row run on 16 virtual lanes:
 * lane j adds elements j, j + 16, ... in ascending order, and the lanes are then added as a tree, j and j + 8, then
 * j + 4, j + 2, j + 1.
 *
 * The functions are pure and may run on any number of workers at once.
 */
#ifndef CONVOD_KERNELS_ROWS_INTERNAL_H
#define CONVOD_KERNELS_ROWS_INTERNAL_H

#include "kernels/constants.h"
#include "kernels/cpu/cpu.h"

#include <string.h>

/* Floats between the score rows of two queries: one attention block, and an odd number of cache lines more, so that the
 * rows of many queries do not fall into the same cache sets. */
#define KERNELS_SCORE_STRIDE (KERNELS_ATTENTION_BLOCK + 16)

#define KERNELS_FEW_QUERIES 8 /* up to so many, attention widens keys and values as they are used */

#define KERNELS_TOP_BLOCK 128 /* logits per block of top() */

#define KERNELS_WEIGHT_ONE (UINT64_C(1) << 39) /* the weight of the greatest logit */

/* Added to a number in [0, 1] as a double, leaves it rounded to units of 1 / KERNELS_WEIGHT_ONE in the lowest bits. */
#define KERNELS_WEIGHT_SHIFT 0x1.8p+13

/* Below so many values a pass over them costs less than two barriers. */
#define KERNELS_ROWS_SMALL 16384

struct kernels_rows_set {
    /* y[i] = (x[i] * r) * weight[i] with r = 1 / sqrt(sum(x^2) / d + eps); the sum on virtual lanes. y may be x. */
    void (*rms_norm)(const float *x, int d, const float *weight, float eps, float *y);

    /* Rotates one token's heads in place: x[heads][head_dim], table[rot/2][2] (cos, sin). With (a, b) a rotated pair:
     * a' = fma(a, cos, -(b * sin)), b' = fma(b, cos, a * sin). */
    void (*rope)(float *x, int heads, int head_dim, int rot, enum kernels_rope_kind kind, const float *table);

    /* out[i] = act(gate[i]) * up[i]. out may be gate. */
    void (*glu)(enum kernels_glu_kind kind, const float *gate, const float *up, size_t n, float *out);

    /* x[i] += y[i] */
    void (*add)(float *x, const float *y, size_t n);

    /* x[i] = cap * tanh(x[i] / cap) */
    void (*softcap)(float *x, size_t n, float cap);

    /* Between f32 and a KV type: nearest even, NaN stays NaN; widening is exact. */
    void (*narrow)(enum kernels_kv_type type, const float *x, size_t n, uint16_t *out);
    void (*widen)(enum kernels_kv_type type, const uint16_t *x, size_t n, float *out);

    /* The first `cols` values of each of the rows that begin `stride` apart, out[rows][cols]. cols is a multiple of 16.
     */
    void (*widen_rows)(enum kernels_kv_type type, const uint16_t *x, int rows, int stride, int cols, float *out);

    /* Dot products of queries q[nq][head_dim] with groups of 16 keys, k[groups][head_dim][16]:
     * s[i * KERNELS_SCORE_STRIDE + 16 g + j] = sum over d ascending of k[g][d][j] * q[i][d], by fma from zero. */
    void (*scores)(const float *q, int nq, int head_dim, const float *k, int groups, float *s);

    /* The same from keys of a KV type, for so few queries that widening them first would cost more. `next` is what will
     * be read after this, of the same size: it is asked for meanwhile. Not NULL, but never read. */
    void (*scores_kv)(enum kernels_kv_type type, const float *q, int nq, int head_dim, const uint16_t *k,
                      const uint16_t *next, int groups, float *s);

    /* Softmax numerators of n queries in one block, in place; a query's scores are at s[i * KERNELS_SCORE_STRIDE].
     * Columns [lo, hi) are visible, lo < hi. m[i] = the greatest visible s * scale, s = exp(fma(s, scale, -m)); with a
     * softcap c > 0, x = c * tanh(s * scale / c), m[i] = the greatest visible x, s = exp(x - m). Other columns of the
     * 16-groups that hold [lo, hi) become 0; groups outside are not touched. l[i] = the sum on virtual lanes; it is NaN
     * when a visible s * scale is not finite, and then s may hold anything. */
    void (*softmax)(float *s, int n, int lo, int hi, float scale, float softcap, float *m, float *l);

    /* acc[nq][dims] = fma(p[i * KERNELS_SCORE_STRIDE + t], v[t][dim], acc) for t in [0, tokens) ascending. dims is a
     * multiple of 16. */
    void (*values)(const float *p, int nq, const float *v, int tokens, int dims, float *acc);
    void (*values_kv)(enum kernels_kv_type type, const float *p, int nq, const uint16_t *v, const uint16_t *next,
                      int tokens, int dims, float *acc);

    /* Joins a later block's (mb, lb, accb) to a state, in place: with m' = max(m, mb), a = exp(m - m') and
     * b = exp(mb - m'): l = fma(l, a, lb * b), acc[d] = fma(acc[d], a, accb[d] * b), m = m'. dims as for values. */
    void (*merge)(float *m, float *l, float *acc, float mb, float lb, const float *accb, int dims);

    /* The same for m and l of n queries, and what their accs are to be multiplied by: a[i] and b[i]. All arrays have
     * room for n rounded up to 16. */
    void (*join)(int n, float *m, float *l, const float *mb, const float *lb, float *a, float *b);

    /* A later block's values from zero, sum = fma(p[i * KERNELS_SCORE_STRIDE + t], v[t][dim], sum) for t in [0, tokens)
     * ascending, and joined: acc[i * stride + dim] = fma(acc, a[i], sum * b[i]), or, where a is NULL, sum itself. cols
     * is 16 or 32, and nq more than KERNELS_FEW_QUERIES. */
    void (*values_join)(const float *p, int nq, const float *v, int tokens, int cols, const float *a, const float *b,
                        float *acc, int stride);

    /* out[i] = acc[i] / l */
    void (*finish)(const float *acc, float l, int n, float *out);

    /* Logits. tops[b] = the greatest of x[KERNELS_TOP_BLOCK * b ...), for each block begun; returns the greatest of
     * all, or a NaN where one is NaN (tops may then hold anything). n > 0. */
    float (*top)(const float *x, size_t n, float *tops);

    /* Writes the ids of x >= from, ascending; returns how many. tops as top() gave them; no x is NaN. */
    size_t (*collect)(const float *x, size_t n, const float *tops, float from, int32_t *ids);

    /* The sum of weights: exp((x - max) * scale), with both operations rounded, in whole units of
     * 1 / KERNELS_WEIGHT_ONE (nearest, ties to even). Integers, so that no order changes the sum. x <= max, scale > 0.
     */
    uint64_t (*mass)(const float *x, size_t n, float max, float scale);
};

/* Shares items [0, n) out over the workers, or runs them on the caller where `work` (in values touched, roughly) is too
 * small to pay for waking the others. Either way gives the same bits. */
static inline void kernels_rows_share(struct kernels *k, size_t work, int n, int grain,
                                      void (*fn)(void *arg, int worker, int first, int end), void *arg)
{
    if (work < KERNELS_ROWS_SMALL || k->threads == 1)
        fn(arg, 0, 0, n);
    else
        kernels_pool_run(k->pool, n, grain, fn, arg);
}

/* ---- single values, for the portable set and for the odd ends of the others ------------------------------------- */

static inline uint32_t kernels_float_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof(u));
    return u;
}

static inline float kernels_bits_float(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof(x));
    return x;
}

uint16_t kernels_narrow_one(enum kernels_kv_type type, float x);
float kernels_widen_one(enum kernels_kv_type type, uint16_t x);

#endif
