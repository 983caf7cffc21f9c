/* weights.cu - weights from rows as a file has them to what the products read (weights.h), and rows of the embedding
 * back out of that. Packing moves bits and never rounds. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/weights.h"

#define THREADS 128

static __device__ float half_at(const uint8_t *p)
{
    return widen_f16((uint16_t)(p[0] | p[1] << 8));
}

/* ---- blocks of a file -------------------------------------------------------------------------------------------- */

/* Value v of 32 in nibbles, low half first, with its fifth bit where `high` is. */
static __device__ uint32_t nibble(const uint8_t *nibbles, const uint8_t *high, int v)
{
    uint32_t q = v < 16 ? nibbles[v] & 15u : nibbles[v - 16] >> 4;
    return high ? q | (high[v / 8] >> v % 8 & 1u) << 4 : q;
}

static __device__ uint32_t pair(const uint8_t *pairs, int v)
{
    return pairs[v / 128 * 32 + v % 32] >> (v % 128 / 32 * 2) & 3u;
}

/* The bits of value v of a block. */
static __device__ uint32_t file_bits(enum kernels_type type, const uint8_t *b, int v)
{
    int j = v / 32, i = v % 32;
    switch (type) {
    case KERNELS_Q8_0:
        return b[2 + v];
    case KERNELS_Q4_0:
    case KERNELS_IQ4_NL:
        return nibble(b + 2, NULL, v);
    case KERNELS_Q4_1:
        return nibble(b + 4, NULL, v);
    case KERNELS_Q5_0:
        return nibble(b + 6, b + 2, v);
    case KERNELS_Q5_1:
        return nibble(b + 8, b + 4, v);
    case KERNELS_Q4_K:
        return b[16 + j / 2 * 32 + i] >> (j % 2 * 4) & 15u;
    case KERNELS_Q5_K:
        return (b[48 + j / 2 * 32 + i] >> (j % 2 * 4) & 15u) | (b[16 + i] >> j & 1u) << 4;
    case KERNELS_Q6_K:
        return (b[v / 128 * 64 + j % 2 * 32 + i] >> (v % 128 / 64 * 4) & 15u) | pair(b + 128, v) << 4;
    case KERNELS_Q2_K:
        return pair(b + 16, v);
    case KERNELS_Q3_K:
        return pair(b + 32, v) | (b[i] >> j & 1u) << 2;
    case KERNELS_IQ4_XS:
        return nibble(b + 8 + j * 16, NULL, i);
    default: /* MXFP4 */
        return nibble(b + 1, NULL, v);
    }
}

/* Byte i of a row's head; `b` are its blocks of these 256 values, of which there are `blocks`. */
static __device__ uint8_t file_head(enum kernels_type type, const uint8_t *b, int blocks, int block_bytes, int i)
{
    int k = i / 2 % 8;
    switch (type) {
    case KERNELS_Q4_K:
    case KERNELS_Q5_K:
        return b[i];
    case KERNELS_Q6_K:
        return i < 16 ? b[192 + i] : i < 18 ? b[208 + i - 16] : 0;
    case KERNELS_Q2_K:
        return i < 16 ? b[i] : b[80 + i - 16];
    case KERNELS_Q3_K: {
        const uint8_t *s = b + 96;
        int scale = (i < 8 ? s[i] & 15 : s[(i - 8) % 8] >> 4) | (s[8 + i % 4] >> (i / 4 % 4 * 2) & 3) << 4;
        return i < 16 ? (uint8_t)(scale - 32) : i < 18 ? b[108 + i - 16] : 0;
    }
    case KERNELS_IQ4_XS: {
        int j = i % 8, scale = (b[4 + j / 2] >> (j % 2 * 4) & 15) | ((b[2] | b[3] << 8) >> (2 * j) & 3) << 4;
        return i < 8 ? (uint8_t)(scale - 32) : i < 10 ? b[i - 8] : 0;
    }
    case KERNELS_MXFP4:
        return i < blocks ? b[(size_t)i * block_bytes] : 0;
    default: /* a scale, and for some a minimum, in front of each block */
        return k < blocks ? b[(size_t)k * block_bytes + i % 2 + i / 16 * 2] : 0;
    }
}

/* ---- packing ----------------------------------------------------------------------------------------------------- */

struct pack {
    enum kernels_type type;
    struct weight_layout layout;
    int rows, cols; /* in `file` */
    int block_values, block_bytes;
    const uint8_t *file;
    uint8_t *records;
};

/* The bits of value (row, v of the record), 0 where there is none. */
static __device__ uint32_t bits_at(const struct pack *p, int row, int super, int v)
{
    int col = super * SUPER + v;
    if (row >= p->rows || col >= p->cols)
        return 0;
    size_t block = (size_t)row * (p->cols / p->block_values) + col / p->block_values;
    return file_bits(p->type, p->file + block * p->block_bytes, col % p->block_values);
}

