#include "watch/json_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <limits>
#include <utility>

#include "watch/json_text.hpp"

namespace slip {
namespace {

constexpr std::size_t kBlockBytes = std::size_t{256} << 10;
constexpr std::size_t kMaxTextBytes = std::size_t{16} << 20;
constexpr int kMaxDepth = 64;
constexpr std::int64_t kMaxExponent = 1'000'000;

bool is_digit(int character) { return character >= '0' && character <= '9'; }

// By byte: may stand within a string as it is.
constexpr std::array<bool, 256> kPlain = [] {
  std::array<bool, 256> plain{};
  for (int i = 0x20; i < 256; ++i) plain[static_cast<std::size_t>(i)] = i != '"' && i != '\\';
  return plain;
}();

std::string shown(int character) {
  if (character < 0) return "the end of the file";
  if (character < 0x20 || character > 0x7E) return fmt::format("byte 0x{:02x}", character);
  return fmt::format("'{}'", static_cast<char>(character));
}

}  // namespace

JsonReader::JsonReader(std::string name, std::FILE* file, Here here)
    : name_(std::move(name)), here_(here), file_(file), block_(std::make_unique_for_overwrite<char[]>(kBlockBytes)) {}

JsonReader::JsonReader(std::string name, std::string_view text, Here here)
    : name_(std::move(name)), here_(here), start_(text.data()), at_(text.data()), end_(text.data() + text.size()) {}

void JsonReader::fail(const std::string& what) const {
  const std::uint64_t byte = before_ + static_cast<std::uint64_t>(at_ - start_);
  throw Error(Code::kParse, fmt::format("'{}', line {}, byte {}: {}", name_, line_, byte, what), here_);
}

bool JsonReader::refill() {
  if (!file_) return false;
  before_ += static_cast<std::uint64_t>(end_ - start_);
  const std::size_t count = std::fread(block_.get(), 1, kBlockBytes, file_);
  if (count == 0 && std::ferror(file_) != 0)
    throw Error(Code::kIo, fmt::format("cannot read '{}': {}", name_, std::strerror(errno)), here_);
  start_ = at_ = block_.get();
  end_ = start_ + count;
  return count > 0;
}

void JsonReader::begin(char bracket, const char* what) {
  const int found = peek_past_space();
  if (found != bracket) fail(fmt::format("expected {}, found {}", what, shown(found)));
  ++at_;
  first_ = true;
}

// To the next member or item: past the comma, or past the closing bracket.
bool JsonReader::next(char close, const char* what) {
  int found = peek_past_space();
  const bool first = std::exchange(first_, false);
  if (found == close) {
    ++at_;
    return false;
  }
  if (first) return true;
  if (found != ',') fail(fmt::format("expected ',' or '{}' in {}, found {}", close, what, shown(found)));
  ++at_;
  found = peek_past_space();
  if (found == close) fail(fmt::format("'{}' after a comma in {}", close, what));
  return true;
}

bool JsonReader::next_key(std::string_view& key) {
  if (!next('}', "an object")) return false;
  key = text();
  // The colon nearly always follows at once; when it does not, looking for it may replace the block that `key` lies in.
  if (at_ == end_ || *at_ != ':') {
    if (key.data() != buffer_.data()) buffer_.assign(key);
    key = buffer_;
    const int found = peek_past_space();
    if (found != ':') fail(fmt::format("expected ':' after a key, found {}", shown(found)));
  }
  ++at_;
  return true;
}

bool JsonReader::next_item() { return next(']', "an array"); }

std::string_view JsonReader::text() {
  const int found = peek_past_space();
  if (found != '"') fail(fmt::format("expected a string, found {}", shown(found)));
  ++at_;
  buffer_.clear();
  bool split = false;  // in buffer_, because of an escape or the end of the block
  for (;;) {
    const char* plain = at_;
    const char* at = plain;
    while (at != end_ && kPlain[static_cast<unsigned char>(*at)]) ++at;
    at_ = at;
    const std::string_view piece(plain, static_cast<std::size_t>(at - plain));
    if (buffer_.size() + piece.size() > kMaxTextBytes)
      fail(fmt::format("a string of more than {} bytes", kMaxTextBytes));
    if (at_ != end_ && *at_ == '"') {
      ++at_;
      if (!split) return piece;
      buffer_ += piece;
      return buffer_;
    }
    buffer_ += piece;
    split = true;
    const int next = peek();
    if (next == kEnd) fail("the file ends within a string");
    if (next == '\\') read_escape();
    else if (next < 0x20) fail(fmt::format("{} within a string must be escaped", shown(next)));
  }
}

std::uint32_t JsonReader::read_hex() {
  std::uint32_t value = 0;
  for (int i = 0; i < 4; ++i) {
    const int digit = peek();
    const int lower = digit | 0x20;
    if (is_digit(digit)) value = value * 16 + static_cast<std::uint32_t>(digit - '0');
    else if (lower >= 'a' && lower <= 'f') value = value * 16 + static_cast<std::uint32_t>(lower - 'a' + 10);
    else fail(fmt::format("expected four hex digits after \\u, found {}", shown(digit)));
    ++at_;
  }
  return value;
}

void JsonReader::read_simple_escape() {
  static constexpr std::string_view kFrom = "\"\\/bfnrt";
  static constexpr std::string_view kTo = "\"\\/\b\f\n\r\t";
  const int escape = peek();
  if (escape == kEnd) fail("the file ends within a string");
  const std::size_t i = kFrom.find(static_cast<char>(escape));
  if (i == std::string_view::npos) fail(fmt::format("unknown escape {}", shown(escape)));
  buffer_.push_back(kTo[i]);
  ++at_;
}

void JsonReader::read_escape() {
  std::uint32_t high = 0;  // the first half of a pair, whose second half must be the very next escape
  for (;;) {
    ++at_;  // the backslash
    if (peek() != 'u') {
      if (high != 0) append_code_point(buffer_, high);  // a half alone
      return read_simple_escape();
    }
    ++at_;
    std::uint32_t value = read_hex();
    if (high != 0 && value >= 0xDC00 && value <= 0xDFFF) value = 0x10000 + ((high - 0xD800) << 10) + (value - 0xDC00);
    else if (high != 0) append_code_point(buffer_, high);
    if (value < 0xD800 || value > 0xDBFF || peek() != '\\') return append_code_point(buffer_, value);
    high = value;
  }
}

std::uint64_t JsonReader::read_digits(Number& into, bool decimals) {
  constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
  Number number = into;
  std::uint64_t count = 0;
  do {  // a block at a time, in local variables: numbers are a third of a trace
    const char* at = at_;
    for (; at != end_ && is_digit(*at); ++at, ++count) {
      const auto digit = static_cast<std::uint64_t>(*at - '0');
      if (number.digits < kMax / 10 - 1 || number.digits <= (kMax - digit) / 10) {
        number.digits = number.digits * 10 + digit;
        number.exponent -= decimals ? 1 : 0;
      } else {
        number.exact &= decimals && digit == 0;  // zeros at the end of decimals say nothing
        number.exponent += decimals ? 0 : 1;
      }
    }
    at_ = at;
  } while (at_ == end_ && refill());
  into = number;
  return count;
}

JsonReader::Number JsonReader::number() {
  Number result;
  int next = peek_past_space();
  if (next == '-') {
    result.negative = true;
    ++at_;
    next = peek();
  }
  if (!is_digit(next)) fail(fmt::format("expected a number, found {}", shown(next)));
  const std::uint64_t whole = read_digits(result, false);
  if (next == '0' && whole > 1) fail("a number may not begin with 0");
  if (peek() == '.') {
    ++at_;
    if (read_digits(result, true) == 0) fail("expected digits after the decimal point");
  }
  if ((peek() | 0x20) == 'e') {
    ++at_;
    const int sign = peek();
    if (sign == '+' || sign == '-') ++at_;
    if (!is_digit(peek())) fail("expected digits in the exponent");
    std::int64_t exponent = 0;
    for (; is_digit(peek()); ++at_) exponent = std::min(kMaxExponent, exponent * 10 + (*at_ - '0'));
    result.exponent += sign == '-' ? -exponent : exponent;
  }
  return result;
}

// The number as a whole one; fails where it is not.
std::uint64_t JsonReader::scaled(const Number& number, const char* what) const {
  std::uint64_t value = number.digits;
  if (!number.exact) fail(fmt::format("{}: too many digits", what));
  if (value == 0) return 0;
  for (std::int64_t i = number.exponent; i < 0; ++i) {
    if (value % 10 != 0) fail(fmt::format("{}: too many decimals", what));
    value /= 10;
  }
  for (std::int64_t i = number.exponent; i > 0; --i) {
    if (value > std::numeric_limits<std::uint64_t>::max() / 10) fail(fmt::format("{}: too large", what));
    value *= 10;
  }
  return value;
}

std::uint64_t JsonReader::unsigned_number() {
  const Number found = number();
  const std::uint64_t value = scaled(found, "whole number");
  if (found.negative && value != 0) fail("a number below zero where none can be");
  return value;
}

std::int64_t JsonReader::signed_number() {
  const Number found = number();
  const std::uint64_t value = scaled(found, "whole number");
  if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) fail("whole number: too large");
  return found.negative ? -static_cast<std::int64_t>(value) : static_cast<std::int64_t>(value);
}

