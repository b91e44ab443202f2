// Containers and a sort for trace code, which handles millions of records: interned strings, a hash map with a cache,
// and a radix sort by time.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/json_reader.hpp"
#include "base/json_text.hpp"
#include "base/sync.hpp"
#include "slip/op.hpp"

namespace slip::watch {

// Interned strings: equal strings are stored once, so strings are equal if and only if their addresses are equal.
class StringPool {
 public:
  static constexpr std::size_t kCacheEntries = 256;  // cache_slot() returns 8 bits

  // Returns the interned string, valid while owner() lives. Bytes that are not UTF-8 become U+FFFD.
  std::string_view keep(std::string_view text) {
    if (text.empty()) return {};
    std::string_view& cached = cache_[cache_slot(text)];
    if (text != cached) cached = find(text);
    return cached;
  }
  std::shared_ptr<const void> owner() const { return all_; }

  // The index of the text in a cache of kCacheEntries. It is computed from the length and the first and last bytes,
  // which is cheaper than a hash of the whole text.
  static std::size_t cache_slot(std::string_view text) {
    if (text.empty()) return 0;
    std::uint64_t mix = text.size();
    if (text.size() >= 8) mix += base::load_word(text.data()) ^ (base::load_word(text.data() + text.size() - 8) * 31);
    else
      mix +=
          base::every_byte(static_cast<unsigned char>(text.front())) ^ (static_cast<unsigned char>(text.back()) * 31U);
    return (mix * 0x9E3779B97F4A7C15U) >> 56;
  }

 private:
  std::string_view find(std::string_view text) {
    if (!base::is_utf8(text)) return find(base::to_utf8(text));
    const auto found = index_.find(text);
    if (found != index_.end()) return *found;
    return *index_.insert(all_->emplace_back(text)).first;
  }

  std::shared_ptr<std::deque<std::string>> all_ = std::make_shared<std::deque<std::string>>();
  std::unordered_set<std::string_view> index_;
  std::array<std::string_view, kCacheEntries> cache_;
};

// A hash map with a small direct-mapped cache, for ids of streams, threads, devices and buffers. A hash lookup for each
// op would cost measurable time. Ids are small numbers, except in damaged files, so the cache uses their low bits.
// References stay valid until erase().
template <class Value>
class CachedMap : base::NoCopy {
 public:
  // Creates the value if the id is unknown.
  Value& operator[](std::uint64_t id) {
    CacheEntry& entry = cache_[id % cache_.size()];
    if (!entry.value || entry.id != id) entry = {id, &all_[id]};
    return *entry.value;
  }
  Value* find(std::uint64_t id) {  // null: the id is unknown
    const auto found = all_.find(id);
    return found == all_.end() ? nullptr : &found->second;
  }
  void erase(std::uint64_t id) {
    all_.erase(id);
    CacheEntry& entry = cache_[id % cache_.size()];
    if (entry.id == id) entry = {};
  }

 private:
  struct CacheEntry {
    std::uint64_t id = 0;
    Value* value = nullptr;
  };
  std::unordered_map<std::uint64_t, Value> all_;
  std::array<CacheEntry, 64> cache_{};
};

struct TimeKey {
  Picos at = 0;
  std::uint32_t index = 0;
};

// A stable radix sort over the digits in which the times differ. It takes linear time.
inline void sort_by_time(std::vector<TimeKey>& keys) {
  constexpr unsigned kDigitBits = 11;  // 2048 counters fit into the L1 cache
  constexpr std::uint64_t kDigitMask = (std::uint64_t{1} << kDigitBits) - 1;
  constexpr std::size_t kSmall = 2000;  // below this size, clearing the counters costs more than comparing
  const auto earlier = [](const TimeKey& a, const TimeKey& b) { return a.at < b.at; };
  if (std::is_sorted(keys.begin(), keys.end(), earlier)) return;
  if (keys.size() < kSmall) return std::stable_sort(keys.begin(), keys.end(), earlier);
  const auto [min, max] = std::minmax_element(keys.begin(), keys.end(), earlier);
  const auto base = static_cast<std::uint64_t>(min->at);
  const std::uint64_t range = static_cast<std::uint64_t>(max->at) - base;  // unsigned: the difference cannot overflow
  std::vector<TimeKey> sorted(keys.size());
  for (unsigned shift = 0; shift < 64 && (range >> shift) != 0; shift += kDigitBits) {
    std::array<std::size_t, kDigitMask + 1> place{};  // by digit: first the count, then the next index in `sorted`
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

inline std::vector<std::uint32_t> indices_by_time(std::vector<TimeKey> keys) {
  sort_by_time(keys);
  std::vector<std::uint32_t> result(keys.size());
  std::ranges::transform(keys, result.begin(), &TimeKey::index);
  return result;
}

}  // namespace slip::watch
