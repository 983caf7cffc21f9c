#!/usr/bin/env python3
"""convo at a terminal: keys, pastes, signals, what was said before, and how the terminal is left. A stand-in answers."""
import os
import pty
import signal
import sys
import tempfile
import termios
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from case import Case  # noqa: E402
from terminal import CONVO, Terminal, environment  # noqa: E402


class Keys(Case):
    def test_interrupt_drops_the_whole_message(self):
        t = self.terminal()
        for begin in ("secret\\\r", '"""\rsecret\r', "\x1b[200~secret\rand more\x1b[201~"):
            for end in ("", "half a line"):
                t.prompt()
                t.type(begin)
                t.expect(r"(?s)secret.*(\. |more)")
                t.type(end)
                t.expect(end)
                t.type("\x03")
        t.prompt()
        t.type("say x\r")
        t.expect("to first token")
        self.assertEqual([b["input"][0]["content"] for b in self.sent()], ["say x"])

    def test_what_is_typed_during_an_answer_waits_for_the_prompt(self):
        t = self.terminal()
        t.prompt()
        t.type("wait\r")
        t.expect("the first half")
        self.assertEqual(t.modes(), 0)
        t.type("say QXQ")
        self.double.go_on.set()
        t.expect("and the second")
        self.assertEqual(t.expect(r"(?s)^.*?> (\x1b\[K)?").count("Q"), 0)
        t.expect("say QXQ")
        t.type("\r")
        t.expect("to first token")
        self.assertEqual([b["input"][0]["content"] for b in self.sent()], ["wait", "say QXQ"])

    def test_what_is_pasted_during_an_answer_is_one_message(self):
        t = self.terminal()
        t.prompt()
        t.type("wait\r")
        t.expect("the first half")
        t.paste("say one\rtwo\tthree\r")
        self.double.go_on.set()
        t.expect("and the second")
        t.expect("say one.two.three")
        t.type("\x7f\r")
        t.expect("to first token")
        self.assertEqual([b["input"][0]["content"] for b in self.sent()], ["wait", "say one\ntwo\tthree"])

    def test_an_end_during_an_answer_leaves_the_terminal_as_it_was(self):
        for number in (signal.SIGTERM, signal.SIGHUP):
            t = self.terminal()
            t.prompt()
            before = termios.ICANON | termios.ECHO
            t.type("slow\r")
            t.expect("more more")
            self.assertEqual(t.modes(), 0)
            os.kill(t.pid, number)
            self.assertEqual(t.leave(), -number)
            self.assertEqual(t.modes(), before)
            self.assertGreater(t.text.rindex("\033[?2004l"), t.text.rindex("\033[?2004h"))

    def test_history_lasts_and_is_private(self):
        with tempfile.TemporaryDirectory() as folder:
            for keys in ("say remember me\r", "\x1b[A\x1b[A\r"):
                t = self.terminal(CONVO_HISTORY=f"{folder}/said")
                t.prompt()
                t.type(keys)
                t.expect("remember me\r\n")
                t.expect("to first token")
                t.prompt()
                t.type("/quit\r")
                t.leave()
            self.assertEqual((Path(folder) / "said").stat().st_mode & 0o777, 0o600)
        self.assertEqual([b["input"][0]["content"] for b in self.sent()], ["say remember me"] * 2)

    def test_chats_side_by_side_share_a_history(self):
        with tempfile.TemporaryDirectory() as folder:
            said = Path(folder) / "said"
            chats = [self.terminal(CONVO_HISTORY=str(said)) for _ in range(3)]
            for i, t in enumerate(chats):
                t.prompt()
                t.type(f"say number{i}\r")
                t.expect("to first token")
                t.prompt()
            os.kill(chats[2].pid, signal.SIGHUP)  # its window was closed
            chats[2].leave()
            for t in chats[:2]:
                t.type("/quit\r")
                t.leave()
            first, *lines = said.read_text().splitlines()
            self.assertEqual((first, sorted(line[-7:] for line in lines if "number" in line)),
                             ("_HiStOrY_V2_", [f"number{i}" for i in range(3)]))
            t = self.terminal(CONVO_HISTORY=str(said))
            t.prompt()
            t.type("\x1b[A\x1b[A\x1b[A")
            t.expect("say number")

    def test_tab_completes_commands(self):
        t = self.terminal()
        t.prompt()
        for keys, told in (("/rec\t\r", "receipts are on"), ("/re\tce\t\r", "receipts are on"), ("/set\t\r", "temperature the")):
            t.type(keys)
            t.expect(told)
            t.prompt()
        t.type("say a\tb\r")
        t.expect("to first token")
        self.assertEqual(self.sent()[0]["input"][0]["content"], "say ab")

    def test_interrupt_drops_a_line(self):
        t = self.terminal()
        t.prompt()
        t.type("never sent")
        t.expect("never sent")
        t.type("\x03")
        t.prompt()
        t.type("say x\r")
        t.expect("x\r\n")
        t.expect("to first token")
        self.assertEqual([b["input"][0]["content"] for b in self.sent()], ["say x"])

    def test_several_lines_and_pasted_ones(self):
        t = self.terminal()
        t.prompt()
        t.type("one\\\r")
        t.expect(r"\. ")
        t.type("two\r")
        t.expect("you said: one\r\ntwo")
        t.prompt()
        t.type("\033[200~pasted\nlines\tß\033[201~ typed\r")
        t.expect("to first token")
        self.assertEqual([b["input"][0]["content"] for b in self.sent()], ["one\ntwo", "pasted\nlines\tß typed"])

    def test_editing_and_history(self):
        t = self.terminal()
        t.prompt()
        t.type("sax\x7fy hix\x7f\r")
        t.expect("to first token")
        t.prompt()
        t.type("\033[A\r")
        t.expect("to first token")
        t.prompt()
        self.assertEqual([b["input"][0]["content"] for b in self.sent()], ["say hi", "say hi"])

    def test_a_resized_terminal_has_the_line_anew(self):
        t = self.terminal()
        t.prompt()
        t.type("abcde")
        t.expect("abcde")
        t.resize(20)
        t.expect(r"\r\x1b\[J.*> abcde")
        t.type("fghijklmnopqrstu")  # wraps at 20
        t.expect("fghijklmnopqr")
        t.expect("stu")
        t.type("\x01")  # to the start, which is a line up
        t.expect(r"\x1b\[A")
        t.type("say \r")
        t.expect("tok/s")
        self.assertEqual(self.sent()[0]["input"][0]["content"], "say abcdefghijklmnopqrstu")

    def test_stopped_and_continued(self):
        t = Terminal("-mc", f'"{CONVO}" --url {self.double.url}; stty -a | grep -wo -e "-*icanon" -e "-*echo"; fg; echo left: $?',
                     program="/bin/sh")
        self.addCleanup(t.close)
        t.prompt()
        t.type("say ab")
        t.expect("say ab")
        t.type("\x1a")
        t.expect(r"\x1b\[\?2004l.*\n(.*\n)*icanon\r\necho\r\n")
        t.expect(r"\x1b\[\?2004h")
        t.expect("> say ab")
        self.assertEqual(t.modes(), 0)
        t.type("c\r")
        t.expect("to first token")
        t.prompt()
        t.type("/quit\r")
        t.expect("left: 0")
        self.assertEqual(self.sent()[0]["input"][0]["content"], "say abc")

    def test_ctrl_z_where_nobody_could_continue(self):
        t = self.terminal()
        t.prompt()
        t.type("say a")
        t.expect("say a")
        t.type("\x1a")
        t.expect("> say a")
        t.type("b\r")
        t.expect("ab\r\n")

    def test_a_signal_at_the_prompt_ends_it_tidily(self):
        for number in signal.SIGTERM, signal.SIGHUP:
            t = self.terminal()
            t.prompt()
            t.type("say a")
            t.expect("say a")
            self.assertEqual(t.modes(), 0)
            os.kill(t.pid, number)
            self.assertEqual(t.leave(), -number)
            self.assertEqual(t.modes(), termios.ICANON | termios.ECHO)
            self.assertGreater(t.text.rindex("\033[?2004l"), t.text.rindex("\033[?2004h"))

    def test_the_terminal_is_left_as_it_was(self):
        pid, fd = pty.fork()
        if pid == 0:
            os.execve("/bin/sh", ["sh", "-c", f'"{CONVO}" --url {self.double.url}; echo "left: $?"; cat'], environment())
        before = None
        screen = b""
        while b"> " not in screen:
            screen += os.read(fd, 4096)
            before = before or termios.tcgetattr(fd)
        os.write(fd, b"/quit\r")
        while b"left: 0" not in screen:
            screen += os.read(fd, 4096)
        after = termios.tcgetattr(fd)
        os.kill(pid, signal.SIGKILL)
        os.close(fd)
        os.waitpid(pid, 0)
        self.assertEqual([after[i] & (termios.ICANON | termios.ECHO | termios.ISIG) for i in (3,)],
                         [termios.ICANON | termios.ECHO | termios.ISIG])
        self.assertTrue(screen.rindex(b"\033[?2004l") > screen.rindex(b"\033[?2004h"))


if __name__ == "__main__":
    unittest.main()
