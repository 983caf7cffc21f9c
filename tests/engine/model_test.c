/* model_test.c - what model_read() takes out of a file, and the hostile and foreign files that it refuses by name. */
#include "engine/file/file.h"
#include "engine/model/model.h"
#include "tests/engine/tiny_model.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct model_file {
    void *bytes;
    struct gguf *g;
    struct kernels *k;
    struct model m;
    int rc;
    char err[512];
};

/* Reads what the writer holds, and loads it where that says that all is well; frees the writer. */
static struct model_file open_written(struct gguf_writer *w)
{
    struct model_file f = {0};
    size_t size;
    f.bytes = gguf_writer_finish(w, &size);
    gguf_writer_free(w);
    if (gguf_open_memory(f.bytes, size, "test.gguf", &f.g, f.err, sizeof f.err) != 0 ||
        kernels_open(&(struct kernels_opts){.threads = 1}, &f.k, f.err, sizeof f.err) != 0)
        fail_msg("%s", f.err);
    struct model m; /* stays where it is until it is loaded */
    f.rc = model_read(f.g, KERNELS_KV_BF16, &m, f.err, sizeof f.err);
    if (f.rc == 0 && model_load(&m, f.g, f.k, NULL, NULL, NULL, f.err, sizeof f.err) != 0)
        fail_msg("%s", f.err);
    f.m = m;
    return f;
}

static void close_file(struct model_file *f)
{
    if (f->rc == 0)
        model_close(&f->m, f->k);
    kernels_close(f->k);
    gguf_close(f->g);
    free(f->bytes);
}

static struct gguf_writer *written(const struct tiny_model *t)
{
    struct gguf_writer *w = gguf_writer_new();
    tiny_model_write(t, w);
    return w;
}

static void expect_refusal(struct gguf_writer *w, int code, const char *part)
{
    struct model_file f = open_written(w);
    if (f.rc != code || strstr(f.err, part) == NULL || strncmp(f.err, "test.gguf: ", 11) != 0)
        fail_msg("got %d \"%s\"; wanted %d \"%s\"", f.rc, f.err, code, part);
    assert_null(f.m.layers);
    close_file(&f);
}

static void expect_opens(struct gguf_writer *w)
{
    struct model_file f = open_written(w);
    if (f.rc != 0)
        fail_msg("%s", f.err);
    close_file(&f);
}

static void test_shape(void **state)
{
    (void)state;
    for (enum tiny_arch a = 0; a < TINY_ARCHS; a++) {
        const struct tiny_model t = tiny_model_typed(a, KERNELS_Q8_0);
        const struct tiny_arch_facts *facts = &TINY_ARCH[a];
        struct model_file f = open_written(written(&t));
        const struct model *m = &f.m;
        if (f.rc != 0)
            fail_msg("%s", f.err);
        assert_int_equal(m->n_layers, t.n_layers);
        assert_int_equal(m->n_embd, t.n_embd);
        assert_int_equal(m->n_vocab, t.n_vocab);
        assert_int_equal(m->ctx_model, t.ctx);
        assert_int_equal(m->window, t.window);
        assert_int_equal(m->rope_kind, facts->pairs ? KERNELS_ROPE_PAIRS : KERNELS_ROPE_HALVES);
        assert_int_equal(m->glu, facts->gelu      ? KERNELS_GELU_TANH
                                 : facts->gpt_oss ? KERNELS_SWIGLU_CLAMPED
                                                  : KERNELS_SILU);
        double embedding = facts->embedding != 0 ? facts->embedding / facts->residual : 1;
        assert_true(m->embed_scale == (facts->scaled_embedding ? sqrtf((float)t.n_embd) : (float)embedding));
        assert_string_equal(m->quantization, "Q8_0");
        assert_ptr_equal(m->output.data == m->embed.data, t.tied);
        uint64_t values = 0;
        for (size_t i = 0; i < gguf_tensor_count(f.g); i++)
            values += gguf_tensor_at(f.g, i)->values;
        assert_int_equal(m->parameters, values);
        for (int l = 0; l < m->n_layers; l++) {
            const struct model_layer *y = &m->layers[l];
            bool window = tiny_model_windowed(&t, l);
            assert_int_equal(y->mixer, MODEL_ATTENTION);
            assert_int_equal(y->group, window ? MODEL_WINDOW : MODEL_FULL);
            assert_int_equal(y->window, window ? t.window : 0);
            assert_int_equal(y->n_heads, t.n_heads);
            assert_int_equal(y->kv.kv_heads, t.n_kv_heads);
            assert_int_equal(y->kv.head_dim, t.head_dim);
            assert_int_equal(y->n_ff, t.n_ff);
            double scale = facts->scores != 0 ? facts->scores : 1 / sqrt((double)t.head_dim);
            assert_true(fabs(y->attn_scale / scale - 1) <= 1e-7);
            assert_int_equal(y->q_bias != NULL, facts->qkv_bias);
            assert_int_equal(y->q_norm != NULL, facts->qk_norms);
            assert_int_equal(y->post_ffn_norm != NULL, facts->post_norms);
        }
        close_file(&f);
    }
}

