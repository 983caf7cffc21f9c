/* conversations.c - everything that is asked of conversations and responses apart from running a turn.
 *
 * A query is copied, runs as one job on the ledger thread and answers from there. Two need the engine thread first:
 * delete stops a turn that runs on the conversation, and evict must not meet one (-EBUSY); both wait until the saving
 * of its last turn has ended (otherwise it would come back to life, or be lost), and drop its pages. They go: ledger
 * (find the row) -> engine -> ledger -> answer.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "session/session_internal.h"

#define LIST_MAX 100

enum query_kind { CREATE, MADE, GET, UPDATE, DELETE, LIST, ITEMS, ITEM, TURNS, EVICT, RESPONSE_GET, RESPONSE_DELETE };

struct query {
    struct query *next;
    struct session *session;
    enum query_kind kind;
    char *owner, *id, *title, *metadata, *instructions, *text, *key;
    uint8_t digest[SESSION_DIGEST_BYTES];
    int limit;
    bool to_disk, descending;
    bool started, again; /* LIST: the cursor is set; there are more titles to look at */
    bool cut;            /* it ended since its rows are long: there may be others */
    struct storage_cursor at;
    session_done *done;
    void *arg;

    struct storage_owner owner_row;
    struct storage_conversation *conversations; /* [limit + 1] for LIST, else [1] */
    size_t n_conversations;
    char **heads;             /* public id of each row's head, or NULL */
    struct storage_turn turn; /* of RESPONSE_*, id 0: none */
    char *previous;
    struct storage_item *items; /* [limit + 1] of a page */
    size_t n_items;
    struct storage_turn *turns; /* [limit + 1] of a page */
    char **parents;             /* public id of what each follows, or NULL */
    size_t n_turns;
    uint8_t (*keys)[STORAGE_KEY_BYTES];
    size_t n_keys;
    struct prune *prune;
    bool tried;  /* EVICT: to save what could not be saved before */
    bool pruned; /* RESPONSE_DELETE: what stays of the last segment is stored */
    int rc;
};

static void query_free(struct query *q)
{
    char *texts[] = {q->owner, q->id, q->title, q->metadata, q->instructions, q->text, q->key, q->previous};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        free(texts[i]);
    for (size_t i = 0; i < q->n_conversations; i++) {
        storage_conversation_free(&q->conversations[i]);
        if (q->heads)
            free(q->heads[i]);
    }
    free(q->conversations);
    free(q->heads);
    storage_turn_free(&q->turn);
    storage_items_free(q->items, q->n_items);
    for (size_t i = 0; q->parents && i < q->n_turns; i++)
        free(q->parents[i]);
    free(q->parents);
    storage_turns_free(q->turns, q->n_turns);
    free(q->keys);
    prune_free(q->prune);
    free(q);
}

/* ---- answers ---- */

static void fill_conversation(struct session *s, const struct storage_conversation *row, const char *head,
                              char running[LIVE_RESPONSE_SIZE], struct session_conversation *out)
{
    bool hot = live_look(s, row->id, running);
    *out = (struct session_conversation){.id = row->public_id,
                                         .title = row->title,
                                         .metadata = row->metadata,
                                         .instructions = row->instructions,
                                         .head = head,
                                         .tier = hot         ? "hot"
                                                 : row->head ? "stored"
                                                             : "none",
                                         .running = running[0] != 0,
                                         .running_response = running[0] ? running : NULL,
                                         .created_ms = row->created_ms,
                                         .updated_ms = row->updated_ms,
                                         .n_turns = row->n_turns,
                                         .n_tokens = row->n_tokens};
}

/* A page of responses. */
static int fill_turns(struct query *q, struct session_result *result, struct session_response **responses,
                      struct stored ***own)
{
    size_t n = q->n_turns;
    if (n > (size_t)q->limit) {
        n = (size_t)q->limit;
        result->more = true;
    }
    *responses = calloc(n + 1, sizeof **responses);
    *own = calloc(n + 1, sizeof **own);
    int rc = *responses && *own ? 0 : -ENOMEM;
    for (size_t i = 0; !rc && i < n; i++)
        rc = stored_response(&q->turns[i], &q->conversations[0], q->parents[i], &(*responses)[i], &(*own)[i]);
    if (!rc) {
        result->responses = *responses;
        result->n_responses = n;
    }
    return rc;
}

