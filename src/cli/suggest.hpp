// "did you mean": the word that a mistyped one is nearest to.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace slip::cli {

// ": did you mean all_reduce?" or, if no word is near, "".
std::string did_you_mean(std::string_view typed, const std::vector<std::string>& words);

}  // namespace slip::cli
