"""Prints the figures of structured output: per keyword what the official test files find right, too strict, not strict enough
or refused, in what llguidance says otherwise, then what compiling and masks cost, alone and beside decoding.

usage: figures.py MODEL.gguf
"""
import collections
import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import shapes  # noqa: E402
from checker import BUILD, Checker, official, oracle  # noqa: E402

VERDICTS = ("right", "over-strict", "under-strict", "refused")


def main(model):
    check, total = Checker(), collections.Counter()
    print(f"{'keyword':26}" + "".join(f"{v:>13}" for v in VERDICTS))
    for keyword, counts, _ in official(check):
        print(f"{keyword:26}" + "".join(f"{counts[v]:13}" for v in VERDICTS))
        total += counts
    print(f"{'all':26}" + "".join(f"{total[v]:13}" for v in VERDICTS))
    print("\nbeside llguidance, documents of 300 shapes and changed ones:")
    counts, wrong = oracle(check, 300)
    for what, count in sorted(counts.items()):
        print(f"{count:8} {what}")
    print(f"{len(wrong):8} not to be explained", *wrong, sep="\n", end="\n\n")
    check.close()
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        for seed in range(300):
            schema, values = shapes.shape(seed)
            file.write(json.dumps({"schema": json.dumps(schema), "texts": [t for v in values for t in shapes.texts(v)]}) + "\n")
        file.flush()
        cost = subprocess.run([BUILD / "bench/grammar_bench", model, file.name], check=False).returncode
        return cost or subprocess.run([BUILD / "bench/form_bench", model, file.name], check=False).returncode


sys.exit(main(sys.argv[1]))
