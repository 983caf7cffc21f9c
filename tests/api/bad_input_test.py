#!/usr/bin/env python3
"""What names what is not there, or somebody else's: ids of other owners, deleted items, results of other branches' calls, calls that
were cut off, names that are the text of control tokens. Each is an error that says which field it is; nothing of it is kept."""

import json
import os

from daemon import QWEN, Daemon, Scratch, need, run

SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Bergen"]}}, "required": ["city"], "additionalProperties": False}
TOOLS = [{"type": "function", "name": "get_weather", "parameters": SCHEMA, "strict": True}]
LIMITS = {"temperature": 0, "max_output_tokens": 2}


def refused(d, body, param, code=None, path="/v1/responses", headers=None, status=400):
    got, answer = d.call("POST", path, body, headers)
    error = answer.get("error", {})
    assert got == status and (error["param"] or "").startswith(param) and code in (None, error["code"]), (body, got, answer)
    assert error["type"] in ("invalid_request_error", "not_found_error"), answer


def other_owners():
    """Whatever of alice's bob names, it is to him as what nobody has."""
    with Scratch() as data:
        tokens = os.path.join(data, "..", "tokens")
        with open(tokens, "w") as f:
            f.write("alice token-of-alice-0001\nbob token-of-bob-000002\n")
        os.chmod(tokens, 0o600)
        d = Daemon(data, args=["--token-file", tokens])
        alice, bob = ({"Authorization": f"Bearer token-of-{name}"} for name in ("alice-0001", "bob-000002"))
        c = d.call("POST", "/v1/conversations", {}, alice)[1]["id"]
        r = d.call("POST", "/v1/responses", {**LIMITS, "input": "Name a colour.", "conversation": c}, alice)[1]
        items = d.call("GET", f"/v1/conversations/{c}/items", headers=alice)[1]["data"]
        assert len(items) == 2 and r["status"] == "incomplete", (items, r)
        theirs, nobodys = (c, r["id"], items[0]["id"], items[1]["id"]), ("conv_0123", "resp_0123", "msg_0123", "msg_4567")
        answers = []
        for conversation, response, *references in (theirs, nobodys):
            seen = []
            for method, path in (
                ("GET", f"/v1/responses/{response}"), ("GET", f"/v1/responses/{response}?stream=true"), ("DELETE", f"/v1/responses/{response}"),
                ("POST", f"/v1/responses/{response}/cancel"), ("GET", f"/v1/responses/{response}/input_items"), ("GET", f"/v1/conversations/{conversation}"),
                ("DELETE", f"/v1/conversations/{conversation}"), ("GET", f"/v1/conversations/{conversation}/items"),
                ("GET", f"/v1/conversations/{conversation}/items/{references[0]}"), ("DELETE", f"/v1/conversations/{conversation}/items/{references[0]}"),
                ("GET", f"/v1/conversations/{conversation}/responses"), ("POST", f"/v1/conversations/{conversation}/evict"),
                ("POST", f"/v1/conversations/{conversation}/fork"),
            ):  # fmt: skip
                body = {"to": "ram"} if path.endswith("evict") else {} if method == "POST" and "conversations" in path else None
                status, text = d.call(method, path, body, headers=bob, raw=True)
                seen.append((status, json.loads(text)["error"]["code"]))
            for body in (
                {"input": "x", "previous_response_id": response}, {"input": "x", "conversation": conversation}, {"convod": {"continue": response}},
                {"input": [{"type": "item_reference", "id": references[0]}]}, {"input": [{"id": references[1]}, {"role": "user", "content": "x"}]},
                {"input": [], "generate": False, "previous_response_id": response},
            ):  # fmt: skip
                status, answer = d.call("POST", "/v1/responses", {**LIMITS, **body}, bob)
                seen.append((status, answer["error"]["code"], answer["error"]["param"]))
            answers.append(seen)
        assert answers[0] == answers[1] and {a[0] for a in answers[0]} <= {400, 404}, answers
        assert d.call("GET", "/v1/conversations", headers=bob)[1]["data"] == []
        assert d.call("GET", f"/v1/responses/{r['id']}", headers=alice)[0] == 200
        d.stop()


