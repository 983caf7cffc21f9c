#!/usr/bin/env python3
"""Measures convod beside its peer on this machine, in one run: `make bench` calls it.

usage: bench.py [--models 0.5b,1.5b] [--rounds N] [--json FILE] [--markdown FILE] [--no-peer] [--sets cpu-avx2,cpu-avx512]

Prefill and decode, at the start of a context and behind 7,680 tokens: engine_bench and the peer, once for each instruction
set, are all loaded and take turns, round by round; printed are medians, the spread, and the ratio of medians. Together: what 2, 4 and 8 sequences
decode in one step, against one. Restore: a daemon, a conversation of about 2,000 tokens, warm-up turns after evictions;
beside it the peer's load of a saved state. Serving: what several turns at once, saving, and idle connections cost.
Sampling: pick_bench. Every figure is from this run; what cannot be measured here says why. Figures that have a floor
stand beside it; ratios are against the peer's build for the same instruction set, and say so where there is none. The
README's tables come last, and go to the file that --markdown names.
"""

import argparse
import concurrent.futures
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.join(ROOT, "tests", "api"), HERE]
import peer  # noqa: E402
from daemon import BUILD, MODELS, Daemon  # noqa: E402

FILES = {
    "0.5b": "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    "1.5b": "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    "270m": "gemma-3-270m-q4_k_m.gguf",
}
THREADS = len(os.sched_getaffinity(0))
PEERS = os.path.join(BUILD, "peer")
PROMPT, DECODE = 512, 48
DEEP = 8192 - PROMPT  # tokens of history for the figures at 8k
ACTIVE = 8
TOGETHER, TOGETHER_PROMPT = (1, 2, 4, 8), 256
PREFILLS = 5  # of a conversation that is restored
SLOW_ROUNDS = 3  # at most, of what takes minutes

# What must hold, as this program measures it: (model, set) -> sequences together -> times the rate of one; times the
# peer's prefill at the start and behind DEEP; ms of sampling a token; restore against the peer's load and prefill.
TOGETHER_FLOORS = {("1.5b", "cpu-avx2"): {2: 1.6, 4: 2.4, 8: 3.0}, ("1.5b", "cpu-avx512"): {2: 1.7, 4: 2.8, 8: 4.0}}
PREFILL_FLOORS = {("1.5b", "cpu-avx512"): (2.3, 3.0)}
SAMPLING_CEILINGS = {"cpu-avx2": 0.3, "cpu-avx512": 0.15}
LOAD_CEILING = 1.0
RESTORE_FLOORS = {"ram": 1000, "disk": 300}
SET_NAMES = {"cpu-avx2": "AVX2", "cpu-avxvnni": "AVX-VNNI", "cpu-avx512": "AVX-512 VNNI"}


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


def speed(path, sets, rounds, peers):
    """Takes turns between our kernel sets and the peer's builds; the first round warms up and is not counted."""
    ours = {s: Process([os.path.join(BUILD, "bench", "engine_bench"), path, s, str(THREADS)]) for s in sets}
    theirs = {s: peer.Server(folder, path, THREADS, 16384) for s, folder in peers.items()}
    everyone = [*ours, *theirs]
    runs, deep, together, reads = {s: [] for s in everyone}, {s: [] for s in everyone}, {s: {} for s in sets}, []

    def one(s, number, history):
        return ours[s].command(f"run {PROMPT} {DECODE} {history} 1") if s in ours else theirs[s].run(number, PROMPT, DECODE, history)

    for i in range(rounds + 1):
        for s in everyone:
            runs[s].append(one(s, i, 0))
        for s, p in ours.items():
            for n in TOGETHER:
                together[s].setdefault(n, []).append(p.command(f"run {TOGETHER_PROMPT} {DECODE} 0 {n} greedy"))
        reads.append(ours[sets[0]].command("read")["read_bytes_per_s"])
    for i in range(min(rounds, SLOW_ROUNDS) + 1):
        for s in everyone:
            deep[s].append(one(s, rounds + 1 + i, DEEP))
    loads = {s: [p.load(1878) for i in range(rounds + 1)] for s, p in theirs.items()}
    about = ours[sets[0]].about
    result = {"about": about, "read_bytes_per_s": spread(reads[1:]), "sets": {}, "peers": {}}
    token_bytes = about["token_weight_bytes"] + (PROMPT + DECODE / 2) * about["kv_token_bytes"]
    for s in sets:
        result["sets"][s] = {**rates(runs[s][1:]), "deep": rates(deep[s][1:])}
        result["sets"][s]["together_tokens_per_s"] = {n: rates(r[1:])["decode_tokens_per_s"] for n, r in together[s].items()}
        result["sets"][s]["share_of_read_bandwidth"] = (
            result["sets"][s]["decode_tokens_per_s"]["median"] * token_bytes / result["read_bytes_per_s"]["median"]
        )
    for s in theirs:
        result["peers"][s] = {**rates(runs[s][1:]), "deep": rates(deep[s][1:]), "load": {**loads[s][-1], "load_ms": spread([r["load_ms"] for r in loads[s][1:]])}}
    for p in [*ours.values(), *theirs.values()]:
        p.close()
    return result


