/* turn.c - runs: turns of the session, and who reads their events.
 *
 * A run's events are rendered once, into its log; every subscriber walks the log at the pace of its own socket. So a
 * slow reader costs the others nothing, a second device can join in the middle, and a stream can be resumed from any
 * sequence number as long as the run is remembered (RECENT_SECONDS after its end).
 *
 * The session holds a pointer to the run until its terminal event; only then may a run be freed.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

#include "daemon/run/run.h"
#include "daemon/run/turn_event.h"

#define KEPT_PARAMS_BYTES 4096 /* what a tree of parameters takes beside its text */

static void free_items(struct run *run)
{
    for (size_t i = 0; i < run->n_items; i++) {
        free(run->items[i].id);
        free(run->items[i].kind);
        free(run->items[i].body);
        free(run->items[i].text);
        free(run->items[i].logprobs);
        free(run->items[i].piece);
    }
    free(run->items);
    run->items = NULL;
    run->n_items = 0;
}

void run_clear(struct run *run)
{
    for (size_t i = 0; i < run->n_log; i++) {
        free(run->log[i].data);
    }
    free(run->log);
    free_items(run);
    free(run->reason);
    free(run->stop);
    free(run->answer);
    free(run->receipt);
    free(run->idempotency_key);
    free(run->others);
}

void run_free(struct run *run)
{
    run_clear(run);
    turn_request_free(run->first ? NULL : run->request);
    free(run);
}

static void list_add(struct run **head, struct run *run)
{
    run->prev = NULL;
    run->next = *head;
    if (run->next) {
        run->next->prev = run;
    }
    *head = run;
}

static void list_remove(struct run **head, struct run *run)
{
    if (run->prev) {
        run->prev->next = run->next;
    } else {
        *head = run->next;
    }
    if (run->next) {
        run->next->prev = run->prev;
    }
}

/* Of those that have ended. */
static void forget(struct run *run)
{
    struct runs *rs = run->runs;
    list_remove(&rs->recent, run);
    rs->n_recent--;
    run_free(run);
}

static struct run *find_in(struct run *list, const char *owner, const char *id)
{
    for (struct run *r = list; r; r = r->next) {
        if (!r->hidden && strcmp(r->id, id) == 0 && strcmp(r->owner, owner) == 0) {
            return r;
        }
    }
    return NULL;
}

struct run *run_find(struct runs *rs, const char *owner, const char *id)
{
    struct run *run = find_in(rs->running, owner, id);
    return run ? run : find_in(rs->recent, owner, id);
}

struct run *run_first(struct run *run)
{
    return run->first ? run->first : run;
}

const struct run *run_choice(const struct run *first, int i)
{
    return i ? first->others[i - 1] : first;
}

/* All answers of it. */
static void stop(struct run *run, enum session_stop why)
{
    const struct run *first = run_first(run);
    for (int i = 0; i <= first->n_others && !first->ended && run->runs->session; i++) {
        session_cancel(run->runs->session, run->owner, run_choice(first, i)->id, why);
    }
}

void run_cancel(struct run *run)
{
    stop(run, SESSION_STOP_CANCELLED);
}

void run_delivered(struct runs *rs, const char *owner, const char *id)
{
    struct run *run = run_find(rs, owner, id);
    if (run) {
        run->delivered = true;
    }
    if (rs->session && !(run && !run->request->store)) {
        session_delivered(rs->session, owner, id);
    }
}

void run_log(struct run *run, const char *name, char *data)
{
    run = run_first(run);
    if (run->gap && !run->ended) {
        free(data);
        return;
    }
    if (!data) {
        /* Out of memory: the stream would have a gap, so it ends. */
        run->gap = true;
        run_cancel(run);
        return;
    }
    if (run->n_log == run->log_capacity) {
        size_t capacity = run->log_capacity ? run->log_capacity * 2 : 64;
        struct log_entry *grown = realloc(run->log, capacity * sizeof(*grown));
        if (!grown) {
            free(data);
            run->gap = true;
            run_cancel(run);
            return;
        }
        run->log = grown;
        run->log_capacity = capacity;
    }
    size_t len = strlen(data);
    run->log[run->n_log++] = (struct log_entry){.name = name, .data = data, .len = len};
    run->log_bytes += len;
}

