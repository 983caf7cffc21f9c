/* vocab.c - loads a vocabulary, and leads a text through special tokens, pre-tokenizer and merges.
 *
 * Token texts stay in the file's header; the tables beside them are a few arrays whose sizes follow from the number of
 * tokens. What a user writes is looked up among ordinary tokens only: control tokens are not in that table at all, so
 * that no sequence of merges can arrive at one.
 */
#include "engine/text/vocab_private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

/* DeepSeek's tokens, in wide bars (U+FF5C), with U+2581 for spaces. */
#define DEEPSEEK(name) "<\xef\xbd\x9c" name "\xef\xbd\x9c>"
#define DEEPSEEK_BEGIN DEEPSEEK("begin\xe2\x96\x81of\xe2\x96\x81sentence")
#define DEEPSEEK_END   DEEPSEEK("end\xe2\x96\x81of\xe2\x96\x81sentence")

/* Control tokens by their well-known texts, whatever type a file gives them: files exist that call them normal. */
static const char *const MARKERS[] = {
    "<|im_start|>",      "<|im_end|>",         "<|endoftext|>",
    "<|begin_of_text|>", "<|end_of_text|>",    "<|start_header_id|>",
    "<|end_header_id|>", "<|eot_id|>",         "<|eom_id|>",
    "<start_of_turn>",   "<end_of_turn>",      "[INST]",
    "[/INST]",           "[SYSTEM_PROMPT]",    "[/SYSTEM_PROMPT]",
    "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",   "[TOOL_CALLS]",       "<|im_sep|>",
    "<|user|>",          "<|assistant|>",      "<|system|>",
    "<|end|>",           DEEPSEEK("User"),     DEEPSEEK("Assistant"),
    DEEPSEEK_BEGIN,      DEEPSEEK_END,         "<|start|>",
    "<|message|>",       "<|channel|>",        "<|return|>",
    "<|call|>",          "<|constrain|>",
};

/* Tokens that end an answer. "</s>" only where the file makes it a control token: to Gemma it is an HTML tag. */
static const char *const ENDS[] = {
    "<|im_end|>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>",
    "<|end|>",    "</s>",          "<eos>",           "<|return|>", "<|call|>",   DEEPSEEK_END,
};

/* User-defined tokens that chat formats give a meaning. */
static const char *const TAGS[] = {
    "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>", "<tools>", "</tools>",
};

#define LENGTH(a) (sizeof(a) / sizeof *(a))

static bool is_text(const struct gguf_string *s, const char *text)
{
    return s->len == strlen(text) && memcmp(s->text, text, s->len) == 0;
}

static bool is_any(const struct gguf_string *s, const char *const *texts, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (is_text(s, texts[i]))
            return true;
    return false;
}

/* ---- loading ---------------------------------------------------------------------------------------------------- */

#define FAIL(code, ...) gguf_fail(g, err, err_size, (code), __VA_ARGS__)

static int load_tokens(struct vocab *v, const struct gguf *g, char *err, size_t err_size)
{
    struct gguf_array tokens, types;
    int rc = gguf_get_array(g, "tokenizer.ggml.tokens", GGUF_REQUIRED, GGUF_STRING, &tokens, err, err_size);
    if (rc == 0)
        rc = gguf_get_array(g, "tokenizer.ggml.token_type", GGUF_REQUIRED, GGUF_I32, &types, err, err_size);
    if (rc)
        return rc;
    if (tokens.n < 1 || tokens.n > VOCAB_MAX_TOKENS)
        return FAIL(-EBADMSG, "tokenizer.ggml.tokens has %llu tokens, not 1 to %d", (unsigned long long)tokens.n,
                    VOCAB_MAX_TOKENS);
    if (types.n != tokens.n)
        return FAIL(-EBADMSG, "tokenizer.ggml.token_type has %llu values for %llu tokens", (unsigned long long)types.n,
                    (unsigned long long)tokens.n);
    v->n = (int)tokens.n;
    v->text = calloc(tokens.n, sizeof *v->text);
    v->type = calloc(tokens.n, sizeof *v->type);
    v->flags = calloc(tokens.n, sizeof *v->flags);
    if (v->text == NULL || v->type == NULL || v->flags == NULL)
        return FAIL(-ENOMEM, "out of memory");
    size_t cursor = 0, total = 0;
    for (int i = 0; i < v->n; i++) {
        v->text[i] = gguf_array_next(&tokens, &cursor);
        int64_t type = gguf_array_int(&types, (uint64_t)i);
        if (v->text[i].len > VOCAB_MAX_TOKEN_BYTES)
            return FAIL(-EBADMSG, "token %d has %zu bytes, more than %d", i, v->text[i].len, VOCAB_MAX_TOKEN_BYTES);
        total += v->text[i].len;
        if (total > VOCAB_MAX_BYTES)
            return FAIL(-EBADMSG, "the tokens have more than %d bytes together", VOCAB_MAX_BYTES);
        if (type < 0 || type > TYPE_BYTE)
            return FAIL(-EBADMSG, "tokenizer.ggml.token_type[%d] is %lld", i, (long long)type);
        v->type[i] = type == 0 ? TYPE_NORMAL : (uint8_t)type;
        if (v->text[i].len > 2 && (v->text[i].text[0] == '<' || v->text[i].text[0] == '[') &&
            is_any(&v->text[i], MARKERS, LENGTH(MARKERS)))
            v->type[i] = TYPE_CONTROL;
    }
    return 0;
}

