/* ledger_keys.c - keys of requests, so that one that is sent again does not do its work again. Ledger thread only,
 * inside a job.
 *
 * A key is kept for a time that only passes while a daemon has the ledger open: who sends again after an hour in which
 * the machine was off is not late. That clock is not written down by itself. It goes on from the latest time that a
 * key or a turn was stamped with, so that an unclean end makes keys live a little longer and never shorter. The wall
 * clock has no part in it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "storage/storage_internal.h"

int64_t ledger_clock_ms(const struct storage_ledger *l)
{
    return l->clock_base_ms + monotonic_ms() - l->clock_start_ms;
}

int ledger_clock_start(struct storage_ledger *l)
{
    int rc;
    sqlite3_stmt *s = stmt_get(l, S_TURN_CLOCK);
    if ((rc = stmt_step(l, s)) < 0)
        return rc;
    if (rc == 1) {
        l->clock_base_ms = sqlite3_column_int64(s, 0);
        stmt_reset(s);
    }
    l->clock_start_ms = monotonic_ms();
    return 0;
}

int storage_key_get(struct storage_ledger *l, int64_t owner, const uint8_t key[STORAGE_DIGEST_BYTES],
                    const uint8_t digest[STORAGE_DIGEST_BYTES], char **target)
{
    uint8_t stored[STORAGE_DIGEST_BYTES];
    sqlite3_stmt *s = STMT_WITH(l, S_KEY_GET, owner);
    bind_blob(s, 2, key, STORAGE_DIGEST_BYTES);
    (void)sqlite3_bind_int64(s, 3, ledger_clock_ms(l) - STORAGE_KEY_KEPT_MS);
    int rc = stmt_row(l, s);
    if (rc)
        return rc;
    rc = column_bytes(s, 0, stored, sizeof stored);
    if (!rc && memcmp(stored, digest, sizeof stored) != 0)
        rc = -EINVAL;
    if (!rc)
        rc = column_text(s, 1, target);
    stmt_reset(s);
    return rc;
}

int storage_key_drop(struct storage_ledger *l, int64_t owner, const char *target)
{
    sqlite3_stmt *s = STMT_WITH(l, S_KEYS_DROP, owner);
    bind_text(s, 2, target);
    return stmt_run(l, s, NULL);
}

int storage_key_set(struct storage_ledger *l, int64_t owner, const uint8_t key[STORAGE_DIGEST_BYTES],
                    const uint8_t digest[STORAGE_DIGEST_BYTES], const char *target)
{
    int64_t now = ledger_clock_ms(l);
    int rc, changes;
    sqlite3_stmt *s = STMT_WITH(l, S_KEYS_EXPIRE, now - STORAGE_KEY_KEPT_MS);
    if ((rc = stmt_run(l, s, NULL)))
        return rc;
    s = STMT_WITH(l, S_KEY_SET, owner);
    bind_blob(s, 2, key, STORAGE_DIGEST_BYTES);
    bind_blob(s, 3, digest, STORAGE_DIGEST_BYTES);
    bind_text(s, 4, target);
    (void)sqlite3_bind_int64(s, 5, now);
    if ((rc = stmt_run(l, s, &changes)))
        return rc;
    if (!changes)
        return -EKEYREJECTED;
    s = STMT_WITH(l, S_KEYS_FULL, owner, STORAGE_KEYS_PER_OWNER);
    rc = stmt_step(l, s);
    if (rc == 1) {
        stmt_reset(s);
        rc = -EUSERS; /* what this job wrote goes with its failure */
    }
    return rc;
}
