/* chat_test.c - chat formats: renderings made by the template language itself, what can be split, what cannot be
 * forged.
 *
 * tests/data/chat-rendered.jsonl holds, for members of every family, a short template with the marks of the published
 * one, messages, and the rendering that both give (chat_rendered.py makes it). The tokens must be those of the rendered
 * text as a whole.
 */
#include "engine/text/text.h"
#include "tests/engine/golden.h"
#include "tests/engine/models.h"
#include "tests/engine/text_fixture.h"
#include "tests/engine/tiny_vocab.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cJSON.h>
#include <cmocka.h>

#define MAX_MESSAGES 12

static char err[512];

struct conversation {
    struct engine_message messages[MAX_MESSAGES];
    size_t n;
    char *texts[MAX_MESSAGES]; /* that are its own */
    size_t n_texts;
};

static void conversation_free(struct conversation *c)
{
    for (size_t i = 0; i < c->n_texts; i++)
        free(c->texts[i]);
}

static void add_message(struct conversation *c, enum engine_role role, const char *text, const char *name,
                        const char *id)
{
    assert_in_range(c->n, 0, MAX_MESSAGES - 1);
    c->messages[c->n++] =
        (struct engine_message){.role = role, .text = text, .len = strlen(text), .name = name, .id = id};
}

/* The name of the call with this id; NULL: of no call's. */
static const char *name_of_call(const struct conversation *c, const char *id)
{
    for (size_t i = c->n; id != NULL && i-- > 0;)
        if (c->messages[i].role == ENGINE_CALL && c->messages[i].id != NULL && strcmp(c->messages[i].id, id) == 0)
            return c->messages[i].name;
    return NULL;
}

/* As JSON, with other white space than templates write. */
static void add_json(struct conversation *c, enum engine_role role, const cJSON *value, const char *name,
                     const char *id)
{
    char *text = engine_json_print(value);
    assert_non_null(text);
    c->texts[c->n_texts++] = text;
    add_message(c, role, text, name, id);
}

static struct conversation read_messages(const cJSON *line)
{
    struct conversation c = {.n = 0};
    const cJSON *tools = cJSON_GetObjectItem(line, "tools"), *m, *call;
    if (tools != NULL)
        add_json(&c, ENGINE_TOOLS, tools, NULL, NULL);
    cJSON_ArrayForEach(m, cJSON_GetObjectItem(line, "messages"))
    {
        const char *role = cJSON_GetObjectItem(m, "role")->valuestring;
        const char *text = cJSON_GetObjectItem(m, "content")->valuestring;
        const cJSON *calls = cJSON_GetObjectItem(m, "tool_calls");
        const char *id = cJSON_GetStringValue(cJSON_GetObjectItem(m, "tool_call_id"));
        if (calls == NULL || text[0] != '\0')
            add_message(&c,
                        strcmp(role, "system") == 0 ? ENGINE_SYSTEM
                        : strcmp(role, "user") == 0 ? ENGINE_USER
                        : strcmp(role, "tool") == 0 ? ENGINE_RESULT
                                                    : ENGINE_ASSISTANT,
                        text, name_of_call(&c, id), id);
        cJSON_ArrayForEach(call, calls)
        {
            const cJSON *f = cJSON_GetObjectItem(call, "function");
            add_json(&c, ENGINE_CALL, cJSON_GetObjectItem(f, "arguments"), cJSON_GetObjectItem(f, "name")->valuestring,
                     cJSON_GetStringValue(cJSON_GetObjectItem(call, "id")));
        }
    }
    return c;
}

static struct conversation one(enum engine_role role, const char *text)
{
    return (struct conversation){.messages = {{.role = role, .text = text, .len = strlen(text)}}, .n = 1};
}

static void render(const struct chat *c, const struct vocab *v, const struct engine_message *messages, size_t n,
                   unsigned flags, struct engine_tokens *out)
{
    if (chat_render(c, v, messages, n, flags, out, err, sizeof err) != 0)
        fail_msg("%s", err);
}

/* Whether two messages are written as one: a leading system prompt with what is before or behind it, and the parts of
 * an answer, and results. */
