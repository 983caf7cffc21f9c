/* branches.c - what a conversation holds beside the way to its head: the ends of its branches, and others that are made
 * of it, copies and summaries. */
#include <stdlib.h>
#include <string.h>

#include "clients/cli/cli_internal.h"

#define PREVIEW_MAX 200

static bool ends_branch(const cJSON *all, const cJSON *row)
{
    const cJSON *other;
    const char *status = json_string(row, "status", "");
    if (strcmp(status, "completed") != 0 && strcmp(status, "incomplete") != 0)
        return false; /* nothing follows it */
    cJSON_ArrayForEach(other, all)
    {
        if (strcmp(json_string(other, "parent", ""), json_string(row, "id", "?")) == 0 &&
            strcmp(json_string(other, "status", ""), "failed") != 0)
            return false;
    }
    return true;
}

/* All responses of a conversation, page by page, and its head (freed by the caller). NULL: a failure, which was told.
 */
static cJSON *all_responses(struct cli *c, const char *id, char **head, int *code)
{
    cJSON *all = cJSON_CreateArray();
    char *after = NULL;
    bool more;
    *head = NULL;
    do {
        struct buf path = {0};
        buf_printf(&path, "/v1/conversations/%s/responses?limit=100%s%s", id, after ? "&after=" : "",
                   after ? after : "");
        cJSON *page = cli_call(c, "GET", path.data, NULL, code), *row;
        cJSON *data = cJSON_GetObjectItemCaseSensitive(page, "data");
        buf_free(&path);
        free(after);
        after = NULL;
        free(*head);
        *head = text_copy(json_string(page, "head", ""));
        while (data && (row = cJSON_DetachItemFromArray(data, 0))) {
            free(after);
            after = text_copy(json_string(row, "id", ""));
            cJSON_AddItemToArray(all, row);
        }
        more = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(page, "has_more")) && after;
        cJSON_Delete(page);
    } while (*code == CLI_OK && more);
    free(after);
    if (*code != CLI_OK) {
        cJSON_Delete(all);
        free(*head);
        *head = NULL;
        return NULL;
    }
    return all;
}

int cli_branches(struct cli *c, const char *id, cJSON **ids)
{
    int code, number = 0;
    char *head;
    cJSON *all = all_responses(c, id, &head, &code), *row;
    if (!all)
        return code;
    cJSON *found = cJSON_CreateArray();
    bool starred = false;
    cJSON_ArrayForEach(row, all)
    {
        if (!ends_branch(all, row))
            continue;
        struct buf line = {0}, said = {0};
        const char *end = json_string(row, "id", ""), *text = json_string(row, "input", "");
        buf_str(&said, "");
        text_title(text, PREVIEW_MAX, &said);
        bool here = strcmp(end, head) == 0;
        starred |= here;
        buf_printf(&line, "%3d %s ", ++number, here ? "*" : " ");
        int left = term_columns() - (int)line.len;
        text_cut(said.len ? said.data : "(no text)", left > 10 ? left : 10, &line);
        buf_str(&line, "\n");
        term_write(&c->term, line.data, line.len);
        buf_free(&line);
        buf_free(&said);
        cJSON_AddItemToArray(found, cJSON_CreateString(end));
    }
    if (number == 0)
        term_note(&c->term, "nothing was said yet");
    else if (!starred)
        term_note(&c->term, "none is where you are: what came behind that was taken back");
    free(head);
    cJSON_Delete(all);
    *ids = found;
    return CLI_OK;
}

int cli_move_head(struct cli *c, const char *id, const char *response)
{
    int code;
    struct buf path = {0};
    buf_printf(&path, "/v1/conversations/%s", id);
    cJSON *body = cJSON_CreateObject(), *own = cJSON_AddObjectToObject(body, "convod");
    cJSON_AddStringToObject(own, "head", response);
    cJSON_Delete(cli_call(c, "POST", path.data, body, &code));
    buf_free(&path);
    return code;
}

cJSON *cli_call_model(struct cli *c, const char *what, const char *path, cJSON *body, int *code)
{
    turn_cool_down(c->net);
    term_status(&c->term, what);
    net_patience(c->net, true);
    cJSON *answer = cli_call(c, "POST", path, body, code);
    net_patience(c->net, false);
    term_status_clear(&c->term);
    return answer;
}

/* The number that "#N" at the start of a text is, which then begins behind it; 0: it begins otherwise. (-1 is #0's.) */
static long item_number(const char **text)
{
    char *rest;
    if (**text != '#' || (*text)[1] < '0' || (*text)[1] > '9')
        return 0;
    long number = strtol(*text + 1, &rest, 10);
    if (*rest && *rest != ' ' && *rest != '\t')
        return 0;
    *text = rest + strspn(rest, " \t");
    return number ? number : -1;
}

char *cli_fork(struct cli *c, const char *id, const char *title, int *code)
{
    struct buf path = {0};
    const char *all = title;
    long number = item_number(&title);
    cJSON *body = cJSON_CreateObject();
    if (number) {
        cJSON *items = cli_items(c, id, 0, code);
        const cJSON *item = json_numbered(items, number);
        if (item)
            cJSON_AddStringToObject(body, "item", json_string(item, "id", ""));
        else if (items)
            term_note(&c->term, "/show shows no number %.*s", (int)strcspn(all + 1, " \t"), all + 1);
        cJSON_Delete(items);
        if (!item) {
            cJSON_Delete(body);
            return NULL;
        }
    }
    buf_printf(&path, "/v1/conversations/%s/fork", id);
    if (*title)
        cJSON_AddStringToObject(body, "title", title);
    cJSON *made = cli_call_model(c, "copying", path.data, body, code);
    char *fork = made ? text_copy(json_string(made, "id", "")) : NULL;
    cJSON_Delete(made);
    buf_free(&path);
    return fork;
}

char *cli_compact(struct cli *c, const char *id, const char *title, int *code)
{
    struct buf path = {0};
    cJSON *body = cJSON_CreateObject(), *made = NULL;
    cJSON_AddStringToObject(body, "conversation", id);
    if (c->sampling.truncation)
        cJSON_AddStringToObject(body, "truncation", c->sampling.truncation);
    cJSON *compact = cli_call_model(c, "writing a summary", "/v1/responses/compact", body, code);
    buf_printf(&path, "/v1/conversations/%s", id);
    cJSON *about = compact ? cli_call(c, "GET", path.data, NULL, code) : NULL;
    if (about) {
        const cJSON *own = json_field(about, "instructions"), *called = json_field(about, "title");
        const char *old = cJSON_IsString(called) ? called->valuestring : "";
        body = cJSON_CreateObject();
        if (*title || *old)
            cJSON_AddStringToObject(body, "title", *title ? title : old);
        if (cJSON_IsString(own))
            cJSON_AddStringToObject(body, "instructions", own->valuestring);
        cJSON_AddItemToObject(body, "items", cJSON_DetachItemFromObjectCaseSensitive(compact, "output"));
        made = cli_call_model(c, "reading it in", "/v1/conversations", body, code);
    }
    const cJSON *cut = json_field(compact, "incomplete_reason");
    if (made && cJSON_IsString(cut))
        term_note(&c->term, "the summary was cut: %s", cut->valuestring);
    char *summary = made ? text_copy(json_string(made, "id", "")) : NULL;
    cJSON_Delete(made);
    cJSON_Delete(about);
    cJSON_Delete(compact);
    buf_free(&path);
    return summary;
}