/* Tells all readers that the log has grown or that the run has ended. `before`: its bytes before this event, of which
 * nobody can have read anything yet. */
static void wake_readers(struct run *run, uint64_t before)
{
    struct subscriber *next;
    for (struct subscriber *sub = run->subscribers; sub; sub = next) {
        next = sub->next_in_run;
        uint64_t seen = sub->delivered_bytes > sub->joined_bytes ? sub->delivered_bytes : sub->joined_bytes;
        if (!sub->whole || run->ended) {
            sub->wake(sub, !sub->whole && before > seen && before - seen > LAG_BYTES_MAX);
        }
    }
}

void run_subscribe(struct run *run, struct subscriber *sub, size_t from)
{
    sub->run = run;
    sub->next = from;
    sub->delivered_bytes = 0;
    sub->joined_bytes = run->log_bytes;
    sub->next_in_run = run->subscribers;
    run->subscribers = sub;
    if (run->n_log > sub->next || run->ended) {
        sub->wake(sub, false);
    }
}

void run_unsubscribe(struct subscriber *sub)
{
    struct run *run = sub->run;
    for (struct subscriber **at = &run->subscribers; *at; at = &(*at)->next_in_run) {
        if (*at == sub) {
            *at = sub->next_in_run;
            break;
        }
    }
    sub->run = NULL;
    if (run->hidden && run->ended && !run->subscribers) {
        forget(run);
        return;
    }
    if (!run->subscribers && !run->ended && !run->request->finish_on_disconnect && run->runs->session) {
        run->abandoned = true;
        stop(run, SESSION_STOP_ABANDONED);
    }
}

/* ---- starting
 * ----------------------------------------------------------------------------------------------------------- */

static void take_event(struct event *event, bool closing);

/* Of how far a prompt is, in each step, few want to hear. */
static bool shows_progress(const struct run *run, const struct session_event *ev)
{
    return run->request->progress || strcmp(ev->stage, "truncated") == 0;
}

static bool is_told(const struct run *run, const struct session_event *ev)
{
    return ev->kind != SESSION_EVENT_PROGRESS || run->request->background || shows_progress(run, ev);
}

/* [engine or storage thread] */
static void on_event(void *arg, const struct session_event *ev)
{
    struct run *run = arg;
    if (!is_told(run, ev)) {
        return;
    }
    struct turn_event *e = turn_event_new(run, ev, take_event);
    if (!e) {
        /* Without memory for a piece of the answer the answer is not what was generated: give it up. The terminal
         * event must arrive, so it is tried again with nothing in it. */
        struct session_event bare = {.kind = ev->kind, .failure = SESSION_INTERNAL, .message = "Out of memory."};
        if (ev->kind == SESSION_EVENT_DONE || ev->kind == SESSION_EVENT_FAILED || ev->kind == SESSION_EVENT_STORED) {
            bare.kind = SESSION_EVENT_FAILED;
            e = turn_event_new(run, &bare, take_event);
        }
        if (!e) {
            run->gap = true; /* the turn ends as failed for those who read it */
            return;
        }
    }
    events_post(run->runs->events, &e->event);
}

/* False: there was no memory for one, and it is a repetition of nothing. */
static bool has_digest(const struct run_retry *retry)
{
    static const unsigned char none[RETRY_DIGEST_BYTES];
    return memcmp(retry->digest, none, sizeof(none)) != 0;
}

static bool stores(const struct run *run)
{
    return run->request->store && !run->first;
}

/* id: the one that it has already; NULL: it is new. first: it is another answer to that one's request, number `choice`;
 * NULL: it is none. */
