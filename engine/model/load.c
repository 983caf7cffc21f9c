/* load.c - reads a model's weights and has them packed, in one pass over its file.
 *
 * The tensors are taken in the order in which they lie in the file, a piece at a time: a piece is read into a buffer,
 * and while the backend packs its rows, its bytes are added to the file's hash. So a file is read once, a model is
 * never in memory twice, and what was hashed is what was packed. Afterwards nothing reads the file again.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/file/file.h"
#include "engine/model/model.h"

/* Weights lie one after the other in blocks of this size (a larger tensor has its own), since the backend rounds every
 * allocation up to huge pages: with one allocation per tensor a small model would be a quarter larger. */
#define BLOCK_BYTES  ((size_t)64 << 20)
#define WEIGHT_ALIGN 256

#define PIECE_BYTES ((size_t)8 << 20)
#define ROW_GROUP   16 /* rows that a backend packs are a multiple of this */

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
    float *widened; /* a vector's values in a piece */
    size_t piece_bytes;
    /* How far the pass has come: all before it was hashed. */
    size_t part;
    uint64_t at;
    size_t block_bytes; /* of memory for weights that is taken at a time, at least */
    uint64_t done_bytes, total_bytes;
    void (*progress)(void *arg, double fraction, const char *what);
    void *progress_arg;
    char *err;
    size_t err_size;
};

/* Bytes of all of a job's matrix. */
static size_t matrix_bytes(const struct model_job *job, struct kernels *k)
{
    size_t bytes = kernels_ops(k)->matrix_bytes(k, job->t->type, job->rows, job->cols);
    return job->experts ? bytes * (size_t)job->experts : bytes;
}

/* Bytes of a job's weights on the device. Those of experts that lie apart have their place with the first one's. */
static size_t job_bytes(const struct model_job *job, struct kernels *k)
{
    if (job->expert > 1)
        return 0;
    if (job->vector)
        return (size_t)job->cols * sizeof(float);
    return matrix_bytes(job, k);
}

static size_t weight_padded(size_t bytes)
{
    return (bytes + WEIGHT_ALIGN - 1) & ~(size_t)(WEIGHT_ALIGN - 1);
}

/* The layer that a job's matrix belongs to, where it is one whose weights are in the host's memory; else NULL. */
static struct model_layer *host_layer(const struct model *m, const struct model_job *job)
{
    uintptr_t to = (uintptr_t)job->to, first = (uintptr_t)(m->layers + m->n_layers - m->host_layers);
    if (job->vector || to < first || to >= (uintptr_t)(m->layers + m->n_layers))
        return NULL;
    return m->layers + m->n_layers - m->host_layers + (to - first) / sizeof *m->layers;
}

void model_weigh(struct model *m, struct kernels *k)
{
    bool own_output = false;
    m->weight_bytes = m->embed_bytes = m->host_bytes = 0;
    for (size_t i = 0; i < m->n_jobs; i++) {
        size_t bytes = job_bytes(&m->jobs[i], k);
        struct model_layer *y = host_layer(m, &m->jobs[i]);
        m->weight_bytes += bytes;
        if (y) {
            m->host_bytes += bytes;
            y->host_bytes += weight_padded(bytes);
            m->staged_bytes = y->host_bytes > m->staged_bytes ? y->host_bytes : m->staged_bytes;
        }
        m->embed_bytes += m->jobs[i].to == &m->embed ? bytes : 0;
        own_output = own_output || m->jobs[i].to == &m->output;
    }
    if (!own_output)
        m->embed_bytes = 0;
}

/* What is not used of a block costs nothing on the host. On a device it does: there one block has all. */
static size_t block_bytes_for(const struct model *m, struct kernels *k)
{
    size_t bytes = 0;
    for (size_t i = 0; i < m->n_jobs; i++)
        bytes += host_layer(m, &m->jobs[i]) ? 0 : weight_padded(job_bytes(&m->jobs[i], k));
    return kernels_ops(k)->host ? BLOCK_BYTES : bytes;
}

