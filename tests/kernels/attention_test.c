/* attention_test.c - attention over pages against float64, and bit for bit: between instruction sets, chunks, workers,
 * batches, and with what a query cannot see replaced by NaN or dropped. */
#include "tests/kernels/rows_support.h"

#include <stdio.h>

/* |out - reference| / (1 + |reference|); values are about 1. The reference reads the rounded keys and values. Measured:
 * 3.3e-6 over all shapes, where scores are up to about 30. */
#define TOLERANCE 1e-5

enum { PAGE = KERNELS_PAGE_TOKENS, MAX_RUNS = 4 };

struct shape {
    int heads, kv_heads, head_dim;
    enum kernels_kv_type type;
    int window;
    float softcap;
    int tokens;
    bool sinks;
};

/* The specification makes each once, and is slow: no larger than it takes to cross blocks, pages and windows. */
static const struct shape shapes[] = {
    {7, 1, 64, KERNELS_KV_BF16, 0, 0, 270, false},   {3, 1, 256, KERNELS_KV_BF16, 40, 0, 290, false},
    {2, 2, 80, KERNELS_KV_F16, 0, 0, 260, false},    {4, 2, 96, KERNELS_KV_BF16, 0, 30.0f, 130, false},
    {1, 1, 128, KERNELS_KV_F16, 270, 0, 530, false}, {5, 1, 40, KERNELS_KV_BF16, 17, 5.0f, 150, false},
    {2, 2, 16, KERNELS_KV_BF16, 1, 0, 70, false},    {1, 1, 72, KERNELS_KV_F16, 256, 0, 300, false},
    {10, 1, 32, KERNELS_KV_BF16, 0, 0, 257, false},  {130, 1, 16, KERNELS_KV_BF16, 0, 0, 30, false},
    {2, 1, 32, KERNELS_KV_BF16, 512, 0, 800, false}, {4, 2, 64, KERNELS_KV_BF16, 0, 0, 530, true},
    {3, 3, 40, KERNELS_KV_F16, 40, 0, 290, true},    {4, 1, 48, KERNELS_KV_F16, 0, 20.0f, 540, false},
    {5, 1, 32, KERNELS_KV_BF16, 300, 0, 600, true},
};
#define SHAPE_COUNT (sizeof shapes / sizeof shapes[0])

/* Scores of sinks: above and below those of keys. */
static const float SINKS[128] = {12.5f, -3.0f, 0.25f, -100.0f};

static const char *const backends[] = {"cpu-portable", "cpu-avx2", "cpu-avx512"};

/* ---- a sequence and its pages ------------------------------------------------------------------------------------ */

struct sequence {
    struct shape shape;
    float *q, *key, *value; /* [tokens][heads or kv_heads][head_dim] */
    float *want;            /* what the specification gives, one token at a time */
};

struct store {
    struct kernels_kv kv;
    int32_t *ids;
    struct kernels_pages pages;
};

static size_t q_row(const struct shape *s)
{
    return (size_t)(s->heads * s->head_dim);
}

static size_t kv_row(const struct shape *s)
{
    return (size_t)(s->kv_heads * s->head_dim);
}

static float scale_of(const struct shape *s)
{
    return 1.0f / sqrtf((float)s->head_dim);
}

/* All slots NaN, page ids backwards with a gap. */
static struct store store_open(const struct shape *s)
{
    int n = (s->tokens + PAGE - 1) / PAGE + 1;
    size_t half = (kv_row(s) * PAGE * 2 + 63) / 64 * 64;
    struct store st = {.kv = {s->type, 0, s->kv_heads, s->head_dim, NULL, 2 * half + 128, 64, 128 + half}};
    st.kv.pool = aligned_alloc(64, (size_t)(n + 1) * st.kv.page_bytes);
    assert_non_null(st.kv.pool);
    memset(st.kv.pool, 0xff, (size_t)(n + 1) * st.kv.page_bytes);
    st.ids = rows_calloc((size_t)n, sizeof(*st.ids));
    for (int i = 0; i < n; i++)
        st.ids[i] = n - i;
    st.pages = (struct kernels_pages){st.ids, n};
    return st;
}

static void store_close(struct store *st)
{
    free(st->kv.pool);
    free(st->ids);
}

