/* check.c - the CUDA backend beside the CPU's, through their common table alone, and how long its operations take.
 *
 * usage: check PART ... [--tiny] [--seconds N] [--from N]
 *
 * Prints results as said.h has them. The bits that numerics.md promises are compared on real shapes; what is measured
 * is cold: weights take turns over more memory than a cache has. `tests/gpu/check` runs every part in a process of its
 * own. With --tiny shapes are such that an emulation can do them, and times mean nothing. Exit status: 0, or 1 when
 * something was not as it should be.
 */
#include "kernels/kernels.h"
#include "tests/gpu/said.h"
#include "tests/kernels/quant.h"

#define MOST_ROWS 2048
#define CTX       8192

static void *check_alloc(size_t bytes)
{
    return need(calloc(1, bytes ? bytes : 1));
}

/* ---- a backend --------------------------------------------------------------------------------------------------- */

struct side {
    struct kernels *k;
    const struct kernels_ops *ops;
};

static struct side open_side(const char *backend, const char *numerics, const struct kernels_sizes *sizes)
{
    struct side s = {0};
    char err[300];
    struct kernels_opts opts = {.backend = backend, .numerics = numerics};
    if (kernels_open(&opts, &s.k, err, sizeof err))
        stop(err);
    s.ops = kernels_ops(s.k);
    if (s.ops->reserve(s.k, sizes))
        stop("reserve");
    return s;
}

static void *device_new(struct side s, size_t bytes)
{
    void *p = s.ops->alloc(s.k, KERNELS_DEVICE, bytes);
    if (!p)
        stop(s.ops->error(s.k) ? s.ops->error(s.k) : "no memory on the device");
    return p;
}

static void *device_of(struct side s, const void *from, size_t bytes)
{
    void *p = device_new(s, bytes);
    s.ops->upload(s.k, p, from, bytes);
    return p;
}

static void finish(struct side s)
{
    if (s.ops->wait(s.k, s.ops->record(s.k, KERNELS_COMPUTE), -1))
        stop(s.ops->error(s.k));
}

/* Copies from the device, waiting for all before. To be freed. */
static void *fetch(struct side s, const void *device, size_t bytes)
{
    void *pinned = s.ops->alloc(s.k, KERNELS_PINNED, bytes), *out = check_alloc(bytes);
    if (!pinned)
        stop("no pinned memory");
    s.ops->copy(s.k, KERNELS_COMPUTE, pinned, device, bytes);
    finish(s);
    memcpy(out, pinned, bytes);
    s.ops->release(s.k, KERNELS_PINNED, pinned, bytes);
    return out;
}

static struct kernels_matrix matrix_of(struct side s, enum kernels_type type, int rows, int cols, const void *file)
{
    struct kernels_matrix w = {.type = type, .rows = rows, .cols = cols};
    w.data = device_new(s, s.ops->matrix_bytes(s.k, type, rows, cols));
    s.ops->pack(s.k, &w, 0, 0, rows, file, NULL, NULL);
    return w;
}

static float *random_floats(size_t n, uint64_t seed)
{
    float *x = check_alloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = ((float)(quant_random(&seed) >> 8) * 0x1p-23f - 1.0f) * (float)(1 << quant_random(&seed) % 4);
    return x;
}

