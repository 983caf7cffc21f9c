/* load.cu - weights from the file to the device: rows are copied there as they are, and packed by a kernel, while the
 * caller's thread does what is to be done beside that. */
#include "kernels/cuda/backend.h"

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

void backend_pack(struct kernels *k, const struct kernels_matrix *w, int expert, int first, int n, const void *rows,
                  void (*beside)(void *arg), void *arg)
{
    put_rows(k, w, expert, first, n, rows);
    if (beside)
        beside(arg);
    if (!k->error[0])
        backend_fine(k, cudaStreamSynchronize(k->loading), "packing weights");
}

void backend_upload(struct kernels *k, void *to, const void *from, size_t bytes)
{
    if (!backend_ready(k) || bytes == 0)
        return;
    if (backend_fine(k, cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, k->loading), "copying to the device"))
        backend_fine(k, cudaStreamSynchronize(k->loading), "copying to the device");
}
