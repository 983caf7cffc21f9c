/* model_rope_test.c - frequencies from the file's settings against their definitions, and settings that are refused. */
#include "engine/file/file.h"
#include "engine/model/arch.h"
#include "engine/model/elementary.h"
#include "tests/engine/reference.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct rope_file {
    struct gguf_writer *w;
    void *bytes;
    struct gguf *g;
    struct model m;
    struct model_layer layer;
};

/* What model_rope_open() says of a writer's file; the shape is the tiny model's. */
static int open_rope(const struct tiny_model *t, struct gguf_writer *w, struct rope_file *f, char *err, size_t err_size)
{
    size_t size;
    *f = (struct rope_file){.w = w, .bytes = gguf_writer_finish(w, &size)};
    if (gguf_open_memory(f->bytes, size, "test.gguf", &f->g, err, err_size) != 0)
        fail_msg("%s", err);
    f->layer.kv.head_dim = t->head_dim;
    f->m = (struct model){.arch = model_arch_find(tiny_model_arch(t), strlen(tiny_model_arch(t))),
                          .n_layers = 1,
                          .temperature = (float)tiny_facts(t)->temperature,
                          .layers = &f->layer,
                          .ctx_model = t->ctx};
    return model_rope_open(f->g, t->ctx, &f->m, err, err_size);
}

static void close_rope(struct rope_file *f)
{
    for (int i = 0; i < MODEL_ROPES; i++)
        free(f->m.rope[i].inv_freq);
    gguf_close(f->g);
    free(f->bytes);
    gguf_writer_free(f->w);
}

static void test_frequencies(void **state)
{
    (void)state;
    for (enum tiny_arch a = 0; a < TINY_ARCHS; a++)
        for (enum tiny_rope p = 0; p < TINY_ROPES; p++) {
            if (!tiny_model_has_rope(a, p))
                continue;
            struct tiny_model t = tiny_model_of(a);
            struct rope_file f;
            char err[512] = "";
            double wanted[128];
            t.rope = p;
            t.rot = t.head_dim - (p == TINY_ROPE_YARN || TINY_ARCH[a].temperature != 0 ? 0 : 2);
            struct gguf_writer *w = gguf_writer_new();
            tiny_model_write(&t, w);
            if (open_rope(&t, w, &f, err, sizeof err) != 0)
                fail_msg("%s", err);
            for (int g = 0; g < (TINY_ARCH[a].full_period ? MODEL_ROPES : 1); g++) {
                const struct model_rope *r = &f.m.rope[g];
                double magnitude = reference_frequencies(&t, g == 1, wanted);
                assert_int_equal(r->rot, t.rot);
                /* float settings: a factor of 4 and bases are exact in them */
                assert_true(fabs(r->magnitude - magnitude) <= 1e-12);
                for (int i = 0; i < t.rot / 2; i++)
                    if (!(fabs(r->inv_freq[i] / wanted[i] - 1) <= 1e-12))
                        fail_msg("%s rope %d group %d [%d]: %g, not %g", tiny_model_arch(&t), p, g, i, r->inv_freq[i],
                                 wanted[i]);
            }
            close_rope(&f);
        }
}

/* ---- settings ---- */

struct change {
    const char *omit; /* replaced key */
    const char *key;
    enum gguf_value_type type;
    double number;
    const char *text;
    int code;
    const char *part; /* of the message */
};

static int open_changed(const struct change *c, struct rope_file *f, char *err, size_t err_size)
{
    struct tiny_model t = tiny_model_of(TINY_QWEN2);
    struct gguf_writer *w = gguf_writer_new();
    char key[128];
    t.omit = c->omit;
    tiny_model_write(&t, w);
    snprintf(key, sizeof key, "qwen2.%s", c->key);
    if (c->type == GGUF_STRING)
        gguf_writer_string(w, key, c->text);
    else if (c->type == GGUF_F32)
        gguf_writer_f32(w, key, (float)c->number);
    else
        gguf_writer_u32(w, key, (uint32_t)c->number);
    if (c->type != GGUF_STRING && strncmp(c->key, "rope.scaling", 12) == 0)
        gguf_writer_string(w, "qwen2.rope.scaling.type", "yarn");
    if (strncmp(c->key, "rope.scaling", 12) == 0 && strcmp(c->key, "rope.scaling.factor") != 0)
        gguf_writer_f32(w, "qwen2.rope.scaling.factor", 2.0f);
    return open_rope(&t, w, f, err, err_size);
}