static void answer(struct query *q, int rc)
{
    struct session_result result = {.rc = rc};
    struct session_conversation *conversations = NULL;
    struct session_response response;
    struct session_item *items = NULL;
    struct session_response *page = NULL;
    struct stored *own = NULL, **page_own = NULL;
    char(*running)[LIVE_RESPONSE_SIZE] = NULL;
    size_t n = q->n_conversations, n_items = q->n_items;
    if (rc == 0 && n > 0) {
        if (q->kind == LIST && n > (size_t)q->limit) {
            n = (size_t)q->limit;
            result.more = true;
        }
        result.more |= q->cut;
        conversations = calloc(n, sizeof *conversations);
        running = calloc(n, sizeof *running);
        for (size_t i = 0; conversations && running && i < n; i++)
            fill_conversation(q->session, &q->conversations[i], q->heads ? q->heads[i] : NULL, running[i],
                              &conversations[i]);
        if (!conversations || !running)
            result.rc = -ENOMEM;
    }
    if (rc == 0 && q->kind == RESPONSE_GET)
        result.rc = stored_response(&q->turn, &q->conversations[0], q->previous, &response, &own);
    if (rc == 0 && q->kind == TURNS)
        result.rc = fill_turns(q, &result, &page, &page_own);
    if (rc == 0 && (q->kind == ITEMS || q->kind == ITEM)) {
        if (n_items > (size_t)q->limit) {
            n_items = (size_t)q->limit;
            result.more = true;
        }
        items = stored_items(q->items, n_items);
        result.rc = items ? 0 : -ENOMEM;
    }
    if (result.rc == 0) {
        result.conversations = conversations;
        result.n_conversations = conversations ? n : 0;
        if (own) {
            result.responses = &response;
            result.n_responses = 1;
        }
        result.items = items;
        result.n_items = items ? n_items : 0;
    }
    q->done(q->arg, &result);
    stored_free(own);
    for (size_t i = 0; page_own && i < q->n_turns; i++)
        stored_free(page_own[i]);
    free(page_own);
    free(page);
    free(items);
    free(conversations);
    free(running);
    query_free(q);
}

/* ---- on the ledger thread ---- */

static int get_conversation(struct storage_ledger *l, struct query *q)
{
    q->conversations = calloc(1, sizeof *q->conversations);
    if (!q->conversations)
        return -ENOMEM;
    int rc = storage_conversation_get(l, q->owner_row.id, q->id, &q->conversations[0]);
    if (rc == 0)
        q->n_conversations = 1;
    return rc;
}

static int add_heads(struct storage_ledger *l, struct query *q)
{
    q->heads = calloc(q->n_conversations + 1, sizeof *q->heads);
    if (!q->heads)
        return -ENOMEM;
    for (size_t i = 0; i < q->n_conversations; i++)
        if (q->conversations[i].head) {
            int rc = storage_turn_public_id(l, q->conversations[i].head, &q->heads[i]);
            if (rc)
                return rc;
        }
    return 0;
}

/* NULL leaves the field, "" empties it. */
static int replace(char **field, const char *text)
{
    if (!text)
        return 0;
    char *c = *text ? strdup(text) : NULL;
    if (*text && !c)
        return -ENOMEM;
    free(*field);
    *field = c;
    return 0;
}

/* 0: nothing was made with the query's key; 1: the conversation was. */
static int created_before(struct storage_ledger *l, struct query *q, const uint8_t key[STORAGE_DIGEST_BYTES])
{
    char *target = NULL;
    int rc = storage_key_get(l, q->owner_row.id, key, q->digest, &target);
    if (rc)
        return rc == -ENOENT ? 0 : rc == -EINVAL ? -EKEYREJECTED : rc;
    rc = storage_conversation_get(l, q->owner_row.id, target, &q->conversations[0]);
    free(target);
    if (rc)
        return rc;
    q->n_conversations = 1;
    return 1;
}

