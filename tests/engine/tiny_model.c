/* tiny_model.c - see tiny_model.h. */
#include "tests/engine/tiny_model.h"

#include "tests/engine/tiny_vocab.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint64_t mix(uint64_t z)
{
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint64_t name_seed(const struct tiny_model *m, const char *name)
{
    uint64_t h = mix(m->seed);
    for (; *name; name++)
        h = mix(h ^ (unsigned char)*name);
    return h;
}

/* In [-1, 1). */
static float uniform(uint64_t seed, size_t i)
{
    return (float)((double)(mix(seed + i * 0x632be59bd9b4e019u) >> 40) / (double)(1 << 23) - 1.0);
}

/* ---- the architectures ---- */

#define SIZES(layers, heads, kv, dim, base, ...)                                                                       \
    {                                                                                                                  \
        .n_layers = layers, .n_heads = heads, .n_kv_heads = kv, .head_dim = dim, .rope_base = base, __VA_ARGS__        \
    }

const struct tiny_arch_facts TINY_ARCH[TINY_ARCHS] = {
    [TINY_QWEN2] = {.name = "qwen2", .qkv_bias = true, .sizes = SIZES(3, 6, 2, 16, 1e6f, )},
    [TINY_LLAMA] = {.name = "llama", .pairs = true, .sizes = SIZES(2, 4, 4, 24, 10000.0f, )},
    [TINY_GEMMA3] = {.name = "gemma3",
                     .gelu = true,
                     .scaled_embedding = true,
                     .qk_norms = true,
                     .post_norms = true,
                     .full_period = 6, /* five local layers, then a global one */
                     .window_base = 10000,
                     .sizes = SIZES(7, 4, 1, 40, 1e6f, .window = 45, .tied = true)},
    [TINY_QWEN3] = {.name = "qwen3", .qk_norms = true, .sizes = SIZES(3, 4, 2, 40, 1e6f, .tied = true)},
    [TINY_GEMMA2] = {.name = "gemma2",
                     .gelu = true,
                     .scaled_embedding = true,
                     .post_norms = true,
                     .full_period = 2,
                     .attn_cap = 50,
                     .final_cap = 30,
                     .sizes = SIZES(4, 4, 2, 24, 10000.0f, .window = 45, .tied = true)},
    [TINY_PHI3] = {.name = "phi3",
                   .joined_qkv = true,
                   .joined = true,
                   .long_rope = true,
                   .sizes = SIZES(3, 6, 2, 16, 10000.0f, )},
    [TINY_PHI3_WINDOWS] = {.name = "phi3",
                           .joined_qkv = true,
                           .joined = true,
                           .long_rope = true,
                           .full_period = -1,
                           .sizes = SIZES(3, 4, 4, 24, 10000.0f, .window = 77)},
    [TINY_MISTRAL3] = {.name = "mistral3",
                       .pairs = true,
                       .temperature = 0.1,
                       .plain_yarn = true,
                       .sizes = SIZES(3, 4, 2, 24, 1e6f, .tied = true)},
    [TINY_SMOLLM3] = {.name = "smollm3",
                      .pairs = true,
                      .unrotated_period = 4,
                      .sizes = SIZES(5, 4, 1, 24, 2e6f, .tied = true)},
    [TINY_MIXTRAL] = {.name = "llama", .pairs = true, .sizes = SIZES(3, 4, 2, 24, 1e6f, .n_experts = 5, .n_used = 2)},
    [TINY_QWEN3MOE] = {.name = "qwen3moe",
                       .qk_norms = true,
                       .expert_key = true,
                       .sizes = SIZES(3, 4, 1, 40, 1e6f, .n_experts = 9, .n_used = 4, .n_ff = 56)},
    [TINY_GPT_OSS] = {.name = "gpt-oss",
                      .qkv_bias = true,
                      .full_period = 2,
                      .gpt_oss = true,
                      .expert_key = true,
                      .sizes = SIZES(4, 4, 2, 24, 150000.0f, .window = 45, .n_experts = 6, .n_used = 3, .n_ff = 56)},
    [TINY_GRANITE] = {.name = "granite",
                      .pairs = true,
                      .embedding = 12,
                      .residual = 0.25,
                      .scores = 0.3,
                      .logits = 3,
                      .sizes = SIZES(3, 6, 2, 16, 10000.0f, .tied = true)},
    [TINY_QWEN2_JOINED] = {.name = "qwen2", .qkv_bias = true, .joined_qkv = true, .sizes = SIZES(3, 6, 2, 16, 1e6f, )},
    [TINY_QWEN3MOE_JOINED] = {.name = "qwen3moe",
                              .qk_norms = true,
                              .expert_key = true,
                              .joined_experts = true,
                              .sizes = SIZES(3, 4, 1, 40, 1e6f, .n_experts = 9, .n_used = 4, .n_ff = 56)},
};

const struct tiny_arch_facts *tiny_facts(const struct tiny_model *m)
{
    return &TINY_ARCH[m->arch];
}

bool tiny_model_windowed(const struct tiny_model *m, int layer)
{
    int period = tiny_facts(m)->full_period;
    return period < 0 || (period && layer % period != period - 1);
}

bool tiny_model_has_rope(enum tiny_arch arch, enum tiny_rope rope)
{
    bool long_rope = TINY_ARCH[arch].long_rope;
    return rope == TINY_ROPE_LONG ? long_rope : rope != TINY_ROPE_DIVISORS || !long_rope;
}

struct tiny_model tiny_model_of(enum tiny_arch arch)
{
    struct tiny_model m = TINY_ARCH[arch].sizes;
    m.arch = arch;
    m.type = KERNELS_F32;
    m.n_embd = 96;
    m.n_ff = m.n_ff ? m.n_ff : 136;
    m.n_vocab = TINY_TOKENS + 5;
    m.ctx = 1024;
    m.rot = m.head_dim;
    m.seed = 7;
    return m;
}

struct tiny_model tiny_model_typed(enum tiny_arch arch, enum kernels_type type)
{
    struct tiny_model m = tiny_model_of(arch);
    m.type = type;
    int block = kernels_type_info(type)->block_values;
    if (block > 32) { /* rows of attn_output and ffn_down too */
        m.n_embd = 256;
        m.n_ff = 512;
        m.head_dim = m.rot = 64;
        m.n_heads = 4;
        m.n_kv_heads = m.n_kv_heads < 2 ? 1 : 2;
    } else if (block > 1) {
        m.n_ff = (m.n_ff + 31) / 32 * 32;
    }
    return m;
}

const char *tiny_model_arch(const struct tiny_model *m)
{
    return tiny_facts(m)->name;
}

static bool omitted(const struct tiny_model *m, const char *name)
{
    return (m->omit && !strcmp(m->omit, name)) || (m->also && !strcmp(m->also, name));
}

static const char *full_key(const struct tiny_model *m, const char *key, char out[128])
{
    snprintf(out, 128, "%s.%s", tiny_model_arch(m), key);
    return out;
}

void tiny_model_u32(const struct tiny_model *m, struct gguf_writer *w, const char *key, uint32_t value)
{
    char full[128];
    gguf_writer_u32(w, full_key(m, key, full), value);
}

void tiny_model_f32(const struct tiny_model *m, struct gguf_writer *w, const char *key, float value)
{
    char full[128];
    gguf_writer_f32(w, full_key(m, key, full), value);
}

static void maybe_u32(const struct tiny_model *m, struct gguf_writer *w, const char *key, uint32_t value)
{
    if (!omitted(m, key))
        tiny_model_u32(m, w, key, value);
}

static void maybe_f32(const struct tiny_model *m, struct gguf_writer *w, const char *key, float value)
{
    if (!omitted(m, key))
        tiny_model_f32(m, w, key, value);
}

/* ---- weights ---- */

double tiny_model_round_half(double v)
{
    int e;
    frexp(v, &e);
    double step = ldexp(1, e - 11 > -24 ? e - 11 : -24);
    return nearbyint(v / step) * step;
}

uint16_t tiny_model_half(double v)
{
    int e;
    double a = fabs(tiny_model_round_half(v));
    frexp(a, &e);
    unsigned bits =
        a < 0x1p-14 ? (unsigned)ldexp(a, 24) : ((unsigned)(e + 14) << 10) + (unsigned)ldexp(a, 11 - e) - 1024;
    return (uint16_t)(bits | (v < 0 ? 0x8000u : 0));
}

static void put_half(uint8_t *at, float v)
{
    uint16_t h = tiny_model_half(v);
    memcpy(at, &h, 2);
}

/* One block of a quantized type with random bits, and scales that make its values spread about `spread` around 0. */
static void fill_block(enum kernels_type type, uint64_t seed, float spread, uint8_t *out)
{
    int bytes = kernels_type_info(type)->block_bytes;
    for (int i = 0; i < bytes; i++)
        out[i] = (uint8_t)(mix(seed + (uint64_t)i) >> 20);
    float scale = spread * (1.0f + 0.5f * uniform(seed, 999));
    switch (type) {
    case KERNELS_Q8_0:
        put_half(out, scale / 74);
        break;
    case KERNELS_Q4_0:
        put_half(out, scale / 4.6f);
        break;
    case KERNELS_Q4_1:
        put_half(out, scale / 4.6f);
        put_half(out + 2, -7.5f * scale / 4.6f);
        break;
    case KERNELS_Q5_0:
        put_half(out, scale / 9.2f);
        break;
    case KERNELS_Q5_1:
        put_half(out, scale / 9.2f);
        put_half(out + 2, -15.5f * scale / 9.2f);
        break;
    case KERNELS_Q4_K:
        put_half(out, scale / (31.5f * 4.6f));
        put_half(out + 2, 7.5f * scale / (31.5f * 4.6f));
        break;
    case KERNELS_Q5_K:
        put_half(out, scale / (31.5f * 9.2f));
        put_half(out + 2, 15.5f * scale / (31.5f * 9.2f));
        break;
    case KERNELS_Q2_K: /* values 0..3, scales and minima up to 15 */
        put_half(out + 80, scale / (7.5f * 1.1f));
        put_half(out + 82, 1.5f * scale / (7.5f * 1.1f));
        break;
    case KERNELS_Q3_K: /* values -4..3, scales -32..31 */
        put_half(out + 108, scale / (18.4f * 2.3f));
        break;
    case KERNELS_IQ4_NL:
        put_half(out, scale / 68);
        break;
    case KERNELS_IQ4_XS:
        put_half(out, scale / (68 * 18.4f));
        break;
    case KERNELS_MXFP4: /* a power of two */
        out[0] = (uint8_t)(128 + (int)lrintf(log2f(scale / 6)));
        break;
    case KERNELS_Q6_K:
        put_half(out + 208, scale / (74.0f * 18.4f));
        break;
    default:
        abort();
    }
}

static size_t file_bytes(enum kernels_type type, size_t values)
{
    const struct kernels_type_info *info = kernels_type_info(type);
    return values / (size_t)info->block_values * (size_t)info->block_bytes;
}

static void fill(enum kernels_type type, uint64_t seed, size_t values, float center, float spread, uint8_t *out)
{
    const struct kernels_type_info *info = kernels_type_info(type);
    if (info->block_values > 1) {
        for (size_t b = 0; b < values / (size_t)info->block_values; b++)
            fill_block(type, mix(seed + b), spread, out + b * (size_t)info->block_bytes);
        return;
    }
    for (size_t i = 0; i < values; i++) {
        float v = center + spread * 1.73f * uniform(seed, i);
        uint32_t bits;
        memcpy(&bits, &v, 4);
        if (type == KERNELS_F32) {
            memcpy(out + 4 * i, &v, 4);
        } else if (type == KERNELS_F16) {
            put_half(out + 2 * i, v);
        } else {
            uint16_t high = (uint16_t)(bits >> 16);
            memcpy(out + 2 * i, &high, 2);
        }
    }
}

void tiny_model_tensor(const struct tiny_model *m, struct gguf_writer *w, const char *name, enum kernels_type type,
                       int rows, int cols, float center)
{
    size_t values = (size_t)cols * (size_t)(rows ? rows : 1), bytes = file_bytes(type, values);
    uint8_t *data = malloc(bytes);
    if (data == NULL)
        abort();
    fill(type, name_seed(m, name), values, center, rows ? 1.5f / sqrtf((float)cols) : 0.2f, data);
    const uint64_t dims[2] = {(uint64_t)cols, (uint64_t)rows};
    gguf_writer_tensor(w, name, type, rows ? 2 : 1, dims, data, bytes);
    free(data);
}

void tiny_model_experts(const struct tiny_model *m, struct gguf_writer *w, const char *name, enum kernels_type type,
                        int experts, int rows, int cols)
{
    size_t values = (size_t)cols * (size_t)rows * (size_t)experts, bytes = file_bytes(type, values);
    uint8_t *data = malloc(bytes);
    if (data == NULL)
        abort();
    fill(type, name_seed(m, name), values, 0, 1.5f / sqrtf((float)cols), data);
    const uint64_t dims[3] = {(uint64_t)cols, (uint64_t)rows, (uint64_t)experts};
    gguf_writer_tensor(w, name, type, 3, dims, data, bytes);
    free(data);
}

/* What files keep in floats whatever their type is. */
static bool float_tensor(const char *name)
{
    return strstr(name, "gate_inp") != NULL || strstr(name, ".bias") != NULL;
}

static void maybe_tensor(const struct tiny_model *m, struct gguf_writer *w, const char *name, int rows, int cols,
                         float center)
{
    if (!omitted(m, name))
        tiny_model_tensor(m, w, name, rows && !float_tensor(name) ? m->type : KERNELS_F32, rows, cols, center);
}

float tiny_model_divisor(int i)
{
    return i < 2 ? 1.0f : 1.0f + 1.75f * (float)i;
}

int tiny_model_layer(const struct tiny_model *m, int layer, struct tiny_tensor out[TINY_MAX_TENSORS])
{
    const struct tiny_arch_facts *a = tiny_facts(m);
    int q = m->n_heads * m->head_dim, kv = m->n_kv_heads * m->head_dim, n = 0;
    bool experts = m->n_experts > 0;
    const struct {
        const char *name;
        bool written;
        int rows, cols;
        float center;
    } tensors[] = {
        {"attn_norm.weight", true, 0, m->n_embd, 1},
        {"attn_q.weight", !a->joined_qkv, q, m->n_embd, 0},
        {"attn_k.weight", !a->joined_qkv, kv, m->n_embd, 0},
        {"attn_v.weight", !a->joined_qkv, kv, m->n_embd, 0},
        {"attn_qkv.weight", a->joined_qkv, q + 2 * kv, m->n_embd, 0},
        {"attn_q.bias", a->qkv_bias && !a->joined_qkv, 0, q, 0},
        {"attn_k.bias", a->qkv_bias && !a->joined_qkv, 0, kv, 0.1f},
        {"attn_v.bias", a->qkv_bias && !a->joined_qkv, 0, kv, -0.1f},
        {"attn_qkv.bias", a->qkv_bias && a->joined_qkv, 0, q + 2 * kv, 0.1f},
        {"attn_q_norm.weight", a->qk_norms, 0, m->head_dim, 1},
        {"attn_k_norm.weight", a->qk_norms, 0, m->head_dim, 1},
        {"attn_output.weight", true, m->n_embd, q, 0},
        {"attn_output.bias", a->gpt_oss, 0, m->n_embd, 0.1f},
        {"attn_sinks.weight", a->gpt_oss, 0, m->n_heads, 0.5f},
        {"post_attention_norm.weight", a->post_norms || a->gpt_oss, 0, m->n_embd, 1},
        {"ffn_norm.weight", !a->gpt_oss, 0, m->n_embd, 1},
        {"ffn_gate_inp.bias", a->gpt_oss, 0, m->n_experts, 0},
        {"ffn_gate.weight", !a->joined && !experts, m->n_ff, m->n_embd, 0},
        {"ffn_up.weight", !experts, a->joined ? 2 * m->n_ff : m->n_ff, m->n_embd, 0},
        {"ffn_down.weight", !experts, m->n_embd, m->n_ff, 0},
        {"ffn_gate_inp.weight", experts, m->n_experts, m->n_embd, 0},
        {"ffn_gate_exps.weight", experts && !a->joined_experts, m->n_ff, m->n_embd, 0},
        {"ffn_up_exps.weight", experts && !a->joined_experts, m->n_ff, m->n_embd, 0},
        {"ffn_gate_up_exps.weight", experts && a->joined_experts, 2 * m->n_ff, m->n_embd, 0},
        {"ffn_down_exps.weight", experts, m->n_embd, m->n_ff, 0},
        {"ffn_gate_exps.bias", a->gpt_oss, m->n_experts, m->n_ff, 0},
        {"ffn_up_exps.bias", a->gpt_oss, m->n_experts, m->n_ff, 0},
        {"ffn_down_exps.bias", a->gpt_oss, m->n_experts, m->n_embd, 0},
        {"post_ffw_norm.weight", a->post_norms, 0, m->n_embd, 1},
    };
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        if (!tensors[i].written)
            continue;
        snprintf(out[n].name, sizeof out[n].name, "blk.%d.%s", layer, tensors[i].name);
        out[n].rows = tensors[i].rows;
        out[n].cols = tensors[i].cols;
        out[n].experts = strstr(tensors[i].name, "_exps.weight") != NULL ? m->n_experts : 0;
        out[n++].center = tensors[i].center;
    }
    return n;
}

