/* engine_test.c - whole models on the emulated device: with exact numerics their logits, keys, values and tokens are
 * the CPU's to the bit; with the device's own they are near, and do not depend on what else is in a step. */
#include "tests/engine/engine_fixture.h"

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
#define TAIL 4 /* tokens that are run one by one: the third step of a kind is a graph's */

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

/* The CPU's logits and KV of n tokens, the device's in other chunks, and the device's of KV that the CPU made. */
static void check_exact(struct tiny_model m, int n)
{
    struct fixture f = fixture_open(m, (struct fixture_opts){0});
    struct engine *device = fixture_engine(f.path, (struct fixture_opts){.backend = "cuda", .numerics = "exact"});
    engine_token *tokens = tokens_for(&f, n);
    struct engine_seq *a = fixture_seq(f.e), *b = fixture_seq(device);
    size_t bytes = (size_t)n * (size_t)f.m.n_vocab * sizeof(float), kv_bytes, device_kv_bytes;
    float *want = run(f.e, a, &f, tokens, n, 64), *got = run(device, b, &f, tokens, n, 11);
    fixture_same(got, want, bytes, "logits");
    void *kv = fixture_export(a, 0, n, &kv_bytes), *device_kv = fixture_export(b, 0, n, &device_kv_bytes);
    assert_int_equal(kv_bytes, device_kv_bytes);
    fixture_same(device_kv, kv, kv_bytes, "keys and values");
    engine_seq_free(a);
    engine_seq_free(b);
    free(kv);
    free(device_kv);
    free(want);
    free(got);
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

/* The device's own numerics: near the CPU's, and the same in any chunks. */
static void test_device_numerics(void **state)
{
    (void)state;
    const int n = 30;
    struct tiny_model m = tiny_model_of(TINY_QWEN2);
    m.n_embd = 64;
    m.head_dim = 16;
    m.n_heads = 4;
    m.n_kv_heads = 2;
    struct fixture f = fixture_open(m, (struct fixture_opts){0});
    struct engine *device = fixture_engine(f.path, (struct fixture_opts){.backend = "cuda"});
    engine_token *tokens = tokens_for(&f, n);
    struct engine_seq *a = fixture_seq(f.e), *b = fixture_seq(device), *c = fixture_seq(device);
    size_t count = (size_t)n * (size_t)f.m.n_vocab;
    float *near = run(f.e, a, &f, tokens, n, 64), *want = run(device, b, &f, tokens, n, 26),
          *got = run(device, c, &f, tokens, n, 7);
    fixture_same(got, want, count * sizeof(float), "logits");
    for (size_t i = 0; i < count; i++)
        if (!(fabsf(got[i] - near[i]) <= 0.1f)) /* logits are up to 6; queries and weights have 8 bits */
            fail_msg("logit %zu is %g, should be near %g", i, (double)got[i], (double)near[i]);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_architectures),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_long),
        cmocka_unit_test(test_device_numerics),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
