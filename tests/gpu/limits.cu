/* limits.cu - measures what one device gives at most, and what products cost in either order of additions. The script
 * `limits` beside it runs one part per process, so that a part that hangs or breaks the device hides nothing.
 *
 * usage: limits [--tiny] [--cublaslt PATH] PART
 *
 * Every figure is one line of JSON, written as soon as it is known. Times are medians over rounds of a recorded graph
 * of launches; weights rotate over more memory than the chip's cache holds. --tiny is for the emulation: the same code
 * with shapes that take no time, where figures mean nothing. Exit status: 0, 1 for a failure (said in a line of JSON),
 * 2 usage. */
#include "kernels/cuda/lt.h"
#include "tests/gpu/peaks.h"
#include "tests/gpu/plain.h"

#include <algorithm>
#include <stdarg.h>
#include <stdlib.h>
#include <vector>

static bool tiny;
static const char *lt_path = "libcublasLt.so.13";
static cudaDeviceProp device;
static cudaStream_t stream;

/* ---- saying ------------------------------------------------------------------------------------------------------ */

/* One line: {"name": "...", "value": 1.5, "unit": "..."}. Names and units need no escapes. */
static void figure(double value, const char *unit, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void figure(double value, const char *unit, const char *format, ...)
{
    char name[200];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof(name), format, args);
    va_end(args);
    printf("{\"name\": \"%s\", \"value\": %.6g, \"unit\": \"%s\"}\n", name, value, unit);
    fflush(stdout);
}

static void fact(const char *name, const char *text)
{
    printf("{\"name\": \"%s\", \"text\": \"%s\"}\n", name, text);
    fflush(stdout);
}

static void fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
static void fail(const char *format, ...)
{
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    for (char *p = text; *p; p++)
        if (*p == '"' || *p == '\\' || (unsigned char)*p < ' ')
            *p = '\'';
    printf("{\"failed\": \"%s\"}\n", text);
    fflush(stdout);
    exit(1);
}

static void check(cudaError_t e, const char *what)
{
    if (e != cudaSuccess)
        fail("%s: %s", what, cudaGetErrorString(e));
}
#define CHECK(call) check(call, #call)

static void check_lt(cublasStatus_t s, const char *what)
{
    if (s != CUBLAS_STATUS_SUCCESS)
        fail("%s: status %d", what, (int)s);
}

/* ---- device memory and time -------------------------------------------------------------------------------------- */

template <typename T> static T *device_new(size_t count)
{
    T *p;
    CHECK(cudaMalloc(&p, count * sizeof(T)));
    return p;
}

static int some_blocks(void)
{
    return device.multiProcessorCount * (tiny ? 1 : 8);
}

static uint32_t *random_words(size_t bytes, uint32_t seed)
{
    uint32_t *p = device_new<uint32_t>(bytes / 4);
    CHECK(launch(fill_words, some_blocks(), PEAK_THREADS, 0, stream, p, bytes / 4, seed));
    return p;
}

/* Seconds of one call of enqueue(i), which puts work into the stream: the median over rounds of `calls` of them. */
template <typename F> static double seconds_of(int calls, F enqueue)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t from, to;
    std::vector<double> times;
    CHECK(cudaEventCreate(&from));
    CHECK(cudaEventCreate(&to));
    enqueue(0); /* a kernel is loaded when it is first launched, which is not for a recording */
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    for (int i = 0; i < calls; i++)
        enqueue(i);
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiateWithFlags(&exec, graph, 0));
    for (int round = 0; round < (tiny ? 2 : 8); round++) {
        float ms;
        CHECK(cudaEventRecord(from, stream));
        CHECK(cudaGraphLaunch(exec, stream));
        CHECK(cudaEventRecord(to, stream));
        CHECK(cudaStreamSynchronize(stream));
        CHECK(cudaEventElapsedTime(&ms, from, to));
        if (round > 0) /* the first one warms up */
            times.push_back((double)ms * 1e-3 / calls);
    }
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaEventDestroy(from));
    CHECK(cudaEventDestroy(to));
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

/* ---- parts ------------------------------------------------------------------------------------------------------- */

