/* nvml.h - how a GPU is: what NVIDIA's management library (NVML, a part of the driver) says of it.
 *
 * The library is opened at run time and asked by a thread of its own, once a second, so that a driver that does not
 * answer holds nobody up. Where there is none nothing is known, and nothing else changes. NVML's functions are called
 * as its documentation of version 2 of their interfaces has them; its header is not needed.
 */
#ifndef CONVOD_KERNELS_CUDA_NVML_H
#define CONVOD_KERNELS_CUDA_NVML_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/kernels.h"

struct nvml;

#define NVML_UUID_BYTES 16

/* Begins to ask about the device at a PCI address ("0000:3b:00.0"). Where that is shared out in instances (MIG), name
 * and memory are those of the instance with this UUID, as CUDA gives it. `library` is what to open; NULL: the program
 * itself has NVML's functions. NULL: there is no memory or no thread for it. */
struct nvml *nvml_open(const char *library, const char *pci_address, const char uuid[NVML_UUID_BYTES]);

/* Stops asking. NULL is fine. */
void nvml_close(struct nvml *n);

/* What was said last; false: nothing yet, or nothing at all. NULL is fine. [any thread] */
bool nvml_read(struct nvml *n, struct kernels_health *out);

#ifdef __cplusplus
}
#endif

#endif
