#!/usr/bin/env python3
"""Branches of a conversation, with the openai package where it has them: single items, the last one deleted, forks, answers made again and
questions asked anew. Whatever is there already is not prefilled again, at every length around a segment's, also when it is cold. The model
is random: what it writes are not the tokens that its text would give, so only the ledger's can be used again."""

import concurrent.futures
import os
import socket
import subprocess
import sys

from daemon import MAKER, Daemon, Prefilled, Scratch, check_receipt, client_of, made_model, need, run, text_of

LIMITS = {"max_output_tokens": 8, "convod": {"seed": 5}, "temperature": 1}

try:
    import openai
except ImportError as e:
    print(f"skip: {e}")
    sys.exit(77)


def daemon(data, context=1024):
    return Daemon(data, model=made_model(data, context))


def turn(d, text, **fields):
    return d.ok("POST", "/v1/responses", {"input": text, **LIMITS, **fields})


def only_new(response, most=None):
    r = check_receipt(response)
    assert r["reprefilled"] == [] and r["tokens"]["prefilled"] == r["tokens"]["new"], r
    assert most is None or r["tokens"]["new"] <= most, r
    return r


def items(d, c):
    return d.ok("GET", f"/v1/conversations/{c}/items?order=asc&limit=100")["data"]


def says(item):
    return [item["role"], item["content"][0]["text"]]


def text_of_length(d, tokens, **fields):
    """A message with which the context has so many tokens."""
    count = lambda text: d.ok("POST", "/v1/responses/input_tokens", {"input": text, **fields})["input_tokens"]  # noqa: E731
    least = count("x")
    assert least <= tokens, (least, tokens)
    text = "x" * max(1, tokens - least)
    while count(text) < tokens:
        text += "x"
    assert count(text) == tokens, (count(text), tokens)
    return text


def single_items():
    with Scratch() as data:
        d = daemon(data)
        c = client_of(d)
        conversation = c.conversations.create().id
        first, second = turn(d, "one", conversation=conversation), turn(d, "two", conversation=conversation)
        every = items(d, conversation)
        assert [i["role"] for i in every] == ["user", "assistant"] * 2
        for item in every:
            assert c.conversations.items.retrieve(item["id"], conversation_id=conversation).to_dict() == item
        other = c.conversations.create().id
        for ids in ((every[0]["id"], other), ("msg_none", conversation), (every[0]["id"], "conv_none")):
            try:
                c.conversations.items.retrieve(ids[0], conversation_id=ids[1])
                raise AssertionError("an item was found where it is not")
            except openai.NotFoundError:
                pass
        # Only the last item can go.
        try:
            c.conversations.items.delete(every[1]["id"], conversation_id=conversation)
            raise AssertionError("an item in the middle was deleted")
        except openai.BadRequestError as e:
            assert e.param == "item_id", e
        # An answer; then the question; then all that is left.
        gone = c.conversations.items.delete(every[3]["id"], conversation_id=conversation)
        assert gone.id == conversation, gone
        left = items(d, conversation)
        assert [says(i) for i in left] == [says(i) for i in every[:3]]
        assert d.call("GET", f"/v1/responses/{second['id']}")[0] == 404
        head = d.ok("GET", f"/v1/conversations/{conversation}")["convod"]["head"]
        assert d.ok("GET", f"/v1/responses/{head}")["convod"]["tokens"]["prefilled"] == 0
        c.conversations.items.delete(left[2]["id"], conversation_id=conversation)
        assert [i["id"] for i in items(d, conversation)] == [i["id"] for i in every[:2]]
        assert d.ok("GET", f"/v1/conversations/{conversation}")["convod"]["head"] == first["id"]
        only_new(turn(d, "three", conversation=conversation))
        for item in reversed(items(d, conversation)):
            last = items(d, conversation)[-1]
            c.conversations.items.delete(last["id"], conversation_id=conversation)
        assert items(d, conversation) == [] and d.call("DELETE", f"/v1/conversations/{conversation}/items/{item['id']}")[0] == 404
        assert d.stop()[0] == 0


