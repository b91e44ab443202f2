// Links: bandwidth shared by the copies that cross it, max-min fair: every flow gets the same share of its narrowest
// link, and what a flow cannot use there goes to the others.
//
// A flow that is slowed by something beside it keeps its share and moves fewer bytes with it.
//
// When a flow comes or goes only the flows that share a link with it, directly or through others, get new rates; all
// changes of one instant are settled at once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/sim/arithmetic.hpp"

namespace slip::sim {

struct SimStream;

// The links that a copy crosses, by index.
using Path = std::vector<std::uint32_t>;

struct Flow {
  const Path* path = nullptr;   // null: not under way
  SimStream* stream = nullptr;  // whose copy it is
  bool slowed = false;          // kernels run beside it
  U128 left = 0;                // bytes x 10^12 x Links::full_pace_: exact at any rate and time
  std::uint64_t rate = 0;       // its share of the links, bytes per second; 0: not settled yet
  U128 speed = 0;               // at which `left` shrinks: the rate x the pace
  Picos since = 0;              // when `left` was true
  Picos end = 0;                // at this rate
  std::uint64_t fresh_rate = 0;
  std::uint64_t mark = 0;
};

class Links {
 public:
  std::uint32_t add(std::uint64_t bytes_per_second);

  // How much longer a slowed flow takes, for all of them. Before the first flow.
  void set_slowdown(std::uint32_t ppm);

  // These take effect at the next settle(), which must come before time moves on.
  void start(Flow& flow, const Path& path, std::uint64_t bytes, Picos now);
  void slow(Flow& flow, bool slowed);
  void stop(Flow& flow);

  bool settled() const { return touched_.empty() && paced_.empty(); }
  // Shares the bandwidth anew; returns the flows whose `end` changed, valid until the next call.
  std::span<Flow* const> settle(Picos now);

 private:
  struct Link {
    std::uint64_t capacity = 0;
    std::vector<Flow*> flows;
    std::uint64_t mark = 0;  // of the last settling that visited it
    std::uint32_t open = 0;  // while settling: flows without a rate yet
    std::uint64_t left = 0;  // while settling: bandwidth not given away yet
  };

  void collect(std::uint32_t link);
  void share();
  void give(Flow& flow, std::uint64_t rate);
  void update(Flow& flow, Picos now);

  std::vector<Link> links_;
  std::vector<std::uint32_t> touched_;  // links whose flows changed since the last settling
  std::vector<Flow*> paced_;            // flows that were slowed or let go since then
  std::uint32_t full_pace_ = 1, slow_pace_ = 1;
  std::uint64_t mark_ = 0;
  // Scratch of settle(), kept for their memory.
  std::vector<std::uint32_t> part_;  // the links of one connected part
  std::vector<Flow*> part_flows_;
  std::vector<Flow*> changed_;
};

}  // namespace slip::sim
