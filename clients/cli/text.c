/* text.c - what only works on text and JSON: buffers, titles, receipts, and making a model's output harmless.
 *
 * Nothing here reads or writes anything. Text of a model or a daemon is not trusted: text_printable() is what stands
 * between it and the terminal.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

#include "clients/cli/cli_internal.h"

void out_of_memory(void)
{
    fputs("convo: out of memory\n", stderr);
    exit(CLI_FAILED);
}

void buf_add(struct buf *b, const char *data, size_t len)
{
    size_t needed;
    if (__builtin_add_overflow(b->len, len, &needed) || __builtin_add_overflow(needed, 1, &needed))
        out_of_memory();
    if (needed > b->cap) {
        size_t cap = b->cap ? b->cap : 64;
        while (cap < needed)
            if (__builtin_mul_overflow(cap, 2, &cap))
                out_of_memory();
        char *grown = realloc(b->data, cap);
        if (!grown)
            out_of_memory();
        b->data = grown;
        b->cap = cap;
    }
    if (len)
        memcpy(b->data + b->len, data, len);
    b->len += len;
    b->data[b->len] = '\0';
}

void buf_str(struct buf *b, const char *text)
{
    buf_add(b, text, strlen(text));
}

void buf_printf(struct buf *b, const char *format, ...)
{
    char *text = NULL;
    va_list args;
    va_start(args, format);
    int len = vasprintf(&text, format, args);
    va_end(args);
    if (len < 0)
        out_of_memory();
    buf_add(b, text, (size_t)len);
    free(text);
}

void buf_clear(struct buf *b)
{
    b->len = 0;
    if (b->data)
        b->data[0] = '\0';
}

void buf_free(struct buf *b)
{
    free(b->data);
    *b = (struct buf){0};
}

char *text_copy(const char *text)
{
    char *copy = strdup(text);
    if (!copy)
        out_of_memory();
    return copy;
}

char *text_json(cJSON *object)
{
    char *text = object ? cJSON_PrintUnformatted(object) : NULL;
    cJSON_Delete(object);
    if (!text)
        out_of_memory();
    return text;
}

/* Bytes of the UTF-8 character at p (of `left` bytes), and its code point; 0: not valid there. */
static size_t utf8_char(const unsigned char *p, size_t left, uint32_t *code)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (left == 0)
        return 0;
    size_t n = p[0] < 0x80 ? 1 : p[0] >= 0xf0 && p[0] < 0xf8 ? 4 : p[0] >= 0xe0 ? 3 : p[0] >= 0xc0 ? 2 : 0;
    if (n == 0 || n > left || p[0] >= 0xf8)
        return 0;
    uint32_t c = n == 1 ? p[0] : p[0] & (0xffu >> (n + 1));
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
        c = c << 6 | (p[i] & 0x3f);
    }
    if (c < least[n] || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff))
        return 0;
    *code = c;
    return n;
}

