/* limits.c - what owners may have, and what they have.
 *
 * The ledger counts for itself: triggers keep the sums of every owner as rows come and go (schema.c), so that to look
 * at them takes the same time however much there is. Who has as many conversations or bytes as it may is refused by
 * the session, before any work; KV is a cache, and what is too much of it gives way.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "storage/storage_internal.h"

static void rows_free(struct storage_owner_limits *rows, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free((char *)rows[i].owner);
    free(rows);
}

void limits_free(struct storage *st)
{
    rows_free(st->owner_limits, st->n_owner_limits);
    st->owner_limits = NULL;
    st->n_owner_limits = 0;
}

int storage_limits_set(struct storage *st, const struct storage_limits *everyone,
                       const struct storage_owner_limits *rows, size_t n)
{
    struct storage_owner_limits *copy = calloc(n ? n : 1, sizeof *copy);
    if (!copy)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        copy[i] = rows[i];
        copy[i].owner = strdup(rows[i].owner);
        if (!copy[i].owner) {
            rows_free(copy, i);
            return -ENOMEM;
        }
    }
    pthread_mutex_lock(&st->limits_lock);
    limits_free(st);
    st->limits = *everyone;
    st->owner_limits = copy;
    st->n_owner_limits = n;
    pthread_mutex_unlock(&st->limits_lock);
    return 0;
}

struct storage_limits storage_limits_of(struct storage *st, const char *owner)
{
    pthread_mutex_lock(&st->limits_lock);
    struct storage_limits limits = st->limits;
    for (size_t i = 0; i < st->n_owner_limits; i++) {
        size_t len = strlen(st->owner_limits[i].owner);
        if (!strncmp(st->owner_limits[i].owner, owner, len) && (!owner[len] || owner[len] == '/')) {
            limits = st->owner_limits[i].limits;
            break;
        }
    }
    pthread_mutex_unlock(&st->limits_lock);
    return limits;
}

bool storage_limits_retain(struct storage *st)
{
    pthread_mutex_lock(&st->limits_lock);
    bool any = st->limits.retain_ms != 0;
    for (size_t i = 0; i < st->n_owner_limits; i++)
        any |= st->owner_limits[i].limits.retain_ms != 0;
    pthread_mutex_unlock(&st->limits_lock);
    return any;
}

static int disk_usage(struct storage_ledger *l, int64_t owner, uint64_t *bytes)
{
    sqlite3_stmt *s = STMT_WITH(l, S_SPACES_USE, owner);
    int rc = stmt_step(l, s);
    if (rc != 1)
        return rc;
    *bytes = (uint64_t)sqlite3_column_int64(s, 0);
    stmt_reset(s);
    return 0;
}

int storage_usage(struct storage_ledger *l, int64_t owner, struct storage_usage *out)
{
    struct storage_usage u = {0};
    sqlite3_stmt *s = STMT_WITH(l, S_OWNER_USES, owner);
    int rc = stmt_row(l, s);
    if (rc)
        return rc;
    u.conversations = (uint64_t)sqlite3_column_int64(s, 0);
    u.ledger_bytes = (uint64_t)sqlite3_column_int64(s, 1);
    stmt_reset(s);
    u.ram_bytes = ram_used_by(&l->st->ram, owner);
    rc = disk_usage(l, owner, &u.disk_bytes);
    if (!rc)
        *out = u;
    return rc;
}

int limits_keep(struct storage_ledger *l, int64_t owner, const uint8_t (*keep)[STORAGE_KEY_BYTES], size_t n_keep,
                uint64_t *ram)
{
    char *name = NULL;
    uint64_t used = 0;
    int rc;
    sqlite3_stmt *s = STMT_WITH(l, S_OWNER_NAME, owner);
    if ((rc = stmt_text(l, s, &name)))
        return rc == -ENOENT ? 0 : rc;
    struct storage_limits limits = storage_limits_of(l->st, name);
    uint64_t most = limits.disk_bytes;
    *ram = limits.ram_bytes;
    free(name);
    rc = most ? disk_usage(l, owner, &used) : 0;
    return rc || used <= most ? rc : segment_evict_of(l, owner, used - most, keep, n_keep);
}

/* The conversation of an owner that was used last longest ago, if that was before `before_ms`. */
static int oldest(struct storage_ledger *l, int64_t owner, int64_t before_ms, char **public_id)
{
    sqlite3_stmt *s = STMT_WITH(l, S_CONV_OLDEST, owner, before_ms);
    return stmt_text(l, s, public_id);
}

int storage_conversation_expired(struct storage_ledger *l, int64_t now_ms, char **owner, char **public_id)
{
    int rc, found = -ENOENT, n = 0;
    int64_t id = l->expired_owner;
    sqlite3_stmt *s = STMT_WITH(l, S_OWNERS_AFTER, id, STORAGE_EXPIRED_OWNERS);
    for (; found == -ENOENT && (rc = stmt_step(l, s)) == 1; n++) {
        const char *name = (const char *)sqlite3_column_text(s, 1);
        int64_t retain_ms = name ? storage_limits_of(l->st, name).retain_ms : 0;
        l->expired_owner = id; /* one that has any is looked at again: there may be more */
        id = sqlite3_column_int64(s, 0);
        if (retain_ms)
            found = oldest(l, id, now_ms - retain_ms, public_id);
        if (!found)
            found = column_text(s, 1, owner);
    }
    stmt_reset(s);
    if (rc < 0)
        return rc;
    if (found == -ENOENT) {
        l->expired_owner = n == STORAGE_EXPIRED_OWNERS ? id : 0;
        found = l->expired_owner ? -EAGAIN : -ENOENT;
    }
    return found;
}

int storage_conversations_younger(struct storage_ledger *l, int64_t from_ms, int64_t to_ms, int64_t by_ms)
{
    return stmt_run(l, STMT_WITH(l, S_CONVS_YOUNGER, from_ms, to_ms, by_ms), NULL);
}
