/* writer.c - the KV writer thread: takes what the encoders made ready, appends it to packs, syncs, and sends the rows
 * to the ledger thread. In order of submission.
 *
 * Segments put since the last commit form a group. A commit syncs the pack once (a pack that fills up is synced before
 * the next one begins), then the group's rows and the turn's hold go to the ledger thread as one job. A record that
 * could not be written or synced is dropped and never retried: its pack is not used any further, its segment stays in
 * RAM, and the turn holds the nearest ancestor that is on disk.
 *
 * A row is made only where its parent has one: a segment that lies behind a gap could not be found, and the turn that
 * held it would not hold what is before the gap. It is refused (-ESTALE) until the gap is closed by a later put.
 *
 * The disk budget is kept before writing: room is made first, and where there is none the segment stays in RAM. Making
 * room does not take what the segments in hand or in the queue are children of, or what a commit in the queue will
 * hold.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "storage/storage_internal.h"

#define EVICT_MORE      16
#define EVICT_SHARE     1024
#define IDLE_DEAD_SHARE 2 /* of a pack's size: then one is looked for that keeps more space than it uses */
#define DEAD_SHARE      4 /* of the budget may be space of packs in which nothing lies */
#define EVICT_FULL      ((uint64_t)2 << 20)  /* more than is needed, when the disk is full */
#define AHEAD_BYTES     ((uint64_t)64 << 20) /* of a pack are allocated at once, */
#define AHEAD_SHARE     16                   /* but not more than this share of what is free */
#define CHAIN_MAX       (1u << 16)           /* segments; a longer chain is a damaged index's */

struct item { /* one segment of a group */
    uint8_t key[STORAGE_KEY_BYTES], parent[STORAGE_KEY_BYTES];
    int64_t owner;
    struct blob *blob; /* NULL: it could not be made, and rc says why */
    uint32_t pack;
    uint64_t offset;
    bool written; /* the record lies in the pack */
    bool has_row;
    bool mine; /* it is of the chain that the group's commit holds; others are for turns that still run */
    int rc;    /* why it is not saved */
};

struct owner { /* of some of a group's segments */
    int64_t id;
    uint64_t ram_most; /* what it may have in RAM; 0: no limit */
};

struct group {
    struct storage *st;
    uint64_t queued; /* bytes that its puts count for in the queue */
    struct item *items;
    size_t n, cap;
    struct owner *owners;
    size_t n_owners;
    uint8_t (*stored)[STORAGE_KEY_BYTES]; /* put, but there already */
    size_t n_stored, cap_stored;
    int rc;    /* a segment was lost before it became an item */
    int stale; /* the chain that was to be held has a gap */
    /* The commit. */
    int64_t turn;
    uint8_t last[STORAGE_KEY_BYTES];
    bool gone; /* the turn: it was deleted, or there was none */
    uint32_t active_pack;
    int (*with)(struct storage_ledger *l, void *arg, int rc);
    void (*done)(void *arg, int rc);
    void *arg;
};

/* ---- writing ----------------------------------------------------------------------------------------------------- */

struct evict {
    uint64_t bytes, freed;
    uint8_t (*keep)[STORAGE_KEY_BYTES];
    size_t n_keep;
};

static int evict_run(struct storage_ledger *l, void *arg)
{
    struct evict *e = arg;
    if (l->unread) /* which are the leaves is not known yet */
        return -ENOSPC;
    size_t before = l->n_drops;
    int rc = segment_let_go(l);
    uint64_t let_go = 0, freed = 0;
    for (size_t i = before; i < l->n_drops; i++)
        let_go += l->drops[i].bytes;
    if (!rc && let_go < e->bytes)
        rc = segment_evict(l, e->bytes - let_go, (const uint8_t(*)[STORAGE_KEY_BYTES])e->keep, e->n_keep, &freed);
    e->freed = let_go + freed;
    return rc;
}

