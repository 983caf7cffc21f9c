/* load.cu - weights from the file to the device: rows are copied there as they are, and packed by a kernel, while the
 * caller's thread does what is to be done beside that. And packed ones from the host's memory, in a stream of their
 * own.
 */
#include "kernels/cuda/backend.h"

#include <stdio.h>
#include <string.h>

size_t backend_matrix_bytes(struct kernels *k, enum kernels_type type, int rows, int cols)
{
    (void)k;
    return cuda_weights_bytes(type, rows, cols);
}

static bool make_raw(struct kernels *k, size_t bytes)
{
    if (bytes <= k->raw_bytes)
        return true;
    backend_release(k, KERNELS_DEVICE, k->raw, k->raw_bytes);
    k->raw = (uint8_t *)backend_alloc(k, KERNELS_DEVICE, bytes);
    k->raw_bytes = k->raw ? bytes : 0;
    return k->raw || backend_fine(k, cudaErrorMemoryAllocation, "a piece of the model's file");
}

static void put_rows(struct kernels *k, const struct kernels_matrix *w, int expert, int first, int n, const void *rows)
{
    size_t bytes = (size_t)n * kernels_row_bytes(w->type, w->cols);
    if (!backend_ready(k) || !make_raw(k, bytes))
        return;
    uint8_t *matrix = (uint8_t *)w->data + (size_t)expert * cuda_weights_bytes(w->type, w->rows, w->cols);
    if (backend_fine(k, cudaMemcpyAsync(k->raw, rows, bytes, cudaMemcpyHostToDevice, k->loading), "copying weights"))
        backend_put(k, cuda_pack(k->loading, {w->type, w->rows, w->cols, matrix}, first, n, k->raw), "packing weights");
}

/* What is to be said of the library, after all that was tried of it. */
static void note_library(struct kernels *k)
{
    int shapes, with;
    library_count(k->library, &shapes, &with);
    if (!k->library)
        snprintf(k->notes, sizeof k->notes,
                 "16-bit weights: own kernels have all products, as there is no cuBLASLt: %s", k->library_lacks);
    else if (with < shapes)
        snprintf(k->notes, sizeof k->notes,
                 "16-bit weights: cuBLASLt has products of more than %d rows with %d of %d shapes, own kernels the "
                 "others: %s",
                 LIBRARY_ROWS, with, shapes, k->library_lacks);
    else if (with > 0)
        snprintf(k->notes, sizeof k->notes, "16-bit weights: cuBLASLt has products of more than %d rows", LIBRARY_ROWS);
    if (with > 0)
        k->head.name = DEVICE_NAME "+cublaslt";
}

/* Whether the library's products with weights of this shape are to be had, now that there is one such matrix. */
static void try_library(struct kernels *k, const struct kernels_matrix *w)
{
    char why[sizeof k->library_lacks] = "";
    if (k->exact || w->experts > 0 || !cuda_takes_halves(w->type, w->cols))
        return;
    if (!k->library_asked) {
        k->library_asked = true;
        k->library = library_open(why, sizeof why);
    }
    if (k->library)
        library_try(k->library, k->loading, {w->type, w->rows, w->cols, w->data}, why, sizeof why);
    if (why[0])
        memcpy(k->library_lacks, why, sizeof why);
    note_library(k);
}

void backend_pack(struct kernels *k, const struct kernels_matrix *w, int expert, int first, int n, const void *rows,
                  void (*beside)(void *arg), void *arg)
{
    put_rows(k, w, expert, first, n, rows);
    if (beside)
        beside(arg);
    if (!k->error[0])
        backend_fine(k, cudaStreamSynchronize(k->loading), "packing weights");
    if (!k->error[0] && first + n == w->rows)
        try_library(k, w);
}

void backend_upload(struct kernels *k, void *to, const void *from, size_t bytes)
{
    if (!backend_ready(k) || bytes == 0)
        return;
    if (backend_fine(k, cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, k->loading), "copying to the device"))
        backend_fine(k, cudaStreamSynchronize(k->loading), "copying to the device");
}

/* The place is free when what was put into the compute stream so far is done. Within a step that is recorded the copy
 * becomes a branch of its graph, which brought() joins. */
void backend_bring(struct kernels *k, int place, void *to, const void *from, size_t bytes)
{
    if (backend_ready(k) && backend_fine(k, cudaEventRecord(k->left[place], k->stream[KERNELS_COMPUTE]), "an event") &&
        backend_fine(k, cudaStreamWaitEvent(k->bringing, k->left[place], 0), "waiting for an event") &&
        backend_fine(k, cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, k->bringing), "bringing weights"))
        backend_fine(k, cudaEventRecord(k->there[place], k->bringing), "an event");
}

void backend_brought(struct kernels *k, int place)
{
    if (backend_ready(k) &&
        backend_fine(k, cudaStreamWaitEvent(k->stream[KERNELS_COMPUTE], k->there[place], 0), "waiting for an event"))
        launch_waits = true;
}
