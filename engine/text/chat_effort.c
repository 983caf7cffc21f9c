/* chat_effort.c - how much an answer is to be thought about, as far as a template says it: a word in what a context
 * begins with, or empty thinking that an answer opens with; what of that the tokens of a context tell; and what ends
 * thinking.
 */
#include "engine/text/chat_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    unsigned flag;
    const char *word;
} EFFORTS[] = {{ENGINE_CHAT_LOW, "low"}, {ENGINE_CHAT_MEDIUM, "medium"}, {ENGINE_CHAT_HIGH, "high"}};
#define N_EFFORTS (sizeof EFFORTS / sizeof *EFFORTS)

void chat_add_preamble(const struct chat *c, struct builder *b, const struct chat_pieces *pieces, unsigned flags)
{
    const char *before = c->format->effort, *word = NULL;
    for (size_t i = 0; before != NULL && i < N_EFFORTS; i++)
        if (flags & EFFORTS[i].flag)
            word = EFFORTS[i].word;
    for (size_t i = 0; i < pieces->n; i++) {
        const struct chat_piece *p = &pieces->piece[i];
        const char *at = word != NULL && p->id < 0 ? memmem(p->text, p->len, before, strlen(before)) : NULL;
        if (p->id >= 0) {
            chat_add_token(b, p->id);
        } else if (at == NULL) {
            chat_add_bytes(b, p->text, p->len);
        } else {
            const char *end = p->text + p->len, *behind = at + strlen(before);
            chat_add_bytes(b, p->text, (size_t)(behind - p->text));
            chat_add(b, word);
            while (behind < end && *behind != '\n')
                behind++;
            chat_add_bytes(b, behind, (size_t)(end - behind));
        }
    }
}

bool chat_has_efforts(const struct chat *c)
{
    return c->format->effort != NULL;
}

void chat_token_text(const struct vocab *v, engine_token id, char *head, size_t *n, size_t size)
{
    size_t len;
    const char *bytes = vocab_token_bytes(v, id, &len);
    len = len < size - *n ? len : size - *n;
    memcpy(head + *n, bytes, len);
    *n += len;
}

/* Whether the last of the tokens are those of an answer's opening. */
static bool ends_with(const struct vocab *v, const struct chat_pieces *pieces, const engine_token *ids, size_t n)
{
    struct engine_tokens opening = {0};
    struct builder b = {.v = v, .out = &opening, .before = VOCAB_CONTINUES};
    chat_add_pieces(&b, pieces);
    chat_flush(&b);
    free(b.text);
    bool same = b.rc == 0 && opening.n > 0 && opening.n <= n &&
                memcmp(ids + n - opening.n, opening.ids, opening.n * sizeof *ids) == 0;
    engine_tokens_free(&opening);
    return same;
}

unsigned chat_effort(const struct chat *c, const struct vocab *v, const engine_token *ids, size_t n)
{
    unsigned flags = c->unthinking.n > 0 && ends_with(v, &c->unthinking, ids, n) ? ENGINE_CHAT_NO_THINKING : 0;
    char head[1024];
    size_t len = 0;
    /* The preamble is the first message: nobody else's text stands in it. */
    for (size_t i = 0; c->format->effort != NULL && i < n && ids[i] != c->end && len < sizeof head; i++)
        chat_token_text(v, ids[i], head, &len, sizeof head);
    const char *word = len > 0 ? memmem(head, len, c->format->effort, strlen(c->format->effort)) : NULL;
    for (size_t i = 0; word != NULL && i < N_EFFORTS; i++) {
        const char *at = word + strlen(c->format->effort);
        size_t left = (size_t)(head + len - at), k = strlen(EFFORTS[i].word);
        if (left >= k && memcmp(at, EFFORTS[i].word, k) == 0)
            flags |= EFFORTS[i].flag;
    }
    return flags;
}

int chat_end_thinking(const struct chat *c, const struct vocab *v, struct engine_tokens *out)
{
    size_t before = out->n;
    struct builder b = {.v = v, .out = out, .before = VOCAB_CONTINUES, .strip = c->strip};
    if (!chat_thinks(c))
        return -ENOTSUP;
    if (c->start >= 0) { /* Harmony: the next message is the answer's text */
        chat_add_token(&b, c->end);
        chat_add_pieces(&b, &c->before[ENGINE_ASSISTANT]);
    } else {
        chat_add_token(&b, c->think_end_mark);
    }
    chat_flush(&b);
    free(b.text);
    if (b.rc)
        out->n = before;
    return b.rc;
}