static struct kernels_sizes sizes_for(int rows, int cols, int heads, int head_dim)
{
    return (struct kernels_sizes){.rows = rows,
                                  .runs = rows,
                                  .pages = CTX / KERNELS_PAGE_TOKENS,
                                  .wanted = rows,
                                  .picks = 64,
                                  .vocab = 151936,
                                  .cols = cols,
                                  .heads = heads,
                                  .head_dim = head_dim,
                                  .ff = cols};
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* y [n][rows] of norm(x) times weights, so that x is rounded by the backend itself. */
static float *product(struct side s, const struct kernels_matrix *w, const float *x, int n)
{
    size_t x_bytes = (size_t)n * (size_t)w->cols * sizeof(float), y_bytes = (size_t)n * (size_t)w->rows * sizeof(float);
    float *ones = check_alloc((size_t)w->cols * sizeof *ones);
    for (int i = 0; i < w->cols; i++)
        ones[i] = 1.0f;
    float *dx = device_of(s, x, x_bytes), *weight = device_of(s, ones, (size_t)w->cols * sizeof *ones);
    size_t q_bytes = s.ops->acts_bytes(s.k, n, w->cols);
    struct kernels_acts acts = {.x = device_new(s, x_bytes), .cols = w->cols, .forms = kernels_form(w->type)};
    acts.q = q_bytes ? device_new(s, q_bytes) : NULL;
    struct kernels_linear job = {.w = w, .y = device_new(s, y_bytes)};
    s.ops->norm(s.k, dx, n, weight, 1e-6f, &acts);
    s.ops->linear(s.k, &acts, n, &job, 1);
    float *y = fetch(s, job.y, y_bytes);
    s.ops->release(s.k, KERNELS_DEVICE, dx, x_bytes);
    s.ops->release(s.k, KERNELS_DEVICE, weight, (size_t)w->cols * sizeof *ones);
    s.ops->release(s.k, KERNELS_DEVICE, acts.x, x_bytes);
    if (acts.q)
        s.ops->release(s.k, KERNELS_DEVICE, acts.q, q_bytes);
    s.ops->release(s.k, KERNELS_DEVICE, job.y, y_bytes);
    free(ones);
    return y;
}

/* With its own numerics the device rounds x to 16 bits where the weights have them: the difference is within 2 % of
 * what there is. */
static bool is_near(const float *want, const float *got, size_t n)
{
    double difference = 0.0, all = 0.0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)want[i] - (double)got[i];
        difference += d * d;
        all += (double)want[i] * (double)want[i];
    }
    return difference <= 4e-4 * all; /* a NaN is not near */
}

/* One type on one device, beside what the CPU has of `most` rows. */
static void check_product(struct side gpu, const char *numerics, enum kernels_type type, const uint8_t *file, int rows,
                          int cols, const float *x, const float *want, int most)
{
    const int counts[] = {64 < most ? 64 : 17, 7, 1};
    bool exact = !strcmp(numerics, "exact");
    char name[100];
    snprintf(name, sizeof name, "%s, %s: %s, the same bits for %d, %d, 7 and 1 rows", kernels_type_info(type)->name,
             numerics, exact ? "the CPU's bits" : "near the CPU", most, counts[0]);
    struct kernels_matrix w = matrix_of(gpu, type, rows, cols, file);
    float *all = product(gpu, &w, x, most);
    size_t n = (size_t)most * (size_t)rows;
    bool fine = exact ? !memcmp(want, all, n * sizeof(float)) : is_near(want, all, n);
    for (int i = 0; i < 3; i++) {
        float *got = product(gpu, &w, x, counts[i]);
        fine = fine && !memcmp(got, all, (size_t)counts[i] * (size_t)rows * sizeof(float));
        free(got);
    }
    say_fine(name, fine);
    free(all);
    gpu.ops->release(gpu.k, KERNELS_DEVICE, (void *)w.data, gpu.ops->matrix_bytes(gpu.k, type, rows, cols));
}

