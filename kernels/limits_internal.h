/* limits_internal.h - limits.c over any folders, so that a test can make some. */
#ifndef CONVOD_KERNELS_LIMITS_INTERNAL_H
#define CONVOD_KERNELS_LIMITS_INTERNAL_H

#include "kernels/kernels.h"

struct limits_roots {
    const char *proc, *cgroup; /* in place of /proc and /sys/fs/cgroup */
};

/* As kernels_available_bytes(). */
uint64_t limits_bytes(const struct limits_roots *roots);
/* As kernels_machine_bytes(). */
uint64_t limits_machine_bytes(const struct limits_roots *roots);
/* At most `cores`, rounded up to whole ones, at least 1. */
int limits_cores(const struct limits_roots *roots, int cores);

#endif
