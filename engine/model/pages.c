/* pages.c - KV pages and sequences.
 *
 * A pool holds the pages of one group of layers; a page id stands for 64 tokens of every layer of the group. Sequences
 * refer to pages by id, and several may refer to the same one. What always holds:
 *   - a page that more than one sequence refers to is full up to what they share and is never written: whoever wants to
 * write into it first takes a copy;
 *   - a page is zeroed when it is taken, so that nothing of another conversation can be read from it, unless an import
 * fills it whole at once;
 *   - a sequence's tables cover exactly its tokens; in the window group leading entries may be -1 (left behind).
 *
 * Order on the device: nobody changes a sequence while a step that it is part of is under way, so that what a step
 * reads and writes is nobody else's. Imports and exports have streams of their own: a step comes after the imports of
 * its sequences, and whoever writes to a page after the exports that may still read it.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/model.h"

static int pages_for(int tokens)
{
    return tokens / KERNELS_PAGE_TOKENS + (tokens % KERNELS_PAGE_TOKENS != 0);
}

/* ---- pools ---- */

/* Window pages that are worth having beside n_full pages: as many, up to what this many sequences at full stretch keep.
 */
#define WINDOW_SEQUENCES 64

static int64_t window_pages(const struct engine *e, int64_t n_full)
{
    int64_t per_sequence = pages_for(e->model.window + e->info.step_tokens) + 2;
    int64_t most = per_sequence * WINDOW_SEQUENCES;
    return n_full < most ? n_full : most;
}

static void pool_sizes(const struct engine *e, size_t bytes, int64_t *n_full, int64_t *n_window)
{
    size_t full = e->pools[MODEL_FULL].page_bytes, window = e->pools[MODEL_WINDOW].page_bytes;
    *n_full = *n_window = 0;
    if (window == 0) {
        *n_full = (int64_t)(bytes / full);
    } else if (full == 0) {
        *n_window = (int64_t)(bytes / window);
    } else {
        int64_t low = 0, high = (int64_t)(bytes / full);
        while (low < high) {
            int64_t mid = low + (high - low + 1) / 2;
            if ((size_t)mid * full + (size_t)window_pages(e, mid) * window <= bytes)
                low = mid;
            else
                high = mid - 1;
        }
        *n_full = low;
        *n_window = window_pages(e, low);
    }
    if (*n_full > INT32_MAX)
        *n_full = INT32_MAX;
    if (*n_window > INT32_MAX)
        *n_window = INT32_MAX;
}

void kv_pools_size(struct engine *e)
{
    for (int g = 0; g < MODEL_GROUPS; g++)
        e->pools[g].page_bytes = 0;
    for (int l = 0; l < e->model.n_layers; l++) {
        struct model_layer *layer = &e->model.layers[l];
        struct kv_pool *pool = &e->pools[layer->group];
        size_t half = (size_t)layer->kv.kv_heads * (size_t)layer->kv.head_dim * KERNELS_PAGE_TOKENS *
                      kernels_kv_width(layer->kv.type);
        half = (half + 63) & ~(size_t)63;
        layer->kv.group = layer->group;
        layer->kv.k_offset = pool->page_bytes;
        layer->kv.v_offset = pool->page_bytes + half;
        pool->page_bytes += 2 * half;
    }
    for (int g = 0; g < MODEL_GROUPS; g++)
        e->pools[g].token_bytes = e->pools[g].page_bytes / KERNELS_PAGE_TOKENS;
}

int kv_capacity_tokens(const struct engine *e, size_t bytes)
{
    int64_t n_full, n_window;
    pool_sizes(e, bytes, &n_full, &n_window);
    int64_t tokens = (n_full ? n_full : n_window) * KERNELS_PAGE_TOKENS;
    return tokens > INT_MAX ? INT_MAX : (int)tokens;
}

int kv_pools_fit(const struct engine *e, size_t bytes, char *err, size_t err_size)
{
    int64_t n[MODEL_GROUPS];
    pool_sizes(e, bytes, &n[MODEL_FULL], &n[MODEL_WINDOW]);
    for (int g = 0; g < MODEL_GROUPS; g++) {
        size_t page_bytes = e->pools[g].page_bytes;
        if (page_bytes && n[g] < 2) {
            snprintf(err, err_size, "%zu bytes are too few for KV pages: one page of this model takes %zu bytes", bytes,
                     page_bytes);
            return -EINVAL;
        }
    }
    return 0;
}

