/* bpe.c - byte-level byte-pair encoding.
 *
 * The file writes tokens in an alphabet of 256 printable characters, one per byte. Everything here works on the bytes
 * themselves: tokens are decoded once when the file is opened, and merges are kept as pairs of token ids. A piece of
 * text (pretokenizer.c) starts as one token per byte and is merged in the order of the file's list.
 */
#include "engine/text/vocab_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NO_TOKEN UINT32_MAX /* a symbol's value: a byte that the vocabulary lacks */

/* ---- the byte-level alphabet ------------------------------------------------------------------------------------ */

/* The byte for a character of the alphabet, or -1. Printable Latin-1 characters stand for themselves; the other 68
 * bytes were given U+0100, U+0101, ... in ascending order. */
static int alphabet_byte(unsigned c)
{
    if ((c >= 0x21 && c <= 0x7e) || (c >= 0xa1 && c <= 0xac) || (c >= 0xae && c <= 0xff))
        return (int)c;
    if (c < 0x100 || c > 0x143)
        return -1;
    c -= 0x100;
    if (c <= 0x20)
        return (int)c;
    if (c <= 0x42)
        return (int)(c - 0x21 + 0x7f);
    return 0xad;
}

size_t bpe_decode(const char *text, size_t len, char *out)
{
    size_t n = 0;
    for (size_t i = 0; i < len;) {
        size_t char_len = utf8_char(text + i, len - i, NULL);
        int byte = -1;
        if (char_len == 1)
            byte = alphabet_byte((unsigned char)text[i]);
        else if (char_len == 2)
            byte = alphabet_byte(((unsigned char)text[i] & 0x1fu) << 6 | ((unsigned char)text[i + 1] & 0x3fu));
        if (char_len == 0)
            char_len = 1;
        if (byte >= 0) {
            out[n++] = (char)byte;
        } else {
            memcpy(out + n, text + i, char_len);
            n += char_len;
        }
        i += char_len;
    }
    return n;
}

/* ---- merges ----------------------------------------------------------------------------------------------------- */

static uint32_t hash_pair(uint32_t left, uint32_t right)
{
    uint64_t h = ((uint64_t)left << 32 | right) * UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(h >> 32);
}

/* The slot of a pair, or the empty slot where it belongs. */
static struct bpe_pair *find_pair(const struct vocab *v, int32_t left, int32_t right)
{
    uint32_t at = hash_pair((uint32_t)left, (uint32_t)right) & v->pair_mask;
    while (v->pairs[at].left >= 0 && (v->pairs[at].left != left || v->pairs[at].right != right))
        at = (at + 1) & v->pair_mask;
    return &v->pairs[at];
}

static int bad_merge(const struct gguf *g, uint32_t rank, const struct gguf_string *line, const char *why, char *err,
                     size_t err_size)
{
    return gguf_fail(g, err, err_size, -EBADMSG, "tokenizer.ggml.merges[%u] \"%s\" %s", rank,
                     gguf_show(line->text, line->len).text, why);
}

/* Adds one line "left right" to the tables. scratch holds line.len bytes. */
static int add_merge(struct vocab *v, const struct gguf *g, uint32_t rank, struct gguf_string line, char *scratch,
                     char *err, size_t err_size)
{
    const char *space = line.len > 1 ? memchr(line.text + 1, ' ', line.len - 1) : NULL;
    if (space == NULL || space == line.text + line.len - 1)
        return bad_merge(g, rank, &line, "is not two tokens with a space between them", err, err_size);
    size_t left_len = (size_t)(space - line.text), right_len = line.len - left_len - 1;
    size_t left_n = bpe_decode(line.text, left_len, scratch);
    size_t right_n = bpe_decode(space + 1, right_len, scratch + left_n);
    engine_token left = vocab_look_up(v, scratch, left_n);
    engine_token right = vocab_look_up(v, scratch + left_n, right_n);
    engine_token whole = vocab_look_up(v, scratch, left_n + right_n);
    v->merged[rank] = NO_TOKEN;
    if (left < 0 || right < 0 || whole < 0) {
        memcpy(scratch, line.text, left_len);
        memcpy(scratch + left_len, space + 1, right_len);
        /* Control and user-defined tokens are matched as a whole: merges to and from them are never used. */
        if ((left < 0 && vocab_special_n(v, line.text, left_len) < 0) ||
            (right < 0 && vocab_special_n(v, space + 1, right_len) < 0) ||
            (whole < 0 && vocab_special_n(v, scratch, left_len + right_len) < 0))
            return bad_merge(g, rank, &line, "names a token that is not in the vocabulary", err, err_size);
        return 0;
    }
    struct bpe_pair *pair = find_pair(v, left, right);
    if (pair->left < 0) { /* the first of two equal lines counts */
        *pair = (struct bpe_pair){left, right, rank};
        v->merged[rank] = (uint32_t)whole;
    }
    return 0;
}

