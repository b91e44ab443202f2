"""check_locks.py refuses locks without an annotation, and clang's analysis finds an access without its lock."""

import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from support import CheckerTest, ROOT

GUARDED = """namespace slip::flow {
class Table {
  base::Mutex mutex_;
  int count_ SLIP_GUARDED_BY(mutex_) = 0;
};
}  // namespace slip::flow
"""


class CheckLocks(CheckerTest):
    checker = "check_locks.py"

    def test_locks_with_annotations(self):
        self.accepts({"src/flow/table.hpp": GUARDED})
        self.accepts({"src/flow/table.hpp": GUARDED.replace("int count_ SLIP_GUARDED_BY(mutex_)", "int count_")
                     .replace("};", "  void add() SLIP_REQUIRES(mutex_);\n};")})
        self.accepts({"src/flow/a.hpp": "class A {\n  // Guards no data: one thread at a time starts it.\n  base::SpinLock busy_;\n};\n"})
        self.accepts({"src/base/sync.hpp": "class Mutex {\n  std::mutex mutex_;\n};\n"})

    def test_lock_without_annotation(self):
        self.refuses({"src/flow/table.hpp": GUARDED.replace(" SLIP_GUARDED_BY(mutex_)", "")},
                     "src/flow/table.hpp:3: no annotation says what mutex_ guards")
        self.refuses({"src/flow/table.hpp": GUARDED.replace("SLIP_GUARDED_BY(mutex_)", "// SLIP_GUARDED_BY(mutex_)")}, "mutex_")

    def test_standard_locks(self):
        for name in ("mutex", "shared_mutex", "recursive_mutex", "condition_variable", "lock_guard lock(m)", "unique_lock lock(m)"):
            self.refuses({"src/flow/a.cpp": f"void f() {{\n  std::{name};\n}}\n"}, "src/flow/a.cpp:2:", "use the types of base/sync.hpp")


class Analysis(unittest.TestCase):
    """Removes a lock from a copy of a real source; -Wthread-safety must report the accesses that need it. Two sources are
    enough: one whose lock is a member, and one that gets it by a function (SLIP_RETURN_CAPABILITY)."""

    PLANTED = {
        "src/transport/bootstrap/message_exchange.cpp": r"base::LockGuard lock\(context_\.mutex\(\)\);",
        "src/transport/net/proxy.cpp": r"base::LockGuard lock\(mutex_\);",
    }

    def warnings_of(self, path):
        done = subprocess.run(["clang++", "-std=c++20", "-fsyntax-only", "-Wthread-safety", "-Wno-unknown-warning-option",
                               f"-I{ROOT}/src", f"-I{ROOT}/include", str(path)], capture_output=True, text=True, check=False)
        self.assertNotIn("error:", done.stderr)
        return [line for line in done.stderr.splitlines() if "[-Wthread-safety" in line]

    def test_planted_access_without_its_lock(self):
        if not shutil.which("clang++"):
            self.skipTest("no clang++ here")
        for name, guard in self.PLANTED.items():
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                text = (ROOT / name).read_text()
                planted, count = re.subn(rf"^ *(?:const )?{guard}\n", "\n", text, count=1, flags=re.MULTILINE)
                self.assertEqual(count, 1, f"{name} has no such lock any more")
                copy = Path(folder) / "planted.cpp"
                copy.write_text(planted)
                self.assertEqual(self.warnings_of(ROOT / name), [])
                self.assertNotEqual(self.warnings_of(copy), [], f"{name}: the analysis misses the removed lock")


if __name__ == "__main__":
    unittest.main()
