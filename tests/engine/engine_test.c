/* engine_test.c - opening a model and what it says of itself, and real models against an independent engine.
 *
 * Golden log-probabilities (tests/data/greedy-*.jsonl, made by llama.cpp, teacher-forced): that engine rounds
 * activations in its own way, which costs some hundredths (with the weights as F32, so without any rounding of
 * activations, the differences here are the same). Measured over all steps and their ten most likely tokens: Qwen 0.5B
 * mean 0.069, largest 0.52; Gemma 270M mean 0.134, largest 1.02. A wrong graph is off by whole units in the mean.
 */
#include "engine/model/model.h"
#include "tests/engine/engine_fixture.h"
#include "tests/engine/models.h"
#include "tests/engine/tiny_vocab.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <openssl/evp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define GOLDEN_MEAN    0.2
#define GOLDEN_LARGEST 1.6

/* ---- open ---- */

static void expect_refusal(const struct engine_opts *o, int code, const char *part)
{
    struct engine *e = (struct engine *)-1;
    char err[512] = "";
    int rc = engine_open(o, &e, err, sizeof err);
    if (rc != code || strstr(err, part) == NULL)
        fail_msg("got %d \"%s\"; wanted %d \"%s\"", rc, err, code, part);
    assert_ptr_equal(e, (struct engine *)-1); /* outputs are written on success only */
}

static void note_progress(void *arg, double fraction, const char *what)
{
    double *last = arg;
    assert_true(fraction >= *last && fraction <= 1.0);
    assert_non_null(what);
    *last = fraction;
}

static void test_info(void **state)
{
    (void)state;
    for (enum tiny_arch a = 0; a < TINY_ARCHS; a++) {
        const struct tiny_model m = tiny_model_typed(a, KERNELS_Q6_K);
        struct fixture f = fixture_open(m, (struct fixture_opts){.step_tokens = 33});
        const struct engine_info *info = engine_info(f.e);
        assert_string_equal(info->arch, TINY_ARCH[a].name);
        assert_string_equal(info->file, f.path);
        assert_string_equal(info->name, strrchr(f.path, '/') + 1);
        assert_string_equal(info->backend, "cpu-portable");
        assert_string_equal(info->chat_format, "chatml");
        assert_string_equal(info->kv_type, "bf16");
        assert_string_equal(info->quantization, "Q6_K");
        assert_int_equal(info->n_layers, m.n_layers);
        assert_int_equal(info->n_vocab, m.n_vocab);
        assert_int_equal(info->n_embd, m.n_embd);
        assert_int_equal(info->ctx_model, m.ctx);
        assert_int_equal(info->ctx_tokens, m.ctx);
        assert_int_equal(info->kv_token_bytes, m.n_layers * 2 * m.n_kv_heads * m.head_dim * 2);
        assert_in_range(info->kv_bytes, FIXTURE_KV_BYTES * 9 / 10, FIXTURE_KV_BYTES);
        assert_int_equal(info->step_tokens, 33);
        assert_true(info->parameters > 0 && info->weight_bytes > 0 && info->file_bytes > info->weight_bytes / 2);
        int n;
        const struct engine_kv_array *layout = engine_kv_layout(f.e, &n);
        size_t token = 0;
        assert_int_equal(n, 2 * m.n_layers);
        for (int i = 0; i < n; i++) {
            assert_int_equal(layout[i].channel_major, i % 2 == 0);
            token += 2 * (size_t)layout[i].channels;
        }
        assert_int_equal(token, info->kv_token_bytes);
        fixture_close(&f);
    }
}

