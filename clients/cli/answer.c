/* answer.c - what an answer looks like on a terminal while it comes.
 *
 * An answer is cut into pieces of Markdown that stand on their own: a paragraph, an item with what belongs to it, a
 * table, a line of code; without Markdown every line is one. The piece that is not whole yet is laid out whenever more
 * of it has come, and written over what was shown of it: from the first line on that is not as it was, or only its end
 * where nothing else changed. Lines that have left the screen at its top stay as they are. A whole piece is settled:
 * what the screen has of it is not touched again. What the model said itself is kept by the turn, not here.
 *
 * A piece is cut off where CommonMark begins another block for certain: at a line that follows an empty one and is not
 * indented, at a heading, a link's definition, and a fence. Items of one list may so become lists of their own, which
 * look the same.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clients/cli/cli_internal.h"

struct fence {
    char mark;     /* '`' or '~'; 0: none is open */
    size_t length; /* of the opening run: the closing one is not shorter */
    size_t indent;
};

struct answer {
    struct buf text;   /* what came, made printable */
    size_t open;       /* where in it begins what is not settled */
    size_t scanned;    /* bytes from there on, whole lines, that were looked at */
    bool empty_line;   /* the last of these lines was empty */
    bool in_list;      /* one of them began an item */
    bool empty_due;    /* an empty line goes before the next piece */
    bool any;          /* something was shown */
    struct fence code; /* the block of code whose line is open */
    struct fence item; /* the one within the item that is not whole */
    struct buf shown;  /* lines on the screen that are not settled; the cursor is at the end of the last */
    int columns;       /* for which they were laid out */
    int table_rows;    /* see struct layout; set once a table's head has left the screen */
    bool covered;      /* their last line was written over */
};

static struct answer *answer_of(struct term *t)
{
    if (!t->answer && !(t->answer = calloc(1, sizeof(*t->answer))))
        out_of_memory();
    return t->answer;
}

static void answer_free(struct answer *a)
{
    if (!a)
        return;
    buf_free(&a->text);
    buf_free(&a->shown);
    free(a);
}

/* ---- on the screen -------------------------------------------------------------------------------------------------
 */

static int count_lines(const char *text, size_t len)
{
    int n = 0;
    for (const char *end = text + len; text < end && (text = memchr(text, '\n', (size_t)(end - text))); text++)
        n++;
    return n;
}

/* Where line number n of a text of lines begins. */
static size_t line_at(const struct buf *text, int n)
{
    const char *at = text->data;
    while (n-- > 0)
        at = strchr(at, '\n') + 1;
    return (size_t)(at - text->data);
}

/* Brings the lines of the open piece, given with their newlines, on the screen. Takes them over. */
static void draw(struct term *t, struct answer *a, struct buf *lines)
{
    struct buf out = {0};
    int columns = term_columns(), rows = term_rows();
    if (term_went_on()) {
        buf_clear(&a->shown);
        buf_str(&out, "\r\033[J");
    }
    if (lines->len == 0) {
        buf_free(lines);
        buf_free(&out);
        return;
    }
    if (a->shown.len == 0) {
        buf_str(&out, a->empty_due && a->any ? "\n" : "");
        buf_add(&out, lines->data, lines->len - 1);
    } else if (!a->covered && columns == a->columns && lines->len >= a->shown.len &&
               memcmp(lines->data, a->shown.data, a->shown.len - 1) == 0) {
        buf_add(&out, lines->data + a->shown.len - 1, lines->len - a->shown.len);
    } else {
        int had = count_lines(a->shown.data, a->shown.len), have = count_lines(lines->data, lines->len), same = 0;
        size_t at = 0;
        while (columns == a->columns && same < had - 1 && same < have - 1) {
            size_t size = (size_t)(strchr(lines->data + at, '\n') + 1 - (lines->data + at));
            if (at + size > a->shown.len || memcmp(lines->data + at, a->shown.data + at, size) != 0)
                break;
            at += size;
            same++;
        }
        if (had - 1 - same > rows - 1) /* out of reach */
            same = had - rows < have - 1 ? had - rows : have - 1;
        int up = had - 1 - same < rows ? had - 1 - same : rows - 1;
        buf_str(&out, "\r");
        if (up > 0)
            buf_printf(&out, "\033[%dA", up);
        /* Each line is erased before it is written: a whole screen at once would go where it can be scrolled back to.
         */
        for (at = line_at(lines, same); at < lines->len; same++) {
            size_t size = (size_t)(strchr(lines->data + at, '\n') - (lines->data + at));
            buf_str(&out, at + size + 1 == lines->len ? "\033[J" : "\033[K");
            buf_add(&out, lines->data + at, size);
            buf_str(&out, at + size + 1 == lines->len ? "" : "\n");
            at += size + 1;
        }
    }
    if (out.len > 0)
        term_write(t, out.data, out.len);
    a->columns = columns;
    a->covered = a->empty_due = false;
    a->any = t->mid_line = true;
    buf_free(&a->shown);
    a->shown = *lines;
    buf_free(&out);
}

