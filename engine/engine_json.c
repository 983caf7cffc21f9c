/* engine_json.c - trees of cJSON whose numbers are what was written.
 *
 * cJSON reads every number as a double and prints 15 digits of it. Here a whole number of more digits keeps its text,
 * in its valuestring, and other numbers are printed with the digits that read back as they were.
 */
#include "engine/engine.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIGITS_KEPT 15 /* a whole number of so many is a double, and is printed as it was */

/* Whether cJSON prints it as it was. */
static bool is_exact(const cJSON *o)
{
    char digits[32];
    if (cJSON_IsNumber(o) && o->valuestring)
        return false;
    if (!cJSON_IsNumber(o) || o->valuedouble == (double)o->valueint)
        return true;
    (void)snprintf(digits, sizeof digits, "%1.15g", o->valuedouble);
    return strtod(digits, NULL) == o->valuedouble;
}

static bool all_exact(const cJSON *o)
{
    bool exact = is_exact(o);
    for (const cJSON *child = o->child; child && exact; child = child->next)
        exact = all_exact(child);
    return exact;
}

/* False: out of memory. */
static bool make_exact(cJSON *o)
{
    char digits[32];
    if (!is_exact(o)) {
        o->type = cJSON_Raw;
        (void)snprintf(digits, sizeof digits, "%.17g", o->valuedouble);
        if (!o->valuestring && (o->valuestring = cJSON_malloc(strlen(digits) + 1)))
            memcpy(o->valuestring, digits, strlen(digits) + 1);
        if (!o->valuestring)
            return false;
    }
    bool fine = true;
    for (cJSON *child = o->child; child && fine; child = child->next)
        fine = make_exact(child);
    return fine;
}

char *engine_json_print(const cJSON *o)
{
    if (!o || all_exact(o))
        return o ? cJSON_PrintUnformatted(o) : NULL;
    cJSON *exact = cJSON_Duplicate(o, true);
    char *text = exact && make_exact(exact) ? cJSON_PrintUnformatted(exact) : NULL;
    cJSON_Delete(exact);
    return text;
}

/* The next number of a text that was parsed; NULL: there is none. */
static const char *next_number(const char *text, const char *end)
{
    for (; text < end; text++) {
        if (*text == '-' || (*text >= '0' && *text <= '9'))
            return text;
        if (*text == '"')
            for (text++; *text != '"'; text++)
                text += *text == '\\';
    }
    return NULL;
}

static bool is_digit(const char *at, const char *end)
{
    return at < end && *at >= '0' && *at <= '9';
}

/* Gives a number the text that it had, text[0..n), where that is a whole number of more digits than a double has.
 * False: out of memory. */
static bool keep_text(cJSON *v, const char *text, size_t n)
{
    size_t sign = *text == '-', digits = sign;
    while (is_digit(text + digits, text + n))
        digits++;
    if (digits < n || n - sign <= DIGITS_KEPT || text[sign] == '0') /* which JSON has not in front */
        return true;
    v->valuestring = cJSON_malloc(n + 1);
    if (!v->valuestring)
        return false;
    memcpy(v->valuestring, text, n);
    v->valuestring[n] = '\0';
    return true;
}

/* Numbers stand in the text in the order in which they stand in the tree. */
static bool keep_digits(cJSON *v, const char **at, const char *end)
{
    bool fine = true;
    for (; v && fine; v = v->next) {
        const char *number = cJSON_IsNumber(v) ? next_number(*at, end) : NULL;
        if (number) {
            const char *behind = number;
            while (is_digit(behind, end) || (behind < end && *behind && strchr("+-.eE", *behind)))
                behind++;
            fine = keep_text(v, number, (size_t)(behind - number));
            *at = behind;
        }
        fine = fine && keep_digits(v->child, at, end);
    }
    return fine;
}

/* Whether some number may have more digits than a double: there are so many in a row, be it in a text. */
static bool has_long(const char *text, size_t len)
{
    int digits = 0;
    for (size_t i = 0; i < len && digits <= DIGITS_KEPT; i++)
        digits = text[i] >= '0' && text[i] <= '9' ? digits + 1 : 0;
    return digits > DIGITS_KEPT;
}

cJSON *engine_json_parse(const char *text, size_t len, const char **end)
{
    const char *at = text, *behind = NULL;
    cJSON *o = cJSON_ParseWithLengthOpts(text, len, &behind, false);
    if (o && has_long(text, len) && !keep_digits(o, &at, behind)) {
        cJSON_Delete(o);
        o = NULL;
    }
    if (end)
        *end = behind;
    return o;
}
