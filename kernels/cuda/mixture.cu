/* mixture.cu - mixtures of experts: which experts a row asks, with which weights, and the sum of what they said. A warp
 * has one row; an expert's products are those of any matrix. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/functions.h"

#define THREADS 128

/* Whether expert a comes before b: a NaN before all, then the larger logit, then the lower id. -1 is none. */
static __device__ bool before(const float *logits, int a, int b)
{
    if (a < 0 || b < 0)
        return a >= 0;
    bool nan_a = logits[a] != logits[a], nan_b = logits[b] != logits[b];
    if (nan_a || nan_b)
        return nan_a && (!nan_b || a < b);
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

static __global__ void __launch_bounds__(WARP)
    choose(const float *all_logits, int experts, int used, int32_t *all_ids, float *all_weights)
{
    wait_for_earlier();
    SHARED(float, chosen, [KERNELS_MAX_EXPERTS_USED]);
    const float *logits = all_logits + (size_t)blockIdx.x * experts;
    int32_t *ids = all_ids + (size_t)blockIdx.x * used;
    int lane = threadIdx.x;
    uint32_t taken = 0; /* of the lane's experts, bit expert / WARP */
    for (int rank = 0; rank < used; rank++) {
        int best = -1;
        for (int e = lane; e < experts; e += WARP)
            if (!(taken >> (e / WARP) & 1) && before(logits, e, best))
                best = e;
        for (int flip = 1; flip < WARP; flip *= 2) {
            int other = __shfl_xor_sync(ALL_LANES, best, flip);
            best = before(logits, other, best) ? other : best;
        }
        if (best % WARP == lane) {
            taken |= 1u << (best / WARP);
            ids[rank] = best;
            chosen[rank] = logits[best];
        }
    }
    __syncwarp();
    float most = -infinity();
    bool broken = false;
    for (int i = lane; i < used; i += WARP) {
        most = chosen[i] > most ? chosen[i] : most;
        broken = broken || !(fabsf(chosen[i]) < infinity());
    }
    for (int flip = 1; flip < WARP; flip *= 2) {
        float other = __shfl_xor_sync(ALL_LANES, most, flip);
        most = other > most ? other : most;
    }
    broken = __any_sync(ALL_LANES, broken) != 0;
    float sum = 0;
    if (lane < VIRTUAL_LANES)
        for (int i = lane; i < used; i += VIRTUAL_LANES)
            sum += exp_one(chosen[i] - most);
    sum = __shfl_sync(ALL_LANES, lane_tree(sum), 0);
    for (int i = lane; i < used; i += WARP)
        all_weights[(size_t)blockIdx.x * used + i] = exp_one(chosen[i] - most) / (broken ? not_a_number() : sum);
}

/* A block per row; y[row] += the sum over its experts, in the order in which it chose them. */
static __global__ void __launch_bounds__(THREADS)
    add_said(const float *said, const int32_t *all_places, const float *all_weights, int used, int cols, float *y)
{
    wait_for_earlier();
    const float *weights = all_weights + (size_t)blockIdx.x * used;
    const int32_t *places = all_places + (size_t)blockIdx.x * used;
    for (int i = threadIdx.x; i < cols; i += THREADS) {
        float sum = weights[0] * said[(size_t)places[0] * cols + i];
        for (int r = 1; r < used; r++)
            sum += weights[r] * said[(size_t)places[r] * cols + i];
        y[(size_t)blockIdx.x * cols + i] += sum;
    }
}

/* One block: counts, places for whole tiles, then each slot's place. */
static __global__ void __launch_bounds__(THREADS)
    sort(const int32_t *ids, int slots, int used, int experts, int32_t *places, int32_t *sources, int32_t *tiles)
{
    wait_for_earlier();
    SHARED(int, at, [KERNELS_MAX_EXPERTS]);
    SHARED(int, sum, [THREADS]);
    int each = (experts + THREADS - 1) / THREADS, first = threadIdx.x * each, end = min(first + each, experts), own = 0;
    for (int e = threadIdx.x; e < experts; e += THREADS)
        at[e] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < slots; i += THREADS)
        atomicAdd(&at[ids[i]], 1);
    __syncthreads();
    for (int e = first; e < end; e++)
        own += (at[e] + 7) / 8;
    sum[threadIdx.x] = own;
    __syncthreads();
    int tile = 0;
    for (int i = 0; i < (int)threadIdx.x; i++)
        tile += sum[i];
    for (int e = first; e < end; e++) {
        int next = tile + (at[e] + 7) / 8;
        for (int i = tile * 8 + at[e]; i < next * 8; i++)
            sources[i] = -1;
        tiles[e] = tile;
        at[e] = tile * 8;
        tile = next;
    }
    if (threadIdx.x == THREADS - 1)
        tiles[experts] = tile;
    __syncthreads();
    for (int i = threadIdx.x; i < slots; i += THREADS) {
        int place = atomicAdd(&at[ids[i]], 1);
        places[i] = place;
        sources[place] = i / used;
    }
}

static __global__ void __launch_bounds__(THREADS)
    take_row(const float *x, int d, const int32_t *sources, const int32_t *tiles, float *out)
{
    wait_for_earlier();
    if ((int)blockIdx.x >= tiles[0] * 8)
        return;
    int source = sources[blockIdx.x];
    for (int i = threadIdx.x; i < d; i += THREADS)
        out[(size_t)blockIdx.x * d + i] = source < 0 ? 0.0f : x[(size_t)source * d + i];
}

int cuda_route(cudaStream_t s, const float *logits, int n, int experts, int used, int32_t *ids, float *weights)
{
    return n <= 0 ? 0 : launched(launch(choose, n, WARP, 0, s, logits, experts, used, ids, weights));
}

int cuda_mix(cudaStream_t s, const float *said, const int32_t *places, const float *weights, int n, int used, int cols,
             float *y)
{
    return n <= 0 ? 0 : launched(launch(add_said, n, THREADS, 0, s, said, places, weights, used, cols, y));
}

int cuda_mixture_places(int n, int used, int experts)
{
    int64_t slots = (int64_t)n * used, most = slots + 7 * (slots < experts ? slots : experts);
    return (int)((most + 7) / 8 * 8);
}

int cuda_sort_experts(cudaStream_t s, const int32_t *ids, int n, int used, int experts, int32_t *places,
                      int32_t *sources, int32_t *tiles)
{
    return n <= 0 ? 0 : launched(launch(sort, 1, THREADS, 0, s, ids, n * used, used, experts, places, sources, tiles));
}

int cuda_take_rows(cudaStream_t s, const float *x, int d, const int32_t *sources, const int32_t *tiles, int n,
                   float *out)
{
    return n <= 0 ? 0 : launched(launch(take_row, n, THREADS, 0, s, x, d, sources, tiles, out));
}
