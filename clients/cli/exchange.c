/* exchange.c - the last message of a conversation and its answer, as the daemon keeps them: what is asked again, taken
 * back or put otherwise. What was there before stays as a branch.
 */
#include <stdlib.h>
#include <string.h>

#include "clients/cli/cli_internal.h"

cJSON *cli_last_response(struct cli *c, const char *id, int *code)
{
    struct buf path = {0};
    cJSON *about = NULL, *response = NULL;
    const char *at = NULL;
    *code = id ? cli_wait_again(c) : CLI_OK;
    if (id && *code == CLI_OK) {
        buf_printf(&path, "/v1/conversations/%s", id);
        about = cli_call(c, "GET", path.data, NULL, code);
        const cJSON *head = json_field(about, "head");
        at = cJSON_IsString(head) ? head->valuestring : NULL;
    }
    if (at && *at) {
        buf_clear(&path);
        buf_printf(&path, "/v1/responses/%s", at);
        response = cli_call(c, "GET", path.data, NULL, code);
    } else if (*code == CLI_OK) {
        term_note(&c->term, "nothing was said yet");
    }
    cJSON_Delete(about);
    buf_free(&path);
    return response;
}

/* What a stored response follows: "" = it began its conversation. */
static const char *parent_of(const cJSON *response)
{
    const cJSON *own = cJSON_GetObjectItemCaseSensitive(response, "convod");
    return json_string(own, "parent", json_string(response, "previous_response_id", ""));
}

bool exchange_find(struct cli *c, const char *id, struct exchange *x, int *code)
{
    *x = (struct exchange){0};
    cJSON *response = cli_last_response(c, id, code), *page = NULL, *item;
    bool said = false, answered = false, copied = false;
    if (response) {
        struct buf path = {0};
        buf_printf(&path, "/v1/responses/%s/input_items?order=asc&limit=100", json_string(response, "id", ""));
        page = cli_call(c, "GET", path.data, NULL, code);
        buf_free(&path);
        x->parent = text_copy(parent_of(response));
        text_of_output(response, &x->answered);
    }
    x->asked_items = cJSON_DetachItemFromObjectCaseSensitive(page, "data");
    cJSON_ArrayForEach(item, x->asked_items)
    {
        const char *role = json_string(item, "role", "");
        bool user = strcmp(role, "user") == 0, answer = strcmp(role, "assistant") == 0;
        copied |= answered || (answer && !said); /* more than one exchange, or a part of one */
        said |= !answer && strcmp(role, "system") != 0;
        answered |= answer;
        if (user)
            buf_clear(&x->asked);
        if (user || (answer && x->answered.len == 0))
            text_of_item(item, user ? &x->asked : &x->answered);
    }
    copied |= x->asked_items && !said; /* a summary */
    if (answered && !copied)           /* which was put otherwise, or copied: it is no question */
        cJSON_DeleteItemFromArray(x->asked_items, cJSON_GetArraySize(x->asked_items) - 1);
    if (copied)
        term_note(&c->term, "nothing was said here yet, since it was copied");
    bool found = x->asked_items && !copied;
    cJSON_Delete(response);
    cJSON_Delete(page);
    if (!found)
        exchange_free(x);
    return found;
}

void exchange_free(struct exchange *x)
{
    free(x->parent);
    cJSON_Delete(x->asked_items);
    buf_free(&x->asked);
    buf_free(&x->answered);
    *x = (struct exchange){0};
}

int exchange_correct(struct cli *c, const char *id, struct exchange *x, const char *answer)
{
    int code;
    struct buf path = {0};
    cJSON *body = cJSON_CreateObject(), *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "role", "assistant");
    cJSON_AddStringToObject(item, "content", answer);
    cJSON_AddItemToArray(x->asked_items, item);
    cJSON_AddItemToObject(body, "items", x->asked_items);
    x->asked_items = NULL;
    cJSON_AddStringToObject(cJSON_AddObjectToObject(body, "convod"), "parent", x->parent);
    buf_printf(&path, "/v1/conversations/%s/items", id);
    cJSON_Delete(cli_call_model(c, "reading it in", path.data, body, &code));
    buf_free(&path);
    return code;
}
