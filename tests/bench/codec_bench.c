/* codec_bench.c - ratio and speed of the KV codec.
 *
 *   codec_bench                                          synthetic keys and values
 *   codec_bench FILE LAYERS CHANNELS COUNT [f16]         payloads from a file, one after the other: for every layer
 * keys [CHANNELS][COUNT], then values [COUNT][CHANNELS], 16 bits each
 *
 * One thread, its processor time (so that neighbours do not count). Each figure is the median of the rounds, of raw
 * bytes per second; the spread is lowest to highest. Copying the same payloads is measured beside it.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "storage/codec_internal.h"

#define ROUNDS     9
#define LAYERS_MAX 512

struct payloads {
    struct storage_array arrays[2 * LAYERS_MAX];
    struct storage_layout layout;
    uint32_t count;
    size_t bytes, n, stride;
    uint8_t *raw, *encoded, *out;
    size_t *sizes;
};

static double now_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double uniform(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(*seed >> 11) * 0x1p-53 + 0x1p-60;
}

/* Normal values; every channel has a scale and, for keys, a mean of its own. */
static void synthesize(struct payloads *p)
{
    uint64_t seed = 1;
    uint16_t *out = (uint16_t *)(void *)p->raw;
    for (size_t i = 0; i < p->n; i++)
        for (uint32_t a = 0; a < p->layout.n_arrays; a++) {
            uint32_t channels = p->arrays[a].channels;
            double mean[4096] = {0}, scale[4096] = {0};
            for (uint32_t c = 0; c < channels; c++) {
                scale[c] = exp2(4 * uniform(&seed) - 2);
                mean[c] = p->arrays[a].channel_major && uniform(&seed) < 0.2 ? 8 * scale[c] : 0;
            }
            for (size_t k = 0; k < (size_t)channels * p->count; k++) {
                size_t c = p->arrays[a].channel_major ? k / p->count : k % channels;
                float x = (float)(mean[c] +
                                  scale[c] * sqrt(-2 * log(uniform(&seed))) * cos(6.283185307179586 * uniform(&seed)));
                uint32_t bits;
                memcpy(&bits, &x, 4);
                *out++ = (uint16_t)(bits >> 16);
            }
        }
}

static int layout_make(struct payloads *p, uint32_t layers, uint32_t channels, uint32_t count, bool f16)
{
    if (!layers || layers > LAYERS_MAX || !channels || channels > 4096)
        return -EINVAL;
    for (uint32_t i = 0; i < 2 * layers; i++)
        p->arrays[i] = (struct storage_array){.channels = channels, .channel_major = i % 2 == 0};
    p->layout = (struct storage_layout){
        .element = f16 ? STORAGE_F16 : STORAGE_BF16, .arrays = p->arrays, .n_arrays = 2 * layers};
    p->count = count;
    p->bytes = codec_payload_bytes(&p->layout, count);
    p->stride = storage_codec_bound(&p->layout, count);
    return p->bytes ? 0 : -EINVAL;
}

static int memory_get(struct payloads *p)
{
    p->raw = aligned_alloc(64, (p->bytes * p->n + 63) & ~(size_t)63);
    p->out = aligned_alloc(64, (p->bytes + 63) & ~(size_t)63);
    p->encoded = malloc(p->stride * p->n);
    p->sizes = calloc(p->n, sizeof *p->sizes);
    return p->raw && p->out && p->encoded && p->sizes ? 0 : -ENOMEM;
}