def drop_page_cache(folder):
    for name in os.listdir(folder):
        fd = os.open(os.path.join(folder, name), os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def plain_reads(folder, size, piece=1 << 21):
    """ms in which the disk gives `size` bytes of the packs, which is what they hold, to as many plain readers as the daemon has."""
    drop_page_cache(folder)
    files = [os.open(os.path.join(folder, name), os.O_RDONLY) for name in os.listdir(folder) if name.startswith("pack-")]
    pieces = [(fd, at) for fd in files for at in range(0, os.fstat(fd).st_size, piece)][: -(-size // piece)]
    buffers = [bytearray(piece) for _ in range(THREADS)]

    def read(first):
        for fd, at in pieces[first::THREADS]:
            os.preadv(fd, [buffers[first]], at)

    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        begun = time.perf_counter()
        list(pool.map(read, range(THREADS)))
        took = time.perf_counter() - begun
    for fd in files:
        os.close(fd)
    return took * 1e3


def restore(path, rounds):
    """Restore of a conversation against prefilling it, and what its KV takes on disk."""


    def text(first_year):
        years = range(first_year, first_year + 72)
        return " ".join(f"In the year {y} the harbour of Velmar counted {y * 37 % 911} ships and {y * 53 % 701} sailors." for y in years)

    with tempfile.TemporaryDirectory() as home:
        data = os.path.join(home, "data")
        os.mkdir(data, 0o700)
        d = Daemon(data, model=path)
        prefill_ms = []
        for i in range(PREFILLS + 1):  # texts of their own, since what begins alike is not prefilled again
            alone = d.turn(text(1600 + i * 100), max_output_tokens=1, store=False)["convod"]
            prefill_ms.append(alone["ms"]["prefill"] / alone["tokens"]["prefilled"])
        c = d.conversation()
        first = d.turn(text(1400), conversation=c, max_output_tokens=1)["convod"]
        d.settle()
        status = d.ok("GET", "/v1/convod/status")
        tokens = first["tokens"]["prefilled"]
        times = {"ram": [], "disk": [], "page cache": []}
        plain = []
        for _ in range(rounds + 1):
            for source in times:
                tier = "ram" if source == "ram" else "disk"
                d.ok("POST", f"/v1/conversations/{c}/evict", {"to": tier})
                if source == "disk":
                    drop_page_cache(data)
                r = d.ok("POST", "/v1/responses", {"conversation": c, "input": [], "generate": False})["convod"]
                assert r["tokens"][tier] >= tokens and r["tokens"]["prefilled"] <= 1, r
                times[source].append(r["ms"]["restore"])
            plain.append(plain_reads(data, status["tiers"]["disk"]["used_bytes"]))
        d.stop()
    raw = tokens * status["model"]["kv_token_bytes"]
    result = {"tokens": tokens, "raw_bytes": raw, "prefill_ms": statistics.median(prefill_ms[1:]) * tokens}
    result["stored_bytes"] = status["tiers"]["disk"]["used_bytes"]
    result["ratio"] = raw / result["stored_bytes"]
    result["plain_reads_ms"] = spread(plain[1:])
    for source, values in times.items():
        result[source] = spread(values[1:])
        result[source]["times_faster_than_prefill"] = result["prefill_ms"] / result[source]["median"]
        result[source]["raw_bytes_per_s"] = raw / result[source]["median"] * 1e3
    return result


def resident(pid):
    with open(f"/proc/{pid}/smaps_rollup") as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith("Private_Dirty:"))


def connections(d, n):
    """Private memory of the daemon per idle WebSocket."""
    before, sockets = resident(d.process.pid), []
    for _ in range(n):
        s = socket.create_connection((d.address, d.port))
        s.sendall(
            b"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        assert s.recv(4096).startswith(b"HTTP/1.1 101"), "no WebSocket"
        sockets.append(s)
    grown = resident(d.process.pid) - before
    for s in sockets:
        s.close()
    return grown / n


def serving(path, rounds):
    """Turns through the daemon, in tokens per second of wall time: one after the other without and with saving, and ACTIVE at once."""
    TURNS, TOKENS = 4, 64
    rates = {"not saved": [], "saved": [], "together": []}
    with tempfile.TemporaryDirectory() as home:
        data = os.path.join(home, "data")
        os.mkdir(data, 0o700)
        d = Daemon(data, model=path)

        def turn(store):
            r = d.turn("Count from one to one thousand in words.", max_output_tokens=TOKENS, store=store)
            return r["usage"]["output_tokens"]

        for _ in range(rounds + 1):
            for kind, values in rates.items():
                start = time.monotonic()
                if kind == "together":
                    with concurrent.futures.ThreadPoolExecutor(ACTIVE) as pool:
                        tokens = sum(pool.map(turn, [True] * ACTIVE))
                else:
                    tokens = sum(turn(kind == "saved") for _ in range(TURNS))
                values.append(tokens / (time.monotonic() - start))
                d.settle()
        result = {kind: spread(values[1:]) for kind, values in rates.items()}
        result["idle_connection_bytes"] = connections(d, 200)
        d.stop()
    return result


def sampling():
    """ms per token of picking with the default settings from 151,936 logits: per set, one row and eight."""
    out = subprocess.run([os.path.join(BUILD, "bench", "pick_bench"), str(THREADS)], check=True, capture_output=True, text=True).stdout
    print(out)
    found, current = {}, None
    for line in out.splitlines():
        if line.startswith("cpu-"):
            current = line.split(",")[0]
        elif line.startswith("defaults (") and current:
            one, eight = line.split()[-2:]
            found[current] = {1: float(one) / 1e3, ACTIVE: float(eight) / 1e3}
    return found


def table(rows):
    widths = [max(len(str(r[i])) for r in rows) for i in range(len(rows[0]))]
    for r in rows:
        print("  ".join(str(v).ljust(w) for v, w in zip(r, widths)).rstrip())


def held(value, floor=None, ceiling=None):
    """What a bound says of a figure, as text; empty where there is none."""
    if floor is not None:
        return f"at least {floor:g}: {'yes' if value >= floor else 'NO'}"
    if ceiling is not None:
        return f"at most {ceiling:g}: {'yes' if value <= ceiling else 'NO'}"
    return ""


def peer_of(result, s):
    """The peer's build with the instructions of a set of ours: (its set, its figures); else the best there is, or (None, None)."""
    found = SET_NAMES[s] if SET_NAMES[s] in result["peers"] else next(reversed(result["peers"]), None)
    return found, result["peers"].get(found)


def bounds(name, result):
    """Rows of (what, figure, what its bound says) of one model."""
    rows = []
    for s, r in result["sets"].items():
        their_set, theirs = peer_of(result, s)
        for at, kind in ((0, "prefill"), (1, "prefill at 8k")) if their_set == SET_NAMES[s] else ():
            x = (r["deep"] if at else r)["prefill_tokens_per_s"]["median"] / (theirs["deep"] if at else theirs)["prefill_tokens_per_s"]["median"]
            floors = PREFILL_FLOORS.get((name, s))
            rows.append((f"{their_set}: {kind}, times the peer ({their_set} too)", f"{x:.2f}", held(x, floor=floors and floors[at])))
        rate = {n: v["median"] for n, v in r["together_tokens_per_s"].items()}
        for n in TOGETHER[1:]:
            x = rate[n] / rate[1]
            rows.append((f"{SET_NAMES[s]}: {n} sequences together, times one", f"{x:.2f}", held(x, floor=TOGETHER_FLOORS.get((name, s), {}).get(n))))
    r = result.get("restore")
    for source in ("ram", "page cache", "disk") if r else ():
        x = r[source]["times_faster_than_prefill"]
        rows.append((f"restore from {source}, times faster than prefill", f"{x:.0f}", held(x, floor=RESTORE_FLOORS.get(source))))
        if source == "disk":
            x = r[source]["median"] / r["plain_reads_ms"]["median"]
            rows.append((f"restore from {source}, times plain reads of the same bytes, which are {r['prefill_ms'] / r['plain_reads_ms']['median']:.0f} times faster than prefill", f"{x:.2f}", ""))
        if result["peers"] and source != "disk":
            x = r[source]["median"] / best_load(result)
            rows.append((f"restore from {source}, times the peer's load of raw state", f"{x:.2f}", held(x, ceiling=LOAD_CEILING)))
    return rows


def best_load(result):
    """ms that the peer takes to read a saved state, the faster of its builds."""
    return min(p["load"]["load_ms"]["median"] for p in result["peers"].values())


def report(name, result, peer_wanted):
    print(f"\n{name}: {result['about']['model']}, {THREADS} threads, prompt {PROMPT}, decode {DECODE}")
    rows = [("set", "prefill tok/s (min-max)", "x peer", "decode tok/s (min-max)", "x peer", "of read bandwidth")]

    def line(label, r, theirs):
        cells = [label]
        for key in ("prefill_tokens_per_s", "decode_tokens_per_s"):
            v = r[key]
            cells.append(f"{v['median']:.1f} ({v['min']:.1f}-{v['max']:.1f})")
            cells.append(f"{v['median'] / theirs[key]['median']:.2f}" if theirs else "-")
        share = r.get("share_of_read_bandwidth")
        return (*cells, f"{share:.0%}" if share else "-")

    everyone = [(s, r, peer_of(result, s)[1]) for s, r in result["sets"].items()] + [(f"peer ({s})", r, None) for s, r in result["peers"].items()]
    table([*rows, *(line(*who) for who in everyone)])
    if not result["peers"]:
        print("peer: not measured" + (" (build/peer is missing)" if peer_wanted else ""))
    print(f"plain read: {result['read_bytes_per_s']['median'] / 1e9:.1f} GB/s")
    print(f"\nbehind {DEEP} tokens:")
    table([rows[0][:-1], *(line(s, r["deep"], theirs and theirs["deep"])[:-1] for s, r, theirs in everyone)])
    for s, r in result["sets"].items():
        print(f"{s}: sequences together decode, tok/s: " + ", ".join(f"{n}: {v['median']:.1f}" for n, v in r["together_tokens_per_s"].items()))
    r = result.get("restore")
    if r:
        print(
            f"restore of {r['tokens']} tokens ({r['raw_bytes'] / 1e6:.1f} MB raw KV, stored in {r['stored_bytes'] / 1e6:.1f} MB: {r['ratio']:.2f}x smaller); "
            f"prefilling them took {r['prefill_ms']:.0f} ms"
        )
        for source in ("ram", "disk", "page cache"):
            v = r[source]
            print(
                f"  from {source}: {v['median']:.1f} ms ({v['min']:.1f}-{v['max']:.1f}), {v['times_faster_than_prefill']:.0f}x faster than prefill, "
                f"{v['raw_bytes_per_s'] / 1e9:.2f} GB/s of raw KV"
            )
        print(f"  plain reads of what is stored, page cache dropped: {r['plain_reads_ms']['median']:.1f} ms, {r['stored_bytes'] / r['plain_reads_ms']['median'] / 1e6:.2f} GB/s")
        for s, theirs in result["peers"].items():
            v = theirs["load"]
            print(f"  the peer ({s}) loads its state of {v['tokens']} tokens ({v['bytes'] / 1e6:.1f} MB, from the page cache) in {v['load_ms']['median']:.1f} ms")
    r = result.get("serving")
    if r:
        alone, saved, together = (r[k]["median"] for k in ("not saved", "saved", "together"))
        print(
            f"turns through the daemon: {alone:.1f} tok/s not saved, {saved:.1f} saved ({saved / alone - 1:+.1%}), {ACTIVE} at once {together:.1f} ({together / saved:.2f}x); "
            f"an idle WebSocket takes {r['idle_connection_bytes'] / 1024:.1f} KiB"
        )
    print("\nagainst what must hold:")
    table([("what", "measured", "bound"), *bounds(name, result)])


# ---- the README's tables ---------------------------------------------------------------------------------------------


def cell(x):
    return f"{x:,.0f}" if x >= 10 else f"{x:.1f}"


def markdown(results, picks):
    """The tables of the README's part "Measured", in its words."""
    out = ["| | prefill, tokens/s | x peer | decode, tokens/s | x peer | prefill at 8k | x peer | decode at 8k | x peer |", "|---|" + "---|" * 8]

    def row(label, r, theirs):
        cells = []
        for part, other in ((r, theirs), (r["deep"], theirs and theirs["deep"])):
            for key in ("prefill_tokens_per_s", "decode_tokens_per_s"):
                v = part[key]["median"]
                cells += [cell(v), f"{v / other[key]['median']:.1f}" if other else ""]
        return f"| {label} | " + " | ".join(cells) + " |"

    for result in results.values():
        for i, (s, r) in enumerate(result["sets"].items()):
            out.append(row(f"{result['about']['model'] if i == 0 else 'the same'}, {SET_NAMES[s]}", r, peer_of(result, s)[1]))
        out += [row(f"the same, peer ({s})", r, None) for s, r in result["peers"].items()]
    out += ["", "| against what must hold | measured | bound |", "|---|---|---|"]
    for name, result in results.items():
        out += [f"| {name.upper()}, {what} | {value} | {bound} |" for what, value, bound in bounds(name, result)]
    for s, r in picks.items():
        out.append(f"| {SET_NAMES[s]}: sampling a token of eight, default settings, 152k tokens, ms | {r[ACTIVE]:.2f} | {held(r[ACTIVE], ceiling=SAMPLING_CEILINGS.get(s))} |")
    restored = [r for r in results.values() if "restore" in r]
    if restored:
        tokens = restored[0]["restore"]["tokens"]
        out += ["", f"| a conversation of {tokens:,} tokens | " + " | ".join(n.upper() for n, r in results.items() if "restore" in r) + " |", "|---|" + "---|" * len(restored)]
        lines = [("prefilling it", lambda r: f"{r['restore']['prefill_ms']:,.0f} ms")]
        for label, source in (("restoring it from RAM", "ram"), ("restoring it from disk, page cache warm", "page cache"), ("restoring it from disk, page cache dropped", "disk")):
            lines.append((label, lambda r, source=source: f"{cell(r['restore'][source]['median'])} ms"))
        lines.append(("plain reads of as much from that disk, without it", lambda r: f"{cell(r['restore']['plain_reads_ms']['median'])} ms"))
        if all(r["peers"] for r in restored):
            lines.append(("the peer's load of its uncompressed state, page cache warm", lambda r: f"{cell(best_load(r))} ms"))
        lines.append(
            ("its KV, raw and as stored", lambda r: f"{r['restore']['raw_bytes'] / 1e6:.1f} MB, {r['restore']['stored_bytes'] / 1e6:.1f} MB: {r['restore']['ratio']:.2f}x smaller")
        )
        out += [f"| {label} | " + " | ".join(f(r) for r in restored) + " |" for label, f in lines]
    return "\n".join(out) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="0.5b,1.5b")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json")
    parser.add_argument("--markdown")
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--sets", default="")
    a = parser.parse_args()
    with open("/proc/cpuinfo") as f:
        flags = f.read()
    sets = a.sets.split(",") if a.sets else ["cpu-avx2"] + (["cpu-avx512"] if "avx512_vnni" in flags else [])
    peers = {} if a.no_peer else {s: f for s, f in peer.built(PEERS).items() if s in [SET_NAMES[ours] for ours in sets]} or peer.built(PEERS)
    results = {}
    for name in a.models.split(","):
        path = os.path.join(MODELS, FILES[name])
        if not os.path.exists(path):
            print(f"{name}: skipped, {path} is missing")
            continue
        results[name] = speed(path, sets, a.rounds, peers)
        results[name]["restore"] = restore(path, a.rounds)
        results[name]["serving"] = serving(path, min(a.rounds, SLOW_ROUNDS))
        report(name, results[name], not a.no_peer)
    picks = {s: r for s, r in sampling().items() if s in sets}
    tables = markdown(results, picks)
    print("\nFor the README:\n\n" + tables)
    if a.markdown:
        with open(a.markdown, "w") as f:
            f.write(tables)
    if a.json:
        with open(a.json, "w") as f:
            json.dump({**results, "sampling_ms": picks}, f, indent=1)


if __name__ == "__main__":
    main()
