#include "support/errors.hpp"

#include <string>

namespace slip::test {

testing::AssertionResult fails(const std::function<void()>& call, Code code,
                               std::initializer_list<std::string_view> words) {
  try {
    call();
  } catch (const Error& error) {
    const std::string text = error.what();
    if (error.code() != code)
      return testing::AssertionFailure() << "'" << code_name(code) << "' was expected, this came: " << text;
    for (const std::string_view word : words) {
      if (text.find(word) == std::string::npos)
        return testing::AssertionFailure() << "the error does not name '" << word << "': " << text;
    }
    return testing::AssertionSuccess() << text;
  } catch (const std::exception& error) {
    return testing::AssertionFailure() << "not a slip::Error: " << error.what();
  }
  return testing::AssertionFailure() << "'" << code_name(code) << "' was expected, nothing was thrown";
}

}  // namespace slip::test
