/* vocab_private.h - the vocabulary's tables, shared by its loader (vocab.c) and the two tokenizers (bpe.c, spm.c). */
#ifndef CONVOD_VOCAB_PRIVATE_H
#define CONVOD_VOCAB_PRIVATE_H

#include "engine/text/merge_internal.h"
#include "engine/text/text.h"

/* Token types as the file numbers them. */
enum { TYPE_NORMAL = 1, TYPE_UNKNOWN = 2, TYPE_CONTROL = 3, TYPE_USER = 4, TYPE_UNUSED = 5, TYPE_BYTE = 6 };

enum {
    FLAG_RESERVED = 1, /* a user-defined token that the chat format gives a meaning: never out of a user's text */
    FLAG_ENDS_ANSWER = 2,
};

/* Tokens that are matched as a whole before the rest of a text is tokenized, sorted by their text. */
struct specials {
    engine_token *ids;
    uint32_t first[257]; /* ids[first[b] .. first[b + 1]) begin with byte b */
};

/* A merge of two tokens; left < 0: an empty slot. */
struct bpe_pair {
    int32_t left, right;
    uint32_t rank;
};

struct vocab {
    bool is_spm;
    int n;
    struct gguf_string *text; /* [n] into the file */
    uint8_t *type;            /* [n] */
    uint8_t *flags;           /* [n] */
    uint32_t *bytes_at;       /* [n + 1] into bytes */
    char *bytes;

    /* Ordinary tokens by what they are looked up with (BPE: bytes; SentencePiece: text), open addressing. */
    struct vocab_slot {
        uint32_t hash;
        engine_token id; /* -1: empty */
    } * slots;
    uint32_t slot_mask;
    size_t longest; /* bytes of the longest ordinary token */

    struct specials in_text; /* user-defined tokens without the reserved ones */
    struct specials all;     /* control and user-defined tokens */

    char *notes; /* as vocab_notes() */
    engine_token bos, eos, unknown;
    bool add_bos, add_eos;
    engine_token byte_ids[256]; /* the token of a single byte, or -1 */

    /* BPE */
    struct pretokenizer *pre;
    bool ignore_merges;     /* a piece that is a token stays one, even if no merges lead to it */
    struct bpe_pair *pairs; /* open addressing */
    uint32_t pair_mask;
    uint32_t *merged; /* [rank] the token that the merge gives */

    /* SentencePiece */
    float *scores; /* [n] */
    bool space_prefix;
};

/* The ordinary token with this key, or -1. */
engine_token vocab_look_up(const struct vocab *v, const char *key, size_t len);

/* The control or user-defined token with exactly this text, or -1. */
engine_token vocab_special_n(const struct vocab *v, const char *text, size_t len);

/* Scratch of one vocab_tokenize(). */
struct vocab_work {
    struct merge merge;
    char *text; /* rewritten text: SentencePiece's escaped spaces, BPE's copy without bytes that are not UTF-8 */
    size_t text_capacity;
};

/* Room for n bytes in w->text. 0 or -ENOMEM. */
int vocab_work_text(struct vocab_work *w, size_t n);

/* bpe.c: reads merges and the pre-tokenizer's name; then text to tokens. */
int bpe_load(struct vocab *v, const struct gguf *g, char *err, size_t err_size);
int bpe_tokenize(const struct vocab *v, struct vocab_work *w, const char *text, size_t len, struct engine_tokens *out);
/* Decodes the byte-level alphabet: text[0..len) to at most len bytes. Characters outside it are kept as they are. */
size_t bpe_decode(const char *text, size_t len, char *out);

/* spm.c: reads scores and byte tokens; then text to tokens. prefix: put a space in front. */
int spm_load(struct vocab *v, const struct gguf *g, char *err, size_t err_size);
int spm_tokenize(const struct vocab *v, struct vocab_work *w, const char *text, size_t len, bool prefix,
                 struct engine_tokens *out);
/* A token's text with spaces for U+2581: at most len bytes. */
size_t spm_decode(const char *text, size_t len, char *out);

/* The value of "<0x0A>", written exactly so; -1 for anything else. */
int spm_parse_byte(const char *text, size_t len);

/* pretokenizer.c: cuts text into the pieces within which tokens may be merged. */
struct pretokenizer;
/* By the name in tokenizer.ggml.pre. *ignore_merges and *add_bos get what goes with it. -ENOTSUP: unknown name. */
int pretokenizer_open(const struct gguf *g, const char *name, size_t len, struct pretokenizer **out,
                      bool *ignore_merges, bool *add_bos, char *err, size_t err_size);
void pretokenizer_close(struct pretokenizer *p);
/* Calls piece(arg, start, end) for pieces in order; together they are text[0..len), which is UTF-8. Ends with the first
 * return value that is not 0, which it returns. -ENOMEM. */
int pretokenizer_split(const struct pretokenizer *p, const char *text, size_t len,
                       int (*piece)(void *arg, size_t start, size_t end), void *arg);

#endif