int kv_pools_open(struct engine *e, size_t bytes, char *err, size_t err_size)
{
    int64_t n[MODEL_GROUPS];
    int rc = kv_pools_fit(e, bytes, err, err_size);
    if (rc)
        return rc;
    pool_sizes(e, bytes, &n[MODEL_FULL], &n[MODEL_WINDOW]);
    for (int g = 0; g < MODEL_GROUPS; g++) {
        struct kv_pool *pool = &e->pools[g];
        if (pool->page_bytes == 0)
            continue;
        pool->n_pages = (int32_t)n[g];
        pool->memory = e->ops->alloc(e->kernels, KERNELS_DEVICE, (size_t)n[g] * pool->page_bytes);
        pool->free = malloc((size_t)n[g] * sizeof *pool->free);
        pool->uses = calloc((size_t)n[g], sizeof *pool->uses);
        if (!pool->memory || !pool->free || !pool->uses) {
            snprintf(err, err_size, "not enough memory for %zu bytes of KV pages; set a smaller KV budget", bytes);
            return -ENOMEM;
        }
        for (int32_t i = 0; i < pool->n_pages; i++)
            pool->free[i] = pool->n_pages - 1 - i;
        pool->n_free = pool->n_pages;
    }
    e->kv = calloc((size_t)e->model.n_layers, sizeof *e->kv);
    if (!e->kv) {
        snprintf(err, err_size, "out of memory");
        return -ENOMEM;
    }
    for (int l = 0; l < e->model.n_layers; l++) {
        struct model_layer *layer = &e->model.layers[l];
        layer->kv.pool = e->pools[layer->group].memory;
        layer->kv.page_bytes = e->pools[layer->group].page_bytes;
        e->kv[l] = layer->kv;
    }
    return 0;
}

void kv_pools_close(struct engine *e)
{
    for (int g = 0; g < MODEL_GROUPS; g++) {
        struct kv_pool *pool = &e->pools[g];
        if (pool->memory)
            e->ops->release(e->kernels, KERNELS_DEVICE, pool->memory, (size_t)pool->n_pages * pool->page_bytes);
        free(pool->free);
        free(pool->uses);
        memset(pool, 0, sizeof *pool);
    }
    free(e->kv);
    e->kv = NULL;
    for (int i = 0; i < KV_STAGINGS; i++)
        if (e->staging[i].p)
            e->ops->release(e->kernels, KERNELS_PINNED, e->staging[i].p, e->staging[i].bytes);
    memset(e->staging, 0, sizeof e->staging);
    for (int i = 0; i < KV_BUFFERS; i++)
        if (e->buffers[i].p)
            e->ops->release(e->kernels, KERNELS_PINNED, e->buffers[i].p, e->buffers[i].bytes);
    memset(e->buffers, 0, sizeof e->buffers);
}

static uint8_t *page_at(struct kv_pool *pool, int32_t page)
{
    return pool->memory + (size_t)page * pool->page_bytes;
}

/* A page, zeroed unless all of it will be written before anyone reads it; the pool must have one free. */
static int32_t page_take(struct engine *e, struct kv_pool *pool, enum kernels_stream stream, bool written_whole)
{
    int32_t page = pool->free[--pool->n_free];
    pool->uses[page] = 1;
    if (!written_whole)
        e->ops->zero(e->kernels, stream, page_at(pool, page), pool->page_bytes);
    return page;
}

static void page_drop(struct kv_pool *pool, int32_t page)
{
    if (page >= 0 && --pool->uses[page] == 0)
        pool->free[pool->n_free++] = page;
}

/* ---- sequences ---- */

struct engine_seq *engine_seq_new(struct engine *e)
{
    struct engine_seq *s = calloc(1, sizeof *s);
    if (s) {
        s->engine = e;
        e->n_seqs++;
    }
    return s;
}

