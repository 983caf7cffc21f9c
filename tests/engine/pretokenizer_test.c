/* pretokenizer_test.c - where text is cut. tests/data/pretokenizer.jsonl was made with another regular expression
 * library from the expressions of the models' own tokenizer files. */
#include "engine/text/vocab_private.h"
#include "tests/engine/gguf_writer.h"
#include "tests/engine/golden.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cJSON.h>
#include <cmocka.h>

static char err[512];
static void *file;
static struct gguf *g;

static int setup(void **state)
{
    (void)state;
    struct gguf_writer *w = gguf_writer_new();
    size_t size;
    file = gguf_writer_finish(w, &size);
    gguf_writer_free(w);
    return gguf_open_memory(file, size, "test.gguf", &g, err, sizeof err);
}

static int teardown(void **state)
{
    (void)state;
    gguf_close(g);
    free(file);
    return 0;
}

static struct pretokenizer *open_named(const char *name)
{
    struct pretokenizer *p = NULL;
    bool ignore_merges, add_bos;
    if (pretokenizer_open(g, name, strlen(name), &p, &ignore_merges, &add_bos, err, sizeof err) != 0)
        fail_msg("%s", err);
    return p;
}

struct pieces {
    size_t ends[1024];
    size_t n, at;
    int stop_after;
};

static int take_piece(void *arg, size_t start, size_t end)
{
    struct pieces *p = arg;
    assert_int_equal(start, p->at); /* without gaps, in order */
    assert_true(end > start);
    assert_true(p->n < 1024);
    p->ends[p->n++] = p->at = end;
    return p->stop_after > 0 && (int)p->n == p->stop_after ? 42 : 0;
}

static void test_golden(void **state)
{
    (void)state;
    FILE *f = golden_open("pretokenizer.jsonl");
    char *text = NULL;
    size_t capacity = 0;
    int lines = 0;
    for (; getline(&text, &capacity, f) > 0; lines++) {
        cJSON *line = cJSON_Parse(text), *piece;
        assert_non_null(line);
        struct pretokenizer *p = open_named(cJSON_GetObjectItem(line, "pre")->valuestring);
        struct pieces wanted = {.n = 0}, got = {.n = 0};
        char whole[1024] = "";
        cJSON_ArrayForEach(piece, cJSON_GetObjectItem(line, "pieces"))
        {
            strcat(whole, piece->valuestring);
            wanted.ends[wanted.n++] = strlen(whole);
        }
        assert_int_equal(pretokenizer_split(p, whole, strlen(whole), take_piece, &got), 0);
        if (got.n != wanted.n || memcmp(got.ends, wanted.ends, got.n * sizeof *got.ends) != 0) {
            for (size_t i = 0, at = 0; i < got.n; at = got.ends[i++])
                print_error("[%.*s]", (int)(got.ends[i] - at), whole + at);
            fail_msg("wanted %s", text);
        }
        pretokenizer_close(p);
        cJSON_Delete(line);
    }
    assert_int_equal(lines, 176);
    free(text);
    fclose(f);
}

static void expect(const char *name, const char *text, size_t first_end)
{
    struct pretokenizer *p = open_named(name);
    struct pieces got = {.n = 0};
    assert_int_equal(pretokenizer_split(p, text, strlen(text), take_piece, &got), 0);
    assert_int_equal(got.ends[0], first_end);
    pretokenizer_close(p);
}

static void test_contractions_do_not_fold(void **state)
{
    (void)state;
    expect("qwen2", "'s", 2);
    expect("qwen2", "'S", 2);
    expect("qwen2",
           "'\xc5\xbf"
           "x",
           4); /* U+017F is a letter like any other: one piece with what follows */
    expect("llama-bpe",
           "'\xc5\xbf"
           "x",
           4);
    expect("gpt-2", "'Sx", 1); /* only small letters there */
}

static void test_callback_ends_it(void **state)
{
    (void)state;
    struct pretokenizer *p = open_named("smollm");
    struct pieces got = {.stop_after = 3};
    assert_int_equal(pretokenizer_split(p, "a b c d", 7, take_piece, &got), 42);
    assert_int_equal(got.n, 3);
    got = (struct pieces){.n = 0};
    assert_int_equal(pretokenizer_split(p, "", 0, take_piece, &got), 0);
    assert_int_equal(got.n, 0);
    pretokenizer_close(p);
    pretokenizer_close(NULL);
}

static void test_unknown(void **state)
{
    (void)state;
    static const char *const UNKNOWN[] = {"", "qwen", "qwen22", "llama-spm\x1b[2J"};
    for (size_t i = 0; i < sizeof UNKNOWN / sizeof *UNKNOWN; i++) {
        struct pretokenizer *p = NULL;
        bool ignore_merges, add_bos;
        assert_int_equal(
            pretokenizer_open(g, UNKNOWN[i], strlen(UNKNOWN[i]), &p, &ignore_merges, &add_bos, err, sizeof err),
            -ENOTSUP);
        assert_null(p);
        assert_null(strchr(err, '\x1b'));
    }
    assert_non_null(strstr(err, "llama-spm?[2J"));
}

static int count_piece(void *arg, size_t start, size_t end)
{
    (void)start;
    (void)end;
    ++*(size_t *)arg;
    return 0;
}

/* Long runs of one character and of two: no stack is exhausted and no limit met. */
static void test_long_runs(void **state)
{
    (void)state;
    static const char *const NAMES[] = {"gpt-2",     "smollm", "qwen2",  "qwen35",
                                        "llama-bpe", "tekken", "gpt-4o", "default"};
    static const char *const RUNS[] = {"a", "A",  " ",        "\n",           " \n", "1",
                                       ".", "aA", "\xcc\x81", "\xe4\xbd\xa0", " a",  "'"};
    enum { SIZE = 1 << 19 };
    char *text = malloc(SIZE);
    assert_non_null(text);
    for (size_t r = 0; r < sizeof RUNS / sizeof *RUNS; r++) {
        size_t each = strlen(RUNS[r]), n = (SIZE - 1) / each * each;
        for (size_t i = 0; i < n; i++)
            text[i] = RUNS[r][i % each];
        text[n++] = 'x'; /* the run does not reach the end of the text */
        for (size_t k = 0; k < sizeof NAMES / sizeof *NAMES; k++) {
            struct pretokenizer *p = open_named(NAMES[k]);
            size_t pieces = 0;
            int rc = pretokenizer_split(p, text, n, count_piece, &pieces);
            if (rc != 0)
                fail_msg("%s, run %zu: %d", NAMES[k], r, rc);
            assert_in_range(pieces, 1, n);
            pretokenizer_close(p);
        }
    }
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),           cmocka_unit_test(test_contractions_do_not_fold),
        cmocka_unit_test(test_callback_ends_it), cmocka_unit_test(test_unknown),
        cmocka_unit_test(test_long_runs),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
