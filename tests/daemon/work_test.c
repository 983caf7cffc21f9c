/* work_test.c - what is done away from the network thread: in order, and nobody's pieces keep those of others waiting.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "daemon/api/api.h"

enum { PIECES = 12 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all below */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int running, most, begun;
static bool open_gate, other_done;

struct piece {
    struct work work;
    int order; /* in which it began */
};

static void wait_behind_the_gate(struct work *w)
{
    struct piece *p = (struct piece *)w;
    pthread_mutex_lock(&lock);
    p->order = begun++;
    most = ++running > most ? running : most;
    pthread_cond_broadcast(&changed);
    while (!open_gate) {
        pthread_cond_wait(&changed, &lock);
    }
    running--;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void tell(struct work *w)
{
    (void)w;
    pthread_mutex_lock(&lock);
    other_done = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static int n_done;

static void done(struct work *w, bool closing)
{
    (void)w;
    (void)closing;
    n_done++;
}

/* One owner's pieces that do not end leave threads for another's. */
static void test_owners(void **state)
{
    (void)state;
    struct events events;
    struct workers *ws;
    struct piece pieces[PIECES], other = {.work = {.run = tell, .done = done}};
    assert_int_equal(events_init(&events), 0);
    assert_int_equal(workers_start(&events, &ws), 0);
    for (int i = 0; i < PIECES; i++) {
        pieces[i] = (struct piece){.work = {.run = wait_behind_the_gate, .done = done}};
        work_submit(ws, &pieces[i].work, "ann");
    }
    work_submit(ws, &other.work, "bob");
    pthread_mutex_lock(&lock);
    while (!other_done || running < 2) {
        pthread_cond_wait(&changed, &lock);
    }
    open_gate = true;
    pthread_cond_broadcast(&changed);
    while (begun < PIECES || running > 0) {
        pthread_cond_wait(&changed, &lock);
    }
    pthread_mutex_unlock(&lock);
    workers_stop(ws);
    events_drop(&events);
    events_destroy(&events);
    assert_int_equal(most, 2);
    assert_int_equal(n_done, PIECES + 1);
    /* The i-th has at most one of the others that came later before it. */
    for (int i = 0; i < PIECES; i++) {
        assert_true(pieces[i].order <= i + 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_owners)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
