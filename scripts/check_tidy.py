#!/usr/bin/env python3
"""clang-tidy (.clang-tidy) and the thread-safety analysis of clang over src/; every finding is an error.

usage: scripts/check_tidy.py [PATH...]       the sources below these paths; without PATH all of src/
       scripts/check_tidy.py --since COMMIT  the sources that changed since this commit, or whose header of the same name did

clang-tidy spends nearly all of its time on the headers that a source includes. So sources are checked in groups, each group
as one translation unit. Sources whose local names (anonymous namespaces, macros) collide are put into different groups. A
group that does not compile is split in two and checked again, so a collision that the grouping missed costs time and
changes no result. A source that does not compile by itself is a finding, too.
"""

import concurrent.futures
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from check_sizes import closing, strip_preprocessor
from cpp_text import code_only

GROUP_LINES = 4000   # the maximum of a group: larger ones need more than 1 GB of memory and load the cores unevenly
CUDA_PATH = re.compile(r"/cuda(_[a-z0-9_]+)?[/.]")   # as in cmake/cuda.cmake
ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build/tidy"


def local_names(text):
    """The names that a source declares in anonymous namespaces, and its macros."""
    names = set(re.findall(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", text, re.MULTILINE))
    code = strip_preprocessor(code_only(text))
    for match in re.finditer(r"\bnamespace\s*\{", code):
        names |= declared(code[match.end():closing(code, match.end() - 1)])
    return names


def declared(body):
    """The names of the declarations of a namespace, at its own level."""
    names, head, i = set(), "", 0
    while i < len(body):
        if body[i] == "{":
            names.add(name_of(head))
            i, head = closing(body, i), ""
        elif body[i] == ";":
            names.add(name_of(head))
            head = ""
        else:
            head += body[i]
        i += 1
    return names - {""}


def name_of(head):
    """The name that a declaration introduces, by its text before a brace or semicolon."""
    head = re.sub(r"\[\[.*?\]\]|\b(?:alignas|requires|decltype)\s*\([^()]*\)", " ", head)
    while head != (shorter := re.sub(r"<[^<>]*>", " ", head)):
        head = shorter
    kind = re.search(r"\b(?:class|struct|union|enum|using)\s+(?:class\s+)?(\w+)", head)
    name = kind or re.search(r"(\w+)\s*\(", head) or re.search(r"(\w+)\s*(?:\[[^\]]*\]\s*)*(?:=.*)?$", head.strip(), re.DOTALL)
    return name.group(1) if name else ""


def groups_of(sources):
    """Lists of sources that can be compiled as one."""
    groups = []   # [lines, names, sources]
    for source in sources:
        text = source.read_text(encoding="utf-8")
        lines, names = text.count("\n"), local_names(text)
        for group in groups:
            if group[0] + lines <= GROUP_LINES and not group[1] & names:
                break
        else:
            group = [0, set(), []]
            groups.append(group)
        group[0] += lines
        group[1] |= names
        group[2].append(source)
    return [group[2] for group in sorted(groups, key=lambda group: -group[0])]


def compile_flags():
    """The union of the flags of all sources of src/. Macros that only some of them need do not change the others."""
    subprocess.run(["cmake", "--preset", "tidy", "--log-level=WARNING"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    flags = {}
    for entry in json.loads((WORK / "compile_commands.json").read_text()):
        if not entry["file"].startswith(f"{ROOT}/src/"):
            continue
        words = iter(shlex.split(entry["command"]))
        for word in words:
            if word == "-isystem":
                flags[f"-isystem{next(words)}"] = None
            elif re.match(r"-D|-I|-W|-std=|-march=|-f(?:PIC|no-semantic)", word) and word != "-Werror":
                flags[word] = None
    return list(flags)


def cuda_flags():
    """The flags for the headers of CUDA; empty if this machine has none, then the host code for GPUs is not checked."""
    for folder in (os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", ""), "/usr/local/cuda"):
        if folder and Path(folder, "include/cuda_runtime_api.h").exists():
            return [f"-isystem{folder}/include", "-DSLIP_HAS_CUDA=1"]
    return []


def is_broken(output, status):
    """Whether clang-tidy could not compile the source, or crashed."""
    return "[clang-diagnostic-error" in output or (status != 0 and "error:" not in output)


def findings_of(output):
    """The findings of an output: each begins with file:line:column; its code and its notes follow."""
    parts = re.split(r"^(?=/\S+:\d+:\d+: (?:error|warning): )", output, flags=re.MULTILINE)
    return [part.replace(f"{ROOT}/", "").strip() for part in parts if part.strip()]


def run(number, sources, flags):
    """(output of clang-tidy, whether the group is broken) for one group."""
    unit = WORK / f"groups/{number}.cpp"
    unit.write_text("".join(f'#include "{source}"\n' for source in sources))
    command = ["clang-tidy", "--quiet", f"--config-file={ROOT}/.clang-tidy", str(unit), "--", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    broken = is_broken(done.stdout, done.returncode)
    output = done.stdout + (done.stderr if broken else "")
    if broken and not output.strip():   # killed by a signal, for example for memory: without a line there is no finding
        output = f"{sources[0]}: clang-tidy ended with status {done.returncode} and printed nothing\n"
    return output, broken


def check(groups, flags):
    """The findings of all groups, each once: a header is in many groups."""
    findings, count = {}, 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        waiting = {}

        def start(group):
            nonlocal count
            count += 1
            waiting[pool.submit(run, count, group, flags)] = group

        for group in groups:
            start(group)
        while waiting:
            done, _ = concurrent.futures.wait(waiting, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in done:
                group, (output, broken) = waiting.pop(future), future.result()
                if broken and len(group) > 1:
                    start(group[::2])
                    start(group[1::2])
                else:
                    findings.update(dict.fromkeys(findings_of(output)))
    return list(findings)


def changed_since(commit):
    """The sources of src/ that changed since the commit, or whose header of the same name did."""
    command = ["git", "diff", "--name-only", "--diff-filter=d", commit, "--", "src"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    sources = {ROOT / re.sub(r"\.hpp$", ".cpp", name) for name in names}
    return sorted(source for source in sources if source.suffix == ".cpp" and source.exists())


def main():
    if sys.argv[1:2] == ["--since"] and len(sys.argv) == 3:
        paths = changed_since(sys.argv[2])
        if not paths:
            print(f"check_tidy: ok, no source changed since {sys.argv[2]}")
            return 0
    else:
        paths = [Path(path).resolve() for path in sys.argv[1:]] or [ROOT / "src"]
    subprocess.run([ROOT / "scripts/setup.sh", "tidy"], check=True)
    flags, cuda = compile_flags(), cuda_flags()
    sources = sorted(p for path in paths for p in ([path] if path.is_file() else path.rglob("*.cpp")))
    if not cuda:
        sources = [p for p in sources if not CUDA_PATH.search(p.relative_to(ROOT).as_posix())]
    (WORK / "groups").mkdir(exist_ok=True)
    groups = groups_of(sources)
    findings = check(groups, flags + cuda)
    print("\n".join(findings))
    print(f"check_tidy: {len(findings)} finding(s)" if findings else f"check_tidy: ok, {len(sources)} sources in {len(groups)} groups")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
