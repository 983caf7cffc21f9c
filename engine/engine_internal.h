/* engine_internal.h - what the engine's files need of a struct engine without knowing it. */
#ifndef CONVOD_ENGINE_INTERNAL_H
#define CONVOD_ENGINE_INTERNAL_H

#include "engine/engine.h"

struct vocab;
struct chat;

/* [any thread] Constant for the engine's life. */
const struct vocab *engine_vocab(const struct engine *e);
/* NULL: the model has no chat format. */
const struct chat *engine_chat(const struct engine *e);

#endif
