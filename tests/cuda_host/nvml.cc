/* nvml.cc - the calls of NVML in use, which kernels/cuda/nvml.c finds in the program by their names. */
#include "tests/cuda_host/internal.h"

#include <mutex>
#include <stdio.h>

#define NOT_SUPPORTED 3
#define NOT_FOUND     6
#define NO_DRIVER     9

static std::mutex mutex;
static struct cuda_host_nvml state = {true, 40, 65500, 25, false};

void cuda_host_set_nvml(struct cuda_host_nvml n)
{
    std::lock_guard<std::mutex> lock(mutex);
    state = n;
}

static struct cuda_host_nvml now(void)
{
    std::lock_guard<std::mutex> lock(mutex);
    return state;
}

/* As NVML's documentation has them. */
struct nvml_memory {
    unsigned long long total, free, used;
};
struct nvml_utilization {
    unsigned gpu, memory;
};
extern "C" {
int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetHandleByPciBusId_v2(const char *address, void **device);
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device);
int nvmlDeviceGetName(void *device, char *name, unsigned size);
int nvmlDeviceGetMemoryInfo(void *device, struct nvml_memory *memory);
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius);
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts);
int nvmlDeviceGetUtilizationRates(void *device, struct nvml_utilization *rates);
}

int nvmlInit_v2(void)
{
    return now().there ? 0 : NO_DRIVER;
}

int nvmlShutdown(void)
{
    return 0;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *address, void **device)
{
    char mine[32];
    *device = nullptr;
    return cudaDeviceGetPCIBusId(mine, sizeof(mine), 0) || strcmp(mine, address) != 0 ? NOT_FOUND : 0;
}

/* The handle of the instance; the card's is null. */
static char instance;

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device)
{
    *device = &instance;
    return now().shared_out && strcmp(uuid, "MIG-a0a3a6a9-acaf-b2b5-b8bb-bec1c4c7cacd") == 0 ? 0 : NOT_FOUND;
}

int nvmlDeviceGetName(void *device, char *name, unsigned size)
{
    snprintf(name, size, "an \"emulated\" device%s", device ? " 1g" : "");
    return 0;
}

int nvmlDeviceGetMemoryInfo(void *device, struct nvml_memory *memory)
{
    int part = device ? 2 : 0;
    *memory = {(unsigned long long)1 << (30 - part), (unsigned long long)3 << (28 - part),
               (unsigned long long)1 << (28 - part)};
    return 0;
}

static int say(int value, unsigned *out)
{
    if (value < 0)
        return NOT_SUPPORTED;
    *out = (unsigned)value;
    return 0;
}

/* An instance says nothing of these. */
int nvmlDeviceGetTemperature(void *device, int, unsigned *celsius)
{
    return say(device ? -1 : now().celsius, celsius);
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts)
{
    return say(device ? -1 : now().milliwatts, milliwatts);
}

int nvmlDeviceGetUtilizationRates(void *device, struct nvml_utilization *rates)
{
    return say(device ? -1 : now().per_cent, &rates->gpu);
}
