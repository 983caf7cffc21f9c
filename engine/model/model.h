/* model.h - what runs a model: the engine object, the model's shape and weights, KV pools and sequences. Everything
 * here belongs to the engine thread, except what is constant after engine_open(). */
#ifndef CONVOD_ENGINE_MODEL_H
#define CONVOD_ENGINE_MODEL_H

#include <stdatomic.h>

#include "engine/engine.h"
#include "kernels/kernels.h"

struct gguf;
struct gguf_tensor;
struct vocab;
struct chat;

/* ---- model ------------------------------------------------------------------------------------------------------ */

/* Layers that keep their keys and values alike share page tables: a page id of a group covers all its layers. */
enum model_group { MODEL_FULL, MODEL_WINDOW, MODEL_GROUPS };
_Static_assert(MODEL_GROUPS == KERNELS_PAGE_GROUPS, "a run has a page table for each group");

/* What mixes tokens in a layer. MODEL_RECURRENT is the place of a state that is carried from token to token; no
 * architecture of the table has one yet. */
enum model_mixer { MODEL_ATTENTION, MODEL_RECURRENT };
/* The feed-forward part: one for all tokens, or some of many for each. */
enum model_ffn { MODEL_DENSE, MODEL_MIXTURE };

/* Rotary settings of a kind of layer. */
struct model_rope {
    int rot;          /* dimensions that are rotated, even */
    double *inv_freq; /* [rot / 2], scaling applied */
    double magnitude; /* multiplies cos and sin */
};
#define MODEL_ROPES 2 /* layers that see everything, layers with a window */

struct model_layer {
    enum model_mixer mixer;
    enum model_ffn ffn;
    enum model_group group;
    int n_heads;
    int n_ff;             /* width of the feed-forward part, or of one expert */
    int window;           /* 0: everything before it is seen */
    int rope;             /* into model.rope; -1: nothing is rotated */
    float attn_scale;     /* of scores */
    struct kernels_kv kv; /* key/value heads and head size; the pool pointer is set when the pools are made */
    /* NULL, or without rows: the architecture has none. */
    const float *attn_norm, *ffn_norm, *post_attn_norm, *post_ffn_norm, *q_norm, *k_norm;
    const float *q_bias, *k_bias, *v_bias, *o_bias, *sinks;
    struct kernels_matrix q, k, v, o, gate, up, down;
    struct kernels_matrix router;
    const float *router_bias, *gate_experts_bias, *up_experts_bias, *down_experts_bias; /* [n_experts][...] */
    struct kernels_matrix gate_experts, up_experts, down_experts;
    /* Of a layer of model.host_layers: its matrices, pinned, one behind the other as they lie in its place of
     * model.staged when it is computed. NULL: they are on the device. */
    uint8_t *host;
    size_t host_bytes, host_used;
};

/* A tensor, or a slice of it, that has to be read and packed; made by model_read(), done by model_load(). */
struct model_job {
    const struct gguf_tensor *t;
    uint64_t at; /* byte of the tensor where the slice begins */
    int rows, cols;
    int experts; /* matrices of that shape, one behind the other; 0: one */
    int expert;  /* the only one of these that this is of, counted from 1: they lie apart; 0: all */
    bool vector;
    float divisor; /* of a vector's values; 0: none */
    void *to;      /* struct kernels_matrix, or const float * of a vector */
};

