/* vocab_test.c - loading a vocabulary: hostile files, special ids, markers with the wrong type, and how long it takes.
 */
#include "engine/text/text.h"
#include "tests/engine/models.h"
#include "tests/engine/text_fixture.h"
#include "tests/engine/tiny_vocab.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

/* A byte-level vocabulary of these tokens with these merges. */
static struct gguf_writer *write_bpe(const char *const *tokens, const int32_t *types, size_t n,
                                     const char *const *merges, size_t n_merges)
{
    struct gguf_writer *w = gguf_writer_new();
    gguf_writer_string(w, "tokenizer.ggml.model", "gpt2");
    gguf_writer_string(w, "tokenizer.ggml.pre", "gpt-2");
    gguf_writer_strings(w, "tokenizer.ggml.tokens", tokens, n);
    gguf_writer_i32s(w, "tokenizer.ggml.token_type", types, n);
    gguf_writer_strings(w, "tokenizer.ggml.merges", merges, n_merges);
    return w;
}

static void test_refuses(void **state)
{
    (void)state;
    static const char *const TOKENS[] = {"a", "b", "ab", "<|im_end|>"};
    static const int32_t TYPES[] = {1, 1, 1, 3};
    static const char *const MERGES[] = {"a b"};
    struct gguf_writer *w = gguf_writer_new();
    text_fixture_refused(w, -EBADMSG, "tokenizer.ggml.model is missing");
    w = gguf_writer_new();
    gguf_writer_string(w, "tokenizer.ggml.model", "rwkv");
    text_fixture_refused(w, -ENOTSUP, "\"rwkv\"");
    w = gguf_writer_new();
    gguf_writer_string(w, "tokenizer.ggml.model", "gpt2");
    text_fixture_refused(w, -EBADMSG, "tokenizer.ggml.tokens is missing");
    w = gguf_writer_new();
    gguf_writer_string(w, "tokenizer.ggml.model", "gpt2");
    gguf_writer_strings(w, "tokenizer.ggml.tokens", TOKENS, 4);
    text_fixture_refused(w, -EBADMSG, "tokenizer.ggml.token_type is missing");
    w = gguf_writer_new();
    gguf_writer_string(w, "tokenizer.ggml.model", "gpt2");
    gguf_writer_strings(w, "tokenizer.ggml.tokens", TOKENS, 4);
    gguf_writer_i32s(w, "tokenizer.ggml.token_type", TYPES, 3);
    text_fixture_refused(w, -EBADMSG, "has 3 values for 4 tokens");
    text_fixture_refused(write_bpe(TOKENS, TYPES, 0, MERGES, 0), -EBADMSG, "has 0 tokens");
    text_fixture_refused(write_bpe(TOKENS, (int32_t[]){1, 1, 7, 1}, 4, MERGES, 1), -EBADMSG, "token_type[2] is 7");
    text_fixture_refused(write_bpe(TOKENS, (int32_t[]){1, -1, 1, 1}, 4, MERGES, 1), -EBADMSG, "token_type[1] is -1");
    w = gguf_writer_new();
    gguf_writer_string(w, "tokenizer.ggml.model", "gpt2");
    gguf_writer_string(w, "tokenizer.ggml.pre", "mystery");
    gguf_writer_strings(w, "tokenizer.ggml.tokens", TOKENS, 4);
    gguf_writer_i32s(w, "tokenizer.ggml.token_type", TYPES, 4);
    text_fixture_refused(w, -ENOTSUP, "\"mystery\"");

    char *long_token = malloc(VOCAB_MAX_TOKEN_BYTES + 2);
    assert_non_null(long_token);
    memset(long_token, 'x', VOCAB_MAX_TOKEN_BYTES + 1);
    long_token[VOCAB_MAX_TOKEN_BYTES + 1] = '\0';
    const char *one_past = long_token, *largest = long_token + 1;
    text_fixture_refused(write_bpe(&one_past, TYPES, 1, MERGES, 0), -EBADMSG, "has 65536 bytes");
    struct text_fixture f = text_fixture_written(write_bpe(&largest, TYPES, 1, MERGES, 0));
    text_fixture_close(&f);
    free(long_token);
}

