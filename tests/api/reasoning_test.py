#!/usr/bin/env python3
"""Thinking in the clients of other makers, unmodified: each shows it apart from the answer, streamed and whole, and whatever of it is
sent back, the next turn prefills what is new alone. The model is random, and thinks whenever it answers."""

import asyncio
import os
import sys

os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

from daemon import MAKER, Daemon, Prefilled, Scratch, client_of, made_model, need, run  # noqa: E402

try:
    import anthropic
    import langchain_openai
    import litellm
    import openai
    import pydantic_ai
    from agents import Agent, ModelSettings, OpenAIConversationsSession, Runner, SQLiteSession
    from agents.models.openai_chatcompletions import OpenAIChatCompletionsModel
    from agents.models.openai_responses import OpenAIResponsesModel
    from openai.types.responses import Response, ResponseStreamEvent
    from openai.types.shared import Reasoning
    from pydantic import TypeAdapter
except ImportError as e:
    print(f"skip: {e}")
    sys.exit(77)

EVENT = TypeAdapter(ResponseStreamEvent)
QUESTIONS = ["tell me more " * 20, "go on", "and then?"]
NEW = 120  # tokens that a question takes, with what stands around it
LIMIT = 24
OWN = {"convod": {"thinking_tokens": 6, "seed": 1}}  # else a random model would think until its limit
WORD = {"syntax": "regex", "definition": "[a-z]{1,6}"}  # and write until then, where a client wants an answer that has ended
ENDED = {**OWN, "text": {"format": {"type": "json_schema", "name": "word", "schema": {"enum": ["so it is"]}, "strict": True}}}
ENDED_CHAT = {"thinking_tokens": 6, "seed": 1, "response_format": {"type": "grammar", "grammar": WORD}}


def daemon(data):
    return Daemon(data, model=made_model(data, 4096, "thinks"))


def responses_items():
    """Items and events of thinking, by the package's types; sent back as they came, without their ids, or not at all."""
    with Scratch() as data:
        d = daemon(data)
        c = client_of(d)
        for summary in (None, "auto"):
            ask = {"model": "default", "max_output_tokens": LIMIT, "extra_body": ENDED, "store": False, **({"reasoning": {"summary": summary}} if summary else {})}
            history, new = [], Prefilled(d, NEW)
            for i, question in enumerate(QUESTIONS):
                history.append({"role": "user", "content": f"{summary} {question}"})
                events = [EVENT.validate_python(e.to_dict()) for e in c.responses.create(input=history, stream=True, **ask)]
                new.check(first=i == 0)
                assert [e.sequence_number for e in events] == list(range(len(events)))
                response = events[-1].response
                Response.model_validate(response.to_dict())
                item = response.output[0]
                assert item.type == "reasoning" and response.usage.output_tokens_details.reasoning_tokens > 0, response
                kind = "response.reasoning_summary_text.delta" if summary else "response.reasoning_text.delta"
                told = "".join(e.delta for e in events if e.type == kind)
                assert told == "".join(part.text for part in (item.summary if summary else item.content)) != "", item
                assert summary or not item.summary
                # As it came; the same without its id; left out.
                output = [o.to_dict() for o in response.output]
                if i == 1:
                    output = [{k: v for k, v in o.items() if k != "id"} for o in output if o["type"] != "reasoning"]
                history += output
        # Chained, and retrieved.
        first = c.responses.create(input=QUESTIONS[0], reasoning={"effort": "low"}, model="default", max_output_tokens=LIMIT, extra_body=ENDED)
        assert c.responses.retrieve(first.id).output == first.output
        second = c.responses.create(input="go on", previous_response_id=first.id, model="default", max_output_tokens=LIMIT, extra_body=ENDED).to_dict()
        assert second["convod"]["tokens"]["prefilled"] == second["convod"]["tokens"]["new"] < NEW, second["convod"]
        none = c.responses.create(input="go on", previous_response_id=first.id, reasoning={"effort": "none"}, model="default", max_output_tokens=LIMIT)
        assert none.usage.output_tokens_details.reasoning_tokens <= 3, none.usage
        d.stop()


def chat_completions():
    with Scratch() as data:
        d = daemon(data)
        c = client_of(d)
        messages, new = [], Prefilled(d, NEW)
        for i, question in enumerate(QUESTIONS):
            messages.append({"role": "user", "content": question})
            ask = {"model": "default", "messages": messages, "max_tokens": LIMIT, "extra_body": ENDED_CHAT}
            if i == 1:
                chunks = list(c.chat.completions.create(stream=True, stream_options={"include_usage": True}, **ask))
                deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
                thought = "".join(delta.to_dict().get("reasoning_content") or "" for delta in deltas)
                said, usage = "".join(delta.content or "" for delta in deltas), chunks[-1].usage
            else:
                answer = c.chat.completions.create(**ask)
                message = answer.choices[0].message
                thought, said, usage = message.to_dict()["reasoning_content"], message.content or "", answer.usage
            new.check(first=i == 0)
            assert thought and usage.completion_tokens_details.reasoning_tokens > 0, (thought, usage)
            messages.append({"role": "assistant", "content": said, **({"reasoning_content": thought} if i else {})})
        d.stop()


