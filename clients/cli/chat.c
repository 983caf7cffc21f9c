/* chat.c - the conversation at the terminal: lines, commands that begin with a slash, and the turns.
 *
 * The conversation is made on the daemon with its first message, whose first line is its title. Where the next message
 * goes, its head, is the daemon's to know, for every client alike.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clients/cli/cli_internal.h"

#define PROMPT      "> "
#define PROMPT_MORE ". "
#define SHOW_ITEMS  4  /* of a conversation that goes on */
#define ADDED_ITEMS 20 /* that can be added at once */

#define ANSWER_ITEMS 40 /* that an answer with calls may have, and what failed behind it */

struct chat {
    struct cli *cli;
    struct line_reader *reader;
    char *id;           /* NULL: not made yet */
    char *instructions; /* for the conversation to be made; NULL: none */
    cJSON *listed;      /* ids as /list numbered them */
    cJSON *ends;        /* of branches, as /branches showed them */
    int code;           /* of the last thing that was done */
    bool quit;
};

static void set_string(char **to, const char *value)
{
    char *copy = value ? text_copy(value) : NULL;
    free(*to);
    *to = copy;
}

static bool is_blank(const struct buf *text)
{
    return text->len == 0 || strspn(text->data, " \t\n") == text->len;
}

/* ---- turns ---------------------------------------------------------------------------------------------------------
 */

/* Whether the conversation has it now. continues: the response whose answer goes on; then there is no text. */
static bool run_turn(struct chat *chat, const char *text, const char *parent, const char *continues)
{
    struct cli *c = chat->cli;
    struct turn turn = {.text = text,
                        .conversation = chat->id,
                        .parent = parent,
                        .continues = continues,
                        .model = c->model,
                        .sampling = &c->sampling,
                        .store = true,
                        .print = true};
    struct turn_result r;
    interrupts_clear();
    turn_run(c->net, &c->term, &turn, &r);
    chat->code = cli_turn_outcome(c, &r);
    interrupts_clear();
    bool taken = r.end == TURN_COMPLETED || r.end == TURN_INCOMPLETE;
    turn_result_free(&r);
    return taken;
}

/* Sends a message, and behind it the files that are attached: they stay so until it was taken. */
static void say(struct chat *chat, const char *text)
{
    struct cli *c = chat->cli;
    interrupts_clear();
    if ((chat->code = cli_wait_again(c)) != CLI_OK)
        return;
    if (!chat->id) {
        chat->code = cli_create(c, text, chat->instructions, &chat->id);
        if (!chat->id)
            return;
    }
    struct buf message = {0};
    buf_str(&message, text);
    buf_add(&message, c->attached.data, c->attached.len);
    if (run_turn(chat, message.data, NULL, NULL))
        cli_detach(c);
    else if (c->attached.len > 0)
        term_note(&c->term, "still attached: %s", c->attached_names.data);
    buf_free(&message);
}

/* ---- commands ------------------------------------------------------------------------------------------------------
 */

static void leave(struct chat *chat)
{
    cJSON_Delete(chat->ends);
    chat->ends = NULL;
    set_string(&chat->id, NULL);
}

/* Goes on with a conversation: shows its end, and has it put in place while the person types. */
static int enter(struct chat *chat, const char *id)
{
    int code = cli_show(chat->cli, id, SHOW_ITEMS, false);
    if (code != CLI_OK)
        return code;
    char *copy = text_copy(id);
    leave(chat);
    chat->id = copy;
    turn_warm_up(chat->cli->net, id);
    return CLI_OK;
}

/* Somebody types again: meanwhile the conversation may have left the daemon's pages. */
static void come_back(void *arg)
{
    struct chat *chat = arg;
    if (chat->id && net_ws_is_open(chat->cli->net) && *net_ws_warm_ups(chat->cli->net) == 0)
        turn_warm_up(chat->cli->net, chat->id);
}

