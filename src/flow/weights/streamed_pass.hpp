// StreamedPass: one pass of a WeightStreamer: its order of uses, the same order as a graph, and its plan.
// choose_memory() chooses the memory that all passes share.
//
// A pass is a Graph without activations: each use is an op, each group a weight. An op reads the group of its use and
// the groups of earlier uses that have not ended, so that the plan keeps them. So plan_weights() and predict_weights()
// work for a pass as for a model.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "flow/weights/group_catalog.hpp"
#include "flow/weights/ring_loads.hpp"

namespace slip::flow {

// A use of a step: `last` is the number of the last use that began before this one ended.
struct OrderedUse {
  std::uint32_t group = 0;
  std::uint32_t last = 0;
  friend bool operator==(const OrderedUse&, const OrderedUse&) = default;
};
using UseOrder = std::vector<OrderedUse>;

// Memory that all passes share: [resident groups | ring | slots].
struct StreamerMemory {
  std::uint64_t resident_bytes = 0, ring_bytes = 0;
  std::uint64_t slot_bytes = 0;  // for compressed groups that are copied and not yet decoded
  std::uint64_t bytes() const { return resident_bytes + ring_bytes + slot_bytes; }
  Range ring_of(Range memory) const { return memory.slice(resident_bytes, ring_bytes); }
  LoadMemory loads_of(Range memory) const {
    return {ring_of(memory), memory.slice(0, resident_bytes), memory.slice(resident_bytes + ring_bytes, slot_bytes)};
  }
};

// The order of the uses of the current step. After reserve() nothing is allocated.
class UseLog {
 public:
  void reserve(std::size_t uses) {
    max_uses_ = std::max(max_uses_, uses);
    order_.reserve(max_uses_);
  }
  void clear() {
    order_.clear();
    overflow_ = false;
  }
  std::uint32_t add(std::uint32_t group);  // returns the number of the use
  void end(std::uint32_t use) {
    if (use < order_.size()) order_[use].last = static_cast<std::uint32_t>(order_.size() - 1);
  }
  bool complete() const { return !overflow_; }  // false: the step had more uses than reserve() allowed
  const UseOrder& order() const { return order_; }
  std::size_t max_uses() const { return max_uses_; }

 private:
  UseOrder order_;
  std::size_t max_uses_ = 0;
  bool overflow_ = false;
};

class StreamedPass {
 public:
  // `times` by use; 0: unknown.
  StreamedPass(std::string name, UseOrder order, std::vector<Picos> times, const GroupCatalog& catalog,
               const Costs& links);

  const std::string& name() const { return name_; }
  const UseOrder& order() const { return order_; }
  const Graph& graph() const { return graph_; }
  const Costs& costs() const { return costs_; }
  const WeightsPlan& plan() const { return plan_; }
  PassTable& table() { return table_; }
  bool times_known() const {
    return std::ranges::all_of(times_, [](Picos time) { return time > 0; });
  }

  void set_links(const Costs& links) {  // the costs of loads
    costs_.device = links.device;
    costs_.load = links.load;
    costs_.read = links.read;
    costs_.decode = links.decode;
  }
  // Plans the loads of the streamed groups, in a ring of a given size.
  void plan(const GroupCatalog& catalog, const StreamerMemory& memory);
  void make_table(Range ring);
  // Replaces the order of uses. Each use of a group keeps its time: the first one that of the first use before, and so
  // on. If there are more uses than before, they get the time of the last one. Needs plan() and make_table() after it.
  void change_order(const UseOrder& order, const GroupCatalog& catalog);
  void change_times(const std::vector<Picos>& times, const GroupCatalog& catalog) {
    times_ = times;
    make_graph(catalog);
  }
  // The streamer's group that is this weight group of the graph.
  std::uint32_t group_of(const WeightGroup& planned) const { return groups_[planned.parts.front().bytes.value.index]; }

 private:
  void make_graph(const GroupCatalog& catalog);

  std::string name_;
  UseOrder order_;
  std::vector<Picos> times_;
  Graph graph_;
  std::vector<std::uint32_t> groups_;  // by value of the graph
  Costs costs_;
  WeightsPlan plan_;
  PassTable table_;
};

// Chooses the resident groups and the ring for all passes, and marks them in the catalog. The pass with the longest
// exposed loads decides. Throws kOutOfMemory if `budget` is too small. Does not plan the passes themselves.
StreamerMemory choose_memory(const std::vector<std::unique_ptr<StreamedPass>>& passes, GroupCatalog& catalog,
                             std::uint64_t budget, const StreamerOptions& options, Here here);

// With StreamerOptions::slowdown: the smallest budget with which each pass takes at most that much longer than with all
// groups resident.
std::uint64_t budget_for_slowdown(const std::vector<std::unique_ptr<StreamedPass>>& passes, const GroupCatalog& catalog,
                                  const StreamerOptions& options, Here here);

// PassHistory: observations of the last steps of a pass. They are the order of its uses, the pass that followed, and
// the times of its uses if the program gave none.
//
// One thread at a time. Between begin() and the end of a step nothing is allocated.
class PassHistory {
 public:
  std::uint32_t follower = 0;  // the pass that followed last time

  void reserve(std::size_t uses) { earlier_.reserve(uses); }
  // A step ended with this order. Returns true if the same order, different from the planned one, came twice in a row.
  bool is_new_order(const UseOrder& planned, const UseOrder& order);

  // Measures the uses of the next step, unless a measurement is under way. The first call only records each event once
  // in `stream` (any stream of the device), which allocates. When these records are reached, a later step can be
  // measured without an allocation.
  void measure(std::size_t uses, StreamRef stream);
  void begin_use(std::uint32_t use, StreamRef stream) {
    if (state_ != State::kRecording || use >= spans_.size()) return;
    stream.record(spans_[use].begin);
    uses_ = std::size_t{use} + 1;
  }
  void end_use(std::uint32_t use, StreamRef stream) {
    if (state_ != State::kRecording || use >= spans_.size()) return;
    stream.record(spans_[use].end);
    spans_[use].ended = true;
  }
  // `planned`: the step had the planned order; otherwise its times are dropped.
  void end_step(bool planned) {
    if (state_ == State::kRecording) state_ = planned ? State::kPending : State::kIdle;
  }
  void drop_times() {  // the planned order has changed
    if (state_ == State::kPending) state_ = State::kIdle;
  }
  // The times of the uses, once, when all of them have ended. Never waits.
  std::optional<std::vector<Picos>> take_times();

 private:
  enum class State : unsigned char { kIdle, kRecording, kPending };
  struct Span {
    TimedEvent begin, end;
    bool ended = false;
  };
  UseOrder earlier_;  // of the last step, if it differed from the planned one
  State state_ = State::kIdle;
  std::size_t uses_ = 0;
  std::vector<Span> spans_;  // by use
};

}  // namespace slip::flow
