// A JSON reader that is pulled: the caller asks for what it expects, in order, and nothing is built in between. Reads
// through a window that slides over the input, so its size does not matter. Whatever the input, a call returns a value
// or throws kParse with the file, line and byte.
//
// Fast where the text is compact, as traces are written: keys that can be guessed are compared in two words, numbers
// and strings are read eight bytes at a time, and behind the window stand zeros, so that nothing asks for its end
// twice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/json_scan.hpp"
#include "slip/op.hpp"

namespace slip {

class JsonReader {
 public:
  // Puts up to `bytes` bytes of the input at `into`; 0: there are no more.
  using Source = std::function<std::size_t(char* into, std::size_t bytes)>;
  static Source from_text(std::string_view text);
  JsonReader(std::string name, Source source, Here here);

  // while (next_key(key)) { ... read or skip the value ... }
  void begin_object() { begin('{', "an object"); }
  bool next_key(std::string_view& key) {  // false: the object ended. The key is valid until the next call
    if (!next_member()) return false;
    key = read_key();
    return true;
  }
  // The same in two steps, for callers that know which key may come: next_member, then take or read_key.
  bool next_member() {
    if (at_[0] != ',' || at_[1] != '"' || first_) return next('}', "an object");
    ++at_;
    return true;
  }
  bool take(const JsonKey& key) {  // true: it is the one, and is read
    if (!key.matches(at_)) return false;
    at_ += key.bytes();
    return true;
  }
  std::string_view read_key();

  void begin_array() { begin('[', "an array"); }
  bool next_item() {  // false: the array ended
    if (*at_ != ']' && (!first_ || *at_ <= ' ')) return next(']', "an array");
    first_ = false;
    if (*at_ != ']') return true;
    ++at_;
    return false;
  }

  bool next_item_or_end();  // the input may also end, after a comma even

  std::string_view text() {  // valid until the next call
    const char* end = end_of_plain(at_ + 1);
    if (*at_ != '"' || *end != '"' || end - at_ > kShortText) return any_text();
    const std::string_view result(at_ + 1, static_cast<std::size_t>(end - at_ - 1));
    at_ = end + 1;
    return result;
  }
  std::uint64_t unsigned_number() {
    const char* at = at_;
    const std::uint64_t value = read_digits(at);
    if (!plain_number(at) || !ends_number(at)) return any_unsigned_number();
    at_ = at;
    return value;
  }
  // True: an array of just so many whole numbers came next, and is read. False: look at it one by one.
  template <std::size_t kCount>
  bool take_numbers(std::uint64_t (&into)[kCount]) {
    const char* at = at_;
    char before = '[';
    for (std::size_t i = 0; i < kCount; ++i, before = ',') {
      if (*at++ != before) return false;
      const char* digits = at;
      into[i] = read_digits(at);
      if (at == digits || (*digits == '0' && at != digits + 1)) return false;
    }
    if (*at != ']') return false;
    at_ = at + 1;
    return true;
  }
  std::int64_t signed_number();
  double real();
  Picos micros() {  // microseconds, rounded to a picosecond: tools that count in doubles leave noise behind it
    const char* at = at_;
    const std::uint64_t whole = read_digits(at);
    const char* decimals = at + 1;
    if (*at != '.' || at > at_ + kFewDigits || !plain_number(at)) return any_micros();
    at = decimals;
    const std::uint64_t part = read_digits(at);
    if (at != decimals + 6 || !ends_number(at)) return any_micros();
    at_ = at;
    return static_cast<Picos>(whole * 1'000'000 + part);
  }
  // Microseconds and what is left in picoseconds, for times too large to be Picos: since 1970, say.
  struct LongTime {
    std::int64_t micros = 0;
    Picos rest = 0;
  };
  LongTime long_micros();
  bool boolean();
  std::string_view scalar();  // a string, or a number as it is written; valid until the next call
  void skip() { skip_value(0); }
  // True: the next value is an object that begins like this and has none within it, and it is skipped, not looked at.
  bool skip_flat(const JsonKey& first_key, char letter) {
    const char* at = at_ + 1 + first_key.bytes();
    if (*at_ != '{' || !first_key.matches(at_ + 1) || at[0] != '"' || at[1] != letter || at[2] != '"') return false;
    const char* end = end_of_flat(at);
    if (end[0] != '}' || (end[1] != ',' && end[1] != '\n')) return false;
    at_ = end + 1;
    return true;
  }
  bool next_is(char first) { return peek_past_space() == static_cast<unsigned char>(first); }
  bool next_is_number() {
    const int next = peek_past_space();
    return next == '-' || (next >= '0' && next <= '9');
  }
  bool at_end() { return peek_past_space() == kEnd; }
  void finish();                             // nothing may follow
  bool take_bytes(std::string_view prefix);  // true: the input goes on like this, and it is read

