#!/usr/bin/env python3
"""Tools with the openai package, unmodified, and a real model: calls, streams, loops of them, replayed as a whole or chained. What
goes through the model is asserted, not how clever it is: where an answer must be a call, the request says so."""

import json
import re
import sys

from daemon import QWEN, Daemon, Scratch, check_receipt, client_of, need, run

try:
    import openai
    from openai.types.responses import Response, ResponseStreamEvent
    from pydantic import TypeAdapter
except ImportError as e:
    print(f"skip: {e}")
    sys.exit(77)

EVENT = TypeAdapter(ResponseStreamEvent)
MODEL = "default"
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
WEATHER = {"name": "get_weather", "description": "The weather in a city.", "parameters": PARAMETERS}
FLAT = [{"type": "function", **WEATHER, "strict": True}, {"type": "web_search"}]
NESTED = [{"type": "function", "function": WEATHER}]
LIMITS = {"model": MODEL, "temperature": 0}
CALLS = 20


def check_new(convod, most):
    """Only what is new went through the model, and that is no more than what a result takes."""
    tokens = convod["tokens"]
    assert convod["reprefilled"] == [], convod
    assert 0 < tokens["prefilled"] == tokens["new"] <= most, convod


def call_of(response):
    calls = [item for item in response.output if item.type == "function_call"]
    assert len(calls) == 1, response.output
    return calls[0]


def one_call():
    with Scratch() as data:
        d = Daemon(data)
        c = client_of(d)
        r = c.responses.create(input="Weather in Oslo?", tools=FLAT, tool_choice={"type": "function", "name": "get_weather"}, max_output_tokens=64, **LIMITS)
        Response.model_validate(r.to_dict())
        call = call_of(r)
        assert call.name == "get_weather" and call.call_id and r.status == "completed", r
        json.loads(call.arguments)
        assert [t.type for t in r.tools] == ["function"] and r.tools[0].strict is True
        assert r.to_dict()["convod"]["skipped_tools"] == ["web_search"]
        again = c.responses.retrieve(r.id)
        assert again.output == r.output
        # Chained by its id: the result alone is new.
        output = {"type": "function_call_output", "call_id": call.call_id, "output": '{"degrees": 21}'}
        second = c.responses.create(input=[output], previous_response_id=r.id, tools=FLAT, max_output_tokens=24, **LIMITS)
        check_new(second.to_dict()["convod"], 40)
        check_receipt(second.to_dict())
        items = c.responses.input_items.list(second.id).data
        assert [i.type for i in items] == ["function_call_output"] and items[0].output == '{"degrees": 21}'
        try:
            c.responses.create(input=[{**output, "call_id": "call_other"}], previous_response_id=r.id, tools=FLAT, **LIMITS)
            raise AssertionError("a result of no call was taken")
        except openai.BadRequestError as e:
            assert e.param == "input", e
        d.stop()


def streamed():
    with Scratch() as data:
        d = Daemon(data)
        c = client_of(d)
        events = [
            EVENT.validate_python(e.to_dict())
            for e in c.responses.create(input="Weather in Oslo?", tools=FLAT, tool_choice="required", stream=True, max_output_tokens=64, **LIMITS)
        ]
        assert [e.sequence_number for e in events] == list(range(len(events)))
        final = events[-1].response
        assert final.status == "completed", final
        for index, item in enumerate(final.output):
            mine = [e for e in events if getattr(e, "output_index", None) == index]
            assert mine[0].type == "response.output_item.added" and mine[-1].type == "response.output_item.done"
            assert mine[-1].item == item and mine[0].item.id == item.id
            if item.type == "function_call":
                assert mine[0].item.arguments == "" and mine[0].item.call_id == item.call_id
                deltas = [e.delta for e in mine if e.type == "response.function_call_arguments.delta"]
                done = [e for e in mine if e.type == "response.function_call_arguments.done"]
                assert "".join(deltas) == done[0].arguments == item.arguments and len(deltas) > 1
        assert any(item.type == "function_call" for item in final.output)
        with c.responses.stream(input="Weather in Rome?", tools=FLAT, tool_choice="required", max_output_tokens=64, **LIMITS) as stream:
            for _ in stream:
                pass
            assert call_of(stream.get_final_response()).name == "get_weather"
        # The same in Chat Completions: the package's own accumulation of the pieces.
        with c.chat.completions.stream(
            messages=[{"role": "user", "content": "Weather in Rome?"}], tools=NESTED, tool_choice="required", max_tokens=64, **LIMITS
        ) as chunks:
            for _ in chunks:
                pass
            choice = chunks.get_final_completion().choices[0]
        assert choice.finish_reason == "tool_calls" and choice.message.tool_calls[0].function.name == "get_weather", choice
        d.stop()


