"""The peer (llama.cpp as shipped in the xllamacpp wheel) behind the same commands as engine_bench: "run PROMPT DECODE"."""

import json
import sys

import xllamacpp

model, threads = sys.argv[1], int(sys.argv[2])
p = xllamacpp.CommonParams()
p.model.path = model
p.n_ctx = 16384
p.n_parallel = 1
p.n_batch = p.n_ubatch = 512
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = threads
p.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
# f16: the same two bytes per value as bf16, and the type its attention is fastest with.
server = xllamacpp.Server(p)
print(json.dumps({"peer": "xllamacpp", "version": getattr(xllamacpp, "__version__", "")}), flush=True)
for run, line in enumerate(sys.stdin):
    _, n_prompt, n_decode = line.split()
    prompt = [1000 + (i * 7 + run * 13) % 5000 for i in range(int(n_prompt))]
    answer = server.handle_completions(
        {"prompt": prompt, "n_predict": int(n_decode) + 1, "cache_prompt": False, "ignore_eos": True, "temperature": 0}
    )
    answer = json.loads(answer) if isinstance(answer, str) else answer
    t = answer["timings"]
    print(
        json.dumps(
            {
                "prompt": t["prompt_n"],
                "prefill_ms": t["prompt_ms"],
                "decode": t["predicted_n"],
                "decode_ms": t["predicted_ms"],
            }
        ),
        flush=True,
    )
