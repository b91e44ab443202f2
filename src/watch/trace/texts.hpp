// Strings of a file, each kept once.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>

#include "base/json_reader.hpp"
#include "base/json_text.hpp"

namespace slip {

class Texts {
 public:
  static constexpr std::size_t kRecent = 256;

  // Valid while the owner lives. Bytes that are not UTF-8 are replaced.
  std::string_view keep(std::string_view text) {
    if (text.empty()) return {};
    std::string_view& recent = recent_[slot(text)];
    if (text != recent) recent = find(text);
    return recent;
  }
  std::shared_ptr<const void> owner() const { return all_; }

  // A place for the text in a table of kRecent, from its length and its ends.
  static std::size_t slot(std::string_view text) {
    if (text.empty()) return 0;
    std::uint64_t mix = text.size();
    if (text.size() >= 8) mix += load_word(text.data()) ^ (load_word(text.data() + text.size() - 8) * 31);
    else mix += every_byte(static_cast<unsigned char>(text.front())) ^ (static_cast<unsigned char>(text.back()) * 31U);
    return (mix * 0x9E3779B97F4A7C15U) >> 56;
  }

 private:
  std::string_view find(std::string_view text) {
    if (!is_utf8(text)) return find(to_utf8(text));
    const auto found = index_.find(text);
    if (found != index_.end()) return *found;
    return *index_.insert(all_->emplace_back(text)).first;
  }

  std::shared_ptr<std::deque<std::string>> all_ = std::make_shared<std::deque<std::string>>();
  std::unordered_set<std::string_view> index_;
  std::array<std::string_view, kRecent> recent_;
};

}  // namespace slip
