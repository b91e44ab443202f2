#!/usr/bin/env python3
"""Locks: src/ uses only the lock types of base/sync.hpp and base/biased_lock.hpp, and each lock says what it guards.

usage: scripts/check_locks.py [ROOT]

clang's thread-safety analysis (`make tidy`) reports an access without the lock only if an annotation says which lock
is needed. So each lock must be named by an annotation in its file: SLIP_GUARDED_BY, SLIP_REQUIRES, and the like. A lock
that guards no data says so in a comment "guards no data: ..." on its line or the two before.
"""

import re
import sys
from pathlib import Path

from cpp_text import code_only, cpp_files

_STANDARD = re.compile(r"\bstd::(?:(?:recursive_|shared_|timed_)*mutex|condition_variable(?:_any)?|lock_guard|unique_lock"
                       r"|scoped_lock|shared_lock)\b")
_LOCK = re.compile(r"\b(?:base::)?(?:Mutex|ForkMutex|SpinLock|BiasedLock)\s+(\w+);")
_RETURNED = r"\bSLIP_RETURN_CAPABILITY\(\w+\)\s*\{{\s*return {};"
_NAMED = r"\bSLIP_(?:PT_)?(?:GUARDED_BY|REQUIRES|ACQUIRE|RELEASE)\s*\([^()]*(?:\(\)[^()]*)*\b{}\b"


def faults_of(name, text):
    """The faults of one file."""
    code = code_only(text)
    lines = text.splitlines()
    if not name.startswith("src/base/"):
        for match in _STANDARD.finditer(code):
            yield f"{name}:{code.count(chr(10), 0, match.start()) + 1}: {match.group(0)}: use the types of base/sync.hpp"
    for match in _LOCK.finditer(code):
        line = code.count("\n", 0, match.start()) + 1
        if re.search(_NAMED.format(match.group(1)), code) or re.search(_RETURNED.format(match.group(1)), code):
            continue
        if "guards no data:" not in " ".join(lines[max(line - 3, 0):line]).lower():
            yield f"{name}:{line}: no annotation says what {match.group(1)} guards"


def check(root):
    root = Path(root).resolve()
    faults = []
    for path in cpp_files(root / "src"):
        faults += faults_of(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))
    return faults


def main():
    faults = check(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent)
    for fault in faults:
        print(fault)
    print(f"check_locks: {len(faults)} fault(s)" if faults else "check_locks: ok")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
