#include "watch/race/words_written.hpp"

#include <algorithm>

#include "watch/race/deadlock.hpp"

namespace slip {
namespace {
// Writes of one word that are remembered. Who waits for an older value is taken to come after the oldest of these.
constexpr std::size_t kMaxWrites = 1024;
}  // namespace

void WordsWritten::write(const TraceRange& word, Clocks::Point point, std::uint32_t value) {
  std::vector<Write>& writes = words_[{word.buffer, word.offset}];
  // A lower value is a new beginning.
  std::erase_if(writes, [&](const Write& write) {
    return write.point.slot == point.slot && write.value != value && lets_go(write.value, value);
  });
  if (writes.size() >= kMaxWrites) writes.erase(writes.begin(), writes.begin() + kMaxWrites / 2);
  writes.push_back({point, value});
}

void WordsWritten::forget(const TraceRange& range) {
  if (words_.empty()) return;
  const auto first = words_.lower_bound({range.buffer, range.offset});
  const auto last = words_.lower_bound({range.buffer, range.offset + range.bytes});
  words_.erase(first, last);
}

const std::vector<WordsWritten::Write>* WordsWritten::writes_of(const TraceRange& word) const {
  const auto found = words_.find({word.buffer, word.offset});
  return found == words_.end() ? nullptr : &found->second;
}

bool WordsWritten::is_written(const TraceRange& word, std::uint32_t value) const {
  const std::vector<Write>* writes = writes_of(word);
  return writes &&
         std::any_of(writes->begin(), writes->end(), [&](const Write& write) { return lets_go(write.value, value); });
}

std::optional<Clocks::Point> WordsWritten::passed(const TraceRange& word, std::uint32_t value) const {
  std::optional<Clocks::Point> result;
  const std::vector<Write>* writes = writes_of(word);
  if (!writes) return result;
  for (const Write& write : *writes) {
    if (!lets_go(write.value, value)) continue;
    if (!result) result = write.point;
    else if (result->slot != write.point.slot) return std::nullopt;
  }
  return result;
}

}  // namespace slip
