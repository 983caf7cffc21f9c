/* service.c - what the daemon says about itself: health, readiness, models, status; and the tokenizer. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/api/api.h"

void service_health(struct client *c)
{
    client_answer(c, 200, "application/json", strdup("{\"status\":\"ok\"}"));
}

void service_ready(struct client *c)
{
    struct api *s = c->api;
    cJSON *o = cJSON_CreateObject();
    bool ready = s->runs.session && !s->requeueing && !s->stopping;
    cJSON_AddStringToObject(o, "status", ready ? "ready" : s->stopping ? "stopping" : "loading");
    if (!ready && !s->stopping) {
        cJSON_AddNumberToObject(o, "progress", s->load_promille / 1000.0);
        cJSON_AddStringToObject(o, "stage", s->load_what);
    }
    client_answer_json(c, ready ? 200 : 503, o);
}

/* With what Anthropic's clients look for as well. */
static cJSON *model_object(const struct api *s)
{
    const struct engine_info *m = session_model(s->runs.session);
    cJSON *o = cJSON_CreateObject();
    char when[32] = "";
    time_t started = (time_t)(s->started_ms / 1000);
    struct tm utc;
    if (gmtime_r(&started, &utc)) {
        (void)strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", &utc);
    }
    cJSON_AddStringToObject(o, "type", "model");
    cJSON_AddStringToObject(o, "display_name", s->model_name);
    cJSON_AddStringToObject(o, "created_at", when);
    cJSON_AddStringToObject(o, "id", s->model_name);
    cJSON_AddStringToObject(o, "object", "model");
    cJSON_AddNumberToObject(o, "created", (double)(s->started_ms / 1000));
    cJSON_AddStringToObject(o, "owned_by", "convod");
    cJSON_AddNumberToObject(o, "context_length", m->ctx_tokens);
    cJSON_AddNumberToObject(o, "max_model_len", m->ctx_tokens);
    cJSON *meta = cJSON_AddObjectToObject(o, "meta");
    cJSON_AddNumberToObject(meta, "n_ctx", m->ctx_tokens);
    cJSON_AddNumberToObject(meta, "n_ctx_train", m->ctx_model);
    cJSON_AddNumberToObject(meta, "n_vocab", m->n_vocab);
    cJSON_AddNumberToObject(meta, "n_embd", m->n_embd);
    cJSON_AddNumberToObject(meta, "n_params", (double)m->parameters);
    cJSON_AddNumberToObject(meta, "size", (double)m->file_bytes);
    return o;
}

void service_models(struct client *c)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "object", "list");
    cJSON_AddItemToArray(cJSON_AddArrayToObject(o, "data"), model_object(c->api));
    cJSON_AddBoolToObject(o, "has_more", false);
    cJSON_AddStringToObject(o, "first_id", c->api->model_name);
    cJSON_AddStringToObject(o, "last_id", c->api->model_name);
    cJSON_AddArrayToObject(o, "models"); /* of another kind, with prompts: who asks for it has its own */
    client_answer_json(c, 200, o);
}

void service_model(struct client *c)
{
    struct api_error e = {0};
    if (!model_check(c->api, c->request.param, &e)) {
        client_answer_error(c, &e);
        return;
    }
    client_answer_json(c, 200, model_object(c->api));
}

static void add_usage(cJSON *o, const char *owner, const struct session_usage *u)
{
    cJSON *usage = cJSON_AddObjectToObject(o, "usage");
    cJSON_AddStringToObject(usage, "owner", owner);
    const struct {
        const char *name;
        uint64_t used, limit;
        bool known;
    } rows[] = {{"conversations", u->conversations, u->limits.conversations, true},
                {"ledger_bytes", u->ledger_bytes, u->limits.ledger_bytes, true},
                {"disk_bytes", u->disk_bytes, u->limits.disk_bytes, true},
                {"ram_bytes", u->ram_bytes, u->limits.ram_bytes, true},
                {"kv_bytes", u->kv_bytes, u->limits.kv_bytes, u->kv_known}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        cJSON *row = cJSON_AddObjectToObject(usage, rows[i].name);
        if (rows[i].known) {
            cJSON_AddNumberToObject(row, "used", (double)rows[i].used);
        } else {
            cJSON_AddNullToObject(row, "used");
        }
        if (rows[i].limit) {
            cJSON_AddNumberToObject(row, "limit", (double)rows[i].limit);
        } else {
            cJSON_AddNullToObject(row, "limit");
        }
    }
    if (u->limits.retain_ms) {
        cJSON_AddNumberToObject(usage, "retain_days", (double)u->limits.retain_ms / 86400000);
    } else {
        cJSON_AddNullToObject(usage, "retain_days");
    }
}

