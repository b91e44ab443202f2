#include "watch/trace/containers.hpp"

#include <algorithm>
#include <utility>

#include "base/stream_text.hpp"

namespace slip::watch {
namespace {

constexpr unsigned kDigitBits = 11;  // 2048 counters fit into the L1 cache
constexpr std::uint64_t kDigitMask = (std::uint64_t{1} << kDigitBits) - 1;
constexpr std::size_t kSmall = 2000;  // below this size, clearing the counters costs more than comparing

}  // namespace

void sort_by_time(std::vector<TimeKey>& keys) {
  const auto earlier = [](const TimeKey& a, const TimeKey& b) { return a.at < b.at; };
  if (std::is_sorted(keys.begin(), keys.end(), earlier)) return;
  if (keys.size() < kSmall) return std::stable_sort(keys.begin(), keys.end(), earlier);
  const auto [min, max] = std::minmax_element(keys.begin(), keys.end(), earlier);
  const auto base = static_cast<std::uint64_t>(min->at);
  const std::uint64_t range = static_cast<std::uint64_t>(max->at) - base;  // unsigned: the difference cannot overflow
  std::vector<TimeKey> sorted(keys.size());
  for (unsigned shift = 0; shift < 64 && (range >> shift) != 0; shift += kDigitBits) {
    std::array<std::size_t, kDigitMask + 1> place{};
    const auto digit = [&](const TimeKey& key) {
      return ((static_cast<std::uint64_t>(key.at) - base) >> shift) & kDigitMask;
    };
    for (const TimeKey& key : keys) ++place[digit(key)];
    std::size_t next = 0;
    for (std::size_t& count : place) next += std::exchange(count, next);
    for (const TimeKey& key : keys) sorted[place[digit(key)]++] = key;
    keys.swap(sorted);
  }
}

std::vector<std::uint32_t> indices_by_time(std::vector<TimeKey> keys) {
  sort_by_time(keys);
  std::vector<std::uint32_t> result(keys.size());
  std::ranges::transform(keys, result.begin(), &TimeKey::index);
  return result;
}

StreamNames::StreamNames(const TraceData& trace) {
  for (const TraceRecord& record : trace.records) {
    if (record.kind == RecordKind::kStreamOpen) open(record.stream, record.name);
  }
}

void StreamNames::open(std::uint64_t stream, std::string_view name) {
  const std::string_view given = base::given_stream_name(name);
  if (!given.empty()) names_[stream] = given;
}

void StreamNames::close(std::uint64_t stream) {
  if (!names_.contains(stream)) return;
  closed_.push_back(stream);
  if (closed_.size() <= kMaxClosed) return;
  names_.erase(closed_.front());
  closed_.pop_front();
}

}  // namespace slip::watch
