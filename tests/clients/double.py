"""A stand-in for convod, for tests of its clients: HTTP and the WebSocket on one loopback port, all in memory.

What it answers depends on what the user says:
    pieces N TEXT   TEXT, N characters at a time   halt TEXT       TEXT, and the rest when the test sets `go_on`
    say TEXT        TEXT, word by word             slow            words until it is cancelled
    think           nothing until it is cancelled   ponder          a thought, which ends when the test sets `go_on`
    fail            response.failed                refuse          an error event, no response
    locked          the error conversation_locked  evil            escape sequences among the words
    drop            half of an answer, then the socket closes; the rest can be fetched
    vanish          half of an answer, then the socket closes; the response is not found
    early           the socket closes before the turn is confirmed
    close CODE      so does it, with that code
    wait            half of an answer, and the rest when the test sets `go_on`
    long            an answer cut at max_output_tokens
    progress        progress events, then an answer
    code N          a block of code of N lines
    again           the number of times that this message was asked
Anything else is answered by "you said: ...". `events` lists what the clients did, in order.
"""
import base64
import hashlib
import json
import socketserver
import threading
import time
from urllib.parse import parse_qs, unquote, urlsplit

RECEIPT = {"conversation": "", "turn": 1,
           "tokens": {"history": 812, "hot": 812, "ram": 0, "disk": 0, "new": 23, "prefilled": 23, "output": 41},
           "reprefilled": [], "bytes": {"read": 0},
           "ms": {"queue": 0.1, "restore": 0, "prefill": 200.0, "ttft": 214.1, "itl_p50": 40.0, "itl_max": 44.0},
           "saved": "pending", "backend": "cpu-avx2", "model": "double"}


class Closed(Exception):
    pass


