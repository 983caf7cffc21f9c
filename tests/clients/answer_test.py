#!/usr/bin/env python3
"""What answers look like on a terminal: Markdown laid out while it comes, and words that wrap; against a stand-in for the daemon."""
import base64
import re
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from case import Case  # noqa: E402
from terminal import CONVO, Terminal  # noqa: E402

SAMPLE = """# A *title*

A paragraph with **bold words**, `code`, a [link](http://example.org/a) and so many more words that they need a second line of eighty columns.
Its second line.

## Steps
1. First do this, which is a sentence that is longer than one line of a terminal has room for at once.
2. Then:
   - nested
   - with `code`

     and a second paragraph

   ```sh
   # no heading

   ls -l
   ```

3. Last.

Here it is:
```python
def f(x):

    return x * 2  # ``` is no end of it
```
> A quote that goes on for a while, so that it must be broken into two lines; the second one has its mark, too.

| Name | Average | Notes |
|------|:-------:|-------|
| Quicksort | O(n log n) | in place, not stable; how bad it gets depends on the choice of the pivot |
| Timsort | **O(n)** | stable |

---
[1]: http://example.org/b

The end."""

LAID_OUT = """A title

A paragraph with bold words, code, a link (http://example.org/a) and so many
more words that they need a second line of eighty columns.
Its second line.

Steps
1. First do this, which is a sentence that is longer than one line of a terminal
   has room for at once.
2. Then:
   • nested
   • with code

     and a second paragraph
   ── sh ──────────────────────────────────
   # no heading

   ls -l
   ────────────────────────────────────────

3. Last.

Here it is:
── python ──────────────────────────────
def f(x):

    return x * 2  # ``` is no end of it
────────────────────────────────────────
│ A quote that goes on for a while, so that it must be broken into two lines;
│ the second one has its mark, too.

Name      │  Average   │ Notes
──────────┼────────────┼────────────────────────────────────────────────────────
Quicksort │ O(n log n) │ in place, not stable; how bad it gets depends on the
          │            │ choice of the pivot
Timsort   │    O(n)    │ stable

────────────────────────────────────────
[1]: http://example.org/b

The end.""".split("\n")


