/* answer.c - what a turn's tokens say: thinking, text and calls of tools, as items of its output. Engine thread.
 *
 * Text comes out of the stream (whole characters, stop strings cut off) and, where the turn has tools or its model
 * thinks, is taken apart into items as it comes. Each is told when it begins, as it grows, and when it ends; together
 * they are the output that the turn's row gets. `text` keeps what was written as it was, marks included: a stop string
 * cuts the context by it.
 */
#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "session/session_internal.h"

#define TEXT_MIN_BYTES 1024

static int append(struct answer_text *to, const char *text, size_t len)
{
    if (to->len + len + 1 > to->capacity) {
        size_t capacity = to->capacity ? to->capacity : TEXT_MIN_BYTES;
        while (capacity < to->len + len + 1)
            capacity *= 2;
        char *grown = realloc(to->text, capacity);
        if (!grown)
            return -ENOMEM;
        to->text = grown;
        to->capacity = capacity;
    }
    if (len)
        memcpy(to->text + to->len, text, len);
    to->len += len;
    to->text[to->len] = 0;
    return 0;
}

/* ---- how likely its tokens were ---- */

/* Of the token that comes next. Its text begins behind what was given out and what the stream holds back. */
static int note_odds(struct turn *t, const struct engine_pick *pick)
{
    if (!t->ask.logprobs)
        return 0;
    if (t->n_odds == t->odds_capacity) {
        size_t capacity = t->odds_capacity ? 2 * t->odds_capacity : 16;
        struct session_logprob *grown = realloc(t->odds, capacity * sizeof *grown);
        if (!grown)
            return -ENOMEM;
        t->odds = grown;
        t->odds_capacity = capacity;
    }
    struct session_logprob *o = &t->odds[t->n_odds++];
    *o = (struct session_logprob){.token = pick->token,
                                  .logprob = pick->logprob,
                                  .at = t->text.len + engine_stream_held_bytes(t->stream),
                                  .n_top = t->n_top};
    memcpy(o->top, pick->top, (size_t)t->n_top * sizeof *o->top);
    return 0;
}

/* The tokens that begin in the text so far. */
static size_t odds_begun(const struct turn *t)
{
    size_t n = 0;
    while (n < t->n_odds && t->odds[n].at < t->text.len)
        n++;
    return n;
}

/* An event of the open item takes the tokens that it is made of along, if they are text. */
static void emit_with_odds(struct turn *t, struct session_event ev)
{
    size_t n = odds_begun(t);
    if (t->item.kind == ANSWER_MESSAGE) {
        ev.logprobs = t->odds;
        ev.n_logprobs = n;
    }
    turn_emit(t, &ev);
    t->n_odds -= n;
    if (t->n_odds)
        memmove(t->odds, t->odds + n, t->n_odds * sizeof *t->odds);
}

/* ---- items ---- */

static struct session_item shown(const struct storage_item *row)
{
    return (struct session_item){.id = row->public_id,
                                 .kind = row->kind,
                                 .role = ENGINE_ASSISTANT,
                                 .text = row->text ? row->text : "",
                                 .len = row->text ? strlen(row->text) : 0,
                                 .body = row->body,
                                 .output = true,
                                 .incomplete = row->incomplete,
                                 .created_ms = row->created_ms};
}

/* "resp_X" answers with "msg_X", and "fc_X_1" behind it. */
static char *item_id(const struct turn *t, const char *prefix)
{
    const char *tail = strchr(t->response_id, '_');
    char number[24] = "", *id = NULL;
    if (t->n_output_items)
        (void)snprintf(number, sizeof number, "_%zu", t->n_output_items);
    return asprintf(&id, "%s%s%s", prefix, tail ? tail : "_", number) < 0 ? NULL : id;
}

/* written: what the model calls it. Nine letters and digits that stand behind a dash are what the result's id is in the
 * context of such a model. */
