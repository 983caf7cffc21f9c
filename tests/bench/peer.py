"""The peer (llama.cpp as shipped in the xllamacpp wheel) behind the same commands as engine_bench.

"run PROMPT DECODE HISTORY 1" as there. "load TOKENS": the time in which it reads a saved state of so many tokens back
(its own figure; f16, not compressed, the file just written and so in the page cache).
"""

import json
import os
import sys
import tempfile
import urllib.request

import xllamacpp

model, threads = sys.argv[1], int(sys.argv[2])
states = tempfile.TemporaryDirectory()
p = xllamacpp.CommonParams()
p.model.path = model
p.n_ctx = 16384
p.n_parallel = 1
p.n_batch = p.n_ubatch = 512
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = threads
p.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
p.slot_save_path = states.name + "/"
p.endpoint_slots = True
p.port = 0
# f16: the same two bytes per value as bf16, and the type its attention is fastest with.
server = xllamacpp.Server(p)


def complete(prompt, n, **fields):
    answer = server.handle_completions({"prompt": prompt, "n_predict": n, "ignore_eos": True, "temperature": 0, "id_slot": 0, **fields})
    return json.loads(answer) if isinstance(answer, str) else answer


def slot(action):
    request = urllib.request.Request(
        f"{server.listening_address}/slots/0?action={action}",
        json.dumps({"filename": "state"}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as r:
        return json.load(r)


def run(number, n_prompt, n_decode, n_history):
    history = [1000 + i * 7 % 5000 for i in range(n_history)]
    prompt = [1000 + (i * 7 + 1 + number * 13) % 5000 for i in range(n_prompt)]
    if n_history:
        complete(history, 1, cache_prompt=True)
    t = complete(history + prompt, n_decode + 1, cache_prompt=n_history > 0)["timings"]
    assert t["prompt_n"] == n_prompt, t
    return {"prompt": n_prompt, "prefill_ms": t["prompt_ms"], "decode": t["predicted_n"], "decode_ms": t["predicted_ms"]}


def load(n):
    if not os.path.exists(os.path.join(states.name, "state")):
        complete([1000 + i * 7 % 5000 for i in range(n)], 1, cache_prompt=False)
        slot("save")
    slot("erase")
    r = slot("restore")
    assert r["n_restored"] >= n, r
    return {"tokens": r["n_restored"], "bytes": r["n_read"], "load_ms": r["timings"]["restore_ms"]}


# What its build was made for, in its own words.
has = {word.strip() for part in xllamacpp.get_system_info().split("|") for word in part.split(":")}
built_for = "AVX-512" if "AVX512 = 1" in has else "AVX-VNNI" if "AVX_VNNI = 1" in has else "AVX2" if "AVX2 = 1" in has else "no AVX2"
print(json.dumps({"peer": "xllamacpp", "version": getattr(xllamacpp, "__version__", ""), "set": built_for}), flush=True)
for number, line in enumerate(sys.stdin):
    command, *numbers = line.split()
    numbers = [int(n) for n in numbers]
    print(json.dumps(run(number, *numbers[:3]) if command == "run" else load(numbers[0])), flush=True)
os._exit(0)  # its server's threads do not end by themselves
