"""check_text.sh accepts plain text and refuses each thing it forbids, naming file and line."""

import unittest

from support import CheckerTest


class CheckText(CheckerTest):
    checker = "check_text.sh"

    def test_plain(self):
        self.accepts({"src/a.cpp": "x" * 140 + "\n" + "\u00e9" * 140 + "\n", "notes.md": "\ttabs are fine here"})

    def test_long_line(self):
        self.refuses({"src/a.cpp": "ok\n" + "x" * 141 + "\n"}, "src/a.cpp:2:", "140")

    def test_tab(self):
        self.refuses({"src/a.hpp": "a\tb\n"}, "src/a.hpp:1:", "tab")

    def test_trailing_space(self):
        self.refuses({"scripts/a.py": "a \n"}, "scripts/a.py:1:")

    def test_leftover_notes(self):
        for word in ("TO" + "DO", "FIX" + "ME"):
            self.refuses({"src/a.cpp": f"\n// {word}: later\n"}, "src/a.cpp:2:")

    def test_no_newline_at_the_end(self):
        self.refuses({"CMakeLists.txt": "project(x)"}, "CMakeLists.txt", "newline")


if __name__ == "__main__":
    unittest.main()
