/* commands.c - what asks the daemon once and prints the answer: list, show, rename, delete, evict, status, and waiting
 * for a model that loads.
 *
 * On a terminal lists are laid out for reading; in a pipe a row is tab-separated, so that a script can cut it. Whatever
 * came from the daemon and may hold another person's text is made printable first.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "clients/cli/cli_internal.h"

#define READY_POLL_MS 200
#define PAGE_ROWS     100
#define LIST_ROWS     50 /* on a terminal, at most: the latest stand at the top of the screen */
#define TITLE_CHARS   60
#define NARROW        60 /* columns; below it a row of /list has number, time and title */
#define SAID_LINES    12 /* of a message, when a conversation goes on */

/* ---- requests ------------------------------------------------------------------------------------------------------
 */

static void add_escaped(struct buf *out, const char *text)
{
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        if ((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') || strchr("-_.~", *p))
            buf_add(out, (const char *)p, 1);
        else
            buf_printf(out, "%%%02X", *p);
    }
}

static char *conversation_path(const char *id, const char *rest)
{
    struct buf path = {0};
    buf_str(&path, "/v1/conversations/");
    add_escaped(&path, id);
    buf_str(&path, rest);
    return path.data;
}

static int exit_code_of(int rc)
{
    return rc == -ECONNREFUSED ? CLI_NO_DAEMON : rc == -EINTR ? CLI_INTERRUPTED : CLI_FAILED;
}

/* What helps where this was refused, behind what the daemon says of it. code may be NULL. */
static const char *remedy(const struct cli *c, const char *code)
{
    bool full = code && strcmp(code, "context_length_exceeded") == 0;
    return full && (!c->sampling.truncation || strcmp(c->sampling.truncation, "auto") != 0)
               ? " (with --truncation auto, in a chat /set truncation auto, the oldest turns are dropped)"
               : "";
}

static void tell_refusal(struct cli *c, int status, const char *body)
{
    cJSON *answer = cJSON_Parse(body);
    const cJSON *error = cJSON_GetObjectItemCaseSensitive(answer, "error");
    const char *message = json_string(error, "message", NULL);
    if (status == 401)
        term_error(&c->term, "%s (name the file with your token: --token-file FILE)",
                   message ? message : "the daemon wants a token");
    else if (message && strcmp(json_string(error, "code", ""), "not_found") == 0)
        term_error(&c->term, "%s (%s must be the daemon's address alone, such as %s)", message, net_url(c->net),
                   CLI_DEFAULT_URL);
    else if (message)
        term_error(&c->term, "%s%s", message, remedy(c, json_string(error, "code", NULL)));
    else
        term_error(&c->term, "%s answers with HTTP status %d", net_url(c->net), status);
    cJSON_Delete(answer);
}

cJSON *cli_call(struct cli *c, const char *method, const char *path, cJSON *body, int *code)
{
    char err[CLI_ERR_SIZE];
    struct net_reply reply;
    char *text = body ? text_json(body) : NULL;
    int rc = net_http(c->net, method, path, text, &reply, NULL, NULL, err, sizeof(err));
    free(text);
    *code = CLI_OK;
    if (rc) {
        if (rc != -EINTR)
            term_error(&c->term, "%s", err);
        *code = exit_code_of(rc);
        return NULL;
    }
    cJSON *answer = NULL;
    if (reply.status >= 200 && reply.status < 300) {
        answer = cJSON_ParseWithLength(reply.body.data ? reply.body.data : "", reply.body.len);
        if (!answer) {
            term_error(&c->term, "%s does not answer as convod does", net_url(c->net));
            *code = CLI_FAILED;
        }
    } else {
        tell_refusal(c, reply.status, reply.body.data ? reply.body.data : "");
        *code = CLI_FAILED;
    }
    buf_free(&reply.body);
    return answer;
}

/* Writes what was put together, and frees it. */
static void print_out(struct cli *c, struct buf *text)
{
    if (text->len > 0)
        term_write(&c->term, text->data, text->len);
    buf_free(text);
}

int cli_print_json(struct cli *c, cJSON *object)
{
    char *text = text_json(object);
    struct buf line = {0};
    text_json_printable(text, &line);
    buf_str(&line, "\n");
    free(text);
    print_out(c, &line);
    return CLI_OK;
}

int cli_read_all(struct cli *c, struct buf *out)
{
    char piece[65536];
    size_t got;
    while ((got = fread(piece, 1, sizeof(piece), stdin)) > 0) {
        if (out->len + got > CLI_REQUEST_MAX) {
            term_error(&c->term, "standard input is longer than the %u MiB that the daemon takes",
                       CLI_REQUEST_MAX >> 20);
            return CLI_FAILED;
        }
        buf_add(out, piece, got);
    }
    if (interrupts_pending())
        return CLI_INTERRUPTED;
    if (ferror(stdin)) {
        term_error(&c->term, "standard input: %s", strerror(errno));
        return CLI_FAILED;
    }
    return CLI_OK;
}

bool cli_sendable(struct cli *c, const char *what, const char *text, size_t len)
{
    size_t at = text_sound(text, len);
    if (at == len)
        return true;
    if (text[at] == '\0')
        term_error(&c->term, "%s has a NUL byte at offset %zu and so is no text; `tr -d '\\0'` takes them out", what,
                   at);
    else
        term_error(
            &c->term,
            "%s is not UTF-8: byte 0x%02x at offset %zu; convert it, for instance with `iconv -f latin1 -t utf-8`",
            what, (unsigned char)text[at], at);
    return false;
}

/* ---- waiting for the model -----------------------------------------------------------------------------------------
 */

static void show_loading(struct cli *c, const char *body, bool first)
{
    cJSON *answer = cJSON_Parse(body);
    double part = json_number(answer, "progress", -1);
    struct buf text = {0};
    text_progress("load", part, part >= 0 ? 1 : 0, &text);
    if (first)
        term_quiet(&c->term); /* what is typed would stand in the line */
    if (c->term.err_tty)
        term_status(&c->term, text.data);
    else if (first)
        term_note(&c->term, "waiting until the model is loaded");
    buf_free(&text);
    cJSON_Delete(answer);
}

int cli_wait_ready(struct cli *c)
{
    for (bool first = true;; first = false) {
        char err[CLI_ERR_SIZE];
        struct net_reply reply;
        int rc = net_http(c->net, "GET", "/ready", NULL, &reply, NULL, NULL, err, sizeof(err));
        if (rc) {
            term_status_clear(&c->term);
            if (rc == -ECONNREFUSED && !first)
                term_error(&c->term, "convod at %s ended while it loaded the model; its log says why", net_url(c->net));
            else if (rc != -EINTR)
                term_error(&c->term, "%s", err);
            return exit_code_of(rc);
        }
        bool loading = reply.status == 503;
        bool stopping = loading && reply.body.data && strstr(reply.body.data, "\"stopping\"");
        if (loading && !stopping)
            show_loading(c, reply.body.data ? reply.body.data : "", first);
        buf_free(&reply.body);
        if (stopping) {
            term_error(&c->term, "convod at %s is stopping", net_url(c->net));
            return CLI_NO_DAEMON;
        }
        if (!loading) {
            term_status_clear(&c->term);
            return CLI_OK; /* whatever else is wrong, the next request will tell better */
        }
        net_pause(c->net, READY_POLL_MS);
    }
}

int cli_wait_again(struct cli *c)
{
    return net_ws_is_open(c->net) ? CLI_OK : cli_wait_ready(c);
}

/* The library keeps what a refused upgrade was answered with to itself, so the same is asked for over HTTP. */
static int tell_refused_upgrade(struct cli *c)
{
    int code;
    cJSON *models = cli_call(c, "GET", "/v1/models", NULL, &code);
    if (models) {
        term_error(&c->term,
                   "%s answers over HTTP but refuses the WebSocket at /v1/responses; a proxy before convod must pass "
                   "WebSockets on",
                   net_url(c->net));
        code = CLI_FAILED;
    }
    cJSON_Delete(models);
    return code;
}

/* One line about an answer that came: why it is cut, if it is, and its receipt. */
static void tell_end(struct cli *c, const struct turn_result *r)
{
    const cJSON *receipt = cJSON_GetObjectItemCaseSensitive(r->response, "convod");
    struct buf text = {0};
    if (r->end == TURN_INCOMPLETE) {
        const cJSON *details = cJSON_GetObjectItemCaseSensitive(r->response, "incomplete_details");
        const char *reason = json_string(receipt, "incomplete_reason", json_string(details, "reason", ""));
        buf_str(&text, strcmp(reason, "max_output_tokens") == 0 ? "cut at the token limit"
                       : strcmp(reason, "context_length") == 0  ? "the context is full"
                       : strcmp(reason, "shutdown") == 0        ? "the daemon stops"
                                                                : "stopped");
    }
    if (c->receipt && receipt) {
        buf_str(&text, text.len > 0 ? " \u00b7 " : "");
        text_receipt(receipt, &text);
        struct buf before = {0};
        text_warm_up(r->warm_up, &before);
        if (before.len > 0)
            buf_printf(&text, " \u00b7 %s", before.data);
        buf_free(&before);
    }
    /* With --json all of it is in the response. */
    if (text.len > 0 && !c->json && c->term.out_error == 0)
        term_note(&c->term, "%s", text.data);
    buf_free(&text);
}

int cli_turn_outcome(struct cli *c, const struct turn_result *r)
{
    switch (r->end) {
    case TURN_COMPLETED:
        tell_end(c, r);
        return CLI_OK;
    case TURN_INCOMPLETE:
        tell_end(c, r);
        return r->answer.len == 0 && interrupts_pending() > 0 ? CLI_INTERRUPTED : CLI_CUT_SHORT;
    case TURN_FAILED:
        if (r->rc == -EINTR)
            return CLI_INTERRUPTED;
        if (r->rc == -EACCES)
            return tell_refused_upgrade(c);
        if (r->code && strcmp(r->code, "conversation_locked") == 0)
            term_error(&c->term, "an answer is still being written in this conversation; try again when it has ended");
        else
            term_error(&c->term, "%s%s", r->error ? r->error : "the turn failed", remedy(c, r->code));
        return r->rc ? exit_code_of(r->rc) : CLI_FAILED;
    case TURN_LOST:
        term_error(&c->term, "%s", r->error ? r->error : "the connection broke");
        return exit_code_of(r->rc);
    }
    return CLI_FAILED;
}

/* ---- conversations -------------------------------------------------------------------------------------------------
 */

int cli_create(struct cli *c, const char *first_message, const char *instructions, char **id)
{
    struct buf title = {0};
    text_title(first_message, TITLE_CHARS, &title);
    cJSON *body = cJSON_CreateObject();
    cJSON_AddObjectToObject(body, "metadata");
    if (title.len > 0)
        cJSON_AddStringToObject(body, "title", title.data);
    if (instructions)
        cJSON_AddStringToObject(body, "instructions", instructions);
    buf_free(&title);
    int code;
    cJSON *made = cli_call(c, "POST", "/v1/conversations", body, &code);
    const char *made_id = json_string(made, "id", NULL);
    if (made_id) {
        *id = text_copy(made_id);
    } else if (made) {
        term_error(&c->term, "the daemon made no conversation");
        code = CLI_FAILED;
    }
    cJSON_Delete(made);
    return code;
}

char *cli_latest(struct cli *c, const char *except, int *code)
{
    cJSON *list = cli_call(c, "GET", "/v1/conversations?limit=2", NULL, code);
    const cJSON *row;
    char *found = NULL;
    cJSON_ArrayForEach(row, cJSON_GetObjectItemCaseSensitive(list, "data"))
    {
        const char *id = json_string(row, "id", NULL);
        if (id && !found && (!except || strcmp(id, except) != 0))
            found = text_copy(id);
    }
    cJSON_Delete(list);
    return found;
}

static double number_of(const cJSON *object, const char *name)
{
    const cJSON *field = json_field(object, name);
    return cJSON_IsNumber(field) ? field->valuedouble : 0;
}

static const char *string_of(const cJSON *object, const char *name)
{
    const cJSON *field = json_field(object, name);
    return cJSON_IsString(field) ? field->valuestring : "";
}

static void time_text(double seconds, const char *format, char *out, size_t out_size)
{
    time_t when = (time_t)seconds;
    struct tm local;
    out[0] = '\0';
    if (seconds > 0 && localtime_r(&when, &local))
        strftime(out, out_size, format, &local);
}

/* Today's time, otherwise the day. */
static void short_time(double seconds, char *out, size_t out_size)
{
    char now[32], then[32];
    time_text((double)time(NULL), "%F", now, sizeof(now));
    time_text(seconds, "%F", then, sizeof(then));
    time_text(seconds, strcmp(now, then) == 0 ? "today %H:%M" : "%F", out, out_size);
}

/* For a person a row fits the terminal's line: a number stands for the id, where there is one. */
static void print_row(struct cli *c, const cJSON *row, int number)
{
    char when[32];
    double updated = number_of(row, "updated_at"), seconds = updated > 0 ? updated : number_of(row, "created_at");
    struct buf clean = {0}, line = {0}, id = {0}, tier = {0};
    text_title(json_string(row, "id", ""), 200, &id);
    text_title(string_of(row, "tier"), 16, &tier);
    text_title(string_of(row, "title"), 200, &clean);
    if (!c->term.out_tty) {
        time_text(seconds, "%Y-%m-%d %H:%M", when, sizeof(when));
        buf_printf(&line, "%s\t%s\t%.0f\t%s\t%s\n", id.data, when, number_of(row, "turns"), tier.data, clean.data);
    } else {
        double turns = number_of(row, "turns");
        short_time(seconds, when, sizeof(when));
        if (number > 0 && term_columns() < NARROW)
            buf_printf(&line, "%3d  %-11s  ", number, when);
        else if (number > 0)
            buf_printf(&line, "%3d  %-11s  %3.0f turn%s  %-6s  ", number, when, turns, turns == 1 ? " " : "s",
                       tier.data);
        else
            buf_printf(&line, "%s  %-11s  ", id.data, when);
        int left = term_columns() - (int)line.len;
        text_cut(clean.len ? clean.data : "(no title)", left > 10 ? left : 10, &line);
        buf_str(&line, "\n");
    }
    print_out(c, &line);
    buf_free(&clean);
    buf_free(&id);
    buf_free(&tier);
}

int cli_list(struct cli *c, const char *query, bool numbers, cJSON **ids)
{
    struct buf path = {0};
    int fit = term_rows() - 3; /* with the command, a remark and the prompt */
    fit = fit < LIST_ROWS ? fit : LIST_ROWS;
    buf_printf(&path, "/v1/conversations?limit=%d", !c->term.out_tty || c->json ? PAGE_ROWS : fit > 5 ? fit : 5);
    if (query) {
        buf_str(&path, "&q=");
        add_escaped(&path, query);
    }
    cJSON *found = ids ? cJSON_CreateArray() : NULL, *all = c->json ? cJSON_CreateArray() : NULL;
    char *after = NULL;
    int code, number = 0;
    bool more;
    do {
        struct buf page = {0};
        buf_str(&page, path.data);
        if (after) {
            buf_str(&page, "&after=");
            add_escaped(&page, after);
        }
        cJSON *list = cli_call(c, "GET", page.data, NULL, &code);
        buf_free(&page);
        const cJSON *row, *last = NULL;
        cJSON_ArrayForEach(row, cJSON_GetObjectItemCaseSensitive(list, "data"))
        {
            last = row;
            number++;
            if (all)
                cJSON_AddItemToArray(all, cJSON_Duplicate(row, true));
            else
                print_row(c, row, numbers ? number : 0);
            if (found)
                cJSON_AddItemToArray(found, cJSON_CreateString(json_string(row, "id", "")));
        }
        more = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(list, "has_more")) && last;
        free(after);
        after = more ? text_copy(json_string(last, "id", "")) : NULL;
        cJSON_Delete(list);
        if (more && c->term.out_tty && !c->json) {
            term_note(&c->term, "and older ones: %s finds those with WORD in the title",
                      numbers ? "/list WORD" : "`convo list WORD`");
            more = false;
        }
    } while (code == CLI_OK && more && c->term.out_error == 0);
    free(after);
    buf_free(&path);
    if (code == CLI_OK && all)
        code = cli_print_json(c, all);
    else
        cJSON_Delete(all);
    if (code == CLI_OK && number == 0 && c->term.out_tty)
        term_note(&c->term, query ? "no conversation has that in its title" : "no conversations yet");
    if (ids && code == CLI_OK)
        *ids = found;
    else
        cJSON_Delete(found);
    return code;
}

