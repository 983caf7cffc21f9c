/* check.c - a grammar and texts from standard input, for the tests that are written in Python.
 *
 * A line is a JSON object: {"schema": TEXT, "lenient": true} or {"pattern": TEXT}, and {"texts": [TEXT, ...]}. The
 * answer is a line, too: {"rc": 0, "us": MICROSECONDS, "ok": [true, ...]}, or {"rc": -22, "error": TEXT}. A text is ok
 * when it is pushed byte by byte and may end.
 */
#include "engine/grammar/grammar.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

static bool accepts(struct grammar *g, const char *text)
{
    struct grammar_match *m = grammar_match_new(g);
    bool ok = m != NULL;
    for (const char *c = text; ok && *c; c++)
        ok = grammar_match_push(m, c, 1) == 0;
    ok = ok && grammar_match_complete(m);
    grammar_match_free(m);
    return ok;
}

static cJSON *answer(const cJSON *request)
{
    char err[512] = "";
    struct grammar *g = NULL;
    const char *schema = cJSON_GetStringValue(cJSON_GetObjectItem(request, "schema"));
    const char *pattern = cJSON_GetStringValue(cJSON_GetObjectItem(request, "pattern"));
    unsigned flags = cJSON_IsTrue(cJSON_GetObjectItem(request, "lenient")) ? GRAMMAR_LENIENT : 0;
    double start = now_us();
    int rc = schema ? grammar_from_schema(schema, strlen(schema), NULL, flags, &g, err, sizeof err)
                    : grammar_from_pattern(pattern, strlen(pattern), NULL, &g, err, sizeof err);
    cJSON *out = cJSON_CreateObject(), *ok = cJSON_AddArrayToObject(out, "ok");
    cJSON_AddNumberToObject(out, "rc", rc);
    cJSON_AddNumberToObject(out, "us", now_us() - start);
    cJSON_AddStringToObject(out, "error", err);
    const cJSON *text;
    cJSON_ArrayForEach(text, cJSON_GetObjectItem(request, "texts")) if (g)
        cJSON_AddItemToArray(ok, cJSON_CreateBool(accepts(g, text->valuestring)));
    grammar_free(g);
    return out;
}

int main(void)
{
    char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, stdin) > 0) {
        cJSON *request = cJSON_Parse(line), *out = answer(request);
        char *text = cJSON_PrintUnformatted(out);
        puts(text);
        fflush(stdout);
        cJSON_free(text);
        cJSON_Delete(out);
        cJSON_Delete(request);
    }
    free(line);
    return 0;
}
