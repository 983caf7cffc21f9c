#!/usr/bin/env python3
"""The anthropic package, unmodified, and a real model: messages, streams, tools, counts. Every request holds the whole history; what
goes through the model is asserted."""

import sys

from daemon import QWEN, Daemon, Scratch, need, run

try:
    import anthropic
except ImportError as e:
    print(f"skip: {e}")
    sys.exit(77)

FACT = "My kite is called Merlin. Remember it."
QUESTION = "What is my kite called? Answer with the name only."
LIMITS = {"model": "default", "max_tokens": 32, "extra_body": {"temperature": 0}}
WEATHER = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CALLS = 6


def client_of(d):
    return anthropic.Anthropic(base_url=d.url, api_key="unused", max_retries=0, timeout=300)


def check_new(message, most):
    """Only what is new went through the model, and that is no more than what was added takes. (A stream's helper keeps no fields
    that it does not know, so the usage must do.)"""
    assert 0 < message.usage.input_tokens <= most < message.usage.cache_read_input_tokens + most, message.usage
    convod = message.to_dict().get("convod")
    if convod:
        tokens = convod["tokens"]
        assert convod["reprefilled"] == [] and tokens["prefilled"] == tokens["new"] == message.usage.input_tokens, convod
        assert message.usage.cache_read_input_tokens == tokens["history"], message.usage


def text_of(message):
    return "".join(b.text for b in message.content if b.type == "text")


def history():
    with Scratch() as data:
        d = Daemon(data)
        c = client_of(d)
        listed = list(c.models.list())
        assert len(listed) == 1 and listed[0].display_name == listed[0].id and listed[0].created_at.year > 2000, listed
        assert c.models.retrieve(listed[0].id).id == listed[0].id
        messages = [{"role": "user", "content": FACT}]
        first = c.messages.create(messages=messages, system="Be brief.", **LIMITS)
        assert first.type == "message" and first.role == "assistant" and first.stop_reason in ("end_turn", "max_tokens"), first
        messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": QUESTION}]
        counted = c.messages.count_tokens(model="default", messages=messages, system="Be brief.")
        second = c.messages.create(messages=messages, system="Be brief.", **LIMITS)
        assert "Merlin" in text_of(second), second
        check_new(second, 40)
        assert counted.input_tokens == second.usage.input_tokens + second.usage.cache_read_input_tokens
        messages += [{"role": "assistant", "content": second.content[0].text}, {"role": "user", "content": [{"type": "text", "text": "And again?"}]}]
        with c.messages.stream(messages=messages, system="Be brief.", **LIMITS) as stream:
            text = "".join(stream.text_stream)
            third = stream.get_final_message()
        assert text == text_of(third) != "" and third.stop_reason in ("end_turn", "max_tokens"), third
        # The same was said over another interface: only the last message is new.
        chat = [{"role": "system", "content": "Be brief."}] + [{"role": m["role"], "content": m["content"]} for m in messages[:1]]
        chat += [{"role": "assistant", "content": text_of(first)}, {"role": "user", "content": "Thank you."}]
        other = d.ok("POST", "/v1/chat/completions", {"messages": chat, "max_tokens": 4, "temperature": 0})
        assert other["convod"]["tokens"]["prefilled"] == other["convod"]["tokens"]["new"] < 20, other["convod"]
        d.stop()


