/* vocab.h - the tokens of a vocabulary as two tries, shared by vocab.c and mask.c.
 *
 * Most tokens are plain text: whole characters that a JSON string holds as they are. A state within a string takes all
 * of them, or those up to some number of characters, and what it says of the others is found by a walk over a trie that
 * holds only these.
 */
#ifndef CONVOD_GRAMMAR_VOCAB_H
#define CONVOD_GRAMMAR_VOCAB_H

#include "engine/grammar/grammar.h"

#define TOKEN_MAX_PLAIN 24  /* characters of a token that counts as plain */
#define TOKEN_MAX_BYTES 255 /* of a token; longer ones are never allowed */

struct trie_node {
    uint8_t byte;
    uint8_t depth;   /* bytes from the root to here, 1 and up */
    bool whole;      /* these bytes are whole characters */
    uint8_t longest; /* bytes below, on the longest way: not fewer than characters */
    uint32_t end;    /* the first node behind this one's subtree */
    uint32_t token;  /* where this node's tokens begin in `tokens`; they end where the next node's begin */
    uint64_t below;  /* byte_group() bits of the characters that begin below */
};

/* The characters of plain text in 46 groups: letters and digits of a kind, each mark by itself, and what is not ASCII
 * by the first byte, where groups keep apart those that patterns leave out (spaces, ends of lines). */
#define BYTE_GROUPS        46
#define BYTE_GROUP_LETTERS 7ULL                     /* the bits of a-z, A-Z, 0-9 */
#define BYTE_GROUPS_WIDE   (0xffULL << 38 | 1 << 4) /* of what is not ASCII */
static inline uint32_t byte_group(uint8_t b)
{
    if (b >= 'a' && b <= 'z')
        return 0;
    if (b >= 'A' && b <= 'Z')
        return 1;
    if (b >= '0' && b <= '9')
        return 2;
    if (b <= 0x20)
        return 3; /* the space: no other is plain */
    if (b >= 0x80)
        return b <= 0xc2 ? 38 : b < 0xe0 ? 4 : b <= 0xe3 ? b - 0xe0 + 39u : b < 0xef ? 43 : b == 0xef ? 44 : 45;
    return b < '0' ? b - 0x21 + 5u : b < 'A' ? b - 0x3a + 20u : b < 'a' ? b - 0x5b + 27u : b - 0x7b + 33u;
}

/* In depth-first order, one more node behind the last. */
struct trie {
    struct trie_node *nodes;
    uint32_t n, room;
    uint32_t *tokens;
    uint32_t n_tokens;
};

struct grammar_vocab {
    uint32_t n;
    size_t words;
    struct trie plain, other;
    uint32_t *plain_upto[TOKEN_MAX_PLAIN + 1]; /* [words] plain tokens of at most so many characters */
    uint32_t *ends;                            /* [n_ends] */
    uint32_t n_ends;
};

static inline void mask_set(uint32_t *mask, uint32_t token)
{
    mask[token / 32] |= 1u << (token % 32);
}

#endif