/* The same, with the conversation's head; its key and digest as they are stored. */
static int made(struct storage_ledger *l, struct query *q, uint8_t key[STORAGE_DIGEST_BYTES])
{
    uint8_t digest[STORAGE_DIGEST_BYTES];
    q->conversations = calloc(1, sizeof *q->conversations);
    if (!q->conversations)
        return -ENOMEM;
    if (!q->key)
        return 0;
    int rc = accept_hash(&q->owner_row, q->key, strlen(q->key), key);
    if (!rc)
        rc = accept_hash(&q->owner_row, q->digest, sizeof q->digest, digest);
    if (rc)
        return rc;
    memcpy(q->digest, digest, sizeof digest);
    rc = created_before(l, q, key);
    int heads = rc == 1 ? add_heads(l, q) : 0;
    return heads ? heads : rc;
}

static int create(struct storage_ledger *l, struct query *q)
{
    uint8_t key[STORAGE_DIGEST_BYTES];
    int rc = made(l, q, key);
    if (rc)
        return rc < 0 ? rc : 0;
    char why[128];
    rc = limits_check(l, q->session, q->owner_row.id, q->owner, true, why, sizeof why);
    if (rc)
        return rc;
    struct storage_conversation *c = &q->conversations[0];
    q->n_conversations = 1;
    c->owner = q->owner_row.id;
    c->kind = STORAGE_CONVERSATION_LISTED;
    c->created_ms = c->updated_ms = session_wall_ms();
    if (replace(&c->public_id, q->id) || replace(&c->title, q->title) || replace(&c->metadata, q->metadata) ||
        replace(&c->instructions, q->instructions))
        return -ENOMEM;
    rc = storage_conversation_insert(l, c);
    return rc || !q->key ? rc : storage_key_set(l, q->owner_row.id, key, q->digest, q->id);
}

/* The next turn will follow the response that q->text names ("": none). */
static int move_head(struct storage_ledger *l, const struct query *q, struct storage_conversation *c)
{
    int rc = storage_conversation_runs(l, c->id);
    if (rc)
        return rc < 0 ? rc : -EBUSY;
    c->head = 0;
    if (!*q->text)
        return 0;
    struct storage_turn turn;
    rc = storage_turn_get(l, q->owner_row.id, q->text, 0, &turn);
    if (rc)
        return rc == -ENOENT ? -ESRCH : rc;
    if (turn.conversation == c->id && (turn.status == STORAGE_TURN_COMPLETED || turn.status == STORAGE_TURN_INCOMPLETE))
        c->head = turn.id;
    storage_turn_free(&turn);
    return c->head ? 0 : -ESRCH;
}

static int update(struct storage_ledger *l, struct query *q)
{
    int rc = get_conversation(l, q);
    if (rc)
        return rc;
    struct storage_conversation *c = &q->conversations[0];
    size_t before = storage_conversation_bytes(c);
    char why[128];
    if (replace(&c->title, q->title) || replace(&c->metadata, q->metadata) ||
        replace(&c->instructions, q->instructions))
        return -ENOMEM;
    if (storage_conversation_bytes(c) > before)
        rc = limits_check(l, q->session, q->owner_row.id, q->owner, false, why, sizeof why);
    if (rc)
        return rc;
    c->updated_ms = session_wall_ms();
    rc = q->text ? move_head(l, q, c) : 0;
    rc = rc ? rc : storage_conversation_update(l, c);
    if (rc || !q->text)
        return rc;
    storage_conversation_free(c); /* what there is up to another head is another number of turns and tokens */
    return storage_conversation_get(l, q->owner_row.id, q->id, c);
}

static int list(struct storage_ledger *l, struct query *q)
{
    size_t most = (size_t)q->limit + 1, n = 0;
    bool over = true;
    if (!q->conversations)
        q->conversations = calloc(most, sizeof *q->conversations);
    if (!q->conversations)
        return -ENOMEM;
    int rc = q->started ? 0 : storage_conversation_cursor(l, q->owner_row.id, q->id, &q->at);
    q->started = true;
    if (!rc && !q->text)
        rc = storage_conversation_list(l, q->owner_row.id, q->at, q->conversations, most, &n);
    else if (!rc)
        rc = storage_conversation_search(l, q->owner_row.id, &q->at, q->text, q->conversations + q->n_conversations,
                                         most - q->n_conversations, &n, &over);
    size_t bytes = 0;
    q->n_conversations += n;
    for (size_t i = 0; i < q->n_conversations; i++)
        bytes += storage_conversation_bytes(&q->conversations[i]);
    q->cut = bytes >= STORAGE_LIST_BYTES;
    q->again = !rc && !over && !q->cut;
    return rc;
}

