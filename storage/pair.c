/* pair.c - whether ledger.db is the one that the index and the packs beside it belong to. Runs at open, alone.
 *
 * What the ledger does not hold is swept out of the packs, so a ledger that is missing, empty or from another directory
 * would cost all KV. Both databases and the first block of every pack therefore carry one random id, the pair id. It is
 * made with the ledger and never changes, so that a backup of the right ledger, older or newer than what lies beside
 * it, is still the right one. Databases of versions without such an id are taken for a pair when the ledger holds
 * something that the index has.
 *
 * Nothing is changed by a refusal: the right file can be put back.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <openssl/rand.h>

#include "storage/storage_internal.h"

static const char pair_key[] = "pair";

int pair_refuse(struct storage *st, const char *what, char *err, size_t err_size)
{
    if (err_size)
        (void)snprintf(err, err_size,
                       "%s/ledger.db %s, but the KV beside it belongs to another one. Put the right ledger.db back "
                       "(with its ledger.db-wal, if there is one); or give the stored KV up: move kv.db* and pack-* "
                       "out of the directory",
                       st->dir, what);
    return -ESTALE;
}

/* Its size, or -1: there is no such file. */
static int64_t size_of(const struct storage *st, const char *file)
{
    struct stat sb;
    return fstatat(st->dirfd, file, &sb, AT_SYMLINK_NOFOLLOW) ? -1 : (int64_t)sb.st_size;
}

static int any_pack(void *arg, uint32_t pack)
{
    (void)pack;
    *(bool *)arg = true;
    return 0;
}

/* Whether an index is there that belongs to some ledger. One that cannot be read belongs to none. */
static bool index_is_paired(struct storage *st)
{
    struct storage_ledger l = {.st = st};
    uint8_t pair[PAIR_BYTES];
    size_t n;
    char err[1];
    bool paired = false;
    if (size_of(st, "kv.db") > 0 && !schema_open(&schema_kv, st->dirfd, st->dir, &l.kv, err, 0)) {
        paired = meta_get(&l, S_KV_META_GET, pair_key, pair, sizeof pair, &n) == 1;
        stmt_finalize_all(&l);
        (void)sqlite3_close(l.kv);
    }
    return paired;
}

int pair_before_open(struct storage *st, char *err, size_t err_size)
{
    int64_t size = size_of(st, "ledger.db");
    if (size > 0)
        return 0;
    bool known = size_of(st, "ledger.db-wal") > 0;
    int rc = known ? 0 : packs_list(&st->packs, any_pack, &known);
    if (!rc && (known || index_is_paired(st)))
        rc = pair_refuse(st, size < 0 ? "is missing" : "is empty", err, err_size);
    return rc;
}

/* Whether something that the ledger holds is in the index: 1, 0 or negative. -ENODATA: it holds nothing. */
static int holds_match(struct storage_ledger *l)
{
    int rc, found = -ENODATA;
    sqlite3_stmt *s = stmt_get(l, S_HOLDS);
    while (found <= 0 && (rc = stmt_step(l, s)) == 1) {
        uint8_t key[STORAGE_KEY_BYTES];
        struct segment_row row;
        rc = column_bytes(s, 0, key, sizeof key);
        found = rc ? rc : segment_get(l, key, &row);
        if (found < 0)
            break;
    }
    stmt_reset(s);
    return rc < 0 ? rc : found;
}

struct packs_pair {
    const struct packs *packs;
    const uint8_t *mine; /* the ledger's, or all zero */
    uint8_t pair[PAIR_BYTES];
};

/* The ledger's own id if any pack has it, else another's, if there is one. */
static int pack_pair(void *arg, uint32_t pack)
{
    struct packs_pair *p = arg;
    uint8_t pair[PAIR_BYTES];
    if (!packs_pair(p->packs, pack, pair) && !pack_is_zero(pair, sizeof pair) &&
        memcmp(p->pair, p->mine, sizeof p->pair))
        memcpy(p->pair, pair, sizeof pair);
    return 0;
}

int pair_settle(struct storage_ledger *l)
{
    struct storage *st = l->st;
    uint8_t mine[PAIR_BYTES] = {0}, other[PAIR_BYTES] = {0};
    size_t n = sizeof mine;
    int rc = meta_get(l, S_META_GET, pair_key, mine, sizeof mine, &n);
    if (rc < 0 || n != sizeof mine)
        return rc < 0 ? rc : -EBADMSG;
    bool have = rc == 1;
    rc = meta_get(l, S_KV_META_GET, pair_key, other, sizeof other, &n);
    if (rc < 0)
        return rc;
    bool index_has = rc == 1;
    if (!index_has) {
        struct packs_pair p = {.packs = &st->packs, .mine = mine};
        rc = packs_list(&st->packs, pack_pair, &p);
        if (rc)
            return rc;
        memcpy(other, p.pair, sizeof other);
    }
    bool known = !pack_is_zero(other, sizeof other);
    if (have && known && memcmp(mine, other, sizeof mine))
        return -ESTALE;
    if (!have || !known) {
        /* One of them is from before there was an id. A new ledger finds nothing here, see pair_before_open(). */
        int match = holds_match(l);
        if (match < 0 && match != -ENODATA)
            return match;
        int index = segment_any(l);
        if (index < 0)
            return index;
        if (match != 1 && (known || (match == 0 && index)))
            return -ESTALE;
    }
    if (!have && known)
        memcpy(mine, other, sizeof mine);
    else if (!have && RAND_bytes(mine, sizeof mine) != 1)
        return -EIO;
    rc = have ? 0 : meta_set(l, S_META_SET, pair_key, mine, sizeof mine);
    if (rc)
        return rc;
    memcpy(st->packs.pair, mine, sizeof mine); /* also where the disk is too full for the index to say so */
    return index_has ? 0 : meta_set(l, S_KV_META_SET, pair_key, mine, sizeof mine);
}
