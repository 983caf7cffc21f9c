/* calls.c - the parts of an answer, thinking, text and calls of tools, found while it is written.
 *
 * Thinking stands between two marks of its own; the white space around it is nothing.
 *
 * An answer's text goes through; what stands between two marks, or is an object that names a tool where the model is
 * known to leave the marks out, is read byte by byte as {"name": ..., "arguments": ...}, in any order and with whatever
 * other members. White space before a call belongs to neither. What may still become one of these is held back: white
 * space, and at the beginning of a line what a call without marks begins with.
 */
#include "engine/text/chat_private.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define CALL_NAME_MAX 64
#define KEY_MAX       32 /* of names of members that mean something; longer ones do not */

struct buffer {
    char *data;
    size_t n, capacity;
};

/* Where in a call's object the next byte stands. */
enum place {
    AT_OBJECT, /* before it */
    AT_KEY,    /* before a member's name, or its end */
    IN_KEY,
    AT_COLON,
    AT_VALUE,
    IN_VALUE, /* a string, an object or a list */
    IN_WORD,  /* a number, true, false, null */
    AT_COMMA, /* behind a value */
    BEHIND_OBJECT,
    BROKEN,
};

struct engine_calls {
    const struct chat *chat;
    cJSON *tools;
    int (*part)(void *arg, const struct engine_part *part);
    void *arg;
    enum { TEXT, MAYBE, CALL, THINK } state;
    bool thought;       /* THINK: some of it was given out; TEXT: what comes stands behind it */
    bool line;          /* the next byte begins a line */
    bool marked;        /* CALL: it has marks around it */
    bool fenced;        /* or ``` */
    bool text_only;     /* nothing is a call any more */
    size_t object;      /* CALL without marks: where its object begins in held */
    struct buffer held; /* TEXT: white space; MAYBE, CALL: all of it so far */
    size_t lead;        /* MAYBE, CALL: of that, the white space before it */
    /* The call's object. */
    enum place place;
    bool quoted, escaped, begun;
    size_t depth;
    enum { OTHER, NAME, ARGUMENTS } member;
    char key[KEY_MAX + 1];
    size_t key_len;
    struct buffer name, arguments; /* as written; arguments also where they are given out as they come */
    size_t given;                  /* bytes of the arguments */
    bool has_name, has_arguments, streams;
};

