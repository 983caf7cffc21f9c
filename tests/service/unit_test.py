#!/usr/bin/env python3
"""The service as `make install` puts it in place: it starts, keeps its tokens and its data, comes back, and gives up when it should.

Wants root and systemd-nspawn; otherwise it is skipped.
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

from machine import inside, journal, outside, show, systemctl

LIMIT = 60
TOKEN, OTHER = "a" * 40, "b" * 40
CONF = Path("/etc/convod/convod.conf")
SETTINGS = "model = /srv/model.gguf\nthreads = 1\nkv-bytes = 64M\ntoken-file = /run/credentials/convod.service/tokens\n"
# The lasting user comes late, not at boot: first the service runs without.
INSTALL = """
make -s install DESTDIR="$ROOT" MAKEFLAGS= >"$T/install.log" 2>&1 || { cat "$T/install.log" >&2; exit 1; }
mv "$ROOT/usr/local/lib/sysusers.d/convod.conf" "$ROOT/srv/sysusers.conf"
"$BUILD/tests/service/model" "$ROOT/srv/model.gguf"
chmod 644 "$ROOT/srv/model.gguf"
"""


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
        assert {"network-online.target", "remote-fs.target"} <= set(show("After").split())
        assert "network-online.target" in show("Wants")

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
        until(lambda: "tokens read again" in journal("--boot"), "the tokens were read again")
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

    def test_takes_tokens_that_are_made_while_it_runs(self):
        def token(*args):
            return subprocess.run(["/usr/local/bin/convod", "token", *args, "--data", "/var/lib/convod"], capture_output=True,
                                  text=True, timeout=60, check=True).stdout.strip()

        before = show("MainPID", "NRestarts")
        carol = token("add", "carol")
        until(lambda: call("GET", "/v1/models", token=carol)[0] == 200, "the new token is taken")
        assert call("GET", "/v1/models")[0] == 200
        token("revoke", "carol")
        until(lambda: call("GET", "/v1/models", token=carol)[0] == 401, "it is taken away")
        assert show("MainPID", "NRestarts") == before
        Path("/var/lib/convod/tokens").unlink()  # otherwise every request needs one from now on

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

    def test_tells_why_a_model_in_a_home_folder_cannot_be_read(self):
        home = Path("/home/ann")
        home.mkdir(parents=True)
        shutil.copy("/srv/model.gguf", home)
        CONF.write_text(SETTINGS.replace("/srv/", "/home/ann/"))
        assert systemctl("start", "convod", check=False).returncode != 0
        assert "sees no home folders" in journal("--priority=err")

    def test_keeps_its_data_when_its_user_gets_a_lasting_name(self):
        subprocess.run(["systemd-sysusers", "/srv/sysusers.conf"], check=True)
        user = pwd.getpwnam("convod")
        os.chown("/srv/model.gguf", 0, user.pw_gid)
        os.chmod("/srv/model.gguf", 0o640)
        CONF.write_text(SETTINGS)
        systemctl("start", "convod")
        assert user_of(process_status()) == user.pw_uid
        assert len(items(self.conversation)) == 8

    def test_goes_on_with_a_backup_that_root_put_back(self):
        data = Path("/var/lib/convod")
        subprocess.run(["convod", "backup", data / "copy", "--data", data], check=True)
        systemctl("stop", "convod")
        for file in data.iterdir():
            if file.is_file():
                file.unlink()
        shutil.copy(data / "copy" / "ledger.db", data)
        subprocess.run(["convod", "--verify", data], check=True)
        systemctl("start", "convod")
        assert len(items(self.conversation)) == 8

    def test_is_well_confined_and_still_sees_a_gpu(self):
        score = subprocess.run(["systemd-analyze", "security", "--no-pager", "convod.service"], capture_output=True, text=True)
        exposure = re.search(r"Overall exposure level for convod.service: ([\d.]+)", score.stdout)
        assert exposure and float(exposure[1]) < 2.0, score.stdout[-300:] + score.stderr
        allowed = systemctl("show", "convod", "--property=DeviceAllow").stdout
        for device in ("char-nvidia-frontend rw", "char-nvidia rw", "char-nvidiactl rw", "char-nvidia-uvm rw"):
            assert device in allowed, allowed


if __name__ == "__main__":
    if sys.argv[1:] == ["--inside"]:
        inside(Tests)
    outside(__file__, INSTALL)