static void test_settings_that_are_refused(void **state)
{
    (void)state;
    const struct tiny_model m = tiny_model_of(TINY_QWEN2);
    char *path = tiny_model_save(&m);
    const struct engine_opts fine = {.model_path = path, .threads = 1, .kv_bytes = 1 << 20};
    struct engine_opts o = fine;
    o.model_path = NULL;
    expect_refusal(&o, -EINVAL, "model");
    o.model_path = "/nonexistent.gguf";
    expect_refusal(&o, -ENOENT, "/nonexistent.gguf");
    o = fine, o.threads = -1;
    expect_refusal(&o, -EINVAL, "negative");
    o = fine, o.ctx_tokens = -1;
    expect_refusal(&o, -EINVAL, "negative");
    o = fine, o.step_tokens = -1;
    expect_refusal(&o, -EINVAL, "negative");
    o = fine, o.device_fraction = 1.5;
    expect_refusal(&o, -EINVAL, "fraction");
    o = fine, o.step_tokens = 8193;
    expect_refusal(&o, -EINVAL, "8192");
    o = fine, o.kv_type = "q8_0";
    expect_refusal(&o, -EINVAL, "q8_0");
    o = fine, o.backend = "cpu-mmx";
    expect_refusal(&o, -ENOTSUP, "cpu-mmx");
    o = fine, o.chat_format = "telegram";
    expect_refusal(&o, -EINVAL, "telegram");
    o = fine, o.ctx_tokens = 100000;
    expect_refusal(&o, -EINVAL, "100000 tokens is more than this model was made for");
    o = fine, o.kv_bytes = 1;
    expect_refusal(&o, -EINVAL, "too few");
    o = fine, o.kv_bytes = (size_t)1 << 60;
    expect_refusal(&o, -ENOMEM, "KV");
    struct engine *e;
    assert_int_equal(engine_open(&fine, &e, NULL, 0), 0);
    engine_close(e);
    o = fine, o.kv_bytes = 1;
    assert_int_equal(engine_open(&o, &e, NULL, 0), -EINVAL);
    engine_close(NULL);
    tiny_model_remove(path);
}

static void test_context_is_capped_by_the_budget(void **state)
{
    (void)state;
    for (enum tiny_arch a = TINY_QWEN2; a <= TINY_GEMMA3; a += TINY_GEMMA3 - TINY_QWEN2) {
        const struct tiny_model m = tiny_model_of(a);
        struct fixture f = fixture_open(m, (struct fixture_opts){.kv_bytes = 300 << 10});
        int ctx = engine_info(f.e)->ctx_tokens;
        assert_true(ctx > 64 && ctx < m.ctx);
        engine_token *tokens = calloc((size_t)ctx, sizeof *tokens);
        assert_non_null(tokens);
        struct engine_seq *s = fixture_seq(f.e);
        fixture_run(f.e, s, tokens, ctx, 100, NULL); /* and so many fit indeed */
        engine_seq_free(s);
        free(tokens);
        struct engine *e = fixture_engine(f.path, (struct fixture_opts){.kv_bytes = 300 << 10, .ctx_tokens = ctx});
        engine_close(e);
        const struct engine_opts more = {
            .model_path = f.path, .threads = 1, .kv_bytes = 300 << 10, .ctx_tokens = ctx + 1};
        expect_refusal(&more, -EINVAL, "does not fit");
        fixture_close(&f);
    }
    const struct tiny_model m = tiny_model_of(TINY_QWEN2); /* no budget given: it is enough */
    char *path = tiny_model_save(&m);
    struct engine *e;
    char err[512];
    assert_int_equal(engine_open(&(struct engine_opts){.model_path = path, .threads = 1}, &e, err, sizeof err), 0);
    assert_int_equal(engine_info(e)->ctx_tokens, m.ctx);
    assert_true(engine_info(e)->kv_bytes >= 15 * (size_t)m.ctx * engine_info(e)->kv_token_bytes);
    engine_close(e);
    tiny_model_remove(path);
}