/* ---- pieces --------------------------------------------------------------------------------------------------------
 */

static struct layout layout_of(const struct term *t, const struct answer *a)
{
    return (struct layout){
        .columns = term_columns(), .colour = t->colour, .italic = t->italic, .table_rows = a->table_rows};
}

static void show(struct term *t, struct answer *a, const char *text, size_t len)
{
    struct buf lines = {0};
    struct layout how = layout_of(t, a);
    if (a->code.mark) {
        markdown_code(text, len, &how, &lines);
    } else if (t->markdown) {
        markdown_lines(text, len, &how, &lines);
    } else {
        text_lines(text, len, how.columns, &lines);
    }
    bool long_table = t->markdown && a->table_rows == 0 && a->shown.len > 0 &&
                      count_lines(lines.data ? lines.data : "", lines.len) >= term_rows();
    if (long_table)
        a->table_rows = count_lines(text, len) > 2 ? count_lines(text, len) - 1 : 1; /* the head has two lines */
    draw(t, a, &lines);
}

/* The line below what is shown is where the next piece begins. */
static void leave_line(struct term *t, struct answer *a)
{
    if (t->mid_line)
        term_write(t, "\n", 1);
    t->mid_line = false;
    buf_clear(&a->shown);
    a->table_rows = 0;
}

/* What a line begins with. */
static size_t indent_of(const char *line, size_t len)
{
    size_t n = 0;
    while (n < len && line[n] == ' ')
        n++;
    return n;
}

static size_t run_of(const char *line, size_t len, char mark)
{
    size_t n = 0;
    while (n < len && line[n] == mark)
        n++;
    return n;
}

static bool is_empty(const char *line, size_t len)
{
    size_t n = 0;
    while (n < len && (line[n] == ' ' || line[n] == '\t'))
        n++;
    return n == len;
}

static bool is_heading(const char *line, size_t len)
{
    size_t n = run_of(line, len, '#');
    return n >= 1 && n <= 6 && (n == len || line[n] == ' ' || line[n] == '\t');
}

/* What a link's name in brackets means. Nothing would be seen of it beside other text; alone it is shown as it is. */
static bool is_definition(const char *line, size_t len)
{
    const char *end = line[0] == '[' ? memchr(line, ']', len) : NULL;
    return end && end + 1 < line + len && end[1] == ':';
}

static bool begins_item(const char *line, size_t len)
{
    size_t at = indent_of(line, len), digits = at;
    while (digits < len && line[digits] >= '0' && line[digits] <= '9')
        digits++;
    if (digits > at)
        return digits < len && (line[digits] == '.' || line[digits] == ')');
    return at < len && (line[at] == '-' || line[at] == '*' || line[at] == '+' || line[at] == '>');
}

/* Whether a line opens a block of code. */
static bool opens(const char *line, size_t len, struct fence *out)
{
    size_t indent = indent_of(line, len);
    char mark = indent < len ? line[indent] : '\0';
    size_t length = mark == '`' || mark == '~' ? run_of(line + indent, len - indent, mark) : 0;
    if (length < 3 || (mark == '`' && memchr(line + indent + length, '`', len - indent - length)))
        return false;
    *out = (struct fence){.mark = mark, .length = length, .indent = indent};
    return true;
}

static bool closes(const char *line, size_t len, const struct fence *fence)
{
    size_t indent = indent_of(line, len), length = run_of(line + indent, len - indent, fence->mark);
    return length >= fence->length && is_empty(line + indent + length, len - indent - length);
}

static void pass(struct answer *a, size_t len)
{
    a->open += len;
    a->scanned = 0;
    a->item.mark = 0;
    a->empty_line = a->in_list = false;
}

/* The first `len` bytes that are open are a whole piece. */
static void settle(struct term *t, struct answer *a, size_t len)
{
    bool empty_due = a->empty_line;
    show(t, a, a->text.data + a->open, len);
    leave_line(t, a);
    pass(a, len);
    a->empty_due = empty_due;
}

static void show_rule(struct term *t, struct answer *a, const char *language, size_t len)
{
    struct buf line = {0};
    struct layout how = layout_of(t, a);
    markdown_rule(language, len, &how, &line);
    draw(t, a, &line);
    leave_line(t, a);
}

/* A line (without its newline) of a block of code that is no item's. */
static void take_code(struct term *t, struct answer *a, const char *line, size_t len)
{
    size_t indent = indent_of(line, len);
    if (closes(line, len, &a->code)) {
        a->code.mark = 0;
        show_rule(t, a, "", 0);
    } else {
        indent = indent < a->code.indent ? indent : a->code.indent;
        show(t, a, line + indent, len - indent);
        leave_line(t, a);
    }
    pass(a, len + 1);
}

