/* form.c - turns whose answers have a form, and whose calls are kept to what their tools take. Engine thread.
 *
 * The form binds the text of the answer. Thinking comes before it and is free, save that the answer cannot end in it;
 * an answer that calls tools is no text, and the form goes with its first call. A call is bound from its mark on, or
 * from where its object names a tool. Where a model is known to write calls without marks, an answer that may be either
 * follows both, until it is one of them.
 *
 * Before each token form_mask() says which may come, beside the pass that the token is picked behind (step.c);
 * form_take() is told of the token that did, and form_after() once the answer's parts have taken it in.
 */
#include <errno.h>

#include "session/session_internal.h"

void form_free(struct turn *t)
{
    engine_match_free(t->form.match);
    engine_match_free(t->form.bare);
    engine_match_free(t->form.in_call);
    engine_form_free(t->form.of_answer);
    engine_form_free(t->form.of_calls);
    t->form.match = t->form.bare = t->form.in_call = NULL;
    t->form.of_answer = t->form.of_calls = NULL;
}

int form_failed(struct turn *t, int rc)
{
    if (rc)
        turn_fail(t, rc == -ENOMEM ? SESSION_INTERNAL : SESSION_INVALID,
                  rc == -E2BIG ? "the form of the answer is too much work at the point that it has come to; simplify it"
                  : rc == -ENOMEM ? "out of memory"
                                  : "the model has no tokens to write an answer of this form with");
    return rc;
}

/* The answer is no text. */
static void drop_form(struct turn *t)
{
    engine_match_free(t->form.match);
    engine_form_free(t->form.of_answer);
    t->form.match = NULL;
    t->form.of_answer = NULL;
}

static enum engine_within within(const struct turn *t)
{
    return t->calls ? engine_calls_within(t->calls) : ENGINE_WITHIN_TEXT;
}

/* ---- calls ---- */

/* What there is of the call already. */
static int push_begun(struct turn *t)
{
    const char *text, *held;
    size_t len, held_len;
    int rc = 0;
    text = engine_calls_begun(t->calls, &len);
    if (len > 0 && (rc = engine_match_push_text(t->form.in_call, text, len)) == 0 &&
        (rc = engine_stream_held(t->stream, &held, &held_len)) == 0)
        rc = engine_match_push_text(t->form.in_call, held, held_len);
    return rc;
}

/* It is whole, and has no mark behind it: what comes is a fence, the mark of another one, or something else. */
static bool call_is_over(const struct turn *t)
{
    return engine_match_complete(t->form.in_call) && engine_calls_open_end(t->calls);
}

static int call_mask(struct turn *t, const uint32_t **mask)
{
    int rc = 0;
    if (!t->form.in_call &&
        (rc = engine_match_new(t->session->forms, t->form.of_calls, t->owner, &t->form.in_call)) == 0)
        rc = push_begun(t);
    if (rc == 0 && call_is_over(t))
        return 0;
    uint32_t *bits = rc == 0 ? engine_match_mask(t->form.in_call, &rc) : NULL;
    if (rc)
        return rc;
    engine_token closing = engine_calls_closing(t->calls);
    if (engine_match_complete(t->form.in_call) && closing >= 0)
        bits[closing / 32] |= 1u << closing % 32;
    *mask = bits;
    return 0;
}

/* ---- text ---- */

static int begin_text(struct turn *t)
{
    int rc = 0;
    if (t->form.begun)
        return 0;
    if (!t->form.match)
        rc = engine_match_new(t->session->forms, t->form.of_answer, t->owner, &t->form.match);
    if (rc == 0 && !t->form.bare && t->form.of_calls && engine_calls_may_be_bare(t->calls))
        rc = engine_match_new(t->session->forms, t->form.of_calls, t->owner, &t->form.bare);
    return rc;
}