/* Nothing of it is read: the file is sparse, and larger than the memory. */
static void test_a_model_that_does_not_fit_into_memory(void **state)
{
    (void)state;
    struct tiny_model m = tiny_model_of(TINY_QWEN2);
    const uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    m.n_embd = 4096;
    m.omit = "token_embd.weight";
    m.also = "output.weight"; /* then it is the embedding */
    const uint64_t dims[] = {4096, memory / 4096 / 4 + 1};
    if (dims[1] > 1 << 24) {
        printf("skip: no model is larger than the memory here\n");
        skip();
    }
    struct gguf_writer *w = gguf_writer_new();
    tiny_model_write(&m, w);
    gguf_writer_tensor_raw(w, m.omit, 0 /* F32 */, 2, dims, NULL, 0, 0);
    char *path = tiny_model_save_writer(w);
    gguf_writer_free(w);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    if (truncate(path, st.st_size + (off_t)(dims[0] * dims[1] * 4)) != 0) {
        printf("skip: no file of %llu bytes can be made here\n", (unsigned long long)memory);
        tiny_model_remove(path);
        skip();
    }
    expect_refusal(&(struct engine_opts){.model_path = path, .threads = 1}, -ENOMEM, "memory are available");
    tiny_model_remove(path);
}

/* More pages than there is memory for are refused before the weights are read. */
static void test_kv_pages_that_do_not_fit_into_memory(void **state)
{
    (void)state;
    const struct tiny_model m = tiny_model_of(TINY_QWEN2);
    char *path = tiny_model_save(&m);
    const size_t memory = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    double progress = 0;
    expect_refusal(&(struct engine_opts){.model_path = path,
                                         .threads = 1,
                                         .kv_bytes = memory + 1,
                                         .progress = note_progress,
                                         .progress_arg = &progress},
                   -ENOMEM, "lower kv-bytes");
    assert_true(progress == 0);
    tiny_model_remove(path);
}

/* The hash is that of the file, computed in the pass that loads it, and remembered. */
static void test_the_hash_is_the_files(void **state)
{
    (void)state;
    char cache[] = "/tmp/convod-cache-XXXXXX", command[64], err[512] = "";
    assert_non_null(mkdtemp(cache));
    struct tiny_model m = tiny_model_of(TINY_GEMMA3);
    m.rope = TINY_ROPE_DIVISORS; /* a tensor that is no weight */
    char *path = tiny_model_save(&m);
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    uint8_t *bytes = malloc(1 << 24), wanted[32];
    assert_non_null(bytes);
    size_t n = fread(bytes, 1, 1 << 24, f);
    assert_true(n > 0 && n < 1 << 24 && fclose(f) == 0);
    assert_int_equal(EVP_Digest(bytes, n, wanted, NULL, EVP_sha256(), NULL), 1);
    free(bytes);
    for (int again = 0; again < 2; again++) {
        struct engine *e;
        double progress = 0;
        const struct engine_opts o = {.model_path = path,
                                      .threads = 1,
                                      .kv_bytes = 1 << 20,
                                      .cache_dir = cache,
                                      .progress = note_progress,
                                      .progress_arg = &progress};
        if (engine_open(&o, &e, err, sizeof err) != 0)
            fail_msg("%s", err);
        assert_memory_equal(engine_info(e)->model_sha256, wanted, 32);
        assert_true(progress == 1.0);
        engine_close(e);
    }
    snprintf(command, sizeof command, "rm -r %s", cache);
    assert_int_equal(system(command), 0);
    tiny_model_remove(path);
}

static void cut_file(void *arg, double fraction, const char *what)
{
    (void)fraction;
    (void)what;
    assert_int_equal(truncate(arg, 4096), 0);
}

static void touch_file(void *arg, double fraction, const char *what)
{
    (void)fraction;
    (void)what;
    const struct timespec times[2] = {{1700000000, 0}, {1700000000, 0}};
    assert_int_equal(utimensat(AT_FDCWD, arg, times, 0), 0);
}

