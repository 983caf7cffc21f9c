/* compact.c - packs whose space cannot be given back record by record: what lives in them moves on, and they go as a
 * whole. The KV writer's part.
 *
 * Where the file system cannot punch holes (or a crash left space allocated behind a pack's end), what is dropped stays
 * in use. The budget counts it, so room is made by moving the live records of the pack that has the most of it to the
 * active pack: copied and synced first, then the rows, then the old places are overwritten, and the pack, which has no
 * rows any more, is unlinked. A pack that keeps more space than it uses is emptied as soon as nothing waits to be
 * written. Copies that did not become anybody's record are overwritten; a crash in between leaves some, which the next
 * start takes for what they are.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "storage/storage_internal.h"

struct move {
    uint8_t key[STORAGE_KEY_BYTES];
    int64_t owner;
    uint64_t from;
    struct place_of to; /* pack STORAGE_PACK_NONE: nothing was written */
    bool copied, moved; /* moved: its row, if that was committed */
    bool stray;         /* a copy that is nobody's record */
};

struct compaction {
    uint32_t pack, most; /* only packs below `most` get no more records */
    bool idle;           /* only one that keeps more space than it uses */
    struct move *moves;
    size_t n, cap;
    int rc; /* of copying */
};

static int victim_run(struct storage_ledger *l, void *arg)
{
    struct compaction *c = arg;
    uint64_t dead = 0;
    for (size_t i = 0; i < l->n_dead; i++)
        if (l->dead[i].bytes > dead && l->dead[i].pack < c->most && !packs_misnamed(&l->st->packs, l->dead[i].pack)) {
            dead = l->dead[i].bytes;
            c->pack = l->dead[i].pack;
        }
    if (!dead || l->unread) /* what lives in a pack is not known yet */
        return -ENOENT;
    int rc;
    sqlite3_stmt *s = stmt_get(l, S_SEG_OF_PACK);
    (void)sqlite3_bind_int64(s, 1, c->pack);
    while ((rc = stmt_step(l, s)) == 1) {
        if (c->n == c->cap) {
            size_t cap = c->cap ? c->cap * 2 : 64;
            struct move *grown = realloc(c->moves, cap * sizeof *grown);
            if (!grown) {
                rc = -ENOMEM;
                break;
            }
            c->moves = grown;
            c->cap = cap;
        }
        struct move *m = &c->moves[c->n];
        *m = (struct move){.from = (uint64_t)sqlite3_column_int64(s, 1),
                           .to = {STORAGE_PACK_NONE, 0, (uint64_t)sqlite3_column_int64(s, 2)}};
        m->owner = sqlite3_column_int64(s, 3);
        rc = column_bytes(s, 0, m->key, sizeof m->key);
        if (rc)
            break;
        c->n++;
    }
    stmt_reset(s);
    uint64_t live = 0;
    for (size_t i = 0; i < c->n; i++)
        live += c->moves[i].to.bytes;
    if (!rc && c->idle && live >= dead)
        rc = -ENOENT;
    atomic_store(&l->st->moving, !rc);
    return rc;
}

/* Copies a record to the active pack. One that cannot be read, or is another, goes with its pack. */
static int copy(struct storage *st, uint32_t pack, struct move *m)
{
    uint64_t bytes = m->to.bytes;
    uint8_t *record = bytes <= PACK_RECORD_MAX ? malloc(bytes) : NULL;
    if (!record)
        return -ENOMEM;
    struct pack_record r;
    int rc = packs_read(&st->packs, pack, m->from, record, bytes);
    if (!rc)
        rc = pack_record_parse(record, bytes, true, &r);
    if (!rc && memcmp(r.key, m->key, sizeof r.key))
        rc = -EBADMSG;
    if (rc == -EIO || rc == -EBADMSG || rc == -ENOENT) {
        free(record);
        return 0;
    }
    if (!rc && packs_full(&st->packs, bytes)) {
        rc = packs_sync(&st->packs);
        if (!rc)
            packs_release(&st->packs);
    }
    if (!rc && !room_for_kv(st, bytes))
        rc = -ENOSPC;
    if (!rc)
        rc = packs_append(&st->packs, record, bytes, &m->to.pack, &m->to.offset);
    m->copied = !rc;
    if (m->to.pack != STORAGE_PACK_NONE)
        atomic_fetch_add(&st->disk_used, bytes);
    free(record);
    return rc;
}

