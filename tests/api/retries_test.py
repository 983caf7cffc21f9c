#!/usr/bin/env python3
"""Connections that break under the clients of other makers, unmodified, each with its own retries: the answer comes, and its turn is there
once. What is refused is each client's own error, and is not sent again."""

import os
import socket
import sys
import threading

os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

from daemon import QWEN, Daemon, Scratch, need, run  # noqa: E402

try:
    import anthropic
    import langchain_openai
    import litellm
    import openai
    import pydantic_ai
except ImportError as e:
    print(f"skip: {e}")
    sys.exit(77)

ASKED = "Name a colour."
LIMIT = 8


class Breaks:
    """A way to the daemon. The first `times` connections are cut when their answer begins."""

    def __init__(self, d):
        self.d = d
        self.times = self.seen = 0
        self.door = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.door.getsockname()[1]}"
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            threading.Thread(target=self.carry, args=(self.door.accept()[0],), daemon=True).start()

    def carry(self, client):
        self.seen += 1
        cut = self.seen <= self.times
        there = socket.create_connection((self.d.address, self.d.port))
        threading.Thread(target=self.copy, args=(client, there, not cut), daemon=True).start()
        if cut:
            there.recv(1)
            client.shutdown(socket.SHUT_RDWR)
            there.close()  # with what it has not read: the daemon sees a reset, and nothing before it
        else:
            self.copy(there, client, True)

    def copy(self, source, target, end):
        try:
            while piece := source.recv(65536):
                target.sendall(piece)
            if end:
                target.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def begin(self, times):
        self.times, self.seen = times, 0
        self.before = self.turns()

    def turns(self):
        return self.d.ok("GET", "/v1/convod/status")["turns"]

    def check(self, asked):
        """So many connections, one turn."""
        assert self.seen == asked, self.seen
        now = self.turns()
        ended = sum(now[k] - self.before[k] for k in ("completed", "incomplete", "failed"))
        assert ended == 1, (self.before, now)


def clients(url):
    """How each client asks, and what it raises."""
    messages = [{"role": "user", "content": ASKED}]
    base = f"{url}/v1"
    c = openai.OpenAI(base_url=base, api_key="unused", max_retries=2, timeout=60)
    a = anthropic.Anthropic(base_url=url, api_key="unused", max_retries=2, timeout=60)
    yield "responses", lambda **k: c.responses.create(model="default", input=ASKED, max_output_tokens=LIMIT, **k).output_text, openai.BadRequestError
    yield "chat", lambda **k: c.chat.completions.create(model="default", messages=messages, max_tokens=LIMIT, **k).choices[0].message.content, openai.BadRequestError
    yield "messages", lambda **k: a.messages.create(model="default", messages=messages, max_tokens=LIMIT, extra_body=k).content[0].text, anthropic.BadRequestError
    for responses in (False, True):
        chat = langchain_openai.ChatOpenAI(base_url=base, api_key="unused", model="default", max_tokens=LIMIT, max_retries=2, use_responses_api=responses)
        yield f"langchain {responses}", lambda chat=chat, **k: chat.invoke(ASKED, **k).text, openai.BadRequestError
    yield "litellm", lambda **k: litellm.completion(model="openai/default", api_base=base, api_key="unused", messages=messages, max_tokens=LIMIT, max_retries=2, **k).choices[0].message.content, litellm.BadRequestError  # fmt: skip
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    for kind in (OpenAIChatModel, OpenAIResponsesModel):
        client = openai.AsyncOpenAI(base_url=base, api_key="unused", max_retries=2, timeout=60)
        agent = pydantic_ai.Agent(kind("default", provider=OpenAIProvider(openai_client=client)), retries=0)
        yield kind.__name__, lambda agent=agent, **k: agent.run_sync(ASKED, model_settings={"max_tokens": LIMIT, "temperature": k.get("temperature", 0)}).output, pydantic_ai.exceptions.ModelHTTPError


def broken_connections():
    with Scratch() as data:
        d = Daemon(data)
        way = Breaks(d)
        for name, ask, _ in clients(way.url):
            way.begin(1)
            try:
                assert ask(), name
                way.check(2)
            except BaseException:
                print(f"# {name}")
                raise
        d.stop()


def refused():
    with Scratch() as data:
        d = Daemon(data)
        way = Breaks(d)
        for name, ask, error in clients(way.url):
            way.begin(0)
            try:
                ask(temperature=99)
                raise AssertionError(name)
            except error as e:
                assert "temperature" in str(e), (name, e)
            assert way.seen == 1 and way.turns() == way.before, name
        d.stop()


need(QWEN)
run(broken_connections, refused)
