/* main.c - convo's command line. */
#include <errno.h>
#include <getopt.h>
#include <langinfo.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clients/cli/cli_internal.h"

#define TOKEN_MAX_SIZE 4096
#define VERSION_TEXT   "convo " CONVOD_VERSION "\n"

struct options {
    const char *url, *token_file, *conversation, *instructions, *model, *to;
    struct sampling sampling;
    bool json, receipt, no_receipt, markdown, no_markdown, keep, go_on;
};

static const char help_text[] = "Usage: convo [OPTION...] [COMMAND]\n"
                                "Chat with a language model that convod runs on your own machine.\n"
                                "\n"
                                "Commands:\n"
                                "  chat              begin a conversation; so does convo without a command\n"
                                "  resume [ID]       go on with a conversation, the latest when no ID is given\n"
                                "  ask TEXT...       one question, one answer; what is piped in follows it\n"
                                "  list [WORD]       your conversations, or those with WORD in the title\n"
                                "  show ID           a conversation from its start\n"
                                "  rename ID TITLE   give a conversation a title\n"
                                "  delete ID...      delete conversations for good\n"
                                "  evict ID          put a conversation away until it goes on (--to ram|disk)\n"
                                "  status            the daemon's state\n"
                                "\n"
                                "Options:\n"
                                "  -u, --url URL          where convod is (CONVOD_URL; " CLI_DEFAULT_URL ")\n"
                                "      --token-file FILE  the file with your token (or CONVOD_TOKEN)\n"
                                "  -s, --system TEXT      what the model is told before the conversation\n"
                                "  -c, --conversation ID  ask: within this conversation\n"
                                "  -f, --file FILE        a text file that goes with the (first) message\n"
                                "      --continue         ask: within the latest conversation\n"
                                "      --keep             ask: begin a conversation that can be resumed\n"
                                "      --json             print the daemon's JSON\n"
                                "      --to TIER          evict: ram or disk (disk)\n"
                                "      --temperature X, --top-p X, --seed N, --max-tokens N\n"
                                "                         how answers are drawn, and how long they may be\n"
                                "      --effort WORD, --thinking-tokens N, --thinking-context WORD\n"
                                "                         how much is thought, and what later turns have of it\n"
                                "      --truncation WORD  auto: where the context is full its oldest turns go\n"
                                "  -m, --model NAME       insist on this model\n"
                                "      --receipt, --no-receipt\n"
                                "                         the line about each turn (on in a chat at a terminal)\n"
                                "      --markdown, --no-markdown\n"
                                "                         lay answers out (on at a terminal without NO_COLOR)\n"
                                "  -h, --help             this text\n"
                                "  -V, --version          the version\n"
                                "\n"
                                "Exit status: 0 done; 1 the daemon refused or failed; 2 wrong usage; 3 no daemon\n"
                                "answers; 4 the answer was cut short; 130 interrupted.\n";

enum {
    OPT_TOKEN_FILE = 256,
    OPT_CONTINUE,
    OPT_KEEP,
    OPT_JSON,
    OPT_TO,
    OPT_SAMPLING,
    OPT_RECEIPT,
    OPT_NO_RECEIPT,
    OPT_MARKDOWN,
    OPT_NO_MARKDOWN,
};

static const struct option long_options[] = {
    {"url", required_argument, NULL, 'u'},
    {"token-file", required_argument, NULL, OPT_TOKEN_FILE},
    {"system", required_argument, NULL, 's'},
    {"conversation", required_argument, NULL, 'c'},
    {"file", required_argument, NULL, 'f'},
    {"continue", no_argument, NULL, OPT_CONTINUE},
    {"keep", no_argument, NULL, OPT_KEEP},
    {"json", no_argument, NULL, OPT_JSON},
    {"to", required_argument, NULL, OPT_TO},
    {"temperature", required_argument, NULL, OPT_SAMPLING},
    {"top-p", required_argument, NULL, OPT_SAMPLING},
    {"seed", required_argument, NULL, OPT_SAMPLING},
    {"max-tokens", required_argument, NULL, OPT_SAMPLING},
    {"effort", required_argument, NULL, OPT_SAMPLING},
    {"thinking-tokens", required_argument, NULL, OPT_SAMPLING},
    {"thinking-context", required_argument, NULL, OPT_SAMPLING},
    {"truncation", required_argument, NULL, OPT_SAMPLING},
    {"model", required_argument, NULL, 'm'},
    {"receipt", no_argument, NULL, OPT_RECEIPT},
    {"no-receipt", no_argument, NULL, OPT_NO_RECEIPT},
    {"markdown", no_argument, NULL, OPT_MARKDOWN},
    {"no-markdown", no_argument, NULL, OPT_NO_MARKDOWN},
    {"help", no_argument, NULL, 'h'},
    {"version", no_argument, NULL, 'V'},
    {NULL, 0, NULL, 0},
};