static void keep(struct evict *e, const uint8_t key[STORAGE_KEY_BYTES])
{
    if (!pack_is_zero(key, STORAGE_KEY_BYTES))
        memcpy(e->keep[e->n_keep++], key, STORAGE_KEY_BYTES);
}

static int evict(const struct group *g, uint64_t bytes, uint64_t *freed)
{
    struct storage *st = g->st;
    struct evict e = {.bytes = bytes};
    /* Only this thread takes from the queue. What comes to its end meanwhile is not waited for. */
    pthread_mutex_lock(&st->writer_lock);
    size_t n = g->n + g->n_stored;
    for (const struct write_op *op = st->writes; op; op = op->next)
        n += 2;
    e.keep = malloc((n ? n : 1) * sizeof *e.keep);
    for (const struct write_op *op = e.keep ? st->writes : NULL; op; op = op->next) {
        keep(&e, op->commit ? op->last : op->rec.key);
        if (!op->commit)
            keep(&e, op->rec.parent);
    }
    pthread_mutex_unlock(&st->writer_lock);
    if (!e.keep)
        return -ENOMEM;
    for (size_t i = 0; i < g->n; i++)
        keep(&e, g->items[i].parent);
    for (size_t i = 0; i < g->n_stored; i++)
        keep(&e, g->stored[i]);
    int rc = jobs_wait(st, (struct storage_job){.run = evict_run, .arg = &e, .index = true, .erases = true});
    free(e.keep);
    *freed = e.freed;
    return rc;
}

static int make_room(const struct group *g, uint64_t bytes)
{
    struct storage *st = g->st;
    uint64_t used = atomic_load(&st->disk_used), dead = atomic_load(&st->disk_dead), freed;
    if (bytes > st->disk_budget)
        return -ENOSPC;
    if (used + bytes <= st->disk_budget)
        return 0;
    /* Where space does not come back with each record, some of the budget is for what packs keep of it. */
    uint64_t most = dead ? st->disk_budget - st->disk_budget / DEAD_SHARE : st->disk_budget;
    uint64_t want = used - dead + bytes > most ? used - dead + bytes - most : 0;
    /* Some more at once where it is little, so that not every segment waits for an eviction. */
    if (want && st->disk_budget / EVICT_SHARE > bytes)
        want += EVICT_MORE * bytes;
    int rc = want ? evict(g, want, &freed) : 0;
    while (!rc && atomic_load(&st->disk_used) + bytes > st->disk_budget && (dead = atomic_load(&st->disk_dead))) {
        rc = compact(st, false);
        if (!rc && atomic_load(&st->disk_dead) >= dead)
            break; /* the pack could not go */
    }
    if (rc == -ENOENT)
        rc = 0;
    if (rc)
        return rc;
    return atomic_load(&st->disk_used) + bytes <= st->disk_budget ? 0 : -ENOSPC;
}

/* Takes a record that has no row back out of its pack. */
static void discard(struct storage *st, struct item *it)
{
    it->written = false;
    erase_record(st, it->owner, it->key, &(struct place_of){it->pack, it->offset, it->blob->bytes});
}

static void item_fail(struct storage *st, struct item *it, int rc)
{
    it->rc = rc;
    atomic_fetch_add(&st->save_failures, 1);
    storage_log(st, LOG_ERR, "a segment could not be saved and stays in RAM: %s",
                rc == -ESTALE ? "the one before it is not stored" : strerror(-rc));
}

/* Makes what the group wrote into the active pack durable. After a failure none of it counts, and the pack is left. */
static void group_sync(struct group *g)
{
    struct storage *st = g->st;
    bool dirty = false;
    for (size_t i = 0; i < g->n; i++)
        dirty |= g->items[i].written && g->items[i].pack == st->packs.n;
    int rc = dirty || st->packs.failed ? packs_sync(&st->packs) : 0;
    if (!rc)
        return;
    for (size_t i = 0; i < g->n; i++) {
        struct item *it = &g->items[i];
        if (it->written && it->pack == st->packs.n) {
            discard(st, it);
            item_fail(st, it, rc);
        }
    }
    packs_release(&st->packs);
}

