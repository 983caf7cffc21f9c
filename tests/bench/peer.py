"""The peer, llama.cpp's server as tests/bench/peer builds it: started, asked for raw completions, ended."""

import atexit
import http.client
import json
import os
import re
import subprocess
import tempfile

# What its system information says -> the name of a set.
SETS = (("AVX512_VNNI", "AVX-512 VNNI"), ("AVX512", "AVX-512"), ("AVX_VNNI", "AVX-VNNI"), ("AVX2", "AVX2"))
NATIVE = "native"


def built(folder):
    """The peers in a folder: {name of a set: folder of the server}, the one for AVX2 first; empty where none was built."""
    found = {}
    for name in ("avx2", NATIVE):
        if os.path.exists(os.path.join(folder, name, "llama-server")):
            info = subprocess.run([os.path.join(folder, name, "llama-server"), "-lv", "4", "-m", "/dev/null"], capture_output=True, text=True).stderr
            found.setdefault(set_of(info), os.path.join(folder, name))
    return found


def set_of(info):
    has = {words[0] for part in info.partition("system_info")[2].splitlines()[0].split("|") for words in [part.replace("CPU :", "").split()] if words}
    return next((name for flag, name in SETS if flag in has), "no AVX2")


class Server:
    """One with so many slots, which share so many tokens of KV. f16: the same two bytes per value as bf16, and the type its attention is fastest with."""

    def __init__(self, folder, model, threads, tokens, slots=1):
        self.states = tempfile.TemporaryDirectory()
        self.log = open(os.path.join(self.states.name, "log"), "w+")  # noqa: SIM115 - closed with the server
        self.p = subprocess.Popen([os.path.join(folder, "llama-server"), "-m", model, "-c", str(tokens), "-np", str(slots), "-b", "512", "-ub", "512", "-fa", "on",
                                   "--kv-unified", "-t", str(threads), "-tb", str(threads), "--slots", "--slot-save-path", self.states.name,
                                   "--host", "127.0.0.1", "--port", "0", "-lv", "4"], stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL)
        atexit.register(self.p.kill)  # where a measurement breaks off
        while not (found := re.search(r"listening on http://(\S+)", self.text())) or "model loaded" not in self.text():
            if self.p.poll() is not None:
                raise RuntimeError("the peer did not start:\n" + self.text()[-2000:])
            try:
                self.p.wait(0.1)
            except subprocess.TimeoutExpired:
                pass
        self.address, self.set = found[1], set_of(self.text())

    def text(self):
        with open(self.log.name, errors="replace") as f:
            return f.read()

    def post(self, path, body):
        c = http.client.HTTPConnection(self.address, timeout=1800)
        c.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        r = c.getresponse()
        answer = r.read()
        c.close()
        if r.status != 200:
            raise RuntimeError(f"the peer's {path}: {r.status} {answer[:300]!r}")
        return json.loads(answer)

    def complete(self, prompt, n, **fields):
        return self.post("/completion", {"prompt": prompt, "n_predict": n, "ignore_eos": True, "temperature": 0, "id_slot": 0, **fields})

    def run(self, number, n_prompt, n_decode, n_history):
        """The same as engine_bench's "run" of one sequence; another number is another prompt."""
        history = [1000 + i * 7 % 5000 for i in range(n_history)]
        prompt = [1000 + (i * 7 + 1 + number * 13) % 5000 for i in range(n_prompt)]
        if n_history:
            self.complete(history, 1, cache_prompt=True)
        t = self.complete(history + prompt, n_decode + 1, cache_prompt=n_history > 0)["timings"]
        assert t["prompt_n"] == n_prompt, t
        return {"prompt": n_prompt, "prefill_ms": t["prompt_ms"], "decode": t["predicted_n"] - 1, "decode_ms": t["predicted_ms"]}

    def load(self, n):
        """The time in which it reads a saved state of n tokens back: its own figure, not compressed, the file in the page cache."""
        if not os.path.exists(os.path.join(self.states.name, "state")):
            self.complete([1000 + i * 7 % 5000 for i in range(n)], 1, cache_prompt=False)
            self.post("/slots/0?action=save", {"filename": "state"})
        self.post("/slots/0?action=erase", {})
        r = self.post("/slots/0?action=restore", {"filename": "state"})
        assert r["n_restored"] >= n, r
        return {"tokens": r["n_restored"], "bytes": r["n_read"], "load_ms": r["timings"]["restore_ms"]}

    def close(self):
        self.p.terminate()
        self.p.wait(timeout=60)
        self.log.close()
        self.states.cleanup()
