/* rope.c - tables of rotary positions: what a batch's rows are rotated by. */
#include "kernels/cpu/rows_internal.h"

#include <math.h>

void kernels_op_rope_table(struct kernels *k, const double *inv_freq, int rot, double magnitude, bool scaled,
                           float *table)
{
    const struct kernels_batch *b = &k->batch;
    for (const struct kernels_run *run = b->runs; run < b->runs + b->n_runs; run++)
        for (int i = 0; i < run->n; i++)
            for (int j = 0; j < rot / 2; j++, table += 2) {
                double s, c;
                sincos((run->pos + i) * inv_freq[j], &s, &c);
                table[0] = (float)(c * magnitude);
                table[1] = (float)(s * magnitude);
                if (scaled) {
                    table[0] *= b->query_scale[run->first_row + i];
                    table[1] *= b->query_scale[run->first_row + i];
                }
            }
}
