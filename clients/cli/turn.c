/* turn.c - one turn: the request, its events as they come, stopping it, and finding it again when the connection broke.
 *
 * Events are followed by their sequence numbers. When the socket is lost in the middle the daemon goes on with the turn
 * (a conversation's turns finish); the rest is fetched over HTTP from the event after the last one seen. A turn whose
 * response id never arrived is not sent again: it may have been taken.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clients/cli/cli_internal.h"

#define WAIT_MS        100
#define RECONNECT_MS   300
#define RECONNECT_MORE 40 /* tries: a daemon that restarts is back within some seconds */

struct follow {
    struct net *net;
    struct term *term;
    const struct turn *turn;
    struct turn_result *result;
    double sequence; /* of the last event seen; -1: none */
    bool ended;
    bool cancel_sent;
    struct buf stream; /* bytes of an event stream that are no whole line yet */
    char err[CLI_ERR_SIZE];
};

/* ---- the request ---------------------------------------------------------------------------------------------------
 */

static void add_sampling(cJSON *body, cJSON *own, const struct sampling *s)
{
    if (!s)
        return;
    if (s->temperature >= 0)
        cJSON_AddNumberToObject(body, "temperature", s->temperature);
    if (s->top_p >= 0)
        cJSON_AddNumberToObject(body, "top_p", s->top_p);
    if (s->max_tokens > 0)
        cJSON_AddNumberToObject(body, "max_output_tokens", s->max_tokens);
    if (s->thinking_tokens >= 0)
        cJSON_AddNumberToObject(own, "thinking_tokens", s->thinking_tokens);
    cJSON *reasoning = s->effort || s->context ? cJSON_AddObjectToObject(body, "reasoning") : NULL;
    if (s->effort)
        cJSON_AddStringToObject(reasoning, "effort", s->effort);
    if (s->context)
        cJSON_AddStringToObject(reasoning, "context", s->context);
    if (s->truncation)
        cJSON_AddStringToObject(body, "truncation", s->truncation);
    if (s->has_seed) {
        char digits[24]; /* all of them: cJSON prints 15 of a number */
        snprintf(digits, sizeof(digits), "%lld", (long long)s->seed);
        cJSON_AddRawToObject(own, "seed", digits);
    }
}

static void add_message(cJSON *body, const char *text)
{
    cJSON *message = cJSON_CreateObject(), *input = cJSON_AddArrayToObject(body, "input");
    cJSON_AddStringToObject(message, "type", "message");
    cJSON_AddStringToObject(message, "role", "user");
    cJSON_AddStringToObject(message, "content", text);
    cJSON_AddItemToArray(input, message);
}

static char *request_of(const struct turn *turn)
{
    cJSON *body = cJSON_CreateObject();
    cJSON_AddStringToObject(body, "type", "response.create");
    if (turn->model)
        cJSON_AddStringToObject(body, "model", turn->model);
    if (turn->conversation && !turn->continues)
        cJSON_AddStringToObject(body, "conversation", turn->conversation);
    if (turn->instructions)
        cJSON_AddStringToObject(body, "instructions", turn->instructions);
    if (!turn->continues)
        add_message(body, turn->text);
    if (!turn->store)
        cJSON_AddBoolToObject(body, "store", false);
    cJSON *own = cJSON_AddObjectToObject(body, "convod");
    cJSON_AddBoolToObject(own, "progress", true);
    if (turn->parent)
        cJSON_AddStringToObject(own, "parent", turn->parent);
    if (turn->continues)
        cJSON_AddStringToObject(own, "continue", turn->continues);
    add_sampling(body, own, turn->sampling);
    return text_json(body);
}

static void send_cancel(struct net *n, const char *response_id)
{
    cJSON *body = cJSON_CreateObject();
    cJSON_AddStringToObject(body, "type", "response.cancel");
    cJSON_AddStringToObject(body, "response_id", response_id);
    char *text = text_json(body);
    net_ws_send(n, text);
    free(text);
}

