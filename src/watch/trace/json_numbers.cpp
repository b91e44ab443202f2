// The numbers of JsonReader, in every form that JSON allows. The usual forms are read in the header.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>

#include "base/json_reader.hpp"

namespace slip {
namespace {

constexpr std::int64_t kMaxExponent = 1'000'000;
constexpr std::uint64_t kMaxUnsigned = std::numeric_limits<std::uint64_t>::max();
constexpr auto kMaxSigned = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
constexpr std::size_t kMaxNumberBytes = std::size_t{1} << 20;

bool is_digit(char character) { return character >= '0' && character <= '9'; }

constexpr std::array<std::uint64_t, 20> kTens = [] {
  std::array<std::uint64_t, 20> tens{1};
  for (std::size_t i = 1; i < tens.size(); ++i) tens[i] = tens[i - 1] * 10;
  return tens;
}();

}  // namespace

std::uint64_t JsonReader::add_digits(const char*& at, Number& into, bool decimals) {
  std::uint64_t count = 0;
  for (; is_digit(*at); ++at, ++count) {
    const auto digit = static_cast<std::uint64_t>(*at - '0');
    if (into.digits < kMaxUnsigned / 10 - 1 || into.digits <= (kMaxUnsigned - digit) / 10) {
      into.digits = into.digits * 10 + digit;
      into.exponent -= decimals ? 1 : 0;
    } else {
      into.exact &= decimals && digit == 0;  // zeros at the end of decimals say nothing
      into.exponent += decimals ? 0 : 1;
    }
  }
  return count;
}

// Reads as far as the text is a number. What is wrong, if anything, is at `at`.
const char* JsonReader::read_number(const char*& at, Number& into) {
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

JsonReader::Number JsonReader::number() {
  peek_past_space();
  for (;;) {
    Number result;
    const char* at = at_;
    const char* fault = read_number(at, result);
    if (at == end_) {  // the window ends here, but perhaps not the number: again, with more of it
      if (at - at_ > static_cast<std::ptrdiff_t>(kMaxNumberBytes))
        fail(fmt::format("a number of more than {} bytes", kMaxNumberBytes));
      if (refill(at_)) continue;
      at = end_;
    }
    literal_ = {at_, static_cast<std::size_t>(at - at_)};
    at_ = at;
    if (!fault) return result;
    fail(fmt::format("{}, found {}", fault, shown(peek())));
  }
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
    if (value > kMaxUnsigned / 10) fail(fmt::format("{}: too large", what));
    value *= 10;
  }
  return value;
}

std::uint64_t JsonReader::any_unsigned_number() {
  const Number found = number();
  const std::uint64_t value = scaled(found, "whole number");
  if (found.negative && value != 0) fail("a number below zero where none can be");
  return value;
}

std::int64_t JsonReader::signed_number() {
  const Number found = number();
  const std::uint64_t value = scaled(found, "whole number");
  if (value > kMaxSigned) fail("whole number: too large");
  return found.negative ? -static_cast<std::int64_t>(value) : static_cast<std::int64_t>(value);
}

Picos JsonReader::any_micros() {
  Number found = number();
  found.exponent += 6;
  found.exact = true;  // what was cut off is less than a picosecond, or the rest is too large anyway
  for (; found.exponent < 0 && found.digits != 0; ++found.exponent)
    found.digits = (found.digits + (found.exponent == -1 ? 5 : 0)) / 10;
  const std::uint64_t value = scaled(found, "time in microseconds");
  if (value > kMaxSigned) fail("time in microseconds: too large");
  return found.negative ? -static_cast<Picos>(value) : static_cast<Picos>(value);
}

JsonReader::LongTime JsonReader::long_micros() {
  Number found = number();
  found.exact = true;
  LongTime time;
  std::uint64_t whole = found.digits, rest = 0;  // the rest in picoseconds
  if (found.exponent >= 0) {
    whole = scaled(found, "time in microseconds");
  } else {
    for (; found.exponent < -static_cast<std::int64_t>(kTens.size() - 1) && found.digits != 0; ++found.exponent)
      found.digits /= 10;
    const auto decimals = static_cast<std::size_t>(found.digits == 0 ? 0 : -found.exponent);
    whole = found.digits / kTens[decimals];
    rest = found.digits % kTens[decimals];
    rest = decimals <= 6 ? rest * kTens[6 - decimals] : (rest + kTens[decimals - 6] / 2) / kTens[decimals - 6];
  }
  if (whole > kMaxSigned) fail("time in microseconds: too large");
  time.micros = static_cast<std::int64_t>(whole);
  time.rest = static_cast<Picos>(rest);
  if (found.negative) time = {-time.micros, -time.rest};
  return time;
}

double JsonReader::real() {
  const Number found = number();
  const std::string text = fmt::format("{}{}e{}", found.negative ? "-" : "", found.digits, found.exponent);
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);  // the nearest double
  if (error != std::errc()) fail("a number beyond the range of doubles");
  return value;
}

}  // namespace slip
