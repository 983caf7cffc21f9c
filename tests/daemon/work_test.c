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
static bool first_begun, last_gate, other_done;

struct piece {
    struct work work;
    int order; /* in which it began */
};

static struct piece pieces[PIECES];

/* All wait for the other owner's and the first; the first for all others, so that one place is left for them. */
static void wait_at_its_gate(struct work *w)
{
    struct piece *p = (struct piece *)w;
    pthread_mutex_lock(&lock);
    p->order = begun++;
    first_begun = first_begun || p == pieces;
    most = ++running > most ? running : most;
    pthread_cond_broadcast(&changed);
    while (!(p == pieces ? last_gate : first_begun && other_done)) {
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
    struct piece other = {.work = {.run = tell, .done = done}};
    assert_int_equal(events_init(&events), 0);
    assert_int_equal(workers_start(&events, &ws), 0);
    for (int i = 0; i < PIECES; i++) {
        pieces[i] = (struct piece){.work = {.run = wait_at_its_gate, .done = done}};
        work_submit(ws, &pieces[i].work, "ann");
    }
    work_submit(ws, &other.work, "bob");
    pthread_mutex_lock(&lock);
    while (!other_done || begun < PIECES || running > 1) {
        pthread_cond_wait(&changed, &lock);
    }
    last_gate = true;
    pthread_cond_broadcast(&changed);
    while (running > 0) {
        pthread_cond_wait(&changed, &lock);
    }
    pthread_mutex_unlock(&lock);
    workers_stop(ws);
    events_drop(&events);
    events_destroy(&events);
    assert_int_equal(most, 2);
    assert_int_equal(n_done, PIECES + 1);
    for (int i = 2; i < PIECES; i++) {
        assert_true(pieces[i].order > pieces[i - 1].order);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_owners)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
