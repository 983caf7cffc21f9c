#!/usr/bin/env python3
"""Turns that wait, beside a clock that jumps and beside a client that does not read."""

import glob
import os
import sys
import threading
import time

from daemon import QWEN, Daemon, Scratch, need, read_events, run, send, until

FAKETIME = sorted(glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1"))
TALE = "Tell a very long tale of a ferry, a bridge, a lamp and a garden in winter."


def stream(d, body, receive_buffer=0):
    return send(d, {**body, "stream": True, "temperature": 0}, receive_buffer=receive_buffer)


def queue(d):
    return d.ok("GET", "/v1/convod/status")["queue"]


def clock_jumps():
    """The wall's clock goes on three days and back six, while one turn runs and another waits: nobody waits longer, is dropped or
    evicted, and a key stays exact."""
    if not FAKETIME:
        print("# skip: libfaketime is not installed")
        return
    with Scratch() as data:
        clock = os.path.join(data, "..", "clock")

        def jump(to):
            with open(clock + ".new", "w") as f:
                f.write(to)
            os.rename(clock + ".new", clock)

        jump("+0")
        env = {**os.environ, "LD_PRELOAD": FAKETIME[0], "FAKETIME_TIMESTAMP_FILE": clock, "FAKETIME_NO_CACHE": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        d = Daemon(data, args=["--max-running", "1", "--idle-seconds", "3600", "--retain-days", "1"], env=env)
        c, key = d.conversation(), {"Idempotency-Key": "ferry"}
        d.turn("Name a colour.", conversation=c, max_output_tokens=4)
        status, first = d.call("POST", "/v1/responses", {"input": "Name a town.", "max_output_tokens": 4}, key)
        assert status == 200, first
        running = stream(d, {"input": TALE, "max_output_tokens": 4000})  # for as long as is wanted
        seen, said = [], read_events(running)

        def more(n):
            """Reads until n more pieces have come."""
            for e in said:
                seen.append(e)
                n -= e["type"] == "response.output_text.delta"
                if n == 0:
                    return
            raise AssertionError(seen[-1])

        more(1)
        waiting = stream(d, {"input": "Name a river.", "max_output_tokens": 4})
        until(lambda: queue(d)["waiting"] >= 1)
        for to in ("+3d", "-3d"):
            jump(to)
            more(20)
        now = d.ok("POST", "/v1/conversations", {})["created_at"]
        assert abs(now - (time.time() - 3 * 86400)) < 3600, "the clock did not jump"
        more(50)
        assert queue(d)["waiting"] == 1
        assert d.call("POST", f"/v1/responses/{seen[0]['response']['id']}/cancel")[0] == 200
        seen += said
        assert seen[-1]["type"] == "response.incomplete" and seen[-1]["response"]["convod"]["incomplete_reason"] == "cancelled", seen[-1]
        assert list(read_events(waiting))[-1]["type"] in ("response.completed", "response.incomplete")
        again = d.call("POST", "/v1/responses", {"input": "Name a town.", "max_output_tokens": 4}, key)[1]
        assert again["id"] == first["id"], again
        more = d.turn("Another one.", conversation=c, max_output_tokens=4)["convod"]
        assert more["reprefilled"] == [] and more["tokens"]["hot"] > 0, more
        d.stop()


def nobody_reads_who_is_put_aside():
    """A client reads nothing more while its turn gives way to others for want of pages: they end, it is not waited for, its turn
    comes back and ends, and its answer is whole when it is asked for."""
    with Scratch() as data:
        d = Daemon(data, args=["--ctx", "1024", "--kv-bytes", "18M", "--max-running", "4"])
        body = {"max_output_tokens": 480, "convod": {"on_disconnect": "finish"}}
        others = [stream(d, {**body, "input": f"{n}. " + TALE}) for n in range(3)]
        ends, readers = {}, []
        for n, s in enumerate(others):
            readers.append(threading.Thread(target=lambda n=n, s=s: ends.update({n: list(read_events(s))[-1]}), daemon=True))
            readers[-1].start()
        until(lambda: queue(d)["running"] == 3)
        silent = stream(d, {**body, "input": "Silent. " + TALE}, receive_buffer=2048)  # the youngest
        id_of = next(read_events(silent))["response"]["id"]
        for t in readers:
            t.join(300)
        assert len(ends) == 3 and all(e["type"] in ("response.completed", "response.incomplete") for e in ends.values()), ends
        until(lambda: not any(queue(d).values()))
        assert d.ok("GET", "/v1/convod/status")["turns"]["put_aside"] > 0
        answer = d.ok("GET", f"/v1/responses/{id_of}")
        assert answer["status"] in ("completed", "incomplete") and answer["usage"]["output_tokens"] > 100, answer
        silent.close()
        alone = d.turn("Silent. " + TALE, max_output_tokens=480)
        assert [i["content"] for i in alone["output"]] == [i["content"] for i in answer["output"]]
        d.stop()


need(QWEN)
sys.stdout.flush()
run(clock_jumps, nobody_reads_who_is_put_aside)
