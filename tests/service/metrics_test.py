#!/usr/bin/env python3
"""promtool's opinion: the alert rules are well-formed and name only metrics that the daemon has, and a daemon's metrics are clean."""
import os
import re
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "api"))
from daemon import BUILD, Daemon, Scratch  # noqa: E402

RULES = Path("systemd/convod.rules.yml")
PROMTOOL = shutil.which("promtool") or shutil.which("promtool", path=os.path.join(BUILD, "servers", "usr", "bin"))


class Metrics(unittest.TestCase):
    def promtool(self, *args, **options):
        if not PROMTOOL:
            self.skipTest("promtool is not here (Debian's package prometheus has it)")
        done = subprocess.run([PROMTOOL, "check", *args], capture_output=True, text=True, **options)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)

    def test_rules_name_what_there_is(self):
        source = Path("daemon/metrics.c").read_text()
        known = set(re.findall(r'[{(]"(\w+)", (?:gauge|counter|")', source)) | set(re.findall(r'heading\(f, "(\w+)"', source))
        used = {re.sub(r"_(bucket|count|sum)$", "", n) for n in re.findall(r"convod_(\w+)", RULES.read_text())}
        self.assertEqual(used - known, set())

    def test_rules(self):
        self.promtool("rules", RULES)

    def test_metrics(self):
        """Of a daemon that answered, was refused something, and restored."""
        with Scratch() as data:
            model = os.path.join(data, "..", "tiny.gguf")
            subprocess.run([os.path.join(BUILD, "tests", "service", "model"), model], check=True)
            d = Daemon(data, model=model)
            first = d.turn("hello", max_output_tokens=4)
            d.settle()
            d.stop()
            d.start()
            d.turn("and on", previous_response_id=first["id"], max_output_tokens=4)
            self.assertEqual(d.call("POST", "/v1/responses", {"input": 5})[0], 400)
            status, text = d.call("GET", "/metrics", raw=True)
            d.stop()
        self.assertEqual(status, 200)
        self.promtool("metrics", input=text.decode())


if __name__ == "__main__":
    unittest.main()
