/* lark.c - a grammar in Lark's language as one regular expression, which is what an answer can be kept to.
 *
 * Rules stand for their right sides wherever they are named, so that a grammar whose rules name themselves, directly or
 * through others, has no such expression and is refused; so is what Lark does beside the text itself (%ignore, imports
 * but those of `common`, templates). Priorities, aliases and the marks of its trees say nothing of the text and are
 * passed over. A text is matched as a whole, character by character: Lark's lexer, which takes the longest terminal
 * that there is, may refuse a text that is taken here.
 *
 * The text is cut into tokens once; a name's right side is read from them again wherever it stands. What comes out is
 * bounded (LARK_PATTERN_MAX), and so are the steps to it, not all of which write something.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/api/api.h"

enum kind { END, LINE, NAME, STRING, REGEXP, RANGE, TILDE, NUMBER, DIRECTIVE, ARROW, MARK };

/* MARK: one of ( ) [ ] ? * + | : . ! , -- as `text[0]`. */
struct token {
    enum kind kind;
    const char *text;
    size_t len;
    bool folds; /* a string of either case */
};

struct rule {
    const struct token *name, *body, *end;
    bool open; /* its right side is being written */
};

struct lark {
    struct token *tokens;
    size_t n_tokens, capacity;
    struct rule rules[LARK_RULES_MAX];
    size_t n_rules;
    char out[LARK_PATTERN_MAX + 1];
    size_t len, steps;
    int depth;
    char *err;
    size_t err_size;
    bool failed;
};

