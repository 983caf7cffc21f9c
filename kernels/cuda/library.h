/* library.h - cuBLASLt for products of many rows with F16 and BF16 weights, where it has the bits of this backend's own
 * kernels.
 *
 * For each shape of weights the library's algorithms are tried, on the device at hand and before anything is computed
 * with them: rows of 1, 7, 64 and many tokens must equal those of the kernel for few rows, bit by bit. The first
 * algorithm that does is kept by its attributes; shapes that have none go through halves.cu, and so does everything
 * where the library is missing. So the two may be mixed freely, and what is stored does not depend on which it was:
 * kernels_numerics() is the same with it and without. But that the test holds for all data is the library's maker's to
 * know, and so kernels_backend() says that it is in use.
 *
 * Threads: one caller at a time. A `struct library` that is NULL knows no shape.
 */
#ifndef CONVOD_KERNELS_CUDA_LIBRARY_H
#define CONVOD_KERNELS_CUDA_LIBRARY_H

#include "kernels/cuda/cuda.h"

#define LIBRARY_ROWS 128 /* of x, above which a product is the library's */

struct library;

/* Opens it. NULL, with a text for a person: it is not here, or this program was built without its header. */
struct library *library_open(char *err, size_t err_size);
void library_close(struct library *l);

/* Looks for an algorithm for weights of this type and shape, unless it was looked for before; `w` is one such matrix.
 * Waits, and takes memory of the device meanwhile. False: there is none; the reason, for a person, to err. */
bool library_try(struct library *l, cudaStream_t s, struct cuda_weights w, char *err, size_t err_size);

/* Shapes that were tried, and those of them that have an algorithm. */
void library_count(const struct library *l, int *shapes, int *with);

/* cuda_multiply() of `halves`, without experts. `scratch` [n][w.rows] floats. -ENOTSUP: not with this shape or number
 * of rows, nothing was done; -EIO as there. */
int library_multiply(struct library *l, cudaStream_t s, const struct cuda_product *p, float *scratch);

#endif