static int start(struct runs *rs, const char *owner, const char *id, struct turn_request *q, struct run *first,
                 int choice, struct run_retry *retry, struct run_home *home, struct run **out, struct api_error *e)
{
    if (!rs->session) {
        api_error_session(SESSION_SHUTDOWN, NULL, e);
        return -1;
    }
    if (q->previous && home_foreign(rs, home, q->previous)) {
        api_error_session(SESSION_PREVIOUS_NOT_FOUND, NULL, e);
        return -1;
    }
    struct run *run = calloc(1, sizeof(*run));
    if (!run) {
        api_error_set(e, 500, "server_error", NULL, "Out of memory.");
        return -1;
    }
    if (id) {
        snprintf(run->id, sizeof(run->id), "%s", id);
    } else if (id_new("resp_", run->id)) {
        api_error_set(e, 500, "server_error", NULL, "No random numbers.");
        free(run);
        return -1;
    }
    char *queued = q->background ? queued_text(q, retry) : NULL;
    if (q->background && !queued) {
        api_error_set(e, 500, "server_error", NULL, "Out of memory.");
        free(run);
        return -1;
    }
    run->runs = rs;
    snprintf(run->owner, sizeof(run->owner), "%s", owner);
    run->created_ms = now_ms();
    run->created_clock_ms = clock_ms();
    run->status = q->background ? "queued" : "in_progress";
    run->request = q;
    run->first = first;
    run->choice = choice;
    run->hidden = first != NULL;
    run->n_open = 1;
    run->home = stores(run) ? NULL : home;
    const struct run_retry *known = retry && has_digest(retry) ? retry : NULL;
    struct session_turn t = {
        .owner = run->owner,
        .response_id = run->id,
        .conversation = q->conversation,
        .previous = q->previous,
        .match = q->match,
        .parent = q->has_parent ? (q->parent ? q->parent : "") : NULL,
        .replaces = q->replaces[0] ? q->replaces : NULL,
        .items = q->items,
        .n_items = q->n_items,
        .texts = q->n_copies ? q->copies[--q->n_copies] : NULL,
        .instructions = q->instructions,
        .tools = q->tools,
        .tool_choice = q->tool_choice,
        .tool = q->tool,
        .callable = q->callable,
        .labels = q->labels,
        .opening = q->opening,
        .continues = q->continues,
        .one_call = q->one_call,
        .params = q->params,
        .sampling = q->sampling,
        .bias = q->bias,
        .n_bias = q->n_bias,
        .form = q->form,
        .call_form = q->call_form,
        .stops = (const char *const *)q->stops,
        .n_stops = q->n_stops,
        .max_output_tokens = q->max_output_tokens,
        .thinking_tokens = q->thinking_tokens,
        .effort = q->effort,
        .logprobs = q->logprobs,
        .n_top = q->n_top,
        .keeps = q->keeps,
        .truncate = q->truncate,
        .current_turn = q->current_turn,
        .store = stores(run),
        .generate = q->generate,
        .count = q->count,
        .raw = q->raw,
        .tokens = q->tokens,
        .n_tokens = q->n_tokens,
        .background = q->patient,
        .key = known ? known->idempotency_key : NULL,
        .digest = known ? known->digest : NULL,
        .retry = retry && retry->count > 0,
        .request = queued,
        .requeued = id != NULL,
        .begins = q->begins,
        .copy_of = q->copy_of[0] ? q->copy_of : NULL,
        .event = on_event,
        .arg = run,
    };
    t.sampling.seed += (uint64_t)choice;
    /* Linked before the session knows of it: its events are taken later, on this thread. */
    list_add(&rs->running, run);
    rs->n_running++;
    int rc = session_turn_start(rs->session, &t);
    free(queued);
    if (rc) {
        list_remove(&rs->running, run);
        rs->n_running--;
        run->request = NULL;
        run_free(run);
        api_error_session(rc == -EINVAL                   ? SESSION_INVALID
                          : rc == -EBUSY || rc == -EAGAIN ? SESSION_BUSY
                          : rc == -ESHUTDOWN              ? SESSION_SHUTDOWN
                                                          : SESSION_INTERNAL,
                          NULL, e);
        return -1;
    }
    if (retry) {
        memcpy(run->digest, retry->digest, sizeof(run->digest));
        run->has_digest = true;
        run->idempotency_key = retry->idempotency_key;
        retry->idempotency_key = NULL;
    }
    *out = run;
    return 0;
}

/* One of several answers cannot be: the others are not wanted then. */
static void fail(struct run *first, const struct api_error *e)
{
    first->failed = true;
    first->status = "failed";
    if (!first->error.status) {
        first->error = *e;
    }
    stop(first, SESSION_STOP_CANCELLED);
}