/* What a person said, on a terminal; in short where a file that went with it would fill the screen. */
static void print_said(struct cli *c, const char *text, size_t len, bool in_short)
{
    struct buf said = {0}, lines = {0}, out = {0};
    buf_str(&said, "> ");
    text_printable(text, len, &said);
    text_lines(said.data, said.len, term_columns(), &lines);
    size_t keep = 0;
    int shown = 0, more = 0;
    for (size_t at = 0; at < lines.len; at += strcspn(lines.data + at, "\n") + 1) {
        if (in_short && shown == SAID_LINES) {
            more++;
        } else {
            keep = at + strcspn(lines.data + at, "\n") + 1;
            shown++;
        }
    }
    buf_printf(&out, "%s%.*s%s", c->term.colour ? "\033[1m" : "", (int)keep, lines.data,
               c->term.colour ? "\033[0m" : "");
    print_out(c, &out);
    if (more > 0)
        term_note(&c->term, "and %d more line%s", more, more == 1 ? "" : "s");
    buf_free(&said);
    buf_free(&lines);
}

/* number: 0 = it has none. */
static void print_item(struct cli *c, const cJSON *item, bool in_short, int number)
{
    struct buf text = {0}, line = {0};
    const char *role = json_string(item, "role", "");
    text_of_item(item, &text);
    if (text.len == 0) {
        buf_free(&text);
        return;
    }
    if (number) {
        buf_printf(&line, c->term.out_tty ? "#%d\n" : "#%d ", number);
        print_out(c, &line);
    }
    if (!c->term.out_tty) {
        buf_printf(&line, "%s: %s\n", role, text.data);
    } else if (strcmp(role, "user") == 0) {
        print_said(c, text.data, text.len, in_short);
    } else {
        term_answer(&c->term, text.data, text.len);
        term_answer_end(&c->term);
    }
    print_out(c, &line);
    buf_free(&text);
}

