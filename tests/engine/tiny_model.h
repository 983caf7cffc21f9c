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

enum tiny_arch { TINY_QWEN2, TINY_LLAMA, TINY_GEMMA3, TINY_ARCHS };
enum tiny_rope { TINY_ROPE_PLAIN, TINY_ROPE_LINEAR, TINY_ROPE_YARN, TINY_ROPE_DIVISORS, TINY_ROPES };

/* Settings of the scaled kinds. */
#define TINY_ROPE_FACTOR   4.0f
#define TINY_YARN_ORIGINAL 128

struct tiny_model {
    enum tiny_arch arch;
    enum kernels_type type; /* of all matrices */
    enum tiny_rope rope;
    int n_layers, n_embd, n_ff, n_heads, n_kv_heads, head_dim, n_vocab, ctx;
    int rot;    /* rotated dimensions of a head */
    int window; /* where the architecture has windows */
    float rope_base;
    bool tied; /* no output.weight */
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
    int full_period;         /* every so many layers one has no window; 0: there are none */
    double window_base;      /* of the rotation in layers with windows, which is not scaled then; 0: as in the others */
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

/* Values of rope_freqs.weight. */
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
