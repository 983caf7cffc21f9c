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
};

/* What most have. */
#define QKV                                                                                                            \
    {SLOT_Q}, {SLOT_K},                                                                                                \
    {                                                                                                                  \
        SLOT_V                                                                                                         \
    }
#define BLOCK                                                                                                          \
    {SLOT_ATTN_NORM}, {SLOT_O},                                                                                        \
    {                                                                                                                  \
        SLOT_FFN_NORM                                                                                                  \
    }
#define QKV_BIASES(p)                                                                                                  \
    {SLOT_Q_BIAS, p}, {SLOT_K_BIAS, p},                                                                                \
    {                                                                                                                  \
        SLOT_V_BIAS, p                                                                                                 \
    }
#define QK_NORMS                                                                                                       \
    {SLOT_Q_NORM},                                                                                                     \
    {                                                                                                                  \
        SLOT_K_NORM                                                                                                    \
    }
#define POST_NORMS                                                                                                     \
    {SLOT_POST_ATTN_NORM},                                                                                             \
    {                                                                                                                  \
        SLOT_POST_FFN_NORM                                                                                             \
    }
#define DENSE .dense = {{SLOT_GATE}, {SLOT_UP}, {SLOT_DOWN}}

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
        .tensors = {BLOCK, QKV, QKV_BIASES(MODEL_OPTIONAL), {SLOT_O_BIAS, MODEL_OPTIONAL}},
        DENSE,
    },
    {
        /* Gemma 3 (arXiv:2503.19786) */
        .name = "gemma3",
        .rope_kind = KERNELS_ROPE_HALVES,
        .glu = KERNELS_GELU_TANH,
        .scaled_embedding = true,
        .width_scaled_layers = 62, /* 27B */
        .window = {WINDOW_REQUIRED, .full_period = 6, .rope_base = 10000.0f},
        .tensors = {BLOCK, QKV, QK_NORMS, POST_NORMS},
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