/* Decodes every token's bytes. */
static int load_bytes(struct vocab *v, const struct gguf *g, char *err, size_t err_size)
{
    size_t total = 0, n = 0;
    for (int i = 0; i < v->n; i++)
        total += v->text[i].len;
    v->bytes = malloc(total + 1);
    v->bytes_at = malloc(((size_t)v->n + 1) * sizeof *v->bytes_at);
    if (v->bytes == NULL || v->bytes_at == NULL)
        return FAIL(-ENOMEM, "out of memory");
    for (int i = 0; i < v->n; i++) {
        const struct gguf_string *s = &v->text[i];
        v->bytes_at[i] = (uint32_t)n;
        if (v->type[i] == TYPE_CONTROL || v->type[i] == TYPE_UNKNOWN || v->type[i] == TYPE_UNUSED)
            continue;
        if (v->type[i] == TYPE_USER && !v->is_spm) {
            memcpy(v->bytes + n, s->text, s->len);
            n += s->len;
        } else if (v->is_spm && v->type[i] == TYPE_BYTE) {
            int byte = spm_parse_byte(s->text, s->len);
            if (byte < 0)
                return FAIL(-EBADMSG, "token %d \"%s\" has the type of a byte but is not <0x00> to <0xFF>", i,
                            gguf_show(s->text, s->len).text);
            v->bytes[n++] = (char)byte;
        } else if (v->is_spm) {
            n += spm_decode(s->text, s->len, v->bytes + n);
        } else {
            n += bpe_decode(s->text, s->len, v->bytes + n);
        }
    }
    v->bytes_at[v->n] = (uint32_t)n;
    return 0;
}

/* What an ordinary token is looked up with; len 0: it is none. */
static struct gguf_string ordinary_key(const struct vocab *v, int id)
{
    struct gguf_string none = {"", 0};
    if (v->is_spm)
        return v->type[id] == TYPE_NORMAL || (v->type[id] == TYPE_USER && !(v->flags[id] & FLAG_RESERVED)) ? v->text[id]
                                                                                                           : none;
    if (v->type[id] != TYPE_NORMAL && v->type[id] != TYPE_BYTE)
        return none;
    return (struct gguf_string){v->bytes + v->bytes_at[id], v->bytes_at[id + 1] - v->bytes_at[id]};
}

engine_token vocab_look_up(const struct vocab *v, const char *key, size_t len)
{
    uint32_t hash = (uint32_t)XXH3_64bits(key, len);
    for (uint32_t at = hash & v->slot_mask; v->slots[at].id >= 0; at = (at + 1) & v->slot_mask) {
        if (v->slots[at].hash != hash)
            continue;
        struct gguf_string s = ordinary_key(v, v->slots[at].id);
        if (s.len == len && memcmp(s.text, key, len) == 0)
            return v->slots[at].id;
    }
    return -1;
}

