/* context.c - the tokens that a turn's context consists of.
 *
 * The ledger's tokens are the truth: what an earlier turn added stays as it is, and a turn only appends (the closing of
 * the last answer, the new messages, the opening of the answer). Where the past itself changes (other instructions,
 * another model), the context is built anew from the stored messages and, for the same model, the stored tokens of the
 * answers; such a turn is `rebased`.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "session/session_internal.h"

/* Messages; their texts are others', their names its own where `names` has one. */
struct messages {
    struct engine_message *m;
    char **names;
    size_t n, capacity;
};

/* Takes name. */
static int add_message(struct messages *list, const struct engine_message *m, char *name)
{
    if (list->n == list->capacity) {
        size_t capacity = list->capacity ? list->capacity * 2 : 8;
        struct engine_message *grown = realloc(list->m, capacity * sizeof *grown);
        if (grown)
            list->m = grown;
        char **names = realloc(list->names, capacity * sizeof *names);
        if (names)
            list->names = names;
        if (!grown || !names) {
            free(name);
            return -ENOMEM;
        }
        list->capacity = capacity;
    }
    list->names[list->n] = name;
    list->m[list->n++] = *m;
    return 0;
}

static void clear(struct messages *list)
{
    for (size_t i = 0; i < list->n; i++)
        free(list->names[i]);
    list->n = 0;
}

/* Items of one kind, input or output. */
static int add_items(struct messages *list, const struct storage_turn *row, bool output)
{
    int rc = 0;
    for (size_t i = 0; !rc && i < row->n_items; i++) {
        struct engine_message m;
        char *name;
        if (row->items[i].output != output)
            continue;
        rc = items_message(&row->items[i], &m, &name);
        rc = rc == -ENOENT ? 0 : rc ? rc : add_message(list, &m, name);
    }
    return rc;
}

int context_says_all(const struct turn *t, const struct storage_turn *of)
{
    struct messages list = {0};
    uint8_t mine[32] = {0}, theirs[32] = {0};
    int rc = add_items(&list, of, false);
    rc = rc ? rc : add_items(&list, of, true);
    if (!rc && (items_chain(theirs, list.m, list.n, NULL) || items_chain(mine, t->messages, t->n_messages, NULL)))
        rc = -ENOMEM;
    clear(&list);
    free(list.m);
    free(list.names);
    return rc ? rc : !memcmp(mine, theirs, sizeof mine);
}

/* What a context begins with: definitions of tools, and instructions. */
static int add_head(struct messages *list, const struct turn *t)
{
    int rc = 0;
    if (t->tools)
        rc = add_message(
            list, &(struct engine_message){.role = ENGINE_TOOLS, .text = t->tools, .len = strlen(t->tools)}, NULL);
    if (!rc && t->in_force)
        rc = add_message(
            list, &(struct engine_message){.role = ENGINE_SYSTEM, .text = t->in_force, .len = strlen(t->in_force)},
            NULL);
    return rc;
}

/* Where the first of the turn's own messages are dropped, system messages stay. */
static int add_new(struct messages *list, const struct turn *t)
{
    size_t first = t->found.matched, i = first;
    int rc = 0;
    for (; t->past.drop_messages && !rc && i < first + t->past.drop_messages && t->messages[i].role == ENGINE_SYSTEM;
         i++)
        rc = add_message(list, &t->messages[i], NULL);
    for (i = first + t->past.drop_messages; !rc && i < t->n_messages; i++)
        rc = add_message(list, &t->messages[i], NULL);
    return rc;
}

/* Where the first turns are dropped: the system messages that the first one begins with. */
static int add_system(struct messages *list, const struct storage_turn *row)
{
    int rc = 0;
    for (size_t i = 0; !rc && i < row->n_items; i++) {
        struct engine_message m;
        char *name;
        rc = row->items[i].output ? -ENOENT : items_message(&row->items[i], &m, &name);
        if (rc == -ENOENT) {
            rc = 0;
            continue;
        }
        if (!rc && m.role != ENGINE_SYSTEM) {
            free(name);
            break;
        }
        rc = rc ? rc : add_message(list, &m, name);
    }
    return rc;
}

