/* device.h - what CUDA code needs beyond C++ and the runtime, in one place: shared arrays, inline PTX, 16-bit floats.
 *
 * .cu files are compiled twice: by nvcc for a GPU, and as plain C++ against tests/cuda_host, which emulates the
 * execution model. This header alone knows which of the two it is, so no other file writes __shared__, asm or <<< >>>.
 * Kernels are launched with launch() below.
 *
 * Rounding: nvcc runs with -fmad=false, so that what is written is what is computed: fmaf() where one is meant,
 * otherwise each operation rounds. No fast-math flag, no approximate intrinsic, subnormals kept.
 */
#ifndef CONVOD_KERNELS_CUDA_DEVICE_H
#define CONVOD_KERNELS_CUDA_DEVICE_H

#include <cuda_runtime.h> /* the emulation's brings what stands in for the hardware below */
#include <stdint.h>

#define WARP      32
#define ALL_LANES 0xffffffffu

/* Threads of a block that has as many as are of use, and blocks that keep a device busy; the emulation is slow with
 * many. */
#ifdef __CUDACC__
#define MANY_THREADS 512
#define MANY_BLOCKS  128
#define DEVICE_NAME  "cuda"
#define NVML_LIBRARY "libnvidia-ml.so.1"
#define LT_LIBRARY   (CUDART_VERSION >= 13000 ? "libcublasLt.so.13" : "libcublasLt.so.12")
#define TEST_ROWS    2048 /* of a library's test */
#else
#define MANY_THREADS 64
#define MANY_BLOCKS  2
#define DEVICE_NAME  "cuda_host"
#define NVML_LIBRARY NULL /* the emulation has it, and cuBLASLt too */
#define LT_LIBRARY   ""
#define TEST_ROWS    136
#endif

/* Blocks that a kernel with many registers keeps on a multiprocessor: earlier chips' compilers spill with so few. */
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ < 900
#define BLOCKS_BESIDE 1
#else
#define BLOCKS_BESIDE 2
#endif

/* Whether a kernel may begin while the one before it in its stream still runs (programmatic dependent launch), and then
 * waits where it says so. Set when a device is opened, before anything is launched there; false: one after the other.
 */
inline bool launch_overlaps = false;

/* That the next launch does not all the same: something beside an earlier kernel must be there before it begins. */
inline bool launch_waits = false;

/* Starts kernel(arguments...); arguments are converted to the kernel's parameters. The error of a launch that could not
 * be made; what goes wrong inside comes with a later call. Every kernel calls wait_for_earlier(). */
template <typename... P, typename... A>
static inline cudaError_t launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                                 A... arguments)
{
    cudaLaunchAttribute overlap = {};
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = &overlap;
    config.numAttrs = launch_overlaps && !launch_waits ? 1 : 0;
    launch_waits = false;
    return cudaLaunchKernelEx(&config, kernel, static_cast<P>(arguments)...);
}

/* Waits until all earlier kernels of the stream have ended and what they wrote can be seen; from then on the next one
 * may begin in turn. All threads call it, once; before it a kernel reads only what no kernel of a step writes
 * (weights; those that a step copies are there before any kernel behind the copy begins), and writes to nothing but its
 * shared memory. That every kernel waits is what makes one that has ended speak for all before it. */
__device__ __forceinline__ void wait_for_earlier(void)
{
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#elif !defined __CUDACC__
    cuda_host_wait_for_earlier();
#endif
}

/* ---- shared memory ----------------------------------------------------------------------------------------------- */

/* SHARED(float, tile, [4][32]) declares `float tile[4][32]`, shared by the block and aligned to 16 bytes. */
/* SHARED_DYNAMIC(tile) declares `unsigned char tile[]`, as long as the launch says. */
#ifdef __CUDACC__
#define SHARED(type, name, dims) __shared__ __align__(16) type name dims
#define SHARED_DYNAMIC(name)     extern __shared__ __align__(16) unsigned char name[]
#else
#define SHARED(type, name, dims)                                                                                       \
    typedef type name##_array dims;                                                                                    \
    static const char name##_site = 0;                                                                                 \
    name##_array &name = *(name##_array *)cuda_host_shared(&name##_site, sizeof(name##_array))
#define SHARED_DYNAMIC(name) unsigned char *name = (unsigned char *)cuda_host_shared_dynamic()
#endif

/* Copies 16 bytes from global to shared memory behind the thread's back, both aligned to 16. They are there for this
 * thread after commit and a wait that leaves fewer groups open, and for others after a barrier behind that. */
__device__ __forceinline__ void copy_async_16(void *to, const void *from)
{
#ifdef __CUDACC__
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from)
                 : "memory");
#else
    cuda_host_cp_async(to, from, 16, 16);
#endif
}