static int place(struct group *g, struct item *it, uint64_t bytes)
{
    struct storage *st = g->st;
    uint64_t free = room_free(st);
    if (free < ROOM_LEDGER_BYTES + bytes)
        return -ENOSPC;
    st->packs.ahead_bytes = free / AHEAD_SHARE < AHEAD_BYTES ? free / AHEAD_SHARE : AHEAD_BYTES;
    int rc = packs_append(&st->packs, it->blob->record, bytes, &it->pack, &it->offset);
    if (!rc || it->pack != STORAGE_PACK_NONE) {
        atomic_fetch_add(&st->disk_used, bytes);
        atomic_fetch_add(&st->segments, 1);
    }
    it->written = !rc;
    if (rc && it->pack != STORAGE_PACK_NONE)
        discard(st, it);
    return rc;
}

static int append(struct group *g, struct item *it)
{
    struct storage *st = g->st;
    uint64_t bytes = it->blob->bytes;
    if (st->packs.failed) /* which compact.c has found out */
        group_sync(g);
    int rc = make_room(g, bytes);
    if (rc)
        return rc;
    if (packs_full(&st->packs, bytes)) {
        group_sync(g);
        packs_release(&st->packs);
    }
    rc = place(g, it, bytes);
    if (room_is_full(rc) && !st->evict_in_vain) {
        /* The disk is full before the budget is: once more after giving some of ours back. If that does not help,
         * others' segments stay until something could be written again. */
        uint64_t freed;
        if (!evict(g, bytes + EVICT_FULL, &freed) && freed)
            rc = place(g, it, bytes);
        st->evict_in_vain = rc != 0;
    }
    if (!rc)
        st->evict_in_vain = false;
    return rc;
}

static struct item *item_new(struct group *g)
{
    if (g->n == g->cap) {
        size_t cap = g->cap ? g->cap * 2 : 32;
        struct item *grown = realloc(g->items, cap * sizeof *grown);
        if (!grown)
            return NULL;
        g->items = grown;
        g->cap = cap;
    }
    g->items[g->n] = (struct item){0};
    return &g->items[g->n++];
}

/* Until the group's commit it is not evicted; without memory to note that it may be, and the commit says so. */
static void stored(struct group *g, const uint8_t key[STORAGE_KEY_BYTES])
{
    if (g->n_stored == g->cap_stored) {
        size_t cap = g->cap_stored ? g->cap_stored * 2 : 32;
        uint8_t(*grown)[STORAGE_KEY_BYTES] = realloc(g->stored, cap * sizeof *grown);
        if (!grown)
            return;
        g->stored = grown;
        g->cap_stored = cap;
    }
    memcpy(g->stored[g->n_stored++], key, STORAGE_KEY_BYTES);
}

static void put(struct group *g, struct write_op *op)
{
    struct storage *st = g->st;
    g->queued += op->queued;
    op->queued = 0;
    /* One that was put twice is in the group by now. */
    if (op->stored || ram_state(&st->ram, op->rec.key) == RAM_PENDING) {
        stored(g, op->rec.key);
        atomic_fetch_sub(&st->pending_puts, 1);
        return;
    }
    struct item *it = item_new(g);
    if (!it) {
        g->rc = -ENOMEM;
        atomic_fetch_add(&st->save_failures, 1);
        atomic_fetch_sub(&st->pending_puts, 1);
        return;
    }
    memcpy(it->key, op->rec.key, STORAGE_KEY_BYTES);
    memcpy(it->parent, op->rec.parent, STORAGE_KEY_BYTES);
    it->owner = op->rec.owner;
    it->blob = op->blob;
    op->blob = NULL;
    if (!it->blob) {
        item_fail(st, it, op->rc);
        return;
    }
    if (ram_put(&st->ram, it->key, it->blob, RAM_PENDING))
        storage_log(st, LOG_WARNING, "no memory to keep a segment in RAM");
    int rc = append(g, it);
    if (rc)
        item_fail(st, it, rc);
}