def loop_of_replays(store):
    """An agent that keeps its own history and sends all of it: ids left out, arguments written otherwise, thinking added."""
    with Scratch() as data:
        d = Daemon(data)
        c = client_of(d)
        history = [{"role": "user", "content": "Compare the weather in some cities of Norway."}]
        for i in range(CALLS):
            r = c.responses.create(
                input=history, tools=FLAT, tool_choice={"type": "function", "name": "get_weather"}, instructions="Call tools.",
                max_output_tokens=32, store=store, **LIMITS,
            )  # fmt: skip
            convod = check_receipt(r.to_dict())
            if i:
                check_new(convod, 60)
                assert convod["tokens"]["history"] > i * 20, convod
            call = call_of(r)
            arguments = call.arguments
            if call.status == "completed":
                arguments = json.dumps(json.loads(arguments), indent=2)
            history += [
                {"type": "reasoning", "id": f"rs_{i}", "summary": []},
                {"type": "function_call", "call_id": f"mine_{i}", "name": call.name, "arguments": arguments},
                {"type": "function_call_output", "call_id": f"mine_{i}", "output": json.dumps({"degrees": i})},
            ]
        r = c.responses.create(input=history, tools=FLAT, instructions="Call tools.", max_output_tokens=24, store=store, **LIMITS)
        check_new(check_receipt(r.to_dict()), 60)
        if store:  # restored, the same holds
            d.settle()
            d.kill()
            d.start()
            c = client_of(d)
            r = c.responses.create(
                input=history + [i.to_dict() for i in r.output] + ([{"role": "user", "content": "Go on."}]),
                tools=FLAT, instructions="Call tools.", max_output_tokens=24, **LIMITS,
            )  # fmt: skip
            convod = check_receipt(r.to_dict())
            check_new(convod, 60)
            assert convod["tokens"]["disk"] > CALLS * 20, convod
        d.stop()


def loop_stored():
    loop_of_replays(True)


def loop_not_stored():
    loop_of_replays(False)


def loop_of_completions():
    with Scratch() as data:
        d = Daemon(data)
        c = client_of(d)
        messages = [{"role": "system", "content": "Call tools."}, {"role": "user", "content": "Compare the weather in some cities of Norway."}]
        for i in range(CALLS):
            r = c.chat.completions.create(messages=messages, tools=NESTED, tool_choice="required", max_tokens=32, **LIMITS)
            if i:
                check_new(r.to_dict()["convod"], 60)
            message = r.choices[0].message
            assert message.tool_calls, r
            messages.append(message.to_dict())
            for call in message.tool_calls:
                messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps({"degrees": i})})
        r = c.chat.completions.create(messages=messages, tools=NESTED, max_tokens=24, **LIMITS)
        check_new(r.to_dict()["convod"], 60)
        d.stop()


def across_interfaces():
    """What was said through one interface is known in another, and in a conversation it is not added to."""
    with Scratch() as data:
        d = Daemon(data)
        c = client_of(d)
        conversation = c.conversations.create()
        first = c.responses.create(input="Name a colour.", conversation=conversation.id, instructions="Be brief.", max_output_tokens=16, **LIMITS)
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name a colour."}]
        messages += [{"role": "assistant", "content": first.output_text}, {"role": "user", "content": "And another one."}]
        r = c.chat.completions.create(messages=messages, max_tokens=16, **LIMITS)
        check_new(r.to_dict()["convod"], 30)
        assert r.usage.prompt_tokens_details.cached_tokens > 0
        assert len(list(c.conversations.items.list(conversation.id))) == 2
        messages += [{"role": "assistant", "content": r.choices[0].message.content}, {"role": "user", "content": "One more."}]
        r = c.responses.create(input=messages[1:], instructions="Be brief.", max_output_tokens=16, **LIMITS)
        check_new(r.to_dict()["convod"], 30)
        assert r.previous_response_id is None and c.responses.retrieve(r.id).previous_response_id is None
        d.stop()