static void test_the_27b_model_scales_attention_by_its_width(void **state)
{
    (void)state;
    struct tiny_model t = tiny_model_of(TINY_GEMMA3);
    t.n_layers = 62;
    struct model_file f = open_written(written(&t));
    assert_int_equal(f.rc, 0);
    assert_true(fabs(f.m.layers[0].attn_scale * sqrt((double)t.n_embd / t.n_heads) - 1) <= 1e-7);
    close_file(&f);
}

static void test_window_patterns(void **state)
{
    (void)state;
    const struct tiny_model t = tiny_model_of(TINY_GEMMA3);
    static const bool EACH[] = {true, false, false, true, true, true, false};
    static const struct {
        int period;
        const char *windows; /* 'w' or 'f' per layer */
    } PERIODS[] = {{0, "wwwwwww"}, {1, "fffffff"}, {2, "wfwfwfw"}, {3, "wwfwwfw"}, {-1, "wffwwwf"}};
    for (size_t i = 0; i < sizeof PERIODS / sizeof *PERIODS; i++) {
        struct gguf_writer *w = written(&t);
        if (PERIODS[i].period < 0)
            gguf_writer_bools(w, "gemma3.attention.sliding_window_pattern", EACH, 7);
        else
            gguf_writer_u32(w, "gemma3.attention.sliding_window_pattern", (uint32_t)PERIODS[i].period);
        struct model_file f = open_written(w);
        if (f.rc != 0)
            fail_msg("%s", f.err);
        for (int l = 0; l < 7; l++)
            assert_int_equal(f.m.layers[l].group == MODEL_WINDOW ? 'w' : 'f', PERIODS[i].windows[l]);
        close_file(&f);
    }
    struct gguf_writer *w = written(&t);
    gguf_writer_bools(w, "gemma3.attention.sliding_window_pattern", EACH, 6);
    expect_refusal(w, -EBADMSG, "gemma3.attention.sliding_window_pattern has 6 values for 7 layers");
    w = written(&t);
    gguf_writer_string(w, "gemma3.attention.sliding_window_pattern", "every sixth");
    expect_refusal(w, -EBADMSG, "gemma3.attention.sliding_window_pattern");
}

/* ---- keys ---- */

static void test_missing_keys(void **state)
{
    (void)state;
    static const char *const KEYS[] = {"general.architecture",
                                       "block_count",
                                       "context_length",
                                       "embedding_length",
                                       "feed_forward_length",
                                       "attention.head_count",
                                       "attention.layer_norm_rms_epsilon",
                                       "attention.sliding_window"};
    for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++) {
        struct tiny_model t = tiny_model_of(TINY_GEMMA3);
        t.omit = KEYS[i];
        expect_refusal(written(&t), -EBADMSG, KEYS[i]);
    }
}

