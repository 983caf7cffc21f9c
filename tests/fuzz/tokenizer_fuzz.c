/* tokenizer_fuzz.c - any text through two small vocabularies, a chat format and a stream.
 *
 * The first byte chooses how; the rest is the text. The vocabularies are seeds of gguf_fuzz (the program runs in the
 * root of the source). Both express every byte, so tokens must give the text back, and the stream must give valid
 * UTF-8; a user's text must never hold a control token.
 */
#include "engine/file/file.h"
#include "engine/text/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { BPE, SPM, VOCABS };

static struct vocab *vocabs[VOCABS];
static struct chat *chatml;

static void open_all(void)
{
    static const char *const FILES[VOCABS] = {"tests/fuzz/corpus/gguf/tiny-bpe.gguf",
                                              "tests/fuzz/corpus/gguf/tiny-spm.gguf"};
    static struct gguf *files[VOCABS]; /* kept for the program's life */
    char err[256] = "";
    for (int i = 0; i < VOCABS; i++)
        if (gguf_open(FILES[i], &files[i], err, sizeof err) != 0 ||
            vocab_open(files[i], &vocabs[i], err, sizeof err) != 0) {
            fprintf(stderr, "%s\n", err);
            exit(1);
        }
    if (chat_open(files[BPE], vocabs[BPE], NULL, &chatml, err, sizeof err) != 0) {
        fprintf(stderr, "%s\n", err);
        exit(1);
    }
}

static void require(bool holds)
{
    if (!holds)
        abort();
}

static bool is_utf8(const char *text, size_t len)
{
    size_t n;
    while (len > 0 && (n = utf8_char(text, len, NULL)) > 0) {
        text += n;
        len -= n;
    }
    return len == 0;
}

/* The tokens' bytes are the text, or a space that was put in front and the text. */
static void check_bytes(const struct vocab *v, const struct engine_tokens *t, const char *text, size_t len)
{
    bool space = false;
    size_t at = 0;
    for (size_t i = 0; i < t->n; i++) {
        size_t n;
        const char *bytes = vocab_token_bytes(v, t->ids[i], &n);
        require(!vocab_is_control(v, t->ids[i]) && n > 0);
        if (i == 0 && vocab_adds_space(v) && bytes[0] == ' ') {
            space = true;
            bytes++;
            n--;
        }
        require(n <= len - at && memcmp(bytes, text + at, n) == 0);
        at += n;
    }
    require(at == len);
    require(space || !vocab_adds_space(v) || len == 0 || text[0] == '\n');
}

/* A stream of the tokens, with and without a stop string out of the text itself. */
static void check_stream(const struct vocab *v, const struct engine_tokens *t, const char *text, size_t len)
{
    char stop[8] = "";
    size_t stop_len = len > 8 ? 1 + (unsigned char)text[0] % 4 : 0, total = 0;
    memcpy(stop, text + len / 2, stop_len);
    const char *stops[] = {stop}, *out;
    struct engine_stream *s = stream_new(v, stops, 1);
    size_t n;
    int rc = 0;
    if (s == NULL)
        return;
    for (size_t i = 0; i < t->n && rc == 0; i++) {
        rc = engine_stream_push(s, t->ids[i], &out, &n);
        require(rc >= 0 && is_utf8(out, n));
        total += n;
    }
    require(engine_stream_finish(s, &out, &n) == 0 && is_utf8(out, n));
    total += n;
    if (is_utf8(text, len) && memchr(text, 0, len) == NULL) {
        const char *found = stop_len > 0 && strlen(stop) > 0 ? memmem(text, len, stop, strlen(stop)) : NULL;
        require(total == (found != NULL && is_utf8(stop, strlen(stop)) ? (size_t)(found - text) : total));
        require(found != NULL || total == len);
    }
    engine_stream_free(s);
}

static void check_chat(const struct vocab *v, const char *text, size_t len)
{
    struct engine_message m = {.role = ENGINE_USER, .text = text, .len = len};
    struct engine_tokens t = {0};
    char err[256];
    if (chat_render(chatml, v, &m, 1, ENGINE_CHAT_FIRST | ENGINE_CHAT_OPEN, &t, err, sizeof err) == 0) {
        int control = 0;
        for (size_t i = 0; i < t.n; i++)
            control += vocab_is_control(v, t.ids[i]);
        require(control == 3);
    }
    engine_tokens_free(&t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (vocabs[BPE] == NULL)
        open_all();
    if (size == 0)
        return 0;
    const struct vocab *v = vocabs[data[0] % VOCABS];
    unsigned flags = data[0] >> 1 & 15;
    const char *text = (const char *)data + 1;
    struct engine_tokens t = {0};
    size--;
    if (vocab_tokenize(v, text, size, flags, &t) == 0)
        for (size_t i = 0; i < t.n; i++)
            require(t.ids[i] >= 0 && t.ids[i] < vocab_size(v));
    t.n = 0;
    if (vocab_tokenize(v, text, size, 0, &t) == 0) {
        check_bytes(v, &t, text, size);
        check_stream(v, &t, text, size);
    }
    engine_tokens_free(&t);
    if (v == vocabs[BPE])
        check_chat(v, text, size);
    return 0;
}
