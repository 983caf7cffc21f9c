/* items.c - items of the API's lists as messages of a context, and what tells equal ones.
 *
 * A row's kind says what it is: "message" (its role says whose), "function_call" (the text is the arguments, the body
 * has the tool's name), "function_call_output", "reasoning" (which is in the
 * context as tokens alone), "tools" (definitions, from the turn on that has them; listed nowhere).
 * Whether an item that a client sends again is one that is stored, its content decides: white space around it does not
 * count, nor does thinking before an answer, or whether its calls stand before, behind or between its texts (Chat
 * Completions have one text beside the calls); arguments are equal as JSON values, and ids mean nothing.
 */
#include <cjson/cJSON.h>
#include <ctype.h>
#include <errno.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#include "session/session_internal.h"

int items_role(const char *kind, const char *role, enum engine_role *out)
{
    if (!strcmp(kind, "message"))
        *out = stored_role(role);
    else if (!strcmp(kind, "function_call"))
        *out = ENGINE_CALL;
    else if (!strcmp(kind, "function_call_output"))
        *out = ENGINE_RESULT;
    else
        return -ENOENT;
    return 0;
}

char *items_field(const char *body, const char *key)
{
    cJSON *o = body ? cJSON_Parse(body) : NULL;
    const cJSON *v = o ? cJSON_GetObjectItemCaseSensitive(o, key) : NULL;
    char *text = cJSON_IsString(v) ? strdup(v->valuestring) : NULL;
    cJSON_Delete(o);
    return text;
}

/* A call's and a result's tool and id: the message points into *names, which holds both. */
static int name_message(const char *body, struct engine_message *m, char **names)
{
    char *name = items_field(body, "name"), *id = items_field(body, "call_id");
    size_t n = name ? strlen(name) + 1 : 0, k = id ? strlen(id) + 1 : 0;
    *names = malloc(n + k + 1);
    if (*names && name)
        m->name = memcpy(*names, name, n);
    if (*names && id)
        m->id = memcpy(*names + n, id, k);
    free(name);
    free(id);
    return *names && (name || m->role != ENGINE_CALL) ? 0 : -ENOMEM;
}

int items_message(const struct storage_item *row, struct engine_message *out, char **name)
{
    enum engine_role role;
    *name = NULL;
    if (!row->text || items_role(row->kind, row->role, &role))
        return -ENOENT;
    *out = (struct engine_message){.role = role, .text = row->text, .len = strlen(row->text)};
    if (role == ENGINE_CALL && !row->text[strspn(row->text, " \t\r\n")]) { /* as some clients write no arguments */
        out->text = "{}";
        out->len = 2;
    }
    return role == ENGINE_CALL || role == ENGINE_RESULT ? name_message(row->body, out, name) : 0;
}

static size_t trimmed(const char **text, size_t len)
{
    while (len && isspace((unsigned char)**text))
        (*text)++, len--;
    while (len && isspace((unsigned char)(*text)[len - 1]))
        len--;
    return len;
}

/* Some clients put an answer's thinking before its text. */
static size_t without_thinking(const char **text, size_t len)
{
    static const char OPEN[] = "<think>", CLOSE[] = "</think>";
    const char *end = NULL;
    if (len >= strlen(OPEN) && !memcmp(*text, OPEN, strlen(OPEN)))
        end = memmem(*text, len, CLOSE, strlen(CLOSE));
    if (!end)
        return len;
    end += strlen(CLOSE);
    len -= (size_t)(end - *text);
    *text = end;
    return trimmed(text, len);
}

static int chain(uint8_t hash[32], const struct engine_message *m)
{
    uint8_t role = (uint8_t)m->role;
    const char *text = m->text, *name = m->name ? m->name : "";
    size_t len = m->len;
    char *value = NULL;
    if (m->role == ENGINE_CALL || m->role == ENGINE_TOOLS) {
        int rc = engine_json(m->text, m->len, true, &value, &len);
        if (rc && rc != -EINVAL)
            return rc;
        text = rc ? m->text : value;
        len = rc ? m->len : len;
    }
    len = trimmed(&text, len);
    if (m->role == ENGINE_ASSISTANT && !(len = without_thinking(&text, len)))
        return 0; /* of thinking alone, which is stored as that, some clients send an empty text again */
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    bool ok = md && EVP_DigestInit_ex(md, EVP_sha256(), NULL) && EVP_DigestUpdate(md, hash, 32) &&
              EVP_DigestUpdate(md, &role, 1) &&
              (m->role != ENGINE_CALL || EVP_DigestUpdate(md, name, strlen(name) + 1)) &&
              EVP_DigestUpdate(md, text, len) && EVP_DigestFinal_ex(md, hash, NULL);
    EVP_MD_CTX_free(md);
    free(value);
    return ok ? 0 : -ENOMEM;
}

