// Mending: which edges a racy program lacks. It follows the program with clocks of its own, to which it adds an edge
// whenever two accesses are still unordered; from then on the edge holds at every run of its two places, as it would in
// the source.
#pragma once

#include <map>
#include <tuple>
#include <vector>

#include "watch/shadow.hpp"

namespace slip {

class Mending {
 public:
  // `program`: its order so far. `by_op`: each op is a place of its own, as in a plan, where loops are unrolled.
  Mending(const Clocks& program, bool by_op) : clocks(program), by_op_(by_op) {}

  Clocks clocks;  // of the mended program: its owner tells it all that happens

  // An access is about to happen: the edges found so far hold for it.
  void before(const Access& access);
  // It happened, and these earlier ones are not ordered before it in the program as it is.
  void after(const Access& access, const std::vector<Access>& unordered);
  const std::vector<Fix>& fixes() const { return fixes_; }
  // As if these had been found already.
  void assume(const std::vector<Fix>& fixes);

 private:
  using Place = std::tuple<std::uint64_t, std::string_view, std::int32_t, std::string_view, std::uint64_t>;
  Place place_of(const RaceSide& side) const;
  bool is_ordered(const Access& earlier, std::uint32_t slot) const;
  void order(std::uint32_t slot, Clocks::Point point);
  void add(const RaceSide& after, const RaceSide& before, Clocks::Point point);

  bool by_op_;
  std::vector<Fix> fixes_;
  std::vector<Clocks::Point> last_;  // by fix: the last run of `after`
  std::map<Place, std::vector<std::size_t>> by_after_, by_before_;
};

}  // namespace slip