def references():
    """A history of ids alone, as clients send it that know the server keeps the items: its content decides, as when it is sent."""
    with Scratch() as data:
        d = Daemon(data)
        c = client_of(d)
        asked = {"role": "user", "content": "Weather in Oslo?"}
        first = c.responses.create(input=[asked], tools=FLAT, tool_choice="required", max_output_tokens=64, **LIMITS)
        call = call_of(first)
        output = {"type": "function_call_output", "call_id": call.call_id, "output": '{"degrees": 21}'}
        second = c.responses.create(input=[asked, {"type": "item_reference", "id": call.id}, output], tools=FLAT, max_output_tokens=24, **LIMITS)
        check_new(second.to_dict()["convod"], 40)
        said = second.output[0]
        question = c.responses.input_items.list(first.id).data[0]
        third = c.responses.create(
            input=[{"id": question.id}, {"type": "item_reference", "id": call.id}, output, {"type": "item_reference", "id": said.id}, {"role": "user", "content": "And now?"}],
            tools=FLAT, max_output_tokens=8, **LIMITS,
        )
        check_new(third.to_dict()["convod"], 40)
        # One that is new to the context is what it was.
        alone = c.responses.create(input=[{"type": "item_reference", "id": question.id}], max_output_tokens=4, **LIMITS)
        assert c.responses.input_items.list(alone.id).data[0].content[0].text == "Weather in Oslo?"
        # One text very often is refused before it fills the memory.
        long = c.responses.create(input="x" * 40000, extra_body={"generate": False}, **LIMITS)
        asked = c.responses.input_items.list(long.id).data[0]
        try:
            c.responses.create(input=[{"type": "item_reference", "id": asked.id}] * 8192, max_output_tokens=1, **LIMITS)
            raise AssertionError("more than any context was taken")
        except openai.BadRequestError as e:
            assert "longer than any context" in e.message, e
        for wrong in ("msg_none", "none", "", "_"):
            try:
                c.responses.create(input=[{"type": "item_reference", "id": wrong}], **LIMITS)
                raise AssertionError(f"the reference {wrong!r} was taken")
            except openai.BadRequestError as e:
                assert e.param.startswith("input"), e
        d.stop()


NOTE = {"type": "custom", "name": "note", "description": "Keeps a note.", "format": {"type": "grammar", "syntax": "regex", "definition": "[a-z]{1,8} [0-9]{2}"}}


def custom_tools():
    """A text for arguments: streamed as events that the package knows, kept to its pattern, stored, followed, and resent."""
    with Scratch() as data:
        d = Daemon(data)
        c = client_of(d)
        asked = {"role": "user", "content": "Note the weather."}
        events = [
            EVENT.validate_python(e.to_dict())
            for e in c.responses.create(input=[asked], tools=[NOTE], tool_choice={"type": "custom", "name": "note"}, stream=True, max_output_tokens=48, **LIMITS)
        ]
        r = events[-1].response
        Response.model_validate(r.to_dict())
        item = r.output[0]
        assert r.status == "completed" and item.type == "custom_tool_call" and item.name == "note", r
        assert re.fullmatch("[a-z]{1,8} [0-9]{2}", item.input), item
        deltas = [e.delta for e in events if e.type == "response.custom_tool_call_input.delta"]
        done = [e for e in events if e.type == "response.custom_tool_call_input.done"]
        assert "".join(deltas) == done[0].input == item.input and len(deltas) > 1
        assert not [e for e in events if "function_call" in e.type]
        assert c.responses.retrieve(r.id).output == r.output
        assert r.tools[0].type == "custom" and r.tools[0].format.definition == NOTE["format"]["definition"]
        output = {"type": "custom_tool_call_output", "call_id": item.call_id, "output": "kept"}
        second = c.responses.create(input=[output], previous_response_id=r.id, tools=[NOTE], tool_choice="none", max_output_tokens=8, **LIMITS)
        check_new(second.to_dict()["convod"], 40)
        assert [i.type for i in c.responses.input_items.list(second.id).data] == ["custom_tool_call_output"]
        again = {"type": "custom_tool_call", "call_id": "mine", "name": "note", "input": item.input}
        third = c.responses.create(input=[asked, again, {**output, "call_id": "mine"}, {"role": "user", "content": "Go on."}], tools=[NOTE], tool_choice="none", max_output_tokens=8, **LIMITS)
        check_new(third.to_dict()["convod"], 40)
        nested = {"type": "custom", "custom": {"name": "note", "format": {"type": "grammar", "grammar": {"syntax": "regex", "definition": "yes|no"}}}}
        messages = [{"role": "user", "content": "Is it raining?"}]
        chat = c.chat.completions.create(messages=messages, tools=[nested], tool_choice={"type": "custom", "custom": {"name": "note"}}, max_tokens=40, **LIMITS)
        call = chat.choices[0].message.tool_calls[0]
        assert call.type == "custom" and call.custom.input in ("yes", "no"), chat
        messages += [chat.choices[0].message.to_dict(), {"role": "tool", "tool_call_id": call.id, "content": "noted"}]
        chat = c.chat.completions.create(messages=messages, tools=[nested], tool_choice="none", max_tokens=8, **LIMITS)
        check_new(chat.to_dict()["convod"], 40)
        d.stop()


