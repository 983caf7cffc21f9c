/* linear_avx512.c - products with AVX-512 and VNNI: linear_lanes.h over registers of 16 rows x 4 values. */
#include "kernels/cpu/lanes_avx512.h"

#define LANES_SET kernels_linear_avx512
#include "kernels/cpu/linear_lanes.h"