bool items_answers(const struct engine_message *m)
{
    return m->role == ENGINE_ASSISTANT || m->role == ENGINE_CALL;
}

/* An answer: its texts as one, then its calls, wherever among them the texts stood. */
static int chain_answer(uint8_t hash[32], const struct engine_message *m, size_t n)
{
    struct engine_message said = {.role = ENGINE_ASSISTANT};
    size_t texts = 0;
    char *text = NULL, *to = NULL;
    for (size_t i = 0; i < n; i++)
        if (m[i].role == ENGINE_ASSISTANT) {
            said.text = m[i].text;
            said.len += m[i].len;
            texts++;
        }
    if (texts > 1) {
        said.text = to = text = malloc(said.len + 1);
        if (!text)
            return -ENOMEM;
        for (size_t i = 0; i < n; i++)
            if (m[i].role == ENGINE_ASSISTANT && m[i].len) {
                memcpy(to, m[i].text, m[i].len);
                to += m[i].len;
            }
    }
    int rc = texts ? chain(hash, &said) : 0;
    for (size_t i = 0; !rc && i < n; i++)
        rc = m[i].role == ENGINE_CALL ? chain(hash, &m[i]) : 0;
    free(text);
    return rc;
}

int items_chain(uint8_t hash[32], const struct engine_message *m, size_t n, uint8_t (*after)[32])
{
    int rc = 0;
    for (size_t i = 0, end; !rc && i < n; i = end) {
        for (end = i + 1; items_answers(&m[i]) && end < n && items_answers(&m[end]);)
            end++;
        rc = items_answers(&m[i]) ? chain_answer(hash, &m[i], end - i) : chain(hash, &m[i]);
        for (size_t k = i; after && k < end; k++)
            memcpy(after[k], hash, 32);
    }
    return rc;
}

/* ---- references ---- */

bool items_is_reference(const char *kind)
{
    return strcmp(kind, "item_reference") == 0;
}

/* Drops the messages behind the first n. */
static void cut_messages(struct turn *t, size_t n)
{
    for (size_t i = n; i < t->n_messages; i++) {
        struct storage_item *gone = &t->items[i];
        char *texts[] = {gone->public_id, gone->kind, gone->role, gone->text, gone->body, t->names[i]};
        for (size_t k = 0; k < sizeof texts / sizeof *texts; k++)
            free(texts[k]);
        memset(gone, 0, sizeof *gone);
        t->names[i] = NULL;
    }
    t->n_messages = n;
}

static void swap_messages(struct turn *t, size_t a, size_t b)
{
    struct storage_item item = t->items[a];
    struct engine_message message = t->messages[a];
    char *name = t->names[a];
    t->items[a] = t->items[b];
    t->messages[a] = t->messages[b];
    t->names[a] = t->names[b];
    t->items[b] = item;
    t->messages[b] = message;
    t->names[b] = name;
}

static void swap(char **a, char **b)
{
    char *c = *a;
    *a = *b;
    *b = c;
}

int items_resolve(struct storage_ledger *l, struct turn *t, const char **wrong)
{
    /* One text can be referred to very often. */
    const struct engine_info *info = t->session->info;
    size_t most = (size_t)info->ctx_tokens * (size_t)info->token_bytes_max, bytes = 0, n = 0;
    *wrong = NULL;
    for (size_t i = 0; i < t->n_messages; i++) {
        struct storage_item *item = &t->items[i], *row;
        if (!items_is_reference(item->kind)) {
            swap_messages(t, n++, i);
            continue;
        }
        int rc = storage_item_find(l, t->found.owner.id, item->text, &row);
        if (rc == -ENOENT) {
            *wrong = "there is no item with the id of an item_reference";
            return 0;
        }
        if (rc)
            return rc;
        bytes += (row->text ? strlen(row->text) : 0) + (row->body ? strlen(row->body) : 0);
        if (bytes > most) {
            storage_items_free(row, 1);
            *wrong = "the items that are referred to are longer than any context";
            return 0;
        }
        /* It keeps the id that it has here. */
        swap(&item->kind, &row->kind);
        swap(&item->role, &row->role);
        swap(&item->text, &row->text);
        swap(&item->body, &row->body);
        item->incomplete = row->incomplete;
        storage_items_free(row, 1);
        rc = items_message(item, &t->messages[i], &t->names[i]);
        if (!rc)
            swap_messages(t, n++, i);
        else if (rc != -ENOENT)
            return rc;
    }
    cut_messages(t, n); /* what the context does not have: it was left behind, one place after the other */
    return 0;
}

/* ---- items of a stored turn ---- */

