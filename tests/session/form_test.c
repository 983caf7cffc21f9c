/* form_test.c - answers of a form: whole or incomplete, alone and beside others, whatever random weights would say. */
#include "tests/session/harness.h"

#include <cjson/cJSON.h>

#define SCHEMA                                                                                                         \
    "{\"type\":\"object\",\"properties\":{\"kind\":{\"enum\":[\"cat\",\"dog\"]},\"legs\":{\"type\":\"integer\","       \
    "\"minimum\":0,"                                                                                                   \
    "\"maximum\":99}},\"required\":[\"kind\",\"legs\"],\"additionalProperties\":false}"

/* Whether the answer is one of the form's, read without what is tested. */
static bool is_whole(const struct answer *a)
{
    char text[1024], kind[4], end[2], rest;
    int legs;
    if (a->len >= sizeof text || memchr(a->text, 0, a->len))
        return false;
    memcpy(text, a->text, a->len);
    text[a->len] = 0;
    return sscanf(text, " { \"kind\" : \"%3[a-z]\" , \"legs\" : %d %1[}]%c", kind, &legs, end, &rest) == 3 &&
           (!strcmp(kind, "cat") || !strcmp(kind, "dog")) && legs >= 0 && legs <= 99 && text[0] == '{';
}

static void test_answers_are_whole(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    const char *previous = NULL;
    for (uint64_t seed = 0; seed < 12; seed++) {
        struct answer *a = rig_ask(
            rig,
            (struct ask){
                .text = "hello", .previous = previous, .schema = SCHEMA, .max = 200, .seed = seed, .temperature = 2});
        assert_false(a->failed || a->incomplete);
        if (!is_whole(a))
            fail_msg("%.*s", (int)a->len, a->text);
        rig_only_new(a);
        previous = a->id;
    }
    rig_close(rig);
}

/* Turns that share steps and the form, and one without it: none depends on the others. */
static void test_together(void **state)
{
    (void)state;
    enum { TURNS = 6 };
    struct rig *rig = rig_open((struct rig_opts){0});
    struct answer *alone[TURNS], *turns[TURNS];
    for (int i = 0; i < TURNS; i++)
        alone[i] =
            rig_ask(rig, (struct ask){.text = "hello", .schema = i ? SCHEMA : NULL, .max = 120, .seed = (uint64_t)i});
    for (int i = 0; i < TURNS; i++)
        turns[i] =
            rig_begin(rig, (struct ask){.text = "hello", .schema = i ? SCHEMA : NULL, .max = 120, .seed = (uint64_t)i});
    for (int i = 0; i < TURNS; i++) {
        rig_end(turns[i]);
        assert_int_equal(turns[i]->len, alone[i]->len);
        assert_memory_equal(turns[i]->text, alone[i]->text, alone[i]->len);
        assert_int_equal(!turns[i]->incomplete && is_whole(turns[i]), i > 0);
    }
    rig_close(rig);
}

static void test_cut_is_incomplete(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    struct answer *a = rig_ask(rig, (struct ask){.text = "hello", .schema = SCHEMA, .max = 3, .seed = 1});
    assert_true(a->incomplete && !a->failed);
    assert_string_equal(a->reason, "max_output_tokens");
    assert_false(is_whole(a));
    /* The last token may be the one that makes it whole. */
    struct answer *whole = rig_ask(rig, (struct ask){.text = "hello", .schema = SCHEMA, .max = 200, .seed = 1});
    struct answer *just =
        rig_ask(rig, (struct ask){.text = "hello", .schema = SCHEMA, .max = whole->output, .seed = 1});
    assert_false(just->incomplete);
    assert_int_equal(just->len, whole->len);
    assert_memory_equal(just->text, whole->text, whole->len);
    rig_close(rig);
}

/* An answer does not end within its thinking, where its text would be missing. */
static void test_thinking_comes_before(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.thinks = true});
    int whole = 0;
    for (uint64_t seed = 0; seed < 16; seed++) {
        struct answer *a =
            rig_ask(rig, (struct ask){.text = "hello", .schema = SCHEMA, .max = 600, .seed = seed, .temperature = 3});
        const char *last = strchr(a->kinds, 'm');
        if (!a->incomplete && (!last || last[1]))
            fail_msg("seed %d: completed as %s", (int)seed, a->kinds);
        whole += !a->incomplete;
    }
    assert_true(whole > 0);
    rig_close(rig);
}

