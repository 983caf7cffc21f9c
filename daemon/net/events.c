/* events.c - the one way into the network thread.
 *
 * Other threads append to a list under a lock and wake the loop with lws_cancel_service(), which is the only function
 * of the library that they may call. The loop takes the whole list at once, so that the lock is held for a few
 * instructions on either side. What the session lends during a callback is copied here.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/daemon_internal.h"

int events_init(struct events *q)
{
    memset(q, 0, sizeof(*q));
    q->tail = &q->head;
    return -pthread_mutex_init(&q->lock, NULL);
}

void events_destroy(struct events *q)
{
    struct event *e = events_take(q);
    while (e) {
        struct event *next = e->next;
        event_free(e);
        e = next;
    }
    pthread_mutex_destroy(&q->lock);
}

void events_post(struct events *q, struct event *e)
{
    e->next = NULL;
    pthread_mutex_lock(&q->lock);
    bool wake = q->head == NULL && q->context;
    *q->tail = e;
    q->tail = &e->next;
    if (wake) {
        lws_cancel_service(q->context);
    }
    pthread_mutex_unlock(&q->lock);
}

struct event *events_take(struct events *q)
{
    pthread_mutex_lock(&q->lock);
    struct event *list = q->head;
    q->head = NULL;
    q->tail = &q->head;
    pthread_mutex_unlock(&q->lock);
    return list;
}

struct event *event_new(enum event_kind kind)
{
    struct event *e = calloc(1, sizeof(*e));
    if (e) {
        e->kind = kind;
    }
    return e;
}

void event_free(struct event *e)
{
    if (!e) {
        return;
    }
    free(e->text);
    free(e->receipt_json);
    session_result_free(&e->result);
    free(e);
}

/* Appends a string to the block behind `at` and returns where it lies. */
static char *pack(char **at, const char *s, size_t len)
{
    char *p = *at;
    if (len > 0) {
        memcpy(p, s, len);
    }
    p[len] = '\0';
    *at += len + 1;
    return p;
}

struct event *event_from_turn(struct run *run, const struct session_event *ev)
{
    struct event *e = event_new(EVENT_TURN);
    if (!e) {
        return NULL;
    }
    e->run = run;
    e->turn = *ev;
    size_t text_len = ev->text ? ev->len : 0;
    const char *strings[] = {ev->conversation, ev->stage, ev->reason, ev->message};
    size_t need = text_len + 1;
    for (size_t i = 0; i < 4; i++) {
        need += (strings[i] ? strlen(strings[i]) : 0) + 1;
    }
    char *at = malloc(need);
    if (!at) {
        free(e);
        return NULL;
    }
    e->text = at;
    const char **to[] = {&e->turn.conversation, &e->turn.stage, &e->turn.reason, &e->turn.message};
    for (size_t i = 0; i < 4; i++) {
        *to[i] = strings[i] ? pack(&at, strings[i], strlen(strings[i])) : NULL;
    }
    e->turn.text = pack(&at, ev->text, text_len);
    e->turn.len = text_len;
    e->turn.receipt = NULL;
    if (ev->receipt) {
        e->receipt_json = session_receipt_json(ev->receipt);
        if (!e->receipt_json) {
            event_free(e);
            return NULL;
        }
        e->receipt = *ev->receipt;
        e->receipt.conversation = e->receipt.saved = e->receipt.backend = e->receipt.model = NULL;
        e->receipt.n_reprefilled = 0;
    }
    return e;
}

static int copy_string(const char *from, const char **to)
{
    *to = NULL;
    if (from) {
        *to = strdup(from);
        if (!*to) {
            return -ENOMEM;
        }
    }
    return 0;
}

static int copy_conversation(const struct session_conversation *f, struct session_conversation *t)
{
    *t = *f;
    t->id = t->title = t->metadata = t->instructions = t->head = t->running_response = NULL;
    /* tier is a static string */
    return copy_string(f->id, &t->id) || copy_string(f->title, &t->title) || copy_string(f->metadata, &t->metadata) ||
                   copy_string(f->instructions, &t->instructions) || copy_string(f->head, &t->head) ||
                   copy_string(f->running_response, &t->running_response)
               ? -ENOMEM
               : 0;
}

static int copy_response(const struct session_response *f, struct session_response *t)
{
    const char *const *from[] = {&f->id,           &f->conversation, &f->previous, &f->status, &f->reason,
                                 &f->instructions, &f->input,        &f->output,   &f->params, &f->receipt};
    *t = *f;
    const char **to[] = {&t->id,           &t->conversation, &t->previous, &t->status, &t->reason,
                         &t->instructions, &t->input,        &t->output,   &t->params, &t->receipt};
    for (size_t i = 0; i < sizeof(to) / sizeof(*to); i++) {
        *to[i] = NULL;
    }
    for (size_t i = 0; i < sizeof(to) / sizeof(*to); i++) {
        if (copy_string(*from[i], to[i])) {
            return -ENOMEM;
        }
    }
    return 0;
}

int session_result_copy(const struct session_result *from, struct session_result *to)
{
    memset(to, 0, sizeof(*to));
    to->rc = from->rc;
    to->more = from->more;
    if (from->n_conversations) {
        struct session_conversation *list = calloc(from->n_conversations, sizeof(*list));
        if (!list) {
            return -ENOMEM;
        }
        to->conversations = list;
        for (size_t i = 0; i < from->n_conversations; i++) {
            to->n_conversations = i + 1;
            if (copy_conversation(&from->conversations[i], &list[i])) {
                return -ENOMEM;
            }
        }
    }
    if (from->n_responses) {
        struct session_response *list = calloc(from->n_responses, sizeof(*list));
        if (!list) {
            return -ENOMEM;
        }
        to->responses = list;
        for (size_t i = 0; i < from->n_responses; i++) {
            to->n_responses = i + 1;
            if (copy_response(&from->responses[i], &list[i])) {
                return -ENOMEM;
            }
        }
    }
    return 0;
}

void session_result_free(struct session_result *r)
{
    for (size_t i = 0; i < r->n_conversations; i++) {
        const struct session_conversation *c = &r->conversations[i];
        free((char *)c->id);
        free((char *)c->title);
        free((char *)c->metadata);
        free((char *)c->instructions);
        free((char *)c->head);
        free((char *)c->running_response);
    }
    for (size_t i = 0; i < r->n_responses; i++) {
        const struct session_response *p = &r->responses[i];
        free((char *)p->id);
        free((char *)p->conversation);
        free((char *)p->previous);
        free((char *)p->status);
        free((char *)p->reason);
        free((char *)p->instructions);
        free((char *)p->input);
        free((char *)p->output);
        free((char *)p->params);
        free((char *)p->receipt);
    }
    free((void *)r->conversations);
    free((void *)r->responses);
    memset(r, 0, sizeof(*r));
}
