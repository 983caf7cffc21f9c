/* engine_test.c - whole models on the emulated device: under exact numerics their logits, keys and values are the CPU's
 * to the bit, and KV goes from one to the other; none depend on what else is in a step. */
#include "tests/engine/engine_fixture.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>

#include <cmocka.h>

#ifdef __SANITIZE_ADDRESS__
#define ARCH_STEP 5 /* slow: a few will do */
#else
#define ARCH_STEP 1
#endif
#define NEAR 0.08 /* random weights make much of it */
#define TAIL 4    /* tokens that are run one by one: the third step of a kind is a graph's */

static engine_token *tokens_for(const struct fixture *f, int n)
{
    engine_token *tokens = malloc((size_t)n * sizeof *tokens);
    assert_non_null(tokens);
    for (int i = 0; i < n; i++)
        tokens[i] = (i * 7919 + 13) % f->m.n_vocab;
    return tokens;
}

static float *run(struct engine *e, struct engine_seq *s, const struct fixture *f, const engine_token *tokens, int n,
                  int chunk)
{
    size_t vocab = (size_t)f->m.n_vocab;
    float *logits = malloc((size_t)n * vocab * sizeof *logits);
    assert_non_null(logits);
    fixture_run(e, s, tokens, n - TAIL, chunk, logits);
    fixture_run(e, s, tokens + n - TAIL, TAIL, 1, logits + (size_t)(n - TAIL) * vocab);
    return logits;
}

/* The difference, as a whole, is within a share of what there is. */
static void assert_near(const float *got, const float *want, size_t n, double share)
{
    double difference = 0.0, all = 0.0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)got[i] - (double)want[i];
        difference += d * d;
        all += (double)want[i] * (double)want[i];
    }
    if (!(difference <= share * share * all)) /* a NaN is not near */
        fail_msg("logits differ by %g of what there is, which is more than %g", sqrt(difference / all), share);
}

/* The CPU's logits and KV of n tokens, and the device's in other chunks; and those of the last tokens behind KV that
 * the CPU made. */
static void check_exact(struct tiny_model m, int n)
{
    struct fixture f = fixture_open(m, (struct fixture_opts){0});
    struct engine *device = fixture_engine(f.path, (struct fixture_opts){.backend = "cuda", .numerics = "exact"});
    engine_token *tokens = tokens_for(&f, n);
    assert_memory_equal(engine_info(device)->kv_identity, engine_info(f.e)->kv_identity,
                        sizeof engine_info(f.e)->kv_identity);
    assert_string_equal(engine_info(device)->numerics, engine_info(f.e)->numerics);
    struct engine_seq *a = fixture_seq(f.e), *b = fixture_seq(device), *c = fixture_seq(device);
    size_t row = (size_t)f.m.n_vocab * sizeof(float), kv_bytes, got_kv_bytes;
    float *want = run(f.e, a, &f, tokens, n, 64), *got = run(device, b, &f, tokens, n, 11);
    fixture_same(got, want, (size_t)n * row, "logits");
    void *kv = fixture_export(a, 0, n, &kv_bytes), *got_kv = fixture_export(b, 0, n, &got_kv_bytes);
    assert_int_equal(got_kv_bytes, kv_bytes);
    fixture_same(got_kv, kv, kv_bytes, "keys and values");
    free(kv);
    kv = fixture_export(a, 0, n - TAIL, &kv_bytes);
    assert_int_equal(engine_kv_import(c, tokens, n - TAIL, kv), 0);
    fixture_run(device, c, tokens + n - TAIL, TAIL, 1, got);
    fixture_same(got, want + (size_t)(n - TAIL) * (size_t)f.m.n_vocab, TAIL * row, "logits behind the CPU's KV");
    engine_seq_free(a);
    engine_seq_free(b);
    engine_seq_free(c);
    free(want);
    free(got);
    free(kv);
    free(got_kv);
    free(tokens);
    engine_close(device);
    fixture_close(&f);
}

static void test_architectures(void **state)
{
    (void)state;
    for (int arch = 0; arch < TINY_ARCHS; arch += ARCH_STEP)
        check_exact(tiny_model_of((enum tiny_arch)arch), 24);
}

static void test_types(void **state)
{
    (void)state;
    static const enum kernels_type types[] = {KERNELS_Q4_K, KERNELS_Q6_K, KERNELS_Q8_0, KERNELS_BF16};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct tiny_model m = tiny_model_of(TINY_QWEN2);
        m.type = types[i];
        m.n_embd = m.n_ff = 256;
        m.head_dim = 64;
        m.n_heads = 4;
        m.n_kv_heads = 2;
        check_exact(m, 20);
    }
}

/* More than a canonical block. */
static void test_long(void **state)
{
    (void)state;
    struct tiny_model m = tiny_model_of(TINY_GEMMA3);
    m.n_layers = 2;
    check_exact(m, 262);
}