static int usage(const char *what, const char *which)
{
    fprintf(stderr, "convo: %s%s%s (convo --help tells more)\n", what, which ? " " : "", which ? which : "");
    return CLI_USAGE;
}

/* The token from its file, without the newline. NULL: told. */
static char *read_token(const char *path)
{
    char text[TOKEN_MAX_SIZE + 1];
    FILE *file = fopen(path, "re");
    if (!file) {
        fprintf(stderr, "convo: %s: %s\n", path, strerror(errno));
        return NULL;
    }
    size_t len = fread(text, 1, sizeof(text), file);
    bool failed = ferror(file);
    fclose(file);
    while (len > 0 && strchr(" \t\r\n", text[len - 1]))
        len--;
    if (failed || len == 0 || len > TOKEN_MAX_SIZE || memchr(text, '\n', len) || memchr(text, '\0', len)) {
        fprintf(stderr, "convo: %s holds no token (one line is expected)\n", path);
        return NULL;
    }
    text[len] = '\0';
    return text_copy(text);
}

static int read_input(struct cli *c, struct buf *out)
{
    size_t from = out->len;
    int code = cli_read_all(c, out);
    if (code == CLI_OK && out->len > from && !cli_sendable(c, "standard input", out->data + from, out->len - from))
        code = CLI_FAILED;
    while (out->len > from && out->data[out->len - 1] == '\n')
        out->data[--out->len] = '\0';
    return code;
}

/* Whether something was given on standard input: a pipe or a file. A terminal, /dev/null and what a service has say
 * nothing. */
static bool input_given(void)
{
    struct stat st;
    return fstat(STDIN_FILENO, &st) == 0 && (S_ISFIFO(st.st_mode) || S_ISREG(st.st_mode));
}

/* ---- commands ------------------------------------------------------------------------------------------------------
 */

static int ask(struct cli *c, const struct options *o, int argc, char **argv)
{
    struct buf text = {0};
    char *id = NULL;
    int code = CLI_OK;
    bool input_read = false;
    for (int i = 0; i < argc && code == CLI_OK; i++) {
        bool from_input = strcmp(argv[i], "-") == 0;
        input_read = input_read || from_input;
        if (text.len > 0)
            buf_str(&text, from_input ? "\n\n" : " ");
        if (from_input)
            code = read_input(c, &text);
        else
            buf_str(&text, argv[i]);
    }
    if (code == CLI_OK && !input_read && (argc == 0 || input_given())) {
        struct buf input = {0};
        code = read_input(c, &input);
        if (code == CLI_OK && input.len > 0) {
            buf_str(&text, text.len > 0 ? "\n\n" : "");
            buf_add(&text, input.data, input.len);
        }
        buf_free(&input);
    }
    if (code == CLI_OK && text.len == 0)
        code = usage("ask what? Give the text as an argument or on standard input", NULL);
    if (code == CLI_OK)
        code = cli_wait_ready(c);
    if (code == CLI_OK && o->conversation)
        id = text_copy(o->conversation);
    else if (code == CLI_OK && o->go_on)
        id = cli_latest(c, NULL, &code);
    bool made = code == CLI_OK && !id && (o->keep || o->go_on);
    if (made)
        code = cli_create(c, text.data, c->instructions, &id);
    if (code == CLI_OK) {
        buf_add(&text, c->attached.data, c->attached.len);
        struct turn turn = {.text = text.data,
                            .conversation = id,
                            .instructions = made ? NULL : c->instructions,
                            .model = c->model,
                            .sampling = &c->sampling,
                            .store = id != NULL,
                            .print = !c->json};
        struct turn_result r;
        turn_run(c->net, &c->term, &turn, &r);
        code = cli_turn_outcome(c, &r);
        if (c->json && r.response) {
            cli_print_json(c, r.response);
            r.response = NULL;
        }
        if (id && o->keep && !c->json)
            term_note(&c->term, "conversation %s", id);
        turn_result_free(&r);
    }
    free(id);
    buf_free(&text);
    return code;
}