int items_take(struct turn *t, struct storage_turn *row)
{
    size_t room = row->n_items + 1;
    struct storage_item *items = calloc(room, sizeof *items);
    struct engine_message *messages = calloc(room, sizeof *messages);
    char **names = calloc(room, sizeof *names);
    if (!items || !messages || !names) {
        free(items);
        free(messages);
        free(names);
        return -ENOMEM;
    }
    free(t->items);
    free(t->messages);
    free(t->names);
    t->items = items;
    t->messages = messages;
    t->names = names;
    t->n_messages = 0;
    for (size_t i = 0; i < row->n_items; i++) {
        struct storage_item *from = &row->items[i];
        if (from->output)
            continue;
        int rc = items_message(from, &messages[t->n_messages], &names[t->n_messages]);
        if (rc == -ENOENT)
            continue;
        if (rc)
            return rc;
        free(from->public_id);
        from->public_id = NULL;
        from->created_ms = t->created_ms;
        items[t->n_messages++] = *from;
        memset(from, 0, sizeof *from);
    }
    return 0;
}

/* ---- results, and the calls that they belong to ---- */

struct call {
    char *id, *name;
    bool answered;
};

struct calls {
    struct call *list;
    size_t n;
};

static int add_call(struct calls *c, const char *body, bool answered)
{
    struct call *grown = realloc(c->list, (c->n + 1) * sizeof *grown);
    if (!grown)
        return -ENOMEM;
    c->list = grown;
    struct call call = {items_field(body, "call_id"), items_field(body, "name"), answered};
    grown[c->n] = call;
    c->n += call.id != NULL;
    if (!call.id)
        free(call.name);
    return 0;
}

/* The latest call with this id. */
static struct call *find_call(const struct calls *c, const char *id)
{
    for (size_t i = c->n; id && i-- > 0;)
        if (!strcmp(c->list[i].id, id))
            return &c->list[i];
    return NULL;
}

/* *of: the call that an item is the result of; NULL: it is none. */
static int take_item(struct calls *c, const struct storage_item *item, const struct call **of, const char **wrong)
{
    *of = NULL;
    if (!strcmp(item->kind, "function_call"))
        return add_call(c, item->body, false);
    if (strcmp(item->kind, "function_call_output") != 0)
        return 0;
    char *id = items_field(item->body, "call_id");
    struct call *call = find_call(c, id);
    free(id);
    if (!call)
        *wrong = "there is no call for the output of a call: its call_id is unknown here";
    else if (call->answered)
        *wrong = "the output of a call was given twice";
    else
        call->answered = true;
    *of = call;
    return 0;
}

#define UNANSWERED_MAX 64 /* turns without an answer that a call is looked for behind */

/* The calls of the answer that the turn follows; what was said to it without an answer counts as well. */
static int calls_before(struct storage_ledger *l, const struct turn *t, struct calls *c)
{
    int64_t id = t->found.parent.id;
    struct storage_turn rows[UNANSWERED_MAX];
    int rc = 0, n = 0;
    const char *ignored = NULL;
    const struct call *of;
    while (id && n < UNANSWERED_MAX && !rc) {
        rc = storage_turn_by_id(l, t->found.owner.id, id, STORAGE_TURN_ITEMS, &rows[n]);
        if (rc)
            break;
        id = rows[n].answered ? 0 : rows[n].parent;
        n++;
    }
    for (int i = n; i-- > 0;) {
        for (size_t k = 0; !rc && k < rows[i].n_items; k++)
            rc = take_item(c, &rows[i].items[k], &of, &ignored);
        storage_turn_free(&rows[i]);
    }
    return rc;
}

/* The result's row gets the name of its tool, which some formats write. */
static int name_result(struct turn *t, size_t i, const char *name)
{
    struct storage_item *item = &t->items[i];
    cJSON *o = item->body ? cJSON_Parse(item->body) : NULL;
    cJSON_DeleteItemFromObjectCaseSensitive(o, "name");
    char *body = o && cJSON_AddStringToObject(o, "name", name) ? cJSON_PrintUnformatted(o) : NULL;
    cJSON_Delete(o);
    if (!body)
        return -ENOMEM;
    free(item->body);
    free(t->names[i]);
    item->body = body;
    return items_message(item, &t->messages[i], &t->names[i]);
}

static void free_calls(struct calls *c)
{
    for (size_t i = 0; i < c->n; i++) {
        free(c->list[i].id);
        free(c->list[i].name);
    }
    free(c->list);
}

static bool has_results(const struct turn *t, size_t first)
{
    bool any = false;
    for (size_t i = first; i < t->n_messages; i++)
        any |= t->messages[i].role == ENGINE_RESULT;
    return any;
}

/* The turn's own results, of the calls so far and of its own. */
static int check_results(struct turn *t, struct calls *c, size_t first, const char **wrong)
{
    int rc = 0;
    for (size_t i = first; !rc && !*wrong && i < t->n_messages; i++) {
        const struct call *of;
        rc = take_item(c, &t->items[i], &of, wrong);
        if (!rc && of && of->name)
            rc = name_result(t, i, of->name);
    }
    return rc;
}