/* ---- committing -------------------------------------------------------------------------------------------------- */

/* Makes the rows of the items whose parent has one; parents usually come first. What is left over is refused. */
static int rows_insert(struct storage_ledger *l, struct group *g)
{
    for (bool more = true; more;) {
        more = false;
        for (size_t i = 0; i < g->n; i++) {
            struct item *it = &g->items[i];
            if (!it->written || it->has_row)
                continue;
            int rc = pack_is_zero(it->parent, STORAGE_KEY_BYTES) ? 1 : segment_exists(l, it->parent);
            if (rc == 0)
                continue;
            struct pack_record r;
            if (rc == 1)
                rc = pack_record_parse(it->blob->record, it->blob->bytes, true, &r);
            if (!rc)
                rc = segment_insert(l, &r, it->blob->record + PACK_HEADER_BYTES, it->pack, it->offset, it->blob->bytes);
            if (rc == 1)
                rc = segment_drop_record(l, it->owner, it->key, it->pack, it->offset, it->blob->bytes);
            if (rc)
                return rc;
            it->has_row = more = true;
        }
    }
    for (size_t i = 0; i < g->n; i++) {
        struct item *it = &g->items[i];
        if (!it->written || it->has_row)
            continue;
        it->rc = -ESTALE;
        int rc = segment_drop_record(l, it->owner, it->key, it->pack, it->offset, it->blob->bytes);
        if (rc)
            return rc;
    }
    return 0;
}

/* The parent of a segment that has no row, as far as it is known. */
static bool lost_parent(struct storage_ledger *l, const struct group *g, const uint8_t key[STORAGE_KEY_BYTES],
                        uint8_t parent[STORAGE_KEY_BYTES])
{
    for (size_t i = 0; i < g->n; i++)
        if (!memcmp(g->items[i].key, key, STORAGE_KEY_BYTES)) {
            memcpy(parent, g->items[i].parent, STORAGE_KEY_BYTES);
            return true;
        }
    struct blob *b = ram_get(&l->st->ram, key);
    struct pack_record r;
    bool known = b && !pack_record_parse(b->record, b->bytes, true, &r);
    if (known)
        memcpy(parent, r.parent, STORAGE_KEY_BYTES);
    blob_unref(b);
    return known;
}

/* What the turn is to hold: the end of the chain, or what is left of it before the first gap. A forgotten segment's row
 * keeps the chain together, so that what is behind it is held on. */
static int chain_end(struct storage_ledger *l, struct group *g, uint8_t end[STORAGE_KEY_BYTES])
{
    uint8_t at[STORAGE_KEY_BYTES];
    memcpy(at, g->last, sizeof at);
    memcpy(end, at, sizeof at);
    /* Where a row is, there are those before it. Only a forgotten one leaves a gap. */
    int forgotten = segment_any_forgotten(l);
    if (forgotten < 0)
        return forgotten;
    bool used = false;
    for (unsigned n = 0; !pack_is_zero(at, sizeof at); n++) {
        struct segment_row row;
        int rc = n < CHAIN_MAX ? segment_get(l, at, &row) : -EBADMSG;
        if (rc < 0)
            return rc;
        if (rc == 1) {
            if (row.pack == STORAGE_PACK_NONE)
                g->stale = -ESTALE;
            else if (!used)
                segment_use(l, at);
            used = true;
            if (!forgotten)
                return 0;
            memcpy(at, row.parent, sizeof at);
            continue;
        }
        g->stale = -ESTALE;
        if (!lost_parent(l, g, at, row.parent)) {
            if (memcmp(at, end, sizeof at))
                return 0; /* what is behind this gap exists */
            /* Nothing is there. What is held now stays, unless the chain was to take its place. */
            memset(end, 0, STORAGE_KEY_BYTES);
            uint8_t held[STORAGE_KEY_BYTES];
            rc = segment_held_by(l, g->turn, held);
            if (rc == 1 && (rc = segment_get(l, held, &row)) == 1) {
                if (!memcmp(at, g->last, sizeof at)) /* not even its parent is known: it may */
                    memcpy(end, row.parent, STORAGE_KEY_BYTES);
                else if (memcmp(at, row.parent, sizeof at))
                    memcpy(end, held, STORAGE_KEY_BYTES);
            }
            return rc < 0 ? rc : 0;
        }
        memcpy(at, row.parent, sizeof at);
        memcpy(end, at, sizeof at);
    }
    return 0;
}