static void test_merges(void **state)
{
    (void)state;
    static const char *const TOKENS[] = {"a", "b", "ab", "<|im_end|>", "<|im_", "end|>", "<t>"};
    static const int32_t TYPES[] = {1, 1, 1, 3, 1, 1, 4};
    static const char *const BAD[] = {"", "a", " ", "a ", "ab", "  "};
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++)
        text_fixture_refused(write_bpe(TOKENS, TYPES, 7, &BAD[i], 1), -EBADMSG, "is not two tokens");
    static const char *const MISSING[] = {"a c", "c a", "b a", "a ab"};
    for (size_t i = 0; i < sizeof MISSING / sizeof *MISSING; i++)
        text_fixture_refused(write_bpe(TOKENS, TYPES, 7, &MISSING[i], 1), -EBADMSG, "merges[0]");
    /* A merge that would make a control token, or take a user-defined one, is never used; equal lines count once. */
    static const char *const ODD[] = {"<|im_ end|>", "<t> a", "a b", "a b"};
    static const char *const WITH[] = {"a", "b", "ab", "<|im_end|>", "<|im_", "end|>", "<t>", "<t>a"};
    static const int32_t WITH_TYPES[] = {1, 1, 1, 3, 1, 1, 4, 4};
    struct text_fixture f = text_fixture_written(write_bpe(WITH, WITH_TYPES, 8, ODD, 4));
    EXPECT_TOKENS(&f, "ab", 0, 2);
    text_fixture_expect(&f, "<|im_end|>", 10, 0, NULL, 0); /* no tokens for its letters, and no unknown token */
    text_fixture_close(&f);
}

/* An id outside the vocabulary is refused where it would be used, and noted where nothing needs it. */
static void test_special_ids(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        bool adds_bos, refused;
    } KEYS[] = {
        {"tokenizer.ggml.eos_token_id", false, true},      {"tokenizer.ggml.bos_token_id", true, true},
        {"tokenizer.ggml.bos_token_id", false, false},     {"tokenizer.ggml.eot_token_id", false, false},
        {"tokenizer.ggml.eom_token_id", false, false},     {"tokenizer.ggml.unknown_token_id", false, false},
        {"tokenizer.ggml.padding_token_id", false, false}, {"tokenizer.ggml.fim_pre_token_id", false, false},
        {"tokenizer.ggml.mask_token_id", false, false},
    };
    static const char *const TOKENS[] = {"a", "b", "<end>"};
    static const int32_t TYPES[] = {1, 1, 3};
    static const int64_t BEYOND[] = {3, INT32_MAX, UINT32_MAX, -1};
    for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++)
        for (size_t k = 0; k < sizeof BEYOND / sizeof *BEYOND; k++) {
            struct gguf_writer *w = write_bpe(TOKENS, TYPES, 3, NULL, 0);
            gguf_writer_i64(w, KEYS[i].key, BEYOND[k]);
            if (KEYS[i].adds_bos)
                gguf_writer_bool(w, "tokenizer.ggml.add_bos_token", true);
            if (KEYS[i].refused) {
                text_fixture_refused(w, -EBADMSG, KEYS[i].key);
                continue;
            }
            struct text_fixture f = text_fixture_written(w);
            const char *notes = vocab_notes(f.v);
            assert_non_null(notes);
            assert_non_null(strstr(notes, KEYS[i].key));
            assert_null(strchr(notes, '\n'));
            EXPECT_TOKENS(&f, "ab", 0, 0, 1);
            text_fixture_close(&f);
        }
    struct gguf_writer *two = write_bpe(TOKENS, TYPES, 3, NULL, 0);
    gguf_writer_u32(two, "tokenizer.ggml.eot_token_id", 7);
    gguf_writer_u32(two, "tokenizer.ggml.padding_token_id", 8);
    struct text_fixture noted = text_fixture_written(two);
    assert_non_null(strstr(vocab_notes(noted.v), "eot_token_id is 7, but there are 3 tokens; it is not used\n"));
    assert_non_null(strstr(vocab_notes(noted.v), "padding_token_id is 8"));
    text_fixture_close(&noted);
    struct gguf_writer *w = write_bpe(TOKENS, TYPES, 3, NULL, 0);
    gguf_writer_u32(w, "tokenizer.ggml.eot_token_id", 2);
    gguf_writer_u32(w, "tokenizer.ggml.unknown_token_id", 1);
    gguf_writer_bool(w, "tokenizer.ggml.add_bos_token", true);
    struct text_fixture f = text_fixture_written(w);
    assert_null(vocab_notes(f.v));
    assert_true(vocab_ends_answer(f.v, 2));
    assert_false(vocab_ends_answer(f.v, 1));
    assert_int_equal(vocab_bos(f.v), -1);
    assert_false(vocab_adds_bos(f.v));                /* there is none to add */
    EXPECT_TOKENS(&f, "ac", VOCAB_ADD_SPECIAL, 0, 1); /* what the vocabulary lacks is unknown */
    text_fixture_close(&f);
}

