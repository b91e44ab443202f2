// FlagWrites: the stream memory operations that wrote each flag, used by RaceCheck. A flag is a 32-bit value in memory
// that streams write (write_value) and wait for (wait_value).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "slip/trace.hpp"
#include "watch/race/clocks.hpp"

namespace slip::watch {

// Whether a flag with the value `written` ends a wait for `awaited`. Values count up and may wrap around.
constexpr bool ends_wait(std::uint32_t written, std::uint32_t awaited) {
  return static_cast<std::int32_t>(written - awaited) >= 0;
}

using FlagAddress = std::pair<std::uint64_t, std::uint64_t>;  // buffer and offset

class FlagWrites {
 public:
  void write(const TraceRange& flag, Clocks::Point point, std::uint32_t value);
  // Another op wrote these bytes: earlier writes of flags in them no longer count.
  void forget(const TraceRange& range);

  bool is_written(const TraceRange& flag, std::uint32_t value) const;
  // Returns the write that has certainly happened when a wait for the value ends: the first one that reaches the value.
  // Returns nullopt if several streams wrote such values, because any of these writes may have ended the wait.
  std::optional<Clocks::Point> write_before(const TraceRange& flag, std::uint32_t value) const;

 private:
  struct Write {
    Clocks::Point point;
    std::uint32_t value;
  };
  const std::vector<Write>* writes_of(const TraceRange& flag) const;
  std::map<FlagAddress, std::vector<Write>> flags_;
};

}  // namespace slip::watch