static void check_products(void)
{
    int rows = said.tiny ? 40 : 512, cols = said.tiny ? 512 : 4096, most = said.tiny ? 70 : MOST_ROWS;
    struct kernels_sizes sizes = sizes_for(most, cols, 1, 16);
    struct side cpu = open_side("cpu", NULL, &sizes), exact = open_side("cuda", "exact", &sizes),
                device = open_side("cuda", "device", &sizes);
    float *x = random_floats((size_t)most * (size_t)cols, 7);
    for (int t = 0; t < KERNELS_TYPE_COUNT; t++) {
        enum kernels_type type = (enum kernels_type)t;
        if (!unit_begins(kernels_type_info(type)->name))
            continue;
        uint8_t *file = check_alloc(quant_file_bytes(type, rows, cols));
        quant_fill(type, rows, cols, QUANT_RANDOM, 3, file);
        struct kernels_matrix a = matrix_of(cpu, type, rows, cols, file);
        float *want = product(cpu, &a, x, most);
        check_product(exact, "exact", type, file, rows, cols, x, want, most);
        if (type == KERNELS_F16 || type == KERNELS_BF16) /* others are the same there */
            check_product(device, "device", type, file, rows, cols, x, want, most);
        free(want);
        free(file);
        cpu.ops->release(cpu.k, KERNELS_DEVICE, (void *)a.data, cpu.ops->matrix_bytes(cpu.k, type, rows, cols));
    }
    if (kernels_notes(device.k))
        say_text("numerics = device", kernels_notes(device.k));
    free(x);
    kernels_close(cpu.k);
    kernels_close(exact.k);
    kernels_close(device.k);
}

/* Seconds of a product, over copies of its weights that take turns. As in a step, where few rows are a graph: launched
 * one by one, a small product takes as long as its launch. Batches with other weights are of another kind, which `kind`
 * makes of them (kernels_ops.begin). */
static double time_product(struct side s, struct kernels_matrix *w, int copies, int n, int kind)
{
    static const int32_t zeros[MOST_ROWS];
    const struct kernels_run run = {.n = n};
    const struct kernels_batch batch = {
        .rows = n, .ids = zeros, .runs = &run, .n_runs = 1, .wanted = zeros, .n_wanted = kind};
    int cols = w->cols, repeats = said.tiny ? 1 : 3 * copies;
    size_t x_bytes = (size_t)n * (size_t)cols * sizeof(float), q_bytes = s.ops->acts_bytes(s.k, n, cols);
    size_t y_bytes = (size_t)n * (size_t)w->rows * sizeof(float);
    struct kernels_acts acts = {.x = device_new(s, x_bytes), .cols = cols, .forms = KERNELS_FLOATS | KERNELS_QUANTS};
    acts.q = device_new(s, q_bytes);
    float *y = device_new(s, y_bytes);
    double best = 1e9;
    for (int round = 0; round < (said.tiny ? 3 : 5); round++) { /* the third is the first that is replayed */
        finish(s);
        double began = now();
        bool replayed = s.ops->begin(s.k, &batch) != 0;
        for (int i = 0; i < repeats && !replayed; i++)
            s.ops->linear(s.k, &acts, n, &(struct kernels_linear){.w = &w[i % copies], .y = y}, 1);
        s.ops->end(s.k);
        finish(s);
        double seconds = (now() - began) / repeats;
        best = seconds < best ? seconds : best;
    }
    s.ops->release(s.k, KERNELS_DEVICE, acts.x, x_bytes);
    s.ops->release(s.k, KERNELS_DEVICE, acts.q, q_bytes);
    s.ops->release(s.k, KERNELS_DEVICE, y, y_bytes);
    return best;
}

