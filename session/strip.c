/* strip.c - contexts without the thinking of the turns before (`current_turn`). Engine thread, but for what is said to
 * be a job's, and what of a context is told by whoever makes it.
 *
 * To take thinking out of the past makes another context of it, which no answer should have to wait for. So it is made
 * ahead: when an answer to which that was asked is stored, a warm-up of the background renders what came before it, its
 * question and itself as a history, in which no answer has thinking, and prefills what is new of that: little more than
 * the answer. It is committed as a row of its own beside the turn's (storage_turn_strip()), and saved like any other.
 * The next question follows that row's context where it is there by then, whole and stored; otherwise the turn's own.
 * What is said behind it and is answered by nothing has such a row, too.
 * Whatever stops the warm-up takes what it has put with it: the one behind the next answer makes up for it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "session/session_internal.h"

#define LOOKED_BACK 64 /* turns without an answer, one behind the other */

const struct storage_turn *context_base(const struct turn *t)
{
    return t->ask.strips || t->found.stripped.id ? &t->found.stripped : &t->found.parent;
}

/* ---- which form a turn follows ---- */

/* Whether the turn begins with a question: what is before it are turns that are over. One that only brings a context
 * back is for such a turn. */
static bool asks(const struct turn *t)
{
    bool any = turn_touches(t);
    for (size_t i = t->found.matched; i < t->n_messages; i++)
        any |= t->messages[i].role == ENGINE_USER;
    return any;
}

/* Whether it says something of the user. */
static bool asked(const struct storage_turn *row)
{
    enum engine_role role;
    for (size_t i = 0; i < row->n_items; i++)
        if (!row->items[i].output && !items_role(row->items[i].kind, row->items[i].role, &role) && role == ENGINE_USER)
            return true;
    return false;
}

size_t strip_before(const struct turn *t)
{
    size_t n = t->found.n_path;
    while (n && !asks(t) && !asked(&t->found.path[n - 1]))
        n--;
    return n && !asks(t) ? n - 1 : n;
}

/* Whether all of its KV is there for this engine. A turn that waited in the ledger follows nothing that came later. */
static int usable(struct storage_ledger *l, const struct turn *t, const struct storage_turn *stripped)
{
    if (!context_same_model(t, stripped) || !stripped->kv || context_kv_foreign(t, stripped->kv) ||
        (t->found.requeued && t->found.requeued <= stripped->id))
        return 0;
    return storage_turn_is_held(l, stripped);
}

static int find_form(struct storage_ledger *l, struct turn *t)
{
    struct found *f = &t->found;
    int rc = storage_turn_stripped(l, f->owner.id, f->parent.id, &f->stripped);
    if (rc)
        return rc == -ENOENT ? 0 : rc;
    if ((rc = usable(l, t, &f->stripped)) <= 0)
        storage_turn_free(&f->stripped);
    return rc < 0 ? rc : 0;
}

/* ---- what is to be rendered ---- */

/* The turns since the last one whose form without thinking is there, which f->stripped gets; *whole: there is none
 * that what is new could be added to. *first: of these. */
static int count_since(struct storage_ledger *l, struct turn *t, size_t *n, int64_t *first, bool *whole)
{
    struct found *f = &t->found;
    int64_t up = f->parent.parent;
    *whole = f->parent.rebased || !up;
    *n = 1;
    *first = f->parent.id;
    while (!*whole) {
        bool rebased;
        int rc = storage_turn_stripped(l, f->owner.id, up, &f->stripped);
        if (!rc && context_same_model(t, &f->stripped))
            return 0;
        storage_turn_free(&f->stripped);
        *first = up;
        if ((rc && rc != -ENOENT) || (rc = storage_turn_parent(l, f->owner.id, up, &up, &rebased)))
            return rc;
        *whole = rebased || !up;
        ++*n;
    }
    return 0;
}

/* All of it, unless what it began behind is not stored: then it cannot be rendered anew, which its first turn says. */
static int find_whole(struct storage_ledger *l, struct turn *t, int64_t first)
{
    struct found *f = &t->found;
    struct storage_turn row;
    int rc = storage_turn_by_id(l, f->owner.id, first, 0, &row);
    if (rc)
        return rc;
    bool lacks = row.unstored && !row.parent;
    storage_turn_free(&row);
    if (lacks)
        return turn_refuse(t, 0, SESSION_INVALID, "not all that was said before is stored");
    return storage_turn_path(l, f->owner.id, f->parent.id, STORAGE_TURN_ITEMS, &f->path, &f->n_path);
}

static int find_since(struct storage_ledger *l, struct turn *t)
{
    struct found *f = &t->found;
    size_t n;
    int64_t first;
    bool whole;
    int rc = count_since(l, t, &n, &first, &whole);
    if (rc)
        return rc;
    if (whole)
        return find_whole(l, t, first);
    if (!(f->path = calloc(n, sizeof *f->path)))
        return -ENOMEM;
    f->n_path = n;
    int64_t id = f->parent.id;
    for (size_t i = n; !rc && i-- > 0; id = f->path[i].parent)
        rc = storage_turn_by_id(l, f->owner.id, id, STORAGE_TURN_ITEMS, &f->path[i]);
    return rc;
}

static bool wants(const struct storage_turn *row)
{
    return row->receipt && strstr(row->receipt, "\"reasoning_context\":");
}

