/* calls.c - calls of tools: the name of one, and arguments that its schema allows.
 *
 * A call's name comes before its arguments, so that it is known before they come. Members of an object are in one
 * order: {"name": "add", "arguments": {...}}.
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

static expr cat_all(struct grammar *g, const expr *parts, size_t n)
{
    expr e = EXPR_EMPTY;
    for (size_t i = n; i-- > 0;)
        e = expr_cat(g, parts[i], e);
    return e;
}

#define CAT(g, parts) cat_all(g, parts, sizeof(parts) / sizeof *(parts))

/* Nine letters and digits. */
static expr nine(struct grammar *g)
{
    const expr of[] = {expr_bytes(g, '0', '9'), expr_bytes(g, 'A', 'Z'), expr_bytes(g, 'a', 'z')};
    return expr_repeat(g, expr_alts(g, of, 3), 9, 9);
}

/* {"name": "NAME", KEY: ARGUMENTS} */
static expr object_call(struct compiler *c, const struct grammar_call_form *form, const char *name, expr arguments)
{
    struct grammar *g = c->g;
    expr id = EXPR_EMPTY;
    if (form->ids) {
        expr parts[] = {c->space, expr_text(g, ","), c->space, member(c, "id", ":"),
                        c->space, c->quote,          nine(g),  c->quote};
        id = CAT(g, parts);
    }
    expr parts[] = {expr_text(g, "{"),
                    c->space,
                    member(c, "name", ":"),
                    c->space,
                    member(c, name, ","),
                    c->space,
                    member(c, form->key, ":"),
                    c->space,
                    arguments,
                    id,
                    c->space,
                    expr_text(g, "}")};
    return CAT(g, parts);
}

static expr call(struct compiler *c, const struct grammar_call_form *form, const char *name, expr arguments)
{
    struct grammar *g = c->g;
    if (form->shape == GRAMMAR_CALL_OBJECT || form->shape == GRAMMAR_CALL_LIST)
        return object_call(c, form, name, arguments);
    if (form->shape == GRAMMAR_CALL_NAMED) {
        expr id[] = {form->ids ? expr_text(g, form->key) : EXPR_EMPTY, form->ids ? nine(g) : EXPR_EMPTY};
        expr parts[] = {expr_text(g, name), CAT(g, id), expr_text(g, form->before), c->space, arguments, c->space};
        return CAT(g, parts);
    }
    expr parts[] = {c->space,
                    expr_text(g, "<function="),
                    expr_text(g, name),
                    expr_text(g, ">"),
                    c->space,
                    arguments,
                    expr_text(g, "</function>"),
                    c->space};
    return CAT(g, parts);
}

/* What an answer may have: one of the calls, or a list of them. */
static expr calls(struct compiler *c, const struct grammar_call_form *form, expr any)
{
    struct grammar *g = c->g;
    if (form->shape == GRAMMAR_CALL_OBJECT) {
        expr parts[] = {c->space, any, c->space};
        return CAT(g, parts);
    }
    if (form->shape != GRAMMAR_CALL_LIST)
        return any;
    expr next[] = {c->space, expr_text(g, ","), c->space, any};
    expr parts[] = {c->space, expr_text(g, "["), c->space, any, expr_repeat(g, CAT(g, next), 0, EXPR_INFINITE),
                    c->space, expr_text(g, "]"), c->space};
    return CAT(g, parts);
}

/* ---- arguments as XML: a string's text stands as it is, all else as JSON ---- */

static const char PARAMETER_END[] = "</parameter>";

/* Any text in which no parameter ends. */
static expr plain_text(struct grammar *g)
{
    expr end[] = {EXPR_ANYTHING, expr_text(g, PARAMETER_END), EXPR_ANYTHING};
    expr character = char_class(g, CHAR_UTF8, &(struct char_range){0, 0x10ffff}, 1);
    return expr_and(g, expr_repeat(g, character, 0, EXPR_INFINITE), expr_not(g, CAT(g, end)));
}

