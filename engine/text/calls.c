/* calls.c - the parts of an answer, thinking, text and calls of tools, found while it is written.
 *
 * Thinking stands between two marks of its own; the white space around it is nothing.
 *
 * An answer's text goes through; what stands behind a mark, or is an object that names a tool where the model is known
 * to leave the marks out, is a call, and read byte by byte (calls_object.c, calls_xml.c). White space before a call
 * belongs to neither. What may still become a call is held back: white space, and at the beginning of a line what a
 * call without marks begins with.
 *
 * Harmony writes an answer as several messages, each with a head that says what it is: `analysis` is thinking, what is
 * addressed to a function a call, and all else text. A head has no text that anybody sees.
 */
#include "engine/text/calls_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char TO[] = "to=functions.";
#define CHANNEL ((unsigned char)CHAT_MARK_CHANNEL[0])

int buffer_append(struct buffer *b, const char *bytes, size_t n)
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
    if (n > 0)
        memcpy(b->data + b->n, bytes, n);
    b->n += n;
    return 0;
}

bool calls_is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static bool is_harmony(const struct engine_calls *c)
{
    return c->chat->start >= 0;
}

struct engine_calls *calls_new(const struct chat *chat, const char *tools,
                               int (*part)(void *arg, const struct engine_part *part), void *arg)
{
    if (tools != NULL ? chat->syntax == ENGINE_CALLS_NONE : !chat_thinks(chat)) {
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
    c->state = is_harmony(c) ? HEAD : chat->opens_thinking && chat_thinks(chat) ? THINK : TEXT;
    return c;
}

void engine_calls_free(struct engine_calls *c)
{
    if (c == NULL)
        return;
    cJSON_Delete(c->tools);
    free(c->held.data);
    free(c->name.data);
    free(c->id.data);
    free(c->arguments.data);
    free(c->piece.data);
    free(c);
}

/* ---- what the session asks ---- */

bool engine_calls_is_inner(const struct engine_calls *c, engine_token id)
{
    return (c->state == CALL || c->state == HEAD) && chat_mark_bytes(c->chat, id) != NULL;
}

bool engine_calls_is_mark(const struct engine_calls *c, engine_token id)
{
    const struct chat *chat = c->chat;
    if (id < 0)
        return false;
    if (is_harmony(c))
        return id == chat->start || id == chat->channel || id == chat->message || id == chat->constrain ||
               id == chat->end;
    return (c->tools != NULL &&
            (id == chat->call_mark || id == chat->call_end_mark || chat_mark_bytes(chat, id) != NULL)) ||
           id == chat->think_mark || id == chat->think_end_mark;
}

int engine_calls_openings(const struct engine_calls *c, engine_token marks[2])
{
    int n = 0;
    if (c->tools != NULL && c->chat->call_mark >= 0)
        marks[n++] = c->chat->call_mark;
    if (c->chat->think_mark >= 0 && c->chat->think_end_mark >= 0)
        marks[n++] = c->chat->think_mark;
    return n;
}

engine_token engine_calls_closing(const struct engine_calls *c)
{
    return c->state == CALL && c->marked ? c->chat->call_end_mark : -1;
}

bool engine_calls_open_end(const struct engine_calls *c)
{
    enum engine_call_syntax syntax = c->chat->syntax;
    return engine_calls_closing(c) < 0 && syntax != ENGINE_CALLS_HARMONY && syntax != ENGINE_CALLS_LLAMA;
}

const char *engine_calls_begun(struct engine_calls *c, size_t *len)
{
    size_t from = c->object;
    if (c->state == HEAD) { /* the name follows where it is addressed */
        const char *to = c->held.n > 0 ? memmem(c->held.data, c->held.n, TO, strlen(TO)) : NULL;
        from = to != NULL ? (size_t)(to - c->held.data) + strlen(TO) : c->held.n;
    } else if (c->state == MAYBE) {
        from = c->lead;
    } else if (c->state != CALL) {
        from = c->held.n;
    }
    *len = c->held.n - from;
    return *len > 0 ? c->held.data + from : "";
}

bool engine_calls_may_be_bare(const struct engine_calls *c)
{
    return c->tools != NULL && c->chat->bare_calls && !c->text_only;
}

void engine_calls_made(struct engine_calls *c)
{
    c->forced = c->state == MAYBE;
}

void engine_calls_text_only(struct engine_calls *c)
{
    c->text_only = true;
}

static const char *name_of(const cJSON *tool)
{
    return cJSON_GetStringValue(
        cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(tool, "function"), "name"));
}

static bool names_tool(const struct engine_calls *c, const char *name, size_t len)
{
    const cJSON *tool;
    cJSON_ArrayForEach(tool, c->tools)
    {
        const char *known = name_of(tool);
        if (known != NULL && strlen(known) == len && memcmp(known, name, len) == 0)
            return true;
    }
    return false;
}

