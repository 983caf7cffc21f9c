/* engine_text.c - the text functions of engine.h: an engine's vocabulary, chat format and streams under its own name.
 *
 * Any thread: they read constant data only (a stream belongs to whoever made it).
 */
#include "engine/model/model.h"
#include "engine/text/text.h"

#include <errno.h>
#include <stdio.h>

int engine_tokenize(const struct engine *e, const char *text, size_t len, bool add_special, struct engine_tokens *out)
{
    return vocab_tokenize(engine_vocab(e), text, len, add_special ? VOCAB_ADD_SPECIAL : 0, out);
}

int engine_tokenize_rest(const struct engine *e, const char *text, size_t len, struct engine_tokens *out)
{
    return vocab_tokenize(engine_vocab(e), text, len, VOCAB_CONTINUES, out);
}

const char *engine_token_bytes(const struct engine *e, engine_token id, size_t *len)
{
    return vocab_token_bytes(engine_vocab(e), id, len);
}

bool engine_token_ends_answer(const struct engine *e, engine_token id)
{
    return chat_ends_answer(engine_chat(e), engine_vocab(e), id);
}

const char *engine_chat_format_at(size_t i)
{
    return chat_name_at(i);
}

int engine_chat_render(const struct engine *e, const struct engine_message *messages, size_t n, unsigned flags,
                       struct engine_tokens *out, char *err, size_t err_size)
{
    const struct chat *c = engine_chat(e);
    if (c == NULL) {
        if (err_size > 0)
            snprintf(err, err_size, "the model has no chat format: it is a base model without a template");
        return -ENOTSUP;
    }
    return chat_render(c, engine_vocab(e), messages, n, flags, out, err, err_size);
}

unsigned engine_chat_effort(const struct engine *e, const engine_token *ids, size_t n)
{
    const struct chat *c = engine_chat(e);
    return c != NULL ? chat_effort(c, engine_vocab(e), ids, n) : 0;
}

bool engine_chat_has_efforts(const struct engine *e)
{
    const struct chat *c = engine_chat(e);
    return c != NULL && chat_has_efforts(c);
}

int engine_chat_close(const struct engine *e, struct engine_tokens *out)
{
    const struct chat *c = engine_chat(e);
    return c != NULL ? chat_close(c, engine_vocab(e), out) : -ENOTSUP;
}

struct engine_stream *engine_stream_new(const struct engine *e, const char *const *stops, size_t n_stops)
{
    return stream_new(engine_vocab(e), stops, n_stops);
}

bool engine_chat_thinks(const struct engine *e)
{
    const struct chat *c = engine_chat(e);
    return c != NULL && chat_thinks(c);
}

int engine_chat_end_thinking(const struct engine *e, struct engine_tokens *out)
{
    const struct chat *c = engine_chat(e);
    return c != NULL ? chat_end_thinking(c, engine_vocab(e), out) : -ENOTSUP;
}

int engine_chat_open_call(const struct engine *e, const char *name, struct engine_tokens *out)
{
    const struct chat *c = engine_chat(e);
    return c != NULL ? chat_open_call(c, engine_vocab(e), name, out) : -ENOTSUP;
}

int engine_chat_open_text(const struct engine *e, const char *text, size_t len, struct engine_tokens *out)
{
    const struct chat *c = engine_chat(e);
    return c != NULL ? chat_open_text(c, engine_vocab(e), text, len, out) : -ENOTSUP;
}

int engine_json(const char *text, size_t len, bool sorted, char **out, size_t *out_len)
{
    return text_json(text, len, sorted, out, out_len);
}

struct engine_calls *engine_calls_new(const struct engine *e, const char *tools,
                                      int (*part)(void *arg, const struct engine_part *part), void *arg)
{
    const struct chat *c = engine_chat(e);
    if (c == NULL) {
        errno = ENOTSUP;
        return NULL;
    }
    return calls_new(c, tools, part, arg);
}
