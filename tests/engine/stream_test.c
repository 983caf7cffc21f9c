/* stream_test.c - streamed text: characters and stop strings across token borders, nothing lost, nothing twice. */
#include "engine/text/text.h"
#include "tests/engine/models.h"
#include "tests/engine/text_fixture.h"
#include "tests/engine/tiny_vocab.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct text_fixture tiny(void)
{
    struct gguf_writer *w = gguf_writer_new();
    tiny_vocab_bpe(w, "qwen2");
    return text_fixture_written(w);
}

struct result {
    char text[4096];
    size_t len;
    bool stopped;
    size_t pieces; /* calls that gave text */
};

/* Whether text is whole UTF-8 characters, written independently of what is tested. */
static bool is_whole(const char *text, size_t len)
{
    for (size_t i = 0; i < len;) {
        unsigned char c = (unsigned char)text[i];
        size_t n = c < 0x80 ? 1 : c >= 0xc2 && c < 0xe0 ? 2 : c >= 0xe0 && c < 0xf0 ? 3 : c >= 0xf0 && c < 0xf5 ? 4 : 0;
        if (n == 0 || i + n > len)
            return false;
        for (size_t k = 1; k < n; k++)
            if (((unsigned char)text[i + k] & 0xc0) != 0x80)
                return false;
        i += n;
    }
    return true;
}

static void take(struct result *r, const char *text, size_t len)
{
    assert_true(is_whole(text, len));
    assert_true(r->len + len < sizeof r->text);
    memcpy(r->text + r->len, text, len);
    r->len += len;
    r->text[r->len] = '\0';
    r->pieces += len > 0;
}

static struct result run(const struct vocab *v, const engine_token *ids, size_t n, const char *const *stops,
                         size_t n_stops)
{
    struct result r = {.len = 0};
    const char *text;
    size_t len;
    struct engine_stream *s = stream_new(v, stops, n_stops);
    assert_non_null(s);
    for (size_t i = 0; i < n && !r.stopped; i++) {
        int rc = engine_stream_push(s, ids[i], &text, &len);
        assert_in_range(rc, 0, 1);
        take(&r, text, len);
        r.stopped = rc == 1;
    }
    if (r.stopped && n > 0) {
        assert_int_equal(engine_stream_push(s, ids[0], &text, &len), 1); /* stays stopped, and silent */
        assert_int_equal(len, 0);
    }
    assert_int_equal(engine_stream_finish(s, &text, &len), 0);
    take(&r, text, len);
    if (r.stopped)
        assert_int_equal(len, 0);
    engine_stream_free(s);
    return r;
}

/* The bytes of a text as tokens, one each. */
static struct result run_bytes(const struct vocab *v, const char *bytes, size_t n, const char *const *stops,
                               size_t n_stops)
{
    engine_token ids[1024];
    assert_in_range(n, 0, 1024);
    for (size_t i = 0; i < n; i++)
        ids[i] = (unsigned char)bytes[i];
    return run(v, ids, n, stops, n_stops);
}

static void expect(const struct vocab *v, const char *bytes, size_t n, const char *stop, const char *wanted,
                   bool stopped)
{
    struct result r = run_bytes(v, bytes, n, &stop, stop != NULL);
    assert_string_equal(r.text, wanted);
    assert_int_equal(r.stopped, stopped);
}

#define EXPECT(v, bytes, stop, wanted, stopped) expect((v), (bytes), sizeof(bytes) - 1, (stop), (wanted), (stopped))

static void test_characters(void **state)
{
    (void)state;
    struct text_fixture f = tiny();
    EXPECT(f.v, "plain", NULL, "plain", false);
    EXPECT(f.v, "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80!", NULL, "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80!",
           false);
    EXPECT(f.v, "", NULL, "", false);
    struct result r = run_bytes(f.v, "\xf0\x9f\x98\x80", 4, NULL, 0);
    assert_int_equal(r.pieces, 1); /* all four bytes at once */
    text_fixture_close(&f);
}

static void test_broken_characters(void **state)
{
    (void)state;
    struct text_fixture f = tiny();
#define R "\xef\xbf\xbd"
    EXPECT(f.v,
           "a\xff"
           "b",
           NULL, "a" R "b", false);
    EXPECT(f.v,
           "a\xe2\x82"
           "b",
           NULL, "a" R "b", false);
    EXPECT(f.v, "\x80\x80", NULL, R R, false);
    EXPECT(f.v, "\xe2\x82", NULL, R, false);         /* the end cuts a character */
    EXPECT(f.v, "\xed\xa0\x80", NULL, R R R, false); /* a surrogate */
    EXPECT(f.v, "\xf4\x90\x80\x80", NULL, R R R R, false);
    EXPECT(f.v, "\xc0\xaf", NULL, R R, false);
    EXPECT(f.v, "\xf0\x9f\x98\xf0\x9f\x98\x80", NULL, R "\xf0\x9f\x98\x80", false);
    EXPECT(f.v, "x\xc3", "y", "x" R, false);
#undef R
    text_fixture_close(&f);
}

