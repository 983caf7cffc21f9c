/* codec.c - the container of encoded payloads: lossless, smaller by what the exponents of keys and values repeat.
 *
 * Mantissas and signs of KV are noise; the exponents of one channel are close to each other. So every array's exponents
 * are taken relative to the largest of their channel, ranked by frequency and written in as few bits as most of them
 * need (codec_internal.h has the planes); the rest is stored as it is. A group of planes that LZ4 makes smaller by an
 * eighth or more is stored that way (arrays that repeat, such as zeros). An array that would not get smaller is stored
 * as it is.
 *
 *   bytes         of an encoded payload
 *   4             "KVC1"
 *   4             number of arrays
 *   16 x arrays   size of its section (4), zero (4), XXH3-64 of its section (8)
 *   8             XXH3-64 of all the above
 *   ...           the sections
 *
 *   bytes         of a section
 *   1             0: stored, n x 2 bytes follow; 1: planes
 *   1             bit k: part k is LZ4 (parts 0..3 are the levels, 4 the escapes)
 *   2             zero
 *   12            d of each rank
 *   16            elements at levels 1, 2, 3, and escapes (4 each)
 *   20            stored sizes of the five parts (4 each)
 *   channels      largest exponents
 *   ...           the five parts
 *   n             the rest; f16: then blocks x 24
 *
 * Numbers are little-endian, which the processor must be.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <lz4.h>

#include "storage/codec_internal.h"

#define MAGIC            0x3143564bu /* "KVC1" */
#define TABLE_ROW        16u
#define SECTION_HEADER   52u
#define PARTS            5
#define LZ4_ACCELERATION 8
#define SPLIT_HEADER     64u
#define SPLIT_ALIGN      16u
#define STREAM_BYTES     ((size_t)1 << 20) /* payloads from here on are decoded past the caches */

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the codec writes words as they lie in memory");

const struct codec_loops *codec_loops_best(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("bmi2"))
        return &codec_loops_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2"))
        return &codec_loops_avx2;
#endif
    return &codec_loops_portable;
}

static uint32_t get32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

static void put32(uint8_t *p, uint32_t v)
{
    memcpy(p, &v, 4);
}

static void put64(uint8_t *p, uint64_t v)
{
    memcpy(p, &v, 8);
}

static size_t elements(const struct storage_array *a, uint32_t count)
{
    if (!a->channels || a->channels > STORAGE_CHANNELS_MAX || !count || count > STORAGE_COUNT_MAX)
        return 0;
    size_t n = (size_t)a->channels * count;
    return n <= STORAGE_PAYLOAD_MAX / 2 ? n : 0;
}

size_t codec_payload_bytes(const struct storage_layout *layout, uint32_t count)
{
    size_t sum = 0;
    if (!layout->n_arrays || layout->n_arrays > STORAGE_ARRAYS_MAX ||
        (layout->element != STORAGE_BF16 && layout->element != STORAGE_F16))
        return 0;
    for (uint32_t i = 0; i < layout->n_arrays; i++) {
        size_t n = elements(&layout->arrays[i], count);
        sum += n * 2;
        if (!n || sum > STORAGE_PAYLOAD_MAX)
            return 0;
    }
    return sum;
}

static size_t table_bytes(uint32_t n_arrays)
{
    return 8 + (size_t)n_arrays * TABLE_ROW + 8;
}

size_t storage_codec_bound(const struct storage_layout *layout, uint32_t count)
{
    size_t payload = codec_payload_bytes(layout, count);
    return payload ? table_bytes(layout->n_arrays) + payload + layout->n_arrays : 0;
}

/* ---- planes and their memory ------------------------------------------------------------------------------------- */

static struct codec_shape shape_of(const struct storage_array *a, enum storage_element e, uint32_t count)
{
    size_t n = (size_t)a->channels * count;
    return (struct codec_shape){.channels = a->channels,
                                .count = count,
                                .channel_major = a->channel_major,
                                .element = e,
                                .n = n,
                                .blocks = (n + CODEC_BLOCK - 1) / CODEC_BLOCK};
}

static size_t bits_bytes(size_t bits)
{
    return (bits + 7) / 8;
}

