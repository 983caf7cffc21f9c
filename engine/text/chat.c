/* chat.c - renders messages as tokens.
 *
 * A file's template is a program in a template language. It is not run: five families of formats are recognised by
 * their marks, and what differs between members of a family (a default system prompt, where spaces go) is read out of
 * the template's text.
 *
 * Between two control tokens, what the template writes and what a user wrote are tokenized as one text, as they would
 * be in the rendered whole; the control tokens themselves are put in as ids. So no text can forge one. (The oldest
 * Mistral and Llama 2 models write their marks as plain text: there a user's "[/INST]" is as good as the template's.)
 *
 * Two things a template may do are left out, because they would change what is already in the context: today's date,
 * and moving the system prompt to the latest user message.
 */
#include "engine/text/text.h"

#include "engine/text/utf8_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum format { CHATML, LLAMA3, GEMMA, MISTRAL, LLAMA2, FORMATS };

static const char *const NAMES[FORMATS] = {"chatml", "llama3", "gemma", "mistral", "llama2"};

struct chat {
    enum format format;
    bool bos;                  /* the context begins with BOS */
    engine_token start, end;   /* around a message, or -1: written as text */
    engine_token header_end;   /* Llama 3: after the role */
    engine_token system_start; /* Mistral v7: around the system prompt, or -1 */
    engine_token system_end;
    char *system_default; /* written when there is no system message; NULL: nothing */
    char *system_prefix;  /* written before every system prompt, which is then never absent; NULL: nothing */
    char *system_suffix;  /* between the system prompt and the first user message where they share a turn */
    /* Mistral and Llama 2: where spaces go. */
    bool space_before_inst, space_after_inst, space_before_end, space_before_answer, space_after_answer;
    bool trim_user, trim_answer;
    bool bos_each_turn;
};

/* ---- reading a template ------------------------------------------------------------------------------------------ */

struct template
{
    const char *text;
    size_t len;
};

static const char *find_from(const struct template *t, const char *from, const char *what)
{
    return memmem(from, (size_t)(t->text + t->len - from), what, strlen(what));
}

static const char *find(const struct template *t, const char *what)
{
    return find_from(t, t->text, what);
}

/* A string literal's text from p, which lies within it, up to `stop` or, with stop == NULL, to the closing quote.
 * Escapes are resolved. NULL: the literal ends before `stop` comes, or is too long, or memory ran out (*no_memory). */
static char *literal(const struct template *t, const char *p, char quote, const char *stop, bool *no_memory)
{
    const char *end = t->text + t->len;
    size_t stop_len = stop != NULL ? strlen(stop) : 0, n = 0;
    char *out = malloc(CHAT_MAX_LITERAL_BYTES + 1);
    if (out == NULL) {
        *no_memory = true;
        return NULL;
    }
    while (p < end && n < CHAT_MAX_LITERAL_BYTES) {
        bool stopped = stop != NULL ? (size_t)(end - p) >= stop_len && memcmp(p, stop, stop_len) == 0 : *p == quote;
        if (stopped) {
            out[n] = '\0';
            return out;
        }
        if (*p == quote)
            break;
        if (*p == '\\' && end - p > 1) {
            p++;
            out[n++] = *p == 'n' ? '\n' : *p == 't' ? '\t' : *p == 'r' ? '\r' : *p;
            p++;
        } else {
            out[n++] = *p++;
        }
    }
    free(out);
    return NULL;
}

/* The first literal that follows `before` (which ends with what precedes the quote), or NULL. */
static char *literal_after(const struct template *t, const char *before, bool *no_memory)
{
    for (const char *p = find(t, before); p != NULL; p = find_from(t, p + 1, before)) {
        const char *quote = p + strlen(before);
        if (quote < t->text + t->len && (*quote == '\'' || *quote == '"'))
            return literal(t, quote + 1, *quote, NULL, no_memory);
    }
    return NULL;
}

/* ChatML: the text of a literal "<|im_start|>system\nTEXT<|im_end|>", which templates write when there is no system
 * message. A system message of the user's is written by closing the literal and adding the message. */
