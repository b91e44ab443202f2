#include "cli/suggest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace slip::cli {
namespace {

// Case, hyphens and underscores do not count: all-reduce is all_reduce.
std::string letters_of(std::string_view word) {
  std::string letters;
  for (const char c : word) {
    if (c != '-' && c != '_') letters += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return letters;
}

// Letters to insert, remove, replace or swap with a neighbour until one word is the other (optimal string alignment).
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (std::size_t k = 0; k <= b.size(); ++k) d[0][k] = k;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t k = 1; k <= b.size(); ++k) {
      d[i][k] = std::min({d[i - 1][k] + 1, d[i][k - 1] + 1, d[i - 1][k - 1] + (a[i - 1] == b[k - 1] ? 0 : 1)});
      if (i > 1 && k > 1 && a[i - 1] == b[k - 2] && a[i - 2] == b[k - 1])
        d[i][k] = std::min(d[i][k], d[i - 2][k - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

std::string did_you_mean(std::string_view typed, const std::vector<std::string>& words) {
  constexpr std::size_t kMax = 64;  // longer ones are no mistyped words, and would take long to compare
  const std::string given = letters_of(typed.substr(0, typed.find('=')));
  if (given.empty() || given.size() > kMax) return {};
  const std::string* best = nullptr;
  std::size_t least = 0;
  for (const std::string& word : words) {
    const std::string letters = letters_of(word);
    // A third of the letters may be wrong, and a word may be cut short: "ben" is bench.
    const bool cut = given.size() >= 3 && letters.starts_with(given);
    const std::size_t away = cut ? 1 : distance(given, letters);
    if (away * 3 > std::max(given.size(), letters.size()) || (best && away >= least)) continue;
    best = &word;
    least = away;
  }
  return best ? fmt::format(": did you mean {}?", *best) : std::string();
}

}  // namespace slip::cli