static int load_slots(struct vocab *v, const struct gguf *g, char *err, size_t err_size)
{
    size_t slots = 16;
    while (slots < (size_t)v->n * 2)
        slots *= 2;
    v->slots = malloc(slots * sizeof *v->slots);
    if (v->slots == NULL)
        return FAIL(-ENOMEM, "out of memory");
    for (size_t i = 0; i < slots; i++)
        v->slots[i].id = -1;
    v->slot_mask = (uint32_t)slots - 1;
    for (int i = 0; i < v->n; i++) {
        struct gguf_string s = ordinary_key(v, i);
        if (s.len == 0)
            continue;
        uint32_t hash = (uint32_t)XXH3_64bits(s.text, s.len), at = hash & v->slot_mask;
        bool known = false; /* of two equal tokens the first counts */
        for (; v->slots[at].id >= 0 && !known; at = (at + 1) & v->slot_mask) {
            struct gguf_string other = ordinary_key(v, v->slots[at].id);
            known = v->slots[at].hash == hash && other.len == s.len && memcmp(other.text, s.text, s.len) == 0;
        }
        if (known)
            continue;
        v->slots[at].hash = hash;
        v->slots[at].id = i;
        v->longest = s.len > v->longest ? s.len : v->longest;
    }
    return 0;
}

static int compare_specials(const void *a, const void *b, void *arg)
{
    const struct gguf_string *text = arg;
    engine_token left = *(const engine_token *)a, right = *(const engine_token *)b;
    const struct gguf_string *x = &text[left], *y = &text[right];
    int order = memcmp(x->text, y->text, x->len < y->len ? x->len : y->len);
    if (order == 0)
        order = (x->len > y->len) - (x->len < y->len);
    return order != 0 ? order : (left > right) - (left < right);
}

static int load_specials(struct vocab *v, const struct gguf *g, struct specials *s, bool all, char *err,
                         size_t err_size)
{
    uint32_t n = 0;
    for (int pass = 0; pass < 2; pass++) {
        n = 0;
        for (int i = 0; i < v->n; i++) {
            bool user = v->type[i] == TYPE_USER && (all || !(v->flags[i] & FLAG_RESERVED));
            if (v->text[i].len == 0 || !(user || (all && v->type[i] == TYPE_CONTROL)))
                continue;
            if (pass == 1)
                s->ids[n] = i;
            n++;
        }
        if (pass == 0 && (s->ids = malloc(((size_t)n + 1) * sizeof *s->ids)) == NULL)
            return FAIL(-ENOMEM, "out of memory");
    }
    qsort_r(s->ids, n, sizeof *s->ids, compare_specials, v->text);
    for (uint32_t i = 0; i < n; i++)
        s->first[(unsigned char)v->text[s->ids[i]].text[0] + 1]++;
    for (int b = 0; b < 256; b++)
        s->first[b + 1] += s->first[b];
    return 0;
}

/* Marks user-defined tokens that have a meaning in this file's chat format: the known tags, and what looks like a tag
 * (<...> or [...]) and is written in the template. */
static int load_reserved(struct vocab *v, const struct gguf *g, char *err, size_t err_size)
{
    struct gguf_string chat = {"", 0};
    int rc = gguf_get_string(g, "tokenizer.chat_template", GGUF_OPTIONAL, &chat, err, err_size);
    for (int i = 0; rc == 0 && i < v->n; i++) {
        const struct gguf_string *s = &v->text[i];
        if (v->type[i] != TYPE_USER || s->len < 3)
            continue;
        char first = s->text[0], last = s->text[s->len - 1];
        bool tag = (first == '<' && last == '>') || (first == '[' && last == ']');
        if (is_any(s, TAGS, LENGTH(TAGS)) || (tag && memmem(chat.text, chat.len, s->text, s->len) != NULL))
            v->flags[i] |= FLAG_RESERVED;
    }
    return rc;
}

/* One of tokenizer.ggml.*_token_id: *id keeps its default when the key is missing. */
static int load_id(const struct vocab *v, const struct gguf *g, const char *key, engine_token *id, char *err,
                   size_t err_size)
{
    uint32_t value = UINT32_MAX;
    if (!gguf_has(g, key))
        return 0;
    int rc = gguf_get_u32(g, key, GGUF_REQUIRED, &value, err, err_size);
    if (rc == 0 && value >= (uint32_t)v->n)
        return FAIL(-EBADMSG, "%s is %u, but there are %d tokens", key, value, v->n);
    if (rc == 0)
        *id = (engine_token)value;
    return rc;
}

