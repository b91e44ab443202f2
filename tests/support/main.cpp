// main() of every test program: runs the tests, or the child function NAME if the argument is --child=NAME.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "support/child.hpp"

int main(int argc, char** argv) {
  constexpr std::string_view kChild = "--child=";
  if (argc == 2 && std::string_view(argv[1]).starts_with(kChild)) {
    const std::string_view name = std::string_view(argv[1]).substr(kChild.size());
    const auto& functions = slip::test::child_functions();
    const auto found = functions.find(name);
    if (found == functions.end()) {
      std::fprintf(stderr, "%s: there is no child function of this name\n", argv[1]);
      return 2;
    }
    found->second();
    return testing::UnitTest::GetInstance()->Failed() ? 1 : 0;
  }
  // For processes that the tests start: on aarch64 the leak check of g++ 12 takes 4 s at every exit. This process
  // itself makes the check, because it has already read its options.
  ::setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
