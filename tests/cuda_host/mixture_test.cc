/* mixture_test.cc - which experts a row asks, their weights, and the sum of what they said: the bits of the CPU's. */
#include "tests/cuda_host/twins.h"

#include <math.h>

enum { COLS = 40, FF = 16, ROWS = 9 };

/* What the CPU made of random experts, with all that it left in its scratch. */
struct mixture {
    std::vector<float> logits, before, after, weights, said;
    std::vector<int32_t> ids, places;
};

static struct kernels_matrix pack(struct kernels *k, int experts, int rows, int cols, uint64_t seed)
{
    size_t bytes = (kernels_packed_bytes(KERNELS_F32, rows, cols) * (size_t)experts + 63) / 64 * 64;
    struct kernels_matrix m = {KERNELS_F32, rows, cols, experts, aligned_alloc(64, bytes)};
    assert_non_null(m.data);
    for (int e = 0; e < experts; e++) {
        std::vector<float> values = twins_numbers((size_t)(rows * cols), seed + 3 * (uint64_t)e, false);
        kernels_ops(k)->pack(k, &m, e, 0, rows, values.data(), nullptr, nullptr);
    }
    return m;
}

static struct mixture mixture_on_cpu(int experts, int used)
{
    struct kernels *k = twins_cpu();
    struct mixture m;
    size_t slots = (size_t)(ROWS * used);
    m.logits = twins_numbers((size_t)(ROWS * experts), (uint64_t)experts, false);
    float *row = m.logits.data();
    for (int e = 0; e < experts; e++) { /* ties, of all and of some; no numbers; signs of zero */
        row[e] = 1.5f;
        row[experts + e] = (float)(e % 3);
        row[2 * experts + e] = e % 2 ? 0.0f : -0.0f;
    }
    row[3 * experts + experts / 2] = NAN;
    row[4 * experts + experts / 2] = INFINITY;
    row[5 * experts + experts / 2] = -INFINITY;
    m.before = m.after = twins_numbers(ROWS * COLS, 5, false);
    struct kernels_matrix gate = pack(k, experts, FF, COLS, 0), up = pack(k, experts, FF, COLS, 1),
                          down = pack(k, experts, COLS, FF, 2);
    std::vector<float> x = twins_numbers(ROWS * COLS, 6, false);
    struct kernels_sizes sizes = {};
    sizes.rows = ROWS;
    sizes.cols = COLS;
    sizes.experts = experts;
    sizes.experts_used = used;
    sizes.expert_ff = FF;
    assert_int_equal(kernels_mixture_reserve(k, &sizes), 0);
    struct kernels_mixture c = {};
    c.used = used;
    c.logits = m.logits.data();
    c.gate = &gate;
    c.up = &up;
    c.down = &down;
    c.glu = KERNELS_SILU;
    kernels_op_mixture(k, x.data(), ROWS, COLS, &c, m.after.data());
    const struct kernels_mixture_scratch *s = k->mixture;
    m.weights.assign(s->weights, s->weights + slots);
    m.ids.assign(s->ids, s->ids + slots);
    m.places.assign(s->place, s->place + slots);
    m.said.assign(s->out, s->out + slots * COLS);
    for (auto *matrix : {&gate, &up, &down})
        free((void *)matrix->data);
    return m;
}

static void test_mixture(void **)
{
    static const int shapes[][2] = {{7, 3}, {8, 8}, {32, 4}, {33, 1}, {128, 8}, {100, 50}};
    unsigned seed = 0;
    for (auto &shape : shapes) {
        cuda_host_seed(seed++ % SEEDS);
        int experts = shape[0], used = shape[1];
        struct mixture m = mixture_on_cpu(experts, used);
        on_device<float> logits(m.logits), weights(m.weights.size()), said(m.said), y(m.before);
        on_device<int32_t> ids(m.ids.size()), places(m.places);
        assert_int_equal(cuda_route(nullptr, logits.p, ROWS, experts, used, ids.p, weights.p), 0);
        assert_memory_equal(ids.fetch().data(), m.ids.data(), m.ids.size() * sizeof(int32_t));
        support_assert_bits("weights", weights.fetch().data(), m.weights.data(), m.weights.size());
        assert_int_equal(cuda_mix(nullptr, said.p, places.p, weights.p, ROWS, used, COLS, y.p), 0);
        support_assert_bits("mixture", y.fetch().data(), m.after.data(), m.after.size());
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_mixture),
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
