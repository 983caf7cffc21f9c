/* arch.h - what an architecture is: one row of constants, and the tensors that its layers are made of.
 *
 * Everything that differs between architectures stands in a row of the table in arch.c; nobody else asks for a name. A
 * tensor that a row does not list is forbidden: a file that holds it is refused, since a part of the graph that is
 * left out would be a model that quietly answers wrong.
 */
#ifndef CONVOD_ENGINE_MODEL_ARCH_H
#define CONVOD_ENGINE_MODEL_ARCH_H

#include "engine/model/model.h"

/* Lengths that tensors have. */
enum model_dim {
    DIM_EMBD,
    DIM_Q,  /* query heads * head size */
    DIM_KV, /* key/value heads * head size */
    DIM_HEAD,
    DIM_FF, /* of one expert, in a mixture */
    DIM_EXPERTS,
    DIM_HEADS,
};

enum model_slot_kind {
    SLOT_VECTOR,  /* const float *: [cols] */
    SLOT_MATRIX,  /* struct kernels_matrix: [rows][cols] */
    SLOT_EXPERTS, /* struct kernels_matrix: [experts] of [rows][cols] */
    SLOT_VECTORS, /* const float *: [experts][cols] */
};

/* Where a layer's tensors go, and what they are called unless a row says otherwise. */
enum model_slot {
    SLOT_NONE, /* ends a list */
    SLOT_ATTN_NORM,
    SLOT_Q,
    SLOT_K,
    SLOT_V,
    SLOT_Q_BIAS,
    SLOT_K_BIAS,
    SLOT_V_BIAS,
    SLOT_Q_NORM,
    SLOT_K_NORM,
    SLOT_O,
    SLOT_O_BIAS,
    SLOT_SINKS,
    SLOT_POST_ATTN_NORM,
    SLOT_FFN_NORM,
    SLOT_GATE,
    SLOT_UP,
    SLOT_DOWN,
    SLOT_POST_FFN_NORM,
    SLOT_ROUTER,
    SLOT_GATE_EXPERTS,
    SLOT_UP_EXPERTS,
    SLOT_DOWN_EXPERTS,
    SLOT_ROUTER_BIAS,
    SLOT_GATE_EXPERTS_BIAS,
    SLOT_UP_EXPERTS_BIAS,
    SLOT_DOWN_EXPERTS_BIAS,
    MODEL_SLOTS
};

struct model_slot_info {
    const char *name; /* behind "blk.N." */
    enum model_slot_kind kind;
    enum model_dim rows, cols; /* of a vector: cols */
    size_t at;                 /* in struct model_layer */
};
extern const struct model_slot_info MODEL_SLOT_INFO[MODEL_SLOTS];

/* A slot may hold a slice of the tensor's rows. */
enum model_slice {
    SLICE_ALL,
    SLICE_Q, /* of queries, keys and values, one behind the other */
    SLICE_K,
    SLICE_V,
    SLICE_FIRST, /* of two of the slot's size */
    SLICE_SECOND,
};

/* Where a file has no tensor of a slot's own name, and the architecture gives it no other: the one that some converters
 * make of several, and what of it the slot is. NULL: they make none. */
struct model_joined {
    const char *name;
    enum model_slice slice;
};
extern const struct model_joined MODEL_JOINED[MODEL_SLOTS];

enum model_presence { MODEL_REQUIRED, MODEL_OPTIONAL };

struct model_tensor {
    enum model_slot slot;
    enum model_presence presence;
    const char *name; /* NULL: the slot's own */
    enum model_slice slice;
};

/* What a key may be: a row without it forbids it, unless it is 0. */
struct model_key {
    bool allowed;
    float value; /* when the file does not say */
};

#define MODEL_MAX_TENSORS 24

struct model_arch {
    const char *name; /* general.architecture */
    enum kernels_rope_kind rope_kind;
    enum kernels_glu_kind glu;
    bool scaled_embedding;   /* by sqrt(n_embd) */
    int width_scaled_layers; /* the size (in layers) whose scores are divided by sqrt(n_embd / heads) instead of
                                sqrt(head size); 0: none */
    struct {
        enum { WINDOW_NONE, WINDOW_OPTIONAL, WINDOW_REQUIRED } key;
        int tokens;      /* when the file does not say; 0: no windows then */
        int full_period; /* every so many layers one sees everything; 0: all have windows */
        float rope_base; /* of layers with windows; 0: as of the others */
    } window;
    int unrotated_period; /* every so many layers one does not rotate; 0: all do */
    bool rope_switch;     /* files may say that no layer does (rope.scaling.finetuned is false) */
    struct model_key attn_softcap, final_softcap;
    bool scales;      /* constants of the embedding, the blocks, scores and logits may be given */
    bool temperature; /* queries grow with the logarithm of their position */
    bool exact_yarn;  /* YaRN's borders lie where they are computed, not at whole dimensions */
    bool long_rope;   /* two lists of divisors, for short and for long contexts */
    enum { MIXTURE_NEVER, MIXTURE_MAYBE, MIXTURE_ALWAYS } mixture;
    const char *expert_ff_key;                      /* width of an expert; NULL: feed_forward_length */
    struct model_tensor tensors[MODEL_MAX_TENSORS]; /* of every layer */
    struct model_tensor dense[4], experts[9];       /* and of its feed-forward part, whichever it is */
};

/* NULL: not in the table. */
const struct model_arch *model_arch_find(const char *name, size_t len);
/* The table's i-th row; NULL behind the last. */
const struct model_arch *model_arch_at(size_t i);

#endif
