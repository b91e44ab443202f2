"""check_tidy.py: the groups of sources that it checks as one, and its findings, with scripts in the place of clang-tidy."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from support import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
import check_tidy  # noqa: E402

SOURCE = """// struct Comment {};
#define LIMIT 3
namespace slip {
namespace {
constexpr std::array<int, 2> kTable[] = {{1, 2}};
std::atomic<int> g_count{0};
template <class T>
struct Local final : Base<T> {
  int member = 0;
};
enum class Kind { kOne };
using Map = std::map<int, std::string>;
[[nodiscard]] std::vector<int> helper(const Map& map) { int inner = 0; return {inner}; }
}  // namespace
void visible() {}
}  // namespace slip
"""


class LocalNames(unittest.TestCase):
    def test_names_of_anonymous_namespaces_and_macros(self):
        self.assertEqual(check_tidy.local_names(SOURCE), {"LIMIT", "kTable", "g_count", "Local", "Kind", "Map", "helper"})

    def test_several_anonymous_namespaces(self):
        text = "namespace {\nint a;\n}\nnamespace slip {\nnamespace {\nint b;\n}\n}\n"
        self.assertEqual(check_tidy.local_names(text), {"a", "b"})


class Groups(unittest.TestCase):
    def groups(self, texts):
        with tempfile.TemporaryDirectory() as folder:
            sources = []
            for number, text in enumerate(texts):
                sources.append(Path(folder, f"{number}.cpp"))
                sources[-1].write_text(text)
            found = check_tidy.groups_of(sources)
            self.assertEqual(sorted(source for group in found for source in group), sources)
            return sorted(sorted(int(source.stem) for source in group) for group in found)

    def test_sources_with_a_common_name_are_apart(self):
        one, two = "namespace {\nvoid same() {}\n}\n", "namespace {\nint same = 0;\n}\n"
        self.assertEqual(self.groups([one, two, "namespace {\nint other;\n}\n"]), [[0, 2], [1]])

    def test_groups_have_a_limit(self):
        half = "\n" * (check_tidy.GROUP_LINES // 2)
        self.assertEqual(self.groups([half, half, half]), [[0, 1], [2]])


class Findings(unittest.TestCase):
    def test_each_finding_once_with_its_notes(self):
        first = "/a.hpp:1:2: error: bad [x]\n  code\n/a.hpp:9:1: note: here\n"
        second = "/b.cpp:3:4: warning: worse [y]\n  code\n"
        self.assertEqual(check_tidy.findings_of(first + second), [first.strip(), second.strip()])
        self.assertEqual(check_tidy.findings_of(""), [])

    def test_a_source_that_does_not_compile(self):
        self.assertTrue(check_tidy.is_broken("/a.cpp:1:1: error: no type [clang-diagnostic-error]\n", 1))
        self.assertTrue(check_tidy.is_broken("", -11))   # clang-tidy crashed
        self.assertFalse(check_tidy.is_broken("/a.cpp:1:1: error: bad [bugprone-x]\n", 1))
        self.assertFalse(check_tidy.is_broken("", 0))


class Check(unittest.TestCase):
    def check(self, script, groups):
        """The findings of check() if clang-tidy were this script. Its argument $3 is the file that includes the sources."""
        with tempfile.TemporaryDirectory() as folder:
            work = Path(folder)
            (work / "groups").mkdir()
            (work / "clang-tidy").write_text(f"#!/bin/sh\n{script}\n")
            (work / "clang-tidy").chmod(0o755)
            path = {"PATH": f"{folder}:{os.environ['PATH']}"}
            with mock.patch.object(check_tidy, "WORK", work), mock.patch.dict(os.environ, path):
                return sorted(check_tidy.check(groups, ["-flag"]))

    def test_no_findings(self):
        self.assertEqual(self.check("exit 0", [["/a.cpp", "/b.cpp"], ["/c.cpp"]]), [])

    def test_a_killed_clang_tidy_is_a_finding_for_each_source(self):
        found = self.check("kill -9 $$", [["/a.cpp", "/b.cpp"], ["/c.cpp"]])
        self.assertEqual(found, [f"/{name}.cpp: clang-tidy ended with status -9 and printed nothing" for name in "abc"])

    def test_a_group_that_is_killed_is_checked_again_in_parts(self):
        script = '[ $(wc -l < "$3") -gt 1 ] && kill -9 $$\nif grep -q b.cpp "$3"; then echo "/b.cpp:1:1: error: bad [x]"; exit 1; fi'
        self.assertEqual(self.check(script, [["/a.cpp", "/b.cpp"]]), ["/b.cpp:1:1: error: bad [x]"])


class ChangedSources(unittest.TestCase):
    def test_since_a_commit(self):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)

            def git(*words):
                identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
                subprocess.run(["git", *identity, *words], cwd=root, check=True, capture_output=True)

            for name in ("src/same.cpp", "src/changed.cpp", "src/header.cpp", "src/header.hpp", "src/gone.cpp", "tests/a.cpp"):
                (root / name).parent.mkdir(exist_ok=True)
                (root / name).write_text("int a;\n")
            git("init", "-q")
            git("add", ".")
            git("commit", "-q", "-m", "before")
            for name in ("src/changed.cpp", "src/header.hpp", "src/alone.hpp", "tests/a.cpp"):
                (root / name).write_text("int b;\n")
            (root / "src/gone.cpp").unlink()
            git("add", "-A")
            git("commit", "-q", "-m", "after")
            with mock.patch.object(check_tidy, "ROOT", root):
                found = check_tidy.changed_since("HEAD~1")
                self.assertEqual(check_tidy.changed_since("HEAD"), [])
            self.assertEqual(found, [root / "src/changed.cpp", root / "src/header.cpp"])


class CudaSources(unittest.TestCase):
    def test_paths(self):
        for path in ("src/comm/cuda/ranks.cpp", "src/nccl/cuda_calls.cpp", "src/transport/cuda_ipc/memory.cpp"):
            self.assertTrue(check_tidy.CUDA_PATH.search(path), path)
        for path in ("src/comm/host/ranks.cpp", "src/nccl/not_cuda.cpp", "src/backend/barracuda.cpp"):
            self.assertFalse(check_tidy.CUDA_PATH.search(path), path)


if __name__ == "__main__":
    unittest.main()