static bool same_text(const char *a, const char *b)
{
    return a == b || (a && b && !strcmp(a, b));
}

static int append_bytes(struct engine_tokens *out, const void *bytes, size_t n)
{
    return engine_tokens_append(out, bytes, n / sizeof(engine_token));
}

static int out_of_memory(struct turn *t)
{
    return turn_refuse(t, -ENOMEM, SESSION_INTERNAL, "out of memory");
}

static int render(struct turn *t, const struct engine_message *messages, size_t n, bool open)
{
    char err[sizeof t->end.detail] = "";
    unsigned flags = (t->context.n == 0 ? ENGINE_CHAT_FIRST : 0) | (open ? ENGINE_CHAT_OPEN : 0) | t->effort;
    int rc = engine_chat_render(t->session->engine, messages, n, flags, &t->context, err, sizeof err);
    if (!rc)
        return 0;
    (void)snprintf(t->end.detail, sizeof t->end.detail, "%s", err[0] ? err : "the messages could not be rendered");
    return turn_refuse(t, rc, rc == -ENOTSUP || rc == -EINVAL ? SESSION_INVALID : SESSION_INTERNAL, t->end.detail);
}

/* The new messages of the turn behind what is in the context; what a context begins with comes first when it is empty.
 */
static int render_new(struct turn *t)
{
    struct messages list = {0};
    int rc = t->context.n == 0 ? add_head(&list, t) : 0;
    if (!rc && t->context.n == 0 && t->past.known)
        t->past.known = items_chain(t->past.hash, list.m, list.n, NULL) == 0;
    if (!rc)
        rc = add_new(&list, t);
    if (rc)
        rc = out_of_memory(t);
    else if (list.n || t->ask.generate || t->context.n == 0)
        rc = render(t, list.m, list.n, t->ask.generate);
    clear(&list);
    free(list.m);
    free(list.names);
    return rc;
}

/* Everything before this turn, rendered anew under the instructions and tools in force. The answers of turns from `own`
 * on keep their tokens, which are what the model wrote; of those before only what a history has of them is there. */
static int rebuild(struct turn *t, size_t own)
{
    struct messages list = {0};
    size_t chained = 0;
    int rc = t->context.n ? 0 : add_head(&list, t);
    if (!rc && t->past.drop_turns)
        rc = add_system(&list, &t->found.path[0]);
    for (size_t i = t->past.drop_turns; !rc && i < t->found.n_path; i++) {
        const struct storage_turn *row = &t->found.path[i];
        bool kept = i >= own;
        rc = add_items(&list, row, false);
        size_t asked = list.n;
        if (!rc && row->answered)
            rc = add_items(&list, row, true);
        if (!rc && t->past.known)
            t->past.known = items_chain(t->past.hash, list.m + chained, list.n - chained, NULL) == 0;
        chained = list.n;
        if (rc || !row->answered)
            continue;
        if ((rc = render(t, list.m, kept ? asked : list.n, kept)))
            goto cleanup;
        clear(&list);
        chained = 0;
        if (kept)
            rc = append_bytes(&t->context, (const char *)row->tokens + row->prompt_bytes,
                              row->tokens_bytes - row->prompt_bytes);
        if (!rc && kept)
            rc = engine_chat_close(t->session->engine, &t->context);
    }
    if (!t->ask.strips)
        t->n_inherited = t->n_expected = (int)t->context.n;
    if (!rc)
        rc = add_new(&list, t);
    if (!rc && (list.n || !t->ask.strips) && (rc = render(t, list.m, list.n, t->ask.generate)))
        goto cleanup;
    if (rc)
        rc = out_of_memory(t);
cleanup:
    clear(&list);
    free(list.m);
    free(list.names);
    return rc;
}