static void test_stop_strings(void **state)
{
    (void)state;
    struct text_fixture f = tiny();
    EXPECT(f.v, "one STOP two", "STOP", "one ", true);
    EXPECT(f.v, "one STO two", "STOP", "one STO two", false);
    EXPECT(f.v, "one STO", "STOP", "one STO", false); /* the tail is not lost */
    EXPECT(f.v, "SSTOP", "STOP", "S", true);
    EXPECT(f.v, "ababac", "abac", "ab", true);
    EXPECT(f.v, "STOP", "STOP", "", true);
    EXPECT(f.v, "xyz", "z", "xy", true);
    EXPECT(f.v, "a\n\nUser: b", "\n\nUser:", "a", true);
    EXPECT(f.v, "pr\xc3\xa9t", "\xc3\xa9t", "pr", true);
    EXPECT(f.v, "pr\xc3\xa9x", "\xc3\xa9t", "pr\xc3\xa9x", false);
    EXPECT(f.v, "pr\xc3\xa9x", "\xa9t", "pr\xc3\xa9x", false); /* not UTF-8: cuts no character */
    EXPECT(f.v, "pr\xc3\xa9t", "\xa9t", "pr\xc3\xa9t", false);
    EXPECT(f.v, "pr\xc3\xa9t", "\xc3", "pr", true);
    EXPECT(f.v, "abc", "", "abc", false);

    static const char *const SEVERAL[] = {"cd", "bcde", "abcd", "zz"};
    struct result r = run_bytes(f.v, "_abcde", 6, SEVERAL, 4);
    assert_string_equal(r.text, "_"); /* complete at the same byte: the longest */
    assert_true(r.stopped);
    r = run_bytes(f.v, "_xbcde", 6, SEVERAL, 4);
    assert_string_equal(r.text, "_xb"); /* complete first */
    text_fixture_close(&f);
}

/* The same text in every division into tokens gives the same result. */
static void test_borders_do_not_matter(void **state)
{
    (void)state;
    struct text_fixture f = tiny();
    static const char *const STOPS[] = {"lo h", "\n\n\n", "ohe"};
    static const engine_token DIVISIONS[][12] = {
        {TINY_HELLO, TINY_SPACE_HELLO},
        {TINY_HELL, 'o', ' ', TINY_HELLO},
        {'h', 'e', TINY_LL, 'o', TINY_SPACE_HELLO},
        {TINY_HE, 'l', 'l', 'o', ' ', 'h'},
    };
    static const size_t LENGTHS[] = {2, 4, 5, 6};
    for (size_t i = 0; i < 4; i++) {
        struct result r = run(f.v, DIVISIONS[i], LENGTHS[i], STOPS, 3);
        assert_string_equal(r.text, "hel");
        assert_true(r.stopped);
    }
    /* Two tokens of two newlines hold the stop string, and more. */
    struct result r = run(f.v, (engine_token[]){'a', TINY_NEWLINES, TINY_NEWLINES, 'b'}, 4, STOPS, 3);
    assert_string_equal(r.text, "a");
    assert_true(r.stopped);
    /* Control tokens and ids outside the vocabulary say nothing. */
    r = run(f.v, (engine_token[]){'l', TINY_IM_END, 'o', -5, TINY_TOKENS + 9, 'w'}, 6, STOPS, 3);
    assert_string_equal(r.text, "low");
    assert_false(r.stopped);
    text_fixture_close(&f);
}

/* What does not begin a stop string is not held back. */
static void test_holds_back_no_more_than_needed(void **state)
{
    (void)state;
    struct text_fixture f = tiny();
    const char *stop = "abab", *text;
    size_t len;
    struct engine_stream *s = stream_new(f.v, &stop, 1);
    assert_non_null(s);
    static const struct {
        char byte;
        const char *out;
    } STEPS[] = {{'x', "x"}, {'a', ""}, {'b', ""}, {'a', ""}, {'a', "aba"}, {'c', "ac"}, {'a', ""}};
    for (size_t i = 0; i < sizeof STEPS / sizeof *STEPS; i++) {
        assert_int_equal(engine_stream_push(s, STEPS[i].byte, &text, &len), 0);
        assert_int_equal(len, strlen(STEPS[i].out));
        assert_memory_equal(text, STEPS[i].out, len);
    }
    assert_int_equal(engine_stream_finish(s, &text, &len), 0);
    assert_int_equal(len, 1);
    assert_int_equal(engine_stream_finish(s, &text, &len), 0);
    assert_int_equal(len, 0);
    engine_stream_free(s);
    engine_stream_free(NULL);
    text_fixture_close(&f);
}

