// RingLoads: the loads of weight groups into the ring, in the order of a plan and on demand. It is the one engine below
// Runner, verify_weights, predict_weights and WeightStreamer.
//
// Planned loads are issued in the order of the plan, by a cursor. There are two kinds of users:
// - Steps (step.hpp) makes every use in the order of the plan, at addresses that never change. The loads wait for the
//   ops that the plan names, so a proof is about the plan.
// - StreamedGroups (streamed_groups.hpp) makes uses in any order. RingContents knows what lies in the ring. A load
//   waits for the uses of whatever it overwrites. A group that is absent when it is used is loaded on demand.
//
// One thread at a time. After construction nothing is allocated.
#pragma once

#include <memory>
#include <vector>

#include "flow/weights/ring_contents.hpp"
#include "flow/weights/weight_groups.hpp"
#include "slip/device.hpp"
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

// The uses and loads of one step of a plan, as RingLoads issues them.
struct PlannedUse {
  std::uint32_t group = 0;  // StreamedGroups: the group that is used
  std::uint32_t loads = 0;  // loads of a step that this use and the uses before it need
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
  // `stream` waits for the load. From here to end_use() the entry keeps its place. use.entry is null if the group is
  // resident.
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
  // The load on demand has replaced groups that the plan still has uses for. The cursor goes back to the first load
  // with a use that is still to come, so that they are loaded again in the order of the plan. Loads that are in their
  // place are omitted.
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
