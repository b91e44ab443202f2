// A reader and a writer for the part of XML that topology files use: elements, attributes and comments. Text between
// elements and a DOCTYPE are errors. The topology reader and the hwloc probe use it.
//
// For any input, parse_xml() returns a document or throws an Error of code kParse that names the file and the line.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "slip/error.hpp"

namespace slip::topo {

struct XmlElement {
  std::string name;
  std::vector<std::pair<std::string, std::string>> attributes;  // in the order of the file
  std::vector<XmlElement> children;
  int line = 0;

  const std::string* find(std::string_view attribute) const;
  bool holds(std::string_view child) const {
    return std::ranges::any_of(children, [&](const XmlElement& one) { return one.name == child; });
  }
  // REQUIRES: the element does not have the attribute yet.
  void set(std::string_view attribute, std::string value) { attributes.emplace_back(attribute, std::move(value)); }
};

inline constexpr int kMaxDepth = 64;               // nested elements; a PCI tree has about ten levels
inline constexpr std::size_t kMaxAttributes = 64;  // of an element
inline constexpr std::size_t kMaxElements = 1 << 16;

XmlElement parse_xml(std::string_view text, const std::string& file, Here here);
std::string write_xml(const XmlElement& root);

// Typed access to the attributes of one element. Errors have code kParse and name the file, the line, the element and
// the attribute. text() and number() throw if the attribute is missing. A number out of range throws.
class XmlAttributes {
 public:
  XmlAttributes(const XmlElement& element, const std::string& file, Here here)
      : element_(element), file_(file), here_(here) {}

  const std::string& text(std::string_view attribute) const {
    const std::string* value = element_.find(attribute);
    if (!value) refuse(attribute, "is missing");
    return *value;
  }
  std::string text_or(std::string_view attribute, const std::string& otherwise) const {
    const std::string* value = element_.find(attribute);
    return value ? *value : otherwise;
  }
  std::int64_t number(std::string_view attribute, std::int64_t low, std::int64_t high) const;
  std::int64_t number_or(std::string_view attribute, std::int64_t otherwise, std::int64_t low,
                         std::int64_t high) const {
    return has(attribute) ? number(attribute, low, high) : otherwise;
  }
  double real_or(std::string_view attribute, double otherwise, double low, double high) const;
  bool has(std::string_view attribute) const { return element_.find(attribute) != nullptr; }
  [[noreturn]] void refuse(std::string_view attribute, const std::string& why) const;

 private:
  const XmlElement& element_;
  const std::string& file_;
  Here here_;
};

// Whether the text is a PCI address such as "0000:10:1c.0".
bool is_bus_id(std::string_view text);
std::string lower_case(std::string text);

}  // namespace slip::topo
