#include "tests/session/meeting.h"

#include <stdlib.h>
#include <string.h>

void meet_at_prefill(struct answer *a, const struct session_event *ev, void *arg)
{
    struct meeting *m = arg;
    if (ev->kind != SESSION_EVENT_PROGRESS || strcmp(ev->stage, "prefill") != 0 || a->n_prefill > 1)
        return;
    gate_open(&m->there);
    gate_wait(&m->on, 1);
}

void meeting_of_background(struct rig *rig, bool warm)
{
    struct meeting m = {GATE_CLOSED, GATE_CLOSED};
    char *text = rig_text(1, 2000);
    struct answer *behind = rig_begin(rig, (struct ask){.text = text,
                                                        .warm = warm,
                                                        .request = warm ? NULL : "{}",
                                                        .seed = 1,
                                                        .max = 30,
                                                        .hook = meet_at_prefill,
                                                        .hook_arg = &m});
    gate_wait(&m.there, 1);
    struct answer *a = rig_begin(rig, (struct ask){.text = "hello", .seed = 2, .max = 4});
    rig_ledger(rig); /* it has been looked up */
    gate_open(&m.on);
    rig_end(a);
    assert_false(a->failed);
    pthread_mutex_lock(&rig->lock);
    assert_false(behind->over);
    pthread_mutex_unlock(&rig->lock);
    rig_end(behind);
    assert_false(behind->failed);
    rig_only_new(behind);
    free(text);
}

static int hold_run(struct storage_ledger *l, void *arg)
{
    (void)l, (void)arg;
    return 0;
}

/* Behind the transaction: what was in it before this has been told. */
static void hold_done(void *arg, int rc)
{
    (void)rc;
    gate_wait(arg, 1);
}

void rig_hold_ledger(struct rig *rig, struct gate *until)
{
    const struct storage_job job = {.run = hold_run, .done = hold_done, .arg = until};
    assert_int_equal(storage_submit(rig->s->storage, job), 0);
}

void keep_said(struct answer *a, const struct session_event *ev, void *arg)
{
    (void)a;
    if (ev->kind == SESSION_EVENT_ITEM_END && !strcmp(ev->item->kind, "message") && ev->item->len < 1024)
        memcpy(arg, ev->item->text, ev->item->len);
}