static int text_mask(struct turn *t, const uint32_t **mask)
{
    engine_token marks[2];
    uint32_t *bits = NULL;
    int rc = begin_text(t);
    if (rc == 0 && t->form.bare) {
        bits = engine_match_mask(t->form.bare, &rc);
        if (rc == 0 && t->form.match) {
            const uint32_t *text = engine_match_mask(t->form.match, &rc);
            for (int i = 0; rc == 0 && i < (t->session->info->n_vocab + 31) / 32; i++)
                bits[i] |= text[i];
        }
    } else if (rc == 0) {
        bits = engine_match_mask(t->form.match, &rc);
    }
    if (rc)
        return rc;
    int n = t->calls && !t->form.begun ? engine_calls_openings(t->calls, marks) : 0;
    for (int i = 0; i < n; i++)
        bits[marks[i] / 32] |= 1u << (marks[i] % 32);
    *mask = bits;
    return 0;
}

/* The text goes on as one of the two that it may become, or as both. */
static int push_text(struct turn *t, engine_token id)
{
    int rc = t->form.match ? engine_match_push(t->form.match, id) : -EILSEQ;
    t->form.begun = true;
    if (!t->form.bare)
        return rc;
    int call = engine_match_push(t->form.bare, id);
    if (call == -EILSEQ && rc != -EILSEQ) {
        engine_match_free(t->form.bare);
        t->form.bare = NULL;
        engine_calls_text_only(t->calls);
        return rc;
    }
    if (rc == -EILSEQ && !call) {
        engine_match_free(t->form.match);
        t->form.match = NULL;
        return 0;
    }
    return rc ? rc : call;
}

/* ---- a turn's steps ---- */

int form_mask(struct turn *t, const uint32_t **mask)
{
    int rc = 0;
    *mask = NULL;
    if (t->n_opened) /* with a call: no text has a form */
        drop_form(t);
    switch (within(t)) {
    case ENGINE_WITHIN_CALL:
        return t->form.of_calls ? call_mask(t, mask) : 0;
    case ENGINE_WITHIN_THINKING:
        if (t->form.of_answer)
            *mask = engine_forms_endless(t->session->forms, &rc);
        return rc;
    case ENGINE_WITHIN_TEXT:
        break;
    }
    return t->form.of_answer ? text_mask(t, mask) : 0;
}

int form_take(struct turn *t, engine_token id)
{
    if (t->calls && engine_calls_is_mark(t->calls, id) && !t->form.begun &&
        !(t->form.in_call && engine_calls_is_inner(t->calls, id)))
        return 0;
    if (within(t) == ENGINE_WITHIN_CALL)
        return t->form.in_call && !call_is_over(t) ? form_failed(t, engine_match_push(t->form.in_call, id)) : 0;
    if (within(t) == ENGINE_WITHIN_TEXT && t->form.of_answer)
        return form_failed(t, push_text(t, id));
    return 0;
}

void form_after(struct turn *t)
{
    if (within(t) != ENGINE_WITHIN_CALL) {
        engine_match_free(t->form.in_call);
        t->form.in_call = NULL;
        return;
    }
    if (!t->form.of_answer)
        return;
    drop_form(t);
    t->form.begun = false;
    t->form.in_call = t->form.bare;
    t->form.bare = NULL;
}

int form_forced(struct turn *t, struct engine_tokens *out)
{
    struct engine_match *m = NULL;
    /* A mark that begins thinking counts as one of its tokens. */
    if (t->thinking_tokens && t->calls && engine_calls_thinking(t->calls) && t->n_thought >= t->thinking_tokens)
        return engine_chat_end_thinking(t->session->engine, out);
    if (t->ask.logprobs) /* which the model's tokens only have */
        return 0;
    if (within(t) == ENGINE_WITHIN_CALL)
        m = t->form.in_call && !call_is_over(t) ? t->form.in_call : NULL;
    else if (within(t) == ENGINE_WITHIN_TEXT && t->form.of_answer && t->form.begun && !t->form.bare)
        m = t->form.match;
    return m ? engine_match_forced(m, out) : 0;
}

bool form_whole(const struct turn *t)
{
    return t->form.match && engine_match_ended(t->form.match);
}
