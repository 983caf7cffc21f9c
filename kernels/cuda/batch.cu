/* batch.cu - what a step is about, taken to the device in one copy; and steps that are the same again, as graphs.
 *
 * A batch's arrays lie in one piece of memory, on the device and in a few pinned copies that take turns. What changes
 * its size with every batch (page tables) lies behind all else, so that the places of the others never move: a graph
 * finds the next batch where it found the last one. The second batch of a kind is recorded, from the third on it is
 * replayed. What is picked behind a pass is a copy of its own, since its masks may be made while the pass goes on. */
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
    p.fixed = at;
    return p;
}

/* Bytes of the page tables, behind the fixed ones. */
static size_t table_bytes(const struct kernels_batch *b)
{
    size_t bytes = 0;
    for (int i = 0; i < b->n_runs; i++)
        for (int g = 0; g < KERNELS_PAGE_GROUPS; g++)
            bytes += (size_t)b->runs[i].pages[g].count * sizeof(int32_t);
    return ALIGNED(bytes);
}

static size_t mask_bytes(const struct kernels *k)
{
    return ALIGNED(((size_t)k->sizes.vocab + 31) / 32 * sizeof(uint32_t));
}

static size_t picks_bytes(const struct kernels *k, const struct kernels_pick *picks, int n)
{
    size_t bytes = ALIGNED((size_t)n * sizeof(struct cuda_pick));
    for (int i = 0; i < n; i++)
        bytes += ALIGNED((size_t)picks[i].n_seen * sizeof *picks[i].seen) + (picks[i].mask ? mask_bytes(k) : 0);
    return bytes;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static void drop_graphs(struct kernels *k)
{
    for (int i = 0; i < k->n_graphs; i++)
        if (k->graphs[i].exec)
            cudaGraphExecDestroy(k->graphs[i].exec);
    memset(k->graphs, 0, sizeof k->graphs);
    k->n_graphs = 0;
}

static void drop_staged(struct kernels *k, struct staged *s)
{
    backend_release(k, KERNELS_DEVICE, s->device, s->bytes);
    for (int i = 0; i < STAGINGS; i++)
        backend_release(k, KERNELS_PINNED, s->pinned[i], s->bytes);
    memset(s, 0, sizeof *s);
}

static int make_staged(struct kernels *k, struct staged *s, size_t bytes)
{
    drop_staged(k, s);
    s->device = (uint8_t *)backend_alloc(k, KERNELS_DEVICE, bytes);
    bool all = s->device;
    for (int i = 0; i < STAGINGS; i++) {
        s->pinned[i] = (uint8_t *)backend_alloc(k, KERNELS_PINNED, bytes);
        all = all && s->pinned[i];
    }
    s->bytes = bytes;
    return all ? 0 : -ENOMEM;
}

/* The pinned copy whose turn it is; NULL: there was a failure. */
static uint8_t *next_staged(struct kernels *k, struct staged *s)
{
    s->turn = (s->turn + 1) % STAGINGS;
    return backend_wait(k, s->sent[s->turn], -1) ? NULL : s->pinned[s->turn];
}

static void send_staged(struct kernels *k, struct staged *s, size_t bytes, const char *what)
{
    backend_fine(
        k, cudaMemcpyAsync(s->device, s->pinned[s->turn], bytes, cudaMemcpyHostToDevice, k->stream[KERNELS_COMPUTE]),
        what);
    s->sent[s->turn] = backend_record(k, KERNELS_COMPUTE);
}

static size_t usual_batch_bytes(const struct kernels_sizes *s)
{
    return places_for(s).fixed + ALIGNED((size_t)s->runs * (size_t)s->pages * KERNELS_PAGE_GROUPS * sizeof(int32_t));
}

static size_t usual_picks_bytes(const struct kernels_sizes *s)
{
    size_t mask = ALIGNED(((size_t)s->vocab + 31) / 32 * sizeof(uint32_t));
    size_t seen = ALIGNED(USUAL_SEEN * sizeof(struct kernels_seen));
    return ALIGNED((size_t)s->picks * sizeof(struct cuda_pick)) + (size_t)s->picks * (mask + seen);
}

size_t backend_batch_bytes(const struct kernels_sizes *s)
{
    return usual_batch_bytes(s) + usual_picks_bytes(s);
}

int backend_batch_reserve(struct kernels *k)
{
    k->places = places_for(&k->sizes);
    drop_graphs(k);
    int rc = make_staged(k, &k->batch, usual_batch_bytes(&k->sizes));
    return rc || k->sizes.picks == 0 ? rc : make_staged(k, &k->picks, usual_picks_bytes(&k->sizes));
}

void backend_batch_close(struct kernels *k)
{
    drop_graphs(k);
    drop_staged(k, &k->batch);
    drop_staged(k, &k->picks);
}

const int32_t *backend_batch_ids(const struct kernels *k)
{
    return (const int32_t *)(k->batch.device + k->places.ids);
}

const int32_t *backend_batch_pos(const struct kernels *k)
{
    return (const int32_t *)(k->batch.device + k->places.pos);
}

const float *backend_batch_query_scale(const struct kernels *k)
{
    return (const float *)(k->batch.device + k->places.query_scale);
}

const int32_t *backend_batch_wanted(const struct kernels *k)
{
    return (const int32_t *)(k->batch.device + k->places.wanted);
}

struct cuda_rows backend_batch_rows(const struct kernels *k, int group)
{
    return {k->rows,
            backend_batch_pos(k),
            (const int32_t *)(k->batch.device + k->places.table[group]),
            (const int32_t *)(k->batch.device + k->places.count[group]),
            (const int32_t *)(k->batch.device + k->places.first),
            (const int32_t *)(k->batch.device + k->places.end),
            (const int32_t *)(k->batch.device + k->places.fixed)};
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

/* ---- picks ------------------------------------------------------------------------------------------------------- */

/* Copies something behind what there is; where it will be on the device. */
static const void *append(const struct staged *s, uint8_t *to, size_t *at, const void *from, size_t bytes)
{
    const void *device = s->device + *at;
    memcpy(to + *at, from, bytes);
    *at = ALIGNED(*at + bytes);
    return device;
}

const struct cuda_pick *backend_send_picks(struct kernels *k, const struct kernels_pick *picks, int n)
{
    struct staged *s = &k->picks;
    size_t needed = picks_bytes(k, picks, n), at = ALIGNED((size_t)n * sizeof(struct cuda_pick));
    if (!backend_ready(k))
        return NULL;
    if (needed > s->bytes && make_staged(k, s, needed + needed / 2)) {
        backend_fine(k, cudaErrorMemoryAllocation, "picks with many seen tokens");
        return NULL;
    }
    uint8_t *to = next_staged(k, s);
    if (!to)
        return NULL;
    for (int i = 0; i < n; i++) {
        const struct kernels_pick *p = &picks[i];
        struct cuda_pick c = cuda_pick_of(p);
        if (p->n_seen > 0)
            c.seen = (const struct kernels_seen *)append(s, to, &at, p->seen, (size_t)p->n_seen * sizeof *p->seen);
        if (p->mask)
            c.mask =
                (const uint32_t *)append(s, to, &at, p->mask, ((size_t)k->sizes.vocab + 31) / 32 * sizeof *p->mask);
        ((struct cuda_pick *)to)[i] = c;
    }
    send_staged(k, s, at, "copying picks");
    return k->error[0] ? NULL : (const struct cuda_pick *)s->device;
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
        if (g->rows == b->rows && g->wanted == b->n_wanted) {
            g->met = k->batches;
            return g;
        }
        if (g->met < oldest->met)
            oldest = g;
    }
    struct batch_graph *g = k->n_graphs < MAX_BATCHES ? &k->graphs[k->n_graphs++] : oldest;
    if (g->exec)
        cudaGraphExecDestroy(g->exec);
    *g = {b->rows, b->n_wanted, 0, k->batches, NULL};
    return g;
}

int backend_begin(struct kernels *k, const struct kernels_batch *b)
{
    k->replaying = k->capturing = NULL;
    if (!backend_ready(k))
        return 0;
    size_t bytes = k->places.fixed + table_bytes(b);
    if (bytes > k->batch.bytes) {
        drop_graphs(k);
        if (make_staged(k, &k->batch, bytes + bytes / 2)) {
            backend_fine(k, cudaErrorMemoryAllocation, "a batch with many pages");
            return 0;
        }
    }
    k->batches++;
    uint8_t *to = next_staged(k, &k->batch);
    if (!to)
        return 0;
    fill_rows(k, b, to);
    send_staged(k, &k->batch, bytes, "copying a batch");
    k->rows = b->rows;
    k->wanted = b->n_wanted;
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
