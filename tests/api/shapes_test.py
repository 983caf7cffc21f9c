#!/usr/bin/env python3
"""Requests in the shape in which chat pages, editors and agents send them, written from their public sources: three turns each. What a
turn prefills is what is new, but for what the client itself changes in the past, which is asserted as well."""

import json
import sys

from daemon import QWEN, Daemon, Scratch, need, run

try:
    import websockets.sync.client
except ImportError as e:
    print(f"skip: {e}")
    sys.exit(77)

NEW = 90  # tokens that a turn below brings, at most
SCHEMA = {"type": "object", "properties": {"path": {"type": "string", "maxLength": 12}}, "required": ["path"], "additionalProperties": False}
QUESTIONS = ["Name a colour.", "And another one.", "Which of the two is darker?"]


def events_of(text):
    return [json.loads(line[6:]) for line in text.decode().splitlines() if line.startswith("data: {")]


def receipt_of(events):
    """The last one that was told."""
    found = None
    for e in events:
        for holder in (e, e.get("response") or {}):
            if isinstance(holder.get("convod"), dict) and "tokens" in holder["convod"]:
                found = holder["convod"]
    assert found, events[-2:]
    return found


def check(receipt, first, most=NEW):
    tokens = receipt["tokens"]
    assert receipt["reprefilled"] == [], receipt
    assert 0 < tokens["prefilled"] == tokens["new"], receipt
    if not first:
        assert tokens["new"] <= most and tokens["history"] > 0, receipt


