/* ledger.c - rows of owners and conversations. Ledger thread only, inside a job.
 *
 * A row is visible to its owner only: every query names the owner, and another owner's row is the same as none.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/rand.h>

#include "storage/storage_internal.h"

int storage_owner_get(struct storage_ledger *l, const char *name, struct storage_owner *out)
{
    struct storage_owner o = {0};
    sqlite3_stmt *s = stmt_get(l, S_OWNER_BY_NAME);
    bind_text(s, 1, name);
    int rc = stmt_step(l, s);
    if (rc < 0)
        return rc;
    if (rc == 1) {
        o.id = sqlite3_column_int64(s, 0);
        rc = column_bytes(s, 1, o.key, sizeof o.key);
        stmt_reset(s);
    } else {
        /* An id that was never given before, even by a ledger that this one is an older copy of: segments that are
         * left of that one's owners must not meet a new owner. */
        uint64_t random;
        if (RAND_bytes(o.key, sizeof o.key) != 1 || RAND_bytes((unsigned char *)&random, sizeof random) != 1)
            return -EIO;
        o.id = (int64_t)(random >> 16) + 1;
        s = stmt_get(l, S_OWNER_INSERT);
        bind_text(s, 1, name);
        bind_blob(s, 2, o.key, sizeof o.key);
        (void)sqlite3_bind_int64(s, 3, o.id);
        rc = stmt_run(l, s, NULL);
    }
    if (!rc)
        *out = o;
    return rc;
}

static int owner_rename(struct storage_ledger *l, const char *from, const char *to)
{
    int rc, changed = 0;
    sqlite3_stmt *s = stmt_get(l, S_OWNER_BY_NAME);
    bind_text(s, 1, from);
    rc = stmt_step(l, s);
    if (rc == 1)
        stmt_reset(s);
    if (rc != 1)
        return rc < 0 ? rc : -ENOENT;
    s = stmt_get(l, S_OWNER_DROP_EMPTY);
    bind_text(s, 1, to);
    rc = stmt_run(l, s, &changed);
    if (rc)
        return rc;
    s = stmt_get(l, S_OWNER_BY_NAME);
    bind_text(s, 1, to);
    rc = stmt_step(l, s);
    if (rc == 1)
        stmt_reset(s);
    if (rc)
        return rc < 0 ? rc : -EEXIST;
    s = stmt_get(l, S_OWNER_RENAME);
    bind_text(s, 1, from);
    bind_text(s, 2, to);
    return stmt_run(l, s, &changed);
}

int storage_owner_rename(struct storage_ledger *l, const char *from, const char *to, const char *why, int *outcome)
{
    char key[48], value;
    size_t n = 0;
    (void)snprintf(key, sizeof key, "inherited/%.31s", why);
    int rc = meta_get(l, S_META_GET, key, &value, sizeof value, &n);
    if (rc)
        return rc;
    rc = owner_rename(l, from, to);
    if (rc && rc != -ENOENT && rc != -EEXIST)
        return rc;
    *outcome = rc;
    return meta_set(l, S_META_SET, key, "1", 1);
}

void storage_conversation_free(struct storage_conversation *c)
{
    if (!c)
        return;
    free(c->public_id);
    free(c->title);
    free(c->metadata);
    free(c->instructions);
    *c = (struct storage_conversation){0};
}

static int conversation_read(sqlite3_stmt *s, struct storage_conversation *out)
{
    struct storage_conversation c = {.id = sqlite3_column_int64(s, 0),
                                     .owner = sqlite3_column_int64(s, 1),
                                     .kind = (enum storage_conversation_kind)sqlite3_column_int(s, 3),
                                     .head = sqlite3_column_int64(s, 7),
                                     .created_ms = sqlite3_column_int64(s, 8),
                                     .updated_ms = sqlite3_column_int64(s, 9),
                                     .n_turns = sqlite3_column_int64(s, 10),
                                     .n_tokens = sqlite3_column_int64(s, 11)};
    int rc = column_text(s, 2, &c.public_id);
    if (!rc)
        rc = column_text(s, 4, &c.title);
    if (!rc)
        rc = column_text(s, 5, &c.metadata);
    if (!rc)
        rc = column_text(s, 6, &c.instructions);
    if (rc)
        storage_conversation_free(&c);
    else
        *out = c;
    return rc;
}

