#!/usr/bin/env python3
"""Checks that no two files of one program define a type of the same qualified name, and that a header of src/ROOM/ puts
its types into the namespace slip::ROOM, so that folders cannot collide.

usage: scripts/check_odr.py [ROOT]

Two such types break the one-definition rule of C++: the linker keeps the inline functions of one of them for both, and
reports nothing. The programs are the library with the slip program, and with each folder of tests/ and bench/. Types in
anonymous namespaces and in functions belong to their file and are not compared. This script does not parse C++. `make odr`
uses the compiler, which finds more and takes minutes.
"""

import re
import sys
from pathlib import Path

from check_sizes import closing, strip_preprocessor
from cpp_text import code_only, cpp_files

_NAMESPACE = re.compile(r"(?:inline\s+)?namespace(?:\s+([\w:]+))?\s*$")
_TYPE = re.compile(r"(?:^|[\s>])(?:class|struct|union|enum(?:\s+(?:class|struct))?)\s+"
                   r"(?:[A-Z][A-Z0-9_]{2,}\s*(?:\([^()]*\))?\s+|alignas\s*\([^()]*\)\s*|\[\[[^\]]*\]\]\s*)*"
                   r"([\w:]+)(?:\s+final)?\s*(?::(?!:)[^;{}]*)?$", re.DOTALL)


def types(text):
    """(qualified name, line) of each type with a body at namespace or class level."""
    code = strip_preprocessor(code_only(text))
    scopes, head, i = [], "", 0   # scopes: names, None for an anonymous namespace
    while i < len(code):
        char = code[i]
        if char == "{":
            scope = head.strip()
            space, kind = _NAMESPACE.search(scope), _TYPE.search(scope)
            if space:
                scopes.append(space.group(1))
            elif kind and not re.search(r"\)\s*$|=\s*$", scope):
                scopes.append(kind.group(1))
                if None not in scopes:
                    yield "::".join(scopes), code.count("\n", 0, i) + 1
            else:
                i = closing(code, i)   # a function or an initialiser
            head = ""
        elif char == "}":
            if scopes:
                scopes.pop()
            head = ""
        elif char == ";":
            head = ""
        else:
            head += char
        i += 1


def programs(root):
    """(name, folders) of each program. The first one is the library, which is part of all others."""
    yield "the library", ["include", "src"]
    for kind in ("tests", "bench"):
        for folder in sorted(p for p in (root / kind).glob("*") if p.is_dir() and p.name not in ("support", "consumer")):
            yield f"{kind}/{folder.name}", [f"{kind}/support", f"{kind}/{folder.name}"]


def in_own_namespace(name, kind, public):
    """Whether the type of a header of src/ is in the namespace of its folder, in a public type, or in a C interface."""
    room, parts = name.split("/")[1], kind.split("::")
    return len(parts) == 1 or parts[1] == room or (room, parts[1]) == ("backend", "sim") or "::".join(parts[:2]) in public


def check(root):
    root = Path(root).resolve()
    library, faults = {}, []
    for program, folders in programs(root):
        found = dict(library)
        for folder in folders:
            public = set(found)   # while src is read: the types of include
            for path in cpp_files(root / folder):
                name = path.relative_to(root).as_posix()
                for kind, line in types(path.read_text(encoding="utf-8")):
                    other = found.setdefault(kind, (name, line))
                    if folder == "src" and name.endswith(".hpp") and not in_own_namespace(name, kind, public):
                        faults.append(f"{name}:{line}: {kind} belongs into the namespace slip::{name.split('/')[1]}")
                    # Each fuzz program and each peer is a single file.
                    if other[0] != name and not re.match(r"tests/fuzz/|bench/peers/", name):
                        faults.append(f"{name}:{line}: {kind} is defined in {other[0]}:{other[1]}, too")
        if program == "the library":
            library = found
    return sorted(set(faults))


def main():
    faults = check(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent)
    for fault in faults:
        print(fault)
    print(f"check_odr: {len(faults)} fault(s)" if faults else "check_odr: ok")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
