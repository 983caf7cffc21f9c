/* ledger_items.c - rows of items: what turns were asked with and what they answered. Ledger thread only, inside a job.
 *
 * An item belongs to one turn and has a place in it; turns of a path are older before younger, so that the items of a
 * path are in order by (turn, place). A page of them goes along the path by its turns' ids alone, and reads the items
 * that it shows.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "storage/storage_internal.h"

static void item_clear(struct storage_item *i)
{
    free(i->public_id);
    free(i->kind);
    free(i->role);
    free(i->text);
    free(i->body);
    free(i->turn_id);
}

void storage_items_free(struct storage_item *items, size_t n)
{
    for (size_t i = 0; i < n; i++)
        item_clear(&items[i]);
    free(items);
}

int items_insert(struct storage_ledger *l, int64_t turn, const struct storage_item *items, size_t n)
{
    int rc, place = 0;
    if (n == 0)
        return 0;
    sqlite3_stmt *s = STMT_WITH(l, S_ITEM_NEXT, turn);
    if ((rc = stmt_step(l, s)) < 0)
        return rc;
    if (rc == 1) {
        place = sqlite3_column_int(s, 0);
        stmt_reset(s);
    }
    rc = 0;
    for (size_t i = 0; i < n && !rc; i++) {
        s = STMT_WITH(l, S_ITEM_INSERT, turn, place + (int64_t)i, items[i].output);
        bind_text(s, 4, items[i].public_id);
        bind_text(s, 5, items[i].kind);
        bind_text(s, 6, items[i].role);
        (void)sqlite3_bind_int(s, 7, items[i].incomplete);
        (void)sqlite3_bind_int64(s, 8, items[i].created_ms);
        bind_text(s, 9, items[i].text);
        bind_text(s, 10, items[i].body);
        rc = stmt_run(l, s, NULL);
    }
    return rc;
}

static int item_read(sqlite3_stmt *s, bool page, struct storage_item *out)
{
    struct storage_item i = {.turn = sqlite3_column_int64(s, 0),
                             .place = sqlite3_column_int(s, 1),
                             .output = sqlite3_column_int(s, 2) != 0,
                             .incomplete = sqlite3_column_int(s, 6) != 0,
                             .created_ms = sqlite3_column_int64(s, 7)};
    char **const texts[] = {&i.public_id, &i.kind, &i.role, &i.text, &i.body, &i.turn_id};
    static const int columns[] = {3, 4, 5, 8, 9, 10};
    int rc = 0;
    for (size_t c = 0; c < sizeof columns / sizeof *columns - !page && !rc; c++)
        rc = column_text(s, columns[c], texts[c]);
    if (page)
        i.turn_status = (enum storage_turn_status)sqlite3_column_int(s, 11);
    if (!rc && (!i.public_id || !i.kind))
        rc = -EBADMSG;
    if (rc)
        item_clear(&i);
    else
        *out = i;
    return rc;
}

struct items {
    struct storage_item *rows;
    size_t n, cap;
};

/* Adds all rows of a statement, and resets it. */
static int items_add(struct storage_ledger *l, sqlite3_stmt *s, bool page, struct items *items)
{
    int rc;
    while ((rc = stmt_step(l, s)) == 1) {
        if (items->n == items->cap) {
            size_t more = items->cap ? 2 * items->cap : 4;
            struct storage_item *grown = realloc(items->rows, more * sizeof *grown);
            if (!grown) {
                rc = -ENOMEM;
                break;
            }
            items->rows = grown;
            items->cap = more;
        }
        if ((rc = item_read(s, page, &items->rows[items->n])))
            break;
        items->n++;
    }
    if (rc)
        stmt_reset(s);
    return rc;
}

/* Hands them over, or after an error frees them. */
static int items_give(int rc, struct items *items, struct storage_item **rows, size_t *n)
{
    if (rc) {
        storage_items_free(items->rows, items->n);
        return rc;
    }
    *rows = items->rows;
    *n = items->n;
    return 0;
}

static int items_read(struct storage_ledger *l, sqlite3_stmt *s, bool page, struct storage_item **rows, size_t *n)
{
    struct items items = {0};
    return items_give(items_add(l, s, page, &items), &items, rows, n);
}

int items_of(struct storage_ledger *l, int64_t turn, struct storage_item **rows, size_t *n)
{
    return items_read(l, STMT_WITH(l, S_ITEMS_OF, turn), false, rows, n);
}

int storage_item_find(struct storage_ledger *l, int64_t owner, const char *public_id, struct storage_item **row)
{
    struct storage_item *rows = NULL;
    size_t n = 0;
    int rc;
    sqlite3_stmt *s = stmt_get(l, S_ITEM_FIND);
    bind_text(s, 1, public_id);
    (void)sqlite3_bind_int64(s, 2, owner);
    if ((rc = items_read(l, s, false, &rows, &n)))
        return rc;
    if (n == 0) {
        free(rows);
        return -ENOENT;
    }
    *row = rows;
    return 0;
}

