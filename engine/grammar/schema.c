/* schema.c - JSON Schemas (draft 2020-12): keywords, references, alternatives, and the queue of what is to be compiled.
 */
#include "engine/grammar/schema.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- refusing ---------------------------------------------------------------------------------------------------- */

/* Writes the way from `from` to `node` as a JSON pointer; false: it is not below. */
static bool find_path(const cJSON *from, const cJSON *node, char *path, size_t size, size_t at)
{
    path[at] = 0;
    if (from == node)
        return true;
    size_t i = 0;
    for (const cJSON *child = from->child; child; child = child->next, i++) {
        int n = cJSON_IsObject(from) ? snprintf(path + at, size - at, "/%.40s", child->string)
                                     : snprintf(path + at, size - at, "/%zu", i);
        if (n > 0 && at + (size_t)n < size && find_path(child, node, path, size, at + (size_t)n))
            return true;
    }
    path[at] = 0;
    return false;
}

expr schema_refuse(struct compiler *c, int rc, const cJSON *node, const char *what)
{
    if (c->rc == 0) {
        char path[256] = "";
        c->rc = rc;
        if (node && !find_path(c->root, node, path, sizeof path, 0))
            path[0] = 0;
        snprintf(c->err, c->err_size, "schema: #%s: %s", path, what);
    }
    return EXPR_NOTHING;
}

