#include "topo/attributes.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

namespace slip::topo {
namespace {

bool is_hex(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789abcdefABCDEF") == std::string_view::npos;
}

constexpr std::size_t kMaxShown = 60;  // characters of a value in a message

}  // namespace

void Attributes::refuse(std::string_view attribute, const std::string& why) const {
  const std::string* value = element_.find(attribute);
  const std::string shown = value ? fmt::format("=\"{}\"", std::string_view(*value).substr(0, kMaxShown)) : "";
  throw Error(Code::kParse,
              fmt::format("'{}', line {}: <{}> attribute '{}'{}: {}", file_, element_.line, element_.name, attribute,
                          shown, why),
              here_);
}

const std::string& Attributes::text(std::string_view attribute) const {
  const std::string* value = element_.find(attribute);
  if (!value) refuse(attribute, "is missing");
  return *value;
}

std::string Attributes::text_or(std::string_view attribute, const std::string& otherwise) const {
  const std::string* value = element_.find(attribute);
  return value ? *value : otherwise;
}

std::int64_t Attributes::number(std::string_view attribute, std::int64_t low, std::int64_t high) const {
  std::string_view digits = text(attribute);
  const bool hex = digits.starts_with("0x") || digits.starts_with("0X");
  if (hex) digits.remove_prefix(2);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, hex ? 16 : 10);
  if (error != std::errc() || end != digits.data() + digits.size() || value < low || value > high)
    refuse(attribute, fmt::format("must be a whole number from {} to {}", low, high));
  return value;
}

std::int64_t Attributes::number_or(std::string_view attribute, std::int64_t otherwise, std::int64_t low,
                                   std::int64_t high) const {
  return has(attribute) ? number(attribute, low, high) : otherwise;
}

double Attributes::real_or(std::string_view attribute, double otherwise, double low, double high) const {
  if (!has(attribute)) return otherwise;
  const std::string& digits = text(attribute);
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size() || !(value >= low && value <= high))
    refuse(attribute, fmt::format("must be a number from {} to {}", low, high));
  return value;
}

bool is_bus_id(std::string_view text) {
  const std::size_t first = text.find(':'), second = text.find(':', first + 1), dot = text.find('.');
  if (first == std::string_view::npos || second == std::string_view::npos || dot == std::string_view::npos)
    return false;
  if (first > 8 || second < first || dot < second || text.size() > 24) return false;
  return is_hex(text.substr(0, first)) && is_hex(text.substr(first + 1, second - first - 1)) &&
         is_hex(text.substr(second + 1, dot - second - 1)) && is_hex(text.substr(dot + 1));
}

std::string lower_case(std::string text) {
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return text;
}

}  // namespace slip::topo
