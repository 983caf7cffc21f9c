/* conversations.c - everything that is asked of conversations and responses apart from running a turn.
 *
 * A query is copied, runs as one job on the ledger thread and answers from there. Two need the engine thread first:
 * delete and evict must not meet a turn that runs on the conversation (-EBUSY), wait until the saving of its last turn
 * has ended (otherwise it would come back to life, or be lost), and drop its pages. They go: ledger (find the row) ->
 * engine -> ledger -> answer.
 */
#include <cjson/cJSON.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "session/session_internal.h"

#define LIST_MAX 100

enum query_kind { CREATE, GET, UPDATE, DELETE, LIST, RESPONSES, EVICT, RESPONSE_GET, RESPONSE_DELETE };

struct query {
    struct query *next;
    struct session *session;
    enum query_kind kind;
    char *owner, *id, *title, *metadata, *instructions, *text;
    int limit;
    bool to_disk;
    session_done *done;
    void *arg;

    struct storage_owner owner_row;
    struct storage_conversation *conversations; /* [limit + 1] for LIST, else [1] */
    size_t n_conversations;
    char **heads; /* public id of each row's head, or NULL */
    struct storage_turn *turns;
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
    char *texts[] = {q->owner, q->id, q->title, q->metadata, q->instructions, q->text};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        free(texts[i]);
    for (size_t i = 0; i < q->n_conversations; i++) {
        storage_conversation_free(&q->conversations[i]);
        if (q->heads)
            free(q->heads[i]);
    }
    free(q->conversations);
    free(q->heads);
    for (size_t i = 0; i < q->n_turns; i++)
        storage_turn_free(&q->turns[i]);
    free(q->turns);
    free(q->keys);
    prune_free(q->prune);
    free(q);
}

/* ---- answers ---- */

void live_publish(struct session *s)
{
    s->n_live = 0;
    for (int pass = 0; pass < 2; pass++) {
        struct turn *t = s->turns;
        struct hot *h = s->hots;
        while (pass ? t != NULL : h != NULL) {
            bool relevant = pass ? t->state > TURN_FINDING && t->state != TURN_OVER : true;
            int64_t conversation = !relevant ? 0 : pass ? t->found.conversation.id : h->conversation;
            int i = 0;
            while (i < s->n_live && s->live[i].conversation != conversation)
                i++;
            if (conversation && relevant && i == s->live_capacity) {
                int capacity = s->live_capacity ? 2 * s->live_capacity : 16;
                struct live *grown = realloc(s->live, (size_t)capacity * sizeof *grown);
                if (!grown)
                    return; /* told as not hot: harmless */
                s->live = grown;
                s->live_capacity = capacity;
            }
            if (conversation && relevant) {
                if (i == s->n_live)
                    s->live[s->n_live++] = (struct live){.conversation = conversation};
                if (pass)
                    strncpy(s->live[i].running, t->response_id, sizeof s->live[i].running - 1);
                else
                    s->live[i].hot = true;
            }
            if (pass)
                t = t->next;
            else
                h = h->next;
        }
    }
}

static void fill_conversation(struct session *s, const struct storage_conversation *row, const char *head,
                              struct live *live, struct session_conversation *out)
{
    memset(live, 0, sizeof *live);
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < s->n_live; i++)
        if (s->live[i].conversation == row->id)
            *live = s->live[i];
    pthread_mutex_unlock(&s->lock);
    *out = (struct session_conversation){.id = row->public_id,
                                         .title = row->title,
                                         .metadata = row->metadata,
                                         .instructions = row->instructions,
                                         .head = head,
                                         .tier = live->hot   ? "hot"
                                                 : row->head ? "stored"
                                                             : "none",
                                         .running = live->running[0] != 0,
                                         .running_response = live->running[0] ? live->running : NULL,
                                         .created_ms = row->created_ms,
                                         .updated_ms = row->updated_ms,
                                         .n_turns = row->n_turns,
                                         .n_tokens = row->n_tokens};
}

static int detail_number(const cJSON *object, const char *name)
{
    const cJSON *n = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsNumber(n) ? n->valueint : 0;
}

/* texts[2] get what the response's strings point to and the caller frees: params and receipt. */
static void fill_response(const struct query *q, size_t i, struct session_response *out, char *texts[2])
{
    static const char *const statuses[] = {"completed", "incomplete", "failed"};
    const struct storage_turn *row = &q->turns[i];
    const struct storage_conversation *c = q->n_conversations ? &q->conversations[0] : NULL;
    cJSON *detail = cJSON_Parse(row->detail ? row->detail : "{}");
    const cJSON *usage = cJSON_GetObjectItemCaseSensitive(detail, "usage");
    cJSON *params = cJSON_GetObjectItemCaseSensitive(detail, "params");
    cJSON *receipt = cJSON_GetObjectItemCaseSensitive(detail, "receipt");
    texts[0] = params ? cJSON_PrintUnformatted(params) : NULL;
    texts[1] = receipt ? cJSON_PrintUnformatted(receipt) : NULL;
    *out = (struct session_response){.id = row->public_id,
                                     .conversation = c ? c->public_id : NULL,
                                     .previous = i > 0 ? q->turns[i - 1].public_id : NULL,
                                     .listed = c && c->kind == STORAGE_CONVERSATION_LISTED,
                                     .status = statuses[row->status],
                                     .reason = row->reason,
                                     .instructions = row->instructions,
                                     .input = row->input ? row->input : "[]",
                                     .output = row->output ? row->output : "",
                                     .params = texts[0],
                                     .receipt = texts[1],
                                     .input_tokens = detail_number(usage, "input"),
                                     .cached_tokens = detail_number(usage, "cached"),
                                     .output_tokens = detail_number(usage, "output"),
                                     .created_ms = row->created_ms,
                                     .completed_ms = row->completed_ms};
    cJSON_Delete(detail);
}

