/* grammar.h - answers that always parse: what a JSON Schema or a regular expression allows next, as a set of tokens.
 *
 * A `grammar` is compiled from a schema or a pattern; it describes texts as bytes. A `grammar_match` is a position in
 * such a text: tokens are pushed one by one, and before each one grammar_match_mask() gives the bit set of those that
 * the text can go on with, so that every text that comes to its end is one that the grammar describes. States and masks
 * are found when they are first needed, and shared by all matches of a grammar.
 *
 * What the schema language means here, keyword by keyword, is in docs/structured-output.md. What is not supported is
 * refused by name.
 *
 * Threads: a `grammar_vocab` is constant after it was made. A `grammar` with its matches belongs to one thread at a
 * time; compiling may run on any.
 *
 * Errors: 0 or a negative errno value, with a text for a person in err. -EINVAL: what was given is not a schema, or no
 * text can fulfil it; -ENOTSUP: it asks for something that is not supported; -E2BIG: it is larger, or more work, than
 * the limits below; -ENOMEM. Outputs are written on success only.
 */
#ifndef CONVOD_ENGINE_GRAMMAR_H
#define CONVOD_ENGINE_GRAMMAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GRAMMAR_MAX_SCHEMA_BYTES   (1 << 20)
#define GRAMMAR_MAX_SCHEMA_DEPTH   128        /* objects and arrays in one another */
#define GRAMMAR_MAX_PATTERN_BYTES  4096       /* one regular expression */
#define GRAMMAR_MAX_COUNT          65536      /* of a repetition in a pattern, of items, of characters */
#define GRAMMAR_MAX_COMPILED_BYTES (16 << 20) /* what compiling may take */
#define GRAMMAR_MAX_BYTES          (48 << 20) /* states and masks of one grammar; what is found again costs time only */
#define GRAMMAR_MAX_COMPILE_WORK   2000000    /* derivatives taken and expressions made (some 0.2 s) */
#define GRAMMAR_MAX_STEP_WORK      500000     /* the same, for one push or mask */
#define GRAMMAR_MAX_SPACE          8          /* bytes of white space in a row within JSON */

/* ---- vocabularies ---------------------------------------------------------------------------------------------- */

/* The tokens of a vocabulary, ordered for masks. */
struct grammar_vocab;

struct grammar_vocab_opts {
    int n; /* tokens */
    /* The bytes of a token, valid during the call; *len 0: a token that no text has. */
    const char *(*bytes)(const void *arg, int id, size_t *len);
    /* True for the tokens that end an answer: they are allowed where the text may end. */
    bool (*ends)(const void *arg, int id);
    const void *arg;
};
/* -EINVAL: no token ends an answer (err says so); -ENOMEM. */
int grammar_vocab_new(const struct grammar_vocab_opts *opts, struct grammar_vocab **out, char *err, size_t err_size);
/* NULL is fine. Grammars made for it must have been freed. */
void grammar_vocab_free(struct grammar_vocab *v);
/* 32-bit words of a mask: token i is bit i % 32 of word i / 32. */
size_t grammar_vocab_words(const struct grammar_vocab *v);

/* ---- grammars -------------------------------------------------------------------------------------------------- */

struct grammar;

enum {
    GRAMMAR_LENIENT =
        1, /* what is not supported is passed over, where it would be refused: the answer may be invalid */
};

/* The JSON texts that are valid under a JSON Schema (draft 2020-12), schema[0..len) being its JSON text. v may be NULL:
 * the grammar then has no masks until it gets a vocabulary. err says where ("#/properties/a") and what. */
int grammar_from_schema(const char *schema, size_t len, const struct grammar_vocab *v, unsigned flags,
                        struct grammar **out, char *err, size_t err_size);
/* Any JSON object. */
int grammar_from_json_object(const struct grammar_vocab *v, struct grammar **out, char *err, size_t err_size);
/* How calls are written. */
struct grammar_call_form {
    enum grammar_call_shape {
        GRAMMAR_CALL_OBJECT, /* {"name": NAME, KEY: {...}} with white space around it */
        GRAMMAR_CALL_LIST,   /* a list of such objects, with an "id" of nine letters and digits behind KEY where ids is
                                set */
        GRAMMAR_CALL_NAMED,  /* NAME BEFORE {...}; where ids is set NAME KEY ID BEFORE {...} */
        GRAMMAR_CALL_XML,    /* <function=NAME>, parameters, </function>, with white space around it */
    } shape;
    const char *key, *before;
    bool ids;
};
/* A call of one of the tools. tools[0..len): a JSON list
 * of {"name": NAME, "parameters": SCHEMA}, without parameters where the arguments are any object. *at: the tool that an
 * error is about. */
int grammar_from_calls(const struct grammar_call_form *form, const char *tools, size_t len,
                       const struct grammar_vocab *v, struct grammar **out, size_t *at, char *err, size_t err_size);
/* The UTF-8 texts that match a regular expression as a whole. */
int grammar_from_pattern(const char *pattern, size_t len, const struct grammar_vocab *v, struct grammar **out,
                         char *err, size_t err_size);
/* Gives a grammar that has none its vocabulary, which must outlive it. */
void grammar_set_vocab(struct grammar *g, const struct grammar_vocab *v);
/* Forgets all states and masks but those that its matches are at; as it does by itself when it has no room left. */
void grammar_forget(struct grammar *g);
/* NULL is fine. Its matches must have been freed. */
void grammar_free(struct grammar *g);

struct grammar_use {
    size_t bytes;       /* memory of states and masks now */
    uint32_t states;    /* that steps were taken from */
    uint32_t masks;     /* made since the last emptying */
    uint32_t emptyings; /* times that GRAMMAR_MAX_BYTES was reached */
};
struct grammar_use grammar_use(const struct grammar *g);

/* ---- matches --------------------------------------------------------------------------------------------------- */

struct grammar_match;

/* A match at the beginning of a text. NULL: out of memory. */
struct grammar_match *grammar_match_new(struct grammar *g);
/* NULL is fine. */
void grammar_match_free(struct grammar_match *m);
/* Goes on by bytes[0..len). -EILSEQ: the grammar does not allow them (m is unchanged); -E2BIG: too much work; -ENOMEM.
 */
int grammar_match_push(struct grammar_match *m, const char *bytes, size_t len);
/* Whether the text may end here. */
bool grammar_match_complete(const struct grammar_match *m);
/* Whether it can only end here. */
bool grammar_match_ended(const struct grammar_match *m);
/* Writes the text that must come next, at most [room] bytes, and returns its length: up to a place that no token of the
 * vocabulary lies across, so that its tokens are the ones that a tokenizer writes it with, whatever comes behind it. 0:
 * none is known, or there is no vocabulary. */
size_t grammar_match_forced(struct grammar_match *m, char *text, size_t room);
/* Writes the tokens that may come next into mask, [grammar_vocab_words()]; at least one is set. -E2BIG: too much work;
 * -ENOMEM; -ENOENT: the vocabulary has no token for what must come; -EINVAL: a grammar without vocabulary. */
int grammar_match_mask(struct grammar_match *m, uint32_t *mask);

#endif