cJSON *cli_items(struct cli *c, const char *id, int last_items, int *code)
{
    cJSON *all = cJSON_CreateArray();
    char *path = conversation_path(id, "/items");
    char *after = NULL;
    bool more = true;
    while (more) {
        struct buf page = {0};
        buf_printf(&page, "%s?order=%s&limit=%d", path, last_items ? "desc" : "asc",
                   last_items ? last_items : PAGE_ROWS);
        if (after) {
            buf_str(&page, "&after=");
            add_escaped(&page, after);
        }
        cJSON *list = cli_call(c, "GET", page.data, NULL, code);
        buf_free(&page);
        cJSON *data = cJSON_GetObjectItemCaseSensitive(list, "data"), *item;
        free(after);
        after = NULL;
        while ((item = cJSON_DetachItemFromArray(data, 0))) {
            free(after);
            after = text_copy(json_string(item, "id", ""));
            if (last_items)
                cJSON_InsertItemInArray(all, 0, item);
            else
                cJSON_AddItemToArray(all, item);
        }
        more = !last_items && after && cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(list, "has_more"));
        cJSON_Delete(list);
        if (*code != CLI_OK) {
            cJSON_Delete(all);
            all = NULL;
            more = false;
        }
    }
    free(after);
    free(path);
    return all;
}

