// Expectations of errors: their code, and words that their text must contain.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <initializer_list>
#include <string_view>

#include "slip/error.hpp"

namespace slip::test {

// Whether the call throws Error with this code, and the text of the error contains all of `words`.
testing::AssertionResult fails(const std::function<void()>& call, ErrorCode code,
                               std::initializer_list<std::string_view> words = {});

}  // namespace slip::test
