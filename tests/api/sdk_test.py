#!/usr/bin/env python3
"""The openai package, unmodified: Responses over HTTP, SSE and WebSocket, Chat Completions. Events are validated strictly."""

import base64
import math
import sys

from daemon import QWEN, Daemon, Scratch, client_of, need, run

try:
    import openai
    from openai.lib.responses_websocket import ResponsesWebSocketAccumulator, ResponsesWebSocketLimits, ResponsesWebSocketSession
    from openai.types.responses import Response, ResponseStreamEvent
    from pydantic import TypeAdapter
except ImportError as e:
    print(f"skip: {e}")
    sys.exit(77)

EVENT = TypeAdapter(ResponseStreamEvent)
FACT = "My kite is called Merlin. Remember it."
QUESTION = "What is my kite called? Answer with the name only."
MODEL = "default"


def strict(event):
    """The package itself accepts invalid events, so each is validated again from its JSON."""
    return EVENT.validate_python(event.to_dict())


def plain_and_chained():
    with Scratch() as data:
        d = Daemon(data)
        c = client_of(d)
        first = c.responses.create(model=MODEL, input=FACT, max_output_tokens=24, temperature=0)
        Response.model_validate(first.to_dict())
        assert first.status in ("completed", "incomplete") and first.usage.output_tokens > 0
        second = c.responses.create(model=MODEL, input=QUESTION, previous_response_id=first.id, temperature=0, max_output_tokens=24)
        assert "Merlin" in second.output_text
        assert second.usage.input_tokens_details.cached_tokens > 0
        again = c.responses.retrieve(second.id)
        assert again.output_text == second.output_text
        try:
            c.responses.create(model=MODEL, input="x", previous_response_id="resp_0")
            raise AssertionError("an unknown response was accepted")
        except openai.BadRequestError as e:
            assert e.code == "previous_response_not_found", e
        except openai.NotFoundError as e:
            assert e.code == "previous_response_not_found", e
        d.stop()


def streamed():
    with Scratch() as data:
        d = Daemon(data)
        c = client_of(d)
        events = [strict(e) for e in c.responses.create(model=MODEL, input="Name two colours.", stream=True, max_output_tokens=16)]
        assert [e.sequence_number for e in events] == list(range(len(events)))
        assert events[0].type == "response.created" and events[-1].type in ("response.completed", "response.incomplete")
        text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
        assert text == events[-1].response.output_text != ""
        # The SDK's helper knows an end by response.completed only, so this answer must not be cut by its length.
        with c.responses.stream(model=MODEL, input="Say yes.", max_output_tokens=256, temperature=0) as stream:
            for _ in stream:
                pass
            assert stream.get_final_response().output_text
        d.stop()


def conversations():
    with Scratch() as data:
        d = Daemon(data)
        c = client_of(d)
        conversation = c.conversations.create(metadata={"topic": "kites"})
        c.responses.create(model=MODEL, input=FACT, conversation=conversation.id, max_output_tokens=24, temperature=0)
        answer = c.responses.create(model=MODEL, input=QUESTION, conversation=conversation.id, max_output_tokens=24, temperature=0)
        assert "Merlin" in answer.output_text
        items = list(c.conversations.items.list(conversation.id, order="asc"))
        assert [i.role for i in items] == ["user", "assistant"] * 2
        assert c.conversations.retrieve(conversation.id).metadata == {"topic": "kites"}
        c.conversations.delete(conversation.id)
        try:
            c.conversations.retrieve(conversation.id)
            raise AssertionError("a deleted conversation was found")
        except openai.NotFoundError:
            pass
        d.stop()


CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"], "additionalProperties": False}
TOOLS = [
    {"type": "function", "name": "weather", "description": "The weather in a city.", "parameters": CITY, "strict": True},
    {"type": "custom", "name": "note", "description": "Writes a note.", "format": {"type": "grammar", "syntax": "regex", "definition": "[a-z ]{3,20}"}},
    {"type": "namespace", "name": "files", "description": "Files.", "tools": [{"type": "function", "name": "read", "parameters": PATH, "strict": True}]},
]


