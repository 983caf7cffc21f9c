/* kv.c - keys and values into pages, and between pages and the canonical layout of blobs.
 *
 * A page's keys lie dim-major in groups of 16 tokens, so that SIMD lanes are keys; the canonical layout is
 * channel-major over all tokens. Both hold the 16 tokens of a group side by side: whole groups move as 32 bytes per
 * dimension. Only slots that are asked for are written.
 */
#include "kernels/cpu/rows_internal.h"

#include <errno.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define GROUP        KERNELS_KEY_GROUP
#define PAGE         KERNELS_PAGE_TOKENS
#define NARROW_CHUNK 256

/* One kv head's keys, [PAGE / GROUP][head_dim][GROUP], and values, [PAGE][head_dim], of a page; NULL when it was
 * dropped or lies past the table. */
static uint16_t *page_rows(const struct kernels_kv *kv, const struct kernels_pages *pages, int index, int head,
                           bool is_value)
{
    if (index >= pages->count || pages->pages[index] < 0)
        return NULL;
    uint8_t *page = kv->pool + (size_t)pages->pages[index] * kv->page_bytes;
    return (uint16_t *)(void *)(page + (is_value ? kv->v_offset : kv->k_offset)) +
           (size_t)head * PAGE * (size_t)kv->head_dim;
}

/* ---- new rows ---------------------------------------------------------------------------------------------------- */

void kernels_kv_write_row(const struct kernels_set *set, const struct kernels_kv *kv, const struct kernels_run *run,
                          int row, const float *key, const float *value)
{
    int pos = run->pos + row - run->first_row, slot = pos % PAGE, dim = kv->head_dim;
    uint16_t narrow[NARROW_CHUNK];
    for (int h = 0; h < kv->kv_heads; h++, key += dim, value += dim) {
        uint16_t *keys = page_rows(kv, &run->pages[kv->group], pos / PAGE, h, false);
        uint16_t *values = page_rows(kv, &run->pages[kv->group], pos / PAGE, h, true);
        if (!keys || !values)
            return;
        set->rows->narrow(kv->type, value, (size_t)dim, values + (size_t)slot * (size_t)dim);
        keys += (size_t)(slot / GROUP) * (size_t)dim * GROUP + slot % GROUP;
        for (int d = 0; d < dim; d += NARROW_CHUNK) {
            int n = dim - d < NARROW_CHUNK ? dim - d : NARROW_CHUNK;
            set->rows->narrow(kv->type, key + d, (size_t)n, narrow);
            for (int i = 0; i < n; i++)
                keys[(size_t)(d + i) * GROUP] = narrow[i];
        }
    }
}

/* ---- canonical layout -------------------------------------------------------------------------------------------- */

/* Positions [first, first + n) of one layer's keys, [kv_heads * head_dim][n], or values, [n][kv_heads * head_dim]. */
struct copy_job {
    const struct kernels_kv *kv;
    struct kernels_pages pages;
    int first, n;
    bool values;
    const uint16_t *from; /* into pages; or: */
    uint16_t *to;         /* out of pages */
};

/* Copies n elements, a multiple of 8, to where they will not be read soon: past the caches, where the processor can.
 * Other threads see them after streamed(). */
static inline void stream(uint16_t *to, const uint16_t *from, size_t n)
{
#ifdef __SSE2__
    for (size_t i = 0; i < n; i += 8)
        _mm_stream_si128((__m128i *)(void *)(to + i), _mm_loadu_si128((const __m128i *)(const void *)(from + i)));
#else
    memcpy(to, from, n * sizeof *to);
#endif
}

static inline void streamed(void)
{
#ifdef __SSE2__
    _mm_sfence();
#endif
}

/* Keys of one head in slots [slot, slot + count) of a page, NULL: it was dropped; the first of them is element `at`,
 * rows n apart. Group by group, so that a page is written from its beginning to its end. */
