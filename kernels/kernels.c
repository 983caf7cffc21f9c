/* kernels.c - opening a CPU backend: which instruction set this processor can run, its workers, its memory, and the
 * table of operations.
 *
 * A backend is opened and closed on one thread and used by one caller at a time. Its operations are the same functions
 * for every instruction set; they reach the set's inner functions through k->set.
 */
#include "kernels/cpu/cpu.h"

#include <cpuid.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE_BYTES (2u << 20)

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
    if (!strcmp(name, "cuda"))
        snprintf(err, err_size, "backend cuda: this build has no CUDA");
    else
        snprintf(err, err_size,
                 "backend %s is unknown; there are auto, cpu, cpu-portable, cpu-avx2, cpu-avxvnni and cpu-avx512",
                 name);
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

static void *cpu_alloc(struct kernels *k, size_t bytes)
{
    (void)k;
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

static void cpu_release(struct kernels *k, void *p, size_t bytes)
{
    (void)k;
    size_t align;
    if (p)
        munmap(p, mapped_bytes(bytes, &align));
}

static void cpu_copy(struct kernels *k, void *to, const void *from, size_t bytes)
{
    (void)k;
    memcpy(to, from, bytes);
}

static void cpu_zero(struct kernels *k, void *p, size_t bytes)
{
    (void)k;
    memset(p, 0, bytes);
}

static void cpu_gather(struct kernels *k, const float *x, int d, const int32_t *rows, int n, float *out)
{
    (void)k;
    for (int i = 0; i < n; i++)
        memcpy(out + (size_t)i * (size_t)d, x + (size_t)rows[i] * (size_t)d, (size_t)d * sizeof *x);
}

static int cpu_reserve(struct kernels *k, int max_rows, int max_cols, int max_heads, int max_head_dim)
{
    int rc = kernels_linear_reserve(k, max_rows, max_cols);
    if (rc < 0)
        return rc;
    return kernels_attention_reserve(k, max_rows, max_heads, max_head_dim);
}

/* ---- open and close ---------------------------------------------------------------------------------------------- */

static int available_cores(void)
{
    cpu_set_t cpus;
    if (sched_getaffinity(0, sizeof cpus, &cpus) < 0)
        return 1;
    int n = CPU_COUNT(&cpus);
    return n > 0 ? n : 1;
}

int kernels_open(const struct kernels_opts *opts, struct kernels **out, char *err, size_t err_size)
{
    if (err_size > 0)
        err[0] = '\0';
    if (opts->threads < 0) {
        if (err_size > 0)
            snprintf(err, err_size, "threads: %d is negative", opts->threads);
        return -EINVAL;
    }
    const struct kernels_set *set = choose_set(opts->backend, err, err_size);
    if (!set)
        return -ENOTSUP;
    struct kernels *k = calloc(1, sizeof *k);
    if (!k)
        return -ENOMEM;
    k->set = set;
    k->threads = opts->threads > 0 ? opts->threads : available_cores();
    k->ops = (struct kernels_ops){
        .name = set->name,
        .alloc = cpu_alloc,
        .release = cpu_release,
        .copy = cpu_copy,
        .zero = cpu_zero,
        .reserve = cpu_reserve,
        .gather = cpu_gather,
        .embed = kernels_op_embed,
        .rms_norm = kernels_op_rms_norm,
        .linear = kernels_op_linear,
        .rope = kernels_op_rope,
        .kv_write = kernels_op_kv_write,
        .attention = kernels_op_attention,
        .glu = kernels_op_glu,
        .mixture = kernels_op_mixture,
        .add = kernels_op_add,
        .softcap = kernels_op_softcap,
        .reserve_pick = kernels_pick_reserve,
        .pick = kernels_op_pick,
        .kv_export = kernels_op_kv_export,
        .kv_import = kernels_op_kv_import,
    };
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

void kernels_close(struct kernels *k)
{
    if (!k)
        return;
    kernels_pool_close(k->pool);
    kernels_linear_release(k);
    kernels_attention_release(k);
    kernels_pick_release(k);
    free(k);
}

const char *kernels_backend(const struct kernels *k)
{
    return k->set->name;
}

int kernels_threads(const struct kernels *k)
{
    return k->threads;
}

const struct kernels_ops *kernels_ops(const struct kernels *k)
{
    return &k->ops;
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