def with_litellm():
    with Scratch() as data:
        d = daemon(data)
        for model, base, more in (
            ("openai/default", f"{d.url}/v1", {"extra_body": ENDED_CHAT}),
            ("anthropic/default", d.url, {"temperature": 0, "thinking": {"type": "enabled", "budget_tokens": 6}, "allowed_openai_params": ["thinking"]}),
        ):
            messages, new = [], Prefilled(d, NEW)
            for i, question in enumerate(QUESTIONS):
                messages.append({"role": "user", "content": f"{model[:4]} {question}"})
                ask = {"model": model, "api_base": base, "api_key": "unused", "num_retries": 0, "max_tokens": LIMIT, "messages": messages, **more}
                if i == 1:
                    chunks = list(litellm.completion(stream=True, **ask))
                    message = litellm.stream_chunk_builder(chunks, messages=messages).choices[0].message
                else:
                    message = litellm.completion(**ask).choices[0].message
                new.check(first=i == 0)
                assert message.reasoning_content, message
                messages.append(message.model_dump())
        d.stop()


def with_langchain():
    from langchain_core.messages import HumanMessage

    with Scratch() as data:
        d = daemon(data)
        model = langchain_openai.ChatOpenAI(
            base_url=f"{d.url}/v1", api_key="unused", model="default", max_retries=0, max_tokens=LIMIT, use_responses_api=True, reasoning={"summary": "auto"}, extra_body=ENDED,
        )  # fmt: skip
        messages, new = [], Prefilled(d, NEW)
        for i, question in enumerate(QUESTIONS):
            messages.append(HumanMessage(question))
            answer = model.invoke(messages)
            new.check(first=i == 0)
            if i == 1:  # the same again, streamed: the last token once more
                answer = None
                for chunk in model.stream(messages):
                    answer = chunk if answer is None else answer + chunk
                again = new.next()
                assert again == (1, 0), again
            assert [b for b in answer.content_blocks if b["type"] == "reasoning" and b.get("reasoning")], answer
            messages.append(answer)
        d.stop()


def with_pydantic_ai():
    from pydantic_ai.messages import ThinkingPart
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    with Scratch() as data:
        d = daemon(data)
        provider = OpenAIProvider(base_url=f"{d.url}/v1", api_key="unused")
        for kind, more in ((OpenAIChatModel, {"extra_body": ENDED_CHAT}), (OpenAIResponsesModel, {"extra_body": ENDED, "openai_reasoning_summary": "auto"})):
            agent = pydantic_ai.Agent(kind("default", provider=provider), retries=0, model_settings={"max_tokens": 400, **more})
            history, new = [], Prefilled(d, NEW)
            for i, question in enumerate(QUESTIONS):
                result = agent.run_sync(f"{kind.__name__} {question}", message_history=history)
                new.check(first=i == 0)
                parts = result.new_messages()[-1].parts
                assert [p for p in parts if isinstance(p, ThinkingPart) and p.content], parts
                history = result.all_messages()
        d.stop()


def with_anthropic():
    with Scratch() as data:
        d = daemon(data)
        c = anthropic.Anthropic(base_url=d.url, api_key="unused", max_retries=0, timeout=300)
        messages, new = [], Prefilled(d, NEW)
        for i, question in enumerate(QUESTIONS):
            messages.append({"role": "user", "content": question})
            ask = {"model": "default", "max_tokens": LIMIT, "thinking": {"type": "enabled", "budget_tokens": 6}, "messages": messages, "extra_body": {"temperature": 0}}
            if i == 1:
                with c.messages.stream(**ask) as stream:
                    thought = "".join(e.thinking for e in stream if e.type == "thinking")
                    message = stream.get_final_message()
            else:
                message = c.messages.create(**ask)
                thought = message.content[0].thinking
            new.check(first=i == 0)
            assert message.content[0].type == "thinking" and thought == message.content[0].thinking != "", message
            messages.append({"role": "assistant", "content": message.content if i else [b for b in message.content if b.type == "text"]})
        d.stop()


def with_agents():
    """The items of its sessions hold the thinking, and send it back."""

    async def turns(d, model, session):
        settings = ModelSettings(max_tokens=400, reasoning=Reasoning(effort="low", summary="auto"), extra_body=ENDED if isinstance(model, OpenAIResponsesModel) else ENDED_CHAT)
        agent = Agent(name="Helper", model=model, model_settings=settings)
        new = Prefilled(d, NEW)
        for i, question in enumerate(QUESTIONS):
            result = await Runner.run(agent, f"{type(model).__name__} {type(session).__name__} {question}", session=session)
            new.check(first=i == 0)
            assert "reasoning_item" in [item.type for item in result.new_items], result.new_items

    with Scratch() as data:
        d = daemon(data)
        for kind, session in (
            (OpenAIResponsesModel, lambda client: SQLiteSession("one")),
            (OpenAIResponsesModel, lambda client: OpenAIConversationsSession(openai_client=client)),
            (OpenAIChatCompletionsModel, lambda client: SQLiteSession("two")),
        ):
            client = openai.AsyncOpenAI(base_url=f"{d.url}/v1", api_key="unused", max_retries=0, timeout=300)
            asyncio.run(turns(d, kind("default", client), session(client)))
        d.stop()


need(MAKER)
run(responses_items, chat_completions, with_litellm, with_langchain, with_pydantic_ai, with_anthropic, with_agents)