static bool steers_terminal(uint32_t c)
{
    if (c == '\n' || c == '\t')
        return false;
    /* C0, DEL and C1; marks that turn the direction of what follows would let an answer disguise itself. */
    return c < 0x20 || (c >= 0x7f && c < 0xa0) || (c >= 0x202a && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
}

/* escape: what would steer a terminal stands as JSON's escapes, instead of nowhere. */
static void add_printable(const char *text, size_t len, bool escape, struct buf *out)
{
    const unsigned char *p = (const unsigned char *)text;
    for (size_t n; len > 0; p += n, len -= n) {
        uint32_t c;
        n = utf8_char(p, len, &c);
        if (n == 0) {
            buf_str(out, "\xef\xbf\xbd");
            n = 1;
        } else if (!steers_terminal(c)) {
            buf_add(out, (const char *)p, n);
        } else if (escape) {
            buf_printf(out, "\\u%04x", c);
        }
    }
}

void text_printable(const char *text, size_t len, struct buf *out)
{
    add_printable(text, len, false, out);
}

void text_json_printable(const char *json, struct buf *out)
{
    add_printable(json, strlen(json), true, out);
}

size_t text_sound(const char *text, size_t len)
{
    size_t at = 0, n;
    for (uint32_t c; at < len && (n = utf8_char((const unsigned char *)text + at, len - at, &c)) > 0 && c != 0; at += n)
        ;
    return at;
}

void text_title(const char *message, size_t max_chars, struct buf *out)
{
    message += strspn(message, " \t\r\n");
    size_t len = strcspn(message, "\r\n");
    while (len > 0 && (message[len - 1] == ' ' || message[len - 1] == '\t'))
        len--;
    struct buf clean = {0};
    text_printable(message, len, &clean);
    for (size_t i = 0; i < clean.len; i++)
        if (clean.data[i] == '\t')
            clean.data[i] = ' ';
    size_t at = 0, chars = 0, keep = 0;
    while (at < clean.len) {
        uint32_t c;
        size_t n = utf8_char((const unsigned char *)clean.data + at, clean.len - at, &c);
        if (n == 0)
            break;
        at += n;
        chars++;
        if (chars + 1 == max_chars)
            keep = at;
    }
    if (chars <= max_chars) {
        buf_add(out, clean.data, at);
    } else {
        buf_add(out, clean.data, keep);
        buf_str(out, "\u2026");
    }
    buf_free(&clean);
}

const char *json_string(const cJSON *object, const char *name, const char *fallback)
{
    const cJSON *field = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsString(field) ? field->valuestring : fallback;
}

double json_number(const cJSON *object, const char *name, double fallback)
{
    const cJSON *field = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsNumber(field) ? field->valuedouble : fallback;
}

const cJSON *json_field(const cJSON *object, const char *name)
{
    const cJSON *field = cJSON_GetObjectItemCaseSensitive(object, name);
    if (!field)
        field = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(object, "convod"), name);
    return field;
}

const cJSON *json_numbered(const cJSON *array, long number)
{
    return number >= 1 && number <= 1000000 ? cJSON_GetArrayItem(array, (int)number - 1) : NULL;
}

static void count_from(struct buf *out, int *listed, double tokens, const char *where, bool alone)
{
    if (tokens <= 0)
        return;
    buf_str(out, (*listed)++ ? ", " : "");
    if (alone)
        buf_str(out, where);
    else
        buf_printf(out, "%.0f %s", tokens, where);
}

/* Why something was read again, in words. */
static void add_reason(const char *code, struct buf *out)
{
    static const char *const words[][2] = {
        {"blob_damaged", "what was stored is damaged"},
        {"blob_missing", "it was not stored any more"},
        {"blob_unreadable", "what was stored could not be read"},
        {"blob_foreign", "another model made it"},
        {"numerics_changed", "it was computed with other rounding"},
        {"not_saved", "it had not been saved"},
        {"not_indexed", "what is stored is still being looked through"},
        {"put_aside", "it made room for others meanwhile"},
        {"instructions_changed", "the instructions changed"},
        {"truncated", "the oldest turns were dropped"},
        {"logits", "the last word, for another answer"},
    };
    for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++) {
        if (strcmp(code, words[i][0]) == 0) {
            buf_str(out, words[i][1]);
            return;
        }
    }
    buf_str(out, "");
    text_printable(*code ? code : "unknown reason", *code ? strlen(code) : 14, out);
    for (size_t i = 0; i < out->len; i++)
        if (out->data[i] == '_')
            out->data[i] = ' ';
}

void text_bytes(double bytes, struct buf *out)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    size_t unit = 0;
    for (; bytes >= 1024 && unit < 4; unit++)
        bytes /= 1024;
    buf_printf(out, "%.*f %s", unit > 0 && bytes < 10 ? 1 : 0, bytes, units[unit]);
}