static int load_merges(struct vocab *v, const struct gguf *g, char *err, size_t err_size)
{
    struct gguf_array merges;
    int rc = gguf_get_array(g, "tokenizer.ggml.merges", GGUF_REQUIRED, GGUF_STRING, &merges, err, err_size);
    if (rc)
        return rc;
    if (merges.n > VOCAB_MAX_MERGES)
        return gguf_fail(g, err, err_size, -EBADMSG, "tokenizer.ggml.merges has %llu entries, more than the limit",
                         (unsigned long long)merges.n);
    size_t slots = 16, longest = 0, cursor = 0;
    while (slots < merges.n * 2)
        slots *= 2;
    for (uint64_t i = 0; i < merges.n; i++) {
        size_t len = gguf_array_next(&merges, &cursor).len;
        longest = len > longest ? len : longest;
    }
    if (longest > 2 * VOCAB_MAX_TOKEN_BYTES + 1)
        return gguf_fail(g, err, err_size, -EBADMSG, "tokenizer.ggml.merges has an entry of %zu bytes", longest);
    char *scratch = malloc(longest + 1);
    v->pairs = malloc(slots * sizeof *v->pairs);
    v->merged = malloc((merges.n + 1) * sizeof *v->merged);
    if (scratch == NULL || v->pairs == NULL || v->merged == NULL) {
        free(scratch);
        return gguf_fail(g, err, err_size, -ENOMEM, "out of memory");
    }
    for (size_t i = 0; i < slots; i++)
        v->pairs[i].left = -1;
    v->pair_mask = (uint32_t)slots - 1;
    cursor = 0;
    for (uint64_t i = 0; rc == 0 && i < merges.n; i++)
        rc = add_merge(v, g, (uint32_t)i, gguf_array_next(&merges, &cursor), scratch, err, err_size);
    free(scratch);
    return rc;
}

int bpe_load(struct vocab *v, const struct gguf *g, char *err, size_t err_size)
{
    struct gguf_string pre = {"default", 7};
    int rc = gguf_get_string(g, "tokenizer.ggml.pre", GGUF_OPTIONAL, &pre, err, err_size);
    if (rc == 0)
        rc = pretokenizer_open(g, pre.text, pre.len, &v->pre, &v->ignore_merges, &v->add_bos, err, err_size);
    if (rc == 0)
        rc = load_merges(v, g, err, err_size);
    for (int byte = 0; rc == 0 && byte < 256; byte++)
        v->byte_ids[byte] = vocab_look_up(v, &(char){(char)byte}, 1);
    return rc;
}

/* ---- text to tokens --------------------------------------------------------------------------------------------- */

static uint32_t pair_rank(const void *arg, const struct merge_symbol *symbols, uint32_t left, uint32_t right)
{
    uint32_t a = symbols[left].value, b = symbols[right].value;
    if (a == NO_TOKEN || b == NO_TOKEN)
        return MERGE_NONE;
    const struct bpe_pair *pair = find_pair(arg, (int32_t)a, (int32_t)b);
    return pair->left >= 0 ? pair->rank : MERGE_NONE;
}

struct piece {
    const struct vocab *v;
    struct vocab_work *w;
    const char *text;
    struct engine_tokens *out;
};

static int tokenize_piece(void *arg, size_t start, size_t end)
{
    const struct piece *p = arg;
    const struct vocab *v = p->v;
    struct merge *m = &p->w->merge;
    size_t n = end - start;
    if (v->ignore_merges && n <= v->longest) {
        engine_token id = vocab_look_up(v, p->text + start, n);
        if (id >= 0)
            return engine_tokens_append(p->out, &id, 1);
    }
    int rc = merge_reserve(m, n);
    if (rc)
        return rc;
    for (size_t i = 0; i < n; i++) {
        engine_token id = v->byte_ids[(unsigned char)p->text[start + i]];
        m->symbols[i].value = id >= 0 ? (uint32_t)id : NO_TOKEN;
    }
    merge_run(m, n, pair_rank, v, v->merged);
    for (uint32_t i = 0; rc == 0 && i != MERGE_NONE; i = m->symbols[i].next) {
        engine_token id = m->symbols[i].value != NO_TOKEN ? (engine_token)m->symbols[i].value : v->unknown;
        if (id >= 0)
            rc = engine_tokens_append(p->out, &id, 1);
    }
    return rc;
}

/* The first byte that is not UTF-8, or len. */
static size_t valid_prefix(const char *text, size_t len)
{
    size_t i = 0, n;
    while (i < len && (n = utf8_char(text + i, len - i, NULL)) > 0)
        i += n;
    return i;
}

int bpe_tokenize(const struct vocab *v, struct vocab_work *w, const char *text, size_t len, struct engine_tokens *out)
{
    struct piece p = {v, w, text, out};
    const char *subject = text;
    size_t valid = valid_prefix(text, len);
    if (valid < len) {
        /* The expressions see a control character, which they class with symbols, for every byte that is not UTF-8;
         * offsets stay the same and the tokens are made of the original bytes. */
        int rc = vocab_work_text(w, len);
        if (rc)
            return rc;
        memcpy(w->text, text, len);
        while (valid < len) {
            w->text[valid++] = '\x01';
            valid += valid_prefix(text + valid, len - valid);
        }
        subject = w->text;
    }
    return pretokenizer_split(v->pre, subject, len, tokenize_piece, &p);
}
