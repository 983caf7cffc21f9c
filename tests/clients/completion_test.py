#!/usr/bin/env python3
"""What Tab offers in bash and zsh: the files that are installed, given to the shells, with the real programs behind them."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from double import Double  # noqa: E402

BUILD = Path(os.environ.get("BUILD", "build")).resolve()
FILES = Path("clients/completion").resolve()
# zsh's own helpers belong to its line editor; these say what they were given.
ZSH = """
compadd() { while [[ $1 == -* && $1 != --?* ]]; do shift; done; print -rl -- $*; }
_describe() { print -rl -- ${(P)2}; }
_files() { print -r files; }
_arguments() { print -rl -- $*; }
complete() { . "$1"; }
complete "$1"
"""


def bash(*words, url="http://127.0.0.1:1"):
    program = words[0].rpartition("/")[2]
    script = f'. {FILES}/{program}.bash; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _{program} "$1"; printf "%s\\n" "${{COMPREPLY[@]}}"'
    return run("bash", "--norc", "-c", script, "bash", *words, url=url)


def zsh(*words, url="http://127.0.0.1:1"):
    program = words[0].rpartition("/")[2]
    script = f"words=({' '.join(repr(w) for w in words)}); CURRENT={len(words)}; PREFIX={words[-1]!r}\n" + ZSH
    return run("zsh", "--no-rcs", "-c", script, "zsh", f"{FILES}/{program}.zsh", url=url)


def run(*words, url):
    with tempfile.TemporaryDirectory() as empty:
        r = subprocess.run(words, capture_output=True, text=True, cwd=empty, timeout=60,
                           env=os.environ | {"CONVOD_URL": url})
    assert r.returncode == 0 and not r.stderr, r.stderr
    return [line for line in r.stdout.splitlines() if line]


def options(program, *command):
    text = subprocess.run([BUILD / program, *command, "--help"], capture_output=True, text=True).stdout
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", re.sub(r"Usage:.*?\n\n", "", text, flags=re.S)))


class Completion(unittest.TestCase):
    convo, convod = str(BUILD / "convo"), str(BUILD / "convod")
    commands = {"chat", "resume", "ask", "list", "show", "rename", "delete", "evict", "status"}

    def test_bash_offers_every_option(self):
        self.assertEqual(set(bash(self.convo, "--")), options("convo"))
        self.assertEqual(set(bash(self.convod, "--")), options("convod"))

    def test_bash_offers_commands_and_values(self):
        self.assertLessEqual(self.commands, set(bash(self.convo, "")))
        self.assertEqual(bash(self.convo, "sh"), ["show"])
        self.assertEqual(bash(self.convo, "ask", ""), [])
        self.assertEqual(bash(self.convo, "evict", "--to", "r"), ["ram"])
        self.assertEqual(bash(self.convod, "--kv-type", ""), ["bf16", "f16"])
        self.assertEqual(bash(self.convod, "--kv-type", "=", "b"), ["bf16"])
        self.assertEqual(bash(self.convod, "--threads", ""), [])
        self.assertEqual(bash(self.convod, "b"), ["backup"])
        self.assertEqual(set(bash(self.convod, "backup", "--")), options("convod", "backup") | {"--help"})
        self.assertEqual(set(bash(self.convod, "token", "add", "--")), options("convod", "token") | {"--help"})

    def test_ids_are_offered_and_never_run(self):
        double = Double()
        self.addCleanup(double.close)
        with tempfile.TemporaryDirectory() as folder:
            run_by = {"bash": bash} | ({"zsh": zsh} if shutil.which("zsh") else {})
            for shell, offer in run_by.items():
                double.conversations.clear()
                double.create({"id": f"$(touch {folder}/{shell})"})
                double.create({"id": f"`touch {folder}/{shell}`"})
                double.create({"id": "conv_1a"})
                self.assertIn("conv_1a", offer(self.convo, "show", "", url=double.url))
            self.assertEqual(os.listdir(folder), [])

    @unittest.skipUnless(shutil.which("zsh"), "zsh is not here")
    def test_zsh_offers_every_option(self):
        self.assertEqual(set(zsh(self.convo, "--")), options("convo"))
        offered = {o.partition("[")[0] for o in zsh(self.convod, "--")[1:]}
        self.assertEqual(offered, options("convod"))

    @unittest.skipUnless(shutil.which("zsh"), "zsh is not here")
    def test_zsh_offers_commands_and_values(self):
        self.assertLessEqual(self.commands, {c.partition(":")[0] for c in zsh(self.convo, "")})
        self.assertEqual(zsh(self.convo, "evict", "--to", ""), ["ram", "disk"])
        self.assertEqual(zsh(self.convo, "--token-file", ""), ["files"])
        self.assertEqual(zsh(self.convod, "")[:2], ["token", "backup"])
        self.assertEqual(zsh(self.convod, "token", ""), ["add", "list", "revoke"])
        self.assertEqual(zsh(self.convod, "token", "add", "x", "--scope", ""), ["all", "metrics", "gateway"])
        self.assertEqual(set(zsh(self.convod, "token", "add", "--")), options("convod", "token"))
        self.assertEqual(zsh(self.convod, "backup", ""), ["files"])
        self.assertEqual(set(zsh(self.convod, "backup", "--")), options("convod", "backup"))


if __name__ == "__main__":
    unittest.main()
