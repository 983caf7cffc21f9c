/* fake_session.c - NOT the session: a double that implements session.h in memory, so that the protocol can be tested
 * without a model.
 *
 * Turns run on one thread each, which calls back like the real engine thread does. Conversations and responses are
 * lists under one lock. Answers are scripted by the text that is asked (fake_session.h). Linked before the library, it
 * takes the place of session/.
 */
#include "tests/daemon/fake_session_internal.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The test and the threads of turns meet here. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int releases, started, cancelled, forgotten, tokenizing, ended, delivered;
    bool hold_loading, loading_released, fail_loading;
} fake = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

void fake_lock(void)
{
    pthread_mutex_lock(&fake.lock);
}

void fake_unlock(void)
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
    fake_lock();
    fake.releases += n;
    fake_unlock();
}

void fake_wait_started(int n)
{
    fake_lock();
    while (fake.started < n) {
        wait_change();
    }
    fake_unlock();
}

void fake_wait_cancelled(int n)
{
    fake_lock();
    while (fake.cancelled < n) {
        wait_change();
    }
    fake_unlock();
}

void fake_wait_ended(int n)
{
    fake_lock();
    while (fake.ended < n) {
        wait_change();
    }
    fake_unlock();
}

void fake_wait_delivered(int n)
{
    fake_lock();
    while (fake.delivered < n) {
        wait_change();
    }
    fake_unlock();
}

int fake_turns_started(void)
{
    fake_lock();
    int n = fake.started;
    fake_unlock();
    return n;
}

int fake_forgotten(void)
{
    fake_lock();
    int n = fake.forgotten;
    fake_unlock();
    return n;
}

void fake_hold_loading(bool hold)
{
    fake_lock();
    fake.hold_loading = hold;
    fake.loading_released = false;
    fake_unlock();
}

void fake_release_loading(void)
{
    fake_lock();
    fake.loading_released = true;
    fake_unlock();
}

void fake_fail_loading(bool fail)
{
    fake_lock();
    fake.fail_loading = fail;
    fake_unlock();
}

void fake_reset(void)
{
    fake_lock();
    fake.releases = fake.started = fake.cancelled = fake.forgotten = fake.ended = fake.delivered = 0;
    fake.hold_loading = fake.loading_released = fake.fail_loading = false;
    fake_unlock();
}

char *fake_copy(const char *s)
{
    return s ? strdup(s) : NULL;
}

int64_t fake_wall_ms(void)
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
    .numerics = "3 cpu",
    .chat_format = "chatml",
    .kv_type = "bf16",
    .quantization = "Q4_K",
    .parameters = 1000,
    .n_layers = 1,
    .n_vocab = 256,
    .n_embd = 8,
    .ctx_model = 4096,
    .ctx_tokens = 2048,
    .kv_token_bytes = 32,
};

int session_check(const struct session_opts *opts, char *err, size_t err_size)
{
    fake_lock();
    bool fail = fake.fail_loading || strcmp(opts->engine.backend, "cuda") == 0;
    fake_unlock();
    if (fail) {
        snprintf(err, err_size, "the double was told to fail");
        return -EBADMSG;
    }
    return 0;
}

int session_profile(const struct session_opts *opts,
                    void (*told)(void *arg, const char *name, const struct session_profile_step *step), void *arg,
                    char *err, size_t err_size)
{
    int rc = session_check(opts, err, err_size);
    const struct session_profile_step step = {
        .sequences = 2,
        .tokens = 1,
        .history = 30,
        .at = {.n_rows = 1, .rows = {{"attention", 24, 2.0, 3e6, 5e9}}, .ms = 2.0, .whole_ms = 1.5}};
    if (rc == 0)
        told(arg, "a double", &step);
    return rc;
}

