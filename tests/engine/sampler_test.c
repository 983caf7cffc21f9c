/* sampler_test.c - which tokens can be picked, against a brute-force reading of the settings, and how often. */
#include "engine/model/model.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define VOCAB 60
#define DRAWS 20000

static const struct engine_sampling OFF = {
    .temperature = 1.0f, .top_k = 0, .top_p = 1.0f, .min_p = 0.0f, .repetition_penalty = 1.0f};

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* Logits in steps of 1/8, so that many are equal. */
static void make_logits(uint32_t seed, float *out, int n)
{
    for (int i = 0; i < n; i++)
        out[i] = (float)((int)(next_random(&seed) % 60) - 30) / 8.0f;
}

/* As much of an engine as sampling wants. */
static struct engine sampling_engine(int n_vocab)
{
    struct engine e = {.info.n_vocab = n_vocab, .info.step_picks = 1};
    const struct kernels_sizes sizes = {
        .rows = 1, .cols = 32, .heads = 1, .head_dim = 16, .picks = 1, .vocab = n_vocab};
    assert_int_equal(kernels_open(&(struct kernels_opts){.threads = 1}, &e.kernels, NULL, 0), 0);
    e.ops = kernels_ops(e.kernels);
    assert_int_equal(e.ops->reserve(e.kernels, &sizes), 0);
    assert_int_equal(sampler_scratch_open(&e), 0);
    return e;
}

static void sampling_close(struct engine *e)
{
    sampler_scratch_close(e);
    kernels_close(e->kernels);
}

/* What a step does once it has these logits. */
static void run_pick(struct engine *e, struct engine_pick *pick, const float *logits, const engine_token *context,
                     int position)
{
    struct kernels_batch batch = {0};
    struct kernels_picked picked;
    assert_int_equal(sampler_begin(e, 1, sampler_changes(pick, position)), 0);
    sampler_add(e, pick, context, position, 0);
    batch.picks = sampler_picks(e, &batch.n_picks);
    assert_int_equal(batch.n_picks, 1);
    e->ops->begin(e->kernels, &batch);
    e->ops->pick(e->kernels, logits, e->info.n_vocab, &picked);
    e->ops->end(e->kernels);
    sampler_take(&picked, pick);
}

static int sample_one(struct engine *e, const struct engine_sampling *s, const float *logits,
                      const engine_token *context, int position, engine_token *out)
{
    struct engine_pick p = {.settings = s, .token = *out};
    run_pick(e, &p, logits, context, position);
    *out = p.token;
    return p.result;
}

static engine_token pick(struct engine *e, struct engine_sampling s, uint64_t seed, const float *logits,
                         const engine_token *context, int position)
{
    engine_token out = -1;
    s.seed = seed;
    assert_int_equal(sample_one(e, &s, logits, context, position, &out), 0);
    assert_in_range(out, 0, e->info.n_vocab - 1);
    return out;
}

/* ---- the settings, read literally ---- */

