#!/usr/bin/env python3
"""Structured output through what people ask for it with, unmodified: instructor in each of its modes for this API, LangChain, Pydantic
AI, the agents' output_type beside tools, and llm's schemas. They are installed in an environment of their own, for they want other
versions of the openai package than its newest."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from typing import Iterable, Literal

from daemon import BUILD, QWEN, Daemon, Prefilled, Scratch, client_of, need, run

HELPERS = os.path.abspath(os.path.join(BUILD, "helpers"))
PYTHON = os.path.join(HELPERS, "bin", "python")
if sys.prefix != HELPERS and os.path.exists(PYTHON):
    os.execv(PYTHON, [PYTHON, *sys.argv])
os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"

try:
    import instructor
    import llm  # noqa: F401 - run as a program
    from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool
    from langchain_openai import ChatOpenAI
    from openai import AsyncOpenAI
    from pydantic import BaseModel, ConfigDict, Field
    from pydantic_ai import Agent as PydanticAgent
    from pydantic_ai import NativeOutput, PromptedOutput, ToolOutput
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel as PydanticResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider
except ImportError as e:
    print(f"skip: {e}")
    sys.exit(77)

MODEL = "default"
GREEDY = ("-o", "temperature", "0", "-o", "max_tokens", "200")  # of llm: else a string without a bound may take its time
ASKED = "Lisbon is the capital of Portugal. Which place is this?"


class Closed(BaseModel):
    """Of these a schema says that they have no other members, which a model may go on with until it is cut."""

    model_config = ConfigDict(extra="forbid")


class Place(Closed):
    """A place on Earth."""

    name: str = Field(max_length=30)
    country: str = Field(max_length=30)


class Named(BaseModel):
    name: str
    country: str


class Rated(Closed):
    """A place with a mark."""

    place: Place
    kind: Literal["city", "river", "mountain"]
    stars: int = Field(ge=1, le=5)


def with_instructor():
    """All modes that it takes for this API: those that ask for a schema to be kept with one that the model would hardly keep by itself,
    the others with one that it can."""
    kept = {instructor.Mode.JSON_SCHEMA}  # its TOOLS_STRICT says nothing of strict
    tried = set()
    with Scratch() as data:
        d = Daemon(data)
        c = client_of(d)
        for mode in instructor.Mode:
            try:
                client = instructor.from_openai(c, mode=mode)
            except Exception as e:  # noqa: BLE001 - each version refuses those of other APIs in its own way
                assert "mode" in str(e).lower(), e
                continue
            limit = {"max_output_tokens" if "responses" in mode.value else "max_tokens": 200}
            if mode == instructor.Mode.PARALLEL_TOOLS:
                # The model is free to call or not, so that it is told to.
                answer = list(client.chat.completions.create(
                    model=MODEL, messages=[{"role": "user", "content": "Call Named(name='Lisbon', country='Portugal')."}],
                    response_model=Iterable[Named], temperature=0, max_retries=0, **limit))  # fmt: skip
                assert answer and isinstance(answer[0], Named), answer
            else:
                model = Rated if mode in kept else Named
                answer = client.chat.completions.create(
                    model=MODEL, messages=[{"role": "user", "content": ASKED}], response_model=model, temperature=0, max_retries=0, **limit)  # fmt: skip
                assert isinstance(answer, model), answer
            tried.add(mode.name)
        assert tried >= {"TOOLS", "TOOLS_STRICT", "JSON", "JSON_SCHEMA", "MD_JSON", "PARALLEL_TOOLS", "RESPONSES_TOOLS"}, tried
        print(f"# {len(tried)} modes: {', '.join(sorted(tried))}")
        d.stop()


def with_langchain():
    with Scratch() as data:
        d = Daemon(data)
        for responses in (False, True):
            chat = ChatOpenAI(base_url=f"{d.url}/v1", api_key="unused", model=MODEL, temperature=1, max_tokens=200, max_retries=0, use_responses_api=responses)
            for method, options in (("json_schema", {}), ("json_schema", {"strict": True}), ("function_calling", {"strict": True}), ("json_mode", {})):
                free = method == "json_mode"
                model = Place if free else Rated
                asked = ASKED + (' Answer as {"name": ..., "country": ...}.' if free else "")
                answer = chat.with_structured_output(model, method=method, include_raw=True, **options).invoke(asked)
                assert isinstance(answer["parsed"], model) or free, answer
                assert not free or isinstance(json.loads(answer["raw"].text), dict), answer
        d.stop()


def with_pydantic_ai():
    with Scratch() as data:
        d = Daemon(data)
        provider = OpenAIProvider(base_url=f"{d.url}/v1", api_key="unused")
        settings = {"temperature": 1, "max_tokens": 200}
        for kind in (OpenAIChatModel, PydanticResponsesModel):
            for output in (NativeOutput(Rated, strict=True), NativeOutput([Place, Rated]), ToolOutput(Rated, strict=True), [ToolOutput(Place, strict=True), ToolOutput(Rated, strict=True)]):
                agent = PydanticAgent(kind(MODEL, provider=provider), output_type=output, retries=0, model_settings=settings)
                answer = agent.run_sync(ASKED).output
                assert isinstance(answer, (Place, Rated)), answer
        agent = PydanticAgent(OpenAIChatModel(MODEL, provider=provider), output_type=PromptedOutput(Place), retries=2, model_settings={**settings, "temperature": 0})
        assert isinstance(agent.run_sync(ASKED).output, Place)
        d.stop()


def with_agents():
    """A call and then the output, or the output beside a tool that there is."""
    with Scratch() as data:
        d = Daemon(data)
        calls = []

        @function_tool(is_enabled=lambda *_: not calls)
        def country_of(city: str) -> str:
            """The country that a city is in."""
            calls.append(city)
            return "Portugal"

        client = AsyncOpenAI(base_url=f"{d.url}/v1", api_key="unused", max_retries=0, timeout=300)
        for kind in (OpenAIResponsesModel, OpenAIChatCompletionsModel):
            for choice in ("required", "none"):
                agent = Agent(
                    name="guide", instructions="Use the tool, then answer.", model=kind(model=MODEL, openai_client=client), tools=[country_of], output_type=Rated,
                    model_settings=ModelSettings(temperature=0, max_tokens=200, tool_choice=choice, parallel_tool_calls=False),
                )  # fmt: skip
                calls.clear()
                answer = asyncio.run(Runner.run(agent, "Where is Lisbon?", max_turns=2)).final_output
                assert isinstance(answer, Rated) and len(calls) == (choice == "required"), (answer, calls)
        d.stop()


def llm_of(d, home):
    """llm as a program, with the daemon as one of its models: what it prints."""
    with open(os.path.join(home, "extra-openai-models.yaml"), "w") as f:
        f.write(f"- model_id: convod\n  model_name: {MODEL}\n  api_base: {d.url}/v1\n  supports_schema: true\n  supports_tools: true\n")

    def ask(*arguments, may_fail="?"):
        python = PYTHON if os.path.exists(PYTHON) else sys.executable
        out = subprocess.run([python, "-m", "llm", *arguments], env={**os.environ, "LLM_USER_PATH": home}, capture_output=True, text=True, timeout=300)
        assert out.returncode == 0 or may_fail in out.stderr, out.stderr
        return out.stdout

    return ask


def with_llm():
    with Scratch() as data, tempfile.TemporaryDirectory() as home:
        d = Daemon(data)
        ask = llm_of(d, home)
        answer = json.loads(ask("-m", "convod", "--no-stream", "--key", "unused", *GREEDY, "--schema", "name, country, stars int", ASKED))
        assert set(answer) >= {"name", "country", "stars"} and isinstance(answer["stars"], int), answer
        d.stop()


def llm_goes_on():
    """A conversation that it keeps in its own database, and sends again as a whole; a tool in its own loop."""
    with Scratch() as data, tempfile.TemporaryDirectory() as home:
        d = Daemon(data)
        ask, new = llm_of(d, home), Prefilled(d, 60)
        options = ("--key", "unused", "-o", "temperature", "0", "-o", "max_tokens", "24")
        ask("-m", "convod", *options, "-s", "You keep a diary of the weather. " * 12, "My kite is called Merlin. Say ok.")
        new.check(first=True)
        for question in ("What is my kite called? Answer with its name alone.", "Spell it."):
            assert ask("-c", *options, question).strip()
            new.check(first=False)
        called = os.path.join(home, "called")
        code = f"def weather(city: str) -> str:\n    \"The weather in a city.\"\n    open({called!r}, 'a').write('x')\n    return 'rain in ' + city\n"
        before = d.ok("GET", "/v1/convod/status")
        ask("-m", "convod", *options[:5], "-o", "max_tokens", "60", "--functions", code, "--chain-limit", "2", "What is the weather in Oslo? Call the tool.", may_fail="Chain limit")
        now = d.ok("GET", "/v1/convod/status")
        requests = sum(now["turns"][k] - before["turns"][k] for k in ("completed", "incomplete"))
        with open(called) as f:
            assert len(f.read()) >= 1 and requests == 2, requests
        prefilled, again = new.next()
        assert again == 0 and 150 < prefilled < 300, (prefilled, again)
        d.stop()


need(QWEN)
run(with_instructor, with_langchain, with_pydantic_ai, with_agents, with_llm, llm_goes_on)