static void test_settings_that_are_refused(void **state)
{
    (void)state;
    static const struct change CHANGES[] = {
        {"rope.dimension_count", "rope.dimension_count", GGUF_U32, 0, NULL, -EBADMSG, "rope.dimension_count is 0"},
        {"rope.dimension_count", "rope.dimension_count", GGUF_U32, 15, NULL, -EBADMSG, "rope.dimension_count is 15"},
        {"rope.dimension_count", "rope.dimension_count", GGUF_U32, 18, NULL, -EBADMSG, "rope.dimension_count is 18"},
        {"rope.freq_base", "rope.freq_base", GGUF_F32, 1, NULL, -EBADMSG, "rope.freq_base"},
        {"rope.freq_base", "rope.freq_base", GGUF_F32, -5, NULL, -EBADMSG, "rope.freq_base"},
        {"rope.freq_base", "rope.freq_base", GGUF_F32, 1e16, NULL, -EBADMSG, "rope.freq_base"},
        {"rope.freq_base", "rope.freq_base", GGUF_F32, NAN, NULL, -EBADMSG, "rope.freq_base"},
        {"rope.freq_base", "rope.freq_base", GGUF_STRING, 0, "ten", -EBADMSG, "rope.freq_base"},
        {NULL, "rope.freq_base_swa", GGUF_F32, INFINITY, NULL, -EBADMSG, "rope.freq_base"},
        {NULL, "rope.scaling.type", GGUF_STRING, 0, "longrope", -ENOTSUP, "'longrope'"},
        {NULL, "rope.scaling.type", GGUF_STRING, 0, "\x1b[31mred", -ENOTSUP, "'?[31mred'"},
        {NULL, "rope.scaling.factor", GGUF_F32, -1, NULL, -EBADMSG, "rope.scaling"},
        {NULL, "rope.scaling.factor", GGUF_F32, NAN, NULL, -EBADMSG, "rope.scaling"},
        {NULL, "rope.scaling.factor", GGUF_F32, 1e7, NULL, -EBADMSG, "rope.scaling"},
        {NULL, "rope.scaling.factor", GGUF_F32, 1e-30, NULL, -EBADMSG, "frequencies are out of range"},
        {NULL, "rope.scaling.attn_factor", GGUF_F32, 0, NULL, -EBADMSG, "rope.scaling"},
        {NULL, "rope.scaling.attn_factor", GGUF_F32, 101, NULL, -EBADMSG, "rope.scaling"},
        {NULL, "rope.scaling.yarn_log_multiplier", GGUF_F32, -1, NULL, -EBADMSG, "rope.scaling"},
        {NULL, "rope.scaling.yarn_log_multiplier", GGUF_F32, NAN, NULL, -EBADMSG, "rope.scaling"},
        {NULL, "rope.scaling.yarn_beta_fast", GGUF_F32, 0.5, NULL, -EBADMSG, "rope.scaling"},
        {NULL, "rope.scaling.yarn_beta_slow", GGUF_F32, 0, NULL, -EBADMSG, "rope.scaling"},
        {NULL, "rope.scaling.original_context_length", GGUF_U32, 0, NULL, -EBADMSG, "rope.scaling"},
    };
    for (size_t i = 0; i < sizeof CHANGES / sizeof *CHANGES; i++) {
        struct rope_file f;
        char err[512] = "";
        int rc = open_changed(&CHANGES[i], &f, err, sizeof err);
        if (rc != CHANGES[i].code || strstr(err, CHANGES[i].part) == NULL || strncmp(err, "test.gguf: ", 11) != 0)
            fail_msg("%zu, %s: %d \"%s\"", i, CHANGES[i].key, rc, err);
        close_rope(&f);
    }
}

/* Within 3e-16 of the math library's, relative to 1 + |y| or to y. */
static void test_elementary_functions(void **state)
{
    (void)state;
    for (int i = -3000; i <= 3000; i++) {
        double x = exp(i * 0.0113) * (1 + (i % 7) * 0x1p-52), y = i * 0.0117;
        if (!(fabs(elementary_log(x) - log(x)) <= 3e-16 * (1 + fabs(log(x)))))
            fail_msg("log(%a) is %a", x, elementary_log(x));
        if (!(fabs(elementary_exp(y) / exp(y) - 1) <= 5e-16))
            fail_msg("exp(%a) is %a", y, elementary_exp(y));
    }
    assert_true(elementary_log(1) == 0 && elementary_exp(0) == 1);
}

/* A table of queries scales whole heads. */
static void test_temperature_wants_whole_heads(void **state)
{
    (void)state;
    struct tiny_model t = tiny_model_of(TINY_MISTRAL3);
    struct rope_file f;
    char err[512] = "";
    t.rot -= 2;
    struct gguf_writer *w = gguf_writer_new();
    tiny_model_write(&t, w);
    assert_int_equal(open_rope(&t, w, &f, err, sizeof err), -ENOTSUP);
    assert_non_null(strstr(err, "mistral3.rope.dimension_count is 22"));
    close_rope(&f);
}