/* What a command's argument means: a number of the last /list, an id, or (empty) the fallback. NULL: told. */
static const char *which(struct chat *chat, const char *argument, const char *fallback)
{
    if (!*argument) {
        if (!fallback)
            term_note(&chat->cli->term, "which one? /list shows them");
        return fallback;
    }
    char *end;
    long number = strtol(argument, &end, 10);
    if (*end)
        return argument;
    const cJSON *id = json_numbered(chat->listed, number);
    if (!cJSON_IsString(id)) {
        term_note(&chat->cli->term, "/list showed no number %s", argument);
        return NULL;
    }
    return id->valuestring;
}

static void do_help(struct chat *chat, const char *argument)
{
    (void)argument;
    term_note(
        &chat->cli->term, "%s",
        "/new               begin another conversation\n"
        "/list [WORD]       your conversations, or those with WORD in the title\n"
        "/resume [N|ID]     go on with one of them (the latest other one)\n"
        "/rename TITLE      give this conversation a title\n"
        "/delete [N|ID]     delete a conversation (this one)\n"
        "/show              this conversation from its start, each part with its number\n"
        "/regenerate        another answer to your last message\n"
        "/continue          the last answer goes on, if it was cut or stopped\n"
        "/reword [TEXT]     your last message put otherwise, in $EDITOR or as TEXT\n"
        "/correct [TEXT]    the last answer put otherwise, in $EDITOR or as TEXT\n"
        "/undo              take your last message and its answer back\n"
        "/branches [N]      the ends of this conversation's branches, or go on with one\n"
        "/fork [#N] [TITLE] go on in a copy of this conversation, or of it up to #N\n"
        "/compact [TITLE]   go on behind a summary of this conversation\n"
        "/system [TEXT]     what the model is told before the conversation (-: nothing)\n"
        "/evict [ram|disk]  put this conversation away until you go on\n"
        "/set [NAME VALUE]  how answers are drawn and laid out; alone: what holds now\n"
        "/edit [TEXT]       write the next message in $EDITOR\n"
        "/attach FILE       a text file that goes with your next message (-: none)\n"
        "/copy              the last answer to the terminal's clipboard\n"
        "/save FILE         the last answer into a new file\n"
        "/receipt on|off    the line after each answer\n"
        "/status            the daemon's state\n"
        "/quit              leave; the conversation stays\n"
        "A line that ends with \\ goes on, and so does all between two lines of \"\"\". A message that begins with a "
        "slash begins with two. Ctrl-C stops an answer.");
}

static void do_new(struct chat *chat, const char *argument)
{
    (void)argument;
    leave(chat);
    term_note(&chat->cli->term, "a new conversation");
}

static void do_list(struct chat *chat, const char *argument)
{
    cJSON *ids = NULL;
    chat->code = cli_list(chat->cli, *argument ? argument : NULL, true, &ids);
    if (ids) {
        cJSON_Delete(chat->listed);
        chat->listed = ids;
    }
}

static void do_resume(struct chat *chat, const char *argument)
{
    char *latest = NULL;
    chat->code = CLI_OK;
    if (!*argument)
        latest = cli_latest(chat->cli, chat->id, &chat->code);
    if (chat->code != CLI_OK)
        return;
    const char *id = which(chat, argument, latest);
    if (id)
        chat->code = enter(chat, id);
    free(latest);
}

static void do_rename(struct chat *chat, const char *argument)
{
    if (!chat->id || !*argument)
        term_note(&chat->cli->term, chat->id ? "/rename TITLE" : "nothing was said yet");
    else
        chat->code = cli_rename(chat->cli, chat->id, argument);
}

static void do_delete(struct chat *chat, const char *argument)
{
    const char *found = which(chat, argument, chat->id);
    if (!found)
        return;
    char *id = text_copy(found);
    bool sure = true;
    if (chat->cli->term.in_tty) {
        struct buf answer = {0};
        struct buf name = {0};
        cli_name(chat->cli, id, &name);
        term_note(&chat->cli->term, "delete %s for good?", name.data);
        buf_free(&name);
        sure = line_reader_read(chat->reader, "y/n> ", &answer) == 1 &&
               (strcmp(answer.data, "y") == 0 || strcmp(answer.data, "yes") == 0);
        buf_free(&answer);
    }
    if (sure) {
        turn_cool_down(chat->cli->net);
        chat->code = cli_delete(chat->cli, id);
        if (chat->code == CLI_OK) {
            term_note(&chat->cli->term, "deleted");
            if (chat->id && strcmp(chat->id, id) == 0)
                leave(chat);
        }
    }
    free(id);
}

