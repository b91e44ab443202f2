// Units of a bar, and values as short texts without spaces: the columns of a row are separated by spaces.
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

// `rounding`: the direction that makes the ratio worse. So a printed ratio never looks better than the measured one:
// 1.998 must not be printed as 2.00x beside a target of >=2x.
std::string format_ratio(double ratio, Rounding rounding);

}  // namespace slip::bench
