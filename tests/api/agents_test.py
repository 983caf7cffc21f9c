#!/usr/bin/env python3
"""The openai-agents package, unmodified: agents with tools over Responses (HTTP and WebSocket) and Chat Completions, with a session
that resends everything and chained by ids. What each request prefills is asserted; where a call must come, it is required."""

import asyncio
import os
import sys

os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"

from daemon import QWEN, Daemon, Scratch, need, run  # noqa: E402

try:
    import openai
    from agents import Agent, ModelSettings, OpenAIConversationsSession, Runner, SQLiteSession, function_tool
    from agents.models.openai_chatcompletions import OpenAIChatCompletionsModel
    from agents.models.openai_responses import OpenAIResponsesModel, OpenAIResponsesWSModel
except ImportError as e:
    print(f"skip: {e}")
    sys.exit(77)

NEW_MOST = 80  # tokens that a result or a short question takes, with what closes the answer before it


class Tools:
    """Two tools that count their calls."""

    def __init__(self):
        self.calls = []

        @function_tool
        def get_weather(city: str) -> str:
            """The weather in a city."""
            self.calls.append(("get_weather", city))
            return f"It is sunny in {city}."

        @function_tool
        def add(a: float, b: float) -> float:
            """Adds two numbers."""
            self.calls.append(("add", a, b))
            return a + b

        self.list = [get_weather, add]


def agent_of(model, tools, choice):
    settings = ModelSettings(temperature=0, max_tokens=48, tool_choice=choice)
    return Agent(name="Helper", instructions="Use the tools.", model=model, model_settings=settings, tools=tools.list, tool_use_behavior="stop_on_first_tool")


def client_of(d):
    return openai.AsyncOpenAI(base_url=f"{d.url}/v1", api_key="unused", max_retries=0, timeout=300)


def check_new(usages):
    """Everything but the first request found what was there."""
    for usage in usages[1:]:
        cached = usage.input_tokens_details.cached_tokens
        assert cached > 0 and usage.input_tokens - cached <= NEW_MOST, usages
    assert usages[0].input_tokens > 100, usages


async def three_turns(model, session, **more):
    """A call that is required, then two questions that the model may answer as it likes."""
    tools = Tools()
    usages = []
    result = await Runner.run(agent_of(model, tools, "get_weather"), "What is the weather in Oslo?", session=session, **more)
    assert tools.calls and tools.calls[0][0] == "get_weather", tools.calls
    assert result.final_output == f"It is sunny in {tools.calls[0][1]}.", result.final_output
    usages += [r.usage for r in result.raw_responses]
    for question in ("And in Rome?", "Thank you."):
        if more:
            more["previous_response_id"] = result.last_response_id
        result = await Runner.run(agent_of(model, tools, None), question, session=session, **more)
        usages += [r.usage for r in result.raw_responses]
    check_new(usages)
    return usages


def resent_over_responses():
    with Scratch() as data:
        d = Daemon(data)
        asyncio.run(three_turns(OpenAIResponsesModel("default", client_of(d)), SQLiteSession("one")))
        d.stop()


def kept_in_a_conversation():
    """A session that keeps its items on the server, and still resends them all."""

    async def all_of_it(d):
        client = client_of(d)
        session = OpenAIConversationsSession(openai_client=client)
        await three_turns(OpenAIResponsesModel("default", client), session)
        kinds = [item["type"] for item in await session.get_items()]
        assert kinds[:3] == ["message", "function_call", "function_call_output"] and len(kinds) > 5, kinds

    with Scratch() as data:
        d = Daemon(data)
        asyncio.run(all_of_it(d))
        d.stop()


def chained_by_ids():
    with Scratch() as data:
        d = Daemon(data)
        asyncio.run(three_turns(OpenAIResponsesModel("default", client_of(d)), None, auto_previous_response_id=True))
        d.stop()


def resent_over_completions():
    with Scratch() as data:
        d = Daemon(data)
        asyncio.run(three_turns(OpenAIChatCompletionsModel("default", client_of(d)), SQLiteSession("one")))
        d.stop()


def resent_over_websocket():
    async def all_of_it(d):
        model = OpenAIResponsesWSModel("default", client_of(d))
        await three_turns(model, SQLiteSession("one"))
        await model.close()

    with Scratch() as data:
        d = Daemon(data)
        asyncio.run(all_of_it(d))
        d.stop()


def loop_to_the_end():
    """Call, result, answer: the framework's own loop, streamed. It asks again without requiring a call."""

    async def all_of_it(d):
        tools = Tools()
        agent = agent_of(OpenAIResponsesModel("default", client_of(d)), tools, "required")
        agent.tool_use_behavior = "run_llm_again"
        result = Runner.run_streamed(agent, "What is the weather in Oslo?", max_turns=2)
        kinds, over = set(), False
        try:
            async for event in result.stream_events():
                if event.type == "run_item_stream_event":
                    kinds.add(event.name)
        except openai.OpenAIError:
            raise
        except Exception as e:  # noqa: BLE001 - a small model may call tools until the framework has had enough
            over = type(e).__name__ == "MaxTurnsExceeded"
            assert over, e
        assert {"tool_called", "tool_output"} <= kinds, kinds
        assert over or result.final_output is not None
        check_new([r.usage for r in result.raw_responses])

    with Scratch() as data:
        d = Daemon(data)
        asyncio.run(all_of_it(d))
        d.stop()


need(QWEN)
run(resent_over_responses, kept_in_a_conversation, chained_by_ids, resent_over_completions, resent_over_websocket, loop_to_the_end)
