/* batch.cu - what a step is about, taken to the device in one copy; and steps that are the same again, as graphs.
 *
 * A batch's arrays lie in one piece of memory, on the device and in a few pinned copies that take turns. What changes
 * its size with every batch (page tables, seen tokens, masks) lies behind all else, so that the places of the others
 * never move: a graph finds the next batch where it found the last one. The second batch of a kind is recorded, from
 * the third on it is replayed. */
#include "kernels/cuda/backend.h"

#include <string.h>

#define ALIGNED(n) (((n) + 15) & ~(size_t)15)

/* ---- places ------------------------------------------------------------------------------------------------------ */

static size_t place(size_t *at, size_t count, size_t size)
{
    size_t here = *at;
    *at = ALIGNED(here + count * size);
    return here;
}

static struct batch_places places_for(const struct kernels_sizes *s)
{
    struct batch_places p;
    size_t at = 0, rows = (size_t)s->rows;
    p.ids = place(&at, rows, sizeof(int32_t));
    p.pos = place(&at, rows, sizeof(int32_t));
    p.first = place(&at, rows, sizeof(int32_t));
    p.end = place(&at, rows, sizeof(int32_t));
    p.query_scale = place(&at, rows, sizeof(float));
    for (int g = 0; g < KERNELS_PAGE_GROUPS; g++) {
        p.table[g] = place(&at, rows, sizeof(int32_t));
        p.count[g] = place(&at, rows, sizeof(int32_t));
    }
    p.wanted = place(&at, (size_t)s->wanted, sizeof(int32_t));
    p.picks = place(&at, (size_t)s->picks, sizeof(struct cuda_pick));
    p.fixed = at;
    return p;
}

/* Bytes behind the fixed ones. */
static size_t variable_bytes(const struct kernels_batch *b, int vocab)
{
    size_t bytes = 0;
    for (int i = 0; i < b->n_runs; i++)
        for (int g = 0; g < KERNELS_PAGE_GROUPS; g++)
            bytes += (size_t)b->runs[i].pages[g].count * sizeof(int32_t);
    bytes = ALIGNED(bytes);
    for (int i = 0; i < b->n_picks; i++) {
        bytes += ALIGNED((size_t)b->picks[i].n_seen * sizeof(struct kernels_seen));
        if (b->picks[i].mask)
            bytes += ALIGNED(((size_t)vocab + 31) / 32 * sizeof(uint32_t));
    }
    return bytes;
}

static void drop_graphs(struct kernels *k)
{
    for (int i = 0; i < k->n_graphs; i++)
        if (k->graphs[i].exec)
            cudaGraphExecDestroy(k->graphs[i].exec);
    memset(k->graphs, 0, sizeof k->graphs);
    k->n_graphs = 0;
}

static void drop_memory(struct kernels *k)
{
    backend_release(k, KERNELS_DEVICE, k->batch, k->batch_bytes);
    for (int i = 0; i < STAGINGS; i++) {
        backend_release(k, KERNELS_PINNED, k->staging[i], k->batch_bytes);
        k->staging[i] = NULL;
        k->staged[i] = 0;
    }
    k->batch = NULL;
    k->batch_bytes = 0;
}

static int make_memory(struct kernels *k, size_t bytes)
{
    drop_graphs(k);
    drop_memory(k);
    k->batch = (uint8_t *)backend_alloc(k, KERNELS_DEVICE, bytes);
    bool all = k->batch;
    for (int i = 0; i < STAGINGS; i++) {
        k->staging[i] = (uint8_t *)backend_alloc(k, KERNELS_PINNED, bytes);
        all = all && k->staging[i];
    }
    k->batch_bytes = bytes;
    return all ? 0 : -ENOMEM;
}

size_t backend_batch_bytes(const struct kernels_sizes *s)
{
    size_t tables = (size_t)s->runs * (size_t)s->pages * KERNELS_PAGE_GROUPS * sizeof(int32_t);
    size_t mask = ALIGNED(((size_t)s->vocab + 31) / 32 * sizeof(uint32_t));
    size_t seen = ALIGNED(USUAL_SEEN * sizeof(struct kernels_seen));
    return places_for(s).fixed + ALIGNED(tables) + (size_t)s->picks * (mask + seen);
}