static int load(struct payloads *p, const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return -errno;
    int rc = fseek(f, 0, SEEK_END) ? -errno : 0;
    long size = ftell(f);
    p->n = size > 0 ? (size_t)size / p->bytes : 0;
    if (!rc && !p->n)
        rc = -EINVAL;
    rewind(f);
    if (!rc)
        rc = memory_get(p);
    if (!rc && fread(p->raw, p->bytes, p->n, f) != p->n)
        rc = -EIO;
    (void)fclose(f);
    return rc;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

enum what { COPY, ENCODE, DECODE };

static int measure(struct payloads *p, const struct codec_loops *loops, enum what what, const char *name)
{
    double rates[ROUNDS] = {0};
    for (int r = -1; r < ROUNDS; r++) {
        double start = now_s();
        for (size_t i = 0; i < p->n; i++) {
            const uint8_t *raw = p->raw + i * p->bytes;
            uint8_t *encoded = p->encoded + i * p->stride;
            if (what == COPY) {
                memcpy(p->out, raw, p->bytes);
            } else if (what == ENCODE) {
                int64_t n = codec_encode_with(loops, &p->layout, p->count, raw, encoded, p->stride);
                if (n < 0)
                    return (int)n;
                p->sizes[i] = (size_t)n;
            } else {
                int rc = codec_decode_with(loops, &p->layout, p->count, encoded, p->sizes[i], p->out);
                if (rc)
                    return rc;
            }
        }
        double rate = (double)(p->bytes * p->n) / (now_s() - start) / 1e9;
        if (r >= 0)
            rates[r] = rate;
    }
    qsort(rates, ROUNDS, sizeof *rates, compare);
    printf("%-18s %6.2f GB/s (%.2f to %.2f)\n", name, rates[ROUNDS / 2], rates[0], rates[ROUNDS - 1]);
    return 0;
}

/* Encoded bytes of the keys and of the values, each array by itself. */
static int ratios(struct payloads *p)
{
    size_t raw[2] = {0}, encoded[2] = {0}, total = 0;
    for (size_t i = 0; i < p->n; i++) {
        const uint8_t *at = p->raw + i * p->bytes;
        for (uint32_t a = 0; a < p->layout.n_arrays; a++) {
            struct storage_layout one = {.element = p->layout.element, .arrays = &p->arrays[a], .n_arrays = 1};
            size_t bytes = codec_payload_bytes(&one, p->count);
            int64_t n = storage_codec_encode(&one, p->count, at, p->out, storage_codec_bound(&one, p->count));
            if (n < 0)
                return (int)n;
            raw[a % 2] += bytes;
            encoded[a % 2] += (size_t)n;
            at += bytes;
        }
        total += p->sizes[i];
    }
    printf("ratio              %6.3f (keys %.3f, values %.3f)\n", (double)(p->bytes * p->n) / (double)total,
           (double)raw[0] / (double)encoded[0], (double)raw[1] / (double)encoded[1]);
    return 0;
}

int main(int argc, char **argv)
{
    static struct payloads p;
    int rc;
    if (argc == 1) {
        p.n = 8;
        rc = layout_make(&p, 24, 128, 256, false);
        if (!rc)
            rc = memory_get(&p);
        if (!rc)
            synthesize(&p);
    } else if (argc >= 5) {
        rc = layout_make(&p, (uint32_t)strtoul(argv[2], NULL, 10), (uint32_t)strtoul(argv[3], NULL, 10),
                         (uint32_t)strtoul(argv[4], NULL, 10), argc > 5 && !strcmp(argv[5], "f16"));
        if (!rc)
            rc = load(&p, argv[1]);
    } else {
        rc = -EINVAL;
    }
    if (!rc) {
        printf("%zu payloads of %zu bytes%s\n", p.n, p.bytes, argc == 1 ? ", synthetic" : "");
        rc = measure(&p, NULL, COPY, "copy");
    }
    if (!rc)
        rc = measure(&p, &codec_loops_portable, ENCODE, "encode, portable");
    if (!rc)
        rc = measure(&p, &codec_loops_portable, DECODE, "decode, portable");
    if (!rc && codec_loops_best() != &codec_loops_portable)
        rc = measure(&p, &codec_loops_avx2, ENCODE, "encode, avx2");
    if (!rc && codec_loops_best() != &codec_loops_portable)
        rc = measure(&p, &codec_loops_avx2, DECODE, "decode, avx2");
    if (!rc && codec_loops_best() == &codec_loops_avx512)
        rc = measure(&p, &codec_loops_avx512, ENCODE, "encode, avx512");
    if (!rc && codec_loops_best() == &codec_loops_avx512)
        rc = measure(&p, &codec_loops_avx512, DECODE, "decode, avx512");
    if (!rc)
        rc = ratios(&p);
    if (rc)
        (void)fprintf(stderr, "codec_bench: %s\n", strerror(-rc));
    free(p.raw);
    free(p.encoded);
    free(p.out);
    free(p.sizes);
    return rc ? 1 : 0;
}
