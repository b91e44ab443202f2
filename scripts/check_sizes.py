#!/usr/bin/env python3
"""Checks sizes: at most 600 lines a file, 200 a public header, 70 a function, 25 methods and 15 members a class.

usage: scripts/check_sizes.py [ROOT]

It counts the C++ and CUDA files of src/, include/, tests/, bench/, examples/ and python/, and the functions of src/ and
include/. This script does not parse C++: a function is a brace block at namespace or class level whose head has a
parameter list. Its length is the number of lines from the opening to the closing brace.

Classes and structs are counted in src/ and include/. Overloads count as one method. Constructors, destructors,
operators, static data and nested types do not count. A struct without methods is plain data and may have any
number of members.
"""

import re
import sys
from pathlib import Path

from cpp_text import code_only, cpp_files

FILE_LINES = 600
PUBLIC_HEADER_LINES = 200
FUNCTION_LINES = 70
CLASS_METHODS = 25
CLASS_MEMBERS = 15

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
    """The kind of a brace block, by the text before its brace: "scope" (may contain functions), "function" or "other"."""
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


_CLASS = re.compile(r"\b(?:class|struct)\s+((?:[A-Z][A-Z0-9_]{2,}\s*(?:\([^()]*\))?\s+|alignas\s*\([^()]*\)\s*)*)"
                    r"([\w:]+)(?:\s+final)?\s*(?::[^;{}()]*)?\{")
_NOT_A_MEMBER = re.compile(r"^(?:using|typedef|friend|static_assert|enum|class|struct|union|template\s*friend)\b")


def classes(text):
    """(name, line, methods, members) of each class or struct with a body; nested ones by themselves."""
    code = strip_preprocessor(code_only(text))
    for match in _CLASS.finditer(code):
        if re.search(r"\benum\s+$", code[:match.start()]) or re.search(r"[<,]\s*$", code[:match.start()]):
            continue   # enum class; class as the head of a template parameter
        start = match.end() - 1
        name = match.group(2).split("::")[-1]
        methods, members = set(), 0
        for declaration in declarations(code[start + 1:closing(code, start)]):
            method, fields = member_of(declaration, name)
            members += fields
            if method:
                methods.add(method)
        yield match.group(2), code.count("\n", 0, match.start()) + 1, len(methods), members


def declarations(body):
    """The declarations of a class body, without the contents of their braces."""
    text, i = "", 0
    while i < len(body):
        char = body[i]
        if char == "{":
            i = closing(body, i)
            text += "{}"
            after = body[i + 1:].lstrip()[:1]
            # The body of a function ends a declaration; an initialiser or a nested type goes on to its semicolon.
            if "(" in without_templates(text) and after not in (";", ",", "{", ":") and text.count("(") == text.count(")"):
                yield text
                text = ""
        elif char == ";" and text.count("(") == text.count(")"):
            yield text
            text = ""
        else:
            text += char
        i += 1


def without_templates(text):
    """The text without template arguments, attributes, alignments and annotation macros."""
    text = re.sub(r"\[\[.*?\]\]|\balignas\s*\([^()]*\)|\bdecltype\s*\([^()]*\)|\bnoexcept\s*\([^()]*\)", " ", text)
    text = re.sub(r"\b[A-Z][A-Z0-9_]{2,}\s*\((?:[^()]|\([^()]*\))*\)", " ", text)
    text = re.sub(r"->|<=>|<=|>=|<<|>>(?=\s*\()", " ", text)
    while True:
        shorter = re.sub(r"<[^<>]*>", " ", text)
        if shorter == text:
            return text
        text = shorter


def member_of(declaration, class_name):
    """(name of the method or None, number of data members) that a declaration adds to its class."""
    text = re.sub(r"\b(?:public|private|protected)\s*:", " ", declaration)
    text = re.sub(r"^\s*template\b", " ", without_templates(text)).strip()
    text = re.sub(r"^requires\b[^;{]*?(?=\b\w+\s*\()", "", text).strip()
    if not text or _NOT_A_MEMBER.match(text) or "operator" in text:
        return None, 0
    head = re.split(r"=|\{", text, maxsplit=1)[0]
    if re.search(r"\(\s*(?:\w+::)?\*\s*(?:const\s+)?\w+(?:\[\w*\])?\s*\)", head):   # a pointer to a function
        return None, 0 if "static" in head.split() else 1
    called = re.search(r"(~?\w+)\s*\(", head)
    if called:
        special = called.group(1) == class_name or called.group(1).startswith("~")
        return (None if special else called.group(1)), 0
    if "static" in head.split():
        return None, 0
    flat = re.sub(r"\([^()]*\)|\[[^\]]*\]", "", text)
    return None, flat.count(",") + 1


def check(root):
    root = Path(root).resolve()
    faults = []
    for folder in ("src", "include", "tests", "bench", "examples", "python"):
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
                for kind, first, methods, members in classes(text):
                    if methods > CLASS_METHODS:
                        faults.append(f"{name}:{first}: {kind} has {methods} methods; at most {CLASS_METHODS}")
                    if methods > 0 and members > CLASS_MEMBERS:
                        faults.append(f"{name}:{first}: {kind} has {members} members; at most {CLASS_MEMBERS}")
    return faults


def main():
    faults = check(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent)
    for fault in faults:
        print(fault)
    print(f"check_sizes: {len(faults)} fault(s)" if faults else "check_sizes: ok")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