def websocket():
    with Scratch() as data:
        d = Daemon(data)
        c = client_of(d)
        with c.responses.connect() as connection:
            limits = ResponsesWebSocketLimits(max_lanes=4, max_events_per_lane=512, max_events=2048, max_bytes_per_lane=1 << 24, max_bytes=1 << 25)
            with ResponsesWebSocketSession(connection, limits=limits) as session:
                lane = session.lane("kite")
                create = {"type": "response.create", "model": MODEL, "max_output_tokens": 24, "temperature": 0, "store": False}
                lane.send({**create, "input": FACT})
                first = lane.get_final_response()
                lane.send({**create, "input": QUESTION, "previous_response_id": first.id})
                second = lane.get_final_response()
                assert "Merlin" in second.output_text, second
                assert second.usage.input_tokens_details.cached_tokens > 0
                other = session.lane("other")
                other.send({**create, "input": "Name a bird."})
                while True:
                    event = strict(other.recv())
                    if event.type in ("response.completed", "response.incomplete"):
                        break
                # Calls of each kind, put together by the package, and their results: of each turn what is new alone.
                tools, seen = session.lane("tools"), ResponsesWebSocketAccumulator()
                ask = {**create, "max_output_tokens": 60, "tools": TOOLS}
                body = {"input": "Weather in Oslo?", "tool_choice": {"type": "function", "name": "weather"}}
                for kind in ("function_call", "custom_tool_call", "function_call"):
                    tools.send({**ask, **body})
                    seen.reset()
                    while (event := strict(tools.recv())).type not in ("response.completed", "response.incomplete"):
                        seen.add_event(event)
                    seen.add_event(event)
                    response = seen.get_final_response()
                    (call,), receipt = response.output, response.to_dict()["convod"]["tokens"]
                    assert call.type == kind and call.status == "completed" and receipt["prefilled"] == receipt["new"], response
                    own, result = ("function_call_output", "rain") if kind == "function_call" else ("custom_tool_call_output", "ok")
                    choice = {"type": "custom", "name": "note"} if own[0] == "f" else {"type": "function", "namespace": "files", "name": "read"}
                    said = {"role": "user", "content": "And now?"}
                    body = {"input": [{"type": own, "call_id": call.call_id, "output": result}, said], "previous_response_id": response.id, "tool_choice": choice}
                assert (call.namespace, call.name) == ("files", "read"), call
        assert d.ok("GET", "/v1/conversations")["data"] == []
        d.stop()


def chat_completions():
    with Scratch() as data:
        d = Daemon(data)
        c = client_of(d)
        messages = [{"role": "user", "content": FACT}]
        answer = c.chat.completions.create(model=MODEL, messages=messages, max_tokens=24, temperature=0)
        messages += [answer.choices[0].message.to_dict(), {"role": "user", "content": QUESTION}]
        chunks = list(
            c.chat.completions.create(
                model=MODEL, messages=messages, max_tokens=24, temperature=0, stream=True, stream_options={"include_usage": True}
            )
        )
        text = "".join(ch.choices[0].delta.content or "" for ch in chunks if ch.choices)
        assert "Merlin" in text and chunks[-1].usage.prompt_tokens_details.cached_tokens > 0, (text, chunks[-1])
        assert [m.id for m in c.models.list()]
        d.stop()


def logprobs():
    """Of each token of the text, and what else there might have been; the same in both interfaces, whole and streamed."""
    with Scratch() as data:
        d = Daemon(data)
        c = client_of(d)
        ask = {"model": MODEL, "temperature": 0, "top_logprobs": 4}
        chat = {**ask, "messages": [{"role": "user", "content": "Name two colours."}], "max_tokens": 12, "logprobs": True}
        choice = c.chat.completions.create(**chat).choices[0]
        tokens = choice.logprobs.content
        assert b"".join(bytes(t.bytes) for t in tokens).decode() == choice.message.content
        for t in tokens:
            assert t.token == t.top_logprobs[0].token and t.logprob == t.top_logprobs[0].logprob <= 0
            assert len(t.top_logprobs) == 4 and sum(math.exp(o.logprob) for o in t.top_logprobs) < 1.001
        streamed = [t for ch in c.chat.completions.create(stream=True, **chat) for x in ch.choices if x.logprobs for t in x.logprobs.content]
        assert streamed == tokens
        responses = {**ask, "input": "Name two colours.", "max_output_tokens": 12}
        part = c.responses.create(**responses).output[0].content[0]
        assert [t.logprob for t in part.logprobs] == [t.logprob for t in tokens]
        events = [strict(e) for e in c.responses.create(stream=True, **responses)]
        told = [t.logprob for e in events if e.type == "response.output_text.delta" for t in e.logprobs]
        assert told == [t.logprob for t in tokens]
        assert [t.logprob for e in events if e.type == "response.output_text.done" for t in e.logprobs] == told
        included = c.responses.create(**{**responses, "top_logprobs": 0}, include=["message.output_text.logprobs"])
        assert [t.logprob for t in included.output[0].content[0].logprobs] == told
        assert c.responses.create(**{**responses, "top_logprobs": 0}).output[0].content[0].logprobs == []
        text = d.ok("POST", "/detokenize", d.ok("POST", "/tokenize", {"content": "naïve 火 🪁"}))
        assert text == {"content": "naïve 火 🪁"}, text
        d.stop()


