/* retention.c - conversations that nobody has used for long are deleted, when the operator wants that. Engine thread.
 *
 * Each goes as if its owner had deleted it, one after the other: whatever runs on it is stopped, nothing of it is left
 * on the disk, and if that fails it is tried again. Age is counted by the wall clock from a conversation's last turn or
 * change. A clock that is wrong must not cost anything: nothing is deleted in the first hour, in which it may still be
 * set, nor in the hour after it was; and when it is set ahead, what it stamped since it was set before, or since the
 * start, is as much younger. One that is set while no process runs is not seen.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

#include "session/session_internal.h"

#define WAIT_MS  (60 * 60 * 1000) /* before the first, and after the clock was set */
#define PAUSE_MS (60 * 1000)      /* between looks that found nothing */
#define STEP_MS  (60 * 1000)      /* the wall clock went so far otherwise than the steady one: it was set */

struct retention {
    struct session *session;
    int64_t now_ms;
    char *owner, *conversation;
    int rc;
};

void retention_start(struct session *s, int wait_ms)
{
    int64_t now_ms = session_now_ns() / 1000000, wall_ms = session_wall_ms();
    s->retain = (struct retain){.wait_ms = wait_ms ? wait_ms : WAIT_MS,
                                .offset_ms = wall_ms - now_ms,
                                .since_ms = wall_ms,
                                .looked_ms = now_ms};
    s->retain.due_ms = now_ms + s->retain.wait_ms;
}

static void over(struct retention *r, int pause_ms)
{
    r->session->retain.busy = false;
    r->session->retain.due_ms = session_now_ns() / 1000000 + pause_ms;
    free(r->owner);
    free(r->conversation);
    free(r);
}

static void deleted(struct session *s, void *arg)
{
    struct retention *r = arg;
    s->jobs--;
    if (r->rc == 0 || r->rc == -EINPROGRESS) {
        s->status.conversations_expired++;
        session_log(s, LOG_INFO, "conversation %s of %s was not used for longer than is kept, and is deleted",
                    r->conversation, r->owner);
    }
    over(r, r->rc == 0 ? 0 : PAUSE_MS);
    retention_tick(s); /* the next one */
}

/* [any thread] */
static void delete_done(void *arg, const struct session_result *result)
{
    struct retention *r = arg;
    r->rc = result->rc;
    while (session_post(r->session, deleted, r))
        ;
}

static void found(struct session *s, void *arg)
{
    struct retention *r = arg;
    s->jobs--;
    if (r->rc || s->closing || !s->storage) {
        bool more = r->rc == -EAGAIN;
        over(r, more ? 0 : PAUSE_MS);
        if (more)
            retention_tick(s); /* the next owners; other jobs come between */
        return;
    }
    s->jobs++;
    if (session_conversation_delete(s, r->owner, r->conversation, delete_done, r)) {
        s->jobs--;
        over(r, PAUSE_MS);
    }
}

static int find_run(struct storage_ledger *l, void *arg)
{
    struct retention *r = arg;
    return storage_conversation_expired(l, r->now_ms, &r->owner, &r->conversation);
}

static void find_done(void *arg, int rc)
{
    struct retention *r = arg;
    r->rc = rc;
    while (session_post(r->session, found, r))
        ;
}

static int correct_run(struct storage_ledger *l, void *arg)
{
    const struct retain *k = &((struct retention *)arg)->session->retain; /* which stays as it is meanwhile */
    return storage_conversations_younger(l, k->from_ms, k->to_ms, k->by_ms);
}

static void corrected(struct session *s, void *arg)
{
    struct retention *r = arg;
    s->jobs--;
    if (!r->rc) {
        session_log(s, LOG_NOTICE, "the clock was set %lld s ahead: what was used before is not that much older",
                    (long long)(s->retain.by_ms / 1000));
        s->retain.by_ms = 0;
    }
    over(r, r->rc ? PAUSE_MS : s->retain.wait_ms);
}

static void correct_done(void *arg, int rc)
{
    struct retention *r = arg;
    r->rc = rc;
    while (session_post(r->session, corrected, r))
        ;
}

/* Whether the wall clock was set. */
static void clocks_look(struct retain *k, int64_t now_ms, int64_t wall_ms)
{
    int64_t ahead_ms = wall_ms - now_ms - k->offset_ms;
    if (llabs((long long)ahead_ms) > STEP_MS && !k->by_ms) {
        if (ahead_ms > 0) {
            k->from_ms = k->since_ms;
            k->to_ms = wall_ms - ahead_ms;
            k->by_ms = ahead_ms;
        }
        k->offset_ms += ahead_ms;
        k->since_ms = wall_ms - (now_ms - k->looked_ms);
        k->due_ms = k->by_ms ? now_ms : now_ms + k->wait_ms;
    }
    k->looked_ms = now_ms;
}

void retention_tick(struct session *s)
{
    int64_t now_ms = session_now_ns() / 1000000, wall_ms = session_wall_ms();
    if (s->retain.busy || s->closing || !s->storage || !storage_limits_retain(s->storage))
        return;
    clocks_look(&s->retain, now_ms, wall_ms);
    if (now_ms < s->retain.due_ms)
        return;
    struct retention *r = calloc(1, sizeof *r);
    if (!r)
        return;
    r->session = s;
    r->now_ms = wall_ms;
    s->retain.busy = true;
    struct storage_job find = {.run = find_run, .done = find_done, .arg = r};
    struct storage_job correct = {.run = correct_run, .done = correct_done, .arg = r};
    if (storage_submit(s->storage, s->retain.by_ms ? correct : find))
        over(r, PAUSE_MS);
    else
        s->jobs++;
}
