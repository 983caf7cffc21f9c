/* ops.c - requests that one command of the session answers.
 *
 * An op remembers which connection asked, by number: the answer of a connection that went away is dropped.
 */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/api/api.h"

/* ---- copies of what the session lends during a callback -----------------------------------------------------------
 */

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

static int session_result_copy(const struct session_result *from, struct session_result *to)
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
    if (from->items) {
        to->items = items_copy(from->items, from->n_items);
        if (!to->items) {
            return -ENOMEM;
        }
        to->n_items = from->n_items;
    }
    if (from->n_responses) {
        struct session_response *list = calloc(from->n_responses, sizeof(*list));
        if (!list) {
            return -ENOMEM;
        }
        to->responses = list;
        for (size_t i = 0; i < from->n_responses; i++) {
            to->n_responses = i + 1;
            if (response_copy(&from->responses[i], &list[i])) {
                to->n_responses = i;
                return -ENOMEM;
            }
        }
    }
    if (from->usage) {
        struct session_usage *usage = malloc(sizeof(*usage));
        if (!usage) {
            return -ENOMEM;
        }
        *usage = *from->usage;
        to->usage = usage;
    }
    return 0;
}

static void session_result_free(struct session_result *r)
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
        response_free((struct session_response *)&r->responses[i]);
    }
    items_free((struct session_item *)r->items, r->items ? r->n_items : 0);
    free((void *)r->conversations);
    free((void *)r->responses);
    free((void *)r->usage);
    memset(r, 0, sizeof(*r));
}

/* ---- operations ---------------------------------------------------------------------------------------------------
 */

struct op *op_new(struct client *c, const char *id,
                  void (*answer)(struct client *c, struct op *op, const struct session_result *r))
{
    struct op *op = calloc(1, sizeof(*op));
    if (!op) {
        struct api_error e;
        api_error_set(&e, 500, "server_error", NULL, "Out of memory.");
        client_answer_error(c, &e);
        return NULL;
    }
    op->api = c->api;
    op->client_id = c->id;
    op->answer = answer;
    snprintf(op->id, sizeof(op->id), "%s", id ? id : "");
    snprintf(op->owner, sizeof(op->owner), "%s", c->owner);
    return op;
}

void op_free(struct op *op)
{
    if (!op) {
        return;
    }
    session_result_free(&op->result);
    turn_request_free(op->turn);
    if (op->run) {
        run_free(op->run);
    }
    free(op->text);
    free(op->body);
    free(op);
}

void op_posted(struct client *c, struct op *op, int rc)
{
    if (rc == 0) {
        return;
    }
    struct api_error e;
    if (rc == -EINVAL) {
        api_error_set(&e, 400, "invalid_value", NULL, "The request was not accepted.");
    } else {
        api_error_set(&e, 503, "server_overloaded", NULL, "The request could not be queued.");
    }
    op_free(op);
    client_answer_error(c, &e);
}

/* On a WebSocket the error goes to the stream that asked. */
static void answer_error(struct client *c, const struct op *op, const struct api_error *e)
{
    if (c->websocket) {
        client_ws_error(c, e, op->text);
    } else {
        client_answer_error(c, e);
    }
}

