// Units of a bar and their short, blank-free text: rows are space separated, so a value is one word.
#pragma once

#include <string>

namespace slip::bench {

enum class Unit { kNanoseconds, kBytes, kPerSecond, kBytesPerSecond, kCount, kPercent };

enum class Rounding { kDown, kUp };

const char* unit_name(Unit unit);
std::string format_value(double value, Unit unit);

std::string format_ns(double nanoseconds);
std::string format_bytes(double bytes);
std::string format_rate(double per_second);
std::string format_bytes_per_second(double bytes_per_second);

// The caller says which way is the pessimistic one, so that a printed ratio never looks better than the
// ratio that was judged (1.998 must not be shown as 2.00x next to a target of >=2x).
std::string format_ratio(double ratio, Rounding rounding);

}  // namespace slip::bench
