#!/usr/bin/env python3
"""A real conversation with a real model: evicted, killed, restarted, forked; its history is never prefilled again."""

from daemon import QWEN, Daemon, Scratch, check_receipt, need, run, text_of

FACT = "My lighthouse is called Perseverance and it stands on Skerry Rock. Please remember the name of my lighthouse."


def begin(d):
    """Three turns; the first tells a fact. Returns the conversation."""
    c = d.conversation()
    first = d.turn(FACT, conversation=c)
    r = check_receipt(first)
    assert r["tokens"]["history"] == 0 and r["tokens"]["prefilled"] == r["tokens"]["new"] > 0, r
    for text in ("What is 7 times 8?", "Name one ocean."):
        r = check_receipt(d.turn(text, conversation=c))
        assert r["reprefilled"] == [] and r["tokens"]["hot"] == r["tokens"]["history"] > 0, r
    d.settle()
    return c


def ask(d, c, **fields):
    response = d.turn("What is the name of my lighthouse? Answer with the name only.", conversation=c, **fields)
    assert "Perseverance" in text_of(response), text_of(response)
    r = check_receipt(response)
    assert r["reprefilled"] == [], r
    assert r["tokens"]["prefilled"] == r["tokens"]["new"] < 40 < r["tokens"]["history"], r
    return r, text_of(response)


def killed_and_restarted():
    with Scratch() as data:
        d = Daemon(data)
        c = begin(d)
        d.kill()
        d.start()
        r, _ = ask(d, c)
        assert r["tokens"]["disk"] == r["tokens"]["history"] and r["bytes"]["read"] > 0, r
        assert d.stop()[0] == 0


def evicted_to_ram():
    with Scratch() as data:
        d = Daemon(data)
        c = begin(d)
        d.ok("POST", f"/v1/conversations/{c}/evict", {"to": "ram"})
        r, _ = ask(d, c)
        assert r["tokens"]["ram"] == r["tokens"]["history"] and r["bytes"]["read"] == 0, r
        assert d.stop()[0] == 0


def evicted_to_disk():
    with Scratch() as data:
        d = Daemon(data)
        c = begin(d)
        d.ok("POST", f"/v1/conversations/{c}/evict", {"to": "disk"})
        r, _ = ask(d, c)
        assert r["tokens"]["disk"] == r["tokens"]["history"] and r["bytes"]["read"] > 0, r
        assert d.stop()[0] == 0


def regenerated_and_forked():
    with Scratch() as data:
        d = Daemon(data)
        c = begin(d)
        responses = d.ok("GET", f"/v1/conversations/{c}/items?limit=100&order=asc")["data"]
        assert len([i for i in responses if i.get("role") == "assistant"]) == 3, responses
        last = d.turn("And one river?", conversation=c)
        parent = last["previous_response_id"] or last["convod"].get("parent")
        if parent:
            again = d.turn("And one river?", conversation=c, convod={"parent": parent})
            t = check_receipt(again)["tokens"]
            assert t["prefilled"] <= 1, t
            assert text_of(again) == text_of(last)
        d.stop()


def same_answer_from_every_tier():
    """Sampled with a seed: the answer after a restore is the answer of a conversation that never left."""
    answers = []
    for leave in (None, "ram", "disk", "kill"):
        with Scratch() as data:
            d = Daemon(data)
            c = begin(d)
            if leave == "kill":
                d.kill()
                d.start()
            elif leave:
                d.ok("POST", f"/v1/conversations/{c}/evict", {"to": leave})
            response = d.turn("Tell me a story about it.", conversation=c, temperature=1.0, convod={"seed": 7}, max_output_tokens=40)
            answers.append(text_of(response))
            d.stop()
    assert len(set(answers)) == 1, answers


need(QWEN)
run(killed_and_restarted, evicted_to_ram, evicted_to_disk, regenerated_and_forked, same_answer_from_every_tier)
