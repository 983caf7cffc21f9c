/* unsupported.c - what changes an answer and cannot be done here is refused, never ignored: one table for each
 * interface, of fields and of the values that ask for nothing special.
 */
#include <stdio.h>
#include <string.h>

#include "daemon/api/api.h"

/* A field may be missing, null, false, 0, empty, this number, or one of these words, a list of them or an object of
 * such a type. */
struct row {
    const char *key;
    const char *words[3];
    double number;
};

/* How tokens are picked, what an answer must be and where it ends, as other servers know it. */
static const struct row generating[] = {
    {"use_beam_search", {0}, 0}, {"length_penalty", {0}, 1}, {"ignore_eos", {0}, 0},
    {"min_tokens", {0}, 0},      {"bad_words", {0}, 0},      {"stop_token_ids", {0}, 0},
    {"typical_p", {0}, 1},       {"tfs_z", {0}, 1},          {"top_a", {0}, 0},
    {"mirostat", {0}, 0},        {"mirostat_mode", {0}, 0},  {"dry_multiplier", {0}, 0},
    {"xtc_probability", {0}, 0}, {"dynatemp_range", {0}, 0}, {"grammar", {0}, 0},
    {"json_schema", {0}, 0},     {"guided_json", {0}, 0},    {"guided_regex", {0}, 0},
    {"guided_choice", {0}, 0},   {"guided_grammar", {0}, 0}, {"structured_outputs", {0}, 0},
};

/* What has another name, or stands under `convod`, is told too: OpenAI's own service refuses it. */
static const struct row responses[] = {
    {"prompt", {0}, 0},
    {"context_management", {0}, 0},
    {"moderation", {0}, 0},
    {"modalities", {"text"}, 0},
    {"audio", {0}, 0},
    {"response_format", {0}, 0},
    {"max_tokens", {0}, 0},
    {"max_completion_tokens", {0}, 0},
    {"n", {0}, 1},
    {"functions", {0}, 0},
    {"top_k", {0}, -1},
    {"min_p", {0}, 0},
    {"repetition_penalty", {0}, 1},
    {"presence_penalty", {0}, 0},
    {"frequency_penalty", {0}, 0},
};

static const struct row completions[] = {
    {"functions", {0}, 0},  {"function_call", {"auto", "none"}, 0}, {"audio", {0}, 0}, {"modalities", {"text"}, 0},
    {"moderation", {0}, 0}, {"web_search_options", {0}, 0},         {"echo", {0}, 0},  {"best_of", {0}, 1},
};

static const struct row text[] = {{"suffix", {0}, 0}, {"echo", {0}, 0}, {"response_format", {"text"}, 0}};

static const struct row anthropic[] = {{"container", {0}, 0}, {"mcp_servers", {0}, 0}, {"output_format", {0}, 0}};

static bool is_word(const cJSON *v, const struct row *row)
{
    for (size_t i = 0; i < sizeof(row->words) / sizeof(*row->words) && row->words[i]; i++) {
        if (cJSON_IsString(v) && strcmp(v->valuestring, row->words[i]) == 0) {
            return true;
        }
    }
    return false;
}

static bool asks_for_nothing(const cJSON *v, const struct row *row)
{
    if (cJSON_IsFalse(v) || (cJSON_IsNumber(v) && (v->valuedouble == 0 || v->valuedouble == row->number)) ||
        (cJSON_IsObject(v) && !v->child) || (cJSON_IsString(v) && !v->valuestring[0])) {
        return true;
    }
    v = cJSON_IsObject(v) ? json_get(v, "type") : v;
    const cJSON *word = cJSON_IsArray(v) ? v->child : NULL;
    while (word && is_word(word, row)) {
        word = word->next;
    }
    return cJSON_IsArray(v) ? !word : is_word(v, row);
}

static int check(const cJSON *v, const struct row *rows, size_t n, struct api_error *e)
{
    for (size_t i = 0; i < n && !cJSON_IsNull(v); i++) {
        if (strcmp(v->string, rows[i].key) == 0 && !asks_for_nothing(v, &rows[i])) {
            api_error_set(e, 400, "unsupported_parameter", rows[i].key, "'%s' is not supported with this value.",
                          rows[i].key);
            return -1;
        }
    }
    return 0;
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
    const size_t n = api == UNSUPPORTED_ANTHROPIC ? 0 : sizeof(generating) / sizeof(*generating);
    /* One pass over the body, which may have very many fields. */
    const cJSON *v;
    cJSON_ArrayForEach(v, body)
    {
        if (check(v, tables[api].rows, tables[api].n, e) || check(v, generating, n, e)) {
            return -1;
        }
    }
    return 0;
}
