"""A machine for a test: systemd as PID 1, in a container over a copy-on-write view of this machine's root. Nothing outside the
view is changed, and the view goes with the namespace that it is mounted in.

A test file calls outside() with a shell script that puts what it wants into the view ($ROOT). The same file, started with
--inside, is what runs in the container: it calls inside() with its tests, whose TAP is printed here.
"""
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

BUILD = Path(os.environ.get("BUILD", "build")).resolve()

# $T is a folder that the script owns, $ROOT the view. What this machine keeps of an installed convod is not in it, nor what
# keeps packages from starting services, as is usual where systemd is not PID 1.
VIEW = """set -e
mount -t tmpfs tmpfs "$T"
mkdir "$T/up" "$T/work" "$ROOT"
mount -t overlay overlay -o "lowerdir=/,upperdir=$T/up,workdir=$T/work" "$ROOT"
rm -rf "$ROOT/etc/systemd/system/convod.service" "$ROOT/etc/convod" "$ROOT/var/lib/convod" "$ROOT/var/lib/private/convod" "$ROOT/usr/sbin/policy-rc.d"
sed -i '/^convod:/d' "$ROOT/etc/passwd" "$ROOT/etc/shadow" "$ROOT/etc/group" "$ROOT/etc/gshadow"
cp "$TESTS"/*.py "$ROOT/srv/"
"""
BOOT = """
printf %s "$SERVICE" >"$ROOT/etc/systemd/system/the-test.service"
timeout -k 5 "$LIMIT" systemd-nspawn -q --register=no --keep-unit --private-network --machine="$NAME" -D "$ROOT" -b \
    systemd.unit=the-test.service >"$T/boot.log" 2>&1 </dev/null || true
cat "$ROOT/var/the-test" 2>/dev/null || { tail -c 2000 "$T/boot.log" >&2; exit 1; }
"""
SERVICE = """[Unit]
SuccessAction=exit-force
FailureAction=exit-force
[Service]
Type=oneshot
TimeoutStartSec=infinity
ExecStart=/bin/sh -c '{} >/var/the-test 2>&1'
"""


def boot(prepare, command, limit):
    name = f"convod-test-{os.getpid()}"
    top = Path("/tmp") / name
    top.mkdir(mode=0o700)
    try:
        return subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", VIEW + prepare + BOOT],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit + 30,
            env=os.environ | {"T": str(top), "ROOT": f"{top}/root", "NAME": name, "LIMIT": str(limit), "BUILD": str(BUILD),
                              "TESTS": str(Path(__file__).resolve().parent), "SERVICE": SERVICE.format(command)})
    finally:
        top.rmdir()


def skip(why):
    print(f"skip: {why}")
    sys.exit(77)


def outside(test, prepare):
    """Boots, prints what the tests inside said, and exits."""
    if os.geteuid() != 0:
        skip("booting the service wants root")
    for program in ("systemd-nspawn", "unshare", "/lib/systemd/systemd"):
        if not shutil.which(program):
            skip(f"{program} is not here")
    # Where no container boots at all, that says nothing about the service.
    probe = boot("", "echo booted", 30)
    if probe.stdout.strip() != "booted":
        skip("no container boots here: " + " ".join((probe.stdout + probe.stderr).split())[-300:])
    r = boot(prepare, f"python3 /srv/{Path(test).name} --inside", 240)
    print(r.stdout, end="")
    print(r.stderr, end="", file=sys.stderr)
    # It came to its end, and nothing failed.
    sys.exit(0 if r.returncode == 0 and "\n# end\n" in r.stdout and not re.search(r"^not ok", r.stdout, re.M) else 1)


def inside(tests):
    """Runs the class's test_* in their order; each finds what the one before it has left."""
    names = [n for n in vars(tests) if n.startswith("test_")]
    print(f"1..{len(names)}")
    for number, name in enumerate(names, 1):
        try:
            getattr(tests(), name)()
            print(f"ok {number} - {name}", flush=True)
        except Exception as e:  # noqa: BLE001 - every failure is told
            print(f"not ok {number} - {name}")
            print("# " + f"{type(e).__name__}: {e}".replace("\n", "\n# "), flush=True)
    print("# end", flush=True)
    sys.exit(0)


def systemctl(*words, check=True):
    r = subprocess.run(["systemctl", *words], capture_output=True, text=True, timeout=120)
    assert not check or r.returncode == 0, f"systemctl {' '.join(words)}: {r.stdout}{r.stderr}{journal()}"
    return r


def journal(*words):
    return subprocess.run(["journalctl", "--no-pager", "-o", "cat", "-u", "convod", *words], capture_output=True,
                          text=True).stdout


def show(*names):
    """Properties of the service."""
    text = systemctl("show", "convod", *(f"--property={n}" for n in names)).stdout
    got = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    return got[names[0]] if len(names) == 1 else [got[n] for n in names]
