#!/usr/bin/env python3
"""Stored KV that is damaged, missing or foreign costs a re-prefill of that part, named in the receipt, and nothing else.

One conversation of several segments is made once; every test works on a copy of its data directory and compares with the
answer that the undamaged copy gives.
"""

import os
import shutil
import sqlite3
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "api"))
from daemon import QWEN, Daemon, check_receipt, need, run, text_of  # noqa: E402

# Some 600 tokens: two full segments and the beginning of a third.
STORY = " ".join(f"On day {i} the keeper of the light wrote {i * 37 % 91} lines about the weather." for i in range(1, 32))
QUESTION = "What did the keeper write about? Answer in five words."


class Copy:
    """A copy of the prepared data directory, with a daemon on it after damage() was done."""

    def __init__(self, *args):
        self.args = args

    def __enter__(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.data = os.path.join(self.temporary.name, "data")
        shutil.copytree(PREPARED, self.data)
        self.daemon = None
        return self

    def turn(self):
        self.daemon = Daemon(self.data, args=self.args)
        response = self.daemon.turn(QUESTION, conversation=CONVERSATION)
        return check_receipt(response), text_of(response)

    def again_after_restart(self):
        self.daemon.settle()
        self.daemon.kill()
        self.daemon.start()
        return check_receipt(self.daemon.turn("Thank you.", conversation=CONVERSATION))

    def __exit__(self, *_):
        if self.daemon and self.daemon.process.poll() is None:
            self.daemon.kill()
        self.temporary.cleanup()


def segments(data):
    """(first, count, pack file, offset, bytes) of the stored segments, by position."""
    db = sqlite3.connect(os.path.join(data, "kv.db"))
    rows = db.execute("SELECT first, count, pack, offset, bytes FROM segments ORDER BY first").fetchall()
    db.close()
    packs = sorted(f for f in os.listdir(data) if f.startswith("pack-"))
    return [(r[0], r[1], os.path.join(data, next(p for p in packs if int(p[5:]) == r[2])), r[3], r[4]) for r in rows]


def lost(receipt):
    return {x["reason"]: x["tokens"] for x in receipt["reprefilled"]}


def undamaged():
    with Copy() as c:
        receipt, answer = c.turn()
        assert lost(receipt) == {} and answer == ANSWER, (receipt, answer, ANSWER)


def a_flipped_bit_in_the_middle():
    with Copy() as c:
        first, count, pack, offset, size = segments(c.data)[1]
        assert (first, count) == (256, 256)
        with open(pack, "r+b") as f:
            f.seek(offset + size // 2)
            byte = f.read(1)
            f.seek(offset + size // 2)
            f.write(bytes([byte[0] ^ 0x10]))
        receipt, answer = c.turn()
        assert lost(receipt) == {"blob_damaged": 256}, receipt
        assert answer == ANSWER
        assert lost(c.again_after_restart()) == {}, "what was prefilled again is stored again"


def a_damaged_header():
    with Copy() as c:
        _, count, pack, offset, _ = segments(c.data)[0]
        with open(pack, "r+b") as f:
            f.seek(offset)
            f.write(b"\0" * 64)
        receipt, answer = c.turn()
        assert lost(receipt) == {"blob_damaged": count}, receipt
        assert answer == ANSWER


def a_truncated_pack():
    with Copy() as c:
        _, _, pack, offset, size = segments(c.data)[-1]
        os.truncate(pack, offset + size // 3)
        receipt, answer = c.turn()
        assert sum(lost(receipt).values()) > 0 and set(lost(receipt)) <= {"blob_damaged", "blob_missing", "not_saved"}, receipt
        assert answer == ANSWER
        assert lost(c.again_after_restart()) == {}


def missing_packs():
    with Copy() as c:
        for _, _, pack, _, _ in segments(c.data):
            if os.path.exists(pack):
                os.unlink(pack)
        receipt, answer = c.turn()
        assert sum(lost(receipt).values()) == receipt["tokens"]["history"] > 500, receipt
        assert answer == ANSWER
        assert lost(c.again_after_restart()) == {}


def a_missing_index():
    with Copy() as c:
        for name in ("kv.db", "kv.db-wal", "kv.db-shm"):
            if os.path.exists(os.path.join(c.data, name)):
                os.unlink(os.path.join(c.data, name))
        receipt, answer = c.turn()
        assert lost(receipt) == {} and receipt["tokens"]["disk"] == receipt["tokens"]["history"], receipt
        assert answer == ANSWER


def another_kv_type():
    with Copy("--kv-type", "f16") as c:
        receipt, answer = c.turn()
        assert lost(receipt) == {"blob_foreign": receipt["tokens"]["history"]}, receipt
        assert answer
        assert lost(c.again_after_restart()) == {}


def another_kernel_set():
    """What one instruction set wrote, another restores to the same answer."""
    with Copy("--backend", "cpu-avx2") as c:
        receipt, answer = c.turn()
        assert receipt["backend"] == "cpu-avx2" and lost(receipt) == {} and answer == ANSWER, (receipt, answer)


need(QWEN)
with tempfile.TemporaryDirectory() as home:
    PREPARED = os.path.join(home, "data")
    os.mkdir(PREPARED, 0o700)
    d = Daemon(PREPARED)
    CONVERSATION = d.conversation()
    d.turn(STORY, conversation=CONVERSATION)
    d.settle()
    assert d.stop()[0] == 0
    with Copy() as whole:
        _, ANSWER = whole.turn()
    run(
        undamaged,
        a_flipped_bit_in_the_middle,
        a_damaged_header,
        a_truncated_pack,
        missing_packs,
        a_missing_index,
        another_kv_type,
        another_kernel_set,
    )
