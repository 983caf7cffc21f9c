/* engine_match_test.c - forms on an engine: what tokens they allow, what is shared, what is kept. */
#include "engine/grammar/grammar.h"
#include "engine/text/text.h"
#include "tests/engine/engine_fixture.h"
#include "tests/engine/tiny_vocab.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct engine_form *form_of(enum engine_form_kind kind, const char *text)
{
    char err[256] = "";
    struct engine_form *f = NULL;
    if (engine_form_new(kind, text, strlen(text), false, &f, err, sizeof err) != 0)
        fail_msg("%s", err);
    return f;
}

static struct engine_match *match_of(struct engine_forms *fs, struct engine_form *f)
{
    struct engine_match *m = NULL;
    assert_int_equal(engine_match_new(fs, f, "ann", &m), 0);
    return m;
}

static bool allows(struct engine_match *m, engine_token id)
{
    int rc;
    const uint32_t *mask = engine_match_mask(m, &rc);
    assert_non_null(mask);
    assert_int_equal(rc, 0);
    return mask[id / 32] >> id % 32 & 1;
}

static void push_text(const struct engine *e, struct engine_match *m, const char *text)
{
    struct engine_tokens t = {0};
    assert_int_equal(engine_tokenize(e, text, strlen(text), false, &t), 0);
    for (size_t i = 0; i < t.n; i++) {
        assert_true(allows(m, t.ids[i]));
        assert_int_equal(engine_match_push(m, t.ids[i]), 0);
    }
    engine_tokens_free(&t);
}

static void test_tokens(void **state)
{
    (void)state;
    struct fixture f = fixture_open(tiny_model_of(TINY_QWEN2), (struct fixture_opts){0});
    struct engine_forms *fs = engine_forms_new(f.e);
    struct engine_form *form =
        form_of(ENGINE_FORM_SCHEMA, "{\"type\":\"array\",\"items\":{\"type\":\"string\"},\"maxItems\":1}");
    struct engine_match *m = match_of(fs, form);
    assert_true(allows(m, '[') && !allows(m, '{') && !allows(m, TINY_IM_END));
    push_text(f.e, m, "[\"");
    assert_true(allows(m, 'a') && allows(m, '"') && !allows(m, '\n') && !allows(m, TINY_IM_END));
    /* What the chat format gives a meaning is no text, although it has bytes; what only looks like it is. */
    const struct vocab *v = engine_vocab(f.e);
    engine_token call = vocab_special(v, "<tool_call>");
    size_t len;
    assert_true(call >= 0 && engine_token_bytes(f.e, call, &len) && len > 0);
    assert_int_equal(allows(m, call), !vocab_is_reserved(v, call));
    push_text(f.e, m, "<tool_call>");
    assert_int_equal(engine_match_push(m, '\n'), -EILSEQ);
    push_text(f.e, m, "\"]");
    assert_true(engine_match_ended(m));
    assert_true(allows(m, TINY_IM_END) && !allows(m, ' '));
    engine_match_free(m);
    engine_form_free(form);
    form = form_of(ENGINE_FORM_PATTERN, "[0-9]+");
    m = match_of(fs, form);
    push_text(f.e, m, "12");
    assert_true(!engine_match_ended(m) && allows(m, TINY_IM_END) && allows(m, '3') && !allows(m, 'a'));
    engine_match_free(m);
    engine_form_free(form);
    engine_forms_free(fs);
    fixture_close(&f);
}