void text_base64(const char *text, size_t len, struct buf *out)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *p = (const unsigned char *)text;
    for (size_t i = 0; i < len; i += 3) {
        uint32_t three =
            (uint32_t)p[i] << 16 | (i + 1 < len ? (uint32_t)p[i + 1] << 8 : 0) | (i + 2 < len ? p[i + 2] : 0);
        char four[4] = {letters[three >> 18], letters[three >> 12 & 63], '=', '='};
        if (i + 1 < len)
            four[2] = letters[three >> 6 & 63];
        if (i + 2 < len)
            four[3] = letters[three & 63];
        buf_add(out, four, sizeof(four));
    }
}

/* Columns of the character at text, and its bytes. What the C library does not know may be wide, and a variation
 * selector may make the sign before it so: rather a line too short than one too long. */
static int char_columns(const char *text, size_t left, size_t *bytes)
{
    uint32_t c;
    *bytes = utf8_char((const unsigned char *)text, left, &c);
    if (*bytes == 0) {
        *bytes = 1;
        return 1;
    }
    int columns = c == 0xfe0f ? 1 : wcwidth((wchar_t)c);
    return columns >= 0 ? columns : 2;
}

int text_columns(const char *text, size_t len)
{
    int columns = 0;
    for (size_t at = 0, n; at < len; at += n)
        columns += char_columns(text + at, len - at, &n);
    return columns;
}

void text_cut(const char *text, int columns, struct buf *out)
{
    size_t len = strlen(text), fits = 0;
    int width = 0;
    for (size_t at = 0, n; at < len;) {
        width += char_columns(text + at, len - at, &n);
        at += n;
        if (width <= columns - 1 || (width <= columns && at == len))
            fits = at;
    }
    buf_add(out, text, fits);
    if (fits < len)
        buf_str(out, "\u2026");
}

size_t text_fit(const char *text, size_t len, int columns, size_t *next)
{
    size_t at = 0, n;
    size_t end = 0, resume = 0; /* of the line, were it broken at the last place where that may be */
    int width = 0;
    bool was_wide = false;
    for (; at < len && text[at] != '\n'; at += n) {
        int w = char_columns(text + at, len - at, &n);
        if (text[at] == ' ') { /* at a line's end it takes no room */
            end = at > 0 && text[at - 1] == ' ' ? end : at;
            resume = at + 1;
            width++;
            was_wide = false;
            continue;
        }
        if (at > resume && (was_wide || w > 1)) /* Chinese and Japanese have no spaces */
            end = resume = at;
        if (at > 0 && width + w > columns) {
            *next = end > 0 ? resume : at;
            return end > 0 ? end : at;
        }
        width += w;
        was_wide = w > 1 || (w == 0 && was_wide);
    }
    *next = at < len ? at + 1 : at;
    while (at > 0 && text[at - 1] == ' ')
        at--;
    return at;
}

void text_untab(const char *text, size_t len, struct buf *out)
{
    int column = 0;
    size_t n;
    for (size_t at = 0; at < len; at += n) {
        int w = char_columns(text + at, len - at, &n);
        if (text[at] == '\t') {
            buf_printf(out, "%*s", 8 - column % 8, "");
            column = 0;
            continue;
        }
        buf_add(out, text + at, n);
        column = text[at] == '\n' ? 0 : column + w;
    }
}

size_t text_fill(const char *text, size_t len, int columns)
{
    size_t at = 0, n;
    for (int width = 0; at < len; at += n) {
        width += char_columns(text + at, len - at, &n);
        if (width > columns && at > 0)
            break;
    }
    return at;
}

void text_lines(const char *text, size_t len, int columns, struct buf *out)
{
    struct buf spaced = {0};
    size_t next;
    text_untab(text, len, &spaced);
    for (size_t at = 0; at < spaced.len; at += next) {
        buf_add(out, spaced.data + at, text_fit(spaced.data + at, spaced.len - at, columns, &next));
        buf_str(out, "\n");
    }
    buf_free(&spaced);
}

