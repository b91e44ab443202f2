#include "topo/xml.hpp"

#include <algorithm>
#include <iterator>

#include "base/fail.hpp"
#include "base/json_text.hpp"
#include "base/quantity_text.hpp"

namespace slip::topo {
namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }
bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
         c == '.' || c == ':';
}

class XmlReader {
 public:
  XmlReader(std::string_view text, const std::string& file, Here here) : text_(text), file_(file), here_(here) {}

  XmlElement document() {
    if (text_.starts_with("\xEF\xBB\xBF")) at_ = 3;
    skip_between();
    XmlElement root = element(0);
    skip_between();
    if (at_ < text_.size()) fail(fmt::format("{} after the end of <{}>", shown(), root.name));
    return root;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { fail_at(line_, what); }
  [[noreturn]] void fail_at(int line, const std::string& what) const {
    base::fail(ErrorCode::kParse, here_, "'{}', line {}: {}", file_, line, what);
  }
  std::string shown() const {
    if (at_ >= text_.size()) return "the end of the file";
    const auto c = static_cast<unsigned char>(text_[at_]);
    return c > ' ' && c < 127 ? fmt::format("'{}'", text_[at_]) : fmt::format("byte 0x{:02x}", c);
  }

  bool starts(std::string_view text) const { return text_.substr(at_).starts_with(text); }
  void step(std::size_t bytes) {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         text_.begin() + static_cast<std::ptrdiff_t>(at_ + bytes), '\n'));
    at_ += bytes;
  }
  void skip_space() {
    while (at_ < text_.size() && is_space(text_[at_])) step(1);
  }
  void skip_to(std::string_view end, const char* what) {
    const std::size_t found = text_.find(end, at_);
    if (found == std::string_view::npos) fail(fmt::format("{} does not end", what));
    step(found + end.size() - at_);
  }
  // Skips space, comments and declarations.
  void skip_between() {
    for (;;) {
      skip_space();
      if (starts("<!--")) skip_to("-->", "the comment");
      else if (starts("<?")) skip_to("?>", "the declaration");
      else return;
    }
  }

  std::string name(const char* what) {
    const std::size_t from = at_;
    while (at_ < text_.size() && is_name(text_[at_])) ++at_;
    if (at_ == from) fail(fmt::format("{} instead of {}", shown(), what));
    return std::string(text_.substr(from, at_ - from));
  }
  void require(char c, const std::string& where) {
    if (at_ >= text_.size() || text_[at_] != c) fail(fmt::format("{} instead of '{}' {}", shown(), c, where));
    ++at_;
  }

  void append_reference(std::string& out) {
    constexpr std::pair<std::string_view, char> kNamed[] = {
        {"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&apos;", '\''}};
    for (const auto& [reference, c] : kNamed) {
      if (!starts(reference)) continue;
      out += c;
      at_ += reference.size();
      return;
    }
    const std::size_t end = text_.find(';', at_);
    if (!starts("&#") || end == std::string_view::npos) fail("'&' does not begin a known reference: write &amp;");
    const bool hex = at_ + 2 < end && text_[at_ + 2] == 'x';
    const std::string_view digits = text_.substr(at_, end - at_).substr(hex ? 3 : 2);
    const auto code = base::parse_number<std::uint32_t>(digits, 1, 0x10FFFF, hex ? 16 : 10);
    if (!code || (*code >= 0xD800 && *code < 0xE000))  // a surrogate is no character
      fail(fmt::format("'{}' is no character", text_.substr(at_, std::min<std::size_t>(end + 1 - at_, 16))));
    base::append_code_point(out, *code);
    at_ = end + 1;
  }

  std::string value(const std::string& attribute) {
    const char quote = at_ < text_.size() ? text_[at_] : '\0';
    if (quote != '"' && quote != '\'') fail(fmt::format("attribute '{}': {} instead of a quote", attribute, shown()));
    const int line = line_;
    std::string result;
    for (++at_; at_ < text_.size() && text_[at_] != quote;) {
      if (text_[at_] == '<') fail(fmt::format("attribute '{}': '<' within its value: its quote is missing", attribute));
      if (text_[at_] == '&') {
        append_reference(result);
      } else {
        result += text_[at_];
        step(1);
      }
    }
    if (at_ >= text_.size()) fail_at(line, fmt::format("attribute '{}': its value does not end", attribute));
    ++at_;
    if (!base::is_utf8(result)) fail_at(line, fmt::format("attribute '{}': its value is not UTF-8", attribute));
    return result;
  }

  void attributes(XmlElement& into) {
    for (;;) {
      const bool space = at_ < text_.size() && is_space(text_[at_]);
      skip_space();
      if (at_ >= text_.size()) fail_at(into.line, fmt::format("<{}> does not end", into.name));
      if (text_[at_] == '/' || text_[at_] == '>') return;
      if (!space) fail(fmt::format("{} within <{}>: a space is missing", shown(), into.name));
      std::string attribute = name("an attribute");
      skip_space();
      require('=', fmt::format("after attribute '{}' of <{}>", attribute, into.name));
      skip_space();
      if (into.attributes.size() >= kMaxAttributes)
        fail(fmt::format("<{}> has more than {} attributes", into.name, kMaxAttributes));
      if (into.find(attribute)) fail(fmt::format("<{}> has attribute '{}' twice", into.name, attribute));
      std::string text = value(attribute);
      into.attributes.emplace_back(std::move(attribute), std::move(text));
    }
  }

  XmlElement element(int depth) {
    if (++elements_ > kMaxElements) fail(fmt::format("more than {} elements", kMaxElements));
    if (depth >= kMaxDepth) fail(fmt::format("elements lie more than {} deep", kMaxDepth));
    if (starts("<!")) fail("a DOCTYPE or CDATA: topology files have none");
    require('<', "of an element");
    XmlElement result;
    result.line = line_;
    result.name = name("an element's name");
    attributes(result);
    if (text_[at_] == '/') {
      ++at_;
      require('>', fmt::format("at the end of <{}>", result.name));
      return result;
    }
    ++at_;
    for (skip_between(); !starts("</"); skip_between()) {
      if (at_ >= text_.size())
        fail_at(result.line, fmt::format("<{}> is not closed: the file is cut off", result.name));
      result.children.push_back(element(depth + 1));
    }
    at_ += 2;
    const std::string closed = name("an element's name");
    if (closed != result.name)
      fail(fmt::format("</{}> closes <{}>, which began in line {}", closed, result.name, result.line));
    skip_space();
    require('>', fmt::format("of </{}>", closed));
    return result;
  }

  std::string_view text_;
  const std::string& file_;
  Here here_;
  std::size_t at_ = 0;
  std::size_t elements_ = 0;
  int line_ = 1;
};