static void do_show(struct chat *chat, const char *argument)
{
    (void)argument;
    if (chat->id)
        chat->code = cli_show(chat->cli, chat->id, 0, true);
    else
        term_note(&chat->cli->term, "nothing was said yet");
}

static void do_evict(struct chat *chat, const char *argument)
{
    const char *to = *argument ? argument : "disk";
    if (!chat->id) {
        term_note(&chat->cli->term, "nothing was said yet");
    } else if (strcmp(to, "ram") != 0 && strcmp(to, "disk") != 0) {
        term_note(&chat->cli->term, "/evict ram or /evict disk");
    } else {
        turn_cool_down(chat->cli->net);
        chat->code = cli_evict(chat->cli, chat->id, to);
        if (chat->code == CLI_OK)
            term_note(&chat->cli->term, "put away %s; it comes back with your next message",
                      strcmp(to, "ram") == 0 ? "in RAM" : "on disk");
    }
}

static void do_receipt(struct chat *chat, const char *argument)
{
    if (strcmp(argument, "on") == 0 || strcmp(argument, "off") == 0)
        chat->cli->receipt = argument[1] == 'n';
    else
        term_note(&chat->cli->term, "receipts are %s", chat->cli->receipt ? "on" : "off");
}

static void do_system(struct chat *chat, const char *argument)
{
    if (*argument) {
        bool none = strcmp(argument, "-") == 0 || strcmp(argument, "\"\"") == 0;
        set_string(&chat->instructions, none ? NULL : argument);
        if (chat->id)
            chat->code = cli_instruct(chat->cli, chat->id, none ? "" : argument);
        if (!chat->id || chat->code == CLI_OK)
            term_note(&chat->cli->term, "the model %s told %s%s", chat->id ? "is" : "will be", none ? "nothing" : "so",
                      chat->id ? " from now on; the history is read anew once" : "");
        return;
    }
    const char *now = chat->instructions;
    cJSON *about = NULL;
    if (chat->id) {
        struct buf path = {0};
        buf_printf(&path, "/v1/conversations/%s", chat->id);
        about = cli_call(chat->cli, "GET", path.data, NULL, &chat->code);
        const cJSON *field = json_field(about, "instructions");
        now = cJSON_IsString(field) ? field->valuestring : NULL;
        buf_free(&path);
    }
    term_note(&chat->cli->term, "%s", now && *now ? now : "the model is told nothing before the conversation");
    cJSON_Delete(about);
}

/* The text of the last answer among the last items: what was written behind the last thing said before it. NULL: told.
 * Freed by the caller. */
static char *last_answer(struct chat *chat)
{
    struct buf text = {0};
    cJSON *items = NULL, *item;
    bool said = true;
    if (chat->id && (chat->code = cli_wait_again(chat->cli)) == CLI_OK)
        items = cli_items(chat->cli, chat->id, ANSWER_ITEMS, &chat->code);
    cJSON_ArrayForEach(item, items)
    {
        bool answer = strcmp(json_string(item, "role", ""), "assistant") == 0;
        if (answer && said)
            buf_clear(&text);
        if (answer)
            text_of_item(item, &text);
        said = strcmp(json_string(item, "role", "assistant"), "assistant") != 0;
    }
    if ((items || !chat->id) && text.len == 0)
        term_note(&chat->cli->term, !cJSON_GetArraySize(items) ? "nothing was said yet" : "the last answer is empty");
    cJSON_Delete(items);
    if (text.len == 0)
        buf_free(&text);
    return text.data;
}