static struct kernels *open_for(const struct shape *s, const char *backend, int threads)
{
    struct kernels *k = rows_open(backend, threads);
    if (k)
        rows_reserve(k, s->tokens * MAX_RUNS, 64, s->heads, s->head_dim);
    return k;
}

static void attend(struct kernels *k, const struct sequence *q, const struct store *st, const float *query, int rows,
                   const struct kernels_run *runs, int n_runs, float *out)
{
    const struct kernels_attention a = {.q = query,
                                        .heads = q->shape.heads,
                                        .scale = scale_of(&q->shape),
                                        .window = q->shape.window,
                                        .softcap = q->shape.softcap,
                                        .sinks = q->shape.sinks ? SINKS : NULL,
                                        .kv = st->kv};
    const struct kernels_batch batch = {.rows = rows, .runs = runs, .n_runs = n_runs};
    const struct kernels_acts acts = {.x = out, .cols = q->shape.heads * q->shape.head_dim, .forms = KERNELS_FLOATS};
    kernels_ops(k)->begin(k, &batch);
    kernels_ops(k)->attention(k, &a, &acts);
    kernels_ops(k)->end(k);
}

/* The whole sequence in chunks, each written and then attended: later slots hold NaN all the while. */
static void run_chunks(struct kernels *k, const struct sequence *q, int chunk, float *out)
{
    const struct shape *s = &q->shape;
    struct store st = store_open(s);
    for (int pos = 0; pos < s->tokens; pos += chunk) {
        int n = s->tokens - pos < chunk ? s->tokens - pos : chunk;
        struct kernels_run run = rows_run(0, n, pos, (struct kernels_pages){st.ids, (pos + n + PAGE - 1) / PAGE});
        rows_kv_write(k, &st.kv, q->key + (size_t)pos * kv_row(s), q->value + (size_t)pos * kv_row(s), &run, 1);
        attend(k, q, &st, q->q + (size_t)pos * q_row(s), n, &run, 1, out + (size_t)pos * q_row(s));
    }
    store_close(&st);
}

static void reference_row(const struct sequence *q, int pos, int head, double *out)
{
    const struct shape *s = &q->shape;
    int dim = s->head_dim, kv_head = head / (s->heads / s->kv_heads);
    int first = s->window > 0 && pos - s->window + 1 > 0 ? pos - s->window + 1 : 0;
    double *p = rows_calloc((size_t)pos + 1, sizeof(double)), top = -INFINITY, sum = 0;
    for (int t = first; t <= pos; t++) {
        const float *key = q->key + (size_t)t * kv_row(s) + (size_t)(kv_head * dim);
        for (int d = 0; d < dim; d++)
            p[t] += (double)kernels_widen_one(s->type, kernels_narrow_one(s->type, key[d])) *
                    (double)q->q[(size_t)pos * q_row(s) + (size_t)(head * dim + d)];
        p[t] *= (double)scale_of(s);
        if (s->softcap > 0)
            p[t] = (double)s->softcap * tanh(p[t] / (double)s->softcap);
        top = p[t] > top ? p[t] : top;
    }
    memset(out, 0, (size_t)dim * sizeof(*out));
    if (s->sinks) {
        top = (double)SINKS[head] > top ? (double)SINKS[head] : top;
        sum = exp((double)SINKS[head] - top);
    }
    for (int t = first; t <= pos; t++) {
        const float *value = q->value + (size_t)t * kv_row(s) + (size_t)(kv_head * dim);
        double e = exp(p[t] - top);
        sum += e;
        for (int d = 0; d < dim; d++)
            out[d] += e * (double)kernels_widen_one(s->type, kernels_narrow_one(s->type, value[d]));
    }
    for (int d = 0; d < dim; d++)
        out[d] /= sum;
    free(p);
}

static struct sequence sequence_open(const struct shape *s)
{
    struct sequence q = {.shape = *s};
    size_t rows = (size_t)s->tokens;
    q.q = rows_calloc(rows * q_row(s), sizeof(float));
    q.want = rows_calloc(rows * q_row(s), sizeof(float));
    q.key = rows_calloc(rows * kv_row(s), sizeof(float));
    q.value = rows_calloc(rows * kv_row(s), sizeof(float));
    uint64_t seed = 11 + (uint64_t)s->head_dim;
    rows_fill(&seed, q.q, rows * q_row(s), 2.0f);
    rows_fill(&seed, q.key, rows * kv_row(s), 1.0f);
    rows_fill(&seed, q.value, rows * kv_row(s), 1.0f);
    struct kernels *k = open_for(s, "cpu-portable", 1);
    run_chunks(k, &q, 1, q.want);
    kernels_close(k);
    return q;
}