static void part_device(void)
{
    int driver, runtime, clock, memory_clock, bus;
    CHECK(cudaDriverGetVersion(&driver));
    CHECK(cudaRuntimeGetVersion(&runtime));
    CHECK(cudaDeviceGetAttribute(&clock, cudaDevAttrClockRate, 0));
    CHECK(cudaDeviceGetAttribute(&memory_clock, cudaDevAttrMemoryClockRate, 0));
    CHECK(cudaDeviceGetAttribute(&bus, cudaDevAttrGlobalMemoryBusWidth, 0));
    fact("name", device.name);
    figure(device.major * 10 + device.minor, "sm", "chip");
    figure(device.multiProcessorCount, "", "multiprocessors");
    figure((double)device.totalGlobalMem / 1e9, "GB", "memory");
    figure((double)device.l2CacheSize / 1e6, "MB", "L2 cache");
    figure((double)device.sharedMemPerBlockOptin, "bytes", "shared memory per block");
    figure(device.ECCEnabled, "", "ECC");
    figure(clock / 1e3, "MHz", "highest clock");
    figure(memory_clock / 1e3, "MHz", "memory clock");
    figure(bus, "bits", "memory bus");
    figure(driver, "", "driver's CUDA version");
    figure(runtime, "", "runtime version");
}

static void part_memory(void)
{
    size_t bytes = tiny ? (size_t)1 << 17 : (size_t)2 << 30;
    uint4 *a = (uint4 *)random_words(bytes, 1), *b = device_new<uint4>(bytes / 16);
    for (int per_sm = 2; per_sm <= 8; per_sm *= 2) {
        int blocks = device.multiProcessorCount * per_sm;
        uint32_t *out = device_new<uint32_t>((size_t)blocks);
        double s =
            seconds_of(1, [&](int) { CHECK(launch(read_all, blocks, PEAK_THREADS, 0, stream, a, bytes / 16, out)); });
        figure((double)bytes / s / 1e9, "GB/s", "read, %d blocks per multiprocessor", per_sm);
        s = seconds_of(1, [&](int) { CHECK(launch(copy_all, blocks, PEAK_THREADS, 0, stream, b, a, bytes / 16)); });
        figure(2.0 * (double)bytes / s / 1e9, "GB/s", "copy (read + written), %d blocks per multiprocessor", per_sm);
        CHECK(cudaFree(out));
    }
    double s = seconds_of(1, [&](int) { CHECK(cudaMemcpyAsync(b, a, bytes, cudaMemcpyDeviceToDevice, stream)); });
    figure(2.0 * (double)bytes / s / 1e9, "GB/s", "cudaMemcpy on the device (read + written)");
    CHECK(cudaFree(a));
    CHECK(cudaFree(b));
}

