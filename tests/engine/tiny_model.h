/* tiny_model.h - whole model files with random weights, small enough to run thousands of tokens through in a test.
 *
 *     struct tiny_model m = tiny_model_of(TINY_GEMMA3);
 *     m.window = 40;
 *     char *path = tiny_model_save(&m); // a temporary file
 *     ... engine_open() ...
 *     tiny_model_remove(path);
 */
#ifndef CONVOD_TESTS_TINY_MODEL_H
#define CONVOD_TESTS_TINY_MODEL_H

#include "tests/engine/gguf_writer.h"
#include "tests/engine/tiny_vocab.h"

enum tiny_arch {
    TINY_QWEN2,
    TINY_LLAMA,
    TINY_GEMMA3,
    TINY_QWEN3,
    TINY_GEMMA2,
    TINY_PHI3,
    TINY_PHI3_WINDOWS, /* of Phi 3 mini, 4k */
    TINY_MISTRAL3,
    TINY_SMOLLM3,
    TINY_MIXTRAL, /* llama, with experts */
    TINY_QWEN3MOE,
    TINY_GPT_OSS,
    TINY_GRANITE,
    TINY_QWEN2_JOINED, /* as some converters write it */
    TINY_QWEN3MOE_JOINED,
    TINY_ARCHS
};
enum tiny_rope {
    TINY_ROPE_PLAIN,
    TINY_ROPE_LINEAR,
    TINY_ROPE_YARN,
    TINY_ROPE_DIVISORS,
    TINY_ROPE_LONG, /* phi3 alone */
    TINY_ROPES
};

/* Settings of the scaled kinds. */
#define TINY_ROPE_FACTOR   4.0f
#define TINY_YARN_ORIGINAL 128
#define TINY_ATTN_FACTOR   1.25f /* TINY_ROPE_LONG */

/* Of a chat format without tools. */
enum tiny_thinking {
    TINY_NO_THINKING,
    TINY_THINKS,    /* answers open with it */
    TINY_MAY_THINK, /* there is a form for answers without it */
};

struct tiny_model {
    enum tiny_arch arch;
    enum kernels_type type; /* of all matrices */
    enum tiny_rope rope;
    int n_layers, n_embd, n_ff, n_heads, n_kv_heads, head_dim, n_vocab, ctx;
    int rot;               /* rotated dimensions of a head */
    int n_experts, n_used; /* 0: no mixture; n_ff is the width of one expert */
    int window;            /* where the architecture has windows */
    float rope_base;
    bool tied;              /* no output.weight */
    bool unrotated;         /* no layer rotates: granite alone */
    enum tiny_family tools; /* of its chat format; n_vocab must hold TINY_FAMILY_TOKENS for most */
    bool no_template;
    enum tiny_thinking thinks;
    bool spm; /* a vocabulary of SentencePiece's, without tools and thinking */
    uint64_t seed;
    const char *omit; /* a key (without the architecture) or tensor that is left out; NULL: none */
    const char *also; /* a second one */
};

/* An architecture as the tests know it, written down from its paper and reference code: the files are made and the
 * reference runs by this table, so that the library's own is compared with something. */
struct tiny_arch_facts {
    const char *name;
    bool pairs;              /* pairs of neighbours are rotated, not halves */
    bool gelu;               /* else SiLU */
    bool scaled_embedding;   /* by sqrt(n_embd) */
    bool qkv_bias, qk_norms; /* a norm over each head's queries and keys */
    bool post_norms;         /* behind attention and behind the feed-forward part */
    int full_period;         /* every so many layers one has no window; 0: there are no windows; -1: all have them */
    double window_base;      /* of the rotation in layers with windows, which is not scaled then; 0: as in the others */
    int unrotated_period;    /* every so many layers one is not rotated; 0: all are */
    double embedding, residual, scores, logits; /* Granite's constants: factors on the embedding, on what a block adds
                                                   and on scores, and what logits are divided by; 0: none */
    double attn_cap, final_cap;                 /* c * tanh(x / c) of scores and of logits; 0: none */
    bool joined_qkv, joined;                    /* queries, keys and values are one tensor, gate and up another */
    bool joined_experts;                        /* the experts' gates and ups are one tensor */
    double temperature; /* queries are multiplied by 1 + t * log(1 + floor(position / original context)) */
    bool plain_yarn;    /* YaRN without its factor on cosine and sine */
    bool gpt_oss;       /* biases of the output, the router and the experts; sinks; its own activation; no rounding of
                           YaRN's borders; the feed-forward norm's name */
    bool expert_key;    /* the experts' width has a key of its own */
    bool long_rope;     /* has TINY_ROPE_LONG, and not TINY_ROPE_DIVISORS */
    struct tiny_model sizes; /* odd ones */
};
extern const struct tiny_arch_facts TINY_ARCH[TINY_ARCHS];
const struct tiny_arch_facts *tiny_facts(const struct tiny_model *m);
/* Whether a layer sees a window only. */
bool tiny_model_windowed(const struct tiny_model *m, int layer);

/* Odd sizes. */
struct tiny_model tiny_model_of(enum tiny_arch arch);
/* The same with matrices of a type, and row lengths that the type allows. */
struct tiny_model tiny_model_typed(enum tiny_arch arch, enum kernels_type type);
const char *tiny_model_arch(const struct tiny_model *m); /* "qwen2" */

/* A layer's tensors, as they are written: rows == 0 is a vector of cols values around `center`. */
struct tiny_tensor {
    char name[64];
    int rows, cols;
    float center;
    int experts; /* so many matrices, one behind the other; 0: one */
};
#define TINY_MAX_TENSORS 32
int tiny_model_layer(const struct tiny_model *m, int layer, struct tiny_tensor out[TINY_MAX_TENSORS]);

/* Writes keys, vocabulary and tensors. */
void tiny_model_write(const struct tiny_model *m, struct gguf_writer *w);
/* A key of the architecture: "block_count" becomes "qwen2.block_count". */
void tiny_model_u32(const struct tiny_model *m, struct gguf_writer *w, const char *key, uint32_t value);
void tiny_model_f32(const struct tiny_model *m, struct gguf_writer *w, const char *key, float value);
/* A tensor with random values: rows == 0 is a vector of cols values around `center`. */
void tiny_model_tensor(const struct tiny_model *m, struct gguf_writer *w, const char *name, enum kernels_type type,
                       int rows, int cols, float center);
/* Such a matrix, `experts` times. */
void tiny_model_experts(const struct tiny_model *m, struct gguf_writer *w, const char *name, enum kernels_type type,
                        int experts, int rows, int cols);

/* Whether an architecture's files come with such a rotation. */
bool tiny_model_has_rope(enum tiny_arch arch, enum tiny_rope rope);
/* Values of rope_freqs.weight, and of rope_factors_long.weight; those of the short one are half as large. */
float tiny_model_divisor(int i);

/* A new temporary file with what the writer holds / with the whole model; free with tiny_model_remove(). */
char *tiny_model_save_writer(struct gguf_writer *w);
char *tiny_model_save(const struct tiny_model *m);
void tiny_model_remove(char *path);

/* Nearest value that a half-precision number can have, and its bits. |v| must be below 65520. */
double tiny_model_round_half(double v);
uint16_t tiny_model_half(double v);

/* Pseudo-random tokens below n_vocab, a function of (seed, i). */
void tiny_model_tokens(const struct tiny_model *m, uint64_t seed, int n, int32_t *out);

#endif