static void measure_products(void)
{
    static const enum kernels_type types[] = {KERNELS_Q4_K, KERNELS_Q6_K, KERNELS_Q8_0, KERNELS_BF16};
    static const int shapes[][2] = {{14336, 4096}, {4096, 14336}, {4096, 4096}};
    static const int counts[] = {1, 8, 16, 32, 2048};
    struct kernels_sizes sizes = sizes_for(said.tiny ? 40 : MOST_ROWS, said.tiny ? 512 : 14336, 1, 16);
    struct side gpu = open_side("cuda", "device", &sizes);
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (size_t h = 0; h < sizeof shapes / sizeof *shapes; h++) {
            int rows = said.tiny ? 32 : shapes[h][0], cols = said.tiny ? 512 : shapes[h][1];
            size_t bytes = kernels_row_bytes(types[t], cols) * (size_t)rows;
            int copies = said.tiny ? 2 : (int)((size_t)256 * 1000 * 1000 / bytes) + 1;
            struct kernels_matrix w[32];
            copies = copies > 32 ? 32 : copies;
            char name[100];
            snprintf(name, sizeof name, "%s %dx%d", kernels_type_info(types[t])->name, rows, cols);
            if (!unit_begins(name))
                continue;
            uint8_t *file = check_alloc(bytes), *tile = check_alloc(quant_file_bytes(types[t], 16, cols));
            quant_fill(types[t], 16, cols, QUANT_RANDOM, 3, tile);
            for (int r = 0; r < rows; r++)
                memcpy(file + (size_t)r * kernels_row_bytes(types[t], cols),
                       tile + (size_t)(r % 16) * kernels_row_bytes(types[t], cols), kernels_row_bytes(types[t], cols));
            for (int c = 0; c < copies; c++)
                w[c] = matrix_of(gpu, types[t], rows, cols, file);
            for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
                int n = said.tiny && counts[i] > 32 ? 40 : counts[i];
                double seconds = time_product(gpu, w, copies, n, (int)(t * (sizeof shapes / sizeof *shapes) + h));
                snprintf(name, sizeof name, "%s %dx%d, %d rows", kernels_type_info(types[t])->name, rows, cols, n);
                if (n <= 32)
                    say(name, (double)bytes / seconds / 1e9, "GB/s");
                else
                    say(name, 2.0 * rows * cols * n / seconds / 1e12, "TOPS");
            }
            for (int c = 0; c < copies; c++)
                gpu.ops->release(gpu.k, KERNELS_DEVICE, (void *)w[c].data,
                                 gpu.ops->matrix_bytes(gpu.k, types[t], rows, cols));
            free(file);
            free(tile);
        }
    kernels_close(gpu.k);
}

/* ---- attention and KV -------------------------------------------------------------------------------------------- */

struct heads {
    int heads, kv_heads, dim, tokens;
};

static struct kernels_kv pool_of(struct side s, const struct heads *h, int pages)
{
    size_t half = (size_t)h->kv_heads * (size_t)h->dim * KERNELS_PAGE_TOKENS * 2;
    struct kernels_kv kv = {
        .type = KERNELS_KV_BF16, .kv_heads = h->kv_heads, .head_dim = h->dim, .page_bytes = 2 * half, .v_offset = half};
    kv.pool = device_new(s, (size_t)pages * kv.page_bytes);
    return kv;
}

/* What attention is computed with on one side. Batches that are alike are replayed with the same memory, so it is kept.
 */
struct attender {
    struct side s;
    struct heads h;
    struct kernels_kv kv;
    float *q, *key, *value, *out; /* of the device, for h.tokens rows */
};

static struct attender attender_of(const char *backend, const char *numerics, const struct heads *h,
                                   const struct kernels_sizes *sizes, int pages)
{
    struct attender a = {.s = open_side(backend, numerics, sizes), .h = *h};
    size_t row = (size_t)h->tokens * (size_t)h->dim * sizeof(float);
    a.kv = pool_of(a.s, h, pages);
    a.q = device_new(a.s, row * (size_t)h->heads);
    a.out = device_new(a.s, row * (size_t)h->heads);
    a.key = device_new(a.s, row * (size_t)h->kv_heads);
    a.value = device_new(a.s, row * (size_t)h->kv_heads);
    return a;
}

