/* form_private.h - a form, shared by engine_form.c (compiling, on any thread) and engine_match.c (answers, on the
 * engine's). */
#ifndef CONVOD_FORM_PRIVATE_H
#define CONVOD_FORM_PRIVATE_H

#include "engine/engine.h"
#include "engine/grammar/grammar.h"

#include <stdatomic.h>

struct engine_form {
    atomic_int owners;
    struct grammar *grammar;
    enum engine_form_kind kind;
    bool lenient;
    char *text;
    size_t len;
    /* On the engine's thread, once it is in its list. */
    struct engine_form *next;
    char *owner;
    int users; /* answers that are under way */
};

#endif
