/* split.cu - KV into planes of bits and back, beside storage/codec_planes.c and with its bits, so that a processor is
 * left with LZ4 alone. kernels.h has the form, storage/codec_internal.h says what the planes are.
 *
 * An array is a block's, which goes through it by as many blocks of 64 elements as it has threads: a thread splits its
 * own, sums over the threads in front say where its bits come in each string, and the strings of a round are put
 * together in shared memory. Behind it (or before, on the way back) a kernel moves what is in use over the bus. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/functions.h"

#define THREADS       MANY_THREADS
#define BLOCK         64 /* elements */
#define LEVELS        4
#define STRINGS       (2 * (LEVELS - 1))
#define RANKS         12
#define RANKED        15 /* distances from here on have no rank */
#define SAMPLE        8  /* one block of so many is counted for the ranks */
#define HEADER        64
#define HEADER_RANKS  4
#define HEADER_COUNT  16 /* of levels 1 to 3, and of escapes */
#define SLACK         16
#define MOST_CHANNELS 16384 /* whose greatest exponents are in shared memory */
#define MOST_ARRAYS   32    /* of a launch */
#define SLICES        4     /* blocks that move an array */

static_assert(THREADS * BLOCK < 1 << 16, "counts of a round are summed four at a time, 16 bits each");

/* ---- the form ---------------------------------------------------------------------------------------------------- */

enum part { TOP, LEVEL0, MORE, LEVELS_FROM, ESCAPES = LEVELS_FROM + STRINGS, REST, PARTS };

struct places {
    size_t at[PARTS], bytes;
};

struct array {
    int channels, tokens;
    bool channel_major;
    size_t whole, split; /* where it begins there, in bytes */
};

struct arrays {
    struct array array[MOST_ARRAYS];
    enum kernels_kv_type type;
};

static __host__ __device__ size_t blocks_of(const struct array *a)
{
    return ((size_t)a->channels * a->tokens + BLOCK - 1) / BLOCK;
}

/* Room for a part. */
static __host__ __device__ size_t part_room(const struct array *a, enum kernels_kv_type type, int part)
{
    size_t blocks = blocks_of(a);
    switch (part) {
    case TOP:
        return (size_t)a->channels + BLOCK;
    case LEVEL0:
        return blocks * 16;
    case MORE:
        return type == KERNELS_KV_F16 ? blocks * 24 : 0;
    case ESCAPES:
    case REST:
        return blocks * BLOCK;
    default:
        return blocks * 8 + SLACK;
    }
}

static __host__ __device__ struct places places_of(const struct array *a, enum kernels_kv_type type)
{
    struct places p;
    p.bytes = HEADER;
    for (int i = 0; i < PARTS; i++) {
        p.at[i] = p.bytes;
        p.bytes = (p.bytes + part_room(a, type, i) + 15) & ~(size_t)15;
    }
    return p;
}

/* ---- what both ways share ---------------------------------------------------------------------------------------- */

/* Goes along the channels of an array's elements. */
struct channel_at {
    int channel, left; /* channel-major: elements left of it */
};

static __device__ __forceinline__ struct channel_at channel_of(const struct array *a, size_t element)
{
    if (a->channel_major)
        return {(int)(element / a->tokens), a->tokens - (int)(element % a->tokens)};
    return {(int)(element % a->channels), 0};
}

static __device__ __forceinline__ void next_channel(const struct array *a, struct channel_at *c)
{
    if (!a->channel_major) {
        c->channel = c->channel + 1 == a->channels ? 0 : c->channel + 1;
    } else if (--c->left == 0) {
        c->channel++;
        c->left = a->tokens;
    }
}

/* Eight elements; `n` of them are there. */
struct eight {
    uint16_t v[8];
};

