#include "support/errors.hpp"

#include <string>

namespace slip::test {

testing::AssertionResult fails(const std::function<void()>& call, ErrorCode code,
                               std::initializer_list<std::string_view> words) {
  try {
    call();
  } catch (const Error& error) {
    const std::string text = error.what();
    if (error.code() != code)
      return testing::AssertionFailure() << "expected an error of the code '" << code_name(code) << "', got: " << text;
    for (const std::string_view word : words) {
      if (text.find(word) == std::string::npos)
        return testing::AssertionFailure() << "the text of the error does not contain '" << word << "': " << text;
    }
    return testing::AssertionSuccess() << text;
  } catch (const std::exception& error) {
    return testing::AssertionFailure() << "not a slip::Error: " << error.what();
  }
  return testing::AssertionFailure() << "expected an error of the code '" << code_name(code) << "', nothing was thrown";
}

}  // namespace slip::test
