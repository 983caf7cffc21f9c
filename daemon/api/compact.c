/* compact.c - POST /v1/responses/compact: a conversation in few words, from which a new chain begins.
 *
 * The model is asked for a summary behind all that there is, under the same instructions and tools, so that nothing of
 * it is read again; the turn is stored nowhere. The answer has one item, a `compaction`, whose content is opaque to
 * clients and is not secret: the summary in base64, behind a line that tells what it is. In a later input that item is
 * a system message.
 */
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/api/messages.h"

#define SUMMARY_TOKENS 1024
#define MARK           "convod compaction 1\n"
#define CONTENT_MAX    (4 * 1024 * 1024)

static const char ask[] = "Summarize everything that was said above, so that somebody who has not read it can go on. "
                          "Keep all names, numbers, "
                          "facts, decisions and open questions. Write the summary only.";
static const char before[] = "This is a summary of the conversation before:\n";

/* ---- the item ------------------------------------------------------------------------------------------------------
 */

/* NULL: out of memory. */
static char *encode(const char *text)
{
    size_t len = strlen(MARK) + strlen(text);
    char *plain = malloc(len + 1), *out = malloc(4 * (len / 3 + 1) + 1);
    if (plain && out && len < INT32_MAX) {
        snprintf(plain, len + 1, "%s%s", MARK, text);
        EVP_EncodeBlock((unsigned char *)out, (const unsigned char *)plain, (int)len);
    } else {
        free(out);
        out = NULL;
    }
    free(plain);
    return out;
}

int compaction_add(struct message_list *l, const cJSON *item, const char *prefix)
{
    const char *content = NULL;
    if (message_need_string(l, item, prefix, "encrypted_content", CONTENT_MAX, &content)) {
        return -1;
    }
    size_t n = strlen(content), most = n / 4 * 3, mark = strlen(MARK), gap = strlen(before);
    char *plain = malloc(most + 1);
    if (!plain) {
        return message_no_memory(l->e);
    }
    int len = n % 4 == 0 && n ? EVP_DecodeBlock((unsigned char *)plain, (const unsigned char *)content, (int)n) : -1;
    for (size_t end = n; len > 0 && end > n - 2 && content[end - 1] == '='; end--) {
        len--;
    }
    plain[len > 0 ? len : 0] = '\0';
    bool known = len >= (int)mark && strlen(plain) == (size_t)len && memcmp(plain, MARK, mark) == 0 &&
                 utf8_valid(plain, (size_t)len);
    char *text = known ? message_room(l->q, gap + (size_t)len - mark) : NULL;
    if (text) {
        memcpy(text, before, gap);
        memcpy(text + gap, plain + mark, (size_t)len - mark);
    }
    free(plain);
    if (!known) {
        char param[96];
        snprintf(param, sizeof(param), "%.70sencrypted_content", prefix);
        api_error_set(l->e, 400, "invalid_value", param, "'%s' is nothing that this server made.", param);
        return -1;
    }
    return text ? message_add(l, "message", "msg_", ENGINE_SYSTEM, text, NULL) : message_no_memory(l->e);
}

/* ---- the request ---------------------------------------------------------------------------------------------------
 */

/* There is nothing that could stand for what was before. */
static void fail(struct run *run, const char *message)
{
    run->failed = true;
    run->status = "failed";
    api_error_set(&run->error, 500, "server_error", NULL, "%s", message);
}

static void compacted(struct run *run)
{
    char id[ID_SIZE];
    const char *text = "";
    if (run->failed) {
        return;
    }
    for (size_t i = 0; i < run->n_items; i++) {
        text = strcmp(run->items[i].kind, "message") == 0 ? run->items[i].text : text;
    }
    if (text[strspn(text, " \t\r\n")] == '\0') {
        fail(run, "The model wrote no summary.");
        return;
    }
    char *content = encode(text);
    if (!content) {
        fail(run, "Out of memory.");
        return;
    }
    cJSON *o = cJSON_CreateObject();
    id_derive("cmpr_", run->id, id);
    cJSON_AddStringToObject(o, "id", id);
    cJSON_AddStringToObject(o, "object", "response.compaction");
    cJSON_AddNumberToObject(o, "created_at", (double)(run->created_ms / 1000));
    cJSON *item = cJSON_CreateObject();
    id_derive("cmp_", run->id, id);
    cJSON_AddStringToObject(item, "id", id);
    cJSON_AddStringToObject(item, "type", "compaction");
    cJSON_AddStringToObject(item, "encrypted_content", content);
    cJSON_AddItemToArray(cJSON_AddArrayToObject(o, "output"), item);
    cJSON_AddItemToObject(o, "usage", response_usage(run));
    receipt_add(o, run);
    free(content);
    run->answer = json_text(o);
    run->answer_status = 200;
}

static const struct run_format compact_format = {.done = compacted};

struct turn_request *responses_parse_compact(cJSON *body, struct api_error *e)
{
    /* What is to be said is not in the body. */
    cJSON_DeleteItemFromObjectCaseSensitive(body, "generate");
    cJSON_AddFalseToObject(body, "generate");
    struct turn_request *q = responses_parse(body, false, e);
    if (!q) {
        return NULL;
    }
    if (!q->n_items && !q->previous && !q->conversation) {
        api_error_set(e, 400, "missing_required_parameter", "input", "There is nothing to be made shorter.");
        turn_request_free(q);
        return NULL;
    }
    struct message_list l = {.q = q, .name = "input", .index = q->n_items, .capacity = q->n_items, .ids = true, .e = e};
    char *text = message_keep(q, ask);
    if (!text ? message_no_memory(e) : message_add(&l, "message", "msg_", ENGINE_USER, text, NULL)) {
        turn_request_free(q);
        return NULL;
    }
    q->format = &compact_format;
    q->keeps = true;
    q->generate = true;
    q->store = q->stream = q->background = q->finish_on_disconnect = false;
    q->tool_choice = SESSION_TOOLS_NONE;
    /* The summary is text, and all of its tokens are its own. */
    engine_form_free(q->form);
    q->form = NULL;
    q->thinking_tokens = -1;
    q->effort = ENGINE_CHAT_NO_THINKING;
    q->max_output_tokens = SUMMARY_TOKENS;
    q->sampling.temperature = 0;
    return q;
}