def biases():
    """A token is said because of its bias, or not said, in each interface; what the model does not have is named."""
    with Scratch() as data:
        d = Daemon(data)
        c = client_of(d)
        word = d.ok("POST", "/tokenize", {"content": " kite"})["tokens"]
        assert len(word) == 1, word
        ask = {"model": MODEL, "temperature": 0}
        plain = c.completions.create(prompt="The sun is", max_tokens=4, **ask).choices[0].text
        first = d.ok("POST", "/tokenize", {"content": plain})["tokens"][0]
        assert c.completions.create(prompt="The sun is", max_tokens=4, logit_bias={str(word[0]): 100}, **ask).choices[0].text == " kite" * 4
        other = c.completions.create(prompt="The sun is", max_tokens=4, logit_bias={str(first): -100}, **ask).choices[0].text
        assert d.ok("POST", "/tokenize", {"content": other})["tokens"][0] != first, (plain, other)
        chat = {**ask, "messages": [{"role": "user", "content": "Hello."}], "max_tokens": 3}
        said = c.chat.completions.create(**chat, logit_bias={str(word[0]): 100}, logprobs=True).choices[0]
        assert said.message.content == " kite" * 3, said
        # The model's own: it would hardly have said that.
        assert all(t.logprob < -2 for t in said.logprobs.content[:1]), said.logprobs
        with_bias = {"logit_bias": {str(word[0]): 100}}
        answer = c.responses.create(input="Hello.", max_output_tokens=16, extra_body=with_bias, **ask)
        assert answer.output_text == " kite" * 16, answer.output_text
        for call in (lambda b: c.chat.completions.create(**chat, logit_bias=b), lambda b: c.responses.create(input="x", extra_body={"logit_bias": b})):
            try:
                call({"1": 1, "9999999": 1})
                raise AssertionError("a token that there is not was accepted")
            except openai.BadRequestError as e:
                assert e.param == "logit_bias.9999999" and "9999999" in e.message, e
        d.stop()


