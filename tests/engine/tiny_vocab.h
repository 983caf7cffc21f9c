/* tiny_vocab.h - small vocabularies for models made by tests: they express every text, and follow ChatML. */
#ifndef CONVOD_TESTS_TINY_VOCAB_H
#define CONVOD_TESTS_TINY_VOCAB_H

#include "tests/engine/gguf_writer.h"

/* Byte-level BPE: tokens 0..255 are the bytes, then some merged ones, then special ones. */
enum {
    TINY_HE = 256,
    TINY_LL,
    TINY_HELL,
    TINY_HELLO,
    TINY_SPACE_HELLO,
    TINY_12,
    TINY_NEWLINES, /* "\n\n" */
    TINY_END_OF_TEXT,
    TINY_IM_START,
    TINY_IM_END,
    TINY_TOOL_CALL, /* user-defined, with a meaning */
    TINY_MARK,      /* user-defined: "<mark>" */
    TINY_TOKENS
};

/* Writes tokenizer.* keys with the named pre-tokenizer and a ChatML template without a default system prompt. */
void tiny_vocab_bpe(struct gguf_writer *w, const char *pre);

/* The same ordinary tokens with control tokens of one's own, the first from TINY_END_OF_TEXT on, and a template of
 * one's own (NULL: none). bos and eos are among `control`; "" means none. */
void tiny_vocab_bpe_with(struct gguf_writer *w, const char *pre, const char *const *control, int n, const char *bos,
                         const char *eos, const char *chat_template);

/* SentencePiece: 0 <unk>, 1 <s>, 2 </s>, 3..258 the byte tokens, then pieces, then a user-defined "\n". No template. */
enum {
    TINY_SPM_BYTES = 3,
    TINY_SPM_SPACE = 259, /* U+2581 */
    TINY_SPM_H,
    TINY_SPM_E,
    TINY_SPM_L,
    TINY_SPM_O,
    TINY_SPM_HE,
    TINY_SPM_LL,
    TINY_SPM_LLO,
    TINY_SPM_HELLO,
    TINY_SPM_SPACE_HELLO,
    TINY_SPM_NEWLINE,
    TINY_SPM_TOKENS
};
void tiny_vocab_spm(struct gguf_writer *w);
/* The same with more control tokens, from TINY_SPM_TOKENS on; <s> and </s> are written as bos and eos. */
void tiny_vocab_spm_with(struct gguf_writer *w, const char *const *control, int n, const char *bos, const char *eos,
                         const char *chat_template);

#define TINY_MAX_CONTROL 20

/* Families of chat formats with tools, each with the marks of its templates and no more: `tools` of struct tiny_model.
 */
enum tiny_family {
    TINY_NO_TOOLS,
    TINY_HERMES,
    TINY_XML,
    TINY_LLAMA3,
    TINY_MISTRAL_LIST,
    TINY_MISTRAL_ARGS,
    TINY_MISTRAL_IDS,
    TINY_HARMONY,
    TINY_FAMILIES
};
#define TINY_FAMILY_TOKENS (TINY_END_OF_TEXT + TINY_MAX_CONTROL)
void tiny_vocab_family(struct gguf_writer *w, enum tiny_family family);

#endif
