/* chat_private.h - what chat.c (opening and rendering) and chat_formats.c (the formats, and reading templates) share.
 */
#ifndef CONVOD_CHAT_PRIVATE_H
#define CONVOD_CHAT_PRIVATE_H

#include "engine/text/text.h"

#include <cjson/cJSON.h>

#define CHAT_ROLES 3 /* of enum engine_role: those that a format writes messages of */

/* A file's template, which is read as text. */
struct template
{
    const char *text;
    size_t len;
};

/* Which orders of roles a format can express. */
enum chat_order {
    CHAT_ANY,
    CHAT_SYSTEM_FIRST, /* a system message can only be the first */
    CHAT_ALTERNATE,    /* and users and answers alternate */
};

/* A format: how messages, openings and closings are written, and how a template of it is known. In before and after,
 * <...> is a token where the vocabulary has it as a special one, and {eos} is the vocabulary's end token. */
struct chat_format {
    const char *name;
    const char *marks[3];  /* a template of it holds all of these */
    const char *without;   /* and not this; NULL: nothing */
    const char *needed[4]; /* tokens that the vocabulary must have */
    bool needs_eos;
    bool bos;  /* the context begins with BOS even where the file does not ask for it */
    bool inst; /* Mistral's and Llama 2's way: an answer has nothing before it, and the system prompt lies in the user's
                  turn */
    enum chat_order order;
    const char *preamble;       /* what every context begins with, behind BOS; NULL: nothing */
    const char *preamble_tools; /* the same where there are tools; NULL: no other */
    const char
        *effort; /* what is before the word in the preambles that says how much is thought; NULL: there is none */
    const char *answer; /* what is before an answer that is to be written; NULL: what is before others */
    struct {
        const char *before, *after;
    } role[CHAT_ROLES];
    bool system_in_user;       /* the system prompt is the head of the first user message */
    const char *system_suffix; /* between the two */
    bool trim;
    bool spm_strips; /* in SentencePiece vocabularies, white space behind a token is not there */
    /* Reads out of a template in what it differs from the others of its format. May be NULL. -ENOMEM. */
    int (*read)(struct chat *c, const struct template *t);
    /* What the format writes when no template says more. May be NULL. */
    void (*defaults)(struct chat *c, const struct vocab *v);
};

/* Part of a text around messages: a token, or text. */
struct chat_piece {
    engine_token id; /* -1: text */
    const char *text;
    size_t len;
};
#define CHAT_MAX_PIECES 12
struct chat_pieces {
    struct chat_piece piece[CHAT_MAX_PIECES];
    size_t n;
};

struct chat {
    const struct chat_format *format;
    bool bos;   /* the context begins with BOS */
    bool strip; /* white space behind a token is not there */
    struct chat_pieces preamble, before[CHAT_ROLES], after[CHAT_ROLES];
    struct chat_pieces preamble_tools; /* where there are tools; none: as without */
    struct chat_pieces answer;         /* what is before an answer that is to be written; none: as before others */
    struct chat_pieces opening;        /* of an answer, behind what is before it */
    char *opening_text;                /* what those pieces point into; NULL: nothing */
    struct chat_pieces unthinking;     /* the same of an answer that is not to be thought about; none: as of others */
    char *unthinking_text;
    char *system_default; /* written when there is no system message; NULL: nothing */
    char *system_prefix;  /* written before every system prompt, which is then never absent; NULL: nothing */
    char *system_suffix;  /* between the system prompt and the first user message where they share a turn */
    bool trim_user, trim_answer;
    /* An earlier answer's thinking is left out, and the newlines behind it (always, or only where there was any). */
    bool drops_thinking, drops_newlines, drops_newlines_always;
    engine_token think_mark, think_end_mark; /* around thinking; -1: it cannot be told from the text */
    bool opens_thinking;                     /* an answer begins behind the first of them */
    /* Tools: chat_tools.c writes them, calls.c reads them. */
    enum engine_call_syntax syntax;
    engine_token call_mark, call_end_mark;   /* around a call, or before it; -1: there is none */
    char *tools_head_text, *tools_tail_text; /* what those pieces point into */
    struct chat_pieces tools_head, tools_tail;
    struct chat_pieces call_name, call_arguments, call_end; /* before the name, between it and the arguments, behind */
    struct chat_pieces result, result_end;
    char *tools_system; /* the system prompt where there are tools and no other; NULL: as without them */
    bool bare_calls;    /* the model is known to write calls without the marks */
    bool ticks;         /* Qwen3-Coder's first way: what is in lists stands between backticks */
    bool list_space;    /* Mistral: a space stands behind the marks */
    bool call_ids, result_ids, result_json; /* Mistral: calls and results have ids; results are objects */
    engine_token args, call_id;             /* Mistral: marks within a call */
    engine_token tools_start, tools_end;    /* around definitions */
    engine_token result_start, result_content, result_stop;
    engine_token start, channel, message, constrain, end; /* Harmony; -1 in other formats */
    /* Mistral and Llama 2: tokens, or -1 where they are written as text, and where spaces go. */
    engine_token inst, inst_end, system_start, system_end;
    bool space_before_inst, space_after_inst, space_before_end, space_before_answer, space_after_answer;
    bool bos_each_turn;
    bool named_system; /* <<SYS>> around the system prompt */
};

