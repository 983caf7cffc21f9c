/* nearest.c - the segments that begin as a label does: two rows of the index are looked at, and what is in RAM only.
 * Ledger thread only.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "storage/storage_internal.h"

struct wanted { /* a label that is looked for among the children of a parent */
    const uint8_t *parent;
    const void *label;
    struct coded code;
};

/* Reads the label of a row, from RAM where it is there. -EBADMSG, -ENOENT: it is not what the row says, or not there.
 */
static int label_read(struct storage_ledger *l, const struct storage_found *f, uint8_t **label)
{
    struct pack_record r;
    struct blob *b = ram_get(&l->st->ram, f->key);
    int rc = -ENOENT;
    if (b && !pack_record_parse(b->record, b->bytes, true, &r) && r.label_bytes == f->label_bytes) {
        *label = malloc(r.label_bytes ? r.label_bytes : 1);
        rc = *label ? 0 : -ENOMEM;
        if (!rc)
            memcpy(*label, b->record + PACK_HEADER_BYTES, r.label_bytes);
    }
    if (b)
        blob_unref(b);
    if (rc != -ENOENT)
        return rc;
    struct place_of at = {.pack = f->pack, .offset = f->offset, .bytes = f->encoded_bytes};
    rc = packs_read_label(&l->st->packs, &at, &r, label);
    if (!rc && (memcmp(r.key, f->key, sizeof r.key) || r.label_bytes != f->label_bytes)) {
        free(*label);
        rc = -EBADMSG;
    }
    return rc;
}

/* The same of one that begins with `units` of what is wanted, or so its code says. Where the record is damaged or gone
 * it is what it should be: who reads the KV finds out, and it is forgotten. 1; 0: it cannot be read now, which says
 * nothing about the record. */
static int label_of(struct storage_ledger *l, const struct wanted *w, size_t unit_bytes, size_t units, bool whole,
                    struct storage_found *f)
{
    uint8_t *label = NULL;
    int rc = whole ? -ENOENT : label_read(l, f, &label);
    if (rc && rc != -EBADMSG && rc != -ENOENT)
        return rc == -ENOMEM ? rc : 0;
    if (rc) {
        label = calloc(1, f->label_bytes ? f->label_bytes : 1);
        size_t most = f->label_bytes / unit_bytes, n = units < w->code.units ? units : w->code.units;
        if (!label)
            return -ENOMEM;
        memcpy(label, w->label, (n < most ? n : most) * unit_bytes);
    }
    f->label = label;
    return 1;
}

/* The nearest child on one side of what is wanted. 1: found; 0: none that has anything in common with it, or that can
 * be read now. */
static int neighbour(struct storage_ledger *l, enum stmt_id id, const struct space *space, const struct wanted *w,
                     struct storage_found *out)
{
    sqlite3_stmt *s = stmt_get(l, id);
    bind_blob(s, 1, w->parent, STORAGE_KEY_BYTES);
    (void)sqlite3_bind_int64(s, 2, space->id);
    bind_blob(s, 3, w->code.string, w->code.bytes);
    int rc = stmt_step(l, s);
    if (rc != 1)
        return rc;
    const char *producer = (const char *)sqlite3_column_text(s, 7);
    struct storage_found f = {.first = (uint32_t)sqlite3_column_int64(s, 1),
                              .count = (uint32_t)sqlite3_column_int64(s, 2),
                              .encoded_bytes = (uint64_t)sqlite3_column_int64(s, 4),
                              .pack = (uint32_t)sqlite3_column_int64(s, 5),
                              .offset = (uint64_t)sqlite3_column_int64(s, 6)};
    f.label_bytes = (uint32_t)sqlite3_column_int64(s, 9);
    size_t common = coded_common(&w->code, sqlite3_column_blob(s, 3), (size_t)sqlite3_column_bytes(s, 3));
    size_t unit_bytes = space->unit == LABEL_IDS ? 4 : 1, units = f.label_bytes / unit_bytes;
    bool whole = units && units <= w->code.units && coded_sum(&w->code, units) == sqlite3_column_int64(s, 8);
    rc = producer ? column_bytes(s, 0, f.key, STORAGE_KEY_BYTES) : -ENOMEM;
    if (!rc)
        memcpy(f.producer, producer, strnlen(producer, sizeof f.producer - 1));
    stmt_reset(s);
    if (rc || (!common && !whole))
        return rc;
    rc = label_of(l, w, unit_bytes, whole ? units : common, whole, &f);
    if (rc == 1)
        *out = f;
    return rc;
}

int segment_label_compare(const void *a, uint32_t a_bytes, const void *b, uint32_t b_bytes)
{
    uint32_t n = a_bytes < b_bytes ? a_bytes : b_bytes;
    int c = n ? memcmp(a, b, n) : 0;
    return c ? c : (a_bytes > b_bytes) - (a_bytes < b_bytes);
}

static uint32_t common_head(const struct storage_found *f, const void *label, uint32_t label_bytes)
{
    const uint8_t *a = f->label, *b = label;
    uint32_t n = 0;
    while (n < f->label_bytes && n < label_bytes && a[n] == b[n])
        n++;
    return n;
}

int storage_segment_nearest(struct storage_ledger *l, int64_t owner, const uint8_t fingerprint[32],
                            const uint8_t parent[STORAGE_KEY_BYTES], const void *label, uint32_t label_bytes,
                            struct storage_found rows[2], size_t *n)
{
    /* On one side of it and on the other; those on disk, then those in RAM only. */
    struct storage_found side[2][2] = {0};
    bool have[2][2] = {{false}};
    uint32_t head[2] = {0, 0};
    struct wanted wanted = {.parent = parent, .label = label};
    struct space space;
    int rc = space_get(l, owner, fingerprint, &space);
    bool any = rc == 1;
    if (any)
        rc = label_code(&space, label, label_bytes, &wanted.code);
    for (int i = 0; i < 2 && rc >= 0 && any; i++) {
        rc = neighbour(l, i ? S_SEG_ABOVE : S_SEG_BELOW, &space, &wanted, &side[i][0]);
        have[i][0] = rc == 1;
        if (have[i][0])
            head[i] = common_head(&side[i][0], label, label_bytes);
    }
    coded_free(&wanted.code);
    int best = head[1] > head[0];
    if (head[best])
        segment_use(l, side[best][0].key);
    if (rc >= 0)
        rc = ram_nearest(&l->st->ram, owner, fingerprint, parent, label, label_bytes, &side[0][1], &side[1][1]);
    size_t found = 0;
    for (int i = 0; i < 2; i++) {
        have[i][1] = side[i][1].label != NULL;
        int use = have[i][0] ? 0 : 1;
        if (have[i][0] && have[i][1])
            use = common_head(&side[i][1], label, label_bytes) > head[i];
        for (int k = 0; k < 2; k++) {
            if (have[i][k] && k == use && rc >= 0)
                rows[found++] = side[i][k];
            else
                free(side[i][k].label);
        }
    }
    if (rc < 0)
        return rc;
    *n = found;
    return 0;
}
