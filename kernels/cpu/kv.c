/* kv.c - keys and values into pages, and between pages and the canonical layout of blobs.
 *
 * A page's keys lie dim-major in groups of 16 tokens, so that SIMD lanes are keys; the canonical layout is
 * channel-major over all tokens. Both hold the 16 tokens of a group side by side: whole groups move as 32 bytes per
 * dimension. Only slots that are asked for are written.
 */
#include "kernels/cpu/rows_internal.h"

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

struct write_job {
    const struct kernels_rows_set *set;
    const struct kernels_kv *kv;
    const float *key, *value; /* [rows][kv_heads][head_dim] */
    const struct kernels_run *runs;
    int n_runs;
};

static void write_row(const struct write_job *job, const struct kernels_run *run, int row)
{
    const struct kernels_kv *kv = job->kv;
    int pos = run->pos + row - run->first_row, slot = pos % PAGE, dim = kv->head_dim;
    uint16_t narrow[NARROW_CHUNK];
    for (int h = 0; h < kv->kv_heads; h++) {
        uint16_t *keys = page_rows(kv, &run->pages, pos / PAGE, h, false);
        uint16_t *values = page_rows(kv, &run->pages, pos / PAGE, h, true);
        if (!keys || !values)
            return;
        size_t from = ((size_t)row * (size_t)kv->kv_heads + (size_t)h) * (size_t)dim;
        job->set->narrow(kv->type, job->value + from, (size_t)dim, values + (size_t)slot * (size_t)dim);
        keys += (size_t)(slot / GROUP) * (size_t)dim * GROUP + slot % GROUP;
        for (int d = 0; d < dim; d += NARROW_CHUNK) {
            int n = dim - d < NARROW_CHUNK ? dim - d : NARROW_CHUNK;
            job->set->narrow(kv->type, job->key + from + d, (size_t)n, narrow);
            for (int i = 0; i < n; i++)
                keys[(size_t)(d + i) * GROUP] = narrow[i];
        }
    }
}

static void write_rows(void *arg, int worker, int first, int end)
{
    (void)worker;
    const struct write_job *job = arg;
    for (int i = 0; i < job->n_runs; i++) {
        const struct kernels_run *run = &job->runs[i];
        int from = run->first_row > first ? run->first_row : first;
        int to = run->first_row + run->n < end ? run->first_row + run->n : end;
        for (int row = from; row < to; row++)
            write_row(job, run, row);
    }
}

void kernels_op_kv_write(struct kernels *k, const struct kernels_kv *kv, const float *key, const float *value,
                         const struct kernels_run *runs, int n_runs)
{
    struct write_job job = {k->set->rows, kv, key, value, runs, n_runs};
    int rows = n_runs > 0 ? runs[n_runs - 1].first_row + runs[n_runs - 1].n : 0;
    size_t work = (size_t)rows * (size_t)kv->kv_heads * (size_t)kv->head_dim * 2;
    kernels_rows_share(k, work, rows, GROUP, write_rows, &job);
}

/* ---- canonical layout -------------------------------------------------------------------------------------------- */

struct copy_job {
    const struct kernels_kv *kv;
    struct kernels_pages pages;
    int first, n;
    uint16_t *keys, *values; /* [kv_heads * head_dim][n], [n][kv_heads * head_dim]; import only reads them */
    bool import;
};

/* Moves `count` tokens of one dimension: side by side in a group, and in the canonical row. */
static void copy_tokens(uint16_t *canonical, uint16_t *group, int count, bool import)
{
    if (import)
        memcpy(group, canonical, (size_t)count * sizeof(*group));
    else
        memcpy(canonical, group, (size_t)count * sizeof(*group));
}

