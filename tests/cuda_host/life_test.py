#!/usr/bin/env python3
"""Tests of a whole daemon's life, as they are, on the emulated device with exact numerics: branches that are edited, forked and evicted,
and backups and what is put back."""

import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.path.abspath(os.environ.get("BUILD", os.path.join(HERE, "..", "..", "build")))
TESTS = ["api/branches_test.py", "api/backup_test.py"]
SETTINGS = {"BUILD": os.path.join(BUILD, "cuda_host"), "CONVOD_TEST_ARGS": "--numerics exact"}

failed = 0
print(f"1..{len(TESTS)}")
for i, test in enumerate(TESTS, 1):
    done = subprocess.run([sys.executable, os.path.join(HERE, "..", test)], env={**os.environ, **SETTINGS}, capture_output=True, text=True)
    if done.returncode not in (0, 77):
        print(done.stdout + done.stderr, file=sys.stderr)
        failed += 1
    skipped = f" # SKIP {done.stdout.strip()}" if done.returncode == 77 else ""
    print(f"{'ok' if done.returncode in (0, 77) else 'not ok'} {i} - {test}{skipped}", flush=True)
sys.exit(1 if failed else 0)
