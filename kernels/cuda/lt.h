/* lt.h - cuBLASLt, opened at run time: y[tokens][rows] = x[tokens][cols] * w[rows][cols]^T of bf16 or f16 with f32
 * sums, by one algorithm whose attributes are kept.
 *
 * What makes a row of the result depend on how many rows there are is a K that is split by the shape. So: one split, no
 * reduction, no workspace, and for a shape (rows, cols) the same algorithm for any number of tokens.
 */
#ifndef CONVOD_KERNELS_CUDA_LT_H
#define CONVOD_KERNELS_CUDA_LT_H

#include <cublasLt.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define LT_CALLS(call)                                                                                                 \
    call(GetVersion) call(Create) call(Destroy) call(MatmulDescCreate) call(MatmulDescDestroy)                         \
        call(MatmulDescSetAttribute) call(MatrixLayoutCreate) call(MatrixLayoutDestroy) call(MatmulPreferenceCreate)   \
            call(MatmulPreferenceDestroy) call(MatmulPreferenceSetAttribute) call(MatmulAlgoGetHeuristic)              \
                call(MatmulAlgoInit) call(MatmulAlgoConfigGetAttribute) call(MatmulAlgoConfigSetAttribute)             \
                    call(MatmulAlgoCheck) call(Matmul)

struct lt {
    cublasLtHandle_t handle;
#define LT_POINTER(name) decltype(&cublasLt##name) name;
    LT_CALLS(LT_POINTER)
};

/* What an algorithm is, apart from the shape. Where the library does not take its attributes back, `as_given` makes it
 * the library's own description of it, unopened. */
struct lt_algorithm {
    bool as_given;
    cublasLtMatmulAlgo_t given;
    int32_t id, split_k;
    uint32_t tile, stages, reduction, swizzling, custom;
    uint16_t inner, cluster;
};

struct lt_product {
    int rows, cols, tokens;
    cudaDataType_t in, out; /* of w and x: CUDA_R_16BF or CUDA_R_16F; of y: those or CUDA_R_32F */
    cublasLtMatmulDesc_t d;
    cublasLtMatrixLayout_t w, x, y;
    cublasLtMatmulAlgo_t algo;
};

/* `path` names the library; empty: the program itself has it. 0, or -1 with a text. */
static inline int lt_open(struct lt *lt, const char *path, char *err, size_t err_size)
{
    void *library = dlopen(*path ? path : NULL, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(err, err_size, "%s", dlerror());
        return -1;
    }
#define LT_FIND(name)                                                                                                  \
    lt->name = (decltype(lt->name))dlsym(library, "cublasLt" #name);                                                   \
    if (!lt->name) {                                                                                                   \
        snprintf(err, err_size, "%s has no cublasLt" #name, path);                                                     \
        return -1;                                                                                                     \
    }
    LT_CALLS(LT_FIND)
    cublasStatus_t status = lt->Create(&lt->handle);
    if (status != CUBLAS_STATUS_SUCCESS)
        snprintf(err, err_size, "cublasLtCreate: status %d", (int)status);
    return status == CUBLAS_STATUS_SUCCESS ? 0 : -1;
}

static inline void lt_product_free(const struct lt *lt, struct lt_product *p)
{
    if (p->d)
        lt->MatmulDescDestroy(p->d);
    if (p->w)
        lt->MatrixLayoutDestroy(p->w);
    if (p->x)
        lt->MatrixLayoutDestroy(p->x);
    if (p->y)
        lt->MatrixLayoutDestroy(p->y);
    memset(p, 0, sizeof(*p));
}

/* The library's matrices are column-major: it computes y^T [rows][tokens] = w * x^T. */
static inline cublasStatus_t lt_product_make(const struct lt *lt, struct lt_product *p, int rows, int cols, int tokens,
                                             cudaDataType_t in, cudaDataType_t out)
{
    memset(p, 0, sizeof(*p));
    p->rows = rows;
    p->cols = cols;
    p->tokens = tokens;
    p->in = in;
    p->out = out;
    cublasOperation_t transposed = CUBLAS_OP_T, plain = CUBLAS_OP_N;
    cublasStatus_t s = lt->MatmulDescCreate(&p->d, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    s = s ? s : lt->MatmulDescSetAttribute(p->d, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed));
    s = s ? s : lt->MatmulDescSetAttribute(p->d, CUBLASLT_MATMUL_DESC_TRANSB, &plain, sizeof(plain));
    s = s ? s : lt->MatrixLayoutCreate(&p->w, in, (uint64_t)cols, (uint64_t)rows, cols);
    s = s ? s : lt->MatrixLayoutCreate(&p->x, in, (uint64_t)cols, (uint64_t)tokens, cols);
    s = s ? s : lt->MatrixLayoutCreate(&p->y, out, (uint64_t)rows, (uint64_t)tokens, rows);
    if (s != CUBLAS_STATUS_SUCCESS)
        lt_product_free(lt, p);
    return s;
}

/* The library's proposals for this shape, best first, within `workspace` bytes and without reductions. */
static inline cublasStatus_t lt_propose(const struct lt *lt, const struct lt_product *p, uint64_t workspace,
                                        cublasLtMatmulHeuristicResult_t *results, int most, int *n)
{
    cublasLtMatmulPreference_t preference;
    uint32_t none = CUBLASLT_REDUCTION_SCHEME_NONE;
    *n = 0;
    cublasStatus_t s = lt->MatmulPreferenceCreate(&preference);
    if (s != CUBLAS_STATUS_SUCCESS)
        return s;
    s = lt->MatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                         sizeof(workspace));
    s = s ? s
          : lt->MatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &none,
                                             sizeof(none));
    s = s ? s : lt->MatmulAlgoGetHeuristic(lt->handle, p->d, p->w, p->x, p->y, p->y, preference, most, results, n);
    lt->MatmulPreferenceDestroy(preference);
    return s;
}

