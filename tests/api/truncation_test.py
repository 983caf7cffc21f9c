#!/usr/bin/env python3
"""A conversation that has become too long: refused with counts, or, with truncation auto, without its oldest turns from then on."""

import sys

from daemon import QWEN, Daemon, Scratch, check_receipt, client_of, need, run, text_of

try:
    import openai
except ImportError as e:
    print(f"skip: {e}")
    sys.exit(77)

CTX = 512
ASK = {"model": "default", "temperature": 0, "max_output_tokens": 8}


def fill(d, conversation):
    """Turns of some 70 tokens until the next one would not fit. Returns the last response."""
    last = None
    for i in range(CTX):
        text = f"Number {i}: " + "the quick brown fox jumps over the lazy dog and again. " * 4 + "Say yes."
        status, answer = d.call("POST", "/v1/responses", {**ASK, "input": text, "conversation": conversation})
        if status != 200:
            assert answer["error"]["code"] == "context_length_exceeded" and f"{CTX - 1} fit" in answer["error"]["message"], answer
            return last, text, i
        last = answer
    raise AssertionError("it never was too long")


def oldest_go():
    with Scratch() as data:
        d = Daemon(data, args=["--ctx", str(CTX)])
        c = client_of(d)
        conversation = d.conversation()
        full, text, turns = fill(d, conversation)
        assert full["truncation"] == "disabled" and "truncated" not in full["convod"]
        assert d.ok("GET", f"/v1/conversations/{conversation}")["convod"]["head"] == full["id"]
        events = list(c.responses.create(**ASK, input=text, conversation=conversation, truncation="auto", stream=True))
        told = [e.to_dict() for e in events if e.type == "response.convod.progress"]
        answer = events[-1].response.to_dict()
        r = check_receipt(answer)
        assert answer["truncation"] == "auto" and answer["usage"]["input_tokens"] <= CTX // 2, answer["usage"]
        assert 0 < r["truncated"]["turns"] < turns and r["truncated"]["tokens"] > CTX // 4, r
        assert [(e["stage"], e["done"]) for e in told] == [("truncated", r["truncated"]["tokens"])], told
        assert {x["reason"] for x in r["reprefilled"]} == {"truncated"}, r
        assert [e.sequence_number for e in events] == list(range(len(events)))
        # Nothing left the conversation.
        items = d.ok("GET", f"/v1/conversations/{conversation}/items?limit=100&order=asc")["data"]
        assert len(items) == 2 * (turns + 1), len(items)
        # From here on only what is new is read, also after a restart.
        r = check_receipt(d.turn("And again?", conversation=conversation, max_output_tokens=4))
        assert r["reprefilled"] == [] and "truncated" not in r and r["tokens"]["history"] < CTX // 2 + 20, r
        d.settle()
        d.kill()
        d.start()
        r = check_receipt(d.turn("Once more?", conversation=conversation, max_output_tokens=4))
        assert r["reprefilled"] == [] and r["tokens"]["disk"] == r["tokens"]["history"] > 0, r
        # A past that is rendered anew is without them, too.
        r = check_receipt(d.turn("Yes?", conversation=conversation, max_output_tokens=4, instructions="Be kind."))
        assert r["tokens"]["history"] < CTX // 2 + 60, r
        assert {x["reason"] for x in r["reprefilled"]} <= {"instructions_changed", "logits"}, r
        stored = d.ok("GET", f"/v1/responses/{answer['id']}")
        assert stored["truncation"] == "auto" and stored["convod"]["truncated"] == answer["convod"]["truncated"], stored
        d.stop()


def summary():
    """It is of as much as fits, where that is asked for."""
    with Scratch() as data:
        d = Daemon(data, args=["--ctx", str(CTX)])
        conversation = d.conversation()
        fill(d, conversation)
        status, refused = d.call("POST", "/v1/responses/compact", {"conversation": conversation})
        assert status == 400 and refused["error"]["code"] == "context_length_exceeded", refused
        compacted = d.ok("POST", "/v1/responses/compact", {"conversation": conversation, "truncation": "auto"})
        assert compacted["convod"]["truncated"]["turns"] > 0 and [i["type"] for i in compacted["output"]] == ["compaction"], compacted
        d.stop()


def whole_histories():
    """Of a list that is too long the oldest turns go, never its instructions, its system message, or its last question; resent, it goes on."""
    with Scratch() as data:
        d = Daemon(data, args=["--ctx", str(CTX)])
        system = {"role": "system", "content": "You are called Merlin. Whoever asks for your name is told it."}
        history = [system]
        for i in range(12):
            history.append({"role": "user", "content": f"Number {i}: " + "the quick brown fox jumps over the lazy dog and again. " * 4})
            history.append({"role": "assistant", "content": f"Yes, {i}."})
        history.append({"role": "user", "content": "What is your name?"})
        ask = {**ASK, "input": history}
        status, refused = d.call("POST", "/v1/responses", ask)
        assert status == 400 and refused["error"]["code"] == "context_length_exceeded", refused
        counted = d.ok("POST", "/v1/responses/input_tokens", {**ask, "truncation": "auto"})["input_tokens"]
        answer = d.ok("POST", "/v1/responses", {**ask, "truncation": "auto"})
        r = check_receipt(answer)
        assert CTX // 4 < answer["usage"]["input_tokens"] == counted <= CTX // 2 and r["truncated"]["tokens"] > CTX, (counted, r)
        assert "Merlin" in text_of(answer), text_of(answer)
        more = [*history, {"role": "assistant", "content": text_of(answer)}, {"role": "user", "content": "Spell it."}]
        r = check_receipt(d.ok("POST", "/v1/responses", {**ASK, "input": more, "truncation": "auto"}))
        assert r["reprefilled"] == [] and "truncated" not in r and r["tokens"]["prefilled"] == r["tokens"]["new"] < 40, r
        # One message that does not fit has nothing to lose.
        status, refused = d.call("POST", "/v1/responses", {**ASK, "input": "fox and dog " * CTX, "truncation": "auto"})
        assert status == 400 and refused["error"]["code"] == "context_length_exceeded", refused
        try:
            client_of(d).responses.create(**ASK, input="x", truncation="some")
            raise AssertionError("an unknown truncation was taken")
        except openai.BadRequestError as e:
            assert e.param == "truncation", e
        d.stop()


need(QWEN)
run(oldest_go, summary, whole_histories)
