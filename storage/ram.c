/* ram.c - the RAM tier: encoded records by key, least recently used first out.
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
    struct ram_entry *newer, *older; /* by use */
    uint8_t key[STORAGE_KEY_BYTES];
    struct blob *blob;
    enum ram_state state;
    int64_t owner;
    int64_t turn; /* of a RAM_ONLY entry: whose commit failed */
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
    for (struct ram_entry *e = r->newest, *next; e; e = next) {
        next = e->older;
        blob_unref(e->blob);
        free(e);
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

static void list_remove(struct ram *r, struct ram_entry *e)
{
    *(e->newer ? &e->newer->older : &r->newest) = e->older;
    *(e->older ? &e->older->newer : &r->oldest) = e->newer;
}

static void list_push(struct ram *r, struct ram_entry *e)
{
    e->newer = NULL;
    e->older = r->newest;
    *(r->newest ? &r->newest->newer : &r->oldest) = e;
    r->newest = e;
}

static void drop(struct ram *r, struct ram_entry *e)
{
    struct ram_entry **p = &r->buckets[bucket_of(r, e->key)];
    while (*p != e)
        p = &(*p)->chain;
    *p = e->chain;
    list_remove(r, e);
    r->n_entries--;
    r->used -= e->blob->bytes;
    r->n_only -= e->state == RAM_ONLY;
    blob_unref(e->blob);
    free(e);
}

static void shrink(struct ram *r)
{
    for (struct ram_entry *e = r->oldest, *next; e && r->used > r->budget; e = next) {
        next = e->newer;
        if (e->state != RAM_PENDING)
            drop(r, e);
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
    for (struct ram_entry *e = r->newest; e; e = e->older) {
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
    if (!pack_record_parse(b->record, b->bytes, false, &rec))
        e->owner = rec.owner;
    atomic_fetch_add(&b->refs, 1);
    pthread_mutex_lock(&r->lock);
    struct ram_entry *old = find(r, key);
    if (old && state == RAM_DURABLE) {
        /* What a reader brings is no newer than what is there. */
        pthread_mutex_unlock(&r->lock);
        blob_unref(b);
        free(e);
        return 0;
    }
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
        list_remove(r, e);
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
        for (struct ram_entry *e = r->oldest, *next; e; e = next) {
            next = e->newer;
            if (e->state == RAM_DURABLE)
                drop(r, e);
        }
    }
    pthread_mutex_unlock(&r->lock);
}

void ram_drop_turn(struct ram *r, int64_t turn)
{
    pthread_mutex_lock(&r->lock);
    for (struct ram_entry *e = r->oldest, *next; e && r->n_only; e = next) {
        next = e->newer;
        if (e->state == RAM_ONLY && e->turn == turn)
            drop(r, e);
    }
    pthread_mutex_unlock(&r->lock);
}

size_t ram_used_by(struct ram *r, int64_t owner)
{
    size_t used = 0;
    pthread_mutex_lock(&r->lock);
    for (const struct ram_entry *e = r->newest; e; e = e->older)
        used += e->owner == owner ? e->blob->bytes : 0;
    pthread_mutex_unlock(&r->lock);
    return used;
}

void ram_keep(struct ram *r, int64_t owner, size_t most)
{
    size_t used = ram_used_by(r, owner);
    pthread_mutex_lock(&r->lock);
    for (struct ram_entry *e = r->oldest, *next; e && used > most; e = next) {
        next = e->newer;
        if (e->owner == owner && e->state == RAM_DURABLE) {
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
    for (struct ram_entry *e = r->n_only ? r->newest : NULL; e; e = e->older) {
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
