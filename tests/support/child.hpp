// Child processes of tests. A child is a function of the test program, registered by SLIP_CHILD. A test starts the same
// program again with --child=SUITE.NAME; main() then runs that function instead of the tests (main.cpp).
//
//   SLIP_CHILD(Hangs, Sum) { play(...); }                     // runs in the child process
//   TEST(Hangs, ...) { RankProcess child("Hangs.Sum", ...); }  // a test that starts it
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace slip::test {

using ChildFunction = void (*)();

inline std::map<std::string_view, ChildFunction>& child_functions() {
  static std::map<std::string_view, ChildFunction> functions;
  return functions;
}

struct ChildRegistration {
  ChildRegistration(std::string_view name, ChildFunction function) { child_functions().emplace(name, function); }
};

// The argument that makes a test program run this child.
inline std::string child_argument(const std::string& name) { return "--child=" + name; }

}  // namespace slip::test

#define SLIP_CHILD(suite, name)                                                                        \
  static void suite##_##name##_child();                                                                \
  static const ::slip::test::ChildRegistration suite##_##name##_registration(#suite "." #name,         \
                                                                             &suite##_##name##_child); \
  static void suite##_##name##_child()