static void result(struct op *op, const struct session_result *r)
{
    if (op->deletes && (r->rc == 0 || r->rc == -EINPROGRESS)) {
        run_hide(&op->api->runs, op->owner, op->id);
    }
    struct client *c = op->api->find(op->api, op->client_id);
    if (!c && r->rc == 0 && op->unread) {
        op->unread(op, r);
    }
    if (c) {
        if (r->rc == 0 || (r->rc == -ECHILD && op->may_stay)) {
            op->answer(c, op, r);
        } else if (r->rc == -ERANGE && op->missing) {
            op->missing(c, op->text ? op->text : "");
        } else {
            struct api_error e;
            const char *what = strncmp(op->id, "conv_", 5) == 0 ? "conversation" : "response";
            if (r->rc == -ENOENT) {
                api_error_set(&e, 404, *what == 'c' ? "conversation_not_found" : "response_not_found", "id",
                              "There is no %s with id '%s'.", what, op->id);
            } else if (r->rc == -EBUSY) {
                api_error_set(&e, 400, "conversation_locked", NULL, "A turn is running on %s '%s'.",
                              *what == 'c' ? "conversation" : "the conversation of", op->id);
            } else if (r->rc == -ECHILD) {
                api_error_set(&e, 400, "response_in_use", "id", "Other responses follow '%s'.", op->id);
            } else if (r->rc == -EINPROGRESS) {
                api_error_deleting(op->id, &e);
            } else if (r->rc == -EEXIST) {
                api_error_set(&e, 400, "already_exists", NULL, "'%s' exists already.", op->id);
            } else if (r->rc == -ESRCH) {
                api_error_set(&e, 400, "invalid_value", "convod.head",
                              "'convod.head' must be a response of this conversation that has an answer, or \"\".");
            } else if (r->rc == -ERANGE) {
                api_error_set(&e, 400, "invalid_value", "after", "There is no such item in this list.");
            } else if (r->rc == -EKEYREJECTED) {
                api_error_session(SESSION_KEY_REUSED, NULL, &e);
            } else if (r->rc == -EUSERS) {
                api_error_session(SESSION_KEY_LIMIT, NULL, &e);
            } else if (r->rc == -EMFILE || r->rc == -EFBIG) {
                api_error_session(SESSION_QUOTA,
                                  r->rc == -EMFILE
                                      ? "You have as many conversations as you may have: delete some first."
                                      : "Your conversations take as many bytes as they may: delete some first.",
                                  &e);
            } else if (session_disk_full(r->rc)) {
                api_error_session(SESSION_DISK_FULL, NULL, &e);
            } else if (r->rc == -EINVAL) {
                api_error_set(&e, 400, "invalid_value", NULL, "The request was not accepted.");
            } else {
                api_error_set(&e, 500, "server_error", NULL, "The operation failed (%s).", strerror(-r->rc));
            }
            answer_error(c, op, &e);
        }
    }
}

void op_build(struct op *op)
{
    if (!op->built) {
        op->body = op->build(op, &op->refused);
        op->built = true;
    }
}

void op_built(struct client *c, struct op *op, const struct session_result *r)
{
    (void)r;
    op_build(op);
    if (op->refused.status) {
        client_answer_error(c, &op->refused);
    } else {
        client_answer(c, 200, "application/json", op->body);
        op->body = NULL;
    }
}

static struct op *op_of(struct work *w)
{
    return (struct op *)((char *)w - offsetof(struct op, work));
}

/* [worker] */
static void build_away(struct work *w)
{
    op_build(op_of(w));
}

static void built(struct work *w, bool closing)
{
    struct op *op = op_of(w);
    if (!closing) {
        result(op, &op->result);
    }
    op_free(op);
}

/* Network thread. */
static void take_result(struct event *event, bool closing)
{
    struct op *op = (struct op *)event;
    if (!closing && op->build && op->result.rc == 0 && op->result_bytes > WORK_BYTES_MIN) {
        op->work.run = build_away;
        op->work.done = built;
        work_submit(op->api->runs.workers, &op->work, op->owner);
        return;
    }
    if (!closing) {
        result(op, &op->result);
    }
    op_free(op);
}

/* Of the texts in it that may be long. */
static size_t result_bytes(const struct session_result *r)
{
    size_t bytes = r->items ? items_bytes(r->items, r->n_items) : 0;
    for (size_t i = 0; i < r->n_conversations; i++) {
        bytes += text_length(r->conversations[i].instructions) + text_length(r->conversations[i].metadata);
    }
    for (size_t i = 0; i < r->n_responses; i++) {
        bytes += response_bytes(&r->responses[i]);
    }
    return bytes;
}

/* [session's threads] */
void op_done(void *arg, const struct session_result *r)
{
    struct op *op = arg;
    if (session_result_copy(r, &op->result)) {
        session_result_free(&op->result);
        op->result.rc = -ENOMEM;
    }
    op->result_bytes = result_bytes(&op->result);
    op->event.take = take_result;
    events_post(op->api->events, &op->event);
}