/* Whether a head that is being written can only become that of a call as its form describes it: the role is addressed
 * to a tool, or to the beginning of one's name. */
static bool calls_in_head(const struct engine_calls *c)
{
    const char *head = c->held.data, *to = c->held.n > 0 ? memmem(head, c->held.n, TO, strlen(TO)) : NULL;
    const cJSON *tool;
    if (to == NULL || memchr(head, CHANNEL, (size_t)(to - head)) != NULL)
        return false;
    const char *name = to + strlen(TO), *end = memchr(name, CHANNEL, (size_t)(head + c->held.n - name));
    size_t len = (size_t)((end != NULL ? end : head + c->held.n) - name);
    if (end != NULL)
        return names_tool(c, name, len);
    cJSON_ArrayForEach(tool, c->tools)
    {
        const char *known = name_of(tool);
        if (known != NULL && strlen(known) >= len && memcmp(known, name, len) == 0)
            return true;
    }
    return false;
}

enum engine_within engine_calls_within(const struct engine_calls *c)
{
    if (c->state == HEAD)
        return calls_in_head(c) ? ENGINE_WITHIN_CALL : ENGINE_WITHIN_THINKING;
    return c->state == CALL || (c->state == MAYBE && c->forced) ? ENGINE_WITHIN_CALL
           : c->state == THINK                                  ? ENGINE_WITHIN_THINKING
                                                                : ENGINE_WITHIN_TEXT;
}

bool engine_calls_thinking(const struct engine_calls *c)
{
    return c->state == THINK;
}

/* ---- giving parts out ---- */

int calls_give(struct engine_calls *c, int kind, const char *text, size_t len, bool broken)
{
    struct engine_part p = {.kind = kind, .text = text, .len = len, .broken = broken};
    return c->part(c->arg, &p);
}

/* What is held is text after all. */
static int give_held(struct engine_calls *c)
{
    size_t n = c->held.n, space = 0;
    while (c->thought && space < n && calls_is_space(c->held.data[space]))
        space++;
    c->held.n = c->lead = 0;
    c->state = TEXT;
    c->forced = false;
    if (n == space)
        return 0;
    c->thought = false;
    return calls_give(c, ENGINE_PART_TEXT, c->held.data + space, n - space, false);
}

/* A piece of thinking: white space waits for what is behind it. */
static int think(struct engine_calls *c, const char *text, size_t len)
{
    int rc = buffer_append(&c->held, text, len);
    size_t end = c->held.n, start = 0;
    while (end > 0 && calls_is_space(c->held.data[end - 1]))
        end--;
    while (!c->thought && start < end && calls_is_space(c->held.data[start]))
        start++;
    if (rc || start == end)
        return rc;
    c->thought = true;
    rc = calls_give(c, ENGINE_PART_THINKING, c->held.data + start, end - start, false);
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
    return any ? calls_give(c, ENGINE_PART_THINKING_END, NULL, 0, cut) : 0;
}

static int end(struct engine_calls *c)
{
    bool text = false;
    int rc = calls_end(c, &text);
    if (rc || !text)
        return rc;
    for (size_t i = 0; i < c->held.n; i++) /* marks within it have no text */
        if ((unsigned char)c->held.data[i] >= CHAT_MARK_FIRST) {
            memmove(c->held.data + i, c->held.data + i + 1, c->held.n - i - 1);
            c->held.n--;
            i--;
        }
    return give_held(c);
}

/* ---- calls without marks ---- */

/* What is held back is looked at again with each byte, so it is short. */
#define FENCE_WORD_MAX 16
#define BLANK_MAX      8 /* as a form of calls allows */

/* Whether a call without marks may begin with this byte: at a line's beginning, or behind what divides it from the one
 * before it. */
static bool may_begin(const struct engine_calls *c, char byte)
{
    return engine_calls_may_be_bare(c) &&
           ((c->line && (byte == '`' || byte == '{')) || (c->behind_call && byte == ';'));
}

/* Holds text against ```json {"name": "TOOL", where all but the object's beginning may be missing, or a semicolon
 * stands instead. 1: it is that, and *object is where the object begins; 0: it may become that; -1: it is not. */
