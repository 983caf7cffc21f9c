/* ephemeral.c - store:false responses: nothing of them is on disk, and they can be followed from the place where they
 * were made until that goes away, for EPHEMERAL_SECONDS. They are counted, for each place and in all. What is asked for
 * over HTTP has its owner for a place, where nothing is followed by its id; who sends its content again is recognised.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/run/run.h"

struct ephemeral {
    struct ephemeral *next;
    int64_t made_ms;
    char id[ID_SIZE];
};

bool home_has(const struct run_home *home, const char *id)
{
    for (const struct ephemeral *e = home->list; e; e = e->next) {
        if (strcmp(e->id, id) == 0) {
            return true;
        }
    }
    return false;
}

bool home_foreign(const struct runs *rs, const struct run_home *home, const char *id)
{
    for (const struct run_home *other = rs->homes; other; other = other->next) {
        if (other != home && home_has(other, id)) {
            return true;
        }
    }
    return false;
}

static void forget(struct runs *rs, const struct run_home *home, const char *id)
{
    if (rs->session) {
        session_forget(rs->session, home->owner, id);
    }
}

void home_drop(struct runs *rs, struct run_home *home, const char *id)
{
    struct ephemeral **at = &home->list;
    while (*at && strcmp((*at)->id, id) != 0) {
        at = &(*at)->next;
    }
    struct ephemeral *e = *at;
    if (!e) {
        return;
    }
    *at = e->next;
    forget(rs, home, e->id);
    free(e);
    rs->n_ephemerals--;
    if (--home->n > 0) {
        return;
    }
    if (home->prev) {
        home->prev->next = home->next;
    } else {
        rs->homes = home->next;
    }
    if (home->next) {
        home->next->prev = home->prev;
    }
    home->next = home->prev = NULL;
}

void home_add(struct runs *rs, struct run_home *home, const char *id)
{
    struct ephemeral *e = rs->n_ephemerals < EPHEMERAL_ALL_MAX ? calloc(1, sizeof(*e)) : NULL;
    if (!e) {
        forget(rs, home, id);
        return;
    }
    snprintf(e->id, sizeof(e->id), "%s", id);
    e->made_ms = clock_ms();
    e->next = home->list;
    home->list = e;
    rs->n_ephemerals++;
    if (++home->n == 1) {
        home->next = rs->homes;
        if (home->next) {
            home->next->prev = home;
        }
        rs->homes = home;
    }
    if (home->n > EPHEMERAL_MAX) {
        while (e->next) {
            e = e->next;
        }
        home_drop(rs, home, e->id);
    }
}

void home_expire(struct runs *rs)
{
    int64_t oldest = clock_ms() - (int64_t)EPHEMERAL_SECONDS * 1000;
    struct run_home *next;
    for (struct run_home *home = rs->homes; home; home = next) {
        next = home->next; /* a home without any leaves the list */
        while (home->list) {
            const struct ephemeral *last = home->list;
            while (last->next) {
                last = last->next;
            }
            if (last->made_ms >= oldest) {
                break;
            }
            home_drop(rs, home, last->id);
        }
    }
}

void home_free(struct runs *rs, struct run_home *home)
{
    for (struct run *run = rs->running; run; run = run->next) {
        if (run->home == home) {
            run->home = NULL;
        }
    }
    while (home->list) {
        home_drop(rs, home, home->list->id);
    }
}

/* ---- of owners ---- */

struct owner_home {
    struct owner_home *next;
    struct run_home home;
    char owner[OWNER_SIZE];
};

struct run_home *home_of_owner(struct runs *rs, const char *owner)
{
    struct owner_home *h = rs->owner_homes;
    while (h && strcmp(h->owner, owner) != 0) {
        h = h->next;
    }
    if (!h) {
        h = calloc(1, sizeof(*h));
        if (!h) {
            return NULL;
        }
        snprintf(h->owner, sizeof(h->owner), "%s", owner);
        h->home.owner = h->owner;
        h->next = rs->owner_homes;
        rs->owner_homes = h;
    }
    return &h->home;
}

void homes_free(struct runs *rs)
{
    while (rs->owner_homes) {
        struct owner_home *next = rs->owner_homes->next;
        home_free(rs, &rs->owner_homes->home);
        free(rs->owner_homes);
        rs->owner_homes = next;
    }
}
