/* rope.cu - rotary positions: their table, a block per token, and rotating by it, a block per token and head; a thread
 * per pair. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/functions.h"

#define THREADS 64

static __global__ void __launch_bounds__(THREADS)
    fill_table(const int32_t *pos, const double *inv_freq, int half, double magnitude, const float *scale, float *table)
{
    wait_for_earlier();
    table += (size_t)blockIdx.x * half * 2;
    for (int i = threadIdx.x; i < half; i += THREADS) {
        double n, c;
        turn(pos[blockIdx.x] * inv_freq[i], &n, &c);
        float cosine = (float)(c * magnitude), sine = (float)(n * magnitude);
        table[2 * i] = scale ? cosine * scale[blockIdx.x] : cosine;
        table[2 * i + 1] = scale ? sine * scale[blockIdx.x] : sine;
    }
}

/* A pair is (i * step, i * step + away). */
static __global__ void __launch_bounds__(THREADS)
    rotate(float *x, int head_dim, int half, int step, int away, const float *table)
{
    wait_for_earlier();
    float *head = x + ((size_t)blockIdx.y * gridDim.x + blockIdx.x) * head_dim;
    const float *turn = table + (size_t)blockIdx.y * half * 2;
    for (int i = threadIdx.x; i < half; i += THREADS) {
        float a = head[i * step], b = head[i * step + away], c = turn[2 * i], n = turn[2 * i + 1];
        head[i * step] = fmaf(a, c, -(b * n));
        head[i * step + away] = fmaf(b, c, a * n);
    }
}

/* Rows lie along the grid's y, which ends at 65535: more come in further launches. */
#define MOST_ROWS 65535

int cuda_rope(cudaStream_t s, float *x, int n, int heads, int head_dim, int rot, enum kernels_rope_kind kind,
              const float *table)
{
    int half = rot / 2, step = kind == KERNELS_ROPE_PAIRS ? 2 : 1, away = kind == KERNELS_ROPE_PAIRS ? 1 : half;
    int error = 0;
    for (int first = 0; first < n && !error; first += MOST_ROWS) {
        int rows = n - first < MOST_ROWS ? n - first : MOST_ROWS;
        error = launched(launch(rotate, dim3(heads, rows), THREADS, 0, s, x + (size_t)first * heads * head_dim,
                                head_dim, half, step, away, table + (size_t)first * half * 2));
    }
    return error;
}

int cuda_rope_table(cudaStream_t s, const int32_t *pos, int n, const double *inv_freq, int rot, double magnitude,
                    const float *scale, float *table)
{
    return n <= 0 ? 0 : launched(launch(fill_table, n, THREADS, 0, s, pos, inv_freq, rot / 2, magnitude, scale, table));
}
