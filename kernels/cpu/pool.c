/* pool.c - the workers of a backend.
 *
 * A decode step makes about a hundred short runs, a few tens of microseconds of work each, so what counts here is the
 * time from the caller's store to a worker's first item, and back. Workers therefore watch one word, the gate, with
 * short pauses for SPIN_NS after their last run, and sleep on a condition variable only then.
 *
 * The gate holds a run's number, whether it is open, and how many workers are inside. A worker enters by adding itself
 * to an open gate. The caller publishes the run by opening the gate, works like everyone else, closes the gate when no
 * share has items left, and waits for the workers that are inside. A worker that is still asleep, or that the system
 * took the processor from before it entered, is never waited for: its share is stolen.
 *
 * What always holds: the description of a run (fn, arg, grain, shares) changes only while the gate is closed and nobody
 * is inside. `mutex` guards nothing but the sleep itself; `sleepers` and `gate` are ordered by sequential consistency:
 * the caller opens the gate and then looks for sleepers, a worker counts itself as a sleeper and then looks at the
 * gate.
 */
#include "kernels/cpu/cpu.h"

#include <errno.h>
#include <fenv.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#define SPIN_NS     60000 /* how long a worker watches the gate before it sleeps */
#define SPIN_PAUSES 16    /* pauses between two looks at the clock */

#define GATE_INSIDE UINT64_C(0xffff) /* count of workers inside */
#define GATE_OPEN   UINT64_C(0x10000)
#define GATE_STOP   UINT64_C(0x20000)
#define GATE_RUN    UINT64_C(0x40000) /* one run */

#define MAX_THREADS 1024

/* Items [first, end) that nobody has taken yet: first in the low half, end in the high half. */
struct share {
    _Alignas(64) _Atomic uint64_t range;
};

struct kernels_pool {
    int threads; /* workers, the caller included */
    int grain;
    void (*fn)(void *arg, int worker, int first, int end);
    void *arg;
    struct share *shares; /* [threads] */
    pthread_t *ids;       /* [threads], the first is unused */
    struct worker *workers;
    _Alignas(64) _Atomic uint64_t gate;
    _Alignas(64) _Atomic int sleepers;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
};

struct worker {
    struct kernels_pool *pool;
    int index;
};

