/* stream.c - text that can be sent, out of tokens that may end anywhere.
 *
 * Two things are held back: bytes that may become a character (`raw`), and characters that may become a stop string
 * (the end of `text`). Stop strings are looked for after every byte, so that the outcome depends on the text alone and
 * never on where tokens end: of several, the one that is complete first counts, and of those the longest.
 */
#include "engine/text/text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char REPLACEMENT[] = "\xef\xbf\xbd"; /* U+FFFD */
#define REPLACEMENT_BYTES 3

struct buffer {
    char *data;
    size_t n, capacity;
};

struct engine_stream {
    const struct vocab *v;
    char *stops[STREAM_MAX_STOPS];
    size_t stop_len[STREAM_MAX_STOPS];
    size_t n_stops;
    struct buffer raw;  /* bytes that are not yet characters */
    struct buffer text; /* whole characters; the first `sent` bytes were given out by the last call */
    size_t sent;
    const char *stop; /* the one that was completed; NULL: none */
    bool started;     /* something has come: a leading space of SentencePiece's is off */
    bool stopped;
};

static int reserve(struct buffer *b, size_t more)
{
    size_t need;
    if (__builtin_add_overflow(b->n, more, &need) || need > SIZE_MAX / 2)
        return -ENOMEM;
    if (need <= b->capacity)
        return 0;
    size_t capacity = need < 64 ? 64 : need * 2;
    char *grown = realloc(b->data, capacity);
    if (grown == NULL)
        return -ENOMEM;
    b->data = grown;
    b->capacity = capacity;
    return 0;
}

static void drop_front(struct buffer *b, size_t n)
{
    b->n -= n;
    if (n > 0 && b->n > 0)
        memmove(b->data, b->data + n, b->n);
}

struct engine_stream *stream_new(const struct vocab *v, const char *const *stops, size_t n_stops)
{
    struct engine_stream *s = calloc(1, sizeof *s);
    if (s == NULL)
        return NULL;
    s->v = v;
    for (size_t i = 0; i < n_stops; i++) {
        size_t len = strlen(stops[i]);
        if (len == 0)
            continue;
        if (s->n_stops == STREAM_MAX_STOPS || len > STREAM_MAX_STOP_BYTES) {
            engine_stream_free(s);
            errno = EINVAL;
            return NULL;
        }
        s->stops[s->n_stops] = strdup(stops[i]);
        s->stop_len[s->n_stops] = len;
        if (s->stops[s->n_stops] == NULL) {
            engine_stream_free(s);
            errno = ENOMEM;
            return NULL;
        }
        s->n_stops++;
    }
    return s;
}

void engine_stream_free(struct engine_stream *s)
{
    if (s == NULL)
        return;
    for (size_t i = 0; i < s->n_stops; i++)
        free(s->stops[i]);
    free(s->raw.data);
    free(s->text.data);
    free(s);
}

void engine_stream_goes_on(struct engine_stream *s)
{
    s->started = true;
}

/* A byte of a character that is not its first. */
static bool is_inner_byte(char byte)
{
    return ((unsigned char)byte & 0xc0) == 0x80;
}

/* The length of the longest stop string that text[0..n) ends with, or 0. One that begins within a character, as a
 * string that is not UTF-8 may, is none. */
static size_t ends_with_stop(struct engine_stream *s, size_t n)
{
    size_t longest = 0;
    for (size_t i = 0; i < s->n_stops; i++) {
        size_t len = s->stop_len[i];
        if (len > longest && len <= n && memcmp(s->text.data + n - len, s->stops[i], len) == 0 &&
            !is_inner_byte(s->text.data[n - len])) {
            longest = len;
            s->stop = s->stops[i];
        }
    }
    return longest;
}

/* How much of the text's end may be the beginning of a stop string. */
static size_t may_become_stop(const struct engine_stream *s)
{
    size_t longest = 0, n = s->text.n;
    for (size_t i = 0; i < s->n_stops; i++) {
        size_t len = s->stop_len[i] - 1 < n ? s->stop_len[i] - 1 : n;
        for (; len > longest; len--)
            if (memcmp(s->text.data + n - len, s->stops[i], len) == 0)
                longest = len;
    }
    return longest;
}

