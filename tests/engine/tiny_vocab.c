/* tiny_vocab.c - see tiny_vocab.h. */
#include "tests/engine/tiny_vocab.h"

#include <stdio.h>
#include <string.h>

enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER = 4, BYTE = 6 };

/* The character that byte-level vocabularies write for a byte. */
static void byte_character(int byte, char out[3])
{
    int c = byte, shift = 0;
    bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    for (int b = 0; !printable && b < byte; b++)
        shift += b < 0x21 || (b > 0x7e && b < 0xa1) || b == 0xad;
    if (!printable)
        c = 0x100 + shift;
    out[0] = (char)(c < 0x80 ? c : 0xc0 | c >> 6);
    out[1] = (char)(c < 0x80 ? 0 : 0x80 | (c & 63));
    out[2] = '\0';
}

void tiny_vocab_bpe(struct gguf_writer *w, const char *pre)
{
    static const char *const REST[TINY_TOKENS - TINY_HE] = {
        "he",
        "ll",
        "hell",
        "hello",
        "\xc4\xa0hello",
        "12",
        "\xc4\x8a\xc4\x8a",
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        "<tool_call>",
        "<mark>",
    };
    static const char *const MERGES[] = {
        "h e", "l l", "he ll", "hell o", "\xc4\xa0 hello", "1 2", "\xc4\x8a \xc4\x8a",
    };
    char bytes[256][3];
    const char *tokens[TINY_TOKENS];
    int32_t types[TINY_TOKENS];
    for (int i = 0; i < 256; i++) {
        byte_character(i, bytes[i]);
        tokens[i] = bytes[i];
    }
    for (int i = TINY_HE; i < TINY_TOKENS; i++)
        tokens[i] = REST[i - TINY_HE];
    for (int i = 0; i < TINY_TOKENS; i++)
        types[i] = i >= TINY_TOOL_CALL ? USER : i >= TINY_END_OF_TEXT ? CONTROL : NORMAL;
    gguf_writer_string(w, "tokenizer.ggml.model", "gpt2");
    gguf_writer_string(w, "tokenizer.ggml.pre", pre);
    gguf_writer_strings(w, "tokenizer.ggml.tokens", tokens, TINY_TOKENS);
    gguf_writer_i32s(w, "tokenizer.ggml.token_type", types, TINY_TOKENS);
    gguf_writer_strings(w, "tokenizer.ggml.merges", MERGES, sizeof MERGES / sizeof *MERGES);
    gguf_writer_u32(w, "tokenizer.ggml.eos_token_id", TINY_IM_END);
    gguf_writer_u32(w, "tokenizer.ggml.bos_token_id", TINY_END_OF_TEXT);
    gguf_writer_bool(w, "tokenizer.ggml.add_bos_token", false);
    gguf_writer_string(w, "tokenizer.chat_template",
                       "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + "
                       "'<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' "
                       "}}{% endif %}");
}

void tiny_vocab_spm(struct gguf_writer *w)
{
    static const struct {
        const char *text;
        float score;
    } PIECES[TINY_SPM_NEWLINE - TINY_SPM_SPACE] = {
        {"\xe2\x96\x81", -10},
        {"h", -11},
        {"e", -12},
        {"l", -13},
        {"o", -14},
        {"he", -2},
        {"ll", -1},
        {"llo", -3},
        {"hello", -4},
        {"\xe2\x96\x81hello", -5},
    };
    char bytes[256][8];
    const char *tokens[TINY_SPM_TOKENS] = {"<unk>", "<s>", "</s>"};
    int32_t types[TINY_SPM_TOKENS] = {UNKNOWN, CONTROL, CONTROL};
    float scores[TINY_SPM_TOKENS] = {0};
    for (int i = 0; i < 256; i++) {
        snprintf(bytes[i], sizeof bytes[i], "<0x%02X>", (unsigned)i);
        tokens[TINY_SPM_BYTES + i] = bytes[i];
        types[TINY_SPM_BYTES + i] = BYTE;
    }
    for (int i = TINY_SPM_SPACE; i < TINY_SPM_NEWLINE; i++) {
        tokens[i] = PIECES[i - TINY_SPM_SPACE].text;
        scores[i] = PIECES[i - TINY_SPM_SPACE].score;
        types[i] = NORMAL;
    }
    tokens[TINY_SPM_NEWLINE] = "\n";
    types[TINY_SPM_NEWLINE] = USER;
    gguf_writer_string(w, "tokenizer.ggml.model", "llama");
    gguf_writer_strings(w, "tokenizer.ggml.tokens", tokens, TINY_SPM_TOKENS);
    gguf_writer_f32s(w, "tokenizer.ggml.scores", scores, TINY_SPM_TOKENS);
    gguf_writer_i32s(w, "tokenizer.ggml.token_type", types, TINY_SPM_TOKENS);
    gguf_writer_u32(w, "tokenizer.ggml.bos_token_id", 1);
    gguf_writer_u32(w, "tokenizer.ggml.eos_token_id", 2);
    gguf_writer_u32(w, "tokenizer.ggml.unknown_token_id", 0);
}