/* The terminal takes it to the clipboard (OSC 52), also over ssh; some are set up not to. */
static void do_copy(struct chat *chat, const char *argument)
{
    (void)argument;
    char *answer = last_answer(chat);
    if (!answer)
        return;
    if (!chat->cli->term.out_tty) {
        term_note(&chat->cli->term, "/copy wants a terminal");
    } else {
        struct buf sequence = {0};
        buf_str(&sequence, "\033]52;c;");
        text_base64(answer, strlen(answer), &sequence);
        buf_str(&sequence, "\a");
        term_write(&chat->cli->term, sequence.data, sequence.len);
        buf_free(&sequence);
        term_note(&chat->cli->term, "given to the terminal's clipboard: %zu bytes", strlen(answer));
    }
    free(answer);
}

static void do_attach(struct chat *chat, const char *argument)
{
    struct cli *c = chat->cli;
    if (strcmp(argument, "-") == 0)
        cli_detach(c);
    else if (*argument)
        chat->code = cli_attach(c, argument);
    if (c->attached.len > 0)
        term_note(&c->term, "attached to your next message: %s", c->attached_names.data);
    else if (chat->code == CLI_OK)
        term_note(&c->term, "nothing is attached; /attach FILE does that");
}

static void do_save(struct chat *chat, const char *argument)
{
    if (!*argument) {
        term_note(&chat->cli->term, "/save FILE");
        return;
    }
    char *answer = last_answer(chat);
    if (!answer)
        return;
    struct buf path = {0};
    text_path(argument, &path);
    FILE *file = fopen(path.data, "wxe");
    bool good = file && fputs(answer, file) != EOF && fputc('\n', file) != EOF;
    good = (!file || fclose(file) == 0) && good;
    if (good)
        term_note(&chat->cli->term, "saved in %s", path.data);
    else
        term_error(&chat->cli->term, "%s: %s", path.data, errno == EEXIST ? "is there already" : strerror(errno));
    chat->code = good ? CLI_OK : CLI_FAILED;
    buf_free(&path);
    free(answer);
}

static void do_set(struct chat *chat, const char *argument)
{
    struct sampling *s = &chat->cli->sampling;
    size_t len = strcspn(argument, " \t");
    char name[32];
    snprintf(name, sizeof(name), "%.*s", (int)len, argument);
    const char *value = argument + len + strspn(argument + len, " \t"), *allowed = NULL;
    struct term *t = &chat->cli->term;
    bool on = strcmp(value, "on") == 0;
    if (strcmp(name, "markdown") == 0 && (on || strcmp(value, "off") == 0)) {
        t->markdown = on;
    } else if (strcmp(name, "markdown") == 0) {
        term_note(t, "/set markdown on or off");
        chat->code = CLI_USAGE;
        return;
    } else if (*argument && !sampling_set(s, name, value, &allowed)) {
        term_note(t, allowed ? "/set %s %s (or -, for the daemon's own)" : "/set markdown, %s",
                  allowed ? name : sampling_names, allowed);
        chat->code = CLI_USAGE;
        return;
    }
    struct buf text = {0};
    sampling_text(s, &text);
    term_note(t, "%s, markdown %s", text.data, t->markdown && t->live ? "on" : "off");
    buf_free(&text);
}

/* A text that a person writes in $VISUAL or $EDITOR, which begins with `text`. Whether there is one; otherwise the
 * reason was told. */
static bool compose(struct chat *chat, const char *text, struct buf *out)
{
    struct term *t = &chat->cli->term;
    if (!t->in_tty) {
        term_note(t, "the editor wants a terminal");
        return false;
    }
    term_loud();
    int rc = edit_text(text, out);
    while (out->len > 0 && out->data[out->len - 1] == '\n')
        out->data[--out->len] = '\0';
    if (rc)
        term_error(t, "the editor: %s", strerror(-rc));
    else if (is_blank(out))
        term_note(t, "nothing to send");
    return !rc && !is_blank(out) && cli_sendable(chat->cli, "this message", out->data, out->len);
}

static void do_edit(struct chat *chat, const char *argument)
{
    struct buf message = {0};
    if (compose(chat, argument, &message)) {
        line_reader_remember(chat->reader, message.data);
        say(chat, message.data);
    }
    buf_free(&message);
}

