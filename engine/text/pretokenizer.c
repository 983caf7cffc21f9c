/* pretokenizer.c - the regular expressions that byte-level BPE models cut text with before they merge.
 *
 * A model names its pre-tokenizer; each is one expression or a few that are applied one after the other: every match
 * and every gap between matches becomes a piece for the next. The expressions are those of the models' own tokenizer
 * files, written for PCRE2: whitespace is Unicode's White_Space property (PCRE2's \s has one character more), and case
 * is spelled out where the original ignores it, so that U+017F is not taken for an s.
 *
 * All of them run in linear time: wherever two repeats follow each other, the text that the first has to give back is
 * consumed by the same match or by the next alternative.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "engine/text/vocab_private.h"

#include <errno.h>
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#define MAX_STAGES 4

/* \s and \S of the original expressions, alone and within a class. */
#define S  "\\p{White_Space}"
#define NS "\\P{White_Space}"

#define CONTRACTIONS     "'s|'t|'re|'ve|'m|'ll|'d"
#define ANY_CONTRACTIONS "'(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])"
#define SPACES           S "*[\\r\\n]+|" S "+(?!" NS ")|" S "+"
#define UPPER            "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER            "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define LEAD             "[^\\r\\n\\p{L}\\p{N}]?"

#define GPT2_EXPRESSION   CONTRACTIONS "| ?\\p{L}+| ?\\p{N}+| ?[^" S "\\p{L}\\p{N}]+|" S "+(?!" NS ")|" S "+"
#define QWEN2_EXPRESSION  ANY_CONTRACTIONS "|" LEAD "\\p{L}+|\\p{N}| ?[^" S "\\p{L}\\p{N}]+[\\r\\n]*|" SPACES
#define LLAMA3_EXPRESSION ANY_CONTRACTIONS "|" LEAD "\\p{L}+|\\p{N}{1,3}| ?[^" S "\\p{L}\\p{N}]+[\\r\\n]*|" SPACES
#define QWEN35_EXPRESSION                                                                                              \
    ANY_CONTRACTIONS "|" LEAD "[\\p{L}\\p{M}]+|\\p{N}| ?[^" S "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES
#define TEKKEN_EXPRESSION                                                                                              \
    LEAD UPPER "*" LOWER "+|" LEAD UPPER "+" LOWER "*|\\p{N}| ?[^" S "\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES
#define GPT4O_EXPRESSION                                                                                               \
    LEAD UPPER "*" LOWER "+(?:" ANY_CONTRACTIONS ")?|" LEAD UPPER "+" LOWER "*(?:" ANY_CONTRACTIONS                    \
               ")?|\\p{N}{1,3}| ?[^" S "\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES

enum { IGNORE_MERGES = 1, ADD_BOS = 2 };

static const struct rule {
    const char *names[8];
    const char *stages[MAX_STAGES];
    unsigned flags;
} RULES[] = {
    {{"gpt-2", "phi-2", "mpt", "olmo", "trillion", "granite-docling"}, {GPT2_EXPRESSION}, 0},
    {{"smollm", "starcoder", "refact", "command-r", "codeshell", "minerva-7b"}, {"\\p{N}", GPT2_EXPRESSION}, 0},
    {{"qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez"}, {QWEN2_EXPRESSION}, 0},
    {{"qwen35"}, {QWEN35_EXPRESSION}, 0},
    {{"llama-bpe", "llama3", "llama-v3", "falcon3", "lfm2"}, {LLAMA3_EXPRESSION}, IGNORE_MERGES | ADD_BOS},
    {{"smaug-bpe", "dbrx", "glm4", "chatglm-bpe"}, {LLAMA3_EXPRESSION}, 0},
    {{"tekken"}, {TEKKEN_EXPRESSION}, IGNORE_MERGES | ADD_BOS},
    {{"gpt-4o", "llama4"}, {GPT4O_EXPRESSION}, 0},
    {{"default"}, {"[\\p{P}$+<=>^~|]+", GPT2_EXPRESSION, "\\p{N}+", "[0-9][0-9][0-9]"}, 0},
};

struct pretokenizer {
    pcre2_code *stages[MAX_STAGES];
    int n_stages;
};

static const struct rule *find_rule(const char *name, size_t len)
{
    for (size_t i = 0; i < sizeof RULES / sizeof *RULES; i++)
        for (size_t k = 0; k < sizeof RULES[i].names / sizeof *RULES[i].names && RULES[i].names[k]; k++)
            if (strlen(RULES[i].names[k]) == len && memcmp(RULES[i].names[k], name, len) == 0)
                return &RULES[i];
    return NULL;
}