static void write_rope(const struct tiny_model *m, struct gguf_writer *w)
{
    char key[128];
    maybe_u32(m, w, "rope.dimension_count", (uint32_t)m->rot);
    maybe_f32(m, w, "rope.freq_base", m->rope_base);
    if (m->unrotated)
        gguf_writer_bool(w, full_key(m, "rope.scaling.finetuned", key), false);
    if (m->rope == TINY_ROPE_LINEAR || m->rope == TINY_ROPE_YARN) {
        gguf_writer_string(w, full_key(m, "rope.scaling.type", key), m->rope == TINY_ROPE_YARN ? "yarn" : "linear");
        maybe_f32(m, w, "rope.scaling.factor", TINY_ROPE_FACTOR);
    }
    if (m->rope == TINY_ROPE_YARN && tiny_facts(m)->plain_yarn)
        maybe_f32(m, w, "rope.scaling.yarn_log_multiplier", 1);
    if (m->rope == TINY_ROPE_YARN || m->rope == TINY_ROPE_LONG || tiny_facts(m)->temperature != 0)
        maybe_u32(m, w, "rope.scaling.original_context_length", TINY_YARN_ORIGINAL);
    if (tiny_facts(m)->temperature != 0)
        maybe_f32(m, w, "attention.temperature_scale", (float)tiny_facts(m)->temperature);
    const double scales[] = {tiny_facts(m)->embedding, tiny_facts(m)->residual, tiny_facts(m)->scores,
                             tiny_facts(m)->logits};
    static const char *const SCALES[] = {"embedding_scale", "residual_scale", "attention.scale", "logit_scale"};
    for (int i = 0; i < 4; i++)
        if (scales[i] != 0)
            maybe_f32(m, w, SCALES[i], (float)scales[i]);
    float divisors[2][128];
    const uint64_t dims[] = {(uint64_t)m->rot / 2};
    for (int i = 0; i < m->rot / 2; i++) {
        divisors[0][i] = tiny_model_divisor(i);
        divisors[1][i] = divisors[0][i] / 2;
    }
    if (m->rope == TINY_ROPE_DIVISORS)
        gguf_writer_tensor(w, "rope_freqs.weight", KERNELS_F32, 1, dims, divisors[0], dims[0] * 4);
    if (m->rope == TINY_ROPE_LONG) {
        maybe_f32(m, w, "rope.scaling.attn_factor", TINY_ATTN_FACTOR);
        gguf_writer_tensor(w, "rope_factors_long.weight", KERNELS_F32, 1, dims, divisors[0], dims[0] * 4);
        gguf_writer_tensor(w, "rope_factors_short.weight", KERNELS_F32, 1, dims, divisors[1], dims[0] * 4);
    }
}

