/* markdown.c - Markdown as lines for a terminal; md4c parses it.
 *
 * Inline text is collected with a style for each of its bytes, broken between words, and written with what stands
 * before each line of it: the marks of the quotes and items around it. Within a list nothing but a second paragraph has
 * an empty line before it. A line break within a paragraph stays one: models mean it. HTML is text.
 *
 * Escape sequences in the output are only those for styles, written here: nothing of the text becomes one (it was made
 * printable, and numeric entities stay as they are written). Where styles are off, marks stand for some.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <md4c.h>

#include "clients/cli/cli_internal.h"

#define MAX_DEPTH  32 /* of quotes and items that are drawn */
#define RULE       40 /* columns */
#define MIN_COLUMN 8  /* of a table: narrower ones, where they do not fit, are shown one below the other */

enum { BOLD = 1, ITALIC = 2, UNDERLINE = 4, DIM = 8, CODE = 16 };

struct styled {
    struct buf text, style; /* as long as each other */
};

struct cell {
    struct styled content;
    MD_ALIGN align;
};

/* What stands before the lines of what is in a quote or an item. */
struct level {
    char mark[16];  /* before the first line of an item, and of a quote before each */
    int columns;    /* of it; 0: not drawn */
    bool each_line; /* of an item's only the first has it */
};

struct list {
    bool ordered;
    unsigned number;
    char delimiter;
};

struct page {
    const struct layout *how;
    struct buf *out;
    struct styled line; /* of the block that is being read */
    unsigned style;
    struct level levels[MAX_DEPTH];
    struct list lists[MAX_DEPTH];
    int n_levels, n_lists;
    bool any; /* something is in the quote or item, or before it, that a paragraph is set off from */
    bool in_code;
    size_t link, image; /* where their text begins */
    struct cell *cells; /* of a table, row by row */
    size_t n_cells, cap_cells, table_columns;
};

/* ---- writing lines -------------------------------------------------------------------------------------------------
 */

static void add_styled(struct styled *to, const char *text, size_t len, unsigned style)
{
    char s = (char)style;
    buf_add(&to->text, text, len);
    for (size_t i = 0; i < len; i++)
        buf_add(&to->style, &s, 1);
}

static void clear_styled(struct styled *s)
{
    buf_clear(&s->text);
    buf_clear(&s->style);
}

static void free_styled(struct styled *s)
{
    buf_free(&s->text);
    buf_free(&s->style);
}

static void set_style(const struct layout *how, unsigned style, struct buf *out)
{
    if (!how->colour)
        return;
    buf_str(out, "\033[0");
    buf_str(out, style & BOLD ? ";1" : "");
    buf_str(out, style & DIM ? ";2" : "");
    buf_str(out, style & ITALIC ? how->italic ? ";3" : ";4" : "");
    buf_str(out, style & UNDERLINE && (how->italic || !(style & ITALIC)) ? ";4" : "");
    buf_str(out, style & CODE ? ";35" : ""); /* can be read on light and on dark */
    buf_str(out, "m");
}

/* Text with its styles; none is on before or behind it. */
static void write_styled(const struct layout *how, const char *text, const char *style, size_t len, struct buf *out)
{
    unsigned now = 0;
    for (size_t at = 0, n; at < len; at += n) {
        n = 1;
        while (at + n < len && style[at + n] == style[at])
            n++;
        if ((unsigned char)style[at] != now) {
            now = (unsigned char)style[at];
            set_style(how, now, out);
        }
        buf_add(out, text + at, n);
    }
    if (now)
        set_style(how, 0, out);
}

static void write_plain(const struct layout *how, const char *text, unsigned style, struct buf *out)
{
    struct styled s = {0};
    add_styled(&s, text, strlen(text), style);
    write_styled(how, s.text.data ? s.text.data : "", s.style.data ? s.style.data : "", s.text.len, out);
    free_styled(&s);
}

static int columns_before(const struct page *p)
{
    int columns = 0;
    for (int i = 0; i < p->n_levels && i < MAX_DEPTH; i++)
        columns += p->levels[i].columns;
    return columns;
}

static int room(const struct page *p)
{
    int left = p->how->columns - columns_before(p);
    return left > 0 ? left : 1;
}

