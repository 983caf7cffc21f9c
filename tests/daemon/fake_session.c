/* fake_session.c - NOT the session: a double that implements session.h in memory, so that the protocol can be tested
 * without a model.
 *
 * Turns run on one thread each, which calls back like the real engine thread does. Conversations and responses are
 * lists under one lock. Answers are scripted by the text that is asked (fake_session.h). Linked before the library, it
 * takes the place of session/.
 */
#include "tests/daemon/fake_session.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct conversation {
    struct conversation *next;
    char *id, *owner, *title, *metadata, *instructions, *head, *running;
    int64_t created_ms, updated_ms;
    const char *tier;
};

struct response {
    struct response *next;
    char *id, *owner, *conversation, *previous, *input, *output, *params, *instructions, *receipt;
    const char *status, *reason;
    bool listed, ephemeral;
    int input_tokens, output_tokens;
    int64_t created_ms;
};

struct turn {
    struct turn *next;
    struct session *session;
    char *id, *owner, *conversation, *previous, *text, *input, *params, *instructions;
    bool store, generate, cancelled, listed;
    int failure;
    void (*event)(void *arg, const struct session_event *ev);
    void *arg;
    pthread_t thread;
};

struct session {
    struct conversation *conversations;
    struct response *responses;
    struct turn *turns;
    bool closing;
    int n_threads;
    struct session_status status;
};

/* The test and the threads of turns meet here. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int releases, started, cancelled, forgotten;
    bool hold_loading, loading_released, fail_loading;
} fake = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void lock(void)
{
    pthread_mutex_lock(&fake.lock);
}

static void unlock(void)
{
    pthread_cond_broadcast(&fake.changed);
    pthread_mutex_unlock(&fake.lock);
}

static void wait_change(void)
{
    pthread_cond_wait(&fake.changed, &fake.lock);
}

void fake_release(int n)
{
    lock();
    fake.releases += n;
    unlock();
}

void fake_wait_started(int n)
{
    lock();
    while (fake.started < n) {
        wait_change();
    }
    unlock();
}

void fake_wait_cancelled(int n)
{
    lock();
    while (fake.cancelled < n) {
        wait_change();
    }
    unlock();
}

int fake_turns_started(void)
{
    lock();
    int n = fake.started;
    unlock();
    return n;
}

int fake_forgotten(void)
{
    lock();
    int n = fake.forgotten;
    unlock();
    return n;
}

void fake_hold_loading(bool hold)
{
    lock();
    fake.hold_loading = hold;
    fake.loading_released = false;
    unlock();
}

void fake_release_loading(void)
{
    lock();
    fake.loading_released = true;
    unlock();
}

void fake_fail_loading(bool fail)
{
    lock();
    fake.fail_loading = fail;
    unlock();
}

void fake_reset(void)
{
    lock();
    fake.releases = fake.started = fake.cancelled = fake.forgotten = 0;
    fake.hold_loading = fake.loading_released = fake.fail_loading = false;
    unlock();
}

static char *copy(const char *s)
{
    return s ? strdup(s) : NULL;
}

static int64_t wall_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static const struct engine_info info = {
    .arch = "fake",
    .name = "fake-model",
    .file = "/nowhere/fake.gguf",
    .backend = "cpu-fake",
    .chat_format = "chatml",
    .kv_type = "bf16",
    .quantization = "Q4_K",
    .parameters = 1000,
    .n_layers = 1,
    .n_vocab = 100,
    .n_embd = 8,
    .ctx_model = 4096,
    .ctx_tokens = 2048,
    .kv_token_bytes = 32,
};

int session_open(const struct session_opts *opts, struct session **out, char *err, size_t err_size)
{
    if (opts->engine.progress) {
        opts->engine.progress(opts->engine.progress_arg, 0.5, "weights");
    }
    lock();
    while (fake.hold_loading && !fake.loading_released) {
        wait_change();
    }
    bool fail = fake.fail_loading;
    unlock();
    if (fail) {
        snprintf(err, err_size, "the double was told to fail");
        return -EBADMSG;
    }
    struct session *s = calloc(1, sizeof(*s));
    if (!s) {
        return -ENOMEM;
    }
    *out = s;
    return 0;
}

static void free_conversation(struct conversation *c)
{
    free(c->id);
    free(c->owner);
    free(c->title);
    free(c->metadata);
    free(c->instructions);
    free(c->head);
    free(c->running);
    free(c);
}

static void free_response(struct response *r)
{
    free(r->id);
    free(r->owner);
    free(r->conversation);
    free(r->previous);
    free(r->input);
    free(r->output);
    free(r->params);
    free(r->instructions);
    free(r->receipt);
    free(r);
}

void session_close(struct session *s, int drain_ms)
{
    (void)drain_ms;
    if (!s) {
        return;
    }
    lock();
    s->closing = true;
    pthread_cond_broadcast(&fake.changed);
    while (s->n_threads > 0) {
        wait_change();
    }
    unlock();
    while (s->conversations) {
        struct conversation *next = s->conversations->next;
        free_conversation(s->conversations);
        s->conversations = next;
    }
    while (s->responses) {
        struct response *next = s->responses->next;
        free_response(s->responses);
        s->responses = next;
    }
    free(s);
}

const struct engine_info *session_model(const struct session *s)
{
    (void)s;
    return &info;
}

int session_tokenize(const struct session *s, const char *text, size_t len, bool add_special, struct engine_tokens *out)
{
    (void)s;
    out->ids = malloc((len + 1) * sizeof(*out->ids));
    if (!out->ids) {
        return -ENOMEM;
    }
    out->n = 0;
    if (add_special) {
        out->ids[out->n++] = 1;
    }
    for (size_t i = 0; i < len; i++) {
        out->ids[out->n++] = (unsigned char)text[i];
    }
    out->capacity = len + 1;
    return 0;
}

void engine_tokens_free(struct engine_tokens *t)
{
    free(t->ids);
    memset(t, 0, sizeof(*t));
}

char *session_receipt_json(const struct session_receipt *r)
{
    char *text;
    int n = asprintf(&text,
                     "{\"conversation\":\"%s\",\"turn\":%d,\"tokens\":{\"history\":%d,\"hot\":%d,\"ram\":0,\"disk\":0,"
                     "\"new\":%d,\"prefilled\":%d,\"output\":%d},\"reprefilled\":[],\"bytes\":{\"read\":0},"
                     "\"ms\":{\"queue\":0.1,\"restore\":0,\"prefill\":1,\"ttft\":2,\"itl_p50\":1,\"itl_max\":1},"
                     "\"saved\":\"%s\",\"backend\":\"%s\",\"model\":\"%s\"}",
                     r->conversation, r->turn, r->history, r->hot, r->fresh, r->prefilled, r->output, r->saved,
                     r->backend, r->model);
    return n < 0 ? NULL : text;
}

/* ---- turns: all with the lock held unless noted
 * ------------------------------------------------------------------------ */