/* A file that is cut or written while it is loaded. */
static void test_a_file_that_changes_while_it_is_loaded(void **state)
{
    (void)state;
    static const struct {
        void (*change)(void *arg, double fraction, const char *what);
        const char *part;
    } CHANGES[] = {{cut_file, "it was cut"}, {touch_file, "changed while it was read"}};
    for (size_t i = 0; i < 2; i++) {
        const struct tiny_model m = tiny_model_of(TINY_QWEN3);
        char *path = tiny_model_save(&m);
        expect_refusal(&(struct engine_opts){.model_path = path,
                                             .threads = 1,
                                             .kv_bytes = 1 << 20,
                                             .progress = CHANGES[i].change,
                                             .progress_arg = path},
                       -EBADMSG, CHANGES[i].part);
        tiny_model_remove(path);
    }
}

/* A model in three parts: the same logits, and the hash of all of them one behind the other. */
static void test_a_model_in_parts(void **state)
{
    (void)state;
    char folder[] = "/tmp/convod-parts-XXXXXX", path[128], command[64];
    uint8_t *bytes = malloc(1 << 24), wanted[32];
    size_t n = 0;
    struct tiny_model m = tiny_model_of(TINY_QWEN3MOE);
    struct fixture whole = fixture_open(m, (struct fixture_opts){0});
    assert_non_null(bytes);
    assert_non_null(mkdtemp(folder));
    m.omit = "token_embd.weight";
    m.also = "output.weight";
    for (uint32_t part = 0; part < 3; part++) {
        struct gguf_writer *w = gguf_writer_new();
        gguf_writer_u32(w, "split.no", part);
        gguf_writer_u32(w, "split.count", 3);
        struct tiny_tensor t[TINY_MAX_TENSORS];
        gguf_writer_u32(w, "split.tensors.count", (uint32_t)(m.n_layers * tiny_model_layer(&m, 0, t) + 3));
        if (part == 0)
            tiny_model_write(&m, w);
        else
            tiny_model_tensor(&m, w, part == 1 ? m.also : m.omit, m.type, m.n_vocab, m.n_embd, 0);
        snprintf(path, sizeof path, "%s/m-%05u-of-00003.gguf", folder, part + 1);
        assert_int_equal(gguf_writer_save(w, path), 0);
        gguf_writer_free(w);
        FILE *f = fopen(path, "re");
        assert_non_null(f);
        n += fread(bytes + n, 1, ((size_t)1 << 24) - n, f);
        assert_int_equal(fclose(f), 0);
    }
    assert_int_equal(EVP_Digest(bytes, n, wanted, NULL, EVP_sha256(), NULL), 1);
    snprintf(path, sizeof path, "%s/m-00001-of-00003.gguf", folder);
    struct engine *e = fixture_engine(path, (struct fixture_opts){0});
    assert_memory_equal(engine_info(e)->model_sha256, wanted, 32);
    assert_int_equal(engine_info(e)->file_bytes, n);
    engine_token tokens[100];
    tiny_model_tokens(&m, 5, 100, tokens);
    struct fixture_truth one = fixture_truth_of(whole.e, tokens, 100), parts = fixture_truth_of(e, tokens, 100);
    fixture_same_logits(&one, parts.logits, 0, 100, "in parts");
    fixture_truth_free(&one);
    fixture_truth_free(&parts);
    engine_close(e);
    fixture_close(&whole);
    free(bytes);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

/* A file may be cut once it is loaded: texts, templates and names were kept, and tokens come out as before. */
static void test_the_file_is_not_read_again(void **state)
{
    (void)state;
    struct fixture f = fixture_open(tiny_model_of(TINY_LLAMA), (struct fixture_opts){0});
    static const char TEXT[] = "hello <|im_end|> h\xc3\xa9llo";
    const struct engine_message message = {.role = ENGINE_USER, .text = TEXT, .len = sizeof TEXT - 1};
    struct engine_tokens before = {0}, after = {0};
    char err[256];
    for (int pass = 0; pass < 2; pass++) {
        struct engine_tokens *out = pass ? &after : &before;
        assert_int_equal(engine_tokenize(f.e, TEXT, sizeof TEXT - 1, true, out), 0);
        assert_int_equal(engine_chat_render(f.e, &message, 1, ENGINE_CHAT_FIRST, out, err, sizeof err), 0);
        assert_int_equal(truncate(f.path, 0), 0);
    }
    assert_int_equal(before.n, after.n);
    assert_memory_equal(before.ids, after.ids, before.n * sizeof *before.ids);
    engine_tokens_free(&before);
    engine_tokens_free(&after);
    fixture_close(&f);
}

static void test_vocabulary_and_embedding(void **state)
{
    (void)state;
    struct tiny_model m = tiny_model_of(TINY_LLAMA);
    m.n_vocab = TINY_TOKENS - 1;
    char *path = tiny_model_save(&m);
    expect_refusal(&(struct engine_opts){.model_path = path, .threads = 1, .kv_bytes = 1 << 20}, -EBADMSG,
                   "token_embd.weight only");
    tiny_model_remove(path);
    m.n_vocab = TINY_TOKENS;
    struct fixture f = fixture_open(m, (struct fixture_opts){0});
    assert_int_equal(engine_info(f.e)->n_vocab, TINY_TOKENS);
    fixture_close(&f);
}

/* A base model opens, unless something will be asked of it. */
static void test_a_model_without_a_template(void **state)
{
    (void)state;
    struct tiny_model m = tiny_model_of(TINY_QWEN2);
    m.no_template = true;
    char *path = tiny_model_save(&m), err[512] = "";
    struct engine_opts o = {.model_path = path, .threads = 1, .kv_bytes = 1 << 20, .need_chat = true};
    expect_refusal(&o, -ENOTSUP, "a base model without a chat template");
    expect_refusal(&o, -ENOTSUP, "the setting chat-format");
    struct engine *e;
    o.chat_format = "chatml";
    if (engine_open(&o, &e, err, sizeof err) != 0)
        fail_msg("%s", err);
    assert_string_equal(engine_info(e)->chat_format, "chatml");
    engine_close(e);
    o.chat_format = NULL;
    o.need_chat = false;
    assert_int_equal(engine_open(&o, &e, err, sizeof err), 0);
    assert_null(engine_info(e)->chat_format);
    assert_null(engine_info(e)->notes);
    engine_close(e);
    tiny_model_remove(path);
}

static void test_name(void **state)
{
    (void)state;
    static const struct {
        const char *name, *shown; /* NULL: the file's */
    } NAMES[] = {{"Tiny Qwen 2", "Tiny Qwen 2"}, {"", NULL}, {"red\x1b[31m", NULL}, {"caf\xc3\xa9", NULL}};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        const struct tiny_model m = tiny_model_of(TINY_QWEN2);
        struct gguf_writer *w = gguf_writer_new();
        tiny_model_write(&m, w);
        gguf_writer_string(w, "general.name", NAMES[i].name);
        char *path = tiny_model_save_writer(w);
        gguf_writer_free(w);
        struct engine *e = fixture_engine(path, (struct fixture_opts){0});
        assert_string_equal(engine_info(e)->name, NAMES[i].shown ? NAMES[i].shown : strrchr(path, '/') + 1);
        engine_close(e);
        tiny_model_remove(path);
    }
}

