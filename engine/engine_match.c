/* engine_match.c - answers of a form: grammars with the engine's vocabulary, shared by equal requests.
 *
 * A form is compiled wherever its request is read; on the engine thread it finds the one that is kept of the same text,
 * and with it all states and masks that earlier answers met. What nobody uses is kept as long as there is room.
 */
#include "engine/form_private.h"
#include "engine/model/model.h"
#include "engine/text/text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define KEPT_MAX       32
#define KEPT_MAX_BYTES (128 << 20)

struct engine_forms {
    const struct engine *engine;
    struct grammar_vocab *vocab; /* NULL: not needed yet */
    uint32_t *endless;           /* a mask; the same */
    struct engine_form *kept;    /* used last first */
};

struct engine_match {
    const struct engine *engine;
    struct engine_form *form;
    struct grammar_match *match;
    uint32_t mask[];
};

/* ---- kept ones --------------------------------------------------------------------------------------------------- */

struct engine_forms *engine_forms_new(const struct engine *e)
{
    struct engine_forms *fs = calloc(1, sizeof *fs);
    if (fs != NULL)
        fs->engine = e;
    return fs;
}

void engine_forms_free(struct engine_forms *fs)
{
    if (fs == NULL)
        return;
    for (struct engine_form *f = fs->kept, *next; f != NULL; f = next) {
        next = f->next;
        engine_form_free(f);
    }
    grammar_vocab_free(fs->vocab);
    free(fs->endless);
    free(fs);
}

/* Those used longest ago go, when there are too many. One that an answer uses lives on with it, and is found no more.
 */
static void make_room(struct engine_forms *fs)
{
    size_t n = 0, bytes = 0;
    for (struct engine_form **p = &fs->kept; *p != NULL;) {
        struct engine_form *f = *p;
        bytes += engine_form_bytes(f);
        if (++n > 1 && (n > KEPT_MAX || bytes > KEPT_MAX_BYTES)) {
            *p = f->next;
            engine_form_free(f);
        } else {
            p = &f->next;
        }
    }
}

/* The kept form that is equal to f, which becomes it where there is none; used now. */
static struct engine_form *find(struct engine_forms *fs, struct engine_form *f)
{
    struct engine_form **p = &fs->kept;
    while (*p != NULL && ((*p)->kind != f->kind || (*p)->lenient != f->lenient || (*p)->len != f->len ||
                          memcmp((*p)->text, f->text, f->len) != 0))
        p = &(*p)->next;
    struct engine_form *found = *p;
    if (found != NULL)
        *p = found->next;
    else
        found = engine_form_share(f);
    grammar_set_vocab(found->grammar, fs->vocab);
    found->next = fs->kept;
    fs->kept = found;
    make_room(fs);
    return found;
}

/* ---- matches ----------------------------------------------------------------------------------------------------- */

/* Of what has a meaning of its own, a text has nothing. */
static const char *token_bytes(const void *v, int id, size_t *len)
{
    const char *bytes = vocab_token_bytes(v, id, len);
    if (vocab_is_reserved(v, id))
        *len = 0;
    return bytes;
}

static bool token_ends(const void *v, int id)
{
    return vocab_ends_answer(v, id);
}

static int set_up(struct engine_forms *fs)
{
    const struct vocab *v = engine_vocab(fs->engine);
    int n_logits = engine_info(fs->engine)->n_vocab; /* rows that no token has are never allowed */
    char err[128];
    if (fs->vocab != NULL)
        return 0;
    struct grammar_vocab_opts opts = {n_logits, token_bytes, token_ends, v};
    return grammar_vocab_new(&opts, &fs->vocab, err, sizeof err);
}

const uint32_t *engine_forms_endless(struct engine_forms *fs, int *rc)
{
    const struct vocab *v = engine_vocab(fs->engine);
    *rc = set_up(fs);
    if (*rc || fs->endless != NULL)
        return fs->endless;
    fs->endless = calloc(grammar_vocab_words(fs->vocab), sizeof *fs->endless);
    if (fs->endless == NULL) {
        *rc = -ENOMEM;
        return NULL;
    }
    for (int id = 0; id < vocab_size(v) && id < engine_info(fs->engine)->n_vocab; id++)
        if (!vocab_ends_answer(v, id))
            fs->endless[id / 32] |= 1u << id % 32;
    return fs->endless;
}

int engine_match_new(struct engine_forms *fs, struct engine_form *f, struct engine_match **out)
{
    int rc = set_up(fs);
    if (rc)
        return rc;
    struct engine_match *m = calloc(1, sizeof *m + grammar_vocab_words(fs->vocab) * sizeof *m->mask);
    if (m == NULL)
        return -ENOMEM;
    m->engine = fs->engine;
    m->form = engine_form_share(find(fs, f));
    m->match = grammar_match_new(m->form->grammar);
    if (m->match == NULL) {
        engine_match_free(m);
        return -ENOMEM;
    }
    *out = m;
    return 0;
}

void engine_match_free(struct engine_match *m)
{
    if (m == NULL)
        return;
    grammar_match_free(m->match);
    engine_form_free(m->form);
    free(m);
}

int engine_match_push(struct engine_match *m, engine_token id)
{
    size_t len = 0;
    const char *bytes = engine_token_bytes(m->engine, id, &len);
    return grammar_match_push(m->match, bytes, len);
}

int engine_match_push_text(struct engine_match *m, const char *text, size_t len)
{
    return grammar_match_push(m->match, text, len);
}

uint32_t *engine_match_mask(struct engine_match *m, int *rc)
{
    *rc = grammar_match_mask(m->match, m->mask);
    return *rc == 0 ? m->mask : NULL;
}

bool engine_match_ended(const struct engine_match *m)
{
    return grammar_match_ended(m->match);
}

bool engine_match_complete(const struct engine_match *m)
{
    return grammar_match_complete(m->match);
}
