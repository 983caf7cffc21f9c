/* attention.c - causal grouped-query attention over KV pages.
 *
 * The order of every addition is fixed by absolute positions alone. A query's keys fall into canonical blocks of 256
 * positions. Each block is computed from an empty state (m, l, acc), and the blocks are merged in ascending order; the
 * first one is taken as it is. A block in which the query sees nothing is skipped, and within a block only visible
 * columns enter m, l and acc. So neither the number of new rows, nor other runs, nor masked slots (whatever they
 * hold), nor the sharing out over workers can change a bit.
 *
 * A query here is one (row, head); those of one run that share a kv head are numbered row by row. An item is up to
 * MAX_QUERIES of them: a page's keys and values are widened to f32 once per item. When there are too few items to keep
 * the workers busy (decoding), a wave of blocks is shared out one by one, each block's result is kept in `partial`, and
 * a second pass merges them in the same order.
 *
 * Threads: the caller's and the workers'. Scratch belongs to the backend, one part per worker.
 */
#include "kernels/cpu/rows_internal.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#define BLOCK       KERNELS_ATTENTION_BLOCK
#define PAGE        KERNELS_PAGE_TOKENS
#define GROUP       KERNELS_KEY_GROUP
#define BLOCK_PAGES (BLOCK / PAGE)

#define MAX_QUERIES 256  /* per item */
#define FEWER       128  /* where what is kept of so many does not fit into the second-level cache, or for more items */
#define MANY_ITEMS  8    /* per worker: with fewer, items are not made larger than FEWER */
#define MIN_QUERIES 16   /* items are not made smaller than this to have more of them */
#define ASKED       6    /* queries that meet a page's keys between two looks ahead */
#define SLICE       32   /* dimensions of a whole block's values that are widened together */
#define MAX_PARTIAL 4096 /* (query, block) results of a split wave */
#define SLOT_HEAD   16   /* floats before a partial result's acc: m, l, and whether it holds something */

/* One block's result, or a merged state, of up to MAX_QUERIES queries. */
struct state {
    float *m, *l; /* [queries] */
    float *acc;   /* [queries][dims] */
};

struct worker_scratch {
    float *q;    /* [MAX_QUERIES][head_dim] */
    float *s;    /* [MAX_QUERIES][KERNELS_SCORE_STRIDE] */
    float *page; /* in f32: [PAGE][dims], keys or values of a page, or [BLOCK][SLICE], values of a block */
    struct state block, sum;
    float *a, *b; /* [queries]: what a state and a block are multiplied by when they are merged */
    int lo[MAX_QUERIES], hi[MAX_QUERIES]; /* visible columns of the block at hand */
    int from, to;                         /* all that any of the queries sees of it */
    bool any[MAX_QUERIES];                /* sum holds something */
};

struct kernels_attention_scratch {
    int workers, max_dims, max_queries;
    struct worker_scratch *worker; /* [workers] */
    float *memory;                 /* what the workers' pointers point into */
    size_t memory_bytes;
    float *partial; /* [MAX_PARTIAL] of SLOT_HEAD floats and acc[max_dims] */
    size_t partial_bytes;
};

/* A call, as its passes see it. */
struct call {
    struct kernels *k;
    const struct kernels_attention *a;
    const struct kernels_batch *batch;
    float *out; /* [rows][heads][head_dim] */
    const struct kernels_rows_set *set;
    int group;   /* query heads per kv head */
    int dims;    /* head_dim, padded to a multiple of 16 */
    int queries; /* at most so many per item */
    /* Split calls: */
    int max_wave; /* blocks per wave, at most */
    int wave_first, wave_blocks;
    bool last_wave;
};

/* Queries [first, first + n) of one run and one kv head. */
struct item {
    const struct kernels_run *run;
    int kv_head;
    int first, n;
};

/* ---- scratch ----------------------------------------------------------------------------------------------------- */

static int round_up(int n, int to)
{
    return (n + to - 1) / to * to;
}

static int min_int(int a, int b)
{
    return a < b ? a : b;
}

static int max_int(int a, int b)
{
    return a > b ? a : b;
}

