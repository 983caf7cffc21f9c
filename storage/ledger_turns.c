/* ledger_turns.c - rows of turns: a tree per conversation. Ledger thread only, inside a job.
 *
 * A turn's parent is a turn of the same conversation and owner, so that deleting a conversation never leaves a turn
 * without its past.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "storage/storage_internal.h"

void storage_turn_free(struct storage_turn *t)
{
    if (!t)
        return;
    free(t->public_id);
    free(t->reason);
    free(t->instructions);
    free(t->input);
    free(t->output);
    free(t->detail);
    free(t->tokens);
    *t = (struct storage_turn){0};
}

static int turn_read(sqlite3_stmt *s, bool with_tokens, struct storage_turn *out)
{
    struct storage_turn t = {.id = sqlite3_column_int64(s, 0),
                             .owner = sqlite3_column_int64(s, 1),
                             .conversation = sqlite3_column_int64(s, 2),
                             .parent = sqlite3_column_int64(s, 3),
                             .status = (enum storage_turn_status)sqlite3_column_int(s, 5),
                             .prompt_bytes = (size_t)sqlite3_column_int64(s, 11),
                             .rebased = sqlite3_column_int(s, 12) != 0,
                             .n_tokens = sqlite3_column_int64(s, 13),
                             .created_ms = sqlite3_column_int64(s, 16),
                             .completed_ms = sqlite3_column_int64(s, 17)};
    char **texts[] = {&t.public_id, NULL, &t.reason, &t.instructions, &t.input, &t.output, &t.detail};
    int rc = 0;
    for (int i = 0; i < 7 && !rc; i++)
        if (texts[i])
            rc = column_text(s, 4 + i, texts[i]);
    if (!rc)
        rc = column_bytes(s, 14, t.fingerprint, sizeof t.fingerprint);
    if (!rc)
        rc = column_bytes(s, 15, t.chat_hash, sizeof t.chat_hash);
    if (!rc && with_tokens) {
        const void *tokens = sqlite3_column_blob(s, 18);
        t.tokens_bytes = (size_t)sqlite3_column_bytes(s, 18);
        t.tokens = malloc(t.tokens_bytes ? t.tokens_bytes : 1);
        if (!t.tokens || (!tokens && t.tokens_bytes))
            rc = -ENOMEM;
        else if (t.tokens_bytes)
            memcpy(t.tokens, tokens, t.tokens_bytes);
    }
    if (!rc && with_tokens && t.prompt_bytes > t.tokens_bytes)
        rc = -EBADMSG;
    if (!rc && ((int)t.status < STORAGE_TURN_COMPLETED || (int)t.status > STORAGE_TURN_FAILED || t.n_tokens < 0 ||
                t.n_tokens > INT32_MAX))
        rc = -EBADMSG;
    if (rc)
        storage_turn_free(&t);
    else
        *out = t;
    return rc;
}

static int count_turns(struct storage_ledger *l, int64_t conversation, int change)
{
    int rc;
    sqlite3_stmt *s = stmt_get(l, S_TURN_COUNT, &rc);
    if (!s)
        return rc;
    (void)sqlite3_bind_int64(s, 1, conversation);
    (void)sqlite3_bind_int(s, 2, change);
    return stmt_run(l, s, NULL);
}

int storage_turn_insert(struct storage_ledger *l, struct storage_turn *t)
{
    int rc;
    sqlite3_stmt *s;
    if (t->prompt_bytes > t->tokens_bytes)
        return -EINVAL;
    if (t->parent) {
        s = stmt_get(l, S_TURN_PLACE, &rc);
        if (!s)
            return rc;
        (void)sqlite3_bind_int64(s, 1, t->parent);
        (void)sqlite3_bind_int64(s, 2, t->owner);
        (void)sqlite3_bind_int64(s, 3, t->conversation);
        rc = stmt_step(l, s);
        stmt_reset(s);
        if (rc != 1)
            return rc ? rc : -EINVAL;
    }
    s = stmt_get(l, S_CONV_OWNED, &rc);
    if (!s)
        return rc;
    (void)sqlite3_bind_int64(s, 1, t->conversation);
    (void)sqlite3_bind_int64(s, 2, t->owner);
    rc = stmt_step(l, s);
    stmt_reset(s);
    if (rc != 1)
        return rc ? rc : -ENOENT;
    s = stmt_get(l, S_TURN_INSERT, &rc);
    if (!s)
        return rc;
    (void)sqlite3_bind_int64(s, 1, t->owner);
    (void)sqlite3_bind_int64(s, 2, t->conversation);
    if (t->parent)
        (void)sqlite3_bind_int64(s, 3, t->parent);
    bind_text(s, 4, t->public_id);
    (void)sqlite3_bind_int(s, 5, (int)t->status);
    bind_text(s, 6, t->reason);
    bind_text(s, 7, t->instructions);
    bind_text(s, 8, t->input);
    bind_text(s, 9, t->output);
    bind_text(s, 10, t->detail);
    (void)sqlite3_bind_int64(s, 11, (sqlite3_int64)t->prompt_bytes);
    (void)sqlite3_bind_int(s, 12, t->rebased);
    (void)sqlite3_bind_int64(s, 13, t->n_tokens);
    bind_blob(s, 14, t->fingerprint, sizeof t->fingerprint);
    if (!pack_is_zero(t->chat_hash, sizeof t->chat_hash))
        bind_blob(s, 15, t->chat_hash, sizeof t->chat_hash);
    (void)sqlite3_bind_int64(s, 16, t->created_ms);
    (void)sqlite3_bind_int64(s, 17, t->completed_ms);
    bind_blob(s, 18, t->tokens, t->tokens_bytes);
    rc = stmt_run(l, s, NULL);
    int64_t id = sqlite3_last_insert_rowid(l->db);
    if (!rc)
        rc = count_turns(l, t->conversation, 1);
    if (!rc)
        t->id = id;
    return rc;
}

static int turn_one(struct storage_ledger *l, sqlite3_stmt *s, bool with_tokens, struct storage_turn *out)
{
    int rc = stmt_step(l, s);
    if (rc != 1)
        return rc ? rc : -ENOENT;
    rc = turn_read(s, with_tokens, out);
    stmt_reset(s);
    return rc;
}

int storage_turn_get(struct storage_ledger *l, int64_t owner, const char *public_id, struct storage_turn *out)
{
    int rc;
    sqlite3_stmt *s = stmt_get(l, S_TURN_GET, &rc);
    if (!s)
        return rc;
    bind_text(s, 1, public_id);
    (void)sqlite3_bind_int64(s, 2, owner);
    return turn_one(l, s, true, out);
}

static int turn_by_id(struct storage_ledger *l, int64_t owner, int64_t id, bool with_tokens, struct storage_turn *out)
{
    int rc;
    sqlite3_stmt *s = stmt_get(l, S_TURN_BY_ID, &rc);
    if (!s)
        return rc;
    (void)sqlite3_bind_int64(s, 1, id);
    (void)sqlite3_bind_int64(s, 2, owner);
    return turn_one(l, s, with_tokens, out);
}

int storage_turn_public_id(struct storage_ledger *l, int64_t id, char **out)
{
    int rc;
    sqlite3_stmt *s = stmt_get(l, S_TURN_PUBLIC_ID, &rc);
    if (!s)
        return rc;
    (void)sqlite3_bind_int64(s, 1, id);
    rc = stmt_step(l, s);
    if (rc != 1)
        return rc ? rc : -ENOENT;
    rc = column_text(s, 0, out);
    stmt_reset(s);
    return rc;
}

int storage_turn_set_detail(struct storage_ledger *l, int64_t id, const char *detail)
{
    int rc, changes;
    sqlite3_stmt *s = stmt_get(l, S_TURN_SET_DETAIL, &rc);
    if (!s)
        return rc;
    (void)sqlite3_bind_int64(s, 1, id);
    bind_text(s, 2, detail);
    rc = stmt_run(l, s, &changes);
    return rc ? rc : changes ? 0 : -ENOENT;
}

int storage_turn_path(struct storage_ledger *l, int64_t owner, int64_t turn, bool with_tokens,
                      struct storage_turn **rows, size_t *n)
{
    struct storage_turn *path = NULL;
    size_t found = 0, cap = 0;
    int rc = turn > 0 ? 0 : -ENOENT;
    while (!rc && turn) {
        if (found == cap) {
            size_t more = cap ? cap * 2 : 16;
            struct storage_turn *grown = realloc(path, more * sizeof *grown);
            if (!grown) {
                rc = -ENOMEM;
                break;
            }
            path = grown;
            cap = more;
        }
        rc = turn_by_id(l, owner, turn, with_tokens, &path[found]);
        if (rc == -ENOENT && found)
            rc = -EBADMSG;
        if (rc)
            break;
        int64_t parent = path[found++].parent;
        /* A parent is older than its child: a path that does not descend would never end. */
        if (parent >= turn || parent < 0)
            rc = -EBADMSG;
        turn = parent;
    }
    if (rc) {
        for (size_t i = 0; i < found; i++)
            storage_turn_free(&path[i]);
        free(path);
        return rc;
    }
    for (size_t i = 0; i < found / 2; i++) {
        struct storage_turn t = path[i];
        path[i] = path[found - 1 - i];
        path[found - 1 - i] = t;
    }
    *rows = path;
    *n = found;
    return 0;
}