/* A page of s goes back to its pool: from now on steps wait for what may still be written to it. */
static void abandon(struct engine_seq *s)
{
    if (s->imported > s->engine->abandoned)
        s->engine->abandoned = s->imported;
}

void engine_seq_free(struct engine_seq *s)
{
    if (!s)
        return;
    abandon(s);
    for (int g = 0; g < MODEL_GROUPS; g++) {
        for (int i = 0; i < s->table[g].count; i++)
            page_drop(&s->engine->pools[g], s->table[g].pages[i]);
        free(s->table[g].pages);
    }
    engine_tokens_free(&s->tokens);
    s->engine->n_seqs--;
    free(s);
}

int engine_seq_length(const struct engine_seq *s)
{
    return (int)s->tokens.n;
}

const engine_token *engine_seq_tokens(const struct engine_seq *s)
{
    return s->tokens.ids;
}

/* First position that a query at position `length` sees in window layers. */
static int window_start(const struct engine *e, int length)
{
    int start = length - e->model.window + 1;
    return start > 0 ? start : 0;
}

/* Whether window layers still hold what a query at position n would see. */
static bool window_intact(const struct engine_seq *s, int n)
{
    const struct kv_table *window = &s->table[MODEL_WINDOW];
    for (int i = window_start(s->engine, n) / KERNELS_PAGE_TOKENS; i < pages_for(n) && i < window->count; i++)
        if (window->pages[i] < 0)
            return false;
    return true;
}

void kv_seq_take_back(struct engine_seq *s, int n)
{
    for (int g = 0; g < MODEL_GROUPS; g++) {
        struct kv_table *t = &s->table[g];
        while (t->count > pages_for(n)) {
            abandon(s);
            page_drop(&s->engine->pools[g], t->pages[--t->count]);
        }
    }
    s->tokens.n = (size_t)n;
}

int engine_seq_truncate(struct engine_seq *s, int n)
{
    int length = engine_seq_length(s);
    if (n < 0 || n > length)
        return -EINVAL;
    if (n == length)
        return 0;
    if (!window_intact(s, n))
        return -ERANGE;
    kv_seq_take_back(s, n);
    return 0;
}

int engine_seq_usable(const struct engine_seq *s)
{
    int n = engine_seq_length(s);
    while (!window_intact(s, n))
        n = (n - 1) / KERNELS_PAGE_TOKENS * KERNELS_PAGE_TOKENS;
    return n;
}

/* First page that a sequence of this length keeps for window layers: what the next query sees, and its block, which is
 * stored when it is full. */
static int window_first_page(const struct engine *e, int length)
{
    int keep = window_start(e, length), block = length / KERNELS_ATTENTION_BLOCK * KERNELS_ATTENTION_BLOCK;
    return (keep < block ? keep : block) / KERNELS_PAGE_TOKENS;
}

void engine_seq_settle(struct engine_seq *s)
{
    struct engine *e = s->engine;
    struct kv_table *t = &s->table[MODEL_WINDOW];
    int keep = window_first_page(e, engine_seq_length(s));
    for (int i = 0; i < keep && i < t->count; i++)
        if (t->pages[i] >= 0) {
            abandon(s);
            page_drop(&e->pools[MODEL_WINDOW], t->pages[i]);
            t->pages[i] = -1;
        }
}

static int table_grow(struct kv_table *t, int count)
{
    if (count <= t->capacity)
        return 0;
    int capacity = t->capacity ? t->capacity : 16;
    while (capacity < count)
        capacity *= 2;
    int32_t *pages = realloc(t->pages, (size_t)capacity * sizeof *pages);
    if (!pages)
        return -ENOMEM;
    t->pages = pages;
    t->capacity = capacity;
    return 0;
}

/* Pages that n more tokens take in a group: new ones from page `from` on, and a copy when the last one is partly filled
 * and shared. */
static int pages_needed(const struct engine *e, const struct engine_seq *s, int g, int n, int from, bool *copy_last)
{
    *copy_last = false;
    if (e->pools[g].page_bytes == 0 || n == 0)
        return 0;
    int length = s ? engine_seq_length(s) : 0;
    if (n > INT_MAX - length)
        return INT_MAX;
    int have = pages_for(length) > from ? pages_for(length) : from;
    int need = pages_for(length + n) > have ? pages_for(length + n) - have : 0;
    if (length % KERNELS_PAGE_TOKENS != 0) {
        int32_t last = s->table[g].pages[s->table[g].count - 1];
        if (last >= 0 && e->pools[g].uses[last] > 1) {
            *copy_last = true;
            need++;
        }
    }
    return need;
}

