/* chat_tools.c - how tools are written: their definitions, calls of them, and what these gave.
 *
 * The text is what the model's own template gives for the same values (docs/protocol.md has a table of where it is
 * not). Values are written as templates write them, by chat_json.c; what a user or a tool said is data, as everywhere.
 */
#include "engine/text/chat_private.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- setting up ---- */

static bool find_mistral(struct chat *c, const struct vocab *v)
{
    c->call_mark = vocab_special(v, "[TOOL_CALLS]");
    c->tools_start = vocab_special(v, "[AVAILABLE_TOOLS]");
    c->tools_end = vocab_special(v, "[/AVAILABLE_TOOLS]");
    c->result_start = vocab_special(v, "[TOOL_RESULTS]");
    c->result_stop = vocab_special(v, "[/TOOL_RESULTS]");
    c->args = vocab_special(v, "[ARGS]");
    c->call_id = vocab_special(v, "[CALL_ID]");
    c->result_content = vocab_special(v, "[TOOL_CONTENT]");
    bool named = c->syntax == ENGINE_CALLS_MISTRAL || c->syntax == ENGINE_CALLS_MISTRAL_ID;
    return c->call_mark >= 0 && c->tools_start >= 0 && c->tools_end >= 0 && c->result_start >= 0 &&
           c->result_stop >= 0 && (!named || c->args >= 0) && (!c->call_ids || !named || c->call_id >= 0) &&
           (!c->result_ids || c->result_json || c->result_content >= 0);
}

/* Whether the vocabulary has the syntax's marks as tokens. Without them a text could be mistaken for a call. */
static bool find_marks(struct chat *c, const struct vocab *v)
{
    switch (c->syntax) {
    case ENGINE_CALLS_NONE:
        return false;
    case ENGINE_CALLS_HERMES:
    case ENGINE_CALLS_XML:
        c->call_mark = vocab_special(v, "<tool_call>");
        c->call_end_mark = vocab_special(v, "</tool_call>");
        return c->call_mark >= 0 && c->call_end_mark >= 0;
    case ENGINE_CALLS_LLAMA:
        c->call_mark = vocab_special(v, "<|python_tag|>"); /* some begin with it */
        return true;
    case ENGINE_CALLS_MISTRAL_LIST:
    case ENGINE_CALLS_MISTRAL_LIST_ID:
    case ENGINE_CALLS_MISTRAL:
    case ENGINE_CALLS_MISTRAL_ID:
        return find_mistral(c, v);
    case ENGINE_CALLS_HARMONY:
        return vocab_special(v, "<|call|>") >= 0;
    }
    return false;
}

int chat_set_up_tools(struct chat *c, const struct vocab *v)
{
    static const struct {
        const char *name, *arguments, *end, *result, *result_end;
    } written[] = {
        [ENGINE_CALLS_HERMES] = {"<tool_call>\n{\"name\": \"", "\", \"arguments\": ", "}\n</tool_call>",
                                 "<tool_response>\n", "\n</tool_response>"},
        [ENGINE_CALLS_XML] = {"<tool_call>\n<function=", ">\n", "</function>\n</tool_call>", "<tool_response>\n",
                              "\n</tool_response>\n"},
        [ENGINE_CALLS_LLAMA] = {"{\"name\": \"", "\", \"parameters\": ", "}",
                                "<|start_header_id|>ipython<|end_header_id|>\n\n", "<|eot_id|>"},
        [ENGINE_CALLS_HARMONY] = {"<|start|>assistant to=functions.", "<|channel|>commentary json<|message|>",
                                  "<|call|>", "", "<|end|>"},
    };
    const struct {
        const char *text;
        struct chat_pieces *pieces;
    } parts[] = {
        {written[c->syntax].name, &c->call_name},
        {written[c->syntax].arguments, &c->call_arguments},
        {written[c->syntax].end, &c->call_end},
        {written[c->syntax].result, &c->result},
        {written[c->syntax].result_end, &c->result_end},
        {c->tools_head_text, &c->tools_head},
        {c->tools_tail_text, &c->tools_tail},
    };
    c->call_mark = c->call_end_mark = -1;
    if (!find_marks(c, v))
        c->syntax = ENGINE_CALLS_NONE;
    int rc = 0;
    for (size_t i = 0; c->syntax != ENGINE_CALLS_NONE && rc == 0 && i < sizeof parts / sizeof *parts; i++)
        if (parts[i].text != NULL)
            rc = chat_cut_pieces(v, parts[i].text, parts[i].pieces);
    if (rc == -EOVERFLOW) { /* more marks than we know of */
        c->syntax = ENGINE_CALLS_NONE;
        rc = 0;
    }
    if (c->syntax == ENGINE_CALLS_NONE)
        c->call_mark = c->call_end_mark = -1;
    return rc;
}

