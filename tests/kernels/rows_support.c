/* rows_support.c - see rows_support.h. */
#include "tests/kernels/rows_support.h"

#include <errno.h>

int rows_sets(const struct kernels_rows_set *sets[MAX_SETS], const char *names[MAX_SETS])
{
    static const char *const backends[MAX_SETS] = {"cpu-portable", "cpu-avx2", "cpu-avx512"};
    int n = 0;
    for (int i = 0; i < MAX_SETS; i++) {
        struct kernels *k = rows_open(backends[i], 1);
        if (!k) {
            print_message("skip: this processor cannot run %s\n", backends[i]);
            continue;
        }
        names[n] = backends[i];
        sets[n++] = k->set->rows;
        kernels_close(k);
    }
    assert_true(n > 0 && sets[0] == &kernels_rows_portable);
    return n;
}

struct kernels *rows_open(const char *backend, int threads)
{
    struct kernels *k = NULL;
    struct kernels_opts opts = {.backend = backend, .threads = threads};
    char err[256] = "";
    int rc = kernels_open(&opts, &k, err, sizeof(err));
    if (rc == -ENOTSUP)
        return NULL;
    if (rc)
        fail_msg("kernels_open(%s): %s", backend, err);
    return k;
}

uint32_t rows_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    uint32_t x = (uint32_t)(*state >> 33) ^ (uint32_t)(*state >> 11);
    return x * 2654435769u ^ x >> 15;
}

float rows_uniform(uint64_t *state)
{
    return (float)(rows_random(state) >> 8) * 0x1p-23f - 1.0f;
}

void rows_fill(uint64_t *state, float *x, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++)
        x[i] = scale * (rows_uniform(state) + rows_uniform(state) + rows_uniform(state));
}

void rows_reserve(struct kernels *k, int rows, int cols, int heads, int head_dim)
{
    const struct kernels_sizes sizes = {.rows = rows, .cols = cols, .heads = heads, .head_dim = head_dim};
    assert_int_equal(kernels_ops(k)->reserve(k, &sizes), 0);
}

void rows_kv_write(struct kernels *k, const struct kernels_kv *kv, float *key, float *value,
                   const struct kernels_run *runs, int n_runs)
{
    const struct kernels_run *last = &runs[n_runs - 1];
    const struct kernels_batch batch = {.rows = last->first_row + last->n, .runs = runs, .n_runs = n_runs};
    kernels_ops(k)->begin(k, &batch);
    kernels_ops(k)->attn_in(k, &(struct kernels_attn_in){.key = key, .value = value, .kv = *kv});
    kernels_ops(k)->end(k);
}

struct kernels_run rows_run(int first_row, int n, int pos, struct kernels_pages pages)
{
    return (struct kernels_run){first_row, n, pos, {pages}};
}

void *rows_calloc(size_t count, size_t size)
{
    void *p = calloc(count ? count : 1, size);
    assert_non_null(p);
    return p;
}

void rows_assert_bits(const char *what, const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (isnan(a[i]) && isnan(b[i]))
            continue;
        if (kernels_float_bits(a[i]) != kernels_float_bits(b[i]))
            fail_msg("%s: value %zu of %zu is %a, not %a", what, i, n, (double)a[i], (double)b[i]);
    }
}

double rows_error(const float *a, const double *b, size_t n)
{
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        double e = fabs((double)a[i] - b[i]) / (1 + fabs(b[i]));
        if (!(e <= worst))
            worst = e;
        if (isnan(e))
            return e;
    }
    return worst;
}

void rows_assert_error(const char *what, double error, double tolerance)
{
    if (!(error <= tolerance))
        fail_msg("%s: error %g is not within %g", what, error, tolerance);
}