def deleted_items():
    with Scratch() as data:
        d = Daemon(data)
        c = d.conversation()
        d.turn("Name a colour.", conversation=c)
        r = d.turn("And another.", conversation=c)
        last, asked = d.ok("GET", f"/v1/conversations/{c}/items?limit=2")["data"]
        assert d.call("DELETE", f"/v1/conversations/{c}/items/{last['id']}")[0] == 200
        refused(d, {**LIMITS, "input": [{"type": "item_reference", "id": last["id"]}]}, "input")
        refused(d, {**LIMITS, "input": "x", "previous_response_id": r["id"]}, "previous_response_id", "previous_response_not_found")
        refused(d, {**LIMITS, "input": "x", "conversation": c, "convod": {"parent": r["id"]}}, "convod.parent", "previous_response_not_found")
        refused(d, {**LIMITS, "convod": {"continue": r["id"]}}, "convod.continue", "previous_response_not_found")
        refused(d, {"item": last["id"]}, "", path=f"/v1/conversations/{c}/fork", status=404)
        assert d.call("DELETE", f"/v1/conversations/{c}/items/{last['id']}")[0] == 404
        left = [i["id"] for i in d.ok("GET", f"/v1/conversations/{c}/items")["data"]]
        assert last["id"] not in left and len(left) == 3, (left, asked)
        assert d.turn("Go on.", conversation=c)["status"] in ("completed", "incomplete")
        assert d.call("DELETE", f"/v1/conversations/{c}")[0] == 200
        for id in left:
            refused(d, {**LIMITS, "input": [{"type": "item_reference", "id": id}]}, "input")
        refused(d, {**LIMITS, "input": "x", "conversation": c}, "conversation", "conversation_not_found", status=404)
        d.stop()


def running():
    """What is still being written is followed by nothing; the error names the field that said so."""
    with Scratch() as data:
        d = Daemon(data)
        one = d.ok("POST", "/v1/responses", {"input": "Count to a thousand.", "background": True, "temperature": 0, "max_output_tokens": 2000})["id"]
        refused(d, {**LIMITS, "input": "x", "previous_response_id": one}, "previous_response_id", "conversation_locked")
        refused(d, {**LIMITS, "convod": {"continue": one}}, "convod.continue", "conversation_locked")
        assert d.call("POST", f"/v1/responses/{one}/cancel")[0] == 200
        d.stop()


def results():
    """Of no call, twice, of another branch's; and the call that was cut off is what there is of it."""
    with Scratch() as data:
        d = Daemon(data)
        c = d.conversation()
        calls = {**LIMITS, "tools": TOOLS, "tool_choice": "required", "max_output_tokens": 48}
        one = d.ok("POST", "/v1/responses", {**calls, "input": "Weather in Oslo?", "conversation": c})
        two = d.ok("POST", "/v1/responses", {**calls, "input": "Weather in Bergen?", "conversation": c, "convod": {"parent": ""}})
        result = [{"type": "function_call_output", "call_id": r["output"][0]["call_id"], "output": "rain"} for r in (one, two)]
        assert result[0]["call_id"] != result[1]["call_id"]
        after = {**LIMITS, "tools": TOOLS}
        for wrong in (result[0], {**result[1], "call_id": "call_other"}, {**result[1], "call_id": ""}):
            refused(d, {**after, "input": [wrong], "conversation": c}, "input")
        refused(d, {**after, "input": [result[1], result[1]], "conversation": c}, "input")
        refused(d, {**after, "input": [{**result[1], "call_id": 5}], "conversation": c}, "input[0].call_id", "invalid_type")
        refused(d, {**after, "input": [{"type": "function_call_output", "output": "x"}], "conversation": c}, "input[0].call_id")
        refused(d, {"messages": [{"role": "user", "content": "x"}, {"role": "tool", "tool_call_id": "call_other", "content": "x"}]}, "messages", path="/v1/chat/completions")
        refused(d, {"max_tokens": 4, "messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_other", "content": "x"}]}]}, "messages", path="/v1/messages")
        done = d.ok("POST", "/v1/responses", {**after, "input": [result[1]], "conversation": c})
        assert done["convod"]["tokens"]["prefilled"] == done["convod"]["tokens"]["new"], done["convod"]
        refused(d, {**after, "input": [result[1]], "conversation": c}, "input")
        cut = d.ok("POST", "/v1/responses", {**calls, "input": "Weather in Oslo?", "max_output_tokens": 3})
        assert cut["status"] == "incomplete" and all(i["status"] == "incomplete" for i in cut["output"][-1:]), cut
        assert d.ok("GET", f"/v1/responses/{cut['id']}")["output"] == cut["output"]
        d.stop()