class Chat:
    """A client of Chat Completions, which keeps the messages itself."""

    def __init__(self, d, messages, **fields):
        self.d, self.messages, self.fields = d, messages, fields

    def post(self, messages, **fields):
        status, text = self.d.call("POST", "/v1/chat/completions", {**self.fields, **fields, "messages": messages}, raw=True)
        assert status == 200, text
        return events_of(text) if self.fields.get("stream") else [json.loads(text)]

    def ask(self, question, **fields):
        self.messages.append({"role": "user", "content": question})
        events = self.post(self.messages, **fields)
        said, calls = "", {}
        for e in events:
            for choice in e["choices"]:
                part = choice.get("delta") or choice.get("message") or {}
                said += part.get("content") or ""
                for call in part.get("tool_calls") or []:
                    of = calls.setdefault(call.get("index", 0), {"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
                    of["id"] += call.get("id", "")
                    for key in ("name", "arguments"):
                        of["function"][key] += call["function"].get(key, "")
        message = {"role": "assistant", "content": said or None}
        if calls:
            message["tool_calls"] = list(calls.values())
        self.messages.append(message)
        return receipt_of(events), message


def open_webui():
    """Streams, with tools of its own in each request; asks for a title, tags and follow-ups beside it, in messages of their own,
    which must displace nothing. The last message is then answered again."""
    with Scratch() as data:
        d = Daemon(data)
        names = "get_current_timestamp", "calculate_timestamp", "list_knowledge_bases", "search_notes"
        tools = [{"type": "function", "function": {"name": n, "description": n.replace("_", " "), "parameters": {"properties": {}, "type": "object"}}} for n in names]
        chat = Chat(d, [], model="default", stream=True, stream_options={"include_usage": True}, max_tokens=12, temperature=0, tools=tools)
        for i, question in enumerate(QUESTIONS):
            receipt, _ = chat.ask(question)
            check(receipt, i == 0)
            task = "### Task:\nGenerate a concise title.\n### Chat History:\n" + json.dumps(chat.messages)
            status, _ = d.call("POST", "/v1/chat/completions", {"model": "default", "messages": [{"role": "user", "content": task}], "stream": False, "max_completion_tokens": 8})
            assert status == 200
        del chat.messages[-2:]
        receipt, _ = chat.ask(QUESTIONS[-1])
        assert receipt["tokens"]["prefilled"] == 1 and receipt["tokens"]["new"] == 0, receipt
        d.stop()


def librechat():
    """A system prompt, content in parts, the user's id, and penalties that are written out."""
    with Scratch() as data:
        d = Daemon(data)
        chat = Chat(
            d, [{"role": "system", "content": "You are a helpful assistant."}], model="default", user="65f0c2", stream=True, temperature=0, top_p=1,
            presence_penalty=0, frequency_penalty=0, max_tokens=12, stream_options={"include_usage": True},
        )  # fmt: skip
        for i, question in enumerate(QUESTIONS):
            receipt, _ = chat.ask([{"type": "text", "text": question}])
            check(receipt, i == 0)
        d.stop()


def sillytavern():
    """Several system messages, an answer that stands before the first question, and an instruction that moves: it stands behind the
    latest message, so that the next turn has another past. From the place on where it stood, the context is read again."""
    with Scratch() as data:
        d = Daemon(data)
        head = [
            {"role": "system", "content": "Write the next reply of a librarian."},
            {"role": "system", "content": "[Start a new Chat]"},
            {"role": "assistant", "content": "Good evening. What are you looking for?"},
        ]
        fields = {"model": "default", "stream": True, "temperature": 0, "max_tokens": 12, "presence_penalty": 0, "frequency_penalty": 0, "top_p": 1, "stop": []}
        chat = Chat(d, list(head), **fields)
        for i, question in enumerate(QUESTIONS):
            receipt, _ = chat.ask(question)
            check(receipt, i == 0)
        moving = Chat(d, list(head), **fields)
        for i, question in enumerate(QUESTIONS):
            moving.messages.append({"role": "user", "content": question})
            events = moving.post(moving.messages + [{"role": "system", "content": "[Stay in character.]"}])
            moving.messages.append({"role": "assistant", "content": "".join(c["delta"].get("content") or "" for e in events for c in e["choices"])})
            receipt = receipt_of(events)
            assert receipt["tokens"]["prefilled"] > 0, receipt
        d.stop()


def aider():
    """Its rules stand behind the latest question, and are gone from there with the next one: that question and its answer are read again."""
    with Scratch() as data:
        d = Daemon(data)
        rules = "\n\nTo suggest changes to a file you MUST return the entire content of the updated file."
        head = [
            {"role": "system", "content": "Act as an expert software developer. " * 12},
            {"role": "user", "content": "Change the greeting to be more casual"},
            {"role": "assistant", "content": "Ok."},
            {"role": "user", "content": "I have *added these files to the chat*:\n\nhello.py\n```\ndef hello():\n    print('hi')\n```\n"},
            {"role": "assistant", "content": "Ok, any changes I propose will be to those files."},
        ]
        chat = Chat(d, head, model="default", stream=True, temperature=0, max_tokens=12)
        for i, question in enumerate(QUESTIONS):
            receipt, answer = chat.ask(question + rules)
            chat.messages[-2:] = [{"role": "user", "content": question}, answer]
            check(receipt, i == 0, 2 * NEW)
            assert i == 0 or receipt["tokens"]["history"] > 150, receipt
        d.stop()


def editor(**more):
    """Tools, and their results, over Chat Completions: a VS Code custom endpoint, Continue."""
    tools = [{"type": "function", "function": {"name": "read_file", "description": "Reads a file.", "parameters": SCHEMA, "strict": True}}]
    with Scratch() as data:
        d = Daemon(data)
        chat = Chat(
            d, [{"role": "system", "content": "You are a coding assistant."}], model="default", temperature=0, stream=True, n=1, max_tokens=40, tools=tools,
            tool_choice={"type": "function", "function": {"name": "read_file"}}, stream_options={"include_usage": True}, **more,
        )  # fmt: skip
        for i in range(3):
            receipt, message = chat.ask(f"Look into file {i}.")
            check(receipt, i == 0)
            call = message["tool_calls"][0]
            json.loads(call["function"]["arguments"])
            chat.messages.append({"role": "tool", "tool_call_id": call["id"], "content": "int main(void);"})
            events = chat.post(chat.messages, tool_choice="none")
            check(receipt_of(events), False)
            chat.messages.append({"role": "assistant", "content": "".join(c["delta"].get("content") or "" for e in events for c in e["choices"])})
        d.stop()


def vscode():
    editor(top_p=1)


def continue_dev():
    editor(parallel_tool_calls=False)


# Its own language for patches, as it sends it.
PATCH = """start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?
filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""
CODEX_TOOLS = [
    {"type": "function", "name": "shell", "description": "Runs a command.", "strict": False, "parameters": {"type": "object", "properties": {"command": {"type": "array", "items": {"type": "string"}}}, "required": ["command"]}},
    {"type": "custom", "name": "note", "description": "Keeps a note.", "format": {"type": "grammar", "syntax": "regex", "definition": "[a-z]{1,12}"}},
    {"type": "custom", "name": "apply_patch", "description": "Edits files.", "format": {"type": "grammar", "syntax": "lark", "definition": PATCH}},
    {"type": "namespace", "name": "files", "description": "Files.", "tools": [{"type": "function", "name": "read", "description": "Reads one.", "parameters": SCHEMA, "strict": True}]},
    {"type": "web_search"},
]
CODEX = {
    "model": "default", "instructions": "You are a coding agent.", "tools": CODEX_TOOLS, "parallel_tool_calls": False, "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "0198", "text": {"verbosity": "medium"}, "max_output_tokens": 40, "temperature": 0,
}  # fmt: skip


def codex_turns(ask):
    """Three turns of calls and results: ask(new items, choice) gives the response; what it said is part of the next."""
    for i in range(3):
        choice = [{"type": "custom", "name": "note"}, {"type": "function", "name": "read", "namespace": "files"}, "auto"][i]
        said = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": f"Do step {i}."}]}
        r = ask([said], choice)
        check(r["convod"], i == 0)
        results = []
        for item in r["output"]:
            if item["type"] == "custom_tool_call":
                assert item["name"] == "note" and item["input"].isalpha(), item
                results.append({"type": "custom_tool_call_output", "call_id": item["call_id"], "output": "kept"})
            elif item["type"] == "function_call":
                assert i != 1 or (item["name"] == "read" and item["namespace"] == "files"), item
                results.append({"type": "function_call_output", "call_id": item["call_id"], "output": "done"})
        assert results or i == 2, r["output"]
        if results:
            check(ask(results, "none")["convod"], False)


def codex_http():
    """Nothing is stored: the whole list each time, without ids."""
    with Scratch() as data:
        d = Daemon(data)
        assert d.ok("GET", "/v1/models?client_version=0.153.4")["models"] == []  # without it the list is taken for broken
        history = [{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "<permissions>none</permissions>"}]}]

        def ask(new, choice):
            history.extend(new)
            status, text = d.call("POST", "/v1/responses", {**CODEX, "input": history, "tool_choice": choice, "stream": True}, raw=True)
            assert status == 200, text
            r = events_of(text)[-1]["response"]
            assert r["convod"]["skipped_tools"] == ["web_search"] and r["store"] is False, r
            history.extend({k: v for k, v in item.items() if k not in ("id", "status")} for item in r["output"])
            return r

        codex_turns(ask)
        d.stop()


def codex_websocket():
    """A warm-up that answers nothing, then the new items behind the response before."""
    with Scratch() as data:
        d = Daemon(data)
        with websockets.sync.client.connect(d.url.replace("http", "ws") + "/v1/responses", additional_headers={"OpenAI-Beta": "responses_websockets=2026-02-06"}) as ws:

            def create(**fields):
                ws.send(json.dumps({"type": "response.create", **CODEX, **fields}))
                while True:
                    e = json.loads(ws.recv(timeout=120))
                    assert e["type"] not in ("error", "response.failed"), e
                    if e["type"] in ("response.completed", "response.incomplete"):
                        return e["response"]

            previous = create(input=[], generate=False)["id"]

            def ask(new, choice):
                nonlocal previous
                r = create(input=new, previous_response_id=previous, tool_choice=choice)
                previous = r["id"]
                return r

            codex_turns(ask)
        d.stop()


def claude_code():
    """Messages with a billing line that changes, thinking, cache marks, and tools."""
    tools = [{"name": "Read", "description": "Reads a file.", "input_schema": SCHEMA, "strict": True}]
    with Scratch() as data:
        d = Daemon(data)
        messages = []
        for i in range(3):
            system = [
                {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.{i}; cch={i}{i};"},
                {"type": "text", "text": "You are an interactive agent.", "cache_control": {"type": "ephemeral"}},
            ]
            messages.append({"role": "user", "content": [{"type": "text", "text": "<system-reminder>Be brief.</system-reminder>"}, {"type": "text", "text": f"Look into file {i}."}]})
            for choice in ({"type": "tool", "name": "Read"}, {"type": "none"}):
                body = {"model": "default", "max_tokens": 40, "system": system, "messages": messages, "tools": tools, "tool_choice": choice, "stream": True, "metadata": {"user_id": "u"}, "temperature": 0}
                status, text = d.call("POST", "/v1/messages?beta=true", body, raw=True)
                assert status == 200, text
                check(receipt_of(events_of(text)), i == 0 and choice["type"] == "tool")
                blocks = {}
                for e in events_of(text):
                    if e["type"] == "content_block_start":
                        blocks[e["index"]] = {**e["content_block"], "json": ""}
                    elif e["type"] == "content_block_delta":
                        of = blocks[e["index"]]
                        of["text"] = of.get("text", "") + e["delta"].get("text", "")
                        of["json"] += e["delta"].get("partial_json", "")
                content = [
                    {"type": "tool_use", "id": b["id"], "name": b["name"], "input": json.loads(b["json"])} if b["type"] == "tool_use" else {"type": "text", "text": b["text"]}
                    for b in blocks.values()
                ]
                messages.append({"role": "assistant", "content": content})
                if choice["type"] == "tool":
                    messages.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": content[-1]["id"], "content": "int x;", "cache_control": {"type": "ephemeral"}}]})
        d.stop()


need(QWEN)
run(open_webui, librechat, sillytavern, aider, vscode, continue_dev, codex_http, codex_websocket, claude_code)