static size_t more_bytes(const struct codec_shape *shape)
{
    return shape->element == STORAGE_F16 ? shape->blocks * 3 * sizeof(uint64_t) : 0;
}

/* Token-major arrays read 64 tops from any channel on. */
static void tops_wrap(const struct codec_shape *shape, uint8_t *top)
{
    for (size_t i = 0; i < CODEC_BLOCK; i++)
        top[shape->channels + i] = shape->channel_major ? 0 : top[i % shape->channels];
}

/* Places the planes in memory from m on, in the split form (storage.h); returns its bytes. NULL: they are only counted.
 */
static size_t planes_place(struct codec_planes *p, uint8_t *m)
{
    size_t at = SPLIT_HEADER;
    const size_t words = p->shape.blocks * sizeof(uint64_t);
    struct {
        uint8_t **part;
        size_t bytes;
    } parts[] = {{&p->top, p->shape.channels + CODEC_BLOCK}, {&p->level0, 2 * words},
                 {&p->more, more_bytes(&p->shape)},          {&p->level[1][0], words + CODEC_SLACK},
                 {&p->level[1][1], words + CODEC_SLACK},     {&p->level[2][0], words + CODEC_SLACK},
                 {&p->level[2][1], words + CODEC_SLACK},     {&p->level[3][0], words + CODEC_SLACK},
                 {&p->level[3][1], words + CODEC_SLACK},     {&p->escapes, p->shape.blocks * CODEC_BLOCK},
                 {&p->rest, p->shape.blocks * CODEC_BLOCK}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (m)
            *parts[i].part = m + at;
        at = (at + parts[i].bytes + SPLIT_ALIGN - 1) & ~(size_t)(SPLIT_ALIGN - 1);
    }
    return at;
}

static size_t split_bytes(const struct storage_array *a, enum storage_element e, uint32_t count)
{
    struct codec_planes p = {.shape = shape_of(a, e, count)};
    return planes_place(&p, NULL);
}

size_t storage_split_bytes(const struct storage_layout *layout, uint32_t count)
{
    size_t sum = 0;
    for (uint32_t i = 0; codec_payload_bytes(layout, count) && i < layout->n_arrays; i++)
        sum += split_bytes(&layout->arrays[i], layout->element, count);
    return sum;
}

/* Memory for encoding the largest array of a layout. */
static size_t scratch_bytes(const struct storage_layout *layout, uint32_t count)
{
    size_t most = 0;
    for (uint32_t i = 0; i < layout->n_arrays; i++) {
        size_t n = split_bytes(&layout->arrays[i], layout->element, count);
        most = n > most ? n : most;
    }
    return most;
}

/* ---- encoding ---------------------------------------------------------------------------------------------------- */

static void ranks_choose(const uint32_t counts[CODEC_RANKED], uint8_t ranks[CODEC_RANKS])
{
    bool taken[CODEC_RANKED] = {false};
    for (int r = 0; r < CODEC_RANKS; r++) {
        int best = -1;
        for (int d = 0; d < CODEC_RANKED; d++)
            if (!taken[d] && (best < 0 || counts[d] > counts[best]))
                best = d;
        taken[best] = true;
        ranks[r] = (uint8_t)best;
    }
}

/* Appends a part, as LZ4 where that saves an eighth. Returns its size; 0 when there is no room. */
static size_t part_write(uint8_t *out, size_t room, const uint8_t *part, size_t n, bool *lz4)
{
    *lz4 = false;
    if (n >= 64 && n <= LZ4_MAX_INPUT_SIZE) {
        size_t most = n - n / 8;
        int c = LZ4_compress_fast((const char *)part, (char *)out, (int)n, (int)(most < room ? most : room),
                                  LZ4_ACCELERATION);
        if (c > 0) {
            *lz4 = true;
            return (size_t)c;
        }
    }
    if (n > room)
        return 0;
    memcpy(out, part, n);
    return n;
}

/* Fills the planes, which have been placed. */
static void planes_split(const struct codec_loops *loops, struct codec_planes *p, const uint16_t *in)
{
    uint32_t counts[CODEC_RANKED];
    memset(p->level[1][0], 0, (size_t)(p->escapes - p->level[1][0]));
    loops->tops(p, in);
    tops_wrap(&p->shape, p->top);
    loops->histogram(p, in, counts);
    ranks_choose(counts, p->shape.ranks);
    loops->encode(p, in);
}

