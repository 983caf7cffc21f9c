/* chat_formats.c - the chat formats: a struct each, how a template is recognised, and what is read out of one.
 *
 * A file's template is a program in a template language. It is not run: families of formats are recognised by their
 * marks, and what differs between members of a family (a default system prompt, where spaces go, whether an answer
 * opens with thinking) is read out of the template's text. docs/design.md tells how a format is added.
 */
#include "engine/text/chat_private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading a template ------------------------------------------------------------------------------------------ */

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

/* Mistral: the literal of default_system_message, where it is one and no more. One with the date in it changes from day
 * to day. */
static char *mistral_default(const struct template *t, bool *no_memory)
{
    static const char SET[] = "set default_system_message = ";
    const char *p = find(t, SET), *end = t->text + t->len;
    const char *quote = p != NULL ? p + strlen(SET) : end;
    if (quote >= end || (*quote != '\'' && *quote != '"'))
        return NULL;
    const char *close = quote + 1;
    while (close < end && *close != *quote)
        close += *close == '\\' && end - close > 1 ? 2 : 1;
    close += close < end;
    while (close < end && *close == ' ')
        close++;
    bool whole = end - close >= 2 && (memcmp(close, "%}", 2) == 0 || memcmp(close, "-%", 2) == 0);
    bool empty = quote + 1 < end && quote[1] == *quote;
    return whole && !empty ? literal(t, quote + 1, *quote, NULL, no_memory) : NULL;
}

/* A system prompt that a template begins with as it stands, outside of its language. */
static char *plain_default(const struct chat *c, const struct template *t, bool *no_memory)
{
    const char *before = c->format->role[ENGINE_SYSTEM].before, *after = c->format->role[ENGINE_SYSTEM].after;
    size_t n = strlen(before);
    const char *end = *before != '\0' && t->len > n && memcmp(t->text, before, n) == 0 ? find(t, after) : NULL;
    size_t len = end != NULL ? (size_t)(end - t->text) - n : 0;
    if (end == NULL || memmem(t->text + n, len, "{{", 2) != NULL || memmem(t->text + n, len, "{%", 2) != NULL)
        return NULL;
    char *text = strndup(t->text + n, len);
    *no_memory |= text == NULL;
    return text;
}

/* ChatML: the text of a literal "<|im_start|>system\nTEXT<|im_end|>", which templates write when there is no system
 * message; Phi 4 has <|im_sep|> for the newline. A system message of the user's is written by closing the literal and
 * adding the message. */
