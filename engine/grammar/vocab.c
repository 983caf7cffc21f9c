/* vocab.c - puts a vocabulary's tokens in order. */
#include "engine/grammar/vocab.h"
#include "engine/text/text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct token {
    const char *bytes;
    uint32_t len, id;
};

static int by_bytes(const void *a, const void *b)
{
    const struct token *x = a, *y = b;
    int order = memcmp(x->bytes, y->bytes, x->len < y->len ? x->len : y->len);
    if (order == 0)
        order = (x->len > y->len) - (x->len < y->len);
    return order ? order : (x->id > y->id) - (x->id < y->id);
}

/* Characters of a plain token; 0: it is none. */
static uint32_t plain_characters(const struct token *t)
{
    uint32_t count = 0;
    for (size_t at = 0, n; at < t->len; at += n, count++) {
        unsigned char c = (unsigned char)t->bytes[at];
        n = utf8_char(t->bytes + at, t->len - at, NULL);
        if (n == 0 || c < 0x20 || c == '"' || c == '\\')
            return 0;
    }
    return count <= TOKEN_MAX_PLAIN ? count : 0;
}

static bool whole_characters(const char *bytes, size_t len)
{
    size_t n;
    for (; len > 0 && (n = utf8_char(bytes, len, NULL)) > 0; len -= n)
        bytes += n;
    return len == 0;
}

static int add_node(struct trie *t, const struct trie_node *node)
{
    if (t->n == t->room) {
        uint32_t room = t->room ? t->room * 2 : 1024;
        struct trie_node *nodes = realloc(t->nodes, room * sizeof *nodes);
        if (!nodes)
            return -ENOMEM;
        t->nodes = nodes;
        t->room = room;
    }
    t->nodes[t->n++] = *node;
    return 0;
}

/* tokens are in order of their bytes. */
static int build(struct trie *t, const struct token *tokens, uint32_t n)
{
    uint32_t open[TOKEN_MAX_BYTES + 1], depth = 0;
    t->tokens = malloc((n + 1) * sizeof *t->tokens);
    if (!t->tokens)
        return -ENOMEM;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t common = 0;
        while (i > 0 && common < tokens[i - 1].len && common < tokens[i].len &&
               tokens[i - 1].bytes[common] == tokens[i].bytes[common])
            common++;
        while (depth > common)
            t->nodes[open[--depth]].end = t->n;
        for (; depth < tokens[i].len; depth++) {
            struct trie_node node = {.byte = (uint8_t)tokens[i].bytes[depth],
                                     .depth = (uint8_t)(depth + 1),
                                     .whole = whole_characters(tokens[i].bytes, depth + 1),
                                     .token = t->n_tokens};
            open[depth] = t->n;
            if (add_node(t, &node))
                return -ENOMEM;
        }
        t->tokens[t->n_tokens++] = tokens[i].id;
    }
    while (depth > 0)
        t->nodes[open[--depth]].end = t->n;
    /* From the last node back: what is below a node is below what it is below of. */
    for (uint32_t i = t->n; i-- > 0;)
        for (uint32_t k = i + 1; k < t->nodes[i].end; k = t->nodes[k].end) {
            uint8_t b = t->nodes[k].byte, longest = (uint8_t)(t->nodes[k].longest + 1);
            t->nodes[i].longest = longest > t->nodes[i].longest ? longest : t->nodes[i].longest;
            t->nodes[i].below |= t->nodes[k].below | (b >= 0x80 && b < 0xc0 ? 0 : 1ULL << byte_group(b));
        }
    return add_node(t, &(struct trie_node){.token = t->n_tokens, .end = t->n + 1}) ? -ENOMEM : (t->n--, 0);
}

static int make_plain_masks(struct grammar_vocab *v, const struct token *plain, uint32_t n)
{
    for (int k = 0; k <= TOKEN_MAX_PLAIN; k++)
        if (!(v->plain_upto[k] = calloc(v->words, sizeof(uint32_t))))
            return -ENOMEM;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = plain_characters(&plain[i]); k <= TOKEN_MAX_PLAIN; k++)
            mask_set(v->plain_upto[k], plain[i].id);
    return 0;
}

int grammar_vocab_new(const struct grammar_vocab_opts *opts, struct grammar_vocab **out, char *err, size_t err_size)
{
    if (opts->n <= 0)
        return -EINVAL;
    struct grammar_vocab *v = calloc(1, sizeof *v);
    struct token *tokens = malloc((size_t)opts->n * sizeof *tokens), *other = malloc((size_t)opts->n * sizeof *other);
    uint32_t n_plain = 0, n_other = 0;
    int rc = -ENOMEM;
    if (!v || !tokens || !other)
        goto cleanup;
    v->n = (uint32_t)opts->n;
    v->words = ((size_t)opts->n + 31) / 32;
    v->ends = malloc(v->n * sizeof *v->ends);
    if (!v->ends)
        goto cleanup;
    for (uint32_t i = 0; i < v->n; i++) {
        size_t len = 0;
        const char *bytes = opts->bytes(opts->arg, (int)i, &len);
        struct token t = {bytes, (uint32_t)len, i};
        if (opts->ends(opts->arg, (int)i))
            v->ends[v->n_ends++] = i;
        else if (len > 0 && len <= TOKEN_MAX_BYTES && plain_characters(&t))
            tokens[n_plain++] = t;
        else if (len > 0 && len <= TOKEN_MAX_BYTES)
            other[n_other++] = t;
    }
    if (v->n_ends == 0) {
        snprintf(err, err_size, "the vocabulary has no token that ends an answer");
        rc = -EINVAL;
        goto cleanup;
    }
    qsort(tokens, n_plain, sizeof *tokens, by_bytes);
    qsort(other, n_other, sizeof *other, by_bytes);
    if (build(&v->plain, tokens, n_plain) == 0 && build(&v->other, other, n_other) == 0 &&
        make_plain_masks(v, tokens, n_plain) == 0)
        rc = 0;
cleanup:
    free(tokens);
    free(other);
    if (rc == 0)
        *out = v;
    else
        grammar_vocab_free(v);
    return rc;
}

void grammar_vocab_free(struct grammar_vocab *v)
{
    if (!v)
        return;
    free(v->plain.nodes);
    free(v->plain.tokens);
    free(v->other.nodes);
    free(v->other.tokens);
    for (int k = 0; k <= TOKEN_MAX_PLAIN; k++)
        free(v->plain_upto[k]);
    free(v->ends);
    free(v);
}

size_t grammar_vocab_words(const struct grammar_vocab *v)
{
    return v->words;
}
