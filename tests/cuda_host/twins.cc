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
        assert_int_equal(kernels_ops(k)->reserve(k, 512, 4096, 16, 512), 0);
    }
    return k;
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