int session_open(const struct session_opts *opts, struct session **out, char *err, size_t err_size)
{
    if (opts->engine.progress) {
        opts->engine.progress(opts->engine.progress_arg, 0.5, "weights");
    }
    fake_lock();
    while (fake.hold_loading && !fake.loading_released) {
        wait_change();
    }
    bool fail = fake.fail_loading;
    fake_unlock();
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

void fake_free_conversation(struct conversation *c)
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

void fake_free_response(struct response *r)
{
    free(r->id);
    free(r->owner);
    free(r->conversation);
    free(r->previous);
    free(r->output);
    free(r->params);
    free(r->instructions);
    free(r->receipt);
    free(r->key);
    for (size_t i = 0; i < r->n_items; i++) {
        free((char *)r->items[i].id);
        free((char *)r->items[i].text);
        free((char *)r->items[i].body);
    }
    free(r);
}

bool session_close(struct session *s, int drain_ms)
{
    (void)drain_ms;
    if (!s) {
        return true;
    }
    fake_lock();
    if (fake.tokenizing > 0) {
        abort(); /* the real one would be gone under its user */
    }
    s->closing = true;
    pthread_cond_broadcast(&fake.changed);
    while (s->n_threads > 0) {
        wait_change();
    }
    fake_unlock();
    for (struct conversation *next; s->conversations; s->conversations = next) {
        next = s->conversations->next;
        fake_free_conversation(s->conversations);
    }
    while (s->responses) {
        struct response *next = s->responses->next;
        fake_free_response(s->responses);
        s->responses = next;
    }
    free(s);
    return true;
}

const struct engine_info *session_model(const struct session *s)
{
    (void)s;
    return &info;
}

int session_tokenize(const struct session *s, const char *text, size_t len, bool add_special, struct engine_tokens *out)
{
    (void)s;
    if (strcmp(text, "wait") == 0) {
        fake_lock();
        fake.started++;
        fake.tokenizing++;
        pthread_cond_broadcast(&fake.changed);
        while (fake.releases == 0) {
            wait_change();
        }
        fake.releases--;
        fake.tokenizing--;
        fake_unlock();
    }
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

/* True: go on. False: cancelled or closing. */
static bool wait_release(struct turn *t)
{
    fake_lock();
    while (fake.releases == 0 && !t->cancelled && !t->session->closing) {
        wait_change();
    }
    bool go = !t->cancelled && !t->session->closing;
    if (go) {
        fake.releases--;
    }
    fake_unlock();
    return go;
}

/* NULL: go on. */
static const char *stop_reason(struct turn *t)
{
    fake_lock();
    const char *reason = t->session->closing ? "shutdown"
                         : t->abandoned      ? "abandoned"
                         : t->cancelled      ? "cancelled"
                                             : NULL;
    fake_unlock();
    return reason;
}

static void send(struct turn *t, const struct session_event *ev)
{
    t->event(t->arg, ev);
}

/* ---- the answer's items ---- */

/* name: of a call's tool; NULL: it is a message, or `thinking`. */
static void begin_item(struct turn *t, const char *name, bool thinking)
{
    char *id, *body = NULL;
    const char *prefix = name ? "fc" : thinking ? "rs" : "msg";
    if (asprintf(&id, t->n_output ? "%s_%s_%zu" : "%s_%s", prefix, t->id + 5, t->n_output) < 0 ||
        (name && asprintf(&body, "{\"call_id\":\"call_%s\",\"name\":\"%s\"}", t->id + 5, name) < 0)) {
        abort();
    }
    struct session_item *item = &t->output[t->n_output++];
    *item = (struct session_item){.id = id,
                                  .kind = name       ? "function_call"
                                          : thinking ? "reasoning"
                                                     : "message",
                                  .role = ENGINE_ASSISTANT,
                                  .text = "",
                                  .body = body,
                                  .output = true};
    send(t, &(struct session_event){.kind = SESSION_EVENT_ITEM, .item = item});
}

static void delta(struct turn *t, const char *text, size_t len)
{
    /* Each piece is one token, the one of its first byte; what else there might have been has no chance. */
    struct session_logprob p = {.token = (unsigned char)text[0], .logprob = -0.5f, .n_top = t->n_top};
    for (int i = 0; i < t->n_top; i++) {
        p.top[i] = i == 0 ? (struct engine_logprob){p.token, p.logprob} : (struct engine_logprob){'a' + i, -INFINITY};
    }
    if (len) {
        send(t, &(struct session_event){.kind = SESSION_EVENT_DELTA,
                                        .text = text,
                                        .len = len,
                                        .logprobs = t->logprobs ? &p : NULL,
                                        .n_logprobs = t->logprobs});
    }
}

static void end_item(struct turn *t, const char *text, bool incomplete)
{
    struct session_item *item = &t->output[t->n_output - 1];
    item->text = fake_copy(text);
    item->len = strlen(text);
    item->incomplete = incomplete;
    send(t, &(struct session_event){.kind = SESSION_EVENT_ITEM_END, .item = item});
}

/* answer: of the item that is open, or of the only one. */
static void finish(struct turn *t, const char *answer, const char *reason)
{
    if (t->generate) {
        if (!t->n_output) {
            begin_item(t, NULL, false);
        }
        if (!*t->output[t->n_output - 1].text) {
            end_item(t, answer, reason != NULL);
        }
    }
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
    fake_lock();
    struct response *r = calloc(1, sizeof(*r));
    if (r) {
        r->id = fake_copy(t->id);
        r->owner = fake_copy(t->owner);
        r->conversation = fake_copy(t->conversation);
        r->previous = fake_copy(t->previous);
        r->output = t->generate ? fake_copy(answer) : NULL;
        r->key = fake_copy(t->key);
        r->has_digest = t->has_digest;
        memcpy(r->digest, t->digest, sizeof(r->digest));
        memcpy(r->items, t->items, sizeof(t->items)); /* taken over */
        r->n_items = t->n_items;
        t->n_items = 0;
        for (size_t i = 0; i < t->n_output; i++) {
            r->items[r->n_items++] = t->output[i]; /* taken over */
        }
        t->n_output = 0;
        r->params = fake_copy(t->params);
        r->instructions = fake_copy(t->instructions);
        struct session_receipt saved = receipt;
        saved.saved = "yes";
        r->receipt = session_receipt_json(&saved);
        r->status = reason ? "incomplete" : "completed";
        r->reason = reason;
        r->listed = t->listed;
        r->ephemeral = !t->store;
        r->input_tokens = 7;
        r->output_tokens = 5;
        r->created_ms = fake_wall_ms();
        r->next = s->responses;
        s->responses = r;
    }
    struct conversation *c = fake_find_conversation(s, t->owner, t->conversation);
    if (c) {
        free(c->head);
        c->head = fake_copy(t->id);
        free(c->running);
        c->running = NULL;
        c->updated_ms = fake_wall_ms();
    }
    s->status.turns_completed++;
    fake_unlock();
    send(t, &(struct session_event){.kind = SESSION_EVENT_DONE,
                                    .conversation = t->store ? t->conversation : "",
                                    .incomplete = reason != NULL,
                                    .reason = reason,
                                    .input_tokens = 7,
                                    .cached_tokens = 3,
                                    .output_tokens = 5,
                                    .receipt = &receipt});
}

static void fail(struct turn *t, enum session_failure failure)
{
    fake_lock();
    struct conversation *c = fake_find_conversation(t->session, t->owner, t->conversation);
    if (c && c->running && strcmp(c->running, t->id) == 0) {
        free(c->running);
        c->running = NULL;
    }
    fake_unlock();
    send(t, &(struct session_event){.kind = SESSION_EVENT_FAILED, .failure = failure, .message = "scripted failure"});
}

/* The words of `text`, one delta each; with `hold` it waits after the first. Returns the reason when stopped. */
static const char *say(struct turn *t, const char *text, bool hold, char *answer)
{
    *answer = '\0';
    begin_item(t, NULL, false);
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
        delta(t, text + at, n);
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

/* What this request was answered with before, if it was. True: that has been sent, or an error. */
static bool repeated(struct turn *t, bool retry)
{
    struct session_response shown;
    bool found = false, other = false;
    fake_lock();
    for (struct response *r = t->session->responses; r && !found && !other; r = r->next) {
        if (strcmp(r->owner, t->owner) != 0 || r->ephemeral || !r->has_digest ||
            (r->reason && strcmp(r->reason, "abandoned") == 0)) {
            continue;
        }
        bool same = memcmp(r->digest, t->digest, sizeof(r->digest)) == 0;
        if (t->key && r->key && strcmp(r->key, t->key) == 0) {
            other = !same;
            found = same;
        } else if (!t->key && retry && same && !r->delivered) {
            found = true;
        }
        if (found) {
            fake_show_response(r, &shown);
            t->event(t->arg, &(struct session_event){.kind = SESSION_EVENT_STORED, .stored = &shown});
        }
    }
    fake.started -= found || other; /* no turn of its own */
    fake_unlock();
    if (other) {
        fail(t, SESSION_KEY_REUSED);
    }
    return found || other;
}

static void run(struct turn *t)
{
    const char *text = t->text;
    int number = 0;
    if (t->has_digest && t->store && repeated(t, t->retry)) {
        return;
    }
    if (t->failure) {
        fail(t, (enum session_failure)t->failure);
        return;
    }
    if (sscanf(text, "refuse %d", &number) == 1) {
        fail(t, (enum session_failure)(strstr(text, "late") && !wait_release(t) ? SESSION_INTERNAL : number));
        return;
    }
    if (t->count) {
        send(t, &(struct session_event){.kind = SESSION_EVENT_DONE, .input_tokens = 7});
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
    bool fails = strcmp(text, "fail late") == 0;
    if ((fails || strcmp(text, "wait") == 0) && !wait_release(t)) {
        finish(t, "", stop_reason(t));
        return;
    }
    if (fails) {
        fail(t, SESSION_INTERNAL);
        return;
    }
    if (strncmp(text, "call ", 5) == 0) {
        const char *arguments = strchr(text + 5, ' ') + 1;
        char name[64];
        snprintf(name, sizeof(name), "%.*s", (int)(arguments - text - 6), text + 5);
        begin_item(t, NULL, false);
        delta(t, "I call.", 7);
        end_item(t, "I call.", false);
        begin_item(t, name, false);
        delta(t, arguments, 1);
        delta(t, arguments + 1, strlen(arguments + 1));
        end_item(t, arguments, arguments[strlen(arguments) - 1] != '}');
        finish(t, arguments, arguments[strlen(arguments) - 1] != '}' ? "malformed_call" : NULL);
        return;
    }
    if (strncmp(text, "think ", 6) == 0) {
        begin_item(t, NULL, true);
        delta(t, "I think.", 8);
        t->output[0].body = fake_copy("{\"tokens\":3}");
        end_item(t, "I think.", false);
        begin_item(t, NULL, false);
        delta(t, text + 6, strlen(text + 6));
        finish(t, text + 6, NULL);
        return;
    }
    bool hold = strncmp(text, "hold ", 5) == 0;
    const char *words = hold || strncmp(text, "echo ", 5) == 0 ? text + 5 : text;
    if (strcmp(text, "how") == 0) {
        words = t->background ? "background" : "interactive";
    }
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
    fake_lock();
    for (struct turn **at = &s->turns; *at; at = &(*at)->next) {
        if (*at == t) {
            *at = t->next;
            break;
        }
    }
    s->n_threads--;
    fake.ended++;
    fake_unlock();
    free(t->id);
    free(t->owner);
    free(t->conversation);
    free(t->previous);
    free(t->text);
    free(t->params);
    free(t->instructions);
    free(t->key);
    for (size_t i = 0; i < t->n_items; i++) {
        free((char *)t->items[i].id);
        free((char *)t->items[i].text);
        free((char *)t->items[i].body);
    }
    for (size_t i = 0; i < t->n_output; i++) {
        free((char *)t->output[i].id);
        free((char *)t->output[i].body);
    }
    free(t);
    return NULL;
}

int session_turn_start(struct session *s, const struct session_turn *in)
{
    const struct session_item *last = in->n_items ? &in->items[in->n_items - 1] : NULL;
    struct turn *t = calloc(1, sizeof(*t));
    if (!t) {
        return -ENOMEM;
    }
    t->session = s;
    fake_take_texts(in->texts);
    if (last && in->n_items > 1 && strncmp(last->text, "Summarize everything", 20) == 0) { /* behind the text */
        last--;
    }
    t->text = last ? strndup(last->text, last->len) : strdup("");
    int number = 0;
    if (sscanf(t->text, "start %d", &number) == 1) {
        free(t->text);
        free(t);
        return number;
    }
    t->id = fake_copy(in->response_id);
    t->owner = fake_copy(in->owner);
    t->previous = fake_copy(in->previous);
    t->key = fake_copy(in->key);
    t->retry = in->retry;
    t->has_digest = in->digest != NULL;
    if (in->digest) {
        memcpy(t->digest, in->digest, sizeof(t->digest));
    }
    for (size_t i = 0; i < in->n_items && i < FAKE_ITEMS; i++) {
        t->items[i] = in->items[i];
        t->items[i].id = fake_copy(in->items[i].id ? in->items[i].id : "msg_made");
        t->items[i].text = strndup(in->items[i].text, in->items[i].len);
        t->items[i].body = fake_copy(in->items[i].body);
        t->n_items = i + 1;
    }
    t->params = fake_copy(in->params);
    t->instructions = fake_copy(in->instructions);
    t->store = in->store;
    t->generate = in->generate;
    t->count = in->count;
    t->logprobs = in->logprobs;
    t->n_top = in->n_top;
    t->background = in->background;
    t->event = in->event;
    t->arg = in->arg;
    fake_lock();
    if (in->conversation) {
        struct conversation *c = fake_find_conversation(s, in->owner, in->conversation);
        t->listed = true;
        if (!c) {
            t->failure = SESSION_CONVERSATION_NOT_FOUND;
        } else if (c->running) {
            t->failure = SESSION_CONVERSATION_LOCKED;
        } else {
            c->running = fake_copy(t->id);
        }
        t->conversation = fake_copy(in->conversation);
    } else if (in->previous) {
        struct response *r = fake_find_response(s, in->owner, in->previous);
        if (!r) {
            t->failure = SESSION_PREVIOUS_NOT_FOUND;
        }
        t->conversation = fake_copy(r ? r->conversation : "conv_none");
    } else {
        char id[64];
        snprintf(id, sizeof(id), "conv_%s", in->response_id + 5);
        t->conversation = fake_copy(id);
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
    fake_unlock();
    return 0;
}

void session_cancel(struct session *s, const char *owner, const char *response_id, enum session_stop why)
{
    fake_lock();
    for (struct turn *t = s->turns; t; t = t->next) {
        if (strcmp(t->id, response_id) == 0 && strcmp(t->owner, owner) == 0 && !t->cancelled) {
            t->cancelled = true;
            t->abandoned = why == SESSION_STOP_ABANDONED;
            fake.cancelled++;
        }
    }
    fake_unlock();
}

void session_forget(struct session *s, const char *owner, const char *response_id)
{
    fake_lock();
    for (struct response **at = &s->responses; *at; at = &(*at)->next) {
        struct response *r = *at;
        if (r->ephemeral && strcmp(r->id, response_id) == 0 && strcmp(r->owner, owner) == 0) {
            *at = r->next;
            fake_free_response(r);
            fake.forgotten++;
            break;
        }
    }
    fake_unlock();
}

void session_delivered(struct session *s, const char *owner, const char *response_id)
{
    fake_lock();
    struct response *r = fake_find_response(s, owner, response_id);
    if (r && !r->delivered) {
        r->delivered = true;
        fake.delivered++;
    }
    fake_unlock();
}
