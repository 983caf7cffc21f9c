#!/usr/bin/env python3
"""Structured output against others' word for what is valid: the official JSON Schema test files, documents generated for 300
schemas of Pydantic's and OpenAPI's shapes, and the decisions of llguidance."""
import json
import random
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import jsonschema  # noqa: E402
import llguidance  # noqa: E402
import shapes  # noqa: E402
from checker import Checker, official  # noqa: E402

SHAPES = 300


class Suite(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.check = Checker()

    @classmethod
    def tearDownClass(cls):
        cls.check.close()

    def test_official_files(self):
        right = 0
        # 1 as 1.0, a constant object in another order, formats that are checked where they need not be, a dialect of one's own.
        allowed = {"const": 4, "enum": 4, "format": 10, "type": 1, "vocabulary": 1}
        for keyword, counts, notes in official(self.check):
            with self.subTest(keyword):
                self.assertEqual([n for n in notes if n[0] == "under-strict"], [])
                over = [n for n in notes if n[0] == "over-strict"]
                self.assertLessEqual(len(over), allowed.get(keyword, 0), over)
            right += counts["right"]
        self.assertGreaterEqual(right, 694)

    def test_generated_documents(self):
        """What is valid is accepted however it is written; what jsonschema refuses is not, whatever was changed."""
        refused = changed = 0
        for seed in range(SHAPES):
            schema, values = shapes.shape(seed)
            validator, r = jsonschema.Draft202012Validator(schema), random.Random(seed)
            self.assertTrue(all(map(validator.is_valid, values)), f"shape {seed} makes what is not valid")
            good = [t for v in values for t in shapes.texts(v)]
            bad = []
            for text in good:
                for _ in range(3):
                    other = shapes.change(r, text)
                    try:
                        valid = validator.is_valid(json.loads(other))
                    except (ValueError, RecursionError):
                        valid = False
                    if not valid:
                        bad.append(other)
            answer = self.check(schema=json.dumps(schema), texts=good + bad)
            self.assertEqual(answer["rc"], 0, f"shape {seed}: {answer['error']}")
            for text, ok in zip(good, answer["ok"]):
                self.assertTrue(ok, f"shape {seed}: {json.dumps(schema)} refuses {text}")
            for text, ok in zip(bad, answer["ok"][len(good):]):
                self.assertFalse(ok, f"shape {seed}: {json.dumps(schema)} accepts {text}")
            refused, changed = refused + len(bad), changed + 3 * len(good)
        self.assertGreater(refused, changed // 2)

    def test_oracle(self):
        """What llguidance accepts, of documents and of changed ones, we accept; what we accept beyond that is valid."""
        tokenizer = llguidance.LLTokenizer("byte")
        same = 0
        for seed in range(60):
            schema, values = shapes.shape(seed)
            text = json.dumps(schema)
            # oneOf as anyOf, which is what it means here.
            matcher = llguidance.LLMatcher(tokenizer, llguidance.LLMatcher.grammar_from_json_schema(
                text, overrides={"coerce_one_of": True}))
            if matcher.is_error():
                continue
            r = random.Random(seed)
            good = [json.dumps(v, separators=(",", ":"), ensure_ascii=False) for v in values]
            texts = good + [shapes.change(r, t) for t in good for _ in range(6)]
            answer = self.check(schema=text, texts=texts)
            validator = jsonschema.Draft202012Validator(schema)
            for t, ok in zip(texts, answer["ok"]):
                matcher.reset()
                data = list(t.encode("utf-8", "surrogatepass"))
                theirs = matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()
                same += theirs == ok
                self.assertTrue(ok or not theirs, f"shape {seed}: {text} refuses {t}, llguidance does not")
                if ok and not theirs:
                    # Ours alone (exponents of bounded numbers): it must be valid.
                    self.assertTrue(validator.is_valid(json.loads(t)), f"shape {seed}: {text} accepts {t}")
        self.assertGreater(same, 2000)


if __name__ == "__main__":
    unittest.main()
