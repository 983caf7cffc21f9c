/* stored.c - turns as the session has them stored: copies that outlive a callback, and runs that are made from them. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/run/run.h"

/* ---- copies -------------------------------------------------------------------------------------------------------
 */

static int copy_string(const char *from, const char **to)
{
    *to = from ? strdup(from) : NULL;
    return from && !*to ? -ENOMEM : 0;
}

void items_free(struct session_item *items, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        free((char *)items[i].id);
        free((char *)items[i].kind);
        free((char *)items[i].text);
        free((char *)items[i].body);
        free((char *)items[i].response);
    }
    free(items);
}

struct session_item *items_copy(const struct session_item *from, size_t n)
{
    struct session_item *to = calloc(n ? n : 1, sizeof(*to));
    int rc = 0;
    for (size_t i = 0; to && i < n && !rc; i++) {
        to[i] = from[i];
        to[i].id = to[i].kind = to[i].text = to[i].body = to[i].response = NULL;
        rc = copy_string(from[i].id, &to[i].id) || copy_string(from[i].kind, &to[i].kind) ||
             copy_string(from[i].text, &to[i].text) || copy_string(from[i].body, &to[i].body) ||
             copy_string(from[i].response, &to[i].response);
    }
    if (rc) {
        items_free(to, n);
        to = NULL;
    }
    return to;
}

#define RESPONSE_STRINGS(r)                                                                                            \
    {                                                                                                                  \
        &(r)->id, &(r)->conversation, &(r)->previous, &(r)->status, &(r)->reason, &(r)->stop, &(r)->instructions,      \
            &(r)->params, &(r)->receipt                                                                                \
    }

void response_free(struct session_response *r)
{
    const char **strings[] = RESPONSE_STRINGS(r);
    for (size_t i = 0; i < sizeof(strings) / sizeof(*strings); i++) {
        free((char *)*strings[i]);
    }
    items_free((struct session_item *)r->items, r->items ? r->n_items : 0);
    memset(r, 0, sizeof(*r));
}

int response_copy(const struct session_response *from, struct session_response *to)
{
    const char *const *of[] = RESPONSE_STRINGS(from);
    *to = *from;
    const char **strings[] = RESPONSE_STRINGS(to);
    int rc = 0;
    for (size_t i = 0; i < sizeof(strings) / sizeof(*strings); i++) {
        *strings[i] = NULL;
    }
    for (size_t i = 0; i < sizeof(strings) / sizeof(*strings) && !rc; i++) {
        rc = copy_string(*of[i], strings[i]);
    }
    to->items = rc ? NULL : items_copy(from->items, from->n_items);
    if (!to->items) {
        response_free(to);
        return -ENOMEM;
    }
    return 0;
}

size_t items_bytes(const struct session_item *items, size_t n)
{
    size_t bytes = 0;
    for (size_t i = 0; i < n; i++) {
        bytes += items[i].len + text_length(items[i].body);
    }
    return bytes;
}

size_t response_bytes(const struct session_response *r)
{
    return items_bytes(r->items, r->n_items) + text_length(r->instructions) + text_length(r->params);
}

/* ---- runs ---------------------------------------------------------------------------------------------------------
 */

static void replace(char **field, const char *text)
{
    free(*field);
    *field = text ? strdup(text) : NULL;
}

static const cJSON *member(const cJSON *o, const char *key)
{
    const cJSON *v = o ? cJSON_GetObjectItemCaseSensitive(o, key) : NULL;
    return cJSON_IsNull(v) ? NULL : v;
}

/* What is long, and is shown more than once, as the text that it is: with all digits of its numbers. */
static void make_text(cJSON *params, const char *key)
{
    const cJSON *v = member(params, key);
    char *text = v ? engine_json_print(v) : NULL;
    cJSON *raw = text ? cJSON_CreateRaw(text) : NULL;
    if (raw) {
        cJSON_ReplaceItemInObjectCaseSensitive(params, key, raw);
    }
    cJSON_free(text);
}