static void test_hostile_numbers(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        double value;
        int code;
    } NUMBERS[] = {
        {"block_count", 0, -EBADMSG},
        {"block_count", 1025, -EBADMSG},
        {"block_count", 4294967295.0, -EBADMSG},
        {"context_length", 0, -EBADMSG},
        {"context_length", (1 << 24) + 1, -EBADMSG},
        {"embedding_length", 0, -EBADMSG},
        {"embedding_length", (1 << 17) + 1, -EBADMSG},
        {"feed_forward_length", 0, -EBADMSG},
        {"feed_forward_length", (1 << 20) + 1, -EBADMSG},
        {"attention.head_count", 0, -EBADMSG},
        {"attention.head_count", 1025, -EBADMSG},
        {"attention.head_count", 5, -EBADMSG},    /* not shared by 2 */
        {"attention.head_count_kv", 0, -EBADMSG}, /* division by zero */
        {"attention.head_count_kv", 4, -EBADMSG},
        {"attention.head_count_kv", 12, -EBADMSG},
        {"attention.key_length", 0, -EBADMSG},
        {"attention.key_length", 12, -ENOTSUP},
        {"attention.key_length", 257, -EBADMSG},
        {"attention.key_length", 264, -EBADMSG},
        {"attention.value_length", 24, -ENOTSUP},
        {"attention.value_length", 0, -EBADMSG},
        {"expert_count", 8, -ENOTSUP},
        {"final_logit_softcapping", 30, -ENOTSUP},
        {"attn_logit_softcapping", 50, -ENOTSUP},
    };
    for (size_t i = 0; i < sizeof NUMBERS / sizeof *NUMBERS; i++) {
        struct tiny_model t = tiny_model_of(TINY_QWEN2);
        t.omit = NUMBERS[i].key;
        struct gguf_writer *w = written(&t);
        char part[128];
        tiny_model_u32(&t, w, NUMBERS[i].key, (uint32_t)NUMBERS[i].value);
        bool pair = strstr(NUMBERS[i].key, "value_length") && NUMBERS[i].code == -ENOTSUP;
        bool shared = !strcmp(NUMBERS[i].key, "attention.head_count") && NUMBERS[i].value == 5;
        snprintf(part, sizeof part, "qwen2.%s", pair ? "attention.key_length and value_length" : NUMBERS[i].key);
        expect_refusal(w, NUMBERS[i].code, shared ? "qwen2.attention.head_count_kv" : part);
    }
    /* More heads than values. */
    struct tiny_model t = tiny_model_of(TINY_QWEN2);
    t.omit = "attention.head_count";
    t.also = "attention.head_count_kv";
    struct gguf_writer *w = written(&t);
    tiny_model_u32(&t, w, "attention.head_count", 97);
    expect_refusal(w, -EBADMSG, "qwen2.attention.head_count: 96 values");
    /* The largest number of layers: the first tensor that is not there is named. */
    t = tiny_model_of(TINY_QWEN2);
    t.omit = "block_count";
    w = written(&t);
    tiny_model_u32(&t, w, "block_count", 1024);
    expect_refusal(w, -EBADMSG, "tensor blk.3.attn_norm.weight is missing");
}

static void test_hostile_floats(void **state)
{
    (void)state;
    static const float BAD[] = {-1e-6f, 1.0f, NAN, INFINITY};
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        struct tiny_model t = tiny_model_of(TINY_LLAMA);
        t.omit = "attention.layer_norm_rms_epsilon";
        struct gguf_writer *w = written(&t);
        tiny_model_f32(&t, w, t.omit, BAD[i]);
        expect_refusal(w, -EBADMSG, "llama.attention.layer_norm_rms_epsilon");
    }
    struct tiny_model t = tiny_model_of(TINY_GEMMA3);
    struct gguf_writer *w = written(&t);
    tiny_model_f32(&t, w, "final_logit_softcapping", 30.0f);
    expect_refusal(w, -ENOTSUP, "gemma3.final_logit_softcapping");
    w = written(&t);
    tiny_model_f32(&t, w, "final_logit_softcapping", 0.0f);
    expect_opens(w);
}

