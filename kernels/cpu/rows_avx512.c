/* rows_avx512.c - the inner functions of rows_internal.h for AVX-512 (F, BW, VL, DQ): rows_lanes.h over registers of
 * 16 lanes. */
#include "kernels/cpu/lanes_avx512.h"

#define LANES_SET kernels_rows_avx512
#include "kernels/cpu/rows_lanes.h"
