/* fingerprint_test.c - what a fingerprint depends on. */
#include "engine/model/model.h"
#include "kernels/backend.h"
#include "tests/engine/engine_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* ---- what it depends on ---- */

struct print {
    uint8_t bytes[32];
};

static struct print print_of(struct tiny_model m, struct fixture_opts o)
{
    struct print p;
    struct fixture f = fixture_open(m, o);
    memcpy(p.bytes, engine_info(f.e)->kv_identity, 32);
    fixture_close(&f);
    return p;
}

static bool same(struct print a, struct print b)
{
    return memcmp(a.bytes, b.bytes, 32) == 0;
}

static void test_what_it_depends_on(void **state)
{
    (void)state;
    const struct tiny_model m = tiny_model_of(TINY_QWEN2);
    const struct fixture_opts none = {0};
    const struct print first = print_of(m, none);
    assert_true(same(first, print_of(m, none))); /* another file, the same bytes */
    struct fixture f = fixture_open(m, none);
    assert_string_equal(engine_info(f.e)->numerics, "3 cpu"); /* of any instruction set */
    fixture_close(&f);
    assert_true(same(first, print_of(m, (struct fixture_opts){.backend = "auto", .threads = 2})));
    assert_true(same(first, print_of(m, (struct fixture_opts){.ctx_tokens = 77, .kv_bytes = 1 << 20})));
    assert_true(same(first, print_of(m, (struct fixture_opts){.step_tokens = 9, .kv_type = "bf16"})));
    assert_false(same(first, print_of(m, (struct fixture_opts){.kv_type = "f16"})));
    struct tiny_model other = m;
    other.seed++;
    assert_false(same(first, print_of(other, none)));
    other = m;
    other.rope_base *= 2;
    assert_false(same(first, print_of(other, none)));
    for (enum tiny_rope p = TINY_ROPE_LINEAR; p < TINY_ROPES; p++) {
        other = m;
        if (!tiny_model_has_rope(other.arch, p))
            continue;
        other.rope = p;
        assert_false(same(first, print_of(other, none)));
    }
}

/* Settings that change rows count by themselves, whatever the file's hash is. */
static void test_every_setting_counts_alone(void **state)
{
    (void)state;
    double freq[2][2] = {{1.0, 0.01}, {1.0, 0.02}};
    struct engine base = {.info.kv_type = "bf16"};
    struct model_layer layers[3] = {0}, heads[3], dims[3], last[3], unrotated[3];
    for (int l = 0; l < 3; l++)
        layers[l].kv = (struct kernels_kv){.kv_heads = 2, .head_dim = 8};
    memcpy(heads, layers, sizeof layers);
    memcpy(dims, layers, sizeof layers);
    memcpy(last, layers, sizeof layers);
    memcpy(unrotated, layers, sizeof layers);
    heads[0].kv.kv_heads = heads[1].kv.kv_heads = 1;
    dims[0].kv.head_dim = dims[1].kv.head_dim = 16;
    last[1].kv.head_dim = 16;
    unrotated[0].rope = unrotated[1].rope = -1;
    base.model = (struct model){.n_layers = 2, .layers = layers};
    for (int g = 0; g < MODEL_ROPES; g++)
        base.model.rope[g] = (struct model_rope){.rot = 4, .inv_freq = freq[g], .magnitude = 1};
    struct print seen[32];
    int n = 0;
#define VARIANT(change)                                                                                                \
    do {                                                                                                               \
        struct engine e = base;                                                                                        \
        change;                                                                                                        \
        assert_int_equal(fingerprint_engine(&e), 0);                                                                   \
        memcpy(seen[n].bytes, e.info.kv_identity, 32);                                                                 \
        for (int i = 0; i < n; i++)                                                                                    \
            assert_false(same(seen[i], seen[n]));                                                                      \
        n++;                                                                                                           \
    } while (0)
    double changed[2] = {1.0, 0.010001};
    VARIANT((void)e);
    VARIANT(e.info.model_sha256[31] = 1);
    VARIANT(e.info.kv_type = "f16");
    VARIANT(e.model.n_layers = 3);
    VARIANT(e.model.layers = heads);
    VARIANT(e.model.layers = dims);
    VARIANT(e.model.layers = last);
    VARIANT(e.model.layers = unrotated);
    VARIANT(e.model.rope[0].inv_freq = changed);
    VARIANT(e.model.rope[1].inv_freq = changed);
    VARIANT(e.model.rope[0].magnitude = 1.1);
    VARIANT(e.model.rope[0].rot = 2);
}

/* Stored KV names its numerics in full. */
static void test_the_longest_name_of_numerics(void **state)
{
    (void)state;
    struct model_layer layer = {.kv = {.kv_heads = 2, .head_dim = 8}};
    struct kernels_head backend = {.numerics = "cuda device 1 sm_120"};
    struct engine e = {.info.kv_type = "bf16", .kernels = (struct kernels *)&backend};
    double freq[2] = {1.0, 0.01};
    assert_int_equal(strlen(backend.numerics) + 1, KERNELS_NUMERICS_TEXT);
    e.model = (struct model){.n_layers = 1, .layers = &layer};
    for (int g = 0; g < MODEL_ROPES; g++)
        e.model.rope[g] = (struct model_rope){.rot = 4, .inv_freq = freq, .magnitude = 1};
    assert_int_equal(fingerprint_engine(&e), 0);
    assert_string_equal(e.info.numerics, "3 cuda device 1 sm_120");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_it_depends_on),
        cmocka_unit_test(test_every_setting_counts_alone),
        cmocka_unit_test(test_the_longest_name_of_numerics),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
