/* step_test.c - the forward pass: against a plain one in double precision, and against itself bit for bit.
 *
 * Against the reference: where a key, a value or a quantized activation lies within the float error of a rounding
 * border, the two round it apart, and later layers carry that on (a last bit of bf16 is 2^-8 of a value). So the
 * difference of most tokens is tiny and that of a few is not. Measured here, in units of the standard deviation of a
 * token's logits, over all architectures and rotary settings: F32, F16 and BF16 weights mean 5e-4 and largest 0.008;
 * quantized ones, whose activations the reference rounds too, mean 0.008 and largest 0.17 (without that rounding the
 * mean is 0.03). A wrong graph gives a mean near 1: the tolerances lie between.
 */
#include "engine/model/model.h"
#include "tests/engine/engine_fixture.h"
#include "tests/engine/reference.h"

#include <errno.h>
#include <fenv.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <xmmintrin.h>

#define FLOAT_MEAN      0.003
#define FLOAT_LARGEST   0.03
#define QUANTIZED_MEAN  0.025
#define QUANTIZED_WORST 0.5

#define FLUSH 0x8040u /* of MXCSR: subnormals are zero, as results and as operands */

#define TOKENS 600 /* three blocks of attention, the last one unfinished */

static void *need(void *p)
{
    assert_non_null(p);
    return p;
}

/* ---- against the reference ---- */

struct difference {
    double mean, largest;
};

static struct difference differences(const float *got, const double *wanted, int n, int n_vocab)
{
    struct difference d = {0, 0};
    for (int t = 0; t < n; t++, got += n_vocab, wanted += n_vocab) {
        double mean = 0, square = 0;
        for (int i = 0; i < n_vocab; i++) {
            mean += wanted[i] / n_vocab;
            square += wanted[i] * wanted[i] / n_vocab;
        }
        double spread = sqrt(square - mean * mean);
        for (int i = 0; i < n_vocab; i++) {
            double one = fabs(got[i] - wanted[i]) / spread;
            if (!(one <= d.largest)) /* a NaN stays */
                d.largest = one;
            d.mean += one / n_vocab / n;
        }
    }
    return d;
}

static void compare(struct tiny_model m, const char *kv_type, int n, double mean, double largest)
{
    struct fixture f = fixture_open(m, (struct fixture_opts){.kv_type = kv_type});
    enum kernels_kv_type type = kv_type && !strcmp(kv_type, "f16") ? KERNELS_KV_F16 : KERNELS_KV_BF16;
    struct reference *r = reference_open(&m, f.path, type);
    reference_round_activations(r);
    engine_token *tokens = need(malloc((size_t)n * sizeof *tokens));
    float *got = need(malloc((size_t)n * (size_t)m.n_vocab * sizeof *got));
    double *wanted = need(malloc((size_t)n * (size_t)m.n_vocab * sizeof *wanted));
    tiny_model_tokens(&m, 5, n, tokens);
    struct engine_seq *s = fixture_seq(f.e);
    fixture_run(f.e, s, tokens, n, 200, got);
    reference_run(r, tokens, n, wanted);
    struct difference d = differences(got, wanted, n, m.n_vocab);
    if (!(d.mean <= mean) || !(d.largest <= largest))
        fail_msg("%s, %s, rope %d: mean %g, largest %g", tiny_model_arch(&m), kernels_type_info(m.type)->name, m.rope,
                 d.mean, d.largest);
    engine_seq_free(s);
    reference_close(r);
    free(tokens);
    free(got);
    free(wanted);
    fixture_close(&f);
}

static void test_every_architecture_is_the_reference(void **state)
{
    (void)state;
    for (enum tiny_arch a = 0; a < TINY_ARCHS; a++)
        for (enum tiny_rope p = 0; p < TINY_ROPES; p++) {
            struct tiny_model m = tiny_model_of(a);
            m.rope = p;
            if (!tiny_model_has_rope(a, p))
                continue;
            compare(m, p == TINY_ROPE_PLAIN ? "f16" : "bf16", 280, FLOAT_MEAN, FLOAT_LARGEST);
        }
}

