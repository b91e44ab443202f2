#!/usr/bin/env python3
"""Sizes: files of at most 600 lines, public headers of 200, functions of 70.

usage: scripts/check_sizes.py [ROOT]

Files are counted in src/, include/, tests/, bench/ and examples/; functions in src/ and include/. There is
no C++ parser here: a function is a brace block at namespace or class level whose head has a parameter
list. Counted are the lines from its opening to its closing brace.
"""

import re
import sys
from pathlib import Path

from cpp_text import code_only, cpp_files

FILE_LINES = 600
PUBLIC_HEADER_LINES = 200
FUNCTION_LINES = 70

_SCOPE = re.compile(r"^(?:inline\s+)?(?:namespace|class|struct|union|enum)\b|^extern\s*\"")
_FUNCTION_END = re.compile(r"\)\s*(?:const|noexcept|override|final|mutable|try|&|\s|->.*|\w+\(.*\))*$", re.DOTALL)


def strip_preprocessor(code):
    """Blanks preprocessor lines, with their continuations."""
    return re.sub(r"^[ \t]*#(?:\\\n|[^\n])*", lambda m: re.sub(r"[^\n]", " ", m.group(0)), code, flags=re.MULTILINE)


def closing(code, start):
    """Index of the brace that closes the one at start, or the end of the text."""
    depth = 0
    for match in re.compile(r"[{}]").finditer(code, start):
        depth += 1 if match.group(0) == "{" else -1
        if depth == 0:
            return match.start()
    return len(code) - 1


def head_kind(head):
    """scope (descend), function, or other (skip), by the text before an opening brace."""
    head = re.sub(r"^(?:public|private|protected)\s*:", "", head.strip()).strip()
    head = re.sub(r"^(?:template\s*<[^{}]*?>\s*(?:requires\s+[^{}]*?)?)+(?=\b(?:class|struct|union)\b)", "", head)
    if _SCOPE.match(head) and not _FUNCTION_END.search(head):
        return "scope"
    return "function" if "(" in head else "other"


def functions(text):
    """(name, first line, lines) of each function body."""
    code = strip_preprocessor(code_only(text))
    head, parens, i = "", 0, 0
    while i < len(code):
        char = code[i]
        if char == "{":
            kind = "other" if parens > 0 else head_kind(head)
            if kind == "scope":
                head = ""
            else:
                end = closing(code, i)
                after = code[end + 1:].lstrip()[:1]
                if parens > 0 or after in (",", "{"):   # an initialiser inside a head: the head goes on
                    head += "{}"
                else:
                    if kind == "function":
                        yield name_of(head), code.count("\n", 0, i) + 1, code.count("\n", i, end) + 1
                    head = ""
                i = end
        elif char in ";}" and parens <= 0:
            head, parens = "", 0
        else:
            parens += (char == "(") - (char == ")")
            head += char
        i += 1


def name_of(head):
    match = re.search(r"([\w:~]+|operator\s*\S+)\s*\(", head)
    return match.group(1) if match else "function"


def check(root):
    root = Path(root).resolve()
    faults = []
    for folder in ("src", "include", "tests", "bench", "examples"):
        for path in cpp_files(root / folder):
            name = path.relative_to(root).as_posix()
            text = path.read_text(encoding="utf-8")
            lines = text.count("\n") + (not text.endswith("\n"))
            limit = PUBLIC_HEADER_LINES if name.startswith("include/slip/") else FILE_LINES
            if lines > limit:
                faults.append(f"{name}:{limit + 1}: file has {lines} lines; at most {limit}")
            if folder in ("src", "include"):
                for function, first, length in functions(text):
                    if length > FUNCTION_LINES:
                        faults.append(f"{name}:{first}: {function}() has {length} lines; at most {FUNCTION_LINES}")
    return faults


def main():
    faults = check(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent)
    for fault in faults:
        print(fault)
    print(f"check_sizes: {len(faults)} fault(s)" if faults else "check_sizes: ok")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
