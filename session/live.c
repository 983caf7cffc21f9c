/* live.c - which conversations are in pages, and which turns run: told to other threads, under the session's lock.
 *
 * Conversations in pages are counted in a table (open addressing, linear probing) as contexts begin and cease to be
 * theirs, so that nothing is gone through when one turn ends, however many there are. Turns are few; they are listed
 * anew where others run than before.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "session/session_internal.h"

static size_t slot_of(const struct live *l, int64_t conversation)
{
    return (size_t)((uint64_t)conversation * 0x9e3779b97f4a7c15u >> 20) & (l->capacity - 1);
}

/* Where it is, or would be; the table has a free slot. */
static struct live_slot *find(const struct live *l, int64_t conversation)
{
    size_t i = slot_of(l, conversation);
    while (l->slots[i].contexts && l->slots[i].conversation != conversation)
        i = (i + 1) & (l->capacity - 1);
    return &l->slots[i];
}

static void add(struct live *l, int64_t conversation, int contexts)
{
    struct live_slot *slot = find(l, conversation);
    l->n += slot->contexts == 0;
    slot->conversation = conversation;
    slot->contexts += contexts;
}

/* Without memory for it a conversation is told as not hot: harmless. */
static bool grow(struct live *l)
{
    if (2 * (l->n + 1) <= l->capacity)
        return true;
    struct live old = *l;
    size_t capacity = old.capacity ? 2 * old.capacity : 64;
    struct live_slot *slots = calloc(capacity, sizeof *slots);
    if (!slots)
        return false;
    l->slots = slots;
    l->capacity = capacity;
    l->n = 0;
    for (size_t i = 0; i < old.capacity; i++)
        if (old.slots[i].contexts)
            add(l, old.slots[i].conversation, old.slots[i].contexts);
    free(old.slots);
    return true;
}

static void drop(struct live *l, int64_t conversation)
{
    struct live_slot *slot = l->capacity ? find(l, conversation) : NULL;
    if (!slot || !slot->contexts || --slot->contexts)
        return;
    l->n--;
    /* Those behind it that it was in the way of move up. */
    size_t hole = (size_t)(slot - l->slots);
    for (size_t i = (hole + 1) & (l->capacity - 1); l->slots[i].contexts; i = (i + 1) & (l->capacity - 1)) {
        size_t home = slot_of(l, l->slots[i].conversation);
        if (((i - home) & (l->capacity - 1)) < ((i - hole) & (l->capacity - 1)))
            continue;
        l->slots[hole] = l->slots[i];
        l->slots[i].contexts = 0;
        hole = i;
    }
}

void hot_belongs(struct session *s, struct hot *h, int64_t turn, int64_t conversation)
{
    h->turn = turn;
    if (h->conversation == conversation)
        return;
    pthread_mutex_lock(&s->lock);
    if (h->counted)
        drop(&s->live, h->conversation);
    h->conversation = conversation;
    h->counted = conversation && grow(&s->live);
    if (h->counted)
        add(&s->live, conversation, 1);
    pthread_mutex_unlock(&s->lock);
}

/* Whether others see it run in its conversation. */
static bool is_told(const struct turn *t)
{
    return t->state > TURN_FINDING && t->state != TURN_OVER && t->found.conversation.id && !t->ask.strips;
}

void live_running(struct session *s)
{
    int n = 0;
    bool same = true;
    for (const struct turn *t = s->turns; t; t = t->next)
        if (is_told(t)) {
            const struct live_turn *before = n < s->live.n_running ? &s->live.running[n] : NULL;
            same = same && before && before->conversation == t->found.conversation.id &&
                   !strcmp(before->response, t->response_id);
            n++;
        }
    if (same && n == s->live.n_running)
        return;
    struct live_turn *running = n ? malloc((size_t)n * sizeof *running) : NULL;
    int k = 0;
    for (const struct turn *t = s->turns; running && t; t = t->next)
        if (is_told(t)) {
            running[k].conversation = t->found.conversation.id;
            (void)snprintf(running[k].response, sizeof running[k].response, "%s", t->response_id);
            k++;
        }
    pthread_mutex_lock(&s->lock);
    struct live_turn *before = s->live.running;
    s->live.running = running;
    s->live.n_running = k;
    pthread_mutex_unlock(&s->lock);
    free(before);
}

bool live_look(struct session *s, int64_t conversation, char response[LIVE_RESPONSE_SIZE])
{
    response[0] = 0;
    pthread_mutex_lock(&s->lock);
    bool hot = s->live.capacity && find(&s->live, conversation)->contexts;
    for (int i = 0; i < s->live.n_running; i++)
        if (s->live.running[i].conversation == conversation)
            memcpy(response, s->live.running[i].response, LIVE_RESPONSE_SIZE);
    pthread_mutex_unlock(&s->lock);
    return hot;
}

void live_free(struct session *s)
{
    free(s->live.slots);
    free(s->live.running);
}