/* Keys of one head in slots [slot, slot + count) of a page; `canonical` is at the first of them, rows n apart. */
static void copy_keys(const struct copy_job *job, uint16_t *keys, int slot, int count, uint16_t *canonical)
{
    size_t dim = (size_t)job->kv->head_dim, n = (size_t)job->n;
    if (count == PAGE) {
        for (size_t d = 0; d < dim; d++)
            for (size_t g = 0; g < PAGE / GROUP; g++)
                copy_tokens(canonical + d * n + g * GROUP, keys + (g * dim + d) * GROUP, GROUP, job->import);
        return;
    }
    for (int at = slot; at < slot + count;) {
        int lane = at % GROUP, left = slot + count - at;
        int part = left < GROUP - lane ? left : GROUP - lane;
        uint16_t *group = keys + (size_t)(at / GROUP) * dim * GROUP + lane, *row = canonical + (at - slot);
        if (part == GROUP)
            for (size_t d = 0; d < dim; d++)
                copy_tokens(row + d * n, group + d * GROUP, GROUP, job->import);
        else
            for (size_t d = 0; d < dim; d++)
                copy_tokens(row + d * n, group + d * GROUP, part, job->import);
        at += part;
    }
}

static void copy_values(const struct copy_job *job, uint16_t *values, int slot, int count, uint16_t *canonical)
{
    size_t dim = (size_t)job->kv->head_dim, row = dim * (size_t)job->kv->kv_heads;
    for (int i = 0; i < count; i++) {
        uint16_t *in_page = values + (size_t)(slot + i) * dim, *out = canonical + (size_t)i * row;
        if (job->import)
            memcpy(in_page, out, dim * sizeof(*out));
        else
            memcpy(out, in_page, dim * sizeof(*out));
    }
}

static void zero_tokens(const struct copy_job *job, uint16_t *keys, uint16_t *values, int count)
{
    size_t dim = (size_t)job->kv->head_dim, row = dim * (size_t)job->kv->kv_heads;
    for (size_t d = 0; d < dim; d++)
        memset(keys + d * (size_t)job->n, 0, (size_t)count * sizeof(*keys));
    for (int i = 0; i < count; i++)
        memset(values + (size_t)i * row, 0, dim * sizeof(*values));
}

/* Page by page, head by head. */
static void copy(const struct copy_job *job)
{
    if (job->n <= 0)
        return;
    int heads = job->kv->kv_heads;
    int pages = (job->first + job->n - 1) / PAGE - job->first / PAGE + 1;
    size_t dim = (size_t)job->kv->head_dim, channels = dim * (size_t)heads;
    for (int i = 0; i < pages * heads; i++) {
        int head = i % heads, page = job->first / PAGE + i / heads;
        int from = page * PAGE > job->first ? page * PAGE : job->first;
        int to = job->first + job->n - page * PAGE < PAGE ? job->first + job->n : (page + 1) * PAGE;
        size_t at = (size_t)(from - job->first);
        uint16_t *keys = job->keys + (size_t)head * dim * (size_t)job->n + at;
        uint16_t *values = job->values + at * channels + (size_t)head * dim;
        uint16_t *page_keys = page_rows(job->kv, &job->pages, page, head, false);
        uint16_t *page_values = page_rows(job->kv, &job->pages, page, head, true);
        if (page_keys && page_values) {
            copy_keys(job, page_keys, from % PAGE, to - from, keys);
            copy_values(job, page_values, from % PAGE, to - from, values);
        } else if (!job->import) {
            zero_tokens(job, keys, values, to - from);
        }
    }
}

void kernels_op_kv_export(struct kernels *k, const struct kernels_kv *kv, struct kernels_pages pages, int first, int n,
                          uint16_t *keys, uint16_t *values)
{
    (void)k;
    copy(&(struct copy_job){kv, pages, first, n, keys, values, false});
}

void kernels_op_kv_import(struct kernels *k, const struct kernels_kv *kv, struct kernels_pages pages, int first, int n,
                          const uint16_t *keys, const uint16_t *values)
{
    (void)k;
    copy(&(struct copy_job){kv, pages, first, n, (uint16_t *)keys, (uint16_t *)values, true});
}
