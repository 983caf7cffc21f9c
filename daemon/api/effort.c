/* effort.c - how much is to be thought, as the interfaces name it: in Responses under `reasoning`, in Chat Completions
 * as `reasoning_effort` or as an argument of the template, in Messages as `effort` and `thinking`.
 *
 * Templates know less than that: Qwen 3's whether there is thinking, gpt-oss's three words. Each word stands for the
 * nearest one that the model's template has, and for nothing where it has none. That none is wanted is kept to by every
 * model: what it begins to think is ended.
 */
#include <stdio.h>
#include <string.h>

#include "daemon/api/api.h"

void effort_none(struct turn_request *q)
{
    q->effort = ENGINE_CHAT_NO_THINKING;
    q->thinking_tokens = -1;
}

int effort_parse(const char *word, const char *param, struct turn_request *q, struct api_error *e)
{
    static const struct {
        const char *word;
        unsigned effort;
    } words[] = {{"minimal", ENGINE_CHAT_NO_THINKING | ENGINE_CHAT_LOW},
                 {"low", ENGINE_CHAT_LOW},
                 {"medium", ENGINE_CHAT_MEDIUM},
                 {"high", ENGINE_CHAT_HIGH},
                 {"xhigh", ENGINE_CHAT_HIGH},
                 {"max", ENGINE_CHAT_HIGH}};
    if (!word) {
        return 0;
    }
    if (strcmp(word, "none") == 0) {
        effort_none(q);
        return 0;
    }
    for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++) {
        if (strcmp(word, words[i].word) == 0) {
            q->effort = words[i].effort;
            return 0;
        }
    }
    api_error_set(e, 400, "invalid_value", param, "'%s' is none, minimal, low, medium, high, xhigh or max.", param);
    return -1;
}

/* Arguments of the template, which is not run: those that are known. */
static int parse_template(const cJSON *kwargs, struct turn_request *q, struct api_error *e)
{
    static const char prefix[] = "chat_template_kwargs.";
    const char *effort = NULL;
    bool thinks = true;
    const cJSON *v;
    cJSON_ArrayForEach(v, kwargs)
    {
        if (!cJSON_IsNull(v) && strcmp(v->string, "enable_thinking") != 0 &&
            strcmp(v->string, "reasoning_effort") != 0) {
            char param[96];
            snprintf(param, sizeof(param), "%s%.64s", prefix, v->string);
            api_error_set(e, 400, "unsupported_parameter", param, "'%s' is not supported.", param);
            return -1;
        }
    }
    if (json_string(kwargs, prefix, "reasoning_effort", 16, &effort, e) ||
        effort_parse(effort, "chat_template_kwargs.reasoning_effort", q, e) ||
        json_bool(kwargs, prefix, "enable_thinking", &thinks, e)) {
        return -1;
    }
    if (!thinks) {
        effort_none(q);
    }
    return 0;
}

int effort_parse_budget(const cJSON *o, const char *prefix, struct turn_request *q, struct api_error *e)
{
    int64_t tokens = -1;
    if (json_int(o, prefix, "thinking_tokens", 0, 1 << 30, &tokens, e)) {
        return -1;
    }
    if (tokens >= 0 && q->thinking_tokens >= 0) { /* none stays none */
        q->thinking_tokens = tokens > 0 ? (int)tokens : -1;
    }
    return 0;
}

int effort_parse_chat(const cJSON *body, struct turn_request *q, struct api_error *e)
{
    const cJSON *kwargs = NULL;
    const char *effort = NULL;
    if (json_object(body, "", "chat_template_kwargs", &kwargs, e) || (kwargs && parse_template(kwargs, q, e)) ||
        json_string(body, "", "reasoning_effort", 16, &effort, e)) {
        return -1;
    }
    if (effort) {
        q->thinking_tokens = 0; /* the last one counts, all of it */
    }
    return effort_parse(effort, "reasoning_effort", q, e) || effort_parse_budget(body, "", q, e) ? -1 : 0;
}