/* ---- definitions ---- */

/* The list as a tree; NULL: it is none (the builder has failed then). */
static cJSON *parse(struct builder *b, const struct engine_message *m)
{
    cJSON *list = b->rc ? NULL : engine_json_parse(m->text, m->len, NULL);
    bool fine = cJSON_IsArray(list) && list->child != NULL;
    for (const cJSON *tool = fine ? list->child : NULL; tool != NULL; tool = tool->next)
        fine &= cJSON_IsObject(tool);
    if (fine)
        return list;
    if (!b->rc)
        b->rc = -EINVAL;
    cJSON_Delete(list);
    return NULL;
}

/* Each definition: with numbers as the client wrote them. indent: 0, or it is written on several lines. */
static void add_each(struct builder *b, const struct engine_message *m, size_t indent, const char *before,
                     const char *behind)
{
    char *text = NULL;
    size_t len = 0, depth = 0;
    bool quoted = false;
    int rc = b->rc ? b->rc : text_json(m->text, m->len, false, &text, &len);
    if (rc)
        b->rc = rc;
    /* The elements' own text has no comma outside of braces. */
    for (size_t i = 1, start = 1; rc == 0 && i + 1 < len; i++) {
        if (quoted && text[i] == '\\')
            i++;
        else if (text[i] == '"')
            quoted = !quoted;
        else if (!quoted && (text[i] == '{' || text[i] == '['))
            depth++;
        else if (!quoted && (text[i] == '}' || text[i] == ']') && --depth == 0) {
            chat_add(b, before);
            chat_add_lines(b, text + start, i + 1 - start, indent);
            chat_add(b, behind);
            i += 2; /* the comma and the space */
            start = i + 1;
        }
    }
    free(text);
}

static void add_json(struct builder *b, const struct engine_message *m);

static void open_element(struct builder *b, const char *key)
{
    chat_add(b, "\n<");
    chat_add(b, key);
    chat_add(b, ">");
}

static void close_element(struct builder *b, const char *key)
{
    chat_add(b, "</");
    chat_add(b, key);
    chat_add(b, ">");
}

static void add_element(struct builder *b, const char *key, const cJSON *value, bool trim)
{
    open_element(b, key);
    if (trim && cJSON_IsString(value))
        chat_add_trimmed(b, value->valuestring, strlen(value->valuestring));
    else
        chat_add_plain(b, value);
    close_element(b, key);
}

/* The same of a list as the template language prints one. */
static void add_printed(struct builder *b, const char *key, const cJSON *value)
{
    if (!cJSON_IsArray(value)) {
        add_element(b, key, value, false);
        return;
    }
    open_element(b, key);
    chat_add_printed(b, value);
    close_element(b, key);
}

/* A list, its texts between backticks. An empty one, or none, is not there. */
static void add_ticked(struct builder *b, const char *key, const cJSON *list)
{
    const cJSON *one;
    if (!cJSON_IsArray(list) || list->child == NULL)
        return;
    open_element(b, key);
    chat_add(b, "[");
    cJSON_ArrayForEach(one, list)
    {
        const char *tick = cJSON_IsString(one) ? "`" : "";
        chat_add(b, tick);
        chat_add_plain(b, one);
        chat_add(b, tick);
        chat_add(b, one->next != NULL ? ", " : "");
    }
    chat_add(b, "]");
    close_element(b, key);
}

/* Members that were not written by name. */
static void add_others(struct builder *b, const cJSON *o, const char *const *written, bool printed)
{
    for (const cJSON *member = cJSON_IsObject(o) ? o->child : NULL; member != NULL; member = member->next) {
        const char *const *w = written;
        while (*w != NULL && strcmp(*w, member->string) != 0)
            w++;
        if (*w == NULL && printed)
            add_printed(b, member->string, member);
        else if (*w == NULL)
            add_element(b, member->string, member, false);
    }
}

