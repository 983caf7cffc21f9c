/* chat_private.h - what chat.c (opening and rendering) and chat_formats.c (the formats, and reading templates) share.
 */
#ifndef CONVOD_CHAT_PRIVATE_H
#define CONVOD_CHAT_PRIVATE_H

#include "engine/text/text.h"

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
    const char *preamble; /* what every context begins with, behind BOS; NULL: nothing */
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
    struct chat_pieces opening; /* of an answer, behind what is before it */
    char *opening_text;         /* what those pieces point into; NULL: nothing */
    char *system_default;       /* written when there is no system message; NULL: nothing */
    char *system_prefix;        /* written before every system prompt, which is then never absent; NULL: nothing */
    char *system_suffix;        /* between the system prompt and the first user message where they share a turn */
    bool trim_user, trim_answer;
    /* An earlier answer's thinking is left out, and the newlines behind it (always, or only where there was any). */
    bool drops_thinking, drops_newlines, drops_newlines_always;
    engine_token think_mark, think_end_mark; /* around thinking; -1: it cannot be told from the text */
    bool opens_thinking;                     /* an answer begins behind the first of them */
    /* Tools, in Hermes' way: definitions behind the system prompt, calls as JSON objects between two marks, results as
     * a user's message. */
    bool tools;
    engine_token call_mark, call_end_mark;
    char *tools_head_text, *tools_tail_text; /* what those pieces point into */
    struct chat_pieces tools_head, tools_tail;
    struct chat_pieces call_name, call_arguments, call_end; /* before the name, between it and the arguments, behind */
    struct chat_pieces result, result_end;
    bool bare_calls; /* the model is known to write calls without the marks */
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

/* The texts that Hermes' way of tools begins and ends the definitions with: NULL where the template has no tools, or
 * another way. -ENOMEM. */
int chat_read_tools(const struct template *t, char **head, char **tail);

/* What templates of any format may say. -ENOMEM. */
int chat_read_common(struct chat *c, const struct template *t);

#endif
