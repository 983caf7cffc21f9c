#include "tests/session/meeting.h"

#include <stdlib.h>
#include <string.h>

void meet_at_prefill(struct answer *a, const struct session_event *ev, void *arg)
{
    struct meeting *m = arg;
    if (ev->kind != SESSION_EVENT_PROGRESS || strcmp(ev->stage, "prefill") != 0)
        return;
    if (a->n_prefill == 1) {
        gate_open(&m->there);
        gate_wait(&m->on, 1);
    } else if (a->n_prefill == 2) {
        rig_ledger(a->rig);
    }
}

struct order {
    const struct answer *behind;
    bool it_was_first;
};

/* A hook: asks on the engine thread, and so in the engine's order, however late the test comes to run. */
static void look_at_the_other(struct answer *a, const struct session_event *ev, void *arg)
{
    (void)a, (void)ev;
    struct order *order = arg;
    order->it_was_first = order->behind->over;
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
    struct order order = {.behind = behind};
    struct answer *a = rig_begin(rig, (struct ask){.text = "hello",
                                                   .seed = 2,
                                                   .max = 4,
                                                   .ephemeral = true, /* whose events wait for no disk */
                                                   .hook = look_at_the_other,
                                                   .hook_arg = &order});
    gate_open(&m.on);
    rig_end(a);
    assert_false(a->failed);
    assert_false(order.it_was_first);
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