int run_start(struct runs *rs, const char *owner, struct turn_request *q, struct run_retry *retry,
              struct run_home *home, struct run **out, struct api_error *e)
{
    if (start(rs, owner, NULL, q, NULL, 0, retry, home, out, e)) {
        return -1;
    }
    struct run *first = *out;
    first->others = q->n > 1 ? calloc((size_t)q->n, sizeof(struct run *)) : NULL;
    for (int i = 1; i < q->n; i++) {
        struct api_error refused = {0};
        if (!first->others || start(rs, owner, NULL, q, first, i, NULL, home, &first->others[i - 1], &refused)) {
            fail(first, &refused);
            break;
        }
        first->n_others++;
        first->n_open++;
    }
    return 0;
}

int run_requeue(struct runs *rs, const char *owner, const char *id, struct turn_request *q, struct run_retry *retry,
                struct api_error *e)
{
    struct run *run;
    return start(rs, owner, id, q, NULL, 0, retry, NULL, &run, e);
}

/* ---- events
 * ------------------------------------------------------------------------------------------------------------- */

bool run_item_add(struct run *run, const struct session_item *item)
{
    struct run_item *grown = realloc(run->items, (run->n_items + 1) * sizeof(*grown));
    if (!grown) {
        return false;
    }
    run->items = grown;
    struct run_item *i = &grown[run->n_items++];
    *i = (struct run_item){.id = strdup(item->id),
                           .kind = strdup(item->kind),
                           .body = item->body ? strdup(item->body) : NULL,
                           .text = strdup(""),
                           .custom = item->body && strstr(item->body, "\"custom\":true"),
                           .open = true};
    return i->id && i->kind && i->text && (i->body || !item->body);
}

bool run_append(struct run *run, const char *text, size_t len)
{
    struct run_item *i = run->n_items ? &run->items[run->n_items - 1] : NULL;
    if (!i || !i->text) {
        return false;
    }
    if (i->len + len + 1 > i->size) {
        size_t size = i->size ? i->size : 1024;
        while (size < i->len + len + 1) {
            size *= 2;
        }
        char *grown = realloc(i->text, size);
        if (!grown) {
            return false;
        }
        i->text = grown;
        i->size = size;
    }
    memcpy(i->text + i->len, text, len);
    i->len += len;
    i->text[i->len] = '\0';
    return true;
}

bool run_append_logprobs(struct run *run, const struct session_logprob *logprobs, size_t n)
{
    struct run_item *i = run->n_items ? &run->items[run->n_items - 1] : NULL;
    if (!i) {
        return false;
    }
    i->n_logprobs_told = i->n_logprobs;
    if (n == 0) {
        return true;
    }
    struct session_logprob *grown = realloc(i->logprobs, (i->n_logprobs + n) * sizeof(*grown));
    if (!grown) {
        return false;
    }
    memcpy(grown + i->n_logprobs, logprobs, n * sizeof(*grown));
    i->logprobs = grown;
    i->n_logprobs += n;
    return true;
}

/* Keeps an ended run for those who come back, or frees it. */
static void run_retire(struct run *run)
{
    struct runs *rs = run->runs;
    for (int i = 0; i < run->n_others; i++) {
        list_remove(&rs->running, run->others[i]);
        rs->n_running--;
        run_free(run->others[i]);
    }
    run->n_others = 0;
    list_remove(&rs->running, run);
    rs->n_running--;
    run_remember(run);
}

/* Frees what nobody will ask an ended run for, and counts what is kept. A whole answer and a log say everything; only
 * what failed is still described from its request. */
static void shrink(struct run *run)
{
    struct turn_request *q = run->request;
    struct turn_request *left = calloc(1, sizeof(*left));
    if (left) {
        *left = (struct turn_request){.format = q->format,
                                      .sampling = q->sampling,
                                      .has_parent = q->has_parent,
                                      .background = q->background,
                                      .store = q->store,
                                      .generate = q->generate};
        if (run->failed) {
            left->params_json = q->params_json;
            left->conversation = q->conversation;
            left->previous = q->previous;
            left->parent = q->parent;
            left->instructions = q->instructions;
            run->kept_bytes = text_length(q->params) + KEPT_PARAMS_BYTES;
            q->params_json = NULL;
            q->conversation = q->previous = q->parent = q->instructions = NULL;
        }
        turn_request_free(q);
        run->request = q = left;
    } else {
        run->kept_bytes = q->bytes + text_length(q->params) + KEPT_PARAMS_BYTES;
    }
    free_items(run);
    run->kept_bytes += sizeof(*run) + sizeof(*q) + run->log_bytes + run->log_capacity * sizeof(*run->log) +
                       text_length(run->answer) + text_length(run->receipt) + text_length(run->reason) +
                       text_length(run->idempotency_key) + text_length(q->instructions);
}

