#!/usr/bin/env python3
"""convo with the real daemon and a real model: what a person does in an evening, told by the receipts.

Skipped as a whole while the daemon is not built or the default model is not here.
"""
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from terminal import CONVO, LIMIT, Terminal, environment, run  # noqa: E402

CONVOD = str(Path(CONVO).parent / "convod")
MODELS = Path(os.environ.get("CONVOD_TEST_MODELS") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "convod/models")
MODEL = MODELS / "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
START_LIMIT = 120


class Daemon:
    def __init__(self, data):
        self.data = data
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            [CONVOD, "--model", str(MODEL), "--data", self.data, "--listen", "127.0.0.1:0", "--ctx", "4096"],
            stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment())
        self.log, self.url, end = b"", None, time.monotonic() + START_LIMIT
        while self.url is None:
            if not select.select([self.process.stderr], [], [], max(0, end - time.monotonic()))[0]:
                self.stop(signal.SIGKILL)
                raise AssertionError(f"convod is not ready after {START_LIMIT} s: {self.log!r}")
            piece = os.read(self.process.stderr.fileno(), 4096)
            self.log += piece
            ready = re.search(rb"ready on (http://\S+)\n", self.log)
            if ready:
                self.url = ready.group(1).decode()
            elif not piece:
                raise AssertionError(f"convod ended: {self.log!r}")
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def stop(self, number):
        self.process.send_signal(number)
        status = self.process.wait(timeout=60)
        self.process.stderr.close()
        return status


class Proxy:
    """Passes bytes on to the daemon; cut() ends the connections that there are."""

    def __init__(self, url):
        self.to = ("127.0.0.1", int(url.rpartition(":")[2]))
        self.sockets, self.lock = [], threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client = self.listener.accept()[0]
                daemon = socket.create_connection(self.to)
            except OSError:
                return
            with self.lock:
                self.sockets += [client, daemon]
            threading.Thread(target=self.copy, args=(client, daemon), daemon=True).start()
            threading.Thread(target=self.copy, args=(daemon, client), daemon=True).start()

    @staticmethod
    def end(sockets):
        for s in sockets:
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def copy(self, source, to):
        try:
            while piece := source.recv(512):
                to.sendall(piece)
        except OSError:
            pass
        self.end([source, to])

    def cut(self):
        with self.lock:
            self.end(self.sockets)

    def close(self):
        self.cut()
        for s in [self.listener, *self.sockets]:
            s.close()


