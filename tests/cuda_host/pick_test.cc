/* pick_test.cc - the token that is picked on the device is the CPU's, over rows of many kinds and all settings. */
#include "tests/cuda_host/twins.h"

#include <float.h>
#include <math.h>

enum kind { NORMAL, STEPS, FLAT, EQUAL, FEW_FINITE, RISING, FAR, PEAK, KINDS };

static std::vector<float> row_of(int kind, int n, uint64_t *state)
{
    std::vector<float> x((size_t)n);
    for (int i = 0; i < n; i++) {
        float v = support_uniform(state) * 4 + support_uniform(state) * 4;
        switch (kind) {
        case STEPS: /* many are equal, zeros of both signs too */
            v = roundf(v * 2) / 2;
            break;
        case FLAT:
            v *= 1e-3f;
            break;
        case EQUAL:
            v = -1.25f;
            break;
        case FEW_FINITE:
            v = support_random(state) % 50 ? -INFINITY : v;
            break;
        case RISING:
            v = (float)i * 0.01f;
            break;
        case FAR:
            v *= 4e37f;
            break;
        case PEAK:
            v = i == n / 2 ? 90.0f : v;
            break;
        default:
            break;
        }
        x[(size_t)i] = v;
    }
    x[(size_t)(n * 2 / 3)] = 1.0f; /* something is finite */
    return x;
}

template <typename T> static T one_of(uint64_t *state, std::initializer_list<T> values)
{
    return values.begin()[support_random(state) % values.size()];
}

static void random_settings(uint64_t *state, struct kernels_pick *p)
{
    p->temperature = one_of(state, {0.0f, 1e-45f, FLT_MIN, 0.1f, 0.7f, 1.0f, 2.0f, 10.0f});
    p->top_p = one_of(state, {1.0f, 1.0f, 0.0f, 1e-9f, 0.3f, 0.9f, 0.95f, 0.99999994f});
    p->min_p = one_of(state, {0.0f, 0.0f, 0.0f, 1e-45f, 0.01f, 0.2f, 0.99f, 1.0f});
    p->top_k = one_of(state, {0, 0, 0, 1, 2, 20, 40, 63, 64, 65, 300, INT32_MAX});
    p->random = one_of(state, {0.0, 0x1.fffffffffffffp-1, support_random(state) * 0x1p-32,
                               support_random(state) * 0x1p-32, support_random(state) * 0x1p-32});
    p->repetition = one_of(state, {1.0f, 1.3f, 0.8f});
    p->presence = one_of(state, {0.0f, 0.5f});
    p->frequency = one_of(state, {0.0f, -0.1f});
    p->odds = support_random(state) % 2;
    p->n_top = one_of(state, {0, 1, 5, KERNELS_MAX_TOP});
}

/* What picks point at. */
struct extras {
    std::vector<struct kernels_seen> seen;
    std::vector<uint32_t> mask; /* empty: none */
};

/* A mask that leaves out two of three, and seen tokens, allowed and other ones. */
static struct extras extras_of(size_t n, bool masked, bool seen, uint64_t *state)
{
    struct extras e;
    if (masked)
        e.mask.assign((n + 31) / 32, 0);
    for (size_t i = 0; masked && i < n; i++)
        if (i == n * 2 / 3 || support_random(state) % 3 == 0)
            e.mask[i / 32] |= 1u << i % 32;
    for (size_t i = 0; seen && i < n; i += 1 + support_random(state) % 7)
        e.seen.push_back({(int32_t)i, (int32_t)i % 4, (float)(i % 3) * 0.75f}); /* some have a bias alone */
    return e;
}

static void assert_same(const struct kernels_pick *p, int n, const struct kernels_picked *got,
                        const struct kernels_picked *want)
{
    if (got->id != want->id)
        fail_msg("n %d, %d seen, %s mask: temperature %g, top-k %d, top-p %g, min-p %g, random %a: token %d, not %d", n,
                 p->n_seen, p->mask ? "a" : "no", (double)p->temperature, p->top_k, (double)p->top_p, (double)p->min_p,
                 p->random, got->id, want->id);
    if (!p->odds || want->id < 0)
        return;
    support_assert_bits("logit", &got->logit, &want->logit, 1);
    support_assert_bits("greatest", &got->max, &want->max, 1);
    assert_int_equal(got->mass, want->mass);
    for (int i = 0; i < p->n_top; i++) {
        assert_int_equal(got->top[i], want->top[i]);
        support_assert_bits("alternative", &got->top_logits[i], &want->top_logits[i], 1);
    }
}