static void test_settings_that_mean_no_scaling(void **state)
{
    (void)state;
    static const struct change CHANGES[] = {
        {NULL, "rope.scaling.type", GGUF_STRING, 0, "none", 0, NULL},
        {NULL, "rope.scaling.factor", GGUF_F32, 0, NULL, 0, NULL},
        {NULL, "rope.scaling.factor", GGUF_F32, 1, NULL, 0, NULL},
        {NULL, "rope.scale_linear", GGUF_F32, 1, NULL, 0, NULL},
    };
    double wanted[128];
    const struct tiny_model t = tiny_model_of(TINY_QWEN2);
    reference_frequencies(&t, false, wanted);
    for (size_t i = 0; i < sizeof CHANGES / sizeof *CHANGES; i++) {
        struct rope_file f;
        char err[512] = "";
        if (open_changed(&CHANGES[i], &f, err, sizeof err) != 0)
            fail_msg("%zu: %s", i, err);
        for (int j = 0; j < t.rot / 2; j++)
            assert_true(fabs(f.m.rope[0].inv_freq[j] / wanted[j] - 1) <= 1e-12);
        assert_true(f.m.rope[0].magnitude == 1.0);
        close_rope(&f);
    }
}

/* By what YaRN's factor on cosine and sine is divided, the file says, whatever the architecture; 0 is nothing. */
static void test_yarn_factor(void **state)
{
    (void)state;
    static const float MULTIPLIERS[] = {NAN, 0, 0.5f, 1, 2}; /* NaN: the key is not there */
    for (size_t i = 0; i < sizeof MULTIPLIERS / sizeof *MULTIPLIERS; i++)
        for (int ministral = 0; ministral < 2; ministral++) {
            struct tiny_model t = tiny_model_of(ministral ? TINY_MISTRAL3 : TINY_QWEN3);
            struct rope_file f;
            char err[512] = "";
            double factor = 0.1 * log(TINY_ROPE_FACTOR);
            t.rope = TINY_ROPE_YARN;
            t.omit = "rope.scaling.yarn_log_multiplier";
            struct gguf_writer *w = gguf_writer_new();
            tiny_model_write(&t, w);
            if (!isnan(MULTIPLIERS[i]))
                tiny_model_f32(&t, w, t.omit, MULTIPLIERS[i]);
            if (open_rope(&t, w, &f, err, sizeof err) != 0)
                fail_msg("%s", err);
            double wanted = (1 + factor) / (isnan(MULTIPLIERS[i]) ? 1 : 1 + (double)MULTIPLIERS[i] * factor);
            assert_true(fabs(f.m.rope[0].magnitude - wanted) <= 1e-12);
            close_rope(&f);
        }
}

static void test_divisors_that_are_refused(void **state)
{
    (void)state;
    static const struct {
        int n;
        float bad;
        enum kernels_type type;
    } FILES[] = {{7, 1, KERNELS_F32},   {9, 1, KERNELS_F32},        {8, 0, KERNELS_F32}, {8, -1, KERNELS_F32},
                 {8, NAN, KERNELS_F32}, {8, INFINITY, KERNELS_F32}, {8, 1, KERNELS_F16}};
    for (size_t i = 0; i < sizeof FILES / sizeof *FILES; i++) {
        const struct tiny_model t = tiny_model_of(TINY_QWEN2); /* 16 dimensions */
        struct gguf_writer *w = gguf_writer_new();
        struct rope_file f;
        char err[512] = "";
        float values[16] = {1, 1, 1, 1, 1, FILES[i].bad, 1, 1, 1};
        tiny_model_write(&t, w);
        const uint64_t dims[] = {(uint64_t)FILES[i].n};
        gguf_writer_tensor(w, "rope_freqs.weight", FILES[i].type, 1, dims, values,
                           dims[0] * (FILES[i].type == KERNELS_F32 ? 4 : 2));
        if (open_rope(&t, w, &f, err, sizeof err) != -EBADMSG || strstr(err, "rope_freqs.weight") == NULL)
            fail_msg("%zu: \"%s\"", i, err);
        close_rope(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frequencies),
        cmocka_unit_test(test_settings_that_are_refused),
        cmocka_unit_test(test_temperature_wants_whole_heads),
        cmocka_unit_test(test_settings_that_mean_no_scaling),
        cmocka_unit_test(test_yarn_factor),
        cmocka_unit_test(test_divisors_that_are_refused),
        cmocka_unit_test(test_elementary_functions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