def forks():
    with Scratch() as data:
        d = daemon(data)
        c = d.conversation(title="kites", instructions="Be kind.", metadata={"a": "b"})
        for text in ("one", "two", "three"):
            turn(d, text, conversation=c)
        every = items(d, c)
        status, refused = d.call("POST", f"/v1/conversations/{c}/fork", {"item": "msg_none"})
        assert status == 404 and refused["error"]["code"] == "item_not_found" and refused["error"]["param"] == "item", refused
        assert d.call("POST", f"/v1/conversations/{d.conversation()}/fork", {})[0] == 400
        assert d.call("POST", "/v1/conversations/conv_none/fork", {})[0] == 404
        made = []
        for i, item in enumerate(every):
            f = d.ok("POST", f"/v1/conversations/{c}/fork", {"item": item["id"], "title": f"fork {i}"})
            assert f["convod"]["title"] == f"fork {i}" and f["convod"]["instructions"] == "Be kind." and f["metadata"] == {"a": "b"}, f
            copies = items(d, f["id"])
            assert [says(x) for x in copies] == [says(x) for x in every[: i + 1]]
            assert not {x["id"] for x in copies} & {x["id"] for x in every}
            head = d.ok("GET", f"/v1/conversations/{f['id']}")["convod"]["head"]
            receipt = d.ok("GET", f"/v1/responses/{head}")["convod"]
            if i % 2:  # behind an answer nothing is new but its closing
                assert receipt["tokens"]["prefilled"] <= 4 and receipt["reprefilled"] == [], receipt
            made.append(f["id"])
        whole = d.ok("POST", f"/v1/conversations/{c}/fork", {})
        assert whole["convod"]["title"] == "kites" and len(items(d, whole["id"])) == 6
        # A key is of one conversation's fork, and finds it also when the conversation has gone.
        second, key = d.conversation(items=[{"role": "user", "content": "x"}]), {"Idempotency-Key": "one"}
        keyed = d.call("POST", f"/v1/conversations/{c}/fork", {}, key)[1]
        status, refused = d.call("POST", f"/v1/conversations/{second}/fork", {}, key)
        assert status == 400 and refused["error"]["code"] == "idempotency_key_reused", refused
        d.settle()
        # What it was made from may go: the fork stands on its own, cold as well.
        assert d.ok("DELETE", f"/v1/conversations/{c}")["deleted"]
        assert d.call("POST", f"/v1/conversations/{c}/fork", {}, key)[1]["id"] == keyed["id"]
        assert d.stop()[0] == 0
        d.start()
        r = only_new(turn(d, "four", conversation=whole["id"]), 40)
        assert r["tokens"]["disk"] == r["tokens"]["history"] > 0, r
        for f in made:
            only_new(turn(d, "go on", conversation=f))
        assert d.stop()[0] == 0


def rows(d, c):
    return [(x["input"], x["output"], x["status"]) for x in d.ok("GET", f"/v1/conversations/{c}/responses?limit=100")["data"]]


def again(d, c, row, text):
    """Another answer to a question, which stays what was asked last."""
    r = check_receipt(turn(d, text, conversation=c, convod={"seed": 9, "parent": row["parent"]}))
    assert r["tokens"]["prefilled"] == 1 and r["tokens"]["new"] == 0 and [x["reason"] for x in r["reprefilled"]] == ["logits"], r