/* Writes the keys and values of n positions, in chunks, and gives their queries' results. */
static float *attend(const struct attender *a, const int32_t *pages, int n, int chunk)
{
    const struct heads *h = &a->h;
    struct side s = a->s;
    size_t q_row = (size_t)h->heads * (size_t)h->dim, kv_row = (size_t)h->kv_heads * (size_t)h->dim;
    float *all = check_alloc((size_t)n * q_row * sizeof *all);
    float *q = random_floats((size_t)n * q_row, 5), *kvs = random_floats((size_t)n * kv_row, 6);
    int32_t *ids = check_alloc((size_t)n * sizeof *ids);
    for (int first = 0; first < n; first += chunk) {
        int rows = n - first < chunk ? n - first : chunk;
        size_t q_bytes = (size_t)rows * q_row * sizeof *q, kv_bytes = (size_t)rows * kv_row * sizeof *kvs;
        struct kernels_run run = {.n = rows, .pos = first};
        for (int g = 0; g < KERNELS_PAGE_GROUPS; g++)
            run.pages[g] = (struct kernels_pages){pages, (n + KERNELS_PAGE_TOKENS - 1) / KERNELS_PAGE_TOKENS};
        struct kernels_batch batch = {.rows = rows, .ids = ids, .runs = &run, .n_runs = 1};
        struct kernels_attn_in in = {.q = a->q, .key = a->key, .value = a->value, .heads = h->heads, .kv = a->kv};
        struct kernels_acts out = {.x = a->out, .cols = (int)q_row, .forms = KERNELS_FLOATS};
        struct kernels_attention at = {.q = a->q, .heads = h->heads, .scale = 0.1f / sqrtf((float)h->dim), .kv = a->kv};
        s.ops->upload(s.k, a->q, q + (size_t)first * q_row, q_bytes);
        s.ops->upload(s.k, a->key, kvs + (size_t)first * kv_row, kv_bytes);
        s.ops->upload(s.k, a->value, kvs + (size_t)first * kv_row, kv_bytes);
        if (s.ops->begin(s.k, &batch) == 0) {
            s.ops->attn_in(s.k, &in);
            s.ops->attention(s.k, &at, &out);
        }
        s.ops->end(s.k);
        float *got = fetch(s, a->out, q_bytes);
        memcpy(all + (size_t)first * q_row, got, q_bytes);
        free(got);
    }
    free(ids);
    free(q);
    free(kvs);
    return all;
}

/* Results are named by the heads' size. */
static void say_attention(const struct heads *h, const char *what, bool fine)
{
    char name[120];
    snprintf(name, sizeof name, "attention, heads of %d: %s", h->dim, what);
    say_fine(name, fine);
}

static void check_heads(struct heads h)
{
    int pages = (h.tokens + KERNELS_PAGE_TOKENS - 1) / KERNELS_PAGE_TOKENS;
    size_t bytes = (size_t)h.tokens * (size_t)h.heads * (size_t)h.dim * sizeof(float);
    struct kernels_sizes sizes = sizes_for(h.tokens, h.heads * h.dim, h.heads, h.dim);
    int32_t *table = check_alloc((size_t)pages * sizeof *table);
    for (int i = 0; i < pages; i++)
        table[i] = pages - 1 - i;
    struct attender cpu = attender_of("cpu", NULL, &h, &sizes, pages),
                    exact = attender_of("cuda", "exact", &h, &sizes, pages),
                    device = attender_of("cuda", "device", &h, &sizes, pages);
    float *want = attend(&cpu, table, h.tokens, h.tokens), *got = attend(&exact, table, h.tokens, 65);
    say_attention(&h, "exact, the CPU's bits", !memcmp(got, want, bytes));
    float *whole = attend(&device, table, h.tokens, h.tokens);
    double worst = 0; /* a NaN stays */
    for (size_t i = 0; i < bytes / sizeof(float); i++) {
        double difference = fabs((double)whole[i] - (double)want[i]);
        worst = difference <= worst || isnan(worst) ? worst : difference;
    }
    say("attention on tensor cores: greatest difference", worst, "");
    say_attention(&h, "on tensor cores, near", worst < 0.1);
    for (int chunk = said.tiny ? 7 : 61; chunk < 80; chunk += 30) {
        float *pieces = attend(&device, table, h.tokens, chunk);
        say_attention(&h, "on tensor cores, the same bits in chunks", !memcmp(pieces, whole, bytes));
        free(pieces);
    }
    for (int last = 1; last < 3; last++) { /* the last token alone, in a batch of one row */
        float *alone = attend(&device, table, h.tokens - last, h.tokens - last - 1);
        size_t row = (size_t)h.heads * (size_t)h.dim, at = (size_t)(h.tokens - last - 1) * row;
        say_attention(&h, "on tensor cores, a row alone", !memcmp(alone + at, whole + at, row * sizeof(float)));
        free(alone);
    }
    free(want);
    free(got);
    free(whole);
    free(table);
    kernels_close(cpu.s.k);
    kernels_close(exact.s.k);
    kernels_close(device.s.k);
}