static int append(struct buffer *b, const char *bytes, size_t n)
{
    if (b->capacity - b->n < n) {
        size_t capacity = b->capacity ? b->capacity : 64;
        while (capacity - b->n < n)
            capacity *= 2;
        char *grown = realloc(b->data, capacity);
        if (grown == NULL)
            return -ENOMEM;
        b->data = grown;
        b->capacity = capacity;
    }
    memcpy(b->data + b->n, bytes, n);
    b->n += n;
    return 0;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

struct engine_calls *calls_new(const struct chat *chat, const char *tools,
                               int (*part)(void *arg, const struct engine_part *part), void *arg)
{
    if (tools != NULL ? !chat->tools : !chat_thinks(chat)) {
        errno = ENOTSUP;
        return NULL;
    }
    struct engine_calls *c = calloc(1, sizeof *c);
    if (c != NULL && tools != NULL && (c->tools = cJSON_Parse(tools)) == NULL) {
        free(c);
        c = NULL;
    }
    if (c == NULL) {
        errno = ENOMEM;
        return NULL;
    }
    c->chat = chat;
    c->part = part;
    c->arg = arg;
    c->line = true;
    c->state = chat->opens_thinking && chat_thinks(chat) ? THINK : TEXT;
    return c;
}

void engine_calls_free(struct engine_calls *c)
{
    if (c == NULL)
        return;
    cJSON_Delete(c->tools);
    free(c->held.data);
    free(c->name.data);
    free(c->arguments.data);
    free(c);
}

bool engine_calls_is_mark(const struct engine_calls *c, engine_token id)
{
    const struct chat *chat = c->chat;
    return (c->tools != NULL && (id == chat->call_mark || id == chat->call_end_mark)) ||
           (chat_thinks(chat) && (id == chat->think_mark || id == chat->think_end_mark));
}

int engine_calls_openings(const struct engine_calls *c, engine_token marks[2])
{
    int n = 0;
    if (c->tools != NULL && c->chat->call_mark >= 0)
        marks[n++] = c->chat->call_mark;
    if (chat_thinks(c->chat) && c->chat->think_mark >= 0)
        marks[n++] = c->chat->think_mark;
    return n;
}

engine_token engine_calls_closing(const struct engine_calls *c)
{
    return c->state == CALL && c->marked ? c->chat->call_end_mark : -1;
}

const char *engine_calls_object(const struct engine_calls *c, size_t *len)
{
    *len = c->state == CALL && !c->marked ? c->held.n - c->object : 0;
    return *len > 0 ? c->held.data + c->object : "";
}

bool engine_calls_may_be_bare(const struct engine_calls *c)
{
    return c->tools != NULL && c->chat->bare_calls && !c->text_only;
}

void engine_calls_text_only(struct engine_calls *c)
{
    c->text_only = true;
}

enum engine_within engine_calls_within(const struct engine_calls *c)
{
    return c->state == CALL ? ENGINE_WITHIN_CALL : c->state == THINK ? ENGINE_WITHIN_THINKING : ENGINE_WITHIN_TEXT;
}

/* ---- giving parts out ---- */

static int give(struct engine_calls *c, int kind, const char *text, size_t len, bool broken)
{
    struct engine_part p = {.kind = kind, .text = text, .len = len, .broken = broken};
    return c->part(c->arg, &p);
}

/* What is held is text after all. */
static int give_held(struct engine_calls *c)
{
    size_t n = c->held.n, space = 0;
    while (c->thought && space < n && is_space(c->held.data[space]))
        space++;
    c->held.n = c->lead = 0;
    c->state = TEXT;
    if (n == space)
        return 0;
    c->thought = false;
    if (space > 0)
        return give(c, ENGINE_PART_TEXT, c->held.data + space, n - space, false);
    return give(c, ENGINE_PART_TEXT, c->held.data, n, false);
}

/* A piece of thinking: white space waits for what is behind it. */
static int think(struct engine_calls *c, const char *text, size_t len)
{
    int rc = append(&c->held, text, len);
    size_t end = c->held.n, start = 0;
    while (end > 0 && is_space(c->held.data[end - 1]))
        end--;
    while (!c->thought && start < end && is_space(c->held.data[start]))
        start++;
    if (rc || start == end)
        return rc;
    c->thought = true;
    rc = give(c, ENGINE_PART_THINKING, c->held.data + start, end - start, false);
    memmove(c->held.data, c->held.data + end, c->held.n - end);
    c->held.n -= end;
    return rc;
}

static int end_thinking(struct engine_calls *c, bool cut)
{
    bool any = c->thought;
    c->held.n = c->lead = 0;
    c->state = TEXT;
    c->line = c->thought = true;
    return any ? give(c, ENGINE_PART_THINKING_END, NULL, 0, cut) : 0;
}

static void start_object(struct engine_calls *c)
{
    c->state = CALL;
    c->place = AT_OBJECT;
    c->quoted = c->escaped = c->begun = c->has_name = c->has_arguments = c->streams = false;
    c->depth = 0;
    c->name.n = c->arguments.n = c->given = 0;
}

/* A string as it was written, quotes included, decoded: malloc'd, NULL: it is none. */
static char *decoded(const struct buffer *b)
{
    cJSON *v = cJSON_ParseWithLength(b->data, b->n);
    char *text = cJSON_IsString(v) ? strdup(v->valuestring) : NULL;
    cJSON_Delete(v);
    return text;
}

/* The call becomes known with its name. */
static int begin(struct engine_calls *c)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
    char *name = decoded(&c->name);
    /* A client must be able to send it back. */
    if (name == NULL || name[0] == '\0' || strlen(name) > CALL_NAME_MAX || name[strspn(name, letters)] != '\0') {
        c->place = BROKEN;
        free(name);
        return 0;
    }
    int rc = give(c, ENGINE_PART_CALL, name, strlen(name), false);
    free(name);
    c->begun = true;
    return rc;
}

