/* repeat.c - turns that were answered before: what is stored becomes the answer, as the events that gave it.
 *
 * Where that is long a worker makes it, in a run of its own that nobody reads. The run that waits belongs to the
 * network thread all the time, which puts into it what was made.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/run/turn_event.h"

struct repetition {
    struct work work; /* first */
    struct run *run;  /* that waits for it */
    struct runs none; /* what the other one is of: it has no session, and no readers */
    struct run made;
    struct turn_request request;    /* its own; the texts that are not stored are those of the run that waits */
    struct session_response stored; /* what it is made from */
    bool whole;
};

/* Its deltas are one. */
static void replay(struct run *run)
{
    const char *final = run->status;
    run->ended = false;
    run->status = "in_progress";
    run_show_started(run);
    for (size_t i = 0; i < run->n_items; i++) {
        run_show_item(run, i);
        if (run->items[i].len) {
            run_show_delta(run, i, run->items[i].text);
        }
        run_show_item_end(run, i);
    }
    run_count_over(run);
    run->status = final;
    run->request->format->done(run);
}

/* False: out of memory. */
static bool make(struct run *run, const struct session_response *stored)
{
    bool whole = run_take_stored(run, stored);
    if (whole) {
        run->status = run->ended ? run->status : "failed"; /* the session gives what has ended only */
        replay(run);
    }
    return whole && !run->gap;
}

static void fail(struct run *run)
{
    run->failed = true;
    run_count_over(run);
    api_error_set(&run->error, 500, "server_error", NULL, "Out of memory.");
    run->request->format->done(run);
}

/* ---- away from the network thread ---- */

/* Each gets what the other has. */
static void swap(char **a, char **b)
{
    char *c = *a;
    *a = *b;
    *b = c;
}

static void repetition_free(struct repetition *r)
{
    struct turn_request *q = &r->request;
    cJSON_Delete(q->params_json);
    free(q->conversation);
    free(q->previous);
    free(q->parent);
    free(q->instructions);
    r->made.request = NULL;
    run_clear(&r->made);
    response_free(&r->stored);
    free(r);
}

/* What run_take_stored() has set, and what was shown of it. */
static void put(struct run *run, struct run *made)
{
    struct turn_request *q = run->request, *from = made->request;
    cJSON *params = q->params_json;
    q->params_json = from->params_json;
    from->params_json = params;
    swap(&q->conversation, &from->conversation);
    swap(&q->previous, &from->previous);
    swap(&q->parent, &from->parent);
    swap(&q->instructions, &from->instructions);
    q->has_parent = from->has_parent;
    q->store = from->store;
    q->background = from->background;
    q->generate = from->generate;
    q->truncate = from->truncate;
    q->progress = from->progress;
    q->sampling = from->sampling;
    memcpy(run->id, made->id, sizeof(run->id));
    memcpy(run->conversation, made->conversation, sizeof(run->conversation));
    run->created_ms = made->created_ms;
    run->completed_ms = made->completed_ms;
    run->status = made->status;
    run->started = made->started;
    run->failed = made->failed;
    run->error = made->error;
    run->input_tokens = made->input_tokens;
    run->cached_tokens = made->cached_tokens;
    run->output_tokens = made->output_tokens;
    run->answer_status = made->answer_status;
    run->sequence = made->sequence;
    swap(&run->reason, &made->reason);
    swap(&run->stop, &made->stop);
    swap(&run->receipt, &made->receipt);
    swap(&run->answer, &made->answer);
    for (size_t i = 0; i < made->n_log; i++) {
        run_log(run, made->log[i].name, made->log[i].data);
    }
    made->n_log = 0;
    run_count_over(run);
}

/* [worker] */
static void make_away(struct work *w)
{
    struct repetition *r = (struct repetition *)w;
    r->whole = make(&r->made, &r->stored);
}

static void made_away(struct work *w, bool closing)
{
    struct repetition *r = (struct repetition *)w;
    struct run *run = r->run;
    uint64_t before = run->log_bytes;
    if (!closing) {
        if (r->whole) {
            put(run, &r->made);
        } else {
            fail(run);
        }
        run_told(run, before);
    }
    repetition_free(r);
}

/* False: out of memory. */
static bool begin_away(struct run *run, struct session_response *stored)
{
    struct repetition *r = calloc(1, sizeof(*r));
    if (!r) {
        return false;
    }
    r->work.run = make_away;
    r->work.done = made_away;
    r->run = run;
    r->none.model = run->runs->model;
    r->request = *run->request;
    r->request.params_json = NULL;
    r->request.conversation = r->request.previous = r->request.parent = r->request.instructions = NULL;
    r->made = (struct run){.runs = &r->none, .request = &r->request, .n_open = 1, .sequence = run->sequence};
    r->stored = *stored;
    *stored = (struct session_response){0};
    work_submit(run->runs->workers, &r->work, run->owner);
    return true;
}

void run_repeat(struct run *run, struct session_response *stored)
{
    /* Of several answers each is shown with the others. */
    bool away = response_bytes(stored) > WORK_BYTES_MIN && !run->first && !run->n_others;
    if (!(away && begin_away(run, stored)) && !make(run, stored)) {
        fail(run);
    }
}
