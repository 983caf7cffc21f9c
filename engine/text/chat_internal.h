/* chat_internal.h - how a model's chat format writes messages.
 *
 * Threads: constant after chat_open(); any thread may render. The gguf and the vocab must outlive it.
 */
#ifndef CONVOD_CHAT_INTERNAL_H
#define CONVOD_CHAT_INTERNAL_H

#include "engine/engine.h"
#include "engine/file/file.h"
#include "engine/text/text.h"

#define CHAT_MAX_TEMPLATE_BYTES (1 << 20)
#define CHAT_MAX_LITERAL_BYTES  16384 /* a text taken out of a template */

struct chat;

/* Recognises tokenizer.chat_template, or takes the named format ("chatml", "llama3", "gemma", "mistral", "llama2";
 * NULL: recognise). *out is NULL when the file has no template and none is named. -ENOTSUP: an unknown template, or the
 * vocabulary lacks a token of the format; -EINVAL: an unknown name; -EBADMSG, -ENOMEM. */
int chat_open(const struct gguf *g, const struct vocab *v, const char *format, struct chat **out, char *err,
              size_t err_size);
/* NULL is fine. */
void chat_free(struct chat *c);
/* "chatml", ... */
const char *chat_format(const struct chat *c);

/* engine_chat_render() and engine_chat_close(). */
int chat_render(const struct chat *c, const struct vocab *v, const struct engine_message *messages, size_t n,
                unsigned flags, struct engine_tokens *out, char *err, size_t err_size);
int chat_close(const struct chat *c, const struct vocab *v, struct engine_tokens *out);

#endif
