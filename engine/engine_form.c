/* engine_form.c - forms of answers: compiled wherever a request is read, without an engine. */
#include "engine/form_private.h"
#include "engine/text/text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct engine_form *form_new(enum engine_form_kind kind, const char *text, size_t len, bool lenient)
{
    struct engine_form *f = calloc(1, sizeof *f);
    if (f == NULL || (f->text = malloc(len + 1)) == NULL) {
        free(f);
        return NULL;
    }
    if (len > 0)
        memcpy(f->text, text, len);
    f->len = len;
    f->kind = kind;
    f->lenient = lenient;
    atomic_init(&f->owners, 1);
    return f;
}

int engine_form_new(enum engine_form_kind kind, const char *text, size_t len, bool lenient, struct engine_form **out,
                    char *err, size_t err_size)
{
    struct engine_form *f = form_new(kind, text, len, lenient);
    if (f == NULL)
        return -ENOMEM;
    int rc = -EINVAL;
    switch (kind) {
    case ENGINE_FORM_OBJECT:
        rc = grammar_from_json_object(NULL, &f->grammar, err, err_size);
        break;
    case ENGINE_FORM_SCHEMA:
        rc = grammar_from_schema(text, len, NULL, lenient ? GRAMMAR_LENIENT : 0, &f->grammar, err, err_size);
        break;
    case ENGINE_FORM_PATTERN:
        rc = grammar_from_pattern(text, len, NULL, &f->grammar, err, err_size);
        break;
    case ENGINE_FORM_CALL:
        break;
    }
    if (rc)
        engine_form_free(f);
    else
        *out = f;
    return rc;
}

int engine_form_calls(enum engine_call_syntax syntax, const char *tools, size_t len, struct engine_form **out,
                      size_t *at, char *err, size_t err_size)
{
    static const struct grammar_call_form forms[] = {
        [ENGINE_CALLS_NONE] = {GRAMMAR_CALL_OBJECT, "arguments", NULL, false},
        [ENGINE_CALLS_HERMES] = {GRAMMAR_CALL_OBJECT, "arguments", NULL, false},
        [ENGINE_CALLS_XML] = {GRAMMAR_CALL_XML, NULL, NULL, false},
        [ENGINE_CALLS_LLAMA] = {GRAMMAR_CALL_OBJECT, "parameters", NULL, false},
        [ENGINE_CALLS_MISTRAL_LIST] = {GRAMMAR_CALL_LIST, "arguments", NULL, false},
        [ENGINE_CALLS_MISTRAL_LIST_ID] = {GRAMMAR_CALL_LIST, "arguments", NULL, true},
        [ENGINE_CALLS_MISTRAL] = {GRAMMAR_CALL_NAMED, NULL, CHAT_MARK_ARGS, false},
        [ENGINE_CALLS_MISTRAL_ID] = {GRAMMAR_CALL_NAMED, CHAT_MARK_ID, CHAT_MARK_ARGS, true},
        [ENGINE_CALLS_HARMONY] = {GRAMMAR_CALL_NAMED, NULL, CHAT_MARK_CHANNEL "commentary json" CHAT_MARK_MESSAGE,
                                  false},
    };
    struct engine_form *f = form_new(ENGINE_FORM_CALL, tools, len, false);
    *at = 0;
    if (f == NULL)
        return -ENOMEM;
    int rc = grammar_from_calls(&forms[syntax], tools, len, NULL, &f->grammar, at, err, err_size);
    if (rc)
        engine_form_free(f);
    else
        *out = f;
    return rc;
}

struct engine_form *engine_form_share(struct engine_form *f)
{
    if (f != NULL)
        atomic_fetch_add(&f->owners, 1);
    return f;
}

void engine_form_free(struct engine_form *f)
{
    if (f == NULL || atomic_fetch_sub(&f->owners, 1) > 1)
        return;
    grammar_free(f->grammar);
    free(f->text);
    free(f->owner);
    free(f);
}

size_t engine_form_bytes(const struct engine_form *f)
{
    return sizeof *f + f->len + grammar_use(f->grammar).bytes;
}