static bool joined(const struct engine_message *m, size_t cut)
{
    enum engine_role before = m[cut - 1].role, behind = m[cut].role;
    return (cut <= 2 && (before == ENGINE_SYSTEM || before == ENGINE_TOOLS)) || behind == ENGINE_CALL ||
           (before == ENGINE_RESULT && behind == ENGINE_RESULT);
}

/* A conversation in two calls, cut anywhere but within one of these, gives the same tokens. */
static void check_splits(const struct chat *c, const struct vocab *v, const struct conversation *k, unsigned effort,
                         const struct engine_tokens *whole)
{
    for (size_t cut = 1; cut < k->n; cut++) {
        struct engine_tokens parts = {0};
        if (joined(k->messages, cut))
            continue;
        render(c, v, k->messages, cut, ENGINE_CHAT_FIRST | effort, &parts);
        render(c, v, k->messages + cut, k->n - cut, ENGINE_CHAT_OPEN | effort, &parts);
        golden_compare(v, "(in two calls)", 14, parts.ids, parts.n, whole->ids, whole->n);
        engine_tokens_free(&parts);
    }
}

/* An answer that was generated and closed lies in the context as if it had been rendered; where answers open with
 * thinking, which earlier ones have not, up to that opening. */
static void check_close(const struct chat *c, const struct vocab *v, const struct conversation *k, unsigned effort,
                        bool thinks)
{
    for (size_t i = 1; i < k->n; i++) {
        if (k->messages[i].role != ENGINE_ASSISTANT)
            continue;
        struct engine_tokens asked = {0}, answered = {0}, closing = {0};
        render(c, v, k->messages, i, ENGINE_CHAT_FIRST | ENGINE_CHAT_OPEN | effort, &asked);
        render(c, v, k->messages, i + 1, ENGINE_CHAT_FIRST | effort, &answered);
        assert_int_equal(chat_close(c, v, &closing), 0);
        assert_in_range(closing.n, 1, 3);
        assert_true(thinks || asked.n + closing.n <= answered.n);
        engine_token think = vocab_special(v, "<think>");
        size_t opened = asked.n;
        for (size_t t = asked.n; thinks && t-- > 0;)
            if (asked.ids[t] == think) {
                opened = t;
                break;
            }
        assert_int_equal(opened < asked.n, thinks);
        golden_compare(v, "(opening)", 9, answered.ids, opened, asked.ids, opened);
        golden_compare(v, "(closing)", 9, answered.ids + answered.n - closing.n, closing.n, closing.ids, closing.n);
        engine_tokens_free(&asked);
        engine_tokens_free(&answered);
        engine_tokens_free(&closing);
    }
}

static struct text_fixture open_rendered(const cJSON *line)
{
    const cJSON *tokens = cJSON_GetObjectItem(line, "tokens"), *t;
    const char *control[TINY_MAX_CONTROL], *bos = cJSON_GetObjectItem(line, "bos")->valuestring;
    const char *eos = cJSON_GetObjectItem(line, "eos")->valuestring;
    const char *chat_template = cJSON_GetObjectItem(line, "template")->valuestring;
    bool spm = strcmp(cJSON_GetObjectItem(line, "model")->valuestring, "llama") == 0, has_bos = false, has_eos = false;
    int n = 0;
    cJSON_ArrayForEach(t, tokens)
    {
        has_bos |= strcmp(t->valuestring, bos) == 0;
        has_eos |= strcmp(t->valuestring, eos) == 0;
        if (!spm || (strcmp(t->valuestring, bos) != 0 && strcmp(t->valuestring, eos) != 0))
            control[n++] = t->valuestring;
    }
    if (!spm && !has_bos && bos[0] != '\0')
        control[n++] = bos;
    if (!spm && !has_eos)
        control[n++] = eos;
    struct gguf_writer *w = gguf_writer_new();
    if (spm)
        tiny_vocab_spm_with(w, control, n, bos, eos, chat_template);
    else
        tiny_vocab_bpe_with(w, strcmp(eos, "</s>") == 0 ? "tekken" : "llama-bpe", control, n, bos, eos, chat_template);
    if (strncmp(cJSON_GetObjectItem(line, "format")->valuestring, "gemma", 5) == 0)
        gguf_writer_bool(w, "tokenizer.ggml.add_space_prefix", false);
    if (spm && strstr(chat_template, "bos_token") == NULL)
        gguf_writer_bool(w, "tokenizer.ggml.add_bos_token", false);
    return text_fixture_written(w);
}

