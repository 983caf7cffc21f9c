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
        third = d.ok("GET", f"/v1/conversations/{c}")["convod"]["head"]
        last = d.turn("And one river?", conversation=c)
        for leave in (None, "ram", "disk"):
            if leave:
                d.settle()
                d.ok("POST", f"/v1/conversations/{c}/evict", {"to": leave})
            again = d.turn("And one river?", conversation=c, convod={"parent": third})
            r = check_receipt(again)
            assert r["reprefilled"] == [{"tokens": 1, "reason": "logits"}] and r["tokens"]["new"] == 0, (leave, r)
            assert text_of(again) == text_of(last)
        # An edit: what both branches share is not prefilled.
        r = check_receipt(d.turn("And one mountain?", conversation=c, convod={"parent": third}))
        assert r["reprefilled"] == [] and r["tokens"]["prefilled"] < 20 < r["tokens"]["history"], r
        d.stop()


def chained_by_response_id():
    with Scratch() as data:
        d = Daemon(data)
        first = d.turn("My dog is called Biscuit.")
        d.settle()
        d.kill()
        d.start()
        second = d.turn("What is my dog called?", previous_response_id=first["id"])
        r = check_receipt(second)
        assert r["reprefilled"] == [] and r["tokens"]["disk"] == r["tokens"]["history"] > 0, r
        assert "Biscuit" in text_of(second), text_of(second)
        # Two branches from one response: the second finds what they share.
        other = check_receipt(d.turn("Is a dog an animal?", previous_response_id=first["id"]))
        assert other["reprefilled"] == [] and other["tokens"]["history"] >= r["tokens"]["history"], other
        d.stop()


def instructions_change_the_past():
    with Scratch() as data:
        d = Daemon(data)
        first = d.turn("Name one colour.", instructions="You are a painter.")
        same = check_receipt(d.turn("Another.", previous_response_id=first["id"], instructions="You are a painter."))
        assert same["reprefilled"] == [], same
        other = check_receipt(d.turn("Another.", previous_response_id=first["id"], instructions="You are a sailor."))
        assert [x["reason"] for x in other["reprefilled"]] == ["instructions_changed"], other
        d.stop()


def chat_completions_do_not_prefill_history():
    with Scratch() as data:
        d = Daemon(data)
        messages = [{"role": "system", "content": "You answer briefly."}]
        for i, text in enumerate(("I live in Tromso.", "What is 2 plus 3?", "Where do I live?")):
            messages.append({"role": "user", "content": text})
            body = {"messages": messages, "temperature": 0, "max_tokens": 24}
            a = d.ok("POST", "/v1/chat/completions", body)
            messages.append({"role": "assistant", "content": a["choices"][0]["message"]["content"]})
            usage = a["usage"]
            fresh = usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
            assert fresh < 30 if i else fresh > 0, usage
            d.settle()
            if i == 1:
                d.kill()
                d.start()
        assert "Troms" in messages[-1]["content"], messages
        assert d.ok("GET", "/v1/conversations")["data"] == []
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
run(killed_and_restarted, evicted_to_ram, evicted_to_disk, regenerated_and_forked, chained_by_response_id, instructions_change_the_past, chat_completions_do_not_prefill_history, same_answer_from_every_tier)