/* Appends a character to the text; true when that completes a stop string, which is cut off then. Room was reserved. */
static bool append(struct engine_stream *s, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        s->text.data[s->text.n++] = bytes[i];
        size_t stop = ends_with_stop(s, s->text.n);
        if (stop > 0) {
            s->text.n -= stop;
            return true;
        }
    }
    return false;
}

/* Bytes at the start of raw[0..n), n > 0, that are no character: as much as began one. */
static size_t broken_bytes(const char *raw, size_t n)
{
    size_t broken = 1;
    for (size_t len = 2; len <= 3 && len < n; len++) {
        int missing;
        if (utf8_char(raw, len, &missing) == 0 && missing)
            broken = len;
    }
    return broken;
}

/* Moves what are characters from raw to text. */
static bool take_characters(struct engine_stream *s)
{
    size_t at = 0;
    bool stopped = false;
    while (at < s->raw.n && !stopped) {
        int missing;
        size_t n = utf8_char(s->raw.data + at, s->raw.n - at, &missing);
        if (n == 0 && missing)
            break;
        if (n > 0) {
            stopped = append(s, s->raw.data + at, n);
        } else {
            n = broken_bytes(s->raw.data + at, s->raw.n - at);
            stopped = append(s, REPLACEMENT, REPLACEMENT_BYTES);
        }
        at += n;
    }
    drop_front(&s->raw, at);
    return stopped;
}

/* Gives out text[0..n), which stays where it is until the next call. */
static void send(struct engine_stream *s, size_t n, const char **text, size_t *len)
{
    *text = n > 0 ? s->text.data : "";
    *len = s->sent = n;
}

int engine_stream_push(struct engine_stream *s, engine_token id, const char **text, size_t *len)
{
    size_t n;
    const char *bytes = vocab_token_bytes(s->v, id, &n);
    drop_front(&s->text, s->sent);
    send(s, 0, text, len);
    if (s->stopped)
        return 1;
    if (n > 0 && !s->started && vocab_adds_space(s->v) && bytes[0] == ' ') {
        bytes++;
        n--;
        s->started = true;
    }
    if (n == 0)
        return 0;
    s->started = true;
    if (reserve(&s->raw, n))
        return -ENOMEM;
    memcpy(s->raw.data + s->raw.n, bytes, n);
    s->raw.n += n;
    size_t room;
    if (__builtin_mul_overflow(s->raw.n, REPLACEMENT_BYTES, &room) || reserve(&s->text, room))
        return -ENOMEM;
    s->stopped = take_characters(s);
    size_t ready = s->stopped ? s->text.n : s->text.n - may_become_stop(s);
    /* A stop string that is not UTF-8 itself must not cut a character in two. */
    while (ready < s->text.n && ready > 0 && is_inner_byte(s->text.data[ready]))
        ready--;
    send(s, ready, text, len);
    return s->stopped;
}

int engine_stream_flush(struct engine_stream *s, const char **text, size_t *len)
{
    drop_front(&s->text, s->sent);
    send(s, 0, text, len);
    if (s->stopped)
        return 0;
    if (s->raw.n > 0) {
        if (reserve(&s->text, REPLACEMENT_BYTES))
            return -ENOMEM;
        memcpy(s->text.data + s->text.n, REPLACEMENT, REPLACEMENT_BYTES);
        s->text.n += REPLACEMENT_BYTES;
        s->raw.n = 0;
    }
    send(s, s->text.n, text, len);
    return 0;
}

int engine_stream_held(struct engine_stream *s, const char **bytes, size_t *len)
{
    drop_front(&s->text, s->sent);
    s->sent = 0;
    size_t n = s->text.n;
    if (reserve(&s->text, s->raw.n))
        return -ENOMEM;
    if (s->raw.n > 0)
        memcpy(s->text.data + n, s->raw.data, s->raw.n);
    *bytes = s->text.data;
    *len = n + s->raw.n;
    return 0;
}

const char *engine_stream_stop(const struct engine_stream *s)
{
    return s->stop;
}

size_t engine_stream_held_bytes(const struct engine_stream *s)
{
    return s->raw.n + s->text.n - s->sent;
}

int engine_stream_finish(struct engine_stream *s, const char **text, size_t *len)
{
    int rc = engine_stream_flush(s, text, len);
    s->stopped = s->stopped || rc == 0;
    return rc;
}