def forks_have_every_exchange():
    """Each is a response of the copy: it can be taken back, asked again and followed, also when what it was copied from has gone."""
    with Scratch() as data:
        d = daemon(data)
        least = d.ok("POST", "/v1/responses/input_tokens", {"input": "x"})["input_tokens"]
        for tokens in (least, 255, 256, 257):
            first, second = text_of_length(d, tokens), "y" * 200  # the second one ends behind another segment
            c = d.conversation(title="kites")
            for text in (first, second, "three"):
                turn(d, text, conversation=c)
            every = d.ok("GET", f"/v1/conversations/{c}/responses")["data"]
            # What stands beside the way to the end is not copied, and nothing of it is kept.
            turn(d, "beside " * 30, conversation=c, convod={"seed": 5, "parent": every[1]["id"]})
            d.ok("POST", f"/v1/conversations/{c}", {"convod": {"head": every[2]["id"]}})
            d.settle()
            counted = Prefilled(d, 0)
            whole = d.ok("POST", f"/v1/conversations/{c}/fork", {})
            assert counted.next() in ((n, 0) for n in range(5))  # the end of the last answer alone
            part = d.ok("POST", f"/v1/conversations/{c}/fork", {"item": items(d, c)[3]["id"]})
            asked = d.ok("POST", f"/v1/conversations/{c}/fork", {"item": items(d, c)[4]["id"]})
            last = turn(d, "and here?", conversation=part["id"])
            assert whole["convod"]["turns"] in (0, 3) and rows(d, whole["id"])[:2] == rows(d, c)[:2] == rows(d, asked["id"])[:2]
            d.settle()
            for gone in (False, True):
                if gone:
                    d.ok("DELETE", f"/v1/conversations/{c}")
                    for f in (whole, part, asked):
                        d.ok("POST", f"/v1/conversations/{f['id']}/evict", {"to": "disk"})
                for f, texts in ((whole, (first, second, "three")), (part, (first, second)), (asked, (first, second, "three"))):
                    made = d.ok("GET", f"/v1/conversations/{f['id']}/responses?limit=100")["data"][: len(texts)]
                    assert [x["parent"] for x in made] == [""] + [x["id"] for x in made[:-1]], made
                    assert not {x["id"] for x in made} & {x["id"] for x in every}
                    receipt = d.ok("GET", f"/v1/responses/{made[0]['id']}")["convod"]
                    assert receipt["conversation"] == f["id"] and receipt["saved"] == "yes", receipt
                    for row, text in zip(made, texts):
                        assert row["input"] == text[:200], (row, text)
                        if f is not asked or row is not made[-1]:
                            again(d, f["id"], row, text)
                        d.ok("POST", f"/v1/conversations/{f['id']}", {"convod": {"head": row["id"]}})
                        assert d.ok("GET", f"/v1/conversations/{f['id']}")["convod"]["turns"] == made.index(row) + 1
                        if f is not asked or row is not made[-1]:
                            only_new(turn(d, f"from {f['id']} {gone}", conversation=f["id"]), 70)
                    d.settle()
            assert d.ok("GET", f"/v1/responses/{last['id']}")["status"] == last["status"]
        d.stop()


def beside_a_hot_branch():
    """A question that was asked behind the same before, and left the pages since, where another branch is in them."""
    with Scratch() as data:
        d = daemon(data)
        c = d.conversation()
        first, second = turn(d, "one", conversation=c), turn(d, "y" * 200, conversation=c)
        d.settle()
        d.ok("POST", f"/v1/conversations/{c}/evict", {"to": "disk"})
        only_new(turn(d, "another way", conversation=c, convod={"seed": 5, "parent": first["id"]}))
        again(d, c, {"parent": first["id"]}, "y" * 200)
        assert d.ok("GET", f"/v1/responses/{second['id']}")["status"] == second["status"]
        d.stop()