#define IDENTITY_TEXT 64  /* characters that a turn's kv begins with */
#define EARLIER_TEXT  128 /* characters that it has of earlier versions, or half as many */

void context_kv_text(const struct engine_info *info, bool mixed, char out[CONTEXT_KV_TEXT])
{
    for (size_t i = 0; i < sizeof info->kv_identity; i++)
        snprintf(out + 2 * i, 3, "%02x", info->kv_identity[i]);
    snprintf(out + IDENTITY_TEXT, CONTEXT_KV_TEXT - IDENTITY_TEXT, "%s%s", info->numerics, mixed ? "+" : "");
}

int context_of_turn(struct storage_ledger *l, int64_t owner, int64_t turn, struct engine_tokens *out)
{
    void *tokens = NULL;
    size_t bytes = 0;
    int rc = storage_turn_context(l, owner, turn, &tokens, &bytes);
    if (!rc)
        rc = append_bytes(out, tokens, bytes);
    free(tokens);
    return rc;
}

bool context_same_model(const struct turn *t, const struct storage_turn *row)
{
    return !memcmp(row->fingerprint, t->session->info->model_sha256, sizeof row->fingerprint);
}

static bool same_model(const struct turn *t)
{
    return context_same_model(t, &t->found.parent);
}

/* What earlier versions stored is not found any more: it counts as of other numerics where the model is the same. */
const char *context_kv_foreign(const struct turn *t, const char *kv)
{
    char own[CONTEXT_KV_TEXT];
    bool accept = t->session->accept_any, same;
    context_kv_text(t->session->info, false, own);
    if (!strcmp(kv, own))
        return NULL;
    switch (strlen(kv)) {
    case EARLIER_TEXT:
        same = !strncmp(kv + IDENTITY_TEXT, own, IDENTITY_TEXT);
        accept = false;
        break;
    case EARLIER_TEXT / 2:
        same = same_model(t);
        accept = false;
        break;
    default:
        same = !strncmp(kv, own, IDENTITY_TEXT);
    }
    return !same ? "blob_foreign" : accept ? NULL : "numerics_changed";
}

/* What the parent's row says of its KV: tokens that went through the model, and why they might not be found. */
static void expect(struct turn *t, const struct storage_turn *parent)
{
    t->n_expected = t->n_inherited;
    if (parent->evaluated >= 0 && parent->evaluated < t->n_inherited)
        t->n_expected = (int)parent->evaluated;
    t->lost_reason = parent->kv ? context_kv_foreign(t, parent->kv) : NULL;
    if (!t->lost_reason)
        t->lost_reason = parent->saved == STORAGE_SAVED_YES ? "blob_missing" : "not_saved";
}

/* That a context of so many tokens begins with. */
static unsigned effort_of(const struct turn *t, const void *tokens, size_t n)
{
    return engine_chat_effort(t->session->engine, tokens, n) & ENGINE_CHAT_EFFORTS;
}

/* Whether another one is asked for than there is. */
static bool effort_changes(const struct turn *t, unsigned there)
{
    unsigned asked = t->effort & ENGINE_CHAT_EFFORTS;
    return !turn_touches(t) && asked && there && asked != there;
}

void context_effort(struct turn *t)
{
    struct found *f = &t->found;
    f->effort = same_model(t) ? effort_of(t, f->tokens, f->tokens_bytes / sizeof(engine_token)) : 0;
    if (!(t->effort & ENGINE_CHAT_EFFORTS))
        t->effort |= f->effort;
}

/* What a response that is not stored was told stands in the tokens of those behind it, and in no item. */
static int refuse_change(struct turn *t, const char *what)
{
    (void)snprintf(t->end.detail, sizeof t->end.detail,
                   "the %s of a response that is not stored cannot change; send the whole conversation", what);
    return turn_refuse(t, -EINVAL, SESSION_INVALID, t->end.detail);
}

