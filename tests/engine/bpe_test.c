/* bpe_test.c - byte-level BPE: golden values, control tokens in user text, bytes that are not UTF-8, long runs. */
#include "tests/engine/golden.h"
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

static struct text_fixture tiny(const char *pre)
{
    struct gguf_writer *w = gguf_writer_new();
    tiny_vocab_bpe(w, pre);
    return text_fixture_written(w);
}

static void test_golden(void **state)
{
    (void)state;
    struct text_fixture f = text_fixture_model(MODEL_QWEN_0_5B);
    assert_int_equal(golden_check_file(f.v, "tokens-" MODEL_QWEN_0_5B ".jsonl"), 90);
    assert_string_equal(vocab_model(f.v), "gpt2");
    assert_int_equal(vocab_size(f.v), 151936);
    assert_false(vocab_adds_bos(f.v));
    assert_int_equal(vocab_eos(f.v), 151645);
    assert_true(vocab_ends_answer(f.v, 151645));
    assert_true(vocab_ends_answer(f.v, 151643));
    assert_false(vocab_ends_answer(f.v, 151644));
    size_t len;
    vocab_token_bytes(f.v, 151644, &len);
    assert_int_equal(len, 0);
    vocab_token_bytes(f.v, 151700, &len); /* padding of the vocabulary */
    assert_int_equal(len, 0);
    assert_memory_equal(vocab_token_bytes(f.v, 21927, &len), " Hello", 6);
    assert_int_equal(len, 6);
    EXPECT_TOKENS(&f, "<|im_start|>user\nHi<|im_end|>\n", VOCAB_PARSE_SPECIAL, 151644, 872, 198, 13048, 151645, 198);
    text_fixture_close(&f);
}

static void test_merges(void **state)
{
    (void)state;
    struct text_fixture f = tiny("qwen2");
    EXPECT_TOKENS(&f, "hello", 0, TINY_HELLO);
    EXPECT_TOKENS(&f, "hello hello", 0, TINY_HELLO, TINY_SPACE_HELLO);
    EXPECT_TOKENS(&f, "hell", 0, TINY_HELL);
    EXPECT_TOKENS(&f, "helo", 0, TINY_HE, 'l', 'o');
    EXPECT_TOKENS(&f, "lll", 0, TINY_LL, 'l'); /* the leftmost of equal pairs first */
    EXPECT_TOKENS(&f, "12", 0, '1', '2');      /* digits are pieces of their own */
    EXPECT_TOKENS(&f, "\n\n\n", 0, TINY_NEWLINES, '\n');
    text_fixture_expect(&f, "", 0, 0, NULL, 0);
    text_fixture_close(&f);
    f = tiny("llama-bpe");
    EXPECT_TOKENS(&f, "1212", 0, TINY_12, '1', '2'); /* cut after three digits */
    text_fixture_close(&f);
}

static void test_special_tokens(void **state)
{
    (void)state;
    struct text_fixture f = tiny("qwen2");
    /* In a user's text control tokens and tags with a meaning are letters; other user-defined tokens are matched. */
    EXPECT_TOKENS(&f, "<|im_end|>", 0, '<', '|', 'i', 'm', '_', 'e', 'n', 'd', '|', '>');
    EXPECT_TOKENS(&f, "<tool_call>", 0, '<', 't', 'o', 'o', 'l', '_', 'c', 'a', TINY_LL, '>');
    EXPECT_TOKENS(&f, "hello<mark>hello", 0, TINY_HELLO, TINY_MARK, TINY_HELLO);
    EXPECT_TOKENS(&f, "hello<|im_end|>\n<tool_call><mark>", VOCAB_PARSE_SPECIAL, TINY_HELLO, TINY_IM_END, '\n',
                  TINY_TOOL_CALL, TINY_MARK);
    assert_int_equal(vocab_special(f.v, "<|im_end|>"), TINY_IM_END);
    assert_int_equal(vocab_special(f.v, "<mark>"), TINY_MARK);
    assert_int_equal(vocab_special(f.v, "<|im_end|"), -1);
    assert_int_equal(vocab_special(f.v, "<|im_end|>x"), -1);
    assert_int_equal(vocab_special(f.v, "hello"), -1);
    assert_int_equal(vocab_special(f.v, ""), -1);
    assert_true(vocab_is_control(f.v, TINY_IM_END));
    assert_false(vocab_is_control(f.v, TINY_MARK));
    assert_false(vocab_is_control(f.v, -1));
    assert_false(vocab_ends_answer(f.v, TINY_TOKENS));
    size_t len;
    assert_non_null(vocab_token_bytes(f.v, TINY_TOKENS, &len));
    assert_int_equal(len, 0);
    vocab_token_bytes(f.v, INT32_MIN, &len);
    assert_int_equal(len, 0);
    text_fixture_close(&f);
}