/* The device's own numerics: near the CPU's, and the same in any chunks. 16-bit weights have a kernel for many rows. */
static void check_device(enum kernels_type type, int n, int chunk)
{
    struct tiny_model m = tiny_model_of(TINY_QWEN2);
    m.type = type;
    m.n_embd = 64;
    m.head_dim = 16;
    m.n_heads = 4;
    m.n_kv_heads = 2;
    struct fixture f = fixture_open(m, (struct fixture_opts){0});
    struct engine *device = fixture_engine(f.path, (struct fixture_opts){.backend = "cuda"});
    /* The name that KV is stored with: in full, and the same with cuBLASLt as without. */
    assert_string_equal(engine_info(device)->numerics, "3 cuda device 1 sm_90");
    assert_string_equal(engine_info(device)->backend,
                        type == KERNELS_BF16 || type == KERNELS_F16 ? "cuda_host+cublaslt" : "cuda_host");
    engine_token *tokens = tokens_for(&f, n);
    struct engine_seq *a = fixture_seq(f.e), *b = fixture_seq(device), *c = fixture_seq(device);
    size_t count = (size_t)n * (size_t)f.m.n_vocab;
    float *near = run(f.e, a, &f, tokens, n, 64), *want = run(device, b, &f, tokens, n, chunk),
          *got = run(device, c, &f, tokens, n, 7);
    fixture_same(got, want, count * sizeof(float), "logits");
    assert_near(got, near, count, NEAR); /* queries and weights have 8 bits */
    engine_seq_free(a);
    engine_seq_free(b);
    engine_seq_free(c);
    free(near);
    free(want);
    free(got);
    free(tokens);
    engine_close(device);
    fixture_close(&f);
}

static void test_device_numerics(void **state)
{
    (void)state;
    check_device(tiny_model_of(TINY_QWEN2).type, 30, 26);
    check_device(KERNELS_BF16, 90, 70);
    check_device(KERNELS_F16, 30, 26);
}

/* ---- weights in the host's memory ---- */

static const struct engine_profile_row *row_of(const struct engine_profile *p, const char *name)
{
    for (int i = 0; i < p->n_rows; i++)
        if (!strcmp(p->rows[i].name, name))
            return &p->rows[i];
    return NULL;
}

/* Steps bring them, in any chunks and from graphs, and compute the same bits; pages get the room. */
static void test_host_layers(void **state)
{
    (void)state;
    enum { TOKENS = 80 };
    static const enum tiny_arch archs[] = {TINY_QWEN2, TINY_PHI3, TINY_QWEN3MOE};
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
        struct fixture f = fixture_open(tiny_model_of(archs[i]), (struct fixture_opts){.host_layers = 2});
        assert_int_equal(engine_info(f.e)->host_layers, 0); /* a processor has them there anyway */
        engine_token *tokens = tokens_for(&f, TOKENS);
        struct engine_seq *a = fixture_seq(f.e);
        float *want = run(f.e, a, &f, tokens, TOKENS, 64);
        engine_seq_free(a);
        uint64_t last = 0;
        for (int layers = 1; layers < 100; layers += 97) {
            struct engine *device = fixture_engine(
                f.path, (struct fixture_opts){.backend = "cuda", .numerics = "exact", .host_layers = layers});
            const struct engine_info *info = engine_info(device);
            int there = layers < info->n_layers ? layers : info->n_layers;
            assert_int_equal(info->host_layers, there);
            assert_true(info->host_bytes > last && info->host_bytes < info->weight_bytes && info->host_ms > 0);
            last = info->host_bytes;
            struct engine_seq *b = fixture_seq(device);
            float *got = run(device, b, &f, tokens, TOKENS, 70);
            fixture_same(got, want, (size_t)TOKENS * (size_t)f.m.n_vocab * sizeof *got, "logits");
            engine_seq_free(b);
            struct engine_profile p;
            assert_int_equal(engine_profile(device, 1, 70, 0, &p), 0);
            assert_int_equal(row_of(&p, "weights brought")->calls, there);
            engine_close(device);
            free(got);
        }
        free(want);
        free(tokens);
        fixture_close(&f);
    }
}

/* ---- its memory ---- */

#define DEVICE_BYTES ((size_t)1 << 30) /* of the emulated one */

static int open_with(const char *path, double fraction, size_t kv_bytes, int host_layers, struct engine **out,
                     char *err, size_t err_size)
{
    const struct engine_opts opts = {.model_path = path,
                                     .backend = "cuda",
                                     .device_fraction = fraction,
                                     .kv_bytes = kv_bytes,
                                     .host_layers = host_layers,
                                     .threads = 1,
                                     .step_tokens = 16};
    *err = '\0';
    return engine_open(&opts, out, err, err_size);
}

