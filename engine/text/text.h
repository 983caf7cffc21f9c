/* text.h - text <-> tokens: the vocabulary of a model file, how its chat format writes messages, and streams of text
 * out of tokens.
 *
 * Vocabularies are of two kinds: "gpt2" (byte-level BPE behind a pre-tokenizer) and "llama" (SentencePiece with scores
 * and byte fallback). Text is data unless VOCAB_PARSE_SPECIAL is set: a control token cannot come out of it, and
 * neither can a token that the chat format gives a meaning (<tool_call>, <think>, whatever tag the file's own template
 * writes). Other user-defined tokens are matched as the vocabulary says, before anything else.
 *
 * Bytes that are not UTF-8 are tokenized as those bytes (byte-level BPE: a run of them counts as symbols;
 * SentencePiece: the <0xNN> token of each). A byte that the vocabulary cannot express becomes its unknown token, or
 * nothing where it has none.
 *
 * Threads: a vocabulary and a chat format are constant after open; their functions may be called from any thread. The
 * gguf must outlive the vocab, and both the chat.
 */
#ifndef CONVOD_ENGINE_TEXT_H
#define CONVOD_ENGINE_TEXT_H

#include "engine/engine.h"
#include "engine/file/file.h"

#define VOCAB_MAX_TOKENS      (1 << 21)
#define VOCAB_MAX_TOKEN_BYTES 65535     /* text of one token in the file */
#define VOCAB_MAX_BYTES       (1 << 28) /* texts of all tokens together */
#define VOCAB_MAX_MERGES      (1 << 22)
#define VOCAB_MAX_TEXT_BYTES  (1 << 26) /* text of one call (32 bytes of scratch a byte); -EOVERFLOW past it */

/* ---- vocabularies ---------------------------------------------------------------------------------------------- */

struct vocab;

/* Reads tokenizer.* of a file. -ENOTSUP: a tokenizer model or pre-tokenizer that convod lacks, named in err; -EBADMSG:
 * damaged or hostile values; -ENOMEM. */
int vocab_open(const struct gguf *g, struct vocab **out, char *err, size_t err_size);
/* NULL is fine. */
void vocab_close(struct vocab *v);

enum {
    VOCAB_PARSE_SPECIAL = 1, /* control and all user-defined tokens written in the text become those tokens */
    VOCAB_ADD_SPECIAL = 2,   /* BOS in front and EOS behind, where the file asks for them */
    /* Where SentencePiece puts a space in front of a text. Default: always, if the file wants it at all. */
    VOCAB_AFTER_SPECIAL = 4, /* a special token is before the text: unless it begins with a space */
    VOCAB_CONTINUES = 8,     /* other text is before it: never */
};

/* Appends the tokens of text[0..len). BOS is not doubled when PARSE_SPECIAL text begins with it. 0, -ENOMEM,
 * -EOVERFLOW; out is unchanged on error. */
int vocab_tokenize(const struct vocab *v, const char *text, size_t len, unsigned flags, struct engine_tokens *out);

int vocab_size(const struct vocab *v);
/* What is wrong in the file but does no harm, a line each, for a person; NULL: nothing. */
const char *vocab_notes(const struct vocab *v);
/* "gpt2" or "llama" */
const char *vocab_model(const struct vocab *v);
/* As engine_token_bytes(). */
const char *vocab_token_bytes(const struct vocab *v, engine_token id, size_t *len);
/* The token as the file writes it ("<|im_end|>"), not terminated. Empty outside the vocabulary. */
struct gguf_string vocab_token_text(const struct vocab *v, engine_token id);
/* The control or user-defined token with exactly this text, or -1. */
engine_token vocab_special(const struct vocab *v, const char *text);
bool vocab_is_control(const struct vocab *v, engine_token id);
/* A user-defined token that the chat format gives a meaning: it never comes out of a text. */
bool vocab_is_reserved(const struct vocab *v, engine_token id);
/* As engine_token_ends_answer(). */
bool vocab_ends_answer(const struct vocab *v, engine_token id);
/* Whether a space is put in front of texts, which is not part of them when they are decoded. */
bool vocab_adds_space(const struct vocab *v);
/* -1: the file names none. */
engine_token vocab_bos(const struct vocab *v);
engine_token vocab_eos(const struct vocab *v);
/* Whether the file asks for them around a text. */
bool vocab_adds_bos(const struct vocab *v);
bool vocab_adds_eos(const struct vocab *v);

