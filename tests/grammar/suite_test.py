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
import shapes  # noqa: E402
from checker import Checker, official, oracle  # noqa: E402

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
        """llguidance accepts and refuses the same documents, but for those valid ones that it is known not to take."""
        counts, wrong = oracle(self.check, SHAPES)
        self.assertEqual(wrong, [])
        self.assertGreater(counts["both accept"], 2000)
        self.assertGreater(counts["both refuse"], 6000)


if __name__ == "__main__":
    unittest.main()
