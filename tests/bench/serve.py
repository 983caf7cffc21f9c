#!/usr/bin/env python3
"""Many conversations at once against convod and, in the same run, the peer's server: `make bench-serve` calls it.

usage: serve.py [--conversations N] [--turns N] [--active N] [--model FILE] [--json FILE] [--svg FILE] [--no-peer] [--no-load] [--seed N]

The load: conversations whose first prompt is log-normal around 1,000 tokens, whose later messages have 120 to 160 and whose
answers 80 to 120; who speaks next is Zipf-like, so that some are always hot and others come back after a long time. So many
speak at once (--active); a third of the conversations fits into the KV pages. Two owners share convod: one has two thirds of
the conversations. convod is sent the new message alone, the peer the whole history, with its prompt caches on (of a slot, and in
RAM), and KV for as many of the longest conversations as speak at once, which is more than convod's: with less it fails.

Then, for convod alone: two of the conversations again, one turn after the other, whose answers must be the same; the gaps of a
running answer while a prompt of 4,000 tokens is read, and what that does to the prompt, for several values of max-step-ms; the
first token of a short prompt behind one of 16,000, against its own time alone; what part of the daemon's CPU time is not the
model's with 64 conversations, as many of which speak at once as in the load, and eight, and whose it is, beside what the system alone takes to send as
many events; and, with a model of no size, what CPU time a small
turn takes beside 100 and beside 4,000 conversations that are in pages. Every figure is from this run.
"""

import argparse
import concurrent.futures
import http.client
import json
import math
import os
import queue
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.join(ROOT, "tests", "api"), HERE]
import peer  # noqa: E402
from daemon import BUILD, QWEN, Daemon  # noqa: E402

THREADS = len(os.sched_getaffinity(0))
PEER = os.path.join(BUILD, "peer", "native")
WORDS = "river stone cloud paper green seven lamp horse ocean quiet window bridge garden music winter number street letter".split()
KV_TOKEN_BYTES = 12288  # of the default model: 24 layers, 2 KV heads of 64, keys and values of 2 bytes


def words(r, n):
    return " ".join(r.choice(WORDS) for _ in range(n))  # about a token each


