/* lookup.c - a turn's jobs on the ledger thread that read.
 *
 * While a job is under way it owns turn->found, match, the items, the tools, the effort and the digests (find) or
 * turn->plan (plan), and reads the rest of the request and the context, which do not change meanwhile. The result comes
 * back to the engine thread as a command.
 */
#include <cjson/cJSON.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "session/session_internal.h"

#define MATCH_TRIES  64 /* answers, from the last one, whose history is looked for */
#define REPEAT_TRIES 8  /* turns with the same body that are looked at */

/* ---- find: what does the turn follow? ---- */

/* What it would follow was in memory alone. Where it is there still the turn does (turn_found()). */
static int not_stored(struct turn *t)
{
    return turn_refuse(t, 0, SESSION_PREVIOUS_NOT_FOUND,
                       "what came before was not stored, and is not there any more; send the whole conversation");
}

/* What naming a response as the one to be followed means: one that failed stands for what it followed. Nothing follows
 * what is still running. */
static int follow(struct turn *t, const struct storage_turn *turn, int64_t *parent)
{
    if (turn->status >= STORAGE_TURN_RUNNING)
        return turn_refuse(t, 0, SESSION_CONVERSATION_LOCKED, "the response to be followed has not ended yet");
    *parent = turn->status == STORAGE_TURN_FAILED ? turn->parent : turn->id;
    return !*parent && turn->unstored ? not_stored(t) : 0;
}

static int find_previous(struct storage_ledger *l, struct turn *t, int64_t *parent)
{
    struct found *f = &t->found;
    struct storage_turn turn;
    int rc = storage_turn_get(l, f->owner.id, t->previous, 0, &turn);
    if (rc == -ENOENT)
        return turn_refuse(t, 0, SESSION_PREVIOUS_NOT_FOUND, "there is no response with this id");
    if (rc)
        return rc;
    follow(t, &turn, parent);
    rc = storage_conversation_by_id(l, f->owner.id, turn.conversation, &f->conversation);
    storage_turn_free(&turn);
    return rc;
}

static int find_match(struct storage_ledger *l, struct turn *t, int64_t *parent)
{
    struct found *f = &t->found;
    int tries = 0, rc = -ENOENT;
    int64_t conversation = 0;
    size_t n = t->n_messages + 1;
    uint8_t(*hashes)[32] = malloc(n * sizeof *hashes); /* after each message */
    if (!hashes)
        return -ENOMEM;
    if (context_chat_hashes(t, hashes)) {
        free(hashes);
        return -ENOMEM;
    }
    t->hashes = hashes;
    while (rc == -ENOENT && n-- > 1 && tries < MATCH_TRIES)
        if (context_answer_ends(t, n - 1)) {
            rc = storage_turn_match(l, f->owner.id, hashes[n - 1], t->session->info->model_sha256, parent,
                                    &conversation);
            tries++;
        }
    if (rc == -ENOENT) {
        *parent = 0;
        return 0;
    }
    if (rc)
        return rc;
    f->matched = n;
    rc = storage_conversation_by_id(l, f->owner.id, conversation, &f->conversation);
    /* A conversation that its owner made is not added to by who only resends what it holds. */
    f->apart = !rc && f->conversation.kind == STORAGE_CONVERSATION_LISTED;
    if (f->apart) {
        storage_conversation_free(&f->conversation);
        memset(&f->conversation, 0, sizeof f->conversation);
    }
    return rc;
}

/* What a new conversation begins with may be there already: it stands in a chain of its own then. */
static int find_apart(struct storage_ledger *l, struct turn *t, int64_t *parent)
{
    struct found *f = &t->found;
    struct storage_conversation own = f->conversation;
    int rc = find_match(l, t, parent);
    if (f->conversation.public_id != own.public_id && f->conversation.public_id)
        storage_conversation_free(&f->conversation);
    f->conversation = own;
    f->apart = *parent != 0;
    return rc;
}

