#!/usr/bin/env python3
"""convo as a person and a script meet it: in pipes and on a terminal (a pty), against a stand-in for the daemon."""
import base64
import http.server
import json
import os
import re
import signal
import socketserver
import ssl
import subprocess
import sys
import tempfile
import termios
import threading
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from case import Case  # noqa: E402
from double import Double  # noqa: E402
from terminal import CONVO, LIMIT, environment, run  # noqa: E402

class Pipes(Case):
    def test_ask_prints_the_answer_alone(self):
        r = self.convo("ask", "say", "hello", "world")
        self.assertEqual((r.returncode, r.stdout, r.stderr), (0, "hello world\n", ""))
        self.assertIs(self.sent()[0]["store"], False)

    def test_ask_reads_standard_input(self):
        r = self.convo("ask", stdin="say grüße ☃\n")
        self.assertEqual((r.returncode, r.stdout), (0, "grüße ☃\n"))
        self.convo("ask", "look at this:", "-", stdin="one\ntwo\n")
        self.assertEqual(self.sent()[-1]["input"][0]["content"], "look at this:\n\none\ntwo")

    def test_ask_json_is_the_whole_response(self):
        r = self.convo("ask", "--json", "say hi")
        response = json.loads(r.stdout)
        self.assertEqual(response["output"][0]["content"][0]["text"], "hi")
        self.assertEqual(response["convod"]["tokens"]["history"], 812)

    def test_output_in_a_pipe_is_as_it_is(self):
        self.assertEqual(self.convo("ask", "evil").stdout, "red \033[31malert\007 and \u202ereversed\u0085 end\n")

    def test_sampling_is_passed_on(self):
        self.convo("ask", "--temperature", "0.5", "--seed", "7", "--max-tokens", "9", "--top-p", "0.9", "-s", "Be kind.", "hi")
        body = self.sent()[0]
        self.assertEqual((body["temperature"], body["convod"]["seed"], body["max_output_tokens"], body["top_p"],
                          body["instructions"]), (0.5, 7, 9, 0.9, "Be kind."))
        self.assertFalse("reasoning" in body or "thinking_tokens" in body["convod"], body)
        self.convo("ask", "--effort", "low", "--thinking-tokens=0", "--thinking-context", "current_turn", "hi")
        body = self.sent()[-1]
        self.assertEqual((body["reasoning"], body["convod"]["thinking_tokens"]), ({"effort": "low", "context": "current_turn"}, 0))

    def test_keep_and_continue(self):
        r = self.convo("ask", "--keep", "--system", "Be kind.", "say one\nsecond line")
        self.assertIn("conversation conv_", r.stderr)
        (made,) = self.double.conversations.values()
        self.assertEqual((made["title"], made["instructions"]), ("say one", "Be kind."))
        self.convo("ask", "--continue", "say two")
        self.assertEqual(self.sent()[-1]["conversation"], made["id"])
        self.convo("ask", "-c", made["id"], "say three")
        self.assertEqual(self.sent()[-1]["conversation"], made["id"])
        self.assertNotIn("store", self.sent()[-1])

    def test_system_counts_in_a_conversation_that_goes_on(self):
        self.convo("ask", "--keep", "--system", "Be kind.", "say one")
        (made,) = self.double.conversations.values()
        for arguments in (["-c", made["id"]], ["--continue"]):
            self.convo("ask", "--keep", *arguments, "--system", "Be brief.", "say two")
            self.assertEqual((self.sent()[-1]["instructions"], made["instructions"]), ("Be brief.", "Be kind."))
        r = self.convo("resume", "--system", "Be loud.", stdin="say three\n")
        self.assertEqual((r.returncode, made["instructions"]), (0, "Be loud."))
        self.assertEqual(self.convo("resume", "conv_none", "--system", "x", stdin="say four\n").returncode, 1)
        self.assertEqual(self.sent()[-1]["input"][0]["content"], "say three")

    def test_system_is_cleared(self):
        for clear in "-", '""':
            self.convo("--system", "Be kind.", stdin=f"/system {clear}\nsay one\n/system Be loud.\n/system {clear}\n/system\n")
            first, *rest = [json.loads(e.split(" ", 2)[2]) for e in self.double.events
                            if e.startswith("POST") and '"title"' in e or '"instructions"' in e]
            self.assertNotIn("instructions", first)
            self.assertEqual(rest, [{"instructions": "Be loud."}, {"instructions": ""}])
            self.double.events.clear()

    def test_a_warm_up_stands_in_nobodys_way(self):
        self.double = self.start(warm_up=LIMIT)
        self.convo("ask", "--keep", "say one")
        (id,) = self.double.conversations
        r = self.convo("resume", stdin="/evict ram\nsay two\n")
        self.assertEqual((r.returncode, self.double.conversations[id]["tier"]), (0, "ram"), r.stderr)
        r = self.convo("resume", stdin="/delete\n")
        self.assertEqual((r.returncode, self.double.conversations), (0, {}), r.stderr)

    def test_titles_are_cut_at_a_character(self):
        self.convo("ask", "--keep", "ä" * 100)
        (made,) = self.double.conversations.values()
        self.assertEqual(made["title"], "ä" * 59 + "…")

    def test_exit_codes(self):
        self.assertEqual(self.convo("ask", "fail").returncode, 1)
        self.assertEqual(self.convo("ask", "refuse").returncode, 1)
        self.assertEqual(self.convo("ask", "long").returncode, 4)
        self.assertEqual(self.convo("ask").returncode, 2)
        self.assertEqual(self.convo("nonsense").returncode, 2)
        self.assertEqual(self.convo("show").returncode, 2)
        self.assertEqual(self.convo("ask", "--seed", "x", "hi").returncode, 2)
        self.assertEqual(self.convo("evict", "conv_1", "--to", "moon").returncode, 2)
        self.assertEqual(self.convo("show", "conv_none").returncode, 1)
        self.assertEqual(run("--url", "127.0.0.1", "list").returncode, 2)

    def test_an_option_of_another_command_is_refused(self):
        """It would do nothing, and a conversation that was to go on would be another one."""
        for arguments, said in ((["--continue"], "convo resume"), (["-c", "conv_1"], "convo resume"), (["list", "--continue"], "convo resume"),
                                (["chat", "--keep"], "a chat is kept"), (["list", "--to", "ram"], "evict"), (["--json"], "ask, list"), (["delete", "conv_1", "--json"], "ask, list"),
                                (["list", "-f", __file__], "--file goes with a message")):
            r = self.convo(*arguments)
            self.assertEqual((r.returncode, r.stdout), (2, ""), arguments)
            self.assertIn(said, r.stderr)
        self.assertIn("behind `ask`", self.convo("What is this?").stderr)
        self.assertEqual(self.double.events, [])

    def test_failures_say_why(self):
        self.assertEqual(self.convo("ask", "fail").stderr, "convo: the model fell over\n")
        self.assertEqual(self.convo("ask", "refuse").stderr, "convo: that cannot be\n")

    def test_a_full_context_is_told_with_what_helps(self):
        self.assertRegex(self.convo("ask", "full").stderr, r"^convo: that cannot be \(with --truncation auto, ")
        self.assertEqual(self.convo("ask", "--truncation", "auto", "full").stderr, "convo: that cannot be\n")
        self.assertEqual([b.get("truncation") for b in self.sent()], [None, "auto"])

    def test_no_daemon(self):
        gone = Double()
        gone.close()
        r = run("ask", "hi", CONVOD_URL=gone.url)
        self.assertEqual(r.returncode, 3)
        self.assertRegex(r.stderr, "no convod at " + gone.url + ": start one with `make chat` or `convod --model FILE`")
        self.assertEqual(run("--url", gone.url, "status").returncode, 3)

    def test_waits_until_the_model_is_loaded(self):
        self.double.loading = 3
        r = self.convo("ask", "say hi")
        self.assertEqual((r.stdout, r.stderr), ("hi\n", "waiting until the model is loaded\n"))
        self.double.loading = 1
        self.assertEqual(self.convo("status").stdout, "loading the model\n")

    def test_token(self):
        self.double = self.start(token="s3cret")
        r = self.convo("list")
        self.assertEqual(r.returncode, 1)
        self.assertIn("--token-file", r.stderr)
        with tempfile.NamedTemporaryFile("w") as f:
            f.write("s3cret\n")
            f.flush()
            self.assertEqual(self.convo("--token-file", f.name, "ask", "say hi").stdout, "hi\n")
        self.assertEqual(self.convo("ask", "say hi", CONVOD_TOKEN="s3cret").stdout, "hi\n")
        self.assertEqual(self.convo("--token-file", "/nonexistent", "list").returncode, 2)

    def test_a_refused_socket_is_no_missing_daemon(self):
        self.double = self.start(token="s3cret")
        for token in ({}, {"CONVOD_TOKEN": "wrong"}):
            r = self.convo("ask", "hi", **token)
            self.assertEqual((r.returncode, r.stderr), (1, "convo: this daemon wants a token (name the file with your token: "
                                                           "--token-file FILE)\n"))
        self.double = self.start(refusal=(403, {"error": {"message": "not from there", "code": "host_not_allowed"}}))
        for command in (["ask", "hi"], ["list"]):
            r = self.convo(*command)
            self.assertEqual((r.returncode, r.stderr), (1, "convo: not from there\n"))
        self.double = self.start(upgrades=False)
        r = self.convo("ask", "hi")
        self.assertEqual(r.returncode, 1)
        self.assertIn("answers over HTTP but refuses the WebSocket", r.stderr)
        r = run("--url", self.double.url + "/v1", "ask", "hi")
        self.assertEqual(r.returncode, 1)
        self.assertIn(f"nothing at this path. ({self.double.url}/v1 must be the daemon's address alone", r.stderr)

    def test_list_is_for_scripts(self):
        for i in range(130):
            self.double.create({"title": f"number {i}"})
        rows = [line.split("\t") for line in self.convo("list").stdout.splitlines()]
        self.assertEqual([len(r) for r in rows], [5] * 130)
        self.assertEqual(rows[0][4], "number 129")
        self.assertEqual(len(self.convo("list", "number 12").stdout.splitlines()), 11)
        self.assertEqual(len(json.loads(self.convo("list", "--json").stdout)), 130)

    def test_rename_show_evict_delete(self):
        self.convo("ask", "--keep", "say one")
        (id,) = self.double.conversations
        self.assertEqual(self.convo("rename", id, "A", "title").returncode, 0)
        self.assertEqual(self.double.conversations[id]["title"], "A title")
        self.assertEqual(self.convo("show", id).stdout, "user: say one\nassistant: one\n")
        self.assertEqual(len(json.loads(self.convo("show", id, "--json").stdout)["items"]), 2)
        self.assertEqual(self.convo("evict", id, "--to", "ram").returncode, 0)
        self.assertEqual(self.double.conversations[id]["tier"], "ram")
        self.assertEqual(self.convo("delete", id).returncode, 0)
        self.assertEqual(self.double.conversations, {})
        self.assertEqual(self.convo("delete", id).returncode, 1)

    def test_status(self):
        self.assertRegex(self.convo("status").stdout, r"model +double\ntiers.hot.used +1\ntiers.hot.budget +2\ntiers.ram.used_bytes +1024\n")
        self.assertRegex(self.convo("status").stdout, r"\nusage.disk_bytes.used +3145728\nusage.disk_bytes.limit +null\nusage.turns +7\n$")
        self.assertEqual(json.loads(self.convo("status", "--json").stdout)["model"], "double")

    def test_chat_from_a_pipe(self):
        r = self.convo(stdin='/receipt off\nsay one\n\n/nonsense\nsay two\\\nlines\n"""say\nblock"""\n//tmp is a folder\nsay last')
        self.assertEqual(r.stdout, "one\ntwo\nlines\nyou said: say\nblock\nyou said: /tmp is a folder\nlast\n")
        self.assertEqual(r.returncode, 2)
        self.assertEqual(len({b["conversation"] for b in self.sent()}), 1)
        self.assertEqual(self.double.events.count("socket"), 1)

    def test_a_pipe_is_one_message(self):
        for command in ([], ["chat"]):
            r = self.convo(*command, stdin="say one\n/tmp is no command\n\nthe end\n\n")
            self.assertEqual((r.returncode, r.stdout), (0, "one\n/tmp is no command\n\nthe end\n"))
        self.assertEqual([b["input"][0]["content"] for b in self.sent()], ["say one\n/tmp is no command\n\nthe end"] * 2)
        self.assertEqual(self.convo(stdin="").returncode, 0)

    def test_what_is_piped_in_follows_the_question(self):
        self.convo("ask", "look at this:", stdin="one\ntwo\n")
        with tempfile.TemporaryFile("w+") as f:
            f.write("three\n")
            f.seek(0)
            subprocess.run([CONVO, "--url", self.double.url, "ask", "and this:"], stdin=f, env=environment(), timeout=LIMIT)
        subprocess.run([CONVO, "--url", self.double.url, "ask", "alone"], stdin=subprocess.DEVNULL, env=environment(), timeout=LIMIT)
        self.convo("ask", "-", "behind", stdin="before\n")
        self.convo("ask", "nothing", stdin="")
        self.assertEqual([b["input"][0]["content"] for b in self.sent()],
                         ["look at this:\n\none\ntwo", "and this:\n\nthree", "alone", "before behind", "nothing"])

    def test_why_no_connection_came_about(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days",
                            "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", f"{folder}/key",
                            "-out", f"{folder}/cert"], check=True, capture_output=True)
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(f"{folder}/cert", f"{folder}/key")
            server = socketserver.TCPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
            server.socket = tls.wrap_socket(server.socket, server_side=True)
            server.handle_error = lambda *_: None
            threading.Thread(target=server.serve_forever, daemon=True).start()
            self.addCleanup(server.shutdown)
            port = server.server_address[1]
            for url, more, told in (
                    (f"https://localhost:{port}", {}, "not accepted: self-signed certificate; the environment's SSL_CERT_FILE"),
                    (f"https://127.0.0.1:{port}", {"SSL_CERT_FILE": f"{folder}/cert"}, "not accepted: IP address mismatch"),
                    ("http://nowhere.invalid", {}, "nowhere.invalid: ")):
                r = run("--url", url, "list", **more)
                self.assertIn(told, r.stderr)
                self.assertEqual(r.returncode, 3 if "invalid" in url else 1)

    def test_a_proxy_is_for_other_machines(self):
        asked = []

        class Proxy(socketserver.StreamRequestHandler):
            def handle(self):
                asked.append(self.rfile.readline().decode().split()[:2])

        with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Proxy) as proxy:
            threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
            via = {"http_proxy": f"http://127.0.0.1:{proxy.server_address[1]}", "no_proxy": "elsewhere.example"}
            r = self.convo("ask", "say hi", **via)
            self.assertEqual((r.returncode, r.stdout, asked), (0, "hi\n", []))
            self.assertEqual(run("--url", "http://box.invalid:8642", "status", **via).returncode, 3)
            self.assertEqual(asked[0], ["CONNECT", "box.invalid:8642"])
            asked.clear()
            for names in ("other, .invalid", "box.invalid", "*"):
                self.assertEqual(run("--url", "http://box.invalid:8642", "status", **via | {"no_proxy": names}).returncode, 3)
            self.assertEqual(asked, [])
            proxy.shutdown()

    def test_a_value_out_of_range_is_named(self):
        for option, value, allowed in (("--top-p", "200", "from 0 to 1,"), ("--temperature", "hot", "from 0 to 10,"),
                                       ("--max-tokens", "-3", "from 1 to "), ("--seed", "x", "from 0 to "),
                                       ("--effort", "much", "none, minimal, "), ("--thinking-tokens", "-1", "from 0 to "),
                                       ("--thinking-context", "auto", "all_turns or ")):
            r = self.convo("ask", option, value, "hi")
            self.assertEqual(r.returncode, 2)
            self.assertIn(f"{option} must be", r.stderr)
            self.assertIn(allowed, r.stderr)

    def test_a_broken_connection_is_mended(self):
        for said in ("drop", "drop ended"):
            r = self.convo("ask", "--keep", said)
            self.assertEqual((r.returncode, r.stdout), (0, "the first half and the second\n"), said)

    def test_a_lost_answer_is_told(self):
        r = self.convo("ask", "--keep", "vanish")
        self.assertEqual((r.returncode, r.stdout), (1, "the first half\n"))
        self.assertIn("the conversation stands as it was before", r.stderr)
        r = self.convo("ask", "--keep", "early")
        self.assertIn("before the daemon confirmed the turn", r.stderr)
        self.assertEqual(len(self.sent()), 2, "nothing is sent twice")

    def test_what_is_no_text_is_not_sent(self):
        iconv = "convert it, for instance with `iconv -f latin1 -t utf-8`\n"
        for said, told in (("gr\udcfc\udcdfe", "is not UTF-8: byte 0xfc at offset 2; " + iconv),
                           ("ab\0cd", "has a NUL byte at offset 2 and so is no text; `tr -d '\\0'` takes them out\n"),
                           ("ä\udce4", "is not UTF-8: byte 0xe4 at offset 2; " + iconv)):
            for arguments, name in ((["ask"], "standard input"), (["ask", "--keep", "look:", "-"], "standard input"),
                                    (["chat"], "this message")):
                r = self.convo(*arguments, stdin=said)
                self.assertEqual((r.returncode, r.stdout, r.stderr), (1, "", f"convo: {name} {told}"))
        r = self.convo("chat", stdin="/receipt off\n\0\n'''one\ntw\udce4\n'''\nsay on\n".replace("'", '"'))
        self.assertEqual((r.returncode, r.stdout), (1, "on\n"))
        self.assertIn("this message is not UTF-8: byte 0xe4 at offset 6", r.stderr)
        self.assertEqual([b["input"][0]["content"] for b in self.sent()], ["say on"])
        for arguments in (["ask", "\udcfc"], ["ask", "--system", "\udcfc", "hi"], ["rename", "conv_1", "\udcfc"]):
            r = self.convo(*arguments)
            self.assertEqual(r.returncode, 2)
            self.assertIn("is not UTF-8: byte 0xfc at offset 0", r.stderr)

    def test_what_is_too_long_is_not_sent(self):
        r = self.convo("ask", stdin="a\n" * (6 << 20))
        self.assertEqual((r.returncode, r.stdout), (1, ""))
        self.assertIn("longer than the 16 MiB that the daemon takes", r.stderr)
        self.assertNotIn("socket", self.double.events)

    def test_a_close_code_is_told(self):
        for code, told in (1007, "not UTF-8"), (1008, "token"), (1009, "longer than"), (1013, "now (reason); try again later"):
            r = self.convo("ask", "--keep", f"close {code}")
            self.assertEqual((r.returncode, r.stderr.count(told), "/show" in r.stderr), (1, 1, False), r.stderr)
        self.assertIn("/show", self.convo("ask", "--keep", "close 1001").stderr)

    def test_interrupt_ends_a_script(self):
        p = subprocess.Popen([CONVO, "--url", self.double.url, "ask", "slow"], bufsize=0, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, env=environment())
        self.assertEqual(p.stdout.read(4), b"more")
        p.send_signal(signal.SIGINT)
        self.assertEqual((p.communicate(timeout=LIMIT)[1], p.returncode), (b"stopped\n", 4))
        self.assertEqual(len(self.sent("response.cancel")), 1)

    def test_interrupted_before_there_was_an_answer(self):
        p = subprocess.Popen([CONVO, "--url", self.double.url, "ask", "think"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             env=environment())
        self.double.wait("thinking")
        p.send_signal(signal.SIGINT)
        out, err = p.communicate(timeout=LIMIT)
        self.assertEqual((p.returncode, out, err), (130, b"", b"stopped\n"))

    def test_a_cut_answer_is_told(self):
        r = self.convo("ask", "long")
        self.assertEqual((r.returncode, r.stdout, r.stderr), (4, "as long as it may be\n", "cut at the token limit\n"))
        r = self.convo("ask", "--receipt", "long")
        self.assertRegex(r.stderr, "^cut at the token limit · 812 tokens kept")
        self.assertEqual(self.convo("ask", "--json", "long").stderr, "")

    def test_a_reader_that_goes_away_stops_the_answer(self):
        p = subprocess.Popen([CONVO, "--url", self.double.url, "ask", "slow"], stdout=subprocess.PIPE, env=environment())
        p.stdout.read(4)
        p.stdout.close()
        self.assertEqual(p.wait(timeout=LIMIT), 1)
        self.assertEqual(len(self.sent("response.cancel")), 1)

    def test_output_that_cannot_be_written_is_told(self):
        self.convo("ask", "--keep", "say one")
        (id,) = self.double.conversations
        for arguments in (["list"], ["show", id], ["list", "--json"], ["show", id, "--json"], ["status"], ["ask", "say hi"],
                          ["ask", "slow"], ["ask", "--json", "say hi"], ["chat"], ["--help"], ["--version"]):
            with open("/dev/full", "w") as full:
                r = subprocess.run([CONVO, "--url", self.double.url, *arguments], input="say hi\nsay more\n", stdout=full,
                                   stderr=subprocess.PIPE, encoding="utf-8", timeout=LIMIT, env=environment())
            self.assertEqual(r.returncode, 1, arguments)
            self.assertIn("convo: standard output: No space left on device\n", r.stderr, arguments)
        self.assertNotIn("say more", [b["input"][0]["content"] for b in self.sent()])
        reading, writing = os.pipe()
        os.close(reading)
        p = subprocess.run([CONVO, "--url", self.double.url, "list"], stdout=writing, stderr=subprocess.PIPE, env=environment())
        os.close(writing)
        self.assertEqual((p.returncode, p.stderr), (1, b""))

    def test_help_and_version(self):
        """A terminal of 80 columns breaks none of their lines."""
        self.assertIn("Exit status:", run("--help").stdout)
        for text in (run("--help").stdout, self.convo("chat", stdin="/help\n").stderr.rpartition("\nA line")[0]):
            self.assertIn("/", text)
            self.assertEqual([line for line in text.splitlines() if len(line) > 79], [])
        self.assertRegex(run("--version").stdout, r"^convo \d+\.\d+\.\d+\n$")

    def test_no_escape_sequences(self):
        for arguments in (["list"], ["status"], ["ask", "progress"], ["ask", "--receipt", "fail"]):
            r = self.convo(*arguments)
            self.assertNotIn("\033", r.stdout + r.stderr)


class OnATerminal(Case):
    def test_a_turn_and_its_receipt(self):
        t = self.terminal()
        t.prompt()
        t.type("say hällo wörld\r")
        t.expect("hällo wörld\r\n")
        t.expect(re.escape("812 tokens kept (hot), 23 prefilled · 0.21 s to first token · 25 tok/s"))
        t.prompt()
        t.type("\x04")
        t.expect("convo resume` goes on with “say hällo")
        self.assertEqual(t.leave(), 0)

    def test_no_receipt(self):
        t = self.terminal("--no-receipt")
        t.prompt()
        t.type("say a\r")
        t.prompt()
        t.type("/receipt on\r")
        t.prompt()
        t.type("say b\r")
        t.expect("to first token")
        self.assertEqual(t.text.count("to first token"), 1)

    def test_thinking_is_told(self):
        t = self.terminal()
        t.prompt()
        t.type("ponder\r")
        t.expect("thinking")
        self.double.go_on.set()
        t.expect("so it is")
        t.expect("to first token")
        t.prompt()
        t.type("\x04")
        t.leave()

    def test_progress_is_shown_and_goes_away(self):
        t = self.terminal()
        t.prompt()
        t.type("progress\r")
        t.expect("waiting for 2 other turns")
        t.expect("restoring 256 of 812 tokens")
        t.expect("reading 10 of 23 tokens")
        t.expect(r"\r\x1b\[Kyou")

    def test_loading_is_shown(self):
        self.double.loading = 3
        t = self.terminal()
        t.expect("loading the model: 50 %")
        t.type("say QXQ")
        self.assertEqual(t.expect(r"(?s)^.*?> (\x1b\[K)?").count("Q"), 0)
        t.expect("say QXQ")
        t.type("\r")
        t.expect("to first token")
        t.type("/quit\r")
        self.assertEqual(t.leave(), 0)
        self.assertEqual(t.modes(), termios.ICANON | termios.ECHO)

    def test_interrupt_stops_the_answer_and_keeps_the_conversation(self):
        t = self.terminal()
        t.prompt()
        t.type("slow\r")
        t.expect("more more more")
        t.type("\x03")
        t.expect("stopped · 812 tokens")
        t.prompt()
        t.type("say on\r")
        t.prompt()
        self.assertEqual(len({b["conversation"] for b in self.sent()}), 1)
        self.assertEqual(len(self.sent("response.cancel")), 1)

    def test_second_interrupt_leaves(self):
        t = self.terminal()
        t.prompt()
        t.type("slow\r")
        t.expect("more more")
        t.type("\x03")
        t.prompt()
        t.type("\x03")
        t.leave()
        t = self.terminal()
        t.prompt()
        t.type("\x03")
        t.expect("Ctrl-C again")
        t.prompt()
        t.type("\x03")
        t.leave()

    def test_set_copy_save_edit(self):
        with tempfile.TemporaryDirectory() as folder:
            editor = Path(folder) / "editor"
            editor.write_text(f"#!/bin/sh\nstty -a >{folder}/modes\nprintf 'say from the editor' >\"$2\"\n")
            editor.chmod(0o700)
            t = self.terminal(EDITOR=f"{editor} -w")
            t.prompt()
            t.type("/set temperature 99\r")
            t.expect("temperature a number from 0 to 10")
            t.type("/set temperature 0.5\r")
            t.expect(r"temperature 0\.5, top-p the daemon's own, max-tokens the daemon's own, seed\s+another each time, effort\s+the")
            t.expect(r"markdown\s+on")
            t.type("/set effort low\r")
            t.expect(r"effort\s+low,")
            t.type("/set effort -\r")
            t.expect(r"effort\s+the")
            t.type("/set thinking-tokens 12\r")
            t.expect(r"thinking-tokens\s+12,")
            t.type("/set thinking-context current_turn\r")
            t.expect(r"thinking-context\s+current_turn,")
            t.type("/set nonsense 1\r")
            t.expect("markdown, temperature, top-p, max-tokens")
            t.prompt()
            t.type("/edit\r")
            t.expect("from the editor\r\n")
            t.expect("to first token")
            # It finds the terminal as convo did.
            self.assertLessEqual({"icanon", "echo"}, set((Path(folder) / "modes").read_text().replace(";", " ").split()))
            t.prompt()
            t.type("/copy\r")
            t.expect("\x1b]52;c;" + base64.b64encode(b"from the editor").decode() + "\x07")
            t.prompt()
            t.type(f"/save {folder}/answer\r")
            t.expect("saved in")
            t.prompt()
            t.type(f"/save {folder}/answer\r")
            t.expect("is there already")
            self.assertEqual((Path(folder) / "answer").read_text(), "from the editor\n")
        self.assertEqual([(b["input"][0]["content"], b["temperature"], b["reasoning"], b["convod"]["thinking_tokens"]) for b in self.sent()],
                         [("say from the editor", 0.5, {"context": "current_turn"}, 12)])

    def test_put_otherwise(self):
        with tempfile.TemporaryDirectory() as folder:
            editor = Path(folder) / "editor"
            editor.write_text("#!/bin/sh\nsed -i 's/one/two/;s/three/four/' \"$1\"\n")
            editor.chmod(0o700)
            t = self.terminal(EDITOR=str(editor))
            t.prompt()
            for command in "/reword", "/correct":
                t.type(f"{command} now\r")
                t.expect("nothing was said yet")
                t.prompt()
            for typed, answer in ("say one", "one"), ("/reword", "two"), ("/reword say three", "three"):
                t.type(typed + "\r")
                t.expect(rf"{answer}\r\n.*to first token")
                t.prompt()
            self.assertEqual([(b["input"][0]["content"], b["convod"].get("parent")) for b in self.sent()],
                             [("say one", None), ("say two", ""), ("say three", "")])
            (conversation,) = self.double.conversations.values()
            for typed, answer in ("/correct", "four"), ("/correct five", "five"):
                t.type(typed + "\r")
                t.expect("the answer is this now")
                t.prompt()
                added = self.double.responses[conversation["head"]]
                self.assertEqual([(i["role"], i["content"]) for i in added["input"]], [("user", "say three"), ("assistant", answer)])
                self.assertEqual(added["object"]["convod"], {"parent": ""})
            t.type("/copy\r")
            t.expect("\x1b]52;c;" + base64.b64encode(b"five").decode() + "\x07")
            t.prompt()
            t.type("/regenerate\r")
            t.expect(r"three\r\n.*to first token")
            t.prompt()
            t.type("/correct six\r")
            t.expect("the answer is this now")
            t.prompt()
            corrected = conversation["head"]
            t.type("say next\r")
            t.expect("to first token")
            t.prompt()
            self.assertEqual(self.double.responses[conversation["head"]]["object"]["convod"]["parent"], corrected)
            for before in corrected, None:
                t.type("/undo\r")
                t.expect("taken back")
                t.prompt()
                self.assertEqual(conversation["head"], before)
        for command in "/reword", "/correct":  # the editor is for a terminal; a text behind it needs none
            r = self.convo(stdin=f"say one\n{command}\n{command} say two\n")
            self.assertIn("the editor wants a terminal", r.stderr)
            self.assertEqual(r.returncode, 0)

    def test_status_for_a_person(self):
        t = self.terminal("status")
        t.expect(r"\ntiers.hot +1 of 2\r\ntiers.ram +1.0 KiB of 2.0 KiB\r\n")
        t.expect(r"usage.disk +3.0 MiB, no limit\r\nusage.turns +7\r\n")

    def test_an_answer_cannot_steer_the_terminal(self):
        t = self.terminal()
        t.prompt()
        t.type("evil\r")
        t.expect(re.escape("red [31malert and reversed end\r\n"))
        self.assertNotIn("\033[31malert", t.text)
        self.assertNotIn("\007", t.text)

    def test_json_and_names_cannot_either(self):
        t = self.terminal("ask", "--json", "evil")
        t.leave()
        self.assertNotRegex(t.text, "[\033\007\u0085\u202e]")
        said = json.loads(t.text)["output"][0]["content"][0]["text"]
        self.assertEqual(said, "red \033[31malert\007 and \u202ereversed\u0085 end")
        self.double.create({"id": "conv_\033[31m1", "tier": "\033[32mhot", "title": "one\ttwo \u0085three"})
        self.double.status = {"\033[33mname\u0085": "\033[34mvalue"}
        for command in ("list", "status"):
            t = self.terminal(command)
            t.leave()
            self.assertNotRegex(t.text, "[\033\u0085]")
        self.assertIn("[33mname", t.text)

    def test_no_colour(self):
        t = self.terminal(NO_COLOR="1")
        t.prompt()
        t.type("say a\r")
        t.expect("to first token · 25 tok/s\r\n")
        t.prompt()
        self.assertNotIn("\033[2m", t.text)

    def test_resume_shows_the_end_and_warms_up(self):
        self.convo("ask", "--keep", "say one")
        (id,) = self.double.conversations
        t = self.terminal("resume")
        t.expect(re.escape("> say one"))
        t.expect("one\r\n")
        t.prompt()
        t.type("say two\r")
        t.expect("two\r\n")
        t.expect(r"tok/s · before\s+you\s+wrote:\s+256\s+from\s+RAM,\s+556\s+from\s+disk")
        t.prompt()
        t.type("say three\r")
        t.expect("tok/s\x1b")
        t.prompt()
        t.type("/quit\r")
        self.assertEqual(t.leave(), 0)
        warm_up, turn, _ = self.sent()[1:]
        self.assertEqual((warm_up["generate"], warm_up["conversation"], turn["conversation"]), (False, id, id))

    def test_a_warm_up_of_another_conversation_is_not_told(self):
        self.convo("ask", "--keep", "say one")
        t = self.terminal("resume")
        t.prompt()
        t.type("/new\r")
        t.prompt()
        t.type("say two\r")
        t.expect("tok/s\x1b")
        t.prompt()
        t.type("/quit\r")
        self.assertEqual(t.leave(), 0)
        self.assertNotIn("before you wrote", t.text)

    def test_who_comes_back_finds_it_warm(self):
        t = self.terminal()
        t.prompt()
        t.type("say one\r")
        t.expect("tok/s")
        t.prompt()
        time.sleep(10.5)  # away
        t.type("say ")
        for _ in range(600):  # before the line is sent
            if len(self.sent()) < 2:
                time.sleep(0.05)
        t.type("two\r")
        t.expect(r"before\s+you\s+wrote:")
        t.prompt()
        t.type("/quit\r")
        self.assertEqual(t.leave(), 0)
        first, warm_up, turn = self.sent()
        (id,) = self.double.conversations
        self.assertEqual((first.get("generate"), warm_up["generate"], warm_up["conversation"]), (None, False, id))
        self.assertEqual((turn.get("generate"), turn["conversation"]), (None, id))

    def test_commands(self):
        self.double.create({"title": "an old one"})
        t = self.terminal()
        t.prompt()
        t.type("/help\r")
        t.expect("/regenerate")
        t.prompt()
        t.type("/system Be kind.\r")
        t.prompt()
        t.type("again\r")
        t.expect("time 1\r\n")
        t.prompt()
        t.type("/regenerate\r")
        t.expect("time 2\r\n")
        t.prompt()
        self.assertEqual(self.sent()[-1]["convod"]["parent"], "")
        t.type("say next\r")
        t.prompt()
        [conversation] = [c for c in self.double.conversations.values() if c["title"] == "again"]
        before = self.double.responses[conversation["head"]]["object"]["convod"]["parent"]
        t.type("/undo\r")
        t.expect("taken back")
        t.prompt()
        self.assertEqual(conversation["head"], before)
        t.type("say other\r")
        t.prompt()
        next_turn, other = self.sent()[-2:]
        self.assertNotIn("parent", next_turn["convod"])
        self.assertNotIn("parent", other["convod"])  # the daemon knows what comes next
        self.assertEqual(self.double.responses[conversation["head"]]["object"]["convod"]["parent"], before)
        t.type("/rename A better title\r")
        t.prompt()
        t.type("/list\r")
        t.expect("  1  .*A better title")
        t.expect("  2  .*an old one")
        t.prompt()
        new = list(self.double.conversations)[-1]
        self.assertEqual(self.double.conversations[new]["instructions"], "Be kind.")
        t.type("/evict ram\r")
        t.expect("put away in RAM")
        t.prompt()
        t.type("/resume 2\r")
        t.expect("an old one")
        t.prompt()
        t.type("/delete 1\r")
        t.expect("y/n> ")
        t.type("y\r")
        t.expect("deleted")
        t.prompt()
        self.assertEqual(len(self.double.conversations), 1)
        t.type("/new\r")
        t.prompt()
        t.type("say fresh\r")
        t.prompt()
        self.assertEqual(len(self.double.conversations), 2)
        t.type("/status\r")
        t.expect("tiers.hot")
        t.prompt()

    def test_a_list_fits_the_screen(self):
        for i in range(60):
            self.double.create({"title": f"number {i}"})
        t = self.terminal()
        t.prompt()
        t.type("/list\r")
        t.expect("and older ones")
        t.prompt()
        self.assertIn("number 59", "\n".join(t.seen()[-24:]))
        t = self.terminal(size=(34, 24))
        t.prompt()
        t.type("/list\r")
        t.expect("number 41")
        self.assertTrue([line for line in t.seen() if re.fullmatch("  1 .*number 59", line)], t.seen())

    def test_a_failed_turn_leaves_the_chat_open(self):
        t = self.terminal()
        t.prompt()
        t.type("fail\r")
        t.expect("the model fell over")
        t.prompt()
        t.type("locked\r")
        t.expect("an answer is still being written")
        t.prompt()
        t.type("say well\r")
        t.expect("well\r\n")

    def test_the_socket_may_drop_between_turns(self):
        t = self.terminal()
        t.prompt()
        t.type("drop\r")
        t.expect("and the second\r\n")
        t.prompt()
        t.type("say again\r")
        t.expect("to first token")
        self.assertEqual(self.double.events.count("socket"), 2)

    def test_the_daemon_may_be_started_again_between_turns(self):
        t = self.terminal()
        t.prompt()
        t.type("drop\r")
        t.expect("and the second\r\n")
        t.prompt()
        self.double.loading = 3
        t.type("say again\r")
        t.expect("loading the model: 50 %")
        t.expect("to first token")
        self.assertEqual(self.double.loading, 0)

    def test_dumb_terminal(self):
        t = self.terminal(TERM="dumb")
        t.prompt()
        t.type("say plain\n")
        t.expect("plain\r\n")
        t.prompt()
        self.assertNotIn("\033", t.text)

    def test_a_resize_during_an_answer_counts(self):
        t = self.terminal()
        t.prompt()
        t.type("slow\r")
        t.expect("more more")
        t.resize(20)
        t.type("\x03")
        t.prompt()
        t.type("abcdefghijklmnopqrstu\x01")
        t.expect(r"\x1b\[A")


if __name__ == "__main__":
    unittest.main()