def around_a_segment():
    """Forks, answers made again and questions asked anew behind contexts of every length that matters."""
    with Scratch() as data:
        d = daemon(data)
        least = d.ok("POST", "/v1/responses/input_tokens", {"input": "x"})["input_tokens"]
        for tokens in (least, 255, 256, 257, 512, 513):
            c = d.conversation()
            first = turn(d, text_of_length(d, tokens), conversation=c)
            assert first["usage"]["input_tokens"] == tokens
            d.settle()
            for cold in (False, True):
                if cold:
                    d.ok("POST", f"/v1/conversations/{c}/evict", {"to": "disk"})
                again = turn(d, text_of_length(d, tokens), conversation=c, convod={"seed": 6, "parent": ""})
                r = check_receipt(again)
                assert r["tokens"]["prefilled"] - r["tokens"]["new"] <= 1 and {x["reason"] for x in r["reprefilled"]} <= {"logits"}, r
                d.settle()
                fork = d.ok("POST", f"/v1/conversations/{c}/fork", {})["id"]
                only_new(turn(d, f"fork {cold}", conversation=fork), 40)
                only_new(turn(d, f"go on {cold}", conversation=c), 40)
                d.ok("POST", f"/v1/conversations/{c}", {"convod": {"head": first["id"]}})
                edited = only_new(turn(d, f"another way {cold}", conversation=c), 40)
                assert edited["tokens"]["history"] >= tokens, edited
                d.settle()
        assert d.stop()[0] == 0


def all_responses():
    with Scratch() as data:
        d = daemon(data)
        c = d.conversation()
        first = turn(d, "one " * 100, conversation=c)
        second = turn(d, "two", conversation=c)
        other = turn(d, "other", conversation=c, convod={"parent": first["id"], "seed": 5})
        root = turn(d, "root", conversation=c, convod={"parent": "", "seed": 5})
        page = d.ok("GET", f"/v1/conversations/{c}/responses")
        assert [r["id"] for r in page["data"]] == [x["id"] for x in (first, second, other, root)] and not page["has_more"], page
        assert [r["parent"] for r in page["data"]] == ["", first["id"], first["id"], ""] and page["head"] == root["id"], page
        assert page["data"][0]["input"] == ("one " * 100)[:200] and page["data"][1]["input"] == "two"
        assert page["data"][2]["output"] == text_of(other)[:200] and page["data"][2]["status"] == other["status"]
        rest = d.ok("GET", f"/v1/conversations/{c}/responses?limit=2&after={second['id']}")
        assert [r["id"] for r in rest["data"]] == [other["id"], root["id"]] and rest["has_more"] is False, rest
        assert d.ok("GET", f"/v1/conversations/{c}/responses?limit=2")["has_more"] is True
        assert d.call("GET", f"/v1/conversations/{c}/responses?after=resp_none")[0] == 400
        # One branch goes, and nothing of the others; what others follow stays.
        status, refused = d.call("DELETE", f"/v1/responses/{first['id']}")
        assert status == 400 and (refused["error"]["code"], refused["error"]["param"]) == ("response_in_use", "id"), refused
        d.ok("DELETE", f"/v1/responses/{other['id']}")
        assert len(d.ok("GET", f"/v1/conversations/{c}/responses")["data"]) == 3
        d.settle()
        d.ok("POST", f"/v1/conversations/{c}/evict", {"to": "disk"})
        only_new(turn(d, "go on", conversation=c, convod={"parent": second["id"], "seed": 5}), 60)
        assert d.stop()[0] == 0


