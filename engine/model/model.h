/* model.h - what runs a model: the engine object, the model's shape and weights, KV pools and sequences. Everything
 * here belongs to the engine thread, except what is constant after engine_open(). */
#ifndef CONVOD_ENGINE_MODEL_H
#define CONVOD_ENGINE_MODEL_H

#include "engine/engine.h"
#include "kernels/kernels.h"

struct gguf;
struct vocab;
struct chat;

/* ---- model ------------------------------------------------------------------------------------------------------ */

/* Layers that keep their keys and values alike share page tables: a page id of a group covers all its layers. */
enum model_group { MODEL_FULL, MODEL_WINDOW, MODEL_GROUPS };

/* Rotary settings of a kind of layer. */
struct model_rope {
    int rot;          /* dimensions that are rotated, even */
    double *inv_freq; /* [rot / 2], scaling applied */
    double magnitude; /* multiplies cos and sin (YaRN) */
};

struct model_layer {
    enum model_group group;
    struct kernels_kv kv; /* pool pointer is set when the pools are made */
    const float *attn_norm, *ffn_norm;
    const float *post_attn_norm, *post_ffn_norm; /* gemma3; else NULL */
    const float *q_norm, *k_norm;                /* gemma3; else NULL */
    struct kernels_matrix q, k, v, o, gate, up, down;
    const float *q_bias, *k_bias, *v_bias; /* qwen2; else NULL */
};

struct model {
    int n_layers, n_embd, n_ff, n_vocab, n_heads, n_kv_heads, head_dim;
    int ctx_model;
    float rms_eps, embed_scale, attn_scale;
    int window; /* of MODEL_WINDOW layers */
    enum kernels_rope_kind rope_kind;
    enum kernels_glu_kind glu;
    struct model_rope rope[MODEL_GROUPS];
    struct model_layer *layers;
    struct kernels_matrix embed, output;
    const float *output_norm;
    uint64_t weight_bytes, parameters;
    const char *quantization;
    struct model_block *blocks; /* everything that was allocated for weights, for release */
};

/* Reads the shape from the file and packs its weights. progress as in engine_opts, over [0, 1]. */
int model_open(const struct gguf *g, struct kernels *k, enum kernels_kv_type kv_type,
               void (*progress)(void *arg, double fraction, const char *what), void *arg, struct model *out, char *err,
               size_t err_size);
void model_close(struct model *m, struct kernels *k);

/* Rotation table of positions: out[n][rot / 2][2] = cos, sin. */
void model_rope_table(const struct model_rope *r, const int *positions, int n, float *out);
/* Fills m->rope from the file (model_rope.c). */
int model_rope_open(const struct gguf *g, const char *arch, struct model *m, char *err, size_t err_size);
/* Mixes everything that changes rotated keys into a hash. */
void model_rope_hash(const struct model *m, void (*update)(void *h, const void *p, size_t n), void *h);

/* ---- KV pools and sequences (pages.c) -----------------------------------------------------------------------------
 */

struct kv_pool {
    uint8_t *memory;
    size_t page_bytes;  /* 0: the model has no layer of this group */
    size_t token_bytes; /* page_bytes / 64 */
    int32_t n_pages, n_free;
    int32_t *free;  /* stack of free ids */
    uint16_t *uses; /* sequences that refer to a page */
};

struct kv_table {
    int32_t *pages; /* -1: dropped */
    int count, capacity;
};

struct engine_seq {
    struct engine *engine;
    struct engine_tokens tokens;
    struct kv_table table[MODEL_GROUPS];
};

/* Lays out the layers within the pages of their group, which gives the pages' sizes. Comes first. */
void kv_pools_size(struct engine *e);
/* Allocates the pools within `bytes` and points the layers' kv at them. */
int kv_pools_open(struct engine *e, size_t bytes, char *err, size_t err_size);
void kv_pools_close(struct engine *e);
/* Appends n tokens whose keys and values will be written next: their pages are there, and no other sequence's.
 * -EOVERFLOW (ctx_tokens), -ENOSPC, -ENOMEM: the sequence is unchanged. */
int kv_seq_extend(struct engine_seq *s, const engine_token *tokens, int n);
/* Tokens that a sequence of this model can hold at most with pools of `bytes`. */
int kv_capacity_tokens(const struct engine *e, size_t bytes);

/* ---- engine -------------------------------------------------------------------------------------------------------
 */

struct engine {
    struct engine_info info;
    struct gguf *gguf;
    struct vocab *vocab;
    struct chat *chat; /* NULL: none */
    struct kernels *kernels;
    const struct kernels_ops *ops;
    struct model model;
    struct kv_pool pools[MODEL_GROUPS];
    struct engine_kv_array *layout;  /* [2 * n_layers] */
    struct step_scratch *step;       /* step.c */
    struct sampler_scratch *sampler; /* sampler.c */
    int n_seqs;                      /* living sequences */
    char *name, *file;
};

int step_scratch_open(struct engine *e);
void step_scratch_close(struct engine *e);
int sampler_scratch_open(struct engine *e);
void sampler_scratch_close(struct engine *e);

/* SHA-256 of the model file, from cache_dir when inode, size and time are known there (fingerprint.c). */
int fingerprint_file(const char *path, const char *cache_dir,
                     void (*progress)(void *arg, double fraction, const char *what), void *arg, uint8_t sha256[32],
                     char *err, size_t err_size);
/* info->fingerprint from info->model_sha256 and the settings. 0 or -ENOMEM. */
int fingerprint_engine(struct engine *e);

const struct vocab *engine_vocab(const struct engine *e);
const struct chat *engine_chat(const struct engine *e);

#endif
