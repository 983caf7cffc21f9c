/* codec_internal.h - one array's planes, between the container (codec.c) and the loops over elements (codec_planes.c,
 * codec_avx2.c), which give equal bytes.
 *
 * Elements are taken in memory order in blocks of 64; the last block is padded with rank 0 and zero bits. An element is
 * split into its exponent e and the rest. With o the largest exponent of its channel, d = o - e; the array's twelve
 * most frequent d (of those below 15) have ranks 0..11, all others rank 12 and their exponent in `escapes`.
 *
 * A rank r is cut into four codes of two bits, code[k] = min(3, max(0, r - 3k)), so that r is their sum. Level 0 holds
 * the codes of all elements, level k those of the elements whose code at level k - 1 is 3, close together. Each level
 * has two planes (low and high bits). Level 0's are words of 64 bits, low and high in turn; the others' are bit
 * strings, first bit lowest.
 *
 * The rest: bf16, one byte, sign above the seven bits of mantissa. f16, one byte, the mantissa's low eight bits, and
 * three more planes of words: mantissa bit 8, bit 9, sign.
 */
#ifndef CONVOD_CODEC_INTERNAL_H
#define CONVOD_CODEC_INTERNAL_H

#include <string.h>

#include "storage/storage_internal.h"

#define CODEC_RANKS  12
#define CODEC_RANKED 15 /* d from here on have no rank */
#define CODEC_LEVELS 4
#define CODEC_SLACK  16 /* bytes behind every bit string that may be read or written */
#define CODEC_SAMPLE 8  /* one block of so many is counted for the ranks */
#define CODEC_BLOCK  64

struct codec_shape {
    uint32_t channels, count;
    bool channel_major;
    enum storage_element element;
    size_t n, blocks;
    uint8_t ranks[CODEC_RANKS];   /* d of each rank */
    size_t n_level[CODEC_LEVELS]; /* elements at each level; [0] = n */
    size_t n_escapes;
};

struct codec_planes { /* as they are made */
    struct codec_shape shape;
    uint8_t *top;    /* [channels + 64] largest exponent; token-major: the first 64 again behind the last */
    uint8_t *level0; /* [blocks][2] words */
    uint8_t *level[CODEC_LEVELS][2]; /* [1..3]: low and high bit strings */
    uint8_t *escapes;
    uint8_t *rest; /* [n] */
    uint8_t *more; /* f16: [blocks][3] words */
};

struct codec_source { /* as they are read */
    struct codec_shape shape;
    const uint8_t *top, *level0, *level[CODEC_LEVELS][2], *escapes, *rest, *more;
    bool stream; /* the output is large: write it past the caches */
    /* What is read next, which comes nearer meanwhile; ahead_bytes 0: nothing. */
    const uint8_t *ahead;
    size_t ahead_bytes;
};
#define CODEC_AHEAD 128 /* bytes of it that a block brings: it takes up to as many itself */

struct codec_loops {
    /* Fills top (channels entries). */
    void (*tops)(const struct codec_planes *p, const uint16_t *in);
    /* Counts d < 15 of the sampled blocks. */
    void (*histogram)(const struct codec_planes *p, const uint16_t *in, uint32_t counts[CODEC_RANKED]);
    /* Fills the planes, n_level and n_escapes. Bit strings are zeroed before. */
    void (*encode)(struct codec_planes *p, const uint16_t *in);
    /* 0 or -EBADMSG: the codes need more or less bits than there are. */
    int (*decode)(const struct codec_source *p, uint16_t *out);
    /* XXH3-64. */
    uint64_t (*sum)(const void *p, size_t n);
};
extern const struct codec_loops codec_loops_portable, codec_loops_avx2, codec_loops_avx512;
/* Shared by the two fast ones. */
void codec_tops_avx2(const struct codec_planes *p, const uint16_t *in);
void codec_histogram_avx2(const struct codec_planes *p, const uint16_t *in, uint32_t counts[CODEC_RANKED]);
/* The ones for this processor. */
const struct codec_loops *codec_loops_best(void);

