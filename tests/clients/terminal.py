"""Running convo for tests: in pipes, and on a terminal (a pty)."""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import tempfile
import termios
import time
from pathlib import Path

CONVO = str(Path(os.environ.get("BUILD", "build")).resolve() / "convo")
LIMIT = 20  # seconds for anything; never reached when all is well


def environment(**more):
    kept = {k: v for k, v in os.environ.items() if k not in ("CONVOD_URL", "CONVOD_TOKEN", "NO_COLOR", "TERM")}
    return {**kept, "HOME": tempfile.gettempdir(), "LC_ALL": "C.UTF-8", "TERM": "xterm",
            "CONVO_HISTORY": "", **more}


def run(*arguments, stdin="", limit=LIMIT, **more):
    return subprocess.run([CONVO, *arguments], input=stdin, capture_output=True, encoding="utf-8", errors="surrogateescape",
                          timeout=limit, env=environment(**more))


class Terminal:
    """convo on a pty: type() writes, expect() waits for text on the screen (everything written since the last hit)."""

    def __init__(self, *arguments, program=CONVO, **more):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(program, [program, *arguments], environment(**more))
        self.text, self.at, self.status = "", 0, None

    def read(self, wait):
        if not select.select([self.fd], [], [], wait)[0]:
            return True
        try:
            piece = os.read(self.fd, 65536)
        except OSError:
            piece = b""
        self.text += piece.decode("utf-8", "replace")
        return bool(piece)

    def type(self, text):
        os.write(self.fd, text.encode())

    def expect(self, wanted, limit=LIMIT):
        end = time.monotonic() + limit
        while time.monotonic() < end:
            found = re.search(wanted, self.text[self.at:])
            if found:
                self.at += found.end()
                return found.group(0)
            if not self.read(0.2):
                break
        raise AssertionError(f"{wanted!r} did not come; the screen has {self.text[self.at:]!r}")

    def prompt(self):
        self.expect(r"> (\x1b\[K)?")

    def resize(self, columns):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def modes(self):
        """Which of ICANON and ECHO the terminal is in."""
        return termios.tcgetattr(self.fd)[3] & (termios.ICANON | termios.ECHO)

    def leave(self):
        end = time.monotonic() + LIMIT
        while self.status is None and time.monotonic() < end:
            self.read(0.05)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        if self.status is None:
            raise AssertionError(f"it does not end; the screen has {self.text[self.at:]!r}")
        return self.status

    def close(self):
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)
