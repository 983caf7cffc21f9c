#include "tests/session/harness.h"

static void no_sweep(struct session *s, void *arg)
{
    s->prunes++; /* hot_sweep() waits for those */
    gate_open(arg);
}

void rig_no_sweep(struct rig *rig)
{
    struct gate gate = GATE_CLOSED;
    assert_int_equal(session_post(rig->s, no_sweep, &gate), 0);
    gate_wait(&gate, 1);
}
