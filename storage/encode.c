/* encode.c - the queue of what is to be saved, and the threads that encode it.
 *
 * Puts and commits wait in one queue, in order of submission, until the KV writer takes them. Meanwhile the encoders
 * turn raw segments into records, several at once, so that what waits for a slow disk is the smaller form. The queue
 * has a bound in bytes: a put beyond it is refused, the caller has the segment still and puts it again later. What
 * counts is a segment from its put to the end of its group's commit.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "storage/storage_internal.h"

static void payload_release(struct write_op *op)
{
    if (op->payload)
        op->release(op->payload);
    op->payload = NULL;
}

void write_op_free(struct write_op *op)
{
    if (!op)
        return;
    blob_unref(op->blob);
    free(op->label);
    free(op->arrays);
    payload_release(op);
    free(op);
}

void encode_over(struct storage *st, uint64_t bytes)
{
    pthread_mutex_lock(&st->writer_lock);
    st->queue_bytes -= bytes;
    pthread_mutex_unlock(&st->writer_lock);
}

/* -ENOBUFS: there is no room for it in the queue. */
static int op_queue(struct storage *st, struct write_op *op)
{
    pthread_mutex_lock(&st->writer_lock);
    bool full = st->queue_bytes && (op->queued > st->queue_most || st->queue_bytes > st->queue_most - op->queued);
    int rc = full && !op->commit ? -ENOBUFS : 0;
    if (!rc) {
        st->queue_bytes += op->queued;
        *st->writes_tail = op;
        st->writes_tail = &op->next;
        pthread_cond_broadcast(&st->writer_cond);
    }
    pthread_mutex_unlock(&st->writer_lock);
    return rc;
}

int storage_segment_put(struct storage *st, const struct storage_segment *s, const struct storage_layout *layout,
                        void *payload)
{
    size_t bytes = codec_payload_bytes(layout, s->count);
    void (*release)(void *) = s->release ? s->release : free;
    struct write_op *op = calloc(1, sizeof *op);
    int rc = op ? 0 : -ENOMEM;
    if (!rc && (!bytes || s->label_bytes > STORAGE_LABEL_MAX || s->first > UINT32_MAX - s->count))
        rc = -EINVAL;
    if (!rc) {
        op->label = malloc(s->label_bytes ? s->label_bytes : 1);
        op->arrays = malloc(layout->n_arrays * sizeof *op->arrays);
        if (!op->label || !op->arrays)
            rc = -ENOMEM;
    }
    if (rc) {
        write_op_free(op);
        release(payload);
        return rc;
    }
    if (s->label_bytes)
        memcpy(op->label, s->label, s->label_bytes);
    memcpy(op->arrays, layout->arrays, layout->n_arrays * sizeof *op->arrays);
    op->layout =
        (struct storage_layout){.element = layout->element, .arrays = op->arrays, .n_arrays = layout->n_arrays};
    op->payload = payload;
    op->payload_bytes = bytes;
    op->release = release;
    op->split = s->split;
    op->queued = bytes;
    op->keep = s->keep;
    op->rec = (struct pack_record){.owner = s->owner,
                                   .first = s->first,
                                   .count = s->count,
                                   .label_bytes = s->label_bytes,
                                   .layout_sum = pack_layout_sum(layout, s->count)};
    memcpy(op->rec.key, s->key, STORAGE_KEY_BYTES);
    memcpy(op->rec.parent, s->parent, STORAGE_KEY_BYTES);
    memcpy(op->rec.fingerprint, s->fingerprint, sizeof op->rec.fingerprint);
    memcpy(op->rec.producer, s->producer, sizeof op->rec.producer - 1);
    atomic_fetch_add(&st->pending_puts, 1);
    rc = op_queue(st, op);
    if (rc) {
        atomic_fetch_sub(&st->pending_puts, 1);
        write_op_free(op);
    }
    return rc;
}

static int commit_queue(struct storage *st, int64_t turn, const uint8_t last[STORAGE_KEY_BYTES],
                        int (*with)(struct storage_ledger *l, void *arg, int rc), void (*done)(void *arg, int rc),
                        void *arg)
{
    struct write_op *op = calloc(1, sizeof *op);
    if (!op)
        return -ENOMEM;
    op->commit = true;
    op->state = OP_READY;
    op->turn = turn;
    memcpy(op->last, last, STORAGE_KEY_BYTES);
    op->with = with;
    op->done = done;
    op->arg = arg;
    return op_queue(st, op);
}