int pretokenizer_open(const struct gguf *g, const char *name, size_t len, struct pretokenizer **out,
                      bool *ignore_merges, bool *add_bos, char *err, size_t err_size)
{
    const struct rule *rule = find_rule(name, len);
    if (rule == NULL)
        return gguf_fail(g, err, err_size, -ENOTSUP,
                         "tokenizer.ggml.pre is \"%s\", a pre-tokenizer that convod does not know",
                         gguf_show(name, len).text);
    struct pretokenizer *p = calloc(1, sizeof *p);
    if (p == NULL)
        return gguf_fail(g, err, err_size, -ENOMEM, "out of memory");
    for (int i = 0; i < MAX_STAGES && rule->stages[i] != NULL; i++) {
        int code;
        PCRE2_SIZE at;
        p->stages[i] =
            pcre2_compile((PCRE2_SPTR)rule->stages[i], PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &code, &at, NULL);
        if (p->stages[i] == NULL) {
            pretokenizer_close(p);
            return gguf_fail(g, err, err_size, code == PCRE2_ERROR_HEAP_FAILED ? -ENOMEM : -ENOTSUP,
                             "PCRE2 cannot compile the pre-tokenizer (error %d at %zu)", code, at);
        }
        /* Without it the interpreter does the same, more slowly. */
        (void)pcre2_jit_compile(p->stages[i], PCRE2_JIT_COMPLETE);
        p->n_stages = i + 1;
    }
    *out = p;
    *ignore_merges = (rule->flags & IGNORE_MERGES) != 0;
    *add_bos = (rule->flags & ADD_BOS) != 0;
    return 0;
}

void pretokenizer_close(struct pretokenizer *p)
{
    if (p == NULL)
        return;
    for (int i = 0; i < p->n_stages; i++)
        pcre2_code_free(p->stages[i]);
    free(p);
}

struct split {
    const struct pretokenizer *p;
    const char *text;
    pcre2_match_data *match;
    pcre2_match_context *limits;
    int (*piece)(void *arg, size_t start, size_t end);
    void *arg;
};

/* Where the next match of an expression in text[start..end) lies. 1: there is one; 0: none; negative: an error. */
static int find(const struct split *s, const pcre2_code *code, size_t at, size_t start, size_t end, size_t *from,
                size_t *to)
{
    PCRE2_SPTR subject = (PCRE2_SPTR)s->text + start;
    uint32_t options = PCRE2_NO_UTF_CHECK;
    int rc = pcre2_match(code, subject, end - start, at - start, options, s->match, s->limits);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(code, subject, end - start, at - start, options | PCRE2_NO_JIT, s->match, s->limits);
    if (rc == PCRE2_ERROR_NOMATCH)
        return 0;
    if (rc < 0)
        return rc == PCRE2_ERROR_NOMEMORY || rc == PCRE2_ERROR_HEAPLIMIT ? -ENOMEM : -EOVERFLOW;
    const PCRE2_SIZE *bounds = pcre2_get_ovector_pointer(s->match);
    *from = start + bounds[0];
    *to = start + bounds[1];
    return bounds[1] > bounds[0];
}

/* Depth of recursion: MAX_STAGES. */
static int split(const struct split *s, int stage, size_t start, size_t end)
{
    if (start == end)
        return 0;
    if (stage == s->p->n_stages)
        return s->piece(s->arg, start, end);
    for (size_t at = start; at < end;) {
        size_t from, to;
        int rc = find(s, s->p->stages[stage], at, start, end, &from, &to);
        if (rc < 0)
            return rc;
        if (rc == 0)
            return split(s, stage + 1, at, end);
        if ((rc = split(s, stage + 1, at, from)) || (rc = split(s, stage + 1, from, to)))
            return rc;
        at = to;
    }
    return 0;
}

int pretokenizer_split(const struct pretokenizer *p, const char *text, size_t len,
                       int (*piece)(void *arg, size_t start, size_t end), void *arg)
{
    struct split s = {.p = p, .text = text, .piece = piece, .arg = arg};
    int rc = -ENOMEM;
    s.match = pcre2_match_data_create(1, NULL);
    s.limits = pcre2_match_context_create(NULL);
    if (s.match != NULL && s.limits != NULL) {
        /* A repeat gives back one character at a time, and each counts: a few times the text is enough. */
        size_t limit = len < (UINT32_MAX - 1000) / 8 ? len * 8 + 1000 : UINT32_MAX;
        if (pcre2_set_match_limit(s.limits, (uint32_t)limit) == 0 && pcre2_set_depth_limit(s.limits, 1000) == 0 &&
            pcre2_set_heap_limit(s.limits, 16 * 1024) == 0)
            rc = split(&s, 0, 0, len);
    }
    pcre2_match_data_free(s.match);
    pcre2_match_context_free(s.limits);
    return rc;
}
