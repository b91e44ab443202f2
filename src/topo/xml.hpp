// The part of XML that topology files use: elements, attributes, comments. No text between elements, no DOCTYPE.
//
// Whatever the input, reading returns a document or throws kParse with the file and the line.
#pragma once

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
  void set(std::string_view attribute, std::string value);
};

inline constexpr int kMaxDepth = 64;               // a PCI tree has some ten levels
inline constexpr std::size_t kMaxAttributes = 64;  // of an element
inline constexpr std::size_t kMaxElements = 1 << 16;

XmlElement parse_xml(std::string_view text, const std::string& file, Here here);
std::string write_xml(const XmlElement& root);

}  // namespace slip::topo