static void test_eos_added(void **state)
{
    (void)state;
    static const char *const TOKENS[] = {"a", "<b>", "<e>"};
    static const int32_t TYPES[] = {1, 3, 3};
    struct gguf_writer *w = write_bpe(TOKENS, TYPES, 3, NULL, 0);
    gguf_writer_u32(w, "tokenizer.ggml.bos_token_id", 1);
    gguf_writer_u32(w, "tokenizer.ggml.eos_token_id", 2);
    gguf_writer_bool(w, "tokenizer.ggml.add_bos_token", true);
    gguf_writer_bool(w, "tokenizer.ggml.add_eos_token", true);
    struct text_fixture f = text_fixture_written(w);
    EXPECT_TOKENS(&f, "a", VOCAB_ADD_SPECIAL, 1, 0, 2);
    EXPECT_TOKENS(&f, "a", 0, 0);
    EXPECT_TOKENS(&f, "<b>a<e>", VOCAB_ADD_SPECIAL | VOCAB_PARSE_SPECIAL, 1, 0, 2);
    EXPECT_TOKENS(&f, "", VOCAB_ADD_SPECIAL, 1, 2);
    text_fixture_close(&f);
}

/* Known markers are control tokens whatever the file calls them; tags with a meaning stay out of user text. */
static void test_markers(void **state)
{
    (void)state;
    static const char *const TOKENS[] = {"a", "<|im_end|>", "<think>", "<x>", "<y>", "</s>", "[INST]", "<"};
    static const int32_t TYPES[] = {1, 1, 4, 4, 4, 4, 4, 1};
    struct gguf_writer *w = write_bpe(TOKENS, TYPES, 8, NULL, 0);
    gguf_writer_string(w, "tokenizer.chat_template", "{{ '<|im_start|>' }} ... <y> ...");
    struct text_fixture f = text_fixture_written(w);
    assert_true(vocab_is_control(f.v, 1));
    assert_true(vocab_ends_answer(f.v, 1));
    assert_true(vocab_is_control(f.v, 6));
    assert_false(vocab_ends_answer(f.v, 5));
    EXPECT_TOKENS(&f, "<x></s><think><y>a", 0, 3, 5, 7, 7, 0); /* of <think> and <y>, only the letter it has: "<" */
    EXPECT_TOKENS(&f, "<think><y>", VOCAB_PARSE_SPECIAL, 2, 4);
    size_t len;
    assert_memory_equal(vocab_token_bytes(f.v, 2, &len), "<think>", 7); /* but the model's answer shows them */
    assert_int_equal(len, 7);
    text_fixture_close(&f);
}

/* The longest token that fits, with tokens that are the beginning of others. */
static void test_longest_special(void **state)
{
    (void)state;
    static const char *const TOKENS[] = {"a", "<a", "<ab>", "<abc>", "<abd>", "\n", "\n\n\n", "b", "<"};
    static const int32_t TYPES[] = {1, 4, 4, 4, 4, 4, 4, 1, 1};
    struct text_fixture f = text_fixture_written(write_bpe(TOKENS, TYPES, 9, NULL, 0));
    EXPECT_TOKENS(&f, "<abc><abd><ab><aba", 0, 3, 4, 2, 1, 7, 0);
    EXPECT_TOKENS(&f, "\n\n\n\n\n", 0, 6, 5, 5);
    EXPECT_TOKENS(&f, "<", 0, 8);
    EXPECT_TOKENS(&f, "b<a", 0, 7, 1);
    text_fixture_close(&f);
}

static double load_ms(const char *path)
{
    struct timespec a, b;
    struct gguf *g;
    struct vocab *v;
    char err[512];
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    assert_int_equal(gguf_open(path, &g, err, sizeof err), 0);
    assert_int_equal(vocab_open(g, &v, err, sizeof err), 0);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    vocab_close(v);
    gguf_close(g);
    return (double)(b.tv_sec - a.tv_sec) * 1e3 + (double)(b.tv_nsec - a.tv_nsec) * 1e-6;
}

/* Processor time, the best of five; sanitizers and slow machines get a wide margin over the 150 ms that is the aim. */
static void test_load_time(void **state)
{
    (void)state;
    static const char *const MODELS[] = {MODEL_QWEN_0_5B, MODEL_GEMMA_270M};
    for (size_t i = 0; i < 2; i++) {
        char *path = models_need(MODELS[i]);
        double best = 1e9;
        for (int k = 0; k < 5; k++) {
            double ms = load_ms(path);
            best = ms < best ? ms : best;
        }
        print_message("%s: %.0f ms\n", MODELS[i], best);
        assert_true(best < 1500);
        free(path);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refuses),   cmocka_unit_test(test_merges),  cmocka_unit_test(test_special_ids),
        cmocka_unit_test(test_eos_added), cmocka_unit_test(test_markers), cmocka_unit_test(test_longest_special),
        cmocka_unit_test(test_load_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
