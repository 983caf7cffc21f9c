/* rows_portable.c - the specification of the inner functions in rows_internal.h, in plain C. The other sets are checked
 * against it bit for bit. Runs on any worker, keeps nothing. */
#include "kernels/cpu/rows_internal.h"

#include <math.h>

#define LANES 16

/* ---- functions --------------------------------------------------------------------------------------------------- */

static float exp_one(float x)
{
    if (x < KERNELS_EXP_MIN)
        return 0.0f;
    if (x > KERNELS_EXP_MAX)
        return INFINITY;
    if (x != x)
        return x;
    float t = fmaf(x, KERNELS_EXP_LOG2E, KERNELS_EXP_SHIFT);
    float n = t - KERNELS_EXP_SHIFT;
    float r = fmaf(n, -KERNELS_EXP_LN2_HI, x);
    r = fmaf(n, -KERNELS_EXP_LN2_LO, r);
    float p = KERNELS_EXP_C6;
    p = fmaf(p, r, KERNELS_EXP_C5);
    p = fmaf(p, r, KERNELS_EXP_C4);
    p = fmaf(p, r, KERNELS_EXP_C3);
    p = fmaf(p, r, KERNELS_EXP_C2);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    return kernels_bits_float(kernels_float_bits(p) + (kernels_float_bits(t) << 23));
}

static float tanh_one(float x)
{
    float a = fabsf(x);
    if (a < KERNELS_TANH_SMALL) {
        float z = x * x;
        float p = KERNELS_TANH_C4;
        p = fmaf(p, z, KERNELS_TANH_C3);
        p = fmaf(p, z, KERNELS_TANH_C2);
        p = fmaf(p, z, KERNELS_TANH_C1);
        p = fmaf(p, z, KERNELS_TANH_C0);
        return fmaf(x * z, p, x);
    }
    return copysignf(1.0f - 2.0f / (exp_one(2.0f * a) + 1.0f), x);
}

static float lane_tree(float *lane)
{
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int j = 0; j < half; j++)
            lane[j] += lane[j + half];
    return lane[0];
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static void rms_norm(const float *x, int d, const float *weight, float eps, float *y)
{
    float lane[LANES] = {0};
    for (int i = 0; i < d; i++)
        lane[i % LANES] = fmaf(x[i], x[i], lane[i % LANES]);
    float r = 1.0f / sqrtf(lane_tree(lane) / (float)d + eps);
    for (int i = 0; i < d; i++)
        y[i] = (x[i] * r) * weight[i];
}

static void rope(float *x, int heads, int head_dim, int rot, enum kernels_rope_kind kind, const float *table)
{
    int half = rot / 2;
    int step = kind == KERNELS_ROPE_PAIRS ? 2 : 1, away = kind == KERNELS_ROPE_PAIRS ? 1 : half;
    for (int h = 0; h < heads; h++, x += head_dim) {
        for (int i = 0; i < half; i++) {
            float a = x[i * step], b = x[i * step + away], c = table[2 * i], s = table[2 * i + 1];
            x[i * step] = fmaf(a, c, -(b * s));
            x[i * step + away] = fmaf(b, c, a * s);
        }
    }
}

static void glu(enum kernels_glu_kind kind, const float *gate, const float *up, size_t n, float *out)
{
    const float limit = KERNELS_SWIGLU_LIMIT;
    for (size_t i = 0; i < n; i++) {
        float x = gate[i], y = up[i], e;
        if (kind == KERNELS_SILU) {
            e = exp_one(-x);
        } else if (kind == KERNELS_GELU_TANH) {
            e = exp_one(-(KERNELS_GELU_2U * fmaf(KERNELS_GELU_CUBE * (x * x), x, x)));
        } else {
            x = x > limit ? limit : x; /* a NaN stays */
            y = (y > limit ? limit : y < -limit ? -limit : y) + 1.0f;
            e = exp_one(-KERNELS_SWIGLU_ALPHA * x);
        }
        out[i] = x / (1.0f + e) * y;
    }
}

static void add(float *x, const float *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] += y[i];
}

static void softcap(float *x, size_t n, float cap)
{
    for (size_t i = 0; i < n; i++)
        x[i] = cap * tanh_one(x[i] / cap);
}

/* ---- KV types ---------------------------------------------------------------------------------------------------- */

