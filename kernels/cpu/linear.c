/* linear.c - products of quantized weights with a batch of activations, shared out over the workers, and embed.
 *
 * One call takes every matrix that has the same input. The input's rows are quantized once (by what wrote them, where
 * that could), then one run of the workers goes over units of all matrices: one or two groups of 16 weight rows. A unit
 * is one worker's from the first block to the last, so an output never depends on how units were shared out, and no sum
 * is split.
 *
 * One token: the time is that of reading the weights, so groups are used straight from their packed form. Up to a tile
 * of tokens: likewise, a block of weights, or half of one, is unpacked in registers and meets one token after the
 * other, while memory goes on delivering. More tokens: a piece of a group is unpacked into a scratch that stays in the
 * first-level cache and meets tile after tile of activations, where the set gains by it together with that of a second
 * group. Tokens are taken in batches whose activations fit into the second-level cache. All add in one order: a piece's
 * blocks, then the pieces.
 *
 * A gated product takes the same rows of both matrices as a unit, so that what they give is activated, and quantized
 * for the next product, before it leaves the cache.
 *
 * Scratch (struct kernels_linear_scratch) is made by reserve and used by one call at a time: the quantized activations,
 * written by the first run and read by the second, and a piece and sums per worker.
 */
#include "kernels/cpu/linear_internal.h"
#include "kernels/cpu/rows_internal.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define MIN_PAIRS        4         /* units of two groups for each worker, or they are of one: so shares are even */
#define MAX_PARTS        4         /* groups of a unit */
#define ACTIVATION_BYTES (1 << 20) /* of the tokens that meet a group before the next group's turn */