static const char TOOLS[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"add\",\"parameters\":{\"type\":\"object\"}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"now\"}}]";
static const char CALLS[] =
    "[{\"name\":\"add\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#/$defs/digit\"}},"
    "\"required\":[\"a\"],\"additionalProperties\":false,"
    "\"$defs\":{\"digit\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":9}}}},{\"name\":\"now\"}]";

/* What random weights write into a call is a call: of add with its argument, of now with any object. */
static void calls_are_whole(enum tiny_family family)
{
    struct rig *rig = rig_open((struct rig_opts){.tools = family});
    int added = 0, any = 0;
    for (uint64_t seed = 0; seed < 16; seed++) {
        struct answer *a = rig_ask(rig, (struct ask){.text = "hello",
                                                     .tools = TOOLS,
                                                     .calls = CALLS,
                                                     .choice = SESSION_TOOLS_REQUIRED,
                                                     .tool = seed % 2 ? "add" : NULL,
                                                     .one_call = true,
                                                     .max = 300,
                                                     .seed = seed,
                                                     .temperature = 3});
        if (a->incomplete) { /* an object of any length */
            assert_string_equal(a->reason, "max_output_tokens");
            /* Mistral's lists are told with their ids, behind the arguments. */
            assert_true(family == TINY_MISTRAL_LIST || !strcmp(a->name, "now"));
            continue;
        }
        if (strcmp(a->kinds, "f") != 0)
            fail_msg("family %d, seed %d: %s, \"%.*s\" %s", (int)family, (int)seed, a->kinds, (int)a->len, a->text,
                     a->message);
        int digit = -1;
        char end[2], rest, text[1024];
        assert_true(a->len < sizeof text);
        memcpy(text, a->text, a->len);
        text[a->len] = 0;
        if (!strcmp(a->name, "now")) {
            cJSON *arguments = cJSON_Parse(text);
            assert_true(cJSON_IsObject(arguments));
            cJSON_Delete(arguments);
            any++;
        } else if (sscanf(text, " { \"a\" : %d %1[}]%c", &digit, end, &rest) != 2 || digit < 0 || digit > 9) {
            fail_msg("%s", text);
        } else {
            added++;
        }
    }
    if (added < 8 || any == 0)
        fail_msg("family %d: %d of add, %d of any", (int)family, added, any);
    rig_close(rig);
}

static void test_calls_are_whole(void **state)
{
    (void)state;
    for (int family = TINY_HERMES; family < TINY_FAMILIES; family++)
        calls_are_whole((enum tiny_family)family);
}

/* A call that is cut wherever its limit is, and gone on with: each first token goes by the form as well. */
static void test_call_is_gone_on_with(void **state)
{
    (void)state;
    for (int family = TINY_HERMES; family < TINY_FAMILIES; family++) {
        struct rig *rig = rig_open((struct rig_opts){.tools = (enum tiny_family)family});
        char text[1024] = "", end[2], rest;
        int digit = -1;
        struct ask ask = {.text = "hello",
                          .tools = TOOLS,
                          .calls = CALLS,
                          .choice = SESSION_TOOLS_REQUIRED,
                          .tool = "add",
                          .one_call = true,
                          .max = 1,
                          .temperature = 3};
        struct answer *a = rig_ask(rig, ask);
        ask.text = NULL;
        ask.choice = SESSION_TOOLS_AUTO;
        ask.tool = NULL;
        for (int i = 0; a->incomplete && i < 300; i++) {
            if (strcmp(a->reason, "max_output_tokens") != 0)
                fail_msg("family %d: %s", family, a->reason);
            ask.continues = a->id;
            ask.seed = (uint64_t)i;
            a = rig_ask(rig, ask);
        }
        assert_false(a->incomplete);
        assert_string_equal(a->kinds, "f");
        assert_int_equal(rig_text_stored(rig, "ann", a->id, text), 0);
        if (sscanf(text, " { \"a\" : %d %1[}]%c", &digit, end, &rest) != 2 || digit < 0 || digit > 9)
            fail_msg("family %d: %s", family, text);
        rig_close(rig);
    }
}

/* A call, its result, and what comes then: nothing is prefilled twice, whoever keeps the history. */
static void test_loops(void **state)
{
    (void)state;
    for (int family = TINY_HERMES; family < TINY_FAMILIES; family++) {
        struct rig *rig = rig_open((struct rig_opts){.tools = (enum tiny_family)family});
        char bodies[4][160];
        const char *previous = NULL;
        struct session_item items[4];
        for (uint64_t turn = 0; turn < 3; turn++) {
            struct ask ask = {.tools = TOOLS,
                              .calls = CALLS,
                              .choice = SESSION_TOOLS_REQUIRED,
                              .tool = "add",
                              .one_call = true,
                              .max = 300,
                              .seed = turn,
                              .previous = previous};
            if (turn == 0)
                ask.text = "hello";
            else {
                ask.items = &items[0];
                ask.n_items = 1;
            }
            struct answer *a = rig_ask(rig, ask);
            if (strcmp(a->kinds, "f") != 0)
                fail_msg("family %d: %s, %s", family, a->kinds, a->message);
            rig_only_new(a);
            if (turn > 0 && a->receipt.history == 0)
                fail_msg("family %d: nothing was found", family);
            (void)snprintf(bodies[0], sizeof bodies[0], "{\"call_id\":\"%s\"}", a->call_id);
            items[0] = (struct session_item){
                .kind = "function_call_output", .role = ENGINE_USER, .text = "5", .len = 1, .body = bodies[0]};
            previous = a->id;
        }
        /* The same kept by the client, with ids of its own. */
        struct answer *first = rig_ask(rig, (struct ask){.text = "hi",
                                                         .tools = TOOLS,
                                                         .calls = CALLS,
                                                         .match = true,
                                                         .choice = SESSION_TOOLS_REQUIRED,
                                                         .tool = "add",
                                                         .one_call = true,
                                                         .max = 300,
                                                         .seed = 9});
        assert_string_equal(first->kinds, "f");
        (void)snprintf(bodies[1], sizeof bodies[1], "{\"call_id\":\"mine\",\"name\":\"add\"}");
        (void)snprintf(bodies[2], sizeof bodies[2], "{\"call_id\":\"mine\"}");
        items[0] = (struct session_item){.kind = "message", .role = ENGINE_USER, .text = "hi", .len = 2};
        items[1] = (struct session_item){.kind = "function_call",
                                         .role = ENGINE_ASSISTANT,
                                         .text = first->text,
                                         .len = first->len,
                                         .body = bodies[1]};
        items[2] = (struct session_item){
            .kind = "function_call_output", .role = ENGINE_USER, .text = "5", .len = 1, .body = bodies[2]};
        struct answer *again = rig_ask(
            rig, (struct ask){.items = items, .n_items = 3, .match = true, .tools = TOOLS, .seed = 3, .max = 4});
        if (again->failed)
            fail_msg("family %d: %s", family, again->message);
        rig_only_new(again);
        if (again->receipt.history < first->input + first->output - 1)
            fail_msg("family %d: %d of %d found", family, again->receipt.history, first->input + first->output);
        rig_close(rig);
    }
}

/* An answer that may call is a call or the form's text, and never text that only began as a call. */
static void test_calls_beside_a_form(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.tools = TINY_HERMES});
    int calls = 0, texts = 0;
    for (uint64_t seed = 0; seed < 60; seed++) {
        struct answer *a = rig_ask(rig, (struct ask){.text = "hello",
                                                     .tools = TOOLS,
                                                     .calls = CALLS,
                                                     .schema = SCHEMA,
                                                     .one_call = true,
                                                     .max = 300,
                                                     .seed = seed,
                                                     .temperature = 3});
        if (a->incomplete)
            continue;
        if (!strcmp(a->kinds, "m"))
            assert_true(is_whole(a));
        else
            assert_string_equal(a->kinds, "f");
        calls += !strcmp(a->kinds, "f");
        texts += !strcmp(a->kinds, "m");
    }
    assert_true(calls > 0 && texts > 0);
    rig_close(rig);
}