/* The same for an id that this vocabulary can do without: what is wrong with it is worth a note. */
static int load_spare_id(struct vocab *v, const struct gguf *g, const char *key, engine_token *id, char *err,
                         size_t err_size)
{
    char why[256], *notes;
    int rc = load_id(v, g, key, id, why, sizeof why);
    if (rc != -EBADMSG)
        return rc;
    if (asprintf(&notes, "%s%s%s; it is not used", v->notes ? v->notes : "", v->notes ? "\n" : "", why) < 0)
        return FAIL(-ENOMEM, "out of memory");
    free(v->notes);
    v->notes = notes;
    return 0;
}

/* SentencePiece files that name no such token mean these. */
static engine_token default_id(const struct vocab *v, int id, int type)
{
    return v->is_spm && id < v->n && v->type[id] == type ? id : -1;
}

static int load_ids(struct vocab *v, const struct gguf *g, char *err, size_t err_size)
{
    static const char *const OTHERS[] = {
        "tokenizer.ggml.padding_token_id", "tokenizer.ggml.seperator_token_id", "tokenizer.ggml.separator_token_id",
        "tokenizer.ggml.cls_token_id",     "tokenizer.ggml.mask_token_id",      "tokenizer.ggml.prefix_token_id",
        "tokenizer.ggml.suffix_token_id",  "tokenizer.ggml.middle_token_id",    "tokenizer.ggml.fim_pre_token_id",
        "tokenizer.ggml.fim_suf_token_id", "tokenizer.ggml.fim_mid_token_id",   "tokenizer.ggml.fim_pad_token_id",
        "tokenizer.ggml.fim_rep_token_id", "tokenizer.ggml.fim_sep_token_id",
    };
    engine_token eot = -1, eom = -1, other;
    v->unknown = default_id(v, 0, TYPE_UNKNOWN);
    v->bos = default_id(v, 1, TYPE_CONTROL);
    v->eos = default_id(v, 2, TYPE_CONTROL);
    int rc = gguf_get_bool(g, "tokenizer.ggml.add_bos_token", GGUF_OPTIONAL, &v->add_bos, err, err_size);
    if (rc == 0)
        rc = gguf_get_bool(g, "tokenizer.ggml.add_eos_token", GGUF_OPTIONAL, &v->add_eos, err, err_size);
    if (rc == 0)
        rc = load_id(v, g, "tokenizer.ggml.eos_token_id", &v->eos, err, err_size);
    if (rc == 0)
        rc = (v->add_bos ? load_id(v, g, "tokenizer.ggml.bos_token_id", &v->bos, err, err_size)
                         : load_spare_id(v, g, "tokenizer.ggml.bos_token_id", &v->bos, err, err_size));
    if (rc == 0)
        rc = load_spare_id(v, g, "tokenizer.ggml.unknown_token_id", &v->unknown, err, err_size);
    if (rc == 0)
        rc = load_spare_id(v, g, "tokenizer.ggml.eot_token_id", &eot, err, err_size);
    if (rc == 0)
        rc = load_spare_id(v, g, "tokenizer.ggml.eom_token_id", &eom, err, err_size);
    for (size_t i = 0; rc == 0 && i < LENGTH(OTHERS); i++)
        rc = load_spare_id(v, g, OTHERS[i], &other, err, err_size);
    if (rc)
        return rc;
    /* In place of what the vocabulary cannot write a text gets no control token: rather nothing. */
    if (v->unknown >= 0 && v->type[v->unknown] == TYPE_CONTROL)
        v->unknown = -1;
    engine_token ends[] = {v->eos, eot, eom};
    for (size_t i = 0; i < LENGTH(ends); i++)
        if (ends[i] >= 0)
            v->flags[ends[i]] |= FLAG_ENDS_ANSWER;
    for (int i = 0; i < v->n; i++)
        if (v->type[i] == TYPE_CONTROL && is_any(&v->text[i], ENDS, LENGTH(ENDS)))
            v->flags[i] |= FLAG_ENDS_ANSWER;
    v->add_bos = v->add_bos && v->bos >= 0;
    v->add_eos = v->add_eos && v->eos >= 0;
    return 0;
}