def answers_put_otherwise():
    """An answer as somebody would have had it, in the place of what the model wrote, which stays beside it."""
    with Scratch() as data:
        d = daemon(data)
        c, question = d.conversation(), "what else " * 30
        first = turn(d, "one " * 40, conversation=c)
        second = turn(d, question, conversation=c)
        new = Prefilled(d, 40)

        def answered(answer, parent, asked, evicted):
            d.settle()
            if evicted:
                d.ok("POST", f"/v1/conversations/{c}/evict", {"to": "disk"})
            new.next()
            said = [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
            added = d.ok("POST", f"/v1/conversations/{c}/items", {"items": said, "convod": {"parent": parent}})["data"]
            new.check(first=False)
            assert [says(i) for i in added] == [[i["role"], i["content"]] for i in said], added
            follows = only_new(turn(d, "go on", conversation=c), 40)
            assert [says(i) for i in items(d, c)][-4:-2] == [[i["role"], i["content"]] for i in said], items(d, c)
            new.next()
            return follows

        for evicted in False, True:
            answered(f"this, {evicted}", first["id"], question, evicted)
            assert len(items(d, c)) == 6
            answered(f"that, {evicted}", "", "one " * 40, evicted)
            assert len(items(d, c)) == 4
        d.ok("POST", f"/v1/conversations/{c}", {"convod": {"head": second["id"]}})
        assert says(items(d, c)[-1]) == ["assistant", text_of(second)]
        other = turn(d, "x", conversation=d.conversation())
        for parent, code in (("x", "invalid_value"), (5, "invalid_type"), ("resp_none", "previous_response_not_found"), (other["id"], "previous_response_not_found")):
            status, refused = d.call("POST", f"/v1/conversations/{c}/items", {"items": [{"role": "user", "content": "x"}], "convod": {"parent": parent}})
            assert (status, refused["error"]["code"], refused["error"]["param"]) == (400, code, "convod.parent"), refused
        assert d.stop()[0] == 0


def chained_in_a_conversation():
    """A response is shown later as its events showed it: by what it named."""
    with Scratch() as data:
        d = daemon(data)
        c = d.conversation()
        first = turn(d, "one", conversation=c)
        chained = turn(d, "two", previous_response_id=first["id"])
        for response, previous, conversation in ((first, None, {"id": c}), (chained, first["id"], None)):
            for shown in (response, d.ok("GET", f"/v1/responses/{response['id']}")):
                assert (shown["previous_response_id"], shown["conversation"]) == (previous, conversation), shown
        assert d.ok("GET", f"/v1/conversations/{c}")["convod"]["head"] == chained["id"]
        assert d.stop()[0] == 0


def deleted_for_good():
    """The last item goes also where who asked does not wait, and from before a response that others follow."""
    with Scratch() as data:
        d = daemon(data)
        c = d.conversation()
        turn(d, "one", conversation=c)
        every = items(d, c)
        with socket.create_connection((d.address, d.port)) as s:
            s.sendall(f"DELETE /v1/conversations/{c}/items/{every[1]['id']} HTTP/1.1\r\nHost: {d.address}\r\n\r\n".encode())
        while len(items(d, c)) > 1:
            pass
        responses = d.ok("GET", f"/v1/conversations/{c}/responses")["data"]
        assert len(responses) == 1 and responses[0]["input"] == "one" and responses[0]["output"] is None, responses
        # One of a single item, which is followed: it stays for those, and the conversation ends before it.
        turn(d, "two", conversation=c)
        d.ok("POST", f"/v1/conversations/{c}", {"convod": {"head": responses[0]["id"]}})
        (left,) = items(d, c)
        d.ok("DELETE", f"/v1/conversations/{c}/items/{left['id']}")
        assert items(d, c) == []
        assert d.call("GET", f"/v1/responses/{responses[0]['id']}")[0] == 200
        assert d.stop()[0] == 0


def made_once():
    """The same request with one key, on several connections at once: one conversation, and in it its items once."""
    with Scratch() as data, concurrent.futures.ThreadPoolExecutor(6) as pool:
        d = daemon(data)
        source = d.ok("POST", "/v1/conversations", {"items": [{"role": "user", "content": "one"}, {"role": "user", "content": "two"}]})["id"]
        for n in range(4):
            key = {"Idempotency-Key": f"key {n}"}
            body = {"items": [{"role": "user", "content": f"{n} {i}"} for i in range(3)]}
            path, wanted = ("/v1/conversations", 3) if n % 2 == 0 else (f"/v1/conversations/{source}/fork", 2)
            made = list(pool.map(lambda _: d.call("POST", path, body if n % 2 == 0 else {}, key), range(6)))  # noqa: B023
            assert {status for status, _ in made} == {200}, made
            (c,) = {answer["id"] for _, answer in made}
            assert len(items(d, c)) == wanted, (path, items(d, c))
            assert len(d.ok("GET", f"/v1/conversations/{c}/responses")["data"]) == 1
        assert d.stop()[0] == 0


def again_at_8k():
    """An answer made again behind a long context runs its last token alone."""
    with Scratch() as data:
        d = daemon(data, 8192)
        c = d.conversation()
        text = text_of_length(d, 8000)
        turn(d, text, conversation=c)
        d.settle()
        for cold in (False, True):
            if cold:
                d.ok("POST", f"/v1/conversations/{c}/evict", {"to": "disk"})
            r = check_receipt(turn(d, text, conversation=c, convod={"seed": 7, "parent": ""}))
            assert r["tokens"]["prefilled"] == 1 and [x["reason"] for x in r["reprefilled"]] == ["logits"], r
        assert d.stop()[0] == 0


def cut_answers_go_on():
    """By their tokens: the whole is what would have been written at once, only its last token is read again, and the cut one is gone."""
    with Scratch() as data:
        d = daemon(data)
        limits = {**LIMITS, "max_output_tokens": 40}
        c = d.conversation(instructions="Be brief.")
        turn(d, "First.", conversation=c)
        parent = d.ok("GET", f"/v1/conversations/{c}")["convod"]["head"]
        whole = d.ok("POST", "/v1/responses", {"input": "Go.", **limits, "conversation": c})
        cut = turn(d, "Go.", conversation=c, convod={"seed": 5, "parent": parent})
        assert cut["status"] == "incomplete" and cut["incomplete_details"]["reason"] == "max_output_tokens", cut
        d.settle()
        d.kill()
        d.start()
        more = d.ok("POST", "/v1/responses", {**LIMITS, "max_output_tokens": 16, "convod": {"seed": 5, "continue": cut["id"]}})
        r = check_receipt(more)
        assert r["tokens"]["prefilled"] == 1 and r["tokens"]["disk"] > 0 and r["tokens"]["output"] == more["usage"]["output_tokens"] == 16, r
        assert d.call("GET", f"/v1/responses/{cut['id']}")[0] == 404
        assert [says(i)[0] for i in items(d, c)] == ["user", "assistant"] * 2, items(d, c)
        c2 = client_of(d)
        stream = c2.responses.create(extra_body={"convod": {"seed": 5, "continue": more["id"]}}, temperature=1, max_output_tokens=16, stream=True)
        events = list(stream)
        last = events[-1].response.to_dict()
        assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == text_of(last) == text_of(whole), (last, whole)
        only_new(last, 1)  # its last token was picked, and never read
        assert d.ok("GET", f"/v1/conversations/{c}")["convod"]["head"] == last["id"]
        assert says(items(d, c)[-1]) == ["assistant", text_of(whole)]
        only_new(turn(d, "And?", conversation=c), 30)
        # What others follow stays; the one that goes on stands beside it.
        beside = d.ok("POST", "/v1/responses", {**LIMITS, "convod": {"seed": 5, "continue": last["id"]}})
        check_receipt(beside)
        assert d.ok("GET", f"/v1/responses/{last['id']}")["status"] == "incomplete" and text_of(beside).startswith(text_of(whole)[:20])
        # Of a chain without a conversation.
        chain = turn(d, "Alone.")
        chained = d.ok("POST", "/v1/responses", {**LIMITS, "convod": {"seed": 5, "continue": chain["id"]}})
        assert chained["usage"]["input_tokens"] == chain["usage"]["input_tokens"] + 8, (chain, chained)
        for body, param in (
            ({"input": "x", "convod": {"continue": last["id"]}}, "input"),
            ({"conversation": c, "convod": {"continue": last["id"]}}, "conversation"),
            ({"store": False, "convod": {"continue": last["id"]}}, "store"),
            ({"convod": {"continue": "resp_none"}}, None),
            ({"convod": {"continue": "x"}}, "convod.continue"),
        ):
            status, answer = d.call("POST", "/v1/responses", body)
            assert status == 400 and answer["error"]["param"] == param or (param is None and status == 400), answer
        assert d.stop()[0] == 0


need(MAKER)
run(single_items, forks, forks_have_every_exchange, beside_a_hot_branch, around_a_segment, all_responses, answers_put_otherwise, chained_in_a_conversation, deleted_for_good, made_once, cut_answers_go_on, again_at_8k)
