#!/usr/bin/env python3
"""The service as it is installed: booted with systemd as PID 1, in a container over a copy-on-write view of this machine's
root. Nothing outside the view is changed, and the view goes with the namespace that it is mounted in.

Wants root and systemd-nspawn; otherwise it is skipped. The same file, started with --inside, is what runs in the container:
it prints TAP into a file that is printed here.
"""
import http.client
import json
import os
import pwd
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

BUILD = Path(os.environ.get("BUILD", "build")).resolve()
LIMIT = 60
TOKEN, OTHER = "a" * 40, "b" * 40
CONF = Path("/etc/convod/convod.conf")
SETTINGS = "model = /srv/model.gguf\nthreads = 1\nkv-bytes = 64M\ntoken-file = /run/credentials/convod.service/tokens\n"

# The view of the root, and what `make install` puts into it. $T is a folder that this script owns.
VIEW = """set -e
mount -t tmpfs tmpfs "$T"
mkdir "$T/up" "$T/work" "$T/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$T/up,workdir=$T/work" "$T/root"
"""
INSTALL = """
rm -rf "$T/root/etc/systemd/system/convod.service" "$T/root/etc/convod" "$T/root/var/lib/convod" "$T/root/var/lib/private/convod"
sed -i '/^convod:/d' "$T/root/etc/passwd" "$T/root/etc/shadow" "$T/root/etc/group" "$T/root/etc/gshadow"
make -s install DESTDIR="$T/root" MAKEFLAGS= BUILD="$BUILD" >"$T/install.log" 2>&1 || { cat "$T/install.log" >&2; exit 1; }
"$BUILD/tests/service/model" "$T/root/srv/model.gguf"
chmod 644 "$T/root/srv/model.gguf"
cp "$TEST" "$T/root/srv/unit_test.py"
mv "$T/root/usr/local/lib/sysusers.d/convod.conf" "$T/root/srv/sysusers.conf" # not at boot: first without a lasting user
"""
BOOT = """
printf %s "$SERVICE" >"$T/root/etc/systemd/system/the-test.service"
timeout -k 5 "$LIMIT" systemd-nspawn -q --register=no --keep-unit --private-network --machine="$NAME" -D "$T/root" -b \
    systemd.unit=the-test.service >"$T/boot.log" 2>&1 </dev/null || true
cat "$T/root/var/the-test" 2>/dev/null || { tail -c 2000 "$T/boot.log" >&2; exit 1; }
"""
SERVICE = """[Unit]
SuccessAction=exit-force
FailureAction=exit-force
[Service]
Type=oneshot
TimeoutStartSec=infinity
ExecStart=/bin/sh -c '{} >/var/the-test 2>&1'
"""


def boot(script, command, limit):
    name = f"convod-test-{os.getpid()}"
    top = Path("/tmp") / name
    top.mkdir(mode=0o700)
    try:
        return subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", script], stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=limit + 30,
            env=os.environ | {"T": str(top), "NAME": name, "LIMIT": str(limit), "BUILD": str(BUILD),
                              "SERVICE": SERVICE.format(command), "TEST": str(Path(__file__).resolve())})
    finally:
        top.rmdir()


def skip(why):
    print(f"skip: {why}")
    sys.exit(77)


def outside():
    if os.geteuid() != 0:
        skip("booting the service wants root")
    for program in ("systemd-nspawn", "unshare", "/lib/systemd/systemd"):
        if not shutil.which(program):
            skip(f"{program} is not here")
    # Where no container boots at all, that says nothing about the service.
    probe = boot(VIEW + BOOT, "echo booted", 30)
    if probe.stdout.strip() != "booted":
        skip("no container boots here: " + " ".join((probe.stdout + probe.stderr).split())[-300:])
    r = boot(VIEW + INSTALL + BOOT, "python3 /srv/unit_test.py --inside", 240)
    print(r.stdout, end="")
    print(r.stderr, end="", file=sys.stderr)
    # Its exit status, or that it did not come to an end.
    sys.exit(0 if r.returncode == 0 and "\n# end\n" in r.stdout and not re.search(r"^not ok", r.stdout, re.M) else 1)


# ---- in the container ----


def systemctl(*words, check=True):
    r = subprocess.run(["systemctl", *words], capture_output=True, text=True, timeout=120)
    assert not check or r.returncode == 0, f"systemctl {' '.join(words)}: {r.stdout}{r.stderr}{journal()}"
    return r


