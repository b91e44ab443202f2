// RingContents: the loads that the ring holds, for uses in any order. An entry is one load: its interval, its weight
// group, and the uses that the plan still has for it. It also has the events that a later load into its interval must
// wait for.
//
// One thread at a time. After construction nothing is allocated.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "slip/event.hpp"

namespace slip::flow {

struct RingEntry {
  struct Used {
    std::uint64_t stream = 0;  // id
    Event event;               // recorded after the last use in this stream
  };
  static constexpr std::size_t kStreams = 4;

  std::uint64_t begin = 0, end = 0;  // in the ring
  std::uint32_t group = 0;
  std::uint32_t open = 0;                // uses that have not ended
  std::uint64_t load = 0;                // number of its load; later loads have larger numbers
  std::uint64_t first_use = 0;           // the next planned uses are in first_use...last_use
  std::uint64_t last_use = 0;            // 0: none
  Event loaded = {};                     // recorded after the load
  std::array<Used, kStreams> used = {};  // by stream, the first `streams` of them
  std::size_t streams = 0;

  bool is_needed(std::uint64_t position) const { return open > 0 || last_use >= position; }
};

class RingContents {
 public:
  // `bytes` of the ring; `groups`: number of weight groups; `max_open`: entries with uses that have not ended.
  RingContents(std::uint64_t bytes, std::size_t groups, std::size_t max_open);

  std::uint64_t bytes() const { return bytes_; }
  RingEntry* find(std::uint32_t group) {  // the newest entry of the group; null: none
    return newest_[group] == kNone ? nullptr : &entries_[newest_[group]];
  }
  // True if no entry in [begin, end) has a use that has not ended or that the plan has from `position` on.
  bool is_free(std::uint64_t begin, std::uint64_t end, std::uint64_t position) const {
    return std::ranges::none_of(intervals_in(begin, end),
                                [&](const Interval& interval) { return entries_[interval.entry].is_needed(position); });
  }
  // The interval for `bytes` bytes whose entries have the latest next planned use. None if uses that have not ended
  // occupy every interval.
  std::optional<std::uint64_t> place_for(std::uint64_t bytes, std::uint64_t position) const;

  // The events that a load into [begin, end) must wait for: for each stream the last use. Valid until the next call.
  std::span<const RingEntry::Used> uses_in(std::uint64_t begin, std::uint64_t end);
  // The newest entry in [begin, end) that no use has read; null: none.
  const RingEntry* unused_in(std::uint64_t begin, std::uint64_t end) const;
  // Erases all entries in [begin, end). Returns true if the plan has uses of one of them from `position` on.
  bool erase(std::uint64_t begin, std::uint64_t end, std::uint64_t position);
  // Adds an entry. There must be none in [begin, end).
  RingEntry& add(std::uint64_t begin, std::uint64_t end, std::uint32_t group);
  // If the table has no free entry: an entry to erase first, preferably one that no planned use needs. Otherwise null.
  const RingEntry* surplus(std::uint64_t position) const;

  // Makes `event` the last use in its stream. Returns false if the entry has events of kStreams other streams.
  static bool note_use(RingEntry& entry, std::uint64_t stream, const Event& event);
  void forget_planned_uses() {
    for (const Interval& interval : intervals_)
      entries_[interval.entry].first_use = entries_[interval.entry].last_use = 0;
  }

 private:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};  // no entry

  struct Interval {  // small, so that a search reads few cache lines
    std::uint64_t begin = 0, end = 0;
    std::uint32_t entry = 0;
  };
  // The intervals that overlap [begin, end).
  std::span<const Interval> intervals_in(std::uint64_t begin, std::uint64_t end) const;
  std::uint64_t next_use_in(std::uint64_t begin, std::uint64_t end, std::uint64_t position) const;

  const std::uint64_t bytes_;
  std::vector<RingEntry> entries_;
  std::vector<std::uint32_t> free_;    // entries that are not in use
  std::vector<Interval> intervals_;    // ascending; entries do not overlap
  std::vector<std::uint32_t> newest_;  // by group: its newest entry
  std::vector<RingEntry::Used> uses_;  // the result of uses_in()
};

}  // namespace slip::flow