int storage_turn_match(struct storage_ledger *l, int64_t owner, const uint8_t chat_hash[32],
                       const uint8_t fingerprint[32], int64_t *turn, int64_t *conversation)
{
    int rc;
    sqlite3_stmt *s = stmt_get(l, S_TURN_MATCH, &rc);
    if (!s)
        return rc;
    (void)sqlite3_bind_int64(s, 1, owner);
    bind_blob(s, 2, chat_hash, 32);
    bind_blob(s, 3, fingerprint, 32);
    rc = stmt_step(l, s);
    if (rc != 1)
        return rc ? rc : -ENOENT;
    *turn = sqlite3_column_int64(s, 0);
    *conversation = sqlite3_column_int64(s, 1);
    stmt_reset(s);
    return 0;
}

int storage_turn_is_leaf(struct storage_ledger *l, int64_t id)
{
    int rc;
    sqlite3_stmt *s = stmt_get(l, S_TURN_HAS_CHILD, &rc);
    if (!s)
        return rc;
    (void)sqlite3_bind_int64(s, 1, id);
    rc = stmt_step(l, s);
    stmt_reset(s);
    return rc < 0 ? rc : rc == 0;
}

/* A turn and those before it hold nothing that reaches beyond its end: of their context that is, back to the one that
 * was rendered anew. */
