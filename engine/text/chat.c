/* chat.c - renders messages as tokens.
 *
 * What a format writes around messages is data (chat_formats.c). Between two control tokens, what the template writes
 * and what a user wrote are tokenized as one text, as they would be in the rendered whole; the control tokens
 * themselves are put in as ids. So no text can forge one. (The oldest Mistral and Llama 2 models, and Zephyr, write
 * their marks as plain text: there a user's "[/INST]" is as good as the template's.)
 *
 * Three things a template may do are left out, because they would change what is already in the context: today's date,
 * moving the system prompt to the latest user message, and taking the thinking out of an answer that was generated
 * here. (It is taken out of earlier answers that a client sends.)
 */
#include "engine/text/chat_private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- opening ----------------------------------------------------------------------------------------------------- */

#define FAIL(code, ...) gguf_fail(g, err, err_size, (code), __VA_ARGS__)

int chat_cut_pieces(const struct vocab *v, const char *text, struct chat_pieces *out)
{
    out->n = 0;
    for (const char *p = text, *start = text;; p++) {
        engine_token id = -1;
        size_t len = 0;
        const char *close = *p == '<' ? strchr(p, '>') : *p == '[' ? strchr(p, ']') : NULL;
        if (close != NULL) {
            char name[64];
            len = (size_t)(close + 1 - p);
            if (len < sizeof name) {
                memcpy(name, p, len);
                name[len] = '\0';
                id = vocab_special(v, name);
            }
        } else if (strncmp(p, "{eos}", 5) == 0) {
            len = 5;
            id = vocab_eos(v);
        }
        if (id < 0 && *p != '\0')
            continue;
        if (out->n + 2 > CHAT_MAX_PIECES)
            return -EOVERFLOW;
        if (p > start)
            out->piece[out->n++] = (struct chat_piece){-1, start, (size_t)(p - start)};
        if (*p == '\0')
            return 0;
        out->piece[out->n++] = (struct chat_piece){id, p, len};
        p += len - 1;
        start = p + 1;
    }
}

static int check_tokens(const struct chat_format *f, const struct vocab *v, const struct gguf *g, char *err,
                        size_t err_size)
{
    for (size_t i = 0; i < sizeof f->needed / sizeof *f->needed && f->needed[i] != NULL; i++)
        if (vocab_special(v, f->needed[i]) < 0)
            return FAIL(-ENOTSUP,
                        "the vocabulary has no token %s, which the chat format %s needs; see the setting "
                        "chat-format",
                        f->needed[i], f->name);
    if (f->needs_eos && vocab_eos(v) < 0)
        return FAIL(-ENOTSUP, "the vocabulary names no end token, which the chat format %s needs", f->name);
    return 0;
}

/* "chatml, llama3, ..." */
static void list_formats(char *out, size_t size)
{
    size_t n = 0;
    for (size_t i = 0; chat_format_at(i) != NULL && n < size; i++)
        n += (size_t)snprintf(out + n, size - n, "%s%s", i > 0 ? ", " : "", chat_format_at(i)->name);
}