/* Numbers that some architectures have, and others must not. */
static void test_caps_and_temperature(void **state)
{
    (void)state;
    struct tiny_model t = tiny_model_of(TINY_GEMMA2);
    struct model_file f = open_written(written(&t)); /* the file says nothing */
    assert_true(f.rc == 0 && f.m.attn_softcap == 50.0f && f.m.final_softcap == 30.0f && f.m.temperature == 0.0f);
    close_file(&f);
    struct gguf_writer *w = written(&t);
    tiny_model_f32(&t, w, "attn_logit_softcapping", 20.5f);
    tiny_model_f32(&t, w, "final_logit_softcapping", 0.0f);
    f = open_written(w);
    assert_true(f.rc == 0 && f.m.attn_softcap == 20.5f && f.m.final_softcap == 0.0f);
    close_file(&f);
    static const float BAD[] = {-1.0f, NAN, INFINITY, 1e7f};
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        w = written(&t);
        tiny_model_f32(&t, w, "attn_logit_softcapping", BAD[i]);
        expect_refusal(w, -EBADMSG, "gemma2.attn_logit_softcapping");
    }
    t = tiny_model_of(TINY_MISTRAL3);
    f = open_written(written(&t));
    assert_true(f.rc == 0 && f.m.temperature == 0.1f);
    close_file(&f);
    static const char *const SCALES[] = {"embedding_scale", "residual_scale", "attention.scale", "logit_scale"};
    for (size_t i = 0; i < sizeof SCALES / sizeof *SCALES; i++) {
        t = tiny_model_of(TINY_QWEN2);
        w = written(&t);
        tiny_model_f32(&t, w, SCALES[i], 0.5f);
        expect_refusal(w, -ENOTSUP, SCALES[i]);
        t = tiny_model_of(TINY_GRANITE);
        t.omit = SCALES[i];
        for (size_t b = 0; b < sizeof BAD / sizeof *BAD; b++) {
            w = written(&t);
            tiny_model_f32(&t, w, SCALES[i], BAD[b]);
            expect_refusal(w, -EBADMSG, SCALES[i]);
        }
    }
    w = written(&t); /* without the one for logits */
    f = open_written(w);
    assert_true(f.rc == 0 && f.m.logit_divisor == 0.0f && f.m.embed_scale == 48.0f);
    close_file(&f);
    t = tiny_model_of(TINY_LLAMA);
    w = written(&t);
    tiny_model_f32(&t, w, "attention.scale", 0.5f);
    f = open_written(w);
    assert_true(f.rc == 0 && f.m.layers[0].attn_scale == 0.5f);
    close_file(&f);
    w = written(&t);
    tiny_model_f32(&t, w, "attention.temperature_scale", 0.1f);
    expect_refusal(w, -ENOTSUP, "llama.attention.temperature_scale is set");
}

static void test_mixtures(void **state)
{
    (void)state;
    const struct tiny_model t = tiny_model_of(TINY_QWEN3MOE);
    struct model_file f = open_written(written(&t));
    if (f.rc != 0)
        fail_msg("%s", f.err);
    assert_int_equal(f.m.n_experts, 9);
    assert_int_equal(f.m.n_experts_used, 4);
    for (int l = 0; l < f.m.n_layers; l++) {
        const struct model_layer *y = &f.m.layers[l];
        assert_int_equal(y->ffn, MODEL_MIXTURE);
        assert_int_equal(y->n_ff, t.n_ff); /* not that of feed_forward_length */
        assert_null(y->gate.data);
        const struct kernels_matrix *down = &y->down_experts;
        assert_true(down->experts == 9 && down->rows == t.n_embd && down->cols == t.n_ff && down->data);
    }
    close_file(&f);
    static const struct {
        enum tiny_arch arch;
        const char *key;
        uint32_t value;
        int code;
        const char *part;
    } BAD[] = {
        {TINY_QWEN3MOE, "expert_count", 0, -EBADMSG, "qwen3moe.expert_count is 0"},
        {TINY_QWEN3MOE, "expert_count", 1, -EBADMSG, "qwen3moe.expert_count is 1; it must be between 2 and 1024"},
        {TINY_QWEN3MOE, "expert_count", 1025, -EBADMSG, "qwen3moe.expert_count is 1025"},
        {TINY_QWEN3MOE, "expert_count", 1u << 31, -EBADMSG, "qwen3moe.expert_count is 2147483648"},
        {TINY_QWEN3MOE, "expert_used_count", 0, -EBADMSG, "qwen3moe.expert_used_count is 0"},
        {TINY_QWEN3MOE, "expert_used_count", 10, -EBADMSG, "between 1 and the 9 experts that there are"},
        {TINY_QWEN3MOE, "expert_used_count", 1u << 31, -EBADMSG, "qwen3moe.expert_used_count is 2147483648"},
        {TINY_QWEN3MOE, "expert_count", 8, -EBADMSG, "ffn_gate_inp.weight"},
        {TINY_QWEN3MOE, "expert_feed_forward_length", 55, -EBADMSG, "ffn_gate_exps.weight"},
        {TINY_MIXTRAL, "expert_count", 0, -EBADMSG, "ffn_gate.weight is missing"},
        {TINY_LLAMA, "expert_count", 2, -EBADMSG, "llama.expert_used_count is missing"},
        {TINY_QWEN3, "expert_count", 2, -ENOTSUP, "qwen3.expert_count is set"},
    };
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        struct tiny_model m = tiny_model_of(BAD[i].arch);
        m.omit = BAD[i].key;
        struct gguf_writer *w = written(&m);
        tiny_model_u32(&m, w, BAD[i].key, BAD[i].value);
        expect_refusal(w, BAD[i].code, BAD[i].part);
    }
}

