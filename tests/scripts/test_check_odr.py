"""check_odr.py refuses two types of the same qualified name in one program, and nothing else."""

import unittest

from support import CheckerTest

TYPE = "namespace slip {\nstruct Needs {\n  int a;\n};\n}  // namespace slip\n"


class CheckOdr(CheckerTest):
    checker = "check_odr.py"

    def test_same_name_in_two_files(self):
        self.refuses({"src/watch/needs.hpp": TYPE, "src/flow/times.hpp": TYPE},
                     "src/watch/needs.hpp:2: slip::Needs is defined in src/flow/times.hpp:2, too")
        self.refuses({"include/slip/a.hpp": "namespace slip {\nenum class Way : char { kA };\n}\n",
                      "src/comm/b.cpp": "namespace slip {\nclass CAPABILITY(\"m\") Way final : public Base<int> {\n};\n}\n"},
                     "slip::Way")

    def test_headers_use_the_namespace_of_their_room(self):
        self.refuses({"src/watch/needs.hpp": TYPE}, "src/watch/needs.hpp:2: slip::Needs belongs into the namespace slip::watch")
        self.accepts({"src/watch/needs.hpp": TYPE.replace("slip", "slip::watch", 1)})
        self.accepts({"include/slip/needs.hpp": TYPE,
                      "src/watch/state.hpp": "namespace slip {\nstruct Needs::State {\n  int a;\n};\n}\n"})

    def test_tests_against_the_library(self):
        self.refuses({"src/a/a.hpp": TYPE, "tests/flow/test_a.cpp": TYPE}, "tests/flow/test_a.cpp:2:")
        self.refuses({"tests/support/a.hpp": TYPE, "tests/flow/test_a.cpp": TYPE}, "slip::Needs")

    def test_nested_types(self):
        outer = "namespace slip::comm {\nclass %s {\n  void f() { struct Local {}; }\n  struct Place {\n    int a = {};\n  };\n};\n}\n"
        self.accepts({"src/a/a.cpp": outer % "A", "src/a/b.cpp": outer % "B"})
        self.refuses({"src/a/a.cpp": outer % "A", "src/a/b.cpp": "namespace slip::comm {\nstruct A::Place {\n};\n}\n"},
                     "slip::comm::A::Place")

    def test_what_belongs_to_one_file(self):
        hidden = "namespace slip {\nnamespace {\nstruct Needs {\n};\n}  // namespace\nvoid f(int a) { struct Needs {}; }\n}\n"
        self.accepts({"src/a/a.cpp": hidden.replace("void f", "void g"), "src/a/b.cpp": hidden})
        self.accepts({"src/a/a.cpp": TYPE, "src/a/b.cpp": "namespace slip {\nstruct Needs;\nstruct Needs* f();\n}\n"})
        self.accepts({"src/a/a.cpp": TYPE, "src/a/b.cpp": TYPE.replace("slip", "slip::flow", 1)})
        self.accepts({"tests/flow/test_a.cpp": TYPE, "tests/comm/test_a.cpp": TYPE})   # two programs


if __name__ == "__main__":
    unittest.main()