static int chat(struct cli *c, const struct options *o, int argc, char **argv)
{
    (void)o, (void)argv;
    if (argc > 0)
        return usage("chat takes no argument; did you mean: convo ask", argv[0]);
    int code = cli_wait_ready(c);
    return code == CLI_OK ? chat_run(c, NULL) : code;
}

static int resume(struct cli *c, const struct options *o, int argc, char **argv)
{
    (void)o;
    int code = cli_wait_ready(c);
    if (code != CLI_OK)
        return code;
    char *latest = argc > 0 ? NULL : cli_latest(c, NULL, &code);
    if (code == CLI_OK && argc == 0 && !latest)
        term_note(&c->term, "there is no conversation yet; this is the first");
    if (code == CLI_OK)
        code = chat_run(c, argc > 0 ? argv[0] : latest);
    free(latest);
    return code;
}

static int list(struct cli *c, const struct options *o, int argc, char **argv)
{
    (void)o;
    int code = cli_wait_ready(c);
    return code == CLI_OK ? cli_list(c, argc > 0 ? argv[0] : NULL, false, NULL) : code;
}

static int show(struct cli *c, const struct options *o, int argc, char **argv)
{
    (void)o, (void)argc;
    int code = cli_wait_ready(c);
    return code == CLI_OK ? cli_show(c, argv[0], 0, false) : code;
}

static int rename_one(struct cli *c, const struct options *o, int argc, char **argv)
{
    (void)o;
    struct buf title = {0};
    for (int i = 1; i < argc; i++)
        buf_printf(&title, "%s%s", i > 1 ? " " : "", argv[i]);
    int code = cli_wait_ready(c);
    if (code == CLI_OK)
        code = cli_rename(c, argv[0], title.data);
    buf_free(&title);
    return code;
}

static int delete_some(struct cli *c, const struct options *o, int argc, char **argv)
{
    (void)o;
    int code = cli_wait_ready(c);
    for (int i = 0; i < argc && code == CLI_OK; i++)
        code = cli_delete(c, argv[i]);
    return code;
}

static int evict(struct cli *c, const struct options *o, int argc, char **argv)
{
    (void)argc;
    const char *to = o->to ? o->to : "disk";
    if (strcmp(to, "ram") != 0 && strcmp(to, "disk") != 0)
        return usage("--to is ram or disk, not", to);
    int code = cli_wait_ready(c);
    return code == CLI_OK ? cli_evict(c, argv[0], to) : code;
}

static int status(struct cli *c, const struct options *o, int argc, char **argv)
{
    (void)o, (void)argc, (void)argv;
    return cli_status(c);
}

static const struct command {
    const char *name;
    int (*run)(struct cli *c, const struct options *o, int argc, char **argv);
    int least, most;
} commands[] = {
    {"chat", chat, 0, 1000},  {"resume", resume, 0, 1},        {"ask", ask, 0, 100000},          {"list", list, 0, 1},
    {"show", show, 1, 1},     {"rename", rename_one, 2, 1000}, {"delete", delete_some, 1, 1000}, {"evict", evict, 1, 1},
    {"status", status, 0, 0},
};

/* ---- main ----------------------------------------------------------------------------------------------------------
 */

/* -1: go on; else the exit code. */
static int read_options(struct cli *c, int argc, char **argv, struct options *o)
{
    int at = 0;
    *o = (struct options){0};
    sampling_init(&o->sampling);
    for (int option; (option = getopt_long(argc, argv, "u:s:c:f:m:hV", long_options, &at)) != -1;) {
        switch (option) {
        case 'u':
            o->url = optarg;
            break;
        case 's':
            o->instructions = optarg;
            break;
        case 'c':
            o->conversation = optarg;
            break;
        case 'm':
            o->model = optarg;
            break;
        case 'f': {
            int code = cli_attach(c, optarg);
            if (code != CLI_OK)
                return code;
            break;
        }
        case OPT_TOKEN_FILE:
            o->token_file = optarg;
            break;
        case OPT_CONTINUE:
            o->go_on = true;
            break;
        case OPT_KEEP:
            o->keep = true;
            break;
        case OPT_JSON:
            o->json = true;
            break;
        case OPT_TO:
            o->to = optarg;
            break;
        case OPT_SAMPLING: {
            const char *name = long_options[at].name, *allowed;
            if (!sampling_set(&o->sampling, name, optarg, &allowed)) {
                fprintf(stderr, "convo: --%s must be %s, not `%s`\n", name, allowed, optarg);
                return CLI_USAGE;
            }
            break;
        }
        case OPT_RECEIPT:
            o->receipt = true;
            break;
        case OPT_NO_RECEIPT:
            o->no_receipt = true;
            break;
        case OPT_MARKDOWN:
            o->markdown = true;
            break;
        case OPT_NO_MARKDOWN:
            o->no_markdown = true;
            break;
        case 'h':
            term_write(&c->term, help_text, sizeof(help_text) - 1);
            return CLI_OK;
        case 'V':
            term_write(&c->term, VERSION_TEXT, sizeof(VERSION_TEXT) - 1);
            return CLI_OK;
        default:
            return CLI_USAGE; /* getopt has told */
        }
    }
    return -1;
}