static void sequence_close(struct sequence *q)
{
    free(q->q);
    free(q->key);
    free(q->value);
    free(q->want);
}

/* One sequence per shape, made once: group state. */
static int setup(void **state)
{
    struct sequence *all = rows_calloc(SHAPE_COUNT, sizeof(*all));
    for (size_t i = 0; i < SHAPE_COUNT; i++)
        all[i] = sequence_open(&shapes[i]);
    *state = all;
    return 0;
}

static int teardown(void **state)
{
    struct sequence *all = *state;
    for (size_t i = 0; i < SHAPE_COUNT; i++)
        sequence_close(&all[i]);
    free(all);
    return 0;
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static void test_reference(void **state)
{
    double worst = 0, want[256];
    for (size_t i = 0; i < SHAPE_COUNT; i++) {
        struct sequence q = ((struct sequence *)*state)[i];
        const struct shape *s = &q.shape;
        for (int pos = 0; pos < s->tokens; pos += 1 + pos / 20) {
            for (int h = 0; h < s->heads; h++) {
                reference_row(&q, pos, h, want);
                double e =
                    rows_error(q.want + (size_t)pos * q_row(s) + (size_t)(h * s->head_dim), want, (size_t)s->head_dim);
                rows_assert_error("attention", e, TOLERANCE);
                worst = e > worst ? e : worst;
            }
        }
    }
    print_message("attention: greatest error %.2g\n", worst);
}

static void test_chunks_sets_workers(void **state)
{
    for (size_t i = 0; i < SHAPE_COUNT; i++) {
        struct sequence q = ((struct sequence *)*state)[i];
        size_t total = (size_t)q.shape.tokens * q_row(&q.shape);
        float *out = rows_calloc(total, sizeof(float));
        for (int b = 0; b < 3; b++) {
            for (int threads = 1; threads <= 3; threads++) {
                struct kernels *k = open_for(&q.shape, backends[b], threads);
                const int chunks[] = {1, 7, 64, q.shape.tokens};
                for (int c = 0; k && c < 4; c++) {
                    if (b == 0 &&
                        (threads < 2 || c != 2 * threads - 3)) /* workers 2 and chunks of 7, workers 3 and all */
                        continue;
                    char what[96];
                    snprintf(what, sizeof(what), "shape %zu, %s, %d workers, chunks of %d", i, backends[b], threads,
                             chunks[c]);
                    memset(out, 0, total * sizeof(float));
                    run_chunks(k, &q, chunks[c], out);
                    rows_assert_bits(what, out, q.want, total);
                }
                kernels_close(k);
            }
        }
        free(out);
    }
}

/* One batch of several runs of different lengths and positions: each as if it were alone. */
static void check_runs(const struct sequence *q, const char *backend, int threads)
{
    const struct shape *s = &q->shape;
    struct kernels *k = open_for(s, backend, threads);
    if (!k)
        return;
    struct store st = store_open(s);
    struct kernels_run whole = rows_run(0, s->tokens, 0, st.pages);
    rows_kv_write(k, &st.kv, q->key, q->value, &whole, 1);
    const struct {
        int pos, n;
    } batches[3][MAX_RUNS] = {{{s->tokens - 1, 1}, {5, 1}, {0, 1}, {s->tokens / 2, 1}},
                              {{3, 20}, {s->tokens - 9, 9}, {0, 2}, {s->tokens / 2, 1}},
                              {{0, s->tokens}, {s->tokens - 1, 1}, {1, s->tokens - 1}, {21, 5}}};
    for (int b = 0; b < (strcmp(backend, "cpu-portable") ? 3 : 2); b++) {
        struct kernels_run runs[MAX_RUNS];
        int rows = 0;
        for (int r = 0; r < MAX_RUNS; r++) {
            runs[r] = rows_run(rows, batches[b][r].n, batches[b][r].pos, st.pages);
            rows += batches[b][r].n;
        }
        float *x = rows_calloc((size_t)rows * q_row(s), sizeof(float));
        float *out = rows_calloc((size_t)rows * q_row(s), sizeof(float));
        for (int r = 0; r < MAX_RUNS; r++)
            memcpy(x + (size_t)runs[r].first_row * q_row(s), q->q + (size_t)runs[r].pos * q_row(s),
                   (size_t)runs[r].n * q_row(s) * sizeof(float));
        attend(k, q, &st, x, rows, runs, MAX_RUNS, out);
        for (int r = 0; r < MAX_RUNS; r++)
            rows_assert_bits(backend, out + (size_t)runs[r].first_row * q_row(s),
                             q->want + (size_t)runs[r].pos * q_row(s), (size_t)runs[r].n * q_row(s));
        free(x);
        free(out);
    }
    store_close(&st);
    kernels_close(k);
}

static void test_beside_others(void **state)
{
    for (size_t i = 0; i < SHAPE_COUNT; i++) {
        struct sequence q = ((struct sequence *)*state)[i];
        check_runs(&q, backends[0], 2);
        for (int b = 1; b < 3; b++)
            for (int threads = 1; threads <= 3; threads++)
                check_runs(&q, backends[b], threads);
    }
}

/* Pages that a window has left behind may be dropped, or hold anything, and the result is the same. */
static void test_dropped_pages(void **state)
{
    for (size_t i = 0; i < SHAPE_COUNT; i++) {
        if (shapes[i].window == 0)
            continue;
        struct sequence q = ((struct sequence *)*state)[i];
        const struct shape *s = &q.shape;
        float *out = rows_calloc((size_t)s->tokens * q_row(s), sizeof(float));
        for (int b = 0; b < 3; b++) {
            struct kernels *k = open_for(s, backends[b], 3);
            if (!k)
                continue;
            struct store st = store_open(s);
            struct kernels_run run = rows_run(0, s->tokens, 0, st.pages);
            rows_kv_write(k, &st.kv, q.key, q.value, &run, 1);
            for (int pos = 0; pos < s->tokens; pos += 13) {
                int n = s->tokens - pos < 13 ? s->tokens - pos : 13;
                for (int p = 0; (p + 1) * PAGE <= pos - s->window + 1; p++)
                    st.ids[p] = -1;
                run = rows_run(0, n, pos, st.pages);
                attend(k, &q, &st, q.q + (size_t)pos * q_row(s), n, &run, 1, out);
                rows_assert_bits(backends[b], out, q.want + (size_t)pos * q_row(s), (size_t)n * q_row(s));
            }
            store_close(&st);
            kernels_close(k);
        }
        free(out);
    }
}

/* Out to the canonical layout and back into other pages: the same bits. */
static void test_export_import(void **state)
{
    for (size_t i = 0; i < SHAPE_COUNT; i++) {
        struct sequence q = ((struct sequence *)*state)[i];
        const struct shape *s = &q.shape;
        struct kernels *k = open_for(s, "cpu", 2);
        struct store a = store_open(s), b = store_open(s);
        int n = s->tokens;
        struct kernels_run run = rows_run(0, n, 0, a.pages);
        rows_kv_write(k, &a.kv, q.key, q.value, &run, 1);
        uint16_t *keys = rows_calloc(kv_row(s) * (size_t)n, 2), *values = rows_calloc(kv_row(s) * (size_t)n, 2);
        for (int first = 0, part = 11; first < n; first += part, part = part * 2 + 1) {
            part = n - first < part ? n - first : part;
            kernels_kv_export_layer(&a.kv, a.pages, first, part, keys, values);
            kernels_kv_import_layer(&b.kv, b.pages, first, part, keys, values);
        }
        float *out = rows_calloc((size_t)n * q_row(s), sizeof(float));
        run.pages[0] = b.pages;
        attend(k, &q, &b, q.q, n, &run, 1, out);
        rows_assert_bits("restored", out, q.want, (size_t)n * q_row(s));
        free(out);
        free(keys);
        free(values);
        store_close(&a);
        store_close(&b);
        kernels_close(k);
    }
}

/* A NaN in a query is that query's alone; a NaN key or value reaches the queries that see it and no other. */
static void test_nan(void **state)
{
    (void)state;
    const struct shape s = {4, 2, 64, KERNELS_KV_BF16, 60, 0, 200, true};
    struct sequence q = sequence_open(&s);
    size_t row = q_row(&s), dim = (size_t)s.head_dim;
    float *out = rows_calloc((size_t)s.tokens * row, sizeof(float));
    for (int kind = 0; kind < 3; kind++) {
        float *at = kind == 0 ? q.q + 100 * row + 5 : (kind == 1 ? q.key : q.value) + 100 * kv_row(&s) + 5, kept = *at;
        *at = NAN;
        for (int b = 0; b < 3; b++) {
            struct kernels *k = open_for(&s, backends[b], 2);
            if (!k)
                continue;
            run_chunks(k, &q, b == 0 ? 200 : 50, out);
            kernels_close(k);
            for (int pos = 0; pos < s.tokens; pos++) {
                for (size_t c = 0; c < row; c++) {
                    size_t head = c / dim, d = c % dim;
                    bool sees = kind == 0 ? pos == 100 && head == 0 : pos >= 100 && pos < 160 && head < 2;
                    bool want_nan = sees && (kind < 2 || d == 5);
                    float got = out[(size_t)pos * row + c], clean = q.want[(size_t)pos * row + c];
                    if (want_nan ? !isnan(got) : !(got == clean))
                        fail_msg("%s, kind %d, position %d, channel %zu: %g", backends[b], kind, pos, c, (double)got);
                }
            }
        }
        *at = kept;
    }
    free(out);
    sequence_close(&q);
}

/* Without any page the answer is NaN, and nothing is read. */
static void test_no_pages(void **state)
{
    (void)state;
    const struct shape s = {2, 1, 16, KERNELS_KV_BF16, 0, 0, 300, true};
    struct sequence q = sequence_open(&s);
    float out[32];
    for (int threads = 1; threads <= 3; threads++) {
        struct kernels *k = open_for(&s, "cpu", threads);
        struct store st = store_open(&s);
        struct kernels_run run = rows_run(0, 1, 299, (struct kernels_pages){st.ids, 0});
        attend(k, &q, &st, q.q, 1, &run, 1, out);
        for (int i = 0; i < 32; i++)
            assert_true(isnan(out[i]));
        store_close(&st);
        kernels_close(k);
    }
    sequence_close(&q);
}

/* More blocks than one split wave keeps results for: many heads, one row, and several waves. */
static void test_waves(void **state)
{
    (void)state;
    const struct shape s = {128, 1, 16, KERNELS_KV_BF16, 0, 0, 9000, true};
    const struct shape few = {4, 1, 16, KERNELS_KV_BF16, 0, 0, 9000, true};
    struct kernels *one = open_for(&s, "cpu", 1), *three = open_for(&s, "cpu", 3);
    struct sequence q = {.shape = s};
    struct store st = store_open(&s);
    size_t rows = (size_t)s.tokens;
    q.q = rows_calloc(q_row(&s), sizeof(float));
    q.key = rows_calloc(rows * kv_row(&s), sizeof(float));
    q.value = rows_calloc(rows * kv_row(&s), sizeof(float));
    uint64_t seed = 12;
    rows_fill(&seed, q.q, q_row(&s), 2.0f);
    rows_fill(&seed, q.key, rows * kv_row(&s), 1.0f);
    rows_fill(&seed, q.value, rows * kv_row(&s), 1.0f);
    struct kernels_run run = rows_run(0, s.tokens, 0, st.pages);
    rows_kv_write(one, &st.kv, q.key, q.value, &run, 1);
    float a[128 * 16], b[128 * 16];
    for (int pos = 8999; pos > 7000; pos -= 700) {
        run = rows_run(0, 1, pos, st.pages);
        q.shape = s;
        attend(one, &q, &st, q.q, 1, &run, 1, a);
        attend(three, &q, &st, q.q, 1, &run, 1, b);
        rows_assert_bits("waves", b, a, 128 * 16);
        q.shape = few;
        attend(three, &q, &st, q.q, 1, &run, 1, b);
        rows_assert_bits("one wave", b, a, 4 * 16);
    }
    kernels_close(one);
    kernels_close(three);
    store_close(&st);
    free(q.q);
    free(q.key);
    free(q.value);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference),     cmocka_unit_test(test_chunks_sets_workers),
        cmocka_unit_test(test_beside_others), cmocka_unit_test(test_dropped_pages),
        cmocka_unit_test(test_export_import), cmocka_unit_test(test_nan),
        cmocka_unit_test(test_no_pages),      cmocka_unit_test(test_waves),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
