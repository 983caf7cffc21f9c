/* fake_session_rows.c - the double's conversations and responses: everything of session.h that is not a turn. */
#include "tests/daemon/fake_session_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct conversation *fake_find_conversation(struct session *s, const char *owner, const char *id)
{
    for (struct conversation *c = s->conversations; c && id; c = c->next) {
        if (strcmp(c->id, id) == 0 && strcmp(c->owner, owner) == 0) {
            return c;
        }
    }
    return NULL;
}

struct response *fake_find_response(struct session *s, const char *owner, const char *id)
{
    for (struct response *r = s->responses; r && id; r = r->next) {
        if (strcmp(r->id, id) == 0 && strcmp(r->owner, owner) == 0) {
            return r;
        }
    }
    return NULL;
}

/* ---- copies of items
 * ------------------------------------------------------------------------------------------ */

struct session_texts {
    pthread_t by; /* who made it */
};

static atomic_int texts_away; /* that another thread had made than the one that started their turn */

struct session_texts *session_texts_new(const struct session_item *items, size_t n)
{
    struct session_texts *texts = calloc(1, sizeof(*texts));
    (void)items;
    (void)n;
    if (texts) {
        texts->by = pthread_self();
    }
    return texts;
}

void session_texts_free(struct session_texts *texts)
{
    free(texts);
}

void fake_take_texts(struct session_texts *texts)
{
    texts_away += texts && !pthread_equal(texts->by, pthread_self());
    free(texts);
}

int fake_texts_away(void)
{
    return texts_away;
}

/* ---- conversations and responses
 * ------------------------------------------------------------------------------------------ */

static void show_conversation(const struct conversation *c, struct session_conversation *out)
{
    *out = (struct session_conversation){.id = c->id,
                                         .title = c->title,
                                         .metadata = c->metadata,
                                         .instructions = c->instructions,
                                         .head = c->head,
                                         .tier = c->tier,
                                         .running = c->running != NULL,
                                         .running_response = c->running,
                                         .created_ms = c->created_ms,
                                         .updated_ms = c->updated_ms};
}

void fake_show_response(const struct response *r, struct session_response *out)
{
    *out = (struct session_response){.id = r->id,
                                     .conversation = r->conversation,
                                     .previous = r->previous,
                                     .listed = r->listed,
                                     .status = r->status,
                                     .reason = r->reason,
                                     .instructions = r->instructions,
                                     .items = r->items,
                                     .n_items = r->n_items,
                                     .answered = r->output != NULL,
                                     .params = r->params,
                                     .receipt = r->receipt,
                                     .input_tokens = r->input_tokens,
                                     .cached_tokens = 3,
                                     .output_tokens = r->output_tokens,
                                     .created_ms = r->created_ms,
                                     .completed_ms = r->created_ms};
}

static int answer_code(session_done *done, void *arg, int rc)
{
    done(arg, &(struct session_result){.rc = rc});
    return 0;
}

int session_conversation_create(struct session *s, const char *owner, const char *id, const char *title,
                                const char *metadata, const char *instructions, const char *key,
                                const unsigned char *digest, session_done *done, void *arg)
{
    (void)key, (void)digest;
    struct conversation *c = calloc(1, sizeof(*c));
    if (!c) {
        return -ENOMEM;
    }
    c->id = fake_copy(id);
    c->owner = fake_copy(owner);
    c->title = fake_copy(title);
    c->metadata = fake_copy(metadata);
    c->instructions = fake_copy(instructions);
    c->tier = "none";
    c->created_ms = c->updated_ms = fake_wall_ms();
    fake_lock();
    c->next = s->conversations;
    s->conversations = c;
    struct session_conversation shown;
    show_conversation(c, &shown);
    done(arg, &(struct session_result){.conversations = &shown, .n_conversations = 1});
    fake_unlock();
    return 0;
}

int session_conversation_made(struct session *s, const char *owner, const char *key, const unsigned char *digest,
                              session_done *done, void *arg)
{
    (void)s, (void)owner, (void)key, (void)digest;
    done(arg, &(struct session_result){0}); /* it remembers no keys */
    return 0;
}

int session_conversation_get(struct session *s, const char *owner, const char *id, session_done *done, void *arg)
{
    fake_lock();
    struct conversation *c = fake_find_conversation(s, owner, id);
    struct session_conversation shown;
    if (c) {
        show_conversation(c, &shown);
        done(arg, &(struct session_result){.conversations = &shown, .n_conversations = 1});
    } else {
        answer_code(done, arg, -ENOENT);
    }
    fake_unlock();
    return 0;
}

static void replace(char **field, const char *value)
{
    if (value) {
        free(*field);
        *field = fake_copy(value);
    }
}

int session_conversation_update(struct session *s, const char *owner, const char *id, const char *title,
                                const char *metadata, const char *instructions, const char *head, session_done *done,
                                void *arg)
{
    (void)head;
    fake_lock();
    struct conversation *c = fake_find_conversation(s, owner, id);
    if (c) {
        replace(&c->title, title);
        replace(&c->metadata, metadata);
        replace(&c->instructions, instructions);
    }
    /* Without a row, to see that the daemon asks for it. */
    answer_code(done, arg, c ? 0 : -ENOENT);
    fake_unlock();
    return 0;
}

