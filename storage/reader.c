/* reader.c - the KV reader threads: find a segment in RAM or read it from its pack, verify it, and decode it or hand it
 * over as it is.
 *
 * A record is believed only when its header, its label and its description are what was asked for; the payload carries
 * checksums of its own that the decoder looks at, of each array by itself. A read pins its record from the call until
 * its end: eviction passes over it, and the holes of a deleted one are cut only afterwards. What is found damaged or
 * missing, or lies where the disk cannot read, is forgotten by a job that is queued before the caller is told, so that
 * a put that follows stores it anew.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "storage/storage_internal.h"

struct read_op {
    struct read_op *next;
    uint8_t key[STORAGE_KEY_BYTES], fingerprint[32];
    uint32_t first, count, label_bytes;
    uint64_t label_sum;
    uint64_t bytes;
    uint32_t pack;
    uint64_t offset;
    int pin_rc;
    struct storage_array *arrays;
    struct storage_layout layout;
    void *payload;                 /* NULL: the record is wanted */
    bool split;                    /* it is to be in its split form */
    struct storage_stored *stored; /* which gets the record */
    void (*done)(void *arg, struct storage_read_result result);
    void *arg;
};

struct storage_stored {
    struct blob *blob;
    const uint8_t *payload; /* of it, encoded */
    uint32_t count;
    struct storage_layout layout;
    struct storage_array arrays[];
};

/* ---- pins -------------------------------------------------------------------------------------------------------- */

static struct pin *pin_find(struct storage *st, uint32_t pack, uint64_t offset)
{
    for (size_t i = 0; i < st->n_pins; i++)
        if (st->pins[i].pack == pack && st->pins[i].offset == offset)
            return &st->pins[i];
    return NULL;
}

int pin_take(struct storage *st, uint32_t pack, uint64_t offset)
{
    int rc = 0;
    pthread_mutex_lock(&st->pin_lock);
    struct pin *p = pin_find(st, pack, offset);
    if (!p && st->n_pins == st->cap_pins) {
        size_t cap = st->cap_pins ? st->cap_pins * 2 : 64;
        struct pin *grown = realloc(st->pins, cap * sizeof *grown);
        if (grown) {
            st->pins = grown;
            st->cap_pins = cap;
        } else {
            rc = -ENOMEM;
        }
    }
    if (!rc && !p) {
        p = &st->pins[st->n_pins++];
        *p = (struct pin){.pack = pack, .offset = offset};
    }
    if (p && p->doomed)
        rc = -ENOENT;
    else if (p)
        p->count++;
    pthread_mutex_unlock(&st->pin_lock);
    return rc;
}

void pin_release(struct storage *st, uint32_t pack, uint64_t offset)
{
    bool doomed = false;
    pthread_mutex_lock(&st->pin_lock);
    struct pin *p = pin_find(st, pack, offset);
    if (p && --p->count == 0) {
        doomed = p->doomed;
        if (!doomed)
            *p = st->pins[--st->n_pins];
    }
    pthread_mutex_unlock(&st->pin_lock);
    if (doomed) {
        pthread_mutex_lock(&st->jobs_lock);
        st->unpinned = true;
        pthread_cond_broadcast(&st->jobs_cond);
        pthread_mutex_unlock(&st->jobs_lock);
    }
}

bool pin_held(struct storage *st, uint32_t pack, uint64_t offset)
{
    pthread_mutex_lock(&st->pin_lock);
    bool held = pin_find(st, pack, offset) != NULL;
    pthread_mutex_unlock(&st->pin_lock);
    return held;
}