bool run_take_stored(struct run *run, const struct session_response *r)
{
    static const char *const statuses[] = {"completed", "incomplete", "failed", "in_progress", "queued"};
    struct turn_request *q = run->request;
    snprintf(run->id, sizeof(run->id), "%s", r->id);
    snprintf(run->conversation, sizeof(run->conversation), "%s", r->conversation ? r->conversation : "");
    run->created_ms = r->created_ms;
    run->completed_ms = r->completed_ms;
    run->status = "failed";
    for (size_t i = 0; i < sizeof(statuses) / sizeof(*statuses); i++) {
        if (strcmp(r->status, statuses[i]) == 0) {
            run->status = statuses[i];
        }
    }
    run->failed = strcmp(run->status, "failed") == 0;
    run->started = true;
    run->ended = strcmp(run->status, "in_progress") != 0 && strcmp(run->status, "queued") != 0;
    run->input_tokens = r->input_tokens;
    run->cached_tokens = r->cached_tokens;
    run->output_tokens += r->output_tokens;
    replace(&run->reason, r->reason);
    replace(&run->stop, r->stop);
    replace(&run->receipt, r->receipt);
    replace(&q->instructions, r->instructions);
    replace(&q->parent, r->listed ? (r->previous ? r->previous : "") : NULL);
    q->has_parent = q->parent != NULL;
    cJSON_Delete(q->params_json);
    q->params_json = r->params ? engine_json_parse(r->params, strlen(r->params), NULL) : NULL;
    make_text(q->params_json, "tools");
    make_text(q->params_json, "text");
    q->store = true;
    q->background = cJSON_IsTrue(member(q->params_json, "background"));
    q->generate = !cJSON_IsFalse(member(q->params_json, "generate"));
    const cJSON *own = member(q->params_json, "convod"), *seed = member(own, "seed");
    /* What it named; none where it was found by what was sent. */
    bool chained = cJSON_IsTrue(member(own, "chained")), named = chained || !r->listed;
    replace(&q->previous, named && !cJSON_IsTrue(member(own, "replay")) ? r->previous : NULL);
    replace(&q->conversation, named ? NULL : r->conversation);
    const cJSON *truncation = member(q->params_json, "truncation");
    q->truncate = cJSON_IsString(truncation) && strcmp(truncation->valuestring, "auto") == 0;
    q->progress = cJSON_IsTrue(member(own, "progress")) || q->truncate; /* which may have been told as that */
    q->sampling.seed = cJSON_IsNumber(seed) ? (uint64_t)(int64_t)seed->valuedouble : 0;
    const cJSON *temperature = member(q->params_json, "temperature"), *top_p = member(q->params_json, "top_p");
    q->sampling.temperature = cJSON_IsNumber(temperature) ? (float)temperature->valuedouble : 1;
    q->sampling.top_p = cJSON_IsNumber(top_p) ? (float)top_p->valuedouble : 1;
    if (run->failed) {
        api_error_set(&run->error, 500, "server_error", NULL, "%s", r->reason ? r->reason : "The turn failed.");
    }
    bool whole = true;
    for (size_t i = 0; i < r->n_items && whole; i++) {
        const struct session_item *item = &r->items[i];
        if (item->output) {
            whole = run_item_add(run, item) && run_append(run, item->text ? item->text : "", item->len);
            run->items[run->n_items - 1].open = false;
            run->items[run->n_items - 1].incomplete = item->incomplete;
        }
    }
    return whole;
}

struct run *run_from_stored(struct runs *rs, const char *owner, const struct run_format *format,
                            const struct session_response *r)
{
    struct run *run = calloc(1, sizeof(*run));
    struct turn_request *q = calloc(1, sizeof(*q));
    if (!run || !q) {
        free(run);
        free(q);
        return NULL;
    }
    run->runs = rs;
    run->request = q;
    q->format = format;
    snprintf(run->owner, sizeof(run->owner), "%s", owner);
    if (!run_take_stored(run, r)) {
        run_free(run);
        return NULL;
    }
    return run;
}