static void begin_line(struct page *p)
{
    for (int i = 0; i < p->n_levels && i < MAX_DEPTH; i++) {
        struct level *l = &p->levels[i];
        if (l->columns == 0)
            continue;
        if (*l->mark)
            write_plain(p->how, l->mark, l->each_line ? DIM : 0, p->out);
        else
            buf_printf(p->out, "%*s", l->columns, "");
        if (!l->each_line)
            l->mark[0] = '\0';
    }
    p->any = true;
}

static void end_line(struct page *p)
{
    while (p->out->len > 0 && p->out->data[p->out->len - 1] == ' ')
        p->out->data[--p->out->len] = '\0';
    buf_str(p->out, "\n");
}

/* Writes the lines of what was collected. */
static void flush(struct page *p)
{
    const char *text = p->line.text.data, *style = p->line.style.data;
    size_t len = p->line.text.len, next;
    for (size_t at = 0; at < len; at += next) {
        size_t size = text_fit(text + at, len - at, room(p), &next);
        begin_line(p);
        write_styled(p->how, text + at, style + at, size, p->out);
        end_line(p);
    }
    clear_styled(&p->line);
}

static void write_rule(const struct layout *how, int columns, const char *language, size_t len, struct buf *out)
{
    struct buf name = {0}, rule = {0};
    int width = columns < RULE ? columns : RULE, at = 0;
    if (len > 0) {
        buf_add(&name, language, len);
        buf_str(&rule, "\u2500\u2500 ");
        text_cut(name.data, width > 8 ? width - 6 : 2, &rule);
        buf_str(&rule, " ");
        at = text_columns(rule.data, rule.len);
    }
    for (; at < width; at++)
        buf_str(&rule, "\u2500");
    write_plain(how, rule.data, DIM, out);
    buf_free(&name);
    buf_free(&rule);
}

/* ---- tables --------------------------------------------------------------------------------------------------------
 */

/* The columns of the widest line of a cell, or of its longest word. */
static int widest(const struct styled *s, const char *ends)
{
    int most = 0;
    for (size_t at = 0, len; at < s->text.len; at += len + 1) {
        len = strcspn(s->text.data + at, ends);
        int columns = text_columns(s->text.data + at, len);
        most = columns > most ? columns : most;
    }
    return most;
}

/* A table that does not fit side by side: every cell with the name of its column. */
static void write_records(struct page *p)
{
    for (size_t i = p->table_columns; i < p->n_cells; i++) {
        const struct styled *name = &p->cells[i % p->table_columns].content, *value = &p->cells[i].content;
        if (i % p->table_columns == 0 && i > p->table_columns) {
            begin_line(p);
            end_line(p);
        }
        if (value->text.len == 0)
            continue;
        add_styled(&p->line, name->text.data ? name->text.data : "", name->text.len, BOLD);
        add_styled(&p->line, ": ", 2, 0);
        buf_add(&p->line.text, value->text.data, value->text.len);
        buf_add(&p->line.style, value->style.data, value->style.len);
        flush(p);
    }
}

static void write_padding(struct buf *out, int columns)
{
    if (columns > 0)
        buf_printf(out, "%*s", columns, "");
}

/* A line of a row: from each cell what fits, its place moved on. Whether anything is left. */
static bool write_row_line(struct page *p, const struct cell *row, const int *widths, size_t *at)
{
    bool more = false;
    begin_line(p);
    for (size_t c = 0; c < p->table_columns; c++) {
        const struct styled *s = &row[c].content;
        size_t next = 0, size = 0;
        if (at[c] < s->text.len)
            size = text_fit(s->text.data + at[c], s->text.len - at[c], widths[c], &next);
        int spare = widths[c] - (size ? text_columns(s->text.data + at[c], size) : 0);
        int before = row[c].align == MD_ALIGN_RIGHT ? spare : row[c].align == MD_ALIGN_CENTER ? spare / 2 : 0;
        if (c > 0)
            write_plain(p->how, " \u2502 ", DIM, p->out);
        write_padding(p->out, before);
        if (size)
            write_styled(p->how, s->text.data + at[c], s->style.data + at[c], size, p->out);
        write_padding(p->out, spare - before);
        at[c] += next;
        more = more || at[c] < s->text.len;
    }
    end_line(p);
    return more;
}

