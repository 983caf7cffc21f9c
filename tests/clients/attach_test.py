#!/usr/bin/env python3
"""Files that go with a message: convo against a stand-in for the daemon."""
import os
import re
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from case import Case  # noqa: E402


class Attached(Case):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        for name, text in (("notes.txt", "one\ntwo\n"), ("a file.md", "```c\nx\n```\n````\nno newline"), ("übung", "grüße"), ("empty", ""),
                           (".hidden", "h"), ("binary", b"\x89PNG\0\1"), ("latin", b"gr\xfc\xdfe"), ("control\x1b", "c"), (b"raw\xfc", "r")):
            with open(os.path.join(self.folder.encode(), name if isinstance(name, bytes) else name.encode()), "wb") as f:
                f.write(text if isinstance(text, bytes) else text.encode())
        os.mkdir(f"{self.folder}/folder")
        os.mkfifo(f"{self.folder}/fifo")
        with open(f"{self.folder}/large", "w") as f:
            f.truncate((16 << 20) + 1)

    def said(self):
        return [b["input"][0]["content"] for b in self.sent()]

    def test_ask(self):
        notes, other = f"{self.folder}/notes.txt", f"{self.folder}/a file.md"
        self.assertEqual(self.convo("ask", "--keep", "--file", notes, "-f", other, "look:").returncode, 0)
        self.assertEqual(self.said(), ["look:\n\nnotes.txt:\n```\none\ntwo\n```\n\na file.md:\n`````\n```c\nx\n```\n````\nno newline\n`````"])
        self.assertEqual([c["title"] for c in self.double.conversations.values()], ["look:"])
        self.convo("ask", "-f", os.path.relpath(notes), "hi", stdin="")
        self.assertEqual(self.said()[1], f"hi\n\n{os.path.relpath(notes)}:\n```\none\ntwo\n```")
        self.convo("ask", "-f", notes, stdin="from a pipe\n")
        self.assertEqual(self.said()[2], "from a pipe\n\nnotes.txt:\n```\none\ntwo\n```")

    def test_what_cannot_go_is_refused_in_words(self):
        for name, told in (("none", "No such file or directory"), ("folder", "is a folder, not a file"), ("fifo", "is no regular file"),
                           ("large", "is larger than the 16 MiB that the daemon takes"), ("empty", "is empty"),
                           ("binary", "is no text file: it has a NUL byte at offset 4"),
                           ("latin", "is not UTF-8: byte 0xfc at offset 2; convert it")):
            r = self.convo("ask", "-f", f"{self.folder}/{name}", "hi")
            self.assertEqual((r.returncode, r.stdout), (1, ""))
            self.assertRegex(r.stderr, f"^convo: {re.escape(self.folder)}/{name}:? {re.escape(told)}")
        self.assertEqual(self.double.events, [])
        half = Path(self.folder) / "half"
        half.write_text("x" * (9 << 20))
        r = self.convo("ask", "-f", half, "-f", half, "hi")
        self.assertEqual(r.returncode, 1)
        self.assertIn("too large to go with the others", r.stderr)

    def test_chat(self):
        t = self.terminal("--file", f"{self.folder}/übung", HOME=self.folder)
        t.prompt()
        t.type("/attach ~/notes.txt\r")
        t.expect(r"next message: übung\s\(7\sbytes\),\s+notes.txt\s\(8\sbytes\)")
        t.prompt()
        t.type("/attach ~/binary\r")
        t.expect("is no text file")
        t.prompt()
        t.type("refuse it\r")
        t.expect("that cannot be")
        t.expect("still attached: ")
        t.prompt()
        t.type("see\r")
        t.expect("tok/s")
        self.assertEqual(self.said()[-1], "see\n\nübung:\n```\ngrüße\n```\n\nnotes.txt:\n```\none\ntwo\n```")
        t.prompt()
        t.type("say more\r")
        t.expect("tok/s")
        t.prompt()
        t.type(f"/attach '{self.folder}/a file.md' \r")
        t.expect(r"\(\d+\sbytes\)")
        t.prompt()
        t.type("/attach -\r")
        t.expect("nothing is attached")
        t.prompt()
        t.type("say again\r")
        t.expect("tok/s")
        self.assertEqual(self.said()[-2:], ["say more", "say again"])

    def test_a_long_file_does_not_fill_the_screen_of_who_goes_on(self):
        lines = Path(self.folder) / "lines"
        lines.write_text("".join(f"line {i}\n" for i in range(50)))
        self.convo("ask", "--keep", "-f", lines, "say hi")
        (id,) = self.double.conversations
        t = self.terminal("resume")
        t.prompt()
        t.expect("line 7\r\n")
        t.expect("and 43 more lines")
        t.prompt()
        self.assertNotIn("line 8\r\n", t.text[:t.text.index("more lines")])
        t.type("/show\r")
        t.expect("line 49\r\n")
        self.assertIn("line 49\n```\nassistant: hi", self.convo("show", id).stdout)

    def test_tab_completes_names(self):
        t = self.terminal(HOME=self.folder)
        t.prompt()
        for typed, told in (("/att\tno\t", "nothing"), ("~/n\t", "otes.txt"), (self.folder + "/a\t", "file.md"), ("~/\u00fc\t", "bung")):
            t.type(typed if typed.startswith("/att") else "/attach " + typed)
            if told == "nothing":
                t.expect("ach no")
                t.type("\x03")
            else:
                t.expect(re.escape(told))
                t.type("\r")
                t.expect("attached to your next message")
            t.prompt()
        t.type("/attach ~/\t")
        t.expect(r"\r\n")
        t.expect("a file.md  binary  empty  fifo  folder/  large")
        t.expect(r"/attach ~/")
        self.assertNotIn(".hidden", t.text)
        self.assertNotIn("control", t.text)
        self.assertNotIn("raw", t.text)
        t.type(".\t\x01\x0b/re\t")
        t.expect("receipt  regenerate  rename  resume")
        t.expect("> /re")

    def test_a_folder_goes_on(self):
        (Path(self.folder) / "folder" / "within.txt").write_text("w")
        t = self.terminal(HOME=self.folder)
        t.prompt()
        t.type("/attach ~/fol\t\t\r")
        t.expect(r"within.txt\s\(1\sbytes\)")


if __name__ == "__main__":
    unittest.main()
