/* cuda.h - operations on a CUDA device that give the CPU's bits: what kernels.h documents, put into a stream.
 *
 * Each operation is a twin of the one in kernels/cpu: the same order of additions, as docs/numerics.md gives it. All
 * pointers are to memory of the device. Nothing here waits, allocates or copies to or from the host.
 *
 * Errors: 0, or -EIO when work could not be put into the stream; what goes wrong on the device comes with a later call.
 */
#ifndef CONVOD_KERNELS_CUDA_H
#define CONVOD_KERNELS_CUDA_H

#include <cuda_runtime.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/kernels.h"

/* The rows of a batch and the pages of their sequences. Row r is position pos[r] of a sequence whose page table is
 * pages[table[r] .. table[r] + count[r]), as struct kernels_pages has it (-1: dropped). */
struct cuda_rows {
    int rows;
    const int32_t *pos, *table, *count; /* [rows] */
    const int32_t *pages;
};

/* A matrix as it lies in a file: rows of blocks of its type. */
struct cuda_table {
    enum kernels_type type;
    int rows, cols;
    const uint8_t *data;
};

/* out[i][cols] = scale * w[ids[i]][:], dequantized. */
int cuda_embed(cudaStream_t s, struct cuda_table w, const int32_t *ids, int n, float scale, float *out);

/* out[i][d] = x[rows[i]][d]. */
int cuda_gather(cudaStream_t s, const float *x, int d, const int32_t *rows, int n, float *out);

/* y[r][:] = x[r][:] / sqrt(mean(x[r]^2) + eps) * weight[:]; x and y [rows][d], may be the same; weight [d]. */
int cuda_rms_norm(cudaStream_t s, const float *x, int rows, int d, const float *weight, float eps, float *y);

/* Rotates x[n][heads][head_dim] in place by table[n][rot/2][2] (cos, sin). */
int cuda_rope(cudaStream_t s, float *x, int n, int heads, int head_dim, int rot, enum kernels_rope_kind kind,
              const float *table);

/* out[i] = act(gate[i]) * up[i], n values; out may be gate. */
int cuda_glu(cudaStream_t s, enum kernels_glu_kind kind, const float *gate, const float *up, size_t n, float *out);

/* x[i] += y[i], n values. */
int cuda_add(cudaStream_t s, float *x, const float *y, size_t n);

/* x[i] = cap * tanh(x[i] / cap), n values, cap > 0. */
int cuda_softcap(cudaStream_t s, float *x, size_t n, float cap);

/* For each of n rows: the `used` of its `experts` with the largest logits [n][experts], in order (ids [n][used]), and
 * their weights [n][used]. At most KERNELS_MAX_EXPERTS and KERNELS_MAX_EXPERTS_USED; used <= experts. */
int cuda_route(cudaStream_t s, const float *logits, int n, int experts, int used, int32_t *ids, float *weights);

/* y[n][cols] += the sum over a row's experts, in order, of weights[n][used] * said[places[n][used]][cols]. */
int cuda_mix(cudaStream_t s, const float *said, const int32_t *places, const float *weights, int n, int used, int cols,
             float *y);

/* Rounds key[rows][kv_heads][head_dim] and value (same shape) to the KV type and writes them to their pages. Rows whose
 * page was dropped or lies past the table are left out. kv->pool is device memory. */
int cuda_kv_write(cudaStream_t s, struct kernels_kv kv, struct cuda_rows rows, const float *key, const float *value);

/* One layer's keys and values of positions [first, first + n) out of / into the `count` pages of a table, in the
 * canonical layout: keys [kv_heads * head_dim][n], values [n][kv_heads * head_dim]. A page that is not there gives
 * zeros, and takes nothing. */
int cuda_kv_export(cudaStream_t s, struct kernels_kv kv, const int32_t *pages, int count, int first, int n,
                   uint16_t *keys, uint16_t *values);
int cuda_kv_import(cudaStream_t s, struct kernels_kv kv, const int32_t *pages, int count, int first, int n,
                   const uint16_t *keys, const uint16_t *values);

/* Causal grouped-query attention in the CPU's order: q and out [rows][heads][head_dim]; the rows' own keys and values
 * are in their pages already. `window` 0: full; `softcap` 0: none. */
struct cuda_attention {
    const float *q;
    float *out;
    int heads;
    float scale;
    int window;
    float softcap;
    const float *sinks; /* [heads] or NULL */
    struct kernels_kv kv;
};
int cuda_attention_exact(cudaStream_t s, struct cuda_attention a, struct cuda_rows rows);

#ifdef __cplusplus
}
#endif

#endif