static int begins_call(const struct engine_calls *c, const char *text, size_t len, size_t *object, bool *fenced)
{
    static const char *const WORDS[] = {"{", "\"name\"", ":", "\""};
    size_t i = text[0] == ';';
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
        while (i < len && calls_is_space(text[i]))
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

/* Behind an object of a list: another one, or the list's end. */
static int list_byte(struct engine_calls *c, char byte)
{
    int rc = end(c);
    if (rc || byte == ']')
        return rc;
    calls_start(c, AT_OBJECT);
    return 0;
}

static int call_byte(struct engine_calls *c, char byte)
{
    enum engine_call_syntax syntax = c->chat->syntax;
    int rc = buffer_append(&c->held, &byte, 1);
    if (rc)
        return rc;
    if (syntax == ENGINE_CALLS_XML && c->marked)
        return calls_xml_byte(c, byte);
    if (c->fenced && !c->marked && c->place == BEHIND_OBJECT && byte == '`') {
        size_t n = 0;
        while (n < c->held.n && c->held.data[c->held.n - 1 - n] == '`')
            n++;
        return n == 3 ? end(c) : 0;
    }
    if (c->fenced && !c->marked && c->place == BEHIND_OBJECT && !calls_is_space(byte)) { /* its fence is missing */
        c->held.n--;
        rc = end(c);
        return rc ? rc : text_byte(c, byte);
    }
    if ((syntax == ENGINE_CALLS_MISTRAL_LIST || syntax == ENGINE_CALLS_MISTRAL_LIST_ID) && c->place == BEHIND_OBJECT &&
        (byte == ',' || byte == ']'))
        return list_byte(c, byte);
    if (syntax == ENGINE_CALLS_LLAMA && c->marked && c->place == BEHIND_OBJECT && byte == ';') { /* another follows */
        c->held.n--;
        rc = end(c);
        return rc ? rc : text_byte(c, byte);
    }
    rc = calls_object_byte(c, byte);
    bool alone = syntax == ENGINE_CALLS_MISTRAL || syntax == ENGINE_CALLS_MISTRAL_ID; /* it ends with its object */
    if (rc || (c->marked && !(alone && c->place == BEHIND_OBJECT)))
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
    calls_start(c, AT_OBJECT);
    c->marked = false;
    c->object = c->lead + object;
    for (size_t i = c->lead + object; i < c->held.n; i++) {
        int rc = calls_object_byte(c, c->held.data[i]);
        if (rc)
            return rc;
    }
    return 0;
}

static int text_byte(struct engine_calls *c, char byte)
{
    bool begins = c->state == TEXT && may_begin(c, byte);
    c->line = byte == '\n' || (c->line && calls_is_space(byte));
    c->behind_call = c->behind_call && calls_is_space(byte);
    if (c->state == CALL)
        return call_byte(c, byte);
    if (begins) {
        c->state = MAYBE;
        c->lead = c->held.n;
    }
    int rc = buffer_append(&c->held, &byte, 1);
    if (rc)
        return rc;
    if (c->state == MAYBE)
        return maybe(c);
    return calls_is_space(byte) ? 0 : give_held(c);
}

/* ---- marks ---- */

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
    c->held.n = 0;
    if (id == c->chat->think_end_mark) {
        c->thought = true;
        return 0;
    }
    c->state = THINK;
    c->thought = false;
    return 0;
}

/* The mark that a call begins with. */
static int call_mark(struct engine_calls *c)
{
    static const struct {
        const char *mark;
        enum place place;
    } begins[] = {
        [ENGINE_CALLS_HERMES] = {"<tool_call>", AT_OBJECT},
        [ENGINE_CALLS_XML] = {"<tool_call>", AT_FUNCTION},
        [ENGINE_CALLS_LLAMA] = {"", AT_OBJECT},
        [ENGINE_CALLS_MISTRAL_LIST] = {"[TOOL_CALLS]", AT_LIST},
        [ENGINE_CALLS_MISTRAL_LIST_ID] = {"[TOOL_CALLS]", AT_LIST},
        [ENGINE_CALLS_MISTRAL] = {"[TOOL_CALLS]", AT_NAME},
        [ENGINE_CALLS_MISTRAL_ID] = {"[TOOL_CALLS]", AT_NAME},
        [ENGINE_CALLS_HARMONY] = {"", AT_VALUE},
    };
    int rc = leave(c);
    if (rc)
        return rc;
    c->lead = c->held.n;
    calls_start(c, begins[c->chat->syntax].place);
    c->marked = true;
    c->fenced = false;
    rc = buffer_append(&c->held, begins[c->chat->syntax].mark, strlen(begins[c->chat->syntax].mark));
    c->object = c->held.n;
    return rc;
}

/* A mark within a call of Mistral's. Anywhere else it is nothing. */
static int inner_mark(struct engine_calls *c, engine_token id)
{
    const char *bytes = chat_mark_bytes(c->chat, id);
    if (c->state != CALL)
        return 0;
    int rc = buffer_append(&c->held, bytes, strlen(bytes));
    if (rc)
        return rc;
    if (c->place == AT_NAME && id == c->chat->call_id)
        c->place = IN_ID;
    else if ((c->place == AT_NAME || c->place == IN_ID) && id == c->chat->args)
        return calls_named(c);
    else
        c->place = BROKEN;
    return 0;
}

