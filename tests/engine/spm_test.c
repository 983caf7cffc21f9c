/* spm_test.c - SentencePiece: golden values, the leading space, byte fallback, long runs. */
#include "tests/engine/golden.h"
#include "tests/engine/models.h"
#include "tests/engine/text_fixture.h"
#include "tests/engine/tiny_vocab.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define BYTE(b) (TINY_SPM_BYTES + (b))

static struct text_fixture tiny(int space_prefix)
{
    struct gguf_writer *w = gguf_writer_new();
    tiny_vocab_spm(w);
    if (space_prefix >= 0)
        gguf_writer_bool(w, "tokenizer.ggml.add_space_prefix", space_prefix > 0);
    return text_fixture_written(w);
}

static void test_golden(void **state)
{
    (void)state;
    struct text_fixture f = text_fixture_model(MODEL_GEMMA_270M);
    assert_int_equal(golden_check_file(f.v, "tokens-" MODEL_GEMMA_270M ".jsonl"), 90);
    assert_string_equal(vocab_model(f.v), "llama");
    assert_true(vocab_adds_bos(f.v));
    assert_int_equal(vocab_bos(f.v), 2);
    assert_true(vocab_ends_answer(f.v, 1));
    assert_true(vocab_ends_answer(f.v, vocab_special(f.v, "<end_of_turn>")));
    assert_false(vocab_ends_answer(f.v, vocab_special(f.v, "</s>"))); /* an HTML tag here */
    EXPECT_TOKENS(&f, "<start_of_turn>user\nHi<end_of_turn>\n", VOCAB_PARSE_SPECIAL, 105, 2364, 107, 10979, 106, 107);
    EXPECT_TOKENS(&f, "a</s>b", 0, 236746, 212, 236763);
    size_t len;
    assert_memory_equal(vocab_token_bytes(f.v, 26352, &len), " Hello", 6);
    assert_int_equal(len, 6);
    assert_memory_equal(vocab_token_bytes(f.v, 248, &len), "\n", 1);
    assert_int_equal(len, 1);
    text_fixture_close(&f);
}

static void test_pieces(void **state)
{
    (void)state;
    struct text_fixture f = tiny(-1);
    /* The leading space is there unless the file says no, and again after a control token that has none. */
    EXPECT_TOKENS(&f, "hello", 0, TINY_SPM_SPACE_HELLO);
    EXPECT_TOKENS(&f, "hello hello", 0, TINY_SPM_SPACE_HELLO, TINY_SPM_SPACE_HELLO);
    EXPECT_TOKENS(&f, "hello\nhello", 0, TINY_SPM_SPACE_HELLO, TINY_SPM_NEWLINE, TINY_SPM_HELLO);
    EXPECT_TOKENS(&f, "<s> hello", VOCAB_PARSE_SPECIAL, 1, TINY_SPM_SPACE_HELLO);
    EXPECT_TOKENS(&f, "hello", VOCAB_CONTINUES, TINY_SPM_HELLO);
    EXPECT_TOKENS(&f, " hello", VOCAB_AFTER_SPECIAL, TINY_SPM_SPACE_HELLO);
    EXPECT_TOKENS(&f, "<s>hello", VOCAB_PARSE_SPECIAL, 1, TINY_SPM_SPACE_HELLO);
    EXPECT_TOKENS(&f, "hello", VOCAB_ADD_SPECIAL, 1, TINY_SPM_SPACE_HELLO);
    text_fixture_expect(&f, "", 0, 0, NULL, 0);
    text_fixture_close(&f);

    f = tiny(0);
    EXPECT_TOKENS(&f, "hello", 0, TINY_SPM_HELLO);
    EXPECT_TOKENS(&f, " hello", 0, TINY_SPM_SPACE_HELLO);
    EXPECT_TOKENS(&f, "helo", 0, TINY_SPM_HE, TINY_SPM_L, TINY_SPM_O);
    EXPECT_TOKENS(&f, "lll", 0, TINY_SPM_LL, TINY_SPM_L); /* the leftmost of equal pairs first */
    /* No control token and no byte token out of their texts. */
    EXPECT_TOKENS(&f, "</s>", 0, BYTE('<'), BYTE('/'), BYTE('s'), BYTE('>'));
    EXPECT_TOKENS(&f, "<0x0A>", 0, BYTE('<'), BYTE('0'), BYTE('x'), BYTE('0'), BYTE('A'), BYTE('>'));
    EXPECT_TOKENS(&f, "<unk>", VOCAB_PARSE_SPECIAL, BYTE('<'), BYTE('u'), BYTE('n'), BYTE('k'), BYTE('>'));
    text_fixture_close(&f);
}

static void test_bytes(void **state)
{
    (void)state;
    struct text_fixture f = tiny(0);
    EXPECT_TOKENS(&f, "\xc3\xa9", 0, BYTE(0xc3), BYTE(0xa9));
    EXPECT_TOKENS(&f, "h\xffll", 0, TINY_SPM_H, BYTE(0xff), TINY_SPM_LL);
    EXPECT_TOKENS(&f, "\xe2\x96", 0, BYTE(0xe2), BYTE(0x96)); /* the start of U+2581 */
    char all[512];
    for (int i = 0; i < 512; i++)
        all[i] = (char)(i * 167 + i / 256);
    text_fixture_round_trip(&f, all, sizeof all, 0);
    text_fixture_close(&f);
    f = text_fixture_model(MODEL_GEMMA_270M);
    text_fixture_round_trip(&f, all, sizeof all, 0);
    text_fixture_close(&f);
}

