/* work.c - what takes time in proportion to what a client sent is done by a few threads of its own, and its result is
 * taken on the network thread: parsing large bodies and messages, making long answers, tokenizing.
 *
 * A piece of work belongs to its thread while it runs and to the network thread otherwise. It knows its client by
 * number, for that may have gone when it is done. One owner's pieces take at most half of the threads, so that those of
 * others are done meanwhile; they begin in the order in which they came.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/run/run.h"

#define THREADS       4
#define OWNER_THREADS 2

struct workers {
    pthread_mutex_t lock; /* guards the list, stopping and running */
    pthread_cond_t changed;
    struct work *head, **tail;
    bool stopping;
    const struct work *running[THREADS]; /* the first n_running */
    size_t n_running;
    pthread_t threads[THREADS];
    size_t n;
    struct events *events;
};

static void take(struct event *event, bool closing)
{
    struct work *w = (struct work *)event;
    w->done(w, closing);
}

static bool may_run(const struct workers *ws, const struct work *w)
{
    size_t n = 0;
    for (size_t i = 0; i < ws->n_running; i++) {
        n += strcmp(ws->running[i]->owner, w->owner) == 0;
    }
    return n < OWNER_THREADS || ws->stopping;
}

/* Takes the first piece off the list that may run; NULL: there is none. */
static struct work *next_of(struct workers *ws)
{
    struct work **at = &ws->head, *w;
    while (*at && !may_run(ws, *at)) {
        at = &(*at)->next;
    }
    w = *at;
    if (w) {
        *at = w->next;
        if (!w->next) {
            ws->tail = at;
        }
        ws->running[ws->n_running++] = w;
    }
    return w;
}

static void ended(struct workers *ws, const struct work *w)
{
    size_t i = 0;
    while (ws->running[i] != w) {
        i++;
    }
    ws->running[i] = ws->running[--ws->n_running];
}

static void *work(void *arg)
{
    struct workers *ws = arg;
    (void)pthread_setname_np(pthread_self(), "convod-json");
    pthread_mutex_lock(&ws->lock);
    for (;;) {
        struct work *w;
        while (!(w = next_of(ws)) && !ws->stopping) {
            pthread_cond_wait(&ws->changed, &ws->lock);
        }
        if (!w) {
            break;
        }
        bool stopping = ws->stopping;
        pthread_mutex_unlock(&ws->lock);
        if (!stopping) {
            w->run(w);
        }
        pthread_mutex_lock(&ws->lock);
        ended(ws, w);
        pthread_mutex_unlock(&ws->lock);
        events_post(ws->events, &w->event);
        pthread_mutex_lock(&ws->lock);
    }
    pthread_mutex_unlock(&ws->lock);
    return NULL;
}

int workers_start(struct events *events, struct workers **out)
{
    struct workers *ws = calloc(1, sizeof(*ws));
    if (!ws) {
        return -ENOMEM;
    }
    ws->events = events;
    ws->tail = &ws->head;
    int rc = -pthread_mutex_init(&ws->lock, NULL);
    if (!rc) {
        rc = -pthread_cond_init(&ws->changed, NULL);
        if (rc) {
            pthread_mutex_destroy(&ws->lock);
        }
    }
    if (rc) {
        free(ws);
        return rc;
    }
    while (ws->n < THREADS && !rc) {
        rc = -pthread_create(&ws->threads[ws->n], NULL, work, ws);
        ws->n += !rc;
    }
    if (rc) {
        workers_stop(ws);
        return rc;
    }
    *out = ws;
    return 0;
}

void workers_stop(struct workers *ws)
{
    if (!ws) {
        return;
    }
    pthread_mutex_lock(&ws->lock);
    ws->stopping = true;
    pthread_cond_broadcast(&ws->changed);
    pthread_mutex_unlock(&ws->lock);
    for (size_t i = 0; i < ws->n; i++) {
        pthread_join(ws->threads[i], NULL);
    }
    pthread_cond_destroy(&ws->changed);
    pthread_mutex_destroy(&ws->lock);
    free(ws);
}

void work_submit(struct workers *ws, struct work *w, const char *owner)
{
    snprintf(w->owner, sizeof(w->owner), "%s", owner);
    w->event.take = take;
    w->next = NULL;
    pthread_mutex_lock(&ws->lock);
    *ws->tail = w;
    ws->tail = &w->next;
    pthread_cond_signal(&ws->changed);
    pthread_mutex_unlock(&ws->lock);
}

/* ---- what is freed -------------------------------------------------------------------------------------------------
 */

struct freed {
    struct work work; /* first */
    cJSON *json;
};

/* [worker] */
static void free_json(struct work *w)
{
    struct freed *f = (struct freed *)w;
    cJSON_Delete(f->json);
    f->json = NULL;
}

static void freed(struct work *w, bool closing)
{
    (void)closing;
    free_json(w); /* where it was not begun */
    free(w);
}

void work_free_json(struct workers *ws, cJSON *json, const char *owner)
{
    struct freed *f = json ? calloc(1, sizeof(*f)) : NULL;
    if (!f) {
        cJSON_Delete(json);
        return;
    }
    f->work.run = free_json;
    f->work.done = freed;
    f->json = json;
    work_submit(ws, &f->work, owner);
}
