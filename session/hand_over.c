/* hand_over.c - one owner's conversations become another's.
 *
 * The owner's row gets another name and keeps its number and its key, so that everything stays where it is: responses,
 * keys of requests, stored segments, pages that are in use.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

#include "session/session_internal.h"

struct hand_over {
    struct session *session;
    char *from, *to;
};

static void hand_over_free(struct hand_over *h)
{
    free(h->from);
    free(h->to);
    free(h);
}

static int hand_over_run(struct storage_ledger *l, void *arg)
{
    const struct hand_over *h = arg;
    return storage_owner_rename(l, h->from, h->to);
}

static void hand_over_done(void *arg, int rc)
{
    struct hand_over *h = arg;
    if (!rc)
        session_log(h->session, LOG_NOTICE, "what `%s` had is now `%s`'s", h->from, h->to);
    else if (rc == -EEXIST)
        session_log(h->session, LOG_WARNING, "what `%s` has cannot become `%s`'s, who has conversations already",
                    h->from, h->to);
    else if (rc != -ENOENT)
        session_log(h->session, LOG_ERR, "what `%s` has could not be given to `%s`: %s", h->from, h->to, strerror(-rc));
    hand_over_free(h);
}

static void hand_over(struct session *s, void *arg)
{
    if (!s->storage ||
        storage_submit(s->storage, (struct storage_job){.run = hand_over_run, .done = hand_over_done, .arg = arg}))
        hand_over_free(arg);
}

int session_hand_over(struct session *s, const char *from, const char *to)
{
    struct hand_over *h = calloc(1, sizeof *h);
    if (!h)
        return -ENOMEM;
    *h = (struct hand_over){s, strdup(from), strdup(to)};
    int rc = h->from && h->to ? session_post(s, hand_over, h) : -ENOMEM;
    if (rc)
        hand_over_free(h);
    return rc;
}