/* Takes white space out that follows |>, as Phi 3's tokenizer does. */
static void strip_behind_tokens(char *text)
{
    char *to = text;
    for (const char *p = text; *p != '\0';) {
        *to++ = *p++;
        while (to - text >= 2 && to[-1] == '>' && to[-2] == '|' && (*p == ' ' || *p == '\n'))
            p++;
    }
    *to = '\0';
}

/* What the template was told of thinking, as flags. */
static unsigned effort_of(const cJSON *line)
{
    const cJSON *arguments = cJSON_GetObjectItem(line, "arguments");
    const char *word = cJSON_GetStringValue(cJSON_GetObjectItem(arguments, "reasoning_effort"));
    unsigned flags = cJSON_IsFalse(cJSON_GetObjectItem(arguments, "enable_thinking")) ? ENGINE_CHAT_NO_THINKING : 0;
    if (word != NULL)
        flags |= strcmp(word, "low") == 0 ? ENGINE_CHAT_LOW : ENGINE_CHAT_HIGH;
    return flags;
}

static void check_line(const char *text)
{
    cJSON *line = engine_json_parse(text, strlen(text), NULL);
    assert_non_null(line);
    struct text_fixture f = open_rendered(line);
    struct chat *c = NULL;
    if (chat_open(f.g, f.v, NULL, &c, err, sizeof err) != 0)
        fail_msg("%s", err);
    assert_string_equal(chat_format(c), cJSON_GetObjectItem(line, "format")->valuestring);
    const char *prompt = cJSON_GetObjectItem(line, "prompt")->valuestring;
    struct conversation k = read_messages(line);
    struct engine_tokens wanted = {0}, got = {0};
    char *read = strdup(prompt); /* as its tokenizer reads it */
    assert_non_null(read);
    if (cJSON_IsTrue(cJSON_GetObjectItem(line, "strips")))
        strip_behind_tokens(read);
    assert_int_equal(vocab_tokenize(f.v, read, strlen(read), VOCAB_PARSE_SPECIAL, &wanted), 0);
    free(read);
    unsigned effort = effort_of(line);
    render(c, f.v, k.messages, k.n, ENGINE_CHAT_FIRST | ENGINE_CHAT_OPEN | effort, &got);
    if (got.n != wanted.n || memcmp(got.ids, wanted.ids, got.n * sizeof *got.ids) != 0)
        print_error("template %s\n", cJSON_GetObjectItem(line, "name")->valuestring);
    golden_compare(f.v, prompt, strlen(prompt), got.ids, got.n, wanted.ids, wanted.n);
    check_splits(c, f.v, &k, effort, &got);
    check_close(c, f.v, &k, effort,
                (effort & ENGINE_CHAT_NO_THINKING) || cJSON_IsTrue(cJSON_GetObjectItem(line, "thinks")));
    /* The tokens tell it again; where none was named, the template's own. */
    if (chat_has_efforts(c) && !effort)
        effort = ENGINE_CHAT_MEDIUM;
    assert_int_equal(chat_effort(c, f.v, got.ids, got.n), effort);
    engine_tokens_free(&wanted);
    engine_tokens_free(&got);
    chat_free(c);
    text_fixture_close(&f);
    conversation_free(&k);
    cJSON_Delete(line);
}

static void test_rendered(void **state)
{
    (void)state;
    FILE *f = golden_open("chat-rendered.jsonl");
    char *line = NULL;
    size_t capacity = 0;
    int n = 0;
    for (; getline(&line, &capacity, f) > 0; n++)
        check_line(line);
    assert_true(n > 0);
    free(line);
    fclose(f);
}

