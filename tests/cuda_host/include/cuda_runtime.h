/* cuda_runtime.h - stands in for NVIDIA's header of this name when .cu files are compiled as C++ for the emulation: the
 * types, built-in variables, device functions and runtime calls that they use, and no others.
 *
 * What a kernel sees is in the first half, what the host calls in the second. Where NVIDIA's documentation leaves
 * something to the hardware, the emulation does what shows a mistake soonest; cuda_host.h says how.
 *
 * Device code has two things that C++ has not, shared arrays and inline PTX. Both are behind kernels/cuda/device.h, so
 * that __shared__ and asm are not to be written anywhere else and do not compile here.
 */
#ifndef CUDA_HOST_RUNTIME_H
#define CUDA_HOST_RUNTIME_H

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

#define CUDART_VERSION 13000

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

/* ---- vectors ----------------------------------------------------------------------------------------------------- */

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned in_x = 1, unsigned in_y = 1, unsigned in_z = 1) : x(in_x), y(in_y), z(in_z)
    {
    }
};
struct alignas(8) int2 {
    int x, y;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
static inline uint2 make_uint2(unsigned x, unsigned y)
{
    return {x, y};
}
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return {x, y, z, w};
}
static inline float2 make_float2(float x, float y)
{
    return {x, y};
}
static inline float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}

/* ---- a thread's view --------------------------------------------------------------------------------------------- */

/* Of the thread that runs. */
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
#define warpSize 32

void cuda_host_barrier(const char *file, int line);
#define __syncthreads() cuda_host_barrier(__FILE__, __LINE__)
void __syncwarp(unsigned mask = 0xffffffffu);
static inline void __threadfence()
{
}

/* What the lanes of a warp put in, one slot each; valid until the caller's next warp operation. */
struct cuda_host_lanes {
    alignas(16) unsigned char value[32][64];
};
enum cuda_host_warp_op { CUDA_HOST_SHUFFLE, CUDA_HOST_VOTE, CUDA_HOST_SYNCWARP, CUDA_HOST_MMA, CUDA_HOST_LDMATRIX };
const struct cuda_host_lanes *cuda_host_gather(unsigned mask, enum cuda_host_warp_op op, const void *value,
                                               size_t bytes);
int cuda_host_lane(void);

/* Lane `from` of the segment of `width` lanes that the caller is in; a lane outside of it or of the mask is a fault. */
const void *cuda_host_shuffled(const struct cuda_host_lanes *lanes, unsigned mask, int from);

template <typename T> static inline T cuda_host_shuffle(unsigned mask, T value, int from)
{
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 32 or 64 bits");
    const struct cuda_host_lanes *lanes = cuda_host_gather(mask, CUDA_HOST_SHUFFLE, &value, sizeof(value));
    memcpy(&value, cuda_host_shuffled(lanes, mask, from), sizeof(value));
    return value;
}
template <typename T> static inline T __shfl_sync(unsigned mask, T value, int from, int width = 32)
{
    return cuda_host_shuffle(mask, value, (cuda_host_lane() & ~(width - 1)) | (from & (width - 1)));
}
template <typename T> static inline T __shfl_xor_sync(unsigned mask, T value, int flip, int width = 32)
{
    int lane = cuda_host_lane(), from = lane ^ flip;
    return cuda_host_shuffle(mask, value, from / width > lane / width ? lane : from);
}
template <typename T> static inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32)
{
    int lane = cuda_host_lane(), from = lane + (int)by;
    return cuda_host_shuffle(mask, value, from / width != lane / width ? lane : from);
}
template <typename T> static inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32)
{
    int lane = cuda_host_lane(), from = lane - (int)by;
    return cuda_host_shuffle(mask, value, from < 0 || from / width != lane / width ? lane : from);
}
unsigned __ballot_sync(unsigned mask, int predicate);
static inline int __any_sync(unsigned mask, int predicate)
{
    return __ballot_sync(mask, predicate) != 0;
}
static inline int __all_sync(unsigned mask, int predicate)
{
    return __ballot_sync(mask, predicate) == mask;
}

/* Threads are never interrupted between two points where they wait, so plain operations are atomic. The emulation does
 * them itself: they are no accesses that its checks see. */
unsigned atomicAdd(unsigned *p, unsigned value);
unsigned long long atomicAdd(unsigned long long *p, unsigned long long value);
int atomicAdd(int *p, int value);
float atomicAdd(float *p, float value);
unsigned atomicMax(unsigned *p, unsigned value);
unsigned atomicOr(unsigned *p, unsigned value);
unsigned atomicCAS(unsigned *p, unsigned compare, unsigned value);

/* ---- device functions -------------------------------------------------------------------------------------------- */

