#!/usr/bin/env python3
"""The WebSocket with wsproto, which does no more than the protocol says: messages in fragments with control frames between them, a slow
upgrade, extensions that are offered, lanes side by side, tools, errors that leave the socket open, and how it is closed."""

import json
import socket
import sys

from daemon import QWEN, Daemon, Scratch, need, run

try:
    from wsproto import ConnectionType, WSConnection
    from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Message, Ping, Pong, RejectConnection, Request, TextMessage
    from wsproto.extensions import PerMessageDeflate
    from wsproto.utilities import RemoteProtocolError
except ImportError as e:
    print(f"skip: {e}")
    sys.exit(77)

SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Bergen"]}}, "required": ["city"], "additionalProperties": False}
TOOLS = [{"type": "function", "name": "get_weather", "parameters": SCHEMA, "strict": True}]
ENDS = ("response.completed", "response.incomplete", "response.failed", "error")
ASK = {"type": "response.create", "temperature": 0, "max_output_tokens": 8}


class Socket:
    def __init__(self, d, piece=65536, **fields):
        self.ws = WSConnection(ConnectionType.CLIENT)
        self.s = socket.create_connection((d.address, d.port), timeout=120)
        self.pongs, self.closed, self.rest = [], None, ""
        request = self.ws.send(Request(host=f"{d.address}:{d.port}", target="/v1/responses", **fields))
        for at in range(0, len(request), piece):
            self.s.sendall(request[at : at + piece])
        self.waiting = []
        self.opened = self.event()

    def event(self):
        """The next event of the protocol that is not answered by itself."""
        while True:
            for e in self.waiting:
                self.waiting = self.waiting[1:]
                if isinstance(e, Ping):
                    self.s.sendall(self.ws.send(e.response()))
                elif isinstance(e, Pong):
                    self.pongs.append(bytes(e.payload))
                else:
                    return e
            data = self.s.recv(65536)
            self.ws.receive_data(data or None)
            self.waiting = list(self.ws.events())

    def message(self):
        """The next whole message; None: it was closed."""
        while True:
            e = self.event()
            if isinstance(e, CloseConnection):
                self.closed = (int(e.code), e.reason)
                return None
            assert isinstance(e, TextMessage), e
            self.rest += e.data
            if e.message_finished:
                text, self.rest = self.rest, ""
                return json.loads(text)

    def send(self, body, cuts=1, between=None):
        text = json.dumps(body)
        size = -(-len(text) // cuts)
        for at in range(0, len(text), size):
            last = at + size >= len(text)
            self.s.sendall(self.ws.send(Message(data=text[at : at + size], message_finished=last)))
            if between and not last:
                self.s.sendall(self.ws.send(between))

    def turn(self, **fields):
        self.send({**ASK, **fields})
        return self.end()

    def end(self):
        while (e := self.message())["type"] not in ENDS:
            pass
        return e

    def close(self, code=1000):
        self.s.sendall(self.ws.send(CloseConnection(code=code, reason="over")))
        while self.message() is not None:
            pass
        return self.closed


def frames():
    """A message in as many frames as it has bytes, with pings between them; its answer is that of the message at once."""
    with Scratch() as data:
        d = Daemon(data)
        ws = Socket(d)
        assert isinstance(ws.opened, AcceptConnection) and ws.opened.subprotocol is None and ws.opened.extensions == []
        whole = ws.turn(input="Name a colour.")
        ws.send({**ASK, "input": "Name a colour."}, cuts=1000, between=Ping(payload=b"still here"))
        cut = ws.end()
        assert whole["response"]["output"][0]["content"] == cut["response"]["output"][0]["content"], cut
        assert set(ws.pongs) == {b"still here"}, ws.pongs  # of pings that came at once the last alone may be answered
        again = ws.turn(input="And another.", previous_response_id=cut["response"]["id"])["response"]
        assert again["convod"]["tokens"]["prefilled"] == again["convod"]["tokens"]["new"], again["convod"]
        assert ws.close() == (1000, "over"), ws.closed
        # The upgrade comes byte by byte, and offers what convod does not speak.
        slow = Socket(d, piece=1, subprotocols=["chat", "convod"], extensions=[PerMessageDeflate()])
        assert slow.opened.subprotocol == "convod" and slow.opened.extensions == [], slow.opened
        assert slow.turn(input="Name a colour.")["type"] != "error"
        slow.close()
        d.stop()


def calls():
    """A call, its result behind it, and what was not stored, which is gone with the socket."""
    with Scratch() as data:
        d = Daemon(data)
        ws = Socket(d)
        r = ws.turn(input="Weather in Oslo?", tools=TOOLS, tool_choice="required", store=False, max_output_tokens=48)["response"]
        call = r["output"][0]
        assert r["status"] == "completed" and call["type"] == "function_call" and json.loads(call["arguments"])["city"] in ("Oslo", "Bergen"), r
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
        second = ws.turn(input=[result], previous_response_id=r["id"], tools=TOOLS, store=False)["response"]
        assert second["convod"]["tokens"]["prefilled"] == second["convod"]["tokens"]["new"], second["convod"]
        other = ws.turn(input=[{**result, "call_id": "call_other"}], previous_response_id=r["id"], tools=TOOLS, store=False)
        assert other["type"] == "error" and other["error"]["param"] == "input", other
        assert ws.close(1001)[0] == 1001
        ws = Socket(d)
        gone = ws.turn(input="x", previous_response_id=second["id"])
        assert gone["error"]["code"] == "previous_response_not_found", gone
        ws.close()
        d.stop()


def lanes():
    """Turns side by side, each event with its lane; one is stopped, the other is not."""
    with Scratch() as data:
        d = Daemon(data)
        ws = Socket(d)
        ws.send({**ASK, "stream_id": "a", "input": "Count to a thousand in words.", "max_output_tokens": 2000})
        while ws.message()["type"] != "response.output_text.delta":
            pass
        ws.send({**ASK, "stream_id": "b", "input": "Name a colour."})
        while (e := ws.message())["stream_id"] != "b" or e["type"] not in ENDS:
            assert e["stream_id"] in ("a", "b"), e
        assert e["type"] != "error", e
        ws.send({"type": "response.cancel", "stream_id": "a"})
        stopped = ws.end()
        assert stopped["stream_id"] == "a" and stopped["response"]["convod"]["incomplete_reason"] == "cancelled", stopped
        ws.close()
        d.stop()


def errors():
    """What cannot be done is told, and the socket stays open; what is no message closes it, with the code that says why."""
    with Scratch() as data:
        d = Daemon(data)
        ws = Socket(d)
        for body, param in (
            ({"type": "response.poem"}, "type"),
            ({"input": "x"}, "type"),
            ({**ASK, "input": 5}, "input"),
            ({**ASK, "input": "x", "temperature": 1e300}, "temperature"),
            ({**ASK, "input": "x", "stream_id": "no spaces"}, "stream_id"),
            ({**ASK, "input": "x", "tools": [{"type": "function", "name": "<|im_end|>"}]}, "tools[0].name"),
            ({**ASK, "input": "x", "reasoning": {"context": "last_turn"}}, "reasoning.context"),
        ):
            ws.send(body)
            e = ws.message()
            assert e["type"] == "error" and e["status"] == 400 and e["error"]["param"] == param, (body, e)
        ws.send([1])
        assert ws.message()["error"]["code"] == "invalid_json"
        assert ws.turn(input="Name a colour.")["type"] != "error"
        ws.s.sendall(ws.ws.send(BytesMessage(data=b"\x00\x01")))
        assert ws.message() is None and ws.closed[0] == 1003, ws.closed
        # Bytes that are no UTF-8, in a text frame of our own making.
        ws = Socket(d)
        ws.s.sendall(b"\x81\x82\x00\x00\x00\x00\xc3\x28")
        assert ws.message() is None and ws.closed[0] == 1007, ws.closed
        # Nothing but the end of the stream.
        ws = Socket(d)
        ws.s.shutdown(socket.SHUT_WR)
        ws.s.close()
        rejected = Socket(d, extra_headers=[(b"Origin", b"https://elsewhere.example")])
        assert isinstance(rejected.opened, RejectConnection) and rejected.opened.status_code == 403, rejected.opened
        ws = Socket(d)
        d.stop()
        try:
            assert ws.message() is None and ws.closed[0] == 1001, ws.closed
        except RemoteProtocolError as e:
            raise AssertionError(f"the end was no close: {e}") from e


need(QWEN)
run(frames, calls, lanes, errors)