/* How wide the columns are; false: they do not fit beside each other. */
static bool measure(const struct page *p, size_t rows, int *widths)
{
    size_t n = p->table_columns, by_line = p->how->table_rows > 0 ? (size_t)p->how->table_rows + 1 : rows;
    int left = room(p) - 3 * (int)(n - 1);
    for (size_t c = 0; c < n; c++)
        widths[c] = 1;
    for (size_t i = 0; i < rows * n; i++) {
        /* Where rows have left the screen a column grows only for a word. */
        int columns = widest(&p->cells[i].content, i / n < by_line ? "\n" : "\n ");
        widths[i % n] = columns > widths[i % n] ? columns : widths[i % n];
    }
    /* Where that is too much the widest ones give way, all to the same width. */
    for (int cap = left; cap > 0; cap--) {
        int total = 0;
        for (size_t c = 0; c < n; c++)
            total += widths[c] < cap ? widths[c] : cap;
        if (total > left && cap > MIN_COLUMN)
            continue;
        for (size_t c = 0; c < n; c++)
            widths[c] = widths[c] < cap ? widths[c] : cap;
        return total <= left;
    }
    return false;
}

static void write_table(struct page *p)
{
    size_t n = p->table_columns, rows = n ? p->n_cells / n : 0;
    int *widths = calloc(n + 1, sizeof(*widths));
    size_t *at = calloc(n + 1, sizeof(*at));
    if (!widths || !at)
        out_of_memory();
    if (rows > 0 && !measure(p, rows, widths)) {
        write_records(p);
        rows = 0;
    }
    for (size_t r = 0; r < rows; r++) {
        memset(at, 0, n * sizeof(*at));
        while (write_row_line(p, p->cells + r * n, widths, at))
            ;
        if (r > 0)
            continue;
        struct buf rule = {0};
        for (size_t c = 0; c < n; c++) {
            buf_str(&rule, c > 0 ? "\u2500\u253c\u2500" : "");
            for (int i = 0; i < widths[c]; i++)
                buf_str(&rule, "\u2500");
        }
        begin_line(p);
        write_plain(p->how, rule.data, DIM, p->out);
        end_line(p);
        buf_free(&rule);
    }
    free(widths);
    free(at);
}

/* <br> in a cell is a line break: there is no other way to write one. */
static void add_cell(struct page *p, MD_ALIGN align)
{
    if (p->n_cells == p->cap_cells) {
        p->cap_cells = p->cap_cells ? 2 * p->cap_cells : 32;
        struct cell *grown = realloc(p->cells, p->cap_cells * sizeof(*grown));
        if (!grown)
            out_of_memory();
        p->cells = grown;
    }
    struct cell *cell = &p->cells[p->n_cells++];
    *cell = (struct cell){.align = align};
    static const char *const breaks[] = {"<br>", "<br/>", "<br />"};
    const char *text = p->line.text.data, *style = p->line.style.data;
    for (size_t at = 0, n; at < p->line.text.len; at += n) {
        n = 0;
        for (size_t i = 0; i < 3 && n == 0; i++)
            n = strncmp(text + at, breaks[i], strlen(breaks[i])) == 0 ? strlen(breaks[i]) : 0;
        if (n > 0) {
            add_styled(&cell->content, "\n", 1, 0);
        } else {
            n = 1;
            add_styled(&cell->content, text + at, n, (unsigned char)style[at]);
        }
    }
    clear_styled(&p->line);
}

static void drop_table(struct page *p)
{
    for (size_t i = 0; i < p->n_cells; i++)
        free_styled(&p->cells[i].content);
    p->n_cells = 0;
}

/* ---- what md4c finds -----------------------------------------------------------------------------------------------
 */

/* A quote or an item, whose mark may take half of the line together with those around it. */
static void push_level(struct page *p, const char *mark, bool each_line)
{
    if (p->n_levels < MAX_DEPTH) {
        struct level *l = &p->levels[p->n_levels];
        *l = (struct level){.each_line = each_line};
        snprintf(l->mark, sizeof(l->mark), "%s", mark);
        int columns = text_columns(l->mark, strlen(l->mark));
        l->columns = columns_before(p) + columns <= p->how->columns / 2 ? columns : 0;
    }
    p->n_levels++;
    p->any = false;
}

static void pop_level(struct page *p)
{
    p->n_levels--;
    p->any = true;
}

static void begin_item(struct page *p)
{
    struct list *list = &p->lists[p->n_lists <= MAX_DEPTH ? p->n_lists - 1 : MAX_DEPTH - 1];
    char mark[16];
    if (list->ordered)
        snprintf(mark, sizeof(mark), "%u%c ", list->number++, list->delimiter);
    else
        snprintf(mark, sizeof(mark), "\u2022 ");
    push_level(p, mark, false);
}

