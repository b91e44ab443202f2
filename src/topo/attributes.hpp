// Attributes of elements as values. What cannot be right throws kParse with file, line, element and attribute.
#pragma once

#include <cstdint>
#include <string>

#include "topo/xml.hpp"

namespace slip::topo {

class Attributes {
 public:
  Attributes(const XmlElement& element, const std::string& file, Here here)
      : element_(element), file_(file), here_(here) {}

  const std::string& text(std::string_view attribute) const;  // must be there
  std::string text_or(std::string_view attribute, const std::string& otherwise) const;
  std::int64_t number(std::string_view attribute, std::int64_t low, std::int64_t high) const;  // must be there
  std::int64_t number_or(std::string_view attribute, std::int64_t otherwise, std::int64_t low, std::int64_t high) const;
  double real_or(std::string_view attribute, double otherwise, double low, double high) const;
  bool has(std::string_view attribute) const { return element_.find(attribute) != nullptr; }
  [[noreturn]] void refuse(std::string_view attribute, const std::string& why) const;

 private:
  const XmlElement& element_;
  const std::string& file_;
  Here here_;
};

// Is the text a PCI address, "0000:10:1c.0"?
bool is_bus_id(std::string_view text);
std::string lower_case(std::string text);

}  // namespace slip::topo