int session_conversation_delete(struct session *s, const char *owner, const char *id, session_done *done, void *arg)
{
    fake_lock();
    struct conversation *c = fake_find_conversation(s, owner, id);
    int rc = !c ? -ENOENT : c->running ? -EBUSY : 0;
    for (struct response **at = &s->responses; !rc && *at;) {
        struct response *r = *at;
        if (strcmp(r->conversation, id) == 0) {
            *at = r->next;
            fake_free_response(r);
        } else {
            at = &r->next;
        }
    }
    for (struct conversation **at = &s->conversations; !rc && *at; at = &(*at)->next) {
        if (*at == c) {
            *at = c->next;
            fake_free_conversation(c);
            break;
        }
    }
    answer_code(done, arg, rc);
    fake_unlock();
    return 0;
}

static void ignore(void *arg, const struct session_result *r)
{
    (void)arg, (void)r;
}

void session_conversation_unmake(struct session *s, const char *owner, const char *id)
{
    (void)session_conversation_delete(s, owner, id, ignore, NULL);
}

int session_conversation_list(struct session *s, const char *owner, const char *after, int limit, const char *query,
                              session_done *done, void *arg)
{
    struct session_conversation shown[100];
    size_t n = 0;
    bool seen = after == NULL, more = false;
    fake_lock();
    for (struct conversation *c = s->conversations; c; c = c->next) {
        if (strcmp(c->owner, owner) != 0 || (query && !(c->title && strstr(c->title, query)))) {
            continue;
        }
        if (seen && n == (size_t)limit) {
            more = true;
            break;
        }
        if (seen) {
            show_conversation(c, &shown[n++]);
        } else if (strcmp(c->id, after) == 0) {
            seen = true;
        }
    }
    done(arg, &(struct session_result){.conversations = shown, .n_conversations = n, .more = more});
    fake_unlock();
    return 0;
}

int session_conversation_items(struct session *s, const char *owner, const char *id, bool descending, const char *after,
                               int limit, session_done *done, void *arg)
{
    struct session_item all[1024], shown[128];
    size_t total = 0, n = 0, n_all = 0, at = 0;
    fake_lock();
    if (!fake_find_conversation(s, owner, id)) {
        answer_code(done, arg, -ENOENT);
        fake_unlock();
        return 0;
    }
    for (struct response *r = s->responses; r; r = r->next) {
        total += strcmp(r->conversation, id) == 0;
    }
    for (size_t skip = total; skip-- > 0;) { /* the list has the newest first */
        size_t k = 0;
        struct response *r = s->responses;
        while (strcmp(r->conversation, id) != 0 || k++ < skip) {
            r = r->next;
        }
        for (size_t i = 0; i < r->n_items && n_all < 1024; i++) {
            all[n_all] = r->items[i];
            all[n_all++].response = r->id;
        }
    }
    while (after && at < n_all && strcmp(all[descending ? n_all - 1 - at : at].id, after) != 0) {
        at++;
    }
    bool missing = after && at++ == n_all;
    while (at < n_all && n < (size_t)limit) {
        shown[n++] = all[descending ? n_all - 1 - at : at];
        at++;
    }
    if (missing) {
        answer_code(done, arg, -ERANGE);
    } else {
        done(arg, &(struct session_result){.items = shown, .n_items = n, .more = at < n_all});
    }
    fake_unlock();
    return 0;
}

int session_conversation_item(struct session *s, const char *owner, const char *id, const char *item,
                              session_done *done, void *arg)
{
    struct conversation *c;
    fake_lock();
    c = fake_find_conversation(s, owner, id);
    for (struct response *r = c ? s->responses : NULL; r; r = r->next) {
        for (size_t i = 0; i < r->n_items && strcmp(r->conversation, id) == 0; i++) {
            if (strcmp(r->items[i].id, item) == 0) {
                done(arg, &(struct session_result){.items = &r->items[i], .n_items = 1});
                fake_unlock();
                return 0;
            }
        }
    }
    answer_code(done, arg, c ? -ERANGE : -ENOENT);
    fake_unlock();
    return 0;
}

/* All of them on one page, the newest first: no test asks for more. */
int session_conversation_turns(struct session *s, const char *owner, const char *id, const char *after, int limit,
                               session_done *done, void *arg)
{
    struct session_response shown[16];
    size_t n = 0;
    fake_lock();
    (void)after, (void)limit;
    for (struct response *r = fake_find_conversation(s, owner, id) ? s->responses : NULL; r && n < 16; r = r->next) {
        if (strcmp(r->conversation, id) == 0) {
            fake_show_response(r, &shown[n++]);
        }
    }
    done(arg, &(struct session_result){.responses = shown, .n_responses = n});
    fake_unlock();
    return 0;
}

