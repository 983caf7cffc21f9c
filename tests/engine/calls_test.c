/* calls_test.c - answers taken apart into text and calls, wherever pieces of the text end. */
#include "engine/text/text.h"
#include "tests/engine/text_fixture.h"
#include "tests/engine/tiny_vocab.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char TEMPLATE[] =
    "<|im_start|>{{- \"# Tools\\n\\nThese:\\n<tools>\" }}{{- tool }}{{- \"\\n</tools>\\n\\nCall:"
    "\\n<tool_call>\\n{}\\n</tool_call><|im_end|>\\n\" }}<tool_response>";
static const char THINKS[] = "<|im_start|></think>", OPENS[] = "'<|im_start|>assistant\\n<think>\\n'</think>";
static const char TOOLS[] = "[{\"type\":\"function\",\"function\":{\"name\":\"add\"}},{\"type\":\"function\","
                            "\"function\":{\"name\":\"now\"}}]";

static char err[256];

struct heard {
    char text[1024];
    size_t n;
    int last;
};

static void say(struct heard *h, const char *text, size_t len)
{
    assert_true(h->n + len < sizeof h->text);
    memcpy(h->text + h->n, text, len);
    h->n += len;
    h->text[h->n] = '\0';
}

/* "text", then NAME(arguments) with a ! behind one that is broken. Pieces of one kind are put together. */
static int part(void *arg, const struct engine_part *p)
{
    struct heard *h = arg;
    if (p->kind == ENGINE_PART_TEXT && h->last != ENGINE_PART_TEXT)
        say(h, "|", 1);
    if (p->kind == ENGINE_PART_CALL)
        say(h, "@", 1);
    if (p->kind == ENGINE_PART_THINKING && h->last != ENGINE_PART_THINKING)
        say(h, "~", 1);
    if (p->kind == ENGINE_PART_THINKING_END)
        say(h, p->broken ? "!" : ";", 1);
    if (p->len)
        say(h, p->text, p->len);
    if (p->id) {
        say(h, "=", 1);
        say(h, p->id, strlen(p->id));
    }
    if (p->kind == ENGINE_PART_CALL)
        say(h, "(", 1);
    if (p->kind == ENGINE_PART_CALL_END)
        say(h, p->broken ? ")!" : ")", p->broken ? 2 : 1);
    h->last = (int)p->kind;
    return 0;
}

static struct chat *open_chat(struct text_fixture *f, const char *name, const char *chat_template)
{
    static const char *const CONTROL[] = {"<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>",
                                          "<think>",      "</think>",   "[THINK]",     "[/THINK]"};
    struct gguf_writer *w = gguf_writer_new();
    struct chat *c = NULL;
    tiny_vocab_bpe_with(w, "qwen2", CONTROL, 8, "", "<|im_end|>", chat_template);
    gguf_writer_string(w, "general.name", name);
    *f = text_fixture_written(w);
    if (chat_open(f->g, f->v, NULL, &c, err, sizeof err) != 0)
        fail_msg("%s", err);
    assert_int_equal(chat_calls(c) != ENGINE_CALLS_NONE, strstr(chat_template, "# Tools") != NULL);
    assert_int_equal(chat_thinks(c), strstr(chat_template, "</think>") || strstr(chat_template, "[/THINK]"));
    return c;
}

