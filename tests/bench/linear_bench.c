/* linear_bench.c - how fast linear() is, for the matrices of Qwen2.5 0.5B and 1.5B, in every instruction set.
 *
 *   build/bench/linear_bench [threads [set ...]]
 *
 * One token: weights are read once, so the figure is GB/s of weight bytes, beside the rate of a plain read of the same
 * memory by the same workers. Few tokens: how many times the tokens per second of one. Each pass goes over all of half
 * a gigabyte of weights, so that no cache helps, and passes of one token, of few and of reading alternate; figures are
 * medians, of ratios too. Many tokens: 10^9 multiply-adds a second, weights in cache.
 */
#include "kernels/cpu/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define POOL_BYTES ((size_t)1 << 29)
#define PASSES     7
#define MAX_COLS   8960
#define MAX_ROWS   151936
#define READ_BYTES ((size_t)1 << 16) /* of one item of the plain read */

struct shape {
    const char *name;
    enum kernels_type type;
    int cols, n_jobs, rows[3];
};

static const struct shape shapes[] = {
    {"0.5B qkv", KERNELS_Q5_0, 896, 3, {896, 128, 128}},
    {"0.5B qkv", KERNELS_Q8_0, 896, 3, {896, 128, 128}},
    {"0.5B out", KERNELS_Q5_0, 896, 1, {896}},
    {"0.5B gate+up", KERNELS_Q5_0, 896, 2, {4864, 4864}},
    {"0.5B gate+up", KERNELS_Q8_0, 896, 2, {4864, 4864}},
    {"0.5B down", KERNELS_Q4_K, 4864, 1, {896}},
    {"0.5B down", KERNELS_Q6_K, 4864, 1, {896}},
    {"0.5B head", KERNELS_Q8_0, 896, 1, {MAX_ROWS}},
    {"1.5B qkv", KERNELS_Q4_K, 1536, 3, {1536, 256, 256}},
    {"1.5B gate+up", KERNELS_Q4_K, 1536, 2, {8960, 8960}},
    {"1.5B down", KERNELS_Q4_K, 8960, 1, {1536}},
    {"1.5B down", KERNELS_Q6_K, 8960, 1, {1536}},
    {"1.5B head", KERNELS_Q6_K, 1536, 1, {MAX_ROWS}},
    {"1.5B up", KERNELS_Q4_0, 1536, 1, {8960}},
    {"1.5B up", KERNELS_Q4_1, 1536, 1, {8960}},
    {"1.5B up", KERNELS_Q5_1, 1536, 1, {8960}},
    {"1.5B up", KERNELS_Q5_K, 1536, 1, {8960}},
    {"1.5B up", KERNELS_F16, 1536, 1, {8960}},
    {"1.5B up", KERNELS_BF16, 1536, 1, {8960}},
    {"1.5B up", KERNELS_F32, 1536, 1, {8960}},
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

static double median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, compare);
    return values[n / 2];
}

typedef uint64_t line_t __attribute__((vector_size(64)));

struct read_job {
    const char *from;
    line_t *sums; /* per item, so that the reads are not dropped */
};

static void read_item(void *arg, int i)
{
    struct read_job *j = arg;
    const line_t *p = (const line_t *)(const void *)(j->from + (size_t)i * READ_BYTES);
    line_t a = {0}, b = {0};
    for (size_t l = 0; l < READ_BYTES / sizeof *p; l += 2) {
        __builtin_prefetch(&p[l + 64], 0, 2);
        __builtin_prefetch(&p[l + 65], 0, 2);
        a += p[l];
        b += p[l + 1];
    }
    j->sums[i] = a + b;
}

struct bench {
    struct kernels *k;
    char *weights; /* [POOL_BYTES] */
    float *x, *y;
    line_t *sums;
};

static size_t job_set(const struct bench *b, const struct shape *s, size_t at, struct kernels_matrix *w,
                      struct kernels_linear *jobs)
{
    float *y = b->y;
    for (int i = 0; i < s->n_jobs; i++) {
        w[i] = (struct kernels_matrix){.type = s->type, .rows = s->rows[i], .cols = s->cols, .data = b->weights + at};
        jobs[i] = (struct kernels_linear){.w = &w[i], .y = y};
        at += kernels_packed_bytes(s->type, s->rows[i], s->cols);
        y += s->rows[i] < 20000 ? (size_t)512 * (size_t)s->rows[i] : 0;
    }
    return at;
}

/* One pass over all the weights of the pool, in seconds. */
static double pass(const struct bench *b, const struct shape *s, int n, size_t bytes)
{
    struct kernels_matrix w[3];
    struct kernels_linear jobs[3];
    double start = now();
    for (size_t i = 0; i < POOL_BYTES / bytes; i++) {
        job_set(b, s, i * bytes, w, jobs);
        kernels_op_linear(b->k, b->x, n, s->cols, jobs, s->n_jobs);
    }
    return now() - start;
}