static void part_pinned(void)
{
    static const size_t sizes[] = {(size_t)1 << 16, (size_t)8 << 20, (size_t)256 << 20};
    size_t most = tiny ? sizes[0] : sizes[2];
    char *in, *out;
    CHECK(cudaMallocHost(&in, most));
    CHECK(cudaMallocHost(&out, most));
    memset(in, 1, most);
    memset(out, 1, most);
    char *a = device_new<char>(most), *b = device_new<char>(most);
    CHECK(cudaMemsetAsync(b, 2, most, stream));
    cudaStream_t other;
    cudaEvent_t fork, join;
    CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    CHECK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
    CHECK(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
    for (size_t bytes : sizes) {
        if (bytes > most)
            break;
        int calls = bytes < most ? 16 : 1;
        double s =
            seconds_of(calls, [&](int) { CHECK(cudaMemcpyAsync(a, in, bytes, cudaMemcpyHostToDevice, stream)); });
        figure((double)bytes / s / 1e9, "GB/s", "host to device, %zu KiB", bytes >> 10);
        s = seconds_of(calls, [&](int) { CHECK(cudaMemcpyAsync(out, b, bytes, cudaMemcpyDeviceToHost, stream)); });
        figure((double)bytes / s / 1e9, "GB/s", "device to host, %zu KiB", bytes >> 10);
        s = seconds_of(calls, [&](int) {
            CHECK(cudaEventRecord(fork, stream));
            CHECK(cudaStreamWaitEvent(other, fork, 0));
            CHECK(cudaMemcpyAsync(a, in, bytes, cudaMemcpyHostToDevice, stream));
            CHECK(cudaMemcpyAsync(out, b, bytes, cudaMemcpyDeviceToHost, other));
            CHECK(cudaEventRecord(join, other));
            CHECK(cudaStreamWaitEvent(stream, join, 0));
        });
        figure(2.0 * (double)bytes / s / 1e9, "GB/s", "both ways at once (added), %zu KiB", bytes >> 10);
    }
    if (out[most - 1] != 2)
        fail("a copy from the device did not arrive");
    CHECK(cudaStreamDestroy(other));
    CHECK(cudaEventDestroy(fork));
    CHECK(cudaEventDestroy(join));
    CHECK(cudaFree(a));
    CHECK(cudaFree(b));
    CHECK(cudaFreeHost(in));
    CHECK(cudaFreeHost(out));
}

template <typename F> static void peak(enum peak which, const char *unit, const char *name, F enqueue)
{
    int iterations = tiny ? 2 : 20000;
    for (int per_sm = 1; per_sm <= 4; per_sm *= 2) {
        int blocks = device.multiProcessorCount * per_sm;
        double s = seconds_of(1, [&](int) { enqueue(blocks, iterations); });
        double operations = peak_operations(which) * iterations * blocks * (PEAK_THREADS / WARP);
        figure(operations / s / 1e12, unit, "%s, %d warps per multiprocessor", name, per_sm * PEAK_THREADS / WARP);
    }
}

static void part_peaks(void)
{
    int *ints = device_new<int>((size_t)device.multiProcessorCount * 4 * PEAK_THREADS);
    float *floats = device_new<float>((size_t)device.multiProcessorCount * 4 * PEAK_THREADS);
    peak(PEAK_S8, "TOPS", "mma.sync int8", [&](int blocks, int n) {
        CHECK(launch(peak_mma<int>, blocks, PEAK_THREADS, 0, stream, 0x01010101u, 0x01010101u, n, ints));
    });
    peak(PEAK_BF16, "TFLOPS", "mma.sync bf16", [&](int blocks, int n) {
        CHECK(launch(peak_mma<float>, blocks, PEAK_THREADS, 0, stream, 0x3f803f80u, 0x3f803f80u, n, floats));
    });
    peak(PEAK_FMA, "TFLOPS", "f32 fma",
         [&](int blocks, int n) { CHECK(launch(peak_fma, blocks, PEAK_THREADS, 0, stream, 0.5f, 1.0f, n, floats)); });
    CHECK(cudaFree(ints));
    CHECK(cudaFree(floats));
}

/* ---- the library's bf16 products --------------------------------------------------------------------------------- */

static struct lt lt;

static void open_lt(void)
{
    char err[300];
    if (lt_open(&lt, lt_path, err, sizeof(err)))
        fail("%s", err);
    figure((double)lt.GetVersion(), "", "cuBLASLt version");
}

static uint16_t *random_bf16(size_t n, uint32_t seed, int spread)
{
    uint16_t *p = device_new<uint16_t>(n);
    CHECK(launch(fill_bf16, some_blocks(), PEAK_THREADS, 0, stream, p, n, seed, spread));
    return p;
}

static void part_lt_peak(void)
{
    open_lt();
    static const int shapes[][3] = {{8192, 8192, 8192}, {14336, 4096, 2048}, {4096, 14336, 2048}, {4096, 4096, 2048}};
    const size_t workspace_bytes = (size_t)32 << 20;
    void *workspace = device_new<char>(tiny ? 1 : workspace_bytes);
    for (auto &shape : shapes) {
        int rows = shape[0], cols = shape[1], tokens = shape[2];
        if (tiny)
            rows = 32, cols = 64, tokens = 16;
        uint16_t *w = random_bf16((size_t)rows * cols, 1, 4), *x = random_bf16((size_t)tokens * cols, 2, 4);
        float *y = device_new<float>((size_t)rows * tokens);
        for (cudaDataType_t out : {CUDA_R_32F, CUDA_R_16BF})
            for (size_t most : {(size_t)0, workspace_bytes}) {
                struct lt_product p;
                cublasLtMatmulHeuristicResult_t result;
                int n;
                check_lt(lt_product_make(&lt, &p, rows, cols, tokens, CUDA_R_16BF, out), "a product's description");
                check_lt(lt_propose(&lt, &p, most, &result, 1, &n), "cublasLtMatmulAlgoGetHeuristic");
                if (!n)
                    fail("the library proposes nothing");
                p.algo = result.algo;
                double s = seconds_of(tiny ? 1 : 4, [&](int) {
                    check_lt(lt_run(&lt, &p, w, x, y, workspace, most, stream), "cublasLtMatmul");
                });
                figure(2.0 * rows * cols * tokens / s / 1e12, "TFLOPS",
                       "cuBLASLt bf16 to %s, %dx%dx%d, workspace %zu MiB", out == CUDA_R_32F ? "f32" : "bf16", rows,
                       cols, tokens, most >> 20);
                lt_product_free(&lt, &p);
            }
        CHECK(cudaFree(w));
        CHECK(cudaFree(x));
        CHECK(cudaFree(y));
        if (tiny)
            break;
    }
    CHECK(cudaFree(workspace));
}

static unsigned different(const void *a, const void *b, size_t words)
{
    static unsigned *count;
    unsigned n = 0;
    if (!count)
        count = device_new<unsigned>(1);
    CHECK(cudaMemsetAsync(count, 0, sizeof(*count), stream));
    CHECK(launch(count_different, some_blocks(), PEAK_THREADS, 0, stream, (const uint32_t *)a, (const uint32_t *)b,
                 words, count));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaMemcpy(&n, count, sizeof(n), cudaMemcpyDeviceToHost));
    return n;
}

