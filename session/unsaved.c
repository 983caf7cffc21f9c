/* unsaved.c - turns whose KV could not be saved: it is tried again while their context is in pages. Engine thread.
 *
 * A saving that failed (a full disk, a write error, too much that waits) stays in a list of its own, bound to the
 * context that still has the pages. It is tried again a little later each time, when its conversation is to be evicted,
 * and once when the session ends; from the first success on the stored receipt says `yes`. A context that went on
 * meanwhile is saved with its later turn, which has all of the earlier one's. Without its pages there is nothing to be
 * saved any more.
 */
#include <stdlib.h>
#include <string.h>

#include "session/session_internal.h"

#define RETRY_MS_FIRST 1000
#define RETRY_MS_MOST  30000

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
    if (!s->unsaved || (!now && session_now_ns() / 1000000 < s->unsaved_at_ms))
        return;
    s->unsaved_at_ms = session_now_ns() / 1000000 + s->unsaved_pause_ms;
    (void)unsaved_try(s, 0);
}
