/* stream_internal.h - engine_stream_* over a vocabulary. */
#ifndef CONVOD_STREAM_INTERNAL_H
#define CONVOD_STREAM_INTERNAL_H

#include "engine/engine.h"
#include "engine/text/text.h"

#define STREAM_MAX_STOPS      16
#define STREAM_MAX_STOP_BYTES 256

/* As engine_stream_new(). NULL with errno EINVAL: too many stop strings, or one too long; ENOMEM. Empty ones are
 * ignored. The vocab must outlive the stream. */
struct engine_stream *stream_new(const struct vocab *v, const char *const *stops, size_t n_stops);

#endif
