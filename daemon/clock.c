/* clock.c - the two clocks: the wall's for what people see, the monotonic one for what is waited for. */
#include <time.h>

#include "daemon/daemon.h"

int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

int64_t clock_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

int64_t clock_ms(void)
{
    return clock_us() / 1000;
}