static __device__ __forceinline__ struct eight load_eight(const uint16_t *from, int n)
{
    struct eight e = {};
    if (n >= 8 && (uintptr_t)from % 16 == 0) {
        uint4 q = *(const uint4 *)(const void *)from;
        const uint32_t words[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
        for (int i = 0; i < 8; i++)
            e.v[i] = (uint16_t)(words[i / 2] >> i % 2 * 16);
        return e;
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (i < n)
            e.v[i] = from[i];
    return e;
}

static __device__ __forceinline__ void store_eight(uint16_t *to, const struct eight *e, int n)
{
    if (n >= 8 && (uintptr_t)to % 16 == 0) {
        *(uint4 *)(void *)to = make_uint4(e->v[0] | (uint32_t)e->v[1] << 16, e->v[2] | (uint32_t)e->v[3] << 16,
                                          e->v[4] | (uint32_t)e->v[5] << 16, e->v[6] | (uint32_t)e->v[7] << 16);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (i < n)
            to[i] = e->v[i];
}

static __device__ __forceinline__ int exponent(enum kernels_kv_type type, uint16_t x)
{
    return type == KERNELS_KV_BF16 ? x >> 7 & 0xff : x >> 10 & 31;
}

/* The sum of the values of the threads before this one, and of all. `sums` is [THREADS / WARP] and may be used again
 * behind the next barrier. */
static __device__ uint64_t sum_before(uint64_t value, uint64_t *sums, uint64_t *all)
{
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    uint64_t sum = value;
    for (int by = 1; by < WARP; by *= 2) {
        uint64_t other = __shfl_up_sync(ALL_LANES, sum, (unsigned)by);
        sum += lane >= by ? other : 0;
    }
    if (lane == WARP - 1)
        sums[warp] = sum;
    __syncthreads();
    uint64_t before = 0, total = 0;
    for (int w = 0; w < THREADS / WARP; w++) {
        before += w < warp ? sums[w] : 0;
        total += sums[w];
    }
    __syncthreads();
    *all = total;
    return before + sum - value;
}

static __device__ __forceinline__ uint32_t header_count(const uint8_t *header, int i)
{
    return ((const uint32_t *)(const void *)(header + HEADER_COUNT))[i];
}

/* ---- to planes --------------------------------------------------------------------------------------------------- */

/* The greatest exponent of each channel. */
static __device__ void find_tops(const struct array *a, enum kernels_kv_type type, const uint16_t *in, uint8_t *tops)
{
    if (!a->channel_major) {
        for (int c = threadIdx.x; c < a->channels; c += THREADS) {
            int top = 0;
            for (int t = 0; t < a->tokens; t++)
                top = max(top, exponent(type, in[(size_t)t * a->channels + c]));
            tops[c] = (uint8_t)top;
        }
        return;
    }
    for (int c = threadIdx.x / WARP; c < a->channels; c += THREADS / WARP) {
        int top = 0;
        for (int t = threadIdx.x % WARP; t < a->tokens; t += WARP)
            top = max(top, exponent(type, in[(size_t)c * a->tokens + t]));
        for (int flip = 1; flip < WARP; flip *= 2)
            top = max(top, __shfl_xor_sync(ALL_LANES, top, flip));
        if (threadIdx.x % WARP == 0)
            tops[c] = (uint8_t)top;
    }
}

/* Ranks by how often a distance was met, the smaller of equals first; ranks[d] = RANKS where it has none. */
static __device__ void choose_ranks(const unsigned counts[RANKED], uint8_t ranks[RANKED + 1], uint8_t *chosen)
{
    for (int d = 0; d <= RANKED; d++)
        ranks[d] = RANKS;
    for (int r = 0; r < RANKS; r++) {
        int best = -1;
        for (int d = 0; d < RANKED; d++)
            if (ranks[d] == RANKS && (best < 0 || counts[d] > counts[best]))
                best = d;
        ranks[best] = (uint8_t)r;
        chosen[r] = (uint8_t)best;
    }
}

/* A block of 64 elements as codes. */
struct codes {
    uint64_t low[LEVELS], high[LEVELS];
    int count[LEVELS + 1]; /* of each level; of escapes */
};

/* What a thread's block is in planes; `n` elements of it are there. */
static __device__ __forceinline__ void split_block(const struct array *a, enum kernels_kv_type type, const uint16_t *in,
                                                   size_t element, int n, const uint8_t *tops, const uint8_t *ranks,
                                                   struct codes *codes, uint8_t *rest, uint64_t *more)
{
    struct channel_at at = channel_of(a, element);
    uint64_t bits8 = 0, bits9 = 0, signs = 0;
    *codes = {};
    for (int g = 0; g < BLOCK; g += 8) {
        struct eight e = load_eight(in + element + g, n - g);
        uint64_t bytes = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int bit = g + i;
            if (bit >= n)
                continue;
            uint16_t x = e.v[i];
            int d = tops[at.channel] - exponent(type, x), r = ranks[min(d, RANKED)];
            next_channel(a, &at);
#pragma unroll
            for (int k = 0; k < LEVELS; k++) {
                if (r < 3 * k)
                    continue;
                int code = min(r - 3 * k, 3), place = k == 0 ? bit : codes->count[k];
                codes->low[k] |= (uint64_t)(code & 1) << place;
                codes->high[k] |= (uint64_t)(code >> 1) << place;
                codes->count[k]++;
            }
            codes->count[LEVELS] += r == RANKS;
            if (type == KERNELS_KV_BF16) {
                bytes |= (uint64_t)((x >> 8 & 0x80) | (x & 0x7f)) << 8 * i;
            } else {
                bytes |= (uint64_t)(x & 0xff) << 8 * i;
                bits8 |= (uint64_t)(x >> 8 & 1) << bit;
                bits9 |= (uint64_t)(x >> 9 & 1) << bit;
                signs |= (uint64_t)(x >> 15) << bit;
            }
        }
        *(uint64_t *)(void *)(rest + g) = bytes;
    }
    if (type == KERNELS_KV_F16)
        more[0] = bits8, more[1] = bits9, more[2] = signs;
}

/* Adds `count` bits to a zeroed string of words, from bit `at` on. */
static __device__ __forceinline__ void add_bits(unsigned *words, int at, uint64_t bits, int count)
{
    if (!count)
        return;
    int shift = at % 32;
    unsigned *w = words + at / 32;
    atomicOr(w, (unsigned)(bits << shift));
    if (shift + count > 32)
        atomicOr(w + 1, (unsigned)(bits >> (32 - shift)));
    if (shift + count > 64)
        atomicOr(w + 2, (unsigned)(bits >> (64 - shift)));
}

#define STRING_WORDS (THREADS * BLOCK / 32 + 2)

/* A round's bit strings: word 0 begins with those of the round before that did not fill one. */
static __device__ void add_strings(unsigned (*strings)[STRING_WORDS], const struct codes *codes, uint64_t before,
                                   uint64_t all, const unsigned *used, uint8_t *split, const struct places *p)
{
    unsigned carry = 0;
    if (threadIdx.x < STRINGS) /* of the round before, which ended at bit used % 32 */
        carry = strings[threadIdx.x][STRING_WORDS - 1];
    __syncthreads();
    for (int i = threadIdx.x; i < STRINGS * STRING_WORDS; i += THREADS)
        strings[i / STRING_WORDS][i % STRING_WORDS] = 0;
    __syncthreads();
    if (threadIdx.x < STRINGS)
        atomicOr(&strings[threadIdx.x][0], carry);
#pragma unroll
    for (int k = 1; k < LEVELS; k++) {
        int at = (int)(used[k] % 32) + (int)(before >> 16 * (k - 1) & 0xffff);
        add_bits(strings[2 * (k - 1)], at, codes->low[k], codes->count[k]);
        add_bits(strings[2 * (k - 1) + 1], at, codes->high[k], codes->count[k]);
    }
    __syncthreads();
    for (int s = 0; s < STRINGS; s++) {
        int k = s / 2 + 1, bits = (int)(used[k] % 32) + (int)(all >> 16 * (k - 1) & 0xffff);
        unsigned *to = (unsigned *)(void *)(split + p->at[LEVELS_FROM + s]) + used[k] / 32;
        for (int i = threadIdx.x; i < (bits + 31) / 32; i += THREADS)
            to[i] = strings[s][i];
    }
    __syncthreads();
    if (threadIdx.x < STRINGS) {
        int k = threadIdx.x / 2 + 1, bits = (int)(used[k] % 32) + (int)(all >> 16 * (k - 1) & 0xffff);
        unsigned last = bits % 32 ? strings[threadIdx.x][bits / 32] : 0;
        strings[threadIdx.x][STRING_WORDS - 1] = last;
    }
}

/* Escapes of a thread's block, from `to` on. */
static __device__ void write_escapes(const struct array *a, enum kernels_kv_type type, const uint16_t *in,
                                     size_t element, int n, const uint8_t *tops, const uint8_t *ranks, uint8_t *to)
{
    struct channel_at at = channel_of(a, element);
    for (int i = 0; i < n; i++) {
        int e = exponent(type, in[element + i]);
        if (ranks[min(tops[at.channel] - e, RANKED)] == RANKS)
            *to++ = (uint8_t)e;
        next_channel(a, &at);
    }
}

/* A block per array. Its dynamic shared memory is the channels' greatest exponents. */
static __global__ void __launch_bounds__(THREADS) split_array(struct arrays all, const uint8_t *whole, uint8_t *form)
{
    wait_for_earlier();
    SHARED_DYNAMIC(tops);
    SHARED(unsigned, strings, [STRINGS][STRING_WORDS]);
    SHARED(unsigned, counts, [RANKED]);
    SHARED(uint8_t, ranks, [RANKED + 1]);
    SHARED(uint64_t, sums, [THREADS / WARP]);
    const struct array *a = &all.array[blockIdx.x];
    const uint16_t *in = (const uint16_t *)(const void *)(whole + a->whole);
    struct places p = places_of(a, all.type);
    uint8_t *split = form + a->split;
    size_t n = (size_t)a->channels * a->tokens, blocks = blocks_of(a);
    for (int i = threadIdx.x; i < RANKED; i += THREADS)
        counts[i] = 0;
    if (threadIdx.x < STRINGS)
        strings[threadIdx.x][STRING_WORDS - 1] = 0;
    find_tops(a, all.type, in, tops);
    __syncthreads();
    for (int c = threadIdx.x; c < a->channels; c += THREADS)
        split[p.at[TOP] + c] = tops[c];
    for (size_t i = threadIdx.x; i < (blocks + SAMPLE - 1) / SAMPLE * BLOCK; i += THREADS) {
        size_t element = i / BLOCK * (SAMPLE * BLOCK) + i % BLOCK;
        int d = element < n ? tops[channel_of(a, element).channel] - exponent(all.type, in[element]) : RANKED;
        if (d < RANKED)
            atomicAdd(&counts[d], 1u);
    }
    __syncthreads();
    if (threadIdx.x == 0)
        choose_ranks(counts, ranks, split + HEADER_RANKS);
    __syncthreads();
    unsigned used[LEVELS + 1] = {};
    for (size_t first = 0; first < blocks; first += THREADS) {
        size_t block = first + threadIdx.x, element = block * BLOCK;
        struct codes codes = {};
        int here = 0;
        if (block < blocks) {
            here = (int)(n - element < BLOCK ? n - element : BLOCK);
            split_block(a, all.type, in, element, here, tops, ranks, &codes, split + p.at[REST] + element,
                        (uint64_t *)(void *)(split + p.at[MORE]) + 3 * block);
            uint64_t *words = (uint64_t *)(void *)(split + p.at[LEVEL0]) + 2 * block;
            words[0] = codes.low[0];
            words[1] = codes.high[0];
        }
        uint64_t total = 0, own = 0;
#pragma unroll
        for (int k = 1; k <= LEVELS; k++)
            own |= (uint64_t)codes.count[k] << 16 * (k - 1);
        uint64_t before = sum_before(own, sums, &total);
        add_strings(strings, &codes, before, total, used, split, &p);
        if (codes.count[LEVELS])
            write_escapes(a, all.type, in, element, here, tops, ranks,
                          split + p.at[ESCAPES] + used[LEVELS] + (before >> 48));
#pragma unroll
        for (int k = 1; k <= LEVELS; k++)
            used[k] += (unsigned)(total >> 16 * (k - 1) & 0xffff);
    }
    if (threadIdx.x == 0) {
        uint32_t *header = (uint32_t *)(void *)split;
        header[0] = 1;
#pragma unroll
        for (int k = 1; k <= LEVELS; k++)
            header[HEADER_COUNT / 4 + k - 1] = used[k];
    }
}

/* ---- from planes ------------------------------------------------------------------------------------------------- */

/* `count` bits of a string, from bit `at` on. */
static __device__ __forceinline__ uint64_t bits_at(const uint8_t *string, size_t at, int count)
{
    const uint32_t *w = (const uint32_t *)(const void *)string + at / 32;
    int shift = (int)(at % 32);
    uint64_t bits = w[0] | (uint64_t)w[1] << 32;
    bits = shift ? bits >> shift | (uint64_t)w[2] << (64 - shift) : bits;
    return count < 64 ? bits & (((uint64_t)1 << count) - 1) : bits;
}

static __device__ __forceinline__ int bits_set(uint64_t x)
{
    return __popc((unsigned)x) + __popc((unsigned)(x >> 32));
}

/* A thread's block, from its codes; escapes from `escape` on. */
static __device__ __forceinline__ void join_block(const struct array *a, enum kernels_kv_type type, size_t element,
                                                  int n, const uint8_t *tops, const uint8_t *ranks, struct codes codes,
                                                  const uint8_t *escape, const uint8_t *rest, const uint64_t *more,
                                                  uint16_t *out)
{
    struct channel_at at = channel_of(a, element);
    uint64_t bits8 = 0, bits9 = 0, signs = 0;
    if (type == KERNELS_KV_F16)
        bits8 = more[0], bits9 = more[1], signs = more[2];
    for (int g = 0; g < n; g += 8) {
        struct eight e = {};
        uint64_t bytes = *(const uint64_t *)(const void *)(rest + g);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int bit = g + i, r = 0;
            if (bit >= n)
                continue;
            bool more_codes = true;
#pragma unroll
            for (int k = 0; k < LEVELS; k++) {
                if (!more_codes)
                    continue;
                int code = (int)(codes.low[k] & 1) | (int)(codes.high[k] & 1) << 1;
                codes.low[k] >>= 1;
                codes.high[k] >>= 1;
                r += code;
                more_codes = code == 3;
            }
            int exponent_of = r < RANKS ? tops[at.channel] - ranks[r] : *escape++;
            next_channel(a, &at);
            unsigned low = (unsigned)(bytes >> 8 * i) & 0xff;
            if (type == KERNELS_KV_BF16)
                e.v[i] = (uint16_t)((low & 0x80) << 8 | (exponent_of & 0xff) << 7 | (low & 0x7f));
            else
                e.v[i] = (uint16_t)(low | (bits8 >> bit & 1) << 8 | (bits9 >> bit & 1) << 9 |
                                    (uint64_t)(exponent_of & 31) << 10 | (signs >> bit & 1) << 15);
        }
        store_eight(out + element + g, &e, n - g);
    }
}

/* A block per array; as split_array(). What the codes ask for has been checked on the host. */
static __global__ void __launch_bounds__(THREADS) join_array(struct arrays all, const uint8_t *form, uint8_t *whole)
{
    wait_for_earlier();
    SHARED_DYNAMIC(tops);
    SHARED(uint8_t, ranks, [RANKS]);
    SHARED(uint64_t, sums, [THREADS / WARP]);
    const struct array *a = &all.array[blockIdx.x];
    uint16_t *out = (uint16_t *)(void *)(whole + a->whole);
    struct places p = places_of(a, all.type);
    const uint8_t *split = form + a->split;
    size_t n = (size_t)a->channels * a->tokens, blocks = blocks_of(a);
    if (split[0] == 0) { /* the array as it is */
        const uint16_t *in = (const uint16_t *)(const void *)(split + p.at[LEVEL0]);
        for (size_t i = threadIdx.x; i < n; i += THREADS)
            out[i] = in[i];
        return;
    }
    for (int c = threadIdx.x; c < a->channels; c += THREADS)
        tops[c] = split[p.at[TOP] + c];
    if (threadIdx.x < RANKS)
        ranks[threadIdx.x] = split[HEADER_RANKS + threadIdx.x];
    __syncthreads();
    size_t used[LEVELS + 1] = {};
    for (size_t first = 0; first < blocks; first += THREADS) {
        size_t block = first + threadIdx.x, element = block * BLOCK;
        struct codes codes = {};
        if (block < blocks) {
            const uint64_t *words = (const uint64_t *)(const void *)(split + p.at[LEVEL0]) + 2 * block;
            codes.low[0] = words[0];
            codes.high[0] = words[1];
        }
        uint64_t total = 0, before = 0;
#pragma unroll
        for (int k = 1; k <= LEVELS; k++) {
            int count = bits_set(codes.low[k - 1] & codes.high[k - 1]);
            before = sum_before((uint64_t)count, sums, &total);
            if (k < LEVELS) {
                const uint8_t *low = split + p.at[LEVELS_FROM + 2 * (k - 1)];
                const uint8_t *high = split + p.at[LEVELS_FROM + 2 * (k - 1) + 1];
                codes.low[k % LEVELS] = count ? bits_at(low, used[k] + before, count) : 0;
                codes.high[k % LEVELS] = count ? bits_at(high, used[k] + before, count) : 0;
                used[k] += total;
            }
        }
        if (block < blocks)
            join_block(a, all.type, element, (int)(n - element < BLOCK ? n - element : BLOCK), tops, ranks, codes,
                       split + p.at[ESCAPES] + used[LEVELS] + before, split + p.at[REST] + element,
                       (const uint64_t *)(const void *)(split + p.at[MORE]) + 3 * block, out);
        used[LEVELS] += total;
    }
}

/* ---- over the bus ------------------------------------------------------------------------------------------------ */

/* Moves what is in use of each form, in 16 bytes. Grid: arrays, slices. */
static __global__ void __launch_bounds__(THREADS) move_form(struct arrays all, const uint8_t *from, uint8_t *to)
{
    wait_for_earlier();
    const struct array *a = &all.array[blockIdx.x];
    struct places p = places_of(a, all.type);
    from += a->split;
    to += a->split;
    size_t n = (size_t)a->channels * a->tokens, slice = blockIdx.y * THREADS + threadIdx.x;
    auto move = [&](size_t at, size_t bytes) {
        for (size_t i = slice * 16; i < bytes; i += (size_t)SLICES * THREADS * 16)
            *(uint4 *)(void *)(to + at + i) = *(const uint4 *)(const void *)(from + at + i);
    };
    move(0, HEADER);
    if (from[0] == 0) {
        move(p.at[LEVEL0], 2 * n);
        return;
    }
    move(p.at[TOP], (size_t)a->channels);
    move(p.at[LEVEL0], part_room(a, all.type, LEVEL0));
    move(p.at[MORE], part_room(a, all.type, MORE));
    for (int s = 0; s < STRINGS; s++)
        move(p.at[LEVELS_FROM + s], ((size_t)header_count(from, s / 2) + 7) / 8);
    move(p.at[ESCAPES], header_count(from, LEVELS - 1));
    move(p.at[REST], n);
}

/* ---- layers ------------------------------------------------------------------------------------------------------ */

static struct array array_of(const struct kernels_kv *kv, int n, bool keys)
{
    return {kv->kv_heads * kv->head_dim, n, keys, 0, 0};
}

static size_t layer_bytes(const struct kernels_kv *kv, int n)
{
    return 2 * (size_t)kv->kv_heads * (size_t)kv->head_dim * (size_t)n * sizeof(uint16_t);
}

size_t cuda_split_bytes(const struct kernels_kv *layers, int n_layers, int n)
{
    size_t bytes = 0;
    for (int l = 0; l < n_layers; l++) {
        if (layers[l].kv_heads * layers[l].head_dim > MOST_CHANNELS)
            return 0;
        for (bool keys : {true, false}) {
            struct array a = array_of(&layers[l], n, keys);
            bytes += places_of(&a, layers[l].type).bytes;
        }
    }
    return bytes;
}

/* As many layers from the first on as go into a launch and into so many bytes, one anyway; where they lie. */
static int take_layers(const struct kernels_kv *layers, int n_layers, int n, size_t most_bytes, struct arrays *all,
                       size_t *whole, size_t *split)
{
    int taken = 0;
    *whole = *split = 0;
    all->type = layers[0].type;
    while (taken < n_layers && 2 * taken + 2 <= MOST_ARRAYS &&
           (taken == 0 || *whole + layer_bytes(&layers[taken], n) <= most_bytes)) {
        for (bool keys : {true, false}) {
            struct array *a = &all->array[2 * taken + !keys];
            *a = array_of(&layers[taken], n, keys);
            a->whole = *whole;
            a->split = *split;
            *whole += layer_bytes(&layers[taken], n) / 2;
            *split += places_of(a, all->type).bytes;
        }
        taken++;
    }
    return taken;
}

void cuda_split_scratch_bytes(const struct kernels_kv *layers, int n_layers, int n, size_t *whole, size_t *split)
{
    struct arrays all = {};
    *whole = *split = 0;
    for (int l = 0, taken; l < n_layers; l += taken) {
        size_t w, f;
        taken = take_layers(layers + l, n_layers - l, n, CUDA_SPLIT_BYTES, &all, &w, &f);
        *whole = w > *whole ? w : *whole;
        *split = f > *split ? f : *split;
    }
}

static size_t most_channels(const struct arrays *all, int arrays)
{
    int most = 0;
    for (int i = 0; i < arrays; i++)
        most = max(most, all->array[i].channels);
    return (size_t)most;
}

int cuda_kv_export_split(cudaStream_t s, const struct kernels_kv *layers, int n_layers,
                         const struct kernels_pages *pages, int first, int n, struct cuda_split_scratch scratch,
                         uint8_t *split)
{
    struct arrays all = {};
    for (int l = 0, taken; l < n_layers; l += taken) {
        size_t whole, bytes;
        taken = take_layers(layers + l, n_layers - l, n, CUDA_SPLIT_BYTES, &all, &whole, &bytes);
        int error = cuda_kv_export(s, layers + l, taken, pages, first, n, scratch.whole);
        error = error ? error
                      : launched(launch(split_array, 2 * taken, THREADS, most_channels(&all, 2 * taken), s, all,
                                        scratch.whole, scratch.split));
        error = error ? error
                      : launched(launch(move_form, dim3(2 * taken, SLICES), THREADS, 0, s, all, scratch.split, split));
        if (error)
            return error;
        split += bytes;
    }
    return 0;
}

int cuda_kv_import_split(cudaStream_t s, const struct kernels_kv *layers, int n_layers,
                         const struct kernels_pages *pages, int first, int n, struct cuda_split_scratch scratch,
                         const uint8_t *split)
{
    struct arrays all = {};
    for (int l = 0, taken; l < n_layers; l += taken) {
        size_t whole, bytes;
        taken = take_layers(layers + l, n_layers - l, n, CUDA_SPLIT_BYTES, &all, &whole, &bytes);
        int error = launched(launch(move_form, dim3(2 * taken, SLICES), THREADS, 0, s, all, split, scratch.split));
        error = error ? error
                      : launched(launch(join_array, 2 * taken, THREADS, most_channels(&all, 2 * taken), s, all,
                                        scratch.split, scratch.whole));
        error = error ? error : cuda_kv_import(s, layers + l, taken, pages, first, n, scratch.whole);
        if (error)
            return error;
        split += bytes;
    }
    return 0;
}
