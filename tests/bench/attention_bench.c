/* attention_bench.c - speed of attention and of moving KV, per instruction set.
 *
 * Prefill: 512 new rows after 0, 2k and 8k tokens of context, in 10^9 multiply-adds per second (scores and values; only
 * visible columns count), beside the peak of the same registers. Decode: one row
 * at 2k and 8k, in GB/s of keys and values, with the pages of as many layers as the cache cannot hold. Each figure is
 * the median of several rounds. Usage: attention_bench [threads [heads kv_heads head_dim]]
 */
#include "kernels/cpu/rows_internal.h"

#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { PAGE = KERNELS_PAGE_TOKENS, ROUNDS = 7, NEW_ROWS = 512, DECODE_LAYERS = 24 };

struct shape {
    int heads, kv_heads, head_dim;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof(*x), compare);
    return x[n / 2];
}

static void *must_alloc(struct kernels *k, size_t bytes)
{
    void *p = kernels_ops(k)->alloc(k, KERNELS_DEVICE, bytes);
    if (!p) {
        fprintf(stderr, "no memory for %zu bytes\n", bytes);
        exit(1);
    }
    return p;
}

static void fill(float *x, size_t n)
{
    uint32_t u = 1;
    for (size_t i = 0; i < n; i++) {
        u = u * 1664525u + 1013904223u;
        x[i] = (float)(u >> 8) * 0x1p-23f - 1.0f;
    }
}

/* Fused multiply-adds per second of one worker with nothing to load: 12 independent sums. */
#define PEAK(name, isa, type, set1, fma, lanes)                                                                        \
    __attribute__((target(isa))) static double name(void)                                                              \
    {                                                                                                                  \
        enum { SUMS = 12, STEPS = 200000 };                                                                            \
        double t[ROUNDS];                                                                                              \
        for (int r = 0; r < ROUNDS; r++) {                                                                             \
            type a = set1(0.999f), b = set1(1e-3f), s0 = b, s1 = b, s2 = b, s3 = b, s4 = b, s5 = b, s6 = b, s7 = b,    \
                 s8 = b, s9 = b, s10 = b, s11 = b;                                                                     \
            double start = now();                                                                                      \
            for (int i = 0; i < STEPS; i++) {                                                                          \
                s0 = fma(s0, a, b), s1 = fma(s1, a, b), s2 = fma(s2, a, b), s3 = fma(s3, a, b);                        \
                s4 = fma(s4, a, b), s5 = fma(s5, a, b), s6 = fma(s6, a, b), s7 = fma(s7, a, b);                        \
                s8 = fma(s8, a, b), s9 = fma(s9, a, b), s10 = fma(s10, a, b), s11 = fma(s11, a, b);                    \
                __asm__ volatile("" : "+v"(s0), "+v"(s1), "+v"(s2), "+v"(s3), "+v"(s4), "+v"(s5));                     \
                __asm__ volatile("" : "+v"(s6), "+v"(s7), "+v"(s8), "+v"(s9), "+v"(s10), "+v"(s11));                   \
            }                                                                                                          \
            t[r] = now() - start;                                                                                      \
            type sum = fma(s0, s1, fma(s2, s3, fma(s4, s5, fma(s6, s7, fma(s8, s9, fma(s10, s11, b))))));              \
            __asm__ volatile("" : : "x"(sum));                                                                         \
        }                                                                                                              \
        return (double)SUMS * STEPS * lanes / median(t, ROUNDS) * 1e-9;                                                \
    }
PEAK(peak_avx512, "avx512f", __m512, _mm512_set1_ps, _mm512_fmadd_ps, 16)
PEAK(peak_avx2, "avx2,fma", __m256, _mm256_set1_ps, _mm256_fmadd_ps, 8)

/* GB/s of plain reading by all workers. */
struct read_job {
    const uint64_t *x;
    size_t n;
    int parts;
    uint64_t sum[64];
};

static void read_part(void *arg, int i)
{
    struct read_job *job = arg;
    size_t part = job->n / (size_t)job->parts / 8 * 8;
    const uint64_t *x = job->x + (size_t)i * part;
    uint64_t s[8] = {0};
    for (size_t j = 0; j < part; j += 8)
        for (int l = 0; l < 8; l++)
            s[l] += x[j + (size_t)l];
    job->sum[i] = s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];
}

static double read_rate(struct kernels *k, const void *x, size_t bytes)
{
    struct read_job job = {.x = x, .n = bytes / 8, .parts = kernels_threads(k) < 64 ? kernels_threads(k) : 64};
    double t[ROUNDS];
    for (int r = 0; r < ROUNDS; r++) {
        double start = now();
        kernels_parallel(k, job.parts, read_part, &job);
        t[r] = now() - start;
    }
    return (double)bytes / median(t, ROUNDS) * 1e-9;
}