int items_check_results(struct storage_ledger *l, struct turn *t, const char **wrong)
{
    struct calls c = {0};
    size_t first = t->ask.match ? 0 : t->found.matched;
    *wrong = NULL;
    if (!has_results(t, first))
        return 0;
    int rc = t->ask.match ? 0 : calls_before(l, t, &c);
    rc = rc ? rc : check_results(t, &c, first, wrong);
    free_calls(&c);
    return rc;
}

char *items_open_calls(const struct turn *t)
{
    struct calls c = {0};
    const char *ignored = NULL;
    const struct call *of;
    int rc = 0;
    for (size_t i = 0; !rc && i < t->n_messages; i++)
        rc = take_item(&c, &t->items[i], &of, &ignored);
    for (size_t i = 0; !rc && i < t->n_output_items; i++)
        rc = take_item(&c, &t->output[i], &of, &ignored);
    cJSON *list = rc ? NULL : cJSON_CreateArray();
    bool fine = list != NULL;
    for (size_t i = 0; fine && i < c.n; i++) {
        cJSON *o = c.list[i].answered ? NULL : cJSON_CreateObject();
        if (c.list[i].answered)
            continue;
        fine = cJSON_AddItemToArray(list, o) && cJSON_AddStringToObject(o, "call_id", c.list[i].id) &&
               (!c.list[i].name || cJSON_AddStringToObject(o, "name", c.list[i].name));
    }
    char *text = fine ? cJSON_PrintUnformatted(list) : NULL;
    cJSON_Delete(list);
    free_calls(&c);
    return text;
}

int items_check_open(struct turn *t, const char *calls, const char **wrong)
{
    struct calls c = {0};
    *wrong = NULL;
    if (!has_results(t, 0))
        return 0;
    cJSON *list = cJSON_Parse(calls), *call;
    int rc = list ? 0 : -ENOMEM;
    cJSON_ArrayForEach(call, list)
    {
        char *body = rc ? NULL : cJSON_PrintUnformatted(call);
        rc = rc ? rc : body ? add_call(&c, body, false) : -ENOMEM;
        free(body);
    }
    cJSON_Delete(list);
    rc = rc ? rc : check_results(t, &c, 0, wrong);
    free_calls(&c);
    return rc;
}

/* ---- of a turn that is about to begin ---- */

char *copy_text(const char *text, bool *failed)
{
    char *c = text ? strdup(text) : NULL;
    *failed |= text && !c;
    return c;
}

void session_texts_free(struct session_texts *texts)
{
    if (!texts)
        return;
    storage_items_free(texts->items, texts->n);
    for (size_t i = 0; i < texts->n; i++)
        free(texts->names[i]);
    free(texts->names);
    free(texts->messages);
    free(texts);
}

static bool text_copy(const struct session_item *from, struct storage_item *item, struct engine_message *message,
                      char **name)
{
    bool failed = false;
    *item = (struct storage_item){.public_id = copy_text(from->id, &failed),
                                  .kind = copy_text(from->kind, &failed),
                                  .role = copy_text(stored_role_name(from->role), &failed),
                                  .body = copy_text(from->body, &failed),
                                  .text = malloc(from->len + 1)};
    if (item->text) {
        if (from->len)
            memcpy(item->text, from->text, from->len);
        item->text[from->len] = 0;
    }
    if (failed || !item->text)
        return false;
    if (!from->kind || !items_is_reference(from->kind))
        return !items_message(item, message, name);
    *message = (struct engine_message){.role = ENGINE_USER, .text = ""}; /* until it is found */
    return true;
}

struct session_texts *session_texts_new(const struct session_item *items, size_t n)
{
    struct session_texts *texts = calloc(1, sizeof *texts);
    if (!texts)
        return NULL;
    texts->items = calloc(n + 1, sizeof *texts->items);
    texts->messages = calloc(n + 1, sizeof *texts->messages);
    texts->names = calloc(n + 1, sizeof *texts->names);
    bool ok = texts->items && texts->messages && texts->names;
    while (ok && texts->n < n) {
        size_t i = texts->n++;
        ok = text_copy(&items[i], &texts->items[i], &texts->messages[i], &texts->names[i]);
    }
    if (ok)
        return texts;
    session_texts_free(texts);
    return NULL;
}

void texts_give(struct session_texts *texts, struct turn *t)
{
    t->items = texts->items;
    t->messages = texts->messages;
    t->names = texts->names;
    t->n_messages = texts->n;
    t->ask.adds = texts->n > 0;
    for (size_t i = 0; i < t->n_messages; i++)
        t->items[i].created_ms = t->created_ms;
    free(texts);
}
