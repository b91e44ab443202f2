// Name: an interned string. A copy is a pointer copy, so every op can carry a name. Constructing one from text looks it
// up in a table: do it once, outside hot loops. The text lives until the process ends. Thread-safe.
#pragma once

#include <string>
#include <string_view>

namespace slip {

class Name {
 public:
  constexpr Name() = default;
  Name(std::string_view text);  // NOLINT(google-explicit-constructor): a name is written as a string
  Name(const char* text) : Name(std::string_view(text)) {}
  Name(const std::string& text) : Name(std::string_view(text)) {}

  std::string_view text() const { return text_ ? std::string_view(*text_) : std::string_view(); }
  const char* c_str() const { return text_ ? text_->c_str() : ""; }
  explicit operator bool() const { return text_ != nullptr; }
  friend bool operator==(Name a, Name b) { return a.text_ == b.text_; }

 private:
  const std::string* text_ = nullptr;
};

}  // namespace slip