struct setup {
    struct kernels *k;
    struct shape shape;
    struct kernels_kv kv;
    int32_t *ids;
    int pages, layers;
    size_t bytes;
};

static void attend(const struct setup *s, float *q, float *out, int layer, int pos, int n)
{
    struct kernels_run run = {0, n, pos, {{s->ids + (size_t)layer * (size_t)s->pages, s->pages}}};
    struct kernels_batch batch = {.rows = n, .runs = &run, .n_runs = 1};
    struct kernels_attention a = {.q = q, .heads = s->shape.heads, .scale = 0.125f, .kv = s->kv};
    kernels_ops(s->k)->begin(s->k, &batch);
    kernels_op_attention(s->k, &a, out);
    kernels_ops(s->k)->end(s->k);
}

static void open_pages(struct setup *s, int context, int layers)
{
    size_t half = (size_t)s->shape.kv_heads * (size_t)s->shape.head_dim * PAGE * 2;
    s->kv = (struct kernels_kv){KERNELS_KV_BF16, 0, s->shape.kv_heads, s->shape.head_dim, NULL, 2 * half, 0, half};
    s->pages = (context + PAGE - 1) / PAGE;
    s->layers = layers;
    s->bytes = (size_t)s->pages * (size_t)layers * s->kv.page_bytes;
    s->kv.pool = must_alloc(s->k, s->bytes);
    s->ids = must_alloc(s->k, (size_t)s->pages * (size_t)layers * sizeof(*s->ids));
    uint32_t u = 1;
    for (size_t i = 0; i < s->bytes / 2; i++) {
        u = u * 1664525u + 1013904223u;
        ((uint16_t *)(void *)s->kv.pool)[i] = (uint16_t)(0x3f00 | (u >> 16 & 0x80ff)); /* +-0.5 to 1 */
    }
    for (int i = 0; i < s->pages * layers; i++)
        s->ids[i] = i;
}

static void close_pages(struct setup *s)
{
    kernels_ops(s->k)->release(s->k, KERNELS_DEVICE, s->kv.pool, s->bytes);
    kernels_ops(s->k)->release(s->k, KERNELS_DEVICE, s->ids, (size_t)s->pages * (size_t)s->layers * sizeof(*s->ids));
}

static void prefill(struct setup *s, double peak)
{
    size_t row = (size_t)s->shape.heads * (size_t)s->shape.head_dim;
    float *q = must_alloc(s->k, NEW_ROWS * row * 4), *out = must_alloc(s->k, NEW_ROWS * row * 4);
    fill(q, NEW_ROWS * row);
    static const int contexts[] = {0, 2048, 8192};
    for (int c = 0; c < 3; c++) {
        open_pages(s, contexts[c] + NEW_ROWS, 1);
        double t[ROUNDS], columns = 0;
        for (int i = 0; i < NEW_ROWS; i++)
            columns += contexts[c] + i + 1;
        attend(s, q, out, 0, contexts[c], NEW_ROWS);
        for (int r = 0; r < ROUNDS; r++) {
            double start = now();
            attend(s, q, out, 0, contexts[c], NEW_ROWS);
            t[r] = now() - start;
        }
        double rate = columns * 2 * (double)row / median(t, ROUNDS) * 1e-9;
        printf("  prefill of %d rows at %5d: %7.2f GFMA/s, %4.1f %% of %d workers' peak\n", NEW_ROWS, contexts[c], rate,
               100 * rate / peak / kernels_threads(s->k), kernels_threads(s->k));
        close_pages(s);
    }
    kernels_ops(s->k)->release(s->k, KERNELS_DEVICE, q, NEW_ROWS * row * 4);
    kernels_ops(s->k)->release(s->k, KERNELS_DEVICE, out, NEW_ROWS * row * 4);
}

static void decode(struct setup *s)
{
    size_t row = (size_t)s->shape.heads * (size_t)s->shape.head_dim;
    float *q = must_alloc(s->k, row * 4), *out = must_alloc(s->k, row * 4);
    fill(q, row);
    static const int contexts[] = {256, 2048, 8192};
    for (int c = 0; c < 3; c++) {
        open_pages(s, contexts[c], DECODE_LAYERS);
        double t[ROUNDS];
        for (int r = 0; r < ROUNDS; r++) {
            double start = now();
            for (int layer = 0; layer < DECODE_LAYERS; layer++)
                attend(s, q, out, layer, contexts[c] - 1, 1);
            t[r] = now() - start;
        }
        double seconds = median(t, ROUNDS);
        printf("  decode at %5d: %6.2f GB/s of KV (plain reading: %.2f), %7.1f us per layer (%.1f MB of KV)\n",
               contexts[c], (double)s->bytes / seconds * 1e-9, read_rate(s->k, s->kv.pool, s->bytes),
               seconds / DECODE_LAYERS * 1e6, (double)s->bytes * 1e-6);
        close_pages(s);
    }
    kernels_ops(s->k)->release(s->k, KERNELS_DEVICE, q, row * 4);
    kernels_ops(s->k)->release(s->k, KERNELS_DEVICE, out, row * 4);
}