PATCH = r"""
start: "*** Begin Patch" LF hunk "*** End Patch"
hunk: add_hunk | delete_hunk
add_hunk: "*** Add File: " filename LF line~1..2
delete_hunk: "*** Delete File: " filename LF
filename: /[a-z]{1,8}\.c/
line: "+" /[a-z ]{1,12}/ LF
%import common.LF
"""


def lark_grammars():
    """An agent's own language for patches: what the model writes is of it. One that cannot be kept to is refused by name."""
    with Scratch() as data:
        d = Daemon(data)
        c = client_of(d)
        grammar = {"syntax": "lark", "definition": PATCH}
        tool = {"type": "custom", "name": "apply_patch", "description": "Changes files.", "format": {"type": "grammar", **grammar}}
        nested = {"type": "custom", "custom": {"name": "apply_patch", "format": {"type": "grammar", "grammar": grammar}}}
        wanted = r"\*\*\* Begin Patch\n(\*\*\* Add File: [a-z]{1,8}\.c\n(\+[a-z ]{1,12}\n){1,2}|\*\*\* Delete File: [a-z]{1,8}\.c\n)\*\*\* End Patch"
        r = c.responses.create(input="Add a file main.c.", tools=[tool], tool_choice={"type": "custom", "name": "apply_patch"}, max_output_tokens=160, **LIMITS)
        item = r.output[0]
        assert r.status == "completed" and item.type == "custom_tool_call" and re.fullmatch(wanted, item.input), r
        chat = c.chat.completions.create(messages=[{"role": "user", "content": "Add a file."}], tools=[nested], tool_choice="required", max_tokens=160, **LIMITS)
        assert re.fullmatch(wanted, chat.choices[0].message.tool_calls[0].custom.input), chat
        tool["format"]["definition"] = 'start: "(" start ")" | "x"'
        try:
            c.responses.create(input="x", tools=[tool], **LIMITS)
            raise AssertionError("a grammar that no expression has was taken")
        except openai.BadRequestError as e:
            assert (e.param, e.code) == ("tools[0].format.definition", "invalid_grammar") and "start" in e.message, e
        d.stop()


def chosen_tools():
    """Calls are kept to the allowed tools, of which the model is told with the others; tools may stand in a namespace, or among the items."""
    with Scratch() as data:
        d = Daemon(data)
        c = client_of(d)
        tools = [*FLAT[:1], {"type": "function", "name": "now", "description": "The time.", "parameters": {"type": "object", "properties": {}}}]
        allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "now"}]}
        for i in range(3):
            r = c.responses.create(input="Weather in Oslo?", tools=tools, tool_choice=allowed, parallel_tool_calls=False, max_output_tokens=40, extra_body={"convod": {"seed": i}}, model=MODEL, temperature=1)
            assert call_of(r).name == "now", r.output
        assert c.responses.create(input="Hello.", tools=tools, tool_choice={**allowed, "mode": "auto"}, max_output_tokens=8, **LIMITS).tool_choice.mode == "auto"
        space = {"type": "namespace", "name": "sky", "description": "The sky.", "tools": FLAT[:1]}
        item = {"type": "additional_tools", "role": "developer", "tools": [space]}
        r = c.responses.create(input=[item, {"role": "user", "content": "Weather in Oslo?"}], tool_choice="required", parallel_tool_calls=False, max_output_tokens=64, **LIMITS)
        call = call_of(r)
        assert call.name == "get_weather" and call.to_dict()["namespace"] == "sky", call
        history = [item, {"role": "user", "content": "Weather in Oslo?"}, {"type": "function_call", "call_id": "x", "name": "get_weather", "namespace": "sky", "arguments": call.arguments}]
        r = c.responses.create(input=[*history, {"type": "function_call_output", "call_id": "x", "output": "rain"}], tool_choice="none", max_output_tokens=8, **LIMITS)
        check_new(r.to_dict()["convod"], 40)
        d.stop()


need(QWEN)
run(custom_tools, lark_grammars, chosen_tools, one_call, streamed, loop_stored, loop_not_stored, loop_of_completions, across_interfaces, references)