static struct conversation *find_conversation(struct session *s, const char *owner, const char *id)
{
    for (struct conversation *c = s->conversations; c && id; c = c->next) {
        if (strcmp(c->id, id) == 0 && strcmp(c->owner, owner) == 0) {
            return c;
        }
    }
    return NULL;
}

static struct response *find_response(struct session *s, const char *owner, const char *id)
{
    for (struct response *r = s->responses; r && id; r = r->next) {
        if (strcmp(r->id, id) == 0 && strcmp(r->owner, owner) == 0) {
            return r;
        }
    }
    return NULL;
}

/* True: go on. False: cancelled or closing. */
static bool wait_release(struct turn *t)
{
    lock();
    while (fake.releases == 0 && !t->cancelled && !t->session->closing) {
        wait_change();
    }
    bool go = !t->cancelled && !t->session->closing;
    if (go) {
        fake.releases--;
    }
    unlock();
    return go;
}

/* NULL: go on. */
static const char *stop_reason(struct turn *t)
{
    lock();
    const char *reason = t->session->closing ? "shutdown" : t->cancelled ? "cancelled" : NULL;
    unlock();
    return reason;
}

static void send(struct turn *t, const struct session_event *ev)
{
    t->event(t->arg, ev);
}

static void finish(struct turn *t, const char *answer, const char *reason)
{
    struct session *s = t->session;
    struct session_receipt receipt = {.conversation = t->store ? t->conversation : "",
                                      .turn = 1,
                                      .history = 3,
                                      .hot = 3,
                                      .fresh = 4,
                                      .prefilled = 4,
                                      .output = 5,
                                      .ttft_ms = 2,
                                      .saved = t->store ? "pending" : "off",
                                      .backend = info.backend,
                                      .model = info.name};
    lock();
    struct response *r = calloc(1, sizeof(*r));
    if (r) {
        r->id = copy(t->id);
        r->owner = copy(t->owner);
        r->conversation = copy(t->conversation);
        r->previous = copy(t->previous);
        r->input = copy(t->input);
        r->output = t->generate ? copy(answer) : NULL;
        r->params = copy(t->params);
        r->instructions = copy(t->instructions);
        struct session_receipt saved = receipt;
        saved.saved = "yes";
        r->receipt = session_receipt_json(&saved);
        r->status = reason ? "incomplete" : "completed";
        r->reason = reason;
        r->listed = t->listed;
        r->ephemeral = !t->store;
        r->input_tokens = 7;
        r->output_tokens = 5;
        r->created_ms = wall_ms();
        r->next = s->responses;
        s->responses = r;
    }
    struct conversation *c = find_conversation(s, t->owner, t->conversation);
    if (c) {
        free(c->head);
        c->head = copy(t->id);
        free(c->running);
        c->running = NULL;
        c->updated_ms = wall_ms();
    }
    s->status.turns_completed++;
    unlock();
    send(t, &(struct session_event){.kind = SESSION_EVENT_DONE,
                                    .conversation = t->store ? t->conversation : "",
                                    .text = answer,
                                    .len = strlen(answer),
                                    .incomplete = reason != NULL,
                                    .reason = reason,
                                    .input_tokens = 7,
                                    .cached_tokens = 3,
                                    .output_tokens = 5,
                                    .receipt = &receipt});
}