/* KV goes out in the split form and comes in again; buffers are a bounded pool, and given back. */
static void test_split_form(void **state)
{
    (void)state;
    enum { TOKENS = 90, FIRST = 7, N = TOKENS - FIRST, MOST = 64 };
    struct tiny_model m = tiny_model_of(TINY_GEMMA3); /* layers of two groups */
    struct fixture f = fixture_open(m, (struct fixture_opts){0});
    assert_null(engine_kv_buffer(f.e, N)); /* the CPU has none */
    engine_kv_buffer_release(NULL);
    struct engine *e = fixture_engine(f.path, (struct fixture_opts){.backend = "cuda"});
    engine_token *tokens = tokens_for(&f, TOKENS);
    struct engine_seq *a = fixture_seq(e), *b = fixture_seq(e);
    free(run(e, a, &f, tokens, TOKENS, 64));
    void *buffers[MOST];
    int n = 0;
    while (n < MOST && (buffers[n] = engine_kv_buffer(e, N)))
        n++;
    assert_in_range(n, 2, MOST - 1);
    engine_kv_buffer_release(buffers[0]);
    assert_ptr_equal(engine_kv_buffer(e, N), buffers[0]);
    for (int i = 1; i < n; i++)
        engine_kv_buffer_release(buffers[i]);
    assert_null(engine_kv_buffer(e, 0));
    assert_int_equal(engine_kv_export_split(a, FIRST, N + 1, buffers[0]), -ERANGE);
    assert_int_equal(engine_kv_export_split(a, FIRST, N, buffers[0]), 0);
    free(run(e, b, &f, tokens, FIRST, 64));
    assert_int_equal(engine_kv_import_split(b, tokens + FIRST, 0, buffers[0]), -EINVAL);
    assert_int_equal(engine_kv_import_split(b, tokens + FIRST, N, buffers[0]), 0);
    size_t bytes, other;
    void *want = fixture_export(a, 0, TOKENS, &bytes), *got = fixture_export(b, 0, TOKENS, &other);
    assert_int_equal(bytes, other);
    fixture_same(got, want, bytes, "keys and values by way of planes");
    for (n = 0; n < MOST && (buffers[n] = engine_kv_buffer(e, N)); n++)
        ; /* all are there again */
    assert_in_range(n, 2, MOST - 1);
    free(want);
    free(got);
    free(tokens);
    engine_seq_free(a);
    engine_seq_free(b);
    engine_close(e);
    fixture_close(&f);
}

/* With less and less of the device there is no room for pages, and then for weights; what is told says what to change.
 */
static void test_fraction(void **state)
{
    (void)state;
    struct tiny_model m = tiny_model_of(TINY_QWEN2);
    char *path = tiny_model_save(&m), err[512];
    struct engine *e;
    assert_int_equal(open_with(path, 0.1, 0, 0, &e, err, sizeof err), 0);
    size_t used = engine_info(e)->kv_bytes;
    assert_in_range(used, DEVICE_BYTES / 20, DEVICE_BYTES / 10);
    engine_close(e);
    assert_int_equal(open_with(path, 0.1, 0, 3, &e, err, sizeof err), 0);
    assert_true(engine_info(e)->kv_bytes > used);
    engine_close(e);
    assert_int_equal(open_with(path, 0.1, DEVICE_BYTES / 8, 0, &e, err, sizeof err), -ENOMEM);
    assert_non_null(strstr(err, "lower kv-bytes or raise gpu-memory-fraction"));
    bool no_page = false, no_weights = false;
    size_t taken = DEVICE_BYTES / 10 - used; /* by all but pages */
    for (size_t share = taken + (64 << 10); !no_weights && share > 4096; share -= 4096) {
        int rc = open_with(path, (double)share / (double)DEVICE_BYTES, 0, 0, &e, err, sizeof err);
        if (rc == 0) {
            engine_close(e);
            assert_false(no_page);
        } else if (strstr(err, "too few for KV pages")) {
            no_page = true;
        } else {
            assert_int_equal(rc, -ENOMEM);
            assert_non_null(strstr(err, "or raise gpu-memory-fraction"));
            no_weights = true;
        }
    }
    assert_true(no_page && no_weights);
    tiny_model_remove(path);
}

/* The second takes of what the first has left. */
static void test_two_on_one_device(void **state)
{
    (void)state;
    struct tiny_model m = tiny_model_of(TINY_QWEN2);
    char *path = tiny_model_save(&m), err[512];
    struct engine *a, *b, *c;
    assert_int_equal(open_with(path, 0.5, 0, 0, &a, err, sizeof err), 0);
    assert_int_equal(open_with(path, 0.75, 0, 0, &b, err, sizeof err), 0);
    assert_true(engine_info(a)->kv_bytes > engine_info(b)->kv_bytes);
    assert_true(engine_info(a)->kv_bytes + engine_info(b)->kv_bytes < DEVICE_BYTES);
    assert_int_equal(open_with(path, 0.5, 0, 0, &c, err, sizeof err), -ENOMEM);
    assert_non_null(strstr(err, "memory are available"));
    engine_close(a);
    assert_int_equal(open_with(path, 0.25, 0, 0, &a, err, sizeof err), 0);
    engine_close(a);
    engine_close(b);
    tiny_model_remove(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_architectures),     cmocka_unit_test(test_types),       cmocka_unit_test(test_long),
        cmocka_unit_test(test_device_numerics),   cmocka_unit_test(test_split_form),  cmocka_unit_test(test_fraction),
        cmocka_unit_test(test_two_on_one_device), cmocka_unit_test(test_host_layers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