int vocab_open(const struct gguf *g, struct vocab **out, char *err, size_t err_size)
{
    struct gguf_string model;
    int rc = gguf_get_string(g, "tokenizer.ggml.model", GGUF_REQUIRED, &model, err, err_size);
    if (rc)
        return rc;
    if (!is_text(&model, "gpt2") && !is_text(&model, "llama"))
        return FAIL(-ENOTSUP, "tokenizer.ggml.model is \"%s\"; convod knows \"gpt2\" and \"llama\"",
                    gguf_show(model.text, model.len).text);
    struct vocab *v = calloc(1, sizeof *v);
    if (v == NULL)
        return FAIL(-ENOMEM, "out of memory");
    v->is_spm = is_text(&model, "llama");
    if ((rc = load_tokens(v, g, err, err_size)) || (rc = load_bytes(v, g, err, err_size)) ||
        (rc = load_reserved(v, g, err, err_size)) || (rc = load_slots(v, g, err, err_size)) ||
        (rc = load_specials(v, g, &v->in_text, false, err, err_size)) ||
        (rc = load_specials(v, g, &v->all, true, err, err_size)) ||
        (rc = v->is_spm ? spm_load(v, g, err, err_size) : bpe_load(v, g, err, err_size)) ||
        (rc = load_ids(v, g, err, err_size))) {
        vocab_close(v);
        return rc;
    }
    *out = v;
    return 0;
}

void vocab_close(struct vocab *v)
{
    if (v == NULL)
        return;
    pretokenizer_close(v->pre);
    free(v->text);
    free(v->type);
    free(v->flags);
    free(v->bytes_at);
    free(v->bytes);
    free(v->slots);
    free(v->in_text.ids);
    free(v->all.ids);
    free(v->pairs);
    free(v->merged);
    free(v->scores);
    free(v->notes);
    free(v);
}

/* ---- text to tokens --------------------------------------------------------------------------------------------- */

/* The longest special token that text[0..len) begins with, or -1. */
static engine_token match_special(const struct vocab *v, const struct specials *s, const char *text, size_t len,
                                  size_t *matched)
{
    uint32_t low = s->first[(unsigned char)text[0]], high = s->first[(unsigned char)text[0] + 1];
    engine_token best = -1;
    /* ids[low .. high) are those that begin with text[0 .. depth), the shortest first. */
    for (size_t depth = 1; low < high; depth++) {
        if (v->text[s->ids[low]].len == depth) {
            best = s->ids[low];
            *matched = depth;
            while (low < high && v->text[s->ids[low]].len == depth)
                low++;
        }
        if (depth == len)
            break;
        unsigned char next = (unsigned char)text[depth];
        for (int edge = 0; edge < 2; edge++) { /* first those below next are cut off, then those above */
            uint32_t from = low, to = high;
            while (from < to) {
                uint32_t middle = from + (to - from) / 2;
                unsigned char byte = (unsigned char)v->text[s->ids[middle]].text[depth];
                if (edge == 0 ? byte < next : byte <= next)
                    from = middle + 1;
                else
                    to = middle;
            }
            if (edge == 0)
                low = from;
            else
                high = from;
        }
    }
    return best;
}

engine_token vocab_special_n(const struct vocab *v, const char *text, size_t len)
{
    size_t matched = 0;
    engine_token id = len > 0 ? match_special(v, &v->all, text, len, &matched) : -1;
    return matched == len ? id : -1;
}

int vocab_work_text(struct vocab_work *w, size_t n)
{
    if (n <= w->text_capacity)
        return 0;
    free(w->text);
    w->text = malloc(n);
    w->text_capacity = w->text != NULL ? n : 0;
    return w->text != NULL ? 0 : -ENOMEM;
}

/* A stretch of text without special tokens. before: 0, VOCAB_AFTER_SPECIAL or VOCAB_CONTINUES. */
static int tokenize_plain(const struct vocab *v, struct vocab_work *w, const char *text, size_t len, unsigned before,
                          struct engine_tokens *out)
{
    if (len == 0)
        return 0;
    /* After a special token the space that a chat template writes there is the one that would be put in front. */
    bool begins = before == 0 || (before == VOCAB_AFTER_SPECIAL && text[0] != ' ');
    return v->is_spm ? spm_tokenize(v, w, text, len, v->space_prefix && begins, out)
                     : bpe_tokenize(v, w, text, len, out);
}

