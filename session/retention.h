/* retention.h - conversations that nobody has used for long: what retention.c keeps, and when it is called. */
#ifndef CONVOD_SESSION_RETENTION_H
#define CONVOD_SESSION_RETENTION_H

#include <stdbool.h>
#include <stdint.h>

struct session;

struct retain {                    /* engine thread */
    int64_t due_ms, looked_ms;     /* of the steady clock: the next look, and the last one at the clocks */
    int64_t offset_ms;             /* of the wall clock to the steady one, as it was last set */
    int64_t since_ms;              /* what it was then, or earlier */
    int64_t from_ms, to_ms, by_ms; /* what it stamped between these was so much too early; 0: nothing was */
    int wait_ms;
    bool busy; /* stamps are put right, or a conversation is looked for or being deleted */
};

/* `wait_ms`: before the first conversation goes, and after the clock was set; 0: an hour. */
void retention_start(struct session *s, int wait_ms);
/* [now and then] Deletes the next conversation that is too old. */
void retention_tick(struct session *s);

#endif
