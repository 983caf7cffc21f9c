/* ram.c - the RAM tier: encoded records by key. Of the owners that have an equal share of what is in it, or more, the
 * record goes that was used longest ago: who has little in RAM does not lose it because somebody else has much.
 *
 * An entry holds a reference to its blob; a reader takes its own, so that eviction never waits for anyone. Entries
 * that are not durable yet stay whatever the budget says, because the writer still has them anyway; entries that could
 * not be saved (RAM_ONLY) are served like others and go when their turn comes. Any thread; one lock, held for moments.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "storage/storage_internal.h"

struct ram_entry {
    struct ram_entry *chain;         /* of its bucket */
    struct ram_entry *newer, *older; /* of its owner, by use */
    uint64_t used_at;                /* ram.uses then */
    uint8_t key[STORAGE_KEY_BYTES];
    struct blob *blob;
    enum ram_state state;
    struct ram_owner *owner;
    int64_t turn; /* of a RAM_ONLY entry: whose commit failed */
};

struct ram_owner {
    struct ram_owner *next;
    int64_t id;
    size_t used, n;
    struct ram_entry *newest, *oldest;
};

struct blob *blob_new(uint8_t *record, uint64_t bytes)
{
    struct blob *b = malloc(sizeof *b);
    if (!b) {
        free(record);
        return NULL;
    }
    atomic_init(&b->refs, 1);
    b->record = record;
    b->bytes = bytes;
    return b;
}

void blob_unref(struct blob *b)
{
    if (b && atomic_fetch_sub(&b->refs, 1) == 1) {
        free(b->record);
        free(b);
    }
}

int ram_init(struct ram *r, size_t budget)
{
    *r = (struct ram){.budget = budget, .n_buckets = 1024};
    r->buckets = calloc(r->n_buckets, sizeof(struct ram_entry *));
    if (!r->buckets)
        return -ENOMEM;
    int rc = pthread_mutex_init(&r->lock, NULL);
    if (rc) {
        free(r->buckets);
        r->buckets = NULL;
    }
    return -rc;
}

void ram_free(struct ram *r)
{
    if (!r->buckets)
        return;
    for (struct ram_owner *o = r->owners, *other; o; o = other) {
        other = o->next;
        for (struct ram_entry *e = o->newest, *next; e; e = next) {
            next = e->older;
            blob_unref(e->blob);
            free(e);
        }
        free(o);
    }
    free(r->buckets);
    r->buckets = NULL;
    (void)pthread_mutex_destroy(&r->lock);
}

/* Keys are outputs of a keyed hash, so that any of their bytes spread well. */
static size_t bucket_of(const struct ram *r, const uint8_t key[STORAGE_KEY_BYTES])
{
    uint64_t h;
    memcpy(&h, key, sizeof h);
    return (size_t)(h & (r->n_buckets - 1));
}

static struct ram_entry *find(struct ram *r, const uint8_t key[STORAGE_KEY_BYTES])
{
    struct ram_entry *e = r->buckets[bucket_of(r, key)];
    while (e && memcmp(e->key, key, STORAGE_KEY_BYTES))
        e = e->chain;
    return e;
}

static void list_remove(struct ram_entry *e)
{
    struct ram_owner *o = e->owner;
    *(e->newer ? &e->newer->older : &o->newest) = e->older;
    *(e->older ? &e->older->newer : &o->oldest) = e->newer;
}

static void list_push(struct ram *r, struct ram_entry *e)
{
    struct ram_owner *o = e->owner;
    e->used_at = ++r->uses;
    e->newer = NULL;
    e->older = o->newest;
    *(o->newest ? &o->newest->newer : &o->oldest) = e;
    o->newest = e;
}

static struct ram_owner *owner_of(const struct ram *r, int64_t id)
{
    struct ram_owner *o = r->owners;
    while (o && o->id != id)
        o = o->next;
    return o;
}

/* Goes with its last entry. NULL: no memory. */
static struct ram_owner *owner_make(struct ram *r, int64_t id)
{
    struct ram_owner *o = owner_of(r, id);
    if (!o && (o = calloc(1, sizeof *o))) {
        o->id = id;
        o->next = r->owners;
        r->owners = o;
        r->n_owners++;
    }
    return o;
}

static void owner_gone(struct ram *r, struct ram_owner *o)
{
    struct ram_owner **p = &r->owners;
    while (*p != o)
        p = &(*p)->next;
    *p = o->next;
    r->n_owners--;
    free(o);
}

static void drop(struct ram *r, struct ram_entry *e)
{
    struct ram_entry **p = &r->buckets[bucket_of(r, e->key)];
    while (*p != e)
        p = &(*p)->chain;
    *p = e->chain;
    list_remove(e);
    r->n_entries--;
    r->used -= e->blob->bytes;
    e->owner->used -= e->blob->bytes;
    r->n_only -= e->state == RAM_ONLY;
    if (--e->owner->n == 0)
        owner_gone(r, e->owner);
    blob_unref(e->blob);
    free(e);
}

