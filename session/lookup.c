/* lookup.c - a turn's jobs on the ledger thread.
 *
 * While a job is under way it owns turn->found (find), turn->plan (plan) or turn->row (commit), and reads the request
 * and the context, which do not change meanwhile. The result comes back to the engine thread as a command.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "session/session_internal.h"

#define MATCH_TRIES 64 /* answers, from the last one, whose history is looked for */

static void back(struct turn *t, void (*run)(struct session *s, void *arg))
{
    /* A lost command would leave the turn unanswered for ever; commands are a few bytes, so try until it goes. */
    while (session_post(t->session, run, t))
        ;
}

/* ---- find: what does the turn follow? ---- */

static int refuse(struct turn *t, enum session_failure failure, const char *message)
{
    t->found.failure = failure;
    t->found.message = message;
    return 0;
}

static int find_conversation(struct storage_ledger *l, struct turn *t, int64_t *parent)
{
    struct found *f = &t->found;
    int rc = storage_conversation_get(l, f->owner.id, t->conversation, &f->conversation);
    if (rc == -ENOENT)
        return refuse(t, SESSION_CONVERSATION_NOT_FOUND, "there is no conversation with this id");
    if (rc)
        return rc;
    *parent = f->conversation.head;
    if (!t->parent)
        return 0;
    *parent = 0;
    if (!t->parent[0])
        return 0;
    struct storage_turn turn;
    rc = storage_turn_get(l, f->owner.id, t->parent, &turn);
    if (rc && rc != -ENOENT)
        return rc;
    if (rc || turn.conversation != f->conversation.id)
        refuse(t, SESSION_PREVIOUS_NOT_FOUND, "`parent` is not a response of this conversation");
    else
        *parent = turn.id;
    if (!rc)
        storage_turn_free(&turn);
    return 0;
}

static int find_previous(struct storage_ledger *l, struct turn *t, int64_t *parent)
{
    struct found *f = &t->found;
    struct storage_turn turn;
    int rc = storage_turn_get(l, f->owner.id, t->previous, &turn);
    if (rc == -ENOENT)
        return refuse(t, SESSION_PREVIOUS_NOT_FOUND, "there is no response with this id");
    if (rc)
        return rc;
    *parent = turn.id;
    rc = storage_conversation_by_id(l, f->owner.id, turn.conversation, &f->conversation);
    storage_turn_free(&turn);
    return rc;
}

static int find_match(struct storage_ledger *l, struct turn *t, int64_t *parent)
{
    struct found *f = &t->found;
    int tries = 0, rc = -ENOENT;
    int64_t conversation = 0;
    size_t n = t->n_messages;
    uint8_t(*hashes)[32] = malloc((n + 1) * sizeof *hashes); /* after each message */
    if (!hashes)
        return -ENOMEM;
    context_chat_hashes(t, NULL, 0, hashes);
    while (rc == -ENOENT && n-- > 1 && tries < MATCH_TRIES)
        if (t->messages[n - 1].role == ENGINE_ASSISTANT) {
            rc = storage_turn_match(l, f->owner.id, hashes[n - 1], t->session->info->model_sha256, parent,
                                    &conversation);
            tries++;
        }
    free(hashes);
    if (rc == -ENOENT) {
        *parent = 0;
        return 0;
    }
    if (rc)
        return rc;
    f->matched = n;
    return storage_conversation_by_id(l, f->owner.id, conversation, &f->conversation);
}

static int find_run(struct storage_ledger *l, void *arg)
{
    struct turn *t = arg;
    struct found *f = &t->found;
    int64_t parent = 0;
    int rc = storage_owner_get(l, t->owner, &f->owner);
    if (!rc && t->conversation)
        rc = find_conversation(l, t, &parent);
    else if (!rc && t->previous)
        rc = find_previous(l, t, &parent);
    else if (!rc && t->match)
        rc = find_match(l, t, &parent);
    if (!rc && f->failure == SESSION_OK && parent)
        rc = storage_turn_path(l, f->owner.id, parent, true, &f->path, &f->n_path);
    return rc;
}

static void find_done(void *arg, int rc)
{
    struct turn *t = arg;
    if (rc)
        refuse(t, SESSION_LEDGER, "the conversation could not be read");
    back(t, turn_found);
}

