#!/usr/bin/env python3
"""An agent with two tools, by the openai package: it chains by previous_response_id, so that only results are sent and read.

usage: agent.py [BASE_URL]      (http://127.0.0.1:8642/v1)
"""

import datetime
import json
import sys

import openai

TOOLS = [
    {
        "type": "function",
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}, "required": ["a", "b"]},
    },
    {"type": "function", "name": "today", "description": "Today's date.", "parameters": {"type": "object", "properties": {}}},
]


def call(name, arguments):
    """What a tool gives, as text. A model may call it wrongly: that is told to it, not to the user."""
    try:
        given = json.loads(arguments)
        return str(given["a"] + given["b"]) if name == "add" else datetime.date.today().isoformat()
    except (ValueError, KeyError, TypeError) as e:
        return f"error: {e}"


def main():
    client = openai.OpenAI(base_url=sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8642/v1", api_key="unused")
    # The first answer must be a call; from then on the model does what it likes, for a few turns.
    settings = {"model": "default", "tools": TOOLS, "temperature": 0, "max_output_tokens": 128}
    response = client.responses.create(input="What is 17 + 25?", tool_choice={"type": "function", "name": "add"}, **settings)
    for _ in range(4):
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            break
        results = []
        for item in calls:
            result = call(item.name, item.arguments)
            print(f"{item.name}({item.arguments}) = {result}")
            results.append({"type": "function_call_output", "call_id": item.call_id, "output": result})
        response = client.responses.create(input=results, previous_response_id=response.id, **settings)
        print(f"[{response.usage.input_tokens_details.cached_tokens} of {response.usage.input_tokens} tokens were there already]")
    print(response.output_text)


main()