/* What has come of the arguments since they were given out last. */
static int give_new_arguments(struct engine_calls *c)
{
    size_t from = c->given, n = c->arguments.n - from;
    if (c->state != CALL || !c->streams || n == 0)
        return 0;
    c->given = c->arguments.n;
    return give(c, ENGINE_PART_ARGUMENTS, c->arguments.data + from, n, false);
}

/* The arguments, where they were not given out as they came. */
static int give_arguments(struct engine_calls *c, bool *broken)
{
    int rc = 0;
    if (c->streams || !c->has_arguments)
        return c->has_arguments ? 0 : give(c, ENGINE_PART_ARGUMENTS, "{}", 2, false);
    if (c->arguments.data[0] == '"') { /* an object in a string */
        char *text = decoded(&c->arguments);
        *broken |= text == NULL;
        c->arguments.n = 0;
        if (text != NULL && (rc = append(&c->arguments, text, strlen(text))) == 0)
            rc = give(c, ENGINE_PART_ARGUMENTS, text, strlen(text), false);
        free(text);
        return rc;
    }
    if (c->arguments.n == 4 && memcmp(c->arguments.data, "null", 4) == 0) {
        c->has_arguments = false;
        return give(c, ENGINE_PART_ARGUMENTS, "{}", 2, false);
    }
    return give(c, ENGINE_PART_ARGUMENTS, c->arguments.data, c->arguments.n, false);
}

/* The call is over, one way or another. */
static int end(struct engine_calls *c)
{
    bool broken = c->place != BEHIND_OBJECT;
    int rc = give_new_arguments(c);
    if (rc)
        return rc;
    c->state = TEXT;
    if (!c->begun && !broken && c->has_name) {
        rc = begin(c);
        broken = c->place == BROKEN;
    }
    if (!c->begun)
        return rc ? rc : give_held(c);
    if (rc == 0 && !broken)
        rc = give_arguments(c, &broken);
    if (rc == 0 && c->has_arguments && !broken) {
        char *checked = NULL;
        size_t len;
        int wrong = text_json(c->arguments.data, c->arguments.n, false, &checked, &len);
        broken = wrong == -EINVAL;
        rc = broken ? 0 : wrong;
        free(checked);
    }
    c->held.n = c->lead = 0;
    c->line = true;
    return rc ? rc : give(c, ENGINE_PART_CALL_END, NULL, 0, broken);
}

/* ---- a call's object, byte by byte ---- */

static int end_value(struct engine_calls *c)
{
    c->place = AT_COMMA;
    if (c->member == NAME) {
        c->has_name = true;
        return 0;
    }
    c->has_arguments |= c->member == ARGUMENTS;
    return 0;
}

static int value_byte(struct engine_calls *c, char byte)
{
    return c->member == NAME        ? append(&c->name, &byte, 1)
           : c->member == ARGUMENTS ? append(&c->arguments, &byte, 1)
                                    : 0;
}

static int begin_value(struct engine_calls *c, char byte)
{
    int rc = 0;
    c->member = c->key_len == 4 && memcmp(c->key, "name", 4) == 0 ? NAME
                : (c->key_len == 9 && memcmp(c->key, "arguments", 9) == 0) ||
                        (c->key_len == 10 && memcmp(c->key, "parameters", 10) == 0)
                    ? ARGUMENTS
                    : OTHER;
    if ((c->member == NAME && (c->has_name || byte != '"')) || (c->member == ARGUMENTS && c->has_arguments)) {
        c->place = BROKEN;
        return 0;
    }
    if (c->member == ARGUMENTS && c->has_name) {
        rc = begin(c);
        c->streams = byte == '{';
        if (rc || c->place == BROKEN)
            return rc;
    }
    c->quoted = byte == '"';
    c->depth = byte == '{' || byte == '[';
    c->place = c->quoted || c->depth ? IN_VALUE : IN_WORD;
    return value_byte(c, byte);
}

static int object_byte(struct engine_calls *c, char byte);

