/* piece.c - events of a piece of an answer's text, of which there is one for each token: what is the same in all of an
 * item's is made once, and none of them is a tree first.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/api/api.h"

#define PIECE_BYTES 256 /* of text, that need no memory to be quoted; a token has a few */

static const char mark[] = "\"\\u0001\""; /* PIECE_MARK as JSON */

/* The item's form, whose end stands where the text goes; what comes behind that, behind where the mark was. NULL: out
 * of memory. */
static const char *form_of(struct run *run, size_t i, cJSON *(*make)(const struct run *run, size_t i))
{
    struct run_item *item = &run->items[i];
    if (!item->piece) {
        char *form = json_text(make(run, i)), *at = form ? strstr(form, mark) : NULL;
        if (!at) {
            free(form);
            return NULL;
        }
        *at = '\0';
        item->piece = form;
    }
    return item->piece;
}

void piece_log(struct run *run, size_t i, const char *name, const char *text, int64_t *number,
               cJSON *(*make)(const struct run *run, size_t i))
{
    struct run_item *item = &run->items[i];
    char small[6 * PIECE_BYTES + 8], last[48] = "", *large = NULL, *event = NULL;
    char *input = item->custom ? call_input(item->text, &item->input_told) : NULL;
    if (item->custom && !(input && *input)) {
        free(input);
        return;
    }
    text = input ? input : text;
    const char *before = form_of(run, i, make), *quoted = small;
    if (strlen(text) > PIECE_BYTES || !json_quote(text, small, sizeof(small))) {
        quoted = large = json_quoted(text);
    }
    if (before && quoted) {
        size_t n_before = strlen(before);
        const char *behind = before + n_before + sizeof(mark) - 1;
        size_t n_text = strlen(quoted), n_behind = strlen(behind), n_last = 0;
        if (number) {
            n_behind--; /* the last brace */
            n_last = (size_t)snprintf(last, sizeof(last), ",\"sequence_number\":%lld}", (long long)(*number)++);
        }
        event = malloc(n_before + n_text + n_behind + n_last + 1);
        if (event) {
            char *to = event;
            memcpy(to, before, n_before);
            memcpy(to += n_before, quoted, n_text);
            memcpy(to += n_text, behind, n_behind);
            memcpy(to + n_behind, last, n_last + 1);
        }
    }
    free(large);
    free(input);
    run_log(run, name, event);
}