/* A stop string may end it before it is whole, also where it is the last of it. */
static void test_stopped_is_incomplete(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    struct ask ask = {.text = "hello", .schema = SCHEMA, .max = 200, .seed = 1};
    struct answer *whole = rig_ask(rig, ask);
    static const char *const stops[] = {":", "}"};
    for (size_t i = 0; i < 2; i++) {
        ask.stop = stops[i];
        struct answer *a = rig_ask(rig, ask);
        assert_true(a->incomplete && !a->failed);
        assert_string_equal(a->reason, "stop");
        const char *at = strstr(whole->text, stops[i]);
        assert_non_null(at);
        assert_int_equal(a->len, at - whole->text);
        assert_memory_equal(a->text, whole->text, a->len);
        struct answer *next = rig_ask(rig, (struct ask){.text = "go on", .previous = a->id, .max = 4, .seed = 1});
        rig_only_new(next);
    }
    ask.stop = "none of this";
    struct answer *never = rig_ask(rig, ask);
    assert_false(never->incomplete);
    assert_int_equal(never->len, whole->len);
    rig_close(rig);
}

/* Beside tools that may be called it must be said what calls are. */
static void test_not_without_calls(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.tools = TINY_HERMES});
    struct engine_form *form = NULL;
    char err[256];
    assert_int_equal(engine_form_new(ENGINE_FORM_SCHEMA, SCHEMA, strlen(SCHEMA), false, &form, err, sizeof err), 0);
    struct session_turn t = {.owner = "ann", .response_id = "resp_x", .form = form, .tools = TOOLS};
    assert_int_equal(session_turn_start(rig->s, &t), -EINVAL);
    engine_form_free(form);
    rig_close(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_are_whole),
        cmocka_unit_test(test_together),
        cmocka_unit_test(test_cut_is_incomplete),
        cmocka_unit_test(test_thinking_comes_before),
        cmocka_unit_test(test_calls_are_whole),
        cmocka_unit_test(test_call_is_gone_on_with),
        cmocka_unit_test(test_loops),
        cmocka_unit_test(test_calls_beside_a_form),
        cmocka_unit_test(test_stopped_is_incomplete),
        cmocka_unit_test(test_not_without_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