void run_remember(struct run *run)
{
    struct runs *rs = run->runs;
    run->ended_clock_ms = clock_ms();
    shrink(run);
    list_add(&rs->recent, run);
    rs->n_recent++;
    run_expire(rs);
}

/* Oldest are at the end of the list. Runs that are still being read stay. Each owner has a few that failed, so that
 * what costs its sender nothing does not push out what others come back for. */
void run_expire(struct runs *rs)
{
    size_t n = 0, bytes = 0;
    int64_t now = clock_ms();
    struct run *next;
    for (struct run *run = rs->recent; run; run = next) {
        next = run->next;
        size_t failed = 0, failed_bytes = run->kept_bytes;
        for (struct run *newer = run->prev; run->failed && newer; newer = newer->prev) {
            if (newer->failed && strcmp(newer->owner, run->owner) == 0) {
                failed++;
                failed_bytes += newer->kept_bytes;
            }
        }
        bool old = n + 1 > RECENT_RUNS_MAX || bytes + run->kept_bytes > RECENT_BYTES_MAX ||
                   failed >= RECENT_FAILED_MAX || (run->failed && failed_bytes > RECENT_FAILED_BYTES) ||
                   now - run->ended_clock_ms > (int64_t)RECENT_SECONDS * 1000 || !run->request->store || run->hidden;
        if (old && !run->subscribers) {
            forget(run);
        } else {
            n++;
            bytes += run->kept_bytes;
        }
    }
}

void run_hide(struct runs *rs, const char *owner, const char *id)
{
    for (int i = 0; i < 2; i++) {
        for (struct run *run = i ? rs->recent : rs->running; run; run = run->next) {
            bool same = strcmp(run->id, id) == 0 || strcmp(run->conversation, id) == 0;
            run->hidden |= same && strcmp(run->owner, owner) == 0;
        }
    }
    run_expire(rs);
}

void run_free_all(struct runs *rs)
{
    for (int i = 0; i < 2; i++) {
        struct run **list = i ? &rs->recent : &rs->running;
        while (*list) {
            struct run *run = *list;
            list_remove(list, run);
            run_free(run);
        }
    }
    rs->n_running = rs->n_recent = 0;
    homes_free(rs);
}

/* What a store:false response leaves: where it has a home it can be followed there, otherwise nothing. A raw one can be
 * followed nowhere, and takes no other's place. */
static void settle_ephemeral(struct run *run)
{
    struct runs *rs = run->runs;
    struct turn_request *q = run->request;
    if (!stores(run) && !run->failed && !q->count && !q->raw) {
        if (run->home) {
            home_add(rs, run->home, run->id);
        } else {
            struct run_home *home = home_of_owner(rs, run->owner);
            if (home) {
                home_add(rs, home, run->id);
            } else if (rs->session) {
                session_forget(rs->session, run->owner, run->id);
            }
        }
    }
    if (run->failed && run->home && q->previous && home_has(run->home, q->previous)) {
        home_drop(rs, run->home, q->previous);
    }
}

void run_count_over(struct run *run)
{
    struct run *first = run_first(run);
    first->n_open--;
    first->ended = first->n_open == 0;
}

