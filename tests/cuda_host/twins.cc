/* twins.cc - see twins.h. */
#include "tests/cuda_host/twins.h"

#include <math.h>

struct kernels *twins_cpu(void)
{
    static struct kernels *k;
    struct kernels_opts opts = {"cpu-portable", 1};
    char err[200] = "";
    if (!k) {
        if (kernels_open(&opts, &k, err, sizeof(err)))
            fail_msg("kernels_open: %s", err);
        struct kernels_sizes sizes = {};
        sizes.rows = 512;
        sizes.cols = 4096;
        sizes.heads = 16;
        sizes.head_dim = 512;
        assert_int_equal(kernels_ops(k)->reserve(k, &sizes), 0);
    }
    return k;
}

static struct kernels_batch batch_of(const struct kernels_run *runs, int n_runs)
{
    struct kernels_batch batch = {};
    batch.rows = runs[n_runs - 1].first_row + runs[n_runs - 1].n;
    batch.runs = runs;
    batch.n_runs = n_runs;
    return batch;
}

void twins_kv_write(struct kernels *k, const struct kernels_kv *kv, float *key, float *value,
                    const struct kernels_run *runs, int n_runs)
{
    struct kernels_batch batch = batch_of(runs, n_runs);
    struct kernels_attn_in in = {};
    in.key = key;
    in.value = value;
    in.kv = *kv;
    kernels_ops(k)->begin(k, &batch);
    kernels_ops(k)->attn_in(k, &in);
    kernels_ops(k)->end(k);
}

void twins_attention(struct kernels *k, const struct kernels_attention *a, const struct kernels_run *runs, int n_runs,
                     float *out)
{
    struct kernels_batch batch = batch_of(runs, n_runs);
    kernels_ops(k)->begin(k, &batch);
    kernels_op_attention(k, a, out);
    kernels_ops(k)->end(k);
}

std::vector<float> twins_numbers(size_t n, uint64_t seed, bool odd_ones)
{
    static const float odd[] = {INFINITY, -INFINITY, NAN, 0.0f, -0.0f, 1e-42f, 3e38f, 200.0f, -90.0f};
    std::vector<float> x(n);
    for (size_t i = 0; i < n; i++) {
        x[i] = support_uniform(&seed) * (float)(1 << support_random(&seed) % 8) * 0.1f;
        if (odd_ones && support_random(&seed) % 16 == 0)
            x[i] = odd[support_random(&seed) % (sizeof(odd) / sizeof(odd[0]))];
    }
    return x;
}