bool pin_doom(struct storage *st, uint32_t pack, uint64_t offset)
{
    bool idle = true;
    pthread_mutex_lock(&st->pin_lock);
    struct pin *p = pin_find(st, pack, offset);
    if (p && p->count) {
        p->doomed = true;
        idle = false;
    } else if (p) {
        *p = st->pins[--st->n_pins];
    }
    pthread_mutex_unlock(&st->pin_lock);
    return idle;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* Checks a record against what was asked for, and decodes it; or, where it is wanted as it is, looks at the head of its
 * payload, and the segment refers to it. */
static int record_take(struct read_op *op, struct blob *b)
{
    struct pack_record r;
    const uint8_t *record = b->record;
    int rc = pack_record_parse(record, b->bytes, true, &r);
    if (rc)
        return rc;
    if (memcmp(r.key, op->key, sizeof r.key) || memcmp(r.fingerprint, op->fingerprint, sizeof r.fingerprint) ||
        r.first != op->first || r.count != op->count || r.label_bytes != op->label_bytes ||
        r.layout_sum != pack_layout_sum(&op->layout, op->count) ||
        op->label_sum != pack_label_sum(record + PACK_HEADER_BYTES, r.label_bytes))
        return -EBADMSG;
    const uint8_t *payload = record + pack_payload_offset(r.label_bytes);
    if (op->payload)
        return (op->split ? storage_split_decode : storage_codec_decode)(&op->layout, op->count, payload,
                                                                         (size_t)r.payload_bytes, op->payload);
    if ((rc = codec_check(&op->layout, op->count, payload, (size_t)r.payload_bytes)))
        return rc;
    struct storage_stored *g = malloc(sizeof *g + op->layout.n_arrays * sizeof *g->arrays);
    if (!g)
        return -ENOMEM;
    *g = (struct storage_stored){.blob = b, .payload = payload, .count = op->count, .layout = op->layout};
    memcpy(g->arrays, op->layout.arrays, op->layout.n_arrays * sizeof *g->arrays);
    g->layout.arrays = g->arrays;
    atomic_fetch_add(&b->refs, 1);
    op->stored = g;
    return 0;
}

int storage_stored_decode(const struct storage_stored *g, uint32_t array, void *rows)
{
    return array < g->layout.n_arrays ? codec_decode_one(&g->layout, g->count, g->payload, array, rows) : -EINVAL;
}

void storage_stored_free(struct storage_stored *g)
{
    if (!g)
        return;
    blob_unref(g->blob);
    free(g);
}

struct forget {
    uint8_t key[STORAGE_KEY_BYTES];
    uint32_t pack;
    uint64_t offset;
};

static int forget_run(struct storage_ledger *l, void *arg)
{
    struct forget *f = arg;
    return segment_forget(l, f->key, f->pack, f->offset);
}

static void forget_done(void *arg, int rc)
{
    (void)rc;
    free(arg);
}

static void forget(struct storage *st, const struct read_op *op)
{
    struct forget *f = malloc(sizeof *f);
    if (f) {
        *f = (struct forget){.pack = op->pack, .offset = op->offset};
        memcpy(f->key, op->key, sizeof f->key);
    }
    if (!f || storage_submit(st, (struct storage_job){.run = forget_run, .done = forget_done, .arg = f})) {
        storage_log(st, LOG_ERR, "no memory to forget a damaged segment");
        free(f);
    }
}

static struct storage_read_result read_disk(struct storage *st, struct read_op *op)
{
    struct storage_read_result res = {.tier = STORAGE_TIER_DISK};
    if (op->pack == STORAGE_PACK_NONE || op->pin_rc) {
        res.rc = op->pin_rc ? op->pin_rc : -ENOENT;
        return res;
    }
    if (op->bytes < PACK_ALIGN || op->bytes > PACK_RECORD_MAX || op->bytes % PACK_ALIGN) {
        res.rc = -EBADMSG;
        return res;
    }
    uint8_t *record = malloc(op->bytes);
    if (!record) {
        res.rc = -ENOMEM;
        return res;
    }
    res.rc = packs_read(&st->packs, op->pack, op->offset, record, op->bytes);
    struct blob *b = NULL;
    if (res.rc)
        free(record);
    else if (!(b = blob_new(record, op->bytes)))
        res.rc = -ENOMEM;
    if (res.rc)
        return res;
    res.bytes_read = op->bytes;
    res.rc = record_take(op, b);
    if (res.rc == -EBADMSG && pack_is_zero(record, PACK_HEADER_BYTES))
        res.rc = -ENOENT; /* cut out */
    if (!res.rc && ram_put(&st->ram, op->key, b, RAM_DURABLE))
        storage_log(st, LOG_WARNING, "no memory to keep a segment in RAM");
    blob_unref(b);
    return res;
}

struct whereabouts {
    const struct read_op *op;
    bool gone;
    uint32_t pack;
    uint64_t offset;
};

static int whereabouts_run(struct storage_ledger *l, void *arg)
{
    struct whereabouts *w = arg;
    struct segment_row row;
    int rc = segment_get(l, w->op->key, &row);
    if (rc < 0)
        return rc;
    w->gone = !rc || row.pack == STORAGE_PACK_NONE;
    if (!w->gone && row.bytes == w->op->bytes) {
        w->pack = row.pack;
        w->offset = row.offset;
    }
    return 0;
}

/* What the index says of a record that could not be read. */
enum fate {
    FATE_STAYED, /* it should be there */
    FATE_MOVED,  /* it went to another pack since it was looked up, and is pinned there now */
    FATE_GONE    /* it was deleted since: what was read may be half cut out */
};

static enum fate fate(struct storage *st, struct read_op *op)
{
    struct whereabouts w = {.op = op, .pack = op->pack, .offset = op->offset};
    if (op->pack == STORAGE_PACK_NONE || jobs_call(st, whereabouts_run, &w))
        return FATE_STAYED;
    if (w.gone)
        return FATE_GONE;
    if (w.pack == op->pack && w.offset == op->offset)
        return FATE_STAYED;
    if (!op->pin_rc)
        pin_release(st, op->pack, op->offset);
    op->pack = w.pack;
    op->offset = w.offset;
    op->pin_rc = pin_take(st, op->pack, op->offset);
    return FATE_MOVED;
}

static void read_run(struct storage *st, struct read_op *op)
{
    struct storage_read_result res = {.rc = -ENOENT, .tier = STORAGE_TIER_RAM};
    struct blob *b = ram_get(&st->ram, op->key);
    if (b) {
        res.rc = record_take(op, b);
        if (res.rc == -EBADMSG) {
            atomic_fetch_add(&st->damaged, 1);
            ram_remove(&st->ram, op->key);
        }
        blob_unref(b);
    }
    if (res.rc == -ENOENT || res.rc == -EBADMSG) {
        int before = res.rc;
        res = read_disk(st, op);
        enum fate f = FATE_STAYED;
        if (res.rc == -EBADMSG || res.rc == -ENOENT)
            f = fate(st, op);
        if (f == FATE_MOVED)
            res = read_disk(st, op);
        if (f == FATE_GONE)
            res.rc = -ENOENT;
        if (res.rc == -EBADMSG)
            atomic_fetch_add(&st->damaged, 1);
        /* A disk that can read nothing at all takes no transaction that forgets either. */
        if (f != FATE_GONE && op->pack != STORAGE_PACK_NONE && !op->pin_rc &&
            (res.rc == -EBADMSG || res.rc == -ENOENT || res.rc == -EIO)) {
            storage_log(st, LOG_WARNING, "pack %u: the segment at %llu is %s", op->pack, (unsigned long long)op->offset,
                        res.rc == -EBADMSG ? "damaged"
                        : res.rc == -EIO   ? "unreadable"
                                           : "missing");
            forget(st, op);
        }
        if (res.rc == -ENOENT && before == -EBADMSG)
            res.rc = -EBADMSG;
    }
    if (op->pack != STORAGE_PACK_NONE && !op->pin_rc)
        pin_release(st, op->pack, op->offset);
    res.stored = op->stored;
    op->done(op->arg, res);
    free(op->arrays);
    free(op);
}

/* What a segment is to be; the layout's arrays stay the caller's. */
static struct read_op op_of(const struct storage_found *s, const uint8_t fingerprint[32],
                            const struct storage_layout *layout)
{
    struct read_op op = {.first = s->first,
                         .count = s->count,
                         .label_bytes = s->label_bytes,
                         .label_sum = pack_label_sum(s->label, s->label_bytes),
                         .bytes = s->encoded_bytes,
                         .pack = s->pack,
                         .offset = s->offset,
                         .layout = *layout};
    memcpy(op.key, s->key, STORAGE_KEY_BYTES);
    memcpy(op.fingerprint, fingerprint, sizeof op.fingerprint);
    return op;
}

int storage_segment_take(struct storage *st, const struct storage_found *s, const uint8_t fingerprint[32],
                         const struct storage_layout *layout, struct storage_read_result *out)
{
    if (!codec_payload_bytes(layout, s->count))
        return -EINVAL;
    struct blob *b = ram_get(&st->ram, s->key);
    if (!b)
        return -ENOENT;
    struct read_op op = op_of(s, fingerprint, layout);
    int rc = record_take(&op, b);
    blob_unref(b);
    if (!rc)
        *out = (struct storage_read_result){.tier = STORAGE_TIER_RAM, .stored = op.stored};
    return rc;
}

static int read_start(struct storage *st, const struct storage_found *s, const uint8_t fingerprint[32],
                      const struct storage_layout *layout, void *payload, bool split,
                      void (*done)(void *arg, struct storage_read_result result), void *arg)
{
    if (!codec_payload_bytes(layout, s->count))
        return -EINVAL;
    struct read_op *op = malloc(sizeof *op);
    struct storage_array *arrays = malloc(layout->n_arrays * sizeof *arrays);
    if (!op || !arrays) {
        free(op);
        free(arrays);
        return -ENOMEM;
    }
    memcpy(arrays, layout->arrays, layout->n_arrays * sizeof *arrays);
    *op = op_of(s, fingerprint, layout);
    op->layout.arrays = op->arrays = arrays;
    op->payload = payload;
    op->split = split;
    op->done = done;
    op->arg = arg;
    if (s->pack != STORAGE_PACK_NONE) {
        op->pin_rc = pin_take(st, s->pack, s->offset);
        if (op->pin_rc == -ENOMEM) {
            free(arrays);
            free(op);
            return -ENOMEM;
        }
    }
    pthread_mutex_lock(&st->reader_lock);
    *st->reads_tail = op;
    st->reads_tail = &op->next;
    pthread_cond_signal(&st->reader_cond);
    pthread_mutex_unlock(&st->reader_lock);
    return 0;
}

int storage_segment_read(struct storage *st, const struct storage_found *s, const uint8_t fingerprint[32],
                         const struct storage_layout *layout, void *payload,
                         void (*done)(void *arg, struct storage_read_result result), void *arg)
{
    return read_start(st, s, fingerprint, layout, payload, false, done, arg);
}

int storage_segment_read_split(struct storage *st, const struct storage_found *s, const uint8_t fingerprint[32],
                               const struct storage_layout *layout, void *split,
                               void (*done)(void *arg, struct storage_read_result result), void *arg)
{
    return read_start(st, s, fingerprint, layout, split, true, done, arg);
}

void *reader_thread(void *arg)
{
    struct storage *st = arg;
    for (;;) {
        pthread_mutex_lock(&st->reader_lock);
        while (!st->reads && !st->reader_stop)
            pthread_cond_wait(&st->reader_cond, &st->reader_lock);
        struct read_op *op = st->reads;
        if (op) {
            st->reads = op->next;
            if (!st->reads)
                st->reads_tail = &st->reads;
        }
        pthread_mutex_unlock(&st->reader_lock);
        if (!op)
            return NULL;
        read_run(st, op);
    }
}
