/* cli_internal.h - the parts of convo, the command-line client.
 *
 * main.c reads the command line (sampling.c its numbers); commands.c holds the commands that ask once and print; chat.c
 * is the conversation at the terminal; turn.c runs one turn and follows its events; net.c speaks HTTP and WebSocket;
 * term.c is the terminal, answer.c what answers look like while they come, markdown.c their form; edit.c calls an
 * editor, attach.c reads files that go with a message, complete.c says what Tab adds; text.c holds what only works on
 * text.
 *
 * One thread. Functions return 0 or a negative errno value; `err` then says why, for a person. Memory that runs out
 * ends the program: a client has nothing to save.
 */
#ifndef CONVO_CLI_INTERNAL_H
#define CONVO_CLI_INTERNAL_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cJSON.h>

#define CLI_DEFAULT_URL "http://127.0.0.1:8642"
#define CLI_ERR_SIZE    512
#define CLI_REQUEST_MAX (16u << 20) /* bytes: of more the daemon reads none, and its reason rarely arrives */

/* Exit codes, as the man page tells them. */
enum {
    CLI_OK = 0,
    CLI_FAILED = 1,    /* the daemon refused or failed */
    CLI_USAGE = 2,     /* the command line is wrong */
    CLI_NO_DAEMON = 3, /* nothing answers at the URL */
    CLI_CUT_SHORT = 4, /* the answer is incomplete */
    CLI_INTERRUPTED = 130,
};

/* ---- text.c --------------------------------------------------------------------------------------------------------
 */

