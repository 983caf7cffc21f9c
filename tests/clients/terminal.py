"""Running convo for tests: in pipes, and on a terminal (a pty), and what a person sees there."""
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
LIMIT = 60  # seconds for anything; never reached when all is well


def environment(**more):
    kept = {k: v for k, v in os.environ.items() if k not in ("CONVOD_URL", "CONVOD_TOKEN", "NO_COLOR", "TERM")}
    return {**kept, "HOME": tempfile.gettempdir(), "LC_ALL": "C.UTF-8", "TERM": "xterm",
            "CONVO_HISTORY": "", **more}


def run(*arguments, stdin="", limit=LIMIT, **more):
    return subprocess.run([CONVO, *arguments], input=stdin, capture_output=True, encoding="utf-8", errors="surrogateescape",
                          timeout=limit, env=environment(**more))


class Terminal:
    """convo on a pty: type() writes, expect() waits for text on the screen (everything written since the last hit)."""

    def __init__(self, *arguments, program=CONVO, size=(80, 24), **more):
        self.size = size
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
                signal.signal(number, signal.SIG_DFL)  # under nohup, say, they would be ignored
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
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

    def paste(self, text):
        """As a terminal does: marked where the program asked for that."""
        marked = self.text.rfind("\033[?2004h") > self.text.rfind("\033[?2004l")
        self.type(f"\033[200~{text}\033[201~" if marked else text)

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

    def seen(self):
        """All lines that a person sees, or has to scroll back to."""
        return Screen(*self.size).show(self.text)

    def modes(self):
        """Which of ICANON and ECHO the terminal is in."""
        return termios.tcgetattr(self.fd)[3] & (termios.ICANON | termios.ECHO)

    def leave(self):
        """Reads to the end of all that it writes; its exit status."""
        end = time.monotonic() + LIMIT
        while self.read(0.05) and time.monotonic() < end:
            pass
        while self.status is None and time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
            else:
                time.sleep(0.01)
        if self.status is None:
            raise AssertionError(f"it does not end; the screen has {self.text[self.at:]!r}")
        return self.status

    def close(self):
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)


class Screen:
    """A terminal of ASCII and little more: what of its sequences convo uses, wrapping, and scrolling."""

    def __init__(self, columns, rows):
        self.columns, self.rows = columns, rows
        self.lines, self.top, self.row, self.column = [[]], 0, 0, 0  # the cursor's row is one of all lines
        self.strange = []  # sequences that are not convo's

    def newline(self):
        self.row += 1
        if self.row == len(self.lines):
            self.lines.append([])
        self.top = max(self.top, self.row - self.rows + 1)

    def put(self, c):
        if self.column == self.columns:
            self.newline()
            self.column = 0
        line = self.lines[self.row]
        line.extend(" " * (self.column + 1 - len(line)))
        line[self.column] = c
        self.column += 1

    def sequence(self, number, letter):
        at = min(self.column, self.columns - 1)
        if letter == "A":
            self.row, self.column = max(self.row - int(number or 1), self.top), at
        elif letter in "JK" and not number:
            del self.lines[self.row][at:]
            if letter == "J":
                del self.lines[self.row + 1:]
        elif not (letter == "m" and re.fullmatch("(0|1|2|3|4|31|35)(;(1|2|3|4|35))*", number)) and number + letter not in ("?2004h", "?2004l"):
            self.strange.append(number + letter)

    def show(self, text):
        for number, letter, c in re.findall(r"\x1b\[([0-9;?]*)([A-Za-z])|([^\x1b]|\x1b)", text):
            if letter:
                self.sequence(number, letter)
            elif c == "\n":
                self.newline()
            elif c == "\r":
                self.column = 0
            elif c == "\b":
                self.column -= 1
            elif c < " ":
                self.strange.append(c)
            else:
                self.put(c)
        assert not self.strange, self.strange
        return ["".join(line).rstrip() for line in self.lines]