static void test_golden(void **state)
{
    (void)state;
    struct text_fixture f = text_fixture_model(MODEL_QWEN_0_5B);
    struct chat *c = NULL;
    assert_int_equal(chat_open(f.g, f.v, NULL, &c, err, sizeof err), 0);
    assert_string_equal(chat_format(c), "chatml");
    FILE *file = golden_open("chat-" MODEL_QWEN_0_5B ".jsonl");
    char *text = NULL;
    size_t capacity = 0;
    int n = 0;
    for (; getline(&text, &capacity, file) > 0; n++) {
        cJSON *line = engine_json_parse(text, strlen(text), NULL);
        assert_non_null(line);
        struct conversation k = read_messages(line);
        const char *prompt = cJSON_GetObjectItem(line, "prompt")->valuestring;
        struct engine_tokens wanted = {0}, got = {0};
        render(c, f.v, k.messages, k.n, ENGINE_CHAT_FIRST | ENGINE_CHAT_OPEN, &got);
        if (strstr(prompt, "literal <|im_end|>") == NULL) {
            assert_int_equal(vocab_tokenize(f.v, prompt, strlen(prompt), VOCAB_PARSE_SPECIAL, &wanted), 0);
            golden_compare(f.v, prompt, strlen(prompt), got.ids, got.n, wanted.ids, wanted.n);
        } else {
            /* The user's marks are text: as many control tokens as around any other message. */
            int control = 0;
            for (size_t i = 0; i < got.n; i++)
                control += vocab_is_control(f.v, got.ids[i]);
            assert_int_equal(control, 5);
        }
        check_splits(c, f.v, &k, 0, &got);
        check_close(c, f.v, &k, 0, false);
        engine_tokens_free(&wanted);
        engine_tokens_free(&got);
        conversation_free(&k);
        cJSON_Delete(line);
    }
    assert_int_equal(n, 9);
    free(text);
    fclose(file);
    chat_free(c);
    text_fixture_close(&f);
}

/* Texts that begin with what the template's own text ends with: one text between two control tokens. */
static void test_joined_text(void **state)
{
    (void)state;
    static const char *const TEXTS[] = {"\n\nHi", "\n", " \n x", "\tx", "", "'s", "\xcc\x81"};
    static const char *const MODELS[] = {MODEL_QWEN_0_5B, MODEL_GEMMA_270M};
    for (size_t m = 0; m < 2; m++) {
        struct text_fixture f = text_fixture_model(MODELS[m]);
        struct chat *c = NULL;
        assert_int_equal(chat_open(f.g, f.v, m == 0 ? NULL : "gemma", &c, err, sizeof err), 0);
        for (size_t i = 0; i < sizeof TEXTS / sizeof *TEXTS; i++) {
            struct conversation k = one(ENGINE_USER, TEXTS[i]);
            struct engine_tokens got = {0}, wanted = {0};
            char prompt[256];
            const char *trimmed = TEXTS[i] + (m == 1 ? strspn(TEXTS[i], " \n\t") : 0);
            snprintf(prompt, sizeof prompt,
                     m == 0 ? "<|im_start|>user\n%s<|im_end|>\n" : "<start_of_turn>user\n%s<end_of_turn>\n", trimmed);
            render(c, f.v, k.messages, k.n, 0, &got);
            assert_int_equal(vocab_tokenize(f.v, prompt, strlen(prompt), VOCAB_PARSE_SPECIAL, &wanted), 0);
            golden_compare(f.v, prompt, strlen(prompt), got.ids, got.n, wanted.ids, wanted.n);
            engine_tokens_free(&got);
            engine_tokens_free(&wanted);
        }
        chat_free(c);
        text_fixture_close(&f);
    }
}

static int count_special(const struct vocab *v, const struct engine_tokens *t)
{
    int n = 0;
    for (size_t i = 0; i < t->n; i++) {
        struct gguf_string s = vocab_token_text(v, t->ids[i]);
        char text[64];
        snprintf(text, sizeof text, "%.*s", (int)s.len, s.text);
        n += s.len > 1 && vocab_special(v, text) == t->ids[i];
    }
    return n;
}

