/* sampling.c - how answers are drawn and thought about: what options and /set give, and what that may be. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clients/cli/cli_internal.h"

static bool parse_real(const char *text, double low, double high, double *out)
{
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    if (end == text || *end || errno || !isfinite(value) || value < low || value > high)
        return false;
    *out = value;
    return true;
}

static bool parse_whole(const char *text, int64_t low, int64_t high, int64_t *out)
{
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end || errno || value < low || value > high)
        return false;
    *out = value;
    return true;
}

/* One of the words, up to NULL. */
static bool parse_word(const char *text, const char *const *words, const char **out)
{
    while (*words && strcmp(text, *words) != 0)
        words++;
    *out = *words;
    return *words != NULL;
}

const char sampling_names[] =
    "temperature, top-p, max-tokens, seed, effort, thinking-tokens, thinking-context or truncation";

void sampling_init(struct sampling *s)
{
    *s = (struct sampling){.temperature = -1, .top_p = -1, .thinking_tokens = -1};
}

bool sampling_set(struct sampling *s, const char *name, const char *value, const char **allowed)
{
    static const char *const efforts[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max", NULL};
    static const char *const contexts[] = {"all_turns", "current_turn", NULL};
    static const char *const truncations[] = {"auto", "disabled", NULL};
    const char *word = NULL;
    bool own = strcmp(value, "-") == 0;
    int64_t whole = 0;
    if (strcmp(name, "temperature") == 0) {
        *allowed = "a number from 0 to 10";
        s->temperature = own ? -1 : s->temperature;
        return own || parse_real(value, 0, 10, &s->temperature);
    }
    if (strcmp(name, "top-p") == 0) {
        *allowed = "a number from 0 to 1";
        s->top_p = own ? -1 : s->top_p;
        return own || parse_real(value, 0, 1, &s->top_p);
    }
    if (strcmp(name, "max-tokens") == 0) {
        *allowed = "a whole number from 1 to 2147483647";
        if (!own && !parse_whole(value, 1, INT32_MAX, &whole))
            return false;
        s->max_tokens = (int)whole;
        return true;
    }
    if (strcmp(name, "seed") == 0) {
        *allowed = "a whole number from 0 to 9007199254740991"; /* as a JSON number it must be exact */
        if (!own && !parse_whole(value, 0, ((int64_t)1 << 53) - 1, &whole))
            return false;
        s->seed = whole;
        s->has_seed = !own;
        return true;
    }
    if (strcmp(name, "effort") == 0) {
        *allowed = "none, minimal, low, medium, high, xhigh or max";
        if (!own && !parse_word(value, efforts, &word))
            return false;
        s->effort = word;
        return true;
    }
    if (strcmp(name, "thinking-tokens") == 0) {
        *allowed = "a whole number from 0 to 2147483647";
        if (!own && !parse_whole(value, 0, INT32_MAX, &whole))
            return false;
        s->thinking_tokens = own ? -1 : (int)whole;
        return true;
    }
    if (strcmp(name, "thinking-context") == 0) {
        *allowed = "all_turns or current_turn";
        if (!own && !parse_word(value, contexts, &word))
            return false;
        s->context = word;
        return true;
    }
    if (strcmp(name, "truncation") == 0) {
        *allowed = "auto or disabled";
        if (!own && !parse_word(value, truncations, &word))
            return false;
        s->truncation = word;
        return true;
    }
    *allowed = NULL;
    return false;
}

static void add_real(struct buf *out, const char *name, double value)
{
    if (value >= 0)
        buf_printf(out, "%s %g, ", name, value);
    else
        buf_printf(out, "%s the daemon's own, ", name);
}

static void add_word(struct buf *out, const char *name, const char *value)
{
    buf_printf(out, ", %s %s", name, value ? value : "the daemon's own");
}

void sampling_text(const struct sampling *s, struct buf *out)
{
    add_real(out, "temperature", s->temperature);
    add_real(out, "top-p", s->top_p);
    if (s->max_tokens > 0)
        buf_printf(out, "max-tokens %d, ", s->max_tokens);
    else
        buf_str(out, "max-tokens the daemon's own, ");
    if (s->has_seed)
        buf_printf(out, "seed %lld", (long long)s->seed);
    else
        buf_str(out, "seed another each time");
    add_word(out, "effort", s->effort);
    char tokens[16];
    snprintf(tokens, sizeof(tokens), "%d", s->thinking_tokens);
    add_word(out, "thinking-tokens", s->thinking_tokens >= 0 ? tokens : NULL);
    add_word(out, "thinking-context", s->context);
    add_word(out, "truncation", s->truncation);
}