/* What was asked for and would not happen, since it belongs to another command; NULL: nothing. */
static const char *useless_option(const struct cli *c, const struct options *o, const struct command *command)
{
    if (command->run != ask && (o->conversation || o->go_on))
        return "--conversation and --continue belong to ask; `convo resume [ID]` goes on with a conversation";
    if (command->run != ask && o->keep)
        return "--keep belongs to ask; a chat is kept";
    if (command->run != evict && o->to)
        return "--to belongs to evict";
    if (c->attached.len > 0 && command->run != ask && command->run != chat && command->run != resume)
        return "--file goes with a message: it belongs to ask, chat and resume";
    if (o->json && command->run != ask && command->run != list && command->run != show && command->run != status)
        return "--json belongs to ask, list, show and status";
    return NULL;
}

static int run(struct cli *c, int argc, char **argv)
{
    struct options o;
    int code = read_options(c, argc, argv, &o);
    if (code >= 0)
        return code;
    argc -= optind;
    argv += optind;
    const struct command *command = argc > 0 ? NULL : &commands[0];
    for (size_t i = 0; i < sizeof(commands) / sizeof(*commands) && !command; i++)
        if (strcmp(commands[i].name, argv[0]) == 0)
            command = &commands[i];
    if (!command)
        return usage("what is said stands behind `ask` or is typed in the chat; there is no command", argv[0]);
    if (argc > 0) {
        argc--;
        argv++;
    }
    if (argc < command->least || argc > command->most)
        return usage(argc < command->least ? "an argument is missing after" : "too many arguments for", command->name);
    const char *useless = useless_option(c, &o, command);
    if (useless)
        return usage(useless, NULL);

    bool sendable = !o.instructions || cli_sendable(c, "--system", o.instructions, strlen(o.instructions));
    for (int i = 0; i < argc && sendable; i++)
        sendable = cli_sendable(c, "an argument", argv[i], strlen(argv[i]));
    if (!sendable)
        return CLI_USAGE;

    c->sampling = o.sampling;
    c->model = o.model;
    c->instructions = o.instructions;
    c->json = o.json;
    c->term.markdown = !o.no_markdown && (o.markdown || c->term.markdown);
    bool chatting = command->run == chat || command->run == resume;
    c->receipt = !o.no_receipt && (o.receipt || (chatting && c->term.in_tty && c->term.err_tty));
    const char *url = o.url ? o.url : getenv("CONVOD_URL"), *given = getenv("CONVOD_TOKEN");
    char *token = o.token_file ? read_token(o.token_file) : given && *given ? text_copy(given) : NULL;
    if (o.token_file && !token)
        return CLI_USAGE;
    char err[CLI_ERR_SIZE];
    if (net_open(url && *url ? url : CLI_DEFAULT_URL, token, &c->net, err, sizeof(err)) != 0) {
        term_error(&c->term, "%s", err);
        free(token);
        return CLI_USAGE;
    }
    code = command->run(c, &o, argc, argv);
    net_close(c->net);
    free(token);
    return code;
}

int main(int argc, char **argv)
{
    /* Text is UTF-8 even where no locale was chosen. */
    if (!setlocale(LC_ALL, "") || strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
        setlocale(LC_CTYPE, "C.UTF-8");
    setlocale(LC_NUMERIC, "C");
    struct cli c = {0};
    term_open(&c.term);
    interrupts_watch();
    int code = run(&c, argc, argv);
    cli_detach(&c);
    if (c.term.out_error == 0)
        return code;
    /* A reader that went away knows. */
    if (c.term.out_error != EPIPE)
        term_error(&c.term, "standard output: %s", strerror(c.term.out_error));
    return code == CLI_OK || code == CLI_CUT_SHORT ? CLI_FAILED : code;
}
