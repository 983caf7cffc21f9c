/* labels.c - what tells a segment apart from its siblings, as the index keeps it. Ledger thread only.
 *
 * A label is what a segment is made from (token ids), and stands in its record alone, which is overwritten when it
 * goes. The index has a code of it: each unit is chained into a block by a cipher with a key of the space's own (CBC,
 * so that a block depends on all units up to it), and two bytes of the block are the unit's code. Two labels have equal
 * codes as far as they are equal; where they differ the codes do too, but for one case in 65,536.
 *
 * A row has the head of its code that no sibling's code begins with, mostly that of one unit, and 8 other bytes of its
 * last block, by which a whole label is known. A code ends with a code of its end, so that none is the head of another
 * one. The two heads next to any code are then those of the two siblings next to it: if a head is the head of what is
 * looked for, no sibling has more in common with it; else they differ within the heads, and the heads' order is that of
 * the codes. How much a sibling has in common is read from its record.
 *
 * The key is in the index: whoever has that can try all tokens, one unit after the other, and so read what a head is
 * the code of. Where rows with long ones have gone, a deletion empties the index's log too (erase.c).
 *
 * A head grows when a sibling comes that begins with it, and stays when that one goes. What has no place in a pack
 * (forgotten) has no head. Where a record cannot be read, its head stays as it is, and both may begin alike.
 */
#include <errno.h>
#include <limits.h>
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <stdlib.h>
#include <string.h>

#include "storage/storage_internal.h"

#define BLOCK  16
#define END_AT 4 /* two for the end */
#define SUM_AT 8 /* and eight for the whole label */

static size_t units_of(const struct space *space, size_t bytes)
{
    return space->unit == LABEL_IDS ? bytes / 4 : bytes;
}

void coded_free(struct coded *c)
{
    free(c->blocks);
    free(c->string);
    *c = (struct coded){0};
}

int label_code(const struct space *space, const void *label, size_t bytes, struct coded *out)
{
    static const uint8_t start[BLOCK];
    struct coded c = {.units = units_of(space, bytes)};
    size_t unit_bytes = space->unit == LABEL_IDS ? 4 : 1;
    c.bytes = UNIT_CODE * (c.units + 1);
    c.blocks = calloc(c.units + 1, BLOCK);
    c.string = malloc(c.bytes);
    EVP_CIPHER_CTX *ctx = EVP_CIPHER_CTX_new();
    int rc = c.blocks && c.string && ctx && c.units <= INT_MAX / BLOCK ? 0 : -ENOMEM;
    for (size_t i = 0; i < c.units && !rc; i++)
        memcpy(c.blocks + i * BLOCK, (const uint8_t *)label + i * unit_bytes, unit_bytes);
    int n = 0;
    if (!rc && (EVP_EncryptInit_ex(ctx, EVP_aes_256_cbc(), NULL, space->key, start) != 1 ||
                EVP_CIPHER_CTX_set_padding(ctx, 0) != 1 ||
                EVP_EncryptUpdate(ctx, c.blocks, &n, c.blocks, (int)(c.units * BLOCK)) != 1))
        rc = -ENOMEM;
    EVP_CIPHER_CTX_free(ctx);
    if (rc) {
        coded_free(&c);
        return rc;
    }
    for (size_t i = 0; i < c.units; i++)
        memcpy(c.string + UNIT_CODE * i, c.blocks + i * BLOCK, UNIT_CODE);
    memcpy(c.string + UNIT_CODE * c.units, c.blocks + (c.units ? c.units - 1 : 0) * BLOCK + END_AT, UNIT_CODE);
    *out = c;
    return 0;
}

int64_t coded_sum(const struct coded *c, size_t units)
{
    int64_t sum = 0;
    if (units && units <= c->units)
        memcpy(&sum, c->blocks + (units - 1) * BLOCK + SUM_AT, sizeof sum);
    return sum;
}

size_t coded_common(const struct coded *c, const uint8_t *head, size_t n)
{
    size_t units = 0;
    while (UNIT_CODE * (units + 1) <= n && UNIT_CODE * (units + 1) <= c->bytes &&
           !memcmp(head + UNIT_CODE * units, c->string + UNIT_CODE * units, UNIT_CODE))
        units++;
    return units;
}

/* ---- names and spaces -------------------------------------------------------------------------------------------- */

int name_id(struct storage_ledger *l, const char *text, int64_t *id)
{
    int rc;
    for (int tries = 0; tries < 2; tries++) {
        sqlite3_stmt *s = stmt_get(l, S_NAME_GET);
        bind_text(s, 1, text);
        if ((rc = stmt_step(l, s)) == 1) {
            *id = sqlite3_column_int64(s, 0);
            stmt_reset(s);
            return 0;
        }
        if (rc)
            return rc;
        s = stmt_get(l, S_NAME_ADD);
        bind_text(s, 1, text);
        if ((rc = stmt_run(l, s, NULL)))
            return rc;
    }
    return -EBADMSG;
}