static void pause_briefly(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static uint64_t make_range(uint32_t first, uint32_t end)
{
    return (uint64_t)end << 32 | first;
}

/* Takes a piece of a share: its owner from the front, a thief from the back. A quarter of what is left, so that pieces
 * get smaller towards the end. */
static bool take(struct share *s, uint32_t grain, bool owner, int *first, int *end)
{
    uint64_t range = atomic_load_explicit(&s->range, memory_order_relaxed);
    for (;;) {
        uint32_t a = (uint32_t)range, b = (uint32_t)(range >> 32);
        if (a >= b)
            return false;
        uint32_t left = b - a, piece = left / 4 > grain ? left / 4 : grain;
        if (piece > left)
            piece = left;
        uint64_t rest = owner ? make_range(a + piece, b) : make_range(a, b - piece);
        if (atomic_compare_exchange_weak_explicit(&s->range, &range, rest, memory_order_relaxed,
                                                  memory_order_relaxed)) {
            *first = (int)(owner ? a : b - piece);
            *end = *first + (int)piece;
            return true;
        }
    }
}

static void work(struct kernels_pool *p, int worker)
{
    int first, end;
    for (int i = 0; i < p->threads; i++) {
        int victim = worker + i < p->threads ? worker + i : worker + i - p->threads;
        while (take(&p->shares[victim], (uint32_t)p->grain, i == 0, &first, &end))
            p->fn(p->arg, worker, first, end);
    }
}

/* Watches the gate until it shows another run than `seen` (or the end of the pool), then returns its value. */
static uint64_t wait_for_run(struct kernels_pool *p, uint64_t seen)
{
    int64_t until = 0;
    for (;;) {
        for (int i = 0; i < SPIN_PAUSES; i++) {
            uint64_t gate = atomic_load_explicit(&p->gate, memory_order_acquire);
            if ((gate & GATE_STOP) || ((gate & GATE_OPEN) && gate / GATE_RUN != seen))
                return gate;
            pause_briefly();
        }
        int64_t now = now_ns();
        if (until == 0)
            until = now + SPIN_NS;
        if (now < until)
            continue;
        pthread_mutex_lock(&p->mutex);
        atomic_fetch_add(&p->sleepers, 1);
        uint64_t gate;
        while (!((gate = atomic_load(&p->gate)) & GATE_STOP) && !((gate & GATE_OPEN) && gate / GATE_RUN != seen))
            pthread_cond_wait(&p->wake, &p->mutex);
        atomic_fetch_sub(&p->sleepers, 1);
        pthread_mutex_unlock(&p->mutex);
        return gate;
    }
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct kernels_pool *p = w->pool;
    uint64_t seen = 0;
    (void)pthread_setname_np(pthread_self(), "convod-model"); /* told by top, and by what measures us */
    fesetenv(FE_DFL_ENV); /* not what the thread that opened the backend rounds by */
    for (;;) {
        uint64_t gate = wait_for_run(p, seen);
        if (gate & GATE_STOP)
            return NULL;
        if (!atomic_compare_exchange_strong_explicit(&p->gate, &gate, gate + 1, memory_order_acquire,
                                                     memory_order_relaxed))
            continue;
        seen = gate / GATE_RUN;
        work(p, w->index);
        atomic_fetch_sub_explicit(&p->gate, 1, memory_order_release);
    }
}

static void open_gate(struct kernels_pool *p, uint64_t gate)
{
    atomic_store(&p->gate, gate);
    if (atomic_load(&p->sleepers) > 0) {
        pthread_mutex_lock(&p->mutex);
        pthread_cond_broadcast(&p->wake);
        pthread_mutex_unlock(&p->mutex);
    }
}

void kernels_pool_run(struct kernels_pool *p, int n, int grain, void (*fn)(void *arg, int worker, int first, int end),
                      void *arg)
{
    if (n <= 0)
        return;
    if (grain < 1)
        grain = 1;
    if (p->threads == 1 || n <= grain) {
        fn(arg, 0, 0, n);
        return;
    }
    p->fn = fn;
    p->arg = arg;
    p->grain = grain;
    for (int i = 0; i < p->threads; i++) {
        uint32_t first = (uint32_t)((int64_t)n * i / p->threads), end = (uint32_t)((int64_t)n * (i + 1) / p->threads);
        atomic_store_explicit(&p->shares[i].range, make_range(first, end), memory_order_relaxed);
    }
    uint64_t gate = atomic_load_explicit(&p->gate, memory_order_relaxed);
    open_gate(p, (gate / GATE_RUN + 1) * GATE_RUN | GATE_OPEN);
    work(p, 0);
    atomic_fetch_and_explicit(&p->gate, ~GATE_OPEN, memory_order_acquire);
    for (int spins = 0; atomic_load_explicit(&p->gate, memory_order_acquire) & GATE_INSIDE; spins++) {
        pause_briefly();
        if (spins > 4096)
            sched_yield(); /* the worker may be waiting for this processor */
    }
}

int kernels_pool_open(int threads, struct kernels_pool **out)
{
    if (threads < 1 || threads > MAX_THREADS)
        return -EINVAL;
    struct kernels_pool *p = aligned_alloc(64, sizeof *p);
    if (!p)
        return -ENOMEM;
    *p = (struct kernels_pool){.threads = 1, .grain = 1};
    int rc = -pthread_mutex_init(&p->mutex, NULL);
    if (rc < 0) {
        free(p);
        return rc;
    }
    rc = -pthread_cond_init(&p->wake, NULL);
    if (rc < 0) {
        pthread_mutex_destroy(&p->mutex);
        free(p);
        return rc;
    }
    p->shares = aligned_alloc(64, (size_t)threads * sizeof *p->shares);
    p->ids = calloc((size_t)threads, sizeof *p->ids);
    p->workers = calloc((size_t)threads, sizeof *p->workers);
    if (!p->shares || !p->ids || !p->workers) {
        kernels_pool_close(p);
        return -ENOMEM;
    }
    int started = 1;
    for (; started < threads; started++) {
        p->workers[started] = (struct worker){p, started};
        rc = -pthread_create(&p->ids[started], NULL, worker_main, &p->workers[started]);
        if (rc < 0)
            break;
    }
    p->threads = started; /* nobody looks at it before the first run */
    if (rc < 0) {
        kernels_pool_close(p);
        return -EAGAIN;
    }
    *out = p;
    return 0;
}

void kernels_pool_close(struct kernels_pool *p)
{
    if (!p)
        return;
    open_gate(p, atomic_load(&p->gate) | GATE_STOP);
    for (int i = 1; i < p->threads; i++)
        pthread_join(p->ids[i], NULL);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->mutex);
    free(p->shares);
    free(p->ids);
    free(p->workers);
    free(p);
}
