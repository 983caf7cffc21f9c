/* nvml.c - see nvml.h. `lock` guards `last`, `known` and `stop`; all else is the thread's own. */
#include "kernels/cuda/nvml.h"

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PERIOD_S 1
#define CLOSE_S  2 /* a thread that has not come back from the driver by then is left alone */

/* NVML's interface, as far as it is used: results are 0 for success; memory and utilization have these layouts. */
struct nvml_memory {
    unsigned long long total, free, used;
};
struct nvml_utilization {
    unsigned gpu, memory; /* per cent of the last sample period */
};
struct nvml_calls {
    int (*Init_v2)(void);
    int (*Shutdown)(void);
    int (*DeviceGetHandleByPciBusId_v2)(const char *address, void **device);
    int (*DeviceGetHandleByUUID)(const char *uuid, void **device);
    int (*DeviceGetName)(void *device, char *name, unsigned size);
    int (*DeviceGetMemoryInfo)(void *device, struct nvml_memory *memory);
    int (*DeviceGetTemperature)(void *device, int sensor, unsigned *celsius);
    int (*DeviceGetPowerUsage)(void *device, unsigned *milliwatts);
    int (*DeviceGetUtilizationRates)(void *device, struct nvml_utilization *rates);
};
#define SENSOR_GPU 0

struct nvml {
    char library[64], address[32];
    char instance[48]; /* as NVML names it */
    bool own;          /* the program itself is the library */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stop, known;
    struct kernels_health last;
};

/* Finds all functions in a library; false: one is missing. */
static bool find(void *library, struct nvml_calls *c)
{
    const struct {
        const char *name;
        void *at;
    } calls[] = {
        {"nvmlInit_v2", &c->Init_v2},
        {"nvmlShutdown", &c->Shutdown},
        {"nvmlDeviceGetHandleByPciBusId_v2", &c->DeviceGetHandleByPciBusId_v2},
        {"nvmlDeviceGetHandleByUUID", &c->DeviceGetHandleByUUID},
        {"nvmlDeviceGetName", &c->DeviceGetName},
        {"nvmlDeviceGetMemoryInfo", &c->DeviceGetMemoryInfo},
        {"nvmlDeviceGetTemperature", &c->DeviceGetTemperature},
        {"nvmlDeviceGetPowerUsage", &c->DeviceGetPowerUsage},
        {"nvmlDeviceGetUtilizationRates", &c->DeviceGetUtilizationRates},
    };
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        void *found = dlsym(library, calls[i].name);
        if (!found)
            return false;
        memcpy(calls[i].at, &found, sizeof found);
    }
    return true;
}

/* A name is shown in lines and between quotes. */
static void make_plain(char *name)
{
    for (; *name; name++)
        if ((unsigned char)*name < ' ' || *name == '"' || *name == '\\' || (unsigned char)*name > '~')
            *name = '_';
}

/* Asks for all that the device says; what it does not is NaN. `part` is what of it is ours: the device, or an instance,
 * which has memory of its own and no temperature. */
static struct kernels_health ask(const struct nvml_calls *c, void *device, void *part)
{
    struct kernels_health h = {.temperature_c = NAN, .power_w = NAN, .utilization = NAN};
    struct nvml_memory memory = {0};
    struct nvml_utilization rates = {0};
    unsigned celsius = 0, milliwatts = 0;
    if (c->DeviceGetName(part, h.name, sizeof h.name))
        h.name[0] = '\0';
    h.name[sizeof h.name - 1] = '\0';
    make_plain(h.name);
    if (c->DeviceGetMemoryInfo(part, &memory) == 0) {
        h.memory_bytes = memory.total;
        h.memory_used_bytes = memory.used;
    }
    if (c->DeviceGetTemperature(device, SENSOR_GPU, &celsius) == 0)
        h.temperature_c = celsius;
    if (c->DeviceGetPowerUsage(device, &milliwatts) == 0)
        h.power_w = milliwatts / 1e3;
    if (c->DeviceGetUtilizationRates(device, &rates) == 0)
        h.utilization = rates.gpu / 100.0;
    return h;
}

/* Waits for the next time to ask; false: it is over. */
static bool next(struct nvml *n)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PERIOD_S;
    pthread_mutex_lock(&n->lock);
    while (!n->stop && pthread_cond_timedwait(&n->wake, &n->lock, &until) == 0)
        ;
    bool more = !n->stop;
    pthread_mutex_unlock(&n->lock);
    return more;
}

static void *run(void *arg)
{
    struct nvml *n = arg;
    (void)pthread_setname_np(pthread_self(), "convod-nvml");
    struct nvml_calls calls;
    void *device = NULL, *part = NULL, *library = dlopen(n->own ? NULL : n->library, RTLD_NOW | RTLD_LOCAL);
    if (!library || !find(library, &calls) || calls.Init_v2())
        return NULL; /* the library stays open: others of its functions may have begun something */
    if (calls.DeviceGetHandleByPciBusId_v2(n->address, &device) == 0) {
        if (calls.DeviceGetHandleByUUID(n->instance, &part))
            part = device;
        do {
            struct kernels_health h = ask(&calls, device, part);
            pthread_mutex_lock(&n->lock);
            n->last = h;
            n->known = true;
            pthread_mutex_unlock(&n->lock);
        } while (next(n));
    }
    calls.Shutdown();
    return NULL;
}

/* "MIG-" and the UUID in its usual groups. */
static void name_instance(char *to, size_t size, const char uuid[NVML_UUID_BYTES])
{
    size_t at = (size_t)snprintf(to, size, "MIG");
    for (int i = 0; i < NVML_UUID_BYTES; i++)
        at += (size_t)snprintf(to + at, size - at, "%s%02x", i == 0 || (i >= 4 && i <= 10 && i % 2 == 0) ? "-" : "",
                               (unsigned char)uuid[i]);
}

struct nvml *nvml_open(const char *library, const char *pci_address, const char uuid[NVML_UUID_BYTES])
{
    struct nvml *n = calloc(1, sizeof *n);
    if (!n)
        return NULL;
    n->own = !library;
    snprintf(n->library, sizeof n->library, "%s", library ? library : "");
    snprintf(n->address, sizeof n->address, "%s", pci_address);
    name_instance(n->instance, sizeof n->instance, uuid);
    pthread_mutex_init(&n->lock, NULL);
    pthread_cond_init(&n->wake, NULL);
    if (pthread_create(&n->thread, NULL, run, n)) {
        free(n);
        return NULL;
    }
    return n;
}

void nvml_close(struct nvml *n)
{
    struct timespec until;
    if (!n)
        return;
    pthread_mutex_lock(&n->lock);
    n->stop = true;
    pthread_cond_signal(&n->wake);
    pthread_mutex_unlock(&n->lock);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += CLOSE_S;
    if (pthread_timedjoin_np(n->thread, NULL, &until)) {
        pthread_detach(n->thread); /* it may still come back to n, which stays */
        return;
    }
    pthread_cond_destroy(&n->wake);
    pthread_mutex_destroy(&n->lock);
    free(n);
}

bool nvml_read(struct nvml *n, struct kernels_health *out)
{
    if (!n)
        return false;
    pthread_mutex_lock(&n->lock);
    bool known = n->known;
    if (known)
        *out = n->last;
    pthread_mutex_unlock(&n->lock);
    return known;
}
