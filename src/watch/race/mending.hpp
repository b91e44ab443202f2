// Mending: which edges a racy program lacks. It follows the program with clocks of its own, to which it adds an edge
// whenever two accesses are still unordered; from then on the edge holds at every run of its two places, as it would in
// the source.
#pragma once

#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "watch/race/shadow.hpp"

namespace slip {

// How the host is called in a race with an op that was issued while a view was alive.
inline constexpr std::string_view kOpenView = "the host, in a view still open";

class Mending {
 public:
  // `program`: its order so far. `by_op`: each op is a place of its own, as in a plan, where loops are unrolled.
  Mending(const Clocks& program, bool by_op) : clocks(program), by_op_(by_op) {}

  Clocks clocks;  // of the mended program: its owner tells it all that happens

  // An access is about to happen: the edges found so far hold for it.
  void before(const Access& access);
  // It happened, and these earlier ones are not ordered before it in the program as it is.
  void after(const Access& access, const std::vector<Access>& unordered);
  // The host ends a view, and races with these ops that were issued while the view was open, in the order of issue. To
  // end the view before the first of them is enough.
  void end_view(const RaceSide& view, const std::vector<Access>& ops);
  const std::vector<RaceFix>& fixes() const { return fixes_; }
  // As if these had been found already. From now on it notes which of them are needed.
  void assume(const std::vector<RaceFix>& fixes);
  // By fix: whether it alone ordered two accesses that conflict. True is certain; false says nothing.
  const std::vector<bool>& needed() const { return needed_; }

 private:
  using Place = std::tuple<std::uint64_t, std::string_view, std::int32_t, std::string_view, std::uint64_t>;
  Place place_of(const RaceSide& side) const;
  bool is_ordered(const Access& earlier, std::uint32_t slot) const;
  void order(std::uint32_t slot, Clocks::Point point);
  void add(const RaceSide& after, const RaceSide& before, Clocks::Point point);
  void note_needed(const std::vector<Access>& unordered);

  bool by_op_;
  std::vector<RaceFix> fixes_;
  std::vector<Clocks::Point> last_;  // by fix: the last run of `after`
  std::map<Place, std::vector<std::size_t>> by_after_, by_before_;
  std::map<std::pair<Place, Place>, std::size_t> of_views_;  // fixes that end a view, by its place and the op's

  bool notes_needed_ = false;
  std::vector<bool> needed_;
  std::vector<std::size_t> applied_;              // fixes that hold for the access at hand,
  std::shared_ptr<const Clocks::Clock> without_;  // and what it comes after without them
};

}  // namespace slip
