/* calls_private.h - what the files that take answers apart share: calls.c (parts, marks, text), calls_object.c (calls
 * as JSON), calls_xml.c (calls as XML).
 */
#ifndef CONVOD_CALLS_PRIVATE_H
#define CONVOD_CALLS_PRIVATE_H

#include "engine/text/chat_private.h"

#define CALL_NAME_MAX 128
#define KEY_MAX       32 /* of names of members that mean something; longer ones do not */

struct buffer {
    char *data;
    size_t n, capacity;
};

/* Where in a call the next byte stands. */
enum place {
    AT_LIST,   /* before a list of objects */
    AT_OBJECT, /* before an object */
    AT_KEY,    /* before a member's name, or its end */
    IN_KEY,
    AT_COLON,
    AT_VALUE,
    IN_VALUE, /* a string, an object or a list */
    IN_WORD,  /* a number, true, false, null */
    AT_COMMA, /* behind a value */
    BEHIND_OBJECT,
    BEHIND_LIST,
    AT_NAME,     /* a name without an object, up to a mark */
    IN_ID,       /* the same of an id */
    AT_FUNCTION, /* XML: before the name */
    AT_PARAMETER,
    IN_PARAMETER,
    BROKEN,
};

struct engine_calls {
    const struct chat *chat;
    cJSON *tools;
    int (*part)(void *arg, const struct engine_part *part);
    void *arg;
    enum { TEXT, MAYBE, CALL, THINK, HEAD } state;
    bool thought;       /* THINK: some of it was given out; TEXT: what comes stands behind it */
    bool line;          /* the next byte begins a line */
    bool behind_call;   /* TEXT: only white space has come since a call of Llama's, which divides them by semicolons */
    bool marked;        /* CALL: a mark is before it */
    bool fenced;        /* or ``` */
    bool text_only;     /* nothing is a call any more */
    bool forced;        /* MAYBE: it is one */
    size_t object;      /* CALL: where in held what its form describes begins */
    struct buffer held; /* TEXT: white space; MAYBE, CALL, HEAD: all of it so far */
    size_t lead;        /* MAYBE, CALL: of that, the white space before it */
    /* The call. */
    enum place place;
    bool quoted, escaped, begun, bare_value;
    size_t depth;
    enum { OTHER, NAME, ARGUMENTS, ID } member;
    char key[KEY_MAX + 1];
    size_t key_len;
    struct buffer name, id, arguments; /* as written; of XML the arguments as JSON */
    size_t given;                      /* bytes of the arguments that were given out */
    bool has_name, has_arguments, streams;
    /* XML. */
    struct buffer piece; /* what has come of a tag or a value */
    size_t looked;       /* of that, bytes that no value's end begins in */
    size_t n_parameters;
    unsigned types; /* of the value: what its schema allows */
};

/* 0 or -ENOMEM. */
int buffer_append(struct buffer *b, const char *bytes, size_t n);
/* White space of JSON. */
bool calls_is_space(char c);

/* ---- calls.c ---- */

int calls_give(struct engine_calls *c, int kind, const char *text, size_t len, bool broken);

/* ---- calls_object.c ---- */

/* A call's state anew; what is held stays. */
void calls_start(struct engine_calls *c, enum place place);
/* The call becomes known with its name: c->place is BROKEN when no tool could have it. */
int calls_begin(struct engine_calls *c, const char *name);
/* The next byte of a call that is JSON, or begins with a bare name. */
int calls_object_byte(struct engine_calls *c, char byte);
/* Behind a bare name: its arguments are next. */
int calls_named(struct engine_calls *c);
/* What has come of the arguments since they were given out last. */
int calls_give_new(struct engine_calls *c);
/* A call is over: what there is of it is given out, the name first where it was not. *text: nothing was, and it is
 * text. */
int calls_end(struct engine_calls *c, bool *text);

/* ---- calls_xml.c ---- */

int calls_xml_byte(struct engine_calls *c, char byte);
/* A piece of text is over: what can be told of a value that is not. */
int calls_xml_flush(struct engine_calls *c);

#endif
