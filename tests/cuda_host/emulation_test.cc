/* emulation_test.cc - the emulation itself: what threads, warps, streams, events and graphs do, and that mistakes
 * planted into kernels and into host code are found. */
#include "tests/cuda_host/support.h"

#include <math.h>
#include <stdio.h>

/* ---- threads ----------------------------------------------------------------------------------------------------- */

__global__ static void indices(int *out)
{
    int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    int threads = blockDim.x * blockDim.y * blockDim.z;
    out[block * threads + thread] = block * 1000 + thread;
}

static void test_indices(void **)
{
    EACH_SEED
    {
        int *d = (int *)support_device(nullptr, 12 * 30 * sizeof(int));
        CHECK(launch(indices, dim3(3, 2, 2), dim3(5, 3, 2), 0, nullptr, d));
        int *h = (int *)support_fetch(d, 12 * 30 * sizeof(int));
        for (int i = 0; i < 12 * 30; i++)
            assert_int_equal(h[i], i / 30 * 1000 + i % 30);
        free(h);
        CHECK(cudaFree(d));
    }
}

/* Sums by halves in shared memory, with as many barriers as halvings. */
__global__ static void block_sum(const float *x, float *out)
{
    SHARED(float, part, [64]);
    part[threadIdx.x] = x[blockIdx.x * 64 + threadIdx.x];
    __syncthreads();
    for (unsigned half = 32; half > 0; half /= 2) {
        if (threadIdx.x < half)
            part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0)
        out[blockIdx.x] = part[0];
}

/* As it comes with one mistake: no barrier before the sums. */
__global__ static void block_sum_unordered(const float *x, float *out)
{
    SHARED(float, part, [64]);
    part[threadIdx.x] = x[threadIdx.x];
    for (unsigned half = 32; half > 0; half /= 2) {
        if (threadIdx.x < half)
            part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0)
        *out = part[0];
}