struct model {
    const struct model_arch *arch;
    int n_layers, n_embd, n_vocab, n_experts, n_experts_used;
    int ctx_model;
    float rms_eps, embed_scale;
    float logit_divisor; /* 0: none. The output norm's weights are divided by it */
    enum kernels_rope_kind rope_kind;
    enum kernels_glu_kind glu;
    float attn_softcap, final_softcap; /* 0: none */
    float temperature;                 /* of queries at long positions; 0: none */
    int temperature_ctx;
    int window; /* the longest of any layer; 0: there is none */
    struct model_rope rope[MODEL_ROPES];
    struct model_layer *layers;
    struct kernels_matrix embed, output;
    const float *output_norm;
    uint64_t parameters;   /* values */
    uint64_t weight_bytes; /* packed; from model_weigh() on */
    uint64_t embed_bytes;  /* of an embedding table that is not the output's too; else 0 */
    int host_layers;       /* the last ones, set before model_weigh() */
    uint64_t host_bytes;   /* of weight_bytes, what these have; from model_weigh() on */
    size_t staged_bytes;   /* the most that one of them has */
    uint8_t *staged;       /* of the device: places that they take turns at, each so long; their matrices point there */
    const char *quantization;
    struct model_job *jobs; /* until model_load() */
    size_t n_jobs, jobs_capacity;
    struct model_block *blocks; /* everything that was allocated for weights, for release */
};

/* Step one of opening: the shape, out of the file's header alone. Every tensor that the architecture wants is there
 * with its shape and a type that can be read, and no other is. `out` must stay where it is until model_load(); on an
 * error nothing is left in it. */
int model_read(const struct gguf *g, enum kernels_kv_type kv_type, struct model *out, char *err, size_t err_size);
/* How much its weights will take, packed by this backend. Comes before model_load(). */
void model_weigh(struct model *m, struct kernels *k);
/* The last step: reads and packs the weights, in the order in which they lie in the file. hash (may be NULL): every
 * byte of the file goes into it, in that one pass. progress as in engine_opts, over [0, 1]. -EBADMSG: the file was cut
 * or changed meanwhile; -ENOMEM. */
struct gguf_hash;
int model_load(struct model *m, const struct gguf *g, struct kernels *k, struct gguf_hash *hash,
               void (*progress)(void *arg, double fraction, const char *what), void *arg, char *err, size_t err_size);
/* What they take of the device: a place for the layer that is computed, and one for the next. Behind model_weigh(). */
size_t model_staged_bytes(const struct model *m);
/* Starts copying layer l there, where it is one of host_layers (else it does nothing), and, the other one, has the
 * operations that come now wait for it. Its place is that of layer l - 2, whose operations have all been asked for. */
void model_bring(const struct model *m, const struct kernels_ops *ops, struct kernels *k, int l);
void model_brought(const struct model *m, const struct kernels_ops *ops, struct kernels *k, int l);
/* How long it takes to bring all layers of host_layers to the device once. */
double model_bring_ms(const struct model *m, struct kernels *k);
/* k may be NULL where nothing was loaded. Fine on a zeroed model. */
void model_close(struct model *m, struct kernels *k);
/* "qwen2" */
const char *model_arch_name(const struct model *m);
/* The largest value of a layer's number, for scratch. */
int model_most_heads(const struct model *m);
int model_most_head_dim(const struct model *m);
int model_most_q(const struct model *m);  /* query values */
int model_most_kv(const struct model *m); /* key values */
int model_most_ff(const struct model *m);

/* Fills m->rope from the file, for contexts of up to ctx_tokens (model_rope.c). */
int model_rope_open(const struct gguf *g, int ctx_tokens, struct model *m, char *err, size_t err_size);
/* Mixes everything that changes rotated keys into a hash. */
void model_rope_hash(const struct model *m, void (*update)(void *h, const void *p, size_t n), void *h);

/* ---- KV pools and sequences (pages.c) -----------------------------------------------------------------------------
 */

struct kv_pool {
    uint8_t *memory;    /* of the device */
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
    kernels_event imported; /* its last import */
};