/* Probability of every token: out[n], 0 for what cannot be picked. */
static void brute_force(const struct engine_sampling *s, const float *logits, int n, const engine_token *context,
                        int position, double *out)
{
    double x[VOCAB] = {0}, p[VOCAB] = {0}, most = -INFINITY, total = 0;
    int last = s->penalty_last ? s->penalty_last : 256;
    for (int i = 0; i < n; i++) {
        int count = 0;
        for (int t = position - last > 0 ? position - last : 0; t < position; t++)
            count += context[t] == i;
        x[i] = logits[i];
        if (count > 0) {
            x[i] = x[i] > 0 ? x[i] / s->repetition_penalty : x[i] * s->repetition_penalty;
            x[i] -= s->presence_penalty + count * s->frequency_penalty;
        }
        most = fmax(most, x[i]);
    }
    for (int i = 0; i < n; i++)
        p[i] = exp((x[i] - most) / s->temperature);

    int order[VOCAB] = {0}; /* by falling probability; the smaller id first */
    for (int i = 0; i < n; i++) {
        int at = i;
        for (; at > 0 && p[order[at - 1]] < p[i]; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
    int left = s->top_k > 0 && s->top_k < n ? s->top_k : n;
    for (int i = 0; i < left; i++)
        total += p[order[i]];
    int nucleus = 0; /* the fewest whose sum reaches top_p */
    for (double sum = 0; nucleus < left && (nucleus == 0 || sum < total * s->top_p); nucleus++)
        sum += p[order[nucleus]];
    left = s->top_p < 1.0f ? nucleus : left;
    while (left > 1 && p[order[left - 1]] < s->min_p * p[order[0]])
        left--;
    total = 0;
    for (int i = 0; i < left; i++)
        total += p[order[i]];
    for (int i = 0; i < n; i++)
        out[i] = 0;
    for (int i = 0; i < left; i++)
        out[order[i]] = p[order[i]] / total;
}

/* Draws with many seeds (or positions) and compares with the probabilities. */
static void check_frequencies(struct engine *e, const struct engine_sampling *s, const float *logits,
                              const engine_token *context, int position, const char *what)
{
    double p[VOCAB];
    int seen[VOCAB] = {0}, n = e->info.n_vocab;
    brute_force(s, logits, n, context, position, p);
    for (int i = 0; i < DRAWS; i++)
        seen[pick(e, *s, (uint64_t)i * 7919 + 13, logits, context, position)]++;
    double chi = 0, degrees = -1, rest_wanted = 0, rest_seen = 0;
    for (int i = 0; i < n; i++) {
        if (p[i] == 0 && seen[i] > 0)
            fail_msg("%s: token %d was picked, which cannot be", what, i);
        if (p[i] * DRAWS < 8) { /* rare ones together */
            rest_wanted += p[i] * DRAWS;
            rest_seen += seen[i];
            continue;
        }
        chi += (seen[i] - p[i] * DRAWS) * (seen[i] - p[i] * DRAWS) / (p[i] * DRAWS);
        degrees++;
    }
    if (rest_wanted > 0) {
        chi += (rest_seen - rest_wanted) * (rest_seen - rest_wanted) / fmax(rest_wanted, 1);
        degrees++;
    }
    /* Mean `degrees`, variance 2 * degrees: six deviations, with room for few degrees. */
    if (!(chi <= degrees + 6 * sqrt(2 * degrees + 1)))
        fail_msg("%s: chi-square %.1f with %.0f degrees of freedom", what, chi, degrees);
}

static void test_frequencies(void **state)
{
    (void)state;
    struct engine e = sampling_engine(VOCAB);
    static const struct {
        const char *what;
        struct engine_sampling s;
    } CASES[] = {
        {"plain", {1.0f, 0, 1.0f, 0.0f, 1.0f, 0, 0, 0, 0}},
        {"hot", {3.0f, 0, 1.0f, 0.0f, 1.0f, 0, 0, 0, 0}},
        {"cold", {0.3f, 0, 1.0f, 0.0f, 1.0f, 0, 0, 0, 0}},
        {"top_k 2", {1.0f, 2, 1.0f, 0.0f, 1.0f, 0, 0, 0, 0}},
        {"top_k 17", {2.0f, 17, 1.0f, 0.0f, 1.0f, 0, 0, 0, 0}},
        {"top_k of all", {2.0f, VOCAB, 1.0f, 0.0f, 1.0f, 0, 0, 0, 0}},
        {"top_k of more", {2.0f, VOCAB + 1, 1.0f, 0.0f, 1.0f, 0, 0, 0, 0}},
        {"top_p 0.7", {1.0f, 0, 0.7f, 0.0f, 1.0f, 0, 0, 0, 0}},
        {"top_p 0.01", {1.0f, 0, 0.01f, 0.0f, 1.0f, 0, 0, 0, 0}},
        {"min_p 0.1", {1.0f, 0, 1.0f, 0.1f, 1.0f, 0, 0, 0, 0}},
        {"min_p 1", {1.0f, 0, 1.0f, 1.0f, 1.0f, 0, 0, 0, 0}},
        {"top_k and top_p", {1.5f, 20, 0.9f, 0.0f, 1.0f, 0, 0, 0, 0}},
        {"top_k and min_p", {1.5f, 20, 1.0f, 0.05f, 1.0f, 0, 0, 0, 0}},
        {"all three", {1.5f, 30, 0.95f, 0.08f, 1.0f, 0, 0, 0, 0}},
        {"repetition", {1.0f, 0, 1.0f, 0.0f, 1.5f, 0, 0, 0, 0}},
        {"presence", {1.0f, 0, 1.0f, 0.0f, 1.0f, 1.5f, 0, 0, 0}},
        {"frequency", {1.0f, 0, 1.0f, 0.0f, 1.0f, 0, 0.4f, 0, 0}},
        {"negative penalties", {1.0f, 0, 1.0f, 0.0f, 0.8f, -1.0f, -0.2f, 0, 0}},
        {"penalties of the last 5", {1.0f, 25, 0.9f, 0.0f, 1.3f, 0.5f, 0.5f, 5, 0}},
    };
    engine_token context[40];
    for (int i = 0; i < 40; i++)
        context[i] = i * i % VOCAB;
    for (size_t c = 0; c < sizeof CASES / sizeof *CASES; c++) {
        float logits[VOCAB];
        make_logits((uint32_t)c * 31 + 1, logits, VOCAB);
        check_frequencies(&e, &CASES[c].s, logits, context, 40, CASES[c].what);
    }
    sampling_close(&e);
}

/* The set that can be picked, over many random logits: nothing outside it, and everything likely inside it. */
static void test_limits_of_many_logits(void **state)
{
    (void)state;
    struct engine e = sampling_engine(VOCAB);
    const engine_token none[1] = {0};
    uint32_t random = 99;
    for (int round = 0; round < 300; round++) {
        float logits[VOCAB];
        double p[VOCAB];
        struct engine_sampling s = OFF;
        int seen[VOCAB] = {0};
        for (int i = 0; i < VOCAB; i++)
            logits[i] = (float)next_random(&random) / (float)(1 << 21);
        s.temperature = 0.5f + (float)(next_random(&random) % 40) / 10.0f;
        s.top_k = (int)(next_random(&random) % 2 * (next_random(&random) % 12 + 2));
        s.top_p = next_random(&random) % 2 ? 1.0f : (float)(next_random(&random) % 99 + 1) / 100.0f;
        s.min_p = next_random(&random) % 2 ? 0.0f : (float)(next_random(&random) % 100) / 100.0f;
        brute_force(&s, logits, VOCAB, none, 0, p);
        for (int i = 0; i < 500; i++)
            seen[pick(&e, s, (uint64_t)i + 1000 * (uint64_t)round, logits, NULL, 0)]++;
        for (int i = 0; i < VOCAB; i++)
            if ((p[i] == 0 && seen[i]) || (p[i] > 0.04 && !seen[i])) /* 0.96^500 = 1e-9 */
                fail_msg("round %d: token %d has probability %g and was seen %d times", round, i, p[i], seen[i]);
    }
    sampling_close(&e);
}

/* ---- determinism ---- */

static void test_a_draw_is_a_function_of_seed_and_position(void **state)
{
    (void)state;
    struct engine e = sampling_engine(VOCAB), other = sampling_engine(VOCAB);
    float logits[VOCAB], kept[VOCAB];
    engine_token context[200] = {0}, drawn[200];
    make_logits(4, logits, VOCAB);
    memcpy(kept, logits, sizeof kept);
    struct engine_sampling s = ENGINE_SAMPLING_DEFAULT;
    s.temperature = 2.0f;
    s.presence_penalty = 0.5f;
    for (int i = 0; i < 200; i++)
        drawn[i] = pick(&e, s, 42, logits, context, i);
    int same_seed = 0, same_position = 0;
    for (int i = 199; i >= 0; i--) { /* in another order, in another engine, with others between */
        pick(&other, s, (uint64_t)i * 3, logits, context, 7);
        assert_int_equal(pick(&other, s, 42, logits, context, i), drawn[i]);
        same_seed += pick(&other, s, 43, logits, context, i) == drawn[i];
        same_position += drawn[i] == drawn[0];
    }
    assert_true(same_seed < 100 && same_position < 100);
    assert_memory_equal(logits, kept, sizeof kept);
    sampling_close(&e);
    sampling_close(&other);
}

/* Over positions of one seed, and over neighbouring seeds at one position, the draws are as uniform as over any seeds.
 */
static void test_positions_and_seeds_are_independent(void **state)
{
    (void)state;
    struct engine e = sampling_engine(16);
    float logits[16] = {0};
    int by_position[16] = {0}, by_seed[16] = {0}, pairs[256] = {0};
    engine_token *context = calloc(16000, sizeof *context);
    assert_non_null(context);
    engine_token before = 0;
    for (int i = 0; i < 16000; i++) {
        engine_token t = pick(&e, OFF, 5, logits, context, i);
        by_position[t]++;
        pairs[before * 16 + t]++;
        before = t;
        by_seed[pick(&e, OFF, (uint64_t)i, logits, context, 3)]++;
    }
    double position = 0, seed = 0, pair = 0;
    for (int i = 0; i < 16; i++) {
        position += pow(by_position[i] - 1000, 2) / 1000;
        seed += pow(by_seed[i] - 1000, 2) / 1000;
    }
    for (int i = 0; i < 256; i++)
        pair += pow(pairs[i] - 62.5, 2) / 62.5;
    assert_true(position <= 15 + 6 * sqrt(30));
    assert_true(seed <= 15 + 6 * sqrt(30));
    assert_true(pair <= 255 + 6 * sqrt(510));
    free(context);
    sampling_close(&e);
}

/* ---- borders ---- */

static void test_greedy_and_ties(void **state)
{
    (void)state;
    struct engine e = sampling_engine(8);
    const float logits[8] = {1, 3, 2, 3, -1, 3, 0, 2};
    struct engine_sampling greedy = OFF, one = OFF, two = OFF, nucleus = OFF;
    greedy.temperature = 0;
    one.top_k = 1;
    two.top_k = 2; /* of three that are equal, the two with the smaller ids */
    nucleus.top_p = 1e-6f;
    int seen[8] = {0};
    for (uint64_t seed = 0; seed < 300; seed++) {
        assert_int_equal(pick(&e, greedy, seed, logits, NULL, 0), 1);
        assert_int_equal(pick(&e, one, seed, logits, NULL, 0), 1);
        assert_int_equal(pick(&e, nucleus, seed, logits, NULL, 0), 1);
        seen[pick(&e, two, seed, logits, NULL, 0)]++;
    }
    assert_int_equal(seen[1] + seen[3], 300);
    assert_true(seen[1] > 90 && seen[3] > 90);
    struct engine_sampling equals = OFF; /* min_p keeps what is as likely as the likeliest */
    equals.min_p = 1;
    memset(seen, 0, sizeof seen);
    for (uint64_t seed = 0; seed < 300; seed++)
        seen[pick(&e, equals, seed, logits, NULL, 0)]++;
    assert_int_equal(seen[1] + seen[3] + seen[5], 300);
    assert_true(seen[1] > 50 && seen[3] > 50 && seen[5] > 50);
    /* Penalties count for greedy too. */
    greedy.presence_penalty = 1.5f;
    const engine_token context[] = {1, 1, 5};
    assert_int_equal(pick(&e, greedy, 0, logits, context, 3), 3);
    sampling_close(&e);
}

static void test_what_is_not_finite(void **state)
{
    (void)state;
    struct engine e = sampling_engine(8);
    struct engine_sampling settings[4] = {OFF, OFF, OFF, OFF};
    settings[1].temperature = 0;
    settings[2].top_k = 3;
    settings[3].repetition_penalty = 1.5f;
    const engine_token context[] = {0, 1, 2};
    for (int i = 0; i < 4; i++) {
        engine_token out = 77;
        float logits[8] = {1, 2, 3, 4, 5, 6, 7, NAN};
        assert_int_equal(sample_one(&e, &settings[i], logits, context, 3, &out), -EDOM);
        logits[7] = INFINITY;
        assert_int_equal(sample_one(&e, &settings[i], logits, context, 3, &out), -EDOM);
        for (int j = 0; j < 8; j++)
            logits[j] = -INFINITY;
        assert_int_equal(sample_one(&e, &settings[i], logits, context, 3, &out), -EDOM);
        assert_int_equal(out, 77);
        logits[3] = -2.0f; /* one finite value: that one */
        for (uint64_t seed = 0; seed < 50; seed++)
            assert_int_equal(pick(&e, settings[i], seed, logits, context, 3), 3);
    }
    /* Far apart: no overflow on the way. */
    const float far[8] = {-FLT_MAX, FLT_MAX, 0, 1, -INFINITY, 2, 3, 4};
    struct engine_sampling cold = OFF;
    cold.temperature = FLT_MIN;
    assert_int_equal(pick(&e, cold, 1, far, NULL, 0), 1);
    assert_int_equal(pick(&e, OFF, 1, far, NULL, 0), 1);
    sampling_close(&e);
}

/* Ids that are not of this vocabulary, and tokens out of the look-back, count for nothing; nothing is left behind. */
static void test_penalties_of_foreign_tokens(void **state)
{
    (void)state;
    struct engine e = sampling_engine(8);
    const float logits[8] = {5, 4, 3, 2, 1, 0, -1, -2};
    engine_token *context = malloc(70000 * sizeof *context);
    assert_non_null(context);
    for (int i = 0; i < 70000; i++)
        context[i] = 0;
    struct engine_sampling s = OFF;
    s.temperature = 0;
    s.frequency_penalty = 2.0f;
    const engine_token foreign[] = {-1, 8, INT32_MAX, INT32_MIN};
    assert_int_equal(pick(&e, s, 0, logits, foreign, 4), 0);
    s.penalty_last = 3;
    context[9] = context[8] = context[7] = 6;
    assert_int_equal(pick(&e, s, 0, logits, context, 10), 0);
    assert_int_equal(pick(&e, s, 0, logits, context, 11), 1);
    s.penalty_last = 1 << 20; /* more of one token than the counter holds */
    assert_int_equal(pick(&e, s, 0, logits, context, 70000), 1);
    s.penalty_last = 1;
    assert_int_equal(pick(&e, s, 0, logits, foreign, 4), 0);
    free(context);
    sampling_close(&e);
}

/* Log-probabilities are the model's own: neither penalties nor temperature nor masks are in them. */
static void test_log_probabilities(void **state)
{
    (void)state;
    struct engine e = sampling_engine(VOCAB);
    const engine_token context[] = {7, 7, 9};
    float logits[VOCAB];
    uint32_t mask[2] = {1u << 3 | 1u << 7 | 1u << 20, 0};
    make_logits(12, logits, VOCAB);
    double total = 0;
    for (int i = 0; i < VOCAB; i++)
        total += exp((double)logits[i]);
    struct engine_sampling s = OFF;
    s.temperature = 0.3f;
    s.presence_penalty = 2.0f;
    for (uint64_t seed = 0; seed < 40; seed++) {
        s.seed = seed;
        struct engine_pick p = {.settings = &s,
                                .mask = seed % 2 ? mask : NULL,
                                .logprobs = true,
                                .n_top = (int)seed % (ENGINE_TOP_MAX + 1)};
        run_pick(&e, &p, logits, context, 3);
        assert_int_equal(p.result, 0);
        assert_true(seed % 2 == 0 || p.token == 3 || p.token == 7 || p.token == 20);
        assert_true(fabs((double)p.logprob - ((double)logits[p.token] - log(total))) <= 1e-5);
        for (int i = 0; i < p.n_top; i++) {
            int above = 0;
            for (int j = 0; j < VOCAB; j++)
                above +=
                    logits[j] > logits[p.top[i].token] || (logits[j] == logits[p.top[i].token] && j < p.top[i].token);
            assert_int_equal(above, i);
            assert_true(fabs((double)p.top[i].logprob - ((double)logits[p.top[i].token] - log(total))) <= 1e-5);
        }
    }
    sampling_close(&e);
}

/* A bias is added before penalties and temperature, and is in no log-probability. */
static void test_biases(void **state)
{
    (void)state;
    struct engine e = sampling_engine(8);
    const float logits[8] = {5, 4, 3, 2, 1, 0, -1, -2};
    const engine_token context[] = {7, 7};
    const struct engine_bias up[] = {{-1, 100}, {7, 8}, {8, 100}, {INT32_MAX, 100}}, down[] = {{0, -100}, {1, -100}};
    struct engine_sampling s = OFF;
    s.temperature = 0;
    struct engine_pick p = {.settings = &s, .bias = up, .n_bias = 4, .logprobs = true, .n_top = 1};
    run_pick(&e, &p, logits, context, 2);
    assert_int_equal(p.token, 7);
    assert_int_equal(p.top[0].token, 0);
    assert_true(fabsf(p.top[0].logprob - p.logprob - 7.0f) <= 1e-5f);
    s.repetition_penalty = 1.5f; /* of -2 + 8 = 6, which is 4 then */
    run_pick(&e, &p, logits, context, 2);
    assert_int_equal(p.token, 0);
    s.repetition_penalty = 1.25f; /* 4.8; of -2 it would be -2.5, and 5.5 with the bias behind that */
    run_pick(&e, &p, logits, context, 2);
    assert_int_equal(p.token, 0);
    s.repetition_penalty = 1.1f; /* 5.45 */
    run_pick(&e, &p, logits, context, 2);
    assert_int_equal(p.token, 7);
    s.frequency_penalty = 1.0f; /* twice: 3.45; what was not said has a bias alone */
    run_pick(&e, &p, logits, context, 2);
    assert_int_equal(p.token, 0);
    p.bias = down;
    p.n_bias = 2;
    s.presence_penalty = 2.0f;
    run_pick(&e, &p, logits, context, 2);
    assert_int_equal(p.token, 2);
    uint32_t only[1] = {1u << 0 | 1u << 5}; /* what is forbidden stays so whatever its bias */
    p.mask = only;
    run_pick(&e, &p, logits, context, 2);
    assert_int_equal(p.token, 5);
    sampling_close(&e);
}

static void test_masks(void **state)
{
    (void)state;
    struct engine e = sampling_engine(VOCAB);
    float logits[VOCAB];
    make_logits(5, logits, VOCAB);
    for (int only = 0; only < VOCAB; only += 7) {
        uint32_t mask[2] = {0, 0};
        mask[only / 32] = 1u << only % 32;
        struct engine_pick p = {.settings = &OFF, .mask = mask};
        run_pick(&e, &p, logits, NULL, 0);
        assert_int_equal(p.result, 0);
        assert_int_equal(p.token, only);
        logits[only] = -INFINITY;
        run_pick(&e, &p, logits, NULL, 0);
        assert_int_equal(p.result, -ENODATA);
        logits[(only + 1) % VOCAB] = NAN;
        run_pick(&e, &p, logits, NULL, 0);
        assert_int_equal(p.result, -EDOM);
        make_logits(5, logits, VOCAB);
    }
    sampling_close(&e);
}

static void test_ranges(void **state)
{
    (void)state;
    const char *field_name, *range;
    const struct engine_sampling fine[] = {ENGINE_SAMPLING_DEFAULT,
                                           {0, 0, 0, 0, FLT_MIN, -2, -2, 0, 0},
                                           {10, INT32_MAX, FLT_MIN, 1, 10, 2, 2, 1 << 20, UINT64_MAX}};
    for (size_t i = 0; i < sizeof fine / sizeof *fine; i++)
        assert_int_equal(engine_sampling_check(&fine[i], &field_name, &range), 0);
#define BAD(field, ...)                                                                                                \
    do {                                                                                                               \
        const float values[] = {__VA_ARGS__};                                                                          \
        for (size_t i = 0; i < sizeof values / sizeof *values; i++) {                                                  \
            struct engine_sampling s = ENGINE_SAMPLING_DEFAULT;                                                        \
            s.field = values[i];                                                                                       \
            assert_int_equal(engine_sampling_check(&s, &field_name, &range), -EINVAL);                                 \
            assert_string_equal(field_name, #field);                                                                   \
        }                                                                                                              \
    } while (0)
    BAD(temperature, -FLT_MIN, nextafterf(10, 11), NAN, INFINITY);
    BAD(top_p, -1, nextafterf(1, 2), NAN);
    BAD(min_p, -FLT_MIN, nextafterf(1, 2), NAN);
    BAD(repetition_penalty, 0, -1, nextafterf(10, 11), NAN, INFINITY);
    BAD(presence_penalty, nextafterf(2, 3), nextafterf(-2, -3), NAN);
    BAD(frequency_penalty, nextafterf(2, 3), nextafterf(-2, -3), NAN);
    struct engine_sampling s = ENGINE_SAMPLING_DEFAULT;
    s.top_k = -1;
    assert_int_equal(engine_sampling_check(&s, &field_name, &range), -EINVAL);
    assert_string_equal(field_name, "top_k");
    s.top_k = 0;
    s.penalty_last = -1;
    assert_int_equal(engine_sampling_check(&s, &field_name, &range), -EINVAL);
    s.penalty_last = (1 << 20) + 1;
    assert_int_equal(engine_sampling_check(&s, &field_name, &range), -EINVAL);
    assert_string_equal(field_name, "penalty_last");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frequencies),
        cmocka_unit_test(test_limits_of_many_logits),
        cmocka_unit_test(test_a_draw_is_a_function_of_seed_and_position),
        cmocka_unit_test(test_positions_and_seeds_are_independent),
        cmocka_unit_test(test_greedy_and_ties),
        cmocka_unit_test(test_what_is_not_finite),
        cmocka_unit_test(test_penalties_of_foreign_tokens),
        cmocka_unit_test(test_log_probabilities),
        cmocka_unit_test(test_biases),
        cmocka_unit_test(test_masks),
        cmocka_unit_test(test_ranges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
