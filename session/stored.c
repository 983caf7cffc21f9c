/* stored.c - rows of the ledger as the session's users see them. Any thread; the rows are the caller's. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "session/session_internal.h"

struct stored {
    struct session_item *items;
    char *receipt;
};

static const char *const roles[] = {
    [ENGINE_SYSTEM] = "system", [ENGINE_USER] = "user", [ENGINE_ASSISTANT] = "assistant"};

const char *stored_role_name(enum engine_role role)
{
    return roles[role];
}

enum engine_role stored_role(const char *name)
{
    for (size_t i = 0; name && i < sizeof roles / sizeof *roles; i++)
        if (!strcmp(roles[i], name))
            return (enum engine_role)i;
    return ENGINE_USER;
}

struct session_item *stored_items(const struct storage_item *rows, size_t n)
{
    struct session_item *items = calloc(n ? n : 1, sizeof *items);
    for (size_t i = 0; items && i < n; i++)
        items[i] = (struct session_item){.id = rows[i].public_id,
                                         .kind = rows[i].kind,
                                         .role = stored_role(rows[i].role),
                                         .text = rows[i].text ? rows[i].text : "",
                                         .len = rows[i].text ? strlen(rows[i].text) : 0,
                                         .body = rows[i].body,
                                         .output = rows[i].output,
                                         .incomplete = rows[i].incomplete,
                                         .response = rows[i].turn_id,
                                         .running = rows[i].turn_status >= STORAGE_TURN_RUNNING,
                                         .failed = rows[i].turn_status == STORAGE_TURN_FAILED,
                                         .created_ms = rows[i].created_ms};
    return items;
}

int stored_response(const struct storage_turn *row, const struct storage_conversation *c, const char *previous,
                    struct session_response *out, struct stored **own)
{
    static const char *const statuses[] = {"completed", "incomplete", "failed", "in_progress", "queued"};
    struct stored *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    s->items = stored_items(row->items, row->n_items);
    s->receipt = row->receipt ? receipt_with_saved(row->receipt, row->saved) : NULL;
    if (!s->items || (row->receipt && !s->receipt)) {
        stored_free(s);
        return -ENOMEM;
    }
    const bool completed = row->status == STORAGE_TURN_COMPLETED;
    *out = (struct session_response){.id = row->public_id,
                                     .conversation = c->public_id,
                                     .previous = previous,
                                     .listed = c->kind == STORAGE_CONVERSATION_LISTED,
                                     .status = statuses[row->status],
                                     .reason = completed ? NULL : row->reason,
                                     .stop = completed ? row->reason : NULL,
                                     .instructions = row->instructions,
                                     .items = s->items,
                                     .n_items = row->n_items,
                                     .answered = row->answered,
                                     .params = row->params,
                                     .receipt = s->receipt,
                                     .input_tokens = row->input_tokens,
                                     .cached_tokens = row->cached_tokens,
                                     .output_tokens = row->output_tokens,
                                     .created_ms = row->created_ms,
                                     .completed_ms = row->completed_ms};
    *own = s;
    return 0;
}

void stored_free(struct stored *own)
{
    if (!own)
        return;
    free(own->items);
    free(own->receipt);
    free(own);
}