@unittest.skipUnless(os.access(CONVOD, os.X_OK), "the daemon is not built")
@unittest.skipUnless(MODEL.exists(), "the default model is not here")
class AnEvening(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.daemon = Daemon(cls.folder.name)

    @classmethod
    def tearDownClass(cls):
        status = cls.daemon.stop(signal.SIGTERM)
        cls.folder.cleanup()
        assert status == 0, f"convod ended with {status}"

    def convo(self, *arguments, url=None, **more):
        return run("--url", url or self.daemon.url, *arguments, limit=120, **more)

    def ask(self, *arguments, url=None):
        r = self.convo("ask", "--json", "--temperature", "0", "--max-tokens", "24", *arguments, url=url)
        self.assertIn(r.returncode, (0, 4), r.stderr)
        response = json.loads(r.stdout)
        tokens = response["convod"]["tokens"]
        again = sum(x["tokens"] for x in response["convod"]["reprefilled"])
        self.assertEqual(tokens["history"], tokens["hot"] + tokens["ram"] + tokens["disk"] + again)
        self.assertEqual(tokens["prefilled"], tokens["new"] + again)
        return response

    def test_one_question(self):
        response = self.ask("Name a colour.")
        self.assertGreater(len(response["output"][0]["content"][0]["text"]), 0)
        self.assertEqual(self.convo("list").stdout.count("Name a colour."), 0)

    def test_history_is_not_read_again(self):
        first = self.ask("--keep", "Count from one to ten.")
        id = first["convod"]["conversation"]
        had = first["convod"]["tokens"]["prefilled"] + first["convod"]["tokens"]["output"]
        for place in ("hot", "ram", "disk"):
            if place != "hot":
                self.assertEqual(self.convo("evict", id, "--to", place).returncode, 0)
            tokens = self.ask("-c", id, "And on.")["convod"]["tokens"]
            self.assertEqual(tokens["prefilled"], tokens["new"], place)
            self.assertGreaterEqual(tokens["history"], had - 1)
            self.assertEqual(tokens["history"], tokens[place], place)
            had = tokens["history"] + tokens["prefilled"] + tokens["output"]
        self.assertEqual(self.convo("show", id).stdout.count("user: "), 4)
        self.assertIn("Count from one to ten.", self.convo("list").stdout)

    def test_after_a_restart_and_a_crash(self):
        id = self.ask("--keep", "Say the alphabet.")["convod"]["conversation"]
        for number in (signal.SIGTERM, signal.SIGKILL):
            if number == signal.SIGKILL:  # what a crash leaves must have been saved by then
                end = time.monotonic() + LIMIT
                while json.loads(self.convo("status", "--json").stdout)["pending_saves"] and time.monotonic() < end:
                    pass
            self.daemon.stop(number)
            self.daemon.start()
            tokens = self.ask("-c", id, "And on.")["convod"]["tokens"]
            self.assertEqual((tokens["prefilled"], tokens["disk"]), (tokens["new"], tokens["history"]), number)

    def test_a_cut_connection_loses_nothing(self):
        proxy = Proxy(self.daemon.url)
        self.addCleanup(proxy.close)
        whole = self.convo("ask", "--keep", "--temperature", "0", "--max-tokens", "48", "Count from one to one hundred.").stdout
        self.assertGreater(len(whole), 40)
        p = subprocess.Popen([CONVO, "--url", proxy.url, "ask", "--keep", "--temperature", "0", "--max-tokens", "48",
                              "Count from one to one hundred."], bufsize=0, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             env=environment())
        begun = p.stdout.read(1)
        proxy.cut()
        out, err = p.communicate(timeout=120)
        self.assertEqual((p.returncode, (begun + out).decode()), (4, whole), err)

    def test_another_answer_follows_what_came_before(self):
        id = self.ask("--keep", "My name is Ada.")["convod"]["conversation"]
        before = self.ask("-c", id, "What is my name?")["convod"]["tokens"]
        r = self.convo("resume", id, "--receipt", "--temperature", "0", "--max-tokens", "24", stdin="/regenerate\n/undo\n/undo\n")
        self.assertEqual(r.returncode, 0, r.stderr)
        kept = int(re.search(r"(\d+) tokens kept", r.stderr).group(1))
        self.assertGreaterEqual(kept, before["history"])
        self.assertEqual(self.convo("show", id).stdout.count("user: "), 0)  # both were taken back, for everyone
        r = self.convo("resume", id, "--max-tokens", "8", stdin="/undo\n/undo\n/regenerate\nHello.\n")
        self.assertIn("nothing was said yet", r.stderr)
        self.assertEqual(self.convo("show", id).stdout.count("user: "), 1)

    def test_a_cut_answer_goes_on(self):
        ask = "Count from one to twenty in words, separated by commas."
        whole = self.ask("--keep", "--max-tokens", "40", ask)
        whole = "".join(p["text"] for i in whole["output"] for p in i["content"])
        id = self.ask("--keep", "--max-tokens", "12", ask)["convod"]["conversation"]
        settings = ("--receipt", "--temperature", "0", "--max-tokens", "28")
        r = self.convo("resume", id, *settings, stdin="/continue\n")
        self.assertIn(whole, r.stdout)
        self.assertRegex(r.stderr, r"\b1 prefilled")
        said = self.convo("show", id).stdout
        self.assertEqual(said.count("user: "), 1, said)
        self.assertIn(whole, said)
        r = self.convo("chat", stdin="/continue\nSay yes.\n/continue\n")
        self.assertIn("nothing was said yet", r.stderr)
        self.assertIn("the last answer was not cut", r.stderr)

    def test_branches_and_forks(self):
        id = self.ask("--keep", "My name is Ada.")["convod"]["conversation"]
        self.ask("-c", id, "Say one.")
        settings = ("--receipt", "--temperature", "0", "--max-tokens", "8")
        r = self.convo("resume", id, *settings, stdin="/undo\n/branches\nSay two.\n/branches\n/branches 1\n/branches 7\n/branches x\n/branches\n")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertRegex(r.stdout, r"(?s)  1   Say one\.\n  2 \* Say two\.\n.*  1 \* Say one\.\n  2   Say two\.\n")
        self.assertIn("/branches showed no number 7", r.stderr)
        self.assertEqual(r.stderr.count("none is where you are"), 1, r.stderr)
        self.assertIn("Say one.", self.convo("show", id).stdout)
        self.assertNotIn("Say two.", self.convo("show", id).stdout)
        r = self.convo("resume", id, *settings, stdin="/fork Copy\nSay three.\n")
        self.assertIn(r.returncode, (0, 4), r.stderr)  # the answer may be cut at its limit
        self.assertIn("this is a copy now", r.stderr)
        self.assertNotIn("Say three.", self.convo("show", id).stdout)
        fork = next(line.split("\t")[0] for line in self.convo("list").stdout.splitlines() if line.endswith("\tCopy"))
        said = self.convo("show", fork).stdout
        self.assertTrue("Say one." in said and "Say three." in said, said)
        # Up to an item, by the number that /show gives it.
        r = self.convo("resume", id, *settings, stdin="/show\n/fork #2 Early\nSay four.\n/fork #9\n/fork #0 No\n/show\n")
        self.assertIn(r.returncode, (0, 4), r.stderr)
        self.assertRegex(r.stdout, r"(?s)#1 user: My name is Ada\.\n#2 assistant: .*#3 user: Say one\.\n.*#1 user: My name is Ada\.\n#2 .*#3 user: Say four\.\n")
        self.assertTrue("/show shows no number 9" in r.stderr and "/show shows no number 0" in r.stderr, r.stderr)
        self.assertEqual(r.stderr.count("this is a copy now"), 1, r.stderr)
        early = next(line.split("\t")[0] for line in self.convo("list").stdout.splitlines() if line.endswith("\tEarly"))
        said = self.convo("show", early).stdout
        self.assertTrue("Say four." in said and "Say one." not in said and "#" not in said, said)
        # In a copy as in what it was made from: any exchange is asked again, put otherwise and taken back.
        r = self.convo("resume", id, *settings, stdin="/fork Second\n/branches\n/regenerate\n/correct Two.\nSay five.\n/undo\n/undo\n/regenerate\n/undo\n/undo\n")
        self.assertEqual(r.stderr.count("taken back"), 3, r.stderr)
        self.assertEqual(r.stderr.count(" 1 prefilled, 1 of them again"), 2, r.stderr)
        self.assertIn("  1 * Say one.", r.stdout)
        self.assertIn("nothing was said yet", r.stderr)
        r = self.convo("chat", stdin="/fork\n/branches\n")
        self.assertEqual(r.stderr.count("nothing was said yet"), 2, r.stderr)

    def test_put_otherwise(self):
        long = "My name is Ada. " * 40
        id = self.ask("--keep", long)["convod"]["conversation"]
        had = self.ask("-c", id, "What is my name?")["convod"]["tokens"]["history"]
        settings = ("--receipt", "--temperature", "0", "--max-tokens", "8")
        r = self.convo("resume", id, *settings, stdin="/reword And what is yours?\n/correct It is Merlin.\nSay it again.\n/branches\n")
        self.assertIn(r.returncode, (0, 4), r.stderr)
        kept = [int(n) for n in re.findall(r"(\d+) tokens kept", r.stderr)]
        new = [int(n) for n in re.findall(r"(\d+) prefilled", r.stderr)]
        self.assertEqual((len(kept), len(new)), (2, 2), r.stderr)
        self.assertTrue(had <= kept[0] < kept[1] and max(new) < 40, r.stderr)
        said = self.convo("show", id).stdout
        self.assertTrue("It is Merlin." in said and "And what is yours?" in said and "What is my name?" not in said, said)
        self.assertRegex(r.stdout, r"(?s)What is my name.*And what is yours.*\* Say it again\.")

    def test_compact(self):
        id = self.ask("--keep", "--system", "Be brief.", "My name is Ada.")["convod"]["conversation"]
        r = self.convo("resume", id, "--receipt", "--temperature", "0", "--max-tokens", "8", stdin="/compact Short\nSay three.\n")
        self.assertIn(r.returncode, (0, 4), r.stderr)  # the answer may be cut at its limit
        self.assertIn("this is a summary now", r.stderr)
        r = self.convo("resume", id, "--max-tokens", "8", stdin="/compact Undone\n/undo\n/regenerate\n")
        self.assertEqual(r.stderr.count("nothing was said here yet, since it was copied"), 2, r.stderr)
        short = next(line.split("\t")[0] for line in self.convo("list").stdout.splitlines() if line.endswith("\tShort"))
        self.assertNotEqual(short, id)
        said = self.convo("show", short).stdout
        self.assertIn("Say three.", said)
        self.assertNotIn("My name is Ada.", said.split("user: ")[-1])
        self.assertNotIn("Say three.", self.convo("show", id).stdout)
        r = self.convo("resume", short, stdin="/system\n")
        self.assertIn("Be brief.", r.stderr)
        r = self.convo("chat", stdin="/compact\n")
        self.assertIn("nothing was said yet", r.stderr)

    def test_the_terminal(self):
        t = Terminal("--url", self.daemon.url, "--temperature", "0")
        self.addCleanup(t.close)
        t.prompt()
        t.type("Write a very long story about the sea.\r")
        t.expect(r"sea\.\r\n")
        t.expect(r"\w+ \w+ \w+", limit=60)
        t.type("\x03")
        t.expect("stopped · .* prefilled", limit=60)
        t.prompt()
        t.type("Thank you.\r")
        t.expect(r"tokens kept \(hot\)", limit=120)
        t.prompt()
        t.type("/regenerate\r")
        t.expect(r"tokens kept \(hot\)", limit=120)
        t.prompt()
        t.type("/quit\r")
        self.assertEqual(t.leave(), 0)


if __name__ == "__main__":
    unittest.main()
