// RingLoads: the loads of weight groups into the ring, in the order of a plan and on demand. Runner, verify_weights,
// predict_weights and WeightStreamer all use it.
//
// Planned loads are issued in the order of the plan, by a cursor. There are two kinds of users:
// - Steps (step.hpp) makes every use in the order of the plan, at addresses that never change. The loads wait for
//   exactly the ops that the plan names. So if verify_weights finds no race, the plan itself is correct.
// - StreamedGroups (streamed_groups.hpp) makes uses in any order. RingContents knows what lies in the ring. A load
//   waits for the uses of whatever it overwrites. A group that is absent when it is used is loaded on demand.
//
// One thread at a time. After construction nothing is allocated.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "flow/weights/weight_groups.hpp"
#include "slip/device.hpp"
#include "slip/event.hpp"
#include "slip/weights.hpp"

namespace slip::flow {

// Issues the loads of weight groups. The runner, the streamer and the proof use Loader (loader.hpp); a prediction uses
// a loader that only takes time.
class GroupLoader {
 public:
  virtual ~GroupLoader() = default;
  // Issues to `stream` the ops that bring a weight group to `to`, a place in the ring. `used` is the event recorded
  // after the last op that read this place; null: no op read it, or wait() got the events. `stream` waits for it
  // already.
  virtual void issue(StreamRef stream, Range to, std::uint32_t group, const Event* used) = 0;
  // Bytes between the planned place of a part and the place where this loader puts it.
  virtual std::uint64_t shift(Range to, std::uint32_t group, std::size_t part) const = 0;
  // The loader's own streams write no place of a later load before `event`.
  virtual void wait(const Event& event) { (void)event; }
};

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

// RingContents: the loads that the ring holds, for uses in any order. An entry is one load: its interval, its weight
// group, and the uses that the plan still has for it. It also has the events that a later load into its interval must
// wait for.
class RingContents {
 public:
  // `bytes`: size of the ring; `groups`: number of weight groups; `max_open`: the maximum number of entries with uses
  // that have not ended.
  RingContents(std::uint64_t bytes, std::size_t groups, std::size_t max_open);

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

// The uses and loads of one step of a plan, as RingLoads issues them.
struct PlannedUse {
  std::uint32_t group = 0;  // StreamedGroups: the group that is used
  std::uint32_t loads = 0;  // number of loads of a step that this use and the uses before it need
  bool is_awaited = false;  // Steps: some load waits for `used`
  Event used = {};          // Steps: recorded after this use
};
struct PlannedLoad {
  Range to;  // in the ring
  std::uint32_t group = 0;
  std::uint32_t first_use = 0, last_use = 0, after_use = kNoOp;  // as in WeightLoad
  bool step_before = false;
  Event loaded = {};  // Steps: recorded after the load
};
struct PassTable {
  std::vector<PlannedUse> uses;
  std::vector<PlannedLoad> loads;
};
// `uses` is the number of ops of the plan's graph. The groups of uses stay 0.
PassTable make_pass_table(const WeightsPlan& plan, Range ring, std::size_t uses);

// Loads of StreamedGroups.
struct LoadCounts {
  struct Loads {
    std::uint64_t count = 0, bytes = 0;
  };
  Loads planned, on_demand;
};

class RingLoads {
 public:
  // `contents` null: uses are made in the order of the plan only.
  RingLoads(const Device& device, Range ring, GroupLoader& loader, std::unique_ptr<RingContents> contents);

  // A step begins. `after` is the pass that is expected to follow it. The tables must stay valid until the next
  // begin().
  void begin(PassTable& pass, PassTable& after);
  // Call it if the tables have changed. begin() calls it if another pass than the expected one begins. The groups that
  // were loaded ahead stay in the ring, but count as unplanned.
  void forget_plan() {
    cursor_ = {};
    if (contents_) contents_->forget_planned_uses();
  }
  // Issues the next planned loads, until one has no free place; at most the loads of this step and the next.
  void issue_ahead();

  // Uses in the order of the plan (Steps). `stream` waits for the loads of this use.
  void before_use(std::uint32_t use, StreamRef stream);
  void after_use(std::uint32_t use, StreamRef stream) {
    PlannedUse& planned = pass_->uses[use];
    if (planned.is_awaited) stream.record(planned.used);
    position_ = base_ + use + 1;
  }

  // Uses in any order (StreamedGroups).
  struct Use {
    RingEntry* entry = nullptr;
    std::uint32_t planned = kNoOp;  // the planned use; kNoOp: the plan has no such use any more in this step
    std::uint32_t skipped = 0;      // planned uses that were passed over
    bool on_demand = false;
    bool must_wait = false;  // for entry->loaded; false: the stream waits for a later load already
  };
  // Moves the position in the plan to the next planned use of this group, if there is one.
  Use next_use(std::uint32_t group);
  // Loads the group of `use`, unless it is in the ring or on its way there. If uses that have not ended occupy every
  // place, use.entry stays null.
  void load(Use& use, std::uint32_t group, std::uint64_t bytes, StreamRef stream);
  // From here to end_use() the entry keeps its place. If use.must_wait, the caller must have issued the wait of
  // `stream` for entry->loaded. use.entry is null if the group is resident.
  void begin_use(const Use& use, StreamRef stream);
  void end_use(RingEntry& entry, StreamRef stream);

  StreamRef stream() const { return stream_; }
  // StreamedGroups only.
  const Event& last_load() const { return last_load_; }
  const LoadCounts& counts() const { return counts_; }

 private:
  struct Waited {
    std::uint64_t stream = 0, load = 0;  // this stream waits for this load and all loads before it
  };
  // The next planned load: of this step or, if `ahead`, of the next one.
  struct Cursor {
    std::uint32_t load = 0;
    bool ahead = false;
  };
  PassTable& table() const { return cursor_.ahead ? *after_ : *pass_; }
  std::uint64_t base() const { return cursor_.ahead ? base_ + pass_->uses.size() : base_; }
  bool may_issue(const PlannedLoad& load) const {
    if (!contents_) return load.after_use == kNoOp || load.step_before || base_ + load.after_use < position_;
    const std::uint64_t begin = load.to.offset - ring_.offset;
    return contents_->is_free(begin, begin + aligned(load.to.bytes), position_);
  }
  bool is_there(const PlannedLoad& load);
  void issue_planned(PlannedLoad& load);
  RingEntry& replace(Range to, std::uint32_t group, LoadCounts::Loads& counted);
  // Call it after a load replaced groups that the plan still has uses for. The cursor goes back to the first load with
  // a use that is still to come, so that these groups are loaded again in the order of the plan. is_there() skips
  // groups that are still in their place.
  void go_back() {
    cursor_ = {};
    while (cursor_.load < pass_->loads.size() && base_ + pass_->loads[cursor_.load].last_use < position_)
      ++cursor_.load;
  }
  Waited& waited_of(StreamRef stream);

  const Range ring_;
  GroupLoader& loader_;
  Stream stream_;
  std::unique_ptr<RingContents> contents_;
  PassTable *pass_ = nullptr, *after_ = nullptr;
  // Uses are numbered over all steps. base_ is the first use of this step, position_ the next use.
  std::uint64_t base_, position_;
  Cursor cursor_;
  LoadCounts counts_;
  Event last_load_;
  bool must_go_back_ = false;    // a load has replaced a group that the plan still has a use for
  std::vector<Waited> waited_;   // the streams that used the ring last
  std::size_t oldest_wait_ = 0;  // in waited_: replaced next
};

}  // namespace slip::flow