void turn_warm_up(struct net *n, const char *conversation)
{
    char err[CLI_ERR_SIZE];
    if (net_ws_open(n, err, sizeof(err)) != 0)
        return; /* the turn itself will say what is wrong */
    cJSON *body = cJSON_CreateObject();
    cJSON_AddStringToObject(body, "type", "response.create");
    cJSON_AddStringToObject(body, "conversation", conversation);
    cJSON_AddArrayToObject(body, "input");
    cJSON_AddBoolToObject(body, "generate", false);
    cJSON_AddBoolToObject(cJSON_AddObjectToObject(body, "convod"), "progress", true);
    char *text = text_json(body);
    if (net_ws_send(n, text) == 0) {
        ++*net_ws_warm_ups(n);
        net_pause(n, 1);
    }
    free(text);
}

/* ---- events --------------------------------------------------------------------------------------------------------
 */

static void keep_error(struct turn_result *r, const cJSON *error, const char *fallback)
{
    free(r->error);
    free(r->code);
    r->error = text_copy(json_string(error, "message", fallback));
    r->code = text_copy(json_string(error, "code", json_string(error, "type", "")));
}

static void on_text(struct follow *f, const char *text)
{
    size_t len = strlen(text);
    buf_add(&f->result->answer, text, len);
    if (f->turn->print)
        term_answer(f->term, text, len);
}

static void on_progress(struct follow *f, const cJSON *event)
{
    if (!f->turn->print || f->result->answer.len > 0)
        return;
    struct buf text = {0};
    text_progress(json_string(event, "stage", ""), json_number(event, "done", 0), json_number(event, "total", 0),
                  &text);
    term_status(f->term, text.data ? text.data : "");
    buf_free(&text);
}

/* The terminal event: what of the text was missed (an event lost with a connection) is made up from the whole. */
static void on_end(struct follow *f, enum turn_end end, cJSON *event)
{
    struct turn_result *r = f->result;
    f->ended = true;
    r->end = end;
    cJSON_Delete(r->response);
    r->response = cJSON_DetachItemFromObjectCaseSensitive(event, "response");
    if (end == TURN_FAILED) {
        keep_error(r, cJSON_GetObjectItemCaseSensitive(r->response, "error"), "the answer failed");
        return;
    }
    struct buf whole = {0};
    text_of_output(r->response, &whole);
    if (whole.len > r->answer.len && (r->answer.len == 0 || memcmp(whole.data, r->answer.data, r->answer.len) == 0)) {
        char *rest = text_copy(whole.data + r->answer.len);
        on_text(f, rest);
        free(rest);
    }
    buf_free(&whole);
}

static bool is_terminal(const char *type)
{
    return strcmp(type, "response.completed") == 0 || strcmp(type, "response.incomplete") == 0 ||
           strcmp(type, "response.failed") == 0 || strcmp(type, "error") == 0;
}

static void handle(struct follow *f, const char *type, cJSON *event)
{
    struct turn_result *r = f->result;
    const cJSON *response = cJSON_GetObjectItemCaseSensitive(event, "response");
    if (strcmp(type, "response.created") == 0) {
        const char *id = json_string(response, "id", NULL);
        if (id && !r->response_id)
            r->response_id = text_copy(id);
    } else if (strcmp(type, "response.output_item.added") == 0) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(event, "item");
        if (f->turn->print && r->answer.len == 0 && strcmp(json_string(item, "type", ""), "reasoning") == 0)
            term_status(f->term, "thinking");
    } else if (strcmp(type, "response.output_text.delta") == 0) {
        on_text(f, json_string(event, "delta", ""));
    } else if (strcmp(type, "response.convod.progress") == 0) {
        on_progress(f, event);
    } else if (strcmp(type, "response.completed") == 0) {
        on_end(f, TURN_COMPLETED, event);
    } else if (strcmp(type, "response.incomplete") == 0) {
        on_end(f, TURN_INCOMPLETE, event);
    } else if (strcmp(type, "response.failed") == 0) {
        on_end(f, TURN_FAILED, event);
    } else if (strcmp(type, "error") == 0) {
        const cJSON *error = cJSON_GetObjectItemCaseSensitive(event, "error");
        keep_error(r, error ? error : event, "the daemon refused the turn");
        r->end = TURN_FAILED;
        f->ended = true;
    }
}