static void copy_keys(const struct copy_job *job, uint16_t *page, int slot, int count, size_t at)
{
    size_t dim = (size_t)job->kv->head_dim, n = (size_t)job->n;
    if (!page) {
        for (size_t d = 0; job->to && d < dim; d++)
            memset(job->to + at + d * n, 0, (size_t)count * sizeof *job->to);
        return;
    }
    for (int end = slot + count; slot < end;) {
        int lane = slot % GROUP, part = end - slot < GROUP - lane ? end - slot : GROUP - lane;
        uint16_t *group = page + (size_t)(slot / GROUP) * dim * GROUP + lane;
        for (size_t d = 0; d < dim; d++)
            if (job->to && part == GROUP)
                memcpy(job->to + at + d * n, group + d * GROUP, GROUP * sizeof *group);
            else if (job->to)
                memcpy(job->to + at + d * n, group + d * GROUP, (size_t)part * sizeof *group);
            else if (part == GROUP)
                stream(group + d * GROUP, job->from + at + d * n, GROUP);
            else
                memcpy(group + d * GROUP, job->from + at + d * n, (size_t)part * sizeof *group);
        slot += part;
        at += (size_t)part;
    }
}

static void copy_values(const struct copy_job *job, uint16_t *page, int slot, int count, size_t at)
{
    size_t dim = (size_t)job->kv->head_dim, row = dim * (size_t)job->kv->kv_heads;
    for (int i = 0; i < count; i++, at += row) {
        uint16_t *in_page = page ? page + (size_t)(slot + i) * dim : NULL;
        if (!page && job->to)
            memset(job->to + at, 0, dim * sizeof *job->to);
        else if (page && job->to)
            memcpy(job->to + at, in_page, dim * sizeof *in_page);
        else if (page && dim % 8 == 0)
            stream(in_page, job->from + at, dim);
        else if (page)
            memcpy(in_page, job->from + at, dim * sizeof *in_page);
    }
}

/* Page by page, head by head. */
static void copy(const struct copy_job *job)
{
    if (job->n <= 0)
        return;
    int heads = job->kv->kv_heads;
    int pages = (job->first + job->n - 1) / PAGE - job->first / PAGE + 1;
    size_t dim = (size_t)job->kv->head_dim;
    for (int i = 0; i < pages * heads; i++) {
        int head = i % heads, page = job->first / PAGE + i / heads;
        int from = page * PAGE > job->first ? page * PAGE : job->first;
        int to = job->first + job->n - page * PAGE < PAGE ? job->first + job->n : (page + 1) * PAGE;
        size_t at = (size_t)(from - job->first);
        uint16_t *in_page = page_rows(job->kv, &job->pages, page, head, job->values);
        if (job->values)
            copy_values(job, in_page, from % PAGE, to - from, (at * (size_t)heads + (size_t)head) * dim);
        else
            copy_keys(job, in_page, from % PAGE, to - from, (size_t)head * dim * (size_t)job->n + at);
    }
    if (job->from)
        streamed();
}

void kernels_kv_export_layer(const struct kernels_kv *kv, struct kernels_pages pages, int first, int n, void *keys,
                             void *values)
{
    copy(&(struct copy_job){kv, pages, first, n, false, NULL, keys});
    copy(&(struct copy_job){kv, pages, first, n, true, NULL, values});
}

void kernels_kv_import_layer(const struct kernels_kv *kv, struct kernels_pages pages, int first, int n,
                             const void *keys, const void *values)
{
    copy(&(struct copy_job){kv, pages, first, n, false, keys, NULL});
    copy(&(struct copy_job){kv, pages, first, n, true, values, NULL});
}

/* ---- all layers of a sequence ------------------------------------------------------------------------------------ */

static size_t half_of(const struct kernels_kv *kv, int n)
{
    return (size_t)kv->kv_heads * (size_t)kv->head_dim * (size_t)n;
}