static void test_limits(void **state)
{
    (void)state;
    struct text_fixture f = tiny();
    char longest[STREAM_MAX_STOP_BYTES + 2];
    const char *stops[STREAM_MAX_STOPS + 1];
    memset(longest, 's', sizeof longest);
    longest[STREAM_MAX_STOP_BYTES + 1] = '\0';
    stops[0] = longest;
    assert_null(stream_new(f.v, stops, 1));
    assert_int_equal(errno, EINVAL);
    stops[0] = longest + 1;
    struct result r = run_bytes(f.v, longest, STREAM_MAX_STOP_BYTES - 1, stops, 1);
    assert_false(r.stopped);
    assert_int_equal(r.len, STREAM_MAX_STOP_BYTES - 1);
    r = run_bytes(f.v, longest, STREAM_MAX_STOP_BYTES, stops, 1);
    assert_true(r.stopped);
    assert_int_equal(r.len, 0);
    for (size_t i = 0; i <= STREAM_MAX_STOPS; i++)
        stops[i] = "x";
    assert_null(stream_new(f.v, stops, STREAM_MAX_STOPS + 1));
    struct engine_stream *s = stream_new(f.v, stops, STREAM_MAX_STOPS);
    assert_non_null(s);
    engine_stream_free(s);
    text_fixture_close(&f);
}

/* SentencePiece models begin an answer with a piece that carries a space; it is no part of the text. */
static void test_leading_space(void **state)
{
    (void)state;
    struct gguf_writer *w = gguf_writer_new();
    tiny_vocab_spm(w);
    struct text_fixture f = text_fixture_written(w);
    struct result r = run(f.v, (engine_token[]){TINY_SPM_SPACE_HELLO, TINY_SPM_SPACE_HELLO}, 2, NULL, 0);
    assert_string_equal(r.text, "hello hello");
    r = run(f.v, (engine_token[]){1, TINY_SPM_SPACE, TINY_SPM_SPACE_HELLO}, 3, NULL, 0);
    assert_string_equal(r.text, " hello");
    r = run(f.v, (engine_token[]){TINY_SPM_HELLO, TINY_SPM_SPACE_HELLO}, 2, NULL, 0);
    assert_string_equal(r.text, "hello hello");
    r = run(f.v, (engine_token[]){TINY_SPM_BYTES + 0xc3, TINY_SPM_BYTES + 0xa9}, 2, NULL, 0);
    assert_string_equal(r.text, "\xc3\xa9");
    text_fixture_close(&f);
}

/* A text through a real vocabulary and back. */
static void test_real_tokens(void **state)
{
    (void)state;
    static const char TEXT[] =
        "Gr\xc3\xbc\xc3\x9f"
        "e \xf0\x9f\x91\xa8\xe2\x80\x8d\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa7 "
        "\xe0\xa4\xa8\xe0\xa4\xae\xe0\xa4\xb8\xe0\xa5\x8d\xe0\xa4\xa4\xe0\xa5\x87 \xf0\x9d\x95\x8f\xf0\x9d\x95\x96";
    static const char *const MODELS[] = {MODEL_QWEN_0_5B, MODEL_GEMMA_270M};
    for (size_t i = 0; i < 2; i++) {
        struct text_fixture f = text_fixture_model(MODELS[i]);
        struct engine_tokens t = {0};
        assert_int_equal(vocab_tokenize(f.v, TEXT, sizeof TEXT - 1, 0, &t), 0);
        struct result r = run(f.v, t.ids, t.n, NULL, 0);
        assert_string_equal(r.text, TEXT);
        engine_tokens_free(&t);
        text_fixture_close(&f);
    }
}

/* What is held back comes out when something stands behind it, and the stream goes on. */
static void test_flush(void **state)
{
    (void)state;
    struct text_fixture f = tiny();
    static const char *const STOP[] = {"ab"};
    struct engine_stream *s = stream_new(f.v, STOP, 1);
    struct engine_tokens t = {0};
    const char *text;
    size_t len;
    assert_int_equal(vocab_tokenize(f.v, "a", 1, 0, &t), 0);
    assert_int_equal(vocab_tokenize(f.v, "b", 1, 0, &t), 0);
    assert_int_equal(t.n, 2);
    assert_int_equal(engine_stream_push(s, t.ids[0], &text, &len), 0);
    assert_int_equal(len, 0);
    assert_int_equal(engine_stream_flush(s, &text, &len), 0);
    assert_int_equal(len, 1);
    assert_memory_equal(text, "a", 1);
    assert_int_equal(engine_stream_push(s, t.ids[1], &text, &len), 0);
    assert_int_equal(len, 1);
    assert_memory_equal(text, "b", 1);
    engine_tokens_free(&t);
    engine_stream_free(s);
    text_fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_characters),
        cmocka_unit_test(test_broken_characters),
        cmocka_unit_test(test_stop_strings),
        cmocka_unit_test(test_borders_do_not_matter),
        cmocka_unit_test(test_holds_back_no_more_than_needed),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_flush),
        cmocka_unit_test(test_leading_space),
        cmocka_unit_test(test_real_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
