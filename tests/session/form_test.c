/* form_test.c - answers of a form: whole or incomplete, alone and beside others, whatever random weights would say. */
#include "tests/session/harness.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_are_whole),
        cmocka_unit_test(test_together),
        cmocka_unit_test(test_cut_is_incomplete),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