static char *chatml_default(const struct template *t, bool *no_memory)
{
    static const char START[] = "<|im_start|>system";
    for (const char *p = find(t, START); p != NULL; p = find_from(t, p + 1, START)) {
        const char *text = p + strlen(START), *end = t->text + t->len;
        if (p == t->text || (p[-1] != '\'' && p[-1] != '"'))
            continue;
        if (end - text >= 2 && text[0] == '\\' && text[1] == 'n')
            text += 2;
        else if (end - text >= 1 && text[0] == '\n')
            text += 1;
        else
            continue;
        char *found = literal(t, text, p[-1], "<|im_end|>", no_memory);
        if (found != NULL && found[0] != '\0')
            return found;
        free(found);
        if (*no_memory)
            break;
    }
    return NULL;
}

/* Llama 3.1 and later: two lines that begin every system prompt. The date is the template's own constant. */
static char *llama3_prefix(const struct template *t, bool *no_memory)
{
    const char *knowledge = find(t, "Cutting Knowledge Date: ");
    if (knowledge == NULL || knowledge == t->text)
        return NULL;
    char *first = literal(t, knowledge, knowledge[-1], NULL, no_memory);
    char *date = literal_after(t, "set date_string = ", no_memory);
    char *prefix = NULL;
    if (first != NULL && !*no_memory &&
        asprintf(&prefix, "%sToday Date: %s\n\n", first, date != NULL ? date : "26 Jul 2024") < 0) {
        prefix = NULL;
        *no_memory = true;
    }
    free(first);
    free(date);
    return prefix;
}

/* Goes back over spaces, a plus sign and spaces before p. NULL: there is no plus sign. */
static const char *before_plus(const struct template *t, const char *p)
{
    while (p > t->text && p[-1] == ' ')
        p--;
    if (p == t->text || *--p != '+')
        return NULL;
    while (p > t->text && p[-1] == ' ')
        p--;
    return p;
}

/* Whether a template adds a one-space literal to `operand`, as in ' ' + message['content']. */
static bool adds_space_to(const struct template *t, const char *operand)
{
    for (const char *p = find(t, operand); p != NULL; p = find_from(t, p + 1, operand)) {
        const char *q = before_plus(t, p);
        if (q != NULL && q - t->text >= 3 && q[-2] == ' ' && q[-1] == q[-3] && (q[-1] == '\'' || q[-1] == '"'))
            return true;
    }
    return false;
}

/* Whether a literal that begins with `mark` is added to the BOS token. */
static bool adds_bos_to(const struct template *t, const char *mark)
{
    for (const char *p = find(t, mark); p != NULL; p = find_from(t, p + 1, mark)) {
        const char *q = p > t->text && (p[-1] == '\'' || p[-1] == '"') ? before_plus(t, p - 1) : NULL;
        if (q != NULL && q - t->text >= 9 && memcmp(q - 9, "bos_token", 9) == 0)
            return true;
    }
    return false;
}