static char *chatml_default(const struct template *t, bool *no_memory)
{
    static const char START[] = "<|im_start|>system", *const BEHIND[] = {"\\n", "\n", "<|im_sep|>"};
    for (const char *p = find(t, START); p != NULL; p = find_from(t, p + 1, START)) {
        const char *text = p + strlen(START), *end = t->text + t->len, *begin = NULL;
        if (p == t->text || (p[-1] != '\'' && p[-1] != '"'))
            continue;
        for (size_t i = 0; begin == NULL && i < sizeof BEHIND / sizeof *BEHIND; i++)
            if ((size_t)(end - text) >= strlen(BEHIND[i]) && memcmp(text, BEHIND[i], strlen(BEHIND[i])) == 0)
                begin = text + strlen(BEHIND[i]);
        if (begin == NULL)
            continue;
        char *found = literal(t, begin, p[-1], "<|im_end|>", no_memory);
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

static int read_inst(struct chat *c, const struct template *t)
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
    return 0;
}

static int read_mistral(struct chat *c, const struct template *t)
{
    bool no_memory = false;
    if (!find(t, "[SYSTEM_PROMPT]"))
        c->system_start = c->system_end = -1;
    c->system_default = c->system_start >= 0 ? mistral_default(t, &no_memory) : NULL;
    return no_memory ? -ENOMEM : read_inst(c, t);
}

static int read_phi4(struct chat *c, const struct template *t)
{
    bool no_memory = false;
    c->system_default = chatml_default(t, &no_memory);
    if (c->system_default == NULL && !no_memory)
        c->system_default = plain_default(c, t, &no_memory);
    return no_memory ? -ENOMEM : 0;
}

/* Phi 4 mini that reasons says who it is before every system prompt, and a space. */
static int read_phi4_mini(struct chat *c, const struct template *t)
{
    static const char START[] = "{{ '<|system|>";
    const char *p = find(t, START);
    bool no_memory = false,
         has = p != NULL && t->len > (size_t)(p - t->text) + strlen(START) && p[strlen(START)] != '\'';
    c->system_default = has ? literal(t, p + strlen(START), '\'', NULL, &no_memory) : NULL;
    if (c->system_default != NULL && asprintf(&c->system_prefix, "%s ", c->system_default) < 0) {
        c->system_prefix = NULL;
        no_memory = true;
    }
    return no_memory ? -ENOMEM : 0;
}

static int read_chatml(struct chat *c, const struct template *t)
{
    bool no_memory = false;
    c->system_default = chatml_default(t, &no_memory);
    return no_memory ? -ENOMEM : 0;
}

static int read_llama3(struct chat *c, const struct template *t)
{
    bool no_memory = false;
    c->system_prefix = llama3_prefix(t, &no_memory);
    return no_memory ? -ENOMEM : 0;
}

static int read_gemma(struct chat *c, const struct template *t)
{
    bool no_memory = false;
    char *suffix = literal_after(t, "first_user_prefix = messages[0]['content'] + ", &no_memory);
    if (suffix != NULL) {
        free(c->system_suffix);
        c->system_suffix = suffix;
    }
    return no_memory ? -ENOMEM : 0;
}

/* The empty thinking that an answer opens with where none is wanted: a literal of nothing but the tags and white space.
 */
static int read_unthinking(struct chat *c, const struct template *t)
{
    static const char OPEN[] = "<think>", CLOSE[] = "</think>";
    bool no_memory = false;
    const char *p = find(t, "enable_thinking") ? find(t, OPEN) : NULL;
    for (; p != NULL && c->unthinking_text == NULL && !no_memory; p = find_from(t, p + 1, OPEN)) {
        bool quoted = p > t->text && (p[-1] == '"' || p[-1] == '\'');
        char *text = quoted ? literal(t, p, p[-1], NULL, &no_memory) : NULL;
        const char *within = text != NULL ? text + strlen(OPEN) : "", *end = within + strspn(within, "\n");
        bool closed = text != NULL && strncmp(end, CLOSE, strlen(CLOSE)) == 0;
        if (closed && end[strlen(CLOSE) + strspn(end + strlen(CLOSE), "\n")] == '\0')
            c->unthinking_text = text;
        else
            free(text);
    }
    return no_memory ? -ENOMEM : 0;
}

/* Thinking: whether an answer opens with it, how one opens that has none, and whether it is left out of earlier
 * answers. */
int chat_read_common(struct chat *c, const struct template *t)
{
    static const char THINK[] = "<think>", CUT[] = "split('</think>')", NEWLINES[] = ".lstrip('\\n')";
    if (find(t, "bos_token"))
        c->bos = true;
    /* Of several cuts one gives the thinking, and one what is behind it. */
    for (const char *cut = find(t, CUT); cut != NULL; cut = find_from(t, cut + 1, CUT)) {
        size_t left = (size_t)(t->text + t->len - cut), near = left < 48 ? left : 48;
        c->drops_thinking = true;
        c->drops_newlines |= memmem(cut, near, NEWLINES, strlen(NEWLINES)) != NULL;
    }
    c->drops_newlines_always = c->drops_newlines && !find(t, "'</think>' in ");
    /* The opening as a template writes it: what is before an answer, with newlines spelled out, then the tag. */
    const char *before = c->format->role[ENGINE_ASSISTANT].before;
    char written[160];
    size_t n = 0;
    for (const char *p = before; *p != '\0' && n + 2 < sizeof written - sizeof THINK; p++) {
        if (*p == '\n')
            written[n++] = '\\';
        written[n++] = *p == '\n' ? 'n' : *p;
    }
    memcpy(written + n, THINK, sizeof THINK);
    const char *opening = n > 0 ? find(t, written) : NULL;
    if (opening != NULL) {
        const char *behind = opening + strlen(written), *end = t->text + t->len;
        bool newline = end - behind >= 2 && behind[0] == '\\' && behind[1] == 'n';
        c->opening_text = strdup(newline ? "<think>\n" : "<think>");
        return c->opening_text != NULL ? 0 : -ENOMEM;
    }
    return read_unthinking(c, t);
}

/* The literal around p, from its beginning up to `stop` or its end. */
static char *literal_around(const struct template *t, const char *p, const char *stop, bool *no_memory)
{
    while (p > t->text && p[-1] != '"' && p[-1] != '\'')
        p--;
    return p > t->text ? literal(t, p, p[-1], stop, no_memory) : NULL;
}

/* Hermes' and Qwen3-Coder's definitions: what stands before the first and behind the last. */
static int read_marked_tools(struct chat *c, const struct template *t, enum engine_call_syntax syntax)
{
    static const char OPENING[] = "<tools>", ACCESS[] = "You have access to the following functions:";
    bool no_memory = false;
    const char *begin = find(t, "# Tools\\n"), *end = find(t, "\\n</tools>\\n"), *mark = "# Tools\n";
    if (begin == NULL && syntax == ENGINE_CALLS_XML) { /* as it was first */
        begin = find(t, ACCESS);
        mark = ACCESS;
    }
    bool apart = end == NULL && (end = find(t, "\\n\\nIf you choose to call")) != NULL;
    if (begin == NULL || end == NULL)
        return 0;
    char *first = literal_around(t, begin, NULL, &no_memory);
    char *last = literal_around(t, end, "<|im_end|>", &no_memory);
    if (last == NULL && !no_memory) /* the literal ends before */
        last = literal_around(t, end, NULL, &no_memory);
    /* Before the heading there may be what divides it from a system prompt. */
    const char *heading = first != NULL ? strstr(first, mark) : NULL;
    if (heading != NULL && last != NULL) {
        size_t n = strlen(heading), k = strlen(OPENING);
        bool opened = n >= k && strcmp(heading + n - k, OPENING) == 0;
        if (asprintf(&c->tools_head_text, "%s%s", heading, apart && !opened ? OPENING : "") < 0)
            c->tools_head_text = NULL;
        if (asprintf(&c->tools_tail_text, "%s%s", apart ? "\n</tools>" : "", last) < 0)
            c->tools_tail_text = NULL;
        no_memory = no_memory || c->tools_head_text == NULL || c->tools_tail_text == NULL;
        c->syntax = syntax;
        /* QwQ divides also where there is no system prompt. */
        if (c->system_default == NULL && c->tools_system == NULL && heading == first + 2 && heading[-1] == '\n') {
            c->tools_system = strdup("");
            no_memory |= c->tools_system == NULL;
        }
    }
    free(first);
    free(last);
    return no_memory ? -ENOMEM : 0;
}

/* Qwen3-Coder: as Hermes', with XML within the marks. */
static int read_xml_tools(struct chat *c, const struct template *t)
{
    static const char SYSTEM[] = "<|im_start|>system\\n";
    bool no_memory = false;
    if (!find(t, "<parameter=") || !find(t, "\\n<function>\\n<name>") || !find(t, "<tool_response>\\n"))
        return 0;
    c->ticks = find(t, "render_item_list") != NULL;
    for (const char *p = find(t, SYSTEM); p != NULL && c->tools_system == NULL; p = find_from(t, p + 1, SYSTEM)) {
        char *text = p > t->text && (p[-1] == '"' || p[-1] == '\'')
                         ? literal(t, p + strlen(SYSTEM), p[-1], NULL, &no_memory)
                         : NULL;
        if (text != NULL && text[0] != '\0')
            c->tools_system = text;
        else
            free(text);
    }
    return no_memory ? -ENOMEM : read_marked_tools(c, t, ENGINE_CALLS_XML);
}

#define LLAMA_RESPOND                                                                                                  \
    "Respond in the format {\"name\": function name, \"parameters\": dictionary of argument name and its value}."

static int read_llama_tools(struct chat *c, const struct template *t)
{
    static const char *const NEEDED[] = {
        "Given the following functions, please respond with a JSON for a function call ",
        "with its proper arguments that best answers the given prompt.\\n\\n", LLAMA_RESPOND,
        "Do not use variables.\\n\\n", "Environment: ipython\\n"};
    for (size_t i = 0; i < sizeof NEEDED / sizeof *NEEDED; i++)
        if (!find(t, NEEDED[i]))
            return 0;
    c->tools_head_text =
        strdup("Given the following functions, please respond with a JSON for a function call with its "
               "proper arguments that best answers the given prompt.\n\n" LLAMA_RESPOND "Do not use variables.\n\n");
    /* As the template writes them where they are to stand in the system message. */
    c->tools_tail_text =
        strdup("You have access to the following functions. To call a function, please respond with JSON "
               "for a function call." LLAMA_RESPOND "Do not use variables.\n\n");
    if (c->tools_head_text == NULL || c->tools_tail_text == NULL)
        return -ENOMEM;
    c->syntax = ENGINE_CALLS_LLAMA;
    return 0;
}

static void read_mistral_tools(struct chat *c, const struct template *t)
{
    if (!find(t, "[TOOL_CALLS]") || !find(t, "[AVAILABLE_TOOLS]") || !find(t, "[TOOL_RESULTS]"))
        return;
    bool named = find(t, "[ARGS]") != NULL;
    c->list_space = find(t, "[TOOL_CALLS] ") != NULL;
    c->result_json = find(t, "call_id\": ") != NULL || find(t, "call_id\\\": ") != NULL;
    c->result_ids = c->result_json || find(t, "[TOOL_CONTENT]") != NULL;
    c->call_ids = named ? find(t, "[CALL_ID]") != NULL : find(t, "\"id\": ") != NULL;
    c->syntax = named ? (c->call_ids ? ENGINE_CALLS_MISTRAL_ID : ENGINE_CALLS_MISTRAL)
                      : (c->call_ids ? ENGINE_CALLS_MISTRAL_LIST_ID : ENGINE_CALLS_MISTRAL_LIST);
}

int chat_read_tools(struct chat *c, const struct template *t)
{
    const char *format = c->format->name;
    if (strcmp(format, "chatml") == 0 && find(t, "<function="))
        return read_xml_tools(c, t);
    if (strcmp(format, "chatml") == 0 && find(t, "<tool_call>\\n{") && find(t, "<tool_response>"))
        return read_marked_tools(c, t, ENGINE_CALLS_HERMES);
    if (strcmp(format, "llama3") == 0)
        return read_llama_tools(c, t);
    if (strcmp(format, "mistral") == 0)
        read_mistral_tools(c, t);
    if (strcmp(format, "harmony") == 0 && find(t, "namespace ") && find(t, "functions"))
        c->syntax = ENGINE_CALLS_HARMONY;
    return 0;
}

/* ---- the formats ------------------------------------------------------------------------------------------------- */

static void mistral_defaults(struct chat *c, const struct vocab *v)
{
    c->inst = vocab_special(v, "[INST]");
    c->inst_end = vocab_special(v, "[/INST]");
    c->system_start = vocab_special(v, "[SYSTEM_PROMPT]");
    c->system_end = vocab_special(v, "[/SYSTEM_PROMPT]");
    if (strcmp(vocab_model(v), "llama") == 0) {
        c->space_after_inst = c->space_before_answer = true;
        c->space_before_end = c->inst < 0;
    }
}

static void llama2_defaults(struct chat *c, const struct vocab *v)
{
    (void)v;
    c->named_system = true;
    c->space_after_inst = c->space_before_end = c->space_before_answer = c->space_after_answer = true;
    c->trim_user = c->trim_answer = c->bos_each_turn = true;
}

static void harmony_defaults(struct chat *c, const struct vocab *v)
{
    c->start = vocab_special(v, "<|start|>");
    c->channel = vocab_special(v, "<|channel|>");
    c->message = vocab_special(v, "<|message|>");
    c->constrain = vocab_special(v, "<|constrain|>");
    c->end = vocab_special(v, "<|end|>");
}

#define HARMONY_SYSTEM                                                                                                 \
    "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n"                           \
    "Knowledge cutoff: 2024-06\n\nReasoning: medium\n\n"                                                               \
    "# Valid channels: analysis, commentary, final. Channel must be included for every message."

/* In the order in which a template is held against them. */
static const struct chat_format FORMATS[] = {
    {
        .name = "phi4",
        .marks = {"<|im_start|>", "<|im_sep|>"},
        .needed = {"<|im_start|>", "<|im_sep|>", "<|im_end|>"},
        .role = {[ENGINE_SYSTEM] = {"<|im_start|>system<|im_sep|>", "<|im_end|>"},
                 [ENGINE_USER] = {"<|im_start|>user<|im_sep|>", "<|im_end|>"},
                 [ENGINE_ASSISTANT] = {"<|im_start|>assistant<|im_sep|>", "<|im_end|>"}},
        .read = read_phi4,
    },
    {
        .name = "chatml",
        .marks = {"<|im_start|>"},
        .needed = {"<|im_start|>", "<|im_end|>"},
        .role = {[ENGINE_SYSTEM] = {"<|im_start|>system\n", "<|im_end|>\n"},
                 [ENGINE_USER] = {"<|im_start|>user\n", "<|im_end|>\n"},
                 [ENGINE_ASSISTANT] = {"<|im_start|>assistant\n", "<|im_end|>\n"}},
        .read = read_chatml,
    },
    {
        .name = "llama3",
        .marks = {"<|start_header_id|>"},
        .needed = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
        .bos = true,
        .trim = true,
        .role = {[ENGINE_SYSTEM] = {"<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"},
                 [ENGINE_USER] = {"<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"},
                 [ENGINE_ASSISTANT] = {"<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"}},
        .read = read_llama3,
    },
    {
        .name = "gemma",
        .marks = {"<start_of_turn>"},
        .needed = {"<start_of_turn>", "<end_of_turn>"},
        .bos = true,
        .trim = true,
        .order = CHAT_ALTERNATE,
        .system_in_user = true,
        .system_suffix = "\n\n",
        .role = {[ENGINE_SYSTEM] = {"", ""},
                 [ENGINE_USER] = {"<start_of_turn>user\n", "<end_of_turn>\n"},
                 [ENGINE_ASSISTANT] = {"<start_of_turn>model\n", "<end_of_turn>\n"}},
        .read = read_gemma,
    },
    {
        /* DeepSeek R1 and its distillations */
        .name = "deepseek",
        .marks = {"<\xef\xbd\x9cUser\xef\xbd\x9c>", "<\xef\xbd\x9c"
                                                    "Assistant\xef\xbd\x9c>"},
        .needed = {"<\xef\xbd\x9cUser\xef\xbd\x9c>", "<\xef\xbd\x9c"
                                                     "Assistant\xef\xbd\x9c>"},
        .needs_eos = true,
        .bos = true,
        .order = CHAT_SYSTEM_FIRST,
        .role = {[ENGINE_SYSTEM] = {"", ""},
                 [ENGINE_USER] = {"<\xef\xbd\x9cUser\xef\xbd\x9c>", ""},
                 [ENGINE_ASSISTANT] = {"<\xef\xbd\x9c"
                                       "Assistant\xef\xbd\x9c>",
                                       "{eos}"}},
    },
    {
        /* gpt-oss. An answer is several messages, each of which says its channel: the model goes on behind its role. */
        .name = "harmony",
        .marks = {"<|start|>", "<|channel|>", "<|message|>"},
        .needed = {"<|start|>", "<|channel|>", "<|message|>", "<|end|>"},
        .order = CHAT_SYSTEM_FIRST,
        .preamble = HARMONY_SYSTEM "<|end|>",
        .preamble_tools =
            HARMONY_SYSTEM "\nCalls to these tools must go to the commentary channel: 'functions'.<|end|>",
        .effort = "\nReasoning: ",
        .answer = "<|start|>assistant",
        .defaults = harmony_defaults,
        .role = {[ENGINE_SYSTEM] = {"<|start|>developer<|message|># Instructions\n\n", "\n\n<|end|>"},
                 [ENGINE_USER] = {"<|start|>user<|message|>", "<|end|>"},
                 [ENGINE_ASSISTANT] = {"<|start|>assistant<|channel|>final<|message|>", "<|end|>"}},
    },
    {
        .name = "llama2",
        .marks = {"[INST]", "[/INST]", "<<SYS>>"},
        .needs_eos = true,
        .bos = true,
        .inst = true,
        .order = CHAT_ALTERNATE,
        .system_suffix = "\n<</SYS>>\n\n",
        .role = {{"", ""}, {"", ""}, {"", ""}},
        .read = read_inst,
        .defaults = llama2_defaults,
    },
    {
        .name = "mistral",
        .marks = {"[INST]", "[/INST]"},
        .needs_eos = true,
        .bos = true,
        .inst = true,
        .order = CHAT_ALTERNATE,
        .system_suffix = "\n\n",
        .role = {{"", ""}, {"", ""}, {"", ""}},
        .read = read_mistral,
        .defaults = mistral_defaults,
    },
    {
        /* Granite 3 */
        .name = "granite",
        .marks = {"<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"},
        .needed = {"<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"},
        .role = {[ENGINE_SYSTEM] = {"<|start_of_role|>system<|end_of_role|>", "<|end_of_text|>\n"},
                 [ENGINE_USER] = {"<|start_of_role|>user<|end_of_role|>", "<|end_of_text|>\n"},
                 [ENGINE_ASSISTANT] = {"<|start_of_role|>assistant<|end_of_role|>", "<|end_of_text|>\n"}},
    },
    {
        .name = "phi4-mini",
        .marks = {"'<|' + message['role'] + '|>'", "<|end|>"},
        .needed = {"<|user|>", "<|assistant|>", "<|end|>"},
        .role = {[ENGINE_SYSTEM] = {"<|system|>", "<|end|>"},
                 [ENGINE_USER] = {"<|user|>", "<|end|>"},
                 [ENGINE_ASSISTANT] = {"<|assistant|>", "<|end|>"}},
        .read = read_phi4_mini,
    },
    {
        .name = "phi3",
        .marks = {"<|user|>", "<|assistant|>", "<|end|>"},
        .needed = {"<|user|>", "<|assistant|>", "<|end|>"},
        .spm_strips = true,
        .role = {[ENGINE_SYSTEM] = {"<|system|>\n", "<|end|>\n"},
                 [ENGINE_USER] = {"<|user|>\n", "<|end|>\n"},
                 [ENGINE_ASSISTANT] = {"<|assistant|>\n", "<|end|>\n"}},
    },
    {
        .name = "zephyr",
        .marks = {"<|user|>", "<|assistant|>", "eos_token"},
        .without = "<|end|>",
        .needs_eos = true,
        .role = {[ENGINE_SYSTEM] = {"<|system|>\n", "{eos}\n"},
                 [ENGINE_USER] = {"<|user|>\n", "{eos}\n"},
                 [ENGINE_ASSISTANT] = {"<|assistant|>\n", "{eos}\n"}},
    },
};

const struct chat_format *chat_format_at(size_t i)
{
    return i < sizeof FORMATS / sizeof *FORMATS ? &FORMATS[i] : NULL;
}

const struct chat_format *chat_format_named(const char *name)
{
    for (size_t i = 0; i < sizeof FORMATS / sizeof *FORMATS; i++)
        if (strcmp(FORMATS[i].name, name) == 0)
            return &FORMATS[i];
    return NULL;
}

const struct chat_format *chat_format_of(const struct template *t)
{
    for (size_t i = 0; i < sizeof FORMATS / sizeof *FORMATS; i++) {
        const struct chat_format *f = &FORMATS[i];
        bool all = f->without == NULL || !find(t, f->without);
        for (size_t k = 0; all && k < sizeof f->marks / sizeof *f->marks && f->marks[k] != NULL; k++)
            all = find(t, f->marks[k]) != NULL;
        if (all)
            return f;
    }
    return NULL;
}
