"""Compares the engine with Hugging Face's transformers, on this machine's CPU: by hand, for it wants gigabytes of Python packages.

    python3 -m venv /tmp/ref && /tmp/ref/bin/pip install torch transformers accelerate gguf
    make CUDA=0 build/tests/reference/engine
    /tmp/ref/bin/python tests/reference/compare.py [tiny [WORD ...] | MODEL.gguf ...]

tiny (or nothing): of each architecture and rotary setting that the tests make a tiny model with random weights of (with a WORD in its
name), the same weights are given to transformers' own class. What files change is changed back: llama's rows of queries and keys, the 1 in
Gemma's norms, joined and stacked tensors, the interleaving of gpt-oss's gate and up. Keys and values are rounded to f16 as the engine keeps them;
everything else is float on both sides, so that what is left is a last bit here and there. With quantized weights, of which each type has a
model, the engine also rounds what they are multiplied with, and transformers does not: of those the values are compared beside.

MODEL.gguf: a real file, read by transformers' own reader of such files, tokens included, over a document of this project.

A line each: how far a logit is from theirs, in units of the standard deviation of its token's logits (the mean of the median token, the mean of
all, the largest), the Kullback-Leibler divergence of the distributions (mean and largest, in nats), and how often both have the same
likeliest token. A wrong graph's mean is near 1, and that of erf for tanh in a GELU 3e-4. With experts one difference may be large: where two are
wanted equally to five digits, a last bit decides which is asked. Exit status: 0 when all are right, else 1.
"""
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

TOP = Path(__file__).resolve().parent.parent.parent
ENGINE = Path(os.environ.get("BUILD", TOP / "build")).resolve() / "tests/reference/engine"
TOKENS = 300  # more than any window here, and than twice the context that scaled rotations begin with
ORIGINAL = 128
TEXT_TOKENS = 200
FLOATS, QUANTIZED = (2e-4, 0.003), (0.1, 0.2)  # the median token's difference, and the mean one


# ---- a tiny file's configuration -------------------------------------------------------------------------------------

class File:
    """Keys without the architecture's name, and tensors as float32 arrays, rows first."""

    def __init__(self, path, mode="r"):
        self.reader = gguf.GGUFReader(path, mode)
        self.arch = self.reader.fields["general.architecture"].contents()
        self.tensors = {t.name: t for t in self.reader.tensors}

    def key(self, name, default=None):
        field = self.reader.fields.get(f"{self.arch}.{name}")
        return default if field is None else field.contents()

    def get(self, name):
        t = self.tensors[name]
        return torch.from_numpy(gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32).reshape(t.shape[::-1].tolist()))


TYPES = {"llama": "llama", "mixtral": "mixtral", "mistral3": "ministral3", "phi3windows": "phi3", "qwen3moe": "qwen3_moe", "gpt-oss": "gpt_oss",
         "gemma3": "gemma3_text"}
PERMUTED = {"llama", "mixtral", "mistral3", "smollm3", "granite"}
GEMMA = {"gemma2", "gemma3"}


def rotation(f, rope):
    """rope_parameters, as a configuration would have them."""
    base = {"rope_type": "default", "rope_theta": f.key("rope.freq_base")}
    if rope == "linear":
        return {**base, "rope_type": "linear", "factor": f.key("rope.scaling.factor")}
    if rope == "yarn":
        extra = {"gpt-oss": {"truncate": False}, "mistral3": {"mscale": 1.0, "mscale_all_dim": 1.0}}.get(f.arch, {})
        return {**base, "rope_type": "yarn", "factor": f.key("rope.scaling.factor"), "beta_fast": 32.0, "beta_slow": 1.0,
                "original_max_position_embeddings": ORIGINAL, **extra}
    if rope == "divisors":
        return {**base, "rope_type": "llama3", **LLAMA3}
    if rope.startswith("long"):
        return {**base, "rope_type": "longrope", "short_factor": f.get("rope_factors_short.weight").tolist(),
                "long_factor": f.get("rope_factors_long.weight").tolist(), "attention_factor": f.key("rope.scaling.attn_factor"),
                "original_max_position_embeddings": ORIGINAL}
    return base


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": ORIGINAL}


def llama3_divisors(f):
    """What Llama 3's rotation is as a tensor of such a file."""
    n = f.key("rope.dimension_count")
    wavelengths = 2 * np.pi * np.float64(f.key("rope.freq_base")) ** (np.arange(0, n, 2) / n)
    low, high = ORIGINAL / LLAMA3["low_freq_factor"], ORIGINAL / LLAMA3["high_freq_factor"]
    smooth = (ORIGINAL / wavelengths - LLAMA3["low_freq_factor"]) / (LLAMA3["high_freq_factor"] - LLAMA3["low_freq_factor"])
    between = 1 / ((1 - smooth) / LLAMA3["factor"] + smooth)
    return np.where(wavelengths < high, 1, np.where(wavelengths > low, LLAMA3["factor"], between)).astype(np.float32)