/* Equal forms are one, and one that is not kept any more lives as long as its answers. */
static void test_shared_and_kept(void **state)
{
    (void)state;
    struct fixture f = fixture_open(tiny_model_of(TINY_QWEN2), (struct fixture_opts){0});
    struct engine_forms *fs = engine_forms_new(f.e);
    struct engine_form *first = form_of(ENGINE_FORM_OBJECT, ""), *second = form_of(ENGINE_FORM_OBJECT, "");
    struct engine_match *a = match_of(fs, first), *b = match_of(fs, second);
    push_text(f.e, a, "{\"a\": 1");
    size_t bytes = engine_form_bytes(first), untouched = engine_form_bytes(second);
    push_text(f.e, b, "{\"a\": 1");
    assert_int_equal(engine_form_bytes(first), bytes); /* b went where a had been */
    assert_int_equal(engine_form_bytes(second), untouched);
    engine_form_free(first);
    engine_form_free(second);
    for (int i = 0; i < 100; i++) {
        char pattern[32];
        snprintf(pattern, sizeof pattern, "a{%d}", i + 1);
        struct engine_form *other = form_of(ENGINE_FORM_PATTERN, pattern);
        struct engine_match *m = match_of(fs, other);
        push_text(f.e, m, "a");
        engine_match_free(m);
        engine_form_free(other);
    }
    push_text(f.e, a, ", \"b\": null}");
    assert_true(engine_match_ended(a) && !engine_match_ended(b));
    engine_match_free(a);
    engine_match_free(b);
    engine_forms_free(fs);
    fixture_close(&f);
}

/* What one owner's answers hold is bounded, however many of them there are; another's are not touched by that. */
static void test_owners(void **state)
{
    (void)state;
    enum { FORMS = 6, DEPTH = 100000, PIECE = 4000 };
    struct fixture f = fixture_open(tiny_model_of(TINY_QWEN2), (struct fixture_opts){0});
    struct engine_forms *fs = engine_forms_new(f.e);
    struct engine_form *other = form_of(ENGINE_FORM_OBJECT, "");
    struct engine_match *m[FORMS], *bob, *same;
    struct engine_form *form[FORMS], *equal = NULL;
    char piece[PIECE * 5 + 1];
    uint32_t seed = 1;
    assert_int_equal(engine_match_new(fs, other, "bob", &bob), 0);
    push_text(f.e, bob, "{\"a\": [1");
    size_t bobs = engine_form_bytes(other);
    for (int i = 0; i < FORMS; i++) {
        char schema[64];
        snprintf(schema, sizeof schema, "{\"title\":\"%d\"}", i);
        form[i] = form_of(ENGINE_FORM_SCHEMA, schema);
        m[i] = match_of(fs, form[i]);
        if (i == 0)
            equal = form_of(ENGINE_FORM_SCHEMA, schema);
    }
    assert_int_equal(engine_match_new(fs, equal, "bob", &same), 0);
    push_text(f.e, same, "{\"a\": [1");
    size_t equals = engine_form_bytes(equal);
    bool refused = false;
    for (int k = 0; k < DEPTH && !refused; k += PIECE)
        for (int i = 0; i < FORMS && !refused; i++) {
            char *at = piece;
            for (int n = 0; n < PIECE; n++) {
                seed = seed * 1664525 + 1013904223;
                at = stpcpy(at, seed >> 31 ? "[" : "{\"\":");
            }
            assert_int_equal(engine_match_push_text(m[i], piece, strlen(piece)), 0);
            int rc;
            refused = engine_match_mask(m[i], &rc) == NULL;
            assert_true(!refused || rc == -E2BIG);
            size_t bytes = 0;
            for (int n = 0; n < FORMS; n++)
                bytes += engine_form_bytes(form[n]);
            assert_true(refused || bytes <= ENGINE_FORMS_OWNER_BYTES + GRAMMAR_MAX_BYTES);
        }
    assert_true(refused);
    assert_int_equal(engine_form_bytes(other), bobs);
    push_text(f.e, bob, "]}");
    assert_true(engine_match_ended(bob));
    /* Nor is an answer whose form is the same as one of ann's. */
    assert_int_equal(engine_form_bytes(equal), equals);
    push_text(f.e, same, "]}");
    assert_true(engine_match_ended(same));
    for (int i = 0; i < FORMS; i++) {
        engine_match_free(m[i]);
        engine_form_free(form[i]);
    }
    engine_match_free(bob);
    engine_match_free(same);
    engine_form_free(equal);
    engine_form_free(other);
    engine_forms_free(fs);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_tokens), cmocka_unit_test(test_shared_and_kept),
                                       cmocka_unit_test(test_owners)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
