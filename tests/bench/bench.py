#!/usr/bin/env python3
"""Measures convod beside its peer on this machine, in one run: `make bench` calls it.

usage: bench.py [--models 0.5b,1.5b] [--rounds N] [--json FILE] [--no-peer] [--sets cpu-avx2,cpu-avx512]

Prefill and decode: engine_bench and the peer are both loaded and take turns, round by round; printed are medians, the spread, and
the ratio of medians. Restore: a daemon, a conversation of about 2,000 tokens, warm-up turns after evictions. Every figure is from this run; what
cannot be measured here says why.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "tests", "api"))
from daemon import BUILD, MODELS, Daemon  # noqa: E402

FILES = {
    "0.5b": "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    "1.5b": "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    "270m": "gemma-3-270m-q4_k_m.gguf",
}
THREADS = len(os.sched_getaffinity(0))
PEER_PYTHON = os.path.join(BUILD, "peer", "bin", "python")
PROMPT, DECODE = 512, 48


class Process:
    """A program that answers each command line with one JSON line."""

    def __init__(self, args):
        self.p = subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.about = self.read()

    def read(self):
        while True:
            line = self.p.stdout.readline()
            if not line:
                raise RuntimeError(f"{self.p.args} ended with status {self.p.wait()}")
            if line.startswith("{"):
                return json.loads(line)

    def command(self, line):
        self.p.stdin.write(line + "\n")
        self.p.stdin.flush()
        return self.read()

    def close(self):
        self.p.stdin.close()
        self.p.wait(timeout=60)


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "n": len(values)}


def rates(runs):
    return {
        "prefill_tokens_per_s": spread([r["prompt"] / r["prefill_ms"] * 1e3 for r in runs]),
        "decode_tokens_per_s": spread([r["decode"] / r["decode_ms"] * 1e3 for r in runs]),
    }


def speed(path, sets, rounds, peer):
    """Takes turns between our kernel sets and the peer; the first round warms up and is not counted."""
    ours = {s: Process([os.path.join(BUILD, "bench", "engine_bench"), path, s, str(THREADS)]) for s in sets}
    other = Process([PEER_PYTHON, os.path.join(HERE, "peer.py"), path, str(THREADS)]) if peer else None
    runs, reads = {s: [] for s in (*sets, "peer")}, []
    for i in range(rounds + 1):
        for s, p in [*ours.items(), *([("peer", other)] if other else [])]:
            r = p.command(f"run {PROMPT} {DECODE}")
            if i:
                runs[s].append(r)
        read = ours[sets[0]].command("read")["read_bytes_per_s"]
        if i:
            reads.append(read)
    about = ours[sets[0]].about
    result = {"about": about, "read_bytes_per_s": spread(reads), "sets": {}}
    token_bytes = about["token_weight_bytes"] + (PROMPT + DECODE / 2) * about["kv_token_bytes"]
    for s in sets:
        result["sets"][s] = rates(runs[s])
        result["sets"][s]["share_of_read_bandwidth"] = (
            result["sets"][s]["decode_tokens_per_s"]["median"] * token_bytes / result["read_bytes_per_s"]["median"]
        )
    if other:
        result["peer"] = rates(runs["peer"])
    for p in [*ours.values(), *([other] if other else [])]:
        p.close()
    return result


def drop_page_cache(folder):
    for name in os.listdir(folder):
        fd = os.open(os.path.join(folder, name), os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def restore(path, rounds):
    """Restore of a conversation against prefilling it, and what its KV takes on disk."""
    text = " ".join(f"In the year {1400 + i} the harbour of Velmar counted {i * 37 % 911} ships and {i * 53 % 701} sailors." for i in range(72))
    with tempfile.TemporaryDirectory() as home:
        data = os.path.join(home, "data")
        os.mkdir(data, 0o700)
        d = Daemon(data, model=path)
        c = d.conversation()
        first = d.turn(text, conversation=c, max_output_tokens=1)["convod"]
        d.settle()
        status = d.ok("GET", "/v1/convod/status")
        tokens = first["tokens"]["prefilled"]
        times = {"ram": [], "disk": []}
        for _ in range(rounds + 1):
            for tier in times:
                d.ok("POST", f"/v1/conversations/{c}/evict", {"to": tier})
                if tier == "disk":
                    drop_page_cache(data)
                r = d.ok("POST", "/v1/responses", {"conversation": c, "input": [], "generate": False})["convod"]
                assert r["tokens"][tier] >= tokens and r["tokens"]["prefilled"] <= 1, r
                times[tier].append(r["ms"]["restore"])
        d.stop()
    raw = tokens * status["model"]["kv_token_bytes"]
    result = {"tokens": tokens, "raw_bytes": raw, "prefill_ms": first["ms"]["prefill"]}
    result["stored_bytes"] = status["tiers"]["disk"]["used_bytes"]
    result["ratio"] = raw / result["stored_bytes"]
    for tier, values in times.items():
        result[tier] = spread(values[1:])
        result[tier]["times_faster_than_prefill"] = first["ms"]["prefill"] / result[tier]["median"]
        result[tier]["raw_bytes_per_s"] = raw / result[tier]["median"] * 1e3
    return result


def table(rows):
    widths = [max(len(str(r[i])) for r in rows) for i in range(len(rows[0]))]
    for r in rows:
        print("  ".join(str(v).ljust(w) for v, w in zip(r, widths)).rstrip())


def report(name, result, peer_wanted):
    print(f"\n{name}: {result['about']['model']}, {THREADS} threads, prompt {PROMPT}, decode {DECODE}")
    rows = [("set", "prefill tok/s (min-max)", "x peer", "decode tok/s (min-max)", "x peer", "of read bandwidth")]

    def line(label, r, peer):
        cells = [label]
        for key in ("prefill_tokens_per_s", "decode_tokens_per_s"):
            v = r[key]
            cells.append(f"{v['median']:.1f} ({v['min']:.1f}-{v['max']:.1f})")
            cells.append(f"{v['median'] / peer[key]['median']:.2f}" if peer else "-")
        share = r.get("share_of_read_bandwidth")
        return (*cells, f"{share:.0%}" if share else "-")

    peer = result.get("peer")
    for s, r in result["sets"].items():
        rows.append(line(s, r, peer))
    if peer:
        rows.append(line("peer (AVX2 build)", peer, peer))
    table(rows)
    if not peer:
        print("peer: not measured" + (" (build/peer is missing)" if peer_wanted else ""))
    print(f"plain read: {result['read_bytes_per_s']['median'] / 1e9:.1f} GB/s")
    r = result.get("restore")
    if r:
        print(
            f"restore of {r['tokens']} tokens ({r['raw_bytes'] / 1e6:.1f} MB raw KV, stored in {r['stored_bytes'] / 1e6:.1f} MB: {r['ratio']:.2f}x smaller); "
            f"prefilling them took {r['prefill_ms']:.0f} ms"
        )
        for tier in ("ram", "disk"):
            v = r[tier]
            print(
                f"  from {tier}: {v['median']:.1f} ms ({v['min']:.1f}-{v['max']:.1f}), {v['times_faster_than_prefill']:.0f}x faster than prefill, "
                f"{v['raw_bytes_per_s'] / 1e9:.2f} GB/s of raw KV"
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="0.5b,1.5b")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json")
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--sets", default="")
    a = parser.parse_args()
    with open("/proc/cpuinfo") as f:
        flags = f.read()
    sets = a.sets.split(",") if a.sets else ["cpu-avx2"] + (["cpu-avx512"] if "avx512_vnni" in flags else [])
    peer = not a.no_peer and os.path.exists(PEER_PYTHON)
    results = {}
    for name in a.models.split(","):
        path = os.path.join(MODELS, FILES[name])
        if not os.path.exists(path):
            print(f"{name}: skipped, {path} is missing")
            continue
        results[name] = speed(path, sets, a.rounds, peer)
        results[name]["restore"] = restore(path, a.rounds)
        report(name, results[name], not a.no_peer)
    if a.json:
        with open(a.json, "w") as f:
            json.dump(results, f, indent=1)


if __name__ == "__main__":
    main()