/* Makes pages for n more tokens writable (copying a shared last page). `import`: all n are written before anyone reads
 * them; with `until` window layers get only the pages that they keep at that length. Nothing has changed when it fails.
 */
static int reserve(struct engine_seq *s, int n, bool import, int until)
{
    struct engine *e = s->engine;
    bool copy_last[MODEL_GROUPS];
    const int from[MODEL_GROUPS] = {[MODEL_WINDOW] = window_first_page(e, until)};
    int count = pages_for(engine_seq_length(s) + n);
    enum kernels_stream stream = import ? KERNELS_IN : KERNELS_COMPUTE;
    for (int g = 0; g < MODEL_GROUPS; g++) {
        if (pages_needed(e, s, g, n, from[g], &copy_last[g]) > e->pools[g].n_free)
            return -ENOSPC;
        if (e->pools[g].page_bytes && table_grow(&s->table[g], count))
            return -ENOMEM;
    }
    for (int g = 0; g < MODEL_GROUPS; g++) {
        struct kv_pool *pool = &e->pools[g];
        struct kv_table *t = &s->table[g];
        if (pool->page_bytes == 0)
            continue;
        if (copy_last[g]) {
            int32_t shared = t->pages[t->count - 1], own = page_take(e, pool, stream, true);
            e->ops->copy(e->kernels, stream, page_at(pool, own), page_at(pool, shared), pool->page_bytes);
            page_drop(pool, shared);
            t->pages[t->count - 1] = own;
        }
        int whole = import ? (engine_seq_length(s) + n) / KERNELS_PAGE_TOKENS : 0; /* pages that will be full */
        for (; t->count < count; t->count++)
            t->pages[t->count] = t->count < from[g] ? -1 : page_take(e, pool, stream, t->count < whole);
    }
    return 0;
}

static int extend(struct engine_seq *s, const engine_token *tokens, int n, bool import, int until)
{
    size_t length = s->tokens.n;
    if (n > s->engine->info.ctx_tokens - (int)length)
        return -EOVERFLOW;
    /* The tokens first: they can be taken back without a trace. */
    int rc = engine_tokens_append(&s->tokens, tokens, (size_t)n);
    if (rc)
        return rc;
    s->tokens.n = length;
    rc = reserve(s, n, import, until);
    if (rc == 0)
        s->tokens.n = length + (size_t)n;
    return rc;
}

int kv_seq_extend(struct engine_seq *s, const engine_token *tokens, int n)
{
    return extend(s, tokens, n, false, 0);
}

void kv_seq_order(struct engine_seq *s)
{
    struct engine *e = s->engine;
    e->ops->after(e->kernels, KERNELS_COMPUTE, s->imported);
    e->ops->after(e->kernels, KERNELS_COMPUTE, e->abandoned);
    e->ops->after(e->kernels, KERNELS_COMPUTE, e->exported);
}

struct engine_seq *engine_seq_fork(struct engine_seq *s, int n)
{
    struct engine *e = s->engine;
    if (n < 0 || n > engine_seq_length(s) || !window_intact(s, n))
        return NULL;
    struct engine_seq *f = engine_seq_new(e);
    if (!f)
        return NULL;
    f->imported = s->imported;
    if (engine_tokens_append(&f->tokens, s->tokens.ids, (size_t)n))
        goto fail;
    for (int g = 0; g < MODEL_GROUPS; g++) {
        if (e->pools[g].page_bytes == 0)
            continue;
        if (table_grow(&f->table[g], pages_for(n)))
            goto fail;
        for (int i = 0; i < pages_for(n); i++) {
            int32_t page = s->table[g].pages[i];
            if (page >= 0 && e->pools[g].uses[page] == UINT16_MAX)
                goto fail;
            if (page >= 0)
                e->pools[g].uses[page]++;
            f->table[g].pages[f->table[g].count++] = page;
        }
    }
    return f;
fail:
    engine_seq_free(f);
    return NULL;
}

