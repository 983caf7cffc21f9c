/* load.c - reads a model's weights and packs them, in one pass over its file.
 *
 * The tensors are taken in the order in which they lie in the file, a piece at a time: a piece is read into a buffer,
 * and while the workers pack its rows, one of them adds its bytes to the file's hash. So a file is read once, a model
 * is never in memory twice, and what was hashed is what was packed. Afterwards nothing reads the file again.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/file/file.h"
#include "engine/model/model.h"

/* Weights lie one after the other in blocks of this size (a larger tensor has its own), since the backend rounds every
 * allocation up to huge pages: with one allocation per tensor a small model would be a quarter larger. */
#define BLOCK_BYTES  ((size_t)64 << 20)
#define WEIGHT_ALIGN 64

#define PIECE_BYTES ((size_t)8 << 20)

struct model_block {
    struct model_block *next;
    uint8_t *p;
    size_t bytes, used;
};

struct loader {
    const struct gguf *g;
    struct kernels *k;
    const struct kernels_ops *ops;
    struct model *m;
    struct gguf_hash *hash;
    bool hash_failed;
    uint8_t *piece;
    size_t piece_bytes;
    /* How far the pass has come: all before it was hashed. */
    size_t part;
    uint64_t at;
    uint64_t done_bytes, total_bytes;
    void (*progress)(void *arg, double fraction, const char *what);
    void *progress_arg;
    char *err;
    size_t err_size;
};

static void *block_alloc(struct loader *ld, size_t bytes)
{
    struct model_block *b = ld->m->blocks;
    size_t padded = (bytes + WEIGHT_ALIGN - 1) & ~(size_t)(WEIGHT_ALIGN - 1);
    if (!b || padded > b->bytes - b->used) {
        b = malloc(sizeof *b);
        if (!b)
            return NULL;
        *b = (struct model_block){.next = ld->m->blocks, .bytes = padded > BLOCK_BYTES ? padded : BLOCK_BYTES};
        b->p = ld->ops->alloc(ld->k, b->bytes);
        if (!b->p) {
            free(b);
            return NULL;
        }
        ld->m->blocks = b;
    }
    void *p = b->p + b->used;
    b->used += padded;
    return p;
}

/* ---- one piece ---- */

struct pack {
    struct loader *ld;
    const struct model_job *job; /* NULL: nothing to pack */
    size_t bytes;                /* in the buffer */
    int rows;                    /* in the buffer */
    void *packed;
};

/* Item 0 is the hash, the others are groups of rows. */
static void pack_or_hash(void *arg, int i)
{
    struct pack *p = arg;
    struct loader *ld = p->ld;
    if (i == 0) {
        if (ld->hash && !gguf_hash_update(ld->hash, ld->piece, p->bytes))
            ld->hash_failed = true;
    } else {
        kernels_pack_group(p->job->t->type, p->rows, p->job->cols, i - 1, ld->piece, p->packed);
    }
}

static void widen_vector(const struct model_job *job, const uint8_t *in, int n, float *out)
{
    for (int i = 0; i < n; i++) {
        if (job->t->type == KERNELS_F32) {
            memcpy(&out[i], in + (size_t)i * 4, 4);
        } else {
            uint16_t half;
            memcpy(&half, in + (size_t)i * 2, 2);
            uint32_t bits = (uint32_t)half << 16;
            memcpy(&out[i], &bits, 4);
        }
    }
}

static int read_piece(struct loader *ld, size_t part, uint64_t at, size_t n)
{
    int rc = gguf_read(ld->g, part, at, n, ld->piece, ld->err, ld->err_size);
    if (rc)
        return rc;
    ld->done_bytes += n;
    if (ld->progress && ld->total_bytes)
        ld->progress(ld->progress_arg, (double)ld->done_bytes / (double)ld->total_bytes, "loading the model");
    return 0;
}

/* Hashes what lies between here and byte `at` of a part: headers, padding, tensors that nobody wants. */
static int skip_to(struct loader *ld, size_t part, uint64_t at)
{
    while (ld->hash && (ld->part < part || ld->at < at)) {
        uint64_t end = ld->part < part ? gguf_part_bytes(ld->g, ld->part) : at;
        if (ld->at == end) {
            ld->part++;
            ld->at = 0;
            continue;
        }
        size_t n = end - ld->at < ld->piece_bytes ? (size_t)(end - ld->at) : ld->piece_bytes;
        int rc = read_piece(ld, ld->part, ld->at, n);
        if (rc)
            return rc;
        if (!gguf_hash_update(ld->hash, ld->piece, n))
            ld->hash_failed = true;
        ld->at += n;
    }
    ld->part = part;
    ld->at = at;
    return 0;
}