/* A vocabulary of these tokens, all with score 0 but what the caller changes. */
static struct gguf_writer *write_pieces(const char *const *tokens, const int32_t *types, const float *scores, size_t n)
{
    struct gguf_writer *w = gguf_writer_new();
    gguf_writer_string(w, "tokenizer.ggml.model", "llama");
    gguf_writer_strings(w, "tokenizer.ggml.tokens", tokens, n);
    gguf_writer_i32s(w, "tokenizer.ggml.token_type", types, n);
    gguf_writer_f32s(w, "tokenizer.ggml.scores", scores, n);
    gguf_writer_bool(w, "tokenizer.ggml.add_space_prefix", false);
    return w;
}

static void test_without_bytes(void **state)
{
    (void)state;
    static const char *const TOKENS[] = {"<unk>", "a", "b", "ab", "ba", "c"};
    static const int32_t TYPES[] = {2, 1, 1, 1, 1, 5};
    static const float SCORES[] = {0, -1, -1, 0.0f, -0.0f, 5};
    struct text_fixture f = text_fixture_written(write_pieces(TOKENS, TYPES, SCORES, 6));
    EXPECT_TOKENS(&f, "aba", 0, 3, 1); /* 0 and -0 are equal: the left pair */
    EXPECT_TOKENS(&f, "a\xc3\xa9z", 0, 1, 0, 0);
    EXPECT_TOKENS(&f, "c", 0, 0); /* unused */
    assert_false(vocab_adds_bos(f.v));
    text_fixture_close(&f);
}

/* Older files write the spaces of user-defined tokens as those of pieces, newer ones as they are: both are spaces. */
static void test_spaces_of_user_defined_tokens(void **state)
{
    (void)state;
    static const char *const TOKENS[] = {"<unk>", "\xe2\x96\x81", "\xe2\x96\x81\xe2\x96\x81", "   "};
    struct text_fixture f =
        text_fixture_written(write_pieces(TOKENS, (int32_t[]){2, 1, 4, 4}, (float[]){0, 0, 0, 0}, 4));
    size_t len;
    for (engine_token id = 1; id < 4; id++) {
        assert_memory_equal(vocab_token_bytes(f.v, id, &len), "   ", (size_t)id);
        assert_int_equal(len, id);
    }
    EXPECT_TOKENS(&f, " ", 0, 1);
    EXPECT_TOKENS(&f, "  ", 0, 2);
    EXPECT_TOKENS(&f, "   ", 0, 3);
    text_fixture_close(&f);
}

static void test_refuses(void **state)
{
    (void)state;
    static const char *const BYTES[] = {"<0x-1>", "<0x0a>", "<0xA>", "<0x100>", "0x0A", "<0x0A", "<0xG0>", ""};
    for (size_t i = 0; i < sizeof BYTES / sizeof *BYTES; i++)
        text_fixture_refused(write_pieces(&BYTES[i], &(int32_t){6}, &(float){0}, 1), -EBADMSG, "the type of a byte");
    static const char *const TOKENS[] = {"a", "b"};
    text_fixture_refused(write_pieces(TOKENS, (int32_t[]){1, 1}, (float[]){0, NAN}, 2), -EBADMSG, "scores[1]");
    struct gguf_writer *w = gguf_writer_new();
    gguf_writer_string(w, "tokenizer.ggml.model", "llama");
    gguf_writer_strings(w, "tokenizer.ggml.tokens", TOKENS, 2);
    gguf_writer_i32s(w, "tokenizer.ggml.token_type", (int32_t[]){1, 1}, 2);
    gguf_writer_f32s(w, "tokenizer.ggml.scores", (float[]){0}, 1);
    text_fixture_refused(w, -EBADMSG, "scores has 1 values for 2 tokens");
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Processor time: four times the text may take four times as long, and somewhat more; sixteen times would be quadratic.
 */
static void test_long_runs(void **state)
{
    (void)state;
    struct text_fixture f = tiny(0);
    static const char LETTERS[] = "lx \n\xe9";
    enum { SHORT = 1 << 18 };
    char *text = malloc(4 * SHORT);
    assert_non_null(text);
    for (size_t c = 0; c < sizeof LETTERS - 1; c++) {
        memset(text, LETTERS[c], 4 * SHORT);
        double best[2] = {1e9, 1e9};
        for (int repeat = 0; repeat < 3; repeat++)
            for (int size = 0; size < 2; size++) {
                struct engine_tokens out = {0};
                double start = seconds();
                assert_int_equal(vocab_tokenize(f.v, text, size == 0 ? SHORT : 4 * SHORT, 0, &out), 0);
                double took = seconds() - start;
                best[size] = took < best[size] ? took : best[size];
                assert_in_range(out.n, SHORT / 2, 4 * SHORT);
                engine_tokens_free(&out);
            }
        if (!(best[1] <= 10 * best[0] + 0.05))
            fail_msg("'%c': %.3f s, and %.3f s for four times as many", LETTERS[c], best[0], best[1]);
    }
    free(text);
    text_fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_without_bytes),
        cmocka_unit_test(test_spaces_of_user_defined_tokens),
        cmocka_unit_test(test_refuses),
        cmocka_unit_test(test_long_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