static void check_attention(void)
{
    const struct heads real[] = {{32, 8, 128, 1000}, {14, 2, 64, 1000}, {8, 4, 256, 1000}, {32, 4, 96, 700}},
                       small[] = {{4, 2, 32, 70}, {2, 1, 256, 40}};
    for (size_t i = 0; i < (said.tiny ? sizeof small / sizeof *small : sizeof real / sizeof *real); i++)
        if (unit_begins("attention"))
            check_heads(said.tiny ? small[i] : real[i]);
}

/* A segment's layers, and how it is moved. */
struct moves {
    struct side gpu;
    const struct kernels_kv *kv;
    int layers, tokens, rounds;
    const struct kernels_pages *table;
};

static void wait_for(const struct moves *m, enum kernels_stream stream)
{
    if (m->gpu.ops->wait(m->gpu.k, m->gpu.ops->record(m->gpu.k, stream), -1))
        stop(m->gpu.ops->error(m->gpu.k));
}

/* Into the pages, as it is or in the split form; best time. */
static double move_in(const struct moves *m, bool split, const void *from)
{
    const struct kernels_ops *ops = m->gpu.ops;
    double best = 1e9;
    for (int r = 0; r < m->rounds; r++) {
        double began = now();
        (split ? ops->kv_import_split : ops->kv_import)(m->gpu.k, m->kv, m->layers, m->table, 0, m->tokens, from);
        wait_for(m, KERNELS_IN);
        best = fmin(best, now() - began);
    }
    return best;
}

static double move_out(const struct moves *m, bool split, void *to)
{
    const struct kernels_ops *ops = m->gpu.ops;
    double best = 1e9;
    for (int r = 0; r < m->rounds; r++) {
        double began = now();
        (split ? ops->kv_export_split : ops->kv_export)(m->gpu.k, m->kv, m->layers, m->table, 0, m->tokens, to);
        wait_for(m, KERNELS_OUT);
        best = fmin(best, now() - began);
    }
    return best;
}

static void check_kv(void)
{
    enum { LAYERS = 36 };
    if (!unit_begins("kv"))
        return;
    struct heads h = {8, said.tiny ? 2 : 8, said.tiny ? 32 : 128, 256};
    int layers = said.tiny ? 3 : LAYERS, pages = 4;
    struct kernels_sizes sizes = sizes_for(16, 1024, 8, 128);
    struct side gpu = open_side("cuda", NULL, &sizes);
    struct kernels_kv kv[LAYERS];
    int32_t ids[4] = {2, 0, 3, 1};
    struct kernels_pages table[KERNELS_PAGE_GROUPS] = {{ids, pages}, {ids, pages}};
    size_t bytes = (size_t)layers * 2 * (size_t)h.kv_heads * (size_t)h.dim * (size_t)h.tokens * 2;
    for (int l = 0; l < layers; l++)
        kv[l] = pool_of(gpu, &h, pages);
    struct moves m = {gpu, kv, layers, h.tokens, said.tiny ? 2 : 20, table};
    uint16_t *in = gpu.ops->alloc(gpu.k, KERNELS_PINNED, bytes), *out = gpu.ops->alloc(gpu.k, KERNELS_PINNED, bytes);
    void *split = gpu.ops->alloc(gpu.k, KERNELS_PINNED, gpu.ops->kv_split_bytes(gpu.k, kv, layers, h.tokens));
    if (!in || !out || !split || gpu.ops->kv_split_reserve(gpu.k, kv, layers, h.tokens))
        stop("no memory");
    uint64_t state = 8;
    for (size_t i = 0; i < bytes / 2; i++) { /* of few exponents, as KV is, with one of any now and then */
        uint32_t r = quant_random(&state);
        in[i] = (uint16_t)(r % 32 ? 0x3c00 + (r >> 8) % 0x400 : r >> 16);
    }
    double seconds_in = move_in(&m, false, in), seconds_out = move_out(&m, false, out);
    say_fine("a segment comes out as it went in", !memcmp(in, out, bytes));
    say("a segment in", (double)bytes / seconds_in / 1e9, "GB/s");
    say("a segment out", (double)bytes / seconds_out / 1e9, "GB/s");
    seconds_out = move_out(&m, true, split);
    for (int l = 0; l < layers; l++)
        gpu.ops->zero(gpu.k, KERNELS_IN, kv[l].pool, (size_t)pages * kv[l].page_bytes);
    seconds_in = move_in(&m, true, split);
    memset(out, 0, bytes);
    (void)move_out(&m, false, out);
    say_fine("a segment in planes comes out as it went in", !memcmp(in, out, bytes));
    say("a segment in, from planes", (double)bytes / seconds_in / 1e9, "GB/s");
    say("a segment out, to planes", (double)bytes / seconds_out / 1e9, "GB/s");
    kernels_close(gpu.k);
}