static char *call_body(const struct turn *t, const char *name, const char *written)
{
    static const char LETTERS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    cJSON *o = cJSON_CreateObject();
    char *id = item_id(t, "call"), *body = NULL, *longer = NULL;
    if (id && written && strlen(written) == 9 && strspn(written, LETTERS) == 9) {
        if (asprintf(&longer, "%s-%s", id, written) < 0)
            longer = NULL;
        free(id);
        id = longer;
    }
    bool fine = o && id && cJSON_AddStringToObject(o, "call_id", id) && cJSON_AddStringToObject(o, "name", name);
    cJSON *labels = fine && t->labels ? cJSON_Parse(t->labels) : NULL;
    cJSON *own = cJSON_GetObjectItemCaseSensitive(labels, name);
    for (cJSON *label = own ? own->child : NULL; fine && label; label = label->next) {
        cJSON *copy = cJSON_Duplicate(label, true);
        fine = copy && cJSON_AddItemToObject(o, label->string, copy);
        if (!fine)
            cJSON_Delete(copy);
    }
    cJSON_Delete(labels);
    if (fine)
        body = cJSON_PrintUnformatted(o);
    cJSON_Delete(o);
    free(id);
    return body;
}

/* name, written: of a call: its tool, and what the model calls it. */
static int begin_item(struct turn *t, enum answer_kind kind, const char *name, const char *written)
{
    static const struct {
        const char *kind, *prefix;
    } kinds[] = {[ANSWER_MESSAGE] = {"message", "msg"},
                 [ANSWER_CALL] = {"function_call", "fc"},
                 [ANSWER_THINKING] = {"reasoning", "rs"}};
    struct storage_item *grown = realloc(t->output, (t->n_output_items + 1) * sizeof *grown);
    if (!grown)
        return -ENOMEM;
    t->output = grown;
    struct storage_item *item = &grown[t->n_output_items];
    *item = (struct storage_item){.output = true,
                                  .public_id = item_id(t, kinds[kind].prefix),
                                  .kind = strdup(kinds[kind].kind),
                                  .role = strdup(stored_role_name(ENGINE_ASSISTANT)),
                                  .body = name ? call_body(t, name, written) : NULL,
                                  .created_ms = session_wall_ms()};
    t->n_output_items++;
    if (!item->public_id || !item->kind || !item->role || (name && !item->body))
        return -ENOMEM;
    t->item.text = (struct answer_text){0};
    t->item.open = true;
    t->item.kind = kind;
    t->item.from = t->n_output;
    struct session_item s = shown(item);
    turn_emit(t, &(struct session_event){.kind = SESSION_EVENT_ITEM, .item = &s});
    return 0;
}

static int end_item(struct turn *t, bool incomplete)
{
    if (!t->item.open)
        return 0;
    struct storage_item *item = &t->output[t->n_output_items - 1];
    if (!t->item.text.text && append(&t->item.text, "", 0))
        return -ENOMEM;
    size_t len = t->item.text.len;
    item->text = t->item.text.text;
    t->item.text = (struct answer_text){0};
    item->incomplete = incomplete;
    if (t->item.kind == ANSWER_THINKING && asprintf(&item->body, "{\"tokens\":%d}", t->n_output - t->item.from) < 0) {
        item->body = NULL;
        return -ENOMEM;
    }
    struct session_item s = shown(item);
    s.len = len; /* a byte of it may be zero */
    t->item.open = false;
    emit_with_odds(t, (struct session_event){.kind = SESSION_EVENT_ITEM_END, .item = &s});
    t->n_told += t->told.started;
    return 0;
}

/* Bytes at the beginning of the first message's text that are the text which the answer was made to begin with, and are
 * not told. The white space that this began with may not be in it: behind thinking it is nothing. */
static size_t opening_bytes(const struct turn *t, const char *text, size_t len)
{
    static const char BLANK[] = " \t\r\n";
    if (!t->opening || !len)
        return 0;
    size_t n = strlen(t->opening);
    if (!memchr(BLANK, text[0], strlen(BLANK)))
        n -= strspn(t->opening, BLANK);
    return n < len ? n : len;
}

static int say(struct turn *t, const char *text, size_t len)
{
    size_t before = t->item.text.len, from = 0;
    int rc = append(&t->item.text, text, len);
    if (rc)
        return rc;
    if (t->item.kind == ANSWER_MESSAGE && t->n_output_items == 1) {
        from = opening_bytes(t, t->item.text.text, t->item.text.len);
        from = from > before ? from - before : 0;
    }
    if (len > from)
        emit_with_odds(t, (struct session_event){.kind = SESSION_EVENT_DELTA, .text = text + from, .len = len - from});
    return 0;
}

