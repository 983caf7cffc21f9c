/* spm.c - SentencePiece's byte-pair encoding: pieces with scores, U+2581 for a space, bytes for what has no piece.
 *
 * A text starts as one symbol per character (or per byte that is not UTF-8); the neighbours whose joined text is the
 * piece with the best score are joined first. Unused pieces take no part.
 */
#include "engine/text/vocab_private.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char SPACE[] = "\xe2\x96\x81"; /* U+2581 */
#define SPACE_BYTES 3

size_t spm_decode(const char *text, size_t len, char *out)
{
    size_t n = 0;
    for (size_t i = 0; i < len;) {
        if (len - i >= SPACE_BYTES && memcmp(text + i, SPACE, SPACE_BYTES) == 0) {
            out[n++] = ' ';
            i += SPACE_BYTES;
        } else {
            out[n++] = text[i++];
        }
    }
    return n;
}

int spm_parse_byte(const char *text, size_t len)
{
    static const char DIGITS[] = "0123456789ABCDEF";
    if (len != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>')
        return -1;
    const char *high = memchr(DIGITS, text[3], 16), *low = memchr(DIGITS, text[4], 16);
    return high != NULL && low != NULL ? (int)(high - DIGITS) * 16 + (int)(low - DIGITS) : -1;
}

int spm_load(struct vocab *v, const struct gguf *g, char *err, size_t err_size)
{
    struct gguf_array scores;
    int rc = gguf_get_array(g, "tokenizer.ggml.scores", GGUF_REQUIRED, GGUF_F32, &scores, err, err_size);
    if (rc)
        return rc;
    if (scores.n != (uint64_t)v->n)
        return gguf_fail(g, err, err_size, -EBADMSG, "tokenizer.ggml.scores has %llu values for %d tokens",
                         (unsigned long long)scores.n, v->n);
    v->scores = malloc((size_t)v->n * sizeof *v->scores);
    if (v->scores == NULL)
        return gguf_fail(g, err, err_size, -ENOMEM, "out of memory");
    for (int i = 0; i < 256; i++)
        v->byte_ids[i] = -1;
    for (int i = 0; i < v->n; i++) {
        v->scores[i] = gguf_array_f32(&scores, (uint64_t)i);
        if (isnan(v->scores[i]))
            return gguf_fail(g, err, err_size, -EBADMSG, "tokenizer.ggml.scores[%d] is not a number", i);
        if (v->type[i] != TYPE_BYTE)
            continue;
        unsigned char byte = (unsigned char)v->bytes[v->bytes_at[i]];
        if (v->byte_ids[byte] < 0)
            v->byte_ids[byte] = i;
    }
    v->space_prefix = true;
    v->add_bos = true;
    return gguf_get_bool(g, "tokenizer.ggml.add_space_prefix", GGUF_OPTIONAL, &v->space_prefix, err, err_size);
}

/* ---- text to tokens --------------------------------------------------------------------------------------------- */

struct run {
    const struct vocab *v;
    const char *text;
    uint32_t len;
};

/* A better score gives a lower rank. Not MERGE_NONE: that would be a NaN. */
static uint32_t score_rank(float score)
{
    uint32_t bits;
    score += 0.0f; /* -0 and 0 are one score */
    memcpy(&bits, &score, sizeof bits);
    return (bits & 0x80000000u) != 0 ? bits : ~(bits | 0x80000000u);
}

static uint32_t piece_rank(const void *arg, const struct merge_symbol *symbols, uint32_t left, uint32_t right)
{
    const struct run *r = arg;
    uint32_t start = symbols[left].value, after = symbols[right].next;
    uint32_t end = after != MERGE_NONE ? symbols[after].value : r->len;
    if (end - start > r->v->longest)
        return MERGE_NONE;
    engine_token id = vocab_look_up(r->v, r->text + start, end - start);
    return id >= 0 ? score_rank(r->v->scores[id]) : MERGE_NONE;
}

static int append_symbol(const struct run *r, uint32_t start, uint32_t end, struct engine_tokens *out)
{
    const struct vocab *v = r->v;
    engine_token id = end - start <= v->longest ? vocab_look_up(v, r->text + start, end - start) : -1;
    if (id >= 0)
        return engine_tokens_append(out, &id, 1);
    int rc = 0;
    for (uint32_t i = start; rc == 0 && i < end; i++) {
        id = v->byte_ids[(unsigned char)r->text[i]];
        if (id < 0)
            return v->unknown >= 0 ? engine_tokens_append(out, &v->unknown, 1) : 0;
        rc = engine_tokens_append(out, &id, 1);
    }
    return rc;
}

int spm_tokenize(const struct vocab *v, struct vocab_work *w, const char *text, size_t len, bool prefix,
                 struct engine_tokens *out)
{
    int rc = vocab_work_text(w, len * SPACE_BYTES + SPACE_BYTES);
    if (rc || len == 0)
        return rc;
    size_t n = 0;
    if (prefix) {
        memcpy(w->text, SPACE, SPACE_BYTES);
        n = SPACE_BYTES;
    }
    for (size_t i = 0; i < len; i++) {
        if (text[i] == ' ') {
            memcpy(w->text + n, SPACE, SPACE_BYTES);
            n += SPACE_BYTES;
        } else {
            w->text[n++] = text[i];
        }
    }
    struct run r = {v, w->text, (uint32_t)n};
    size_t n_symbols = 0;
    for (size_t at = 0, char_len; at < n; at += char_len, n_symbols++) {
        char_len = utf8_char(w->text + at, n - at, NULL);
        char_len = char_len > 0 ? char_len : 1;
    }
    if ((rc = merge_reserve(&w->merge, n_symbols)))
        return rc;
    struct merge_symbol *symbols = w->merge.symbols;
    for (size_t at = 0, i = 0, char_len; at < n; at += char_len, i++) {
        char_len = utf8_char(w->text + at, n - at, NULL);
        char_len = char_len > 0 ? char_len : 1;
        symbols[i].value = (uint32_t)at;
    }
    merge_run(&w->merge, n_symbols, piece_rank, &r, NULL);
    for (uint32_t i = 0; rc == 0 && i != MERGE_NONE; i = symbols[i].next) {
        uint32_t next = symbols[i].next;
        rc = append_symbol(&r, symbols[i].value, next != MERGE_NONE ? symbols[next].value : r.len, out);
    }
    return rc;
}
