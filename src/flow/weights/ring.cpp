#include "flow/weights/ring.hpp"

#include <algorithm>
#include <deque>

#include "flow/weights/units.hpp"

namespace slip {
namespace {

struct Lying {
  std::uint64_t begin = 0, end = 0;
  std::uint32_t first_op = 0, last_op = 0;
  bool overlaps(std::uint64_t from, std::uint64_t to) const { return begin < to && from < end; }
};

// The end of a load that is still needed and in the way, or nothing.
std::optional<std::uint64_t> in_the_way(const std::deque<Lying>& lying, std::uint64_t from, std::uint64_t to,
                                        std::uint32_t first_op) {
  for (const Lying& load : lying) {
    if (load.overlaps(from, to) && load.last_op >= first_op) return load.end;
  }
  return std::nullopt;
}

}  // namespace

bool lay_ring(const std::vector<WeightUnit>& units, std::span<WeightLoad> loads, std::uint64_t bytes,
              std::uint32_t* needs) {
  std::deque<Lying> lying;  // this step's, latest last; those wholly overwritten are dropped
  std::uint64_t head = 0;
  for (WeightLoad& load : loads) {
    const std::uint64_t size = ring_bytes_of(units[load.unit]);
    int wraps = 0;
    for (;;) {
      if (head + size > bytes) {
        head = 0;
        if (++wraps > 1) {
          if (needs) *needs = load.first_op;
          return false;
        }
        if (size > bytes) continue;
      }
      const auto blocked = in_the_way(lying, head, head + size, load.first_op);
      if (!blocked) break;
      head = *blocked;
    }
    load.offset = head;
    load.after_op = kNoOp;
    load.step_before = false;
    for (const Lying& old : lying) {
      if (old.overlaps(head, head + size) && (load.after_op == kNoOp || old.last_op > load.after_op))
        load.after_op = old.last_op;
    }
    std::erase_if(lying, [&](const Lying& old) { return old.begin >= head && old.end <= head + size; });
    lying.push_back({head, head + size, load.first_op, load.last_op});
    head += size;
  }
  // The first loads of a step overwrite the last ones of the step before. Only what no load of this step lay upon
  // before is still the old step's.
  for (std::size_t i = 0; i < loads.size(); ++i) {
    WeightLoad& load = loads[i];
    if (load.after_op != kNoOp) continue;
    for (const WeightLoad& old : loads) {
      const Lying there{old.offset, old.offset + ring_bytes_of(units[old.unit]), old.first_op, old.last_op};
      if (!there.overlaps(load.offset, load.offset + ring_bytes_of(units[load.unit]))) continue;
      if (load.after_op == kNoOp || old.last_op > load.after_op) load.after_op = old.last_op;
      load.step_before = true;
    }
  }
  return true;
}

WorkingSet largest_working_set(const std::vector<WeightUnit>& units, std::span<const WeightLoad> loads) {
  WorkingSet most;
  std::vector<const WeightLoad*> live;
  for (const WeightLoad& load : loads) {  // in the order of the first use: the most live at the start of some load
    std::erase_if(live, [&](const WeightLoad* old) { return old->last_op < load.first_op; });
    live.push_back(&load);
    std::uint64_t sum = 0;
    for (const WeightLoad* one : live) sum += ring_bytes_of(units[one->unit]);
    if (sum > most.bytes) most = {sum, load.first_op};
  }
  return most;
}

}  // namespace slip