static void add_parameter(struct builder *b, const cJSON *p, bool ticks)
{
    static const char *const WRITTEN[] = {"name", "type", "description", NULL}, *const TICKED[] = {
                                                                                    "type", "description", "enum",
                                                                                    "required", NULL};
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(p, "type");
    const cJSON *description = cJSON_GetObjectItemCaseSensitive(p, "description");
    chat_add(b, "\n<parameter>\n<name>");
    chat_add(b, p->string != NULL ? p->string : "");
    chat_add(b, "</name>");
    if (type != NULL)
        add_printed(b, "type", type);
    if (description != NULL)
        add_element(b, "description", description, true);
    if (ticks)
        add_ticked(b, "enum", cJSON_GetObjectItemCaseSensitive(p, "enum"));
    add_others(b, p, ticks ? TICKED : WRITTEN, ticks);
    if (ticks)
        add_ticked(b, "required", cJSON_GetObjectItemCaseSensitive(p, "required"));
    chat_add(b, "\n</parameter>");
}

static void add_elements(struct builder *b, const cJSON *list, bool ticks)
{
    static const char *const OF_FUNCTION[] = {"type", "name", "description", "parameters", NULL},
                             *const OF_PARAMETERS[] = {"type", "properties", NULL};
    const cJSON *tool, *p;
    cJSON_ArrayForEach(tool, list)
    {
        const cJSON *f = cJSON_GetObjectItemCaseSensitive(tool, "function");
        const cJSON *description = cJSON_GetObjectItemCaseSensitive(f, "description");
        const cJSON *parameters = cJSON_GetObjectItemCaseSensitive(f, "parameters");
        chat_add(b, "\n<function>");
        add_element(b, "name", cJSON_GetObjectItemCaseSensitive(f, "name"), false);
        if (description != NULL)
            add_element(b, "description", description, true);
        else if (ticks)
            chat_add(b, "\n<description></description>");
        chat_add(b, "\n<parameters>");
        cJSON_ArrayForEach(p, cJSON_GetObjectItemCaseSensitive(parameters, "properties"))
        {
            add_parameter(b, p, ticks);
        }
        if (ticks)
            add_ticked(b, "required", cJSON_GetObjectItemCaseSensitive(parameters, "required"));
        else
            add_others(b, parameters, OF_PARAMETERS, false);
        chat_add(b, "\n</parameters>");
        if (!ticks)
            add_others(b, f, OF_FUNCTION, false);
        chat_add(b, "\n</function>");
    }
}

void chat_add_definitions(const struct chat *c, struct builder *b, const struct engine_message *m)
{
    cJSON *list = parse(b, m);
    if (list == NULL)
        return;
    switch (c->syntax) {
    case ENGINE_CALLS_NONE:
        break;
    case ENGINE_CALLS_HERMES:
        add_each(b, m, 0, "\n", "");
        break;
    case ENGINE_CALLS_XML:
        add_elements(b, list, c->ticks);
        break;
    case ENGINE_CALLS_LLAMA:
        add_each(b, m, 4, "", "\n\n");
        break;
    case ENGINE_CALLS_MISTRAL_LIST:
    case ENGINE_CALLS_MISTRAL_LIST_ID:
    case ENGINE_CALLS_MISTRAL:
    case ENGINE_CALLS_MISTRAL_ID:
        chat_add_token(b, c->tools_start);
        if (c->list_space)
            chat_add(b, " ");
        add_json(b, m);
        chat_add_token(b, c->tools_end);
        break;
    case ENGINE_CALLS_HARMONY:
        chat_add_typescript(b, list);
        break;
    }
    cJSON_Delete(list);
}

/* ---- calls ---- */

/* Mistral's ids have nine letters and digits. Those that we gave out for a model's own end with it; for others one is
 * made of the whole. */
static void add_id(struct builder *b, const char *id)
{
    static const char LETTERS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    char made[10];
    size_t len = id != NULL ? strlen(id) : 0;
    if (len == 9 ? strspn(id, LETTERS) == 9 : len > 10 && id[len - 10] == '-' && strspn(id + len - 9, LETTERS) == 9) {
        chat_add_bytes(b, id + len - 9, 9);
        return;
    }
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a, 64 bits */
    for (size_t i = 0; i < len; i++)
        hash = (hash ^ (unsigned char)id[i]) * 0x100000001b3u;
    for (size_t i = 0; i < 9; i++, hash /= 62)
        made[i] = LETTERS[hash % 62];
    chat_add_bytes(b, made, 9);
}