/* A window that no context reaches is none; a window of 0 where the architecture may have none, likewise. */
static void test_windows_that_are_none(void **state)
{
    (void)state;
    static const uint32_t NONE[] = {0, 1024, 262144};
    for (size_t i = 0; i < sizeof NONE / sizeof *NONE; i++) {
        struct tiny_model t = tiny_model_of(TINY_PHI3_WINDOWS);
        t.omit = "attention.sliding_window";
        struct gguf_writer *w = written(&t);
        tiny_model_u32(&t, w, t.omit, NONE[i]);
        struct model_file f = open_written(w);
        if (f.rc != 0)
            fail_msg("%s", f.err);
        assert_int_equal(f.m.window, 0);
        for (int l = 0; l < f.m.n_layers; l++)
            assert_true(f.m.layers[l].group == MODEL_FULL && f.m.layers[l].window == 0);
        close_file(&f);
    }
    struct tiny_model t = tiny_model_of(TINY_GEMMA3);
    t.omit = "attention.sliding_window";
    struct gguf_writer *w = written(&t);
    tiny_model_u32(&t, w, t.omit, 0);
    expect_refusal(w, -EBADMSG, "gemma3.attention.sliding_window is 0");
    w = written(&t);
    tiny_model_u32(&t, w, t.omit, (1 << 24) + 1);
    expect_refusal(w, -EBADMSG, "gemma3.attention.sliding_window");
}

static void test_layers_without_rotation(void **state)
{
    (void)state;
    const struct tiny_model t = tiny_model_of(TINY_SMOLLM3);
    struct model_file f = open_written(written(&t));
    assert_int_equal(f.rc, 0);
    for (int l = 0; l < t.n_layers; l++)
        assert_int_equal(f.m.layers[l].rope, l == 3 ? -1 : 0);
    close_file(&f);
    struct tiny_model none = tiny_model_of(TINY_GRANITE);
    none.unrotated = true;
    f = open_written(written(&none));
    assert_int_equal(f.rc, 0);
    for (int l = 0; l < none.n_layers; l++)
        assert_int_equal(f.m.layers[l].rope, -1);
    close_file(&f);
}

/* Keys that say what every model here does anyway may be there; what they say else is another graph. */
static void test_other_graphs(void **state)
{
    (void)state;
    static const struct {
        enum tiny_arch arch;
        const char *key;
        char type; /* b, u, f */
        double value;
        int code;
    } KEYS[] = {
        {TINY_LLAMA, "attention.causal", 'b', 1, 0},
        {TINY_LLAMA, "attention.causal", 'b', 0, -ENOTSUP},
        {TINY_LLAMA, "attention.causal", 'u', 0, -EBADMSG},
        {TINY_QWEN3MOE, "expert_gating_func", 'u', 1, 0},
        {TINY_QWEN3MOE, "expert_gating_func", 'u', 2, -ENOTSUP},
        {TINY_GPT_OSS, "expert_gating_func", 'u', 3, 0},
        {TINY_GPT_OSS, "expert_gating_func", 'u', 4, -ENOTSUP},
        {TINY_QWEN3MOE, "expert_weights_norm", 'b', 1, 0},
        {TINY_QWEN3MOE, "expert_weights_norm", 'b', 0, -ENOTSUP},
        {TINY_MIXTRAL, "expert_weights_scale", 'f', 1, 0},
        {TINY_MIXTRAL, "expert_weights_scale", 'f', 2.5, -ENOTSUP},
        {TINY_MIXTRAL, "expert_weights_scale", 'f', NAN, -ENOTSUP},
        {TINY_GRANITE, "rope.scaling.finetuned", 'b', 1, 0},
        {TINY_GRANITE, "rope.scaling.finetuned", 'f', 1, -EBADMSG},
        {TINY_LLAMA, "rope.scaling.finetuned", 'b', 0, 0}, /* says nothing there */
    };
    for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++) {
        const struct tiny_model t = tiny_model_of(KEYS[i].arch);
        struct gguf_writer *w = written(&t);
        char key[128];
        snprintf(key, sizeof key, "%s.%s", tiny_model_arch(&t), KEYS[i].key);
        if (KEYS[i].type == 'b')
            gguf_writer_bool(w, key, KEYS[i].value != 0);
        else if (KEYS[i].type == 'u')
            gguf_writer_u32(w, key, (uint32_t)KEYS[i].value);
        else
            gguf_writer_f32(w, key, (float)KEYS[i].value);
        if (KEYS[i].code == 0)
            expect_opens(w);
        else
            expect_refusal(w, KEYS[i].code, key);
    }
}

