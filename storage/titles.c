/* titles.c - which conversations' titles contain a word. Ledger thread only.
 *
 * The titles of an owner who searches are kept in memory, one after the other in lower case, so that a search is one
 * pass over some megabytes instead of a look at every row. They are read at the first search, some thousand in a job so
 * that nobody's transaction waits long, and then follow what jobs write. What is found there is only a hint: every row
 * is read before it is told, so that titles that changed do no harm. A title that were missing would: when a job that
 * changed titles is rolled back, all of them are given up, and read again at the next search.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "storage/storage_internal.h"

#define PIECE_ROWS 4096               /* that one job reads or looks at */
#define FEW        1024               /* matches that are looked up one by one */
#define KEEP_MS    (10 * 60 * 1000)   /* without a search */
#define BYTES_MOST ((size_t)32 << 20) /* of all owners but the one that searched last */

struct title {
    int64_t id; /* of the conversation */
    size_t at;  /* in the text */
};

struct titles {
    struct titles *next; /* who searched longer ago */
    int64_t owner;
    int64_t last; /* those of rows up to this one are here */
    bool whole;   /* and of all that there are */
    int64_t used_ms;
    struct title *rows; /* ascending by place */
    size_t n, cap, n_read;
    char *text; /* each title in lower case, with its end */
    size_t bytes, cap_bytes;
};

static void titles_free(struct titles *t)
{
    free(t->rows);
    free(t->text);
    free(t);
}

void titles_give_up(struct storage_ledger *l)
{
    while (l->titles) {
        struct titles *t = l->titles;
        l->titles = t->next;
        titles_free(t);
    }
}

/* Those behind the first that nobody wants any more, or that are too many. */
static void titles_trim(struct storage_ledger *l, int64_t now_ms)
{
    size_t bytes = 0;
    for (struct titles **p = &l->titles; *p;) {
        struct titles *t = *p;
        bytes += t == l->titles ? 0 : t->cap_bytes + t->cap * sizeof *t->rows;
        if (now_ms - t->used_ms < KEEP_MS && bytes <= BYTES_MOST) {
            p = &t->next;
            continue;
        }
        *p = t->next;
        titles_free(t);
    }
}

void titles_idle(struct storage_ledger *l)
{
    titles_trim(l, monotonic_ms());
}

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static int titles_add(struct titles *t, int64_t id, const char *title)
{
    size_t bytes = strlen(title) + 1;
    if (t->n == t->cap) {
        size_t cap = t->cap ? t->cap * 2 : 256;
        struct title *grown = realloc(t->rows, cap * sizeof *grown);
        if (!grown)
            return -ENOMEM;
        t->rows = grown;
        t->cap = cap;
    }
    if (t->bytes + bytes > t->cap_bytes) {
        size_t cap = t->cap_bytes ? t->cap_bytes : 4096;
        while (cap < t->bytes + bytes)
            cap *= 2;
        char *grown = realloc(t->text, cap);
        if (!grown)
            return -ENOMEM;
        t->text = grown;
        t->cap_bytes = cap;
    }
    t->rows[t->n++] = (struct title){id, t->bytes};
    for (size_t i = 0; i < bytes; i++)
        t->text[t->bytes++] = lower(title[i]);
    return 0;
}

static struct titles *titles_of(struct storage_ledger *l, int64_t owner)
{
    struct titles *t = l->titles;
    while (t && t->owner != owner)
        t = t->next;
    return t;
}

void titles_note(struct storage_ledger *l, int64_t owner, int64_t id, const char *title)
{
    struct titles *t = titles_of(l, owner);
    if (!t || !title || (!t->whole && id > t->last)) /* it will be read */
        return;
    l->titles_changed = true;
    /* Each change leaves an old one behind: not for ever. */
    if (t->n > 2 * t->n_read + PIECE_ROWS || titles_add(t, id, title))
        titles_give_up(l);
}