static int load_job(struct loader *ld, const struct model_job *job)
{
    const struct gguf_tensor *t = job->t;
    uint64_t row_bytes = t->bytes / (t->values / t->dims[0]);
    uint64_t start = t->offset + job->at;
    float *vector = NULL;
    uint8_t *packed = NULL;
    size_t group_bytes = job->vector ? 0 : kernels_packed_bytes(t->type, KERNELS_ROW_GROUP, job->cols);
    size_t bytes =
        job->vector ? (size_t)job->cols * sizeof(float) : kernels_packed_bytes(t->type, job->rows, job->cols);
    void *to = block_alloc(ld, bytes);
    int rc;
    if (!to)
        return gguf_fail(ld->g, ld->err, ld->err_size, -ENOMEM, "no memory for tensor %s (%zu bytes)", t->name, bytes);
    if ((rc = skip_to(ld, t->part, start)))
        return rc;
    if (job->vector) {
        vector = to;
        row_bytes = t->bytes / t->values;
        *(const float **)job->to = vector;
    } else {
        packed = to;
        *(struct kernels_matrix *)job->to =
            (struct kernels_matrix){.type = t->type, .rows = job->rows, .cols = job->cols, .data = packed};
    }
    int n = job->vector ? job->cols : job->rows;
    uint64_t most = ld->piece_bytes / row_bytes / KERNELS_ROW_GROUP * KERNELS_ROW_GROUP;
    for (int row = 0, rows; row < n; row += rows) {
        rows = (uint64_t)(n - row) < most ? n - row : (int)most;
        size_t piece = (size_t)row_bytes * (size_t)rows;
        if ((rc = read_piece(ld, t->part, ld->at, piece)))
            return rc;
        struct pack p = {ld, job, piece, rows, NULL};
        int groups = 0;
        if (job->vector) {
            widen_vector(job, ld->piece, rows, vector + row);
        } else {
            p.packed = packed + (size_t)(row / KERNELS_ROW_GROUP) * group_bytes;
            groups = (rows + KERNELS_ROW_GROUP - 1) / KERNELS_ROW_GROUP;
        }
        kernels_parallel(ld->k, 1 + groups, pack_or_hash, &p);
        ld->at += piece;
    }
    return 0;
}

/* ---- the pass ---- */

static int compare_jobs(const void *a, const void *b)
{
    const struct model_job *x = a, *y = b;
    if (x->t->part != y->t->part)
        return x->t->part < y->t->part ? -1 : 1;
    uint64_t p = x->t->offset + x->at, q = y->t->offset + y->at;
    return (p > q) - (p < q);
}

/* A piece must hold a group of rows of every tensor. */
static size_t piece_bytes_for(const struct model *m)
{
    size_t most = PIECE_BYTES;
    for (size_t i = 0; i < m->n_jobs; i++) {
        const struct gguf_tensor *t = m->jobs[i].t;
        size_t group = t->bytes / (t->values / t->dims[0]) * KERNELS_ROW_GROUP;
        most = group > most ? group : most;
    }
    return most;
}

int model_load(struct model *m, const struct gguf *g, struct kernels *k, struct gguf_hash *hash,
               void (*progress)(void *arg, double fraction, const char *what), void *arg, char *err, size_t err_size)
{
    struct loader ld = {.g = g,
                        .k = k,
                        .ops = kernels_ops(k),
                        .m = m,
                        .hash = hash,
                        .progress = progress,
                        .progress_arg = arg,
                        .err = err,
                        .err_size = err_size};
    int rc = 0;
    qsort(m->jobs, m->n_jobs, sizeof *m->jobs, compare_jobs);
    for (size_t i = 0; i < m->n_jobs; i++)
        ld.total_bytes += m->jobs[i].t->bytes / (m->jobs[i].t->values / m->jobs[i].t->dims[0]) *
                          (uint64_t)(m->jobs[i].vector ? 1 : m->jobs[i].rows);
    if (hash)
        ld.total_bytes = gguf_bytes(g);
    ld.piece_bytes = piece_bytes_for(m);
    ld.piece = malloc(ld.piece_bytes);
    if (!ld.piece)
        rc = gguf_fail(g, err, err_size, -ENOMEM, "no memory to read it");
    for (size_t i = 0; rc == 0 && i < m->n_jobs; i++)
        rc = load_job(&ld, &m->jobs[i]);
    if (rc == 0) {
        size_t last = gguf_part_count(g) - 1;
        rc = skip_to(&ld, last, gguf_part_bytes(g, last));
    }
    if (rc == 0 && ld.hash_failed)
        rc = gguf_fail(g, err, err_size, -ENOMEM, "its hash cannot be computed");
    if (rc == 0)
        rc = gguf_check_unchanged(g, err, err_size);
    free(ld.piece);
    free(m->jobs);
    m->jobs = NULL;
    m->n_jobs = m->jobs_capacity = 0;
    if (rc == 0 && !m->output.data)
        m->output = m->embed;
    return rc;
}

void model_close(struct model *m, struct kernels *k)
{
    while (m->blocks) {
        struct model_block *b = m->blocks;
        m->blocks = b->next;
        kernels_ops(k)->release(k, b->p, b->bytes);
        free(b);
    }
    for (int i = 0; i < MODEL_ROPES; i++)
        free(m->rope[i].inv_freq);
    for (int l = 0; m->layers && l < m->n_layers; l++) {
        free(m->layers[l].gate_experts);
        free(m->layers[l].up_experts);
        free(m->layers[l].down_experts);
    }
    free(m->layers);
    free(m->jobs);
    memset(m, 0, sizeof *m);
}