static int holds_within(struct storage_ledger *l, int64_t turn)
{
    int64_t end = -1;
    bool rebased = false;
    int rc = 0;
    while (!rc && turn && !rebased) {
        sqlite3_stmt *s = stmt_get(l, S_TURN_UP, &rc);
        if (!s)
            return rc;
        (void)sqlite3_bind_int64(s, 1, turn);
        rc = stmt_step(l, s);
        if (rc != 1)
            return rc;
        int64_t up = sqlite3_column_int64(s, 0), n_tokens = sqlite3_column_int64(s, 1);
        rebased = sqlite3_column_int64(s, 2) != 0;
        stmt_reset(s);
        end = end < 0 ? n_tokens : end;
        rc = segment_hold_within(l, turn, end);
        turn = up;
    }
    return rc;
}

int storage_turn_delete(struct storage_ledger *l, int64_t owner, const char *public_id)
{
    struct storage_turn t;
    int rc;
    sqlite3_stmt *s = stmt_get(l, S_TURN_GET, &rc);
    if (!s)
        return rc;
    bind_text(s, 1, public_id);
    (void)sqlite3_bind_int64(s, 2, owner);
    rc = turn_one(l, s, false, &t);
    if (rc)
        return rc;
    int64_t id = t.id, parent = t.parent, conversation = t.conversation;
    bool rebased = t.rebased;
    storage_turn_free(&t);
    rc = storage_turn_is_leaf(l, id);
    if (rc <= 0)
        return rc ? rc : -EBUSY;

    uint8_t held[STORAGE_KEY_BYTES] = {0};
    rc = segment_held_by(l, id, held);
    if (rc < 0)
        return rc;

    s = stmt_get(l, S_TURN_DELETE, &rc); /* its hold goes with it */
    if (!s)
        return rc;
    (void)sqlite3_bind_int64(s, 1, id);
    rc = stmt_run(l, s, NULL);
    if (rc)
        return rc;
    s = stmt_get(l, S_HEAD_MOVE, &rc);
    if (!s)
        return rc;
    (void)sqlite3_bind_int64(s, 1, conversation);
    (void)sqlite3_bind_int64(s, 2, parent);
    (void)sqlite3_bind_int64(s, 3, id);
    rc = stmt_run(l, s, NULL);
    if (rc)
        return rc;
    rc = count_turns(l, conversation, -1);
    if (!rc)
        rc = ledger_dead_turn(l, id);
    if (!rc && !rebased)
        rc = holds_within(l, parent);
    if (!rc)
        rc = segment_release(l, held);
    return rc ? rc : erase_mark(l, owner, public_id);
}
