"""What the tests and figures of structured output share: the checking program, and the official test files.

The files are those of JSON-Schema-Test-Suite as the jsonschema package's source ships them; `make` fetches it to
build/jsonschema.
"""
import collections
import json
import os
import subprocess
from pathlib import Path

BUILD = Path(os.environ.get("BUILD", "build")).resolve()
SUITE = BUILD / "jsonschema" / "json" / "tests" / "draft2020-12"


class Checker:
    """build/tests/grammar/check, asked line by line."""

    def __init__(self):
        self.process = subprocess.Popen([BUILD / "tests/grammar/check"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the program died of {json.dumps(request)[:2000]}")
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=30)
        self.process.stdout.close()


def names(schema, found):
    """The names of properties, in the order in which the schema has them."""
    if isinstance(schema, dict):
        for keyword, value in schema.items():
            if keyword == "properties" and isinstance(value, dict):
                found += value
            names(value, found)
        required = schema.get("required")
        found += [n for n in required if isinstance(n, str)] if isinstance(required, list) else []
    elif isinstance(schema, list):
        for value in schema:
            names(value, found)
    return found


def in_order(value, order):
    """Objects with their keys as the schema names them."""
    if isinstance(value, dict):
        return {k: in_order(value[k], order) for k in sorted(value, key=lambda k: order.get(k, len(order)))}
    if isinstance(value, list):
        return [in_order(v, order) for v in value]
    return value


def official(check):
    """For each file of the suite a Counter of right, over-strict, under-strict, refused, and what was not right."""
    for file in sorted(SUITE.glob("*.json")):
        counts, notes = collections.Counter(), []
        for case in json.loads(file.read_text()):
            schema, tests = case["schema"], case["tests"]
            order = {n: i for i, n in reversed(list(enumerate(names(schema, []))))}
            answer = check(schema=json.dumps(schema), texts=[json.dumps(in_order(t["data"], order)) for t in tests])
            for i, test in enumerate(tests):
                if answer["rc"]:
                    # Nothing is valid, and it is refused for that: right.
                    verdict = "right" if "nothing can fulfil" in answer["error"] and not test["valid"] else "refused"
                elif answer["ok"][i] == test["valid"]:
                    verdict = "right"
                else:
                    verdict = "over-strict" if test["valid"] else "under-strict"
                counts[verdict] += 1
                if verdict != "right":
                    notes.append((verdict, case["description"], test["description"], answer["error"]))
        yield file.stem, counts, notes