struct worker_scratch {
    _Alignas(64) uint8_t unpacked[2 * KERNELS_UNPACKED_PIECE_BYTES]; /* 20 KiB: of two groups, or of Q2_K */
    _Alignas(64) float sums[KERNELS_TILE * KERNELS_ROW_GROUP];       /* of a piece */
    _Alignas(64) float acc[MAX_PARTS][KERNELS_BATCH * KERNELS_ROW_GROUP];
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
    const uint8_t *tiles; /* x, quantized */
    const struct kernels_linear *jobs;
    int n, cols, n_jobs;
    /* Two jobs, of which act(first) * second is wanted: a unit is 32 rows of both, a block of what comes out. */
    const struct kernels_acts *gated; /* NULL: no */
    enum kernels_glu_kind kind;
    bool pairs; /* not gated: a unit is two groups of a job, or else one */
    int units;  /* of all jobs */
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

struct quantizing {
    const struct kernels_linear_set *set;
    const float *x;
    int n, cols;
    uint8_t *tiles;
};

static void quantize_rows(void *arg, int worker, int first, int end)
{
    (void)worker;
    const struct quantizing *c = arg;
    for (int i = first; i < end; i++)
        kernels_quantize_row(c->set, c->x + (size_t)i * (size_t)c->cols, c->cols, i, c->n, c->tiles);
}

void kernels_quantize_row(const struct kernels_linear_set *set, const float *x, int cols, int row, int n,
                          uint8_t *tiles)
{
    int token = row / KERNELS_TILE * KERNELS_TILE;
    set->quantize(x, cols, tile_tokens(token, n), row - token, tiles + (size_t)token * token_bytes(cols));
}

void kernels_op_quantize(struct kernels *k, const float *x, int n, int cols, void *tiles)
{
    struct quantizing c = {k->set->linear, x, n, cols, tiles};
    kernels_pool_run(k->pool, n, 4, quantize_rows, &c);
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* A row of a group: y = sums + bias, or y += that. */
static void store_row(const float *sums, const float *bias, bool accumulate, float *y)
{
    float v[KERNELS_ROW_GROUP];
    memcpy(v, sums, sizeof v);
    if (bias)
        for (int r = 0; r < KERNELS_ROW_GROUP; r++)
            v[r] += bias[r];
    if (accumulate)
        for (int r = 0; r < KERNELS_ROW_GROUP; r++)
            v[r] += y[r];
    memcpy(y, v, sizeof v);
}

/* y of one group and tokens [token, token + tokens) from their sums. */
static void store(const struct kernels_linear *job, int group, int token, int tokens, const float *acc)
{
    int rows = job->w->rows, first = group * KERNELS_ROW_GROUP, n = rows - first;
    const float *bias = job->bias ? job->bias + first : NULL;
    for (int t = 0; t < tokens; t++, acc += KERNELS_ROW_GROUP) {
        float *y = job->y + (size_t)(token + t) * (size_t)rows + first;
        if (n >= KERNELS_ROW_GROUP) {
            store_row(acc, bias, job->accumulate, y);
            continue;
        }
        for (int r = 0; r < n; r++) {
            float value = bias ? acc[r] + bias[r] : acc[r];
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

/* A group of a matrix. */
struct part {
    const struct kernels_linear *job;
    int group;
    enum kernels_type type;
    bool floats; /* weights that are not quantized */
    const uint8_t *packed;
};

static struct part part_of(const struct call *c, const struct kernels_linear *job, int group)
{
    const struct kernels_type_info *info = kernels_type_info(job->w->type);
    size_t bytes = (size_t)(c->cols / info->block_values) * (size_t)info->block_bytes * KERNELS_ROW_GROUP;
    const uint8_t *packed = (const uint8_t *)job->w->data + (size_t)group * bytes;
    return (struct part){job, group, job->w->type, info->block_values == 1, packed};
}

/* acc[n][KERNELS_BATCH][16] = sums of n groups, two at most and of one type, with tokens [first, end): piece by piece.
 */
static void many(const struct call *c, const struct part *parts, int n, int first, int end, struct worker_scratch *s,
                 float *acc)
{
    enum kernels_type type = parts[0].type;
    int blocks = c->cols / KERNELS_BLOCK, tokens;
    for (int i = 0; i < n; i++)
        memset(acc + i * KERNELS_BATCH * KERNELS_ROW_GROUP, 0, (size_t)(end - first) * KERNELS_ROW_GROUP * sizeof *acc);
    for (int b = 0; b < blocks; b += KERNELS_PIECE_BLOCKS) {
        int count = blocks - b < KERNELS_PIECE_BLOCKS ? blocks - b : KERNELS_PIECE_BLOCKS;
        for (int i = 0; i < n; i++)
            unpack(c, type, parts[i].packed, b, count, s->unpacked + i * KERNELS_UNPACKED_PIECE_BYTES);
        for (int token = first; token < end; token += tokens) {
            tokens = tile_tokens(token, c->n);
            const uint8_t *tile = c->tiles + (size_t)token * token_bytes(c->cols) +
                                  (size_t)b * (size_t)tokens * KERNELS_TOKEN_BLOCK_BYTES;
            (n > 1 ? c->set->pair : c->set->tile)(unpacked_as(type), s->unpacked, count, tile, tokens,
                                                  acc + (token - first) * KERNELS_ROW_GROUP);
        }
    }
}

/* acc = sums of one group with tokens [token, end). */
static void sums(const struct call *c, const struct part *p, int token, int end, struct worker_scratch *s, float *acc)
{
    enum kernels_type type = p->type;
    const uint8_t *group = p->packed;
    bool direct = type < KERNELS_FIRST_UNPACKED;
    if (p->floats) {
        for (int tokens; token < end; token += tokens, acc += tokens * KERNELS_ROW_GROUP) {
            tokens = tile_tokens(token, c->n);
            c->set->floats(type, group, c->x + (size_t)token * (size_t)c->cols, c->cols, tokens, acc);
        }
    } else if (direct && c->n == 1 && c->set->one) {
        c->set->one(type, group, c->cols, c->tiles, acc);
    } else if (direct && c->n <= KERNELS_TILE && c->set->few) {
        c->set->few(type, group, c->cols, c->tiles, c->n, s->sums, acc);
    } else {
        many(c, p, 1, token, end, s, acc);
    }
}

/* Whether two groups of these types can meet the tokens side by side. Unpacked, Q2_K takes the room of both. */
static bool side_by_side(const struct call *c, enum kernels_type a, enum kernels_type b)
{
    return c->n > KERNELS_TILE && c->set->pair && a == b && a != KERNELS_Q2_K && kernels_type_info(a)->block_values > 1;
}

/* Tokens [token, end) of a block of what comes out of a gated product, from two groups' values. */
static void store_block(const struct call *c, int block, int token, int end, const float *low, const float *high)
{
    size_t stride = token_bytes(c->gated->cols);
    for (int tokens; token < end; token += tokens) {
        tokens = tile_tokens(token, c->n);
        size_t bytes = (size_t)tokens * KERNELS_TOKEN_BLOCK_BYTES;
        uint8_t tile[KERNELS_TILE * KERNELS_TOKEN_BLOCK_BYTES]; /* whole lines go to memory, not fields */
        float x[KERNELS_TILE][2][KERNELS_ROW_GROUP]; /* all first: what was just stored in parts is not soon loaded */
        for (int t = 0; t < tokens; t++, low += KERNELS_ROW_GROUP, high += KERNELS_ROW_GROUP) {
            memcpy(x[t][0], low, sizeof x[t][0]);
            memcpy(x[t][1], high, sizeof x[t][1]);
        }
        for (int t = 0; t < tokens; t++)
            c->set->quantize(x[t][0], KERNELS_BLOCK, tokens, t, tile);
        memcpy((uint8_t *)c->gated->q + (size_t)token * stride + (size_t)block * bytes, tile, bytes);
    }
}

/* A unit, of `n` groups, with tokens [token, end). */
static void do_unit(const struct call *c, int unit, const struct part *parts, int n, int token, int end,
                    struct worker_scratch *s)
{
    for (int i = 0; i < n; i += 2) {
        if (i + 1 < n && side_by_side(c, parts[i].type, parts[i + 1].type)) {
            many(c, parts + i, 2, token, end, s, s->acc[i]);
        } else {
            for (int j = i; j < n && j < i + 2; j++)
                sums(c, &parts[j], token, end, s, s->acc[j]);
        }
        if (c->gated)
            c->k->set->rows->glu(c->kind, s->acc[i], s->acc[i + 1], (size_t)(end - token) * KERNELS_ROW_GROUP,
                                 s->acc[i]);
    }
    if (c->gated && c->gated->q && c->gated->forms & KERNELS_QUANTS)
        store_block(c, unit, token, end, s->acc[0], s->acc[2]);
    if (!c->gated || !c->gated->q || c->gated->forms & KERNELS_FLOATS)
        for (int i = 0; i < n; i += c->gated ? 2 : 1)
            store(parts[i].job, parts[i].group, token, end - token, s->acc[i]);
}

static int unit_count(const struct call *c, const struct kernels_matrix *w)
{
    return c->gated || c->pairs ? (group_count(w) + 1) / 2 : group_count(w);
}

/* Items are (batch of tokens, unit), units innermost, so that a worker stays with a batch. */
static void do_items(void *arg, int worker, int first, int end)
{
    const struct call *c = arg;
    for (int i = first; i < end; i++) {
        int token = i / c->units * c->batch, unit = i % c->units, n = 0;
        int last = c->n - token < c->batch ? c->n : token + c->batch;
        const struct kernels_linear *job = c->jobs;
        for (; unit >= unit_count(c, job->w); job++)
            unit -= unit_count(c, job->w);
        struct part parts[MAX_PARTS];
        int group = c->gated || c->pairs ? 2 * unit : unit, width = c->gated || c->pairs ? 2 : 1;
        for (; width > 0 && group < group_count(job->w); width--, group++) {
            parts[n++] = part_of(c, job, group);
            if (c->gated)
                parts[n++] = part_of(c, job + 1, group);
        }
        do_unit(c, unit, parts, n, token, last, &c->k->linear->workers[worker]);
    }
}

/* Fills in the rest of a call, and does it. */
static void run(struct call *c)
{
    bool quantized = false, same = true;
    int groups = 0;
    c->set = c->k->set->linear;
    for (int i = 0; i < c->n_jobs; i++) {
        enum kernels_type type = c->jobs[i].w->type;
        quantized = quantized || kernels_type_info(type)->block_values > 1;
        same = same && side_by_side(c, type, type);
        groups += group_count(c->jobs[i].w);
    }
    if (c->n <= 0 || groups == 0)
        return;
    size_t row_bytes = (size_t)c->cols * 2; /* a value takes 1.6 bytes quantized, 4 as it is */
    size_t batch = ACTIVATION_BYTES / row_bytes / KERNELS_TILE * KERNELS_TILE;
    c->batch = batch < 4 * KERNELS_TILE ? 4 * KERNELS_TILE : batch > KERNELS_BATCH ? KERNELS_BATCH : (int)batch;
    int batches = (c->n + c->batch - 1) / c->batch;
    c->pairs = same && groups / 2 * batches >= MIN_PAIRS * c->k->threads;
    for (int i = 0; i < (c->gated ? 1 : c->n_jobs); i++)
        c->units += unit_count(c, c->jobs[i].w);
    if (quantized && !c->tiles) {
        kernels_op_quantize(c->k, c->x, c->n, c->cols, c->k->linear->tiles);
        c->tiles = c->k->linear->tiles;
    }
    kernels_pool_run(c->k->pool, batches * c->units, 1, do_items, c);
}

static const void *quants_of(const struct kernels_acts *in)
{
    return in->forms & KERNELS_QUANTS ? in->q : NULL;
}

void kernels_op_linear(struct kernels *k, const float *x, int n, int cols, const struct kernels_linear *jobs,
                       int n_jobs)
{
    run(&(struct call){.k = k, .x = x, .jobs = jobs, .n = n, .cols = cols, .n_jobs = n_jobs});
}

void kernels_op_linear_acts(struct kernels *k, const struct kernels_acts *in, int n, const struct kernels_linear *jobs,
                            int n_jobs)
{
    run(&(struct call){
        .k = k, .x = in->x, .tiles = quants_of(in), .jobs = jobs, .n = n, .cols = in->cols, .n_jobs = n_jobs});
}

void kernels_op_gated(struct kernels *k, const struct kernels_acts *in, int n, const struct kernels_matrix *gate,
                      const struct kernels_matrix *up, enum kernels_glu_kind kind, const struct kernels_acts *out)
{
    const struct kernels_linear jobs[] = {{.w = gate, .y = out->x}, {.w = up}};
    run(&(struct call){.k = k,
                       .x = in->x,
                       .tiles = quants_of(in),
                       .jobs = jobs,
                       .n = n,
                       .cols = in->cols,
                       .n_jobs = 2,
                       .gated = out,
                       .kind = kind});
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