def configuration(f, name, rope):
    embd, heads, layers = f.key("embedding_length"), f.key("attention.head_count"), f.key("block_count")
    dim = f.key("attention.key_length", embd // heads)
    c = {"vocab_size": int(f.tensors["token_embd.weight"].shape[1]), "hidden_size": embd, "num_hidden_layers": layers, "num_attention_heads": heads,
         "num_key_value_heads": f.key("attention.head_count_kv"), "head_dim": dim, "intermediate_size": f.key("feed_forward_length"),
         "rms_norm_eps": f.key("attention.layer_norm_rms_epsilon"), "max_position_embeddings": f.key("context_length"),
         "tie_word_embeddings": "output.weight" not in f.tensors, "rope_parameters": rotation(f, rope), "pad_token_id": None,
         "bos_token_id": None, "eos_token_id": None}
    if f.key("attention.sliding_window"):
        c["sliding_window"] = f.key("attention.sliding_window")
    if name in GEMMA:
        c["query_pre_attn_scalar"] = dim
    if name == "gemma3":
        c["rope_parameters"] = {"full_attention": c["rope_parameters"], "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}
    if name in ("phi3", "phi3windows"):
        c["rope_parameters"]["partial_rotary_factor"] = f.key("rope.dimension_count") / dim
        c["original_max_position_embeddings"] = ORIGINAL
    if f.key("expert_count"):
        c |= {"num_experts": f.key("expert_count"), "num_local_experts": f.key("expert_count"), "num_experts_per_tok": f.key("expert_used_count"),
              "norm_topk_prob": True, "moe_intermediate_size": f.key("expert_feed_forward_length")}
        if name == "gpt-oss":
            c["intermediate_size"] = f.key("expert_feed_forward_length")
    if name == "mistral3":
        c["rope_parameters"] |= {"llama_4_scaling_beta": f.key("attention.temperature_scale"), "original_max_position_embeddings": ORIGINAL}
    if name == "granite":
        c |= {"embedding_multiplier": f.key("embedding_scale"), "residual_multiplier": f.key("residual_scale"),
              "attention_multiplier": f.key("attention.scale"), "logits_scaling": f.key("logit_scale")}
    return AutoConfig.for_model(TYPES.get(name, name), **c)


# ---- its weights -----------------------------------------------------------------------------------------------------

NAMES = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_qkv": "self_attn.qkv_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
         "attn_sinks.weight": "self_attn.sinks", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
         "ffn_down": "mlp.down_proj", "post_attention_norm": "post_attention_layernorm", "ffn_gate_inp": "mlp.gate"}
OTHERS = {**dict.fromkeys(GEMMA, {"ffn_norm": "pre_feedforward_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}),
          **dict.fromkeys(("phi3", "phi3windows"), {"ffn_up": "mlp.gate_up_proj"}), "gpt-oss": {"ffn_gate_inp": "mlp.router"}}


def unpermuted(w, heads):
    """Llama's rows: files have pairs of neighbours, transformers halves."""
    return w.reshape(heads, w.shape[0] // heads // 2, 2, *w.shape[1:]).transpose(1, 2).reshape(w.shape)


def experts(f, name, layer, out):
    at, into = f"blk.{layer}.ffn_", f"model.layers.{layer}.mlp.experts."
    gate, up, down = (f.get(f"{at}{part}_exps.weight") for part in ("gate", "up", "down"))
    if name != "gpt-oss":
        out[into + "gate_up_proj"], out[into + "down_proj"] = torch.cat([gate, up], 1), down
        return
    out[into + "gate_up_proj"] = torch.stack([gate, up], 2).flatten(1, 2).transpose(1, 2)
    out[into + "down_proj"] = down.transpose(1, 2)
    biases = [f.get(f"{at}{part}_exps.bias") for part in ("gate", "up", "down")]
    out[into + "gate_up_proj_bias"] = torch.stack(biases[:2], 2).flatten(1, 2)
    out[into + "down_proj_bias"] = biases[2]


def weights(f, name):
    names = {**NAMES, **OTHERS.get(name, {})}
    out = {"model.embed_tokens.weight": f.get("token_embd.weight"), "model.norm.weight": f.get("output_norm.weight")}
    out["lm_head.weight"] = f.get("output.weight") if "output.weight" in f.tensors else out["model.embed_tokens.weight"]
    for full in f.tensors:
        if not full.startswith("blk.") or "_exps." in full:
            continue
        _, layer, part = full.split(".", 2)
        w, (stem, kind) = f.get(full), part.rsplit(".", 1)
        if name in PERMUTED and stem in ("attn_q", "attn_k"):
            w = unpermuted(w, f.key("attention.head_count" if stem == "attn_q" else "attention.head_count_kv"))
        out[f"model.layers.{layer}." + (names.get(part) or f"{names[stem]}.{kind}")] = w
    for layer in range(f.key("block_count") if f.key("expert_count") else 0):
        experts(f, name, layer, out)
    return {k: w - 1 if name in GEMMA and "norm" in k else w for k, w in out.items()}


# ---- running both ----------------------------------------------------------------------------------------------------

def keep_f16(model):
    """Keys and values as the engine keeps them."""
    module = sys.modules[type(model).__module__]
    plain = module.eager_attention_forward
    if not hasattr(plain, "plain"):
        def rounded(layer, q, k, v, *more, **named):
            return plain(layer, q, k.half().float(), v.half().float(), *more, **named)
        rounded.plain = plain
        module.eager_attention_forward = rounded


def asked(what, path, rows, text=""):
    with tempfile.NamedTemporaryFile() as out:
        subprocess.run([ENGINE, what, path, out.name], input=text, text=True, check=True)
        return torch.from_numpy(np.fromfile(out.name, np.float32).reshape(rows, -1))


def engine_logits(path, ids):
    return asked("logits", path, len(ids), " ".join(map(str, ids)))


def same_values(f, path):
    """Whether the engine unpacks a type's bits to the values that they stand for."""
    theirs = f.get("token_embd.weight")
    apart = (asked("values", path, len(theirs)) - theirs).abs().max() / theirs.abs().max()
    if apart > 1e-6:
        print(f"{path.stem:24} values are up to {apart:.1e} of the largest apart  WRONG")
    return bool(apart <= 1e-6)


def their_logits(model, ids):
    keep_f16(model)
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0].float()


def say(name, ours, theirs, median, mean):
    ours = ours[:, :theirs.shape[1]].double()
    theirs = theirs.double()
    apart = (ours - theirs).abs() / theirs.std(1, keepdim=True)
    tokens = apart.mean(1)
    p, q = theirs.log_softmax(1), ours.log_softmax(1)
    kl = (p.exp() * (p - q)).sum(1)
    same = (ours.argmax(1) == theirs.argmax(1)).double().mean()
    fine = bool(tokens.median() <= median) and bool(tokens.mean() <= mean)
    print(f"{name:24} median {tokens.median():.1e} mean {tokens.mean():.1e} largest {apart.max():.1e}  KL mean {kl.mean():.1e} largest "
          f"{kl.max():.1e}  same top {100 * same:.1f} % of {len(ours)}{'' if fine else '  WRONG'}", flush=True)
    return fine


def tiny(folder, path):
    name, rope, kind = path.stem.rsplit("-", 2)
    if rope == "divisors":
        f = File(path, "r+")
        f.tensors["rope_freqs.weight"].data[:] = llama3_divisors(f)
        f.reader.data.flush()
    f = File(path)
    config = configuration(f, name, rope)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    model.load_state_dict(weights(f, name))
    ids = random.Random(5).choices(range(config.vocab_size), k=TOKENS)
    limits = FLOATS if kind in ("F32", "F16", "BF16") else QUANTIZED
    return say(path.stem, engine_logits(path, ids), their_logits(model, ids), *limits) and same_values(f, path)


def real(path):
    text = (TOP / "docs/design.md").read_text()[:20 * TEXT_TOKENS]
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    ids = tokenizer(text)["input_ids"]
    ours = subprocess.run([ENGINE, "tokens", path], input=text, text=True, capture_output=True, check=True).stdout.split()
    same = ids == list(map(int, ours))
    print(f"{path.stem}: {len(ids)} tokens of {len(text)} characters, {'the same' if same else 'NOT THE SAME'}")
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, attn_implementation="eager", dtype=torch.float32).eval()
    ids = ids[:TEXT_TOKENS]
    return say(path.stem, engine_logits(path, ids), their_logits(model, ids), *QUANTIZED) and same


def main(arguments):
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    torch.set_num_threads(2)
    transformers.logging.set_verbosity_error()
    if arguments and arguments[0] != "tiny":
        return all([real(Path(a).resolve()) for a in arguments])
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([ENGINE, "tiny", folder], check=True)
        paths = sorted(p for p in Path(folder).iterdir() if len(arguments) < 2 or any(w in p.stem for w in arguments[1:]))
        return all([tiny(folder, p) for p in paths])


if __name__ == "__main__":
    sys.exit(0 if main(sys.argv[1:]) else 1)
