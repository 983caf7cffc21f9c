/* norm.cu - RMS norms. A row is a block; its first 16 threads are the virtual lanes of the sum, all scale. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/functions.h"

#define THREADS 128

static __global__ void __launch_bounds__(THREADS)
    norm_row(const float *x, int d, const float *weight, float eps, float *y)
{
    wait_for_earlier();
    SHARED(float, factor, [1]);
    const float *in = x + (size_t)blockIdx.x * d;
    float *out = y + (size_t)blockIdx.x * d;
    if (threadIdx.x < WARP) {
        float sum = 0;
        if (threadIdx.x < VIRTUAL_LANES)
            for (int i = threadIdx.x; i < d; i += VIRTUAL_LANES)
                sum = fmaf(in[i], in[i], sum);
        sum = lane_tree(sum);
        if (threadIdx.x == 0)
            factor[0] = 1.0f / sqrtf(sum / (float)d + eps);
    }
    __syncthreads();
    float r = factor[0];
    for (int i = threadIdx.x; i < d; i += THREADS)
        out[i] = (in[i] * r) * weight[i];
}

int cuda_rms_norm(cudaStream_t s, const float *x, int rows, int d, const float *weight, float eps, float *y)
{
    return rows <= 0 ? 0 : launched(launch(norm_row, rows, THREADS, 0, s, x, d, weight, eps, y));
}
