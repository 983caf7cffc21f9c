#!/usr/bin/env python3
"""The proxy examples: each is what its proxy's own check accepts, and a WebSocket, server-sent events and a plain request go
through it to a real convod, over TLS.

Proxies are those that tests/service/servers unpacked, or that are installed; what is not here is skipped. What is changed of an
example for the test: names, ports and certificates.
"""
import base64
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "api"))
from daemon import BUILD, Daemon  # noqa: E402

UNPACKED = Path(BUILD).resolve() / "servers"
EXAMPLES = Path("systemd/proxy").resolve()
MODEL_MAKER = Path(BUILD).resolve() / "tests/service/model"
TOKEN = "t" * 40
LIMIT = 60
# Paths that the unpacked programs expect elsewhere.
ENVIRONMENT = os.environ | {"LD_LIBRARY_PATH": str(UNPACKED / "usr/lib/x86_64-linux-gnu")} if UNPACKED.is_dir() else os.environ


def program(name):
    for folder in ("usr/sbin", "usr/bin"):
        if os.access(UNPACKED / folder / name, os.X_OK):
            return str(UNPACKED / folder / name)
    return shutil.which(name) or shutil.which(name, path="/usr/sbin")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as s:
        return s.getsockname()[1]


class Relay:
    """Stands between proxy and daemon. While `gate` is shut, it passes an answer's first event on and keeps the rest."""

    def __init__(self, port):
        self.to, self.gate = ("127.0.0.1", port), threading.Event()
        self.gate.set()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                proxy = self.listener.accept()[0]
            except OSError:
                return
            daemon = socket.create_connection(self.to)
            threading.Thread(target=self.copy, args=(proxy, daemon), daemon=True).start()
            threading.Thread(target=self.copy, args=(daemon, proxy), daemon=True).start()

    def copy(self, source, to):
        try:
            while piece := source.recv(65536):
                begins = piece.find(b"event: response.created")
                end = piece.find(b"\n\n", begins) + 2 if begins >= 0 else len(piece)
                to.sendall(piece[:end])
                if begins >= 0:
                    self.gate.wait(2 * LIMIT)
                to.sendall(piece[end:])
            to.shutdown(socket.SHUT_WR)
        except OSError:
            source.close()
            to.close()