/* Walks the offsets o of the blocks, from the first on. */
struct codec_tops {
    const struct codec_shape *shape;
    const uint8_t *top;
    size_t channel,
        left; /* where the next block begins: token-major, its channel; channel-major, elements left of it */
    uint8_t buf[CODEC_BLOCK];
};
/* The offsets of a block that channels share, put together in buf. */
const uint8_t *codec_tops_mixed(struct codec_tops *t);

static inline struct codec_tops codec_tops_begin(const struct codec_shape *shape, const uint8_t *top)
{
    return (struct codec_tops){.shape = shape, .top = top, .left = shape->count};
}

/* Whether the next block is one channel's: then they are all its offset, which *o gets, and on to the block after it.
 */
static inline bool codec_tops_one(struct codec_tops *t, uint8_t *o)
{
    if (!t->shape->channel_major || t->left < CODEC_BLOCK)
        return false;
    *o = t->top[t->channel];
    t->left -= CODEC_BLOCK;
    if (!t->left) {
        t->channel++;
        t->left = t->shape->count;
    }
    return true;
}

/* The offsets of the next block's 64 elements, and on to the block after it. */
static inline const uint8_t *codec_tops_next(struct codec_tops *t)
{
    if (!t->shape->channel_major) {
        const uint8_t *o = t->top + t->channel;
        t->channel += CODEC_BLOCK;
        if (t->channel >= t->shape->channels)
            t->channel %= t->shape->channels;
        return o;
    }
    uint8_t o;
    if (!codec_tops_one(t, &o))
        return codec_tops_mixed(t);
    memset(t->buf, o, CODEC_BLOCK);
    return t->buf;
}

/* Words in memory that need not be aligned. */
static inline uint64_t codec_load64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline void codec_store64(uint8_t *p, uint64_t v)
{
    memcpy(p, &v, sizeof v);
}

/* Appends n bits (the others of `bits` are zero) to a zeroed bit string. */
static inline void codec_bits_append(uint8_t *s, size_t at, uint64_t bits, unsigned n)
{
    uint8_t *p = s + (at >> 3);
    unsigned shift = at & 7;
    codec_store64(p, codec_load64(p) | bits << shift);
    if (shift + n > 64)
        p[8] |= (uint8_t)(bits >> (64 - shift));
}

/* 64 bits of a bit string from any bit on; those past its end are whatever lies there. */
static inline uint64_t codec_bits_at(const uint8_t *s, size_t at)
{
    const uint8_t *p = s + (at >> 3);
    unsigned shift = at & 7;
    return codec_load64(p) >> shift | (uint64_t)p[8] << 1 << (63 - shift);
}

/* n of them at least, where there are n. */
static inline uint64_t codec_few_bits_at(const uint8_t *s, size_t at, unsigned n)
{
    return n <= 57 ? codec_load64(s + (at >> 3)) >> (at & 7) : codec_bits_at(s, at);
}

/* For each d below 15 the codes of its rank: level 0's high bit on top, its low bit, then level 1's, ... */
void codec_rank_codes(const struct codec_shape *shape, uint8_t codes[16]);

/* Encoding and decoding with given loops, for tests that compare them. */
int64_t codec_encode_with(const struct codec_loops *loops, const struct storage_layout *layout, uint32_t count,
                          const void *payload, void *out, size_t out_size);
int codec_decode_with(const struct codec_loops *loops, const struct storage_layout *layout, uint32_t count,
                      const void *encoded, size_t n, void *payload);
/* Fills one array's split form (storage.h): what a device does as well. */
void codec_array_split(const struct codec_loops *loops, const struct storage_array *a, enum storage_element e,
                       uint32_t count, const uint16_t *in, uint8_t *split);
/* And back: 0 or -EBADMSG. */
int codec_array_join(const struct codec_loops *loops, const struct storage_array *a, enum storage_element e,
                     uint32_t count, uint8_t *split, uint16_t *out);
/* Unpacks one array's section of n bytes, without the container and its checksums, to the split form. */
int codec_array_unpack(const struct storage_array *a, enum storage_element e, uint32_t count, const uint8_t *in,
                       size_t n, uint8_t *split);
/* Decodes one array's section of n bytes, without the container and its checksums; with `stream` past the caches. */
int codec_array_decode(const struct codec_loops *loops, const struct storage_array *a, enum storage_element e,
                       uint32_t count, const uint8_t *in, size_t n, bool stream, void *out);

#endif
