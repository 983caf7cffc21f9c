/* ws.c - the WebSocket: messages out of frames, and lanes of turns.
 *
 * A lane is the turns that carry one stream_id (those without one are a lane too). Turns of a lane run one after the
 * other; lanes run side by side, up to LANES_ACTIVE_MAX.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/daemon_internal.h"

#define WS_TRY_AGAIN_LATER 1013 /* IANA's registry of close codes */

struct waiting {
    struct waiting *next;
    struct turn_request *request;
};

struct lane {
    struct lane *next;
    char *stream_id; /* NULL: the lane of requests without one */
    struct waiting *first, **last;
    bool active;
};

int ws_receive(struct conn *c, const char *data, size_t len)
{
    if (c->dropped || c->close_code) {
        return 0;
    }
    bool last = lws_is_final_fragment(c->wsi) && lws_remaining_packet_payload(c->wsi) == 0;
    if (c->message_len == 0 && lws_is_first_fragment(c->wsi)) {
        c->message_binary = lws_frame_is_binary(c->wsi) != 0;
    }
    size_t total;
    /* The rest of the frame is announced: a message that will be too large is refused before it is stored. */
    if (__builtin_add_overflow(c->message_len, len, &total) ||
        __builtin_add_overflow(total, lws_remaining_packet_payload(c->wsi), &total) || total > MESSAGE_BYTES_MAX) {
        c->message_len = 0;
        conn_ws_close(c, LWS_CLOSE_STATUS_MESSAGE_TOO_LARGE, "message too large");
        return 0;
    }
    struct api_error e;
    int rc = server_grow_buffer(c->server, &c->message, &c->message_size, c->message_len + len + 1, &e);
    if (rc == -EDQUOT) {
        c->message_len = 0;
        conn_ws_close(c, WS_TRY_AGAIN_LATER, "requests take all the memory that they may");
        return 0;
    }
    if (rc) {
        conn_drop(c);
        return 0;
    }
    if (len) {
        memcpy(c->message + c->message_len, data, len);
    }
    c->message_len += len;
    if (!last) {
        return 0;
    }
    c->message[c->message_len] = '\0';
    size_t message_len = c->message_len;
    c->message_len = 0;
    if (c->message_binary) {
        conn_ws_close(c, LWS_CLOSE_STATUS_UNACCEPTABLE_OPCODE, "text messages only");
    } else if (!utf8_valid(c->message, message_len)) {
        conn_ws_close(c, LWS_CLOSE_STATUS_INVALID_PAYLOAD, "invalid UTF-8");
    } else {
        ws_message(c, c->message, message_len);
    }
    /* An idle connection holds no large buffer. */
    if (c->message_size > BUFFER_BYTES_MIN) {
        server_give_bytes(c->server, c->message_size);
        free(c->message);
        c->message = NULL;
        c->message_size = 0;
    }
    return 0;
}

static struct lane *lane_find(struct conn *c, const char *stream_id)
{
    for (struct lane *l = c->lanes; l; l = l->next) {
        if (stream_id ? l->stream_id && strcmp(l->stream_id, stream_id) == 0 : !l->stream_id) {
            return l;
        }
    }
    return NULL;
}

static struct lane *lane_get(struct conn *c, const char *stream_id, struct api_error *e)
{
    struct lane *l = lane_find(c, stream_id);
    if (l) {
        return l;
    }
    if (stream_id && c->n_lanes == LANES_MAX) {
        api_error_set(e, 400, "too_many_streams", "stream_id", "A connection has at most %d named streams.", LANES_MAX);
        return NULL;
    }
    l = calloc(1, sizeof(*l));
    char *id = stream_id ? strdup(stream_id) : NULL;
    if (!l || (stream_id && !id)) {
        free(l);
        free(id);
        api_error_set(e, 500, "server_error", NULL, "Out of memory.");
        return NULL;
    }
    l->stream_id = id;
    l->last = &l->first;
    l->next = c->lanes;
    c->lanes = l;
    if (id) {
        c->n_lanes++;
    }
    return l;
}

/* Starts what can be started. */
static void lanes_run(struct conn *c)
{
    for (struct lane *l = c->lanes; l && !c->dropped; l = l->next) {
        while (!l->active && l->first && c->n_active < LANES_ACTIVE_MAX && !c->dropped) {
            struct waiting *w = l->first;
            l->first = w->next;
            if (!l->first) {
                l->last = &l->first;
            }
            c->n_waiting--;
            l->active = true;
            c->n_active++;
            struct turn_request *request = w->request;
            free(w);
            /* On refusal this comes back through ws_lane_ended(), which makes the lane free again. */
            run_start(c, request, SUBSCRIBE_WS);
        }
    }
}

void ws_lane_ended(struct conn *c, const char *stream_id)
{
    struct lane *l = lane_find(c, stream_id);
    if (!l || !l->active) {
        return;
    }
    l->active = false;
    c->n_active--;
    if (!c->lanes_busy) {
        /* Not from within lanes_run(), which goes on by itself. */
        c->lanes_busy = true;
        lanes_run(c);
        c->lanes_busy = false;
    }
}

void ws_free(struct conn *c)
{
    while (c->lanes) {
        struct lane *l = c->lanes;
        c->lanes = l->next;
        while (l->first) {
            struct waiting *w = l->first;
            l->first = w->next;
            turn_request_free(w->request);
            free(w);
        }
        free(l->stream_id);
        free(l);
    }
    ephemerals_free(c);
    server_give_bytes(c->server, c->message_size);
    free(c->message);
}