static void decode(const struct bench *b, const struct shape *s)
{
    struct kernels_matrix w[3];
    struct kernels_linear jobs[3];
    size_t bytes = job_set(b, s, 0, w, jobs), used = POOL_BYTES / bytes * bytes;
    double rate[PASSES], plain[PASSES], share[PASSES], more[3][PASSES];
    for (int p = 0; p < PASSES; p++) {
        double one = pass(b, s, 1, bytes);
        for (int i = 0; i < 3; i++)
            more[i][p] = one * (2 << i) / pass(b, s, 2 << i, bytes);
        double start = now();
        struct read_job read = {b->weights, b->sums};
        kernels_parallel(b->k, (int)(used / READ_BYTES), read_item, &read);
        double reading = now() - start;
        rate[p] = (double)used / one * 1e-9;
        plain[p] = (double)used / reading * 1e-9;
        share[p] = reading / one;
    }
    printf("%-13s %-5s %6.2f %6.2f %5.0f%% %5.2f %5.2f %5.2f", s->name, kernels_type_info(s->type)->name,
           median(rate, PASSES), median(plain, PASSES), 100 * median(share, PASSES), median(more[0], PASSES),
           median(more[1], PASSES), median(more[2], PASSES));
}

static double prefill(const struct bench *b, const struct shape *s, int n)
{
    struct kernels_matrix w[3];
    struct kernels_linear jobs[3];
    job_set(b, s, 0, w, jobs);
    double macs = 0, rate[5];
    for (int i = 0; i < s->n_jobs; i++)
        macs += (double)s->rows[i] * s->cols * n;
    for (int p = 0; p < 5; p++) {
        int rounds = 0;
        double start = now(), end;
        do {
            kernels_op_linear(b->k, b->x, n, s->cols, jobs, s->n_jobs);
            rounds++;
            end = now();
        } while (end - start < 0.02);
        rate[p] = macs * rounds / (end - start) * 1e-9;
    }
    return median(rate, 5);
}

static int run_set(struct bench *b, const char *set, int threads)
{
    char err[128];
    struct kernels_opts opts = {set, threads};
    if (kernels_open(&opts, &b->k, err, sizeof err) < 0) {
        printf("skip: %s\n", err);
        return 0;
    }
    if (kernels_linear_reserve(b->k, 512, MAX_COLS) < 0) {
        kernels_close(b->k);
        return -1;
    }
    printf("\n%s, %d workers\n%-19s %6s %6s %6s %17s %6s\n%-19s %6s %6s %6s %5s %5s %5s %6s %6s\n", set,
           kernels_threads(b->k), "", "n=1", "read", "of it", "tokens/s, x n=1", "GMAC/s", "", "GB/s", "GB/s", "",
           "n=2", "4", "8", "n=64", "512");
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        decode(b, &shapes[i]);
        if (shapes[i].rows[0] < MAX_ROWS && strcmp(set, "cpu-portable") != 0)
            printf(" %6.1f %6.1f", prefill(b, &shapes[i], 64), prefill(b, &shapes[i], 512));
        printf("\n");
        fflush(stdout);
    }
    kernels_close(b->k);
    return 0;
}

int main(int argc, char **argv)
{
    static char *all[] = {"cpu-avx512", "cpu-avxvnni", "cpu-avx2"};
    struct bench b = {0};
    size_t y_bytes = sizeof(float) * 512 * 2 * 8960;
    struct kernels *k;
    if (kernels_open(&(struct kernels_opts){.threads = 1}, &k, NULL, 0) < 0)
        return 1;
    const struct kernels_ops *ops = kernels_ops(k);
    b.weights = ops->alloc(k, KERNELS_DEVICE, POOL_BYTES + READ_BYTES);
    b.x = ops->alloc(k, KERNELS_DEVICE, sizeof(float) * 512 * MAX_COLS);
    b.y = ops->alloc(k, KERNELS_DEVICE, y_bytes);
    b.sums = ops->alloc(k, KERNELS_DEVICE, sizeof(line_t) * (POOL_BYTES / READ_BYTES));
    if (!b.weights || !b.x || !b.y || !b.sums)
        return 1;
    /* Bytes that are ordinary numbers wherever an f16, a bf16 or a float is read. */
    uint32_t r = 1;
    for (size_t i = 0; i < POOL_BYTES; i++)
        b.weights[i] = (char)(0x20 + ((r = r * 1664525u + 1013904223u) >> 27));
    for (size_t i = 0; i < (size_t)512 * MAX_COLS; i++)
        b.x[i] = (float)((r = r * 1664525u + 1013904223u) >> 8) * 0x1p-23f - 1.0f;
    int threads = argc > 1 ? atoi(argv[1]) : 0, rc = 0;
    for (int i = 0; i < (argc > 2 ? argc - 2 : 3); i++)
        rc |= run_set(&b, argc > 2 ? argv[i + 2] : all[i], threads);
    ops->release(k, KERNELS_DEVICE, b.weights, POOL_BYTES + READ_BYTES);
    ops->release(k, KERNELS_DEVICE, b.x, sizeof(float) * 512 * MAX_COLS);
    ops->release(k, KERNELS_DEVICE, b.y, y_bytes);
    ops->release(k, KERNELS_DEVICE, b.sums, sizeof(line_t) * (POOL_BYTES / READ_BYTES));
    kernels_close(k);
    return rc ? 1 : 0;
}