static int tokenize(const struct vocab *v, struct vocab_work *w, const char *text, size_t len,
                    const struct specials *specials, unsigned before, struct engine_tokens *out)
{
    size_t start = 0;
    for (size_t i = 0; i < len;) {
        size_t matched = 0;
        unsigned char byte = (unsigned char)text[i];
        engine_token id = -1;
        if (specials->first[byte] < specials->first[byte + 1])
            id = match_special(v, specials, text + i, len - i, &matched);
        if (id < 0) {
            i++;
            continue;
        }
        int rc = tokenize_plain(v, w, text + start, i - start, before, out);
        if (rc == 0)
            rc = engine_tokens_append(out, &id, 1);
        if (rc)
            return rc;
        before = v->type[id] == TYPE_CONTROL ? VOCAB_AFTER_SPECIAL : VOCAB_CONTINUES;
        i += matched;
        start = i;
    }
    return tokenize_plain(v, w, text + start, len - start, before, out);
}

int vocab_tokenize(const struct vocab *v, const char *text, size_t len, unsigned flags, struct engine_tokens *out)
{
    if (len > VOCAB_MAX_TEXT_BYTES)
        return -EOVERFLOW;
    struct vocab_work w = {0};
    size_t n_before = out->n, matched;
    unsigned before = flags & (VOCAB_AFTER_SPECIAL | VOCAB_CONTINUES);
    const struct specials *specials = flags & VOCAB_PARSE_SPECIAL ? &v->all : &v->in_text;
    int rc = 0;
    if ((flags & VOCAB_ADD_SPECIAL) && v->add_bos &&
        !((flags & VOCAB_PARSE_SPECIAL) && len > 0 && match_special(v, specials, text, len, &matched) == v->bos))
        rc = engine_tokens_append(out, &v->bos, 1);
    if (rc == 0)
        rc = tokenize(v, &w, text, len, specials, before, out);
    if (rc == 0 && (flags & VOCAB_ADD_SPECIAL) && v->add_eos && (out->n == n_before || out->ids[out->n - 1] != v->eos))
        rc = engine_tokens_append(out, &v->eos, 1);
    if (rc)
        out->n = n_before;
    merge_free(&w.merge);
    free(w.text);
    return rc;
}

/* ---- facts about tokens ------------------------------------------------------------------------------------------ */

static bool known(const struct vocab *v, engine_token id)
{
    return id >= 0 && id < v->n;
}

const char *vocab_notes(const struct vocab *v)
{
    return v->notes;
}

int vocab_size(const struct vocab *v)
{
    return v->n;
}

const char *vocab_model(const struct vocab *v)
{
    return v->is_spm ? "llama" : "gpt2";
}

const char *vocab_token_bytes(const struct vocab *v, engine_token id, size_t *len)
{
    *len = known(v, id) ? v->bytes_at[id + 1] - v->bytes_at[id] : 0;
    return known(v, id) ? v->bytes + v->bytes_at[id] : v->bytes;
}

struct gguf_string vocab_token_text(const struct vocab *v, engine_token id)
{
    return known(v, id) ? v->text[id] : (struct gguf_string){"", 0};
}

engine_token vocab_special(const struct vocab *v, const char *text)
{
    return vocab_special_n(v, text, strlen(text));
}

bool vocab_is_control(const struct vocab *v, engine_token id)
{
    return known(v, id) && v->type[id] == TYPE_CONTROL;
}

bool vocab_is_reserved(const struct vocab *v, engine_token id)
{
    return id >= 0 && id < v->n && v->flags[id] & FLAG_RESERVED;
}

bool vocab_ends_answer(const struct vocab *v, engine_token id)
{
    return known(v, id) && (v->flags[id] & FLAG_ENDS_ANSWER) != 0;
}

engine_token vocab_bos(const struct vocab *v)
{
    return v->bos;
}

engine_token vocab_eos(const struct vocab *v)
{
    return v->eos;
}

bool vocab_adds_space(const struct vocab *v)
{
    return v->space_prefix;
}

bool vocab_adds_bos(const struct vocab *v)
{
    return v->add_bos;
}

bool vocab_adds_eos(const struct vocab *v)
{
    return v->add_eos;
}