  // Remembers this place, to which back() returns, once. What lies between stays in memory.
  void mark();
  void back();

  struct Place {
    std::uint64_t line = 0, byte = 0;
  };
  // What is being read, for messages: "tensor 'w'".
  void within(std::string what) { within_ = std::move(what); }
  Place place() const { return {line_, before_ + static_cast<std::uint64_t>(at_ - block_.get())}; }
  [[noreturn]] void fail(const std::string& what) const { fail_at(place(), what); }
  [[noreturn]] void fail_at(Place place, const std::string& what) const;

 private:
  static constexpr int kEnd = -1;
  static constexpr std::ptrdiff_t kFewDigits = 12;  // of microseconds: as picoseconds they fit
  static constexpr std::ptrdiff_t kShortText = 4096;

  int peek() {
    if (*at_ == 0 && at_ == end_ && !refill(at_)) return kEnd;
    return static_cast<unsigned char>(*at_);
  }
  int peek_past_space() {
    for (;;) {
      const int next = peek();
      if (next > ' ') return next;
      if (next == '\n') ++line_;
      else if (next != ' ' && next != '\t' && next != '\r') return next;
      ++at_;
    }
  }
  // The digits from here to `at` are some, and the first is no idle zero.
  bool plain_number(const char* at) const { return at != at_ && (*at_ != '0' || at == at_ + 1); }
  static bool ends_number(const char* at) { return *at == ',' || *at == ']' || *at == '}'; }
  static std::string shown(int character);  // or kEnd
  const char* refill(const char* keep);
  void begin(char bracket, const char* what) {
    if (*at_ != bracket) require(bracket, what);
    ++at_;
    first_ = true;
  }
  void require(char bracket, const char* what);
  bool next(char close, const char* what);
  void skip_value(int depth);
  void skip_word(std::string_view word);
  std::string_view any_text();
  std::string_view text_with_escapes(const char* from);
  void check_text_bytes(std::size_t bytes) const;
  void read_escape();
  void read_simple_escape();
  std::uint32_t read_hex();

  // A number as it is written: sign, digits, decimals and exponent put together; `exact` is false if it has too many
  // digits.
  struct Number {
    bool negative = false;
    bool exact = true;
    std::uint64_t digits = 0;
    std::int64_t exponent = 0;
  };
  Number number();
  static std::uint64_t add_digits(const char*& at, Number& into, bool decimals);
  static const char* read_number(const char*& at, Number& into);
  std::uint64_t scaled(const Number& number, const char* what) const;
  std::uint64_t any_unsigned_number();
  Picos any_micros();

  std::string name_, within_;
  Source source_;
  Here here_;
  std::unique_ptr<char[]> block_;  // the window: text up to end_, then kScanPadding zeros
  std::size_t capacity_ = 0;
  const char* at_ = nullptr;
  const char* end_ = nullptr;
  std::uint64_t before_ = 0;  // bytes before the block
  std::uint64_t line_ = 1;
  const char* mark_ = nullptr;  // kept in the window, with its line
  std::uint64_t mark_line_ = 0;
  std::string_view literal_;  // of the number read last
  bool first_ = false;        // just after an opening bracket
  std::string buffer_;        // of a string with escapes
  std::string key_;           // of a key whose colon is far
};

}  // namespace slip
