/* engine_match.c - answers of a form: grammars with the engine's vocabulary, shared by an owner's equal requests.
 *
 * A form is compiled wherever its request is read; on the engine thread it finds the one that is there of the same
 * text, and with it all states and masks that earlier answers met. What nobody uses is kept as long as there is room.
 * What an owner's forms hold, all together, is bounded: what is not in use goes first, then states that can be found
 * again, and then the answer fails that would need more.
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
    struct engine_form *list;    /* in use or kept, used last first */
};

struct engine_match {
    struct engine_forms *forms;
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
    for (struct engine_form *f = fs->list, *next; f != NULL; f = next) {
        next = f->next;
        engine_form_free(f);
    }
    grammar_vocab_free(fs->vocab);
    free(fs->endless);
    free(fs);
}

/* Of those that nobody uses and that belong to `owner` (NULL: to anyone), the ones used last stay: n of them, with so
 * many bytes beside those of its others. */
static void make_room(struct engine_forms *fs, const char *owner, size_t n, size_t bytes)
{
    size_t seen = 0, held = 0;
    for (struct engine_form *f = fs->list; owner != NULL && f != NULL; f = f->next)
        if (f->users > 0 && strcmp(f->owner, owner) == 0)
            held += engine_form_bytes(f);
    for (struct engine_form **p = &fs->list; *p != NULL;) {
        struct engine_form *f = *p;
        if (f->users > 0 || (owner != NULL && strcmp(f->owner, owner) != 0)) {
            p = &f->next;
            continue;
        }
        held += engine_form_bytes(f);
        if (++seen > n || held > bytes) {
            *p = f->next;
            held -= engine_form_bytes(f);
            engine_form_free(f);
        } else {
            p = &f->next;
        }
    }
}

static size_t owner_bytes(const struct engine_forms *fs, const char *owner)
{
    size_t bytes = 0;
    for (const struct engine_form *f = fs->list; f != NULL; f = f->next)
        if (strcmp(f->owner, owner) == 0)
            bytes += engine_form_bytes(f);
    return bytes;
}

/* Keeps the owner of f, which is in use, within its bound. */
static int check_owner(struct engine_forms *fs, struct engine_form *f)
{
    if (owner_bytes(fs, f->owner) <= ENGINE_FORMS_OWNER_BYTES)
        return 0;
    make_room(fs, f->owner, KEPT_MAX, ENGINE_FORMS_OWNER_BYTES / 2);
    if (owner_bytes(fs, f->owner) <= ENGINE_FORMS_OWNER_BYTES)
        return 0;
    for (struct engine_form *other = fs->list; other != NULL; other = other->next)
        if (strcmp(other->owner, f->owner) == 0)
            grammar_forget(other->grammar);
    return owner_bytes(fs, f->owner) <= ENGINE_FORMS_OWNER_BYTES ? 0 : -E2BIG;
}

/* The owner's form of the list that is equal to f, which becomes it where there is none; used now. NULL: out of memory.
 * Owners share none: what one asks of it would count as another's. */
static struct engine_form *find(struct engine_forms *fs, struct engine_form *f, const char *owner)
{
    struct engine_form **p = &fs->list;
    while (*p != NULL && ((*p)->kind != f->kind || (*p)->lenient != f->lenient || (*p)->len != f->len ||
                          memcmp((*p)->text, f->text, f->len) != 0 || strcmp((*p)->owner, owner) != 0))
        p = &(*p)->next;
    struct engine_form *found = *p;
    if (found != NULL) {
        *p = found->next;
    } else {
        free(f->owner); /* it was in the list before */
        f->owner = strdup(owner);
        if (f->owner == NULL)
            return NULL;
        found = engine_form_share(f);
    }
    grammar_set_vocab(found->grammar, fs->vocab);
    found->next = fs->list;
    fs->list = found;
    found->users++;
    return found;
}