/* ---- real models ---- */

struct golden_sum {
    double mean, largest;
    int n;
};

static int ids_of(const cJSON *array, engine_token *out, int most)
{
    int n = 0;
    const cJSON *id;
    cJSON_ArrayForEach(id, array)
    {
        assert_true(n < most && cJSON_IsNumber(id));
        out[n++] = (engine_token)id->valuedouble;
    }
    return n;
}

static double log_sum(const float *logits, int n)
{
    double most = -INFINITY, beside = 0; /* the largest, and the others beside it */
    int at = 0;
    for (int i = 0; i < n; i++)
        if (logits[i] > most)
            most = logits[at = i];
    for (int i = 0; i < n; i++)
        beside += i == at ? 0 : exp(logits[i] - most);
    return most + log1p(beside);
}

/* One prompt with the other engine's answer behind it. */
static void compare_line(struct engine *e, const cJSON *line, struct golden_sum *sum)
{
    engine_token tokens[400];
    int want[64], n_vocab = engine_info(e)->n_vocab;
    const cJSON *top = cJSON_GetObjectItem(line, "top"), *step;
    int n_prompt = ids_of(cJSON_GetObjectItem(line, "ids"), tokens, 300);
    int n_answer = ids_of(cJSON_GetObjectItem(line, "greedy"), tokens + n_prompt, 64);
    assert_true(n_prompt > 0 && n_answer > 0 && cJSON_GetArraySize(top) == n_answer);
    for (int i = 0; i < n_answer; i++)
        want[i] = n_prompt - 1 + i;
    struct engine_seq *s = fixture_seq(e);
    struct engine_step_item item = {
        .seq = s, .tokens = tokens, .n = n_prompt + n_answer - 1, .want = want, .n_want = n_answer};
    const float *logits;
    assert_int_equal(fixture_step(e, &item, 1, &logits), 0);
    assert_int_equal(item.result, 0);
    cJSON_ArrayForEach(step, top)
    {
        const cJSON *pair;
        double whole = log_sum(logits, n_vocab);
        cJSON_ArrayForEach(pair, step)
        {
            int id = cJSON_GetArrayItem(pair, 0)->valueint;
            assert_in_range(id, 0, n_vocab - 1);
            double difference = fabs(logits[id] - whole - cJSON_GetArrayItem(pair, 1)->valuedouble);
            if (!(difference <= sum->largest))
                sum->largest = difference;
            sum->mean += difference;
            sum->n++;
        }
        logits += n_vocab;
    }
    engine_seq_free(s);
}

