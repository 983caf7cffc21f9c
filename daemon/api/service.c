/* service.c - what the daemon says about itself: health, readiness, models, status; and the tokenizer. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/daemon_internal.h"

void service_health(struct conn *c)
{
    conn_answer(c, 200, "application/json", strdup("{\"status\":\"ok\"}"));
}

void service_ready(struct conn *c)
{
    struct server *s = c->server;
    cJSON *o = cJSON_CreateObject();
    bool ready = s->session && !s->stopping;
    cJSON_AddStringToObject(o, "status", ready ? "ready" : s->stopping ? "stopping" : "loading");
    if (!ready && !s->stopping) {
        cJSON_AddNumberToObject(o, "progress", s->load_promille / 1000.0);
        cJSON_AddStringToObject(o, "stage", s->load_what);
    }
    conn_answer_json(c, ready ? 200 : 503, o);
}

static cJSON *model_object(const struct server *s)
{
    const struct engine_info *m = session_model(s->session);
    cJSON *o = cJSON_CreateObject();
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

void service_models(struct conn *c)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "object", "list");
    cJSON_AddItemToArray(cJSON_AddArrayToObject(o, "data"), model_object(c->server));
    conn_answer_json(c, 200, o);
}

void service_model(struct conn *c)
{
    struct api_error e = {0};
    if (!model_check(c->server, c->request.param, &e)) {
        conn_answer_error(c, &e);
        return;
    }
    conn_answer_json(c, 200, model_object(c->server));
}

void service_status(struct conn *c)
{
    struct server *s = c->server;
    const struct engine_info *m = session_model(s->session);
    struct session_status st;
    session_status(s->session, &st);
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "version", CONVOD_VERSION);
    cJSON_AddNumberToObject(o, "uptime_seconds", (double)((now_ms() - s->started_ms) / 1000));
    cJSON *model = cJSON_AddObjectToObject(o, "model");
    cJSON_AddStringToObject(model, "id", s->model_name);
    cJSON_AddStringToObject(model, "arch", m->arch);
    cJSON_AddStringToObject(model, "quantization", m->quantization);
    cJSON_AddStringToObject(model, "backend", m->backend);
    cJSON_AddStringToObject(model, "kv_type", m->kv_type);
    if (m->chat_format) {
        cJSON_AddStringToObject(model, "chat_format", m->chat_format);
    } else {
        cJSON_AddNullToObject(model, "chat_format");
    }
    cJSON_AddNumberToObject(model, "context_length", m->ctx_tokens);
    cJSON_AddNumberToObject(model, "kv_token_bytes", (double)m->kv_token_bytes);
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
    cJSON_AddNumberToObject(o, "pending_saves", (double)st.pending_saves);
    cJSON_AddNumberToObject(o, "save_failures", (double)st.save_failures);
    cJSON_AddNumberToObject(o, "segments", (double)st.segments);
    cJSON *turns = cJSON_AddObjectToObject(o, "turns");
    cJSON_AddNumberToObject(turns, "completed", (double)st.turns_completed);
    cJSON_AddNumberToObject(turns, "incomplete", (double)st.turns_incomplete);
    cJSON_AddNumberToObject(turns, "failed", (double)st.turns_failed);
    cJSON *tokens = cJSON_AddObjectToObject(o, "tokens");
    cJSON_AddNumberToObject(tokens, "prefilled", (double)st.tokens_prefilled);
    cJSON_AddNumberToObject(tokens, "generated", (double)st.tokens_generated);
    cJSON_AddNumberToObject(tokens, "restored", (double)st.tokens_restored);
    cJSON_AddNumberToObject(tokens, "reprefilled", (double)st.tokens_reprefilled);
    cJSON_AddNumberToObject(o, "engine_steps", (double)st.engine_steps);
    cJSON_AddBoolToObject(o, "stuck", st.stuck);
    cJSON_AddNumberToObject(o, "connections", (double)s->n_conns);
    conn_answer_json(c, 200, o);
}

/* ---- tokenizer ------------------------------------------------------------------------------------------------------
 */

/* [worker thread] A long text takes a while, so it has a thread of its own. */
static void *tokenize(void *arg)
{
    struct op *op = arg;
    op->rc = session_tokenize(op->session, op->text, op->len, op->flag, &op->tokens);
    struct event *e = op->event;
    op->event = NULL;
    e->number = op->rc;
    events_post(&op->server->events, e);
    return NULL;
}

static void tokenized(struct conn *c, struct op *op, const struct session_result *r)
{
    (void)r;
    cJSON *o = cJSON_CreateObject();
    cJSON *list = cJSON_CreateIntArray(op->tokens.ids, (int)op->tokens.n);
    cJSON_AddItemToObject(o, "tokens", list ? list : cJSON_CreateArray());
    conn_answer_json(c, 200, o);
}

void service_tokenize(struct conn *c)
{
    struct server *s = c->server;
    struct api_error e = {0};
    const char *content = NULL;
    bool special = false;
    struct op *op = NULL;
    cJSON *body = json_parse_request(c->request.body ? c->request.body : "", c->request.body_len, &e);
    if (!body || json_string(body, "", "content", TOKENIZE_BYTES_MAX, &content, &e) ||
        json_bool(body, "", "add_special", &special, &e)) {
        goto refuse;
    }
    if (!content) {
        api_error_set(&e, 400, "missing_required_parameter", "content", "'content' is missing.");
        goto refuse;
    }
    if (s->n_workers >= TOKENIZE_RUNNING_MAX) {
        api_error_set(&e, 429, "rate_limit_exceeded", NULL, "Too many texts are being tokenized.");
        goto refuse;
    }
    op = op_new(c, "", tokenized);
    if (!op) {
        cJSON_Delete(body);
        return;
    }
    op->text = strdup(content);
    op->len = strlen(content);
    op->flag = special;
    op->session = s->session;
    op->event = event_new(EVENT_WORK);
    pthread_attr_t detached;
    if (!op->text || !op->event || pthread_attr_init(&detached)) {
        goto no_memory;
    }
    op->event->op = op;
    pthread_t thread;
    int rc = pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    if (!rc) {
        s->n_workers++;
        rc = pthread_create(&thread, &detached, tokenize, op);
        if (rc) {
            s->n_workers--;
        }
    }
    pthread_attr_destroy(&detached);
    if (!rc) {
        cJSON_Delete(body);
        return;
    }
no_memory:
    event_free(op->event);
    op->event = NULL;
    op_free(op);
    api_error_set(&e, 500, "server_error", NULL, "Out of memory.");
refuse:
    cJSON_Delete(body);
    conn_answer_error(c, &e);
}
