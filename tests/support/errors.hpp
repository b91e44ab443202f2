// Errors that must come, with their code and the values that their text must name.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <initializer_list>
#include <string_view>

#include "slip/error.hpp"

namespace slip::test {

// The call throws Error with this code, and its text has all of `words`.
testing::AssertionResult fails(const std::function<void()>& call, Code code,
                               std::initializer_list<std::string_view> words = {});

}  // namespace slip::test
