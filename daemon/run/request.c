/* request.c - a parsed request: what it owns, and what it counts against the budget of requests. */
#include <stdio.h>
#include <stdlib.h>

#include "daemon/run/run.h"

/* Of a body in its request: the texts, the stored items, and what the session makes of them. */
#define REQUEST_COPIES 3

void turn_request_free(struct turn_request *r)
{
    if (!r) {
        return;
    }
    while (r->texts) {
        struct text_block *next = r->texts->next;
        free(r->texts);
        r->texts = next;
    }
    free(r->answer);
    free(r->tokens);
    free(r->bias);
    free(r->tools);
    free(r->tool);
    free(r->callable);
    free(r->labels);
    free(r->opening);
    free(r->continues);
    engine_form_free(r->form);
    engine_form_free(r->call_form);
    cJSON_Delete(r->params_json);
    cJSON_Delete(r->settings);
    free(r->conversation);
    free(r->previous);
    free(r->parent);
    free(r->instructions);
    free(r->key);
    free(r->body);
    free(r->params);
    free(r->stream_id);
    free(r->model);
    free(r->items);
    for (size_t i = 0; i < r->n_copies; i++) {
        session_texts_free(r->copies[i]);
    }
    free(r->copies);
    for (size_t i = 0; i < r->n_stops; i++) {
        free(r->stops[i]);
    }
    if (r->budget) {
        budget_give(r->budget, r->owner, r->bytes);
    }
    free(r);
}

void turn_request_copy(struct turn_request *r)
{
    size_t n = r->n > 1 ? (size_t)r->n : 1;
    r->copies = calloc(n, sizeof(*r->copies));
    while (r->copies && r->n_copies < n && (r->copies[r->n_copies] = session_texts_new(r->items, r->n_items))) {
        r->n_copies++;
    }
}

bool turn_request_count(struct turn_request *r, struct budget *b, const char *owner, size_t body_bytes,
                        struct api_error *e)
{
    r->bytes = sizeof(*r) + body_bytes * REQUEST_COPIES + (r->form ? engine_form_bytes(r->form) : 0) +
               (r->call_form ? engine_form_bytes(r->call_form) : 0);
    if (!budget_take(b, owner, r->bytes, e)) {
        return false;
    }
    (void)snprintf(r->owner, sizeof(r->owner), "%s", owner);
    r->budget = b;
    return true;
}
