/* ledger_turns.c - rows of turns: a tree per conversation. Ledger thread only, inside a job.
 *
 * A turn's parent is a turn of the same conversation and owner, so that deleting a conversation never leaves a turn
 * without its past. What can be a parent has ended well: turns that wait, run or failed are leaves, and on no path.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "storage/storage_internal.h"

void storage_turn_free(struct storage_turn *t)
{
    if (!t)
        return;
    char *texts[] = {t->public_id, t->reason, t->instructions, t->kv, t->params, t->receipt, t->request};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        free(texts[i]);
    free(t->tokens);
    storage_items_free(t->items, t->n_items);
    *t = (struct storage_turn){0};
}

void storage_turns_free(struct storage_turn *rows, size_t n)
{
    for (size_t i = 0; i < n; i++)
        storage_turn_free(&rows[i]);
    free(rows);
}

/* In the column `rebased`. */
enum { CONTEXT_ADDED, CONTEXT_ANEW, CONTEXT_UNSTORED };

static int context_column(const struct storage_turn *t)
{
    return t->unstored ? CONTEXT_UNSTORED : t->rebased ? CONTEXT_ANEW : CONTEXT_ADDED;
}

/* The order is that of TURN_COLUMNS. */
static int turn_read(struct storage_ledger *l, sqlite3_stmt *s, struct storage_turn *out)
{
    struct storage_turn t = {.id = sqlite3_column_int64(s, 0),
                             .owner = sqlite3_column_int64(s, 1),
                             .conversation = sqlite3_column_int64(s, 2),
                             .parent = sqlite3_column_int64(s, 3),
                             .status = (enum storage_turn_status)sqlite3_column_int(s, 11),
                             .saved = (enum storage_saved)sqlite3_column_int(s, 12),
                             .prompt_bytes = (size_t)sqlite3_column_int64(s, 13),
                             .rebased = sqlite3_column_int(s, 14) != CONTEXT_ADDED,
                             .unstored = sqlite3_column_int(s, 14) == CONTEXT_UNSTORED,
                             .n_tokens = sqlite3_column_int64(s, 15),
                             .created_ms = sqlite3_column_int64(s, 16),
                             .completed_ms = sqlite3_column_int64(s, 17),
                             .depth = sqlite3_column_int(s, 18),
                             .answered = sqlite3_column_int(s, 19) != 0,
                             .delivered = sqlite3_column_int(s, 20) != 0,
                             .age_ms = ledger_clock_ms(l) - sqlite3_column_int64(s, 21),
                             .input_tokens = sqlite3_column_int(s, 22),
                             .cached_tokens = sqlite3_column_int(s, 23),
                             .output_tokens = sqlite3_column_int(s, 24),
                             .evaluated = sqlite3_column_int64(s, 25),
                             .base = sqlite3_column_int64(s, 26),
                             .strips = sqlite3_column_int64(s, 27)};
    char **const texts[] = {&t.public_id, &t.reason, &t.instructions, &t.kv, &t.params, &t.receipt, &t.request};
    int rc = 0;
    for (size_t i = 0; i < sizeof texts / sizeof *texts && !rc; i++)
        rc = column_text(s, 4 + (int)i, texts[i]);
    if (!rc)
        rc = column_bytes(s, 28, t.fingerprint, sizeof t.fingerprint);
    if (!rc)
        rc = column_bytes(s, 29, t.chat_hash, sizeof t.chat_hash);
    if (!rc && ((int)t.status < STORAGE_TURN_COMPLETED || (int)t.status > STORAGE_TURN_QUEUED || t.n_tokens < 0 ||
                t.n_tokens > INT32_MAX || (int)t.saved < 0 || (int)t.saved > STORAGE_SAVED_FAILED))
        rc = -EBADMSG;
    if (rc)
        storage_turn_free(&t);
    else
        *out = t;
    return rc;
}

/* Reads what is wanted beside the row. Frees t where that fails. */
static int turn_parts(struct storage_ledger *l, unsigned parts, struct storage_turn *t)
{
    int rc = 0;
    if (parts & STORAGE_TURN_TOKENS) {
        sqlite3_stmt *s = STMT_WITH(l, S_TOKENS_GET, t->id);
        rc = stmt_step(l, s);
        if (rc == 1) {
            rc = column_copy(s, 0, &t->tokens, &t->tokens_bytes);
            stmt_reset(s);
        }
        if (!rc && t->prompt_bytes > t->tokens_bytes)
            rc = -EBADMSG;
    }
    if (!rc && parts & STORAGE_TURN_ITEMS)
        rc = items_of(l, t->id, &t->items, &t->n_items);
    if (rc)
        storage_turn_free(t);
    return rc;
}