static void test_values_per_layer(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        uint32_t values[4];
        size_t n;
        int code; /* 0: opens */
    } EACH[] = {
        {"feed_forward_length", {136, 136, 136}, 3, 0},      {"feed_forward_length", {136, 0, 136}, 3, -EBADMSG},
        {"feed_forward_length", {136, 136}, 2, -EBADMSG},    {"feed_forward_length", {136, 136, 136, 136}, 4, -EBADMSG},
        {"attention.head_count", {6, 6, 6}, 3, 0},           {"attention.head_count", {6, 0, 6}, 3, -EBADMSG},
        {"attention.head_count_kv", {2, 2, 2}, 3, 0},        {"attention.head_count_kv", {2, 4, 2}, 3, -EBADMSG},
        {"attention.head_count_kv", {0, 0, 0}, 3, -EBADMSG},
    };
    for (size_t i = 0; i < sizeof EACH / sizeof *EACH; i++) {
        struct tiny_model t = tiny_model_of(TINY_QWEN2);
        t.omit = EACH[i].key;
        struct gguf_writer *w = written(&t);
        char key[128];
        snprintf(key, sizeof key, "qwen2.%s", EACH[i].key);
        gguf_writer_u32s(w, key, EACH[i].values, EACH[i].n);
        if (EACH[i].code == 0)
            expect_opens(w);
        else
            expect_refusal(w, EACH[i].code, key);
    }
}

static void test_architectures(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        size_t len;
        const char *shown;
    } NAMES[] = {
        {"mamba", 5, "'mamba'"},  {"", 0, "''"}, {"qwen2moe", 8, "'qwen2moe'"}, {"llama\0more", 10, "'llama?more'"},
        {"\x1b[2J", 4, "'?[2J'"},
    };
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        struct tiny_model t = tiny_model_of(TINY_QWEN2);
        t.omit = "general.architecture";
        struct gguf_writer *w = written(&t);
        gguf_writer_string_n(w, t.omit, NAMES[i].name, NAMES[i].len);
        expect_refusal(w, -ENOTSUP, NAMES[i].shown);
    }
    struct tiny_model t = tiny_model_of(TINY_QWEN2);
    t.omit = "general.architecture";
    struct gguf_writer *w = written(&t);
    gguf_writer_u32(w, t.omit, 1);
    expect_refusal(w, -EBADMSG, "general.architecture");
}

/* ---- tensors ---- */