static int get_response(struct storage_ledger *l, struct query *q)
{
    int rc = storage_turn_get(l, q->owner_row.id, q->id, STORAGE_TURN_ITEMS, &q->turn);
    if (rc)
        return rc;
    q->conversations = calloc(1, sizeof *q->conversations);
    if (!q->conversations)
        return -ENOMEM;
    if ((rc = storage_conversation_by_id(l, q->owner_row.id, q->turn.conversation, &q->conversations[0])))
        return rc;
    q->n_conversations = 1;
    return q->turn.parent ? storage_turn_public_id(l, q->turn.parent, &q->previous) : 0;
}

static int take_key(void *arg, struct storage_found *found, int pos, int used)
{
    struct query *q = arg;
    (void)pos, (void)used;
    free(found->label);
    void *grown = realloc(q->keys, (q->n_keys + 1) * sizeof *q->keys);
    if (!grown)
        return -ENOMEM;
    q->keys = grown;
    memcpy(q->keys[q->n_keys++], found->key, sizeof *q->keys);
    return 0;
}

/* Keys of the segments that hold a turn's context. */
static int context_keys(struct storage_ledger *l, struct query *q, int64_t turn)
{
    static const uint8_t root[STORAGE_KEY_BYTES];
    struct engine_tokens tokens = {0};
    int rc = context_of_turn(l, q->owner_row.id, turn, &tokens);
    if (!rc)
        rc = lookup_walk(l, q->session, &q->owner_row, root, tokens.ids, 0, (int)tokens.n, take_key, q);
    engine_tokens_free(&tokens);
    return rc;
}

/* Of the conversation's head, as it is and without thinking. */
static int segment_keys(struct storage_ledger *l, struct query *q)
{
    struct storage_turn stripped;
    int64_t head = q->conversations[0].head;
    int rc = head ? context_keys(l, q, head) : 0;
    if (rc || !head)
        return rc;
    rc = storage_turn_stripped(l, q->owner_row.id, head, &stripped);
    if (rc)
        return rc == -ENOENT ? 0 : rc;
    rc = context_keys(l, q, stripped.id);
    storage_turn_free(&stripped);
    return rc;
}

/* A page of all that was answered, and what each follows. */
static int turns(struct storage_ledger *l, struct query *q)
{
    int64_t after = 0;
    int rc = 0;
    if (q->text) {
        struct storage_turn turn;
        rc = storage_turn_get(l, q->owner_row.id, q->text, 0, &turn);
        if (rc)
            return rc == -ENOENT ? -ERANGE : rc;
        after = turn.conversation == q->conversations[0].id ? turn.id : 0;
        storage_turn_free(&turn);
        if (!after)
            return -ERANGE;
    }
    rc = storage_turns_page(l, q->owner_row.id, q->conversations[0].id, after, (size_t)q->limit + 1, &q->turns,
                            &q->n_turns);
    if (rc)
        return rc;
    q->parents = calloc(q->n_turns + 1, sizeof *q->parents);
    rc = q->parents ? 0 : -ENOMEM;
    for (size_t i = 0; !rc && i < q->n_turns; i++)
        if (q->turns[i].parent)
            rc = storage_turn_public_id(l, q->turns[i].parent, &q->parents[i]);
    return rc;
}