static void test_partly_rotated_heads_and_a_separate_output(void **state)
{
    (void)state;
    for (enum tiny_arch a = 0; a < TINY_ARCHS; a++) {
        struct tiny_model m = tiny_model_of(a);
        if (tiny_facts(&m)->temperature == 0)
            m.rot = m.head_dim - 6;
        m.tied = !m.tied;
        m.n_kv_heads = m.n_heads;
        m.window = m.window ? 1 : 0;
        compare(m, NULL, 70, FLOAT_MEAN, FLOAT_LARGEST);
    }
}

/* LongRoPE's two lists: the short one where no context is longer than the first. */
static void test_short_contexts_take_the_short_divisors(void **state)
{
    (void)state;
    struct tiny_model m = tiny_model_of(TINY_PHI3);
    m.rope = TINY_ROPE_LONG;
    m.ctx = TINY_YARN_ORIGINAL;
    compare(m, NULL, 100, FLOAT_MEAN, FLOAT_LARGEST);
    /* The context that is asked for counts, not the model's own: other keys, and so another identity. */
    m.ctx = 1024;
    struct fixture longer = fixture_open(m, (struct fixture_opts){0});
    struct engine *shorter = fixture_engine(longer.path, (struct fixture_opts){.ctx_tokens = TINY_YARN_ORIGINAL});
    assert_memory_not_equal(engine_info(longer.e)->kv_identity, engine_info(shorter)->kv_identity, 32);
    engine_close(shorter);
    fixture_close(&longer);
}

/* Without a sixth layer there is none that sees everything, and the pool of those has no pages. */
static void test_window_layers_alone(void **state)
{
    (void)state;
    struct tiny_model m = tiny_model_of(TINY_GEMMA3);
    m.n_layers = 4;
    compare(m, NULL, 280, FLOAT_MEAN, FLOAT_LARGEST);
}

static void test_no_layer_rotates(void **state)
{
    (void)state;
    struct tiny_model m = tiny_model_of(TINY_GRANITE);
    m.unrotated = true;
    compare(m, NULL, 140, FLOAT_MEAN, FLOAT_LARGEST);
}

/* Mixtures are left out: where two experts are nearly equal, the rounding of activations decides which is asked. */
static void test_every_weight_type_is_the_reference(void **state)
{
    (void)state;
    int a = 0;
    for (enum kernels_type t = KERNELS_F16; t < KERNELS_TYPE_COUNT; t++, a++) {
        bool quantized = kernels_type_info(t)->block_values > 1;
        while (TINY_ARCH[a % TINY_ARCHS].sizes.n_experts)
            a++;
        compare(tiny_model_typed((enum tiny_arch)(a % TINY_ARCHS), t), NULL, 66,
                quantized ? QUANTIZED_MEAN : FLOAT_MEAN, quantized ? QUANTIZED_WORST : FLOAT_LARGEST);
    }
}

/* ---- against itself ---- */

static const struct tiny_model *models(int *n)
{
    static struct tiny_model all[8];
    all[0] = tiny_model_of(TINY_QWEN2);
    all[1] = tiny_model_of(TINY_GEMMA3);
    all[2] = tiny_model_typed(TINY_LLAMA, KERNELS_Q4_K);
    all[2].rope = TINY_ROPE_YARN;
    all[3] = tiny_model_typed(TINY_GEMMA2, KERNELS_Q5_0);
    all[4] = tiny_model_typed(TINY_QWEN2, KERNELS_Q6_K);
    all[5] = tiny_model_typed(TINY_PHI3_WINDOWS, KERNELS_Q4_0);
    all[6] = tiny_model_of(TINY_QWEN3MOE);
    all[7] = tiny_model_typed(TINY_GPT_OSS, KERNELS_Q8_0);
    all[7].rope = TINY_ROPE_YARN;
    *n = 8;
    return all;
}

