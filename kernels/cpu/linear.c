/* linear.c - products of quantized weights with a batch of activations, shared out over the workers, and embed.
 *
 * One call takes every matrix that has the same input. The input's rows are quantized once, then one run of the workers
 * goes over all groups of 16 weight rows of all matrices. A group is one worker's from the first block to the last, so
 * an output never depends on how groups were shared out, and no sum is split.
 *
 * One token: the time is that of reading the weights, so groups are used straight from their packed form. Up to a tile
 * of tokens: likewise, a block of weights is unpacked in registers and meets one token after the other, while memory
 * goes on delivering. More tokens: a piece of a group is unpacked into a scratch that stays in the first-level cache
 * and meets tile after tile of activations. Tokens are taken in batches whose activations fit into the second-level
 * cache. All add in one order: a piece's blocks, then the pieces.
 *
 * Scratch (struct kernels_linear_scratch) is made by reserve and used by one call at a time: the quantized activations,
 * written by the first run and read by the second, and a piece per worker.
 */
#include "kernels/cpu/linear_internal.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define ACTIVATION_BYTES (1 << 20) /* of the tokens that meet a group before the next group's turn */
#define MAX_BATCH        256       /* tokens likewise */

struct worker_scratch {
    _Alignas(64) uint8_t unpacked[2 * KERNELS_PIECE_BLOCKS * KERNELS_UNPACKED_BLOCK_BYTES]; /* 20 KiB; Q2_K fills it */
    _Alignas(64) float sums[KERNELS_TILE * KERNELS_ROW_GROUP];                              /* of a piece */
    _Alignas(64) float acc[MAX_BATCH * KERNELS_ROW_GROUP];
};

struct kernels_linear_scratch {
    uint8_t *tiles; /* quantized activations */
    size_t tiles_bytes;
    struct worker_scratch *workers; /* [threads] */
    uint8_t q8_mask;                /* what the set's unpacked Q8_0 bytes differ by from the signed ones */
};

struct call {
    struct kernels *k;
    const struct kernels_linear_set *set;
    const float *x;
    const struct kernels_linear *jobs;
    int n, cols, n_jobs;
    int groups; /* of all jobs */
    int batch;  /* tokens that are taken together */
};

static int group_count(const struct kernels_matrix *w)
{
    return w->rows / KERNELS_ROW_GROUP + (w->rows % KERNELS_ROW_GROUP != 0);
}

/* How many of the tokens from `token` on, of n, are a tile. Batches begin at whole tiles, so tiles are the same
 * whatever the batch. */
static int tile_tokens(int token, int n)
{
    return n - token < KERNELS_TILE ? n - token : KERNELS_TILE;
}

static size_t token_bytes(int cols)
{
    return (size_t)(cols / KERNELS_BLOCK) * KERNELS_TOKEN_BLOCK_BYTES;
}

/* ---- activations ------------------------------------------------------------------------------------------------- */

