/* glu.cu - gated activations, sums and caps, value by value. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/functions.h"

#define THREADS     256
#define MOST_BLOCKS 4096 /* a thread takes several values where there are more */

static __device__ float gated(enum kernels_glu_kind kind, float x, float up)
{
    const float limit = KERNELS_SWIGLU_LIMIT;
    float e;
    if (kind == KERNELS_SILU) {
        e = exp_one(-x);
    } else if (kind == KERNELS_GELU_TANH) {
        e = exp_one(-(KERNELS_GELU_2U * fmaf(KERNELS_GELU_CUBE * (x * x), x, x)));
    } else {
        x = x > limit ? limit : x; /* a NaN stays */
        up = (up > limit ? limit : up < -limit ? -limit : up) + 1.0f;
        e = exp_one(-KERNELS_SWIGLU_ALPHA * x);
    }
    return x / (1.0f + e) * up;
}

static __global__ void __launch_bounds__(THREADS)
    glu_all(enum kernels_glu_kind kind, const float *gate, const float *up, size_t n, float *out)
{
    wait_for_earlier();
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += (size_t)gridDim.x * THREADS)
        out[i] = gated(kind, gate[i], up[i]);
}

static __global__ void __launch_bounds__(THREADS) add_all(float *x, const float *y, size_t n)
{
    wait_for_earlier();
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += (size_t)gridDim.x * THREADS)
        x[i] += y[i];
}

static __global__ void __launch_bounds__(THREADS) softcap_all(float *x, size_t n, float cap)
{
    wait_for_earlier();
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += (size_t)gridDim.x * THREADS)
        x[i] = cap * tanh_one(x[i] / cap);
}

static unsigned blocks_for(size_t n)
{
    size_t blocks = (n + THREADS - 1) / THREADS;
    return (unsigned)(blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS);
}

int cuda_glu(cudaStream_t s, enum kernels_glu_kind kind, const float *gate, const float *up, size_t n, float *out)
{
    return n == 0 ? 0 : launched(launch(glu_all, blocks_for(n), THREADS, 0, s, kind, gate, up, n, out));
}

int cuda_add(cudaStream_t s, float *x, const float *y, size_t n)
{
    return n == 0 ? 0 : launched(launch(add_all, blocks_for(n), THREADS, 0, s, x, y, n));
}

int cuda_softcap(cudaStream_t s, float *x, size_t n, float cap)
{
    return n == 0 ? 0 : launched(launch(softcap_all, blocks_for(n), THREADS, 0, s, x, n, cap));
}
