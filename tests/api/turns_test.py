#!/usr/bin/env python3
"""A turn from its acceptance on: what is asked again, read while it runs, deleted, killed, or left to itself."""

import contextlib
import json
import os
import socket
import sqlite3
import time

from daemon import MAKER, PATIENCE, QWEN, Daemon, Scratch, made_model, need, read_events, run, send, text_of, until

LONG = {"input": "Explain in detail how a sundial is built and read.", "temperature": 0, "max_output_tokens": 400}


def questions(d, c):
    items = d.ok("GET", f"/v1/conversations/{c}/items?limit=100&order=asc")["data"]
    return [i for i in items if i["role"] == "user"]


def events(s, until=lambda e: False):
    """Those of a socket, until one is wanted or the stream ends."""
    seen = []
    for e in read_events(s):
        seen.append(e)
        if until(e):
            break
    return seen


def delta(n):
    left = [n]

    def wanted(e):
        left[0] -= e["type"] == "response.output_text.delta"
        return left[0] == 0

    return wanted


def begin(d, c, **fields):
    """A turn that runs: its socket and its id."""
    s = send(d, {**LONG, "conversation": c, "stream": True, **fields})
    return s, events(s, delta(3))[0]["response"]["id"]


def a_key_is_exact():
    """Across kill -9, and whatever others do; another body or another route with it is an error."""
    with Scratch() as data:
        d = Daemon(data, model=made_model(data))
        c, key = d.conversation(), {"Idempotency-Key": "table-7"}
        body = {"conversation": c, "input": "book the table", "max_output_tokens": 4}
        first = d.call("POST", "/v1/responses", body, key)[1]
        for end in (d.stop, d.kill):
            end()
            d.start()
            status, again = d.call("POST", "/v1/responses", body, key)
            assert status == 200 and again["id"] == first["id"] and text_of(again) == text_of(first), again
        streamed = send(d, {**body, "stream": True}, key)
        assert b" 400 " in streamed.recv(64)
        for path, other in (
            ("/v1/responses", {**body, "input": "book another"}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "book the table"}]}),
            ("/v1/conversations", {}),
        ):
            status, answer = d.call("POST", path, other, key)
            assert status == 400 and answer["error"]["code"] == "idempotency_key_reused", (path, answer)
        assert len(questions(d, c)) == 1
        # In the head and among the fields at once: which one counts?
        status, answer = d.call("POST", "/v1/responses", {**body, "convod": {"idempotency_key": "table-8"}}, key)
        assert status == 400, answer
        twice = socket.create_connection((d.address, d.port), timeout=60)
        text = json.dumps(body)
        twice.sendall(
            f"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: a\r\nIdempotency-Key: b\r\n"
            f"Content-Length: {len(text)}\r\n\r\n{text}".encode()
        )
        assert b" 400 " in twice.recv(64)
        # What it made was deleted: the key does not make it again.
        assert d.call("DELETE", f"/v1/responses/{first['id']}")[0] == 200
        assert d.call("POST", "/v1/responses", body, key)[0] == 404
        # Conversations and chat completions.
        made = [d.call("POST", "/v1/conversations", {"title": "garden"}, {"Idempotency-Key": "g"})[1]["id"] for _ in range(2)]
        assert made[0] == made[1]
        chat = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
        answers = [d.call("POST", "/v1/chat/completions", chat, {"Idempotency-Key": "h"})[1] for _ in range(2)]
        assert answers[0]["id"] == answers[1]["id"] and answers[0]["choices"] == answers[1]["choices"]
        d.stop()