int space_get(struct storage_ledger *l, int64_t owner, const uint8_t fingerprint[32], struct space *out)
{
    sqlite3_stmt *s = STMT_WITH(l, S_SPACE_GET, owner);
    bind_blob(s, 2, fingerprint, 32);
    int rc = stmt_step(l, s);
    if (rc != 1)
        return rc;
    out->id = sqlite3_column_int64(s, 0);
    out->unit = sqlite3_column_int(s, 1);
    rc = column_bytes(s, 2, out->key, sizeof out->key);
    stmt_reset(s);
    return rc ? rc : 1;
}

int space_add(struct storage_ledger *l, int64_t owner, const uint8_t fingerprint[32], int unit, struct space *out)
{
    int rc = space_get(l, owner, fingerprint, out);
    if (rc)
        return rc < 0 ? rc : 0;
    out->unit = unit;
    if (RAND_bytes(out->key, sizeof out->key) != 1)
        return -EIO;
    sqlite3_stmt *s = STMT_WITH(l, S_SPACE_ADD, owner, 0, unit);
    bind_blob(s, 2, fingerprint, 32);
    bind_blob(s, 4, out->key, sizeof out->key);
    if ((rc = stmt_run(l, s, NULL)))
        return rc;
    out->id = sqlite3_last_insert_rowid(l->kv);
    return 0;
}

/* ---- heads ------------------------------------------------------------------------------------------------------- */

static int head_write(struct storage_ledger *l, int64_t id, const struct coded *code, size_t units)
{
    size_t n = UNIT_CODE * units;
    sqlite3_stmt *s = STMT_WITH(l, S_HEAD_SET, id);
    bind_blob(s, 2, code->string, n < code->bytes ? n : code->bytes);
    return stmt_run(l, s, NULL);
}

/* A sibling's head gets longer until it differs from `me`. *common gets what they have in common. A record that cannot
 * be read changes nothing. */
static int head_grow(struct storage_ledger *l, const struct space *space, int64_t id, const struct place_of *at,
                     const struct coded *me, size_t *common)
{
    uint8_t *label = NULL;
    struct coded code;
    struct pack_record r;
    int rc = packs_read_label(&l->st->packs, at, &r, &label);
    if (rc)
        return rc == -ENOMEM ? rc : 0;
    rc = label_code(space, label, r.label_bytes, &code);
    free(label);
    if (rc)
        return rc;
    size_t n = coded_common(me, code.string, code.bytes);
    if (n > *common)
        *common = n;
    rc = head_write(l, id, &code, n + 1);
    coded_free(&code);
    return rc;
}

int head_own(struct storage_ledger *l, int64_t id, size_t *bytes)
{
    sqlite3_stmt *s = STMT_WITH(l, S_HEADS_BESIDE, id);
    int rc = stmt_row(l, s);
    if (rc)
        return rc;
    const uint8_t *head = sqlite3_column_blob(s, 0);
    size_t n = (size_t)sqlite3_column_bytes(s, 0), shared = 0;
    for (int side = 1; side <= 2; side++) {
        const uint8_t *other = sqlite3_column_blob(s, side);
        size_t most = (size_t)sqlite3_column_bytes(s, side), same = 0;
        while (same < n && same < most && head[same] == other[same])
            same++;
        shared = same > shared ? same : shared;
    }
    *bytes = n - shared;
    stmt_reset(s);
    return 0;
}

int head_set(struct storage_ledger *l, int64_t id, const struct space *space, const uint8_t parent[STORAGE_KEY_BYTES],
             const struct coded *me)
{
    size_t units = 1;
    for (int side = 0; side < 2; side++) {
        int rc;
        sqlite3_stmt *s = stmt_get(l, side ? S_HEAD_ABOVE : S_HEAD_BELOW);
        bind_blob(s, 1, parent, STORAGE_KEY_BYTES);
        (void)sqlite3_bind_int64(s, 2, space->id);
        bind_blob(s, 3, me->string, me->bytes);
        if ((rc = stmt_step(l, s)) < 0)
            return rc;
        if (rc == 0)
            continue;
        int64_t near = sqlite3_column_int64(s, 0);
        size_t bytes = (size_t)sqlite3_column_bytes(s, 1), common = coded_common(me, sqlite3_column_blob(s, 1), bytes);
        struct place_of at = {.pack = (uint32_t)sqlite3_column_int64(s, 2),
                              .offset = (uint64_t)sqlite3_column_int64(s, 3),
                              .bytes = (uint64_t)sqlite3_column_int64(s, 4)};
        stmt_reset(s);
        if (UNIT_CODE * common == bytes && (rc = head_grow(l, space, near, &at, me, &common)))
            return rc;
        units = common + 1 > units ? common + 1 : units;
    }
    return head_write(l, id, me, units);
}
