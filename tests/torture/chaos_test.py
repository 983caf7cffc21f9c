#!/usr/bin/env python3
"""A daemon under everything at once: a proxy that cuts connections anywhere, kills, a disk that is full now and then,
retries with keys, deletions. Afterwards every question that was acknowledged is there once, no question is there twice,
nothing of what was deleted is in any file, and a daemon that starts from nothing gives the same answers.

The last line says how many cases were tried, and losses, doubles and remains. TORTURE_CASES is the number of turns; with
--all the power losses of power_test are tried first and counted too. As root the data lies on a file system of its own
that is filled; otherwise that part is left out, and said so.
"""
import contextlib
import http.client
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "api"))
from daemon import BUILD, Daemon, need, text_of  # noqa: E402

MODEL = os.path.join(BUILD, "tests", "service", "model")
POWER = os.path.join(BUILD, "tests", "torture", "power_test")
TURNS = int(os.environ.get("TORTURE_CASES", "60"))
WRITERS = 3
PER_CONVERSATION = 8
PATIENCE = 120  # seconds for one turn, through all that happens meanwhile
DISK = "48m"


def request_of(client):
    """All of a request: its body may come behind its head."""
    data = b""
    while piece := client.recv(65536):
        data += piece
        head, _, body = data.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
        if length and len(body) >= int(length[1]):
            break
    return data


