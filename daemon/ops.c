/* ops.c - requests that one command of the session answers.
 *
 * An op remembers which connection asked, by number: the answer of a connection that went away is dropped.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/daemon_internal.h"

struct op *op_new(struct conn *c, const char *id,
                  void (*answer)(struct conn *c, struct op *op, const struct session_result *r))
{
    struct op *op = calloc(1, sizeof(*op));
    if (!op) {
        struct api_error e;
        api_error_set(&e, 500, "server_error", NULL, "Out of memory.");
        conn_answer_error(c, &e);
        return NULL;
    }
    op->server = c->server;
    op->conn_id = c->id;
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
    free(op->text);
    engine_tokens_free(&op->tokens);
    free(op);
}

/* [session's threads] */
void op_done(void *arg, const struct session_result *r)
{
    struct op *op = arg;
    struct event *e = event_new(EVENT_RESULT);
    if (e && session_result_copy(r, &e->result)) {
        session_result_free(&e->result);
        e->result.rc = -ENOMEM;
    }
    if (!e) {
        /* Nothing can be told to the network thread; the connection runs into its client's timeout. */
        op_free(op);
        return;
    }
    e->op = op;
    events_post(&op->server->events, e);
}

void op_posted(struct conn *c, struct op *op, int rc)
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
    conn_answer_error(c, &e);
}

void op_result(struct op *op, const struct session_result *r)
{
    if (op->deletes && (r->rc == 0 || r->rc == -EINPROGRESS)) {
        run_hide(op->server, op->owner, op->id);
    }
    struct conn *c = conn_find(op->server, op->conn_id);
    if (c) {
        if (r->rc == 0) {
            op->answer(c, op, r);
        } else {
            struct api_error e;
            const char *what = strncmp(op->id, "conv_", 5) == 0 ? "conversation" : "response";
            if (r->rc == -ENOENT) {
                api_error_set(&e, 404, *what == 'c' ? "conversation_not_found" : "response_not_found", "id",
                              "There is no %s with id '%s'.", what, op->id);
            } else if (r->rc == -EBUSY && *what == 'c') {
                api_error_set(&e, 400, "conversation_locked", NULL, "A turn is running on conversation '%s'.", op->id);
            } else if (r->rc == -EBUSY) {
                api_error_set(&e, 400, "response_in_use", NULL, "Other responses follow '%s'.", op->id);
            } else if (r->rc == -EINPROGRESS) {
                api_error_set(&e, 409, "deleting", NULL,
                              "'%s' is deleted, but something of it could not be erased from the disk yet. This is "
                              "tried again by itself.",
                              op->id);
            } else if (r->rc == -EEXIST) {
                api_error_set(&e, 400, "already_exists", NULL, "'%s' exists already.", op->id);
            } else if (r->rc == -EINVAL) {
                api_error_set(&e, 400, "invalid_value", NULL, "The request was not accepted.");
            } else {
                api_error_set(&e, 500, "server_error", NULL, "The operation failed (%s).", strerror(-r->rc));
            }
            conn_answer_error(c, &e);
        }
    }
    op_free(op);
}
