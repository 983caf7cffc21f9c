/* engine_beside.c - a thread for what is done beside a pass: which tokens may come behind it, say, or which a long text
 * has. One thread gives it work and waits for it; it makes itself with the first. */
#include "engine/engine.h"

#include <pthread.h>
#include <stdlib.h>

struct engine_beside {
    pthread_t thread;
    bool started;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    void (*work)(void *arg); /* NULL: there is none */
    void *arg;
    bool over;
};

static void *run(void *arg)
{
    struct engine_beside *b = arg;
    (void)pthread_setname_np(pthread_self(), "convod-beside");
    pthread_mutex_lock(&b->lock);
    for (;;) {
        while (!b->work && !b->over)
            pthread_cond_wait(&b->changed, &b->lock);
        if (!b->work)
            break;
        pthread_mutex_unlock(&b->lock);
        b->work(b->arg); /* neither changes until it is done */
        pthread_mutex_lock(&b->lock);
        b->work = NULL;
        pthread_cond_broadcast(&b->changed);
    }
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

struct engine_beside *engine_beside_new(void)
{
    struct engine_beside *b = calloc(1, sizeof *b);
    if (!b)
        return NULL;
    if (pthread_mutex_init(&b->lock, NULL)) {
        free(b);
        return NULL;
    }
    if (pthread_cond_init(&b->changed, NULL)) {
        pthread_mutex_destroy(&b->lock);
        free(b);
        return NULL;
    }
    return b;
}

void engine_beside_free(struct engine_beside *b)
{
    if (!b)
        return;
    if (b->started) {
        pthread_mutex_lock(&b->lock);
        b->over = true;
        pthread_cond_broadcast(&b->changed);
        pthread_mutex_unlock(&b->lock);
        pthread_join(b->thread, NULL);
    }
    pthread_cond_destroy(&b->changed);
    pthread_mutex_destroy(&b->lock);
    free(b);
}

void engine_beside_start(struct engine_beside *b, void (*work)(void *arg), void *arg)
{
    if (!b->started)
        b->started = pthread_create(&b->thread, NULL, run, b) == 0;
    if (!b->started) {
        work(arg);
        return;
    }
    pthread_mutex_lock(&b->lock);
    b->work = work;
    b->arg = arg;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

void engine_beside_wait(struct engine_beside *b)
{
    if (!b->started)
        return;
    pthread_mutex_lock(&b->lock);
    while (b->work)
        pthread_cond_wait(&b->changed, &b->lock);
    pthread_mutex_unlock(&b->lock);
}