static struct ram_entry *oldest_of(const struct ram_owner *o)
{
    struct ram_entry *e = o->oldest;
    while (e && e->state == RAM_PENDING)
        e = e->newer;
    return e;
}

static void shrink(struct ram *r)
{
    while (r->used > r->budget) {
        struct ram_entry *oldest[2] = {NULL, NULL}; /* of those below their share; of the others */
        for (const struct ram_owner *o = r->owners; o; o = o->next) {
            bool over = (double)o->used * (double)r->n_owners >= (double)r->used;
            struct ram_entry *e = oldest_of(o);
            if (e && (!oldest[over] || e->used_at < oldest[over]->used_at))
                oldest[over] = e;
        }
        if (!oldest[0] && !oldest[1])
            return;
        drop(r, oldest[1] ? oldest[1] : oldest[0]);
    }
}

/* Doubles the table when it is full; without memory it stays as it is and only gets slower. */
static void grow(struct ram *r)
{
    if (r->n_entries < r->n_buckets)
        return;
    struct ram_entry **buckets = calloc(r->n_buckets * 2, sizeof(struct ram_entry *));
    if (!buckets)
        return;
    free(r->buckets);
    r->buckets = buckets;
    r->n_buckets *= 2;
    for (const struct ram_owner *o = r->owners; o; o = o->next)
        for (struct ram_entry *e = o->newest; e; e = e->older) {
            struct ram_entry **b = &buckets[bucket_of(r, e->key)];
            e->chain = *b;
            *b = e;
        }
}

int ram_put(struct ram *r, const uint8_t key[STORAGE_KEY_BYTES], struct blob *b, enum ram_state state)
{
    struct ram_entry *e = calloc(1, sizeof *e);
    if (!e)
        return -ENOMEM;
    memcpy(e->key, key, STORAGE_KEY_BYTES);
    e->blob = b;
    e->state = state;
    struct pack_record rec;
    int64_t owner = pack_record_parse(b->record, b->bytes, false, &rec) ? 0 : rec.owner;
    atomic_fetch_add(&b->refs, 1);
    pthread_mutex_lock(&r->lock);
    struct ram_entry *old = find(r, key);
    bool there = old && state == RAM_DURABLE; /* what a reader brings is no newer than that */
    e->owner = there ? NULL : owner_make(r, owner);
    if (!e->owner) {
        pthread_mutex_unlock(&r->lock);
        blob_unref(b);
        free(e);
        return there ? 0 : -ENOMEM;
    }
    e->owner->n++;
    e->owner->used += b->bytes;
    if (old)
        drop(r, old);
    struct ram_entry **bucket = &r->buckets[bucket_of(r, key)];
    e->chain = *bucket;
    *bucket = e;
    list_push(r, e);
    r->n_entries++;
    r->n_only += state == RAM_ONLY;
    r->used += b->bytes;
    grow(r);
    shrink(r);
    pthread_mutex_unlock(&r->lock);
    return 0;
}

struct blob *ram_get(struct ram *r, const uint8_t key[STORAGE_KEY_BYTES])
{
    pthread_mutex_lock(&r->lock);
    struct ram_entry *e = find(r, key);
    struct blob *b = NULL;
    if (e) {
        list_remove(e);
        list_push(r, e);
        b = e->blob;
        atomic_fetch_add(&b->refs, 1);
    }
    pthread_mutex_unlock(&r->lock);
    return b;
}

void ram_set_state(struct ram *r, const uint8_t key[STORAGE_KEY_BYTES], enum ram_state state, int64_t turn)
{
    pthread_mutex_lock(&r->lock);
    struct ram_entry *e = find(r, key);
    if (e) {
        r->n_only -= e->state == RAM_ONLY;
        r->n_only += state == RAM_ONLY;
        e->state = state;
        e->turn = turn;
        shrink(r);
    }
    pthread_mutex_unlock(&r->lock);
}

int ram_state(struct ram *r, const uint8_t key[STORAGE_KEY_BYTES])
{
    pthread_mutex_lock(&r->lock);
    struct ram_entry *e = find(r, key);
    int state = e ? (int)e->state : -ENOENT;
    pthread_mutex_unlock(&r->lock);
    return state;
}

void ram_remove(struct ram *r, const uint8_t key[STORAGE_KEY_BYTES])
{
    pthread_mutex_lock(&r->lock);
    struct ram_entry *e = find(r, key);
    if (e)
        drop(r, e);
    pthread_mutex_unlock(&r->lock);
}