static void on_event(struct follow *f, const char *text, size_t len)
{
    cJSON *event = cJSON_ParseWithLength(text, len);
    const char *type = json_string(event, "type", "");
    double sequence = json_number(event, "sequence_number", -1);
    int *warm_ups = net_ws_warm_ups(f->net);
    if (*warm_ups > 0 && !f->result->response_id) {
        /* Still of a warm-up that was sent before this turn. */
        if (is_terminal(type)) {
            --*warm_ups;
            cJSON *own =
                cJSON_DetachItemFromObjectCaseSensitive(cJSON_GetObjectItemCaseSensitive(event, "response"), "convod");
            const char *of = f->turn->conversation ? f->turn->conversation : "";
            cJSON_Delete(f->result->warm_up);
            f->result->warm_up = strcmp(json_string(own, "conversation", ""), of) == 0 ? own : NULL;
            if (!f->result->warm_up)
                cJSON_Delete(own);
        } else if (strcmp(type, "response.convod.progress") == 0)
            on_progress(f, event);
    } else if (!f->ended && (sequence < 0 || sequence > f->sequence)) {
        if (sequence >= 0)
            f->sequence = sequence;
        handle(f, type, event);
    }
    cJSON_Delete(event);
}

void turn_cool_down(struct net *n)
{
    int *warm_ups = net_ws_warm_ups(n);
    while (*warm_ups > 0 && interrupts_pending() == 0) {
        char *message = net_ws_next(n, WAIT_MS);
        if (!message && !net_ws_is_open(n))
            break;
        cJSON *event = message ? cJSON_Parse(message) : NULL;
        const char *type = json_string(event, "type", "");
        const char *id = json_string(cJSON_GetObjectItemCaseSensitive(event, "response"), "id", NULL);
        if (is_terminal(type))
            --*warm_ups;
        else if (strcmp(type, "response.created") == 0 && id)
            send_cancel(n, id);
        cJSON_Delete(event);
        free(message);
    }
}

/* ---- after a broken connection -------------------------------------------------------------------------------------
 */

static bool on_stream(void *arg, const char *data, size_t len)
{
    struct follow *f = arg;
    buf_add(&f->stream, data, len);
    size_t at = 0;
    for (char *end; (end = memchr(f->stream.data + at, '\n', f->stream.len - at));) {
        char *line = f->stream.data + at;
        size_t size = (size_t)(end - line);
        at += size + 1;
        if (size > 0 && line[size - 1] == '\r')
            size--;
        if (size > 5 && memcmp(line, "data:", 5) == 0)
            on_event(f, line + 5, size - 5);
    }
    memmove(f->stream.data, f->stream.data + at, f->stream.len - at + 1);
    f->stream.len -= at;
    term_answer_show(f->term);
    return !f->ended && interrupts_pending() == 0;
}

/* A stored response that has ended stands for its terminal event. Whether it has. */
static bool take_stored(struct follow *f, cJSON *response)
{
    const char *status = json_string(response, "status", "");
    enum turn_end end = TURN_COMPLETED;
    if (strcmp(status, "incomplete") == 0 || strcmp(status, "cancelled") == 0)
        end = TURN_INCOMPLETE;
    else if (strcmp(status, "failed") == 0)
        end = TURN_FAILED;
    else if (strcmp(status, "completed") != 0)
        return false;
    cJSON *event = cJSON_CreateObject();
    cJSON_AddItemToObject(event, "response", response);
    on_end(f, end, event);
    cJSON_Delete(event);
    return true;
}

static void lost(struct follow *f, int rc, const char *why)
{
    f->result->end = TURN_LOST;
    f->result->rc = rc;
    free(f->result->error);
    f->result->error = text_copy(why);
    f->ended = true;
}

/* Whether the daemon closed the socket over the turn, rather than over something else; then this is told. */
static bool refused_by_close(struct follow *f)
{
    const char *reason, *why = NULL;
    struct buf later = {0};
    int code = net_ws_close_code(f->net, &reason);
    if (code == 1008) /* ends what runs, too */
        why = "the daemon does not serve this connection any more; was your token taken away?";
    if (code == 1007 && !f->result->response_id)
        why = "the daemon refuses the message: it is not UTF-8";
    if (code == 1009 && !f->result->response_id)
        why = "the message is longer than the daemon takes";
    /* Out of memory for requests is 1013, of which libwebsockets makes 1002. */
    if ((code == 1013 || code == 1002) && !f->result->response_id) {
        buf_printf(&later, "the daemon cannot take the message now (%s); try again later", reason);
        why = later.data;
    }
    if (why)
        lost(f, 0, why);
    buf_free(&later);
    return why != NULL;
}