/* Word r of a lane of plane `at`. */
static __device__ uint32_t plane_word(const struct pack *p, int at, int group, int super, int lane, int r)
{
    const struct weight_layout *l = &p->layout;
    int first = 0, subs = 1, bits = 8,
        shift = 0; /* the plane's sub-blocks, bits of a value in it, which of the value's */
    if (at < l->eights) {
        first = at;
    } else if (at < l->eights + l->fours) {
        first = at * 2, subs = 2, bits = 4;
    } else if (at < l->eights + l->fours + l->twos) {
        first = (at - l->fours) * 4, subs = 4, bits = 2, shift = l->fours ? 4 : 0;
    } else {
        subs = 8, bits = 1, shift = l->fours ? 4 : 2;
    }
    int row = group * GROUP_ROWS + lane / 4 + r % 2 * 8;
    uint32_t word = 0;
    for (int j = 0; j < subs; j++)
        for (int i = 0; i < 4; i++) {
            int v = (first + j) * SUB_BLOCK + lane % 4 * 4 + i + r / 2 * 16;
            word |= (bits_at(p, row, super, v) >> shift & ((1u << bits) - 1)) << (8 * i + j * bits);
        }
    return word;
}

/* A warp per record: grid (supers, groups). */
static __global__ void __launch_bounds__(WARP) pack_record(struct pack p)
{
    wait_for_earlier();
    int super = blockIdx.x, group = blockIdx.y, lane = threadIdx.x, planes = weight_planes(p.layout);
    uint8_t *record = p.records + ((size_t)group * gridDim.x + super) * weight_record_bytes(p.layout);
    for (int at = 0; at < planes; at++)
        ((uint4 *)record)[at * WARP + lane] =
            make_uint4(plane_word(&p, at, group, super, lane, 0), plane_word(&p, at, group, super, lane, 1),
                       plane_word(&p, at, group, super, lane, 2), plane_word(&p, at, group, super, lane, 3));
    record += planes * PLANE_BYTES;
    int row_blocks = p.cols / p.block_values, per = SUPER / p.block_values;
    for (int i = lane; i < GROUP_ROWS * p.layout.head; i += WARP) {
        int row = group * GROUP_ROWS + i / p.layout.head;
        const uint8_t *b = p.file + ((size_t)row * row_blocks + (size_t)super * per) * p.block_bytes;
        record[i] = row < p.rows
                        ? file_head(p.type, b, min(per, row_blocks - super * per), p.block_bytes, i % p.layout.head)
                        : 0;
    }
}

size_t cuda_weights_bytes(enum kernels_type type, int rows, int cols)
{
    const struct kernels_type_info *info = kernels_type_info(type);
    if (rows <= 0 || cols <= 0 || cols % info->block_values != 0)
        return 0;
    size_t groups = ((size_t)rows + GROUP_ROWS - 1) / GROUP_ROWS, bytes;
    size_t group = weight_is_float(type) ? (size_t)cols * (size_t)info->block_bytes * GROUP_ROWS
                                         : (size_t)weight_supers(cols) * weight_record_bytes(weight_layout_of(type));
    return __builtin_mul_overflow(groups, group, &bytes) || bytes > SIZE_MAX - 255 ? 0 : (bytes + 255) & ~(size_t)255;
}

/* Groups lie along the grid's y, which ends at 65535: more come in further launches. */
#define MOST_GROUPS 65535

int cuda_pack(cudaStream_t s, struct cuda_weights w, int first, int n, const uint8_t *file)
{
    const struct kernels_type_info *info = kernels_type_info(w.type);
    size_t row_bytes = (size_t)(w.cols / info->block_values) * (size_t)info->block_bytes;
    if (weight_is_float(w.type))
        return launched(cudaMemcpyAsync((uint8_t *)w.data + (size_t)first * row_bytes, file, (size_t)n * row_bytes,
                                        cudaMemcpyDeviceToDevice, s));
    struct weight_layout layout = weight_layout_of(w.type);
    size_t group_bytes = (size_t)weight_supers(w.cols) * weight_record_bytes(layout);
    int error = 0;
    for (int row = 0; row < n && !error; row += MOST_GROUPS * GROUP_ROWS) {
        int rows = n - row < MOST_GROUPS * GROUP_ROWS ? n - row : MOST_GROUPS * GROUP_ROWS;
        struct pack p = {w.type,
                         layout,
                         rows,
                         w.cols,
                         info->block_values,
                         info->block_bytes,
                         file + (size_t)row * row_bytes,
                         (uint8_t *)w.data + (size_t)((first + row) / GROUP_ROWS) * group_bytes};
        error = launched(
            launch(pack_record, dim3(weight_supers(w.cols), (rows + GROUP_ROWS - 1) / GROUP_ROWS), WARP, 0, s, p));
    }
    return error;
}

