/* context.c - the tokens that a turn's context consists of.
 *
 * The ledger's tokens are the truth: what an earlier turn added stays as it is, and a turn only appends (the closing of
 * the last answer, the new messages, the opening of the answer). Where the past itself changes (other instructions,
 * another model), the context is built anew from the stored messages and, for the same model, the stored tokens of the
 * answers; such a turn is `rebased`.
 */
#include <ctype.h>
#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "session/session_internal.h"

/* Messages; their texts are others'. */
struct messages {
    struct engine_message *m;
    size_t n, capacity;
};

static int add_message(struct messages *list, enum engine_role role, const char *text)
{
    if (list->n == list->capacity) {
        size_t capacity = list->capacity ? list->capacity * 2 : 8;
        struct engine_message *m = realloc(list->m, capacity * sizeof *m);
        if (!m)
            return -ENOMEM;
        list->m = m;
        list->capacity = capacity;
    }
    list->m[list->n++] = (struct engine_message){.role = role, .text = text, .len = strlen(text)};
    return 0;
}

static bool same_text(const char *a, const char *b)
{
    return a == b || (a && b && !strcmp(a, b));
}

static int append_bytes(struct engine_tokens *out, const void *bytes, size_t n)
{
    return engine_tokens_append(out, bytes, n / sizeof(engine_token));
}

static int out_of_memory(struct turn *t)
{
    turn_fail(t, SESSION_INTERNAL, "out of memory");
    return -ENOMEM;
}

static int render(struct turn *t, const struct engine_message *messages, size_t n, bool open)
{
    char err[256] = "";
    unsigned flags = (t->context.n == 0 ? ENGINE_CHAT_FIRST : 0) | (open ? ENGINE_CHAT_OPEN : 0);
    int rc = engine_chat_render(t->session->engine, messages, n, flags, &t->context, err, sizeof err);
    if (rc)
        turn_fail(t, rc == -ENOTSUP ? SESSION_INVALID : SESSION_INTERNAL,
                  err[0] ? err : "the messages could not be rendered");
    return rc;
}

/* The new messages of the turn behind what is in the context; the instructions come first when it is empty. */
static int render_new(struct turn *t)
{
    const struct engine_message *messages = t->messages + t->found.matched;
    size_t n = t->n_messages - t->found.matched;
    if (t->context.n > 0 || !t->in_force)
        return n || t->generate || t->context.n == 0 ? render(t, messages, n, t->generate) : 0;
    struct engine_message *all = malloc((n + 1) * sizeof *all);
    if (!all)
        return out_of_memory(t);
    all[0] = (struct engine_message){.role = ENGINE_SYSTEM, .text = t->in_force, .len = strlen(t->in_force)};
    if (n)
        memcpy(all + 1, messages, n * sizeof *all);
    int rc = render(t, all, n + 1, t->generate);
    free(all);
    return rc;
}

/* A stored answer's text: of its items that are messages. */
static int tokenize_answer(struct turn *t, const struct storage_turn *row)
{
    int rc = 0;
    for (size_t i = 0; !rc && i < row->n_items; i++)
        if (row->items[i].output && row->items[i].text)
            rc =
                engine_tokenize(t->session->engine, row->items[i].text, strlen(row->items[i].text), false, &t->context);
    return rc;
}

/* Everything before this turn, rendered anew under the instructions in force. */
static int rebuild(struct turn *t, bool same_model)
{
    struct messages list = {0};
    int rc = t->in_force ? add_message(&list, ENGINE_SYSTEM, t->in_force) : 0;
    for (size_t i = 0; !rc && i < t->found.n_path; i++) {
        const struct storage_turn *row = &t->found.path[i];
        for (size_t k = 0; !rc && k < row->n_items; k++)
            if (!row->items[k].output && row->items[k].text)
                rc = add_message(&list, stored_role(row->items[k].role), row->items[k].text);
        if (rc || !row->answered)
            continue;
        if ((rc = render(t, list.m, list.n, true)))
            goto cleanup;
        list.n = 0;
        if (same_model)
            rc = append_bytes(&t->context, (const char *)row->tokens + row->prompt_bytes,
                              row->tokens_bytes - row->prompt_bytes);
        else
            rc = tokenize_answer(t, row);
        if (!rc)
            rc = engine_chat_close(t->session->engine, &t->context);
    }
    t->n_inherited = t->n_expected = (int)t->context.n;
    for (size_t i = t->found.matched; !rc && i < t->n_messages; i++) {
        if ((rc = add_message(&list, t->messages[i].role, "")) == 0)
            list.m[list.n - 1] = t->messages[i];
    }
    if (!rc && (rc = render(t, list.m, list.n, t->generate)))
        goto cleanup;
    if (rc)
        out_of_memory(t);
cleanup:
    free(list.m);
    return rc;
}

void context_fingerprint(const struct engine_info *info, char out[65])
{
    for (size_t i = 0; i < sizeof info->fingerprint; i++)
        snprintf(out + 2 * i, 3, "%02x", info->fingerprint[i]);
}

int context_of_turn(struct storage_ledger *l, int64_t owner, int64_t turn, struct engine_tokens *out)
{
    void *tokens = NULL;
    size_t bytes = 0;
    int rc = storage_turn_context(l, owner, turn, &tokens, &bytes);
    if (!rc)
        rc = append_bytes(out, tokens, bytes);
    free(tokens);
    return rc;
}

