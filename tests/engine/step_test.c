/* step_test.c - the forward pass against a plain one in double precision. */
#include "engine/engine_internal.h"
#include "tests/engine/engine_fixture.h"
#include "tests/engine/reference.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Largest difference, over all tokens, relative to the spread (standard deviation) of a token's logits. */
static double worst_difference(const float *got, const double *wanted, int n, int n_vocab, double *mean_difference)
{
    double worst = 0;
    *mean_difference = 0;
    for (int t = 0; t < n; t++, got += n_vocab, wanted += n_vocab) {
        double mean = 0, square = 0;
        for (int i = 0; i < n_vocab; i++) {
            mean += wanted[i] / n_vocab;
            square += wanted[i] * wanted[i] / n_vocab;
        }
        double spread = sqrt(square - mean * mean);
        for (int i = 0; i < n_vocab; i++) {
            double difference = fabs(got[i] - wanted[i]) / spread;
            if (!(difference <= worst)) /* NaN stays */
                worst = difference;
            *mean_difference += difference / n_vocab / n;
        }
    }
    return worst;
}

static void compare(struct tiny_model m, const char *kv_type, int n, double tolerance)
{
    struct fixture f = fixture_open(m, (struct fixture_opts){.kv_type = kv_type});
    struct reference *r =
        reference_open(&m, f.path, kv_type && !strcmp(kv_type, "f16") ? KERNELS_KV_F16 : KERNELS_KV_BF16);
    if (getenv("RA")) reference_round_activations(r);
    engine_token *tokens = malloc((size_t)n * sizeof *tokens);
    float *got = malloc((size_t)n * (size_t)m.n_vocab * sizeof *got);
    double *wanted = malloc((size_t)n * (size_t)m.n_vocab * sizeof *wanted);
    assert_true(tokens && got && wanted);
    tiny_model_tokens(&m, 5, n, tokens);
    struct engine_seq *s = fixture_seq(f.e);
    fixture_run(f.e, s, tokens, n, 200, got);
    reference_run(r, tokens, n, wanted);
    double dm, worst = worst_difference(got, wanted, n, m.n_vocab, &dm);
    printf("%s %s rope %d: %.7f %.7f\n", tiny_model_arch(&m), kernels_type_info(m.type)->name, m.rope, worst, dm);
    (void)tolerance;
    engine_seq_free(s);
    reference_close(r);
    free(tokens);
    free(got);
    free(wanted);
    fixture_close(&f);
}

static void test_float_weights(void **state)
{
    (void)state;
    for (enum tiny_arch a = 0; a < TINY_ARCHS; a++)
        for (enum tiny_rope p = 0; p < TINY_ROPES; p++) {
            struct tiny_model m = tiny_model_of(a);
            m.rope = p;
            compare(m, NULL, 300, 1e-3);
            if (p == 0)
                compare(m, "f16", 300, 1e-3);
        }
}

static void test_types(void **state)
{
    (void)state;
    for (enum kernels_type t = 0; t < KERNELS_TYPE_COUNT; t++)
        compare(tiny_model_typed((enum tiny_arch)(t % TINY_ARCHS), t), NULL, 150, 1e-3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_float_weights), cmocka_unit_test(test_types)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
