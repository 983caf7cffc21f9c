/* rows_test.cc - norms, rotary positions, activations, embeddings and rows: the bits of the CPU's. */
#include "tests/cuda_host/twins.h"

#include <math.h>

extern "C" {
#include "tests/kernels/quant.h"
}

static void check(const char *what, const std::vector<float> &got, const std::vector<float> &want)
{
    assert_int_equal(got.size(), want.size());
    support_assert_bits(what, got.data(), want.data(), want.size());
}

static void test_rms_norm(void **)
{
    struct kernels *k = twins_cpu();
    unsigned round = 0;
    for (int d : {1, 7, 16, 63, 128, 896, 1000})
        for (int rows : {1, 3}) {
            cuda_host_seed(round++ % SEEDS);
            size_t n = (size_t)(rows * d);
            std::vector<float> x = twins_numbers(n, (uint64_t)d, false), weight = twins_numbers((size_t)d, 9, false),
                               want(n);
            if (rows == 3)
                x[n - 1] = INFINITY; /* its row alone */
            kernels_op_rms_norm(k, x.data(), rows, d, weight.data(), 1e-6f, want.data());
            on_device<float> dx(x), dw(weight), dy(n);
            assert_int_equal(cuda_rms_norm(nullptr, dx.p, rows, d, dw.p, 1e-6f, dy.p), 0);
            check("rms_norm", dy.fetch(), want);
            assert_int_equal(cuda_rms_norm(nullptr, dx.p, rows, d, dw.p, 1e-6f, dx.p), 0);
            check("rms_norm in place", dx.fetch(), want);
        }
}

static void test_rope(void **)
{
    struct kernels *k = twins_cpu();
    static const int shapes[][3] = {{1, 64, 64}, {3, 80, 80}, {2, 256, 256}, {2, 64, 32}}; /* heads, head_dim, rot */
    for (auto &s : shapes)
        for (enum kernels_rope_kind kind : {KERNELS_ROPE_HALVES, KERNELS_ROPE_PAIRS}) {
            const int n = 5;
            std::vector<float> x = twins_numbers((size_t)(n * s[0] * s[1]), 3, true), want = x;
            std::vector<float> table = twins_numbers((size_t)(n * s[2]), 4, false);
            for (int i = 0; i < n; i++)
                k->set->rows->rope(&want[(size_t)(i * s[0] * s[1])], s[0], s[1], s[2], kind,
                                   &table[(size_t)(i * s[2])]);
            on_device<float> dx(x), dt(table);
            assert_int_equal(cuda_rope(nullptr, dx.p, n, s[0], s[1], s[2], kind, dt.p), 0);
            check("rope", dx.fetch(), want);
        }
}

static void test_glu_add_and_softcap(void **)
{
    struct kernels *k = twins_cpu();
    for (size_t n : {(size_t)1, (size_t)255, (size_t)5000})
        for (enum kernels_glu_kind kind : {KERNELS_SILU, KERNELS_GELU_TANH, KERNELS_SWIGLU_CLAMPED}) {
            std::vector<float> gate = twins_numbers(n, n, true), up = twins_numbers(n, 2, true), want(n);
            kernels_op_glu(k, kind, gate.data(), up.data(), n, want.data());
            on_device<float> dg(gate), du(up);
            assert_int_equal(cuda_glu(nullptr, kind, dg.p, du.p, n, dg.p), 0);
            check("glu", dg.fetch(), want);
            k->set->rows->add(want.data(), up.data(), n);
            assert_int_equal(cuda_add(nullptr, dg.p, du.p, n), 0);
            check("add", dg.fetch(), want);
            kernels_op_softcap(k, want.data(), n, 30.0f);
            assert_int_equal(cuda_softcap(nullptr, dg.p, n, 30.0f), 0);
            check("softcap", dg.fetch(), want);
        }
}

static void test_embed(void **)
{
    struct kernels *k = twins_cpu();
    const int rows = 21, cols = 512;
    std::vector<int32_t> ids = {20, 0, 7, 7, 16, 15};
    for (int type = 0; type < KERNELS_TYPE_COUNT; type++)
        for (int style = 0; style < QUANT_STYLES; style++) {
            enum kernels_type t = (enum kernels_type)type;
            std::vector<uint8_t> file(quant_file_bytes(t, rows, cols));
            quant_fill(t, rows, cols, (enum quant_style)style, 77, file.data());
            struct kernels_matrix w = quant_pack(t, rows, cols, file.data());
            std::vector<float> want(ids.size() * cols);
            kernels_op_embed(k, &w, ids.data(), (int)ids.size(), 3.7f, want.data());
            free((void *)w.data);
            on_device<uint8_t> df(file);
            on_device<int32_t> di(ids);
            on_device<float> out(want.size());
            on_device<uint8_t> packed(cuda_weights_bytes(t, rows, cols));
            struct cuda_weights weights = {t, rows, cols, packed.p};
            assert_int_equal(cuda_pack(nullptr, weights, 0, 16, df.p), 0);
            assert_int_equal(cuda_pack(nullptr, weights, 16, rows - 16, df.p + 16 * kernels_row_bytes(t, cols)), 0);
            assert_int_equal(cuda_embed(nullptr, weights, di.p, (int)ids.size(), 3.7f, out.p), 0);
            check(kernels_type_info(t)->name, out.fetch(), want);
        }
}

static void test_rope_table(void **)
{
    const int rot = 20;
    const std::vector<int32_t> pos = {0, 1, 77, 4095, 131071};
    std::vector<double> inv_freq;
    std::vector<float> scale = {1, 2, 3, 0.5f, 1.25f}, want((size_t)rot * pos.size());
    struct kernels *k = twins_cpu();
    std::vector<struct kernels_run> runs;
    for (int i = 0; i < (int)pos.size(); i++)
        runs.push_back({i, 1, pos[(size_t)i], {}});
    struct kernels_batch batch = {};
    batch.rows = batch.n_runs = (int)pos.size();
    batch.runs = runs.data();
    batch.query_scale = scale.data();
    for (int j = 0; j < rot / 2; j++)
        inv_freq.push_back(pow(10000, -2.0 * j / rot));
    on_device<int32_t> dp(pos);
    on_device<double> df(inv_freq);
    on_device<float> ds(scale), table(want.size());
    for (bool scaled : {false, true}) {
        kernels_ops(k)->begin(k, &batch);
        kernels_ops(k)->rope_table(k, inv_freq.data(), rot, 1.1, scaled, want.data());
        kernels_ops(k)->end(k);
        assert_int_equal(
            cuda_rope_table(nullptr, dp.p, (int)pos.size(), df.p, rot, 1.1, scaled ? ds.p : nullptr, table.p), 0);
        check("rotary table", table.fetch(), want);
    }
}

static void test_gather(void **)
{
    std::vector<float> x = twins_numbers(10 * 130, 1, true), want;
    std::vector<int32_t> rows = {9, 0, 4, 4};
    for (int32_t r : rows)
        want.insert(want.end(), x.begin() + r * 130, x.begin() + (r + 1) * 130);
    on_device<float> dx(x), out(want.size());
    on_device<int32_t> dr(rows);
    assert_int_equal(cuda_gather(nullptr, dx.p, 130, dr.p, (int)rows.size(), out.p), 0);
    check("gather", out.fetch(), want);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_rms_norm), cmocka_unit_test(test_rope),   cmocka_unit_test(test_glu_add_and_softcap),
    cmocka_unit_test(test_embed),    cmocka_unit_test(test_gather), cmocka_unit_test(test_rope_table),
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
