/* linear_avxvnni.c - products with AVX2 and AVX-VNNI, for processors with VNNI but without AVX-512: linear_lanes.h over
 * registers of 8 rows x 4 values. */
#include "kernels/cpu/lanes_avx2.h"

#define LANES_SET kernels_linear_avxvnni
#include "kernels/cpu/linear_lanes.h"
