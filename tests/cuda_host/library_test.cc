/* library_test.cc - products of many rows with 16-bit weights by cuBLASLt: taken where its rows have the small kernel's
 * bits, and with everything that is done to a product; not taken, and said so, where they have not or it is missing. */
#include "tests/cuda_host/support.h"

#include <string.h>
#include <string>
#include <vector>

extern "C" {
#include "kernels/kernels.h"
#include "tests/kernels/quant.h"
}

enum { MATRIX_ROWS = 40, COLS = 64, MANY = 140, FEW = 128 };

static struct kernels *opened(const char *numerics)
{
    struct kernels *k;
    char err[300];
    struct kernels_opts opts = {};
    opts.backend = "cuda";
    opts.numerics = numerics;
    assert_int_equal(kernels_open(&opts, &k, err, sizeof(err)), 0);
    struct kernels_sizes sizes = {};
    sizes.rows = sizes.runs = MANY;
    sizes.pages = 1;
    sizes.wanted = sizes.picks = 1;
    sizes.vocab = 100;
    sizes.cols = sizes.ff = COLS;
    sizes.heads = 1;
    sizes.head_dim = 16;
    assert_int_equal(kernels_ops(k)->reserve(k, &sizes), 0);
    return k;
}

static float *upload(struct kernels *k, const std::vector<float> &from)
{
    size_t bytes = from.size() * sizeof(float);
    float *p = (float *)kernels_ops(k)->alloc(k, KERNELS_DEVICE, bytes);
    kernels_ops(k)->upload(k, p, from.data(), bytes);
    return p;
}

static std::vector<float> numbers(size_t n, uint64_t seed)
{
    std::vector<float> x(n);
    for (auto &v : x)
        v = support_uniform(&seed) * (float)(1 << support_random(&seed) % 8);
    return x;
}

struct wanted {
    bool bias, accumulate;
    float softcap;
};
static const struct wanted all_wanted[] = {
    {false, false, 0}, {true, false, 0}, {false, true, 0}, {true, true, 0}, {false, false, 9.0f}};

/* What a backend says of itself. */
struct said {
    std::string backend, bits, notes;
};

static struct said said_by(const struct kernels *k)
{
    return {kernels_backend(k), kernels_numerics(k), kernels_notes(k) ? kernels_notes(k) : ""};
}

/* Weights of so many rows, packed in two pieces; to be freed. */
static struct kernels_matrix pack(struct kernels *k, enum kernels_type type, int rows)
{
    const struct kernels_ops *ops = kernels_ops(k);
    std::vector<uint8_t> file(quant_file_bytes(type, rows, COLS));
    quant_fill(type, rows, COLS, QUANT_RANDOM, 5, file.data());
    struct kernels_matrix w = {};
    w.type = type;
    w.rows = rows;
    w.cols = COLS;
    w.data = ops->alloc(k, KERNELS_DEVICE, ops->matrix_bytes(k, type, rows, COLS));
    ops->pack(k, &w, 0, 0, 32, file.data(), nullptr, nullptr);
    ops->pack(k, &w, 0, 32, rows - 32, file.data() + 32 * kernels_row_bytes(type, COLS), nullptr, nullptr);
    return w;
}

static void unload(struct kernels *k, struct kernels_matrix w)
{
    const struct kernels_ops *ops = kernels_ops(k);
    ops->release(k, KERNELS_DEVICE, (void *)w.data, ops->matrix_bytes(k, w.type, w.rows, w.cols));
}

/* What all kinds of a product of n rows give, with weights of a type, one after the other; and what the backend said.
 */
static std::vector<float> products(const char *numerics, enum kernels_type type, int n, struct said *said)
{
    struct kernels *k = opened(numerics);
    const struct kernels_ops *ops = kernels_ops(k);
    struct kernels_matrix w = pack(k, type, MATRIX_ROWS);
    *said = said_by(k);
    struct kernels_acts in = {};
    in.x = upload(k, numbers((size_t)n * COLS, 1));
    in.cols = COLS;
    in.forms = KERNELS_FLOATS;
    float *bias = upload(k, numbers(MATRIX_ROWS, 2));
    size_t values = (size_t)n * MATRIX_ROWS, bytes = values * sizeof(float);
    float *pinned = (float *)ops->alloc(k, KERNELS_PINNED, bytes);
    std::vector<float> out;
    for (auto &want : all_wanted) {
        float *y = upload(k, numbers(values, 3));
        struct kernels_linear job = {&w, want.bias ? bias : nullptr, y, want.accumulate, want.softcap};
        ops->linear(k, &in, n, &job, 1);
        ops->copy(k, KERNELS_COMPUTE, pinned, y, bytes);
        assert_int_equal(ops->wait(k, ops->record(k, KERNELS_COMPUTE), -1), 0);
        out.insert(out.end(), pinned, pinned + values);
        ops->release(k, KERNELS_DEVICE, y, bytes);
    }
    assert_null(ops->error(k));
    ops->release(k, KERNELS_PINNED, pinned, bytes);
    ops->release(k, KERNELS_DEVICE, bias, MATRIX_ROWS * sizeof(float));
    ops->release(k, KERNELS_DEVICE, in.x, (size_t)n * COLS * sizeof(float));
    unload(k, w);
    kernels_close(k);
    return out;
}

