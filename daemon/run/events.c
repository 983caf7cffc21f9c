/* events.c - the one way into the network thread.
 *
 * Other threads append to a list under a lock and wake the loop through the function that was handed down. The loop
 * takes the whole list at once, so that the lock is held for a few instructions on either side: whoever wakes it holds
 * another one, or what he wakes would wait for him. Who has several events to post holds the wake-up back until the
 * last.
 */
#include <string.h>

#include "daemon/run/run.h"

int events_init(struct events *q)
{
    memset(q, 0, sizeof(*q));
    q->tail = &q->head;
    int rc = pthread_mutex_init(&q->lock, NULL);
    if (rc == 0 && (rc = pthread_mutex_init(&q->waking, NULL)) != 0) {
        pthread_mutex_destroy(&q->lock);
    }
    return -rc;
}

void events_destroy(struct events *q)
{
    pthread_mutex_destroy(&q->lock);
    pthread_mutex_destroy(&q->waking);
}

void events_wake_by(struct events *q, void (*wake)(void *arg), void *arg)
{
    pthread_mutex_lock(&q->waking);
    q->wake = wake;
    q->arg = arg;
    pthread_mutex_unlock(&q->waking);
}

static void wake_up(struct events *q)
{
    pthread_mutex_lock(&q->waking);
    if (q->wake) {
        q->wake(q->arg);
    }
    pthread_mutex_unlock(&q->waking);
}

void events_post(struct events *q, struct event *e)
{
    e->next = NULL;
    pthread_mutex_lock(&q->lock);
    bool wake = q->head == NULL && !q->held;
    *q->tail = e;
    q->tail = &e->next;
    pthread_mutex_unlock(&q->lock);
    if (wake) {
        wake_up(q);
    }
}

void events_hold(struct events *q, bool hold)
{
    pthread_mutex_lock(&q->lock);
    q->held = hold;
    bool wake = q->head && !hold;
    pthread_mutex_unlock(&q->lock);
    if (wake) {
        wake_up(q);
    }
}

struct event *events_list(struct events *q)
{
    pthread_mutex_lock(&q->lock);
    struct event *list = q->head;
    q->head = NULL;
    q->tail = &q->head;
    pthread_mutex_unlock(&q->lock);
    return list;
}

void events_drop(struct events *q)
{
    struct event *e = events_list(q);
    while (e) {
        struct event *next = e->next;
        e->take(e, true);
        e = next;
    }
}
