/* rows.cu - rows by their number: of the embedding, dequantized from the bytes of its file, and of a batch. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/functions.h"

#define THREADS 128

static __device__ float half_at(const uint8_t *p)
{
    return widen_f16((uint16_t)(p[0] | p[1] << 8));
}

/* Value v of 32 in nibbles, low half first, with its fifth bit where `high` is. */
static __device__ int nibble(const uint8_t *nibbles, const uint8_t *high, int v)
{
    int q = v < 16 ? nibbles[v] & 15 : nibbles[v - 16] >> 4;
    return high ? q | (high[v / 8] >> v % 8 & 1) << 4 : q;
}

/* Value v of 256 of Q4_K and Q5_K: q * (d * scale) - dmin * min. */
static __device__ float k_value(const uint8_t *b, const uint8_t *high, const uint8_t *nibbles, int v)
{
    const uint8_t *scales = b + 4;
    int j = v / 32, i = v % 32, scale, min;
    if (j < 4) {
        scale = scales[j] & 63;
        min = scales[j + 4] & 63;
    } else {
        scale = (scales[j + 4] & 15) | (scales[j - 4] >> 6) << 4;
        min = scales[j + 4] >> 4 | (scales[j] >> 6) << 4;
    }
    int q = nibbles[j / 2 * 32 + i] >> (j % 2 * 4) & 15;
    if (high)
        q |= (high[i] >> j & 1) << 4;
    float s = half_at(b) * (float)scale, m = half_at(b + 2) * (float)min;
    return s * (float)q - m;
}

static __device__ float six_value(const uint8_t *b, int v)
{
    int half = v / 128, quarter = v % 128 / 32, l = v % 32;
    int low = b[half * 64 + quarter % 2 * 32 + l] >> (quarter / 2 * 4) & 15;
    int high = b[128 + half * 32 + l] >> (quarter * 2) & 3;
    return half_at(b + 208) * (float)(int8_t)b[192 + v / 16] * (float)((low | high << 4) - 32);
}

/* Value v of a block of the type, as it lies in a file. */
static __device__ float value_of(enum kernels_type type, const uint8_t *b, int v)
{
    switch (type) {
    case KERNELS_F32:
        return __uint_as_float(b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24);
    case KERNELS_F16:
        return half_at(b);
    case KERNELS_BF16:
        return widen_bf16((uint16_t)(b[0] | b[1] << 8));
    case KERNELS_Q8_0:
        return (float)(int8_t)b[2 + v] * half_at(b);
    case KERNELS_Q4_0: /* with a minimum of 0, whose sum is never -0 */
        return (float)(nibble(b + 2, NULL, v) - 8) * half_at(b) + 0.0f;
    case KERNELS_Q4_1:
        return (float)nibble(b + 4, NULL, v) * half_at(b) + half_at(b + 2);
    case KERNELS_Q5_0:
        return (float)(nibble(b + 6, b + 2, v) - 16) * half_at(b) + 0.0f;
    case KERNELS_Q5_1:
        return (float)nibble(b + 8, b + 4, v) * half_at(b) + half_at(b + 2);
    case KERNELS_Q4_K:
        return k_value(b, NULL, b + 16, v);
    case KERNELS_Q5_K:
        return k_value(b, b + 16, b + 48, v);
    default:
        return six_value(b, v);
    }
}

static __global__ void __launch_bounds__(THREADS)
    embed_row(struct cuda_table w, int block_values, int block_bytes, const int32_t *ids, float scale, float *out)
{
    const uint8_t *row = w.data + (size_t)ids[blockIdx.x] * (w.cols / block_values) * block_bytes;
    for (int i = threadIdx.x; i < w.cols; i += THREADS)
        out[(size_t)blockIdx.x * w.cols + i] =
            scale * value_of(w.type, row + (size_t)(i / block_values) * block_bytes, i % block_values);
}

static __global__ void __launch_bounds__(THREADS) gather_row(const float *x, int d, const int32_t *rows, float *out)
{
    const float *from = x + (size_t)rows[blockIdx.x] * d;
    for (int i = threadIdx.x; i < d; i += THREADS)
        out[(size_t)blockIdx.x * d + i] = from[i];
}

int cuda_embed(cudaStream_t s, struct cuda_table w, const int32_t *ids, int n, float scale, float *out)
{
    const struct kernels_type_info *info = kernels_type_info(w.type);
    return n <= 0 ? 0
                  : launched(
                        launch(embed_row, n, THREADS, 0, s, w, info->block_values, info->block_bytes, ids, scale, out));
}

int cuda_gather(cudaStream_t s, const float *x, int d, const int32_t *rows, int n, float *out)
{
    return n <= 0 ? 0 : launched(launch(gather_row, n, THREADS, 0, s, x, d, rows, out));
}