/* How both forms of an array begin; what is behind it in a header is the caller's. */
static void shape_write(const struct codec_shape *shape, uint8_t *header)
{
    header[0] = 1;
    memcpy(header + 4, shape->ranks, CODEC_RANKS);
    for (int k = 1; k < CODEC_LEVELS; k++)
        put32(header + 16 + 4 * (k - 1), (uint32_t)shape->n_level[k]);
    put32(header + 28, (uint32_t)shape->n_escapes);
}

/* Writes the section of an array that has been split. 0: it takes as much as the array itself, or more. The second bit
 * string of each level moves. */
static size_t planes_write(struct codec_planes *p, uint8_t *out, size_t room)
{
    size_t fixed = SECTION_HEADER + p->shape.channels, rest = p->shape.n + more_bytes(&p->shape);
    if (room < fixed + rest)
        return 0;
    /* The two bit strings of a level lie one behind the other. */
    const uint8_t *parts[PARTS] = {p->level0};
    size_t sizes[PARTS] = {p->shape.blocks * 16};
    for (int k = 1; k < CODEC_LEVELS; k++) {
        size_t half = bits_bytes(p->shape.n_level[k]);
        memmove(p->level[k][0] + half, p->level[k][1], half);
        p->level[k][1] = p->level[k][0] + half;
        parts[k] = p->level[k][0];
        sizes[k] = 2 * half;
    }
    parts[PARTS - 1] = p->escapes;
    sizes[PARTS - 1] = p->shape.n_escapes;

    memset(out, 0, SECTION_HEADER);
    shape_write(&p->shape, out);
    memcpy(out + SECTION_HEADER, p->top, p->shape.channels);
    size_t at = fixed;
    for (int k = 0; k < PARTS; k++) {
        bool lz4;
        size_t n = part_write(out + at, room - rest - at, parts[k], sizes[k], &lz4);
        if (!n && sizes[k])
            return 0;
        out[1] |= (uint8_t)(lz4 << k);
        put32(out + 32 + 4 * k, (uint32_t)n);
        at += n;
    }
    memcpy(out + at, p->rest, p->shape.n);
    memcpy(out + at + p->shape.n, p->more, more_bytes(&p->shape));
    return at + rest;
}

/* The same, read. -EBADMSG: it cannot be of this array. */
static int shape_read(struct codec_shape *shape, const uint8_t *header)
{
    memcpy(shape->ranks, header + 4, CODEC_RANKS);
    shape->n_level[0] = shape->n;
    for (int k = 1; k < CODEC_LEVELS; k++) {
        shape->n_level[k] = get32(header + 16 + 4 * (k - 1));
        if (shape->n_level[k] > shape->n_level[k - 1])
            return -EBADMSG;
    }
    shape->n_escapes = get32(header + 28);
    return shape->n_escapes > shape->n_level[CODEC_LEVELS - 1] ? -EBADMSG : 0;
}

/* What was made, to be read. */
static struct codec_source source_of(const struct codec_planes *p)
{
    struct codec_source s = {
        .shape = p->shape, .top = p->top, .level0 = p->level0, .escapes = p->escapes, .rest = p->rest, .more = p->more};
    for (int k = 1; k < CODEC_LEVELS; k++) {
        s.level[k][0] = p->level[k][0];
        s.level[k][1] = p->level[k][1];
    }
    return s;
}

/* Undoes the split form. */
static int planes_join(const struct codec_loops *loops, const struct codec_planes *p, uint16_t *out)
{
    struct codec_source s = source_of(p);
    tops_wrap(&p->shape, p->top);
    return loops->decode(&s, out);
}

void codec_array_split(const struct codec_loops *loops, const struct storage_array *a, enum storage_element e,
                       uint32_t count, const uint16_t *in, uint8_t *split)
{
    struct codec_planes p = {.shape = shape_of(a, e, count)};
    planes_place(&p, split);
    planes_split(loops, &p, in);
    memset(split, 0, SPLIT_HEADER);
    shape_write(&p.shape, split);
}

