/* labels.c - what tells a segment apart from its siblings, as the index keeps it. Ledger thread only.
 *
 * A label stands once in its row. Labels of 4 bytes per unit (token ids) are coded in one to five bytes each, so that
 * no code is the beginning of another one: two labels have as many units in common as their codes have.
 *
 * Siblings are ordered by a mark, the shortest head of the label that no sibling's label begins with; the row says how
 * long it is. Where one label is the head of another there is nothing to find by it: whoever looks for the shorter one
 * may take the longer one's head. It has no mark (NULL), and gets one when the longer one goes. So the labels of rows
 * with a mark are no heads of each other, each mark tells its label from all the others, and the two marks next to any
 * label are those of the two labels next to it: if a mark is the head of what is looked for, no sibling has more in
 * common with it; else they differ within the marks, and the marks' order is that of the labels.
 *
 * What has no place in a pack (forgotten) has no mark either.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "storage/storage_internal.h"

/* First bytes of a code of one byte end before ONE, of two before TWO, of three before THREE; FIVE begins one of five.
 */
#define ONE   0x80u
#define TWO   0xe0u
#define THREE 0xffu
#define FIVE  0xffu

static size_t unit_code(uint32_t v, uint8_t *out)
{
    if (v < ONE) {
        out[0] = (uint8_t)v;
        return 1;
    }
    v -= ONE;
    if (v < (TWO - ONE) << 8) {
        out[0] = (uint8_t)(ONE + (v >> 8));
        out[1] = (uint8_t)v;
        return 2;
    }
    v -= (TWO - ONE) << 8;
    if (v < (THREE - TWO) << 16) {
        out[0] = (uint8_t)(TWO + (v >> 16));
        out[1] = (uint8_t)(v >> 8);
        out[2] = (uint8_t)v;
        return 3;
    }
    v += (ONE + ((TWO - ONE) << 8));
    out[0] = FIVE;
    for (int i = 0; i < 4; i++)
        out[1 + i] = (uint8_t)(v >> (24 - 8 * i));
    return 5;
}

/* Bytes of the code at p, or 0: it is cut off. */
static size_t unit_decode(const uint8_t *p, size_t n, uint32_t *v)
{
    size_t want = !n ? 1 : p[0] < ONE ? 1 : p[0] < TWO ? 2 : p[0] < THREE ? 3 : 5;
    if (n < want)
        return 0;
    if (want == 1)
        *v = p[0];
    else if (want == 2)
        *v = ONE + ((p[0] - ONE) << 8 | p[1]);
    else if (want == 3)
        *v = ONE + ((TWO - ONE) << 8) + ((p[0] - TWO) << 16 | (uint32_t)p[1] << 8 | p[2]);
    else
        *v = (uint32_t)p[1] << 24 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 8 | p[4];
    return want;
}

