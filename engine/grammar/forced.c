/* forced.c - text that must come next, as far as its tokens are known whatever comes behind it.
 *
 * Where only one byte can follow, again and again, the text is known, but not its tokens: the model's tokenizer may
 * merge the end of it with what comes then. So the text is taken up to a border only: a place that no token of the
 * vocabulary lies across, whichever byte of the text it begins at. Every way to write the text in tokens then has a
 * border there, the model's own among them, and what is before it is written as it would be alone.
 */
#include "engine/grammar/expr.h"
#include "engine/grammar/vocab.h"

#include <string.h>

/* The only byte that can follow, or -1. */
static int only_byte(struct grammar *g, expr e, const uint16_t *class_size, expr *next)
{
    int byte = -1;
    if (e == EXPR_EMPTY || expr_nullable(g, e))
        return -1;
    for (uint32_t class = 0; class < g->n_classes; class ++) {
        expr to = expr_step(g, e, class);
        if (to == EXPR_NOTHING)
            continue;
        if (byte >= 0 || class_size[class] > 1)
            return -1;
        byte = g->class_byte[class];
        *next = to;
    }
    return g->failed ? -1 : byte;
}

/* How far tokens reach that begin with text[0..len): bytes, len + 1 where one may go on behind it. */
static size_t reach(const struct trie *t, const char *text, size_t len)
{
    size_t most = 0, depth = 0;
    uint32_t i = 0, end = t->n;
    while (i < end && depth < len) {
        const struct trie_node *node = &t->nodes[i];
        if (node->byte != (unsigned char)text[depth]) {
            i = node->end;
            continue;
        }
        depth++;
        if (t->nodes[i + 1].token > node->token)
            most = depth;
        end = node->end;
        i++;
        if (depth == len && i < end)
            return len + 1;
    }
    return most;
}

size_t forced_text(struct grammar *g, expr e, char *text, size_t room)
{
    uint16_t class_size[256] = {0};
    size_t len = 0, border = 0, reached = 0;
    for (unsigned b = 0; b < 256; b++)
        class_size[g->class_of[b]]++;
    for (int byte; len < room && (byte = only_byte(g, e, class_size, &e)) >= 0; len++)
        text[len] = (char)byte;
    for (size_t at = 0; at < len && reached <= len; at++) {
        const struct grammar_vocab *v = g->vocab;
        size_t plain = at + reach(&v->plain, text + at, len - at), other = at + reach(&v->other, text + at, len - at);
        reached = plain > reached ? plain : reached;
        reached = other > reached ? other : reached;
        if (reached <= at + 1)
            border = at + 1;
    }
    return border;
}