/* In pieces of `step` bytes; ^ and $ stand for the marks around calls, < and > for those around thinking. */
static void take_apart(const struct text_fixture *f, const struct chat *chat, const char *answer, size_t step,
                       struct heard *h)
{
    struct engine_calls *c = calls_new(chat, chat_calls(chat) != ENGINE_CALLS_NONE ? TOOLS : NULL, part, h);
    assert_non_null(c);
    h->n = 0;
    h->text[0] = '\0';
    h->last = -1;
    for (const char *p = answer; *p != '\0';) {
        static const char SIGNS[] = "^$<>";
        const char *sign = strchr(SIGNS, *p);
        if (sign != NULL) {
            static const char *const MARKS[] = {"<tool_call>", "</tool_call>", "<think>", "</think>"};
            engine_token id = vocab_special(f->v, MARKS[sign - SIGNS]);
            if (!engine_calls_is_mark(c, id))
                id = vocab_special(f->v, *sign == '<' ? "[THINK]" : "[/THINK]");
            assert_true(engine_calls_is_mark(c, id));
            assert_int_equal(engine_calls_mark(c, id), 0);
            p++;
            continue;
        }
        size_t n = strcspn(p, SIGNS);
        n = n < step ? n : step;
        assert_int_equal(engine_calls_text(c, p, n), 0);
        p += n;
    }
    assert_int_equal(engine_calls_finish(c), 0);
    engine_calls_free(c);
}

struct shown {
    const char *answer, *heard;
};

static void check(const struct shown *cases, size_t n, const char *model, const char *chat_template)
{
    struct text_fixture f;
    struct chat *chat = open_chat(&f, model, chat_template);
    for (size_t i = 0; i < n; i++)
        for (size_t step = 1; step < 40; step += step < 6 ? 1 : 11) {
            struct heard h;
            take_apart(&f, chat, cases[i].answer, step, &h);
            if (strcmp(h.text, cases[i].heard) != 0)
                fail_msg("%s in pieces of %zu:\n%s\nwanted:\n%s", cases[i].answer, step, h.text, cases[i].heard);
        }
    chat_free(chat);
    text_fixture_close(&f);
}

static void test_marked(void **state)
{
    (void)state;
    static const struct shown CASES[] = {
        {"", ""},
        {"hello there\n", "|hello there\n"},
        {" \n a\n\nb ", "| \n a\n\nb "},
        {"^\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": \"}\\\"\"}}\n$",
         "@add({\"a\": 1, \"b\": \"}\\\"\"})"},
        {"I add.\n^{\"name\":\"add\",\"arguments\":{}}$", "|I add.@add({})"},
        {"^{\"name\":\"add\",\"arguments\":{}}$\n^{\"name\":\"now\"}$\n", "@add({})@now({})|\n"},
        {"^{\"arguments\":{\"a\":1},\"name\":\"add\"}$", "@add({\"a\":1})"},
        {"^{\"id\":\"x\",\"name\":\"add\",\"parameters\":{\"a\":1},\"more\":[1,{\"name\":\"now\"}],\"z\":true}$",
         "@add({\"a\":1})"},
        {"^{\"name\":\"add\",\"arguments\":\"{\\\"a\\\": 1}\"}$", "@add({\"a\": 1})"},
        {"^{\"name\":\"add\",\"arguments\":null}$", "@add({})"},
        {"^{\"name\":\"a\\u0064d\",\"arguments\":{}}$", "@add({})"},
        {"^{\"name\":\"other\",\"arguments\":{}}$", "@other({})"},
        /* The closing mark, or the next call's opening one, may be missing where the object is whole. */
        {"^{\"name\":\"add\",\"arguments\":{}}", "@add({})"},
        {"^{\"name\":\"add\",\"arguments\":{}}^{\"name\":\"now\",\"arguments\":{}}$", "@add({})@now({})"},
        /* Cut off: known by its name, or not yet. */
        {"^{\"name\":\"add\",\"arguments\":{\"a\":", "@add({\"a\":)!"},
        {"^{\"name\":\"ad", "|<tool_call>{\"name\":\"ad"},
        {"^{\"name\":\"add\"", "@add()!"},
        {"^{\"name\":\"add\", \"argum", "@add()!"},
        {"so: ^", "|so: <tool_call>"},
        /* Broken. */
        {"^{\"name\":\"add\",\"arguments\":{\"a\":1$", "@add({\"a\":1)!"},
        {"^{\"name\":\"add\",\"arguments\":{\"a\" 1}}$", "@add({\"a\" 1})!"},
        {"^{\"name\":\"add\",\"arguments\":{}} {}$", "@add({})!"},
        {"^add(1, 2)$", "|<tool_call>add(1, 2)</tool_call>"},
        {"^{\"name\": add, \"arguments\": {}}$x", "|<tool_call>{\"name\": add, \"arguments\": {}}</tool_call>x"},
        {"^{\"arguments\":{}}$", "|<tool_call>{\"arguments\":{}}</tool_call>"},
        {"^{\"name\":\"\"}$", "|<tool_call>{\"name\":\"\"}</tool_call>"},
        {"$a", "|</tool_call>a"},
        /* Without marks it is text: this model is not known to leave them out. */
        {"{\"name\":\"add\",\"arguments\":{}}", "|{\"name\":\"add\",\"arguments\":{}}"},
    };
    check(CASES, sizeof CASES / sizeof *CASES, "model", TEMPLATE);
}

