"""Reading C++ as text for the checkers: comments and literals blanked, line numbers kept."""

import re
from pathlib import Path

SUFFIXES = {".cpp", ".hpp", ".cu", ".cuh", ".h"}

_TOKEN = re.compile(
    r'//(?:\\\n|[^\n])*'                                     # line comment, also a continued one
    r'|/\*.*?\*/'                                            # block comment
    r'|R"(?P<tag>[^()\\\s]{0,16})\(.*?\)(?P=tag)"'           # raw string
    r'|"(?:\\.|[^"\\\n])*"'                                  # string
    r"|(?<![0-9a-zA-Z_])'(?:\\.|[^'\\\n])+'",                # character, but not 1'000
    re.DOTALL,
)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>)', re.MULTILINE)


def cpp_files(folder):
    """All C++ and CUDA files under a folder, in a fixed order."""
    return sorted(p for p in Path(folder).rglob("*") if p.suffix in SUFFIXES and p.is_file())


def _blank(match):
    text = match.group(0)
    hollow = re.sub(r"[^\n]", " ", text)
    if text[0] in "\"'":
        hollow = text[0] + hollow[1:-1] + text[-1]
    return hollow


def code_only(text):
    """The text with the inside of comments, strings and characters turned into spaces."""
    return _TOKEN.sub(_blank, text)


def includes(text):
    """(line, path, quoted) of each #include outside comments."""
    blanked = re.sub(r"//[^\n]*|/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m.group(0)), text, flags=re.DOTALL)
    for match in _INCLUDE.finditer(blanked):
        line = blanked.count("\n", 0, match.start()) + 1
        yield line, match.group(1) or match.group(2), match.group(1) is not None