void titles_forget(struct storage_ledger *l, int64_t owner, int64_t id)
{
    struct titles *t = titles_of(l, owner);
    for (size_t i = 0; t && i < t->n; i++)
        if (t->rows[i].id == id) {
            l->titles_changed = true;
            memset(t->text + t->rows[i].at, 0, strlen(t->text + t->rows[i].at));
        }
}

/* Reads some more of them. */
static int titles_read(struct storage_ledger *l, struct titles *t)
{
    int rc, seen = 0;
    sqlite3_stmt *s = STMT_WITH(l, S_CONV_TITLES, t->owner, t->last, PIECE_ROWS);
    while ((rc = stmt_step(l, s)) == 1) {
        const char *title = (const char *)sqlite3_column_text(s, 1);
        rc = title ? titles_add(t, sqlite3_column_int64(s, 0), title) : -ENOMEM;
        if (rc)
            break;
        t->last = sqlite3_column_int64(s, 0);
        seen++;
    }
    stmt_reset(s);
    t->n_read = t->n;
    t->whole = seen < PIECE_ROWS;
    return rc;
}

/* The owner's titles, first in the list. */
static struct titles *titles_get(struct storage_ledger *l, int64_t owner)
{
    struct titles *t = titles_of(l, owner);
    if (!t && !(t = calloc(1, sizeof *t)))
        return NULL;
    t->owner = owner;
    for (struct titles **p = &l->titles; *p; p = &(*p)->next)
        if (*p == t) {
            *p = t->next;
            break;
        }
    t->next = l->titles;
    l->titles = t;
    t->used_ms = monotonic_ms();
    titles_trim(l, t->used_ms);
    return t;
}

