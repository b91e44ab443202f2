// FixFinder: the edges that a racy program lacks. It follows the program with clocks of its own, the clocks of the
// fixed program, and adds an edge whenever two accesses are still unordered. From then on the edge holds at every run
// of its two places in the source, as a wait written there would.
#pragma once

#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "watch/race/shadow.hpp"

namespace slip {

class FixFinder {
 public:
  // `program`: the program's clocks so far. `by_op`: each op counts as a place of its own, as in a plan, where loops
  // are unrolled.
  FixFinder(const Clocks& program, bool by_op) : clocks(program), by_op_(by_op) {}

  Clocks clocks;  // of the fixed program: the owner passes every record on to them

  // An access is about to happen: the edges found so far hold for it.
  void apply(const Access& access);
  // The access happened. `unordered`: earlier accesses that the unfixed program does not order before it.
  void add_missing(const Access& access, const std::vector<Access>& unordered);
  // The host ends a view that races with these ops, in the order of issue. They were issued while the view was open. To
  // end the view before the first of them is enough.
  void end_view(const RaceSide& view, const std::vector<Access>& ops);
  const std::vector<RaceFix>& fixes() const { return fixes_; }

  // Starts with these fixes, and from now on notes which of them are needed.
  void assume(const std::vector<RaceFix>& fixes);
  // By fix: whether it alone ordered two accesses that conflict. True is certain; false says nothing.
  const std::vector<bool>& needed() const { return needed_; }

 private:
  using PlaceKey = std::tuple<std::uint64_t, std::string_view, std::int32_t, std::string_view, std::uint64_t>;
  PlaceKey key_of(const RaceSide& side) const {
    return {side.stream, side.file, side.line, side.name, by_op_ ? side.position : 0};
  }
  bool is_ordered(const Access& earlier, std::uint32_t slot) const;
  void order(std::uint32_t slot, Clocks::Point point);
  void add(const RaceSide& after, const RaceSide& before, Clocks::Point point);
  void note_needed(const std::vector<Access>& unordered);

  bool by_op_;
  std::vector<RaceFix> fixes_;
  std::vector<Clocks::Point> last_;  // by fix: the last run of `after`
  std::map<PlaceKey, std::vector<std::size_t>> by_after_, by_before_;
  std::map<std::pair<PlaceKey, PlaceKey>, std::size_t> of_views_;  // fixes that end a view, by its place and the op's

  bool notes_needed_ = false;
  std::vector<bool> needed_;
  std::vector<std::size_t> applied_;              // fixes that hold for the access at hand,
  std::shared_ptr<const Clocks::Clock> without_;  // and its clock without them
};

}  // namespace slip