static void move(struct setup *s)
{
    enum { TOKENS = 256 };
    open_pages(s, 2048, DECODE_LAYERS);
    size_t bytes = (size_t)s->shape.kv_heads * (size_t)s->shape.head_dim * TOKENS * 2;
    uint16_t *keys = must_alloc(s->k, bytes), *values = must_alloc(s->k, bytes);
    const struct kernels_ops *ops = kernels_ops(s->k);
    for (int import = 0; import < 2; import++) {
        for (int first = 0; first < 6; first += 5) {
            double t[ROUNDS];
            for (int r = 0; r < ROUNDS; r++) {
                double start = now();
                for (int layer = 0; layer < DECODE_LAYERS; layer++) {
                    struct kernels_pages pages = {s->ids + layer * s->pages, s->pages};
                    for (int at = first; at + TOKENS <= 2048; at += TOKENS) {
                        if (import)
                            kernels_kv_import_layer(&s->kv, pages, at, TOKENS, keys, values);
                        else
                            kernels_kv_export_layer(&s->kv, pages, at, TOKENS, keys, values);
                    }
                }
                t[r] = now() - start;
            }
            double moved = 2.0 * (double)bytes * DECODE_LAYERS * (double)((2048 - first) / TOKENS);
            printf("  %s of %d tokens, first slot %d: %6.2f GB/s\n", import ? "import" : "export", TOKENS, first,
                   moved / median(t, ROUNDS) * 1e-9);
        }
    }
    ops->release(s->k, KERNELS_DEVICE, keys, bytes);
    ops->release(s->k, KERNELS_DEVICE, values, bytes);
    close_pages(s);
}

static void small(struct setup *s)
{
    enum { D = 896, FFN = 4864, N = 1000 };
    static float x[FFN], y[FFN], w[FFN], table[64];
    for (int i = 0; i < 64; i++)
        table[i] = i % 2 ? 0.6f : 0.8f;
    fill(x, FFN);
    fill(y, FFN);
    fill(w, FFN);
    double t[4][ROUNDS];
    for (int r = 0; r < ROUNDS; r++) {
        double at[5];
        at[0] = now();
        for (int i = 0; i < N; i++)
            kernels_op_rms_norm(s->k, x, 1, D, w, 1e-6f, y);
        at[1] = now();
        for (int i = 0; i < N; i++)
            kernels_op_glu(s->k, KERNELS_SILU, x, w, FFN, y);
        at[2] = now();
        for (int i = 0; i < N; i++)
            s->k->set->rows->rope(y, 14, 64, 64, KERNELS_ROPE_HALVES, table);
        at[3] = now();
        for (int i = 0; i < N; i++)
            s->k->set->rows->add(y, w, D);
        at[4] = now();
        for (int i = 0; i < 4; i++)
            t[i][r] = (at[i + 1] - at[i]) / N * 1e6;
    }
    printf("  one row: norm of %d %.2f us, glu of %d %.2f us, rope of 14 x 64 %.2f us, add of %d %.2f us\n", D,
           median(t[0], ROUNDS), FFN, median(t[1], ROUNDS), median(t[2], ROUNDS), D, median(t[3], ROUNDS));
}

int main(int argc, char **argv)
{
    struct shape shape = {14, 2, 64};
    int threads = argc > 1 ? atoi(argv[1]) : 0;
    if (argc > 4)
        shape = (struct shape){atoi(argv[2]), atoi(argv[3]), atoi(argv[4])};
    if (threads < 0 || shape.heads < 1 || shape.kv_heads < 1 || shape.head_dim < 1 || shape.heads % shape.kv_heads) {
        fprintf(stderr, "usage: attention_bench [threads [heads kv_heads head_dim]]\n");
        return 2;
    }
    static const char *const backends[] = {"cpu-avx512", "cpu-avx2"};
    for (int b = 0; b < 2; b++) {
        struct kernels_opts opts = {.backend = backends[b], .threads = threads};
        struct setup s = {.shape = shape};
        char err[256];
        if (kernels_open(&opts, &s.k, err, sizeof(err))) {
            printf("%s: %s\n", backends[b], err);
            continue;
        }
        if (kernels_attention_reserve(s.k, NEW_ROWS, shape.heads, shape.head_dim)) {
            fprintf(stderr, "no memory\n");
            return 1;
        }
        double peak = b == 0 ? peak_avx512() : peak_avx2();
        printf("%s, %d workers, %d heads of %d, %d KV heads; registers alone: %.1f GFMA/s per worker\n", backends[b],
               kernels_threads(s.k), shape.heads, shape.head_dim, shape.kv_heads, peak);
        prefill(&s, peak);
        decode(&s);
        move(&s);
        small(&s);
        kernels_close(s.k);
    }
    return 0;
}
