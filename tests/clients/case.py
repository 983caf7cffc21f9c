"""A test of convo with a stand-in for the daemon."""
import json
import unittest

from double import Double
from terminal import Terminal, run


class Case(unittest.TestCase):
    def setUp(self):
        self.double = self.start()

    def start(self, **options):
        double = Double(**options)
        self.addCleanup(double.close)
        return double

    def convo(self, *arguments, **more):
        return run("--url", self.double.url, *arguments, **more)

    def terminal(self, *arguments, **more):
        terminal = Terminal("--url", self.double.url, *arguments, **more)
        self.addCleanup(terminal.close)
        return terminal

    def sent(self, kind="response.create"):
        return [b for b in (json.loads(e[3:]) for e in self.double.events if e.startswith("ws ")) if b["type"] == kind]