def a_retry_adds_no_turn():
    with Scratch() as data:
        d = Daemon(data)
        # Cut in the middle of the stream, with a key.
        c = d.conversation()
        ask = {**LONG, "conversation": c, "stream": True, "max_output_tokens": 2000}
        s = send(d, ask, {"Idempotency-Key": "k"})
        abandoned = events(s, delta(3))[0]["response"]["id"]
        s.close()
        while d.ok("GET", f"/v1/responses/{abandoned}")["status"] == "in_progress":
            time.sleep(0.02)
        s = send(d, ask, {"Idempotency-Key": "k", "X-Stainless-Retry-Count": "1"})
        again = events(s, delta(3))[0]["response"]["id"]
        assert again != abandoned and d.call("POST", f"/v1/responses/{again}/cancel")[0] == 200
        last = events(s)[-1]
        assert last["type"] == "response.incomplete" and last["response"]["id"] == again, last
        assert len(questions(d, c)) == 1
        assert d.call("GET", f"/v1/responses/{abandoned}")[0] == 404
        # Time-outs, without one. There is no room for the answer: it is not delivered, however late it is given up.
        c = d.conversation()
        for attempt in range(3):
            s = send(d, {**LONG, "conversation": c, "max_output_tokens": 240}, {"X-Stainless-Retry-Count": str(attempt)}, receive_buffer=1)
            s.settimeout(0.4 if attempt < 2 else PATIENCE)
            with contextlib.suppress(TimeoutError):
                s.recv(1)
            s.close()
        assert len(questions(d, c)) == 1
        # Said twice on purpose: the second one's first attempt was refused, and its retry is no repetition of the first.
        c = d.conversation()
        body = {"conversation": c, "input": "go on", "temperature": 0, "max_output_tokens": 4}
        first = d.call("POST", "/v1/responses", body, {"X-Stainless-Retry-Count": "0"})[1]["id"]
        while d.ok("GET", "/v1/convod/status")["connections"] > 1:  # the first one's goes when its answer has arrived
            time.sleep(0.02)
        second = d.call("POST", "/v1/responses", body, {"X-Stainless-Retry-Count": "1"})[1]["id"]
        assert first != second and len(questions(d, c)) == 2
        # What followed the partial answer of a stopped turn stays: it is the user's own.
        c = d.conversation()
        s, stopped = begin(d, c)
        assert d.call("POST", f"/v1/responses/{stopped}/cancel")[1]["convod"]["incomplete_reason"] == "cancelled"
        d.turn("thanks", conversation=c)
        assert len(questions(d, c)) == 2
        d.stop()


