/* restore_bench.c - what it takes to put stored segments into pages: copying alone, decoding alone, and both as a
 * restore does them.
 *
 * usage: restore_bench [WORKERS [LAYERS KV_HEADS HEAD_DIM]]        (2 workers, 24 layers, 2 heads of 64)
 *
 * Eight segments of 256 tokens with synthetic keys and values (normal, each channel with a scale of its own). The best
 * and the median of the rounds, by the clock and by the process's processor time; GB/s are of raw KV.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cpu/cpu.h"
#include "storage/storage_internal.h"

enum { ROUNDS = 31, SEGMENTS = 8, TOKENS = 256, LAYERS_MAX = 256 };

struct segment {
    const struct storage_layout *layout;
    uint8_t *raw, *encoded;
    bool decode;
};

struct bench {
    struct kernels *k;
    int layers, heads, dim;
    size_t array_bytes;
    struct storage_array arrays[2 * LAYERS_MAX];
    struct storage_layout layout;
    struct kernels_kv kv[LAYERS_MAX];
    struct segment segments[SEGMENTS];
    bool failed;
    int32_t pages[SEGMENTS * TOKENS / KERNELS_PAGE_TOKENS];
};

static double seconds(clockid_t clock)
{
    struct timespec t;
    (void)clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double uniform(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(*seed >> 11) * 0x1p-53 + 0x1p-60;
}

static void synthesize(const struct bench *b, uint16_t *out, uint64_t seed)
{
    size_t channels = (size_t)(b->heads * b->dim), n = channels * TOKENS;
    for (int a = 0; a < 2 * b->layers; a++, out += n)
        for (size_t i = 0; i < n; i++) {
            size_t c = a % 2 ? i % channels : i / TOKENS;
            double scale = exp2((double)(c * 7919 % 64) / 16 - 2);
            float x = (float)(scale * sqrt(-2 * log(uniform(&seed))) * cos(6.283185307179586 * uniform(&seed)));
            uint32_t bits;
            memcpy(&bits, &x, sizeof bits);
            out[i] = (uint16_t)(bits >> 16);
        }
}

static const void *rows(void *arg, int array, void *buf)
{
    const struct segment *s = arg;
    size_t bytes = (size_t)s->layout->arrays[array].channels * TOKENS * sizeof(uint16_t);
    if (s->decode && codec_decode_one(s->layout, TOKENS, s->encoded, (uint32_t)array, buf))
        return NULL;
    return s->decode ? buf : s->raw + (size_t)array * bytes;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Array i of all: decoded into memory of the worker's own, and left there. */
static void decode_alone(void *arg, int i)
{
    struct bench *b = arg;
    static _Thread_local uint8_t *buf;
    if (!buf)
        buf = aligned_alloc(64, (b->array_bytes + 63) & ~(size_t)63);
    if (!buf || codec_decode_one(&b->layout, TOKENS, b->segments[i / (2 * b->layers)].encoded,
                                 (uint32_t)(i % (2 * b->layers)), buf))
        b->failed = true;
}

static int fill(struct bench *b, bool decode)
{
    const struct kernels_pages pages = {b->pages, SEGMENTS * TOKENS / KERNELS_PAGE_TOKENS};
    struct kernels_kv_part parts[SEGMENTS];
    for (int i = 0; i < SEGMENTS; i++) {
        b->segments[i].decode = decode;
        parts[i] = (struct kernels_kv_part){i * TOKENS, TOKENS, rows, &b->segments[i], false};
    }
    int rc = kernels_ops(b->k)->kv_fill(b->k, b->kv, b->layers, &pages, parts, SEGMENTS);
    for (int i = 0; i < SEGMENTS; i++)
        b->failed |= parts[i].failed;
    return rc;
}

