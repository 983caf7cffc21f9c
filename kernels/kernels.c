/* kernels.c - which backend a name means, and what all of them agree on: the types of weights and KV. */
#include "kernels/backend.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const struct kernels_type_info types[KERNELS_TYPE_COUNT] = {
    [KERNELS_F32] = {"F32", 1, 4},       [KERNELS_F16] = {"F16", 1, 2},         [KERNELS_BF16] = {"BF16", 1, 2},
    [KERNELS_Q8_0] = {"Q8_0", 32, 34},   [KERNELS_Q4_0] = {"Q4_0", 32, 18},     [KERNELS_Q4_1] = {"Q4_1", 32, 20},
    [KERNELS_Q5_0] = {"Q5_0", 32, 22},   [KERNELS_Q5_1] = {"Q5_1", 32, 24},     [KERNELS_Q4_K] = {"Q4_K", 256, 144},
    [KERNELS_Q5_K] = {"Q5_K", 256, 176}, [KERNELS_Q6_K] = {"Q6_K", 256, 210},   [KERNELS_Q2_K] = {"Q2_K", 256, 84},
    [KERNELS_Q3_K] = {"Q3_K", 256, 110}, [KERNELS_IQ4_NL] = {"IQ4_NL", 32, 18}, [KERNELS_IQ4_XS] = {"IQ4_XS", 256, 136},
    [KERNELS_MXFP4] = {"MXFP4", 32, 17},
};

const struct kernels_type_info *kernels_type_info(enum kernels_type type)
{
    return &types[type];
}

size_t kernels_row_bytes(enum kernels_type type, int cols)
{
    const struct kernels_type_info *info = &types[type];
    if (cols <= 0 || cols % info->block_values)
        return 0;
    return (size_t)(cols / info->block_values) * (size_t)info->block_bytes;
}

unsigned kernels_form(enum kernels_type type)
{
    return types[type].block_values == 1 ? KERNELS_FLOATS : KERNELS_QUANTS;
}

size_t kernels_kv_width(enum kernels_kv_type type)
{
    (void)type; /* both are 16 bits wide */
    return 2;
}

/* ---- backends ---------------------------------------------------------------------------------------------------- */

int kernels_open(const struct kernels_opts *opts, struct kernels **out, char *err, size_t err_size)
{
    if (err_size > 0)
        err[0] = '\0';
    if (opts->threads < 0) {
        if (err_size > 0)
            snprintf(err, err_size, "threads: %d is negative", opts->threads);
        return -EINVAL;
    }
    bool automatic = !opts->backend || !strcmp(opts->backend, "auto");
    bool cuda = opts->backend && !strcmp(opts->backend, "cuda");
    if (opts->numerics && strcmp(opts->numerics, "device") != 0 && strcmp(opts->numerics, "exact") != 0) {
        if (err_size > 0)
            snprintf(err, err_size, "numerics %s is unknown; there are device and exact", opts->numerics);
        return -EINVAL;
    }
    if (cuda && !kernels_cuda_open) {
        if (err_size > 0)
            snprintf(err, err_size, "backend cuda: this build has no CUDA");
        return -ENOTSUP;
    }
    if ((cuda || automatic) && kernels_cuda_open) {
        int rc = kernels_cuda_open(opts, out, err, err_size);
        if (rc == 0 || cuda)
            return rc;
        return kernels_cpu_open(opts, out, NULL, 0); /* err keeps what is wrong with the GPU */
    }
    return kernels_cpu_open(opts, out, err, err_size);
}

static const struct kernels_head *head_of(const struct kernels *k)
{
    return (const struct kernels_head *)(const void *)k;
}

void kernels_close(struct kernels *k)
{
    if (k)
        head_of(k)->ops->close(k);
}

const char *kernels_backend(const struct kernels *k)
{
    return head_of(k)->name;
}

bool kernels_health(struct kernels *k, struct kernels_health *out)
{
    const struct kernels_ops *ops = head_of(k)->ops;
    return ops->health && ops->health(k, out);
}

const char *kernels_numerics(const struct kernels *k)
{
    return head_of(k)->numerics;
}

const char *kernels_notes(const struct kernels *k)
{
    const struct kernels_ops *ops = head_of(k)->ops;
    return ops->notes ? ops->notes(k) : NULL;
}

const struct kernels_ops *kernels_ops(const struct kernels *k)
{
    return head_of(k)->ops;
}