/* Grows as needed; always ends in a NUL that `len` does not count; {0} is empty and `data` may then be NULL. */
struct buf {
    char *data;
    size_t len, cap;
};
void buf_add(struct buf *b, const char *data, size_t len);
void buf_str(struct buf *b, const char *text);
void buf_printf(struct buf *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
void buf_clear(struct buf *b); /* keeps the memory */
void buf_free(struct buf *b);

/* Ends the program. */
void out_of_memory(void) __attribute__((noreturn));

/* strdup() that does not return NULL. */
char *text_copy(const char *text);

/* Object as one line of JSON; the object is freed. Never NULL. */
char *text_json(cJSON *object);

/* How many bytes at the start are UTF-8 without a NUL: `len` when all are. */
size_t text_sound(const char *text, size_t len);

/* A title from the first line of a message that has something in it: at most `max` characters, cut at a character. */
void text_title(const char *message, size_t max_chars, struct buf *out);

/* Appends text without what would steer a terminal: control characters except newline and tab, and invalid UTF-8. */
void text_printable(const char *text, size_t len, struct buf *out);
/* Appends JSON in which that stands as escapes, which mean the same. */
void text_json_printable(const char *json, struct buf *out);

/* A string or number field of an object; absent or of another kind: fallback. */
const char *json_string(const cJSON *object, const char *name, const char *fallback);
double json_number(const cJSON *object, const char *name, double fallback);
/* A field of an object or, when that lacks it, of the object's "convod" part. NULL: in neither. */
const cJSON *json_field(const cJSON *object, const char *name);
/* What a person calls number `number` of an array: they count from 1. NULL: there is none. */
const cJSON *json_numbered(const cJSON *array, long number);

/* One line about a turn from its receipt, such as
 * "812 tokens kept (hot), 23 prefilled · 0.21 s to first token · 25 tok/s". */
void text_receipt(const cJSON *receipt, struct buf *out);
/* What a warm-up brought back before the turn, from its receipt: "before you wrote: 556 from disk". Nothing where it
 * brought nothing. */
void text_warm_up(const cJSON *receipt, struct buf *out);

/* "412 bytes", "1.5 MiB", "6 GiB". */
void text_bytes(double bytes, struct buf *out);
/* How many columns of a terminal a text without line breaks takes, or a few more. */
int text_columns(const char *text, size_t len);
/* A line's text, cut at a character so that it takes no more than these columns. */
void text_cut(const char *text, int columns, struct buf *out);
/* How many bytes of a text's head go on one line of these columns: as many words as fit, at least a character, up to
 * the first newline; without the spaces at the end. *next: where the next line begins. */
size_t text_fit(const char *text, size_t len, int columns, size_t *next);
/* The same for code: as many characters as fit, at least one; the text holds no newline. */
size_t text_fill(const char *text, size_t len, int columns);
/* Tabs as spaces, to every eighth column. */
void text_untab(const char *text, size_t len, struct buf *out);
/* The text, broken between words into lines of these columns, each with a newline. */
void text_lines(const char *text, size_t len, int columns, struct buf *out);

void text_base64(const char *text, size_t len, struct buf *out);

/* Where a turn stands, from a progress event: "restoring 256 of 812 tokens". */
void text_progress(const char *stage, double done, double total, struct buf *out);

/* The text parts of an item (a message) or of a response's output, one after the other. */
void text_of_item(const cJSON *item, struct buf *out);
void text_of_output(const cJSON *response, struct buf *out);

/* ---- net.c ---------------------------------------------------------------------------------------------------------
 */

struct net;

/* url: http://HOST[:PORT][/PREFIX] or https://...; token: NULL or the bearer token. Connects nothing yet. -EINVAL. */
int net_open(const char *url, const char *token, struct net **out, char *err, size_t err_size);
void net_close(struct net *n);
const char *net_url(const struct net *n);

struct net_reply {
    int status; /* HTTP */
    struct buf body;
};
/* One request and its whole answer; body NULL: none. -ECONNREFUSED: nothing answers there; -EINTR: Ctrl-C;
 * -EPIPE: the connection broke; -EMSGSIZE. on_data: NULL, or is given the answer's pieces instead of `reply->body`
 * when the status is 200, and ends the request by returning false. */
int net_http(struct net *n, const char *method, const char *path, const char *body, struct net_reply *reply,
             bool (*on_data)(void *arg, const char *data, size_t len), void *arg, char *err, size_t err_size);

/* From now on an answer may take as long as it takes: the model works on it. Otherwise it has two minutes to begin. */
void net_patience(struct net *n, bool patient);

/* The WebSocket to /v1/responses. Opening an open one is fine. Errors as net_http(); -EACCES: something answers there
 * and refuses. */
int net_ws_open(struct net *n, char *err, size_t err_size);
bool net_ws_is_open(const struct net *n);
/* The code with which the daemon closed the socket that was open last; 0: none. */
int net_ws_close_code(const struct net *n, const char **reason);
void net_ws_close(struct net *n);
/* Queues a message. -EPIPE: not open. */
int net_ws_send(struct net *n, const char *text);
/* The next message (freed by the caller), or NULL when none came within wait_ms or the socket is closed or Ctrl-C was
 * pressed. */
char *net_ws_next(struct net *n, int wait_ms);

/* Whether a message is there already. */
bool net_ws_has_next(const struct net *n);

/* How many warm-ups were sent on this socket whose end was not read yet: their events come before those of the next
 * turn. */
int *net_ws_warm_ups(struct net *n);

/* While a person types: waits until `fd` can be read, serving the socket meanwhile. 0, or -EINTR: signals_pending(). */
int net_wait_fd(struct net *n, int fd);

/* Waits a moment (and serves the socket). */
void net_pause(struct net *n, int wait_ms);

/* ---- term.c --------------------------------------------------------------------------------------------------------
 */

/* Ctrl-C is counted from when this is called; a read or wait that it interrupts ends with EINTR. */
void interrupts_watch(void);
int interrupts_pending(void);
void interrupts_clear(void);
/* Whether there is something that ends a wait for the person: Ctrl-C, or another signal while a line is edited. */
bool signals_pending(void);

struct term {
    bool in_tty, out_tty, err_tty;
    bool live;             /* stdout is a terminal whose lines can be written anew */
    bool colour;           /* where it is a terminal: bold, dim and colours */
    bool italic;           /* the terminal has slanted letters; otherwise a line below stands for them */
    bool markdown;         /* answers are laid out, where `live` */
    bool status_shown;     /* the transient line stands on the screen */
    bool mid_line;         /* the answer's last character was no newline */
    int out_error;         /* errno of the first write to stdout that failed, or 0 */
    struct answer *answer; /* NULL: none has come yet */
};
void term_open(struct term *t);
/* The terminal's size; 80 and 24 where it is not known. */
int term_columns(void);
int term_rows(void);
/* From now on what is typed is kept for who reads next, and not shown; a terminal alone has that. */
void term_quiet(const struct term *t);
/* As the terminal was found, for another program that uses it: until a line is read or term_quiet(). */
void term_loud(void);
/* Whether the program was stopped and went on since this was asked last: the cursor is somewhere else. */
bool term_went_on(void);
/* A line that the next one replaces; only on a terminal. */
void term_status(struct term *t, const char *text);
void term_status_clear(struct term *t);
/* Everything that goes to stdout, but for the line editor's own, goes through here: at once, and a failure is kept in
 * `out_error`. */
void term_write(struct term *t, const char *text, size_t len);
/* A remark beside the conversation, dim on a terminal: to stderr. */
void term_note(struct term *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
void term_error(struct term *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Reads lines for the chat: with editing and history on a terminal. */
struct line_reader;
struct line_reader *line_reader_open(struct term *t, struct net *n);
void line_reader_close(struct line_reader *r);
/* Adds a line without its newline (pasted ones may hold some) to `line`. 1, 0 at the end of input, -EINTR: Ctrl-C on an
 * empty line, -ECANCELED: on one that is not empty, which is dropped. Between two calls a terminal keeps what is typed
 * for the next one, and does not show it. */
int line_reader_read(struct line_reader *r, const char *prompt, struct buf *line);
/* Has `returned` called when somebody types after having been away for AWAY_SECONDS or more. */
#define AWAY_SECONDS 10
void line_reader_on_return(struct line_reader *r, void (*returned)(void *arg), void *arg);
/* From now on the lines are those of a text; there is no terminal to read from. */
void line_reader_feed(struct line_reader *r, const char *text, size_t len);
void line_reader_remember(struct line_reader *r, const char *message);

/* ---- answer.c ------------------------------------------------------------------------------------------------------
 */

struct answer;

/* A piece of an answer: written as it is and at once, but on a terminal made harmless, and seen when it is shown. */
void term_answer(struct term *t, const char *text, size_t len);
/* Shows on a terminal what has come: to be called when nothing more can be read at once. */
void term_answer_show(struct term *t);
/* Shows the rest of an answer, and ends its last line. */
void term_answer_end(struct term *t);
/* The line that the cursor is in was written over. */
void term_answer_covered(struct term *t);

/* ---- markdown.c ----------------------------------------------------------------------------------------------------
 */

struct layout {
    int columns;
    bool colour, italic;
    int table_rows; /* by how many of its rows a table's columns are as wide as they are; 0: by all */
};

/* Appends a piece of Markdown (made printable) as lines for a terminal, each with its newline and no longer than the
 * columns. What would leave nothing to see is appended as it is. */
void markdown_lines(const char *text, size_t len, const struct layout *how, struct buf *out);
/* The same for a line of code (with or without its newline), and for the line above (with the language) or below it. */
void markdown_code(const char *text, size_t len, const struct layout *how, struct buf *out);
void markdown_rule(const char *language, size_t len, const struct layout *how, struct buf *out);

/* Has a person edit a text in $VISUAL, $EDITOR or vi. Negative: -errno. */
int edit_text(const char *text, struct buf *out);

/* ---- turn.c --------------------------------------------------------------------------------------------------------
 */

struct sampling {
    double temperature, top_p; /* negative: the daemon's own */
    int max_tokens;            /* 0: the daemon's own */
    int thinking_tokens;       /* negative: the daemon's own */
    const char *effort;        /* static; NULL: the daemon's own, as of what the context keeps of thinking: */
    const char *context;
    const char *truncation; /* static; NULL: the daemon's own */
    bool has_seed;
    int64_t seed;
};

/* Sets one by its option's name from text, "-": the daemon's own. False: *allowed says what it may be, NULL: there is
 * none of that name. */
bool sampling_set(struct sampling *s, const char *name, const char *value, const char **allowed);
/* Those that there are, for a person. */
extern const char sampling_names[];
/* None of them is set. */
void sampling_init(struct sampling *s);
/* All of them, in a line. */
void sampling_text(const struct sampling *s, struct buf *out);

struct turn {
    const char *text;         /* what the user says */
    const char *conversation; /* NULL: none */
    const char *parent;       /* NULL: the conversation's head; "": its start; else a response id */
    const char *continues;    /* the response whose answer goes on, and nothing is said; NULL: none */
    const char *instructions; /* NULL: the conversation's own */
    const char *model;        /* NULL: whatever is loaded */
    const struct sampling *sampling;
    bool store;
    bool print; /* write the answer as it comes */
};

enum turn_end {
    TURN_COMPLETED,
    TURN_INCOMPLETE,
    TURN_FAILED, /* `error` says why; nothing of it was kept */
    TURN_LOST,   /* the connection broke and the answer could not be had; `error` */
};

struct turn_result {
    enum turn_end end;
    char *response_id; /* NULL: never known */
    cJSON *response;   /* the terminal event's response; NULL when there is none */
    char *code;        /* API error code, or NULL */
    char *error;       /* for a person, or NULL */
    int rc;            /* TURN_FAILED, TURN_LOST: negative errno value of the network, or 0 */
    struct buf answer;
    cJSON *warm_up; /* receipt of the conversation's warm-up whose end was read before this turn's events; NULL: none */
};

/* Runs one turn. Ctrl-C stops the answer; a second one leaves it behind. */
void turn_run(struct net *n, struct term *t, const struct turn *turn, struct turn_result *result);
void turn_result_free(struct turn_result *r);

/* Tells the daemon that a conversation is about to go on, so that it is put in place while the person types. */
void turn_warm_up(struct net *n, const char *conversation);
/* Ends what turn_warm_up() began, where it still goes on: nothing else can be done to the conversation meanwhile. */
void turn_cool_down(struct net *n);

/* ---- commands.c ----------------------------------------------------------------------------------------------------
 */

struct cli {
    struct net *net;
    struct term term;
    struct sampling sampling;
    const char *model;
    const char *instructions;
    bool receipt, json;
    struct buf attached, attached_names; /* files for the next message: what goes behind it, and the names with sizes */
};

/* A request whose answer is JSON (freed by the caller; NULL on failure). Failures are told to the person; *code is the
 * exit code then. body is freed. */
cJSON *cli_call(struct cli *c, const char *method, const char *path, cJSON *body, int *code);

/* Prints an object, which is freed, as a line of JSON. */
int cli_print_json(struct cli *c, cJSON *object);

/* Appends all of standard input. CLI_OK or an exit code (told to the person, but for an interrupt). */
int cli_read_all(struct cli *c, struct buf *out);

/* Whether the daemon can be sent this text; what is in its way is told, `what` naming the text. */
bool cli_sendable(struct cli *c, const char *what, const char *text, size_t len);

/* Waits, showing progress, until the model is loaded. CLI_OK or an exit code (told to the person). */
int cli_wait_ready(struct cli *c);
/* The same where the socket is closed: the daemon may have been started again, and load. */
int cli_wait_again(struct cli *c);

/* Tells the person how the turn ended: its error, or why the answer is cut and its receipt. Returns the exit code. */
int cli_turn_outcome(struct cli *c, const struct turn_result *r);

/* A new conversation; *id is freed by the caller. */
int cli_create(struct cli *c, const char *first_message, const char *instructions, char **id);
/* The id of the conversation used last, leaving out `except` (may be NULL). NULL: there is none (*code is CLI_OK), or a
 * failure, which was told. */
char *cli_latest(struct cli *c, const char *except, int *code);
/* Prints the conversations, numbered if `numbers`; ids (if not NULL) gets them as an array of strings. */
int cli_list(struct cli *c, const char *query, bool numbers, cJSON **ids);
/* What a person knows a conversation by: its title in quotes, or "this conversation" where it has none. */
void cli_name(struct cli *c, const char *id, struct buf *out);
/* Prints a conversation: all of it, each item with its number if `numbers`, or only its last_items (if > 0). */
int cli_show(struct cli *c, const char *id, int last_items, bool numbers);
/* Its items, oldest first, all or the last ones (if last_items > 0). NULL: a failure, which was told. */
cJSON *cli_items(struct cli *c, const char *id, int last_items, int *code);
int cli_rename(struct cli *c, const char *id, const char *title);
int cli_instruct(struct cli *c, const char *id, const char *instructions);
int cli_delete(struct cli *c, const char *id);
int cli_evict(struct cli *c, const char *id, const char *to);
int cli_status(struct cli *c);

/* ---- branches.c ----------------------------------------------------------------------------------------------------
 */

/* Prints the ends of a conversation's branches, numbered, the head's with a star; *ids gets them as an array of
 * strings.
 */
int cli_branches(struct cli *c, const char *id, cJSON **ids);
/* The next message follows this response ("": none). */
int cli_move_head(struct cli *c, const char *id, const char *response);
/* Another conversation with what this one holds: its id, freed by the caller. NULL: a failure, which was told. title:
 * "" is that of this one; "#N" before it: only what it holds up to the item that cli_show() gives this number. */
char *cli_fork(struct cli *c, const char *id, const char *title, int *code);
/* The same with a summary of it, which the model writes, and its instructions. */
char *cli_compact(struct cli *c, const char *id, const char *title, int *code);

/* A POST on which the model works, else as cli_call(), when what turn_warm_up() began is over; what it does is told
 * meanwhile. */
cJSON *cli_call_model(struct cli *c, const char *what, const char *path, cJSON *body, int *code);

/* ---- exchange.c ----------------------------------------------------------------------------------------------------
 */

/* The response that the next message of a conversation (NULL: not made yet) would follow, freed by the caller. NULL:
 * there is none, or a failure, which was told. */
cJSON *cli_last_response(struct cli *c, const char *id, int *code);

struct exchange {
    char *parent;               /* what the message followed: "" = it was the first */
    cJSON *asked_items;         /* what it was said with */
    struct buf asked, answered; /* texts; empty: there is none */
};

/* The last message of a conversation and its answer. False: there is none, or a failure, which was told. */
bool exchange_find(struct cli *c, const char *id, struct exchange *x, int *code);
void exchange_free(struct exchange *x);
/* Another answer stands in the place of that one, beside it; takes what was asked out of x. An exit code. */
int exchange_correct(struct cli *c, const char *id, struct exchange *x, const char *answer);

/* ---- attach.c ------------------------------------------------------------------------------------------------------
 */

/* A file's name as a person gave it, to be opened: a leading ~/ is the home folder; quotes around it and spaces behind
 * it are not part of it. */
void text_path(const char *name, struct buf *out);
/* Attaches a text file to the next message. What keeps it from being sent is told. CLI_OK or an exit code. */
int cli_attach(struct cli *c, const char *name);
/* Nothing is attached any more. */
void cli_detach(struct cli *c);

/* ---- complete.c ----------------------------------------------------------------------------------------------------
 */

/* rest: what a line (up to the cursor) goes on with when there is one way; offered: else, the names to choose from. */
void complete_line(const char *line, struct buf *rest, struct buf *offered);

/* ---- chat.c --------------------------------------------------------------------------------------------------------
 */

/* Names of the commands that begin with a slash, i from 0 on; NULL behind the last. */
const char *chat_command_name(size_t i);
/* Where in a line the file's name begins that its command takes; NULL: it takes none. */
const char *chat_file_argument(const char *line);
/* The conversation at the terminal; id NULL: a new one. Returns the exit code. */
int chat_run(struct cli *c, const char *id);

#endif
