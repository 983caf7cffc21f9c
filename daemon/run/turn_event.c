/* turn_event.c - copies of what the session lends during a callback. */
#include <stdlib.h>
#include <string.h>

#include "daemon/run/turn_event.h"

void turn_event_free(struct turn_event *e)
{
    if (e->end) {
        free(e->end->receipt_json);
        free(e->end);
    }
    response_free(&e->stored);
    items_free(e->item, e->item ? 1 : 0);
    free(e->logprobs);
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

static struct turn_end *end_new(const struct session_receipt *r)
{
    struct turn_end *end = calloc(1, sizeof(*end));
    if (!end || !(end->receipt_json = session_receipt_json(r))) {
        free(end);
        return NULL;
    }
    end->receipt = *r;
    end->receipt.conversation = end->receipt.saved = end->receipt.backend = end->receipt.numerics = NULL;
    end->receipt.model = NULL;
    for (int i = 0; i < r->n_gaps; i++) {
        metrics_observe(&end->itl, (double)r->gaps_ms[i] / 1000);
    }
    end->receipt.gaps_ms = NULL;
    return end;
}

struct turn_event *turn_event_new(struct run *run, const struct session_event *ev,
                                  void (*take)(struct event *e, bool closing))
{
    size_t text_len = ev->text ? ev->len : 0;
    const char *strings[] = {ev->conversation, ev->stage, ev->reason, ev->message, ev->stop};
    size_t need = text_len + 1;
    for (size_t i = 0; i < sizeof(strings) / sizeof(*strings); i++) {
        need += strings[i] ? strlen(strings[i]) + 1 : 0;
    }
    struct turn_event *e = malloc(sizeof(*e) + need);
    if (!e) {
        return NULL;
    }
    *e = (struct turn_event){.event.take = take, .run = run, .turn = *ev};
    char *at = e->text;
    const char **to[] = {&e->turn.conversation, &e->turn.stage, &e->turn.reason, &e->turn.message, &e->turn.stop};
    for (size_t i = 0; i < sizeof(strings) / sizeof(*strings); i++) {
        *to[i] = strings[i] ? pack(&at, strings[i], strlen(strings[i])) : NULL;
    }
    e->turn.text = pack(&at, ev->text, text_len);
    e->turn.len = text_len;
    e->turn.receipt = NULL;
    e->turn.stored = NULL;
    e->turn.logprobs = NULL;
    if (ev->n_logprobs) {
        e->turn.logprobs = e->logprobs = malloc(ev->n_logprobs * sizeof(*e->logprobs));
        if (!e->logprobs) {
            turn_event_free(e);
            return NULL;
        }
        memcpy(e->logprobs, ev->logprobs, ev->n_logprobs * sizeof(*e->logprobs));
    }
    if (ev->item) {
        struct session_item item = *ev->item;
        item.text = NULL;
        item.len = 0;
        e->turn.item = e->item = items_copy(&item, 1);
        if (!e->item) {
            turn_event_free(e);
            return NULL;
        }
    }
    if ((ev->stored && response_copy(ev->stored, &e->stored)) || (ev->receipt && !(e->end = end_new(ev->receipt)))) {
        turn_event_free(e);
        return NULL;
    }
    return e;
}
