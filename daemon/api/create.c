/* create.c - POSTs that make a turn, whatever the interface: how a parser ends, what a request is checked for, the
 * start of its turn, and those of which only the tokens are counted.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/api/api.h"

#define MODEL_NAME_MAX 256

struct turn_request *request_parsed(struct turn_request *q, cJSON *body, int rc, struct api_error *e)
{
    const char *model = NULL;
    rc = rc ? rc : json_string(body, "", "model", MODEL_NAME_MAX, &model, e);
    bool memory = q && (rc || !model || (q->model = strdup(model)));
    cJSON_Delete(body);
    if (memory && !rc) {
        return q;
    }
    if (!memory) {
        api_error_set(e, 500, "server_error", NULL, "Out of memory.");
    }
    turn_request_free(q);
    return NULL;
}

void request_complete(struct turn_request **q, const char *text, size_t len, struct api_error *e)
{
    if (!*q) {
        return;
    }
    turn_request_copy(*q);
    if ((*q)->background) {
        char *body = strndup(text, len);
        (*q)->body = body ? json_quoted(body) : NULL;
        free(body);
        if (!(*q)->body) {
            api_error_set(e, 500, "server_error", NULL, "Out of memory.");
            turn_request_free(*q);
            *q = NULL;
        }
    }
}

bool model_check(const struct api *api, const char *model, struct api_error *e)
{
    if (!model || strcmp(model, api->model_name) == 0 || strcmp(model, api->model_file) == 0 ||
        strcmp(model, "convod") == 0 || strcmp(model, "default") == 0) {
        return true;
    }
    api_error_set(e, 404, "model_not_found", "model", "The model '%.100s' does not exist here; this is '%.100s'.",
                  model, api->model_name);
    return false;
}

bool request_check(const struct api *api, const struct turn_request *q, struct api_error *e)
{
    int most = api->runs.session ? session_model(api->runs.session)->n_vocab : INT_MAX;
    if (!model_check(api, q->model, e)) {
        return false;
    }
    if (q->n_bias && q->bias[q->n_bias - 1].token >= most) {
        char param[32];
        engine_token token = q->bias[q->n_bias - 1].token;
        snprintf(param, sizeof(param), "logit_bias.%d", token);
        api_error_set(e, 400, "invalid_value", param, "The model has no token %d: there are %d.", token, most);
        return false;
    }
    return true;
}

bool client_start(struct client *c, struct turn_request *q)
{
    struct api_error e = {0};
    struct runs *rs = &c->api->runs;
    struct run_retry *retry = &c->request.retry;
    struct run *run = NULL;
    q->patient |= c->who.patient;
    int kind = q->stream ? READ_SSE : q->background ? READ_ACCEPTED : READ_BODY;
    if (retry_key(retry, q->key, &e)) {
        run = retry_find(rs, c->owner, retry, &e);
    }
    if (run) {
        turn_request_free(q);
    } else if (e.status || run_start(rs, c->owner, q, retry, NULL, &run, &e)) {
        turn_request_free(q);
        client_answer_error(c, &e);
        return false;
    }
    client_read(c, run, kind, 0, NULL);
    return true;
}

void client_create(struct client *c)
{
    struct api_error e = {0};
    struct turn_request *q = client_turn(c, &e);
    if (!q || !request_check(c->api, q, &e) ||
        !turn_request_count(q, &c->api->budget, c->owner, c->request.body_len, &e)) {
        turn_request_free(q);
        client_answer_error(c, &e);
        return;
    }
    client_start(c, q);
}

/* ---- counting ------------------------------------------------------------------------------------------------------
 */

static void counted(struct run *run)
{
    if (!run->failed) {
        cJSON *o = cJSON_CreateObject();
        cJSON_AddStringToObject(o, "object", "response.input_tokens");
        cJSON_AddNumberToObject(o, "input_tokens", run->input_tokens);
        run->answer = json_text(o);
        run->answer_status = 200;
    }
}

static const struct run_format count_format = {.done = counted};

struct turn_request *count_only(struct turn_request *q)
{
    q->format = &count_format;
    q->count = true;
    q->store = q->stream = q->background = false;
    return q;
}