class Proxy:
    """Passes bytes on to the daemon of the moment. Every other connection is cut: at once, before all of the request has
    passed, when it has, or in the middle of the answer."""

    def __init__(self, seed):
        self.random, self.target, self.cuts = random.Random(seed), None, 0
        self.s = socket.create_server(("127.0.0.1", 0))
        self.port = self.s.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.s.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(client, self.random.choice(["none", "none", "early", "request", "answer"])), daemon=True).start()

    def serve(self, client, cut):
        with contextlib.suppress(OSError), client:
            if self.target is None:
                return
            with socket.create_connection(self.target, timeout=5) as server:
                client.settimeout(PATIENCE)
                server.settimeout(PATIENCE)
                data = request_of(client)
                if cut == "early":
                    server.sendall(data[: len(data) // 2])
                    self.cuts += 1
                    return
                server.sendall(data)
                if cut == "request":
                    time.sleep(self.random.random() * 0.05)
                    self.cuts += 1
                    return
                sent = 0
                while got := server.recv(65536):
                    if cut == "answer":
                        client.sendall(got[: len(got) // 2])
                        self.cuts += 1
                        return
                    client.sendall(got)
                    sent += len(got)


def post(port, path, body, key):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        c.request("POST", path, json.dumps(body), {"Content-Type": "application/json", "Idempotency-Key": key})
        r = c.getresponse()
        return r.status, json.loads(r.read())
    finally:
        c.close()


def insist(proxy, path, body, key):
    """As SDKs do: the same request, until there is an answer."""
    deadline, tries = time.monotonic() + PATIENCE, 0
    while time.monotonic() < deadline:
        tries += 1
        try:
            status, answer = post(proxy.port, path, body, key)
        except (OSError, http.client.HTTPException, ValueError):
            time.sleep(0.02)
            continue
        if status == 200:
            return answer, tries
        code = answer["error"]["code"]
        if status >= 500 or code in ("conversation_locked", "deleting"):
            time.sleep(0.05)
            continue
        raise AssertionError((body, status, answer))
    raise AssertionError(f"no answer to {body} in {PATIENCE} s")


class Writer(threading.Thread):
    """Conversations, question after question; now and then one that it deletes."""

    def __init__(self, n, proxy, turns):
        super().__init__(daemon=True)
        self.n, self.proxy, self.turns = n, proxy, turns
        self.deleted, self.error, self.retries = [], None, 0
        self.said = {}  # by conversation: questions and their answers, in order

    def ask(self, conversation, marker, key):
        body = {"conversation": conversation, "input": marker, "temperature": 0, "max_output_tokens": 6}
        answer, tries = insist(self.proxy, "/v1/responses", body, key)
        self.retries += tries - 1
        return text_of(answer)

    def run(self):
        try:
            for i in range(self.turns):
                if i % PER_CONVERSATION == 0:
                    c = insist(self.proxy, "/v1/conversations", {}, f"new-{self.n}-{i}")[0]["id"]
                    self.said[c] = []
                marker = f"asked{self.n:02}x{i:04} " + "abcdefgh" * 6
                self.said[c].append((marker, self.ask(c, marker, f"key-{self.n}-{i}")))
                if i % 6 == 5:
                    self.delete(i)
        except Exception as e:  # noqa: BLE001 - told by who waits for it
            self.error = e

    def delete(self, i):
        doomed = insist(self.proxy, "/v1/conversations", {"title": f"doomedtitle{self.n:02}x{i:04}"}, f"doomed-{self.n}-{i}")[0]["id"]
        marker = f"doomed{self.n:02}x{i:04} "
        self.ask(doomed, marker + "secret words " * 24, f"doomed-ask-{self.n}-{i}")
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            try:
                c = http.client.HTTPConnection(*self.proxy.target, timeout=20)
                c.request("DELETE", f"/v1/conversations/{doomed}")
                status = c.getresponse().status
                c.close()
            except (OSError, TypeError, http.client.HTTPException):
                time.sleep(0.05)
                continue
            if status in (200, 404):  # 404: the answer to the one before was lost
                self.deleted.append(marker.strip())
                return
            time.sleep(0.1)
        raise AssertionError(f"{doomed} could not be deleted")


def small_disk(folder):
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", folder], capture_output=True).returncode == 0
    return made


def fill(folder):
    name = os.path.join(folder, "fill")
    with contextlib.suppress(OSError), open(name, "wb", buffering=0) as f:
        while True:
            f.write(b"x" * 65536)
    return name


def trouble(d, proxy, writers, seed, full):
    """Kills and full disks until the writers have ended. What was done, by kind."""
    rng, done = random.Random(seed), {"kills": 0, "full disks": 0}
    while any(w.is_alive() for w in writers):
        time.sleep(rng.uniform(0.3, 1.2))
        if full and rng.random() < 0.4:
            name = fill(d.data)
            done["full disks"] += 1
            if rng.random() < 0.3:  # also at a start
                proxy.target = None
                d.kill()
                d.start()
                proxy.target = (d.address, d.port)
                done["kills"] += 1
            time.sleep(rng.uniform(0.2, 0.8))
            os.unlink(name)
        else:
            proxy.target = None
            d.kill()
            d.start()
            proxy.target = (d.address, d.port)
            done["kills"] += 1
    return done


def remains(folder, markers):
    """Markers in any file: as text, and as token ids (of this model, the bytes of the text)."""
    found = set()
    for name in os.listdir(folder):
        if not os.path.isfile(os.path.join(folder, name)):
            continue
        with open(os.path.join(folder, name), "rb") as f:
            data = f.read()
        found |= {m for m in markers if m.encode() in data or m.encode("utf-32-le") in data}
    return found


def counted(d, writers):
    """Losses and doubles among the questions, and answers that are not those that were given."""
    losses, doubles = [], []
    for c, said in (pair for w in writers for pair in w.said.items()):
        items = d.ok("GET", f"/v1/conversations/{c}/items?limit=100&order=asc")["data"]
        questions = [i["content"][0]["text"] for i in items if i["role"] == "user"]
        answers = [i["content"][0]["text"] for i in items if i["role"] == "assistant"]
        for marker, _ in said:
            losses += [marker] if marker not in questions else []
            doubles += [marker] * (questions.count(marker) - 1)
        losses += [a for a, (_, given) in zip(answers, said) if a != given]
    return losses, doubles


def recomputed(model, writers):
    """From nothing, without any KV: the same answers."""
    with tempfile.TemporaryDirectory() as home:
        data = os.path.join(home, "data")
        os.mkdir(data, 0o700)
        d, wrong = Daemon(data, model=model), []
        for said in (said for w in writers for said in w.said.values()):
            c = d.conversation()
            for marker, given in said:
                if text_of(d.turn(marker, conversation=c, temperature=0, max_output_tokens=6)) != given:
                    wrong.append(marker)
        d.stop()
        return wrong


def power_losses():
    said = subprocess.run([POWER], capture_output=True, text=True)
    line = re.search(r"(\d+) cases: (\d+) losses, (\d+) remains", said.stdout + said.stderr)
    assert line, said.stdout + said.stderr
    return [int(n) for n in line.groups()]


def main():
    seed = int(os.environ.get("TORTURE_SEED", "1"))
    cases, losses, doubles, left = 0, 0, 0, 0
    if "--all" in sys.argv:
        cases, losses, left = power_losses()
    with tempfile.TemporaryDirectory() as home, contextlib.ExitStack() as at_end:
        data, model = os.path.join(home, "data"), os.path.join(home, "tiny.gguf")
        os.mkdir(data, 0o700)
        subprocess.run([MODEL, model], check=True)
        full = small_disk(data)
        if full:
            at_end.callback(subprocess.run, ["umount", "-l", data])
        else:
            print("skip: full disks: mounting a tmpfs needs root")
        d, proxy = Daemon(data, model=model, args=["--disk-bytes", "24M"]), Proxy(seed)
        proxy.target = (d.address, d.port)
        writers = [Writer(n, proxy, max(1, TURNS // WRITERS)) for n in range(WRITERS)]
        for w in writers:
            w.start()
        done = trouble(d, proxy, writers, seed, full)
        for w in writers:
            if w.error:
                raise w.error
        d.settle()
        lost, twice = counted(d, writers)
        gone = {m for w in writers for m in w.deleted}
        found = remains(data, gone)
        wrong = recomputed(model, writers)
        d.stop()
        for what, which in (("lost", lost), ("twice", twice), ("left", found), ("other answers", wrong)):
            if which:
                print(f"{what}: {sorted(which)[:10]}")
        turns, retries = sum(len(said) for w in writers for said in w.said.values()), sum(w.retries for w in writers)
        print(f"{turns} turns with {retries} retries, {proxy.cuts} cut connections, {done['kills']} kills, {done['full disks']} full disks, {len(gone)} deletions")
        cases += turns + len(gone) + sum(done.values())
        losses, doubles, left = losses + len(lost) + len(wrong), doubles + len(twice), left + len(found)
    print("1..1")
    print(f"{'not ' if losses or doubles or left else ''}ok 1 - everything at once")
    print(f"{cases} cases: {losses} losses, {doubles} doubles, {left} remains")
    sys.exit(1 if losses or doubles or left else 0)


need(MODEL)
main()