class Answers(Case):
    def answer(self, text, pieces=5, size=(80, 24), **more):
        """The lines that `ask` leaves on a terminal."""
        t = Terminal("--url", self.double.url, "ask", f"pieces {pieces} {text}", size=size, **more)
        self.addCleanup(t.close)
        self.assertEqual(t.leave(), 0)
        self.raw = t.text
        return t.seen()[:-1]

    def test_markdown_is_laid_out_the_same_however_it_comes(self):
        for pieces in 1, 4, 50, 100000:
            self.assertEqual(self.answer(SAMPLE, pieces), LAID_OUT, pieces)
        for size in (33, 12), (200, 60):
            at_once = self.answer(SAMPLE, 100000, size)
            self.assertEqual(self.answer(SAMPLE, 3, size), at_once)
            self.assertLessEqual(max(map(len, at_once)), size[0])
            self.assertEqual("".join(self.answer(SAMPLE, 3, size, NO_COLOR="1")).replace(" ", ""), SAMPLE.replace(" ", "").replace("\n", ""))

    def test_text_appears_as_it_comes(self):
        t = self.terminal()
        t.prompt()
        t.type("halt one **two** three\r")
        t.expect(r"three\r\n(.*\r)*.*two.*three")
        self.assertEqual(t.seen()[-1], "one two three")
        self.double.go_on.set()
        t.expect("to first token")
        self.assertIn("one two three and the rest", t.seen())

    def test_styles(self):
        self.answer("# a\n**b** *c* `d`")
        self.assertIn("\x1b[0;1;4ma\x1b[0m\r\n", self.raw)
        for styled in "0;1mb", "0;3mc", "0;35md":
            self.assertIn(f"\x1b[{styled}\x1b[0m", self.raw)
        self.answer("*c*", TERM="linux")
        self.assertIn("\x1b[0;4mc\x1b[0m", self.raw)

    def test_where_it_is_off(self):
        text = "# a **b**\n- `c`"
        for off in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
            self.assertEqual(self.answer(text, **off), text.split("\n"))
            self.assertNotIn("\x1b[0", self.raw)
        self.assertEqual(self.convo("ask", "say " + text).stdout, text + "\n")
        self.assertEqual(self.convo("ask", "--markdown", "say " + text).stdout, text + "\n")
        t = self.terminal("--no-markdown")
        t.prompt()
        t.type("say **x**\r")
        t.expect(r"\*\*x\*\*\r\n")
        t.prompt()
        t.type("/set markdown on\r")
        t.expect("markdown on")
        t.type("say **y**\r")
        t.expect(r"1my\x1b")
        t.prompt()
        t.type("/set markdown maybe\r")
        t.expect("markdown on or off")
        t.type("/set markdown off\r")
        t.expect("markdown off")
        t.type("say **z**\r")
        t.expect(r"\*\*z\*\*\r\n")

    def test_asked_for_without_colours(self):
        t = self.terminal("--markdown", NO_COLOR="1")
        t.prompt()
        t.type("say # **a** `b`\r")
        t.expect("a `b`\r\n")
        t.prompt()
        self.assertNotRegex(t.text, r"\x1b\[[0-9;]*m")

    def test_nothing_of_an_answer_steers_the_terminal(self):
        evil = "\x1b[2J\x1b]0;x\x07\x9b31m\r\b"
        for form in "{}", "# {}", "`{}`", "```{}\n{}\n```", "[{}](<{}>)", "| {} |\n|--|\n| {} |", "- {}", "[{}]: {}", "&#27;[2J&#x1b;[2J{}":
            for pieces in 1, 1000:
                self.answer(form.format(evil, evil), pieces)  # seen() asserts that only convo's own sequences are there
                self.assertNotIn("\x07", self.raw)

    def test_words_wrap_without_markdown(self):
        words = "some words that go on and on " * 9 + "*"
        lines = self.answer(words + "\n\n\tx\n" + "a" * 100, NO_COLOR="1")
        self.assertEqual(" ".join(lines[:-4]), words)
        self.assertLessEqual(max(map(len, lines)), 80)
        self.assertEqual(lines[-4:], ["", "        x", "a" * 80, "a" * 20])
        self.assertEqual(self.convo("ask", "say " + words).stdout, words + "\n")

    def test_remarks_and_show_wrap(self):
        long = "word " * 30
        self.convo("ask", "--keep", "say " + long + "**b**")
        (id,) = self.double.conversations
        t = Terminal("--url", self.double.url, "show", id)
        self.addCleanup(t.close)
        self.assertEqual(t.leave(), 0)
        self.assertLessEqual(max(map(len, t.seen())), 80)
        self.assertEqual(t.seen()[1:3], ["> say" + " word" * 15, "word " * 15 + "**b**"])
        self.assertEqual(t.seen()[-2], ("word " * 14 + "b").rstrip())
        self.assertIn("say " + long + "**b**\n", self.convo("show", id).stdout)
        t = self.terminal(size=(40, 12))
        t.prompt()
        t.type("say x\r")
        t.expect("tok/s")
        t.prompt()
        self.assertIn("812 tokens kept (hot), 23 prefilled ·", t.seen())
        r = self.convo("ask", "--receipt", "say x", COLUMNS="20")
        self.assertEqual(r.stderr.count("\n"), 1)

    def test_a_table_taller_than_the_screen(self):
        rows = [f"| {i} | {'w' * (i % 7)} |" for i in range(60)]
        lines = self.answer("| n | w |\n|---|---|\n" + "\n".join(rows) + "\n| 60 | a cell of many words |", 4, (20, 10))
        cells = [tuple(c.strip() for c in line.split("│")) for line in lines]
        for i in range(60):
            self.assertEqual(cells.count((str(i), "w" * (i % 7))), 1, (i, lines))
        self.assertEqual("".join(c[1] for c in cells[cells.index(("60", "a cell")):]).replace(" ", ""), "acellofmanywords")

    def test_huge_answers(self):
        paragraph = "word " * 20000
        self.assertEqual(" ".join(self.answer(paragraph + "end", 1000)), paragraph + "end")
        t = Terminal("--url", self.double.url, "ask", "code 30000")
        self.addCleanup(t.close)
        self.assertEqual(t.leave(), 0)
        self.assertEqual(t.seen()[1:-2], [f"line {i}" for i in range(30000)])
        self.answer(">" * 3000 + "- " * 3000 + "[" * 3000 + "*" * 3000, 1000)

    def test_stopped_in_the_middle(self):
        t = self.terminal()
        t.prompt()
        t.type("halt - an **item\r")
        t.expect("• an.*item")
        t.type("\x03")
        t.expect("stopped")
        t.prompt()
        self.assertEqual([line for line in t.seen() if "item" in line], ["> halt - an **item", "• an **item"])

    def test_a_resize_in_the_middle(self):
        t = self.terminal()
        t.prompt()
        t.type("halt " + "word " * 20 + "\r")
        t.expect("K(word ){15}word\r\n(word ){3}word")
        before = len(t.text)
        t.resize(40)
        self.double.go_on.set()
        t.expect("the rest\r\n")
        # The two lines were written over, and are four now.
        lines = t.text[before:t.text.index("and the rest")].split("\r\n")
        self.assertRegex(lines[0], r"^\r\x1b\[1A\x1b\[K(word ?){8}$")
        self.assertEqual([line.count("word") for line in lines], [8, 8, 4])

    def test_a_status_in_the_middle_hides_nothing(self):
        t = Terminal("--url", self.double.url, "ask", "--keep", "drop")
        self.addCleanup(t.close)
        self.assertEqual(t.leave(), 0)
        self.assertIn("the connection broke", t.text)
        self.assertIn("the first half and the second", t.seen())

    def test_stopped_by_the_shell_and_continued(self):
        t = Terminal("-mc", f'"{CONVO}" --url {self.double.url} ask "halt **some** text"; echo; echo stopped it; fg; echo left: $?',
                     program="/bin/sh")
        self.addCleanup(t.close)
        t.expect("text")
        t.type("\x1a")
        t.expect("stopped it\r\n")
        self.double.go_on.set()
        t.expect("left: 0")
        self.assertIn("some text and the rest", t.seen())
        self.assertIn("stopped it", t.seen())

    def test_copy_and_save_take_what_the_model_said(self):
        text = "# a **b**\n\n- `c`"
        t = self.terminal()
        t.prompt()
        t.type("\x1b[200~say " + text + "\x1b[201~\r")
        t.expect("to first token")
        t.prompt()
        t.type("/copy\r")
        t.expect(re.escape("\x1b]52;c;" + base64.b64encode(text.encode()).decode() + "\x07"))
        with tempfile.TemporaryDirectory() as folder:
            t.prompt()
            t.type(f"/save {folder}/x\r")
            t.expect("saved in")
            self.assertEqual((Path(folder) / "x").read_text(), text + "\n")

    def test_keys_pressed_meanwhile_are_not_in_the_answer(self):
        t = Terminal("--url", self.double.url, "ask", "halt text")
        self.addCleanup(t.close)
        t.expect("text")
        t.type("QXQ\r")
        self.double.go_on.set()
        self.assertEqual(t.leave(), 0)
        self.assertEqual(t.seen()[0], "text and the rest")


if __name__ == "__main__":
    unittest.main()
