/* library.cu - see library.h. */
#include "kernels/cuda/library.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#if __has_include(<cublasLt.h>)

#include "kernels/cuda/lt.h"
#include "kernels/cuda/product.h"

#define MOST_SHAPES    64
#define MOST_PROPOSALS 8
#define SLICE          64                  /* rows of x that the kernel for few rows has at a time in a test */
#define MOST_BYTES     ((size_t)256 << 20) /* of a test's results; what is larger (an output's matrix) is not tried */
#define THREADS        128

struct shape {
    enum kernels_type type;
    int rows, cols;
    bool found;
    struct lt_algorithm algorithm;
};

struct library {
    struct lt lt;
    struct shape shapes[MOST_SHAPES];
    int n;
};

static cudaDataType_t type_of(enum kernels_type type)
{
    return type == KERNELS_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

/* ---- a product --------------------------------------------------------------------------------------------------- */

/* What is done to a result beside the sum; a block per row of x. from may be p.y. */
static __global__ void __launch_bounds__(THREADS) finish_rows(struct cuda_product p, const float *from)
{
    wait_for_earlier();
    const float *scales = halves_scales(p.halves, p.n, p.w.cols);
    for (int row = threadIdx.x; row < p.w.rows; row += THREADS)
        write_result(&p, p.bias, blockIdx.x, row, from[(size_t)blockIdx.x * p.w.rows + row] * scales[blockIdx.x]);
}

static int multiply_with(struct library *l, cudaStream_t s, const struct cuda_product *p,
                         const struct lt_algorithm *algorithm, float *scratch)
{
    struct lt_product product;
    bool plain = p->w.type == KERNELS_BF16 && !p->bias && !p->accumulate && !(p->softcap > 0); /* its scales are 1 */
    float *y = p->accumulate ? scratch : p->y;
    int rc = -ENOTSUP;
    if (lt_product_make(&l->lt, &product, p->w.rows, p->w.cols, p->n, type_of(p->w.type), CUDA_R_32F))
        return -ENOTSUP;
    if (lt_use(&l->lt, &product, algorithm) == CUBLAS_STATUS_SUCCESS)
        rc = lt_run(&l->lt, &product, (const uint16_t *)p->w.data, (const uint16_t *)p->halves, y, NULL, 0, s) ? -EIO
             : plain                                                                                           ? 0
                     : launched(launch(finish_rows, p->n, THREADS, 0, s, *p, y));
    lt_product_free(&l->lt, &product);
    return rc;
}

static struct shape *shape_of(struct library *l, enum kernels_type type, int rows, int cols)
{
    for (int i = 0; l && i < l->n; i++)
        if (l->shapes[i].type == type && l->shapes[i].rows == rows && l->shapes[i].cols == cols)
            return &l->shapes[i];
    return NULL;
}

int library_multiply(struct library *l, cudaStream_t s, const struct cuda_product *p, float *scratch)
{
    const struct shape *shape = shape_of(l, p->w.type, p->w.rows, p->w.cols);
    return shape && shape->found ? multiply_with(l, s, p, &shape->algorithm, scratch) : -ENOTSUP;
}

/* ---- the test ---------------------------------------------------------------------------------------------------- */

/* Numbers of many magnitudes, 2^-11 to 2, so that sums round. */
static __global__ void __launch_bounds__(THREADS) fill(float *x, size_t n, uint32_t seed)
{
    wait_for_earlier();
    for (size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x; i < n; i += (size_t)gridDim.x * THREADS) {
        uint32_t h = ((uint32_t)i ^ seed) * 0x9e3779b1u;
        h = (h ^ h >> 15) * 0x85ebca77u;
        h ^= h >> 13;
        x[i] = __uint_as_float((h & 0x80000000u) | (127 - 11 + (h >> 8) % 12) << 23 | (h & 0x7fffff));
    }
}

static __global__ void __launch_bounds__(THREADS)
    count_different(const uint32_t *a, const uint32_t *b, size_t n, unsigned *count)
{
    wait_for_earlier();
    for (size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x; i < n; i += (size_t)gridDim.x * THREADS)
        if (a[i] != b[i])
            atomicAdd(count, 1u);
}

struct test {
    cudaStream_t s;
    struct cuda_weights w;
    uint8_t *halves, *slice; /* of TEST_ROWS and of SLICE rows */
    float *x;                /* [SLICE][cols] */
    float *want, *got;       /* [TEST_ROWS][rows] */
    unsigned *count;
};

/* All memory of a test, from one allocation. NULL base: only counted. */
static size_t lay_out(struct test *t, uint8_t *base)
{
    size_t at = 0;
    auto part = [&](size_t bytes) {
        uint8_t *p = base ? base + at : NULL;
        at += (bytes + 255) & ~(size_t)255;
        return p;
    };
    size_t rows = (size_t)t->w.rows, cols = (size_t)t->w.cols;
    t->halves = part(cuda_halves_bytes(TEST_ROWS, t->w.cols));
    t->slice = part(cuda_halves_bytes(SLICE, t->w.cols));
    t->x = (float *)part(SLICE * cols * sizeof(float));
    t->want = (float *)part(TEST_ROWS * rows * sizeof(float));
    t->got = (float *)part(TEST_ROWS * rows * sizeof(float));
    t->count = (unsigned *)part(sizeof(unsigned));
    return at;
}

static struct cuda_product product_of(const struct test *t, int n, const uint8_t *halves, float *y)
{
    struct cuda_product p = {};
    p.w = t->w;
    p.halves = halves;
    p.n = n;
    p.y = y;
    return p;
}

/* Rows of x, and what the kernel for few rows makes of them. */
static bool want_rows(struct test *t)
{
    size_t cols = (size_t)t->w.cols;
    bool fine = true;
    for (int at = 0; at < TEST_ROWS && fine; at += SLICE) {
        int n = min(SLICE, TEST_ROWS - at);
        fine =
            launch(fill, MANY_BLOCKS, THREADS, 0, t->s, t->x, (size_t)n * cols, 77u + (uint32_t)at) == cudaSuccess &&
            cuda_narrow(t->s, t->w.type, t->x, n, t->w.cols, t->slice) == 0 &&
            cuda_multiply_halves(t->s, product_of(t, n, t->slice, t->want + (size_t)at * (size_t)t->w.rows)) == 0 &&
            cudaMemcpyAsync(t->halves + (size_t)at * cols * 2, t->slice, (size_t)n * cols * 2, cudaMemcpyDeviceToDevice,
                            t->s) == cudaSuccess &&
            cudaMemcpyAsync(halves_scales(t->halves, TEST_ROWS, t->w.cols) + at, halves_scales(t->slice, n, t->w.cols),
                            (size_t)n * sizeof(float), cudaMemcpyDeviceToDevice, t->s) == cudaSuccess;
    }
    return fine;
}

/* Whether an algorithm gives the first n rows as they are wanted. */
static bool has_bits(struct library *l, struct test *t, const struct lt_algorithm *a, int n)
{
    unsigned different = 1;
    size_t values = (size_t)n * (size_t)t->w.rows;
    struct cuda_product p = product_of(t, n, n == TEST_ROWS ? t->halves : t->slice, t->got);
    /* Behind the rows of x come their scales, wherever the rows end. */
    bool fine = n == TEST_ROWS ||
                (cudaMemcpyAsync(t->slice, t->halves, (size_t)n * (size_t)t->w.cols * 2, cudaMemcpyDeviceToDevice,
                                 t->s) == cudaSuccess &&
                 cudaMemcpyAsync(halves_scales(t->slice, n, t->w.cols), halves_scales(t->halves, TEST_ROWS, t->w.cols),
                                 (size_t)n * sizeof(float), cudaMemcpyDeviceToDevice, t->s) == cudaSuccess);
    return fine && multiply_with(l, t->s, &p, a, NULL) == 0 &&
           cudaMemsetAsync(t->count, 0, sizeof *t->count, t->s) == cudaSuccess &&
           launch(count_different, MANY_BLOCKS, THREADS, 0, t->s, (const uint32_t *)t->got, (const uint32_t *)t->want,
                  values, t->count) == cudaSuccess &&
           cudaMemcpyAsync(&different, t->count, sizeof different, cudaMemcpyDeviceToHost, t->s) == cudaSuccess &&
           cudaStreamSynchronize(t->s) == cudaSuccess && different == 0;
}

static bool passes(struct library *l, struct test *t, const struct lt_algorithm *a)
{
    const int counts[] = {1, 7, 64, TEST_ROWS};
    if (a->split_k > 1 || a->reduction != CUBLASLT_REDUCTION_SCHEME_NONE)
        return false;
    for (int n : counts)
        if (!has_bits(l, t, a, n))
            return false;
    return true;
}

static bool choose(struct library *l, struct test *t, struct shape *shape, char *err, size_t err_size)
{
    struct lt_product p;
    cublasLtMatmulHeuristicResult_t results[MOST_PROPOSALS];
    int n = 0;
    if (lt_product_make(&l->lt, &p, shape->rows, shape->cols, TEST_ROWS, type_of(shape->type), CUDA_R_32F))
        n = 0;
    else if (lt_propose(&l->lt, &p, 0, results, MOST_PROPOSALS, &n))
        n = 0;
    lt_product_free(&l->lt, &p);
    for (int i = 0; i < n; i++)
        for (bool as_given : {false, true}) { /* some do not take their attributes back */
            struct lt_algorithm *a = &shape->algorithm;
            if (lt_describe(&l->lt, &results[i].algo, a))
                continue;
            a->given = results[i].algo;
            a->as_given = as_given;
            if (passes(l, t, a))
                return true;
        }
    snprintf(err, err_size, "none of its %d algorithms for %d x %d has the bits of the small kernel", n, shape->rows,
             shape->cols);
    return false;
}

bool library_try(struct library *l, cudaStream_t s, struct cuda_weights w, char *err, size_t err_size)
{
    struct shape *shape = shape_of(l, w.type, w.rows, w.cols);
    uint8_t *memory = NULL;
    if (err_size > 0)
        err[0] = '\0';
    if (!l || shape)
        return shape && shape->found;
    if (l->n == MOST_SHAPES || (size_t)w.rows * TEST_ROWS * sizeof(float) > MOST_BYTES)
        return false; /* it has no more than a few rows of x, or is one of very many */
    shape = &l->shapes[l->n++];
    *shape = {w.type, w.rows, w.cols, false, {}};
    struct test t = {};
    t.s = s;
    t.w = w;
    if (cudaMalloc(&memory, lay_out(&t, NULL)) != cudaSuccess) {
        cudaGetLastError();
        snprintf(err, err_size, "there is no memory for a test of %d x %d", w.rows, w.cols);
        return false;
    }
    lay_out(&t, memory);
    if (want_rows(&t))
        shape->found = choose(l, &t, shape, err, err_size);
    else
        snprintf(err, err_size, "the test of %d x %d could not be run", w.rows, w.cols);
    cudaStreamSynchronize(s);
    cudaFree(memory);
    return shape->found;
}

void library_count(const struct library *l, int *shapes, int *with)
{
    *shapes = l ? l->n : 0;
    *with = 0;
    for (int i = 0; i < *shapes; i++)
        *with += l->shapes[i].found;
}

struct library *library_open(char *err, size_t err_size)
{
    struct library *l = (struct library *)calloc(1, sizeof *l);
    if (!l) {
        snprintf(err, err_size, "out of memory");
        return NULL;
    }
    if (lt_open(&l->lt, LT_LIBRARY, err, err_size)) {
        free(l);
        return NULL;
    }
    return l;
}

void library_close(struct library *l)
{
    if (!l)
        return;
    l->lt.Destroy(l->lt.handle);
    free(l);
}

#else

struct library *library_open(char *err, size_t err_size)
{
    snprintf(err, err_size, "this program was built without its header");
    return NULL;
}

void library_close(struct library *)
{
}

bool library_try(struct library *, cudaStream_t, struct cuda_weights, char *, size_t)
{
    return false;
}

void library_count(const struct library *, int *shapes, int *with)
{
    *shapes = *with = 0;
}

int library_multiply(struct library *, cudaStream_t, const struct cuda_product *, float *)
{
    return -ENOTSUP;
}

#endif