void text_receipt(const cJSON *receipt, struct buf *out)
{
    const cJSON *tokens = cJSON_GetObjectItemCaseSensitive(receipt, "tokens");
    const cJSON *ms = cJSON_GetObjectItemCaseSensitive(receipt, "ms");
    double hot = json_number(tokens, "hot", 0), ram = json_number(tokens, "ram", 0);
    double disk = json_number(tokens, "disk", 0), kept = hot + ram + disk;
    if (kept > 0) {
        bool alone = hot == kept || ram == kept || disk == kept;
        int listed = 0;
        buf_printf(out, "%.0f tokens kept (", kept);
        count_from(out, &listed, hot, "hot", alone);
        count_from(out, &listed, ram, "from RAM", alone);
        count_from(out, &listed, disk, "from disk", alone);
        buf_printf(out, "), %.0f prefilled", json_number(tokens, "prefilled", 0));
    } else {
        buf_printf(out, "%.0f tokens prefilled", json_number(tokens, "prefilled", 0));
    }
    const cJSON *again;
    cJSON_ArrayForEach(again, cJSON_GetObjectItemCaseSensitive(receipt, "reprefilled"))
    {
        struct buf reason = {0};
        add_reason(json_string(again, "reason", ""), &reason);
        buf_printf(out, ", %.0f of them again (%s)", json_number(again, "tokens", 0), reason.data);
        buf_free(&reason);
    }
    double ttft = json_number(ms, "ttft", 0), gap = json_number(ms, "itl_p50", 0);
    if (ttft > 0)
        buf_printf(out, " \u00b7 %.2f s to first token", ttft / 1000);
    if (gap > 0)
        buf_printf(out, " \u00b7 %.*f tok/s", 1000 / gap < 10 ? 1 : 0, 1000 / gap);
    if (strcmp(json_string(receipt, "saved", ""), "failed") == 0)
        buf_str(out, " \u00b7 not saved to disk");
}

void text_warm_up(const cJSON *receipt, struct buf *out)
{
    const cJSON *tokens = cJSON_GetObjectItemCaseSensitive(receipt, "tokens");
    double ram = json_number(tokens, "ram", 0), disk = json_number(tokens, "disk", 0);
    double prefilled = json_number(tokens, "prefilled", 0);
    int listed = 0;
    if (ram > 0 || disk > 0 || prefilled > 0)
        buf_str(out, "before you wrote: ");
    count_from(out, &listed, ram, "from RAM", false);
    count_from(out, &listed, disk, "from disk", false);
    count_from(out, &listed, prefilled, "prefilled", false);
}

void text_progress(const char *stage, double done, double total, struct buf *out)
{
    if (strcmp(stage, "queue") == 0) {
        if (done > 0)
            buf_printf(out, "waiting for %.0f other turn%s", done, done == 1 ? "" : "s");
        else
            buf_str(out, "waiting");
    } else {
        const char *what = strcmp(stage, "restore") == 0     ? "restoring"
                           : strcmp(stage, "prefill") == 0   ? "reading"
                           : strcmp(stage, "load") == 0      ? "loading the model"
                           : strcmp(stage, "truncated") == 0 ? "the oldest turns are dropped:"
                                                             : stage;
        text_printable(what, strlen(what), out);
        if (strcmp(stage, "load") == 0) {
            if (total > 0)
                buf_printf(out, ": %.0f %%", 100 * done / total);
        } else if (total > 0) {
            buf_printf(out, " %.0f of %.0f tokens", done, total);
        }
    }
}

void text_of_item(const cJSON *item, struct buf *out)
{
    const cJSON *content = cJSON_GetObjectItemCaseSensitive(item, "content");
    if (cJSON_IsString(content)) {
        buf_str(out, content->valuestring);
        return;
    }
    const cJSON *part;
    cJSON_ArrayForEach(part, content)
    {
        buf_str(out, json_string(part, "text", ""));
    }
}

void text_of_output(const cJSON *response, struct buf *out)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(response, "output"))
    {
        if (strcmp(json_string(item, "type", ""), "message") == 0)
            text_of_item(item, out);
    }
}