struct move {
    const struct kernels_kv *layers;
    const struct kernels_pages *pages; /* [groups] */
    int first, n;
    const uint16_t *from; /* staging; or: */
    uint16_t *to;
};

static void move_layer(void *arg, int l)
{
    const struct move *m = arg;
    const struct kernels_kv *kv = &m->layers[l];
    size_t at = 0, half = half_of(kv, m->n);
    for (int i = 0; i < l; i++)
        at += 2 * half_of(&m->layers[i], m->n);
    if (m->to)
        kernels_kv_export_layer(kv, m->pages[kv->group], m->first, m->n, m->to + at, m->to + at + half);
    else
        kernels_kv_import_layer(kv, m->pages[kv->group], m->first, m->n, m->from + at, m->from + at + half);
}

void kernels_op_kv_export(struct kernels *k, const struct kernels_kv *layers, int n_layers,
                          const struct kernels_pages *pages, int first, int n, void *staging)
{
    struct move m = {layers, pages, first, n, NULL, staging};
    kernels_parallel(k, n_layers, move_layer, &m);
}

void kernels_op_kv_import(struct kernels *k, const struct kernels_kv *layers, int n_layers,
                          const struct kernels_pages *pages, int first, int n, const void *staging)
{
    struct move m = {layers, pages, first, n, staging, NULL};
    kernels_parallel(k, n_layers, move_layer, &m);
}

/* ---- straight from where they are kept ---- */

struct fill {
    const struct kernels_kv *layers;
    int arrays;
    const struct kernels_pages *pages; /* [groups] */
    struct kernels_kv_part *parts;
    uint8_t *scratch; /* [workers][stride] */
    size_t stride;
};

static bool any_page(const struct kernels_pages *pages, int first, int n)
{
    for (int i = first / PAGE; i <= (first + n - 1) / PAGE && i < pages->count; i++)
        if (pages->pages[i] >= 0)
            return true;
    return false;
}

static void fill_range(void *arg, int worker, int first, int end)
{
    const struct fill *f = arg;
    for (int i = first; i < end; i++) {
        struct kernels_kv_part *part = &f->parts[i / f->arrays];
        int array = i % f->arrays;
        const struct kernels_kv *kv = &f->layers[array / 2];
        if (!any_page(&f->pages[kv->group], part->first, part->n) || __atomic_load_n(&part->failed, __ATOMIC_RELAXED))
            continue;
        const uint16_t *rows = part->rows(part->arg, array, f->scratch + (size_t)worker * f->stride);
        if (rows)
            copy(&(struct copy_job){kv, f->pages[kv->group], part->first, part->n, array % 2 == 1, rows, NULL});
        else
            __atomic_store_n(&part->failed, true, __ATOMIC_RELAXED);
    }
}

int kernels_op_kv_fill(struct kernels *k, const struct kernels_kv *layers, int n_layers,
                       const struct kernels_pages *pages, struct kernels_kv_part *parts, int n_parts)
{
    struct fill f = {.layers = layers, .arrays = 2 * n_layers, .pages = pages, .parts = parts};
    for (int i = 0; i < n_parts; i++)
        for (int l = 0; l < n_layers; l++) {
            size_t bytes = half_of(&layers[l], parts[i].n) * sizeof(uint16_t);
            f.stride = bytes > f.stride ? bytes : f.stride;
        }
    f.stride = (f.stride + 63) & ~(size_t)63;
    size_t bytes = f.stride * (size_t)k->threads;
    if (bytes > k->fill_bytes) {
        kernels_cpu_release(k->fill, k->fill_bytes);
        k->fill = kernels_cpu_alloc(bytes);
        k->fill_bytes = k->fill ? bytes : 0;
        if (!k->fill)
            return -ENOMEM;
    }
    f.scratch = k->fill;
    kernels_pool_run(k->pool, n_parts * f.arrays, 1, fill_range, &f);
    return 0;
}