/* The turn that an item belongs to, and its place there. */
static int item_place(struct storage_ledger *l, int64_t owner, int64_t conversation, const char *public_id,
                      int64_t *turn, int64_t *place)
{
    int rc;
    sqlite3_stmt *s = stmt_get(l, S_ITEM_PLACE);
    bind_text(s, 1, public_id);
    (void)sqlite3_bind_int64(s, 2, owner);
    (void)sqlite3_bind_int64(s, 3, conversation);
    if ((rc = stmt_step(l, s)) != 1)
        return rc ? rc : -ENOENT;
    *turn = sqlite3_column_int64(s, 0);
    *place = sqlite3_column_int64(s, 1);
    stmt_reset(s);
    return 0;
}

/* A page: items of turns from `turn` on, there of those beyond `place`. */
struct page {
    bool descending;
    int64_t turn, place;
    size_t max;
    struct items items;
};

static int page_add(struct storage_ledger *l, struct page *p, int64_t turn)
{
    int64_t edge = turn == p->turn ? p->place : p->descending ? INT64_MAX : -1;
    sqlite3_stmt *s = STMT_WITH(l, p->descending ? S_ITEMS_BEFORE : S_ITEMS_AFTER, turn, edge,
                                p->max - p->items.n > INT32_MAX ? INT32_MAX : (int64_t)(p->max - p->items.n));
    return items_add(l, s, true, &p->items);
}

struct ids {
    int64_t *ids;
    size_t n, cap;
};

static int ids_add(struct ids *ids, int64_t id)
{
    if (ids->n == ids->cap) {
        size_t cap = ids->cap ? ids->cap * 2 : 64;
        int64_t *grown = realloc(ids->ids, cap * sizeof *grown);
        if (!grown)
            return -ENOMEM;
        ids->ids = grown;
        ids->cap = cap;
    }
    ids->ids[ids->n++] = id;
    return 0;
}

/* Goes along some turns, the youngest first: those of the page are read, or in the other order noted, until it is full
 * or they are out of it (*over). */
static int page_walk(struct storage_ledger *l, sqlite3_stmt *s, struct page *p, struct ids *later, bool *over)
{
    int rc = 0;
    while (!*over && (rc = stmt_step(l, s)) == 1) {
        int64_t turn = sqlite3_column_int64(s, 0);
        rc = 0; /* of those before the page nothing is read, and it goes on */
        if (p->descending && turn <= p->turn)
            rc = page_add(l, p, turn);
        else if (!p->descending && turn >= p->turn)
            rc = ids_add(later, turn);
        *over = rc || (p->descending ? p->items.n >= p->max : turn <= p->turn);
    }
    stmt_reset(s);
    return rc < 0 ? rc : 0;
}

static int page_read(struct storage_ledger *l, int64_t conversation, int64_t head, struct page *p)
{
    struct ids later = {0};
    bool over = p->max == 0;
    int rc = page_walk(l, STMT_WITH(l, S_PATH_BEHIND, head, conversation), p, &later, &over);
    /* Those behind the head are all younger than it. */
    over = p->descending && p->items.n >= p->max;
    if (!rc)
        rc = page_walk(l, STMT_WITH(l, S_PATH_UP, head), p, &later, &over);
    while (!rc && later.n && p->items.n < p->max)
        rc = page_add(l, p, later.ids[--later.n]);
    free(later.ids);
    return rc;
}

int storage_item_get(struct storage_ledger *l, int64_t owner, int64_t conversation, int64_t head, const char *public_id,
                     struct storage_item **row)
{
    struct storage_item *rows = NULL;
    size_t n = 0;
    struct page p = {.max = 1};
    int rc = item_place(l, owner, conversation, public_id, &p.turn, &p.place);
    if (rc)
        return rc;
    /* The first from its place on, which is another one where it is not on the path. */
    p.place--;
    if ((rc = items_give(page_read(l, conversation, head, &p), &p.items, &rows, &n)))
        return rc;
    if (n == 0 || strcmp(rows[0].public_id, public_id) != 0) {
        storage_items_free(rows, n);
        return -ENOENT;
    }
    *row = rows;
    return 0;
}

int storage_items_page(struct storage_ledger *l, int64_t owner, int64_t conversation, int64_t head, bool descending,
                       const char *after, size_t max, struct storage_item **rows, size_t *n)
{
    struct page p = {
        .descending = descending, .turn = descending ? INT64_MAX : 0, .place = descending ? INT64_MAX : -1, .max = max};
    int rc = after ? item_place(l, owner, conversation, after, &p.turn, &p.place) : 0;
    return rc ? rc : items_give(page_read(l, conversation, head, &p), &p.items, rows, n);
}

int storage_turn_tools(struct storage_ledger *l, int64_t owner, int64_t turn, char **text)
{
    int rc;
    sqlite3_stmt *s = STMT_WITH(l, S_TOOLS_UP, turn, owner);
    *text = NULL;
    if ((rc = stmt_step(l, s)) != 1)
        return rc;
    rc = column_text(s, 0, text);
    stmt_reset(s);
    return rc;
}