struct engine_kv_use engine_kv_use(const struct engine *e)
{
    struct engine_kv_use use = {0};
    for (int g = 0; g < MODEL_GROUPS; g++) {
        const struct kv_pool *pool = &e->pools[g];
        use.used_bytes += (size_t)(pool->n_pages - pool->n_free) * pool->page_bytes;
        use.budget_bytes += (size_t)pool->n_pages * pool->page_bytes;
    }
    return use;
}

bool engine_kv_fits(const struct engine *e, const struct engine_seq *s, int n)
{
    bool copy_last;
    for (int g = 0; g < MODEL_GROUPS; g++)
        if (pages_needed(e, s, g, n, 0, &copy_last) > e->pools[g].n_free)
            return false;
    return true;
}

bool engine_kv_might_fit(const struct engine *e, struct engine_seq *const *kept, int n_kept, int n)
{
    bool copy_last;
    for (int g = 0; g < MODEL_GROUPS; g++) {
        const struct kv_pool *pool = &e->pools[g];
        double held = 0.0; /* a shared page counts for each of its users in part, and never more than once */
        for (int i = 0; i < n_kept; i++)
            for (int k = 0; k < kept[i]->table[g].count; k++) {
                int32_t page = kept[i]->table[g].pages[k];
                held += page < 0 ? 0.0 : 1.0 / pool->uses[page];
            }
        if (pages_needed(e, NULL, g, n, 0, &copy_last) > pool->n_pages - held + 1e-6)
            return false;
    }
    return true;
}

/* ---- keys and values in and out ---- */

/* Memory that the backend can move to and from, that nothing uses any more. It is kept, since pinning takes longer than
 * what it is for; several take turns, so that one is filled while what is in the others is moved. 0, -ENOMEM, -EIO. */
static int staging_take(struct engine *e, size_t bytes, struct kv_staging **out)
{
    struct kv_staging *s = &e->staging[e->stagings_used++ % KV_STAGINGS];
    int rc = e->ops->wait(e->kernels, s->used, -1);
    if (rc)
        return rc;
    if (bytes > s->bytes) {
        if (s->p)
            e->ops->release(e->kernels, KERNELS_PINNED, s->p, s->bytes);
        s->p = e->ops->alloc(e->kernels, KERNELS_PINNED, bytes);
        s->bytes = s->p ? bytes : 0;
    }
    *out = s;
    return s->p ? 0 : -ENOMEM;
}

static void pages_of(const struct engine_seq *s, struct kernels_pages pages[MODEL_GROUPS])
{
    for (int g = 0; g < MODEL_GROUPS; g++)
        pages[g] = (struct kernels_pages){s->table[g].pages, s->table[g].count};
}

/* Whether these positions are there; their pages. */
static int export_begin(struct engine_seq *s, int first, int n, struct kernels_pages pages[MODEL_GROUPS])
{
    struct engine *e = s->engine;
    if (first < 0 || n <= 0 || first > engine_seq_length(s) - n)
        return -ERANGE;
    const struct kv_table *window = &s->table[MODEL_WINDOW];
    for (int i = first / KERNELS_PAGE_TOKENS; i < pages_for(first + n) && i < window->count; i++)
        if (window->pages[i] < 0)
            return -ERANGE;
    pages_of(s, pages);
    e->ops->after(e->kernels, KERNELS_OUT, s->imported);
    return 0;
}

static int export_end(struct engine *e)
{
    e->exported = e->ops->record(e->kernels, KERNELS_OUT);
    return e->ops->wait(e->kernels, e->exported, -1);
}

int engine_kv_export(struct engine_seq *s, int first, int n, void *buf)
{
    struct engine *e = s->engine;
    struct kernels_pages pages[MODEL_GROUPS];
    struct kv_staging *staging = NULL;
    int rc = export_begin(s, first, n, pages);
    if (rc)
        return rc;
    size_t bytes = (size_t)n * e->info.kv_token_bytes;
    rc = e->ops->host ? 0 : staging_take(e, bytes, &staging);
    if (rc)
        return rc;
    e->ops->kv_export(e->kernels, e->kv, e->model.n_layers, pages, first, n, staging ? staging->p : buf);
    rc = export_end(e);
    if (rc == 0 && staging)
        memcpy(buf, staging->p, bytes);
    return rc;
}