static void quantize_rows(void *arg, int worker, int first, int end)
{
    (void)worker;
    const struct call *c = arg;
    for (int i = first; i < end; i++) {
        int token = i / KERNELS_TILE * KERNELS_TILE, tokens = tile_tokens(token, c->n);
        uint8_t *tile = c->k->linear->tiles + (size_t)token * token_bytes(c->cols);
        c->set->quantize(c->x + (size_t)i * (size_t)c->cols, c->cols, tokens, i - token, tile);
    }
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* y of one group and tokens [token, token + tokens) from their sums. */
static void store(const struct kernels_linear *job, int group, int token, int tokens, const float *acc)
{
    int rows = job->w->rows, first = group * KERNELS_ROW_GROUP;
    int n = rows - first < KERNELS_ROW_GROUP ? rows - first : KERNELS_ROW_GROUP;
    for (int t = 0; t < tokens; t++, acc += KERNELS_ROW_GROUP) {
        float *y = job->y + (size_t)(token + t) * (size_t)rows + first;
        for (int r = 0; r < n; r++) {
            float value = job->bias ? acc[r] + job->bias[first + r] : acc[r];
            y[r] = job->accumulate ? y[r] + value : value;
        }
    }
}

/* What the unpacked blocks of a type are multiplied as. */
static enum kernels_type unpacked_as(enum kernels_type type)
{
    return type < KERNELS_FIRST_UNPACKED || type == KERNELS_Q2_K ? type
           : type == KERNELS_Q3_K                                ? KERNELS_Q6_K
                                                                 : KERNELS_Q8_0;
}

static void unpack(const struct call *c, enum kernels_type type, const uint8_t *packed, int first, int count,
                   uint8_t *out)
{
    uint8_t mask = c->k->linear->q8_mask;
    if (type < KERNELS_FIRST_UNPACKED)
        c->set->unpack(type, packed, c->cols, first, count, out);
    else if (c->set == &kernels_linear_portable)
        kernels_unpack_portable(type, packed, c->cols, first, count, mask, out);
    else
        kernels_unpack_avx2(type, packed, c->cols, first, count, mask, out);
}

/* One group with tokens [token, end). */
static void do_group(const struct call *c, const struct kernels_linear *job, int group, int token, int end,
                     struct worker_scratch *s)
{
    const struct kernels_matrix *w = job->w;
    const struct kernels_type_info *info = kernels_type_info(w->type);
    size_t bytes = (size_t)(c->cols / info->block_values) * (size_t)info->block_bytes * KERNELS_ROW_GROUP;
    const uint8_t *packed = (const uint8_t *)w->data + (size_t)group * bytes;
    int first = token, tokens;

    if (info->block_values == 1) {
        for (; token < end; token += tokens) {
            tokens = tile_tokens(token, c->n);
            c->set->floats(w->type, packed, c->x + (size_t)token * (size_t)c->cols, c->cols, tokens, s->acc);
            store(job, group, token, tokens, s->acc);
        }
        return;
    }
    const uint8_t *tiles = c->k->linear->tiles;
    bool direct = w->type < KERNELS_FIRST_UNPACKED;
    if (direct && c->n == 1 && c->set->one) {
        c->set->one(w->type, packed, c->cols, tiles, s->acc);
        store(job, group, 0, 1, s->acc);
        return;
    }
    if (direct && c->n <= KERNELS_TILE && c->set->few) {
        c->set->few(w->type, packed, c->cols, tiles, c->n, s->sums, s->acc);
        store(job, group, 0, c->n, s->acc);
        return;
    }
    int blocks = c->cols / KERNELS_BLOCK;
    memset(s->acc, 0, (size_t)(end - first) * KERNELS_ROW_GROUP * sizeof(float));
    for (int b = 0; b < blocks; b += KERNELS_PIECE_BLOCKS) {
        int count = blocks - b < KERNELS_PIECE_BLOCKS ? blocks - b : KERNELS_PIECE_BLOCKS;
        unpack(c, w->type, packed, b, count, s->unpacked);
        for (token = first; token < end; token += tokens) {
            tokens = tile_tokens(token, c->n);
            const uint8_t *tile =
                tiles + (size_t)token * token_bytes(c->cols) + (size_t)b * (size_t)tokens * KERNELS_TOKEN_BLOCK_BYTES;
            c->set->tile(unpacked_as(w->type), s->unpacked, count, tile, tokens,
                         s->acc + (token - first) * KERNELS_ROW_GROUP);
        }
    }
    store(job, group, first, end - first, s->acc);
}

/* Items are (batch of tokens, group), groups innermost, so that a worker stays with a batch. */
static void do_items(void *arg, int worker, int first, int end)
{
    const struct call *c = arg;
    struct worker_scratch *s = &c->k->linear->workers[worker];
    for (int i = first; i < end; i++) {
        int token = i / c->groups * c->batch, group = i % c->groups;
        int last = c->n - token < c->batch ? c->n : token + c->batch;
        const struct kernels_linear *job = c->jobs;
        while (group >= group_count(job->w))
            group -= group_count(job++->w);
        do_group(c, job, group, token, last, s);
    }
}

void kernels_op_linear(struct kernels *k, const float *x, int n, int cols, const struct kernels_linear *jobs,
                       int n_jobs)
{
    struct call c = {.k = k, .set = k->set->linear, .x = x, .jobs = jobs, .n = n, .cols = cols, .n_jobs = n_jobs};
    bool quantized = false;
    for (int i = 0; i < n_jobs; i++) {
        c.groups += group_count(jobs[i].w);
        quantized = quantized || kernels_type_info(jobs[i].w->type)->block_values > 1;
    }
    if (n <= 0 || c.groups == 0)
        return;
    size_t row_bytes = (size_t)cols * 2; /* a value takes 1.6 bytes quantized, 4 as it is */
    size_t batch = ACTIVATION_BYTES / row_bytes / KERNELS_TILE * KERNELS_TILE;
    c.batch = batch < 4 * KERNELS_TILE ? 4 * KERNELS_TILE : batch > MAX_BATCH ? MAX_BATCH : (int)batch;
    if (quantized)
        kernels_pool_run(k->pool, n, 4, quantize_rows, &c);
    kernels_pool_run(k->pool, (n + c.batch - 1) / c.batch * c.groups, 1, do_items, &c);
}

/* ---- embed ------------------------------------------------------------------------------------------------------- */

struct embed_call {
    const struct kernels_matrix *w;
    const int32_t *ids;
    float scale;
    float *out;
};

static void embed_rows(void *arg, int worker, int first, int end)
{
    (void)worker;
    const struct embed_call *c = arg;
    for (int i = first; i < end; i++) {
        float *out = c->out + (size_t)i * (size_t)c->w->cols;
        kernels_packed_row(c->w, c->ids[i], out);
        for (int v = 0; v < c->w->cols; v++)
            out[v] *= c->scale;
    }
}

void kernels_op_embed(struct kernels *k, const struct kernels_matrix *w, const int32_t *ids, int n, float scale,
                      float *out)
{
    struct embed_call c = {w, ids, scale, out};
    kernels_pool_run(k->pool, n, 4, embed_rows, &c);
}

/* ---- scratch ----------------------------------------------------------------------------------------------------- */

void kernels_linear_release(struct kernels *k)
{
    if (!k->linear)
        return;
    kernels_cpu_release(k->linear->tiles, k->linear->tiles_bytes);
    free(k->linear->workers);
    free(k->linear);
    k->linear = NULL;
}

uint64_t kernels_linear_bytes(int max_rows, int max_cols)
{
    int most = max_cols > INT_MAX - KERNELS_BLOCK ? INT_MAX : max_cols + KERNELS_BLOCK - 1;
    return (uint64_t)max_rows * token_bytes(most);
}

int kernels_linear_reserve(struct kernels *k, int max_rows, int max_cols)
{
    kernels_linear_release(k);
    size_t blocks = ((size_t)max_cols + KERNELS_BLOCK - 1) / KERNELS_BLOCK, bytes;
    if (max_rows <= 0 || max_cols <= 0 ||
        __builtin_mul_overflow(blocks * KERNELS_TOKEN_BLOCK_BYTES, (size_t)max_rows, &bytes))
        return -ENOMEM;
    k->linear = calloc(1, sizeof *k->linear);
    if (!k->linear)
        return -ENOMEM;
    k->linear->tiles_bytes = bytes;
    k->linear->tiles = kernels_cpu_alloc(bytes);
    k->linear->workers = aligned_alloc(64, (size_t)k->threads * sizeof *k->linear->workers);
    if (!k->linear->tiles || !k->linear->workers) {
        kernels_linear_release(k);
        return -ENOMEM;
    }
    /* What the set makes of a Q8_0 byte is its own affair: asked of a block of zeros. */
    static const uint8_t zeros[34 * KERNELS_ROW_GROUP];
    k->set->linear->unpack(KERNELS_Q8_0, zeros, KERNELS_BLOCK, 0, 1, k->linear->workers[0].unpacked);
    k->linear->q8_mask = k->linear->workers[0].unpacked[0];
    return 0;
}