/* Sets the pointers of one worker from `at` on, or only counts when w is NULL. Returns the floats taken. */
static size_t lay_out(struct worker_scratch *w, float *at, int dims, int queries)
{
    struct worker_scratch counted;
    if (!w)
        w = &counted;
    const size_t page_dims = BLOCK / PAGE * SLICE;
    size_t used = 0, d = (size_t)dims, n = (size_t)queries;
    const struct {
        float **to;
        size_t floats;
    } parts[] = {
        {&w->q, n * d},
        {&w->s, n * KERNELS_SCORE_STRIDE},
        {&w->page, PAGE * (d > page_dims ? d : page_dims)},
        {&w->block.m, n},
        {&w->block.l, n},
        {&w->block.acc, n * d},
        {&w->sum.m, n},
        {&w->sum.l, n},
        {&w->sum.acc, n * d},
        {&w->a, n},
        {&w->b, n},
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        *parts[i].to = at ? at + used : NULL;
        used += parts[i].floats;
    }
    return used;
}

int kernels_attention_reserve(struct kernels *k, int max_rows, int max_heads, int max_head_dim)
{
    if (max_rows <= 0 || max_heads <= 0 || max_head_dim <= 0 || max_head_dim > 1 << 16)
        return -EINVAL;
    kernels_attention_release(k);
    struct kernels_attention_scratch *sc = calloc(1, sizeof(*sc));
    if (!sc)
        return -ENOMEM;
    k->attention = sc;
    sc->workers = k->threads;
    sc->max_dims = round_up(max_head_dim, GROUP);
    sc->max_queries = MAX_QUERIES;
    size_t one = lay_out(NULL, NULL, sc->max_dims, MAX_QUERIES);
    if ((long)(one * sizeof(float)) > sysconf(_SC_LEVEL2_CACHE_SIZE)) {
        sc->max_queries = FEWER;
        one = lay_out(NULL, NULL, sc->max_dims, FEWER);
    }
    sc->worker = calloc((size_t)sc->workers, sizeof(*sc->worker));
    if (!sc->worker || __builtin_mul_overflow(one * sizeof(float), (size_t)sc->workers, &sc->memory_bytes))
        goto no_memory;
    sc->partial_bytes = MAX_PARTIAL * (SLOT_HEAD + (size_t)sc->max_dims) * sizeof(float);
    sc->memory = kernels_cpu_alloc(sc->memory_bytes);
    sc->partial = kernels_cpu_alloc(sc->partial_bytes);
    if (!sc->memory || !sc->partial)
        goto no_memory;
    for (int i = 0; i < sc->workers; i++)
        lay_out(&sc->worker[i], sc->memory + (size_t)i * one, sc->max_dims, sc->max_queries);
    return 0;

no_memory:
    kernels_attention_release(k);
    return -ENOMEM;
}

void kernels_attention_release(struct kernels *k)
{
    struct kernels_attention_scratch *sc = k->attention;
    if (!sc)
        return;
    if (sc->memory)
        kernels_cpu_release(sc->memory, sc->memory_bytes);
    if (sc->partial)
        kernels_cpu_release(sc->partial, sc->partial_bytes);
    free(sc->worker);
    free(sc);
    k->attention = NULL;
}

/* Where the result of (query, block of the wave) is kept; wave_block -1: the query's sum over all waves so far. */
static float *partial_slot(const struct call *c, int row, int head, int wave_block)
{
    size_t query = (size_t)row * (size_t)c->a->heads + (size_t)head;
    size_t slot = query * (size_t)(c->max_wave + 1) + (size_t)(wave_block + 1);
    return c->k->attention->partial + slot * (SLOT_HEAD + (size_t)c->dims);
}

static const struct kernels_pages *pages_of(const struct call *c, const struct kernels_run *run)
{
    return &run->pages[c->a->kv.group];
}

/* ---- what a query sees ------------------------------------------------------------------------------------------- */