static void begin_list(struct page *p, bool ordered, unsigned number, char delimiter)
{
    if (p->n_lists < MAX_DEPTH)
        p->lists[p->n_lists] = (struct list){.ordered = ordered, .number = number, .delimiter = delimiter};
    p->n_lists++;
}

static int enter_block(MD_BLOCKTYPE type, void *detail, void *arg)
{
    struct page *p = arg;
    if (type != MD_BLOCK_DOC)
        flush(p); /* an item's text, which comes without a paragraph around it */
    switch (type) {
    case MD_BLOCK_QUOTE:
        push_level(p, "\u2502 ", true);
        break;
    case MD_BLOCK_UL:
        begin_list(p, false, 0, 0);
        break;
    case MD_BLOCK_OL:
        begin_list(p, true, ((MD_BLOCK_OL_DETAIL *)detail)->start, ((MD_BLOCK_OL_DETAIL *)detail)->mark_delimiter);
        break;
    case MD_BLOCK_LI:
        begin_item(p);
        break;
    case MD_BLOCK_P:
        if (p->any) {
            begin_line(p);
            end_line(p);
        }
        break;
    case MD_BLOCK_H:
        p->style |= ((MD_BLOCK_H_DETAIL *)detail)->level <= 2 ? BOLD | UNDERLINE : BOLD;
        break;
    case MD_BLOCK_CODE: {
        const MD_BLOCK_CODE_DETAIL *code = detail;
        begin_line(p);
        write_rule(p->how, room(p), code->lang.text, code->lang.size, p->out);
        end_line(p);
        p->in_code = true;
        break;
    }
    case MD_BLOCK_TABLE:
        p->table_columns = ((MD_BLOCK_TABLE_DETAIL *)detail)->col_count;
        break;
    case MD_BLOCK_TH:
        p->style |= BOLD;
        break;
    default:
        break;
    }
    return 0;
}

static void write_code(struct page *p)
{
    struct buf code = {0};
    text_untab(p->line.text.data ? p->line.text.data : "", p->line.text.len, &code);
    for (size_t at = 0; at < code.len;) {
        size_t len = strcspn(code.data + at, "\n"), size = text_fill(code.data + at, len, room(p));
        begin_line(p);
        buf_add(p->out, code.data + at, size);
        end_line(p);
        at += size + (size == len ? 1 : 0);
    }
    clear_styled(&p->line);
    buf_free(&code);
    begin_line(p);
    write_rule(p->how, room(p), "", 0, p->out);
    end_line(p);
    p->in_code = false;
}

static int leave_block(MD_BLOCKTYPE type, void *detail, void *arg)
{
    struct page *p = arg;
    switch (type) {
    case MD_BLOCK_QUOTE:
        flush(p);
        pop_level(p);
        break;
    case MD_BLOCK_UL:
    case MD_BLOCK_OL:
        p->n_lists--;
        break;
    case MD_BLOCK_LI:
        flush(p);
        if (!p->any) { /* an item without anything */
            begin_line(p);
            end_line(p);
        }
        pop_level(p);
        break;
    case MD_BLOCK_HR:
        begin_line(p);
        write_rule(p->how, room(p), "", 0, p->out);
        end_line(p);
        break;
    case MD_BLOCK_H:
        flush(p);
        p->style &= ~(unsigned)(BOLD | UNDERLINE);
        break;
    case MD_BLOCK_CODE:
        write_code(p);
        break;
    case MD_BLOCK_TABLE:
        write_table(p);
        drop_table(p);
        break;
    case MD_BLOCK_TH:
        p->style &= ~(unsigned)BOLD;
        add_cell(p, ((MD_BLOCK_TD_DETAIL *)detail)->align);
        break;
    case MD_BLOCK_TD:
        add_cell(p, ((MD_BLOCK_TD_DETAIL *)detail)->align);
        break;
    default:
        flush(p);
        break;
    }
    return 0;
}

static void add(struct page *p, const char *text, size_t len)
{
    add_styled(&p->line, text, len, p->style);
}

static int enter_span(MD_SPANTYPE type, void *detail, void *arg)
{
    struct page *p = arg;
    (void)detail;
    if (type == MD_SPAN_EM)
        p->style |= ITALIC;
    else if (type == MD_SPAN_STRONG)
        p->style |= BOLD;
    else if (type == MD_SPAN_CODE && p->how->colour)
        p->style |= CODE;
    else if (type == MD_SPAN_CODE)
        add(p, "`", 1);
    else if (type == MD_SPAN_A)
        p->link = p->line.text.len;
    else if (type == MD_SPAN_IMG)
        p->image = p->line.text.len;
    return 0;
}

