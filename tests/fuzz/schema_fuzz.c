/* schema_fuzz.c - any bytes as a JSON Schema, and the rest as a document under it.
 *
 * The schema ends at the first zero byte. What compiles must be able to end: from every state that the document reaches
 * each mask has a token, and steps that masks allow can be taken.
 */
#include "engine/grammar/grammar.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

/* Token 0 ends; token i is the byte i - 1. */
static const char *bytes_of(const void *arg, int id, size_t *len)
{
    static char bytes[257];
    (void)arg;
    bytes[id] = (char)(id - 1);
    *len = id > 0;
    return bytes + id;
}

static bool ends(const void *arg, int id)
{
    (void)arg;
    return id == 0;
}

/* Goes on by allowed tokens, the byte of the document where it is allowed, and otherwise another. */
static void follow(struct grammar *g, const uint8_t *text, size_t len)
{
    struct grammar_match *m = grammar_match_new(g);
    require(m != NULL);
    for (size_t i = 0; i < len; i++) {
        uint32_t mask[9];
        int rc = grammar_match_mask(m, mask);
        if (rc == -7) /* E2BIG */
            break;
        require(rc == 0);
        require((mask[0] & 1) == grammar_match_complete(m));
        if (grammar_match_ended(m))
            break;
        uint32_t token = text[i] + 1u;
        for (uint32_t tried = 0; tried < 256 && !(mask[token / 32] >> token % 32 & 1); tried++)
            token = token % 256 + 1;
        require(mask[token / 32] >> token % 32 & 1);
        char byte = (char)(token - 1);
        rc = grammar_match_push(m, &byte, 1);
        require(rc == 0 || rc == -7);
        if (rc)
            break;
    }
    grammar_match_free(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct grammar_vocab *vocab;
    char err[256] = "";
    struct grammar_vocab_opts opts = {257, bytes_of, ends, NULL};
    if (!vocab)
        require(grammar_vocab_new(&opts, &vocab, err, sizeof err) == 0);
    size_t schema = strnlen((const char *)data, size);
    struct grammar *g = NULL;
    if (grammar_from_schema((const char *)data, schema, vocab, data[size ? size - 1 : 0] & 1 ? GRAMMAR_LENIENT : 0, &g,
                            err, sizeof err))
        return 0;
    follow(g, data + schema, size - schema);
    follow(g, data, schema);
    grammar_free(g);
    return 0;
}