void cli_name(struct cli *c, const char *id, struct buf *out)
{
    char *path = conversation_path(id, "");
    char err[CLI_ERR_SIZE];
    struct net_reply reply;
    if (net_http(c->net, "GET", path, NULL, &reply, NULL, NULL, err, sizeof(err)) == 0) {
        cJSON *about = cJSON_Parse(reply.body.data ? reply.body.data : "");
        const char *title = string_of(about, "title");
        if (*title)
            buf_printf(out, "\u201c%s\u201d", title);
        cJSON_Delete(about);
        buf_free(&reply.body);
    }
    if (out->len == 0)
        buf_str(out, "this conversation");
    free(path);
}

int cli_show(struct cli *c, const char *id, int last_items, bool numbers)
{
    int code, number = 0;
    char *path = conversation_path(id, "");
    cJSON *about = cli_call(c, "GET", path, NULL, &code);
    free(path);
    if (!about)
        return code;
    cJSON *items = cli_items(c, id, last_items, &code);
    if (items && c->json) {
        cJSON_AddItemToObject(about, "items", items);
        return cli_print_json(c, about);
    }
    if (items) {
        const cJSON *item;
        const char *title = string_of(about, "title"), *instructions = string_of(about, "instructions");
        if (c->term.out_tty || !last_items)
            term_note(&c->term, "%s%s%s", id, *title ? ": " : "", title);
        if (*instructions)
            term_note(&c->term, "system: %s", instructions);
        cJSON_ArrayForEach(item, items)
        {
            print_item(c, item, last_items > 0, numbers ? ++number : 0);
        }
    }
    cJSON_Delete(items);
    cJSON_Delete(about);
    return code;
}

