/* unsaved.c - what could not be written is tried again. Engine thread.
 *
 * A turn that has failed has a row that says that it runs. Where `failed` cannot be written to it (a full disk may be
 * why the turn has failed), it is written when that is possible; without it, the next start does.
 *
 * A saving that failed (a full disk, a write error, too much that waits) stays in a list of its own, bound to the
 * context that still has the pages. It is tried again a little later each time, when its conversation is to be evicted,
 * and once when the session ends; from the first success on the stored receipt says `yes`. A context that went on
 * meanwhile is saved with its later turn, which has all of the earlier one's. Without its pages there is nothing to be
 * saved any more.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "session/session_internal.h"

#define RETRY_MS_FIRST 1000
#define RETRY_MS_MOST  30000

/* ---- turns that failed ---- */

struct mark {
    struct mark *next;
    struct session *session;
    int64_t turn, completed_ms, due_ms;
    const char *message; /* static */
    int pause_ms, rc;
    bool under_way;
};

void unsaved_mark(struct session *s, const struct turn *t)
{
    struct mark *m = malloc(sizeof *m);
    if (!m)
        return; /* the next start */
    *m = (struct mark){.next = s->marks,
                       .session = s,
                       .turn = t->accepted.id,
                       .completed_ms = session_wall_ms(),
                       .due_ms = session_now_ns() / 1000000 + RETRY_MS_FIRST,
                       .message = t->end.message,
                       .pause_ms = RETRY_MS_FIRST};
    s->marks = m;
}

static int mark_run(struct storage_ledger *l, void *arg)
{
    struct mark *m = arg;
    return storage_turn_fail(l, m->turn, m->message, m->completed_ms);
}

static void mark_over(struct session *s, void *arg)
{
    struct mark *m = arg;
    s->jobs--;
    m->under_way = false;
    if (m->rc && m->rc != -ENOENT) { /* as long as it was not deleted meanwhile */
        m->pause_ms = 2 * m->pause_ms < RETRY_MS_MOST ? 2 * m->pause_ms : RETRY_MS_MOST;
        m->due_ms = session_now_ns() / 1000000 + m->pause_ms;
        return;
    }
    struct mark **p = &s->marks;
    while (*p != m)
        p = &(*p)->next;
    *p = m->next;
    free(m);
}

static void mark_done(void *arg, int rc)
{
    struct mark *m = arg;
    m->rc = rc;
    while (session_post(m->session, mark_over, m))
        ;
}

static void marks_retry(struct session *s)
{
    int64_t now_ms = s->marks ? session_now_ns() / 1000000 : 0;
    for (struct mark *m = s->marks; m; m = m->next) {
        if (m->under_way || now_ms < m->due_ms)
            continue;
        m->due_ms = now_ms + m->pause_ms;
        m->under_way =
            storage_submit(s->storage, (struct storage_job){.run = mark_run, .done = mark_done, .arg = m}) == 0;
        s->jobs += m->under_way;
    }
}

int64_t unsaved_due_ms(const struct session *s)
{
    int64_t due_ms = s->unsaved ? s->unsaved_at_ms : INT64_MAX;
    for (const struct mark *m = s->marks; m; m = m->next)
        if (!m->under_way && m->due_ms < due_ms)
            due_ms = m->due_ms;
    return due_ms;
}

void unsaved_marks_free(struct session *s)
{
    while (s->marks) {
        struct mark *m = s->marks;
        s->marks = m->next;
        free(m);
    }
}

/* ---- KV ---- */

void unsaved_add(struct session *s, struct saving *saving)
{
    saving->next = s->unsaved;
    s->unsaved = saving;
    s->unsaved_pause_ms = !s->unsaved_pause_ms                      ? RETRY_MS_FIRST
                          : 2 * s->unsaved_pause_ms < RETRY_MS_MOST ? 2 * s->unsaved_pause_ms
                                                                    : RETRY_MS_MOST;
    s->unsaved_at_ms = session_now_ns() / 1000000 + s->unsaved_pause_ms;
}

void unsaved_forget(struct session *s, const struct hot *h)
{
    for (struct saving *saving = s->savings; saving; saving = saving->next)
        if (saving->hot == h)
            saving->hot = NULL;
    for (struct saving **p = &s->unsaved; *p;) {
        struct saving *saving = *p;
        if (saving->hot != h) {
            p = &saving->next;
            continue;
        }
        *p = saving->next;
        saving_free(saving);
    }
}

bool unsaved_try(struct session *s, int64_t conversation)
{
    bool any = false;
    for (struct saving **p = &s->unsaved; *p;) {
        struct saving *saving = *p;
        struct hot *h = saving->hot;
        if (h->user || (conversation && saving->conversation != conversation)) {
            p = &saving->next;
            continue;
        }
        *p = saving->next;
        any = true;
        saving_begin(s, saving, h);
    }
    return any;
}

void unsaved_retry(struct session *s, bool now)
{
    if (!s->closing)
        marks_retry(s);
    if (!s->unsaved || (!now && session_now_ns() / 1000000 < s->unsaved_at_ms))
        return;
    s->unsaved_at_ms = session_now_ns() / 1000000 + s->unsaved_pause_ms;
    (void)unsaved_try(s, 0);
}
