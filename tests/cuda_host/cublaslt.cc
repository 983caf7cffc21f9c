/* cublaslt.cc - the calls of cuBLASLt in use, for products of the one form that is in use: D = A^T * B, bf16 or f16 in,
 * f32 or bf16 out.
 *
 * It offers three algorithms, so that what chooses among them has something to choose: 1 adds as a chain of the
 * emulation's own matrix instructions does; 2 does so too, but from 16 columns of B on in two halves, so that its rows
 * depend on how many there are; 3 wants a split K. cuda_host_library() takes the first away, or all. */
#include "tests/cuda_host/internal.h"

#include <cublasLt.h>

struct cuda_host_matmul {
    cublasOperation_t a, b;
};
struct cuda_host_layout {
    cudaDataType_t type;
    uint64_t rows, cols;
    int64_t ld;
};
struct cuda_host_preference {
    uint64_t workspace;
    uint32_t reductions;
};

enum { PLAIN = 1, BY_SHAPE, SPLIT };

static enum cuda_host_library offered = CUDA_HOST_ALGORITHMS;

void cuda_host_library(enum cuda_host_library in_offered)
{
    offered = in_offered;
}

/* Attribute a of an algorithm is word a of its data. */
static uint32_t *word(cublasLtMatmulAlgo_t *algo, int attribute)
{
    return (uint32_t *)(void *)algo->data + attribute;
}

static uint32_t attribute_of(const cublasLtMatmulAlgo_t *algo, int attribute)
{
    uint32_t value;
    memcpy(&value, (const char *)algo->data + attribute * 4, 4);
    return value;
}

static size_t attribute_bytes(int attribute)
{
    return attribute == CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID || attribute == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID ? 2
                                                                                                                  : 4;
}

