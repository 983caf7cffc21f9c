/* calls.c - calls of tools: the name of one, and arguments that its schema allows.
 *
 * A call is the object that models of Hermes' way write, {"name": "add", "arguments": {...}}, in this order, so that
 * its name is known before its arguments come.
 */
#include "engine/grammar/schema.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "word", with white space and `mark` behind it. */
static expr member(struct compiler *c, const char *word, const char *mark)
{
    struct grammar *g = c->g;
    expr e = expr_cat(g, c->space, expr_text(g, mark));
    return expr_cat(g, c->quote, expr_cat(g, expr_text(g, word), expr_cat(g, c->quote, e)));
}

/* {"name": "NAME", "arguments": ARGUMENTS} */
static expr call(struct compiler *c, const char *name, expr arguments)
{
    struct grammar *g = c->g;
    expr parts[] = {c->space, expr_text(g, "{"),
                    c->space, member(c, "name", ":"),
                    c->space, member(c, name, ","),
                    c->space, member(c, "arguments", ":"),
                    c->space, arguments,
                    c->space, expr_text(g, "}"),
                    c->space};
    expr e = EXPR_EMPTY;
    for (size_t i = sizeof parts / sizeof *parts; i-- > 0;)
        e = expr_cat(g, parts[i], e);
    return e;
}

/* The objects that a schema allows. */
static int arguments_of(struct grammar *g, const cJSON *parameters, const cJSON *object, expr *out, char *err,
                        size_t err_size)
{
    struct compiler c = {.err = err, .err_size = err_size};
    struct set *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    schema_begin(&c, g, parameters);
    schema_add(&c, s, parameters);
    schema_add(&c, s, object);
    *out = schema_compile(&c, s);
    schema_end(&c);
    free(s);
    return c.rc;
}

static int name_of(const cJSON *tool, const char **name, char *err, size_t err_size)
{
    static const char LETTERS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
    *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(tool, "name"));
    if (*name && **name && !(*name)[strspn(*name, LETTERS)])
        return 0;
    snprintf(err, err_size, "tools: a name is missing, or has other characters than A-Z a-z 0-9 _ . -");
    return -EINVAL;
}

/* Whether a tool can be called at all: one whose arguments nothing can fulfil was left out. */
static int check_call(struct grammar *g, const cJSON *tool, char *err, size_t err_size)
{
    const char *name, *const BEFORE = "{\"name\":\"", *const BEHIND = "\",\"arguments\":{";
    struct grammar_match *m = grammar_match_new(g);
    int rc = m ? name_of(tool, &name, err, err_size) : -ENOMEM;
    rc = rc ? rc : grammar_match_push(m, BEFORE, strlen(BEFORE));
    rc = rc ? rc : grammar_match_push(m, name, strlen(name));
    rc = rc ? rc : grammar_match_push(m, BEHIND, strlen(BEHIND));
    grammar_match_free(m);
    if (rc == -EILSEQ) {
        snprintf(err, err_size, "schema: nothing can fulfil it: its conditions contradict each other or never end");
        rc = -EINVAL;
    } else if (rc == -E2BIG) {
        snprintf(err, err_size, "tools: more work or memory than is allowed for one");
    }
    return rc;
}

int grammar_from_calls(const char *tools, size_t len, const struct grammar_vocab *v, struct grammar **out, size_t *at,
                       char *err, size_t err_size)
{
    struct grammar *g = NULL;
    cJSON *list = NULL, *object = cJSON_CreateObject();
    expr any = EXPR_NOTHING, all = EXPR_NOTHING;
    *at = 0;
    int rc = object && cJSON_AddStringToObject(object, "type", "object") ? 0 : -ENOMEM;
    rc = rc ? rc : schema_read(tools, len, &list, err, err_size);
    rc = rc ? rc : grammar_begin(v, &g);
    rc = rc ? rc : arguments_of(g, object, object, &any, err, err_size);
    if (rc == 0 && !cJSON_IsArray(list)) {
        snprintf(err, err_size, "tools: not a list");
        rc = -EINVAL;
    }
    struct compiler c = {.err = err, .err_size = err_size};
    if (rc == 0)
        schema_begin(&c, g, object);
    const cJSON *tool = rc == 0 ? list->child : NULL;
    for (; tool && rc == 0; tool = tool->next, *at += rc == 0) {
        const char *name;
        const cJSON *parameters = cJSON_GetObjectItemCaseSensitive(tool, "parameters");
        expr arguments = any;
        rc = name_of(tool, &name, err, err_size);
        if (rc == 0 && parameters)
            rc = arguments_of(g, parameters, object, &arguments, err, err_size);
        if (rc == 0)
            all = expr_alt(g, all, call(&c, name, arguments));
        if (g->failed)
            break;
    }
    if (rc == 0) {
        g->root = all;
        *at = 0;
        rc = grammar_end(g, "tools", err, err_size);
    }
    for (tool = rc == 0 ? list->child : NULL; tool && rc == 0; tool = tool->next, *at += rc == 0)
        rc = check_call(g, tool, err, err_size);
    schema_end(&c);
    cJSON_Delete(list);
    cJSON_Delete(object);
    if (rc == 0)
        *out = g;
    else
        grammar_free(g);
    return rc;
}