static void do_regenerate(struct chat *chat, const char *argument)
{
    struct exchange last;
    (void)argument;
    if (!exchange_find(chat->cli, chat->id, &last, &chat->code))
        return;
    if (last.asked.len > 0)
        run_turn(chat, last.asked.data, last.parent, NULL);
    else
        term_error(&chat->cli->term, "the message to be answered again was not found");
    exchange_free(&last);
}

/* The last answer, if it was cut. */
static void do_continue(struct chat *chat, const char *argument)
{
    (void)argument;
    cJSON *response = cli_last_response(chat->cli, chat->id, &chat->code);
    if (response && strcmp(json_string(response, "status", ""), "incomplete") != 0)
        term_note(&chat->cli->term, "the last answer was not cut");
    else if (response)
        run_turn(chat, NULL, NULL, json_string(response, "id", ""));
    cJSON_Delete(response);
}

static void do_undo(struct chat *chat, const char *argument)
{
    struct exchange last;
    (void)argument;
    if (!exchange_find(chat->cli, chat->id, &last, &chat->code))
        return;
    if ((chat->code = cli_move_head(chat->cli, chat->id, last.parent)) == CLI_OK)
        term_note(&chat->cli->term, "taken back: your next message follows what came before");
    exchange_free(&last);
}

/* The last message put otherwise, and answered; or, `answer`, the last answer, which the model has as its own then. */
static void put_otherwise(struct chat *chat, const char *argument, bool answer)
{
    struct cli *c = chat->cli;
    struct exchange last;
    struct buf text = {0};
    if (!exchange_find(c, chat->id, &last, &chat->code))
        return;
    const struct buf *old = answer ? &last.answered : &last.asked;
    bool given = *argument != '\0', have = given;
    if (answer && cJSON_GetArraySize(last.asked_items) >= ADDED_ITEMS) {
        term_note(&c->term, "what was said here has too many parts for its answer to be put otherwise");
        have = false;
    } else if (given) {
        buf_str(&text, argument);
    } else {
        have = compose(chat, old->len > 0 ? old->data : "", &text);
    }
    if (have && !answer) {
        if (!given)
            line_reader_remember(chat->reader, text.data);
        run_turn(chat, text.data, last.parent, NULL);
    } else if (have) {
        chat->code = exchange_correct(c, chat->id, &last, text.data);
        if (chat->code == CLI_OK)
            term_note(&c->term, "the answer is this now: your next message follows it");
    }
    buf_free(&text);
    exchange_free(&last);
}

static void do_reword(struct chat *chat, const char *argument)
{
    put_otherwise(chat, argument, false);
}

static void do_correct(struct chat *chat, const char *argument)
{
    put_otherwise(chat, argument, true);
}

static void do_status(struct chat *chat, const char *argument)
{
    (void)argument;
    chat->code = cli_status(chat->cli);
}

static void do_branches(struct chat *chat, const char *argument)
{
    struct term *t = &chat->cli->term;
    cJSON *ends = NULL;
    if (!chat->id) {
        term_note(t, "nothing was said yet");
        return;
    }
    if (!*argument) {
        chat->code = cli_branches(chat->cli, chat->id, &ends);
        if (ends) {
            cJSON_Delete(chat->ends);
            chat->ends = ends;
        }
        return;
    }
    char *rest;
    long number = strtol(argument, &rest, 10);
    const cJSON *end = *rest ? NULL : json_numbered(chat->ends, number);
    if (!cJSON_IsString(end)) {
        term_note(t, "/branches showed no number %s", argument);
        return;
    }
    chat->code = cli_move_head(chat->cli, chat->id, end->valuestring);
    if (chat->code == CLI_OK) {
        char *id = text_copy(chat->id);
        chat->code = enter(chat, id);
        free(id);
    }
}

/* Goes on in another conversation, which `make` makes of this one. */
static void change_to(struct chat *chat, const char *title, const char *told,
                      char *(*make)(struct cli *c, const char *id, const char *title, int *code))
{
    if (!chat->id) {
        term_note(&chat->cli->term, "nothing was said yet");
        return;
    }
    char *made = make(chat->cli, chat->id, title, &chat->code);
    if (made) {
        leave(chat);
        chat->id = made;
        term_note(&chat->cli->term, "this is a %s now; the other one stays", told);
    }
}