static int query_find(struct storage_ledger *l, struct query *q)
{
    int rc = storage_owner_get(l, q->owner, &q->owner_row);
    if (rc)
        return rc;
    switch (q->kind) {
    case CREATE:
        return create(l, q);
    case MADE: {
        uint8_t key[STORAGE_DIGEST_BYTES];
        rc = made(l, q, key);
        return rc < 0 ? rc : 0;
    }
    case GET:
        rc = get_conversation(l, q);
        break;
    case UPDATE:
        rc = update(l, q);
        break;
    case LIST:
        rc = list(l, q);
        break;
    case ITEMS:
        if ((rc = get_conversation(l, q)))
            break;
        rc = storage_items_page(l, q->owner_row.id, q->conversations[0].id, q->conversations[0].head, q->descending,
                                q->text, (size_t)q->limit + 1, &q->items, &q->n_items);
        rc = rc == -ENOENT ? -ERANGE : rc;
        break;
    case ITEM:
        if ((rc = get_conversation(l, q)))
            break;
        rc = storage_item_get(l, q->owner_row.id, q->conversations[0].id, q->conversations[0].head, q->text, &q->items);
        q->n_items = !rc;
        rc = rc == -ENOENT ? -ERANGE : rc;
        break;
    case TURNS:
        rc = get_conversation(l, q);
        rc = rc ? rc : turns(l, q);
        break;
    case DELETE:
    case EVICT:
        return get_conversation(l, q);
    case RESPONSE_GET:
    case RESPONSE_DELETE:
        rc = get_response(l, q);
        break;
    }
    return rc || q->again ? rc : add_heads(l, q);
}

/* What its owner has deleted is told as such until nothing of it is left on the disk. */
static int query_run(struct storage_ledger *l, void *arg)
{
    struct query *q = arg;
    int rc = query_find(l, q);
    if (rc == -ENOENT && q->id && storage_deleting(l, q->owner_row.id, q->id) == 1)
        rc = -EINPROGRESS;
    return rc;
}

/* ---- delete and evict: the engine thread's part ---- */

static int settled_run(struct storage_ledger *l, void *arg)
{
    struct query *q = arg;
    if (q->kind == EVICT)
        return segment_keys(l, q); /* now that all of them are in the index */
    if (q->kind == RESPONSE_DELETE && !q->pruned) {
        int rc = storage_turn_is_leaf(l, q->turn.id);
        if (rc <= 0)
            return rc ? rc : -ECHILD;
        if (q->turn.parent && q->turn.status != STORAGE_TURN_FAILED) /* without it the deletion is as good */
            (void)prune_find(l, q->session, &q->owner_row, storage_turn_base(&q->turn), &q->prune);
        return 0;
    }
    if (q->kind == RESPONSE_DELETE) {
        int rc = storage_turn_delete(l, q->owner_row.id, q->id);
        return rc == -EBUSY ? -ECHILD : rc;
    }
    return storage_conversation_delete(l, q->owner_row.id, q->id);
}

static void settle_or_wait(struct session *s, struct query *q);

static void pruned(struct session *s, void *arg)
{
    struct query *q = arg;
    q->pruned = true;
    settle_or_wait(s, q); /* a turn may have begun meanwhile */
}

static void settled_answer(struct session *s, void *arg)
{
    struct query *q = arg;
    s->jobs--;
    if (q->kind == EVICT) {
        if (s->storage && q->n_keys)
            storage_ram_drop(s->storage, (const uint8_t(*)[STORAGE_KEY_BYTES])q->keys, q->n_keys);
        answer(q, q->rc);
        return;
    }
    if (q->rc == 0 && q->kind == RESPONSE_DELETE && !q->pruned) {
        struct prune *prune = q->prune;
        q->prune = NULL;
        if (prune && s->storage) {
            prune_start(s, prune, pruned, q);
            return;
        }
        prune_free(prune);
        pruned(s, q);
        return;
    }
    if (q->rc == 0)
        hot_distrust(s, q->owner_row.id);
    answer(q, q->rc);
}

static void settled_done(void *arg, int rc)
{
    struct query *q = arg;
    q->rc = rc;
    while (session_post(q->session, settled_answer, q))
        ;
}

/* Until a turn is found only the name says where it belongs. */
static bool runs_on(const struct turn *t, const struct query *q)
{
    const struct storage_conversation *c = &q->conversations[0];
    if (t->state == TURN_OVER)
        return false;
    if (t->state <= TURN_FINDING)
        return t->conversation && !strcmp(t->owner, q->owner) && !strcmp(t->conversation, c->public_id);
    return t->found.conversation.id == c->id;
}