#define LT_ATTRIBUTES(each)                                                                                            \
    each(CUBLASLT_ALGO_CONFIG_TILE_ID, tile) each(CUBLASLT_ALGO_CONFIG_STAGES_ID, stages)                              \
        each(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, split_k) each(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, reduction)          \
            each(CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, swizzling) each(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, custom)       \
                each(CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, inner) each(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, cluster)

static inline cublasStatus_t lt_describe(const struct lt *lt, const cublasLtMatmulAlgo_t *algo, struct lt_algorithm *a)
{
    size_t written;
    memset(a, 0, sizeof(*a));
    cublasStatus_t s = lt->MatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_ID, &a->id, sizeof(a->id), &written);
#define LT_GET(attribute, field)                                                                                       \
    s = s ? s : lt->MatmulAlgoConfigGetAttribute(algo, attribute, &a->field, sizeof(a->field), &written);
    LT_ATTRIBUTES(LT_GET)
    return s;
}

/* Makes the kept algorithm the product's; the library says whether it can, without a workspace. */
static inline cublasStatus_t lt_use(const struct lt *lt, struct lt_product *p, const struct lt_algorithm *a)
{
    cublasLtMatmulHeuristicResult_t result;
    memset(&result, 0, sizeof(result));
    cublasStatus_t s = CUBLAS_STATUS_SUCCESS;
#define LT_SET(attribute, field)                                                                                       \
    s = s ? s : lt->MatmulAlgoConfigSetAttribute(&p->algo, attribute, &a->field, sizeof(a->field));
    if (a->as_given) {
        p->algo = a->given;
    } else {
        s = lt->MatmulAlgoInit(lt->handle, CUBLAS_COMPUTE_32F, CUDA_R_32F, p->in, p->in, p->out, p->out, a->id,
                               &p->algo);
        LT_ATTRIBUTES(LT_SET)
    }
    s = s ? s : lt->MatmulAlgoCheck(lt->handle, p->d, p->w, p->x, p->y, p->y, &p->algo, &result);
    if (s == CUBLAS_STATUS_SUCCESS && result.workspaceSize > 0)
        s = CUBLAS_STATUS_NOT_SUPPORTED;
    return s;
}

static inline cublasStatus_t lt_run(const struct lt *lt, const struct lt_product *p, const uint16_t *w,
                                    const uint16_t *x, void *y, void *workspace, size_t workspace_bytes, cudaStream_t s)
{
    float one = 1, zero = 0;
    return lt->Matmul(lt->handle, p->d, &one, w, p->w, x, p->x, &zero, y, p->y, y, p->y, &p->algo, workspace,
                      workspace_bytes, s);
}

#endif