def several_answers():
    """n answers of one prompt that is read once: whole, streamed, each different, the first one stored; and each can be followed."""
    with Scratch() as data:
        d = Daemon(data)
        c = client_of(d)
        messages = [{"role": "user", "content": "Tell me about a kite. " * 8}]
        ask = {"model": MODEL, "messages": messages, "max_tokens": 12, "temperature": 1.5, "seed": 3, "n": 4}
        whole = c.chat.completions.create(**ask)
        assert [x.index for x in whole.choices] == [0, 1, 2, 3]
        texts = [x.message.content for x in whole.choices]
        assert len(set(texts)) == 4, texts
        receipts = [whole.to_dict()["convod"]] + [x.to_dict()["convod"] for x in whole.choices[1:]]
        assert receipts[0]["tokens"]["prefilled"] == whole.usage.prompt_tokens, receipts[0]
        for r in receipts[1:]:
            assert r["tokens"]["prefilled"] == 1 and r["reprefilled"] == [{"tokens": 1, "reason": "logits"}], r
        assert whole.usage.completion_tokens == sum(r["tokens"]["output"] for r in receipts), whole.usage
        # Answer i is that of seed + i.
        alone = c.chat.completions.create(**{**ask, "n": 1, "seed": 5})
        assert alone.choices[0].message.content == texts[2], (alone, texts)
        chunks = list(c.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
        said = ["".join(x.delta.content or "" for ch in chunks for x in ch.choices if x.index == i) for i in range(4)]
        assert said == texts, (said, texts)
        assert [sum(bool(x.finish_reason) for ch in chunks for x in ch.choices if x.index == i) for i in range(4)] == [1] * 4
        assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens and not chunks[-1].choices
        for text in texts[:2]:
            more = [*messages, {"role": "assistant", "content": text}, {"role": "user", "content": "And?"}]
            again = c.chat.completions.create(model=MODEL, messages=more, max_tokens=2, temperature=0)
            tokens = again.to_dict()["convod"]["tokens"]
            assert tokens["prefilled"] < whole.usage.prompt_tokens // 2, tokens
        raw = c.completions.create(model=MODEL, prompt="The kite is called", n=3, max_tokens=5, temperature=1.5, seed=9)
        assert [x.index for x in raw.choices] == [0, 1, 2] and len({x.text for x in raw.choices}) > 1, raw
        for n in (0, 17, 1.5):
            try:
                c.chat.completions.create(**{**ask, "n": n})
                raise AssertionError(f"n = {n} was accepted")
            except openai.BadRequestError as e:
                assert e.param == "n", e
        d.stop()


def answer_goes_on():
    """A last message of the assistant is gone on with: what is written is what would have been written at once, and the whole is one answer."""
    with Scratch() as data:
        d = Daemon(data)
        c = client_of(d)
        ask = {"model": MODEL, "temperature": 0}
        messages = [{"role": "user", "content": "Count from one to twenty in words, separated by commas."}]
        whole = c.chat.completions.create(messages=messages, max_tokens=40, **ask).choices[0].message.content
        cut = c.chat.completions.create(messages=messages, max_tokens=12, **ask)
        assert cut.choices[0].finish_reason == "length" and whole.startswith(cut.choices[0].message.content), (whole, cut)
        d.settle()
        d.kill()
        d.start()
        c = client_of(d)
        half = [*messages, cut.choices[0].message.to_dict()]
        more = c.chat.completions.create(messages=half, max_tokens=28, **ask)
        assert cut.choices[0].message.content + more.choices[0].message.content == whole, (cut, more, whole)
        tokens = more.to_dict()["convod"]["tokens"]
        assert tokens["disk"] > 0 and tokens["prefilled"] <= 2, more.to_dict()["convod"]
        parts = list(c.chat.completions.create(messages=half, max_tokens=28, stream=True, **ask))
        assert "".join(x.delta.content or "" for ch in parts for x in ch.choices) == more.choices[0].message.content, parts
        # Resent as one message it is the same history: what follows is all that is read.
        after = [*messages, {"role": "assistant", "content": whole}, {"role": "user", "content": "Thanks."}]
        last = c.chat.completions.create(messages=after, max_tokens=4, **ask).to_dict()["convod"]
        assert last["reprefilled"] == [] and last["tokens"]["prefilled"] == last["tokens"]["new"] < 20, last
        # A text of one's own; and where another answer is wanted, it is closed.
        own = [*messages, {"role": "assistant", "content": "Zero, one, two,"}]
        assert c.chat.completions.create(messages=own, max_tokens=4, **ask).choices[0].message.content.startswith(" three"), own
        other = c.chat.completions.create(messages=own, max_tokens=4, extra_body={"add_generation_prompt": True}, **ask)
        assert not other.choices[0].message.content.startswith(" three"), other
        stopped = c.chat.completions.create(messages=own, max_tokens=30, stop=["four", "two"], **ask).choices[0]
        assert stopped.finish_reason == "stop" and stopped.message.content == " three, ", stopped
        d.stop()


def compaction():
    """A conversation as a summary: nothing is read again for it, nothing of it is stored, and a new chain begins with it."""
    with Scratch() as data:
        d = Daemon(data)
        c = client_of(d)
        ask = {"model": MODEL, "temperature": 0}
        first = c.responses.create(input=FACT, instructions="You know about kites.", max_output_tokens=24, **ask)
        history = first.usage.total_tokens
        compacted = c.responses.compact(model=MODEL, previous_response_id=first.id)
        convod = compacted.to_dict()["convod"]
        assert compacted.object == "response.compaction" and [i.type for i in compacted.output] == ["compaction"], compacted
        assert convod["reprefilled"] == [] and convod["tokens"]["history"] + 2 >= history and convod["saved"] == "off", convod
        assert compacted.usage.output_tokens > 0
        # Its output begins a new chain; the whole list is a history like any other.
        items = [compacted.output[0].to_dict(), {"role": "user", "content": QUESTION}]
        summary = base64.b64decode(compacted.output[0].encrypted_content).decode()
        assert summary.startswith("convod compaction 1\n") and "Merlin" in summary, summary
        answer = c.responses.create(input=items, max_output_tokens=24, **ask)
        said = d.ok("GET", f"/v1/responses/{answer.id}/input_items?order=asc")["data"][0]
        assert said["role"] == "system" and said["content"][0]["text"].endswith(summary.split("\n", 1)[1]), said
        assert answer.usage.input_tokens > compacted.usage.output_tokens, answer.usage
        follow = c.responses.create(input="Thanks.", previous_response_id=answer.id, max_output_tokens=4, **ask).to_dict()["convod"]
        assert follow["reprefilled"] == [] and follow["tokens"]["prefilled"] == follow["tokens"]["new"] < 30, follow
        more = [*items, {"role": "assistant", "content": answer.output_text}, {"role": "user", "content": "Thanks."}]
        again = c.responses.create(input=more, max_output_tokens=4, **ask).to_dict()["convod"]
        assert again["tokens"]["prefilled"] < 30, again
        listed = c.responses.compact(model=MODEL, input=[{"role": "user", "content": FACT}])
        assert listed.output[0].encrypted_content
        status, refused = d.call("POST", "/v1/responses/compact", {"model": MODEL})
        assert status == 400 and refused["error"]["param"] == "input", refused
        for content in ("", "x", "eA==", "====", "A" * 4096, "!!!!"):
            try:
                c.responses.create(input=[{"type": "compaction", "encrypted_content": content}, {"role": "user", "content": "x"}], **ask)
                raise AssertionError(f"{content!r} was taken")
            except openai.BadRequestError as e:
                assert e.param == "input[0].encrypted_content", e
        d.stop()


def completions():
    """A text as it stands, or its tokens: the same answer, of which nothing is stored; the same beginning is not read twice."""
    with Scratch() as data:
        d = Daemon(data)
        c = client_of(d)
        text = "def add(a, b):\n    # " + "The sum of two numbers. " * 20 + "\n    return"
        ask = {"model": MODEL, "max_tokens": 8, "temperature": 0}
        first = c.completions.create(prompt=text, logprobs=3, **ask)
        choice = first.choices[0]
        assert "a + b" in choice.text and first.usage.prompt_tokens_details.cached_tokens == 0, first
        assert "".join(choice.logprobs.tokens) == choice.text and len(choice.logprobs.token_logprobs) == first.usage.completion_tokens
        assert choice.logprobs.text_offset == [len("".join(choice.logprobs.tokens[:i])) for i in range(len(choice.logprobs.tokens))]
        tokens = d.ok("POST", "/tokenize", {"content": text, "add_special": True})["tokens"]
        assert len(tokens) == first.usage.prompt_tokens
        again = c.completions.create(prompt=tokens, **ask)
        assert again.choices[0].text == choice.text, again
        assert again.to_dict()["convod"]["tokens"]["prefilled"] == 1, again  # for its logits
        more = c.completions.create(prompt=text + choice.text + "\n\ndef", **ask)
        assert more.to_dict()["convod"]["tokens"]["prefilled"] < 10, more
        chunks = list(c.completions.create(prompt=text, stream=True, **ask))
        assert "".join(x.choices[0].text for x in chunks) == choice.text and chunks[-1].choices[0].finish_reason == choice.finish_reason
        assert d.ok("GET", "/v1/conversations")["data"] == []
        # A chat that says the same is another context.
        chat = c.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": text}], max_tokens=1)
        assert chat.usage.prompt_tokens > first.usage.prompt_tokens
        try:
            c.completions.create(prompt=[1 << 30], **ask)
            raise AssertionError("an unknown token was taken")
        except openai.BadRequestError as e:
            assert "token" in e.message, e
        d.stop()


need(QWEN)
run(plain_and_chained, streamed, conversations, websocket, chat_completions, logprobs, biases, several_answers, answer_goes_on, compaction, completions)
