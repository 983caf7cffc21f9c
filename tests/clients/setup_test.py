#!/usr/bin/env python3
"""clients/setup/packages: what is missing is named and installed, while apt's own words show."""
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

PACKAGES = Path("clients/setup/packages").resolve()
APT = """#!/bin/sh
echo "apt-get $*" >>"$CALLS"
case " $* " in
*" update "*) touch "$CALLS.updated" ;;
*" install "*) echo "Unpacking gcc (42%)"; [ -n "$KNOWN" ] || [ -e "$CALLS.updated" ] || { echo "Unable to locate it" >&2; exit 100; } ;;
esac
"""


class Packages(unittest.TestCase):
    def run_packages(self, present=(), **more):
        """With programs that stand for Debian's: those of these packages are installed."""
        top = Path(self.enterContext(tempfile.TemporaryDirectory()))
        programs = {"apt-get": APT, "apt-cache": "#!/bin/sh\n[ \"$1\" = show ]\n", "id": "#!/bin/sh\necho 0\n",
                    "dpkg-query": "#!/bin/sh\nfor p in %s; do [ \"$4\" = $p ] && echo 'install ok installed'; done\nexit 0\n" % " ".join(present)}
        for name, text in programs.items():
            (top / name).write_text(text)
            (top / name).chmod(0o755)
        calls = top / "calls"
        calls.touch()
        r = subprocess.run([PACKAGES, "build"], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL,
                           env={**os.environ, "PATH": f"{top}:{os.environ['PATH']}", "CALLS": str(calls), **more})
        return r, calls.read_text().splitlines()

    def test_says_what_and_why_and_shows_apt(self):
        r, calls = self.run_packages(present=["libc6-dev"], KNOWN="1")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertIn("  gcc: the C compiler\n", r.stdout)
        self.assertIn("Unpacking gcc (42%)\n", r.stdout)
        self.assertNotIn("libc6-dev", r.stdout)
        self.assertEqual(len(calls), 1)
        self.assertRegex(calls[0], r" install .* gcc pkg-config ")

    def test_lists_that_are_old_are_made_new(self):
        r, calls = self.run_packages()
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertEqual([next(w for w in ("install", "update") if w in c.split()) for c in calls], ["install", "update", "install"])

    def test_nothing_to_do(self):
        text = PACKAGES.read_text()
        r, calls = self.run_packages(present=[line.split()[1] for line in text.splitlines() if line.startswith("build ")])
        self.assertEqual((r.returncode, r.stdout, calls), (0, "", []))


if __name__ == "__main__":
    unittest.main()