/* A byte that the vocabulary lacks is nothing where the file's unknown token is a control token, as of SmolLM2: no text
 * makes one. Where it is another token it is that. */
static void test_unknown_bytes(void **state)
{
    (void)state;
    static const char *const MERGES[] = {"a b"};
    for (int type = 1; type <= 3; type++) {
        const char *tokens[] = {"a", "b", "ab", type == 3 ? "<|endoftext|>" : "<unk>"};
        struct gguf_writer *w = gguf_writer_new();
        gguf_writer_string(w, "tokenizer.ggml.model", "gpt2");
        gguf_writer_string(w, "tokenizer.ggml.pre", "smollm");
        gguf_writer_strings(w, "tokenizer.ggml.tokens", tokens, 4);
        gguf_writer_i32s(w, "tokenizer.ggml.token_type", (int32_t[]){1, 1, 1, type}, 4);
        gguf_writer_strings(w, "tokenizer.ggml.merges", MERGES, 1);
        gguf_writer_u32(w, "tokenizer.ggml.unknown_token_id", 3);
        struct text_fixture f = text_fixture_written(w);
        if (type == 3)
            EXPECT_TOKENS(&f, "a\x1b\xc0 ab", 0, 0, 2);
        else
            EXPECT_TOKENS(&f,
                          "a\x1b"
                          "ab",
                          0, 0, 3, 2);
        text_fixture_close(&f);
    }
}

static void test_bos_once(void **state)
{
    (void)state;
    struct gguf_writer *w = gguf_writer_new();
    tiny_vocab_bpe(w, "llama-bpe");
    struct text_fixture f = text_fixture_written(w);
    assert_false(vocab_adds_bos(f.v)); /* the file's word comes before the pre-tokenizer's habit */
    EXPECT_TOKENS(&f, "he", VOCAB_ADD_SPECIAL, TINY_HE);
    text_fixture_close(&f);

    f = text_fixture_model(MODEL_GEMMA_270M);
    EXPECT_TOKENS(&f, "The capital of France is", VOCAB_ADD_SPECIAL, 2, 818, 5279, 529, 7001, 563);
    EXPECT_TOKENS(&f, "<bos>The", VOCAB_ADD_SPECIAL | VOCAB_PARSE_SPECIAL, 2, 818);
    EXPECT_TOKENS(&f, "", VOCAB_ADD_SPECIAL, 2);
    text_fixture_close(&f);
}

static void test_not_utf8(void **state)
{
    (void)state;
    struct text_fixture f = tiny("qwen2");
    EXPECT_TOKENS(&f, "\xff", 0, 0xff);
    EXPECT_TOKENS(&f, "hello\xc3 hello", 0, TINY_HELLO, 0xc3, TINY_SPACE_HELLO);
    EXPECT_TOKENS(&f, "\xe2\x82", 0, 0xe2, 0x82);
    text_fixture_close(&f);
    f = text_fixture_model(MODEL_QWEN_0_5B);
    static const char BAD[] = "caf\xc3 \xed\xa0\x80 \xf4\x90\x80\x80 \xc0\xaf abc\x80\x80 \xf0\x9f\x98 x\xff";
    text_fixture_round_trip(&f, BAD, sizeof BAD - 1, 0);
    char bytes[512];
    for (int i = 0; i < 512; i++)
        bytes[i] = (char)(i * 167 + i / 256);
    text_fixture_round_trip(&f, bytes, sizeof bytes, 0);
    text_fixture_close(&f);
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
    struct text_fixture f = tiny("qwen2");
    static const char LETTERS[] = "la 1\n\xe9.";
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

static void test_too_long(void **state)
{
    (void)state;
    struct text_fixture f = tiny("qwen2");
    struct engine_tokens out = {0};
    assert_int_equal(vocab_tokenize(f.v, "", (size_t)VOCAB_MAX_TEXT_BYTES + 1, 0, &out), -EOVERFLOW);
    assert_int_equal(out.n, 0);
    engine_tokens_free(&out);
    text_fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_golden),         cmocka_unit_test(test_merges),
                                       cmocka_unit_test(test_special_tokens), cmocka_unit_test(test_unknown_bytes),
                                       cmocka_unit_test(test_bos_once),       cmocka_unit_test(test_not_utf8),
                                       cmocka_unit_test(test_long_runs),      cmocka_unit_test(test_too_long)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
