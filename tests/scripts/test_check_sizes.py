"""check_sizes.py accepts files and functions at the limit and refuses them one line over it."""

import unittest

from support import CheckerTest


def body(lines):
    return "{\n" + "  work();\n" * (lines - 2) + "}\n"


class CheckSizes(CheckerTest):
    checker = "check_sizes.py"

    def test_at_the_limit(self):
        self.accepts({
            "src/base/a.cpp": "int x;\n" * 600,
            "include/slip/a.hpp": "int x;\n" * 200,
            "src/base/b.cpp": "void f(int a) " + body(70),
        })

    def test_long_file(self):
        self.refuses({"src/base/a.cpp": "int x;\n" * 601}, "src/base/a.cpp:601:", "601 lines")
        self.refuses({"tests/base/a.cpp": "int x;\n" * 601}, "tests/base/a.cpp")

    def test_long_public_header(self):
        self.refuses({"include/slip/a.hpp": "int x;\n" * 201}, "include/slip/a.hpp:201:")

    def test_long_functions_of_every_shape(self):
        for head in ("void f(int a) ", "int C::f() const noexcept ", "template <class T>\nauto f(T t) -> int ",
                     "C::C(int a) : a_{a}, b_{a} ", "C::C(int a)\n    : a_(a) ", "namespace n {\nvoid f() ",
                     "class C {\n public:\n  void f() ", 'class CAP("m") C : public B<int> {\n  int f(int a = {}) override ',
                     "struct S f() ", "inline constexpr auto f = [](int a) ", 'extern "C" {\nint f(void) ',
                     "enum class E { kA, kB };\nvoid f() ", "const int t[] = {1, 2};\nvoid f() "):
            with self.subTest(head=head):
                self.refuses({"src/base/a.cpp": head + body(71)}, "has 71 lines")
                self.accepts({"src/base/a.cpp": head + body(70)})

    def test_long_class_of_short_functions(self):
        self.accepts({"src/base/a.cpp": "class C {\n" + "  void f() { if (x) { y(); } }\n" * 100 + "};\n"})

    def test_long_table(self):
        self.accepts({"src/base/a.cpp": "const T kTable[] = {\n" + "  {1, 2},\n" * 100 + "};\n"})

    def test_braces_in_strings(self):
        self.accepts({"src/base/a.cpp": ("void f() { s('{', \"{\"); }\n") * 100})


if __name__ == "__main__":
    unittest.main()
