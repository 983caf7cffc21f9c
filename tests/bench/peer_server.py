"""The peer (llama.cpp as shipped in the xllamacpp wheel) as a server with several slots: peer_server.py MODEL THREADS SLOTS TOKENS.

Prints its address as JSON and serves until standard input ends. Its KV holds TOKENS in all, shared by the slots.
"""

import json
import os
import sys

import xllamacpp

model, threads, slots, tokens = sys.argv[1], *map(int, sys.argv[2:5])
p = xllamacpp.CommonParams()
p.model.path = model
p.n_ctx = tokens
p.n_parallel = slots
p.n_batch = p.n_ubatch = 512
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = threads
p.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
p.kv_unified = True
p.port = 0
server = xllamacpp.Server(p)
print(json.dumps({"peer": "xllamacpp", "version": getattr(xllamacpp, "__version__", ""), "address": server.listening_address}), flush=True)
sys.stdin.read()
os._exit(0)  # its server's threads do not end by themselves