/* Columns of the block whose pages are there: after the last dropped page, before the table's end. */
static void kept_columns(const struct kernels_pages *pages, int block, int *lo, int *hi)
{
    int first = block * BLOCK_PAGES, n = pages->count - first < BLOCK_PAGES ? pages->count - first : BLOCK_PAGES;
    *lo = 0;
    *hi = n > 0 ? n * PAGE : 0;
    for (int i = 0; i < n; i++)
        if (pages->pages[first + i] < 0)
            *lo = (i + 1) * PAGE;
}

/* Narrows the block's columns [*lo, *hi) to those that position pos sees; empty when *lo >= *hi. */
static void visible_columns(const struct kernels_attention *a, int pos, int block, int *lo, int *hi)
{
    int last = pos - block * BLOCK;
    int oldest = a->window > 0 ? last - a->window + 1 : 0;
    *hi = last + 1 < *hi ? last + 1 : *hi;
    *lo = oldest > *lo ? oldest : *lo;
}

static int first_block(const struct kernels_attention *a, int pos)
{
    int oldest = a->window > 0 ? pos - a->window + 1 : 0;
    return oldest > 0 ? oldest / BLOCK : 0;
}

static int item_row(const struct call *c, const struct item *it, int query)
{
    return (it->first + query) / c->group;
}

static int item_head(const struct call *c, const struct item *it, int query)
{
    return it->kv_head * c->group + (it->first + query) % c->group;
}

static float *row_of_head(const struct call *c, const float *base, int row, int head)
{
    return (float *)base + ((size_t)row * (size_t)c->a->heads + (size_t)head) * (size_t)c->a->kv.head_dim;
}

/* ---- one block --------------------------------------------------------------------------------------------------- */

/* One head's part of a page: PAGE * head_dim elements. */
static const uint16_t *page_rows(const struct call *c, const struct item *it, int page, size_t offset)
{
    const struct kernels_kv *kv = &c->a->kv;
    const uint8_t *p = kv->pool + (size_t)pages_of(c, it->run)->pages[page] * kv->page_bytes + offset;
    return (const uint16_t *)(const void *)p + (size_t)it->kv_head * PAGE * (size_t)kv->head_dim;
}

/* What is read after page p of the block's keys or values: the next page's, or the first of the values, or of the next
 * block's keys. Only a hint. */
static const uint16_t *rows_after(const struct call *c, const struct item *it, int block, int p, int hi, bool is_value)
{
    const struct kernels_pages *pages = pages_of(c, it->run);
    bool more = (p + 1) * PAGE < hi;
    int page = block * BLOCK_PAGES + p + 1;
    if (!more && !is_value)
        page = block * BLOCK_PAGES;
    if (page >= pages->count || pages->pages[page] < 0)
        page = block * BLOCK_PAGES + p;
    return page_rows(c, it, page, more == is_value ? c->a->kv.v_offset : c->a->kv.k_offset);
}

/* How many of the queries from i on, of n, see the same of the block's columns [from, to). */
static int alike(const struct worker_scratch *w, int i, int n, int from, int to)
{
    int lo = max_int(w->lo[i], from), hi = min_int(w->hi[i], to), end = i + 1;
    while (end < n && max_int(w->lo[end], from) == lo && min_int(w->hi[end], to) == hi)
        end++;
    return end - i;
}

