// A JSON reader that is pulled: the caller asks for what it expects, in order, and nothing is built in between. Reads a
// file in blocks, so its size does not matter, or a text. Whatever the input, a call returns a value or throws kParse
// with the file, line and byte.
//
// Not a library's: nlohmann's SAX parser takes 4.8 us for an op of a trace before anything is done with it, this reader
// with all that follows 2.0 us (one busy aarch64 core, 330 bytes an op).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

#include "slip/op.hpp"

namespace slip {

class JsonReader {
 public:
  JsonReader(std::string name, std::FILE* file, Here here);  // borrows the file
  JsonReader(std::string name, std::string_view text, Here here);

  // while (next_key(key)) { ... read or skip the value ... }
  void begin_object() { begin('{', "an object"); }
  bool next_key(std::string_view& key);  // false: the object ended. The key is valid until the next call
  void begin_array() { begin('[', "an array"); }
  bool next_item();  // false: the array ended

  std::string_view text();  // valid until the next call
  std::uint64_t unsigned_number();
  std::int64_t signed_number();
  double real();
  Picos micros();  // microseconds, rounded to a picosecond: tools that count in doubles leave noise behind it
  bool boolean();
  void skip() { skip_value(0); }
  void finish();  // nothing may follow

  [[noreturn]] void fail(const std::string& what) const;

 private:
  static constexpr int kEnd = -1;
  int peek() {
    if (at_ == end_ && !refill()) return kEnd;
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
  bool refill();
  void begin(char bracket, const char* what);
  bool next(char close, const char* what);
  void skip_value(int depth);
  void skip_word(std::string_view word);
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
  std::uint64_t read_digits(Number& into, bool decimals);
  std::uint64_t scaled(const Number& number, const char* what) const;

  std::string name_;
  Here here_;
  std::FILE* file_ = nullptr;
  std::unique_ptr<char[]> block_;
  const char* start_ = nullptr;  // of the block, for the byte's number
  const char* at_ = nullptr;
  const char* end_ = nullptr;
  std::uint64_t before_ = 0;  // bytes before the block
  std::uint64_t line_ = 1;
  bool first_ = false;  // just after an opening bracket
  std::string buffer_;  // of a string with escapes, or across blocks
};

}  // namespace slip