static void test_chunks_change_no_bit(void **state)
{
    (void)state;
    static const int CHUNKS[] = {1, 7, 64, 512};
    int n_models;
    const struct tiny_model *all = models(&n_models);
    for (int i = 0; i < n_models; i++) {
        struct fixture f = fixture_open(all[i], (struct fixture_opts){.backend = "auto"});
        engine_token tokens[TOKENS];
        tiny_model_tokens(&f.m, 1, TOKENS, tokens);
        struct fixture_truth truth = fixture_truth_of(f.e, tokens, TOKENS);
        float *logits = need(malloc((size_t)TOKENS * (size_t)f.m.n_vocab * sizeof *logits));
        for (size_t c = 0; c < sizeof CHUNKS / sizeof *CHUNKS; c++) {
            char what[64];
            snprintf(what, sizeof what, "%s in chunks of %d", tiny_model_arch(&f.m), CHUNKS[c]);
            struct engine_seq *s = fixture_seq(f.e);
            fixture_run(f.e, s, tokens, TOKENS, CHUNKS[c], logits);
            fixture_same_logits(&truth, logits, 0, TOKENS, what);
            fixture_same_kv(&truth, s, 0, TOKENS, what);
            engine_seq_free(s);
        }
        free(logits);
        fixture_truth_free(&truth);
        fixture_close(&f);
    }
}

static void test_threads_and_kernel_sets_change_no_bit(void **state)
{
    (void)state;
    static const struct fixture_opts OPTS[] = {{.backend = "cpu-portable", .threads = 2},
                                               {.backend = "cpu-avx2", .threads = 1},
                                               {.backend = "cpu-avxvnni", .threads = 2},
                                               {.backend = "cpu-avx512", .threads = 3}};
    int n_models;
    const struct tiny_model *all = models(&n_models);
    for (int i = 0; i < n_models; i++) {
        struct fixture f = fixture_open(all[i], (struct fixture_opts){.backend = "auto", .threads = 1});
        engine_token tokens[TOKENS];
        tiny_model_tokens(&f.m, 2, TOKENS, tokens);
        struct fixture_truth truth = fixture_truth_of(f.e, tokens, TOKENS);
        for (size_t o = 0; o < sizeof OPTS / sizeof *OPTS; o++) {
            struct kernels *k;
            const struct kernels_opts probe = {.backend = OPTS[o].backend, .threads = 1};
            if (kernels_open(&probe, &k, NULL, 0) == -ENOTSUP) {
                printf("skip: this processor has no %s\n", OPTS[o].backend);
                continue;
            }
            kernels_close(k);
            struct engine *e = fixture_engine(f.path, OPTS[o]);
            struct fixture_truth other = fixture_truth_of(e, tokens, TOKENS);
            fixture_same_logits(&truth, other.logits, 0, TOKENS, OPTS[o].backend);
            assert_int_equal(truth.kv_bytes, other.kv_bytes);
            fixture_same(other.kv, truth.kv, truth.kv_bytes, OPTS[o].backend);
            fixture_truth_free(&other);
            engine_close(e);
        }
        fixture_truth_free(&truth);
        fixture_close(&f);
    }
}

#define TOGETHER 5