/* Whether that was asked for: of a turn without an answer, of the one that it stands behind, if that is near. */
static int is_wanted(struct storage_ledger *l, struct turn *t)
{
    struct found *f = &t->found;
    bool asked_for = wants(&f->parent);
    int64_t id = f->parent.answered ? 0 : f->parent.parent;
    int rc = 0;
    for (int left = LOOKED_BACK; id && !asked_for && !rc && left > 0; left--) {
        struct storage_turn row;
        if ((rc = storage_turn_by_id(l, f->owner.id, id, 0, &row)))
            break;
        asked_for = wants(&row);
        id = row.answered ? 0 : row.parent;
        storage_turn_free(&row);
    }
    return rc || asked_for ? rc : turn_refuse(t, 0, SESSION_INVALID, "nobody asked for it");
}

int strip_find(struct storage_ledger *l, struct turn *t)
{
    struct found *f = &t->found;
    int64_t began_with = f->stripped.id; /* an answer that is gone on with */
    int rc = 0;
    f->stripped.id = 0;
    if (t->ask.strips && f->anew) {
        rc = turn_refuse(t, 0, SESSION_INVALID, "another model answered");
    } else if (t->ask.strips) {
        rc = is_wanted(l, t);
        rc = rc || f->failure != SESSION_OK ? rc : find_since(l, t);
    } else if (t->continues && began_with && !f->anew) {
        rc = storage_turn_by_id(l, f->owner.id, began_with, 0, &f->stripped);
    } else if (t->ask.current_turn && !t->continues && !f->anew && asks(t)) {
        rc = find_form(l, t);
    }
    if (context_base(t) != &f->parent) { /* what was read may be the parent's */
        free(f->tokens);
        f->tokens = NULL;
        f->tokens_bytes = 0;
    }
    return rc;
}

/* ---- the warm-up ---- */

static bool calls(const struct turn *t)
{
    for (size_t i = 0; i < t->n_output_items; i++)
        if (!strcmp(t->output[i].kind, "function_call"))
            return true;
    return false;
}

/* Those that wait are few, however long nothing else is idle: one of the turn's parent is left to this turn's, which
 * covers it, and of too many the oldest goes. What has been put aside has done a part of its work. */
static void keep_few(const struct turn *t)
{
    const struct session *s = t->session;
    const char *parent = t->found.parent.id ? t->found.parent.public_id : NULL;
    struct turn *oldest = NULL;
    int waiting = 0;
    for (struct turn *w = s->turns; w; w = w->next) {
        if (!w->ask.strips || w->state > TURN_WAITING || w->end.cancelled)
            continue;
        w->end.cancelled = parent && !w->aside.n && !strcmp(w->parent, parent);
        waiting += !w->end.cancelled;
        oldest = oldest || w->end.cancelled ? oldest : w;
    }
    if (oldest && waiting >= s->max_waiting / 4)
        oldest->end.cancelled = true;
}

void strip_begin(const struct turn *t)
{
    struct session *s = t->session;
    char id[48];
    bool left =
        t->end.reason && !strcmp(t->end.reason, "abandoned"); /* nobody has read it, and its retry replaces it */
    s->current_turn_asked |= t->ask.current_turn;             /* where nobody does, nothing is looked at */
    bool maybe = t->ask.generate ? t->ask.current_turn : s->current_turn_asked && t->found.parent.id != 0;
    if (t->ask.strips || !maybe || left || calls(t) || s->closing || !engine_chat_thinks(s->engine) ||
        accept_new_id("context_", id))
        return;
    struct turn *w = calloc(1, sizeof *w);
    if (!w)
        return;
    w->session = s;
    w->owner = strdup(t->owner);
    w->response_id = strdup(id);
    w->conversation = strdup(t->found.conversation.public_id);
    w->parent = strdup(t->response_id);
    struct session_texts *none = session_texts_new(NULL, 0);
    w->ask.strips = w->ask.store = w->ask.background = w->ask.keeps = true;
    w->received_ns = session_now_ns();
    w->created_ms = session_wall_ms();
    if (none)
        texts_give(none, w);
    if (none && w->owner && w->response_id && w->conversation && w->parent) {
        keep_few(t);
        turn_begin(s, w);
    } else {
        turn_free(w);
    }
}

bool strip_stop(const struct turn *t)
{
    bool over = true;
    for (struct turn *w = t->session->turns; w; w = w->next)
        if (w->ask.strips && w->state != TURN_OVER && !strcmp(w->conversation, t->found.conversation.public_id)) {
            w->end.cancelled = true;
            over = false;
        }
    return over;
}

/* ---- what is told ---- */

const char *strip_told(const struct turn *t)
{
    static const char without[] = "current_turn", with[] = "all_turns";
    const struct found *f = &t->found;
    if (!t->ask.current_turn || t->ask.raw)
        return NULL;
    if (f->stripped.id || t->past.changed || !t->n_inherited || !engine_chat_thinks(t->session->engine))
        return without;
    const struct storage_turn *before = f->begun.id ? &f->begun : &f->parent;
    bool as_before = (f->begun.id || !asks(t)) && before->receipt &&
                     strstr(before->receipt, "\"reasoning_context\":\"current_turn\"");
    return as_before ? without : with;
}