/* ---- rows of the embedding --------------------------------------------------------------------------------------- */

/* The bits of value v of row `row` of a record. */
static __device__ uint32_t record_bits(const struct weight_layout *l, const uint8_t *record, int row, int v)
{
    int j = v / SUB_BLOCK, lane = row % 8 * 4 + v % 16 / 4;
    int at = lane * 16 + (row / 8 + v % SUB_BLOCK / 16 * 2) * 4 + v % 4; /* in a plane */
    const uint8_t *fours = record + l->eights * PLANE_BYTES, *twos = fours + l->fours * PLANE_BYTES;
    uint32_t bits = 0;
    if (l->eights)
        return record[j * PLANE_BYTES + at];
    if (l->fours)
        bits = fours[j / 2 * PLANE_BYTES + at] >> (j % 2 * 4) & 15u;
    if (l->twos)
        bits |= (twos[j / 4 * PLANE_BYTES + at] >> (j % 4 * 2) & 3u) << (l->fours ? 4 : 0);
    if (l->ones)
        bits |= (twos[l->twos * PLANE_BYTES + at] >> j & 1u) << (l->fours ? 4 : 2);
    return bits;
}

static __device__ float table_value(enum kernels_type type, uint32_t bits)
{
    const int8_t uneven[16] = {KERNELS_IQ4_TABLE}, fp4[16] = {KERNELS_FP4_TABLE};
    return (float)(type == KERNELS_MXFP4 ? fp4[bits] : uneven[bits]);
}

/* Value v of row `row` of a record, dequantized as docs/numerics.md has it. */
static __device__ float record_value(enum kernels_type type, const struct weight_layout *l, const uint8_t *record,
                                     int row, int v)
{
    uint32_t bits = record_bits(l, record, row, v);
    const uint8_t *head = record + weight_planes(*l) * PLANE_BYTES + row * l->head;
    int j = v / 32, k = v / 16;
    float q = l->eights ? (float)(int8_t)bits : (float)((int)bits - l->offset);
    switch (type) {
    case KERNELS_Q8_0:
        return q * half_at(head + 2 * j);
    case KERNELS_Q4_0: /* with a minimum of 0, whose sum is never -0 */
    case KERNELS_Q5_0:
        return q * half_at(head + 2 * j) + 0.0f;
    case KERNELS_Q4_1:
    case KERNELS_Q5_1:
        return q * half_at(head + 2 * j) + half_at(head + 16 + 2 * j);
    case KERNELS_Q4_K:
    case KERNELS_Q5_K: {
        const uint8_t *scales = head + 4;
        int scale = j < 4 ? scales[j] & 63 : (scales[j + 4] & 15) | (scales[j - 4] >> 6) << 4;
        int min = j < 4 ? scales[j + 4] & 63 : scales[j + 4] >> 4 | (scales[j] >> 6) << 4;
        float s = half_at(head) * (float)scale, m = half_at(head + 2) * (float)min;
        return s * q - m;
    }
    case KERNELS_Q2_K:
        return half_at(head + 16) * (float)(head[k] & 15) * q - half_at(head + 18) * (float)(head[k] >> 4);
    case KERNELS_Q6_K:
    case KERNELS_Q3_K:
        return half_at(head + 16) * (float)(int8_t)head[k] * q;
    case KERNELS_IQ4_NL:
        return half_at(head + 2 * j) * table_value(type, bits);
    case KERNELS_IQ4_XS:
        return half_at(head + 8) * (float)(int8_t)head[j] * table_value(type, bits);
    default: /* MXFP4 */
        return power_of(head[j]) * table_value(type, bits);
    }
}

static __global__ void __launch_bounds__(THREADS)
    embed_row(struct cuda_weights w, struct weight_layout l, const int32_t *ids, float scale, float *out)
{
    wait_for_earlier();
    int row = ids[blockIdx.x];
    out += (size_t)blockIdx.x * w.cols;
    if (weight_is_float(w.type)) {
        for (int i = threadIdx.x; i < w.cols; i += THREADS)
            out[i] = scale * weight_float(w.type, w.data, (size_t)row * w.cols + i);
        return;
    }
    const uint8_t *records =
        (const uint8_t *)w.data + (size_t)(row / GROUP_ROWS) * weight_supers(w.cols) * weight_record_bytes(l);
    for (int i = threadIdx.x; i < w.cols; i += THREADS)
        out[i] = scale * record_value(w.type, &l, records + (size_t)(i / SUPER) * weight_record_bytes(l),
                                      row % GROUP_ROWS, i % SUPER);
}

int cuda_embed(cudaStream_t s, struct cuda_weights w, const int32_t *ids, int n, float scale, float *out)
{
    return n <= 0 ? 0 : launched(launch(embed_row, n, THREADS, 0, s, w, weight_layout_of(w.type), ids, scale, out));
}