static void test_bare(void **state)
{
    (void)state;
    static const struct shown CASES[] = {
        {"{\"name\":\"add\",\"arguments\":{\"a\":1}}", "@add({\"a\":1})"},
        {"```json\n{\n  \"name\": \"add\",\n  \"arguments\": {\"a\":1}\n}\n```", "@add({\"a\":1})"},
        {"```\n{\"name\": \"now\"}\n```\n", "@now({})|\n"},
        {"I call:\n\n```json\n{\"name\": \"add\", \"arguments\": {}}\n```\n{\"name\": \"now\"}",
         "|I call:@add({})@now({})"},
        {"^{\"name\":\"add\",\"arguments\":{}}$", "@add({})"},
        /* No call: another name, another object, another language, not at a line's beginning. */
        {"{\"name\":\"other\",\"arguments\":{}}", "|{\"name\":\"other\",\"arguments\":{}}"},
        {"```json\n{\"a\": 1}\n```", "|```json\n{\"a\": 1}\n```"},
        {"```c\nint a;\n```\n", "|```c\nint a;\n```\n"},
        {"as {\"name\":\"add\"}", "|as {\"name\":\"add\"}"},
        {"``", "|``"},
        {"{\"name", "|{\"name"},
        {"```json\n{\"name\": \"add\", \"arguments\": {\"a\"", "@add({\"a\")!"},
        {"```json\n{\"name\": \"add\", x", "|```json\n{\"name\": \"add\", x"},
    };
    check(CASES, sizeof CASES / sizeof *CASES, "Some-Coder 7B", TEMPLATE);
}

static void test_thinking(void **state)
{
    (void)state;
    static const struct shown CASES[] = {
        {"<\nFirst this,\nthen that.\n>\n\nSo. ", "~First this,\nthen that.;|So. "},
        {"<a>b", "~a;|b"},
        {"<\n\n>\n\nNothing to think.", "|Nothing to think."},
        {" \n<a>b", "~a;|b"},
        {"plain\n", "|plain\n"},
        {"a <b> c", "|a~b;|c"},
        {"<one><two>x", "~one;~two;|x"},
        {"<cut off \n", "~cut off!"},
        {"<", ""},
        {">x", "|x"},
        {"<<a>b", "~a;|b"},
    };
    static const struct shown OPENED[] = {
        {"\nthis\n>\n\nthat", "~this;|that"},
        {"<this>that", "~this;|that"},
        {">that", "|that"},
        {"cut", "~cut!"},
        {"", ""},
    };
    check(CASES, sizeof CASES / sizeof *CASES, "model", THINKS);
    check(OPENED, sizeof OPENED / sizeof *OPENED, "model", OPENS);
    check(CASES, sizeof CASES / sizeof *CASES, "Magistral", "[INST][/INST][THINK][/THINK]");
    /* And tools. */
    char both[512];
    static const struct shown CALLS[] = {
        {"<I add.>\n\n^{\"name\":\"add\",\"arguments\":{}}$", "~I add.;@add({})"},
        {"<I add.^{\"name\":\"add\"}$<b>c", "~I add.;@add({})~b;|c"},
    };
    snprintf(both, sizeof both, "%s</think>", TEMPLATE);
    check(CALLS, sizeof CALLS / sizeof *CALLS, "model", both);
}

