/* linear_floats.h - products of weights that are not quantized, over the parts of lines of linear_lanes.h, which
 * includes this.
 */

LANES_INLINE pfloats float_weights(enum kernels_type type, const uint8_t *group, size_t k, int part)
{
    if (type == KERNELS_F32)
        return pfloats_load((const float *)(const void *)(group + k * 64 + (size_t)part * PART_BYTES));
    return type == KERNELS_F16 ? pfloats_halves(group + k * 32, part) : pfloats_bf16(group + k * 32, part);
}

LANES_INLINE void float_tokens(enum kernels_type type, int tokens, const uint8_t *group, const float *x, size_t cols,
                               float *acc)
{
    for (size_t first = 0; first < cols; first += KERNELS_FLOAT_PIECE) {
        size_t end = cols - first < KERNELS_FLOAT_PIECE ? cols : first + KERNELS_FLOAT_PIECE;
        pfloats sum[LANES_PARTS][LANES_TILE_TOKENS];
        KERNELS_UNROLL
        for (int part = 0; part < LANES_PARTS; part++)
            KERNELS_UNROLL
        for (int t = 0; t < tokens; t++)
            sum[part][t] = pfloats_zero();
        for (size_t k = first; k < end; k++) {
            pfloats w[LANES_PARTS];
            KERNELS_UNROLL
            for (int part = 0; part < LANES_PARTS; part++)
                w[part] = float_weights(type, group, k, part);
            _mm_prefetch((const char *)group + k * (type == KERNELS_F32 ? 64 : 32) + PREFETCH_BYTES, _MM_HINT_T1);
            KERNELS_UNROLL
            for (int t = 0; t < tokens; t++) {
                pfloats value = pfloats_set1(x[(size_t)t * cols + k]);
                KERNELS_UNROLL
                for (int part = 0; part < LANES_PARTS; part++)
                    sum[part][t] = pfloats_fma(w[part], value, sum[part][t]);
            }
        }
        KERNELS_UNROLL
        for (int t = 0; t < tokens; t++)
            KERNELS_UNROLL
        for (int part = 0; part < LANES_PARTS; part++)
            add_sum(acc + t * KERNELS_ROW_GROUP + part * PART_ROWS, sum[part][t]);
    }
}

LANES_INLINE void floats_of_type(enum kernels_type type, const uint8_t *group, const float *x, size_t cols, int tokens,
                                 float *acc)
{
    memset(acc, 0, (size_t)tokens * KERNELS_ROW_GROUP * sizeof *acc);
    for (int n; tokens > 0; tokens -= n, x += (size_t)n * cols, acc += n * KERNELS_ROW_GROUP) {
        if (tokens >= LANES_TILE_TOKENS)
            float_tokens(type, n = LANES_TILE_TOKENS, group, x, cols, acc);
        else if (tokens >= 4)
            float_tokens(type, n = 4, group, x, cols, acc);
        else if (tokens >= 2)
            float_tokens(type, n = 2, group, x, cols, acc);
        else
            float_tokens(type, n = 1, group, x, cols, acc);
    }
}

static void floats(enum kernels_type type, const uint8_t *group, const float *x, int cols, int tokens, float *acc)
{
    if (type == KERNELS_F32)
        floats_of_type(KERNELS_F32, group, x, (size_t)cols, tokens, acc);
    else if (type == KERNELS_F16)
        floats_of_type(KERNELS_F16, group, x, (size_t)cols, tokens, acc);
    else
        floats_of_type(KERNELS_BF16, group, x, (size_t)cols, tokens, acc);
}