/* Sequences of different lengths grow by different amounts in the same steps, and only some logits are wanted. */
static void test_company_changes_no_bit(void **state)
{
    (void)state;
    int n_models;
    const struct tiny_model *all = models(&n_models);
    for (int i = 0; i < n_models; i++) {
        struct fixture f = fixture_open(all[i], (struct fixture_opts){.backend = "auto", .threads = 2});
        engine_token tokens[TOGETHER][TOKENS];
        struct fixture_truth truth[TOGETHER];
        struct engine_seq *seqs[TOGETHER];
        uint32_t random = 12345;
        for (int q = 0; q < TOGETHER; q++) {
            tiny_model_tokens(&f.m, (uint64_t)q + 10, TOKENS, tokens[q]);
            truth[q] = fixture_truth_of(f.e, tokens[q], TOKENS);
            seqs[q] = fixture_seq(f.e);
        }
        for (int unfinished = TOGETHER; unfinished > 0;) {
            struct engine_step_item items[TOGETHER];
            int want[TOGETHER][TOKENS], which[TOGETHER], n_items = 0;
            for (int q = 0; q < TOGETHER; q++) {
                int length = engine_seq_length(seqs[q]), left = TOKENS - length;
                random = random * 1664525u + 1013904223u;
                int n = (random >> 8) % 4 ? (int)(random >> 10) % 70 : (int)(random >> 10) % 3;
                n = n < left ? n : left;
                if (n == 0)
                    continue;
                struct engine_step_item *it = &items[n_items];
                *it = (struct engine_step_item){
                    .seq = seqs[q], .tokens = tokens[q] + length, .n = n, .want = want[q], .result = -1};
                for (int t = 0; t < n; t++)
                    if ((random >> 3) % 5 < 2 || (t * 7 + q) % 3 == 0)
                        want[q][it->n_want++] = t;
                which[n_items++] = q;
            }
            const float *logits;
            assert_int_equal(fixture_step(f.e, items, n_items, &logits), 0);
            for (int j = 0; j < n_items; j++) {
                int q = which[j];
                assert_int_equal(items[j].result, 0);
                for (int w = 0; w < items[j].n_want; w++, logits += f.m.n_vocab)
                    fixture_same_logits(&truth[q], logits, engine_seq_length(seqs[q]) - items[j].n + items[j].want[w],
                                        1, "in company");
                unfinished -= engine_seq_length(seqs[q]) == TOKENS;
            }
        }
        for (int q = 0; q < TOGETHER; q++) {
            fixture_same_kv(&truth[q], seqs[q], 0, TOKENS, "in company");
            fixture_truth_free(&truth[q]);
            engine_seq_free(seqs[q]);
        }
        fixture_close(&f);
    }
}

/* ---- the call ---- */

static void test_malformed_calls_are_refused(void **state)
{
    (void)state;
    struct fixture f = fixture_open(tiny_model_of(TINY_QWEN2), (struct fixture_opts){.step_tokens = 8});
    struct engine *other = fixture_engine(f.path, (struct fixture_opts){.step_tokens = 8});
    struct engine_seq *a = fixture_seq(f.e), *b = fixture_seq(f.e), *foreign = fixture_seq(other);
    const engine_token good[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9}, negative[] = {1, -1}, high[] = {1, f.m.n_vocab};
    const engine_token last[] = {1, f.m.n_vocab - 1};
    const int order[] = {1, 0}, twice[] = {1, 1}, below[] = {-1}, above[] = {2}, first[] = {0};
    const struct engine_step_item bad[] = {
        {.seq = NULL, .tokens = good, .n = 2},
        {.seq = foreign, .tokens = good, .n = 2},
        {.seq = a, .tokens = good, .n = 0},
        {.seq = a, .tokens = good, .n = -1},
        {.seq = a, .tokens = good, .n = 9}, /* step_tokens */
        {.seq = a, .tokens = NULL, .n = 1},
        {.seq = a, .tokens = negative, .n = 2},
        {.seq = a, .tokens = high, .n = 2},
        {.seq = a, .tokens = good, .n = 2, .want = order, .n_want = 2},
        {.seq = a, .tokens = good, .n = 2, .want = twice, .n_want = 2},
        {.seq = a, .tokens = good, .n = 2, .want = below, .n_want = 1},
        {.seq = a, .tokens = good, .n = 2, .want = above, .n_want = 1},
        {.seq = a, .tokens = good, .n = 1, .want = order, .n_want = 2},
        {.seq = a, .tokens = good, .n = 2, .want = first, .n_want = -1},
        {.seq = a, .tokens = good, .n = 2, .want = NULL, .n_want = 1},
        {.seq = b, .tokens = good, .n = 2}, /* b is in the step already */
        {.seq = a, .tokens = good, .n = 7}, /* with b's two: nine */
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct engine_step_item items[2] = {{.seq = b, .tokens = good, .n = 2}, bad[i]};
        const float *logits;
        if (fixture_step(f.e, items, 2, &logits) != -EINVAL)
            fail_msg("item %zu was not refused", i);
        assert_int_equal(engine_seq_length(a) + engine_seq_length(b), 0);
    }
    const float *logits;
    assert_int_equal(fixture_step(f.e, NULL, -1, &logits), -EINVAL);
    assert_int_equal(fixture_step(f.e, NULL, 0, &logits), 0);
    struct engine_step_item fine[2] = {{.seq = b, .tokens = last, .n = 2, .want = first, .n_want = 1},
                                       {.seq = a, .tokens = good, .n = 6}};
    assert_int_equal(fixture_step(f.e, fine, 2, &logits), 0);
    assert_int_equal(engine_seq_length(b), 2);
    assert_memory_equal(engine_seq_tokens(b), last, sizeof last);
    engine_seq_free(a);
    engine_seq_free(b);
    engine_seq_free(foreign);
    engine_close(other);
    fixture_close(&f);
}