static void do_fork(struct chat *chat, const char *argument)
{
    change_to(chat, argument, "copy", cli_fork);
}

static void do_compact(struct chat *chat, const char *argument)
{
    change_to(chat, argument, "summary", cli_compact);
}

static void do_quit(struct chat *chat, const char *argument)
{
    (void)argument;
    chat->quit = true;
}

static const struct {
    const char *name;
    void (*run)(struct chat *chat, const char *argument);
} slash_commands[] = {
    {"help", do_help},       {"new", do_new},       {"list", do_list},         {"resume", do_resume},
    {"rename", do_rename},   {"delete", do_delete}, {"show", do_show},         {"regenerate", do_regenerate},
    {"undo", do_undo},       {"system", do_system}, {"evict", do_evict},       {"receipt", do_receipt},
    {"set", do_set},         {"attach", do_attach}, {"copy", do_copy},         {"save", do_save},
    {"edit", do_edit},       {"status", do_status}, {"quit", do_quit},         {"exit", do_quit},
    {"?", do_help},          {"fork", do_fork},     {"branches", do_branches}, {"continue", do_continue},
    {"compact", do_compact}, {"reword", do_reword}, {"correct", do_correct},
};

#define N_COMMANDS (sizeof(slash_commands) / sizeof(*slash_commands))

/* The command that a line without its slash begins with; N_COMMANDS: none. */
static size_t find_command(const char *line)
{
    size_t len = strcspn(line, " \t\r\n"), i = 0;
    while (i < N_COMMANDS && !(strlen(slash_commands[i].name) == len && memcmp(slash_commands[i].name, line, len) == 0))
        i++;
    return i;
}

static void run_command(struct chat *chat, const char *line)
{
    size_t len = strcspn(line, " \t\n"), found = find_command(line);
    const char *argument = line + len + strspn(line + len, " \t\n");
    if (found < N_COMMANDS) {
        interrupts_clear();
        slash_commands[found].run(chat, argument);
        interrupts_clear();
        return;
    }
    term_note(&chat->cli->term, "there is no /%.*s; /help lists what there is, // begins a message", (int)len, line);
    chat->code = CLI_USAGE;
}

const char *chat_command_name(size_t i)
{
    return i < N_COMMANDS && strcmp(slash_commands[i].name, "?") != 0 ? slash_commands[i].name : NULL;
}

const char *chat_file_argument(const char *line)
{
    static const char *const with_file[] = {"/attach ", "/save "};
    for (size_t i = 0; i < sizeof(with_file) / sizeof(*with_file); i++)
        if (strncmp(line, with_file[i], strlen(with_file[i])) == 0)
            return line + strlen(with_file[i]) + strspn(line + strlen(with_file[i]), " ");
    return NULL;
}

/* ---- reading messages ----------------------------------------------------------------------------------------------
 */

/* Puts a message, which may be several lines, into `message`. 1, 0 at the end of input, -EINTR: Ctrl-C where nothing
 * was typed, -ECANCELED: Ctrl-C, and all that was typed of the message is dropped. */
static int read_message(struct chat *chat, struct buf *message)
{
    struct buf line = {0};
    buf_clear(message);
    int rc = line_reader_read(chat->reader, PROMPT, &line);
    bool block = rc == 1 && strncmp(line.data, "\"\"\"", 3) == 0;
    size_t from = block ? 3 : 0;
    for (bool more = rc == 1; more;) {
        const char *part = line.data + from;
        size_t len = line.len - from;
        if (block) {
            more = !(len >= 3 && memcmp(part + len - 3, "\"\"\"", 3) == 0);
            len -= more ? 0 : 3;
        } else {
            more = len > 0 && part[len - 1] == '\\';
            len -= more ? 1 : 0;
        }
        buf_add(message, part, len);
        if (!more)
            break;
        if (message->len > 0)
            buf_str(message, "\n");
        buf_clear(&line);
        from = 0;
        int next = line_reader_read(chat->reader, PROMPT_MORE, &line);
        if (next < 0)
            rc = -ECANCELED;
        more = next == 1;
    }
    if (rc == -ECANCELED)
        buf_clear(message);
    buf_free(&line);
    while (message->len > 0 && message->data[message->len - 1] == '\n')
        message->data[--message->len] = '\0';
    return rc;
}