bool conversation_settle(struct session *s, int64_t owner, int64_t conversation)
{
    if (hot_discards(s, owner))
        return false;
    for (const struct saving *saving = s->savings; saving; saving = saving->next)
        if (saving->conversation == conversation)
            return false;
    for (struct hot *h = s->hots, *next; h; h = next) {
        next = h->next;
        if (!h->user && h->conversation == conversation)
            hot_free(s, h);
    }
    return true;
}

/* True when the query is answered or on its way; false: it must wait for a saving, or for a turn that it has stopped.
 */
static bool settle(struct session *s, struct query *q)
{
    int64_t conversation = q->conversations[0].id;
    bool running = false;
    for (struct turn *t = s->turns; t; t = t->next) {
        if (!runs_on(t, q))
            continue;
        /* What is to be deleted is stopped, and goes when it has ended. */
        if (!t->ask.strips &&
            (q->kind == EVICT || (q->kind == RESPONSE_DELETE && strcmp(t->response_id, q->id) != 0))) {
            answer(q, -EBUSY);
            return true;
        }
        t->end.cancelled = running = true;
    }
    if (running)
        return false;
    if (q->kind == EVICT && !q->tried) { /* before its pages go */
        q->tried = true;
        (void)unsaved_try(s, conversation);
    }
    if (!conversation_settle(s, q->owner_row.id, conversation))
        return false;
    if (q->kind == EVICT && !q->to_disk) {
        answer(q, 0);
        return true;
    }
    s->jobs++;
    if (storage_submit(s->storage, (struct storage_job){.run = settled_run, .done = settled_done, .arg = q})) {
        s->jobs--;
        answer(q, -ENOMEM);
    }
    return true;
}

static void settle_or_wait(struct session *s, struct query *q)
{
    if (q->rc || !s->storage) {
        answer(q, q->rc ? q->rc : -ESHUTDOWN);
        return;
    }
    if (settle(s, q))
        return;
    q->next = s->queries;
    s->queries = q;
}

void query_retry(struct session *s)
{
    struct query *waiting = s->queries;
    s->queries = NULL;
    while (waiting) {
        struct query *q = waiting;
        waiting = q->next;
        if (!settle(s, q)) {
            q->next = s->queries;
            s->queries = q;
        }
    }
}

void query_abort(struct session *s)
{
    while (s->queries) {
        struct query *q = s->queries;
        s->queries = q->next;
        answer(q, -ESHUTDOWN);
    }
}

/* ---- starting queries ---- */

static void query_done(void *arg, int rc)
{
    struct query *q = arg;
    if (!rc && q->again) {
        rc = storage_submit(q->session->storage, (struct storage_job){.run = query_run, .done = query_done, .arg = q});
        if (!rc)
            return;
    }
    answer(q, rc);
}

static void found(struct session *s, void *arg)
{
    s->jobs--;
    settle_or_wait(s, arg);
}

static void found_done(void *arg, int rc)
{
    struct query *q = arg;
    q->rc = rc;
    while (session_post(q->session, found, q))
        ;
}

/* Counted as one of the engine thread's jobs from the start, so that closing waits for it. */
static void start_on_engine(struct session *s, void *arg)
{
    struct query *q = arg;
    if (!s->storage) {
        answer(q, -ESHUTDOWN);
        return;
    }
    s->jobs++;
    if (storage_submit(s->storage, (struct storage_job){.run = query_run, .done = found_done, .arg = q})) {
        s->jobs--;
        answer(q, -ENOMEM);
    }
}

static int start(struct session *s, enum query_kind kind, const char *owner, const char *id, const char *title,
                 const char *metadata, const char *instructions, struct query settings)
{
    struct query *q = malloc(sizeof *q);
    if (!q)
        return -ENOMEM;
    *q = settings;
    q->session = s;
    q->kind = kind;
    const char *const from[] = {owner, id, title, metadata, instructions, settings.text, settings.key};
    char **to[] = {&q->owner, &q->id, &q->title, &q->metadata, &q->instructions, &q->text, &q->key};
    bool failed = false;
    for (size_t i = 0; i < sizeof to / sizeof *to; i++) {
        *to[i] = from[i] ? strdup(from[i]) : NULL;
        failed |= from[i] && !*to[i];
    }
    bool engine = kind == DELETE || kind == EVICT || kind == RESPONSE_DELETE;
    int rc = failed ? -ENOMEM
             : engine
                 ? session_post(s, start_on_engine, q)
                 : storage_submit(s->storage, (struct storage_job){.run = query_run, .done = query_done, .arg = q});
    if (rc)
        query_free(q);
    return rc;
}

