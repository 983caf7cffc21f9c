#!/usr/bin/env python3
"""Clients that do anything at any time, while the daemon is killed and stopped: for SOAK_SECONDS (20), a model without wisdom.

They ask, follow, warm up, go away in the middle, evict and delete, in few pages, so that turns are put aside and conversations
come and go. Each answered turn's receipt must add up, what was answered must be there to the end, nothing but what a kill took
is prefilled again, and afterwards nothing runs, waits or grows.
"""

import http.client
import json
import os
import random
import re
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "api"))
from daemon import BUILD, Daemon, Scratch, check_receipt, need, run, text_of, until  # noqa: E402

SECONDS = float(os.environ.get("SOAK_SECONDS", "20"))
SEED = int(os.environ.get("SOAK_SEED", "1"))
CLIENTS = 6
LIVES = 4  # of the daemon; the last one is stopped in peace
MODEL = os.path.join(BUILD, "tests", "service", "model")
REFUSALS = {"conversation_locked", "context_length_exceeded", "previous_response_not_found", "conversation_not_found", "response_not_found",
            "rate_limit_exceeded", "response_in_use", "server_shutdown", "model_loading", "deleting"}


class World:
    """What the clients know together; the lock guards all of it."""

    def __init__(self, d):
        self.d, self.lock = d, threading.Lock()
        self.life, self.stopping, self.over = 0, False, False
        self.heads = {}  # conversation -> last response, or None
        self.answered = {}  # response -> (conversation, text)
        self.life_of = {}  # conversation -> the daemon's life in which its last turn ended
        self.deleted = set()
        self.turns = self.cut = 0
        self.faults = []


class Client(threading.Thread):
    def __init__(self, world, number):
        super().__init__(daemon=True)
        self.w, self.r = world, random.Random(SEED * 1000 + number)

    def text(self):
        return "".join(self.r.choice("abcdefgh ") for _ in range(self.r.choice([5, 20, 60, 150])))

    def call(self, method, path, body=None):
        status, answer = self.w.d.call(method, path, body)
        if status != 200:
            code = (answer or {}).get("error", {}).get("code")
            if code not in REFUSALS:
                raise AssertionError(f"{method} {path} {body}: {status} {answer}")
            return None
        return answer

    def ask(self, c):
        w, life = self.w, self.w.life
        body = {"input": self.text(), "max_output_tokens": self.r.choice([1, 5, 30, 120]), "temperature": 1}
        if self.r.random() < 0.15:
            body["store"] = False
        else:
            body["conversation"] = c
        answer = self.call("POST", "/v1/responses", body)
        if not answer:
            return
        if answer["status"] == "failed":
            raise AssertionError(f"a turn failed: {answer['error']}")
        receipt = answer["convod"]
        if receipt.get("incomplete_reason") not in ("cancelled", "shutdown"):
            check_receipt(answer)  # of one that was stopped not all was computed
        with w.lock:
            w.turns += 1
            if not body.get("store", True):
                return
            again = {x["reason"] for x in receipt["reprefilled"]} - {"logits"}
            # A kill may take what was not saved yet, of the conversations that ended a turn before it.
            if again and not (w.life_of.get(c, w.life) < w.life and again <= {"not_saved", "blob_missing"}):
                w.faults.append(f"prefilled again: {receipt}")
            w.answered[answer["id"]] = (c, text_of(answer))
            w.heads[c], w.life_of[c] = answer["id"], life

    def leave(self, c):
        """Asks, and is gone after a while."""
        connection = http.client.HTTPConnection(self.w.d.address, self.w.d.port, timeout=60)
        connection.request("POST", "/v1/responses", json.dumps({"input": self.text(), "conversation": c, "stream": True, "max_output_tokens": 200}),
                           {"Content-Type": "application/json"})
        time.sleep(self.r.random() * 0.1)
        connection.close()
        with self.w.lock:
            self.w.cut += 1

    def act(self):
        w, r, life = self.w, self.r, self.w.life
        with w.lock:
            known = [c for c in w.heads if c not in w.deleted]
        c = r.choice(known) if known else None
        what = r.random()
        if c is None or (len(known) < 20 and what < 0.1):
            answer = self.call("POST", "/v1/conversations", {})
            if answer:
                with w.lock:
                    w.heads[answer["id"]], w.life_of[answer["id"]] = None, life
        elif what < 0.7:
            self.ask(c)
        elif what < 0.78 and w.heads[c]:
            self.call("POST", "/v1/responses", {"conversation": c, "input": [], "generate": False})
        elif what < 0.86:
            self.leave(c)
        elif what < 0.95:
            self.call("POST", f"/v1/conversations/{c}/evict", {"to": r.choice(["ram", "disk"])})
        else:
            with w.lock:
                w.deleted.add(c)
            self.call("DELETE", f"/v1/conversations/{c}")

    def run(self):
        w = self.w
        while not w.over:
            try:
                self.act()
            except AssertionError as e:
                with w.lock:
                    w.faults.append(str(e))
            except (OSError, http.client.HTTPException, ValueError) as e:
                if not w.stopping and not w.over:
                    time.sleep(0.05)  # a daemon that is just being killed; anything else shows as a death
                    if not w.stopping and w.d.process.poll() is not None:
                        with w.lock:
                            w.faults.append(f"the daemon died: {e}")
                        return
                time.sleep(0.02)


