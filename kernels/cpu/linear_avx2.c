/* linear_avx2.c - products with AVX2, FMA and F16C: linear_lanes.h over registers of 8 rows x 4 values. */
#include "kernels/cpu/lanes_avx2.h"

#define LANES_SET kernels_linear_avx2
#include "kernels/cpu/linear_lanes.h"
