/* arch.c - the architectures: a row each.
 *
 * Sources: the models' reports and configurations, and the conventions of GGUF files (which heads are permuted and so
 * rotate pairs, which norms have the 1 added, which tensors are joined). docs/design.md tells how a row is added.
 */
#include "engine/model/arch.h"

#include <string.h>

#define AT(member) offsetof(struct model_layer, member)

const struct model_slot_info MODEL_SLOT_INFO[MODEL_SLOTS] = {
    [SLOT_ATTN_NORM] = {"attn_norm.weight", SLOT_VECTOR, 0, DIM_EMBD, AT(attn_norm)},
    [SLOT_Q] = {"attn_q.weight", SLOT_MATRIX, DIM_Q, DIM_EMBD, AT(q)},
    [SLOT_K] = {"attn_k.weight", SLOT_MATRIX, DIM_KV, DIM_EMBD, AT(k)},
    [SLOT_V] = {"attn_v.weight", SLOT_MATRIX, DIM_KV, DIM_EMBD, AT(v)},
    [SLOT_Q_BIAS] = {"attn_q.bias", SLOT_VECTOR, 0, DIM_Q, AT(q_bias)},
    [SLOT_K_BIAS] = {"attn_k.bias", SLOT_VECTOR, 0, DIM_KV, AT(k_bias)},
    [SLOT_V_BIAS] = {"attn_v.bias", SLOT_VECTOR, 0, DIM_KV, AT(v_bias)},
    [SLOT_Q_NORM] = {"attn_q_norm.weight", SLOT_VECTOR, 0, DIM_HEAD, AT(q_norm)},
    [SLOT_K_NORM] = {"attn_k_norm.weight", SLOT_VECTOR, 0, DIM_HEAD, AT(k_norm)},
    [SLOT_O] = {"attn_output.weight", SLOT_MATRIX, DIM_EMBD, DIM_Q, AT(o)},
    [SLOT_O_BIAS] = {"attn_output.bias", SLOT_VECTOR, 0, DIM_EMBD, AT(o_bias)},
    [SLOT_POST_ATTN_NORM] = {"post_attention_norm.weight", SLOT_VECTOR, 0, DIM_EMBD, AT(post_attn_norm)},
    [SLOT_FFN_NORM] = {"ffn_norm.weight", SLOT_VECTOR, 0, DIM_EMBD, AT(ffn_norm)},
    [SLOT_GATE] = {"ffn_gate.weight", SLOT_MATRIX, DIM_FF, DIM_EMBD, AT(gate)},
    [SLOT_UP] = {"ffn_up.weight", SLOT_MATRIX, DIM_FF, DIM_EMBD, AT(up)},
    [SLOT_DOWN] = {"ffn_down.weight", SLOT_MATRIX, DIM_EMBD, DIM_FF, AT(down)},
    [SLOT_POST_FFN_NORM] = {"post_ffw_norm.weight", SLOT_VECTOR, 0, DIM_EMBD, AT(post_ffn_norm)},
    [SLOT_ROUTER] = {"ffn_gate_inp.weight", SLOT_MATRIX, DIM_EXPERTS, DIM_EMBD, AT(router)},
    [SLOT_GATE_EXPERTS] = {"ffn_gate_exps.weight", SLOT_EXPERTS, DIM_FF, DIM_EMBD, AT(gate_experts)},
    [SLOT_UP_EXPERTS] = {"ffn_up_exps.weight", SLOT_EXPERTS, DIM_FF, DIM_EMBD, AT(up_experts)},
    [SLOT_DOWN_EXPERTS] = {"ffn_down_exps.weight", SLOT_EXPERTS, DIM_EMBD, DIM_FF, AT(down_experts)},
    [SLOT_SINKS] = {"attn_sinks.weight", SLOT_VECTOR, 0, DIM_HEADS, AT(sinks)},
    [SLOT_ROUTER_BIAS] = {"ffn_gate_inp.bias", SLOT_VECTOR, 0, DIM_EXPERTS, AT(router_bias)},
    [SLOT_GATE_EXPERTS_BIAS] = {"ffn_gate_exps.bias", SLOT_VECTORS, 0, DIM_FF, AT(gate_experts_bias)},
    [SLOT_UP_EXPERTS_BIAS] = {"ffn_up_exps.bias", SLOT_VECTORS, 0, DIM_FF, AT(up_experts_bias)},
    [SLOT_DOWN_EXPERTS_BIAS] = {"ffn_down_exps.bias", SLOT_VECTORS, 0, DIM_EMBD, AT(down_experts_bias)},
};