int session_conversation_create(struct session *s, const char *owner, const char *id, const char *title,
                                const char *metadata, const char *instructions, const char *key,
                                const unsigned char *digest, session_done *done, void *arg)
{
    struct query settings = {.done = done, .arg = arg};
    if (key && digest) {
        settings.key = (char *)key;
        memcpy(settings.digest, digest, sizeof settings.digest);
    }
    return start(s, CREATE, owner, id, title, metadata, instructions, settings);
}

int session_conversation_made(struct session *s, const char *owner, const char *key, const unsigned char *digest,
                              session_done *done, void *arg)
{
    struct query settings = {.done = done, .arg = arg, .key = (char *)key};
    memcpy(settings.digest, digest, sizeof settings.digest);
    return start(s, MADE, owner, NULL, NULL, NULL, NULL, settings);
}

int session_conversation_get(struct session *s, const char *owner, const char *id, session_done *done, void *arg)
{
    return start(s, GET, owner, id, NULL, NULL, NULL, (struct query){.done = done, .arg = arg});
}

int session_conversation_update(struct session *s, const char *owner, const char *id, const char *title,
                                const char *metadata, const char *instructions, const char *head, session_done *done,
                                void *arg)
{
    return start(s, UPDATE, owner, id, title, metadata, instructions,
                 (struct query){.done = done, .arg = arg, .text = (char *)head});
}

int session_conversation_delete(struct session *s, const char *owner, const char *id, session_done *done, void *arg)
{
    return start(s, DELETE, owner, id, NULL, NULL, NULL, (struct query){.done = done, .arg = arg});
}

int session_conversation_list(struct session *s, const char *owner, const char *after, int limit, const char *query,
                              session_done *done, void *arg)
{
    if (limit < 1 || limit > LIST_MAX)
        return -EINVAL;
    return start(s, LIST, owner, after, NULL, NULL, NULL,
                 (struct query){.done = done, .arg = arg, .limit = limit, .text = (char *)query});
}

int session_conversation_items(struct session *s, const char *owner, const char *id, bool descending, const char *after,
                               int limit, session_done *done, void *arg)
{
    if (limit < 1 || limit > LIST_MAX)
        return -EINVAL;
    return start(
        s, ITEMS, owner, id, NULL, NULL, NULL,
        (struct query){.done = done, .arg = arg, .limit = limit, .descending = descending, .text = (char *)after});
}

int session_conversation_item(struct session *s, const char *owner, const char *id, const char *item,
                              session_done *done, void *arg)
{
    return start(s, ITEM, owner, id, NULL, NULL, NULL,
                 (struct query){.done = done, .arg = arg, .limit = 1, .text = (char *)item});
}

int session_conversation_turns(struct session *s, const char *owner, const char *id, const char *after, int limit,
                               session_done *done, void *arg)
{
    if (limit < 1 || limit > LIST_MAX)
        return -EINVAL;
    return start(s, TURNS, owner, id, NULL, NULL, NULL,
                 (struct query){.done = done, .arg = arg, .limit = limit, .text = (char *)after});
}

int session_conversation_evict(struct session *s, const char *owner, const char *id, bool to_disk, session_done *done,
                               void *arg)
{
    return start(s, EVICT, owner, id, NULL, NULL, NULL, (struct query){.done = done, .arg = arg, .to_disk = to_disk});
}

int session_response_get(struct session *s, const char *owner, const char *id, session_done *done, void *arg)
{
    return start(s, RESPONSE_GET, owner, id, NULL, NULL, NULL, (struct query){.done = done, .arg = arg});
}

int session_response_delete(struct session *s, const char *owner, const char *id, session_done *done, void *arg)
{
    return start(s, RESPONSE_DELETE, owner, id, NULL, NULL, NULL, (struct query){.done = done, .arg = arg});
}
