#!/usr/bin/env python3
"""Backup while turns run, what can be put back where, and the check of every row and record."""
import os
import shutil
import sqlite3
import subprocess
import threading

from daemon import BUILD, MAKER, Daemon, Scratch, made_model, need, run, text_of, until

CONVOD = os.path.join(BUILD, "convod")
LONG = "the harbour master counted every ship twice " * 6


def convod(*args):
    r = subprocess.run([CONVOD, *args], capture_output=True, text=True, timeout=300)
    return r.returncode, r.stdout + r.stderr


def ask(d, conversation, text):
    return d.turn(text, conversation=conversation, temperature=0, max_output_tokens=8)


def texts(d, conversation):
    items = d.ok("GET", f"/v1/conversations/{conversation}/items?limit=100&order=asc")["data"]
    return [i["content"][0]["text"] for i in items]


def lost(receipt):
    return {r["reason"] for r in receipt["convod"]["reprefilled"]}


def put_back(backup, data, packs=None):
    """As the manual says: the ledger in place of the one that is there, without its log; packs where they are wanted."""
    for name in ("ledger.db-wal", "ledger.db"):
        if os.path.exists(os.path.join(data, name)):
            os.unlink(os.path.join(data, name))
    shutil.copy(os.path.join(backup, "ledger.db"), data)
    for name in os.listdir(packs) if packs else ():
        if name.startswith("pack-"):
            shutil.copy(os.path.join(packs, name), data)


def backup_and_back():
    with Scratch() as data:
        model = made_model(data)
        d = Daemon(data, model=model)
        # Whoever copies or searches the directory meets plain files alone.
        assert all(os.path.isfile(os.path.join(data, name)) for name in os.listdir(data)), os.listdir(data)
        early, late, empty = (os.path.join(data, "..", name) for name in ("early", "late", "empty"))
        kept, gone = d.conversation(), d.conversation()
        first = [ask(d, kept, LONG + str(i)) for i in range(2)]
        ask(d, gone, LONG + "gone")
        d.settle()
        # Others go on meanwhile.
        stop, turns = threading.Event(), []

        def load():
            c = d.conversation()
            while not stop.is_set():
                turns.append(ask(d, c, f"number {len(turns)}")["status"])

        other = threading.Thread(target=load)
        other.start()
        until(lambda: turns)
        status, said = convod("backup", early, "--with-kv", "--data", data)
        stop.set()
        other.join()
        assert status == 0 and "complete" in said, said
        assert turns and set(turns) <= {"completed", "incomplete"}, turns
        status, said = convod("backup", early, "--data", data)
        assert status == 1 and "File exists" in said, said
        status, said = convod("--verify", data)
        assert status == 1 and "in use" in said, said
        third = ask(d, kept, "and a third question")
        assert d.call("DELETE", f"/v1/conversations/{gone}")[0] == 200
        after = d.conversation()
        ask(d, after, LONG + "after")
        d.settle()
        assert convod("backup", late, "--with-kv", "--data", data)[0] == 0
        d.stop()
        # Each is a ledger that is whole.
        for backup in (early, late):
            ledger = sqlite3.connect(os.path.join(backup, "ledger.db"))
            assert ledger.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            ledger.close()

        # The older ledger, beside packs that are newer.
        put_back(early, data)
        d = Daemon(data, model=model)
        assert len(texts(d, kept)) == 4 and len(texts(d, gone)) == 2
        assert d.call("GET", f"/v1/conversations/{after}")[0] == 404
        again = ask(d, kept, "and a third question")
        # All but the unfinished segment, in whose place a longer one has come since.
        assert text_of(again) == text_of(third) and again["convod"]["tokens"]["disk"] >= 512, again
        assert lost(again) <= {"blob_missing", "logits"}, again
        back = ask(d, gone, "still there")
        assert back["status"] in ("completed", "incomplete") and lost(back) <= {"blob_missing"}, back
        d.stop()
        assert convod("--verify", data)[0] == 0

        # The newer ledger, beside packs that are older; the index is made from them.
        for name in os.listdir(data):
            if name.startswith(("pack-", "kv.db")):
                os.unlink(os.path.join(data, name))
        put_back(late, data, early)
        d = Daemon(data, model=model)
        assert len(texts(d, kept)) == 6 and d.call("GET", f"/v1/conversations/{gone}")[0] == 404
        fourth = ask(d, kept, "and a fourth question")
        assert lost(fourth) <= {"blob_missing", "not_indexed", "logits"}, fourth
        d.stop()
        assert convod("--verify", data)[0] == 0

        # All of it in an empty directory: nothing is computed again.
        os.mkdir(empty, 0o700)
        put_back(late, empty, late)
        status, said = convod("--verify", empty)
        assert status == 0 and " 0 wrong" in said, said
        d = Daemon(empty, model=model)
        same = ask(d, kept, "and a fourth question")
        assert text_of(same) == text_of(fourth), (same, fourth)
        tokens = same["convod"]["tokens"]
        assert tokens["prefilled"] == tokens["new"] and tokens["disk"] > 0 and not lost(same), same
        d.stop()
        # One that nobody serves can be copied too.
        status, said = convod("backup", os.path.join(data, "..", "third"), "--data", empty)
        assert status == 0 and os.path.exists(os.path.join(data, "..", "third", "ledger.db")), said
        assert len(first) == 2