static void read_mistral(struct chat *c, const struct template *t)
{
    const char *inst = find(t, "[INST]"), *inst_end = find(t, "[/INST]"), *end = t->text + t->len;
    c->space_before_inst = inst != NULL && inst > t->text && inst[-1] == ' ';
    c->space_after_inst = inst != NULL && inst + 6 < end && inst[6] == ' ';
    c->space_before_end = inst_end != NULL && inst_end > t->text && inst_end[-1] == ' ';
    c->space_before_answer = adds_space_to(t, "message[") || adds_space_to(t, "content");
    c->space_after_answer = adds_space_to(t, "eos_token");
    c->bos_each_turn = adds_bos_to(t, "[INST]");
    c->trim_user = find(t, "strip() + ' [/INST]") || find(t, "trim + ' [/INST]");
    c->trim_answer =
        find(t, "strip() + ' ' + eos_token") || find(t, "trim + ' ' + eos_token") || find(t, "trim + eos_token");
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

#define FAIL(code, ...) gguf_fail(g, err, err_size, (code), __VA_ARGS__)

/* FORMATS: unknown. */
static enum format recognise(const struct template *t)
{
    if (find(t, "<|im_start|>"))
        return find(t, "<|im_sep|>") ? FORMATS : CHATML;
    if (find(t, "<|start_header_id|>"))
        return LLAMA3;
    if (find(t, "<start_of_turn>"))
        return GEMMA;
    if (find(t, "[INST]"))
        return find(t, "[/INST]") == NULL ? FORMATS : find(t, "<<SYS>>") ? LLAMA2 : MISTRAL;
    return FORMATS;
}

/* What a format writes when no template of its own says more. */
static int set_defaults(struct chat *c, const struct vocab *v)
{
    c->start = c->end = c->header_end = c->system_start = c->system_end = -1;
    c->bos = vocab_adds_bos(v);
    switch (c->format) {
    case CHATML:
        c->start = vocab_special(v, "<|im_start|>");
        c->end = vocab_special(v, "<|im_end|>");
        break;
    case LLAMA3:
        c->bos = true;
        c->start = vocab_special(v, "<|start_header_id|>");
        c->header_end = vocab_special(v, "<|end_header_id|>");
        c->end = vocab_special(v, "<|eot_id|>");
        c->trim_user = c->trim_answer = true;
        break;
    case GEMMA:
        c->bos = true;
        c->start = vocab_special(v, "<start_of_turn>");
        c->end = vocab_special(v, "<end_of_turn>");
        c->trim_user = c->trim_answer = true;
        c->system_suffix = strdup("\n\n");
        break;
    default:
        c->bos = true;
        c->start = vocab_special(v, "[INST]");
        c->end = vocab_special(v, "[/INST]");
        if (c->format == LLAMA2) {
            c->start = c->end = -1;
            c->space_after_inst = c->space_before_end = c->space_before_answer = c->space_after_answer = true;
            c->trim_user = c->trim_answer = c->bos_each_turn = true;
        } else if (strcmp(vocab_model(v), "llama") == 0) {
            c->space_after_inst = c->space_before_answer = true;
            c->space_before_end = c->start < 0;
        }
        c->system_start = vocab_special(v, "[SYSTEM_PROMPT]");
        c->system_end = vocab_special(v, "[/SYSTEM_PROMPT]");
        c->system_suffix = strdup(c->format == LLAMA2 ? "\n<</SYS>>\n\n" : "\n\n");
        break;
    }
    return (c->format == GEMMA || c->format >= MISTRAL) && c->system_suffix == NULL ? -ENOMEM : 0;
}

static int read_template(struct chat *c, const struct template *t)
{
    bool no_memory = false;
    char *suffix;
    if (find(t, "bos_token"))
        c->bos = true;
    switch (c->format) {
    case CHATML:
        c->system_default = chatml_default(t, &no_memory);
        break;
    case LLAMA3:
        c->system_prefix = llama3_prefix(t, &no_memory);
        break;
    case GEMMA:
        suffix = literal_after(t, "first_user_prefix = messages[0]['content'] + ", &no_memory);
        if (suffix != NULL) {
            free(c->system_suffix);
            c->system_suffix = suffix;
        }
        break;
    case MISTRAL:
        if (!find(t, "[SYSTEM_PROMPT]"))
            c->system_start = c->system_end = -1;
        read_mistral(c, t);
        break;
    default:
        read_mistral(c, t);
        break;
    }
    return no_memory ? -ENOMEM : 0;
}

static int check_tokens(const struct chat *c, const struct vocab *v, const struct gguf *g, char *err, size_t err_size)
{
    static const char *const NEEDED[FORMATS][3] = {
        [CHATML] = {"<|im_start|>", "<|im_end|>"},
        [LLAMA3] = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
        [GEMMA] = {"<start_of_turn>", "<end_of_turn>"},
    };
    for (int i = 0; i < 3 && NEEDED[c->format][i] != NULL; i++)
        if (vocab_special(v, NEEDED[c->format][i]) < 0)
            return FAIL(-ENOTSUP,
                        "the vocabulary has no token %s, which the chat format %s needs; see the setting "
                        "chat_format",
                        NEEDED[c->format][i], NAMES[c->format]);
    if (c->format >= MISTRAL && vocab_eos(v) < 0)
        return FAIL(-ENOTSUP, "the vocabulary names no end token, which the chat format %s needs", NAMES[c->format]);
    return 0;
}

int chat_open(const struct gguf *g, const struct vocab *v, const char *format, struct chat **out, char *err,
              size_t err_size)
{
    struct gguf_string s = {NULL, 0};
    int rc = gguf_get_string(g, "tokenizer.chat_template", GGUF_OPTIONAL, &s, err, err_size);
    if (rc)
        return rc;
    if (s.len > CHAT_MAX_TEMPLATE_BYTES)
        return FAIL(-EBADMSG, "tokenizer.chat_template has %zu bytes, more than %d", s.len, CHAT_MAX_TEMPLATE_BYTES);
    struct template t = {s.text, s.len};
    enum format recognised = s.len > 0 ? recognise(&t) : FORMATS, wanted = recognised;
    if (format != NULL) {
        for (wanted = 0; wanted < FORMATS && strcmp(format, NAMES[wanted]) != 0;)
            wanted++;
        if (wanted == FORMATS)
            return FAIL(-EINVAL, "chat_format \"%s\" is none of chatml, llama3, gemma, mistral, llama2", format);
    } else if (s.len == 0) {
        *out = NULL;
        return 0;
    } else if (wanted == FORMATS) {
        return FAIL(-ENOTSUP,
                    "tokenizer.chat_template is of no format that convod knows; if it is like chatml, llama3, "
                    "gemma, mistral or llama2, say so with the setting chat_format");
    }
    struct chat *c = calloc(1, sizeof *c);
    if (c == NULL)
        return FAIL(-ENOMEM, "out of memory");
    c->format = wanted;
    rc = set_defaults(c, v);
    if (rc == 0 && recognised == wanted)
        rc = read_template(c, &t);
    rc = rc ? FAIL(rc, "out of memory") : check_tokens(c, v, g, err, err_size);
    if (rc) {
        chat_free(c);
        return rc;
    }
    c->bos = c->bos && vocab_bos(v) >= 0;
    *out = c;
    return 0;
}

void chat_free(struct chat *c)
{
    if (c == NULL)
        return;
    free(c->system_default);
    free(c->system_prefix);
    free(c->system_suffix);
    free(c);
}

const char *chat_format(const struct chat *c)
{
    return NAMES[c->format];
}

/* ---- rendering --------------------------------------------------------------------------------------------------- */

/* Collects text until a control token or the end of a message, and tokenizes it then. The first error sticks. */
struct builder {
    const struct vocab *v;
    struct engine_tokens *out;
    char *text;
    size_t len, capacity;
    unsigned before; /* what is before the text, as in vocab_tokenize() */
    int rc;
};

static void add_bytes(struct builder *b, const char *text, size_t len)
{
    size_t need;
    if (b->rc || len == 0)
        return;
    if (__builtin_add_overflow(b->len, len, &need) || need > VOCAB_MAX_TEXT_BYTES) {
        b->rc = -EOVERFLOW;
        return;
    }
    if (need > b->capacity) {
        size_t capacity = need < 256 ? 256 : need * 2;
        char *grown = realloc(b->text, capacity);
        if (grown == NULL) {
            b->rc = -ENOMEM;
            return;
        }
        b->text = grown;
        b->capacity = capacity;
    }
    memcpy(b->text + b->len, text, len);
    b->len = need;
}

static void add(struct builder *b, const char *text)
{
    add_bytes(b, text, strlen(text));
}

static void flush(struct builder *b)
{
    if (b->rc == 0 && b->len > 0) {
        b->rc = vocab_tokenize(b->v, b->text, b->len, b->before, b->out);
        b->before = VOCAB_CONTINUES;
    }
    b->len = 0;
}

static void add_token(struct builder *b, engine_token id)
{
    flush(b);
    if (b->rc == 0)
        b->rc = engine_tokens_append(b->out, &id, 1);
    b->before = VOCAB_AFTER_SPECIAL;
}

/* A mark that is a token in some vocabularies and plain text in others. */
static void add_mark(struct builder *b, engine_token id, const char *text)
{
    if (id >= 0)
        add_token(b, id);
    else
        add(b, text);
}

/* The code point of a character of n bytes. */
static unsigned code_point(const char *text, size_t n)
{
    const unsigned char *p = (const unsigned char *)text;
    unsigned c = n == 1 ? p[0] : n == 2 ? p[0] & 0x1fu : n == 3 ? p[0] & 0x0fu : p[0] & 0x07u;
    for (size_t i = 1; i < n; i++)
        c = c << 6 | (p[i] & 0x3fu);
    return c;
}

/* What the templates' trim takes off: Unicode whitespace and the four ASCII separators. */
static bool is_space(unsigned c)
{
    return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

static void add_message(struct builder *b, const struct engine_message *m, bool trim_start, bool trim_end)
{
    const char *start = m->text, *end = m->text + m->len;
    while (trim_start && start < end) {
        size_t n = utf8_char(start, (size_t)(end - start), NULL);
        if (n == 0 || !is_space(code_point(start, n)))
            break;
        start += n;
    }
    while (trim_end && start < end) {
        const char *last = end - 1;
        while (last > start && ((unsigned char)*last & 0xc0) == 0x80 && end - last < 4)
            last--;
        size_t n = utf8_char(last, (size_t)(end - last), NULL);
        if (n != (size_t)(end - last) || !is_space(code_point(last, n)))
            break;
        end = last;
    }
    add_bytes(b, start, (size_t)(end - start));
}

static const char *role_name(const struct chat *c, enum engine_role role)
{
    if (role == ENGINE_ASSISTANT)
        return c->format == GEMMA ? "model" : "assistant";
    return role == ENGINE_USER ? "user" : "system";
}

/* ChatML, Gemma: <start>role\n text <end>\n. Llama 3: <start>role<header_end>\n\n text <end>. */
static void open_message(const struct chat *c, struct builder *b, const char *role)
{
    add_token(b, c->start);
    add(b, role);
    if (c->format == LLAMA3) {
        add_token(b, c->header_end);
        add(b, "\n\n");
    } else {
        add(b, "\n");
    }
}

static void close_message(const struct chat *c, struct builder *b)
{
    add_token(b, c->end);
    if (c->format != LLAMA3)
        add(b, "\n");
    flush(b);
}

static void render_headed(const struct chat *c, struct builder *b, const struct engine_message *messages, size_t n,
                          unsigned flags)
{
    bool has_system = n > 0 && messages[0].role == ENGINE_SYSTEM;
    if ((flags & ENGINE_CHAT_FIRST) && !has_system && (c->system_default || c->system_prefix)) {
        open_message(c, b, "system");
        add(b, c->system_prefix ? c->system_prefix : c->system_default);
        close_message(c, b);
    }
    for (size_t i = 0; i < n; i++) {
        const struct engine_message *m = &messages[i];
        if (c->format == GEMMA && m->role == ENGINE_SYSTEM) {
            open_message(c, b, "user");
            add_message(b, m, false, false);
            add(b, c->system_suffix);
            add_message(b, &messages[++i], c->trim_user, c->trim_user);
        } else {
            open_message(c, b, role_name(c, m->role));
            if (i == 0 && has_system && (flags & ENGINE_CHAT_FIRST) && c->system_prefix)
                add(b, c->system_prefix);
            bool trim = m->role == ENGINE_ASSISTANT ? c->trim_answer : c->trim_user;
            add_message(b, m, trim, trim);
        }
        close_message(c, b);
    }
    if (flags & ENGINE_CHAT_OPEN)
        open_message(c, b, role_name(c, ENGINE_ASSISTANT));
    flush(b);
}

static void close_answer(const struct chat *c, struct builder *b)
{
    if (c->space_after_answer)
        add(b, " ");
    add_token(b, vocab_eos(b->v));
}

static void render_inst(const struct chat *c, struct builder *b, const struct engine_message *messages, size_t n,
                        bool first)
{
    for (size_t i = 0; i < n; i++) {
        const struct engine_message *m = &messages[i], *system = NULL;
        if (m->role == ENGINE_SYSTEM) {
            system = m;
            m = &messages[++i];
        }
        if (m->role == ENGINE_ASSISTANT) {
            if (c->space_before_answer)
                add(b, " ");
            add_message(b, m, c->trim_answer, c->trim_answer);
            close_answer(c, b);
            continue;
        }
        if (c->bos_each_turn && c->bos && !(first && i <= 1))
            add_token(b, vocab_bos(b->v));
        if (system != NULL && c->system_start >= 0) {
            add_token(b, c->system_start);
            if (c->space_after_inst)
                add(b, " ");
            add_message(b, system, false, false);
            add_mark(b, c->system_end, "[/SYSTEM_PROMPT]");
        }
        if (c->space_before_inst)
            add(b, " ");
        add_mark(b, c->start, "[INST]");
        if (c->space_after_inst)
            add(b, " ");
        if (system != NULL && c->system_start < 0) {
            if (c->format == LLAMA2)
                add(b, "<<SYS>>\n");
            add_message(b, system, false, false);
            add(b, c->system_suffix);
        }
        add_message(b, m, c->trim_user && system == NULL, c->trim_user);
        if (c->space_before_end)
            add(b, " ");
        add_mark(b, c->end, "[/INST]");
        flush(b);
    }
}

/* What the formats without a system role of their own cannot express. NULL: nothing. */
static const char *check_order(const struct engine_message *messages, size_t n, unsigned flags)
{
    size_t i = n > 0 && messages[0].role == ENGINE_SYSTEM ? 1 : 0;
    if (i == 1 && (n == 1 || messages[1].role != ENGINE_USER))
        return "a system message needs a user message after it";
    if (i == 0 && n > 0 && messages[0].role == ENGINE_ASSISTANT && (flags & ENGINE_CHAT_FIRST))
        return "a conversation cannot begin with an answer";
    for (size_t k = i; k < n; k++) {
        if (messages[k].role == ENGINE_SYSTEM)
            return "a system message can only be the first";
        if (k > i && messages[k].role == messages[k - 1].role)
            return "user messages and answers must alternate";
    }
    if ((flags & ENGINE_CHAT_OPEN) && n > 0 && messages[n - 1].role == ENGINE_ASSISTANT)
        return "an answer needs a user message before it";
    return NULL;
}

int chat_render(const struct chat *c, const struct vocab *v, const struct engine_message *messages, size_t n,
                unsigned flags, struct engine_tokens *out, char *err, size_t err_size)
{
    size_t before = out->n;
    const char *wrong = c->format == CHATML || c->format == LLAMA3 ? NULL : check_order(messages, n, flags);
    if (wrong != NULL) {
        if (err_size > 0)
            snprintf(err, err_size, "the model's chat format (%s) cannot express this: %s", NAMES[c->format], wrong);
        return -ENOTSUP;
    }
    struct builder b = {.v = v, .out = out, .before = flags & ENGINE_CHAT_FIRST ? 0 : VOCAB_AFTER_SPECIAL};
    if (b.before != 0 && c->end < 0 && n > 0 && messages[0].role == ENGINE_ASSISTANT)
        b.before = VOCAB_CONTINUES; /* behind a mark that is plain text */
    if ((flags & ENGINE_CHAT_FIRST) && c->bos)
        add_token(&b, vocab_bos(v));
    if (c->format >= MISTRAL)
        render_inst(c, &b, messages, n, (flags & ENGINE_CHAT_FIRST) != 0);
    else
        render_headed(c, &b, messages, n, flags);
    free(b.text);
    if (b.rc) {
        out->n = before;
        if (err_size > 0)
            snprintf(err, err_size, b.rc == -EOVERFLOW ? "a message is longer than %d bytes" : "out of memory",
                     VOCAB_MAX_TEXT_BYTES);
    }
    return b.rc;
}

int chat_close(const struct chat *c, const struct vocab *v, struct engine_tokens *out)
{
    size_t before = out->n;
    struct builder b = {.v = v, .out = out, .before = VOCAB_CONTINUES};
    if (c->format >= MISTRAL)
        close_answer(c, &b);
    else
        close_message(c, &b);
    free(b.text);
    if (b.rc)
        out->n = before;
    return b.rc;
}