def what_runs_is_there():
    with Scratch() as data:
        d = Daemon(data)
        c = d.conversation()
        s, r = begin(d, c)
        assert [i["response_id"] for i in questions(d, c)] == [r]
        assert d.ok("GET", f"/v1/responses/{r}")["status"] == "in_progress"
        assert len(d.ok("GET", f"/v1/responses/{r}/input_items")["data"]) == 1
        status, answer = d.call("POST", "/v1/responses", {"input": "and?", "previous_response_id": r})
        assert status == 400 and answer["error"]["code"] == "conversation_locked", answer
        # Deleted while it runs: stopped, and gone.
        assert d.call("DELETE", f"/v1/responses/{r}")[0] == 200
        assert events(s)[-1]["type"] == "response.incomplete"
        assert d.call("GET", f"/v1/responses/{r}")[0] == 404 and questions(d, c) == []
        # So is its conversation.
        s, r = begin(d, c)
        assert d.call("DELETE", f"/v1/conversations/{c}")[0] == 200
        assert d.call("GET", f"/v1/conversations/{c}")[0] == d.call("GET", f"/v1/responses/{r}")[0] == 404
        # Joining behind the newest event waits for what comes then.
        c = d.conversation()
        s, r = begin(d, c, max_output_tokens=60)
        joined = socket.create_connection((d.address, d.port), timeout=60)
        joined.sendall(f"GET /v1/responses/{r}?stream=true&starting_after=20 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        numbers = [e["sequence_number"] for e in events(joined)]
        assert numbers and numbers == list(range(21, numbers[-1] + 1)), numbers
        status, answer = d.call("GET", f"/v1/responses/{r}?stream=true&starting_after={numbers[-1] + 1}")
        assert status == 400 and answer["error"]["param"] == "starting_after", answer
        d.stop()


def killed_in_the_middle():
    with Scratch() as data:
        d = Daemon(data)
        c = d.conversation()
        d.turn("My boat is blue.", conversation=c)
        _, r = begin(d, c)
        d.kill()
        d.start()
        stored = d.ok("GET", f"/v1/responses/{r}")
        assert stored["status"] == "failed" and stored["output"] == [] and stored["error"], stored
        assert [i["response_id"] == r for i in questions(d, c)] == [False, True]
        # It locks nothing: the conversation goes on from the last answer, also where the failed one is named.
        follows = d.turn("Which colour has it?", conversation=c, convod={"parent": r})
        assert follows["convod"]["tokens"]["prefilled"] == follows["convod"]["tokens"]["new"], follows["convod"]
        assert [i["response_id"] for i in questions(d, c)][1:] == [follows["id"]]
        assert d.call("DELETE", f"/v1/responses/{r}")[0] == 200
        assert d.call("GET", f"/v1/responses/{r}")[0] == 404
        # Its retry takes its place, though another process answers it.
        c = d.conversation()
        s = send(d, {**LONG, "conversation": c, "max_output_tokens": 20}, {"Idempotency-Key": "k"})
        until(lambda: questions(d, c))
        d.kill()
        d.start()
        status, again = d.call("POST", "/v1/responses", {**LONG, "conversation": c, "max_output_tokens": 20}, {"Idempotency-Key": "k"})
        assert status == 200 and text_of(again) and len(questions(d, c)) == 1, again
        d.stop()


def in_the_background():
    with Scratch() as data:
        d = Daemon(data, args=["--max-running", "1"])
        c = d.conversation()
        s, r = begin(d, c)
        queued = d.ok("POST", "/v1/responses", {**LONG, "background": True, "max_output_tokens": 8})
        assert queued["status"] == "queued" and queued["background"] and queued["output"] == [], queued
        still = d.ok("GET", f"/v1/responses/{queued['id']}")
        assert still["status"] == "queued", still
        # Who waited in the queue runs after a restart; who ran has failed.
        d.kill()
        d.start()
        assert d.ok("GET", f"/v1/responses/{r}")["status"] == "failed"
        deadline = time.monotonic() + PATIENCE
        while (done := d.ok("GET", f"/v1/responses/{queued['id']}"))["status"] in ("queued", "in_progress"):
            assert time.monotonic() < deadline, done
            time.sleep(0.05)
        assert done["status"] in ("completed", "incomplete") and text_of(done) and done["background"], done
        # With its seed, and its key finds it wherever it is by then; what cannot be run any more has failed.
        s, r = begin(d, c)
        drawn = {**LONG, "background": True, "max_output_tokens": 8, "temperature": 1}
        seeded = d.ok("POST", "/v1/responses", drawn)
        keyed = {**LONG, "background": True, "max_output_tokens": 9}
        status, first = d.call("POST", "/v1/responses", keyed, {"Idempotency-Key": "behind"})
        assert status == 200 and first["status"] == "queued", first
        foreign = d.ok("POST", "/v1/responses", {**LONG, "background": True, "max_output_tokens": 10})
        d.kill()
        ledger = sqlite3.connect(os.path.join(data, "ledger.db"))
        ledger.execute("UPDATE turns SET request = '{\"input\": 5}' WHERE public_id = ?", (foreign["id"],))
        ledger.commit()
        ledger.close()
        d.start()
        # Until its run is there again it is told as not ended, which a client takes for "later".
        while "conversation_locked" in str(reply := d.call("POST", "/v1/responses", keyed, {"Idempotency-Key": "behind"})):
            assert time.monotonic() < deadline, reply
            time.sleep(0.05)
        status, again = reply
        assert status == 200 and again["id"] == first["id"], again
        for id in (seeded["id"], first["id"], foreign["id"]):
            while (now := d.ok("GET", f"/v1/responses/{id}"))["status"] in ("queued", "in_progress"):
                assert time.monotonic() < deadline, now
                time.sleep(0.05)
            assert (now["status"] == "failed") == (id == foreign["id"]), now
            if id == seeded["id"]:
                own = {"seed": seeded["convod"]["seed"]}
                same = d.ok("POST", "/v1/responses", {**drawn, "background": False, "convod": own})
                assert now["convod"]["seed"] == own["seed"] and text_of(now) == text_of(same), (now, same)
        # Streamed, and stopped.
        types = [e["type"] for e in events(send(d, {**LONG, "background": True, "stream": True, "max_output_tokens": 4}))]
        assert types[:3] == ["response.created", "response.queued", "response.in_progress"], types
        queued = d.ok("POST", "/v1/responses", {**LONG, "background": True})
        stopped = d.ok("POST", f"/v1/responses/{queued['id']}/cancel")
        assert stopped["status"] == "incomplete", stopped
        status, answer = d.call("POST", "/v1/responses", {**LONG, "background": True, "store": False})
        assert status == 400 and answer["error"]["param"] == "background", answer
        d.stop()


need(QWEN)
need(MAKER)
run(a_key_is_exact, a_retry_adds_no_turn, what_runs_is_there, killed_in_the_middle, in_the_background)
