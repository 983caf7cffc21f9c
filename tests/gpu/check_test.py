#!/usr/bin/env python3
"""check_test.py - the script that checks a GPU, on the emulation, so that its first run on a GPU is not its first run."""
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent.parent
BUILD = Path(os.environ.get("BUILD", TOP / "build")).resolve()


def run(folder, *words, build=BUILD):
    out = Path(folder) / "check.json"
    done = subprocess.run([sys.executable, TOP / "tests" / "gpu" / "check", "--out", out, *words], capture_output=True,
                          text=True, env={**os.environ, "BUILD": str(build)})
    return done.returncode, json.loads(out.read_text()), done.stdout + done.stderr


class Emulated(unittest.TestCase):
    def test_every_part(self):
        with tempfile.TemporaryDirectory() as folder:
            status, out, said = run(folder, "--emulate")
            self.assertEqual(status, 0, said)
            fine = [r["fine"] for p in out["parts"].values() for r in p["results"] if "fine" in r]
            self.assertTrue(all(fine) and len(fine) > 5, said)
            self.assertEqual(set(out["parts"]), {"products", "attention", "kv", "pick", "speed", "models"})
            self.assertFalse([r for p in out["parts"].values() for r in p["results"] if "text" in r])

    def test_a_part_that_fails_hides_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "program"
            program.write_text("""#!/bin/sh
echo '{"name": "one", "fine": true}'
case $1 in
products) echo '{"name": "two", "fine": false}'; exit 1 ;;
kv) kill -9 $$ ;;
esac
""")
            program.chmod(0o755)
            status, out, said = run(folder, "--program", str(program))
            self.assertEqual(status, 1)
            self.assertIn("wrong: two", said)
            self.assertEqual([n for n, p in out["parts"].items() if p["error"]], ["products", "kv"])
            self.assertTrue(all(p["results"][0]["name"] == "one" for p in out["parts"].values()))

    def test_a_program_that_is_missing_hides_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "gpu").mkdir()
            program = Path(folder) / "gpu" / "models-host"
            program.write_text("#!/bin/sh\necho '{\"name\": \"one\", \"fine\": true}'\n")
            program.chmod(0o755)
            status, out, said = run(folder, "--emulate", build=folder)
            self.assertEqual(status, 1)
            self.assertEqual([n for n, p in out["parts"].items() if not p["error"]], ["models"])
            self.assertIn("check-host is missing", out["parts"]["products"]["error"])


if __name__ == "__main__":
    unittest.main()
