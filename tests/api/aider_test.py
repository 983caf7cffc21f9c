#!/usr/bin/env python3
"""aider, unmodified, in a git repository, with edits as whole files and as differences. It sends its history anew each time, and puts
rules behind the latest question, which leave it with the next: that question and its answer are read again, and nothing before. Without
its map of the repository, which wants packages of a few hundred MB: these are empty here."""

import os
import re
import subprocess
import sys
import threading
import time

from daemon import BUILD, PATIENCE, QWEN, Daemon, Scratch, need, run

AIDER = os.path.abspath(os.path.join(BUILD, "aider"))
QUESTIONS = ["What does greet do? Answer in one short sentence.", "Change hello to goodbye.", "Thank you. Answer with one word."]
CODE = "def greet(name):\n    return 'hello ' + name\n"
# A small model may go on for ever, and what it says differs from day to day: aider tells it the date and the kernel.
SETTINGS = "- name: openai/default\n  extra_params: {max_tokens: 160}\n"
AGAIN = {"whole": 350, "diff": 700}  # tokens of a question and its answer, and of the next question with its rules
# What its map of a repository wants; and errors of a litellm that is newer than its own, at which it stops.
EMPTY = {"networkx.py": "", "numpy.py": "", "tree_sitter_languages.py": "get_language = get_parser = None\n"}
SITE = """
import litellm
from aider.exceptions import EXCEPTIONS
for name in dir(litellm):
    if name.endswith("Error") and name not in {e.name for e in EXCEPTIONS}:
        delattr(litellm, name)
"""


class Aider:
    def __init__(self, d, folder, *args):
        self.repo = os.path.join(folder, "repo")
        os.mkdir(self.repo)
        with open(os.path.join(self.repo, "greet.py"), "w") as f:
            f.write(CODE)
        for command in (["init", "-q"], ["config", "user.name", "t"], ["config", "user.email", "t@example.org"], ["add", "."], ["commit", "-qm", "first"]):
            subprocess.run(["git", *command], cwd=self.repo, check=True, stdin=subprocess.DEVNULL)
        stubs = os.path.join(folder, "stubs")
        os.mkdir(stubs)
        for name, text in {**EMPTY, "sitecustomize.py": SITE}.items():
            with open(os.path.join(stubs, name), "w") as f:
                f.write(text)
        settings = os.path.join(folder, "settings.yml")
        with open(settings, "w") as f:
            f.write(SETTINGS)
        env = {"HOME": folder, "PATH": os.environ["PATH"], "PYTHONPATH": f"{AIDER}:{stubs}", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "TERM": "dumb"}
        options = (
            "--model openai/default --openai-api-key unused --no-show-model-warnings --no-check-update --analytics-disable --no-gitignore --map-tokens 0 "
            "--yes-always --no-auto-lint --no-suggest-shell-commands --no-pretty --no-fancy-input --no-show-release-notes"
        ).split()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "aider", *options, "--openai-api-base", f"{d.url}/v1", "--model-settings-file", settings, *args, "greet.py"],
            cwd=self.repo, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self.said = ""
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        while piece := self.process.stdout.read(1):
            self.said += piece

    def prompt(self, n):
        """Waits until it asks for the n-th message."""
        deadline = time.monotonic() + PATIENCE
        while len(re.findall(r"^(?:whole|diff)?> ", self.said, re.M)) < n:
            assert self.process.poll() is None and time.monotonic() < deadline, self.said
            time.sleep(0.05)

    def say(self, text):
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def chat(edits):
    with Scratch() as data:
        d = Daemon(data)
        aider = Aider(d, os.path.dirname(data), "--edit-format", edits)
        try:
            before = d.ok("GET", "/v1/convod/status")
            first, edited = 0, False
            for i, question in enumerate(QUESTIONS):
                aider.prompt(i + 1)
                aider.say(question)
                aider.prompt(i + 2)
                now = d.ok("GET", "/v1/convod/status")
                turns = {k: now["turns"][k] - before["turns"][k] for k in ("completed", "incomplete", "failed")}
                tokens = {k: now["tokens"][k] - before["tokens"][k] for k in now["tokens"]}
                before = now
                assert turns["completed"] + turns["incomplete"] >= 1 and not turns["failed"] and tokens["reprefilled"] == 0, (turns, aider.said)
                first = first or tokens["prefilled"]
                # An edit that it makes, or cannot make, is another past: it adds the file to the chat, and asks for a commit's message. So
                # is an answer that was cut, which it does not keep.
                edited |= turns["completed"] > 1
                assert tokens["generated"] > 0 and (i == 0 or edited or tokens["prefilled"] <= AGAIN[edits]), (i, tokens, aider.said)
                edited |= turns["incomplete"] > 0
            assert first > 500, first
            aider.say("/exit")
            assert aider.process.wait(60) == 0, aider.said
            assert "litellm." not in aider.said, aider.said
        finally:
            aider.end()
        d.stop()


def whole_files():
    chat("whole")


def differences():
    chat("diff")


need(QWEN)
if not os.path.isdir(os.path.join(AIDER, "aider")):
    print("skip: aider is not installed: it wants an older Python")
    sys.exit(77)
run(whole_files, differences)
