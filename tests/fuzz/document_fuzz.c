/* document_fuzz.c - any bytes as an answer, under forms whose documents can be judged otherwise.
 *
 * The first byte chooses the form. What is accepted as whole is parsed and judged by a function of its own, and a
 * document that this takes, written as it is printed, must be accepted. Pushed byte by byte, in pieces, and after other
 * matches, the outcome is the same, and where the text has come to the mask allows the tokens that can be pushed.
 */
#include "engine/grammar/grammar.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_MAX 256 /* longer ones are cut */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

/* ---- a vocabulary: an end, every byte, pieces that cross from one value into the next -----------------------------
 */

static const char *const PIECES[] = {"{\"",   "\":",   "\": \"",   "\",",   "\"}",   "}]",       "}]}",
                                     "[[",    ", ",    "],",       "true",  "null",  "tru",      "\\u",
                                     "\\u00", "\\\"",  "\xc3\xa9", "\xc3",  "name",  "a",        "ab",
                                     "12",    "0.5",   "-1",       "e1",    "  ",    "\n",       "{\"a\"",
                                     "3]",    "\"b\"", "cat",      "dog\"", "\"cat", "\xf0\x9f", "{\"name\": \"add"};
#define TOKENS (257 + (int)(sizeof PIECES / sizeof *PIECES))

static const char *bytes_of(const void *arg, int id, size_t *len)
{
    static char bytes[257];
    (void)arg;
    if (id >= 257) {
        *len = strlen(PIECES[id - 257]);
        return PIECES[id - 257];
    }
    bytes[id] = (char)(id - 1);
    *len = id > 0;
    return bytes + id;
}

static bool ends(const void *arg, int id)
{
    (void)arg;
    return id == 0;
}

/* ---- forms, and what judges their documents -----------------------------------------------------------------------
 */

/* 0 has no sign where there are bounds. */
static bool is_integer(const cJSON *v, double min, double max)
{
    return cJSON_IsNumber(v) && v->valuedouble == floor(v->valuedouble) && v->valuedouble >= min &&
           v->valuedouble <= max && !(v->valuedouble == 0 && signbit(v->valuedouble));
}

static bool integers(const cJSON *v)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, v) if (!is_integer(item, -5, 40)) return false;
    return cJSON_IsArray(v) && cJSON_GetArraySize(v) <= 4;
}

static bool pet(const cJSON *v)
{
    const cJSON *kind = cJSON_GetObjectItemCaseSensitive(v, "kind"), *age = cJSON_GetObjectItemCaseSensitive(v, "age");
    return cJSON_IsObject(v) && v->child == kind && cJSON_IsString(kind) &&
           (!strcmp(kind->valuestring, "cat") || !strcmp(kind->valuestring, "dog")) && kind->next == age &&
           (!age || (is_integer(age, 0, 30) && !age->next));
}

static bool tree(const cJSON *v)
{
    const cJSON *item;
    if (cJSON_IsNull(v))
        return true;
    cJSON_ArrayForEach(item, v) if (!tree(item)) return false;
    return cJSON_IsArray(v) && cJSON_GetArraySize(v) == 2;
}

static bool word(const cJSON *v)
{
    size_t n = cJSON_IsString(v) ? strlen(v->valuestring) : 0;
    if (n < 2 || n > 6 || v->valuestring[n - 1] != 'z')
        return false;
    for (size_t i = 0; i + 1 < n; i++)
        if (v->valuestring[i] != 'a' && v->valuestring[i] != 'b')
            return false;
    return true;
}

static bool number(const cJSON *v)
{
    return cJSON_IsNumber(v) && v->valuedouble >= -1.5 && v->valuedouble <= 1000;
}

static bool object(const cJSON *v)
{
    return cJSON_IsObject(v);
}

static bool call(const cJSON *v)
{
    const cJSON *name = v ? v->child : NULL, *arguments = name ? name->next : NULL;
    if (!cJSON_IsObject(v) || !cJSON_IsString(name) || !cJSON_IsObject(arguments) || arguments->next ||
        strcmp(name->string, "name") != 0 || strcmp(arguments->string, "arguments") != 0)
        return false;
    return !strcmp(name->valuestring, "now") || (!strcmp(name->valuestring, "add") && integers(arguments->child) &&
                                                 !arguments->child->next && !strcmp(arguments->child->string, "of"));
}

#define INTEGERS "{\"type\":\"array\",\"maxItems\":4,\"items\":{\"type\":\"integer\",\"minimum\":-5,\"maximum\":40}}"

