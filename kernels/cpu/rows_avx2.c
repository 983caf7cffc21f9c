/* rows_avx2.c - the inner functions of rows_internal.h for AVX2, FMA and F16C: rows_lanes.h over pairs of registers. */
#include "kernels/cpu/lanes_avx2.h"

#define LANES_SET kernels_rows_avx2
#include "kernels/cpu/rows_lanes.h"