/* By name, or NULL; by a template's text, or NULL. */
const struct chat_format *chat_format_named(const char *name);
const struct chat_format *chat_format_of(const struct template *t);
/* The i-th; NULL behind the last. */
const struct chat_format *chat_format_at(size_t i);

/* What a template says of tools, as far as it is text; the syntax is ENGINE_CALLS_NONE where it has none, or writes
 * them in a way that is not known. -ENOMEM. */
int chat_read_tools(struct chat *c, const struct template *t);

/* ---- chat.c: building a context ---- */

/* Collects text until a control token or the end of a message, and tokenizes it then. The first error sticks. */
struct builder {
    const struct vocab *v;
    struct engine_tokens *out;
    char *text;
    size_t len, capacity;
    unsigned before; /* what is before the text, as in vocab_tokenize() */
    bool strip;      /* white space behind a token is not there */
    bool stripping;  /* there was nothing else since the last token */
    int rc;
};
void chat_add_bytes(struct builder *b, const char *text, size_t len);
void chat_add(struct builder *b, const char *text);
void chat_add_token(struct builder *b, engine_token id);
/* Tokenizes the text that was collected. */
void chat_flush(struct builder *b);
void chat_add_pieces(struct builder *b, const struct chat_pieces *pieces);
/* A message's text, without the white space around it. */
void chat_add_trimmed(struct builder *b, const char *text, size_t len);
/* What a context begins with, with another word for the effort than the format has where one is asked for in flags, as
 * engine_chat_render() has them. */
void chat_add_preamble(const struct chat *c, struct builder *b, const struct chat_pieces *pieces, unsigned flags);
/* Appends a token's text to out[0..*n), as far as `size` has room. */
void chat_token_text(const struct vocab *v, engine_token id, char *out, size_t *n, size_t size);
/* Cuts a text around messages into tokens and what lies between them. -EOVERFLOW: there are too many. */
int chat_cut_pieces(const struct vocab *v, const char *text, struct chat_pieces *out);

/* ---- chat_json.c: values as templates write them ---- */

/* As JSON, with a space behind commas and colons. */
void chat_add_value(struct builder *b, const cJSON *value);
/* Text of text_json(); indent > 0: on several lines, by so many spaces. */
void chat_add_lines(struct builder *b, const char *text, size_t len, size_t indent);
/* A string as it is, true, false and null as the template language names them, all else as JSON. */
void chat_add_plain(struct builder *b, const cJSON *value);
/* As the template language prints values: strings between quotes, and within lists and objects. */
void chat_add_printed(struct builder *b, const cJSON *value);
/* Definitions as a namespace of TypeScript: Harmony's way. */
void chat_add_typescript(struct builder *b, const cJSON *list);

/* ---- chat_tools.c: how tools are written ---- */

/* Finds the tokens of the syntax that the template was read to have; without them there are no tools. -ENOMEM. */
int chat_set_up_tools(struct chat *c, const struct vocab *v);
/* Definitions, a message of ENGINE_TOOLS: what stands around them is the caller's. */
void chat_add_definitions(const struct chat *c, struct builder *b, const struct engine_message *m);
/* The n-th call of an answer; text: it has text before the first. */
void chat_add_call(const struct chat *c, struct builder *b, const struct engine_message *m, size_t n, bool text);
/* Behind the last call of an answer. */
void chat_end_calls(const struct chat *c, struct builder *b);
/* The n-th result of an answer's calls. */
void chat_add_result(const struct chat *c, struct builder *b, const struct engine_message *m, size_t n);
/* What is written where a message of results begins and ends. */
void chat_begin_results(const struct chat *c, struct builder *b);
void chat_end_results(const struct chat *c, struct builder *b);

/* What templates of any format may say. -ENOMEM. */
int chat_read_common(struct chat *c, const struct template *t);

#endif
