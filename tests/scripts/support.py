"""Helpers of the checkers' self-tests: a throw-away tree, and a checker run on it."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SKIPPED = 77


class CheckerTest(unittest.TestCase):
    """Derive, set `checker` to a file of scripts/, and call accepts() and refuses()."""

    checker = ""

    def run_on(self, files):
        """Exit status and output of the checker on a tree of {path: text}."""
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                path = Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(text.encode())
            interpreter = [sys.executable, "-B"] if self.checker.endswith(".py") else ["bash"]
            done = subprocess.run([*interpreter, str(ROOT / "scripts" / self.checker), folder],
                                  capture_output=True, text=True, check=False)
            return done.returncode, done.stdout + done.stderr

    def accepts(self, files):
        status, output = self.run_on(files)
        if status == SKIPPED:
            self.skipTest(output)
        self.assertEqual(status, 0, output)

    def refuses(self, files, *expected):
        """The checker fails and its output has each expected text."""
        status, output = self.run_on(files)
        if status == SKIPPED:
            self.skipTest(output)
        self.assertNotEqual(status, 0, f"accepted: {files}")
        for text in expected:
            self.assertIn(text, output)