int codec_array_join(const struct codec_loops *loops, const struct storage_array *a, enum storage_element e,
                     uint32_t count, uint8_t *split, uint16_t *out)
{
    struct codec_planes p = {.shape = shape_of(a, e, count)};
    planes_place(&p, split);
    if (split[0] == 0) {
        memcpy(out, p.level0, p.shape.n * 2);
        return 0;
    }
    int rc = shape_read(&p.shape, split);
    return rc ? rc : planes_join(loops, &p, out);
}

/* An array's section. 0: no memory, or (in `split`) no split form. */
static size_t section_write(const struct codec_loops *loops, struct codec_planes *p, const uint8_t *in, uint8_t *split,
                            uint8_t *out)
{
    planes_place(p, split);
    if (in)
        planes_split(loops, p, (const uint16_t *)(const void *)in);
    else if (split[0] != 1 || shape_read(&p->shape, split))
        return 0;
    size_t n = planes_write(p, out, p->shape.n * 2);
    if (n)
        return n;
    out[0] = 0;
    if (in) {
        memcpy(out + 1, in, p->shape.n * 2);
        return p->shape.n * 2 + 1;
    }
    uint16_t *whole = malloc(p->shape.n * 2);
    n = whole && !planes_join(loops, p, whole) ? p->shape.n * 2 + 1 : 0;
    if (n)
        memcpy(out + 1, whole, p->shape.n * 2);
    free(whole);
    return n;
}

/* From a payload, by way of `split`, which has room for its largest array; or, without one, from its split form. */
static int64_t container_write(const struct codec_loops *loops, const struct storage_layout *layout, uint32_t count,
                               const uint8_t *payload, uint8_t *split, uint8_t *out)
{
    size_t table = table_bytes(layout->n_arrays), at = table;
    put32(out, MAGIC);
    memcpy(out + 4, &layout->n_arrays, 4);
    for (uint32_t i = 0; i < layout->n_arrays; i++) {
        struct codec_planes p = {.shape = shape_of(&layout->arrays[i], layout->element, count)};
        size_t n = section_write(loops, &p, payload, split, out + at);
        if (!n)
            return -EBADMSG;
        uint8_t *row = out + 8 + (size_t)i * TABLE_ROW;
        put32(row, (uint32_t)n);
        memset(row + 4, 0, 4);
        put64(row + 8, loops->sum(out + at, n));
        at += n;
        if (payload)
            payload += p.shape.n * 2;
        else
            split += planes_place(&p, NULL);
    }
    put64(out + table - 8, loops->sum(out, table - 8));
    return (int64_t)at;
}

int64_t codec_encode_with(const struct codec_loops *loops, const struct storage_layout *layout, uint32_t count,
                          const void *payload, void *out, size_t out_size)
{
    size_t bound = storage_codec_bound(layout, count);
    if (!bound)
        return -EINVAL;
    if (out_size < bound)
        return -ENOBUFS;
    uint8_t *memory = malloc(scratch_bytes(layout, count));
    if (!memory)
        return -ENOMEM;
    int64_t n = container_write(loops, layout, count, payload, memory, out);
    free(memory);
    return n;
}

bool storage_split_finite(const struct storage_layout *layout, uint32_t count, const void *split)
{
    const uint8_t most = layout->element == STORAGE_F16 ? 31 : 255;
    const uint8_t *top = (const uint8_t *)split + SPLIT_HEADER;
    unsigned bad = 0;
    for (uint32_t i = 0; i < layout->n_arrays; i++) {
        for (uint32_t c = 0; c < layout->arrays[i].channels; c++)
            bad |= top[c] == most;
        top += split_bytes(&layout->arrays[i], layout->element, count);
    }
    return !bad;
}

int64_t storage_split_encode(const struct storage_layout *layout, uint32_t count, void *split, void *out,
                             size_t out_size)
{
    size_t bound = storage_codec_bound(layout, count);
    if (!bound)
        return -EINVAL;
    return out_size < bound ? -ENOBUFS : container_write(codec_loops_best(), layout, count, NULL, split, out);
}

/* ---- decoding ---------------------------------------------------------------------------------------------------- */

/* Where a section's parts lie in it, and how long they are in truth. */
struct parts {
    const uint8_t *stored[PARTS];
    size_t stored_bytes[PARTS], bytes[PARTS];
    bool lz4[PARTS];
    const uint8_t *tops, *rest;
};