/* Scores of all queries against the groups that hold columns [lo, hi). */
static void block_scores(const struct call *c, const struct item *it, struct worker_scratch *w, int block, int lo,
                         int hi)
{
    int dim = c->a->kv.head_dim;
    size_t bytes = PAGE * (size_t)dim * sizeof(uint16_t);
    for (int p = lo / PAGE; p * PAGE < hi; p++) {
        int from = p * PAGE > lo ? p * PAGE : lo / GROUP * GROUP;
        int to = (p + 1) * PAGE < hi ? (p + 1) * PAGE : round_up(hi, GROUP);
        const uint16_t *keys = page_rows(c, it, block * BLOCK_PAGES + p, c->a->kv.k_offset);
        keys += (size_t)(from - p * PAGE) * (size_t)dim;
        if (it->n <= KERNELS_FEW_QUERIES) {
            c->set->scores_kv(c->a->kv.type, w->q, it->n, dim, keys, rows_after(c, it, block, p, hi, false),
                              (to - from) / GROUP, w->s + from);
            continue;
        }
        c->set->widen(c->a->kv.type, keys, (size_t)(to - from) * (size_t)dim, w->page);
        const char *next = (const char *)rows_after(c, it, block, p, BLOCK, false);
        const char *values = (const char *)page_rows(c, it, block * BLOCK_PAGES + p, c->a->kv.v_offset);
        for (int i = 0, n; i < it->n; i += n) {
            n = min_int(ASKED, it->n - i);
            size_t first = bytes * (size_t)i / (size_t)it->n & ~(size_t)63;
            size_t end = bytes * (size_t)(i + n) / (size_t)it->n;
            for (; first < end; first += 64) {
                __builtin_prefetch(next + first, 0, 2);
                __builtin_prefetch(values + first, 0, 2);
            }
            int seen = min_int(to, round_up(w->hi[i + n - 1], GROUP)); /* the last one's row sees most */
            if (seen > from)
                c->set->scores(w->q + (size_t)i * (size_t)dim, n, dim, w->page, (seen - from) / GROUP,
                               w->s + (size_t)i * KERNELS_SCORE_STRIDE + from);
        }
    }
}

/* Values of tokens [lo, hi) of a page in f32, [hi - lo][dims]. */
static void widen_values(const struct call *c, const uint16_t *values, int lo, int hi, float *out)
{
    size_t dim = (size_t)c->a->kv.head_dim, dims = (size_t)c->dims;
    if (dim == dims) {
        c->set->widen(c->a->kv.type, values + (size_t)lo * dim, (size_t)(hi - lo) * dim, out);
        return;
    }
    for (int t = lo; t < hi; t++, out += dims) {
        c->set->widen(c->a->kv.type, values + (size_t)t * dim, dim, out);
        memset(out + dim, 0, (dims - dim) * sizeof(*out));
    }
}

/* acc of all queries. Within a page, queries that see the same columns go together. */
static void block_values(const struct call *c, const struct item *it, struct worker_scratch *w, int block)
{
    int lo = w->from, hi = w->to;
    bool as_used = it->n <= KERNELS_FEW_QUERIES && c->dims == c->a->kv.head_dim;
    memset(w->block.acc, 0, (size_t)it->n * (size_t)c->dims * sizeof(float));
    for (int p = lo / PAGE; p * PAGE < hi; p++) {
        int from = p * PAGE > lo ? p * PAGE : lo, to = (p + 1) * PAGE < hi ? (p + 1) * PAGE : hi;
        const uint16_t *values = page_rows(c, it, block * BLOCK_PAGES + p, c->a->kv.v_offset);
        if (!as_used)
            widen_values(c, values, from - p * PAGE, to - p * PAGE, w->page);
        for (int i = 0, n; i < it->n; i += n) {
            int t0 = max_int(w->lo[i], from), t1 = min_int(w->hi[i], to);
            n = alike(w, i, it->n, from, to);
            const float *weights = w->s + (size_t)i * KERNELS_SCORE_STRIDE + t0;
            float *acc = w->block.acc + (size_t)i * (size_t)c->dims;
            if (t0 < t1 && as_used)
                c->set->values_kv(c->a->kv.type, weights, n, values + (size_t)(t0 - p * PAGE) * (size_t)c->dims,
                                  rows_after(c, it, block, p, hi, true), t1 - t0, c->dims, acc);
            else if (t0 < t1)
                c->set->values(weights, n, w->page + (size_t)(t0 - from) * (size_t)c->dims, t1 - t0, c->dims, acc);
        }
    }
}

/* Computes w->lo and w->hi, m and l of w->block for all queries of the item, and their weights. False when none sees
 * anything. */