/* JSON anew. Arguments that were cut off are none: they stand as they came. */
static void add_json(struct builder *b, const struct engine_message *m)
{
    char *text = NULL;
    size_t len = 0;
    int rc = b->rc ? b->rc : text_json(m->text, m->len, false, &text, &len);
    if (rc && rc != -EINVAL)
        b->rc = rc;
    else
        chat_add_bytes(b, rc ? m->text : text, rc ? m->len : len);
    free(text);
}

static void add_parameters(struct builder *b, const struct engine_message *m)
{
    cJSON *o = engine_json_parse(m->text, m->len, NULL);
    if (!cJSON_IsObject(o)) {
        chat_add_bytes(b, m->text, m->len);
        chat_add(b, "\n");
    }
    for (const cJSON *p = cJSON_IsObject(o) ? o->child : NULL; p != NULL; p = p->next) {
        chat_add(b, "<parameter=");
        chat_add(b, p->string);
        chat_add(b, ">\n");
        chat_add_plain(b, p);
        chat_add(b, "\n</parameter>\n");
    }
    cJSON_Delete(o);
}

/* Between the calls of an answer, or its text and the first. */
static void divide(const struct chat *c, struct builder *b, size_t n, bool text)
{
    if (c->syntax == ENGINE_CALLS_HERMES && (n > 0 || text))
        chat_add(b, "\n");
    if (c->syntax == ENGINE_CALLS_XML && (n > 0 || text))
        chat_add(b, n > 0 ? "\n" : "\n\n");
    if (c->syntax == ENGINE_CALLS_LLAMA && (n > 0 || text))
        chat_add(b, n > 0 ? "; " : "\n\n");
}

static void add_mistral_call(const struct chat *c, struct builder *b, const struct engine_message *m, size_t n)
{
    bool list = c->syntax == ENGINE_CALLS_MISTRAL_LIST || c->syntax == ENGINE_CALLS_MISTRAL_LIST_ID;
    const char *name = m->name != NULL ? m->name : "";
    if (list && n > 0)
        chat_add(b, ", ");
    else
        chat_add_token(b, c->call_mark);
    if (!list) {
        chat_add(b, name);
        if (c->call_ids) {
            chat_add_token(b, c->call_id);
            add_id(b, m->id);
        }
        chat_add_token(b, c->args);
        add_json(b, m);
        return;
    }
    if (n == 0)
        chat_add(b, c->list_space ? " [" : "[");
    chat_add(b, "{\"name\": \"");
    chat_add(b, name);
    chat_add(b, "\", \"arguments\": ");
    add_json(b, m);
    if (c->call_ids) {
        chat_add(b, ", \"id\": \"");
        add_id(b, m->id);
        chat_add(b, "\"");
    }
    chat_add(b, "}");
}

void chat_add_call(const struct chat *c, struct builder *b, const struct engine_message *m, size_t n, bool text)
{
    if (c->args >= 0 || c->result_start >= 0) {
        add_mistral_call(c, b, m, n);
        return;
    }
    divide(c, b, n, text);
    chat_add_pieces(b, &c->call_name);
    chat_add(b, m->name != NULL ? m->name : "");
    chat_add_pieces(b, &c->call_arguments);
    if (c->syntax == ENGINE_CALLS_XML)
        add_parameters(b, m);
    else
        add_json(b, m);
    chat_add_pieces(b, &c->call_end);
}

void chat_end_calls(const struct chat *c, struct builder *b)
{
    if (c->syntax == ENGINE_CALLS_MISTRAL_LIST || c->syntax == ENGINE_CALLS_MISTRAL_LIST_ID)
        chat_add(b, "]");
}

/* ---- results ---- */

static void add_mistral_result(const struct chat *c, struct builder *b, const struct engine_message *m)
{
    chat_add_token(b, c->result_start);
    if (c->list_space)
        chat_add(b, " ");
    if (c->result_json) {
        chat_add(b, "{\"content\": ");
        chat_add_bytes(b, m->text, m->len);
        if (c->result_ids) {
            chat_add(b, ", \"call_id\": \"");
            add_id(b, m->id);
            chat_add(b, "\"");
        }
        chat_add(b, "}");
    } else {
        if (c->result_ids) {
            add_id(b, m->id);
            chat_add_token(b, c->result_content);
            if (c->list_space)
                chat_add(b, " ");
        }
        chat_add_bytes(b, m->text, m->len);
    }
    chat_add_token(b, c->result_stop);
}