/* Reads the header of a section of planes. */
static int section_parse(struct codec_shape *shape, const uint8_t *in, size_t n, struct parts *parts)
{
    size_t rest = shape->n + more_bytes(shape);
    if (n < SECTION_HEADER + shape->channels + rest || in[1] >> PARTS || in[2] || in[3] || shape_read(shape, in))
        return -EBADMSG;
    parts->bytes[0] = shape->blocks * 16;
    for (int k = 1; k < CODEC_LEVELS; k++)
        parts->bytes[k] = 2 * bits_bytes(shape->n_level[k]);
    parts->bytes[PARTS - 1] = shape->n_escapes;
    parts->tops = in + SECTION_HEADER;
    const uint8_t *at = parts->tops + shape->channels;
    size_t left = n - SECTION_HEADER - shape->channels - rest;
    for (int k = 0; k < PARTS; k++) {
        size_t stored = get32(in + 32 + 4 * k);
        parts->lz4[k] = in[1] >> k & 1;
        if (stored > left || (parts->lz4[k] ? stored > parts->bytes[k] || !stored : stored != parts->bytes[k]))
            return -EBADMSG;
        parts->stored[k] = at;
        parts->stored_bytes[k] = stored;
        at += stored;
        left -= stored;
    }
    parts->rest = at;
    return left ? -EBADMSG : 0;
}

/* Part k, unpacked. */
static int part_read(const struct parts *parts, int k, uint8_t *to)
{
    if (!parts->lz4[k]) {
        memcpy(to, parts->stored[k], parts->bytes[k]);
        return 0;
    }
    int got = LZ4_decompress_safe((const char *)parts->stored[k], (char *)to, (int)parts->stored_bytes[k],
                                  (int)parts->bytes[k]);
    return got < 0 || (size_t)got != parts->bytes[k] ? -EBADMSG : 0;
}

/* Reads a section; its parts are where they lie, or unpacked in memory that *memory gets. */
static int source_read(struct codec_source *s, const uint8_t *in, size_t n, uint8_t **memory)
{
    struct parts parts;
    int rc = section_parse(&s->shape, in, n, &parts);
    if (rc)
        return rc;
    size_t tops = (s->shape.channels + CODEC_BLOCK + 7) & ~(size_t)7, total = tops;
    for (int k = 0; k < PARTS; k++)
        total += parts.bytes[k] + 2 * CODEC_SLACK;
    uint8_t *m = *memory = malloc(total);
    if (!m)
        return -ENOMEM;
    memcpy(m, parts.tops, s->shape.channels);
    tops_wrap(&s->shape, m);
    s->top = m;
    m += tops;
    for (int k = 0; k < PARTS; k++) {
        const uint8_t *part = parts.stored[k];
        if (parts.lz4[k] || (size_t)(in + n - part) < parts.bytes[k] + CODEC_SLACK) {
            if ((rc = part_read(&parts, k, m)))
                return rc;
            memset(m + parts.bytes[k], 0, CODEC_SLACK);
            part = m;
            m += parts.bytes[k] + CODEC_SLACK;
        }
        if (k == 0) {
            s->level0 = part;
        } else if (k < CODEC_LEVELS) {
            s->level[k][0] = part;
            s->level[k][1] = part + bits_bytes(s->shape.n_level[k]);
        } else {
            s->escapes = part;
        }
    }
    s->rest = parts.rest;
    s->more = parts.rest + s->shape.n;
    return 0;
}

static int section_undo(const struct codec_loops *loops, struct codec_source *s, const uint8_t *in, size_t n, void *out)
{
    if (n >= 1 && in[0] == 0) {
        if (n != s->shape.n * 2 + 1)
            return -EBADMSG;
        memcpy(out, in + 1, s->shape.n * 2);
        return 0;
    }
    if (n < 1 || in[0] != 1)
        return -EBADMSG;
    uint8_t *memory = NULL;
    int rc = source_read(s, in, n, &memory);
    if (!rc)
        rc = loops->decode(s, out);
    free(memory);
    return rc;
}

int codec_array_decode(const struct codec_loops *loops, const struct storage_array *a, enum storage_element e,
                       uint32_t count, const uint8_t *in, size_t n, bool stream, void *out)
{
    struct codec_source s = {.shape = shape_of(a, e, count), .stream = stream};
    return section_undo(loops, &s, in, n, out);
}

