#!/usr/bin/env python3
"""Renders the templates of tests/data/chat-templates.jsonl with the template language itself, which is what
tests/data/chat-rendered.jsonl holds and chat_test compares the engine's rendering with.

usage: chat_rendered.py           compares the file with what the templates give (TAP)
       chat_rendered.py --write   writes the file

A line of the templates' file is a conversation, with its number, messages, tools and what else the template is given, or a template: its name, the format that it
must be recognised as, the kind of vocabulary ("model"), its control tokens, BOS and EOS, the template, and the numbers of the
conversations that it is rendered with. "thinks": an answer opens with thinking, so that an earlier answer is written
otherwise. "strips": white space behind a control token is not there. To add a template: add its line, and --write.
"""
import json
import sys
from pathlib import Path

DATA = Path(__file__).resolve().parent.parent / "data"
KEPT = ("name", "format", "model", "tokens", "bos", "eos", "template", "thinks", "strips")


def render(jinja2, line, messages, tools=None, arguments=None):
    def raise_exception(message):
        raise ValueError(message)

    # As the models' own tool-kit sets it up.
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    template = environment.from_string(line["template"], {"raise_exception": raise_exception})
    text = template.render(messages=messages, tools=tools, add_generation_prompt=True, bos_token=line["bos"], eos_token=line["eos"], **(arguments or {}))
    return text


def rendered(jinja2):
    conversations, out = {}, []
    for text in (DATA / "chat-templates.jsonl").read_text().splitlines():
        line = json.loads(text)
        if "conversation" in line:
            conversations[line["conversation"]] = line
            continue
        for number in line["conversations"]:
            messages, tools, arguments = (conversations[number].get(k) for k in ("messages", "tools", "arguments"))
            result = {k: line[k] for k in KEPT if k in line}
            if tools:
                result["tools"] = tools
            if arguments:
                result["arguments"] = arguments
            out.append(json.dumps({**result, "messages": messages, "prompt": render(jinja2, line, messages, tools, arguments)}) + "\n")
    return out


def main():
    try:
        import jinja2
        import jinja2.sandbox
    except ImportError:
        print("1..0 # SKIP\nskip: jinja2 is not here (it is in the tests' virtual environment)")
        return 0
    lines = rendered(jinja2)
    if sys.argv[1:] == ["--write"]:
        (DATA / "chat-rendered.jsonl").write_text("".join(lines))
        return 0
    there = (DATA / "chat-rendered.jsonl").read_text().splitlines(keepends=True)
    print(f"1..{len(lines)}")
    wrong = 0
    for i, line in enumerate(lines):
        ok = i < len(there) and there[i] == line
        wrong += not ok
        print(f"{'ok' if ok else 'not ok'} {i + 1} - {json.loads(line)['name']}")
    if len(there) != len(lines):
        wrong += 1
        print(f"# the file has {len(there)} lines, the templates give {len(lines)}")
    return 1 if wrong else 0


sys.exit(main())