class Proxies(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.scratch.cleanup)
        cls.folder = Path(cls.scratch.name)
        cls.folder.chmod(0o755)  # nginx's workers are somebody else
        model = cls.folder / "model.gguf"
        subprocess.run([MODEL_MAKER, model], check=True)
        tokens = cls.folder / "tokens"
        tokens.write_text(f"ann {TOKEN}\n")
        tokens.chmod(0o600)
        data = cls.folder / "data"
        data.mkdir(mode=0o700)
        cls.daemon = Daemon(str(data), model=str(model), args=["--cache", str(cls.folder / "cache"), "--threads", "1", "--kv-bytes",
                                                               "64M", "--token-file", str(tokens)])
        cls.addClassCleanup(cls.daemon.end)
        cls.relay = Relay(cls.daemon.port)
        cls.addClassCleanup(cls.relay.listener.close)
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days",
                        "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", cls.folder / "key",
                        "-out", cls.folder / "cert"], check=True, capture_output=True)
        (cls.folder / "both").write_text((cls.folder / "cert").read_text() + (cls.folder / "key").read_text())
        cls.tls = ssl.create_default_context(cafile=cls.folder / "cert")

    def example(self, name, replacements):
        """The example's text for this test; each replacement must find its place."""
        text = (EXAMPLES / name).read_text()
        self.port = free_port()
        for old, new in replacements:
            self.assertIn(old, text)
            text = text.replace(old, new.format(port=self.port, folder=self.folder, daemon=f"127.0.0.1:{self.relay.port}"))
        return text

    def check(self, *command):
        r = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT | {"HOME": str(self.folder)})
        self.assertEqual(r.returncode, 0, r.stdout + r.stderr)
        self.assertNotRegex(r.stdout + r.stderr, r"(?i)\[warn|\[alert|deprecated")

    def start(self, *command):
        log = open(self.folder / "proxy.log", "w+")
        self.addCleanup(log.close)
        p = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                             env=ENVIRONMENT | {"HOME": str(self.folder)})

        def end():
            if p.poll() is None:
                p.send_signal(signal.SIGTERM)
            try:
                p.wait(10)
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait()

        self.addCleanup(end)
        until = time.monotonic() + LIMIT
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
                return
            except OSError:
                log.seek(0)
                self.assertTrue(p.poll() is None and time.monotonic() < until, log.read())
                time.sleep(0.05)

    def request(self, method, path, body=None, headers=()):
        """Sends one request over TLS; -> the socket and what has come with the head."""
        s = self.tls.wrap_socket(socket.create_connection(("127.0.0.1", self.port), timeout=LIMIT), server_hostname="localhost")
        self.addCleanup(s.close)
        data = b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", f"Host: localhost:{self.port}", f"Authorization: Bearer {TOKEN}",
                 "Content-Type: application/json", *headers] + ([f"Content-Length: {len(data)}"] if data else [])
        s.sendall("\r\n".join([*lines, "", ""]).encode() + data)
        got = b""
        while b"\r\n\r\n" not in got and (piece := s.recv(65536)):
            got += piece
        return s, got

    def status(self, *words, **more):
        return int(self.request(*words, **more)[1].split()[1])

    def more(self, s):
        piece = s.recv(65536)
        self.assertTrue(piece, "the connection was closed")
        return piece

    def goes_through(self):
        self.assertEqual(self.status("GET", "/ready"), 200)
        for path in ("/metrics", "/metrics?x=1", "/%6detrics", "/m%65tric%73"):
            self.assertEqual(self.status("GET", path), 404, path)
        origin = f"https://localhost:{self.port}"
        self.assertEqual(self.status("GET", "/v1/models", headers=[f"Origin: {origin}"]), 200)
        self.assertEqual(self.status("GET", "/v1/models", headers=["Origin: https://elsewhere.example"]), 403)
        # 2 MB, more than the proxies' own limits: refused by convod, for what is in it.
        self.assertEqual(self.status("POST", "/v1/responses", body={"input": "x" * 2000000, "temperature": 9}), 400)
        # Events come while the answer is being written, not all at its end: the first arrives while the rest is held back.
        body = {"input": "hello", "stream": True, "max_output_tokens": 100}
        self.relay.gate.clear()
        try:
            s, got = self.request("POST", "/v1/responses", body=body)
            self.assertRegex(got.decode(), r"(?i)^HTTP/1.1 200[\s\S]*content-type: text/event-stream")
            while b"response.created" not in got:
                got += self.more(s)
        finally:
            self.relay.gate.set()
        while b"response.completed" not in got and b"response.incomplete" not in got:
            got += self.more(s)
        # The same over a WebSocket, two turns on one.
        s, got = self.request("GET", "/v1/responses", headers=[
            "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13", f"Origin: {origin}",
            "Sec-WebSocket-Key: " + base64.b64encode(os.urandom(16)).decode()])
        self.assertRegex(got.decode(), r"^HTTP/1.1 101 ")
        frames = s.makefile("rb")
        for _ in range(2):
            message = json.dumps({"type": "response.create", "input": "hello", "max_output_tokens": 20}).encode()
            s.sendall(b"\x81" + bytes([0x80 | len(message)]) + bytes(4) + message)  # a mask of zeros
            kinds = []
            while not kinds or kinds[-1] not in ("response.completed", "response.incomplete", "error"):
                opcode, size = frames.read(2)
                self.assertEqual(opcode, 0x81)
                if size > 125:
                    size = int.from_bytes(frames.read(2 if size == 126 else 8), "big")
                kinds.append(json.loads(frames.read(size))["type"])
            self.assertEqual(kinds[0], "response.created")
            self.assertNotEqual(kinds[-1], "error")

    @unittest.skipUnless(program("nginx"), "nginx is not here")
    def test_nginx(self):
        site = self.example("nginx.conf", [
            ("listen 443 ssl http2", "listen 127.0.0.1:{port} ssl http2"), ("    listen [::]:443 ssl http2;\n", ""),
            ("chat.example.org;", "localhost;"), ("127.0.0.1:8642", "{daemon}"),
            ("/etc/ssl/certs/chat.example.org.pem", "{folder}/cert"), ("/etc/ssl/private/chat.example.org.key", "{folder}/key")])
        (self.folder / "site.conf").write_text(site)
        temporary = "".join(f"{n}_temp_path {self.folder}/{n};" for n in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        (self.folder / "nginx.conf").write_text(
            f"daemon off; pid {self.folder}/pid; error_log stderr;\n{'user root;' if os.geteuid() == 0 else ''}\n"
            f"events {{ }}\nhttp {{ access_log off; {temporary}\ninclude {self.folder}/site.conf; }}\n")
        command = [program("nginx"), "-p", str(self.folder), "-e", "stderr", "-c", str(self.folder / "nginx.conf")]
        # Newer ones want `http2 on` instead, older ones know no such line; both accept this.
        r = subprocess.run([*command, "-t"], capture_output=True, text=True, env=ENVIRONMENT)
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertNotRegex(re.sub(r'.*the "listen ... http2" directive is deprecated.*\n', "", r.stderr), r"\[(warn|alert|emerg)\]")
        self.start(*command)
        self.goes_through()

    @unittest.skipUnless(program("caddy"), "Caddy is not here")
    def test_caddy(self):
        self.check(program("caddy"), "validate", "--adapter", "caddyfile", "--config", str(EXAMPLES / "Caddyfile"))
        text = self.example("Caddyfile", [("chat.example.org {{".replace("{{", "{"), "https://localhost:{port} {{\n\ttls {folder}/cert {folder}/key"),
                                          ("127.0.0.1:8642", "{daemon}")])
        (self.folder / "Caddyfile").write_text("{\n\tadmin off\n\tauto_https disable_redirects\n}\n" + text)
        self.start(program("caddy"), "run", "--adapter", "caddyfile", "--config", str(self.folder / "Caddyfile"))
        self.goes_through()

    @unittest.skipUnless(program("haproxy"), "HAProxy is not here")
    def test_haproxy(self):
        text = self.example("haproxy.cfg", [("bind :443", "bind 127.0.0.1:{port}"), ("127.0.0.1:8642", "{daemon}"),
                                            ("/etc/haproxy/chat.example.org.pem", "{folder}/both")])
        (self.folder / "haproxy.cfg").write_text(text)
        self.check(program("haproxy"), "-c", "-f", str(self.folder / "haproxy.cfg"))
        self.start(program("haproxy"), "-db", "-f", str(self.folder / "haproxy.cfg"))
        self.goes_through()


if __name__ == "__main__":
    unittest.main()