def rss_kib(pid):
    with open(f"/proc/{pid}/status") as f:
        return int(re.search(r"VmRSS:\s+(\d+)", f.read())[1])


def quiet(d):
    """Waits until nothing runs, waits or is to be saved."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        s = d.ok("GET", "/v1/convod/status")
        if not any(s["queue"].values()) and s["pending_saves"] == 0:
            return s
        time.sleep(0.05)
    raise AssertionError(f"it does not come to rest: {s}")


def soak():
    need(MODEL)
    with Scratch() as data:
        model = os.path.join(data, "..", "model.gguf")
        subprocess.run([MODEL, model], check=True)
        d = Daemon(data, model, ["--kv-bytes", "448K", "--max-running", "4", "--drain-ms", "5000"])
        w = World(d)
        clients = [Client(w, n) for n in range(CLIENTS)]
        for c in clients:
            c.start()
        aside = 0

        def put_aside():
            return d.ok("GET", "/v1/convod/status")["turns"]["put_aside"]

        for life in range(LIVES):
            time.sleep(SECONDS / LIVES / 2)
            before = rss_kib(d.process.pid)
            time.sleep(SECONDS / LIVES / 2)
            if life == LIVES - 1:
                break
            aside += put_aside()
            w.stopping = True
            if life % 2:
                status, seconds = d.stop()
                assert status == 0, (status, d.read_log())
            else:
                d.kill()
            with w.lock:
                w.life += 1
            d.start()
            w.stopping = False
        until(lambda: w.faults or w.turns > CLIENTS and aside + put_aside() > 0, "no turn was put aside")  # on a slow machine that takes longer
        w.over = True
        for c in clients:
            c.join(120)
            assert not c.is_alive()
        quiet(d)
        aside += put_aside()
        after = rss_kib(d.process.pid)
        assert not w.faults, w.faults[:5]
        for response, (conversation, text) in w.answered.items():
            if conversation not in w.deleted:
                assert text_of(d.ok("GET", f"/v1/responses/{response}")) == text, response
        assert after < 1.25 * before + 16384, (before, after)
        for c in w.heads:  # also those whose deletion a kill has undone
            d.call("DELETE", f"/v1/conversations/{c}")
        deadline = time.monotonic() + 60
        while (left := quiet(d)["segments"]) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert left == 0, left
        status, _ = d.stop()
        assert status == 0
        print(f"# {w.turns} turns answered, {w.cut} left, {aside} put aside, {len(w.deleted)} conversations deleted; {before} and {after} KiB")


run(soak)