/* ---- chat formats ---------------------------------------------------------------------------------------------- */

#define CHAT_MAX_TEMPLATE_BYTES (1 << 20)
#define CHAT_MAX_LITERAL_BYTES  16384 /* a text taken out of a template */

struct chat;

/* Recognises tokenizer.chat_template, or takes the named format ("chatml", "llama3", ...; NULL: recognise). *out is
 * NULL when the file has no template and none is named. -ENOTSUP: an unknown template, or the vocabulary lacks a token
 * of the format; -EINVAL: an unknown name; -EBADMSG, -ENOMEM. */
int chat_open(const struct gguf *g, const struct vocab *v, const char *format, struct chat **out, char *err,
              size_t err_size);
/* NULL is fine. */
void chat_free(struct chat *c);
/* The i-th format's name; NULL behind the last. */
const char *chat_name_at(size_t i);
/* "chatml", ... */
const char *chat_format(const struct chat *c);

/* engine_chat_render() and engine_chat_close(). */
int chat_render(const struct chat *c, const struct vocab *v, const struct engine_message *messages, size_t n,
                unsigned flags, struct engine_tokens *out, char *err, size_t err_size);
int chat_close(const struct chat *c, const struct vocab *v, struct engine_tokens *out);
/* engine_chat_effort() and engine_chat_has_efforts(). */
unsigned chat_effort(const struct chat *c, const struct vocab *v, const engine_token *ids, size_t n);
bool chat_has_efforts(const struct chat *c);

/* Whether this token ends an answer of the format: engine_token_ends_answer(). c may be NULL. */
bool chat_ends_answer(const struct chat *c, const struct vocab *v, engine_token id);
/* What stands for a mark within calls where a form describes them: a byte that no text has. NULL: it is none. c may be
 * NULL. */
#define CHAT_MARK_ARGS    "\xf8"
#define CHAT_MARK_ID      "\xf9"
#define CHAT_MARK_CHANNEL "\xfa"
#define CHAT_MARK_MESSAGE "\xfb"
#define CHAT_MARK_FIRST   0xf8
const char *chat_mark_bytes(const struct chat *c, engine_token id);

/* engine_info.calls, engine_chat_thinks(), engine_chat_open_call(), engine_chat_open_text(). */
enum engine_call_syntax chat_calls(const struct chat *c);
bool chat_thinks(const struct chat *c);
/* engine_chat_end_thinking(). */
int chat_end_thinking(const struct chat *c, const struct vocab *v, struct engine_tokens *out);
int chat_open_call(const struct chat *c, const struct vocab *v, const char *name, struct engine_tokens *out);
int chat_open_text(const struct chat *c, const struct vocab *v, const char *text, size_t len,
                   struct engine_tokens *out);

/* ---- JSON ------------------------------------------------------------------------------------------------------ */

/* engine_json(). */
int text_json(const char *text, size_t len, bool sorted, char **out, size_t *out_len);

/* ---- parts of answers ------------------------------------------------------------------------------------------ */

/* engine_calls_new(). */
struct engine_calls *calls_new(const struct chat *c, const char *tools,
                               int (*part)(void *arg, const struct engine_part *part), void *arg);

/* ---- streams --------------------------------------------------------------------------------------------------- */

#define STREAM_MAX_STOPS      16
#define STREAM_MAX_STOP_BYTES 256

/* As engine_stream_new(). NULL with errno EINVAL: too many stop strings, or one too long; ENOMEM. Empty ones are
 * ignored. The vocab must outlive the stream. */
struct engine_stream *stream_new(const struct vocab *v, const char *const *stops, size_t n_stops);

/* ---- characters ------------------------------------------------------------------------------------------------ */

/* Bytes of the UTF-8 character (no surrogates, no overlong forms, at most U+10FFFF) that text[0..len) begins with;
 * 0 when it begins with none. *missing (may be NULL) says whether more bytes could make it one. */
size_t utf8_char(const char *text, size_t len, int *missing);

#endif
