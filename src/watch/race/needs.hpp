// Needs: which edges of a program its conflicts need. Those that no conflict needs cost time and protect nothing.
//
// It is told every edge (a wait, a barrier, the host's sync, and the host's order of submission) and every pair of
// accesses that must be ordered. For each pair it marks the edges of one way from the one to the other, taking the
// latest edges, which serve most pairs. All edges that stay unmarked can be removed together.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "watch/race/clocks.hpp"

namespace slip {

class Needs {
 public:
  struct Edge {
    Clocks::Point from;
    std::shared_ptr<const Clocks::Clock> followed;  // by the point
    std::uint32_t to = 0;                           // the slot that waits,
    std::uint64_t position = 0;                     // its ops after this position
    std::uint32_t record = 0;                       // see `record`
    bool implied = false;                           // it brought nothing new
    bool needed = false;
    bool held = false;        // an op came behind it
    bool with_waits = false;  // it also follows the waits behind the point, as a wait for a whole device does
  };

  std::uint32_t record = 0;  // which one of the trace is being looked at

  // Later ops of `to` follow the point, and with it what the point followed.
  void edge(std::uint32_t to, Clocks::Point from, std::shared_ptr<const Clocks::Clock> followed, bool implied,
            bool with_waits = false);
  // The slot has come so far: edges told from now on do not hold for what lies before.
  void mark(Clocks::Point point) { slot(point.slot).end = std::max(slot(point.slot).end, point.position); }
  // An op of the slot came; `followed` is what it comes after.
  void op(Clocks::Point point, const Clocks::Clock& followed);
  // The slot's next op must come after the point, and does.
  void conflict(Clocks::Point earlier, std::uint32_t slot) { need(earlier, slot, ~std::uint64_t{0}); }
  // The op that came may touch anything, or tells somebody that all before it is done.
  void opaque(Clocks::Point point, const Clocks::Clock& followed);
  // The op that came touches memory that the host may look at after a sync, without saying so.
  void for_host(Clocks::Point point);
  void host_waited(std::uint32_t host_slot, const Clocks::Clock& known);  // told after its edges

  const std::vector<Edge>& edges() const { return edges_; }

  // Too many streams or edges to follow what each is needed for: nothing is known then.
  void give_up();
  bool gave_up() const { return gave_up_; }

 private:
  // What needed edges alone order before a slot's ops, from a position on.
  struct Kept {
    std::uint64_t covers = 0;
    std::uint64_t since = 0;
  };
  struct Slot {
    std::uint64_t end = 0;                // of its last op
    std::vector<std::uint32_t> edges;     // into it, but for implied ones
    std::size_t held = 0;                 // of these: have an op behind them
    std::vector<Kept> kept;               // by the other slot
    std::vector<std::uint64_t> opaque;    // positions, rising
    std::vector<std::uint64_t> for_host;  // positions, rising
  };
  Slot& slot(std::uint32_t index);
  std::uint64_t covers(const Edge& edge, std::uint32_t slot) const;
  void need(Clocks::Point earlier, std::uint32_t slot, std::uint64_t before);
  void need_last(const std::vector<std::uint64_t>& positions, std::uint32_t of, const Clocks::Clock& known,
                 std::uint32_t slot);

  std::vector<Edge> edges_;
  std::vector<Slot> slots_;
  std::size_t entries_ = 0;  // in the clocks of all edges
  bool some_opaque_ = false;
  bool gave_up_ = false;
};

}  // namespace slip
