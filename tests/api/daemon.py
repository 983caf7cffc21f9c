"""Runs a real convod for a test: starts it on a free port, talks to it over HTTP, stops or kills it by its pid."""

import atexit
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("BUILD", os.path.join(ROOT, "build"))
MODELS = os.environ.get(
    "CONVOD_TEST_MODELS",
    os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "convod", "models"),
)
QWEN = os.path.join(MODELS, "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf")
MAKER = os.path.join(BUILD, "tests/service/model")
GEMMA = os.path.join(MODELS, "gemma-3-270m-q4_k_m.gguf")
START_SECONDS = 120
PATIENCE = 600  # seconds, for what comes by itself, however busy the machine is
EXTRA = os.environ.get("CONVOD_TEST_ARGS", "").split()  # of every daemon, in front of what a test says


def need(path):
    if not os.path.exists(path):
        print(f"skip: {path} is missing" + (" (make model fetches models)" if path.startswith(MODELS) else ""))
        sys.exit(77)


def made_model(data, *how):
    """A small model with random weights, beside the data; how: its context, and what it can. Who uses it needs MAKER."""
    path = os.path.join(data, "..", "model.gguf")
    subprocess.run([MAKER, path, *map(str, how)], check=True)
    return path


def until(true, what="it did not come to that"):
    """Waits for what comes by itself, which is returned."""
    deadline = time.monotonic() + PATIENCE
    while not (came := true()):
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
    return came


class Daemon:
    def __init__(self, data, model=QWEN, args=(), env=None):
        self.data = data
        self.args = [os.path.join(BUILD, "convod"), "--model", model, "--data", data, "--listen", "127.0.0.1:0", *EXTRA, *args]
        self.env = env
        self.log = os.path.join(data, "..", f"log-{time.monotonic_ns()}")
        self.process = None
        atexit.register(self.end)
        self.start()

    def end(self):
        """Nothing stays behind a failed test."""
        if self.process and self.process.poll() is None:
            self.kill()

    def start(self):
        """Starts the process and waits for its ready line."""
        with open(self.log, "ab") as out:
            at = out.tell()
            self.process = subprocess.Popen(self.args, stderr=out, stdout=out, env=self.env)
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            with open(self.log, errors="replace") as f:
                f.seek(at)
                found = re.search(r"convod: ready on http://([0-9.]+):(\d+)", f.read())
            if found:
                self.address, self.port = found[1], int(found[2])
                self.url = f"http://{self.address}:{self.port}"
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise AssertionError("convod did not start:\n" + self.read_log())

    def read_log(self):
        with open(self.log, errors="replace") as f:
            return f.read()

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self, seconds=30):
        """SIGTERM; returns the exit status and how long it took."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(timeout=seconds)
        return status, time.monotonic() - began

    def call(self, method, path, body=None, headers=None, raw=False):
        c = http.client.HTTPConnection(self.address, self.port, timeout=300)
        data = None if body is None else json.dumps(body)
        c.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
        r = c.getresponse()
        text = r.read()
        c.close()
        return (r.status, text) if raw else (r.status, json.loads(text) if text else None)

    def ok(self, method, path, body=None):
        status, answer = self.call(method, path, body)
        assert status == 200, (method, path, status, answer)
        return answer

    def conversation(self, **fields):
        return self.ok("POST", "/v1/conversations", fields)["id"]

    def turn(self, text, **fields):
        """One answered turn; returns the whole response."""
        body = {"input": text, "temperature": 0, "max_output_tokens": 24, **fields}
        return self.ok("POST", "/v1/responses", body)

    def settle(self):
        """Waits until everything that was computed is saved."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if self.ok("GET", "/v1/convod/status")["pending_saves"] == 0:
                return
            time.sleep(0.02)
        raise AssertionError("saves are still pending")


def send(d, body, headers=None, path="/v1/responses", receive_buffer=0):
    """A POST on a bare socket, whose answer is left to be read, or not."""
    s = socket.socket()
    if receive_buffer:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    s.settimeout(300)
    s.connect((d.address, d.port))
    text = json.dumps(body)
    lines = {"Host": f"{d.address}:{d.port}", "Content-Type": "application/json", "Content-Length": len(text), **(headers or {})}
    head = f"POST {path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in lines.items())
    s.sendall((head + "\r\n" + text).encode())
    return s


def read_events(s):
    """The server-sent events of such a socket, as they come: objects, and "[DONE]"."""
    rest = b""
    while piece := s.recv(65536):
        rest += piece
        while b"\n\n" in rest:
            event, rest = rest.split(b"\n\n", 1)
            for line in event.split(b"\n"):
                at = line.find(b"data: ")  # in the first, behind the head and a chunk's size
                if at >= 0:
                    data = line[at + 6 :]
                    yield json.loads(data) if data.startswith(b"{") else data.decode().strip()


def client_of(d):
    """The openai package's client, told of nothing but the address."""
    import openai

    return openai.OpenAI(base_url=f"{d.url}/v1", api_key="unused", max_retries=0, timeout=300)


class Prefilled:
    """What goes through the model from one look to the next: at a first request more than `most` tokens, later what is new alone."""

    def __init__(self, d, most):
        self.d, self.most = d, most
        self.before = self.read()

    def read(self):
        tokens = self.d.ok("GET", "/v1/convod/status")["tokens"]
        return tokens["prefilled"], tokens["reprefilled"]

    def next(self):
        """Tokens since the last look, and how many of them went through it before."""
        before, self.before = self.before, self.read()
        return tuple(now - then for now, then in zip(self.before, before))

    def check(self, first):
        prefilled, again = self.next()
        assert again == 0 and prefilled > 0 and (prefilled > self.most) == first, (first, prefilled, again)


def text_of(response):
    return "".join(p["text"] for item in response["output"] if item["type"] == "message" for p in item["content"])


def check_receipt(response):
    """What holds for every receipt, whatever happened."""
    r = response["convod"]
    t = r["tokens"]
    lost = sum(x["tokens"] for x in r["reprefilled"])
    own = sum(x["tokens"] for x in r["reprefilled"] if x["reason"] == "put_aside")
    assert t["history"] == t["hot"] + t["ram"] + t["disk"] + lost - own, r
    assert t["prefilled"] == t["new"] + lost, r
    assert response["usage"]["input_tokens_details"]["cached_tokens"] == t["hot"] + t["ram"] + t["disk"], r
    assert response["usage"]["input_tokens"] == t["history"] + t["new"], r
    return r


class Scratch(tempfile.TemporaryDirectory):
    """A data directory inside a temporary one, so that logs lie beside it."""

    def __enter__(self):
        path = os.path.join(super().__enter__(), "data")
        os.mkdir(path, 0o700)
        return path


def run(*tests):
    """Runs test functions; prints TAP."""
    failed = 0
    print(f"1..{len(tests)}")
    for i, test in enumerate(tests, 1):
        try:
            test()
            print(f"ok {i} - {test.__name__}", flush=True)
        except Exception as e:  # noqa: BLE001 - every failure is reported
            import traceback

            traceback.print_exc()
            print(f"not ok {i} - {test.__name__}: {e}", flush=True)
            failed += 1
    sys.exit(1 if failed else 0)
