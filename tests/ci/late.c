/* late.c - a library to preload (`make late`): threads that come late, and disks that are slow, as on a machine that
 * has much else to do. A test that fails under it takes for an order what is only what mostly happens.
 *
 * LATE is a number: by its remainder by 3 the main thread sleeps now and then where it takes or leaves a mutex, or all
 * others do, or whoever asks for a file to be on its disk waits for that. The rest of it chooses the moments.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum who { MAIN_THREAD, OTHER_THREADS, DISK, WHOS };

/* How often of 1,000 times, and the longest sleep. */
static const struct {
    uint64_t often, ms;
} lateness[WHOS] = {[MAIN_THREAD] = {30, 250}, [OTHER_THREADS] = {20, 100}, [DISK] = {300, 150}};

static int (*next_lock)(pthread_mutex_t *), (*next_unlock)(pthread_mutex_t *), (*next_fdatasync)(int),
    (*next_fsync)(int);
static enum who late_one = WHOS;
static uint64_t seed;
static atomic_uint n_threads;

/* Sanitizers take mutexes before constructors have run. */
static void find_next(void)
{
    if (next_fsync)
        return;
    *(void **)&next_lock = dlsym(RTLD_NEXT, "pthread_mutex_lock");
    *(void **)&next_unlock = dlsym(RTLD_NEXT, "pthread_mutex_unlock");
    *(void **)&next_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
    *(void **)&next_fsync = dlsym(RTLD_NEXT, "fsync");
}

__attribute__((constructor)) static void begin(void)
{
    const char *late = getenv("LATE");
    find_next();
    if (late) {
        seed = strtoull(late, NULL, 10);
        late_one = (enum who)(seed % WHOS);
    }
}

static uint64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static void come_late(enum who who)
{
    static _Thread_local uint64_t random, began, slept;
    if (who != late_one)
        return;
    if (!began) {
        began = now_us();
        random = (seed + 1) * UINT64_C(0x9e3779b97f4a7c15) ^
                 (atomic_fetch_add(&n_threads, 1) + UINT64_C(1)) * UINT64_C(0xbf58476d1ce4e5b9);
    }
    random ^= random << 13; /* Marsaglia's xorshift */
    random ^= random >> 7;
    random ^= random << 17;
    if ((random >> 20) % 1000 >= lateness[who].often)
        return;
    uint64_t us = (random >> 33) % (lateness[who].ms * 1000);
    if (random >> 32 & 1) /* short ones too */
        us /= 10;
    if ((slept + us) * 3 > (now_us() - began) * 2 + 1500000) /* tests end: a third of its life a thread is awake */
        return;
    slept += us;
    nanosleep(&(struct timespec){(time_t)(us / 1000000), (long)(us % 1000000) * 1000}, NULL);
}

static void thread_comes_late(void)
{
    static _Thread_local enum who who = WHOS;
    if (who == WHOS)
        who = syscall(SYS_gettid) == getpid() ? MAIN_THREAD : OTHER_THREADS;
    come_late(who);
}

int pthread_mutex_lock(pthread_mutex_t *mutex)
{
    find_next();
    thread_comes_late();
    return next_lock(mutex);
}

int pthread_mutex_unlock(pthread_mutex_t *mutex)
{
    find_next();
    int rc = next_unlock(mutex);
    thread_comes_late();
    return rc;
}

int fdatasync(int fd)
{
    come_late(DISK);
    return next_fdatasync(fd);
}

int fsync(int fd)
{
    come_late(DISK);
    return next_fsync(fd);
}