static int set_up(struct chat *c, const struct vocab *v, const struct template *t, bool read)
{
    const struct chat_format *f = c->format;
    c->think_mark = c->think_end_mark = -1;
    c->inst = c->inst_end = c->system_start = c->system_end = -1;
    c->call_mark = c->call_end_mark = c->args = c->call_id = c->tools_start = c->tools_end = -1;
    c->result_start = c->result_content = c->result_stop = -1;
    c->start = c->channel = c->message = c->constrain = c->end = -1;
    c->bos = f->bos || vocab_adds_bos(v);
    c->strip = f->spm_strips && strcmp(vocab_model(v), "llama") == 0;
    c->trim_user = c->trim_answer = f->trim;
    if (f->system_suffix != NULL && (c->system_suffix = strdup(f->system_suffix)) == NULL)
        return -ENOMEM;
    if (f->defaults != NULL)
        f->defaults(c, v);
    int rc = read ? chat_read_common(c, t) : 0;
    if (rc == 0 && read && f->read != NULL)
        rc = f->read(c, t);
    if (rc == 0 && f->preamble != NULL)
        rc = chat_cut_pieces(v, f->preamble, &c->preamble);
    if (rc == 0 && f->preamble_tools != NULL)
        rc = chat_cut_pieces(v, f->preamble_tools, &c->preamble_tools);
    if (rc == 0 && f->answer != NULL)
        rc = chat_cut_pieces(v, f->answer, &c->answer);
    for (int role = 0; rc == 0 && role < CHAT_ROLES; role++)
        if ((rc = chat_cut_pieces(v, f->role[role].before, &c->before[role])) == 0)
            rc = chat_cut_pieces(v, f->role[role].after, &c->after[role]);
    if (rc == 0 && c->opening_text != NULL)
        rc = chat_cut_pieces(v, c->opening_text, &c->opening);
    if (rc == 0 && c->unthinking_text != NULL)
        rc = chat_cut_pieces(v, c->unthinking_text, &c->unthinking);
    /* Magistral and Ministral have the latter. */
    static const char *const THINKING[][2] = {{"<think>", "</think>"}, {"[THINK]", "[/THINK]"}};
    for (size_t k = 0; rc == 0 && read && c->think_mark < 0 && k < sizeof THINKING / sizeof *THINKING; k++)
        if (memmem(t->text, t->len, THINKING[k][1], strlen(THINKING[k][1])) != NULL) {
            c->think_mark = vocab_special(v, THINKING[k][0]);
            c->think_end_mark = vocab_special(v, THINKING[k][1]);
        }
    for (size_t i = 0; i < c->opening.n; i++)
        c->opens_thinking |= c->think_mark >= 0 && c->opening.piece[i].id == c->think_mark;
    if (rc || !read || (rc = chat_read_tools(c, t)))
        return rc;
    return chat_set_up_tools(c, v);
}

/* Qwen2.5-Coder often leaves the marks out, whatever its size. */
static bool names_coder(const struct gguf *g)
{
    struct gguf_string name = {"", 0};
    char err[64];
    if (gguf_get_string(g, "general.name", GGUF_OPTIONAL, &name, err, sizeof err))
        return false;
    for (size_t i = 0; i + 5 <= name.len; i++)
        if (strncasecmp(name.text + i, "coder", 5) == 0)
            return true;
    return false;
}

int chat_open(const struct gguf *g, const struct vocab *v, const char *format, struct chat **out, char *err,
              size_t err_size)
{
    struct gguf_string s = {NULL, 0};
    char known[128];
    int rc = gguf_get_string(g, "tokenizer.chat_template", GGUF_OPTIONAL, &s, err, err_size);
    if (rc)
        return rc;
    if (s.len > CHAT_MAX_TEMPLATE_BYTES)
        return FAIL(-EBADMSG, "tokenizer.chat_template has %zu bytes, more than %d", s.len, CHAT_MAX_TEMPLATE_BYTES);
    struct template t = {s.text, s.len};
    const struct chat_format *recognised = s.len > 0 ? chat_format_of(&t) : NULL, *wanted = recognised;
    list_formats(known, sizeof known);
    if (format != NULL) {
        wanted = chat_format_named(format);
        if (wanted == NULL)
            return FAIL(-EINVAL, "chat-format \"%s\" is none of %s", format, known);
    } else if (s.len == 0) {
        *out = NULL;
        return 0;
    } else if (wanted == NULL) {
        return FAIL(-ENOTSUP,
                    "tokenizer.chat_template is of no format that convod knows; if it is like one of %s, say so with "
                    "the setting chat-format",
                    known);
    }
    if ((rc = check_tokens(wanted, v, g, err, err_size)))
        return rc;
    struct chat *c = calloc(1, sizeof *c);
    if (c == NULL)
        return FAIL(-ENOMEM, "out of memory");
    c->format = wanted;
    if ((rc = set_up(c, v, &t, recognised == wanted))) {
        chat_free(c);
        return FAIL(rc, "out of memory");
    }
    c->bos = c->bos && vocab_bos(v) >= 0;
    c->bare_calls = c->syntax == ENGINE_CALLS_LLAMA || (c->syntax == ENGINE_CALLS_HERMES && names_coder(g));
    *out = c;
    return 0;
}

