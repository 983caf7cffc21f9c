/* blob_fuzz.c - arbitrary bytes as a pack record, as an encoded payload, and as one array's section (where no checksum
 * stands before the parser). The portable and the fast loops must agree, and the way by the split form. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "storage/codec_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool ok)
{
    if (!ok)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 4 || size > 65536)
        return 0;
    /* The shape comes from the first bytes. */
    struct storage_array a[2] = {{1 + data[0] % 80, data[1] & 1}, {1 + data[0] / 4, data[1] & 2}};
    struct storage_layout l = {
        .element = data[1] & 4 ? STORAGE_F16 : STORAGE_BF16, .arrays = a, .n_arrays = 1 + (data[1] >> 3 & 1)};
    uint32_t count = 1 + data[2];
    const uint8_t *in = data + 3;
    size_t n = size - 3;

    struct pack_record r;
    int rc = pack_record_parse(in, n, true, &r);
    check(rc == 0 || rc == -EBADMSG);
    if (!rc)
        check(pack_payload_offset(r.label_bytes) + r.payload_bytes <= n);
    (void)pack_record_parse(in, n, false, &r);

    size_t bytes = codec_payload_bytes(&l, count), first = (size_t)a[0].channels * count * 2;
    uint8_t *x = malloc(bytes), *y = malloc(bytes), *copy = malloc(n);
    check(x && y && copy);
    memcpy(copy, in, n);
    rc = storage_codec_decode(&l, count, copy, n, x);
    check(rc == 0 || rc == -EBADMSG);
    int p = codec_array_decode(&codec_loops_portable, a, l.element, count, copy, n, false, x);
    int q = codec_array_decode(codec_loops_best(), a, l.element, count, copy, n, false, y);
    check(p == q && (p == 0 || p == -EBADMSG));
    check(p != 0 || memcmp(x, y, first) == 0);
    uint8_t *split = malloc(storage_split_bytes(&l, count));
    check(split);
    check(codec_array_unpack(a, l.element, count, copy, n, split) == p);
    if (p == 0) {
        check(codec_array_join(codec_loops_best(), a, l.element, count, split, (uint16_t *)(void *)y) == 0);
        check(memcmp(x, y, first) == 0);
    }
    rc = storage_split_decode(&l, count, copy, n, split);
    check(rc == 0 || rc == -EBADMSG);
    free(split);

    /* The same bytes as a payload come back. */
    if (n >= bytes) {
        size_t bound = storage_codec_bound(&l, count);
        uint8_t *encoded = malloc(bound);
        uint16_t *payload = malloc(bytes);
        check(encoded && payload);
        memcpy(payload, in, bytes);
        int64_t len = storage_codec_encode(&l, count, payload, encoded, bound);
        check(len > 0 && (size_t)len <= bound);
        check(storage_codec_decode(&l, count, encoded, (size_t)len, x) == 0 && memcmp(x, in, bytes) == 0);
        split = malloc(storage_split_bytes(&l, count));
        check(split && storage_split_decode(&l, count, encoded, (size_t)len, split) == 0);
        free(split);
        free(encoded);
        free(payload);
    }
    free(x);
    free(y);
    free(copy);
    return 0;
}