/* ---- sampling ---------------------------------------------------------------------------------------------------- */

static void check_pick(void)
{
    enum { PICKS = 32 };
    if (!unit_begins("pick"))
        return;
    int vocab = said.tiny ? 1000 : 151936;
    struct kernels_sizes sizes = sizes_for(PICKS, 1024, 8, 128);
    sizes.vocab = vocab;
    struct side cpu = open_side("cpu", NULL, &sizes), gpu = open_side("cuda", NULL, &sizes);
    float *logits = random_floats((size_t)PICKS * (size_t)vocab, 9);
    struct kernels_pick picks[PICKS];
    uint64_t state = 4;
    for (int i = 0; i < PICKS; i++)
        picks[i] = (struct kernels_pick){.row = i,
                                         .temperature = i % 4 ? 0.8f : 0.0f,
                                         .top_k = i % 3 ? 40 : 0,
                                         .top_p = i % 5 ? 0.95f : 1.0f,
                                         .min_p = i % 7 ? 0.0f : 0.05f,
                                         .repetition = 1.0f,
                                         .random = (double)quant_random(&state) * 0x1p-32,
                                         .odds = i % 2,
                                         .n_top = 5};
    struct kernels_picked *picked[2];
    double seconds = 1e9;
    for (int i = 0; i < 2; i++) {
        struct side s = i ? gpu : cpu;
        float *d = device_of(s, logits, (size_t)PICKS * (size_t)vocab * sizeof *logits);
        picked[i] = s.ops->alloc(s.k, KERNELS_PINNED, PICKS * sizeof **picked);
        for (int round = 0; round < 4; round++) {
            double began = now();
            s.ops->pick(s.k, d, vocab, picks, PICKS, picked[i]);
            finish(s);
            seconds = i ? fmin(seconds, now() - began) : seconds;
        }
    }
    bool fine = true;
    for (int i = 0; i < PICKS; i++) {
        const struct kernels_picked *a = &picked[0][i], *b = &picked[1][i];
        fine = fine && a->id == b->id && (!picks[i].odds || (a->mass == b->mass && !memcmp(a->top, b->top, 20)));
    }
    say_fine("sampling: the CPU's tokens", fine);
    say("sampling of 32 rows", seconds * 1e6, "us");
    free(logits);
    kernels_close(cpu.k);
    kernels_close(gpu.k);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {{"products", check_products},
                 {"attention", check_attention},
                 {"kv", check_kv},
                 {"pick", check_pick},
                 {"speed", measure_products}};
    said_options(argc, argv);
    int wanted = 0;
    for (int a = 1; a < argc; a++)
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
            if (!strcmp(argv[a], parts[i].name)) {
                parts[i].run();
                alarm(0); /* what is between two parts is no unit's */
                wanted++;
            }
    if (wanted)
        return said_done();
    fprintf(stderr, "usage: check products|attention|kv|pick|speed ... [--tiny] [--seconds N] [--from N]\n");
    return 2;
}