int session_conversation_evict(struct session *s, const char *owner, const char *id, bool to_disk, session_done *done,
                               void *arg)
{
    fake_lock();
    struct conversation *c = fake_find_conversation(s, owner, id);
    if (c) {
        c->tier = to_disk ? "disk" : "ram";
    }
    answer_code(done, arg, c ? 0 : -ENOENT);
    fake_unlock();
    return 0;
}

int session_response_get(struct session *s, const char *owner, const char *id, session_done *done, void *arg)
{
    fake_lock();
    struct response *r = fake_find_response(s, owner, id);
    struct session_response shown;
    if (r && !r->ephemeral) {
        fake_show_response(r, &shown);
        done(arg, &(struct session_result){.responses = &shown, .n_responses = 1});
    } else {
        answer_code(done, arg, -ENOENT);
    }
    fake_unlock();
    return 0;
}

int session_response_delete(struct session *s, const char *owner, const char *id, session_done *done, void *arg)
{
    int rc = -ENOENT;
    fake_lock();
    for (struct response **at = &s->responses; *at; at = &(*at)->next) {
        struct response *r = *at;
        if (strcmp(r->id, id) == 0 && strcmp(r->owner, owner) == 0) {
            *at = r->next;
            fake_free_response(r);
            rc = 0;
            break;
        }
    }
    answer_code(done, arg, rc);
    fake_unlock();
    return 0;
}

static bool device_failed;

void fake_fail_device(bool failed)
{
    fake_lock();
    device_failed = failed;
    fake_unlock();
}

void session_status(struct session *s, struct session_status *out)
{
    fake_lock();
    *out = s->status;
    out->running = s->n_threads;
    out->hot_budget = 1000;
    out->failed = device_failed;
    fake_unlock();
}

int session_retry_s(struct session *s)
{
    (void)s;
    return 7;
}

/* ---- what the session is told, and what works on a folder ----------------------------------------------------------
 */

int session_hand_over(struct session *s, const char *from, const char *to, const char *why)
{
    (void)s, (void)from, (void)to, (void)why;
    return 0;
}

int session_usage(struct session *s, const char *owner, session_done *done, void *arg)
{
    (void)s, (void)owner;
    const struct session_usage usage = {.conversations = 3,
                                        .ledger_bytes = 4000,
                                        .kv_bytes = 500,
                                        .kv_known = true,
                                        .limits = {.conversations = 10, .kv_bytes = 600}};
    done(arg, &(struct session_result){.usage = &usage});
    return 0;
}

int session_limits_set(struct session *s, const struct session_limits *everyone,
                       const struct session_owner_limits *rows, size_t n)
{
    (void)s, (void)everyone, (void)rows, (void)n;
    return 0;
}

int session_requeue(struct session *s,
                    void (*each)(void *arg, const char *owner, const char *response_id, const char *request), void *arg)
{
    (void)s;
    each(arg, NULL, NULL, NULL);
    return 0;
}

void session_queued_fail(struct session *s, const char *owner, const char *response_id, const char *reason)
{
    (void)s, (void)owner, (void)response_id, (void)reason;
}

bool session_disk_full(int rc)
{
    return rc == -ENOSPC || rc == -EDQUOT;
}

int session_backup(struct session *s, const char *to, bool with_kv, char *err, size_t err_size)
{
    (void)s, (void)to, (void)with_kv;
    snprintf(err, err_size, "the double has nothing to copy");
    return -ENOTSUP;
}

void session_backup_stop(struct session *s)
{
    (void)s;
}

int session_backup_of(const char *data_dir, const char *to, bool with_kv,
                      void (*log)(void *arg, int priority, const char *text), void *log_arg, char *err, size_t err_size)
{
    (void)data_dir, (void)log, (void)log_arg;
    return session_backup(NULL, to, with_kv, err, err_size);
}

int session_verify(const char *data_dir, bool repair, void (*report)(void *arg, const char *text), void *arg,
                   void (*log)(void *arg, int priority, const char *text), void *log_arg, struct session_checked *out,
                   char *err, size_t err_size)
{
    (void)data_dir, (void)repair, (void)report, (void)arg, (void)log, (void)log_arg;
    *out = (struct session_checked){0};
    snprintf(err, err_size, "the double has nothing to check");
    return -ENOTSUP;
}

/* ---- of the engine ---- */

/* Each is its byte, but for one that is long. */
const char *session_token_bytes(const struct session *s, engine_token id, size_t *len)
{
    static const char bell[] = "ding ding ding ding ding ding ding ding ding ding ding dong ding";
    static char bytes[256];
    (void)s;
    if (id == '\a') {
        *len = sizeof(bell) - 1;
        return bell;
    }
    for (int i = 0; i < 256; i++) {
        bytes[i] = (char)i;
    }
    *len = 1;
    return &bytes[id];
}

const char *engine_chat_format_at(size_t i)
{
    static const char *const names[] = {"chatml", "llama2"};
    return i < 2 ? names[i] : NULL;
}

void engine_tokens_free(struct engine_tokens *t)
{
    free(t->ids);
    memset(t, 0, sizeof(*t));
}