/* A string of one schema: enum, const and lengths hold; of patterns those of the set's own. */
static expr plain_string(struct compiler *c, const struct set *s)
{
    struct grammar *g = c->g;
    const cJSON *values[256];
    int n = schema_values(c, s, values, 256);
    expr e = EXPR_NOTHING;
    for (int i = 0; i < n; i++)
        if (cJSON_IsString(values[i]))
            e = expr_alt(g, e, expr_text(g, values[i]->valuestring));
    if (n >= 0)
        return e;
    e = plain_text(g);
    uint32_t min = schema_count(c, s, "minLength", true, 0),
             max = schema_count(c, s, "maxLength", false, EXPR_INFINITE);
    expr character = char_class(g, CHAR_UTF8, &(struct char_range){0, 0x10ffff}, 1);
    if (min > max)
        return EXPR_NOTHING;
    if (min > 0 || max != EXPR_INFINITE)
        e = expr_and(g, e, expr_repeat(g, character, min, max));
    for (size_t i = 0; i < s->n; i++) {
        const cJSON *pattern = schema_get(c, s->of[i].node, "pattern"),
                    *format = schema_get(c, s->of[i].node, "format");
        const char *text = cJSON_IsString(pattern) ? pattern->valuestring : NULL;
        expr found = EXPR_NOTHING;
        char why[200] = "";
        if (text == NULL && cJSON_IsString(format))
            text = format_pattern(format->valuestring);
        if (text == NULL)
            continue;
        int rc = pattern_compile(g, CHAR_UTF8, text, strlen(text), true, &found, why, sizeof why);
        if (rc)
            return schema_refuse(c, rc, pattern != NULL ? pattern : format, why);
        e = expr_and(g, e, found);
    }
    return e;
}

static expr plain_value(struct compiler *c, struct set *s)
{
    unsigned types = schema_types(c, s);
    if (types == TYPE_STRING)
        return plain_string(c, s);
    return types & TYPE_STRING ? plain_text(c->g) : schema_value(c, s);
}

static expr parameter(struct compiler *c, expr key, expr value)
{
    struct grammar *g = c->g;
    expr parts[] = {expr_text(g, "<parameter="), key,     expr_text(g, ">\n"), value, expr_text(g, "\n"),
                    expr_text(g, PARAMETER_END), c->space};
    return CAT(g, parts);
}

static bool is_required(struct compiler *c, const cJSON *parameters, const char *name)
{
    const cJSON *required;
    cJSON_ArrayForEach(required, schema_get(c, parameters, "required"))
    {
        if (cJSON_IsString(required) && strcmp(required->valuestring, name) == 0)
            return true;
    }
    return false;
}