/* Items that do not fit are left out, and the logits of the others follow one another. */
static void test_items_that_do_not_fit_are_left_out(void **state)
{
    (void)state;
    enum { CTX = 200 };
    struct tiny_model m = tiny_model_of(TINY_GEMMA3);
    struct fixture f = fixture_open(m, (struct fixture_opts){.ctx_tokens = CTX, .kv_bytes = 1 << 20});
    int pages = f.e->pools[MODEL_FULL].n_pages;
    engine_token tokens[CTX + 1];
    tiny_model_tokens(&m, 3, CTX + 1, tokens);
    struct fixture_truth truth = fixture_truth_of(f.e, tokens, CTX);
    struct engine_seq *full = fixture_seq(f.e), *waste = fixture_seq(f.e), *a = fixture_seq(f.e), *b = fixture_seq(f.e);
    fixture_run(f.e, full, tokens, CTX, 200, NULL);
    fixture_run(f.e, b, tokens, 64, 64, NULL);
    struct engine_seq *fillers[64];
    int n_fillers = 0;
    while (f.e->pools[MODEL_FULL].n_free > 1) { /* one page is left */
        assert_true(n_fillers < 64 && pages < 64);
        fillers[n_fillers] = fixture_seq(f.e);
        fixture_run(f.e, fillers[n_fillers++], tokens, 1, 1, NULL);
    }
    const int want[] = {0, 3};
    struct engine_step_item items[] = {
        {.seq = full, .tokens = tokens, .n = 1, .want = want, .n_want = 1},
        {.seq = waste, .tokens = tokens, .n = 65, .want = want, .n_want = 2},
        {.seq = a, .tokens = tokens, .n = 5, .want = want, .n_want = 2},
        {.seq = b, .tokens = tokens + 64, .n = 5, .want = want, .n_want = 2},
    };
    const float *logits;
    assert_int_equal(fixture_step(f.e, items, 4, &logits), 0);
    assert_int_equal(items[0].result, -EOVERFLOW);
    assert_int_equal(items[1].result, -ENOSPC);
    assert_int_equal(items[2].result, 0);
    assert_int_equal(items[3].result, -ENOSPC);
    fixture_same_logits(&truth, logits, 0, 1, "beside others that do not fit");
    fixture_same_logits(&truth, logits + m.n_vocab, 3, 1, "beside others that do not fit");
    assert_int_equal(engine_seq_length(full), CTX);
    assert_int_equal(engine_seq_length(waste), 0);
    assert_int_equal(engine_seq_length(b), 64);
    fixture_same_kv(&truth, full, 0, CTX, "after -EOVERFLOW");
    engine_seq_free(a);
    struct engine_step_item again = {.seq = b, .tokens = tokens + 64, .n = 5, .want = want, .n_want = 2};
    assert_int_equal(fixture_step(f.e, &again, 1, &logits), 0);
    assert_int_equal(again.result, 0);
    fixture_same_logits(&truth, logits + m.n_vocab, 67, 1, "after -ENOSPC");
    for (int i = 0; i < n_fillers; i++)
        engine_seq_free(fillers[i]);
    engine_seq_free(full);
    engine_seq_free(waste);
    engine_seq_free(b);
    fixture_truth_free(&truth);
    fixture_close(&f);
}