static int move_run(struct storage_ledger *l, void *arg)
{
    struct compaction *c = arg;
    int rc = 0;
    if (!c->n)
        erase_pack(l, c->pack);
    for (size_t i = 0; i < c->n && !rc; i++) {
        struct move *m = &c->moves[i];
        struct segment_row row;
        rc = segment_get(l, m->key, &row);
        bool there = rc == 1 && row.pack == c->pack && row.offset == m->from;
        if (rc < 0)
            break;
        rc = 0;
        m->moved = there && m->copied;
        if (m->moved)
            rc = segment_move(l, &row, m->to.pack, m->to.offset);
        else if (there && !c->rc)
            rc = segment_forget(l, m->key, c->pack, m->from);
    }
    return rc;
}

/* Finds copies that are nobody's record: their segment went meanwhile, or they could not be written or synced, or the
 * transaction failed. */
static int strays_run(struct storage_ledger *l, void *arg)
{
    struct compaction *c = arg;
    int rc = 0;
    for (size_t i = 0; i < c->n && rc >= 0; i++) {
        struct move *m = &c->moves[i];
        struct segment_row row;
        if (m->to.pack == STORAGE_PACK_NONE)
            continue;
        rc = segment_get(l, m->key, &row);
        m->stray = rc == 0 || (rc == 1 && (row.pack != m->to.pack || row.offset != m->to.offset));
    }
    return rc < 0 ? rc : 0;
}

/* They go again. What cannot be overwritten now is tried again (erase.c). */
static void strays_erase(struct storage *st, struct compaction *c)
{
    int rc = jobs_call(st, strays_run, c);
    if (rc) /* another's job may have failed the transaction */
        rc = jobs_call(st, strays_run, c);
    if (rc)
        storage_log(st, LOG_ERR, "pack %u: some copies of what was in it may not be overwritten: %s", c->pack,
                    strerror(-rc));
    for (size_t i = 0; i < c->n; i++) {
        const struct move *m = &c->moves[i];
        if (m->to.pack == STORAGE_PACK_NONE || (rc ? m->moved : !m->stray))
            continue;
        atomic_fetch_add(&st->segments, 1); /* it is none, but each that is erased counts for one */
        erase_record(st, m->owner, m->key, &m->to);
    }
}

/* A deletion is not over while there may be copies. */
static void moved(struct storage *st)
{
    atomic_store(&st->moving, false);
    pthread_mutex_lock(&st->jobs_lock);
    st->unpinned = true; /* it looks again */
    pthread_cond_broadcast(&st->jobs_cond);
    pthread_mutex_unlock(&st->jobs_lock);
}

int compact(struct storage *st, bool idle)
{
    struct compaction c = {.idle = idle, .most = (uint32_t)atomic_load(&st->oldest_open_pack)};
    int rc = jobs_call(st, victim_run, &c);
    if (rc) {
        moved(st); /* perhaps it began to be, and the transaction failed */
        free(c.moves);
        return rc;
    }
    for (size_t i = 0; i < c.n && !c.rc; i++)
        c.rc = copy(st, c.pack, &c.moves[i]);
    int sync_rc = packs_sync(&st->packs);
    c.rc = c.rc ? c.rc : sync_rc;
    for (size_t i = 0; i < c.n && sync_rc; i++)
        c.moves[i].copied = false;
    rc = jobs_wait(st, (struct storage_job){.run = move_run, .arg = &c, .index = true, .erases = true});
    strays_erase(st, &c);
    moved(st);
    free(c.moves);
    return rc ? rc : c.rc;
}