/* The past rendered anew. For another model the tokens of its answers say nothing. */
static int build_anew(struct turn *t)
{
    return rebuild(t, !same_model(t) ? t->found.n_path : t->ask.current_turn ? strip_before(t) : 0);
}

/* The context at the end of the parent without thinking, behind the last one of these that there is. One that began
 * behind a response that is not stored cannot be rendered anew: its items are not all that was said. */
static int build_stripped(struct turn *t)
{
    const struct found *f = &t->found;
    t->past.rebased = !f->stripped.id;
    if (f->stripped.id && append_bytes(&t->context, f->tokens, f->tokens_bytes))
        return out_of_memory(t);
    t->n_inherited = t->past.own_from = (int)t->context.n;
    t->past.drop_turns = t->past.rebased ? truncate_before(f->path, f->n_path) : 0;
    t->past.known = t->past.rebased && !t->past.drop_turns;
    expect(t, &f->stripped);
    int rc = rebuild(t, f->n_path);
    if (rc || !t->past.rebased || t->past.drop_turns)
        return rc;
    if (!t->past.known || memcmp(t->past.hash, f->parent.chat_hash, sizeof t->past.hash) != 0)
        return turn_refuse(t, -EINVAL, SESSION_INVALID, "not all that was said before is stored");
    return 0;
}

static int build_from_ephemeral(struct turn *t, const struct ephemeral *e)
{
    const char *wrong = NULL;
    if (!t->ask.match && e->calls && items_check_open(t, e->calls, &wrong))
        return out_of_memory(t);
    if (wrong)
        return turn_refuse(t, -EINVAL, SESSION_INVALID, wrong);
    if (engine_tokens_append(&t->context, e->tokens.ids, e->tokens.n))
        return out_of_memory(t);
    memcpy(t->past.hash, e->chat_hash, sizeof t->past.hash);
    if (t->ask.match) {
        ; /* its instructions and tools are part of what was found to be the same */
    } else if (!turn_touches(t) && !same_text(t->tools_form, e->tools)) {
        return refuse_change(t, "tools");
    } else if (!t->in_force) {
        /* Copied: `e` may be forgotten while the turn runs. */
        if (e->instructions && !(t->in_force = t->instructions = strdup(e->instructions)))
            return out_of_memory(t);
    } else if (!same_text(t->in_force, e->instructions)) {
        return refuse_change(t, "instructions");
    }
    if (effort_changes(t, effort_of(t, e->tokens.ids, e->tokens.n)))
        return refuse_change(t, "effort");
    t->past.by_tokens = true;
    t->past.unstored = e->said && !t->ask.match; /* the items of a whole history are all there */
    t->n_inherited = (int)t->context.n;
    t->n_expected = e->n_evaluated;
    t->lost_reason = "not_saved";
    t->past.rebased = true;
    if (e->answered && engine_chat_close(t->session->engine, &t->context))
        return out_of_memory(t);
    return render_new(t);
}

/* Instructions of the turn: its own, otherwise its conversation's. */
static const char *instructions_in_force(const struct turn *t)
{
    const char *text = t->instructions ? t->instructions : t->found.conversation.instructions;
    return text && *text ? text : NULL;
}

static bool tools_change(const struct turn *t)
{
    return !t->ask.match && !turn_touches(t) && !same_text(t->tools_form, t->found.tools);
}

bool context_past_changes(const struct turn *t)
{
    /* A whole history has its instructions and tools in what matched. */
    return !same_model(t) || !(t->ask.match || same_text(instructions_in_force(t), t->found.parent.instructions)) ||
           tools_change(t) || effort_changes(t, t->found.effort);
}

struct ephemeral *context_ephemeral(const struct turn *t)
{
    struct ephemeral *e = t->session->ephemerals;
    if (t->follows || !t->previous || t->found.parent.id)
        return t->follows;
    while (e && (strcmp(e->owner, t->owner) != 0 || strcmp(e->response_id, t->previous) != 0))
        e = e->next;
    return e;
}