/* Steps a query for one conversation. */
static int conversation_one(struct storage_ledger *l, sqlite3_stmt *s, struct storage_conversation *out)
{
    int rc = stmt_row(l, s);
    if (rc)
        return rc;
    rc = conversation_read(s, out);
    stmt_reset(s);
    return rc;
}

int storage_conversation_get(struct storage_ledger *l, int64_t owner, const char *public_id,
                             struct storage_conversation *out)
{
    sqlite3_stmt *s = stmt_get(l, S_CONV_GET);
    bind_text(s, 1, public_id);
    (void)sqlite3_bind_int64(s, 2, owner);
    return conversation_one(l, s, out);
}

int storage_conversation_by_id(struct storage_ledger *l, int64_t owner, int64_t id, struct storage_conversation *out)
{
    sqlite3_stmt *s = stmt_get(l, S_CONV_BY_ID);
    (void)sqlite3_bind_int64(s, 1, id);
    (void)sqlite3_bind_int64(s, 2, owner);
    return conversation_one(l, s, out);
}

int storage_conversation_insert(struct storage_ledger *l, struct storage_conversation *c)
{
    sqlite3_stmt *s = stmt_get(l, S_CONV_INSERT);
    (void)sqlite3_bind_int64(s, 1, c->owner);
    bind_text(s, 2, c->public_id);
    (void)sqlite3_bind_int(s, 3, (int)c->kind);
    bind_text(s, 4, c->title);
    bind_text(s, 5, c->metadata);
    bind_text(s, 6, c->instructions);
    (void)sqlite3_bind_int64(s, 7, c->head);
    (void)sqlite3_bind_int64(s, 8, c->created_ms);
    (void)sqlite3_bind_int64(s, 9, c->updated_ms);
    int rc = stmt_run(l, s, NULL);
    if (!rc)
        c->id = sqlite3_last_insert_rowid(l->db);
    if (!rc && c->kind == STORAGE_CONVERSATION_LISTED)
        titles_note(l, c->owner, c->id, c->title);
    return rc;
}

int storage_conversation_update(struct storage_ledger *l, const struct storage_conversation *c)
{
    int rc, changes;
    sqlite3_stmt *s = stmt_get(l, S_CONV_UPDATE);
    (void)sqlite3_bind_int64(s, 1, c->id);
    bind_text(s, 2, c->title);
    bind_text(s, 3, c->metadata);
    bind_text(s, 4, c->instructions);
    (void)sqlite3_bind_int64(s, 5, c->updated_ms);
    (void)sqlite3_bind_int64(s, 6, c->head);
    rc = stmt_run(l, s, &changes);
    if (rc || !changes)
        return rc ? rc : -ENOENT;
    titles_note(l, c->owner, c->id, c->title);
    return 0;
}

int storage_conversation_runs(struct storage_ledger *l, int64_t id)
{
    return stmt_any(l, STMT_WITH(l, S_CONV_RUNS, id));
}

int storage_conversation_deepest(struct storage_ledger *l, int64_t id, int64_t *turn, int64_t *depth)
{
    sqlite3_stmt *s = STMT_WITH(l, S_CONV_DEEPEST, id);
    int rc = stmt_row(l, s);
    if (!rc) {
        *turn = sqlite3_column_int64(s, 0);
        *depth = sqlite3_column_int64(s, 1);
        stmt_reset(s);
    }
    return rc;
}

int ledger_dead_turn(struct storage_ledger *l, int64_t turn)
{
    if (l->n_dead_turns == l->cap_dead_turns) {
        size_t cap = l->cap_dead_turns ? l->cap_dead_turns * 2 : 64;
        int64_t *grown = realloc(l->dead_turns, cap * sizeof *grown);
        if (!grown)
            return -ENOMEM;
        l->dead_turns = grown;
        l->cap_dead_turns = cap;
    }
    l->dead_turns[l->n_dead_turns++] = turn;
    return 0;
}