static const struct {
    const char *text;
    bool (*takes)(const cJSON *v);
    bool calls; /* of tools: white space around it is allowed */
    bool both;  /* what it takes is accepted as it is printed */
} FORMS[] = {
    {INTEGERS, integers, false, true},
    {"{\"properties\":{\"kind\":{\"enum\":[\"cat\",\"dog\"]},\"age\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":"
     "30}},"
     "\"type\":\"object\",\"required\":[\"kind\"],\"additionalProperties\":false}",
     pet, false, true},
    {"{\"type\":[\"array\",\"null\"],\"items\":{\"$ref\":\"#\"},\"minItems\":2,\"maxItems\":2}", tree, false, true},
    {"{\"type\":\"string\",\"pattern\":\"^[ab]+z$\",\"maxLength\":6}", word, false, true},
    {"{\"type\":\"number\",\"minimum\":-1.5,\"maximum\":1000}", number, false, false}, /* exponents have one way */
    {"{\"type\":\"object\"}", object, false, false},                                   /* a name twice */
    {"[{\"name\":\"now\"},{\"name\":\"add\",\"parameters\":{\"properties\":{\"of\":" INTEGERS
     "},\"required\":[\"of\"],\"additionalProperties\":false}}]",
     call, true, false},
};
#define N_FORMS (sizeof FORMS / sizeof *FORMS)

static struct grammar *form(size_t i)
{
    static const struct grammar_call_form HERMES = {GRAMMAR_CALL_OBJECT, "arguments", NULL, false};
    static struct grammar_vocab *vocab;
    static struct grammar *forms[N_FORMS];
    char err[256] = "";
    struct grammar_vocab_opts opts = {TOKENS, bytes_of, ends, NULL};
    size_t at;
    if (!vocab)
        require(grammar_vocab_new(&opts, &vocab, err, sizeof err) == 0);
    if (!forms[i])
        require((FORMS[i].calls ? grammar_from_calls(&HERMES, FORMS[i].text, strlen(FORMS[i].text), vocab, &forms[i],
                                                     &at, err, sizeof err)
                                : grammar_from_schema(FORMS[i].text, strlen(FORMS[i].text), vocab, 0, &forms[i], err,
                                                      sizeof err)) == 0);
    return forms[i];
}

/* ---- what must hold ------------------------------------------------------------------------------------------------
 */

/* A match behind text[0..len), which is allowed. */
static struct grammar_match *match_at(struct grammar *g, const char *text, size_t len)
{
    struct grammar_match *m = grammar_match_new(g);
    require(m && grammar_match_push(m, text, len) == 0);
    return m;
}

static void check_mask(struct grammar *g, const char *text, size_t len)
{
    uint32_t mask[(TOKENS + 31) / 32];
    struct grammar_match *m = match_at(g, text, len);
    require(grammar_match_mask(m, mask) == 0);
    require((mask[0] & 1) == grammar_match_complete(m));
    grammar_match_free(m);
    for (int id = 1; id < TOKENS; id++) {
        size_t n;
        const char *bytes = bytes_of(NULL, id, &n);
        m = match_at(g, text, len);
        int rc = grammar_match_push(m, bytes, n);
        require(rc == 0 || rc == -EILSEQ);
        require((mask[id / 32] >> id % 32 & 1) == (rc == 0));
        grammar_match_free(m);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    size_t which = data[0] % N_FORMS, len = size - 1 < TEXT_MAX ? size - 1 : TEXT_MAX, at = 0;
    const char *text = (const char *)data + 1;
    struct grammar *g = form(which);
    struct grammar_match *m = grammar_match_new(g), *whole = grammar_match_new(g);
    require(m && whole);
    while (at < len && grammar_match_push(m, text + at, 1) == 0)
        at++;
    require((grammar_match_push(whole, text, len) == 0) == (at == len));
    bool accepted = at == len && grammar_match_complete(m);
    require(!grammar_match_ended(m) || grammar_match_complete(m));
    grammar_match_free(whole);
    grammar_match_free(m);
    check_mask(g, text, at);

    const char *end = NULL;
    cJSON *v = memchr(text, 0, len) ? NULL : cJSON_ParseWithLengthOpts(text, len, &end, false);
    if (accepted)
        require(v && FORMS[which].takes(v));
    if (v && FORMS[which].both && FORMS[which].takes(v)) {
        char *printed = cJSON_PrintUnformatted(v);
        require(printed != NULL);
        m = match_at(g, printed, strlen(printed));
        require(grammar_match_complete(m));
        grammar_match_free(m);
        cJSON_free(printed);
    }
    cJSON_Delete(v);
    return 0;
}