#define MANY_TOKENS 2048
#define PADDED_TO   256 /* tokens: a multiple of every tile */

struct row_test {
    int rows, cols, most; /* most: tokens */
    uint16_t *w, *x;      /* x holds `most` tokens, padded with zeros to PADDED_TO more */
    float *all, *some, *plain;
};

/* Runs the first `tokens` with the kept algorithm, of `padded` rows; counts values that differ from those of all
 * tokens. -1: the library cannot. */
static long row_test_run(const struct row_test *r, const struct lt_algorithm *a, int tokens, int padded)
{
    struct lt_product p;
    check_lt(lt_product_make(&lt, &p, r->rows, r->cols, padded, CUDA_R_16BF, CUDA_R_32F), "a product's description");
    long count = -1;
    if (lt_use(&lt, &p, a) == CUBLAS_STATUS_SUCCESS) {
        check_lt(lt_run(&lt, &p, r->w, r->x, r->some, NULL, 0, stream), "cublasLtMatmul");
        count = different(r->some, r->all, (size_t)tokens * r->rows);
    }
    lt_product_free(&lt, &p);
    return count;
}

/* One proposal: are the rows of 1, 7, 64 and all tokens equal, padded and not, and equal to the plain kernel's? */
static void row_test_algorithm(const struct row_test *r, struct lt_algorithm *a, int number)
{
    static const int some[] = {1, 7, 64};
    struct lt_product p;
    char name[160];
    snprintf(name, sizeof(name), "%dx%d, proposal %d", r->rows, r->cols, number);
    printf("{\"name\": \"%s\", \"id\": %d, \"tile\": %u, \"stages\": %u, \"split_k\": %d, \"reduction\": %u, "
           "\"swizzling\": %u, "
           "\"custom\": %u, \"inner\": %u, \"cluster\": %u}\n",
           name, a->id, a->tile, a->stages, a->split_k, a->reduction, a->swizzling, a->custom, a->inner, a->cluster);
    if (a->split_k > 1 || a->reduction != CUBLASLT_REDUCTION_SCHEME_NONE) {
        fact(name, "passed over: its K is split");
        return;
    }
    check_lt(lt_product_make(&lt, &p, r->rows, r->cols, r->most, CUDA_R_16BF, CUDA_R_32F), "a product's description");
    cublasStatus_t status = lt_use(&lt, &p, a);
    if (status != CUBLAS_STATUS_SUCCESS) {
        a->as_given = true;
        status = lt_use(&lt, &p, a);
        fact(name, status == CUBLAS_STATUS_SUCCESS
                       ? "the library does not take its attributes back: used as it was given"
                       : "passed over: it cannot be made again without a workspace");
    }
    if (status != CUBLAS_STATUS_SUCCESS) {
        lt_product_free(&lt, &p);
        return;
    }
    double s = seconds_of(
        tiny ? 1 : 4, [&](int) { check_lt(lt_run(&lt, &p, r->w, r->x, r->all, NULL, 0, stream), "cublasLtMatmul"); });
    lt_product_free(&lt, &p);
    figure(2.0 * r->rows * r->cols * r->most / s / 1e12, "TFLOPS", "%s, %d tokens", name, r->most);
    long worst = 0;
    for (int tokens : some)
        for (int padded : {tokens, (tokens + PADDED_TO - 1) / PADDED_TO * PADDED_TO}) {
            long n = row_test_run(r, a, tokens, padded);
            if (padded != tokens)
                worst = n < 0 || worst < 0 ? -1 : std::max(worst, n);
            figure((double)n, "values (-1: it cannot)", "%s, %d tokens as %d rows: differ from those of %d", name,
                   tokens, padded, r->most);
        }
    figure(worst == 0, "", "%s: padded rows do not depend on their number", name);
    figure((double)different(r->all, r->plain, (size_t)r->most * r->rows), "values",
           "%s: differ from the plain kernel's", name);
}