/* Every tensor, left out, with a wrong shape, and with a type that it cannot have. */
static void test_missing_and_misshapen_tensors(void **state)
{
    (void)state;
    for (enum tiny_arch a = 0; a < TINY_ARCHS; a++)
        for (int i = 0;; i++) {
            struct tiny_model t = tiny_model_of(a);
            struct tiny_tensor all[TINY_MAX_TENSORS];
            if (i == tiny_model_layer(&t, t.n_layers - 1, all))
                break;
            const char *name = all[i].name;
            const struct gguf_tensor *right;
            struct model_file whole = open_written(written(&t));
            assert_non_null(right = gguf_tensor_find(whole.g, name));
            int cols = (int)right->dims[0], rows = right->n_dims == 1 ? 0 : (int)right->dims[1];
            int experts = all[i].experts;
            close_file(&whole);

            t.omit = name;
            /* One that stands for several which are missing as well. */
            bool joined = strstr(name, "attn_qkv") && strcmp(tiny_model_arch(&t), "phi3") != 0;
            expect_refusal(written(&t), -EBADMSG,
                           joined                         ? "attn_q."
                           : strstr(name, "gate_up_exps") ? "ffn_gate_exps."
                                                          : name);
            const int shapes[][2] = {{rows, cols + 1},
                                     {rows, cols - 1},
                                     {rows + 1, cols},
                                     {cols, rows ? rows : 1},
                                     {rows ? rows - 1 : 2, cols},
                                     {rows ? 0 : 1, rows ? cols * rows : cols * 2}};
            const int thick[][3] = {{experts + 1, rows, cols}, {experts - 1, rows, cols}, {experts, rows + 1, cols},
                                    {experts, rows, cols - 1}, {1, rows * experts, cols}, {rows, experts, cols}};
            for (size_t s = 0; experts && s < sizeof thick / sizeof *thick; s++) {
                struct gguf_writer *w = written(&t);
                tiny_model_experts(&t, w, name, KERNELS_F32, thick[s][0], thick[s][1], thick[s][2]);
                expect_refusal(w, -EBADMSG, name);
            }
            for (size_t s = 0; s < sizeof shapes / sizeof *shapes && !experts; s++) {
                struct gguf_writer *w = written(&t);
                tiny_model_tensor(&t, w, name, KERNELS_F32, shapes[s][0], shapes[s][1], 0);
                if (shapes[s][1] == cols && (shapes[s][0] == rows || (rows == 0 && shapes[s][0] == 1)))
                    expect_opens(w); /* a square one, turned; a vector as a matrix of one row */
                else
                    expect_refusal(w, -EBADMSG, name);
            }
            struct gguf_writer *w = written(&t);
            const uint64_t dims[] = {256, 1};
            gguf_writer_tensor_raw(w, name, 19 /* IQ1_S */, 2, dims, NULL, 50, 0);
            expect_refusal(w, -ENOTSUP, name);
            if (rows == 0) { /* vectors are floats */
                w = written(&t);
                tiny_model_tensor(&t, w, name, KERNELS_F16, 0, cols, 1);
                expect_opens(w);
                w = written(&t);
                tiny_model_tensor(&t, w, name, KERNELS_BF16, 0, cols, 1);
                expect_opens(w);
                if (cols % 32 == 0) {
                    w = written(&t);
                    tiny_model_tensor(&t, w, name, KERNELS_Q8_0, 0, cols, 0);
                    expect_refusal(w, -ENOTSUP, name);
                }
            }
        }
}

static void test_embedding_and_output(void **state)
{
    (void)state;
    struct tiny_model t = tiny_model_of(TINY_QWEN2);
    t.omit = "token_embd.weight";
    expect_refusal(written(&t), -EBADMSG, t.omit);
    struct gguf_writer *w = written(&t);
    tiny_model_tensor(&t, w, t.omit, KERNELS_F32, t.n_vocab, t.n_embd + 1, 0);
    expect_refusal(w, -EBADMSG, t.omit);
    w = written(&t);
    tiny_model_tensor(&t, w, t.omit, KERNELS_F32, t.n_vocab + 1, t.n_embd, 0);
    expect_refusal(w, -EBADMSG, "output.weight");
    w = written(&t);
    const uint64_t dims[] = {(uint64_t)t.n_embd, 3, 2};
    gguf_writer_tensor(w, t.omit, KERNELS_F32, 3, dims, NULL, (size_t)t.n_embd * 24);
    expect_refusal(w, -EBADMSG, t.omit);
    t.omit = "output.weight"; /* then it is the embedding */
    expect_opens(written(&t));
}