/* The one row of a query. */
static int turn_one(struct storage_ledger *l, sqlite3_stmt *s, unsigned parts, struct storage_turn *out)
{
    int rc = stmt_row(l, s);
    if (rc)
        return rc;
    rc = turn_read(l, s, out);
    stmt_reset(s);
    return rc ? rc : turn_parts(l, parts, out);
}

int storage_turn_get(struct storage_ledger *l, int64_t owner, const char *public_id, unsigned parts,
                     struct storage_turn *out)
{
    sqlite3_stmt *s = stmt_get(l, S_TURN_GET);
    bind_text(s, 1, public_id);
    (void)sqlite3_bind_int64(s, 2, owner);
    return turn_one(l, s, parts, out);
}

int storage_turn_by_id(struct storage_ledger *l, int64_t owner, int64_t id, unsigned parts, struct storage_turn *out)
{
    sqlite3_stmt *s = STMT_WITH(l, S_TURN_BY_ID, id, owner);
    return turn_one(l, s, parts, out);
}

int storage_turn_by_digest(struct storage_ledger *l, int64_t owner, const uint8_t digest[STORAGE_DIGEST_BYTES],
                           int64_t before, struct storage_turn *out)
{
    sqlite3_stmt *s = STMT_WITH(l, S_TURN_BY_DIGEST, owner, 0, before);
    bind_blob(s, 2, digest, STORAGE_DIGEST_BYTES);
    return turn_one(l, s, 0, out);
}

int storage_turn_stripped(struct storage_ledger *l, int64_t owner, int64_t turn, struct storage_turn *out)
{
    sqlite3_stmt *s = STMT_WITH(l, S_STRIPPED_GET, turn, owner);
    return turn_one(l, s, 0, out);
}

int storage_turn_public_id(struct storage_ledger *l, int64_t id, char **out)
{
    sqlite3_stmt *s = STMT_WITH(l, S_TURN_PUBLIC_ID, id);
    return stmt_text(l, s, out);
}

int64_t storage_turn_base(const struct storage_turn *t)
{
    return t->base ? t->base : t->parent;
}

int storage_turn_parent(struct storage_ledger *l, int64_t owner, int64_t id, int64_t *parent, bool *rebased)
{
    sqlite3_stmt *s = STMT_WITH(l, S_TURN_PARENT, id, owner);
    int rc = stmt_row(l, s);
    if (rc)
        return rc;
    *parent = sqlite3_column_int64(s, 0);
    *rebased = sqlite3_column_int(s, 1) != 0;
    stmt_reset(s);
    return 0;
}

/* ---- a turn's life ---- */

int storage_turn_insert(struct storage_ledger *l, struct storage_turn *t)
{
    int rc, depth = 1;
    sqlite3_stmt *s;
    if (t->status != STORAGE_TURN_RUNNING && t->status != STORAGE_TURN_QUEUED)
        return -EINVAL;
    if (t->parent) {
        s = STMT_WITH(l, S_TURN_PLACE, t->parent, t->owner, t->conversation);
        rc = stmt_row(l, s);
        if (rc)
            return rc;
        depth = sqlite3_column_int(s, 0) + 1;
        stmt_reset(s);
    }
    s = STMT_WITH(l, S_CONV_OWNED, t->conversation, t->owner);
    rc = stmt_row(l, s);
    if (rc)
        return rc;
    stmt_reset(s);
    s = STMT_WITH(l, S_TURN_INSERT, t->owner, t->conversation);
    if (t->parent)
        (void)sqlite3_bind_int64(s, 3, t->parent);
    bind_text(s, 4, t->public_id);
    (void)sqlite3_bind_int(s, 5, (int)t->status);
    bind_text(s, 6, t->instructions);
    bind_blob(s, 7, t->fingerprint, sizeof t->fingerprint);
    (void)sqlite3_bind_int64(s, 8, t->created_ms);
    (void)sqlite3_bind_int(s, 9, depth);
    (void)sqlite3_bind_int64(s, 10, ledger_clock_ms(l));
    if (!pack_is_zero(t->digest, sizeof t->digest))
        bind_blob(s, 11, t->digest, sizeof t->digest);
    bind_text(s, 12, t->params);
    bind_text(s, 13, t->request);
    (void)sqlite3_bind_int(s, 14, context_column(t));
    rc = stmt_run(l, s, NULL);
    int64_t id = sqlite3_last_insert_rowid(l->db);
    if (!rc)
        rc = items_insert(l, id, t->items, t->n_items);
    if (!rc)
        t->id = id;
    return rc;
}