/* The line that opens one. */
static void open_code(struct term *t, struct answer *a, const char *line, size_t len, const struct fence *fence)
{
    size_t at = fence->indent + fence->length, size = 0;
    while (at < len && (line[at] == ' ' || line[at] == '\t'))
        at++;
    while (at + size < len && !strchr(" \t{", line[at + size]))
        size++;
    show_rule(t, a, line + at, size);
    pass(a, len + 1);
    a->code = *fence;
}

/* The line at a->scanned, of `len` bytes; `whole`: its newline follows. */
static void take_line(struct term *t, struct answer *a, size_t len, bool whole)
{
    const char *line = a->text.data + a->open + a->scanned;
    bool indented = line[0] == ' ' || line[0] == '\t';
    struct fence fence = {0};
    if (is_empty(line, len)) {
        if (whole && a->scanned == 0) {
            pass(a, len + 1);
            a->empty_due = true;
        } else if (whole) {
            a->scanned += len + 1;
            a->empty_line = true;
        }
        return;
    }
    bool in_code = a->item.mark && indented; /* an item's code ends with the item */
    bool code = whole && !in_code && opens(line, len, &fence);
    bool top = code && fence.indent <= 3 && !(a->in_list && indented);
    bool alone = whole && !indented && !in_code && (is_heading(line, len) || is_definition(line, len));
    if (a->scanned > 0 && !in_code && ((a->empty_line && !indented) || top || alone))
        settle(t, a, a->scanned);
    if (!whole)
        return;
    if (top) {
        open_code(t, a, line, len, &fence);
        return;
    }
    if (!in_code)
        a->item = fence;
    else if (closes(line, len, &a->item))
        a->item.mark = 0;
    a->in_list = a->in_list || begins_item(line, len);
    a->empty_line = false;
    a->scanned += len + 1;
    if (alone)
        settle(t, a, a->scanned);
}

/* Settles what is whole. */
static void take_lines(struct term *t, struct answer *a)
{
    for (size_t at; (at = a->open + a->scanned) < a->text.len;) {
        const char *line = a->text.data + at, *end = memchr(line, '\n', a->text.len - at);
        size_t len = end ? (size_t)(end - line) : a->text.len - at;
        if (t->markdown && !a->code.mark)
            take_line(t, a, len, end != NULL);
        else if (end && a->code.mark)
            take_code(t, a, line, len);
        else if (end)
            settle(t, a, len + 1);
        if (!end)
            break;
    }
    memmove(a->text.data, a->text.data + a->open, a->text.len - a->open + 1);
    a->text.len -= a->open;
    a->open = 0;
}

/* Shows the piece that is not whole. */
static void show_open(struct term *t, struct answer *a)
{
    const char *text = a->text.data;
    size_t len = a->text.len, indent = indent_of(text, len);
    if (is_empty(text, len))
        return;
    /* What may become a closing fence is not shown as code. */
    if (a->code.mark && run_of(text + indent, len - indent, a->code.mark) == len - indent)
        return;
    show(t, a, text, len);
}

/* ---- what others call ----------------------------------------------------------------------------------------------
 */

void term_answer(struct term *t, const char *text, size_t len)
{
    if (len == 0)
        return;
    if (t->live) {
        text_printable(text, len, &answer_of(t)->text);
        return;
    }
    struct buf clean = {0};
    term_status_clear(t);
    if (t->out_tty) {
        text_printable(text, len, &clean);
        text = clean.data;
        len = clean.len;
    }
    if (len) {
        term_write(t, text, len);
        t->mid_line = text[len - 1] != '\n';
    }
    buf_free(&clean);
}

void term_answer_show(struct term *t)
{
    struct answer *a = t->answer;
    if (!a || a->text.len == 0)
        return;
    term_status_clear(t);
    take_lines(t, a);
    show_open(t, a);
}

void term_answer_end(struct term *t)
{
    struct answer *a = t->answer;
    term_status_clear(t);
    t->answer = NULL;
    if (a && a->text.len > 0) {
        if (a->text.data[a->text.len - 1] != '\n')
            buf_str(&a->text, "\n");
        take_lines(t, a);
        if (a->text.len > 0)
            settle(t, a, a->text.len);
    }
    if (a && a->code.mark) {
        a->code.mark = 0;
        show_rule(t, a, "", 0);
    }
    if (t->mid_line)
        term_write(t, "\n", 1);
    t->mid_line = false;
    answer_free(a);
}

void term_answer_covered(struct term *t)
{
    if (t->answer)
        t->answer->covered = true;
}