static int in_value(struct engine_calls *c, char byte)
{
    int rc = value_byte(c, byte);
    if (c->escaped)
        c->escaped = false;
    else if (c->quoted && byte == '\\')
        c->escaped = true;
    else if (byte == '"')
        c->quoted = !c->quoted;
    else if (!c->quoted && (byte == '{' || byte == '['))
        c->depth++;
    else if (!c->quoted && (byte == '}' || byte == ']'))
        c->depth--;
    return rc || c->quoted || c->depth ? rc : end_value(c);
}

static int object_byte(struct engine_calls *c, char byte)
{
    switch (c->place) {
    case IN_VALUE:
        return in_value(c, byte);
    case IN_KEY:
        if (byte == '"')
            c->place = AT_COLON;
        else if (c->key_len <= KEY_MAX)
            c->key[c->key_len++] = byte; /* one with escapes means nothing, but ends at its quote all the same */
        if (byte == '\\')
            c->place = BROKEN;
        return 0;
    case IN_WORD:
        if (byte != ',' && byte != '}' && !is_space(byte))
            return value_byte(c, byte);
        (void)end_value(c);
        return object_byte(c, byte);
    default:
        break;
    }
    if (is_space(byte))
        return 0;
    switch (c->place) {
    case AT_OBJECT:
        c->place = byte == '{' ? AT_KEY : BROKEN;
        break;
    case AT_KEY:
        c->key_len = 0;
        c->place = byte == '"' ? IN_KEY : byte == '}' ? BEHIND_OBJECT : BROKEN;
        break;
    case AT_COLON:
        c->place = byte == ':' ? AT_VALUE : BROKEN;
        break;
    case AT_VALUE:
        return begin_value(c, byte);
    case AT_COMMA:
        c->place = byte == ',' ? AT_KEY : byte == '}' ? BEHIND_OBJECT : BROKEN;
        break;
    default:
        c->place = BROKEN;
        break;
    }
    return 0;
}

/* ---- calls without marks ---- */

static bool names_tool(const struct engine_calls *c, const char *name, size_t len)
{
    const cJSON *tool;
    cJSON_ArrayForEach(tool, c->tools)
    {
        const cJSON *known =
            cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(tool, "function"), "name");
        if (cJSON_IsString(known) && strlen(known->valuestring) == len && memcmp(known->valuestring, name, len) == 0)
            return true;
    }
    return false;
}

/* What is held back is looked at again with each byte, so it is short. */
#define FENCE_WORD_MAX 16
#define BLANK_MAX      8 /* as a form of calls allows */

/* Holds text against ```json {"name": "TOOL", where all but the object's beginning may be missing. 1: it is that, and
 * *object is where the object begins; 0: it may become that; -1: it is not. */
static int begins_call(const struct engine_calls *c, const char *text, size_t len, size_t *object, bool *fenced)
{
    static const char *const WORDS[] = {"{", "\"name\"", ":", "\""};
    size_t i = 0;
    *fenced = text[0] == '`';
    if (*fenced) {
        for (; i < 3; i++) {
            if (i == len)
                return 0;
            if (text[i] != '`')
                return -1;
        }
        while (i < len && text[i] >= 'a' && text[i] <= 'z')
            i++;
        if (i > 3 + FENCE_WORD_MAX)
            return -1;
    }
    for (size_t w = 0; w < sizeof WORDS / sizeof *WORDS; w++) {
        size_t blank = i;
        while (i < len && is_space(text[i]))
            i++;
        if (i - blank > BLANK_MAX)
            return -1;
        if (w == 0)
            *object = i;
        for (const char *p = WORDS[w]; *p != '\0'; p++, i++) {
            if (i == len)
                return 0;
            if (text[i] != *p)
                return -1;
        }
    }
    const char *quote = memchr(text + i, '"', len - i);
    if (quote == NULL)
        return len - i > 256 ? -1 : 0;
    return names_tool(c, text + i, (size_t)(quote - text) - i) ? 1 : -1;
}

static int text_byte(struct engine_calls *c, char byte);

