// Containers and a sort for trace code, which handles millions of records: interned strings, a hash map with a cache,
// and a radix sort by time.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/json_reader.hpp"
#include "base/json_text.hpp"
#include "base/sync.hpp"
#include "slip/op.hpp"
#include "slip/trace.hpp"

namespace slip::watch {

// Interned strings: equal strings are stored once, so strings are equal if and only if their addresses are equal.
class StringPool {
 public:
  static constexpr std::size_t kCacheEntries = 256;

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

// A hash map with a small direct-mapped cache before it, for ids of streams, threads, devices and buffers. Except in
// damaged files, these are small numbers, and a hash for every op would be measurable. References stay valid.
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

// Stable and linear: a radix sort over the digits in which the times differ.
void sort_by_time(std::vector<TimeKey>& keys);
std::vector<std::uint32_t> indices_by_time(std::vector<TimeKey> keys);

// StreamNames: the names that the program gave to its streams, for the texts of reports. Not thread-safe.
class StreamNames {
 public:
  StreamNames() = default;
  explicit StreamNames(const TraceData& trace);  // of all streams of the trace, which must outlive this object

  // The name must stay valid.
  void open(std::uint64_t stream, std::string_view name);
  // A report may name streams that were closed meanwhile, so the names of the last ones are kept.
  void close(std::uint64_t stream);
  std::string_view of(std::uint64_t stream) const {  // empty: the stream has no name
    const auto found = names_.find(stream);
    return found == names_.end() ? std::string_view() : found->second;
  }

  static constexpr std::size_t kMaxClosed = 4096;

 private:
  std::unordered_map<std::uint64_t, std::string_view> names_;
  std::deque<std::uint64_t> closed_;  // streams with names, in the order in which they were closed
};

}  // namespace slip::watch