/* A turn that waits in the ledger goes on where it was accepted. Of a whole history its row has what was new then. */
static int find_requeued(struct storage_ledger *l, struct turn *t, int64_t *parent)
{
    struct found *f = &t->found;
    struct storage_turn turn;
    int rc = storage_turn_get(l, f->owner.id, t->response_id, STORAGE_TURN_ITEMS, &turn);
    if (rc == -ENOENT)
        return turn_refuse(t, 0, SESSION_GONE, "the response was deleted");
    if (rc)
        return rc;
    size_t fresh = 0;
    for (size_t i = 0; i < turn.n_items; i++)
        fresh += strcmp(turn.items[i].kind, "tools") != 0;
    *parent = turn.parent;
    f->requeued = turn.id;
    rc = storage_conversation_by_id(l, f->owner.id, turn.conversation, &f->conversation);
    bool unstored = turn.unstored;
    storage_turn_free(&turn);
    if (rc || !t->ask.match)
        return rc ? rc : unstored ? not_stored(t) : 0;
    if (!*parent)
        return find_apart(l, t, parent);
    f->matched = fresh < t->n_messages ? t->n_messages - fresh : 0;
    return 0;
}

/* What the turn is to replace must still be the end of its conversation, in which nothing else begins until this one is
 * over. */
static int find_replaced(struct storage_ledger *l, struct turn *t)
{
    const struct storage_conversation *c = &t->found.conversation;
    struct storage_turn turn;
    int rc = storage_turn_get(l, t->found.owner.id, t->replaces, 0, &turn);
    if (rc == -ENOENT)
        return turn_refuse(t, 0, SESSION_GONE, "what was to be replaced has been deleted");
    if (rc)
        return rc;
    bool last = turn.status < STORAGE_TURN_RUNNING &&
                (turn.id == c->head || (turn.status == STORAGE_TURN_FAILED && turn.parent == c->head));
    if (turn.conversation != c->id || !last)
        turn_refuse(t, 0, SESSION_CONVERSATION_LOCKED, "the conversation has gone on meanwhile");
    else if (turn.unstored)
        turn_refuse(t, 0, SESSION_INVALID, "what came before was not stored; the response can be deleted as a whole");
    storage_turn_free(&turn);
    return 0;
}

/* What the calls of an answer have besides their own, by their tools' names, so that they keep it. NULL in *labels:
 * nothing. 0 or -ENOMEM. */
static int labels_of(const struct storage_turn *turn, char **labels)
{
    cJSON *all = cJSON_CreateObject();
    bool fine = all != NULL;
    for (size_t i = 0; fine && i < turn->n_items; i++) {
        const struct storage_item *item = &turn->items[i];
        cJSON *label =
            item->output && item->body && strcmp(item->kind, "function_call") == 0 ? cJSON_Parse(item->body) : NULL;
        cJSON *name = cJSON_DetachItemFromObjectCaseSensitive(label, "name");
        cJSON_DeleteItemFromObjectCaseSensitive(label, "call_id");
        if (label && label->child && cJSON_IsString(name) && !cJSON_HasObjectItem(all, name->valuestring)) {
            fine = cJSON_AddItemToObject(all, name->valuestring, label);
            label = fine ? NULL : label;
        }
        cJSON_Delete(name);
        cJSON_Delete(label);
    }
    *labels = fine && all->child ? cJSON_PrintUnformatted(all) : NULL;
    fine = fine && (*labels || !all->child);
    cJSON_Delete(all);
    return fine ? 0 : -ENOMEM;
}

/* What the context of a turn was told of tools, for comparison; NULL: of none. keep: where this one names none, those
 * stay. */
static int find_tools(struct storage_ledger *l, struct turn *t, int64_t turn, bool keep)
{
    struct found *f = &t->found;
    char *tools = NULL;
    size_t len;
    free(f->tools);
    f->tools = NULL;
    int rc = storage_turn_tools(l, f->owner.id, turn, &tools);
    if (!rc && tools)
        rc = engine_json(tools, strlen(tools), true, &f->tools, &len);
    if (!rc && tools && keep && !t->tools) {
        t->tools_form = strdup(f->tools);
        t->tools = tools;
        return t->tools_form ? 0 : -ENOMEM;
    }
    free(tools);
    return rc;
}

