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
    """The script, which finds what is in the folder before all else."""
    out = Path(folder) / "check.json"
    done = subprocess.run([sys.executable, TOP / "tests" / "gpu" / "check", "--out", out, *words], capture_output=True,
                          text=True, env={**os.environ, "BUILD": str(build), "PATH": f"{folder}:{os.environ['PATH']}"})
    return done.returncode, json.loads(out.read_text()), done.stdout + done.stderr


class Emulated(unittest.TestCase):
    def test_every_part(self):
        with tempfile.TemporaryDirectory() as folder:
            status, out, said = run(folder, "--emulate")
            self.assertEqual(status, 0, said)
            fine = [r["fine"] for p in out["parts"].values() for r in p["results"] if "fine" in r]
            self.assertTrue(all(fine) and len(fine) > 5, said)
            self.assertEqual(set(out["parts"]), {"products", "attention", "kv", "pick", "speed", "models"})
            texts = [r["text"] for p in out["parts"].values() for r in p["results"] if "text" in r]
            self.assertTrue(texts and all("cuBLASLt has products" in t for t in texts), said)

    def test_a_part_that_fails_hides_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "program"
            program.write_text("""#!/bin/sh
echo '{"name": "one", "fine": true}'
case $1 in
products) echo '{"name": "two", "fine": false}'; echo '{"name": "stopped", "text": "no such luck"}'; exit 1 ;;
kv) kill -9 $$ ;;
esac
""")
            program.chmod(0o755)
            status, out, said = run(folder, "--program", str(program), "products", "attention", "kv", "pick", "speed", "models")
            self.assertEqual(status, 1)
            self.assertIn("wrong: two", said)
            self.assertIn("stopped: no such luck", said)
            # What was wrong is done once more, with launches that wait for each other.
            self.assertEqual([n for n, p in out["parts"].items() if p["error"]],
                             ["products", "kv", "products, launched one by one", "kv, launched one by one"])
            self.assertTrue(all(p["results"][0]["name"] == "one" for p in out["parts"].values()))

    def test_a_unit_that_fails_hides_none_behind_it(self):
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "program"
            program.write_text("""#!/bin/sh
case " $* " in
*" --from 2 "*) echo '{"begun": 2}'; echo '{"name": "three", "fine": true}'; echo '{"done": true}' ;;
*" --from "*) echo '{"begun": 9}'; exit 3 ;;
*" products "*) echo '{"begun": 0}'; echo '{"name": "one", "fine": true}'; echo '{"begun": 1}'
    echo '{"name": "two", "value": nan, "unit": "s"}'; echo '{"name": "cut o'; kill -9 $$ ;;
*" kv "*) echo '{"begun": 0}'; echo '{"name": "one", "fine": false}'; echo '{"done": true}'; exit 1 ;;
*) echo '{"name": "one", "fine": true}'; echo '{"done": true}' ;;
esac
""")
            program.chmod(0o755)
            status, out, said = run(folder, "--program", str(program), "products", "kv", "pick", "models")
            self.assertEqual(status, 1)
            products = out["parts"]["products"]
            self.assertEqual([r["name"] for r in products["results"]], ["one", "not to be read", "not to be read", "three"])
            self.assertIn("exit status -9", products["error"])
            self.assertIn("unit 1", products["error"])
            self.assertEqual(len(out["parts"]["kv"]["results"]), 1)
            self.assertIn("wrong: one", said)
            self.assertIsNone(out["parts"]["models"]["error"])

    def test_what_a_sanitizer_finds(self):
        with tempfile.TemporaryDirectory() as folder:
            tool = Path(folder) / "compute-sanitizer"
            tool.write_text("""#!/bin/sh
case $2 in
racecheck) echo '========= Error: a race'; exit 9 ;;
memcheck) echo 'no such program'; exit 1 ;;
esac
""")
            tool.chmod(0o755)
            status, out, said = run(folder, "--program", "/bin/true", "sanitizer")
            self.assertEqual(status, 1)
            part = out["parts"]["sanitizer"]
            self.assertEqual({r["name"]: r["fine"] for r in part["results"] if "fine" in r},
                             {"racecheck": False, "synccheck": True, "initcheck": True})
            self.assertEqual(part["error"], "racecheck: exit status 9; memcheck: exit status 1")
            self.assertIn("Error: a race", said)
            self.assertIn("no such program", said)

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
