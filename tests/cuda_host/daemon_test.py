#!/usr/bin/env python3
"""The daemon on the emulated device: with exact numerics its answers are the CPU's, also after it was killed."""

import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "api"))
BUILD = os.environ.get("BUILD", "build")
os.environ["BUILD"] = os.path.join(BUILD, "cuda_host")
from daemon import BUILD as PROGRAMS  # noqa: E402
from daemon import Daemon, Scratch, check_receipt, read_events, run, send, text_of  # noqa: E402

QUESTIONS = ["Why is the sky blue?", "And at night?", "In a word?"]


def tiny(data):
    path = os.path.join(data, "..", "tiny.gguf")
    subprocess.run([os.path.join(BUILD, "tests", "service", "model"), path], check=True)
    return path


def start(data, *args, env=None):
    return Daemon(data, tiny(data), ["--kv-bytes", "16M", "--ctx", "512", *args], env=env)


def answers(d, between):
    conversation = d.conversation()
    said = []
    for question in QUESTIONS:
        said.append(d.turn(question, conversation=conversation, max_output_tokens=6, temperature=0.8, convod={"seed": 5}))
        between(d)
    return said


def nothing(d):
    pass


def killed(d):
    d.settle()
    d.kill()
    d.start()


def conversation(between, *args):
    with Scratch() as data:
        d = start(data, *args)
        said = answers(d, between)
        d.stop()
        return said


def answers_are_the_cpus():
    want = [text_of(a) for a in conversation(nothing, "--backend", "cpu-portable")]
    exact = ("--backend", "cuda", "--numerics", "exact")
    whole = conversation(nothing, *exact)
    assert [text_of(a) for a in whole] == want
    assert check_receipt(whole[0])["backend"] == "cuda_host"
    restored = conversation(killed, *exact)
    assert [text_of(a) for a in restored] == want
    tokens = check_receipt(restored[-1])["tokens"]
    assert tokens["disk"] > 0 and tokens["hot"] == 0, tokens


def restored_is_the_same_on_the_device():
    whole = conversation(nothing, "--backend", "auto")
    assert check_receipt(whole[0])["backend"] == "cuda_host"
    assert [text_of(a) for a in conversation(killed, "--backend", "auto")] == [text_of(a) for a in whole]


def a_missing_device_is_an_error():
    with Scratch() as data:
        args = ["--model", tiny(data), "--data", data, "--backend", "cuda", "--device", "3", "--check-config"]
        done = subprocess.run([os.path.join(PROGRAMS, "convod"), *args], capture_output=True, text=True, timeout=60)
        assert done.returncode != 0 and "there is no device 3" in done.stderr + done.stdout, done


def a_device_that_vanishes_ends_the_daemon():
    """Its turn fails with the reason, nothing is ready any more, and another process goes on where the last answer was."""
    with Scratch() as data:
        broken = os.path.join(data, "..", "broken")
        d = start(data, "--backend", "cuda", env={**os.environ, "CUDA_HOST_BREAK": broken})
        c = d.conversation()
        before = [d.turn(q, conversation=c, max_output_tokens=6, convod={"seed": 5}) for q in QUESTIONS[:2]]
        d.settle()
        body = {"input": "Go on.", "conversation": c, "max_output_tokens": 400, "temperature": 1, "stream": True,
                "convod": {"seed": 5, "parent": before[-1]["id"]}}
        failed = None
        while not failed:  # an answer may be over before its first piece is seen here; then the next one fails
            answered = os.path.exists(broken)
            for e in read_events(send(d, body)):
                if isinstance(e, dict) and e["type"] == "response.output_text.delta" and not os.path.exists(broken):
                    open(broken, "w").close()
                if isinstance(e, dict) and e["type"] == "response.failed":
                    failed = e["response"]["error"]
            assert failed or not answered, "the device was broken, and answered"
        assert failed and "the device: unspecified launch failure" in failed["message"], failed
        assert d.process.wait(timeout=60) != 0
        assert "the device has failed" in d.read_log()
        os.remove(broken)
        d.start()
        after = d.turn(QUESTIONS[2], conversation=c, max_output_tokens=6, convod={"seed": 5, "parent": before[-1]["id"]})
        tokens = check_receipt(after)["tokens"]
        assert tokens["history"] == tokens["disk"] > 0 and tokens["prefilled"] == tokens["new"], tokens
        d.stop()
        with Scratch() as other:
            d = start(other, "--backend", "cuda")
            c = d.conversation()
            want = [d.turn(q, conversation=c, max_output_tokens=6, convod={"seed": 5}) for q in QUESTIONS]
            d.stop()
        assert [text_of(a) for a in want] == [text_of(a) for a in [*before, after]]


def metrics_of(d):
    status, body = d.call("GET", "/metrics", raw=True)
    assert status == 200
    return body.decode()


def the_device_is_in_status_and_metrics():
    with Scratch() as data:
        d = start(data, "--backend", "cuda")
        while "device" not in (status := d.ok("GET", "/v1/convod/status")):
            time.sleep(0.1)
        assert status["device"] == {"name": "an _emulated_ device", "memory_used_bytes": 1 << 28, "memory_bytes": 1 << 30,
                                    "temperature_celsius": 40, "power_watts": 65.5, "utilization": 0.25}, status
        metrics = metrics_of(d)
        for line in ('convod_gpu_info{name="an _emulated_ device"} 1', "convod_gpu_temperature_celsius 40",
                     "convod_gpu_power_watts 65.5", "convod_gpu_memory_bytes 1073741824"):
            assert "\n" + line + "\n" in metrics, metrics
        d.stop()
    with Scratch() as data:
        d = start(data, "--backend", "cpu-portable")
        assert "device" not in d.ok("GET", "/v1/convod/status")
        assert "convod_gpu" not in metrics_of(d)
        d.stop()


run(answers_are_the_cpus, a_device_that_vanishes_ends_the_daemon, the_device_is_in_status_and_metrics, restored_is_the_same_on_the_device, a_missing_device_is_an_error)