/* What was said to the response whose answer is gone on with, where it stands, and its answer so far. */
static int take_over(struct storage_ledger *l, struct turn *t, struct storage_turn *turn)
{
    struct found *f = &t->found;
    const engine_token *answer = (const void *)((const char *)turn->tokens + turn->prompt_bytes);
    int rc = storage_conversation_by_id(l, f->owner.id, turn->conversation, &f->conversation);
    int leaf = rc ? rc : storage_turn_is_leaf(l, turn->id);
    if (!rc && leaf >= 0)
        rc = engine_tokens_append(&t->opening_ids, answer, (turn->tokens_bytes - turn->prompt_bytes) / sizeof *answer);
    if (rc || leaf < 0)
        return rc ? rc : leaf;
    if (!t->instructions && !(t->instructions = strdup(turn->instructions ? turn->instructions : "")))
        return -ENOMEM;
    if ((rc = find_tools(l, t, turn->id, true)))
        return rc;
    if (!t->labels && (rc = labels_of(turn, &t->labels)))
        return rc;
    t->effort = engine_chat_effort(t->session->engine, turn->tokens, turn->prompt_bytes / sizeof *answer);
    if (leaf == 1 && f->conversation.head == turn->id && !(t->replaces = strdup(t->continues)))
        return -ENOMEM;
    if ((rc = items_take(t, turn)))
        return rc;
    /* A history that was found elsewhere, or what is not stored: its tokens say more than its items. */
    size_t prompt = turn->prompt_bytes / sizeof *answer;
    if (!turn->parent && turn->rebased && (turn->unstored || !truncate_may_be(t, (int64_t)prompt))) {
        f->begun = *turn;
        memset(turn, 0, sizeof *turn);
    }
    return 0;
}

static int find_continued(struct storage_ledger *l, struct turn *t, int64_t *parent)
{
    struct found *f = &t->found;
    struct storage_turn turn;
    int rc = storage_turn_get(l, f->owner.id, t->continues, STORAGE_TURN_ITEMS | STORAGE_TURN_TOKENS, &turn);
    if (rc == -ENOENT)
        return turn_refuse(t, 0, SESSION_PREVIOUS_NOT_FOUND, "there is no response with this id");
    if (rc)
        return rc;
    *parent = turn.parent;
    f->stripped.id = turn.base;
    if (turn.status >= STORAGE_TURN_RUNNING)
        turn_refuse(t, 0, SESSION_CONVERSATION_LOCKED, "the response to be gone on with has not ended yet");
    else if (turn.status != STORAGE_TURN_INCOMPLETE || !turn.answered)
        turn_refuse(t, 0, SESSION_INVALID,
                    "only an answer that was cut, of an incomplete response, can be gone on with");
    else if (!context_same_model(t, &turn))
        turn_refuse(t, 0, SESSION_INVALID, "another model began this answer");
    else
        rc = take_over(l, t, &turn);
    storage_turn_free(&turn);
    return rc;
}

/* What is stored there is its answer. */
static int answered_by(struct storage_ledger *l, struct turn *t, int64_t turn)
{
    struct found *f = &t->found;
    int rc = storage_turn_by_id(l, f->owner.id, turn, STORAGE_TURN_ITEMS, &f->stored);
    return rc || !f->stored.parent ? rc : storage_turn_public_id(l, f->stored.parent, &f->stored_previous);
}

static int find_conversation(struct storage_ledger *l, struct turn *t, int64_t *parent)
{
    struct found *f = &t->found;
    int rc = storage_conversation_get(l, f->owner.id, t->conversation, &f->conversation);
    if (rc == -ENOENT)
        return turn_refuse(t, 0, SESSION_CONVERSATION_NOT_FOUND, "there is no conversation with this id");
    if (rc)
        return rc;
    *parent = f->conversation.head;
    if (t->ask.begins && *parent)
        return answered_by(l, t, *parent);
    if (t->copy_of && ((rc = fork_find(l, t, parent)) || !t->ask.match))
        return rc;
    /* Items behind something are what is new, whoever said it. */
    t->ask.match &= !*parent && !t->parent;
    if (t->replaces && ((rc = find_replaced(l, t)) || f->failure != SESSION_OK))
        return rc;
    if (!t->parent)
        return t->ask.match ? find_apart(l, t, parent) : 0;
    *parent = 0;
    if (!t->parent[0])
        return 0;
    struct storage_turn turn;
    rc = storage_turn_get(l, f->owner.id, t->parent, 0, &turn);
    if (rc && rc != -ENOENT)
        return rc;
    if (rc || turn.conversation != f->conversation.id)
        turn_refuse(t, 0, SESSION_PREVIOUS_NOT_FOUND, "`parent` is not a response of this conversation");
    else
        follow(t, &turn, parent);
    if (!rc)
        storage_turn_free(&turn);
    return 0;
}

