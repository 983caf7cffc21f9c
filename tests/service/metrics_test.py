#!/usr/bin/env python3
"""promtool's opinion: the alert rules are well-formed, and name only metrics that the daemon has."""
import re
import shutil
import subprocess
import sys
from pathlib import Path

RULES = Path("systemd/convod.rules.yml")
text = RULES.read_text()
source = Path("daemon/metrics.c").read_text()
known = set(re.findall(r'[{(]"(\w+)", (?:gauge|counter|")', source)) | set(re.findall(r'heading\(f, "(\w+)"', source))
used = {re.sub(r"_(bucket|count|sum)$", "", n) for n in re.findall(r"convod_(\w+)", text)}
missing = sorted(used - known)
print(f"{'not ok' if missing else 'ok'} 1 - the rules name metrics that there are{': no ' + ', '.join(missing) if missing else ''}")
failed = bool(missing)
if shutil.which("promtool"):
    done = subprocess.run(["promtool", "check", "rules", RULES], capture_output=True, text=True)
    print(f"{'not ok' if done.returncode else 'ok'} 2 - promtool check rules")
    if done.returncode:
        print("# " + (done.stdout + done.stderr).replace("\n", "\n# "))
    failed |= done.returncode != 0
else:
    print("ok 2 - promtool check rules # SKIP")
    print("skip: promtool is not here (Debian's package prometheus has it)")
print("1..2")
sys.exit(failed)