int lookup_find(struct turn *t)
{
    return storage_submit(t->session->storage, (struct storage_job){find_run, find_done, t});
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

int lookup_walk(struct storage_ledger *l, const struct session *s, int64_t owner,
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
        int rc = storage_segment_nearest(l, owner, s->info->fingerprint, parent, ids + pos,
                                         (uint32_t)want * sizeof *ids, rows, &n);
        if (rc)
            return rc;
        for (size_t i = 0; i < n; i++) {
            int common = common_tokens(&rows[i], ids + pos, want);
            if (common > used && rows[i].first == (uint32_t)pos && rows[i].count * sizeof *ids == rows[i].label_bytes) {
                used = common;
                best = (int)i;
            }
        }
        for (size_t i = 0; i < n; i++)
            if ((int)i != best)
                free(rows[i].label);
        if (best < 0)
            return 0;
        memcpy(parent, rows[best].key, sizeof parent);
        bool whole = used == SESSION_SEGMENT_TOKENS;
        if ((rc = take(arg, &rows[best], pos, used)))
            return rc;
        pos += used;
        if (!whole)
            return 0;
    }
    return 0;
}

static int plan_take(void *arg, struct storage_found *found, int pos, int used)
{
    struct turn *t = arg;
    if (pos + used > t->plan_most) { /* the last one's logits are wanted, and they are not stored */
        t->rerun_last = true;
        used = t->plan_most - pos;
    }
    if (used == 0 || pos + used <= engine_seq_length(t->hot->seq)) {
        free(found->label);
        return 0;
    }
    struct planned *plan = realloc(t->plan, (size_t)(t->n_plan + 1) * sizeof *plan);
    if (!plan) {
        free(found->label);
        return -ENOMEM;
    }
    t->plan = plan;
    plan[t->n_plan++] = (struct planned){.found = *found, .first = pos, .used = used, .turn = t};
    return 0;
}

static int plan_run(struct storage_ledger *l, void *arg)
{
    struct turn *t = arg;
    int hot = engine_seq_length(t->hot->seq), pos = 0;
    uint8_t parent[STORAGE_KEY_BYTES] = {0};
    for (; pos + SESSION_SEGMENT_TOKENS <= hot; pos += SESSION_SEGMENT_TOKENS) {
        uint8_t key[STORAGE_KEY_BYTES];
        int rc = segment_key(t->hot->owner_key, t->session->info->fingerprint, parent, t->context.ids + pos,
                             SESSION_SEGMENT_TOKENS, key);
        if (rc)
            return rc;
        memcpy(parent, key, sizeof parent);
    }
    return lookup_walk(l, t->session, t->hot->owner, parent, t->context.ids, pos, t->n_prompt, plan_take, t);
}

static void plan_done(void *arg, int rc)
{
    (void)rc; /* an index that cannot be read is a miss */
    back(arg, turn_planned);
}

int lookup_plan(struct turn *t)
{
    return storage_submit(t->session->storage, (struct storage_job){plan_run, plan_done, t});
}

/* ---- commit ---- */

static int new_id(const char *prefix, char *out, size_t out_size)
{
    uint8_t random[16];
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return -EIO;
    size_t n = strlen(prefix);
    if (n + 2 * sizeof random + 1 > out_size)
        return -EINVAL;
    memcpy(out, prefix, n);
    for (size_t i = 0; i < sizeof random; i++) {
        out[n + 2 * i] = "0123456789abcdef"[random[i] >> 4];
        out[n + 2 * i + 1] = "0123456789abcdef"[random[i] & 15];
    }
    out[n + 2 * sizeof random] = 0;
    return 0;
}

static int commit_run(struct storage_ledger *l, void *arg)
{
    struct turn *t = arg;
    int rc;
    t->row.conversation = t->found.conversation.id;
    if (t->row.conversation == 0) {
        struct storage_conversation c = {.owner = t->found.owner.id,
                                         .public_id = t->found.conversation.public_id,
                                         .kind = t->match ? STORAGE_CONVERSATION_STATELESS : STORAGE_CONVERSATION_CHAIN,
                                         .created_ms = t->row.created_ms,
                                         .updated_ms = t->row.created_ms};
        if ((rc = storage_conversation_insert(l, &c)))
            return rc;
        t->row.conversation = c.id;
    }
    if ((rc = storage_turn_insert(l, &t->row)))
        return rc;
    /* Others may have renamed it meanwhile: only the head moves. */
    struct storage_conversation now;
    if ((rc = storage_conversation_by_id(l, t->found.owner.id, t->row.conversation, &now)))
        return rc;
    now.head = t->row.id;
    now.updated_ms = t->row.completed_ms;
    rc = storage_conversation_update(l, &now);
    storage_conversation_free(&now);
    return rc;
}

static void commit_done(void *arg, int rc)
{
    struct turn *t = arg;
    t->commit_rc = rc;
    back(t, turn_committed);
}

int lookup_name(struct turn *t)
{
    char id[48];
    int rc = new_id("conv_", id, sizeof id);
    if (!rc && !(t->found.conversation.public_id = strdup(id)))
        rc = -ENOMEM;
    return rc;
}

int lookup_commit(struct turn *t)
{
    return storage_submit(t->session->storage, (struct storage_job){commit_run, commit_done, t});
}