/* ---- Harmony ---- */

/* Where a head's recipient is the name of a tool: its length, and where it begins. 0: it is none. */
static size_t recipient(const struct engine_calls *c, const char **name)
{
    const char *head = c->held.data, *to = c->held.n > 0 ? memmem(head, c->held.n, TO, strlen(TO)) : NULL;
    if (to == NULL)
        return 0;
    *name = to + strlen(TO);
    size_t len = 0, most = (size_t)(head + c->held.n - *name);
    while (len < most && !calls_is_space((*name)[len]) && (unsigned char)(*name)[len] < CHAT_MARK_FIRST)
        len++;
    return names_tool(c, *name, len) ? len : 0;
}

/* A head is whole: what it says comes. */
static int end_head(struct engine_calls *c)
{
    static const char CHANNEL_BODY[] = CHAT_MARK_CHANNEL "commentary json" CHAT_MARK_MESSAGE, ANALYSIS[] = "analysis";
    const char *name = NULL, *channel = c->held.n > 0 ? memchr(c->held.data, CHANNEL, c->held.n) : NULL;
    size_t len = recipient(c, &name), left = channel != NULL ? c->held.n - (size_t)(channel + 1 - c->held.data) : 0;
    if (len == 0) {
        bool thinks = left >= strlen(ANALYSIS) && memcmp(channel + 1, ANALYSIS, strlen(ANALYSIS)) == 0;
        c->held.n = c->lead = 0;
        c->state = thinks ? THINK : TEXT;
        c->thought = false;
        c->line = true;
        return 0;
    }
    /* As the form of calls has it, whatever order the head was in. */
    calls_start(c, AT_NAME);
    int rc = buffer_append(&c->name, name, len);
    c->held.n = c->lead = c->object = 0;
    c->marked = true;
    c->fenced = false;
    rc = rc ? rc : buffer_append(&c->held, c->name.data, c->name.n);
    rc = rc ? rc : buffer_append(&c->held, CHANNEL_BODY, strlen(CHANNEL_BODY));
    return rc ? rc : calls_named(c);
}

static int harmony_mark(struct engine_calls *c, engine_token id)
{
    const char *bytes = chat_mark_bytes(c->chat, id);
    int rc = 0;
    if (id == c->chat->message && c->state == HEAD)
        return end_head(c);
    if (c->state == HEAD)
        return bytes != NULL ? buffer_append(&c->held, bytes, 1) : buffer_append(&c->held, " ", 1);
    if ((rc = leave(c)))
        return rc;
    if (id == c->chat->start) {
        c->held.n = c->lead = 0;
        c->state = HEAD;
    }
    return 0;
}

/* ---- what the session calls ---- */

int engine_calls_text(struct engine_calls *c, const char *text, size_t len)
{
    if (c->state == THINK)
        return think(c, text, len);
    if (c->state == HEAD)
        return buffer_append(&c->held, text, len);
    for (size_t i = 0; i < len;) {
        /* Plain text goes out in one piece. */
        size_t n = 0;
        while (c->state == TEXT && i + n < len && !calls_is_space(text[i + n]) && !may_begin(c, text[i + n]))
            n++, c->line = c->behind_call = false;
        if (n > 0) {
            int rc = buffer_append(&c->held, text + i, n);
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
    int rc = c->state == CALL && c->chat->syntax == ENGINE_CALLS_XML ? calls_xml_flush(c) : 0;
    return rc ? rc : calls_give_new(c);
}

int engine_calls_mark(struct engine_calls *c, engine_token id)
{
    int rc = 0;
    if (is_harmony(c))
        return harmony_mark(c, id);
    if (id == c->chat->think_mark || id == c->chat->think_end_mark)
        return think_mark(c, id);
    if (id == c->chat->call_mark)
        return call_mark(c);
    if (chat_mark_bytes(c->chat, id) != NULL)
        return inner_mark(c, id);
    if (c->state == THINK && (rc = leave(c)))
        return rc;
    rc = buffer_append(&c->held, "</tool_call>", strlen("</tool_call>"));
    if (rc)
        return rc;
    return c->state == CALL ? end(c) : give_held(c);
}

int engine_calls_finish(struct engine_calls *c)
{
    if (c->state == HEAD) { /* one without a channel was none */
        bool text = c->held.n > 0 && memchr(c->held.data, CHANNEL, c->held.n) == NULL &&
                    memmem(c->held.data, c->held.n, TO, strlen(TO)) == NULL;
        if (!text)
            c->held.n = 0;
    }
    return c->state == CALL ? end(c) : c->state == THINK ? end_thinking(c, true) : give_held(c);
}