static int take_part(void *arg, const struct engine_part *p)
{
    struct turn *t = arg;
    char *name;
    enum answer_kind kind;
    int rc = 0;
    if (t->answer.over)
        return 0; /* one call was asked for */
    switch (p->kind) {
    case ENGINE_PART_TEXT:
    case ENGINE_PART_THINKING:
        kind = p->kind == ENGINE_PART_TEXT ? ANSWER_MESSAGE : ANSWER_THINKING;
        if (t->item.open && t->item.kind != kind)
            rc = end_item(t, false);
        if (!rc && !t->item.open)
            rc = begin_item(t, kind, NULL, NULL);
        return rc ? rc : say(t, p->text, p->len);
    case ENGINE_PART_THINKING_END:
        return end_item(t, p->broken);
    case ENGINE_PART_CALL:
        name = strndup(p->text, p->len);
        rc = name ? end_item(t, false) : -ENOMEM;
        if (!rc)
            rc = begin_item(t, ANSWER_CALL, name, p->id);
        free(name);
        return rc;
    case ENGINE_PART_ARGUMENTS:
        return say(t, p->text, p->len);
    case ENGINE_PART_CALL_END:
        t->answer.over = t->ask.one_call;
        t->answer.broken_call |= p->broken;
        return end_item(t, p->broken);
    }
    return 0;
}

/* ---- the stream ---- */

static int take_text(struct turn *t, const char *text, size_t len)
{
    if (len == 0)
        return 0;
    int rc = append(&t->text, text, len);
    if (rc)
        return rc;
    return t->calls ? engine_calls_text(t->calls, text, len)
                    : take_part(t, &(struct engine_part){.kind = ENGINE_PART_TEXT, .text = text, .len = len});
}

int answer_begin(struct turn *t)
{
    const struct engine *e = t->session->engine;
    t->stream = engine_stream_new(e, (const char *const *)t->stops, t->n_stops);
    const char *tools = t->tool_choice == SESSION_TOOLS_NONE ? NULL : t->callable ? t->callable : t->tools;
    if (t->stream && t->ask.raw)
        engine_stream_goes_on(t->stream); /* with the context's text */
    if (t->stream && !t->ask.raw && (tools || engine_chat_thinks(e)) &&
        !(t->calls = engine_calls_new(e, tools, take_part, t)))
        return -ENOMEM;
    return t->stream ? 0 : -errno;
}

/* 1: a stop string was completed. */
static int push(struct turn *t, engine_token id)
{
    const char *text = NULL;
    size_t len = 0;
    if (t->calls && engine_calls_is_mark(t->calls, id)) {
        int rc = engine_stream_flush(t->stream, &text, &len);
        rc = rc ? rc : take_text(t, text, len);
        text = engine_token_bytes(t->session->engine, id, &len);
        rc = rc ? rc : append(&t->text, text, len);
        t->n_odds = 0; /* marks are no text, and that before them is told */
        return rc ? rc : engine_calls_mark(t->calls, id);
    }
    int stopped = engine_stream_push(t->stream, id, &text, &len);
    int rc = stopped < 0 ? stopped : take_text(t, text, len);
    return rc ? rc : stopped;
}

/* Text that the answer begins with: of its tokens the context is made, and what it says is known. */
static int take_opening_text(struct turn *t)
{
    int rc = 0;
    size_t len;
    for (int i = t->n_prompt - t->n_opened; !rc && i < t->n_prompt; i++) {
        const char *bytes = engine_token_bytes(t->session->engine, t->context.ids[i], &len);
        rc = append(&t->text, bytes, len);
        if (!rc && t->calls && engine_calls_is_mark(t->calls, t->context.ids[i]))
            rc = engine_calls_mark(t->calls, t->context.ids[i]);
    }
    len = strlen(t->opening);
    if (rc)
        return rc;
    if (len)
        engine_stream_goes_on(t->stream);
    return t->calls ? engine_calls_text(t->calls, t->opening, len)
                    : take_part(t, &(struct engine_part){.kind = ENGINE_PART_TEXT, .text = t->opening, .len = len});
}