/* Runs a statement that changes one row. -ENOENT: it changed none. */
static int change_one(struct storage_ledger *l, sqlite3_stmt *s)
{
    int changes = 0, rc = stmt_run(l, s, &changes);
    return rc ? rc : changes ? 0 : -ENOENT;
}

int storage_turn_run(struct storage_ledger *l, int64_t id)
{
    sqlite3_stmt *s = STMT_WITH(l, S_TURN_RUN, id);
    return change_one(l, s);
}

static int tokens_set(struct storage_ledger *l, const struct storage_turn *t)
{
    sqlite3_stmt *s = STMT_WITH(l, S_TOKENS_SET, t->id);
    bind_blob(s, 2, t->tokens, t->tokens_bytes);
    return stmt_run(l, s, NULL);
}

int storage_turn_strip(struct storage_ledger *l, struct storage_turn *t)
{
    sqlite3_stmt *s = STMT_WITH(l, S_STRIPPED_INSERT, t->strips, t->owner);
    bind_text(s, 3, t->public_id);
    (void)sqlite3_bind_int(s, 4, t->rebased);
    (void)sqlite3_bind_int64(s, 5, t->n_tokens);
    bind_blob(s, 6, t->fingerprint, sizeof t->fingerprint);
    (void)sqlite3_bind_int64(s, 7, t->completed_ms);
    (void)sqlite3_bind_int64(s, 8, ledger_clock_ms(l));
    (void)sqlite3_bind_int(s, 9, (int)t->saved);
    (void)sqlite3_bind_int64(s, 10, t->evaluated);
    bind_text(s, 11, t->kv);
    (void)sqlite3_bind_int64(s, 12, t->base);
    int rc = change_one(l, s);
    if (rc)
        return rc;
    t->id = sqlite3_last_insert_rowid(l->db);
    return tokens_set(l, t);
}

int storage_turn_commit(struct storage_ledger *l, struct storage_turn *t)
{
    int rc;
    if (t->prompt_bytes > t->tokens_bytes ||
        (t->status != STORAGE_TURN_COMPLETED && t->status != STORAGE_TURN_INCOMPLETE))
        return -EINVAL;
    sqlite3_stmt *s = STMT_WITH(l, S_TURN_COMMIT, t->id, (int64_t)t->status);
    bind_text(s, 3, t->reason);
    (void)sqlite3_bind_int64(s, 4, (sqlite3_int64)t->prompt_bytes);
    (void)sqlite3_bind_int(s, 5, context_column(t));
    (void)sqlite3_bind_int64(s, 6, t->n_tokens);
    bind_blob(s, 7, t->fingerprint, sizeof t->fingerprint);
    if (!pack_is_zero(t->chat_hash, sizeof t->chat_hash))
        bind_blob(s, 8, t->chat_hash, sizeof t->chat_hash);
    (void)sqlite3_bind_int64(s, 9, t->completed_ms);
    (void)sqlite3_bind_int(s, 10, t->answered);
    (void)sqlite3_bind_int(s, 11, (int)t->saved);
    (void)sqlite3_bind_int(s, 12, t->input_tokens);
    (void)sqlite3_bind_int(s, 13, t->cached_tokens);
    (void)sqlite3_bind_int(s, 14, t->output_tokens);
    (void)sqlite3_bind_int64(s, 15, t->evaluated);
    bind_text(s, 16, t->kv);
    bind_text(s, 17, t->receipt);
    (void)sqlite3_bind_int64(s, 18, t->base);
    rc = stmt_row(l, s);
    if (rc)
        return rc;
    t->conversation = sqlite3_column_int64(s, 0);
    stmt_reset(s);
    if ((rc = tokens_set(l, t)) || (rc = items_insert(l, t->id, t->items, t->n_items)))
        return rc;
    s = STMT_WITH(l, S_CONV_ADVANCE, t->conversation, t->id, t->completed_ms);
    return change_one(l, s);
}

