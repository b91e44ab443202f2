"""The flags of the preset `odr` refuse two types of one name that differ, in two translation units."""

import json
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from support import ROOT

ONE = "namespace slip { struct Needs { int a; }; int first(Needs& n) { return n.a; } int second(int); }\n"
TWO = "namespace slip { struct Needs { double b; }; double of(Needs& n) { return n.b; } int second(int i) { return i; } }\n"
MAIN = "int main() { return slip::second(0); }\n"


class OdrBuild(unittest.TestCase):
    def links(self, two):
        """Whether two sources link with the flags of the preset, and what the linker says."""
        preset = next(one for one in json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]
                      if one["name"] == "odr")["cacheVariables"]
        self.assertEqual(preset["CMAKE_INTERPROCEDURAL_OPTIMIZATION"], "ON")
        flags = [*preset["CMAKE_CXX_FLAGS_DEBUG"].split(), "-flto", "-std=c++20"]
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (("one", ONE + MAIN), ("two", two)):
                Path(folder, f"{name}.cpp").write_text(text)
                subprocess.run(["g++", *flags, "-c", f"{name}.cpp"], cwd=folder, check=True)
            done = subprocess.run(["g++", *flags, "one.o", "two.o", "-o", "program"], cwd=folder, capture_output=True,
                                  text=True, check=False)
            return done.returncode == 0, done.stderr

    def test_types_that_differ(self):
        if not shutil.which("g++"):
            self.skipTest("no g++ here")
        linked, text = self.links(TWO)
        self.assertFalse(linked)
        self.assertIn("violates the C++ One Definition Rule", text)
        self.assertIn("Needs", text)

    def test_equal_types(self):
        if not shutil.which("g++"):
            self.skipTest("no g++ here")
        linked, text = self.links(TWO.replace("double b; };", "int a; };").replace("n.b", "n.a"))
        self.assertTrue(linked, text)


if __name__ == "__main__":
    unittest.main()