/* ---- find: is it a repetition? ---- */

static bool given_up(const struct storage_turn *turn)
{
    return turn->status == STORAGE_TURN_FAILED ||
           (turn->status == STORAGE_TURN_INCOMPLETE && turn->reason && !strcmp(turn->reason, "abandoned"));
}

/* `first` was the first attempt at this request: its answer is this one's, or where it has none that anybody wants,
 * this turn takes its place. Takes over `first`. */
static int repeat(struct storage_ledger *l, struct turn *t, struct storage_turn *first, int64_t *parent)
{
    struct found *f = &t->found;
    int leaf = given_up(first) ? storage_turn_is_leaf(l, first->id) : 0;
    int rc = leaf < 0 ? leaf : 0;
    f->failure = SESSION_OK;
    if (!rc && first->status >= STORAGE_TURN_RUNNING)
        turn_refuse(t, 0, SESSION_CONVERSATION_LOCKED, "the first attempt at this request has not ended yet");
    else if (!rc) {
        /* Its place is where the first one stood: not where others came behind that meanwhile, and what is matched goes
         * on where the match is. */
        bool moved = t->conversation && !t->parent && *parent != first->id && *parent != first->parent;
        if (leaf != 1 || (t->ask.match ? !*parent && !first->parent : !moved)) {
            storage_conversation_free(&f->conversation);
            rc = storage_conversation_by_id(l, f->owner.id, first->conversation, &f->conversation);
            *parent = first->parent;
        }
    }
    if (!rc && f->failure == SESSION_OK && leaf == 1) {
        f->replaces = first->id;
        if (first->unstored && t->previous)
            not_stored(t);
    } else if (!rc && f->failure == SESSION_OK) {
        rc = answered_by(l, t, first->id);
    }
    storage_turn_free(first);
    return rc;
}

/* By its key. */
static int find_key(struct storage_ledger *l, struct turn *t, int64_t *parent)
{
    struct found *f = &t->found;
    struct storage_turn first;
    char *target = NULL;
    int rc = storage_key_get(l, f->owner.id, t->key_hash, t->digest_hash, &target);
    if (rc == -ENOENT)
        return 0; /* nothing was made with it */
    if (rc == -EINVAL)
        return turn_refuse(t, 0, SESSION_KEY_REUSED, "this idempotency key came with another request before");
    if (!rc && t->ask.store)
        rc = storage_turn_get(l, f->owner.id, target, 0, &first);
    free(target);
    if (rc == -ENOENT)
        return turn_refuse(t, 0, SESSION_GONE, "what was made with this idempotency key has been deleted");
    return rc || !t->ask.store ? rc : repeat(l, t, &first, parent);
}

/* By its body: the latest turn of the owner with that, if it stands where this one would, and if whoever asked for it
 * may not have got the answer. */
static int find_repetition(struct storage_ledger *l, struct turn *t, int64_t *parent)
{
    struct found *f = &t->found;
    struct storage_turn first;
    int64_t before = INT64_MAX;
    for (int tries = 0; tries < REPEAT_TRIES; tries++) {
        int rc = storage_turn_by_digest(l, f->owner.id, t->digest_hash, before, &first);
        if (rc)
            return rc == -ENOENT ? 0 : rc;
        before = first.id;
        bool here = first.parent == (f->apart ? 0 : *parent) && (first.parent || !t->conversation || t->parent) &&
                    (!t->conversation || first.conversation == f->conversation.id);
        if (t->conversation && !t->parent)
            here = first.conversation == f->conversation.id &&
                   (first.id == f->conversation.head ||
                    (first.status >= STORAGE_TURN_FAILED && first.parent == f->conversation.head));
        if (first.age_ms > STORAGE_KEY_KEPT_MS) {
            storage_turn_free(&first);
            return 0;
        }
        if (here && (!first.delivered || given_up(&first)))
            return repeat(l, t, &first, parent);
        storage_turn_free(&first);
    }
    return 0;
}