static bool block_weights(const struct call *c, const struct item *it, struct worker_scratch *w, int block)
{
    int kept_lo, kept_hi, *lo = &w->from, *hi = &w->to;
    *lo = BLOCK, *hi = 0;
    kept_columns(pages_of(c, it->run), block, &kept_lo, &kept_hi);
    for (int i = 0; i < it->n; i++) {
        w->lo[i] = kept_lo, w->hi[i] = kept_hi;
        visible_columns(c->a, it->run->pos + item_row(c, it, i), block, &w->lo[i], &w->hi[i]);
        if (w->lo[i] < w->hi[i]) {
            *lo = min_int(w->lo[i], *lo);
            *hi = max_int(w->hi[i], *hi);
        }
    }
    if (*lo >= *hi)
        return false;
    block_scores(c, it, w, block, *lo, *hi);
    for (int i = 0, n; i < it->n; i += n) {
        n = alike(w, i, it->n, 0, BLOCK);
        if (w->lo[i] < w->hi[i])
            c->set->softmax(w->s + (size_t)i * KERNELS_SCORE_STRIDE, n, w->lo[i], w->hi[i], c->a->scale, c->a->softcap,
                            w->block.m + i, w->block.l + i);
    }
    return true;
}

/* Whether all queries see the whole block, and their sums all begin with it or all go on. */
static bool whole_block(const struct call *c, const struct item *it, const struct worker_scratch *w)
{
    if (it->n <= KERNELS_FEW_QUERIES || c->dims != c->a->kv.head_dim || w->lo[0] > 0 || w->hi[0] < BLOCK ||
        alike(w, 0, it->n, 0, BLOCK) < it->n)
        return false;
    for (int i = 1; i < it->n; i++)
        if (w->any[i] != w->any[0])
            return false;
    return true;
}

/* Such a block's values, merged into w->sum. A few dimensions of all its tokens at a time: they stay in the first-level
 * cache, and a query's acc of them stays in registers until it is merged. */
static void join_whole_block(const struct call *c, const struct item *it, struct worker_scratch *w, int block)
{
    size_t n = (size_t)it->n;
    const float *a = w->any[0] ? w->a : NULL;
    if (a) {
        c->set->join(it->n, w->sum.m, w->sum.l, w->block.m, w->block.l, w->a, w->b);
    } else {
        memcpy(w->sum.m, w->block.m, n * sizeof(float));
        memcpy(w->sum.l, w->block.l, n * sizeof(float));
        memset(w->any, true, n * sizeof(*w->any));
    }
    for (int d = 0; d < c->dims; d += SLICE) {
        int cols = min_int(SLICE, c->dims - d);
        for (int p = 0; p < BLOCK_PAGES; p++)
            c->set->widen_rows(c->a->kv.type, page_rows(c, it, block * BLOCK_PAGES + p, c->a->kv.v_offset) + d, PAGE,
                               c->dims, cols, w->page + (size_t)p * PAGE * (size_t)cols);
        c->set->values_join(w->s, it->n, w->page, BLOCK, cols, a, w->b, w->sum.acc + d, c->dims);
    }
}

/* ---- items ------------------------------------------------------------------------------------------------------- */

static int run_tiles(const struct call *c, const struct kernels_run *run)
{
    return (run->n * c->group + c->queries - 1) / c->queries;
}

static int count_items(const struct call *c)
{
    int n = 0;
    for (int i = 0; i < c->batch->n_runs; i++)
        n += c->a->kv.kv_heads * run_tiles(c, &c->batch->runs[i]);
    return n;
}

static struct item find_item(const struct call *c, int index)
{
    const struct kernels_run *run = c->batch->runs;
    for (int n; index >= (n = c->a->kv.kv_heads * run_tiles(c, run)); run++)
        index -= n;
    int tiles = run_tiles(c, run), first = index % tiles * c->queries, queries = run->n * c->group;
    struct item it = {run, index / tiles, first, queries - first < c->queries ? queries - first : c->queries};
    return it;
}

static void load_queries(const struct call *c, const struct item *it, float *q)
{
    size_t dim = (size_t)c->a->kv.head_dim;
    for (int i = 0; i < it->n; i++)
        memcpy(q + (size_t)i * dim,
               row_of_head(c, c->a->q, it->run->first_row + item_row(c, it, i), item_head(c, it, i)), dim * sizeof(*q));
}

