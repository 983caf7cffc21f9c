#!/usr/bin/env python3
"""Frameworks of other makers, unmodified: each holds a conversation of three turns and calls a tool, through every interface of ours that
it speaks. What the daemon prefills is asserted for each request: the first one's all, of the others what is new."""

import os
import sys

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

from daemon import QWEN, Daemon, Prefilled, Scratch, need, run  # noqa: E402

LONG = "You keep a diary of the weather. " * 12
QUESTIONS = ["My kite is called Merlin. Say ok.", "What is my kite called? Answer with its name alone.", "Spell it."]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False},
    },
}
NEW = 60  # tokens that a further message may take, with what stands around it


def litellm_speaks(d, model, base):
    import litellm

    settings = {"model": model, "api_base": base, "api_key": "unused", "temperature": 0, "max_tokens": 24, "num_retries": 0}
    messages, prefilled = [{"role": "system", "content": LONG}], Prefilled(d, NEW)
    for i, question in enumerate(QUESTIONS):
        messages.append({"role": "user", "content": question})
        if i == 2:
            chunks = list(litellm.completion(messages=messages, stream=True, **settings))
            assert "".join(c.choices[0].delta.content or "" for c in chunks)
        else:
            answer = litellm.completion(messages=messages, **settings).choices[0].message
            assert i == 0 or "Merlin" in answer.content, answer
            messages.append({"role": "assistant", "content": answer.content})
        prefilled.check(first=i == 0)
    messages = [{"role": "system", "content": LONG}, {"role": "user", "content": "Weather in Oslo?"}]
    choice = {"type": "function", "function": {"name": "get_weather"}}
    for i in range(2):
        answer = litellm.completion(messages=messages, tools=[WEATHER], tool_choice=choice, **{**settings, "max_tokens": 64})
        call = answer.choices[0].message.tool_calls[0]
        assert call.function.name == "get_weather" and answer.choices[0].finish_reason == "tool_calls", answer
        prefilled.check(first=i == 0)
        messages += [answer.choices[0].message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "21 degrees"}]


def litellm_openai():
    with Scratch() as data:
        d = Daemon(data)
        litellm_speaks(d, "openai/default", f"{d.url}/v1")
        d.stop()


def litellm_anthropic():
    with Scratch() as data:
        d = Daemon(data)
        litellm_speaks(d, "anthropic/default", d.url)
        d.stop()


def langchain_speaks(d, **more):
    from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
    from langchain_openai import ChatOpenAI

    settings = {"base_url": f"{d.url}/v1", "api_key": "unused", "model": "default", "temperature": 0, "max_retries": 0, **more}
    model = ChatOpenAI(max_tokens=24, **settings)
    messages, prefilled = [SystemMessage(LONG)], Prefilled(d, NEW)
    for i, question in enumerate(QUESTIONS):
        messages.append(HumanMessage(question))
        if i == 2:
            assert "".join(c.text for c in model.stream(messages))
        else:
            answer = model.invoke(messages)
            assert i == 0 or "Merlin" in answer.text, answer
            messages.append(answer)
        prefilled.check(first=i == 0)
    bound = ChatOpenAI(max_tokens=64, **settings).bind_tools([WEATHER], tool_choice="get_weather")
    messages = [SystemMessage(LONG), HumanMessage("Weather in Oslo?")]
    for i in range(2):
        answer = bound.invoke(messages)
        call = answer.tool_calls[0]
        assert call["name"] == "get_weather" and "city" in call["args"], answer
        prefilled.check(first=i == 0)
        messages += [answer, ToolMessage("21 degrees", tool_call_id=call["id"])]


def langchain_chat():
    with Scratch() as data:
        d = Daemon(data)
        langchain_speaks(d)
        d.stop()


def langchain_responses():
    with Scratch() as data:
        d = Daemon(data)
        langchain_speaks(d, use_responses_api=True)
        d.stop()


def pydantic_speaks(d, kind):
    from pydantic import BaseModel
    from pydantic_ai import Agent, AgentRunError, NativeOutput, UsageLimits, capture_run_messages
    from pydantic_ai.providers.openai import OpenAIProvider

    class Kite(BaseModel):
        name: str
        lines: int

    model = kind("default", provider=OpenAIProvider(base_url=f"{d.url}/v1", api_key="unused"))
    agent = Agent(model, instructions=LONG, model_settings={"temperature": 0, "max_tokens": 24})
    history, prefilled = [], Prefilled(d, NEW)
    for i, question in enumerate(QUESTIONS):
        result = agent.run_sync(question, message_history=history)
        assert i != 1 or "Merlin" in result.output, result.output
        history = result.all_messages()
        prefilled.check(first=i == 0)
    # Its own loop of calls: an output tool beside one that is called first.
    called = []
    tooled = Agent(model, instructions=LONG, output_type=Kite, retries=0, model_settings={"temperature": 0, "max_tokens": 96})

    @tooled.tool_plain
    def kite_name(owner: str) -> str:
        """The name of somebody's kite."""
        called.append(owner)
        return "Merlin"

    prefilled.next()
    with capture_run_messages() as said:
        try:
            tooled.run_sync("What is the name of Ann's kite, which has 2 lines?", usage_limits=UsageLimits(request_limit=3))
        except AgentRunError as e:  # a small model may call wrongly, or never end
            print(f"# {type(e).__name__}")
    kinds = [part.part_kind for message in said for part in message.parts]
    assert "tool-call" in kinds, kinds
    first, requests = said[1].usage, [m.usage for m in said if m.kind == "response"]
    assert first.input_tokens > 100 and all(0 < u.input_tokens - u.cache_read_tokens <= NEW for u in requests[1:]), requests
    # A typed answer: by its schema.
    typed = Agent(model, instructions=LONG, output_type=NativeOutput(Kite), model_settings={"temperature": 0, "max_tokens": 64})
    result = typed.run_sync("The kite is called Merlin, and has 2 lines. Describe it.")
    assert isinstance(result.output, Kite), result.output


def pydantic_chat():
    from pydantic_ai.models.openai import OpenAIChatModel

    with Scratch() as data:
        d = Daemon(data)
        pydantic_speaks(d, OpenAIChatModel)
        d.stop()


def pydantic_responses():
    from pydantic_ai.models.openai import OpenAIResponsesModel

    with Scratch() as data:
        d = Daemon(data)
        pydantic_speaks(d, OpenAIResponsesModel)
        d.stop()


need(QWEN)
try:
    import langchain_openai  # noqa: F401
    import litellm  # noqa: F401
    import pydantic_ai  # noqa: F401
except ImportError as e:
    print(f"skip: {e}")
    sys.exit(77)
run(litellm_openai, litellm_anthropic, langchain_chat, langchain_responses, pydantic_chat, pydantic_responses)