int backend_batch_reserve(struct kernels *k)
{
    k->places = places_for(&k->sizes);
    return make_memory(k, backend_batch_bytes(&k->sizes));
}

void backend_batch_close(struct kernels *k)
{
    drop_graphs(k);
    drop_memory(k);
}

const int32_t *backend_batch_ids(const struct kernels *k)
{
    return (const int32_t *)(k->batch + k->places.ids);
}

const int32_t *backend_batch_pos(const struct kernels *k)
{
    return (const int32_t *)(k->batch + k->places.pos);
}

const float *backend_batch_query_scale(const struct kernels *k)
{
    return (const float *)(k->batch + k->places.query_scale);
}

const int32_t *backend_batch_wanted(const struct kernels *k)
{
    return (const int32_t *)(k->batch + k->places.wanted);
}

const struct cuda_pick *backend_batch_picks(const struct kernels *k)
{
    return (const struct cuda_pick *)(k->batch + k->places.picks);
}

struct cuda_rows backend_batch_rows(const struct kernels *k, int group)
{
    return {k->rows,
            backend_batch_pos(k),
            (const int32_t *)(k->batch + k->places.table[group]),
            (const int32_t *)(k->batch + k->places.count[group]),
            (const int32_t *)(k->batch + k->places.first),
            (const int32_t *)(k->batch + k->places.end),
            (const int32_t *)(k->batch + k->places.fixed)};
}

/* ---- filling ----------------------------------------------------------------------------------------------------- */

static void fill_rows(const struct kernels *k, const struct kernels_batch *b, uint8_t *to)
{
    const struct batch_places *p = &k->places;
    int32_t *pos = (int32_t *)(to + p->pos), *pages = (int32_t *)(to + p->fixed), at = 0;
    memcpy(to + p->ids, b->ids, (size_t)b->rows * sizeof *b->ids);
    if (b->query_scale)
        memcpy(to + p->query_scale, b->query_scale, (size_t)b->rows * sizeof *b->query_scale);
    for (int i = 0; i < b->n_runs; i++) {
        const struct kernels_run *run = &b->runs[i];
        for (int r = run->first_row; r < run->first_row + run->n; r++) {
            pos[r] = run->pos + r - run->first_row;
            ((int32_t *)(to + p->first))[r] = run->first_row;
            ((int32_t *)(to + p->end))[r] = run->first_row + run->n;
        }
        for (int g = 0; g < KERNELS_PAGE_GROUPS; g++) {
            const struct kernels_pages *table = &run->pages[g];
            for (int r = run->first_row; r < run->first_row + run->n; r++) {
                ((int32_t *)(to + p->table[g]))[r] = at;
                ((int32_t *)(to + p->count[g]))[r] = table->count;
            }
            if (table->count > 0)
                memcpy(pages + at, table->pages, (size_t)table->count * sizeof *pages);
            at += table->count;
        }
    }
    if (b->n_wanted > 0)
        memcpy(to + p->wanted, b->wanted, (size_t)b->n_wanted * sizeof *b->wanted);
}

static size_t table_bytes(const struct kernels_batch *b)
{
    size_t bytes = 0;
    for (int i = 0; i < b->n_runs; i++)
        for (int g = 0; g < KERNELS_PAGE_GROUPS; g++)
            bytes += (size_t)b->runs[i].pages[g].count * sizeof(int32_t);
    return ALIGNED(bytes);
}

/* Copies something into the part behind the fixed one; where it will be on the device. */
static const void *append(const struct kernels *k, uint8_t *to, size_t *at, const void *from, size_t bytes)
{
    const void *device = k->batch + *at;
    memcpy(to + *at, from, bytes);
    *at = ALIGNED(*at + bytes);
    return device;
}