const char *chat_name_at(size_t i)
{
    const struct chat_format *f = chat_format_at(i);
    return f != NULL ? f->name : NULL;
}

void chat_free(struct chat *c)
{
    if (c == NULL)
        return;
    free(c->opening_text);
    free(c->unthinking_text);
    free(c->system_default);
    free(c->system_prefix);
    free(c->system_suffix);
    free(c->tools_head_text);
    free(c->tools_tail_text);
    free(c->tools_system);
    free(c);
}

const char *chat_format(const struct chat *c)
{
    return c->format->name;
}

/* ---- rendering --------------------------------------------------------------------------------------------------- */

static size_t space_at(const char *text, size_t len);

void chat_add_bytes(struct builder *b, const char *text, size_t len)
{
    size_t need;
    for (size_t n; b->stripping && len > 0 && (n = space_at(text, len)) > 0; text += n, len -= n)
        ;
    if (b->rc || len == 0)
        return;
    b->stripping = false;
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

void chat_add(struct builder *b, const char *text)
{
    chat_add_bytes(b, text, strlen(text));
}

void chat_flush(struct builder *b)
{
    if (b->rc == 0 && b->len > 0) {
        b->rc = vocab_tokenize(b->v, b->text, b->len, b->before, b->out);
        b->before = VOCAB_CONTINUES;
    }
    b->len = 0;
}

void chat_add_token(struct builder *b, engine_token id)
{
    chat_flush(b);
    if (b->rc == 0)
        b->rc = engine_tokens_append(b->out, &id, 1);
    b->before = VOCAB_AFTER_SPECIAL;
    b->stripping = b->strip;
}

void chat_add_pieces(struct builder *b, const struct chat_pieces *pieces)
{
    for (size_t i = 0; i < pieces->n; i++) {
        if (pieces->piece[i].id >= 0)
            chat_add_token(b, pieces->piece[i].id);
        else
            chat_add_bytes(b, pieces->piece[i].text, pieces->piece[i].len);
    }
}

/* A text that the template brings along: marks in it are tokens. */
static void add_own(struct builder *b, const char *text)
{
    struct chat_pieces pieces;
    if (chat_cut_pieces(b->v, text, &pieces) == 0)
        chat_add_pieces(b, &pieces);
    else
        chat_add(b, text); /* more than there is room for */
}

/* A mark that is a token in some vocabularies and plain text in others. */
static void add_mark(struct builder *b, engine_token id, const char *text)
{
    if (id >= 0)
        chat_add_token(b, id);
    else
        chat_add(b, text);
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

/* Bytes of the space that a text begins with; 0: it begins with something else. */
static size_t space_at(const char *text, size_t len)
{
    size_t n = utf8_char(text, len, NULL);
    return n > 0 && is_space(code_point(text, n)) ? n : 0;
}

static void add_within(struct builder *b, const char *text, size_t len, bool trim_start, bool trim_end)
{
    const char *start = text, *end = text + len;
    for (size_t n; trim_start && start < end && (n = space_at(start, (size_t)(end - start))) > 0;)
        start += n;
    while (trim_end && start < end) {
        const char *last = end - 1;
        while (last > start && ((unsigned char)*last & 0xc0) == 0x80 && end - last < 4)
            last--;
        size_t n = utf8_char(last, (size_t)(end - last), NULL);
        if (n != (size_t)(end - last) || !is_space(code_point(last, n)))
            break;
        end = last;
    }
    chat_add_bytes(b, start, (size_t)(end - start));
}

static void add_message(struct builder *b, const struct engine_message *m, bool trim_start, bool trim_end)
{
    add_within(b, m->text, m->len, trim_start, trim_end);
}

void chat_add_trimmed(struct builder *b, const char *text, size_t len)
{
    add_within(b, text, len, true, true);
}

/* An earlier answer, without its thinking where the template leaves that out. */
static struct engine_message without_thinking(const struct chat *c, const struct engine_message *m)
{
    static const char CLOSE[] = "</think>";
    struct engine_message out = *m;
    if (!c->drops_thinking)
        return out;
    const char *end = m->text + m->len, *found = NULL;
    for (const char *p = m->text; (p = memmem(p, (size_t)(end - p), CLOSE, strlen(CLOSE))) != NULL;)
        found = p += strlen(CLOSE);
    if (found != NULL) {
        out.text = found;
        out.len = (size_t)(end - found);
    }
    while (((found != NULL && c->drops_newlines) || c->drops_newlines_always) && out.len > 0 && out.text[0] == '\n') {
        out.text++;
        out.len--;
    }
    return out;
}

static void close_message(const struct chat *c, struct builder *b, enum engine_role role)
{
    chat_add_pieces(b, &c->after[role]);
    chat_flush(b);
}

/* The system message with definitions of tools. system: its text, NULL: none. */
static void render_tools(const struct chat *c, struct builder *b, const struct engine_message *tools,
                         const struct engine_message *system, bool first)
{
    const char *otherwise = !first || system != NULL   ? NULL
                            : c->tools_system != NULL  ? c->tools_system
                            : c->system_prefix == NULL ? c->system_default
                                                       : NULL;
    bool any = system != NULL || otherwise != NULL || (first && c->system_prefix != NULL);
    chat_add_pieces(b, &c->before[ENGINE_SYSTEM]);
    if (first && c->system_prefix != NULL)
        chat_add(b, c->system_prefix);
    if (system != NULL)
        add_message(b, system, c->trim_user, c->trim_user);
    else if (otherwise != NULL)
        add_own(b, otherwise);
    if (any)
        chat_add(b, "\n\n");
    chat_add_pieces(b, &c->tools_head);
    chat_add_definitions(c, b, tools);
    chat_add_pieces(b, &c->tools_tail);
    close_message(c, b, ENGINE_SYSTEM);
}

/* Llama 3: definitions are the head of the first user message, or, where none follows, of the system message. Returns
 * how many messages were written. */
static size_t render_llama_tools(const struct chat *c, struct builder *b, const struct engine_message *messages,
                                 size_t n)
{
    const struct engine_message *system = n > 1 && messages[1].role == ENGINE_SYSTEM ? &messages[1] : NULL;
    size_t at = system != NULL ? 2 : 1;
    const struct engine_message *user = n > at && messages[at].role == ENGINE_USER ? &messages[at] : NULL;
    chat_add_pieces(b, &c->before[ENGINE_SYSTEM]);
    chat_add(b, "Environment: ipython\n");
    if (c->system_prefix != NULL)
        chat_add(b, c->system_prefix);
    if (user == NULL) {
        chat_add_pieces(b, &c->tools_tail);
        chat_add_definitions(c, b, messages);
    }
    if (system != NULL)
        add_message(b, system, c->trim_user, c->trim_user);
    close_message(c, b, ENGINE_SYSTEM);
    if (user == NULL)
        return at;
    chat_add_pieces(b, &c->before[ENGINE_USER]);
    chat_add_pieces(b, &c->tools_head);
    chat_add_definitions(c, b, messages);
    add_message(b, user, c->trim_user, c->trim_user);
    close_message(c, b, ENGINE_USER);
    return at + 1;
}

/* Harmony: definitions stand behind the instructions. Returns how many messages were written. */
static size_t render_harmony_tools(const struct chat *c, struct builder *b, const struct engine_message *messages,
                                   size_t n)
{
    bool system = n > 1 && messages[1].role == ENGINE_SYSTEM;
    chat_add_token(b, c->start);
    chat_add(b, "developer");
    chat_add_token(b, c->message);
    if (system) {
        chat_add(b, "# Instructions\n\n");
        add_message(b, &messages[1], false, false);
        chat_add(b, "\n\n");
    }
    chat_add(b, "# Tools\n\n");
    chat_add_definitions(c, b, messages);
    chat_add_token(b, c->end);
    return system ? 2 : 1;
}

/* What begins with definitions of tools: returns how many messages were written. */
static size_t render_head_tools(const struct chat *c, struct builder *b, const struct engine_message *messages,
                                size_t n, bool first)
{
    if (c->syntax == ENGINE_CALLS_LLAMA)
        return render_llama_tools(c, b, messages, n);
    if (c->syntax == ENGINE_CALLS_HARMONY)
        return render_harmony_tools(c, b, messages, n);
    bool system = n > 1 && messages[1].role == ENGINE_SYSTEM;
    render_tools(c, b, messages, system ? &messages[1] : NULL, first);
    return system ? 2 : 1;
}

/* One answer: its text and its calls. Returns how many messages it has. Harmony writes each as a message of its own. */
static size_t render_answer(const struct chat *c, struct builder *b, const struct engine_message *messages, size_t n)
{
    size_t i = 0, calls = 0;
    bool text = messages[0].role == ENGINE_ASSISTANT, apart = c->syntax == ENGINE_CALLS_HARMONY;
    bool called = n > text && messages[text].role == ENGINE_CALL;
    if (text || !apart)
        chat_add_pieces(b, &c->before[ENGINE_ASSISTANT]);
    if (text) {
        struct engine_message answer = without_thinking(c, &messages[i++]);
        bool trim = c->trim_answer || (called && c->syntax == ENGINE_CALLS_XML);
        add_message(b, &answer, trim, trim);
        text = answer.len > 0;
    }
    if (i > 0 && apart)
        close_message(c, b, ENGINE_ASSISTANT);
    for (; i < n && messages[i].role == ENGINE_CALL; i++)
        chat_add_call(c, b, &messages[i], calls++, text);
    if (!apart)
        close_message(c, b, ENGINE_ASSISTANT);
    return i;
}

/* Results of an answer's calls. */
static size_t render_results(const struct chat *c, struct builder *b, const struct engine_message *messages, size_t n)
{
    size_t i = 0;
    chat_begin_results(c, b);
    for (; i < n && messages[i].role == ENGINE_RESULT; i++)
        chat_add_result(c, b, &messages[i], i);
    chat_end_results(c, b);
    chat_flush(b);
    return i;
}

static size_t render_one(const struct chat *c, struct builder *b, const struct engine_message *m, bool first)
{
    size_t used = 1;
    bool inside = c->format->system_in_user && m->role == ENGINE_SYSTEM;
    chat_add_pieces(b, &c->before[inside ? ENGINE_USER : m->role]);
    if (inside) {
        add_message(b, m, false, false);
        chat_add(b, c->system_suffix);
        m++;
        used++;
    } else if (first && m->role == ENGINE_SYSTEM && c->system_prefix) {
        chat_add(b, c->system_prefix);
    }
    add_message(b, m, c->trim_user, c->trim_user);
    close_message(c, b, inside ? ENGINE_USER : m->role);
    return used;
}

static void render_headed(const struct chat *c, struct builder *b, const struct engine_message *messages, size_t n,
                          unsigned flags)
{
    bool first = (flags & ENGINE_CHAT_FIRST) != 0;
    enum engine_role head = n > 0 ? messages[0].role : ENGINE_USER;
    if (first)
        chat_add_preamble(c, b, head == ENGINE_TOOLS && c->preamble_tools.n > 0 ? &c->preamble_tools : &c->preamble,
                          flags);
    if (first && head != ENGINE_SYSTEM && head != ENGINE_TOOLS && (c->system_default || c->system_prefix)) {
        chat_add_pieces(b, &c->before[ENGINE_SYSTEM]);
        add_own(b, c->system_default ? c->system_default : c->system_prefix);
        close_message(c, b, ENGINE_SYSTEM);
    }
    for (size_t i = 0; i < n;) {
        const struct engine_message *m = &messages[i];
        if (m->role == ENGINE_TOOLS) {
            i += render_head_tools(c, b, m, n - i, first && i == 0);
        } else if (m->role == ENGINE_ASSISTANT || m->role == ENGINE_CALL) {
            i += render_answer(c, b, m, n - i);
        } else if (m->role == ENGINE_RESULT) {
            i += render_results(c, b, m, n - i);
        } else {
            i += render_one(c, b, m, first && i == 0);
        }
    }
    if (flags & ENGINE_CHAT_OPEN) {
        chat_add_pieces(b, c->answer.n > 0 ? &c->answer : &c->before[ENGINE_ASSISTANT]);
        chat_add_pieces(b, (flags & ENGINE_CHAT_NO_THINKING) && c->unthinking.n > 0 ? &c->unthinking : &c->opening);
    }
    chat_flush(b);
}

/* An answer's text and its calls: returns how many messages it has. */
static size_t render_inst_answer(const struct chat *c, struct builder *b, const struct engine_message *messages,
                                 size_t n)
{
    size_t i = 0, calls = 0;
    if (messages[0].role == ENGINE_ASSISTANT) {
        if (c->space_before_answer)
            chat_add(b, " ");
        add_message(b, &messages[i++], c->trim_answer, c->trim_answer);
    }
    for (; i < n && messages[i].role == ENGINE_CALL; i++)
        chat_add_call(c, b, &messages[i], calls++, false);
    if (calls > 0)
        chat_end_calls(c, b);
    if (c->space_after_answer && calls == 0)
        chat_add(b, " ");
    chat_add_token(b, vocab_eos(b->v));
    return i;
}

/* The system prompt, NULL: the template's own, where it has marks of its own. */
static void add_inst_system(const struct chat *c, struct builder *b, const struct engine_message *system)
{
    chat_add_token(b, c->system_start);
    if (c->space_after_inst)
        chat_add(b, " ");
    if (system != NULL)
        add_message(b, system, false, false);
    else
        add_own(b, c->system_default);
    add_mark(b, c->system_end, "[/SYSTEM_PROMPT]");
}

static void render_inst(const struct chat *c, struct builder *b, const struct engine_message *messages, size_t n,
                        bool first)
{
    const struct engine_message *tools = NULL;
    size_t head = n > 0 && messages[0].role == ENGINE_TOOLS;
    if (first && c->system_default != NULL && (n == head || messages[head].role != ENGINE_SYSTEM))
        add_inst_system(c, b, NULL);
    for (size_t i = 0; i < n; i++) {
        const struct engine_message *m = &messages[i], *system = NULL;
        if (m->role == ENGINE_TOOLS) {
            tools = m;
            continue;
        }
        if (m->role == ENGINE_SYSTEM) {
            system = m;
            m = &messages[++i];
        }
        if (m->role == ENGINE_ASSISTANT || m->role == ENGINE_CALL) {
            i += render_inst_answer(c, b, m, n - i) - 1;
            continue;
        }
        if (m->role == ENGINE_RESULT) {
            chat_add_result(c, b, m, 0);
            chat_flush(b);
            continue;
        }
        if (c->bos_each_turn && c->bos && !(first && i <= 1))
            chat_add_token(b, vocab_bos(b->v));
        if (system != NULL && c->system_start >= 0)
            add_inst_system(c, b, system);
        if (tools != NULL)
            chat_add_definitions(c, b, tools);
        tools = NULL;
        if (c->space_before_inst)
            chat_add(b, " ");
        add_mark(b, c->inst, "[INST]");
        if (c->space_after_inst)
            chat_add(b, " ");
        if (system != NULL && c->system_start < 0) {
            if (c->named_system)
                chat_add(b, "<<SYS>>\n");
            add_message(b, system, false, false);
            chat_add(b, c->system_suffix);
        }
        add_message(b, m, c->trim_user && system == NULL, c->trim_user);
        if (c->space_before_end)
            chat_add(b, " ");
        add_mark(b, c->inst_end, "[/INST]");
        chat_flush(b);
    }
    chat_flush(b);
}

static bool answers(const struct engine_message *m)
{
    return m->role == ENGINE_ASSISTANT || m->role == ENGINE_CALL;
}

/* What a format cannot express. NULL: nothing. */
static const char *check_order(const struct chat *c, const struct engine_message *messages, size_t n, unsigned flags)
{
    enum chat_order order = c->format->order;
    for (size_t k = 0; k < n && c->syntax == ENGINE_CALLS_NONE; k++)
        if (messages[k].role >= ENGINE_CALL)
            return "it has no form for tools that convod knows";
    size_t i = n > 0 && messages[0].role == ENGINE_TOOLS ? 1 : 0, head = i;
    for (size_t k = i + 1; order != CHAT_ANY && k < n; k++)
        if (messages[k].role == ENGINE_SYSTEM)
            return "a system message can only be the first";
    if (order != CHAT_ALTERNATE)
        return NULL;
    if (n > i && messages[i].role == ENGINE_SYSTEM)
        i++;
    if (i > 0 && (n == i || messages[i].role != ENGINE_USER))
        return i > head ? "a system message needs a user message after it" : "tools need a user message after them";
    if (i == 0 && n > 0 && answers(&messages[0]) && (flags & ENGINE_CHAT_FIRST))
        return "a conversation cannot begin with an answer";
    for (size_t k = i + 1; k < n; k++) {
        enum engine_role before = messages[k - 1].role, role = messages[k].role;
        if (role == before && (role == ENGINE_USER || role == ENGINE_ASSISTANT))
            return "user messages and answers must alternate";
        if (role == ENGINE_USER && !answers(&messages[k - 1]))
            return "user messages and answers must alternate";
        if (role == ENGINE_ASSISTANT && before == ENGINE_CALL)
            return "the text of an answer stands before its calls";
    }
    if ((flags & ENGINE_CHAT_OPEN) && n > 0 && answers(&messages[n - 1]))
        return "an answer needs a user message before it";
    return NULL;
}

int chat_render(const struct chat *c, const struct vocab *v, const struct engine_message *messages, size_t n,
                unsigned flags, struct engine_tokens *out, char *err, size_t err_size)
{
    size_t before = out->n;
    const struct chat_format *f = c->format;
    const char *wrong = check_order(c, messages, n, flags);
    if (wrong != NULL) {
        if (err_size > 0)
            snprintf(err, err_size, "the model's chat format (%s) cannot express this: %s", f->name, wrong);
        return -ENOTSUP;
    }
    struct builder b = {.v = v, .out = out, .strip = c->strip};
    if (!(flags & ENGINE_CHAT_FIRST)) {
        /* What is before this: the closing of a message, or, before an answer of Mistral's way, a user's. */
        const struct chat_pieces *last =
            &c->after[n > 0 && messages[0].role == ENGINE_USER ? ENGINE_ASSISTANT : ENGINE_USER];
        bool text = f->inst ? c->inst_end < 0 && n > 0 && messages[0].role == ENGINE_ASSISTANT
                            : last->n > 0 && last->piece[last->n - 1].id < 0;
        b.before = text ? VOCAB_CONTINUES : VOCAB_AFTER_SPECIAL;
    }
    if ((flags & ENGINE_CHAT_FIRST) && c->bos)
        chat_add_token(&b, vocab_bos(v));
    if (f->inst)
        render_inst(c, &b, messages, n, (flags & ENGINE_CHAT_FIRST) != 0);
    else
        render_headed(c, &b, messages, n, flags);
    free(b.text);
    if (b.rc) {
        out->n = before;
        if (err_size > 0)
            snprintf(err, err_size,
                     b.rc == -EOVERFLOW ? "a message is longer than %d bytes"
                     : b.rc == -EINVAL  ? "the definitions of tools are not a JSON list of objects"
                                        : "out of memory",
                     VOCAB_MAX_TEXT_BYTES);
    }
    return b.rc;
}

static void close_answer(const struct chat *c, struct builder *b, const struct vocab *v)
{
    if (c->space_after_answer)
        chat_add(b, " ");
    chat_add_token(b, vocab_eos(v));
}

/* Harmony: whether the last message that the context has is a call. Its recipient stands between <|start|> and
 * <|message|>. */
static bool ends_with_call(const struct chat *c, const struct vocab *v, const struct engine_tokens *out)
{
    static const char TO[] = "to=functions.";
    char head[256];
    size_t n = 0, at = out->n;
    while (at > 0 && out->ids[at - 1] != c->message && out->ids[at - 1] != c->start)
        at--;
    if (at == 0 || out->ids[at - 1] != c->message)
        return false;
    size_t stop = at - 1;
    while (at > 0 && out->ids[at - 1] != c->start)
        at--;
    for (; at < stop && n < sizeof head; at++)
        chat_token_text(v, out->ids[at], head, &n, sizeof head);
    return c->syntax == ENGINE_CALLS_HARMONY && memmem(head, n, TO, strlen(TO)) != NULL;
}

int chat_close(const struct chat *c, const struct vocab *v, struct engine_tokens *out)
{
    size_t before = out->n;
    struct builder b = {.v = v, .out = out, .before = VOCAB_CONTINUES, .strip = c->strip};
    if (c->format->inst)
        close_answer(c, &b, v);
    else if (c->start >= 0 && ends_with_call(c, v, out))
        chat_add_pieces(&b, &c->call_end);
    else
        close_message(c, &b, ENGINE_ASSISTANT);
    free(b.text);
    if (b.rc)
        out->n = before;
    return b.rc;
}

enum engine_call_syntax chat_calls(const struct chat *c)
{
    return c->syntax;
}

bool chat_thinks(const struct chat *c)
{
    return (c->think_mark >= 0 && c->think_end_mark >= 0) || c->start >= 0;
}

bool chat_ends_answer(const struct chat *c, const struct vocab *v, engine_token id)
{
    return vocab_ends_answer(v, id) && (c == NULL || id != c->end); /* which ends one message of several */
}

const char *chat_mark_bytes(const struct chat *c, engine_token id)
{
    return c == NULL || id < 0 ? NULL
           : id == c->args     ? CHAT_MARK_ARGS
           : id == c->call_id  ? CHAT_MARK_ID
           : id == c->channel  ? CHAT_MARK_CHANNEL
           : id == c->message  ? CHAT_MARK_MESSAGE
                               : NULL;
}

int chat_open_text(const struct chat *c, const struct vocab *v, const char *text, size_t len, struct engine_tokens *out)
{
    const struct chat_pieces *last = c->opening.n > 0 ? &c->opening : &c->before[ENGINE_ASSISTANT];
    bool token = c->format->inst ? c->inst_end >= 0 : last->n == 0 || last->piece[last->n - 1].id >= 0;
    size_t before = out->n;
    struct builder b = {.v = v,
                        .out = out,
                        .before = token ? VOCAB_AFTER_SPECIAL : VOCAB_CONTINUES,
                        .strip = c->strip,
                        .stripping = token && c->strip};
    if (c->opens_thinking) {
        chat_add_token(&b, c->think_end_mark);
        chat_add(&b, "\n\n");
    }
    if (c->start >= 0) { /* Harmony: what stands behind the role of an answer's text */
        chat_add_token(&b, c->channel);
        chat_add(&b, "final");
        chat_add_token(&b, c->message);
    }
    if (c->format->inst && c->space_before_answer)
        chat_add(&b, " ");
    chat_add_bytes(&b, text, len);
    chat_flush(&b);
    free(b.text);
    if (b.rc)
        out->n = before;
    return b.rc;
}
