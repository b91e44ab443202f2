// Checks for options that are numbers.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>

namespace slip::cli {

// CLI::Range lets NaN through, which is neither below nor above anything.
inline CLI::Validator number_between(double min, double max) {
  return CLI::Validator(
      [min, max](std::string& text) {
        double value = 0;
        const bool within = CLI::detail::lexical_cast(text, value) && value >= min && value <= max;
        return within ? std::string() : fmt::format("'{}': a number from {} to {} is expected", text, min, max);
      },
      fmt::format("{} to {}", min, max));
}

}  // namespace slip::cli