static int update(struct cli *c, const char *id, const char *field, const char *value)
{
    int code;
    char *path = conversation_path(id, "");
    cJSON *body = cJSON_CreateObject();
    cJSON_AddStringToObject(body, field, value);
    cJSON_Delete(cli_call(c, "POST", path, body, &code));
    free(path);
    return code;
}

int cli_rename(struct cli *c, const char *id, const char *title)
{
    return update(c, id, "title", title);
}

int cli_instruct(struct cli *c, const char *id, const char *instructions)
{
    return update(c, id, "instructions", instructions);
}

int cli_delete(struct cli *c, const char *id)
{
    int code;
    char *path = conversation_path(id, "");
    cJSON_Delete(cli_call(c, "DELETE", path, NULL, &code));
    free(path);
    return code;
}

int cli_evict(struct cli *c, const char *id, const char *to)
{
    int code;
    char *path = conversation_path(id, "/evict");
    cJSON *body = cJSON_CreateObject();
    cJSON_AddStringToObject(body, "to", to);
    cJSON_Delete(cli_call(c, "POST", path, body, &code));
    free(path);
    return code;
}

/* ---- status --------------------------------------------------------------------------------------------------------
 */

/* The "_bytes" that ends a part of a name, or NULL. */
static char *bytes_part(char *name)
{
    static const char bytes[] = "_bytes";
    for (char *at = name; at && (at = strstr(at, bytes)); at++)
        if (at[sizeof(bytes) - 1] == '\0' || at[sizeof(bytes) - 1] == '.')
            return at;
    return NULL;
}