/* Parameters of any names and values. */
static expr any_parameters(struct compiler *c)
{
    static const struct char_range KEY[] = {{'$', '$'}, {'-', '.'}, {'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    struct grammar *g = c->g;
    expr key = expr_repeat(g, char_class(g, CHAR_UTF8, KEY, sizeof KEY / sizeof *KEY), 1, 64);
    return expr_repeat(g, parameter(c, key, plain_text(g)), 0, EXPR_INFINITE);
}

/* Those of a schema, in its order. */
static expr parameters_of(struct compiler *c, const cJSON *parameters, struct set *s)
{
    static const char *const KNOWN[] = {"type",  "properties", "required", "additionalProperties", "description",
                                        "title", "$schema",    "$defs",    "definitions"};
    struct grammar *g = c->g;
    expr e = EXPR_EMPTY;
    const cJSON *p, *properties = schema_get(c, parameters, "properties");
    for (const cJSON *k = parameters->child; k != NULL; k = k->next) {
        size_t i = 0;
        while (i < sizeof KNOWN / sizeof *KNOWN && strcmp(KNOWN[i], k->string) != 0)
            i++;
        if (i == sizeof KNOWN / sizeof *KNOWN)
            return schema_refuse(c, -ENOTSUP, k, "not supported at the top of parameters that the model writes as XML");
    }
    for (const cJSON *r = properties != NULL ? properties->child : NULL; r != NULL; r = r->next)
        if (r->string[strcspn(r->string, "<>\n")] != '\0')
            return schema_refuse(c, -ENOTSUP, r, "a name that a model cannot write as XML");
    cJSON_ArrayForEach(p, properties)
    {
        memset(s, 0, sizeof *s);
        schema_add(c, s, p);
        expr one = parameter(c, expr_text(g, p->string), plain_value(c, s));
        e = expr_cat(g, e, is_required(c, parameters, p->string) ? one : expr_optional(g, one));
    }
    return e;
}

/* The parameters that a schema allows; NULL: any. */
static int parameters_as_xml(struct grammar *g, const cJSON *parameters, const cJSON *object, expr *out, char *err,
                             size_t err_size)
{
    struct compiler c = {.err = err, .err_size = err_size};
    struct set *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    schema_begin(&c, g, parameters ? parameters : object);
    *out = parameters && cJSON_IsObject(parameters) ? parameters_of(&c, parameters, s) : any_parameters(&c);
    memset(s, 0, sizeof *s);
    schema_add(&c, s, object);
    (void)schema_compile(&c, s); /* what the values refer to */
    schema_end(&c);
    free(s);
    return c.rc;
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
static int check_call(struct grammar *g, const struct grammar_call_form *form, const cJSON *tool, char *err,
                      size_t err_size)
{
    static const char *const BEFORE[] = {"{\"name\":\"", "[{\"name\":\"", "", "<function="};
    const char *name = "", *id = form->ids ? "aaaaaaaaa" : "";
    bool object = form->shape == GRAMMAR_CALL_OBJECT || form->shape == GRAMMAR_CALL_LIST;
    bool named = form->shape == GRAMMAR_CALL_NAMED;
    struct grammar_match *m = grammar_match_new(g);
    int rc = m ? name_of(tool, &name, err, err_size) : -ENOMEM;
    const char *pieces[] = {BEFORE[form->shape],
                            name,
                            object               ? "\",\""
                            : named && form->ids ? form->key
                                                 : "",
                            object  ? form->key
                            : named ? id
                                    : ">",
                            object  ? "\":{"
                            : named ? form->before
                                    : "",
                            named ? "{" : ""};
    for (size_t i = 0; rc == 0 && i < sizeof pieces / sizeof *pieces; i++)
        rc = grammar_match_push(m, pieces[i], strlen(pieces[i]));
    grammar_match_free(m);
    if (rc == -EILSEQ) {
        snprintf(err, err_size, "schema: nothing can fulfil it: its conditions contradict each other or never end");
        rc = -EINVAL;
    } else if (rc == -E2BIG) {
        snprintf(err, err_size, "tools: more work or memory than is allowed for one");
    }
    return rc;
}

int grammar_from_calls(const struct grammar_call_form *form, const char *tools, size_t len,
                       const struct grammar_vocab *v, struct grammar **out, size_t *at, char *err, size_t err_size)
{
    struct grammar *g = NULL;
    cJSON *list = NULL, *object = cJSON_CreateObject();
    bool xml = form->shape == GRAMMAR_CALL_XML;
    expr any = EXPR_NOTHING, all = EXPR_NOTHING;
    *at = 0;
    int rc = object && cJSON_AddStringToObject(object, "type", "object") ? 0 : -ENOMEM;
    rc = rc ? rc : schema_read(tools, len, &list, err, err_size);
    rc = rc ? rc : grammar_begin(v, &g);
    if (rc == 0)
        rc = xml ? parameters_as_xml(g, NULL, object, &any, err, err_size)
                 : arguments_of(g, object, object, &any, err, err_size);
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
            rc = xml ? parameters_as_xml(g, parameters, object, &arguments, err, err_size)
                     : arguments_of(g, parameters, object, &arguments, err, err_size);
        if (rc == 0)
            all = expr_alt(g, all, call(&c, form, name, arguments));
        if (g->failed)
            break;
    }
    if (rc == 0) {
        g->root = calls(&c, form, all);
        *at = 0;
        rc = grammar_end(g, "tools", err, err_size);
    }
    for (tool = rc == 0 ? list->child : NULL; tool && rc == 0; tool = tool->next, *at += rc == 0)
        rc = check_call(g, form, tool, err, err_size);
    schema_end(&c);
    cJSON_Delete(list);
    cJSON_Delete(object);
    if (rc == 0)
        *out = g;
    else
        grammar_free(g);
    return rc;
}