int answer_open(struct turn *t)
{
    int rc = 0;
    if (!t->n_opened || t->answer.opened)
        return 0;
    t->answer.opened = true;
    if (t->opening)
        return take_opening_text(t);
    for (int i = t->n_prompt - t->n_opened; i < t->n_prompt && rc == 0; i++)
        rc = push(t, t->context.ids[i]);
    t->end.by_string = rc == 1;
    if (t->calls && !t->continues)
        engine_calls_made(t->calls);
    return rc < 0 ? rc : 0;
}

/* A stop string ended the answer: tokens that hold nothing but what is cut off leave the context, and a token that lies
 * across the cut is replaced by the tokens of its first part. Where the text is not what its tokens' bytes are (U+FFFD
 * in place of broken ones), the rest of it is tokenized anew. */
static int cut(struct turn *t)
{
    const struct engine *e = t->session->engine;
    size_t bytes = 0, len;
    size_t keep = (size_t)(t->n_prompt - t->n_opened);
    while (keep < t->context.n && bytes < t->text.len) {
        const char *token = engine_token_bytes(e, t->context.ids[keep], &len);
        if (bytes == 0 && len && token[0] == ' ' && t->text.text[0] != ' ') /* which the stream has taken off */
            token++, len--;
        if (len > t->text.len - bytes || (len && memcmp(token, t->text.text + bytes, len) != 0))
            break;
        bytes += len;
        keep++;
    }
    if (keep < (size_t)t->n_prompt)
        return 0; /* within what it was made to begin with, which stays */
    t->context.n = keep;
    size_t rest = t->text.len - bytes;
    int rc = !rest   ? 0
             : bytes ? engine_tokenize_rest(e, t->text.text + bytes, rest, &t->context)
                     : engine_tokenize(e, t->text.text, rest, false, &t->context);
    if (!rc && engine_seq_length(t->hot->seq) > (int)keep)
        rc = hot_truncate(t->hot, (int)keep);
    t->n_output = (int)t->context.n - t->n_prompt;
    return rc;
}

int answer_token(struct turn *t, const struct engine_pick *pick)
{
    if (t->end.by_string) { /* in what it was made to begin with: the token behind that is no part of it */
        t->context.n--;
        t->n_output--;
        return 1;
    }
    int rc = note_odds(t, pick);
    rc = rc ? rc : push(t, pick->token);
    t->n_thought += t->calls && engine_calls_thinking(t->calls);
    if (rc == 1) {
        t->end.by_string = true;
        rc = cut(t);
        return rc ? rc : 1;
    }
    return rc ? rc : t->answer.over;
}

int answer_finish(struct turn *t)
{
    const char *text = NULL;
    size_t len = 0;
    int rc = 0;
    if (!t->ask.generate)
        return 0;
    /* It was stopped before its first token, or even before it had a place. */
    bool begun = t->opening || t->opening_ids.n;
    if (begun && ((!t->stream && (rc = answer_begin(t))) || (rc = answer_open(t))))
        return rc;
    if (t->stream && !t->end.by_string && !(rc = engine_stream_finish(t->stream, &text, &len)))
        rc = take_text(t, text, len);
    if (!rc && t->calls)
        rc = engine_calls_finish(t->calls);
    if (rc)
        return rc;
    if (t->answer.broken_call && !t->end.reason)
        t->end.reason = "malformed_call";
    if (!t->n_output_items && (rc = begin_item(t, ANSWER_MESSAGE, NULL, NULL)))
        return rc;
    return end_item(t, t->end.reason != NULL); /* what was cut short is the last of it */
}

void answer_tell(struct turn *t)
{
    for (; t->n_told < t->n_output_items; t->n_told++) {
        struct session_item s = shown(&t->output[t->n_told]);
        turn_emit(t, &(struct session_event){.kind = SESSION_EVENT_ITEM, .item = &s});
        bool opens = t->n_told == 0 && strcmp(s.kind, "message") == 0;
        size_t untold = opens ? opening_bytes(t, s.text, s.len) : 0;
        if (s.len > untold)
            turn_emit(t, &(struct session_event){
                             .kind = SESSION_EVENT_DELTA, .text = s.text + untold, .len = s.len - untold});
        turn_emit(t, &(struct session_event){.kind = SESSION_EVENT_ITEM_END, .item = &s});
    }
}
