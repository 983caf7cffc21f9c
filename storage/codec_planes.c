/* codec_planes.c - the codec's loops over elements in portable C: what codec_avx2.c must equal byte for byte. */
#include <errno.h>
#include <string.h>

#include <xxhash.h>

#include "storage/codec_internal.h"

static uint8_t exponent(enum storage_element e, uint16_t x)
{
    return (uint8_t)(e == STORAGE_BF16 ? x >> 7 : x >> 10 & 31);
}

const uint8_t *codec_tops_mixed(struct codec_tops *t)
{
    for (size_t i = 0; i < CODEC_BLOCK;) {
        size_t run = CODEC_BLOCK - i < t->left ? CODEC_BLOCK - i : t->left;
        memset(t->buf + i, t->channel < t->shape->channels ? t->top[t->channel] : 0, run);
        i += run;
        t->left -= run;
        if (!t->left) {
            t->channel++;
            t->left = t->shape->count;
        }
    }
    return t->buf;
}

void codec_rank_codes(const struct codec_shape *shape, uint8_t codes[16])
{
    memset(codes, 0xff, 16);
    for (int r = 0; r < CODEC_RANKS; r++) {
        unsigned c = 0;
        for (int k = 0; k < CODEC_LEVELS; k++) {
            int left = r - 3 * k;
            unsigned code = left < 0 ? 0 : left < 3 ? (unsigned)left : 3;
            c |= code << (6 - 2 * k);
        }
        codes[shape->ranks[r]] = (uint8_t)c;
    }
}

static void tops(const struct codec_planes *p, const uint16_t *in)
{
    memset(p->top, 0, p->shape.channels);
    for (size_t i = 0; i < p->shape.n; i++) {
        uint8_t e = exponent(p->shape.element, in[i]);
        uint8_t *top = &p->top[p->shape.channel_major ? i / p->shape.count : i % p->shape.channels];
        if (e > *top)
            *top = e;
    }
}

static void histogram(const struct codec_planes *p, const uint16_t *in, uint32_t counts[CODEC_RANKED])
{
    struct codec_tops tops_at = codec_tops_begin(&p->shape, p->top);
    memset(counts, 0, CODEC_RANKED * sizeof *counts);
    for (size_t b = 0; b < p->shape.blocks; b++) {
        size_t at = b * CODEC_BLOCK, n = p->shape.n - at < CODEC_BLOCK ? p->shape.n - at : CODEC_BLOCK;
        const uint8_t *o = codec_tops_next(&tops_at);
        if (b % CODEC_SAMPLE)
            continue;
        for (size_t i = 0; i < n; i++) {
            uint8_t d = (uint8_t)(o[i] - exponent(p->shape.element, in[at + i]));
            if (d < CODEC_RANKED)
                counts[d]++;
        }
    }
}

static void bit_set(uint8_t *bits, size_t at, unsigned bit)
{
    bits[at >> 3] |= (uint8_t)(bit << (at & 7));
}

static unsigned bit_get(const uint8_t *bits, size_t at)
{
    return bits[at >> 3] >> (at & 7) & 1;
}

