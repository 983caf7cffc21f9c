/* ws.c - messages of a WebSocket, and lanes of turns.
 *
 * A lane is the turns that carry one stream_id (those without one are a lane too). Turns of a lane run one after the
 * other; lanes run side by side, up to LANES_ACTIVE_MAX.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/api/api.h"

#define STEER_SHOWN_MAX 4096

struct waiting {
    struct waiting *next;
    struct turn_request *request;
    unsigned char digest[RETRY_DIGEST_BYTES]; /* of one with a key */
};

static void waiting_free(struct waiting *w)
{
    if (w) {
        turn_request_free(w->request);
        free(w);
    }
}

struct lane {
    struct lane *next;
    char *stream_id; /* NULL: the lane of requests without one */
    uint64_t used;   /* when, in turns of this connection */
    struct waiting *first, **last;
    bool active;
};

static struct lane *lane_find(struct client *c, const char *stream_id)
{
    for (struct lane *l = c->lanes; l; l = l->next) {
        if (stream_id ? l->stream_id && strcmp(l->stream_id, stream_id) == 0 : !l->stream_id) {
            return l;
        }
    }
    return NULL;
}

/* Makes room: the lane that was idle for the longest time goes. False: all have turns. */
static bool lane_forget(struct client *c)
{
    struct lane **oldest = NULL;
    for (struct lane **at = &c->lanes; *at; at = &(*at)->next) {
        bool idle = (*at)->stream_id && !(*at)->active && !(*at)->first;
        if (idle && (!oldest || (*at)->used < (*oldest)->used)) {
            oldest = at;
        }
    }
    if (!oldest) {
        return false;
    }
    struct lane *l = *oldest;
    *oldest = l->next;
    free(l->stream_id);
    free(l);
    c->n_lanes--;
    return true;
}