/* Of an owner, which may go with them. */
static void drop_where(struct ram *r, struct ram_owner *o, bool (*goes)(const struct ram_entry *e, int64_t turn),
                       int64_t turn)
{
    for (struct ram_entry *e = o->oldest, *next; e; e = next) {
        next = e->newer;
        if (goes(e, turn))
            drop(r, e);
    }
}

static bool durable(const struct ram_entry *e, int64_t turn)
{
    (void)turn;
    return e->state == RAM_DURABLE;
}

static bool only_of(const struct ram_entry *e, int64_t turn)
{
    return e->state == RAM_ONLY && e->turn == turn;
}

void ram_drop_durable(struct ram *r, const uint8_t (*keys)[STORAGE_KEY_BYTES], size_t n)
{
    pthread_mutex_lock(&r->lock);
    if (keys) {
        for (size_t i = 0; i < n; i++) {
            struct ram_entry *e = find(r, keys[i]);
            if (e && e->state == RAM_DURABLE)
                drop(r, e);
        }
    } else {
        for (struct ram_owner *o = r->owners, *other; o; o = other) {
            other = o->next;
            drop_where(r, o, durable, 0);
        }
    }
    pthread_mutex_unlock(&r->lock);
}

void ram_drop_turn(struct ram *r, int64_t turn)
{
    pthread_mutex_lock(&r->lock);
    for (struct ram_owner *o = r->owners, *other; o && r->n_only; o = other) {
        other = o->next;
        drop_where(r, o, only_of, turn);
    }
    pthread_mutex_unlock(&r->lock);
}

size_t ram_used_by(struct ram *r, int64_t owner)
{
    pthread_mutex_lock(&r->lock);
    const struct ram_owner *o = owner_of(r, owner);
    size_t used = o ? o->used : 0;
    pthread_mutex_unlock(&r->lock);
    return used;
}

void ram_keep(struct ram *r, int64_t owner, size_t most)
{
    pthread_mutex_lock(&r->lock);
    struct ram_owner *o = owner_of(r, owner);
    size_t used = o ? o->used : 0;
    for (struct ram_entry *e = o ? o->oldest : NULL, *next; e && used > most; e = next) {
        next = e->newer;
        if (e->state == RAM_DURABLE) {
            used -= e->blob->bytes;
            drop(r, e);
        }
    }
    pthread_mutex_unlock(&r->lock);
}

static int found_copy(const struct ram_entry *e, const struct pack_record *rec, struct storage_found *out)
{
    struct storage_found f = {.first = rec->first,
                              .count = rec->count,
                              .label = malloc(rec->label_bytes ? rec->label_bytes : 1),
                              .label_bytes = rec->label_bytes,
                              .encoded_bytes = e->blob->bytes,
                              .pack = STORAGE_PACK_NONE};
    if (!f.label)
        return -ENOMEM;
    memcpy(f.label, e->blob->record + PACK_HEADER_BYTES, rec->label_bytes);
    memcpy(f.key, rec->key, sizeof f.key);
    memcpy(f.producer, rec->producer, sizeof f.producer);
    *out = f;
    return 0;
}

int ram_nearest(struct ram *r, int64_t owner, const uint8_t fingerprint[32], const uint8_t parent[STORAGE_KEY_BYTES],
                const void *label, uint32_t label_bytes, struct storage_found *below, struct storage_found *above)
{
    const struct ram_entry *best[2] = {NULL, NULL};
    struct pack_record best_rec[2] = {0};
    pthread_mutex_lock(&r->lock);
    const struct ram_owner *o = r->n_only ? owner_of(r, owner) : NULL;
    for (struct ram_entry *e = o ? o->newest : NULL; e; e = e->older) {
        struct pack_record rec;
        if (e->state != RAM_ONLY || pack_record_parse(e->blob->record, e->blob->bytes, true, &rec) ||
            rec.owner != owner || memcmp(rec.parent, parent, STORAGE_KEY_BYTES) ||
            memcmp(rec.fingerprint, fingerprint, sizeof rec.fingerprint))
            continue;
        const uint8_t *mine = e->blob->record + PACK_HEADER_BYTES;
        int up = segment_label_compare(mine, rec.label_bytes, label, label_bytes) > 0;
        if (best[up]) {
            int c = segment_label_compare(mine, rec.label_bytes, best[up]->blob->record + PACK_HEADER_BYTES,
                                          best_rec[up].label_bytes);
            if (up ? c >= 0 : c <= 0)
                continue;
        }
        best[up] = e;
        best_rec[up] = rec;
    }
    int rc = best[0] ? found_copy(best[0], &best_rec[0], below) : 0;
    if (!rc && best[1])
        rc = found_copy(best[1], &best_rec[1], above);
    pthread_mutex_unlock(&r->lock);
    return rc;
}
