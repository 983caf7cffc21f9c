/* cpu.c - opening a CPU backend: which instruction set this processor can run, its workers, its memory and its scratch.
 *
 * Its operations (table.c) are the same functions for every instruction set; they reach the set's inner functions
 * through k->set. The device is the caller with its workers, so work is done when it is put into a stream: every event
 * has passed, and nothing fails.
 */
#include "kernels/cpu/cpu.h"

#include <cpuid.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE_BYTES (2u << 20)

/* ---- instruction sets -------------------------------------------------------------------------------------------- */

static bool always(void)
{
    return true;
}

/* The compiler's check covers what the operating system saves (XCR0) as well. F16C has no name in older compilers. */
static bool has_avx2(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) && __builtin_cpu_supports("avx2") &&
           __builtin_cpu_supports("fma");
}

static bool has_avxvnni(void)
{
    unsigned a, b, c, d;
    return has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4);
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
}

/* Best first. */
static const struct {
    struct kernels_set set;
    bool (*supported)(void);
} sets[] = {
    {{"cpu-avx512", &kernels_linear_avx512, &kernels_rows_avx512}, has_avx512},
    {{"cpu-avxvnni", &kernels_linear_avxvnni, &kernels_rows_avx2}, has_avxvnni},
    {{"cpu-avx2", &kernels_linear_avx2, &kernels_rows_avx2}, has_avx2},
    {{"cpu-portable", &kernels_linear_portable, &kernels_rows_portable}, always},
};

#define SET_COUNT (sizeof sets / sizeof sets[0])

static const struct kernels_set *choose_set(const char *name, char *err, size_t err_size)
{
    bool best = !name || !strcmp(name, "auto") || !strcmp(name, "cpu");
    for (size_t i = 0; i < SET_COUNT; i++) {
        if (!best && strcmp(name, sets[i].set.name) != 0)
            continue;
        if (sets[i].supported())
            return &sets[i].set;
        if (!best) {
            if (err_size > 0)
                snprintf(err, err_size, "backend %s: this processor lacks the instruction set", name);
            return NULL;
        }
    }
    if (err_size == 0)
        return NULL;
    snprintf(err, err_size,
             "backend %s is unknown; there are auto, cpu, cpu-portable, cpu-avx2, cpu-avxvnni and cpu-avx512", name);
    return NULL;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* What a size takes when mapped; 0 when it overflows. Large sizes are whole huge pages, aligned to them. */
static size_t mapped_bytes(size_t bytes, size_t *align)
{
    *align = bytes >= HUGE_PAGE_BYTES ? HUGE_PAGE_BYTES : 4096;
    size_t sum;
    if (bytes == 0 || __builtin_add_overflow(bytes, 2 * *align, &sum))
        return 0;
    return (bytes + *align - 1) & ~(*align - 1);
}

void *kernels_cpu_alloc(size_t bytes)
{
    size_t align, size = mapped_bytes(bytes, &align);
    if (size == 0)
        return NULL;
    bool huge = align == HUGE_PAGE_BYTES;
    size_t slack = huge ? align : 0;
    char *p = mmap(NULL, size + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    if (huge) {
        size_t head = (size_t)(-(uintptr_t)p & (align - 1));
        if (head > 0)
            munmap(p, head);
        p += head;
        if (slack > head)
            munmap(p + size, slack - head);
        madvise(p, size, MADV_HUGEPAGE); /* a wish: without huge pages the memory is as good, only slower */
    }
    return p;
}

void kernels_cpu_release(void *p, size_t bytes)
{
    size_t align;
    if (p)
        munmap(p, mapped_bytes(bytes, &align));
}

/* ---- scratch ----------------------------------------------------------------------------------------------------- */

int kernels_cpu_reserve(struct kernels *k, const struct kernels_sizes *n)
{
    int rc;
    if (n->rows < 1 || n->cols < 1 || n->heads < 1 || n->head_dim < 1 || n->ff < 0 || n->picks < 0)
        return -EINVAL;
    if ((rc = kernels_linear_reserve(k, n->rows, n->cols)) ||
        (rc = kernels_attention_reserve(k, n->rows, n->heads, n->head_dim)) ||
        (n->experts && (rc = kernels_mixture_reserve(k, n))) || (n->picks && (rc = kernels_pick_reserve(k, n->vocab))))
        return rc;
    return 0;
}

/* ---- open and close ---------------------------------------------------------------------------------------------- */

int kernels_cpu_open(const struct kernels_opts *opts, struct kernels **out, char *err, size_t err_size)
{
    const struct kernels_set *set = choose_set(opts->backend, err, err_size);
    if (!set)
        return -ENOTSUP;
    struct kernels *k = calloc(1, sizeof *k);
    if (!k)
        return -ENOMEM;
    k->head = (struct kernels_head){&kernels_cpu_ops, set->name, "cpu"};
    k->set = set;
    k->threads = opts->threads > 0 ? opts->threads : kernels_available_cores();
    int rc = kernels_pool_open(k->threads, &k->pool);
    if (rc < 0) {
        if (err_size > 0)
            snprintf(err, err_size, "cannot start %d workers: %s", k->threads, strerror(-rc));
        free(k);
        return rc;
    }
    *out = k;
    return 0;
}

void kernels_cpu_close(struct kernels *k)
{
    kernels_pool_close(k->pool);
    kernels_cpu_release(k->fill, k->fill_bytes);
    kernels_linear_release(k);
    kernels_attention_release(k);
    kernels_mixture_release(k);
    kernels_pick_release(k);
    free(k);
}

int kernels_threads(const struct kernels *k)
{
    return k->threads;
}

struct parallel {
    void (*fn)(void *arg, int i);
    void *arg;
};

static void parallel_range(void *arg, int worker, int first, int end)
{
    (void)worker;
    struct parallel *p = arg;
    for (int i = first; i < end; i++)
        p->fn(p->arg, i);
}

void kernels_parallel(struct kernels *k, int n, void (*fn)(void *arg, int i), void *arg)
{
    struct parallel p = {fn, arg};
    kernels_pool_run(k->pool, n, 1, parallel_range, &p);
}