static void answer(struct query *q, int rc)
{
    struct session_result result = {.rc = rc};
    struct session_conversation *conversations = NULL;
    struct session_response *responses = NULL;
    struct live *live = NULL;
    char *(*texts)[2] = NULL;
    size_t n = q->n_conversations, first = 0;
    if (rc == 0 && n > 0) {
        if (q->kind == LIST && n > (size_t)q->limit) {
            n = (size_t)q->limit;
            result.more = true;
        }
        conversations = calloc(n, sizeof *conversations);
        live = calloc(n, sizeof *live);
        for (size_t i = 0; conversations && live && i < n; i++)
            fill_conversation(q->session, &q->conversations[i], q->heads ? q->heads[i] : NULL, &live[i],
                              &conversations[i]);
        if (!conversations || !live)
            result.rc = -ENOMEM;
    }
    if (rc == 0 && q->n_turns > 0) {
        responses = calloc(q->n_turns, sizeof *responses);
        texts = calloc(q->n_turns, sizeof *texts);
        first = q->kind == RESPONSE_GET ? q->n_turns - 1 : 0;
        for (size_t i = first; responses && texts && i < q->n_turns; i++)
            fill_response(q, i, &responses[i], texts[i]);
        if (!responses || !texts)
            result.rc = -ENOMEM;
    }
    if (result.rc == 0) {
        result.conversations = conversations;
        result.n_conversations = conversations ? n : 0;
        result.responses = responses ? responses + first : NULL;
        result.n_responses = responses ? q->n_turns - first : 0;
    }
    q->done(q->arg, &result);
    for (size_t i = 0; texts && i < q->n_turns; i++) {
        free(texts[i][0]);
        free(texts[i][1]);
    }
    free(texts);
    free(conversations);
    free(live);
    free(responses);
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

static int create(struct storage_ledger *l, struct query *q)
{
    q->conversations = calloc(1, sizeof *q->conversations);
    if (!q->conversations)
        return -ENOMEM;
    struct storage_conversation *c = &q->conversations[0];
    q->n_conversations = 1;
    c->owner = q->owner_row.id;
    c->kind = STORAGE_CONVERSATION_LISTED;
    c->created_ms = c->updated_ms = session_wall_ms();
    if (replace(&c->public_id, q->id) || replace(&c->title, q->title) || replace(&c->metadata, q->metadata) ||
        replace(&c->instructions, q->instructions))
        return -ENOMEM;
    return storage_conversation_insert(l, c);
}

static int update(struct storage_ledger *l, struct query *q)
{
    int rc = get_conversation(l, q);
    if (rc)
        return rc;
    struct storage_conversation *c = &q->conversations[0];
    if (replace(&c->title, q->title) || replace(&c->metadata, q->metadata) ||
        replace(&c->instructions, q->instructions))
        return -ENOMEM;
    c->updated_ms = session_wall_ms();
    return storage_conversation_update(l, c);
}

static int list(struct storage_ledger *l, struct query *q)
{
    q->conversations = calloc((size_t)q->limit + 1, sizeof *q->conversations);
    if (!q->conversations)
        return -ENOMEM;
    return storage_conversation_list(l, q->owner_row.id, q->id, q->text, q->conversations, (size_t)q->limit + 1,
                                     &q->n_conversations);
}

static int get_response(struct storage_ledger *l, struct query *q)
{
    struct storage_turn turn;
    int rc = storage_turn_get(l, q->owner_row.id, q->id, &turn);
    if (rc)
        return rc;
    int64_t id = turn.id, conversation = turn.conversation;
    storage_turn_free(&turn);
    q->conversations = calloc(1, sizeof *q->conversations);
    if (!q->conversations)
        return -ENOMEM;
    if ((rc = storage_conversation_by_id(l, q->owner_row.id, conversation, &q->conversations[0])))
        return rc;
    q->n_conversations = 1;
    return storage_turn_path(l, q->owner_row.id, id, false, &q->turns, &q->n_turns);
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

/* Keys of the segments that hold the conversation's head. */
static int segment_keys(struct storage_ledger *l, struct query *q)
{
    static const uint8_t root[STORAGE_KEY_BYTES];
    struct engine_tokens tokens = {0};
    struct storage_turn *path = NULL;
    size_t n = 0;
    if (!q->conversations[0].head)
        return 0;
    int rc = storage_turn_path(l, q->owner_row.id, q->conversations[0].head, true, &path, &n);
    if (rc)
        return rc;
    rc = context_of_path(path, n, &tokens, NULL);
    if (!rc)
        rc = lookup_walk(l, q->session, q->owner_row.id, root, tokens.ids, 0, (int)tokens.n, take_key, q);
    for (size_t i = 0; i < n; i++)
        storage_turn_free(&path[i]);
    free(path);
    engine_tokens_free(&tokens);
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
    case GET:
        rc = get_conversation(l, q);
        break;
    case UPDATE:
        rc = update(l, q);
        break;
    case LIST:
        rc = list(l, q);
        break;
    case RESPONSES:
        rc = get_conversation(l, q);
        if (!rc && q->conversations[0].head)
            rc = storage_turn_path(l, q->owner_row.id, q->conversations[0].head, false, &q->turns, &q->n_turns);
        break;
    case DELETE:
    case EVICT:
        return get_conversation(l, q);
    case RESPONSE_GET:
    case RESPONSE_DELETE:
        rc = get_response(l, q);
        break;
    }
    return rc ? rc : add_heads(l, q);
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
        int rc = storage_turn_is_leaf(l, q->turns[q->n_turns - 1].id);
        if (rc <= 0)
            return rc ? rc : -EBUSY;
        if (q->n_turns > 1) /* without it the deletion is as good */
            (void)prune_find(l, q->session, &q->owner_row, q->turns[q->n_turns - 2].id, &q->prune);
        return 0;
    }
    if (q->kind == RESPONSE_DELETE)
        return storage_turn_delete(l, q->owner_row.id, q->id);
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
    for (; q->n_turns > 0; q->n_turns--) /* nothing of it is shown: it is gone */
        storage_turn_free(&q->turns[q->n_turns - 1]);
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

/* True when the query is answered or on its way; false: it must wait for a saving. */
static bool settle(struct session *s, struct query *q)
{
    int64_t conversation = q->conversations[0].id;
    for (struct turn *t = s->turns; t; t = t->next)
        if (runs_on(t, q)) {
            answer(q, -EBUSY);
            return true;
        }
    if (q->kind == EVICT && !q->tried) { /* before its pages go */
        q->tried = true;
        (void)unsaved_try(s, conversation);
    }
    for (struct saving *saving = s->savings; saving; saving = saving->next)
        if (saving->conversation == conversation)
            return false;
    for (struct hot *h = s->hots, *next; h; h = next) {
        next = h->next;
        if (!h->user && h->conversation == conversation)
            hot_free(s, h);
    }
    pthread_mutex_lock(&s->lock);
    live_publish(s);
    pthread_mutex_unlock(&s->lock);
    if (q->kind == EVICT && !q->to_disk) {
        answer(q, 0);
        return true;
    }
    s->jobs++;
    if (storage_submit(s->storage, (struct storage_job){settled_run, settled_done, q})) {
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
    answer(arg, rc);
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
    if (storage_submit(s->storage, (struct storage_job){query_run, found_done, q})) {
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
    const char *const from[] = {owner, id, title, metadata, instructions, settings.text};
    char **to[] = {&q->owner, &q->id, &q->title, &q->metadata, &q->instructions, &q->text};
    bool failed = false;
    for (size_t i = 0; i < sizeof to / sizeof *to; i++) {
        *to[i] = from[i] ? strdup(from[i]) : NULL;
        failed |= from[i] && !*to[i];
    }
    bool engine = kind == DELETE || kind == EVICT || kind == RESPONSE_DELETE;
    int rc = failed   ? -ENOMEM
             : engine ? session_post(s, start_on_engine, q)
                      : storage_submit(s->storage, (struct storage_job){query_run, query_done, q});
    if (rc)
        query_free(q);
    return rc;
}

int session_conversation_create(struct session *s, const char *owner, const char *id, const char *title,
                                const char *metadata, const char *instructions, session_done *done, void *arg)
{
    return start(s, CREATE, owner, id, title, metadata, instructions, (struct query){.done = done, .arg = arg});
}

int session_conversation_get(struct session *s, const char *owner, const char *id, session_done *done, void *arg)
{
    return start(s, GET, owner, id, NULL, NULL, NULL, (struct query){.done = done, .arg = arg});
}

int session_conversation_update(struct session *s, const char *owner, const char *id, const char *title,
                                const char *metadata, const char *instructions, session_done *done, void *arg)
{
    return start(s, UPDATE, owner, id, title, metadata, instructions, (struct query){.done = done, .arg = arg});
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

int session_conversation_responses(struct session *s, const char *owner, const char *id, session_done *done, void *arg)
{
    return start(s, RESPONSES, owner, id, NULL, NULL, NULL, (struct query){.done = done, .arg = arg});
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
