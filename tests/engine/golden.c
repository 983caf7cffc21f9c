/* golden.c - see golden.h. cJSON would end a string at a zero byte, which some of the texts hold. */
#include "tests/engine/golden.h"

#include "tests/engine/models.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

FILE *golden_open(const char *name)
{
    char *path = models_data(name);
    FILE *f = fopen(path, "re");
    if (f == NULL)
        fail_msg("cannot open %s", path);
    free(path);
    return f;
}

static unsigned hex4(const char *p)
{
    char digits[5] = {p[0], p[1], p[2], p[3], '\0'};
    return (unsigned)strtoul(digits, NULL, 16);
}

static size_t put_utf8(char *out, unsigned c)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 63));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xe0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 63));
        out[2] = (char)(0x80 | (c & 63));
        return 3;
    }
    out[0] = (char)(0xf0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 63));
    out[2] = (char)(0x80 | (c >> 6 & 63));
    out[3] = (char)(0x80 | (c & 63));
    return 4;
}

char *golden_string(char *json, size_t *len)
{
    static const char ESCAPES[] = "n\nt\tr\rb\bf\f";
    char *out = json, *in = json;
    while (*in != '"') {
        if (*in != '\\') {
            *out++ = *in++;
            continue;
        }
        in++;
        if (*in == 'u') {
            unsigned c = hex4(in + 1);
            in += 5;
            if (c >= 0xd800 && c < 0xdc00) {
                c = 0x10000 + ((c - 0xd800) << 10) + (hex4(in + 2) - 0xdc00);
                in += 6;
            }
            out += put_utf8(out, c);
            continue;
        }
        const char *known = NULL;
        for (const char *e = ESCAPES; *e != '\0' && known == NULL; e += 2)
            if (*e == *in)
                known = e;
        *out++ = known != NULL ? known[1] : *in;
        in++;
    }
    *len = (size_t)(out - json);
    return in + 1;
}

bool golden_next(FILE *f, struct golden *out)
{
    static const char START[] = "{\"text\": \"", IDS[] = ", \"ids\": [";
    char *line = NULL;
    size_t capacity = 0;
    if (getline(&line, &capacity, f) < 0) {
        free(line);
        return false;
    }
    assert_memory_equal(line, START, strlen(START));
    size_t len;
    char *rest = golden_string(line + strlen(START), &len);
    assert_memory_equal(rest, IDS, strlen(IDS));
    rest += strlen(IDS);
    engine_token *ids = calloc(strlen(rest), sizeof *ids);
    size_t n = 0;
    assert_non_null(ids);
    while (*rest != ']') {
        ids[n++] = (engine_token)strtol(rest, &rest, 10);
        rest += strspn(rest, ", ");
    }
    memmove(line, line + strlen(START), len);
    *out = (struct golden){line, len, ids, n};
    return true;
}

void golden_free(struct golden *g)
{
    free(g->text);
    free(g->ids);
}

static void print_tokens(const char *what, const struct vocab *v, const engine_token *ids, size_t n)
{
    print_error("%s:", what);
    for (size_t i = 0; i < n && i < 60; i++) {
        struct gguf_string s = vocab_token_text(v, ids[i]);
        print_error(" %d'%.*s'", ids[i], (int)s.len, s.text);
    }
    print_error("\n");
}

void golden_compare(const struct vocab *v, const char *text, size_t len, const engine_token *got, size_t n_got,
                    const engine_token *wanted, size_t n_wanted)
{
    if (n_got == n_wanted && (n_got == 0 || memcmp(got, wanted, n_got * sizeof *got) == 0))
        return;
    size_t same = 0;
    while (same < n_got && same < n_wanted && got[same] == wanted[same])
        same++;
    size_t from = same > 12 ? same - 12 : 0; /* what is before the first difference */
    print_error("text: %.*s\ntoken %zu differs\n", (int)len, text, same);
    print_tokens("got   ", v, got + from, n_got - from);
    print_tokens("wanted", v, wanted + from, n_wanted - from);
    fail_msg("tokens differ");
}

int golden_check_file(const struct vocab *v, const char *name)
{
    FILE *f = golden_open(name);
    struct golden g;
    int lines = 0;
    for (; golden_next(f, &g); lines++) {
        struct engine_tokens out = {0};
        assert_int_equal(vocab_tokenize(v, g.text, g.len, 0, &out), 0);
        golden_compare(v, g.text, g.len, out.ids, out.n, g.ids, g.n);
        engine_tokens_free(&out);
        golden_free(&g);
    }
    fclose(f);
    return lines;
}