/* ---- picks ---- */

static engine_token likeliest(const float *logits, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        best = logits[i] > logits[best] ? i : best;
    return best;
}

/* Some items pick, some hand out logits, some do both and some neither: each pick is the one of its last row, and the
 * logits are those of the rows that were asked for. */
static void test_picks_and_logits_together(void **state)
{
    (void)state;
    enum { ITEMS = 8, N = 5 };
    struct tiny_model m = tiny_model_of(TINY_GEMMA3);
    struct fixture f = fixture_open(m, (struct fixture_opts){.threads = 2});
    const struct engine_sampling greedy = {.temperature = 0, .top_p = 1, .repetition_penalty = 1};
    uint32_t *mask = calloc((size_t)m.n_vocab / 32 + 1, sizeof *mask);
    engine_token tokens[ITEMS][N];
    struct fixture_truth truth[ITEMS];
    struct engine_step_item items[ITEMS];
    struct engine_pick picks[ITEMS];
    const int want[2] = {1, N - 1};
    const float *logits;
    assert_non_null(mask);
    mask[1] = 1u << 9; /* token 41 alone */
    for (int i = 0; i < ITEMS; i++) {
        tiny_model_tokens(&m, (uint64_t)i, N, tokens[i]);
        truth[i] = fixture_truth_of(f.e, tokens[i], N);
        picks[i] =
            (struct engine_pick){.settings = &greedy, .mask = i == 7 ? mask : NULL, .logprobs = true, .n_top = 2};
        items[i] = (struct engine_step_item){.seq = fixture_seq(f.e),
                                             .tokens = tokens[i],
                                             .n = N,
                                             .pick = i % 2 ? &picks[i] : NULL,
                                             .want = want,
                                             .n_want = i / 2 % 2 + i / 4 % 2};
    }
    assert_int_equal(fixture_step(f.e, items, ITEMS, &logits), 0);
    for (int i = 0; i < ITEMS; i++) {
        for (int w = 0; w < items[i].n_want; w++, logits += m.n_vocab)
            fixture_same_logits(&truth[i], logits, want[w], 1, "beside picks");
        const float *last = truth[i].logits + (size_t)(N - 1) * (size_t)m.n_vocab;
        if (items[i].pick) {
            assert_int_equal(picks[i].result, 0);
            assert_int_equal(picks[i].token, i == 7 ? 41 : likeliest(last, m.n_vocab));
            assert_int_equal(picks[i].top[0].token, likeliest(last, m.n_vocab));
            assert_true(picks[i].top[0].logprob >= picks[i].top[1].logprob && picks[i].top[0].logprob < 0);
            assert_true(i == 7 || picks[i].logprob == picks[i].top[0].logprob);
        }
        engine_seq_free(items[i].seq);
        fixture_truth_free(&truth[i]);
    }
    free(mask);
    fixture_close(&f);
}