void tiny_model_write(const struct tiny_model *m, struct gguf_writer *w)
{
    if (!omitted(m, "general.architecture"))
        gguf_writer_string(w, "general.architecture", tiny_model_arch(m));
    maybe_u32(m, w, "block_count", (uint32_t)m->n_layers);
    maybe_u32(m, w, "context_length", (uint32_t)m->ctx);
    maybe_u32(m, w, "embedding_length", (uint32_t)m->n_embd);
    maybe_u32(m, w, "feed_forward_length", (uint32_t)(tiny_facts(m)->expert_key ? 3 * m->n_ff : m->n_ff));
    if (tiny_facts(m)->expert_key)
        maybe_u32(m, w, "expert_feed_forward_length", (uint32_t)m->n_ff);
    if (m->n_experts) {
        maybe_u32(m, w, "expert_count", (uint32_t)m->n_experts);
        maybe_u32(m, w, "expert_used_count", (uint32_t)m->n_used);
    }
    maybe_u32(m, w, "attention.head_count", (uint32_t)m->n_heads);
    maybe_u32(m, w, "attention.head_count_kv", (uint32_t)m->n_kv_heads);
    maybe_f32(m, w, "attention.layer_norm_rms_epsilon", 1e-6f);
    if (m->head_dim * m->n_heads != m->n_embd) {
        maybe_u32(m, w, "attention.key_length", (uint32_t)m->head_dim);
        maybe_u32(m, w, "attention.value_length", (uint32_t)m->head_dim);
    }
    if (m->window)
        maybe_u32(m, w, "attention.sliding_window", (uint32_t)m->window);
    static const char *const CONTROL[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>",
                                          "</tool_call>",  "<think>",      "</think>"};
    if (m->no_template)
        tiny_vocab_bpe_with(w, "qwen2", CONTROL, 3, "", "<|im_end|>", NULL);
    else if (m->spm)
        tiny_vocab_spm_with(w, CONTROL + 1, 2, "<s>", "</s>", "<|im_start|>");
    else if (m->tools)
        tiny_vocab_family(w, m->tools);
    else if (m->thinks == TINY_THINKS)
        tiny_vocab_bpe_with(w, "qwen2", CONTROL, 7, "", "<|im_end|>", "'<|im_start|>assistant\\n<think>\\n'</think>");
    else if (m->thinks == TINY_MAY_THINK)
        tiny_vocab_bpe_with(w, "qwen2", CONTROL, 7, "", "<|im_end|>",
                            "'<|im_start|>assistant\\n'enable_thinking'<think>\\n\\n</think>\\n\\n'");
    else
        tiny_vocab_bpe(w, "qwen2");
    write_rope(m, w);
    maybe_tensor(m, w, "token_embd.weight", m->n_vocab, m->n_embd, 0);
    for (int l = 0; l < m->n_layers; l++) {
        struct tiny_tensor t[TINY_MAX_TENSORS];
        for (int i = 0, n = tiny_model_layer(m, l, t); i < n; i++) {
            if (t[i].experts == 0)
                maybe_tensor(m, w, t[i].name, t[i].rows, t[i].cols, t[i].center);
            else if (!omitted(m, t[i].name))
                tiny_model_experts(m, w, t[i].name, m->type, t[i].experts, t[i].rows, t[i].cols);
        }
    }
    maybe_tensor(m, w, "output_norm.weight", 0, m->n_embd, 1);
    if (!m->tied)
        maybe_tensor(m, w, "output.weight", m->n_vocab, m->n_embd, 0);
}

/* ---- files ---- */

char *tiny_model_save_writer(struct gguf_writer *w)
{
    const char *folder = getenv("TMPDIR");
    char *path = NULL;
    if (asprintf(&path, "%s/convod-tiny-XXXXXX", folder && *folder ? folder : "/tmp") < 0)
        abort();
    int fd = mkstemp(path);
    if (fd < 0 || close(fd) != 0 || gguf_writer_save(w, path) != 0) {
        perror(path);
        abort();
    }
    return path;
}

char *tiny_model_save(const struct tiny_model *m)
{
    struct gguf_writer *w = gguf_writer_new();
    tiny_model_write(m, w);
    char *path = tiny_model_save_writer(w);
    gguf_writer_free(w);
    return path;
}

void tiny_model_remove(char *path)
{
    if (path != NULL)
        unlink(path);
    free(path);
}

void tiny_model_tokens(const struct tiny_model *m, uint64_t seed, int n, int32_t *out)
{
    for (int i = 0; i < n; i++)
        out[i] = (int32_t)(mix(mix(seed) + (uint64_t)i) % (uint64_t)m->n_vocab);
}
