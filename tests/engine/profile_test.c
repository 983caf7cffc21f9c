/* profile_test.c - the profile of a step: which operations there are, what they move and compute on paper, and that it
 * leaves nothing behind. */
#include "engine/model/model.h"
#include "tests/engine/engine_fixture.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static const struct engine_profile_row *row(const struct engine_profile *p, const char *name)
{
    for (int i = 0; i < p->n_rows; i++)
        if (strcmp(p->rows[i].name, name) == 0)
            return &p->rows[i];
    return NULL;
}

static void test_counts(void **state)
{
    (void)state;
    for (int arch = 0; arch < TINY_ARCHS; arch++) {
        struct tiny_model m = tiny_model_of((enum tiny_arch)arch);
        struct fixture f = fixture_open(m, (struct fixture_opts){.ctx_tokens = 400});
        const struct kernels_ops *ops = f.e->ops;
        struct engine_profile p;
        int layers = f.e->model.n_layers;
        assert_int_equal(engine_profile(f.e, 3, 5, 300, &p), 0);
        assert_ptr_equal(f.e->ops, ops);
        assert_int_equal(row(&p, "embed")->calls, 1);
        assert_int_equal(row(&p, "q, k, v")->calls, layers);
        assert_int_equal(row(&p, "attention")->calls, layers);
        assert_int_equal(row(&p, "logits")->calls, 1);
        assert_int_equal(row(&p, "pick")->calls, 1);
        assert_true((row(&p, "experts") != NULL) == (m.n_experts > 0) && (row(&p, "down") != NULL) == !m.n_experts);
        double ms = 0, logits = 2.0 * 3 * m.n_vocab * m.n_embd;
        for (int i = 0; i < p.n_rows; i++) {
            assert_true(p.rows[i].calls > 0 && p.rows[i].ms > 0 && p.rows[i].bytes > 0);
            ms += p.rows[i].ms;
        }
        assert_true(p.whole_ms > 0 && ms > 0 && p.ms >= ms * 0.999 && p.ms <= ms * 1.001);
        assert_true(row(&p, "logits")->operations == logits);
        /* Fifteen rows at positions 300 to 304, or as far as a window reaches; each sequence's KV is read once. */
        double pairs = 0, positions = 0, heads = 0, bytes = 0;
        for (int l = 0; l < layers; l++) {
            const struct model_layer *y = &f.e->model.layers[l];
            int out = y->n_heads * y->kv.head_dim, w = y->window;
            pairs = w ? 15.0 * w : 3.0 * (301 + 302 + 303 + 304 + 305);
            positions = 3.0 * (w ? w + 4 : 305);
            heads += 4 * pairs * out;
            bytes += positions * 2 * 2 * y->kv.kv_heads * y->kv.head_dim + 8.0 * 15 * out;
        }
        assert_true(row(&p, "attention")->operations == heads && row(&p, "attention")->bytes == bytes);
        fixture_close(&f); /* which looks whether all pages came back */
    }
}

static void test_refusals(void **state)
{
    (void)state;
    struct fixture f =
        fixture_open(tiny_model_of(TINY_QWEN2), (struct fixture_opts){.ctx_tokens = 400, .step_tokens = 40});
    struct engine_profile p;
    static const int bad[][3] = {{0, 1, 0}, {1, 0, 0}, {1, 1, -1}, {1, 41, 0}, {41, 1, 0}, {1, 1, 400}, {65, 1, 0}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(engine_profile(f.e, bad[i][0], bad[i][1], bad[i][2], &p), -EINVAL);
    assert_int_equal(engine_profile(f.e, 1, 40, 360, &p), 0);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_counts), cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