class Handler(socketserver.BaseRequestHandler):
    def setup(self):
        self.received = b""
        self.sending = threading.Lock()

    def take(self, size):
        while len(self.received) < size:
            piece = self.request.recv(65536)
            if not piece:
                raise Closed
            self.received += piece
        taken, self.received = self.received[:size], self.received[size:]
        return taken

    def handle(self):
        try:
            while self.one_request():
                pass
        except (Closed, OSError):
            pass

    def one_request(self):
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += self.take(1)
        first, *lines = head.decode().strip().split("\r\n")
        method, target, _ = first.split(" ")
        headers = {k.lower(): v.strip() for k, v in (line.split(":", 1) for line in lines)}
        double, url = self.server.double, urlsplit(target)
        if double.token and headers.get("authorization") != "Bearer " + double.token and url.path != "/ready":
            self.answer(401, {"error": {"message": "this daemon wants a token", "code": "unauthorized"}})
            return False
        if double.refusal and url.path != "/ready":
            self.answer(*double.refusal)
            return False
        if headers.get("upgrade", "").lower() == "websocket":
            if not double.upgrades or url.path != "/v1/responses":
                self.answer(400, {})
                return False
            key = headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
            accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
            self.request.sendall(("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                                  f"Sec-WebSocket-Accept: {accept}\r\n\r\n").encode())
            double.note("socket")
            self.websocket()
            return False
        body = self.take(int(headers.get("content-length", 0)))
        double.note(f"{method} {target}" + (f" {body.decode()}" if body else ""))
        query = {k: v[0] for k, v in parse_qs(url.query).items()}
        self.route(method, url.path, query, json.loads(body) if body else {})
        return True

    def answer(self, status, body):
        data = json.dumps(body).encode()
        self.request.sendall(f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n"
                             f"Content-Length: {len(data)}\r\n\r\n".encode() + data)

    def not_found(self):
        self.answer(404, {"error": {"message": "there is no such conversation", "code": "conversation_not_found"}})

    # ---- HTTP

    def route(self, method, path, query, body):
        double = self.server.double
        parts = [unquote(p) for p in path.strip("/").split("/")]
        if path == "/ready":
            if double.loading > 0:
                double.loading -= 1
                self.answer(503, {"status": "loading", "progress": 0.5})
            else:
                self.answer(200, {"status": "ready"})
        elif path == "/v1/convod/status":
            self.answer(200, double.status)
        elif path == "/v1/conversations" and method == "POST":
            self.answer(200, double.create(body))
        elif path == "/v1/conversations":
            self.list(query)
        elif parts[:2] == ["v1", "conversations"]:
            conversation = double.conversations.get(parts[2])
            if conversation is None:
                self.not_found()
            elif parts[3:] == ["items"] and method == "POST":
                self.answer(200, double.add(conversation, **body))
            elif parts[3:] == ["items"]:
                self.items(conversation, query)
            elif parts[2] in double.warming and (parts[3:] == ["evict"] or method == "DELETE"):
                self.answer(400, {"error": {"message": "A turn is running on it.", "code": "conversation_locked"}})
            elif parts[3:] == ["evict"]:
                conversation["tier"] = body["to"]
                self.answer(200, conversation)
            elif method == "DELETE":
                del double.conversations[parts[2]]
                self.answer(200, {"id": parts[2], "object": "conversation.deleted", "deleted": True})
            else:
                own = body.pop("convod", {})
                if "head" in own:
                    conversation["head"] = own["head"] or None
                conversation.update(body)
                self.answer(200, conversation)
        elif parts[:2] == ["v1", "responses"]:
            response = double.responses.get(parts[2])
            if response is None:
                self.not_found()
            elif parts[3:] == ["input_items"]:
                self.answer(200, {"object": "list", "data": response["input"], "has_more": False})
            elif query.get("stream") == "true":
                self.stream(response, int(query["starting_after"]))
            else:
                self.answer(200, response["object"])
        elif path == "/v1/models":
            self.answer(200, {"object": "list", "data": []})
        else:
            self.answer(404, {"error": {"message": "There is nothing at this path.", "code": "not_found"}})

    def list(self, query):
        rows = list(reversed(self.server.double.conversations.values()))
        rows = [r for r in rows if query.get("q", "") in (r.get("title") or "")]
        if "after" in query:
            rows = rows[[r["id"] for r in rows].index(query["after"]) + 1:]
        limit = int(query.get("limit", 20))
        self.answer(200, {"object": "list", "data": rows[:limit], "has_more": len(rows) > limit})

    def items(self, conversation, query):
        rows = self.server.double.items[conversation["id"]]
        rows = rows if query.get("order") == "asc" else rows[::-1]
        if "after" in query:
            rows = rows[[r["id"] for r in rows].index(query["after"]) + 1:]
        limit = int(query.get("limit", 20))
        self.answer(200, {"object": "list", "data": rows[:limit], "has_more": len(rows) > limit})

    def stream(self, response, after):
        self.request.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        if response["object"]["status"] == "in_progress":
            response["object"]["status"] = "completed"
        for event in response["log"]:
            if event["sequence_number"] > after:
                self.request.sendall(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
        raise Closed

    # ---- WebSocket

    def send(self, event):
        data = json.dumps(event).encode()
        size = len(data)
        head = bytes([0x81, size]) if size < 126 else b"\x81\x7e" + size.to_bytes(2, "big") if size < 65536 else \
            b"\x81\x7f" + size.to_bytes(8, "big")
        with self.sending:
            self.request.sendall(head + data)

    def websocket(self):
        cancelled, message, turn = threading.Event(), b"", None
        try:
            while True:
                first, second = self.take(2)
                size = second & 127
                if size > 125:
                    size = int.from_bytes(self.take(2 if size == 126 else 8), "big")
                mask = self.take(4)
                data = bytes(b ^ mask[i % 4] for i, b in enumerate(self.take(size)))
                if first & 15 == 8:
                    self.server.double.note("socket closed")
                    return
                if first & 15 > 2:
                    continue
                message += data
                if not first & 128:
                    continue
                body, message = json.loads(message), b""
                self.server.double.note("ws " + json.dumps(body))
                if body["type"] == "response.cancel":
                    cancelled.set()
                    continue
                if turn:
                    turn.join()
                cancelled.clear()
                turn = threading.Thread(target=self.turn, args=(body, cancelled), daemon=True)
                turn.start()
        finally:
            cancelled.set()

    def turn(self, body, cancelled):
        try:
            Turn(self, body, cancelled).run()
        except (Closed, OSError):
            pass


class Turn:
    def __init__(self, handler, body, cancelled):
        self.handler, self.body, self.cancelled = handler, body, cancelled
        self.double = handler.server.double
        self.sequence, self.log, self.text = -1, [], ""
        self.id = self.double.new_id("resp")

    def emit(self, kind, send=True, **fields):
        self.sequence += 1
        event = {"type": kind, "sequence_number": self.sequence, **fields}
        self.log.append(event)
        if send:
            self.handler.send(event)

    def piece(self, piece, send=True):
        self.text += piece
        self.emit("response.output_text.delta", send, delta=piece, item_id="msg_1", output_index=0, content_index=0, logprobs=[])

    def say(self, text, send=True):
        for word in text.split(" "):
            self.piece(word if not self.text else " " + word, send)

    def object(self, status, **fields):
        output = [{"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
                   "content": [{"type": "output_text", "text": self.text, "annotations": []}]}] if self.text else []
        return {"id": self.id, "object": "response", "status": status, "output": output,
                "previous_response_id": None, "convod": {**RECEIPT, "parent": self.previous() or ""}, **fields}

    def previous(self):
        parent = self.body.get("convod", {}).get("parent")
        if parent is not None:
            return parent or None
        return self.double.conversations.get(self.body.get("conversation"), {}).get("head")

    def keep(self, response):
        conversation = self.body.get("conversation")
        self.double.responses[self.id] = {"object": response, "input": self.body["input"], "log": self.log}
        if conversation and self.body.get("generate") is not False:
            self.double.conversations[conversation]["head"] = self.id
            for role, text in (("user", self.said), ("assistant", self.text)):
                self.double.items[conversation].append(
                    {"id": self.double.new_id("msg"), "type": "message", "role": role,
                     "content": [{"type": "input_text" if role == "user" else "output_text", "text": text}]})

    def end(self, kind, status, send=True, **fields):
        response = self.object(status, **fields)
        self.keep(response)
        self.emit(kind, send, response=response)

    def hang_up(self):
        self.handler.request.shutdown(2)
        raise Closed

    def run(self):
        said = self.said = self.body["input"][0]["content"] if self.body["input"] else ""
        word, _, rest = said.partition(" ")
        if word in ("refuse", "locked", "full"):
            self.handler.send({"type": "error", "status": 400, "error": {
                "type": "invalid_request_error", "param": None, "message": "that cannot be",
                "code": {"locked": "conversation_locked", "full": "context_length_exceeded"}.get(word, "invalid")}})
            return
        if word == "early":
            self.hang_up()
        if word == "close":
            self.handler.request.sendall(b"\x88\x08" + int(rest).to_bytes(2, "big") + b"reason")
            return
        self.emit("response.created", response={"id": self.id, "status": "in_progress", "output": []})
        self.emit("response.in_progress", response={"id": self.id, "status": "in_progress", "output": []})
        if self.body.get("generate") is False:
            self.double.warming.add(self.body["conversation"])
            stopped = self.cancelled.wait(self.double.warm_up)
            self.double.warming.discard(self.body["conversation"])
            brought = {**RECEIPT, "conversation": self.body["conversation"], "tokens": {**RECEIPT["tokens"], "hot": 0, "ram": 256, "disk": 556, "prefilled": 0}}
            self.end("response.incomplete" if stopped else "response.completed", "incomplete" if stopped else "completed", convod=brought)
        elif word == "wait":
            self.say("the first half")
            self.double.go_on.wait(30)
            self.say("and the second")
            self.end("response.completed", "completed")
        elif word == "code":
            code = [f"line {i}\n" for i in range(int(rest))]
            for piece in ["```\n", *("".join(code[i:i + 50]) for i in range(0, len(code), 50)), "```"]:
                self.piece(piece)
            self.end("response.completed", "completed")
        elif word in ("pieces", "halt"):
            size, _, rest = rest.partition(" ") if word == "pieces" else ("1000000", "", rest)
            for at in range(0, len(rest), int(size)):
                self.piece(rest[at:at + int(size)])
            if word == "halt":
                while not self.double.go_on.wait(0.05) and not self.cancelled.is_set():
                    pass
                self.piece("" if self.cancelled.is_set() else " and the rest")
            stopped = self.cancelled.is_set()
            self.end("response.incomplete" if stopped else "response.completed", "incomplete" if stopped else "completed")
        elif word == "ponder":
            thought = {"type": "reasoning", "id": "rs_1", "summary": [], "content": []}
            self.emit("response.output_item.added", output_index=0, item=thought)
            self.emit("response.reasoning_text.delta", delta="hm", item_id="rs_1", output_index=0, content_index=0)
            self.double.go_on.wait(30)
            self.emit("response.output_item.done", output_index=0, item=thought)
            self.say("so it is")
            self.end("response.completed", "completed")
        elif word in ("slow", "think"):
            if word == "think":
                self.double.note("thinking")
                self.cancelled.wait()
            while not self.cancelled.wait(0.02):
                self.say("more")
            self.end("response.incomplete", "incomplete", incomplete_details={"reason": "cancelled"})
        elif word == "fail":
            self.emit("response.failed", response=self.object("failed", error={"code": "server_error",
                                                                              "message": "the model fell over"}))
        elif word in ("drop", "vanish"):
            self.say("the first half")
            before = self.object("in_progress")
            self.say("and the second", send=False)
            if word == "drop":
                self.end("response.completed", "completed", send=False)
                if rest != "ended":
                    self.double.responses[self.id]["object"] = before
            self.hang_up()
        elif word == "long":
            self.say("as long as it may be")
            self.end("response.incomplete", "incomplete", incomplete_details={"reason": "max_output_tokens"})
        else:
            if word == "progress":
                for stage, done, total in (("queue", 2, 0), ("restore", 256, 812), ("prefill", 10, 23)):
                    self.emit("response.convod.progress", stage=stage, done=done, total=total)
                    time.sleep(0.1)
            counts = self.double.asked
            counts[said] = counts.get(said, 0) + 1
            self.say({"say": rest, "evil": "red \033[31malert\007 and \u202ereversed\u0085 end",
                      "again": f"time {counts[said]}"}.get(word, "you said: " + said))
            self.end("response.completed", "completed")


class Double:
    def __init__(self, token=None, loading=0, refusal=None, upgrades=True, warm_up=0.2):
        self.go_on = threading.Event()
        self.token, self.loading, self.refusal, self.upgrades = token, loading, refusal, upgrades
        self.warm_up, self.warming = warm_up, set()  # seconds; the conversations where one runs
        self.status = {"model": "double", "tiers": {"hot": {"used": 1, "budget": 2}, "ram": {"used_bytes": 1024, "budget_bytes": 2048}},
                       "usage": {"disk_bytes": {"used": 3 << 20, "limit": None}, "turns": 7}}
        self.conversations, self.items, self.responses = {}, {}, {}
        self.asked, self.events, self.count = {}, [], 0
        self.lock = threading.Condition()
        socketserver.ThreadingTCPServer.allow_reuse_address = True
        self.server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.double = self
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def note(self, event):
        with self.lock:
            self.events.append(event)
            self.lock.notify_all()

    def wait(self, event):
        with self.lock:
            assert self.lock.wait_for(lambda: event in self.events, 20), event

    def new_id(self, kind):
        with self.lock:
            self.count += 1
            return f"{kind}_{self.count:04}"

    def create(self, body):
        made = {"id": self.new_id("conv"), "object": "conversation", "created_at": 1700000000, "updated_at": 1700000000,
                "metadata": {}, "title": None, "instructions": None, "head": None, "tier": "hot", "turns": 1, **body}
        self.conversations[made["id"]] = made
        self.items[made["id"]] = []
        return made

    def add(self, conversation, items, convod):
        """Items behind a response, as a turn without an answer."""
        added = {"id": self.new_id("resp"), "status": "completed", "output": [], "convod": convod}
        self.responses[added["id"]] = {"object": added, "input": items, "log": []}
        self.items[conversation["id"]] += [{"id": self.new_id("msg"), "type": "message", **item} for item in items]
        conversation["head"] = added["id"]
        return {"object": "list", "data": items, "has_more": False}