static void test_picks_have_limits(void **state)
{
    (void)state;
    struct fixture f = fixture_open(tiny_model_of(TINY_QWEN2), (struct fixture_opts){.step_tokens = 70});
    const struct engine_sampling greedy = {.temperature = 0, .top_p = 1, .repetition_penalty = 1};
    const engine_token token = 5;
    struct engine_step_item items[65];
    struct engine_pick picks[65];
    for (int i = 0; i < 65; i++) {
        picks[i] = (struct engine_pick){.settings = &greedy};
        items[i] = (struct engine_step_item){.seq = fixture_seq(f.e), .tokens = &token, .n = 1, .pick = &picks[i]};
    }
    assert_int_equal(engine_info(f.e)->step_picks, 64);
    assert_int_equal(engine_step_start(f.e, items, 65), -EINVAL);
    picks[3].settings = NULL;
    assert_int_equal(engine_step_start(f.e, items, 64), -EINVAL);
    picks[3].settings = &greedy;
    picks[3].n_top = ENGINE_TOP_MAX + 1;
    assert_int_equal(engine_step_start(f.e, items, 64), -EINVAL);
    picks[3].n_top = 0;
    assert_int_equal(engine_step_wait(f.e, NULL), -EINVAL); /* none is under way */
    assert_int_equal(engine_step_start(f.e, items, 64), 0);
    assert_int_equal(engine_step_start(f.e, items + 64, 1), -EINVAL); /* one is */
    assert_int_equal(engine_step_wait(f.e, NULL), 0);
    for (int i = 0; i < 65; i++) {
        assert_int_equal(engine_seq_length(items[i].seq), i < 64);
        assert_true(i == 64 || picks[i].token == picks[0].token);
        engine_seq_free(items[i].seq);
    }
    fixture_close(&f);
}

/* ---- a device that fails ---- */

static const char *failure;

static int failing_wait(struct kernels *k, kernels_event event, int timeout_ms)
{
    (void)k, (void)event, (void)timeout_ms;
    return failure ? -EIO : 0;
}

static const char *failing_error(const struct kernels *k)
{
    (void)k;
    return failure;
}

/* The step that was under way is taken back, whatever it had begun, and nothing is computed or stored from then on. */
static void test_a_lost_device_ends_the_step(void **state)
{
    (void)state;
    struct fixture f = fixture_open(tiny_model_of(TINY_GEMMA3), (struct fixture_opts){.ctx_tokens = 400});
    const struct kernels_ops *ops = f.e->ops;
    struct kernels_ops failing = *ops;
    const struct engine_sampling greedy = {.temperature = 0, .top_p = 1, .repetition_penalty = 1};
    struct engine_pick pick = {.settings = &greedy, .token = 77, .result = 1};
    engine_token tokens[300];
    tiny_model_tokens(&f.m, 7, 300, tokens);
    struct fixture_truth truth = fixture_truth_of(f.e, tokens, 300);
    struct engine_seq *old = fixture_seq(f.e), *fresh = fixture_seq(f.e);
    fixture_run(f.e, old, tokens, 200, 100, NULL);
    engine_seq_settle(old);
    failing.wait = failing_wait;
    failing.error = failing_error;
    f.e->ops = &failing;
    struct engine_step_item items[] = {{.seq = old, .tokens = tokens + 200, .n = 90, .pick = &pick},
                                       {.seq = fresh, .tokens = tokens, .n = 70}};
    assert_int_equal(engine_step_start(f.e, items, 2), 0);
    failure = "fell off the bus";
    assert_int_equal(engine_step_wait(f.e, NULL), -EIO);
    assert_string_equal(engine_failure(f.e), failure);
    assert_true(pick.token == 77 && pick.result == 1);
    assert_int_equal(engine_seq_length(old), 200);
    assert_int_equal(engine_seq_length(fresh), 0);
    void *kv = malloc(truth.kv_bytes);
    assert_non_null(kv);
    assert_int_equal(engine_step_start(f.e, items, 2), -EIO);
    assert_int_equal(engine_kv_export(old, 192, 8, kv), -EIO);
    assert_int_equal(engine_kv_import(fresh, tokens, 300, truth.kv), -EIO);
    assert_int_equal(engine_seq_length(old), 200);
    assert_int_equal(engine_seq_length(fresh), 0);
    failure = NULL;
    f.e->ops = ops;
    assert_int_equal(engine_step_start(f.e, items, 2), 0); /* nothing of it was left in the way */
    assert_int_equal(engine_step_wait(f.e, NULL), 0);
    fixture_same_kv(&truth, old, 200, 90, "after a failure");
    fixture_same_kv(&truth, fresh, 0, 70, "after a failure");
    free(kv);
    fixture_truth_free(&truth);
    engine_seq_free(old);
    engine_seq_free(fresh);
    fixture_close(&f);
}