static int by_hash(const void *a, const void *b)
{
    return memcmp(*(const uint8_t *const *)a, *(const uint8_t *const *)b, 32);
}

/* The histories that end with an answer behind `matched`, ordered by their hashes: pointers into hashes. Returns how
 * many. NULL: none, or no memory, and then none is found. */
static const uint8_t **open_ends(const struct turn *t, size_t matched, size_t *n)
{
    const uint8_t **ends = t->hashes ? malloc(t->n_messages * sizeof *ends) : NULL;
    *n = 0;
    for (size_t i = matched; ends && i < t->n_messages; i++)
        if (context_answer_ends(t, i))
            ends[(*n)++] = t->hashes[i];
    if (*n)
        qsort(ends, *n, sizeof *ends, by_hash);
    return ends;
}

/* A whole history of which so many messages stand elsewhere than in the ledger. */
static void leave_found(struct turn *t, size_t matched)
{
    struct found *f = &t->found;
    storage_turn_free(&f->parent);
    storage_turn_free(&f->stripped);
    storage_turns_free(f->path, f->n_path);
    f->path = NULL;
    f->n_path = 0;
    if (!t->conversation) { /* one that was named stays the one */
        if (f->conversation.public_id)
            storage_conversation_free(&f->conversation);
        memset(&f->conversation, 0, sizeof f->conversation);
    }
    f->matched = matched;
    f->apart = true;
}

void context_match_ephemeral(struct turn *t)
{
    static const uint8_t unknown[32];
    size_t matched = t->found.matched, n = 0;
    const uint8_t **ends = t->session->ephemerals ? open_ends(t, matched, &n) : NULL;
    for (struct ephemeral *e = t->session->ephemerals; n && e; e = e->next) {
        const uint8_t *hash = e->chat_hash, **end;
        if (strcmp(e->owner, t->owner) != 0 || !memcmp(hash, unknown, sizeof unknown) ||
            effort_changes(t, effort_of(t, e->tokens.ids, e->tokens.n)) ||
            !(end = bsearch(&hash, ends, n, sizeof *ends, by_hash)))
            continue;
        size_t messages = (size_t)((const uint8_t(*)[32]) * end - t->hashes) + 1;
        if (messages > matched) {
            t->follows = e;
            matched = messages;
        }
    }
    free(ends);
    if (t->follows)
        leave_found(t, matched);
}

/* A text or tokens as they stand. No chat's history is the same as this. */
static int build_raw(struct turn *t)
{
    const struct engine *e = t->session->engine;
    const struct engine_message *m = t->messages;
    t->past.known = false;
    for (size_t i = 0; i < t->raw_tokens.n; i++)
        if (t->raw_tokens.ids[i] >= t->session->info->n_vocab) {
            (void)snprintf(t->end.detail, sizeof t->end.detail, "the model has no token %d: there are %d",
                           t->raw_tokens.ids[i], t->session->info->n_vocab);
            return turn_refuse(t, -EINVAL, SESSION_INVALID, t->end.detail);
        }
    int rc = t->raw_tokens.n ? engine_tokens_append(&t->context, t->raw_tokens.ids, t->raw_tokens.n)
                             : engine_tokenize(e, m->text, m->len, true, &t->context);
    return rc ? out_of_memory(t) : 0;
}

/* The whole context of an answer that is gone on with, as it was. */
static int build_begun(struct turn *t)
{
    static const uint8_t unknown[32];
    const struct storage_turn *begun = &t->found.begun;
    bool known = !begun->unstored && memcmp(begun->chat_hash, unknown, sizeof unknown) != 0;
    if (append_bytes(&t->context, begun->tokens, begun->prompt_bytes))
        return out_of_memory(t);
    t->past.by_tokens = t->past.rebased = true;
    t->past.unstored = begun->unstored;
    t->n_inherited = (int)t->context.n;
    expect(t, begun);
    t->past.known = false;
    if (known && (!(t->hashes = malloc((t->n_messages + 1) * sizeof *t->hashes)) || context_chat_hashes(t, t->hashes)))
        return out_of_memory(t);
    return 0;
}

