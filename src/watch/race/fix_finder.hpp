// FixFinder: finds the edges (dependencies) that a racy program lacks. RaceCheck uses it. FixFinder keeps the clocks of
// the fixed program and adds an edge whenever two accesses are still unordered. From then on the edge applies each time
// its two source lines run, as a wait written there would.
#pragma once

#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "watch/race/shadow.hpp"

namespace slip::watch {

class FixFinder {
 public:
  // `program`: the program's clocks so far. `by_op`: each op counts as a source line of its own. Used for plans, where
  // loops are unrolled.
  FixFinder(const Clocks& program, bool by_op) : clocks(program), by_op_(by_op) {}

  Clocks clocks;  // of the fixed program; the owner passes every record to them, too

  // Call before an access: applies the edges found so far to it.
  void apply(const Access& access);
  // Call after an access. `unordered`: earlier accesses that the unfixed program does not order before it.
  void add_missing(const Access& access, const std::vector<Access>& unordered);
  // The host ends a view that races with these ops, which were issued while the view was open. They are in the order of
  // issue. The fix is to end the view before the first of them.
  void end_view(const RaceSide& view, const std::vector<Access>& ops);
  const std::vector<RaceFix>& fixes() const { return fixes_; }

  // Starts with these fixes, and from now on notes which of them are needed.
  void assume(const std::vector<RaceFix>& fixes);
  // By fix: whether it alone ordered two conflicting accesses. True is certain; false means unknown.
  const std::vector<bool>& needed() const { return needed_; }

 private:
  using PlaceKey = std::tuple<std::uint64_t, std::string_view, std::int32_t, std::string_view, std::uint64_t>;
  PlaceKey key_of(const RaceSide& side) const {
    return {side.stream, side.file, side.line, side.name, by_op_ ? side.position : 0};
  }
  void order(std::uint32_t slot, Clocks::Point point);
  void add(const RaceSide& after, const RaceSide& before, Clocks::Point point);
  void note_needed(const std::vector<Access>& unordered);

  bool by_op_;
  std::vector<RaceFix> fixes_;
  std::vector<Clocks::Point> last_;  // by fix: the last op at the source line of `after`
  std::map<PlaceKey, std::vector<std::size_t>> by_after_, by_before_;
  // Fixes that end a view, by the source lines of the view and of the op.
  std::map<std::pair<PlaceKey, PlaceKey>, std::size_t> of_views_;

  bool notes_needed_ = false;
  std::vector<bool> needed_;
  std::vector<std::size_t> applied_;              // fixes that were applied to the current access
  std::shared_ptr<const Clocks::Clock> without_;  // the clock of the current access without these fixes
};

}  // namespace slip::watch