/* Log-probabilities behind the first tokens. */
static struct engine_pick logprobs_of(struct engine *e, const engine_token *tokens, int n)
{
    static const struct engine_sampling greedy = {.temperature = 0, .top_p = 1, .repetition_penalty = 1};
    struct engine_pick pick = {.settings = &greedy, .logprobs = true, .n_top = ENGINE_TOP_MAX};
    struct engine_step_item item = {.seq = fixture_seq(e), .tokens = tokens, .n = n, .pick = &pick};
    assert_int_equal(fixture_step(e, &item, 1, NULL), 0);
    engine_seq_free(item.seq);
    return pick;
}

/* A caller that rounds upwards and has subnormals flushed gets the same bits, and keeps its settings. */
static void test_the_caller_s_rounding_changes_no_bit(void **state)
{
    (void)state;
    static const char *const sets[] = {"cpu-portable", "cpu-avx2"};
    struct tiny_model m = tiny_model_of(TINY_MISTRAL3); /* queries grow with their position */
    m.rope = TINY_ROPE_YARN;
    struct fixture f = fixture_open(m, (struct fixture_opts){0});
    engine_token *tokens = need(malloc(TOKENS * sizeof *tokens));
    float *got = need(malloc((size_t)TOKENS * (size_t)m.n_vocab * sizeof *got));
    tiny_model_tokens(&m, 7, TOKENS, tokens);
    struct fixture_truth truth = fixture_truth_of(f.e, tokens, TOKENS);
    for (int i = 0; i < 2; i++) {
        if (i == 1 && !__builtin_cpu_supports("avx2"))
            continue;
        fenv_t before;
        assert_int_equal(fegetenv(&before), 0);
        assert_int_equal(fesetround(FE_UPWARD), 0);
        _mm_setcsr(_mm_getcsr() | FLUSH);
        struct engine *e = fixture_engine(f.path, (struct fixture_opts){.backend = sets[i], .threads = 2});
        struct engine_seq *s = fixture_seq(e);
        fixture_run(e, s, tokens, TOKENS, 200, got);
        struct engine_pick pick = logprobs_of(e, tokens, 20);
        int rounding = fegetround();
        unsigned flush = _mm_getcsr() & FLUSH;
        fesetenv(&before);
        assert_int_equal(rounding, FE_UPWARD);
        assert_int_equal(flush, FLUSH);
        fixture_same_logits(&truth, got, 0, TOKENS, sets[i]);
        fixture_same_kv(&truth, s, 0, TOKENS, sets[i]);
        struct engine_pick true_pick = logprobs_of(f.e, tokens, 20);
        assert_int_equal(pick.token, true_pick.token);
        for (int k = 0; k < ENGINE_TOP_MAX; k++) {
            assert_int_equal(pick.top[k].token, true_pick.top[k].token);
            assert_true(pick.top[k].logprob == true_pick.top[k].logprob);
        }
        engine_seq_free(s);
        engine_close(e);
    }
    free(tokens);
    free(got);
    fixture_truth_free(&truth);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_architecture_is_the_reference),
        cmocka_unit_test(test_partly_rotated_heads_and_a_separate_output),
        cmocka_unit_test(test_short_contexts_take_the_short_divisors),
        cmocka_unit_test(test_window_layers_alone),
        cmocka_unit_test(test_no_layer_rotates),
        cmocka_unit_test(test_every_weight_type_is_the_reference),
        cmocka_unit_test(test_chunks_change_no_bit),
        cmocka_unit_test(test_threads_and_kernel_sets_change_no_bit),
        cmocka_unit_test(test_the_caller_s_rounding_changes_no_bit),
        cmocka_unit_test(test_company_changes_no_bit),
        cmocka_unit_test(test_malformed_calls_are_refused),
        cmocka_unit_test(test_items_that_do_not_fit_are_left_out),
        cmocka_unit_test(test_picks_and_logits_together),
        cmocka_unit_test(test_picks_have_limits),
        cmocka_unit_test(test_a_lost_device_ends_the_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