def damage_is_found():
    with Scratch() as data:
        model = made_model(data)
        d = Daemon(data, model=model)
        c = d.conversation()
        ask(d, c, LONG)
        d.settle()
        d.stop()
        status, said = convod("--verify", data)
        assert status == 0 and "1 conversations, 1 turns" in said and " 0 wrong" in said, said
        # A byte of KV, a row of the ledger, a row of the index.
        index = sqlite3.connect(os.path.join(data, "kv.db"))
        pack, offset, size = index.execute("SELECT pack, offset, bytes FROM segments WHERE first = 0").fetchone()
        index.execute("UPDATE segments SET children = 7 WHERE first = 0")
        index.commit()
        index.close()
        with open(os.path.join(data, f"pack-{pack:08}"), "r+b") as f:
            f.seek(offset + size // 2)
            byte = f.read(1)
            f.seek(offset + size // 2)
            f.write(bytes([byte[0] ^ 1]))
        ledger = sqlite3.connect(os.path.join(data, "ledger.db"))
        ledger.execute("UPDATE conversations SET n_turns = 5")
        ledger.commit()
        ledger.close()
        status, said = convod("--verify", data)
        assert status == 1 and " 3 wrong" in said, said
        assert "its KV is damaged" in said and "not 5" in said and "children, and not 7" in said, said
        # What can be mended is; the ledger is left to a person.
        assert convod("--repair", data)[0] == 0
        d = Daemon(data, model=model)
        answer = ask(d, c, "go on")
        assert lost(answer) <= {"blob_missing", "not_indexed"} and answer["convod"]["tokens"]["prefilled"] > 0, answer
        d.settle()
        d.stop()
        status, said = convod("--verify", data)
        assert status == 1 and " 1 wrong" in said, said


def unusable():
    with Scratch() as data:
        assert convod("--verify")[0] == 2
        assert convod("backup")[0] == 2
        assert convod("backup", "", "--data", data)[0] == 2
        status, said = convod("backup", "--help")
        assert status == 0 and "--with-kv" in said, said
        status, said = convod("backup", os.path.join(data, "b"), "--dta", data)
        assert status == 2 and "--data" in said, said
        # A name that was mistyped is not told as fine, and nothing is made there.
        nothing = os.path.join(data, "nothing")
        for args in (("--verify", nothing), ("--repair", nothing), ("backup", os.path.join(data, "b"), "--data", nothing)):
            status, said = convod(*args)
            assert status == 1 and "nothing" in said and os.listdir(data) == [], (args, said)
        os.mkdir(nothing)
        status, said = convod("--verify", nothing)
        assert status == 1 and "ledger.db" in said and os.listdir(nothing) == [], said
        os.rmdir(nothing)
        Daemon(data, model=made_model(data)).stop()
        status, said = convod("backup", "/proc/nowhere/b", "--data", data)
        assert status == 1 and "/proc/nowhere/b" in said, said


def by_root():
    """What root puts back, checks or copies stays open to the user whose directory it is."""
    if os.geteuid() != 0:
        print("skip: only root gives files away")
        return
    with Scratch() as data:
        d = Daemon(data, model=made_model(data))
        ask(d, d.conversation(), LONG)
        d.settle()
        d.stop()
        theirs, linked = os.path.join(data, "..", "theirs"), os.path.join(data, "..", "linked")
        os.mkdir(theirs, 0o700)
        os.chown(theirs, 65534, 65534)
        put_back(data, theirs, packs=data)
        with open(linked, "w"):
            os.link(linked, os.path.join(theirs, "linked"))
        for args in (("--verify", theirs), ("backup", os.path.join(data, "..", "copy"), "--data", theirs)):
            status, said = convod(*args)
            assert status == 0, said
            owners = {name: os.stat(os.path.join(theirs, name)).st_uid for name in os.listdir(theirs)}
            assert owners.pop("linked") == 0 and "kv.db" in owners and set(owners.values()) == {65534}, owners
            os.unlink(os.path.join(theirs, "lock"))


need(MAKER)
run(backup_and_back, damage_is_found, unusable, by_root)