static int call_byte(struct engine_calls *c, char byte)
{
    int rc = append(&c->held, &byte, 1);
    if (rc)
        return rc;
    if (c->fenced && !c->marked && c->place == BEHIND_OBJECT && byte == '`') {
        size_t n = 0;
        while (n < c->held.n && c->held.data[c->held.n - 1 - n] == '`')
            n++;
        return n == 3 ? end(c) : 0;
    }
    if (c->fenced && !c->marked && c->place == BEHIND_OBJECT && !is_space(byte)) { /* its fence is missing */
        c->held.n--;
        rc = end(c);
        return rc ? rc : text_byte(c, byte);
    }
    rc = object_byte(c, byte);
    if (rc || c->marked)
        return rc;
    return c->place == BROKEN || (c->place == BEHIND_OBJECT && !c->fenced) ? end(c) : 0;
}

static int maybe(struct engine_calls *c)
{
    size_t object = 0;
    int is = begins_call(c, c->held.data + c->lead, c->held.n - c->lead, &object, &c->fenced);
    if (is < 0 || c->text_only)
        return give_held(c);
    if (is == 0)
        return 0;
    start_object(c);
    c->marked = false;
    c->object = c->lead + object;
    for (size_t i = c->lead + object; i < c->held.n; i++) {
        int rc = object_byte(c, c->held.data[i]);
        if (rc)
            return rc;
    }
    return 0;
}

static int text_byte(struct engine_calls *c, char byte)
{
    bool line = c->line;
    c->line = byte == '\n' || (line && is_space(byte));
    if (c->state == CALL)
        return call_byte(c, byte);
    if (c->state == TEXT && line && engine_calls_may_be_bare(c) && (byte == '`' || byte == '{')) {
        c->state = MAYBE;
        c->lead = c->held.n;
    }
    int rc = append(&c->held, &byte, 1);
    if (rc)
        return rc;
    if (c->state == MAYBE)
        return maybe(c);
    return is_space(byte) ? 0 : give_held(c);
}

/* ---- what the session calls ---- */

int engine_calls_text(struct engine_calls *c, const char *text, size_t len)
{
    if (c->state == THINK)
        return think(c, text, len);
    for (size_t i = 0; i < len;) {
        /* Plain text goes out in one piece. */
        size_t n = 0;
        while (c->state == TEXT && i + n < len && !is_space(text[i + n]) &&
               !(c->line && engine_calls_may_be_bare(c) && (text[i + n] == '`' || text[i + n] == '{')))
            n++, c->line = false;
        if (n > 0) {
            int rc = append(&c->held, text + i, n);
            rc = rc ? rc : give_held(c);
            if (rc)
                return rc;
            i += n;
            continue;
        }
        int rc = text_byte(c, text[i++]);
        if (rc)
            return rc;
    }
    return give_new_arguments(c);
}

static int hold_mark(struct engine_calls *c, const char *mark)
{
    return append(&c->held, mark, strlen(mark));
}

/* What is begun and not over stays behind. */
static int leave(struct engine_calls *c)
{
    return c->state == CALL    ? end(c)
           : c->state == THINK ? end_thinking(c, false)
           : c->state == MAYBE ? give_held(c)
                               : 0;
}

static int think_mark(struct engine_calls *c, engine_token id)
{
    if (id == c->chat->think_mark && c->state == THINK)
        return 0; /* it was opened already */
    int rc = leave(c);
    if (rc)
        return rc;
    if (id == c->chat->think_end_mark) {
        c->held.n = 0;
        c->thought = true;
        return 0;
    }
    c->held.n = 0;
    c->state = THINK;
    c->thought = false;
    return 0;
}

int engine_calls_mark(struct engine_calls *c, engine_token id)
{
    int rc = 0;
    if (id == c->chat->think_mark || id == c->chat->think_end_mark)
        return think_mark(c, id);
    if (id == c->chat->call_mark) {
        if ((rc = leave(c)))
            return rc;
        c->lead = c->held.n;
        start_object(c);
        c->marked = true;
        c->fenced = false;
        return hold_mark(c, "<tool_call>");
    }
    if (c->state == THINK && (rc = leave(c)))
        return rc;
    rc = hold_mark(c, "</tool_call>");
    if (rc)
        return rc;
    return c->state == CALL ? end(c) : give_held(c);
}

int engine_calls_finish(struct engine_calls *c)
{
    return c->state == CALL ? end(c) : c->state == THINK ? end_thinking(c, true) : give_held(c);
}