/* The context of the turn that it is a copy of: all of its messages are there. */
static int build_copied(struct turn *t)
{
    const struct found *f = &t->found;
    const struct storage_turn *of = &f->copied;
    if (append_bytes(&t->context, of->tokens, of->tokens_bytes))
        return out_of_memory(t);
    t->past.rebased = of->rebased || of->base;
    t->past.unstored = of->unstored;
    t->past.own_from = (int)f->parent.n_tokens;
    t->n_inherited = (int)t->context.n;
    expect(t, of);
    return of->answered && engine_chat_close(t->session->engine, &t->context) ? out_of_memory(t) : 0;
}

/* What is other than when an answer was begun that is gone on with; NULL: nothing. */
static const char *begun_changes(const struct turn *t)
{
    const struct found *f = &t->found;
    return !same_text(t->in_force, f->begun.instructions) ? "instructions" : tools_change(t) ? "tools" : NULL;
}

struct change {
    const char *what, *reason;
};

/* What it is that changes the past. */
static const struct change *change_of(const struct turn *t)
{
    static const struct change changes[] = {{"model", "blob_foreign"},
                                            {"instructions", "instructions_changed"},
                                            {"tools", "tools_changed"},
                                            {"effort", "effort_changed"}};
    bool instructed = t->ask.match || same_text(t->in_force, t->found.parent.instructions);
    return &changes[!same_model(t) ? 0 : !instructed ? 1 : tools_change(t) ? 2 : 3];
}

/* The context as far as messages and what there was make it. */
static int build(struct turn *t)
{
    struct found *f = &t->found;
    const struct ephemeral *e = t->follows;
    int rc = 0;
    t->past.known = true;
    if (t->ask.raw)
        return build_raw(t);
    if (e)
        return build_from_ephemeral(t, e);
    if (f->begun.id && !begun_changes(t))
        return build_begun(t);
    if (f->begun.unstored)
        return refuse_change(t, begun_changes(t));
    storage_turn_free(&f->begun); /* its items are all there */
    if (f->anew && t->ask.match && f->path[0].unstored)
        leave_found(t, 0); /* here all of it is said again */
    if (f->copied.id)
        return build_copied(t);
    if (!f->parent.id)
        return render_new(t);
    if (t->ask.strips)
        return build_stripped(t);
    if (f->anew) {
        t->past.drop_turns = truncate_before(f->path, f->n_path);
        if (!t->past.drop_turns && f->path[0].unstored)
            return refuse_change(t, change_of(t)->what);
        t->past.known = t->past.drop_turns == 0;
        t->past.rebased = t->past.changed = true;
        t->lost_reason = change_of(t)->reason;
        return build_anew(t);
    }
    memcpy(t->past.hash, f->parent.chat_hash, sizeof t->past.hash);
    if (append_bytes(&t->context, f->tokens, f->tokens_bytes))
        return out_of_memory(t);
    t->n_inherited = t->past.own_from = (int)t->context.n;
    t->past.rebased = f->apart;
    expect(t, context_base(t));
    if (!turn_touches(t) && f->parent.answered && !f->stripped.id)
        rc = engine_chat_close(t->session->engine, &t->context);
    return rc ? out_of_memory(t) : render_new(t);
}

/* What is left of a context that was too long. */
static int build_rest(struct turn *t)
{
    t->n_inherited = t->n_expected = 0;
    return t->found.n_path ? build_anew(t) : render_new(t);
}