class Load:
    """What is said, by whom, in which order: the same for both servers."""

    def __init__(self, o):
        r = random.Random(o.seed)
        self.n, self.active = o.conversations, o.active
        self.owner = ["ann" if i % 3 else "bob" for i in range(self.n)]
        self.first = [words(r, max(200, min(3000, int(r.lognormvariate(math.log(1000), 0.4))))) for _ in range(self.n)]
        turns = [r.randint(max(1, o.turns - 3), o.turns + 3) for _ in range(self.n)]
        self.messages = [[words(r, r.randint(120, 160)) + " Tell a long story with all of these." for _ in range(n)] for n in turns]
        self.limits = [[r.randint(80, 120) for _ in range(n)] for n in turns]
        left, self.order = list(turns), []
        while any(left):
            alive = [i for i in range(self.n) if left[i]]
            i = r.choices(alive, [1 / (1 + i) for i in alive])[0]
            self.order.append(i)
            left[i] -= 1
        # What each holds in the end, about.
        ends = [len(f.split()) + sum(len(m.split()) + 20 for m in ms) + sum(ls) for f, ms, ls in zip(self.first, self.messages, self.limits)]
        self.tokens, self.longest = sum(ends), max(ends)

    def kv_tokens(self):
        return max(8192, self.tokens // 3)

    def peer_kv_tokens(self):
        """It answers 500 when conversations that speak at once do not fit together; a fifth more, for words of two tokens."""
        return max(self.kv_tokens(), self.active * self.longest * 6 // 5)


def events(address, path, body, headers):
    """Yields (time, event) of a streamed answer."""
    c = http.client.HTTPConnection(address, timeout=1800)
    c.request("POST", path, json.dumps({**body, "stream": True}), {"Content-Type": "application/json", **headers})
    r = c.getresponse()
    if r.status != 200:
        raise RuntimeError(f"{r.status}: {r.read()[:300]!r}")
    for line in r:
        if line.startswith(b"data: {"):
            yield time.monotonic(), json.loads(line[6:])
    c.close()


class Convod:
    name = "convod"

    def __init__(self, load, o, folder, args=(), kv_tokens=0):
        tokens = os.path.join(folder, "tokens")
        with open(os.open(tokens, os.O_CREAT | os.O_WRONLY, 0o600), "w") as f:
            f.write("ann ann-secret-token-0001\nbob bob-secret-token-0002\n")
        data = os.path.join(folder, "data")
        os.mkdir(data, 0o700)
        self.d = Daemon(data, o.model, ["--threads", str(THREADS), "--backend", o.backend, "--kv-bytes", str((kv_tokens or load.kv_tokens()) * KV_TOKEN_BYTES),
                                        "--max-running", str(max(o.active, 8)), "--token-file", tokens, *args])
        self.address = f"{self.d.address}:{self.d.port}"
        self.load, self.ids = load, [None] * load.n

    def headers(self, owner):
        return {"Authorization": f"Bearer {owner}-secret-token-000{1 if owner == 'ann' else 2}"}

    def turn(self, i, k):
        body = {"input": (self.load.first[i] + "\n" if k == 0 else "") + self.load.messages[i][k], "max_output_tokens": self.load.limits[i][k],
                "temperature": 0.7, "convod": {"seed": i * 100 + k}}
        if self.ids[i]:
            body["previous_response_id"] = self.ids[i]
        start, times, text, last = time.monotonic(), [], "", None
        for at, e in events(self.address, "/v1/responses", body, self.headers(self.load.owner[i])):
            if e["type"] == "response.output_text.delta":
                times.append(at)
                text += e["delta"]
            last = e
        if last["type"] not in ("response.completed", "response.incomplete"):
            raise RuntimeError(f"turn {k} of {i}: {last}")
        r = last["response"]
        self.ids[i] = r["id"]
        t = r["convod"]["tokens"]
        return {"start": start, "times": times, "prompt": r["usage"]["input_tokens"], "output": t["output"], "prefilled": t["prefilled"],
                "new": t["new"], "restored": t["ram"] + t["disk"], "again": r["convod"]["reprefilled"], "text": text}

    def close(self):
        self.d.stop(60)


class Peer:
    name = "peer"

    def __init__(self, load, o, folder):
        self.server = peer.Server(PEER, o.model, THREADS, load.peer_kv_tokens(), o.active)
        self.address = self.server.address
        self.load, self.history = load, [[] for _ in range(load.n)]

    def turn(self, i, k):
        message = (self.load.first[i] + "\n" if k == 0 else "") + self.load.messages[i][k]
        self.history[i].append({"role": "user", "content": message})
        body = {"messages": self.history[i], "max_tokens": self.load.limits[i][k], "temperature": 0.7, "seed": i * 100 + k, "cache_prompt": True,
                "stream_options": {"include_usage": True}, "timings_per_token": False}
        start, times, text, usage, timings = time.monotonic(), [], "", {}, {}
        for at, e in events(self.address, "/v1/chat/completions", body, {}):
            for c in e.get("choices", []):
                if c.get("delta", {}).get("content"):
                    times.append(at)
                    text += c["delta"]["content"]
            usage = e.get("usage") or usage
            timings = e.get("timings") or timings
        self.history[i].append({"role": "assistant", "content": text})
        return {"start": start, "times": times, "prompt": usage.get("prompt_tokens", 0), "output": usage.get("completion_tokens", len(times)),
                "prefilled": timings.get("prompt_n"), "new": None, "restored": None, "again": []}

    def close(self):
        self.server.close()


def drive(server, load):
    """Speaks the load's turns, so many at once; a conversation's turns one after the other. Returns the turns and how long it took."""
    waiting, turns, failures = queue.Queue(), [], []
    done, locks = [0] * load.n, [threading.Lock() for _ in range(load.n)]
    for i in load.order:
        waiting.put(i)

    def speak():
        while not failures:
            try:
                i = waiting.get_nowait()
            except queue.Empty:
                return
            with locks[i]:
                k = done[i]
                try:
                    turns.append({**server.turn(i, k), "conversation": i, "turn": k, "owner": load.owner[i]})
                except Exception as e:  # noqa: BLE001 - it ends the run
                    failures.append(e)
                done[i] += 1

    began = time.monotonic()
    threads = [threading.Thread(target=speak) for _ in range(load.active)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if failures:
        raise failures[0]
    return turns, time.monotonic() - began


def percentiles(values):
    v = sorted(values)
    at = lambda p: v[min(len(v) - 1, int(p / 100 * len(v)))] if v else None  # noqa: E731
    return {"n": len(v), "p50": at(50), "p90": at(90), "p99": at(99), "max": v[-1] if v else None}


def summary(turns, seconds):
    first = [(t["times"][0] - t["start"]) * 1e3 for t in turns if t["times"]]
    later = [(t["times"][0] - t["start"]) * 1e3 for t in turns if t["times"] and t["turn"] >= 2]
    gaps = [(b - a) * 1e3 for t in turns for a, b in zip(t["times"], t["times"][1:])]
    by_turn = {}
    for t in turns:
        if t["times"]:
            by_turn.setdefault(t["turn"], []).append((t["times"][0] - t["start"]) * 1e3)
    owners = {o: statistics.median((t["times"][0] - t["start"]) * 1e3 for t in turns if t["times"] and t["owner"] == o) for o in {t["owner"] for t in turns}}
    total = lambda key: sum(t[key] for t in turns) if all(t[key] is not None for t in turns) else None  # noqa: E731
    return {"turns": len(turns), "seconds": seconds, "ttft_ms": percentiles(first), "ttft_from_third_ms": percentiles(later), "itl_ms": percentiles(gaps),
            "output_tokens_per_s": sum(t["output"] for t in turns) / seconds, "prompt_tokens": sum(t["prompt"] for t in turns), "prefilled": total("prefilled"),
            "new": total("new"), "restored": total("restored"), "turns_restored": sum((t["restored"] or 0) > 0 for t in turns),
            "reprefilled": [x for t in turns for x in t["again"]],
            "ttft_by_turn_ms": {k: statistics.median(v) for k, v in sorted(by_turn.items())}, "ttft_by_owner_ms": owners}


def alone(load, o, turns, conversations=2):
    """The answers of the first conversations, one turn after the other with nobody beside them: how many are the same, of how many."""
    heard = {(t["conversation"], t["turn"]): t["text"] for t in turns}
    with tempfile.TemporaryDirectory() as folder:
        server = Convod(load, o, folder)
        same = [server.turn(i, k)["text"] == heard[i, k] for i in range(conversations) for k in range(len(load.messages[i]))]
        server.close()
    return {"same": sum(same), "of": len(same)}


def times(server, owner, text, n):
    """When the request was sent, and when each piece of its answer came."""
    start = time.monotonic()
    body = {"input": text, "max_output_tokens": n, "temperature": 0, "store": False}
    return start, [at for at, e in events(server.address, "/v1/responses", body, server.headers(owner)) if e["type"] == "response.output_text.delta"]


def beside(load, o, step_ms):
    """A running answer's gaps before and while a prompt of 4,000 tokens is read, with this max-step-ms, and how fast that is read."""
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(1) as pool:
        server = Convod(load, o, folder, ["--max-step-ms", str(step_ms)] if step_ms else [])
        r = random.Random(99)
        times(server, "bob", "Hello.", 8)
        teller = pool.submit(times, server, "bob", "Write a very long tale of a ferry.", 700)
        time.sleep(2)
        start, first = times(server, "ann", words(r, 4000), 1)
        _, at = teller.result()
        server.close()
    gaps = lambda low, high: percentiles([(y - x) * 1e3 for x, y in zip(at, at[1:]) if low <= x and y <= high])  # noqa: E731
    return {"before_ms": gaps(0, start), "beside_ms": gaps(start, first[0]), "prompt_s": first[0] - start}


def short_behind_long(load, o):
    """The first token of a short prompt alone, and while one of 16,000 tokens is read."""
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(1) as pool:
        server = Convod(load, o, folder, kv_tokens=24576)  # both have their place
        r = random.Random(98)

        def short(n):
            start, at = times(server, "bob", f"Name colour number {n} of all, and say in a few words where one sees it.", 2)
            return (at[0] - start) * 1e3

        by_itself = statistics.median(short(n) for n in range(5))
        long = pool.submit(times, server, "ann", words(r, 16000), 1)
        behind = []
        time.sleep(2)
        while not long.done() and len(behind) < 30:
            behind.append(short(10 + len(behind)))
            time.sleep(1)
        long.result()
        server.close()
    return {"alone_ms": by_itself, "behind_ms": percentiles(behind)}


def cpu_seconds(d):
    """The process's CPU time: all of it, what is the model's (its workers', and the engine thread's in steps), and each thread's by name."""
    ticks = os.sysconf("SC_CLK_TCK")

    def of(path):
        with open(path) as f:
            name, fields = f.read().split("(", 1)[1].rsplit(")", 1)
        user, system = fields.split()[11:13]
        return name, (int(user) + int(system)) / ticks

    folder, threads = f"/proc/{d.process.pid}/task", {}
    for name, t in (of(f"{folder}/{i}/stat") for i in os.listdir(folder)):
        threads[name] = threads.get(name, 0) + t
    metrics = d.call("GET", "/metrics", raw=True)[1]
    text = metrics.decode() if isinstance(metrics, bytes) else metrics
    steps = float(re.search(r"^convod_step_cpu_seconds_total (\S+)", text, re.M)[1])
    return of(f"/proc/{d.process.pid}/stat")[1], threads.get("convod-model", 0) + steps, threads


def outside(o, at_once):
    """64 conversations, two turns of the load's size each, so many at once: the part of CPU time that is not the model's."""
    r, ids, sent = random.Random(7), [None] * 64, []
    with tempfile.TemporaryDirectory() as folder:
        data = os.path.join(folder, "data")
        os.mkdir(data, 0o700)
        d = Daemon(data, o.model, ["--threads", str(THREADS), "--backend", o.backend, "--max-running", "8"])

        def turn(i):
            body = {"input": words(r, r.randint(120, 160)) + " Tell a long story with all of these.", "max_output_tokens": r.randint(80, 120), "temperature": 0.7}
            if ids[i]:
                body["previous_response_id"] = ids[i]
            for _, e in events(f"{d.address}:{d.port}", "/v1/responses", body, {}):
                ids[i] = e.get("response", {}).get("id", ids[i])
                sent.append(1)

        before = cpu_seconds(d)
        for _ in range(2):
            with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
                list(pool.map(turn, range(64)))
        after = cpu_seconds(d)
        d.stop(60)
    whole, model = after[0] - before[0], after[1] - before[1]
    names = {n: t - before[2].get(n, 0) for n, t in after[2].items()}
    got = {"cpu_seconds": whole, "model_cpu_seconds": model, "outside": 1 - model / whole, "events": len(sent),
           "threads": {n: t for n, t in names.items() if t > 0}}
    # Who does what; the engine thread's rest is what it does between steps (what a turn is, its text, copies of KV that is saved).
    kinds = {"convod": "sockets and events", "convod-ledger": "ledger", "convod-encoder": "saving KV", "convod-writer": "saving KV", "convod-reader": "restoring KV",
             "convod-engine": "between steps"}
    parts = {}
    for n, t in got["threads"].items():
        if n != "convod-model":
            parts[kinds.get(n, "others")] = parts.get(kinds.get(n, "others"), 0) + t
    parts["between steps"] -= model - names.get("convod-model", 0)
    got["parts"] = parts
    bench = os.path.join(BUILD, "bench", "send_bench")
    if os.path.exists(bench):
        got["send_us"] = float(subprocess.run([bench], check=True, capture_output=True, text=True).stdout.split()[0])
    return got


def hot():
    """A small turn's CPU time beside few and beside many conversations in pages."""
    got = {}
    with tempfile.TemporaryDirectory() as folder:
        model, data = os.path.join(folder, "m.gguf"), os.path.join(folder, "data")
        subprocess.run([os.path.join(BUILD, "tests", "service", "model"), model], check=True)
        os.mkdir(data, 0o700)
        d = Daemon(data, model, ["--threads", "1", "--kv-bytes", "1G", "--idle-seconds", "86400"])

        def turn():
            status, answer = d.call("POST", "/v1/responses", {"input": "hello", "max_output_tokens": 1})
            assert status == 200, answer

        made = 0
        for many in (100, 4000):
            while made < many:
                turn()
                made += 1
            rounds = []
            for _ in range(5):
                before = cpu_seconds(d)[0]
                for _ in range(100):
                    turn()
                rounds.append((cpu_seconds(d)[0] - before) * 10)  # ms a turn
            made += 500
            got[many] = statistics.median(rounds)
        d.stop(60)
    return {"cpu_ms_per_turn": got}


def draw(results, path):
    """Median time to the first token, by turn, of each server, as an SVG with a logarithmic scale."""
    lines, colours = {n: r["ttft_by_turn_ms"] for n, r in results.items() if "ttft_by_turn_ms" in r}, ["#0a7", "#c50"]
    most_x = max(max(v) for v in lines.values()) or 1
    values = [y for v in lines.values() for y in v.values()]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    x = lambda k: 60 + 520 * k / most_x  # noqa: E731
    y = lambda ms: 320 - 280 * (math.log10(ms) - low) / max(1, high - low)  # noqa: E731
    out = ['<svg xmlns="http://www.w3.org/2000/svg" width="640" height="370" font-family="sans-serif" font-size="12">',
           '<rect width="640" height="370" fill="white"/><text x="60" y="24" font-size="15">First token, median by turn of the conversation</text>']
    for e in range(low, high + 1):
        out.append(f'<path d="M60 {y(10 ** e):.0f}H580" stroke="#ddd"/><text x="52" y="{y(10 ** e) + 4:.0f}" text-anchor="end">{10 ** e:g} ms</text>')
    for k in range(0, most_x + 1, max(1, most_x // 8)):
        out.append(f'<text x="{x(k):.0f}" y="340" text-anchor="middle">{k + 1}</text>')
    for (name, v), colour in zip(lines.items(), colours):
        out.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="' + " ".join(f"{x(k):.1f},{y(ms):.1f}" for k, ms in v.items()) + '"/>')
        k = max(v)
        out.append(f'<text x="{x(k) + 6:.0f}" y="{y(v[k]) + 4:.0f}" fill="{colour}">{name}</text>')
    with open(path, "w") as f:
        f.write("\n".join([*out, "</svg>\n"]))


def table(results):
    rows = [("turns", lambda r: r["turns"]), ("seconds", lambda r: f"{r['seconds']:.0f}"), ("first token p50 / p90 / p99, ms", lambda r: three(r["ttft_ms"])),
            ("first token from the third turn on p50 / p90 / p99, ms", lambda r: three(r["ttft_from_third_ms"])),
            ("between tokens p50 / p90 / p99, ms", lambda r: three(r["itl_ms"])), ("output tokens/s", lambda r: f"{r['output_tokens_per_s']:.1f}"),
            ("prompt tokens", lambda r: r["prompt_tokens"]), ("prefilled", lambda r: r["prefilled"]), ("new", lambda r: r["new"]),
            ("turns that were restored", lambda r: r["turns_restored"] if r["restored"] is not None else "-"),
            ("first token by owner, ms", lambda r: ", ".join(f"{k} {v:.0f}" for k, v in sorted(r["ttft_by_owner_ms"].items())))]
    three = lambda p: " / ".join("-" if p[k] is None else f"{p[k]:.0f}" for k in ("p50", "p90", "p99"))  # noqa: E731
    names = [n for n in ("convod", "peer") if n in results]
    if names:
        print("| | " + " | ".join(names) + " |\n|---|" + "---|" * len(names))
        for title, value in rows:
            print(f"| {title} | " + " | ".join(str(value(results[n])) for n in names) + " |")
    print()
    if "convod" in results:
        a = results["convod"]
        print(f"prefilled and not new: {a['prefilled'] - a['new']} tokens (none is the target)\n"
              f"answers that are those of the same turns alone: {results['alone']['same']} of {results['alone']['of']} (all)")
    if len(names) == 2:
        b = results["peer"]
        print(f"first token from the third turn on, median: {b['ttft_from_third_ms']['p50'] / a['ttft_from_third_ms']['p50']:.1f} times sooner than the peer's (5); "
              f"output tokens/s: {a['output_tokens_per_s'] / b['output_tokens_per_s']:.2f} times (1.5)")
    few, many = results["hot"]["cpu_ms_per_turn"].values()
    s = results["short"]
    print(f"a short prompt's first token: {s['alone_ms']:.0f} ms alone, behind one of 16,000 p50 / p90 / p99 {three(s['behind_ms'])} ms "
          f"({3 * s['alone_ms'] + results['steps']['100']['beside_ms']['p50']:.0f}: three times alone and a step)")
    for n, out in results["outside"].items():
        print(f"64 conversations, {n} at once: {out['outside'] * 100:.1f} % of {out['cpu_seconds']:.1f} s of CPU time is not the model's (1); of the whole, %: "
              + ", ".join(f"{n} {t / out['cpu_seconds'] * 100:.2f}" for n, t in sorted(out["parts"].items(), key=lambda i: -i[1]))
              + (f"; sending {out['events']} events, with nothing around it, {out['events'] * out['send_us'] / 1e4 / out['cpu_seconds']:.2f}" if "send_us" in out else ""))
    print(f"a small turn's CPU time: {few:.2f} ms beside 100 conversations in pages, {many:.2f} ms beside 4,000 (1 ms more)\n\n"
          "| max-step-ms | a running answer's gaps, p50 / p90 / p99, ms | beside a prompt of 4,000 tokens | the setting and a decode step | that prompt, tokens/s |\n|---|---|---|---|---|")
    for ms, r in results["steps"].items():
        print(f"| {ms} | {three(r['before_ms'])} | {three(r['beside_ms'])} | {float(ms) + r['before_ms']['p50']:.0f} | {4000 / r['prompt_s']:.0f} |")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--conversations", type=int, default=3 * THREADS)
    p.add_argument("--turns", type=int, default=15, help="of a conversation, give or take three")
    p.add_argument("--active", type=int, default=THREADS + 1)
    p.add_argument("--model", default=QWEN)
    p.add_argument("--backend", default="auto", help="convod's")
    p.add_argument("--json")
    p.add_argument("--svg")
    p.add_argument("--no-peer", action="store_true")
    p.add_argument("--no-load", action="store_true", help="only what convod alone is measured for behind it")
    p.add_argument("--seed", type=int, default=1)
    o = p.parse_args()
    load, results = Load(o), {}
    print(f"{load.n} conversations, {len(load.order)} turns, {load.active} at once; pages for {load.kv_tokens()} of {load.tokens} tokens", flush=True)
    servers = [Convod] + ([] if o.no_peer or not os.path.exists(PEER) else [Peer])
    if len(servers) == 1 and not o.no_peer:
        print("the peer is not installed: convod alone", flush=True)
    for kind in [] if o.no_load else servers:
        with tempfile.TemporaryDirectory() as folder:
            server = kind(load, o, folder)
            try:
                turns, seconds = drive(server, load)
            finally:
                server.close()
            results[kind.name] = summary(turns, seconds)
            print(f"{kind.name}: {len(turns)} turns in {seconds:.0f} s", flush=True)
        if kind is Convod:
            results["alone"] = alone(load, o, turns)
    results["steps"] = {str(ms): beside(load, o, ms) for ms in (50, 100, 250)}
    results["short"], results["outside"], results["hot"] = short_behind_long(load, o), {n: outside(o, n) for n in sorted({o.active, 8})}, hot()
    table(results)
    if o.json:
        with open(o.json, "w") as f:
            json.dump({"options": vars(o), "cores": THREADS, "load": {"tokens": load.tokens, "kv_tokens": load.kv_tokens()}, **results}, f, indent=1)
    if o.svg and not o.no_load:
        draw({n: results[n] for n in ("convod", "peer") if n in results}, o.svg)


if __name__ == "__main__":
    main()
