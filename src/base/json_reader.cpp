#include "base/json_reader.hpp"

#include <algorithm>
#include <charconv>
#include <limits>

#include "base/fail.hpp"
#include "base/json_text.hpp"

namespace slip::base {
namespace {

constexpr std::size_t kBlockBytes = std::size_t{256} << 10;  // fits into the L2 cache
constexpr int kMaxDepth = 64;

constexpr std::int64_t kMaxExponent = 1'000'000;
constexpr std::uint64_t kMaxUnsigned = std::numeric_limits<std::uint64_t>::max();
constexpr auto kMaxSigned = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
constexpr std::size_t kMaxNumberBytes = std::size_t{1} << 20;

bool is_digit(int character) { return character >= '0' && character <= '9'; }

}  // namespace

std::uint64_t read_long_digits(const char*& at) {
  const std::uint64_t value = join_digits(load_word(at) - every_byte('0'));
  at += 8;
  const std::uint64_t word = load_word(at), stop = find_non_digit(word);
  const std::size_t count = stop == 0 ? 8 : first_byte(stop);
  at += count;
  return count == 0 ? value : value * kPowersOfTen[count] + value_of_digits(word, count);
}

std::string JsonInput::name_of(int character) {
  if (character < 0) return "the end of the file";
  if (character < 0x20 || character > 0x7E) return fmt::format("byte 0x{:02x}", character);
  return fmt::format("'{}'", static_cast<char>(character));
}

JsonInput::Source JsonInput::from_text(std::string_view text) {
  return [text](char* into, std::size_t bytes) mutable {
    const std::size_t count = text.copy(into, bytes);
    text.remove_prefix(count);
    return count;
  };
}

JsonInput::JsonInput(std::string name, Source source, Here here)
    : name_(std::move(name)),
      source_(std::move(source)),
      here_(here),
      block_(std::make_unique<char[]>(kBlockBytes + kScanPadding)),
      capacity_(kBlockBytes) {
  at_ = end_ = block_.get();
}

void JsonInput::fail_at(Position position, const std::string& what) const {
  base::fail(ErrorCode::kParse, here_, "'{}', line {}, byte {}: {}{}{}", name_, position.line, position.byte, within_,
             within_.empty() ? "" : ": ", what);
}

// Moves the text from `keep` on (from the mark on, if that is earlier) to the start of the window. Then reads more
// input after it. Returns the new address of `keep`, or null if the input has ended.
const char* JsonInput::refill(const char* keep) {
  const char* first = mark_ ? std::min(mark_, keep) : keep;
  const auto kept = static_cast<std::size_t>(end_ - first);
  const auto keep_offset = static_cast<std::size_t>(keep - first), at_offset = static_cast<std::size_t>(at_ - first);
  before_ += static_cast<std::uint64_t>(first - block_.get());
  if (kept > capacity_ / 2) {  // the window is doubled, so that a long text is moved only a few times
    auto larger = std::make_unique_for_overwrite<char[]>(capacity_ * 2 + kScanPadding);
    std::memcpy(larger.get(), first, kept);
    block_ = std::move(larger);
    capacity_ *= 2;
  } else {
    std::memmove(block_.get(), first, kept);
  }
  if (mark_) mark_ = block_.get();
  const std::size_t added = source_(block_.get() + kept, capacity_ - kept);
  char* end = block_.get() + kept + added;
  std::memset(end, 0, kScanPadding);
  end_ = end;
  at_ = block_.get() + at_offset;
  return added > 0 ? block_.get() + keep_offset : nullptr;
}

bool JsonInput::take_bytes(std::string_view prefix) {
  while (static_cast<std::size_t>(end_ - at_) < prefix.size() && refill(at_)) {}
  if (std::string_view(at_, static_cast<std::size_t>(end_ - at_)).substr(0, prefix.size()) != prefix) return false;
  at_ += prefix.size();
  return true;
}

void JsonInput::finish() {
  const int found = peek_past_space();
  if (found != kEnd) fail(fmt::format("expected the end of the file, found {}", name_of(found)));
}

// --- Strings and literals ---

void JsonScalars::check_text_bytes(std::size_t bytes) const {
  if (bytes > kMaxJsonTextBytes) fail(fmt::format("a string of more than {} bytes", kMaxJsonTextBytes));
}

std::string_view JsonScalars::any_text() {
  if (*at_ != '"') {
    const int found = peek_past_space();
    if (found != '"') fail(fmt::format("expected a string, found {}", name_of(found)));
  }
  const char* from = ++at_;
  for (;;) {
    at_ = end_of_plain(at_);
    const auto bytes = static_cast<std::size_t>(at_ - from);
    if (*at_ == '"') {
      check_text_bytes(bytes);
      ++at_;
      return {from, bytes};
    }
    if (at_ != end_) return text_with_escapes(from);
    check_text_bytes(bytes);
    from = refill(from);
    if (!from) fail("the file ends within a string");
  }
}

std::string_view JsonScalars::text_with_escapes(const char* from) {
  buffer_.clear();
  for (;;) {
    buffer_.append(from, at_);
    check_text_bytes(buffer_.size());
    const int next = peek();
    if (next == '"') break;
    if (next == kEnd) fail("the file ends within a string");
    if (next == '\\') read_escape();
    else if (next < 0x20) fail(fmt::format("{} within a string must be escaped", name_of(next)));
    from = at_;
    at_ = end_of_plain(at_);
  }
  ++at_;
  return buffer_;
}

std::uint32_t JsonScalars::read_hex() {
  std::uint32_t value = 0;
  for (int i = 0; i < 4; ++i) {
    const int digit = peek();
    const int lower = digit | 0x20;
    if (is_digit(digit)) value = value * 16 + static_cast<std::uint32_t>(digit - '0');
    else if (lower >= 'a' && lower <= 'f') value = value * 16 + static_cast<std::uint32_t>(lower - 'a' + 10);
    else fail(fmt::format("expected four hex digits after \\u, found {}", name_of(digit)));
    ++at_;
  }
  return value;
}

void JsonScalars::read_simple_escape() {
  static constexpr std::string_view kFrom = "\"\\/bfnrt";
  static constexpr std::string_view kTo = "\"\\/\b\f\n\r\t";
  const int escape = peek();
  if (escape == kEnd) fail("the file ends within a string");
  const std::size_t i = kFrom.find(static_cast<char>(escape));
  if (i == std::string_view::npos) fail(fmt::format("unknown escape {}", name_of(escape)));
  buffer_.push_back(kTo[i]);
  ++at_;
}

void JsonScalars::read_escape() {
  std::uint32_t high = 0;  // 0, or a first half of a surrogate pair whose second half may be the next escape
  for (;;) {
    ++at_;  // the backslash
    if (peek() != 'u') {
      if (high != 0) append_code_point(buffer_, high);  // an unpaired surrogate becomes U+FFFD
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

void JsonScalars::skip_word(std::string_view word) {
  for (const char letter : word) {
    const int found = peek();
    if (found != letter) fail(fmt::format("expected '{}', found {}", word, name_of(found)));
    ++at_;
  }
}

void JsonScalars::skip_number() {
  const char* at = at_;
  static_cast<void>(read_digits(at));
  if (plain_number(at) && ends_number(at)) at_ = at;
  else static_cast<void>(number());
}

// --- Numbers, in every form that JSON allows. Inline functions of the header read the usual forms. ---

namespace {

// Appends the digits from `at` on to the number. Returns how many there were.
std::uint64_t add_digits(const char*& at, JsonNumber& into, bool decimals) {
  std::uint64_t count = 0;
  for (; is_digit(*at); ++at, ++count) {
    const auto digit = static_cast<std::uint64_t>(*at - '0');
    if (into.digits < kMaxUnsigned / 10 - 1 || into.digits <= (kMaxUnsigned - digit) / 10) {
      into.digits = into.digits * 10 + digit;
      into.exponent -= decimals ? 1 : 0;
    } else {
      into.exact &= decimals && digit == 0;  // trailing zeros of decimals do not matter
      into.exponent += decimals ? 0 : 1;
    }
  }
  return count;
}

// Reads the longest prefix that is a number. Returns null, or an error text for position `at`.
const char* read_number(const char*& at, JsonNumber& into) {
  if (*at == '-') {
    into.negative = true;
    ++at;
  }
  if (!is_digit(*at)) return "expected a number";
  const bool zero = *at == '0';
  if (add_digits(at, into, false) > 1 && zero) return "a number may not begin with 0";
  if (*at == '.') {
    ++at;
    if (add_digits(at, into, true) == 0) return "expected digits after the decimal point";
  }
  if ((*at | 0x20) == 'e') {
    ++at;
    const char sign = *at;
    if (sign == '+' || sign == '-') ++at;
    if (!is_digit(*at)) return "expected digits in the exponent";
    std::int64_t exponent = 0;
    for (; is_digit(*at); ++at) exponent = std::min(kMaxExponent, exponent * 10 + (*at - '0'));
    into.exponent += sign == '-' ? -exponent : exponent;
  }
  return nullptr;
}

}  // namespace

JsonNumber JsonScalars::number() {
  peek_past_space();
  for (;;) {
    JsonNumber result;
    const char* at = at_;
    const char* fault = read_number(at, result);
    if (at == end_) {  // the number may continue after the window: read it again with more input
      if (at - at_ > static_cast<std::ptrdiff_t>(kMaxNumberBytes))
        fail(fmt::format("a number of more than {} bytes", kMaxNumberBytes));
      if (refill(at_)) continue;
      at = end_;
    }
    literal_ = {at_, static_cast<std::size_t>(at - at_)};
    at_ = at;
    if (!fault) return result;
    fail(fmt::format("{}, found {}", fault, name_of(peek())));
  }
}

// Converts the number to an integer; throws if it is not one.
std::uint64_t JsonScalars::scaled(const JsonNumber& number, const char* what) const {
  std::uint64_t value = number.digits;
  if (!number.exact) fail(fmt::format("{}: too many digits", what));
  if (value == 0) return 0;
  for (std::int64_t i = number.exponent; i < 0; ++i) {
    if (value % 10 != 0) fail(fmt::format("{}: too many decimals", what));
    value /= 10;
  }
  for (std::int64_t i = number.exponent; i > 0; --i) {
    if (value > kMaxUnsigned / 10) fail(fmt::format("{}: too large", what));
    value *= 10;
  }
  return value;
}

std::uint64_t JsonScalars::any_unsigned_number() {
  const JsonNumber found = number();
  const std::uint64_t value = scaled(found, "whole number");
  if (found.negative && value != 0) fail("a number below zero where none is allowed");
  return value;
}

std::int64_t JsonScalars::signed_number() {
  const JsonNumber found = number();
  const std::uint64_t value = scaled(found, "whole number");
  if (value > kMaxSigned) fail("whole number: too large");
  return found.negative ? -static_cast<std::int64_t>(value) : static_cast<std::int64_t>(value);
}

Picos JsonScalars::any_micros() {
  JsonNumber found = number();
  found.exponent += 6;
  found.exact = true;  // lost digits are less than a picosecond, or the number is too large anyway
  for (; found.exponent < 0 && found.digits != 0; ++found.exponent) {
    // Rounds at the last digit. Adding 5 before the division could overflow.
    const bool rounds_up = found.exponent == -1 && found.digits % 10 >= 5;
    found.digits = found.digits / 10 + (rounds_up ? 1 : 0);
  }
  const std::uint64_t value = scaled(found, "time in microseconds");
  if (value > kMaxSigned) fail("time in microseconds: too large");
  return found.negative ? -static_cast<Picos>(value) : static_cast<Picos>(value);
}

JsonScalars::LongTime JsonScalars::long_micros() {
  JsonNumber found = number();
  found.exact = true;
  LongTime time;
  std::uint64_t whole = found.digits, rest = 0;  // `rest`: picoseconds
  if (found.exponent >= 0) {
    whole = scaled(found, "time in microseconds");
  } else {
    for (; found.exponent < -static_cast<std::int64_t>(kPowersOfTen.size() - 1) && found.digits != 0; ++found.exponent)
      found.digits /= 10;
    const auto decimals = static_cast<std::size_t>(found.digits == 0 ? 0 : -found.exponent);
    whole = found.digits / kPowersOfTen[decimals];
    rest = found.digits % kPowersOfTen[decimals];
    rest = decimals <= 6 ? rest * kPowersOfTen[6 - decimals]
                         : (rest + kPowersOfTen[decimals - 6] / 2) / kPowersOfTen[decimals - 6];
  }
  if (whole > kMaxSigned) fail("time in microseconds: too large");
  time.micros = static_cast<std::int64_t>(whole);
  time.rest = static_cast<Picos>(rest);
  if (found.negative) time = {-time.micros, -time.rest};
  return time;
}

double JsonScalars::real() {
  const JsonNumber found = number();
  const std::string text = fmt::format("{}{}e{}", found.negative ? "-" : "", found.digits, found.exponent);
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);  // the nearest double
  if (error != std::errc()) fail("a number beyond the range of doubles");
  return value;
}

// --- Objects and arrays ---

void JsonReader::require(char bracket, const char* what) {
  const int found = peek_past_space();
  if (found != bracket) fail(fmt::format("expected {}, found {}", what, name_of(found)));
}

// Moves to the next member or item, past the comma. False: there is none, and the reader is past the closing bracket.
bool JsonReader::next(char close, const char* what) {
  int found = peek_past_space();
  const bool first = std::exchange(first_, false);
  if (found == close) {
    ++at_;
    return false;
  }
  if (first) return true;
  if (found != ',') fail(fmt::format("expected ',' or '{}' in {}, found {}", close, what, name_of(found)));
  ++at_;
  found = peek_past_space();
  if (found == close) fail(fmt::format("'{}' after a comma in {}", close, what));
  return true;
}

bool JsonReader::next_item_or_end() {
  if (peek_past_space() == ',' && !first_) {
    ++at_;
    first_ = !at_end();  // next_item() then expects no further comma
    if (!first_) return false;
    if (next_is(']')) fail("']' after a comma in an array");
  }
  return !at_end() && next_item();
}

std::string_view JsonReader::read_key() {
  std::string_view key = text();
  // The colon nearly always follows immediately. If it does not, the search for it may move the window that holds
  // `key`, so copy the key first.
  if (*at_ != ':') {
    key_.assign(key);
    key = key_;
    const int found = peek_past_space();
    if (found != ':') fail(fmt::format("expected ':' after a key, found {}", name_of(found)));
  }
  ++at_;
  return key;
}

void JsonReader::skip_value(int depth) {
  if (depth > kMaxDepth) fail(fmt::format("more than {} brackets within each other", kMaxDepth));
  switch (peek_past_space()) {
    case '{':
      begin_object();
      while (next_member()) {
        read_key();
        skip_value(depth + 1);
      }
      return;
    case '[':
      begin_array();
      while (next_item()) skip_value(depth + 1);
      return;
    case '"': text(); return;
    case 't': skip_word("true"); return;
    case 'f': skip_word("false"); return;
    case 'n': skip_word("null"); return;
    default: break;
  }
  skip_number();
}

}  // namespace slip::base