static uint16_t narrow_bf16(uint32_t u)
{
    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static uint16_t narrow_f16(uint32_t u)
{
    uint32_t sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
    if (a > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (a >> 13 & 0x3ff));
    if (a >= 0x477ff000) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00);
    if (a < 0x38800000) {
        /* Below 2^-14 the result is a multiple of 2^-24: adding 0.5 leaves exactly that many bits, rounded. */
        float f = kernels_bits_float(a) + 0.5f;
        return (uint16_t)(sign | (kernels_float_bits(f) - 0x3f000000));
    }
    return (uint16_t)(sign | ((a - 0x38000000 + 0xfff + (a >> 13 & 1)) >> 13));
}

static float widen_f16(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000) << 16, exponent = x >> 10 & 31, fraction = x & 0x3ff;
    if (exponent == 31)
        return kernels_bits_float(sign | 0x7f800000 | fraction << 13 | (fraction ? 0x400000 : 0));
    if (exponent == 0) {
        float f = (float)fraction * 0x1p-24f;
        return kernels_bits_float(sign | kernels_float_bits(f));
    }
    return kernels_bits_float(sign | (exponent + 112) << 23 | fraction << 13);
}

uint16_t kernels_narrow_one(enum kernels_kv_type type, float x)
{
    uint32_t u = kernels_float_bits(x);
    return type == KERNELS_KV_BF16 ? narrow_bf16(u) : narrow_f16(u);
}

float kernels_widen_one(enum kernels_kv_type type, uint16_t x)
{
    return type == KERNELS_KV_BF16 ? kernels_bits_float((uint32_t)x << 16) : widen_f16(x);
}

static void narrow(enum kernels_kv_type type, const float *x, size_t n, uint16_t *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = kernels_narrow_one(type, x[i]);
}

static void widen(enum kernels_kv_type type, const uint16_t *x, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = kernels_widen_one(type, x[i]);
}

