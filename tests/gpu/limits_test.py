#!/usr/bin/env python3
"""limits_test.py - the measuring script on the emulation, so that its first run on a GPU is not its first run; that a
part that fails or hangs hides nothing; and what nvcc says of the kernels, where it is."""
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent.parent
BUILD = Path(os.environ.get("BUILD", TOP / "build")).resolve()
NVCC = shutil.which("nvcc") or ("/usr/local/cuda/bin/nvcc" if os.path.exists("/usr/local/cuda/bin/nvcc") else None)


def run(folder, *words, seed=0):
    """The script in this folder: (exit status, what it wrote, what it said). The seed is the emulation's order of work."""
    out = Path(folder) / "limits.json"
    done = subprocess.run([sys.executable, TOP / "tests" / "gpu" / "limits", "--out", out, *words], capture_output=True,
                          text=True, env={**os.environ, "BUILD": str(BUILD), "CUDA_HOST_SEED": str(seed)})
    return done.returncode, json.loads(out.read_text()), done.stdout + done.stderr


class Emulated(unittest.TestCase):
    def test_every_part(self):
        for seed in range(4):
            with self.subTest(seed=seed), tempfile.TemporaryDirectory() as folder:
                status, out, said = run(folder, "--emulate", seed=seed)
                self.assertEqual(status, 0, said)
                parts = out["parts"]
                self.assertEqual({n for n, p in parts.items() if p["status"] != "ok"}, {"torch"}, said)
                self.assertTrue(all(p["figures"] for n, p in parts.items() if n != "torch"))
                differ = [f for f in parts["bits"]["figures"] if f["unit"] == "values"]
                self.assertEqual(len(differ), 12)
                self.assertEqual({f["value"] for f in differ}, {0})

    def test_library_rows_that_depend_on_their_number_are_seen(self):
        # The emulated library proposes one algorithm that splits K, one that does so in secret from 16 rows on, one that is fine.
        with tempfile.TemporaryDirectory() as folder:
            _, out, _ = run(folder, "--emulate", "lt_rows")
            figures = out["parts"]["lt_rows"]["figures"]
            self.assertTrue(any("its K is split" in f.get("text", "") for f in figures))
            unpadded = {(n, t): f["value"] for f in figures for n in (1, 2) for t in (1, 7, 64)
                        if f"proposal {n}, {t} tokens as {t} rows" in f["name"]}
            self.assertEqual(len(unpadded), 6)
            self.assertTrue(unpadded[1, 1] > 0 and unpadded[1, 7] > 0)
            self.assertEqual([unpadded[2, t] for t in (1, 7, 64)], [0, 0, 0])


class Parts(unittest.TestCase):
    def test_a_part_that_fails_or_hangs_hides_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "program"
            program.write_text("""#!/bin/sh
for part; do :; done
case $part in
memory) echo '{"name": "before", "value": 1, "unit": ""}'; kill -SEGV $$ ;;
peaks) echo '{"failed": "no such luck"}'; exit 1 ;;
pinned) exec sleep 100 ;;
bits) echo 'not JSON'; exit 0 ;;
*) echo '{"name": "fine", "value": 2, "unit": ""}' ;;
esac
""")
            program.chmod(program.stat().st_mode | stat.S_IXUSR)
            status, out, said = run(folder, "--program", program, "memory", "bits", "peaks", "device")
            self.assertEqual(status, 1, said)
            parts = out["parts"]
            self.assertEqual({n: p["status"] for n, p in parts.items()}, {"memory": "failed", "bits": "ok", "peaks": "failed", "device": "ok"})
            self.assertEqual(parts["memory"]["figures"][0]["value"], 1)
            self.assertEqual(parts["peaks"]["reason"], "no such luck")
            self.assertEqual(parts["bits"]["figures"], [{"text": "not JSON"}])
            # One that hangs takes all the time that is left.
            status, out, said = run(folder, "--program", program, "--seconds", "2", "pinned", "many")
            self.assertEqual((status, {n: p["status"] for n, p in out["parts"].items()}),
                             (1, {"pinned": "out of time", "many": "out of time"}), said)

    def test_a_missing_program_is_said(self):
        with tempfile.TemporaryDirectory() as folder:
            status, out, _ = run(folder, "--program", "/nowhere/limits", "device")
            self.assertEqual(status, 1)
            self.assertIn("/nowhere/limits", out["parts"]["device"]["reason"])


class TooOld(unittest.TestCase):
    def test_said(self):
        with tempfile.TemporaryDirectory() as folder:
            nvcc = Path(folder) / "nvcc"
            for says, wrong in ("Cuda compilation tools, release 11.8, V11.8.89", "is of CUDA 11.8; 12 is the least"), ("?", "it does not say"), \
                    ("Cuda compilation tools, release 12.4, V12.4.131", None):
                nvcc.write_text(f"#!/bin/sh\necho '{says}'\n")
                nvcc.chmod(0o755)
                done = subprocess.run(["make", "--no-print-directory", f"BUILD={folder}", f"NVCC={nvcc}", f"{folder}/cuda/nvcc"], cwd=TOP,
                                      capture_output=True, text=True, env={k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))})
                self.assertEqual(done.returncode != 0, wrong is not None, done.stderr)
                self.assertIn(wrong or "", done.stderr)


@unittest.skipUnless(NVCC, "nvcc is not here")
class Compiled(unittest.TestCase):
    def make(self, target):
        done = subprocess.run(["make", "--no-print-directory", f"BUILD={BUILD}", "SAN=", target], cwd=TOP, capture_output=True,
                              text=True, env={k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS")})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_every_chip(self):
        said = self.make("cuda")
        self.assertIn("0 wrong", said)
        table = (BUILD / "cuda" / "kernels.md").read_text()
        self.assertIn("sm_80 | sm_89 | sm_90", table)
        self.assertIn("gemv<(order)0, 4>", table)

    def test_machine_code(self):
        if "skip: machine code" in self.make("cuda"):
            self.skipTest("cuobjdump is not here")

    def test_bundle(self):
        self.make("gpu-bundle")
        bundle = BUILD / "convod-gpu.tar.gz"
        self.assertLess(bundle.stat().st_size, 50_000_000)
        with tempfile.TemporaryDirectory() as folder:
            with tarfile.open(bundle) as tar:
                tar.extractall(folder, filter="data") if hasattr(tarfile, "data_filter") else tar.extractall(folder)
            # All but the C library comes along, and what that wants too.
            programs = Path(folder) / "convod-gpu" / "bin"
            for line in subprocess.run(["ldd", programs / "models"], capture_output=True, text=True).stdout.splitlines():
                name, _, place = line.strip().partition(" => ")
                if place and not re.match(r"lib(c|m|dl|rt|pthread)\.so", name):
                    self.assertTrue(place.startswith(str(programs / "lib")), line)
            limits = Path(folder) / "convod-gpu" / "tests" / "gpu" / "limits"
            done = subprocess.run([sys.executable, limits, "--out", Path(folder) / "out.json", "device"], capture_output=True, text=True)
            part = json.loads((Path(folder) / "out.json").read_text())["parts"]["device"]
            # Where there is a GPU it is measured; where there is none that is said.
            if done.returncode:
                self.assertIn("CUDA", json.dumps(part), done.stdout)
            else:
                self.assertEqual(part["status"], "ok")


if __name__ == "__main__":
    unittest.main()