int storage_turn_fail(struct storage_ledger *l, int64_t id, const char *reason, int64_t completed_ms)
{
    sqlite3_stmt *s = STMT_WITH(l, S_TURN_FAIL, id, 0, completed_ms);
    bind_text(s, 2, reason);
    return change_one(l, s);
}

int storage_turn_set_saved(struct storage_ledger *l, int64_t id, enum storage_saved saved)
{
    sqlite3_stmt *s = STMT_WITH(l, S_TURN_SET_SAVED, id, (int64_t)saved);
    return change_one(l, s);
}

int storage_turn_set_delivered(struct storage_ledger *l, int64_t owner, const char *public_id)
{
    sqlite3_stmt *s = stmt_get(l, S_TURN_DELIVERED);
    bind_text(s, 1, public_id);
    (void)sqlite3_bind_int64(s, 2, owner);
    return change_one(l, s);
}

int turns_interrupted(struct storage_ledger *l, int64_t now_ms)
{
    int rc;
    sqlite3_stmt *s = STMT_WITH(l, S_TURNS_INTERRUPTED, now_ms);
    if ((rc = stmt_run(l, s, NULL)))
        return rc;
    s = stmt_get(l, S_TURN_LATEST);
    rc = stmt_step(l, s);
    l->pending_last = rc == 1 ? sqlite3_column_int64(s, 0) : 0;
    stmt_reset(s);
    return rc < 0 ? rc : l->unread ? 0 : turns_pending_over(l, l->pending_last);
}

int storage_turn_queued(struct storage_ledger *l, int64_t after, int64_t *id, char **owner, char **public_id,
                        char **request)
{
    sqlite3_stmt *s = STMT_WITH(l, S_TURN_QUEUED, after);
    int rc = stmt_row(l, s);
    if (rc)
        return rc;
    *id = sqlite3_column_int64(s, 0);
    char **const texts[] = {owner, public_id, request};
    rc = 0;
    for (int i = 0; i < 3; i++) {
        int one = column_text(s, 1 + i, texts[i]);
        rc = rc ? rc : one;
    }
    stmt_reset(s);
    if (!rc && (!*owner || !*public_id || !*request))
        rc = -EBADMSG;
    for (int i = 0; i < 3 && rc; i++) {
        free(*texts[i]);
        *texts[i] = NULL;
    }
    return rc;
}

/* ---- chains of turns ---- */

int storage_turn_path(struct storage_ledger *l, int64_t owner, int64_t turn, unsigned parts, struct storage_turn **rows,
                      size_t *n)
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
        rc = storage_turn_by_id(l, owner, turn, parts, &path[found]);
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
        storage_turns_free(path, found);
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

int storage_turn_context(struct storage_ledger *l, int64_t owner, int64_t turn, void **tokens, size_t *bytes)
{
    sqlite3_stmt *s = STMT_WITH(l, S_TOKENS_UP, turn, owner);
    int rc = stmt_row(l, s);
    if (rc)
        return rc;
    rc = sqlite3_column_int64(s, 0) ? column_copy(s, 1, tokens, bytes) : -ENOENT;
    stmt_reset(s);
    return rc;
}

int storage_turn_match(struct storage_ledger *l, int64_t owner, const uint8_t chat_hash[32],
                       const uint8_t fingerprint[32], int64_t *turn, int64_t *conversation)
{
    sqlite3_stmt *s = stmt_get(l, S_TURN_MATCH);
    (void)sqlite3_bind_int64(s, 1, owner);
    bind_blob(s, 2, chat_hash, 32);
    bind_blob(s, 3, fingerprint, 32);
    int rc = stmt_row(l, s);
    if (rc)
        return rc;
    *turn = sqlite3_column_int64(s, 0);
    *conversation = sqlite3_column_int64(s, 1);
    stmt_reset(s);
    return 0;
}