static void fail(struct lark *l, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void fail(struct lark *l, const char *format, ...)
{
    va_list args;
    if (l->failed) {
        return; /* the first reason counts */
    }
    l->failed = true;
    va_start(args, format);
    vsnprintf(l->err, l->err_size, format, args);
    va_end(args);
}

/* ---- tokens -------------------------------------------------------------------------------------------------------
 */

static void add(struct lark *l, struct token t)
{
    if (l->n_tokens == l->capacity) {
        size_t capacity = l->capacity ? 2 * l->capacity : 64;
        struct token *grown = realloc(l->tokens, capacity * sizeof(*grown));
        if (!grown) {
            fail(l, "out of memory");
            return;
        }
        l->tokens = grown;
        l->capacity = capacity;
    }
    l->tokens[l->n_tokens++] = t;
}

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* Behind what begins and ends with `quote`, from p, which is the first. NULL: it does not end in its line. */
static const char *quoted(const char *p, char quote)
{
    for (p++; *p && *p != '\n'; p++) {
        if (*p == '\\' && p[1] && p[1] != '\n') {
            p++;
        } else if (*p == quote) {
            return p + 1;
        }
    }
    return NULL;
}

static const char *read_quoted(struct lark *l, const char *p)
{
    const char *end = quoted(p, *p);
    struct token t = {.kind = *p == '"' ? STRING : REGEXP, .text = p + 1};
    if (!end) {
        fail(l, "a %s does not end: %.40s", *p == '"' ? "string" : "regular expression", p);
        return p + strlen(p);
    }
    t.len = (size_t)(end - 1 - t.text);
    const char *flags = end;
    while (*end >= 'a' && *end <= 'z') {
        end++;
    }
    t.folds = t.kind == STRING && end == flags + 1 && *flags == 'i';
    if (end != flags && !t.folds) {
        fail(l, "the flags '%.*s' are not supported", (int)(end - flags), flags);
    }
    add(l, t);
    return end;
}

static const char *read_token(struct lark *l, const char *p)
{
    const char *end = p;
    if (*p == '"' || *p == '/') {
        return read_quoted(l, p);
    }
    if (is_name(*p)) {
        while (is_name(*end)) {
            end++;
        }
        bool number = strspn(p, "0123456789") == (size_t)(end - p);
        add(l, (struct token){.kind = number ? NUMBER : NAME, .text = p, .len = (size_t)(end - p)});
        return end;
    }
    if (*p == '%') {
        for (end++; is_name(*end);) {
            end++;
        }
        add(l, (struct token){.kind = DIRECTIVE, .text = p, .len = (size_t)(end - p)});
        return end;
    }
    if (strncmp(p, "->", 2) == 0 || strncmp(p, "..", 2) == 0) {
        add(l, (struct token){.kind = *p == '-' ? ARROW : RANGE, .text = p, .len = 2});
        return p + 2;
    }
    if (!strchr("()[]?*+|:.!~,", *p)) {
        fail(l, "'%.20s' is not understood", p);
    }
    add(l, (struct token){.kind = *p == '~' ? TILDE : MARK, .text = p, .len = 1});
    return p + 1;
}

static bool is_mark(const struct token *t, char mark)
{
    return t->kind == MARK && *t->text == mark;
}

/* Lines that end nothing are left out: empty ones, those within parentheses, and those that an alternative goes on. */
static void read_tokens(struct lark *l, const char *text)
{
    int open = 0;
    for (const char *p = text; *p && !l->failed;) {
        const struct token *last = l->n_tokens ? &l->tokens[l->n_tokens - 1] : NULL;
        if (*p == '\n') {
            if (last && last->kind != LINE && open <= 0) {
                add(l, (struct token){.kind = LINE, .text = p, .len = 1});
            }
            p++;
        } else if (*p == ' ' || *p == '\t' || *p == '\r') {
            p++;
        } else if (*p == '#' || strncmp(p, "//", 2) == 0) {
            p += strcspn(p, "\n");
        } else {
            if (*p == '|' && last && last->kind == LINE) {
                l->n_tokens--;
            }
            open += (*p == '(' || *p == '[') - (*p == ')' || *p == ']');
            p = read_token(l, p);
        }
    }
    add(l, (struct token){.kind = END, .text = "", .len = 0});
}

/* ---- rules --------------------------------------------------------------------------------------------------------
 */

static struct rule *find(struct lark *l, const struct token *name)
{
    for (size_t i = 0; i < l->n_rules; i++) {
        const struct token *own = l->rules[i].name;
        if (own->len == name->len && memcmp(own->text, name->text, name->len) == 0) {
            return &l->rules[i];
        }
    }
    return NULL;
}

/* What Lark's own grammar `common` has of these, as its text says. */
static const struct {
    const char *name, *pattern;
} common[] = {
    {"DIGIT", "[0-9]"},
    {"HEXDIGIT", "[0-9a-fA-F]"},
    {"INT", "[0-9]+"},
    {"SIGNED_INT", "[+-]?[0-9]+"},
    {"DECIMAL", "(?:[0-9]+\\.[0-9]*|\\.[0-9]+)"},
    {"NUMBER", "(?:[0-9]+\\.[0-9]*|\\.[0-9]+|[0-9]+)(?:[eE][+-]?[0-9]+)?"},
    {"SIGNED_NUMBER", "[+-]?(?:[0-9]+\\.[0-9]*|\\.[0-9]+|[0-9]+)(?:[eE][+-]?[0-9]+)?"},
    {"LCASE_LETTER", "[a-z]"},
    {"UCASE_LETTER", "[A-Z]"},
    {"LETTER", "[a-zA-Z]"},
    {"WORD", "[a-zA-Z]+"},
    {"CNAME", "[a-zA-Z_][a-zA-Z0-9_]*"},
    {"WS_INLINE", "[ \\t]+"},
    {"WS", "[ \\t\\f\\r\\n]+"},
    {"CR", "\\r"},
    {"LF", "\\n"},
    {"NEWLINE", "(?:\\r?\\n)+"},
    {"ESCAPED_STRING", "\"(?:[^\"\\\\\\n]|\\\\.)*\""},
};

/* Behind an import: names of `common` are known without it, all others are refused. */
static const struct token *read_import(struct lark *l, const struct token *t)
{
    static const char library[] = "common";
    bool fine = t->kind == NAME && t->len == strlen(library) && memcmp(t->text, library, t->len) == 0;
    for (const struct token *p = t; fine && p->kind != LINE && p->kind != END; p++) {
        fine = p->kind == NAME || is_mark(p, '.') || is_mark(p, '(') || is_mark(p, ')') || is_mark(p, ',');
    }
    if (!fine) {
        fail(l, "an import is not supported, but for names of common as they are: %.40s", t->text);
    }
    while (t->kind != LINE && t->kind != END) {
        t++;
    }
    return t;
}

static void read_rules(struct lark *l)
{
    for (const struct token *t = l->tokens; t->kind != END && !l->failed;) {
        if (t->kind == LINE) {
            t++;
            continue;
        }
        if (t->kind == DIRECTIVE) {
            if (t->len != 7 || memcmp(t->text, "%import", 7) != 0) {
                fail(l, "'%.*s' is not supported", (int)t->len, t->text);
            }
            t = read_import(l, t + 1);
            continue;
        }
        while (is_mark(t, '?') || is_mark(t, '!')) { /* marks of its trees */
            t++;
        }
        const struct token *name = t;
        if (t->kind == NAME) {
            t++;
        }
        if (is_mark(t, '.') && t[1].kind == NUMBER) {
            t += 2;
        }
        if (name->kind != NAME || !is_mark(t, ':')) {
            fail(l, "a rule is `name: ...`, not '%.40s'", name->text);
        } else if (find(l, name)) {
            fail(l, "there are two rules '%.*s'", (int)name->len, name->text);
        } else if (l->n_rules == LARK_RULES_MAX) {
            fail(l, "there are more than %d rules", LARK_RULES_MAX);
        } else {
            struct rule *r = &l->rules[l->n_rules++];
            *r = (struct rule){.name = name, .body = ++t};
            while (t->kind != LINE && t->kind != END) {
                t++;
            }
            r->end = t;
        }
    }
}

/* What Lark's regular expressions, which are Python's, say otherwise than ours; NULL: nothing that is known. */
static const char *pythons_own(const char *pattern, size_t len)
{
    bool class = false;
    for (size_t i = 0; i < len; i++) {
        const char *p = pattern + i;
        size_t left = len - i;
        if (*p == '\\') {
            i++;
        } else if (class) {
            class = *p != ']';
        } else if (left > 1 && memcmp(p, "{,", 2) == 0) {
            return "{,n}";
        } else if (*p == '[') {
            class = true;
            if (left > 1 && p[1] == ']') {
                return "[]";
            }
            if (left > 2 && memcmp(p, "[^]", 3) == 0) {
                return "[^]";
            }
        }
    }
    return NULL;
}

bool pattern_is_whole(const char *pattern, size_t len)
{
    int depth = 0;
    bool class = false;
    for (size_t i = 0; i < len && depth >= 0; i++) {
        char c = pattern[i];
        if (c == '\\' && i + 1 < len) {
            i++;
        } else if (class) {
            class = c != ']';
        } else if (c == '[') {
            class = true;
        } else if (c == '(' || c == ')') {
            depth += c == '(' ? 1 : -1;
        }
    }
    return depth == 0 && !class;
}

/* ---- writing ------------------------------------------------------------------------------------------------------
 */

static void put(struct lark *l, const char *text, size_t len)
{
    if (len > LARK_PATTERN_MAX - l->len) {
        fail(l, "as a regular expression it is longer than %d bytes", LARK_PATTERN_MAX);
        return;
    }
    memcpy(l->out + l->len, text, len);
    l->len += len;
}

static void put_text(struct lark *l, const char *text)
{
    put(l, text, strlen(text));
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* Behind an escape of a string, which is one of a regular expression, too; NULL: it is none that is known. */
static const char *escape_end(const char *p)
{
    static const char hex[] = "0123456789abcdefABCDEF";
    size_t digits = p[1] == 'x' ? 2 : p[1] == 'u' ? 4 : 0;
    return !strchr("ntrf\\xu", p[1]) || strspn(p + 2, hex) < digits ? NULL : p + 2 + digits;
}

/* A string's characters as themselves. */
static void put_string(struct lark *l, const struct token *t)
{
    put_text(l, "(?:");
    for (const char *p = t->text, *end = t->text + t->len; p < end && !l->failed;) {
        const char *next = p + 1;
        if (*p == '\\' && p[1] == '"') {
            put(l, "\"", 1);
            next = p + 2;
        } else if (*p == '\\') {
            next = t->folds && (p[1] == 'x' || p[1] == 'u') ? NULL : escape_end(p);
            if (next) {
                put(l, p, (size_t)(next - p));
            } else {
                fail(l, "the escape '%.2s' in a string%s is not supported", p, t->folds ? " with the flag 'i'" : "");
            }
        } else if (t->folds && (*p & 0x80)) {
            fail(l, "a string with the flag 'i' is of ASCII characters: \"%.*s\"", (int)t->len, t->text);
        } else if (strchr("^$.*+?()[]{}|/", *p)) {
            put(l, (const char[]){'\\', *p}, 2);
        } else if (t->folds && is_letter(*p)) {
            put(l, (const char[]){'[', (char)(*p | 0x20), (char)(*p & ~0x20), ']'}, 4);
        } else {
            put(l, p, 1);
        }
        p = next;
    }
    put_text(l, ")");
}

static const struct token *put_choices(struct lark *l, const struct token *t, const struct token *stop, char end);

/* "a".."z" */
static const struct token *put_range(struct lark *l, const struct token *t)
{
    const struct token *last = t + 2;
    bool fine = last->kind == STRING && t->len == 1 && last->len == 1 && strchr("\\]^-", *t->text) == NULL &&
                strchr("\\]^-", *last->text) == NULL;
    if (!fine) {
        fail(l, "a range is of two plain characters");
        return t + 2;
    }
    put(l, (const char[]){'[', *t->text, '-', *last->text, ']'}, 5);
    return last + 1;
}

static void put_name(struct lark *l, const struct token *t)
{
    struct rule *rule = find(l, t);
    for (size_t i = 0; !rule && i < sizeof(common) / sizeof(*common); i++) {
        if (strlen(common[i].name) == t->len && memcmp(common[i].name, t->text, t->len) == 0) {
            put_text(l, "(?:");
            put_text(l, common[i].pattern);
            put_text(l, ")");
            return;
        }
    }
    if (!rule) {
        fail(l, "there is no rule '%.*s'", (int)t->len, t->text);
    } else if (rule->open) {
        fail(l, "the rule '%.*s' names itself, which no regular expression can", (int)t->len, t->text);
    } else {
        rule->open = true;
        put_text(l, "(?:");
        (void)put_choices(l, rule->body, rule->end, '\0');
        put_text(l, ")");
        rule->open = false;
    }
}

static const struct token *put_atom(struct lark *l, const struct token *t)
{
    bool optional = is_mark(t, '[');
    if (optional || is_mark(t, '(')) {
        put_text(l, optional ? "(?:(?:" : "(?:"); /* what is repeated is the whole of it */
        t = put_choices(l, t + 1, NULL, optional ? ']' : ')');
        put_text(l, optional ? ")?)" : ")");
        return t;
    }
    switch (t->kind) {
    case STRING:
        if (t[1].kind == RANGE) {
            return put_range(l, t);
        }
        put_string(l, t);
        return t + 1;
    case REGEXP:
        if (!pattern_is_whole(t->text, t->len)) {
            fail(l, "a group or class of /%.*s/ does not close, or was not begun", (int)t->len, t->text);
        }
        if (pythons_own(t->text, t->len)) {
            fail(l, "%s in /%.*s/ is not supported", pythons_own(t->text, t->len), (int)t->len, t->text);
        }
        put_text(l, "(?:");
        put(l, t->text, t->len);
        put_text(l, ")");
        return t + 1;
    case NAME:
        put_name(l, t);
        return t + 1;
    default:
        fail(l, "'%.20s' is not understood here", t->text);
        return t;
    }
}

/* ~n or ~n..m */
static const struct token *put_count(struct lark *l, const struct token *t)
{
    bool range = t->kind == NUMBER && t[1].kind == RANGE;
    if (t->kind != NUMBER || (range && t[2].kind != NUMBER)) {
        fail(l, "'~' is followed by a number, or by two with '..' between them");
        return t;
    }
    put_text(l, "{");
    put(l, t->text, t->len);
    if (range) {
        put_text(l, ",");
        put(l, t[2].text, t[2].len);
    }
    put_text(l, "}");
    return t + (range ? 3 : 1);
}

/* Alternatives up to a rule's end, `stop`, or up to the mark `end`. Returns what is behind it. */
static const struct token *put_choices(struct lark *l, const struct token *t, const struct token *stop, char end)
{
    if (++l->depth > LARK_DEPTH_MAX) {
        fail(l, "it is nested deeper than %d levels", LARK_DEPTH_MAX);
    }
    while (!l->failed && t != stop && !(end && is_mark(t, end))) {
        if (++l->steps > LARK_STEPS_MAX) {
            fail(l, "it is more than %d steps of work", LARK_STEPS_MAX);
        } else if (is_mark(t, '|')) {
            put_text(l, "|");
            t++;
        } else if (t->kind == ARROW && t[1].kind == NAME) {
            t += 2;
        } else {
            t = put_atom(l, t);
            if (is_mark(t, '?') || is_mark(t, '*') || is_mark(t, '+')) {
                put(l, t++->text, 1);
            } else if (t->kind == TILDE) {
                t = put_count(l, t + 1);
            }
        }
    }
    l->depth--;
    return l->failed ? t : end ? t + 1 : t;
}

int lark_pattern(const char *text, char **out, char *err, size_t err_size)
{
    *out = NULL;
    if (strlen(text) > LARK_BYTES_MAX) {
        snprintf(err, err_size, "it is longer than %d bytes", LARK_BYTES_MAX);
        return -1;
    }
    struct lark *l = calloc(1, sizeof(*l));
    if (!l) {
        snprintf(err, err_size, "out of memory");
        return -1;
    }
    l->err = err;
    l->err_size = err_size;
    read_tokens(l, text);
    if (!l->failed) {
        read_rules(l);
    }
    if (!l->failed) {
        put_name(l, &(const struct token){.kind = NAME, .text = "start", .len = 5});
    }
    if (!l->failed && !(*out = strndup(l->out, l->len))) {
        fail(l, "out of memory");
    }
    int rc = l->failed ? -1 : 0;
    free(l->tokens);
    free(l);
    return rc;
}