/* What turns that still run have put is not the committing one's: theirs will find that it is not there. */
static void mark_mine(struct group *g)
{
    const uint8_t *at = g->last;
    for (bool more = true; more;) {
        more = false;
        for (size_t i = g->n; i-- > 0 && !more;)
            if (!g->items[i].mine && !memcmp(g->items[i].key, at, STORAGE_KEY_BYTES)) {
                g->items[i].mine = more = true;
                at = g->items[i].parent;
            }
    }
}

/* How the saving of the chain ended, as far as the commit itself succeeds. */
static int own_result(const struct group *g)
{
    int rc = g->rc;
    for (size_t i = 0; i < g->n && !rc; i++)
        rc = g->items[i].mine ? g->items[i].rc : 0;
    return rc ? rc : g->stale;
}

/* What the group has stored stays, whatever its owners may have. */
static int keep_limits(struct storage_ledger *l, struct group *g)
{
    if (!g->n)
        return 0;
    uint8_t(*keys)[STORAGE_KEY_BYTES] = malloc((g->n + g->n_stored + 1) * sizeof *keys);
    g->owners = calloc(g->n, sizeof *g->owners);
    size_t n = 0;
    int rc = keys && g->owners ? 0 : -ENOMEM;
    for (size_t i = 0; i < g->n && !rc; i++)
        memcpy(keys[n++], g->items[i].key, sizeof *keys);
    for (size_t i = 0; i < g->n_stored && !rc; i++)
        memcpy(keys[n++], g->stored[i], sizeof *keys);
    if (!rc)
        memcpy(keys[n++], g->last, sizeof *keys);
    for (size_t i = 0; i < g->n && !rc; i++) {
        struct owner *o = g->owners;
        while (o < g->owners + g->n_owners && o->id != g->items[i].owner)
            o++;
        if (o < g->owners + g->n_owners)
            continue;
        g->n_owners++;
        o->id = g->items[i].owner;
        rc = limits_keep(l, o->id, (const uint8_t(*)[STORAGE_KEY_BYTES])keys, n, &o->ram_most);
    }
    free(keys);
    return rc;
}

static int commit_run(struct storage_ledger *l, void *arg)
{
    struct group *g = arg;
    int rc = rows_insert(l, g);
    if (rc || (!g->turn && pack_is_zero(g->last, sizeof g->last)))
        return rc;
    mark_mine(g);
    uint8_t end[STORAGE_KEY_BYTES];
    rc = chain_end(l, g, end);
    if (rc)
        return rc;
    rc = g->turn ? segment_hold(l, g->turn, end) : -ENOENT;
    if (rc == -ENOENT) { /* it is a flush, or the turn was deleted meanwhile */
        g->stale = 0;
        g->gone = true;
        rc = segment_release(l, g->last);
        if (!rc)
            rc = segment_release(l, end);
        return rc || !g->with ? rc : g->with(l, g->arg, 0);
    }
    if (!rc)
        rc = keep_limits(l, g);
    return !rc && g->with ? g->with(l, g->arg, own_result(g)) : rc;
}

static void group_free(struct group *g)
{
    encode_over(g->st, g->queued);
    for (size_t i = 0; i < g->n; i++)
        blob_unref(g->items[i].blob);
    free(g->items);
    free(g->stored);
    free(g->owners);
    free(g);
}