static void create(struct conn *c, cJSON *body, size_t len, const char *stream_id)
{
    struct api_error e = {0};
    struct server *s = c->server;
    struct turn_request *q = responses_parse(body, true, &e);
    struct lane *l = NULL;
    struct waiting *w = NULL;
    if (!q || !model_check(s, q->model, &e) || !turn_request_count(q, s, len, &e)) {
        goto refuse;
    }
    if (!s->session) {
        api_error_set(&e, 503, s->stopping ? "server_shutdown" : "model_loading", NULL, "%s",
                      s->stopping ? "The server is stopping." : "The model is still loading.");
        goto refuse;
    }
    if (c->n_waiting >= LANE_WAITING_MAX) {
        api_error_set(&e, 429, "rate_limit_exceeded", NULL, "More than %d requests wait on this connection.",
                      LANE_WAITING_MAX);
        goto refuse;
    }
    l = lane_get(c, q->stream_id, &e);
    if (!l) {
        goto refuse;
    }
    w = calloc(1, sizeof(*w));
    if (!w) {
        api_error_set(&e, 500, "server_error", NULL, "Out of memory.");
        goto refuse;
    }
    w->request = q;
    *l->last = w;
    l->last = &w->next;
    c->n_waiting++;
    c->lanes_busy = true;
    lanes_run(c);
    c->lanes_busy = false;
    return;
refuse:
    conn_ws_error(c, &e, stream_id && stream_id_valid(stream_id) ? stream_id : NULL);
    turn_request_free(q);
}

/* The run that this connection follows in this lane. */
static struct run *lane_active_run(struct conn *c, const char *stream_id)
{
    for (struct subscriber *sub = c->subscribers; sub; sub = sub->next_in_conn) {
        bool same = stream_id ? sub->stream_id && strcmp(sub->stream_id, stream_id) == 0 : !sub->stream_id;
        if (same && sub->kind == SUBSCRIBE_WS && !sub->run->ended) {
            return sub->run;
        }
    }
    return NULL;
}

static void cancel(struct conn *c, const cJSON *body, const char *stream_id)
{
    struct api_error e = {0};
    const char *id = NULL;
    if (json_string(body, "", "response_id", 256, &id, &e)) {
        conn_ws_error(c, &e, stream_id);
        return;
    }
    struct run *run = id ? run_find(c->server, c->owner, id) : lane_active_run(c, stream_id);
    if (!run) {
        api_error_set(&e, 404, id ? "response_not_found" : "no_active_response", id ? "response_id" : NULL,
                      id ? "There is no such response." : "No response is active in this stream.");
        conn_ws_error(c, &e, stream_id);
        return;
    }
    if (!run->ended && c->server->session) {
        session_cancel(c->server->session, c->owner, run->id);
    }
}

/* Joins a response that runs, or ran lately: a second device, or this one after its connection broke. */
static void attach(struct conn *c, const cJSON *body, const char *stream_id)
{
    struct api_error e = {0};
    const char *id = NULL;
    int64_t after = -1;
    if (json_string(body, "", "response_id", 256, &id, &e) ||
        json_int(body, "", "starting_after", -1, (1LL << 53) - 1, &after, &e)) {
        conn_ws_error(c, &e, stream_id);
        return;
    }
    struct run *run = id ? run_find(c->server, c->owner, id) : NULL;
    if (!run || run->request->api != RUN_RESPONSES) {
        api_error_set(&e, 404, "response_not_found", "response_id",
                      "This response is not running; GET /v1/responses/{id} has it when it is stored.");
        conn_ws_error(c, &e, stream_id);
        return;
    }
    if (c->n_watched >= WATCHED_MAX) {
        api_error_set(&e, 429, "rate_limit_exceeded", NULL, "A connection follows at most %d responses.", WATCHED_MAX);
        conn_ws_error(c, &e, stream_id);
        return;
    }
    size_t from = (size_t)(after + 1);
    run_subscribe(run, c, SUBSCRIBE_WATCH, from > run->n_log ? run->n_log : from, stream_id);
}

void ws_message(struct conn *c, const char *text, size_t len)
{
    struct api_error e = {0};
    c->server->counters.requests++;
    cJSON *body = json_parse_request(text, len, &e);
    const char *type = NULL, *stream_id = NULL;
    if (body) {
        /* So that an error about anything else can be routed. */
        const cJSON *v = json_get(body, "stream_id");
        if (cJSON_IsString(v) && stream_id_valid(v->valuestring)) {
            stream_id = v->valuestring;
        }
    }
    if (!body || json_string(body, "", "type", 64, &type, &e)) {
        conn_ws_error(c, &e, stream_id);
        cJSON_Delete(body);
        return;
    }
    char *lane = stream_id ? strdup(stream_id) : NULL;
    if (stream_id && !lane) {
        cJSON_Delete(body);
        conn_drop(c);
        return;
    }
    if (type && strcmp(type, "response.create") == 0) {
        create(c, body, len, lane);
        body = NULL;
    } else if (type && strcmp(type, "response.cancel") == 0) {
        cancel(c, body, lane);
    } else if (type && strcmp(type, "convod.response.attach") == 0) {
        attach(c, body, lane);
    } else {
        api_error_set(&e, 400, type ? "invalid_value" : "missing_required_parameter", "type",
                      "'type' must be response.create, response.cancel or convod.response.attach.");
        conn_ws_error(c, &e, lane);
    }
    free(lane);
    cJSON_Delete(body);
}
