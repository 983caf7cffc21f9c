/* backend.h - the CUDA backend as its own files see it: the object, its streams, its scratch, and its table's
 * functions.
 *
 * Layers inside this room: cuda.h has operations on plain memory of the device, one .cu file each; the files that
 * include this header put them together to what kernels.h asks for. backend.cu opens a device and has memory, streams
 * and events; batch.cu takes batches to the device and keeps graphs; load.cu packs; step.cu has the step's operations.
 *
 * Errors are sticky: fine() notes the first one in words, and from then on nothing is put into a stream any more.
 */
#ifndef CONVOD_KERNELS_CUDA_BACKEND_H
#define CONVOD_KERNELS_CUDA_BACKEND_H

extern "C" {
#include "kernels/backend.h"
}
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/library.h"
#include "kernels/cuda/nvml.h"

#include <errno.h>

#define STREAMS 3 /* enum kernels_stream */
#define EVENTS                                                                                                         \
    256 /* of a stream that are remembered one by one; older ones have passed when the oldest of these has             \
         */
#define STAGINGS    3   /* batches that may be on their way to the device */
#define MAX_BATCHES 32  /* kinds of batches that have a graph */
#define GRAPH_ROWS  64  /* a batch with more rows has none */
#define SHARED_ROWS 16  /* up to so many rows of a batch share a query's blocks out over the device */
#define USUAL_SEEN  512 /* seen tokens of a pick that there is room for from the start */

/* What a batch is on the device: all in one piece, `fixed` bytes at places that no batch changes, then page tables as
 * long as they are. */
struct batch_places {
    size_t ids, pos, first, end, query_scale, table[KERNELS_PAGE_GROUPS], count[KERNELS_PAGE_GROUPS], wanted, fixed;
};

/* Memory of the device, and pinned copies of it that take turns on their way there. */
struct staged {
    uint8_t *device, *pinned[STAGINGS];
    kernels_event sent[STAGINGS];
    size_t bytes; /* of each */
    int turn;
};

struct batch_graph {
    int rows, wanted;
    unsigned seen; /* how many batches of this kind there were */
    uint64_t met;  /* the last of them */
    cudaGraphExec_t exec;
};

/* Scratch of the step's operations, from one allocation. Places are those of cuda_sort_experts(). */
struct scratch {
    float *gate, *up;              /* [places][ff]; up [rows][ff] too */
    float *rows, *said;            /* [places][cols] */
    float *weights;                /* [rows][experts_used] */
    int32_t *ids, *places;         /* likewise */
    int32_t *sources, *tiles;      /* [places], [experts + 1] */
    uint8_t *quants;               /* of places */
    void *halves;                  /* of rows or of places */
    float *products;               /* [rows][cols], of library_multiply() */
    float *changed;                /* [picks][vocab] */
    float *partial;                /* of cuda_attention, for SHARED_ROWS rows */
    struct kernels_picked *picked; /* [picks] */
};

struct split_scratch {
    struct cuda_split_scratch p;
    size_t whole_bytes, split_bytes;
};

struct kernels {
    struct kernels_head head;
    char numerics[KERNELS_NUMERICS_TEXT]; /* sums of a float `mma` are each family's own */
    int device;
    cudaStream_t stream[STREAMS], loading, bringing;
    cudaEvent_t left[KERNELS_PLACES], there[KERNELS_PLACES]; /* a place may be written; has what was brought */
    cudaEvent_t event[STREAMS][EVENTS];
    uint64_t recorded[STREAMS], passed[STREAMS]; /* counted from 1 */
    char error[256];                             /* empty: none */
    struct nvml *nvml;

    /* Opened for the first 16-bit weights; NULL: it is not there. */
    struct library *library;
    bool library_asked;
    char library_lacks[200]; /* why it was not used where it was wanted last, for a person */
    char notes[400];         /* kernels_notes() */

    bool exact; /* attention in the CPU's order */
    struct kernels_sizes sizes;
    struct scratch scratch;
    void *scratch_memory;
    size_t scratch_bytes;

    /* The batch at hand. */
    struct batch_places places;
    struct staged batch, picks; /* picks: and seen tokens and masks behind them */
    uint64_t batches;
    int rows, wanted;
    struct batch_graph graphs[MAX_BATCHES];
    int n_graphs;
    struct batch_graph *capturing, *replaying; /* this step */

    /* KV on its way in and out, in the split form and as it is. */
    struct split_scratch split_in, split_out;

    /* Rows of a file on their way to be packed. */
    uint8_t *raw;
    size_t raw_bytes;
};

/* Notes a failure of `what`; false when there is or was one. */
bool backend_fine(struct kernels *k, cudaError_t e, const char *what);
/* Makes the device the calling thread's; false when there was a failure. */
bool backend_ready(struct kernels *k);
/* The same for what cuda.h's functions return. */
bool backend_put(struct kernels *k, int rc, const char *what);

/* backend.cu */
void *backend_alloc(struct kernels *k, enum kernels_place place, size_t bytes);
void backend_release(struct kernels *k, enum kernels_place place, void *p, size_t bytes);
kernels_event backend_record(struct kernels *k, enum kernels_stream stream);
int backend_wait(struct kernels *k, kernels_event event, int timeout_ms);

/* batch.cu */
size_t backend_batch_bytes(const struct kernels_sizes *s); /* on the device; pinned STAGINGS times */
int backend_batch_reserve(struct kernels *k);
void backend_batch_close(struct kernels *k);
int backend_begin(struct kernels *k, const struct kernels_batch *b);
void backend_end(struct kernels *k);
/* Arrays of the batch on the device. */
const int32_t *backend_batch_ids(const struct kernels *k);
const int32_t *backend_batch_pos(const struct kernels *k);
const float *backend_batch_query_scale(const struct kernels *k);
const int32_t *backend_batch_wanted(const struct kernels *k);
struct cuda_rows backend_batch_rows(const struct kernels *k, int group);
/* Takes picks to the device; where they are there, NULL: there was a failure. */
const struct cuda_pick *backend_send_picks(struct kernels *k, const struct kernels_pick *picks, int n);

/* load.cu */
size_t backend_matrix_bytes(struct kernels *k, enum kernels_type type, int rows, int cols);
void backend_pack(struct kernels *k, const struct kernels_matrix *w, int expert, int first, int n, const void *rows,
                  void (*beside)(void *arg), void *arg);
void backend_upload(struct kernels *k, void *to, const void *from, size_t bytes);
void backend_bring(struct kernels *k, int place, void *to, const void *from, size_t bytes);
void backend_brought(struct kernels *k, int place);

/* step.cu: the step's operations, and what they need. */
void backend_step_ops(struct kernels_ops *t);
uint64_t backend_reserve_bytes(struct kernels *k, const struct kernels_sizes *sizes);
int backend_reserve(struct kernels *k, const struct kernels_sizes *sizes);
void backend_release_split(struct kernels *k);

#endif