static int by_id(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Conversations whose titles contain the word, ascending: *ids (malloc'd) of *n. */
static int titles_match(const struct titles *t, const char *word, int64_t **ids, size_t *n)
{
    size_t len = strlen(word), row = 0, cap = 0;
    char *wanted = malloc(len + 1);
    int64_t *found = NULL;
    int rc = wanted ? 0 : -ENOMEM;
    *n = 0;
    for (size_t i = 0; wanted && i <= len; i++)
        wanted[i] = lower(word[i]);
    for (size_t at = 0; !rc && at < t->bytes;) {
        const char *hit = memmem(t->text + at, t->bytes - at, wanted, len);
        if (!hit)
            break;
        size_t place = (size_t)(hit - t->text), low = row, high = t->n;
        while (high - low > 1) { /* the last title that begins at or before it */
            size_t middle = low + (high - low) / 2;
            *(t->rows[middle].at <= place ? &low : &high) = middle;
        }
        row = low;
        if (*n == cap) {
            cap = cap ? cap * 2 : 256;
            int64_t *grown = realloc(found, cap * sizeof *grown);
            if (!grown) {
                rc = -ENOMEM;
                break;
            }
            found = grown;
        }
        found[(*n)++] = t->rows[row].id;
        at = row + 1 < t->n ? t->rows[row + 1].at : t->bytes;
    }
    free(wanted);
    if (rc) {
        free(found);
        return rc;
    }
    if (*n > 1)
        qsort(found, *n, sizeof *found, by_id);
    *ids = found;
    return 0;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

struct search {
    struct storage_ledger *l;
    int64_t owner;
    const char *word;
    struct storage_cursor *at;
    struct storage_conversation *rows;
    size_t max, n, bytes;
};

static bool enough(const struct search *s)
{
    return s->n == s->max || s->bytes >= STORAGE_LIST_BYTES;
}

/* Takes a row if its title is still one that is wanted. */
static int take(struct search *s, int64_t id)
{
    struct storage_conversation c;
    int rc = storage_conversation_by_id(s->l, s->owner, id, &c);
    if (rc)
        return rc == -ENOENT ? 0 : rc;
    if (c.kind == STORAGE_CONVERSATION_LISTED && c.title && strcasestr(c.title, s->word)) {
        s->bytes += storage_conversation_bytes(&c);
        s->rows[s->n++] = c;
    } else {
        storage_conversation_free(&c);
    }
    return 0;
}

static bool behind(struct storage_cursor at, int64_t updated_ms, int64_t id)
{
    return updated_ms < at.updated_ms || (updated_ms == at.updated_ms && id < at.id);
}

static int latest_first(const void *a, const void *b)
{
    const struct storage_cursor *x = a, *y = b;
    return behind(*x, y->updated_ms, y->id) ? -1 : behind(*y, x->updated_ms, x->id) ? 1 : 0;
}

/* Of few matches: when each was used last, then the latest of them. */
static int search_few(struct search *s, const int64_t *ids, size_t n)
{
    struct storage_cursor places[FEW];
    size_t found = 0;
    int rc = 0;
    for (size_t i = 0; i < n; i++) {
        if (i && ids[i] == ids[i - 1])
            continue;
        sqlite3_stmt *q = STMT_WITH(s->l, S_CONV_USED, ids[i], s->owner);
        rc = stmt_step(s->l, q);
        if (rc < 0)
            return rc;
        if (rc == 0)
            continue;
        places[found] = (struct storage_cursor){sqlite3_column_int64(q, 0), ids[i]};
        found += behind(*s->at, places[found].updated_ms, ids[i]);
        stmt_reset(q);
    }
    rc = 0;
    if (found)
        qsort(places, found, sizeof *places, latest_first);
    for (size_t i = 0; i < found && !enough(s) && !rc; i++) {
        *s->at = places[i];
        rc = take(s, places[i].id);
    }
    return rc;
}

/* Of many: the list in its order, some of it. *over: it came to its end, or there are rows enough. */
static int search_many(struct search *s, const int64_t *ids, size_t n, bool *over)
{
    struct storage_cursor *places = malloc(PIECE_ROWS * sizeof *places);
    size_t seen = 0, i = 0;
    int rc;
    if (!places)
        return -ENOMEM;
    sqlite3_stmt *q = STMT_WITH(s->l, S_CONV_ORDER, s->owner, s->at->updated_ms, s->at->id, PIECE_ROWS);
    while (seen < PIECE_ROWS && (rc = stmt_step(s->l, q)) == 1)
        places[seen++] = (struct storage_cursor){sqlite3_column_int64(q, 0), sqlite3_column_int64(q, 1)};
    stmt_reset(q);
    rc = rc < 0 ? rc : 0;
    for (; i < seen && !enough(s) && !rc; i++) {
        *s->at = places[i];
        if (bsearch(&places[i].id, ids, n, sizeof *ids, by_id))
            rc = take(s, places[i].id);
    }
    *over = enough(s) || seen < PIECE_ROWS;
    free(places);
    return rc;
}

int storage_conversation_search(struct storage_ledger *l, int64_t owner, struct storage_cursor *at, const char *query,
                                struct storage_conversation *rows, size_t max, size_t *n, bool *over)
{
    struct search s = {.l = l, .owner = owner, .word = query, .at = at, .rows = rows, .max = max};
    struct titles *t = titles_get(l, owner);
    if (!t)
        return -ENOMEM;
    *n = 0;
    *over = false;
    int rc = t->whole ? 0 : titles_read(l, t);
    if (rc) {
        titles_give_up(l);
        return rc;
    }
    if (!t->whole)
        return 0;
    int64_t *ids = NULL;
    size_t n_ids = 0;
    rc = titles_match(t, query, &ids, &n_ids);
    *over = true;
    if (!rc)
        rc = n_ids <= FEW ? search_few(&s, ids, n_ids) : search_many(&s, ids, n_ids, over);
    free(ids);
    if (rc) {
        while (s.n)
            storage_conversation_free(&rows[--s.n]);
        return rc;
    }
    *n = s.n;
    return 0;
}