static struct lane *lane_get(struct client *c, const char *stream_id, struct api_error *e)
{
    struct lane *l = lane_find(c, stream_id);
    if (l) {
        l->used = ++c->lanes_used;
        return l;
    }
    if (stream_id && c->n_lanes == LANES_MAX && !lane_forget(c)) {
        api_error_set(e, 400, "websocket_stream_limit_reached", "stream_id",
                      "A connection has at most %d named streams with turns.", LANES_MAX);
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
    l->used = ++c->lanes_used;
    l->last = &l->first;
    l->next = c->lanes;
    c->lanes = l;
    if (id) {
        c->n_lanes++;
    }
    return l;
}

/* Starts a turn of a lane, or joins the one that it repeats. On refusal the lane is free again. */
static void lane_start(struct client *c, struct waiting *w)
{
    struct runs *rs = &c->api->runs;
    struct run *run = NULL;
    struct api_error e = {0};
    struct turn_request *q = w->request;
    struct run_retry retry = {0};
    memcpy(retry.digest, w->digest, sizeof(retry.digest));
    bool fresh = false, known = retry_key(&retry, q->key, &e) && (run = retry_find(rs, c->owner, &retry, &e));
    if (!known && !e.status) {
        q->patient |= c->who.patient;
        fresh = run_start(rs, c->owner, q, q->key ? &retry : NULL, &c->home, &run, &e) == 0;
    }
    free(retry.idempotency_key);
    if (run) {
        client_read(c, run, READ_WS, 0, q->stream_id);
    } else {
        client_ws_error(c, &e, q->stream_id);
        ws_lane_ended(c, q->stream_id);
    }
    if (fresh) {
        w->request = NULL;
    }
}

/* Starts what can be started. */
static void lanes_run(struct client *c)
{
    for (struct lane *l = c->lanes; l && !c->dropped && !c->closing; l = l->next) {
        while (!l->active && l->first && c->n_active < LANES_ACTIVE_MAX && !c->dropped && !c->closing) {
            struct waiting *w = l->first;
            l->first = w->next;
            if (!l->first) {
                l->last = &l->first;
            }
            c->n_waiting--;
            l->active = true;
            c->n_active++;
            lane_start(c, w);
            waiting_free(w);
        }
    }
}

void ws_lane_ended(struct client *c, const char *stream_id)
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

static void lanes_free(struct client *c)
{
    while (c->lanes) {
        struct lane *l = c->lanes;
        c->lanes = l->next;
        while (l->first) {
            struct waiting *w = l->first;
            l->first = w->next;
            waiting_free(w);
        }
        free(l->stream_id);
        free(l);
    }
}

/* A message, from its text to what it asks for. */
struct message {
    struct work work; /* first */
    struct message *next;
    struct client *client; /* NULL: it has gone */
    bool away;             /* it is being read */
    struct api *api;
    char *text;
    size_t len, counted;    /* counted: of the budget, */
    char owner[OWNER_SIZE]; /* for whom */
    struct api_error e;     /* set: it is refused */
    char *lane;             /* its stream_id, so that an error about anything else can be routed */
    char type[64];          /* "" = it has none */
    cJSON *body;
    struct turn_request *turn;
    unsigned char digest[RETRY_DIGEST_BYTES];
};

/* Takes the message's turn; NULL: it was refused, with its error. */
static void create(struct client *c, struct message *m)
{
    struct api *api = c->api;
    struct api_error e = m->e;
    struct turn_request *q = m->turn;
    struct lane *l = NULL;
    struct waiting *w = NULL;
    if (!q || !request_check(api, q, &e) || !turn_request_count(q, &api->budget, c->owner, m->len, &e)) {
        goto refuse;
    }
    if (!api->runs.session) {
        api_error_set(&e, 503, api->stopping ? "server_shutdown" : "model_loading", NULL, "%s",
                      api->stopping ? "The server is stopping." : "The model is still loading.");
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
    memcpy(w->digest, m->digest, sizeof(w->digest));
    w->request = q;
    *l->last = w;
    l->last = &w->next;
    c->n_waiting++;
    c->lanes_busy = true;
    lanes_run(c);
    c->lanes_busy = false;
    return;
refuse:
    client_ws_error(c, &e, m->lane);
    turn_request_free(q);
}

/* The run that this connection follows in this lane. */
static struct run *lane_active_run(struct client *c, const char *stream_id)
{
    for (struct reader *r = c->readers; r; r = r->next) {
        bool same = stream_id ? r->stream_id && strcmp(r->stream_id, stream_id) == 0 : !r->stream_id;
        if (same && r->kind == READ_WS && !r->sub.run->ended) {
            return r->sub.run;
        }
    }
    return NULL;
}

static void cancel(struct client *c, const cJSON *body, const char *stream_id)
{
    struct api_error e = {0};
    const char *id = NULL;
    if (json_string(body, "", "response_id", 256, &id, &e)) {
        client_ws_error(c, &e, stream_id);
        return;
    }
    struct run *run = id ? run_find(&c->api->runs, c->owner, id) : lane_active_run(c, stream_id);
    if (!run) {
        api_error_set(&e, 404, id ? "response_not_found" : "no_active_response", id ? "response_id" : NULL,
                      id ? "There is no such response." : "No response is active in this stream.");
        client_ws_error(c, &e, stream_id);
        return;
    }
    run_cancel(run);
}

/* A string that is not long, as it came; else an empty one. */
static cJSON *short_string(const cJSON *o, const char *key)
{
    const char *text = cJSON_GetStringValue(json_get(o, key));
    return cJSON_CreateString(text && strlen(text) <= STEER_SHOWN_MAX ? text : "");
}

/* Nothing is put into an answer that is being written. It is told in the event that its sender waits for, with what it
 * sent where that is a short text. */
static void refuse_steer(struct client *c, const cJSON *body, const char *stream_id)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "type", "response.steer.failed");
    cJSON_AddNumberToObject(o, "sequence_number", 0);
    cJSON *steer = cJSON_AddObjectToObject(o, "steer");
    cJSON_AddItemToObject(steer, "previous_response_id", short_string(body, "previous_response_id"));
    cJSON_AddItemToObject(steer, "input", short_string(body, "input"));
    cJSON *error = cJSON_AddObjectToObject(o, "error");
    cJSON_AddStringToObject(error, "type", "invalid_request_error");
    cJSON_AddStringToObject(error, "code", "steering_not_supported");
    cJSON_AddStringToObject(error, "message",
                            "An answer takes nothing more once it was asked for: cancel it, then ask.");
    client_ws_answer(c, o, stream_id);
}

static void attach_stored(struct client *c, struct op *op, const struct session_result *r)
{
    (void)r;
    if (c->n_watched < WATCHED_MAX) {
        responses_attach(c, READ_WATCH, op, op->text);
        return;
    }
    struct api_error e;
    api_error_set(&e, 429, "rate_limit_exceeded", NULL, "A connection follows at most %d responses.", WATCHED_MAX);
    client_ws_error(c, &e, op->text);
}

/* Joins a response: a second device, or this one after its connection broke. */
static void attach(struct client *c, const cJSON *body, const char *stream_id)
{
    struct api_error e = {0};
    const char *id = NULL;
    int64_t after = -1;
    if (json_string(body, "", "response_id", 256, &id, &e) ||
        json_int(body, "", "starting_after", -1, (1LL << 53) - 1, &after, &e)) {
        client_ws_error(c, &e, stream_id);
        return;
    }
    if (!id || !id_valid("resp_", id)) {
        api_error_set(&e, 404, "response_not_found", "response_id", "There is no such response.");
    } else if (c->n_watched >= WATCHED_MAX) {
        api_error_set(&e, 429, "rate_limit_exceeded", NULL, "A connection follows at most %d responses.", WATCHED_MAX);
    } else if (!c->api->runs.session) {
        api_error_session(SESSION_SHUTDOWN, NULL, &e);
    }
    if (e.status) {
        client_ws_error(c, &e, stream_id);
        return;
    }
    if (responses_follow(c, READ_WATCH, id, after, stream_id)) {
        return;
    }
    struct op *op = op_new(c, id, attach_stored);
    if (op) {
        op->build = responses_build_stream;
        op->number = after;
        op->text = stream_id ? strdup(stream_id) : NULL;
        op_posted(c, op, session_response_get(c->api->runs.session, c->owner, op->id, op_done, op));
    }
}