/* Does what a message asks for. */
static void take_message(struct chat *chat, const struct buf *message)
{
    struct cli *c = chat->cli;
    const char *text = message->data;
    if (is_blank(message))
        return;
    if (!cli_sendable(c, "this message", text, message->len)) {
        chat->code = CLI_FAILED;
        return;
    }
    chat->code = CLI_OK;
    line_reader_remember(chat->reader, text);
    if (text[0] == '/' && text[1] != '/')
        run_command(chat, text + 1);
    else
        say(chat, text[0] == '/' ? text + 1 : text);
}

/* What is piped in is one message, unless a line of it is a command: then its lines are taken as if they were typed.
 * Whether there are lines to read. */
static bool take_input(struct chat *chat)
{
    struct buf text = {0};
    int code = cli_read_all(chat->cli, &text);
    bool lines = false;
    for (const char *line = text.data; code == CLI_OK && line && !lines;
         line = strchr(line, '\n'), line += line != NULL)
        lines = *line == '/' && find_command(line + 1) < N_COMMANDS;
    if (lines)
        line_reader_feed(chat->reader, text.data, text.len);
    while (text.len > 0 && text.data[text.len - 1] == '\n')
        text.data[--text.len] = '\0';
    if (code == CLI_OK && !lines)
        take_message(chat, &text);
    else if (code != CLI_OK)
        chat->code = code;
    buf_free(&text);
    return lines;
}

/* Reads and does, until the person leaves or, without a terminal, the input ends. Returns the exit code. */
static int converse(struct chat *chat, bool resumed)
{
    struct term *t = &chat->cli->term;
    struct buf message = {0};
    bool stopped = false; /* Ctrl-C was the last thing pressed */
    int failed = chat->code;
    while (!chat->quit && t->out_error == 0 && failed != CLI_NO_DAEMON && !(resumed && !chat->id && failed)) {
        int rc = read_message(chat, &message);
        if (rc == -ECANCELED) {
            stopped = false;
            continue;
        }
        if (rc == -EINTR && !stopped && t->in_tty) {
            stopped = true;
            term_note(t, "Ctrl-C again, or /quit, leaves");
            continue;
        }
        if (rc != 1)
            break;
        chat->code = CLI_OK;
        take_message(chat, &message);
        stopped = chat->code == CLI_CUT_SHORT || chat->code == CLI_INTERRUPTED;
        if (chat->code != CLI_OK && !t->in_tty)
            failed = chat->code;
    }
    buf_free(&message);
    return failed;
}

int chat_run(struct cli *c, const char *id)
{
    struct chat chat = {.cli = c, .code = CLI_OK};
    chat.reader = line_reader_open(&c->term, c->net);
    if (!chat.reader) {
        term_error(&c->term, "the terminal could not be set up");
        return CLI_FAILED;
    }
    line_reader_on_return(chat.reader, come_back, &chat);
    set_string(&chat.instructions, c->instructions);
    if (id && c->instructions)
        chat.code = cli_instruct(c, id, c->instructions);
    if (id && chat.code == CLI_OK)
        chat.code = enter(&chat, id);
    else if (!id && c->term.in_tty)
        term_note(&c->term, "Type a message; /help lists the commands, /quit leaves.");
    int failed = chat.code;
    if (c->term.in_tty || (failed == CLI_OK && take_input(&chat)))
        failed = converse(&chat, id != NULL);
    else if (failed == CLI_OK)
        failed = chat.code;
    if (chat.id && c->term.in_tty && failed != CLI_NO_DAEMON) {
        struct buf name = {0};
        cli_name(c, chat.id, &name);
        term_note(&c->term, "`%s resume` goes on with %s", program_invocation_name, name.data);
        buf_free(&name);
    }
    line_reader_close(chat.reader);
    cJSON_Delete(chat.listed);
    cJSON_Delete(chat.ends);
    free(chat.id);
    free(chat.instructions);
    return failed;
}