static void fail(struct turn *t, enum session_failure failure)
{
    lock();
    struct conversation *c = find_conversation(t->session, t->owner, t->conversation);
    if (c && c->running && strcmp(c->running, t->id) == 0) {
        free(c->running);
        c->running = NULL;
    }
    unlock();
    send(t, &(struct session_event){.kind = SESSION_EVENT_FAILED, .failure = failure, .message = "scripted failure"});
}

/* The words of `text`, one delta each; with `hold` it waits after the first. Returns the reason when stopped. */
static const char *say(struct turn *t, const char *text, bool hold, char *answer)
{
    *answer = '\0';
    size_t at = 0, len = strlen(text);
    while (at < len) {
        const char *reason = stop_reason(t);
        if (reason) {
            return reason;
        }
        size_t n = strcspn(text + at, " ") + 1;
        if (at + n > len) {
            n = len - at;
        }
        send(t, &(struct session_event){.kind = SESSION_EVENT_DELTA, .text = text + at, .len = n});
        strncat(answer, text + at, n);
        at += n;
        if (hold) {
            hold = false;
            if (!wait_release(t)) {
                return stop_reason(t);
            }
        }
    }
    return NULL;
}

static void run(struct turn *t)
{
    const char *text = t->text;
    int number = 0;
    if (t->failure) {
        fail(t, (enum session_failure)t->failure);
        return;
    }
    if (sscanf(text, "refuse %d", &number) == 1) {
        fail(t, (enum session_failure)number);
        return;
    }
    send(t, &(struct session_event){.kind = SESSION_EVENT_STARTED, .conversation = t->store ? t->conversation : ""});
    send(t, &(struct session_event){.kind = SESSION_EVENT_PROGRESS, .stage = "prefill", .done = 2, .total = 4});
    if (strcmp(text, "fail") == 0) {
        fail(t, SESSION_INTERNAL);
        return;
    }
    if (!t->generate) {
        finish(t, "", NULL);
        return;
    }
    if (strcmp(text, "wait") == 0 && !wait_release(t)) {
        finish(t, "", stop_reason(t));
        return;
    }
    bool hold = strncmp(text, "hold ", 5) == 0;
    const char *words = hold || strncmp(text, "echo ", 5) == 0 ? text + 5 : text;
    size_t size = strlen(words) + 1;
    char *built = NULL;
    if (sscanf(text, "many %d", &number) == 1) {
        size = (size_t)number * 5 + 1;
        built = malloc(size);
        if (built) {
            for (int i = 0; i < number; i++) {
                memcpy(built + (size_t)i * 5, "word ", 5);
            }
            built[size - 1] = '\0';
            words = built;
        }
    }
    char *answer = malloc(size);
    if (!answer) {
        fail(t, SESSION_INTERNAL);
    } else {
        const char *reason = say(t, words, hold, answer);
        finish(t, answer, reason ? reason : strcmp(text, "long") == 0 ? "max_output_tokens" : NULL);
    }
    free(answer);
    free(built);
}