static void ended(struct run *run, const struct session_event *ev, const struct turn_event *e)
{
    struct metrics *m = run->runs->metrics;
    struct run *first = run_first(run);
    run_count_over(run);
    run->completed_ms = now_ms();
    if (ev->kind == SESSION_EVENT_DONE) {
        run->status = ev->incomplete ? "incomplete" : "completed";
        run->reason = ev->reason ? strdup(ev->reason) : NULL;
        run->stop = ev->stop ? strdup(ev->stop) : NULL;
        run->erasing = ev->erasing;
        run->input_tokens = ev->input_tokens;
        run->cached_tokens = ev->cached_tokens;
        first->output_tokens += ev->output_tokens;
        if (e->end) {
            run->receipt = strdup(e->end->receipt_json);
            metrics_turn(m, run->input_tokens, run->cached_tokens, &e->end->receipt, &e->end->itl);
        }
    } else {
        run->failed = true;
        run->status = "failed";
        api_error_turn(ev->failure, ev->message, run->request, &run->error);
    }
    run->failed |= run->gap;
    if (run->failed) {
        run->status = "failed";
    }
    if (run->failed && !run->error.status) {
        api_error_set(&run->error, 500, "server_error", NULL, "Out of memory.");
    }
    if (run->failed && first->n_others) {
        fail(first, &run->error);
    }
    run->request->format->done(run);
    settle_ephemeral(run);
}

/* A background turn waits no longer. */
static void goes_on(struct run *run)
{
    if (strcmp(run->status, "queued") == 0) {
        run->status = "in_progress";
        if (run->request->format->running) {
            run->request->format->running(run);
        }
    }
}

/* ---- how its interface shows it ---- */

void run_show_started(struct run *run)
{
    if (run->request->format->started) {
        run->request->format->started(run);
    }
}

void run_show_item(struct run *run, size_t i)
{
    if (run->request->format->item) {
        run->request->format->item(run, i);
    }
}

void run_show_delta(struct run *run, size_t i, const char *text)
{
    if (run->request->format->delta) {
        run->request->format->delta(run, i, text);
    }
}

void run_show_item_end(struct run *run, size_t i)
{
    if (run->request->format->item_end) {
        run->request->format->item_end(run, i);
    }
}

void run_told(struct run *first, uint64_t before)
{
    wake_readers(first, before);
    if (first->ended) {
        run_retire(first);
    }
}

/* Without a piece of it the answer is not what was generated. */
static void lost(struct run *run)
{
    run_first(run)->gap = true;
    run_cancel(run);
}

/* The session says something; network thread. */
static void take_event(struct event *event, bool closing)
{
    struct turn_event *e = (struct turn_event *)event;
    struct run *run = e->run, *first = run_first(run);
    const struct session_event *ev = &e->turn;
    const struct run_format *format = closing ? NULL : run->request->format;
    const uint64_t before = first->log_bytes;
    switch (closing ? SESSION_EVENT_PROGRESS : ev->kind) {
    case SESSION_EVENT_STARTED:
        run->started = true;
        snprintf(run->conversation, sizeof(run->conversation), "%s", ev->conversation ? ev->conversation : "");
        run_show_started(run);
        break;
    case SESSION_EVENT_STORED:
        run_repeat(run, &e->stored);
        break;
    case SESSION_EVENT_PROGRESS:
        if (!closing && strcmp(ev->stage, "queue") != 0 && strcmp(ev->stage, "truncated") != 0) {
            goes_on(run);
        }
        if (format && format->progress && (closing ? run->request->progress : shows_progress(run, ev))) {
            format->progress(run, ev);
        }
        break;
    case SESSION_EVENT_ITEM:
        goes_on(run);
        if (!run_item_add(run, ev->item)) {
            lost(run);
            break;
        }
        run_show_item(run, run->n_items - 1);
        break;
    case SESSION_EVENT_DELTA:
        if (!run_append(run, ev->text, ev->len) || !run_append_logprobs(run, ev->logprobs, ev->n_logprobs)) {
            lost(run);
            break;
        }
        run_show_delta(run, run->n_items - 1, ev->text);
        break;
    case SESSION_EVENT_ITEM_END:
        if (run->n_items) {
            struct run_item *item = &run->items[run->n_items - 1];
            item->open = false;
            item->incomplete = ev->item->incomplete;
            if ((!item->body && ev->item->body && !(item->body = strdup(ev->item->body))) ||
                !run_append_logprobs(run, ev->logprobs, ev->n_logprobs)) {
                lost(run);
                break;
            }
            run_show_item_end(run, run->n_items - 1);
        }
        break;
    case SESSION_EVENT_DONE:
    case SESSION_EVENT_FAILED:
        ended(run, ev, e);
        break;
    }
    if (!closing) {
        run_told(first, before);
    }
    turn_event_free(e);
}
