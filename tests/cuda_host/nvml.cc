/* nvml.cc - the calls of NVML in use, which kernels/cuda/nvml.c finds in the program by their names. */
#include "tests/cuda_host/internal.h"

#include <mutex>
#include <stdio.h>

#define NOT_SUPPORTED 3
#define NOT_FOUND     6
#define NO_DRIVER     9

static std::mutex mutex;
static struct cuda_host_nvml state = {true, 40, 65500, 25};

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

int nvmlDeviceGetName(void *, char *name, unsigned size)
{
    snprintf(name, size, "an \"emulated\" device");
    return 0;
}

int nvmlDeviceGetMemoryInfo(void *, struct nvml_memory *memory)
{
    *memory = {(unsigned long long)1 << 30, (unsigned long long)3 << 28, (unsigned long long)1 << 28};
    return 0;
}

static int say(int value, unsigned *out)
{
    if (value < 0)
        return NOT_SUPPORTED;
    *out = (unsigned)value;
    return 0;
}

int nvmlDeviceGetTemperature(void *, int, unsigned *celsius)
{
    return say(now().celsius, celsius);
}

int nvmlDeviceGetPowerUsage(void *, unsigned *milliwatts)
{
    return say(now().milliwatts, milliwatts);
}

int nvmlDeviceGetUtilizationRates(void *, struct nvml_utilization *rates)
{
    return say(now().per_cent, &rates->gpu);
}