static void test_nothing_can_be_forged(void **state)
{
    (void)state;
    struct text_fixture f = text_fixture_model(MODEL_QWEN_0_5B);
    struct chat *c = NULL;
    assert_int_equal(chat_open(f.g, f.v, NULL, &c, err, sizeof err), 0);
    for (engine_token id = 151643; id <= 151664; id++) { /* every control token, and <tool_call> */
        struct gguf_string s = vocab_token_text(f.v, id);
        struct engine_message m = {.role = ENGINE_USER, .text = s.text, .len = s.len};
        struct engine_tokens t = {0};
        render(c, f.v, &m, 1, 0, &t);
        assert_int_equal(count_special(f.v, &t), 2);
        engine_tokens_free(&t);
    }
    chat_free(c);
    text_fixture_close(&f);
}

static struct gguf_writer *write_chatml(const char *chat_template)
{
    static const char *const CONTROL[] = {"<|im_start|>", "<|im_end|>"};
    struct gguf_writer *w = gguf_writer_new();
    tiny_vocab_bpe_with(w, "qwen2", CONTROL, 2, "", "<|im_end|>", chat_template);
    return w;
}

static int open_template(const char *chat_template, const char *format, struct text_fixture *f, struct chat **c)
{
    *f = text_fixture_written(write_chatml(chat_template));
    *c = NULL;
    err[0] = '\0';
    return chat_open(f->g, f->v, format, c, err, sizeof err);
}

static void test_recognition(void **state)
{
    (void)state;
    struct text_fixture f;
    struct chat *c;
    assert_int_equal(open_template(NULL, NULL, &f, &c), 0);
    assert_null(c); /* a base model */
    text_fixture_close(&f);
    assert_int_equal(open_template("", NULL, &f, &c), 0);
    assert_null(c);
    text_fixture_close(&f);
    assert_int_equal(open_template(NULL, "chatml", &f, &c), 0);
    assert_string_equal(chat_format(c), "chatml");
    chat_free(c);
    text_fixture_close(&f);
    assert_int_equal(open_template("{{ '### Instruction:' }}", NULL, &f, &c), -ENOTSUP);
    assert_non_null(strstr(err, "setting chat-format"));
    text_fixture_close(&f);
    assert_int_equal(open_template("{{ '### Instruction:' }}", "chatml", &f, &c), 0);
    chat_free(c);
    text_fixture_close(&f);
    assert_int_equal(open_template("<|im_start|>user<|im_sep|>", NULL, &f, &c), -ENOTSUP);
    text_fixture_close(&f);
    assert_int_equal(open_template("<|im_start|>", "alpaca", &f, &c), -EINVAL);
    assert_non_null(strstr(err, "alpaca"));
    text_fixture_close(&f);
    assert_int_equal(open_template("<start_of_turn>", NULL, &f, &c), -ENOTSUP);
    assert_non_null(strstr(err, "<start_of_turn>"));
    text_fixture_close(&f);
    assert_int_equal(open_template(NULL, "llama3", &f, &c), -ENOTSUP);
    text_fixture_close(&f);
    chat_free(NULL);
}