def journal(*words):
    return subprocess.run(["journalctl", "--no-pager", "-o", "cat", "-u", "convod", *words], capture_output=True,
                          text=True).stdout


def show(*names):
    text = systemctl("show", "convod", *(f"--property={n}" for n in names)).stdout
    got = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    return got[names[0]] if len(names) == 1 else [got[n] for n in names]


def call(method, path, body=None, token=TOKEN):
    c = http.client.HTTPConnection("127.0.0.1", 8642, timeout=60)
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    c.request(method, path, None if body is None else json.dumps(body), headers)
    r = c.getresponse()
    data = r.read()
    c.close()
    return r.status, json.loads(data) if data.startswith(b"{") else data.decode()


def process_status():
    return Path(f"/proc/{show('MainPID')}/status").read_text()


def user_of(status):
    uids = set(re.search(r"^Uid:\s+(.*)", status, re.M)[1].split())
    assert len(uids) == 1, status
    return int(uids.pop())


def until(what, say):
    end = time.monotonic() + LIMIT
    while not (got := what()):
        assert time.monotonic() < end, f"{say}: not within {LIMIT} s\n{journal()}"
        time.sleep(0.05)
    return got


def ready():
    try:
        return call("GET", "/ready", token=None)[0] == 200
    except OSError:
        return False


def turn(conversation, text):
    status, r = call("POST", "/v1/responses", {"conversation": conversation, "input": text, "temperature": 0,
                                               "max_output_tokens": 8})
    assert status == 200, r
    return r["convod"]["tokens"]


def items(conversation):
    status, page = call("GET", f"/v1/conversations/{conversation}/items")
    assert status == 200, page
    return page["data"]


def settled():
    return call("GET", "/v1/convod/status")[1]["pending_saves"] == 0


