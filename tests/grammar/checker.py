"""What the tests and figures of structured output share: the checking program, and the official test files.

The files are those of JSON-Schema-Test-Suite as the jsonschema package's source ships them; `make` fetches it to
build/jsonschema.
"""
import collections
import json
import os
import random
import re
import subprocess
from pathlib import Path

import jsonschema
import llguidance
import shapes

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


# What llguidance refuses and we accept, though valid: numbers with bounds have no exponent there, and IPv6 addresses no
# IPv4 one at their end.
OURS_ALONE = {"an exponent of a number with bounds": r"\de[+-]?\d", "an IPv4 address that ends an IPv6 one": r':\d+(\.\d+){3}"'}


def oracle(check, n):
    """What llguidance says of n shapes' documents and of changed ones beside what we do: a Counter of "both accept", "both
    refuse", the reasons of OURS_ALONE and, for schemas that it does not know, why; and what is not to be explained."""
    tokenizer, counts, wrong = llguidance.LLTokenizer("byte"), collections.Counter(), []
    for seed in range(n):
        schema, values = shapes.shape(seed)
        text = json.dumps(schema)
        # oneOf as anyOf, which is what it means here.
        matcher = llguidance.LLMatcher(tokenizer, llguidance.LLMatcher.grammar_from_json_schema(
            text, overrides={"coerce_one_of": True}))
        if matcher.is_error():
            counts["a schema that llguidance does not take: " + matcher.get_error().splitlines()[0]] += 1
            continue
        r = random.Random(seed)
        good = [json.dumps(v, separators=(",", ":"), ensure_ascii=False) for v in values]
        texts = good + [shapes.change(r, t) for t in good for _ in range(6)]
        answer = check(schema=text, texts=texts)
        validator = jsonschema.Draft202012Validator(schema)
        for t, ours in zip(texts, answer["ok"]):
            matcher.reset()
            data = list(t.encode("utf-8", "surrogatepass"))
            theirs = matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()
            if ours == theirs:
                counts["both accept" if ours else "both refuse"] += 1
                continue
            reason = next((k for k, pattern in OURS_ALONE.items() if re.search(pattern, t)), None)
            if ours and reason and validator.is_valid(json.loads(t)):
                counts["ours alone, valid: " + reason] += 1
            else:
                wrong.append((f"shape {seed}", "ours" if ours else "llguidance", text, t))
    return counts, wrong