static void part_lt_rows(void)
{
    open_lt();
    static const int shapes[][2] = {{4096, 4096}, {14336, 4096}, {4096, 14336}};
    for (auto &shape : shapes) {
        struct row_test r = {shape[0], shape[1], MANY_TOKENS, NULL, NULL, NULL, NULL, NULL};
        if (tiny)
            r = {48, 64, 72, NULL, NULL, NULL, NULL, NULL};
        size_t padded = (size_t)r.most + PADDED_TO;
        r.w = random_bf16((size_t)r.rows * r.cols, 3, 12);
        r.x = random_bf16(padded * r.cols, 4, 12);
        CHECK(cudaMemsetAsync(r.x + (size_t)r.most * r.cols, 0, (size_t)PADDED_TO * r.cols * 2, stream));
        r.all = device_new<float>(padded * r.rows);
        r.some = device_new<float>(padded * r.rows);
        r.plain = device_new<float>(padded * r.rows);
        CHECK(launch(plain_bf16, dim3((r.rows + 15) / 16, (r.most + 7) / 8), WARP, 0, stream, r.w, r.x, r.rows, r.cols,
                     r.most, r.plain));
        struct lt_product p;
        cublasLtMatmulHeuristicResult_t results[6];
        int n;
        check_lt(lt_product_make(&lt, &p, r.rows, r.cols, r.most, CUDA_R_16BF, CUDA_R_32F), "a product's description");
        check_lt(lt_propose(&lt, &p, 0, results, 6, &n), "cublasLtMatmulAlgoGetHeuristic");
        lt_product_free(&lt, &p);
        for (int i = 0; i < n; i++) {
            struct lt_algorithm a;
            check_lt(lt_describe(&lt, &results[i].algo, &a), "an algorithm's attributes");
            row_test_algorithm(&r, &a, i);
        }
        for (void *m : {(void *)r.w, (void *)r.x, (void *)r.all, (void *)r.some, (void *)r.plain})
            CHECK(cudaFree(m));
        if (tiny)
            break;
    }
}

/* ---- quantized products ------------------------------------------------------------------------------------------ */

static const char *order_name(enum order order)
{
    return order == ORDER_32 ? "order 32" : "order 128";
}

static struct activations activations_new(enum order order, int tokens, int cols)
{
    size_t halves = (size_t)token_tiles(tokens) * (cols / HALF);
    struct activations a = {tokens, cols, device_new<uint32_t>(halves * 256),
                            device_new<float>(halves * (order == ORDER_32 ? 64 : 8)),
                            order == ORDER_128 ? device_new<uint32_t>(halves * 32) : NULL};
    float *x = device_new<float>((size_t)tokens * cols);
    CHECK(launch(fill_floats, some_blocks(), PEAK_THREADS, 0, stream, x, (size_t)tokens * cols, 5u));
    CHECK(launch_quantize(order, x, a, stream));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaFree(x));
    return a;
}

static void activations_free(struct activations *a)
{
    CHECK(cudaFree(a->q));
    CHECK(cudaFree(a->facts));
    CHECK(cudaFree(a->halves));
}

/* Enough copies of a matrix that none is found in the cache when its turn comes again. */
static std::vector<struct weights> weights_new(int rows, int cols)
{
    size_t bytes = packed_weight_bytes(rows, cols), most = tiny ? 1 : (size_t)300 << 20;
    size_t copies = std::max((size_t)(tiny ? 1 : 2), (most + bytes - 1) / bytes);
    uint8_t *p = (uint8_t *)random_words(bytes * copies, 6);
    CHECK(launch(fill_scales, some_blocks(), PEAK_THREADS, 0, stream, p, bytes * copies / GROUP_BYTES, 7u));
    std::vector<struct weights> all;
    for (size_t i = 0; i < copies; i++)
        all.push_back({rows, cols, p + i * bytes});
    return all;
}