/* A GPU; what its driver does not say is left out. */
static void add_device(cJSON *o, const struct engine_device *d)
{
    cJSON *device = cJSON_AddObjectToObject(o, "device");
    cJSON_AddStringToObject(device, "name", d->name);
    if (d->memory_bytes) {
        cJSON_AddNumberToObject(device, "memory_used_bytes", (double)d->memory_used_bytes);
        cJSON_AddNumberToObject(device, "memory_bytes", (double)d->memory_bytes);
    }
    const struct {
        const char *name;
        double value;
    } rows[] = {
        {"temperature_celsius", d->temperature_c}, {"power_watts", d->power_w}, {"utilization", d->utilization}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        if (!isnan(rows[i].value)) {
            cJSON_AddNumberToObject(device, rows[i].name, rows[i].value);
        }
    }
}

static void answer_status(struct client *c, struct op *op, const struct session_result *r)
{
    struct api *s = c->api;
    if (!s->runs.session) {
        struct api_error e;
        api_error_session(SESSION_SHUTDOWN, NULL, &e);
        client_answer_error(c, &e);
        return;
    }
    const struct engine_info *m = session_model(s->runs.session);
    struct session_status st;
    session_status(s->runs.session, &st);
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "version", CONVOD_VERSION);
    cJSON_AddNumberToObject(o, "uptime_seconds", (double)((now_ms() - s->started_ms) / 1000));
    cJSON *model = cJSON_AddObjectToObject(o, "model");
    cJSON_AddStringToObject(model, "id", s->model_name);
    cJSON_AddStringToObject(model, "arch", m->arch);
    cJSON_AddStringToObject(model, "quantization", m->quantization);
    cJSON_AddStringToObject(model, "backend", m->backend);
    cJSON_AddStringToObject(model, "numerics", m->numerics);
    cJSON_AddStringToObject(model, "kv_type", m->kv_type);
    if (m->chat_format) {
        cJSON_AddStringToObject(model, "chat_format", m->chat_format);
    } else {
        cJSON_AddNullToObject(model, "chat_format");
    }
    cJSON_AddNumberToObject(model, "context_length", m->ctx_tokens);
    cJSON_AddNumberToObject(model, "kv_token_bytes", (double)m->kv_token_bytes);
    if (st.device_known) {
        add_device(o, &st.device);
    }
    cJSON *tiers = cJSON_AddObjectToObject(o, "tiers");
    const struct {
        const char *name;
        double used, budget;
    } rows[] = {{"hot", (double)st.hot_used, (double)st.hot_budget},
                {"ram", (double)st.ram_used, (double)st.ram_budget},
                {"disk", (double)st.disk_used, (double)st.disk_budget}};
    for (size_t i = 0; i < 3; i++) {
        cJSON *tier = cJSON_AddObjectToObject(tiers, rows[i].name);
        cJSON_AddNumberToObject(tier, "used_bytes", rows[i].used);
        cJSON_AddNumberToObject(tier, "budget_bytes", rows[i].budget);
    }
    cJSON *queue = cJSON_AddObjectToObject(o, "queue");
    cJSON_AddNumberToObject(queue, "running", st.running);
    cJSON_AddNumberToObject(queue, "waiting", st.waiting);
    cJSON_AddNumberToObject(queue, "ahead", st.ahead);
    cJSON_AddNumberToObject(o, "pending_saves", (double)st.pending_saves);
    cJSON_AddNumberToObject(o, "save_failures", (double)st.save_failures);
    cJSON_AddNumberToObject(o, "conversations_expired", (double)st.conversations_expired);
    cJSON_AddNumberToObject(o, "segments", (double)st.segments);
    cJSON *turns = cJSON_AddObjectToObject(o, "turns");
    cJSON_AddNumberToObject(turns, "completed", (double)st.turns_completed);
    cJSON_AddNumberToObject(turns, "incomplete", (double)st.turns_incomplete);
    cJSON_AddNumberToObject(turns, "failed", (double)st.turns_failed);
    cJSON_AddNumberToObject(turns, "put_aside", (double)st.turns_put_aside);
    cJSON *tokens = cJSON_AddObjectToObject(o, "tokens");
    cJSON_AddNumberToObject(tokens, "prefilled", (double)st.tokens_prefilled);
    cJSON_AddNumberToObject(tokens, "generated", (double)st.tokens_generated);
    cJSON_AddNumberToObject(tokens, "restored", (double)st.tokens_restored);
    cJSON_AddNumberToObject(tokens, "reprefilled", (double)st.tokens_reprefilled);
    cJSON_AddNumberToObject(o, "engine_steps", (double)st.engine_steps);
    cJSON_AddBoolToObject(o, "stuck", st.stuck);
    cJSON_AddNumberToObject(o, "connections", (double)s->n_clients);
    if (r->usage) {
        add_usage(o, op->owner, r->usage);
    }
    client_answer_json(c, 200, o);
}

