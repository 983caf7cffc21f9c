/* backend.h - what kernels.c knows of backends: how each is opened, and what every one of them begins with. */
#ifndef CONVOD_KERNELS_BACKEND_H
#define CONVOD_KERNELS_BACKEND_H

#include "kernels/kernels.h"

/* The first member of each backend's struct kernels. */
struct kernels_head {
    const struct kernels_ops *ops;
    const char *name;     /* kernels_backend() */
    const char *numerics; /* whose bits it has; kernels_numerics() */
};

/* kernels_open() for names of this backend; NULL, "auto" and "cpu" are the best instruction set. */
int kernels_cpu_open(const struct kernels_opts *opts, struct kernels **out, char *err, size_t err_size);

/* kernels_open() for "cuda", or "cuda_host" where the emulation of a device is linked in its place; a program that CUDA
 * was not built into lacks it. -ENODEV: there is no driver or no device; -ENOTSUP: the device is too old for us. */
int kernels_cuda_open(const struct kernels_opts *opts, struct kernels **out, char *err, size_t err_size)
    __attribute__((weak));

#endif