/* ---- matches ----------------------------------------------------------------------------------------------------- */

/* Of what has a meaning of its own, a text has nothing; the marks within calls have bytes that nothing else has. */
static const char *token_bytes(const void *engine, int id, size_t *len)
{
    const struct vocab *v = engine_vocab(engine);
    const char *mark = chat_mark_bytes(engine_chat(engine), id), *bytes = vocab_token_bytes(v, id, len);
    if (mark != NULL) {
        *len = strlen(mark);
        return mark;
    }
    for (size_t i = 0; i < *len; i++)
        if ((unsigned char)bytes[i] >= CHAT_MARK_FIRST) { /* no character has it */
            *len = 0;
            return bytes;
        }
    if (vocab_is_reserved(v, id))
        *len = 0;
    return bytes;
}

static bool token_ends(const void *engine, int id)
{
    return engine_token_ends_answer(engine, id);
}

static int set_up(struct engine_forms *fs)
{
    int n_logits = engine_info(fs->engine)->n_vocab; /* rows that no token has are never allowed */
    char err[128];
    if (fs->vocab != NULL)
        return 0;
    struct grammar_vocab_opts opts = {n_logits, token_bytes, token_ends, fs->engine};
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
        if (!engine_token_ends_answer(fs->engine, id))
            fs->endless[id / 32] |= 1u << id % 32;
    return fs->endless;
}

int engine_match_new(struct engine_forms *fs, struct engine_form *f, const char *owner, struct engine_match **out)
{
    int rc = set_up(fs);
    if (rc)
        return rc;
    struct engine_match *m = calloc(1, sizeof *m + grammar_vocab_words(fs->vocab) * sizeof *m->mask);
    if (m == NULL)
        return -ENOMEM;
    m->forms = fs;
    m->form = find(fs, f, owner);
    m->match = m->form != NULL ? grammar_match_new(m->form->grammar) : NULL;
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
    if (m->form != NULL) {
        m->form->users--;
        make_room(m->forms, NULL, KEPT_MAX, KEPT_MAX_BYTES);
    }
    free(m);
}

int engine_match_push(struct engine_match *m, engine_token id)
{
    size_t len = 0;
    const char *bytes = token_bytes(m->forms->engine, id, &len);
    return grammar_match_push(m->match, bytes, len);
}

int engine_match_push_text(struct engine_match *m, const char *text, size_t len)
{
    return grammar_match_push(m->match, text, len);
}

uint32_t *engine_match_mask(struct engine_match *m, int *rc)
{
    *rc = check_owner(m->forms, m->form);
    *rc = *rc ? *rc : grammar_match_mask(m->match, m->mask);
    return *rc == 0 ? m->mask : NULL;
}

#define FORCED_MAX 256 /* bytes */

int engine_match_forced(struct engine_match *m, struct engine_tokens *out)
{
    char text[FORCED_MAX];
    size_t len = grammar_match_forced(m->match, text, sizeof text), at = 0, before = out->n;
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)text[i] >= CHAT_MARK_FIRST) /* a mark, which no text gives */
            len = i;
    if (len == 0)
        return 0;
    int rc = vocab_tokenize(engine_vocab(m->forms->engine), text, len, VOCAB_CONTINUES, out);
    /* A vocabulary that cannot write it as it is, is left to the model. */
    for (size_t i = before; rc == 0 && i < out->n; i++) {
        size_t n;
        const char *bytes = token_bytes(m->forms->engine, out->ids[i], &n);
        if (n == 0 || n > len - at || memcmp(bytes, text + at, n) != 0) {
            out->n = before;
            return 0;
        }
        at += n;
    }
    if (rc || at != len)
        out->n = before;
    return rc;
}

bool engine_match_ended(const struct engine_match *m)
{
    return grammar_match_ended(m->match);
}

bool engine_match_complete(const struct engine_match *m)
{
    return grammar_match_complete(m->match);
}
