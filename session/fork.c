/* fork.c - a conversation that begins as another one: the turns before the last one that is copied become rows of it,
 * each with its items, its tokens and what there is of its KV, so that any of them can be followed as in the other one.
 * The last one is a turn of the session's, behind them: its KV is saved as any other's.
 *
 * Ledger thread, in the job that finds what that turn follows. Until it is committed the conversation's head is where
 * it was: the copies are branches of it, which end nowhere.
 */
#include <cjson/cJSON.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "session/session_internal.h"

/* Another id of the same kind. NULL: there is none. */
static char *other_id(const char *id)
{
    char prefix[16] = "", out[48];
    size_t n = strcspn(id, "_") + 1;
    memcpy(prefix, id, n < sizeof prefix && n <= strlen(id) ? n : 0);
    return accept_new_id(prefix, out) ? NULL : strdup(out);
}

/* A turn's receipt, of this conversation. NULL: there is none, or no memory. */
static char *receipt_of(const char *receipt, const char *conversation)
{
    cJSON *o = receipt ? cJSON_Parse(receipt) : NULL, *of = cJSON_GetObjectItemCaseSensitive(o, "conversation");
    bool told = !cJSON_IsString(of) || cJSON_SetValuestring(of, conversation);
    char *text = o && told ? cJSON_PrintUnformatted(o) : NULL;
    cJSON_Delete(o);
    return text;
}

/* A row of a path, with all of it, becomes one of conversation `to` behind row *at, and *at that. What stands for
 * itself says what it was told of tools; and so does one from now on that stood behind a context without thinking. */
static int copy_turn(struct storage_ledger *l, struct storage_turn *row, const struct storage_conversation *to,
                     int64_t *at)
{
    struct storage_turn copy = *row;
    struct storage_item *items = calloc(row->n_items + 1, sizeof *items), *input = items;
    char *tools = NULL, *tools_id = NULL;
    void *whole = NULL;
    size_t n = 0;
    int rc = items ? 0 : -ENOMEM;
    copy.public_id = other_id(row->public_id);
    copy.receipt = receipt_of(row->receipt, to->public_id);
    for (size_t i = 0; !rc && i < row->n_items; i++) {
        char *id = other_id(row->items[i].public_id);
        free(row->items[i].public_id);
        rc = (row->items[i].public_id = id) ? 0 : -ENOMEM;
    }
    if (!rc && (!row->parent || row->rebased || row->base))
        rc = storage_turn_tools(l, row->owner, row->id, &tools);
    if (!rc && tools) {
        rc = (tools_id = other_id("tools_")) ? 0 : -ENOMEM;
        *input++ = (struct storage_item){
            .public_id = tools_id, .kind = (char *)"tools", .created_ms = row->created_ms, .text = tools};
    }
    if (!rc && row->base) {
        rc = storage_turn_context(l, row->owner, row->id, &whole, &copy.tokens_bytes);
        copy.prompt_bytes += copy.tokens_bytes - row->tokens_bytes;
        copy.tokens = whole;
        copy.rebased = true;
        copy.base = 0;
    }
    while (n < row->n_items && !row->items[n].output)
        n++;
    if (!rc && (!copy.public_id || (row->receipt && !copy.receipt)))
        rc = -ENOMEM;
    if (!rc) {
        memcpy(input, row->items, n * sizeof *input);
        copy.conversation = to->id;
        copy.parent = *at;
        copy.request = NULL;
        copy.status = STORAGE_TURN_RUNNING;
        copy.items = items;
        copy.n_items = (size_t)(input - items) + n;
        rc = storage_turn_insert(l, &copy);
    }
    if (!rc) {
        copy.status = row->status;
        copy.items = row->items + n;
        copy.n_items = row->n_items - n;
        rc = storage_turn_commit(l, &copy);
    }
    *at = copy.id;
    free(copy.public_id);
    free(copy.receipt);
    free(whole);
    free(items);
    free(tools);
    free(tools_id);
    return rc;
}

/* All up to and with row `last`. Where the turn behind them came to nothing, or to nobody's knowledge, they are there.
 */
static int copy_path(struct storage_ledger *l, const struct turn *t, int64_t last, int64_t *parent)
{
    const struct storage_conversation *to = &t->found.conversation;
    struct storage_turn *path = NULL;
    size_t n = 0;
    int64_t there = 0, depth = 0;
    int rc = storage_turn_path(l, t->found.owner.id, last, STORAGE_TURN_TOKENS | STORAGE_TURN_ITEMS, &path, &n);
    int64_t *rows = rc ? NULL : calloc(n, sizeof *rows);
    if (!rc && !rows)
        rc = -ENOMEM;
    if (!rc && (rc = storage_conversation_deepest(l, to->id, &there, &depth)) == -ENOENT)
        rc = 0;
    const size_t copies = depth == (int64_t)n ? 0 : n;
    if (!rc && !copies)
        *parent = there;
    for (size_t i = 0; !rc && i < copies; i++)
        if (!(rc = copy_turn(l, &path[i], to, parent)))
            rows[i] = *parent;
    if (!rc && copies)
        rc = storage_turns_hold_as(l, path, rows, n);
    if (!rc && copies)
        rc = storage_conversation_update(l, to); /* its head is where it was */
    free(rows);
    storage_turns_free(path, n);
    return rc;
}

int fork_find(struct storage_ledger *l, struct turn *t, int64_t *parent)
{
    struct found *f = &t->found;
    struct storage_turn *of = &f->copied;
    int rc = storage_turn_get(l, f->owner.id, t->copy_of, STORAGE_TURN_ITEMS, of);
    if (rc == -ENOENT)
        return turn_refuse(t, 0, SESSION_PREVIOUS_NOT_FOUND, "what was to be copied has been deleted");
    if (rc)
        return rc;
    int64_t before = of->parent;
    int whole = context_same_model(t, of) ? context_says_all(t, of) : 0;
    t->ask.match &= whole == 0 && !before; /* otherwise it is known what it follows */
    if (whole == 1)
        rc = storage_turn_context(l, f->owner.id, of->id, &of->tokens, &of->tokens_bytes);
    else
        storage_turn_free(of);
    rc = whole < 0 ? whole : rc;
    return rc || !before ? rc : copy_path(l, t, before, parent);
}