static void commit_done(void *arg, int rc)
{
    struct group *g = arg;
    struct storage *st = g->st;
    mark_mine(g);
    int result = rc ? rc : own_result(g);
    for (size_t i = 0; i < g->n; i++) {
        struct item *it = &g->items[i];
        if (it->written && rc)
            discard(st, it);
        if (it->rc == -ESTALE || (it->blob && !it->rc && rc))
            item_fail(st, it, it->rc ? it->rc : rc);
        if (it->blob && it->rc && it->mine && g->gone) /* nobody would ever let go of it */
            ram_remove(&st->ram, it->key);
        else if (it->blob)
            ram_set_state(&st->ram, it->key, it->rc ? RAM_ONLY : RAM_DURABLE, g->turn);
        atomic_fetch_sub(&st->pending_puts, 1);
    }
    for (size_t i = 0; i < g->n_owners; i++)
        if (g->owners[i].ram_most)
            ram_keep(&st->ram, g->owners[i].id, g->owners[i].ram_most);
    atomic_store(&st->oldest_open_pack, g->active_pack);
    if (g->done)
        g->done(g->arg, result);
    group_free(g);
}

static void commit(struct group *g, const struct write_op *op)
{
    struct storage *st = g->st;
    group_sync(g);
    g->active_pack = st->packs.n;
    g->turn = op->turn;
    memcpy(g->last, op->last, sizeof g->last);
    g->with = op->with;
    g->done = op->done;
    g->arg = op->arg;
    /* A loss of power costs what it wrote: then the turn's KV is held anew at the next start (turns_interrupted()). */
    int rc = storage_submit(
        st, (struct storage_job){.run = commit_run, .done = commit_done, .arg = g, .unsynced = true, .index = true});
    if (rc)
        commit_done(g, rc);
}

static struct group *group_new(struct storage *st)
{
    struct group *g = calloc(1, sizeof *g);
    if (g)
        g->st = st;
    return g;
}

void *writer_thread(void *arg)
{
    struct storage *st = arg;
    struct group *g = NULL;
    for (;;) {
        pthread_mutex_lock(&st->writer_lock);
        bool rests = !st->writes && !st->writer_stop && !g;
        pthread_mutex_unlock(&st->writer_lock);
        if (rests && atomic_load(&st->disk_dead) >= st->packs.pack_bytes / IDLE_DEAD_SHARE)
            (void)compact(st, true);
        pthread_mutex_lock(&st->writer_lock);
        while (st->writes ? st->writes->state != OP_READY : !st->writer_stop)
            pthread_cond_wait(&st->writer_cond, &st->writer_lock);
        struct write_op *op = st->writes;
        if (op) {
            st->writes = op->next;
            if (!st->writes)
                st->writes_tail = &st->writes;
        }
        pthread_mutex_unlock(&st->writer_lock);
        if (!op)
            break;
        struct timespec began, ended;
        clock_gettime(CLOCK_MONOTONIC, &began);
        if (!g)
            g = group_new(st);
        if (!g) {
            atomic_fetch_add(&st->save_failures, 1);
            encode_over(st, op->queued);
            if (!op->commit)
                atomic_fetch_sub(&st->pending_puts, 1);
            else if (op->done)
                op->done(op->arg, -ENOMEM);
        } else if (op->commit) {
            commit(g, op);
            g = NULL;
        } else {
            put(g, op);
        }
        write_op_free(op);
        clock_gettime(CLOCK_MONOTONIC, &ended);
        atomic_fetch_add(&st->save_us,
                         (uint64_t)((ended.tv_sec - began.tv_sec) * 1000000 + (ended.tv_nsec - began.tv_nsec) / 1000));
    }
    if (g) {
        /* Put, but never committed: nothing can find them. */
        for (size_t i = 0; i < g->n; i++)
            if (g->items[i].written)
                discard(st, &g->items[i]);
        atomic_fetch_sub(&st->pending_puts, g->n);
        group_free(g);
    }
    packs_release(&st->packs);
    return NULL;
}