void service_status(struct client *c)
{
    struct op *op = op_new(c, NULL, answer_status);
    if (op) {
        op_posted(c, op, session_usage(c->api->runs.session, c->owner, op_done, op));
    }
}

void service_metrics(struct client *c)
{
    struct session_status st = {0};
    struct session *session = c->api->runs.session;
    if (session) {
        session_status(session, &st);
    }
    client_answer(c, 200, "text/plain; version=0.0.4; charset=utf-8",
                  metrics_text(&c->api->metrics, &st, session != NULL, c->api->n_clients));
}

/* ---- tokenizer ------------------------------------------------------------------------------------------------------
 */

/* A long text takes a while, and so does a long list of tokens. */
struct tokenizing {
    struct work work; /* first */
    struct api *api;
    const struct session *session;
    uint64_t client_id;
    cJSON *body;
    const char *content; /* to be tokenized, */
    bool special;
    const cJSON *tokens; /* or these are a text, */
    size_t len;          /* of so many bytes */
    struct api_error e;
    char *answer;
};

/* Takes body. NULL: out of memory. */
static struct tokenizing *tokenizing_new(struct client *c, cJSON *body)
{
    struct tokenizing *t = calloc(1, sizeof(*t));
    if (!t) {
        client_json_free(c, body);
        return NULL;
    }
    t->api = c->api;
    t->session = c->api->runs.session;
    t->client_id = c->id;
    t->body = body;
    return t;
}

static void tokenizing_free(struct tokenizing *t)
{
    free(t->answer);
    cJSON_Delete(t->body);
    free(t);
}

static void no_memory(struct api_error *e)
{
    api_error_set(e, 500, "server_error", NULL, "Out of memory.");
}