static size_t fill_picks(const struct kernels *k, const struct kernels_batch *b, uint8_t *to)
{
    struct cuda_pick *picks = (struct cuda_pick *)(to + k->places.picks);
    size_t at = k->places.fixed + table_bytes(b), words = ((size_t)k->sizes.vocab + 31) / 32;
    for (int i = 0; i < b->n_picks; i++) {
        const struct kernels_pick *p = &b->picks[i];
        struct cuda_pick c = cuda_pick_of(p);
        if (p->n_seen > 0)
            c.seen = (const struct kernels_seen *)append(k, to, &at, p->seen, (size_t)p->n_seen * sizeof *p->seen);
        if (p->mask)
            c.mask = (const uint32_t *)append(k, to, &at, p->mask, words * sizeof *p->mask);
        picks[i] = c;
    }
    return at;
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

/* The kind of a batch that may have a graph; NULL where it may not. When there are many the one that was not met for
 * the longest time goes. */
static struct batch_graph *graph_for(struct kernels *k, const struct kernels_batch *b)
{
    struct batch_graph *oldest = &k->graphs[0];
    if (b->rows > GRAPH_ROWS)
        return NULL;
    for (int i = 0; i < k->n_graphs; i++) {
        struct batch_graph *g = &k->graphs[i];
        if (g->rows == b->rows && g->wanted == b->n_wanted && g->picks == b->n_picks) {
            g->met = k->batches;
            return g;
        }
        if (g->met < oldest->met)
            oldest = g;
    }
    struct batch_graph *g = k->n_graphs < MAX_BATCHES ? &k->graphs[k->n_graphs++] : oldest;
    if (g->exec)
        cudaGraphExecDestroy(g->exec);
    *g = {b->rows, b->n_wanted, b->n_picks, 0, k->batches, NULL};
    return g;
}

int backend_begin(struct kernels *k, const struct kernels_batch *b)
{
    k->replaying = k->capturing = NULL;
    if (!backend_ready(k))
        return 0;
    size_t needed = k->places.fixed + variable_bytes(b, k->sizes.vocab);
    if (needed > k->batch_bytes && make_memory(k, needed + needed / 2)) {
        backend_fine(k, cudaErrorMemoryAllocation, "a batch with many seen tokens");
        return 0;
    }
    int slot = (int)(k->batches++ % STAGINGS);
    if (backend_wait(k, k->staged[slot], -1))
        return 0;
    uint8_t *to = k->staging[slot];
    fill_rows(k, b, to);
    size_t bytes = fill_picks(k, b, to);
    backend_fine(k, cudaMemcpyAsync(k->batch, to, bytes, cudaMemcpyHostToDevice, k->stream[KERNELS_COMPUTE]),
                 "copying a batch");
    k->staged[slot] = backend_record(k, KERNELS_COMPUTE);
    k->rows = b->rows;
    k->wanted = b->n_wanted;
    k->picks = b->n_picks;
    struct batch_graph *g = graph_for(k, b);
    if (!g)
        return 0;
    if (g->exec) {
        k->replaying = g;
        return 1;
    }
    if (++g->seen == 2 &&
        backend_fine(k, cudaStreamBeginCapture(k->stream[KERNELS_COMPUTE], cudaStreamCaptureModeThreadLocal),
                     "recording a graph"))
        k->capturing = g;
    return 0;
}

/* A step that could not be recorded is a failure: its work is nowhere. */
void backend_end(struct kernels *k)
{
    cudaStream_t stream = k->stream[KERNELS_COMPUTE];
    if (k->capturing) {
        cudaGraph_t graph = NULL;
        cudaError_t e = cudaStreamEndCapture(stream, &graph);
        if (backend_fine(k, e, "recording a graph"))
            backend_fine(k, cudaGraphInstantiateWithFlags(&k->capturing->exec, graph, 0), "making a graph");
        if (graph)
            cudaGraphDestroy(graph);
        k->replaying = k->capturing;
    }
    if (k->replaying && !k->error[0])
        backend_fine(k, cudaGraphLaunch(k->replaying->exec, stream), "starting a graph");
    k->replaying = k->capturing = NULL;
}