/* What the parent's row says of its KV: tokens that went through the model, and why they might not be found. */
static void expect(struct turn *t, const struct storage_turn *parent)
{
    char fingerprint[65];
    context_fingerprint(t->session->info, fingerprint);
    t->n_expected = t->n_inherited;
    if (parent->evaluated >= 0 && parent->evaluated < t->n_inherited)
        t->n_expected = (int)parent->evaluated;
    if (parent->kv && strcmp(parent->kv, fingerprint))
        t->lost_reason = "blob_foreign";
    else
        t->lost_reason = parent->saved == STORAGE_SAVED_YES ? "blob_missing" : "not_saved";
}

static int build_from_ephemeral(struct turn *t, const struct ephemeral *e)
{
    if (engine_tokens_append(&t->context, e->tokens.ids, e->tokens.n))
        return out_of_memory(t);
    if (!t->in_force) {
        /* Copied: `e` may be forgotten while the turn runs. */
        if (e->instructions && !(t->in_force = t->instructions = strdup(e->instructions)))
            return out_of_memory(t);
    } else if (!same_text(t->in_force, e->instructions)) {
        turn_fail(t, SESSION_INVALID,
                  "the instructions of a response that is not stored cannot change; send the whole conversation");
        return -EINVAL;
    }
    t->n_inherited = (int)t->context.n;
    t->n_expected = e->n_evaluated;
    t->lost_reason = "not_saved";
    t->rebased = true;
    if (e->answered && engine_chat_close(t->session->engine, &t->context))
        return out_of_memory(t);
    return render_new(t);
}

/* Instructions of the turn: its own, otherwise its conversation's. */
static const char *instructions_in_force(const struct turn *t)
{
    const char *text = t->instructions ? t->instructions : t->found.conversation.instructions;
    return text && *text ? text : NULL;
}

static bool same_model(const struct turn *t)
{
    return !memcmp(t->found.parent.fingerprint, t->session->info->model_sha256, sizeof t->found.parent.fingerprint);
}

bool context_past_changes(const struct turn *t)
{
    /* Chat completions carry their instructions in their messages, which matched. */
    return !same_model(t) || !(t->match || same_text(instructions_in_force(t), t->found.parent.instructions));
}

int context_build(struct turn *t)
{
    struct session *s = t->session;
    struct found *f = &t->found;
    t->in_force = instructions_in_force(t);

    struct ephemeral *e = NULL;
    if (t->previous && !f->parent.id)
        for (e = s->ephemerals; e; e = e->next)
            if (!strcmp(e->owner, t->owner) && !strcmp(e->response_id, t->previous))
                break;
    int rc;
    if (e) {
        if ((rc = build_from_ephemeral(t, e)))
            return rc;
    } else if (!f->parent.id) {
        if ((rc = render_new(t)))
            return rc;
    } else if (f->n_path) {
        t->rebased = t->past_changed = true;
        t->lost_reason = same_model(t) ? "instructions_changed" : "blob_foreign";
        if ((rc = rebuild(t, same_model(t))))
            return rc;
    } else {
        if (append_bytes(&t->context, f->tokens, f->tokens_bytes))
            return out_of_memory(t);
        t->n_inherited = t->rebased_from = (int)t->context.n;
        expect(t, &f->parent);
        if (!turn_touches(t) && f->parent.answered && engine_chat_close(s->engine, &t->context))
            return out_of_memory(t);
        if ((rc = render_new(t)))
            return rc;
    }
    for (size_t i = 0; i < t->context.n; i++)
        if (t->context.ids[i] < 0 || t->context.ids[i] >= s->info->n_vocab) {
            turn_fail(t, SESSION_LEDGER, "the stored tokens of this conversation do not belong to this model");
            return -EBADMSG;
        }
    t->n_prompt = (int)t->context.n;
    return 0;
}

static size_t trimmed(const char **text, size_t len)
{
    while (len && isspace((unsigned char)**text))
        (*text)++, len--;
    while (len && isspace((unsigned char)(*text)[len - 1]))
        len--;
    return len;
}

static bool hash_message(EVP_MD_CTX *md, uint8_t hash[32], enum engine_role role, const char *text, size_t len)
{
    uint8_t r = (uint8_t)role;
    len = trimmed(&text, len); /* frontends trim what they send back */
    return EVP_DigestInit_ex(md, EVP_sha256(), NULL) && EVP_DigestUpdate(md, hash, 32) && EVP_DigestUpdate(md, &r, 1) &&
           EVP_DigestUpdate(md, text, len) && EVP_DigestFinal_ex(md, hash, NULL);
}

void context_chat_hashes(const struct turn *t, const char *answer, size_t answer_len, uint8_t (*out)[32])
{
    size_t bytes = (t->n_messages + 1) * sizeof *out;
    uint8_t hash[32] = {0};
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    bool ok = md != NULL;
    memset(out, 0, bytes);
    for (size_t i = 0; ok && i < t->n_messages; i++) {
        ok = hash_message(md, hash, t->messages[i].role, t->messages[i].text, t->messages[i].len);
        memcpy(out[i], hash, sizeof hash);
    }
    if (ok && answer) {
        ok = hash_message(md, hash, ENGINE_ASSISTANT, answer, answer_len);
        memcpy(out[t->n_messages], hash, sizeof hash);
    }
    if (!ok)
        memset(out, 0, bytes); /* never matched */
    EVP_MD_CTX_free(md);
}