/* Here the barrier between a read and the next write of the same place is missing: only some orders show that. */
__global__ static void rotate_unordered(float *x)
{
    SHARED(float, part, [64]);
    part[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    float mine = part[(threadIdx.x + 1) % 64];
    part[threadIdx.x] = mine;
    __syncthreads();
    x[threadIdx.x] = part[threadIdx.x];
}

static float *ones(size_t n)
{
    float *h = (float *)malloc(n * sizeof(float));
    for (size_t i = 0; i < n; i++)
        h[i] = 1.0f;
    float *d = support_upload(h, n);
    free(h);
    return d;
}

static void test_barriers(void **)
{
    EACH_SEED
    {
        float *x = ones(128), *out = (float *)support_device(nullptr, 2 * sizeof(float));
        CHECK(launch(block_sum, 2, 64, 0, nullptr, x, out));
        float *h = (float *)support_fetch(out, 2 * sizeof(float));
        assert_true(h[0] == 64.0f && h[1] == 64.0f);
        free(h);
        CHECK(cudaFree(x));
        CHECK(cudaFree(out));
    }
}

/* Without a check of accesses a missing barrier is a wrong number under some order of threads. */
static void test_missing_barrier_changes_results(void **)
{
    if (support_has_races())
        return; /* there it is a fault, see test_races_are_found */
    int wrong_sums = 0, wrong_rotations = 0;
    EACH_SEED
    {
        float *x = ones(64), *out = (float *)support_device(nullptr, sizeof(float));
        CHECK(launch(block_sum_unordered, 1, 64, 0, nullptr, x, out));
        float *h = (float *)support_fetch(out, sizeof(float));
        wrong_sums += !(*h == 64.0f);
        free(h);
        float numbers[64];
        for (int i = 0; i < 64; i++)
            numbers[i] = (float)i;
        CHECK(cudaMemcpy(x, numbers, sizeof(numbers), cudaMemcpyHostToDevice));
        CHECK(launch(rotate_unordered, 1, 64, 0, nullptr, x));
        h = (float *)support_fetch(x, sizeof(numbers));
        bool right = true;
        for (int i = 0; i < 64; i++)
            right = right && h[i] == (float)((i + 1) % 64);
        wrong_rotations += !right;
        free(h);
        CHECK(cudaFree(x));
        CHECK(cudaFree(out));
    }
    assert_true(wrong_sums >= 1);
    assert_true(wrong_rotations >= 1);
}

static void run_sum_unordered(void)
{
    launch(block_sum_unordered, 1, 64, 0, nullptr, ones(64), ones(1));
    cudaDeviceSynchronize();
}

static void run_rotate_unordered(void)
{
    launch(rotate_unordered, 1, 64, 0, nullptr, ones(64));
    cudaDeviceSynchronize();
}

/* Two blocks that write the same place: a wrong index. */
__global__ static void same_place(float *out)
{
    out[threadIdx.x] = (float)blockIdx.x;
}

static void run_same_place(void)
{
    launch(same_place, 2, 8, 0, nullptr, ones(8));
    cudaDeviceSynchronize();
}

/* A warp may order its own accesses with __syncwarp(); a shuffle orders nothing. */
template <bool ordered> __global__ static void exchange_in_warp(int *out)
{
    SHARED(int, value, [32]);
    value[threadIdx.x] = (int)threadIdx.x;
    if (ordered)
        __syncwarp();
    else
        __shfl_sync(ALL_LANES, 0, 0);
    out[threadIdx.x] = value[31 - threadIdx.x];
    __syncwarp();
    value[threadIdx.x] = 0;
}

static void run_exchange_unordered(void)
{
    launch(exchange_in_warp<false>, 1, 32, 0, nullptr, (int *)support_device(nullptr, 128));
    cudaDeviceSynchronize();
}

static void test_races_are_found(void **)
{
    EACH_SEED
    {
        int *out = (int *)support_device(nullptr, 128);
        CHECK(launch(exchange_in_warp<true>, 1, 32, 0, nullptr, out));
        int *h = (int *)support_fetch(out, 128);
        for (int i = 0; i < 32; i++)
            assert_int_equal(h[i], 31 - i);
        free(h);
        CHECK(cudaFree(out));
        if (!support_has_races())
            continue;
        support_expect_fault(run_sum_unordered, "nothing between that orders them");
        support_expect_fault(run_rotate_unordered, "nothing between that orders them");
        support_expect_fault(run_same_place, "of a device memory of 32 bytes");
        support_expect_fault(run_exchange_unordered, "of a shared memory of 128 bytes");
    }
}

__global__ static void some_wait(void)
{
    if (threadIdx.x < 40)
        __syncthreads();
}

__global__ static void wait_apart(void)
{
    if (threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
}

__global__ static void shuffle_without_all(int *out)
{
    if (threadIdx.x != 7)
        out[threadIdx.x] = __shfl_sync(ALL_LANES, (int)threadIdx.x, 0);
}

__global__ static void shuffle_from_outside(int *out)
{
    if (threadIdx.x < 16)
        out[threadIdx.x] = __shfl_sync(0xffffu, (int)threadIdx.x, 20);
}

static void run_some_wait(void)
{
    launch(some_wait, 1, 64, 0, nullptr);
    cudaDeviceSynchronize();
}

static void run_wait_apart(void)
{
    launch(wait_apart, 1, 64, 0, nullptr);
    cudaDeviceSynchronize();
}

static void run_shuffle_without_all(void)
{
    launch(shuffle_without_all, 1, 32, 0, nullptr, (int *)support_device(nullptr, 128));
    cudaDeviceSynchronize();
}

static void run_shuffle_from_outside(void)
{
    launch(shuffle_from_outside, 1, 32, 0, nullptr, (int *)support_device(nullptr, 128));
    cudaDeviceSynchronize();
}

static void test_waiting_apart_is_found(void **)
{
    support_expect_fault(run_some_wait, "40 at a barrier, 24 at its end");
    support_expect_fault(run_wait_apart, "meets that of line");
    support_expect_fault(run_shuffle_without_all, "31 in a warp operation, 1 at its end");
    support_expect_fault(run_shuffle_from_outside, "reads lane 20");
}

/* ---- shared memory ----------------------------------------------------------------------------------------------- */

__global__ static void past_shared(int at)
{
    SHARED(int, part, [8]);
    int *p = part;
    p[at] = 1;
}

static void run_past_shared(void)
{
    launch(past_shared, 1, 1, 0, nullptr, 8);
    cudaDeviceSynchronize();
}

static void run_before_shared(void)
{
    launch(past_shared, 1, 1, 0, nullptr, -1);
    cudaDeviceSynchronize();
}

__global__ static void past_dynamic(int at)
{
    SHARED_DYNAMIC(bytes);
    bytes[at] = 1;
}

static void run_past_dynamic(void)
{
    launch(past_dynamic, 1, 1, 40, nullptr, 40);
    cudaDeviceSynchronize();
}

__global__ static void past_device(float *x, int at)
{
    x[at] = 1;
}

static void run_past_device(void)
{
    float *x = ones(8);
    launch(past_device, 1, 1, 0, nullptr, x, 8);
    cudaFree(x);
}

static void run_host_reads_device(void)
{
    volatile float *x = ones(8);
    printf("%f\n", (double)x[0]);
    cuda_host_fault("the host read device memory");
}

static void test_past_the_end_is_found(void **)
{
    bool asan = support_has_asan();
    support_expect_fault(run_past_shared,
                         asan ? "AddressSanitizer" : "a shared array of 32 bytes was written at byte 32");
    support_expect_fault(run_before_shared,
                         asan ? "AddressSanitizer" : "a shared array of 32 bytes was written at byte -4");
    support_expect_fault(run_past_dynamic, asan ? "AddressSanitizer" : "was written at byte 40");
    support_expect_fault(run_past_device,
                         asan ? "AddressSanitizer" : "device memory of 32 bytes was written at byte 32");
    support_expect_fault(run_host_reads_device, asan ? "AddressSanitizer" : "the host read device memory");
}

template <bool twice> __global__ static void unwritten(float *out)
{
    SHARED(float, part, [2][2]);
    if (blockIdx.x == 0)
        part[1][1] = 5.0f;
    out[blockIdx.x] = part[1][1];
}

static void test_shared_is_new_in_each_block(void **)
{
    EACH_SEED
    {
        float *out = (float *)support_device(nullptr, 8);
        CHECK(launch(unwritten<true>, 2, 1, 0, nullptr, out));
        float *h = (float *)support_fetch(out, 8);
        assert_true(h[0] == 5.0f && isnan(h[1]));
        free(h);
        CHECK(cudaFree(out));
    }
    /* More than 48 KiB wants to be asked for. */
    assert_int_equal(launch(past_dynamic, 1, 1, 50000, nullptr, 0), cudaErrorInvalidValue);
    CHECK(cudaFuncSetAttribute(past_dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, 50000));
    CHECK(launch(past_dynamic, 1, 1, 50000, nullptr, 49999));
    assert_int_equal(launch(past_dynamic, 1, 1025, 0, nullptr, 0), cudaErrorInvalidValue);
    cudaGetLastError();
}

/* wait: how many groups may stay open; barrier: whether others' copies are waited for. */
template <int wait, bool barrier> __global__ static void copy_in(const uint4 *from, uint32_t *out)
{
    SHARED(uint4, part, [2][32]);
    copy_async_16(&part[0][threadIdx.x], from + threadIdx.x);
    copy_async_commit();
    copy_async_16_or_zero(&part[1][threadIdx.x], from + threadIdx.x, threadIdx.x < 16);
    copy_async_commit();
    copy_async_wait<wait>();
    if (barrier)
        __syncthreads();
    out[threadIdx.x] = part[0][31 - threadIdx.x].x;
    out[32 + threadIdx.x] = part[1][31 - threadIdx.x].x;
    __syncthreads(); /* the copies still open are others' */
    copy_async_wait<0>();
}

template <int wait, bool barrier> static uint32_t *copied_in(void)
{
    uint4 numbers[32];
    for (unsigned i = 0; i < 32; i++)
        numbers[i] = make_uint4(100 + i, 0, 0, 0);
    uint4 *from = support_upload(numbers, 32);
    uint32_t *out = (uint32_t *)support_device(nullptr, 64 * 4);
    CHECK(launch(copy_in<wait, barrier>, 1, 32, 0, nullptr, from, out));
    uint32_t *h = (uint32_t *)support_fetch(out, 64 * 4);
    CHECK(cudaFree(from));
    CHECK(cudaFree(out));
    return h;
}

static void run_copy_without_barrier(void)
{
    free(copied_in<0, false>());
}

/* Copies over what others read, behind a barrier or before it; that they are waited for behind one says nothing. */
template <bool barrier> __global__ static void copy_over(const uint4 *from, uint32_t *out)
{
    SHARED(uint4, part, [32]);
    part[threadIdx.x] = from[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = part[31 - threadIdx.x].x;
    if (barrier)
        __syncthreads();
    copy_async_16(&part[threadIdx.x], from + threadIdx.x);
    copy_async_commit();
    __syncthreads();
    copy_async_wait<0>();
}

template <bool barrier> static void run_copy_over(void)
{
    const uint4 numbers[32] = {};
    uint4 *from = support_upload(numbers, 32);
    uint32_t *out = (uint32_t *)support_device(nullptr, 32 * 4);
    launch(copy_over<barrier>, 1, 32, 0, nullptr, from, out);
    cudaDeviceSynchronize();
    cudaFree(from);
    cudaFree(out);
}

__global__ static void never_wait(const uint4 *from)
{
    SHARED(uint4, part, [1]);
    copy_async_16(part, from);
    copy_async_commit();
}

static void run_never_wait(void)
{
    launch(never_wait, 1, 1, 0, nullptr, (const uint4 *)ones(4));
    cudaDeviceSynchronize();
}

static void test_async_copies(void **)
{
    EACH_SEED
    {
        uint32_t *h = copied_in<0, true>();
        for (unsigned i = 0; i < 32; i++) {
            assert_int_equal(h[i], 131 - i);
            assert_int_equal(h[32 + i], i > 15 ? 131 - i : 0);
        }
        free(h);
        /* What was not waited for is not there. */
        h = copied_in<1, true>();
        for (unsigned i = 0; i < 32; i++) {
            assert_int_equal(h[i], 131 - i);
            assert_int_equal(h[32 + i], 0xffffffffu);
        }
        free(h);
        run_copy_over<true>();
    }
    if (support_has_races()) {
        support_expect_fault(run_copy_without_barrier, "nothing between that orders them");
        support_expect_fault(run_copy_over<false>, "nothing between that orders them");
    }
    support_expect_fault(run_never_wait, "never waited for");
}

/* ---- warps ------------------------------------------------------------------------------------------------------- */

__global__ static void warp_operations(int *out)
{
    int lane = (int)threadIdx.x % WARP, *mine = out + threadIdx.x * 6;
    mine[0] = __shfl_sync(ALL_LANES, lane * 3, (lane + 5) % 32);
    mine[1] = __shfl_xor_sync(ALL_LANES, lane, 9);
    mine[2] = __shfl_down_sync(ALL_LANES, lane, 30);
    mine[3] = (int)__ballot_sync(ALL_LANES, lane % 3 == 0);
    mine[4] = -1;
    if (lane % 2) /* only some lanes, twice */
        mine[4] = __shfl_sync(0xaaaaaaaau, __shfl_sync(0xaaaaaaaau, lane, 7) + lane, 31);
    mine[5] = __shfl_sync(ALL_LANES, lane, 3, 8) + 100 * __shfl_up_sync(ALL_LANES, lane, 2u);
}

static void test_warp_operations(void **)
{
    EACH_SEED
    {
        int *d = (int *)support_device(nullptr, 64 * 6 * 4);
        CHECK(launch(warp_operations, 1, 64, 0, nullptr, d));
        int *h = (int *)support_fetch(d, 64 * 6 * 4);
        for (int i = 0; i < 64; i++) {
            int lane = i % 32, *mine = h + i * 6;
            assert_int_equal(mine[0], (lane + 5) % 32 * 3);
            assert_int_equal(mine[1], lane ^ 9);
            assert_int_equal(mine[2], lane < 2 ? lane + 30 : lane);
            assert_int_equal(mine[3], 0x49249249);
            assert_int_equal(mine[4], lane % 2 ? 38 : -1);
            assert_int_equal(mine[5], lane / 8 * 8 + 3 + 100 * (lane < 2 ? lane : lane - 2));
        }
        free(h);
        CHECK(cudaFree(d));
    }
}

/* The fragments as PTX's manual lays them out, filled from plain matrices. */
struct matrices {
    int8_t a8[16][32], b8[32][8];
    uint16_t a16[16][16], b16[16][8];
    uint16_t tiles[4][8][8];
};
struct products {
    int s8[16][8];
    float bf16[16][8], f16[16][8], f16_k8[16][8];
    uint16_t plain[4][8][8], transposed[4][8][8];
};

__device__ static uint32_t pair16(uint16_t low, uint16_t high)
{
    return low | (uint32_t)high << 16;
}

__global__ static void all_mma(const struct matrices *m, struct products *p)
{
    int lane = (int)threadIdx.x, g = lane / 4, t = lane % 4;
    uint32_t a[4] = {}, b[2] = {};
    for (int r = 0; r < 4; r++)
        for (int i = 0; i < 4; i++)
            a[r] |= (uint32_t)(uint8_t)m->a8[g + r % 2 * 8][r / 2 * 16 + 4 * t + i] << 8 * i;
    for (int r = 0; r < 2; r++)
        for (int i = 0; i < 4; i++)
            b[r] |= (uint32_t)(uint8_t)m->b8[r * 16 + 4 * t + i][g] << 8 * i;
    int c[4], start[4] = {1, 2, 3, 4};
    mma_s8(c, a, b, start);
    for (int e = 0; e < 4; e++)
        p->s8[g + e / 2 * 8][2 * t + e % 2] = c[e] - start[e];
    for (int r = 0; r < 4; r++)
        a[r] = pair16(m->a16[g + r % 2 * 8][r / 2 * 8 + 2 * t], m->a16[g + r % 2 * 8][r / 2 * 8 + 2 * t + 1]);
    for (int r = 0; r < 2; r++)
        b[r] = pair16(m->b16[r * 8 + 2 * t][g], m->b16[r * 8 + 2 * t + 1][g]);
    float f[3][4], zero[4] = {};
    mma_bf16(f[0], a, b, zero);
    mma_f16(f[1], a, b, zero);
    mma_f16_k8(f[2], a, b, zero);
    for (int e = 0; e < 4; e++) {
        p->bf16[g + e / 2 * 8][2 * t + e % 2] = f[0][e];
        p->f16[g + e / 2 * 8][2 * t + e % 2] = f[1][e];
        p->f16_k8[g + e / 2 * 8][2 * t + e % 2] = f[2][e];
    }
    SHARED(uint16_t, tiles, [4][8][8]);
    for (int i = lane; i < 256; i += WARP)
        tiles[i / 64][i / 8 % 8][i % 8] = m->tiles[i / 64][i / 8 % 8][i % 8];
    __syncthreads();
    uint32_t d[4], dt[4];
    load_matrices(d, tiles[lane / 8][lane % 8]);
    load_matrices_transposed(dt, tiles[lane / 8][lane % 8]);
    for (int i = 0; i < 8; i++) {
        p->plain[i / 2][g][2 * t + i % 2] = (uint16_t)(d[i / 2] >> i % 2 * 16);
        p->transposed[i / 2][g][2 * t + i % 2] = (uint16_t)(dt[i / 2] >> i % 2 * 16);
    }
}

static void test_matrix_instructions(void **)
{
    static struct matrices m;
    uint64_t state = 5;
    for (size_t i = 0; i < sizeof(m.a8); i++)
        (&m.a8[0][0])[i] = (int8_t)support_random(&state);
    for (size_t i = 0; i < sizeof(m.b8); i++)
        (&m.b8[0][0])[i] = (int8_t)support_random(&state);
    for (int i = 0; i < 256; i++) { /* small multiples of 1/8 as f16 and as bf16 are far apart, both exact */
        m.a16[i / 16][i % 16] = narrow_f16((float)(int)(support_random(&state) % 33) - 16);
        (&m.tiles[0][0][0])[i] = (uint16_t)support_random(&state);
    }
    for (int i = 0; i < 128; i++)
        m.b16[i / 8][i % 8] = narrow_f16(support_uniform(&state));
    EACH_SEED
    {
        struct matrices *from = support_upload(&m, 1);
        struct products *to = (struct products *)support_device(nullptr, sizeof(*to));
        CHECK(launch(all_mma, 1, 32, 0, nullptr, from, to));
        struct products *p = (struct products *)support_fetch(to, sizeof(*to));
        for (int r = 0; r < 16; r++)
            for (int c = 0; c < 8; c++) {
                int sum = 0;
                double bf16 = 0, f16 = 0, f16_k8 = 0;
                for (int k = 0; k < 32; k++)
                    sum += m.a8[r][k] * m.b8[k][c];
                for (int k = 0; k < 16; k++) {
                    bf16 += (double)widen_bf16(m.a16[r][k]) * (double)widen_bf16(m.b16[k][c]);
                    f16 += (double)widen_f16(m.a16[r][k]) * (double)widen_f16(m.b16[k][c]);
                    f16_k8 = k < 8 ? f16 : f16_k8;
                }
                assert_int_equal(p->s8[r][c], sum);
                assert_true(p->bf16[r][c] == (float)bf16 && p->f16[r][c] == (float)f16);
                assert_true(p->f16_k8[r][c] == (float)f16_k8);
            }
        for (int i = 0; i < 256; i++) {
            assert_int_equal(p->plain[i / 64][i / 8 % 8][i % 8], m.tiles[i / 64][i / 8 % 8][i % 8]);
            assert_int_equal(p->transposed[i / 64][i / 8 % 8][i % 8], m.tiles[i / 64][i % 8][i / 8 % 8]);
        }
        free(p);
        CHECK(cudaFree(from));
        CHECK(cudaFree(to));
    }
}

__global__ static void count(unsigned *counter, float *sum)
{
    if (atomicAdd(counter, 1u) % 2)
        atomicAdd(sum, 0.5f);
}

static void test_atomics(void **)
{
    unsigned *counter = (unsigned *)support_device(nullptr, 4);
    float *sum = (float *)support_device(nullptr, 4);
    CHECK(cudaMemset(counter, 0, 4));
    CHECK(cudaMemset(sum, 0, 4));
    CHECK(launch(count, 3, 40, 0, nullptr, counter, sum));
    unsigned *h = (unsigned *)support_fetch(counter, 4);
    float *s = (float *)support_fetch(sum, 4);
    assert_int_equal(*h, 120);
    assert_true(*s == 30.0f);
    free(h);
    free(s);
    CHECK(cudaFree(counter));
    CHECK(cudaFree(sum));
}

static void test_16_bit_floats(void **)
{
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        float x = widen_f16((uint16_t)bits), y = widen_bf16((uint16_t)bits);
        if (x == x)
            assert_int_equal(narrow_f16(x), bits);
        else
            assert_true(widen_f16(narrow_f16(x)) != widen_f16(narrow_f16(x)));
        if (y == y)
            assert_int_equal(narrow_bf16(y), bits);
    }
    assert_int_equal(narrow_f16(65519.9f), 0x7bff);
    assert_int_equal(narrow_f16(65520.0f), 0x7c00);
    assert_int_equal(narrow_f16(0x1.8p-24f), 2); /* halfway, to even */
    for (int i = 0; i < 256; i++)
        for (int place = 0; place < 4; place++)
            assert_true(byte_float((uint32_t)i << 8 * place | (i ? 0 : 0x00010000u * (place == 0)), place) == (float)i);
    assert_true(biased_float(MMA_BIAS - 520192) == -520192.0f && biased_float(MMA_BIAS + 7) == 7.0f);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_indices),
    cmocka_unit_test(test_barriers),
    cmocka_unit_test(test_missing_barrier_changes_results),
    cmocka_unit_test(test_races_are_found),
    cmocka_unit_test(test_waiting_apart_is_found),
    cmocka_unit_test(test_past_the_end_is_found),
    cmocka_unit_test(test_shared_is_new_in_each_block),
    cmocka_unit_test(test_async_copies),
    cmocka_unit_test(test_warp_operations),
    cmocka_unit_test(test_matrix_instructions),
    cmocka_unit_test(test_atomics),
    cmocka_unit_test(test_16_bit_floats),
};

int main(void)
{
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
