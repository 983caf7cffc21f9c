/* rope.c - tables of rotary positions: what a batch's rows are rotated by. */
#include "kernels/cpu/rows_internal.h"

#include <string.h>

/* sin(x) and cos(x), 0 <= x < KERNELS_ANGLE_MOST: kernels/constants.h. */
static void turn(double x, double *sine, double *cosine)
{
    double t = x * KERNELS_TURN_2_PI + KERNELS_TURN_SHIFT, k = t - KERNELS_TURN_SHIFT;
    double r = (((x - k * KERNELS_TURN_A) - k * KERNELS_TURN_B) - k * KERNELS_TURN_C) - k * KERNELS_TURN_D;
    double z = r * r, s = KERNELS_SIN_S6, c = KERNELS_COS_C6;
    s = KERNELS_SIN_S5 + z * s;
    s = KERNELS_SIN_S4 + z * s;
    s = KERNELS_SIN_S3 + z * s;
    s = KERNELS_SIN_S2 + z * s;
    s = KERNELS_SIN_S1 + z * s;
    s = r + (r * z) * s;
    c = KERNELS_COS_C5 + z * c;
    c = KERNELS_COS_C4 + z * c;
    c = KERNELS_COS_C3 + z * c;
    c = KERNELS_COS_C2 + z * c;
    c = KERNELS_COS_C1 + z * c;
    c = 1.0 - (0.5 * z - (z * z) * c);
    uint64_t bits;
    memcpy(&bits, &t, sizeof bits);
    unsigned quarter = bits & 3;
    *sine = quarter & 1 ? c : s;
    *cosine = quarter & 1 ? s : c;
    if (quarter & 2)
        *sine = -*sine;
    if (quarter == 1 || quarter == 2)
        *cosine = -*cosine;
}

void kernels_op_rope_table(struct kernels *k, const double *inv_freq, int rot, double magnitude, bool scaled,
                           float *table)
{
    const struct kernels_batch *b = &k->batch;
    for (const struct kernels_run *run = b->runs; run < b->runs + b->n_runs; run++)
        for (int i = 0; i < run->n; i++)
            for (int j = 0; j < rot / 2; j++, table += 2) {
                double s, c;
                turn((run->pos + i) * inv_freq[j], &s, &c);
                table[0] = (float)(c * magnitude);
                table[1] = (float)(s * magnitude);
                if (scaled) {
                    table[0] *= b->query_scale[run->first_row + i];
                    table[1] *= b->query_scale[run->first_row + i];
                }
            }
}