void append_value(std::string& out, std::string_view value) {
  for (const char c : value) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\n': out += "&#10;"; break;
      case '\r': out += "&#13;"; break;
      case '\t': out += "&#9;"; break;
      default: out += c;
    }
  }
}

void append_element(std::string& out, const XmlElement& element, std::size_t depth) {
  fmt::format_to(std::back_inserter(out), "{:{}}<{}", "", 2 * depth, element.name);
  for (const auto& [name, value] : element.attributes) {
    fmt::format_to(std::back_inserter(out), " {}=\"", name);
    append_value(out, value);
    out += '"';
  }
  if (element.children.empty()) {
    out += "/>\n";
    return;
  }
  out += ">\n";
  for (const XmlElement& child : element.children) append_element(out, child, depth + 1);
  fmt::format_to(std::back_inserter(out), "{:{}}</{}>\n", "", 2 * depth, element.name);
}

bool is_hex(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789abcdefABCDEF") == std::string_view::npos;
}

constexpr std::size_t kMaxShown = 60;  // characters of a value in a message

}  // namespace

const std::string* XmlElement::find(std::string_view attribute) const {
  for (const auto& [key, value] : attributes) {
    if (key == attribute) return &value;
  }
  return nullptr;
}

XmlElement parse_xml(std::string_view text, const std::string& file, Here here) {
  return XmlReader(text, file, here).document();
}

std::string write_xml(const XmlElement& root) {
  std::string out;
  append_element(out, root, 0);
  return out;
}

void XmlAttributes::refuse(std::string_view attribute, const std::string& why) const {
  const std::string* value = element_.find(attribute);
  const std::string shown = value ? fmt::format("=\"{}\"", std::string_view(*value).substr(0, kMaxShown)) : "";
  base::fail(ErrorCode::kParse, here_, "'{}', line {}: <{}> attribute '{}'{}: {}", file_, element_.line, element_.name,
             attribute, shown, why);
}

std::int64_t XmlAttributes::number(std::string_view attribute, std::int64_t low, std::int64_t high) const {
  std::string_view digits = text(attribute);
  const bool hex = digits.starts_with("0x") || digits.starts_with("0X");
  if (hex) digits.remove_prefix(2);
  const std::optional<std::int64_t> value = base::parse_number(digits, low, high, hex ? 16 : 10);
  if (!value) refuse(attribute, fmt::format("must be a whole number from {} to {}", low, high));
  return *value;
}

double XmlAttributes::real_or(std::string_view attribute, double otherwise, double low, double high) const {
  if (!has(attribute)) return otherwise;
  const std::optional<double> value = base::parse_number(text(attribute), low, high);
  if (!value) refuse(attribute, fmt::format("must be a number from {} to {}", low, high));
  return *value;
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
