#!/usr/bin/env python3
"""--check-config with a real model: it refuses what a start would refuse, tells all of it with line and key, and leaves nothing."""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "api"))
from daemon import BUILD, Daemon  # noqa: E402

CONVOD = str(Path(BUILD).resolve() / "convod")
MODEL_MAKER = str(Path(BUILD).resolve() / "tests/service/model")


class CheckConfig(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.scratch.cleanup)
        cls.folder = Path(cls.scratch.name)
        cls.model = cls.folder / "model.gguf"
        subprocess.run([MODEL_MAKER, cls.model], check=True)
        whole = cls.model.read_bytes()
        (cls.folder / "cut.gguf").write_bytes(whole[:len(whole) // 2])
        (cls.folder / "header.gguf").write_bytes(whole[:100])
        (cls.folder / "notes.gguf").write_text("This is no model.\n")
        (cls.folder / "plain").write_text("a file")
        cls.tokens = cls.folder / "tokens"
        cls.tokens.write_text("ann " + "a" * 40 + "\n")
        cls.tokens.chmod(0o600)

    def check(self, *lines, more=()):
        given = {line.partition(" ")[0] for line in lines}
        base = {"model": self.model, "data": self.folder / "data", "cache": self.folder / "cache"}
        conf = self.folder / "convod.conf"
        conf.write_text("".join(f"{k} = {v}\n" for k, v in base.items() if k not in given) + "\n".join(lines) + "\n")
        r = subprocess.run([CONVOD, "--config", conf, "--check-config", *more], capture_output=True, text=True, timeout=60)
        self.assertIn(r.returncode, (0, 2), r.stderr)
        self.assertEqual(sorted(p.name for p in self.folder.iterdir() if p.name in ("data", "cache")), [])
        return r.returncode, r.stdout + r.stderr

    def test_profile(self):
        r = subprocess.run([CONVOD, "--model", self.model, "--data", self.folder / "data", "--cache", self.folder / "kept",
                            "--threads", "1", "--profile"], capture_output=True, text=True, timeout=120)
        self.assertEqual((r.returncode, r.stderr), (0, ""))
        self.assertRegex(r.stdout, r"(?m)^1 sequence of 1 new token behind \d+: [\d.]+ ms$")
        for name in ("q, k, v", "attention", "logits", "pick", "sum"):
            self.assertRegex(r.stdout, rf"(?m)^  {name} +\d+ +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+")
        self.assertFalse((self.folder / "data").exists())

    def test_what_is_right(self):
        for lines in ([], ["kv-bytes = 64M", "ctx = 512  # short"], [f"token-file = {self.tokens}", "listen = 0.0.0.0:8642"],
                      ["backend = cpu-portable", "threads = 1", "chat-format = chatml"],
                      # Where the service is told to find its tokens, and where they are while it runs alone.
                      ["token-file = /run/credentials/convod.service/tokens"]):
            self.assertEqual(self.check(*lines), (0, "convod: the configuration is fine\n"))

    def test_what_a_start_would_refuse(self):
        f = self.folder
        cases = [
            (f"model = {f}/notes.gguf", "GGUF"), (f"model = {f}/cut.gguf", "cut.gguf"), (f"model = {f}/header.gguf", "header.gguf"),
            (f"model = {f}", "directory"), (f"model = {f}/none", "No such file"), (f"data = {f}/plain/data", "data "),
            ("data = /proc/convod", "data "), (f"cache = {f}/plain", "cache "), (f"data = {f}/a/b", "parent folder"),
            ("kv-bytes = 1", "too few for KV pages"), ("kv-bytes = 900T", "kv-bytes"), ("ram-bytes = 900T", "ram-bytes"),
            ("disk-bytes = 900000T", "disk-bytes"), ("request-bytes = 1", "request-bytes"), ("ctx = 100000", "context"),
            ("chat-format = llama3", "llama3"), ("max-running = 1024", "max-running")]
        if not Path("/dev/nvidiactl").exists():
            cases.append(("backend = cuda", "cuda"))
        for line, word in cases:
            with self.subTest(line):
                code, said = self.check(line)
                self.assertEqual(code, 2, said)
                self.assertIn("convod.conf:", said)
                self.assertIn(word, said)
        code, said = self.check(f"token-file = {self.tokens}", "listen = 192.0.2.7:8642")
        self.assertEqual((code, "192.0.2.7" in said), (2, True), said)

    def test_all_at_once(self):
        code, said = self.check("threads = x", "ctx = -1", "log-level = loud", "threads = 4", "data = /proc/convod",
                                f"model = {self.folder}/notes.gguf", "ram-bytes = 900T")
        self.assertEqual(code, 2)
        for place in (":2: threads", ":3: ctx", ":4: log-level", ":5: threads", ":6: data", ":7: ", ":8: ram-bytes"):
            self.assertIn("convod.conf" + place, said)
        self.assertEqual(len(said.splitlines()), 7, said)

    def test_while_a_daemon_runs_with_it(self):
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder) / "d"
            data.mkdir(mode=0o700)
            d = Daemon(str(data), model=str(self.model), args=["--threads", "1", "--kv-bytes", "64M", "--cache", folder])
            code, said = self.check(f"data = {data}", f"listen = 127.0.0.1:{d.port}", "kv-bytes = 64M")
            d.kill()
            self.assertEqual(code, 0, said)

    def test_a_start_ends_with_the_status_of_settings(self):
        for lines in (["ctx = much"], [f"model = {self.folder}/notes.gguf"], ["ctx = 100000"]):
            conf = self.folder / "start.conf"
            conf.write_text("\n".join([*lines, f"data = {self.folder}/started", "listen = 127.0.0.1:0"] +
                                      ([] if "model" in lines[0] else [f"model = {self.model}"])))
            r = subprocess.run([CONVOD, "--config", conf], capture_output=True, text=True, timeout=60)
            self.assertEqual(r.returncode, 2, r.stderr)


if __name__ == "__main__":
    unittest.main()