size_t cublasLtGetVersion(void)
{
    return 0;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    *handle = nullptr;
    return offered == CUDA_HOST_NO_LIBRARY ? CUBLAS_STATUS_NOT_INITIALIZED : CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t)
{
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, cublasComputeType_t, cudaDataType_t)
{
    *d = new cuda_host_matmul{CUBLAS_OP_N, CUBLAS_OP_N};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d)
{
    delete d;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t a,
                                              const void *value, size_t bytes)
{
    if (bytes != sizeof(cublasOperation_t))
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(a == CUBLASLT_MATMUL_DESC_TRANSA ? &d->a : &d->b, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType_t type, uint64_t rows, uint64_t cols,
                                          int64_t ld)
{
    *l = new cuda_host_layout{type, rows, cols, ld};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
    delete l;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p)
{
    *p = new cuda_host_preference{0, ~0u};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    delete p;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t a, const void *value,
                                                    size_t bytes)
{
    if (a == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES && bytes == 8)
        memcpy(&p->workspace, value, 8);
    else if (a == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK && bytes == 4)
        memcpy(&p->reductions, value, 4);
    else
        return CUBLAS_STATUS_INVALID_VALUE;
    return CUBLAS_STATUS_SUCCESS;
}

static bool fits(cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t out)
{
    return d->a == CUBLAS_OP_T && d->b == CUBLAS_OP_N && (a->type == CUDA_R_16BF || a->type == CUDA_R_16F) &&
           b->type == a->type && (out->type == CUDA_R_32F || out->type == CUDA_R_16BF) && a->rows == b->rows &&
           a->cols == out->rows && b->cols == out->cols;
}

cublasStatus_t cublasLtMatmulAlgoInit(cublasLtHandle_t, cublasComputeType_t, cudaDataType_t, cudaDataType_t,
                                      cudaDataType_t, cudaDataType_t, cudaDataType_t, int id,
                                      cublasLtMatmulAlgo_t *algo)
{
    if (id < PLAIN || id > SPLIT)
        return CUBLAS_STATUS_INVALID_VALUE;
    memset(algo, 0, sizeof(*algo));
    *word(algo, CUBLASLT_ALGO_CONFIG_ID) = (uint32_t)id;
    *word(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM) = id == SPLIT ? 2 : 1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t out, cublasLtMatmulPreference_t, int requested,
                                              cublasLtMatmulHeuristicResult_t *results, int *returned)
{
    *returned = 0;
    if (!fits(d, a, b, out))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    int least = offered == CUDA_HOST_ALGORITHMS ? PLAIN : BY_SHAPE;
    for (int id = SPLIT; id >= least && *returned < requested; id--) {
        cublasLtMatmulHeuristicResult_t *r = &results[(*returned)++];
        memset(r, 0, sizeof(*r));
        cublasLtMatmulAlgoInit(handle, CUBLAS_COMPUTE_32F, CUDA_R_32F, a->type, b->type, out->type, out->type, id,
                               &r->algo);
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t a, void *value, size_t bytes,
                                                    size_t *written)
{
    if (bytes != attribute_bytes(a))
        return CUBLAS_STATUS_INVALID_VALUE;
    uint32_t v = attribute_of(algo, a);
    memcpy(value, &v, bytes);
    *written = bytes;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t *algo, cublasLtMatmulAlgoConfigAttributes_t a,
                                                    const void *value, size_t bytes)
{
    if (bytes != attribute_bytes(a) || a == CUBLASLT_ALGO_CONFIG_ID)
        return CUBLAS_STATUS_INVALID_VALUE;
    *word(algo, a) = 0;
    memcpy(word(algo, a), value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t out,
                                       const cublasLtMatmulAlgo_t *algo, cublasLtMatmulHeuristicResult_t *result)
{
    uint32_t splits = attribute_of(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM);
    if (!fits(d, a, b, out) || splits != (attribute_of(algo, CUBLASLT_ALGO_CONFIG_ID) == SPLIT ? 2 : 1))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    result->workspaceSize = 0;
    return CUBLAS_STATUS_SUCCESS;
}

static unsigned products;

unsigned cuda_host_library_products(void)
{
    return products;
}

static double widen(uint16_t bits, cudaDataType_t type)
{
    return (double)(type == CUDA_R_16F ? cuda_host_widen_f16(bits) : __uint_as_float((unsigned)bits << 16));
}

/* 16 columns are added exactly enough, then rounded, as by one matrix instruction (mma.cc). */
static float dot(const uint16_t *a, const uint16_t *b, uint64_t n, cudaDataType_t type)
{
    float sum = 0;
    for (uint64_t first = 0; first < n; first += 16) {
        double part = (double)sum;
        for (uint64_t k = first; k < n && k < first + 16; k++)
            part += widen(a[k], type) * widen(b[k], type);
        sum = (float)part;
    }
    return sum;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t d, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t la, const void *b, cublasLtMatrixLayout_t lb, const void *beta,
                              const void *, cublasLtMatrixLayout_t, void *out, cublasLtMatrixLayout_t lout,
                              const cublasLtMatmulAlgo_t *algo, void *, size_t, cudaStream_t s)
{
    float one, zero;
    memcpy(&one, alpha, 4);
    memcpy(&zero, beta, 4);
    if (!fits(d, la, lb, lout) || !(one == 1.0f) || !(zero == 0.0f))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    products++;
    cuda_host_layout A = *la, B = *lb, D = *lout;
    bool halves = attribute_of(algo, CUBLASLT_ALGO_CONFIG_ID) == BY_SHAPE && B.cols >= 16;
    stream_enqueue(s, [=] {
        for (uint64_t c = 0; c < D.cols; c++)
            for (uint64_t r = 0; r < D.rows; r++) {
                const uint16_t *x = (const uint16_t *)a + r * (uint64_t)A.ld,
                               *y = (const uint16_t *)b + c * (uint64_t)B.ld;
                uint64_t middle = halves ? A.rows / 2 : A.rows, at = c * (uint64_t)D.ld + r;
                float sum = dot(x, y, middle, A.type);
                if (halves)
                    sum += dot(x + middle, y + middle, A.rows - middle, A.type);
                if (D.type == CUDA_R_32F)
                    ((float *)out)[at] = sum;
                else
                    ((uint16_t *)out)[at] =
                        (uint16_t)((__float_as_uint(sum) + 0x7fff + (__float_as_uint(sum) >> 16 & 1)) >> 16);
            }
    });
    return CUBLAS_STATUS_SUCCESS;
}