/* A sink is one block more behind the others: m is its score, l is 1, and what it adds to acc is nothing. */
static void write_out(const struct call *c, struct worker_scratch *w, int row, int head, bool any, float *acc, float m,
                      float l)
{
    float *out = row_of_head(c, c->out, row, head);
    int dim = c->a->kv.head_dim;
    if (any && c->a->sinks) {
        memset(w->block.acc, 0, (size_t)c->dims * sizeof(float));
        c->set->merge(&m, &l, acc, c->a->sinks[head], 1.0f, w->block.acc, c->dims);
    }
    if (any) {
        c->set->finish(acc, l, dim, out);
        return;
    }
    for (int d = 0; d < dim; d++) /* no page was there: never a plausible answer */
        out[d] = NAN;
}

static void run_item(const struct call *c, const struct item *it, struct worker_scratch *w)
{
    size_t dims = (size_t)c->dims;
    load_queries(c, it, w->q);
    memset(w->any, 0, sizeof(w->any));
    int first = first_block(c->a, it->run->pos + item_row(c, it, 0));
    int last = (it->run->pos + item_row(c, it, it->n - 1)) / BLOCK;
    for (int b = first; b <= last; b++) {
        if (!block_weights(c, it, w, b))
            continue;
        if (whole_block(c, it, w)) {
            join_whole_block(c, it, w, b);
            continue;
        }
        block_values(c, it, w, b);
        for (int i = 0; i < it->n; i++) {
            float *acc = w->sum.acc + (size_t)i * dims, *block_acc = w->block.acc + (size_t)i * dims;
            if (w->lo[i] >= w->hi[i])
                continue;
            if (w->any[i]) {
                c->set->merge(&w->sum.m[i], &w->sum.l[i], acc, w->block.m[i], w->block.l[i], block_acc, c->dims);
                continue;
            }
            w->any[i] = true;
            w->sum.m[i] = w->block.m[i];
            w->sum.l[i] = w->block.l[i];
            memcpy(acc, block_acc, dims * sizeof(*acc));
        }
    }
    for (int i = 0; i < it->n; i++)
        write_out(c, w, it->run->first_row + item_row(c, it, i), item_head(c, it, i), w->any[i],
                  w->sum.acc + (size_t)i * dims, w->sum.m[i], w->sum.l[i]);
}

static void run_items(void *arg, int worker, int first, int end)
{
    const struct call *c = arg;
    for (int i = first; i < end; i++) {
        struct item it = find_item(c, i);
        run_item(c, &it, &c->k->attention->worker[worker]);
    }
}

/* ---- few items, many blocks: split ------------------------------------------------------------------------------- */

static void set_slot(float *slot, float m, float l, const float *acc, int dims)
{
    slot[0] = m;
    slot[1] = l;
    slot[2] = 1;
    memcpy(slot + SLOT_HEAD, acc, (size_t)dims * sizeof(*slot));
}

/* Unit: one item and one block of the wave. */
static void run_units(void *arg, int worker, int first, int end)
{
    const struct call *c = arg;
    struct worker_scratch *w = &c->k->attention->worker[worker];
    for (int u = first, loaded = -1; u < end; u++) {
        int wave_block = u % c->wave_blocks;
        struct item it = find_item(c, u / c->wave_blocks);
        if (u / c->wave_blocks != loaded)
            load_queries(c, &it, w->q);
        loaded = u / c->wave_blocks;
        if (!block_weights(c, &it, w, c->wave_first + wave_block))
            continue;
        block_values(c, &it, w, c->wave_first + wave_block);
        for (int i = 0; i < it.n; i++) {
            float *slot = partial_slot(c, it.run->first_row + item_row(c, &it, i), item_head(c, &it, i), wave_block);
            set_slot(slot, w->block.m[i], w->block.l[i], w->block.acc + (size_t)i * (size_t)c->dims, c->dims);
        }
    }
}

static const struct kernels_run *run_of_row(const struct call *c, int row)
{
    const struct kernels_run *run = c->batch->runs;
    while (row >= run->first_row + run->n)
        run++;
    return run;
}