/* Bytes of array i of n tokens' KV. */
static size_t array_bytes(const struct engine *e, int i, int n)
{
    return (size_t)e->layout[i].channels * (size_t)n * sizeof(uint16_t);
}

/* One part of KV that came in canonical form. */
struct whole {
    const struct engine *e;
    const uint8_t *buf;
    int n;
};

static const void *rows_of_whole(void *arg, int array, void *buf)
{
    const struct whole *w = arg;
    const uint8_t *at = w->buf;
    (void)buf;
    for (int i = 0; i < array; i++)
        at += array_bytes(w->e, i, w->n);
    return at;
}

/* A part's rows into pages that are another device's, over pinned memory. -EBADMSG, -ENOMEM, -EIO. */
static int part_to_device(struct engine *e, const struct kernels_pages *pages, const struct kernels_kv_part *p)
{
    struct kv_staging *staging;
    int rc = staging_take(e, (size_t)p->n * e->info.kv_token_bytes, &staging);
    if (rc)
        return rc;
    uint8_t *at = staging->p;
    for (int i = 0; i < 2 * e->model.n_layers; i++) {
        const struct kernels_pages *group = &pages[e->kv[i / 2].group];
        bool any = false;
        for (int k = p->first / KERNELS_PAGE_TOKENS; k < pages_for(p->first + p->n) && !any; k++)
            any = group->pages[k] >= 0;
        const void *rows = any ? p->rows(p->arg, i, at) : at;
        if (!rows)
            return -EBADMSG;
        if (rows != at)
            memcpy(at, rows, array_bytes(e, i, p->n));
        at += array_bytes(e, i, p->n);
    }
    e->ops->kv_import(e->kernels, e->kv, e->model.n_layers, pages, p->first, p->n, staging->p);
    staging->used = e->ops->record(e->kernels, KERNELS_IN);
    return 0;
}

/* Rows of parts that have their pages; *n_taken gets how many came before the first that did not come in. */
static int fill(struct engine_seq *s, struct kernels_kv_part *parts, int n_parts, int *n_taken)
{
    struct engine *e = s->engine;
    struct kernels_pages pages[MODEL_GROUPS];
    int rc = 0, n = 0;
    pages_of(s, pages);
    if (e->ops->kv_fill) {
        rc = e->ops->kv_fill(e->kernels, e->kv, e->model.n_layers, pages, parts, n_parts);
        while (rc == 0 && n < n_parts && !parts[n].failed)
            n++;
        if (rc == 0 && n < n_parts)
            rc = -EBADMSG;
    }
    while (!e->ops->kv_fill && n < n_parts && rc == 0)
        n += (rc = part_to_device(e, pages, &parts[n])) == 0;
    /* Nobody waits here: the next step with this sequence does, on the device (kv_seq_order()). */
    s->imported = e->ops->record(e->kernels, KERNELS_IN);
    if (rc == 0 && e->ops->error(e->kernels)) {
        n = 0;
        rc = -EIO;
    }
    *n_taken = n;
    return rc;
}

int engine_kv_restore(struct engine_seq *s, const struct engine_kv_part *parts, int n_parts, int until, int *n_taken)
{
    struct engine *e = s->engine;
    int n = 0, rc = 0, first = engine_seq_length(s);
    *n_taken = 0;
    struct kernels_kv_part *p = calloc(n_parts > 0 ? (size_t)n_parts : 1, sizeof *p);
    if (!p)
        return -ENOMEM;
    e->ops->after(e->kernels, KERNELS_IN, e->exported);
    for (; n < n_parts && rc == 0; n += rc == 0) {
        p[n] = (struct kernels_kv_part){engine_seq_length(s), parts[n].n, parts[n].rows, parts[n].arg, false};
        rc = parts[n].n > 0 ? extend(s, parts[n].tokens, parts[n].n, true, until) : -EINVAL;
    }
    if (n > 0) {
        int filled = fill(s, p, n, n_taken);
        rc = filled ? filled : rc;
    }
    if (*n_taken < n)
        kv_seq_take_back(s, *n_taken ? p[*n_taken].first : first);
    free(p);
    return rc;
}