/* A value as text, malloc'd; a size with its unit. */
static char *plain_value(const cJSON *value, bool size)
{
    struct buf text = {0};
    if (!size || !cJSON_IsNumber(value))
        return cJSON_IsString(value) ? text_copy(value->valuestring) : cJSON_PrintUnformatted(value);
    text_bytes(value->valuedouble, &text);
    return text.data;
}

/* One of two members: a size, or a number. */
static const cJSON *either(const cJSON *o, const char *number, const char *bytes, bool *size)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, bytes);
    *size |= v != NULL;
    return v ? v : cJSON_GetObjectItemCaseSensitive(o, number);
}

/* For reading: a size with its unit, nothing as `none`, and what is used of how much on one line. NULL: an object that
 * is more than that. */
static char *readable_value(const cJSON *value, bool size)
{
    const cJSON *used = either(value, "used", "used_bytes", &size);
    const cJSON *budget = either(value, "budget", "budget_bytes", &size);
    const cJSON *most = budget ? budget : either(value, "limit", "limit_bytes", &size);
    struct buf text = {0};
    if (cJSON_IsNull(value))
        return text_copy("none");
    if (!cJSON_IsObject(value) && !cJSON_IsArray(value))
        return plain_value(value, size);
    if (!used || !most || cJSON_GetArraySize(value) != 2)
        return NULL;
    char *part = plain_value(used, size), *whole = cJSON_IsNull(most) ? NULL : plain_value(most, size);
    buf_printf(&text, "%s%s%s", part ? part : "", whole ? " of " : ", no limit", whole ? whole : "");
    free(part);
    free(whole);
    return text.data;
}