/* Merges a wave into each query's sum and, after the last, writes the result. Item: one (row, head). */
static void merge_partials(void *arg, int worker, int first, int end)
{
    const struct call *c = arg;
    for (int i = first; i < end; i++) {
        int row = i / c->a->heads, head = i % c->a->heads;
        const struct kernels_run *run = run_of_row(c, row);
        float *sum = partial_slot(c, row, head, -1);
        for (int b = 0; b < c->wave_blocks; b++) {
            int lo, hi;
            kept_columns(pages_of(c, run), c->wave_first + b, &lo, &hi);
            visible_columns(c->a, run->pos + row - run->first_row, c->wave_first + b, &lo, &hi);
            if (lo >= hi)
                continue;
            const float *slot = partial_slot(c, row, head, b);
            if (sum[2] != 0)
                c->set->merge(&sum[0], &sum[1], sum + SLOT_HEAD, slot[0], slot[1], slot + SLOT_HEAD, c->dims);
            else
                set_slot(sum, slot[0], slot[1], slot + SLOT_HEAD, c->dims);
        }
        if (c->last_wave)
            write_out(c, &c->k->attention->worker[worker], row, head, sum[2] != 0, sum + SLOT_HEAD, sum[0], sum[1]);
    }
}

static void run_split(struct call *c, int items, int first, int end)
{
    int queries = c->batch->rows * c->a->heads;
    for (int row = 0; row < c->batch->rows; row++)
        for (int head = 0; head < c->a->heads; head++)
            partial_slot(c, row, head, -1)[2] = 0;
    for (c->wave_first = first; c->wave_first < end; c->wave_first += c->wave_blocks) {
        int left = end - c->wave_first;
        c->last_wave = left <= c->max_wave;
        c->wave_blocks = c->last_wave ? left : c->max_wave;
        kernels_pool_run(c->k->pool, items * c->wave_blocks, 1, run_units, c);
        size_t work = (size_t)queries * (size_t)c->wave_blocks * (size_t)c->dims;
        kernels_rows_share(c->k, work, queries, 1, merge_partials, c);
    }
}

/* The blocks that any row of the batch looks at: [*first, *end). */
static void block_range(const struct call *c, int *first, int *end)
{
    *first = INT32_MAX;
    *end = 0;
    for (int i = 0; i < c->batch->n_runs; i++) {
        const struct kernels_run *run = &c->batch->runs[i];
        int from = first_block(c->a, run->pos), to = (run->pos + run->n - 1) / BLOCK + 1;
        *first = from < *first ? from : *first;
        *end = to > *end ? to : *end;
    }
}

void kernels_op_attention(struct kernels *k, const struct kernels_attention *a, float *out)
{
    if (k->batch.rows <= 0)
        return;
    struct call c = {.k = k, .a = a, .batch = &k->batch, .out = out, .set = k->set->rows};
    c.group = a->heads / a->kv.kv_heads;
    c.dims = round_up(a->kv.head_dim, GROUP);
    /* Whole rows per item where they fit: a row's queries see the same columns. */
    c.queries = k->attention->max_queries;
    while (count_items(&c) < (c.queries > FEWER ? MANY_ITEMS : 2) * k->threads && c.queries > MIN_QUERIES)
        c.queries /= 2;
    if (c.group < c.queries)
        c.queries = c.queries / c.group * c.group;

    int items = count_items(&c), first, end;
    block_range(&c, &first, &end);
    bool uneven = items < 4 * k->threads && items % k->threads != 0;
    size_t queries = (size_t)k->batch.rows * (size_t)a->heads, max_wave = MAX_PARTIAL / queries;
    if (uneven && end - first > 1 && max_wave > 2) {
        c.max_wave = (int)max_wave - 1 < end - first ? (int)max_wave - 1 : end - first;
        run_split(&c, items, first, end);
        return;
    }
    size_t work = queries * (size_t)(end - first) * BLOCK / 8 * (size_t)c.dims;
    kernels_rows_share(k, work, items, 1, run_items, &c);
}