static void widen_rows(enum kernels_kv_type type, const uint16_t *x, int rows, int stride, int cols, float *out)
{
    for (int r = 0; r < rows; r++, x += stride, out += cols)
        widen(type, x, (size_t)cols, out);
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

static void scores(const float *q, int nq, int head_dim, const float *k, int groups, float *s)
{
    for (int i = 0; i < nq; i++) {
        for (int g = 0; g < groups; g++) {
            float *lane = s + (size_t)i * KERNELS_SCORE_STRIDE + g * LANES;
            const float *key = k + (size_t)g * head_dim * LANES;
            memset(lane, 0, LANES * sizeof(*lane));
            for (int d = 0; d < head_dim; d++)
                for (int j = 0; j < LANES; j++)
                    lane[j] = fmaf(key[d * LANES + j], q[(size_t)i * head_dim + d], lane[j]);
        }
    }
}

static void scores_kv(enum kernels_kv_type type, const float *q, int nq, int head_dim, const uint16_t *k,
                      const uint16_t *next, int groups, float *s)
{
    (void)next;
    for (int i = 0; i < nq; i++) {
        for (int g = 0; g < groups; g++) {
            float *lane = s + (size_t)i * KERNELS_SCORE_STRIDE + g * LANES;
            const uint16_t *key = k + (size_t)g * head_dim * LANES;
            memset(lane, 0, LANES * sizeof(*lane));
            for (int d = 0; d < head_dim; d++)
                for (int j = 0; j < LANES; j++)
                    lane[j] = fmaf(kernels_widen_one(type, key[d * LANES + j]), q[(size_t)i * head_dim + d], lane[j]);
        }
    }
}

static float softmax_row(float *s, int lo, int hi, float scale, float softcap, float *l)
{
    int first = lo / LANES * LANES, end = (hi + LANES - 1) / LANES * LANES;
    float m = -INFINITY, poison = 0;
    for (int t = lo; t < hi; t++) {
        float x = s[t] * scale;
        poison = fmaf(x, 0.0f, poison);
        if (softcap > 0)
            s[t] = x = softcap * tanh_one(x / softcap);
        m = x > m ? x : m;
    }
    if (softcap > 0)
        scale = 1.0f;
    float lane[LANES] = {0};
    for (int t = first; t < end; t++) {
        s[t] = t >= lo && t < hi ? exp_one(fmaf(s[t], scale, -m)) : 0.0f;
        lane[t % LANES] += s[t];
    }
    *l = lane_tree(lane) + poison;
    return m;
}

static void softmax(float *s, int n, int lo, int hi, float scale, float softcap, float *m, float *l)
{
    for (int i = 0; i < n; i++)
        m[i] = softmax_row(s + (size_t)i * KERNELS_SCORE_STRIDE, lo, hi, scale, softcap, &l[i]);
}

static void values(const float *p, int nq, const float *v, int tokens, int dims, float *acc)
{
    for (int i = 0; i < nq; i++)
        for (int t = 0; t < tokens; t++)
            for (int d = 0; d < dims; d++)
                acc[(size_t)i * dims + d] =
                    fmaf(p[(size_t)i * KERNELS_SCORE_STRIDE + t], v[(size_t)t * dims + d], acc[(size_t)i * dims + d]);
}

static void values_kv(enum kernels_kv_type type, const float *p, int nq, const uint16_t *v, const uint16_t *next,
                      int tokens, int dims, float *acc)
{
    (void)next;
    for (int i = 0; i < nq; i++)
        for (int t = 0; t < tokens; t++)
            for (int d = 0; d < dims; d++)
                acc[(size_t)i * dims + d] =
                    fmaf(p[(size_t)i * KERNELS_SCORE_STRIDE + t], kernels_widen_one(type, v[(size_t)t * dims + d]),
                         acc[(size_t)i * dims + d]);
}

static void merge(float *m, float *l, float *acc, float mb, float lb, const float *accb, int dims)
{
    float top = mb > *m ? mb : *m;
    float a = exp_one(*m - top), b = exp_one(mb - top);
    *m = top;
    *l = fmaf(*l, a, lb * b);
    for (int d = 0; d < dims; d++)
        acc[d] = fmaf(acc[d], a, accb[d] * b);
}

static void join(int n, float *m, float *l, const float *mb, const float *lb, float *a, float *b)
{
    for (int i = 0; i < n; i++) {
        float top = mb[i] > m[i] ? mb[i] : m[i];
        a[i] = exp_one(m[i] - top);
        b[i] = exp_one(mb[i] - top);
        m[i] = top;
        l[i] = fmaf(l[i], a[i], lb[i] * b[i]);
    }
}

static void values_join(const float *p, int nq, const float *v, int tokens, int cols, const float *a, const float *b,
                        float *acc, int stride)
{
    for (int i = 0; i < nq; i++, p += KERNELS_SCORE_STRIDE, acc += stride) {
        for (int d = 0; d < cols; d++) {
            float sum = 0.0f;
            for (int t = 0; t < tokens; t++)
                sum = fmaf(p[t], v[(size_t)t * cols + d], sum);
            acc[d] = a ? fmaf(acc[d], a[i], sum * b[i]) : sum;
        }
    }
}

static void finish(const float *acc, float l, int n, float *out)
{
    for (int i = 0; i < n; i++)
        out[i] = acc[i] / l;
}

/* ---- logits ------------------------------------------------------------------------------------------------------ */

static float top(const float *x, size_t n, float *tops)
{
    float most = -INFINITY;
    for (size_t i = 0; i < n; i++) {
        float *block = &tops[i / KERNELS_TOP_BLOCK];
        if (x[i] != x[i])
            return x[i];
        if (i % KERNELS_TOP_BLOCK == 0 || x[i] > *block)
            *block = x[i];
        most = x[i] > most ? x[i] : most;
    }
    return most;
}

static size_t collect(const float *x, size_t n, const float *tops, float from, int32_t *ids)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        if (tops[i / KERNELS_TOP_BLOCK] >= from && x[i] >= from)
            ids[count++] = (int32_t)i;
    return count;
}

static uint64_t double_bits(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static uint64_t mass(const float *x, size_t n, float max, float scale)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        double shifted = (double)exp_one((x[i] - max) * scale) + KERNELS_WEIGHT_SHIFT;
        sum += double_bits(shifted) - double_bits(KERNELS_WEIGHT_SHIFT);
    }
    return sum;
}

const struct kernels_rows_set kernels_rows_portable = {
    .rms_norm = rms_norm,
    .rope = rope,
    .glu = glu,
    .add = add,
    .softcap = softcap,
    .narrow = narrow,
    .widen = widen,
    .widen_rows = widen_rows,
    .scores = scores,
    .scores_kv = scores_kv,
    .softmax = softmax,
    .values = values,
    .values_kv = values_kv,
    .merge = merge,
    .join = join,
    .values_join = values_join,
    .finish = finish,
    .top = top,
    .collect = collect,
    .mass = mass,
};