static void find_again(struct follow *f)
{
    struct turn_result *r = f->result;
    if (refused_by_close(f))
        return;
    if (!r->response_id || !f->turn->store) {
        lost(f, -EPIPE,
             "the connection broke before the daemon confirmed the turn; look at the conversation (/show) "
             "before you send it again");
        return;
    }
    struct buf path = {0};
    for (int attempt = 0; !f->ended && attempt < RECONNECT_MORE; attempt++) {
        if (interrupts_pending() > 0) {
            lost(f, -EINTR, "stopped waiting; the daemon finishes the answer, and the conversation keeps it");
            break;
        }
        term_status(f->term, "the connection broke, looking for the answer");
        struct net_reply reply;
        buf_clear(&path);
        buf_printf(&path, "/v1/responses/%s", r->response_id);
        int rc = net_http(f->net, "GET", path.data, NULL, &reply, NULL, NULL, f->err, sizeof(f->err));
        if (rc == 0 && reply.status == 404) {
            lost(f, 0, "the daemon was stopped before the answer was kept; the conversation stands as it was before");
        } else if (rc == 0 && reply.status == 200) {
            cJSON *response = cJSON_ParseWithLength(reply.body.data ? reply.body.data : "", reply.body.len);
            if (response && take_stored(f, response)) {
                buf_free(&reply.body);
                break;
            }
            cJSON_Delete(response);
            buf_clear(&path);
            buf_printf(&path, "/v1/responses/%s?stream=true&starting_after=%.0f", r->response_id, f->sequence);
            struct net_reply streamed;
            buf_clear(&f->stream);
            if (net_http(f->net, "GET", path.data, NULL, &streamed, on_stream, f, f->err, sizeof(f->err)) == 0)
                buf_free(&streamed.body);
        }
        if (rc == 0)
            buf_free(&reply.body);
        if (!f->ended)
            net_pause(f->net, RECONNECT_MS);
    }
    buf_free(&path);
    if (!f->ended)
        lost(
            f, -ECONNREFUSED,
            "the connection broke and the daemon does not answer; the conversation keeps every turn that was finished");
}

/* ---- running -------------------------------------------------------------------------------------------------------
 */

static void follow_socket(struct follow *f)
{
    while (!f->ended) {
        char *message = net_ws_next(f->net, WAIT_MS);
        if (message) {
            on_event(f, message, strlen(message));
            free(message);
            if (!net_ws_has_next(f->net))
                term_answer_show(f->term);
        } else if (!net_ws_is_open(f->net)) {
            find_again(f);
            return;
        }
        /* The first Ctrl-C stops the answer as soon as its id is known. */
        bool stop = interrupts_pending() > 0 || f->term->out_error != 0;
        if (stop && !f->cancel_sent && f->result->response_id && !f->ended) {
            send_cancel(f->net, f->result->response_id);
            f->cancel_sent = true;
        }
        if (interrupts_pending() > 1 && !f->ended) {
            net_ws_close(f->net);
            lost(f, -EINTR, "left without waiting for the daemon to stop");
        }
    }
}

void turn_run(struct net *n, struct term *t, const struct turn *turn, struct turn_result *result)
{
    *result = (struct turn_result){.end = TURN_FAILED};
    struct follow f = {.net = n, .term = t, .turn = turn, .result = result, .sequence = -1};
    char *request = request_of(turn);
    if (strlen(request) > CLI_REQUEST_MAX) {
        result->rc = -EMSGSIZE;
        snprintf(f.err, sizeof(f.err),
                 "the message is longer than the %u MiB that the daemon takes, with what JSON adds",
                 CLI_REQUEST_MAX >> 20);
    } else {
        result->rc = net_ws_open(n, f.err, sizeof(f.err));
    }
    if (result->rc) {
        result->error = text_copy(f.err);
        free(request);
        return;
    }
    if (turn->print) {
        term_quiet(t); /* what is typed would stand in the answer */
        term_status(t, "\u2026");
    }
    if (net_ws_send(n, request) == 0)
        follow_socket(&f);
    else
        lost(&f, -EPIPE, "the connection broke");
    free(request);
    buf_free(&f.stream);
    term_status_clear(t);
    if (turn->print)
        term_answer_end(t);
}

void turn_result_free(struct turn_result *r)
{
    free(r->response_id);
    free(r->code);
    free(r->error);
    cJSON_Delete(r->response);
    cJSON_Delete(r->warm_up);
    buf_free(&r->answer);
    *r = (struct turn_result){0};
}