void schema_unsupported(struct compiler *c, const cJSON *node, const char *what)
{
    char text[160];
    if (c->lenient)
        return;
    snprintf(text, sizeof text, "%.100s is not supported", what);
    schema_refuse(c, -ENOTSUP, node, text);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

const cJSON *schema_get(struct compiler *c, const cJSON *node, const char *keyword)
{
    for (const cJSON *child = cJSON_IsObject(node) ? node->child : NULL; child; child = child->next) {
        if (!expr_work(c->g))
            return NULL;
        if (strcmp(child->string, keyword) == 0)
            return child;
    }
    return NULL;
}

uint32_t schema_count(struct compiler *c, const struct set *s, const char *keyword, bool greatest, uint32_t otherwise)
{
    uint32_t count = otherwise;
    char text[96];
    for (size_t i = 0; i < s->n; i++) {
        const cJSON *v = schema_get(c, s->of[i].node, keyword);
        if (!v)
            continue;
        double x = cJSON_IsNumber(v) ? v->valuedouble : -1;
        if (!(x >= 0) || x != floor(x)) {
            snprintf(text, sizeof text, "%s is not a whole number >= 0", keyword);
            schema_refuse(c, -EINVAL, v, text);
            return count;
        }
        if (x > GRAMMAR_MAX_COUNT && greatest && c->lenient)
            continue;
        if (x > GRAMMAR_MAX_COUNT && greatest) {
            snprintf(text, sizeof text, "%s is more than %d", keyword, GRAMMAR_MAX_COUNT);
            schema_refuse(c, -E2BIG, v, text);
            return count;
        }
        /* Of a greatest count that is greater: a lower one keeps to the schema, too. */
        uint32_t n = x > GRAMMAR_MAX_COUNT ? GRAMMAR_MAX_COUNT : (uint32_t)x;
        if (greatest ? n > count : n < count)
            count = n;
    }
    return count;
}

static unsigned type_named(struct compiler *c, const cJSON *name)
{
    static const struct {
        const char *name;
        unsigned types;
    } TYPES[] = {{"null", TYPE_NULL},    {"boolean", TYPE_BOOLEAN}, {"object", TYPE_OBJECT},
                 {"array", TYPE_ARRAY},  {"integer", TYPE_INTEGER}, {"number", TYPE_INTEGER | TYPE_NUMBER},
                 {"string", TYPE_STRING}};
    for (size_t i = 0; cJSON_IsString(name) && i < sizeof TYPES / sizeof TYPES[0]; i++)
        if (strcmp(name->valuestring, TYPES[i].name) == 0)
            return TYPES[i].types;
    schema_refuse(c, -EINVAL, name, "type is none of null, boolean, object, array, integer, number, string");
    return 0;
}

unsigned schema_types(struct compiler *c, const struct set *s)
{
    unsigned types = TYPE_ANY;
    for (size_t i = 0; i < s->n; i++) {
        const cJSON *type = schema_get(c, s->of[i].node, "type");
        unsigned own = 0;
        if (!type)
            continue;
        if (cJSON_IsArray(type))
            for (const cJSON *t = type->child; t && expr_work(c->g); t = t->next)
                own |= type_named(c, t);
        else
            own = type_named(c, type);
        types &= own;
    }
    return types;
}

/* ---- keywords ---------------------------------------------------------------------------------------------------- */

enum keyword_kind {
    KEYWORD_ASSERTION,
    KEYWORD_ANNOTATION,
    KEYWORD_UNSUPPORTED,
};

struct keyword {
    const char *name;
    enum keyword_kind kind;
};

static int by_keyword(const void *name, const void *keyword)
{
    return strcmp(name, ((const struct keyword *)keyword)->name);
}

static enum keyword_kind kind_of(const char *name)
{
    /* In the order of strcmp(). */
    static const struct keyword KEYWORDS[] = {
        {"$dynamicRef", KEYWORD_UNSUPPORTED},
        {"$recursiveRef", KEYWORD_UNSUPPORTED},
        {"$ref", KEYWORD_ASSERTION},
        {"additionalItems", KEYWORD_UNSUPPORTED},
        {"additionalProperties", KEYWORD_ASSERTION},
        {"allOf", KEYWORD_ASSERTION},
        {"anyOf", KEYWORD_ASSERTION},
        {"const", KEYWORD_ASSERTION},
        {"contains", KEYWORD_UNSUPPORTED},
        {"dependencies", KEYWORD_UNSUPPORTED},
        {"dependentRequired", KEYWORD_UNSUPPORTED},
        {"dependentSchemas", KEYWORD_UNSUPPORTED},
        {"enum", KEYWORD_ASSERTION},
        {"exclusiveMaximum", KEYWORD_ASSERTION},
        {"exclusiveMinimum", KEYWORD_ASSERTION},
        {"format", KEYWORD_ASSERTION},
        {"if", KEYWORD_UNSUPPORTED},
        {"items", KEYWORD_ASSERTION},
        {"maxItems", KEYWORD_ASSERTION},
        {"maxLength", KEYWORD_ASSERTION},
        {"maxProperties", KEYWORD_ASSERTION},
        {"maximum", KEYWORD_ASSERTION},
        {"minItems", KEYWORD_ASSERTION},
        {"minLength", KEYWORD_ASSERTION},
        {"minProperties", KEYWORD_ASSERTION},
        {"minimum", KEYWORD_ASSERTION},
        {"multipleOf", KEYWORD_ASSERTION},
        {"not", KEYWORD_UNSUPPORTED},
        {"oneOf", KEYWORD_ASSERTION},
        {"pattern", KEYWORD_ASSERTION},
        {"patternProperties", KEYWORD_ASSERTION},
        {"prefixItems", KEYWORD_ASSERTION},
        {"properties", KEYWORD_ASSERTION},
        {"propertyNames", KEYWORD_ASSERTION},
        {"required", KEYWORD_ASSERTION},
        {"type", KEYWORD_ASSERTION},
        {"unevaluatedItems", KEYWORD_UNSUPPORTED},
        {"unevaluatedProperties", KEYWORD_UNSUPPORTED},
        {"uniqueItems", KEYWORD_ASSERTION},
    };
    const struct keyword *k =
        bsearch(name, KEYWORDS, sizeof KEYWORDS / sizeof KEYWORDS[0], sizeof KEYWORDS[0], by_keyword);
    return k ? k->kind : KEYWORD_ANNOTATION;
}

/* Whether a node says more than where its alternatives and references are. */
static bool says_something(struct compiler *c, const cJSON *node, unsigned used)
{
    for (const cJSON *k = node->child; k && expr_work(c->g); k = k->next) {
        const char *name = k->string;
        if (kind_of(name) == KEYWORD_ASSERTION && strcmp(name, "$ref") != 0 && strcmp(name, "allOf") != 0 &&
            !(used & USED_ANY_OF && strcmp(name, "anyOf") == 0) && !(used & USED_ONE_OF && strcmp(name, "oneOf") == 0))
            return true;
    }
    return false;
}

static void check_keywords(struct compiler *c, const cJSON *node)
{
    for (const cJSON *k = node->child; k && expr_work(c->g); k = k->next) {
        if (kind_of(k->string) == KEYWORD_UNSUPPORTED)
            schema_unsupported(c, k, k->string);
        if (strcmp(k->string, "$id") == 0 && node != c->root)
            schema_unsupported(c, k, "$id below the root");
    }
}

/* ---- references -------------------------------------------------------------------------------------------------- */

/* One part of a JSON pointer, its escapes undone: %XX, ~1, ~0. */
static bool pointer_part(const char **at, char *out, size_t size)
{
    size_t n = 0;
    const char *p = *at;
    while (*p && *p != '/') {
        char ch = *p++;
        if (ch == '%') {
            char hex[3] = {p[0], p[0] ? p[1] : 0, 0}, *end;
            ch = (char)strtoul(hex, &end, 16);
            if (end != hex + 2)
                return false;
            p += 2;
        }
        if (ch == '~') {
            if (*p != '0' && *p != '1')
                return false;
            ch = *p++ == '0' ? '~' : '/';
        }
        if (n + 1 >= size)
            return false;
        out[n++] = ch;
    }
    out[n] = 0;
    *at = p;
    return true;
}

/* NULL: it was refused, or is passed over. */
static const cJSON *resolve(struct compiler *c, const cJSON *ref)
{
    char part[512], text[160];
    if (!cJSON_IsString(ref)) {
        schema_refuse(c, -EINVAL, ref, "$ref is not a string");
        return NULL;
    }
    const char *at = ref->valuestring;
    const cJSON *id = schema_get(c, c->root, "$id"), *node = c->root;
    if (cJSON_IsString(id) && strncmp(at, id->valuestring, strcspn(id->valuestring, "#")) == 0)
        at += strcspn(id->valuestring, "#");
    bool elsewhere = *at != 0 && *at != '#', anchor = *at == '#' && at[1] && at[1] != '/';
    if (c->lenient && (elsewhere || anchor))
        return NULL;
    if (elsewhere) {
        snprintf(text, sizeof text, "$ref \"%.100s\": schemas elsewhere are not fetched", ref->valuestring);
        schema_refuse(c, -ENOTSUP, ref, text);
        return NULL;
    }
    at += *at == '#';
    if (anchor) {
        schema_refuse(c, -ENOTSUP, ref, "$ref to an $anchor is not supported");
        return NULL;
    }
    while (node && *at == '/') {
        at++;
        if (!pointer_part(&at, part, sizeof part)) {
            node = NULL;
        } else if (cJSON_IsArray(node)) {
            char *end;
            unsigned long i = strtoul(part, &end, 10);
            node = *end == 0 && part[0] ? node->child : NULL;
            for (; node && i > 0 && expr_work(c->g); i--)
                node = node->next;
        } else {
            node = schema_get(c, node, part);
        }
    }
    if (!node && !c->g->failed) {
        snprintf(text, sizeof text, "$ref \"%.100s\" leads nowhere", ref->valuestring);
        schema_refuse(c, -EINVAL, ref, text);
    }
    return node;
}

static void add(struct compiler *c, struct set *s, const cJSON *node, unsigned used)
{
    if (c->rc || !expr_work(c->g) || cJSON_IsTrue(node))
        return;
    if (cJSON_IsFalse(node)) {
        s->never = true;
        return;
    }
    if (!cJSON_IsObject(node)) {
        schema_refuse(c, -EINVAL, node, "a schema is an object, true or false");
        return;
    }
    for (size_t i = 0; i < s->n; i++)
        if (s->of[i].node == node) {
            if (s->of[i].used & OPEN)
                schema_refuse(c, -EINVAL, node, "it refers to itself without a value in between");
            /* One of its alternatives may have led here: that does not fulfil it. */
            s->of[i].used &= OPEN;
            return;
        }
    if (s->n == SCHEMA_MAX_SET) {
        schema_refuse(c, -E2BIG, node, "too many schemas hold together");
        return;
    }
    check_keywords(c, node);
    size_t at = s->n++;
    s->of[at] = (struct set_entry){node, used | OPEN};
    const cJSON *ref = schema_get(c, node, "$ref"), *all = schema_get(c, node, "allOf");
    if (ref) {
        const cJSON *target = resolve(c, ref);
        if (target)
            add(c, s, target, 0);
    }
    if (all && (!cJSON_IsArray(all) || !all->child))
        schema_refuse(c, -EINVAL, all, "allOf is not a list of schemas");
    for (const cJSON *part = all ? all->child : NULL; part; part = part->next)
        add(c, s, part, 0);
    s->of[at].used &= (unsigned)~OPEN;
}

/* Entries that say nothing more are dropped, so that equal sets are equal. */
static void tidy(struct compiler *c, struct set *s)
{
    size_t kept = 0;
    for (size_t i = 0; i < s->n; i++)
        if (says_something(c, s->of[i].node, s->of[i].used))
            s->of[kept++] = s->of[i];
    s->n = kept;
}

void schema_add(struct compiler *c, struct set *s, const cJSON *node)
{
    add(c, s, node, 0);
}

/* ---- the queue --------------------------------------------------------------------------------------------------- */

static uint64_t hash_of(const struct set *s)
{
    uint64_t h = s->n;
    for (size_t i = 0; i < s->n; i++) {
        h = (h ^ (uintptr_t)s->of[i].node ^ s->of[i].used) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    return h;
}

static bool is_known(const struct compiler *c, const struct known *k, const struct set *s, uint64_t hash)
{
    if (k->hash != hash || k->n != s->n)
        return false;
    for (size_t i = 0; i < s->n; i++)
        if (c->entries[k->first + i].node != s->of[i].node || c->entries[k->first + i].used != s->of[i].used)
            return false;
    return true;
}

/* Makes room for one more set, with its entries. */
static bool make_room(struct compiler *c)
{
    if (c->n_known == SCHEMA_MAX_SETS) {
        schema_refuse(c, -E2BIG, NULL, "too many different schemas");
        return false;
    }
    if (c->n_known == c->known_room) {
        size_t room = c->known_room ? c->known_room * 2 : 64, mask = room * 4 - 1;
        struct known *known = realloc(c->known, room * sizeof *known);
        c->known = known ? known : c->known;
        uint32_t *table = calloc(mask + 1, sizeof *table);
        if (!known || !table) {
            free(table);
            expr_fail(c->g, -ENOMEM);
            return false;
        }
        for (size_t i = 0; i < c->n_known; i++) {
            size_t at = known[i].hash & mask;
            while (table[at])
                at = (at + 1) & mask;
            table[at] = (uint32_t)i + 1;
        }
        free(c->table);
        c->table = table;
        c->table_mask = mask;
        c->known_room = room;
    }
    if (c->entries_room - c->n_entries < SCHEMA_MAX_SET) {
        size_t room = c->entries_room * 2 + SCHEMA_MAX_SET;
        struct set_entry *entries = realloc(c->entries, room * sizeof *entries);
        if (!entries) {
            expr_fail(c->g, -ENOMEM);
            return false;
        }
        c->entries = entries;
        c->entries_room = room;
    }
    return true;
}

expr schema_value(struct compiler *c, const struct set *set)
{
    if (set->never || c->rc || c->g->failed || !make_room(c))
        return EXPR_NOTHING;
    struct set s = *set;
    tidy(c, &s);
    uint64_t hash = hash_of(&s);
    size_t at = hash & c->table_mask;
    for (; c->table[at]; at = (at + 1) & c->table_mask)
        if (is_known(c, &c->known[c->table[at] - 1], &s, hash))
            return expr_ref(c->g, c->known[c->table[at] - 1].ref);
    uint32_t ref = expr_ref_new(c->g);
    c->known[c->n_known] = (struct known){c->n_entries, s.n, hash, ref};
    memcpy(c->entries + c->n_entries, s.of, s.n * sizeof s.of[0]);
    c->n_entries += s.n;
    c->table[at] = (uint32_t)++c->n_known;
    return expr_ref(c->g, ref);
}

/* The set once for each of the alternatives of its i-th schema. */
static expr alternatives(struct compiler *c, const struct set *s, size_t i, const cJSON *list, unsigned used)
{
    expr e = EXPR_NOTHING;
    if (!cJSON_IsArray(list) || !list->child)
        return schema_refuse(c, -EINVAL, list,
                             used == USED_ANY_OF ? "anyOf is not a list of schemas" : "oneOf is not a list of schemas");
    for (const cJSON *a = list->child; a && used == USED_ONE_OF && !c->lenient; a = a->next)
        for (const cJSON *b = a->next; b && c->rc == 0 && !c->g->failed; b = b->next)
            if (!schema_disjoint(c, a, b) && !c->g->failed)
                schema_unsupported(c, list,
                                   "oneOf whose schemas cannot be told apart by a type or a required constant");
    for (const cJSON *a = list->child; a && c->rc == 0 && expr_work(c->g); a = a->next) {
        struct set with = *s;
        with.of[i].used |= used;
        schema_add(c, &with, a);
        e = expr_alt(c->g, e, schema_value(c, &with));
    }
    return e;
}

static expr body_of(struct compiler *c, const struct set *s)
{
    struct grammar *g = c->g;
    for (size_t i = 0; i < s->n; i++) {
        const cJSON *any = schema_get(c, s->of[i].node, "anyOf"), *one = schema_get(c, s->of[i].node, "oneOf");
        if (any && !(s->of[i].used & USED_ANY_OF))
            return alternatives(c, s, i, any, USED_ANY_OF);
        if (one && !(s->of[i].used & USED_ONE_OF))
            return alternatives(c, s, i, one, USED_ONE_OF);
    }
    unsigned types = schema_types(c, s);
    expr listed, parts[7];
    size_t n = 0;
    if (schema_enum(c, s, types, &listed))
        return listed;
    if (types & TYPE_NULL)
        parts[n++] = expr_text(g, "null");
    if (types & TYPE_BOOLEAN)
        parts[n++] = expr_alt(g, expr_text(g, "true"), expr_text(g, "false"));
    if (types & (TYPE_INTEGER | TYPE_NUMBER))
        parts[n++] = schema_number(c, s, !(types & TYPE_NUMBER));
    if (types & TYPE_STRING)
        parts[n++] = schema_string(c, s);
    if (types & TYPE_ARRAY)
        parts[n++] = schema_array(c, s);
    if (types & TYPE_OBJECT)
        parts[n++] = schema_object(c, s);
    return expr_alts(g, parts, n);
}

/* ---- documents --------------------------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* No key twice, nothing too deep: what the rest relies on. */
static void check_document(struct compiler *c, const cJSON *node, int depth)
{
    size_t n = 0, i = 0;
    if (depth > GRAMMAR_MAX_SCHEMA_DEPTH) {
        schema_refuse(c, -E2BIG, NULL, "objects and lists too deep in one another");
        return;
    }
    for (const cJSON *k = node->child; k && c->rc == 0; k = k->next, n++)
        check_document(c, k, depth + 1);
    if (!cJSON_IsObject(node) || n < 2 || c->rc)
        return;
    const char **names = malloc(n * sizeof *names);
    if (!names) {
        expr_fail(c->g, -ENOMEM);
        return;
    }
    for (const cJSON *k = node->child; k; k = k->next)
        names[i++] = k->string;
    qsort(names, n, sizeof *names, by_name);
    for (i = 1; i < n; i++)
        if (strcmp(names[i - 1], names[i]) == 0) {
            char text[128];
            snprintf(text, sizeof text, "\"%.60s\" stands there twice", names[i]);
            schema_refuse(c, -EINVAL, node, text);
            break;
        }
    free(names);
}

/* Whether the text has an escaped U+0000, behind which strings would be cut off. */
static bool has_nul(const char *text, size_t len)
{
    for (size_t i = 0; i + 1 < len; i++)
        if (text[i] == '\\' && (len - i < 6 || memcmp(text + i, "\\u0000", 6) != 0))
            i++;
        else if (text[i] == '\\')
            return true;
    return false;
}

void schema_begin(struct compiler *c, struct grammar *g, const cJSON *root)
{
    struct byte_set space = {{0}};
    for (const char *b = " \t\n\r"; *b; b++)
        byte_set_add(&space, (unsigned char)*b, (unsigned char)*b);
    c->g = g;
    c->root = root;
    c->space = expr_repeat(g, expr_set(g, &space), 0, GRAMMAR_MAX_SPACE);
    c->quote = expr_bytes(g, '"', '"');
    c->string = expr_cat(g, c->quote, expr_cat(g, expr_repeat(g, g->character, 0, EXPR_INFINITE), c->quote));
    check_document(c, root, 0);
}

expr schema_compile(struct compiler *c, struct set *s)
{
    struct grammar *g = c->g;
    expr e = schema_value(c, s);
    for (size_t i = 0; i < c->n_known && c->rc == 0 && !g->failed; i++) {
        memset(s, 0, sizeof *s);
        s->n = c->known[i].n;
        memcpy(s->of, c->entries + c->known[i].first, s->n * sizeof s->of[0]);
        expr body = body_of(c, s);
        if (!g->failed)
            g->refs[c->known[i].ref] = body;
    }
    return e;
}

void schema_end(struct compiler *c)
{
    free(c->entries);
    free(c->known);
    free(c->table);
}

int schema_read(const char *text, size_t len, cJSON **out, char *err, size_t err_size)
{
    if (len > GRAMMAR_MAX_SCHEMA_BYTES) {
        snprintf(err, err_size, "schema: longer than %d bytes", GRAMMAR_MAX_SCHEMA_BYTES);
        return -E2BIG;
    }
    if (has_nul(text, len)) {
        snprintf(err, err_size, "schema: U+0000 in a string is not supported");
        return -ENOTSUP;
    }
    const char *end = NULL;
    cJSON *root = memchr(text, 0, len) ? NULL : cJSON_ParseWithLengthOpts(text, len, &end, false);
    while (root && end < text + len && strchr(" \t\r\n", *end))
        end++;
    if (!root || end != text + len) {
        snprintf(err, err_size, "schema: not JSON, or too deep, at byte %zu",
                 end && end >= text ? (size_t)(end - text) : 0);
        cJSON_Delete(root);
        return -EINVAL;
    }
    *out = root;
    return 0;
}

int grammar_from_schema(const char *schema, size_t len, const struct grammar_vocab *v, unsigned flags,
                        struct grammar **out, char *err, size_t err_size)
{
    struct compiler c = {.lenient = flags & GRAMMAR_LENIENT, .err = err, .err_size = err_size};
    struct grammar *g = NULL;
    cJSON *root = NULL;
    struct set *s = calloc(1, sizeof *s);
    int rc = s ? schema_read(schema, len, &root, err, err_size) : -ENOMEM;
    if (rc == 0)
        rc = grammar_begin(v, &g);
    if (rc == 0) {
        schema_begin(&c, g, root);
        schema_add(&c, s, root);
        g->root = schema_compile(&c, s);
        rc = c.rc ? c.rc : grammar_end(g, "schema", err, err_size);
    }
    schema_end(&c);
    cJSON_Delete(root);
    free(s);
    if (rc == 0)
        *out = g;
    else
        grammar_free(g);
    return rc;
}

int grammar_from_json_object(const struct grammar_vocab *v, struct grammar **out, char *err, size_t err_size)
{
    static const char SCHEMA[] = "{\"type\":\"object\"}";
    return grammar_from_schema(SCHEMA, sizeof SCHEMA - 1, v, 0, out, err, err_size);
}