const struct model_joined MODEL_JOINED[MODEL_SLOTS] = {
    [SLOT_Q] = {"attn_qkv.weight", SLICE_Q},
    [SLOT_K] = {"attn_qkv.weight", SLICE_K},
    [SLOT_V] = {"attn_qkv.weight", SLICE_V},
    [SLOT_Q_BIAS] = {"attn_qkv.bias", SLICE_Q},
    [SLOT_K_BIAS] = {"attn_qkv.bias", SLICE_K},
    [SLOT_V_BIAS] = {"attn_qkv.bias", SLICE_V},
    [SLOT_GATE_EXPERTS] = {"ffn_gate_up_exps.weight", SLICE_FIRST},
    [SLOT_UP_EXPERTS] = {"ffn_gate_up_exps.weight", SLICE_SECOND},
};

/* What most have. */
#define WANT(name)                                                                                                     \
    {                                                                                                                  \
        .slot = name                                                                                                   \
    }
#define BIAS(name, p)                                                                                                  \
    {                                                                                                                  \
        .slot = name, .presence = p                                                                                    \
    }
#define QKV           WANT(SLOT_Q), WANT(SLOT_K), WANT(SLOT_V)
#define BLOCK         WANT(SLOT_ATTN_NORM), WANT(SLOT_O), WANT(SLOT_FFN_NORM)
#define QKV_BIASES(p) BIAS(SLOT_Q_BIAS, p), BIAS(SLOT_K_BIAS, p), BIAS(SLOT_V_BIAS, p)
#define QK_NORMS      WANT(SLOT_Q_NORM), WANT(SLOT_K_NORM)
#define POST_NORMS    WANT(SLOT_POST_ATTN_NORM), WANT(SLOT_POST_FFN_NORM)
#define DENSE         .dense = {WANT(SLOT_GATE), WANT(SLOT_UP), WANT(SLOT_DOWN)}
#define EXPERTS       .experts = {WANT(SLOT_ROUTER), WANT(SLOT_GATE_EXPERTS), WANT(SLOT_UP_EXPERTS), WANT(SLOT_DOWN_EXPERTS)}

