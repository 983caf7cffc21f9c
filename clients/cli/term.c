/* term.c - the terminal: signals, the transient status line, remarks, and reading lines.
 *
 * What is written where: answers to stdout; everything about them (status, remarks, errors) to stderr, so that a pipe
 * gets the answer alone. Escape sequences are only written to a terminal. On a terminal libedit reads the line, one
 * character at a time through read_char(), which serves the socket while it waits. A line break inside pasted text (and
 * in a recalled message) stands in the edited line as U+21B5, a tab as U+21E5.
 *
 * Handlers of signals only count; what a signal is about (a new width, stopping and going on, ending) is done by
 * read_more(), which every character comes through. Between lines the terminal is as it was found and, but for Ctrl-C,
 * signals do what they do to any program.
 */
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>
#include <wchar.h>

#include <histedit.h>

#include "clients/cli/cli_internal.h"

#define LINE_BREAK    "\u21b5"
#define TAB_SIGN      "\u21e5"
#define HISTORY_LINES 500
#define LINE_MAX_SIZE (16u << 20)

/* ---- signals -------------------------------------------------------------------------------------------------------
 */

/* The one thing a signal handler can reach: how often each came. */
static volatile sig_atomic_t signals[NSIG];

static void on_signal(int number)
{
    signals[number]++;
}

void interrupts_watch(void)
{
    struct sigaction act = {.sa_handler = on_signal}; /* no SA_RESTART: waits shall end */
    sigemptyset(&act.sa_mask);
    sigaction(SIGINT, &act, NULL);
    sigaction(SIGCONT, &act, NULL);
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    sigemptyset(&ignore.sa_mask);
    sigaction(SIGPIPE, &ignore, NULL);
}

int interrupts_pending(void)
{
    return signals[SIGINT];
}

void interrupts_clear(void)
{
    signals[SIGINT] = 0;
}

/* Those that are about the terminal while a line is edited. */
static const int line_signals[] = {SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT, SIGWINCH};
#define N_LINE_SIGNALS (sizeof(line_signals) / sizeof(*line_signals))
#define N_ENDING       3 /* the first ones */

bool signals_pending(void)
{
    bool any = interrupts_pending() > 0;
    for (size_t i = 0; i < N_LINE_SIGNALS; i++)
        any = any || signals[line_signals[i]] > 0;
    return any;
}

/* The signal that asks for the program's end, or 0. */
static int signal_to_end(void)
{
    int number = 0;
    for (size_t i = 0; i < N_ENDING; i++)
        number = signals[line_signals[i]] > 0 ? line_signals[i] : number;
    return number;
}

static void line_signals_watch(struct sigaction before[N_LINE_SIGNALS])
{
    struct sigaction act = {.sa_handler = on_signal};
    sigemptyset(&act.sa_mask);
    for (size_t i = 0; i < N_LINE_SIGNALS; i++) {
        sigaction(line_signals[i], NULL, &before[i]);
        if (before[i].sa_handler != SIG_IGN) /* as under nohup */
            sigaction(line_signals[i], &act, NULL);
    }
}

static void line_signals_leave(const struct sigaction before[N_LINE_SIGNALS])
{
    for (size_t i = 0; i < N_LINE_SIGNALS; i++) {
        sigaction(line_signals[i], &before[i], NULL);
        signals[line_signals[i]] = 0;
    }
}

/* ---- keys that are pressed during an answer ------------------------------------------------------------------------
 */

static struct termios as_found;        /* the terminal's settings when the first line was read */
static volatile sig_atomic_t is_quiet; /* keys are kept and not shown */
static bool editing;                   /* lines are edited here: a paste is one, whenever it comes */

/* The terminal marks what is pasted, so that a pasted line break does not send. From a handler too. */
static void mark_pastes(bool on)
{
    if (editing)
        (void)!write(STDOUT_FILENO, on ? "\033[?2004h" : "\033[?2004l", 8);
}