/* A text as a JSON string. */
static void add_quoted(struct builder *b, const char *text, size_t len)
{
    char *copy = strndup(text, len);
    cJSON *string = copy != NULL ? cJSON_CreateString(copy) : NULL;
    if (string == NULL)
        b->rc = b->rc ? b->rc : -ENOMEM;
    else
        chat_add_value(b, string);
    cJSON_Delete(string);
    free(copy);
}

void chat_add_result(const struct chat *c, struct builder *b, const struct engine_message *m, size_t n)
{
    if (c->result_start >= 0) {
        add_mistral_result(c, b, m);
        return;
    }
    if (c->syntax == ENGINE_CALLS_HERMES && n > 0)
        chat_add(b, "\n");
    chat_add_pieces(b, &c->result);
    if (c->syntax == ENGINE_CALLS_HARMONY) {
        chat_add_token(b, c->start);
        chat_add(b, "functions.");
        chat_add(b, m->name != NULL ? m->name : "");
        chat_add(b, " to=assistant");
        chat_add_token(b, c->channel);
        chat_add(b, "commentary");
        chat_add_token(b, c->message);
    }
    if (c->syntax == ENGINE_CALLS_HARMONY || c->syntax == ENGINE_CALLS_LLAMA)
        add_quoted(b, m->text, m->len);
    else
        chat_add_bytes(b, m->text, m->len);
    chat_add_pieces(b, &c->result_end);
}

/* Hermes' are a user's message. */
static bool in_user(const struct chat *c)
{
    return c->syntax == ENGINE_CALLS_HERMES || c->syntax == ENGINE_CALLS_XML;
}

void chat_begin_results(const struct chat *c, struct builder *b)
{
    if (in_user(c))
        chat_add_pieces(b, &c->before[ENGINE_USER]);
}

void chat_end_results(const struct chat *c, struct builder *b)
{
    if (in_user(c))
        chat_add_pieces(b, &c->after[ENGINE_USER]);
}

/* ---- openings ---- */

/* The beginning of a call, without its mark. It ends where a token of the model's own may begin: before a space. */
static void add_call_opening(const struct chat *c, struct builder *b, const char *name)
{
    const char *key = c->syntax == ENGINE_CALLS_LLAMA ? "parameters" : "arguments";
    switch (c->syntax) {
    case ENGINE_CALLS_NONE:
        break;
    case ENGINE_CALLS_MISTRAL_LIST:
    case ENGINE_CALLS_MISTRAL_LIST_ID:
        chat_add(b, c->list_space ? " [" : "[");
        __attribute__((fallthrough));
    case ENGINE_CALLS_HERMES:
    case ENGINE_CALLS_LLAMA:
        chat_add(b, c->syntax == ENGINE_CALLS_HERMES ? "\n{\"name\":" : "{\"name\":");
        if (name == NULL)
            break;
        chat_add(b, " \"");
        chat_add(b, name);
        chat_add(b, "\", \"");
        chat_add(b, key);
        chat_add(b, "\":");
        break;
    case ENGINE_CALLS_XML:
        chat_add(b, "\n<function=");
        chat_add(b, name != NULL ? name : "");
        chat_add(b, name != NULL ? ">\n" : "");
        break;
    case ENGINE_CALLS_MISTRAL:
    case ENGINE_CALLS_MISTRAL_ID:
        chat_add(b, name != NULL ? name : "");
        if (name != NULL)
            chat_add_token(b, c->call_ids ? c->call_id : c->args);
        break;
    case ENGINE_CALLS_HARMONY:
        chat_add(b, " to=functions.");
        chat_add(b, name != NULL ? name : "");
        if (name != NULL)
            chat_add_pieces(b, &c->call_arguments);
        break;
    }
}

int chat_open_call(const struct chat *c, const struct vocab *v, const char *name, struct engine_tokens *out)
{
    size_t before = out->n;
    if (c->syntax == ENGINE_CALLS_NONE)
        return -ENOTSUP;
    struct builder b = {.v = v, .out = out, .before = VOCAB_CONTINUES, .strip = c->strip};
    if (c->opens_thinking) { /* there is none */
        chat_add_token(&b, c->think_end_mark);
        chat_add(&b, "\n\n");
    }
    if (c->call_mark >= 0 && c->syntax != ENGINE_CALLS_LLAMA)
        chat_add_token(&b, c->call_mark);
    add_call_opening(c, &b, name);
    chat_flush(&b);
    free(b.text);
    if (b.rc)
        out->n = before;
    return b.rc;
}