/* Whether this was asked before. What is not stored leaves no key, and its key may name nothing else. */
static int find_first(struct storage_ledger *l, struct turn *t, int64_t *parent)
{
    if (t->key && !t->ask.count) {
        int rc = accept_hash(&t->found.owner, t->key, strlen(t->key), t->key_hash);
        return rc ? rc : find_key(l, t, parent);
    }
    bool maybe = t->found.failure == SESSION_OK && t->ask.retry && t->ask.has_digest && t->ask.store;
    return maybe ? find_repetition(l, t, parent) : 0;
}

/* What it follows, with its tokens; all of its past only where that must be rendered anew. */
static int read_parent(struct storage_ledger *l, struct turn *t, int64_t parent)
{
    struct found *f = &t->found;
    int rc = storage_turn_by_id(l, f->owner.id, parent, 0, &f->parent);
    if (rc || f->copied.id)
        return rc; /* its context is that one's, whatever comes before */
    if ((rc = storage_turn_is_leaf(l, parent)) < 0)
        return rc;
    f->branches = rc == 0;
    rc = find_tools(l, t, parent, (!t->ask.generate || t->ask.keeps) && !t->ask.match);
    if (!rc && t->ask.keeps && !t->instructions && !t->ask.match &&
        !(t->instructions = strdup(f->parent.instructions ? f->parent.instructions : "")))
        rc = -ENOMEM;
    if (!rc && engine_chat_has_efforts(t->session->engine)) {
        rc = storage_turn_context(l, f->owner.id, parent, &f->tokens, &f->tokens_bytes);
        if (!rc)
            context_effort(t);
    }
    f->anew = !rc && context_past_changes(t);
    if (!rc)
        rc = strip_find(l, t);
    if (f->anew || (!rc && truncate_may_be(t, f->parent.n_tokens)))
        rc = storage_turn_path(l, f->owner.id, parent, STORAGE_TURN_TOKENS | STORAGE_TURN_ITEMS, &f->path, &f->n_path);
    if (rc || f->anew)
        return rc;
    const struct storage_turn *base = context_base(t);
    if (base->id && !f->tokens)
        rc = storage_turn_context(l, f->owner.id, base->id, &f->tokens, &f->tokens_bytes);
    return rc;
}

/* What would be written is refused now to who has as much as it may have. */
static int find_limits(struct storage_ledger *l, struct turn *t)
{
    struct found *f = &t->found;
    int rc =
        limits_check(l, t->session, f->owner.id, t->owner, !f->conversation.id, f->over_limit, sizeof f->over_limit);
    return rc == -EMFILE || rc == -EFBIG ? turn_refuse(t, 0, SESSION_QUOTA, f->over_limit) : rc;
}

static int find_run(struct storage_ledger *l, void *arg)
{
    struct turn *t = arg;
    struct found *f = &t->found;
    int64_t parent = 0;
    int rc = storage_owner_get(l, t->owner, &f->owner);
    size_t len;
    if (t->tools && engine_json(t->tools, strlen(t->tools), true, &t->tools_form, &len))
        return turn_refuse(t, 0, SESSION_INVALID, "the definitions of tools could not be read");
    const char *wrong = NULL;
    if (!rc && !(rc = items_resolve(l, t, &wrong)) && wrong)
        return turn_refuse(t, 0, SESSION_INVALID, wrong);
    /* Stored, a digest must not tell what was asked to those who can guess it. */
    if (!rc && t->ask.has_digest)
        rc = accept_hash(&f->owner, t->digest, sizeof t->digest, t->digest_hash);
    if (!rc && t->ask.requeued)
        rc = find_requeued(l, t, &parent);
    else if (!rc && t->continues)
        rc = find_continued(l, t, &parent);
    else if (!rc && t->conversation)
        rc = find_conversation(l, t, &parent);
    else if (!rc && t->previous)
        rc = find_previous(l, t, &parent);
    else if (!rc && t->ask.match)
        rc = find_match(l, t, &parent);
    if (!rc && !t->ask.requeued && !f->stored.id) /* which is no repetition of itself */
        rc = find_first(l, t, &parent);
    if (!rc && f->failure == SESSION_OK && t->ask.store && !t->ask.count && !turn_touches(t) && !t->ask.requeued &&
        !f->stored.id && !f->replaces && !t->replaces)
        rc = find_limits(l, t);
    if (!rc && f->failure == SESSION_OK && parent && !f->stored.id)
        rc = read_parent(l, t, parent);
    if (!rc && f->copied.id)
        rc = find_tools(l, t, f->copied.id, true);
    if (!rc && f->failure == SESSION_OK && !f->stored.id && !(rc = items_check_results(l, t, &wrong)) && wrong)
        rc = turn_refuse(t, 0, SESSION_INVALID, wrong);
    return rc;
}

