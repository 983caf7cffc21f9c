#!/usr/bin/env python3
"""The pages of docs/interfaces: their blocks run, those of a page one after the other, against another address."""

import contextlib
import io
import json
import os
import re
import subprocess
import sys

from daemon import QWEN, ROOT, Daemon, Scratch, need, run

try:
    import anthropic  # noqa: F401 - what the pages use
    import openai  # noqa: F401
    import websockets.sync.client  # noqa: F401
except ImportError as e:
    print(f"skip: {e}")
    sys.exit(77)

PAGES = os.path.join(ROOT, "docs", "interfaces")
ADDRESS = "127.0.0.1:8642"


def blocks(page):
    """(language, line, text) of each."""
    with open(os.path.join(PAGES, page)) as f:
        text = f.read()
    for found in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S):
        yield found[1], text.count("\n", 0, found.start(2)), found[2]


def run_page(page):
    names = {"__name__": "page"}
    said = {"python": 0, "sh": 0}
    with Scratch() as data:
        d = Daemon(data)
        for language, line, text in blocks(page):
            assert language in said, (page, line, language)
            text = text.replace(ADDRESS, f"{d.address}:{d.port}")
            if language == "python":
                out = io.StringIO()
                with contextlib.redirect_stdout(out):
                    exec(compile("\n" * line + text, page, "exec"), names)  # noqa: S102 - it is the page's own
                said[language] += len(out.getvalue())
            else:
                done = subprocess.run(["sh", "-euc", text], capture_output=True, text=True, timeout=300)
                assert done.returncode == 0, (page, line, done.stderr)
                said[language] += len(json.dumps(json.loads(done.stdout)))
        d.stop()
    assert said["python"] > 0, (page, said)


def page_of(name):
    def test():
        run_page(name)

    test.__name__ = name.removesuffix(".md").replace("-", "_")
    return test


need(QWEN)
found = sorted(os.listdir(PAGES))
assert len(found) >= 5, found
run(*map(page_of, found))