static void *turn_thread(void *arg)
{
    struct turn *t = arg;
    struct session *s = t->session;
    run(t);
    lock();
    for (struct turn **at = &s->turns; *at; at = &(*at)->next) {
        if (*at == t) {
            *at = t->next;
            break;
        }
    }
    s->n_threads--;
    unlock();
    free(t->id);
    free(t->owner);
    free(t->conversation);
    free(t->previous);
    free(t->text);
    free(t->input);
    free(t->params);
    free(t->instructions);
    free(t);
    return NULL;
}

int session_turn_start(struct session *s, const struct session_turn *in)
{
    const struct engine_message *last = in->n_messages ? &in->messages[in->n_messages - 1] : NULL;
    struct turn *t = calloc(1, sizeof(*t));
    if (!t) {
        return -ENOMEM;
    }
    t->session = s;
    t->text = last ? strndup(last->text, last->len) : strdup("");
    int number = 0;
    if (sscanf(t->text, "start %d", &number) == 1) {
        free(t->text);
        free(t);
        return number;
    }
    t->id = copy(in->response_id);
    t->owner = copy(in->owner);
    t->previous = copy(in->previous);
    t->input = copy(in->input);
    t->params = copy(in->params);
    t->instructions = copy(in->instructions);
    t->store = in->store;
    t->generate = in->generate;
    t->event = in->event;
    t->arg = in->arg;
    lock();
    if (in->conversation) {
        struct conversation *c = find_conversation(s, in->owner, in->conversation);
        t->listed = true;
        if (!c) {
            t->failure = SESSION_CONVERSATION_NOT_FOUND;
        } else if (c->running) {
            t->failure = SESSION_CONVERSATION_LOCKED;
        } else {
            c->running = copy(t->id);
        }
        t->conversation = copy(in->conversation);
    } else if (in->previous) {
        struct response *r = find_response(s, in->owner, in->previous);
        if (!r) {
            t->failure = SESSION_PREVIOUS_NOT_FOUND;
        }
        t->conversation = copy(r ? r->conversation : "conv_none");
    } else {
        char id[64];
        snprintf(id, sizeof(id), "conv_%s", in->response_id + 5);
        t->conversation = copy(id);
    }
    t->next = s->turns;
    s->turns = t;
    s->n_threads++;
    fake.started++;
    pthread_attr_t detached;
    int rc = pthread_attr_init(&detached);
    if (!rc) {
        pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
        rc = pthread_create(&t->thread, &detached, turn_thread, t);
        pthread_attr_destroy(&detached);
    }
    if (rc) {
        abort();
    }
    unlock();
    return 0;
}

void session_cancel(struct session *s, const char *owner, const char *response_id)
{
    lock();
    for (struct turn *t = s->turns; t; t = t->next) {
        if (strcmp(t->id, response_id) == 0 && strcmp(t->owner, owner) == 0 && !t->cancelled) {
            t->cancelled = true;
            fake.cancelled++;
        }
    }
    unlock();
}