/* Puts the terminal back, also from a handler. */
static void loud(void)
{
    if (is_quiet) {
        tcsetattr(STDIN_FILENO, TCSANOW, &as_found);
        mark_pastes(false);
    }
    is_quiet = 0;
}

static void on_end(int number)
{
    loud();
    signal(number, SIG_DFL);
    raise(number);
}

/* What is typed while an answer comes is not shown within it: it waits for the next line. Ctrl-C and Ctrl-Z go on to
 * work. The settings come back before a line is edited, and at every end of the program that a signal brings. */
static void quiet(void)
{
    static bool first = true;
    static const int ending[] = {SIGTERM, SIGHUP, SIGQUIT};
    if (first) {
        if (tcgetattr(STDIN_FILENO, &as_found) != 0)
            return;
        atexit(loud);
        first = false;
    }
    struct termios kept = as_found;
    kept.c_lflag &= ~(tcflag_t)(ECHO | ICANON);
    kept.c_cc[VMIN] = 1;
    kept.c_cc[VTIME] = 0;
    struct sigaction act = {.sa_handler = on_end}, before;
    sigemptyset(&act.sa_mask);
    for (size_t i = 0; i < sizeof(ending) / sizeof(*ending); i++)
        if (sigaction(ending[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(ending[i], &act, NULL);
    is_quiet = 1;
    tcsetattr(STDIN_FILENO, TCSANOW, &kept);
    mark_pastes(true);
}

void term_quiet(const struct term *t)
{
    if (t->in_tty)
        quiet();
}

void term_loud(void)
{
    loud();
}

bool term_went_on(void)
{
    if (signals[SIGCONT] == 0)
        return false;
    signals[SIGCONT] = 0;
    if (is_quiet)
        quiet(); /* a shell has the terminal as it likes it */
    return true;
}

/* ---- output --------------------------------------------------------------------------------------------------------
 */

void term_open(struct term *t)
{
    *t = (struct term){
        .in_tty = isatty(STDIN_FILENO), .out_tty = isatty(STDOUT_FILENO), .err_tty = isatty(STDERR_FILENO)};
    const char *no_color = getenv("NO_COLOR"), *kind = getenv("TERM");
    if (!kind || !*kind || strcmp(kind, "dumb") == 0) {
        t->err_tty = false; /* it can show no line that goes away again */
        return;
    }
    t->live = t->out_tty;
    t->colour = t->markdown = !(no_color && *no_color);
    t->italic = true;
    static const char *const upright[] = {"screen", "linux", "vt", "ansi", "cons", "sun"};
    for (size_t i = 0; i < sizeof(upright) / sizeof(*upright); i++)
        t->italic = t->italic && strncmp(kind, upright[i], strlen(upright[i])) != 0;
}

static struct winsize terminal_size(void)
{
    struct winsize size = {0};
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0)
        ioctl(STDERR_FILENO, TIOCGWINSZ, &size);
    return size;
}

int term_columns(void)
{
    int columns = terminal_size().ws_col;
    return columns > 0 ? columns : 80;
}

int term_rows(void)
{
    int rows = terminal_size().ws_row;
    return rows > 0 ? rows : 24;
}

void term_status(struct term *t, const char *text)
{
    struct buf line = {0};
    if (!t->err_tty)
        return;
    text_cut(text, term_columns() - 1, &line);
    if (t->mid_line && !t->status_shown)
        term_answer_covered(t);
    fprintf(stderr, t->colour ? "\r\033[K\033[2m%s\033[0m" : "\r\033[K%s", line.data);
    fflush(stderr);
    t->status_shown = true;
    buf_free(&line);
}

void term_status_clear(struct term *t)
{
    if (!t->status_shown)
        return;
    fputs("\r\033[K", stderr);
    fflush(stderr);
    t->status_shown = false;
}

void term_write(struct term *t, const char *text, size_t len)
{
    if (t->out_error == 0 && (fwrite(text, 1, len, stdout) != len || fflush(stdout) != 0))
        t->out_error = errno;
}

/* A terminal's lines are broken between words. */
static void write_note(struct term *t, const char *style, const char *prefix, const char *format, va_list args)
{
    char *text = NULL;
    struct buf clean = {0}, lines = {0};
    bool styled = t->colour && t->err_tty;
    term_answer_end(t);
    if (vasprintf(&text, format, args) >= 0) {
        buf_str(&clean, prefix);
        text_printable(text, strlen(text), &clean);
        if (t->err_tty)
            text_lines(clean.data, clean.len, term_columns(), &lines);
        else
            buf_printf(&lines, "%s\n", clean.data);
        size_t len = lines.len > 0 ? lines.len - 1 : 0; /* a style ends before the newline */
        fprintf(stderr, "%s%.*s%s\n", styled ? style : "", (int)len, len ? lines.data : "", styled ? "\033[0m" : "");
        free(text);
    }
    buf_free(&clean);
    buf_free(&lines);
}

void term_note(struct term *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    write_note(t, "\033[2m", "", format, args);
    va_end(args);
}

void term_error(struct term *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    write_note(t, "\033[31m", "convo: ", format, args);
    va_end(args);
}

/* ---- reading lines -------------------------------------------------------------------------------------------------
 */

struct line_reader {
    struct term *term;
    struct net *net;
    EditLine *edit; /* NULL: no terminal to edit on */
    History *history;
    const char *prompt;
    struct buf input; /* bytes read and not used yet */
    size_t input_at;
    bool end;
    bool pasting;
    bool interrupted, interrupted_empty;
    void (*returned)(void *arg);
    void *returned_arg;
};

static char *prompt_of(EditLine *edit)
{
    struct line_reader *r = NULL;
    el_get(edit, EL_CLIENTDATA, &r);
    return (char *)(uintptr_t)r->prompt;
}

/* Stops as Ctrl-Z has every program stop: with the terminal as it was found. */
static void stop(struct line_reader *r)
{
    struct sigaction by_default = {.sa_handler = SIG_DFL}, ours;
    mark_pastes(false);
    fputc('\n', stdout);
    fflush(stdout);
    el_set(r->edit, EL_PREP_TERM, 0);
    signals[SIGTSTP] = 0;
    sigaction(SIGTSTP, &by_default, &ours);
    raise(SIGTSTP);
    sigaction(SIGTSTP, &ours, NULL);
    signals[SIGCONT]++; /* where nobody could make it go on it did not stop */
}

/* After a signal that does not end the line: the line is shown again as it stands. */
static void show_again(struct line_reader *r)
{
    if (signals[SIGTSTP] > 0)
        stop(r);
    if (signals[SIGCONT] > 0) {
        el_set(r->edit, EL_PREP_TERM, 0); /* or it would take the terminal for prepared */
        el_set(r->edit, EL_PREP_TERM, 1);
        mark_pastes(true);
    } else {
        fputs("\r\033[J", stdout);
    }
    signals[SIGCONT] = signals[SIGWINCH] = 0;
    el_resize(r->edit);
    el_set(r->edit, EL_REFRESH);
}

static time_t seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec;
}

/* Reads what there is into r->input, waiting for at least a byte. 1, 0 at the end of input, or negative (-EINTR: Ctrl-C
 * or a signal that ends the program). */
static int read_more(struct line_reader *r)
{
    char piece[4096];
    int rc;
    time_t since = seconds();
    while ((rc = net_wait_fd(r->net, STDIN_FILENO)) == -EINTR && interrupts_pending() == 0 && signal_to_end() == 0)
        show_again(r);
    if (rc)
        return rc;
    ssize_t got = read(STDIN_FILENO, piece, sizeof(piece));
    if (got < 0)
        return -errno;
    if (got == 0)
        return 0;
    if (r->input_at == r->input.len) {
        buf_clear(&r->input);
        r->input_at = 0;
    }
    buf_add(&r->input, piece, (size_t)got);
    if (r->returned && seconds() - since >= AWAY_SECONDS)
        r->returned(r->returned_arg);
    return 1;
}

/* Whether the input goes on with `text` (which is then used up). A terminal sends a sequence in one piece, so what has
 * not come within a moment is not coming. */
static bool input_goes_on(struct line_reader *r, const char *text)
{
    size_t len = strlen(text);
    for (;;) {
        size_t have = r->input.len - r->input_at;
        size_t compare = have < len ? have : len;
        if (compare > 0 && memcmp(r->input.data + r->input_at, text, compare) != 0)
            return false;
        if (have >= len) {
            r->input_at += len;
            return true;
        }
        struct pollfd more = {.fd = STDIN_FILENO, .events = POLLIN};
        if (poll(&more, 1, 30) != 1 || read_more(r) != 1)
            return false;
    }
}

static wchar_t wide_of(const char *sign)
{
    wchar_t wide = L' ';
    mbstate_t state = {0};
    mbrtowc(&wide, sign, strlen(sign), &state);
    return wide;
}

/* libedit's source of characters. 1, 0 at the end of input, -1: interrupted. */
static int read_char(EditLine *edit, wchar_t *out)
{
    struct line_reader *r = NULL;
    el_get(edit, EL_CLIENTDATA, &r);
    mbstate_t state = {0};
    for (;;) {
        if (r->input_at == r->input.len) {
            int rc = read_more(r);
            if (rc == 0)
                return 0;
            if (rc < 0) {
                const LineInfo *line = el_line(edit);
                r->interrupted = rc == -EINTR;
                r->interrupted_empty = line->lastchar == line->buffer;
                errno = -rc;
                return -1;
            }
        }
        char c = r->input.data[r->input_at++];
        if (c == '\033' && input_goes_on(r, r->pasting ? "[201~" : "[200~")) {
            r->pasting = !r->pasting;
            continue;
        }
        if (r->pasting && (unsigned char)c < 0x20) {
            if (c == '\n' && r->input_at >= 2 && r->input.data[r->input_at - 2] == '\r')
                continue; /* its CR was the break */
            if (c != '\r' && c != '\n' && c != '\t')
                continue;
            *out = wide_of(c == '\t' ? TAB_SIGN : LINE_BREAK);
            return 1;
        }
        size_t used = mbrtowc(out, &c, 1, &state);
        if (used == (size_t)-1) {
            state = (mbstate_t){0};
            continue; /* no character: dropped */
        }
        if (used != (size_t)-2)
            return 1;
    }
}

/* Tab: what stands before the cursor goes on as far as there is one way; where there are several they are listed. */
static unsigned char complete(EditLine *edit, int key)
{
    (void)key;
    const LineInfo *line = el_line(edit);
    struct buf typed = {0}, rest = {0}, offered = {0};
    unsigned char done = CC_ERROR;
    buf_add(&typed, line->buffer, (size_t)(line->cursor - line->buffer));
    complete_line(typed.data, &rest, &offered);
    if (rest.len > 0 && el_insertstr(edit, rest.data) == 0) {
        done = CC_REFRESH;
    } else if (offered.len > 0) {
        struct buf lines = {0};
        buf_str(&lines, "\n");
        text_lines(offered.data, offered.len, term_columns(), &lines);
        fputs(lines.data, stdout);
        fflush(stdout);
        buf_free(&lines);
        done = CC_REDISPLAY;
    }
    buf_free(&typed);
    buf_free(&rest);
    buf_free(&offered);
    return done;
}

/* What was said before, across sessions: a private file, unless CONVO_HISTORY names another or is empty. NULL: none. */
static char *history_path(void)
{
    const char *named = getenv("CONVO_HISTORY"), *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    struct buf path = {0};
    if (named)
        return *named ? text_copy(named) : NULL;
    if (state && *state == '/')
        buf_str(&path, state);
    else if (home && *home == '/')
        buf_printf(&path, "%s/.local/state", home);
    else
        return NULL;
    buf_str(&path, "/convod/history");
    /* The folders on the way, where they can be made. */
    for (char *slash = strchr(path.data + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path.data, 0700);
        *slash = '/';
    }
    return path.data;
}

/* The file, for its owner alone to read; what is written goes to its end. NULL: it cannot be. */
static FILE *history_open(const char *path)
{
    int fd = path ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600) : -1;
    FILE *file = fd >= 0 && flock(fd, LOCK_EX) == 0 ? fdopen(fd, "a") : NULL;
    if (!file && fd >= 0)
        close(fd);
    return file;
}