/* Picks on both, from rows of n logits each. */
static void pick_both(const std::vector<float> &x, int n, const std::vector<struct kernels_pick> &picks)
{
    struct kernels *k = twins_cpu();
    std::vector<struct kernels_picked> want(picks.size());
    kernels_op_pick(k, x.data(), n, picks.data(), (int)picks.size(), want.data());
    on_device<float> dx(x), changed((size_t)n * picks.size());
    on_device<struct kernels_picked> out(picks.size());
    std::vector<on_device<struct kernels_seen> *> seen;
    std::vector<on_device<uint32_t> *> masks;
    std::vector<struct cuda_pick> all;
    for (auto &p : picks) {
        struct cuda_pick c = cuda_pick_of(&p);
        if (p.n_seen > 0) {
            seen.push_back(
                new on_device<struct kernels_seen>(std::vector<struct kernels_seen>(p.seen, p.seen + p.n_seen)));
            c.seen = seen.back()->p;
        }
        if (p.mask) {
            masks.push_back(new on_device<uint32_t>(std::vector<uint32_t>(p.mask, p.mask + (n + 31) / 32)));
            c.mask = masks.back()->p;
        }
        all.push_back(c);
    }
    on_device<struct cuda_pick> dp(all);
    assert_int_equal(cuda_pick(nullptr, dp.p, (int)all.size(), dx.p, n, changed.p, out.p), 0);
    std::vector<struct kernels_picked> got = out.fetch();
    for (size_t i = 0; i < picks.size(); i++)
        assert_same(&picks[i], n, &got[i], &want[i]);
    for (auto *d : seen)
        delete d;
    for (auto *d : masks)
        delete d;
}

static void test_pick(void **)
{
    uint64_t state = 5;
    unsigned round = 0;
    assert_int_equal(kernels_pick_reserve(twins_cpu(), 6007), 0);
    for (int n : {1, 2, 17, 64, 129, 1000, 6007})
        for (int kind = 0; kind < KINDS; kind++)
            for (int what = 0; what < 4; what++) {
                cuda_host_seed(round++ % SEEDS);
                std::vector<float> x = row_of(kind, n, &state), second = row_of(NORMAL, n, &state);
                struct extras e = extras_of((size_t)n, what & 1, what & 2, &state);
                x.insert(x.end(), second.begin(), second.end());
                std::vector<struct kernels_pick> picks(n > 1000 ? 8 : 24);
                for (auto &p : picks) {
                    p = {};
                    random_settings(&state, &p);
                    p.row = support_random(&state) % 4 == 0;
                    p.seen = e.seen.data();
                    p.n_seen = (int)e.seen.size();
                    p.mask = e.mask.empty() ? nullptr : e.mask.data();
                }
                pick_both(x, n, picks);
            }
}

/* A NaN or an infinity, masked or not, nothing that is finite, a mask that allows nothing: no token, and the other rows
 * of the batch get theirs. */
static void test_no_token(void **)
{
    uint64_t state = 6;
    const int n = 300;
    assert_int_equal(kernels_pick_reserve(twins_cpu(), n), 0);
    for (float odd : {NAN, INFINITY, -INFINITY})
        for (int mask = 0; mask < 3; mask++)
            for (int settings = 0; settings < 3; settings++) {
                std::vector<float> x = row_of(NORMAL, n, &state), fine = row_of(NORMAL, n, &state);
                if (odd == -INFINITY)
                    x.assign((size_t)n, odd);
                x[200] = odd;
                x.insert(x.end(), fine.begin(), fine.end());
                std::vector<uint32_t> allowed((n + 31) / 32, mask == 2 ? 0u : 0xffffffffu);
                allowed[200 / 32] = 0;
                struct kernels_pick p = {};
                p.temperature = settings ? 1.0f : 0.0f;
                p.top_k = settings == 2 ? 20 : 0;
                p.top_p = 1;
                p.random = 0.5;
                p.mask = mask ? allowed.data() : nullptr;
                std::vector<struct kernels_pick> picks = {p, p};
                picks[1].row = 1;
                pick_both(x, n, picks);
            }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_pick),
    cmocka_unit_test(test_no_token),
};

static int close_cpu(void **)
{
    kernels_close(twins_cpu());
    return 0;
}

int main(void)
{
    launch_overlaps = true;
    return cmocka_run_group_tests(tests, nullptr, close_cpu);
}