template <typename F>
static void time_product(const char *name, const std::vector<struct weights> &all, int tokens, F enqueue)
{
    const struct weights *w = &all[0];
    int calls = (int)std::max<size_t>(all.size(), tiny ? 1 : tokens > 32 ? 2 : 16);
    double s = seconds_of(calls, [&](int i) { enqueue(all[(size_t)i % all.size()]); });
    figure(s * 1e6, "us", "%s, %dx%d, %d tokens", name, w->rows, w->cols, tokens);
    figure((double)packed_weight_bytes(w->rows, w->cols) / s / 1e9, "GB/s of weights", "%s, %dx%d, %d tokens", name,
           w->rows, w->cols, tokens);
    figure(2.0 * w->rows * w->cols * tokens / s / 1e12, "TOPS", "%s, %dx%d, %d tokens", name, w->rows, w->cols, tokens);
}

static void few(enum order order)
{
    static const int shapes[][2] = {{4096, 4096}, {14336, 4096}, {4096, 14336}, {28672, 4096}, {128256, 4096}};
    for (auto &shape : shapes) {
        int rows = tiny ? 40 : shape[0], cols = tiny ? 512 : shape[1];
        std::vector<struct weights> all = weights_new(rows, cols);
        for (int tokens : {1, 8, 16, 32}) {
            struct activations a = activations_new(order, tokens, cols);
            float *y = device_new<float>((size_t)tokens * rows);
            char name[80];
            snprintf(name, sizeof(name), "%s, %s", order_name(order), order == ORDER_32 ? "a warp per row" : "pieces");
            time_product(name, all, tokens,
                         [&](const struct weights &w) { CHECK(launch_gemv(order, w, a, y, stream)); });
            if (order == ORDER_32 && tokens <= TOKEN_TILE)
                time_product("order 32, sums first", all, tokens,
                             [&](const struct weights &w) { CHECK(launch_gemv_sums(w, a, y, stream)); });
            activations_free(&a);
            CHECK(cudaFree(y));
        }
        CHECK(cudaFree((void *)all[0].packed));
        if (tiny)
            break;
    }
}

static void part_few_32(void)
{
    few(ORDER_32);
}

static void part_few_128(void)
{
    few(ORDER_128);
}

static void part_many(void)
{
    static const int shapes[][2] = {{14336, 4096}, {4096, 14336}, {4096, 4096}};
    for (auto &shape : shapes) {
        int rows = tiny ? 40 : shape[0], cols = tiny ? 256 : shape[1], tokens = tiny ? 20 : MANY_TOKENS;
        std::vector<struct weights> all = weights_new(rows, cols);
        float *y = device_new<float>((size_t)tokens * rows), *x = device_new<float>((size_t)tokens * cols);
        CHECK(launch(fill_floats, some_blocks(), PEAK_THREADS, 0, stream, x, (size_t)tokens * cols, 5u));
        for (enum order order : {ORDER_32, ORDER_128}) {
            struct activations a = activations_new(order, tokens, cols);
            time_product(order_name(order), all, tokens,
                         [&](const struct weights &w) { CHECK(launch_tiled(order, w, a, y, stream)); });
            double s = seconds_of(tiny ? 1 : 8, [&](int) { CHECK(launch_quantize(order, x, a, stream)); });
            figure(s * 1e6, "us", "%s, activations of %d tokens of %d", order_name(order), tokens, cols);
            activations_free(&a);
        }
        CHECK(cudaFree(x));
        CHECK(cudaFree(y));
        CHECK(cudaFree((void *)all[0].packed));
        if (tiny)
            break;
    }
}