/* The same with zeros instead of what is there, unless `real`; `from` must be readable all the same. */
__device__ __forceinline__ void copy_async_16_or_zero(void *to, const void *from, bool real)
{
#ifdef __CUDACC__
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(real ? 16 : 0)
                 : "memory");
#else
    cuda_host_cp_async(to, from, 16, real ? 16 : 0);
#endif
}

__device__ __forceinline__ void copy_async_commit(void)
{
#ifdef __CUDACC__
    asm volatile("cp.async.commit_group;" ::: "memory");
#else
    cuda_host_cp_async_commit();
#endif
}

/* Waits until at most `groups_left` of the committed groups are open. */
template <int groups_left> __device__ __forceinline__ void copy_async_wait(void)
{
#ifdef __CUDACC__
    asm volatile("cp.async.wait_group %0;" ::"n"(groups_left) : "memory");
#else
    cuda_host_cp_async_wait(groups_left);
#endif
}

/* ---- matrix instructions ----------------------------------------------------------------------------------------- */

/* d = a * b + c for 16 x 8 results by a whole warp; fragments as PTX's mma defines them. Integers are exact (they
 * wrap); floats are added in an order that is the chip's own. */

/* 32 int8 values deep. */
__device__ __forceinline__ void mma_s8(int d[4], const uint32_t a[4], const uint32_t b[2], const int c[4])
{
#ifdef __CUDACC__
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
#else
    cuda_host_mma_s8(d, a, b, c);
#endif
}

/* 16 deep. */
__device__ __forceinline__ void mma_s8_k16(int d[4], const uint32_t a[2], const uint32_t b[1], const int c[4])
{
#ifdef __CUDACC__
    asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%8,%9,%10};"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
#else
    cuda_host_mma_s8_k16(d, a, b, c);
#endif
}

/* 16 values deep. */
__device__ __forceinline__ void mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4])
{
#ifdef __CUDACC__
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
#else
    cuda_host_mma_bf16(d, a, b, c);
#endif
}

__device__ __forceinline__ void mma_f16(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4])
{
#ifdef __CUDACC__
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
#else
    cuda_host_mma_f16(d, a, b, c);
#endif
}

/* 8 values deep. */
__device__ __forceinline__ void mma_f16_k8(float d[4], const uint32_t a[2], const uint32_t b[1], const float c[4])
{
#ifdef __CUDACC__
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%8,%9,%10};"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b[0]), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
#else
    cuda_host_mma_f16_k8(d, a, b, c);
#endif
}

/* Four 8 x 8 matrices of 16-bit values from shared memory; lane i gives the address of row i % 8 of matrix i / 8. */
__device__ __forceinline__ void load_matrices(uint32_t d[4], const void *row)
{
#ifdef __CUDACC__
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
#else
    cuda_host_ldmatrix(d, 4, false, row);
#endif
}

__device__ __forceinline__ void load_matrices_transposed(uint32_t d[4], const void *row)
{
#ifdef __CUDACC__
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
#else
    cuda_host_ldmatrix(d, 4, true, row);
#endif
}

/* ---- 16-bit floats ----------------------------------------------------------------------------------------------- */

__device__ __forceinline__ float widen_bf16(uint16_t bits)
{
    return __uint_as_float((uint32_t)bits << 16);
}

/* Nearest even; a NaN stays one. */
__device__ __forceinline__ uint16_t narrow_bf16(float x)
{
    uint32_t u = __float_as_uint(x);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

__device__ __forceinline__ float widen_f16(uint16_t bits)
{
#ifdef __CUDACC__
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
#else
    return cuda_host_widen_f16(bits);
#endif
}

/* Nearest even; infinity from 65520 on, subnormals kept, a NaN stays one. */
__device__ __forceinline__ uint16_t narrow_f16(float x)
{
#ifdef __CUDACC__
    uint16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
#else
    return cuda_host_narrow_f16(x);
#endif
}

/* Byte i of a word as a float: it is put under the exponent of 2^23, which is then taken off. Exact, and no conversion,
 * of which a chip does few per clock. */
__device__ __forceinline__ float byte_float(uint32_t word, int i)
{
    return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440u + (uint32_t)i)) - 8388608.0f;
}

/* The same of a signed byte: with its sign turned over it is 128 more. */
__device__ __forceinline__ float signed_byte_float(uint32_t word, int i)
{
    return byte_float(word ^ 0x80808080u, i) - 128.0f;
}

/* With MMA_BIAS as c, the sum I of mma_s8 comes out as the bits of the float 1.5 * 2^23 + I; exact for |I| < 2^22. */
#define MMA_BIAS 0x4b400000
__device__ __forceinline__ float biased_float(int biased)
{
    return __int_as_float(biased) - 12582912.0f;
}

#endif