static void print_flat(const cJSON *value, bool human, struct buf *name, struct buf *out)
{
    size_t len = name->len;
    const cJSON *field;
    bool nested = cJSON_IsObject(value) || cJSON_IsArray(value);
    char *unit = human ? bytes_part(name->data) : NULL;
    char *plain = human ? readable_value(value, unit != NULL) : nested ? NULL : plain_value(value, false);
    if (nested && !plain) {
        cJSON_ArrayForEach(field, value)
        {
            if (field->string)
                buf_printf(name, "%s%s", len ? "." : "", field->string);
            print_flat(field, human, name, out);
            name->len = len;
            if (name->data)
                name->data[len] = '\0';
        }
        return;
    }
    struct buf shown = {0}, clean = {0};
    const char *rest = name->data ? name->data : "";
    buf_str(&shown, "");
    if (unit) { /* the number's unit says it */
        text_printable(rest, (size_t)(unit - rest), &shown);
        rest = unit + strlen("_bytes");
    }
    text_printable(rest, strlen(rest), &shown);
    if (plain)
        text_printable(plain, strlen(plain), &clean);
    buf_printf(out, "%-28s %s\n", shown.data, clean.data ? clean.data : "");
    free(plain);
    buf_free(&shown);
    buf_free(&clean);
}

int cli_status(struct cli *c)
{
    char err[CLI_ERR_SIZE];
    struct net_reply reply;
    int rc = net_http(c->net, "GET", "/ready", NULL, &reply, NULL, NULL, err, sizeof(err));
    if (rc) {
        term_error(&c->term, "%s", err);
        return exit_code_of(rc);
    }
    bool loading = reply.status == 503;
    buf_free(&reply.body);
    if (loading) {
        struct buf line = {0};
        buf_str(&line, c->json ? "{\"status\":\"loading\"}\n" : "loading the model\n");
        print_out(c, &line);
        return CLI_OK;
    }
    int code;
    cJSON *status = cli_call(c, "GET", "/v1/convod/status", NULL, &code);
    if (!status)
        return code;
    if (c->json)
        return cli_print_json(c, status);
    struct buf name = {0}, out = {0};
    print_flat(status, c->term.out_tty, &name, &out);
    print_out(c, &out);
    buf_free(&name);
    cJSON_Delete(status);
    return CLI_OK;
}