static void find_done(void *arg, int rc)
{
    struct turn *t = arg;
    if (session_disk_full(rc))
        turn_refuse(t, 0, SESSION_DISK_FULL, "the disk is full: nothing can be written; free some space on the server");
    else if (rc)
        turn_refuse(t, 0, SESSION_LEDGER, "the conversation could not be read");
    turn_back(t, turn_found);
}

int lookup_find(struct turn *t)
{
    return storage_submit(t->session->storage, (struct storage_job){.run = find_run, .done = find_done, .arg = t});
}

/* ---- plan: which segments hold the context? ---- */

static int common_tokens(const struct storage_found *found, const engine_token *ids, int n)
{
    const engine_token *label = found->label;
    int have = (int)(found->label_bytes / sizeof *label), i = 0;
    while (i < n && i < have && label[i] == ids[i])
        i++;
    return i;
}

/* How many segments behind `parent` are lost that others are behind, which are there: 0: none; negative. */
static int lost(struct storage_ledger *l, const struct session *s, const struct storage_owner *owner,
                const uint8_t parent[STORAGE_KEY_BYTES], const engine_token *ids, int most)
{
    uint8_t key[STORAGE_KEY_BYTES];
    int n = 0, rc = most < SESSION_SEGMENT_TOKENS ? 0 : storage_segment_lost(l, NULL);
    if (rc <= 0)
        return rc;
    memcpy(key, parent, sizeof key);
    for (rc = 0; !rc && most >= SESSION_SEGMENT_TOKENS; most -= SESSION_SEGMENT_TOKENS, n++) {
        rc = segment_key(owner->key, s->info->kv_identity, key, ids + n * SESSION_SEGMENT_TOKENS,
                         SESSION_SEGMENT_TOKENS, key);
        if (!rc)
            rc = storage_segment_lost(l, key);
    }
    return rc == 1 ? n : rc;
}

/* The one behind `key`, which gets its. 0 or negative. */
static int lost_found(const struct session *s, const struct storage_owner *owner, uint8_t key[STORAGE_KEY_BYTES],
                      const engine_token *ids, int pos, struct storage_found *out)
{
    const size_t bytes = SESSION_SEGMENT_TOKENS * sizeof *ids;
    int rc = segment_key(owner->key, s->info->kv_identity, key, ids + pos, SESSION_SEGMENT_TOKENS, key);
    *out = (struct storage_found){.first = (uint32_t)pos,
                                  .count = SESSION_SEGMENT_TOKENS,
                                  .label = rc ? NULL : malloc(bytes),
                                  .label_bytes = (uint32_t)bytes,
                                  .pack = STORAGE_PACK_NONE};
    if (!out->label)
        return rc ? rc : -ENOMEM;
    memcpy(out->label, ids + pos, bytes);
    memcpy(out->key, key, sizeof out->key);
    memcpy(out->producer, s->info->numerics, strnlen(s->info->numerics, sizeof out->producer - 1));
    return 0;
}