Picos JsonReader::micros() {
  Number found = number();
  found.exponent += 6;
  found.exact = true;  // what was cut off is less than a picosecond, or the rest is too large anyway
  for (; found.exponent < 0 && found.digits != 0; ++found.exponent)
    found.digits = (found.digits + (found.exponent == -1 ? 5 : 0)) / 10;
  const std::uint64_t value = scaled(found, "time in microseconds");
  if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    fail("time in microseconds: too large");
  return found.negative ? -static_cast<Picos>(value) : static_cast<Picos>(value);
}

double JsonReader::real() {
  const Number found = number();
  const std::string text = fmt::format("{}{}e{}", found.negative ? "-" : "", found.digits, found.exponent);
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);  // the nearest double
  if (error != std::errc()) fail("a number beyond the range of doubles");
  return value;
}

void JsonReader::skip_word(std::string_view word) {
  for (const char letter : word) {
    const int found = peek();
    if (found != letter) fail(fmt::format("expected '{}', found {}", word, shown(found)));
    ++at_;
  }
}

bool JsonReader::boolean() {
  const bool value = peek_past_space() == 't';
  skip_word(value ? "true" : "false");
  return value;
}

void JsonReader::skip_value(int depth) {
  if (depth > kMaxDepth) fail(fmt::format("more than {} brackets within each other", kMaxDepth));
  std::string_view key;
  switch (peek_past_space()) {
    case '{':
      begin_object();
      while (next_key(key)) skip_value(depth + 1);
      return;
    case '[':
      begin_array();
      while (next_item()) skip_value(depth + 1);
      return;
    case '"': text(); return;
    case 't': skip_word("true"); return;
    case 'f': skip_word("false"); return;
    case 'n': skip_word("null"); return;
    default: number();
  }
}

void JsonReader::finish() {
  const int found = peek_past_space();
  if (found != kEnd) fail(fmt::format("expected the end of the file, found {}", shown(found)));
}

}  // namespace slip