void session_forget(struct session *s, const char *owner, const char *response_id)
{
    lock();
    for (struct response **at = &s->responses; *at; at = &(*at)->next) {
        struct response *r = *at;
        if (r->ephemeral && strcmp(r->id, response_id) == 0 && strcmp(r->owner, owner) == 0) {
            *at = r->next;
            free_response(r);
            fake.forgotten++;
            break;
        }
    }
    unlock();
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

static void show_response(const struct response *r, struct session_response *out)
{
    *out = (struct session_response){.id = r->id,
                                     .conversation = r->conversation,
                                     .previous = r->previous,
                                     .listed = r->listed,
                                     .status = r->status,
                                     .reason = r->reason,
                                     .instructions = r->instructions,
                                     .input = r->input,
                                     .output = r->output,
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
                                const char *metadata, const char *instructions, session_done *done, void *arg)
{
    struct conversation *c = calloc(1, sizeof(*c));
    if (!c) {
        return -ENOMEM;
    }
    c->id = copy(id);
    c->owner = copy(owner);
    c->title = copy(title);
    c->metadata = copy(metadata);
    c->instructions = copy(instructions);
    c->tier = "none";
    c->created_ms = c->updated_ms = wall_ms();
    lock();
    c->next = s->conversations;
    s->conversations = c;
    struct session_conversation shown;
    show_conversation(c, &shown);
    done(arg, &(struct session_result){.conversations = &shown, .n_conversations = 1});
    unlock();
    return 0;
}

int session_conversation_get(struct session *s, const char *owner, const char *id, session_done *done, void *arg)
{
    lock();
    struct conversation *c = find_conversation(s, owner, id);
    struct session_conversation shown;
    if (c) {
        show_conversation(c, &shown);
        done(arg, &(struct session_result){.conversations = &shown, .n_conversations = 1});
    } else {
        answer_code(done, arg, -ENOENT);
    }
    unlock();
    return 0;
}

static void replace(char **field, const char *value)
{
    if (value) {
        free(*field);
        *field = copy(value);
    }
}

int session_conversation_update(struct session *s, const char *owner, const char *id, const char *title,
                                const char *metadata, const char *instructions, session_done *done, void *arg)
{
    lock();
    struct conversation *c = find_conversation(s, owner, id);
    if (c) {
        replace(&c->title, title);
        replace(&c->metadata, metadata);
        replace(&c->instructions, instructions);
    }
    /* Without a row, to see that the daemon asks for it. */
    answer_code(done, arg, c ? 0 : -ENOENT);
    unlock();
    return 0;
}

int session_conversation_delete(struct session *s, const char *owner, const char *id, session_done *done, void *arg)
{
    lock();
    struct conversation *c = find_conversation(s, owner, id);
    int rc = !c ? -ENOENT : c->running ? -EBUSY : 0;
    for (struct conversation **at = &s->conversations; !rc && *at; at = &(*at)->next) {
        if (*at == c) {
            *at = c->next;
            free_conversation(c);
            break;
        }
    }
    answer_code(done, arg, rc);
    unlock();
    return 0;
}

int session_conversation_list(struct session *s, const char *owner, const char *after, int limit, const char *query,
                              session_done *done, void *arg)
{
    struct session_conversation shown[100];
    size_t n = 0;
    bool seen = after == NULL, more = false;
    lock();
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
    unlock();
    return 0;
}

int session_conversation_responses(struct session *s, const char *owner, const char *id, session_done *done, void *arg)
{
    struct session_response shown[256];
    size_t n = 0;
    lock();
    if (!find_conversation(s, owner, id)) {
        answer_code(done, arg, -ENOENT);
    } else {
        size_t total = 0;
        for (struct response *r = s->responses; r && total < 256; r = r->next) {
            total += strcmp(r->conversation, id) == 0;
        }
        n = total;
        for (struct response *r = s->responses; r && total > 0; r = r->next) {
            if (strcmp(r->conversation, id) == 0) {
                show_response(r, &shown[--total]);
            }
        }
        done(arg, &(struct session_result){.responses = shown, .n_responses = n});
    }
    unlock();
    return 0;
}

int session_conversation_evict(struct session *s, const char *owner, const char *id, bool to_disk, session_done *done,
                               void *arg)
{
    lock();
    struct conversation *c = find_conversation(s, owner, id);
    if (c) {
        c->tier = to_disk ? "disk" : "ram";
    }
    answer_code(done, arg, c ? 0 : -ENOENT);
    unlock();
    return 0;
}

int session_response_get(struct session *s, const char *owner, const char *id, session_done *done, void *arg)
{
    lock();
    struct response *r = find_response(s, owner, id);
    struct session_response shown;
    if (r && !r->ephemeral) {
        show_response(r, &shown);
        done(arg, &(struct session_result){.responses = &shown, .n_responses = 1});
    } else {
        answer_code(done, arg, -ENOENT);
    }
    unlock();
    return 0;
}

int session_response_delete(struct session *s, const char *owner, const char *id, session_done *done, void *arg)
{
    int rc = -ENOENT;
    lock();
    for (struct response **at = &s->responses; *at; at = &(*at)->next) {
        struct response *r = *at;
        if (strcmp(r->id, id) == 0 && strcmp(r->owner, owner) == 0) {
            *at = r->next;
            free_response(r);
            rc = 0;
            break;
        }
    }
    answer_code(done, arg, rc);
    unlock();
    return 0;
}

void session_status(struct session *s, struct session_status *out)
{
    lock();
    *out = s->status;
    out->running = s->n_threads;
    out->hot_budget = 1000;
    unlock();
}