int context_build(struct turn *t)
{
    struct session *s = t->session;
    t->in_force = instructions_in_force(t);
    int rc = build(t);
    rc = rc || t->ask.raw ? rc : truncate_context(t, build_rest);
    if (rc)
        return rc;
    t->receipt.reasoning_context = strip_told(t);
    if (t->found.apart) /* from here on it is the first of its chain */
        t->found.parent.id = t->found.parent.depth = t->found.stripped.id = 0;
    size_t before = t->context.n;
    if (t->ask.generate && t->tool_choice == SESSION_TOOLS_REQUIRED &&
        engine_chat_open_call(s->engine, t->tool, &t->context))
        return out_of_memory(t);
    if (t->opening && (rc = engine_chat_open_text(s->engine, t->opening, strlen(t->opening), &t->context)))
        return rc == -ENOMEM ? out_of_memory(t)
                             : turn_refuse(t, rc, SESSION_INVALID, "the answer cannot begin with this text");
    if (engine_tokens_append(&t->context, t->opening_ids.ids, t->opening_ids.n))
        return out_of_memory(t);
    t->n_opened = (int)(t->context.n - before);
    for (size_t i = 0; i < t->context.n; i++)
        if (t->context.ids[i] < 0 || t->context.ids[i] >= s->info->n_vocab)
            return turn_refuse(t, -EBADMSG, SESSION_LEDGER,
                               "the stored tokens of this conversation do not belong to this model");
    t->n_prompt = (int)t->context.n;
    return 0;
}

bool context_answer_ends(const struct turn *t, size_t i)
{
    if (!items_answers(&t->messages[i]))
        return false;
    if (i + 1 == t->n_messages)
        return !t->ask.generate; /* the last one need not be followed where nothing is answered */
    return !items_answers(&t->messages[i + 1]);
}

int context_chat_hashes(const struct turn *t, uint8_t (*out)[32])
{
    uint8_t hash[32] = {0};
    const char *instructions = instructions_in_force(t);
    const struct engine_message head[] = {
        {.role = ENGINE_TOOLS, .text = t->tools, .len = t->tools ? strlen(t->tools) : 0},
        {.role = ENGINE_SYSTEM, .text = instructions, .len = instructions ? strlen(instructions) : 0}};
    int rc = 0;
    for (size_t i = 0; !rc && i < 2; i++)
        rc = head[i].text ? items_chain(hash, &head[i], 1, NULL) : 0;
    return rc ? rc : items_chain(hash, t->messages, t->n_messages, out);
}

void context_chat_hash(const struct turn *t, uint8_t out[32])
{
    static const uint8_t unknown[32];
    uint8_t hash[32] = {0};
    bool known = t->hashes ? t->n_messages > 0 : t->past.known;
    struct messages list = {0};
    size_t from = t->found.matched;
    memset(out, 0, sizeof hash);
    if (t->found.copied.id) {
        memcpy(out, t->found.copied.chat_hash, sizeof hash);
        return;
    }
    if (t->hashes) { /* an answer that the list ends with is one with that which was given */
        for (from = t->n_messages; from > 0 && items_answers(&t->messages[from - 1]);)
            from--;
        from = from ? from : t->n_messages;
    }
    if (t->hashes && known)
        memcpy(hash, t->hashes[from - 1], sizeof hash);
    else if (known)
        memcpy(hash, t->past.hash, sizeof hash);
    /* What follows a turn of which it is not known is not known either. */
    if (!t->hashes && t->n_inherited && !t->past.changed)
        known &= memcmp(hash, unknown, sizeof hash) != 0;
    for (size_t i = from; known && i < t->n_messages; i++)
        known = add_message(&list, &t->messages[i], NULL) == 0;
    for (size_t i = 0; known && i < t->n_output_items; i++) {
        struct engine_message m;
        char *name;
        int rc = items_message(&t->output[i], &m, &name);
        known = rc == -ENOENT || (!rc && !add_message(&list, &m, name));
    }
    if (known && items_chain(hash, list.m, list.n, NULL) == 0)
        memcpy(out, hash, sizeof hash);
    clear(&list);
    free(list.m);
    free(list.names);
}