class Tests:
    """In this order; each finds what the one before it has left."""

    conversation = None

    def test_starts_as_it_is_installed(self):
        CONF.parent.mkdir(exist_ok=True)
        CONF.write_text(SETTINGS)
        tokens = CONF.with_name("tokens")
        tokens.write_text(f"ann {TOKEN}\n")
        tokens.chmod(0o600)
        systemctl("start", "convod")
        assert show("ActiveState", "SubState", "Result") == ["active", "running", "success"]
        assert ready()

    def test_runs_as_a_user_of_its_own(self):
        status = process_status()
        assert 61184 <= user_of(status) <= 65519, status
        assert re.search(r"^CapBnd:\s+0+$", status, re.M) and re.search(r"^NoNewPrivs:\s+1", status, re.M), status

    def test_knows_its_tokens_and_no_other(self):
        assert [call("GET", "/v1/models", token=t)[0] for t in (TOKEN, OTHER, None)] == [200, 401, 401]

    def test_holds_a_conversation(self):
        Tests.conversation = call("POST", "/v1/conversations", {})[1]["id"]
        tokens = turn(self.conversation, "hello")
        assert tokens["history"] == 0 and tokens["prefilled"] == tokens["new"] > 0, tokens
        assert len(items(self.conversation)) == 2

    def test_is_back_after_a_kill(self):
        until(settled, "the turn is saved")
        old = show("MainPID")
        os.kill(int(old), 9)
        until(lambda: show("MainPID") not in (old, "0") and show("ActiveState") == "active" and ready(), "started again")
        assert show("NRestarts") == "1"
        tokens = turn(self.conversation, "12")
        assert tokens["history"] > 0 and tokens["prefilled"] == tokens["new"], tokens
        assert len(items(self.conversation)) == 4

    def test_goes_on_through_a_reload(self):
        before = show("MainPID", "NRestarts")
        systemctl("reload", "convod")
        until(lambda: "token file read again" in journal("--boot"), "the tokens were read again")
        assert show("MainPID", "NRestarts") == before and show("ActiveState") == "active"
        assert [call("GET", "/v1/models", token=t)[0] for t in (TOKEN, OTHER)] == [200, 401]

    def test_keeps_its_data_and_reads_new_tokens_over_a_restart(self):
        until(settled, "the turn is saved")
        CONF.with_name("tokens").write_text(f"ann {TOKEN}\nbob {OTHER}\n")
        systemctl("restart", "convod")
        assert call("GET", "/v1/models", token=OTHER)[0] == 200
        assert call("GET", f"/v1/conversations/{self.conversation}", token=OTHER)[0] == 404
        tokens = turn(self.conversation, "hello")
        assert tokens["history"] > 0 and tokens["prefilled"] == tokens["new"], tokens
        assert len(items(self.conversation)) == 6

    def test_stops_cleanly_with_a_turn_running(self):
        c = http.client.HTTPConnection("127.0.0.1", 8642, timeout=60)
        c.request("POST", "/v1/responses", json.dumps({"conversation": self.conversation, "input": "hello", "stream": True,
                                                       "max_output_tokens": 900}),
                  {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"})
        assert c.getresponse().status == 200
        systemctl("stop", "convod")
        assert show("ActiveState", "Result", "ExecMainStatus") == ["inactive", "success", "0"]

    def test_waits_for_the_longest_drain(self):
        drain = subprocess.run(["/usr/local/bin/convod", "--drain-ms", "999999999", "--check-config"], capture_output=True,
                               text=True).stderr
        longest = max(int(n) for n in re.findall(r"\d+", drain) if n != "999999999") / 1000
        assert longest >= 1, drain
        stop = re.findall(r"(\d+)(min|s)", show("TimeoutStopUSec"))
        assert sum(int(n) * {"min": 60, "s": 1}[unit] for n, unit in stop) > longest, stop

    def test_does_not_start_wrong_settings_again(self):
        CONF.write_text(SETTINGS + "ctx = much\n")
        assert systemctl("start", "convod", check=False).returncode != 0
        assert show("ActiveState", "Result", "NRestarts", "ExecMainStatus") == ["failed", "exit-code", "0", "2"]
        errors = journal("--priority=err")
        assert "convod.conf:5" in errors and "ctx" in errors, errors

    def test_refuses_to_serve_without_the_tokens_it_was_told_of(self):
        CONF.write_text(SETTINGS)
        CONF.with_name("tokens").unlink()
        assert systemctl("start", "convod", check=False).returncode != 0
        assert show("ActiveState", "NRestarts", "ExecMainStatus") == ["failed", "0", "2"]

    def test_starts_without_tokens_where_none_are_wanted(self):
        CONF.write_text(SETTINGS.replace("token-file", "#token-file"))
        systemctl("start", "convod")
        assert call("GET", "/v1/models", token=None)[0] == 200
        systemctl("stop", "convod")

    def test_names_the_copy_where_the_original_cannot_be_read(self):
        CONF.with_name("tokens").write_text(f"ann {TOKEN}\n")
        CONF.with_name("tokens").chmod(0o600)
        CONF.write_text(SETTINGS.replace("/run/credentials/convod.service/", "/etc/convod/"))
        assert systemctl("start", "convod", check=False).returncode != 0
        assert "/run/credentials/convod.service/tokens" in journal("--priority=err")

    def test_keeps_its_data_when_its_user_gets_a_lasting_name(self):
        subprocess.run(["systemd-sysusers", "/srv/sysusers.conf"], check=True)
        user = pwd.getpwnam("convod")
        os.chown("/srv/model.gguf", 0, user.pw_gid)
        os.chmod("/srv/model.gguf", 0o640)
        CONF.write_text(SETTINGS)
        systemctl("start", "convod")
        assert user_of(process_status()) == user.pw_uid
        assert len(items(self.conversation)) == 8

    def test_is_well_confined_and_still_sees_a_gpu(self):
        score = subprocess.run(["systemd-analyze", "security", "--no-pager", "convod.service"], capture_output=True, text=True)
        exposure = re.search(r"Overall exposure level for convod.service: ([\d.]+)", score.stdout)
        assert exposure and float(exposure[1]) < 2.0, score.stdout[-300:] + score.stderr
        allowed = systemctl("show", "convod", "--property=DeviceAllow").stdout
        for device in ("char-nvidia-frontend rw", "char-nvidia rw", "char-nvidiactl rw", "char-nvidia-uvm rw"):
            assert device in allowed, allowed


def inside():
    names = [n for n in vars(Tests) if n.startswith("test_")]
    print(f"1..{len(names)}")
    for number, name in enumerate(names, 1):
        try:
            getattr(Tests(), name)()
            print(f"ok {number} - {name}", flush=True)
        except Exception as e:  # noqa: BLE001 - every failure is told
            print(f"not ok {number} - {name}")
            print("# " + f"{type(e).__name__}: {e}".replace("\n", "\n# "), flush=True)
    print("# end", flush=True)


if __name__ == "__main__":
    inside() if sys.argv[1:] == ["--inside"] else outside()
