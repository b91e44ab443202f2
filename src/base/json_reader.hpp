// JsonReader: a fast pull parser for JSON, used for traces and tensor files. The caller asks for the values
// that it expects, in order, and no tree is built. The reader holds only a window of the input, so the size of a file
// does not matter. Whatever the input, each call returns a value or throws kParse with the file, line and byte.
//
// It is fastest on compact text, the format in which traces are written. Expected keys are compared as two 8-byte
// words; numbers and strings are read eight bytes at a time. Zero bytes after the window end every scan, so no loop
// checks for its end.
//
// For small files in formats of this library there is a strict reader that checks ranges: base/json_fields.hpp.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "slip/op.hpp"

namespace slip::base {

// --- Scanning: eight bytes of text at a time. Little-endian throughout: byte 0 is the lowest. ---

// Longer strings, after unescaping, are refused.
inline constexpr std::size_t kMaxJsonTextBytes = std::size_t{16} << 20;

// The scanning functions may read this many bytes after the end of a text. They must exist and be zero.
inline constexpr std::size_t kScanPadding = 64;

inline std::uint64_t load_word(const char* at) {
  std::uint64_t word = 0;
  std::memcpy(&word, at, sizeof word);
  if constexpr (std::endian::native == std::endian::big) word = __builtin_bswap64(word);
  return word;
}

constexpr std::uint64_t every_byte(std::uint64_t byte) { return byte * 0x0101010101010101U; }

// Both find the first byte that is zero, or is not a digit: its high bit is the lowest set bit of the result. Bits
// above it are meaningless; 0: there is no such byte.
inline std::uint64_t find_zero(std::uint64_t word) { return (word - every_byte(1)) & ~word & every_byte(0x80); }
inline std::uint64_t find_non_digit(std::uint64_t word) {
  return ((word + every_byte(0x46)) | (word - every_byte('0'))) & every_byte(0x80);
}

inline std::size_t first_byte(std::uint64_t bits) { return static_cast<std::size_t>(std::countr_zero(bits)) / 8; }

// Returns the address of the first byte that is kFirst, kSecond or a control character.
template <char kFirst, char kSecond>
const char* find_either(const char* at) {
  for (;; at += 8) {
    const std::uint64_t word = load_word(at);
    const std::uint64_t stop = find_zero(word ^ every_byte(kFirst)) | find_zero(word ^ every_byte(kSecond)) |
                               ((word - every_byte(0x20)) & ~word & every_byte(0x80));
    if (stop != 0) return at + first_byte(stop);
  }
}
// The end of the text in a string that needs no unescaping, and the end of an object that contains no other object. The
// second also stops at a brace within a string: see JsonReader::skip_flat().
inline const char* end_of_plain(const char* at) { return find_either<'"', '\\'>(at); }
inline const char* end_of_flat(const char* at) {
  using Block = unsigned char __attribute__((vector_size(16)));
  for (;; at += sizeof(Block)) {  // objects are long, so most blocks have no such byte
    Block text;
    std::memcpy(&text, at, sizeof(Block));
    const auto stop = (text == '}') | (text == '{') | (text < 0x20);
    std::uint64_t halves[2];
    std::memcpy(halves, &stop, sizeof(halves));
    if ((halves[0] | halves[1]) != 0) return find_either<'}', '{'>(at);
  }
}

inline constexpr std::array<std::uint64_t, 20> kPowersOfTen = [] {
  std::array<std::uint64_t, 20> powers{1};
  for (std::size_t i = 1; i < powers.size(); ++i) powers[i] = powers[i - 1] * 10;
  return powers;
}();

// The value of eight decimal digits. Each byte is the value of a digit, the first digit in the lowest byte. Combines
// neighbours in three steps: to pairs, fours and the whole number.
inline std::uint64_t join_digits(std::uint64_t digits) {
  const std::uint64_t pairs = (digits * 10 + (digits >> 8)) & 0x00FF00FF00FF00FFU;
  const std::uint64_t fours = (pairs * 100 + (pairs >> 16)) & 0x0000FFFF0000FFFFU;
  return (fours * 10'000 + (fours >> 32)) & 0xFFFFFFFFU;
}

// The value of the first `count` bytes of a word, all digits. REQUIRES: 0 < count <= 8.
inline std::uint64_t value_of_digits(std::uint64_t word, std::size_t count) {
  return join_digits((word - every_byte('0')) << (64 - 8 * count));
}

std::uint64_t read_long_digits(const char*& at);  // of a number of 8 digits or more

// Reads up to 16 digits; `at` moves past them. The caller checks whether more digits follow. Inlined: traces consist of
// short numbers.
[[gnu::always_inline]] inline std::uint64_t read_digits(const char*& at) {
  const std::uint64_t word = load_word(at), stop = find_non_digit(word);
  if (stop == 0) [[unlikely]]
    return read_long_digits(at);
  const std::size_t count = first_byte(stop);
  at += count;
  return count == 0 ? 0 : value_of_digits(word, count);
}

// A key in the form of compact JSON, with quotes and colon, so that matches() compares two 8-byte words.
class JsonKey {
 public:
  consteval JsonKey(const char* name)  // NOLINT(google-explicit-constructor): a key is written as a string
      : name_(name) {
    put('"');
    for (const char letter : name_) put(letter);
    put('"');
    put(':');
  }
  bool matches(const char* at) const {
    return (((load_word(at) ^ words_[0]) & masks_[0]) | ((load_word(at + 8) ^ words_[1]) & masks_[1])) == 0;
  }
  std::string_view name() const { return name_; }
  std::size_t bytes() const { return bytes_; }  // with quotes and colon

 private:
  consteval void put(char letter) {
    const std::size_t shift = bytes_ % 8 * 8;
    words_[bytes_ / 8] |= static_cast<std::uint64_t>(static_cast<unsigned char>(letter)) << shift;
    masks_[bytes_ / 8] |= std::uint64_t{0xFF} << shift;
    ++bytes_;
  }
  std::string_view name_;
  std::array<std::uint64_t, 2> words_{}, masks_{};  // a longer name does not compile
  std::size_t bytes_ = 0;
};

// --- The reader, in three layers: the input, scalar values, objects and arrays ---

// The window over the input, the position in it, and errors that name the position.
class JsonInput {
 public:
  // Copies up to `bytes` bytes of the input to `into` and returns how many; 0: the input has ended.
  using Source = std::function<std::size_t(char* into, std::size_t bytes)>;
  static Source from_text(std::string_view text);

  bool at_end() { return peek_past_space() == kEnd; }
  void finish();                             // throws if anything but white space follows
  bool take_bytes(std::string_view prefix);  // true: the input continues with these bytes, and they were read

  struct Position {
    std::uint64_t line = 0, byte = 0;
  };
  Position position() const { return {line_, before_ + static_cast<std::uint64_t>(at_ - block_.get())}; }
  // Saves this position; JsonReader::back() returns to it, once per mark. The bytes after the mark stay in memory until
  // then.
  void mark() {
    mark_ = at_;
    mark_line_ = line_;
  }
  // Names what is being read, for error texts: "tensor 'w'".
  void within(std::string what) { within_ = std::move(what); }
  [[noreturn]] void fail(const std::string& what) const { fail_at(position(), what); }
  [[noreturn]] void fail_at(Position position, const std::string& what) const;

 protected:
  JsonInput(std::string name, Source source, Here here);
  static constexpr int kEnd = -1;

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
  static std::string name_of(int character);  // for error texts; also accepts kEnd
  const char* refill(const char* keep);
  void return_to_mark() {
    at_ = std::exchange(mark_, nullptr);
    line_ = mark_line_;
  }

  const char* at_ = nullptr;   // the next byte
  const char* end_ = nullptr;  // end of the text in the window

 private:
  std::string name_, within_;
  Source source_;
  Here here_;
  std::unique_ptr<char[]> block_;  // the window: text up to end_, then kScanPadding zero bytes
  std::size_t capacity_ = 0;
  std::uint64_t before_ = 0;  // bytes of the input before the window
  std::uint64_t line_ = 1;
  const char* mark_ = nullptr;  // null: no mark. Text from the mark on stays in the window
  std::uint64_t mark_line_ = 0;
};

// A number as written, value = digits * 10^exponent. `exact` is false if the digits do not fit into 64 bits.
struct JsonNumber {
  bool negative = false;
  bool exact = true;
  std::uint64_t digits = 0;
  std::int64_t exponent = 0;
};

// Strings, numbers and booleans.
class JsonScalars : public JsonInput {
 public:
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
  // True: the next value was an array of exactly kCount whole numbers, and it was read. False: nothing was read.
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
  // Microseconds, rounded to a picosecond: tools that compute with doubles write meaningless digits after that.
  Picos micros() {
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
  // Whole microseconds and the rest in picoseconds, for times that do not fit into Picos, such as those since 1970.
  struct LongTime {
    std::int64_t micros = 0;
    Picos rest = 0;
  };
  LongTime long_micros();
  bool boolean() {
    const bool value = peek_past_space() == 't';
    skip_word(value ? "true" : "false");
    return value;
  }
  std::string_view scalar() {  // a string, or the text of a number; valid until the next call
    if (next_is('"')) return text();
    static_cast<void>(number());
    return literal_;
  }
  bool next_is(char first) { return peek_past_space() == static_cast<unsigned char>(first); }
  bool next_is_number() {
    const int next = peek_past_space();
    return next == '-' || (next >= '0' && next <= '9');
  }

 protected:
  using JsonInput::JsonInput;
  void skip_number();
  void skip_word(std::string_view word);

 private:
  static constexpr std::ptrdiff_t kFewDigits = 12;  // maximum digits of whole microseconds that fit into Picos
  static constexpr std::ptrdiff_t kShortText = 4096;

  // True: there is at least one digit between at_ and `at`, and no leading zero.
  bool plain_number(const char* at) const { return at != at_ && (*at_ != '0' || at == at_ + 1); }
  static bool ends_number(const char* at) { return *at == ',' || *at == ']' || *at == '}'; }
  std::string_view any_text();
  std::string_view text_with_escapes(const char* from);
  void check_text_bytes(std::size_t bytes) const;
  void read_escape();
  void read_simple_escape();
  std::uint32_t read_hex();

  JsonNumber number();
  std::uint64_t scaled(const JsonNumber& number, const char* what) const;
  std::uint64_t any_unsigned_number();
  Picos any_micros();

  std::string_view literal_;  // text of the last number that was read
  std::string buffer_;        // holds a string that had escapes
};

class JsonReader : public JsonScalars {
 public:
  JsonReader(std::string name, Source source, Here here) : JsonScalars(std::move(name), std::move(source), here) {}

  // Reads an object: calls each(key) for every member. each() must read or skip the value; the key is valid until it
  // does.
  template <class Each>
  void members(const Each& each) {
    begin_object();
    while (next_member()) each(read_key());
  }
  // Reads an array: calls each() for every item. each() must read or skip the item.
  template <class Each>
  void items(const Each& each) {
    begin_array();
    while (next_item()) each();
  }

  // The same step by step, for callers that expect certain keys: next_member, then take or read_key, then the value.
  void begin_object() { begin('{', "an object"); }
  bool next_member() {  // false: the object ended
    if (at_[0] != ',' || at_[1] != '"' || first_) return next('}', "an object");
    ++at_;
    return true;
  }
  bool take(const JsonKey& key) {  // true: the next key is this one, and it was read
    if (!key.matches(at_)) return false;
    at_ += key.bytes();
    return true;
  }
  std::string_view read_key();  // the key is valid until the next call

  void begin_array() { begin('[', "an array"); }
  bool next_item() {  // false: the array ended
    if (*at_ != ']' && (!first_ || *at_ <= ' ')) return next(']', "an array");
    first_ = false;
    if (*at_ != ']') return true;
    ++at_;
    return false;
  }

  // Like next_item, but the input may also end here, even after a comma, as in truncated traces.
  bool next_item_or_end();

  void skip() { skip_value(0); }
  // True: the next value was an object without inner objects that begins {"KEY":"LETTER", and it was skipped unread. A
  // newline or ",\n" must follow it. A string cannot contain a newline, so a brace before one is not part of a string.
  bool skip_flat(const JsonKey& first_key, char letter) {
    const char* at = at_ + 1 + first_key.bytes();
    if (*at_ != '{' || !first_key.matches(at_ + 1) || at[0] != '"' || at[1] != letter || at[2] != '"') return false;
    const char* end = end_of_flat(at);
    if (end[0] != '}' || (end[1] != '\n' && (end[1] != ',' || end[2] != '\n'))) return false;
    at_ = end + 1;
    return true;
  }

  void back() {
    return_to_mark();
    first_ = false;
  }

 private:
  void begin(char bracket, const char* what) {
    if (*at_ != bracket) require(bracket, what);
    ++at_;
    first_ = true;
  }
  void require(char bracket, const char* what);
  bool next(char close, const char* what);
  void skip_value(int depth);

  bool first_ = false;  // the reader is just after an opening bracket
  std::string key_;     // holds a key that is not immediately followed by its colon
};

}  // namespace slip::base
