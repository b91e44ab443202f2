// docs/semantics.md names every rule and every test of a rule, and no test that does not exist.
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>
#include <string>

namespace slip::test::documented {
namespace {

std::string document() {
  std::ifstream file(SLIP_SOURCE_DIR "/docs/semantics.md");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// The tests named RuleN_..., without the device.
std::set<std::string> rule_tests() {
  std::set<std::string> names;
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const testing::TestSuite& suite = *all.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const std::string name = suite.GetTestInfo(t)->name();
      if (name.starts_with("Rule")) names.insert(name.substr(0, name.find('/')));
    }
  }
  return names;
}

// The words `RuleN_...` of the text; names cut short with "..." are left out.
std::set<std::string> rules_named(const std::string& text) {
  std::set<std::string> names;
  for (std::size_t at = text.find("`Rule"); at != std::string::npos; at = text.find("`Rule", at + 1)) {
    const std::string name = text.substr(at + 1, text.find('`', at + 1) - at - 1);
    if (name.find('.') == std::string::npos) names.insert(name);
  }
  return names;
}

TEST(Documented, EveryRuleHasARow) {
  const std::string text = document();
  for (int rule = 1; rule <= 100; ++rule)
    EXPECT_NE(text.find("\n| " + std::to_string(rule) + " |"), std::string::npos) << "rule " << rule;
}

TEST(Documented, EveryTestOfARuleIsNamedAndExists) { EXPECT_EQ(rules_named(document()), rule_tests()); }

}  // namespace
}  // namespace slip::test::documented