/* Templates that end in the middle of what is read out of them. */
static void test_odd_templates(void **state)
{
    (void)state;
    static const char *const ODD[] = {
        "<|im_start|>system",
        "'<|im_start|>system\\n",
        "'<|im_start|>system\\",
        "'<|im_start|>system\nabc",
        "'<|im_start|>system\\nabc\\",
        "'<|im_start|>system\\nabc' <|im_end|>",
        "'<|im_start|>system\\n<|im_end|>'",
    };
    struct text_fixture f;
    struct chat *c;
    for (size_t i = 0; i < sizeof ODD / sizeof *ODD; i++) {
        assert_int_equal(open_template(ODD[i], NULL, &f, &c), 0);
        struct conversation k = one(ENGINE_USER, "hello");
        struct engine_tokens t = {0};
        render(c, f.v, k.messages, k.n, ENGINE_CHAT_FIRST, &t);
        assert_int_equal(count_special(f.v, &t), 2); /* no default system prompt */
        engine_tokens_free(&t);
        chat_free(c);
        text_fixture_close(&f);
    }
    /* A default system prompt that is longer than the limit is none; one that is as long is one. */
    char *long_template = malloc(CHAT_MAX_LITERAL_BYTES + 64);
    assert_non_null(long_template);
    for (size_t extra = 0; extra < 2; extra++) {
        size_t n = (size_t)sprintf(long_template, "'<|im_start|>system\n");
        memset(long_template + n, 'x', CHAT_MAX_LITERAL_BYTES - 1 + extra);
        strcpy(long_template + n + CHAT_MAX_LITERAL_BYTES - 1 + extra, "<|im_end|>'");
        assert_int_equal(open_template(long_template, NULL, &f, &c), 0);
        struct engine_tokens t = {0};
        render(c, f.v, NULL, 0, ENGINE_CHAT_FIRST, &t);
        assert_int_equal(count_special(f.v, &t), extra == 0 ? 2 : 0);
        engine_tokens_free(&t);
        chat_free(c);
        text_fixture_close(&f);
    }
    free(long_template);
    char *huge = malloc(CHAT_MAX_TEMPLATE_BYTES + 2);
    assert_non_null(huge);
    memset(huge, ' ', CHAT_MAX_TEMPLATE_BYTES + 1);
    huge[CHAT_MAX_TEMPLATE_BYTES + 1] = '\0';
    assert_int_equal(open_template(huge, "chatml", &f, &c), -EBADMSG);
    text_fixture_close(&f);
    free(huge);
}

/* Mistral's default system prompt, where it is a literal of the template and no more; the marks that it is written
 * with are counted. */
static void test_mistral_defaults(void **state)
{
    (void)state;
#define MARKS "[INST][/INST][SYSTEM_PROMPT]"
    static const struct {
        const char *text;
        bool written;
    } TEMPLATES[] = {
        {MARKS "{% set default_system_message = 'kind' %}", true},
        {MARKS "{%- set default_system_message = \"it's\\\"kind\" -%}", true},
        {MARKS "{% set default_system_message = 'on ' + today + ', kind' %}", false},
        {MARKS "{% set default_system_message = today %}", false},
        {MARKS "{% set default_system_message = '' %}", false},
        {MARKS "{% set default_system_message = 'kind", false},
        {MARKS "{% set default_system_message = 'kind\\", false},
        {MARKS "{% set default_system_message = 'kind'", false},
        {MARKS "{% set default_system_message = ", false},
        {"[INST][/INST]{% set default_system_message = 'kind' %}", false}, /* no place for it */
    };
    static const char *const CONTROL[] = {"<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"};
    for (size_t i = 0; i < sizeof TEMPLATES / sizeof *TEMPLATES; i++) {
        struct gguf_writer *w = gguf_writer_new();
        tiny_vocab_bpe_with(w, "tekken", CONTROL, 6, "<s>", "</s>", TEMPLATES[i].text);
        struct text_fixture f = text_fixture_written(w);
        struct chat *c = NULL;
        assert_int_equal(chat_open(f.g, f.v, NULL, &c, err, sizeof err), 0);
        struct conversation k = one(ENGINE_USER, "hello");
        for (size_t n = 0; n <= k.n; n++) { /* also before its first message */
            struct engine_tokens t = {0};
            render(c, f.v, k.messages, n, ENGINE_CHAT_FIRST, &t);
            assert_int_equal(count_special(f.v, &t), 1 + 2 * n + (TEMPLATES[i].written ? 2 : 0));
            engine_tokens_free(&t);
        }
        chat_free(c);
        text_fixture_close(&f);
    }
#undef MARKS
}