/* Bits: of 1, 7, 32 and all tokens against each other on the device, and of some against plain loops on the host. */
static long bits(enum order order)
{
    long differences = 0;
    int rows = tiny ? 24 : 1024, cols = tiny ? 512 : 4096, tokens = tiny ? 40 : MANY_TOKENS;
    int host_rows = tiny ? 24 : 128, host_tokens = tiny ? 3 : 48;
    std::vector<uint8_t> file((size_t)rows * (cols / SUPER) * FILE_BYTES), packed(packed_weight_bytes(rows, cols));
    uint64_t state = 11;
    for (size_t i = 0; i < file.size(); i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        file[i] = (uint8_t)(state >> 56);
        if (i % FILE_BYTES == 1 || i % FILE_BYTES == 3)
            file[i] = 0x18; /* the upper byte of d and dmin */
    }
    pack_weights(file.data(), rows, cols, packed.data());
    uint8_t *on_device = device_new<uint8_t>(packed.size());
    CHECK(cudaMemcpyAsync(on_device, packed.data(), packed.size(), cudaMemcpyHostToDevice, stream));
    struct weights w = {rows, cols, on_device};
    float *x = device_new<float>((size_t)tokens * cols), *all = device_new<float>((size_t)tokens * rows);
    float *some = device_new<float>((size_t)tokens * rows);
    CHECK(launch(fill_floats, some_blocks(), PEAK_THREADS, 0, stream, x, (size_t)tokens * cols, 5u));
    struct activations a = activations_new(order, tokens, cols);
    CHECK(launch_tiled(order, w, a, all, stream));
    for (int n : {1, 7, 8, 16, 32}) {
        a.tokens = n;
        CHECK(launch_gemv(order, w, a, some, stream));
        unsigned count = different(some, all, (size_t)n * rows);
        differences += count;
        figure(count, "values", "%s: %d tokens differ from those of %d", order_name(order), n, tokens);
        if (order == ORDER_32 && n <= TOKEN_TILE) {
            CHECK(launch_gemv_sums(w, a, some, stream));
            count = different(some, all, (size_t)n * rows);
            differences += count;
            figure(count, "values", "order 32, sums first: %d tokens differ from those of %d", n, tokens);
        }
    }
    std::vector<float> inputs((size_t)host_tokens * cols), results((size_t)host_tokens * rows);
    CHECK(cudaMemcpy(inputs.data(), x, inputs.size() * 4, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(results.data(), all, results.size() * 4, cudaMemcpyDeviceToHost));
    int wrong = 0;
    for (int t = 0; t < host_tokens; t++)
        for (int r = 0; r < host_rows; r++) {
            float want = plain_product(order, file.data() + (size_t)r * (cols / SUPER) * FILE_BYTES,
                                       inputs.data() + (size_t)t * cols, cols);
            wrong += memcmp(&want, &results[(size_t)t * rows + r], 4) != 0;
        }
    figure(wrong, "values", "%s: differ from plain loops on the host, of %d", order_name(order),
           host_tokens * host_rows);
    activations_free(&a);
    CHECK(cudaFree(x));
    CHECK(cudaFree(all));
    CHECK(cudaFree(some));
    CHECK(cudaFree(on_device));
    return differences + wrong;
}

static void part_bits(void)
{
    long differences = bits(ORDER_32) + bits(ORDER_128);
    if (differences)
        fail("%ld values differ", differences);
}

/* ---- main -------------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    void (*run)(void);
} parts[] = {
    {"device", part_device},   {"memory", part_memory},   {"pinned", part_pinned}, {"peaks", part_peaks},
    {"lt_peak", part_lt_peak}, {"lt_rows", part_lt_rows}, {"few_32", part_few_32}, {"few_128", part_few_128},
    {"many", part_many},       {"bits", part_bits},
};

int main(int argc, char **argv)
{
    const char *wanted = NULL;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--tiny"))
            tiny = true;
        else if (!strcmp(argv[i], "--cublaslt") && i + 1 < argc)
            lt_path = argv[++i];
        else
            wanted = argv[i];
    }
    for (auto &part : parts) {
        if (!wanted || strcmp(wanted, part.name))
            continue;
        CHECK(cudaSetDevice(0));
        CHECK(cudaGetDeviceProperties(&device, 0));
        CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        part.run();
        CHECK(cudaDeviceSynchronize());
        CHECK(cudaStreamDestroy(stream));
        return 0;
    }
    fprintf(stderr, "usage: limits [--tiny] [--cublaslt PATH] PART\nparts:");
    for (auto &part : parts)
        fprintf(stderr, " %s", part.name);
    fprintf(stderr, "\n");
    return 2;
}