/* Whether the container's head is whole and made for so many arrays, whose sections fill the rest. */
static int table_check(const struct codec_loops *loops, const uint8_t *in, size_t n, uint32_t arrays)
{
    size_t table = table_bytes(arrays), at = table;
    uint64_t sum;
    if (n < table || get32(in) != MAGIC || get32(in + 4) != arrays)
        return -EBADMSG;
    memcpy(&sum, in + table - 8, 8);
    if (sum != loops->sum(in, table - 8))
        return -EBADMSG;
    for (uint32_t i = 0; i < arrays; i++) {
        size_t bytes = get32(in + 8 + (size_t)i * TABLE_ROW);
        if (bytes > n - at)
            return -EBADMSG;
        at += bytes;
    }
    return at == n ? 0 : -EBADMSG;
}

/* Array i of a container whose head was checked: its section's checksum is, and it is decoded. */
static int section_decode(const struct codec_loops *loops, const struct storage_layout *layout, uint32_t count,
                          const uint8_t *in, uint32_t i, bool stream, void *out)
{
    size_t at = table_bytes(layout->n_arrays);
    for (uint32_t k = 0; k < i; k++)
        at += get32(in + 8 + (size_t)k * TABLE_ROW);
    const uint8_t *row = in + 8 + (size_t)i * TABLE_ROW;
    size_t bytes = get32(row);
    uint64_t sum;
    memcpy(&sum, row + 8, 8);
    if (sum != loops->sum(in + at, bytes))
        return -EBADMSG;
    /* Who decodes an array mostly decodes the next one after it. */
    struct codec_source s = {.shape = shape_of(&layout->arrays[i], layout->element, count),
                             .stream = stream,
                             .ahead = in + at + bytes,
                             .ahead_bytes = i + 1 < layout->n_arrays ? get32(row + TABLE_ROW) : 0};
    return section_undo(loops, &s, in + at, bytes, out);
}

/* How many of n codes of a level are 3: whose both bits are set. */
static size_t codes_beyond(const uint8_t *low, const uint8_t *high, size_t n)
{
    size_t sum = 0;
    for (size_t i = 0; i < n; i += 64) {
        uint64_t both = codec_load64(low + i / 8) & codec_load64(high + i / 8);
        sum += (size_t)__builtin_popcountll(n - i < 64 ? both & (((uint64_t)1 << (n - i)) - 1) : both);
    }
    return sum;
}

/* What the decoder's loops see as they go: the codes ask for as many elements as each level has. */
static int split_check(const struct codec_planes *p)
{
    size_t beyond = 0;
    for (size_t b = 0; b < p->shape.blocks; b++) {
        uint64_t low = codec_load64(p->level0 + 16 * b), high = codec_load64(p->level0 + 16 * b + 8);
        size_t left = p->shape.n - b * CODEC_BLOCK;
        if (left < CODEC_BLOCK && (low | high) >> left)
            return -EBADMSG;
        beyond += (size_t)__builtin_popcountll(low & high);
    }
    for (int k = 1; k < CODEC_LEVELS; k++) {
        if (beyond != p->shape.n_level[k])
            return -EBADMSG;
        beyond = codes_beyond(p->level[k][0], p->level[k][1], p->shape.n_level[k]);
    }
    return beyond == p->shape.n_escapes ? 0 : -EBADMSG;
}

