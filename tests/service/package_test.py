#!/usr/bin/env python3
"""The Debian package: it is clean, hardened, installs, starts, and goes again.

Wants what `make deb-build` made; the part that installs it also root and systemd-nspawn. What is missing is skipped.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from machine import BUILD, inside, outside, show, skip, systemctl

PACKAGES = sorted((BUILD / "deb").glob("convod_*.deb"))
INSTALL = """
cp "$BUILD"/deb/convod_*.deb "$ROOT/srv/convod.deb"
"$BUILD/tests/service/model" "$ROOT/srv/model.gguf"
"""
CONF = Path("/etc/convod/convod.conf")


def run(*words):
    r = subprocess.run(words, capture_output=True, text=True)
    assert r.returncode == 0, f"{' '.join(words)}: {r.stdout}{r.stderr}"
    return r.stdout


def files():
    return run("dpkg-query", "--listfiles", "convod").splitlines()


class Tests:
    def test_lintian_finds_nothing(self):
        if not shutil.which("lintian"):
            print("skip: lintian is not here")
            return
        with tempfile.TemporaryDirectory() as home:
            r = subprocess.run(["lintian", "--allow-root", "/srv/convod.deb"], capture_output=True, text=True,
                               env=os.environ | {"HOME": home, "LC_ALL": "C.UTF-8"})
        assert not re.search(r"^[EW]: ", r.stdout, re.M) and r.returncode == 0, r.stdout + r.stderr

    def test_installs_and_makes_its_user(self):
        run("dpkg", "--install", "/srv/convod.deb")
        assert re.search("^convod:", Path("/etc/passwd").read_text(), re.M)
        installed = files()
        for f in ("/usr/bin/convod", "/usr/bin/convo", "/etc/convod/convod.conf", "/usr/share/man/man1/convod.1.gz",
                  "/usr/share/man/man1/convo.1.gz", "/usr/share/man/man5/convod.conf.5.gz", "/usr/share/doc/convod/docs/protocol.md",
                  "/usr/share/bash-completion/completions/convod", "/usr/share/bash-completion/completions/convo",
                  "/usr/share/zsh/vendor-completions/_convod", "/usr/share/zsh/vendor-completions/_convo"):
            assert f in installed, (f, installed)
        assert not [f for f in installed if "/usr/local" in f]
        assert str(CONF) in run("dpkg-query", "--show", "--showformat=${Conffiles}", "convod")

    def test_is_hardened_and_stripped(self):
        for program in ("/usr/bin/convod", "/usr/bin/convo"):
            elf = run("readelf", "--wide", "--file-header", "--program-headers", "--dynamic", "--sections", "--dyn-syms", program)
            for what in ("DYN (Position-Independent Executable file)", "GNU_RELRO", "BIND_NOW", "__stack_chk_fail", "_chk@GLIBC"):
                assert what in elf, (program, what)
            assert not re.search(r"GNU_STACK.*RWE", elf) and ".symtab" not in elf, program

    def test_waits_for_a_model(self):
        assert systemctl("is-enabled", "convod", check=False).stdout.strip() == "disabled"
        assert show("ActiveState") == "inactive"
        assert run("convod", "--version").startswith("convod ")

    def test_starts(self):
        with CONF.open("a") as f:
            f.write("model = /srv/model.gguf\nthreads = 1\nkv-bytes = 64M\n")
        systemctl("start", "convod")
        assert show("ActiveState") == "active"
        assert "model" in run("convo", "status")

    def test_starts_again_when_it_is_upgraded(self):
        before = show("MainPID")
        run("dpkg", "--install", "/srv/convod.deb")
        now = show("ActiveState", "MainPID")
        assert now[0] == "active" and now[1] not in ("0", before), (before, now)
        assert "model = /srv/model.gguf" in CONF.read_text()

    def test_goes_and_leaves_the_conversations(self):
        run("dpkg", "--purge", "convod")
        assert show("ActiveState") == "inactive", show("ActiveState", "Result")
        assert not CONF.exists()
        assert Path("/var/lib/private/convod").is_dir() and not Path("/usr/bin/convod").exists()


if __name__ == "__main__":
    if sys.argv[1:] == ["--inside"]:
        inside(Tests)
    if not PACKAGES:
        skip("no package was built (make deb)")
    outside(__file__, INSTALL)