/* [worker] {"tokens":[1,2]} */
static char *token_list(const struct engine_tokens *tokens)
{
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    if (!f) {
        return NULL;
    }
    fputs("{\"tokens\":[", f);
    for (size_t i = 0; i < tokens->n; i++) {
        fprintf(f, i ? ",%d" : "%d", tokens->ids[i]);
    }
    fputs("]}", f);
    if (fclose(f) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

/* [worker] What has not begun when the server stops is not waited for. */
static bool may_begin(struct tokenizing *t)
{
    if (t->api->stopping) {
        api_error_session(SESSION_SHUTDOWN, NULL, &t->e);
    }
    return !t->e.status;
}

/* [worker] */
static void tokenize(struct work *w)
{
    struct tokenizing *t = (struct tokenizing *)w;
    struct engine_tokens tokens = {0};
    if (!may_begin(t)) {
        return;
    }
    int rc = session_tokenize(t->session, t->content, strlen(t->content), t->special, &tokens);
    t->answer = rc ? NULL : token_list(&tokens);
    engine_tokens_free(&tokens);
    cJSON_Delete(t->body);
    t->body = NULL;
    if (rc == -EINVAL) {
        api_error_set(&t->e, 400, "invalid_value", NULL, "The request was not accepted.");
    } else if (rc) {
        api_error_set(&t->e, 500, "server_error", NULL, "The operation failed (%s).", strerror(-rc));
    }
}

static void answer_tokenized(struct client *c, struct tokenizing *t)
{
    if (t->e.status) {
        client_answer_error(c, &t->e);
    } else {
        client_answer(c, 200, "application/json", t->answer);
        t->answer = NULL;
    }
}

static void tokenized(struct work *w, bool closing)
{
    struct tokenizing *t = (struct tokenizing *)w;
    struct api *api = t->api;
    api->n_workers--;
    struct client *c = closing ? NULL : api->find(api, t->client_id);
    if (c) {
        answer_tokenized(c, t);
    }
    tokenizing_free(t);
    if (api->worker_ended) {
        api->worker_ended(api);
    }
}

/* Takes t. Who asks for much waits for it, and others do not: so it is with all work. */
static void tokenize_away(struct client *c, struct tokenizing *t, void (*run)(struct work *w))
{
    t->work.run = run;
    t->work.done = tokenized;
    c->api->n_workers++;
    work_submit(c->api->runs.workers, &t->work, c->owner);
}

void service_tokenize(struct client *c)
{
    struct api_error e = {0};
    const char *content = NULL;
    bool special = false;
    struct tokenizing *t = NULL;
    cJSON *body = client_json(c, false, &e);
    if (!body || json_string(body, "", "content", TOKENIZE_BYTES_MAX, &content, &e) ||
        json_bool(body, "", "add_special", &special, &e)) {
        goto refuse;
    }
    if (!content) {
        api_error_set(&e, 400, "missing_required_parameter", "content", "'content' is missing.");
        goto refuse;
    }
    t = tokenizing_new(c, body);
    body = NULL;
    if (!t) {
        no_memory(&e);
        goto refuse;
    }
    t->content = content;
    t->special = special;
    tokenize_away(c, t, tokenize);
    return;
refuse:
    client_json_free(c, body);
    client_answer_error(c, &e);
}

/* How long the text of the tokens is, or what is wrong with them. False: that. */
static bool measure(struct tokenizing *t)
{
    const int n_vocab = session_model(t->session)->n_vocab;
    const cJSON *token;
    size_t n = 0, more;
    char param[32];
    t->len = 0;
    cJSON_ArrayForEach(token, t->tokens)
    {
        double id = cJSON_IsNumber(token) ? token->valuedouble : -1;
        if (n == DETOKENIZE_IDS_MAX) {
            api_error_set(&t->e, 400, "invalid_value", "tokens", "'tokens' must have at most %d ids.",
                          DETOKENIZE_IDS_MAX);
            return false;
        }
        if (!(id >= 0 && id < n_vocab && id == (double)(int)id)) {
            snprintf(param, sizeof(param), "tokens[%zu]", n);
            api_error_set(&t->e, 400, "invalid_value", param, "'%s' must be a token id, from 0 to %d.", param,
                          n_vocab - 1);
            return false;
        }
        (void)session_token_bytes(t->session, (engine_token)id, &more);
        t->len += more;
        n++;
        if (t->len > TOKENIZE_BYTES_MAX) {
            api_error_set(&t->e, 400, "invalid_value", "tokens", "The text would be longer than %d bytes.",
                          TOKENIZE_BYTES_MAX);
            return false;
        }
    }
    return true;
}

/* The text of tokens that were measured, in one buffer; bytes that are no character are U+FFFD. */
static void write_text(struct tokenizing *t)
{
    char *bytes = malloc(t->len + 1), *text = NULL;
    size_t at = 0, n;
    const cJSON *list = bytes ? t->tokens : NULL, *token;
    cJSON_ArrayForEach(token, list)
    {
        const char *from = session_token_bytes(t->session, (engine_token)token->valuedouble, &n);
        memcpy(bytes + at, from, n);
        at += n;
    }
    text = bytes ? json_text_of_bytes(bytes, at) : NULL;
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "content", text ? text : "");
    t->answer = json_text(o);
    if (!text || !t->answer) {
        no_memory(&t->e);
    }
    free(bytes);
    free(text);
}

/* [worker] */
static void detokenize(struct work *w)
{
    struct tokenizing *t = (struct tokenizing *)w;
    if (may_begin(t) && measure(t)) {
        write_text(t);
    }
    cJSON_Delete(t->body);
    t->body = NULL;
}

/* What is short is answered at once, however many ask. */
void service_detokenize(struct client *c)
{
    struct api_error e = {0};
    cJSON *body = client_json(c, false, &e);
    const cJSON *tokens = body ? json_get(body, "tokens") : NULL;
    struct tokenizing *t = NULL;
    if (body && !cJSON_IsArray(tokens)) {
        api_error_set(&e, 400, tokens ? "invalid_type" : "missing_required_parameter", "tokens",
                      "'tokens' must be a list of token ids.");
    } else if (body && !(t = tokenizing_new(c, body))) {
        body = NULL;
        no_memory(&e);
    }
    if (e.status) {
        client_json_free(c, body);
        client_answer_error(c, &e);
        return;
    }
    t->tokens = tokens;
    bool right = c->request.body_len > WORK_BYTES_MIN || measure(t);
    if (right && (c->request.body_len > WORK_BYTES_MIN || t->len > WORK_BYTES_MIN)) {
        tokenize_away(c, t, detokenize);
        return;
    }
    if (right) {
        write_text(t);
    }
    answer_tokenized(c, t);
    tokenizing_free(t);
}