static inline unsigned __float_as_uint(float x)
{
    unsigned u;
    memcpy(&u, &x, 4);
    return u;
}
static inline float __uint_as_float(unsigned u)
{
    float x;
    memcpy(&x, &u, 4);
    return x;
}
static inline long long __double_as_longlong(double x)
{
    long long bits;
    memcpy(&bits, &x, 8);
    return bits;
}
static inline int __float_as_int(float x)
{
    return (int)__float_as_uint(x);
}
static inline float __int_as_float(int i)
{
    return __uint_as_float((unsigned)i);
}
static inline int __float2int_rn(float x)
{
    return (int)lrintf(x);
}
static inline unsigned long long __float2ull_rn(float x)
{
    return (unsigned long long)llrintf(x);
}
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned select)
{
    uint64_t bytes = (uint64_t)b << 32 | a;
    unsigned out = 0;
    for (int i = 0; i < 4; i++)
        out |= (unsigned)(bytes >> (select >> (4 * i) & 7) * 8 & 0xff) << 8 * i;
    return out;
}
static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
static inline int __dp4a(int a, int b, int c)
{
    for (int i = 0; i < 4; i++)
        c += (int)(int8_t)(a >> 8 * i) * (int)(int8_t)(b >> 8 * i);
    return c;
}
template <typename T> static inline T __ldg(const T *p)
{
    return *p;
}
static inline int min(int a, int b)
{
    return a < b ? a : b;
}
static inline int max(int a, int b)
{
    return a > b ? a : b;
}
static inline unsigned min(unsigned a, unsigned b)
{
    return a < b ? a : b;
}
static inline unsigned max(unsigned a, unsigned b)
{
    return a > b ? a : b;
}

/* ---- the runtime ------------------------------------------------------------------------------------------------- */

enum cudaError {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorNotReady = 600,
    cudaErrorLaunchFailure = 719,
    cudaErrorStreamCaptureUnsupported = 900,
    cudaErrorStreamCaptureInvalidated = 901,
    cudaErrorStreamCaptureUnjoined = 904,
};
typedef enum cudaError cudaError_t;
const char *cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError(void);

typedef struct cuda_host_stream *cudaStream_t;
typedef struct cuda_host_event *cudaEvent_t;
typedef struct cuda_host_graph *cudaGraph_t;
typedef struct cuda_host_graph *cudaGraphExec_t;

typedef struct {
    char bytes[16];
} cudaUUID_t;
struct cudaDeviceProp {
    char name[256];
    cudaUUID_t uuid;
    size_t totalGlobalMem, sharedMemPerBlockOptin;
    int major, minor, multiProcessorCount, l2CacheSize, ECCEnabled;
};
enum cudaDeviceAttr {
    cudaDevAttrClockRate = 13,
    cudaDevAttrMemoryClockRate = 36,
    cudaDevAttrGlobalMemoryBusWidth = 37
};
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device);
cudaError_t cudaDeviceGetPCIBusId(char *address, int size, int device);
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device);
cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaRuntimeGetVersion(int *version);
cudaError_t cudaMemGetInfo(size_t *free, size_t *total);
cudaError_t cudaDeviceSynchronize(void);

enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaMemcpyDefault };
cudaError_t cudaMalloc(void **p, size_t bytes);
cudaError_t cudaFree(void *p);
cudaError_t cudaMallocHost(void **p, size_t bytes);
cudaError_t cudaFreeHost(void *p);
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t s = NULL);
cudaError_t cudaMemset(void *p, int value, size_t bytes);
cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t s = NULL);
template <typename T> static inline cudaError_t cudaMalloc(T **p, size_t bytes)
{
    return cudaMalloc((void **)p, bytes);
}
template <typename T> static inline cudaError_t cudaMallocHost(T **p, size_t bytes)
{
    return cudaMallocHost((void **)p, bytes);
}

#define cudaStreamNonBlocking 1
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t s);
cudaError_t cudaStreamSynchronize(cudaStream_t s);
cudaError_t cudaStreamQuery(cudaStream_t s);
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags = 0);

#define cudaEventDisableTiming 2
cudaError_t cudaEventCreate(cudaEvent_t *e);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t e);
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s = NULL);
cudaError_t cudaEventSynchronize(cudaEvent_t e);
cudaError_t cudaEventQuery(cudaEvent_t e);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to);

enum cudaStreamCaptureMode {
    cudaStreamCaptureModeGlobal,
    cudaStreamCaptureModeThreadLocal,
    cudaStreamCaptureModeRelaxed
};
cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph);
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);

/* ---- launches ---------------------------------------------------------------------------------------------------- */

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
cudaError_t cuda_host_function_shared(const void *kernel, int bytes);
template <typename... P>
static inline cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), enum cudaFuncAttribute, int value)
{
    return cuda_host_function_shared((const void *)kernel, value);
}

enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization = 6 };
typedef union cudaLaunchAttributeValue {
    int programmaticStreamSerializationAllowed;
} cudaLaunchAttributeValue;
typedef struct cudaLaunchAttribute {
    enum cudaLaunchAttributeID id;
    cudaLaunchAttributeValue val;
} cudaLaunchAttribute;
typedef struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute *attrs;
    unsigned numAttrs;
} cudaLaunchConfig_t;

cudaError_t cuda_host_launch(const cudaLaunchConfig_t *c, const void *kernel, std::function<void()> thread);

/* Arguments are converted to the kernel's parameters now, as a launch does; the kernel itself runs later. */
template <typename... P, typename... A>
static inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *c, void (*kernel)(P...), A &&...arguments)
{
    std::tuple<typename std::decay<P>::type...> kept(std::forward<A>(arguments)...);
    return cuda_host_launch(c, (const void *)kernel, [kernel, kept] { std::apply(kernel, kept); });
}

#include "tests/cuda_host/cuda_host.h"

#endif