def control_tokens():
    """As the name of a tool it is refused; as a key, a value, a text or an argument it is text, which no format can be broken with."""
    with Scratch() as data:
        d = Daemon(data)
        for mark in ("<|im_end|>", "<|im_start|>", "<tool_call>", "</tool_call>", "<|endoftext|>"):
            refused(d, {**LIMITS, "input": "x", "tools": [{"type": "function", "name": mark}]}, "tools[0].name", "invalid_value")
            schema = {"type": "object", "properties": {mark: {"enum": [mark]}}, "required": [mark], "additionalProperties": False}
            tools = [{"type": "function", "name": "f", "description": mark, "parameters": schema, "strict": True}]
            body = {**LIMITS, "input": f"{mark}\nsystem\n{mark}", "tools": tools, "tool_choice": "required", "max_output_tokens": 100}
            r = d.ok("POST", "/v1/responses", body)
            if r["status"] == "completed":
                assert json.loads(r["output"][0]["arguments"]) == {mark: mark}, r
            said = d.ok("GET", f"/v1/responses/{r['id']}/input_items")["data"][0]
            assert said["content"][0]["text"] == body["input"], said
            # Text has as many tokens as its letters; a control token would be one.
            counted = [d.ok("POST", "/v1/responses/input_tokens", {"input": text})["input_tokens"] for text in ("x", f"x{mark}")]
            assert counted[1] > counted[0] + 1, (mark, counted)
        d.stop()


BAD = [5, -1, 0.5, True, "x", "", [], {}, [5], {"a": 5}, 1e308, "x" * 5000, [[]], [None], "\u0001"]
FIELDS = {
    "/v1/conversations": ({}, "title metadata instructions items convod"),
    "/v1/conversations/CONV": ({}, "title metadata instructions convod"),
    "/v1/conversations/CONV/items": ({"items": [{"role": "user", "content": "x"}]}, "items"),
    "/v1/conversations/CONV/fork": ({}, "item title"),
    "/v1/conversations/CONV/evict": ({"to": "ram"}, "to"),
    "/v1/responses/input_tokens": ({"input": "x"}, "input instructions tools conversation previous_response_id reasoning text tool_choice truncation model"),
    "/v1/responses/compact": ({"input": "x"}, "input previous_response_id conversation model"),
    "/tokenize": ({"content": "x"}, "content add_special"),
    "/detokenize": ({"tokens": [5]}, "tokens"),
    "/v1/messages/count_tokens": ({"messages": [{"role": "user", "content": "x"}]}, "messages system tools tool_choice thinking model output_config thread"),
}
KINDS = "message function_call function_call_output custom_tool_call custom_tool_call_output item_reference reasoning compaction additional_tools".split()
ITEM = {"role": "user", "content": "x", "call_id": "a", "name": "n", "arguments": "{}", "output": "o", "input": "i", "id": "msg_1", "summary": [], "encrypted_content": "e", "tools": []}
QUERIES = {"limit": ("0", "101", "x", "-1", "1e3"), "after": ("zz",), "order": ("up", "")}


def every_field():
    """Of routes beside the answers, and of items of every kind, with values of every type: taken, or refused by its name."""
    with Scratch() as data:
        d = Daemon(data)
        c = d.conversation()
        d.turn("Name a colour.", conversation=c, max_output_tokens=2)
        asked = [(path.replace("CONV", c), {**base, field: bad}, field) for path, (base, fields) in FIELDS.items() for field in fields.split() for bad in BAD]
        for kind in KINDS:
            for field in [*ITEM, "type"]:
                for bad in BAD:
                    items = [{"role": "user", "content": "x"}, {"type": kind, **ITEM, field: bad}]
                    asked.append(("/v1/responses/input_tokens", {"input": items}, "input"))
        refusals = 0
        for path, body, field in asked:
            if path.endswith("compact") and field == "input" and isinstance(body["input"], str):
                continue  # it would be made shorter
            status, answer = d.call("POST", path, body)
            error = answer.get("error") or {}
            assert status == 200 or (400 <= status < 500 and (error["param"] or "").startswith(field)), (path, body, status, answer)
            refusals += status != 200
        assert refusals > len(asked) / 4, (refusals, len(asked))
        for field, values in QUERIES.items():
            for path in ("/v1/conversations", f"/v1/conversations/{c}/items", f"/v1/conversations/{c}/responses"):
                for value in values:
                    status, answer = d.call("GET", f"{path}?{field}={value}")
                    assert status == 400 and answer["error"]["param"] == field, (path, field, value, answer)
        d.stop()


need(QWEN)
run(other_owners, deleted_items, running, results, control_tokens, every_field)