int codec_array_unpack(const struct storage_array *a, enum storage_element e, uint32_t count, const uint8_t *in,
                       size_t n, uint8_t *split)
{
    struct codec_planes p = {.shape = shape_of(a, e, count)};
    struct parts parts;
    planes_place(&p, split);
    if (n >= 1 && in[0] == 0) {
        if (n != p.shape.n * 2 + 1)
            return -EBADMSG;
        memset(split, 0, SPLIT_HEADER);
        memcpy(p.level0, in + 1, p.shape.n * 2);
        return 0;
    }
    if (n < 1 || in[0] != 1)
        return -EBADMSG;
    int rc = section_parse(&p.shape, in, n, &parts);
    if (rc)
        return rc;
    memcpy(p.top, parts.tops, p.shape.channels);
    uint8_t *const to[PARTS] = {p.level0, p.level[1][0], p.level[2][0], p.level[3][0], p.escapes};
    for (int k = 0; k < PARTS; k++) {
        if ((rc = part_read(&parts, k, to[k])))
            return rc;
        if (k == 0 || k == PARTS - 1)
            continue;
        size_t half = bits_bytes(p.shape.n_level[k]);
        memmove(p.level[k][1], p.level[k][0] + half, half);
        memset(p.level[k][0] + half, 0, CODEC_SLACK);
        memset(p.level[k][1] + half, 0, CODEC_SLACK);
    }
    memcpy(p.rest, parts.rest, p.shape.n);
    if (more_bytes(&p.shape)) /* of a bf16 array it has no place */
        memcpy(p.more, parts.rest + p.shape.n, more_bytes(&p.shape));
    memset(split, 0, SPLIT_HEADER);
    shape_write(&p.shape, split);
    return split_check(&p);
}

int codec_decode_with(const struct codec_loops *loops, const struct storage_layout *layout, uint32_t count,
                      const void *encoded, size_t n, void *payload)
{
    size_t payload_bytes = codec_payload_bytes(layout, count);
    if (!payload_bytes)
        return -EINVAL;
    uint8_t *out = payload;
    int rc = table_check(loops, encoded, n, layout->n_arrays);
    for (uint32_t i = 0; i < layout->n_arrays && !rc; i++) {
        rc = section_decode(loops, layout, count, encoded, i, payload_bytes >= STREAM_BYTES, out);
        out += elements(&layout->arrays[i], count) * 2;
    }
    return rc;
}

int codec_check(const struct storage_layout *layout, uint32_t count, const void *encoded, size_t n)
{
    if (!codec_payload_bytes(layout, count))
        return -EINVAL;
    return table_check(codec_loops_best(), encoded, n, layout->n_arrays);
}

int codec_decode_one(const struct storage_layout *layout, uint32_t count, const void *encoded, uint32_t array,
                     void *rows)
{
    return section_decode(codec_loops_best(), layout, count, encoded, array, false, rows);
}

/* As decoding, to the split form. */
int storage_split_decode(const struct storage_layout *layout, uint32_t count, const void *encoded, size_t n,
                         void *split)
{
    if (!codec_payload_bytes(layout, count))
        return -EINVAL;
    const uint8_t *in = encoded;
    uint8_t *out = split;
    size_t at = table_bytes(layout->n_arrays);
    if (codec_verify(encoded, n) || get32(in + 4) != layout->n_arrays)
        return -EBADMSG;
    for (uint32_t i = 0; i < layout->n_arrays; i++) {
        size_t bytes = get32(in + 8 + (size_t)i * TABLE_ROW);
        int rc = codec_array_unpack(&layout->arrays[i], layout->element, count, in + at, bytes, out);
        if (rc)
            return rc;
        at += bytes;
        out += split_bytes(&layout->arrays[i], layout->element, count);
    }
    return 0;
}

int codec_verify(const void *encoded, size_t n)
{
    const struct codec_loops *loops = codec_loops_best();
    const uint8_t *in = encoded;
    if (n < table_bytes(0) || get32(in + 4) > STORAGE_ARRAYS_MAX)
        return -EBADMSG;
    uint32_t arrays = get32(in + 4);
    size_t at = table_bytes(arrays);
    int rc = table_check(loops, in, n, arrays);
    for (uint32_t i = 0; i < arrays && !rc; i++) {
        const uint8_t *row = in + 8 + (size_t)i * TABLE_ROW;
        uint64_t sum;
        memcpy(&sum, row + 8, 8);
        rc = sum == loops->sum(in + at, get32(row)) ? 0 : -EBADMSG;
        at += get32(row);
    }
    return rc;
}

int64_t storage_codec_encode(const struct storage_layout *layout, uint32_t count, const void *payload, void *out,
                             size_t out_size)
{
    return codec_encode_with(codec_loops_best(), layout, count, payload, out, out_size);
}

int storage_codec_decode(const struct storage_layout *layout, uint32_t count, const void *encoded, size_t n,
                         void *payload)
{
    return codec_decode_with(codec_loops_best(), layout, count, encoded, n, payload);
}