static void *block_alloc(struct loader *ld, size_t bytes)
{
    struct model_block *b = ld->m->blocks;
    size_t padded = weight_padded(bytes);
    if (!b || padded > b->bytes - b->used) {
        b = malloc(sizeof *b);
        if (!b)
            return NULL;
        *b = (struct model_block){.next = ld->m->blocks, .bytes = padded > ld->block_bytes ? padded : ld->block_bytes};
        b->p = ld->ops->alloc(ld->k, KERNELS_DEVICE, b->bytes);
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

struct piece {
    struct loader *ld;
    size_t bytes; /* in the buffer */
};

static void hash_piece(void *arg)
{
    const struct piece *p = arg;
    if (!gguf_hash_update(p->ld->hash, p->ld->piece, p->bytes))
        p->ld->hash_failed = true;
}

static void widen_vector(const struct model_job *job, const uint8_t *in, int n, float *out)
{
    for (int i = 0; i < n; i++) {
        uint16_t half;
        memcpy(&half, in + (size_t)i * 2, 2);
        if (job->t->type == KERNELS_F16) {
            out[i] = kernels_half(half);
        } else if (job->t->type == KERNELS_BF16) {
            uint32_t bits = (uint32_t)half << 16;
            memcpy(&out[i], &bits, 4);
        } else {
            memcpy(&out[i], in + (size_t)i * 4, 4);
        }
        if (job->divisor != 0.0f)
            out[i] /= job->divisor;
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

/* Whether the backend has failed; then the message says of what. */
static bool device_failed(struct loader *ld)
{
    const char *why = ld->ops->error(ld->k);
    if (why)
        (void)gguf_fail(ld->g, ld->err, ld->err_size, -EIO, "the device failed: %s", why);
    return why != NULL;
}

/* Reads the `rows` rows of the file that come next, in pieces, and hands each to the backend. expert: of a matrix;
 * vector: where its values go. */
static int load_rows(struct loader *ld, const struct model_job *job, int expert, float *vector, int rows,
                     size_t row_bytes)
{
    int most = (int)(ld->piece_bytes / row_bytes / ROW_GROUP * ROW_GROUP), rc;
    for (int row = 0, n; row < rows; row += n) {
        n = rows - row < most ? rows - row : most;
        struct piece p = {ld, (size_t)n * row_bytes};
        if ((rc = read_piece(ld, job->t->part, ld->at, p.bytes)))
            return rc;
        if (vector) {
            widen_vector(job, ld->piece, n, ld->widened);
            ld->ops->upload(ld->k, vector + row, ld->widened, (size_t)n * sizeof *vector);
            if (ld->hash)
                hash_piece(&p);
        } else {
            ld->ops->pack(ld->k, job->to, expert, row, n, ld->piece, ld->hash ? hash_piece : NULL, &p);
        }
        ld->at += p.bytes;
        if (device_failed(ld))
            return -EIO;
    }
    return 0;
}

size_t model_staged_bytes(const struct model *m)
{
    return m->staged_bytes * (size_t)(m->host_layers < KERNELS_PLACES ? m->host_layers : KERNELS_PLACES);
}

/* With one such layer, the last, there is one place. */
static int place_number(const struct model *m, int l)
{
    return (m->n_layers - 1 - l) % KERNELS_PLACES;
}

static uint8_t *place_of(const struct model *m, int l)
{
    return m->staged + (size_t)place_number(m, l) * m->staged_bytes;
}

/* Where a matrix of a layer in the host's memory is packed; NULL: there is no memory for it. */
static uint8_t *stage_alloc(struct loader *ld, struct model_layer *y, size_t bytes)
{
    struct model *m = ld->m;
    if (!m->staged)
        m->staged = ld->ops->alloc(ld->k, KERNELS_DEVICE, model_staged_bytes(m));
    if (!y->host)
        y->host = ld->ops->alloc(ld->k, KERNELS_PINNED, y->host_bytes);
    if (!m->staged || !y->host)
        return NULL;
    size_t at = y->host_used;
    y->host_used += weight_padded(bytes);
    return place_of(m, (int)(y - m->layers)) + at;
}

/* Takes what was packed of the layer, `bytes` from `at` on, to the host. */
static void unstage(struct loader *ld, struct model_layer *y, const uint8_t *at, size_t bytes)
{
    ld->ops->copy(ld->k, KERNELS_COMPUTE, y->host + (at - place_of(ld->m, (int)(y - ld->m->layers))), at, bytes);
    (void)ld->ops->wait(ld->k, ld->ops->record(ld->k, KERNELS_COMPUTE), -1); /* a failure is the device's */
}

static int load_job(struct loader *ld, const struct model_job *job)
{
    const struct gguf_tensor *t = job->t;
    size_t bytes = job_bytes(job, ld->k);
    struct model_layer *y = host_layer(ld->m, job);
    void *to = !bytes ? NULL : y ? stage_alloc(ld, y, bytes) : block_alloc(ld, bytes);
    if (bytes && !to && device_failed(ld))
        return -EIO;
    if (bytes && !to)
        return gguf_fail(ld->g, ld->err, ld->err_size, -ENOMEM, "no memory for tensor %s (%zu bytes)", t->name, bytes);
    int rc = skip_to(ld, t->part, t->offset + job->at);
    if (rc)
        return rc;
    if (job->vector) {
        *(const float **)job->to = to;
        return load_rows(ld, job, 0, to, job->cols, kernels_row_bytes(t->type, 1));
    }
    struct kernels_matrix *matrix = job->to;
    if (to)
        *matrix = (struct kernels_matrix){
            .type = t->type, .rows = job->rows, .cols = job->cols, .experts = job->experts, .data = to};
    int end = job->expert ? job->expert : job->experts ? job->experts : 1;
    for (int i = job->expert ? job->expert - 1 : 0; rc == 0 && i < end; i++)
        rc = load_rows(ld, job, i, NULL, job->rows, kernels_row_bytes(t->type, job->cols));
    if (y && rc == 0 && job->expert == (job->expert ? job->experts : 0))
        unstage(ld, y, matrix->data, matrix_bytes(job, ld->k));
    return rc;
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
        size_t group = t->bytes / (t->values / t->dims[0]) * ROW_GROUP;
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
                          (uint64_t)(m->jobs[i].vector ? 1 : m->jobs[i].rows) *
                          (uint64_t)(m->jobs[i].experts && !m->jobs[i].expert ? m->jobs[i].experts : 1);
    if (hash)
        ld.total_bytes = gguf_bytes(g);
    ld.piece_bytes = piece_bytes_for(m);
    ld.block_bytes = block_bytes_for(m, k);
    ld.piece = malloc(ld.piece_bytes);
    ld.widened = malloc(ld.piece_bytes / 2 * sizeof *ld.widened); /* the narrowest takes two bytes in the file */
    if (!ld.piece || !ld.widened)
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
    if (rc == 0 && device_failed(&ld))
        rc = -EIO;
    free(ld.piece);
    free(ld.widened);
    free(m->jobs);
    m->jobs = NULL;
    m->n_jobs = m->jobs_capacity = 0;
    if (rc == 0 && !m->output.data)
        m->output = m->embed;
    return rc;
}

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

void model_bring(const struct model *m, const struct kernels_ops *ops, struct kernels *k, int l)
{
    if (l < m->n_layers && m->layers[l].host)
        ops->bring(k, place_number(m, l), place_of(m, l), m->layers[l].host, m->layers[l].host_used);
}

void model_brought(const struct model *m, const struct kernels_ops *ops, struct kernels *k, int l)
{
    if (m->layers[l].host)
        ops->brought(k, place_number(m, l));
}

double model_bring_ms(const struct model *m, struct kernels *k)
{
    const struct kernels_ops *ops = kernels_ops(k);
    double began = now_ms();
    for (int l = m->n_layers - m->host_layers; l < m->n_layers; l++) {
        model_bring(m, ops, k, l);
        model_brought(m, ops, k, l);
    }
    (void)ops->wait(k, ops->record(k, KERNELS_COMPUTE), -1); /* a failure is the device's */
    return now_ms() - began;
}

void model_close(struct model *m, struct kernels *k)
{
    while (m->blocks) {
        struct model_block *b = m->blocks;
        m->blocks = b->next;
        kernels_ops(k)->release(k, KERNELS_DEVICE, b->p, b->bytes);
        free(b);
    }
    for (int l = 0; l < m->n_layers && m->layers; l++)
        if (m->layers[l].host)
            kernels_ops(k)->release(k, KERNELS_PINNED, m->layers[l].host, m->layers[l].host_bytes);
    if (m->staged)
        kernels_ops(k)->release(k, KERNELS_DEVICE, m->staged, model_staged_bytes(m));
    for (int i = 0; i < MODEL_ROPES; i++)
        free(m->rope[i].inv_freq);
    free(m->layers);
    free(m->jobs);
    memset(m, 0, sizeof *m);
}
