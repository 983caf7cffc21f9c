#!/usr/bin/env python3
"""What was thought for earlier questions is left out of the context, through the whole daemon: made ahead, followed where it is there, also
after the daemon was killed at any moment, and gone with its response. The model is random, and thinks whenever it answers."""

import os
import subprocess
import time

from daemon import BUILD, MAKER, Daemon, Scratch, check_receipt, made_model, need, run, until

ASK = {"max_output_tokens": 24, "reasoning": {"context": "current_turn"}}


def daemon(data):
    return Daemon(data, model=made_model(data, 4096, "thinks"))


def turn(d, text, seed=5, saved=True, **fields):
    """saved: so is what it follows; else that may have been lost, but never what was made ahead."""
    response = d.ok("POST", "/v1/responses", {"input": text, **ASK, "convod": {"seed": seed, "thinking_tokens": 8}, **fields})
    r = check_receipt(response)
    lost = [x["reason"] for x in r["reprefilled"]]
    assert lost == [] or (lost == ["not_saved"] and not saved and form(response) == "all_turns"), r
    assert response["reasoning"]["context"] == form(response), response
    return response


def form(response):
    return response["convod"]["reasoning_context"]


def rest(d):
    """Waits until nothing runs, and nothing is being saved."""
    until(lambda: not (any((s := d.ok("GET", "/v1/convod/status"))["queue"].values()) or s["pending_saves"]))


def a_chat():
    with Scratch() as data:
        d = daemon(data)
        c = d.conversation()
        last = None
        for i in range(5):
            last = turn(d, "tell me more " * (40 if i == 1 else 2), seed=i, conversation=c)
            assert form(last) == "current_turn", (i, last["convod"])
            rest(d)
            shown = d.ok("GET", f"/v1/conversations/{c}")["convod"]
            assert shown["turns"] == i + 1 and shown["head"] == last["id"] and not shown["running"], shown
        assert len(d.ok("GET", f"/v1/conversations/{c}/responses")["data"]) == 5
        items = d.ok("GET", f"/v1/conversations/{c}/items?limit=100")["data"]
        assert sum(i["type"] == "reasoning" for i in items) >= 3
        d.ok("POST", f"/v1/conversations/{c}/evict", {"to": "disk"})
        cold = turn(d, "and?", conversation=c)
        assert form(cold) == "current_turn" and cold["convod"]["tokens"]["disk"] > 0, cold["convod"]
        # An edit, and a fork.
        rest(d)
        edit = turn(d, "no, this", conversation=c, convod={"parent": last["id"], "seed": 1, "thinking_tokens": 8})
        assert form(edit) == "current_turn"
        rest(d)
        fork = d.ok("POST", f"/v1/conversations/{c}/fork", {})["id"]
        turn(d, "elsewhere", conversation=fork)
        rest(d)
        assert d.stop()[0] == 0
        verify(d)


def verify(d):
    said = subprocess.run([os.path.join(BUILD, "convod"), "--verify", d.data], capture_output=True, text=True, timeout=120)
    assert said.returncode == 0, said.stdout + said.stderr


def killed():
    """Whatever of it was under way."""
    forms = set()
    with Scratch() as data:
        d = daemon(data)
        last = turn(d, "hello " * 300)
        for i in range(12):
            saved = i % 2 == 0
            if saved:
                d.settle()
            time.sleep(0.001 * i)
            d.kill()
            if i % 3 == 2:
                verify(d)
            d.start()
            last = turn(d, "go on " * 20, seed=i, saved=saved, previous_response_id=last["id"])
            forms.add(form(last))
        rest(d)
        last = turn(d, "the last", previous_response_id=last["id"])
        assert form(last) == "current_turn", last["convod"]
        assert d.stop()[0] == 0
        verify(d)
        assert forms <= {"current_turn", "all_turns"}


def deleted():
    """A deletion beside the warm-up is done when it is answered."""
    with Scratch() as data:
        d = daemon(data)
        kept = turn(d, "this stays " * 30)
        for i in range(4):
            gone = turn(d, f"a marker number {i} " * 40, seed=i, previous_response_id=kept["id"])
            if i % 2:
                rest(d)
            d.ok("DELETE", f"/v1/responses/{gone['id']}")
            for name in os.listdir(data):
                with open(os.path.join(data, name), "rb") as f:
                    assert b"marker number" not in f.read(), name
        rest(d)
        assert form(turn(d, "go on", previous_response_id=kept["id"])) == "current_turn"
        assert d.stop()[0] == 0
        verify(d)


need(MAKER)
run(a_chat, killed, deleted)