/* Lays out the layers within the pages of their group, which gives the pages' sizes. Comes first. */
void kv_pools_size(struct engine *e);
/* Whether `bytes` make any pages at all; -EINVAL. After kv_pools_size(). */
int kv_pools_fit(const struct engine *e, size_t bytes, char *err, size_t err_size);
/* Allocates the pools within `bytes` and points the layers' kv at them. */
int kv_pools_open(struct engine *e, size_t bytes, char *err, size_t err_size);
void kv_pools_close(struct engine *e);
/* Appends n tokens whose keys and values will be written next: their pages are there, and no other sequence's.
 * -EOVERFLOW (ctx_tokens), -ENOSPC, -ENOMEM: the sequence is unchanged. */
int kv_seq_extend(struct engine_seq *s, const engine_token *tokens, int n);
/* Drops the tokens from n on, whatever windows have left behind: nothing of them was computed. */
void kv_seq_take_back(struct engine_seq *s, int n);
/* What is computed from now on comes, on the device, after what still writes to this sequence's pages, or reads and
 * writes pages that were given back. */
void kv_seq_order(struct engine_seq *s);
/* Tokens that a sequence of this model can hold at most with pools of `bytes`. */
int kv_capacity_tokens(const struct engine *e, size_t bytes);

/* ---- engine -------------------------------------------------------------------------------------------------------
 */

/* Pinned memory for an export or import, which may still be under way. */
#define KV_STAGINGS 3
struct kv_staging {
    void *p;
    size_t bytes; /* grows */
    kernels_event used;
};

/* A buffer for the split form. It begins behind KV_BUFFER_HEADER bytes, which say whose it is. */
#define KV_BUFFERS       8
#define KV_BUFFER_HEADER 64
struct kv_buffer {
    uint8_t *p; /* pinned */
    size_t bytes;
    _Atomic bool taken;
    kernels_event used; /* free when this has passed and it is not taken */
};

struct engine {
    struct engine_info info;
    struct gguf *gguf;
    struct vocab *vocab;
    struct chat *chat; /* NULL: none */
    struct kernels *kernels;
    const struct kernels_ops *ops;
    struct model model;
    struct kv_pool pools[MODEL_GROUPS];
    struct kernels_kv *kv;  /* [n_layers], as the layers have it */
    kernels_event exported; /* the last export that pages are read by */
    struct kv_staging staging[KV_STAGINGS];
    unsigned stagings_used; /* they take turns */
    struct kv_buffer buffers[KV_BUFFERS];
    int split_tokens;                /* that the backend has memory for in the split form */
    kernels_event abandoned;         /* the last import into pages that were given back since */
    struct engine_kv_array *layout;  /* [2 * n_layers] */
    struct step_scratch *step;       /* step.c */
    struct sampler_scratch *sampler; /* sampler.c */
    int n_seqs;                      /* living sequences */
    char *name, *file;
};

/* Bytes of a step's buffers and of the backend's scratch, and making them. */
uint64_t step_scratch_bytes(const struct engine *e);
int step_scratch_open(struct engine *e);
void step_scratch_close(struct engine *e);
int sampler_scratch_open(struct engine *e);
void sampler_scratch_close(struct engine *e);
/* Makes room for `n_picks` picks that change `changes` logits altogether. 0 or -ENOMEM. */
int sampler_begin(struct engine *e, int n_picks, size_t changes);
/* How many logits a pick of the token at `position` changes at most. */
size_t sampler_changes(const struct engine_pick *pick, int position);
/* Adds a pick from wanted row `row`, of the token behind context[position], without its mask. It lasts until the next
 * sampler_begin(). */
void sampler_add(struct engine *e, const struct engine_pick *pick, const engine_token *context, int position, int row);
/* All that were added; *n gets how many. */
struct kernels_pick *sampler_picks(const struct engine *e, int *n);
/* What was picked. */
void sampler_take(const struct kernels_picked *picked, struct engine_pick *pick);

/* info->kv_identity from info->model_sha256 and the settings, and info->numerics. 0 or -ENOMEM. */
int fingerprint_engine(struct engine *e);

const struct vocab *engine_vocab(const struct engine *e);
const struct chat *engine_chat(const struct engine *e);

#endif