static bool says(const std::string &text, const char *what)
{
    return text.find(what) != std::string::npos;
}

static void test_the_library_is_taken_where_its_bits_are_ours(void **)
{
    for (enum kernels_type type : {KERNELS_BF16, KERNELS_F16}) {
        struct said without, said;
        cuda_host_library(CUDA_HOST_NO_LIBRARY);
        std::vector<float> own = products("device", type, MANY, &without);
        assert_true(says(without.notes, "there is no cuBLASLt: cublasLtCreate: status 1"));
        assert_true(without.backend == "cuda_host" && without.bits == "cuda device 1 sm_90");
        cuda_host_library(CUDA_HOST_ALGORITHMS);
        std::vector<float> with = products("device", type, MANY, &said);
        unsigned before = cuda_host_library_products();
        products("device", type, FEW, &said);
        unsigned tests = cuda_host_library_products() - before; /* few rows take none */
        with = products("device", type, MANY, &said);
        assert_int_equal(cuda_host_library_products() - before, 2 * tests + sizeof(all_wanted) / sizeof(*all_wanted));
        assert_true(says(said.notes, "cuBLASLt has products of more than 128 rows") &&
                    !says(said.notes, "own kernels"));
        assert_true(said.backend == "cuda_host+cublaslt");
        assert_true(said.bits == without.bits); /* what is stored is as good with it as without */
        assert_true(own.size() == with.size() && !memcmp(own.data(), with.data(), own.size() * sizeof(float)));
    }
}

static void test_rows_that_depend_on_their_number_are_refused(void **)
{
    struct said without, said;
    cuda_host_library(CUDA_HOST_NO_LIBRARY);
    std::vector<float> own = products("device", KERNELS_BF16, MANY, &without);
    cuda_host_library(CUDA_HOST_BY_SHAPE);
    std::vector<float> with = products("device", KERNELS_BF16, MANY, &said);
    cuda_host_library(CUDA_HOST_ALGORITHMS);
    assert_true(says(said.notes, "0 of 1 shapes") && says(said.notes, "none of its 2 algorithms for 40 x 64"));
    assert_true(said.backend == "cuda_host" && said.bits == without.bits);
    assert_true(!memcmp(own.data(), with.data(), own.size() * sizeof(float)));
}

/* The notes are of all shapes that were tried, in whichever order the one without an algorithm came. */
static void test_one_shape_of_two(void **)
{
    for (bool lacking_first : {true, false}) {
        struct kernels *k = opened("device");
        cuda_host_library(lacking_first ? CUDA_HOST_BY_SHAPE : CUDA_HOST_ALGORITHMS);
        unload(k, pack(k, KERNELS_BF16, 40));
        cuda_host_library(lacking_first ? CUDA_HOST_ALGORITHMS : CUDA_HOST_BY_SHAPE);
        unload(k, pack(k, KERNELS_BF16, 48));
        cuda_host_library(CUDA_HOST_ALGORITHMS);
        unload(k, pack(k, KERNELS_BF16, 48)); /* as before */
        struct said said = said_by(k);
        assert_true(says(said.notes, "with 1 of 2 shapes, own kernels the others: none of its 2 algorithms for"));
        assert_true(says(said.notes, lacking_first ? "for 40 x 64" : "for 48 x 64"));
        assert_true(said.backend == "cuda_host+cublaslt");
        kernels_close(k);
    }
}

static void test_exact_asks_for_none(void **)
{
    struct said said;
    unsigned before = cuda_host_library_products();
    products("exact", KERNELS_BF16, MANY, &said);
    assert_true(said.backend == "cuda_host" && said.bits == "cpu" && said.notes.empty());
    assert_int_equal(cuda_host_library_products(), before);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_the_library_is_taken_where_its_bits_are_ours),
    cmocka_unit_test(test_rows_that_depend_on_their_number_are_refused),
    cmocka_unit_test(test_one_shape_of_two),
    cmocka_unit_test(test_exact_asks_for_none),
};

int main(void)
{
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
