#include "watch/race/flag_writes.hpp"

#include <algorithm>

namespace slip::watch {
namespace {
// Maximum number of kept writes of one flag. A wait for an older value counts as ordered after the oldest kept write.
constexpr std::size_t kMaxWrites = 1024;
}  // namespace

void FlagWrites::write(const TraceRange& flag, Clocks::Point point, std::uint32_t value) {
  std::vector<Write>& writes = flags_[{flag.buffer, flag.offset}];
  // A lower value restarts the count: drop the higher values that the same stream wrote before.
  std::erase_if(writes, [&](const Write& write) {
    return write.point.slot == point.slot && write.value != value && ends_wait(write.value, value);
  });
  if (writes.size() >= kMaxWrites) writes.erase(writes.begin(), writes.begin() + kMaxWrites / 2);
  writes.push_back({point, value});
}

void FlagWrites::forget(const TraceRange& range) {
  if (flags_.empty()) return;
  const auto first = flags_.lower_bound({range.buffer, range.offset});
  const auto last = flags_.lower_bound({range.buffer, range.offset + range.bytes});
  flags_.erase(first, last);
}

const std::vector<FlagWrites::Write>* FlagWrites::writes_of(const TraceRange& flag) const {
  const auto found = flags_.find({flag.buffer, flag.offset});
  return found == flags_.end() ? nullptr : &found->second;
}

bool FlagWrites::is_written(const TraceRange& flag, std::uint32_t value) const {
  const std::vector<Write>* writes = writes_of(flag);
  return writes &&
         std::any_of(writes->begin(), writes->end(), [&](const Write& write) { return ends_wait(write.value, value); });
}

std::optional<Clocks::Point> FlagWrites::write_before(const TraceRange& flag, std::uint32_t value) const {
  std::optional<Clocks::Point> result;
  const std::vector<Write>* writes = writes_of(flag);
  if (!writes) return result;
  for (const Write& write : *writes) {
    if (!ends_wait(write.value, value)) continue;
    if (!result) result = write.point;
    else if (result->slot != write.point.slot) return std::nullopt;
  }
  return result;
}

}  // namespace slip::watch