static void test_tensors_without_a_place(void **state)
{
    (void)state;
    const struct tiny_model t = tiny_model_of(TINY_LLAMA);
    static const char *const NAMES[] = {"blk.0.attn_q_norm.weight", "blk.2.attn_norm.weight",
                                        "blk.1.ffn_up_exps.weight", "output.bias"};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        struct gguf_writer *w = written(&t);
        tiny_model_tensor(&t, w, NAMES[i], KERNELS_F32, 0, t.n_embd, 0);
        expect_refusal(w, -ENOTSUP, NAMES[i]);
    }
    struct gguf_writer *w = written(&t); /* old files have it, and need no reader */
    tiny_model_tensor(&t, w, "blk.0.attn_rot_embd", KERNELS_F32, 0, t.head_dim / 2, 1);
    expect_opens(w);
    w = written(&t); /* biases that qwen2 must have, llama may have */
    tiny_model_tensor(&t, w, "blk.0.attn_q.bias", KERNELS_F32, 0, t.n_heads * t.head_dim, 0);
    expect_opens(w);
}

/* Norms that a file keeps in two bytes are the nearest of such numbers; what logits are divided by is in the last one.
 */
static void test_values_of_vectors(void **state)
{
    (void)state;
    static const struct {
        enum kernels_type type;
        double most; /* error, relative */
    } TYPES[] = {{KERNELS_F32, 0}, {KERNELS_F16, 0x1p-11}, {KERNELS_BF16, 0x1p-7}};
    static const char NAME[] = "blk.0.ffn_norm.weight";
    struct tiny_model t = tiny_model_of(TINY_GRANITE);
    float wanted[256];
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++) {
        t.omit = NAME;
        t.also = "output_norm.weight";
        struct gguf_writer *w = written(&t);
        tiny_model_tensor(&t, w, NAME, TYPES[i].type, 0, t.n_embd, 1);
        tiny_model_tensor(&t, w, t.also, TYPES[i].type, 0, t.n_embd, 1);
        struct model_file f = open_written(w);
        struct model m;
        assert_int_equal(model_read(f.g, KERNELS_KV_BF16, &m, f.err, sizeof f.err), 0);
        assert_int_equal(model_load(&m, f.g, f.k, NULL, NULL, NULL, f.err, sizeof f.err), 0);
        const float *norm = m.layers[0].ffn_norm;
        if (i == 0)
            memcpy(wanted, norm, (size_t)t.n_embd * sizeof *wanted);
        for (int v = 0; v < t.n_embd; v++) {
            assert_true(fabs(norm[v] - wanted[v]) <= TYPES[i].most * fabs(wanted[v]));
            assert_true(m.output_norm[v] > 0.1f && m.output_norm[v] < 0.6f); /* 0.65 to 1.35, through 3 */
        }
        model_close(&m, f.k);
        close_file(&f);
    }
}

static void note_progress(void *arg, double fraction, const char *what)
{
    double *last = arg;
    assert_true(fraction >= *last && fraction <= 1.0);
    assert_non_null(what);
    *last = fraction;
}

static void test_progress(void **state)
{
    (void)state;
    const struct tiny_model t = tiny_model_of(TINY_GEMMA3);
    struct model_file f = open_written(written(&t));
    struct model m;
    double last = 0;
    assert_int_equal(model_read(f.g, KERNELS_KV_BF16, &m, f.err, sizeof f.err), 0);
    assert_int_equal(model_load(&m, f.g, f.k, NULL, note_progress, &last, f.err, sizeof f.err), 0);
    assert_true(last == 1.0);
    model_close(&m, f.k);
    close_file(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shape),
        cmocka_unit_test(test_the_27b_model_scales_attention_by_its_width),
        cmocka_unit_test(test_window_patterns),
        cmocka_unit_test(test_missing_keys),
        cmocka_unit_test(test_hostile_numbers),
        cmocka_unit_test(test_hostile_floats),
        cmocka_unit_test(test_caps_and_temperature),
        cmocka_unit_test(test_mixtures),
        cmocka_unit_test(test_windows_that_are_none),
        cmocka_unit_test(test_layers_without_rotation),
        cmocka_unit_test(test_other_graphs),
        cmocka_unit_test(test_values_per_layer),
        cmocka_unit_test(test_architectures),
        cmocka_unit_test(test_missing_and_misshapen_tensors),
        cmocka_unit_test(test_embedding_and_output),
        cmocka_unit_test(test_tensors_without_a_place),
        cmocka_unit_test(test_values_of_vectors),
        cmocka_unit_test(test_progress),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