int storage_kv_commit(struct storage *st, int64_t turn, const uint8_t last[STORAGE_KEY_BYTES],
                      int (*with)(struct storage_ledger *l, void *arg, int rc), void (*done)(void *arg, int rc),
                      void *arg)
{
    return turn > 0 ? commit_queue(st, turn, last, with, done, arg) : -EINVAL;
}

int storage_kv_flush(struct storage *st, const uint8_t drop[STORAGE_KEY_BYTES], void (*done)(void *arg, int rc),
                     void *arg)
{
    return commit_queue(st, 0, drop, NULL, done, arg);
}

/* ---- encoding ---------------------------------------------------------------------------------------------------- */

int segment_made_by(struct storage_ledger *l, const uint8_t key[STORAGE_KEY_BYTES], const char *producer)
{
    sqlite3_stmt *s = stmt_get(l, S_SEG_PRODUCER);
    bind_blob(s, 1, key, STORAGE_KEY_BYTES);
    bind_text(s, 2, producer);
    return stmt_any(l, s);
}

struct question {
    const struct write_op *op;
    int found;
};

static int exists_run(struct storage_ledger *l, void *arg)
{
    struct question *q = arg;
    const struct pack_record *rec = &q->op->rec;
    q->found = segment_exists(l, rec->key);
    if (q->found == 1 && !q->op->keep)
        q->found = segment_made_by(l, rec->key, rec->producer);
    return 0;
}

static bool exists(struct storage *st, const struct write_op *op)
{
    struct question q = {.op = op};
    /* When the index cannot say, the record is written; a superfluous one is dropped with its row. */
    return jobs_call(st, exists_run, &q) == 0 && q.found == 1;
}

/* Encodes a segment into a record. */
static struct blob *encode(struct storage *st, struct write_op *op)
{
    size_t at = pack_payload_offset(op->rec.label_bytes);
    size_t bound = storage_codec_bound(&op->layout, op->rec.count);
    uint64_t most = bound ? pack_record_bytes(op->rec.label_bytes, bound) : 0;
    uint8_t *record = most ? malloc(most) : NULL;
    op->rc = most ? -ENOMEM : -EOVERFLOW;
    if (!record)
        return NULL;
    int64_t n = op->split ? storage_split_encode(&op->layout, op->rec.count, op->payload, record + at, bound)
                          : storage_codec_encode(&op->layout, op->rec.count, op->payload, record + at, bound);
    if (n < 0) {
        free(record);
        op->rc = (int)n;
        return NULL;
    }
    op->rec.payload_bytes = (uint64_t)n;
    uint64_t bytes = pack_record_bytes(op->rec.label_bytes, (uint64_t)n);
    pack_record_seal(record, &op->rec, op->label);
    uint8_t *fitted = realloc(record, bytes);
    struct blob *b = blob_new(fitted ? fitted : record, bytes);
    if (b) {
        atomic_fetch_add(&st->raw_bytes, op->payload_bytes);
        atomic_fetch_add(&st->encoded_bytes, (uint64_t)n);
    }
    return b;
}

static void prepare(struct storage *st, struct write_op *op)
{
    int state = ram_state(&st->ram, op->rec.key);
    op->stored = state == RAM_PENDING || exists(st, op);
    if (op->stored)
        return;
    op->blob = state == RAM_ONLY ? ram_get(&st->ram, op->rec.key) : NULL;
    if (!op->blob)
        op->blob = encode(st, op);
}

static struct write_op *next_raw(struct storage *st)
{
    struct write_op *op = st->writes;
    while (op && op->state != OP_RAW)
        op = op->next;
    return op;
}

void *encoder_thread(void *arg)
{
    struct storage *st = arg;
    pthread_mutex_lock(&st->writer_lock);
    for (;;) {
        struct write_op *op;
        while (!(op = next_raw(st)) && !st->writer_stop)
            pthread_cond_wait(&st->writer_cond, &st->writer_lock);
        if (!op)
            break;
        op->state = OP_ENCODING;
        pthread_mutex_unlock(&st->writer_lock);
        prepare(st, op);
        payload_release(op);
        uint64_t now = op->blob ? op->blob->bytes : 0;
        pthread_mutex_lock(&st->writer_lock);
        st->queue_bytes -= op->queued - (now < op->queued ? now : op->queued);
        op->queued = now < op->queued ? now : op->queued;
        op->state = OP_READY;
        pthread_cond_broadcast(&st->writer_cond);
    }
    pthread_mutex_unlock(&st->writer_lock);
    return NULL;
}
