"""check_sizes.py accepts files, functions and classes at the limit and refuses them one beyond it."""

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

    def class_of(self, methods, members, head="class C {\n public:\n  C();\n  ~C();\n  C& operator=(C&&) = delete;\n"):
        text = head
        text += "".join(f"  int method_{i}(std::function<void(int)> f = {{}}) const {{ return {i}; }}\n" for i in range(methods))
        text += "  void method_0();\n  static constexpr int kLimit = 3;\n  using Map = std::map<int, int>;\n" if methods else ""
        return text + "".join(f"  std::map<int, int> member_{i}_ GUARDED_BY(mutex) = {{}};\n" for i in range(members)) + "};\n"

    def test_classes_at_the_limit(self):
        self.accepts({"src/base/a.hpp": self.class_of(25, 15), "include/slip/a.hpp": self.class_of(25, 15)})

    def test_too_many_methods(self):
        self.refuses({"src/base/a.hpp": self.class_of(26, 3)}, "src/base/a.hpp:1:", "C has 26 methods")
        self.refuses({"include/slip/a.hpp": self.class_of(26, 0, "struct C final : B {\n")}, "C has 26 methods")

    def test_too_many_members(self):
        self.refuses({"src/base/a.hpp": self.class_of(1, 16)}, "C has 16 members")
        several = "struct C {\n  int a, b, c, d, e, f, g, h;\n  int i{}, j = 2, k[3], l, m, n, o;\n  void (*call)(int) = nullptr;\n"
        self.refuses({"src/base/a.hpp": several + "  void f();\n};\n"}, "C has 16 members")

    def test_plain_data_may_have_any_number_of_members(self):
        self.accepts({"src/base/a.hpp": self.class_of(0, 40, "struct C {\n"), "src/base/b.hpp":
                      "enum class E { " + ", ".join(f"k{i}" for i in range(40)) + " };\n"})

    def test_nested_classes_count_by_themselves(self):
        nested = "class Outer {\n" + self.class_of(20, 10, "struct C {\n") + self.class_of(20, 10, "struct D {\n") + "};\n"
        self.accepts({"src/base/a.hpp": nested})


if __name__ == "__main__":
    unittest.main()