static uint32_t unit_of(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

uint8_t *label_code(int unit, const void *label, size_t bytes, size_t *n)
{
    const uint8_t *in = label;
    uint8_t *out = malloc(unit == LABEL_IDS ? bytes / 4 * 5 + 1 : bytes + 1);
    *n = 0;
    if (out && unit == LABEL_IDS)
        for (size_t i = 0; i + 4 <= bytes; i += 4)
            *n += unit_code(unit_of(in + i), out + *n);
    else if (out && bytes)
        memcpy(out, label, *n = bytes);
    return out;
}

uint8_t *label_decode(int unit, const void *coded, size_t n, size_t *bytes)
{
    const uint8_t *in = coded;
    uint8_t *out = malloc(unit == LABEL_IDS ? 4 * n + 1 : n + 1);
    *bytes = 0;
    if (!out)
        return NULL;
    if (unit != LABEL_IDS) {
        if (n)
            memcpy(out, coded, *bytes = n);
        return out;
    }
    for (size_t at = 0, used; at < n; at += used, *bytes += 4) {
        uint32_t v = 0;
        used = unit_decode(in + at, n - at, &v);
        if (!used)
            break; /* damaged: shorter than its count says */
        for (int i = 0; i < 4; i++)
            out[*bytes + (size_t)i] = (uint8_t)(v >> (8 * i));
    }
    return out;
}

/* ---- names and spaces -------------------------------------------------------------------------------------------- */

int name_id(struct storage_ledger *l, const char *text, int64_t *id)
{
    int rc;
    for (int tries = 0; tries < 2; tries++) {
        sqlite3_stmt *s = stmt_get(l, S_NAME_GET, &rc);
        if (!s)
            return rc;
        bind_text(s, 1, text);
        if ((rc = stmt_step(l, s)) == 1) {
            *id = sqlite3_column_int64(s, 0);
            stmt_reset(s);
            return 0;
        }
        if (rc || !(s = stmt_get(l, S_NAME_ADD, &rc)))
            return rc;
        bind_text(s, 1, text);
        if ((rc = stmt_run(l, s, NULL)))
            return rc;
    }
    return -EBADMSG;
}

int space_get(struct storage_ledger *l, int64_t owner, const uint8_t fingerprint[32], int64_t *id, int *unit)
{
    int rc;
    sqlite3_stmt *s = STMT_WITH(l, S_SPACE_GET, &rc, owner);
    if (s)
        bind_blob(s, 2, fingerprint, 32);
    rc = stmt_one(l, s, rc);
    if (rc == 1) {
        *id = sqlite3_column_int64(s, 0);
        *unit = sqlite3_column_int(s, 1);
        stmt_reset(s);
    }
    return rc;
}

int space_add(struct storage_ledger *l, int64_t owner, const uint8_t fingerprint[32], int wanted, int64_t *id,
              int *unit)
{
    int rc = space_get(l, owner, fingerprint, id, unit);
    if (rc)
        return rc < 0 ? rc : 0;
    sqlite3_stmt *s = STMT_WITH(l, S_SPACE_ADD, &rc, owner, 0, wanted);
    if (!s)
        return rc;
    bind_blob(s, 2, fingerprint, 32);
    if ((rc = stmt_run(l, s, NULL)))
        return rc;
    *id = sqlite3_last_insert_rowid(l->kv);
    *unit = wanted;
    return 0;
}

/* ---- marks ------------------------------------------------------------------------------------------------------- */

static size_t common(const uint8_t *a, size_t a_bytes, const uint8_t *b, size_t b_bytes)
{
    size_t n = 0;
    while (n < a_bytes && n < b_bytes && a[n] == b[n])
        n++;
    return n;
}

static int mark_set(struct storage_ledger *l, int64_t id, size_t mark)
{
    int rc;
    sqlite3_stmt *s = STMT_WITH(l, S_MARK_SET, &rc, id, (int64_t)mark);
    return s ? stmt_run(l, s, NULL) : rc;
}

static int mark_clear(struct storage_ledger *l, int64_t id)
{
    int rc;
    sqlite3_stmt *s = STMT_WITH(l, S_MARK_CLEAR, &rc, id);
    return s ? stmt_run(l, s, NULL) : rc;
}

int mark_add(struct storage_ledger *l, int64_t id, const struct sibling *me)
{
    size_t mark = 1;
    /* What is changed of a neighbour is done behind its query. */
    struct {
        int64_t id;
        size_t common, mark, bytes;
    } near[2] = {{0}};
    for (int side = 0; side < 2; side++) {
        int rc;
        sqlite3_stmt *s = stmt_get(l, side ? S_MARK_ABOVE : S_MARK_BELOW, &rc);
        if (!s)
            return rc;
        bind_blob(s, 1, me->parent, STORAGE_KEY_BYTES);
        (void)sqlite3_bind_int64(s, 2, me->space);
        bind_blob(s, 3, me->label, me->bytes);
        if ((rc = stmt_step(l, s)) < 0)
            return rc;
        if (rc == 0)
            continue;
        near[side].id = sqlite3_column_int64(s, 0);
        near[side].bytes = (size_t)sqlite3_column_bytes(s, 1);
        near[side].common = common(sqlite3_column_blob(s, 1), near[side].bytes, me->label, me->bytes);
        near[side].mark = (size_t)sqlite3_column_int64(s, 2);
        stmt_reset(s);
    }
    for (int side = 0; side < 2; side++)
        if (near[side].id && near[side].common == me->bytes)
            return mark_clear(l, id); /* it is the head of that one */
    for (int side = 0; side < 2; side++)
        if (near[side].id && near[side].common == near[side].bytes) { /* that one is a head of it */
            int rc = mark_clear(l, near[side].id);
            return rc ? rc : mark_set(l, id, near[side].mark);
        }
    for (int side = 0; side < 2; side++) {
        if (!near[side].id)
            continue;
        size_t wanted = near[side].common + 1;
        int rc = near[side].mark < wanted ? mark_set(l, near[side].id, wanted) : 0;
        if (rc)
            return rc;
        mark = wanted > mark ? wanted : mark;
    }
    return mark_set(l, id, mark);
}

/* Heads of labels that have gone, at once: what is added first may be the head of what is added next. */
int mark_drop(struct storage_ledger *l, const struct sibling *gone)
{
    int64_t after = 0;
    for (;;) {
        int rc;
        sqlite3_stmt *s = stmt_get(l, S_MARK_HEADS, &rc);
        if (!s)
            return rc;
        bind_blob(s, 1, gone->parent, STORAGE_KEY_BYTES);
        (void)sqlite3_bind_int64(s, 2, gone->space);
        (void)sqlite3_bind_int64(s, 3, after);
        uint8_t *label = NULL;
        size_t n = 0;
        bool is_head = false;
        while (!is_head && (rc = stmt_step(l, s)) == 1) {
            after = sqlite3_column_int64(s, 0);
            n = (size_t)sqlite3_column_bytes(s, 1);
            is_head = n <= gone->bytes && !memcmp(sqlite3_column_blob(s, 1), gone->label, n);
        }
        if (is_head) {
            label = malloc(n + 1);
            if (label)
                memcpy(label, sqlite3_column_blob(s, 1), n);
            stmt_reset(s);
            rc = label ? mark_add(l, after, &(struct sibling){gone->parent, gone->space, label, n}) : -ENOMEM;
        }
        free(label);
        if (rc || !is_head)
            return rc;
    }
}