static void check_golden(const char *model, const char *kv_type)
{
    char *path = models_need(model), *line = NULL, name[128];
    snprintf(name, sizeof name, "greedy-%s.jsonl", model);
    char *data = models_data(name);
    FILE *f = fopen(data, "re");
    assert_non_null(f);
    struct engine *e = fixture_engine(
        path,
        (struct fixture_opts){
            .backend = "auto", .threads = 2, .kv_type = kv_type, .ctx_tokens = 512, .kv_bytes = (size_t)64 << 20});
    struct golden_sum sum = {0};
    size_t capacity = 0;
    while (getline(&line, &capacity, f) > 0) {
        cJSON *json = cJSON_Parse(line);
        assert_non_null(json);
        compare_line(e, json, &sum);
        cJSON_Delete(json);
    }
    assert_true(sum.n >= 1000);
    sum.mean /= sum.n;
    printf("%s, %s: mean %.4f, largest %.4f of %d log-probabilities\n", model, kv_type, sum.mean, sum.largest, sum.n);
    assert_true(sum.mean <= GOLDEN_MEAN);
    assert_true(sum.largest <= GOLDEN_LARGEST);
    engine_close(e);
    fclose(f);
    free(line);
    free(data);
    free(path);
}

static void test_golden_qwen(void **state)
{
    (void)state;
    check_golden(MODEL_QWEN_0_5B, "f16");
}

static void test_golden_gemma(void **state)
{
    (void)state;
    check_golden(MODEL_GEMMA_270M, "bf16");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_info),
        cmocka_unit_test(test_settings_that_are_refused),
        cmocka_unit_test(test_context_is_capped_by_the_budget),
        cmocka_unit_test(test_a_model_that_does_not_fit_into_memory),
        cmocka_unit_test(test_kv_pages_that_do_not_fit_into_memory),
        cmocka_unit_test(test_the_hash_is_the_files),
        cmocka_unit_test(test_a_file_that_changes_while_it_is_loaded),
        cmocka_unit_test(test_a_model_in_parts),
        cmocka_unit_test(test_the_file_is_not_read_again),
        cmocka_unit_test(test_vocabulary_and_embedding),
        cmocka_unit_test(test_a_model_without_a_template),
        cmocka_unit_test(test_name),
        cmocka_unit_test(test_golden_qwen),
        cmocka_unit_test(test_golden_gemma),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