int storage_turns_page(struct storage_ledger *l, int64_t owner, int64_t conversation, int64_t after, size_t max,
                       struct storage_turn **rows, size_t *n)
{
    struct storage_turn *turns = calloc(max + 1, sizeof *turns);
    int64_t *ids = calloc(max + 1, sizeof *ids);
    size_t n_ids = 0, found = 0;
    int rc = turns && ids ? 0 : -ENOMEM;
    sqlite3_stmt *s = STMT_WITH(l, S_TURNS_PAGE, conversation, after, (int64_t)max);
    while (turns && ids && n_ids < max && (rc = stmt_step(l, s)) == 1)
        ids[n_ids++] = sqlite3_column_int64(s, 0);
    stmt_reset(s);
    rc = rc > 0 ? 0 : rc;
    for (; !rc && found < n_ids; found += !rc)
        rc = storage_turn_by_id(l, owner, ids[found], STORAGE_TURN_ITEMS, &turns[found]);
    free(ids);
    if (rc) {
        storage_turns_free(turns, found);
        return rc;
    }
    *rows = turns;
    *n = found;
    return 0;
}

int storage_turn_is_leaf(struct storage_ledger *l, int64_t id)
{
    int rc = stmt_any(l, STMT_WITH(l, S_TURN_HAS_CHILD, id));
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
        sqlite3_stmt *s = STMT_WITH(l, S_TURN_UP, turn);
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

static int turn_remove(struct storage_ledger *l, const struct storage_turn *t);

/* With the turn goes its context without thinking. */
static int stripped_remove(struct storage_ledger *l, const struct storage_turn *t)
{
    struct storage_turn stripped;
    int rc = t->strips ? -ENOENT : storage_turn_stripped(l, t->owner, t->id, &stripped);
    if (rc)
        return rc == -ENOENT ? 0 : rc;
    rc = turn_remove(l, &stripped);
    storage_turn_free(&stripped);
    return rc;
}

/* Takes a leaf out of the tree. */
static int turn_remove(struct storage_ledger *l, const struct storage_turn *t)
{
    uint8_t held[STORAGE_KEY_BYTES] = {0}, before[STORAGE_KEY_BYTES] = {0};
    int rc = storage_turn_is_leaf(l, t->id);
    if (rc <= 0)
        return rc ? rc : -EBUSY;
    if ((rc = stripped_remove(l, t)))
        return rc;
    if ((rc = segment_held_by(l, t->id, held)) < 0)
        return rc;
    if (l->unread)
        (void)turn_before_gaps(l, t, before);
    /* What was asked behind it in vain stays, behind the one before. */
    sqlite3_stmt *s = STMT_WITH(l, S_TURN_ADOPT, t->id, t->parent, t->unstored ? CONTEXT_UNSTORED : CONTEXT_ADDED);
    if ((rc = stmt_run(l, s, NULL)))
        return rc;
    s = STMT_WITH(l, S_TURN_DELETE, t->id); /* its hold, items and tokens go with it */
    if ((rc = stmt_run(l, s, NULL)))
        return rc;
    s = STMT_WITH(l, S_HEAD_MOVE, t->conversation, t->parent, t->id);
    if ((rc = stmt_run(l, s, NULL)))
        return rc;
    if (t->status <= STORAGE_TURN_INCOMPLETE && !t->strips)
        rc = stmt_run(l, STMT_WITH(l, S_TURN_UNCOUNT, t->conversation), NULL);
    if (!rc)
        rc = ledger_dead_turn(l, t->id);
    if (!rc && !t->rebased)
        rc = holds_within(l, storage_turn_base(t));
    if (!rc)
        rc = segment_release(l, held);
    return rc ? rc : segment_release(l, before);
}

int storage_turn_delete(struct storage_ledger *l, int64_t owner, const char *public_id)
{
    struct storage_turn t;
    int rc = storage_turn_get(l, owner, public_id, 0, &t);
    if (rc)
        return rc;
    rc = turn_remove(l, &t);
    if (!rc)
        rc = stmt_run(l, STMT_WITH(l, S_CONV_DROP_EMPTY, t.conversation), NULL);
    storage_turn_free(&t);
    if (!rc)
        rc = segment_let_go(l);
    return rc ? rc : erase_mark(l, owner, public_id);
}

int storage_turn_replace(struct storage_ledger *l, int64_t owner, int64_t id)
{
    struct storage_turn t;
    int rc = storage_turn_by_id(l, owner, id, 0, &t);
    if (rc)
        return rc;
    rc = turn_remove(l, &t);
    storage_turn_free(&t);
    return rc;
}