static void encode(struct codec_planes *p, const uint16_t *in)
{
    uint8_t rank[256];
    struct codec_tops tops_at = codec_tops_begin(&p->shape, p->top);
    memset(rank, CODEC_RANKS, sizeof rank);
    for (uint8_t r = 0; r < CODEC_RANKS; r++)
        rank[p->shape.ranks[r]] = r;
    for (int k = 1; k < CODEC_LEVELS; k++)
        p->shape.n_level[k] = 0;
    p->shape.n_level[0] = p->shape.n;
    p->shape.n_escapes = 0;
    for (size_t b = 0; b < p->shape.blocks; b++) {
        size_t at = b * CODEC_BLOCK, n = p->shape.n - at < CODEC_BLOCK ? p->shape.n - at : CODEC_BLOCK;
        const uint8_t *o = codec_tops_next(&tops_at);
        uint64_t low = 0, high = 0, more[3] = {0};
        for (size_t i = 0; i < n; i++) {
            uint16_t x = in[at + i];
            uint8_t e = exponent(p->shape.element, x);
            unsigned r = rank[(uint8_t)(o[i] - e)];
            unsigned code = r < 3 ? r : 3;
            low |= (uint64_t)(code & 1) << i;
            high |= (uint64_t)(code >> 1) << i;
            for (int k = 1; k < CODEC_LEVELS && code == 3; k++) {
                r -= 3;
                code = r < 3 ? r : 3;
                bit_set(p->level[k][0], p->shape.n_level[k], code & 1);
                bit_set(p->level[k][1], p->shape.n_level[k], code >> 1);
                p->shape.n_level[k]++;
                if (k == CODEC_LEVELS - 1 && code == 3)
                    p->escapes[p->shape.n_escapes++] = e;
            }
            if (p->shape.element == STORAGE_BF16) {
                p->rest[at + i] = (uint8_t)((x >> 8 & 0x80) | (x & 0x7f));
            } else {
                p->rest[at + i] = (uint8_t)x;
                more[0] |= (uint64_t)(x >> 8 & 1) << i;
                more[1] |= (uint64_t)(x >> 9 & 1) << i;
                more[2] |= (uint64_t)(x >> 15 & 1) << i;
            }
        }
        memcpy(p->level0 + 16 * b, &low, sizeof low);
        memcpy(p->level0 + 16 * b + 8, &high, sizeof high);
        if (p->shape.element == STORAGE_F16)
            memcpy(p->more + 24 * b, more, sizeof more);
    }
}

static int decode(const struct codec_source *p, uint16_t *out)
{
    struct codec_tops tops_at = codec_tops_begin(&p->shape, p->top);
    size_t used[CODEC_LEVELS] = {0}, escapes = 0;
    for (size_t b = 0; b < p->shape.blocks; b++) {
        size_t at = b * CODEC_BLOCK, n = p->shape.n - at < CODEC_BLOCK ? p->shape.n - at : CODEC_BLOCK;
        const uint8_t *o = codec_tops_next(&tops_at);
        uint64_t low, high, more[3] = {0};
        memcpy(&low, p->level0 + 16 * b, sizeof low);
        memcpy(&high, p->level0 + 16 * b + 8, sizeof high);
        if (p->shape.element == STORAGE_F16)
            memcpy(more, p->more + 24 * b, sizeof more);
        if (n < CODEC_BLOCK && (low | high) >> n)
            return -EBADMSG;
        for (size_t i = 0; i < n; i++) {
            unsigned code = (unsigned)(low >> i & 1) | (unsigned)(high >> i & 1) << 1, r = code;
            for (int k = 1; k < CODEC_LEVELS && code == 3; k++) {
                if (used[k] == p->shape.n_level[k])
                    return -EBADMSG;
                code = bit_get(p->level[k][0], used[k]) | bit_get(p->level[k][1], used[k]) << 1;
                r += code;
                used[k]++;
            }
            uint8_t e;
            if (r < CODEC_RANKS) {
                e = (uint8_t)(o[i] - p->shape.ranks[r]);
            } else {
                if (escapes == p->shape.n_escapes)
                    return -EBADMSG;
                e = p->escapes[escapes++];
            }
            uint16_t rest = p->rest[at + i];
            if (p->shape.element == STORAGE_BF16)
                out[at + i] = (uint16_t)((rest & 0x80) << 8 | e << 7 | (rest & 0x7f));
            else
                out[at + i] = (uint16_t)(rest | (more[0] >> i & 1) << 8 | (more[1] >> i & 1) << 9 | (e & 31) << 10 |
                                         (more[2] >> i & 1) << 15);
        }
    }
    for (int k = 1; k < CODEC_LEVELS; k++)
        if (used[k] != p->shape.n_level[k])
            return -EBADMSG;
    return escapes == p->shape.n_escapes ? 0 : -EBADMSG;
}

static uint64_t sum(const void *p, size_t n)
{
    return XXH3_64bits(p, n);
}

const struct codec_loops codec_loops_portable = {
    .tops = tops, .histogram = histogram, .encode = encode, .decode = decode, .sum = sum};