/* A file that has grown is written anew, with the newest lines. */
static void history_load(struct line_reader *r)
{
    HistEvent event;
    char *path = history_path();
    FILE *file = history_open(path); /* held, so that nobody adds to it meanwhile */
    if (path && history(r->history, &event, H_LOAD, path) > 2 * HISTORY_LINES && file)
        history(r->history, &event, H_SAVE, path);
    if (file)
        fclose(file);
    free(path);
}

/* Added as it is said: other chats add to the same file, and any may be ended at any time. */
static void history_keep(const char *line)
{
    HistEvent event;
    char *path = history_path();
    FILE *file = history_open(path);
    History *one = file ? history_init() : NULL;
    if (one && fseek(file, 0, SEEK_END) == 0 && history(one, &event, H_SETSIZE, 1) >= 0 &&
        history(one, &event, H_ENTER, line) >= 0)
        history(one, &event, H_SAVE_FP, file);
    if (one)
        history_end(one);
    if (file)
        fclose(file);
    free(path);
}

void line_reader_on_return(struct line_reader *r, void (*returned)(void *arg), void *arg)
{
    r->returned = returned;
    r->returned_arg = arg;
}

struct line_reader *line_reader_open(struct term *t, struct net *n)
{
    struct line_reader *r = calloc(1, sizeof(*r));
    if (!r)
        return NULL;
    r->term = t;
    r->net = n;
    loud(); /* the editor shall find the terminal as it was */
    const char *kind = getenv("TERM");
    if (!t->in_tty || !t->out_tty || !kind || !*kind || strcmp(kind, "dumb") == 0)
        return r;
    r->edit = el_init("convo", stdin, stdout, stderr);
    r->history = history_init();
    HistEvent event;
    if (!r->edit || !r->history || history(r->history, &event, H_SETSIZE, HISTORY_LINES) < 0) {
        line_reader_close(r);
        return NULL;
    }
    editing = true;
    history(r->history, &event, H_SETUNIQUE, 1);
    el_set(r->edit, EL_CLIENTDATA, r);
    el_set(r->edit, EL_PROMPT, prompt_of);
    el_set(r->edit, EL_EDITOR, "emacs");
    el_set(r->edit, EL_SIGNAL, 0);
    el_set(r->edit, EL_HIST, history, r->history);
    el_set(r->edit, EL_BIND, "^W", "ed-delete-prev-word", NULL);
    el_set(r->edit, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_wset(r->edit, EL_ADDFN, L"convo-complete", L"Complete a command or a file's name", complete);
    el_set(r->edit, EL_BIND, "\t", "convo-complete", NULL);
    el_source(r->edit, NULL);
    el_set(r->edit, EL_GETCFN, read_char);
    history_load(r);
    return r;
}

void line_reader_close(struct line_reader *r)
{
    loud();
    if (!r)
        return;
    if (r->history)
        history_end(r->history);
    if (r->edit)
        el_end(r->edit);
    buf_free(&r->input);
    free(r);
}

static void replace_all(const char *text, const char *from, const char *to, struct buf *out)
{
    for (const char *hit; (hit = strstr(text, from)); text = hit + strlen(from)) {
        buf_add(out, text, (size_t)(hit - text));
        buf_str(out, to);
    }
    buf_str(out, text);
}

void line_reader_remember(struct line_reader *r, const char *message)
{
    if (!r->history)
        return;
    struct buf breaks = {0}, line = {0};
    replace_all(message, "\n", LINE_BREAK, &breaks);
    replace_all(breaks.data, "\t", TAB_SIGN, &line);
    HistEvent event;
    history(r->history, &event, H_ENTER, line.data);
    history_keep(line.data);
    buf_free(&breaks);
    buf_free(&line);
}

void line_reader_feed(struct line_reader *r, const char *text, size_t len)
{
    buf_add(&r->input, text, len);
    r->end = true;
}

/* A line from a pipe or a terminal that cannot edit. */
static int read_plain(struct line_reader *r, struct buf *line)
{
    for (;;) {
        char *start = r->input.data ? r->input.data + r->input_at : NULL;
        size_t left = r->input.len - r->input_at;
        char *newline = left ? memchr(start, '\n', left) : NULL;
        if (newline || (r->end && left > 0) || left > LINE_MAX_SIZE) {
            size_t len = newline ? (size_t)(newline - start) : left;
            r->input_at += len + (newline ? 1 : 0);
            if (len > 0 && start[len - 1] == '\r')
                len--;
            buf_add(line, start, len);
            return 1;
        }
        if (r->end)
            return 0;
        int more = read_more(r);
        if (more < 0)
            return more;
        r->end = more == 0;
    }
}

/* One line of the editor's. 1, 0 at its end, -EINTR. */
static int edit_line(struct line_reader *r, struct buf *out)
{
    struct sigaction before[N_LINE_SIGNALS];
    int count = 0;
    r->interrupted = r->pasting = false;
    line_signals_watch(before);
    mark_pastes(true);
    is_quiet = 0;                     /* from here on it is the editor's, which knows how it was found */
    el_set(r->edit, EL_PREP_TERM, 1); /* before the prompt: keys pressed at once are the editor's */
    const char *got = el_gets(r->edit, &count);
    int end = signal_to_end();
    line_signals_leave(before);
    if (end) {
        mark_pastes(false);
        raise(end);
    }
    if (!got || count <= 0)
        return r->interrupted ? -EINTR : 0;
    size_t len = (size_t)count;
    while (len > 0 && (got[len - 1] == '\n' || got[len - 1] == '\r'))
        len--;
    struct buf raw = {0}, breaks = {0};
    buf_add(&raw, got, len);
    replace_all(raw.data, LINE_BREAK, "\n", &breaks);
    replace_all(breaks.data, TAB_SIGN, "\t", out);
    buf_free(&raw);
    buf_free(&breaks);
    return 1;
}

static int read_edited(struct line_reader *r, struct buf *out)
{
    int rc = edit_line(r, out);
    if (rc == -EINTR) {
        interrupts_clear();
        fputs("^C\n", stdout);
        fflush(stdout);
        el_reset(r->edit);
        buf_clear(&r->input); /* of a paste, all that came with it */
        r->input_at = 0;
        return r->interrupted_empty ? -EINTR : -ECANCELED;
    }
    if (rc == 0) {
        putchar('\n'); /* after the ^D */
        fflush(stdout);
    }
    return rc;
}

int line_reader_read(struct line_reader *r, const char *prompt, struct buf *line)
{
    term_answer_end(r->term);
    r->prompt = prompt;
    if (r->edit) {
        int rc = read_edited(r, line);
        quiet();
        return rc;
    }
    if (r->term->in_tty && r->term->out_tty) {
        fputs(prompt, stdout);
        fflush(stdout);
    }
    int rc = read_plain(r, line);
    if (rc == -EINTR)
        interrupts_clear();
    return rc;
}
