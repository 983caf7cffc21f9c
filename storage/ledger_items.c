/* ledger_items.c - rows of items: what turns were asked with and what they answered. Ledger thread only, inside a job.
 *
 * An item belongs to one turn and has a place in it; turns of a path are older before younger, so that the items of a
 * path are in order by (turn, place), and a page of them is a range.
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

/* All rows of a statement, and resets it. */
static int items_read(struct storage_ledger *l, sqlite3_stmt *s, bool page, struct storage_item **rows, size_t *n)
{
    struct storage_item *items = NULL;
    size_t found = 0, capacity = 0;
    int rc;
    while ((rc = stmt_step(l, s)) == 1) {
        if (found == capacity) {
            size_t more = capacity ? 2 * capacity : 4;
            struct storage_item *grown = realloc(items, more * sizeof *grown);
            if (!grown) {
                rc = -ENOMEM;
                break;
            }
            items = grown;
            capacity = more;
        }
        if ((rc = item_read(s, page, &items[found])))
            break;
        found++;
    }
    if (rc) {
        stmt_reset(s);
        storage_items_free(items, found);
        return rc;
    }
    *rows = items;
    *n = found;
    return 0;
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

int storage_item_get(struct storage_ledger *l, int64_t owner, int64_t conversation, int64_t head, const char *public_id,
                     struct storage_item **row)
{
    int64_t turn, place;
    struct storage_item *rows = NULL;
    size_t n = 0;
    int rc = item_place(l, owner, conversation, public_id, &turn, &place);
    if (rc)
        return rc;
    /* The first from its place on, which is another one where it is not on the path. */
    sqlite3_stmt *s = STMT_WITH(l, S_ITEMS_AFTER, head, conversation, turn, place - 1, 1);
    if ((rc = items_read(l, s, true, &rows, &n)))
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
    int64_t turn = descending ? INT64_MAX : 0, place = descending ? INT64_MAX : -1;
    int rc;
    sqlite3_stmt *s;
    if (after && (rc = item_place(l, owner, conversation, after, &turn, &place)))
        return rc;
    s = STMT_WITH(l, descending ? S_ITEMS_BEFORE : S_ITEMS_AFTER, head, conversation, turn, place,
                  max > INT32_MAX ? INT32_MAX : (int64_t)max);
    return items_read(l, s, true, rows, n);
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
