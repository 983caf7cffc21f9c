#!/usr/bin/env python3
"""Several answers to one request (`n`): with tools, with a form, stored; stopped while they wait and while they are written; deleted in the
middle."""

import json

from daemon import PATIENCE, QWEN, Daemon, Scratch, need, read_events, run, send, until

SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Bergen", "Narvik"]}}, "required": ["city"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA, "strict": True}}]
ASK = {"messages": [{"role": "user", "content": "Weather in a city of Norway?"}], "temperature": 1.5, "seed": 7, "max_tokens": 48}
LONG = {"messages": [{"role": "user", "content": "Explain in detail how a sundial is built and read."}], "temperature": 0, "max_tokens": 600}


def post(d, body):
    return send(d, body, path="/v1/chat/completions")


def chunks(s, until=lambda c: False):
    """Those of a stream, up to one that is wanted or its end; whether it was ended as it should be."""
    seen = []
    for c in read_events(s):
        if c == "[DONE]":
            return seen, True
        seen.append(c)
        if until(c):
            break
    return seen, False


def written(n):
    """Until each of n answers has begun."""
    begun = set()

    def wanted(chunk):
        begun.update(c["index"] for c in chunk.get("choices", []) if c["delta"].get("content"))
        return len(begun) == n

    return wanted


def queue(d, what):
    """Until the queue is as it should be."""
    until(lambda: what(d.ok("GET", "/v1/convod/status")["queue"]))


def idle(d):
    queue(d, lambda q: q["running"] == q["waiting"] == 0)


def response_of(chunk):
    return "resp_" + chunk["id"].removeprefix("chatcmpl-")


def with_tools():
    """Each answer is a call of its own; the same in pieces; and the first, which is stored, can be resent."""
    with Scratch() as data:
        d = Daemon(data)
        ask = {**ASK, "tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False, "n": 4}
        whole = d.ok("POST", "/v1/chat/completions", ask)
        calls = []
        for i, choice in enumerate(whole["choices"]):
            assert choice["index"] == i and choice["finish_reason"] == "tool_calls", choice
            (call,) = choice["message"]["tool_calls"]
            assert call["function"]["name"] == "get_weather" and json.loads(call["function"]["arguments"])["city"] in SCHEMA["properties"]["city"]["enum"]
            calls.append(call)
        assert len({c["id"] for c in calls}) == 4, calls
        streamed = {}
        parts, ended = chunks(post(d, {**ask, "stream": True}))
        assert ended
        for part in parts:
            for c in part["choices"]:
                for call in c["delta"].get("tool_calls", []):
                    assert call["index"] == 0, call
                    streamed[c["index"]] = streamed.get(c["index"], "") + call["function"]["arguments"]
        assert streamed == {i: c["function"]["arguments"] for i, c in enumerate(calls)}, streamed
        # Any of them goes on without being read again.
        for choice, call in zip(whole["choices"], calls):
            result = {"role": "tool", "tool_call_id": call["id"], "content": "rain"}
            r = d.ok("POST", "/v1/chat/completions", {**ASK, "messages": [*ASK["messages"], choice["message"], result], "tools": TOOLS, "max_tokens": 4})
            again = r["convod"]["reprefilled"]  # two answers may be the same: then the second one's turn was there before
            assert again in ([], [{"tokens": 1, "reason": "logits"}]) and r["convod"]["tokens"]["history"] > 40, r["convod"]
        d.stop()


def with_a_form():
    with Scratch() as data:
        d = Daemon(data)
        form = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA, "strict": True}}
        r = d.ok("POST", "/v1/chat/completions", {**ASK, "response_format": form, "n": 6})
        cities = [json.loads(c["message"]["content"])["city"] for c in r["choices"]]
        assert len(cities) == 6 and len(set(cities)) > 1, cities
        # The first is stored as any other answer is, the others are not.
        stored = d.ok("GET", "/v1/responses/" + response_of(r))
        assert json.loads(stored["output"][0]["content"][0]["text"])["city"] == cities[0], stored
        r = d.ok("POST", "/v1/chat/completions", {**ASK, "response_format": form, "n": 3, "store": False})
        assert d.call("GET", "/v1/responses/" + response_of(r))[0] == 404
        d.stop()


def stopped():
    """Who asks goes away while all of them wait for the only place, while one is written and the others wait, and while all are
    written: nothing of them goes on, and others are answered."""
    with Scratch() as data:
        d = Daemon(data, args=["--max-running", "1"])
        first = post(d, {**LONG, "stream": True})
        chunks(first, written(1))
        waiting = post(d, {**LONG, "n": 4, "stream": True})
        queue(d, lambda q: q["waiting"] == 4)
        waiting.close()
        queue(d, lambda q: q["waiting"] == 0)
        first.close()
        idle(d)
        one = post(d, {**LONG, "n": 3, "stream": True})
        chunks(one, written(1))
        one.close()
        idle(d)
        assert d.turn("Hello.")["status"] in ("completed", "incomplete")
        d.stop()
        d = Daemon(data)
        all_of_them = post(d, {**LONG, "n": 3, "stream": True})
        chunks(all_of_them, written(3))
        all_of_them.close()
        idle(d)
        assert d.turn("Hello.")["status"] in ("completed", "incomplete")
        # Stopped by its id, which is that of the first: that ends with what it has, and so does the stream.
        s = post(d, {**LONG, "n": 3, "stream": True})
        seen, _ = chunks(s, written(3))
        assert d.call("POST", f"/v1/responses/{response_of(seen[0])}/cancel")[0] == 200
        s.settimeout(PATIENCE)
        rest, ended = chunks(s)
        reasons = {c["index"]: c["finish_reason"] for part in rest for c in part["choices"] if c["finish_reason"]}
        assert ended and set(reasons) == {0, 1, 2}, (rest[-1:], reasons)
        d.stop()


def deleted():
    """The stored one goes while all of them are written: the request ends, and there is nothing left of it."""
    with Scratch() as data:
        d = Daemon(data)
        s = post(d, {**LONG, "n": 3, "stream": True})
        seen, _ = chunks(s, written(3))
        id = response_of(seen[0])
        assert d.call("DELETE", f"/v1/responses/{id}")[0] == 200
        chunks(s)
        assert d.call("GET", f"/v1/responses/{id}")[0] == 404
        idle(d)
        assert d.turn("Hello.")["status"] in ("completed", "incomplete")
        d.stop()


need(QWEN)
run(with_tools, with_a_form, stopped, deleted)