static const struct model_arch ARCHS[] = {
    {
        /* Qwen 2 and 2.5 */
        .name = "qwen2",
        .rope_kind = KERNELS_ROPE_HALVES,
        .tensors = {BLOCK, QKV, QKV_BIASES(MODEL_REQUIRED)},
        DENSE,
    },
    {
        /* Llama 2 and 3, Mistral, SmolLM2 */
        .name = "llama",
        .rope_kind = KERNELS_ROPE_PAIRS,
        .scales = true,
        .mixture = MIXTURE_MAYBE, /* Mixtral (arXiv:2401.04088) */
        EXPERTS,
        .tensors = {BLOCK, QKV, QKV_BIASES(MODEL_OPTIONAL), {.slot = SLOT_O_BIAS, .presence = MODEL_OPTIONAL}},
        DENSE,
    },
    {
        /* Gemma 3 (arXiv:2503.19786) */
        .name = "gemma3",
        .rope_kind = KERNELS_ROPE_HALVES,
        .glu = KERNELS_GELU_TANH,
        .scaled_embedding = true,
        .width_scaled_layers = 62, /* 27B */
        .window = {.key = WINDOW_REQUIRED, .full_period = 6, .rope_base = 10000.0f},
        .tensors = {BLOCK, QKV, QK_NORMS, POST_NORMS},
        DENSE,
    },
    {
        /* Qwen 3 (arXiv:2505.09388) */
        .name = "qwen3",
        .rope_kind = KERNELS_ROPE_HALVES,
        .tensors = {BLOCK, QKV, QK_NORMS},
        DENSE,
    },
    {
        /* Qwen 3's mixtures: the experts' width has a key of its own */
        .name = "qwen3moe",
        .rope_kind = KERNELS_ROPE_HALVES,
        .mixture = MIXTURE_ALWAYS,
        .expert_ff_key = "expert_feed_forward_length",
        .tensors = {BLOCK, QKV, QK_NORMS},
        EXPERTS,
    },
    {
        /* gpt-oss (arXiv:2508.10925): biases everywhere, sinks, a norm under another name */
        .name = "gpt-oss",
        .rope_kind = KERNELS_ROPE_HALVES,
        .glu = KERNELS_SWIGLU_CLAMPED,
        .window = {.key = WINDOW_OPTIONAL, .tokens = 128, .full_period = 2},
        .exact_yarn = true,
        .mixture = MIXTURE_ALWAYS,
        .expert_ff_key = "expert_feed_forward_length",
        .tensors = {WANT(SLOT_ATTN_NORM),
                    QKV,
                    QKV_BIASES(MODEL_REQUIRED),
                    WANT(SLOT_SINKS),
                    WANT(SLOT_O),
                    WANT(SLOT_O_BIAS),
                    {.slot = SLOT_FFN_NORM, .presence = MODEL_REQUIRED, .name = "post_attention_norm.weight"}},
        .experts = {WANT(SLOT_ROUTER), WANT(SLOT_ROUTER_BIAS), WANT(SLOT_GATE_EXPERTS), WANT(SLOT_UP_EXPERTS),
                    WANT(SLOT_DOWN_EXPERTS), WANT(SLOT_GATE_EXPERTS_BIAS), WANT(SLOT_UP_EXPERTS_BIAS),
                    WANT(SLOT_DOWN_EXPERTS_BIAS)},
    },
    {
        /* Gemma 2 (arXiv:2408.00118) */
        .name = "gemma2",
        .rope_kind = KERNELS_ROPE_HALVES,
        .glu = KERNELS_GELU_TANH,
        .scaled_embedding = true,
        .width_scaled_layers = 46, /* 27B */
        .window = {.key = WINDOW_OPTIONAL, .tokens = 4096, .full_period = 2},
        .attn_softcap = {true, 50.0f},
        .final_softcap = {true, 30.0f},
        .tensors = {BLOCK, QKV, POST_NORMS},
        DENSE,
    },
    {
        /* Phi 3 (arXiv:2404.14219), 3.5 and 4: joined tensors, windows on every layer or none */
        .name = "phi3",
        .rope_kind = KERNELS_ROPE_HALVES,
        .window = {.key = WINDOW_OPTIONAL},
        .long_rope = true,
        .tensors = {BLOCK,
                    {.slot = SLOT_Q, .presence = MODEL_REQUIRED, .name = "attn_qkv.weight", .slice = SLICE_Q},
                    {.slot = SLOT_K, .presence = MODEL_REQUIRED, .name = "attn_qkv.weight", .slice = SLICE_K},
                    {.slot = SLOT_V, .presence = MODEL_REQUIRED, .name = "attn_qkv.weight", .slice = SLICE_V}},
        .dense = {{.slot = SLOT_GATE, .presence = MODEL_REQUIRED, .name = "ffn_up.weight", .slice = SLICE_FIRST},
                  {.slot = SLOT_UP, .presence = MODEL_REQUIRED, .name = "ffn_up.weight", .slice = SLICE_SECOND},
                  WANT(SLOT_DOWN)},
    },
    {
        /* Ministral 3: as Llama, with queries that grow beyond the first context */
        .name = "mistral3",
        .rope_kind = KERNELS_ROPE_PAIRS,
        .temperature = true,
        .tensors = {BLOCK, QKV},
        DENSE,
    },
    {
        /* Granite 3, dense: as Llama, with four constants */
        .name = "granite",
        .rope_kind = KERNELS_ROPE_PAIRS,
        .scales = true,
        .rope_switch = true,
        .tensors = {BLOCK, QKV, QKV_BIASES(MODEL_OPTIONAL), {.slot = SLOT_O_BIAS, .presence = MODEL_OPTIONAL}},
        DENSE,
    },
    {
        /* SmolLM3: as Llama, every fourth layer without rotation */
        .name = "smollm3",
        .rope_kind = KERNELS_ROPE_PAIRS,
        .unrotated_period = 4,
        .tensors = {BLOCK, QKV},
        DENSE,
    },
};

const struct model_arch *model_arch_at(size_t i)
{
    return i < sizeof ARCHS / sizeof *ARCHS ? &ARCHS[i] : NULL;
}

const struct model_arch *model_arch_find(const char *name, size_t len)
{
    for (size_t i = 0; i < sizeof ARCHS / sizeof *ARCHS; i++)
        if (strlen(ARCHS[i].name) == len && memcmp(ARCHS[i].name, name, len) == 0)
            return &ARCHS[i];
    return NULL;
}

const char *model_arch_name(const struct model *m)
{
    return m->arch->name;
}