static int measure(struct bench *b, const char *name, bool decode, bool pages)
{
    double wall[ROUNDS], cpu[ROUNDS];
    for (int r = 0; r < ROUNDS; r++) {
        double start = seconds(CLOCK_MONOTONIC), used = seconds(CLOCK_PROCESS_CPUTIME_ID);
        if (!pages)
            kernels_parallel(b->k, SEGMENTS * 2 * b->layers, decode_alone, b);
        else if (fill(b, decode))
            return 1;
        wall[r] = seconds(CLOCK_MONOTONIC) - start;
        cpu[r] = seconds(CLOCK_PROCESS_CPUTIME_ID) - used;
        if (b->failed)
            return 1;
    }
    qsort(wall, ROUNDS, sizeof *wall, compare);
    qsort(cpu, ROUNDS, sizeof *cpu, compare);
    double bytes = (double)b->array_bytes * 2 * b->layers * SEGMENTS;
    printf("%-28s %7.2f ms (median %7.2f), %5.1f GB/s; processor %7.2f ms (median %7.2f)\n", name, wall[0] * 1e3,
           wall[ROUNDS / 2] * 1e3, bytes / wall[0] / 1e9, cpu[0] * 1e3, cpu[ROUNDS / 2] * 1e3);
    return 0;
}

int main(int argc, char **argv)
{
    static struct bench b;
    char err[256];
    struct kernels_opts opts = {.threads = argc > 1 ? atoi(argv[1]) : 2};
    b.layers = argc > 4 ? atoi(argv[2]) : 24;
    b.heads = argc > 4 ? atoi(argv[3]) : 2;
    b.dim = argc > 4 ? atoi(argv[4]) : 64;
    if (b.layers < 1 || b.layers > LAYERS_MAX || b.heads < 1 || b.dim < 1 || b.heads * b.dim > 8192 ||
        kernels_open(&opts, &b.k, err, sizeof err))
        return 1;
    size_t channels = (size_t)(b.heads * b.dim);
    b.array_bytes = channels * TOKENS * sizeof(uint16_t);
    for (int a = 0; a < 2 * b.layers; a++)
        b.arrays[a] = (struct storage_array){.channels = (uint32_t)channels, .channel_major = a % 2 == 0};
    b.layout = (struct storage_layout){.element = STORAGE_BF16, .arrays = b.arrays, .n_arrays = 2 * (uint32_t)b.layers};
    size_t half = channels * KERNELS_PAGE_TOKENS * sizeof(uint16_t), page_bytes = half * 2 * (size_t)b.layers;
    size_t pool_bytes = page_bytes * (SEGMENTS * TOKENS / KERNELS_PAGE_TOKENS);
    uint8_t *pool = kernels_ops(b.k)->alloc(b.k, KERNELS_DEVICE, pool_bytes);
    size_t raw = b.array_bytes * b.layout.n_arrays, bound = storage_codec_bound(&b.layout, TOKENS), stored = 0;
    if (!pool)
        return 1;
    memset(pool, 1, pool_bytes);
    for (int l = 0; l < b.layers; l++)
        b.kv[l] = (struct kernels_kv){.type = KERNELS_KV_BF16,
                                      .kv_heads = b.heads,
                                      .head_dim = b.dim,
                                      .pool = pool,
                                      .page_bytes = page_bytes,
                                      .k_offset = 2 * half * (size_t)l,
                                      .v_offset = 2 * half * (size_t)l + half};
    for (int i = 0; i < SEGMENTS * TOKENS / KERNELS_PAGE_TOKENS; i++)
        b.pages[i] = i;
    for (int i = 0; i < SEGMENTS; i++) {
        struct segment *s = &b.segments[i];
        *s = (struct segment){.layout = &b.layout, .raw = malloc(raw), .encoded = malloc(bound)};
        if (!s->raw || !s->encoded)
            return 1;
        synthesize(&b, (uint16_t *)(void *)s->raw, (uint64_t)i);
        int64_t n = storage_codec_encode(&b.layout, TOKENS, s->raw, s->encoded, bound);
        if (n < 0)
            return 1;
        stored += (size_t)n;
    }
    printf("%s, %d workers, %d tokens: %.1f MB raw, %.1f MB stored\n", b.k->set->name, kernels_threads(b.k),
           SEGMENTS * TOKENS, (double)raw * SEGMENTS / 1e6, (double)stored / 1e6);
    int rc = measure(&b, "copied into pages", false, true) || measure(&b, "decoded", true, false) ||
             measure(&b, "decoded into pages", true, true);
    for (int i = 0; i < SEGMENTS; i++) {
        free(b.segments[i].raw);
        free(b.segments[i].encoded);
    }
    kernels_ops(b.k)->release(b.k, KERNELS_DEVICE, pool, pool_bytes);
    kernels_close(b.k);
    return rc;
}
