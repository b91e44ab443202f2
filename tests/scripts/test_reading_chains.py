"""The call chains of docs/reading.md are those of the code: every `file:function` is defined in that file, and each
function of a chain names the next one in its body.

A chain is a table below a heading "...: N calls". A row is one call. "as `name`" in a row says that the caller uses
another name: a function pointer or a callback. A row that begins with a double bar continues on another thread.
"""

import re
import unittest

from support import ROOT

PAGE = ROOT / "docs" / "reading.md"
FUNCTION = re.compile(r"`((?:src|include)/[\w/.]+):([\w:~]+)`")
# After the parameters of a definition: qualifiers, a return type, initialisers of members, then the body.
BODY = re.compile(r"\s*(?:const|noexcept|override|final|->\s*[\w:<>&* ]+|\s)*(?::[^;{]*(?:\{[^{}]*\}[^;{]*)*)?\{")


def code_of(path):
    """The text of a source without comments and literals, so that braces and names in them do not count."""
    text = re.sub(r"//[^\n]*", "", path.read_text())
    return re.sub(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', '""', text)


def closing(code, start, pair):
    """The index after the bracket that closes the one at `start`."""
    depth = 0
    for i in range(start, len(code)):
        depth += (code[i] == pair[0]) - (code[i] == pair[1])
        if depth == 0:
            return i + 1
    return len(code)


def bodies_in(code, name, prefix=""):
    """The bodies of all functions, overloads too, whose name is written `name` where they are defined."""
    found = ""
    for match in re.finditer(rf"(?<![\w.>~:]){prefix}{re.escape(name)}\s*\(", code):
        begin = BODY.match(code, closing(code, match.end() - 1, "()"))
        if begin:
            found += code[begin.end() - 1:closing(code, begin.end() - 1, "{}")]
    return found


def bodies_of(code, function):
    """The same for `name` and for `Class::name`, which may be defined inside or outside of its class."""
    *outer, name = function.split("::")
    if not outer:
        return bodies_in(code, name)
    found = bodies_in(code, function, r"(?:\w+::)*")
    for match in re.finditer(rf"\b(?:class|struct)\s+{outer[-1]}\b[^;(]*?\{{", code):
        found += bodies_in(code[match.end():closing(code, match.end() - 1, "{}")], name)
    return found


def chains():
    """(heading, number of calls, rows) of each chain of the page."""
    for section in re.split(r"^## ", PAGE.read_text(), flags=re.M)[1:]:
        count = re.match(r".*: (\d+) calls$", section.splitlines()[0])
        if count:
            yield section.splitlines()[0], int(count[1]), [row for row in section.splitlines() if row.startswith("| ")][2:]


class ReadingChains(unittest.TestCase):
    def test_named_functions_exist(self):
        missing = []
        for file, function in FUNCTION.findall(PAGE.read_text()):
            path = ROOT / file
            if not path.exists() or not bodies_of(code_of(path), function):
                missing.append(f"{file}:{function}")
        self.assertEqual(missing, [])

    def test_there_are_chains(self):
        self.assertGreaterEqual(len(list(chains())), 3)

    def test_each_function_calls_the_next(self):
        for heading, count, rows in chains():
            calls, caller = 0, None
            for row in rows:
                if row.startswith("| ‖"):
                    caller = None
                    continue
                found = FUNCTION.search(row)
                self.assertIsNotNone(found, f"{heading}: no `file:function` in: {row}")
                file, function = found.groups()
                alias = re.search(r"\bas `(\w+)`", row)
                name = alias[1] if alias else function.split("::")[-1]
                if caller:
                    called = re.search(rf"\b{name}\b", caller[1])
                    self.assertIsNotNone(called, f"{heading}: {caller[0]} does not call {name}")
                caller = (function, bodies_of(code_of(ROOT / file), function))
                calls += 1
            self.assertEqual(calls, count, heading)


if __name__ == "__main__":
    unittest.main()
