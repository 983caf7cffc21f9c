/* unsupported.c - what changes an answer and cannot be done here is refused, never ignored: one table for each
 * interface, of fields and of the values that ask for nothing special.
 */
#include <stdio.h>
#include <string.h>

#include "daemon/api/api.h"

/* A field may be missing, null, false, 0, empty, or one of these words. */
struct row {
    const char *key;
    const char *words[3];
};

static const struct row responses[] = {
    {"prompt", {0}},
    {"context_management", {0}},
    {"moderation", {0}},
};

static const struct row completions[] = {
    {"functions", {0}},
    {"function_call", {"auto", "none"}},
    {"audio", {0}},
    {"moderation", {0}},
    {"web_search_options", {0}},
    {"grammar", {0}},
    {"json_schema", {0}},
    {"guided_json", {0}},
    {"guided_regex", {0}},
    {"guided_choice", {0}},
    {"guided_grammar", {0}},
    {"structured_outputs", {0}},
    {"use_beam_search", {0}},
    {"ignore_eos", {0}},
    {"min_tokens", {0}},
    {"bad_words", {0}},
    {"stop_token_ids", {0}},
};

static const struct row text[] = {
    {"suffix", {0}},     {"echo", {0}},       {"structured_outputs", {0}}, {"use_beam_search", {0}},
    {"ignore_eos", {0}}, {"min_tokens", {0}}, {"bad_words", {0}},          {"stop_token_ids", {0}},
};

static const struct row anthropic[] = {{"container", {0}}, {"mcp_servers", {0}}};

static bool asks_for_nothing(const cJSON *v, const struct row *row)
{
    if (cJSON_IsFalse(v) || (cJSON_IsNumber(v) && v->valuedouble == 0) ||
        ((cJSON_IsArray(v) || cJSON_IsObject(v)) && !v->child) || (cJSON_IsString(v) && !v->valuestring[0])) {
        return true;
    }
    for (size_t i = 0; i < sizeof(row->words) / sizeof(*row->words) && row->words[i]; i++) {
        if (cJSON_IsString(v) && strcmp(v->valuestring, row->words[i]) == 0) {
            return true;
        }
    }
    return false;
}

int unsupported_check(const cJSON *body, enum unsupported_api api, struct api_error *e)
{
#define TABLE(rows)                                                                                                    \
    {                                                                                                                  \
        rows, sizeof(rows) / sizeof(*(rows))                                                                           \
    }
    static const struct {
        const struct row *rows;
        size_t n;
    } tables[] = {[UNSUPPORTED_RESPONSES] = TABLE(responses),
                  [UNSUPPORTED_COMPLETIONS] = TABLE(completions),
                  [UNSUPPORTED_TEXT] = TABLE(text),
                  [UNSUPPORTED_ANTHROPIC] = TABLE(anthropic)};
#undef TABLE
    const struct row *rows = tables[api].rows;
    const size_t n = tables[api].n;
    /* One pass over the body, which may have very many fields. */
    const cJSON *v;
    cJSON_ArrayForEach(v, body)
    {
        for (size_t i = 0; i < n && !cJSON_IsNull(v); i++) {
            if (strcmp(v->string, rows[i].key) == 0 && !asks_for_nothing(v, &rows[i])) {
                api_error_set(e, 400, "unsupported_parameter", rows[i].key, "'%s' is not supported with this value.",
                              rows[i].key);
                return -1;
            }
        }
    }
    return 0;
}
