#!/usr/bin/env python3
"""Owners over a daemon's life: from no tokens to tokens, taking one away while its WebSocket is open, gateways, tickets."""
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(__file__))
from daemon import BUILD, PATIENCE, QWEN, Daemon, Scratch, need, run, text_of, until  # noqa: E402

need(QWEN)
import websockets.exceptions  # noqa: E402
import websockets.sync.client  # noqa: E402

FACT = "My kite is called Merlin. Remember that."
QUESTION = "What is my kite called?"


def command(data, *args):
    done = subprocess.run([os.path.join(BUILD, "convod"), "token", *args, "--data", data], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def as_(token, **more):
    return {"Authorization": f"Bearer {token}", **more}


def websocket(d, **kw):
    return websockets.sync.client.connect(f"ws://{d.address}:{d.port}/v1/responses{kw.pop('query', '')}", **kw)


def handed_over():
    """What was made without tokens is the first owner's, KV and all, and nobody else's."""
    with Scratch() as data:
        d = Daemon(data)
        conversation = d.conversation(title="kites")
        first = d.turn(FACT, conversation=conversation)
        d.settle()
        alice = command(data, "add", "alice", "--inherit", "local")
        bob = command(data, "add", "bob")
        until(lambda: d.call("GET", "/v1/conversations")[0] == 401)
        until(lambda: [c["id"] for c in d.call("GET", "/v1/conversations", headers=as_(alice))[1]["data"]] == [conversation])
        until(lambda: d.call("GET", "/v1/conversations", headers=as_(bob))[0] == 200)  # each of them is read when it comes
        assert d.call("GET", "/v1/conversations", headers=as_(bob))[1]["data"] == []
        assert d.call("GET", f"/v1/responses/{first['id']}", headers=as_(bob))[0] == 404
        d.kill()
        d.start()
        assert d.call("GET", "/v1/conversations")[0] == 401
        body = {"input": QUESTION, "conversation": conversation, "temperature": 0, "max_output_tokens": 24}
        status, answer = d.call("POST", "/v1/responses", body, headers=as_(alice))
        assert status == 200 and "Merlin" in text_of(answer), answer
        tokens = answer["convod"]["tokens"]
        assert tokens["prefilled"] == tokens["new"] and tokens["disk"] > 0, tokens
        d.stop()


def taken_away():
    with Scratch() as data:
        alice = command(data, "add", "alice")
        command(data, "add", "bob")
        d = Daemon(data)
        with websocket(d, additional_headers=as_(alice)) as ws:
            command(data, "revoke", "alice")
            try:
                ws.recv(timeout=PATIENCE)
                raise AssertionError("a message came")
            except websockets.exceptions.ConnectionClosed as e:
                assert e.rcvd.code == 1008, e
        assert d.call("GET", "/v1/models", headers=as_(alice))[0] == 401
        command(data, "revoke", "bob")
        assert d.call("GET", "/v1/models")[0] == 401
        d.stop()


def scopes():
    with Scratch() as data:
        meter = command(data, "add", "prometheus", "--scope", "metrics")
        web = command(data, "add", "web", "--scope", "gateway")
        d = Daemon(data, args=["--gateway-user-header", "X-User"])
        assert d.call("GET", "/metrics", headers=as_(meter), raw=True)[0] == 200
        status, refused = d.call("GET", "/v1/conversations", headers=as_(meter))
        assert status == 403 and refused["error"]["code"] == "insufficient_scope", refused
        status, mine = d.call("POST", "/v1/conversations", {}, headers=as_(web, **{"X-User": "maria"}))
        assert status == 200
        path = f"/v1/conversations/{mine['id']}"
        assert d.call("GET", path, headers=as_(web, **{"X-User": "maria"}))[0] == 200
        assert d.call("GET", path, headers=as_(web, **{"X-User": "john"}))[0] == 404
        assert d.call("GET", path, headers=as_(web))[0] == 404
        status, refused = d.call("GET", path, headers=as_(web, **{"X-User": "a/b"}))
        assert status == 400 and refused["error"]["code"] == "invalid_header", refused
        d.stop()


def tickets():
    with Scratch() as data:
        alice = command(data, "add", "alice")
        d = Daemon(data)
        assert d.call("POST", "/v1/convod/tickets")[0] == 401
        status, ticket = d.call("POST", "/v1/convod/tickets", headers=as_(alice))
        assert status == 200 and ticket["expires_in"] == 60, ticket
        query = "?ticket=" + ticket["ticket"]
        assert d.call("GET", "/v1/models" + query)[0] == 401  # it opens a WebSocket and nothing else
        with websocket(d, query=query) as ws:
            ws.send(json.dumps({"type": "response.create", "input": "Say yes.", "max_output_tokens": 4, "temperature": 0}))
            while (event := json.loads(ws.recv(timeout=PATIENCE)))["type"] not in ("response.completed", "response.incomplete", "error"):
                pass
            assert event["type"] != "error", event
            assert d.call("GET", f"/v1/responses/{event['response']['id']}", headers=as_(alice))[0] == 200
            try:
                with websocket(d, query=query):
                    raise AssertionError("a ticket opened two")
            except websockets.exceptions.InvalidStatus as e:
                assert e.response.status_code == 401, e
            command(data, "revoke", "alice")
            try:
                ws.recv(timeout=PATIENCE)
                raise AssertionError("a message came")
            except websockets.exceptions.ConnectionClosed as e:
                assert e.rcvd.code == 1008, e
        assert ticket["ticket"] not in d.read_log()
        d.stop()


run(handed_over, taken_away, scopes, tickets)