def agents_prompt():
    """A system prompt as a coding agent sends it, whose first line changes with every request."""
    with Scratch() as data:
        d = Daemon(data)
        c = client_of(d)
        messages = []
        for i in range(4):
            system = [
                {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1; cch={i:05x};"},
                {"type": "text", "text": "You are an agent for the terminal.", "cache_control": {"type": "ephemeral"}},
                {"type": "text", "text": "Answer in one line. " * 40, "cache_control": {"type": "ephemeral"}},
            ]
            reminder = {"type": "text", "text": "<system-reminder>Nothing changed.</system-reminder>"}
            messages.append({"role": "user", "content": [reminder, {"type": "text", "text": f"Say {i}."}]})
            answer = c.messages.create(
                messages=messages,
                system=system,
                tools=[WEATHER, {"type": "web_search_20250305", "name": "web_search"}],
                metadata={"user_id": "user_1"},
                thinking={"type": "adaptive"},
                **{**LIMITS, "extra_body": {"temperature": 0, "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}}},
            )
            if i:
                check_new(answer, 60)
            messages.append({"role": "assistant", "content": [b.to_dict() for b in answer.content]})
        d.stop()


def tools():
    with Scratch() as data:
        d = Daemon(data)
        c = client_of(d)
        messages = [{"role": "user", "content": "Weather in Oslo?"}]
        limits = {**LIMITS, "max_tokens": 64}
        for i in range(CALLS):
            with c.messages.stream(
                messages=messages, tools=[WEATHER], tool_choice={"type": "tool", "name": "get_weather"}, **limits
            ) as stream:
                names = [e.type for e in stream]
                answer = stream.get_final_message()
            assert "content_block_start" in names and "input_json" in names, names
            call = answer.content[-1]
            assert answer.stop_reason == "tool_use" and call.type == "tool_use" and call.name == "get_weather" and "city" in call.input, answer
            if i:
                check_new(answer, 60)
            # As an agent keeps it: its own objects, with the members of a call's input in an order of its own.
            kept = [{**b.to_dict(), "input": dict(reversed(b.input.items()))} if b.type == "tool_use" else b.to_dict() for b in answer.content]
            result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": f'{{"degrees": {i}}}'}]}
            messages += [{"role": "assistant", "content": kept}, {"role": "user", "content": [result]}]
        last = c.messages.create(messages=messages, tools=[WEATHER], tool_choice={"type": "none"}, **limits)
        check_new(last, 40)
        assert last.content[0].type == "text" and last.stop_reason in ("end_turn", "max_tokens"), last
        try:
            result = {"type": "tool_result", "tool_use_id": "toolu_other", "content": "x"}
            c.messages.create(messages=[*messages[:-1], {"role": "user", "content": [result]}], tools=[WEATHER], **limits)
            raise AssertionError("a result of no call was taken")
        except anthropic.BadRequestError as e:
            assert e.type == "invalid_request_error", e
        d.stop()


def threads():
    """State that is kept here: only what is new is sent. With tools the package sends all of it again, which costs no more."""
    with Scratch() as data:
        d = Daemon(data)
        c = client_of(d)
        thread = c.beta.messages.thread(system="Be brief.", **LIMITS)
        first = thread.send({"role": "user", "content": FACT})
        for _ in range(2):
            check_new(thread.send({"role": "user", "content": QUESTION}), 40)
        # The same as a history: nothing of it is new but the question.
        history = [*thread.messages, {"role": "user", "content": "And its colour?"}]
        check_new(c.messages.create(messages=history, system="Be brief.", **LIMITS), 40)
        # Each answer can be followed, and what is not there is known by its code.
        other = {"type": "continue", "previous_message_id": first.id}
        branch = c.beta.messages.create(messages=[{"role": "user", "content": "Say hello."}], thread=other, **LIMITS)
        check_new(branch, 40)
        for named, more, param in (
            ({"type": "continue", "previous_message_id": "msg_0"}, {}, "thread.previous_message_id"),
            (other, {"system": "x"}, "system"),
            (other, {"tools": [WEATHER]}, "tools"),
            ({"type": "continue"}, {}, "thread.previous_message_id"),
            ({"type": "other"}, {}, "thread.type"),
        ):
            try:
                c.beta.messages.create(messages=[{"role": "user", "content": "x"}], thread=named, **more, **LIMITS)
                raise AssertionError(named)
            except anthropic.BadRequestError as e:
                error = e.body["error"]
                assert error["param"] == param, error
                assert ("details" in error) == (named.get("previous_message_id") == "msg_0"), error

        @anthropic.beta_tool
        def get_weather(city: str) -> str:
            """The weather in a city.

            Args:
                city: its name
            """
            return f"{city}: 12 degrees, rain"

        ask = [{"role": "user", "content": "What is the weather in Oslo? Use the tool."}]
        replies = list(c.beta.messages.tool_runner(messages=ask, tools=[get_weather], max_iterations=3, **{**LIMITS, "max_tokens": 64}))
        assert replies[0].stop_reason == "tool_use" and len(replies) > 1, replies
        for reply in replies[1:]:
            check_new(reply, 60)
        d.stop()


def strict_tools():
    """A call of a strict tool fulfils its schema, whatever the model would have written; a schema that cannot be is refused by its name."""
    with Scratch() as data:
        d = Daemon(data)
        c = client_of(d)
        schema = {"type": "object", "properties": {"city": {"enum": ["Qaanaaq"]}, "days": {"type": "integer"}}, "required": ["city", "days"]}
        tool = {**WEATHER, "input_schema": {**schema, "additionalProperties": False}, "strict": True}
        ask = {"messages": [{"role": "user", "content": "Weather in Oslo?"}], "tool_choice": {"type": "any"}, **LIMITS, "max_tokens": 64}
        call = c.messages.create(tools=[tool], **ask).content[-1]
        assert call.type == "tool_use" and call.input["city"] == "Qaanaaq" and isinstance(call.input["days"], int), call
        try:
            c.messages.create(tools=[WEATHER, {**tool, "name": "none", "input_schema": {"type": "object", "minProperties": 2, "maxProperties": 1}}], **ask)
            raise AssertionError("a schema that nothing fulfils was taken")
        except anthropic.BadRequestError as e:
            assert e.type == "invalid_request_error" and e.body["error"]["param"] == "tools[1].input_schema", e.body
        d.stop()


def prefilled_answer():
    """A last message of the assistant is what the answer begins with; only what follows is answered."""
    with Scratch() as data:
        d = Daemon(data)
        c = client_of(d)
        messages = [{"role": "user", "content": "Count from one to ten in words, separated by commas."}, {"role": "assistant", "content": "one, two,"}]
        answer = c.messages.create(messages=messages, **LIMITS)
        assert text_of(answer).startswith(" three"), answer
        with c.messages.stream(messages=messages, **LIMITS) as stream:
            assert "".join(stream.text_stream) == text_of(answer)
        count = c.messages.count_tokens(model="default", messages=messages).input_tokens
        assert count == answer.usage.input_tokens + answer.usage.cache_read_input_tokens, (count, answer.usage)
        whole = [messages[0], {"role": "assistant", "content": "one, two," + text_of(answer)}, {"role": "user", "content": "Thanks."}]
        check_new(c.messages.create(messages=whole, **LIMITS), 20)
        d.stop()


def ends():
    with Scratch() as data:
        d = Daemon(data)
        c = client_of(d)
        ask = [{"role": "user", "content": "Count: 1 2 3 4 5. Repeat it."}]
        stopped = c.messages.create(messages=ask, stop_sequences=["never", "4"], **LIMITS)
        assert stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == "4" and "4" not in text_of(stopped), stopped
        # Asked for again with its key it is the same answer, with its end, also after a restart.
        key = {"extra_headers": {"Idempotency-Key": "one"}}
        first = c.messages.create(messages=ask, stop_sequences=["4"], **LIMITS, **key)
        for _ in range(2):
            again = c.messages.create(messages=ask, stop_sequences=["4"], **LIMITS, **key)
            assert (again.content, again.stop_reason, again.stop_sequence) == (first.content, "stop_sequence", "4"), again
            d.settle()
            d.kill()
            d.start()
            c = client_of(d)
        cut = c.messages.create(messages=ask, **{**LIMITS, "max_tokens": 2})
        assert cut.stop_reason == "max_tokens" and cut.usage.output_tokens == 2, cut
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
        formed = c.messages.create(messages=ask, output_config={"format": {"type": "json_schema", "schema": schema}}, **LIMITS)
        assert text_of(formed).startswith("{"), formed
        try:
            c.messages.create(messages=ask, **{**LIMITS, "model": "claude-opus"})
            raise AssertionError("an unknown model was accepted")
        except anthropic.NotFoundError as e:
            assert e.type == "not_found_error" and "claude-opus" in e.message, e
        try:
            c.messages.create(messages=[{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}], **LIMITS)
            raise AssertionError("an image was taken")
        except anthropic.BadRequestError as e:
            assert "messages[0].content[0]" in e.message, e
        d.stop()


need(QWEN)
run(history, agents_prompt, tools, threads, strict_tools, prefilled_answer, ends)
