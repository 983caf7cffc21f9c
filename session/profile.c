/* profile.c - where the time of a model's steps goes, on an engine of its own. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "session/session.h"

/* Decoding near the beginning and far behind it, alone and together; prompts likewise. */
static const struct session_profile_step STEPS[] = {{.sequences = 1, .tokens = 1, .history = 500},
                                                    {.sequences = 1, .tokens = 1, .history = 8000},
                                                    {.sequences = 8, .tokens = 1, .history = 500},
                                                    {.sequences = 1, .tokens = 512, .history = 0},
                                                    {.sequences = 1, .tokens = 512, .history = 7680}};

int session_profile(const struct session_opts *opts,
                    void (*told)(void *arg, const char *name, const struct session_profile_step *step), void *arg,
                    char *err, size_t err_size)
{
    struct engine_opts engine = opts->engine;
    struct engine *e;
    char name[256];
    engine.step_picks = 8;
    int rc = engine_open(&engine, &e, err, err_size);
    if (rc)
        return rc;
    const struct engine_info *info = engine_info(e);
    snprintf(name, sizeof name, "%s, %s, %s", info->name, info->quantization, info->backend);
    for (size_t i = 0; rc == 0 && i < sizeof STEPS / sizeof *STEPS; i++) {
        struct session_profile_step step = STEPS[i];
        int room = info->ctx_tokens - step.tokens;
        if (step.sequences * step.tokens > info->step_tokens || step.history > room ||
            !engine_kv_fits(e, NULL, step.sequences * (step.history + step.tokens)))
            continue;
        rc = engine_profile(e, step.sequences, step.tokens, step.history, &step.at);
        if (rc == 0)
            told(arg, name, &step);
        else
            snprintf(err, err_size, "a step of the profile failed: %s",
                     engine_failure(e) ? engine_failure(e) : strerror(-rc));
    }
    engine_close(e);
    return rc;
}
