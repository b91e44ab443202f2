#include <fmt/format.h>

#include <cstdio>

#include "cli/lab/lab.hpp"

namespace slip::cli {

void Report::ask(std::string_view text) {
  question_ = text;
  print(fmt::format("{}\n{}\n", name_, std::string(name_.size(), '=')));
  print(paragraph(text));
}

void Report::show(Table table) {
  print(fmt::format("\n{}", table.text()));
  keep(std::move(table));
}

void Report::keep(Table table) { tables_.push_back(std::move(table)); }

void Report::print(std::string_view text) const {
  fmt::print("{}", text);
  std::fflush(stdout);
}

std::string borne_out(std::string_view claim, bool shown) {
  return fmt::format("{}{}", claim, shown ? "" : " (this run did not show it)");
}

void Report::conclude(std::string_view text) {
  conclusion_ = text;
  print(fmt::format("\n{}\n", paragraph(text, 4, "  = ")));
}

}  // namespace slip::cli