/* [any thread] */
static void message_read(struct message *m)
{
    const char *type = NULL;
    m->body = json_parse_request(m->text, m->len, &m->e);
    if (!m->body) {
        return;
    }
    const cJSON *v = json_get(m->body, "stream_id");
    if (cJSON_IsString(v) && stream_id_valid(v->valuestring)) {
        m->lane = strdup(v->valuestring);
        if (!m->lane) {
            api_error_set(&m->e, 500, "server_error", NULL, "Out of memory.");
            return;
        }
    }
    if (json_string(m->body, "", "type", sizeof(m->type) - 1, &type, &m->e)) {
        return;
    }
    snprintf(m->type, sizeof(m->type), "%s", type ? type : "");
    if (strcmp(m->type, "response.create") == 0) {
        m->turn = responses_parse(m->body, true, &m->e); /* takes it */
        m->body = NULL;
        if (m->turn && m->turn->key) {
            retry_digest("websocket", NULL, m->text, m->len, m->digest);
        }
        request_complete(&m->turn, m->text, m->len, &m->e);
    }
}

static void message_act(struct client *c, struct message *m)
{
    if (strcmp(m->type, "response.create") == 0) {
        create(c, m);
        m->turn = NULL;
    } else if (m->e.status) {
        client_ws_error(c, &m->e, m->lane);
    } else if (strcmp(m->type, "response.cancel") == 0) {
        cancel(c, m->body, m->lane);
    } else if (strcmp(m->type, "convod.response.attach") == 0) {
        attach(c, m->body, m->lane);
    } else if (strcmp(m->type, "response.steer") == 0) {
        refuse_steer(c, m->body, m->lane);
    } else {
        api_error_set(&m->e, 400, m->type[0] ? "invalid_value" : "missing_required_parameter", "type",
                      "'type' must be response.create, response.cancel or convod.response.attach.");
        client_ws_error(c, &m->e, m->lane);
    }
}

static void message_clear(struct message *m)
{
    free(m->lane);
    cJSON_Delete(m->body);
    turn_request_free(m->turn);
}

static void message_free(struct message *m)
{
    message_clear(m);
    budget_give(&m->api->budget, m->owner, m->counted);
    free(m->text);
    free(m);
}

static void message_submit(struct message *m)
{
    m->away = true;
    work_submit(m->api->runs.workers, &m->work, m->client->owner);
}

/* [worker] */
static void message_read_away(struct work *w)
{
    message_read((struct message *)w);
}

/* The first of the inbox has been read. */
static void message_done(struct work *w, bool closing)
{
    struct message *m = (struct message *)w;
    struct client *c = m->client;
    if (c) {
        c->inbox = m->next;
        c->n_inbox--;
        if (!closing && !c->dropped && !c->closing) {
            message_act(c, m);
        }
        if (c->inbox && !closing) {
            message_submit(c->inbox);
        }
    }
    if (!closing) {
        work_free_json(m->api->runs.workers, m->body, m->owner);
        m->body = NULL;
    }
    message_free(m);
}

/* One that is being read frees itself. */
static void inbox_free(struct client *c)
{
    struct message *m = c->inbox;
    if (m && m->away) {
        m->client = NULL;
        m = m->next;
    }
    while (m) {
        struct message *next = m->next;
        message_free(m);
        m = next;
    }
    c->inbox = NULL;
}

bool ws_message(struct client *c, char *text, size_t len, size_t counted)
{
    c->api->metrics.requests++;
    if (len <= WORK_BYTES_MIN && !c->inbox && !form_may_be_in(text, len)) {
        struct message m = {.text = text, .len = len};
        message_read(&m);
        message_act(c, &m);
        message_clear(&m);
        return false;
    }
    struct message *m = c->n_inbox < LANE_WAITING_MAX ? calloc(1, sizeof(*m)) : NULL;
    if (!m) {
        struct api_error e;
        api_error_set(&e, 429, "rate_limit_exceeded", NULL, "More than %d messages wait on this connection.",
                      LANE_WAITING_MAX);
        client_ws_error(c, &e, NULL);
        return false;
    }
    *m = (struct message){.work = {.run = message_read_away, .done = message_done},
                          .client = c,
                          .api = c->api,
                          .text = text,
                          .len = len,
                          .counted = counted};
    memcpy(m->owner, c->owner, sizeof(m->owner));
    struct message **at = &c->inbox;
    while (*at) {
        at = &(*at)->next;
    }
    *at = m;
    c->n_inbox++;
    if (c->inbox == m) {
        message_submit(m);
    }
    return true;
}

void ws_free(struct client *c)
{
    inbox_free(c);
    lanes_free(c);
}