/* The address behind a link's text, unless it is the text. */
static void add_address(struct page *p, size_t from, const MD_ATTRIBUTE *address)
{
    size_t len = p->line.text.len - from, size = address->size;
    const char *text = p->line.text.data ? p->line.text.data + from : "";
    bool same = len <= size && memcmp(address->text + size - len, text, len) == 0 &&
                (len == size || (size - len == 7 && memcmp(address->text, "mailto:", 7) == 0));
    if (same || size == 0)
        return;
    unsigned before = p->style;
    p->style = DIM;
    add(p, len > 0 ? " (" : "(", len > 0 ? 2 : 1);
    add(p, address->text, size);
    add(p, ")", 1);
    p->style = before;
}

static int leave_span(MD_SPANTYPE type, void *detail, void *arg)
{
    struct page *p = arg;
    if (type == MD_SPAN_EM)
        p->style &= ~(unsigned)ITALIC;
    else if (type == MD_SPAN_STRONG)
        p->style &= ~(unsigned)BOLD;
    else if (type == MD_SPAN_CODE && p->how->colour)
        p->style &= ~(unsigned)CODE;
    else if (type == MD_SPAN_CODE)
        add(p, "`", 1);
    else if (type == MD_SPAN_A)
        add_address(p, p->link, &((MD_SPAN_A_DETAIL *)detail)->href);
    else if (type == MD_SPAN_IMG)
        add_address(p, p->image, &((MD_SPAN_IMG_DETAIL *)detail)->src);
    return 0;
}

/* The entities that are written out of habit; others are shown as they are written. */
static void add_entity(struct page *p, const char *text, size_t len)
{
    static const char *const known[][2] = {{"&amp;", "&"},   {"&lt;", "<"},  {"&gt;", ">"},
                                           {"&quot;", "\""}, {"&#39;", "'"}, {"&nbsp;", " "}};
    for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++) {
        if (len == strlen(known[i][0]) && memcmp(text, known[i][0], len) == 0) {
            add(p, known[i][1], 1);
            return;
        }
    }
    add(p, text, len);
}

static int on_text(MD_TEXTTYPE type, const MD_CHAR *text, MD_SIZE size, void *arg)
{
    struct page *p = arg;
    if (type == MD_TEXT_BR || type == MD_TEXT_SOFTBR)
        add(p, "\n", 1);
    else if (type == MD_TEXT_ENTITY)
        add_entity(p, text, size);
    else if (p->in_code)
        add(p, text, size);
    else
        for (size_t at = 0, n; at < size; at += n) {
            const char *tab = memchr(text + at, '\t', size - at);
            n = tab == text + at ? 1 : tab ? (size_t)(tab - text) - at : size - at;
            add(p, text[at] == '\t' ? " " : text + at, n);
        }
    return 0;
}

void markdown_lines(const char *text, size_t len, const struct layout *how, struct buf *out)
{
    static const MD_PARSER parser = {
        .flags = MD_FLAG_TABLES | MD_FLAG_NOHTML,
        .enter_block = enter_block,
        .leave_block = leave_block,
        .enter_span = enter_span,
        .leave_span = leave_span,
        .text = on_text,
    };
    size_t before = out->len;
    struct page p = {.how = how, .out = out};
    int rc = len <= INT32_MAX ? md_parse(text, (MD_SIZE)len, &parser, &p) : -1;
    drop_table(&p);
    free(p.cells);
    free_styled(&p.line);
    if (rc != 0)
        out->len = before;
    if (out->len == before) /* such as the definition of a link */
        text_lines(text, len, how->columns, out);
}

void markdown_code(const char *text, size_t len, const struct layout *how, struct buf *out)
{
    struct buf code = {0};
    len -= len > 0 && text[len - 1] == '\n';
    text_untab(text, len, &code);
    for (size_t at = 0, n; at < code.len; at += n) {
        n = text_fill(code.data + at, code.len - at, how->columns);
        buf_add(out, code.data + at, n);
        buf_str(out, "\n");
    }
    if (code.len == 0)
        buf_str(out, "\n");
    buf_free(&code);
}

void markdown_rule(const char *language, size_t len, const struct layout *how, struct buf *out)
{
    write_rule(how, how->columns, language, len, out);
    buf_str(out, "\n");
}