/* ---- families ---- */

static const char TYPED[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"add\",\"parameters\":{\"properties\":{\"a\":{\"type\":"
    "\"integer\"},"
    "\"s\":{\"type\":\"string\"},\"b\":{\"type\":\"boolean\"},\"o\":{\"type\":\"object\"},\"n\":{\"type\":[\"string\","
    "\"null\"]}}}}},{\"type\":\"function\",\"function\":{\"name\":\"now\"}}]";

/* The mark that the answer has at p; 0: it is text. */
static size_t mark_at(const struct text_fixture *f, const struct engine_calls *c, const char *p, engine_token *id)
{
    char name[32];
    const char *end = *p == '<' ? strchr(p, '>') : *p == '[' ? strchr(p, ']') : NULL;
    size_t n = end != NULL ? (size_t)(end + 1 - p) : 0;
    if (n == 0 || n >= sizeof name)
        return 0;
    memcpy(name, p, n);
    name[n] = '\0';
    *id = vocab_special(f->v, name);
    return engine_calls_is_mark(c, *id) ? n : 0;
}

static void check_family(enum tiny_family family, enum engine_call_syntax syntax, const struct shown *cases, size_t n)
{
    struct gguf_writer *w = gguf_writer_new();
    tiny_vocab_family(w, family);
    struct text_fixture f = text_fixture_written(w);
    struct chat *chat = NULL;
    if (chat_open(f.g, f.v, NULL, &chat, err, sizeof err) != 0)
        fail_msg("%s", err);
    assert_int_equal(chat_calls(chat), syntax);
    for (size_t i = 0; i < n; i++)
        for (size_t step = 1; step < 40; step += step < 6 ? 1 : 11) {
            struct heard h = {.last = -1};
            struct engine_calls *c = calls_new(chat, TYPED, part, &h);
            assert_non_null(c);
            for (const char *p = cases[i].answer; *p != '\0';) {
                engine_token id;
                size_t len = mark_at(&f, c, p, &id);
                if (len > 0) {
                    assert_int_equal(engine_calls_mark(c, id), 0);
                    p += len;
                    continue;
                }
                for (len = 1; len < step && p[len] != '\0' && mark_at(&f, c, p + len, &id) == 0;)
                    len++;
                assert_int_equal(engine_calls_text(c, p, len), 0);
                p += len;
            }
            assert_int_equal(engine_calls_finish(c), 0);
            engine_calls_free(c);
            if (strcmp(h.text, cases[i].heard) != 0)
                fail_msg("%s in pieces of %zu:\n%s\nwanted:\n%s", cases[i].answer, step, h.text, cases[i].heard);
        }
    chat_free(chat);
    text_fixture_close(&f);
}

#define CHECK_FAMILY(family, syntax, cases) check_family(family, syntax, cases, sizeof(cases) / sizeof *(cases))

static void test_xml(void **state)
{
    (void)state;
#define CALL(x)       "<tool_call>\n<function=add>\n" x "</function>\n</tool_call>"
#define P(key, value) "<parameter=" key ">\n" value "\n</parameter>\n"
#define S64           "                                                                "
#define S576          S64 S64 S64 S64 S64 S64 S64 S64 S64
    static const struct shown CASES[] = {
        {"I add.\n" CALL(P("a", "1") P("s", "x")), "|I add.@add({\"a\": 1, \"s\": \"x\"})"},
        {CALL(P("s", "1") P("b", "True") P("o", "{\"x\":[1]}")),
         "@add({\"s\": \"1\", \"b\": true, \"o\": {\"x\": [1]}})"},
        /* A string is what it says, also where that looks like a tag. */
        {CALL(P("s", "a\n\"q\"\t</parameter> <b>\n</parameter>\n")),
         "@add({\"s\": \"a\\n\\\"q\\\"\\t</parameter> <b>\\n</parameter>\\n\"})"},
        {CALL(P("s", "") P("n", "None")), "@add({\"s\": \"\", \"n\": null})"},
        {CALL(P("s", "\n two \n")), "@add({\"s\": \"\\n two \\n\"})"},
        {CALL(P("s", "x</parameter") P("s", "</parameter></parameter>")),
         "@add({\"s\": \"x</parameter\", \"s\": \"</parameter></parameter>\"})"},
        /* What stands too far behind it makes no end. */
        {CALL(P("s", "x\n</parameter>" S64 "<parameter=a>\n1")), "@add({\"s\": \"x\", \"a\": 1})"},
        {CALL(P("s", "x\n</parameter>" S576 "<parameter=a>\n1")),
         "@add({\"s\": \"x\\n</parameter>" S576 "<parameter=a>\\n1\"})"},
        /* A value that is not of its type is a string. */
        {CALL(P("a", "one") P("n", "12")), "@add({\"a\": \"one\", \"n\": \"12\"})"},
        {CALL(P("more", "12") P("x", "[1, 2") P("y", "\"s\"")),
         "@add({\"more\": 12, \"x\": \"[1, 2\", \"y\": \"\\\"s\\\"\"})"},
        {"<tool_call><function=now></function></tool_call>", "@now({})"},
        {CALL(P("a", "1")) "\n<tool_call>\n<function=now>\n</function>\n</tool_call>", "@add({\"a\": 1})@now({})"},
        /* Cut off, and broken. */
        {"<tool_call>\n<function=add>\n<parameter=s>\nhalf", "@add({\"s\": \"half)!"},
        {"<tool_call>\n<function=add>\n<parameter=a>\n1", "@add({\"a\": )!"},
        {"<tool_call>\n<function=add>\n" P("a", "1") "</tool_call>", "@add({\"a\": )!"},
        {CALL(P("a", "1")) "x", "@add({\"a\": 1})|x"},
        {"<tool_call>\n<function=add>\n</function>x</tool_call>", "@add({})!"},
        {"<tool_call>\n<function=ad", "|<tool_call>\n<function=ad"},
        {"<tool_call>{\"name\":\"add\"}</tool_call>", "|<tool_call>{\"name\":\"add\"}</tool_call>"},
        {"<tool_call>\n<function=add>\nno</function></tool_call>", "@add({)!"},
    };
    CHECK_FAMILY(TINY_XML, ENGINE_CALLS_XML, CASES);
}

static void test_llama(void **state)
{
    (void)state;
    static const struct shown CASES[] = {
        {"{\"name\": \"add\", \"parameters\": {\"a\": 1}}", "@add({\"a\": 1})"},
        {"<|python_tag|>{\"name\": \"add\", \"parameters\": {\"a\": 1}}", "@add({\"a\": 1})"},
        {"<|python_tag|>{\"name\": \"add\", \"parameters\": {\"a\": 1}}; {\"name\": \"now\", \"parameters\": {}}",
         "@add({\"a\": 1})@now({})"},
        {"{\"name\": \"other\", \"parameters\": {}}", "|{\"name\": \"other\", \"parameters\": {}}"},
        {"{\"name\": \"add\", \"parameters\": {\"a\"", "@add({\"a\")!"},
        /* Several, as they stand in a history. */
        {"{\"name\": \"add\", \"parameters\": {\"a\": 1}}; {\"name\": \"now\", \"parameters\": {}};\n{\"name\": "
         "\"now\", "
         "\"parameters\": {}}",
         "@add({\"a\": 1})@now({})@now({})"},
        {"{\"name\": \"now\", \"parameters\": {}} ; then {\"name\"", "@now({})| ; then {\"name\""},
        {"{\"name\": \"now\", \"parameters\": {}}.; {\"name\": \"now\", \"parameters\": {}}",
         "@now({})|.; {\"name\": \"now\", \"parameters\": {}}"},
        {"; {\"name\": \"now\", \"parameters\": {}}", "|; {\"name\": \"now\", \"parameters\": {}}"},
        {"Hello {\"name\"", "|Hello {\"name\""},
    };
    CHECK_FAMILY(TINY_LLAMA3, ENGINE_CALLS_LLAMA, CASES);
}

static void test_mistral(void **state)
{
    (void)state;
    static const struct shown LIST[] = {
        {"[TOOL_CALLS] [{\"name\": \"add\", \"arguments\": {\"a\": 1}, \"id\": \"abcdefgh1\"}]",
         "@add=abcdefgh1({\"a\": 1})"},
        {"[TOOL_CALLS][{\"name\": \"add\", \"arguments\": {}}, {\"arguments\": {\"x\": [{}]}, \"name\": \"now\"}]",
         "@add({})@now({\"x\": [{}]})"},
        {"[TOOL_CALLS]{\"name\": \"now\"}", "@now({})"},
        {"So:[TOOL_CALLS] [{\"name\": \"add\", \"arguments\": {\"a\"", "|So:@add({\"a\")!"},
        {"[TOOL_CALLS] [{\"na", "|[TOOL_CALLS] [{\"na"},
        {"[TOOL_CALLS] add", "|[TOOL_CALLS] add"},
        {"[TOOL_CALLS] [{\"name\": \"now\", \"arguments\": {}} x]", "@now({})!"},
    };
    static const struct shown ARGS[] = {
        {"[TOOL_CALLS]add[ARGS]{\"a\": 1}", "@add({\"a\": 1})"},
        {"I look.[TOOL_CALLS]add[ARGS]{}[TOOL_CALLS]now[ARGS]{\"b\": \"}\"}", "|I look.@add({})@now({\"b\": \"}\"})"},
        {"[TOOL_CALLS]now{}", "@now({})"},
        {"[TOOL_CALLS]add[ARGS]{\"a\"", "@add({\"a\")!"},
        {"[TOOL_CALLS]add[ARGS]{}x", "@add({})|x"},
        {"[TOOL_CALLS]add[ARGS]12", "@add()!"},
        {"[TOOL_CALLS]add", "|[TOOL_CALLS]add"},
        {"a[ARGS]b", "|ab"},
    };
    static const struct shown IDS[] = {
        {"[TOOL_CALLS]add[CALL_ID]abcdefgh1[ARGS]{\"a\": 1}", "@add=abcdefgh1({\"a\": 1})"},
        {"[TOOL_CALLS]add[CALL_ID]abc", "|[TOOL_CALLS]addabc"},
    };
    CHECK_FAMILY(TINY_MISTRAL_LIST, ENGINE_CALLS_MISTRAL_LIST_ID, LIST);
    CHECK_FAMILY(TINY_MISTRAL_ARGS, ENGINE_CALLS_MISTRAL, ARGS);
    CHECK_FAMILY(TINY_MISTRAL_IDS, ENGINE_CALLS_MISTRAL_ID, IDS);
}

static void test_harmony(void **state)
{
    (void)state;
#define FINAL "<|channel|>final<|message|>"
    static const struct shown CASES[] = {
        {"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant" FINAL "Yes.\n", "~Hm.;|Yes.\n"},
        {FINAL "Yes.", "|Yes."},
        {"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.add "
         "<|constrain|>json<|message|>{\"a\": 1}",
         "~Hm.;@add({\"a\": 1})"},
        {" to=functions.add<|channel|>commentary json<|message|>{\"a\": 1}", "@add({\"a\": 1})"},
        {"<|channel|>analysis to=functions.now code<|message|>{}", "@now({})"},
        {"<|channel|>commentary<|message|>I look.<|end|><|start|>assistant to=functions.now<|channel|>commentary "
         "json<|message|>{}",
         "|I look.@now({})"},
        /* What is addressed to nobody that is known is text. */
        {"<|channel|>commentary to=functions.never<|message|>{}", "|{}"},
        {"<|channel|>analysis<|message|>cut", "~cut!"},
        {"<|channel|>commentary to=functions.add<|message|>{\"a\"", "@add({\"a\")!"},
        {"<|channel|>commentary to=functions.add<|message|>{} {}", "@add({})!"},
        {"<|channel|>comm", ""},
        {"no head at all", "|no head at all"},
        {"", ""},
    };
    CHECK_FAMILY(TINY_HARMONY, ENGINE_CALLS_HARMONY, CASES);
}

static int refuse(void *arg, const struct engine_part *p)
{
    (void)arg;
    (void)p;
    return -ECANCELED;
}

static void test_part_says_no(void **state)
{
    (void)state;
    struct text_fixture f;
    struct chat *chat = open_chat(&f, "model", TEMPLATE);
    struct engine_calls *c = calls_new(chat, TOOLS, refuse, NULL);
    assert_int_equal(engine_calls_text(c, "a", 1), -ECANCELED);
    engine_calls_free(c);
    engine_calls_free(NULL);
    chat_free(chat);
    text_fixture_close(&f);
}

/* Where an answer opens with thinking, a call that it is made to begin with stands behind the end of that. */
static void test_opened_behind_thinking(void **state)
{
    (void)state;
    struct text_fixture f;
    char both[512];
    snprintf(both, sizeof both, "%s%s", TEMPLATE, OPENS);
    struct chat *chat = open_chat(&f, "model", both);
    static const char WANTED[] = "</think>\n\n<tool_call>\n{\"name\":";
    struct engine_tokens got = {0}, wanted = {0};
    assert_int_equal(chat_open_call(chat, f.v, NULL, &got), 0);
    assert_int_equal(vocab_tokenize(f.v, WANTED, strlen(WANTED), VOCAB_PARSE_SPECIAL, &wanted), 0);
    assert_int_equal(got.n, wanted.n);
    assert_memory_equal(got.ids, wanted.ids, got.n * sizeof *got.ids);
    engine_tokens_free(&got);
    engine_tokens_free(&wanted);
    chat_free(chat);
    text_fixture_close(&f);
}

/* The beginning of a call that a model is made to write. */
static void test_opened(void **state)
{
    (void)state;
    struct text_fixture f;
    struct chat *chat = open_chat(&f, "model", TEMPLATE);
    static const char *const WANTED[] = {"<tool_call>\n{\"name\":", "<tool_call>\n{\"name\": \"add\", \"arguments\":"};
    for (int i = 0; i < 2; i++) {
        struct engine_tokens got = {0}, wanted = {0};
        assert_int_equal(chat_open_call(chat, f.v, i ? "add" : NULL, &got), 0);
        assert_int_equal(vocab_tokenize(f.v, WANTED[i], strlen(WANTED[i]), VOCAB_PARSE_SPECIAL, &wanted), 0);
        assert_int_equal(got.n, wanted.n);
        assert_memory_equal(got.ids, wanted.ids, got.n * sizeof *got.ids);
        engine_tokens_free(&got);
        engine_tokens_free(&wanted);
    }
    chat_free(chat);
    text_fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_xml),      cmocka_unit_test(test_llama),
        cmocka_unit_test(test_mistral),  cmocka_unit_test(test_harmony),
        cmocka_unit_test(test_marked),   cmocka_unit_test(test_bare),
        cmocka_unit_test(test_thinking), cmocka_unit_test(test_part_says_no),
        cmocka_unit_test(test_opened),   cmocka_unit_test(test_opened_behind_thinking),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
