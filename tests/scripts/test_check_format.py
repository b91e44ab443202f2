"""check_format.sh accepts formatted C++ and refuses the same code laid out otherwise."""

import unittest

from support import ROOT, CheckerTest

STYLE = {".clang-format": (ROOT / ".clang-format").read_text()}


class CheckFormat(CheckerTest):
    checker = "check_format.sh"

    def test_formatted(self):
        self.accepts({**STYLE, "src/a.cpp": "int add(int* a, int b) { return *a + b; }\n"})

    def test_badly_formatted(self):
        self.refuses({**STYLE, "src/a.cpp": "int add(int *a,int b){return *a+b;}\n"}, "src/a.cpp:1:")

    def test_empty_tree(self):
        self.accepts(STYLE)


if __name__ == "__main__":
    unittest.main()
