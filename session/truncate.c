/* truncate.c - a context that is too long loses its oldest turns, where the turn says that it may. Whoever makes the
 * context.
 *
 * What is dropped is whole: a context begins with a user's message then, behind the instructions, the tools and the
 * system messages that it began with. So much goes that half of the context is left free, and what remains is rendered
 * anew and read once; the turns behind it go on from there. Nothing leaves the ledger. The receipt of the turn says how
 * many turns its context is without, and so a later turn that must render its past anew knows.
 */
#include <cjson/cJSON.h>
#include <string.h>

#include "session/session_internal.h"

#define MESSAGE_TOKENS 16 /* around a message, at most */

/* ---- in a job: may it be too long? ---- */

/* Tokens that are to be free behind a prompt: for the answer, with what it goes on with. */
static int answer_tokens(const struct turn *t)
{
    int most = t->session->info->ctx_tokens / 4, wanted = t->max_output_tokens ? t->max_output_tokens : 1;
    return !t->ask.generate ? 0 : (int)t->opening_ids.n + (wanted < most ? wanted : most);
}

bool truncate_may_be(const struct turn *t, int64_t before)
{
    int64_t tokens = before + answer_tokens(t) + MESSAGE_TOKENS;
    if (!t->ask.truncate)
        return false;
    for (size_t i = t->found.matched; i < t->n_messages; i++)
        tokens += (int64_t)t->messages[i].len + MESSAGE_TOKENS;
    return tokens + (t->opening ? (int64_t)strlen(t->opening) : 0) > t->session->info->ctx_tokens;
}

/* ---- what was dropped before ---- */

size_t truncate_before(const struct storage_turn *path, size_t n)
{
    size_t dropped = 0;
    for (size_t i = 0; i < n; i++) {
        if (!path[i].receipt || !strstr(path[i].receipt, "\"truncated\""))
            continue;
        cJSON *o = cJSON_Parse(path[i].receipt);
        const cJSON *turns =
            cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(o, "truncated"), "turns");
        double v = cJSON_IsNumber(turns) ? turns->valuedouble : 0;
        if (v > (double)dropped && v <= (double)i)
            dropped = (size_t)v;
        cJSON_Delete(o);
    }
    return dropped;
}

/* ---- dropping ---- */

static size_t row_bytes(const struct storage_turn *row)
{
    size_t bytes = 0;
    for (size_t i = 0; i < row->n_items; i++)
        bytes += MESSAGE_TOKENS + (row->items[i].text ? strlen(row->items[i].text) : 0);
    return bytes;
}

/* Whether a context can begin with this turn of the past: its own system messages and results cannot. */
static bool begins_with_user(const struct storage_turn *row)
{
    enum engine_role role;
    for (size_t i = 0; i < row->n_items; i++)
        if (!row->items[i].output && items_role(row->items[i].kind, row->items[i].role, &role) == 0)
            return role == ENGINE_USER;
    return false;
}

/* The same of the turn's own messages from number i on. */
static bool goes_on_with_user(const struct turn *t, size_t i)
{
    return i < t->n_messages && t->messages[i].role == ENGINE_USER;
}

static size_t bytes_left(const struct turn *t)
{
    size_t bytes = 0;
    for (size_t i = t->past.drop_turns; i < t->found.n_path; i++)
        bytes += row_bytes(&t->found.path[i]);
    for (size_t i = t->found.matched + t->past.drop_messages; i < t->n_messages; i++)
        bytes += MESSAGE_TOKENS + t->messages[i].len;
    return bytes;
}

/* Drops turns that have at least so many bytes, but never the last message of the user. False: there are none. */
static bool drop(struct turn *t, size_t bytes)
{
    const size_t first = t->found.matched;
    size_t gone = 0;
    bool any = false;
    for (size_t k = t->past.drop_turns; k < t->found.n_path;) {
        gone += row_bytes(&t->found.path[k++]);
        if (k < t->found.n_path ? !begins_with_user(&t->found.path[k]) : !goes_on_with_user(t, first))
            continue;
        t->past.drop_turns = k;
        any = true;
        if (gone >= bytes)
            return true;
    }
    if (t->past.drop_turns < t->found.n_path)
        return any;
    for (size_t i = first + t->past.drop_messages; i + 1 < t->n_messages;) {
        gone += MESSAGE_TOKENS + t->messages[i++].len;
        if (!goes_on_with_user(t, i))
            continue;
        t->past.drop_messages = i - first;
        any = true;
        if (gone >= bytes)
            return true;
    }
    return any;
}

int truncate_context(struct turn *t, int (*render)(struct turn *t))
{
    int most = t->session->info->ctx_tokens, before = (int)t->context.n, rc = 0;
    int fits = most - answer_tokens(t), left = fits < most / 2 ? fits : most / 2;
    if (!t->ask.truncate || t->past.by_tokens || before <= fits)
        return 0;
    left = left > 0 ? left : 0;
    while (!rc && (int)t->context.n > left) {
        double too_much = 1.0 - (double)left / (double)t->context.n;
        size_t bytes = (size_t)(too_much * (double)bytes_left(t));
        if (!drop(t, bytes ? bytes : 1))
            break;
        t->context.n = 0;
        t->past.known = false; /* it is no history that anybody sends */
        rc = render(t);
    }
    if (rc || (!t->past.drop_turns && !t->past.drop_messages))
        return rc;
    t->past.rebased = t->past.changed = true;
    t->lost_reason = "truncated";
    t->receipt.truncated_turns = t->found.apart ? 0 : (int)t->past.drop_turns;
    t->receipt.truncated_tokens = before - (int)t->context.n;
    return 0;
}