int keys_add(struct key_list *keys, const uint8_t key[STORAGE_KEY_BYTES])
{
    if (keys->n == keys->cap) {
        size_t cap = keys->cap ? keys->cap * 2 : 64;
        uint8_t(*grown)[STORAGE_KEY_BYTES] = realloc(keys->keys, cap * sizeof *grown);
        if (!grown)
            return -ENOMEM;
        keys->keys = grown;
        keys->cap = cap;
    }
    memcpy(keys->keys[keys->n++], key, STORAGE_KEY_BYTES);
    return 0;
}

/* Collects the keys that the conversation's turns hold. */
static int holds_of(struct storage_ledger *l, int64_t conversation, struct key_list *keys)
{
    int rc;
    sqlite3_stmt *s = STMT_WITH(l, S_HOLDS_OF, conversation);
    while ((rc = stmt_step(l, s)) == 1) {
        uint8_t key[STORAGE_KEY_BYTES];
        rc = column_bytes(s, 0, key, sizeof key);
        if (rc || (rc = keys_add(keys, key)))
            break;
    }
    stmt_reset(s);
    return rc;
}

int storage_conversation_delete(struct storage_ledger *l, int64_t owner, const char *public_id)
{
    struct storage_conversation c;
    int rc = storage_conversation_get(l, owner, public_id, &c);
    if (rc)
        return rc;
    int64_t id = c.id;
    storage_conversation_free(&c);

    struct key_list keys = {0};
    rc = holds_of(l, id, &keys);
    if (!rc && l->unread)
        rc = turns_before_gaps(l, owner, id, &keys);
    sqlite3_stmt *s = rc ? NULL : STMT_WITH(l, S_TURNS_OF, id);
    while (!rc && (rc = stmt_step(l, s)) == 1) {
        rc = ledger_dead_turn(l, sqlite3_column_int64(s, 0));
        if (rc)
            break;
    }
    stmt_reset(s);
    if (!rc)
        rc = stmt_run(l, STMT_WITH(l, S_CONV_DELETE, id), NULL);
    for (size_t i = 0; i < keys.n && !rc; i++)
        rc = segment_release(l, keys.keys[i]);
    free(keys.keys);
    titles_forget(l, owner, id);
    if (!rc)
        rc = segment_let_go(l);
    return rc ? rc : erase_mark(l, owner, public_id);
}

int storage_conversation_cursor(struct storage_ledger *l, int64_t owner, const char *after, struct storage_cursor *out)
{
    *out = (struct storage_cursor){INT64_MAX, INT64_MAX};
    if (!after)
        return 0;
    sqlite3_stmt *s = stmt_get(l, S_CONV_CURSOR);
    bind_text(s, 1, after);
    (void)sqlite3_bind_int64(s, 2, owner);
    int rc = stmt_row(l, s);
    if (rc)
        return rc;
    *out = (struct storage_cursor){sqlite3_column_int64(s, 0), sqlite3_column_int64(s, 1)};
    stmt_reset(s);
    return 0;
}

static void rows_free(struct storage_conversation *rows, size_t n)
{
    for (size_t i = 0; i < n; i++)
        storage_conversation_free(&rows[i]);
}

static size_t length(const char *text)
{
    return text ? strlen(text) : 0;
}

size_t storage_conversation_bytes(const struct storage_conversation *c)
{
    return length(c->title) + length(c->metadata) + length(c->instructions);
}

int storage_conversation_list(struct storage_ledger *l, int64_t owner, struct storage_cursor at,
                              struct storage_conversation *rows, size_t max, size_t *n)
{
    size_t found = 0, bytes = 0;
    int rc = 0;
    sqlite3_stmt *s =
        STMT_WITH(l, S_CONV_LIST, owner, at.updated_ms, at.id, max > INT32_MAX ? INT32_MAX : (int64_t)max);
    while (found < max && bytes < STORAGE_LIST_BYTES && (rc = stmt_step(l, s)) == 1) {
        rc = conversation_read(s, &rows[found]);
        if (rc)
            break;
        bytes += storage_conversation_bytes(&rows[found++]);
    }
    stmt_reset(s);
    if (rc < 0) {
        rows_free(rows, found);
        return rc;
    }
    *n = found;
    return 0;
}