static void test_orders(void **state)
{
    (void)state;
    static const struct {
        const char *roles;
        unsigned flags;
        bool gemma;
    } CASES[] = {
        {"u", ENGINE_CHAT_FIRST | ENGINE_CHAT_OPEN, true},
        {"su", ENGINE_CHAT_FIRST, true},
        {"ua", ENGINE_CHAT_FIRST, true},
        {"suau", ENGINE_CHAT_FIRST | ENGINE_CHAT_OPEN, true},
        {"a", 0, true},
        {"", ENGINE_CHAT_FIRST, true},
        {"s", ENGINE_CHAT_FIRST, false},
        {"sa", ENGINE_CHAT_FIRST, false},
        {"a", ENGINE_CHAT_FIRST, false},
        {"uu", ENGINE_CHAT_FIRST, false},
        {"uaa", ENGINE_CHAT_FIRST, false},
        {"uas", 0, false},
        {"ua", ENGINE_CHAT_OPEN, false},
        {"ss", 0, false},
    };
    struct text_fixture f = text_fixture_model(MODEL_GEMMA_270M), q = text_fixture_written(write_chatml(NULL));
    struct chat *gemma = NULL, *chatml = NULL;
    assert_int_equal(chat_open(f.g, f.v, NULL, &gemma, err, sizeof err), 0);
    assert_null(gemma); /* the file is a base model */
    assert_int_equal(chat_open(f.g, f.v, "gemma", &gemma, err, sizeof err), 0);
    assert_int_equal(chat_open(q.g, q.v, "chatml", &chatml, err, sizeof err), 0);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct conversation k = {.n = strlen(CASES[i].roles)};
        for (size_t m = 0; m < k.n; m++) {
            char r = CASES[i].roles[m];
            k.messages[m] = (struct engine_message){.role = r == 's'   ? ENGINE_SYSTEM
                                                            : r == 'u' ? ENGINE_USER
                                                                       : ENGINE_ASSISTANT,
                                                    .text = "x",
                                                    .len = 1};
        }
        engine_token kept = 7;
        struct engine_tokens t = {0};
        assert_int_equal(engine_tokens_append(&t, &kept, 1), 0);
        int rc = chat_render(gemma, f.v, k.messages, k.n, CASES[i].flags, &t, err, sizeof err);
        if (rc != (CASES[i].gemma ? 0 : -ENOTSUP))
            fail_msg("\"%s\": %d", CASES[i].roles, rc);
        if (rc != 0)
            assert_int_equal(t.n, 1);
        assert_int_equal(t.ids[0], 7);
        assert_int_equal(chat_render(chatml, q.v, k.messages, k.n, CASES[i].flags, &t, err, sizeof err), 0);
        engine_tokens_free(&t);
    }
    chat_free(gemma);
    chat_free(chatml);
    text_fixture_close(&f);
    text_fixture_close(&q);
}

/* Manual pages, the example of the settings and what Tab offers list the formats: all of them. */
static void test_listed(void **state)
{
    static const char *const PLACES[] = {"docs/convod.1", "docs/convod.conf.5", "systemd/convod.conf.example",
                                         "clients/completion/convod.bash", "clients/completion/convod.zsh"};
    static char plain[65536];
    (void)state;
    for (size_t i = 0; i < sizeof PLACES / sizeof *PLACES; i++) {
        FILE *f = fopen(PLACES[i], "r");
        if (f == NULL) {
            print_message("skip: not run from the source folder\n");
            skip();
        }
        size_t n = 0;
        for (int c; (c = fgetc(f)) != EOF && n + 1 < sizeof plain;)
            if (c != '\\') /* a manual page writes phi4\-mini */
                plain[n++] = (char)c;
        fclose(f);
        plain[n] = '\0';
        const char *list = strstr(plain, "chatml"), *name;
        assert_non_null(list);
        for (size_t j = 0; (name = engine_chat_format_at(j)) != NULL; j++) {
            const char *found = strstr(list, name);
            if (found == NULL || found - list > 200)
                fail_msg("%s is not in %s", name, PLACES[i]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rendered),         cmocka_unit_test(test_golden),
        cmocka_unit_test(test_joined_text),      cmocka_unit_test(test_nothing_can_be_forged),
        cmocka_unit_test(test_recognition),      cmocka_unit_test(test_odd_templates),
        cmocka_unit_test(test_mistral_defaults), cmocka_unit_test(test_orders),
        cmocka_unit_test(test_listed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
