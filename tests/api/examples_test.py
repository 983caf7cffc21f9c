#!/usr/bin/env python3
"""What is in clients/examples runs, against a real model."""

import os
import shutil
import subprocess
import sys

from daemon import QWEN, ROOT, Daemon, Scratch, need, run

EXAMPLES = os.path.join(ROOT, "clients", "examples")


def output_of(d, *command):
    done = subprocess.run([*command, f"{d.url}/v1"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def agent():
    with Scratch() as data:
        d = Daemon(data)
        out = output_of(d, sys.executable, os.path.join(EXAMPLES, "agent.py"))
        assert "add(" in out and "tokens were there already]" in out, out
        d.stop()


def curl():
    with Scratch() as data:
        d = Daemon(data)
        out = output_of(d, os.path.join(EXAMPLES, "responses.sh"))
        assert '"object": "response"' in out or '"object":"response"' in out, out
        assert "My kite is called Merlin." in out, out
        d.stop()


def javascript():
    if not shutil.which("node"):
        print("skip: node is not here")
        return
    with Scratch() as data:
        d = Daemon(data)
        out = output_of(d, os.path.join(EXAMPLES, "stream.mjs"))
        assert " tokens]" in out and len(out.splitlines()) >= 2, out
        d.stop()


need(QWEN)
try:
    import openai  # noqa: F401 - what the agent wants
except ImportError as e:
    print(f"skip: {e}")
    sys.exit(77)
run(agent, curl, javascript)