int lookup_walk(struct storage_ledger *l, const struct session *s, const struct storage_owner *owner,
                const uint8_t first_parent[STORAGE_KEY_BYTES], const engine_token *ids, int pos, int most,
                int (*take)(void *arg, struct storage_found *found, int pos, int used), void *arg)
{
    uint8_t parent[STORAGE_KEY_BYTES];
    memcpy(parent, first_parent, sizeof parent);
    while (pos < most) {
        int want = most - pos < SESSION_SEGMENT_TOKENS ? most - pos : SESSION_SEGMENT_TOKENS;
        struct storage_found rows[2];
        size_t n = 0;
        int best = -1, used = 0;
        bool best_own = false; /* of the same length those of the numerics that run are taken */
        int rc = storage_segment_nearest(l, owner->id, s->info->kv_identity, parent, ids + pos,
                                         (uint32_t)want * sizeof *ids, rows, &n);
        if (rc)
            return rc;
        for (size_t i = 0; i < n; i++) {
            int common = common_tokens(&rows[i], ids + pos, want);
            bool own = strcmp(rows[i].producer, s->info->numerics) == 0;
            if ((common > used || (best >= 0 && common == used && own && !best_own)) &&
                rows[i].first == (uint32_t)pos && rows[i].count * sizeof *ids == rows[i].label_bytes) {
                used = common;
                best = (int)i;
                best_own = own;
            }
        }
        for (size_t i = 0; i < n; i++)
            if ((int)i != best)
                free(rows[i].label);
        if (best >= 0 && used == SESSION_SEGMENT_TOKENS)
            memcpy(parent, rows[best].key, sizeof parent);
        if (best >= 0 && (rc = take(arg, &rows[best], pos, used)))
            return rc;
        if (used == SESSION_SEGMENT_TOKENS) {
            pos += used;
            continue;
        }
        int left = lost(l, s, owner, parent, ids + pos, most - pos);
        if (left <= 0)
            return left;
        for (; left-- > 0; pos += SESSION_SEGMENT_TOKENS)
            if ((rc = lost_found(s, owner, parent, ids, pos, &rows[0])) ||
                (rc = take(arg, &rows[0], pos, SESSION_SEGMENT_TOKENS)))
                return rc;
    }
    return 0;
}

/* Tokens that are in its pages; one that waits has none. */
static int in_pages(const struct turn *t)
{
    return t->hot ? engine_seq_length(t->hot->seq) : 0;
}

static int plan_take(void *arg, struct storage_found *found, int pos, int used)
{
    struct turn *t = arg;
    if (!t->session->accept_any && pos + used > in_pages(t) && strcmp(found->producer, t->session->info->numerics)) {
        t->lost_reason = "numerics_changed";
        free(found->label);
        return 1;
    }
    if (pos + used > t->plan.most) { /* the last one's logits are wanted, and they are not stored */
        t->plan.rerun_last |= !t->aside.n;
        used = t->plan.most - pos;
    }
    if (used == 0 || pos + used <= in_pages(t)) {
        free(found->label);
        return 0;
    }
    struct planned *plan = realloc(t->plan.parts, (size_t)(t->plan.n + 1) * sizeof *plan);
    if (!plan) {
        free(found->label);
        return -ENOMEM;
    }
    t->plan.parts = plan;
    plan[t->plan.n++] = (struct planned){.found = *found, .first = pos, .used = used, .turn = t};
    return 0;
}

static int plan_run(struct storage_ledger *l, void *arg)
{
    struct turn *t = arg;
    int hot = in_pages(t), pos = 0;
    uint8_t parent[STORAGE_KEY_BYTES] = {0};
    for (; pos + SESSION_SEGMENT_TOKENS <= hot; pos += SESSION_SEGMENT_TOKENS) {
        uint8_t key[STORAGE_KEY_BYTES];
        int rc = segment_key(t->found.owner.key, t->session->info->kv_identity, parent, t->context.ids + pos,
                             SESSION_SEGMENT_TOKENS, key);
        if (rc)
            return rc;
        memcpy(parent, key, sizeof parent);
    }
    if (t->lost_reason && !strcmp(t->lost_reason, "blob_missing") && storage_indexing(l))
        t->lost_reason = "not_indexed";
    int rc = lookup_walk(l, t->session, &t->found.owner, parent, t->context.ids, pos, (int)t->context.n, plan_take, t);
    return rc > 0 ? 0 : rc; /* where other numerics begin it ends */
}

static void plan_done(void *arg, int rc)
{
    (void)rc; /* an index that cannot be read is a miss */
    turn_back(arg, turn_planned);
}

static void plan_early_done(void *arg, int rc)
{
    (void)rc;
    turn_back(arg, turn_planned_early);
}

int lookup_plan(struct turn *t)
{
    return storage_submit(
        t->session->storage,
        (struct storage_job){
            .run = plan_run, .done = t->state == TURN_WAITING ? plan_early_done : plan_done, .arg = t, .reads = true});
}