int engine_kv_import(struct engine_seq *s, const engine_token *tokens, int n, const void *buf)
{
    struct whole w = {s->engine, buf, n};
    int taken;
    return engine_kv_restore(s, &(struct engine_kv_part){tokens, n, rows_of_whole, &w}, 1, 0, &taken);
}

/* ---- the split form ---- */

/* Makes pages for n more tokens. */
static int import_begin(struct engine_seq *s, const engine_token *tokens, int n,
                        struct kernels_pages pages[MODEL_GROUPS])
{
    struct engine *e = s->engine;
    if (n <= 0)
        return -EINVAL;
    e->ops->after(e->kernels, KERNELS_IN, e->exported);
    int rc = extend(s, tokens, n, true, 0);
    if (rc == 0)
        pages_of(s, pages);
    return rc;
}

/* Nobody waits here: the next step with this sequence does, on the device (kv_seq_order()). */
static int import_end(struct engine_seq *s, int first)
{
    struct engine *e = s->engine;
    s->imported = e->ops->record(e->kernels, KERNELS_IN);
    if (!e->ops->error(e->kernels))
        return 0;
    kv_seq_take_back(s, first);
    return -EIO;
}

void *engine_kv_buffer(struct engine *e, int n)
{
    const struct kernels_ops *ops = e->ops;
    size_t bytes = n > 0 && ops->kv_split_bytes ? ops->kv_split_bytes(e->kernels, e->kv, e->model.n_layers, n) : 0;
    if (!bytes || (n > e->split_tokens && ops->kv_split_reserve(e->kernels, e->kv, e->model.n_layers, n)))
        return NULL;
    e->split_tokens = n > e->split_tokens ? n : e->split_tokens;
    struct kv_buffer *b = NULL;
    for (int i = 0; i < KV_BUFFERS && !b; i++)
        if (!atomic_load(&e->buffers[i].taken) && ops->wait(e->kernels, e->buffers[i].used, 0) == 0)
            b = &e->buffers[i];
    if (!b)
        return NULL;
    if (b->bytes < bytes + KV_BUFFER_HEADER) {
        if (b->p)
            ops->release(e->kernels, KERNELS_PINNED, b->p, b->bytes);
        b->p = ops->alloc(e->kernels, KERNELS_PINNED, bytes + KV_BUFFER_HEADER);
        b->bytes = b->p ? bytes + KV_BUFFER_HEADER : 0;
        if (!b->p)
            return NULL;
        memcpy(b->p, &b, sizeof b);
    }
    b->used = 0;
    atomic_store(&b->taken, true);
    return b->p + KV_BUFFER_HEADER;
}

static struct kv_buffer *buffer_of(const void *buffer)
{
    struct kv_buffer *b;
    memcpy(&b, (const uint8_t *)buffer - KV_BUFFER_HEADER, sizeof b);
    return b;
}

void engine_kv_buffer_release(void *buffer)
{
    if (buffer)
        atomic_store(&buffer_of(buffer)->taken, false);
}

int engine_kv_export_split(struct engine_seq *s, int first, int n, void *buffer)
{
    struct engine *e = s->engine;
    struct kernels_pages pages[MODEL_GROUPS];
    int rc = export_begin(s, first, n, pages);
    if (rc)
        return rc;
    e->ops->kv_export_split(e->kernels, e->kv, e->model.n_layers, pages, first, n, buffer);
    return export_end(e);
}

int engine_kv_import_split(struct engine_seq *s, const engine_token *tokens, int n, void *buffer)
{
    struct engine *e = s->engine;
    struct kernels_pages pages[MODEL_GROUPS];
    int first = engine_seq_length(s), rc = import_begin(s, tokens, n, pages);
    if (rc)
        return rc;
    e->ops->kv_import_split(e->kernels, e->kv, e->model.n_layers, pages, first, n, buffer);
    rc = import_end(s, first);
    buffer_of(buffer)->used = s->imported;
    if (rc == 0)
        engine_kv_buffer_release(buffer);
    return rc;
}
